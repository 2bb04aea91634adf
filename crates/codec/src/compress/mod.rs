//! Block compression: which algorithms exist, one function each way, and when compressing is worth it.
//!
//! A block pointer names the algorithm, the stored length (psize) and the true length (lsize). The stored
//! bytes end in padding up to the sector, so a decoder gets more than the stream and must stop by itself;
//! and it must produce exactly lsize bytes. Anything else is corruption, whatever the checksum said.
//!
//! | id | algorithm | decoder | stored stream |
//! | --- | --- | --- | --- |
//! | 3 | lzjb | ours | bare |
//! | 5–13 | gzip-1…9 | libdeflate | a zlib stream |
//! | 14 | zle | ours | bare |
//! | 15 | lz4 | liblz4 | big-endian u32 length, then an LZ4 block |
//! | 16 | zstd | libzstd | big-endian u32 length, level and version, then a frame without magic |
//!
//! Decoders never allocate by a length in the data: output goes to the caller's buffer, and the contexts
//! that gzip and zstd need are kept per thread. Facts: docs/format/compression.md.

mod gzip;
mod level;
mod lz4;
mod lzjb;
mod zle;
mod zstd;

pub use level::Level;

/// A compression algorithm. The discriminant is the id on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Algorithm {
    /// Stored as it is.
    Off = 2,
    /// The original LZ77 variant with a 1 KiB window.
    Lzjb = 3,
    /// Zero detection only; never on disk.
    Empty = 4,
    /// Deflate, fastest.
    Gzip1 = 5,
    /// Deflate, level 2.
    Gzip2 = 6,
    /// Deflate, level 3.
    Gzip3 = 7,
    /// Deflate, level 4.
    Gzip4 = 8,
    /// Deflate, level 5.
    Gzip5 = 9,
    /// Deflate, level 6: what `gzip` means.
    Gzip6 = 10,
    /// Deflate, level 7.
    Gzip7 = 11,
    /// Deflate, level 8.
    Gzip8 = 12,
    /// Deflate, best.
    Gzip9 = 13,
    /// Run lengths of zeros.
    Zle = 14,
    /// LZ4 block; the default, and what metadata uses.
    Lz4 = 15,
    /// Zstandard at any [`Level`], zstd-fast included.
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

/// A stream is not valid. The algorithm is added by [`decompress`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Corrupt;

/// Compressed size, in bytes, below which a block fits into its pointer (embedded data).
pub const EMBEDDED_MAX: usize = 112;

impl Algorithm {
    /// The algorithm with this on-disk id; `None` for inherit (0), on (1) and ids not known.
    pub fn from_id(id: u8) -> Option<Self> {
        Some(match id {
            2 => Self::Off,
            3 => Self::Lzjb,
            4 => Self::Empty,
            5 => Self::Gzip1,
            6 => Self::Gzip2,
            7 => Self::Gzip3,
            8 => Self::Gzip4,
            9 => Self::Gzip5,
            10 => Self::Gzip6,
            11 => Self::Gzip7,
            12 => Self::Gzip8,
            13 => Self::Gzip9,
            14 => Self::Zle,
            15 => Self::Lz4,
            16 => Self::Zstd,
            _ => return None,
        })
    }

    /// The id on disk, and bits 0–6 of the `compression` property.
    pub fn id(self) -> u8 {
        self as u8
    }

    /// The name OpenZFS shows in `zdb`; see [`Level`] for the names of zstd's levels.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Lzjb => "lzjb",
            Self::Empty => "empty",
            Self::Gzip1 => "gzip-1",
            Self::Gzip2 => "gzip-2",
            Self::Gzip3 => "gzip-3",
            Self::Gzip4 => "gzip-4",
            Self::Gzip5 => "gzip-5",
            Self::Gzip6 => "gzip-6",
            Self::Gzip7 => "gzip-7",
            Self::Gzip8 => "gzip-8",
            Self::Gzip9 => "gzip-9",
            Self::Zle => "zle",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }

    /// The algorithm OpenZFS calls so; the reverse of [`Algorithm::name`].
    pub fn from_name(name: &str) -> Option<Self> {
        (0..=u8::MAX).filter_map(Self::from_id).find(|algorithm| algorithm.name() == name)
    }

    /// 1–9 for the gzip family.
    fn gzip_level(self) -> Option<u8> {
        (Self::Gzip1..=Self::Gzip9).contains(&self).then(|| self.id() - Self::Gzip1.id() + 1)
    }
}

