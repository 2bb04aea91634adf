//! A logical unit: its identity, what its initiators share, and what becomes of it.
//!
//! ```text
//!   CDB ─▶ begin ──▶ admission: may this nexus do it now? ──▶ answer: done, a job to be run, a read to be looked up
//!             └────▶ ranges: which blocks, and not too many
//! ```

mod admission;
mod answer;
mod begin;
mod ranges;

use std::sync::{
    Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use block::{BlockVolume, Geometry, Keeper};
use tokio::time::Instant;

pub use self::answer::{Begin, Job, Lookup, Opened, Response};
pub(crate) use self::{
    answer::{Refusal, allocated},
    ranges::{TRANSFER_MAX, UNMAP_DESCRIPTORS_MAX},
};
use crate::{
    cdb,
    copy::{Copies, token::Rod},
    exclusive::Exclusive,
    identity::{Naa, PORT_GROUP, naa, serial},
    inquiry, log, mode,
    nexus::{Neighbours, Nexus, NexusId, Seen},
    reserve::{self, Kept},
    room::Room,
    sense::{Sense, Status},
    service::Service,
    uncached::Uncached,
};

/// What hosts see as a physical block: 4 KiB whatever the volume block, which VMFS and Windows accept.
pub(crate) const PHYSICAL_BLOCK: u32 = 4096;

/// How a volume is a disk from the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// Bytes of a logical block: 512, or 4096 for 4 KiB native.
    pub block_size: u32,
    /// Whether initiators find the write cache on; see [`LogicalUnit::set_write_cache`].
    pub write_cache: bool,
}

impl Default for Form {
    fn default() -> Self {
        Self { block_size: 512, write_cache: true }
    }
}

/// A volume as a SCSI disk.
pub struct LogicalUnit {
    pub(crate) volume: Arc<dyn BlockVolume>,
    /// Itself, for what goes on after its command was answered; of a service only.
    pub(crate) me: Weak<Self>,
    pub(crate) block_size: u32,
    /// Bytes that the volume stores together.
    pub(crate) stored: u32,
    pub(crate) service: Arc<Service>,
    target: String,
    naa: Naa,
    serial: String,
    /// The size initiators were last told, in bytes.
    size_told: AtomicU64,
    /// And whether the disk is read-only.
    read_only_told: AtomicBool,
    /// Writes are stable before they are answered: the write cache is off, or about to be.
    pub(crate) write_through: AtomicBool,
    /// Held by whoever switches the write cache. Off it is, in `shared.mode`, when what was written before is stable.
    pub(crate) switching: tokio::sync::Mutex<()>,
    /// An operator wants every write to be stable, and no initiator may switch the write cache on.
    pub(crate) cache_off: AtomicBool,
    swp: AtomicBool,
    /// Since when: see [`retire`](Self::retire).
    retired: OnceLock<Instant>,
    /// See [`Service::unit_to_come`].
    pub(crate) is_coming: bool,
    pub(crate) shared: Mutex<Shared>,
    /// Where reservations survive power loss.
    pub(crate) keeper: Option<Arc<dyn Keeper>>,
    /// One PERSISTENT RESERVE OUT at a time; what the keeper has.
    pub(crate) kept: tokio::sync::Mutex<Kept>,
    /// Every write has its blocks of it, COMPARE AND WRITE alone; whoever must know that no older write is still on its way
    /// waits for them.
    pub(crate) exclusive: Exclusive,
    pub(crate) copies: Copies,
    /// Copies under way that read or write here, whoever they were ordered from.
    pub(crate) in_copies: AtomicUsize,
    /// Whether `rods` has any: the path of a write looks at nothing else.
    watched: AtomicBool,
    /// Tokens that a write to their blocks ends.
    rods: Mutex<Vec<Weak<Rod>>>,
    room: Room,
}

