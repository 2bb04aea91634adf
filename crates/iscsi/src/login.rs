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
//! Authentication has one place: [`Login::security`]. Only `None` is offered for now.

use std::{collections::BTreeSet, sync::Arc};

use crate::{
    negotiate::{self, Answer, Params, RECEIVE_MAX},
    pdu::{Fatal, Header, Outbox, op},
    targets::{SessionKey, Target, Targets},
};

/// Text of one login request over all its PDUs.
const TEXT_MAX: usize = 64 << 10;
/// Requests before full feature: more is a peer that will never end.
const REQUESTS_MAX: u32 = 64;

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
    NotFound = 0x0203,
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
#[derive(Default)]
pub struct Login {
    /// Initiator's choice, from the first request: ITT, CID, ISID, TSIH.
    fixed: Option<Fixed>,
    text: Vec<u8>,
    requests: u32,
    stat_sn: u32,
    exp_cmd_sn: u32,
    initiator: Option<String>,
    target_name: Option<String>,
    discovery: bool,
    target: Option<Arc<Target>>,
    /// The stage we are in.
    stage: u8,
    declared: bool,
    seen: BTreeSet<String>,
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
    /// `None` for a discovery session.
    pub(crate) target: Option<Arc<Target>>,
    pub(crate) params: Params,
    pub(crate) stat_sn: u32,
    pub(crate) exp_cmd_sn: u32,
    /// What we said we take in one data segment.
    pub(crate) receive_max: u32,
}

impl Login {
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
        h.set(28, self.exp_cmd_sn).set(32, self.exp_cmd_sn.wrapping_add(crate::session::WINDOW - 1));
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
        if !stages_fit || current != self.stage || self.requests > REQUESTS_MAX {
            return Err(Status::InitiatorError);
        }
        if self.text.len().saturating_add(data.len()) > TEXT_MAX {
            return Err(Status::InitiatorError);
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
        if current == OPERATIONAL && !self.declared {
            self.declared = true;
            negotiate::put(&mut answers, "MaxRecvDataSegmentLength", &RECEIVE_MAX.to_string());
        }
        if answers.len() > self.params.send_max as usize {
            // Eight KiB of answers would take a text of repeated unknown keys.
            return Err(Status::InitiatorError);
        }
        if transit {
            if !self.security() {
                return Err(Status::AuthenticationFailed);
            }
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

    /// Whether the initiator has shown who it is. Methods other than `None` come here.
    fn security(&self) -> bool {
        true
    }

    fn keys(&mut self, text: &[u8], answers: &mut Vec<u8>) -> Result<(), Status> {
        for (key, value) in negotiate::pairs(text).ok_or(Status::InitiatorError)? {
            if !self.seen.insert(key.to_owned()) || self.seen.len() > 256 {
                return Err(Status::InitiatorError); // no key may come twice (§6.3)
            }
            let answer = match key {
                "InitiatorName" => {
                    if value.is_empty() || value.len() > crate::iqn::NAME_MAX {
                        return Err(Status::InitiatorError);
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
                        _ => return Err(Status::SessionType),
                    };
                    Answer::Silence
                }
                "AuthMethod" => {
                    if !value.split(',').any(|method| method == "None") {
                        return Err(Status::AuthenticationFailed);
                    }
                    Answer::Say("None".into())
                }
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
            return Err(Status::MissingParameter);
        }
        if self.discovery {
            return Ok(());
        }
        let name = self.target_name.as_deref().ok_or(Status::MissingParameter)?;
        let target = targets.find(name).ok_or(Status::NotFound)?;
        self.target = Some(target);
        if let Some(Fixed { tsih, .. }) = self.fixed.filter(|fixed| fixed.tsih != 0) {
            // A further connection for a session: MaxConnections is 1.
            let exists = self.key().is_some_and(|key| targets.has_session(&key, tsih));
            return Err(if exists { Status::TooManyConnections } else { Status::NoSuchSession });
        }
        negotiate::put(answers, "TargetPortalGroupTag", &scsi::PORT_GROUP.to_string());
        Ok(())
    }

    /// The session's identity, once known.
    pub(crate) fn key(&self) -> Option<SessionKey> {
        Some(SessionKey {
            initiator: self.initiator.clone()?,
            isid: self.fixed?.isid,
            target: self.target.as_ref().map(|t| t.iqn().to_owned()).unwrap_or_default(),
        })
    }

    /// The target logged in to; `None` in a discovery session.
    pub(crate) fn target(&self) -> Option<&Arc<Target>> {
        self.target.as_ref()
    }

    /// Sends the last response with the session's handle. `None` unless the last step was [`Step::Accepted`].
    pub fn finish(mut self, tsih: u16, out: &mut Outbox) -> Option<Accepted> {
        let (mut response, answers) = self.last.take()?;
        [response.0[14], response.0[15]] = tsih.to_be_bytes();
        let key = self.key()?;
        out.push(response, &answers);
        Some(Accepted {
            key,
            target: self.target,
            params: self.params,
            stat_sn: self.stat_sn,
            exp_cmd_sn: self.exp_cmd_sn,
            receive_max: if self.declared { RECEIVE_MAX } else { 8192 },
        })
    }
}
