//! Why an operation is not done, in the words that OpenZFS's programs have for it.

use engine::{EngineError, dsl::OpError};
use serde::{Deserialize, Serialize};

use crate::host::{self, chain};

/// What is said to who comes when the daemon ends.
pub(crate) const ENDING: &str = "the daemon is ending";

/// Why an operation was not done. Prints as OpenZFS's programs do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// For standard error; may have several lines.
    pub message: String,
    /// Exit code: 1 failed, 2 wrong usage.
    pub code: u8,
    /// Nothing has the name that was asked for.
    #[serde(default)]
    pub not_found: bool,
}

impl Failure {
    /// It failed.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: 1, not_found: false }
    }

    /// `what`: `why`.
    pub fn because(what: &str, why: impl std::fmt::Display) -> Self {
        Self::new(format!("{what}: {why}"))
    }

    /// It came too late, and nothing of it was done.
    pub(crate) fn ending() -> Self {
        Self::new(ENDING)
    }

    /// Whether it is [that](Self::ending).
    pub(crate) fn is_ending(&self) -> bool {
        self.message == ENDING
    }

    /// `cannot open 'name': dataset does not exist`.
    #[must_use]
    pub fn no_dataset(name: &str) -> Self {
        Self { not_found: true, ..Self::new(format!("cannot open '{name}': dataset does not exist")) }
    }

    /// `cannot open 'name': no such pool`.
    #[must_use]
    pub fn no_pool(name: &str) -> Self {
        Self { not_found: true, ..Self::new(format!("cannot open '{name}': no such pool")) }
    }
}

/// Why an operation has no pool to work on.
#[derive(Debug)]
pub(crate) enum PoolError {
    /// There is none of that name; what was in the way, each on a line of its own.
    Missing(String),
    /// It is open for reading only: the reason.
    ReadOnly(String),
    /// Nothing can be written: which pool, and why.
    Suspended(String, String),
    /// It is imported here, and nothing of it is there. The whole sentence.
    Absent(String),
    /// It is there and cannot be opened. The whole sentence.
    Failed(String),
    /// The same of one that is imported here, and that nobody else has open: all that is left of that is that it is
    /// remembered.
    Unopenable { guid: u64, why: String },
}

impl PoolError {
    /// In the words of `zpool`.
    pub(crate) fn of_pool(self, name: &str) -> Failure {
        match self {
            Self::Missing(hint) => Failure {
                message: format!("cannot open '{name}': no such pool{hint}"),
                ..Failure::no_pool(name)
            },
            Self::ReadOnly(why) => Failure::new(format!("cannot open '{name}': pool is read-only: {why}")),
            Self::Suspended(pool, why) => {
                Failure::because(&format!("cannot open '{name}'"), suspended(&pool, &why))
            }
            Self::Absent(sentence) | Self::Failed(sentence) | Self::Unopenable { why: sentence, .. } => {
                Failure::new(sentence)
            }
        }
    }

    /// The same, about a change: what can be opened, for reading only, is not refused as if it could not.
    pub(crate) fn of_change(self, what: &str, name: &str) -> Failure {
        match self {
            Self::ReadOnly(why) => Failure::because(what, format_args!("pool is read-only: {why}")),
            other => other.of_pool(name),
        }
    }

    /// In the words of `zfs`, about an existing dataset. `what` is what cannot be done: `cannot destroy 'x'`.
    pub(crate) fn of_dataset(self, what: &str, name: &str) -> Failure {
        match self {
            Self::Missing(hint) => Failure {
                message: format!("cannot open '{name}': dataset does not exist{hint}"),
                ..Failure::no_dataset(name)
            },
            Self::ReadOnly(why) => Failure::because(what, format_args!("pool is read-only: {why}")),
            Self::Suspended(pool, why) => Failure::because(what, suspended(&pool, &why)),
            Self::Absent(sentence) | Self::Failed(sentence) | Self::Unopenable { why: sentence, .. } => {
                Failure::new(sentence)
            }
        }
    }
}

/// What is said of a pool that cannot be written to, and what helps.
pub(crate) fn suspended(pool: &str, why: &str) -> String {
    format!("pool I/O is currently suspended: {why}\n{}", host::remedy(pool, why))
}

/// A refusal of the engine, in words.
pub(crate) fn refused(what: &str, error: &OpError) -> Failure {
    match error {
        OpError::Engine(EngineError::Suspended(why)) => {
            Failure::because(what, format_args!("pool I/O is currently suspended: {why}"))
        }
        other => Failure::because(what, chain(other)),
    }
}

/// Whether a change that failed may yet be made: when the pool goes on.
pub(crate) fn may_yet_be_made(error: &OpError) -> bool {
    matches!(error, OpError::Engine(EngineError::Suspended(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_no_room_is_not_sent_to_the_cables() {
        for why in ["No space left on device (os error 28)", "Disk quota exceeded (os error 122)"] {
            let said = suspended("tank", &format!("/srv/a: write failed: {why}"));
            assert!(said.contains("make room in the file system") && !said.contains("connected"), "{said}");
        }
        let said = suspended("tank", "mirror-0 lacks /dev/sda (REMOVED)");
        assert!(said.contains("make sure its devices are connected"), "{said}");
        assert!(said.ends_with(", then run 'zpool clear tank'"), "{said}");
    }
}
