//! The command line and the daemon behind it, from outside. One program, because each would have to be linked anew;
//! what needs the machine for itself is in `alone/`.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "what fails here fails a test, and what was not run is said; the world outside is real"
)]

mod alerts;
mod arrows;
mod bad_input;
mod bad_input_write;
mod bench;
mod cachesim;
mod clones;
mod cluster;
mod daemon;
mod demo;
mod devices;
mod drill;
mod drives;
mod iostat;
mod kill9;
mod left;
mod lists;
mod manifests;
mod nothing_written;
mod properties;
mod proxmox;
mod reservations;
mod scripts;
mod serving;
mod serving_write;
mod share;
mod starts;
#[path = "../support/mod.rs"]
mod support;
mod tools;
mod transcripts;
mod transcripts_write;
mod zilstat;
