//! What is read before anybody asks for it: how much of that is in memory at a time.
//!
//! Requests wait for room before their data is read. What is read ahead of them is in no such account, and in that of the
//! cache only when it has come. So each pool has a bound for it, which whoever gives out memory sets.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

/// Bytes at a time, as long as nobody says otherwise.
const MOST: u64 = 64 << 20;
/// Bytes that are counted as one.
const UNIT: u64 = 4 << 10;
/// How long is waited for room, half as long as a reader waits for what is being fetched. Devices that do not answer may hold
/// all of it; who asks for the blocks reads them by himself then, from others.
const PATIENCE: Duration = Duration::from_millis(500);

/// The room of one pool for what is read ahead.
#[derive(Debug)]
pub(super) struct Ahead(ArcSwap<Room>);

#[derive(Debug)]
struct Room {
    units: u32,
    free: Arc<Semaphore>,
}

impl Default for Ahead {
    fn default() -> Self {
        Self(ArcSwap::from_pointee(Room::new(units(MOST))))
    }
}

impl Ahead {
    /// So many bytes at a time from now on. What is under way ends in the room in which it began.
    pub(super) fn set_max(&self, bytes: u64) {
        let units = units(bytes);
        if self.0.load().units != units {
            self.0.store(Arc::new(Room::new(units)));
        }
    }

    /// Room for so many bytes, to be held until they have come; what is larger than all there is takes all of it. None if
    /// there is none in time.
    pub(super) async fn take(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        let room = self.0.load_full();
        let turn = Arc::clone(&room.free).acquire_many_owned(units(bytes).min(room.units));
        // Nobody closes it.
        timeout(PATIENCE, turn).await.ok()?.ok()
    }
}

impl Room {
    fn new(units: u32) -> Self {
        Self { units, free: Arc::new(Semaphore::new(units as usize)) }
    }
}

fn units(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_block_that_is_larger_than_all_the_room_takes_it_alone_and_nobody_waits_for_long() {
        let ahead = Ahead::default();
        ahead.set_max(1 << 20);
        let large = ahead.take(16 << 20).await.unwrap();
        assert!(ahead.take(1).await.is_none());
        drop(large);
        let small = ahead.take(1).await.unwrap();
        assert!(ahead.take(1 << 20).await.is_none());
        // It ends in the room in which it began.
        ahead.set_max(2 << 20);
        let all = ahead.take(2 << 20).await.unwrap();
        drop(small);
        assert!(ahead.take(1).await.is_none());
        drop(all);
        assert!(ahead.take(2 << 20).await.is_some());
    }
}
