//! Persistent reservations (SPC-4 §5.13, §6.13–6.14): who is registered, who holds the disk, and what each PERSISTENT
//! RESERVE OUT makes of that.
//!
//! ```text
//!   parameter list ─lists─▶ act: a copy of the state, changed ─▶ kept: bytes, made durable ─▶ the state, and whom to tell
//! ```
//!
//! This is plain data. [`Reservations::act`] changes it and says whom to tell; the logical unit keeps the result
//! durably (APTPL) *before* it becomes the state and is acknowledged, so that no initiator that was told of a
//! reservation can lose it to a power cut. Who is restricted is worked out once per change
//! ([`Reservations::limits`]), not per command.
//!
//! A registration belongs to an I_T nexus by *name*: a host that lost its cable and logs in again still has its own.

mod kept;
mod lists;
mod out;
mod table;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

pub(crate) use self::{
    out::Kept,
    table::{Class, class, passes_reserve6},
};
use crate::{
    nexus::{NexusId, limit},
    sense::Sense,
    unit::Refusal,
};
use lists::{MoveList, RegisterList, Transport};

/// Registrations at most: more than any cluster has paths.
const REGISTRANTS_MAX: usize = 1024;

/// Service actions of PERSISTENT RESERVE OUT.
mod action {
    pub(super) const REGISTER: u8 = 0;
    pub(super) const RESERVE: u8 = 1;
    pub(super) const RELEASE: u8 = 2;
    pub(super) const CLEAR: u8 = 3;
    pub(super) const PREEMPT: u8 = 4;
    pub(super) const PREEMPT_AND_ABORT: u8 = 5;
    pub(super) const REGISTER_AND_IGNORE: u8 = 6;
    pub(super) const REGISTER_AND_MOVE: u8 = 7;
}

/// Persistent reservation types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    WriteExclusive = 1,
    ExclusiveAccess = 3,
    WriteExclusiveRegistrants = 5,
    ExclusiveAccessRegistrants = 6,
    WriteExclusiveAll = 7,
    ExclusiveAccessAll = 8,
}

impl Kind {
    fn parse(kind: u8) -> Option<Self> {
        Some(match kind {
            1 => Self::WriteExclusive,
            3 => Self::ExclusiveAccess,
            5 => Self::WriteExclusiveRegistrants,
            6 => Self::ExclusiveAccessRegistrants,
            7 => Self::WriteExclusiveAll,
            8 => Self::ExclusiveAccessAll,
            _ => return None,
        })
    }

    /// Every registrant is the holder.
    fn all_hold(self) -> bool {
        matches!(self, Self::WriteExclusiveAll | Self::ExclusiveAccessAll)
    }

    /// Every registrant may do what the holder may.
    fn registrants_pass(self) -> bool {
        !matches!(self, Self::WriteExclusive | Self::ExclusiveAccess)
    }

    fn reads_pass(self) -> bool {
        matches!(self, Self::WriteExclusive | Self::WriteExclusiveRegistrants | Self::WriteExclusiveAll)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Registrant {
    id: NexusId,
    key: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    /// Who reserved; every registrant counts as holder if `kind.all_hold()`.
    by: NexusId,
    kind: Kind,
}

/// A PERSISTENT RESERVE OUT, and what it has to know of the world around.
pub(crate) struct Request<'a> {
    pub(crate) from: &'a NexusId,
    pub(crate) action: u8,
    pub(crate) scope: u8,
    pub(crate) kind: u8,
    pub(crate) list: &'a [u8],
    /// Every target port there is.
    pub(crate) ports: &'a [u16],
    /// Nexuses that are logged in now.
    pub(crate) attached: &'a [NexusId],
    /// There is a place to keep the state through power loss.
    pub(crate) can_keep: bool,
}

impl Request<'_> {
    /// The type that it asks for, of the only scope there is.
    fn kind(&self) -> Result<Kind, Sense> {
        if self.scope != 0 {
            return Err(Sense::cdb(2, 7));
        }
        Kind::parse(self.kind).ok_or(Sense::cdb(2, 3))
    }
}

