//! How a device is: its state, the reason, and its error counters, in OpenZFS's words.
//!
//! Facts: docs/format/vdevs.md §9.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// State of a device, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Never opened.
    Closed,
    /// Taken offline by an administrator.
    Offline,
    /// Gone from a running system.
    Removed,
    /// Could not be opened, or not recognised.
    CantOpen,
    /// Excluded because of its faults.
    Faulted,
    /// Works, with faults of its own or of its children.
    Degraded,
    /// Works.
    Healthy,
}

/// Why a device is in its state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Aux {
    /// No reason to give.
    #[default]
    None,
    /// The device is not there, or the system refused it.
    OpenFailed,
    /// What it holds is not what the pool wrote.
    CorruptData,
    /// Too few of its children work.
    NoReplicas,
    /// The devices found are not all there were.
    BadGuidSum,
    /// Smaller than the pool needs.
    TooSmall,
    /// No label, or the label of something else.
    BadLabel,
    /// Written by newer software.
    VersionNewer,
    /// Written by older software.
    VersionOlder,
    /// Uses features this implementation lacks.
    UnsupportedFeature,
    /// A spare in use by another pool.
    Spared,
    /// Faulted because of its errors.
    ErrorsExceeded,
    /// Faulted by an administrator.
    External,
    /// Became another pool.
    Split,
    /// Another host has it.
    Active,
    /// All its children are offline.
    ChildrenOffline,
    /// Somebody went on with the pool on it, from a state that the open pool has, or gave up: it is not overwritten unasked.
    NewerState,
}

impl State {
    /// The word `zpool status` shows, which depends on the reason too.
    #[must_use]
    pub fn word(self, aux: Aux) -> &'static str {
        match (self, aux) {
            (Self::CantOpen, Aux::CorruptData) => "FAULTED",
            (Self::CantOpen, Aux::Split) => "SPLIT",
            (Self::CantOpen, _) => "UNAVAIL",
            (Self::Closed | Self::Offline, _) => "OFFLINE",
            (Self::Removed, _) => "REMOVED",
            (Self::Faulted, _) => "FAULTED",
            (Self::Degraded, _) => "DEGRADED",
            (Self::Healthy, _) => "ONLINE",
        }
    }

    /// Whether data may be read from it.
    #[must_use]
    pub fn is_readable(self) -> bool {
        self >= Self::Degraded
    }
}

impl Aux {
    /// The note `zpool status` and `zpool import` put behind the counters; `None` where they put none.
    #[must_use]
    pub fn note(self) -> Option<&'static str> {
        Some(match self {
            Self::None => return None,
            Self::OpenFailed => "cannot open",
            Self::CorruptData => "corrupted data",
            Self::BadLabel => "invalid label",
            Self::NoReplicas => "insufficient replicas",
            Self::BadGuidSum => "missing device",
            Self::TooSmall => "too small",
            Self::VersionNewer => "newer version",
            Self::VersionOlder => "older version",
            Self::UnsupportedFeature => "unsupported feature(s)",
            Self::Spared | Self::Active => "currently in use",
            Self::ErrorsExceeded => "too many errors",
            Self::External => "external device fault",
            Self::Split => "split into new pool",
            Self::ChildrenOffline => "all children offline",
            Self::NewerState => "has a newer state of the pool",
        })
    }
}

/// Errors since the pool was opened. Never persisted, as in OpenZFS.
#[derive(Debug, Default)]
pub struct Counters {
    read: AtomicU64,
    write: AtomicU64,
    checksum: AtomicU64,
}

/// The values of [`Counters`] at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Errors {
    /// Reads the device refused.
    pub read: u64,
    /// Writes the device refused.
    pub write: u64,
    /// Reads it answered with other bytes than were written.
    pub checksum: u64,
}

impl Counters {
    /// One more read refused.
    pub fn count_read(&self) {
        self.read.fetch_add(1, Relaxed);
    }

    /// One more write refused.
    pub fn count_write(&self) {
        self.write.fetch_add(1, Relaxed);
    }

    /// One more wrong answer.
    pub fn count_checksum(&self) {
        self.checksum.fetch_add(1, Relaxed);
    }

    /// What was counted so far.
    #[must_use]
    pub fn get(&self) -> Errors {
        Errors {
            read: self.read.load(Relaxed),
            write: self.write.load(Relaxed),
            checksum: self.checksum.load(Relaxed),
        }
    }

    /// Back to zero (`zpool clear`).
    pub fn reset(&self) {
        self.read.store(0, Relaxed);
        self.write.store(0, Relaxed);
        self.checksum.store(0, Relaxed);
    }
}
