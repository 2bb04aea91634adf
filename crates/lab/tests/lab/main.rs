//! Rehearsals as they are played. One program, because each would have to be compiled and linked with everything.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that fails says why by its panic, and what it measured to the person who runs it"
)]

mod drills;
mod rig;
mod tiers;
