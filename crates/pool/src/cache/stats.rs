//! What the cache counted and holds, under the names that OpenZFS gives it: all of them, because scripts ask for them.
//! Those of what is not here stay 0. `zfetchstats` are beside them, as `zfetch_…`. Facts: docs/format/arc.md §4.

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
    /// The most blocks that were held.
    hash_elements_max,
    /// Not here: no block waits behind another in the map.
    hash_collisions,
    /// Not here: no block waits behind another in the map.
    hash_chains,
    /// Not here: no block waits behind another in the map.
    hash_chain_max,
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
    /// Bytes it holds, bookkeeping included, that of the second tier not.
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
    /// Not here: what was read of an object is no second copy.
    dbuf_size,
    /// Not here: the same of dnodes.
    dnode_size,
    /// Not here: the same of their bonus buffers.
    bonus_size,
    /// Not here: what is not written yet is dirty data of its pool, and no part of this.
    anon_size,
    /// Not here: what is not written yet is dirty data of its pool, and no part of this.
    anon_data,
    /// Not here: what is not written yet is dirty data of its pool, and no part of this.
    anon_metadata,
    /// Not here: what is not written yet is dirty data of its pool, and no part of this.
    anon_evictable_data,
    /// Not here: what is not written yet is dirty data of its pool, and no part of this.
    anon_evictable_metadata,
    /// Blocks used once.
    mru_size,
    /// Of these, data.
    mru_data,
    /// Of these, metadata.
    mru_metadata,
    /// Data that may leave, of blocks used once.
    mru_evictable_data,
    /// Metadata that may leave, of blocks used once.
    mru_evictable_metadata,
    /// What is remembered of blocks evicted after one use, by the size they had.
    mru_ghost_size,
    /// Of these, data.
    mru_ghost_data,
    /// Of these, metadata.
    mru_ghost_metadata,
    /// Data that may leave, of what is remembered of these.
    mru_ghost_evictable_data,
    /// Metadata that may leave, of what is remembered of these.
    mru_ghost_evictable_metadata,
    /// Blocks used several times.
    mfu_size,
    /// Of these, data.
    mfu_data,
    /// Of these, metadata.
    mfu_metadata,
    /// Data that may leave, of blocks used several times.
    mfu_evictable_data,
    /// Metadata that may leave, of blocks used several times.
    mfu_evictable_metadata,
    /// What is remembered of blocks evicted after several uses, by the size they had.
    mfu_ghost_size,
    /// Of these, data.
    mfu_ghost_data,
    /// Of these, metadata.
    mfu_ghost_metadata,
    /// Data that may leave, of what is remembered of these.
    mfu_ghost_evictable_data,
    /// Metadata that may leave, of what is remembered of these.
    mfu_ghost_evictable_metadata,
    /// Not here: blocks that only pass through are not taken in.
    uncached_size,
    /// Not here: blocks that only pass through are not taken in.
    uncached_data,
    /// Not here: blocks that only pass through are not taken in.
    uncached_metadata,
    /// Not here: blocks that only pass through are not taken in.
    uncached_evictable_data,
    /// Not here: blocks that only pass through are not taken in.
    uncached_evictable_metadata,
    /// Blocks found in the second tier.
    l2_hits,
    /// Blocks not found there.
    l2_misses,
    /// Rounds of writing to it.
    l2_feeds,
    /// Not here: reads and writes of it do not wait for each other.
    l2_rw_clash,
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
    /// Not here: writing takes no lock of a block.
    l2_writes_lock_retry,
    /// Not here: nor does eviction.
    l2_evict_lock_retry,
    /// Reads whose block was overwritten meanwhile.
    l2_evict_reading,
    /// Not here: what is in memory too is overwritten like others.
    l2_evict_l1cached,
    /// Not here: a block that is freed while it is written is forgotten as usual.
    l2_free_on_write,
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
    /// Memory for finding it, beside `size`.
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
    /// Not here: how much data stands behind a log block is not averaged.
    l2_data_to_meta_ratio,
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
    /// Times that clients were slowed down, each by half, for want of memory.
    memory_throttle_count,
    /// Not here: nobody but the governor takes memory back.
    memory_direct_count,
    /// Not here: nobody but the governor takes memory back.
    memory_indirect_count,
    /// Memory of the machine.
    memory_all_bytes,
    /// Free memory of the machine.
    memory_free_bytes,
    /// Memory that may be taken before others suffer.
    memory_available_bytes,
    /// It may not grow now.
    arc_no_grow,
    /// Bytes that it holds and should not.
    arc_need_free,
    /// Not here: what the machine is to keep free is the governor's to know.
    arc_sys_free,
    /// Not here: no memory is set aside for what is about to be written.
    arc_tempreserve,
    /// Not here: who writes takes memory of its own.
    arc_loaned_bytes,
    /// Not here: there is nobody to be asked for metadata.
    arc_prune,
    /// Metadata and bookkeeping.
    arc_meta_used,
    /// Not here: dnodes are metadata like other.
    arc_dnode_limit,
    /// Not here: encrypted blocks are not held.
    arc_raw_size,
    /// Not here: what memory takes beyond its content is in the headers' size.
    abd_chunk_waste_size,
    /// Not here: a read that somebody comes to wait for is as fast as others.
    async_upgrade_sync,
    /// Blocks read ahead.
    predictive_prefetch,
    /// Of these, those that somebody asked for later.
    demand_hit_predictive_prefetch,
    /// Not here: who waits for a block that is being read ahead is a hit when it comes.
    demand_iohit_predictive_prefetch,
    /// Not here: nothing is read ahead that is sure to be needed.
    prescient_prefetch,
    /// Not here: nothing is read ahead that is sure to be needed.
    demand_hit_prescient_prefetch,
    /// Not here: nothing is read ahead that is sure to be needed.
    demand_iohit_prescient_prefetch,
    /// Not here: nobody asks for what is only in memory.
    cached_only_in_progress,
    /// How often the policies changed their rules.
    mp_switches,
    /// Requests that a stream of reads went on with. These are OpenZFS's `zfetchstats`. A request that comes while another
    /// of the same volume is looked at is in none of them.
    zfetch_hits,
    /// Not here: a stream goes on from a request that is ahead of it at once.
    zfetch_future,
    /// Requests that were the next of those at one distance from each other.
    zfetch_stride,
    /// Requests that a stream had come by before.
    zfetch_past,
    /// Requests that belonged to no stream.
    zfetch_misses,
    /// Not here: the stream that was not used for longest makes room for another.
    zfetch_max_streams,
    /// Blocks that were to be read ahead, those that were in memory by then included.
    zfetch_io_issued,
    /// Blocks that are being read ahead.
    zfetch_io_active,
}
