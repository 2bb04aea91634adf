//! A logical unit: its identity, what its initiators share, and the commands that need no waiting.
//!
//! The hot path is `open` with a READ whose blocks are cached: two relaxed loads decide that no unit
//! attention waits and nobody holds a reservation, then the cached pieces are the answer. Small ones that
//! came together are looked up together.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, Weak,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use block::{BlockVolume, Geometry, Keeper, Segments, detach, partly, span};
use smallvec::SmallVec;

use crate::{
    cdb::{self, ByteCheck, Command, Run},
    copy::{self, Copies, token::Rod},
    identity::{Naa, PORT_GROUP, naa, serial},
    inquiry::{self, Limits},
    log, mode,
    nexus::{Neighbours, Nexus, NexusId, Seen, limit},
    opcodes, pieces,
    reserve::{self, Class, Kept},
    room::Room,
    sense::{Sense, SenseBytes, Status},
    service::Service,
};

/// Most bytes one command may move: bounds what a single CDB can make us hold.
pub(crate) const TRANSFER_MAX: u32 = 32 << 20;
/// Logical blocks COMPARE AND WRITE takes at most (its count is one byte).
pub(crate) const COMPARE_BLOCKS_MAX: u8 = 255;
/// Bytes of an UNMAP parameter list's descriptors: 256 of 16 bytes.
pub(crate) const UNMAP_DESCRIPTORS_MAX: u32 = 256;
/// Bytes one WRITE SAME may cover.
const WRITE_SAME_MAX: u64 = 4 << 30;
/// Bytes one UNMAP may free; the suite wants no more than 1 Mi blocks promised.
const UNMAP_MAX: u64 = 512 << 20;
/// Parameter lists (mode pages, reservations) are shorter than this.
const PARAMETERS_MAX: u32 = 4096;
/// Parameter list of a reservation that names other initiators (SPEC_I_PT).
const RESERVATION_LIST_MAX: u32 = 16 << 10;
/// What a command that goes in steps holds in memory, whatever its length: two steps of it.
const STEPS_HOLD: u32 = 2 << 20;
/// Bytes of holes made at a time, and volume blocks: others have the unit in between.
const HOLE_STEP: u64 = 64 << 20;
const HOLE_STEP_BLOCKS: u64 = 16 << 10;
/// What hosts see as a physical block: 4 KiB whatever the volume block, which VMFS and Windows accept.
pub(crate) const PHYSICAL_BLOCK: u32 = 4096;

/// The answer to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// How it ended.
    pub status: Status,
    /// Data-In, already cut to the CDB's allocation length.
    pub data: Segments,
    /// Sense data; empty unless `status` is CHECK CONDITION.
    pub sense: SenseBytes,
}

impl Response {
    /// GOOD with data.
    pub fn good(data: Segments) -> Self {
        Self { status: Status::Good, data, sense: SenseBytes::default() }
    }

    /// A status without sense.
    pub fn status(status: Status) -> Self {
        Self { status, data: Segments::new(), sense: SenseBytes::default() }
    }

    fn check(sense: SenseBytes) -> Self {
        Self { status: Status::CheckCondition, data: Segments::new(), sense }
    }
}

/// A command that has to wait: for its Data-Out, for the volume, or for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    pub(crate) command: Command,
    /// Bytes of Data-Out wanted before [`LogicalUnit::run`].
    pub data_out: u32,
    /// Bytes the job will hold in memory besides its Data-Out, for the transport's budget.
    pub holds: u32,
    /// When it began, as the nexus counts: others may clear it before it runs.
    pub(crate) generation: u32,
}

impl Job {
    /// It may move terabytes: run it with [`LogicalUnit::run_until`], so that an abort need not wait for its end.
    pub fn is_long(&self) -> bool {
        self.command.is_long()
    }

    /// It changes nothing: whoever aborts it need not wait for its end.
    pub fn only_looks(&self) -> bool {
        self.command.only_looks()
    }
}

