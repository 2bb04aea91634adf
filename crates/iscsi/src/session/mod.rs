//! The full feature phase of one session as a value: bytes in, jobs out, answers in, bytes out.
//!
//! ```text
//!   inbox ─handle_bytes▶ Session ─poll_work▶ jobs (run by the caller, any number at a time)
//!         socket ◀─outbox──────── Session ◀─complete── their responses
//! ```
//!
//! A command whose answer is in memory never leaves `handle_bytes`: its reply, with the cached pieces
//! themselves, is in the outbox when the call returns. A long read does that only if there is room for it, and is begun later
//! otherwise. Nothing here knows a socket, a task or a clock.
//!
//! * At most `WINDOW` commands are under way; `MaxCmdSN` says so and never goes back.
//! * Whoever does not read its answers is not served: at `OUTBOX_HIGH` bytes, or a quarter of its share of what all may
//!   hold, parsing stops, and what came before its turn waits ([`Session::is_behind`]).
//! * Data-Out is asked for, and a read is begun, when there is room in the gate that all connections share
//!   ([`Session::poll_turn`]); what waits for that too long is answered ([`Session::give_up`]). What comes unasked cannot
//!   wait there: it is bounded by the window, which gets narrower the more sessions with a target there are, and received
//!   only when there is room in the gate's hall. More than was agreed on is not received. A command whose data is there
//!   never waits for room, because others may be waiting for its; but for those that bring a block and hold many (WRITE
//!   SAME, copies).
//! * What waits for the initiator is written down for those who watch the gate: who neither sends what was asked for nor
//!   takes its answers is in the way of others, and ended in the end ([`Session::client`]).
//! * Aborted commands get no answer; what aborted them is answered when the last of them has ended that changes something.
//!
//! One connection per session, error recovery level 0. Facts: RFC 7143 §4.2, §11.

mod data;
mod gather;
mod manage;
mod patience;
mod send;
mod text;
mod work;

use std::{
    collections::{BTreeMap, VecDeque, btree_map::Entry},
    net::{IpAddr, SocketAddr},
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
};

use bytes::Bytes;
use disk::{Landed, Site};
use memory::{Client, Gate, Member};
use scsi::{Begin, Neighbours, NexusId, Opened, Response, Rest, Sense};
use smallvec::SmallVec;
use tokio::time::Instant;

