//! The state of a scrub or resilver, and the keys of the error log.
//!
//! The state is one entry of the MOS directory, 24 words; the log is a ZAP whose keys say which block
//! was bad, in hexadecimal. With feature `head_errlog` the log is one ZAP per dataset, and keys carry
//! the block's birth instead of the dataset.
//!
//! Facts: docs/format/mos.md §10.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Reason, Result};

/// Where a block is, logically: `zbookmark` to OpenZFS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct BlockBookmark {
    /// Dataset object number of the object set.
    pub objset: u64,
    /// Object number.
    pub object: u64,
    /// Level; negative ones are special (-1: the object set itself, -2: a log block).
    pub level: i64,
    /// Block number in that level.
    pub block_id: u64,
}

impl BlockBookmark {
    /// From its four words.
    #[must_use]
    pub const fn from_words(words: [u64; 4]) -> Self {
        let [objset, object, level, block_id] = words;
        Self { objset, object, level: level.cast_signed(), block_id }
    }

    /// Its four words.
    #[must_use]
    pub const fn to_words(self) -> [u64; 4] {
        [self.objset, self.object, self.level.cast_unsigned(), self.block_id]
    }
}

/// The hexadecimal key of the error log, `objset:object:level:block`.
impl fmt::Display for BlockBookmark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}:{:x}:{:x}:{:x}", self.objset, self.object, self.level, self.block_id)
    }
}

impl FromStr for BlockBookmark {
    type Err = Error;

    fn from_str(key: &str) -> Result<Self> {
        hex_words(key).map(Self::from_words)
    }
}

/// A key of the error log of one dataset (feature `head_errlog`): `object:level:block:birth`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct HeadBookmark {
    /// Object number.
    pub object: u64,
    /// Level.
    pub level: i64,
    /// Block number in that level.
    pub block_id: u64,
    /// Birth txg of the bad block.
    pub birth: u64,
}

impl fmt::Display for HeadBookmark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}:{:x}:{:x}:{:x}", self.object, self.level, self.block_id, self.birth)
    }
}

impl FromStr for HeadBookmark {
    type Err = Error;

    fn from_str(key: &str) -> Result<Self> {
        let [object, level, block_id, birth] = hex_words(key)?;
        Ok(Self { object, level: level.cast_signed(), block_id, birth })
    }
}

/// Exactly four hexadecimal numbers with colons between.
fn hex_words(key: &str) -> Result<[u64; 4]> {
    let bad = || Error::new("error log key", 0, Reason::Inconsistent("not four hexadecimal numbers"));
    let mut words = [0; 4];
    let mut parts = key.split(':');
    for word in &mut words {
        let part = parts.next().ok_or_else(bad)?;
        // `from_str_radix` would take a sign.
        let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_hexdigit());
        *word = u64::from_str_radix(part, 16).ok().filter(|_| digits).ok_or_else(bad)?;
    }
    if parts.next().is_some() { Err(bad()) } else { Ok(words) }
}

/// What a scan does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ScanFunc {
    /// Never ran.
    None,
    /// Reads everything and repairs.
    Scrub,
    /// Brings a device up to date.
    Resilver,
    /// Reads what the error log names; in [`ErrorScrubPhys`] only.
    ErrorScrub,
    /// A number from the future.
    Other(u64),
}

/// How far a scan is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ScanState {
    /// Never started.
    None,
    /// Running.
    Scanning,
    /// Done.
    Finished,
    /// Stopped by the administrator.
    Cancelled,
    /// Running, of a scrub of the error log.
    ErrorScrubbing,
    /// A number from the future.
    Other(u64),
}

impl ScanFunc {
    const fn from_word(word: u64) -> Self {
        match word {
            0 => Self::None,
            1 => Self::Scrub,
            2 => Self::Resilver,
            3 => Self::ErrorScrub,
            other => Self::Other(other),
        }
    }
}

impl ScanState {
    const fn from_word(word: u64) -> Self {
        match word {
            0 => Self::None,
            1 => Self::Scanning,
            2 => Self::Finished,
            3 => Self::Cancelled,
            4 => Self::ErrorScrubbing,
            other => Self::Other(other),
        }
    }
}

/// The `scan` entry of the MOS directory: 24 words, kept whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanPhys {
    words: [u64; 24],
}

impl ScanPhys {
    /// Words of the entry.
    pub const WORDS: usize = 24;

    /// From the entry's words.
    ///
    /// # Errors
    /// Another number of words.
    pub fn from_words(words: &[u64]) -> Result<Self> {
        match words.try_into() {
            Ok(words) => Ok(Self { words }),
            Err(_) => {
                let reason = Reason::OutOfRange { field: "number of words", value: words.len() as u64 };
                Err(Error::new("scan state", 0, reason))
            }
        }
    }

    /// The entry's words.
    #[must_use]
    pub const fn words(&self) -> &[u64; Self::WORDS] {
        &self.words
    }

    /// What it does or did.
    #[must_use]
    pub const fn func(&self) -> ScanFunc {
        ScanFunc::from_word(self.words[0])
    }

    /// How far it is.
    #[must_use]
    pub const fn state(&self) -> ScanState {
        ScanState::from_word(self.words[1])
    }

    /// Object of the datasets still to scan.
    #[must_use]
    pub const fn queue_object(&self) -> u64 {
        self.words[2]
    }

    /// Start and end, seconds since 1970; the end is 0 while it runs.
    #[must_use]
    pub const fn times(&self) -> (u64, u64) {
        (self.words[7], self.words[8])
    }

