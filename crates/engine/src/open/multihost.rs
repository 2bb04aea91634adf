//! Heartbeats: how another host that sees the same devices learns that this one is alive.
//!
//! With the pool property `multihost` on, one leaf after the other gets the last uberblock again, with a new time
//! and sequence number. Another host that wants the pool watches for that before it imports. And if this host
//! cannot write heartbeats for so long that the other must think it dead, it stops writing to the pool. That is a matter of
//! the clock, not of what devices say: a process that stood still for that long wakes up with devices that take everything.
//! It is a clock that goes on while the machine sleeps, as that of the other host does.
//!
//! So [`Alive`] is asked before a heartbeat, a transaction group, a round of an intent log, and before every single write of
//! these and of repairs, which may have waited for their turn meanwhile. Sweeps, and who writes labels of devices that come
//! and go or to cache devices, do it through a disk that asks ([`crate::write::ours`]). What it said once holds.
//!
//! A device that hangs keeps the others from nothing: heartbeats go their ways side by side.
//!
//! Facts: docs/format/labels.md §5.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Release},
        },
    },
    time::Duration,
};

use ondisk::{
    label::{LABELS, Multihost},
    uberblock::{Mmp, Uberblock},
};
use parking_lot::Mutex;
use pool::PoolIo;
use rand::{Rng, SeedableRng, rngs::StdRng};
use rustix::time::{ClockId, clock_gettime};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval},
};

use crate::{EngineError, sync::Syncer, write::labels};

/// Milliseconds in which every leaf gets a heartbeat once.
pub const INTERVAL_MS: u64 = 1000;
/// Intervals without any heartbeat after which writing stops.
pub const FAIL_INTERVALS: u16 = 10;
/// As a time.
pub(super) const PATIENCE: Duration = Duration::from_millis(INTERVAL_MS * FAIL_INTERVALS as u64);

/// The last commit: what heartbeats repeat, and where they go.
#[derive(Clone, Debug)]
pub struct Committed {
    /// Its uberblock.
    pub uberblock: Uberblock,
    /// The devices.
    pub io: Arc<PoolIo>,
}

/// The property's value as the on-disk layout calls it.
#[must_use]
pub fn state(on: bool) -> Multihost {
    if on { Multihost::On } else { Multihost::Off }
}

/// The heartbeat fields of the uberblock of an ordinary commit.
#[must_use]
pub fn fields(multihost: Multihost) -> Mmp {
    match multihost {
        Multihost::Off => Mmp::default(),
        Multihost::On => {
            Mmp { delay_ns: INTERVAL_MS * 1_000_000, config: Mmp::pack(INTERVAL_MS, 0, FAIL_INTERVALS) }
        }
    }
}

/// Turns the property on or off; every leaf hears of it with this transaction group.
pub fn set(cx: &mut Syncer, on: bool) {
    cx.multihost = on;
    cx.uberblock.mmp = Some(fields(state(on)));
    cx.config_dirty = true;
}

/// Whether this host may write to the pool, as far as heartbeats say. Its moments are times since it began, the machine's sleep
/// included.
#[derive(Debug)]
pub struct Alive {
    origin: Instant,
    /// How long the machine has slept, see [`asleep`]; and what it was at the beginning.
    asleep: fn() -> i64,
    asleep_before: i64,
    /// The moment, in milliseconds, until which there is nothing to look at: every write asks, and most pools have no
    /// heartbeats.
    sure_until: AtomicU64,
    vigil: Mutex<Vigil>,
}

impl Default for Alive {
    fn default() -> Self {
        Self::by(asleep)
    }
}

/// How far the clock that goes on while the machine sleeps is ahead of the one that stands still then, in milliseconds. By how
/// much that has grown is how long it slept.
fn asleep() -> i64 {
    let now = |clock| {
        let time = Duration::try_from(clock_gettime(clock)).unwrap_or_default();
        i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
    };
    // In this order: who is kept waiting between the two has not slept.
    let whole = now(ClockId::Boottime);
    whole.saturating_sub(now(ClockId::Monotonic))
}

#[derive(Debug, Default)]
struct Vigil {
    /// When the last heartbeat that got through was sent; none if there need not be any.
    last: Option<Duration>,
    failure: Option<EngineError>,
}

impl Vigil {
    /// What is so late that another host may have the pool is a failure for good.
    fn judge(&mut self, now: Duration) {
        let silent = self.last.map(|last| now.saturating_sub(last)).filter(|silent| *silent > PATIENCE);
        if let Some(silent) = silent.filter(|_| self.failure.is_none()) {
            let why = "another host may have imported the pool";
            let text = format!("no heartbeat was written for {} s: {why}", silent.as_secs());
            self.failure = Some(EngineError::Suspended(text));
        }
    }
}

