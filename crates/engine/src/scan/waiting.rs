//! Blocks that a scan has found and not yet read: the lowest ones, in the order of the devices, and never one that was
//! freed since.
//!
//! ```text
//!   walk of the metadata ─ offer ─▶ ┌ lowest … highest ┐ ─ too many ─▶ for the next pass
//!                                   └──┬───────────────┘
//!          released by the pool ─ out ─┘     └─ take ─▶ a batch, pinned
//! ```
//!
//! The order is by offset first, so that all top-level devices are swept at the same time. A block of several copies is
//! where its first is.
//!
//! During a walk the trees of one committed state are read while later transaction groups free blocks of it; what is
//! freed then is remembered until the walk is over, or a block could be offered after it was freed. There is no end to what
//! may be freed beside a long walk, so that has to fit the same memory: where it does not, the highest are left for the next
//! pass, and whether they were freed is forgotten with them.
//!
//! A pass reads all metadata again, so there must not be one for each bit of data that fits the memory: what is below its
//! *floor* is not left for the next, but has to be taken in the middle of the walk when there is no room for more.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use ondisk::blkptr::{BlkPtr, Dva};
use parking_lot::Mutex;
use pool::Bookmark;

use crate::alloc::{Horizon, Pin, Releases};

/// Where a block is, in the order of a scan: offset, top-level device.
pub(super) type Key = (u64, u32);

/// Memory one waiting block takes, roughly.
const COST: usize = 224;
/// The same of one that was released.
const RELEASED_COST: usize = 32;
/// Waiting blocks that there is room for whatever the memory.
const LEAST: usize = 16;

/// Batches under way: enough that every leaf has the next one queued.
pub(super) const BATCHES: usize = 4;
/// Stored bytes of a batch: as much as a quarter of what may wait takes of memory, within these bounds. Longer ones gain
/// nothing, shorter ones leave devices idle between them.
const BATCH_BYTES: (usize, usize) = (256 << 10, 8 << 20);

/// A batch: its blocks, and what keeps their space from being used again.
pub(super) struct Batch {
    pub(super) first: Key,
    pub(super) blocks: Vec<(BlkPtr, Bookmark)>,
    pub(super) pin: Pin,
    _in_flight: InFlight,
}

