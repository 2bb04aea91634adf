//! One target: its disks by number, who may log in to it, and how it is offered.
//!
//! Logical units come and go while hosts are logged in: each change is counted, sessions look at the count with every
//! command, and who wants to be told wakes ([`Target::changes`]).
//!
//! Locks: the registry's before those here, and `luns` before those of the service that makes the units.
//! Not here: who is logged in (`seats`), and which targets there are (`targets`).

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use block::{BlockVolume, Identity};
use scsi::{Form, LogicalUnit, Naa, Service, naa};
use tokio::sync::watch;

use crate::access::{Access, Auth};

/// Highest LUN: what flat addressing has room for.
pub const LUN_MAX: u16 = 16_383;

/// One target: its logical units, and who may use them.
pub struct Target {
    iqn: String,
    service: Arc<Service>,
    luns: RwLock<BTreeMap<u16, Arc<LogicalUnit>>>,
    /// Counts changes of `luns`; sessions look at it with each command.
    epoch: AtomicU64,
    changes: watch::Sender<u64>,
    access: RwLock<Arc<Access>>,
    groups: RwLock<Option<Vec<u16>>>,
    is_ready: AtomicBool,
    /// How many [`Shut`] there are.
    shut: AtomicUsize,
    removed: AtomicBool,
}

impl Target {
    /// One of that name without disks, which are to be units of `service`.
    pub(super) fn new(iqn: String, service: Arc<Service>, offer: Offer) -> Self {
        Self {
            iqn,
            service,
            luns: RwLock::default(),
            epoch: AtomicU64::new(0),
            changes: watch::Sender::new(0),
            access: RwLock::new(Arc::new(offer.access)),
            groups: RwLock::new(offer.groups),
            is_ready: AtomicBool::new(!offer.is_coming),
            shut: AtomicUsize::new(0),
            removed: AtomicBool::new(false),
        }
    }

    /// Its iSCSI name.
    pub fn iqn(&self) -> &str {
        &self.iqn
    }

    /// Its disks, by number.
    pub fn luns(&self) -> Vec<(u16, Arc<LogicalUnit>)> {
        let luns = self.luns.read().unwrap_or_else(PoisonError::into_inner);
        luns.iter().map(|(lun, unit)| (*lun, Arc::clone(unit))).collect()
    }

    /// The disk of that number.
    pub fn unit(&self, lun: u16) -> Option<Arc<LogicalUnit>> {
        self.luns.read().unwrap_or_else(PoisonError::into_inner).get(&lun).cloned()
    }

    /// Serves a volume as a further disk from now on, or at the place that was kept for it; whoever is logged in is told.
    ///
    /// # Errors
    /// The number cannot be had.
    ///
    /// # Panics
    /// If the block size is neither 512 nor 4096.
    pub fn add_lun(
        &self,
        lun: u16,
        volume: Arc<dyn BlockVolume>,
        form: Form,
    ) -> Result<Arc<LogicalUnit>, AddError> {
        let name = naa(&volume.identity());
        self.put(lun, name, || self.service.unit(volume, &self.iqn, form))
    }

    /// Keeps the place of a volume that cannot be had at the moment: the disk is there, and not ready. Hosts take one that is
    /// not there for removed, and give up what is on it.
    ///
    /// # Errors
    /// The number cannot be had.
    ///
    /// # Panics
    /// If the block size is neither 512 nor 4096.
    pub fn keep_lun(&self, lun: u16, who: Identity, form: Form) -> Result<Arc<LogicalUnit>, AddError> {
        self.put(lun, naa(&who), || self.service.unit_to_come(who, &self.iqn, form))
    }

    fn put(
        &self,
        lun: u16,
        name: Naa,
        unit: impl FnOnce() -> Arc<LogicalUnit>,
    ) -> Result<Arc<LogicalUnit>, AddError> {
        if lun > LUN_MAX {
            return Err(AddError::Lun(lun));
        }
        let (unit, kept) = {
            let mut luns = self.luns.write().unwrap_or_else(PoisonError::into_inner);
            if luns.get(&lun).is_some_and(|other| !other.is_coming() || other.naa() != name) {
                return Err(AddError::LunExists(lun));
            }
            let unit = unit();
            (Arc::clone(&unit), luns.insert(lun, unit))
        };
        if let Some(kept) = kept {
            unit.succeed(&kept);
            kept.retire();
        }
        self.luns_changed();
        Ok(unit)
    }

