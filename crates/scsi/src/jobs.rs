//! The commands that wait: reads that miss the cache, and everything that writes or needs Data-Out.
//!
//! Big ranges go through in steps of [`STEP`] bytes, so that no command holds more than the transport
//! has budgeted for; what becomes a hole takes longer ones ([`LogicalUnit::hole_step`]). COMPARE AND WRITE and ORWRITE
//! have their blocks alone ([`Exclusive`](crate::exclusive::Exclusive)); every other write shares its own with its like, and one
//! that goes in steps takes those of each anew, so that it holds up nobody for long and can be ended in between.
//! None keeps them while it becomes stable.

use std::sync::{Arc, atomic::Ordering};

use block::{Asked, Durability, Geometry, Segment, Segments, Tell, VolumeError, flatten};
use bytes::Bytes;
use futures_util::future::try_join_all;
use smallvec::SmallVec;

use crate::{
    cdb::{ByteCheck, Command, Run},
    errand::{self, Cancel, Errand, Rest},
    mode,
    nexus::{Nexus, NexusId},
    pieces,
    sense::Sense,
    unit::{Job, LogicalUnit, PHYSICAL_BLOCK, Refusal, Response, TRANSFER_MAX, UNMAP_DESCRIPTORS_MAX},
};

/// Bytes verified, prefetched or repeated at a time.
const STEP: u64 = 1 << 20;
/// How far GET LBA STATUS looks, in bytes: indirect blocks of that much are read at most.
const STATUS_WINDOW: u64 = 4 << 30;
/// The bytes of a command that is not about any.
const NOWHERE: (u64, u64) = (0, 0);
/// Descriptors one GET LBA STATUS answers at most.
const STATUS_EXTENTS: u32 = 64;

impl LogicalUnit {
    /// Runs a job. `data` is its Data-Out: `job.data_out` bytes, or fewer if the initiator offered less
    /// (then a WRITE writes the whole blocks it has).
    pub async fn run(&self, nexus: &Arc<Nexus>, job: Job, data: Segments) -> Response {
        match self.execute(nexus, job, data).await {
            Ok(data) => self.found(data),
            Err(refusal) => self.refuse(refusal),
        }
    }

    /// The same for a job that may take long ([`Job::is_long`]): it ends soon after `cancel` says so, and so does what of it
    /// is to be run behind the answer.
    pub async fn run_until(
        &self,
        nexus: &Arc<Nexus>,
        job: Job,
        data: Segments,
        cancel: Cancel,
    ) -> (Response, Option<Rest>) {
        if !job.is_long() {
            return (self.run(nexus, job, data).await, None);
        }
        let errand = Errand { nexus: Arc::clone(nexus), job, cancel };
        match self.execute_long(&errand, data).await {
            Ok(rest) => (Response::good(Segments::new()), rest),
            Err(refusal) => (self.refuse(refusal), None),
        }
    }

    /// What goes in steps.
    async fn execute_long(&self, errand: &Errand, mut data: Segments) -> Result<Option<Rest>, Refusal> {
        if errand.is_cleared() {
            return Err(Refusal::Cleared);
        }
        self.admit(&errand.nexus, &errand.job.command, &self.geometry())?;
        pieces::truncate(&mut data, errand.job.data_out as usize);
        let result = match errand.job.command {
            Command::Verify { run, check } => self.verify(errand, run, check, &data).await.map(|()| None),
            Command::Prefetch { run } => {
                let blocks = run.blocks.min(TRANSFER_MAX.checked_div(self.block_size).unwrap_or(0));
                let verified = self.verify(errand, Run { blocks, ..run }, ByteCheck::Medium, &data).await;
                verified.map(|()| None)
            }
            Command::WriteSame { run, no_data, unmap } => {
                self.write_same(errand, run, unmap, no_data, &data).await.map(|()| None)
            }
            Command::Unmap { .. } => self.unmap(errand, &flatten(&data)).await.map(|()| None),
            Command::ExtendedCopy { long, .. } => self.extended_copy(errand, long, &flatten(&data)).await,
            Command::WriteUsingToken { list, .. } => {
                self.write_using_token(errand, list, &flatten(&data)).await
            }
            _ => Err(Sense::INTERNAL_FAILURE.into()),
        };
        // Whoever cleared it from outside wants no copy that failed, but one that never was.
        if result.is_err() && errand.is_cleared() { Err(Refusal::Cleared) } else { result }
    }