pub(crate) struct Shared {
    pub(crate) mode: mode::Params,
    /// Who may have found the write cache off since it is, as `mode` says.
    pub(crate) uncached: Uncached,
    pub(crate) reservations: reserve::Reservations,
    /// Who holds the unit by RESERVE(6).
    pub(crate) reserve6: Option<NexusId>,
    nexuses: Vec<Weak<Nexus>>,
    seen: Seen,
    /// Who saw the unit whose place this one has, and has not been told so: see [`LogicalUnit::succeed`].
    misled: Seen,
    /// Who saw the unit before its content was replaced, and has not been told so.
    outdated: Seen,
}

impl Shared {
    pub(crate) fn nexuses(&self) -> impl Iterator<Item = Arc<Nexus>> {
        self.nexuses.iter().filter_map(Weak::upgrade)
    }

    /// Tells a nexus, if it has seen what was in the place of this unit, that it is another disk than that.
    fn undeceive(&mut self, nexus: &Nexus) {
        if self.misled.take(nexus.id()) {
            nexus.raise(Sense::CAPACITY_CHANGED);
            nexus.raise(Sense::INQUIRY_CHANGED);
        }
    }

    /// Raises a unit attention on every nexus that `who` picks.
    pub(crate) fn raise(&self, attention: Sense, who: impl Fn(&NexusId) -> bool) {
        self.nexuses().filter(|nexus| who(nexus.id())).for_each(|nexus| nexus.raise(attention));
    }
}

impl LogicalUnit {
    /// A logical unit over `volume`, at LUN 0 of the target named `target`, with 512-byte blocks, and a service of
    /// its own. See [`Service::unit`] for units that are to copy among each other.
    pub fn new(volume: Arc<dyn BlockVolume>, target: &str) -> Self {
        Self::with_block_size(volume, target, 512)
    }

    /// The same with logical blocks of `block_size` bytes: 512, or 4096 for 4 KiB native.
    ///
    /// # Panics
    /// If it is neither.
    pub fn with_block_size(volume: Arc<dyn BlockVolume>, target: &str, block_size: u32) -> Self {
        Self::of(Arc::default(), volume, target, Form { block_size, ..Form::default() }, Weak::new())
    }

    pub(crate) fn of(
        service: Arc<Service>,
        volume: Arc<dyn BlockVolume>,
        target: &str,
        Form { block_size, write_cache }: Form,
        me: Weak<Self>,
    ) -> Self {
        assert!(block_size == 512 || block_size == 4096, "logical blocks are of 512 or 4096 bytes");
        let naa = naa(&volume.identity());
        let geometry = volume.geometry();
        let keeper = volume.keeper();
        let kept = keeper.as_ref().and_then(|keeper| keeper.load());
        Self {
            me,
            block_size,
            stored: geometry.block,
            service,
            target: target.to_owned(),
            naa,
            serial: serial(&naa),
            size_told: AtomicU64::new(geometry.size),
            read_only_told: AtomicBool::new(geometry.read_only),
            write_through: AtomicBool::new(!write_cache),
            switching: tokio::sync::Mutex::new(()),
            cache_off: AtomicBool::new(!write_cache),
            swp: AtomicBool::new(false),
            retired: OnceLock::new(),
            is_coming: false,
            shared: Mutex::new(Shared {
                mode: mode::Params::new(write_cache),
                uncached: Uncached::default(),
                reservations: reserve::Reservations::restore(kept.as_deref()),
                reserve6: None,
                nexuses: Vec::new(),
                seen: Seen::default(),
                misled: Seen::default(),
                outdated: Seen::default(),
            }),
            keeper,
            kept: tokio::sync::Mutex::new(Kept::new(kept)),
            exclusive: Exclusive::default(),
            copies: Copies::default(),
            in_copies: AtomicUsize::new(0),
            watched: AtomicBool::new(false),
            rods: Mutex::default(),
            room: Room::default(),
            volume,
        }
    }

    /// The volume behind it.
    pub fn volume(&self) -> &Arc<dyn BlockVolume> {
        &self.volume
    }

