//! What the second tier did and holds, by OpenZFS's names.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ondisk::l2arc::{Content, Entry};

use crate::{Block, index::Place};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters and sizes, under the names that OpenZFS's `arcstats` has for them (sizes in bytes).
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct L2Stats {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl L2Stats {
            /// Names and values, in the order of `arcstats`.
            pub fn pairs(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }

            /// Adds what another pool's has.
            pub fn add(&mut self, other: &Self) {
                $(self.$name = self.$name.wrapping_add(other.$name);)*
            }
        }

        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
        }

        impl Counters {
            pub(crate) fn get(&self) -> L2Stats {
                L2Stats { $($name: self.$name.load(Relaxed),)* }
            }
        }
    };
}

impl L2Stats {
    /// What was counted, without what is held: of a tier that is closed that is nothing any more.
    #[must_use]
    pub const fn counted(self) -> Self {
        Self {
            l2_prefetch_asize: 0,
            l2_mru_asize: 0,
            l2_mfu_asize: 0,
            l2_bufc_data_asize: 0,
            l2_bufc_metadata_asize: 0,
            l2_size: 0,
            l2_asize: 0,
            l2_hdr_size: 0,
            l2_log_blk_avg_asize: 0,
            l2_log_blk_asize: 0,
            l2_log_blk_count: 0,
            l2_bufs: 0,
            l2_ndev: 0,
            ..self
        }
    }
}

counters! {
    /// Evicted from memory, and on a cache device already.
    evict_l2_cached,
    /// Evicted, and worth a place on a cache device.
    evict_l2_eligible,
    /// Of those, used more than once.
    evict_l2_eligible_mfu,
    /// Of those, used once.
    evict_l2_eligible_mru,
    /// Evicted, and not to be cached.
    evict_l2_ineligible,
    /// Reads that found a block in the index.
    l2_hits,
    /// Reads that did not.
    l2_misses,
    /// Of what is held, prefetched and not asked for in memory.
    l2_prefetch_asize,
    /// Of what is held, used once in memory.
    l2_mru_asize,
    /// Of what is held, used more than once.
    l2_mfu_asize,
    /// Of what is held, data.
    l2_bufc_data_asize,
    /// Of what is held, metadata.
    l2_bufc_metadata_asize,
    /// Rounds of writing.
    l2_feeds,
    /// Bytes read from cache devices.
    l2_read_bytes,
    /// Bytes written to them, log blocks and headers included.
    l2_write_bytes,
    /// Rounds begun.
    l2_writes_sent,
    /// Rounds that ended, well or not.
    l2_writes_done,
    /// Rounds that failed.
    l2_writes_error,
    /// Reads whose block was overwritten meanwhile.
    l2_evict_reading,
    /// Blocks not taken because the index may not grow.
    l2_abort_lowmem,
    /// Blocks that came back with a wrong checksum.
    l2_cksum_bad,
    /// Reads that failed.
    l2_io_error,
    /// Logical bytes held.
    l2_size,
    /// Stored bytes held.
    l2_asize,
    /// Memory of the index.
    l2_hdr_size,
    /// Log blocks written.
    l2_log_blk_writes,
    /// Mean bytes of a log block.
    l2_log_blk_avg_asize,
    /// Bytes of the log blocks held.
    l2_log_blk_asize,
    /// Log blocks held.
    l2_log_blk_count,
    /// Devices whose memory was taken over.
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
    /// Logical bytes recovered.
    l2_rebuild_size,
    /// Stored bytes recovered.
    l2_rebuild_asize,
    /// Blocks recovered.
    l2_rebuild_bufs,
    /// Blocks found that were known already.
    l2_rebuild_bufs_precached,
    /// Log blocks recovered.
    l2_rebuild_log_blks,
    /// Not OpenZFS's: blocks held.
    l2_bufs,
    /// Not OpenZFS's: bytes not taken because it was the first time that they left memory.
    l2_skip_first_eviction,
    /// Not OpenZFS's: bytes that were worth it and not written, because more valuable ones took the budget.
    l2_skip_over_budget,
    /// Not OpenZFS's: bytes written again because they were hit.
    l2_reinserted,
    /// Not OpenZFS's: cache devices in use.
    l2_ndev,
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Relaxed);
}

/// Takes from a size; what is wrong by a rounding does not become huge.
fn sub(counter: &AtomicU64, amount: u64) {
    let _previous = counter.fetch_update(Relaxed, Relaxed, |value| Some(value.saturating_sub(amount)));
}

impl Counters {
    /// A block left memory and is worth it.
    pub(crate) fn eligible(&self, block: &Block) {
        let lsize = block.lsize.into();
        add(&self.evict_l2_eligible, lsize);
        add(if block.frequent { &self.evict_l2_eligible_mfu } else { &self.evict_l2_eligible_mru }, lsize);
    }
}

/// What one device holds: its part of the sizes among the statistics, in bytes.
#[derive(Debug, Default)]
pub(crate) struct Sizes {
    blocks: AtomicU64,
    /// What they take on the device.
    taken: AtomicU64,
    lsize: AtomicU64,
    asize: AtomicU64,
    data: AtomicU64,
    metadata: AtomicU64,
    prefetched: AtomicU64,
    once: AtomicU64,
    often: AtomicU64,
}

impl Sizes {
    /// A block is held at this place, or no longer; it takes `taken` bytes of the device.
    pub(crate) fn holds(&self, entry: &Entry, place: &Place, taken: u64, comes: bool) {
        let change = if comes { add } else { sub };
        let content = match entry.content {
            Content::Data => &self.data,
            Content::Metadata => &self.metadata,
        };
        // Of a block that is written again the entry is the new one, and may have moved up a list.
        let list = if place.prefetched {
            &self.prefetched
        } else if place.frequent {
            &self.often
        } else {
            &self.once
        };
        change(&self.blocks, 1);
        change(&self.taken, taken);
        change(&self.lsize, entry.lsize);
        for size in [&self.asize, content, list] {
            change(size, entry.psize);
        }
    }

    /// Blocks held.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks.load(Relaxed)
    }

    /// Bytes that they take on the device.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Relaxed)
    }

    /// This many of `of` blocks are no longer held, and nobody knows which: the sizes shrink in proportion.
    pub(crate) fn forget(&self, blocks: u64, of: u64) {
        let Self { blocks: number, taken, lsize, asize, data, metadata, prefetched, once, often } = self;
        for size in [number, taken, lsize, asize, data, metadata, prefetched, once, often] {
            let held = u128::from(size.load(Relaxed));
            sub(size, (held * u128::from(blocks)).checked_div(of.into()).unwrap_or(0) as u64);
        }
    }

    /// Adds them to the statistics of the tier.
    pub(crate) fn add_to(&self, stats: &mut L2Stats) {
        stats.l2_size += self.lsize.load(Relaxed);
        stats.l2_asize += self.asize.load(Relaxed);
        stats.l2_bufc_data_asize += self.data.load(Relaxed);
        stats.l2_bufc_metadata_asize += self.metadata.load(Relaxed);
        stats.l2_prefetch_asize += self.prefetched.load(Relaxed);
        stats.l2_mru_asize += self.once.load(Relaxed);
        stats.l2_mfu_asize += self.often.load(Relaxed);
    }
}
