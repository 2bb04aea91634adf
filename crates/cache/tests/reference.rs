//! Classic policies equal the published reference results, integer for integer.
//!
//! The traces that may be in the repository always run; those of others are looked for in the directory that
//! `MILLPOND_TRACES` names, and without it each says on standard error that it did not run.
#![allow(
    clippy::unwrap_used,
    reason = "a test may panic: that is how it fails; what it measured is for whoever asks with --nocapture"
)]

mod support;

use cache::{Arc, Plain, Policy};
use support::{OUTSIDE, Trace};

type Make = fn(u64) -> Box<dyn Policy>;

/// Every size of a trace, with each policy that the reference names.
fn equals_its_reference(trace: &Trace) {
    let checks: [(&str, Make); 3] = [
        ("ARC", |capacity| Box::new(Arc::new(capacity))),
        ("LRU", |capacity| Box::new(Plain::lru(capacity))),
        ("FIFO", |capacity| Box::new(Plain::fifo(capacity))),
    ];
    let number = |key: &str| trace.reference[key].as_u64().unwrap();
    for (name, policy) in checks {
        let reference = &trace.reference["policies"][name];
        for (i, (capacity, misses)) in trace.capacities().into_iter().zip(trace.misses(name)).enumerate() {
            let simulation = trace.play(policy(capacity));
            let score = simulation.score();
            assert_eq!(score.block_misses, misses, "{}: {name} of {capacity} blocks", trace.name);
            assert_eq!(
                (score.requests, score.accesses, score.bytes),
                (number("requests"), number("accesses"), number("requested_bytes")),
                "{}",
                trace.name
            );
            assert!(simulation.len() as u64 <= capacity);
            for (key, ratio) in [
                ("request_miss_ratio", score.request_miss_ratio()),
                ("byte_miss_ratio", score.byte_miss_ratio()),
            ] {
                if let Some(expected) = reference[key][i].as_f64() {
                    assert!(
                        (ratio - expected).abs() < 0.000_051,
                        "{}: {name} {capacity}: {key} {ratio}",
                        trace.name
                    );
                }
            }
        }
    }
}

#[test]
fn three_guests_booting() {
    equals_its_reference(&Trace::kept("vm-3boots"));
}

#[test]
fn zipf() {
    equals_its_reference(&Trace::synthetic("zipf"));
}

#[test]
fn zipf_and_scans() {
    equals_its_reference(&Trace::synthetic("zipfscan"));
}

#[test]
fn a_loop_and_zipf() {
    equals_its_reference(&Trace::synthetic("loop"));
}

#[test]
fn forty_clones_booting() {
    equals_its_reference(&Trace::synthetic("bootstorm"));
}

#[test]
fn traces_of_others() {
    for trace in OUTSIDE.into_iter().filter_map(Trace::outside) {
        equals_its_reference(&trace);
    }
}