/// What a PERSISTENT RESERVE OUT brings about besides the new state.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Unit attentions.
    pub(crate) attentions: Vec<(NexusId, Sense)>,
    /// Commands of these nexuses must have ended before the command is answered.
    pub(crate) abort: Vec<NexusId>,
}

/// A logical unit's persistent reservations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reservations {
    generation: u32,
    registrants: Vec<Registrant>,
    held: Option<Held>,
    /// The state outlives power loss: a registration asked for it (APTPL), and since then somebody was registered
    /// all the time. By the letter the last registration decides for all (SPC-4 §5.13.5). But hosts register a path
    /// that comes back by themselves, and do not know what their cluster had asked for: Windows' MPIO does so with
    /// APTPL=0. One cable that was out for a moment would unfence who was fenced before, with the next loss of power.
    persistent: bool,
    /// What was kept could not be read: until somebody registers and clears, nobody may touch the medium, for
    /// nobody knows who was fenced.
    unreadable: bool,
}

impl Reservations {
    /// Whether somebody is registered: RESERVE(6) then means something else (CRH, SPC-4 §5.13.3).
    pub(crate) fn registered(&self) -> bool {
        !self.registrants.is_empty()
    }

    /// Whether RESERVE(6) and RELEASE(6), which do nothing where there are registrations, are no conflict: for the holder,
    /// and where all registrants may do what it may (CRH, SPC-4 §5.13.3). Else two could believe that each has the disk.
    pub(crate) fn does_for_reserve6(&self, id: &NexusId) -> bool {
        self.held.is_some() && self.limits(id) == 0
    }

    fn key_of(&self, id: &NexusId) -> Option<u64> {
        self.registrants.iter().find(|r| r.id == *id).map(|r| r.key)
    }

    fn holds(&self, id: &NexusId) -> bool {
        self.held
            .as_ref()
            .is_some_and(|held| if held.kind.all_hold() { self.key_of(id).is_some() } else { held.by == *id })
    }

    /// What a nexus may not do: bits of [`limit`].
    pub(crate) fn limits(&self, id: &NexusId) -> u8 {
        if self.unreadable {
            return limit::READ | limit::WRITE;
        }
        let Some(held) = &self.held else { return 0 };
        if self.holds(id) || (held.kind.registrants_pass() && self.key_of(id).is_some()) {
            return 0;
        }
        if held.kind.reads_pass() { limit::WRITE } else { limit::READ | limit::WRITE }
    }

    /// The same for a copy that an initiator started elsewhere: it may what any of its nexuses with this unit may.
    pub(crate) fn limits_of_initiator(&self, name: &str) -> u8 {
        let stranger = NexusId { initiator: name.into(), port: 0 };
        let own = self.registrants.iter().filter(|r| r.id.initiator_name() == name);
        own.map(|r| self.limits(&r.id)).fold(self.limits(&stranger), |all, one| all & one)
    }

    /// Who is registered, whether as a holder, and of which type the reservation is.
    pub(crate) fn registrations(&self) -> Vec<(NexusId, bool, Option<u8>)> {
        let kind = self.held.as_ref().map(|held| held.kind as u8);
        self.registrants.iter().map(|r| (r.id.clone(), self.holds(&r.id), kind)).collect()
    }

    /// PERSISTENT RESERVE IN. `can_keep`: there is a place that survives power loss.
    pub(crate) fn report(&self, action: u8, can_keep: bool) -> Result<Vec<u8>, Sense> {
        let mut body = Vec::new();
        match action {
            0 => self.registrants.iter().for_each(|r| body.extend(r.key.to_be_bytes())),
            1 => {
                if let Some(held) = &self.held {
                    // With "all registrants" there is no one holder, hence no key.
                    let key = if held.kind.all_hold() { 0 } else { self.key_of(&held.by).unwrap_or(0) };
                    body.extend(key.to_be_bytes());
                    body.extend([0, 0, 0, 0, 0, held.kind as u8, 0, 0]);
                }
            }
            2 => {
                // CRH, SIP_C, ATP_C, PTPL_C; TMV, nothing said of ALLOW COMMANDS, PTPL_A; all six types.
                let capable = 0x10 | 0x08 | 0x04 | u8::from(can_keep);
                let now = 0x80 | u8::from(self.persistent);
                return Ok(vec![0, 8, capable, now, 0xea, 0x01, 0, 0]);
            }
            3 => self.registrants.iter().for_each(|r| self.full_status(r, &mut body)),
            _ => return Err(Sense::cdb(1, 4)),
        }
        let mut out = self.generation.to_be_bytes().to_vec();
        out.extend(u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes());
        out.extend(body);
        Ok(out)
    }

