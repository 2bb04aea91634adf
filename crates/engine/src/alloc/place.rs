//! Which place a block gets: rotor over devices, streams within a device, runs within a metaslab.
//!
//! A stream stays on one device for a stretch (so that neighbours in a volume are neighbours on disk), then moves
//! to the next; stretches are longer on devices that are emptier or faster. On a device it stays in one metaslab
//! and takes what follows its last allocation; when the run ends it looks for another long run, here or in
//! another metaslab, and only when there is none takes shorter ones.
//!
//! Facts: docs/format/spacemap.md §5, txg-and-throttle.md §3.

use std::{cmp::Reverse, ops::Range};

use ondisk::blkptr::Dva;
use pool::{dsl::PoolSpace, vdev::Class};
use smallvec::SmallVec;

use super::{Allocator, Purpose, metaslab::Odds, top::LANES};
use crate::EngineError;

/// Bytes a stream writes to one device with one data disk before it moves on. Long enough that a disk streams
/// (a seek of 8 ms costs as much as 1.6 MB), short enough that devices of one transaction group share its work.
const STRETCH: u64 = 1 << 20;
/// Runs a stream prefers, in bytes: first it looks for some this long, then for shorter ones.
const GOOD_RUNS: [u64; 2] = [1 << 20, 128 << 10];
/// Copies of a block on one device are apart by at least its size divided by this, if possible.
const APART: u64 = 8;
/// Space is scarce when less is free than one part in so many of the slop space, which is kept back whatever is freed,
const SLOP_SHARE: u64 = 4;
/// or than so many times a block: it may take that in the smallest pieces, with headers, copies and parity.
const IN_PIECES: u64 = 32;

/// Where the streams of one kind are among the devices of a class.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rotor {
    at: usize,
    /// Bytes left of the stretch.
    left: u64,
}

/// Devices of one class, as indices, and their rotors by kind of stream.
#[derive(Debug, Default)]
pub(super) struct Group {
    pub(super) tops: Vec<usize>,
    rotors: [Rotor; 3],
}

impl Purpose {
    /// Classes of devices to try, in order.
    fn classes(self) -> &'static [Class] {
        match self {
            Self::Data => &[Class::Normal],
            Self::Metadata => &[Class::Special, Class::Normal],
            Self::Log => &[Class::Log, Class::Normal],
        }
    }

    fn rotor(self) -> usize {
        match self {
            Self::Data => 0,
            Self::Metadata => 1,
            Self::Log => 2,
        }
    }

    pub(super) fn lane(self, copy: usize) -> usize {
        match self {
            Self::Data => copy.min(2),
            Self::Metadata => 3 + copy.min(2),
            Self::Log => LANES - 1,
        }
    }
}

/// Ranges of a device, in bytes, that a copy is not to lie in.
type Excluded = SmallVec<[Range<u64>; 2]>;

/// What happens to a place that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// It is in use.
    Now,
    /// It is set aside.
    Aside,
}

/// How far a search for a place goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effort {
    /// Until it costs others too much: whoever finds no place has another way.
    Moderate,
    /// As far as it takes.
    Utmost,
}

/// An allocation on one device.
#[derive(Clone, Copy)]
pub(super) struct Want<'a> {
    pub(super) top: usize,
    pub(super) lane: usize,
    pub(super) units: u64,
    pub(super) excluded: &'a [Range<u64>],
    pub(super) purpose: Use,
    pub(super) effort: Effort,
}

impl Allocator {
    /// As many copies as can be placed now.
    pub(super) async fn place_copies(
        &mut self,
        psize: u64,
        copies: usize,
        purpose: Purpose,
        effort: Effort,
        found: &mut SmallVec<[Dva; 3]>,
    ) -> Result<(), EngineError> {
        for class in purpose.classes() {
            while found.len() < copies {
                match self.place_one(psize, *class, purpose, effort, found).await? {
                    Some(dva) => found.push(dva),
                    None => break,
                }
            }
        }
        Ok(())
    }

