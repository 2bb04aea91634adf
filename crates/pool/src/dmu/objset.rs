//! An object set: finding dnodes by number and one after the other.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use ondisk::{
    Order,
    blkptr::BlkPtr,
    dnode::{Dnode, ObjectType, SLOT_BYTES},
    objset::{ObjsetPhys, ObjsetType},
};

use super::{Block, BlockSource, DnodeAt, Object, ReadError, Run, Runs};
use crate::{BoxFuture, io::Bookmark};

/// Level that stands for the object set block itself.
const LEVEL_OBJSET: i64 = -1;

/// Blocks of dnodes read in one go.
const BATCH: u64 = 64;
/// Bytes of them, as all are in memory together: those of a forged set are of any size.
const BATCH_BYTES: u64 = 8 << 20;

/// An open object set.
#[derive(Debug)]
pub struct ObjectSet {
    source: Arc<dyn BlockSource>,
    id: u64,
    pointer: BlkPtr,
    phys: ObjsetPhys,
    meta: Object,
}

impl ObjectSet {
    /// Opens the object set whose block is `pointer`; `id` is its dataset's object number in the MOS, 0 for the
    /// MOS itself.
    ///
    /// # Errors
    /// The block cannot be read, is a hole, or is no object set.
    pub fn open(
        source: Arc<dyn BlockSource>,
        id: u64,
        pointer: BlkPtr,
    ) -> BoxFuture<'static, Result<Arc<Self>, ReadError>> {
        Box::pin(async move {
            let at = Bookmark { objset: id, object: 0, level: LEVEL_OBJSET, blkid: 0 };
            if pointer.is_hole() {
                return Err(ReadError::Inconsistent { at, what: "the dataset has no object set" });
            }
            if pointer.object_type() != ObjectType::OBJSET || pointer.level() != 0 {
                return Err(ReadError::Inconsistent { at, what: "not a block pointer to an object set" });
            }
            let content = source.read(&pointer, at).await?;
            let phys = ObjsetPhys::decode(&content, pointer.order()).map_err(ReadError::malformed(at))?;
            let meta = DnodeAt { number: 0, dnode: phys.meta_dnode.clone(), order: pointer.order() };
            let meta = Object::new(Arc::clone(&source), id, meta)?;
            Ok(Arc::new(Self { source, id, pointer, phys, meta }))
        })
    }

    /// The same with its blocks from somewhere else.
    ///
    /// # Errors
    /// None that did not occur when it was opened.
    pub fn over(&self, source: Arc<dyn BlockSource>) -> Result<Arc<Self>, ReadError> {
        let meta = DnodeAt { number: 0, dnode: self.phys.meta_dnode.clone(), order: self.pointer.order() };
        let meta = Object::new(Arc::clone(&source), self.id, meta)?;
        Ok(Arc::new(Self { source, id: self.id, pointer: self.pointer, phys: self.phys.clone(), meta }))
    }

    /// The dataset's object number in the MOS; 0 for the MOS itself.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The pointer it was opened from.
    #[must_use]
    pub fn pointer(&self) -> &BlkPtr {
        &self.pointer
    }

    /// The object set block, decoded: type, flags, intent log header.
    #[must_use]
    pub fn phys(&self) -> &ObjsetPhys {
        &self.phys
    }

    /// What kind of dataset it holds.
    #[must_use]
    pub fn kind(&self) -> ObjsetType {
        self.phys.kind
    }

    /// Where its blocks come from.
    #[must_use]
    pub fn source(&self) -> &Arc<dyn BlockSource> {
        &self.source
    }

    /// Object 0, whose data are the dnodes.
    #[must_use]
    pub fn meta(&self) -> &Object {
        &self.meta
    }

    /// The dnode of object `number`.
    ///
    /// # Errors
    /// [`ReadError::NoObject`] if it is not allocated; its block cannot be read or holds nonsense.
    pub fn dnode(&self, number: u64) -> BoxFuture<'_, Result<DnodeAt, ReadError>> {
        Box::pin(async move {
            if number == 0 {
                return Err(self.missing(number));
            }
            let block = self.meta.read_block(number / self.dnodes_per_block()).await?;
            self.dnode_in(&block, number)
        })
    }

    /// The dnodes of these objects, in their order: for each what [`dnode`](Self::dnode) gives. A block that has several of
    /// them is read once, and many blocks at a time.
    pub fn dnodes<'a>(&'a self, numbers: &'a [u64]) -> BoxFuture<'a, Vec<Result<DnodeAt, ReadError>>> {
        Box::pin(async move {
            let mut found: Vec<Result<DnodeAt, ReadError>> =
                numbers.iter().map(|number| Err(self.missing(*number))).collect();
            // By block: where in `numbers` those are that it may have.
            let per_block = self.dnodes_per_block();
            let mut by_block = BTreeMap::<u64, Vec<usize>>::new();
            for (place, number) in numbers.iter().enumerate().filter(|(_, number)| **number != 0) {
                by_block.entry(number / per_block).or_default().push(place);
            }
            let by_block: Vec<(u64, Vec<usize>)> = by_block.into_iter().collect();
            let batch = (BATCH_BYTES / self.meta.block_bytes()).clamp(1, BATCH) as usize;
            for some in by_block.chunks(batch) {
                let blocks: Vec<u64> = some.iter().map(|(blkid, _)| *blkid).collect();
                for ((_, places), block) in some.iter().zip(self.meta.read_blocks(&blocks).await) {
                    for &place in places {
                        found[place] = match &block {
                            Ok(block) => self.dnode_in(block, numbers[place]),
                            Err(error) => Err(error.clone()),
                        };
                    }
                }
            }
            found
        })
    }

    fn dnodes_per_block(&self) -> u64 {
        self.meta.block_bytes() / SLOT_BYTES as u64
    }

    fn missing(&self, number: u64) -> ReadError {
        ReadError::NoObject { objset: self.id, object: number }
    }

    /// The dnode of object `number` in the block that may have it.
    fn dnode_in(&self, block: &Block, number: u64) -> Result<DnodeAt, ReadError> {
        let Some(content) = &block.content else { return Err(self.missing(number)) };
        let per_block = self.dnodes_per_block();
        let wanted = (number % per_block) as usize;
        let at = self.meta.bookmark(0, number / per_block);
        let mut slots = Slots { content, order: block.order, slot: 0 };
        // From the block's start, because a slot may be the inside of a large dnode, where anything can stand.
        loop {
            match slots.next() {
                Some((slot, _)) if slot > wanted => return Err(self.missing(number)),
                Some((slot, dnode)) if slot == wanted => {
                    let dnode = dnode.map_err(ReadError::malformed(at))?;
                    return Ok(DnodeAt { number, dnode, order: block.order });
                }
                Some(_) => {}
                None => return Err(self.missing(number)),
            }
        }
    }

    /// Object `number`.
    ///
    /// # Errors
    /// As [`dnode`](Self::dnode), or its geometry is inconsistent.
    pub fn object(&self, number: u64) -> BoxFuture<'_, Result<Object, ReadError>> {
        Box::pin(async move { Object::new(Arc::clone(&self.source), self.id, self.dnode(number).await?) })
    }

    /// All allocated objects, in order of their numbers. Blocks of dnodes that are holes are skipped as a whole.
    #[must_use]
    pub fn objects(&self) -> Objects<'_> {
        let blocks = self.meta.max_block_id().saturating_add(1);
        Objects { set: self, runs: self.meta.runs(0, 0..blocks), block: None, seen: BTreeSet::new() }
    }
}

