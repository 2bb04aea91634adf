//! What each pool may have of the memory.

use ::memory::plan::{Stage, Terms};

/// Dirty data that each pool may have.
pub(super) fn share(terms: &Terms, pools: usize) -> u64 {
    (terms.dirty() / pools.max(1) as u64).max(4 << 20)
}

/// Bytes that a transaction group of each pool may take beside its dirty data.
pub(super) fn beside(terms: &Terms, pools: usize) -> u64 {
    (terms.beside() / pools.max(1) as u64).clamp(4 << 20, 512 << 20)
}

/// Bytes that what each pool knows of its free space may take: as much as it had without a limit, and little where the cache
/// has little.
pub(super) fn space_memory(terms: &Terms, stage: Stage, pools: usize) -> u64 {
    let most = if stage < Stage::Cache { terms.limit / 32 / pools.max(1) as u64 } else { 0 };
    most.clamp(4 << 20, 256 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It was 256 MiB for each pool whatever the limit, more than a small one as a whole, and nothing of it came back.
    #[test]
    fn what_is_known_of_free_space_fits_the_limit_and_gives_way() {
        let small = Terms::new(240 << 20, None, None);
        assert_eq!(space_memory(&small, Stage::Nothing, 1), (240 << 20) / 32);
        assert!(2 * space_memory(&small, Stage::Scans, 2) <= small.limit / 16);
        assert_eq!(space_memory(&small, Stage::Cache, 1), 4 << 20);
        let large = Terms::new(64 << 30, None, None);
        assert_eq!(space_memory(&large, Stage::Nothing, 2), 256 << 20);
    }

    /// It was 256 MiB of each pool whatever the limit, and in no account.
    #[test]
    fn what_is_written_beside_dirty_data_fits_the_limit_however_many_pools_there_are() {
        for limit in [240 << 20, 2 << 30, 64 << 30] {
            let terms = Terms::new(limit, None, None);
            for pools in [1, 2, 5] {
                assert!(pools as u64 * beside(&terms, pools) <= limit / 8, "{limit}, {pools} pools");
            }
        }
    }
}
