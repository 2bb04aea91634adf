//! Single blocks straight to the devices, from any task, while transaction groups go their way: log blocks, and data
//! that log records point to.
//!
//! Each call sends the pieces of one block and waits for them; nothing is merged or put off, and nobody waits for
//! anybody else. A leaf that refuses a piece gets no more of them until it was looked at, or has another device. If the
//! block can be read back from the others, the leaf lacks that block's transaction group and no more; if not, the call
//! fails, nothing will refer to the block, and so nothing is missing.
//!
//! What was written without being durable may be gone if its leaf was away before the flush: [`Direct::epoch`] tells.

use std::{io, sync::Arc};

use arc_swap::ArcSwap;
use bytes::Bytes;
use disk::IoBuf;
use futures_util::future::join_all;
use ondisk::{blkptr::Dva, label::DATA_OFFSET};
use pool::{
    PoolIo,
    vdev::{Class, Vdev, Work},
};
use smallvec::SmallVec;
use tokio::time::Instant;

use super::{
    devices::lacking,
    layout::{Sink, Top},
    target::{self, Target},
};
use crate::EngineError;

/// Writes blocks outside of transaction groups.
#[derive(Debug)]
pub struct Direct {
    tree: ArcSwap<Targets>,
    known: Arc<target::Targets>,
}

/// A top-level device by what stays its own: its number may be another's later.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopDevice {
    /// Guid.
    pub guid: u64,
    /// What it is called.
    pub name: String,
    /// It is a log device.
    pub log: bool,
}

/// A device tree to write to.
#[derive(Debug, Default)]
struct Targets {
    tops: Vec<Top>,
    /// Of the same numbers.
    devices: Vec<Arc<TopDevice>>,
    leaves: Vec<Leaf>,
    /// Trees there were before.
    number: u64,
}

#[derive(Debug)]
struct Leaf(Target);

/// The pieces of one block: leaf, offset behind the labels, bytes.
#[derive(Default)]
struct Pieces(SmallVec<[(usize, u64, Bytes); 2]>);

impl Sink for Pieces {
    fn piece(&mut self, leaf: usize, offset: u64, data: &Bytes) {
        self.0.push((leaf, offset, data.clone()));
    }
    /// There is nothing to join.
    fn padding(&mut self, _: usize, _: u64, _: usize) {}
}

/// Leaves that did not do what they should.
type Lacking = SmallVec<[usize; 4]>;

impl Direct {
    /// Over the devices of `io`. `known` is what all writers know of the leaves.
    #[must_use]
    pub(crate) fn new(io: &PoolIo, known: Arc<target::Targets>) -> Arc<Self> {
        Arc::new(Self { tree: ArcSwap::from_pointee(Targets::new(io, &known, 0)), known })
    }

    /// Over other devices from now on. Writes under way end where they began.
    pub fn devices_changed(&self, io: &PoolIo) {
        let number = self.tree.load().number + 1;
        self.tree.store(Arc::new(Targets::new(io, &self.known, number)));
    }

    /// Another one than before: what was written meanwhile and not flushed may be gone.
    #[must_use]
    pub fn epoch(&self) -> (u64, u64) {
        let targets = self.tree.load();
        (targets.number, targets.leaves.iter().map(|leaf| leaf.0.epoch()).sum())
    }

    /// Whether a block at top-level device `id` could be written now.
    #[must_use]
    pub fn takes_writes(&self, id: u32) -> bool {
        let targets = self.tree.load();
        targets.top(id).is_some_and(|top| top.node.is_whole(&|leaf| targets.leaves[leaf].0.is_usable()))
    }

    /// The top-level device that has number `id` now.
    #[must_use]
    pub fn device(&self, id: u32) -> Option<Arc<TopDevice>> {
        let targets = self.tree.load();
        usize::try_from(id).ok().and_then(|id| targets.devices.get(id)).cloned()
    }

    /// Writes `data` at `dva` on all sides and columns. With `durable` it is on stable media when this returns; without,
    /// after a [`flush`](Self::flush). `data` may be shorter than the place where
    /// [`may_shorten`](Self::may_shorten) says so. `txg` is noted as missed on leaves that fail.
    ///
    /// # Errors
    /// Too few leaves took it for it to be read back.
    pub async fn write(&self, dva: Dva, data: Bytes, txg: u64, durable: bool) -> Result<(), EngineError> {
        let targets = self.tree.load_full();
        let Some(top) = targets.top(dva.vdev) else {
            return Err(EngineError::Encode { what: "address", detail: format!("no device {}", dva.vdev) });
        };
        let data = if data.as_ptr().addr().is_multiple_of(IoBuf::ALIGN) {
            data
        } else {
            IoBuf::from_slice(&data).freeze()
        };
        let mut pieces = Pieces::default();
        top.put(dva.offset, &data, txg, &mut pieces)?;
        let mut lacking = Lacking::new();
        if pieces.0.len() <= 1 {
            for (leaf, offset, data) in pieces.0 {
                if !targets.leaves[leaf].write(offset, data, durable).await {
                    lacking.push(leaf);
                }
            }
        } else {
            let leaves: SmallVec<[usize; 4]> = pieces.0.iter().map(|(leaf, ..)| *leaf).collect();
            let writes = pieces
                .0
                .into_iter()
                .map(|(leaf, offset, data)| targets.leaves[leaf].write(offset, data, durable));
            let answers = disk::plugged(join_all(writes)).await;
            lacking.extend(leaves.into_iter().zip(answers).filter(|(_, done)| !done).map(|(leaf, _)| leaf));
        }
        targets.judge(top, &lacking, txg)
    }

