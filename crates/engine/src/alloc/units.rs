//! A set of allocation units: one bit each, in pages that have none while they are all in or all out.
//!
//! A tree of ranges degrades with fragmentation (a pool of small blocks rewritten at random has a free segment
//! for every few blocks); bits do not. Memory is bounded by the device's size (32 MiB per TiB of 4 KiB units at
//! worst, a thirty-second of that for what is wholly free or wholly used), a single unit is one memory access away, which makes
//! 100,000 random frees per transaction group cheap, and a double free shows at once. Long runs are found by
//! skipping pages: each remembers an upper bound of its longest run.

use std::ops::Range;

/// Units in a page.
const PAGE: u64 = 4096;
const WORDS: usize = (PAGE / 64) as usize;
type Bits = [u64; WORDS];

/// Bytes of a page's bits in memory.
const PAGE_BYTES: u64 = PAGE / 8;

/// A range was to be added that is partly in the set, or removed that is partly out of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clash;

/// One page. Without bits it is uniform, and `count` says which way.
#[derive(Clone, Debug, Default)]
struct Page {
    count: u16,
    /// No run within the page is longer.
    longest: u16,
    bits: Option<Box<Bits>>,
}

/// A set of units `0..len`.
#[derive(Clone, Debug)]
pub(super) struct Units {
    pages: Vec<Page>,
    len: u64,
    count: u64,
    /// No run is longer.
    longest: u64,
    /// Pages with bits.
    mixed: u64,
    /// Whether [`find`](Self::find) is wanted: then bounds of runs are kept, which makes adding dearer.
    searched: bool,
}

impl Units {
    /// The empty set, for looking up only.
    pub(super) fn none(len: u64) -> Self {
        let pages = vec![Page::default(); len.div_ceil(PAGE) as usize];
        Self { pages, len, count: 0, longest: 0, mixed: 0, searched: false }
    }

    /// The empty set, for searching too.
    pub(super) fn searched(len: u64) -> Self {
        Self { searched: true, ..Self::none(len) }
    }

    /// How many are in it.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// An upper bound of its longest run.
    pub(super) fn longest(&self) -> u64 {
        self.longest.min(self.count)
    }

    /// Bytes of memory its pages take, and their bits.
    pub(super) fn bytes(&self) -> u64 {
        (self.pages.len() * size_of::<Page>()) as u64 + self.mixed * PAGE_BYTES
    }

    /// Adds a range none of which is in the set. After an error the set is of no use.
    pub(super) fn insert(&mut self, range: Range<u64>) -> Result<(), Clash> {
        if range.end > self.len {
            return Err(Clash);
        }
        let mut grown = 0u64;
        let mut at = range.start;
        while at < range.end {
            let (index, from, to) = piece(at, range.end);
            let page = &mut self.pages[index];
            let len = (to - from) as u16;
            if u64::from(page.count) + u64::from(len) > PAGE {
                return Err(Clash);
            }
            at += u64::from(len);
            let had_bits = page.bits.is_some();
            page.count += len;
            if u64::from(len) == PAGE {
                page.longest = len;
                // A whole page merges with its neighbours in ways not looked at here.
                grown = u64::MAX;
                continue;
            }
            let bits = page.bits.get_or_insert_with(|| Box::new([0; WORDS]));
            each_word(from, to, |word, mask| {
                let clash = bits[word] & mask != 0;
                bits[word] |= mask;
                clash
            })?;
            if self.searched {
                let start = from - ones_before(bits, from);
                let end = to + ones_from(bits, to);
                page.longest = page.longest.max((end - start) as u16);
                let open = start == 0 || end == PAGE as usize;
                grown = grown.max(if open { u64::MAX } else { (end - start) as u64 });
            }
            if u64::from(page.count) == PAGE {
                page.bits = None;
            }
            self.mixed = self.mixed + u64::from(page.bits.is_some()) - u64::from(had_bits);
        }
        self.count += range.end - range.start;
        self.longest = self.longest.max(grown);
        Ok(())
    }

    /// Removes a range all of which is in the set. After an error the set is of no use.
    pub(super) fn remove(&mut self, range: Range<u64>) -> Result<(), Clash> {
        if range.end > self.len {
            return Err(Clash);
        }
        let mut at = range.start;
        while at < range.end {
            let (index, from, to) = piece(at, range.end);
            let page = &mut self.pages[index];
            let len = (to - from) as u16;
            if page.count < len {
                return Err(Clash);
            }
            at += u64::from(len);
            let had_bits = page.bits.is_some();
            if u64::from(page.count) == PAGE && page.bits.is_none() && u64::from(len) < PAGE {
                page.bits = Some(Box::new([u64::MAX; WORDS]));
            }
            page.count -= len;
            if let Some(bits) = &mut page.bits {
                each_word(from, to, |word, mask| {
                    let clash = bits[word] & mask != mask;
                    bits[word] &= !mask;
                    clash
                })?;
            }
            page.longest = page.longest.min(page.count);
            if page.count == 0 {
                page.bits = None;
            }
            self.mixed = self.mixed + u64::from(page.bits.is_some()) - u64::from(had_bits);
        }
        self.count -= range.end - range.start;
        Ok(())
    }

    /// Whether all of the range is in the set.
    pub(super) fn contains(&self, range: Range<u64>) -> bool {
        self.every(range, |page, from, to| match &page.bits {
            None => page.count > 0,
            Some(bits) => each_word(from, to, |word, mask| bits[word] & mask != mask).is_ok(),
        })
    }

