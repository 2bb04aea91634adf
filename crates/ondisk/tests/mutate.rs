//! Millions of damaged structures, on a stable toolchain: no decoder may panic, hang or eat memory.
//!
//! Seeds are real structures (`tests/vectors/seeds.txt`) in both byte orders where our own encoders can swap
//! them. Each input is a seed with a few mutations, all derived from one number, so that a failure prints what
//! replays it: `MILLPOND_FUZZ_TARGET=… MILLPOND_FUZZ_SEED=… MILLPOND_FUZZ_ITERATIONS=1`.
//!
//! The default is a short dose for `make test`. `MILLPOND_FUZZ_ITERATIONS=10000000` is the campaign of `make fuzz`:
//! that many inputs over all targets together. Bounds for each single input: [`MEMORY_BYTES_MAX`] of heap beyond
//! what was there before it, and [`SECONDS_MAX`] of time.
#![allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::let_underscore_must_use,
    reason = "a test may fail loudly, and is the one to say what time it is"
)]

#[path = "../../../fuzz/bodies.rs"]
mod bodies;
mod seeds;

use seeds::real_structures;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Most heap one input may take at any moment.
const MEMORY_BYTES_MAX: isize = 64 << 20;
/// Most time one input may take; the slowest known takes milliseconds.
const SECONDS_MAX: u64 = 20;
/// The dose without `MILLPOND_FUZZ_ITERATIONS`.
const SHORT_DOSE: u64 = 350_000;
/// Longest mutated input: larger ones only make mutations rarer.
const INPUT_BYTES_MAX: usize = 40 << 10;

/// Counts each thread's live heap bytes and remembers the peak.
struct Counting;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(change: isize) {
    let live = LIVE.get() + change;
    LIVE.set(live);
    if live > PEAK.get() {
        PEAK.set(live);
    }
}

#[expect(unsafe_code, reason = "a counting allocator can only be written against GlobalAlloc")]
// SAFETY: every call goes to `System` unchanged; counting touches two thread-local integers and allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed());
        // SAFETY: `pointer` came from `System` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size.cast_signed() - layout.size().cast_signed());
        // SAFETY: `pointer` came from `System` with this layout; the caller vouches for `size`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// SplitMix64: small, seedable, and good enough to choose bytes.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `end` (0 for 0).
    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % (end.max(1) as u64)).unwrap()
    }
}

/// Numbers that sit on borders.
const EDGES: [u64; 16] = [
    0,
    1,
    2,
    7,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 32,
    1 << 47,
    u64::MAX >> 1,
    1 << 63,
    u64::MAX,
];

fn mutate(input: &mut Vec<u8>, seeds: &[Vec<u8>], random: &mut Random) {
    for _ in 0..=random.below(6) {
        let len = input.len();
        let at = random.below(len);
        match random.below(12) {
            0 => input.truncate(at),
            1 => {
                let extra = random.below(64);
                let fill = random.next().to_le_bytes()[0];
                input.resize((len + extra).min(INPUT_BYTES_MAX), fill);
            }
            2 if len > 0 => input[at] = random.next().to_le_bytes()[0],
            3 if len > 0 => input[at] ^= 1 << random.below(8),
            4 => {
                let end = (at + 1 + random.below(64)).min(len);
                input[at.min(end)..end].fill(0);
            }
            5 => {
                let (from, size) = (random.below(len), random.below(64));
                let piece = input[from..(from + size).min(len)].to_vec();
                let end = (at + piece.len()).min(len);
                let room = end - at.min(end);
                input[at.min(end)..end].copy_from_slice(&piece[..room]);
            }
            6 => {
                let other = &seeds[random.below(seeds.len())];
                input.truncate(at);
                input.extend_from_slice(&other[at.min(other.len())..]);
            }
            // Headers are at the start and decide most: aim there half of the time.
            choice => {
                let width = [1, 2, 4, 8][random.below(4)];
                let near = if choice < 10 { len.min(192) } else { len };
                let at = 1 + random.below(near) / width * width;
                let edge =
                    EDGES[random.below(EDGES.len())].wrapping_add(random.below(3) as u64).wrapping_sub(1);
                let bytes = edge.to_le_bytes();
                let big = random.below(2) == 0;
                for index in 0..width {
                    if let Some(place) = input.get_mut(at + index) {
                        *place = if big { bytes[width - 1 - index] } else { bytes[index] };
                    }
                }
            }
        }
    }
}

/// Inputs to start from: each real structure under both orders and some variants; for targets without one of
/// their own, structures of similar shape.
fn seeds_of(target: &str, structures: &[(String, Vec<u8>)]) -> Vec<Vec<u8>> {
    let stand_in = match target {
        "gang" => "blkptr",
        "scan" => "dsl_dataset",
        "zpl" => "sa",
        "ddt" => "zap_fat_leaf",
        "embedded_checksum" => "zil_block",
        own => own,
    };
    let mut seeds = Vec::new();
    for (name, bytes) in structures {
        if name != stand_in {
            continue;
        }
        for choice in [0u8, 1, 2, 3, 4, 6] {
            let swapped = choice & 1 == 1;
            let mut seed = vec![choice];
            if swapped {
                // Eight bytes at a time: right for the many structures made of words, a mutation for the others.
                seed.extend(bytes.chunks(8).flat_map(|word| word.iter().rev().copied()));
            } else {
                seed.extend_from_slice(bytes);
            }
            seeds.push(seed);
        }
    }
    if target == "gang" {
        // Three members and the trailer's magic number: what a gang header is.
        let members: Vec<_> = structures.iter().filter(|(name, _)| name == "blkptr").take(3).collect();
        let mut header: Vec<u8> = members.iter().flat_map(|(_, bytes)| bytes.iter().copied()).collect();
        header.resize(472, 0);
        header.extend(ondisk::zil::CHECKSUM_MAGIC.to_le_bytes());
        header.resize(512, 0);
        seeds = vec![[vec![0], header].concat()];
    }
    if target == "ddt" {
        for length in [72, 256] {
            seeds.extend([0x82, 0x02].map(|first| [vec![0, first], vec![3; length]].concat()));
        }
    }
    assert!(!seeds.is_empty(), "no seed for target {target}");
    seeds
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    let parsed = text.strip_prefix("0x").map_or_else(|| text.parse(), |hex| u64::from_str_radix(hex, 16));
    Some(parsed.unwrap_or_else(|_| panic!("{variable} is not a number: {text}")))
}

