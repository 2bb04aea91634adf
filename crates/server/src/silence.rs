//! Pools that do not answer, and what is asked of others beside them.
//!
//! A list over all pools reads every one of them. A disk that hangs must not keep what the others have to say: all are asked
//! at once, and one that stands still is left out, with a sentence that names it and what helps.
//!
//! ```text
//!   reads done all the while ─────────────────────────▶ it is slow: it is waited for
//!   a device was asked and has answered nothing lately ─┬─▶ it is silent
//!   the pool is suspended, and no device answered ──────┘
//! ```
//!
//! Slow is not silent: a pool of many snapshots on slow disks may take a minute for its list.

use std::{collections::BTreeMap, fmt, pin::pin, time::Duration};

use tokio::time::{Instant, timeout};

use crate::{host::remedy, memory, ops::Held};

/// How long a device may stand still: as long as a status waits.
const PATIENCE: Duration = memory::PATIENCE;

/// How often is looked.
const LOOK: Duration = Duration::from_millis(250);

/// Devices that are named: of a shelf that is off, all would be.
const NAMED_MAX: usize = 3;

/// How much is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Others are asked as well, and whoever asks wants to hear from them.
    AmongOthers,
    /// Only this pool: a device that stands still is waited for as long as another one may have the same (ten seconds), so
    /// that a pool that can do without it answers.
    Alone,
}

/// A pool does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Silent {
    pool: String,
    /// Why nothing can be written, if it is suspended.
    suspended: Option<String>,
    /// Devices that were asked in vain.
    devices: Vec<String>,
}

impl Silent {
    /// A pool that is suspended and cannot be read for that.
    pub(crate) fn suspended(held: &Held) -> Option<Self> {
        let why = held.suspended()?;
        Some(Self { pool: held.name().to_owned(), suspended: Some(why), devices: Vec::new() })
    }
}

/// Why, and what helps: to stand behind what cannot be done.
impl fmt::Display for Silent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pool = &self.pool;
        if let Some(why) = &self.suspended {
            let remedy = remedy(pool, why);
            return write!(
                f,
                "pool I/O is currently suspended: {why}\n'zpool status {pool}' shows its devices; {remedy}"
            );
        }
        f.write_str("its devices do not answer: ")?;
        f.write_str(&self.devices.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", "))?;
        if let Some(more) = self.devices.len().checked_sub(NAMED_MAX).filter(|more| *more > 0) {
            write!(f, " and {more} more")?;
        }
        write!(
            f,
            "\n'zpool status {pool}' shows them; if the pool is suspended by then, put them right and run 'zpool clear {pool}'"
        )
    }
}

/// What `look` finds in a pool, unless that stands still.
///
/// # Errors
/// The pool is silent.
pub(crate) async fn hear<T>(held: &Held, asked: Asked, look: impl Future<Output = T>) -> Result<T, Silent> {
    let mut look = pin!(look);
    let mut watch = Watch::new(held);
    loop {
        if let Ok(found) = timeout(LOOK, &mut look).await {
            return Ok(found);
        }
        watch.look(asked)?;
    }
}

/// Who has answered lately.
struct Watch<'a> {
    held: &'a Held,
    /// Reads that each leaf has done, and since when it has been asked and that is so.
    leaves: BTreeMap<u64, (u64, Instant)>,
    /// When any of them answered last.
    answered: Instant,
}

impl<'a> Watch<'a> {
    fn new(held: &'a Held) -> Self {
        let mut watch = Self { held, leaves: BTreeMap::new(), answered: Instant::now() };
        watch.stuck(Asked::Alone);
        watch
    }

    fn look(&mut self, asked: Asked) -> Result<(), Silent> {
        let devices = self.stuck(asked);
        let suspended = self.held.suspended();
        // Nobody has to be asked for what waits until the pool goes on.
        let waits = suspended.is_some() && self.answered.elapsed() >= PATIENCE;
        match devices.is_empty() && !waits {
            true => Ok(()),
            false => Err(Silent { pool: self.held.name().to_owned(), suspended, devices }),
        }
    }

    /// Leaves that have been asked for so long and have answered nothing.
    fn stuck(&mut self, asked: Asked) -> Vec<String> {
        let (tree, now) = (self.held.view().tree(), Instant::now());
        let mut stuck = Vec::new();
        for vdev in tree.leaves() {
            let Some(leaf) = &vdev.leaf else { continue };
            let (wanted, done) = leaf.pulse.tally.reads();
            let (before, since) = self.leaves.entry(vdev.guid).or_insert((done, now));
            if *before != done {
                self.answered = now;
            }
            if wanted == 0 || *before != done {
                (*before, *since) = (done, now);
            } else if now.duration_since(*since) >= PATIENCE {
                // Nothing is asked of one that has let a deadline pass but what nobody else has.
                if asked == Asked::AmongOthers || leaf.condition.deadline().is_silent() {
                    stuck.push(vdev.to_string());
                }
            }
        }
        stuck
    }
}
