//! Reading a range of a device: removed devices are followed, mirrors tried side by side, leaves asked.
//!
//! Two ways down. [`PoolIo::read_device`] knows what the bytes must hash to and goes on until they do.
//! [`PoolIo::read_copy`] takes the best copy there is on trust: for pieces of a block (columns of a
//! stripe, runs of a removed device) that only together can be verified.
//!
//! One after the other, unless devices are waited for as long as it takes: then sides are asked together.

use bytes::Bytes;
use disk::IoBuf;
use ondisk::label::{BOOT_AREA_OFFSET, DATA_OFFSET};
use smallvec::SmallVec;

use super::{
    Check, IN_FLIGHT_UNIT, Reader,
    join::{first_of, join_all},
    trail::Trail,
};
use crate::{
    BoxFuture,
    vdev::{
        Aux, Kind, Vdev,
        deadline::{Patience, Unread},
        indirect::Piece,
    },
};

/// Removed devices that lead to removed devices: one more than any pool has top-level devices would
/// do, but a cycle must end.
const REMAP_DEPTH_MAX: usize = 32;
/// Runs a block may be scattered over. A 16 MiB block has 32768 sectors; real ones a few runs.
const PIECES_MAX: usize = 4096;
/// Combinations of copies tried for a block in several pieces.
const COMBINATIONS_MAX: usize = 4096;
/// Bytes put together and hashed for one of them, which bounds the time a bad block can take.
const COMBINED_BYTES_MAX: usize = 4 << 30;

/// Why the answer of a device says nothing.
pub(super) const OUTDATED: &str = "it was away when this was written";

/// Unverified bytes and the device that gave them.
#[derive(Clone, Debug)]
pub(super) struct Copy<'a> {
    pub(super) data: Bytes,
    pub(super) from: &'a Vdev,
}

/// A range of a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) offset: u64,
    pub(super) len: usize,
    /// Physical birth of the block it belongs to.
    pub(super) birth: u64,
    /// In the boot area, where a running expansion keeps its first rows.
    pub(super) scratch: bool,
}

impl Reader {
    /// `len` bytes at a DVA, verified by `check`.
    pub(super) async fn read_place(
        &self,
        vdev: u64,
        offset: u64,
        len: u64,
        birth: u64,
        check: &Check<'_>,
        trail: &Trail,
    ) -> Option<Bytes> {
        let mut pieces = SmallVec::new();
        self.resolve(Piece { vdev, offset, len }, 0, &mut pieces, trail)?;
        match &pieces[..] {
            [piece] => {
                let top = self.tree.top(piece.vdev)?;
                let range = Range { offset: piece.offset, len: len as usize, birth, scratch: false };
                self.read_device(top, range, check, trail).await
            }
            _ => self.read_pieces(&pieces, len as usize, birth, check, trail).await,
        }
    }

    /// Where a range really is: itself, or what removed devices say.
    pub(super) fn resolve(
        &self,
        piece: Piece,
        depth: usize,
        found: &mut SmallVec<[Piece; 4]>,
        trail: &Trail,
    ) -> Option<()> {
        let Some(vdev) = self.tree.top(piece.vdev) else {
            trail.malformed(format!("device {} does not exist", piece.vdev));
            return None;
        };
        let Kind::Indirect { .. } = vdev.kind else {
            let end = piece.offset.checked_add(piece.len);
            let asize = vdev.top.as_ref().map_or(0, |top| top.asize);
            // Without a configured size (a missing device) there is nothing to compare with.
            if asize > 0 && end.is_none_or(|end| end > asize) {
                trail.malformed(format!("{vdev} has no bytes {:#x}+{:#x}", piece.offset, piece.len));
                return None;
            }
            found.push(piece);
            return (found.len() <= PIECES_MAX).then_some(());
        };
        let mapping = vdev.top.as_ref().and_then(|top| top.mapping.get());
        let Some(mapping) = mapping.filter(|_| depth < REMAP_DEPTH_MAX) else {
            trail.silent(vdev, piece.offset, "the mapping of the removed device is not known");
            return None;
        };
        let Some(targets) = mapping.lookup(piece.offset, piece.len) else {
            trail.malformed(format!("{vdev} never moved bytes {:#x}+{:#x}", piece.offset, piece.len));
            return None;
        };
        for target in targets {
            self.resolve(target, depth + 1, found, trail)?;
        }
        Some(())
    }

