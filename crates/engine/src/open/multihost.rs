//! Heartbeats: how another host that sees the same devices learns that this one is alive.
//!
//! With the pool property `multihost` on, one leaf after the other gets the last uberblock again, with a new time
//! and sequence number. Another host that wants the pool watches for that before it imports. And if this host
//! cannot write heartbeats for so long that the other must think it dead, it stops writing to the pool.
//!
//! Facts: docs/format/labels.md §5.

use std::{sync::Arc, time::Duration};

use ondisk::{
    label::{LABELS, Multihost},
    uberblock::{Mmp, Uberblock},
};
use parking_lot::Mutex;
use pool::PoolIo;
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval},
};

use crate::{EngineError, sync::Syncer, write::labels};

/// Milliseconds in which every leaf gets a heartbeat once.
pub const INTERVAL_MS: u64 = 1000;
/// Intervals without any heartbeat after which writing stops.
pub const FAIL_INTERVALS: u16 = 10;

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

/// The heartbeats of one open pool: written by a task of their own, as long as the property is on.
#[derive(Debug, Default)]
pub struct Heartbeats {
    commits: Option<watch::Sender<Committed>>,
    failure: Arc<Mutex<Option<EngineError>>>,
}

impl Heartbeats {
    /// Tells of a commit. Starts heartbeats, or ends them, if the property changed with it.
    pub fn committed(&mut self, cx: &Syncer, now: fn() -> u64) {
        let committed = Committed { uberblock: cx.uberblock, io: Arc::clone(&cx.io) };
        match &self.commits {
            _ if !cx.multihost => self.stop(),
            Some(commits) => drop(commits.send_replace(committed)),
            None => {
                let (sender, receiver) = watch::channel(committed);
                self.commits = Some(sender);
                let failure = Arc::clone(&self.failure);
                let random = StdRng::seed_from_u64(cx.guid ^ cx.txg);
                tokio::spawn(async move {
                    if let Err(error) = run(receiver, now, random).await {
                        *failure.lock() = Some(error);
                    }
                });
            }
        }
    }

    /// Where [`failure`](Self::failure) looks.
    pub(crate) fn failures(&self) -> Arc<Mutex<Option<EngineError>>> {
        Arc::clone(&self.failure)
    }

    /// Ends them.
    pub fn stop(&mut self) {
        self.commits = None;
    }

    /// Why nothing must be written any more: no heartbeat got through for too long.
    #[must_use]
    pub fn failure(&self) -> Option<EngineError> {
        self.failure.lock().clone()
    }
}

/// Writes heartbeats until the sender of `commits` is gone. `now` is the wall clock in seconds.
///
/// # Errors
/// None could be written for [`FAIL_INTERVALS`] intervals: nothing must be written to the pool any more.
pub async fn run(
    mut commits: watch::Receiver<Committed>,
    now: impl Fn() -> u64 + Send,
    mut random: StdRng,
) -> Result<(), EngineError> {
    let patience = Duration::from_millis(INTERVAL_MS * u64::from(FAIL_INTERVALS));
    let leaves = labels::writable(&commits.borrow().io.tree()).max(1) as u64;
    let mut tick = interval(Duration::from_millis((INTERVAL_MS / leaves).max(1)));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last_success = Instant::now();
    let (mut second, mut sequence, mut leaf) = (0, 0_u16, 0_usize);
    loop {
        tokio::select! {
            _ = tick.tick() => {}
            changed = commits.changed() => match changed {
                Ok(()) => continue,
                Err(_closed) => return Ok(()),
            },
        }
        let Committed { mut uberblock, io } = commits.borrow().clone();
        let timestamp = now().max(uberblock.timestamp);
        sequence = if timestamp == second { sequence.saturating_add(1) } else { 1 };
        second = timestamp;
        uberblock.timestamp = timestamp;
        uberblock.mmp = Some(Mmp {
            delay_ns: (Instant::now() - last_success).as_nanos().try_into().unwrap_or(u64::MAX).max(1),
            config: Mmp::pack(INTERVAL_MS, sequence, FAIL_INTERVALS),
        });
        leaf = leaf.wrapping_add(1);
        let label = random.random_range(0..LABELS);
        match labels::heartbeat(&io.tree(), leaf, label, &uberblock).await {
            Ok(()) => last_success = Instant::now(),
            Err(error) if last_success.elapsed() > patience => return Err(error),
            Err(error) => tracing::warn!(%error, "heartbeat not written"),
        }
    }
}
