//! What the cache's own accesses say about other sizes of it: the feed of the [`Advisor`].
//!
//! ```text
//!   hit, miss, fill of a block whose identity is below a bound (one in 128) ──▶ a list, under a lock that nobody waits for
//!                                     the list is long ──▶ a task plays it to the advisor
//! ```
//! What is noted is what the policies are told: uses that follow each other at once are one. A hit pays a comparison of
//! the hash it was looked up by; one in 128 tries a lock, and if that is busy the note is lost. Only data is looked at:
//! metadata is what a cache of any reasonable size keeps.
//!
//! A cache too small to be sampled (under 64 MiB) has no advice. What it costs follows how much is used, so it is looked
//! at: beyond a hundredth of a processor the sample becomes thinner.
//!
//! Decision: docs/decisions/0013-live-miss-ratio-curves.md.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use ::cache::{Advisor, GhostHits, KEYS, Kind, Outlook};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::ranks::{Replacement, UNIT};

/// One block in 2^this is looked at, or fewer.
const FEED: u32 = 7;
/// Identities from here on are not.
const BOUND: u64 = 1 << (u64::BITS - FEED);
/// Notes that are played together, and notes that are kept at most.
const BATCH: usize = 64;
const NOTES_MAX: usize = 1024;
/// Smaller caches are not sampled, in bytes.
const SMALLEST: usize = 64 << 20;
/// Caches from here on have larger miniatures, in bytes.
const LARGE: usize = 2 << 30;
/// Between two looks at what it costs.
const WINDOW: Duration = Duration::from_secs(2);
/// One part in so many of a processor's time that it may take in one. The bar is a hundredth.
const SHARE: u128 = 125;
/// Datasets that are told apart.
const DATASETS: usize = 256;

#[derive(Clone, Copy, Debug)]
enum Note {
    Came { id: u64, units: u32, group: u32, kind: Kind },
    Hit { id: u64 },
    Gone { id: u64 },
}

/// See the module.
pub(super) struct Feed {
    /// The cache is large enough.
    is_on: bool,
    notes: Mutex<Vec<Note>>,
    /// A task is about to play them.
    is_due: AtomicBool,
    /// Units that data may take.
    capacity: AtomicU64,
    memory: AtomicUsize,
    model: Mutex<Option<Model>>,
    /// Pool and object set of each group.
    datasets: Mutex<Vec<(u64, u64)>>,
}

struct Model {
    advisor: Advisor,
    /// Hits and misses of data when this was looked at last, and in its time, fading as the advisor forgets.
    counted: [u64; 2],
    lately: [f64; 2],
    halvings: u64,
    /// Time that it took, nanoseconds; and since when.
    took: u64,
    since: Instant,
    /// What it had taken when that was looked at last, and when.
    looked: (u64, Instant),
}

impl Model {
    /// Keeps within the share of a processor's time.
    fn economise(&mut self) {
        let (before, at) = self.looked;
        let passed = at.elapsed();
        if passed < WINDOW {
            return;
        }
        if u128::from(self.took - before) * SHARE > passed.as_nanos() && self.advisor.economise() {
            tracing::debug!(
                one_in = self.advisor.one_in(),
                "the cache is sampled more thinly: it costs too much"
            );
        }
        self.looked = (self.took, Instant::now());
    }
}

/// What more memory or a cache device would be worth.
#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// One block in so many is looked at.
    pub one_in: u64,
    /// Memory that this takes, bytes.
    pub memory: u64,
    /// Time that it took, nanoseconds, of how many.
    pub took_ns: (u64, u64),
    /// Of all data. Sizes are bytes.
    pub whole: Outlook,
    /// Of each pool, by guid.
    pub pools: Vec<(u64, Outlook)>,
    /// Of each busy dataset: pool, object set.
    pub datasets: Vec<(u64, u64, Outlook)>,
    /// Share of the accesses in all this time that missed a block whose ghost was there: hits of a cache up to about
    /// twice as large.
    pub ghosts: f64,
}

impl fmt::Debug for Feed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed").field("capacity", &self.capacity).finish_non_exhaustive()
    }
}

impl Feed {
    pub(super) fn new(replacement: Replacement, budget: usize) -> Arc<Self> {
        let policy = match replacement {
            Replacement::Arc => "arc",
            Replacement::Default => "default",
        };
        let model = (budget >= SMALLEST).then(|| {
            let now = Instant::now();
            let blocks = if budget >= LARGE { 1024 } else { 512 };
            Model {
                advisor: Advisor::new(policy, (budget / UNIT) as u64, FEED, blocks, KEYS),
                counted: [0; 2],
                lately: [0.0; 2],
                halvings: 0,
                took: 0,
                since: now,
                looked: (0, now),
            }
        });
        Arc::new(Self {
            is_on: model.is_some(),
            notes: Mutex::default(),
            is_due: AtomicBool::new(false),
            capacity: AtomicU64::new((budget / UNIT) as u64),
            memory: AtomicUsize::new(model.as_ref().map_or(0, |model| model.advisor.bytes())),
            model: Mutex::new(model),
            datasets: Mutex::default(),
        })
    }

    /// Bytes of memory behind it.
    pub(super) fn memory(&self) -> usize {
        self.memory.load(Relaxed)
    }

    /// Whether a block is looked at.
    #[inline]
    pub(super) const fn wants(id: u64) -> bool {
        id < BOUND
    }

    /// A block was used that was there. True if there is something to be played.
    pub(super) fn hit(&self, id: u64) -> bool {
        self.note(Note::Hit { id })
    }