/// Iterates over the allocated objects of a set: see [`ObjectSet::objects`].
#[derive(Debug)]
pub struct Objects<'a> {
    set: &'a ObjectSet,
    runs: Runs<'a>,
    block: Option<(u64, Bytes, Order, usize)>,
    /// Where the blocks of dnodes were: a forged tree may lead to one of them any number of times.
    seen: BTreeSet<(u32, u64)>,
}

impl Objects<'_> {
    /// The next object; `None` at the end.
    ///
    /// # Errors
    /// A block of dnodes cannot be read, or holds a malformed one. Calling again continues behind it.
    pub async fn next(&mut self) -> Result<Option<DnodeAt>, ReadError> {
        loop {
            if let Some((blkid, content, order, slot)) = &mut self.block {
                let mut slots = Slots { content, order: *order, slot: *slot };
                let found = slots.next();
                *slot = slots.slot;
                let first = *blkid * (self.set.meta.block_bytes() / SLOT_BYTES as u64);
                let at = self.set.meta.bookmark(0, *blkid);
                match found {
                    Some((slot, dnode)) => {
                        let dnode = dnode.map_err(ReadError::malformed(at))?;
                        return Ok(Some(DnodeAt { number: first + slot as u64, dnode, order: slots.order }));
                    }
                    None => self.block = None,
                }
            }
            match self.runs.next().await? {
                Some(Run::Block { blkid, pointer }) => {
                    let at = self.set.meta.bookmark(0, blkid);
                    tokio::task::coop::consume_budget().await;
                    let place = pointer.dvas().next().map(|dva| (dva.vdev, dva.offset));
                    if place.is_some_and(|place| !self.seen.insert(place)) {
                        return Err(ReadError::Inconsistent {
                            at,
                            what: "two blocks of dnodes have one place",
                        });
                    }
                    let content = self.set.source.read(&pointer, at).await?;
                    self.block = Some((blkid, content, pointer.order(), 0));
                }
                Some(Run::Hole { .. }) => {}
                None => return Ok(None),
            }
        }
    }
}

/// The dnodes of one block, stepping over the insides of large ones.
struct Slots<'a> {
    content: &'a [u8],
    order: Order,
    slot: usize,
}

impl Iterator for Slots<'_> {
    type Item = (usize, Result<Dnode, ondisk::Error>);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let slot = self.slot;
            let rest = self.content.get(slot * SLOT_BYTES..).filter(|rest| !rest.is_empty())?;
            self.slot += Dnode::slots_at(rest);
            if let Some(dnode) = Dnode::decode(rest, self.order).transpose() {
                return Some((slot, dnode));
            }
        }
    }
}
