//! Clients that share blocks but no bytes, against byte arrays.
//!
//! The volume is cut into runs of sectors whose borders fall inside blocks; each run belongs to one client, which
//! knows what must be in it. So most blocks are changed by two clients at once, in parts, while groups are closed
//! and committed under them. Each client remembers what its bytes were after each of its operations: whatever is
//! committed must be one of these states, never a mixture, never older than what was committed or flushed before.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use block::{BlockVolume as _, Durability, Segment, Segments, flatten};
use bytes::Bytes;
use parking_lot::Mutex;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

use super::{BLOCK, Lake, SIZE, service};
use crate::{dsl::Dirty, volume::Service};

const CLIENTS: usize = 4;
const SECTOR: u64 = 512;

/// Runs in turn, in sectors: inside a block, over a border, over several blocks.
const RUNS: [u64; 5] = [3, 11, 29, 5, 70];

/// A client's runs, as bytes.
fn runs_of(client: usize) -> Vec<std::ops::Range<u64>> {
    let (mut start, mut runs) = (0, Vec::new());
    for index in 0.. {
        let end = (start + RUNS[index % RUNS.len()] * SECTOR).min(SIZE);
        // Another owner each time, and not in step with the lengths.
        if (index * 7 + index / 3) % CLIENTS == client {
            runs.push(start..end);
        }
        if end == SIZE {
            return runs;
        }
        start = end;
    }
    runs
}

