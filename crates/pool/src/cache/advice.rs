//! What the cache's own accesses say about other sizes of it: the feed of the [`Advisor`].
//!
//! ```text
//!   hit, miss, fill of a block whose identity is below a bound (one in 128) ──▶ a list, under a lock that nobody waits for
//!                                     the list is long ──▶ a task plays it to the advisor
//! ```
//! What is noted is what the policies are told: uses that follow each other at once are one. Of the others only how many
//! there were is noted, because of everything together it is known, and of a dataset it is not. A hit pays a comparison of
//! the hash it was looked up by; one in 128 tries a lock, and if that is busy the note is lost; a hot block does so once in
//! 16 hits. Only data is looked at: metadata is what a cache of any reasonable size keeps.
//!
//! A cache too small to be sampled (under 64 MiB) has no advice. A budget that shrinks below that, or the governor when
//! memory is short, takes the model's memory before the blocks'; it begins anew when there is room. What it costs follows
//! how much is used, so it is looked at: beyond a hundredth of a processor the sample becomes thinner.
//!
//! Locks: the model's and the notes', each for itself, and none of the cache's under them. Whoever reads or writes waits
//! for neither.
//!
//! Decision: docs/decisions/0013-live-miss-ratio-curves.md.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use ::cache::{Advisor, GROUPS, KEYS, Kind, Outlook};
use disk::nanos;
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
/// Caches are sampled from here on, and until they are smaller than this, in bytes: a budget that goes to and fro about one
/// size would begin anew all the time.
const SMALLEST: usize = 64 << 20;
const SMALLEST_KEPT: usize = 48 << 20;
/// Caches from here on have larger miniatures, in bytes.
const LARGE: usize = 2 << 30;
/// Between two looks at what it costs.
const WINDOW: Duration = Duration::from_secs(2);
/// One part in so many of a processor's time that it may take in one. The bar is a hundredth.
const SHARE: u128 = 125;
/// Names of datasets that are kept: of all that are told apart, and of as many that no longer are.
const NAMES: usize = 2 * GROUPS;

/// Pool and object set of a dataset.
type Dataset = (u64, u64);

#[derive(Clone, Copy, Debug)]
enum Note {
    Came { id: u64, units: u32, whose: Dataset, kind: Kind, is_eligible: bool },
    Hit { id: u64 },
    Merged { id: u64, times: u8 },
    Gone { id: u64 },
}

/// See the module.
pub(super) struct Feed {
    /// The name of the policy that runs.
    policy: &'static str,
    /// There is a model.
    is_on: AtomicBool,
    /// Nobody needs its memory for something else.
    is_wanted: AtomicBool,
    notes: Mutex<Vec<Note>>,
    /// A task is about to play them.
    is_due: AtomicBool,
    /// Units that data may take.
    capacity: AtomicU64,
    memory: AtomicUsize,
    model: Mutex<Option<Model>>,
}

struct Model {
    advisor: Advisor,
    /// The advisor's groups.
    groups: BTreeMap<Dataset, u32>,
    next_group: u32,
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
    /// Of a cache of so many bytes, whose data had so many hits and misses before.
    fn new(policy: &str, budget: usize, counted: [u64; 2]) -> Self {
        let now = Instant::now();
        Self {
            advisor: Advisor::new(policy, (budget / UNIT) as u64, FEED, blocks(budget), KEYS),
            groups: BTreeMap::new(),
            next_group: 0,
            counted,
            lately: [0.0; 2],
            halvings: 0,
            took: 0,
            since: now,
            looked: (0, now),
        }
    }

