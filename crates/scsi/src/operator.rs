//! What an operator sees of a logical unit and sets on it, beside what initiators do.

use std::sync::atomic::Ordering;

use block::VolumeError;

use crate::{mode, nexus::NexusId, sense::Sense, unit::LogicalUnit};

/// An initiator port that is registered for persistent reservations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Who, and at which target port.
    pub nexus: NexusId,
    /// It holds the reservation, alone or with all others.
    pub holds: bool,
    /// Type of the reservation there is, as in PERSISTENT RESERVE OUT.
    pub kind: Option<u8>,
}

impl LogicalUnit {
    /// Whether initiators find the write cache on, until one of them switches it; off, every write is stable before it
    /// is answered. Every nexus is told. Nothing happens where it was so already: what an initiator chose stays.
    ///
    /// # Errors
    /// It is off, and what was written before could not be made stable.
    pub async fn set_write_cache(&self, on: bool) -> Result<(), VolumeError> {
        if self.cache_off.swap(!on, Ordering::AcqRel) != on {
            return Ok(());
        }
        let was = {
            let mut shared = self.shared();
            let was = shared.mode;
            self.set_mode(&mut shared, mode::Params { wce: on, ..was });
            was.wce
        };
        if was == on {
            return Ok(());
        }
        if !on {
            return self.cache_is_off(|_| true).await;
        }
        self.shared().raise(Sense::MODE_CHANGED, |_| true);
        Ok(())
    }

    /// The write cache has just been switched off. A host that finds it off takes everything for stable, what it wrote before
    /// too: first that is true, and then those are told that `who` picks.
    pub(crate) async fn cache_is_off(&self, who: impl Fn(&NexusId) -> bool) -> Result<(), VolumeError> {
        // What began while it was on has been written once this can be had.
        drop(self.exclusive.write().await);
        let stable = self.volume.flush().await;
        self.shared().raise(Sense::MODE_CHANGED, who);
        stable
    }

    /// The threshold for room is another one because somebody chose so: every nexus is told that a mode page (1Ch/02h) says
    /// something else, if there is that page.
    pub fn threshold_chosen(&self) {
        if self.volume.space().is_some() {
            self.shared().raise(Sense::MODE_CHANGED, |_| true);
        }
    }

    /// Mode parameters that nobody changed.
    pub(crate) fn defaults(&self) -> mode::Params {
        mode::Params::new(!self.cache_off.load(Ordering::Acquire))
    }

    /// Who is registered for persistent reservations.
    pub fn registrations(&self) -> Vec<Registration> {
        let registered = self.shared().reservations.registrations();
        registered.into_iter().map(|(nexus, holds, kind)| Registration { nexus, holds, kind }).collect()
    }
}