    async fn execute(&self, nexus: &Arc<Nexus>, job: Job, mut data: Segments) -> Result<Segments, Refusal> {
        if job.generation != nexus.generation() {
            return Err(Refusal::Cleared);
        }
        if job.is_long() {
            let errand = Errand { nexus: Arc::clone(nexus), job, cancel: Cancel::default() };
            // Nobody is there to run what goes on behind the answer: it runs before it, which hosts cannot tell.
            if let Some(rest) = Box::pin(self.execute_long(&errand, data)).await? {
                rest.await;
            }
            return Ok(Segments::new());
        }
        pieces::truncate(&mut data, job.data_out as usize);
        if let Command::Read { run } = job.command {
            let geometry = self.geometry();
            self.admit(nexus, &job.command, &geometry)?;
            let (offset, len) = self.range(run, &geometry)?;
            let read = self.volume.read(offset, len as usize).await;
            return read.map_err(|e| self.failed(&e, (offset, u64::from(len))));
        }
        // Those that read and write have their blocks alone; the PR commands see to what they must themselves.
        let mut hold = match job.command {
            Command::CompareAndWrite { run, .. } | Command::OrWrite { run, .. } => {
                Some(self.exclusive.alone(&[self.bytes(run)]).await)
            }
            Command::Write { run, .. } | Command::WriteVerify { run, .. } => {
                Some(self.exclusive.beside(&[self.bytes(run)]).await)
            }
            _ => None,
        };
        if job.generation != nexus.generation() {
            return Err(Refusal::Cleared); // while it waited for its blocks
        }
        let geometry = self.geometry();
        self.admit(nexus, &job.command, &geometry)?;
        let mut seen = || {
            if let Some(hold) = &mut hold {
                hold.seen();
            }
        };
        match job.command {
            Command::Write { run, stable } => {
                self.write(run, data, self.durability(stable), &geometry, &mut seen).await?;
            }
            Command::WriteVerify { run, check } => {
                let stable = Durability::Stable(Asked::Fua);
                let written = self.write(run, data.clone(), stable, &geometry, &mut seen).await?;
                let errand = Errand { nexus: Arc::clone(nexus), job, cancel: Cancel::default() };
                self.verify(&errand, written, check, &data).await?;
            }
            Command::CompareAndWrite { run, stable } => {
                let (offset, len) = self.range(run, &geometry)?;
                let new = pieces::split_off(&mut data, len as usize);
                let bytes = (offset, u64::from(len));
                let old = self.volume.read(offset, len as usize).await.map_err(|e| self.failed(&e, bytes))?;
                if let Some(at) = pieces::first_difference(&data, &old) {
                    return Err(Sense::MISCOMPARE.with_information(at).into());
                }
                self.touched(offset, u64::from(len));
                let written =
                    self.volume.write_telling(offset, new, self.durability(stable), &mut seen).await;
                written.map_err(|e| self.failed(&e, bytes))?;
            }
            Command::OrWrite { run, stable } => {
                let (offset, len) = self.range(run, &geometry)?;
                let bytes = (offset, u64::from(len));
                let old = self.volume.read(offset, len as usize).await.map_err(|e| self.failed(&e, bytes))?;
                let mut both = flatten(&old);
                for (byte, more) in both.iter_mut().zip(flatten(&data)) {
                    *byte |= more;
                }
                self.write(run, pieces::one(both), self.durability(stable), &geometry, &mut seen).await?;
            }
            Command::SynchronizeCache { .. } => {
                self.volume.flush().await.map_err(|e| self.failed(&e, NOWHERE))?;
            }
            Command::GetLbaStatus { lba, allocation } => {
                return self.lba_status(lba, allocation, &geometry).await;
            }
            Command::ModeSelect { ten, .. } => {
                // Boxed, like the rare ones below: what waits for a read or write should be small.
                let list = flatten(&data);
                Box::pin(self.mode_select(nexus, ten, &list)).await?;
            }
            Command::PersistentReserveOut { action, scope, kind, .. } => {
                let list = flatten(&data);
                Box::pin(self.reserve_out(nexus, job, (action, scope, kind), &list)).await?;
            }
            Command::PopulateToken { list, .. } => {
                let ranges = flatten(&data);
                Box::pin(self.populate_token(nexus, list, &ranges, &geometry)).await?;
            }
            // `begin` never makes jobs of the others.
            _ => return Err(Sense::INTERNAL_FAILURE.into()),
        }
        Ok(Segments::new())
    }