    async fn place_one(
        &mut self,
        psize: u64,
        class: Class,
        purpose: Purpose,
        effort: Effort,
        found: &[Dva],
    ) -> Result<Option<Dva>, EngineError> {
        let group = &self.groups[class as usize];
        let (members, rotor) = (group.tops.len(), group.rotors[purpose.rotor()]);
        let lane = purpose.lane(found.len());
        // On a device that has no copy yet; far from the copies there; anywhere.
        let attempts = if found.is_empty() { 1 } else { 3 };
        for attempt in 0..attempts {
            for step in 0..members {
                let position = (rotor.at + found.len() + step) % members;
                let index = self.groups[class as usize].tops[position];
                let Some(top) = &self.tops[index] else { continue };
                let apart = top.capacity() / APART;
                let here = || found.iter().filter(|dva| u64::from(dva.vdev) == top.id);
                if (attempt == 0) != (here().next().is_none()) {
                    continue;
                }
                let near = |dva: &Dva| dva.offset.saturating_sub(apart)..dva.offset + dva.asize + apart;
                let excluded: Excluded = here().filter(|_| attempt == 1).map(near).collect();
                let (ashift, shift, vdev, asize) = (top.ashift, top.shift, top.id as u32, top.asize(psize));
                let (units, excluded) = (asize >> ashift, &excluded[..]);
                let want = Want { top: index, lane, units, excluded, purpose: Use::Now, effort };
                let Some((metaslab, unit)) = self.place_on(want).await? else { continue };
                if found.is_empty() {
                    self.turn(class, purpose.rotor(), position, asize);
                }
                let offset = ((metaslab as u64) << shift) + (unit << ashift);
                return Ok(Some(Dva { vdev, offset, asize, gang: false }));
            }
        }
        Ok(None)
    }

    /// Counts an allocation on a device against the stretch there.
    fn turn(&mut self, class: Class, rotor: usize, position: usize, asize: u64) {
        let current = self.groups[class as usize].rotors[rotor];
        let left = if current.at == position && current.left > 0 {
            current.left
        } else {
            self.stretch(class, position)
        };
        let group = &mut self.groups[class as usize];
        group.rotors[rotor] = if left > asize {
            Rotor { at: position, left: left - asize }
        } else {
            Rotor { at: (position + 1) % group.tops.len(), left: 0 }
        };
    }

    /// Bytes until a stream leaves a device: more where more is free than on average, so that devices fill
    /// evenly.
    fn stretch(&self, class: Class, position: usize) -> u64 {
        let group = &self.groups[class as usize];
        let (mut free, mut capacity) = (0u128, 0u128);
        for top in group.tops.iter().filter_map(|index| self.tops[*index].as_ref()) {
            free += u128::from(top.free());
            capacity += u128::from(top.capacity());
        }
        let Some(top) = &self.tops[group.tops[position]] else { return STRETCH };
        let own = u128::from(top.free()) * capacity * 1000;
        let bias = own.checked_div(u128::from(top.capacity()) * free).unwrap_or(1000).clamp(50, 8000) as u64;
        STRETCH * top.breadth * bias / 1000
    }

    /// A place on one device: metaslab and first unit, taken.
    pub(super) async fn place_on(&mut self, want: Want<'_>) -> Result<Option<(usize, u64)>, EngineError> {
        let Some(top) = &self.tops[want.top] else { return Ok(None) };
        let (ashift, len) = (top.ashift, 1u64 << (top.shift - top.ashift));
        if want.units > len || want.units == 0 || top.free() < want.units << ashift {
            return Ok(None);
        }
        let lane = top.lanes[want.lane];
        let percent_free = top.free() / (top.capacity() / 100).max(1);
        if let Some(metaslab) = lane.metaslab
            && let Some(unit) = self.take_next(want, metaslab, lane.cursor)?
        {
            return Ok(Some((metaslab, unit)));
        }
        // The fuller the device, the less long runs are spent on small blocks: large blocks will need them.
        let good = match percent_free {
            ..10 => &[][..],
            10..25 => &GOOD_RUNS[1..],
            _ => &GOOD_RUNS[..],
        };
        let mut last = 0;
        for run in good.iter().map(|bytes| (bytes >> ashift).min(len)).chain([want.units]) {
            let run = run.max(want.units);
            if run == last {
                continue;
            }
            last = run;
            if let Some(metaslab) = lane.metaslab
                && let Some(unit) = self.take_run(want, metaslab, lane.cursor, run)?
            {
                return Ok(Some((metaslab, unit)));
            }
            for (metaslab, odds) in self.candidates(want, run) {
                let was_loaded = self.is_loaded(want.top, metaslab);
                if !was_loaded && !self.is_worth_loading(want, odds) {
                    continue;
                }
                self.load(want.top, metaslab).await?;
                let cursor = self.first_cursor(want, metaslab);
                if let Some(unit) = self.take_run(want, metaslab, cursor, run)? {
                    return Ok(Some((metaslab, unit)));
                }
                if !was_loaded {
                    self.loaded_in_vain(want.top, metaslab, run, odds);
                }
            }
        }
        Ok(None)
    }

