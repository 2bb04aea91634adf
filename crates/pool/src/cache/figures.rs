//! What the cache counted and holds, put together from its parts.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{
    Access, ArcStats, BlockCache, Class, Fate, Followed,
    ranks::{Held, UNIT},
};

/// Blocks that are being read ahead, until this is dropped.
#[derive(Debug)]
pub(crate) struct Issued<'a> {
    active: &'a AtomicU64,
    blocks: u64,
}

impl Drop for Issued<'_> {
    fn drop(&mut self) {
        self.active.fetch_sub(self.blocks, Relaxed);
    }
}

impl BlockCache {
    /// Counts what a request is to the streams of its volume's readers.
    pub(crate) fn count_followed(&self, followed: Followed) {
        self.stripes.mine().followed(followed);
    }

    /// Counts blocks that are about to be read ahead.
    pub(crate) fn count_ahead(&self, blocks: u64) -> Issued<'_> {
        self.stripes.mine().ahead(blocks);
        self.ahead.fetch_add(blocks, Relaxed);
        Issued { active: &self.ahead, blocks }
    }

    /// Bytes that may come in before anything has to leave.
    #[must_use]
    pub fn unfilled(&self) -> u64 {
        let ranks = self.ranks.lock();
        let used: u64 = Class::ALL
            .map(|class| ranks.usage(class))
            .iter()
            .map(|usage| usage.recent + usage.frequent)
            .sum();
        ranks.capacity().saturating_sub(used) * UNIT as u64
    }

    /// What it counted and holds.
    #[must_use]
    pub fn stats(&self) -> ArcStats {
        let counted = self.stripes.counted();
        let ranks = self.ranks.lock();
        let copies = self.hot.bytes().map(|bytes| bytes as u64);
        let [data, metadata] = ranks.held;
        let fixed = self.fixed(&ranks, 0) as u64;
        let bookkeeping = |held: Held| held.charged.saturating_sub(held.held);
        let bytes = |units: u64| units * UNIT as u64;
        let usage = Class::ALL.map(|class| ranks.usage(class));
        let ghosts = Class::ALL.map(|class| ranks.ghost_hits(class));
        let fraction = |part: f64| (part.clamp(0.0, 1.0) * 4_294_967_296.0) as u64;
        let recent = |class: Class| {
            let capacity = ranks.policy(class).capacity().max(1);
            fraction(usage[class as usize].recent_target as f64 / capacity as f64)
        };
        let hits = |access: Access, class: Class| -> u64 {
            counted.hits[access as usize][class as usize].iter().sum()
        };
        let misses = |access: Access, class: Class| counted.misses[access as usize][class as usize];
        let waits = |access: Access, class: Class| counted.waits[access as usize][class as usize];
        let listed =
            |frequent: usize| -> u64 { counted.hits.iter().flatten().map(|by_list| by_list[frequent]).sum() };
        let left = |fate: Fate| self.left.content[fate as usize].each_ref().map(|bytes| bytes.load(Relaxed));
        let [eligible_mru, eligible_mfu] = left(Fate::Eligible);
        let c = self.budget.load(Relaxed) as u64;
        let c_max = self.budget_max.load(Relaxed) as u64;
        let mut stats = ArcStats {
            demand_data_hits: hits(Access::Demand, Class::Data),
            demand_data_iohits: waits(Access::Demand, Class::Data),
            demand_metadata_iohits: waits(Access::Demand, Class::Metadata),
            prefetch_data_iohits: waits(Access::Prefetch, Class::Data),
            prefetch_metadata_iohits: waits(Access::Prefetch, Class::Metadata),
            demand_data_misses: misses(Access::Demand, Class::Data),
            demand_metadata_hits: hits(Access::Demand, Class::Metadata),
            demand_metadata_misses: misses(Access::Demand, Class::Metadata),
            prefetch_data_hits: hits(Access::Prefetch, Class::Data),
            prefetch_data_misses: misses(Access::Prefetch, Class::Data),
            prefetch_metadata_hits: hits(Access::Prefetch, Class::Metadata),
            prefetch_metadata_misses: misses(Access::Prefetch, Class::Metadata),
            mru_hits: listed(0),
            mfu_hits: listed(1),
            mru_ghost_hits: ghosts.iter().map(|ghosts| ghosts.recent).sum(),
            mfu_ghost_hits: ghosts.iter().map(|ghosts| ghosts.frequent).sum(),
            deleted: self.left.blocks.load(Relaxed),
            mutex_miss: self.left.busy.load(Relaxed),
            evict_l2_cached: left(Fate::Cached).iter().sum(),
            evict_l2_eligible: eligible_mru + eligible_mfu,
            evict_l2_eligible_mfu: eligible_mfu,
            evict_l2_eligible_mru: eligible_mru,
            evict_l2_ineligible: left(Fate::Ineligible).iter().sum(),
            hash_elements: data.blocks + metadata.blocks,
            hash_elements_max: self.blocks_max.load(Relaxed),
            meta: fraction(ranks.share()),
            pd: recent(Class::Data),
            pm: recent(Class::Metadata),
            c,
            c_min: (c_max / 32).max(32 << 20).min(c_max),
            c_max,
            size: data.charged + metadata.charged + copies[0] + copies[1] + fixed,
            compressed_size: data.held + metadata.held,
            uncompressed_size: data.content + metadata.content,
            overhead_size: copies[0] + copies[1],
            hdr_size: fixed + bookkeeping(data) + bookkeeping(metadata),
            data_size: data.held + copies[0],
            metadata_size: metadata.held + copies[1],
            mru_data: bytes(usage[0].recent),
            mru_metadata: bytes(usage[1].recent),
            mru_ghost_data: bytes(usage[0].recent_ghosts),
            mru_ghost_metadata: bytes(usage[1].recent_ghosts),
            mfu_data: bytes(usage[0].frequent),
            mfu_metadata: bytes(usage[1].frequent),
            mfu_ghost_data: bytes(usage[0].frequent_ghosts),
            mfu_ghost_metadata: bytes(usage[1].frequent_ghosts),
            demand_hit_predictive_prefetch: counted.useful,
            zfetch_hits: counted.followed[Followed::Hit as usize],
            zfetch_stride: counted.followed[Followed::Stride as usize],
            zfetch_past: counted.followed[Followed::Past as usize],
            zfetch_misses: counted.followed[Followed::Miss as usize],
            zfetch_io_issued: counted.ahead,
            zfetch_io_active: self.ahead.load(Relaxed),
            mp_switches: Class::ALL.map(|class| ranks.switches(class)).iter().sum(),
            ..ArcStats::default()
        };
        drop(ranks);
        stats.hits = stats.mru_hits + stats.mfu_hits;
        stats.iohits = counted.waits.iter().flatten().sum();
        stats.misses = counted.misses.iter().flatten().sum();
        stats.predictive_prefetch = stats.prefetch_data_misses + stats.prefetch_metadata_misses;
        stats.mru_size = stats.mru_data + stats.mru_metadata;
        stats.mru_ghost_size = stats.mru_ghost_data + stats.mru_ghost_metadata;
        stats.mfu_size = stats.mfu_data + stats.mfu_metadata;
        stats.mfu_ghost_size = stats.mfu_ghost_data + stats.mfu_ghost_metadata;
        // Whoever uses a block holds its memory himself: any may be evicted at any time.
        stats.mru_evictable_data = stats.mru_data;
        stats.mru_evictable_metadata = stats.mru_metadata;
        stats.mru_ghost_evictable_data = stats.mru_ghost_data;
        stats.mru_ghost_evictable_metadata = stats.mru_ghost_metadata;
        stats.mfu_evictable_data = stats.mfu_data;
        stats.mfu_evictable_metadata = stats.mfu_metadata;
        stats.mfu_ghost_evictable_data = stats.mfu_ghost_data;
        stats.mfu_ghost_evictable_metadata = stats.mfu_ghost_metadata;
        stats.arc_meta_used = stats.metadata_size + stats.hdr_size;
        stats
    }
}