    /// A refusal by the volume of what was asked of these bytes: (first byte, bytes).
    fn failed(&self, error: &VolumeError, (offset, len): (u64, u64)) -> Refusal {
        Sense::from_volume(error, self.block_size, offset..offset.saturating_add(len)).into()
    }

    pub(crate) fn durability(&self, stable: bool) -> Durability {
        match stable {
            true => Durability::Stable(Asked::Fua),
            false if self.write_through() => Durability::Stable(Asked::CacheOff),
            false => Durability::Cached,
        }
    }

    /// Writes what data there is, in whole blocks; returns what was written.
    async fn write(
        &self,
        run: Run,
        mut data: Segments,
        durability: Durability,
        geometry: &Geometry,
        seen: Tell<'_>,
    ) -> Result<Run, Refusal> {
        let (offset, _) = self.range(run, geometry)?;
        let have = u32::try_from(pieces::total_len(&data)).unwrap_or(u32::MAX);
        let blocks = have.checked_div(self.block_size).unwrap_or(0).min(run.blocks);
        pieces::truncate(&mut data, blocks.saturating_mul(self.block_size) as usize);
        if blocks > 0 {
            let len = u64::from(blocks).saturating_mul(u64::from(self.block_size));
            self.touched(offset, len);
            let written = self.volume.write_telling(offset, data, durability, seen).await;
            written.map_err(|e| self.failed(&e, (offset, len)))?;
        }
        Ok(Run { blocks, ..run })
    }

    async fn verify(
        &self,
        errand: &Errand,
        run: Run,
        check: ByteCheck,
        data: &Segments,
    ) -> Result<(), Refusal> {
        self.check_range(run.lba, u64::from(run.blocks), &self.geometry())?;
        let total = u64::from(run.blocks).saturating_mul(u64::from(self.block_size));
        let block = match check {
            ByteCheck::OneBlock if total > 0 => self.one_block(data)?,
            _ => Vec::new(),
        };
        let mut pattern = Bytes::new();
        let mut expected = data.clone();
        let mut done = 0_u64;
        while done < total {
            if done > 0 {
                errand::pause().await;
            }
            self.go_on(errand)?;
            let len = STEP.min(total.saturating_sub(done));
            let size = usize::try_from(len).unwrap_or(0);
            let offset = self.byte(run.lba).saturating_add(done);
            let read = self.volume.read(offset, size).await.map_err(|e| self.failed(&e, (offset, len)))?;
            let differs = match check {
                ByteCheck::Medium => None,
                ByteCheck::OneBlock => {
                    if pattern.is_empty() {
                        pattern = repeated(&block, total);
                    }
                    pieces::first_difference(&[Segment::Data(pattern.slice(..size))], &read)
                }
                ByteCheck::Blocks => {
                    let rest = pieces::split_off(&mut expected, size);
                    let now = std::mem::replace(&mut expected, rest);
                    pieces::first_difference(&now, &read)
                }
            };
            if let Some(at) = differs {
                return Err(Sense::MISCOMPARE.with_information(done.saturating_add(at)).into());
            }
            done = done.saturating_add(len);
        }
        Ok(())
    }

