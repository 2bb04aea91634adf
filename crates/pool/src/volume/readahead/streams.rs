//! Noticing that a client reads in order, and deciding how far to read ahead of it.
//!
//! ```text
//!   upwards    ▸▸▸▸▸▸ fetched ······        downwards   ······ fetched ◂◂◂◂◂◂
//!   strided    ▸▸   ▸▸   ▸▸   ··   ··       anything else: nothing is fetched
//! ```
//!
//! A few streams are followed at once, because one volume carries several files being copied, or several
//! queues of one client. A request belongs to the stream whose end it touches; requests of one queue may
//! overtake each other, so "touches" leaves room on both sides. A stream that goes on gets a window that doubles up
//! to [`WINDOW_BYTES_MAX`], or to its share of what memory may be used for that, if that is less: what is fetched further
//! ahead would push out what was fetched before, and be read twice. The next stretch is fetched when half of the window
//! has been eaten, so that fetches are large and one is always under way.
//!
//! A stream that skips most of what it passes is none: what lies between would be read for nobody. If it skips the same
//! distance each time it is strided, and just the places it will ask for are fetched.

use std::ops::Range;

use smallvec::SmallVec;

use crate::cache::Followed;

/// First window, once two requests have gone on the same way.
const WINDOW_BYTES_MIN: u64 = 256 << 10;
/// Largest window. 8 MiB hide a millisecond of latency up to 8 GB/s.
const WINDOW_BYTES_MAX: u64 = 8 << 20;
/// How far from the end of a stream a request may start and still belong to it.
const SLACK_BYTES: u64 = 2 << 20;
/// Streams followed at once.
const STREAMS: usize = 8;
/// A stream that none of as many requests belonged to has no share of memory.
const LATELY: u64 = 256;
/// Strides followed at once.
const STRIDES: usize = 4;
/// Requests at one distance from each other that make a stride.
const REPEATS: u32 = 3;
/// Places of a stride that are fetched at once: each is a read of its own.
const PLACES_MAX: u64 = 16;
/// The longest distance of a stride. Beyond, chance would make more of them than clients do.
const STRIDE_BYTES_MAX: u64 = 64 << 20;

/// What to fetch: ranges of blocks, in the order they will be asked for.
pub(super) type Ahead = SmallVec<[Range<u64>; 4]>;

/// The streams of one volume.
#[derive(Debug)]
pub(super) struct Streams {
    list: [Stream; STREAMS],
    strides: [Stride; STRIDES],
    clock: u64,
    slack: u64,
    window_min: u64,
    window_max: u64,
    stride_max: u64,
    /// What the latest request was.
    followed: Followed,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Way {
    /// It has just begun, and may go on either way.
    #[default]
    Unknown,
    Up,
    Down,
}

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    way: Way,
    /// The end that moves: one past the highest block read, or the lowest if it goes down.
    edge: u64,
    /// The lowest block read, of one that has just begun.
    back: u64,
    /// Requests that went up, less those that went down, of one that has just begun.
    lean: i32,
    /// How far it is fetched, in the same sense as `edge`.
    fetched: u64,
    /// Blocks to be ahead.
    window: u64,
    /// Blocks its edge has passed, and of those how many were asked for: halved from time to time.
    passed: u64,
    asked: u64,
    /// When it was last used; 0 for a free place.
    used: u64,
}

/// Requests of one length at one distance from each other.
#[derive(Clone, Copy, Debug, Default)]
struct Stride {
    start: u64,
    len: u64,
    /// Blocks from one request to the next, either way.
    step: i64,
    repeats: u32,
    /// Places ahead that are fetched already.
    ahead: u64,
    /// Places to be ahead.
    window: u64,
    used: u64,
}

impl Streams {
    /// Of a volume with blocks of so many bytes.
    pub(super) fn new(block_bytes: u64) -> Self {
        let blocks = |bytes: u64| (bytes / block_bytes).max(1);
        Self {
            list: Default::default(),
            strides: Default::default(),
            clock: 0,
            slack: blocks(SLACK_BYTES),
            window_min: blocks(WINDOW_BYTES_MIN),
            window_max: blocks(WINDOW_BYTES_MAX),
            stride_max: blocks(STRIDE_BYTES_MAX),
            followed: Followed::Miss,
        }
    }

