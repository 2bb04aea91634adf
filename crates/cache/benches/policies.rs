//! What an access costs: `cargo bench -p millpond-cache`.
//!
//! A Zipf-like stream over ten times the capacity; each policy plays it with its own index, as a simulation does, so
//! the numbers are upper bounds of what the policy adds to a hit or a miss.
#![allow(missing_docs, reason = "what the macros of criterion make")]

use std::hint::black_box;

use cache::{Adaptive, Block, HitBuffer, POLICIES, Policy as _, Slot, mix, policy_named, trace::Simulation};
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};

const CAPACITY: u64 = 1 << 16;
const ACCESSES: u64 = 1 << 16;

/// Block k: the cube of a uniform number makes the small ones frequent.
fn block(k: u64) -> u64 {
    let unit = (mix(k) >> 11) as f64 / (1_u64 << 53) as f64;
    (unit.powi(3) * (10 * CAPACITY) as f64) as u64
}

fn accesses(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("access");
    group.throughput(Throughput::Elements(ACCESSES)).sample_size(10);
    for name in POLICIES {
        let warm = || {
            let policy = policy_named(name, CAPACITY).expect("it is in the list of names");
            let mut simulation = Simulation::new(policy);
            (0..16 * CAPACITY).for_each(|k| {
                simulation.access(block(k));
            });
            simulation
        };
        group.bench_function(format!("{name}/mixed"), |bench| {
            bench.iter_batched_ref(
                warm,
                |simulation| {
                    (0..ACCESSES).for_each(|k| {
                        black_box(simulation.access(block(!k)));
                    })
                },
                BatchSize::PerIteration,
            );
        });
        group.bench_function(format!("{name}/misses"), |bench| {
            bench.iter_batched_ref(
                warm,
                |simulation| {
                    (0..ACCESSES).for_each(|k| {
                        black_box(simulation.access(1 << 40 | k));
                    })
                },
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

/// A hit as the cache's readers pay for it: a note, and when the buffer asks for it a batch played to the policy.
fn hits(criterion: &mut Criterion) {
    let mut policy = Adaptive::new(CAPACITY);
    let slots: Vec<Slot> = (0..CAPACITY)
        .filter_map(|k| policy.insert(Block { id: mix(k), size: 1 }, &mut |_| unreachable!("there is room")))
        .collect();
    let buffer = HitBuffer::default();
    let mut group = criterion.benchmark_group("hit");
    group.throughput(Throughput::Elements(1));
    let mut k = 0;
    let mut next = || {
        k += 1;
        slots[(mix(k) % CAPACITY) as usize]
    };
    group.bench_function("note", |bench| bench.iter(|| black_box(buffer.note(next()))));
    group.bench_function("note and play", |bench| {
        bench.iter(|| {
            if buffer.note(next()) {
                buffer.drain(|slot| policy.hit(slot));
            }
        });
    });
    group.finish();
}

criterion_group!(benches, accesses, hits);
criterion_main!(benches);
