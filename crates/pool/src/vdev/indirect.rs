//! A removed top-level device: where its space went.
//!
//! Block pointers are never rewritten, so pointers to a removed device stay valid for ever. Reading
//! one means looking up each piece of its range in the mapping that the removal left behind; a
//! piece may lead to another removed device. Facts: docs/format/spacemap.md §9b.

use smallvec::SmallVec;

/// A run of a removed device and where it is now. There may be tens of millions, all of them in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First byte on the removed device.
    pub source: u64,
    /// First byte where it is now.
    pub target: u64,
    /// Sectors of 512 bytes.
    pub sectors: u32,
    /// Top-level device that holds it now.
    pub vdev: u32,
}

impl Run {
    fn bytes(&self) -> u64 {
        u64::from(self.sectors) << 9
    }
}

/// All runs of a removed device, by source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    runs: Vec<Run>,
}

/// A part of a block, on a device that may itself be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Top-level device.
    pub vdev: u64,
    /// Byte offset there.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

impl Mapping {
    /// A mapping of runs in any order. `None` if two overlap or one leaves the address space: then no
    /// lookup could be trusted.
    #[must_use]
    pub fn new(mut runs: Vec<Run>) -> Option<Self> {
        runs.retain(|run| run.sectors > 0);
        runs.sort_unstable_by_key(|run| run.source);
        let fits = |run: &Run| {
            run.source.checked_add(run.bytes()).is_some() && run.target.checked_add(run.bytes()).is_some()
        };
        let disjoint =
            runs.windows(2).all(|pair| pair[0].source.saturating_add(pair[0].bytes()) <= pair[1].source);
        (disjoint && runs.iter().all(fits)).then_some(Self { runs })
    }

    /// Number of runs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Whether nothing was moved.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Where `len` bytes from `offset` went, in order; `None` if some of them were never moved.
    #[must_use]
    pub fn lookup(&self, offset: u64, len: u64) -> Option<SmallVec<[Piece; 4]>> {
        let end = offset.checked_add(len)?;
        let mut next = self.runs.partition_point(|run| run.source + run.bytes() <= offset);
        let (mut at, mut pieces) = (offset, SmallVec::new());
        while at < end {
            let run = self.runs.get(next).filter(|run| run.source <= at)?;
            let inside = at - run.source;
            let take = (run.bytes() - inside).min(end - at);
            pieces.push(Piece { vdev: run.vdev.into(), offset: run.target + inside, len: take });
            (at, next) = (at + take, next + 1);
        }
        Some(pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_split_over_runs_and_gaps_are_refused() {
        let run = |source, sectors, vdev, target| Run { source, target, sectors, vdev };
        let mapping =
            Mapping::new(vec![run(1024, 4, 2, 70_000), run(0, 2, 1, 50_000), run(4096, 1, 1, 0)]).unwrap();
        let piece = |vdev, offset, len| Piece { vdev, offset, len };
        assert_eq!(mapping.lookup(1000, 30).unwrap()[..], [piece(1, 51_000, 24), piece(2, 70_000, 6)]);
        assert_eq!(mapping.lookup(0, 1024).unwrap()[..], [piece(1, 50_000, 1024)]);
        assert_eq!(mapping.lookup(3000, 100), None, "3072..4096 was never moved");
        assert_eq!(mapping.lookup(4600, 10), None);
        assert_eq!(mapping.lookup(u64::MAX, 2), None);
        assert!(Mapping::new(vec![run(0, 1, 0, 0), run(511, 1, 0, 0)]).is_none());
        assert!(Mapping::new(vec![run(u64::MAX, 1, 0, 0)]).is_none());
    }
}
