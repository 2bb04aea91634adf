//! The full feature phase of one session as a value: bytes in, jobs out, answers in, bytes out.
//!
//! ```text
//!   receive buffer ─handle_bytes▶ Session ─poll_work▶ jobs (run by the caller, any number at a time)
//!         socket ◀─outbox──────── Session ◀─complete── their responses
//! ```
//!
//! A command whose answer is in memory never leaves `handle_bytes`: its reply, with the cached pieces
//! themselves, is in the outbox when the call returns. Nothing here knows a socket, a task or a clock.
//!
//! * At most [`WINDOW`] commands are under way; `MaxCmdSN` says so and never goes back.
//! * Whoever does not read its answers is not served: at [`OUTBOX_HIGH`] bytes, or a quarter of its share of what all may
//!   hold, parsing stops.
//! * Data-Out is asked for, and a read is begun, when there is room in the gate that all connections share
//!   ([`Session::poll_turn`]). What comes unasked cannot wait: it is bounded by the window, which gets narrower the more
//!   sessions there are. A command whose data is there never waits for room: others may be waiting for its.
//! * Aborted commands get no answer; what aborted them is answered when the last of them has ended.
//!
//! One connection per session, error recovery level 0. Facts: RFC 7143 §4.2, §11.

mod send;
mod text;

use std::{
    collections::{BTreeMap, VecDeque},
    net::{IpAddr, SocketAddr},
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
};

use block::Segments;
use bytes::{Buf as _, Bytes, BytesMut};
use memory::{Gate, Member};
use scsi::{Begin, Cancel, Job, LogicalUnit, Neighbours, Nexus, NexusId, Response, Sense, Status};
use smallvec::SmallVec;

use crate::{
    login::Accepted,
    negotiate::Params,
    pdu::{Fatal, Frame, Framing, Header, NO_TAG, Outbox, op, reject},
    targets::{Counters, Reach, SessionKey, Target, Targets},
    task::{Ask, Phase, Task},
};

/// Commands under way in one session at most.
pub const WINDOW: u32 = 128;
/// And at least, however many sessions there are.
const WINDOW_MIN: u32 = 8;
/// Immediate commands and task management requests under way, which the window does not bound.
const IMMEDIATE_MAX: usize = 32;
/// Answers waiting for the socket, in bytes, above which no further request is looked at.
const OUTBOX_HIGH: usize = 4 << 20;
/// The same where many share little.
const OUTBOX_LOW: usize = 256 << 10;
/// Bytes that Data-Out of one session may hold, and its reads; one command is always let through.
const HELD_MAX: u64 = 32 << 20;
/// Text of one request over all its PDUs, and of one answer.
const TEXT_MAX: usize = 64 << 10;

/// Commands of one session that may be under way: the data that all sessions' commands may carry unasked is at most half
/// of what may be in flight.
pub(crate) fn window(gate: &Gate, params: &Params) -> u32 {
    if !params.immediate_data && params.initial_r2t {
        return WINDOW;
    }
    // A session is two members of the gate, so this is half of its share.
    let commands = gate.share().checked_div(u64::from(params.first_burst)).unwrap_or(0);
    u32::try_from(commands).unwrap_or(WINDOW).clamp(WINDOW_MIN, WINDOW)
}

/// A logical unit, and this session's nexus with it.
pub type Attached = (Arc<LogicalUnit>, Arc<Nexus>);

/// Something for the caller to run.
pub struct Work {
    /// Give it back to [`Session::complete`].
    pub itt: u32,
    /// Where: one logical unit, or every one that a reset is for.
    pub units: SmallVec<[Attached; 1]>,
    /// What to do.
    pub kind: WorkKind,
}

/// What to run.
#[derive(Debug)]
pub enum WorkKind {
    /// A command of the logical unit, with its data.
    Job(Job, Segments),
    /// One that may take long, and how an abort ends it early.
    Long(Job, Segments, Cancel),
    /// A reset of the logical units, to be told to others with this unit attention.
    Reset(Sense),
    /// CLEAR TASK SET: commands of other sessions end.
    ClearTaskSet,
}

