//! One SCSI command between its PDU and its answer, and the bookkeeping of its Data-Out.
//!
//! ```text
//!   command PDU ─▶ Unsolicited ─F▶ [Waiting ─room▶ Solicited ─F▶ …] ─▶ Queued ─▶ Running ─▶ answered
//! ```
//!
//! Data must come in order, without gaps, under the right tag and sequence numbers; anything else ends
//! the command with ABORTED COMMAND and not a byte of it is written (RFC 7143 §11.7).

use std::collections::VecDeque;

use block::{Segment, Segments};
use disk::{Landed, Site};
use scsi::{Cancel, Job, Response};
use tokio::time::Instant;

use crate::pdu::Header;

/// Data-Out of which a command may wait for room with it: a block, or the list of a copy.
const LITTLE: u32 = 8 << 10;

/// Where a command stands.
#[derive(Debug)]
pub(crate) enum Phase {
    /// Data-Out comes by itself until its F bit; `left` bytes of the first burst remain.
    Unsolicited { left: u32 },
    /// Wants data, but may not ask for it until the budget allows.
    Waiting,
    /// Data-Out comes under transfer tags: bursts in the order in which they were asked for, which is that of the buffer.
    Solicited { bursts: VecDeque<Burst> },
    /// To be run.
    Queued,
    /// With the caller.
    Running,
    /// Answered in advance: the rest of its unsolicited data is dropped, then the answer goes out.
    Dropping(Box<Response>),
}

/// Data that was asked for with one R2T.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Burst {
    pub(crate) ttt: u32,
    /// Its end in the buffer.
    pub(crate) end: u32,
}

/// What a command's PDU said that its answer needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) itt: u32,
    pub(crate) lun: [u8; 8],
    /// Expected data transfer length.
    pub(crate) expected: u32,
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) immediate: bool,
    /// Bytes of Data-Out that the CDB speaks of, for the residual.
    pub(crate) wanted: u32,
}

impl Ask {
    pub(crate) fn new(header: &Header) -> Self {
        Self {
            itt: header.itt(),
            lun: header.lun(),
            expected: header.word20(),
            read: header.flags() & 0x40 != 0,
            write: header.flags() & 0x20 != 0,
            immediate: header.immediate(),
            wanted: 0,
        }
    }
}

/// A command under way.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) ask: Ask,
    pub(crate) job: Option<Job>,
    pub(crate) phase: Phase,
    /// Data-Out to be handed to the job: the shorter of what it wants and what the initiator has.
    pub(crate) needs: u32,
    /// Data-Out received, the excess included.
    pub(crate) received: u32,
    pub(crate) data: Segments,
    /// Where it will be written, if it is as it comes.
    pub(crate) site: Option<Site>,
    pub(crate) data_sn: u32,
    /// R2Ts sent.
    pub(crate) r2t_sn: u32,
    /// Bytes of Data-Out that came unasked.
    pub(crate) unasked: u32,
    /// Bytes of Data-Out it may ask for, taken from the gate.
    pub(crate) granted: u32,
    /// The same while they are on their way.
    pub(crate) awaited: u32,
    /// Bytes the job holds besides.
    pub(crate) holds: u32,
    /// The disk it was for is there no more.
    pub(crate) has_no_disk: bool,
    /// Aborted while running: no answer when it ends.
    pub(crate) aborted: bool,
    /// Ends it early while it runs, if it is one of those that may take long.
    pub(crate) cancel: Option<Cancel>,
    /// Which piece of work it is while it runs.
    pub(crate) work: u64,
    /// What it is, and since when, for those who count.
    pub(crate) opcode: u8,
    pub(crate) since: Option<Instant>,
}

/// A Data-Out PDU that breaks the rules.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OutOfOrder;

impl Task {
    pub(crate) fn new(ask: Ask, job: Option<Job>, phase: Phase) -> Self {
        let wanted = job.map_or(0, |job| job.data_out);
        let needs = if ask.write { wanted.min(ask.expected) } else { 0 };
        Self {
            ask: Ask { wanted, ..ask },
            job,
            phase,
            needs,
            received: 0,
            data: Segments::new(),
            site: None,
            data_sn: 0,
            r2t_sn: 0,
            unasked: 0,
            granted: 0,
            awaited: 0,
            holds: 0,
            has_no_disk: false,
            aborted: false,
            cancel: None,
            work: 0,
            opcode: 0,
            since: None,
        }
    }

    /// Whether it waits for room, and nothing of it was done, nor data asked for that takes some.
    pub(crate) fn waits_for_room(&self) -> bool {
        // With its data there it would hold up others, unless that is next to nothing beside what it will hold.
        let brings_little = |job: &Job| self.needs == 0 || (job.is_long() && self.needs <= LITTLE);
        match self.phase {
            Phase::Waiting => true,
            Phase::Queued => self.job.is_some_and(|job| job.holds > 0 && brings_little(&job)),
            _ => false,
        }
    }

    /// Whether it has to end, while it runs, before anybody may think that it has: it changes something, or may yet.
    pub(crate) fn may_change(&self) -> bool {
        self.job.is_some_and(|job| match job.is_copy() {
            true => !self.cancel.as_ref().is_some_and(Cancel::keeps_nobody),
            false => !job.only_looks(),
        })
    }

    /// Whether all the data the job gets is there.
    pub(crate) fn complete(&self) -> bool {
        self.received >= self.needs
    }

    /// Keeps data that the command PDU carried, or that arrived in order.
    pub(crate) fn keep(&mut self, data: Landed) {
        for mut piece in data {
            let room = self.needs.saturating_sub(self.received) as usize;
            let len = u32::try_from(piece.len()).unwrap_or(u32::MAX);
            self.received = self.received.saturating_add(len);
            piece.truncate(room);
            if !piece.is_empty() {
                self.data.push(Segment::Data(piece));
            }
        }
    }

    /// A Data-Out PDU. True when its sequence is complete.
    pub(crate) fn data_out(&mut self, header: &Header, data: Landed) -> Result<bool, OutOfOrder> {
        let len = u32::try_from(header.data_len()).unwrap_or(u32::MAX);
        let ttt = header.word20();
        let end = header.offset().checked_add(len).ok_or(OutOfOrder)?;
        let in_order = header.data_sn() == self.data_sn && header.offset() == self.received;
        self.data_sn = self.data_sn.wrapping_add(1);
        match &mut self.phase {
            Phase::Dropping(_) => {}
            _ if !in_order => return Err(OutOfOrder),
            Phase::Unsolicited { left } => {
                if ttt != crate::pdu::NO_TAG || end > self.ask.expected {
                    return Err(OutOfOrder);
                }
                *left = left.checked_sub(len).ok_or(OutOfOrder)?;
            }
            Phase::Solicited { bursts } => {
                let burst = bursts.front().copied().ok_or(OutOfOrder)?;
                // The F bit belongs on the last PDU of what the R2T asked for, and only there.
                let is_last = end == burst.end;
                if ttt != burst.ttt || end > burst.end || header.is_final() != is_last {
                    return Err(OutOfOrder);
                }
                if is_last {
                    bursts.pop_front();
                    self.data_sn = 0;
                }
            }
            Phase::Waiting | Phase::Queued | Phase::Running => return Err(OutOfOrder),
        }
        if !matches!(self.phase, Phase::Dropping(_)) {
            self.keep(data);
        }
        Ok(header.is_final())
    }
}
