//! What the writing half promises, from outside. One program, because each would have to be linked with everything.
#![allow(
    clippy::unwrap_used,
    clippy::large_futures,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test that fails says why by its panic, and what it played to the person who runs it"
)]

mod another_host;
mod commits;
mod crashed;
mod cuts;
mod datasets;
mod devices;
mod dropped;
mod failing;
mod families;
mod faults;
mod files;
mod foreign;
mod freeing;
mod histories;
mod interleavings;
mod kept;
mod log;
mod log_speed;
mod logged;
mod memory;
mod model;
mod pools;
mod removal;
mod resumed;
mod room;
mod running;
mod scan_speed;
mod scans;
mod scarce;
mod second;
mod silent;
mod support;
mod suspended;
mod sweeps;
mod unanswered;
mod unreachable;
