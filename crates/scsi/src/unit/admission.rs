//! Who may do what: reservations, the state of the path, write protection, a disk that is yet to come or is offered no more.

use std::sync::atomic::Ordering;

use block::Geometry;

use super::{LogicalUnit, Refusal, Shared};
use crate::{
    cdb::Command,
    nexus::{Nexus, NexusId, limit},
    reserve::{self, Class},
    sense::Sense,
    service::Access,
};

impl LogicalUnit {
    /// What may change between `begin` and `run`: reservations, access state, write protection.
    pub(crate) fn admit(&self, nexus: &Nexus, command: &Command, geometry: &Geometry) -> Result<(), Refusal> {
        let limits = nexus.limits();
        if limits != 0 {
            self.judge(nexus, limits, command)?;
        }
        if self.is_retired() && (command.writes() || command.reserves()) {
            return Err(Sense::LUN_NOT_SUPPORTED.into());
        }
        if command.writes() {
            if geometry.read_only {
                return Err(Sense::WRITE_PROTECTED.into());
            }
            if self.swp.load(Ordering::Acquire) {
                return Err(Sense::SOFTWARE_WRITE_PROTECTED.into());
            }
        }
        Ok(())
    }

    /// A nexus that may not do everything: may it do this?
    #[cold]
    fn judge(&self, nexus: &Nexus, limits: u8, command: &Command) -> Result<(), Refusal> {
        let class = reserve::class(command);
        if limits & limit::INACTIVE != 0 {
            let (_, access) = self.service.group_of(nexus.id().port);
            let standby = access == Access::Standby;
            let passes = class == Class::Identity
                || (standby && (class == Class::State || matches!(command, Command::ModeSense { .. })));
            if !access.is_active() && !passes {
                return Err(access.sense().into());
            }
        }
        if limits & limit::COMING != 0 && class != Class::Identity {
            return Err(Sense::BECOMING_READY.into());
        }
        if limits & limit::RESERVED != 0 && !reserve::passes_reserve6(command) {
            return Err(Refusal::Conflict);
        }
        let refused = match class {
            Class::Identity | Class::State | Class::Ready => false,
            Class::Reads => limits & limit::READ != 0,
            Class::Writes => limits & limit::WRITE != 0,
        };
        if refused { Err(Refusal::Conflict) } else { Ok(()) }
    }

    /// A step of a copy that `nexus` ordered, of this unit or another: may its initiator do that here?
    pub(crate) fn admit_copy(&self, nexus: &Nexus, writes: bool) -> Result<(), Refusal> {
        let geometry = self.volume.geometry();
        let limits = {
            let shared = self.shared();
            let name = nexus.id().initiator_name();
            let others = shared.reserve6.as_ref().is_some_and(|holder| holder.initiator_name() != name);
            let reserve6 = if others { limit::READ | limit::WRITE } else { 0 };
            reserve6 | shared.reservations.limits_of_initiator(name)
        };
        if limits & if writes { limit::WRITE } else { limit::READ } != 0 {
            return Err(Refusal::Conflict);
        }
        match () {
            () if self.is_retired() => Err(Sense::LUN_NOT_SUPPORTED.into()),
            () if self.is_coming => Err(Sense::BECOMING_READY.into()),
            () if writes && geometry.read_only => Err(Sense::WRITE_PROTECTED.into()),
            () if writes && self.swp.load(Ordering::Acquire) => Err(Sense::SOFTWARE_WRITE_PROTECTED.into()),
            () => Ok(()),
        }
    }

    /// What a nexus may not do now.
    pub(super) fn limits_of(&self, shared: &Shared, id: &NexusId) -> u8 {
        let (_, access) = self.service.group_of(id.port);
        let inactive = if access.is_active() { 0 } else { limit::INACTIVE };
        let reserved = shared.reserve6.as_ref().is_some_and(|holder| holder != id);
        let reserved = if reserved { limit::RESERVED } else { 0 };
        let coming = if self.is_coming { limit::COMING } else { 0 };
        inactive | coming | reserved | shared.reservations.limits(id)
    }

    /// Works out anew what each nexus may do.
    pub(crate) fn limit(&self, shared: &Shared) {
        shared.nexuses().for_each(|nexus| nexus.limit(self.limits_of(shared, nexus.id())));
    }
}