    /// Data-Out of a command that takes one block.
    fn one_block(&self, data: &Segments) -> Result<Vec<u8>, Sense> {
        let block = flatten(data);
        if block.len() == self.block_size as usize { Ok(block) } else { Err(Sense::INVALID_FIELD_IN_CDB) }
    }

    async fn write_same(
        &self,
        errand: &Errand,
        run: Run,
        unmap: bool,
        no_data: bool,
        data: &Segments,
    ) -> Result<(), Refusal> {
        let geometry = self.geometry();
        let blocks = self.same_blocks(run, &geometry)?;
        self.check_range(run.lba, blocks, &geometry)?;
        let len = blocks.saturating_mul(u64::from(self.block_size));
        let block = if no_data { Vec::new() } else { self.one_block(data)? };
        if unmap || pieces::is_zero(&block) {
            // A hole either way: it reads as zeroes (LBPRZ), and a thin volume keeps no space for nothing.
            // UNMAP goes before the pattern, as other targets do and the conformance suite expects; hosts
            // that set it send zeroes.
            return self.punch(errand, [(self.byte(run.lba), len)], Edges::Zeroed).await;
        }
        let mut pattern = Bytes::new();
        let mut done = 0_u64;
        while done < len {
            if done > 0 {
                errand::pause().await;
            }
            let now = STEP.min(len.saturating_sub(done));
            let offset = self.byte(run.lba).saturating_add(done);
            let mut hold = self.exclusive.beside(&[(offset, now)]).await;
            self.go_on(errand)?;
            // Not before: others may have the blocks for long.
            if pattern.is_empty() {
                pattern = repeated(&block, len);
            }
            let mut data = Segments::new();
            data.push(Segment::Data(pattern.slice(..usize::try_from(now).unwrap_or(0))));
            self.touched(offset, now);
            let seen = &mut || hold.seen();
            let written = self.volume.write_telling(offset, data, self.durability(false), seen).await;
            written.map_err(|e| self.failed(&e, (offset, now)))?;
            done = done.saturating_add(now);
        }
        Ok(())
    }

    /// Makes holes of these ranges: (first byte, bytes). However little a hole costs, whoever needs blocks of it alone waits for
    /// that, and everybody else who writes there for that one: so it goes in steps. What is short of room is told when all that
    /// needs none is done.
    async fn punch(
        &self,
        errand: &Errand,
        ranges: impl IntoIterator<Item = (u64, u64)>,
        edges: Edges,
    ) -> Result<(), Refusal> {
        let mut fits = true;
        let mut ranges = ranges.into_iter().filter(|(_, len)| *len > 0).peekable();
        while ranges.peek().is_some() {
            let mut now: SmallVec<[(u64, u64); 4]> = SmallVec::new();
            let mut room = self.hole_step();
            while let Some((offset, len)) = ranges.peek_mut() {
                let part = self.hole_part(*offset, *len, room);
                if part == 0 {
                    break;
                }
                now.push((*offset, part));
                (*offset, *len) = (offset.saturating_add(part), len.saturating_sub(part));
                room = room.saturating_sub(part);
                if *len == 0 {
                    ranges.next();
                }
            }
            {
                let hold = self.exclusive.beside(&now).await.for_several(now.len());
                let hold = &hold;
                self.go_on(errand)?;
                let durability = self.durability(false);
                // All at once: where each has to be durable they share what makes them so, instead of waiting for one another.
                let zeroed = now.into_iter().map(|(offset, len)| async move {
                    self.touched(offset, len);
                    let zeroed = self.hole((offset, len), edges, durability, &mut || hold.seen()).await;
                    zeroed.map_err(|e| self.failed(&e, (offset, len)))
                });
                fits &= try_join_all(zeroed).await?.into_iter().all(|fits| fits);
            }
            if ranges.peek().is_some() {
                errand::pause().await;
            }
        }
        if fits { Ok(()) } else { Err(Sense::SPACE_EXHAUSTED.into()) }
    }

