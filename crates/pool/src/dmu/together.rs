//! Pointers to several blocks at once, as far as memory leads to them.
//!
//! A [`Cursor`](super::Cursor) goes down the tree for one block: it waits for a line of memory, finds in it where the next
//! one is, and waits for that. What different requests wait for does not hang on each other. So this goes down for all of
//! them, a level at a time, and asks for all lines of a step before it looks at the first: the processor waits for them
//! together.

use std::hint::black_box;

use bytes::Bytes;
use ondisk::blkptr::BlkPtr;
use smallvec::smallvec;

use super::Object;
use crate::cache::{Row, Uses};

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
        let contents = object.source().each_cached(&wanted, &mut used);
        first.iter().zip(&used).for_each(|(number, used)| uses[*number].join(used));
        let content = |which: Option<usize>| which.and_then(|which| contents.get(which)?.as_ref());
        let slot = |blkid: u64| fanout.slot(fanout.ancestor(blkid, level - 1));
        for (blkid, which) in blocks.iter().zip(&which) {
            touch(content(*which), slot(*blkid) * BlkPtr::BYTES);
        }
        let found = blocks.iter().zip(&which).zip(&pointers).map(|((blkid, which), above)| {
            BlkPtr::decode_at(content(*which)?, slot(*blkid), above.as_ref()?.order()).ok()
        });
        pointers = found.collect();
    }
    for (blkid, pointer) in blocks.iter().zip(&mut pointers) {
        if !leads_on(pointer, 0, *blkid) {
            *pointer = None;
        }
    }
    pointers
}

/// Asks for the lines of a pointer.
fn touch(content: Option<&Bytes>, at: usize) {
    for line in [at, at + BlkPtr::BYTES / 2] {
        black_box(content.and_then(|content| content.get(line)).copied());
    }
}
