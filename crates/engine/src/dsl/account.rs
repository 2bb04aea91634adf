//! How the space of blocks adds up in datasets, in their directories, and in every directory above.
//!
//! ```text
//!   dataset   referenced, compressed, uncompressed   everything reachable
//!             unique                                 what only it reaches
//!   directory used = head + snapshots + children + children's reservations + own refreservation
//!               └─▶ parent.children, and max(0, reserved − used) in parent.children's reservations ─▶ … ─▶ root
//! ```
//!
//! Nothing here decides what a block counts ([`crate::space`]) or whether it can be freed (`edit`); here sums are
//! moved, in one place, so that the breakdown of a directory always adds up. Facts: docs/format/mos.md §7.

use ondisk::dsl::{DIR_USED_BREAKDOWN, DatasetPhys, DirPhys};

use super::{dataset, dir};
use crate::{BoxFuture, EngineError, dmu::MutSet, space::Space};

/// More directories above each other than names have room for: a loop.
const DEPTH_MAX: usize = 256;

/// A part of what a directory uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The live dataset.
    Head,
    /// What only snapshots reach.
    Snap,
    /// Directories below.
    Child,
    /// What is set aside for directories below and not used by them.
    ChildReserved,
    /// What is set aside for the live dataset and not used by it.
    RefReserved,
}

impl Kind {
    /// Index in [`DirPhys::used_breakdown`].
    const fn index(self) -> usize {
        match self {
            Self::Head => 0,
            Self::Snap => 1,
            Self::Child => 2,
            Self::ChildReserved => 3,
            Self::RefReserved => 4,
        }
    }
}

/// A change of what a directory uses, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    used: [i64; 5],
    compressed: i64,
    uncompressed: i64,
}

impl Delta {
    /// Adds a whole space to one part.
    #[must_use]
    pub fn with(mut self, kind: Kind, space: Space) -> Self {
        self.used[kind.index()] += space.used;
        self.compressed += space.compressed;
        self.uncompressed += space.uncompressed;
        self
    }

    /// Adds bytes to one part; compressed and uncompressed sizes stay.
    #[must_use]
    pub fn bytes(mut self, kind: Kind, used: i64) -> Self {
        self.used[kind.index()] += used;
        self
    }

    fn total(&self) -> i64 {
        self.used.iter().sum()
    }

    fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}

/// Bytes a directory has set aside beyond what it uses.
fn unused_reservation(phys: &DirPhys) -> i64 {
    at_most(phys.reserved.saturating_sub(phys.used_bytes))
}

/// As a signed number. No command sets more aside than that, but what is on disk may say so; its sign must not turn.
fn at_most(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Adds `space` to one part of what `directory` uses, and to everything above.
pub fn dir_add(
    mos: &mut MutSet,
    directory: u64,
    kind: Kind,
    space: Space,
) -> BoxFuture<'_, Result<(), EngineError>> {
    dir_change(mos, directory, Delta::default().with(kind, space))
}

/// Applies a change to `directory`, and what follows from it to everything above.
pub fn dir_change(mos: &mut MutSet, directory: u64, change: Delta) -> BoxFuture<'_, Result<(), EngineError>> {
    Box::pin(async move {
        let (mut at, mut change) = (directory, change);
        for _ in 0..DEPTH_MAX {
            if at == 0 || change.is_zero() {
                return Ok(());
            }
            let (parent, reserved) = dir::update(mos, at, |phys| {
                let before = unused_reservation(phys);
                phys.used_bytes = phys.used_bytes.saturating_add_signed(change.total());
                phys.compressed_bytes = phys.compressed_bytes.saturating_add_signed(change.compressed);
                phys.uncompressed_bytes = phys.uncompressed_bytes.saturating_add_signed(change.uncompressed);
                // Directories of very old pools have no breakdown, and get none.
                if phys.flags & DIR_USED_BREAKDOWN != 0 {
                    for (part, change) in phys.used_breakdown.iter_mut().zip(change.used) {
                        *part = part.saturating_add_signed(change);
                    }
                }
                (phys.parent, unused_reservation(phys) - before)
            })
            .await?;
            let above = Delta {
                compressed: change.compressed,
                uncompressed: change.uncompressed,
                ..Delta::default()
            };
            change = above.bytes(Kind::Child, change.total()).bytes(Kind::ChildReserved, reserved);
            at = parent;
        }
        Err(dir::inconsistent(directory, "the directories above it form a loop"))
    })
}

/// Sets the reservation of a directory and sets it aside in the directory above.
pub fn set_reservation(
    mos: &mut MutSet,
    directory: u64,
    bytes: u64,
) -> BoxFuture<'_, Result<(), EngineError>> {
    Box::pin(async move {
        let (parent, change) = dir::update(mos, directory, |phys| {
            let before = unused_reservation(phys);
            phys.reserved = bytes;
            (phys.parent, unused_reservation(phys) - before)
        })
        .await?;
        dir_change(mos, parent, Delta::default().bytes(Kind::ChildReserved, change)).await
    })
}

/// What `refreservation` sets aside beyond what the dataset has of its own.
pub(super) fn unused_refreservation(refreservation: u64, unique: u64) -> i64 {
    at_most(refreservation.saturating_sub(unique))
}

/// The change of a directory's part [`Kind::RefReserved`] when its head's unique bytes change.
pub(super) fn refreserved_change(refreservation: u64, before: u64, after: u64) -> i64 {
    unused_refreservation(refreservation, after) - unused_refreservation(refreservation, before)
}

/// Sets the unique bytes of a head, and what its directory sets aside for it.
pub(super) async fn set_head_unique(mos: &mut MutSet, head: u64, unique: u64) -> Result<(), EngineError> {
    let phys = dataset::load(mos, head).await?;
    let refreservation = dir::refreservation(mos, phys.dir).await?;
    let change = refreserved_change(refreservation, phys.unique_bytes, unique);
    dataset::update(mos, head, |phys| phys.unique_bytes = unique).await?;
    dir_change(mos, phys.dir, Delta::default().bytes(Kind::RefReserved, change)).await
}

/// The three sums of a dataset.
pub(super) fn referenced(phys: &DatasetPhys) -> Space {
    Space {
        used: phys.referenced_bytes.cast_signed(),
        compressed: phys.compressed_bytes.cast_signed(),
        uncompressed: phys.uncompressed_bytes.cast_signed(),
    }
}

/// Adds to the three sums of a dataset.
pub(super) fn add_referenced(phys: &mut DatasetPhys, space: Space) {
    phys.referenced_bytes = phys.referenced_bytes.saturating_add_signed(space.used);
    phys.compressed_bytes = phys.compressed_bytes.saturating_add_signed(space.compressed);
    phys.uncompressed_bytes = phys.uncompressed_bytes.saturating_add_signed(space.uncompressed);
}
