//! The login phase of one connection as a value (RFC 7143 §6.3, §11.12–11.13).
//!
//! ```text
//!   security (0) ──▶ operational (1) ──▶ full feature (3)        any may be the first, stages may be skipped
//! ```
//!
//! Each request's text is collected until its C bit is clear, then every key is answered. The last
//! response is held back ([`Step::Accepted`]) until the caller has the session's place in the
//! registry; [`Login::finish`] sends it. Whatever goes wrong is a login response with its own
//! status, then the end.
//!
//! Whether an initiator has to prove itself is the target's to say (for discovery, the server's): then nothing but
//! `CHAP` is agreed on, no stage is left and none skipped before it has (`authenticate`).

use std::{
    collections::{BTreeMap, btree_map::Entry},
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use block::shown;

use crate::{
    access::{Access, Auth},
    chap::{Exchange, Said},
    iqn,
    negotiate::{self, Answer, Params, RECEIVE_MAX},
    pdu::{Fatal, Header, Outbox, op},
    session::window,
    targets::{SessionKey, Target, Targets},
};

/// Text of one login request over all its PDUs.
const TEXT_MAX: usize = 64 << 10;
/// Requests before full feature: more is a peer that will never end.
const REQUESTS_MAX: u32 = 64;

/// Keys that may come in one login.
const KEYS_MAX: usize = 256;
/// Bytes of them, and of the values of those that may come again: no gate counts what is remembered of who is not logged in.
const REMEMBERED_MAX: usize = 16 << 10;
/// Keys that are said and not haggled over (RFC 7143 §13): whoever says one again says nothing new.
const DECLARATIONS: [&str; 5] =
    ["InitiatorName", "InitiatorAlias", "TargetName", "SessionType", "MaxRecvDataSegmentLength"];

const SECURITY: u8 = 0;
const OPERATIONAL: u8 = 1;
const FULL_FEATURE: u8 = 3;

/// Login status class and detail (RFC 7143 §11.13.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the standard's")]
pub enum Status {
    Success = 0x0000,
    InitiatorError = 0x0200,
    AuthenticationFailed = 0x0201,
    NotAuthorised = 0x0202,
    NotFound = 0x0203,
    Removed = 0x0204,
    UnsupportedVersion = 0x0205,
    TooManyConnections = 0x0206,
    MissingParameter = 0x0207,
    SessionType = 0x0209,
    NoSuchSession = 0x020a,
    InvalidRequest = 0x020b,
    ServiceUnavailable = 0x0301,
}

/// What a login request came to.
#[derive(Debug)]
pub enum Step {
    /// Answered; more requests follow.
    Continue,
    /// Refused; close once the response is sent.
    Refused(Status),
    /// All is agreed: claim the session's place, then [`Login::finish`].
    Accepted,
}

/// A connection that is not logged in yet.
pub struct Login {
    /// The portal it came in by, and where from.
    local: SocketAddr,
    peer: SocketAddr,
    exchange: Option<Exchange>,
    said: Said,
    methods: Option<String>,
    /// Initiator's choice, from the first request: ITT, CID, ISID, TSIH.
    fixed: Option<Fixed>,
    text: Vec<u8>,
    requests: u32,
    stat_sn: u32,
    exp_cmd_sn: u32,
    /// Commands that may be under way.
    window: u32,
    initiator: Option<String>,
    target_name: Option<String>,
    discovery: bool,
    target: Option<Arc<Target>>,
    group: u16,
    /// The stage we are in.
    stage: u8,
    declared: bool,
    /// The keys that came: in which request, and those that may come again with what value.
    seen: BTreeMap<String, (u32, Option<String>)>,
    /// Bytes of that.
    remembered: usize,
    /// What is wrong with what was said, for the log.
    fault: Option<String>,
    params: Params,
    last: Option<(Header, Vec<u8>)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Fixed {
    itt: u32,
    cid: [u8; 2],
    isid: [u8; 6],
    tsih: u16,
}

/// What a finished login hands to the session.
pub struct Accepted {
    pub(crate) key: SessionKey,
    pub(crate) cid: [u8; 2],
    /// `None` for a discovery session.
    pub(crate) target: Option<Arc<Target>>,
    pub(crate) params: Params,
    pub(crate) stat_sn: u32,
    pub(crate) exp_cmd_sn: u32,
    pub(crate) window: u32,
    /// What we said we take in one data segment.
    pub(crate) receive_max: u32,
    pub(crate) peer: SocketAddr,
    /// What the initiator has proven itself by.
    pub(crate) proven: Option<Auth>,
}

impl Default for Login {
    /// From and to nowhere in particular.
    fn default() -> Self {
        let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Self::new(nowhere, nowhere)
    }
}

impl Login {
    /// A connection that came in by the portal `local`.
    pub fn new(local: SocketAddr, peer: SocketAddr) -> Self {
        Self {
            local,
            peer,
            exchange: None,
            said: Said::default(),
            methods: None,
            fixed: None,
            text: Vec::new(),
            requests: 0,
            stat_sn: 0,
            exp_cmd_sn: 0,
            window: crate::session::WINDOW,
            initiator: None,
            target_name: None,
            discovery: false,
            target: None,
            group: scsi::PORT_GROUP,
            stage: SECURITY,
            declared: false,
            seen: BTreeMap::new(),
            remembered: 0,
            fault: None,
            params: Params::default(),
            last: None,
        }
    }

    /// Takes one PDU.
    pub fn handle(
        &mut self,
        header: &Header,
        data: &[u8],
        targets: &Targets,
        out: &mut Outbox,
    ) -> Result<Step, Fatal> {
        if header.opcode() != op::LOGIN {
            return Err(Fatal::Protocol("a PDU other than login before the login"));
        }
        let gate = &targets.config().gate;
        self.params.first_burst_max = negotiate::first_burst_for(gate.max());
        self.window = window(gate, &self.params);
        match self.request(header, data, targets, out) {
            Ok(step) => Ok(step),
            Err(status) => {
                self.refuse(header, status, out);
                Ok(Step::Refused(status))
            }
        }
    }

    /// Refuses a connection whatever it asks: shutting down, or out of room.
    pub fn refuse(&mut self, header: &Header, status: Status, out: &mut Outbox) {
        let mut response = self.response(header);
        response.0[1] = 0;
        let [class, detail] = (status as u16).to_be_bytes();
        (response.0[36], response.0[37]) = (class, detail);
        out.push(response, &[]);
    }

    fn response(&mut self, request: &Header) -> Header {
        let mut h = Header::new(op::LOGIN_RESPONSE);
        h.0[8..16].copy_from_slice(&request.0[8..16]); // ISID, TSIH
        h.set(16, request.itt()).set(24, self.stat_sn);
        h.set(28, self.exp_cmd_sn).set(32, self.exp_cmd_sn.wrapping_add(self.window).wrapping_sub(1));
        self.stat_sn = self.stat_sn.wrapping_add(1);
        h
    }

    fn request(
        &mut self,
        header: &Header,
        data: &[u8],
        targets: &Targets,
        out: &mut Outbox,
    ) -> Result<Step, Status> {
        let h = &header.0;
        let flags = header.flags();
        let (transit, more) = (flags & 0x80 != 0, flags & 0x40 != 0);
        let (current, next) = ((flags >> 2) & 3, flags & 3);
        let fixed = Fixed {
            itt: header.itt(),
            cid: [h[20], h[21]],
            isid: [h[8], h[9], h[10], h[11], h[12], h[13]],
            tsih: u16::from_be_bytes([h[14], h[15]]),
        };
        self.requests = self.requests.saturating_add(1);
        match self.fixed {
            None => {
                self.exp_cmd_sn = header.cmd_sn();
                self.stat_sn = header.exp_stat_sn();
                self.fixed = Some(fixed);
                if h[3] > 0 {
                    return Err(Status::UnsupportedVersion); // Version-min above ours
                }
            }
            Some(first) if first == fixed => {}
            Some(_) => return Err(Status::InvalidRequest),
        }
        let stages_fit = match (current, next) {
            _ if more && transit => false,
            (SECURITY | OPERATIONAL, _) if !transit => true,
            (SECURITY, OPERATIONAL | FULL_FEATURE) | (OPERATIONAL, FULL_FEATURE) => true,
            _ => false,
        };
        if self.requests == 1 {
            self.stage = current;
        }
        if !stages_fit || current != self.stage {
            let stages = format!("stage {current} to {next} in stage {}", self.stage);
            return Err(self.at_fault(Status::InitiatorError, stages));
        }
        if self.requests > REQUESTS_MAX || self.text.len().saturating_add(data.len()) > TEXT_MAX {
            return Err(self.at_fault(Status::InitiatorError, "it takes too much to say"));
        }
        self.text.extend_from_slice(data);
        let mut response = self.response(header);
        response.0[1] = current.wrapping_shl(2);
        if more {
            out.push(response, &[]);
            return Ok(Step::Continue);
        }
        let text = std::mem::take(&mut self.text);
        let mut answers = Vec::new();
        self.keys(&text, &mut answers)?;
        if self.target.is_none() {
            self.identify(targets, &mut answers)?;
        }
        let proven = self.authenticate(current, targets, &mut answers)?;
        if current == OPERATIONAL && !self.declared {
            self.declared = true;
            negotiate::put(&mut answers, "MaxRecvDataSegmentLength", &RECEIVE_MAX.to_string());
        }
        if answers.len() > self.params.send_max as usize {
            // Eight KiB of answers would take a text of repeated unknown keys.
            return Err(Status::InitiatorError);
        }
        // Who has yet to prove itself stays where it is, whatever it asks.
        if transit && proven {
            response.0[1] |= 0x80 | next;
            self.stage = next;
            if next == FULL_FEATURE {
                self.last = Some((response, answers));
                return Ok(Step::Accepted);
            }
        }
        out.push(response, &answers);
        Ok(Step::Continue)
    }

    /// Whether the initiator may go on to another stage: it has shown who it is, or need not.
    fn authenticate(&mut self, stage: u8, targets: &Targets, answers: &mut Vec<u8>) -> Result<bool, Status> {
        let access: Arc<Access> = match &self.target {
            Some(target) => target.access(),
            None => targets.discovery(),
        };
        let said = std::mem::take(&mut self.said);
        let needed = !access.auth.is_empty();
        let methods = self.methods.take();
        if let Some(methods) = &methods {
            let wanted = if needed { "CHAP" } else { "None" };
            if !methods.split(',').any(|method| method == wanted) {
                let methods = shown(methods);
                let why = format!("AuthMethod is {}, and has to be {wanted}", methods.escape_debug());
                self.fault = Some(why);
                return Err(Status::AuthenticationFailed);
            }
            negotiate::put(answers, "AuthMethod", wanted);
            self.exchange = needed.then_some(Exchange::Agreed);
        }
        if !needed {
            return Ok(true);
        }
        let exchange = self.exchange.as_mut().ok_or(Status::AuthenticationFailed)?;
        let before = std::mem::discriminant(exchange);
        if stage == SECURITY {
            let random = |bytes: &mut [u8]| targets.service().fill_random(bytes);
            let stepped = exchange.step(&said, &access.auth, &random, answers);
            stepped.map_err(|_| Status::AuthenticationFailed)?;
        }
        let proven = matches!(exchange, Exchange::Proven(_));
        // A request that brings nothing on is a peer that will never end.
        let stands_still = std::mem::discriminant(exchange) == before && methods.is_none();
        if !proven && stands_still { Err(Status::AuthenticationFailed) } else { Ok(proven) }
    }

    /// No key may come twice (§6.3). But libiscsi, and QEMU with it, says in the operational stage again who it is if it
    /// began with the security stage: a declaration may be repeated as it was in a later request, and is passed over.
    fn came_before(&mut self, key: &str, value: &str) -> Result<bool, Status> {
        let count = self.seen.len();
        let declared = DECLARATIONS.contains(&key).then_some(value);
        let remembered =
            self.remembered.saturating_add(key.len()).saturating_add(declared.map_or(0, str::len));
        let said = match self.seen.entry(key.to_owned()) {
            Entry::Vacant(_) if count >= KEYS_MAX => "is one key too many",
            Entry::Vacant(_) if remembered > REMEMBERED_MAX => "is more than is remembered",
            Entry::Vacant(place) => {
                place.insert((self.requests, declared.map(str::to_owned)));
                self.remembered = remembered;
                return Ok(false);
            }
            Entry::Occupied(before) if before.get().0 == self.requests => "comes twice in one request",
            Entry::Occupied(before) => match (&before.get().1, declared) {
                (Some(before), Some(value)) if before == value => return Ok(true),
                (Some(_), _) => "comes again with another value",
                (None, _) => "comes twice",
            },
        };
        Err(self.at_fault(Status::InitiatorError, format!("{} {said}", key.escape_debug())))
    }

    fn at_fault(&mut self, status: Status, why: impl Into<String>) -> Status {
        self.fault = Some(why.into());
        status
    }

    /// Why it was refused, as far as the status does not say it.
    pub fn fault(&self) -> &str {
        self.fault.as_deref().unwrap_or_default()
    }

    fn keys(&mut self, text: &[u8], answers: &mut Vec<u8>) -> Result<(), Status> {
        let Some(pairs) = negotiate::pairs(text) else {
            return Err(self.at_fault(Status::InitiatorError, "what is said is no list of keys"));
        };
        for (key, value) in pairs {
            if self.came_before(key, value)? {
                continue;
            }
            let answer = match key {
                "InitiatorName" => {
                    if !iqn::may_be_host(value) {
                        let strange = format!(
                            "InitiatorName is '{}': 1 to {} bytes are needed, without commas, blanks and control characters",
                            shown(value).escape_debug(),
                            iqn::NAME_MAX
                        );
                        return Err(self.at_fault(Status::InitiatorError, strange));
                    }
                    self.initiator = Some(value.to_ascii_lowercase());
                    Answer::Silence
                }
                "TargetName" => {
                    self.target_name = Some(value.to_ascii_lowercase());
                    Answer::Silence
                }
                "SessionType" => {
                    self.discovery = match value {
                        "Discovery" => true,
                        "Normal" => false,
                        _ => return Err(self.at_fault(Status::SessionType, "SessionType is neither of two")),
                    };
                    Answer::Silence
                }
                "AuthMethod" => {
                    self.methods = Some(value.to_owned());
                    Answer::Silence
                }
                _ if self.said.take(key, value) => Answer::Silence,
                _ => self.params.answer(key, value),
            };
            if let Answer::Say(value) = answer {
                negotiate::put(answers, key, &value);
            }
        }
        Ok(())
    }

    /// After the first whole request: who, to what, and whether a session of that name goes on.
    fn identify(&mut self, targets: &Targets, answers: &mut Vec<u8>) -> Result<(), Status> {
        if self.initiator.is_none() {
            return Err(self.at_fault(Status::MissingParameter, "InitiatorName is missing"));
        }
        let initiator = self.initiator.as_deref().unwrap_or_default();
        let peer = self.peer.ip();
        self.group = targets.group_of(self.local);
        if self.discovery {
            let admitted = targets.discovery().admits(initiator, peer);
            return if admitted { Ok(()) } else { Err(Status::NotAuthorised) };
        }
        let Some(name) = self.target_name.clone() else {
            return Err(self.at_fault(Status::MissingParameter, "TargetName is missing"));
        };
        let name = name.as_str();
        self.fault = Some(format!("TargetName is {}", shown(name).escape_debug()));
        // One that is awaited may have come between the first look and the answer that nobody waits for it.
        let (mut found, mut is_awaited) = (targets.find(name), false);
        if found.is_none() {
            is_awaited = targets.is_awaited(name);
            found = targets.find(name);
        }
        let target = match found {
            Some(target) => target,
            None if targets.was_removed(name) => return Err(Status::Removed),
            None if is_awaited => return Err(Status::ServiceUnavailable),
            None => return Err(Status::NotFound),
        };
        // As long as nobody comes in, this address may get the group yet that leads there.
        let is_open = target.is_ready() && !target.is_shut();
        if is_open && !target.is_in_group(self.group) {
            return Err(Status::NotFound);
        }
        if !target.access().admits(initiator, peer) {
            return Err(Status::NotAuthorised);
        }
        if !is_open {
            return Err(Status::ServiceUnavailable);
        }
        self.target = Some(target);
        self.fault = None;
        if let Some(Fixed { tsih, .. }) = self.fixed.filter(|fixed| fixed.tsih != 0) {
            // A further connection for a session: MaxConnections is 1.
            let exists = self.key().is_some_and(|key| targets.has_session(&key, tsih));
            return Err(if exists { Status::TooManyConnections } else { Status::NoSuchSession });
        }
        negotiate::put(answers, "TargetPortalGroupTag", &self.group.to_string());
        Ok(())
    }

    /// The session's identity, once known.
    pub(crate) fn key(&self) -> Option<SessionKey> {
        Some(SessionKey {
            initiator: self.initiator.clone()?,
            isid: self.fixed?.isid,
            target: self.target.as_ref().map(|t| t.iqn().to_owned()).unwrap_or_default(),
            group: self.group,
        })
    }

    /// The target logged in to; `None` in a discovery session.
    pub(crate) fn target(&self) -> Option<&Arc<Target>> {
        self.target.as_ref()
    }

    /// The credential that the initiator has proven itself by.
    pub(crate) fn proven(&self) -> Option<&Auth> {
        match &self.exchange {
            Some(Exchange::Proven(auth)) => Some(auth),
            _ => None,
        }
    }

    /// Sends the last response with the session's handle. `None` unless the last step was [`Step::Accepted`].
    pub fn finish(mut self, tsih: u16, out: &mut Outbox) -> Option<Accepted> {
        let (mut response, answers) = self.last.take()?;
        [response.0[14], response.0[15]] = tsih.to_be_bytes();
        let key = self.key()?;
        out.push(response, &answers);
        Some(Accepted {
            key,
            cid: self.fixed.map(|fixed| fixed.cid).unwrap_or_default(),
            peer: self.peer,
            proven: self.proven().cloned(),
            target: self.target,
            params: self.params,
            stat_sn: self.stat_sn,
            exp_cmd_sn: self.exp_cmd_sn,
            window: self.window,
            receive_max: if self.declared { RECEIVE_MAX } else { 8192 },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targets::Config;

    /// Says this in a login for discovery, a request each; what came of the last.
    fn say(login: &mut Login, requests: &[String]) -> Step {
        let (targets, mut outbox) = (Targets::new(Config::default()), Outbox::default());
        let mut header = Header::new(op::LOGIN | 0x40);
        header.0[1] = OPERATIONAL << 2;
        let mut last = Step::Continue;
        for request in requests {
            assert!(matches!(last, Step::Continue), "{}", login.fault());
            last = login.handle(&header, request.as_bytes(), &targets, &mut outbox).unwrap();
            outbox.drain();
        }
        last
    }

    fn who() -> String {
        "InitiatorName=iqn.a\0SessionType=Discovery\0".to_owned()
    }

    /// Each was eight kilobytes, and six times as much in the log: gigabytes a day, of ten lines in ten seconds.
    #[test]
    fn names_that_clients_make_up_fill_no_log() {
        let long = "\x7f".repeat(8000);
        for (said, begins) in [
            (format!("InitiatorName=iqn.a\0TargetName={long}\0"), "TargetName is \\u{7f}"),
            (format!("InitiatorName={long}\0SessionType=Discovery\0"), "InitiatorName is '\\u{7f}"),
            (who() + &format!("AuthMethod={long}\0"), "AuthMethod is \\u{7f}"),
        ] {
            let mut login = Login::default();
            assert!(matches!(say(&mut login, &[said]), Step::Refused(_)));
            let fault = login.fault();
            assert!(fault.starts_with(begins) && fault.contains('…'), "{fault}");
            assert!(fault.len() < 1000, "{} bytes", fault.len());
        }
    }

    /// Half a MiB for each connection, of hundreds that need not prove anything to anybody.
    #[test]
    fn a_login_that_says_much_is_not_remembered_by_what_it_said() {
        let long = "x".repeat(8000);
        let mut requests: Vec<String> = (0..50).map(|n| format!("X-{n}={long}\0")).collect();
        requests[0] = who() + &format!("CHAP_C={long}\0");
        requests[1] = format!("CHAP_N={long}\0");
        let mut login = Login::default();
        let last = say(&mut login, &requests);
        assert!(matches!(last, Step::Continue), "{}", login.fault());
        let values = login.seen.values().filter_map(|(_, value)| value.as_ref());
        let seen: usize = login.seen.keys().chain(values).map(String::len).sum();
        assert_eq!(login.remembered, seen);
        assert!(seen < 512, "{seen}");
        assert!(login.said.name.is_none() && login.said.challenge.is_none());
    }

    #[test]
    fn declarations_without_end_are_refused_as_soon_as_they_are_more_than_is_remembered() {
        let long = "x".repeat(8000);
        let mut said = vec![who(), format!("InitiatorAlias={long}\0"), format!("TargetName={long}\0")];
        assert!(matches!(say(&mut Login::default(), &said), Step::Continue));
        said.push(format!("MaxRecvDataSegmentLength={long}\0"));
        let mut login = Login::default();
        assert!(matches!(say(&mut login, &said), Step::Refused(Status::InitiatorError)));
        assert_eq!(login.fault(), "MaxRecvDataSegmentLength is more than is remembered");
    }
}