    /// Notes that `blocks` were asked for; answers with what to fetch now, if anything and if there is room for more
    /// fetches. All that is fetched and not asked for yet is to be `bound` blocks at most; who only hits need not know.
    pub(super) fn observe(&mut self, blocks: Range<u64>, room: bool, bound: impl FnOnce() -> u64) -> Ahead {
        self.clock += 1;
        let slack = self.slack;
        if let Some(index) = self.list.iter().position(|stream| stream.takes(&blocks, slack)) {
            let stream = &mut self.list[index];
            stream.used = self.clock;
            let ends = (stream.edge, stream.back);
            let is_due = stream.go_on(&blocks, (self.window_min, self.window_max)) && room;
            if stream.is_dense() {
                let went_on = ends != (stream.edge, stream.back);
                self.followed = if went_on { Followed::Hit } else { Followed::Past };
                let fetch = if is_due { self.list[index].fetch(self.share(bound())) } else { None };
                return fetch.into_iter().collect();
            }
        } else if let Some(oldest) = self.list.iter_mut().min_by_key(|stream| stream.used) {
            *oldest = Stream { edge: blocks.end, back: blocks.start, used: self.clock, ..Stream::default() };
        }
        self.stride(&blocks, room, bound)
    }

    /// What the request was that was [observed](Self::observe) last.
    pub(super) const fn followed(&self) -> Followed {
        self.followed
    }

    /// What of `bound` blocks each may be ahead of its reader that read lately.
    fn share(&self, bound: u64) -> u64 {
        let lately = |used: u64| used + LATELY > self.clock;
        let streams = self.list.iter().map(|stream| (stream.window, stream.used));
        let strides = self.strides.iter().map(|stride| (stride.window, stride.used));
        let sharers = streams.chain(strides).filter(|(window, used)| *window > 0 && lately(*used)).count();
        (bound / sharers.max(1) as u64).clamp(1, self.window_max)
    }

    fn stride(&mut self, blocks: &Range<u64>, room: bool, bound: impl FnOnce() -> u64) -> Ahead {
        self.followed = Followed::Miss;
        let len = blocks.end.saturating_sub(blocks.start);
        let distance =
            |stride: &Stride| i64::try_from(blocks.start).unwrap_or(i64::MAX) - stride.start as i64;
        let goes_on = |stride: &Stride| {
            stride.used != 0 && stride.len == len && stride.step != 0 && distance(stride) == stride.step
        };
        if let Some(index) = self.strides.iter().position(goes_on) {
            self.followed = Followed::Stride;
            let stride = &mut self.strides[index];
            (stride.start, stride.used) = (blocks.start, self.clock);
            stride.repeats = stride.repeats.saturating_add(1);
            stride.ahead = stride.ahead.saturating_sub(1);
            if stride.repeats < REPEATS || stride.ahead > stride.window / 2 || !room {
                return Ahead::new();
            }
            let most = (self.share(bound()) / len.max(1)).clamp(1, PLACES_MAX);
            let stride = &mut self.strides[index];
            stride.window = (stride.window * 2).clamp(2, most.max(2));
            let places = stride.ahead + 1..=stride.window;
            stride.ahead = stride.window;
            let (start, step) = (stride.start as i64, stride.step);
            let place = |n: u64| {
                let first = step.checked_mul(n as i64).and_then(|far| start.checked_add(far))?;
                let first = u64::try_from(first).ok()?;
                Some(first..first.saturating_add(len))
            };
            return places.filter_map(place).collect();
        }
        // It may be the second of one whose first is the latest of its length.
        let stride_max = self.stride_max as i64;
        let begun = self
            .strides
            .iter_mut()
            .filter(|stride| stride.used != 0 && stride.len == len && stride.repeats == 0)
            .filter(|stride| (1..=stride_max).contains(&distance(stride).abs()))
            .max_by_key(|stride| stride.used);
        if let Some(stride) = begun {
            stride.step = distance(stride);
            (stride.start, stride.repeats, stride.used) = (blocks.start, 1, self.clock);
        } else if let Some(oldest) = self.strides.iter_mut().min_by_key(|stride| stride.used) {
            *oldest = Stride { start: blocks.start, len, used: self.clock, ..Stride::default() };
        }
        Ahead::new()
    }
}

impl Stream {
    /// Whether a request belongs to it.
    fn takes(&self, blocks: &Range<u64>, slack: u64) -> bool {
        let touches_above =
            blocks.start <= self.edge.saturating_add(slack) && blocks.end.saturating_add(slack) >= self.edge;
        let touches_below = |edge: u64| {
            blocks.end.saturating_add(slack) >= edge && blocks.start <= edge.saturating_add(slack)
        };
        self.used != 0
            && match self.way {
                Way::Unknown => touches_above || touches_below(self.back),
                Way::Up => touches_above,
                Way::Down => touches_below(self.edge),
            }
    }

