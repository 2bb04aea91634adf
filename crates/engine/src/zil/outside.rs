//! Data outside of a log, which its records point to: how much of it is in memory at a time.
//!
//! A log block may hold more than six hundred records, each of which points to a block of a MiB or more. So whoever follows
//! logs takes the records of a block in portions, in their order, and all who follow one share a budget: what came of
//! a crash can be imported with the memory that there was before it.

use tokio::sync::{Semaphore, SemaphorePermit};

/// Bytes that a portion brings into memory at most, unless it is a single record.
const PORTION: u64 = 8 << 20;
/// Bytes that all chains have in memory at once; a block that is larger has all of it.
const MOST: u64 = 64 << 20;
/// Bytes that are counted as one.
const UNIT: u64 = 4 << 10;

/// Cuts records into portions, with the bytes that each brings into memory; `bytes` says that of a record.
pub(super) fn portions<T>(records: &[T], bytes: impl Fn(&T) -> u64) -> Vec<(&[T], u64)> {
    let mut portions = Vec::new();
    let (mut start, mut sum) = (0, 0_u64);
    for (number, record) in records.iter().enumerate() {
        let more = bytes(record);
        if number > start && sum.saturating_add(more) > PORTION {
            portions.push((&records[start..number], sum));
            (start, sum) = (number, 0);
        }
        sum = sum.saturating_add(more);
    }
    if start < records.len() {
        portions.push((&records[start..], sum));
    }
    portions
}

/// The memory for portions, shared by all chains that are followed at once.
#[derive(Debug)]
pub(super) struct Budget(Semaphore);

impl Budget {
    pub(super) fn new() -> Self {
        Self(Semaphore::new(units(MOST) as usize))
    }

    /// Waits until a portion of so many bytes may be read. To be held as long as it is in memory.
    pub(super) async fn take(&self, bytes: u64) -> Option<SemaphorePermit<'_>> {
        // Nobody closes it.
        self.0.acquire_many(units(bytes)).await.ok()
    }
}

/// What is counted for so many bytes, at most all there is.
fn units(bytes: u64) -> u32 {
    bytes.min(MOST).div_ceil(UNIT) as u32
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    /// All that a log block points to was read at once: 681 MiB, and an import that was ended for lack of memory was ended
    /// again each time.
    #[test]
    fn no_portion_of_a_log_block_brings_much_into_memory() {
        let full = vec![1 << 20; 681];
        let mixed = vec![0, 0, PORTION + 1, 0, PORTION, 1, 1, u64::MAX, u64::MAX, 0];
        for sizes in [full, mixed, vec![0; 681], Vec::new()] {
            let cut = portions(&sizes, |size| *size);
            let again: Vec<u64> = cut.iter().flat_map(|(some, _)| some.iter().copied()).collect();
            assert_eq!(again, sizes, "all of them, in their order");
            for (some, bytes) in &cut {
                assert_eq!(some.iter().copied().fold(0, u64::saturating_add), *bytes);
                assert!(some.len() == 1 || (!some.is_empty() && *bytes <= PORTION), "{some:?}");
            }
            // No more of them than it takes: what is small is still read together.
            assert!(cut.windows(2).all(|pair| pair[0].1.saturating_add(pair[1].0[0]) > PORTION), "{cut:?}");
        }
    }

    #[tokio::test]
    async fn chains_wait_for_each_other_rather_than_have_more_in_memory_together() {
        let budget = Budget::new();
        let large = budget.take(u64::MAX).now_or_never().expect("it is alone");
        assert!(budget.take(1).now_or_never().is_none());
        assert!(budget.take(0).now_or_never().is_some(), "who reads nothing waits for nobody");
        drop(large);
        let all: Vec<_> = (0..MOST / PORTION).map(|_| budget.take(PORTION).now_or_never()).collect();
        assert!(all.iter().all(|taken| matches!(taken, Some(Some(_)))));
        assert!(budget.take(PORTION).now_or_never().is_none());
        drop(all);
        assert!(budget.take(MOST).now_or_never().is_some());
    }
}