    /// A block scattered over several places: one checksum over all, so copies of each piece are
    /// combined until they fit.
    async fn read_pieces(
        &self,
        pieces: &[Piece],
        len: usize,
        birth: u64,
        check: &Check<'_>,
        trail: &Trail,
    ) -> Option<Bytes> {
        let tops = pieces.iter().map(|piece| self.tree.top(piece.vdev)).collect::<Option<Vec<_>>>()?;
        let range =
            |piece: &Piece| Range { offset: piece.offset, len: piece.len as usize, birth, scratch: false };
        let mut copies: Vec<Vec<Copy<'_>>> = Vec::with_capacity(pieces.len());
        for (piece, top) in pieces.iter().zip(&tops) {
            copies.push(vec![self.read_copy(top, range(piece), 0, trail).await?]);
        }
        let mut block = IoBuf::with_len(len);
        let assemble = |block: &mut IoBuf, copies: &[Vec<Copy<'_>>], choice: &[usize]| {
            let mut rest = &mut block[..];
            for (piece, &chosen) in copies.iter().zip(choice) {
                let data = &piece[chosen].data;
                let (head, tail) = std::mem::take(&mut rest).split_at_mut(data.len());
                head.copy_from_slice(data);
                rest = tail;
            }
        };
        let mut choice = vec![0; pieces.len()];
        assemble(&mut block, &copies, &choice);
        if check(&block) {
            return Some(block.freeze());
        }
        for ((piece, top), copies) in pieces.iter().zip(&tops).zip(&mut copies) {
            for other in 1..alternatives(top) {
                if let Some(copy) = self.read_copy(top, range(piece), other, trail).await
                    && copies.iter().all(|known| known.data != copy.data)
                {
                    copies.push(copy);
                }
            }
        }
        for attempt in 0..COMBINATIONS_MAX.min(COMBINED_BYTES_MAX / len.max(1)) {
            // The next choice: an odometer over the copies of each piece.
            let wheel = choice.iter_mut().zip(&copies).find_map(|(chosen, copies)| {
                *chosen = (*chosen + 1) % copies.len();
                (*chosen != 0).then_some(())
            });
            if wheel.is_none() {
                break;
            }
            assemble(&mut block, &copies, &choice);
            if check(&block) {
                for (copies, &right) in copies.iter().zip(&choice) {
                    for (i, copy) in copies.iter().enumerate() {
                        if i != right {
                            self.count_wrong(copy.from, birth, trail);
                        }
                    }
                }
                return Some(block.freeze());
            }
            if attempt % 16 == 15 {
                tokio::task::yield_now().await;
            }
        }
        for (piece, copies) in pieces.iter().zip(&copies) {
            for copy in copies {
                self.mistrust(copy.from, piece.offset, birth, trail);
            }
        }
        None
    }