    /// Bytes: to examine, examined, skipped, processed (repaired).
    #[must_use]
    pub const fn bytes(&self) -> [u64; 4] {
        [self.words[9], self.words[10], self.words[11], self.words[12]]
    }

    /// Errors found.
    #[must_use]
    pub const fn errors(&self) -> u64 {
        self.words[13]
    }

    /// Where it goes on.
    #[must_use]
    pub const fn bookmark(&self) -> BlockBookmark {
        BlockBookmark::from_words([self.words[19], self.words[20], self.words[21], self.words[22]])
    }

    /// Flags.
    #[must_use]
    pub const fn flags(&self) -> u64 {
        self.words[23]
    }
}

/// The `error_scrub` entry of the MOS directory: nine words about the last scrub of what the error log names. It is counted in
/// blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorScrubPhys {
    words: [u64; 9],
}

impl ErrorScrubPhys {
    /// Words of the entry.
    pub const WORDS: usize = 9;

    /// From the entry's words.
    ///
    /// # Errors
    /// Another number of words.
    pub fn from_words(words: &[u64]) -> Result<Self> {
        match words.try_into() {
            Ok(words) => Ok(Self { words }),
            Err(_) => {
                let reason = Reason::OutOfRange { field: "number of words", value: words.len() as u64 };
                Err(Error::new("error scrub state", 0, reason))
            }
        }
    }

    /// One that is over: finished, or stopped by the administrator. `times` are those of [`times`](Self::times), `blocks` how
    /// many there were to examine and how many were.
    #[must_use]
    pub const fn ended(is_finished: bool, times: (u64, u64), blocks: (u64, u64), errors: u64) -> Self {
        let state = if is_finished { 2 } else { 3 };
        Self { words: [3, state, 0, times.0, times.1, blocks.0, blocks.1, errors, 0] }
    }

    /// The entry's words.
    #[must_use]
    pub const fn words(&self) -> &[u64; Self::WORDS] {
        &self.words
    }

    /// What it is: nothing but an error scrub makes sense.
    #[must_use]
    pub const fn func(&self) -> ScanFunc {
        ScanFunc::from_word(self.words[0])
    }

    /// How far it is.
    #[must_use]
    pub const fn state(&self) -> ScanState {
        ScanState::from_word(self.words[1])
    }

    /// Start and end, seconds since 1970; the end is 0 while it runs.
    #[must_use]
    pub const fn times(&self) -> (u64, u64) {
        (self.words[3], self.words[4])
    }

    /// Blocks: to examine, examined.
    #[must_use]
    pub const fn blocks(&self) -> (u64, u64) {
        (self.words[5], self.words[6])
    }

    /// Blocks that could not be read.
    #[must_use]
    pub const fn errors(&self) -> u64 {
        self.words[7]
    }

    /// Whether it is halted.
    #[must_use]
    pub const fn is_paused(&self) -> bool {
        self.words[8] != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_log_keys_read_back() {
        let key = "36:1:0:1a".parse::<BlockBookmark>().unwrap();
        assert_eq!(key, BlockBookmark { objset: 0x36, object: 1, level: 0, block_id: 26 });
        assert_eq!(key.to_string(), "36:1:0:1a");
        let objset = BlockBookmark { objset: 5, object: 0, level: -1, block_id: 0 };
        assert_eq!(objset.to_string(), "5:0:ffffffffffffffff:0");
        assert_eq!(objset.to_string().parse(), Ok(objset));
        assert_eq!("2:0:7:c".parse(), Ok(HeadBookmark { object: 2, level: 0, block_id: 7, birth: 12 }));
        for bad in ["", "1:2:3", "1:2:3:4:5", "1:2:3:+4", "1:2:3:g", "1::3:4", "1:2:3:11111111111111111"] {
            assert!(bad.parse::<BlockBookmark>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_scan_entry_has_24_words() {
        let mut words = [0; 24];
        for (index, word) in words.iter_mut().enumerate() {
            *word = index as u64;
        }
        (words[0], words[1]) = (1, 2);
        let scan = ScanPhys::from_words(&words).unwrap();
        assert_eq!((scan.func(), scan.state()), (ScanFunc::Scrub, ScanState::Finished));
        assert_eq!((scan.errors(), scan.bytes()), (13, [9, 10, 11, 12]));
        assert_eq!(scan.bookmark().object, 20);
        assert_eq!(scan.flags(), 23);
        assert!(ScanPhys::from_words(&words[1..]).is_err());
    }

    #[test]
    fn the_error_scrub_entry_has_nine_words() {
        let scrub = ErrorScrubPhys::from_words(&[3, 4, 5, 6, 7, 8, 9, 10, 1]).unwrap();
        assert_eq!((scrub.func(), scrub.state()), (ScanFunc::ErrorScrub, ScanState::ErrorScrubbing));
        assert_eq!((scrub.times(), scrub.blocks(), scrub.errors()), ((6, 7), (8, 9), 10));
        assert!(scrub.is_paused());
        let over = ErrorScrubPhys::ended(true, (6, 7), (8, 9), 10);
        assert_eq!(over.words(), &[3, 2, 0, 6, 7, 8, 9, 10, 0]);
        assert_eq!(ErrorScrubPhys::ended(false, (6, 7), (8, 9), 10).state(), ScanState::Cancelled);
        assert!(ErrorScrubPhys::from_words(&over.words()[1..]).is_err());
    }
}
