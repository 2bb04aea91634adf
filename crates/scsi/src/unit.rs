//! A logical unit: its identity, what its initiators share, and the commands that need no waiting.
//!
//! The hot path is `begin` with a READ whose blocks are cached: two relaxed loads decide that no unit
//! attention waits and nobody holds a reservation, then the cached pieces are the answer.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, Weak,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use block::{BlockVolume, Geometry, Segments};

use crate::{
    cdb::{ByteCheck, Command, Run},
    identity::{Naa, naa, serial},
    inquiry::{self, Limits},
    mode,
    nexus::Nexus,
    opcodes, pieces, reserve,
    sense::{Sense, SenseBytes, Status},
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
/// What hosts see as a physical block: 4 KiB whatever the volume block, which VMFS and Windows accept.
const PHYSICAL_BLOCK: u32 = 4096;

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
}

/// What became of a CDB.
#[derive(Debug)]
pub enum Begin {
    /// Answered.
    Done(Response),
    /// To be run.
    Job(Job),
}

/// Why a command was not done.
#[derive(Debug)]
pub(crate) enum Refusal {
    Sense(Sense),
    Conflict,
}

impl From<Sense> for Refusal {
    fn from(sense: Sense) -> Self {
        Self::Sense(sense)
    }
}

/// A volume as a SCSI disk.
pub struct LogicalUnit {
    pub(crate) volume: Arc<dyn BlockVolume>,
    pub(crate) block_size: u32,
    target: String,
    naa: Naa,
    serial: String,
    /// The size initiators were last told, in bytes.
    size_told: AtomicU64,
    /// Whether `shared.reservations` holds anything that could refuse a command.
    reserved: AtomicBool,
    /// `shared.mode`, for the path of a write.
    write_through: AtomicBool,
    pub(crate) shared: Mutex<Shared>,
    /// Held for reading by every write, for writing by COMPARE AND WRITE and by whoever must know that
    /// no older write is still on its way.
    pub(crate) exclusive: tokio::sync::RwLock<()>,
}

pub(crate) struct Shared {
    pub(crate) mode: mode::Params,
    pub(crate) reservations: reserve::Reservations,
    nexuses: Vec<Weak<Nexus>>,
}

impl Shared {
    /// Raises a unit attention on every nexus that `who` picks by its port name.
    pub(crate) fn raise(&self, attention: Sense, who: impl Fn(&Arc<str>) -> bool) {
        for nexus in self.nexuses.iter().filter_map(Weak::upgrade) {
            if who(nexus.port()) {
                nexus.raise(attention);
            }
        }
    }
}

impl LogicalUnit {
    /// A logical unit over `volume`, at LUN 0 of the target named `target`, with 512-byte blocks.
    pub fn new(volume: Arc<dyn BlockVolume>, target: &str) -> Self {
        Self::with_block_size(volume, target, 512)
    }

    /// The same with logical blocks of `block_size` bytes: 512, or 4096 for 4 KiB native.
    ///
    /// # Panics
    /// If it is neither.
    pub fn with_block_size(volume: Arc<dyn BlockVolume>, target: &str, block_size: u32) -> Self {
        assert!(block_size == 512 || block_size == 4096, "logical blocks are of 512 or 4096 bytes");
        let naa = naa(&volume.identity());
        let geometry = volume.geometry();
        Self {
            block_size,
            target: target.to_owned(),
            naa,
            serial: serial(&naa),
            size_told: AtomicU64::new(geometry.size),
            reserved: AtomicBool::new(false),
            write_through: AtomicBool::new(false),
            shared: Mutex::new(Shared {
                mode: mode::Params::new(geometry.read_only),
                reservations: reserve::Reservations::default(),
                nexuses: Vec::new(),
            }),
            exclusive: tokio::sync::RwLock::new(()),
            volume,
        }
    }

    /// The volume behind it.
    pub fn volume(&self) -> &Arc<dyn BlockVolume> {
        &self.volume
    }

    /// The name multipath software knows it by.
    pub fn naa(&self) -> Naa {
        self.naa
    }

    /// A nexus begins. `port` names the initiator port: name and ISID, `iqn…,i,0x00023d000001`.
    pub fn attach(&self, port: &str) -> Arc<Nexus> {
        let nexus = Arc::new(Nexus::new(port.into()));
        let mut shared = self.shared();
        shared.nexuses.retain(|other| other.strong_count() > 0);
        shared.nexuses.push(Arc::downgrade(&nexus));
        nexus
    }