    /// Takes a disk away; whoever is logged in is told, and gets LOGICAL UNIT NOT SUPPORTED from it. What runs on
    /// it ends as it would have ([`Service::last_writes_ended`]), copies excepted: they end soon. False if there is none.
    pub fn remove_lun(&self, lun: u16) -> bool {
        let gone = self.luns.write().unwrap_or_else(PoisonError::into_inner).remove(&lun);
        if let Some(unit) = &gone {
            unit.retire();
            self.luns_changed();
        }
        gone.is_some()
    }

    fn luns_changed(&self) {
        let epoch = self.epoch.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        self.luns().iter().for_each(|(_, unit)| unit.luns_changed());
        self.changes.send_replace(epoch);
    }

    /// Its volumes may have changed in a way that initiators should hear of without asking (size, room).
    pub fn announce(&self) {
        self.luns().iter().for_each(|(_, unit)| unit.announce());
    }

    /// Whether all its disks have come: until then who logs in is told to try again ([`Offer::is_coming`]).
    pub fn is_ready(&self) -> bool {
        self.is_ready.load(Ordering::Acquire)
    }

    /// All its disks have come, for good.
    pub fn set_ready(&self) {
        self.is_ready.store(true, Ordering::Release);
    }

    /// Nobody logs in as long as what this returns is kept: who comes is told to try again. Nor may its disks be named in
    /// copies. Sessions that are there stay, and whoever comes in for all that is among [`Targets::sessions`](super::Targets::sessions) by now.
    pub fn shut(self: &Arc<Self>) -> Shut {
        self.shut.fetch_add(1, Ordering::AcqRel);
        Shut(Arc::clone(self))
    }

    /// Whether somebody who logs in is to be told to try again.
    pub(crate) fn is_shut(&self) -> bool {
        self.shut.load(Ordering::Acquire) > 0
    }

    /// Who may log in from now on. Sessions that are there stay; see [`Targets::enforce`](super::Targets::enforce).
    pub fn set_access(&self, access: Access) {
        *self.access.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(access);
    }

    /// Who may log in.
    pub fn access(&self) -> Arc<Access> {
        Arc::clone(&self.access.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether it may be reached through that portal group.
    pub fn is_in_group(&self, group: u16) -> bool {
        let groups = self.groups.read().unwrap_or_else(PoisonError::into_inner);
        groups.as_ref().is_none_or(|groups| groups.contains(&group))
    }

    /// Portal groups through which it may be reached from now on; `None`: all. See [`Targets::enforce`](super::Targets::enforce).
    pub fn set_groups(&self, groups: Option<Vec<u16>>) {
        *self.groups.write().unwrap_or_else(PoisonError::into_inner) = groups;
    }

    /// Whether an initiator who comes from there by that portal group, and has proven that much, would be let in now.
    pub(super) fn lets_in(&self, initiator: &str, peer: IpAddr, group: u16, proven: Option<&Auth>) -> bool {
        let access = self.access();
        self.is_in_group(group) && access.admits(initiator, peer) && access.trusts(proven)
    }

    /// It is taken away, and its disks with it.
    pub(super) fn leave(&self) {
        self.removed.store(true, Ordering::Release);
        self.luns().iter().for_each(|(_, unit)| unit.retire());
    }

    /// Whether an operator took it away; sessions that are still there get LOGICAL UNIT NOT SUPPORTED.
    pub fn removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

/// A target that nobody may log in to until this is dropped: see [`Target::shut`].
#[must_use = "dropped, it lets everybody in"]
pub struct Shut(Arc<Target>);

impl Drop for Shut {
    fn drop(&mut self) {
        self.0.shut.fetch_sub(1, Ordering::AcqRel);
    }
}

/// How a target is offered.
#[derive(Clone, Debug, Default)]
pub struct Offer {
    /// Who may log in.
    pub access: Access,
    /// Portal groups through which it may be reached; `None`: all.
    pub groups: Option<Vec<u16>>,
    /// Its disks are still to come: who logs in is told to try again, until [`Target::set_ready`]. A host that found a target
    /// without its disks would take them for removed.
    pub is_coming: bool,
    /// Discovery names it to nobody who does not name it himself: for what hosts are not to log in to because they do so to all
    /// that they are told of.
    pub is_unlisted: bool,
}

/// Why a target or logical unit could not be added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddError {
    /// Not the form of an iSCSI name.
    #[error("{0} is not an iSCSI name")]
    Name(String),
    /// There is one of that name.
    #[error("there is a target {0} already")]
    Exists(String),
    /// There is a disk of that number.
    #[error("the target has a LUN {0} already")]
    LunExists(u16),
    /// Initiators could not address it.
    #[error("LUN {0} is above {LUN_MAX}")]
    Lun(u16),
}