    /// Makes a hole of (first byte, bytes); false if there is no room for what of it has to be stored. To free needs no room, but
    /// the volume blocks at its ends of which it covers a part are stored anew, and in a full pool they must not be in the
    /// way of what would make room.
    async fn hole(
        &self,
        (offset, len): (u64, u64),
        edges: Edges,
        durability: Durability,
        seen: Tell<'_>,
    ) -> Result<bool, VolumeError> {
        match self.volume.write_zeroes_telling(offset, len, false, durability, seen).await {
            Err(VolumeError::NoSpace) => {}
            zeroed => return zeroed.map(|()| true),
        }
        self.volume.unmap(offset, len, durability).await?;
        if edges == Edges::Kept {
            return Ok(true);
        }
        let mut fits = true;
        for (offset, len) in self.partly_covered(offset, len) {
            match self.volume.write_zeroes(offset, len, false, durability).await {
                Err(VolumeError::NoSpace) => fits = false,
                zeroed => zeroed?,
            }
        }
        Ok(fits)
    }

    /// UNMAP: every descriptor is checked before the first block is freed (SBC-3 §5.31). What is unmapped
    /// reads as zeroes (LBPRZ), the partial volume blocks at either end too, so this zeroes and frees. Where there is no room
    /// for those ends they stay as they are, mapped: to unmap all that is named is nobody's duty.
    async fn unmap(&self, errand: &Errand, list: &[u8]) -> Result<(), Refusal> {
        if list.is_empty() {
            return Ok(());
        }
        let geometry = self.geometry();
        let [_, _, high, low, _, _, _, _, rest @ ..] = list else {
            return Err(Sense::PARAMETER_LIST_LENGTH.into());
        };
        let described = usize::from(u16::from_be_bytes([*high, *low]));
        let descriptors = rest.get(..described).unwrap_or(rest);
        let (descriptors, _) = descriptors.as_chunks::<16>();
        if descriptors.len() > UNMAP_DESCRIPTORS_MAX as usize {
            return Err(Sense::parameter(2).into());
        }
        let runs = descriptors.iter().map(|d| Run {
            lba: u64::from_be_bytes([d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7]]),
            blocks: u32::from_be_bytes([d[8], d[9], d[10], d[11]]),
        });
        let mut total = 0_u64;
        for run in runs.clone() {
            self.check_range(run.lba, u64::from(run.blocks), &geometry)?;
            total = total.saturating_add(u64::from(run.blocks));
        }
        if total > u64::from(self.limits().unmap) {
            return Err(Sense::parameter(8).into());
        }
        let ranges: Vec<(u64, u64)> = runs.map(|run| self.bytes(run)).collect();
        self.punch(errand, ranges, Edges::Kept).await
    }

    /// GET LBA STATUS: runs of mapped and deallocated blocks from `lba` on (SBC-3 §5.6).
    ///
    /// The first descriptor has `lba` in it, with one exception that the conformance suite wants (libiscsi,
    /// `GetLBAStatus.UnmapSingle`): asked of the second logical block of a mapped physical one behind one of zeroes, it tells
    /// from the next one on if that is mapped as well. Zeroes, because what is freed of a larger volume block is no hole. Not
    /// on volumes of smaller blocks, where the border between them may be there, and QEMU, which goes from border to border,
    /// takes any first descriptor without `lba` for an error.
    async fn lba_status(&self, lba: u64, allocation: u32, geometry: &Geometry) -> Result<Segments, Refusal> {
        let blocks =
            self.blocks(geometry).checked_sub(lba).filter(|b| *b > 0).ok_or(Sense::LBA_OUT_OF_RANGE)?;
        let size = u64::from(self.block_size);
        let window = blocks.saturating_mul(size).min(STATUS_WINDOW);
        let room = allocation.saturating_sub(8).checked_div(16).unwrap_or(0).clamp(1, STATUS_EXTENTS);
        let extents = self.volume.extents(self.byte(lba), window, room as usize).await;
        let extents = extents.map_err(|e| self.failed(&e, (self.byte(lba), window)))?;
        // Bytes become blocks: one that is partly data is data.
        let mut out = vec![0; 8];
        let mut at = 0_u64; // bytes from `lba`
        let mut told = 0_u64; // blocks from `lba`
        let ratio = u64::from(PHYSICAL_BLOCK).checked_div(size).unwrap_or(1).max(1);
        let border = lba.next_multiple_of(ratio).saturating_sub(lba);
        let goes_on = extents.first().is_some_and(|it| !it.hole && it.len > border.saturating_mul(size));
        let is_second = self.stored >= PHYSICAL_BLOCK && lba.checked_rem(ratio) == Some(1);
        if goes_on
            && is_second
            && let Some(before) = lba.checked_sub(ratio.saturating_add(1))
        {
            let before = self.volume.read(self.byte(before), PHYSICAL_BLOCK as usize).await;
            let before = before.map_err(|e| self.failed(&e, (self.byte(lba), window)))?;
            if pieces::is_zero(&flatten(&before)) {
                told = border;
            }
        }
        let mut descriptor = |first: u64, end: u64, hole: bool| {
            if let Some(count) = end.checked_sub(first).filter(|n| *n > 0) {
                out.extend(lba.saturating_add(first).to_be_bytes());
                out.extend(u32::try_from(count).unwrap_or(u32::MAX).to_be_bytes());
                out.extend([u8::from(hole), 0, 0, 0]);
            }
        };
        for extent in &extents {
            at = at.saturating_add(extent.len);
            let end = if extent.hole { at.checked_div(size).unwrap_or(0) } else { at.div_ceil(size) };
            descriptor(told, end, extent.hole);
            told = told.max(end);
        }
        let len = u32::try_from(out.len().saturating_sub(4)).unwrap_or(0);
        if let Some(head) = out.first_chunk_mut() {
            *head = len.to_be_bytes();
        }
        out.truncate(allocation as usize);
        Ok(pieces::one(out))
    }

    /// Applies mode parameters, and tells the others.
    async fn mode_select(&self, nexus: &Nexus, ten: bool, list: &[u8]) -> Result<(), Refusal> {
        let others = |other: &NexusId| other != nexus.id();
        // A write cache that somebody is switching off is not off yet.
        let _turn = self.switching.lock().await;
        {
            let mut shared = self.shared();
            let old = shared.mode;
            let changeable = self.changeable(&shared, nexus);
            let new = mode::select(ten, list, self.block_size, old, changeable)?;
            if new == old {
                return Ok(());
            }
            if new.wce != old.wce {
                self.write_through.store(!new.wce, Ordering::Release);
            }
            // One that is to be off is on until what was written before is stable.
            self.set_mode(&mut shared, mode::Params { wce: old.wce || new.wce, ..new });
            if new.wce || !old.wce {
                shared.raise(Sense::MODE_CHANGED, others);
                return Ok(());
            }
        }
        self.cache_is_off(others).await.map_err(|e| self.failed(&e, NOWHERE))
    }
}

/// What becomes of the volume blocks that a hole covers in part, if there is no room to store them anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Edges {
    /// They stay as they are: who unmaps wants room, and no zeroes.
    Kept,
    /// They have to become zeroes, or the command fails.
    Zeroed,
}

/// One block over and over: what the steps of `total` bytes are made of.
fn repeated(block: &[u8], total: u64) -> Bytes {
    let step = usize::try_from(STEP.min(total)).unwrap_or(0);
    Bytes::from(block.repeat(step.checked_div(block.len()).unwrap_or(0)))
}
