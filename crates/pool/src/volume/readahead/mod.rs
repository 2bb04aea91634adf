//! What is being read ahead, and for whom: fetches under way, and the streams ([`streams`]) that asked for them.
//!
//! A request that arrives while its blocks are being fetched waits for that fetch ([`Readahead::wait`])
//! instead of reading them a second time, unless that takes too long.

mod streams;

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::watch, time::timeout};

use crate::cache::Followed;
use streams::{Ahead, Streams};

/// Bytes of one fetch: what the reader below moves in one transfer.
const FETCH_BYTES: u64 = 1 << 20;
/// Fetches under way at once; beyond, the disks are busy enough.
const FETCHES_MAX: usize = 32;
/// How long a fetch is waited for, and then, as any other read of the same block is, once more as long. A device that does
/// not answer it may answer who reads by himself, or others may.
const PATIENCE: Duration = Duration::from_secs(1);
/// Fetches in a row that found everything in memory, after which one block stands for a fetch until somebody misses one:
/// to look for each takes as long as to read it from memory.
const WARM: u32 = 8;

/// Streams of one volume. Blocks are the volume's.
#[derive(Debug)]
pub(super) struct Readahead {
    block_bytes: u64,
    streams: Mutex<Streams>,
    fetches: Arc<Fetches>,
    /// Indirect blocks that were fetched last.
    pointers: Mutex<Range<u64>>,
    /// Fetches in a row that had nothing to do.
    idle: AtomicU32,
}

/// What is being fetched at the moment.
#[derive(Debug, Default)]
struct Fetches {
    /// Length of the list, so that nobody takes the lock to find it empty.
    count: AtomicUsize,
    list: Mutex<Vec<(Range<u64>, watch::Receiver<()>)>>,
}

/// One fetch. Dropping it wakes those who wait for its blocks, however the fetch ended.
#[derive(Debug)]
pub(super) struct Fetch {
    /// Blocks to bring into the cache.
    pub(super) blocks: Range<u64>,
    fetches: Arc<Fetches>,
    _done: watch::Sender<()>,
}

impl Drop for Fetch {
    fn drop(&mut self) {
        let mut list = self.fetches.list.lock();
        if let Some(index) = list.iter().position(|(blocks, _)| *blocks == self.blocks) {
            list.swap_remove(index);
        }
        self.fetches.count.store(list.len(), Ordering::Release);
    }
}

impl Readahead {
    /// For a volume of blocks of this size.
    pub(super) fn new(block_bytes: u64) -> Self {
        let block_bytes = block_bytes.max(1);
        Self {
            block_bytes,
            streams: Mutex::new(Streams::new(block_bytes)),
            fetches: Arc::default(),
            pointers: Mutex::default(),
            idle: AtomicU32::new(0),
        }
    }

    /// Notes that these blocks, of a volume that ends at `end`, are about to be fetched: in pieces of one transfer each.
    pub(super) fn start(&self, ahead: &Ahead, end: u64) -> Vec<Fetch> {
        let piece = (FETCH_BYTES / self.block_bytes).max(1);
        let mut list = self.fetches.list.lock();
        let mut started = Vec::new();
        for blocks in ahead {
            let mut first = blocks.start;
            while first < blocks.end.min(end) {
                let blocks = first..first.saturating_add(piece).min(blocks.end).min(end);
                first = blocks.end;
                let (done, waiting) = watch::channel(());
                list.push((blocks.clone(), waiting));
                started.push(Fetch { blocks, fetches: Arc::clone(&self.fetches), _done: done });
            }
        }
        self.fetches.count.store(list.len(), Ordering::Release);
        started
    }

    /// Whether to fetch a row of indirect blocks now, of which a stream wants the `nearest` next: not if that was in the
    /// row before.
    pub(super) fn wants_pointers(&self, row: &Range<u64>, nearest: u64) -> bool {
        let mut last = self.pointers.lock();
        if row.is_empty() || last.contains(&nearest) {
            return false;
        }
        *last = row.clone();
        true
    }

    /// Whether what streams come to has been in memory for a while, so that one block tells enough of the next.
    pub(super) fn is_warm(&self) -> bool {
        self.idle.load(Ordering::Relaxed) >= WARM
    }

