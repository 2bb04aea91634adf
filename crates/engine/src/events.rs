//! What happens to a pool and its devices, as values in the order in which it happened: `zpool events`, alerts and
//! tests read them; nothing in the engine waits for a reader.
//!
//! The last [`KEPT`] are kept in memory. Names as OpenZFS gives them (`ereport.fs.zfs.checksum`) are the server's.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use parking_lot::Mutex;
use pool::{
    Bookmark,
    vdev::{Aux, State},
};
use tokio::sync::watch;

/// Events kept for whoever comes later.
pub const KEPT: usize = 4096;

/// A device, as a person finds it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceName {
    /// Its guid.
    pub guid: u64,
    /// Its path, if it is a leaf.
    pub path: Option<String>,
    /// As `zpool status` shows it.
    pub name: String,
    /// The device it is a part of (`raidz2-0`), if it is a part.
    pub parent: Option<String>,
}

/// What went wrong with one I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoError {
    /// A read was refused.
    Read,
    /// A write or flush was refused.
    Write,
    /// Other bytes came back than were written.
    Checksum,
}

/// A scan of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanKind {
    /// Reads everything and repairs.
    Scrub,
    /// Brings devices up to date.
    Resilver,
}

/// What a scan did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanStep {
    /// It began.
    Started,
    /// It goes on where it was when the pool was closed.
    Continued,
    /// An administrator halted it.
    Paused,
    /// And let it go on.
    Resumed,
    /// An administrator stopped it, or another scan took its place.
    Cancelled,
    /// It is done.
    Finished,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The pool is open.
    PoolOpened,
    /// The pool is about to be closed or exported.
    PoolClosing,
    /// The state of the whole changed.
    PoolState {
        /// Before.
        from: State,
        /// Now.
        to: State,
    },
    /// A device is in another state.
    DeviceState {
        /// Which.
        device: DeviceName,
        /// Before.
        from: State,
        /// Now.
        to: State,
        /// Why.
        aux: Aux,
        /// In words: what led to it (`3 writes were refused: Input/output error`). May be empty.
        why: String,
    },
    /// One I/O went wrong. Many in a row are told of as one, with their number.
    IoFailed {
        /// Which device; none if the whole pool could not give it.
        device: Option<DeviceName>,
        /// How.
        error: IoError,
        /// Which block, where it is known.
        at: Option<Bookmark>,
        /// How often, since the last event of this kind.
        count: u64,
    },
    /// A block is lost: no copy, no parity gives it back.
    DataLost {
        /// Which block.
        at: Bookmark,
        /// Dataset, object and offset in words.
        what: String,
    },
    /// Wrong bytes on a device were replaced by right ones.
    Repaired {
        /// Which device.
        device: DeviceName,
        /// Bytes.
        bytes: u64,
    },
    /// A scan moved on.
    Scan {
        /// Which.
        kind: ScanKind,
        /// What it did.
        step: ScanStep,
        /// Bytes repaired or copied so far.
        processed: u64,
        /// Errors so far.
        errors: u64,
    },
    /// A device came into the pool's tree (`add`, `attach`, `replace`).
    DeviceAttached {
        /// Which.
        device: DeviceName,
        /// The device it stands beside or takes the place of, if any.
        beside: Option<DeviceName>,
    },
    /// A device left it.
    DeviceDetached {
        /// Which.
        device: DeviceName,
    },
    /// A hot spare took the place of a device.
    SpareActivated {
        /// The spare.
        spare: DeviceName,
        /// What failed.
        device: DeviceName,
    },
    /// It is available again.
    SpareReturned {
        /// The spare.
        spare: DeviceName,
    },
    /// A device is far slower than its peers, and is not read from while they can answer; or that is over.
    Slow {
        /// Which.
        device: DeviceName,
        /// Its typical latency.
        latency: Duration,
        /// That of its peers.
        peers: Duration,
        /// Whether it sits out now.
        sits_out: bool,
    },
    /// Nothing can be written any more until the pool is cleared.
    Suspended {
        /// What stands in the way.
        why: String,
    },
    /// It goes on.
    Resumed,
    /// A command was carried out that nobody waited for any more: who gave it had been told that the pool is suspended.
    CommandDone,
    /// The intent log could not use a log device; writes go to the pool's own devices.
    LogDeviceFailed {
        /// Which.
        device: DeviceName,
    },
    /// An administrator forgot the errors counted so far (`zpool clear`).
    Cleared {
        /// Of one device; none: of all.
        device: Option<DeviceName>,
    },
    /// It is not known what a device missed while it was away: it is brought up to date as a whole.
    HistoryLost {
        /// Which.
        device: DeviceName,
    },
    /// The pool is fuller than before: 80, 90 or 95 percent.
    SpaceLow {
        /// Percent of the pool that is allocated.
        percent: u8,
    },
}

/// An event and when it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Counts from 1 in each opened pool.
    pub number: u64,
    /// Seconds and nanoseconds since 1970.
    pub time: (u64, u32),
    /// What.
    pub event: Event,
}

/// The events of one opened pool.
#[derive(Debug)]
pub struct Events {
    kept: Mutex<VecDeque<Arc<Record>>>,
    newest: watch::Sender<u64>,
    now: fn() -> Duration,
}

impl Events {
    /// None yet. `now` is the wall clock: time since 1970.
    #[must_use]
    pub fn new(now: fn() -> Duration) -> Arc<Self> {
        Arc::new(Self { kept: Mutex::default(), newest: watch::Sender::new(0), now })
    }

    /// Something happened.
    pub fn tell(&self, event: Event) {
        let now = (self.now)();
        let mut kept = self.kept.lock();
        let number = *self.newest.borrow() + 1;
        kept.push_back(Arc::new(Record { number, time: (now.as_secs(), now.subsec_nanos()), event }));
        if kept.len() > KEPT {
            kept.pop_front();
        }
        // Within the lock, so that numbers are told in order.
        self.newest.send_replace(number);
    }

    /// Those kept with a number greater than `after`, oldest first.
    #[must_use]
    pub fn since(&self, after: u64) -> Vec<Arc<Record>> {
        self.kept.lock().iter().filter(|record| record.number > after).cloned().collect()
    }

    /// The number of the newest; changes when there is a newer one.
    #[must_use]
    pub fn newest(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    /// Forgets those kept (`zpool events -c`); how many there were.
    pub fn clear(&self) -> usize {
        std::mem::take(&mut *self.kept.lock()).len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn readers_see_events_in_order_and_never_hold_anybody_up() {
        let events = Events::new(|| Duration::new(7, 9));
        let mut newest = events.newest();
        for percent in 0..=u8::MAX {
            for _ in 0..20 {
                events.tell(Event::SpaceLow { percent });
            }
        }
        newest.changed().await.unwrap();
        assert_eq!(*newest.borrow_and_update(), 256 * 20);
        let kept = events.since(0);
        assert_eq!((kept.len(), kept[0].time), (KEPT, (7, 9)));
        assert!(kept.windows(2).all(|pair| pair[0].number + 1 == pair[1].number));
        assert_eq!(events.since(256 * 20 - 1).len(), 1);
        assert_eq!(events.clear(), KEPT);
        assert!(events.since(0).is_empty());
    }
}
