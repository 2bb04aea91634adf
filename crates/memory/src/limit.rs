//! What this process may have at most, and where that comes from.
//!
//! A limit that somebody gave must be one that can be kept: more than the machine or the cgroup has is refused, as is
//! less than serving takes. Nobody gave one: a cgroup's limit less what the kernel needs for the process, or three
//! quarters of the machine.

use std::{fmt, str::FromStr};

use crate::{human, machine::Machine};

/// Serving takes that much: the program itself, a request from each of many clients, a transaction group, and a cache
/// that makes sense of block pointers.
pub const MINIMUM: u64 = 128 << 20;

/// What somebody asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Bytes.
    Bytes(u64),
    /// Percent of what the cgroup allows, or of the machine's memory.
    Percent(u8),
}

impl FromStr for Wish {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("'{text}' is not a size: give bytes, a size like 8G, or a share like 50%");
        if let Some(percent) = text.strip_suffix('%') {
            let percent: u8 = percent.parse().map_err(|_| bad())?;
            return if (1..=100).contains(&percent) { Ok(Self::Percent(percent)) } else { Err(bad()) };
        }
        let upper = text.trim().to_ascii_uppercase();
        let plain = upper.trim_end_matches("IB").trim_end_matches('B');
        let digits = plain.trim_end_matches(['K', 'M', 'G', 'T']);
        let unit = match &plain[digits.len()..] {
            "" => 1.0,
            "K" => 1024.0,
            "M" => 1_048_576.0,
            "G" => 1_073_741_824.0,
            "T" => 1_099_511_627_776.0,
            _ => return Err(bad()),
        };
        let value: f64 = digits.parse().map_err(|_| bad())?;
        let bytes = value * unit;
        if bytes.is_finite() && (1.0..1e18).contains(&bytes) {
            Ok(Self::Bytes(bytes as u64))
        } else {
            Err(bad())
        }
    }
}

/// Where a limit comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Somebody said so.
    Given,
    /// A cgroup's limit, less a reserve: its path, the file, and what that says.
    Cgroup(String, &'static str, u64),
    /// A share of the machine's memory, which is this.
    Machine(u64),
    /// The machine does not say how much it has.
    Guess,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Given => f.write_str("--memory-limit"),
            Self::Cgroup(name, file, bytes) => write!(f, "{file} of cgroup {name} is {}", human(*bytes)),
            Self::Machine(bytes) => write!(f, "three quarters of the machine's {}", human(*bytes)),
            Self::Guess => f.write_str("the machine does not say how much memory it has"),
        }
    }
}

/// The limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Bytes that may be resident.
    pub bytes: u64,
    /// Where it comes from.
    pub origin: Origin,
}

/// Why there can be none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// Not enough to serve.
    #[error(
        "{} of memory are too little: serving takes {} at least; {remedy}",
        human(*bytes),
        human(MINIMUM)
    )]
    TooSmall {
        /// What there would be.
        bytes: u64,
        /// What to do.
        remedy: String,
    },
    /// More than there is.
    #[error("--memory-limit {} is more than {whole}, {}: {remedy}", human(*bytes), human(*most))]
    TooLarge {
        /// What was asked for.
        bytes: u64,
        /// What there is.
        most: u64,
        /// Whose it is.
        whole: String,
        /// What to do.
        remedy: String,
    },
}

/// What is left to the kernel in a cgroup: page tables, sockets, pages of files that are being written.
fn kept_back(cgroup: u64) -> u64 {
    (cgroup / 16).clamp(16 << 20, 1 << 30)
}

/// The limit of this process.
///
/// # Errors
/// See [`LimitError`].
pub fn limit(wish: Option<Wish>, machine: &Machine) -> Result<Limit, LimitError> {
    let total = machine.total();
    // A limit above what the machine has binds nobody.
    let bound = machine.cgroup().bound().filter(|bound| total.is_none_or(|total| bound.bytes < total));
    let most = bound.as_ref().map(|bound| bound.bytes.saturating_sub(kept_back(bound.bytes))).or(total);
    let (bytes, origin) = match (wish, &bound, total) {
        (Some(Wish::Bytes(bytes)), ..) => (bytes, Origin::Given),
        (Some(Wish::Percent(percent)), ..) => {
            let whole = most.unwrap_or(MINIMUM * 8);
            (whole / 100 * u64::from(percent), Origin::Given)
        }
        (None, Some(bound), _) => {
            let origin = Origin::Cgroup(bound.cgroup.clone(), bound.file, bound.bytes);
            (bound.bytes.saturating_sub(kept_back(bound.bytes)), origin)
        }
        (None, None, Some(total)) => (total / 4 * 3, Origin::Machine(total)),
        (None, None, None) => (MINIMUM * 8, Origin::Guess),
    };
    if let Some(most) = most.filter(|most| bytes > *most) {
        let (whole, remedy) = match &bound {
            Some(bound) => (
                format!("what cgroup {} leaves of its {}", bound.cgroup, human(bound.bytes)),
                format!("give less, or raise {}", bound.file),
            ),
            None => ("the machine has".to_owned(), "give less".to_owned()),
        };
        return Err(LimitError::TooLarge { bytes, most, whole, remedy });
    }
    if bytes < MINIMUM {
        let remedy = match (&origin, &bound) {
            (Origin::Given, None) => "give more with --memory-limit".to_owned(),
            (Origin::Given, Some(bound)) if most.is_some_and(|most| most >= MINIMUM) => {
                format!("give more with --memory-limit (cgroup {} has {})", bound.cgroup, human(bound.bytes))
            }
            (_, Some(bound)) => format!(
                "raise {} of cgroup {}, which is {}, to {}",
                bound.file,
                bound.cgroup,
                human(bound.bytes),
                human(MINIMUM + kept_back(0))
            ),
            _ => "the machine needs more memory".to_owned(),
        };
        return Err(LimitError::TooSmall { bytes, remedy });
    }
    Ok(Limit { bytes, origin })
}

