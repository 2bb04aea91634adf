//! The devices of a pool as a user arranges them: the grammar of `zpool create` and `zpool add`.
//!
//! ```text
//!   [mirror|raidz1|raidz2|raidz3] device…   [special|dedup|log] …   [cache device…]   [spare device…]
//! ```
//!
//! Nothing here looks at a device. Messages are OpenZFS's, so that people find help for them.

use std::{collections::BTreeSet, fmt};

/// What a top-level device is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Everything.
    Data,
    /// The intent log.
    Log,
    /// Metadata and small blocks.
    Special,
    /// Deduplication tables.
    Dedup,
}

/// How a top-level device is made of leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One leaf.
    Single,
    /// Copies.
    Mirror,
    /// Parity devices: 1, 2 or 3.
    Raidz(u8),
}

/// A top-level device to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopSpec {
    /// What for.
    pub purpose: Use,
    /// How.
    pub shape: Shape,
    /// Paths of its leaves.
    pub leaves: Vec<String>,
}

/// All devices named on a command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VdevSpec {
    /// In the order they were named.
    pub tops: Vec<TopSpec>,
    /// Cache devices.
    pub caches: Vec<String>,
    /// Hot spares.
    pub spares: Vec<String>,
}

/// Why devices cannot be used as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// The words make no sense. To be printed as it is.
    #[error("invalid vdev specification: {0}")]
    Grammar(String),
    /// Doubts, which `-f` overrules; a line each. To be printed as it is.
    #[error("invalid vdev specification\nuse '-f' to override the following errors:\n{}", .0.join("\n"))]
    Override(Vec<String>),
    /// What `-f` cannot overrule; a line each. To be printed as it is.
    #[error("invalid vdev specification\nthe following errors must be manually repaired:\n{}", .0.join("\n"))]
    Repair(Vec<String>),
    /// To be put behind "cannot create 'tank': ".
    #[error("{0}")]
    Refused(String),
    /// A device that cannot be opened. To be printed as it is.
    #[error("cannot open '{path}': {reason}")]
    Open {
        /// What was named.
        path: String,
        /// Why not.
        reason: String,
    },
}

/// Most children of a mirror or RAIDZ.
const CHILDREN_MAX: usize = 255;

impl Shape {
    /// The keyword.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Single => "disk",
            Self::Mirror => "mirror",
            Self::Raidz(1) => "raidz1",
            Self::Raidz(2) => "raidz2",
            Self::Raidz(_) => "raidz3",
        }
    }

    fn from_word(word: &str) -> Option<Self> {
        Some(match word {
            "mirror" => Self::Mirror,
            "raidz" | "raidz1" => Self::Raidz(1),
            "raidz2" => Self::Raidz(2),
            "raidz3" => Self::Raidz(3),
            _ => return None,
        })
    }

    fn leaves_min(self) -> usize {
        match self {
            Self::Single => 1,
            Self::Mirror => 2,
            Self::Raidz(parity) => usize::from(parity) + 1,
        }
    }

    /// Leaves that may fail.
    #[must_use]
    pub fn redundancy(self, leaves: usize) -> usize {
        match self {
            Self::Single => 0,
            Self::Mirror => leaves.saturating_sub(1),
            Self::Raidz(parity) => parity.into(),
        }
    }
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Data => "data",
            Self::Log => "log",
            Self::Special => "special",
            Self::Dedup => "dedup",
        })
    }
}

/// Where the words that follow belong.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    Tops(Use),
    Caches,
    Spares,
}

fn section(word: &str) -> Option<Section> {
    Some(match word {
        "log" => Section::Tops(Use::Log),
        "special" => Section::Tops(Use::Special),
        "dedup" => Section::Tops(Use::Dedup),
        "cache" => Section::Caches,
        "spare" => Section::Spares,
        _ => return None,
    })
}

fn is_keyword(word: &str) -> bool {
    section(word).is_some() || Shape::from_word(word).is_some() || word.starts_with("draid")
}