pub use self::work::{Attached, Came, Ticket, Work, WorkKind};
use self::{
    gather::SmallRead,
    manage::{Act, Wait},
    work::Behind,
};
use crate::{
    inbox::{Fate, Inbox},
    login::Accepted,
    negotiate::{self, Params},
    pdu::{Fatal, Framing, Header, NO_TAG, Outbox, op, reject},
    tally::Tally,
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
/// Reads that hold up to this many bytes are answered from memory whether there is room or not: `OUTBOX_HIGH` bounds them.
const AT_ONCE_MAX: u32 = 64 << 10;
/// Bytes that Data-Out of one session may hold, and its reads; one command is always let through.
const HELD_MAX: u64 = 32 << 20;
/// Text of one request over all its PDUs.
const TEXT_MAX: usize = 64 << 10;

/// Commands of one session that may be under way: the data that commands of all sessions with a target may carry unasked is
/// at most half of what may be in flight.
pub(crate) fn window(gate: &Gate, params: &Params) -> u32 {
    if !params.immediate_data && params.initial_r2t {
        return WINDOW;
    }
    // A session is two members of the gate, so this is half of its share.
    let commands = gate.share().checked_div(u64::from(params.first_burst)).unwrap_or(0);
    u32::try_from(commands).unwrap_or(WINDOW).clamp(WINDOW_MIN, WINDOW)
}

/// A logged-in session.
pub struct Session {
    targets: Arc<Targets>,
    key: SessionKey,
    /// How the initiator calls its one connection.
    cid: [u8; 2],
    target: Option<Arc<Target>>,
    /// The target's disks as they were at `epoch`, by number.
    units: Vec<(u16, Attached)>,
    /// What was done with each of them.
    tallies: Vec<(u16, Arc<Tally>)>,
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
    /// Reads of little that came together and are looked up together; none between calls.
    reads: Vec<SmallRead>,
    /// Commands to run, oldest first.
    queued: VecDeque<u32>,
    /// Commands that want to ask for data, oldest first.
    waiting: VecDeque<u32>,
    resets: VecDeque<(u32, Act)>,
    /// Resets asked for and not answered.
    resetting: usize,
    waits: Vec<Wait>,
    /// Pieces of work so far: they are numbered.
    works: u64,
    /// What runs though its command is gone, by the number of the work.
    behind: BTreeMap<u64, Behind>,
    /// Of that, what has yet to be run.
    rests: VecDeque<(Ticket, Rest)>,
    /// Requests that came before their turn, by CmdSN; nothing in place of those that were aborted.
    early: BTreeMap<u32, Option<(Header, Landed)>>,
    /// Bytes of data that came with them.
    early_bytes: u64,
    /// Room for Data-Out, and for what goes the other way: each waits for its own turn.
    coming: Member,
    going: Member,
    /// Bytes of Data-Out that was or may be asked for.
    asked: u64,
    /// Those that are on their way, or should be.
    awaited: u64,
    /// Bytes of Data-Out that came because they were asked for, in all.
    arrived: u64,
    /// Bytes of Data-Out that came unasked.
    unasked: u64,
    /// Bytes that jobs hold besides their Data-Out.
    holds: u64,
    /// The same of copies that were answered, or aborted: reads need not wait until those are done.
    copies_hold: u64,
    /// Memory that the caller receives into.
    receiving: usize,
    next_ttt: u32,
    /// A text request that goes on: the tag under which it does, and what came.
    text_in: Option<(u32, Vec<u8>)>,
    /// What is left of an answer, and the tag under which it is fetched.
    text_out: Option<(u32, text::Rest)>,
    /// Targets of which discovery does not tell that were looked at for what came in together.
    passed_over: usize,
    /// What comes next has to wait for room.
    is_held_up: bool,
    closing: bool,
}

impl Session {
    /// A session that has just logged in by way of the portal `local`. `outbox` may hold the login response.
    pub fn new(accepted: Accepted, targets: Arc<Targets>, local: SocketAddr, mut outbox: Outbox) -> Self {
        let Accepted { key, cid, target, params, stat_sn, exp_cmd_sn, window, receive_max, peer, proven } =
            accepted;
        let gate = &targets.config().gate;
        let host = peers::host_of(peer.ip());
        let client = Client::new(Some(host), format!("{} at {peer}", key.initiator.escape_debug()));
        // Who only discovers brings no data. Anybody may, as often as there are places for strangers: with a share each they
        // would narrow the windows of all hosts.
        let member = || match &target {
            Some(_) => Member::of(Arc::clone(gate), &client),
            None => Member::guest(Arc::clone(gate), &client),
        };
        let (coming, going) = (member(), member());
        let initiator = key.initiator.clone();
        let peer = peer.ip();
        let reach = Reach { targets: Arc::clone(&targets), initiator, peer, proven, group: key.group };
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
            cid,
            target,
            units: Vec::new(),
            tallies: Vec::new(),
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
            reads: Vec::new(),
            queued: VecDeque::new(),
            waiting: VecDeque::new(),
            resets: VecDeque::new(),
            resetting: 0,
            waits: Vec::new(),
            works: 0,
            behind: BTreeMap::new(),
            rests: VecDeque::new(),
            early: BTreeMap::new(),
            early_bytes: 0,
            coming,
            going,
            asked: 0,
            awaited: 0,
            arrived: 0,
            unasked: 0,
            holds: 0,
            copies_hold: 0,
            receiving: 0,
            next_ttt: 1,
            text_in: None,
            text_out: None,
            passed_over: 0,
            is_held_up: false,
            closing: false,
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
        let mut counted = std::mem::take(&mut self.tallies);
        let port: Arc<str> = self.key.port().into();
        for (lun, unit) in luns {
            let same = old.iter().position(|(was, (old, _))| *was == lun && Arc::ptr_eq(old, &unit));
            let attached = match same.map(|at| old.swap_remove(at)) {
                Some((_, attached)) => attached,
                None => {
                    let id = NexusId { initiator: Arc::clone(&port), port: self.key.group };
                    let nexus = unit.attach_at(id, self.neighbours.clone());
                    (unit, nexus)
                }
            };
            self.units.push((lun, attached));
            let at = counted.iter().position(|(was, _)| *was == lun).filter(|_| same.is_some());
            self.tallies.push((lun, at.map(|at| counted.swap_remove(at).1).unwrap_or_default()));
        }
        self.counters.luns.set(&self.tallies);
        for (gone, (unit, nexus)) in old {
            unit.detach(&nexus);
            // There may be another disk by now. What was checked for the one is not for the other.
            for task in self.tasks.values_mut().filter(|task| scsi::lun_number(task.ask.lun) == Some(gone)) {
                task.has_no_disk = true;
            }
        }
    }

    /// Leaves its disks: what ends with a session ends now.
    fn detach(&mut self) {
        for (_, (unit, nexus)) in self.units.drain(..) {
            unit.detach(&nexus);
        }
    }

    /// Whether the target's disks are others than those that are known here.
    fn is_outdated(&self) -> bool {
        self.target.as_ref().is_some_and(|target| target.epoch() != self.epoch || target.removed())
    }

    /// The disk that a LUN field means.
    fn unit(&self, lun: [u8; 8]) -> Option<&Attached> {
        let lun = scsi::lun_number(lun)?;
        let at = self.units.binary_search_by_key(&lun, |(lun, _)| *lun).ok()?;
        self.units.get(at).map(|(_, attached)| attached)
    }

    fn tally(&self, lun: [u8; 8]) -> Option<&Tally> {
        let lun = scsi::lun_number(lun)?;
        let at = self.tallies.binary_search_by_key(&lun, |(lun, _)| *lun).ok()?;
        self.tallies.get(at).map(|(_, tally)| &**tally)
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

    /// SCSI commands taken.
    pub fn commands(&self) -> u64 {
        self.counters.commands.load(Ordering::Relaxed)
    }

    /// Shares the counters that the registry lists.
    pub fn count_in(&mut self, counters: Arc<Counters>) {
        counters.luns.set(&self.tallies);
        self.counters = counters;
    }

    /// What is on its way to the socket.
    pub fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    /// Whether `handle_bytes` would look at more input.
    pub fn wants_input(&self) -> bool {
        !self.closing && !self.is_full()
    }

    /// Whether so many answers wait for the initiator that nothing is done for it until it has taken some.
    pub fn is_full(&self) -> bool {
        let len = self.outbox.len();
        let share = || usize::try_from(self.going.gate().share() / 4).unwrap_or(OUTBOX_HIGH);
        // Who only discovers has no share.
        len > OUTBOX_LOW && (self.target.is_none() || len > share().clamp(OUTBOX_LOW, OUTBOX_HIGH))
    }

    /// Tells the gate what is held now. `receiving` is the memory that the caller receives into.
    pub fn settle(&mut self, receiving: usize) {
        self.receiving = receiving;
        self.coming.settle(self.asked);
        let unasked = self.unasked.saturating_add(self.early_bytes).saturating_add(self.text_held() as u64);
        self.coming.set_buffers((receiving as u64).saturating_add(unasked));
        if !self.wants_input() {
            self.going.withdraw(); // nothing is begun before its answers are fetched
        }
        self.going.settle(self.held());
        // What is not received because others are in the way is nobody's fault.
        let awaited = if self.is_held_up { 0 } else { self.awaited };
        self.coming.note(awaited, self.arrived);
        self.going.note(self.outbox.len() as u64, self.outbox.gone());
    }

    /// The connection, as those know it who watch the gate: when they expel it, it is to be ended.
    pub fn client(&self) -> &Arc<Client> {
        self.coming.client()
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

    /// Takes every whole PDU out of `inbox`, until the outbox is full.
    pub fn handle_bytes(&mut self, inbox: &mut Inbox) -> Result<(), Fatal> {
        self.passed_over = 0;
        self.catch_up()?;
        while self.wants_input()
            && let Some((header, data)) = inbox.next(&self.framing, |header| self.fate(header))?
        {
            self.receive(header, data)?;
        }
        self.look_up();
        self.is_held_up = inbox.is_held_up();
        Ok(())
    }

    /// Whether there are requests whose turn has come, and which were left because the outbox was full: once it is not,
    /// [`Self::handle_bytes`] goes on with them, though nothing more has come.
    pub fn is_behind(&self) -> bool {
        self.early.contains_key(&self.exp_cmd_sn)
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

    /// Tells the initiator that its connection goes away now (event 2), and which that is.
    pub fn announce_drop(&mut self) {
        let mut h = Header::new(op::ASYNC);
        h.set(16, NO_TAG);
        h.0[36] = 2;
        [h.0[38], h.0[39]] = self.cid;
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

    fn receive(&mut self, header: Header, data: Landed) -> Result<(), Fatal> {
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
        if !header.immediate() {
            match self.ahead(&header) {
                None => return Ok(()), // outside the window: ignored silently (§4.2.2.1)
                Some(0) => self.exp_cmd_sn = self.exp_cmd_sn.wrapping_add(1),
                Some(_) => return self.keep_early(header, data),
            }
        }
        self.dispatch(&header, data)?;
        self.catch_up()
    }

    /// How many requests are missing before this one; `None` if it is outside the window.
    fn ahead(&self, header: &Header) -> Option<u32> {
        let ahead = header.cmd_sn().wrapping_sub(self.exp_cmd_sn);
        let open = self.max_cmd_sn.wrapping_sub(self.exp_cmd_sn).wrapping_add(1);
        (ahead < open && open <= WINDOW).then_some(ahead)
    }

    /// Its turn comes when those before it are there. One connection keeps the order, so that they hardly will: what may
    /// be held for that is what one command may bring unasked.
    fn keep_early(&mut self, header: Header, data: Landed) -> Result<(), Fatal> {
        let Entry::Vacant(place) = self.early.entry(header.cmd_sn()) else { return Ok(()) };
        let len: usize = data.iter().map(Bytes::len).sum();
        let bytes = self.early_bytes.saturating_add(len as u64);
        if len > 0 && bytes > u64::from(negotiate::first_burst_for(self.coming.gate().max())) {
            return Err(Fatal::Protocol("requests ahead of one that is missing bring too much data"));
        }
        place.insert(Some((header, data)));
        self.early_bytes = bytes;
        Ok(())
    }

    /// Those that came early, as far as their turn has come and the outbox is not full.
    fn catch_up(&mut self) -> Result<(), Fatal> {
        while !self.early.is_empty() && self.wants_input() {
            let Some(early) = self.early.remove(&self.exp_cmd_sn) else { break };
            self.exp_cmd_sn = self.exp_cmd_sn.wrapping_add(1);
            let Some((header, data)) = early else { continue };
            let len: usize = data.iter().map(Bytes::len).sum();
            self.early_bytes = self.early_bytes.saturating_sub(len as u64);
            self.dispatch(&header, data)?;
        }
        Ok(())
    }

    fn dispatch(&mut self, header: &Header, data: Landed) -> Result<(), Fatal> {
        let text = data.first().map_or(&[][..], |bytes| bytes);
        if header.opcode() != op::COMMAND || !scsi::is_read(header.cdb()[0]) {
            self.look_up();
        }
        match header.opcode() {
            op::COMMAND if self.target.is_some() => self.command(header, data),
            op::TASK_MANAGEMENT if self.target.is_some() => self.task_management(header),
            op::COMMAND | op::TASK_MANAGEMENT => self.reject(header, reject::PROTOCOL_ERROR),
            op::NOP_OUT => self.nop(header, text),
            op::TEXT => self.text(header, text),
            _ => self.logout(header),
        }
        Ok(())
    }

    /// Where in a volume the data behind this header goes, if it is to be written as it comes.
    fn site(&self, header: &Header) -> Option<Site> {
        match header.opcode() {
            op::COMMAND => {
                let (unit, _) = self.unit(header.lun())?;
                let (offset, block) = unit.written_from(&header.cdb())?;
                Some(Site { offset, block })
            }
            op::DATA_OUT => {
                let site = self.tasks.get(&header.itt())?.site?;
                Some(Site { offset: site.offset.saturating_add(u64::from(header.offset())), ..site })
            }
            _ => None,
        }
    }

    /// What becomes of the data behind this header.
    fn fate(&self, header: &Header) -> Fate {
        match header.opcode() {
            op::DATA_OUT => match self.tasks.get(&header.itt()).map(|task| &task.phase) {
                Some(Phase::Solicited { .. }) => Fate::Asked(self.site(header)),
                Some(Phase::Unsolicited { .. }) => Fate::Unasked(self.site(header)),
                _ => Fate::Useless,
            },
            op::COMMAND | op::NOP_OUT | op::TEXT if !header.immediate() && self.ahead(header).is_none() => {
                Fate::Useless
            }
            op::COMMAND if self.is_misplaced(header) => Fate::Useless,
            op::COMMAND => Fate::Unasked(self.site(header)),
            op::NOP_OUT | op::TEXT => Fate::Unasked(None),
            _ => Fate::Useless,
        }
    }

    /// Whether a command brings data, or announces some, that it may not (RFC 7143 §13.10, §13.11, §13.14).
    fn is_misplaced(&self, header: &Header) -> bool {
        let ask = Ask::new(header);
        let burst = self.params.first_burst.min(ask.expected);
        let immediate = header.data_len();
        let may_carry = ask.write && self.params.immediate_data && immediate <= burst as usize;
        let may_follow = ask.write && !self.params.initial_r2t;
        (immediate > 0 && !may_carry) || (!header.is_final() && !may_follow)
    }

    fn command(&mut self, header: &Header, data: Landed) {
        let mut ask = Ask::new(header);
        if self.is_outdated() {
            self.look_up();
            self.attach();
        }
        if self.reads.iter().any(|read| read.ask.itt == ask.itt) {
            self.look_up(); // which tells whether it is a task
        }
        if ask.itt == NO_TAG || self.tasks.contains_key(&ask.itt) {
            return self.reject(header, reject::TASK_IN_PROGRESS);
        }
        if ask.immediate && self.tasks.len() >= IMMEDIATE_MAX.saturating_add(WINDOW as usize) {
            return self.reject(header, reject::TOO_MANY_IMMEDIATE);
        }
        self.counters.commands.fetch_add(1, Ordering::Relaxed);
        let immediate = data.iter().map(Bytes::len).sum::<usize>();
        self.counters.bytes_in.fetch_add(immediate as u64, Ordering::Relaxed);
        let more = !header.is_final(); // unsolicited Data-Out follows
        let burst = self.params.first_burst.min(ask.expected);
        let immediate = u32::try_from(immediate).unwrap_or(u32::MAX);
        let misplaced = self.is_misplaced(header);
        let cdb = header.cdb();
        let begun = match self.unit(header.lun()) {
            _ if misplaced => Begin::Done(self.check(header.lun(), UNEXPECTED_DATA)),
            // The list is the target's, not the unit's.
            _ if cdb[0] == REPORT_LUNS => {
                let luns: SmallVec<[u16; 8]> = self.units.iter().map(|(lun, _)| *lun).collect();
                let asked = self.unit(header.lun()).map(|(unit, _)| &**unit);
                let response = scsi::target_luns(&cdb, &luns, asked);
                // Whoever has seen the list need not be told of it by any of the disks (SAM-5 §5.14).
                if response.status == scsi::Status::Good {
                    self.units.iter().for_each(|(_, (_, nexus))| nexus.luns_told());
                }
                Begin::Done(response)
            }
            Some((unit, nexus)) => match unit.open(nexus, &cdb, if ask.write { ask.expected } else { 0 }) {
                Opened::Begun(begun) => begun,
                Opened::Lookup(lookup) if lookup.is_short() && !more && immediate == 0 => {
                    return self.gather(SmallRead { ask, opcode: cdb[0], lookup });
                }
                Opened::Lookup(lookup) => {
                    let unit = Arc::clone(unit);
                    match self.may_be_answered(lookup.job().holds) {
                        true => unit.look_up_one(lookup),
                        false => Begin::Job(lookup.job()),
                    }
                }
            },
            None => Begin::Done(scsi::absent_lun(&cdb, &[])),
        };
        self.look_up(); // what came before it
        match begun {
            Begin::Done(response) if !more || misplaced => self.answer_at_once(&ask, cdb[0], response),
            Begin::Done(response) => {
                ask.wanted = 0;
                let mut task = Task::new(ask, None, Phase::Dropping(Box::new(response)));
                task.opcode = cdb[0];
                self.insert(task);
            }
            Begin::Job(job) => {
                let left = burst.saturating_sub(immediate);
                let mut task = Task::new(ask, Some(job), Phase::Unsolicited { left });
                (task.opcode, task.since) = (cdb[0], Some(Instant::now()));
                task.unasked = immediate;
                self.unasked = self.unasked.saturating_add(u64::from(immediate));
                task.site = self.site(header);
                task.keep(data);
                let itt = ask.itt;
                self.insert(task);
                if !more {
                    self.sequence_complete(itt);
                }
            }
        }
    }

    fn answer_at_once(&mut self, ask: &Ask, opcode: u8, response: Response) {
        if let Some(tally) = self.tally(ask.lun) {
            let is_good = response.status == scsi::Status::Good;
            tally.at_once(opcode, scsi::pieces::total_len(&response.data) as u64, is_good);
        }
        self.answer(ask, response, 0);
    }

    fn insert(&mut self, task: Task) {
        if let Some((tally, since)) = self.tally(task.ask.lun).zip(task.since) {
            tally.began(since);
        }
        if !task.ask.immediate {
            self.under_way = self.under_way.saturating_add(1);
        }
        self.tasks.insert(task.ask.itt, task);
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

    /// A command is over, answered or not, and moved so many bytes.
    fn end_task(&mut self, itt: u32, moved: u64) -> Option<Task> {
        let task = self.tasks.remove(&itt)?;
        // Another command may have its tag before its turn comes.
        match task.phase {
            Phase::Waiting => self.waiting.retain(|waiting| *waiting != itt),
            Phase::Queued => self.queued.retain(|queued| *queued != itt),
            _ => {}
        }
        // Another disk that has its number by now never saw it begin.
        let since = task.since.filter(|_| !task.has_no_disk);
        if let Some((tally, since)) = self.tally(task.ask.lun).zip(since) {
            tally.ended(task.opcode, moved, since);
        }
        if !task.ask.immediate {
            self.under_way = self.under_way.saturating_sub(1);
        }
        self.unasked = self.unasked.saturating_sub(u64::from(task.unasked));
        self.asked = self.asked.saturating_sub(u64::from(task.granted));
        self.awaited = self.awaited.saturating_sub(u64::from(task.awaited));
        self.holds = self.holds.saturating_sub(u64::from(task.holds));
        self.grant();
        Some(task)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.detach();
    }
}

/// The one command that is the target's and not a disk's.
const REPORT_LUNS: u8 = 0xa0;

/// Unexpected unsolicited data (RFC 7143 §11.4.7.2).
const UNEXPECTED_DATA: Sense = Sense { key: 0xb, asc: 0x0c, ascq: 0x0c, information: None, field: None };
