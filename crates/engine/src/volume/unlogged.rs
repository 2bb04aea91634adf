//! What of a transaction group's changes the intent log does not have yet.
//!
//! Kept per block, as the smallest range of bytes that holds all that changed since the block was last logged: so
//! what is logged is always a block's newest content, one record per block, and a block that is written ten times
//! between two flushes is logged once.

use std::{collections::BTreeMap, ops::Range};

use super::ranges::Ranges;
use crate::zil::records::TRUNCATE_BYTES;

/// Changes of one group that are not logged.
#[derive(Debug, Default)]
pub(super) struct Unlogged {
    /// Bytes of a block: first, and one past the last.
    blocks: BTreeMap<u64, (u32, u32)>,
    freed: Ranges,
    /// Of `blocks`.
    bytes: u64,
}

impl Unlogged {
    /// Bytes `within` of a block changed.
    pub(super) fn wrote(&mut self, blkid: u64, within: Range<usize>) {
        // Blocks are at most 16 MiB.
        let (from, to) = (within.start as u32, within.end as u32);
        if !self.freed.is_empty() {
            self.freed.remove(blkid..blkid + 1);
        }
        let hull = self.blocks.entry(blkid).or_insert((from, from));
        self.bytes -= u64::from(hull.1 - hull.0);
        *hull = if hull.0 == hull.1 { (from, to) } else { (hull.0.min(from), hull.1.max(to)) };
        self.bytes += u64::from(hull.1 - hull.0);
    }

    /// Blocks became holes: what was written to them before is over.
    pub(super) fn freed(&mut self, blocks: Range<u64>) {
        self.drop_blocks(blocks.clone());
        self.freed.insert(blocks);
    }

    fn drop_blocks(&mut self, blocks: Range<u64>) {
        let gone: Vec<u64> = self.blocks.range(blocks).map(|(blkid, _)| *blkid).collect();
        for blkid in gone {
            if let Some((from, to)) = self.blocks.remove(&blkid) {
                self.bytes -= u64::from(to - from);
            }
        }
    }

    /// Forgets what lies at or beyond block `end`.
    pub(super) fn shrink(&mut self, end: u64) {
        self.drop_blocks(end..u64::MAX);
        self.freed.remove(end..u64::MAX);
    }

    /// Bytes of content, and of records that have none, that wait.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes + self.freed.len() as u64 * TRUNCATE_BYTES as u64
    }

    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.freed.is_empty()
    }

    /// Whether something in these blocks waits.
    pub(super) fn touches(&self, blocks: &Range<u64>) -> bool {
        self.blocks.range(blocks.clone()).next().is_some()
            || self.freed.end_at(blocks.start).is_some()
            || self.freed.next_after(blocks.start).is_some_and(|start| start < blocks.end)
    }

    /// Takes out what waits in these blocks: freed ranges, and bytes of blocks, each ascending.
    #[expect(clippy::type_complexity, reason = "two lists, taken apart at once")]
    pub(super) fn take(&mut self, blocks: &Range<u64>) -> (Vec<Range<u64>>, Vec<(u64, Range<usize>)>) {
        let freed: Vec<Range<u64>> = self.freed.within(blocks.clone()).collect();
        freed.iter().for_each(|range| self.freed.remove(range.clone()));
        let found: Vec<(u64, Range<usize>)> = if *blocks == (0..u64::MAX) {
            self.bytes = 0;
            std::mem::take(&mut self.blocks)
                .into_iter()
                .map(|(blkid, (from, to))| (blkid, from as usize..to as usize))
                .collect()
        } else {
            self.blocks
                .range(blocks.clone())
                .map(|(blkid, (from, to))| (*blkid, *from as usize..*to as usize))
                .collect()
        };
        self.drop_blocks(blocks.clone());
        (freed, found)
    }
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "lists of ranges, of which some are short")]
mod tests {
    use super::*;

    #[test]
    fn a_block_waits_once_with_all_that_changed_in_it() {
        let mut unlogged = Unlogged::default();
        unlogged.wrote(3, 100..200);
        unlogged.wrote(3, 50..60);
        unlogged.wrote(7, 0..512);
        unlogged.freed(10..20);
        unlogged.wrote(12, 0..512);
        assert_eq!(unlogged.bytes(), 150 + 512 + 512 + 2 * 56, "and what was freed is two ranges by now");
        assert!(unlogged.touches(&(3..4)) && unlogged.touches(&(15..16)) && !unlogged.touches(&(20..99)));
        assert_eq!(unlogged.take(&(12..15)), (vec![13..15], vec![(12, 0..512)]));
        assert_eq!(unlogged.take(&(0..u64::MAX)), (vec![10..12, 15..20], vec![(3, 50..200), (7, 0..512)]));
        assert!(unlogged.is_empty() && unlogged.bytes() == 0);
        unlogged.wrote(5, 0..9);
        unlogged.freed(0..6);
        unlogged.freed(9..12);
        unlogged.shrink(3);
        assert_eq!(unlogged.take(&(0..u64::MAX)), (vec![0..3], vec![]));
    }
}
