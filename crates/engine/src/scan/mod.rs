//! Scrub and resilver: every block of the pool is read from all its places, in the order of the devices, and what is
//! wrong or missing is written again.
//!
//! Facts: docs/format/vdevs.md §6, §7, mos.md §10.

use std::{ops::Range, time::Duration};

use crate::{BoxFuture, dsl::OpError, engine::Engine, events::ScanKind};

/// What an administrator wants of scans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanCommand {
    /// `zpool scrub`: begin one, or let a paused one go on.
    Scrub,
    /// `zpool scrub -e`: only blocks in the error log.
    ScrubErrors,
    /// `zpool scrub -p`
    Pause,
    /// `zpool scrub -s`
    Stop,
    /// `zpool resilver`: begin one anew for all devices that lack something.
    Resilver,
}

/// How far a scan is. Bytes as allocated (parity included), as OpenZFS counts them.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// Which.
    pub kind: ScanKind,
    /// Running and not paused.
    pub running: bool,
    /// Paused since (seconds since 1970).
    pub paused: Option<u64>,
    /// Begun, seconds since 1970.
    pub started: u64,
    /// Ended, seconds since 1970; none while it runs.
    pub ended: Option<u64>,
    /// To be examined in all.
    pub total: u64,
    /// Found so far (`scanned`).
    pub scanned: u64,
    /// Read so far (`issued`).
    pub issued: u64,
    /// Written again so far (`repaired`, `resilvered`).
    pub processed: u64,
    /// Blocks that could not be repaired.
    pub errors: u64,
    /// Bytes read per second lately.
    pub rate: f64,
    /// How long it will take from now: not less, and not more, than this; none if that cannot be told yet.
    pub remaining: Option<Range<Duration>>,
    /// Leaves (guids) that are brought up to date.
    pub targets: Vec<u64>,
}

impl Engine {
    /// Begins, halts or ends a scan.
    ///
    /// # Errors
    /// In OpenZFS's words: `currently scrubbing; use 'zpool scrub -s' to cancel scrub`, `there is no active scrub`, …
    pub fn scan(&self, command: ScanCommand) -> BoxFuture<'_, Result<(), OpError>> {
        let _ = command;
        Box::pin(async { Err(OpError::Refused("not supported".into())) })
    }

    /// The scan that runs, or the last one; from memory.
    #[must_use]
    pub fn scan_progress(&self) -> Option<Progress> {
        None
    }
}