    fn every(&self, range: Range<u64>, good: impl Fn(&Page, usize, usize) -> bool) -> bool {
        let mut at = range.start;
        while at < range.end {
            let (index, from, to) = piece(at, range.end);
            if self.pages.get(index).is_none_or(|page| !good(page, from, to)) {
                return false;
            }
            at += (to - from) as u64;
        }
        range.end <= self.len
    }

    /// The first place in `window` where `need` units in a row are in the set, if it is one for searching.
    pub(super) fn find(&mut self, window: Range<u64>, need: u64) -> Option<u64> {
        let window = window.start..window.end.min(self.len);
        if need > self.longest() || window.start >= window.end {
            return None;
        }
        // The run that ends where the walk is.
        let (mut start, mut run) = (window.start, 0);
        let mut at = window.start;
        while at < window.end {
            let (index, from, to) = piece(at, window.end);
            let base = at - from as u64;
            let page = &mut self.pages[index];
            if run == 0 {
                start = at;
            }
            at = base + to as u64;
            let Some(bits) = &page.bits else {
                run = if page.count == 0 { 0 } else { run + (to - from) as u64 };
                if run >= need {
                    return Some(start);
                }
                continue;
            };
            let head = ones_from(bits, from).min(to - from);
            run += head as u64;
            if run >= need {
                return Some(start);
            }
            if head == to - from {
                continue;
            }
            if u64::from(page.longest) >= need {
                let mut longest = head;
                let mut next = from + head;
                while let Some((first, end)) = next_run(bits, next, to) {
                    if (end - first) as u64 >= need {
                        return Some(base + first as u64);
                    }
                    longest = longest.max(end - first);
                    next = end;
                }
                if from == 0 && to == PAGE as usize {
                    page.longest = longest as u16;
                }
            }
            let tail = ones_before(bits, to).min(to - from);
            run = tail as u64;
            start = at - run;
        }
        if window == (0..self.len) {
            self.longest = need - 1;
        }
        None
    }

    /// Every run of units in the set, or of those that are not, in order.
    pub(super) fn runs(&self, members: bool) -> Runs<'_> {
        Runs { set: self, members, at: 0 }
    }

    /// Where the run of like units that begins at `at` ends, and whether they are in the set.
    fn run_from(&self, at: u64) -> (u64, bool) {
        let (index, from, _) = piece(at, self.len);
        let page = &self.pages[index];
        match &page.bits {
            None => (((index as u64 + 1) * PAGE).min(self.len), page.count > 0),
            Some(bits) => {
                let member = bits[from / 64] >> (from % 64) & 1 == 1;
                let run = if member { ones_from(bits, from) } else { zeroes_from(bits, from) };
                ((at + run as u64).min(self.len), member)
            }
        }
    }
}

/// Iterator of [`Units::runs`].
pub(super) struct Runs<'a> {
    set: &'a Units,
    members: bool,
    at: u64,
}

impl Iterator for Runs<'_> {
    type Item = Range<u64>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut found: Option<Range<u64>> = None;
        while self.at < self.set.len {
            let (end, member) = self.set.run_from(self.at);
            if member == self.members {
                found.get_or_insert(self.at..end).end = end;
            } else if found.is_some() {
                break;
            }
            self.at = end;
        }
        found
    }
}

/// The page of unit `at`, and the part of `at..end` that lies in it.
fn piece(at: u64, end: u64) -> (usize, usize, usize) {
    let base = at / PAGE * PAGE;
    ((at / PAGE) as usize, (at - base) as usize, (end - base).min(PAGE) as usize)
}

/// Calls `f` with each word of `from..to` and the mask of its part; stops with an error when `f` says so.
fn each_word(from: usize, to: usize, mut f: impl FnMut(usize, u64) -> bool) -> Result<(), Clash> {
    let mut at = from;
    while at < to {
        let (word, low) = (at / 64, at % 64);
        let high = (to - word * 64).min(64);
        let mask = (u64::MAX >> (64 - (high - low))) << low;
        if f(word, mask) {
            return Err(Clash);
        }
        at = word * 64 + high;
    }
    Ok(())
}

/// Set bits from `at` on without a gap.
fn ones_from(bits: &Bits, at: usize) -> usize {
    run_from(bits, at, u64::MAX)
}

/// Clear bits from `at` on without a gap.
fn zeroes_from(bits: &Bits, at: usize) -> usize {
    run_from(bits, at, 0)
}

fn run_from(bits: &Bits, at: usize, like: u64) -> usize {
    let mut end = at;
    while end < PAGE as usize {
        // Ones where a bit differs from what the run consists of.
        let differs = (bits[end / 64] ^ like) >> (end % 64);
        if differs != 0 {
            return end + differs.trailing_zeros() as usize - at;
        }
        end = (end / 64 + 1) * 64;
    }
    PAGE as usize - at
}

/// Set bits before `at` without a gap.
fn ones_before(bits: &Bits, at: usize) -> usize {
    let mut start = at;
    while start > 0 {
        let word = (start - 1) / 64;
        // The word's bits below `start`, inverted and moved to its top: what the shift brings in is no gap.
        let clear = !bits[word] << (63 - (start - 1) % 64);
        if clear != 0 {
            return at + clear.leading_zeros() as usize - start;
        }
        start = word * 64;
    }
    at
}

/// The next run of set bits in `at..to`.
fn next_run(bits: &Bits, at: usize, to: usize) -> Option<(usize, usize)> {
    let first = at + zeroes_from_within(bits, at, to)?;
    Some((first, (first + ones_from(bits, first)).min(to)))
}

fn zeroes_from_within(bits: &Bits, at: usize, to: usize) -> Option<usize> {
    if at >= to {
        return None;
    }
    let zeroes = zeroes_from(bits, at);
    (at + zeroes < to).then_some(zeroes)
}
