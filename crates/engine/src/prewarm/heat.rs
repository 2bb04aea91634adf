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
//!
//! In memory a stretch takes several times as much, and a file may come from a machine with more of it: who makes or reads
//! such a map says how much it may take.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, BufReader, Read},
    time::Duration,
};

use codec::checksum::Fletcher4;
use pool::cache::Warmth;

/// Blocks of a stretch.
pub(super) const STRETCH: u64 = 64;
const MAGIC: [u8; 8] = *b"MPHEAT01";
const HEADER: usize = 40;
const CHECKSUM: usize = 32;
/// Stretches that are remembered at most, of all volumes: 16 GiB of blocks of 4 KiB, a TiB of blocks of 256 KiB.
const STRETCHES_MAX: usize = 4 << 20;
/// What one takes in memory: leaves of a map that grows at its end are little more than half full.
const STRETCH_BYTES: usize = 67;
/// A volume takes as much as so many of them, if it is nearly empty.
const VOLUME: usize = 6;
/// Bytes that are read at a time.
const PIECE: usize = 1 << 20;
/// What is older tells of another time.
const AGE_MAX: Duration = Duration::from_secs(30 * 86_400);

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heat {
    /// Guid of the pool.
    pub pool: u64,
    /// The last transaction group there was.
    pub txg: u64,
    /// Seconds since 1970.
    pub saved: u64,
    volumes: BTreeMap<u64, BTreeMap<u64, Stretch>>,
    stretches: usize,
    /// As many as there may be.
    most: usize,
    /// There were more.
    is_cut: bool,
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
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HeatError {
    /// It cannot be read.
    #[error(transparent)]
    Unreadable(io::Error),
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

impl From<io::Error> for HeatError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Damaged,
            _ => Self::Unreadable(error),
        }
    }
}

impl Heat {
    /// Nothing is warm yet.
    #[must_use]
    pub fn new(pool: u64, txg: u64, saved: u64) -> Self {
        Self { pool, txg, saved, volumes: BTreeMap::new(), stretches: 0, most: STRETCHES_MAX, is_cut: false }
    }

    /// The same in so many bytes of memory: what does not fit is not remembered.
    #[must_use]
    pub fn within(self, memory: usize) -> Self {
        Self { most: STRETCHES_MAX.min(memory / STRETCH_BYTES), ..self }
    }

    /// A block of a volume (by its dataset's object number) is in memory, or on a cache device, or both.
    pub fn note(&mut self, volume: u64, blkid: u64, memory: Option<Warmth>, device: bool) {
        if memory.is_none() && !device {
            return;
        }
        let number = blkid / STRETCH;
        let is_known = self.volumes.get(&volume).is_some_and(|stretches| stretches.contains_key(&number));
        if !is_known {
            if !self.has_room(memory.is_some()) {
                return;
            }
            self.stretches += 1;
        }
        let stretch = self.volumes.entry(volume).or_default().entry(number).or_default();
        let bit = 1 << (blkid % STRETCH);
        stretch.memory |= if memory.is_some() { bit } else { 0 };
        stretch.frequent |= if memory == Some(Warmth::Frequent) { bit } else { 0 };
        stretch.device |= if device { bit } else { 0 };
    }

    /// Whether there is room for another stretch. What is on cache devices only leaves a quarter to what was in memory: there
    /// may be far more of it, and they remember it themselves.
    fn has_room(&mut self, was_in_memory: bool) -> bool {
        let most = if was_in_memory { self.most } else { self.most / 4 * 3 };
        let has_room = self.stretches + VOLUME * self.volumes.len() < most;
        self.is_cut |= !has_room;
        has_room
    }

    /// Whether something was left out for want of memory.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
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

