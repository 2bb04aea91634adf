//! What was warm: which blocks of which volumes were in memory or on cache devices. A map of bits, so that it fits into a
//! small file, and the bytes of that file.
//!
//! ```text
//!   magic ∙ pool ∙ txg ∙ time ∙ length │ volume ∙ stretches: distance, which bits follow, bits … │ checksum
//! ```
//!
//! A stretch is 64 blocks. What is all warm or not at all takes no bits, so a volume that is wholly in memory takes two
//! bytes for 64 blocks, one that is warm here and there about ten. Nothing is said of what the blocks hold or where they
//! lie: both may have changed, and who warms looks for them under their name (docs/decisions/0014).

use std::{collections::BTreeMap, time::Duration};

use codec::checksum::Fletcher4;
use pool::cache::Warmth;

/// Blocks of a stretch.
pub(super) const STRETCH: u64 = 64;
const MAGIC: [u8; 8] = *b"MPHEAT01";
const HEADER: usize = 40;
const CHECKSUM: usize = 32;
/// Stretches that are remembered at most, of all volumes: 16 GiB of blocks of 4 KiB, a TiB of blocks of 256 KiB.
const STRETCHES_MAX: usize = 4 << 20;
/// What is older tells of another time.
const AGE_MAX: Duration = Duration::from_secs(30 * 86_400);

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heat {
    /// Guid of the pool.
    pub pool: u64,
    /// The last transaction group there was.
    pub txg: u64,
    /// Seconds since 1970.
    pub saved: u64,
    volumes: BTreeMap<u64, BTreeMap<u64, Stretch>>,
    stretches: usize,
}

/// Sixty-four blocks, a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stretch {
    /// In memory.
    pub(super) memory: u64,
    /// Of those, used more than once.
    pub(super) frequent: u64,
    /// On a cache device.
    pub(super) device: u64,
}

/// Why what was remembered is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeatError {
    /// It is something else.
    #[error("it is no record of what was warm, or one of another version")]
    Format,
    /// Not as it was written.
    #[error("it is torn or damaged")]
    Damaged,
    /// Of another pool.
    #[error("it is of the pool {0}")]
    Foreign(u64),
    /// The pool was rewound since then.
    #[error("it tells of transaction group {0}, which the pool does not have")]
    Future(u64),
    /// Too old.
    #[error("it is {} days old", .0 / 86_400)]
    Old(u64),
}

impl Heat {
    /// Nothing is warm yet.
    #[must_use]
    pub fn new(pool: u64, txg: u64, saved: u64) -> Self {
        Self { pool, txg, saved, ..Self::default() }
    }

    /// A block of a volume (by its dataset's object number) is in memory, or on a cache device, or both.
    pub fn note(&mut self, volume: u64, blkid: u64, memory: Option<Warmth>, device: bool) {
        if memory.is_none() && !device {
            return;
        }
        let stretches = self.volumes.entry(volume).or_default();
        let known = stretches.contains_key(&(blkid / STRETCH));
        if !known {
            if self.stretches >= STRETCHES_MAX {
                return;
            }
            self.stretches += 1;
        }
        let stretch = stretches.entry(blkid / STRETCH).or_default();
        let bit = 1 << (blkid % STRETCH);
        stretch.memory |= if memory.is_some() { bit } else { 0 };
        stretch.frequent |= if memory == Some(Warmth::Frequent) { bit } else { 0 };
        stretch.device |= if device { bit } else { 0 };
    }

