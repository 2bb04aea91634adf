//! A block's content, and the checksum of it if that was computed already.
//!
//! What a client writes passes through the processor's caches when it arrives. By the time its transaction group is
//! synced it is in memory only, and to read it from there for its checksum costs several times the arithmetic. So blocks
//! that will be stored as they are, under a cheap checksum, get it while they are at hand; it also covers the time they
//! wait in memory. Whoever changes the content makes a new value, without a sum.

use std::ops::Deref;

use bytes::Bytes;
use codec::checksum;

use super::prepare::sum;

/// A checksum of stored bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum {
    /// By which algorithm, in little endian.
    pub algorithm: checksum::Algorithm,
    /// Its words as a block pointer has them.
    pub words: [u64; 4],
}

/// Content that may know its checksum.
#[derive(Clone, Debug, Default)]
pub struct Summed {
    content: Bytes,
    sum: Option<Sum>,
}

/// Whether it is so cheap that it may be computed for a block that is perhaps changed before it is stored: a few tenths of
/// a microsecond for 8 KiB.
#[must_use]
pub fn is_cheap(algorithm: checksum::Algorithm) -> bool {
    matches!(algorithm, checksum::Algorithm::Fletcher2 | checksum::Algorithm::Fletcher4)
}

impl Summed {
    /// Content that is in the processor's caches, with its checksum if there is to be one.
    #[must_use]
    pub fn at_hand(content: Bytes, algorithm: Option<checksum::Algorithm>) -> Self {
        // None of the cheap ones can fail.
        let words = |algorithm| sum(algorithm, &content, None).ok().map(|words| Sum { algorithm, words });
        let sum = algorithm.and_then(words);
        Self { content, sum }
    }

    /// The content alone.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.content
    }

    /// Both.
    #[must_use]
    pub fn into_parts(self) -> (Bytes, Option<Sum>) {
        (self.content, self.sum)
    }
}

impl From<Bytes> for Summed {
    fn from(content: Bytes) -> Self {
        Self { content, sum: None }
    }
}

impl Deref for Summed {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.content
    }
}
