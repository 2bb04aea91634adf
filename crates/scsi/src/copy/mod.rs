//! The copy manager: copies that a host orders and does not see (VAAI full copy, ODX), and what it may ask of them later.
//!
//! ```text
//!   EXTENDED COPY      ─lists─▶ segments ┐
//!   WRITE USING TOKEN  ─odx───▶ ranges   ┴─▶ mover: 1 MiB at a time, holes as holes ─▶ Copies: how it ended, for RECEIVE COPY …
//!   POPULATE TOKEN     ─odx───▶ token: what a range held at one moment
//! ```
//!
//! * A copy holds at most two steps in memory whatever its length, and looks between steps whether it was cancelled:
//!   by an abort, a reset, a preemption, or COPY OPERATION ABORT.
//! * A copy that was ended and stands in a read of its source keeps nobody, because it writes nothing any more
//!   ([`Cancel::keeps_nobody`]): who asks is told that it was ended.
//! * A copy that is answered before it is done (IMMED) is the nexus's work still ([`crate::Rest`]): the transport runs it, and
//!   lets no other session of that name begin before it has ended, or keeps nobody.
//! * A copy does what its initiator may do and nothing more: reservations and write protection of every unit it
//!   touches are looked at before each step; which units it may name is the transport's to say ([`crate::Neighbours`]).
//!
//! Facts: SPC-4 §5.16, §6.4–6.7, §6.16–6.24; SBC-3 §4.28, §5.17, §5.46.

pub(crate) mod lists;
mod mover;
pub(crate) mod odx;
pub(crate) mod token;
mod xcopy;

use std::{
    collections::VecDeque,
    ops::Deref,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use crate::{
    errand::{Cancel, Errand},
    nexus::NexusId,
    sense::Sense,
    unit::Refusal,
};

/// Target descriptors in one EXTENDED COPY at most.
pub(crate) const TARGETS_MAX: usize = 16;
/// Segment descriptors in one EXTENDED COPY at most.
pub(crate) const SEGMENTS_MAX: usize = 64;
/// Bytes of both lists of descriptors at most.
pub(crate) const DESCRIPTORS_MAX: usize = TARGETS_MAX * 32 + SEGMENTS_MAX * 28;
/// Bytes of one segment at most.
pub(crate) const SEGMENT_BYTES_MAX: u32 = 256 << 20;
/// Copies under way in one logical unit at most.
pub(crate) const RUNNING_MAX: usize = 16;
/// Copies remembered in one logical unit: those under way and the last that ended.
const REMEMBERED: usize = 64;

/// How a copy stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Running,
    Done,
    Failed(Sense),
}

/// A copy, under way or ended.
#[derive(Debug)]
pub(crate) struct Operation {
    from: NexusId,
    /// How its initiator calls it; `None`: it does not want to ask about it.
    list: Option<u32>,
    /// Service action of the command that began it.
    action: u8,
    /// Ends the command, or what goes on behind it after it was answered.
    cancel: Cancel,
    /// Bytes written so far, from the first one on.
    moved: AtomicU64,
    /// What is written now does not count yet.
    is_from_end: AtomicBool,
    segments: AtomicU64,
    standing: Mutex<Standing>,
    /// For POPULATE TOKEN, the token.
    token: Option<Box<[u8; token::TOKEN_LEN]>>,
}

impl Operation {
    pub(crate) fn cancel(&self) -> &Cancel {
        &self.cancel
    }