    /// A range of a device, verified by `check`.
    pub(super) fn read_device<'a>(
        &'a self,
        vdev: &'a Vdev,
        range: Range,
        check: &'a Check<'a>,
        trail: &'a Trail,
    ) -> BoxFuture<'a, Option<Bytes>> {
        Box::pin(async move {
            match &vdev.kind {
                Kind::Disk | Kind::File => {
                    let data = self.read_leaf(vdev, range, trail).await?;
                    if check(&data) {
                        return Some(data);
                    }
                    self.mistrust(vdev, range.offset, range.birth, trail);
                    None
                }
                Kind::Mirror | Kind::Replacing | Kind::Spare if trail.is_endless() => {
                    let sides = by_preference(vdev, range).into_iter();
                    let reads = sides.map(|side| self.read_device(side, range, check, trail));
                    first_of(reads.collect()).await
                }
                Kind::Mirror | Kind::Replacing | Kind::Spare => {
                    for child in by_preference(vdev, range) {
                        if let Some(data) = self.read_device(child, range, check, trail).await {
                            return Some(data);
                        }
                    }
                    None
                }
                Kind::Raidz(geometry) => self.read_stripe(vdev, geometry, range, check, trail).await,
                _ => {
                    refuse(vdev, range, trail);
                    None
                }
            }
        })
    }

    /// A range of a device on trust. `other` 0 asks the best side of each mirror first, 1 the next, …
    pub(super) fn read_copy<'a>(
        &'a self,
        vdev: &'a Vdev,
        range: Range,
        other: usize,
        trail: &'a Trail,
    ) -> BoxFuture<'a, Option<Copy<'a>>> {
        Box::pin(async move {
            match &vdev.kind {
                Kind::Disk | Kind::File => {
                    self.read_leaf(vdev, range, trail).await.map(|data| Copy { data, from: vdev })
                }
                // Who wants another copy than the first asks one side after the other.
                Kind::Mirror | Kind::Replacing | Kind::Spare if other == 0 && trail.is_endless() => {
                    // Nothing tells yet who has older bytes, so that those who may wait for all others.
                    let has_it = |side: &&Vdev| side.is_readable() && !side.missed(range.birth);
                    let (fresh, doubtful): (Vec<&Vdev>, Vec<&Vdev>) =
                        by_preference(vdev, range).into_iter().partition(has_it);
                    for sides in [fresh, doubtful] {
                        let reads = sides.into_iter().map(|side| self.read_copy(side, range, 0, trail));
                        if let Some(copy) = first_of(reads.collect()).await {
                            return Some(copy);
                        }
                    }
                    None
                }
                Kind::Mirror | Kind::Replacing | Kind::Spare => {
                    let mut sides = by_preference(vdev, range);
                    let turn = other % sides.len().max(1);
                    sides.rotate_left(turn);
                    for side in sides {
                        if let Some(copy) =
                            self.read_copy(side, range, other / vdev.children.len(), trail).await
                        {
                            return Some(copy);
                        }
                    }
                    None
                }
                Kind::Raidz(geometry) => {
                    let data = self.read_stripe(vdev, geometry, range, &|_| true, trail).await?;
                    Some(Copy { data, from: vdev })
                }
                _ => {
                    refuse(vdev, range, trail);
                    None
                }
            }
        })
    }

    /// Several ranges on trust, at once.
    pub(super) async fn read_copies<'a>(
        &'a self,
        ranges: &[(&'a Vdev, Range)],
        other: usize,
        trail: &'a Trail,
    ) -> Vec<Option<Copy<'a>>> {
        match ranges {
            [(vdev, range)] => vec![self.read_copy(vdev, *range, other, trail).await],
            _ => {
                let reads = ranges.iter().map(|(vdev, range)| self.read_copy(vdev, *range, other, trail));
                join_all(reads.collect(), usize::MAX).await
            }
        }
    }

    /// A range of a leaf, as it is.
    pub(super) async fn read_leaf(&self, vdev: &Vdev, range: Range, trail: &Trail) -> Option<Bytes> {
        let leaf = vdev.leaf.as_ref()?;
        if trail.is_blind() && leaf.missed.contains(range.birth) {
            trail.silent(vdev, range.offset, OUTDATED);
            return None;
        }
        let standing = leaf.condition.get();
        let (state, aux) = standing.state();
        let Some(disk) = standing.disk.clone().filter(|_| state.is_readable()) else {
            trail.silent(vdev, range.offset, aux.note().unwrap_or(state.word(aux)));
            return None;
        };
        drop(standing);
        // A running expansion may borrow the boot area.
        let start = range.offset.checked_add(if range.scratch { BOOT_AREA_OFFSET } else { DATA_OFFSET })?;
        let units = u32::try_from(range.len).ok()?.div_ceil(IN_FLIGHT_UNIT);
        let (deadline, patience) = (leaf.condition.deadline(), trail.patience());
        let mut job = leaf.pulse.tally.enqueue(trail.work());
        // Neither semaphore is ever closed. Who waits for as long as it takes keeps nobody else from reading.
        let (_turn, _memory) = match patience {
            Patience::Endless => (None, None),
            _ => {
                // What is free is taken as such: whoever asks as one who may wait has to give way after some dozens of times,
                // which wakes another thread.
                let turn = match leaf.gate.try_acquire() {
                    Ok(turn) => Some(turn),
                    Err(_) => tokio::select! {
                        biased;
                        turn = leaf.gate.acquire() => Some(turn.ok()?),
                        // Those before have waited in vain: the deadline says so below.
                        () = deadline.until(true) => None,
                    },
                };
                let memory = match self.gate.try_acquire_many(units) {
                    Ok(memory) => memory,
                    Err(_) => self.gate.acquire_many(units).await.ok()?,
                };
                (turn, Some(memory))
            }
        };
        job.issue();
        let beat = leaf.pulse.begin(trail.demand());
        match deadline.read(&disk, start, range.len, patience).await {
            Ok(data) => {
                beat.end();
                // What is quiet is several blocks in one transfer.
                job.end(range.len as u64, trail.is_joined());
                Some(data.freeze())
            }
            Err(Unread { error, is_late }) => {
                trail.unanswered(vdev, range.offset, error.to_string());
                if is_late {
                    trail.late();
                }
                if self.counts() && trail.tells() && (!is_late || deadline.is_news()) {
                    vdev.counters.count_read();
                    trail.refused(vdev.guid);
                }
                None
            }
        }
    }

    /// `device` gave bytes that are not what was written there: its fault, unless it was away then.
    pub(super) fn mistrust(&self, device: &Vdev, offset: u64, birth: u64, trail: &Trail) {
        if device.missed(birth) {
            return trail.fault(device, offset, OUTDATED);
        }
        trail.wrong(device, offset);
        self.count_wrong(device, birth, trail);
    }

    /// One more wrong answer of `device`; expected, and not counted, from one that missed that txg.
    pub(super) fn count_wrong(&self, device: &Vdev, birth: u64, trail: &Trail) {
        if self.counts() && trail.counts() && !device.missed(birth) {
            device.counters.count_checksum();
            trail.corrupt(device.guid);
        }
    }
}

