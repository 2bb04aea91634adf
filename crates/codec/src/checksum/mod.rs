//! Block checksums: which algorithms exist, and one function that runs any of them.
//!
//! A checksum is four 64-bit numbers. It is taken over the block as stored (compressed, padded), so a
//! reader verifies first and decompresses afterwards. How digest bytes become numbers differs between
//! algorithms and depends on the writer's byte order; [`compute`] is the only place that knows.
//!
//! Facts: docs/format/checksums.md.

mod edonr;
pub mod embedded;
mod fletcher2;
mod fletcher4;
mod skein;
mod words;

pub use crate::Order;
pub use fletcher2::Fletcher2;
pub use fletcher4::Fletcher4;

use sha2::{Digest, Sha256, Sha512_256};
use std::fmt;

/// The pool's 32 random bytes that key the salted algorithms (`org.illumos:checksum_salt` in the MOS).
pub type Salt = [u8; 32];

/// Four checksum words, as numbers. Printed as OpenZFS prints them: hex, colons, no leading zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Checksum(pub [u64; 4]);

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d] = self.0;
        write!(f, "{a:x}:{b:x}:{c:x}:{d:x}")
    }
}

/// A checksum algorithm. The discriminant is the id on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Algorithm {
    /// No checksum: the words are zero and nothing is verified.
    Off = 2,
    /// Embedded SHA-256 of a label part or uberblock.
    Label = 3,
    /// Embedded SHA-256 of a gang header.
    GangHeader = 4,
    /// Embedded fletcher2 of an old (pool version < 26) log block.
    Zilog = 5,
    /// Two 64-bit lanes of sums; weak.
    Fletcher2 = 6,
    /// Four orders of 64-bit sums over 32-bit words; the default for everything.
    Fletcher4 = 7,
    /// SHA-256.
    Sha256 = 8,
    /// Embedded fletcher4 of a log block.
    Zilog2 = 9,
    /// As `Off`; kept only so that test builds can disable self-repair.
    NoParity = 10,
    /// SHA-512/256.
    Sha512 = 11,
    /// Skein-512-256, keyed with the pool's salt.
    Skein = 12,
    /// Edon-R-512 truncated to 256 bits, keyed with the pool's salt.
    EdonR = 13,
    /// BLAKE3, keyed with the pool's salt.
    Blake3 = 14,
}

/// Why a checksum could not be computed, or did not match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The algorithm is salted, and the pool's salt is not known.
    #[error("checksum {} needs the pool's salt", .0.name())]
    NoSalt(Algorithm),
    /// The algorithm is an embedded form: the block itself carries the words (see [`embedded`]).
    #[error("checksum {} is embedded in the block", .0.name())]
    Embedded(Algorithm),
    /// The block is not what the pointer promised.
    #[error("checksum mismatch: expected {expected}, found {found}")]
    Mismatch {
        /// What the block pointer says.
        expected: Checksum,
        /// What the bytes give.
        found: Checksum,
    },
}

/// How the words in a block pointer relate to the computed ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// All four words are the checksum.
    Whole,
    /// The block is encrypted (and not an object set): words 2 and 3 are a MAC, and words 0 and 1 hold
    /// the truncated or folded checksum. See docs/format/checksums.md, section 5.
    Truncated,
}

impl Algorithm {
    /// The algorithm with this on-disk id; `None` for inherit (0), on (1) and ids not known.
    pub fn from_id(id: u8) -> Option<Self> {
        Some(match id {
            2 => Self::Off,
            3 => Self::Label,
            4 => Self::GangHeader,
            5 => Self::Zilog,
            6 => Self::Fletcher2,
            7 => Self::Fletcher4,
            8 => Self::Sha256,
            9 => Self::Zilog2,
            10 => Self::NoParity,
            11 => Self::Sha512,
            12 => Self::Skein,
            13 => Self::EdonR,
            14 => Self::Blake3,
            _ => return None,
        })
    }

    /// The id on disk and in the `checksum` property.
    pub fn id(self) -> u8 {
        self as u8
    }

    /// The name OpenZFS shows (`zdb`, and the `checksum` property where it can be set).
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Label => "label",
            Self::GangHeader => "gang_header",
            Self::Zilog => "zilog",
            Self::Fletcher2 => "fletcher2",
            Self::Fletcher4 => "fletcher4",
            Self::Sha256 => "sha256",
            Self::Zilog2 => "zilog2",
            Self::NoParity => "noparity",
            Self::Sha512 => "sha512",
            Self::Skein => "skein",
            Self::EdonR => "edonr",
            Self::Blake3 => "blake3",
        }
    }

    /// The algorithm OpenZFS calls so; the reverse of [`Algorithm::name`].
    pub fn from_name(name: &str) -> Option<Self> {
        (0..=u8::MAX).filter_map(Self::from_id).find(|algorithm| algorithm.name() == name)
    }

    /// Whether the pool's salt keys it.
    pub fn is_salted(self) -> bool {
        matches!(self, Self::Skein | Self::EdonR | Self::Blake3)
    }

    /// Whether the words live in the block itself rather than in its pointer.
    pub fn is_embedded(self) -> bool {
        matches!(self, Self::Label | Self::GangHeader | Self::Zilog | Self::Zilog2)
    }

    /// Whether equal checksums are taken to mean equal blocks. Decides also how the checksum of an
    /// encrypted block is shortened.
    pub fn is_dedup_grade(self) -> bool {
        matches!(self, Self::Sha256 | Self::Sha512 | Self::Skein | Self::Blake3)
    }

    /// Whether blocks are verified at all (`off` and `noparity` are not, and so cannot self-repair).
    pub fn is_verified(self) -> bool {
        !matches!(self, Self::Off | Self::NoParity)
    }
}

