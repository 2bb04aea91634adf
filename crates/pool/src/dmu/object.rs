//! One object: a dnode whose claims fit together, and reading through it.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use ondisk::{
    Order,
    blkptr::BlkPtr,
    dnode::{Dnode, Fanout},
};

use super::{BlockSource, Cursor, ReadError, Step};
use crate::{
    BoxFuture,
    io::{Bookmark, Pointers},
};

/// Blocks asked for in one go by reads of a whole range: 64 of 128 KiB are 8 MiB in flight.
const BATCH: usize = 64;

/// Indirect blocks and holes passed over in one go by who only looks at what is in memory: each costs a look.
const PASSED: usize = 1024;

/// Largest legal block in bytes.
const BLOCK_BYTES_MAX: u64 = 16 << 20;

/// An allocated dnode, its number, and the byte order of the block it was found in, which is that of its bonus.
#[derive(Clone, Debug)]
pub struct DnodeAt {
    /// Object number.
    pub number: u64,
    /// The dnode.
    pub dnode: Dnode,
    /// Byte order of the numbers in its bonus.
    pub order: Order,
}

/// An object whose geometry has been checked: levels, block sizes and pointers fit together.
#[derive(Clone, Debug)]
pub struct Object {
    source: Arc<dyn BlockSource>,
    objset: u64,
    number: u64,
    dnode: Dnode,
    order: Order,
    /// Bytes of a data block.
    block_bytes: u64,
    fanout: Fanout,
}

/// A data block as read, with the byte order of the numbers in it.
#[derive(Clone, Debug)]
pub struct Block {
    /// Content; `None` for a hole.
    pub content: Option<Bytes>,
    /// Byte order of its writer.
    pub order: Order,
}

impl Block {
    /// The content, a hole's being nothing at all.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.content.as_deref().unwrap_or_default()
    }
}

/// Neighbouring blocks of one kind.
#[derive(Clone, Debug)]
pub enum Run {
    /// One block with content.
    Block {
        /// Its number.
        blkid: u64,
        /// Where it is.
        pointer: BlkPtr,
    },
    /// Blocks without.
    Hole {
        /// First block id.
        first: u64,
        /// Number of blocks.
        count: u64,
        /// The hole at the end of the walk; none beyond what the dnode can address.
        pointer: Option<BlkPtr>,
    },
}

impl Object {
    /// Checks `dnode`'s geometry.
    ///
    /// # Errors
    /// Block sizes out of bounds, or more levels than 64-bit block ids can use.
    pub fn new(source: Arc<dyn BlockSource>, objset: u64, found: DnodeAt) -> Result<Self, ReadError> {
        let DnodeAt { number, dnode, order } = found;
        let block_bytes = dnode.data_block_bytes();
        let levels = dnode.levels;
        let wrong = |what| ReadError::Inconsistent {
            at: Bookmark { objset, object: number, level: 0, blkid: 0 },
            what,
        };
        if block_bytes == 0 || block_bytes > BLOCK_BYTES_MAX || block_bytes % 512 != 0 {
            return Err(wrong("the dnode's data block size is out of range"));
        }
        if levels == 0 || levels > 30 {
            return Err(wrong("the dnode's number of levels is out of range"));
        }
        if levels > 1 && !(10..=24).contains(&dnode.indirect_shift) {
            return Err(wrong("the dnode's indirect block size is out of range"));
        }
        if dnode.max_block_id.checked_mul(block_bytes).is_none() {
            return Err(wrong("the dnode's highest block lies beyond 2^64 bytes"));
        }
        let fanout = dnode.fanout();
        Ok(Self { source, objset, number, dnode, order, block_bytes, fanout })
    }

    /// The same, read through another source.
    #[must_use]
    pub fn over(&self, source: Arc<dyn BlockSource>) -> Self {
        Self { source, ..self.clone() }
    }

    /// Its dnode.
    #[must_use]
    pub fn dnode(&self) -> &Dnode {
        &self.dnode
    }

    /// Byte order of the numbers in its bonus.
    #[must_use]
    pub fn bonus_order(&self) -> Order {
        self.order
    }

    /// Its number in the object set.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The object set's id: its dataset's object number in the MOS, 0 for the MOS itself.
    #[must_use]
    pub fn objset(&self) -> u64 {
        self.objset
    }

    /// Where its blocks come from.
    #[must_use]
    pub fn source(&self) -> &Arc<dyn BlockSource> {
        &self.source
    }

    /// Bytes of a data block.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// Highest block id that may exist.
    #[must_use]
    pub fn max_block_id(&self) -> u64 {
        self.dnode.max_block_id
    }

