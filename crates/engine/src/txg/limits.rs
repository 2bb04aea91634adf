//! How much may be dirty, and how writers are slowed down before that.
//!
//! With `d` dirty bytes of at most `max`, and delays beginning at `from`:
//! `delay = scale · (d − from) / (max − d)`, at most 100 ms. The curve is flat at first and
//! vertical at the limit, so the amount of dirty data settles where writers arrive as fast as the devices
//! write. Facts: docs/format/txg-and-throttle.md §2.

use std::time::Duration;

/// How long one delayed writer may be delayed at most.
pub(super) const DELAY_MAX: Duration = Duration::from_millis(100);

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

    /// Dirty bytes from which on the open group is synced without waiting for the timeout.
    pub(super) fn sync_from(&self) -> u64 {
        self.dirty_max / 5
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