    fn is_loaded(&self, top: usize, metaslab: usize) -> bool {
        self.tops[top].as_ref().is_some_and(|top| top.metaslabs[metaslab].loaded.is_some())
    }

    /// Whether to load a metaslab that has such odds of giving what is wanted. Those with good odds are not left out for what
    /// others cost, nor those of one device for another's.
    fn is_worth_loading(&self, want: Want<'_>, odds: Odds) -> bool {
        let Some(top) = &self.tops[want.top] else { return false };
        let looks = if odds == Odds::Good { top.looks } else { top.long_shots };
        want.effort == Effort::Utmost || looks > 0
    }

    /// Metaslabs that may have a run of `run` units, best first: those with the best odds, those no other stream is in, those
    /// with most room, those at the front of the device.
    fn candidates(&self, want: Want<'_>, run: u64) -> Vec<(usize, Odds)> {
        let Some(top) = &self.tops[want.top] else { return Vec::new() };
        let own = top.lanes[want.lane].metaslab;
        let shared = |index: usize| top.lanes.iter().any(|lane| lane.metaslab == Some(index));
        let rank = |index: usize| {
            let metaslab = &top.metaslabs[index];
            let odds = metaslab.odds(run)?;
            // Histograms are hints: what they do not promise is looked for when nothing else is left.
            let is_due = odds < Odds::Poor || run == want.units;
            let is_at_hand = || metaslab.loaded.is_some() || self.is_worth_loading(want, odds);
            let has_window = || self.windows(want, index).iter().any(|w| w.end - w.start >= run);
            // Those that had nothing lately come after all others, or nobody would ever look into these.
            let vain = if odds == Odds::Good { 0 } else { metaslab.vain };
            (is_due && Some(index) != own && is_at_hand() && has_window())
                .then(|| (odds, shared(index), vain, Reverse(metaslab.free_units()), index))
        };
        let mut found: Vec<_> = (0..top.metaslabs.len()).filter_map(rank).collect();
        found.sort_unstable();
        found.into_iter().map(|(odds, .., index)| (index, odds)).collect()
    }

    /// Whether so little is free that what a block of `psize` stored bytes takes more in pieces could be missed, or it may
    /// have no room in pieces either.
    pub(super) fn is_scarce(&self, psize: u64, purpose: Purpose) -> bool {
        let members = purpose.classes().iter().flat_map(|class| &self.groups[*class as usize].tops);
        let (mut free, mut capacity) = (0, 0);
        for top in members.filter_map(|index| self.tops[*index].as_ref()) {
            free += top.free();
            capacity += top.capacity();
        }
        let slop = PoolSpace { devices: capacity, ..PoolSpace::default() }.slop();
        free < (slop / SLOP_SHARE).max(psize.saturating_mul(IN_PIECES))
    }

    /// Where a stream begins in a metaslab: at its start, or at a distance from the streams already there.
    fn first_cursor(&self, want: Want<'_>, metaslab: usize) -> u64 {
        let Some(top) = &self.tops[want.top] else { return 0 };
        let shared = top.lanes.iter().any(|lane| lane.metaslab == Some(metaslab));
        if shared { top.metaslabs[metaslab].len / LANES as u64 * want.lane as u64 } else { 0 }
    }