fn hash(image: &[u8], runs: &[std::ops::Range<u64>]) -> u64 {
    // Runs are whole sectors.
    let words = runs.iter().flat_map(|run| image[run.start as usize..run.end as usize].as_chunks::<8>().0);
    words.fold(0xcbf2_9ce4_8422_2325, |hash: u64, word| {
        (hash ^ u64::from_le_bytes(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    })
}

/// What is known of one client's operations.
#[derive(Default)]
struct Log {
    /// Its bytes after each operation, that under way included.
    states: Mutex<Vec<u64>>,
    /// States before this one must not be found on disk any more.
    durable: AtomicUsize,
}

struct World {
    lake: Lake,
    logs: Vec<Log>,
    running: AtomicUsize,
}

async fn client(world: Arc<World>, number: usize, seed: u64, operations: usize) {
    let (volume, log) = (&world.lake.volume, &world.logs[number]);
    let mut random = StdRng::seed_from_u64(seed ^ ((number as u64) << 32));
    let runs = runs_of(number);
    let mut twin = vec![0_u8; SIZE as usize];
    for operation in 1..=operations {
        let run = runs[random.random_range(0..runs.len())].clone();
        let from = random.random_range(run.start..run.end);
        let to = random.random_range(from + 1..=run.end);
        let (start, end) = (from as usize, to as usize);
        let durability =
            if random.random_bool(0.05) { Durability::Stable(block::Asked::Fua) } else { Durability::Cached };
        let what = random.random_range(0..10);
        let expected = twin[start..end].to_vec();
        let mut data = Segments::new();
        match what {
            0..4 => {
                while (data.iter().map(Segment::len).sum::<usize>()) < end - start {
                    let left = end - start - data.iter().map(Segment::len).sum::<usize>();
                    let len = random.random_range(1..=left);
                    let value = random.random();
                    data.push(match random.random_bool(0.2) {
                        true => Segment::Zero(len),
                        false => Segment::Data(Bytes::from(vec![value; len])),
                    });
                }
                twin[start..end].copy_from_slice(&flatten(&data));
            }
            4 => twin[start..end].fill(0),
            5 => {
                let (first, last) = (from.div_ceil(BLOCK) * BLOCK, to / BLOCK * BLOCK);
                if first < last {
                    twin[first as usize..last as usize].fill(0);
                }
            }
            _ => {}
        }
        let has_data = data.iter().any(|segment| matches!(segment, Segment::Data(_)));
        log.states.lock().push(hash(&twin, &runs));
        match what {
            0..4 => volume.write(from, data, durability).await.unwrap(),
            4 => volume.write_zeroes(from, to - from, random.random(), durability).await.unwrap(),
            5 => volume.unmap(from, to - from, durability).await.unwrap(),
            6 if random.random_bool(0.1) => {
                volume.flush().await.unwrap();
                log.durable.fetch_max(operation, Ordering::Relaxed);
            }
            6..8 => {
                if let Some(found) = volume.read_cached(from, end - start) {
                    assert_eq!(flatten(&found), expected, "seed {seed} client {number} at {operation}");
                }
            }
            _ => {
                let found = volume.read(from, end - start).await.unwrap();
                assert_eq!(flatten(&found), expected, "seed {seed} client {number} at {operation}");
            }
        }
        // It stands for all before it only if it changed something itself, and so waited for its group: what frees nothing
        // has nothing to wait for, and promises nothing of others.
        let has_changed = what < 4 && has_data;
        if durability != Durability::Cached && has_changed {
            log.durable.fetch_max(operation, Ordering::Relaxed);
        }
        if random.random_bool(0.3) {
            tokio::task::yield_now().await;
        }
    }
    for run in runs {
        let found = volume.read(run.start, (run.end - run.start) as usize).await.unwrap();
        assert_eq!(
            flatten(&found),
            twin[run.start as usize..run.end as usize],
            "seed {seed} client {number}"
        );
    }
    world.running.fetch_sub(1, Ordering::Relaxed);
}

/// Plays the syncing task until the clients are done and all is committed.
async fn syncer(world: Arc<World>, seed: u64) {
    let lake = &world.lake;
    let mut random = StdRng::seed_from_u64(seed);
    let mut image = vec![0_u8; SIZE as usize];
    let mut last = [0; CLIENTS];
    loop {
        let done = world.running.load(Ordering::Relaxed) == 0;
        let txg = lake.close().await;
        // Acknowledged as durable before this commit began: the commit must contain it.
        let floor: Vec<usize> = world.logs.iter().map(|log| log.durable.load(Ordering::Relaxed)).collect();
        for _ in 0..random.random_range(0..20) {
            tokio::task::yield_now().await;
        }
        let dirty = lake.commit(txg);
        apply(&mut image, &dirty);
        for (number, log) in world.logs.iter().enumerate() {
            let found = hash(&image, &runs_of(number));
            let states = log.states.lock();
            let from = last[number].max(floor[number]);
            let state = states[from..].iter().position(|state| *state == found).map(|at| from + at);
            let what = format!("seed {seed} txg {txg} client {number}");
            last[number] =
                state.unwrap_or_else(|| panic!("{what}: on disk is what never was, or is too old"));
            assert!(!done || states.last() == Some(&found), "{what}: something is missing in the end");
        }
        if done {
            return;
        }
        for _ in 0..random.random_range(0..60) {
            tokio::task::yield_now().await;
        }
    }
}

fn apply(image: &mut [u8], dirty: &Dirty) {
    for range in &dirty.freed {
        image[(range.start * BLOCK) as usize..(range.end * BLOCK) as usize].fill(0);
    }
    for (blkid, content) in &dirty.blocks {
        let start = (blkid * BLOCK) as usize;
        image[start..start + content.len()].copy_from_slice(content);
    }
}

async fn run(seed: u64, operations: usize) {
    let service = Service {
        punch_zeroes: seed.is_multiple_of(2),
        sum_early: seed.is_multiple_of(3).then_some(codec::checksum::Algorithm::Fletcher4),
        ..service()
    };
    let world = Arc::new(World {
        lake: Lake::new(service),
        logs: std::iter::repeat_with(Log::default).take(CLIENTS).collect(),
        running: AtomicUsize::new(CLIENTS),
    });
    for (number, log) in world.logs.iter().enumerate() {
        log.states.lock().push(hash(&vec![0; SIZE as usize], &runs_of(number)));
    }
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..CLIENTS {
        tasks.spawn(client(Arc::clone(&world), number, seed, operations));
    }
    tasks.spawn(syncer(Arc::clone(&world), seed));
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
}

#[tokio::test]
async fn what_is_read_and_what_is_committed_is_what_was_written() {
    for seed in 0..30 {
        run(seed, 300).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn the_same_with_real_threads() {
    for seed in 100..115 {
        run(seed, 300).await;
    }
}
