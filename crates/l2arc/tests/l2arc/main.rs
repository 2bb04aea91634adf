//! The second tier on devices in memory, on devices that fail as told, and on one that a real kernel module wrote.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

mod faults;
mod feeding;
mod real;
mod restarts;
mod rings;
mod support;
