//! How much a pool holds in all, and how much of it a dataset may still use.
//!
//! Space is granted down the tree: a dataset has what its parent has, less what its own quota cuts off, plus what it
//! has reserved. At the top stands the pool's size less the *slop*, a reserve that keeps deletion
//! possible in a full pool. Facts: docs/format/mos.md §7.

use super::Dir;

/// Largest reserve kept back in a pool.
const SLOP_BYTES_MAX: u64 = 128 << 30;
/// Smallest, in pools of more than twice that.
const SLOP_BYTES_MIN: u64 = 128 << 20;

/// Sizes of the whole pool in deflated bytes (free of RAIDZ parity).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolSpace {
    /// What the data devices hold.
    pub devices: u64,
    /// What deduplicated and cloned blocks would take more if each reference had its own copy: it counts as
    /// used in every dataset and so has to count as there.
    pub shared: u64,
    /// What lies on devices for metadata and dedup tables: it counts as used in datasets, too. What they have free is no
    /// room for data.
    pub elsewhere: u64,
    /// Freed by the last txg and given back by the next one.
    pub deferred: u64,
}

impl PoolSpace {
    /// The reserve: a 32nd, at least 128 MiB (but never more than half of the pool), at most 128 GiB.
    #[must_use]
    pub fn slop(&self) -> u64 {
        let size = self.devices;
        (size / 32).min(SLOP_BYTES_MAX).max((size / 2).min(SLOP_BYTES_MIN))
    }

    /// What datasets may use in all.
    #[must_use]
    pub fn usable(&self) -> u64 {
        let size = self.devices.saturating_add(self.shared).saturating_add(self.elsewhere);
        size.saturating_sub(self.slop()).saturating_sub(self.deferred)
    }
}

/// Bytes that `dir` and what is below it may still use.
pub(super) fn available(pool: PoolSpace, dir: &Dir) -> u64 {
    let mut path = Vec::new();
    let mut at = Some(dir);
    while let Some(dir) = at {
        path.push(dir);
        at = dir.parent().map(AsRef::as_ref);
    }
    // From the root down: each level may keep less than what it is given, or add what it has reserved.
    path.iter().rev().fold(u64::MAX, |given, dir| {
        let phys = dir.phys();
        let mut quota = if phys.quota == 0 { u64::MAX } else { phys.quota };
        let mut given = given;
        if dir.parent().is_none() {
            quota = quota.min(pool.usable());
        } else {
            given = given.saturating_add(phys.reserved.saturating_sub(phys.used_bytes));
        }
        given.min(quota.saturating_sub(phys.used_bytes))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slop_is_a_32nd_within_bounds() {
        let slop = |devices| PoolSpace { devices, ..PoolSpace::default() }.slop();
        assert_eq!(slop(117_440_512), 58_720_256);
        assert_eq!(slop(1 << 30), 128 << 20);
        assert_eq!(slop(1 << 40), 32 << 30);
        assert_eq!(slop(100 << 40), 128 << 30);
        assert_eq!(
            PoolSpace { devices: 117_440_512, shared: 925_696, elsewhere: 8192, deferred: 4096 }.usable(),
            117_440_512 + 925_696 + 8192 - 58_720_256 - 4096
        );
    }
}
