//! Who asked for stability, why, and what it took: the answer to "is my log device used, would one help?".
//!
//! Counters that any task adds to without a lock, per volume; [`Report`] is what they say at one moment.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::Mutex;

use crate::write::direct::TopDevice;

/// Why something had to be durable before it was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The command said so (FUA).
    Fua,
    /// A flush: SYNCHRONIZE CACHE, NBD flush.
    Flush,
    /// The client switched the write cache off.
    CacheOff,
    /// `sync=always`.
    Always,
}

/// Why a commit waited for its transaction group instead of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// The log was not begun yet: the first commit after an import, or after a log was given up.
    NotBegun,
    /// No place for a log block.
    NoSpace,
    /// A device failed.
    Device,
    /// More was dirty than is worth writing twice.
    Burst,
}

const WHYS: usize = 4;
const FALLBACKS: usize = 4;

/// Times, in buckets that grow by a quarter of a power of two: each is at most 25 % wide.
#[derive(Debug)]
pub struct Times {
    buckets: [AtomicU64; BUCKETS],
    count: AtomicU64,
    nanos: AtomicU64,
}

const BUCKETS: usize = 160;

impl Default for Times {
    fn default() -> Self {
        Self {
            buckets: std::array::from_fn(|_| AtomicU64::new(0)),
            count: AtomicU64::new(0),
            nanos: AtomicU64::new(0),
        }
    }
}

impl Times {
    /// Counts one.
    pub fn add(&self, time: Duration) {
        let nanos = disk::nanos(time);
        self.buckets[bucket(nanos)].fetch_add(1, Relaxed);
        self.count.fetch_add(1, Relaxed);
        self.nanos.fetch_add(nanos, Relaxed);
    }

    /// What was counted so far.
    #[must_use]
    pub fn get(&self) -> Spread {
        let buckets: Vec<u64> = self.buckets.iter().map(|bucket| bucket.load(Relaxed)).collect();
        Spread { buckets, count: self.count.load(Relaxed), nanos: self.nanos.load(Relaxed) }
    }
}

/// Two bits behind the leading one choose the quarter.
fn bucket(nanos: u64) -> usize {
    let power = nanos.max(4).ilog2();
    let quarter = (nanos.max(4) >> (power - 2)) & 3;
    (((power - 2) * 4) as usize + quarter as usize).min(BUCKETS - 1)
}

/// The longest time a bucket counts, nanoseconds.
fn upper_end(number: usize) -> u64 {
    let (power, quarter) = ((number / 4) as u32 + 2, (number % 4) as u64);
    (1 << power) + ((quarter + 1) << (power - 2)) - 1
}

/// Times as they were counted.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Spread {
    buckets: Vec<u64>,
    /// How many.
    pub count: u64,
    /// All of them together, nanoseconds.
    pub nanos: u64,
}

impl fmt::Debug for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (half, most) = (self.quantile(500), self.quantile(990));
        write!(f, "{} times, half within {half} ns, 99 % within {most} ns", self.count)
    }
}

impl Spread {
    /// Nanoseconds that `permille` of the times did not exceed (upper end of the bucket); 0 if there were none.
    #[must_use]
    pub fn quantile(&self, permille: u64) -> u64 {
        let rank = (self.count * permille).div_ceil(1000).max(1);
        let mut seen = 0;
        for (number, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return upper_end(number);
            }
        }
        0
    }

    /// The buckets that counted something: the longest time of each in nanoseconds, and how many.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let counted = self.buckets.iter().enumerate().filter(|(_, count)| **count > 0);
        counted.map(|(number, count)| (upper_end(number), *count))
    }

    /// The mean, nanoseconds.
    #[must_use]
    pub fn mean(&self) -> u64 {
        self.nanos.checked_div(self.count).unwrap_or(0)
    }

    /// What was counted since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let old = |number: usize| before.buckets.get(number).copied().unwrap_or(0);
        let buckets =
            self.buckets.iter().enumerate().map(|(number, count)| count.saturating_sub(old(number)));
        Self {
            buckets: buckets.collect(),
            count: self.count.saturating_sub(before.count),
            nanos: self.nanos.saturating_sub(before.nanos),
        }
    }
}

/// The counters of one volume's log.
#[derive(Debug, Default)]
pub struct Stats {
    /// Requests that changed something, stable or not.
    pub(crate) writes: AtomicU64,
    asked: [AtomicU64; WHYS],
    pub(crate) ignored: AtomicU64,
    pub(crate) nothing: AtomicU64,
    fallbacks: [AtomicU64; FALLBACKS],
    pub(crate) commits: AtomicU64,
    pub(crate) rounds: AtomicU64,
    pub(crate) records: AtomicU64,
    pub(crate) payload: AtomicU64,
    pub(crate) indirect: AtomicU64,
    pub(crate) blocks: AtomicU64,
    pub(crate) written: AtomicU64,
    /// By number and guid: a number is given to another device when its own is removed.
    by_device: Mutex<BTreeMap<(u32, u64), DeviceShare>>,
    /// From the request to its acknowledgement.
    pub(crate) total: Times,
    /// Until its records were on their way.
    pub(crate) queue: Times,
    /// From there until they were on stable media.
    pub(crate) device: Times,
}

