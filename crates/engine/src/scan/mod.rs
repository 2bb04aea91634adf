//! Scrub and resilver: every block of the pool is read from all its places, in the order of the devices, and what is
//! wrong or missing is written again.
//!
//! ```text
//!   record  begins, ends, is written down: in the syncing task        state    what is known, in memory
//!   run     the task that scans                                       waiting  blocks found and not yet read
//!   walk    the metadata of a committed state                         pace     when a leaf may be used
//!   errors  the log of lost blocks                                    estimate how long it will take
//!   filed   the same, when datasets come and go
//!   logged  which blocks that log names
//! ```
//!
//! Nothing that was freed is ever read as if it were still there, and nothing that belongs to others is overwritten:
//! blocks that are freed leave the waiting list at once, and what is under way is pinned ([`crate::alloc::Horizon`]).
//!
//! Facts: docs/format/vdevs.md §6, §7, mos.md §10.

mod errors;
mod estimate;
mod filed;
mod logged;
mod pace;
mod record;
mod run;
mod state;
mod waiting;
mod walk;

use std::{ops::Range, sync::Arc, time::Duration};

use pool::{Bookmark, Pool, verify::Location};

use crate::{BoxFuture, dsl::OpError, engine::Engine, events::ScanKind};

pub(crate) use filed::{forget, hand_over};
pub(crate) use record::{open, sync};
pub(crate) use run::{Ground, device, run};
pub use state::Scans;

/// What an administrator wants of scans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanCommand {
    /// `zpool scrub`: begin one, or let a paused one go on.
    Scrub,
    /// `zpool scrub -e`: only blocks in the error log.
    ScrubErrors,
    /// `zpool scrub -C`: only what was written since the last scrub that went through; everything if there was none.
    ScrubNew,
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
    /// It waits where it is until there is more memory.
    pub held: bool,
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
    /// Bytes found per second since it began to move: in this import, and after it was halted.
    pub scanned_rate: f64,
    /// Bytes read per second lately.
    pub rate: f64,
    /// How long it will take from now: not less, and not more, than this; none if that cannot be told yet.
    pub remaining: Option<Range<Duration>>,
    /// Leaves (guids) that are brought up to date.
    pub targets: Vec<u64>,
    /// Of a scrub of the error log: how far it is in what is named there.
    pub logged: Option<Logged>,
}

/// Entries of the error log: what a scrub of it is counted in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Logged {
    /// What it is to look at.
    pub total: u64,
    /// What it has looked at.
    pub examined: u64,
}

impl Engine {
    /// Begins, halts or ends a scan.
    ///
    /// # Errors
    /// In OpenZFS's words: `currently scrubbing; use 'zpool scrub -s' to cancel scrub`, `there is no active scrub`, …
    pub fn scan(&self, command: ScanCommand) -> BoxFuture<'_, Result<(), OpError>> {
        self.run(move |cx| Box::pin(record::command(cx, command)))
    }

    /// The scan that runs, or the last one; from memory. Of scrubs of the error log only the one that runs: those that are
    /// over are in the pool ([`Pool::error_scrub`]).
    #[must_use]
    pub fn scan_progress(&self) -> Option<Progress> {
        self.scans().progress(None)
    }

    /// The same for who shows `view` beside it: there a scrub of the error log goes on until the commit that says how it
    /// ended. Else it would be neither under way nor over for as long as that commit takes.
    #[must_use]
    pub fn scan_beside(&self, view: &Pool) -> Option<Progress> {
        self.scans().progress(Some(view.uberblock().txg))
    }
}

/// Which block, in words: dataset, object or path, offset.
pub(crate) async fn describe(view: &Arc<Pool>, at: Bookmark, block_bytes: u64) -> String {
    let Location { dataset, path, offset } = pool::verify::locate(view, at, block_bytes).await;
    let mut what = match (&dataset, at.objset) {
        (Some(dataset), _) => dataset.clone(),
        (None, 0) => "<metadata>".to_owned(),
        (None, objset) => format!("<{objset:#x}>"),
    };
    match path {
        Some(path) => what.push_str(&format!(":{path}")),
        None => what.push_str(&format!(":<{:#x}>", at.object)),
    }
    if let Some(offset) = offset {
        what.push_str(&format!(" offset {offset}"));
    }
    what
}
