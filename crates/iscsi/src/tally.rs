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

use tokio::time::Instant;

/// Number of bounds in [`LATENCY_BUCKETS`]; the last bucket has no upper end. It begins at three minutes: a pool may be
/// suspended for one or two, and hosts wait for no answer as long.
const BUCKETS: usize = 57;

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

/// Bits of [`Tally::under_way`] that are a number; above them times, which wrap.
const NUMBER_BITS: u32 = 16;
const NUMBER: u64 = 0xffff;
const TIMES: u64 = u64::MAX >> NUMBER_BITS;

/// Counters of one session at one LUN. See the module.
#[derive(Debug)]
pub struct Tally {
    /// What times are counted from.
    epoch: Instant,
    reads: AtomicU64,
    writes: AtomicU64,
    others: AtomicU64,
    from_memory: AtomicU64,
    read_bytes: AtomicU64,
    write_bytes: AtomicU64,
    /// How many commands are under way, and the sum of when they began, in microseconds: in one word, so that how long
    /// they have been under way by now is seen without a look at each, and never of others than are counted.
    under_way: AtomicU64,
    busy_ns: AtomicU64,
    others_ns: AtomicU64,
    /// Only of disks that are read or written: a session may see hundreds and use one.
    latency: OnceLock<Box<[AtomicU64; BUCKETS]>>,
}

/// What a [`Tally`] held when it was asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tallied {
    /// READ commands that were answered from memory, or that had to wait and ended: answered, failed or aborted.
    pub reads: u64,
    /// WRITE commands, the same way.
    pub writes: u64,
    /// All others, with the reads and writes that were refused at once.
    pub others: u64,
    /// Reads that were answered from memory at once.
    pub from_memory: u64,
    /// Bytes read, by those that did not fail.
    pub read_bytes: u64,
    /// Bytes written, the same way.
    pub write_bytes: u64,
    /// Commands under way now.
    pub under_way: u64,
    /// How long commands have been under way, nanoseconds, each for itself, those that still are until now: what was added
    /// in some time, divided by that time, is the average number under way.
    pub queue_ns: u64,
    /// Sum of the latencies of reads and writes that had to wait and have ended, nanoseconds.
    pub busy_ns: u64,
    /// The same reads and writes by latency, if there were any: those that were not answered from memory at once. See
    /// [`bucket_bound`].
    pub latency: Vec<u64>,
}

/// One writer: no locked instruction.
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(more), Relaxed);
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            epoch: Instant::now(),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            others: AtomicU64::new(0),
            from_memory: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            write_bytes: AtomicU64::new(0),
            under_way: AtomicU64::new(0),
            busy_ns: AtomicU64::new(0),
            others_ns: AtomicU64::new(0),
            latency: OnceLock::new(),
        }
    }
}

impl Tally {
    /// What one command that began then is in the word of those under way.
    fn mark(&self, since: Instant) -> u64 {
        self.micros(since).wrapping_shl(NUMBER_BITS) | 1
    }

