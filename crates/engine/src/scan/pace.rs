//! When a scan may use a leaf: as fast as it goes while nobody else wants it, and out of the way as soon as somebody
//! does.
//!
//! ```text
//!   nobody wanted anything for a while:   several transfers queued, in the order of the device
//!   clients are about:                    short ones, one at a time, in their pauses …
//!   … and where they make no pauses:      one after each SHARE times what one takes
//! ```
//!
//! So a client waits for one transfer of the scan at most, now and then, and the promise is: a scan gets at least one
//! part in [`SHARE`] + 1 of each leaf's time, whatever clients do (about 3 MB/s of a disk that turns).

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::Mutex;
use pool::{
    io::{Turn, Turns},
    vdev::{Pulse, Vdev},
};
use tokio::{sync::Notify, time::Instant};

use crate::BoxFuture;

/// Transfers of a scan under way on a leaf that nobody else wants: enough that it never waits for the next.
const DEPTH: usize = 4;
/// After that long without a client the leaf is the scan's.
const QUIET: Duration = Duration::from_millis(1000);
/// A pause of clients in which one transfer is begun. Whoever reads one block after the other comes back sooner, also
/// where other leaves answered in between.
const PAUSE: Duration = Duration::from_millis(20);
/// Longest transfer while clients are about: moving the arm takes far longer than reading that much.
const SHORT: u64 = 256 << 10;
/// How often is looked for a pause.
const LOOK: Duration = Duration::from_millis(2);
/// Clients without pauses have so many times as much of a leaf's time as the scan.
pub(crate) const SHARE: u32 = 8;

/// The leaves of a pool.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    lanes: Mutex<BTreeMap<u64, Arc<Lane>>>,
}

/// One leaf.
#[derive(Debug, Default)]
struct Lane {
    /// First come, first served: the order of the device.
    door: tokio::sync::Mutex<()>,
    under_way: AtomicUsize,
    over: Notify,
    /// When the last transfer began, and what transfers take, in nanoseconds.
    last: Mutex<Option<Instant>>,
    takes: AtomicU64,
}

/// A transfer of a scan.
struct Transfer {
    lane: Arc<Lane>,
    since: Instant,
    alone: bool,
}

impl Turns for Pace {
    fn turn<'a>(&'a self, leaf: &'a Vdev, _bytes: usize) -> BoxFuture<'a, Turn> {
        let lane = Arc::clone(self.lanes.lock().entry(leaf.guid).or_default());
        let pulse = leaf.leaf.as_ref().map(|leaf| Arc::clone(&leaf.pulse));
        Box::pin(async move {
            let door = lane.door.lock().await;
            if let Some(pulse) = pulse {
                lane.wait(&pulse).await;
            }
            let alone = lane.under_way.fetch_add(1, Relaxed) == 0;
            let since = Instant::now();
            *lane.last.lock() = Some(since);
            drop(door);
            Box::new(Transfer { lane, since, alone }) as Turn
        })
    }

    fn longest(&self, leaf: &Vdev) -> u64 {
        let idle = leaf.leaf.as_ref().and_then(|leaf| leaf.pulse.idle());
        if idle.is_none_or(|idle| idle >= QUIET) { u64::MAX } else { SHORT }
    }
}

impl Lane {
    /// Until the next transfer may begin.
    async fn wait(&self, pulse: &Pulse) {
        loop {
            let mut over = std::pin::pin!(self.over.notified());
            over.as_mut().enable();
            let under_way = self.under_way.load(Relaxed);
            let idle = pulse.idle();
            if idle.is_none_or(|idle| idle >= QUIET) {
                if under_way < DEPTH {
                    return;
                }
                over.await;
                continue;
            }
            if under_way == 0 {
                let takes = Duration::from_nanos(self.takes.load(Relaxed)).max(Duration::from_millis(1));
                let due = self.last.lock().is_none_or(|last| last.elapsed() >= takes * (SHARE + 1));
                if due || idle.is_some_and(|idle| idle >= PAUSE) {
                    return;
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        // One that shared the leaf with others says nothing about how long one takes.
        if self.alone {
            let took = disk::nanos(self.since.elapsed());
            let before = self.lane.takes.load(Relaxed);
            let next = if before == 0 { took } else { before - before / 8 + took / 8 };
            self.lane.takes.store(next, Relaxed);
        }
        self.lane.under_way.fetch_sub(1, Relaxed);
        self.lane.over.notify_waiters();
    }
}
