//! Block traces: one request a line, and what a policy scores on them.
//!
//! The form is `time_us,op,offset,length` with a header line of these words; `op` is R or W, the rest bytes.
//! Nothing is read here: [`Request::parse`] takes a line, [`Simulation::request`] takes a request. Definitions
//! are those of the published reference results: a request touches every block of 4 KiB it overlaps, in ascending
//! order; each is one access; reads and writes are alike; every block counts 1.

use crate::{
    index::Index,
    mix,
    policy::{Block, Policy, Slot},
    second::SecondTier,
};

/// Bytes of a block.
pub const BLOCK_BYTES: u64 = 4096;
/// The header line.
pub const HEADER: &str = "time_us,op,offset,length";
/// The longest request believed, in bytes: a damaged record must not cost a million accesses.
pub const REQUEST_BYTES_MAX: u64 = 1 << 30;

/// One request, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Where it begins.
    pub offset: u64,
    /// How long it is, 1 to [`REQUEST_BYTES_MAX`].
    pub length: u64,
}

/// Why a line is no request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadRecord {
    /// Too few or too many fields.
    #[error("{0} fields where 'time_us,op,offset,length' are 4")]
    Fields(usize),
    /// Neither a read nor a write.
    #[error("op is '{0}', neither R nor W")]
    Op(String),
    /// A field that is no number.
    #[error("{field} is '{text}', not a number of {unit}")]
    Number {
        /// Which field.
        field: &'static str,
        /// What it counts.
        unit: &'static str,
        /// What stands there.
        text: String,
    },
    /// No length, or an absurd one.
    #[error("length is {0} bytes, not 1 to {REQUEST_BYTES_MAX}")]
    Length(u64),
    /// Ends beyond what an offset can say.
    #[error("offset {0} and length {1} end beyond 2^64 bytes")]
    End(u64, u64),
}

impl Request {
    /// The request a line stands for.
    ///
    /// # Errors
    /// What is wrong with the line.
    pub fn parse(line: &str) -> Result<Self, BadRecord> {
        let mut fields = line.trim_end_matches(['\r', '\n']).split(',');
        let (Some(time), Some(op), Some(offset), Some(length), None) =
            (fields.next(), fields.next(), fields.next(), fields.next(), fields.next())
        else {
            return Err(BadRecord::Fields(line.split(',').count()));
        };
        number("time_us", "microseconds", time)?;
        if !matches!(op, "R" | "W") {
            return Err(BadRecord::Op(excerpt(op)));
        }
        let offset = number("offset", "bytes", offset)?;
        let length = number("length", "bytes", length)?;
        if !(1..=REQUEST_BYTES_MAX).contains(&length) {
            return Err(BadRecord::Length(length));
        }
        if offset.checked_add(length).is_none() {
            return Err(BadRecord::End(offset, length));
        }
        Ok(Self { offset, length })
    }

    /// Numbers of the blocks it touches.
    pub fn blocks(self) -> impl Iterator<Item = u64> {
        self.offset / BLOCK_BYTES..=(self.offset + (self.length - 1)) / BLOCK_BYTES
    }

    /// How many of its bytes lie in a block it touches.
    fn bytes_in(self, block: u64) -> u64 {
        let start = self.offset.max(block * BLOCK_BYTES);
        let last = (self.offset + (self.length - 1)).min(block * BLOCK_BYTES + (BLOCK_BYTES - 1));
        last - start + 1
    }
}

fn number(field: &'static str, unit: &'static str, text: &str) -> Result<u64, BadRecord> {
    text.parse().map_err(|_| BadRecord::Number { field, unit, text: excerpt(text) })
}

/// Enough of a bad field to recognise it.
fn excerpt(text: &str) -> String {
    text.chars().take(24).collect()
}

/// What was asked and what was missed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Score {
    /// Requests.
    pub requests: u64,
    /// Blocks they touched, each time counted.
    pub accesses: u64,
    /// Accesses that found nothing.
    pub block_misses: u64,
    /// Requests with at least one missed block.
    pub request_misses: u64,
    /// Bytes requested.
    pub bytes: u64,
    /// Those that lay in missed blocks.
    pub byte_misses: u64,
    /// Missed blocks that a second tier had.
    pub second_hits: u64,
}

impl Score {
    /// Accesses that found nothing, of all; 0 of none.
    #[must_use]
    pub fn block_miss_ratio(&self) -> f64 {
        ratio(self.block_misses, self.accesses)
    }

    /// Requests that missed at least one block, of all; 0 of none.
    #[must_use]
    pub fn request_miss_ratio(&self) -> f64 {
        ratio(self.request_misses, self.requests)
    }

    /// Bytes that lay in missed blocks, of all requested; 0 of none.
    #[must_use]
    pub fn byte_miss_ratio(&self) -> f64 {
        ratio(self.byte_misses, self.bytes)
    }
}