    /// Bytes from the start to the end of the highest block.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.max_block_id().saturating_add(1).saturating_mul(self.block_bytes)
    }

    /// Number of levels; 1 means that the dnode points to data.
    #[must_use]
    pub fn levels(&self) -> u8 {
        self.dnode.levels
    }

    /// Names a block of this object.
    #[must_use]
    pub fn bookmark(&self, level: u8, blkid: u64) -> Bookmark {
        Bookmark { objset: self.objset, object: self.number, level: i64::from(level), blkid }
    }

    /// The dnode's own pointer `index`.
    #[must_use]
    pub fn top_pointer(&self, index: usize) -> Option<BlkPtr> {
        self.dnode.blkptrs.get(index).copied()
    }

    /// How its block ids lead from level to level.
    #[must_use]
    pub fn fanout(&self) -> Fanout {
        self.fanout
    }

    /// Checks that a pointer found at `level` is one for that level.
    pub(super) fn check_pointer(&self, pointer: &BlkPtr, level: u8, at: Bookmark) -> Result<(), ReadError> {
        let wrong = |what| Err(ReadError::Inconsistent { at, what });
        if pointer.level() != level {
            return wrong("the block pointer is of another level than its place in the tree");
        }
        if pointer.lsize() != self.dnode.block_bytes(level) {
            return wrong("the block pointer is of another size than its object's blocks");
        }
        Ok(())
    }

    /// Drives `cursor` to block `blkid` of `level`, reading what is needed. Never [`Step::Need`].
    ///
    /// # Errors
    /// An indirect block cannot be read, or the tree is inconsistent.
    pub async fn seek(&self, cursor: &mut Cursor, level: u8, blkid: u64) -> Result<Step, ReadError> {
        // Each turn supplies one more level, so there are at most as many turns as levels.
        loop {
            match cursor.step(self, level, blkid, |pointer| self.source.pointers(pointer))? {
                Step::Need { pointer, at } => {
                    let content = self.source.read(&pointer, at).await?;
                    cursor.supply(&pointer, at, content);
                }
                found => return Ok(found),
            }
        }
    }

    /// Tells `each` of the data blocks from `from` on whose pointers can be had without reading, up to the end of one
    /// indirect block; answers with where to go on. What lies below indirect blocks that `at_hand` has not is passed
    /// over, so this never waits, and after a thousand of them, or of holes, it returns as well. `cursor` is where it was before.
    ///
    /// # Errors
    /// A pointer on the way makes no sense.
    pub fn known(
        &self,
        cursor: &mut Cursor,
        from: u64,
        at_hand: impl Fn(&BlkPtr) -> Option<Pointers>,
        mut each: impl FnMut(u64, &BlkPtr),
    ) -> Result<u64, ReadError> {
        let mut end = self.max_block_id().saturating_add(1);
        let (mut blkid, mut passed) = (from, 0);
        while blkid < end && passed < PASSED {
            blkid = match cursor.step(self, 0, blkid, &at_hand)? {
                Step::Block(pointer) => {
                    each(blkid, &pointer);
                    let right = self.fanout.ancestor(blkid, 1).saturating_add(1);
                    end = end.min(self.fanout.first_descendant(right, 1));
                    blkid + 1
                }
                Step::Hole { until, .. } => {
                    passed += 1;
                    until.max(blkid + 1)
                }
                Step::Need { at, .. } => {
                    passed += 1;
                    let level = u8::try_from(at.level).unwrap_or(0);
                    self.fanout.first_descendant(at.blkid.saturating_add(1), level).max(blkid + 1)
                }
            };
        }
        Ok(blkid)
    }

    /// Reads data block `blkid`.
    ///
    /// # Errors
    /// It or an indirect block above it cannot be read.
    pub async fn read_block(&self, blkid: u64) -> Result<Block, ReadError> {
        match self.seek(&mut Cursor::default(), 0, blkid).await? {
            Step::Block(pointer) => {
                let content = self.source.read(&pointer, self.bookmark(0, blkid)).await?;
                Ok(Block { content: Some(self.whole(content, blkid)?), order: pointer.order() })
            }
            Step::Hole { .. } | Step::Need { .. } => Ok(Block { content: None, order: Order::Little }),
        }
    }

    /// Reads these data blocks: neighbours on a device travel together. Results in the order asked for; in that of their
    /// numbers, each indirect block is needed once.
    pub async fn read_blocks(&self, blocks: &[u64]) -> Vec<Result<Block, ReadError>> {
        let (mut cursor, mut found) = (Cursor::default(), Vec::with_capacity(blocks.len()));
        // Those that are no holes, and where they are among what was asked for.
        let (mut wanted, mut places) = (Vec::new(), Vec::new());
        for (place, &blkid) in blocks.iter().enumerate() {
            let step = self.seek(&mut cursor, 0, blkid).await;
            if let Ok(Step::Block(pointer)) = &step {
                wanted.push((*pointer, self.bookmark(0, blkid)));
                places.push(place);
            }
            found.push(step.map(|_| Block { content: None, order: Order::Little }));
        }
        let contents = self.source.read_many(&wanted).await;
        for ((place, (pointer, at)), content) in places.into_iter().zip(&wanted).zip(contents) {
            let content = content.map_err(ReadError::from).and_then(|content| self.whole(content, at.blkid));
            found[place] = content.map(|content| Block { content: Some(content), order: pointer.order() });
        }
        found
    }

    fn whole(&self, content: Bytes, blkid: u64) -> Result<Bytes, ReadError> {
        if content.len() as u64 == self.block_bytes {
            return Ok(content);
        }
        let what = "the block's content is of another size than its object's blocks";
        Err(ReadError::Inconsistent { at: self.bookmark(0, blkid), what })
    }

    /// The runs of blocks and holes in `blocks`, in order. At `level` 0 these are data blocks.
    #[must_use]
    pub fn runs(&self, level: u8, blocks: Range<u64>) -> Runs<'_> {
        Runs { object: self, cursor: Cursor::default(), level, next: blocks.start, end: blocks.end }
    }

    /// Reads `len` bytes at `offset` into one buffer; holes and what lies beyond the end are zeroes.
    ///
    /// # Errors
    /// A block cannot be read.
    pub fn read(&self, offset: u64, len: usize) -> BoxFuture<'_, Result<Vec<u8>, ReadError>> {
        Box::pin(async move {
            let mut out = vec![0; len];
            let end = offset.saturating_add(len as u64).min(self.bytes());
            if offset >= end {
                return Ok(out);
            }
            let blocks = offset / self.block_bytes..end.div_ceil(self.block_bytes);
            let mut runs = self.runs(0, blocks);
            let mut batch = Vec::new();
            loop {
                let run = runs.next().await?;
                let done = run.is_none();
                if let Some(Run::Block { blkid, pointer }) = run {
                    batch.push((pointer, self.bookmark(0, blkid)));
                }
                if batch.len() >= BATCH || (done && !batch.is_empty()) {
                    for (content, (_, at)) in self.source.read_many(&batch).await.into_iter().zip(&batch) {
                        let content = self.whole(content?, at.blkid)?;
                        let start = at.blkid * self.block_bytes;
                        // The part of the block that was asked for, and its place in the buffer.
                        let skip = offset.saturating_sub(start) as usize;
                        let place = start.saturating_sub(offset) as usize;
                        let count = (content.len() - skip).min(len - place);
                        out[place..place + count].copy_from_slice(&content[skip..skip + count]);
                    }
                    batch.clear();
                }
                if done {
                    return Ok(out);
                }
            }
        })
    }

    /// Reads the whole object, unless it is larger than `limit` bytes.
    ///
    /// # Errors
    /// It is larger, or a block cannot be read.
    pub fn read_all(&self, limit: u64) -> BoxFuture<'_, Result<Vec<u8>, ReadError>> {
        Box::pin(async move {
            let too_large = ReadError::TooLarge { objset: self.objset, object: self.number, limit };
            match usize::try_from(self.bytes()) {
                Ok(bytes) if bytes as u64 <= limit => self.read(0, bytes).await,
                _ => Err(too_large),
            }
        })
    }
}