/// The checksum that a writer of byte order `order` would have put in the pointer of `data`, which are the
/// stored (psize) bytes. `off` and `noparity` give zero words.
///
/// # Errors
/// [`Error::NoSalt`] for a salted algorithm without `salt`; [`Error::Embedded`] for the embedded forms.
pub fn compute(
    algorithm: Algorithm,
    order: Order,
    salt: Option<&Salt>,
    data: &[u8],
) -> Result<Checksum, Error> {
    let salt = || salt.ok_or(Error::NoSalt(algorithm));
    Ok(match algorithm {
        Algorithm::Off | Algorithm::NoParity => Checksum::default(),
        Algorithm::Label | Algorithm::GangHeader | Algorithm::Zilog | Algorithm::Zilog2 => {
            return Err(Error::Embedded(algorithm));
        }
        Algorithm::Fletcher2 => {
            let mut sum = Fletcher2::new(order);
            sum.update(data);
            sum.finish()
        }
        Algorithm::Fletcher4 => {
            let mut sum = Fletcher4::new(order);
            sum.update(data);
            sum.finish()
        }
        Algorithm::Sha256 => sha256_words(&Sha256::digest(data).into()),
        Algorithm::Sha512 => words(order, &Sha512_256::digest(data).into()),
        Algorithm::Skein => words(order, &skein::skein_512_256(salt()?, data)),
        Algorithm::EdonR => words(order, &edonr::edonr_keyed(salt()?, data)),
        Algorithm::Blake3 => words(order, blake3::keyed_hash(salt()?, data).as_bytes()),
    })
}

/// Checks the stored bytes `data` against the words of their block pointer. `off` and `noparity` accept
/// anything.
///
/// # Errors
/// [`Error::Mismatch`] with both values, or as [`compute`].
pub fn verify(
    algorithm: Algorithm,
    order: Order,
    salt: Option<&Salt>,
    form: Form,
    data: &[u8],
    expected: Checksum,
) -> Result<(), Error> {
    if !algorithm.is_verified() {
        return Ok(());
    }
    let found = compute(algorithm, order, salt, data)?;
    let same = match form {
        Form::Whole => found == expected,
        Form::Truncated => found.shortened(algorithm.is_dedup_grade()) == [expected.0[0], expected.0[1]],
    };
    if same { Ok(()) } else { Err(Error::Mismatch { expected, found }) }
}

impl Checksum {
    /// The two words that an encrypted block's pointer keeps: the first two, or all four folded into two
    /// for algorithms whose first words alone are no good hash.
    fn shortened(self, truncate: bool) -> [u64; 2] {
        let [a, b, c, d] = self.0;
        if truncate { [a, b] } else { [a ^ c, b ^ d] }
    }
}

/// SHA-256 is stored as big-endian numbers by every writer (which reverses each 8 bytes of the digest on
/// the media of a little-endian one).
fn sha256_words(digest: &[u8; 32]) -> Checksum {
    words(Order::Big, digest)
}

/// Four words of a digest that the writer copied to media as bytes, as the numbers its pointer then holds.
fn words(order: Order, digest: &[u8; 32]) -> Checksum {
    let mut words = [0u64; 4];
    for (word, bytes) in words.iter_mut().zip(digest.as_chunks::<8>().0) {
        *word = match order {
            Order::Little => u64::from_le_bytes(*bytes),
            Order::Big => u64::from_be_bytes(*bytes),
        };
    }
    Checksum(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_names_are_one_to_one() {
        let known: Vec<Algorithm> = (0..=u8::MAX).filter_map(Algorithm::from_id).collect();
        assert_eq!(known.len(), 13);
        for algorithm in known {
            assert_eq!(Algorithm::from_id(algorithm.id()), Some(algorithm));
            assert_eq!(Algorithm::from_name(algorithm.name()), Some(algorithm));
        }
    }

    #[test]
    fn a_salted_algorithm_without_salt_is_an_error_not_a_guess() {
        for algorithm in [Algorithm::Skein, Algorithm::EdonR, Algorithm::Blake3] {
            assert_eq!(compute(algorithm, Order::Little, None, b""), Err(Error::NoSalt(algorithm)));
        }
        assert_eq!(
            compute(Algorithm::Label, Order::Little, None, b""),
            Err(Error::Embedded(Algorithm::Label))
        );
    }

    /// docs/format/checksums.md, section 5: dedup-grade hashes are cut, the others folded.
    #[test]
    fn an_encrypted_block_is_checked_by_two_words_whatever_the_mac() {
        let data = [7u8; 512];
        for algorithm in [Algorithm::Fletcher4, Algorithm::Sha256] {
            let [a, b, c, d] = compute(algorithm, Order::Little, None, &data).unwrap().0;
            let (x, y) = if algorithm == Algorithm::Sha256 { (a, b) } else { (a ^ c, b ^ d) };
            let check = |words| {
                verify(algorithm, Order::Little, None, Form::Truncated, &data, Checksum(words)).is_ok()
            };
            assert!(check([x, y, 1, 2]));
            assert!(check([x, y, 3, 4]));
            assert!(!check([x ^ 1, y, 1, 2]));
            assert!(!check([x, y ^ 1, 1, 2]));
        }
    }

    #[test]
    fn off_accepts_anything_and_shows_as_openzfs_prints_it() {
        let words = Checksum([0xac, 0, 1, u64::MAX]);
        assert!(verify(Algorithm::Off, Order::Little, None, Form::Whole, b"x", words).is_ok());
        assert_eq!(words.to_string(), "ac:0:1:ffffffffffffffff");
    }
}