impl Score {
    /// Accesses that found nothing in the second tier either, of all; 0 of none.
    #[must_use]
    pub fn both_miss_ratio(&self) -> f64 {
        ratio(self.block_misses - self.second_hits, self.accesses)
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// A cache without data: a policy, and which block is in which of its places.
#[derive(Clone, Debug)]
pub struct Simulation<P> {
    policy: P,
    places: Index,
    /// Identity of the block in each place.
    ids: Vec<u64>,
    second: Option<SecondTier>,
    score: Score,
}

impl<P: Policy> Simulation<P> {
    /// An empty cache that asks this policy.
    pub fn new(policy: P) -> Self {
        Self { policy, places: Index::default(), ids: Vec::new(), second: None, score: Score::default() }
    }

    /// The same with a cache device below it, which gets what it evicts.
    pub fn with_second(policy: P, second: SecondTier) -> Self {
        Self { second: Some(second), ..Self::new(policy) }
    }

    /// The cache device.
    pub const fn second(&self) -> Option<&SecondTier> {
        self.second.as_ref()
    }

    /// What happened so far.
    pub const fn score(&self) -> Score {
        self.score
    }

    /// The policy.
    pub const fn policy(&self) -> &P {
        &self.policy
    }

    #[cfg(test)]
    pub(crate) const fn policy_mut(&mut self) -> &mut P {
        &mut self.policy
    }

    /// Plays one request.
    pub fn request(&mut self, request: Request) {
        let missed_before = self.score.block_misses;
        for block in request.blocks() {
            if !self.access(block) {
                self.score.byte_misses += request.bytes_in(block);
            }
        }
        self.score.requests += 1;
        self.score.bytes += request.length;
        self.score.request_misses += u64::from(self.score.block_misses > missed_before);
    }

    /// Plays the access to one block; whether it was there.
    #[inline]
    pub fn access(&mut self, block: u64) -> bool {
        self.access_evicting(block, &mut |_| ())
    }

    /// The same, and names what goes for it by its identity, [`mix`] of its number.
    #[inline]
    pub fn access_evicting(&mut self, block: u64, evicted: &mut dyn FnMut(u64)) -> bool {
        self.score.accesses += 1;
        let id = mix(block);
        if let Some(slot) = self.places.get(id) {
            self.policy.hit(Slot(slot));
            return true;
        }
        self.score.block_misses += 1;
        let Self { policy, places, ids, second, .. } = self;
        if let Some(second) = second {
            self.score.second_hits += u64::from(second.get(id));
        }
        let slot = policy.insert(Block { id, size: 1 }, &mut |slot| {
            let id = ids[slot.0 as usize];
            let gone = places.remove(id);
            debug_assert_eq!(gone, Some(slot.0), "the policy evicted what was not here");
            if let Some(second) = second {
                second.offer(id, 1);
            }
            evicted(id);
        });
        if let Some(slot) = slot {
            let at = slot.0 as usize;
            if ids.len() <= at {
                ids.resize(at + 1, 0);
            }
            ids[at] = id;
            places.insert(id, slot.0);
        }
        false
    }

    /// Changes the capacity, in blocks.
    pub fn set_capacity(&mut self, capacity: u64) {
        let Self { policy, places, ids, .. } = self;
        policy.set_capacity(capacity, &mut |slot| {
            places.remove(ids[slot.0 as usize]);
        });
    }

    /// Blocks held.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Plain;

    #[test]
    fn a_record_says_what_it_touches_or_what_is_wrong_with_it() {
        let request = Request::parse("17,W,8191,4098\r\n").unwrap();
        assert_eq!(request.blocks().collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!([1, 2, 3].map(|block| request.bytes_in(block)), [1, 4096, 1]);
        let last = Request::parse(&format!("0,R,{},1", u64::MAX - 1)).unwrap();
        assert_eq!((last.blocks().count(), last.bytes_in(u64::MAX / BLOCK_BYTES)), (1, 1));
        for (line, says) in [
            ("", "1 fields where 'time_us,op,offset,length' are 4"),
            ("1,R,0,512,7", "5 fields where 'time_us,op,offset,length' are 4"),
            ("1,X,0,512", "op is 'X', neither R nor W"),
            ("1,R,-4,512", "offset is '-4', not a number of bytes"),
            ("now,R,0,512", "time_us is 'now', not a number of microseconds"),
            ("1,R,0,0", "length is 0 bytes, not 1 to 1073741824"),
            ("1,R,18446744073709551615,2", "offset 18446744073709551615 and length 2 end beyond 2^64 bytes"),
        ] {
            assert_eq!(Request::parse(line).unwrap_err().to_string(), says);
        }
    }

    #[test]
    fn partly_covered_blocks_count_the_bytes_that_were_asked_for() {
        let mut simulation = Simulation::new(Plain::lru(1));
        for line in ["0,R,0,512", "1,R,512,512", "2,R,4000,200"] {
            simulation.request(Request::parse(line).unwrap());
        }
        let score = simulation.score();
        assert_eq!((score.requests, score.accesses, score.block_misses, score.request_misses), (3, 4, 2, 2));
        assert_eq!((score.bytes, score.byte_misses), (1224, 512 + 104));
    }
}