impl Alive {
    /// With a machine that has slept as `asleep` says.
    fn by(asleep: fn() -> i64) -> Self {
        Self {
            origin: Instant::now(),
            asleep,
            asleep_before: asleep(),
            sure_until: AtomicU64::new(u64::MAX),
            vigil: Mutex::default(),
        }
    }

    /// This moment.
    fn now(&self) -> Duration {
        let slept = (self.asleep)().saturating_sub(self.asleep_before);
        // Whole seconds: two clocks are never read at the same time, and a simulation has only one.
        self.origin.elapsed() + Duration::from_secs(u64::try_from(slept / 1000).unwrap_or(0))
    }

    /// Why nothing must be written any more: no heartbeat got through for so long that another host may have the pool.
    #[must_use]
    pub fn failure(&self) -> Option<EngineError> {
        let sure_until = self.sure_until.load(Acquire);
        if sure_until == u64::MAX || self.now() <= Duration::from_millis(sure_until) {
            return None;
        }
        let mut vigil = self.vigil.lock();
        vigil.judge(self.now());
        self.note(&vigil);
        vigil.failure.clone()
    }

    /// Until when nobody has to look.
    fn note(&self, vigil: &Vigil) {
        let sure_until = match (&vigil.failure, vigil.last) {
            (Some(_), _) => 0,
            (None, None) => u64::MAX,
            (None, Some(last)) => u64::try_from((last + PATIENCE).as_millis()).unwrap_or(u64::MAX),
        };
        self.sure_until.store(sure_until, Release);
    }

    /// Heartbeats begin now.
    pub(super) fn on(&self) {
        let mut vigil = self.vigil.lock();
        vigil.last = Some(self.now());
        self.note(&vigil);
    }

    /// A heartbeat that was sent at `when` got through.
    fn beat(&self, when: Duration) {
        let mut vigil = self.vigil.lock();
        // One that was under way when they were turned off begins nothing.
        let Some(last) = vigil.last else { return };
        // Nor does one revive a host that has been silent for too long by then, also if nobody has looked.
        if when.saturating_sub(last) > PATIENCE {
            vigil.judge(self.now());
        }
        vigil.last = Some(when.max(last));
        self.note(&vigil);
    }

    /// How long the last one is ago.
    fn silence(&self) -> Duration {
        self.vigil.lock().last.map_or(Duration::ZERO, |last| self.now().saturating_sub(last))
    }

    /// There need not be any more. What failed before stays so, also if nobody has looked yet.
    fn off(&self) {
        let mut vigil = self.vigil.lock();
        vigil.judge(self.now());
        vigil.last = None;
        self.note(&vigil);
    }
}

/// The heartbeats of one open pool: written by a task of their own, as long as the property is on.
#[derive(Debug, Default)]
pub struct Heartbeats {
    commits: Option<watch::Sender<Committed>>,
    alive: Arc<Alive>,
}

impl Heartbeats {
    /// Tells of a commit. Starts heartbeats, or ends them, if the property changed with it.
    pub fn committed(&mut self, cx: &Syncer, now: fn() -> u64) {
        let committed = Committed { uberblock: cx.uberblock, io: Arc::clone(&cx.io) };
        match &self.commits {
            _ if !cx.multihost => self.stop(),
            Some(commits) => drop(commits.send_replace(committed)),
            None => {
                self.alive.on();
                self.begin(committed, StdRng::seed_from_u64(cx.guid ^ cx.txg), now);
            }
        }
    }

    /// Starts them, as of the moment at which [`Alive::on`] was said.
    pub(super) fn begin(&mut self, committed: Committed, random: StdRng, now: fn() -> u64) {
        let (sender, receiver) = watch::channel(committed);
        self.commits = Some(sender);
        let alive = Arc::clone(&self.alive);
        tokio::spawn(async move {
            if let Err(error) = run(receiver, now, random, &alive).await {
                tracing::error!(%error, "nothing is written to the pool any more");
            }
        });
    }

    /// What they say of this host.
    #[must_use]
    pub fn alive(&self) -> Arc<Alive> {
        Arc::clone(&self.alive)
    }

    /// Ends them.
    pub fn stop(&mut self) {
        self.commits = None;
        self.alive.off();
    }
}

/// What tells a heartbeat from the one before: together these only go up. A clock does not, and an idle pool can beat longer
/// by one of its seconds than the sequence number has values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Pulse {
    second: u64,
    sequence: u16,
}

impl Pulse {
    /// The next one, not before `now`.
    fn next(self, now: u64) -> Self {
        match self.sequence.checked_add(1) {
            Some(sequence) if now <= self.second => Self { sequence, ..self },
            _ => Self { second: now.max(self.second.saturating_add(1)), sequence: 1 },
        }
    }
}