/// How many different answers a device may have for the same range.
pub(super) fn alternatives(vdev: &Vdev) -> usize {
    match vdev.kind {
        Kind::Mirror | Kind::Replacing | Kind::Spare => vdev.children.iter().map(alternatives).sum(),
        _ => 1,
    }
}

/// The sides of a mirror in the order to ask them: those that have the block for certain, of those the slow ones
/// that sit out last, then those that may have older bytes. Among equals the address decides, in units of 2 MiB, so that a
/// sequential reader keeps all sides busy and each side still reads long runs.
fn by_preference(vdev: &Vdev, range: Range) -> SmallVec<[&Vdev; 4]> {
    let (mut fresh, mut doubtful) = (SmallVec::<[&Vdev; 4]>::new(), SmallVec::<[&Vdev; 4]>::new());
    let mut slow = SmallVec::<[&Vdev; 4]>::new();
    for child in &vdev.children {
        let list = match child.is_readable() && !child.missed(range.birth) {
            false => &mut doubtful,
            true if child.sits_out() => &mut slow,
            true => &mut fresh,
        };
        list.push(child);
    }
    if fresh.len() > 1 {
        let turn = (range.offset >> 21) as usize % fresh.len();
        fresh.rotate_left(turn);
    }
    fresh.extend(slow);
    fresh.extend(doubtful);
    fresh
}

fn refuse(vdev: &Vdev, range: Range, trail: &Trail) {
    match &vdev.kind {
        Kind::Draid { .. } | Kind::DistributedSpare => {
            trail.unsupported(format!("{vdev}: dRAID is not supported"))
        }
        Kind::Unknown(word) => trail.unsupported(format!("{vdev}: devices of type {word} are not supported")),
        Kind::Hole => trail.malformed(format!("{vdev} holds no data")),
        _ => trail.silent(vdev, range.offset, Aux::BadGuidSum.note().unwrap_or_default()),
    }
}