impl Work {
    /// Runs it; what comes out is for [`Session::complete`].
    pub async fn run(mut self) -> (u32, Option<Response>) {
        let itt = self.itt;
        match self.kind {
            WorkKind::Job(job, data) => match self.units.pop() {
                Some((unit, nexus)) => (itt, Some(unit.run(&nexus, job, data).await)),
                None => (itt, Some(Response::status(Status::Busy))),
            },
            WorkKind::Long(job, data, cancel) => match self.units.pop() {
                Some((unit, nexus)) => (itt, Some(Box::pin(unit.run_until(&nexus, job, data, cancel)).await)),
                None => (itt, Some(Response::status(Status::Busy))),
            },
            WorkKind::Reset(attention) => {
                for (unit, _) in &self.units {
                    unit.reset(attention).await;
                }
                (itt, None)
            }
            WorkKind::ClearTaskSet => {
                for (unit, nexus) in &self.units {
                    unit.clear_task_set(nexus).await;
                }
                (itt, None)
            }
        }
    }
}

/// What a task management function does once this session's own commands have ended, if it does more than to end them.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// For a logical unit, or for all of them.
    Reset {
        attention: Sense,
        lun: Option<u16>,
        cold: bool,
    },
    Clear {
        lun: u16,
    },
}

/// What waits for aborted commands to end.
#[derive(Debug)]
enum Reply {
    TaskManagement(Option<Act>),
    Logout,
}

#[derive(Debug)]
struct Wait {
    itt: u32,
    reply: Reply,
    /// Commands that must end first.
    on: Vec<u32>,
}

/// A logged-in session.
pub struct Session {
    targets: Arc<Targets>,
    key: SessionKey,
    target: Option<Arc<Target>>,
    /// The target's disks as they were at `epoch`, by number.
    units: Vec<(u16, Attached)>,
    epoch: u64,
    neighbours: Option<Arc<dyn Neighbours>>,
    local: SocketAddr,
    peer: IpAddr,
    params: Params,
    counters: Arc<Counters>,
    framing: Framing,
    outbox: Outbox,
    stat_sn: u32,
    exp_cmd_sn: u32,
    max_cmd_sn: u32,
    /// Commands under way that count against the window.
    under_way: u32,
    tasks: BTreeMap<u32, Task>,
    /// Commands to run, oldest first.
    queued: VecDeque<u32>,
    /// Commands that want to ask for data, oldest first.
    waiting: VecDeque<u32>,
    resets: VecDeque<(u32, Act)>,
    /// Resets asked for and not answered.
    resetting: usize,
    waits: Vec<Wait>,
    /// Requests that came before their turn, by CmdSN.
    early: BTreeMap<u32, (Header, Bytes)>,
    /// Room for Data-Out, and for what goes the other way: each waits for its own turn.
    coming: Member,
    going: Member,
    /// Bytes of Data-Out that was or may be asked for.
    asked: u64,
    /// Bytes of Data-Out that came unasked.
    unasked: u64,
    /// Bytes that jobs hold besides their Data-Out.
    holds: u64,
    /// Memory that the caller receives into.
    receiving: usize,
    next_ttt: u32,
    text_in: Vec<u8>,
    text_out: Option<(u32, Vec<u8>)>,
    closing: bool,
    needed: usize,
}

impl Session {
    /// A session that has just logged in by way of the portal `local`. `outbox` may hold the login response.
    pub fn new(accepted: Accepted, targets: Arc<Targets>, local: SocketAddr, mut outbox: Outbox) -> Self {
        let Accepted { key, target, params, stat_sn, exp_cmd_sn, window, receive_max, peer, proven } =
            accepted;
        let gate = &targets.config().gate;
        let (coming, going) = (Member::new(Arc::clone(gate)), Member::new(Arc::clone(gate)));
        let initiator = key.initiator.clone();
        let reach = Reach { targets: Arc::clone(&targets), initiator, peer, proven };
        let neighbours = target.as_ref().map(|_| Arc::new(reach) as Arc<dyn Neighbours>);
        outbox.header_digest = params.header_digest;
        outbox.data_digest = params.data_digest;
        let framing = Framing {
            header_digest: params.header_digest,
            data_digest: params.data_digest,
            data_max: receive_max as usize,
        };
        let mut session = Self {
            targets,
            key,
            target,
            units: Vec::new(),
            epoch: 0,
            neighbours,
            local,
            peer,
            params,
            counters: Arc::default(),
            framing,
            outbox,
            stat_sn,
            exp_cmd_sn,
            max_cmd_sn: exp_cmd_sn.wrapping_add(window).wrapping_sub(1),
            under_way: 0,
            tasks: BTreeMap::new(),
            queued: VecDeque::new(),
            waiting: VecDeque::new(),
            resets: VecDeque::new(),
            resetting: 0,
            waits: Vec::new(),
            early: BTreeMap::new(),
            coming,
            going,
            asked: 0,
            unasked: 0,
            holds: 0,
            receiving: 0,
            next_ttt: 1,
            text_in: Vec::new(),
            text_out: None,
            closing: false,
            needed: 0,
        };
        session.attach();
        session
    }