    fn full_status(&self, registrant: &Registrant, out: &mut Vec<u8>) {
        let holds = self.holds(&registrant.id);
        let kind = self.held.as_ref().filter(|_| holds).map_or(0, |held| held.kind as u8);
        out.extend(registrant.key.to_be_bytes());
        out.extend([0, 0, 0, 0, u8::from(holds), kind, 0, 0, 0, 0]);
        out.extend(registrant.id.port.to_be_bytes());
        let transport = lists::transport_id(&registrant.id.initiator);
        out.extend(u32::try_from(transport.len()).unwrap_or(0).to_be_bytes());
        out.extend(transport);
    }

    /// PERSISTENT RESERVE OUT. On a refusal the state is undefined: act on a copy.
    pub(crate) fn act(&mut self, request: &Request<'_>) -> Result<Outcome, Refusal> {
        let from = request.from;
        if request.action == action::REGISTER_AND_MOVE {
            return self.register_and_move(request);
        }
        if request.action > action::REGISTER_AND_MOVE {
            return Err(Sense::cdb(1, 4).into());
        }
        let registers = matches!(request.action, action::REGISTER | action::REGISTER_AND_IGNORE);
        let list = RegisterList::parse(request.list, request.action == action::REGISTER)?;
        if registers && list.aptpl && !request.can_keep {
            return Err(Sense::parameter(20).into());
        }
        if registers {
            return self.register(request, &list);
        }
        if self.key_of(from) != Some(list.key) {
            return Err(Refusal::Conflict);
        }
        if request.action == action::CLEAR {
            return Ok(self.clear(from));
        }
        match request.action {
            action::RESERVE => self.reserve(from, request.kind()?),
            action::RELEASE => self.release(from, request.kind()?),
            action::PREEMPT => self.preempt(request, list.service_key, false),
            action::PREEMPT_AND_ABORT => self.preempt(request, list.service_key, true),
            _ => Err(Sense::cdb(1, 4).into()),
        }
    }

    fn changed(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }

    /// REGISTER, and REGISTER AND IGNORE EXISTING KEY (SPC-4 §5.13.7, table "Register behaviors").
    fn register(&mut self, request: &Request<'_>, list: &RegisterList) -> Result<Outcome, Refusal> {
        let from = request.from;
        let mine = self.key_of(from);
        let was_asked = self.persistent && self.registered();
        if request.action == action::REGISTER && mine.unwrap_or(0) != list.key {
            return Err(Refusal::Conflict);
        }
        if !list.others.is_empty() && (mine.is_some() || list.service_key == 0) {
            return Err(Sense::INVALID_FIELD_IN_CDB.into());
        }
        let ports = if list.all_ports { request.ports } else { std::slice::from_ref(&from.port) };
        let mut outcome = Outcome::default();
        if list.service_key == 0 {
            if mine.is_none() {
                return Ok(outcome); // taking back what is not there: GOOD, no effect, no new generation
            }
            // With all ports at those too that are not there any more: they may come back.
            let is_meant =
                |id: &NexusId| id.initiator == from.initiator && (list.all_ports || id.port == from.port);
            let ids = self.registrants.iter().map(|r| &r.id);
            let meant: Vec<NexusId> = ids.filter(|id| is_meant(id)).cloned().collect();
            meant.iter().for_each(|id| self.unregister(id, &mut outcome));
            // A nexus does not hear of what it did itself.
            outcome.attentions.retain(|(id, _)| id != from);
        } else {
            let key = list.service_key;
            let mut own: Vec<NexusId> = ports
                .iter()
                .map(|port| NexusId { initiator: Arc::clone(&from.initiator), port: *port })
                .collect();
            if !own.contains(from) {
                own.push(from.clone());
            }
            let others = self.named(&list.others, ports, request.attached, &own)?;
            for id in own {
                self.put(id, key)?;
            }
            if self.registrants.len().saturating_add(others.len()) > REGISTRANTS_MAX {
                return Err(Sense::NO_REGISTRATION_RESOURCES.into());
            }
            self.registrants.extend(others.into_iter().map(|id| Registrant { id, key }));
        }
        self.persistent = list.aptpl || (was_asked && self.registered());
        self.changed();
        Ok(outcome)
    }