    /// Where the Data-Out of a command goes, if that is written as it comes: the byte in the volume, and the size of the
    /// volume's blocks. A hint for those who get memory for it; nothing is checked.
    pub fn written_from(&self, cdb: &[u8; 16]) -> Option<(u64, u32)> {
        let lba = cdb::written_from(cdb)?;
        Some((lba.saturating_mul(u64::from(self.block_size)), self.volume.geometry().block))
    }

    /// Whether it keeps the place of a volume that cannot be had yet: see [`Service::unit_to_come`].
    pub fn is_coming(&self) -> bool {
        self.is_coming
    }

    /// The name multipath software knows it by.
    pub fn naa(&self) -> Naa {
        self.naa
    }

    /// Whether reservations were kept that could not be read: then nobody may touch the medium until an initiator
    /// registers and clears them. To be told to an operator.
    pub fn reservations_unreadable(&self) -> bool {
        self.shared().reservations.unreadable()
    }

    /// Initiators are warned once each time the room for the volume falls below this many bytes; 0: never. It may follow
    /// what the volume holds: nobody is told that it moved.
    pub fn set_threshold(&self, available: u64) {
        self.room.set_threshold(available);
        self.announce();
    }

    /// A nexus begins, at the one target port. `port` names the initiator port: name and ISID,
    /// `iqn…,i,0x00023d000001`.
    pub fn attach(&self, port: &str) -> Arc<Nexus> {
        self.attach_at(NexusId { initiator: port.into(), port: PORT_GROUP }, None)
    }

    /// A nexus begins. `neighbours` are the units that it may name in copies.
    pub fn attach_at(&self, id: NexusId, neighbours: Option<Arc<dyn Neighbours>>) -> Arc<Nexus> {
        let mut shared = self.shared();
        let greeting = shared.seen.greeting(&id);
        let nexus = Arc::new(Nexus::new(id, neighbours, greeting));
        shared.undeceive(&nexus);
        if shared.outdated.take(nexus.id()) {
            nexus.raise(Sense::MEDIUM_CHANGED);
        }
        if !shared.mode.wce {
            shared.uncached.add(nexus.id().initiator_name());
        }
        // Before it would grow, and not each time: after a restart all hosts of a target come at once, to each of its disks.
        if shared.nexuses.len() == shared.nexuses.capacity() {
            shared.nexuses.retain(|other| other.strong_count() > 0);
        }
        shared.nexuses.push(Arc::downgrade(&nexus));
        nexus.limit(self.limits_of(&shared, nexus.id()));
        nexus
    }

    /// It takes the place of `kept` ([`Service::unit_to_come`]), of which hosts learned that it has no size and how it may be
    /// used: each that saw it is told that this is not true any more, once.
    pub fn succeed(&self, kept: &Self) {
        let misled = kept.shared().seen.clone();
        let mut shared = self.shared();
        shared.misled = misled;
        let nexuses: Vec<Arc<Nexus>> = shared.nexuses().collect();
        nexuses.iter().for_each(|nexus| shared.undeceive(nexus));
    }

    /// A nexus ends: RESERVE(6) ends with it, and so do its copies within a step; a persistent registration does not (SPC-4
    /// §5.13.5).
    pub fn detach(&self, nexus: &Nexus) {
        self.copies.cancel(|whose| whose == nexus.id());
        let mut shared = self.shared();
        shared.nexuses.retain(|other| other.upgrade().is_some_and(|other| !std::ptr::eq(&*other, nexus)));
        if shared.reserve6.as_ref() == Some(nexus.id()) {
            shared.reserve6 = None;
            self.limit(&shared);
        }
    }

