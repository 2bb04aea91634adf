//! Dataset names as iSCSI names, one to one.
//!
//! An iSCSI name has lower-case letters, digits, `-`, `.` and `:` only, and at most 223 bytes (RFC 7143
//! §4.2.7); a dataset name has more. The escape keeps names readable and is undone by [`dataset`]:
//!
//! | in the dataset name | in the iSCSI name |
//! |---|---|
//! | `a`–`z`, `0`–`9`, `-` | itself |
//! | `/` | `:` |
//! | `@` | `::` |
//! | `A`–`Z` | `.` and the letter in lower case |
//! | `.` | `..` |
//! | `_` | `.-` |
//! | `:` | `.0` |
//! | space | `.1` |
//! | `%` | `.2` |
//! | a `/` beside another `/` or `@` (no valid name has one) | `.3` |
//! | any other byte | `.9` and two hexadecimal digits |
//!
//! So `tank/vm_disks/Win-2025@monday` is `iqn.2026-11.io.millpond:tank:vm.-disks:.win-2025::monday`.
//!
//! A name too long for that is cut and closed with `.8` and 128 bits of its SHA-256: still the same at
//! every start and different for every two names, but no longer to be undone.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// The naming authority, and the date from which it is ours.
pub const AUTHORITY: &str = "iqn.2026-11.io.millpond:";

/// Longest iSCSI name, in bytes.
pub const NAME_MAX: usize = 223;

/// Whether a target of this name may belong to that pool: the name of one of its datasets, or one that somebody chose.
#[must_use]
pub fn may_be_of_pool(name: &str, pool: &str) -> bool {
    let below = for_dataset(pool);
    !name.starts_with(AUTHORITY)
        || name.strip_prefix(&below).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

/// The iSCSI name of a volume or snapshot.
pub fn for_dataset(name: &str) -> String {
    let mut iqn = AUTHORITY.to_owned();
    let bytes = name.as_bytes();
    let mut before = None;
    for (byte, after) in bytes.iter().zip(bytes.iter().skip(1).map(Some).chain([None])) {
        let separator = |b: Option<&u8>| matches!(b, Some(b'/' | b'@'));
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'-' => iqn.push(char::from(*byte)),
            b'A'..=b'Z' => {
                iqn.push('.');
                iqn.push(char::from(byte.to_ascii_lowercase()));
            }
            b'/' if separator(before) || separator(after) => iqn.push_str(".3"),
            b'/' => iqn.push(':'),
            b'@' => iqn.push_str("::"),
            b'.' => iqn.push_str(".."),
            b'_' => iqn.push_str(".-"),
            b':' => iqn.push_str(".0"),
            b' ' => iqn.push_str(".1"),
            b'%' => iqn.push_str(".2"),
            other => write!(iqn, ".9{other:02x}").expect("a String takes all"),
        }
        before = Some(byte);
    }
    if iqn.len() > NAME_MAX {
        let digest = Sha256::digest(bytes);
        // ".8" and 32 digits; every byte of `iqn` is ASCII, so it may be cut anywhere.
        iqn.truncate(NAME_MAX.saturating_sub(34));
        iqn.push_str(".8");
        for byte in digest.iter().take(16) {
            write!(iqn, "{byte:02x}").expect("a String takes all");
        }
    }
    iqn
}

/// The dataset name that [`for_dataset`] made this of; `None` for names it did not make or had to cut.
pub fn dataset(iqn: &str) -> Option<String> {
    let mut rest = iqn.strip_prefix(AUTHORITY)?.bytes().peekable();
    let mut name = Vec::new();
    while let Some(byte) = rest.next() {
        name.push(match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'-' => byte,
            b':' if rest.next_if_eq(&b':').is_some() => b'@',
            b':' => b'/',
            b'.' => match rest.next()? {
                letter @ b'a'..=b'z' => letter.to_ascii_uppercase(),
                b'.' => b'.',
                b'-' => b'_',
                b'0' => b':',
                b'1' => b' ',
                b'2' => b'%',
                b'3' => b'/',
                b'9' => {
                    let digits = [rest.next()?, rest.next()?];
                    u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
                }
                _ => return None,
            },
            _ => return None,
        });
    }
    let name = String::from_utf8(name).ok()?;
    // Only what we would say ourselves: two spellings of one name would be two targets.
    (for_dataset(&name) == iqn).then_some(name)
}