    /// Whether nothing is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.stretches == 0
    }

    /// Blocks that were in memory, and those that were only on cache devices.
    #[must_use]
    pub fn blocks(&self) -> (u64, u64) {
        let all = self.volumes.values().flat_map(BTreeMap::values);
        all.fold((0, 0), |(memory, device), stretch| {
            let only = stretch.device & !stretch.memory;
            (memory + u64::from(stretch.memory.count_ones()), device + u64::from(only.count_ones()))
        })
    }

    pub(super) fn volumes(&self) -> impl Iterator<Item = (u64, &BTreeMap<u64, Stretch>)> {
        self.volumes.iter().map(|(volume, stretches)| (*volume, stretches))
    }

    /// Whether it is this pool's, as of now.
    ///
    /// # Errors
    /// Why it should not be used.
    pub fn check(&self, pool: u64, txg: u64, now: u64) -> Result<(), HeatError> {
        let age = now.saturating_sub(self.saved);
        if self.pool != pool {
            Err(HeatError::Foreign(self.pool))
        } else if self.txg > txg {
            Err(HeatError::Future(self.txg))
        } else if age > AGE_MAX.as_secs() {
            Err(HeatError::Old(age))
        } else {
            Ok(())
        }
    }

    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER + CHECKSUM + 12 * self.stretches);
        out.extend(MAGIC);
        for word in [self.pool, self.txg, self.saved, 0] {
            out.extend(word.to_le_bytes());
        }
        for (volume, stretches) in &self.volumes {
            put(&mut out, *volume);
            put(&mut out, stretches.len() as u64);
            let mut before = 0;
            for (number, stretch) in stretches {
                put(&mut out, number - before);
                before = *number;
                let words = [stretch.memory, stretch.frequent, stretch.device];
                let kind = |word: u64| match word {
                    0 => 0,
                    u64::MAX => 1,
                    _ => 2,
                };
                out.push(kind(words[0]) | kind(words[1]) << 2 | kind(words[2]) << 4);
                words
                    .into_iter()
                    .filter(|word| kind(*word) == 2)
                    .for_each(|word| out.extend(word.to_le_bytes()));
            }
        }
        let len = (out.len() - HEADER) as u64;
        out[HEADER - 8..HEADER].copy_from_slice(&len.to_le_bytes());
        // The checksum is one of whole words.
        out.resize(out.len().next_multiple_of(8), 0);
        let sum = checksum(&out);
        out.extend(sum);
        out
    }

    /// The same from bytes that anybody may have written.
    ///
    /// # Errors
    /// They are not what [`encode`](Self::encode) made.
    pub fn decode(bytes: &[u8]) -> Result<Self, HeatError> {
        if bytes.get(..MAGIC.len()).is_some_and(|magic| magic != MAGIC) {
            return Err(HeatError::Format);
        }
        let split = bytes.len().checked_sub(CHECKSUM).filter(|split| *split >= HEADER && split % 8 == 0);
        let (body, sum) = bytes.split_at(split.ok_or(HeatError::Damaged)?);
        if checksum(body) != sum {
            return Err(HeatError::Damaged);
        }
        Self::decode_body(body).ok_or(HeatError::Damaged)
    }

    fn decode_body(body: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u64::from_le_bytes(body.get(at..at + 8)?.try_into().ok()?));
        let mut heat = Self::new(word(8)?, word(16)?, word(24)?);
        let len = usize::try_from(word(32)?).ok()?;
        let mut rest = body.get(HEADER..HEADER.checked_add(len)?)?;
        while !rest.is_empty() {
            let (volume, count) = (take(&mut rest)?, take(&mut rest)?);
            let mut stretches = BTreeMap::new();
            let mut number = 0_u64;
            for _ in 0..count {
                number = number.checked_add(take(&mut rest)?)?;
                let (kinds, after) = rest.split_first()?;
                rest = after;
                let mut bits = |shift: u8| match kinds >> shift & 3 {
                    0 => Some(0),
                    1 => Some(u64::MAX),
                    2 => {
                        let (bytes, after) = rest.split_first_chunk::<8>()?;
                        rest = after;
                        Some(u64::from_le_bytes(*bytes))
                    }
                    _ => None,
                };
                let stretch = Stretch { memory: bits(0)?, frequent: bits(2)?, device: bits(4)? };
                stretches.insert(number, stretch);
            }
            heat.stretches += stretches.len();
            if heat.stretches > STRETCHES_MAX || heat.volumes.insert(volume, stretches).is_some() {
                return None;
            }
        }
        Some(heat)
    }
}

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM] {
    let mut sum = Fletcher4::new(codec::Order::Little);
    sum.update(bytes);
    let mut out = [0; CHECKSUM];
    for (place, word) in out.chunks_exact_mut(8).zip(sum.finish().0) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    out
}

/// Seven bits a byte, the lowest first.
fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn take(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        number |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heat() -> Heat {
        let mut heat = Heat::new(7, 1000, 1_700_000_000);
        (0..640).for_each(|blkid| heat.note(54, blkid, Some(Warmth::Frequent), false));
        for n in 0..5000_u64 {
            let blkid = n * 37 % 100_003;
            heat.note(300, blkid, (n % 3 == 0).then_some(Warmth::Recent), n % 2 == 0);
        }
        heat.note(u64::MAX, u64::MAX, None, true);
        heat
    }

    #[test]
    fn what_is_written_is_read_again_and_is_small() {
        let heat = heat();
        let bytes = heat.encode();
        assert_eq!(Heat::decode(&bytes), Ok(heat.clone()));
        let (memory, device) = heat.blocks();
        assert!(bytes.len() as u64 <= 10 * (memory + device), "{} for {memory} and {device}", bytes.len());
        let mut whole = Heat::new(7, 1, 1);
        (0..64_000).for_each(|blkid| whole.note(1, blkid, Some(Warmth::Recent), false));
        assert!(whole.encode().len() < 2100, "{}", whole.encode().len());
        assert_eq!(Heat::decode(&Heat::new(1, 2, 3).encode()), Ok(Heat::new(1, 2, 3)));
    }

    #[test]
    fn what_is_torn_or_rotten_or_of_others_is_not_believed() {
        let heat = heat();
        let bytes = heat.encode();
        for cut in 0..bytes.len() {
            assert!(Heat::decode(&bytes[..cut]).is_err(), "{cut}");
        }
        for at in (0..bytes.len()).step_by(7) {
            let mut rotten = bytes.clone();
            rotten[at] ^= 1 << (at % 8);
            assert!(Heat::decode(&rotten).is_err(), "{at}");
        }
        assert_eq!(
            Heat::decode(b"something else altogether, long enough to be a header"),
            Err(HeatError::Format)
        );
        let now = 1_700_000_100;
        assert_eq!(heat.check(7, 1000, now), Ok(()));
        assert_eq!(heat.check(8, 1000, now), Err(HeatError::Foreign(7)));
        assert_eq!(heat.check(7, 999, now), Err(HeatError::Future(1000)));
        assert!(matches!(heat.check(7, 1000, now + 40 * 86_400), Err(HeatError::Old(_))));
    }

    #[test]
    fn right_checksums_over_nonsense_do_no_harm() {
        let mut random = 1_u64;
        for _ in 0..2000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let mut bytes = Heat::new(1, 2, 3).encode();
            bytes.truncate(HEADER);
            let len = random >> 58 << 3;
            bytes.extend((0..len).map(|n| (random >> (n % 57)) as u8));
            bytes[HEADER - 8..HEADER].copy_from_slice(&len.to_le_bytes());
            let sum = checksum(&bytes);
            bytes.extend(sum);
            let _whatever_it_is = Heat::decode(&bytes);
        }
    }
}