/// Says how to repeat the input being run if it panics.
struct Replay<'a> {
    target: &'a str,
    seed: u64,
}

impl Drop for Replay<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { target, seed } = self;
            eprintln!(
                "replay: MILLPOND_FUZZ_TARGET={target} MILLPOND_FUZZ_SEED={seed:#x} MILLPOND_FUZZ_ITERATIONS=1 \
                 cargo test -p millpond-ondisk --test mutate -- --nocapture"
            );
        }
    }
}

/// Counts a thread as finished however it ends, so that the watchdog ends, too.
struct Finished<'a>(&'a AtomicU64);

impl Drop for Finished<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

/// Runs input `seed` of a target and returns the heap bytes it took.
fn run(target: &str, body: fn(&[u8]), seeds: &[Vec<u8>], seed: u64) -> isize {
    let mut random = Random(seed);
    let mut input = seeds[random.below(seeds.len())].clone();
    mutate(&mut input, seeds, &mut random);
    let replay = Replay { target, seed };
    let before = LIVE.get();
    PEAK.set(before);
    body(&input);
    let used = PEAK.get() - before;
    assert!(
        used <= MEMORY_BYTES_MAX,
        "{target}: {used} bytes of memory for an input of {} bytes",
        input.len()
    );
    drop(replay);
    used
}

#[test]
fn undamaged_structures_survive_their_targets() {
    for (name, bytes) in &real_structures() {
        let (_, body) =
            bodies::TARGETS.iter().find(|(target, _)| target == name).expect("a target for each seed");
        body(&[vec![0], bytes.clone()].concat());
    }
}

#[test]
fn mutated_structures_never_panic_hang_or_eat_memory() {
    let iterations = number("MILLPOND_FUZZ_ITERATIONS").unwrap_or(SHORT_DOSE);
    let base = number("MILLPOND_FUZZ_SEED").unwrap_or(0x6d69_6c6c_706f_6e64);
    let only = std::env::var("MILLPOND_FUZZ_TARGET").ok();
    let structures = real_structures();
    let targets: Vec<_> =
        bodies::TARGETS.iter().filter(|(name, _)| only.as_deref().is_none_or(|only| only == *name)).collect();
    assert!(!targets.is_empty(), "no target {only:?}");
    let per_target = iterations.div_ceil(targets.len() as u64);

    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get() as u64);
    // What each thread is doing, for the watchdog: (inputs finished, seed running).
    let progress: Vec<_> = (0..threads).map(|_| (AtomicU64::new(0), AtomicU64::new(0))).collect();
    let started = Instant::now();
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for (thread, (finished, running)) in (0..threads).zip(&progress) {
            let (targets, structures, done) = (&targets, &structures, &done);
            scope.spawn(move || {
                let _finished = Finished(done);
                for (name, body) in targets.iter().copied() {
                    let seeds = seeds_of(name, structures);
                    let mut peak = 0;
                    let mut slowest = Duration::ZERO;
                    for index in (thread..per_target).step_by(threads as usize) {
                        let seed = base.wrapping_add(index);
                        running.store(seed, Ordering::Relaxed);
                        let start = Instant::now();
                        peak = peak.max(run(name, *body, &seeds, seed));
                        slowest = slowest.max(start.elapsed());
                        finished.fetch_add(1, Ordering::Relaxed);
                    }
                    if thread == 0 {
                        println!("{name:20} {per_target:8} inputs, peak {peak:8} bytes, slowest {slowest:?}");
                    }
                }
            });
        }
        let (progress, done) = (&progress, &done);
        scope.spawn(move || {
            let mut seen: Vec<(u64, Instant)> = progress.iter().map(|_| (u64::MAX, Instant::now())).collect();
            while done.load(Ordering::Acquire) < threads {
                std::thread::sleep(Duration::from_millis(100));
                for ((finished, running), (last, since)) in progress.iter().zip(&mut seen) {
                    let now = finished.load(Ordering::Relaxed);
                    if now != *last {
                        (*last, *since) = (now, Instant::now());
                    } else if since.elapsed().as_secs() > SECONDS_MAX && done.load(Ordering::Acquire) == 0 {
                        eprintln!("hang: MILLPOND_FUZZ_SEED={:#x}", running.load(Ordering::Relaxed));
                        std::process::exit(101);
                    }
                }
            }
        });
    });
    let total = per_target * targets.len() as u64;
    println!("{total} inputs over {} targets in {:?}", targets.len(), started.elapsed());
}
