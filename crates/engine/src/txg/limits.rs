//! How much may be dirty, and how writers are slowed down before that.
//!
//! With `d` dirty bytes of at most `max`, and delays beginning at `from`:
//! `delay = scale · (d − from) / (max − d)`, at most 100 ms. The curve is flat at first and
//! vertical at the limit, so the amount of dirty data settles where writers arrive as fast as the devices
//! write. Facts: docs/format/txg-and-throttle.md §2.
//!
//! A group is closed before its time when there is enough of it. The larger it may become the more of what is written is
//! written over before it gets to the devices; but they have nothing to do meanwhile, and it takes them longer. So it
//! depends on how fast they are ([`Pace`]; docs/decisions/0023).

use std::time::Duration;

/// How long one delayed writer may be delayed at most.
pub(super) const DELAY_MAX: Duration = Duration::from_millis(100);

/// A group that is closed because there is enough of it should be written in about this time.
const GROUP_TIME: Duration = Duration::from_secs(2);

/// How fast the last groups were written that were worth measuring: each counts half of the one after it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    bytes: u64,
    took: Duration,
    /// Bytes that would take [`GROUP_TIME`], at hand because every write asks; 0 before anything was measured.
    group: u64,
}

impl Pace {
    /// A group of so many bytes took so long. How much longer than it should does not matter: the pool may have been suspended
    /// meanwhile, and that is to be forgotten soon.
    pub(super) fn wrote(&mut self, bytes: u64, took: Duration) {
        self.bytes = (self.bytes / 2).saturating_add(bytes);
        self.took = (self.took / 2).saturating_add(took.min(GROUP_TIME * 8));
        let group = u128::from(self.bytes) * GROUP_TIME.as_nanos() / self.took.as_nanos().max(1);
        self.group = u64::try_from(group).unwrap_or(u64::MAX);
    }
}

/// The limits of one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes that may be dirty in all transaction groups together.
    pub dirty_max: u64,
    /// An open group is synced after this long at the latest.
    pub timeout: Duration,
    /// The delay where the curve is half way up, at 80 %.
    pub delay_scale: Duration,
}

impl Limits {
    /// For a machine with this many bytes of memory: a tenth of it, at most 4 GiB.
    #[must_use]
    pub fn for_memory(bytes: u64) -> Self {
        Self { dirty_max: (bytes / 10).clamp(32 << 20, 4 << 30), ..Self::default() }
    }

    /// Dirty bytes from which on the open group is synced without waiting for the timeout: what the devices write in
    /// [`GROUP_TIME`], between a fifth, which is what OpenZFS takes, and two fifths.
    pub(super) fn sync_from(&self, pace: &Pace) -> u64 {
        pace.group.clamp(self.dirty_max / 5, self.sync_with_above_from())
    }

    /// The same with indirect blocks counted.
    pub(super) fn sync_with_above_from(&self) -> u64 {
        self.dirty_max / 5 * 2
    }

    /// Bytes of a group from which on it says how fast the devices are; less would mostly say how long they take to flush.
    pub(super) fn telling(&self) -> u64 {
        self.dirty_max / 10
    }

    /// Dirty bytes from which on writers are delayed.
    pub(super) fn delay_from(&self) -> u64 {
        self.dirty_max / 5 * 3
    }

    /// The delay of a writer that finds `dirty` bytes.
    pub(super) fn delay(&self, dirty: u64) -> Option<Duration> {
        let over = dirty.checked_sub(self.delay_from()).filter(|over| *over > 0)?;
        let left = self.dirty_max.saturating_sub(dirty).max(1);
        let nanos = u128::from(over) * self.delay_scale.as_nanos() / u128::from(left);
        Some(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)).min(DELAY_MAX))
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { dirty_max: 1 << 30, timeout: Duration::from_secs(5), delay_scale: Duration::from_micros(500) }
    }
}