impl VdevSpec {
    /// Reads the words after the pool's name.
    ///
    /// # Errors
    /// [`SpecError::Grammar`], or a device that is named twice.
    pub fn parse<S: AsRef<str>>(words: &[S]) -> Result<Self, SpecError> {
        let grammar = |text: String| Err(SpecError::Grammar(text));
        let mut spec = Self::default();
        let mut now = Section::Tops(Use::Data);
        let mut seen = BTreeSet::new();
        let mut words = words.iter().map(AsRef::as_ref).peekable();
        while let Some(word) = words.next() {
            if let Some(next) = section(word) {
                // Classes may be named again, the others not.
                let repeatable = matches!(next, Section::Tops(Use::Special | Use::Dedup));
                if !seen.insert(word) && !repeatable {
                    return grammar(format!("'{word}' can be specified only once"));
                }
                if words.peek().is_none_or(|word| section(word).is_some()) {
                    return grammar(format!("'{word}' requires at least 1 devices"));
                }
                now = next;
                continue;
            }
            if word.starts_with("draid") {
                return grammar("draid devices are not supported: use raidz".to_owned());
            }
            let Some(shape) = Shape::from_word(word) else {
                match now {
                    Section::Caches => spec.caches.push(word.to_owned()),
                    Section::Spares => spec.spares.push(word.to_owned()),
                    Section::Tops(purpose) => {
                        let leaves = vec![word.to_owned()];
                        spec.tops.push(TopSpec { purpose, shape: Shape::Single, leaves });
                    }
                }
                continue;
            };
            let mut leaves = Vec::new();
            while let Some(leaf) = words.next_if(|word| !is_keyword(word)) {
                leaves.push(leaf.to_owned());
            }
            if leaves.len() < shape.leaves_min() {
                return grammar(format!("{word} requires at least {} devices", shape.leaves_min()));
            }
            if leaves.len() > CHILDREN_MAX {
                return grammar(format!("{word} supports no more than {CHILDREN_MAX} devices"));
            }
            // After a mirror or RAIDZ a list of spares or caches is over, as OpenZFS reads it.
            let purpose = match now {
                Section::Tops(purpose) => purpose,
                Section::Caches | Section::Spares => {
                    let list = if now == Section::Caches { "cache" } else { "spare" };
                    return grammar(format!("unsupported '{list}' device: {word}"));
                }
            };
            if purpose == Use::Log && !matches!(shape, Shape::Mirror) {
                return grammar(format!("unsupported 'log' device: {word}"));
            }
            spec.tops.push(TopSpec { purpose, shape, leaves });
        }
        if spec.paths().is_empty() {
            return grammar("at least one toplevel vdev must be specified".to_owned());
        }
        spec.check_twice()?;
        Ok(spec)
    }

    /// The leaves, in the order in which pools are created on them: data, logs and classes, then caches, then
    /// spares.
    pub fn paths(&self) -> Vec<&str> {
        let tops = self.tops.iter().flat_map(|top| &top.leaves);
        tops.chain(&self.caches).chain(&self.spares).map(String::as_str).collect()
    }

    /// Replaces every path, in the order of [`paths`](Self::paths): words by whole paths, or these by where the devices
    /// really are.
    ///
    /// # Errors
    /// Two of them are the same.
    pub fn set_paths(&mut self, paths: impl IntoIterator<Item = String>) -> Result<(), SpecError> {
        let tops = self.tops.iter_mut().flat_map(|top| &mut top.leaves);
        for (path, new) in tops.chain(&mut self.caches).chain(&mut self.spares).zip(paths) {
            *path = new;
        }
        self.check_twice()
    }

    fn check_twice(&self) -> Result<(), SpecError> {
        let mut seen = BTreeSet::new();
        match self.paths().into_iter().find(|path| !seen.insert(*path)) {
            Some(path) => Err(SpecError::Refused(format!(
                "one or more vdevs refer to the same device, or one of\nthe devices is part of an active md or lvm \
                 device: '{path}' is named twice"
            ))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> Result<VdevSpec, SpecError> {
        VdevSpec::parse(&words.split_whitespace().collect::<Vec<_>>())
    }

    #[test]
    fn every_kind_of_device_is_understood() {
        let spec = parse("a raidz2 b c d special mirror e f log g mirror h i cache j k spare l").unwrap();
        let tops: Vec<_> = spec.tops.iter().map(|top| (top.purpose, top.shape, top.leaves.len())).collect();
        assert_eq!(
            tops,
            [
                (Use::Data, Shape::Single, 1),
                (Use::Data, Shape::Raidz(2), 3),
                (Use::Special, Shape::Mirror, 2),
                (Use::Log, Shape::Single, 1),
                (Use::Log, Shape::Mirror, 2),
            ]
        );
        assert_eq!((spec.caches.len(), spec.spares.len()), (2, 1));
        let order = spec.paths().concat();
        assert_eq!(order, "abcdefghijkl");
    }

    #[test]
    fn what_makes_no_sense_is_refused_in_openzfs_words() {
        for (words, message) in [
            ("", "at least one toplevel vdev must be specified"),
            ("mirror a", "mirror requires at least 2 devices"),
            ("raidz a", "raidz requires at least 2 devices"),
            ("raidz2 a b", "raidz2 requires at least 3 devices"),
            ("raidz3 a b c", "raidz3 requires at least 4 devices"),
            ("a log", "'log' requires at least 1 devices"),
            ("a cache spare b", "'cache' requires at least 1 devices"),
            ("a log b log c", "'log' can be specified only once"),
            ("a spare b spare c", "'spare' can be specified only once"),
            ("a log raidz b c", "unsupported 'log' device: raidz"),
            ("a cache mirror b c", "unsupported 'cache' device: mirror"),
            ("draid1 a b c", "draid devices are not supported: use raidz"),
        ] {
            let error = parse(words).unwrap_err();
            assert_eq!(error.to_string(), format!("invalid vdev specification: {message}"), "{words}");
        }
        assert!(parse("mirror a b spare a").unwrap_err().to_string().ends_with("'a' is named twice"));
        let many: Vec<String> =
            std::iter::once("mirror".to_owned()).chain((0..256).map(|i| i.to_string())).collect();
        assert!(VdevSpec::parse(&many).unwrap_err().to_string().contains("no more than 255"));
    }

    #[test]
    fn two_words_for_one_device_are_found_when_resolved() {
        let mut spec = parse("mirror a b").unwrap();
        assert!(spec.set_paths(["/dev/same", "/dev/same"].map(str::to_owned)).is_err());
    }
}
