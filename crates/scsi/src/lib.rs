//! SCSI block commands over a [`block::BlockVolume`]: a logical unit as a value.
//!
//! ```text
//!   CDB ──Command::parse──▶ LogicalUnit::begin ──▶ Begin::Done(Response)        cache hits, control commands
//!                                             └──▶ Begin::Job(job)  ──data-out──▶ LogicalUnit::run ──▶ Response
//! ```
//!
//! `begin` never waits: it answers what is in memory and hands back the rest as a [`Job`], which the
//! transport runs (as many at a time as it likes) once the job's Data-Out has arrived; a job may leave a
//! [`Rest`], to be run behind its answer. Nothing here
//! knows a socket, a session or a pool. What belongs to one initiator port (unit attentions) is in its
//! [`Nexus`]; what all share (mode parameters, reservations) is in the [`LogicalUnit`]; what the units of a server
//! share (target ports and their access states, copy tokens) is in the [`Service`].
//!
//! * Every answer is complete: data, or a status with sense; allocation lengths are applied here, the
//!   transport's own limit and residuals are the transport's.
//! * A check made in `begin` that time can undo (reservations, size) is made again in `run`.
//! * Locks: `LogicalUnit::shared` is never held across a wait; `exclusive` is taken first.
//!
//! Facts: SPC-4, SBC-3, SAM-5 (sections are named where they are used).
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
#![cfg_attr(
    test,
    expect(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        reason = "a test may panic: that is how it fails"
    )
)]

mod cdb;
mod copy;
mod errand;
mod exclusive;
mod identity;
mod inquiry;
mod jobs;
mod log;
mod lun;
mod mode;
mod nexus;
mod opcodes;
mod operator;
pub mod pieces;
mod reserve;
mod room;
mod sense;
mod service;
mod to_come;
mod uncached;
mod unit;

pub use cdb::{ByteCheck, Command, OpcodeQuery, Run, is_read};
pub use errand::{Cancel, Rest};
pub use identity::{Naa, PORT_GROUP, naa};
pub use lun::{absent_lun, lun_bytes, lun_number, target_luns};
pub use nexus::{Neighbours, Nexus, NexusId};
pub use operator::Registration;
pub use sense::{Field, Sense, SenseBytes, Status};
pub use service::{Access, PortGroup, Random, Service};
pub use unit::{Begin, Form, Job, LogicalUnit, Lookup, Opened, Response};
