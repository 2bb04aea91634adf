//! How much more a dataset may take, and how much a thick volume has to set aside.
//!
//! Space is granted down the tree: each directory has what the one above has, less what its quota cuts off, plus
//! what it has reserved; at the top stands the pool less its slop. Facts: docs/format/mos.md §7.
//!
//! A command that sets space aside looks at two things: at the accounts as they are in its transaction group, with all
//! it is going to do drafted into them, and at what clients were promised for later groups, which no account shows yet.

use std::collections::BTreeMap;

use ondisk::{
    blkptr::BlkPtr,
    dsl::{DatasetPhys, DirPhys},
};
use pool::{
    dsl::PoolSpace,
    vdev::{Class, Kind, Tree, Vdev},
};

use super::{OpError, dataset, dir};
use crate::{
    BoxFuture, EngineError,
    mos::bpobj,
    sync::Syncer,
    txg::{Claim, Room, Supply},
};

/// Bytes that `dir` and everything below it may still take, free of parity.
pub fn available_below(cx: &mut Syncer, dir: u64) -> BoxFuture<'_, Result<u64, EngineError>> {
    Box::pin(async move { Draft::default().available_until(cx, dir, 0).await })
}

/// The same, not looking at limits of the directory `common` and above: for what moves below that one.
pub(super) async fn available_until(cx: &mut Syncer, dir: u64, common: u64) -> Result<u64, EngineError> {
    Draft::default().available_until(cx, dir, common).await
}

/// The directory and all above it, with their numbers, the nearest first.
async fn path(cx: &mut Syncer, dir: u64) -> Result<Vec<(u64, DirPhys)>, EngineError> {
    let mut path = Vec::new();
    let mut at = dir;
    while at != 0 {
        let phys = dir::load(&mut cx.mos, at).await?;
        let above = phys.parent;
        path.push((at, phys));
        at = above;
        if path.len() > pool::dsl::name::BYTES_MAX {
            return Err(dir::inconsistent(dir, "the directories above it form a loop"));
        }
    }
    Ok(path)
}

/// The accounts of directories as they would be after a command.
#[derive(Default)]
pub(super) struct Draft {
    /// Bytes that a directory would use more, or less.
    change: BTreeMap<u64, i128>,
    /// A directory that would have this quota.
    quota: Option<(u64, u64)>,
}

impl Draft {
    /// With another quota for one directory; 0 for none.
    pub(super) fn with_quota(dir: u64, quota: u64) -> Self {
        Self { quota: Some((dir, quota)), ..Self::default() }
    }

    fn used(&self, dir: u64, phys: &DirPhys) -> u64 {
        let used = i128::from(phys.used_bytes) + self.change.get(&dir).copied().unwrap_or(0);
        u64::try_from(used.max(0)).unwrap_or(u64::MAX)
    }

    async fn available_until(&self, cx: &mut Syncer, dir: u64, common: u64) -> Result<u64, EngineError> {
        let mut path = path(cx, dir).await?;
        let end = path.iter().position(|(at, _)| *at == common).unwrap_or(path.len());
        path.truncate(end);
        let usable = usable(cx).await?;
        let mut given = u64::MAX;
        for (at, phys) in path.iter().rev() {
            let used = self.used(*at, phys);
            let quota = self.quota.filter(|(dir, _)| dir == at).map_or(phys.quota, |(_, quota)| quota);
            let mut quota = if quota == 0 { u64::MAX } else { quota };
            if phys.parent == 0 {
                quota = quota.min(usable);
            } else {
                given = given.saturating_add(phys.reserved.saturating_sub(used));
            }
            given = given.min(quota.saturating_sub(used));
        }
        Ok(given)
    }

    /// `dir` uses so much more. What it has reserved and does not use becomes less, and only the rest is felt above.
    async fn add(&mut self, cx: &mut Syncer, dir: u64, bytes: i128) -> Result<(), EngineError> {
        let mut bytes = bytes;
        for (at, phys) in path(cx, dir).await? {
            let before = self.used(at, &phys).max(phys.reserved);
            *self.change.entry(at).or_default() += bytes;
            bytes = i128::from(self.used(at, &phys).max(phys.reserved)) - i128::from(before);
        }
        Ok(())
    }

    /// Refuses what takes more than there is: so many bytes in each of these directories, together. What is not refused
    /// is promised to nobody else any more.
    pub(super) async fn set_aside(mut self, cx: &mut Syncer, wants: &[(u64, u64)]) -> Result<(), OpError> {
        for (dir, bytes) in wants.iter().filter(|(_, bytes)| *bytes > 0) {
            if *bytes > self.available_until(cx, *dir, 0).await? {
                return Err(OpError::NoSpace);
            }
            self.add(cx, *dir, (*bytes).into()).await?;
        }
        claim(cx, wants).await
    }
}

