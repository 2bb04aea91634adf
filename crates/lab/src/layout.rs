//! Machines by a word: `raidz2:6` is six disks in a RAIDZ2, `mirror:2x3` three mirrors of two.

use std::{fmt, str::FromStr};

use disk::Profile;

use crate::LabError;

/// Most disks of a simulated machine.
const DISKS_MAX: usize = 60;

/// How disks are arranged for data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// `mirror`, `raidz1`, `raidz2`, `raidz3`; none: single disks.
    shape: Option<&'static str>,
    /// Disks of a top-level device.
    width: usize,
    /// Top-level devices.
    tops: usize,
}

/// Log devices beside the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogDevices {
    /// None.
    #[default]
    None,
    /// One.
    One,
    /// Two that mirror each other.
    Mirror,
}

/// The disks of a machine.
#[derive(Clone, Copy, Debug)]
pub struct Hardware {
    /// Disks for data.
    pub disk: Profile,
    /// Log devices.
    pub log: Profile,
}

impl Hardware {
    /// The disks of the home lab of 2014: 5400 turns a minute, 75–90 commands a second each; SATA flash for the log.
    #[must_use]
    pub fn san2() -> Self {
        Self { disk: Profile::hdd_5400(), log: Profile::ssd() }
    }
}

impl Layout {
    /// That of the home lab of 2014: six disks in a RAIDZ2.
    #[must_use]
    pub fn san2() -> Self {
        Self { shape: Some("raidz2"), width: 6, tops: 1 }
    }

    /// Disks for data.
    #[must_use]
    pub fn disks(&self) -> usize {
        self.width * self.tops
    }

    /// Disks of one top-level device that may fail.
    #[must_use]
    pub fn parity(&self) -> usize {
        match self.shape {
            None => 0,
            Some("mirror") => self.width - 1,
            Some("raidz1") => 1,
            Some("raidz2") => 2,
            Some(_) => 3,
        }
    }

    /// As `zpool create` takes it, with these paths for data and for logs.
    pub(crate) fn words(&self, data: &[String], logs: &[String]) -> Vec<String> {
        let mut words = Vec::new();
        for top in data.chunks(self.width) {
            words.extend(self.shape.map(str::to_owned));
            words.extend_from_slice(top);
        }
        if !logs.is_empty() {
            words.push("log".to_owned());
            words.extend((logs.len() > 1).then(|| "mirror".to_owned()));
            words.extend_from_slice(logs);
        }
        words
    }
}

impl LogDevices {
    /// How many.
    #[must_use]
    pub fn count(self) -> usize {
        match self {
            Self::None => 0,
            Self::One => 1,
            Self::Mirror => 2,
        }
    }
}

impl FromStr for Layout {
    type Err = LabError;

    fn from_str(text: &str) -> Result<Self, LabError> {
        let wrong = || LabError::Layout(text.to_owned());
        let (shape, numbers) = text.split_once(':').ok_or_else(wrong)?;
        let (width, tops) = numbers.split_once('x').unwrap_or((numbers, "1"));
        let width: usize = width.parse().map_err(|_| wrong())?;
        let tops: usize = tops.parse().map_err(|_| wrong())?;
        let (shape, least) = match shape {
            "stripe" => (None, 1),
            "mirror" => (Some("mirror"), 2),
            "raidz" | "raidz1" => (Some("raidz1"), 2),
            "raidz2" => (Some("raidz2"), 3),
            "raidz3" => (Some("raidz3"), 4),
            _ => return Err(wrong()),
        };
        let fits =
            (1..=DISKS_MAX).contains(&tops) && width >= least && width.saturating_mul(tops) <= DISKS_MAX;
        // Each disk of a stripe is a top-level device.
        let (width, tops) = if shape.is_none() { (1, width.saturating_mul(tops)) } else { (width, tops) };
        if fits { Ok(Self { shape, width, tops }) } else { Err(wrong()) }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shape, width, tops } = self;
        match (shape, tops) {
            (None, tops) => write!(f, "stripe:{tops}"),
            (Some(shape), 1) => write!(f, "{shape}:{width}"),
            (Some(shape), tops) => write!(f, "{shape}:{width}x{tops}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_words() {
        for (text, disks, parity) in [
            ("raidz2:6", 6, 2),
            ("mirror:2x3", 6, 1),
            ("mirror:3", 3, 2),
            ("raidz3:8", 8, 3),
            ("stripe:2", 2, 0),
        ] {
            let layout: Layout = text.parse().unwrap();
            assert_eq!(
                (layout.disks(), layout.parity(), layout.to_string()),
                (disks, parity, text.to_owned())
            );
        }
        let layout: Layout = "mirror:2x2".parse().unwrap();
        let paths: Vec<String> = ["a", "b", "c", "d", "l", "m"].map(str::to_owned).into();
        assert_eq!(layout.words(&paths[..4], &paths[4..]).join(" "), "mirror a b mirror c d log mirror l m");
        for wrong in [
            "raidz2",
            "raidz2:2",
            "mirror:1",
            "draid:9",
            "mirror:2x0",
            "raidz2:61",
            "mirror:x",
            "mirror:99999999999x99999999999",
        ] {
            assert!(wrong.parse::<Layout>().is_err(), "{wrong}");
        }
    }
}
