//! What an operator sees of a logical unit and sets on it, beside what initiators do.

use std::sync::atomic::Ordering;

use crate::{mode, nexus::NexusId, unit::LogicalUnit};

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
    /// Whether initiators find the write cache on, until one of them switches it. Off, every write is stable before it
    /// is answered.
    pub fn set_write_cache(&self, on: bool) {
        let mut shared = self.shared();
        self.cache_off.store(!on, Ordering::Release);
        let wce = self.defaults(self.volume.geometry().read_only).wce;
        let mode = mode::Params { wce, ..shared.mode };
        self.set_mode(&mut shared, mode);
    }

    /// Mode parameters that nobody changed.
    pub(crate) fn defaults(&self, read_only: bool) -> mode::Params {
        let usual = mode::Params::new(read_only);
        mode::Params { wce: usual.wce && !self.cache_off.load(Ordering::Acquire), ..usual }
    }

    /// Who is registered for persistent reservations.
    pub fn registrations(&self) -> Vec<Registration> {
        let registered = self.shared().reservations.registrations();
        registered.into_iter().map(|(nexus, holds, kind)| Registration { nexus, holds, kind }).collect()
    }
}
