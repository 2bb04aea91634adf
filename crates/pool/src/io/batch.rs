//! Many blocks at once: neighbours on a device travel in one transfer.
//!
//! A sequential reader asks for dozens of blocks that were written one after the other. On plain
//! devices and mirrors they are merged into transfers of up to 1 MiB, and each block becomes a slice of
//! the transfer's memory, without a copy. Whatever does not verify, and whatever lies elsewhere (RAIDZ,
//! gangs, removed devices), goes the careful way, block by block.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use disk::IoBuf;
use ondisk::blkptr::BlkPtr;
use parking_lot::Mutex;

use super::{
    Bookmark, Reader,
    device::Range,
    flights::{Answer, Lead, Turn as Flight},
    join::join_all,
    trail::Trail,
};
use crate::{
    BoxFuture,
    cache::{self, Access, BlockCache, Memory},
    error::BlockError,
    vdev::{Kind, Vdev},
};

/// Longest transfer. Beyond 1 MiB no device gains, and memory is held longer.
const TRANSFER_BYTES: u64 = 1 << 20;
/// A gap this small between two blocks is read along: cheaper than another request.
const GAP_BYTES: u64 = 16 << 10;
/// Transfers under way at once for one caller.
const TRANSFERS: usize = 16;

type Blocks<'a> = &'a [(BlkPtr, Bookmark)];
type Outcome = (usize, Result<Bytes, BlockError>);
/// Reads of this call that others may wait for, by index in the request.
type Leads<'a> = BTreeMap<usize, Mutex<Option<Lead<'a>>>>;

/// Tells those who wait for a block what became of it.
fn landed(leads: &Leads<'_>, index: usize, answer: Answer, access: Option<Access>) -> Outcome {
    if let Some(lead) = leads.get(&index).and_then(|lead| lead.lock().take()) {
        lead.landed(&answer, access.unwrap_or(Access::Demand));
    }
    (index, answer)
}

/// Blocks of one transfer.
struct Transfer<'a> {
    leaf: &'a Vdev,
    start: u64,
    end: u64,
    /// Index in the request, and offset on the device.
    blocks: Vec<(usize, u64)>,
}

/// Tells the cache, when this is dropped, that nothing more of a transfer comes in. Whoever waits for blocks may give up
/// between two of them, and what those that came in hold of the rest is to be counted all the same.
struct Closing<'a> {
    cache: &'a BlockCache,
    transfer: &'a Arc<cache::Transfer>,
    bytes: usize,
}

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.cache.close(self.transfer, self.bytes);
    }
}

impl Reader {
    /// With an `access`, through the cache.
    pub(super) async fn read_batch(
        &self,
        blocks: Blocks<'_>,
        access: Option<Access>,
    ) -> Vec<Result<Bytes, BlockError>> {
        let mut results: Vec<Option<Result<Bytes, BlockError>>> = blocks.iter().map(|_| None).collect();
        let (mut below, mut single, mut mergeable) = (Vec::new(), Vec::new(), Vec::new());
        let (mut leads, mut followings) = (Leads::new(), Vec::new());
        for (index, (bp, at)) in blocks.iter().enumerate() {
            if let Some(found) = access.and_then(|access| self.find(bp, access)) {
                results[index] = Some(Ok(found));
                continue;
            }
            match access.and_then(|_| self.key(bp)).map(|key| self.flights.join(key)) {
                Some(Flight::Lead(lead)) => drop(leads.insert(index, Mutex::new(Some(lead)))),
                Some(Flight::Follow(following)) => {
                    followings.push((index, following));
                    continue;
                }
                None => {}
            }
            if let Some(answer) = access.and_then(|_| self.ask_below(bp, *at)) {
                below.push((index, answer));
            } else if let Some((leaf, offset)) = self.simple_place(bp) {
                mergeable.push((leaf, offset, index));
            } else {
                single.push(index);
            }
        }
        let leads = &leads;
        let mut reads: Vec<BoxFuture<'_, Vec<Outcome>>> = Vec::new();
        for transfer in transfers(mergeable, blocks) {
            reads.push(Box::pin(self.read_transfer(transfer, blocks, access, leads)));
        }
        for (index, answer) in below {
            let (bp, at) = &blocks[index];
            let read = self.read_now(bp, *at, access.unwrap_or(Access::Demand), Some(answer));
            reads.push(Box::pin(async move { vec![landed(leads, index, read.await, access)] }));
        }
        for index in single {
            reads.push(Box::pin(async move {
                vec![landed(leads, index, self.read_one(&blocks[index], access).await, access)]
            }));
        }
        // Behind those that others may wait for: nobody waits for who waits.
        for (index, following) in followings {
            let (bp, at) = &blocks[index];
            let access = access.unwrap_or(Access::Demand);
            reads.push(Box::pin(async move {
                let answer = match self.read_following(bp, *at, access, following).await {
                    Some(answer) => answer,
                    None => self.read_missing(bp, *at, access).await,
                };
                vec![(index, answer)]
            }));
        }
        for (index, result) in join_all(reads, TRANSFERS).await.into_iter().flatten() {
            results[index] = Some(result);
        }
        results
            .into_iter()
            .map(|result| result.expect("every index is in exactly one of the groups"))
            .collect()
    }

    /// Reads one block that the second tier has not.
    async fn read_one(
        &self,
        (bp, at): &(BlkPtr, Bookmark),
        access: Option<Access>,
    ) -> Result<Bytes, BlockError> {
        match access {
            Some(access) => self.read_now(bp, *at, access, None).await,
            None => self.read_block_uncached(bp, *at).await,
        }
    }

