//! Index properties: the words a property may hold and the numbers that stand for them on disk.
//!
//! A list may hold several words for one number; the first is what is printed, the others are accepted
//! when setting. Facts: docs/format/zvol.md §2, docs/format/compression.md §1, docs/format/checksums.md.

use std::borrow::Cow;

/// Words and numbers of an index property, the printed word of a number first.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    list: &'static [(&'static str, u64)],
    /// The high bits of the number are a level of zstd: see [`level_word`].
    has_levels: bool,
}

const fn words(list: &'static [(&'static str, u64)]) -> Words {
    Words { list, has_levels: false }
}

impl Words {
    /// All words, as they may be typed.
    pub fn all(self) -> impl Iterator<Item = &'static str> {
        self.list.iter().map(|(word, _)| *word)
    }
}

/// `off`, `on`.
pub static ON_OFF: Words = words(&[("off", 0), ("on", 1)]);
/// `no`, `yes`.
pub static YES_NO: Words = words(&[("no", 0), ("yes", 1)]);
/// Block checksum algorithms.
pub static CHECKSUM: Words = words(&[
    ("on", 1),
    ("off", 2),
    ("fletcher2", 6),
    ("fletcher4", 7),
    ("sha256", 8),
    ("noparity", 10),
    ("sha512", 11),
    ("skein", 12),
    ("edonr", 13),
    ("blake3", 14),
]);
/// Checksums deduplication goes by; bit 8 asks for a comparison of the bytes as well.
pub static DEDUP: Words = words(&[
    ("on", 1),
    ("off", 2),
    ("verify", 1 | VERIFY),
    ("sha256", 8),
    ("sha256,verify", 8 | VERIFY),
    ("sha512", 11),
    ("sha512,verify", 11 | VERIFY),
    ("skein", 12),
    ("skein,verify", 12 | VERIFY),
    ("edonr,verify", 13 | VERIFY),
    ("blake3", 14),
    ("blake3,verify", 14 | VERIFY),
]);
const VERIFY: u64 = 1 << 8;
/// Block compression, without the levels of zstd: see [`level_word`].
pub static COMPRESSION: Words = Words {
    has_levels: true,
    list: &[
        ("on", 1),
        ("off", 2),
        ("lzjb", 3),
        ("gzip-1", 5),
        ("gzip-2", 6),
        ("gzip-3", 7),
        ("gzip-4", 8),
        ("gzip-5", 9),
        ("gzip", 10),
        ("gzip-6", 10),
        ("gzip-7", 11),
        ("gzip-8", 12),
        ("gzip-9", 13),
        ("zle", 14),
        ("lz4", 15),
        ("zstd", ZSTD),
    ],
};
const ZSTD: u64 = 16;
/// The low bits of a compression value name the algorithm, the rest its level.
const ALGORITHM_BITS: u32 = 7;
/// Level codes above this one are zstd's "fast" levels.
const ZSTD_FAST_BASE: u64 = 102;
/// The level code that means "the algorithm's default".
const LEVEL_DEFAULT: u64 = 255;
/// Extra copies of data.
pub static COPIES: Words = words(&[("1", 1), ("2", 2), ("3", 3)]);
/// What synchronous writes mean.
pub static SYNC: Words = words(&[("standard", 0), ("always", 1), ("disabled", 2)]);
/// What synchronous writes are optimised for.
pub static LOGBIAS: Words = words(&[("latency", 0), ("throughput", 1)]);
/// What a cache may hold; also what prefetch may fetch.
pub static CACHE: Words = words(&[("none", 0), ("metadata", 1), ("all", 2)]);
/// Direct I/O.
pub static DIRECT: Words = words(&[("disabled", 0), ("standard", 1), ("always", 2)]);
/// How a volume shows itself on the host.
pub static VOLMODE: Words = words(&[("default", 0), ("full", 1), ("geom", 1), ("dev", 2), ("none", 3)]);
/// Whether snapshots' device nodes are shown.
pub static SNAPDEV: Words = words(&[("hidden", 0), ("visible", 1)]);
/// Whether `.zfs` is listed.
pub static SNAPDIR: Words = words(&[("hidden", 0), ("visible", 1), ("disabled", 2)]);
/// What `chmod` does to an access control list.
pub static ACLMODE: Words = words(&[("discard", 0), ("groupmask", 2), ("passthrough", 3), ("restricted", 4)]);
/// What new files inherit of one.
pub static ACLINHERIT: Words = words(&[
    ("discard", 0),
    ("noallow", 1),
    ("restricted", 4),
    ("secure", 4),
    ("passthrough", 3),
    ("passthrough-x", 5),
]);
/// Which kind of access control list.
pub static ACLTYPE: Words =
    words(&[("off", 0), ("disabled", 0), ("noacl", 0), ("posix", 1), ("posixacl", 1), ("nfsv4", 2)]);
