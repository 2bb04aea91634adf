//! How many entries of a list were last used when: all that a list kept by last use needs to forget its oldest, where
//! what it lists lies in a table without links.
//!
//! A thousand times are told apart. Entries say themselves when they were last used, so that one is on the list if it is
//! younger than the *horizon*, the time up to which all were taken off.

use std::collections::VecDeque;

/// The bits that times have: half a million cache-fulls of a thousand ticks. What is older looks younger than it is.
pub(crate) const TIME_MASK: u32 = u32::MAX >> 3;

/// Times that are told apart: what fits in 16 KiB. Beyond, neighbours are counted together that are no more than one part
/// in so many of the list, which leaves at most twice as many.
const TIMES_MAX: usize = 2047;
const PARTS: u64 = 768;

/// Ticks since then.
pub(crate) const fn age(time: u32, now: u32) -> u32 {
    now.wrapping_sub(time) & TIME_MASK
}

/// The list.
#[derive(Clone, Debug, Default)]
pub(crate) struct Order {
    /// Time and entries last used then, or since the time before; oldest first.
    times: VecDeque<(u32, u32)>,
    count: u64,
    /// Entries of this time and before are off the list.
    horizon: Option<u32>,
}

impl Order {
    /// Entries.
    pub(crate) const fn len(&self) -> u64 {
        self.count
    }

    pub(crate) fn memory(&self) -> usize {
        self.times.capacity() * size_of::<(u32, u32)>()
    }

    /// Whether an entry of this time would be off the list by now.
    #[inline]
    pub(crate) fn is_past(&self, time: u32, now: u32) -> bool {
        age(time, now) >= self.reach(now)
    }

    /// The age that entries on the list are below.
    #[inline]
    pub(crate) fn reach(&self, now: u32) -> u32 {
        self.horizon.map_or(u32::MAX, |horizon| age(horizon, now))
    }

    /// Whether an entry of this time is among the next to be taken off.
    pub(crate) fn is_oldest(&self, time: u32, now: u32) -> bool {
        let oldest = self.times.iter().find(|(_, count)| *count > 0);
        oldest.is_none_or(|(oldest, _)| age(time, now) >= age(*oldest, now))
    }

    /// The first entry of this time or later.
    #[inline]
    fn entry(&self, time: u32, now: u32) -> usize {
        // Nearly always the youngest: lists are emptied from their older ends.
        match self.times.back() {
            Some((last, _)) if age(*last, now) > age(time, now) => self.times.len(),
            Some((last, _)) if *last == time => self.times.len() - 1,
            // Then where it is if each tick since has its entry.
            Some((last, _)) if self.is_dense_at(time, age(time, *last)) => {
                self.times.len() - 1 - age(time, *last) as usize
            }
            _ => self.times.partition_point(|(known, _)| age(*known, now) > age(time, now)),
        }
    }

    fn is_dense_at(&self, time: u32, ticks: u32) -> bool {
        let at = (self.times.len() - 1).checked_sub(ticks as usize);
        at.is_some_and(|at| self.times[at].0 == time)
    }

    /// One more, last used then.
    #[inline]
    pub(crate) fn add(&mut self, time: u32, now: u32) {
        self.count += 1;
        let at = self.entry(time, now);
        match self.times.get_mut(at) {
            Some((known, count)) if *known == time => *count += 1,
            _ => {
                self.times.insert(at, (time, 1));
                self.keep_horizon_near(now);
            }
        }
        if self.times.len() > TIMES_MAX {
            self.coarsen();
        }
    }

    /// A horizon that nothing has moved for so long that its age would soon begin anew: the list would be past it as a whole.
    /// Of entries that were counted together the older are past it too early, which the next that is taken off sets right.
    fn keep_horizon_near(&mut self, now: u32) {
        if self.horizon.is_some_and(|horizon| age(horizon, now) > TIME_MASK / 2) {
            while self.times.front().is_some_and(|(_, count)| *count == 0) {
                self.times.pop_front();
            }
            self.horizon = self.times.front().map(|(oldest, _)| oldest.wrapping_sub(1) & TIME_MASK);
        }
    }

    /// One less of those last used then; false if there is none.
    #[inline]
    pub(crate) fn remove(&mut self, time: u32, now: u32) -> bool {
        if self.is_past(time, now) {
            return false;
        }
        let at = self.entry(time, now);
        match self.times.get_mut(at) {
            Some((_, count)) if *count > 0 => {
                *count -= 1;
                self.count -= 1;
                true
            }
            _ => false,
        }
    }

    /// Counts neighbours together that are few, however long ago they were used: what is then no longer told apart are
    /// parts of the list, not times.
    fn coarsen(&mut self) {
        let few = self.count / PARTS;
        let mut kept: VecDeque<(u32, u32)> = VecDeque::with_capacity(self.times.capacity());
        for (time, count) in self.times.drain(..).filter(|(_, count)| *count > 0) {
            match kept.back_mut() {
                Some(last) if u64::from(last.1 + count) <= few => *last = (time, last.1 + count),
                _ => kept.push_back((time, count)),
            }
        }
        self.times = kept;
    }

    /// Takes those last used longest ago off, all of that time; false if there is none.
    pub(crate) fn drop_oldest(&mut self) -> bool {
        while let Some((time, count)) = self.times.pop_front() {
            self.horizon = Some(time);
            self.count -= u64::from(count);
            if count > 0 {
                return true;
            }
        }
        false
    }

    /// Takes off what is off the other list.
    #[inline]
    pub(crate) fn follow(&mut self, other: &Self, now: u32) {
        while let Some((time, count)) = self.times.front()
            && other.is_past(*time, now)
        {
            self.count -= u64::from(*count);
            self.times.pop_front();
        }
    }

    /// Takes one of those last used longest ago off, and says when that was.
    pub(crate) fn pop_oldest(&mut self, now: u32) -> Option<u32> {
        loop {
            let (time, count) = self.times.front_mut()?;
            let (time, had) = (*time, *count);
            *count = had.saturating_sub(1);
            // What comes in now may still be counted here.
            if had <= 1 && time != now {
                self.times.pop_front();
                self.horizon = Some(time);
            }
            if had > 0 {
                self.count -= 1;
                return Some(time);
            }
            if time == now {
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A list of which nothing is taken off for half a million cache-fulls: that of metadata, in hours.
    #[test]
    fn a_list_that_loses_nothing_does_not_seem_forgotten_when_times_begin_anew() {
        let mut order = Order::default();
        order.add(5, 5);
        assert_eq!(order.pop_oldest(6), Some(5));
        order.add(7, 7);
        let turns = 1 << 12;
        let mut last = 7;
        for turn in 1..=3 * turns {
            let now = (7 + turn * ((TIME_MASK / turns) + 1)) & TIME_MASK;
            order.add(now, now);
            assert!(order.remove(last, now), "used again after {turn} parts of all times");
            assert!(!order.is_past(now, now));
            assert_eq!(order.len(), 1);
            last = now;
        }
    }
}