    /// The number of a dataset.
    fn group(&mut self, whose: Dataset) -> u32 {
        if let Some(group) = self.groups.get(&whose) {
            return *group;
        }
        if self.groups.len() >= NAMES {
            let advisor = &self.advisor;
            self.groups.retain(|_, group| advisor.knows(*group));
        }
        let group = self.next_group;
        self.next_group = self.next_group.wrapping_add(1);
        self.groups.insert(whose, group);
        group
    }

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
    /// Of all data that may be kept. Sizes are bytes.
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
        let feed = Arc::new(Self {
            policy,
            is_on: AtomicBool::new(false),
            is_wanted: AtomicBool::new(true),
            notes: Mutex::default(),
            is_due: AtomicBool::new(false),
            capacity: AtomicU64::new((budget / UNIT) as u64),
            memory: AtomicUsize::new(0),
            model: Mutex::new(None),
        });
        feed.fit(budget, [0; 2]);
        feed
    }

    /// The budget is another: there is a model if it is large enough for one. `counted`: as for
    /// [`play_soon`](Self::play_soon).
    pub(super) fn fit(&self, budget: usize, counted: [u64; 2]) {
        let mut model = self.model.lock();
        let enough = if model.is_some() { SMALLEST_KEPT } else { SMALLEST };
        let is_on = self.is_wanted.load(Relaxed) && budget >= enough;
        match &mut *model {
            Some(model) if is_on => model.advisor.aim_at(blocks(budget)),
            Some(_) => {
                self.is_on.store(false, Relaxed);
                *model = None;
                *self.notes.lock() = Vec::new();
            }
            None if is_on => {
                self.capacity.store((budget / UNIT) as u64, Relaxed);
                *model = Some(Model::new(self.policy, budget, counted));
                self.is_on.store(true, Relaxed);
            }
            None => {}
        }
        self.memory.store(model.as_ref().map_or(0, |model| model.advisor.bytes()), Relaxed);
    }

    /// Says whether it may have memory, which [`fit`](Self::fit) sees to; true if that is news.
    pub(super) fn want(&self, is_wanted: bool) -> bool {
        self.is_wanted.swap(is_wanted, Relaxed) != is_wanted
    }

    /// What these datasets did is of no interest any more.
    pub(super) fn forget(&self, is_gone: impl Fn(Dataset) -> bool) {
        self.notes.lock().retain(|note| !matches!(note, Note::Came { whose, .. } if is_gone(*whose)));
        let mut model = self.model.lock();
        let Some(Model { advisor, groups, .. }) = &mut *model else { return };
        groups.retain(|whose, group| {
            let goes = is_gone(*whose);
            if goes {
                advisor.forget_group(*group);
            }
            !goes
        });
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

    /// It was used so many times more, each at once behind another use.
    pub(super) fn merged(&self, id: u64, times: u8) -> bool {
        self.note(Note::Merged { id, times })
    }

    /// A block became worthless.
    pub(super) fn gone(&self, id: u64) -> bool {
        self.note(Note::Gone { id })
    }

    /// A block came in, of an object set of a pool; data may take so many units now. `is_eligible`: a cache device may have
    /// it, or might if there was one.
    pub(super) fn came(
        &self,
        id: u64,
        units: u32,
        whose: Dataset,
        kind: Kind,
        is_eligible: bool,
        capacity: u64,
    ) -> bool {
        if !self.is_on.load(Relaxed) {
            return false;
        }
        self.capacity.store(capacity, Relaxed);
        self.note(Note::Came { id, units, whose, kind, is_eligible })
    }

    fn note(&self, note: Note) -> bool {
        if !self.is_on.load(Relaxed) {
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
                Note::Came { id, units, whose, kind, is_eligible } => {
                    let group = model.group(whose);
                    model.advisor.came(id, units, group, kind, is_eligible);
                }
                Note::Hit { id } => model.advisor.hit(id),
                Note::Merged { id, times } => model.advisor.merged(id, u32::from(times)),
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
        model.took += nanos(begun.elapsed());
        model.economise();
    }

    /// What can be said now. `ghosts`: how often somebody waited for a block whose ghost was there.
    pub(super) fn advice(&self, counted: [u64; 2], ghosts: u64) -> Option<Advice> {
        self.play(counted);
        let model = self.model.lock();
        let model = model.as_ref()?;
        let advisor = &model.advisor;
        let [hits, misses] = model.lately;
        let missed = (hits + misses > 0.0).then(|| misses / (hits + misses));
        let mut pools: Vec<(u64, Vec<u32>)> = Vec::new();
        let mut found = Vec::new();
        for ((pool, objset), group) in &model.groups {
            match pools.last_mut().filter(|last| last.0 == *pool) {
                Some(known) => known.1.push(*group),
                None => pools.push((*pool, vec![*group])),
            }
            let outlook = advisor.outlook_of_groups(&[*group], missed);
            found.extend(outlook.map(|outlook| (*pool, *objset, in_bytes(outlook))));
        }
        let pools = pools
            .into_iter()
            .filter_map(|(pool, groups)| Some((pool, in_bytes(advisor.outlook_of_groups(&groups, missed)?))));
        let all: u64 = counted.iter().sum();
        Some(Advice {
            one_in: advisor.one_in(),
            memory: advisor.bytes() as u64,
            took_ns: (model.took, nanos(model.since.elapsed())),
            whole: in_bytes(advisor.outlook(missed)),
            pools: pools.collect(),
            datasets: found,
            ghosts: if all == 0 { 0.0 } else { (ghosts as f64 / all as f64).min(1.0) },
        })
    }
}

/// Blocks that the miniature of now holds at least, once it has as many.
const fn blocks(budget: usize) -> usize {
    if budget >= LARGE { 1024 } else { 512 }
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

    /// After 256 datasets had been seen nothing was known any more of those that came.
    #[test]
    fn a_dataset_that_comes_late_is_told_of_and_one_that_is_gone_is_not() {
        let feed = Feed::new(Replacement::Arc, 4 << 30);
        // A block each, so that all of them are looked at.
        let used = |whose: Dataset, times: u32| {
            for _ in 0..times {
                feed.came(whose.0 << 20 | whose.1, 16, whose, Kind::Miss, true, 1 << 26);
                feed.play([0, 0]);
            }
        };
        (0..2 * NAMES as u64).for_each(|objset| used((1, objset), 3));
        used((2, 7), 300);
        used((2, 8), 300);
        let known = || {
            let advice = feed.advice([0, 0], 0).unwrap();
            advice.datasets.iter().map(|(pool, objset, _)| (*pool, *objset)).collect::<Vec<_>>()
        };
        assert_eq!(known(), [(2, 7), (2, 8)]);
        assert!(feed.model.lock().as_ref().unwrap().groups.len() <= NAMES);
        feed.forget(|whose| whose == (2, 7));
        assert_eq!(known(), [(2, 8)]);
        feed.came(9, 16, (2, 9), Kind::Miss, true, 1 << 26);
        feed.forget(|(pool, _)| pool == 2);
        assert_eq!(known(), []);
        assert!(
            !feed.model.lock().as_ref().unwrap().groups.contains_key(&(2, 9)),
            "what was noted is forgotten"
        );
    }

    /// "hit ratio 75 %" of everything, and "0 %" of the one volume that there was: of four uses that follow each other at once
    /// the sample had the first.
    #[test]
    fn a_dataset_is_measured_as_everything_is() {
        let feed = Feed::new(Replacement::Arc, 4 << 30);
        for block in 1..=1000 {
            feed.came(block, 16, (1, 7), Kind::Miss, true, 1 << 26);
            for _ in 0..3 {
                feed.merged(block, 1);
            }
            feed.play([3 * block, block]);
        }
        let advice = feed.advice([3000, 1000], 0).unwrap();
        assert!((advice.whole.hit_ratio - 0.75).abs() < 0.01, "{:?}", advice.whole);
        for part in [&advice.pools[0].1, &advice.datasets[0].2] {
            assert!((part.hit_ratio - advice.whole.hit_ratio).abs() < 0.01, "{part:?}");
        }
    }

    /// A volume that hit nothing was told to hit 80 %, because a hot one beside it did: where the sample had too few hits of
    /// everything, all datasets were taken to have as many more.
    #[test]
    fn a_dataset_that_hits_nothing_is_told_no_hits_of_another() {
        for hot_is_sampled in [true, false] {
            let feed = Feed::new(Replacement::Arc, 4 << 30);
            let (hot, cold) = ((1, 7), (1, 8));
            let mut counted = [0, 0];
            for n in 1..=1000 {
                feed.came(n, 16, cold, Kind::Miss, true, 1 << 26);
                // Ten uses at once of one of ten blocks.
                let (block, is_new) = (2000 + n % 10, n <= 10);
                if hot_is_sampled {
                    match is_new {
                        true => feed.came(block, 16, hot, Kind::Miss, true, 1 << 26),
                        false => feed.hit(block),
                    };
                    feed.merged(block, 9);
                }
                counted = [counted[0] + 9 + u64::from(!is_new), counted[1] + 1 + u64::from(is_new)];
                feed.play(counted);
            }
            let advice = feed.advice(counted, 0).unwrap();
            let of =
                |objset: u64| advice.datasets.iter().find(|found| found.1 == objset).map(|found| &found.2);
            let (of_hot, of_cold) = (of(7), of(8).unwrap());
            assert!(of_cold.hit_ratio <= 0.01, "{of_cold:?}");
            if let Some(of_hot) = of_hot {
                assert!(of_hot.hit_ratio >= 0.99 && of_hot.error < 0.1 && of_cold.error < 0.1, "{advice:?}");
            } else {
                // Whose the hits are that the sample lacks is not known.
                assert!(!hot_is_sampled && of_cold.error > 0.9, "{advice:?}");
            }
        }
    }

    /// A fast pool made it take 4 % of a processor where a hundredth was promised.
    #[tokio::test(start_paused = true)]
    async fn a_sample_that_costs_too_much_becomes_thinner_as_far_as_it_can_be_judged_by() {
        let feed = Feed::new(Replacement::Default, 4 << 30);
        let mut model = feed.model.lock().take().unwrap();
        (0..1100).for_each(|id| model.advisor.came(id, 16, 0, Kind::Miss, true));
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
