//! A sampled miss-ratio curve is near the exact LRU at the sizes the references know: within 0.012 on average, 0.03 at worst.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may panic: that is how it fails; what it measured is for whoever asks with --nocapture"
)]

mod support;

use cache::{Curve, mix};
use support::{OUTSIDE, Trace};

fn is_close_to_lru(trace: &Trace) {
    let mut curve = Curve::default();
    for block in trace.requests.iter().flat_map(|request| request.blocks()) {
        curve.access(mix(block), 1);
    }
    assert!(curve.memory() < 2 << 20, "{} bytes", curve.memory());
    let mut errors = Vec::new();
    for (capacity, misses) in trace.capacities().into_iter().zip(trace.misses("LRU")) {
        let exact = misses as f64 / trace.accesses() as f64;
        let estimate = curve.miss_ratio(capacity);
        println!("{} {capacity}: {estimate:.4}, exactly {exact:.4}, rate {:.4}", trace.name, curve.rate());
        errors.push((estimate - exact).abs());
    }
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    let worst = errors.iter().copied().fold(0.0, f64::max);
    println!("{}: mean error {mean:.4}, worst {worst:.4}", trace.name);
    assert!(mean <= 0.012, "{}: mean error {mean:.4}", trace.name);
    assert!(worst <= 0.03, "{}: worst error {worst:.4}", trace.name);
}

#[test]
fn of_guests_booting() {
    is_close_to_lru(&Trace::kept("vm-3boots"));
}

#[test]
fn of_a_loop_and_zipf() {
    is_close_to_lru(&Trace::synthetic("loop"));
}

#[test]
fn of_zipf_and_scans() {
    is_close_to_lru(&Trace::synthetic("zipfscan"));
}

#[test]
fn of_traces_of_others() {
    OUTSIDE.into_iter().filter_map(Trace::outside).for_each(|trace| is_close_to_lru(&trace));
}