    /// The same from bytes that anybody may have written, as much of it as fits into so many bytes of `memory`. They are read
    /// a piece at a time.
    ///
    /// # Errors
    /// They cannot be read, or are not what [`encode`](Self::encode) made.
    pub fn decode(from: impl Read, memory: usize) -> Result<Self, HeatError> {
        let mut from = Summed { from, sum: Fletcher4::new(codec::Order::Little) };
        let magic: [u8; 8] = array(&mut from)?;
        if magic != MAGIC {
            return Err(HeatError::Format);
        }
        let mut heat = Self::new(word(&mut from)?, word(&mut from)?, word(&mut from)?).within(memory);
        let len = word(&mut from)?;
        let whole = len.checked_next_multiple_of(8).ok_or(HeatError::Damaged)?;
        let mut body = BufReader::with_capacity(PIECE, from.by_ref().take(whole));
        heat.decode_body(body.by_ref().take(len))?;
        io::copy(&mut body, &mut io::sink())?;
        drop(body);
        // Only now it is known whether what was read can be believed.
        let Summed { mut from, sum } = from;
        let told: [u8; CHECKSUM] = array(&mut from)?;
        let is_all = io::copy(&mut from, &mut io::sink())? == 0;
        if told == as_bytes(&sum) && is_all { Ok(heat) } else { Err(HeatError::Damaged) }
    }

    fn decode_body(&mut self, mut body: impl BufRead) -> Result<(), HeatError> {
        while !body.fill_buf()?.is_empty() {
            let (volume, count) = (take(&mut body)?, take(&mut body)?);
            let mut stretches = BTreeMap::new();
            let mut number = 0_u64;
            for _ in 0..count {
                number = number.checked_add(take(&mut body)?).ok_or(HeatError::Damaged)?;
                let [kinds] = array(&mut body)?;
                let mut bits = |shift: u8| -> Result<u64, HeatError> {
                    match kinds >> shift & 3 {
                        0 => Ok(0),
                        1 => Ok(u64::MAX),
                        2 => Ok(word(&mut body)?),
                        _ => Err(HeatError::Damaged),
                    }
                };
                let stretch = Stretch { memory: bits(0)?, frequent: bits(2)?, device: bits(4)? };
                if self.has_room(stretch.memory != 0) {
                    self.stretches += usize::from(stretches.insert(number, stretch).is_none());
                }
            }
            if !stretches.is_empty() && self.volumes.insert(volume, stretches).is_some() {
                return Err(HeatError::Damaged);
            }
        }
        Ok(())
    }
}

/// What is read, summed up on the way.
struct Summed<R> {
    from: R,
    sum: Fletcher4,
}

impl<R: Read> Read for Summed<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let len = self.from.read(into)?;
        self.sum.update(&into[..len]);
        Ok(len)
    }
}

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM] {
    let mut sum = Fletcher4::new(codec::Order::Little);
    sum.update(bytes);
    as_bytes(&sum)
}

fn as_bytes(sum: &Fletcher4) -> [u8; CHECKSUM] {
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

fn take(from: &mut impl Read) -> Result<u64, HeatError> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let [byte] = array(from)?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(HeatError::Damaged)
}

fn word(from: &mut impl Read) -> io::Result<u64> {
    Ok(u64::from_le_bytes(array(from)?))
}

