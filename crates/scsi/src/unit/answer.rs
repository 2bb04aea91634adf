//! What becomes of a command: an answer, a job, a read that may go on with others, or a refusal.

use block::{Segment, Segments, flatten};

use crate::{
    cdb::Command,
    pieces,
    sense::{Sense, SenseBytes, Status},
};

/// The answer to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// How it ended.
    pub status: Status,
    /// Data-In, already cut to the CDB's allocation length.
    pub data: Segments,
    /// Sense data; empty unless `status` is CHECK CONDITION.
    pub sense: SenseBytes,
}

impl Response {
    /// GOOD with data.
    pub fn good(data: Segments) -> Self {
        Self { status: Status::Good, data, sense: SenseBytes::default() }
    }

    /// A status without sense.
    pub fn status(status: Status) -> Self {
        Self { status, data: Segments::new(), sense: SenseBytes::default() }
    }

    pub(crate) fn check(sense: SenseBytes) -> Self {
        Self { status: Status::CheckCondition, data: Segments::new(), sense }
    }
}

/// A command that has to wait: for its Data-Out, for the volume, or for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    pub(crate) command: Command,
    /// Bytes of Data-Out wanted before [`LogicalUnit::run`](super::LogicalUnit::run).
    pub data_out: u32,
    /// Bytes the job will hold in memory besides its Data-Out, for the transport's budget.
    pub holds: u32,
    /// When it began, as the nexus counts: others may clear it before it runs.
    pub(crate) generation: u32,
}

impl Job {
    /// It may move terabytes: run it with [`LogicalUnit::run_until`](super::LogicalUnit::run_until), so that an abort need not wait for its end.
    pub fn is_long(&self) -> bool {
        self.command.is_long()
    }

    /// The same job, now that its Data-Out is there: zeroes that are written all over become a hole, which needs no memory.
    #[must_use]
    pub fn with_data(self, data: &[Segment]) -> Self {
        let is_same = matches!(self.command, Command::WriteSame { .. });
        let holds = if is_same && pieces::is_zero(&flatten(data)) { 0 } else { self.holds };
        Self { holds, ..self }
    }

    /// It changes nothing: whoever aborts it need not wait for its end.
    pub fn only_looks(&self) -> bool {
        self.command.only_looks()
    }

    /// It changes something only now and then: whoever aborts it waits until [`Cancel::keeps_nobody`](crate::Cancel::keeps_nobody).
    pub fn is_copy(&self) -> bool {
        self.command.is_copy()
    }
}

/// What became of a CDB.
#[derive(Debug)]
pub enum Begin {
    /// Answered.
    Done(Response),
    /// To be run.
    Job(Job),
}

/// Reads of up to this many bytes are looked up together: of longer ones each has blocks enough to look for at once.
const SHORT_MAX: u32 = 16 << 10;

/// What became of a CDB that may wait for those that came with it.
#[derive(Debug)]
pub enum Opened {
    /// It does not wait.
    Begun(Begin),
    /// It reads what may be in memory.
    Lookup(Lookup),
}

/// A read that is as good as begun.
#[derive(Clone, Copy, Debug)]
pub struct Lookup {
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) job: Job,
}

impl Lookup {
    /// Whether it pays to look it up with others of its kind.
    pub fn is_short(&self) -> bool {
        self.len <= SHORT_MAX
    }

    /// The same read without a look at what is in memory.
    pub fn job(&self) -> Job {
        self.job
    }
}

/// Why a command was not done.
#[derive(Debug)]
pub(crate) enum Refusal {
    Sense(Sense),
    Conflict,
    /// Another initiator cleared it.
    Cleared,
    /// Nothing is wrong with it, and nothing was done: its host is to send it again. Not TASK SET FULL, which may be
    /// said only to who has other commands here (SAM-5 §5.3.1).
    Busy,
}

impl Refusal {
    /// The sense that describes it to somebody who asks later.
    pub(crate) fn sense(&self) -> Sense {
        match self {
            Self::Sense(sense) => *sense,
            Self::Conflict | Self::Cleared | Self::Busy => Sense::COPY_DEVICE_FAILED,
        }
    }
}

impl From<Sense> for Refusal {
    fn from(sense: Sense) -> Self {
        Self::Sense(sense)
    }
}

/// GOOD with at most `allocation` bytes.
pub(crate) fn allocated(mut bytes: Vec<u8>, allocation: u32) -> Response {
    bytes.truncate(allocation as usize);
    Response::good(pieces::one(bytes))
}