    pub(crate) fn moved(&self, bytes: u64) {
        if !self.is_from_end.load(Ordering::Relaxed) {
            self.moved.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// What is written from here on is written from the end. Hosts take what is counted for the first bytes, and go on behind
    /// them: it counts when it is [whole](Self::whole).
    pub(crate) fn goes_from_end(&self) {
        self.is_from_end.store(true, Ordering::Relaxed);
    }

    /// All of the bytes are there that were written from the end.
    pub(crate) fn whole(&self, bytes: u64) {
        self.is_from_end.store(false, Ordering::Relaxed);
        self.moved(bytes);
    }

    pub(crate) fn segment_done(&self) {
        self.segments.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn end(&self, standing: Standing) {
        *self.standing.lock().unwrap_or_else(PoisonError::into_inner) = standing;
    }

    fn standing(&self) -> Standing {
        match *self.standing.lock().unwrap_or_else(PoisonError::into_inner) {
            // It writes nothing more, and who waits for its end need not wait for what it reads.
            Standing::Running if self.cancel.keeps_nobody() => Standing::Failed(Sense::COPY_ABORTED),
            standing => standing,
        }
    }
}

/// A copy under way, for whoever carries it out: given up half done, it does not seem to run for ever.
#[derive(Debug)]
pub(crate) struct UnderWay(Arc<Operation>);

impl Deref for UnderWay {
    type Target = Operation;

    fn deref(&self) -> &Operation {
        &self.0
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        if *standing == Standing::Running {
            *standing = Standing::Failed(Sense::COPY_ABORTED);
        }
    }
}

/// The copies of one logical unit.
#[derive(Debug, Default)]
pub(crate) struct Copies(Mutex<VecDeque<Arc<Operation>>>);

impl Copies {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Operation>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy begins. Where as many run as may, it is refused and to be sent again: it does not wait here, for it would
    /// keep from others the memory that its steps will need.
    pub(crate) fn begin(&self, errand: &Errand, list: Option<u32>, action: u8) -> Result<UnderWay, Refusal> {
        let operation = Operation {
            from: errand.nexus.id().clone(),
            list,
            action,
            cancel: errand.cancel.clone(),
            moved: AtomicU64::new(0),
            is_from_end: AtomicBool::new(false),
            segments: AtomicU64::new(0),
            standing: Mutex::new(Standing::Running),
            token: None,
        };
        self.add(operation).map(UnderWay)
    }

    /// A token was made: an operation that has ended already.
    pub(crate) fn add_token(
        &self,
        from: &NexusId,
        list: u32,
        bytes: u64,
        token: Box<[u8; token::TOKEN_LEN]>,
    ) -> Result<(), Refusal> {
        let operation = Operation {
            from: from.clone(),
            list: Some(list),
            action: 0x10,
            cancel: Cancel::default(),
            moved: AtomicU64::new(bytes),
            is_from_end: AtomicBool::new(false),
            segments: AtomicU64::new(0),
            standing: Mutex::new(Standing::Done),
            token: Some(token),
        };
        self.add(operation).map(drop)
    }

    fn add(&self, operation: Operation) -> Result<Arc<Operation>, Refusal> {
        let mut all = self.lock();
        let running = |op: &Operation| op.standing() == Standing::Running;
        let is_named = operation.list.is_some();
        let same = |op: &Operation| is_named && op.from == operation.from && op.list == operation.list;
        if all.iter().any(|op| same(op) && running(op)) {
            return Err(Sense::OPERATION_IN_PROGRESS.into());
        }
        // A token is there already: nothing of it runs beside others.
        if running(&operation) && all.iter().filter(|op| running(op)).count() >= RUNNING_MAX {
            return Err(Refusal::Busy);
        }
        // A list identifier that is used again means the new copy; of one without nobody can ask how it ended.
        all.retain(|op| !same(op) && (op.list.is_some() || running(op)));
        while all.len() >= REMEMBERED {
            let Some(oldest) = all.iter().position(|op| !running(op)) else { break };
            all.remove(oldest);
        }
        let operation = Arc::new(operation);
        all.push_back(Arc::clone(&operation));
        Ok(operation)
    }

    /// The copy that a nexus calls by this list identifier.
    pub(crate) fn find(&self, from: &NexusId, list: u32) -> Option<Arc<Operation>> {
        self.newest(list, |whose| whose == from)
    }

    /// The same for who only asks about it: if it is none of that nexus, one that its initiator ordered by another. A
    /// list identifier is the nexus's own (SPC-4 §5.16), but hosts that take their paths in turn ask by the next one,
    /// and number their copies across all of them.
    pub(crate) fn find_by_name(&self, from: &NexusId, list: u32) -> Option<Arc<Operation>> {
        let name = from.initiator_name();
        self.find(from, list).or_else(|| self.newest(list, |whose| whose.initiator_name() == name))
    }

    fn newest(&self, list: u32, whose: impl Fn(&NexusId) -> bool) -> Option<Arc<Operation>> {
        self.lock().iter().rev().find(|op| op.list == Some(list) && whose(&op.from)).cloned()
    }

    /// Ends the copies that `whose` picks.
    pub(crate) fn cancel(&self, whose: impl Fn(&NexusId) -> bool) {
        for operation in self.lock().iter().filter(|op| whose(&op.from)) {
            operation.cancel.cancel();
        }
    }
}

/// RECEIVE COPY STATUS (LID1), SPC-4 §6.21.
pub(crate) fn short_status(operation: &Operation) -> Vec<u8> {
    let status = match operation.standing() {
        Standing::Running => 0x00,
        Standing::Done => 0x01,
        Standing::Failed(_) => 0x02,
    };
    let segments = u16::try_from(operation.segments.load(Ordering::Relaxed)).unwrap_or(u16::MAX);
    let moved = operation.moved.load(Ordering::Relaxed);
    // In bytes while that fits, then in KiB.
    let (units, count) = match u32::try_from(moved) {
        Ok(bytes) => (0x00, bytes),
        Err(_) => (0x01, u32::try_from(moved.wrapping_shr(10)).unwrap_or(u32::MAX)),
    };
    let mut out = vec![0, 0, 0, 8, status];
    out.extend(segments.to_be_bytes());
    out.push(units);
    out.extend(count.to_be_bytes());
    out
}

/// RECEIVE COPY STATUS (LID4), and the head of RECEIVE ROD TOKEN INFORMATION (SPC-4 §6.22, §6.24).
pub(crate) fn long_status(operation: &Operation, blocks_of: u32) -> Vec<u8> {
    let (status, sense) = match operation.standing() {
        Standing::Running => (0x11, None),
        Standing::Done => (0x01, None),
        Standing::Failed(sense) if operation.cancel.is_cancelled() => (0x60, Some(sense)),
        Standing::Failed(sense) => (0x02, Some(sense)),
    };
    let mut out = vec![0, 0, 0, 0, operation.action, status, 0, 0];
    out.extend(if status == 0x11 { 100_u32 } else { 0 }.to_be_bytes()); // ask again after this many ms
    let sense = sense.map(Sense::descriptor);
    let sense = sense.as_ref().map_or(&[][..], |sense| sense.as_slice());
    let len = u8::try_from(sense.len()).unwrap_or(0);
    let extended_status = if sense.is_empty() { 0x00 } else { 0x02 }; // CHECK CONDITION
    out.extend([extended_status, len, len, 0xf1]); // counted in logical blocks
    let moved = operation.moved.load(Ordering::Relaxed);
    out.extend(moved.checked_div(u64::from(blocks_of)).unwrap_or(0).to_be_bytes());
    let segments = u16::try_from(operation.segments.load(Ordering::Relaxed)).unwrap_or(u16::MAX);
    out.extend(segments.to_be_bytes());
    out.extend([0; 6]);
    out.extend(sense);
    out
}

/// Writes the length of what follows into the first four bytes.
pub(crate) fn close(mut out: Vec<u8>) -> Vec<u8> {
    let len = u32::try_from(out.len().saturating_sub(4)).unwrap_or(0);
    if let Some(head) = out.first_chunk_mut() {
        *head = len.to_be_bytes();
    }
    out
}

/// RECEIVE ROD TOKEN INFORMATION (SPC-4 §6.24): how it went, and the token if one was made.
pub(crate) fn token_information(operation: &Operation, blocks_of: u32) -> Vec<u8> {
    let mut out = long_status(operation, blocks_of);
    match &operation.token {
        Some(token) => {
            // Its length with the two bytes that number it.
            out.extend(514_u32.to_be_bytes());
            out.extend([0, 0]);
            out.extend(token.as_slice());
        }
        None => out.extend([0; 4]),
    }
    close(out)
}

/// RECEIVE COPY OPERATING PARAMETERS (SPC-4 §6.20).
pub(crate) fn parameters() -> Vec<u8> {
    let short = |n: usize| u16::try_from(n).unwrap_or(u16::MAX).to_be_bytes();
    let mut out = vec![0, 0, 0, 0, 0x01, 0, 0, 0]; // SNLID: a list identifier may be left out
    out.extend(short(TARGETS_MAX));
    out.extend(short(SEGMENTS_MAX));
    out.extend(u32::try_from(DESCRIPTORS_MAX).unwrap_or(0).to_be_bytes());
    out.extend(SEGMENT_BYTES_MAX.to_be_bytes());
    out.extend([0; 12]); // no inline data, nothing held, no streams
    out.extend([0; 2]);
    out.extend(short(RUNNING_MAX));
    out.extend([u8::try_from(RUNNING_MAX).unwrap_or(0), 9, 0, 0]); // segments of 512 bytes or more
    out.extend([0; 3]);
    out.extend([3, lists::BLOCK_TO_BLOCK, lists::BLOCK_TO_BLOCK_OFFSET, lists::IDENTIFICATION]);
    close(out)
}

/// Third-party Copy VPD page (SPC-4 §7.8.17, SBC-3 §6.5.6): the body behind its header.
pub(crate) fn third_party_page() -> Vec<u8> {
    let mut out = Vec::new();
    let mut descriptor = |kind: u16, body: &[u8]| {
        let mut body = body.to_vec();
        while !body.len().is_multiple_of(4) {
            body.push(0);
        }
        out.extend(kind.to_be_bytes());
        out.extend(u16::try_from(body.len()).unwrap_or(0).to_be_bytes());
        out.extend(body);
    };
    // Block device ROD token limits.
    let mut limits = vec![0; 6];
    limits.extend(u16::try_from(odx::RANGES_MAX).unwrap_or(0).to_be_bytes());
    limits.extend(token::TIMEOUT_MAX.to_be_bytes());
    limits.extend(token::TIMEOUT.to_be_bytes());
    limits.extend(odx::TRANSFER_BLOCKS_MAX.to_be_bytes());
    limits.extend(odx::TRANSFER_BLOCKS_BEST.to_be_bytes());
    descriptor(0x0000, &limits);
    // Supported commands.
    let commands = [0x83, 5, 0x00, 0x01, 0x10, 0x11, 0x1c, 0x84, 4, 0x00, 0x03, 0x05, 0x07];
    let mut list = vec![u8::try_from(commands.len()).unwrap_or(0)];
    list.extend(commands);
    descriptor(0x0001, &list);
    // Parameter data.
    let mut data = vec![0; 4];
    data.extend(u16::try_from(TARGETS_MAX).unwrap_or(0).to_be_bytes());
    data.extend(u16::try_from(SEGMENTS_MAX).unwrap_or(0).to_be_bytes());
    data.extend(u32::try_from(DESCRIPTORS_MAX).unwrap_or(0).to_be_bytes());
    data.resize(28, 0);
    descriptor(0x0004, &data);
    // Supported descriptors.
    descriptor(0x0008, &[3, lists::BLOCK_TO_BLOCK, lists::BLOCK_TO_BLOCK_OFFSET, lists::IDENTIFICATION]);
    // General copy operations.
    let mut general = Vec::new();
    let running = u32::try_from(RUNNING_MAX).unwrap_or(0).to_be_bytes();
    general.extend(running);
    general.extend(running);
    general.extend(SEGMENT_BYTES_MAX.to_be_bytes());
    general.push(9);
    general.resize(32, 0);
    descriptor(0x8001, &general);
    out
}
