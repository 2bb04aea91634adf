//! How busy a leaf is and how fast it answers: what decides who may wait, and who sits out.
//!
//! Reads are timed one by one, those of clients and those of scans apart: a scan gives way while clients wait, and
//! must not mistake its own reads for theirs. What is typical is an average that forgets: the last few dozen reads
//! count. Facts: docs/format/vdevs.md §9 (nothing of this is on disk).

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use disk::nanos;
use tokio::time::Instant;

use super::Tally;

/// An I/O that took longer is counted: `zpool status -s`.
pub const SLOW: Duration = Duration::from_secs(30);
/// Share of a new sample in the average: 1/8.
const FORGETTING: u64 = 8;

/// For whom a read is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// Somebody waits for it.
    Client,
    /// A scan.
    Scan,
}

/// See the module. Shared by all trees the leaf is in.
#[derive(Debug, Default)]
pub struct Pulse {
    clients: Beats,
    scans: Beats,
    slow: AtomicU64,
    judged: AtomicBool,
    /// What was done, for whoever wants to see it.
    pub tally: Tally,
}

#[derive(Debug, Default)]
struct Beats {
    in_flight: AtomicU32,
    samples: AtomicU64,
    /// Nanoseconds.
    typical: AtomicU64,
    /// When the first one began.
    base: OnceLock<Instant>,
    /// When the last one ended: nanoseconds behind `base`, plus one. Zero: none has.
    ended: AtomicU64,
}

/// A read that is under way.
#[derive(Debug)]
pub struct Beat<'a> {
    pulse: &'a Pulse,
    demand: Demand,
    since: Instant,
}

impl Pulse {
    /// A read begins.
    #[must_use]
    pub fn begin(&self, demand: Demand) -> Beat<'_> {
        let (beats, since) = (self.of(demand), Instant::now());
        beats.base.get_or_init(|| since);
        beats.in_flight.fetch_add(1, Relaxed);
        Beat { pulse: self, demand, since }
    }

    /// Reads of clients under way.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.clients.in_flight.load(Relaxed)
    }

    /// For how long no client has wanted anything: zero while one does, none if none ever did.
    #[must_use]
    pub fn idle(&self) -> Option<Duration> {
        if self.in_flight() > 0 {
            return Some(Duration::ZERO);
        }
        let ended = self.clients.ended.load(Relaxed).checked_sub(1)?;
        let base = self.clients.base.get()?;
        Some(base.elapsed().saturating_sub(Duration::from_nanos(ended)))
    }

    /// What clients' reads took lately; none if there was none yet.
    #[must_use]
    pub fn typical(&self) -> Option<Duration> {
        self.clients.typical()
    }

    /// The same of scans' reads.
    #[must_use]
    pub fn typical_of_scans(&self) -> Option<Duration> {
        self.scans.typical()
    }

    /// Reads that were timed, of both.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.clients.samples.load(Relaxed) + self.scans.samples.load(Relaxed)
    }

    /// I/Os that took longer than [`SLOW`].
    #[must_use]
    pub fn slow(&self) -> u64 {
        self.slow.load(Relaxed)
    }

    /// An I/O of any kind took so long.
    pub fn took(&self, time: Duration) {
        if time > SLOW {
            self.slow.fetch_add(1, Relaxed);
        }
    }

    /// Whether it was found out since the pool was opened how fast it is: it is known if it is slow beside others.
    #[must_use]
    pub fn is_judged(&self) -> bool {
        self.judged.load(Relaxed)
    }

    /// It was found out.
    pub fn judge(&self) {
        self.judged.store(true, Relaxed);
    }

    /// Forgets what was counted, and what was typical (`zpool clear`).
    pub fn reset(&self) {
        self.slow.store(0, Relaxed);
        self.forget();
    }

    /// What was typical is no longer: the device rested, or is another one.
    pub fn forget(&self) {
        for beats in [&self.clients, &self.scans] {
            beats.samples.store(0, Relaxed);
            beats.typical.store(0, Relaxed);
        }
    }

    fn of(&self, demand: Demand) -> &Beats {
        match demand {
            Demand::Client => &self.clients,
            Demand::Scan => &self.scans,
        }
    }
}

impl Beats {
    fn typical(&self) -> Option<Duration> {
        (self.samples.load(Relaxed) > 0).then(|| Duration::from_nanos(self.typical.load(Relaxed)))
    }

    fn add(&self, time: Duration) {
        let now = nanos(time);
        let before = self.typical.load(Relaxed);
        let first = self.samples.fetch_add(1, Relaxed) == 0;
        // Two at once may lose one of them: it is an average of many.
        let next = if first { now } else { before - before / FORGETTING + now / FORGETTING };
        self.typical.store(next, Relaxed);
    }
}

impl Beat<'_> {
    /// It was answered.
    pub fn end(self) {
        let time = self.since.elapsed();
        self.pulse.of(self.demand).add(time);
        self.pulse.took(time);
        self.over(time);
        std::mem::forget(self);
    }

    /// It is no longer under way, so long after its begin.
    fn over(&self, time: Duration) {
        let beats = self.pulse.of(self.demand);
        if let Some(base) = beats.base.get() {
            let ended = self.since.saturating_duration_since(*base) + time;
            beats.ended.store(nanos(ended).saturating_add(1), Relaxed);
        }
        beats.in_flight.fetch_sub(1, Relaxed);
    }
}

impl Drop for Beat<'_> {
    fn drop(&mut self) {
        // Given up: it was not answered, so nothing is learnt of how fast the leaf is.
        self.over(self.since.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_average_follows_and_scans_are_kept_apart() {
        let pulse = Pulse::default();
        assert_eq!(pulse.typical(), None);
        for (demand, millis, times) in
            [(Demand::Client, 10, 50), (Demand::Scan, 90, 50), (Demand::Client, 200, 50)]
        {
            for _ in 0..times {
                let beat = pulse.begin(demand);
                assert_eq!(pulse.in_flight(), u32::from(demand == Demand::Client));
                tokio::time::sleep(Duration::from_millis(millis)).await;
                beat.end();
            }
        }
        let typical = pulse.typical().unwrap();
        assert!(typical > Duration::from_millis(190) && typical <= Duration::from_millis(200), "{typical:?}");
        assert!(pulse.typical_of_scans().unwrap() > Duration::from_millis(85));
        assert_eq!((pulse.samples(), pulse.slow(), pulse.in_flight()), (150, 0, 0));
        let beat = pulse.begin(Demand::Client);
        tokio::time::sleep(SLOW * 2).await;
        assert_eq!(pulse.idle(), Some(Duration::ZERO));
        beat.end();
        tokio::time::sleep(Duration::from_millis(7)).await;
        assert_eq!(pulse.idle(), Some(Duration::from_millis(7)));
        assert_eq!(pulse.slow(), 1);
        pulse.reset();
        assert_eq!((pulse.slow(), pulse.typical()), (0, None));
    }
}
