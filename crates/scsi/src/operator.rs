//! What an operator sees of a logical unit and sets on it, beside what initiators do.

use std::sync::atomic::Ordering;

use block::VolumeError;

use crate::{
    mode,
    nexus::{Nexus, NexusId},
    sense::Sense,
    uncached::Uncached,
    unit::{LogicalUnit, Shared},
};

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
    /// Whether initiators find the write cache on, until one of them switches it off; off, every write is stable before it
    /// is answered, and none of them switches it on. Every nexus is told. Nothing happens where it was so already: what an
    /// initiator chose stays.
    ///
    /// A host that found it off sends no flushes when it is on again, though it is told: whoever switches it on sees to it
    /// that there is none, or that each starts the disk anew.
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
        let _turn = self.switching.lock().await;
        if !on {
            // Whoever comes while somebody does that has waited until it is so.
            if !self.shared().mode.wce {
                return Ok(());
            }
            self.write_through.store(true, Ordering::Release);
            return self.cache_is_off(|_| true).await;
        }
        let mut shared = self.shared();
        let was = shared.mode;
        self.set_mode(&mut shared, mode::Params { wce: true, ..was });
        self.write_through.store(false, Ordering::Release);
        if !was.wce {
            shared.raise(Sense::MODE_CHANGED, |_| true);
        }
        Ok(())
    }

    /// Every write is stable from now on, and whoever calls has the turn of `switching`. A host that finds the write cache off
    /// takes everything for stable, what it wrote before too: first that is true, then pages say so, and those are told that
    /// `who` picks.
    pub(crate) async fn cache_is_off(&self, who: impl Fn(&NexusId) -> bool) -> Result<(), VolumeError> {
        // What began while it was on is written when this returns; what begins later is stable.
        self.exclusive.drained().await;
        let stable = self.volume.flush().await;
        let mut shared = self.shared();
        if stable.is_ok() {
            let mut uncached = Uncached::default();
            shared.nexuses().for_each(|nexus| uncached.add(nexus.id().initiator_name()));
            shared.uncached = uncached;
            shared.mode.wce = false;
        }
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

    /// What a nexus may change of the mode parameters now. A write cache that is off comes on again only where an operator has
    /// not said that it is to be off, and no other host may have found it so. Who is refused goes on as it found the disk.
    pub(crate) fn changeable(&self, shared: &Shared, nexus: &Nexus) -> mode::Params {
        let is_to_be_off = self.cache_off.load(Ordering::Acquire);
        let is_alone = shared.uncached.is_at_most(nexus.id().initiator_name());
        mode::Params::changeable(shared.mode.wce || (!is_to_be_off && is_alone))
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