    /// A block became worthless.
    pub(super) fn gone(&self, id: u64) -> bool {
        self.note(Note::Gone { id })
    }

    /// A block came in, of an object set of a pool; data may take so many units now.
    pub(super) fn came(
        &self,
        id: u64,
        units: u32,
        (pool, objset): (u64, u64),
        kind: Kind,
        capacity: u64,
    ) -> bool {
        if !self.is_on {
            return false;
        }
        self.capacity.store(capacity, Relaxed);
        let group = {
            let mut datasets = self.datasets.lock();
            let known = datasets.iter().position(|known| *known == (pool, objset));
            known.unwrap_or_else(|| {
                if datasets.len() < DATASETS {
                    datasets.push((pool, objset));
                    datasets.len() - 1
                } else {
                    DATASETS
                }
            }) as u32
        };
        self.note(Note::Came { id, units, group, kind })
    }

    fn note(&self, note: Note) -> bool {
        if !self.is_on {
            return false;
        }
        let Some(mut notes) = self.notes.try_lock() else { return false };
        if notes.len() < NOTES_MAX {
            notes.push(note);
        }
        notes.len() >= BATCH && !self.is_due.swap(true, Relaxed)
    }

    /// Plays what was noted, some time soon. `counted`: hits and misses of data that somebody waited for.
    pub(super) fn play_soon(self: &Arc<Self>, counted: [u64; 2]) {
        // Where there is nobody to do it, whoever asks for advice does.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let feed = Arc::clone(self);
        runtime.spawn(async move { feed.play(counted) });
    }

    fn play(&self, counted: [u64; 2]) {
        let notes = std::mem::take(&mut *self.notes.lock());
        self.is_due.store(false, Relaxed);
        let mut model = self.model.lock();
        let Some(model) = &mut *model else { return };
        let begun = Instant::now();
        model.advisor.resize(self.capacity.load(Relaxed));
        for note in notes {
            match note {
                Note::Came { id, units, group, kind } => model.advisor.came(id, units, group, kind),
                Note::Hit { id } => model.advisor.hit(id),
                Note::Gone { id } => model.advisor.gone(id),
            }
        }
        for ((lately, before), now) in model.lately.iter_mut().zip(&mut model.counted).zip(counted) {
            *lately += now.saturating_sub(*before) as f64;
            *before = now.max(*before);
        }
        while model.halvings < model.advisor.halvings() {
            model.halvings += 1;
            model.lately.iter_mut().for_each(|count| *count *= 0.5);
        }
        self.memory.store(model.advisor.bytes(), Relaxed);
        model.took += u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        model.economise();
    }

    /// What can be said now. `ghosts`: how often the live policy of data met one.
    pub(super) fn advice(&self, counted: [u64; 2], ghosts: GhostHits) -> Option<Advice> {
        self.play(counted);
        let model = self.model.lock();
        let model = model.as_ref()?;
        let advisor = &model.advisor;
        let [hits, misses] = model.lately;
        let missed = (hits + misses > 0.0).then(|| misses / (hits + misses));
        let datasets = self.datasets.lock().clone();
        let mut pools: Vec<(u64, Vec<u32>)> = Vec::new();
        let mut found = Vec::new();
        for (at, (pool, objset)) in datasets.into_iter().enumerate() {
            let at = at as u32;
            match pools.iter_mut().find(|known| known.0 == pool) {
                Some(known) => known.1.push(at),
                None => pools.push((pool, vec![at])),
            }
            found.extend(advisor.outlook_of_groups(&[at]).map(|outlook| (pool, objset, in_bytes(outlook))));
        }
        let pools = pools
            .into_iter()
            .filter_map(|(pool, groups)| Some((pool, in_bytes(advisor.outlook_of_groups(&groups)?))));
        let met = ghosts.recent + ghosts.frequent;
        let all: u64 = counted.iter().sum();
        Some(Advice {
            one_in: advisor.one_in(),
            memory: advisor.bytes() as u64,
            took_ns: (model.took, u64::try_from(model.since.elapsed().as_nanos()).unwrap_or(u64::MAX)),
            whole: in_bytes(advisor.outlook(missed)),
            pools: pools.collect(),
            datasets: found,
            ghosts: if all == 0 { 0.0 } else { (met as f64 / all as f64).min(1.0) },
        })
    }
}

/// The advisor counts in units.
fn in_bytes(mut outlook: Outlook) -> Outlook {
    let points = outlook.memory.iter_mut().chain(&mut outlook.second).chain(&mut outlook.lru);
    points.for_each(|point| point.size *= UNIT as u64);
    outlook
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fast pool made it take 4 % of a processor where a hundredth was promised.
    #[tokio::test(start_paused = true)]
    async fn a_sample_that_costs_too_much_becomes_thinner_as_far_as_it_can_be_judged_by() {
        let feed = Feed::new(Replacement::Default, 4 << 30);
        let mut model = feed.model.lock().take().unwrap();
        (0..1100).for_each(|id| model.advisor.came(id, 16, 0, Kind::Miss));
        let one_in = |model: &Model| model.advisor.one_in();
        let before = one_in(&model);
        for (spent_ms, thinner) in [(10, 1), (50, 2), (5, 2), (50, 4), (1000, 4)] {
            model.took += spent_ms * 1_000_000;
            model.economise();
            tokio::time::advance(WINDOW).await;
            model.economise();
            assert_eq!(one_in(&model), before * thinner, "{spent_ms}");
        }
    }
}