    /// LOGICAL UNIT RESET, or a target reset: RESERVE(6) ends, mode parameters are the defaults again (but a write cache
    /// that a host switched off stays off: it goes on without flushes, whether or not it hears of the reset), commands that
    /// have not begun to run are cleared, those that go in steps end, every nexus is told. Returns once nothing that changes
    /// the disk or its reservations and began before is still on its way.
    pub async fn reset(&self, attention: Sense) {
        self.copies.cancel(|_| true);
        {
            let mut shared = self.shared();
            shared.reserve6 = None;
            let wce = shared.mode.wce;
            self.set_mode(&mut shared, mode::Params { wce, ..self.defaults() });
            shared.nexuses().for_each(|nexus| nexus.clear());
            if attention == Sense::POWER_ON {
                shared.seen.clear();
            }
            shared.raise(attention, |_| true); // the one that asked too (SAM-5 §6.3.3)
            self.limit(&shared);
        }
        self.exclusive.drained().await;
        drop(self.kept.lock().await);
    }

    /// CLEAR TASK SET, for the commands of the nexuses other than `by`: those that have not begun to run are
    /// answered with TASK ABORTED. Returns once nothing that changes the disk or its reservations and began before is still on
    /// its way.
    pub async fn clear_task_set(&self, by: &Nexus) {
        self.copies.cancel(|whose| whose != by.id());
        self.shared().nexuses().filter(|nexus| !std::ptr::eq(&**nexus, by)).for_each(|nexus| nexus.clear());
        self.exclusive.drained().await;
        drop(self.kept.lock().await);
    }

    /// Tells every nexus that the target's list of logical units is another one now.
    pub fn luns_changed(&self) {
        self.shared().raise(Sense::LUNS_CHANGED, |_| true);
    }

    /// Target port groups were changed; `told`: initiators are to hear of it.
    pub(crate) fn access_changed(&self, told: bool) {
        let shared = self.shared();
        if told {
            shared.raise(Sense::ACCESS_CHANGED, |_| true);
        }
        self.limit(&shared);
    }

    /// The volume has changed in a way that initiators should hear of without asking: if it has another size now,
    /// every nexus gets CAPACITY DATA HAS CHANGED as a unit attention (SBC-3 §4.7) with its next command; if it became
    /// read-only or writable, MODE PARAMETERS CHANGED and INQUIRY DATA HAS CHANGED; if its room has fallen below the
    /// threshold, THIN PROVISIONING SOFT THRESHOLD REACHED.
    pub fn announce(&self) {
        self.geometry();
        if self.room.has_fallen(self.volume.space()) {
            self.shared().raise(Sense::THIN_THRESHOLD, |_| true);
        }
    }

    /// A token stands for some of our blocks: what begins to change them from now on ends it. What had begun before is to be
    /// waited for ([`Exclusive::past`]).
    pub(crate) fn watch(&self, rod: &Arc<Rod>) {
        let mut rods = self.rods.lock().unwrap_or_else(PoisonError::into_inner);
        rods.retain(|rod| rod.upgrade().is_some_and(|rod| !rod.is_over()));
        rods.push(Arc::downgrade(rod));
        self.watched.store(true, Ordering::Release);
    }

    /// Bytes are about to change: to be called with these held of `exclusive`, before the volume is.
    pub(crate) fn touched(&self, offset: u64, len: u64) {
        if self.watched.load(Ordering::Acquire) {
            self.revoke(offset, len);
        }
    }

    /// It is offered no more, and the volume may be, by another unit that knows nothing of what was promised here: no write
    /// and no change of reservations begins, copies end after their next step, tokens stand for nothing. Writes that have
    /// begun end as they would have: see [`Service::last_writes_ended`].
    pub fn retire(&self) {
        self.retired.get_or_init(Instant::now);
        self.copies.cancel(|_| true);
        self.revoke(0, u64::MAX);
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.retired.get().is_some()
    }

    /// Since when it is offered no more.
    pub(crate) fn retired_since(&self) -> Option<Instant> {
        self.retired.get().copied()
    }

