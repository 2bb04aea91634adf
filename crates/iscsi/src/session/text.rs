//! Text requests of a session: discovery, and the few keys that may still change (RFC 7143 §11.10–11.11, appendix C).
//!
//! Each key is answered once, so an answer is bounded by what there is to tell: one list of the targets, and a few bytes
//! for each of a request's other keys. One is kept at a time, until it was fetched or something else is asked.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;

use super::{Session, TEXT_MAX};
use crate::{
    negotiate::{self, Answer, Params},
    pdu::{Header, NO_TAG, op, reject},
    targets::{Portal, Target},
};

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
        // Nothing of it is done if a key comes twice (§6.4). Sixty-four KiB of SendTargets would be thousands of lists.
        let mut keys = BTreeSet::new();
        if !pairs.iter().all(|(key, _)| keys.insert(*key)) {
            return self.reject(header, reject::PROTOCOL_ERROR);
        }
        let mut answers = Vec::new();
        for (key, value) in pairs {
            match key {
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
        self.text_response(header.itt(), answers.into());
    }

    /// As much of an answer as the initiator takes at a time.
    fn text_response(&mut self, itt: u32, mut rest: Bytes) {
        let mut h = Header::new(op::TEXT_RESPONSE);
        h.set(16, itt).set(20, NO_TAG);
        let answer = rest.split_to(rest.len().min(self.params.send_max as usize));
        if !rest.is_empty() {
            let ttt = self.take_ttt();
            h.0[1] = 0x40; // continued
            h.set(20, ttt);
            self.text_out = Some((ttt, rest));
        }
        self.send(h, &answer, true);
    }

    /// SendTargets: `All` in discovery, a name, or nothing for the session's own (RFC 7143 appendix C).
    fn send_targets(&self, which: &str, out: &mut Vec<u8>) {
        let targets = match which {
            "All" if self.target.is_none() => self.targets.listed(),
            "" => self.target.iter().cloned().collect(),
            "All" => {
                negotiate::put(out, "SendTargets", "Reject");
                return;
            }
            name => self.targets.find(name).into_iter().collect(),
        };
        // The portal it came by first; then the others.
        let here = Portal { address: self.local, group: self.key.group };
        let others = self.targets.portals();
        let others = others.iter().filter(|portal| portal.address != self.local && portal.is_one_place());
        let portals: Vec<Portal> = [here].into_iter().chain(others.copied()).collect();
        // What an initiator may not use is not named to it.
        let may = |target: &Arc<Target>| target.access().admits(&self.key.initiator, self.peer);
        for target in targets.iter().filter(|target| may(target)) {
            let mut reachable = portals.iter().filter(|portal| target.is_in_group(portal.group)).peekable();
            if reachable.peek().is_none() {
                continue;
            }
            negotiate::put(out, "TargetName", target.iqn());
            for portal in reachable {
                negotiate::put(out, "TargetAddress", &format!("{},{}", portal.address, portal.group));
            }
        }
    }
}