    fn micros(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.epoch).as_micros()).unwrap_or(u64::MAX)
    }

    /// A command begins to wait: for its data, or for the volume.
    pub(crate) fn began(&self, since: Instant) {
        add(&self.under_way, self.mark(since));
    }

    /// One that [began](Self::began) then is over, answered or not, and moved so many bytes. One that was aborted has taken
    /// its time, too: a disk that answers nothing would look like one that nobody uses.
    pub(crate) fn ended(&self, opcode: u8, bytes: u64, since: Instant) {
        let left = self.under_way.load(Relaxed).wrapping_sub(self.mark(since));
        self.under_way.store(left, Relaxed);
        self.done(opcode, bytes, since.elapsed());
    }

    /// A command was answered without waiting: well, or it was refused, and then it is no read and no write.
    pub(crate) fn at_once(&self, opcode: u8, bytes: u64, is_good: bool) {
        match kind(opcode) {
            Kind::Read if is_good => {
                add(&self.from_memory, 1);
                add(&self.reads, 1);
                // No latency: it was not measured, because a clock costs as much as the answer.
                add(&self.read_bytes, bytes);
            }
            Kind::Write if is_good => add(&self.writes, 1), // of nothing
            _ => add(&self.others, 1),
        }
    }

    /// A command ended after `took`, counted from its request.
    fn done(&self, opcode: u8, bytes: u64, took: Duration) {
        let nanos = disk::nanos(took);
        match kind(opcode) {
            Kind::Other => {
                add(&self.others, 1);
                return add(&self.others_ns, nanos);
            }
            Kind::Read => {
                add(&self.reads, 1);
                add(&self.read_bytes, bytes);
            }
            Kind::Write => {
                add(&self.writes, 1);
                add(&self.write_bytes, bytes);
            }
        }
        add(&self.busy_ns, nanos);
        self.count(took);
    }

    fn count(&self, took: Duration) {
        let buckets = self.latency.get_or_init(|| Box::new(std::array::from_fn(|_| AtomicU64::new(0))));
        buckets.get(bucket(took)).inspect(|counter| add(counter, 1));
    }

    /// What it holds now.
    pub fn get(&self) -> Tallied {
        let word = self.under_way.load(Relaxed);
        let (number, begun) = (word & NUMBER, word.wrapping_shr(NUMBER_BITS));
        // The clock after the word: none of these began later.
        let waited = number.wrapping_mul(self.micros(Instant::now())).wrapping_sub(begun) & TIMES;
        let (busy, others) = (self.busy_ns.load(Relaxed), self.others_ns.load(Relaxed));
        Tallied {
            reads: self.reads.load(Relaxed),
            writes: self.writes.load(Relaxed),
            others: self.others.load(Relaxed),
            from_memory: self.from_memory.load(Relaxed),
            read_bytes: self.read_bytes.load(Relaxed),
            write_bytes: self.write_bytes.load(Relaxed),
            under_way: number,
            queue_ns: busy.saturating_add(others).saturating_add(waited.saturating_mul(1000)),
            busy_ns: busy,
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
        // What waited for a pool that was suspended for two minutes has an end.
        assert!(bucket(Duration::from_secs(120)) < BUCKETS - 1);
    }

    #[tokio::test(start_paused = true)]
    async fn commands_are_counted_by_what_they_do() {
        let tally = Tally::default();
        tally.at_once(0x28, 4096, true);
        let since = Instant::now();
        tally.began(since);
        tokio::time::advance(Duration::from_millis(3)).await;
        tally.ended(0x8a, 512, since);
        tally.began(Instant::now());
        tally.at_once(0x00, 0, true);
        let now = tally.get();
        assert_eq!((now.reads, now.from_memory, now.read_bytes), (1, 1, 4096));
        assert_eq!((now.writes, now.write_bytes, now.busy_ns), (1, 512, 3_000_000));
        assert_eq!((now.others, now.under_way), (1, 1));
        assert_eq!(now.latency.iter().sum::<u64>(), 1, "what was answered at once was not measured");
    }

    /// A host that was fenced off seemed to read from memory, all of it.
    #[test]
    fn what_is_refused_at_once_is_no_read_and_no_write() {
        let tally = Tally::default();
        tally.at_once(0x28, 0, false);
        tally.at_once(0x2a, 0, false);
        let now = tally.get();
        assert_eq!((now.reads, now.from_memory, now.writes, now.others), (0, 0, 0, 2));
    }

    /// Commands that hung were counted when they ended only: until then nobody seemed to use the disk, and in one interval
    /// afterwards thirty times as many as there were.
    #[tokio::test(start_paused = true)]
    async fn the_time_of_what_is_under_way_is_counted_as_it_passes() {
        let tally = Tally::default();
        tokio::time::advance(Duration::from_secs(5)).await;
        let since = Instant::now();
        (0..32).for_each(|_| tally.began(since));
        tokio::time::advance(Duration::from_secs(60)).await;
        tally.began(Instant::now());
        let (before, second) = (tally.get(), 1_000_000_000);
        assert_eq!((before.under_way, before.busy_ns, before.queue_ns), (33, 0, 32 * 60 * second));
        tokio::time::advance(Duration::from_secs(2)).await;
        let now = tally.get();
        assert_eq!((now.queue_ns - before.queue_ns) / (2 * second), 33);
        (0..32).for_each(|_| tally.ended(0x28, 0, since));
        let ended = tally.get();
        assert_eq!((ended.under_way, ended.queue_ns), (1, now.queue_ns));
        assert_eq!((ended.reads, ended.busy_ns), (32, 32 * 62 * second));
        // What is neither a read nor a write was under way as well.
        tally.ended(0x35, 0, since + Duration::from_secs(60));
        let last = tally.get();
        assert_eq!((last.under_way, last.queue_ns, last.busy_ns), (0, now.queue_ns, ended.busy_ns));
    }
}
