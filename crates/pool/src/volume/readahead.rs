//! Noticing that a client reads in order, and deciding how far to read ahead of it.
//!
//! A few streams are followed at once, because one volume carries several files being copied, or several
//! queues of one client. A request belongs to the stream whose end it touches; requests of one queue may
//! overtake each other, so "touches" leaves room on both sides. A stream that goes on gets a window that doubles up
//! to [`WINDOW_BYTES_MAX`]; the next stretch is fetched when half of the window has been eaten, so that
//! fetches are large and one is always under way.
//!
//! A request that arrives while its blocks are being fetched waits for that fetch ([`Readahead::wait`])
//! instead of reading them a second time.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::sync::watch;

/// First window: two of these must be read in order before anything is fetched.
const WINDOW_BYTES_MIN: u64 = 256 << 10;
/// Largest window. 8 MiB hide a millisecond of latency up to 8 GB/s.
const WINDOW_BYTES_MAX: u64 = 8 << 20;
/// How far from the end of a stream a request may start and still belong to it.
const SLACK_BYTES: u64 = 2 << 20;
/// Streams followed at once.
const STREAMS: usize = 8;
/// Bytes of one fetch: what the reader below moves in one transfer.
const FETCH_BYTES: u64 = 1 << 20;
/// Fetches under way at once; beyond, the disks are busy enough.
const FETCHES_MAX: usize = 32;

/// Streams of one volume. Blocks are the volume's.
#[derive(Debug)]
pub(super) struct Readahead {
    block_bytes: u64,
    streams: Mutex<Streams>,
    fetches: Arc<Fetches>,
}

