//! What the default policy costs in memory, counted at the allocator: at most 40 bytes for each cached block, ghosts
//! and miniatures included, in a cache of a quarter of a million blocks or more. (The miniatures are at most a megabyte,
//! however large or small the cache is.)
#![expect(unsafe_code, reason = "an allocator that counts; everything is passed to the system's")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may panic: that is how it fails; what it measured is for whoever asks with --nocapture"
)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicBool, AtomicIsize, Ordering::Relaxed},
};

use cache::{Adaptive, Block, Index, Policy, Slot, mix};

struct Counting;

/// Only what is allocated while a policy is being called counts.
static IN_POLICY: AtomicBool = AtomicBool::new(false);
static LIVE: AtomicIsize = AtomicIsize::new(0);

fn count(bytes: isize) {
    if IN_POLICY.load(Relaxed) {
        LIVE.fetch_add(bytes, Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator with the arguments it came with.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller keeps `dealloc`'s contract.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: the caller keeps `realloc`'s contract.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn in_policy<T>(call: impl FnOnce() -> T) -> T {
    IN_POLICY.store(true, Relaxed);
    let result = call();
    IN_POLICY.store(false, Relaxed);
    result
}

#[test]
fn forty_bytes_for_each_cached_block() {
    // Blocks of 1 unit, and of 8 to 40 in a capacity in units: sectors, as a cache of compressed blocks counts.
    for (blocks, sizes) in [(1_u64 << 18, 1..2), (1 << 18, 8..41_u64)] {
        let mean = (sizes.start + sizes.end - 1) / 2;
        let capacity = blocks * mean;
        LIVE.store(0, Relaxed);
        let mut policy = in_policy(|| Adaptive::new(capacity));
        let mut places = Index::default();
        let mut ids: Vec<u64> = Vec::new();
        let mut gone: Vec<Slot> = Vec::with_capacity(1 << 16);
        for k in 0..12 * blocks {
            let unit = (mix(k) >> 11) as f64 / (1_u64 << 53) as f64;
            let id = mix((unit.powi(3) * (16 * blocks) as f64) as u64);
            if let Some(slot) = places.get(id) {
                in_policy(|| policy.hit(Slot(slot)));
                continue;
            }
            let size = (sizes.start + id % (sizes.end - sizes.start)) as u32;
            let slot = in_policy(|| policy.insert(Block { id, size }, &mut |slot| gone.push(slot))).unwrap();
            for slot in gone.drain(..) {
                places.remove(ids[slot.0 as usize]);
            }
            if ids.len() <= slot.0 as usize {
                ids.resize(slot.0 as usize + 1, 0);
            }
            ids[slot.0 as usize] = id;
            places.insert(id, slot.0);
        }
        let per_block = LIVE.load(Relaxed) as f64 / places.len() as f64;
        let said = policy.memory() as f64 / places.len() as f64;
        println!(
            "{} blocks of mean size {mean}: {per_block:.1} bytes a block, it says {said:.1}",
            places.len()
        );
        assert!(per_block <= 40.0, "{per_block:.1} bytes a block");
        assert!((per_block - said).abs() < 0.5, "{per_block:.1} allocated, {said:.1} admitted");
        in_policy(|| drop(policy));
    }
}