/// Refuses what clients were promised for the transaction groups that follow, and that no account shows.
async fn claim(cx: &mut Syncer, wants: &[(u64, u64)]) -> Result<(), OpError> {
    // A pool that is being created or opened has promised nothing.
    let Some(txgs) = cx.out.alloc.log_space().promises().cloned() else { return Ok(()) };
    if wants.iter().all(|(_, bytes)| *bytes == 0) {
        return Ok(());
    }
    let (mut supply, rooms) = supply(cx, &txgs.datasets()).await?;
    let mut claims = Vec::with_capacity(wants.len());
    for (dir, bytes) in wants {
        claims.push(Claim { above: reserved_above(cx, *dir, &mut supply).await?, bytes: *bytes });
    }
    if txgs.claim(cx.txg, &supply, &rooms, &claims) { Ok(()) } else { Err(OpError::NoSpace) }
}

/// What may be taken after all that was done up to now: by anybody, and by the live datasets asked for.
pub(crate) async fn supply(
    cx: &mut Syncer,
    datasets: &[u64],
) -> Result<(Supply, BTreeMap<u64, Room>), EngineError> {
    let root = cx.places.root_dir;
    let (free, spare) = promisable(cx);
    let shared = available_below(cx, root).await?.min(free);
    // All that anybody has reserved counts as used here. Frees go on where a quota of the whole pool is used up.
    let used = dir::load(&mut cx.mos, root).await?.used_bytes;
    let unreserved = usable(cx).await?.saturating_add(spare).saturating_sub(used).min(free);
    let margin = unreserved.saturating_sub(shared);
    let mut supply = Supply { shared, free, spare, margin, reserved: BTreeMap::new() };
    let mut rooms = BTreeMap::new();
    for &dataset in datasets {
        if !cx.mos.exists(dataset).await? {
            continue;
        }
        let phys = dataset::load(&mut cx.mos, dataset).await?;
        let limit = available(cx, phys.dir).await?;
        let refreservation = dir::refreservation(&mut cx.mos, phys.dir).await?;
        let above = reserved_above(cx, phys.dir, &mut supply).await?;
        let own = refreservation.saturating_sub(phys.unique_bytes);
        let is_shared = phys.unique_bytes < phys.referenced_bytes;
        rooms.insert(dataset, Room { limit, own, above, is_shared });
    }
    Ok((supply, rooms))
}

/// Directories from `dir` upwards that have something reserved they do not use, which is noted in `supply`.
async fn reserved_above(cx: &mut Syncer, dir: u64, supply: &mut Supply) -> Result<Vec<u64>, EngineError> {
    let mut above = Vec::new();
    for (at, phys) in path(cx, dir).await? {
        let unused = phys.reserved.saturating_sub(phys.used_bytes);
        // Above the root there is nobody from whom it could be kept.
        if unused > 0 && phys.parent != 0 {
            supply.reserved.insert(at, unused);
            above.push(at);
        }
    }
    Ok(above)
}

/// What a dataset holds of the pool, in bytes free of parity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// All it refers to.
    pub all: u64,
    /// Of that, what no snapshot and no clone refers to.
    pub alone: u64,
}

impl From<&DatasetPhys> for Holding {
    fn from(phys: &DatasetPhys) -> Self {
        Self { all: phys.referenced_bytes, alone: phys.unique_bytes }
    }
}

/// What a dataset holds after all that was done up to now.
pub(crate) async fn holding(cx: &mut Syncer, dataset: u64) -> Result<Holding, EngineError> {
    Ok(Holding::from(&dataset::load(&mut cx.mos, dataset).await?))
}

/// Bytes all datasets together may use.
async fn usable(cx: &mut Syncer) -> Result<u64, EngineError> {
    let deferred = bpobj::header(&mut cx.mos, cx.places.sync_bplist).await?.bytes;
    let totals = cx.out.alloc.totals();
    Ok(PoolSpace { devices: totals.capacity, shared: 0, elsewhere: totals.elsewhere, deferred }.usable())
}

/// Bytes that are free on the devices and may be promised, free of parity, and how many beyond that what only frees may take
/// for indirect blocks. Datasets do not know of log blocks, which take their space all the same; half of the slop is left for
/// the metadata of what is promised, and a quarter whatever is freed: beside what is reserved, too, if a snapshot keeps it.
fn promisable(cx: &Syncer) -> (u64, u64) {
    let totals = cx.out.alloc.totals();
    let slop = PoolSpace { devices: totals.capacity, ..PoolSpace::default() }.slop();
    let free = totals.capacity.saturating_sub(totals.allocated + totals.aside);
    let promised = free.saturating_sub(slop / 2);
    (promised, free.saturating_sub(slop / 4) - promised)
}

/// Bytes that the live dataset of `dir` may still write: what its directory may take, what is set aside for it,
/// and what its own quota leaves.
pub fn available(cx: &mut Syncer, dir: u64) -> BoxFuture<'_, Result<u64, EngineError>> {
    Box::pin(async move {
        let given = available_below(cx, dir).await?;
        let phys = dir::load(&mut cx.mos, dir).await?;
        if phys.head_dataset == 0 {
            return Ok(given);
        }
        let head = dataset::load(&mut cx.mos, phys.head_dataset).await?;
        let refreservation = dir::own_number(&mut cx.mos, phys.props, "refreservation").await?.unwrap_or(0);
        let refquota = dir::own_number(&mut cx.mos, phys.props, "refquota").await?.unwrap_or(0);
        let given = given.saturating_add(refreservation.saturating_sub(head.unique_bytes));
        Ok(match refquota {
            0 => given,
            quota => given.min(quota.saturating_sub(head.referenced_bytes)),
        })
    })
}