    /// A fetch is over; it had nothing to do if all its blocks were in memory.
    pub(super) fn ended(&self, was_idle: bool) {
        let idle = if was_idle { self.idle.load(Ordering::Relaxed).saturating_add(1) } else { 0 };
        self.idle.store(idle, Ordering::Relaxed);
    }

    /// Somebody had to wait for a block.
    pub(super) fn missed(&self) {
        if self.idle.load(Ordering::Relaxed) != 0 {
            self.idle.store(0, Ordering::Relaxed);
        }
    }

    /// Returns when no fetch of any of `blocks` that is under way now is under way any more, or when that takes too long.
    pub(super) async fn wait(&self, blocks: &Range<u64>) {
        if self.fetches.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let overlaps = |of: &Range<u64>| of.start < blocks.end && blocks.start < of.end;
        let waiting: Vec<_> = {
            let list = self.fetches.list.lock();
            list.iter().filter(|(of, _)| overlaps(of)).map(|(_, waiting)| waiting.clone()).collect()
        };
        if waiting.is_empty() {
            return;
        }
        let over = async {
            for mut fetch in waiting {
                // Nothing is ever sent: the error is the sender's end, which is what is waited for.
                while fetch.changed().await.is_ok() {}
            }
        };
        // What is not there by then is read once more.
        drop(timeout(PATIENCE, over).await);
    }

    /// Notes that `blocks` were asked for; answers with what to fetch now, if anything, and with what they are to the
    /// streams, if that was looked at. What is fetched and not asked for yet may take `memory` bytes.
    pub(super) fn observe(
        &self,
        blocks: Range<u64>,
        memory: impl FnOnce() -> u64,
    ) -> (Ahead, Option<Followed>) {
        // Under contention another request of the stream is being noted at this moment: good enough.
        let Some(mut streams) = self.streams.try_lock() else { return (Ahead::new(), None) };
        let is_room = self.fetches.count.load(Ordering::Relaxed) < FETCHES_MAX;
        let next = streams.observe(blocks, is_room, || memory() / self.block_bytes);
        (next, Some(streams.followed()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_memory_is_looked_for_until_it_is_sure_and_again_after_a_miss() {
        let readahead = Readahead::new(16 << 10);
        let idle = |fetches: u32| (0..fetches).for_each(|_| readahead.ended(true));
        idle(WARM - 1);
        assert!(!readahead.is_warm());
        readahead.ended(false);
        idle(WARM);
        assert!(readahead.is_warm());
        readahead.missed();
        assert!(!readahead.is_warm());
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_waits_for_the_fetch_of_its_blocks_and_for_no_other() {
        let readahead = Readahead::new(16 << 10);
        let mut fetches = readahead.start(&Ahead::from_iter([0..100, 100..200]), 164);
        let blocks: Vec<_> = fetches.iter().map(|fetch| fetch.blocks.clone()).collect();
        assert_eq!(blocks, [0..64, 64..100, 100..164]);
        let second = fetches.split_off(1);
        let begun = tokio::time::Instant::now();
        readahead.wait(&(164..200)).await;
        assert_eq!(begun.elapsed(), Duration::ZERO, "nobody fetches them");
        let waiter = readahead.wait(&(60..70));
        tokio::pin!(waiter);
        assert!(timeout(Duration::from_millis(5), &mut waiter).await.is_err());
        drop((fetches, second));
        let ended = tokio::time::Instant::now();
        waiter.await;
        assert_eq!(ended.elapsed(), Duration::ZERO, "the end of a fetch wakes who waits for it");
        assert_eq!(readahead.fetches.count.load(Ordering::Relaxed), 0);
    }

    /// A read waited for a fetch on a device that did not answer, for as long as that took, though another had its blocks.
    #[tokio::test(start_paused = true)]
    async fn a_fetch_that_does_not_end_is_not_waited_for() {
        let readahead = Readahead::new(16 << 10);
        let _fetches = readahead.start(&Ahead::from_iter(std::iter::once(0..100)), 164);
        let begun = tokio::time::Instant::now();
        readahead.wait(&(0..100)).await;
        assert_eq!(begun.elapsed(), PATIENCE);
    }
}
