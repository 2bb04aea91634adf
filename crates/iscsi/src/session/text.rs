//! Text requests of a session: discovery, and the few keys that may still change (RFC 7143 §11.10–11.11, appendix C).
//!
//! Each key is answered once, so an answer is bounded by what there is to tell: a few bytes for each of a request's keys,
//! and the list of the targets. Anybody may ask for that, and it may be long: it comes last, and is made as it is fetched.
//! A request costs about what it sends, and what is kept of an answer is where to go on. One is kept at a time, until it was
//! fetched or something else is asked.

use std::collections::BTreeSet;

use super::{Session, TEXT_MAX};
use crate::{
    negotiate::{self, Answer, Params},
    pdu::{Header, NO_TAG, op, reject},
    targets::{Portal, Target},
};

/// Longest piece of an answer, in bytes. Clients that know no more than one piece take this much.
const PIECE_MAX: usize = 256 << 10;
/// Targets that the initiator may not use are passed over, so many for all requests that came in together: what is behind them
/// is told when it is fetched. A host asks once at a time, and hardly meets this; who asks thousands of times in a row would
/// have all of them looked at as often.
const PASSED_OVER_MAX: usize = 4096;

/// What is left of an answer.
#[derive(Debug)]
pub(super) struct Rest {
    text: Vec<u8>,
    /// Then come the targets behind the one of this name.
    targets: Option<String>,
}

impl Rest {
    fn is_empty(&self) -> bool {
        self.text.is_empty() && self.targets.is_none()
    }
}

impl Session {
    pub(super) fn text(&mut self, header: &Header, data: &[u8]) {
        let ttt = header.word20();
        let more = header.flags() & 0x40 != 0;
        let before = self.text_in.take();
        let mut text = match before {
            // The rest of what it says, under the tag that it was asked for with.
            Some((mine, text)) if mine == ttt => text,
            _ if ttt == NO_TAG => {
                self.text_out = None;
                Vec::new()
            }
            // The initiator asks for the rest of an answer.
            _ => {
                return match self.text_out.take() {
                    Some((mine, rest)) if mine == ttt => self.text_response(header.itt(), rest),
                    _ => self.reject(header, reject::INVALID_FIELD),
                };
            }
        };
        if text.len().saturating_add(data.len()) > TEXT_MAX {
            return self.reject(header, reject::PROTOCOL_ERROR);
        }
        text.extend_from_slice(data);
        if more {
            let mut h = Header::new(op::TEXT_RESPONSE);
            h.0[1] = 0;
            let ttt = self.take_ttt();
            h.set(16, header.itt()).set(20, ttt);
            self.text_in = Some((ttt, text));
            return self.send(h, &[], true);
        }
        let Some(pairs) = negotiate::pairs(&text) else {
            return self.reject(header, reject::PROTOCOL_ERROR);
        };
        // Nothing of it is done if a key comes twice (§6.4).
        let mut keys = BTreeSet::new();
        if !pairs.iter().all(|(key, _)| keys.insert(*key)) {
            return self.reject(header, reject::PROTOCOL_ERROR);
        }
        let (mut answers, mut targets) = (Vec::new(), None);
        for (key, value) in pairs {
            match key {
                "SendTargets" if value == "All" && self.target.is_none() => targets = Some(String::new()),
                "SendTargets" => self.send_targets(value, &mut answers),
                // The one operational key that may change now; all others are fixed at login.
                "MaxRecvDataSegmentLength" => {
                    if let Answer::Say(answer) = self.params.answer(key, value) {
                        negotiate::put(&mut answers, key, &answer);
                    }
                }
                _ => match Params::default().answer(key, value) {
                    Answer::Say(answer) if answer == "NotUnderstood" => {
                        negotiate::put(&mut answers, key, &answer);
                    }
                    _ => negotiate::put(&mut answers, key, "Reject"),
                },
            }
        }
        self.text_response(header.itt(), Rest { text: answers, targets });
    }

    /// As much of an answer as the initiator takes at a time. It may be less, or nothing, before all of it was told.
    fn text_response(&mut self, itt: u32, mut rest: Rest) {
        let most = PIECE_MAX.min(self.params.send_max as usize);
        let mut piece = std::mem::take(&mut rest.text);
        if piece.len() < most
            && let Some(name) = rest.targets.take()
        {
            rest.targets = self.tell_targets(name, &mut piece, most);
        }
        rest.text = piece.split_off(piece.len().min(most));
        let mut h = Header::new(op::TEXT_RESPONSE);
        h.set(16, itt).set(20, NO_TAG);
        if !rest.is_empty() {
            let ttt = self.take_ttt();
            h.0[1] = 0x40; // continued
            h.set(20, ttt);
            self.text_out = Some((ttt, rest));
        }
        self.send(h, &piece, true);
    }

    /// Bytes that are kept of a request, and of an answer, that goes on.
    pub(super) fn text_held(&self) -> usize {
        let asked = self.text_in.as_ref().map_or(0, |(_, text)| text.capacity());
        let rest = self.text_out.as_ref().map(|(_, rest)| rest);
        let told = rest.map_or(0, |rest| rest.text.len());
        let name = rest.and_then(|rest| rest.targets.as_ref()).map_or(0, String::len);
        asked.saturating_add(told).saturating_add(name)
    }

    /// Tells of the targets behind the one of this name (RFC 7143 appendix C, `SendTargets=All`), until there are `most` bytes.
    /// Returns the name behind which to go on, if there are more.
    fn tell_targets(&mut self, mut name: String, out: &mut Vec<u8>, most: usize) -> Option<String> {
        let portals = self.portals();
        while let Some(target) = self.targets.listed_after(&name) {
            if out.len() >= most || self.passed_over >= PASSED_OVER_MAX {
                return Some(name);
            }
            if !self.tell_target(&target, &portals, out) {
                self.passed_over = self.passed_over.saturating_add(1);
            }
            target.iqn().clone_into(&mut name);
        }
        None
    }

    /// SendTargets: a name, or nothing for the session's own (RFC 7143 appendix C).
    fn send_targets(&self, which: &str, out: &mut Vec<u8>) {
        let target = match which {
            "" => self.target.clone(),
            "All" => return negotiate::put(out, "SendTargets", "Reject"),
            name => self.targets.find(name),
        };
        if let Some(target) = target {
            self.tell_target(&target, &self.portals(), out);
        }
    }

    /// Where targets are reached: at the portal it came by first, then at the others.
    fn portals(&self) -> Vec<Portal> {
        let here = Portal { address: self.local, group: self.key.group };
        let others = self.targets.portals();
        let others = others.iter().filter(|portal| portal.address != self.local && portal.is_one_place());
        [here].into_iter().chain(others.copied()).collect()
    }

    /// Tells of a target and where it is reached. False if the initiator may not use it: then it is not named to it.
    fn tell_target(&self, target: &Target, portals: &[Portal], out: &mut Vec<u8>) -> bool {
        let mut reachable = portals.iter().filter(|portal| target.is_in_group(portal.group)).peekable();
        if !target.access().admits(&self.key.initiator, self.peer) || reachable.peek().is_none() {
            return false;
        }
        negotiate::put(out, "TargetName", target.iqn());
        for portal in reachable {
            negotiate::put(out, "TargetAddress", &format!("{},{}", portal.address, portal.group));
        }
        true
    }
}
