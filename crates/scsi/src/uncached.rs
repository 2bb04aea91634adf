//! Who may have found the write cache off.
//!
//! A host looks once, when it starts the disk. One that found no cache takes every write for stable when it is answered: it
//! sends no flushes and no FUA, and goes on so when the cache comes on again, because no unit attention makes it look anew
//! (Windows, Linux). Nor does its session tell: a host keeps a disk whose session was lost, and has it back with the next.

use std::sync::Arc;

/// Hosts, by initiator name: whether one is the only one is all that matters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Uncached {
    /// It is on, or nobody was there since it is off.
    #[default]
    Nobody,
    /// One, by however many paths.
    One(Arc<str>),
    Several,
}

impl Uncached {
    /// The host of that name is there while it is off.
    pub(crate) fn add(&mut self, initiator: &str) {
        *self = match std::mem::take(self) {
            Self::Nobody => Self::One(initiator.into()),
            Self::One(known) if *known == *initiator => Self::One(known),
            Self::One(_) | Self::Several => Self::Several,
        };
    }

    /// Whether no host was there but the one of that name.
    pub(crate) fn is_at_most(&self, initiator: &str) -> bool {
        match self {
            Self::Nobody => true,
            Self::One(known) => **known == *initiator,
            Self::Several => false,
        }
    }
}
