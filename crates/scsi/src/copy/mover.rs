//! Moves bytes from one unit to another, a step at a time.
//!
//! ```text
//!   extents of the source ─hole▶ write_zeroes                      long steps, no bytes
//!                         └data▶ read a step ▸ [token alive?] ▸ write it    while the next step is read
//! ```
//!
//! Zeroes of the source stay holes of the destination, so a thin disk's copy is as thin as itself. A copy within one
//! unit whose ranges overlap goes from the end where it must, so that it reads nothing it has already overwritten.
//! A pool that can share blocks between volumes will do better than this; the seam for that is here.

use std::sync::atomic::Ordering;

use block::{Segment, Segments};

use super::Operation;
use crate::{
    errand::{self, Errand},
    pieces,
    sense::Sense,
    unit::{LogicalUnit, Refusal},
};

/// Bytes moved at a time; twice as many are in memory.
pub(crate) const STEP: u64 = 1 << 20;
/// How far ahead the source is asked for its holes, in bytes.
const WINDOW: u64 = 256 << 20;
/// Runs asked for at a time.
const RUNS: usize = 256;

/// One stretch of bytes to move.
pub(crate) struct Stretch<'a> {
    /// Who orders it.
    pub(crate) errand: &'a Errand,
    /// `None`: zeroes.
    pub(crate) from: Option<(&'a LogicalUnit, u64)>,
    pub(crate) to: (&'a LogicalUnit, u64),
    pub(crate) len: u64,
    /// Whether what is read still is what was promised (a token's moment).
    pub(crate) valid: &'a (dyn Fn() -> Result<(), Sense> + Sync),
    /// Whether who orders it may still name both units: nobody ends its commands when it may not.
    pub(crate) reaches: &'a (dyn Fn() -> bool + Sync),
    pub(crate) operation: &'a Operation,
}

impl Stretch<'_> {
    /// Moves all of it.
    pub(crate) async fn run(&self) -> Result<(), Refusal> {
        let Some((source, from)) = self.from else {
            return self.zero(0, self.len).await;
        };
        let overlaps =
            std::ptr::eq(source, self.to.0) && from < self.to.1 && self.to.1 < from.saturating_add(self.len);
        if overlaps {
            return self.backwards().await;
        }
        let mut done = 0_u64;
        while done < self.len {
            let window = self.len.saturating_sub(done).min(WINDOW);
            let runs = source.volume.extents(from.saturating_add(done), window, RUNS).await;
            let runs = runs.map_err(|e| failed(source, &e))?;
            let before = done;
            for run in runs {
                let len = run.len.min(self.len.saturating_sub(done));
                if run.hole {
                    // If it was written since it was asked for, the token does not stand for it any more: `zero` looks.
                    self.zero(done, len).await?;
                } else {
                    self.data(done, len).await?;
                }
                done = done.saturating_add(len);
            }
            if done == before {
                return Err(Sense::INTERNAL_FAILURE.into()); // a volume that knows nothing of its own range
            }
        }
        Ok(())
    }

    async fn backwards(&self) -> Result<(), Refusal> {
        self.operation.goes_from_end();
        let mut left = self.len;
        while left > 0 {
            let len = STEP.min(left);
            left = left.saturating_sub(len);
            let data = self.read(left, len).await?;
            self.write(left, data).await?;
            if left > 0 {
                errand::pause().await;
            }
        }
        self.operation.whole(self.len);
        Ok(())
    }

    /// Data at `at`: the next step is read while one is written.
    async fn data(&self, at: u64, len: u64) -> Result<(), Refusal> {
        let end = at.saturating_add(len);
        let mut at = at;
        let mut ahead = self.read(at, STEP.min(len)).await?;
        loop {
            let step = pieces::total_len(&ahead) as u64;
            let next = at.saturating_add(step);
            if next >= end || step == 0 {
                return self.write(at, ahead).await;
            }
            let read = self.read(next, STEP.min(end.saturating_sub(next)));
            let (written, read) = futures_util::future::join(self.write(at, ahead), read).await;
            written?;
            ahead = read?;
            at = next;
            errand::pause().await;
        }
    }

    async fn read(&self, at: u64, len: u64) -> Result<Segments, Refusal> {
        self.go_on()?;
        let Some((source, from)) = self.from else { return Err(Sense::INTERNAL_FAILURE.into()) };
        source.admit_copy(&self.errand.nexus, false)?;
        let len = usize::try_from(len).unwrap_or(0);
        let data = source.volume.read(from.saturating_add(at), len).await.map_err(|e| failed(source, &e))?;
        // Looked at after the read: who writes says so first.
        (self.valid)()?;
        Ok(data)
    }

    async fn write(&self, at: u64, data: Segments) -> Result<(), Refusal> {
        let mut at = at;
        // Runs of zeroes become holes, runs of data one write each.
        let mut data = data.into_iter().peekable();
        while let Some(piece) = data.next() {
            if let Segment::Zero(len) = piece {
                self.zero(at, len as u64).await?;
                at = at.saturating_add(len as u64);
                continue;
            }
            let mut run = Segments::new();
            run.push(piece);
            while let Some(more) = data.next_if(|piece| matches!(piece, Segment::Data(_))) {
                run.push(more);
            }
            let len = pieces::total_len(&run) as u64;
            self.change(at, len, Some(run)).await?;
            at = at.saturating_add(len);
        }
        Ok(())
    }

    async fn zero(&self, mut at: u64, len: u64) -> Result<(), Refusal> {
        let end = at.saturating_add(len);
        let (unit, to) = self.to;
        while at < end {
            let step = unit.hole_part(to.saturating_add(at), end.saturating_sub(at), unit.hole_step());
            self.zero_step(at, step).await?;
            at = at.saturating_add(step);
            if at < end {
                errand::pause().await;
            }
        }
        Ok(())
    }

    async fn zero_step(&self, at: u64, len: u64) -> Result<(), Refusal> {
        if let Some((source, _)) = self.from {
            source.admit_copy(&self.errand.nexus, false)?;
        }
        (self.valid)()?;
        self.change(at, len, None).await
    }

    /// `len` bytes of the destination become `data`, or zeroes if there is none.
    async fn change(&self, at: u64, len: u64, data: Option<Segments>) -> Result<(), Refusal> {
        let (unit, to) = self.to;
        let offset = to.saturating_add(at);
        let mut hold = unit.exclusive.beside(&[(offset, len)]).await;
        let _change = self.errand.cancel.change();
        self.go_on()?;
        unit.admit_copy(&self.errand.nexus, true)?;
        unit.touched(offset, len);
        let seen = &mut || hold.seen();
        let durability = unit.durability(false);
        let changed = match data {
            Some(data) => unit.volume.write_telling(offset, data, durability, seen),
            None => unit.volume.write_zeroes_telling(offset, len, false, durability, seen),
        };
        changed.await.map_err(|e| failed(unit, &e))?;
        self.operation.moved(len);
        Ok(())
    }

    /// Whether anything more is to be done. Asked with the blocks of the destination held before anything is written: whoever
    /// has ended the copy and then waited for all who held any finds no write of it on its way. And after it was said that
    /// something is changed: whoever has ended the copy and finds that nothing is need not wait for them.
    fn go_on(&self) -> Result<(), Refusal> {
        if self.errand.is_over() {
            return Err(Sense::COPY_ABORTED.into());
        }
        if (self.reaches)() { Ok(()) } else { Err(Sense::COPY_UNREACHABLE.into()) }
    }
}

/// A copy reads or writes this unit as long as this is there.
pub(super) struct InCopy<'a>(&'a LogicalUnit);

impl<'a> InCopy<'a> {
    pub(super) fn new(unit: &'a LogicalUnit) -> Self {
        unit.in_copies.fetch_add(1, Ordering::AcqRel);
        Self(unit)
    }
}

impl Drop for InCopy<'_> {
    fn drop(&mut self) {
        self.0.in_copies.fetch_sub(1, Ordering::AcqRel);
    }
}

/// INFORMATION would be taken for a block of the unit that was asked: it names none.
fn failed(unit: &LogicalUnit, error: &block::VolumeError) -> Refusal {
    Sense::from_volume(error, unit.block_size, 0..0).into()
}