/// Iterates over the blocks and holes of a range: see [`Object::runs`].
#[derive(Debug)]
pub struct Runs<'a> {
    object: &'a Object,
    cursor: Cursor,
    level: u8,
    next: u64,
    end: u64,
}

impl Runs<'_> {
    /// The next run; `None` at the end of the range. Neighbouring holes may come as several runs.
    ///
    /// # Errors
    /// An indirect block cannot be read. Calling again skips what it covers.
    pub async fn next(&mut self) -> Result<Option<Run>, ReadError> {
        if self.next >= self.end {
            return Ok(None);
        }
        let first = self.next;
        match self.object.seek(&mut self.cursor, self.level, first).await {
            Ok(Step::Block(pointer)) => {
                self.next = first + 1;
                Ok(Some(Run::Block { blkid: first, pointer }))
            }
            Ok(Step::Hole { until, pointer }) => {
                self.next = until.clamp(first + 1, self.end);
                Ok(Some(Run::Hole { first, count: self.next - first, pointer }))
            }
            Ok(Step::Need { .. }) => Ok(None),
            Err(error) => {
                // What an unreadable indirect block covers: all blocks up to its right neighbour.
                let up = match &error {
                    ReadError::Block(error) => error.bookmark().map_or(0, |at| at.level),
                    ReadError::Malformed { at, .. } | ReadError::Inconsistent { at, .. } => at.level,
                    ReadError::NoObject { .. } | ReadError::TooLarge { .. } => 0,
                };
                let up = u8::try_from(up).unwrap_or(0).saturating_sub(self.level);
                let fanout = self.object.fanout;
                let right = fanout.ancestor(first, up).saturating_add(1);
                self.next = fanout.first_descendant(right, up).clamp(first + 1, self.end);
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use ondisk::{
        blkptr::{Dva, Stored},
        dnode::{BlkPtrs, Bonus, ObjectType},
    };

    use super::*;
    use crate::{
        dmu::SourceFuture,
        error::{BlockError, BlockErrorKind},
    };

    /// Pointers in an indirect block.
    const FANOUT: u64 = 128;
    /// Indirect blocks of the lowest level, and the only one of them that is in memory.
    const LOWEST: u64 = 4096;
    const WARM: u64 = 2000;

    /// Nothing can be read.
    #[derive(Debug)]
    struct Nothing;

    impl BlockSource for Nothing {
        fn cached(&self, bp: &BlkPtr) -> Option<Bytes> {
            at_hand(bp)
        }

        fn read<'a>(&'a self, bp: &'a BlkPtr, at: Bookmark) -> SourceFuture<'a, Result<Bytes, BlockError>> {
            let error = BlockError::new(BlockErrorKind::Device, bp, Some(at), Vec::new());
            Box::pin(ready(Err(error)))
        }

        fn read_many<'a>(
            &'a self,
            blocks: &'a [(BlkPtr, Bookmark)],
        ) -> SourceFuture<'a, Vec<Result<Bytes, BlockError>>> {
            let error = |bp: &BlkPtr, at| BlockError::new(BlockErrorKind::Device, bp, Some(at), Vec::new());
            Box::pin(ready(blocks.iter().map(|(bp, at)| Err(error(bp, *at))).collect()))
        }
    }

    /// A pointer to block `id` of a level, which lies where its number says.
    fn pointer(level: u8, id: u64) -> BlkPtr {
        let bytes = if level == 0 { 4096 } else { 128 * FANOUT };
        BlkPtr::stored(&Stored {
            dvas: [
                Dva { vdev: 0, offset: id * 512, asize: bytes, gang: false },
                Dva::default(),
                Dva::default(),
            ],
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

    fn at_hand(bp: &BlkPtr) -> Option<Bytes> {
        let (level, id) = (bp.level(), bp.dvas().next()?.offset / 512);
        if level == 0 || (level == 1 && id != WARM) {
            return None;
        }
        let below = (0..FANOUT).map(|slot| pointer(level - 1, id * FANOUT + slot));
        Some(below.flat_map(|bp| bp.encode(Order::Little)).collect::<Vec<u8>>().into())
    }

    /// Each indirect block that was not in memory took a walk from the top, and a pause of who looked: hours for a large volume
    /// of which nothing was warm.
    #[test]
    fn what_is_not_in_memory_is_passed_over_by_the_thousand() {
        let dnode = Dnode {
            object_type: ObjectType::ZVOL,
            indirect_shift: 14,
            levels: 4,
            bonus_type: ObjectType::NONE,
            checksum_id: 0,
            compression_id: 0,
            flags: 0,
            data_sectors: 8,
            extra_slots: 0,
            max_block_id: LOWEST * FANOUT - 1,
            used: 0,
            reserved: ([0; 3], [0; 32]),
            blkptrs: BlkPtrs::new(&[pointer(3, 0)]).unwrap(),
            bonus: Bonus::new(&[]),
            spill: None,
        };
        let found = DnodeAt { number: 1, dnode, order: Order::Little };
        let object = Object::new(Arc::new(Nothing), 7, found).unwrap();
        let (mut cursor, mut from, mut calls, mut known) = (Cursor::default(), 0, 0, Vec::new());
        while from <= object.max_block_id() {
            from = object
                .known(&mut cursor, from, |bp| at_hand(bp).map(Pointers::from), |blkid, _| known.push(blkid))
                .unwrap();
            calls += 1;
        }
        assert_eq!(known, (WARM * FANOUT..(WARM + 1) * FANOUT).collect::<Vec<_>>());
        assert!(calls <= 5, "{calls}");
    }
}