/// Where extended attributes are kept.
pub static XATTR: Words = words(&[("off", 0), ("dir", 1), ("sa", 2), ("on", 2)]);
/// Whether a file system may be mounted.
pub static CANMOUNT: Words = words(&[("off", 0), ("on", 1), ("noauto", 2)]);
/// How names of files compare.
pub static CASE: Words = words(&[("sensitive", 0), ("insensitive", 1), ("mixed", 2)]);
/// Unicode form names are compared in.
pub static NORMALIZATION: Words =
    words(&[("none", 0), ("formD", 0x10), ("formKC", 0x60), ("formC", 0x50), ("formKD", 0x20)]);
/// Bytes of a new dnode.
pub static DNODESIZE: Words = words(&[
    ("legacy", 0),
    ("auto", 1),
    ("1k", 1024),
    ("2k", 2048),
    ("4k", 4096),
    ("8k", 8192),
    ("16k", 16384),
]);
/// How much metadata has an extra copy.
pub static REDUNDANT_METADATA: Words = words(&[("all", 0), ("most", 1), ("some", 2), ("none", 3)]);
/// Encryption suites.
pub static ENCRYPTION: Words = words(&[
    ("off", 2),
    ("aes-128-ccm", 3),
    ("aes-192-ccm", 4),
    ("aes-256-ccm", 5),
    ("aes-128-gcm", 6),
    ("aes-192-gcm", 7),
    ("aes-256-gcm", 8),
    ("on", 8),
]);
/// Form of the user's key.
pub static KEYFORMAT: Words = words(&[("none", 0), ("raw", 1), ("hex", 2), ("passphrase", 3)]);
/// Whether the key is loaded.
pub static KEYSTATUS: Words = words(&[("none", 0), ("unavailable", 1), ("available", 2)]);
/// Version of the file system layer.
pub static ZPL_VERSION: Words = words(&[("1", 1), ("2", 2), ("3", 3), ("4", 4), ("5", 5), ("current", 5)]);
/// What a pool does when it loses too many devices.
pub static FAILMODE: Words = words(&[("wait", 0), ("continue", 1), ("panic", 2)]);

/// The printed word of `value`.
#[must_use]
pub fn word(words: Words, value: u64) -> Option<Cow<'static, str>> {
    let (number, level) = match words.has_levels {
        true => (value & ((1 << ALGORITHM_BITS) - 1), value >> ALGORITHM_BITS),
        false => (value, 0),
    };
    if number == ZSTD && level != 0 && level != LEVEL_DEFAULT {
        return level_word(level);
    }
    words.list.iter().find(|(_, known)| *known == number).map(|(word, _)| Cow::Borrowed(*word))
}

/// The number `word` stands for.
#[must_use]
pub fn number(words: Words, word: &str) -> Option<u64> {
    if let Some((_, number)) = words.list.iter().find(|(known, _)| *known == word) {
        return Some(*number);
    }
    words.has_levels.then(|| zstd_number(word.strip_prefix("zstd-")?)).flatten()
}