    /// The nexuses that a list of TransportIDs means besides the sender's `own`, each once, none of which is registered. A name
    /// without ISID means every port of that name that is logged in. A list of a few hundred such names may mean a million
    /// times a nexus: it is given up when it means more than may be registered.
    fn named(
        &self,
        others: &[Transport],
        ports: &[u16],
        attached: &[NexusId],
        own: &[NexusId],
    ) -> Result<Vec<NexusId>, Sense> {
        let registered: BTreeSet<&NexusId> = self.registrants.iter().map(|r| &r.id).collect();
        let mut logged_in: BTreeMap<&str, BTreeSet<&Arc<str>>> = BTreeMap::new();
        for id in attached {
            logged_in.entry(id.initiator_name()).or_default().insert(&id.initiator);
        }
        let (mut out, mut meant, mut seen) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
        for other in others {
            if !seen.insert(other) {
                continue;
            }
            let initiators: Vec<&Arc<str>> = match other {
                Transport::Port(port) => vec![port],
                Transport::Device(name) => {
                    logged_in.get(name.as_str()).into_iter().flatten().copied().collect()
                }
            };
            if initiators.is_empty() {
                return Err(Sense::parameter(28));
            }
            let at_ports = |initiator: &Arc<str>| {
                let initiator = Arc::clone(initiator);
                ports.iter().map(move |port| NexusId { initiator: Arc::clone(&initiator), port: *port })
            };
            for id in initiators.into_iter().flat_map(at_ports) {
                // One that has a key already: the command fails and nobody is registered.
                if registered.contains(&id) {
                    return Err(Sense::parameter(24));
                }
                if own.contains(&id) || !meant.insert(id.clone()) {
                    continue;
                }
                out.push(id);
                if registered.len().saturating_add(out.len()) > REGISTRANTS_MAX {
                    return Err(Sense::NO_REGISTRATION_RESOURCES);
                }
            }
        }
        Ok(out)
    }

    fn put(&mut self, id: NexusId, key: u64) -> Result<(), Sense> {
        let room = self.registrants.len() < REGISTRANTS_MAX;
        match self.registrants.iter_mut().find(|r| r.id == id) {
            Some(registrant) => registrant.key = key,
            None if room => self.registrants.push(Registrant { id, key }),
            None => return Err(Sense::NO_REGISTRATION_RESOURCES),
        }
        Ok(())
    }

    fn unregister(&mut self, id: &NexusId, outcome: &mut Outcome) {
        let held_it = self.holds(id);
        self.registrants.retain(|r| r.id != *id);
        let Some(held) = &self.held else { return };
        let kind = held.kind;
        // "All registrants" is held until the last of them goes.
        if held_it && (!kind.all_hold() || self.registrants.is_empty()) {
            self.held = None;
            if kind.registrants_pass() && !kind.all_hold() {
                self.tell_all_but(id, Sense::RESERVATIONS_RELEASED, outcome);
            }
        }
    }

    fn tell_all_but(&self, id: &NexusId, attention: Sense, outcome: &mut Outcome) {
        let others = self.registrants.iter().filter(|r| r.id != *id);
        outcome.attentions.extend(others.map(|r| (r.id.clone(), attention)));
    }

    fn reserve(&mut self, from: &NexusId, kind: Kind) -> Result<Outcome, Refusal> {
        match &self.held {
            None => self.held = Some(Held { by: from.clone(), kind }),
            Some(held) if held.kind == kind && self.holds(from) => {}
            Some(_) => return Err(Refusal::Conflict),
        }
        Ok(Outcome::default())
    }

