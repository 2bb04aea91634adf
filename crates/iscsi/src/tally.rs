//! What one session did with one disk: how much, and how long it took.
//!
//! A session is one task, and it alone counts: plain loads and stores instead of locked additions, and no clock for what
//! was answered from memory in the same breath. Others read whenever they like; numbers that belong together may be one
//! command apart.

use std::{
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// Number of bounds in [`LATENCY_BUCKETS`]; the last bucket has no upper end.
const BUCKETS: usize = 49;

/// How many buckets latencies are counted in; see [`bucket_bound`].
pub const LATENCY_BUCKETS: usize = BUCKETS;

/// Upper end of a bucket of latencies, in microseconds, exclusive: 1, 2, 3, 4, 6, 8, 12, … Bucket 2 stays empty.
#[must_use]
pub fn bucket_bound(bucket: usize) -> u64 {
    match bucket.checked_sub(1) {
        None => 1,
        Some(at) => {
            let base = 1_u64.wrapping_shl(u32::try_from(at >> 1).unwrap_or(62));
            match (at & 1, base) {
                (_, 1) => 2,
                (0, base) => base.saturating_add(base >> 1),
                (_, base) => base.saturating_mul(2),
            }
        }
    }
}

/// The bucket of a latency.
fn bucket(latency: Duration) -> usize {
    let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
    let Some(log) = micros.checked_ilog2() else { return 0 };
    let half = if log > 0 { micros.wrapping_shr(log.saturating_sub(1)) & 1 } else { 0 };
    let at = u64::from(log).saturating_mul(2).saturating_add(half).saturating_add(1);
    usize::try_from(at).unwrap_or(BUCKETS).min(BUCKETS.saturating_sub(1))
}

/// What a command does with the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Other,
}

fn kind(opcode: u8) -> Kind {
    match opcode {
        0x08 | 0x28 | 0xa8 | 0x88 => Kind::Read,
        0x0a | 0x2a | 0xaa | 0x8a | 0x2e | 0xae | 0x8e => Kind::Write,
        _ => Kind::Other,
    }
}

/// Counters of one session at one LUN. See the module.
#[derive(Debug, Default)]
pub struct Tally {
    reads: AtomicU64,
    writes: AtomicU64,
    others: AtomicU64,
    from_memory: AtomicU64,
    read_bytes: AtomicU64,
    write_bytes: AtomicU64,
    under_way: AtomicU64,
    busy_ns: AtomicU64,
    /// Only of disks that are read or written: a session may see hundreds and use one.
    latency: OnceLock<Box<[AtomicU64; BUCKETS]>>,
}

/// What a [`Tally`] held when it was asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tallied {
    /// READ commands answered.
    pub reads: u64,
    /// WRITE commands answered.
    pub writes: u64,
    /// All others.
    pub others: u64,
    /// Reads that were answered from memory at once.
    pub from_memory: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Commands under way now.
    pub under_way: u64,
    /// Sum of the latencies of reads and writes that had to wait, nanoseconds: divided by a time, the average number
    /// under way.
    pub busy_ns: u64,
    /// The same reads and writes by latency, if there were any: those that were not answered from memory at once. See
    /// [`bucket_bound`].
    pub latency: Vec<u64>,
}

/// One writer: no locked instruction.
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(more), Relaxed);
}

impl Tally {
    /// A command begins to wait: for its data, or for the volume.
    pub(crate) fn began(&self) {
        add(&self.under_way, 1);
    }

    /// It is over, answered or not.
    pub(crate) fn ended(&self) {
        self.under_way.store(self.under_way.load(Relaxed).saturating_sub(1), Relaxed);
    }

    /// A command was answered without waiting.
    pub(crate) fn at_once(&self, opcode: u8, bytes: u64) {
        match kind(opcode) {
            Kind::Read => {
                add(&self.from_memory, 1);
                add(&self.reads, 1);
                // No latency: it was not measured, because a clock costs as much as the answer.
                add(&self.read_bytes, bytes);
            }
            Kind::Write => add(&self.writes, 1), // refused
            Kind::Other => add(&self.others, 1),
        }
    }

    /// A command was answered after `took`, counted from its request.
    pub(crate) fn done(&self, opcode: u8, bytes: u64, took: Duration) {
        match kind(opcode) {
            Kind::Other => return add(&self.others, 1),
            Kind::Read => {
                add(&self.reads, 1);
                add(&self.read_bytes, bytes);
            }
            Kind::Write => {
                add(&self.writes, 1);
                add(&self.write_bytes, bytes);
            }
        }
        add(&self.busy_ns, u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        self.count(took);
    }

    fn count(&self, took: Duration) {
        let buckets = self.latency.get_or_init(|| Box::new(std::array::from_fn(|_| AtomicU64::new(0))));
        buckets.get(bucket(took)).inspect(|counter| add(counter, 1));
    }

    /// What it holds now.
    pub fn get(&self) -> Tallied {
        Tallied {
            reads: self.reads.load(Relaxed),
            writes: self.writes.load(Relaxed),
            others: self.others.load(Relaxed),
            from_memory: self.from_memory.load(Relaxed),
            read_bytes: self.read_bytes.load(Relaxed),
            write_bytes: self.write_bytes.load(Relaxed),
            under_way: self.under_way.load(Relaxed),
            busy_ns: self.busy_ns.load(Relaxed),
            latency: self.latency.get().map_or_else(Vec::new, |buckets| {
                buckets.iter().map(|counter| counter.load(Relaxed)).collect()
            }),
        }
    }
}

/// The tallies of one session by LUN: the session has its own copy of the list and changes it rarely.
#[derive(Debug, Default)]
pub struct Tallies(Mutex<Vec<(u16, Arc<Tally>)>>);

impl Tallies {
    /// The list as of now.
    pub fn list(&self) -> Vec<(u16, Arc<Tally>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set(&self, list: &[(u16, Arc<Tally>)]) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = list.to_vec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_latency_is_below_the_bound_of_its_bucket_and_not_below_the_one_before() {
        for micros in (0..5000).chain([1 << 20, (1 << 20) + (1 << 19), (3 << 20) - 1, 1 << 23]) {
            let at = bucket(Duration::from_micros(micros));
            assert!(micros < bucket_bound(at), "{micros} in {at}");
            let below = (0..at).rev().map(bucket_bound).find(|bound| *bound < bucket_bound(at));
            assert!(below.is_none_or(|bound| micros >= bound), "{micros} in {at}");
        }
        assert_eq!(bucket(Duration::from_secs(1 << 40)), BUCKETS - 1);
    }

    #[test]
    fn commands_are_counted_by_what_they_do() {
        let tally = Tally::default();
        tally.at_once(0x28, 4096);
        tally.began();
        tally.done(0x8a, 512, Duration::from_millis(3));
        tally.ended();
        tally.began();
        tally.at_once(0x00, 0);
        let now = tally.get();
        assert_eq!((now.reads, now.from_memory, now.read_bytes), (1, 1, 4096));
        assert_eq!((now.writes, now.write_bytes, now.busy_ns), (1, 512, 3_000_000));
        assert_eq!((now.others, now.under_way), (1, 1));
        assert_eq!(now.latency.iter().sum::<u64>(), 1, "what was answered at once was not measured");
    }
}
