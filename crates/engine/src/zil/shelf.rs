//! What is set aside for log blocks of one supply, and how much of it there should be.
//!
//! Every commit of a log takes a place from here, so that has to be quick whatever lies around: runs that hold any log block
//! stand in line, and what is left of others is found by its length.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use ondisk::blkptr::Dva;

use crate::alloc::Footprint;

/// Stored bytes of the longest block of a log.
pub(crate) const BLOCK_MAX: u64 = 128 << 10;
/// Bytes on a shelf at first, and at least, where the pool has room.
const TARGET_MIN: u64 = 4 << 20;
/// Bytes on a shelf at most.
const TARGET_MAX: u64 = 256 << 20;
/// Commits of little demand after which a shelf is made smaller.
const PATIENCE: u32 = 16;

/// Free space next to each other, set aside.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) vdev: u32,
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) len: u64,
    pub(crate) footprint: Arc<Footprint>,
}

impl Run {
    /// Whether a block of `psize` stored bytes fits in.
    pub(crate) fn holds(&self, psize: u64) -> bool {
        self.footprint.asize(psize) <= self.len
    }
}

/// Bytes of a run that holds any log block; else 0.
fn good_bytes(run: &Run) -> u64 {
    if run.holds(BLOCK_MAX) { run.len } else { 0 }
}

/// Runs of a device, which all have the same footprint.
#[derive(Debug, Default)]
struct Runs {
    /// Those that hold any log block, in the order in which they are used.
    long: VecDeque<Run>,
    /// What is left of others, by length. There may be thousands that are too short for the blocks of the day.
    rests: BTreeMap<(u64, u64), Run>,
}

impl Runs {
    fn put(&mut self, run: Run) {
        match run.holds(BLOCK_MAX) {
            true => self.long.push_back(run),
            false => drop(self.rests.insert((run.len, run.offset), run)),
        }
    }

    /// The same of what was taken just now: to be used next.
    fn put_first(&mut self, run: Run) {
        match run.holds(BLOCK_MAX) {
            true => self.long.push_front(run),
            false => self.put(run),
        }
    }

    /// A run in which a block of `psize` stored bytes fits: the shortest rest, or else the next long one.
    fn take(&mut self, psize: u64) -> Option<Run> {
        let least = self.rests.values().next().map(|run| run.footprint.asize(psize));
        let fits = least.and_then(|least| self.rests.range((least, 0)..).next()).map(|(key, _)| *key);
        match fits {
            Some(key) => self.rests.remove(&key),
            None => self.long.front().is_some_and(|run| run.holds(psize)).then(|| self.long.pop_front())?,
        }
    }

    /// Bytes of the shortest; more than any has if there is none.
    fn shortest(&self) -> u64 {
        let rest = self.rests.keys().next().map(|(len, _)| *len);
        rest.or_else(|| self.long.iter().map(|run| run.len).min()).unwrap_or(u64::MAX)
    }

    fn take_shortest(&mut self) -> Option<Run> {
        if let Some((_, run)) = self.rests.pop_first() {
            return Some(run);
        }
        let shortest = self.long.iter().enumerate().rev().min_by_key(|(_, run)| run.len)?.0;
        self.long.remove(shortest)
    }

    fn all(self) -> impl Iterator<Item = Run> {
        self.rests.into_values().chain(self.long)
    }
}

/// The runs of one supply.
#[derive(Debug)]
pub(super) struct Shelf {
    /// By device; blocks are taken from each in turn.
    devices: Vec<(u32, Runs)>,
    next: usize,
    pub(super) target: u64,
    pub(super) held: u64,
    /// Bytes in runs that hold any log block.
    pub(super) good: u64,
    /// If there is less of that, more is asked for: half of what there was after the last restocking.
    pub(super) mark: u64,
    pub(super) need: u64,
    /// Blocks of so many stored bytes or more cannot be had until the next commit.
    pub(super) refused: Option<u64>,
    /// Bytes taken since the last commit, and since the last transaction group was closed.
    taken: u64,
    pub(super) of_open_group: u64,
    /// Somebody had to wait since the last restocking.
    pub(super) ran_dry: bool,
    quiet_commits: u32,
    pub(super) restocked: usize,
}

impl Default for Shelf {
    fn default() -> Self {
        Self {
            devices: Vec::new(),
            next: 0,
            target: TARGET_MIN,
            held: 0,
            good: 0,
            mark: 0,
            need: 0,
            refused: None,
            taken: 0,
            of_open_group: 0,
            ran_dry: false,
            quiet_commits: 0,
            restocked: 0,
        }
    }
}

impl Shelf {
    pub(super) fn put(&mut self, run: Run) {
        self.held += run.len;
        self.good += good_bytes(&run);
        match self.devices.iter_mut().find(|(vdev, _)| *vdev == run.vdev) {
            Some((_, runs)) => runs.put(run),
            None => {
                let vdev = run.vdev;
                let mut runs = Runs::default();
                runs.put(run);
                self.devices.push((vdev, runs));
            }
        }
    }

    /// Cuts a place off the next device that has one.
    pub(super) fn cut(&mut self, psize: u64) -> Option<Dva> {
        for step in 0..self.devices.len() {
            let position = (self.next + step) % self.devices.len();
            let (vdev, runs) = &mut self.devices[position];
            let Some(mut run) = runs.take(psize) else { continue };
            let asize = run.footprint.asize(psize);
            let dva = Dva { vdev: *vdev, offset: run.offset, asize, gang: false };
            self.good -= good_bytes(&run);
            run.offset += asize;
            run.len -= asize;
            self.good += good_bytes(&run);
            if run.len > 0 {
                runs.put_first(run);
            }
            self.held -= asize;
            self.taken += asize;
            self.of_open_group += asize;
            self.next = position + 1;
            return Some(dva);
        }
        None
    }