    fn release(&mut self, from: &NexusId, kind: Kind) -> Result<Outcome, Refusal> {
        let mut outcome = Outcome::default();
        if !self.holds(from) {
            return Ok(outcome); // nothing of ours to release: GOOD
        }
        if self.held.as_ref().is_some_and(|held| held.kind != kind) {
            return Err(Sense::INVALID_RELEASE.into());
        }
        self.held = None;
        if kind.registrants_pass() {
            self.tell_all_but(from, Sense::RESERVATIONS_RELEASED, &mut outcome);
        }
        Ok(outcome)
    }

    fn clear(&mut self, from: &NexusId) -> Outcome {
        let mut outcome = Outcome::default();
        self.tell_all_but(from, Sense::RESERVATIONS_PREEMPTED, &mut outcome);
        self.registrants.clear();
        self.held = None;
        self.unreadable = false;
        self.changed();
        outcome
    }

    /// PREEMPT and PREEMPT AND ABORT (SPC-4 §5.13.11.2). Scope and type are looked at only if it takes the reservation, and
    /// only then the sender is no victim of its own.
    fn preempt(&mut self, request: &Request<'_>, victim: u64, abort: bool) -> Result<Outcome, Refusal> {
        let from = request.from;
        let mut outcome = Outcome::default();
        let held = self.held.clone();
        let all = held.as_ref().is_some_and(|held| held.kind.all_hold());
        // Does this take the reservation, or registrations only?
        let takes = match &held {
            Some(held) if held.kind.all_hold() => victim == 0,
            Some(held) => self.key_of(&held.by) == Some(victim),
            None => false,
        };
        if victim == 0 && !all {
            return Err(Sense::parameter(8).into());
        }
        let kind = if takes { Some(request.kind()?) } else { None };
        let everyone = all && victim == 0;
        if !everyone && self.registrants.iter().all(|r| r.key != victim) {
            return Err(Refusal::Conflict);
        }
        self.registrants.retain(|r| {
            if !everyone && r.key != victim {
                return true;
            }
            if r.id == *from {
                return takes;
            }
            outcome.attentions.push((r.id.clone(), Sense::REGISTRATIONS_PREEMPTED));
            if abort {
                outcome.abort.push(r.id.clone());
            }
            false
        });
        if all && self.registrants.is_empty() {
            self.held = None; // it was everybody's who was registered
        }
        if let Some(kind) = kind {
            let before = held.map(|held| held.kind);
            self.held = Some(Held { by: from.clone(), kind });
            // Whatever it was before: who is still registered may do other things than it could.
            if before.is_some_and(|before| before != kind) {
                self.tell_all_but(from, Sense::RESERVATIONS_RELEASED, &mut outcome);
            }
        }
        self.changed();
        Ok(outcome)
    }

    /// REGISTER AND MOVE: the holder hands its reservation to another nexus (SPC-4 §5.13.8).
    fn register_and_move(&mut self, request: &Request<'_>) -> Result<Outcome, Refusal> {
        let list = MoveList::parse(request.list)?;
        let from = request.from;
        if self.key_of(from) != Some(list.key) {
            return Err(Refusal::Conflict);
        }
        let held_by_us = self.held.as_ref().is_some_and(|held| held.by == *from && !held.kind.all_hold());
        if !held_by_us {
            return Err(Refusal::Conflict);
        }
        if request.scope != 0 {
            return Err(Sense::cdb(2, 7).into());
        }
        if self.held.as_ref().map(|held| held.kind as u8) != Some(request.kind) {
            return Err(Sense::cdb(2, 3).into());
        }
        if list.service_key == 0 {
            return Err(Sense::parameter(8).into());
        }
        if list.aptpl && !request.can_keep {
            return Err(Sense::parameter(17).into());
        }
        if !request.ports.contains(&list.port) {
            return Err(Sense::parameter(18).into());
        }
        // A device name alone does not say which of its ports is meant.
        let Transport::Port(initiator) = list.to else { return Err(Sense::parameter(24).into()) };
        let to = NexusId { initiator, port: list.port };
        if to == *from {
            return Err(Sense::parameter(24).into());
        }
        self.put(to.clone(), list.service_key)?;
        if let Some(held) = &mut self.held {
            held.by = to;
        }
        if list.unregister {
            self.registrants.retain(|r| r.id != *from);
        }
        self.persistent |= list.aptpl;
        self.changed();
        Ok(Outcome::default())
    }
}

#[cfg(test)]
mod tests;