    /// Whether a copy is under way that reads or writes here, for a host that may be logged in elsewhere only.
    pub fn is_in_copy(&self) -> bool {
        self.in_copies.load(Ordering::Acquire) > 0
    }

    /// What the volume holds is replaced, and not by what comes by here: tokens stand for nothing any more.
    pub fn revoke_tokens(&self) {
        self.revoke(0, u64::MAX);
    }

    /// What the volume holds was replaced, while no nexus was there: each that was is told when it comes back, and tokens stand
    /// for nothing any more.
    pub fn content_replaced(&self) {
        self.revoke_tokens();
        let mut shared = self.shared();
        shared.outdated = shared.seen.clone();
    }

    #[cold]
    fn revoke(&self, offset: u64, len: u64) {
        let mut rods = self.rods.lock().unwrap_or_else(PoisonError::into_inner);
        rods.retain(|rod| {
            rod.upgrade().is_some_and(|rod| {
                rod.touched(offset, len);
                !rod.is_over()
            })
        });
        self.watched.store(!rods.is_empty(), Ordering::Release);
    }

    /// The volume's size and whether it may be written to now; who was told otherwise is told once more.
    pub(crate) fn geometry(&self) -> Geometry {
        let geometry = self.volume.geometry();
        if self.size_told.load(Ordering::Relaxed) != geometry.size {
            let told = self.size_told.swap(geometry.size, Ordering::AcqRel);
            if told > geometry.size {
                // What was behind the new end is gone, and what comes there with another size is nothing that was promised.
                self.revoke(geometry.size, u64::MAX);
            }
            if told != geometry.size {
                self.shared().raise(Sense::CAPACITY_CHANGED, |_| true);
            }
        }
        if self.read_only_told.load(Ordering::Relaxed) != geometry.read_only
            && self.read_only_told.swap(geometry.read_only, Ordering::AcqRel) != geometry.read_only
        {
            let shared = self.shared();
            shared.raise(Sense::MODE_CHANGED, |_| true); // WP
            shared.raise(Sense::INQUIRY_CHANGED, |_| true); // VPD B0h and B2h: what can be freed
        }
        geometry
    }

    fn inquiry(&self, nexus: &Nexus, page: Option<u8>, geometry: &Geometry) -> Result<Vec<u8>, Sense> {
        let Some(page) = page else {
            return Ok(inquiry::standard(true));
        };
        let unit = inquiry::Unit {
            target: &self.target,
            naa: &self.naa,
            serial: &self.serial,
            granularity: geometry.block.checked_div(self.block_size).unwrap_or(1).max(1),
            read_only: geometry.read_only,
            limits: self.limits(),
            port: nexus.id().port,
            group: self.service.group_of(nexus.id().port).0,
            threshold_exponent: self.volume.space().map_or(0, |_| log::THRESHOLD_EXPONENT),
        };
        inquiry::vital(page, &unit)
    }

    pub(crate) fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What pages say. Whether writes are stable is `write_through`.
    pub(crate) fn set_mode(&self, shared: &mut Shared, mode: mode::Params) {
        shared.mode = mode;
        if mode.wce {
            shared.uncached = Uncached::Nobody;
        }
        self.swp.store(mode.swp, Ordering::Release);
    }

    pub(crate) fn write_through(&self) -> bool {
        self.write_through.load(Ordering::Acquire)
    }

    pub(crate) fn refuse(&self, refusal: Refusal) -> Response {
        match refusal {
            Refusal::Sense(sense) => self.check(sense),
            Refusal::Conflict => Response::status(Status::ReservationConflict),
            Refusal::Cleared => Response::status(Status::TaskAborted),
            Refusal::Busy => Response::status(Status::Busy),
        }
    }

    /// CHECK CONDITION in the format that the control mode page asks for.
    pub fn check(&self, sense: Sense) -> Response {
        let descriptor = self.shared().mode.d_sense;
        Response::check(if descriptor { sense.descriptor() } else { sense.fixed() })
    }
}
