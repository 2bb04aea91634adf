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
    /// Every write is stable from now on, and what was written before could not be made so: initiators find it on. Said
    /// again, it is tried again.
    pub async fn set_write_cache(&self, on: bool) -> Result<(), VolumeError> {
        let was_said = self.cache_off.swap(!on, Ordering::AcqRel) != on;
        let is_not_off_yet = !on && self.write_through() && self.shared().mode.wce;
        if was_said && !is_not_off_yet {
            return Ok(());
        }
        if !on {
            return self.switch_cache_off(|_| true).await;
        }
        let _turn = self.switching.lock().await;
        let mut shared = self.shared();
        let was = shared.mode;
        self.set_mode(&mut shared, mode::Params { wce: true, ..was });
        self.write_through.store(false, Ordering::Release);
        if !was.wce {
            shared.raise(Sense::MODE_CHANGED, |_| true);
        }
        Ok(())
    }

    /// Switches the write cache off where it is on, and tells those that `who` picks. Whoever comes while somebody does that
    /// waits until it is so.
    pub(crate) async fn switch_cache_off(&self, who: impl Fn(&NexusId) -> bool) -> Result<(), VolumeError> {
        let _turn = self.switching.lock().await;
        if !self.shared().mode.wce {
            return Ok(());
        }
        self.write_through.store(true, Ordering::Release);
        self.cache_is_off(who).await
    }

    /// Every write is stable from now on, and whoever calls has the turn of `switching`. A host that finds the write cache off
    /// takes everything for stable, what it wrote before too: first that is true, then pages say so, and those are told that
    /// `who` picks.
    pub(crate) async fn cache_is_off(&self, who: impl Fn(&NexusId) -> bool) -> Result<(), VolumeError> {
        // What began while it was on has been written once this can be had.
        drop(self.exclusive.write().await);
        let stable = self.volume.flush().await;
        let mut shared = self.shared();
        shared.mode.wce = stable.is_err();
        shared.raise(Sense::MODE_CHANGED, who);
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
