//! What a transaction group takes in memory beside the data that clients wrote, until it is durable, and how much that may be.
//!
//! * *Kept*: what histories hold that is nobody else's: parity, compressed forms, copies that were filled up to a sector, and
//!   their entries. With small blocks on RAIDZ it is several times what was written. When there is enough of it, what was
//!   written so far is secured, and histories begin anew.
//! * *Under way*: transfers, whose parts may have been joined in a buffer of their own. Whoever makes more waits.
//!
//! Both are looked at after each block, so that a block, and a transfer of each leaf that it ends, are the most they go beyond
//! what they may have; with little memory transfers are shorter. What was written itself is not counted here: a volume has it in
//! memory until its group is durable, whatever happens here, and it is as much as may be dirty at most.
//!
//! The writer counts, whoever watches over memory reads, and says how much it may be.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use disk::IoBuf;
use memory::bell::{Bell, Steps};

use super::layout::SECTOR_MAX;

/// Bytes under way, beyond which whoever makes more has to wait: half a second of a slow disk, and enough for the queues of
/// a dozen fast ones.
const UNDER_WAY_BYTES: u64 = 32 << 20;
/// Longest transfer. Beyond 1 MiB no device gains, and readers wait behind it; the shortest that is still one.
const TRANSFER_MAX: u64 = 1 << 20;
const TRANSFER_MIN: u64 = 128 << 10;
/// Transfers of which what is under way consists at least. A block may end one on each leaf at once.
const TRANSFERS: u64 = UNDER_WAY_BYTES / TRANSFER_MAX;
/// Bytes kept where nobody says how many: seconds of what devices take, so that the flushes cost little.
const KEPT_BYTES: u64 = 256 << 20;
/// What a piece of a block takes beside its bytes: an entry of a history (40 bytes), one of a run (32) and its place (16), in
/// lists that double when they are full.
const PIECE_BYTES: u64 = 128;

/// See the module.
#[derive(Debug)]
pub(crate) struct Held {
    kept: AtomicU64,
    kept_max: AtomicU64,
    under_way: AtomicU64,
    under_way_max: AtomicU64,
    /// Tells of what is kept. What is under way comes and goes too fast to be told, and is reckoned with as a whole.
    steps: Steps,
}

impl Default for Held {
    fn default() -> Self {
        Self {
            kept: AtomicU64::new(0),
            kept_max: AtomicU64::new(KEPT_BYTES),
            under_way: AtomicU64::new(0),
            under_way_max: AtomicU64::new(UNDER_WAY_BYTES),
            steps: Steps::default(),
        }
    }
}

impl Held {
    /// All of it may be so many bytes: half of them kept, half under way, and no more than a fast pool has use for.
    pub(crate) fn set_most(&self, bytes: u64) {
        self.kept_max.store((bytes / 2).min(KEPT_BYTES), Relaxed);
        self.under_way_max.store((bytes / 2).min(UNDER_WAY_BYTES), Relaxed);
    }

    /// The most it may be.
    pub(crate) fn most(&self) -> u64 {
        self.kept_max.load(Relaxed) + self.under_way_max.load(Relaxed)
    }

    /// Rings `bell` for every `step` bytes more that are kept. Once.
    pub(crate) fn attach(&self, bell: Arc<Bell>, step: u64) {
        self.steps.attach(bell, step);
    }

    /// Bytes it is now.
    pub(crate) fn bytes(&self) -> u64 {
        self.kept.load(Relaxed) + self.under_way.load(Relaxed)
    }

    /// The most that it may be before the bell is rung again.
    pub(crate) fn at_most(&self) -> u64 {
        let under_way = self.under_way.load(Relaxed);
        let begun = if under_way > 0 { under_way.max(self.under_way_max.load(Relaxed)) } else { 0 };
        self.steps.at_most(self.kept.load(Relaxed)) + begun
    }

    /// Whether what is kept is to be secured.
    pub(super) fn is_enough_kept(&self) -> bool {
        self.kept.load(Relaxed) >= self.kept_max.load(Relaxed)
    }

    /// Whether whoever makes more is to wait for what is under way.
    pub(super) fn is_enough_under_way(&self) -> bool {
        self.under_way.load(Relaxed) > self.under_way_max.load(Relaxed)
    }

    /// Bytes of the longest transfer, a whole number of sectors.
    pub(super) fn transfer_max(&self) -> u64 {
        let bytes = (self.under_way_max.load(Relaxed) / TRANSFERS).clamp(TRANSFER_MIN, TRANSFER_MAX);
        bytes / SECTOR_MAX as u64 * SECTOR_MAX as u64
    }

    /// A buffer of `len` bytes was made for what goes to the devices.
    pub(super) fn made(&self, len: usize) {
        self.keeps(IoBuf::capacity_for(len) as u64);
    }

    /// A piece was entered in a history.
    pub(super) fn entered(&self) {
        self.keeps(PIECE_BYTES);
    }

    fn keeps(&self, bytes: u64) {
        // The writer alone changes what is counted.
        let kept = self.kept.load(Relaxed) + bytes;
        self.kept.store(kept, Relaxed);
        self.steps.is_now(kept);
    }

    /// Histories are over.
    pub(super) fn forgot(&self) {
        self.kept.store(0, Relaxed);
        self.steps.is_now(0);
    }

    /// A transfer of so many bytes begins.
    pub(super) fn begins(&self, bytes: u64) {
        self.under_way.store(self.under_way.load(Relaxed) + bytes, Relaxed);
    }

    /// It is over.
    pub(super) fn ends(&self, bytes: u64) {
        self.under_way.store(self.under_way.load(Relaxed) - bytes, Relaxed);
    }
}