/// What became of a CDB.
#[derive(Debug)]
pub enum Begin {
    /// Answered.
    Done(Response),
    /// To be run.
    Job(Job),
}

/// What became of a CDB that may wait for those that came with it.
#[derive(Debug)]
pub enum Opened {
    /// It does not wait.
    Begun(Begin),
    /// It reads little, which may be in memory: to be looked up with others of its kind.
    Lookup(Lookup),
}

/// A read that is as good as begun.
#[derive(Clone, Copy, Debug)]
pub struct Lookup {
    offset: u64,
    len: u32,
    job: Job,
}

/// Reads of up to this many bytes are looked up together: of longer ones each has blocks enough to look for at once.
const LOOKUP_MAX: u32 = 16 << 10;

/// Why a command was not done.
#[derive(Debug)]
pub(crate) enum Refusal {
    Sense(Sense),
    Conflict,
    /// Another initiator cleared it.
    Cleared,
}

impl Refusal {
    /// The sense that describes it to somebody who asks later.
    pub(crate) fn sense(&self) -> Sense {
        match self {
            Self::Sense(sense) => *sense,
            Self::Conflict | Self::Cleared => Sense::COPY_DEVICE_FAILED,
        }
    }
}

impl From<Sense> for Refusal {
    fn from(sense: Sense) -> Self {
        Self::Sense(sense)
    }
}

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
    stored: u32,
    pub(crate) service: Arc<Service>,
    target: String,
    naa: Naa,
    serial: String,
    /// The size initiators were last told, in bytes.
    size_told: AtomicU64,
    /// And whether the disk is read-only.
    read_only_told: AtomicBool,
    /// `shared.mode`, for the path of a write.
    write_through: AtomicBool,
    /// Initiators that do not say otherwise get every write stable.
    pub(crate) cache_off: AtomicBool,
    swp: AtomicBool,
    /// See [`retire`](Self::retire).
    is_retired: AtomicBool,
    /// See [`Service::unit_to_come`].
    pub(crate) is_coming: bool,
    pub(crate) shared: Mutex<Shared>,
    /// Where reservations survive power loss.
    pub(crate) keeper: Option<Arc<dyn Keeper>>,
    /// One PERSISTENT RESERVE OUT at a time; what the keeper has.
    pub(crate) kept: tokio::sync::Mutex<Kept>,
    /// Held for reading by every write, for writing by COMPARE AND WRITE and by whoever must know that
    /// no older write is still on its way.
    pub(crate) exclusive: tokio::sync::RwLock<()>,
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
    pub(crate) reservations: reserve::Reservations,
    /// Who holds the unit by RESERVE(6).
    pub(crate) reserve6: Option<NexusId>,
    nexuses: Vec<Weak<Nexus>>,
    seen: Seen,
    /// Who saw the unit whose place this one has, and has not been told so: see [`LogicalUnit::succeed`].
    misled: Seen,
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
            cache_off: AtomicBool::new(!write_cache),
            swp: AtomicBool::new(false),
            is_retired: AtomicBool::new(false),
            is_coming: false,
            shared: Mutex::new(Shared {
                mode: mode::Params::new(write_cache),
                reservations: reserve::Reservations::restore(kept.as_deref()),
                reserve6: None,
                nexuses: Vec::new(),
                seen: Seen::default(),
                misled: Seen::default(),
            }),
            keeper,
            kept: tokio::sync::Mutex::new(Kept::new(kept)),
            exclusive: tokio::sync::RwLock::new(()),
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
        shared.nexuses.retain(|other| other.strong_count() > 0);
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

    /// LOGICAL UNIT RESET, or a target reset: RESERVE(6) ends, mode parameters are the defaults again, commands that
    /// have not begun to run are cleared, those that go in steps end, every nexus is told. Returns once no write that began
    /// before is still on its way.
    pub async fn reset(&self, attention: Sense) {
        self.copies.cancel(|_| true);
        let is_cache_off = {
            let mut shared = self.shared();
            shared.reserve6 = None;
            let was = shared.mode;
            self.set_mode(&mut shared, self.defaults());
            shared.nexuses().for_each(|nexus| nexus.clear());
            if attention == Sense::POWER_ON {
                shared.seen.clear();
            }
            shared.raise(attention, |_| true); // the one that asked too (SAM-5 §6.3.3)
            self.limit(&shared);
            was.wce && !shared.mode.wce
        };
        if is_cache_off {
            // Who looked at the pages meanwhile is told to look again. There is nobody to tell that it failed: the pool is
            // suspended then, and makes everything stable when it goes on.
            drop(self.cache_is_off(|_| true).await);
        } else {
            drop(self.exclusive.write().await);
        }
    }

    /// CLEAR TASK SET, for the commands of the nexuses other than `by`: those that have not begun to run are
    /// answered with TASK ABORTED. Returns once no write that began before is still on its way.
    pub async fn clear_task_set(&self, by: &Nexus) {
        self.copies.cancel(|whose| whose != by.id());
        self.shared().nexuses().filter(|nexus| !std::ptr::eq(&**nexus, by)).for_each(|nexus| nexus.clear());
        drop(self.exclusive.write().await);
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

    /// Starts a command. `offered` is how many bytes of Data-Out the initiator has for it.
    pub fn begin(&self, nexus: &Nexus, cdb: &[u8; 16], offered: u32) -> Begin {
        match self.open(nexus, cdb, offered) {
            Opened::Begun(begin) => begin,
            Opened::Lookup(lookup) => self.look_up_one(lookup),
        }
    }

    /// Starts a command, or checks a read that may go on with others by [`look_up`](Self::look_up).
    pub fn open(&self, nexus: &Nexus, cdb: &[u8; 16], offered: u32) -> Opened {
        let parsed = Command::parse(cdb);
        // These three answer whatever is pending (SPC-4 §5.14); all others report it instead of running.
        let silent = matches!(
            parsed,
            Ok(Command::Inquiry { .. } | Command::ReportLuns { .. } | Command::RequestSense { .. })
        );
        if !silent && let Some(attention) = nexus.take_attention() {
            return Opened::Begun(Begin::Done(self.check(attention)));
        }
        match parsed.map_err(Refusal::Sense).and_then(|command| self.start(nexus, command, offered)) {
            Ok(opened) => opened,
            Err(refusal) => Opened::Begun(Begin::Done(self.refuse(refusal))),
        }
    }

    /// Goes on with reads, of one nexus or several: `begun` gets the number of each and what became of it, in any order.
    pub fn look_up(&self, reads: &[Lookup], begun: &mut dyn FnMut(usize, Begin)) {
        let places: SmallVec<[(u64, usize); 16]> =
            reads.iter().map(|read| (read.offset, read.len as usize)).collect();
        self.volume.read_cached_each(&places, &mut |number, data| match (data, reads.get(number)) {
            (Some(data), _) => begun(number, Begin::Done(self.found(data))),
            (None, Some(read)) => begun(number, Begin::Job(read.job)),
            (None, None) => {}
        });
    }

    /// Goes on with one read.
    pub fn look_up_one(&self, Lookup { offset, len, job }: Lookup) -> Begin {
        match self.volume.read_cached(offset, len as usize) {
            Some(data) => Begin::Done(self.found(data)),
            None => Begin::Job(job),
        }
    }

    /// The answer to a read: it may be long before the host fetches it.
    pub(crate) fn found(&self, mut data: Segments) -> Response {
        detach(&mut data, self.stored);
        Response::good(data)
    }

    fn start(&self, nexus: &Nexus, command: Command, offered: u32) -> Result<Opened, Refusal> {
        let geometry = self.geometry();
        self.admit(nexus, &command, &geometry)?;
        let job = |data_out: u32, holds: u32| {
            let job = Job { command, data_out, holds, generation: nexus.generation() };
            Ok(Opened::Begun(Begin::Job(job)))
        };
        let done =
            |bytes: Vec<u8>, allocation: u32| Ok(Opened::Begun(Begin::Done(allocated(bytes, allocation))));
        match command {
            Command::Read { run } => {
                let (offset, len) = self.range(run, &geometry)?;
                let holds = u32::try_from(span(offset, u64::from(len), self.stored)).unwrap_or(u32::MAX);
                let job = Job { command, data_out: 0, holds, generation: nexus.generation() };
                let lookup = Lookup { offset, len, job };
                Ok(match len {
                    0 => Opened::Begun(Begin::Done(Response::good(Segments::new()))),
                    1..=LOOKUP_MAX => Opened::Lookup(lookup),
                    _ => Opened::Begun(self.look_up_one(lookup)),
                })
            }
            Command::Write { run, .. } => {
                let (offset, len) = self.range(run, &geometry)?;
                // Blocks that it covers in part are read before what is new counts as dirty data.
                let beside = partly(offset, u64::from(len), self.stored);
                job(len, u32::try_from(beside).unwrap_or(u32::MAX))
            }
            Command::WriteVerify { run, .. } => {
                let (_, len) = self.range(run, &geometry)?;
                job(len, len)
            }
            Command::Verify { run, check } => {
                self.check_range(run.lba, u64::from(run.blocks), &geometry)?;
                let data = match check {
                    _ if run.blocks == 0 => 0,
                    ByteCheck::Medium => 0,
                    ByteCheck::Blocks => self.range(run, &geometry)?.1,
                    ByteCheck::OneBlock => self.block_size,
                };
                if data > offered {
                    return Err(Sense::INVALID_FIELD_IN_CDB.into());
                }
                job(data, STEPS_HOLD.min(run.blocks.saturating_mul(self.block_size)))
            }
            Command::Prefetch { run } => {
                self.check_range(run.lba, u64::from(run.blocks), &geometry)?;
                job(0, STEPS_HOLD.min(run.blocks.saturating_mul(self.block_size)))
            }
            Command::WriteSame { run, no_data, .. } => {
                let blocks = self.same_blocks(run, &geometry)?;
                self.check_range(run.lba, blocks, &geometry)?;
                let data = if no_data { 0 } else { self.block_size };
                if data != offered && !no_data {
                    return Err(Sense::INVALID_FIELD_IN_CDB.into());
                }
                job(data, STEPS_HOLD)
            }
            Command::CompareAndWrite { run, .. } => {
                let (_, len) = self.range(run, &geometry)?;
                let data = len.saturating_mul(2);
                if data != offered {
                    return Err(Sense::cdb(13, 7).into());
                }
                job(data, len)
            }
            Command::Unmap { length } => {
                if length > UNMAP_DESCRIPTORS_MAX.saturating_mul(16).saturating_add(8) {
                    return Err(Sense::cdb(7, 7).into());
                }
                job(length.min(offered), 0)
            }
            Command::SynchronizeCache { run } => {
                self.check_range(run.lba, u64::from(run.blocks), &geometry)?;
                job(0, 0)
            }
            Command::GetLbaStatus { lba, allocation } => {
                if lba >= self.blocks(&geometry) {
                    return Err(Sense::LBA_OUT_OF_RANGE.into());
                }
                job(0, allocation.min(PARAMETERS_MAX))
            }
            Command::ModeSelect { length, .. }
            | Command::PersistentReserveOut { length, .. }
            | Command::ExtendedCopy { length, .. }
            | Command::PopulateToken { length, .. }
            | Command::WriteUsingToken { length, .. } => {
                let (most, holds) = match command {
                    Command::ModeSelect { .. } => (PARAMETERS_MAX, 0),
                    Command::PersistentReserveOut { .. } => (RESERVATION_LIST_MAX, 0),
                    Command::ExtendedCopy { .. } => (PARAMETERS_MAX, STEPS_HOLD),
                    _ => (copy::odx::LIST_MAX, STEPS_HOLD),
                };
                if length > most || length > offered {
                    return Err(Sense::PARAMETER_LIST_LENGTH.into());
                }
                job(length, holds)
            }
            Command::OrWrite { run, .. } => {
                let (_, len) = self.range(run, &geometry)?;
                job(len, len)
            }
            Command::CopyAbort { list } => {
                let operation = self.copies.find(nexus.id(), list).ok_or(Sense::cdb(2, 7))?;
                operation.cancel().cancel();
                done(Vec::new(), 0)
            }
            Command::ReceiveCopyStatus { long, list, allocation } => {
                let operation = self.copies.find(nexus.id(), list).ok_or(Sense::cdb(2, 7))?;
                let status = match long {
                    true => copy::close(copy::long_status(&operation, self.block_size)),
                    false => copy::short_status(&operation),
                };
                done(status, allocation)
            }
            Command::ReceiveTokens { list, allocation } => {
                let operation = self.copies.find(nexus.id(), list).ok_or(Sense::cdb(2, 7))?;
                done(copy::token_information(&operation, self.block_size), allocation)
            }
            Command::CopyParameters { allocation } => done(copy::parameters(), allocation),
            Command::LogSense { page, subpage, control, pointer, allocation } => {
                let space = self.volume.space();
                done(log::sense(page, subpage, control, pointer, space, self.block_size)?, allocation)
            }
            Command::ReportTaskManagement { extended, allocation } => {
                done(opcodes::task_management(extended), allocation)
            }
            Command::TestUnitReady | Command::PreventAllow { .. } => done(Vec::new(), 0),
            Command::StartStop { load_eject, condition, .. } => {
                // Nothing spins and nothing can be ejected: power conditions are accepted, ejecting is not.
                if load_eject && condition == 0 {
                    return Err(Sense::cdb(4, 1).into());
                }
                done(Vec::new(), 0)
            }
            Command::RequestSense { descriptor, allocation } => {
                // What it is like is told to who asks, without a command that fails (SPC-4 §5.11.2).
                let state = if self.is_coming { Sense::BECOMING_READY } else { Sense::NONE };
                let sense = nexus.take_attention().unwrap_or(state);
                let bytes = if descriptor { sense.descriptor() } else { sense.fixed() };
                done(bytes.as_slice().to_vec(), allocation)
            }
            Command::Inquiry { page, allocation } => done(self.inquiry(nexus, page, &geometry)?, allocation),
            Command::ReportLuns { select, allocation } => {
                nexus.forget(Sense::LUNS_CHANGED);
                done(report_luns(select, allocation, &[0])?, allocation)
            }
            Command::ReadCapacity10 => {
                let last = self.blocks(&geometry).saturating_sub(1);
                let mut out = u32::try_from(last).unwrap_or(u32::MAX).to_be_bytes().to_vec();
                out.extend(self.block_size.to_be_bytes());
                done(out, 8)
            }
            Command::ReadCapacity16 { allocation } => {
                let last = self.blocks(&geometry).saturating_sub(1);
                done(inquiry::capacity16(last, self.block_size, PHYSICAL_BLOCK), allocation)
            }
            Command::ModeSense { ten, no_descriptors, control, page, subpage, allocation } => {
                let current = self.shared().mode.shown(geometry.read_only);
                let medium = mode::Medium {
                    write_protected: geometry.read_only || current.swp,
                    blocks: self.blocks(&geometry),
                    block_size: self.block_size,
                    defaults: self.defaults().shown(geometry.read_only),
                    threshold: self
                        .volume
                        .space()
                        .map(|_| log::units(self.room.threshold(), self.block_size)),
                };
                let query = mode::Query { ten, no_descriptors, control, page, subpage };
                done(mode::sense(&query, &medium, current)?, allocation)
            }
            Command::ReportOpcodes { query, timeouts, allocation } => {
                done(opcodes::report(query, timeouts)?, allocation)
            }
            Command::ReportTargetPortGroups { extended, allocation } => {
                done(inquiry::target_port_groups(extended, &self.service.port_groups()), allocation)
            }
            Command::Reserve6 | Command::Release6 => {
                let mut shared = self.shared();
                let id = nexus.id();
                // With registrations about these do nothing, for registrants, or conflict (CRH, SPC-4 §5.13.3).
                if shared.reservations.unreadable() {
                    return Err(Refusal::Conflict); // nobody knows who was fenced
                }
                if shared.reservations.registered() {
                    return match shared.reservations.is_registrant(id) {
                        true => done(Vec::new(), 0),
                        false => Err(Refusal::Conflict),
                    };
                }
                match &shared.reserve6 {
                    Some(holder) if holder != id => {
                        if command == Command::Reserve6 {
                            return Err(Refusal::Conflict);
                        }
                    }
                    _ => shared.reserve6 = (command == Command::Reserve6).then(|| id.clone()),
                }
                self.limit(&shared);
                done(Vec::new(), 0)
            }
            Command::PersistentReserveIn { action, allocation } => {
                if self.shared().reserve6.is_some() {
                    return Err(Refusal::Conflict);
                }
                done(self.shared().reservations.report(action, self.keeper.is_some())?, allocation)
            }
        }
    }

    /// What may change between `begin` and `run`: reservations, access state, write protection.
    pub(crate) fn admit(&self, nexus: &Nexus, command: &Command, geometry: &Geometry) -> Result<(), Refusal> {
        let limits = nexus.limits();
        if limits != 0 {
            self.judge(nexus, limits, command)?;
        }
        if command.writes() {
            if self.is_retired.load(Ordering::Acquire) {
                return Err(Sense::LUN_NOT_SUPPORTED.into());
            }
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
            let standby = access == crate::service::Access::Standby;
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
            () if self.is_retired.load(Ordering::Acquire) => Err(Sense::LUN_NOT_SUPPORTED.into()),
            () if self.is_coming => Err(Sense::BECOMING_READY.into()),
            () if writes && geometry.read_only => Err(Sense::WRITE_PROTECTED.into()),
            () if writes && self.swp.load(Ordering::Acquire) => Err(Sense::SOFTWARE_WRITE_PROTECTED.into()),
            () => Ok(()),
        }
    }

    /// What a nexus may not do now.
    fn limits_of(&self, shared: &Shared, id: &NexusId) -> u8 {
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

    /// A token stands for some of our blocks from now on. The caller holds `exclusive` alone.
    pub(crate) fn watch(&self, rod: &Arc<Rod>) {
        let mut rods = self.rods.lock().unwrap_or_else(PoisonError::into_inner);
        rods.retain(|rod| rod.upgrade().is_some_and(|rod| !rod.is_over()));
        rods.push(Arc::downgrade(rod));
        self.watched.store(true, Ordering::Release);
    }

    /// Bytes are about to change: to be called with `exclusive` held, before the volume is.
    pub(crate) fn touched(&self, offset: u64, len: u64) {
        if self.watched.load(Ordering::Acquire) {
            self.revoke(offset, len);
        }
    }

    /// It is offered no more, and the volume may be, by another unit that knows nothing of what was promised here: no write
    /// begins, copies end after their next step, tokens stand for nothing.
    pub fn retire(&self) {
        self.is_retired.store(true, Ordering::Release);
        self.copies.cancel(|_| true);
        self.revoke(0, u64::MAX);
    }

    /// Whether a copy is under way that reads or writes here, for a host that may be logged in elsewhere only.
    pub fn is_in_copy(&self) -> bool {
        self.in_copies.load(Ordering::Acquire) > 0
    }

    /// What the volume holds is replaced, and not by what comes by here: tokens stand for nothing any more.
    pub fn revoke_tokens(&self) {
        self.revoke(0, u64::MAX);
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
        if self.size_told.load(Ordering::Relaxed) != geometry.size
            && self.size_told.swap(geometry.size, Ordering::AcqRel) != geometry.size
        {
            self.shared().raise(Sense::CAPACITY_CHANGED, |_| true);
        }
        if self.read_only_told.load(Ordering::Relaxed) != geometry.read_only
            && self.read_only_told.swap(geometry.read_only, Ordering::AcqRel) != geometry.read_only
        {
            let shared = self.shared();
            shared.raise(Sense::MODE_CHANGED, |_| true); // WP, WCE
            shared.raise(Sense::INQUIRY_CHANGED, |_| true); // VPD 86h, B0h and B2h: caching, what can be freed
        }
        geometry
    }

    /// Logical blocks; a last partial one cannot be addressed.
    pub(crate) fn blocks(&self, geometry: &Geometry) -> u64 {
        geometry.size.checked_div(u64::from(self.block_size)).unwrap_or(0)
    }

    pub(crate) fn check_range(&self, lba: u64, blocks: u64, geometry: &Geometry) -> Result<(), Sense> {
        match lba.checked_add(blocks) {
            Some(end) if end <= self.blocks(geometry) => Ok(()),
            _ => Err(Sense::LBA_OUT_OF_RANGE),
        }
    }

    /// Byte offset and length of a run that one command may move.
    pub(crate) fn range(&self, run: Run, geometry: &Geometry) -> Result<(u64, u32), Sense> {
        self.check_range(run.lba, u64::from(run.blocks), geometry)?;
        let len = run.blocks.checked_mul(self.block_size).filter(|len| *len <= TRANSFER_MAX);
        let len = len.ok_or(Sense::INVALID_FIELD_IN_CDB)?;
        Ok((self.byte(run.lba), len))
    }

    /// First byte of a block; the caller has checked that it exists.
    pub(crate) fn byte(&self, lba: u64) -> u64 {
        lba.saturating_mul(u64::from(self.block_size))
    }

    /// How many blocks a WRITE SAME covers: none means all up to the end.
    pub(crate) fn same_blocks(&self, run: Run, geometry: &Geometry) -> Result<u64, Sense> {
        let blocks = match run.blocks {
            0 => self.blocks(geometry).saturating_sub(run.lba),
            blocks => u64::from(blocks),
        };
        if blocks > self.limits().write_same { Err(Sense::INVALID_FIELD_IN_CDB) } else { Ok(blocks) }
    }

    /// Bytes that become a hole at a time: what a pool does in a moment.
    pub(crate) fn hole_step(&self) -> u64 {
        HOLE_STEP.min(HOLE_STEP_BLOCKS.saturating_mul(u64::from(self.stored.max(self.block_size))))
    }

    /// How much of a range becomes a hole if `room` bytes may: all, or whole volume blocks up to where the rest begins, which
    /// would not be freed if it were zeroed in two parts.
    pub(crate) fn hole_part(&self, offset: u64, len: u64, room: u64) -> u64 {
        if len <= room {
            return len;
        }
        let end = offset.saturating_add(room);
        let beyond = end.checked_rem(u64::from(self.stored)).unwrap_or(0);
        end.saturating_sub(beyond).saturating_sub(offset)
    }

    pub(crate) fn limits(&self) -> Limits {
        let in_blocks = |bytes: u64| bytes.checked_div(u64::from(self.block_size)).unwrap_or(0);
        let short = |bytes: u64| u32::try_from(in_blocks(bytes)).unwrap_or(u32::MAX);
        Limits {
            transfer: short(u64::from(TRANSFER_MAX)),
            optimal_transfer: short(1 << 20),
            unmap: short(UNMAP_MAX),
            unmap_descriptors: UNMAP_DESCRIPTORS_MAX,
            write_same: in_blocks(WRITE_SAME_MAX),
            compare_and_write: COMPARE_BLOCKS_MAX,
        }
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

    pub(crate) fn set_mode(&self, shared: &mut Shared, mode: mode::Params) {
        shared.mode = mode;
        self.write_through.store(!mode.wce, Ordering::Release);
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
        }
    }

    /// CHECK CONDITION in the format that the control mode page asks for.
    pub fn check(&self, sense: Sense) -> Response {
        let descriptor = self.shared().mode.d_sense;
        Response::check(if descriptor { sense.descriptor() } else { sense.fixed() })
    }
}

/// GOOD with at most `allocation` bytes.
fn allocated(mut bytes: Vec<u8>, allocation: u32) -> Response {
    bytes.truncate(allocation as usize);
    Response::good(pieces::one(bytes))
}

/// REPORT LUNS of a target that has these (SPC-4 §6.33).
fn report_luns(select: u8, allocation: u32, luns: &[u16]) -> Result<Vec<u8>, Sense> {
    if allocation < 16 {
        return Err(Sense::cdb(6, 7));
    }
    let luns = match select {
        0x00 | 0x02 => luns,
        0x01 => &[], // well-known logical units: none
        _ => return Err(Sense::cdb(2, 7)),
    };
    let mut out = vec![0; 8];
    for lun in luns {
        out.extend(lun_bytes(*lun));
    }
    let len = u32::try_from(out.len().saturating_sub(8)).unwrap_or(0);
    if let Some(head) = out.first_chunk_mut() {
        *head = len.to_be_bytes();
    }
    Ok(out)
}

/// A LUN as eight bytes: peripheral addressing up to 255, flat above (SAM-5 §4.7). At most 16,383.
pub fn lun_bytes(lun: u16) -> [u8; 8] {
    let [high, low] = lun.to_be_bytes();
    [if lun > 255 { 0x40 | (high & 0x3f) } else { 0 }, low, 0, 0, 0, 0, 0, 0]
}

/// The number in eight bytes of LUN: peripheral (bus 0) or flat addressing, of one level.
pub fn lun_number(bytes: [u8; 8]) -> Option<u16> {
    match bytes {
        [0, low, 0, 0, 0, 0, 0, 0] => Some(u16::from(low)),
        [high, low, 0, 0, 0, 0, 0, 0] if high & 0xc0 == 0x40 => Some(u16::from_be_bytes([high & 0x3f, low])),
        _ => None,
    }
}

/// REPORT LUNS of a target that has the LUNs `luns`, asked of one of its units or of none.
pub fn target_luns(cdb: &[u8; 16], luns: &[u16], asked: Option<&LogicalUnit>) -> Response {
    let told = match Command::parse(cdb) {
        Ok(Command::ReportLuns { select, allocation }) => {
            report_luns(select, allocation, luns).map(|bytes| allocated(bytes, allocation))
        }
        Ok(_) => Err(Sense::INVALID_OPCODE),
        Err(sense) => Err(sense),
    };
    told.unwrap_or_else(|sense| {
        asked.map_or_else(|| Response::check(sense.fixed()), |unit| unit.check(sense))
    })
}

/// The answer to a command for a LUN that has no logical unit (SPC-4 §6.4, §6.33, SAM-5 §4.7).
/// `luns` are those of the target that have one.
pub fn absent_lun(cdb: &[u8; 16], luns: &[u16]) -> Response {
    let answer = match Command::parse(cdb) {
        Ok(Command::Inquiry { page: None, allocation }) => Ok((inquiry::standard(false), allocation)),
        Ok(Command::ReportLuns { select, allocation }) => {
            report_luns(select, allocation, luns).map(|bytes| (bytes, allocation))
        }
        Ok(Command::RequestSense { descriptor, allocation }) => {
            let sense = Sense::LUN_NOT_SUPPORTED;
            let bytes = if descriptor { sense.descriptor() } else { sense.fixed() };
            Ok((bytes.as_slice().to_vec(), allocation))
        }
        _ => Err(Sense::LUN_NOT_SUPPORTED),
    };
    match answer {
        Ok((bytes, allocation)) => allocated(bytes, allocation),
        Err(sense) => Response::check(sense.fixed()),
    }
}