/// What one top-level device got of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceShare {
    /// Which that was; it may be removed since.
    pub device: Arc<TopDevice>,
    /// Log blocks.
    pub blocks: u64,
    /// Bytes of them.
    pub bytes: u64,
}

impl Stats {
    /// Somebody asked for stability.
    pub(crate) fn asked(&self, why: Why) {
        self.asked[why as usize].fetch_add(1, Relaxed);
    }

    /// A commit waited for its transaction group.
    pub(crate) fn fell_back(&self, why: Fallback) {
        self.fallbacks[why as usize].fetch_add(1, Relaxed);
    }

    /// A log block went to this device.
    pub(crate) fn block(&self, vdev: u32, device: Option<Arc<TopDevice>>, bytes: u64) {
        self.blocks.fetch_add(1, Relaxed);
        self.written.fetch_add(bytes, Relaxed);
        let device = device.unwrap_or_default();
        let mut devices = self.by_device.lock();
        let share = devices
            .entry((vdev, device.guid))
            .or_insert_with(|| DeviceShare { device, ..DeviceShare::default() });
        share.blocks += 1;
        share.bytes += bytes;
    }

    /// What they say now.
    #[must_use]
    pub fn report(&self) -> Report {
        let load = |counter: &AtomicU64| counter.load(Relaxed);
        let asked = |why: Why| load(&self.asked[why as usize]);
        let fallback = |why: Fallback| load(&self.fallbacks[why as usize]);
        Report {
            writes: load(&self.writes),
            fua: asked(Why::Fua),
            flush: asked(Why::Flush),
            cache_off: asked(Why::CacheOff),
            always: asked(Why::Always),
            ignored: load(&self.ignored),
            nothing: load(&self.nothing),
            not_begun: fallback(Fallback::NotBegun),
            no_space: fallback(Fallback::NoSpace),
            device_failed: fallback(Fallback::Device),
            bursts: fallback(Fallback::Burst),
            commits: load(&self.commits),
            rounds: load(&self.rounds),
            records: load(&self.records),
            payload: load(&self.payload),
            indirect: load(&self.indirect),
            blocks: load(&self.blocks),
            written: load(&self.written),
            devices: self.by_device.lock().iter().map(|((vdev, _), share)| (*vdev, share.clone())).collect(),
            total: self.total.get(),
            queue: self.queue.get(),
            device: self.device.get(),
        }
    }
}

/// What happened to one volume's demands for stability since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Requests that changed something, stable or not.
    pub writes: u64,
    /// Asked for by command.
    pub fua: u64,
    /// Flushes.
    pub flush: u64,
    /// Writes of clients without write cache.
    pub cache_off: u64,
    /// Writes under `sync=always` (whatever the command said).
    pub always: u64,
    /// Of all that was asked for: acknowledged without being durable, because of `sync=disabled`.
    pub ignored: u64,
    /// Of all that was asked for: there was nothing left to make durable.
    pub nothing: u64,
    /// Waited for the transaction group: the log was not begun.
    pub not_begun: u64,
    /// Waited for the transaction group: no place for a log block.
    pub no_space: u64,
    /// Waited for the transaction group: a device failed.
    pub device_failed: u64,
    /// Waited for the transaction group: too much was dirty to be written twice.
    pub bursts: u64,
    /// Made durable by the log.
    pub commits: u64,
    /// Times the log wrote something; `commits / rounds` is how many share a write.
    pub rounds: u64,
    /// Records written.
    pub records: u64,
    /// Bytes that clients had written, in them.
    pub payload: u64,
    /// Of these, bytes that were written to their final place, and only pointed to.
    pub indirect: u64,
    /// Log blocks written.
    pub blocks: u64,
    /// Bytes of them.
    pub written: u64,
    /// Which top-level devices took them.
    pub devices: Vec<(u32, DeviceShare)>,
    /// Request to acknowledgement, of what the log made durable.
    pub total: Spread,
    /// Of that: until the records were on their way.
    pub queue: Spread,
    /// Of that: devices, flush included.
    pub device: Spread,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_at_most_a_quarter_too_high() {
        let times = Times::default();
        (1..=10_000_u64).for_each(|micros| times.add(Duration::from_micros(micros)));
        let spread = times.get();
        for (permille, micros) in [(500, 5000_u64), (990, 9900), (1000, 10_000), (1, 10)] {
            let found = spread.quantile(permille);
            assert!(
                found >= micros * 1000 && found <= micros * 1250,
                "{permille}: {found} ns for {micros} µs"
            );
        }
        assert_eq!((spread.mean(), Times::default().get().quantile(500)), (5_000_500, 0));
        let found: Vec<(u64, u64)> = spread.buckets().collect();
        assert_eq!(found.iter().map(|(_, count)| count).sum::<u64>(), 10_000);
        assert!(found.windows(2).all(|pair| pair[0].0 < pair[1].0), "{found:?}");
        assert_eq!(found[0], (1023, 1), "one microsecond is in the last quarter below 2^10");
        let more = times.get().since(&spread);
        assert_eq!((more.count, more.quantile(990)), (0, 0));
    }
}
