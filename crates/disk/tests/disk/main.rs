//! What every disk promises, and what those that fail do. One program, because each would have to be linked anew.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test may panic, and says what it skipped")]

mod conformance;
mod faults;
