//! What clients wrote, and what a pool may answer: every unit of a volume knows the version it has for sure, those
//! that a power cut may take back, and those whose fate nobody told.
//!
//! A unit's bytes name volume, unit and version, so that a wrong answer says what it is: somebody else's bytes, an
//! older version, a torn one.

use std::fmt::Write as _;

use parking_lot::Mutex;

/// Bytes of a unit; nothing smaller is written.
pub(crate) const UNIT: usize = 4096;

const MAGIC: u32 = 0x6d70_6f6e;

/// One volume's units.
pub(crate) struct Ledger {
    volume: u32,
    book: Mutex<Book>,
}

struct Book {
    units: Vec<Unit>,
    next: u32,
    /// While a snapshot is taken: what each unit was since it was asked for.
    recorded: Option<Frozen>,
}

/// Versions in the order in which they were written. Version 0 is zeroes.
#[derive(Clone, Debug)]
struct Unit {
    /// The first is durable; each later one may be what a power cut leaves.
    candidates: Vec<u32>,
    /// Index of the last that was acknowledged: what a read may not fall behind.
    acknowledged: usize,
}

/// What a snapshot may hold, by unit.
pub(crate) type Frozen = Vec<Vec<u32>>;

impl Ledger {
    pub(crate) fn new(volume: u32, units: usize) -> Self {
        let units = vec![Unit { candidates: vec![0], acknowledged: 0 }; units];
        Self { volume, book: Mutex::new(Book { units, next: 1, recorded: None }) }
    }

    /// A volume that begins as what a snapshot of this one holds. Its own versions are told from all others by
    /// `number`.
    pub(crate) fn descendant(&self, number: u32, frozen: &Frozen) -> Self {
        let unit = |versions: &Vec<u32>| Unit { candidates: versions.clone(), acknowledged: 0 };
        let units = frozen.iter().map(unit).collect();
        Self { volume: self.volume, book: Mutex::new(Book { units, next: number << 20, recorded: None }) }
    }

    /// The bytes of a new version of `count` units, which from now on may be found.
    pub(crate) fn begin(&self, first: usize, count: usize) -> (u32, Vec<u8>) {
        let mut book = self.book.lock();
        let version = book.next;
        book.next += 1;
        let mut bytes = Vec::with_capacity(count * UNIT);
        for number in first..first + count {
            book.units[number].candidates.push(version);
            if let Some(recorded) = &mut book.recorded {
                recorded[number].push(version);
            }
            bytes.extend(self.bytes(number, version));
        }
        (version, bytes)
    }

    /// The write was acknowledged.
    pub(crate) fn acknowledge(&self, first: usize, count: usize, version: u32, stable: bool) {
        let mut book = self.book.lock();
        for unit in &mut book.units[first..first + count] {
            let at = unit.candidates.iter().position(|candidate| *candidate == version);
            unit.acknowledged = at.expect("a version that was begun");
            if stable {
                unit.forget_before(unit.acknowledged);
            }
        }
    }

    /// Zeroes may be found from now on.
    pub(crate) fn begin_zeroes(&self, first: usize, count: usize) {
        let mut book = self.book.lock();
        let Book { units, recorded, .. } = &mut *book;
        for number in first..first + count {
            units[number].candidates.push(0);
            if let Some(recorded) = recorded {
                recorded[number].push(0);
            }
        }
    }

    /// They were acknowledged. Nobody else writes what the asker owns, so that the last zeroes are the ones.
    pub(crate) fn acknowledge_zeroes(&self, first: usize, count: usize, stable: bool) {
        let mut book = self.book.lock();
        for unit in &mut book.units[first..first + count] {
            let at = unit.candidates.iter().rposition(|candidate| *candidate == 0);
            unit.acknowledged = at.expect("zeroes that were begun");
            if stable {
                unit.forget_before(unit.acknowledged);
            }
        }
    }

    /// What is acknowledged now, by unit: to be handed to [`durable`](Self::durable).
    pub(crate) fn marks(&self) -> Vec<u32> {
        self.book.lock().units.iter().map(|unit| unit.candidates[unit.acknowledged]).collect()
    }

    /// What was acknowledged at the marks can no longer be lost.
    pub(crate) fn durable(&self, marks: &[u32]) {
        for (unit, mark) in self.book.lock().units.iter_mut().zip(marks) {
            // A stable write since then has forgotten it already. Of several zeroes it is the first at the least.
            if let Some(at) = unit.candidates.iter().position(|candidate| candidate == mark) {
                unit.forget_before(at);
            }
        }
    }

    /// A snapshot is asked for: what is there now it may hold, and what is written until it is there.
    pub(crate) fn begin_snapshot(&self) {
        let mut book = self.book.lock();
        let now = book.units.iter().map(|unit| unit.candidates[unit.acknowledged..].to_vec()).collect();
        book.recorded = Some(now);
    }

    /// It is there, or will never be.
    pub(crate) fn end_snapshot(&self) -> Frozen {
        self.book.lock().recorded.take().expect("a snapshot that was begun")
    }