/// Decompresses the stored bytes `src` (psize, padding included) to exactly `dst.len()` (lsize) bytes.
/// For [`Algorithm::Off`] that is a copy of the first lsize bytes.
///
/// # Errors
/// See [`Error`]; `dst` then holds unspecified bytes.
pub fn decompress(algorithm: Algorithm, src: &[u8], dst: &mut [u8]) -> Result<(), Error> {
    let result = match algorithm {
        Algorithm::Off => match src.get(..dst.len()) {
            Some(plain) => {
                dst.copy_from_slice(plain);
                Ok(())
            }
            None => Err(Corrupt),
        },
        Algorithm::Empty => return Err(Error::NotOnDisk(algorithm)),
        Algorithm::Lzjb => lzjb::decompress(src, dst),
        Algorithm::Zle => zle::decompress(src, dst),
        Algorithm::Lz4 => lz4::decompress(src, dst),
        Algorithm::Zstd => zstd::decompress(src, dst),
        Algorithm::Gzip1
        | Algorithm::Gzip2
        | Algorithm::Gzip3
        | Algorithm::Gzip4
        | Algorithm::Gzip5
        | Algorithm::Gzip6
        | Algorithm::Gzip7
        | Algorithm::Gzip8
        | Algorithm::Gzip9 => gzip::decompress(src, dst),
    };
    result.map_err(|Corrupt| Error::Corrupt(algorithm))
}

/// Compresses `src` into `dst`, whose length is the most it may take (see [`limit`]). Returns the bytes
/// used, unpadded; `None` if it does not fit, and for the algorithms that do not compress: store it plain.
/// `level` matters to zstd only.
pub fn compress(algorithm: Algorithm, level: Level, src: &[u8], dst: &mut [u8]) -> Option<usize> {
    match algorithm {
        Algorithm::Off | Algorithm::Empty => None,
        Algorithm::Lzjb => lzjb::compress(src, dst),
        Algorithm::Zle => zle::compress(src, dst),
        Algorithm::Lz4 => lz4::compress(src, dst),
        Algorithm::Zstd => zstd::compress(level, src, dst),
        gzip => gzip::compress(gzip.gzip_level()?, src, dst),
    }
}

/// The most bytes that the compressed form of `lsize` bytes may take to be worth storing: at least an
/// eighth must be saved, and in whole units of allocation. `min_alloc` and `gcd_alloc` are the smallest
/// allocation of the pool's vdevs and the greatest common divisor of their sizes, in bytes (both
/// `1 << ashift` in a pool of one ashift, of RAIDZ too: parity does not count). Where no allocation could be
/// saved the answer is [`EMBEDDED_MAX`].
pub fn limit(algorithm: Algorithm, lsize: usize, min_alloc: usize, gcd_alloc: usize) -> usize {
    let limit = lsize - lsize / 8;
    if algorithm == Algorithm::Zle {
        return limit;
    }
    let limit = limit - limit.checked_rem(gcd_alloc).unwrap_or(0);
    if limit < min_alloc { EMBEDDED_MAX } else { limit }
}

/// Whether a block holds nothing but zeros, and so becomes a hole unless compression is off.
pub fn is_all_zero(block: &[u8]) -> bool {
    let (lines, rest) = block.as_chunks::<64>();
    lines.iter().all(|line| line.iter().fold(0, |acc, byte| acc | byte) == 0)
        && rest.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_names_are_one_to_one() {
        let known: Vec<Algorithm> = (0..=u8::MAX).filter_map(Algorithm::from_id).collect();
        assert_eq!(known.len(), 15);
        for algorithm in known {
            assert_eq!(Algorithm::from_id(algorithm.id()), Some(algorithm));
            assert_eq!(Algorithm::from_name(algorithm.name()), Some(algorithm));
        }
    }

    #[test]
    fn plain_blocks_are_copied_and_may_be_padded_but_not_short() {
        let mut dst = [0; 3];
        assert_eq!(decompress(Algorithm::Off, b"abcde", &mut dst), Ok(()));
        assert_eq!(&dst, b"abc");
        assert_eq!(decompress(Algorithm::Off, b"ab", &mut dst), Err(Error::Corrupt(Algorithm::Off)));
        assert_eq!(decompress(Algorithm::Empty, b"abc", &mut dst), Err(Error::NotOnDisk(Algorithm::Empty)));
    }

    #[test]
    fn one_bit_anywhere_is_not_zero() {
        for len in [0, 1, 63, 64, 65, 200, 512] {
            let mut block = vec![0u8; len];
            assert!(is_all_zero(&block));
            for at in 0..len {
                block[at] = 0x40;
                assert!(!is_all_zero(&block), "{len} {at}");
                block[at] = 0;
            }
        }
    }
}
