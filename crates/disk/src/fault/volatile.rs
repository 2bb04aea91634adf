//! What a write cache holds between a write and the next flush: the part of a disk that a power cut can take.
//!
//! Two images: what reads see (durable content under [`Volatile::overlay`]) and what is durable. The overlay
//! keeps the newest bytes as extents that never overlap; `changes` keeps every write and trim since the last
//! flush in order, because a power cut may leave any subset of them, in any order, torn at any sector.

use std::{cmp::Ordering, collections::BTreeMap, ops::Range};

use bytes::Bytes;

use super::Chance;

/// One write or trim that is not durable yet.
#[derive(Clone, Debug)]
pub(super) struct Change {
    /// Ascending; never used twice.
    pub(super) number: u64,
    pub(super) offset: u64,
    pub(super) what: What,
}

#[derive(Clone, Debug)]
pub(super) enum What {
    Write(Bytes),
    /// Bytes that may be forgotten.
    Trim(u64),
}

impl Change {
    fn range(&self) -> Range<u64> {
        let len = match &self.what {
            What::Write(data) => data.len() as u64,
            What::Trim(len) => *len,
        };
        self.offset..self.offset + len
    }

    fn data_bytes(&self) -> u64 {
        match &self.what {
            What::Write(data) => data.len() as u64,
            What::Trim(_) => 0,
        }
    }

    /// The parts of it before and behind `hole`.
    fn outside(self, hole: &Range<u64>) -> impl Iterator<Item = Self> {
        let all = self.range();
        let parts = [all.start..all.end.min(hole.start), all.start.max(hole.end)..all.end];
        parts.into_iter().filter(|part| part.start < part.end).map(move |part| {
            let what = match &self.what {
                What::Write(data) => {
                    let of_data = (part.start - all.start) as usize..(part.end - all.start) as usize;
                    What::Write(data.slice(of_data))
                }
                What::Trim(_) => What::Trim(part.end - part.start),
            };
            Self { number: self.number, offset: part.start, what }
        })
    }
}

/// Bytes as of a change.
#[derive(Clone, Debug)]
struct Extent {
    number: u64,
    data: Bytes,
}

/// A write cache.
#[derive(Debug, Default)]
pub(super) struct Volatile {
    changes: Vec<Change>,
    /// Start → newest bytes there. Extents do not overlap and are not empty.
    overlay: BTreeMap<u64, Extent>,
    next: u64,
    /// Bytes of data in `changes`.
    pub(super) bytes: u64,
}

impl Volatile {
    /// Returns the number of the change.
    pub(super) fn write(&mut self, offset: u64, data: Bytes) -> u64 {
        let number = self.number();
        self.bytes += data.len() as u64;
        self.lay(offset, Extent { number, data: data.clone() });
        self.changes.push(Change { number, offset, what: What::Write(data) });
        number
    }

    /// A change that is not durable yet.
    pub(super) fn change(&self, number: u64) -> Option<Change> {
        self.changes.iter().find(|change| change.number == number).cloned()
    }

    /// This write is durable now, those before it are not: only what they say about its bytes is void.
    pub(super) fn made_durable_alone(&mut self, number: u64) {
        let Some(range) = self.change(number).map(|change| change.range()) else { return };
        let mut left = Vec::with_capacity(self.changes.len() + 1);
        for change in std::mem::take(&mut self.changes) {
            match change.number.cmp(&number) {
                Ordering::Less => left.extend(change.outside(&range)),
                Ordering::Equal => {}
                Ordering::Greater => left.push(change),
            }
        }
        self.changes = left;
        self.bytes = self.changes.iter().map(Change::data_bytes).sum();
        self.overlay.retain(|_, extent| extent.number != number);
    }

    /// After this the range reads as what is durable there: legal, as any content is.
    pub(super) fn trim(&mut self, range: Range<u64>) {
        let number = self.number();
        self.cut_out(&range);
        let len = range.end - range.start;
        self.changes.push(Change { number, offset: range.start, what: What::Trim(len) });
    }

    /// Replaces bytes under the overlay's feet, where it has any: silent corruption of what is cached.
    pub(super) fn damage(&mut self, offset: u64, flip: impl Fn(u8) -> u8) {
        let Some((&start, extent)) = self.overlay.range(..=offset).next_back() else { return };
        let at = (offset - start) as usize;
        if let Some(&byte) = extent.data.get(at) {
            let number = extent.number;
            self.lay(offset, Extent { number, data: Bytes::from(vec![flip(byte)]) });
        }
    }

    /// The newest bytes of `range` that are not durable yet, as (offset, bytes).
    pub(super) fn newest(&self, range: Range<u64>) -> Vec<(u64, Bytes)> {
        let before = self.overlay.range(..range.start).next_back();
        before
            .into_iter()
            .chain(self.overlay.range(range.clone()))
            .filter_map(|(&start, extent)| {
                let end = (start + extent.data.len() as u64).min(range.end);
                let from = start.max(range.start);
                (from < end)
                    .then(|| (from, extent.data.slice((from - start) as usize..(end - start) as usize)))
            })
            .collect()
    }

