//! What the logical units of one server share: target ports and their access states (ALUA), the copy manager's
//! tokens, and where unguessable numbers come from.
//!
//! One head serves today: one target port group, active/optimised, with every port in it. A second head is a second
//! group here, in another state; units, pages and unit attentions follow what this table says (SPC-4 §5.15).

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use block::{BlockVolume, Identity};
use rand::SeedableRng as _;
use tokio::time::{Instant, timeout_at};

use crate::{
    copy::token::Tokens,
    identity::PORT_GROUP,
    sense::Sense,
    to_come::ToCome,
    unit::{Form, LogicalUnit},
};

/// Fills a buffer with bytes that nobody can guess.
pub type Random = Arc<dyn Fn(&mut [u8]) + Send + Sync>;

/// Asymmetric access state of a target port group (SPC-4 §5.15.2.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everything, at full speed.
    ActiveOptimized = 0x0,
    /// Everything, over a detour.
    ActiveNonOptimized = 0x1,
    /// Identity and reservations only, until it takes over.
    Standby = 0x2,
    /// Identity only.
    Unavailable = 0x3,
    /// Changing: hosts wait.
    Transitioning = 0xf,
}

impl Access {
    /// Whether commands for the medium are taken.
    pub fn is_active(self) -> bool {
        matches!(self, Self::ActiveOptimized | Self::ActiveNonOptimized)
    }

    /// What a refused command is told.
    pub(crate) fn sense(self) -> Sense {
        match self {
            Self::Standby => Sense::STANDBY,
            Self::Transitioning => Sense::TRANSITIONING,
            _ => Sense::UNAVAILABLE,
        }
    }
}

/// A target port group: target ports that always have the same access state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortGroup {
    /// Target port group identifier.
    pub id: u16,
    /// Its state now.
    pub access: Access,
    /// Hosts should use it if they can.
    pub preferred: bool,
    /// Relative target port identifiers: the tags of iSCSI portal groups.
    pub ports: Vec<u16>,
}

/// What logical units share.
pub struct Service {
    groups: Mutex<Vec<PortGroup>>,
    units: Mutex<Vec<Weak<LogicalUnit>>>,
    pub(crate) tokens: Tokens,
    random: Random,
}

impl Default for Service {
    fn default() -> Self {
        Self::new(Arc::new(|bytes: &mut [u8]| rand::Rng::fill(&mut rand::rngs::StdRng::from_os_rng(), bytes)))
    }
}

impl Service {
    /// One active group with one port.
    pub fn new(random: Random) -> Self {
        let group = PortGroup {
            id: PORT_GROUP,
            access: Access::ActiveOptimized,
            preferred: false,
            ports: vec![PORT_GROUP],
        };
        Self { groups: Mutex::new(vec![group]), units: Mutex::default(), tokens: Tokens::default(), random }
    }

    /// A logical unit of this service over `volume`; see [`LogicalUnit::with_block_size`].
    ///
    /// # Panics
    /// If the block size is neither 512 nor 4096.
    pub fn unit(
        self: &Arc<Self>,
        volume: Arc<dyn BlockVolume>,
        target: &str,
        form: Form,
    ) -> Arc<LogicalUnit> {
        self.unit_of(volume, target, form, false)
    }

    /// A logical unit that keeps the place of a volume which cannot be had at the moment. It says who it is, and that it is
    /// becoming ready (2/04/01) to everything else: hosts wait, and do not take the disk for removed.
    ///
    /// # Panics
    /// If the block size is neither 512 nor 4096.
    pub fn unit_to_come(self: &Arc<Self>, who: Identity, target: &str, form: Form) -> Arc<LogicalUnit> {
        self.unit_of(Arc::new(ToCome(who)), target, form, true)
    }