    /// How many blocks leaves lack so far. To be asked before blocks are written that a [`flush`](Self::flush) is for.
    #[must_use]
    pub fn lacks(&self) -> u64 {
        self.known.lacks()
    }

    /// Makes durable what was written to these top-level devices since [`lacks`](Self::lacks) was `lacks`.
    ///
    /// # Errors
    /// Too few leaves of one of them say so. One that lacks a block is none of those, although it takes writes again: that
    /// block may be on nothing but the others.
    pub async fn flush(&self, tops: &[u32], txg: u64, lacks: u64) -> Result<(), EngineError> {
        let targets = self.tree.load_full();
        let mut leaves: SmallVec<[usize; 4]> = SmallVec::new();
        for top in tops.iter().filter_map(|id| targets.top(*id)) {
            top.node.leaves(&mut |leaf| leaves.push(leaf));
        }
        leaves.sort_unstable();
        leaves.dedup();
        let has = |leaf: usize, done: bool| done && !targets.leaves[leaf].0.lacks_since(lacks);
        let lacking: Lacking = if let [leaf] = leaves[..] {
            let done = targets.leaves[leaf].flush().await;
            leaves.into_iter().filter(|_| !has(leaf, done)).collect()
        } else {
            let answers =
                disk::plugged(join_all(leaves.iter().map(|leaf| targets.leaves[*leaf].flush()))).await;
            let answers = leaves.into_iter().zip(answers);
            answers.filter(|(leaf, done)| !has(*leaf, *done)).map(|(leaf, _)| leaf).collect()
        };
        for id in tops {
            let Some(top) = targets.top(*id) else {
                let detail = format!("no device {id}");
                return Err(EngineError::Encode { what: "address", detail });
            };
            targets.judge(top, &lacking, txg)?;
        }
        Ok(())
    }

    /// Whether only the used part of a log block at `dva` may be written: not where a block's bytes are dealt out over
    /// columns by its size (RAIDZ).
    #[must_use]
    pub fn may_shorten(&self, dva: &Dva) -> bool {
        self.tree.load().top(dva.vdev).is_some_and(|top| top.node.is_plain())
    }
}

impl Targets {
    fn new(io: &PoolIo, known: &target::Targets, number: u64) -> Self {
        let mut leaves = Vec::new();
        let mut adopt = |vdev: &Vdev| {
            leaves.push(Leaf(known.of(vdev)?));
            Some(leaves.len() - 1)
        };
        let tree = io.tree();
        let tops = tree.tops.iter().map(|vdev| Top::new(vdev, &mut adopt)).collect();
        let device = |vdev: &Vdev| {
            let log = vdev.class() == Class::Log;
            Arc::new(TopDevice { guid: vdev.guid, name: vdev.display_name(), log })
        };
        Self { tops, devices: tree.tops.iter().map(device).collect(), leaves, number }
    }

    fn top(&self, id: u32) -> Option<&Top> {
        usize::try_from(id).ok().and_then(|id| self.tops.get(id))
    }

    /// Whether a block on `top` can be read back without these leaves. If so they lack `txg`.
    fn judge(&self, top: &Top, lacking_leaves: &[usize], txg: u64) -> Result<(), EngineError> {
        let has = |leaf: usize| !lacking_leaves.contains(&leaf);
        if !top.node.is_whole(&has) {
            let describe = |leaf: usize| (!has(leaf)).then(|| self.leaves[leaf].0.describe());
            return Err(EngineError::Device(lacking(std::iter::once(top), &describe)));
        }
        if !lacking_leaves.is_empty() {
            top.node.leaves(&mut |leaf| {
                if !has(leaf) {
                    self.leaves[leaf].0.note_missed(txg);
                }
            });
        }
        Ok(())
    }
}

impl Leaf {
    /// Whether it has the bytes now.
    async fn write(&self, offset: u64, data: Bytes, durable: bool) -> bool {
        let Some((disk, _)) = self.0.usable() else { return false };
        self.0.urgency.note();
        let start = DATA_OFFSET + offset;
        let write =
            |data: Bytes| if durable { disk.write_through(start, data) } else { disk.write(start, data) };
        let mut job = self.0.pulse.tally.enqueue(Work::SyncWrite);
        job.issue();
        let (begun, len) = (Instant::now(), data.len() as u64);
        let mut result = write(data.clone()).await;
        if let Err(first) = &result
            && first.kind() != io::ErrorKind::InvalidInput
        {
            // Once more: a bus reset looks like a failed write, and giving up here costs redundancy.
            let again = write(data).await;
            if durable && again.is_ok() {
                self.0.stumbled(first);
            }
            result = again;
        }
        self.0.took(begun.elapsed());
        if result.is_ok() {
            job.end(len, false);
        }
        self.settle(result, "write")
    }

    /// Whether what it was given is durable.
    async fn flush(&self) -> bool {
        let Some((disk, _)) = self.0.usable() else { return false };
        let result = disk.flush().await;
        self.settle(result, "flush")
    }

    fn settle(&self, result: io::Result<()>, what: &str) -> bool {
        match result {
            Ok(()) => true,
            Err(error) => {
                self.0.refused(what, &error);
                false
            }
        }
    }
}