    /// Takes the units at the cursor.
    fn take_next(
        &mut self,
        want: Want<'_>,
        metaslab: usize,
        cursor: u64,
    ) -> Result<Option<u64>, EngineError> {
        let range = cursor..cursor + want.units;
        let is_free = self.tops[want.top]
            .as_ref()
            .and_then(|top| top.metaslabs[metaslab].loaded.as_ref())
            .is_some_and(|loaded| loaded.free.contains(range.clone()));
        let allowed = want.excluded.is_empty()
            || self.windows(want, metaslab).iter().any(|w| w.start <= range.start && range.end <= w.end);
        if !is_free || !allowed {
            return Ok(None);
        }
        self.take(want, metaslab, range)?;
        Ok(Some(cursor))
    }

    /// Takes the start of the next run of at least `run` units, in cursor order.
    fn take_run(
        &mut self,
        want: Want<'_>,
        metaslab: usize,
        cursor: u64,
        run: u64,
    ) -> Result<Option<u64>, EngineError> {
        let windows = self.windows(want, metaslab);
        let Some(loaded) =
            self.tops[want.top].as_mut().and_then(|top| top.metaslabs[metaslab].loaded.as_mut())
        else {
            return Ok(None);
        };
        if loaded.free.longest() < run {
            return Ok(None);
        }
        let behind = windows.iter().map(|window| window.start.max(cursor)..window.end);
        let mut all = behind.filter(|_| cursor > 0).chain(windows.iter().cloned());
        let Some(unit) = all.find_map(|window| loaded.free.find(window, run)) else { return Ok(None) };
        self.take(want, metaslab, unit..unit + want.units)?;
        Ok(Some(unit))
    }

    /// The parts of a metaslab, in units, that lie in no excluded range.
    fn windows(&self, want: Want<'_>, metaslab: usize) -> SmallVec<[Range<u64>; 3]> {
        let mut windows = SmallVec::new();
        let Some(top) = &self.tops[want.top] else { return windows };
        windows.push(0..top.metaslabs[metaslab].len);
        let base = (metaslab as u64) << top.shift;
        for range in want.excluded {
            let cut = (range.start.saturating_sub(base) >> top.ashift)
                ..(range.end.saturating_sub(base).div_ceil(1 << top.ashift));
            windows = windows
                .into_iter()
                .flat_map(|w| [w.start..w.end.min(cut.start), w.start.max(cut.end)..w.end])
                .filter(|window| window.start < window.end)
                .collect();
        }
        windows
    }

    /// Undoes the placing of a copy that nobody was told of: it is free as before.
    pub(super) fn put_back(&mut self, dva: Dva) -> Result<(), EngineError> {
        let Some(top) = self.tops.get_mut(dva.vdev as usize).and_then(Option::as_mut) else { return Ok(()) };
        let Some((index, units)) = top.locate(dva.offset, dva.asize) else { return Ok(()) };
        if top.metaslabs[index].put_back(units).is_err() {
            let (vdev, detail) = (top.id, format!("cannot put back {dva:?}: it was not taken"));
            return Err(self.fail(EngineError::SpaceMap { vdev, metaslab: index as u64, detail }));
        }
        top.used -= dva.asize;
        Ok(())
    }

    fn take(&mut self, want: Want<'_>, metaslab: usize, range: Range<u64>) -> Result<(), EngineError> {
        let Some(top) = &mut self.tops[want.top] else { return Ok(()) };
        let taken = &mut top.metaslabs[metaslab];
        let units = range.end - range.start;
        let end = range.end;
        let outcome = match want.purpose {
            Use::Now => taken.take(range.clone()),
            Use::Aside => taken.set_aside(range.clone()),
        };
        if outcome.is_err() {
            let detail = format!("units {range:?} are both free and in use");
            return Err(EngineError::SpaceMap { vdev: top.id, metaslab: metaslab as u64, detail });
        }
        taken.last_use = self.txg;
        top.lanes[want.lane] = super::top::Lane { metaslab: Some(metaslab), cursor: end };
        if want.purpose == Use::Aside {
            top.aside += units << top.ashift;
            return Ok(());
        }
        top.used += units << top.ashift;
        if !std::mem::replace(&mut taken.listed, true) {
            self.changed.push((want.top, metaslab));
        }
        Ok(())
    }
}