fn array<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
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

    fn decode(bytes: &[u8]) -> Result<Heat, HeatError> {
        Heat::decode(bytes, usize::MAX)
    }

    #[test]
    fn what_is_written_is_read_again_and_is_small() {
        let heat = heat();
        let bytes = heat.encode();
        assert_eq!(decode(&bytes).unwrap(), heat);
        let (memory, device) = heat.blocks();
        assert!(bytes.len() as u64 <= 10 * (memory + device), "{} for {memory} and {device}", bytes.len());
        let mut whole = Heat::new(7, 1, 1);
        (0..64_000).for_each(|blkid| whole.note(1, blkid, Some(Warmth::Recent), false));
        assert!(whole.encode().len() < 2100, "{}", whole.encode().len());
        assert_eq!(decode(&Heat::new(1, 2, 3).encode()).unwrap(), Heat::new(1, 2, 3));
    }

    /// A daemon that moved to a small machine with its state was killed for what a large one had remembered, at every start.
    #[test]
    fn what_a_large_machine_remembers_is_read_as_far_as_there_is_memory() {
        let memory = |stretches: usize| stretches * STRETCH_BYTES;
        let warm = |stretches: u64, bound: usize| {
            let mut heat = Heat::new(7, 1, 1).within(memory(bound));
            (0..stretches).for_each(|number| heat.note(1, number * STRETCH, Some(Warmth::Recent), false));
            heat
        };
        let all = warm(1000, 2000);
        assert!(!all.is_cut());
        let some = Heat::decode(&*all.encode(), memory(100)).unwrap();
        // What a volume takes by itself comes on top, once it is there.
        assert_eq!((some.blocks(), some.is_cut()), ((100, 0), true));
        assert_eq!(some.volumes().next().unwrap().1.last_key_value().unwrap().0, &99, "the first of them");
        // Nor is more made of what is found warm.
        assert_eq!(warm(1000, 100).blocks(), (100 - VOLUME as u64, 0));
        // Many volumes with next to nothing in each do not take more than few with much.
        let mut many = Heat::new(7, 1, 1);
        (0..1000).for_each(|volume| many.note(volume, 0, Some(Warmth::Recent), false));
        let many = Heat::decode(&*many.encode(), memory(700)).unwrap();
        assert_eq!(many.volumes().count(), 100);
    }

    /// What a large cache device held of the first volumes left no room for what was in memory of the others.
    #[test]
    fn what_is_on_cache_devices_leaves_room_for_what_was_in_memory() {
        let fill = |bound: usize| {
            let mut heat = Heat::new(7, 1, 1).within(bound * STRETCH_BYTES);
            (0..1000).for_each(|number| heat.note(1, number * STRETCH, None, true));
            (0..1000).for_each(|number| heat.note(2, number * STRETCH, Some(Warmth::Recent), false));
            heat
        };
        let (memory, device) = fill(400).blocks();
        assert!((90..=100).contains(&memory) && (290..=300).contains(&device), "{memory}, {device}");
        let read = Heat::decode(&*fill(4000).encode(), 400 * STRETCH_BYTES).unwrap();
        let (memory, device) = read.blocks();
        assert!((90..=100).contains(&memory) && (290..=300).contains(&device), "{memory}, {device}");
    }

    #[test]
    fn what_is_torn_or_rotten_or_of_others_is_not_believed() {
        let heat = heat();
        let bytes = heat.encode();
        let is_damaged = |bytes: &[u8]| {
            // Also behind what there is memory for.
            [usize::MAX, 100 * STRETCH_BYTES]
                .iter()
                .all(|memory| matches!(Heat::decode(bytes, *memory), Err(HeatError::Damaged)))
        };
        for cut in (0..bytes.len()).step_by(11).chain(bytes.len() - 2 * CHECKSUM..bytes.len()) {
            assert!(is_damaged(&bytes[..cut]), "{cut}");
        }
        for at in (MAGIC.len()..bytes.len()).step_by(17) {
            let mut rotten = bytes.clone();
            rotten[at] ^= 1 << (at % 8);
            assert!(is_damaged(&rotten), "{at}");
        }
        assert!(is_damaged(&[&bytes[..], &[0]].concat()));
        assert!(matches!(
            decode(b"something else altogether, long enough to be a header"),
            Err(HeatError::Format)
        ));
        let now = 1_700_000_100;
        assert!(heat.check(7, 1000, now).is_ok());
        assert!(matches!(heat.check(8, 1000, now), Err(HeatError::Foreign(7))));
        assert!(matches!(heat.check(7, 999, now), Err(HeatError::Future(1000))));
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
            let _whatever_it_is = decode(&bytes);
        }
    }
}
