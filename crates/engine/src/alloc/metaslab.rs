//! One metaslab: what is known of it always (its map's header), what only when loaded (which units are in use,
//! which can be handed out), and what has changed and is not in its space map yet.
//!
//! ```text
//!   the map as of the committed MOS ▸ flushed ▸ since ▸ taken, given      = in use now
//!                                     not in use − waiting − given − aside = can be handed out
//! ```
//!
//! Facts: docs/format/spacemap.md §2–§4, §6.

use std::{collections::VecDeque, ops::Range};

use ondisk::spacemap::{Header, Kind};

use super::{
    ranges::{self, Change, Ranges},
    units::{Clash, Units},
};

/// Buckets of a histogram.
pub(super) const BUCKETS: usize = 32;

/// Segments of a histogram that are too few to ask whether so many have come since it was last known.
const FEW: u64 = 64;

/// Commits a freed range waits: its own, and two that keep older uberblocks usable.
pub(super) const DEFER: u64 = 3;

/// How likely a metaslab has a run of some length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Odds {
    /// It has one, unless its histogram is out of date.
    Good,
    /// Its longest run may be long enough.
    Even,
    /// Only if it has grown together from several that the histogram counts.
    Poor,
}

/// The part of a metaslab that is made by replaying its map.
#[derive(Debug)]
pub(super) struct Loaded {
    /// Allocated.
    pub(super) used: Units,
    /// Can be handed out: not allocated and not waiting.
    pub(super) free: Units,
}

/// A metaslab. All ranges count units from its start.
#[derive(Debug)]
pub(super) struct Metaslab {
    /// Units it has.
    pub(super) len: u64,
    /// Its space map object, 0 if it never had one.
    pub(super) object: u64,
    /// Bytes of a block of that object.
    pub(super) block_bytes: u64,
    /// What the header says, or will say once the MOS is written.
    pub(super) header: Header,
    /// The committed MOS does not have the object: the map as of there is empty.
    pub(super) fresh: bool,
    /// Its unflushed transaction group, see docs/format/spacemap.md §6.
    pub(super) unflushed: u64,
    pub(super) loaded: Option<Loaded>,
    /// No run of units that can be handed out is longer: known of what was loaded, until there are more of them.
    learnt: Option<u64>,
    /// In its own map, but not as of the committed MOS.
    pub(super) flushed: Vec<Change>,
    /// In logs only; what cancels out of many is left out.
    pub(super) since: Vec<Change>,
    /// Allocated since maps were last written, in the order it happened.
    pub(super) taken: Ranges,
    /// Released since then.
    pub(super) given: Ranges,
    /// Released, and not to be handed out yet: commits there had been, and the sorted ranges.
    pub(super) waiting: VecDeque<(u64, Ranges)>,
    /// Units in `waiting` and `given`.
    pub(super) waiting_units: u64,
    /// Set aside for the intent log, in memory only: sorted, neither in use nor to be handed out.
    pub(super) aside: Ranges,
    /// Units in `aside`.
    pub(super) aside_units: u64,
    /// Units in use now.
    pub(super) used: u64,
    /// It is listed as changed.
    pub(super) listed: bool,
    /// Transaction group it was last used in.
    pub(super) last_use: u64,
    /// Transaction group it was last loaded in vain in.
    pub(super) vain: u64,
    /// Map length from which on condensing is worth a look.
    pub(super) look_at: u64,
    /// Segments its histogram had when it was last counted, or read.
    known_segments: u64,
}

impl Metaslab {
    /// One that nothing was ever allocated from.
    pub(super) fn new(len: u64) -> Self {
        Self {
            len,
            object: 0,
            block_bytes: 0,
            header: Header { object: 0, length: 0, alloc: 0, histogram: None },
            fresh: true,
            unflushed: 0,
            loaded: None,
            learnt: None,
            flushed: Vec::new(),
            since: Vec::new(),
            taken: Vec::new(),
            given: Vec::new(),
            waiting: VecDeque::new(),
            waiting_units: 0,
            aside: Vec::new(),
            aside_units: 0,
            used: 0,
            listed: false,
            last_use: 0,
            vain: 0,
            look_at: 0,
            known_segments: 0,
        }
    }

    /// Takes up the header of the map it has.
    pub(super) fn set_header(&mut self, header: Header) {
        self.header = header;
        self.known_segments = self.segments();
    }

    /// Units that can be handed out.
    pub(super) fn free_units(&self) -> u64 {
        self.len.saturating_sub(self.used).saturating_sub(self.waiting_units).saturating_sub(self.aside_units)
    }

    /// The longest run that may be found in it: known if it is loaded or was, else what the histogram lets hope for.
    pub(super) fn promise(&self) -> u64 {
        let free = self.free_units();
        match (&self.loaded, self.learnt, &self.header.histogram) {
            (Some(loaded), ..) => loaded.free.longest(),
            (None, Some(longest), _) => free.min(longest),
            (None, None, Some(histogram)) if !self.fresh => {
                let largest = histogram.iter().rposition(|count| *count > 0);
                largest.map_or(free, |bucket| free.min((2 << bucket) - 1))
            }
            (None, None, _) => free,
        }
    }

