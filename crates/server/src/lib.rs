//! The daemon and what stands around it: which pools are open, what is served, who may ask.
//!
//! ```text
//!   cli ──▶ client ──HTTP over a Unix socket──▶ control ─┐
//!    └───────────── no daemon ──────────────▶ answers, view ──▶ api types, the same either way
//!   ops:    every command that changes something, run by the daemon or by a command without one
//!   daemon: host (finds) ─▶ ops::Host (opens, holds) ─▶ serving ─▶ nbd exports, iscsi targets
//!   shares: what the pools keep about who is offered what; initiators: who came
//!   governor: how much memory all of it may have, and what gives way
//!   events, alerts: what happened, and who is told; disks, hotplug: devices that come and go; opening: pools that are
//!   opened at the start; late: those that could not be
//!   silence: which pools do not answer, so that lists go without them; listing: long lists, a portion at a time
//!   state:  which pools were imported, and on which devices; newest: how new they were
//! ```
//!
//! A command that finds no daemon does the same work in its own process, so everything a command shows
//! passes through [`api`]: nothing can look different with and without a daemon.
//!
//! Not here: pools (`pool` reads them, `engine` writes), protocols (`nbd`, `iscsi`), how things are printed (the command line).
//! The API is documented in `docs/api.md`.
#![forbid(unsafe_code)]

pub mod advice;
pub mod alerts;
pub mod answers;
pub mod api;
pub mod arc;
pub mod certificates;
pub mod client;
mod clock;
pub mod control;
pub mod daemon;
mod descriptors;
pub mod disks;
pub mod doors;
pub mod events;
pub mod governor;
pub mod history;
pub mod host;
pub mod hostid;
mod hotplug;
pub mod initiators;
pub mod iostat;
pub mod kernel;
pub mod labelclear;
mod late;
mod listing;
pub mod logs;
mod lookout;
mod lost;
mod memory;
mod newest;
mod opening;
pub mod ops;
mod paths;
mod scans;
pub mod serving;
pub mod shares;
mod silence;
pub mod state;
pub mod unix_socket;
pub mod view;
mod warmth;

pub use ::{block, disk, engine, pool};

/// How much memory may be had, and what gives way.
pub use ::memory as budget;