    /// Somebody had to wait since the last restocking: more should lie here.
    pub(super) fn heed_drought(&mut self) {
        if std::mem::take(&mut self.ran_dry) && self.restocked > 0 {
            self.target = (self.target * 2).min(TARGET_MAX);
        }
    }

    /// Runs that are more than is wanted: the shortest and last first.
    pub(super) fn surplus(&mut self, out: &mut Vec<Run>) {
        let limit = self.target + self.target / 2;
        while self.held > limit {
            let shortest = |(_, runs): &&mut (u32, Runs)| runs.shortest();
            let Some((_, runs)) = self.devices.iter_mut().min_by_key(shortest) else { return };
            let Some(run) = runs.take_shortest() else { return };
            self.held -= run.len;
            self.good -= good_bytes(&run);
            out.push(run);
        }
    }

    pub(super) fn clear(&mut self, out: &mut Vec<Run>) {
        out.extend(self.devices.drain(..).flat_map(|(_, runs)| runs.all()));
        (self.held, self.good) = (0, 0);
    }

    pub(super) fn forget(&mut self, vdev: u32, out: &mut Vec<Run>) {
        let Some(position) = self.devices.iter().position(|(device, _)| *device == vdev) else { return };
        let (_, runs) = self.devices.remove(position);
        for run in runs.all() {
            self.held -= run.len;
            self.good -= good_bytes(&run);
            out.push(run);
        }
    }

    /// A transaction group is over. True if more should be set aside.
    pub(super) fn committed(&mut self) -> bool {
        if self.taken > self.target / 2 {
            self.target = (self.target * 2).min(TARGET_MAX);
        }
        self.quiet_commits = if self.taken < self.target / 8 { self.quiet_commits + 1 } else { 0 };
        if self.quiet_commits >= PATIENCE {
            self.quiet_commits = 0;
            self.target = (self.target / 2).max(TARGET_MIN);
        }
        let wanted = self.taken > 0 || self.refused.is_some();
        self.taken = 0;
        self.refused = None;
        wanted
    }

    pub(super) fn refuses(&self, psize: u64) -> bool {
        self.refused.is_some_and(|refused| psize >= refused)
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

    use super::*;

    fn run(vdev: u32, offset: u64, len: u64) -> Run {
        Run { vdev, offset, len, footprint: Arc::new(Footprint { ashift: 12, shapes: Vec::new() }) }
    }

    /// Commits of 12 KiB leave 8 KiB of each run: all of them were looked at for each place.
    #[test]
    fn what_is_left_of_runs_is_used_for_what_fits_and_is_in_nobodys_way() {
        let mut shelf = Shelf::default();
        for number in 0..8 {
            shelf.put(run(7, number << 20, 128 << 10));
        }
        let mut places = Vec::new();
        while let Some(place) = shelf.cut(12 << 10) {
            places.push(place.offset);
        }
        assert_eq!(places.len(), 8 * 10);
        assert!(places.is_sorted(), "a run is used up before the next one");
        assert_eq!((shelf.held, shelf.good), (8 * (8 << 10), 0));
        shelf.put(run(7, 9 << 20, 256 << 10));
        assert_eq!(shelf.cut(12 << 10).unwrap().offset, 9 << 20);
        assert_eq!(shelf.cut(4 << 10).unwrap().offset, 120 << 10, "the shortest that fits");
        assert_eq!(shelf.cut(4 << 10).unwrap().offset, 124 << 10);
        let mut surplus = Vec::new();
        shelf.target = 164 << 10;
        shelf.surplus(&mut surplus);
        assert_eq!(surplus.len(), 7, "what is short goes first");
        assert_eq!(shelf.held, 244 << 10);
    }

    #[test]
    fn what_is_counted_lies_there_and_no_place_is_given_twice() {
        let mut random = StdRng::seed_from_u64(9);
        let mut shelf = Shelf::default();
        let (mut taken, mut surplus) = (BTreeMap::new(), Vec::new());
        let mut next = 0;
        for step in 0..20_000 {
            let vdev = random.random_range(0..3);
            match random.random_range(0..40) {
                0 => {
                    let len = random.random_range(1..300) << 12;
                    shelf.put(run(vdev, next, len));
                    next += len;
                }
                1 if random.random_range(0..20) == 0 => shelf.surplus(&mut surplus),
                2 if random.random_range(0..50) == 0 => shelf.forget(vdev, &mut surplus),
                _ => {
                    let psize = random.random_range(1..=BLOCK_MAX);
                    if let Some(place) = shelf.cut(psize) {
                        assert!(place.asize >= psize);
                        assert_eq!(taken.insert(place.offset, place.asize), None, "step {step}");
                    }
                }
            }
            let runs = || shelf.devices.iter().flat_map(|(_, runs)| runs.rests.values().chain(&runs.long));
            assert_eq!(shelf.held, runs().map(|run| run.len).sum::<u64>(), "step {step}");
            assert_eq!(shelf.good, runs().map(good_bytes).sum::<u64>(), "step {step}");
        }
        shelf.clear(&mut surplus);
        taken.extend(surplus.iter().map(|run| (run.offset, run.len)));
        let mut end = 0;
        for (offset, len) in taken {
            assert_eq!(offset, end, "everything that was put there is in one place");
            end = offset + len;
        }
        assert_eq!(end, next);
    }
}