    /// Follows the target's list of disks.
    fn attach(&mut self) {
        let Some(target) = &self.target else { return };
        // The count first: a change that comes between is seen at the next command.
        self.epoch = target.epoch();
        let luns = if target.removed() { Vec::new() } else { target.luns() };
        let mut old = std::mem::take(&mut self.units);
        for (lun, unit) in luns {
            let same = old.iter().position(|(was, (old, _))| *was == lun && Arc::ptr_eq(old, &unit));
            let attached = match same.map(|at| old.swap_remove(at)) {
                Some((_, attached)) => attached,
                None => {
                    let id = NexusId { initiator: self.key.port().into(), port: self.key.group };
                    let nexus = unit.attach_at(id, self.neighbours.clone());
                    (unit, nexus)
                }
            };
            self.units.push((lun, attached));
        }
        old.into_iter().for_each(|(_, (unit, nexus))| unit.detach(&nexus));
    }

    /// The disk that a LUN field means.
    fn unit(&self, lun: [u8; 8]) -> Option<&Attached> {
        let lun = scsi::lun_number(lun)?;
        let at = self.units.binary_search_by_key(&lun, |(lun, _)| *lun).ok()?;
        self.units.get(at).map(|(_, attached)| attached)
    }

    /// CHECK CONDITION as the disk of that LUN would say it.
    fn check(&self, lun: [u8; 8], sense: Sense) -> Response {
        match self.unit(lun) {
            Some((unit, _)) => unit.check(sense),
            None => scsi::absent_lun(&[0; 16], &[]),
        }
    }

    /// The logical units came or went: tells an initiator that would otherwise hear of it with its next command only
    /// (RFC 7143 §11.9, event 0: SCSI event, with the unit attention as its sense data).
    pub fn announce_luns(&mut self) {
        let mut h = Header::new(op::ASYNC);
        h.set(16, NO_TAG);
        let sense = Sense::LUNS_CHANGED.fixed();
        let sense = sense.as_slice();
        let mut body = u16::try_from(sense.len()).unwrap_or(0).to_be_bytes().to_vec();
        body.extend(sense);
        self.send(h, &body, true);
    }

    /// The target logged in to; `None` in a discovery session.
    pub(crate) fn target(&self) -> Option<&Arc<Target>> {
        self.target.as_ref()
    }

    /// Shares the counters that the registry lists.
    pub fn count_in(&mut self, counters: Arc<Counters>) {
        self.counters = counters;
    }

    /// What is on its way to the socket.
    pub fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    /// Whether `handle_bytes` would look at more input.
    pub fn wants_input(&self) -> bool {
        let len = self.outbox.len();
        let is_low = |len: usize| {
            let share = usize::try_from(self.going.gate().share() / 4).unwrap_or(OUTBOX_HIGH);
            len <= share.clamp(OUTBOX_LOW, OUTBOX_HIGH)
        };
        !self.closing && (len <= OUTBOX_LOW || is_low(len))
    }

    /// Tells the gate what is held now. `receiving` is the memory that the caller receives into.
    pub fn settle(&mut self, receiving: usize) {
        self.receiving = receiving;
        self.coming.settle(self.asked);
        self.coming.set_buffers((receiving as u64).saturating_add(self.unasked));
        if !self.wants_input() {
            self.going.withdraw(); // nothing is begun before its answers are fetched
        }
        self.going.settle(self.holds.saturating_add(self.outbox.len() as u64));
    }

