//! Rehearsals: what happens to the clients of a pool when its machine misbehaves, tried where nothing can be lost.
//!
//! ```text
//!   Drill ── layout, load, script ──▶ Stage ──┬─ Machine: bays, each a disk that can be pulled, lie, rot, be slow
//!                                             ├─ Engine: the very code that serves
//!                                             ├─ Load: clients that write, read back and compare
//!                                             └─ Watch: how the pool was, when; what anybody would have been told
//!                                                     └─▶ ReportCard: what dropped, for how long, what was lost
//! ```
//!
//! A machine is simulated (disks in memory that take as long as real ones, on a clock that stands still while there is
//! something to do: minutes pass in seconds, and a seed repeats itself), or it is made of copies of a real pool's
//! files, in real time.
//!
//! Not here: policy. A drill does what a person or a broken disk would do, and the engine does what it always does.
#![forbid(unsafe_code)]

pub mod drills;
pub mod layout;
mod load;
mod machine;
pub mod report;
mod script;
mod stage;
mod watch;

pub use drills::{Drill, all, find};
pub use layout::Layout;
pub use machine::copies;
pub use report::{Grade, Line, ReportCard};
pub use stage::{Place, Progress, rehearse, simulate};

/// Why a drill could not be carried through. What the pool did wrong is no error, it is in the report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// A layout that is none.
    #[error("'{0}' is no layout: say for example mirror:2, raidz1:3, raidz2:6, raidz2:6x2")]
    Layout(String),
    /// Files that cannot be copied or used.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The pool cannot be created or opened.
    #[error("the pool cannot be opened: {0}")]
    Open(String),
    /// A drill that needs more than the pool has.
    #[error("{0}")]
    Unfit(String),
}
