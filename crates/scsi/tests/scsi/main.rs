//! What hosts rely on, as a value. One program, because each would have to be linked anew.
#![allow(clippy::unwrap_used, reason = "a test may panic: that is how it fails")]

mod copies;
mod durability;
mod failures;
mod paced;
mod reservations;
mod steps;