    /// It goes on to `blocks`; true if half of its window has been eaten. Windows are `least` blocks at first and up to
    /// `largest`.
    fn go_on(&mut self, blocks: &Range<u64>, (least, largest): (u64, u64)) -> bool {
        let above = blocks.end.saturating_sub(self.edge);
        let below = if self.way == Way::Down { self.edge } else { self.back }.saturating_sub(blocks.start);
        let far = match self.way {
            Way::Unknown => above + below,
            Way::Up => above,
            Way::Down => below,
        };
        self.asked += blocks.end.saturating_sub(blocks.start);
        self.passed += far;
        if far == 0 {
            return false;
        }
        if self.passed > 4 * largest {
            (self.passed, self.asked) = (self.passed / 2, self.asked / 2);
        }
        match self.way {
            Way::Unknown => {
                self.lean += i32::from(above > 0) - i32::from(below > 0);
                (self.edge, self.back) = (self.edge.max(blocks.end), self.back.min(blocks.start));
                match self.lean {
                    2.. => self.way = Way::Up,
                    ..=-2 => (self.way, self.edge) = (Way::Down, self.back),
                    _ => return false,
                }
                (self.fetched, self.window) = (self.edge, least);
            }
            Way::Up => {
                self.edge = blocks.end;
                self.fetched = self.fetched.max(self.edge);
            }
            Way::Down => {
                self.edge = blocks.start;
                self.fetched = self.fetched.min(self.edge);
            }
        }
        self.edge.abs_diff(self.fetched) <= self.window / 2
    }

    /// What to fetch now, if it may be `most` blocks ahead.
    fn fetch(&mut self, most: u64) -> Option<Range<u64>> {
        let ahead = self.edge.abs_diff(self.fetched);
        if ahead > self.window.min(most) / 2 {
            return None;
        }
        self.window = (self.window * 2).min(most);
        if ahead >= self.window {
            return None;
        }
        let fetch = match self.way {
            Way::Down => self.edge.saturating_sub(self.window)..self.fetched,
            _ => self.fetched..self.edge.saturating_add(self.window),
        };
        self.fetched = if self.way == Way::Down { fetch.start } else { fetch.end };
        (!fetch.is_empty()).then_some(fetch)
    }