    /// Ready when there is room for what had to wait: go on with [`Self::poll_work`].
    pub fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let data = self.coming.poll_turn(cx);
        if data.is_ready() {
            self.grant();
        }
        match (data, self.going.poll_turn(cx)) {
            (Poll::Pending, Poll::Pending) => Poll::Pending,
            _ => Poll::Ready(()),
        }
    }

    /// Whether the session has ended: close when the outbox is empty.
    pub fn ended(&self) -> bool {
        self.closing
    }

    /// Bytes that the PDU at the head of the buffer needs in all.
    pub fn needed(&self) -> usize {
        self.needed
    }

    /// Takes every whole PDU out of `buf`, until the outbox is full.
    pub fn handle_bytes(&mut self, buf: &mut BytesMut) -> Result<(), Fatal> {
        // PDUs without data are read in place; those with data are split off, so that the data stays
        // where it was received.
        let mut at = 0_usize;
        self.needed = 0;
        let result = loop {
            if !self.wants_input() {
                break Ok(());
            }
            match self.framing.next(buf.get(at..).unwrap_or(&[])) {
                Err(fatal) => break Err(fatal),
                Ok(Frame::Partial { total }) => {
                    self.needed = total;
                    break Ok(());
                }
                Ok(Frame::Whole { header, data_len: 0, total, .. }) => {
                    at = at.saturating_add(total);
                    if let Err(fatal) = self.receive(header, Bytes::new()) {
                        break Err(fatal);
                    }
                }
                Ok(Frame::Whole { header, data_at, data_len, total }) => {
                    buf.advance(at);
                    at = 0;
                    let pdu = buf.split_to(total).freeze();
                    let data = pdu.slice(data_at..data_at.saturating_add(data_len));
                    if let Err(fatal) = self.receive(header, data) {
                        break Err(fatal);
                    }
                }
            }
        };
        buf.advance(at.min(buf.len()));
        result
    }

    /// The next thing to run, if there is room for it.
    pub fn poll_work(&mut self) -> Option<Work> {
        if let Some((itt, act)) = self.resets.pop_front() {
            let (lun, kind) = match act {
                Act::Reset { attention, lun, .. } => (lun, WorkKind::Reset(attention)),
                Act::Clear { lun } => (Some(lun), WorkKind::ClearTaskSet),
            };
            let units = self.units.iter().filter(|(number, _)| lun.is_none_or(|lun| lun == *number));
            return Some(Work { itt, units: units.map(|(_, attached)| attached.clone()).collect(), kind });
        }
        if !self.wants_input() {
            return None; // answers that nobody fetches would pile up
        }
        // Reads that have no room keep their places; what has its data already goes past them.
        let mut at = 0_usize;
        let mut full = false;
        loop {
            let Some(itt) = self.queued.get(at).copied() else {
                if !full {
                    self.going.withdraw();
                }
                return None;
            };
            let Some((job, needs)) = self.tasks.get(&itt).and_then(|task| Some((task.job?, task.needs)))
            else {
                self.queued.remove(at); // aborted meanwhile
                continue;
            };
            if needs == 0 && job.holds > 0 {
                full = full || !self.has_room(job.holds);
                if full {
                    at = at.saturating_add(1);
                    continue;
                }
            }
            self.queued.remove(at);
            let Some(task) = self.tasks.get(&itt) else { continue };
            let Some(attached) = self.unit(task.ask.lun).cloned() else {
                self.absent(itt); // its disk was taken away while its data came
                continue;
            };
            let Some(task) = self.tasks.get_mut(&itt) else { continue };
            self.holds = self.holds.saturating_add(u64::from(job.holds));
            task.holds = job.holds;
            task.phase = Phase::Running;
            let data = std::mem::take(&mut task.data);
            let kind = if job.is_long() {
                let cancel = Cancel::default();
                task.cancel = Some(cancel.clone());
                WorkKind::Long(job, data, cancel)
            } else {
                WorkKind::Job(job, data)
            };
            let mut units = SmallVec::new();
            units.push(attached);
            return Some(Work { itt, units, kind });
        }
    }

    /// Whether a job that will hold `bytes` may begin.
    fn has_room(&mut self, bytes: u32) -> bool {
        let held = self.holds.saturating_add(self.outbox.len() as u64);
        let fits = self.holds == 0 || self.holds.saturating_add(u64::from(bytes)) <= HELD_MAX;
        (fits || self.going.has_turn()) && self.going.ask(held, u64::from(bytes))
    }

    #[cold]
    fn absent(&mut self, itt: u32) {
        if let Some(task) = self.end_task(itt) {
            // Any command but those that ask who is there gets the same answer.
            self.answer(&task.ask, scsi::absent_lun(&[0; 16], &[]), task.r2t_sn);
        }
    }

    /// The answer to a [`Work`]; for a reset `None`.
    pub fn complete(&mut self, itt: u32, response: Option<Response>) {
        let Some(response) = response else {
            self.resetting = self.resetting.saturating_sub(1);
            self.task_management_done(itt, 0);
            return;
        };
        if let Some(task) = self.end_task(itt) {
            if !task.aborted {
                self.answer(&task.ask, response, task.r2t_sn);
            }
            self.ended_one(itt);
        }
    }

    /// Asks the initiator to log out within `seconds` (RFC 7143 §11.9, event 1).
    pub fn request_logout(&mut self, seconds: u16) {
        let mut h = Header::new(op::ASYNC);
        h.set(16, NO_TAG);
        h.0[36] = 1;
        let [high, low] = seconds.to_be_bytes();
        (h.0[42], h.0[43]) = (high, low);
        self.send(h, &[], true);
    }

    /// Tells the initiator that its connection goes away now (event 2).
    pub fn announce_drop(&mut self) {
        let mut h = Header::new(op::ASYNC);
        h.set(16, NO_TAG);
        h.0[36] = 2;
        self.send(h, &[], true);
        self.closing = true;
    }

    /// Asks for a sign of life.
    pub fn ping(&mut self) {
        let mut h = Header::new(op::NOP_IN);
        let ttt = self.take_ttt();
        h.set(16, NO_TAG).set(20, ttt);
        self.send(h, &[], false);
    }

    fn take_ttt(&mut self) -> u32 {
        let ttt = self.next_ttt;
        self.next_ttt = match ttt.wrapping_add(1) {
            NO_TAG => 1,
            next => next,
        };
        ttt
    }

    // ---- receiving ----

    fn receive(&mut self, header: Header, data: Bytes) -> Result<(), Fatal> {
        match header.opcode() {
            op::DATA_OUT => return self.data_out(&header, data),
            op::SNACK => {
                self.reject(&header, reject::SNACK);
                return Ok(());
            }
            op::NOP_OUT | op::COMMAND | op::TASK_MANAGEMENT | op::TEXT | op::LOGOUT => {}
            op::LOGIN => return Err(Fatal::Protocol("a login request in the full feature phase")),
            _ => {
                self.reject(&header, reject::COMMAND_NOT_SUPPORTED);
                return Ok(());
            }
        }
        if header.immediate() {
            return self.dispatch(&header, data);
        }
        let ahead = header.cmd_sn().wrapping_sub(self.exp_cmd_sn);
        let open = self.max_cmd_sn.wrapping_sub(self.exp_cmd_sn).wrapping_add(1);
        if ahead >= open || open > WINDOW {
            return Ok(()); // outside the window: ignored silently (§4.2.2.1)
        }
        if ahead > 0 {
            self.early.entry(header.cmd_sn()).or_insert((header, data));
            return Ok(());
        }
        self.exp_cmd_sn = self.exp_cmd_sn.wrapping_add(1);
        self.dispatch(&header, data)?;
        while !self.early.is_empty() {
            let Some((header, data)) = self.early.remove(&self.exp_cmd_sn) else { break };
            self.exp_cmd_sn = self.exp_cmd_sn.wrapping_add(1);
            self.dispatch(&header, data)?;
        }
        Ok(())
    }

    fn dispatch(&mut self, header: &Header, data: Bytes) -> Result<(), Fatal> {
        match header.opcode() {
            op::COMMAND if self.target.is_some() => self.command(header, data),
            op::TASK_MANAGEMENT if self.target.is_some() => self.task_management(header),
            op::COMMAND | op::TASK_MANAGEMENT => self.reject(header, reject::PROTOCOL_ERROR),
            op::NOP_OUT => self.nop(header, &data),
            op::TEXT => self.text(header, &data),
            _ => self.logout(header),
        }
        Ok(())
    }

    fn command(&mut self, header: &Header, data: Bytes) {
        let mut ask = Ask::new(header);
        if self.target.as_ref().is_some_and(|target| target.epoch() != self.epoch || target.removed()) {
            self.attach();
        }
        if ask.itt == NO_TAG || self.tasks.contains_key(&ask.itt) {
            return self.reject(header, reject::TASK_IN_PROGRESS);
        }
        if ask.immediate && self.tasks.len() >= IMMEDIATE_MAX.saturating_add(WINDOW as usize) {
            return self.reject(header, reject::TOO_MANY_IMMEDIATE);
        }
        self.counters.commands.fetch_add(1, Ordering::Relaxed);
        let more = !header.is_final(); // unsolicited Data-Out follows
        let burst = self.params.first_burst.min(ask.expected);
        let immediate = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let may_carry = ask.write && self.params.immediate_data && immediate <= burst;
        let may_follow = ask.write && !self.params.initial_r2t;
        let misplaced = (immediate > 0 && !may_carry) || (more && !may_follow);
        let cdb = header.cdb();
        let begun = match self.unit(header.lun()) {
            _ if misplaced => Begin::Done(self.check(header.lun(), UNEXPECTED_DATA)),
            // The list is the target's, not the unit's.
            found if cdb[0] == REPORT_LUNS => {
                if let Some((_, nexus)) = found {
                    nexus.luns_told();
                }
                let luns: SmallVec<[u16; 8]> = self.units.iter().map(|(lun, _)| *lun).collect();
                Begin::Done(scsi::target_luns(&cdb, &luns).unwrap_or_else(|| scsi::absent_lun(&cdb, &luns)))
            }
            Some((unit, nexus)) => unit.begin(nexus, &cdb, if ask.write { ask.expected } else { 0 }),
            None => Begin::Done(scsi::absent_lun(&cdb, &[])),
        };
        match begun {
            Begin::Done(response) if !more || misplaced => {
                if !response.data.is_empty() {
                    self.counters.cached_reads.fetch_add(1, Ordering::Relaxed);
                }
                self.answer(&ask, response, 0);
            }
            Begin::Done(response) => {
                ask.wanted = 0;
                self.insert(Task::new(ask, None, Phase::Dropping(Box::new(response))));
            }
            Begin::Job(job) => {
                let left = burst.saturating_sub(immediate);
                let mut task = Task::new(ask, Some(job), Phase::Unsolicited { left });
                task.unasked = immediate;
                self.unasked = self.unasked.saturating_add(u64::from(immediate));
                task.keep(data);
                let itt = ask.itt;
                self.insert(task);
                if !more {
                    self.sequence_complete(itt);
                }
            }
        }
    }

    fn insert(&mut self, task: Task) {
        if !task.ask.immediate {
            self.under_way = self.under_way.saturating_add(1);
        }
        self.tasks.insert(task.ask.itt, task);
    }

    /// All of a burst is there: run the command, ask for more, or send the answer that was waiting.
    fn sequence_complete(&mut self, itt: u32) {
        let Some(task) = self.tasks.get_mut(&itt) else { return };
        if let Phase::Dropping(response) = &mut task.phase {
            let response = std::mem::replace(&mut **response, Response::status(Status::Busy));
            if let Some(task) = self.end_task(itt) {
                self.answer(&task.ask, response, 0);
            }
        } else if task.complete() {
            task.phase = Phase::Queued;
            self.queued.push_back(itt);
        } else if task.granted > 0 {
            self.ask_for_data(itt); // there is room for all of it
        } else {
            task.phase = Phase::Waiting;
            self.waiting.push_back(itt);
            self.grant();
        }
    }

    /// Lets commands ask for their data while there is room.
    fn grant(&mut self) {
        while let Some(itt) = self.waiting.front().copied() {
            let Some(task) = self.tasks.get_mut(&itt) else {
                self.waiting.pop_front();
                continue;
            };
            let more = task.needs.saturating_sub(task.received);
            let fits = self.asked == 0 || self.asked.saturating_add(u64::from(more)) <= HELD_MAX;
            let has_room = fits || self.coming.has_turn();
            if !has_room || !self.coming.ask(self.asked, u64::from(more)) {
                return;
            }
            self.waiting.pop_front();
            task.granted = more;
            self.asked = self.asked.saturating_add(u64::from(more));
            self.ask_for_data(itt);
        }
        // Whoever waited was aborted.
        self.coming.withdraw();
    }

    fn ask_for_data(&mut self, itt: u32) {
        let ttt = self.take_ttt();
        let Some(task) = self.tasks.get_mut(&itt) else { return };
        let end = task.received.saturating_add(self.params.max_burst).min(task.needs);
        let mut h = Header::new(op::R2T);
        h.0[8..16].copy_from_slice(&task.ask.lun);
        h.set(16, itt).set(20, ttt).set(36, task.r2t_sn).set(40, task.received);
        h.set(44, end.saturating_sub(task.received));
        task.r2t_sn = task.r2t_sn.wrapping_add(1);
        task.data_sn = 0;
        task.phase = Phase::Solicited { ttt, end };
        self.send(h, &[], false);
    }

    fn data_out(&mut self, header: &Header, data: Bytes) -> Result<(), Fatal> {
        let itt = header.itt();
        let Some(task) = self.tasks.get_mut(&itt) else {
            return Ok(()); // of a command that has been answered or aborted
        };
        self.counters.bytes_in.fetch_add(data.len() as u64, Ordering::Relaxed);
        if matches!(task.phase, Phase::Unsolicited { .. }) {
            let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
            task.unasked = task.unasked.saturating_add(len);
            self.unasked = self.unasked.saturating_add(u64::from(len));
        }
        match task.data_out(header, data) {
            Ok(true) => self.sequence_complete(itt),
            Ok(false) => {}
            Err(_) if matches!(task.phase, Phase::Queued | Phase::Running) => {} // too late to matter
            Err(_) => {
                if let Some(task) = self.end_task(itt) {
                    let response = self.check(task.ask.lun, Sense::DATA_PHASE_ERROR);
                    self.answer(&task.ask, response, task.r2t_sn);
                }
            }
        }
        Ok(())
    }

    fn nop(&mut self, header: &Header, data: &[u8]) {
        if header.itt() == NO_TAG {
            return; // the answer to our own ping: any byte received is a sign of life
        }
        let mut h = Header::new(op::NOP_IN);
        h.0[8..16].copy_from_slice(&header.lun());
        h.set(16, header.itt()).set(20, NO_TAG);
        let fits = data.get(..self.params.send_max as usize).unwrap_or(data);
        self.send(h, fits, true);
    }

    fn logout(&mut self, header: &Header) {
        let reason = header.flags() & 0x7f;
        if reason > 1 {
            // Removing a connection for recovery belongs to a higher error recovery level.
            return self.logout_response(header.itt(), 2);
        }
        if self.too_many_waits() {
            return self.reject(header, reject::TOO_MANY_IMMEDIATE);
        }
        let on = self.abort(|_| true);
        self.wait(Wait { itt: header.itt(), reply: Reply::Logout, on });
    }

    fn too_many_waits(&self) -> bool {
        self.waits.len().saturating_add(self.resetting) >= IMMEDIATE_MAX
    }

    fn logout_response(&mut self, itt: u32, response: u8) {
        let mut h = Header::new(op::LOGOUT_RESPONSE);
        h.0[2] = response;
        h.set(16, itt);
        self.send(h, &[], true);
        self.closing |= response == 0;
    }

    fn task_management(&mut self, header: &Header) {
        let itt = header.itt();
        if self.too_many_waits() || self.waits.iter().any(|wait| wait.itt == itt) {
            return self.reject(header, reject::TOO_MANY_IMMEDIATE);
        }
        let function = header.flags() & 0x7f;
        let lun = scsi::lun_number(header.lun()).filter(|_| self.unit(header.lun()).is_some());
        let (on, act) = match (function, lun) {
            (1, _) => {
                let tag = header.word20();
                if !self.tasks.contains_key(&tag) {
                    // It may be on its way still: then its number counts as received (§11.5.1).
                    let ahead = header.word32().wrapping_sub(self.exp_cmd_sn);
                    let coming = ahead == 0 && header.cmd_sn().wrapping_sub(header.word32()) < WINDOW;
                    if coming && header.cmd_sn() != header.word32() {
                        self.exp_cmd_sn = self.exp_cmd_sn.wrapping_add(1);
                        return self.task_management_done(itt, 0);
                    }
                    return self.task_management_done(itt, 1);
                }
                (self.abort(|task| task.ask.itt == tag), None)
            }
            (2 | 4 | 5, None) => return self.task_management_done(itt, 2),
            (2, Some(lun)) => (self.abort_lun(lun), None),
            (4, Some(lun)) => (self.abort_lun(lun), Some(Act::Clear { lun })),
            (5, Some(lun)) => {
                let attention = Sense::DEVICE_RESET;
                (self.abort_lun(lun), Some(Act::Reset { attention, lun: Some(lun), cold: false }))
            }
            (6, _) => {
                let attention = Sense::BUS_RESET;
                (self.abort(|_| true), Some(Act::Reset { attention, lun: None, cold: false }))
            }
            (7, _) => {
                let attention = Sense::POWER_ON;
                (self.abort(|_| true), Some(Act::Reset { attention, lun: None, cold: true }))
            }
            (8, _) => return self.task_management_done(itt, 4),
            // CLEAR ACA: there never is an ACA condition (NormACA in INQUIRY).
            _ => return self.task_management_done(itt, 5),
        };
        self.wait(Wait { itt, reply: Reply::TaskManagement(act), on });
    }

    fn abort_lun(&mut self, lun: u16) -> Vec<u32> {
        self.abort(|task| scsi::lun_number(task.ask.lun) == Some(lun))
    }

    fn task_management_done(&mut self, itt: u32, response: u8) {
        let mut h = Header::new(op::TASK_MANAGEMENT_RESPONSE);
        h.0[2] = response;
        h.set(16, itt);
        self.send(h, &[], true);
    }

    /// Ends commands; returns those that are running and will end later, without an answer.
    fn abort(&mut self, which: impl Fn(&Task) -> bool) -> Vec<u32> {
        let chosen: Vec<u32> = self.tasks.values().filter(|t| which(t)).map(|t| t.ask.itt).collect();
        let mut running = Vec::new();
        for itt in chosen {
            match self.tasks.get_mut(&itt) {
                Some(task) if matches!(task.phase, Phase::Running) => {
                    task.aborted = true;
                    if let Some(cancel) = &task.cancel {
                        cancel.cancel();
                    }
                    running.push(itt);
                }
                _ => {
                    self.end_task(itt);
                }
            }
        }
        running
    }

    fn wait(&mut self, wait: Wait) {
        if wait.on.is_empty() {
            self.waited(wait.itt, &wait.reply);
        } else {
            self.waits.push(wait);
        }
    }

    fn waited(&mut self, itt: u32, reply: &Reply) {
        match reply {
            Reply::Logout => self.logout_response(itt, 0),
            Reply::TaskManagement(None) => self.task_management_done(itt, 0),
            Reply::TaskManagement(Some(act)) => {
                self.resetting = self.resetting.saturating_add(1);
                self.resets.push_back((itt, *act));
                if let Act::Reset { cold: true, .. } = act {
                    self.targets.end_sessions(&self.key.target);
                }
            }
        }
    }

    /// A command that others may have waited for is gone.
    fn ended_one(&mut self, itt: u32) {
        if self.waits.is_empty() {
            return;
        }
        for wait in &mut self.waits {
            wait.on.retain(|other| *other != itt);
        }
        let (done, left) = std::mem::take(&mut self.waits).into_iter().partition(|wait| wait.on.is_empty());
        self.waits = left;
        let done: Vec<Wait> = done;
        for wait in done {
            self.waited(wait.itt, &wait.reply);
        }
    }

    fn end_task(&mut self, itt: u32) -> Option<Task> {
        let task = self.tasks.remove(&itt)?;
        if !task.ask.immediate {
            self.under_way = self.under_way.saturating_sub(1);
        }
        self.unasked = self.unasked.saturating_sub(u64::from(task.unasked));
        self.asked = self.asked.saturating_sub(u64::from(task.granted));
        self.holds = self.holds.saturating_sub(u64::from(task.holds));
        self.grant();
        Some(task)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for (_, (unit, nexus)) in &self.units {
            unit.detach(nexus);
        }
    }
}

/// The one command that is the target's and not a disk's.
const REPORT_LUNS: u8 = 0xa0;

/// Unexpected unsolicited data (RFC 7143 §11.4.7.2).
const UNEXPECTED_DATA: Sense = Sense { key: 0xb, asc: 0x0c, ascq: 0x0c, information: None, field: None };
