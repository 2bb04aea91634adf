//! What the cache counted and holds, under the names that OpenZFS gives it. Facts: docs/format/arc.md §4.

use serde::{Deserialize, Serialize};

macro_rules! arc_stats {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// `arcstats`: counters since the cache exists, and gauges. All sizes are in bytes.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct ArcStats {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl ArcStats {
            /// Every counter with its name, in OpenZFS's order.
            #[must_use]
            pub fn rows(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name)),*]
            }

            /// Adds to the counter of this name; false if there is none.
            pub fn add(&mut self, name: &str, amount: u64) -> bool {
                match name {
                    $(stringify!($name) => self.$name = self.$name.saturating_add(amount),)*
                    _ => return false,
                }
                true
            }

            /// What was counted since an earlier look. Of gauges, which may shrink, only what they grew by.
            #[must_use]
            pub fn since(&self, before: &Self) -> Self {
                Self { $($name: self.$name.saturating_sub(before.$name)),* }
            }
        }
    };
}

arc_stats! {
    /// Lookups that found a block.
    hits,
    /// Lookups that waited for a read on its way.
    iohits,
    /// Blocks that had to be read, from the second tier too.
    misses,
    /// Hits of somebody who waits, on data.
    demand_data_hits,
    /// Of somebody who waits, on data.
    demand_data_iohits,
    /// Misses of somebody who waits, of data.
    demand_data_misses,
    /// Hits of somebody who waits, on metadata.
    demand_metadata_hits,
    /// Of somebody who waits, on metadata.
    demand_metadata_iohits,
    /// Misses of somebody who waits, of metadata.
    demand_metadata_misses,
    /// Data that was to be read ahead and was here.
    prefetch_data_hits,
    /// Data that was to be read ahead and was on its way.
    prefetch_data_iohits,
    /// Data that was read ahead.
    prefetch_data_misses,
    /// Metadata that was to be read ahead and was here.
    prefetch_metadata_hits,
    /// Metadata that was to be read ahead and was on its way.
    prefetch_metadata_iohits,
    /// Metadata that was read ahead.
    prefetch_metadata_misses,
    /// Hits on blocks used once before.
    mru_hits,
    /// Misses of blocks that were evicted lately after one use.
    mru_ghost_hits,
    /// Hits on blocks used several times before.
    mfu_hits,
    /// Misses of blocks that were evicted lately after several uses.
    mfu_ghost_hits,
    /// Hits on blocks that are only passing through: there are none.
    uncached_hits,
    /// Blocks that left.
    deleted,
    /// Batches of notes that waited because the policies were busy.
    mutex_miss,
    /// Not counted: no access is skipped.
    access_skip,
    /// Victims passed over: there are none.
    evict_skip,
    /// Evictions that freed too little: there are none.
    evict_not_enough,
    /// Evicted content that the second tier held.
    evict_l2_cached,
    /// Evicted content that the second tier may have.
    evict_l2_eligible,
    /// The part of it that was used several times.
    evict_l2_eligible_mfu,
    /// The part of it that was used once.
    evict_l2_eligible_mru,
    /// Evicted content that it may not.
    evict_l2_ineligible,
    /// Victims passed over for the second tier's sake: there are none.
    evict_l2_skip,
    /// Blocks held.
    hash_elements,
    /// Metadata's share that is aimed at; 2^32 is all.
    meta,
    /// The recent list's share of data that is aimed at; 2^32 is all.
    pd,
    /// The recent list's share of metadata.
    pm,
    /// Bytes it may hold now.
    c,
    /// Bytes it is not asked to go below.
    c_min,
    /// Bytes it may hold at most.
    c_max,
    /// Bytes it holds, bookkeeping included.
    size,
    /// Blocks as they are held.
    compressed_size,
    /// Their contents.
    uncompressed_size,
    /// Decompressed copies beside them.
    overhead_size,
    /// Bookkeeping: map, policies, ghosts, and memory of transfers that only a part of is in use.
    hdr_size,
    /// Data, copies included.
    data_size,
    /// Metadata, copies included.
    metadata_size,
    /// Blocks used once.
    mru_size,
    /// Of these, data.
    mru_data,
    /// Of these, metadata.
    mru_metadata,
    /// What is remembered of blocks evicted after one use, by the size they had.
    mru_ghost_size,
    /// Of these, data.
    mru_ghost_data,
    /// Of these, metadata.
    mru_ghost_metadata,
    /// Blocks used several times.
    mfu_size,
    /// Of these, data.
    mfu_data,
    /// Of these, metadata.
    mfu_metadata,
    /// What is remembered of blocks evicted after several uses, by the size they had.
    mfu_ghost_size,
    /// Of these, data.
    mfu_ghost_data,
    /// Of these, metadata.
    mfu_ghost_metadata,
    /// Blocks found in the second tier.
    l2_hits,
    /// Blocks not found there.
    l2_misses,
    /// Rounds of writing to it.
    l2_feeds,
    /// Bytes read from it.
    l2_read_bytes,
    /// Bytes written to it.
    l2_write_bytes,
    /// Writes begun.
    l2_writes_sent,
    /// Writes ended.
    l2_writes_done,
    /// Writes that failed.
    l2_writes_error,
    /// Reads whose block was overwritten meanwhile.
    l2_evict_reading,
    /// Blocks it could not take for want of memory.
    l2_abort_lowmem,
    /// What it gave was wrong.
    l2_cksum_bad,
    /// It could not be read.
    l2_io_error,
    /// Devices.
    l2_ndev,
    /// Contents of what it holds.
    l2_size,
    /// What it holds, as it is stored.
    l2_asize,
    /// Memory for finding it.
    l2_hdr_size,
    /// Stored blocks that were read ahead.
    l2_prefetch_asize,
    /// Stored blocks used once.
    l2_mru_asize,
    /// Stored blocks used several times.
    l2_mfu_asize,
    /// Stored data.
    l2_bufc_data_asize,
    /// Stored metadata.
    l2_bufc_metadata_asize,
    /// Log blocks written to it.
    l2_log_blk_writes,
    /// Mean bytes of a log block.
    l2_log_blk_avg_asize,
    /// Log blocks it has.
    l2_log_blk_count,
    /// Bytes of these.
    l2_log_blk_asize,
    /// Devices whose content was taken over.
    l2_rebuild_success,
    /// Devices whose header did not fit.
    l2_rebuild_unsupported,
    /// Log blocks that could not be read.
    l2_rebuild_io_errors,
    /// Headers that could not be read, or were not valid.
    l2_rebuild_dh_errors,
    /// Log blocks with a wrong checksum.
    l2_rebuild_cksum_lb_errors,
    /// Times that memory was short.
    l2_rebuild_lowmem,
    /// Blocks that were known already.
    l2_rebuild_bufs_precached,
    /// Contents that were taken over.
    l2_rebuild_size,
    /// Stored bytes that were taken over.
    l2_rebuild_asize,
    /// Blocks that were taken over.
    l2_rebuild_bufs,
    /// Log blocks that were read for it.
    l2_rebuild_log_blks,
    /// Times that writers waited for memory.
    memory_throttle_count,
    /// Memory of the machine.
    memory_all_bytes,
    /// Free memory of the machine.
    memory_free_bytes,
    /// Memory that may be taken before others suffer.
    memory_available_bytes,
    /// It may not grow now.
    arc_no_grow,
    /// Bytes that the machine lacks.
    arc_need_free,
    /// Blocks read ahead.
    predictive_prefetch,
    /// Of these, those that somebody asked for later.
    demand_hit_predictive_prefetch,
    /// How often the policies changed their rules.
    mp_switches,
}
