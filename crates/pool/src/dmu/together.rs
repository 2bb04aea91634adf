//! Pointers to several blocks at once, as far as memory leads to them.
//!
//! A [`Cursor`](super::Cursor) goes down the tree for one block: it waits for a line of memory, finds in it where the next
//! one is, and waits for that. What different requests wait for does not hang on each other. So this goes down for all of
//! them, a level at a time, and asks for all lines of a step before it looks at the first: the processor waits for them
//! together.

use std::hint::black_box;

use ondisk::blkptr::BlkPtr;
use smallvec::smallvec;

use super::Object;
use crate::{
    cache::{Row, Uses},
    io::Pointers,
};

/// The pointers to these blocks of data, in order; none for a hole, for what an indirect block that is not in memory leads
/// to, and for what is malformed: who goes there alone is told what it is. What was found for each on the way is added to
/// its `uses`; what is above several of them counts as one use.
pub(crate) fn pointers(object: &Object, blocks: &[u64], uses: &mut [Uses]) -> Row<Option<BlkPtr>> {
    let (top, fanout) = (object.levels().saturating_sub(1), object.fanout());
    let mut pointers: Row<Option<BlkPtr>> = blocks
        .iter()
        .map(|blkid| usize::try_from(fanout.ancestor(*blkid, top)).ok())
        .map(|index| index.and_then(|index| object.top_pointer(index)))
        .collect();
    let leads_on = |pointer: &Option<BlkPtr>, level: u8, blkid: u64| {
        pointer.as_ref().is_some_and(|pointer| {
            !pointer.is_hole() && object.check_pointer(pointer, level, object.bookmark(level, blkid)).is_ok()
        })
    };
    for level in (1..=top).rev() {
        // What is above several of them is looked up once.
        let (mut above, mut wanted): (Row<u64>, Row<BlkPtr>) = Default::default();
        let (mut which, mut first): (Row<Option<usize>>, Row<usize>) = Default::default();
        for (number, (blkid, pointer)) in blocks.iter().zip(&pointers).enumerate() {
            let id = fanout.ancestor(*blkid, level);
            which.push(match above.iter().position(|known| *known == id) {
                None if leads_on(pointer, level, id) => {
                    above.push(id);
                    first.push(number);
                    wanted.extend(*pointer);
                    Some(above.len() - 1)
                }
                known => known,
            });
        }
        let mut used: Row<Uses> = smallvec![Uses::default(); wanted.len()];
        let found = object.source().each_pointers(&wanted, &mut used);
        first.iter().zip(&used).for_each(|(number, used)| uses[*number].join(used));
        let known = |which: Option<usize>| which.and_then(|which| found.get(which)?.as_ref());
        let slot = |blkid: u64| fanout.slot(fanout.ancestor(blkid, level - 1));
        for (blkid, which) in blocks.iter().zip(&which) {
            touch(known(*which), slot(*blkid));
        }
        let next =
            blocks.iter().zip(&which).zip(&pointers).map(|((blkid, which), above)| {
                known(*which)?.get(slot(*blkid), above.as_ref()?.order()).ok()
            });
        pointers = next.collect();
    }
    for (blkid, pointer) in blocks.iter().zip(&mut pointers) {
        if !leads_on(pointer, 0, *blkid) {
            *pointer = None;
        }
    }
    pointers
}

/// Asks for the lines of a pointer.
fn touch(above: Option<&Pointers>, index: usize) {
    black_box(above.map(|above| above.peek(index)));
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use ondisk::{
        Order,
        blkptr::{Dva, Stored, packed},
        dnode::{BlkPtrs, Bonus, Dnode, ObjectType},
    };

    use super::*;
    use crate::{
        dmu::{BlockSource, DnodeAt, SourceFuture},
        error::BlockError,
        io::Bookmark,
    };

    const FANOUT: u64 = 128;

    /// Has one indirect block, packed, and is asked for its pointers only.
    #[derive(Debug)]
    struct Above(Bytes);

    impl BlockSource for Above {
        fn cached(&self, bp: &BlkPtr) -> Option<Bytes> {
            panic!("all of {bp:?} is unpacked for some of its pointers")
        }

        fn each_pointers(&self, wanted: &[BlkPtr], _uses: &mut [Uses]) -> Row<Option<Pointers>> {
            wanted.iter().map(|_| Some(Pointers::Packed(self.0.clone()))).collect()
        }

        fn read<'a>(&'a self, _: &'a BlkPtr, _: Bookmark) -> SourceFuture<'a, Result<Bytes, BlockError>> {
            unreachable!("it is in memory")
        }

        fn read_many<'a>(
            &'a self,
            _: &'a [(BlkPtr, Bookmark)],
        ) -> SourceFuture<'a, Vec<Result<Bytes, BlockError>>> {
            unreachable!("it is in memory")
        }
    }

    fn pointer(level: u8, id: u64) -> BlkPtr {
        let bytes = if level == 0 { 4096 } else { 128 * FANOUT };
        let dva = Dva { vdev: 0, offset: id * 512, asize: bytes, gang: false };
        BlkPtr::stored(&Stored {
            dvas: [dva, Dva::default(), Dva::default()],
            lsize: bytes,
            psize: bytes,
            compression_id: 2,
            checksum_id: 7,
            object_type: ObjectType::ZVOL,
            level,
            dedup: false,
            order: Order::Little,
            birth: 4,
            physical_birth: 4,
            fill: 1,
            checksum: [id, 2, 3, 4],
        })
        .unwrap()
    }

    /// Requests that came together took all of each indirect block for one pointer of it, 15 µs each time.
    #[test]
    fn pointers_are_taken_out_of_packed_blocks_one_by_one() {
        let dnode = Dnode {
            object_type: ObjectType::ZVOL,
            indirect_shift: 14,
            levels: 2,
            bonus_type: ObjectType::NONE,
            checksum_id: 0,
            compression_id: 0,
            flags: 0,
            data_sectors: 8,
            extra_slots: 0,
            max_block_id: FANOUT - 1,
            used: 0,
            reserved: ([0; 3], [0; 32]),
            blkptrs: BlkPtrs::new(&[pointer(1, 0)]).unwrap(),
            bonus: Bonus::new(&[]),
            spill: None,
        };
        let below: Vec<u8> = (0..FANOUT).flat_map(|id| pointer(0, id).encode(Order::Little)).collect();
        let above = Above(packed::pack(&below, Order::Little).unwrap().into());
        let object =
            Object::new(Arc::new(above), 7, DnodeAt { number: 1, dnode, order: Order::Little }).unwrap();
        let blocks = [3, 0, FANOUT - 1, 3];
        let found = pointers(&object, &blocks, &mut [(); 4].map(|()| Uses::default()));
        assert_eq!(found[..], blocks.map(|id| Some(pointer(0, id))));
    }
}