#[derive(Debug, Default)]
struct Streams {
    list: [Stream; STREAMS],
    clock: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// One past the highest block read.
    next: u64,
    /// One past the highest block fetched ahead.
    fetched: u64,
    /// Blocks to be ahead; 0 until the stream has proved to be one.
    window: u64,
    /// When it was last used; 0 for a free place.
    used: u64,
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
        Self { block_bytes: block_bytes.max(1), streams: Mutex::default(), fetches: Arc::default() }
    }

    /// Notes that `blocks` are about to be fetched, in pieces of one transfer each.
    pub(super) fn start(&self, blocks: Range<u64>) -> Vec<Fetch> {
        let piece = (FETCH_BYTES / self.block_bytes).max(1);
        let mut list = self.fetches.list.lock();
        let mut started = Vec::new();
        let mut first = blocks.start;
        while first < blocks.end {
            let blocks = first..first.saturating_add(piece).min(blocks.end);
            first = blocks.end;
            let (done, waiting) = watch::channel(());
            list.push((blocks.clone(), waiting));
            started.push(Fetch { blocks, fetches: Arc::clone(&self.fetches), _done: done });
        }
        self.fetches.count.store(list.len(), Ordering::Release);
        started
    }

    /// Returns when no fetch of any of `blocks` that is under way now is under way any more.
    pub(super) async fn wait(&self, blocks: &Range<u64>) {
        if self.fetches.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let overlaps = |of: &Range<u64>| of.start < blocks.end && blocks.start < of.end;
        let waiting: Vec<_> = {
            let list = self.fetches.list.lock();
            list.iter().filter(|(of, _)| overlaps(of)).map(|(_, waiting)| waiting.clone()).collect()
        };
        for mut fetch in waiting {
            // Nothing is ever sent: the error is the sender's end, which is what is waited for.
            while fetch.changed().await.is_ok() {}
        }
    }

    /// Notes that `blocks` were asked for; answers with what to fetch now, if anything.
    pub(super) fn observe(&self, blocks: Range<u64>) -> Option<Range<u64>> {
        // Under contention another request of the stream is being noted at this moment: good enough.
        let mut streams = self.streams.try_lock()?;
        streams.clock += 1;
        let used = streams.clock;
        let slack = (SLACK_BYTES / self.block_bytes).max(1);
        let found = streams.list.iter_mut().find(|stream| {
            stream.used != 0
                && blocks.start <= stream.next.saturating_add(slack)
                && blocks.end.saturating_add(slack) >= stream.next
        });
        let Some(stream) = found else {
            let oldest = streams.list.iter_mut().min_by_key(|stream| stream.used)?;
            *oldest = Stream { next: blocks.end, fetched: blocks.end, window: 0, used };
            return None;
        };
        stream.used = used;
        if blocks.end <= stream.next {
            return None;
        }
        stream.next = blocks.end;
        let window_min = (WINDOW_BYTES_MIN / self.block_bytes).max(1);
        let window_max = (WINDOW_BYTES_MAX / self.block_bytes).max(1);
        stream.fetched = stream.fetched.max(stream.next);
        let ahead = stream.fetched - stream.next;
        if stream.window == 0 {
            stream.window = window_min;
            return None;
        }
        if ahead > stream.window / 2 || self.fetches.count.load(Ordering::Relaxed) >= FETCHES_MAX {
            return None;
        }
        stream.window = (stream.window * 2).min(window_max);
        let fetch = stream.fetched..stream.next.saturating_add(stream.window);
        stream.fetched = fetch.end;
        (!fetch.is_empty()).then_some(fetch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 16 << 10;

    #[test]
    fn a_sequence_is_followed_without_gaps_or_overlaps() {
        let readahead = Readahead::new(BLOCK);
        let (mut fetched, mut seen_max) = (None::<u64>, 0);
        for first in (0..4096).step_by(8) {
            let Some(next) = readahead.observe(first..first + 8) else { continue };
            assert!(next.start >= first + 8, "nothing that was just read");
            if let Some(fetched) = fetched {
                assert_eq!(next.start, fetched, "each block once");
            }
            fetched = Some(next.end);
            seen_max = seen_max.max(next.end - first);
        }
        assert!(fetched.is_some_and(|end| end > 4096));
        assert!(seen_max * BLOCK <= WINDOW_BYTES_MAX + 8 * BLOCK, "bounded");
    }

    #[test]
    fn requests_that_overtake_each_other_are_one_stream() {
        let readahead = Readahead::new(BLOCK);
        let order = [1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14];
        let fetches = order.iter().filter_map(|i| readahead.observe(i * 8..i * 8 + 8)).count();
        assert!(fetches > 0);
    }

    #[test]
    fn random_reads_fetch_nothing() {
        let readahead = Readahead::new(BLOCK);
        let mut place = 1u64;
        for _ in 0..10_000 {
            place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let first = (place >> 20) & !0xff;
            assert_eq!(readahead.observe(first..first + 1), None);
        }
    }

    #[tokio::test]
    async fn a_reader_waits_for_the_fetch_of_its_blocks_and_for_no_other() {
        let readahead = Readahead::new(BLOCK);
        let mut fetches = readahead.start(0..128);
        assert_eq!(fetches.iter().map(|fetch| fetch.blocks.clone()).collect::<Vec<_>>(), [0..64, 64..128]);
        readahead.wait(&(128..200)).await;
        let second = fetches.pop();
        let waiter = readahead.wait(&(60..70));
        tokio::pin!(waiter);
        assert!(tokio::time::timeout(std::time::Duration::from_millis(5), &mut waiter).await.is_err());
        drop((fetches, second));
        waiter.await;
        assert_eq!(readahead.fetches.count.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn many_streams_interleave() {
        let readahead = Readahead::new(BLOCK);
        let mut fetched = [false; 6];
        for step in 0..64 {
            for (stream, fetched) in fetched.iter_mut().enumerate() {
                let first = stream as u64 * 10_000_000 + step * 8;
                *fetched |= readahead.observe(first..first + 8).is_some();
            }
        }
        assert_eq!(fetched, [true; 6]);
    }
}
