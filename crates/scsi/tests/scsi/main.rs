//! What hosts rely on, as a value. One program, because each would have to be linked anew.
#![allow(clippy::unwrap_used, reason = "a test may panic: that is how it fails")]

mod access_and_room;
mod commands;
mod copies;
mod durability;
mod failures;
mod fences;
mod kept_reservations;
mod lab;
mod locks;
mod paced;
mod reservations;
mod steps;
mod tokens;
mod write_cache;