    fn unit_of(
        self: &Arc<Self>,
        volume: Arc<dyn BlockVolume>,
        target: &str,
        form: Form,
        is_coming: bool,
    ) -> Arc<LogicalUnit> {
        let service = Arc::clone(self);
        // Held while it loads what is kept: who stores that meanwhile is seen here, or finds it.
        let mut units = self.units();
        let unit = Arc::new_cyclic(|me| {
            let mut unit = LogicalUnit::of(service, volume, target, form, me.clone());
            unit.is_coming = is_coming;
            if others(&units, &unit).any(|other| other.may_be_storing()) {
                unit.kept.get_mut().doubt();
            }
            unit
        });
        units.retain(|unit| unit.strong_count() > 0);
        units.push(Arc::downgrade(&unit));
        unit
    }

    /// The unit that offers the volume of one that does so no more.
    pub(crate) fn successor(&self, unit: &LogicalUnit) -> Option<Arc<LogicalUnit>> {
        others(&self.units(), unit).find(|other| !other.is_retired() && !other.is_coming)
    }

    /// Waits until nothing of what units that offer this volume no more ([`LogicalUnit::retire`]) had begun to change is on its
    /// way, seen and not stable included: it would land in what the volume is to whoever has it next. False if something is,
    /// and its unit was retired as long ago as `patience`; with [`Duration::MAX`] it waits however long it takes.
    pub async fn last_writes_ended(&self, volume: &Arc<dyn BlockVolume>, patience: Duration) -> bool {
        for (unit, since) in self.retired(volume) {
            let ended = unit.exclusive.drained();
            let Some(until) = since.checked_add(patience) else {
                // There is no such instant.
                ended.await;
                continue;
            };
            if timeout_at(until, ended).await.is_err() {
                return false;
            }
        }
        true
    }

    /// The units that offer this volume no more, and since when.
    fn retired(&self, volume: &Arc<dyn BlockVolume>) -> Vec<(Arc<LogicalUnit>, Instant)> {
        let units = self.units();
        let of_volume =
            units.iter().filter_map(Weak::upgrade).filter(|unit| Arc::ptr_eq(&unit.volume, volume));
        of_volume.filter_map(|unit| unit.retired_since().map(|since| (unit, since))).collect()
    }

    /// The target port groups there are.
    pub fn port_groups(&self) -> Vec<PortGroup> {
        self.groups().clone()
    }

    /// Replaces the port groups. Whoever is connected is told when an access state changed.
    pub fn set_port_groups(&self, groups: Vec<PortGroup>) {
        let changed = {
            let mut now = self.groups();
            let states = |groups: &[PortGroup]| -> Vec<(u16, Access)> {
                groups.iter().map(|group| (group.id, group.access)).collect()
            };
            let changed = states(&now) != states(&groups);
            *now = groups;
            changed
        };
        let units: Vec<_> = self.units().iter().filter_map(Weak::upgrade).collect();
        for unit in units {
            unit.access_changed(changed);
        }
    }

    /// Every target port, of any group.
    pub(crate) fn ports(&self) -> Vec<u16> {
        self.groups().iter().flat_map(|group| group.ports.iter().copied()).collect()
    }

    /// The group of a target port, and its state. A port that nobody listed is in the first group.
    pub(crate) fn group_of(&self, port: u16) -> (u16, Access) {
        let groups = self.groups();
        let group = groups.iter().find(|group| group.ports.contains(&port)).or_else(|| groups.first());
        group.map_or((PORT_GROUP, Access::ActiveOptimized), |group| (group.id, group.access))
    }

    /// Fills a buffer with bytes that nobody can guess: for challenges and tokens.
    pub fn fill_random(&self, bytes: &mut [u8]) {
        (self.random)(bytes);
    }

    fn groups(&self) -> MutexGuard<'_, Vec<PortGroup>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn units(&self) -> MutexGuard<'_, Vec<Weak<LogicalUnit>>> {
        self.units.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The units of the same volume besides this one.
fn others(units: &[Weak<LogicalUnit>], unit: &LogicalUnit) -> impl Iterator<Item = Arc<LogicalUnit>> {
    let units = units.iter().filter_map(Weak::upgrade);
    units.filter(|other| other.naa() == unit.naa() && !std::ptr::eq(&**other, unit))
}
