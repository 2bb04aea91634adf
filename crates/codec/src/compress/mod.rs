//! Block compression: ids, and one function each way. Facts: docs/format/compression.md.

/// A compression algorithm. The discriminant is the id on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[expect(missing_docs, reason = "gzip levels name themselves")]
pub enum Algorithm {
    /// Stored as it is.
    Off = 2,
    /// The original LZ77 variant.
    Lzjb = 3,
    /// Zero detection only; never on disk.
    Empty = 4,
    Gzip1 = 5,
    Gzip2 = 6,
    Gzip3 = 7,
    Gzip4 = 8,
    Gzip5 = 9,
    Gzip6 = 10,
    Gzip7 = 11,
    Gzip8 = 12,
    Gzip9 = 13,
    /// Run lengths of zeros.
    Zle = 14,
    /// LZ4 block.
    Lz4 = 15,
    /// Zstandard, including zstd-fast.
    Zstd = 16,
}

/// Why a block could not be decompressed. All of them mean: treat the block as corrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The stored bytes are not a valid stream, or not one of exactly the promised length.
    #[error("corrupt {} stream", .0.name())]
    Corrupt(Algorithm),
    /// The id never stands for stored data.
    #[error("compression {} is not used on disk", .0.name())]
    NotOnDisk(Algorithm),
}

/// How hard zstd tries: the level code that is stored with each block. Other algorithms ignore it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Level(u8);

impl Level {
    /// zstd-3.
    pub const DEFAULT: Self = Self(3);
}

impl Algorithm {
    /// The algorithm with this on-disk id; `None` for inherit (0), on (1) and ids not known.
    pub fn from_id(id: u8) -> Option<Self> {
        let _ = id;
        None
    }
    /// The id on disk.
    pub fn id(self) -> u8 {
        self as u8
    }
    /// The name OpenZFS shows.
    pub fn name(self) -> &'static str {
        ""
    }
}

/// Decompresses the stored bytes `src` (psize, padding included) to exactly `dst.len()` (lsize) bytes.
///
/// # Errors
/// [`Error::Corrupt`]; `dst` then holds unspecified bytes.
pub fn decompress(algorithm: Algorithm, src: &[u8], dst: &mut [u8]) -> Result<(), Error> {
    let _ = (src, dst);
    Err(Error::Corrupt(algorithm))
}

/// Compresses `src` into `dst`, whose length is the limit. Returns the bytes used, `None` if it does not fit.
pub fn compress(algorithm: Algorithm, level: Level, src: &[u8], dst: &mut [u8]) -> Option<usize> {
    let _ = (algorithm, level, src, dst);
    None
}