    /// The volume was rolled back while nobody used it.
    pub(crate) fn roll_back(&self, frozen: &Frozen) {
        for (unit, versions) in self.book.lock().units.iter_mut().zip(frozen) {
            *unit = Unit { candidates: versions.clone(), acknowledged: 0 };
        }
    }

    /// Checks what a client read.
    pub(crate) fn check(&self, first: usize, bytes: &[u8]) -> Result<(), String> {
        let book = self.book.lock();
        self.compare(first, bytes, |number| &book.units[number].candidates[book.units[number].acknowledged..])
    }

    /// Checks what a snapshot holds.
    pub(crate) fn check_frozen(&self, frozen: &Frozen, bytes: &[u8]) -> Result<(), String> {
        self.compare(0, bytes, |number| &frozen[number])
    }

    /// Checks what is found after the power came back, and takes it for what is from now on. `readable` tells of
    /// each unit whether its bytes could be had at all; what could not stays as uncertain as it was. With
    /// `any_version` devices have lied about what is durable: anything that was ever written may be found.
    pub(crate) fn settle(
        &self,
        bytes: &[u8],
        readable: impl Fn(usize) -> bool,
        any_version: bool,
    ) -> Result<(), String> {
        let mut book = self.book.lock();
        for (number, piece) in bytes.chunks(UNIT).enumerate() {
            if !readable(number) {
                book.units[number].acknowledged = 0;
                continue;
            }
            let version = version_of(piece);
            let ever = [version];
            let is_known = any_version && version < book.next;
            self.compare(
                number,
                piece,
                |number| if is_known { &ever } else { &book.units[number].candidates },
            )?;
            book.units[number] = Unit { candidates: vec![version], acknowledged: 0 };
        }
        Ok(())
    }

    pub(crate) fn units(&self) -> usize {
        self.book.lock().units.len()
    }

    fn compare<'a>(
        &self,
        first: usize,
        bytes: &[u8],
        allowed: impl Fn(usize) -> &'a [u32],
    ) -> Result<(), String> {
        for (number, piece) in (first..).zip(bytes.chunks(UNIT)) {
            let version = version_of(piece);
            let allowed = allowed(number);
            if allowed.contains(&version) && piece == self.bytes(number, version) {
                continue;
            }
            let mut text = format!("volume {} unit {number}: ", self.volume);
            let right = piece == self.bytes(number, version);
            let what = if right { "version" } else { "no version, the header says" };
            write!(text, "{what} {version} where {allowed:?} may be").expect("a String takes any text");
            return Err(text);
        }
        Ok(())
    }

    fn bytes(&self, unit: usize, version: u32) -> Vec<u8> {
        if version == 0 {
            return vec![0; UNIT];
        }
        let mut bytes = vec![0x5a; UNIT];
        let (head, body) = bytes.split_at_mut(16);
        for (place, word) in head.chunks_exact_mut(4).zip([MAGIC, self.volume, unit as u32, version]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let mut state = (u64::from(version) << 32 ^ (unit as u64) << 8 ^ u64::from(self.volume))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            | 1;
        // One version in four compresses well.
        let noise = if version.is_multiple_of(4) { 240 } else { body.len() };
        for place in body[..noise].chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            place.copy_from_slice(&state.to_le_bytes());
        }
        bytes
    }
}

impl Unit {
    fn forget_before(&mut self, at: usize) {
        self.candidates.drain(..at);
        self.acknowledged = self.acknowledged.saturating_sub(at);
    }
}

/// What the header says; 0 for zeroes and for anything that is no unit.
fn version_of(piece: &[u8]) -> u32 {
    let word = |at: usize| u32::from_le_bytes([piece[at], piece[at + 1], piece[at + 2], piece[at + 3]]);
    if word(0) == MAGIC { word(12) } else { 0 }
}

#[test]
fn a_ledger_knows_what_may_be_found() {
    let ledger = Ledger::new(7, 4);
    let (one, bytes_one) = ledger.begin(1, 1);
    assert!(ledger.check(1, &bytes_one).is_ok() && ledger.check(1, &[0; UNIT]).is_ok());
    ledger.acknowledge(1, 1, one, false);
    assert!(ledger.check(1, &[0; UNIT]).is_err(), "a read falls behind what was acknowledged");
    assert!(ledger.check(2, &bytes_one).is_err(), "another unit's bytes");
    let marks = ledger.marks();
    ledger.begin_snapshot();
    let (two, bytes_two) = ledger.begin(1, 1);
    ledger.acknowledge(1, 1, two, false);
    ledger.durable(&marks);
    assert_eq!(ledger.end_snapshot()[1], [one, two]);
    let mut torn = bytes_two.clone();
    torn[4000] ^= 1;
    assert!(ledger.check(1, &torn).is_err(), "a torn version");
    let all = |unit: &[u8]| [&[0; UNIT][..], unit, &[0; UNIT], &[0; UNIT]].concat();
    assert!(ledger.settle(&all(&[0; UNIT]), |_| true, false).is_err(), "what was durable is lost");
    ledger.settle(&all(&bytes_one), |_| true, false).unwrap();
    assert!(ledger.check(1, &bytes_two).is_err(), "what the power cut took does not come back");
}