/// Whether a string has the form of an iSCSI name (RFC 7143 §4.2.7, RFC 3722).
pub fn is_valid(name: &str) -> bool {
    is_typed(name)
        && name.len() <= NAME_MAX
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b':'))
}

/// Whether a string begins as iSCSI names do.
pub fn is_typed(name: &str) -> bool {
    ["iqn.", "eui.", "naa."].iter().any(|start| name.starts_with(start))
}

/// Whether an initiator may have this name. Hosts have names that are not quite of the form; but a comma ends the name in that of
/// an initiator port (`iqn…,i,0x…`), so that who had one would pass for somebody else.
pub fn may_be_host(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= NAME_MAX
        && !name.chars().any(|c| c == ',' || c.is_whitespace() || c.is_control())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_stay_readable() {
        for (name, suffix) in [
            ("tank/vm1", "tank:vm1"),
            ("tank/vm1@monday", "tank:vm1::monday"),
            ("tank/vm_disks/Win-2025@auto.1:00", "tank:vm.-disks:.win-2025::auto..1.000"),
            ("pool 1/%recv", "pool.11:.2recv"),
        ] {
            assert_eq!(for_dataset(name), format!("{AUTHORITY}{suffix}"));
            assert_eq!(dataset(&for_dataset(name)).as_deref(), Some(name));
        }
    }

    #[test]
    fn a_name_that_is_too_long_is_cut_but_stays_its_own() {
        let (a, b) = (format!("tank/{}a", "x".repeat(250)), format!("tank/{}b", "x".repeat(250)));
        let (a, b) = (for_dataset(&a), for_dataset(&b));
        assert_eq!((a.len(), b.len()), (NAME_MAX, NAME_MAX));
        assert_ne!(a, b);
        assert_eq!((is_valid(&a), dataset(&a)), (true, None));
    }

    #[test]
    fn hosts_may_have_the_names_they_have_and_none_that_would_be_read_as_anothers() {
        let longest = "x".repeat(NAME_MAX);
        for name in [
            "iqn.1991-05.com.microsoft:HOST-1.example.com",
            "iqn.1998-01.com.vmware:esx_01.lab.example.com:1234567890:64",
            "iqn.2005-03.org.open-iscsi:3f5a7c9e1b",
            "iqn.2008-11.org.linux-kvm:4dcd2c33-8ae7-4e1c-9b0f-0d6d8c3a9d4f",
            "eui.02004567A425678D",
            "naa.52004567BA64678D",
            "iqn.2001-04.com.example:диск",
            longest.as_str(),
        ] {
            assert!(may_be_host(name), "{name}");
        }
        for name in ["iqn.victim,i,0x00023d000001", "iqn.a b", "iqn.a\tb", "iqn.a\u{7f}", "iqn.a\u{a0}b", ""]
        {
            assert!(!may_be_host(name), "{name:?}");
        }
        assert!(!may_be_host(&format!("{longest}x")));
    }

    proptest! {
        #[test]
        fn every_name_comes_back(name in "[A-Za-z0-9_.:/@% -]{0,80}|.{0,40}") {
            let iqn = for_dataset(&name);
            prop_assert!(is_valid(&iqn) && !iqn.bytes().any(|b| b.is_ascii_uppercase()));
            if !iqn.contains(".8") || iqn.len() < NAME_MAX {
                prop_assert_eq!(dataset(&iqn), Some(name)); // which also makes it injective
            }
        }

        #[test]
        fn anything_may_be_asked(iqn in "(iqn.2026-11.io.millpond:)?[a-z0-9.:@-]{0,60}") {
            if let Some(name) = dataset(&iqn) {
                prop_assert_eq!(for_dataset(&name), iqn);
            }
        }
    }
}