/// Bytes of a batch that is being read: of all copies and of parity.
struct InFlight {
    sum: Arc<AtomicU64>,
    bytes: u64,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.sum.fetch_sub(self.bytes, Relaxed);
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Waiting {
    horizon: Arc<Horizon>,
    state: Mutex<State>,
    /// Bytes that may be taken by blocks which wait and those that were released, and as many for those that are being read.
    memory: AtomicUsize,
    in_flight: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct State {
    blocks: BTreeMap<Key, (BlkPtr, Bookmark)>,
    /// Where the pass begins: those below were read.
    from: Key,
    /// Those below this offset are read in this pass.
    floor: u64,
    /// The lowest that had no room.
    limit: Option<Key>,
    /// Allocated bytes of those in `blocks`.
    bytes: u64,
    /// During a walk: what was released since it began, of what may still be offered.
    released: Option<BTreeSet<Key>>,
}

impl State {
    /// Bytes of memory.
    fn taken(&self) -> usize {
        self.blocks.len() * COST + self.released.as_ref().map_or(0, BTreeSet::len) * RELEASED_COST
    }

    /// Leaves the highest for the next pass until all takes no more than `memory` bytes, or is below the floor. Those that
    /// were released cannot be taken: of them there are no more than half of it holds.
    fn fit(&mut self, memory: usize) {
        while self.taken() > memory {
            let block = self.blocks.last_key_value().map(|(key, _)| *key);
            let released = self.released.as_ref().and_then(BTreeSet::last).copied();
            let Some(highest) = block.max(released) else { return };
            let count = self.released.as_ref().map_or(0, BTreeSet::len);
            if highest.0 < self.floor && count * RELEASED_COST <= memory / 2 {
                return;
            }
            if let Some((bp, _)) = self.blocks.remove(&highest) {
                self.bytes -= bp.asize();
            }
            if let Some(released) = &mut self.released {
                released.remove(&highest);
            }
            self.limit = Some(highest);
        }
    }
}

impl Releases for Waiting {
    fn released(&self, dva: &Dva) {
        let key = (dva.offset, dva.vdev);
        let mut state = self.state.lock();
        if let Some((bp, _)) = state.blocks.remove(&key) {
            state.bytes -= bp.asize();
        }
        // The others are offered by a later walk, if at all, which is of a state that does not have them.
        if key < state.from || state.limit.is_some_and(|limit| key >= limit) {
            return;
        }
        if let Some(released) = &mut state.released
            && released.insert(key)
        {
            state.fit(self.room());
        }
    }
}

impl Waiting {
    /// Takes up to `memory` bytes.
    pub(super) fn new(horizon: Arc<Horizon>, memory: usize) -> Self {
        Self { horizon, state: Mutex::default(), memory: AtomicUsize::new(memory), in_flight: Arc::default() }
    }

    /// Takes up to `memory` bytes from now on; what waits already stays until there is more.
    pub(super) fn set_memory(&self, memory: usize) {
        self.memory.store(memory, Relaxed);
    }

    /// Bytes that those which wait or were released take, and those that are being read.
    pub(super) fn memory(&self) -> u64 {
        self.state.lock().taken() as u64 + self.in_flight.load(Relaxed)
    }

    /// Stored bytes of a batch, halved as often as the last ones took too long.
    pub(super) fn batch_bytes(&self, halved: u32) -> u64 {
        let (least, most) = BATCH_BYTES;
        let bytes = (self.memory.load(Relaxed) / BATCHES).clamp(least, most) as u64;
        bytes.checked_shr(halved).unwrap_or(0).max(1)
    }

    /// A walk begins: of a state that is committed after this returns, and for blocks from this one on. Those within the
    /// first `span` bytes are read in this pass.
    pub(super) fn begin(&self, from: Key, span: u64) {
        let (floor, released) = (from.0.saturating_add(span), Some(BTreeSet::new()));
        *self.state.lock() = State { from, floor, released, ..State::default() };
    }

    /// Whether some have to be taken before more are offered.
    pub(super) fn is_full(&self) -> bool {
        self.state.lock().taken() > self.room()
    }

    /// Bytes that those which wait and those that were released may take.
    fn room(&self) -> usize {
        self.memory.load(Relaxed).max(LEAST * COST)
    }

    /// The walk is over. Returns where the next one has to begin, if not all had room.
    pub(super) fn end(&self) -> Option<Key> {
        let mut state = self.state.lock();
        state.released = None;
        state.limit
    }

    /// Forgets everything.
    pub(super) fn clear(&self) {
        *self.state.lock() = State::default();
    }

    /// A block that is to be read.
    pub(super) fn offer(&self, bp: &BlkPtr, at: Bookmark) {
        let Some(first) = bp.dvas().next() else { return };
        let key = (first.offset, first.vdev);
        let mut state = self.state.lock();
        let state = &mut *state;
        if key < state.from
            || state.limit.is_some_and(|limit| key >= limit)
            || state.released.as_ref().is_some_and(|released| released.contains(&key))
        {
            return;
        }
        // Several pointers may lead to one block: cloned, deduplicated.
        if state.blocks.insert(key, (*bp, at)).is_none() {
            state.bytes += bp.asize();
        }
        state.fit(self.room());
    }

    /// The lowest blocks, up to `bytes` stored ones and `most` of them; none if there are none.
    pub(super) fn take(&self, bytes: u64, most: usize) -> Option<Batch> {
        let mut state = self.state.lock();
        let (mut blocks, mut sum, mut first, mut allocated) = (Vec::new(), 0, None, 0);
        while sum < bytes && blocks.len() < most {
            let Some((key, block)) = state.blocks.pop_first() else { break };
            first.get_or_insert(key);
            state.bytes -= block.0.asize();
            allocated += block.0.asize();
            sum += block.0.psize();
            blocks.push(block);
        }
        // Within the lock: what is released after this is held back, what was released before is not in the batch.
        first.map(|first| {
            self.in_flight.fetch_add(allocated, Relaxed);
            let in_flight = InFlight { sum: Arc::clone(&self.in_flight), bytes: allocated };
            Batch { first, blocks, pin: self.horizon.pin(), _in_flight: in_flight }
        })
    }

    /// Allocated bytes of those that wait.
    pub(super) fn bytes(&self) -> u64 {
        self.state.lock().bytes
    }
}

#[cfg(test)]
mod tests {
    use ondisk::{Order, blkptr::Stored, dnode::ObjectType};

    use super::*;

    fn block(offset: u64) -> BlkPtr {
        let dva = Dva { vdev: 0, offset, asize: 512, gang: false };
        BlkPtr::stored(&Stored {
            dvas: [dva, Dva::default(), Dva::default()],
            lsize: 512,
            psize: 512,
            compression_id: 2,
            checksum_id: 7,
            object_type: ObjectType::ZVOL,
            level: 0,
            dedup: false,
            order: Order::Little,
            birth: 9,
            physical_birth: 9,
            fill: 1,
            checksum: [1; 4],
        })
        .unwrap()
    }

    #[test]
    fn the_lowest_stay_and_what_was_freed_is_never_given_out() {
        let waiting = Waiting::new(Arc::default(), 16 * COST);
        waiting.begin(Key::default(), 0);
        waiting.released(&Dva { vdev: 0, offset: 3 * 512, asize: 512, gang: false });
        for number in (0..40).rev() {
            waiting.offer(&block(number * 512), Bookmark::default());
        }
        let limit = waiting.end().unwrap();
        waiting.released(&Dva { vdev: 0, offset: 5 * 512, asize: 512, gang: false });
        let mut seen = Vec::new();
        while let Some(batch) = waiting.take(1024, 100) {
            assert!(batch.blocks.len() <= 2 && batch.first.0 < limit.0);
            seen.extend(batch.blocks.iter().map(|(bp, _)| bp.dvas().next().unwrap().offset / 512));
        }
        let expected: Vec<u64> = (0..limit.0 / 512).filter(|number| ![3, 5].contains(number)).collect();
        assert_eq!((seen, waiting.bytes()), (expected, 0));
    }

    /// What was freed beside a walk was remembered without bound, and nobody counted it.
    #[test]
    fn what_is_released_during_a_walk_shares_the_memory_of_what_waits() {
        let memory = 64 * COST;
        let waiting = Waiting::new(Arc::default(), memory);
        let from = (100 * 512, 0);
        waiting.begin(from, 0);
        let release =
            |number| waiting.released(&Dva { vdev: 0, offset: number * 512, asize: 512, gang: false });
        (90..110).for_each(release);
        assert_eq!(waiting.memory(), 10 * RELEASED_COST as u64, "the others are not offered in this pass");
        // Every other one of far more than there is room for, from both ends.
        for number in 0..50_000u64 {
            let number = if number % 2 == 0 { number } else { 100_000 - number };
            release(110 + number * 2);
            waiting.offer(&block((111 + number * 2) * 512), Bookmark::default());
            assert!(waiting.memory() <= memory as u64, "{} of {memory}", waiting.memory());
        }
        let limit = waiting.end().unwrap();
        assert!(limit > from, "it gets on");
        let mut seen = Vec::new();
        while let Some(batch) = waiting.take(1024, 100) {
            seen.extend(batch.blocks.iter().map(|(bp, _)| bp.dvas().next().unwrap().offset / 512));
        }
        let expected: Vec<u64> = (100..limit.0 / 512).filter(|n| *n > 110 && n % 4 == 3).collect();
        assert_eq!((seen, waiting.memory()), (expected, 0));
        // One that had no room, and was forgotten as released, is not offered in this pass.
        waiting.begin(from, 0);
        (0..1000).for_each(|number| release(200 + number));
        waiting.offer(&block(1199 * 512), Bookmark::default());
        waiting.offer(&block(150 * 512), Bookmark::default());
        assert!(waiting.end().unwrap() <= (1199 * 512, 0));
        let batch = waiting.take(1 << 20, 100).unwrap();
        assert_eq!((batch.blocks.len(), batch.first), (1, (150 * 512, 0)));
    }

    #[test]
    fn what_is_below_the_floor_is_taken_in_the_middle_of_a_walk_and_not_left() {
        let waiting = Waiting::new(Arc::default(), LEAST * COST);
        waiting.begin((100 * 512, 0), 400 * 512);
        let mut seen = Vec::new();
        // In an order of its own.
        for number in (0..1000).map(|number| number * 389 % 1000) {
            waiting.offer(&block(number * 512), Bookmark::default());
            if waiting.is_full() {
                while let Some(batch) = waiting.take(1 << 20, 100) {
                    seen.extend(batch.blocks.iter().map(|(bp, _)| bp.dvas().next().unwrap().offset / 512));
                }
            }
        }
        let limit = waiting.end().unwrap().0 / 512;
        while let Some(batch) = waiting.take(1 << 20, 100) {
            seen.extend(batch.blocks.iter().map(|(bp, _)| bp.dvas().next().unwrap().offset / 512));
        }
        seen.sort_unstable();
        let below: Vec<u64> = seen.iter().copied().filter(|number| *number < limit).collect();
        assert!(limit >= 500 && below == (100..limit).collect::<Vec<u64>>(), "{limit}: {below:?}");
        assert!(seen.len() < 500, "of the rest not more than had room: {}", seen.len());
        // What is released could fill it all the same.
        waiting.begin(Key::default(), 1 << 40);
        let release =
            |number: u64| waiting.released(&Dva { vdev: 0, offset: number * 512, asize: 512, gang: false });
        (0..10_000).for_each(release);
        assert!(!waiting.is_full() && waiting.memory() <= (LEAST * COST) as u64, "{}", waiting.memory());
    }

    /// Four batches of 8 MiB were read at a time whatever the daemon might have, and nobody counted them.
    #[test]
    fn what_is_read_at_a_time_follows_what_memory_there_is_and_is_counted() {
        let waiting = Waiting::new(Arc::default(), 192 << 20);
        assert_eq!(waiting.batch_bytes(0), 8 << 20);
        waiting.set_memory(4 << 20);
        assert_eq!(waiting.batch_bytes(0), 1 << 20, "of four");
        waiting.set_memory(0);
        assert_eq!((waiting.batch_bytes(0), waiting.batch_bytes(4)), (256 << 10, 16 << 10));
        waiting.begin(Key::default(), 0);
        (0..10).for_each(|number| waiting.offer(&block(number * 512), Bookmark::default()));
        waiting.end();
        let batches: Vec<Batch> = (0..2).filter_map(|_| waiting.take(1024, 100)).collect();
        assert_eq!(waiting.memory(), 6 * COST as u64 + 4 * 512);
        drop(batches);
        assert_eq!(waiting.memory(), 6 * COST as u64);
    }
}
