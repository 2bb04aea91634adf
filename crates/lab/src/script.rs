//! What a drill does, one act after the other.

use std::time::Duration;

/// One act. Disks are numbered as the drill's victims: those whose loss redundancy bears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Time goes by.
    Wait(Duration),
    /// A disk is pulled out.
    Pull(usize),
    /// It is put back.
    Return(usize),
    /// Every command of a disk takes this much longer.
    Slow(usize, Duration),
    /// A disk answers one read in this many with flipped bits, and ten times as many places of it rot.
    Corrupt(usize, u32),
    /// A disk acknowledges flushes and does nothing.
    Lie(usize),
    /// All disks do.
    AllLie,
    /// A disk works as it should again.
    Heal(usize),
    /// A log device dies.
    PullLog,
    /// It is put back.
    ReturnLog,
    /// The power goes, and comes back.
    PowerCut,
    /// Until the pool is whole again, at most so long; after a minute a person helps with `zpool clear` and
    /// `zpool online`.
    UntilWhole(Duration),
    /// A scrub from beginning to end, at most so long.
    Scrub(Duration),
    /// The pool is filled to the last byte.
    Fill,
    /// What filled it is destroyed.
    MakeRoom,
    /// Another program takes this many bytes of memory, and keeps them.
    Hog(usize),
}

impl Act {
    /// About how long it takes, for progress.
    pub(crate) fn estimate(&self) -> Duration {
        match self {
            Self::Wait(time) => *time,
            Self::UntilWhole(_) | Self::Scrub(_) | Self::Fill => Duration::from_secs(30),
            _ => Duration::from_secs(1),
        }
    }

    /// Something goes wrong with it: from now on somebody should notice.
    pub(crate) fn is_trouble(&self) -> bool {
        matches!(
            self,
            Self::Pull(_)
                | Self::Slow(..)
                | Self::Corrupt(..)
                | Self::Lie(_)
                | Self::AllLie
                | Self::PullLog
                | Self::Fill
                | Self::Hog(_)
        )
    }
}