    /// The leaf that has all of a block in one run, if it is as simple as that.
    fn simple_place(&self, bp: &BlkPtr) -> Option<(&Vdev, u64)> {
        if bp.is_gang() || bp.is_embedded() || bp.is_hole() || bp.psize() > TRANSFER_BYTES {
            return None;
        }
        let dva = bp.dvas().next()?;
        let top = self.tree.top(dva.vdev.into())?;
        let end = dva.offset.checked_add(bp.psize())?;
        let usable =
            |vdev: &Vdev| vdev.leaf.is_some() && vdev.is_readable() && !vdev.missed(bp.physical_birth());
        if end > top.top.as_ref()?.asize {
            return None;
        }
        let leaf = match top.kind {
            Kind::Disk | Kind::File => Some(top).filter(|top| usable(top)),
            Kind::Mirror => {
                let turn = (dva.offset >> 21) as usize;
                let sides = top.children.len();
                (0..sides)
                    .map(|i| &top.children[(turn + i) % sides])
                    .find(|side| usable(side) && !side.sits_out())
            }
            _ => None,
        }?;
        Some((leaf, dva.offset))
    }

    async fn read_transfer(
        &self,
        transfer: Transfer<'_>,
        blocks: Blocks<'_>,
        access: Option<Access>,
        leads: &Leads<'_>,
    ) -> Vec<Outcome> {
        let Transfer { leaf, start, end, blocks: inside } = transfer;
        let mut outcomes = Vec::with_capacity(inside.len());
        if let [(index, _)] = inside[..] {
            outcomes.push(landed(leads, index, self.read_one(&blocks[index], access).await, access));
            return outcomes;
        }
        // What fails here is read again below, where failures are counted.
        let trail = Trail::quiet().ahead(access == Some(Access::Prefetch));
        let range = Range { offset: start, len: (end - start) as usize, birth: 0, scratch: false };
        let data = self.read_leaf(leaf, range, &trail).await;
        let shared = cache::Transfer::new();
        let _closing = data.as_ref().filter(|_| access.is_some()).map(|data| Closing {
            cache: &self.cache,
            transfer: &shared,
            bytes: IoBuf::capacity_for(data.len()),
        });
        for (index, offset) in inside {
            let (bp, at) = &blocks[index];
            let from = (offset - start) as usize;
            let raw = data.as_ref().map(|data| data.slice(from..from + bp.psize() as usize));
            let result = match raw {
                Some(raw) if self.is_right(bp, &raw) => self.finish(bp, *at, raw, access, &shared),
                _ => self.read_one(&blocks[index], access).await,
            };
            outcomes.push(landed(leads, index, result, access));
        }
        outcomes
    }

    pub(super) fn is_right(&self, bp: &BlkPtr, raw: &[u8]) -> bool {
        self.algorithm(bp, &Trail::default()).is_some_and(|algorithm| self.verifies(bp, algorithm, raw))
    }

    fn finish(
        &self,
        bp: &BlkPtr,
        at: Bookmark,
        raw: Bytes,
        access: Option<Access>,
        shared: &Arc<cache::Transfer>,
    ) -> Result<Bytes, BlockError> {
        self.readable(bp, at)?;
        let content = self.content(bp, at, &raw)?;
        if let Some(access) = access {
            self.count_miss(bp, at, access);
            self.keep_read(bp, at, access, raw, &content, Memory::Transfer(shared));
        }
        Ok(content)
    }
}

/// Groups blocks that lie close together on one leaf.
fn transfers<'a>(mut places: Vec<(&'a Vdev, u64, usize)>, blocks: Blocks<'_>) -> Vec<Transfer<'a>> {
    places.sort_unstable_by_key(|(leaf, offset, index)| (leaf.guid, *offset, *index));
    let mut found: Vec<Transfer<'a>> = Vec::new();
    for (leaf, offset, index) in places {
        let end = offset + blocks[index].0.psize();
        match found.last_mut() {
            Some(open)
                if open.leaf.guid == leaf.guid
                    && offset <= open.end + GAP_BYTES
                    && end.max(open.end) - open.start <= TRANSFER_BYTES =>
            {
                open.end = open.end.max(end);
                open.blocks.push((index, offset));
            }
            _ => found.push(Transfer { leaf, start: offset, end, blocks: vec![(index, offset)] }),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Class;
    use crate::cache::{Fresh, Key, Origin};

    /// What the blocks that had come in held of the rest was counted by nobody.
    #[test]
    fn a_transfer_that_is_given_up_between_two_blocks_is_counted() {
        let cache = BlockCache::new(32 << 20);
        let origin = Arc::new(Origin::new(1, 1));
        let transfer = cache::Transfer::new();
        let data = Bytes::from(vec![7; 128 << 10]);
        let closing = Closing { cache: &cache, transfer: &transfer, bytes: data.len() };
        cache.insert(Fresh {
            key: Key::nth(1, &origin),
            origin: &origin,
            class: Class::Data,
            lsize: 4096,
            compress: 2,
            is_compressed: false,
            level: 0,
            objset: 1,
            access: Access::Demand,
            is_eligible: true,
            stored: Some(data.slice(..4096)),
            content: None,
            memory: Memory::Transfer(&transfer),
        });
        let before = cache.stats().size;
        drop(closing);
        assert_eq!(cache.stats().size - before, (128 << 10) - 4096, "the rest of it is held");
    }
}
