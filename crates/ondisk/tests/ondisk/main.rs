//! The format against itself and against real bytes. What counts allocations is a program of its own (`mutate.rs`).
#![allow(clippy::unwrap_used, reason = "a test may fail loudly, in its helpers, too")]

mod roundtrip;
#[path = "../seeds/mod.rs"]
mod seeds;
mod vectors;