/// A heartbeat on its way: number of its leaf, when it was sent, and what came of it.
type Beat = (usize, Duration, Result<(), EngineError>);

/// Writes heartbeats until the sender of `commits` is gone. `now` is the wall clock in seconds.
///
/// # Errors
/// None got through for [`FAIL_INTERVALS`] intervals: nothing must be written to the pool any more.
pub async fn run(
    mut commits: watch::Receiver<Committed>,
    now: impl Fn() -> u64 + Send,
    mut random: StdRng,
    alive: &Alive,
) -> Result<(), EngineError> {
    let leaves = labels::writable(&commits.borrow().io.tree()).max(1) as u64;
    let mut tick = interval(Duration::from_millis((INTERVAL_MS / leaves).max(1)));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut beats: JoinSet<Beat> = JoinSet::new();
    let mut busy: BTreeSet<usize> = BTreeSet::new();
    let (mut pulse, mut leaf) = (Pulse::default(), 0_usize);
    loop {
        tokio::select! {
            _ = tick.tick() => {}
            Some(beat) = beats.join_next() => {
                if let Ok((leaf, sent, outcome)) = beat {
                    busy.remove(&leaf);
                    match outcome {
                        Ok(()) => alive.beat(sent),
                        Err(error) => tracing::warn!(%error, "heartbeat not written"),
                    }
                }
                continue;
            }
            changed = commits.changed() => match changed {
                Ok(()) => continue,
                Err(_closed) => return Ok(()),
            },
        }
        // In this order: if the machine sleeps after it was asked, this one counts from before that.
        let sent = alive.now();
        if let Some(error) = alive.failure() {
            return Err(error);
        }
        let Committed { mut uberblock, io } = commits.borrow().clone();
        let tree = io.tree();
        // A leaf that has not taken the last one yet gets no other.
        let count = labels::writable(&tree).max(1);
        let Some(next) = (1..=count).map(|step| (leaf + step) % count).find(|next| !busy.contains(next))
        else {
            continue;
        };
        leaf = next;
        pulse = pulse.next(now().max(uberblock.timestamp));
        uberblock.timestamp = pulse.second;
        uberblock.mmp = Some(Mmp {
            delay_ns: disk::nanos(alive.silence()).max(1),
            config: Mmp::pack(INTERVAL_MS, pulse.sequence, FAIL_INTERVALS),
        });
        let label = random.random_range(0..LABELS);
        busy.insert(leaf);
        beats.spawn(async move { (leaf, sent, labels::heartbeat(&tree, leaf, label, &uberblock).await) });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicI64;

    use super::*;

    /// A host that was suspended went on where it was, in a pool that another had imported meanwhile: the clock that it asked
    /// had slept as well.
    #[tokio::test(start_paused = true)]
    async fn a_host_that_slept_may_write_no_more_although_its_clock_stood_still() {
        // In a container one clock may be anywhere beside the other.
        static ASLEEP: AtomicI64 = AtomicI64::new(-5_000_000);
        let alive = Alive::by(|| ASLEEP.load(Acquire));
        let sleep = |seconds: i64| ASLEEP.fetch_add(seconds * 1000, Release);
        sleep(3600);
        assert!(alive.failure().is_none(), "there are no heartbeats");
        alive.on();
        sleep(9);
        assert!(alive.failure().is_none());
        let under_way = alive.now();
        alive.beat(under_way);
        sleep(9);
        assert!(alive.failure().is_none(), "one got through since");
        sleep(2);
        alive.beat(under_way);
        let said = alive.failure().expect("nothing got through for longer than it may").to_string();
        assert!(said.contains("for 11 s: another host may have imported the pool"), "{said}");
        alive.beat(alive.now());
        assert!(alive.failure().is_some(), "what it said once holds");
        // It slept between the look and the heartbeat, and nobody else has looked.
        let alive = Alive::by(|| ASLEEP.load(Acquire));
        alive.on();
        sleep(11);
        alive.beat(alive.now());
        assert!(alive.failure().is_some(), "another host may have come meanwhile");
    }

    /// By a clock that stood in the past, each heartbeat was the same as the last when the sequence number had come to its
    /// end, and another host took this one for dead.
    #[test]
    fn heartbeats_rise_for_longer_than_a_sequence_number_has_values() {
        let mut pulse = Pulse::default().next(1000);
        assert_eq!(pulse, Pulse { second: 1000, sequence: 1 });
        for beat in 0..70_000 {
            let next = pulse.next(if beat < 100 { 1000 } else { 400 });
            assert!(next > pulse, "{beat}: {next:?} after {pulse:?}");
            pulse = next;
        }
        assert_eq!(pulse.next(5000), Pulse { second: 5000, sequence: 1 }, "the clock has caught up");
    }
}
