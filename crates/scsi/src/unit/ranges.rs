//! Which blocks a command may name, and how many at a time.

use block::Geometry;

use super::LogicalUnit;
use crate::{cdb::Run, inquiry::Limits, sense::Sense};

/// Most bytes one command may move: bounds what a single CDB can make us hold.
pub(crate) const TRANSFER_MAX: u32 = 32 << 20;
/// Logical blocks COMPARE AND WRITE takes at most (its count is one byte).
const COMPARE_BLOCKS_MAX: u8 = 255;
/// Bytes of an UNMAP parameter list's descriptors: 256 of 16 bytes.
pub(crate) const UNMAP_DESCRIPTORS_MAX: u32 = 256;
/// Bytes one WRITE SAME may cover.
const WRITE_SAME_MAX: u64 = 4 << 30;
/// Bytes one UNMAP may free; the suite wants no more than 1 Mi blocks promised.
const UNMAP_MAX: u64 = 512 << 20;
/// Bytes of holes made at a time, and volume blocks: others have the unit in between.
const HOLE_STEP: u64 = 64 << 20;
const HOLE_STEP_BLOCKS: u64 = 16 << 10;

impl LogicalUnit {
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

    /// The bytes of a run, which may lie behind the end still: (first byte, bytes).
    pub(crate) fn bytes(&self, run: Run) -> (u64, u64) {
        (self.byte(run.lba), u64::from(run.blocks).saturating_mul(u64::from(self.block_size)))
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

    /// The parts of a range that lie in volume blocks of which it covers no more: (first byte, bytes), two at most.
    pub(crate) fn partly_covered(&self, offset: u64, len: u64) -> impl Iterator<Item = (u64, u64)> + use<> {
        let (end, stored) = (offset.saturating_add(len), u64::from(self.stored));
        let head = offset.checked_next_multiple_of(stored).unwrap_or(end).min(end);
        let tail = end.saturating_sub(end.checked_rem(stored).unwrap_or(0)).max(head);
        let parts = [(offset, head.saturating_sub(offset)), (tail, end.saturating_sub(tail))];
        parts.into_iter().filter(|(_, len)| *len > 0)
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
}