    /// How likely it has a run of `run` units; none if it is known to have none.
    pub(super) fn odds(&self, run: u64) -> Option<Odds> {
        if self.free_units() < run {
            return None;
        }
        let promise = self.promise();
        let is_known = self.loaded.is_some() || self.learnt.is_some();
        // What a bucket of a histogram counts differs by less than a factor of two.
        if promise.div_ceil(2) >= run || is_known && promise >= run {
            Some(Odds::Good)
        } else if is_known {
            None
        } else if promise >= run {
            Some(Odds::Even)
        } else {
            Some(Odds::Poor)
        }
    }

    /// Its bits can go: what changed since maps were last written is replayed too, and only what is set aside needs them.
    pub(super) fn can_unload(&self) -> bool {
        self.aside.is_empty()
    }

    /// Bytes of memory that being loaded takes.
    pub(super) fn bytes(&self) -> u64 {
        self.loaded.as_ref().map_or(0, |loaded| loaded.used.bytes() + loaded.free.bytes())
    }

    /// Forgets its bits, and remembers how long a run may be at most.
    pub(super) fn unload(&mut self) {
        if let Some(loaded) = self.loaded.take() {
            self.learnt = Some(loaded.free.longest());
        }
    }

    /// Builds the loaded state on what the committed map says.
    pub(super) fn load(&mut self, committed: Units) -> Result<(), &'static str> {
        let mut used = committed;
        for change in self.flushed.iter().chain(&self.since) {
            apply(&mut used, change).map_err(|Clash| "changes that do not follow from its space map")?;
        }
        for range in &self.taken {
            used.insert(range.clone()).map_err(|Clash| "an allocation of space in use")?;
        }
        for range in &self.given {
            used.remove(range.clone()).map_err(|Clash| "a free of space not in use")?;
        }
        if used.count() != self.used {
            return Err("the sum in the header of its space map is not that of its entries");
        }
        let mut free = Units::searched(self.len);
        for run in used.runs(false) {
            free.insert(run).map_err(|Clash| "runs that overlap")?;
        }
        for range in self.waiting.iter().flat_map(|(_, ranges)| ranges).chain(&self.given) {
            free.remove(range.clone()).map_err(|Clash| "a free of space already free")?;
        }
        for range in &self.aside {
            free.remove(range.clone()).map_err(|Clash| "space set aside that is not free")?;
        }
        self.loaded = Some(Loaded { used, free });
        self.learnt = None;
        Ok(())
    }

    /// Hands out `range`, which must be free. The metaslab must be loaded.
    pub(super) fn take(&mut self, range: Range<u64>) -> Result<(), Clash> {
        let loaded = self.loaded.as_mut().ok_or(Clash)?;
        loaded.free.remove(range.clone())?;
        loaded.used.insert(range.clone())?;
        self.used += range.end - range.start;
        ranges::push(&mut self.taken, range);
        Ok(())
    }

    /// Undoes [`take`](Self::take), as if it had never been: since then maps were not written. The metaslab must be loaded.
    pub(super) fn put_back(&mut self, range: Range<u64>) -> Result<(), Clash> {
        let loaded = self.loaded.as_mut().ok_or(Clash)?;
        let holds = |taken: &Range<u64>| taken.start <= range.start && range.end <= taken.end;
        let at = self.taken.iter().rposition(holds).ok_or(Clash)?;
        let parts = [self.taken[at].start..range.start, range.end..self.taken[at].end];
        self.taken.splice(at..=at, parts.into_iter().filter(|part| part.start < part.end));
        loaded.used.remove(range.clone())?;
        self.used -= range.end - range.start;
        loaded.free.insert(range)
    }

    /// Sets `range` aside, which must be free. The metaslab must be loaded, and stays so.
    pub(super) fn set_aside(&mut self, range: Range<u64>) -> Result<(), Clash> {
        let loaded = self.loaded.as_mut().ok_or(Clash)?;
        loaded.free.remove(range.clone())?;
        self.aside_units += range.end - range.start;
        if ranges::insert(&mut self.aside, range) { Ok(()) } else { Err(Clash) }
    }

    /// What was set aside is in use.
    pub(super) fn adopt(&mut self, range: Range<u64>) -> Result<(), Clash> {
        self.leave_aside(range.clone())?;
        self.loaded.as_mut().ok_or(Clash)?.used.insert(range.clone())?;
        self.used += range.end - range.start;
        ranges::push(&mut self.taken, range);
        Ok(())
    }

    /// What was set aside is free.
    pub(super) fn unreserve(&mut self, range: Range<u64>) -> Result<(), Clash> {
        self.leave_aside(range.clone())?;
        self.loaded.as_mut().ok_or(Clash)?.free.insert(range)
    }

    fn leave_aside(&mut self, range: Range<u64>) -> Result<(), Clash> {
        if !ranges::remove(&mut self.aside, range.clone()) {
            return Err(Clash);
        }
        self.aside_units -= range.end - range.start;
        Ok(())
    }

    /// Takes `range` back.
    pub(super) fn give(&mut self, range: Range<u64>) -> Result<(), Clash> {
        let units = range.end - range.start;
        if range.end > self.len || self.used < units {
            return Err(Clash);
        }
        if let Some(loaded) = &mut self.loaded {
            loaded.used.remove(range.clone())?;
        }
        self.used -= units;
        self.waiting_units += units;
        ranges::push(&mut self.given, range);
        Ok(())
    }

    /// What changed since the last call, for the map: allocations, frees, each sorted and disjoint from the
    /// other. What was both allocated and freed is in neither. The frees begin to wait.
    pub(super) fn changes(&mut self, commits: u64) -> Result<(Ranges, Ranges), Clash> {
        let (mut taken, mut given) = (std::mem::take(&mut self.taken), std::mem::take(&mut self.given));
        // Nothing is handed out twice before it was committed, so each range is at most once in each list.
        let disjoint = ranges::normalise(&mut taken) & ranges::normalise(&mut given);
        if !disjoint {
            return Err(Clash);
        }
        let allocs = ranges::subtract(&taken, &given);
        let frees = ranges::subtract(&given, &taken);
        match self.waiting.back_mut() {
            _ if given.is_empty() => {}
            Some((since, ranges)) if *since == commits => {
                ranges.append(&mut given);
                if !ranges::normalise(ranges) {
                    return Err(Clash);
                }
            }
            _ => self.waiting.push_back((commits, given)),
        }
        Ok((allocs, frees))
    }

    /// Ranges that were released when there had been fewer than `before` commits can be handed out from now on.
    /// Returns their units.
    pub(super) fn mature(&mut self, before: u64) -> Result<u64, Clash> {
        let mut units = 0;
        while self.waiting.front().is_some_and(|(since, _)| *since < before) {
            let Some((_, ranges)) = self.waiting.pop_front() else { break };
            units += ranges::total(&ranges);
            if let Some(loaded) = &mut self.loaded {
                ranges.into_iter().try_for_each(|range| loaded.free.insert(range))?;
            }
        }
        if units > 0 {
            self.learnt = None;
        }
        self.waiting_units -= units;
        Ok(units)
    }

    /// Keeps the histogram near the truth without counting, when changes were flushed, the first of them that of this number:
    /// frees are segments of their own, allocations come out of the smallest segment that has room.
    pub(super) fn guess_histogram(&mut self, first: usize) {
        let Some(histogram) = &mut self.header.histogram else { return };
        let flushed = &self.flushed[first..];
        let of = |kind: Kind| {
            let its = flushed.iter().filter(move |change| change.kind == kind);
            its.map(|change| change.units.end - change.units.start)
        };
        for units in of(Kind::Free) {
            count(histogram, units);
        }
        for units in of(Kind::Alloc) {
            let from = bucket(units);
            if let Some(found) = (from..BUCKETS).find(|at| histogram[*at] > 0) {
                histogram[found] -= 1;
                let rest = (1u64 << found).saturating_sub(units);
                if rest > 0 {
                    count(histogram, rest);
                }
            }
        }
    }

    /// Counts the histogram anew; the metaslab must be loaded.
    pub(super) fn count_histogram(&mut self) {
        if let (Some(histogram), Some(loaded)) = (&mut self.header.histogram, &self.loaded) {
            *histogram = [0; BUCKETS];
            for run in loaded.used.runs(false) {
                count(histogram, run.end - run.start);
            }
            self.known_segments = self.segments();
        }
    }

    /// Free segments by its histogram.
    fn segments(&self) -> u64 {
        let counts = self.header.histogram.iter().flatten();
        counts.fold(0, |sum: u64, count| sum.saturating_add(*count))
    }

    /// Whether its histogram, which grows with each range that is freed, has to be counted: between two free segments is at
    /// least a unit in use, and so many new ones are likely to have grown together.
    pub(super) fn is_doubtful(&self) -> bool {
        let segments = self.segments();
        segments > self.used + 1 || segments / 2 > self.known_segments.max(FEW)
    }
}

/// Changes a set of units in use.
pub(super) fn apply(used: &mut Units, change: &Change) -> Result<(), Clash> {
    match change.kind {
        Kind::Alloc => used.insert(change.units.clone()),
        Kind::Free => used.remove(change.units.clone()),
    }
}

fn bucket(units: u64) -> usize {
    (units.max(1).ilog2() as usize).min(BUCKETS - 1)
}

/// A segment longer than the last bucket's counts as as many of those as it makes.
fn count(histogram: &mut [u64; BUCKETS], units: u64) {
    let bucket = bucket(units);
    histogram[bucket] += 1 << units.max(1).ilog2().saturating_sub(BUCKETS as u32 - 1);
}
