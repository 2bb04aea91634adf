//! How commands begin: those that need no waiting are answered, the others become jobs.
//!
//! The hot path is `open` with a READ whose blocks are cached: two relaxed loads decide that no unit
//! attention waits and nobody holds a reservation, then the cached pieces are the answer. Small ones that
//! came together are looked up together.

use block::{Geometry, Segments, detach, partly, span};
use smallvec::SmallVec;

use super::{
    Begin, Job, LogicalUnit, Lookup, Opened, PHYSICAL_BLOCK, Refusal, Response, UNMAP_DESCRIPTORS_MAX,
    allocated,
};
use crate::{
    cdb::{ByteCheck, Command},
    copy, inquiry, log, lun, mode,
    nexus::Nexus,
    opcodes,
    sense::{Sense, Status},
};

/// Parameter lists (mode pages, reservations) are shorter than this.
const PARAMETERS_MAX: u32 = 4096;
/// Parameter list of a reservation that names other initiators (SPEC_I_PT).
const RESERVATION_LIST_MAX: u32 = 16 << 10;
/// What a command that goes in steps holds in memory, whatever its length: two steps of it.
const STEPS_HOLD: u32 = 2 << 20;

impl LogicalUnit {
    /// Starts a command. `offered` is how many bytes of Data-Out the initiator has for it.
    pub fn begin(&self, nexus: &Nexus, cdb: &[u8; 16], offered: u32) -> Begin {
        match self.open(nexus, cdb, offered) {
            Opened::Begun(begin) => begin,
            Opened::Lookup(lookup) => self.look_up_one(lookup),
        }
    }

    /// Starts a command, or checks a read, which goes on by [`look_up`](Self::look_up) with others if it is short, by
    /// [`look_up_one`](Self::look_up_one), or as a job.
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
                Ok(match len {
                    0 => Opened::Begun(Begin::Done(Response::good(Segments::new()))),
                    _ => Opened::Lookup(Lookup { offset, len, job }),
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
            Command::WriteSame { run, no_data, unmap } => {
                let blocks = self.same_blocks(run, &geometry)?;
                self.check_range(run.lba, blocks, &geometry)?;
                let data = if no_data { 0 } else { self.block_size };
                if data != offered && !no_data {
                    return Err(Sense::INVALID_FIELD_IN_CDB.into());
                }
                // What becomes a hole needs no memory.
                let bytes =
                    if unmap || no_data { 0 } else { blocks.saturating_mul(u64::from(self.block_size)) };
                job(data, u32::try_from(bytes).unwrap_or(u32::MAX).min(STEPS_HOLD))
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
                let operation = self.copies.find_by_name(nexus.id(), list).ok_or(Sense::cdb(2, 7))?;
                let status = match long {
                    true => copy::close(copy::long_status(&operation, self.block_size)),
                    false => copy::short_status(&operation),
                };
                done(status, allocation)
            }
            Command::ReceiveTokens { list, allocation } => {
                let operation = self.copies.find_by_name(nexus.id(), list).ok_or(Sense::cdb(2, 7))?;
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
                done(lun::report_luns(select, allocation, &[0])?, allocation)
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
                let query = mode::Query { ten, no_descriptors, control, page, subpage };
                done(self.mode_sense(nexus, &query, &geometry)?, allocation)
            }
            Command::ReportOpcodes { query, timeouts, allocation } => {
                done(opcodes::report(query, timeouts)?, allocation)
            }
            Command::ReportTargetPortGroups { extended, allocation } => {
                done(inquiry::target_port_groups(extended, &self.service.port_groups()), allocation)
            }
            Command::Reserve6 | Command::Release6 => {
                Ok(Opened::Begun(Begin::Done(self.reserve6(nexus, command == Command::Reserve6)?)))
            }
            Command::PersistentReserveIn { action, allocation } => {
                if self.shared().reserve6.is_some() {
                    return Err(Refusal::Conflict);
                }
                done(self.shared().reservations.report(action, self.keeper.is_some())?, allocation)
            }
        }
    }

    fn mode_sense(&self, nexus: &Nexus, query: &mode::Query, geometry: &Geometry) -> Result<Vec<u8>, Sense> {
        let (current, changeable) = {
            let shared = self.shared();
            (shared.mode, self.changeable(&shared, nexus))
        };
        let medium = mode::Medium {
            write_protected: geometry.read_only || current.swp,
            blocks: self.blocks(geometry),
            block_size: self.block_size,
            defaults: self.defaults(),
            changeable,
            threshold: self.volume.space().map(|_| log::units(self.room.threshold(), self.block_size)),
        };
        mode::sense(query, &medium, current)
    }

    /// RESERVE(6), or RELEASE(6).
    fn reserve6(&self, nexus: &Nexus, reserves: bool) -> Result<Response, Refusal> {
        let mut shared = self.shared();
        let id = nexus.id();
        if shared.reservations.unreadable() {
            return Err(Refusal::Conflict); // nobody knows who was fenced
        }
        if shared.reservations.registered() {
            return match shared.reservations.does_for_reserve6(id) {
                true => Ok(allocated(Vec::new(), 0)),
                false => Err(Refusal::Conflict),
            };
        }
        match &shared.reserve6 {
            Some(holder) if holder != id => {
                if reserves {
                    return Err(Refusal::Conflict);
                }
            }
            // One that changes persistent reservations has looked here already, and waits until that is stable.
            None if reserves && self.kept.try_lock().is_err() => {
                return Ok(Response::status(Status::Busy));
            }
            _ => shared.reserve6 = reserves.then(|| id.clone()),
        }
        self.limit(&shared);
        Ok(allocated(Vec::new(), 0))
    }
}