/// The word of a level of zstd.
///
/// The level code counts 1…19 as themselves; 103…112 are `fast-1`…`fast-10`, then in tens up to
/// `fast-100`, then `fast-500` and `fast-1000`. `zstd-fast` is what `fast-1` prints as.
fn level_word(level: u64) -> Option<Cow<'static, str>> {
    Some(Cow::Owned(match level {
        1..=19 => format!("zstd-{level}"),
        level if level == ZSTD_FAST_BASE + 1 => "zstd-fast".to_owned(),
        _ => format!("zstd-fast-{}", fast_level(level)?),
    }))
}

/// What `fast-N` a level code means.
fn fast_level(code: u64) -> Option<u64> {
    match code.checked_sub(ZSTD_FAST_BASE)? {
        n @ 1..=10 => Some(n),
        n @ 11..=19 => Some((n - 9) * 10),
        20 => Some(500),
        21 => Some(1000),
        _ => None,
    }
}

fn zstd_number(level: &str) -> Option<u64> {
    let code = match level.strip_prefix("fast-") {
        Some("") => return None,
        Some(fast) => {
            let fast: u64 = fast.parse().ok()?;
            (ZSTD_FAST_BASE + 1..=ZSTD_FAST_BASE + 21).find(|code| fast_level(*code) == Some(fast))?
        }
        None if level == "fast" => ZSTD_FAST_BASE + 1,
        None => level.parse().ok().filter(|level| (1..=19).contains(level))?,
    };
    Some(ZSTD | code << ALGORITHM_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_has_a_number_and_every_number_prints_as_a_word_of_itself() {
        for words in [
            ON_OFF,
            YES_NO,
            CHECKSUM,
            DEDUP,
            COMPRESSION,
            COPIES,
            SYNC,
            LOGBIAS,
            CACHE,
            DIRECT,
            VOLMODE,
            SNAPDEV,
            SNAPDIR,
            ACLMODE,
            ACLINHERIT,
            ACLTYPE,
            XATTR,
            CANMOUNT,
            CASE,
            NORMALIZATION,
            DNODESIZE,
            REDUNDANT_METADATA,
            ENCRYPTION,
            KEYFORMAT,
            KEYSTATUS,
            ZPL_VERSION,
            FAILMODE,
        ] {
            for (text, value) in words.list {
                assert_eq!(number(words, text), Some(*value));
                let printed = word(words, *value).unwrap();
                assert_eq!(number(words, &printed), Some(*value), "{text} prints as {printed}");
            }
        }
        assert_eq!(word(ENCRYPTION, 8).as_deref(), Some("aes-256-gcm"));
        assert_eq!(word(CHECKSUM, 99), None);
    }

    #[test]
    fn levels_of_zstd_round_trip() {
        for level in 1..=19 {
            let text = format!("zstd-{level}");
            let value = number(COMPRESSION, &text).unwrap();
            assert_eq!(word(COMPRESSION, value).as_deref(), Some(text.as_str()));
        }
        for level in [2, 9, 10, 20, 30, 100, 500, 1000] {
            let text = format!("zstd-fast-{level}");
            let value = number(COMPRESSION, &text).unwrap();
            assert_eq!(word(COMPRESSION, value).as_deref(), Some(text.as_str()));
        }
        assert_eq!(number(COMPRESSION, "zstd-fast-1"), number(COMPRESSION, "zstd-fast"));
        assert_eq!(number(COMPRESSION, "zstd-fast-1000"), Some(16 | 123 << 7));
        assert_eq!(number(COMPRESSION, "zstd-20"), None);
        assert_eq!(number(COMPRESSION, "zstd-fast-11"), None);
        assert_eq!(word(COMPRESSION, 16).as_deref(), Some("zstd"));
    }
}