    /// Whether it asks for most of what it passes.
    fn is_dense(&self) -> bool {
        self.asked.saturating_mul(2) >= self.passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 16 << 10;

    fn streams() -> Streams {
        Streams::new(BLOCK)
    }

    #[test]
    fn a_sequence_is_followed_without_gaps_or_overlaps() {
        let mut streams = streams();
        let (mut fetched, mut seen_max) = (None::<u64>, 0);
        for first in (0..4096).step_by(8) {
            for next in streams.observe(first..first + 8, true, || u64::MAX) {
                assert!(next.start >= first + 8, "nothing that was just read");
                if let Some(fetched) = fetched {
                    assert_eq!(next.start, fetched, "each block once");
                }
                fetched = Some(next.end);
                seen_max = seen_max.max(next.end - first);
            }
        }
        assert!(fetched.is_some_and(|end| end > 4096));
        assert!(seen_max * BLOCK <= WINDOW_BYTES_MAX + 8 * BLOCK, "bounded");
    }

    #[test]
    fn a_sequence_downwards_is_followed_to_the_very_beginning() {
        let mut streams = streams();
        let mut lowest = u64::MAX;
        for first in (0..512_u64).rev().map(|n| n * 8) {
            for next in streams.observe(first..first + 8, true, || u64::MAX) {
                assert!(next.end <= first, "nothing that was just read");
                assert!(lowest == u64::MAX || next.end == lowest, "each block once");
                lowest = next.start;
            }
        }
        assert_eq!(lowest, 0);
    }

    #[test]
    fn requests_that_overtake_each_other_are_one_stream() {
        let mut streams = streams();
        let order = [1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14];
        let fetches = order
            .iter()
            .filter(|i| !streams.observe(*i * 8..*i * 8 + 8, true, || u64::MAX).is_empty())
            .count();
        assert!(fetches > 0);
    }

    #[test]
    fn of_a_strided_reader_just_the_places_it_will_ask_for_are_fetched() {
        for step in [32_i64, -32, 640] {
            let mut streams = streams();
            let (mut fetched, mut asked) = (Vec::new(), Vec::new());
            for n in 0..60 {
                let first = u64::try_from(100_000 + step * n).unwrap();
                asked.push(first..first + 2);
                fetched.extend(streams.observe(first..first + 2, true, || u64::MAX));
            }
            assert!(fetched.len() > 50, "{step}: {}", fetched.len());
            let wrong = fetched.iter().filter(|blocks| (blocks.start as i64 - 100_000) % step != 0);
            assert_eq!(wrong.count(), 0, "{step}");
            assert!(fetched.iter().all(|blocks| blocks.end - blocks.start == 2));
            let useful = fetched.iter().filter(|blocks| asked.contains(blocks)).count();
            assert!(useful >= 52, "{step}: {useful}");
            assert!(fetched.len() as u64 - useful as u64 <= PLACES_MAX, "bounded");
        }
    }

    /// Nothing was counted of it, so that nobody saw whether a client's reads were followed.
    #[test]
    fn each_request_is_counted_as_what_it_is_to_the_streams() {
        let counts = |requests: &[u64]| {
            let mut streams = streams();
            let mut counts = [0; 4];
            for first in requests {
                let _fetched = streams.observe(*first..*first + 8, true, || u64::MAX);
                counts[streams.followed() as usize] += 1;
            }
            counts
        };
        let [hit, stride, past, miss] = [Followed::Hit, Followed::Stride, Followed::Past, Followed::Miss];
        assert_eq!([hit as usize, stride as usize, past as usize, miss as usize], [0, 1, 2, 3]);
        let upwards: Vec<u64> = (0..100).map(|n| n * 8).collect();
        assert_eq!(counts(&upwards), [99, 0, 0, 1]);
        // Two more come behind it.
        let mut again = upwards;
        again.extend([784, 776]);
        assert_eq!(counts(&again), [99, 0, 2, 1]);
        let far: Vec<u64> = (0..100).map(|n| n * n * 100_000).collect();
        assert_eq!(counts(&far), [0, 0, 0, 100]);
        let strided: Vec<u64> = (0..100).map(|n| n * 1000).collect();
        assert_eq!(counts(&strided), [0, 98, 0, 2]);
    }

    #[test]
    fn random_reads_fetch_nothing() {
        let mut streams = streams();
        let mut place = 1u64;
        let mut random = || {
            place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            place >> 20
        };
        for _ in 0..10_000 {
            let first = random() & !0xff;
            assert!(streams.observe(first..first + 1, true, || u64::MAX).is_empty());
        }
    }

    #[test]
    fn a_reader_that_skips_about_is_not_read_ahead_of() {
        // Upwards, a block here and there: what lies between is not wanted.
        let mut streams = streams();
        let (mut place, mut fetched, mut random) = (0, 0, 1u64);
        for _ in 0..2000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            place += 5 + (random >> 33) % 60;
            fetched += streams
                .observe(place..place + 1, true, || u64::MAX)
                .iter()
                .map(|blocks| blocks.end - blocks.start)
                .sum::<u64>();
        }
        assert!(fetched < 400, "{fetched} blocks for 2000 requests");
    }

    #[test]
    fn without_room_nothing_is_fetched_and_the_stream_goes_on_later() {
        let mut streams = streams();
        assert!((0..64).all(|n| streams.observe(n * 8..n * 8 + 8, false, || u64::MAX).is_empty()));
        assert!(!streams.observe(512..520, true, || u64::MAX).is_empty());
    }

    /// Windows grew to eight megabytes whatever the cache could hold, and all was read twice.
    #[test]
    fn what_all_streams_are_ahead_stays_within_what_memory_may_be_used_for_that() {
        for (count, bound) in [(1, 64), (4, 64), (8, 64), (1, 3), (8, 3)] {
            let mut streams = streams();
            let mut fetched = vec![0_u64; count];
            for step in 0..200 {
                for (stream, fetched) in fetched.iter_mut().enumerate() {
                    let first = stream as u64 * 10_000_000 + step * 8;
                    for next in streams.observe(first..first + 8, true, || bound) {
                        *fetched = (*fetched).max(next.end - first - 8);
                        // The first ones do not know of those to come.
                        if step > 20 {
                            let share = (bound / count as u64).max(1);
                            assert!(next.end - (first + 8) <= share, "{next:?} of {share}");
                        }
                    }
                }
            }
            assert!(fetched.iter().all(|ahead| *ahead > 0), "{count} {bound}: {fetched:?}");
        }
    }

    #[test]
    fn many_streams_interleave() {
        let mut streams = streams();
        let mut fetched = [false; 6];
        for step in 0..64 {
            for (stream, fetched) in fetched.iter_mut().enumerate() {
                let first = stream as u64 * 10_000_000 + step * 8;
                *fetched |= !streams.observe(first..first + 8, true, || u64::MAX).is_empty();
            }
        }
        assert_eq!(fetched, [true; 6]);
    }
}