    /// A nexus ends: RESERVE(6) ends with it, a persistent registration does not (SPC-4 §5.13.5).
    pub fn detach(&self, nexus: &Nexus) {
        let mut shared = self.shared();
        shared.nexuses.retain(|other| other.upgrade().is_some_and(|other| !std::ptr::eq(&*other, nexus)));
        shared.reservations.release6(nexus.port());
        self.note_reservations(&shared);
    }

    /// LOGICAL UNIT RESET, or a target reset: RESERVE(6) ends, mode parameters are the defaults again, every
    /// nexus is told. Returns once no write that began before is still on its way.
    pub async fn reset(&self, attention: Sense) {
        {
            let mut shared = self.shared();
            shared.reservations.release6_any();
            let read_only = self.volume.geometry().read_only;
            shared.mode = mode::Params::new(read_only);
            self.write_through.store(false, Ordering::Release);
            shared.raise(attention, |_| true); // the one that asked too (SAM-5 §6.3.3)
            self.note_reservations(&shared);
        }
        drop(self.exclusive.write().await);
    }

    /// The volume has changed in a way that initiators should hear of without asking: if it has another size now,
    /// every nexus gets CAPACITY DATA HAS CHANGED as a unit attention (SBC-3 §4.7) with its next command.
    pub fn announce(&self) {
        self.geometry();
    }

    /// Starts a command. `offered` is how many bytes of Data-Out the initiator has for it.
    pub fn begin(&self, nexus: &Nexus, cdb: &[u8; 16], offered: u32) -> Begin {
        let parsed = Command::parse(cdb);
        // These three answer whatever is pending (SPC-4 §5.14); all others report it instead of running.
        let silent = matches!(
            parsed,
            Ok(Command::Inquiry { .. } | Command::ReportLuns { .. } | Command::RequestSense { .. })
        );
        if !silent && let Some(attention) = nexus.take_attention() {
            return Begin::Done(self.check(attention));
        }
        match parsed.map_err(Refusal::Sense).and_then(|command| self.start(nexus, command, offered)) {
            Ok(begin) => begin,
            Err(refusal) => Begin::Done(self.refuse(refusal)),
        }
    }

