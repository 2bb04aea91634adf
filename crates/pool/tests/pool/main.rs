//! What the reading half promises, from outside, on pools that OpenZFS made. One program, because each would have to be
//! compiled and linked with everything.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may fail loudly and say what it saw, its helpers too"
)]

mod caching;
mod damage;
mod datasets;
mod files;
mod fixtures;
mod hostile;
mod import;
mod lies;
mod replacing;
mod reservation;
mod strange;
mod support;
mod verify;
mod volumes;
mod ztest;