/// Refuses what would take more than `dir` may take.
pub(super) async fn need(cx: &mut Syncer, dir: u64, bytes: u64) -> Result<(), OpError> {
    Draft::default().set_aside(cx, &[(dir, bytes)]).await
}

/// Refuses to move `bytes` from one directory to another if that takes more than there is above both: what the one had
/// reserved is set aside again, while the other takes more than it had reserved.
pub(super) async fn need_to_move(
    cx: &mut Syncer,
    from: u64,
    to: u64,
    common: u64,
    bytes: u64,
) -> Result<(), OpError> {
    let mut draft = Draft::default();
    draft.add(cx, from, -i128::from(bytes)).await?;
    draft.add(cx, to, bytes.into()).await?;
    let growth = draft.change.get(&common).copied().unwrap_or(0);
    need(cx, common, u64::try_from(growth.max(0)).unwrap_or(u64::MAX)).await
}

/// The bytes that more `refreservation` takes out of the directory of a head with `unique` bytes of its own.
pub(super) fn growth_of_refreservation(before: u64, after: u64, unique: u64) -> u64 {
    after.saturating_sub(unique).saturating_sub(before.saturating_sub(unique))
}

/// Bytes accounted for one stored block of `psize` bytes, on the device of the pool where that is most.
///
/// On mirrors and single disks that is its size; RAIDZ adds what small blocks lose to parity and padding beyond the
/// share that is deducted for 128 KiB blocks.
#[must_use]
pub fn accounted_block(tree: &Tree, psize: u64) -> u64 {
    let of = |vdev: &Vdev| match &vdev.kind {
        Kind::Raidz(geometry) if vdev.class() == Class::Normal => {
            Some(pool::space::deflate(vdev, geometry.allocated(psize, geometry.original_width())))
        }
        _ => None,
    };
    tree.tops.iter().filter_map(of).max().unwrap_or(psize).max(psize)
}

/// The `refreservation` of a thick volume of `size` bytes in blocks of `block`: room for every block and all
/// metadata above, written incompressibly with `copies` copies. `stored` is what one block is accounted as,
/// see [`accounted_block`].
///
/// The metadata: indirect blocks of 128 KiB with 1024 pointers each at every level, and seven blocks of object set,
/// dnodes and properties, all with one copy more than data. It is the number OpenZFS arrives at.
#[must_use]
pub fn default_refreservation(size: u64, block: u32, copies: u8, stored: u64) -> u64 {
    const INDIRECT_BYTES: u64 = 128 << 10;
    const POINTERS: u64 = INDIRECT_BYTES >> BlkPtr::SHIFT;
    const FIXED: u64 = 7;
    let copies = u64::from(copies.clamp(1, 3));
    let blocks = size.div_ceil(u64::from(block.max(512)));
    let (mut level, mut metadata) = (blocks, FIXED);
    while level > 1 {
        level = level.div_ceil(POINTERS);
        metadata = metadata.saturating_add(level);
    }
    let metadata = metadata.saturating_mul((copies + 1).min(3)).saturating_mul(INDIRECT_BYTES);
    blocks.saturating_mul(stored).saturating_mul(copies).saturating_add(metadata)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thick_volume_reserves_what_openzfs_reserves() {
        // zfs create -V 1G -b 8K on a mirror shows a refreservation of 1.03G.
        assert_eq!(default_refreservation(1 << 30, 8192, 1, 8192), 1_109_393_408);
        // One block: no indirect level at all.
        assert_eq!(default_refreservation(16384, 16384, 1, 16384), 16384 + 7 * 2 * (128 << 10));
        // Three copies of data have three of metadata, not four.
        let three = default_refreservation(1 << 20, 16384, 3, 16384);
        assert_eq!(three, (3 << 20) + (7 + 1) * 3 * (128 << 10));
    }

    #[test]
    fn more_refreservation_costs_only_what_is_not_yet_written() {
        assert_eq!(growth_of_refreservation(0, 100, 40), 60);
        assert_eq!(growth_of_refreservation(50, 100, 40), 50);
        assert_eq!(growth_of_refreservation(0, 100, 200), 0);
        assert_eq!(growth_of_refreservation(100, 0, 40), 0);
        // More than a signed number holds is still more.
        assert_eq!(growth_of_refreservation(100, 1 << 63, 40), (1 << 63) - 100);
        assert_eq!(growth_of_refreservation(0, u64::MAX, 40), u64::MAX - 40);
        assert_eq!(growth_of_refreservation(u64::MAX, 1 << 63, 40), 0);
    }
}