    fn start(&self, nexus: &Nexus, command: Command, offered: u32) -> Result<Begin, Refusal> {
        let geometry = self.geometry();
        self.admit(nexus, &command, &geometry)?;
        let job = |data_out: u32, holds: u32| Ok(Begin::Job(Job { command, data_out, holds }));
        let done = |bytes: Vec<u8>, allocation: u32| Ok(Begin::Done(allocated(bytes, allocation)));
        match command {
            Command::Read { run } => {
                let (offset, len) = self.range(run, &geometry)?;
                if len == 0 {
                    return Ok(Begin::Done(Response::good(Segments::new())));
                }
                match self.volume.read_cached(offset, len as usize) {
                    Some(data) => Ok(Begin::Done(Response::good(data))),
                    None => job(0, len),
                }
            }
            Command::Write { run, .. } => {
                let (_, len) = self.range(run, &geometry)?;
                job(len, 0)
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
                job(data, TRANSFER_MAX.min(run.blocks.saturating_mul(self.block_size)))
            }
            Command::Prefetch { run } => {
                self.check_range(run.lba, u64::from(run.blocks), &geometry)?;
                job(0, TRANSFER_MAX.min(run.blocks.saturating_mul(self.block_size)))
            }
            Command::WriteSame { run, no_data, .. } => {
                let blocks = self.same_blocks(run, &geometry)?;
                self.check_range(run.lba, blocks, &geometry)?;
                let data = if no_data { 0 } else { self.block_size };
                if data != offered && !no_data {
                    return Err(Sense::INVALID_FIELD_IN_CDB.into());
                }
                job(data, 1 << 20)
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
            Command::ModeSelect { length, .. } | Command::PersistentReserveOut { length, .. } => {
                if length > PARAMETERS_MAX || length > offered {
                    return Err(Sense::PARAMETER_LIST_LENGTH.into());
                }
                job(length, 0)
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
                let sense = nexus.take_attention().unwrap_or(Sense::NONE);
                let bytes = if descriptor { sense.descriptor() } else { sense.fixed() };
                done(bytes.as_slice().to_vec(), allocation)
            }
            Command::Inquiry { page, allocation } => done(self.inquiry(page, &geometry)?, allocation),
            Command::ReportLuns { select, allocation } => {
                done(report_luns(select, allocation, true)?, allocation)
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
                let current = self.shared().mode;
                let medium = mode::Medium {
                    write_protected: geometry.read_only || current.swp,
                    blocks: self.blocks(&geometry),
                    block_size: self.block_size,
                    defaults: mode::Params::new(geometry.read_only),
                };
                let query = mode::Query { ten, no_descriptors, control, page, subpage };
                done(mode::sense(&query, &medium, current)?, allocation)
            }
            Command::ReportOpcodes { query, timeouts, allocation } => {
                done(opcodes::report(query, timeouts)?, allocation)
            }
            Command::ReportTargetPortGroups { extended, allocation } => {
                done(inquiry::target_port_groups(extended), allocation)
            }
            Command::Reserve6 | Command::Release6 => {
                let mut shared = self.shared();
                let granted = if command == Command::Reserve6 {
                    shared.reservations.reserve6(nexus.port())
                } else {
                    shared.reservations.release6(nexus.port())
                };
                self.note_reservations(&shared);
                if granted { done(Vec::new(), 0) } else { Err(Refusal::Conflict) }
            }
            Command::PersistentReserveIn { action, allocation } => {
                done(self.shared().reservations.report(action)?, allocation)
            }
        }
    }

    /// What may change between `begin` and `run`: reservations, write protection.
    pub(crate) fn admit(&self, nexus: &Nexus, command: &Command, geometry: &Geometry) -> Result<(), Refusal> {
        if self.reserved.load(Ordering::Acquire) && self.shared().reservations.refuses(nexus.port(), command)
        {
            return Err(Refusal::Conflict);
        }
        if command.writes() {
            if geometry.read_only {
                return Err(Sense::WRITE_PROTECTED.into());
            }
            if self.shared().mode.swp {
                return Err(Sense::SOFTWARE_WRITE_PROTECTED.into());
            }
        }
        Ok(())
    }

    /// The volume's size now; who was told another is told once more.
    pub(crate) fn geometry(&self) -> Geometry {
        let geometry = self.volume.geometry();
        if self.size_told.load(Ordering::Relaxed) != geometry.size
            && self.size_told.swap(geometry.size, Ordering::AcqRel) != geometry.size
        {
            self.shared().raise(Sense::CAPACITY_CHANGED, |_| true);
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

    fn inquiry(&self, page: Option<u8>, geometry: &Geometry) -> Result<Vec<u8>, Sense> {
        let Some(page) = page else {
            return Ok(inquiry::standard(true));
        };
        let unit = inquiry::Unit {
            target: &self.target,
            naa: &self.naa,
            serial: &self.serial,
            block_size: self.block_size,
            granularity: geometry.block.checked_div(self.block_size).unwrap_or(1).max(1),
            read_only: geometry.read_only,
            limits: self.limits(),
        };
        debug_assert_eq!(unit.block_size, self.block_size);
        inquiry::vital(page, &unit)
    }

    pub(crate) fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note_reservations(&self, shared: &Shared) {
        self.reserved.store(shared.reservations.any(), Ordering::Release);
    }

    pub(crate) fn set_write_through(&self, on: bool) {
        self.write_through.store(on, Ordering::Release);
    }

    pub(crate) fn write_through(&self) -> bool {
        self.write_through.load(Ordering::Acquire)
    }

    pub(crate) fn refuse(&self, refusal: Refusal) -> Response {
        match refusal {
            Refusal::Sense(sense) => self.check(sense),
            Refusal::Conflict => Response::status(Status::ReservationConflict),
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

fn report_luns(select: u8, allocation: u32, present: bool) -> Result<Vec<u8>, Sense> {
    if allocation < 16 {
        return Err(Sense::cdb(6, 7));
    }
    let luns = match select {
        0x00 | 0x02 => u8::from(present),
        0x01 => 0, // well-known logical units: none
        _ => return Err(Sense::cdb(2, 7)),
    };
    let mut out = vec![0; 8];
    if luns > 0 {
        out.extend([0; 8]);
        if let [_, _, _, len, ..] = out.as_mut_slice() {
            *len = 8;
        }
    }
    Ok(out)
}

/// The answer to a command for a LUN that has no logical unit (SPC-4 §6.4, §6.33, SAM-5 §4.7).
/// `lun0` says whether LUN 0 of the target has one.
pub fn absent_lun(cdb: &[u8; 16], lun0: bool) -> Response {
    let answer = match Command::parse(cdb) {
        Ok(Command::Inquiry { page: None, allocation }) => Ok((inquiry::standard(false), allocation)),
        Ok(Command::ReportLuns { select, allocation }) => {
            report_luns(select, allocation, lun0).map(|bytes| (bytes, allocation))
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
