//! Tests of the daemon that have the machine for themselves, one after the other: cargo runs one test program at a time,
//! and each test in this one waits for its turn.
//!
//! ```text
//!   conformance    six clients at once, with a minute for each of their tests: they keep both cores busy by themselves
//!   memory_limit   somebody takes the machine's memory, which is for others to suffer
//!   outages        clients may stand still for seconds after a start, and no longer
//!   paths          who is not concerned may wait for fractions of a second
//!   warm           shares of hits, while a cache device is fed at its own pace
//! ```
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "what fails here fails a test, and what was not run is said; the world outside is real"
)]

mod conformance;
mod memory_limit;
mod outages;
mod paths;
#[path = "../support/mod.rs"]
mod support;
mod warm;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Held by each test as long as it runs. A test that failed has left nothing behind that the next could mind.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}