/// The limit of a process that has begun: its cgroup may have another one since. What would be too little to begin with is as
/// little as there can be, and of more than there is now that is left which there is.
#[must_use]
pub fn now(wish: Option<Wish>, machine: &Machine) -> Limit {
    let bytes = match limit(wish, machine) {
        Ok(limit) => return limit,
        Err(LimitError::TooLarge { most, .. }) => most.max(MINIMUM),
        Err(LimitError::TooSmall { .. }) => MINIMUM,
    };
    let bound = machine.cgroup().bound();
    let origin = bound.map_or(Origin::Given, |bound| Origin::Cgroup(bound.cgroup, bound.file, bound.bytes));
    Limit { bytes, origin }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn machine(total: u64, cgroup: Option<u64>) -> (tempfile::TempDir, Machine) {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, content: String| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        };
        put("proc/meminfo", format!("MemTotal: {} kB\n", total >> 10));
        if let Some(cgroup) = cgroup {
            put("proc/self/cgroup", "0::/pond\n".to_owned());
            put("proc/self/mountinfo", "1 2 0:3 / /cg rw - cgroup2 none rw\n".to_owned());
            put("cg/pond/memory.current", "1\n".to_owned());
            put("cg/pond/memory.max", format!("{cgroup}\n"));
        }
        let machine = Machine::at(dir.path());
        (dir, machine)
    }

    const G: u64 = 1 << 30;
    const M: u64 = 1 << 20;

    #[test]
    fn without_a_word_it_is_the_cgroups_or_a_share_of_the_machine() {
        let (_dir, alone) = machine(16 * G, None);
        assert_eq!(limit(None, &alone), Ok(Limit { bytes: 12 * G, origin: Origin::Machine(16 * G) }));
        let (_dir, inside) = machine(16 * G, Some(256 * M));
        let found = limit(None, &inside).unwrap();
        assert_eq!(found.bytes, 240 * M);
        assert_eq!(found.origin.to_string(), "memory.max of cgroup /pond is 256M");
        let (_dir, wide) = machine(G, Some(64 * G));
        assert_eq!(limit(None, &wide).unwrap().bytes, 768 * M, "a limit above the machine's memory is none");
    }

    #[test]
    fn what_cannot_be_kept_is_refused_with_the_remedy() {
        let (_dir, inside) = machine(16 * G, Some(256 * M));
        assert_eq!(limit(Some(Wish::Bytes(200 * M)), &inside).unwrap().bytes, 200 * M);
        assert_eq!(limit(Some(Wish::Percent(75)), &inside).unwrap().bytes, 240 * M / 100 * 75);
        let error = limit(Some(Wish::Bytes(G)), &inside).unwrap_err().to_string();
        let want = "--memory-limit 1G is more than what cgroup /pond leaves of its 256M, 240M: give less, or raise memory.max";
        assert_eq!(error, want);
        let error = limit(Some(Wish::Bytes(10 * M)), &inside).unwrap_err().to_string();
        assert_eq!(
            error,
            "10M of memory are too little: serving takes 128M at least; give more with --memory-limit (cgroup /pond has 256M)"
        );
        let (_dir, tiny) = machine(16 * G, Some(100 * M));
        let error = limit(None, &tiny).unwrap_err().to_string();
        assert!(error.ends_with("raise memory.max of cgroup /pond, which is 100M, to 144M"), "{error}");
        let (_dir, alone) = machine(G, None);
        let error = limit(Some(Wish::Bytes(2 * G)), &alone).unwrap_err().to_string();
        assert_eq!(error, "--memory-limit 2G is more than the machine has, 1G: give less");
    }

    #[test]
    fn sizes_and_shares_are_read_as_people_write_them() {
        for (text, want) in [
            ("512M", Wish::Bytes(512 * M)),
            ("1.5g", Wish::Bytes(3 * G / 2)),
            ("2GiB", Wish::Bytes(2 * G)),
            ("1073741824", Wish::Bytes(G)),
            ("50%", Wish::Percent(50)),
        ] {
            assert_eq!(text.parse(), Ok(want), "{text}");
        }
        for text in ["", "x", "0", "-1G", "0%", "101%", "1KM", "1e40T", "%"] {
            assert!(text.parse::<Wish>().is_err(), "{text}");
        }
    }
}