    /// All changes so far, oldest first.
    pub(super) fn changes(&self) -> Vec<Change> {
        self.changes.clone()
    }

    /// Changes up to and including `number` are durable now.
    pub(super) fn made_durable(&mut self, number: u64) {
        self.changes.retain(|change| {
            let keep = change.number > number;
            if let (false, What::Write(data)) = (keep, &change.what) {
                self.bytes -= data.len() as u64;
            }
            keep
        });
        self.overlay.retain(|_, extent| extent.number > number);
    }

    /// The power goes: forgets everything and returns what reached the media after all, in order.
    pub(super) fn power_cut(&mut self, sector: u64, chance: &mut Chance) -> (Vec<Change>, Cut) {
        let mut cut = Cut::default();
        let mut landed = Vec::new();
        for change in std::mem::take(&mut self.changes) {
            match chance.below(4) {
                0 => cut.lost += 1,
                1 => {
                    let pieces = torn(&change, sector, chance);
                    cut.torn += 1;
                    landed.extend(pieces);
                }
                _ => {
                    cut.kept += 1;
                    landed.push(change);
                }
            }
        }
        // Fisher and Yates: every order is as likely.
        for last in (1..landed.len()).rev() {
            landed.swap(last, chance.below(last as u64 + 1) as usize);
        }
        self.overlay.clear();
        self.bytes = 0;
        (landed, cut)
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn lay(&mut self, offset: u64, extent: Extent) {
        if extent.data.is_empty() {
            return;
        }
        self.cut_out(&(offset..offset + extent.data.len() as u64));
        self.overlay.insert(offset, extent);
    }

    /// Removes `range` from the overlay; what sticks out on either side stays.
    fn cut_out(&mut self, range: &Range<u64>) {
        let first = self.overlay.range(..range.start).next_back().map_or(range.start, |(&start, _)| start);
        let touched: Vec<u64> = self.overlay.range(first..range.end).map(|(&start, _)| start).collect();
        for start in touched {
            let Some(extent) = self.overlay.remove(&start) else { continue };
            let (number, end) = (extent.number, start + extent.data.len() as u64);
            if start < range.start {
                let left = extent.data.slice(..(range.start.min(end) - start) as usize);
                self.overlay.insert(start, Extent { number, data: left });
            }
            if end > range.end {
                let right = extent.data.slice((range.end - start) as usize..);
                self.overlay.insert(range.end, Extent { number, data: right });
            }
        }
    }
}

/// What became of the changes that were not flushed when the power went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Writes and trims that reached the media whole.
    pub kept: usize,
    /// Writes of which some sectors reached the media, others did not.
    pub torn: usize,
    /// Writes and trims of which nothing is left.
    pub lost: usize,
}

/// A random half of the sectors of a write (trims are not torn: any content is legal there anyway).
fn torn(change: &Change, sector: u64, chance: &mut Chance) -> Vec<Change> {
    let What::Write(data) = &change.what else { return Vec::new() };
    sectors(change.offset, data, sector)
        .filter(|_| chance.below(2) == 0)
        .map(|(offset, data)| Change { number: change.number, offset, what: What::Write(data) })
        .collect()
}

/// A write cut at the sectors of the device, as (offset, bytes).
pub(super) fn sectors(offset: u64, data: &Bytes, sector: u64) -> impl Iterator<Item = (u64, Bytes)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let len = ((sector - at % sector) as usize).min(data.len() - done);
        let piece = data.slice(done..done + len);
        done += len;
        (len > 0).then_some((at, piece))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random writes and trims against a plain byte array.
    #[test]
    fn the_overlay_shows_the_newest_bytes_whatever_the_overlaps() {
        let mut chance = Chance::new(7);
        for _ in 0..200 {
            let (mut cache, mut model) = (Volatile::default(), vec![None; 64]);
            for round in 1..=20_u8 {
                let start = chance.below(60);
                let end = start + 1 + chance.below(64 - start);
                if chance.below(4) == 0 {
                    cache.trim(start..end);
                    model[start as usize..end as usize].fill(None);
                } else {
                    cache.write(start, Bytes::from(vec![round; (end - start) as usize]));
                    model[start as usize..end as usize].fill(Some(round));
                }
                let from = chance.below(64);
                let range = from..from + chance.below(64 - from) + 1;
                let mut seen = [None; 64];
                for (offset, bytes) in cache.newest(range.clone()) {
                    for (at, &byte) in (offset..).zip(bytes.iter()) {
                        assert!(range.contains(&at) && seen[at as usize].is_none());
                        seen[at as usize] = Some(byte);
                    }
                }
                let range = range.start as usize..range.end as usize;
                assert_eq!(seen[range.clone()], model[range]);
            }
        }
    }
}
