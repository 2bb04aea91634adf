//! Reservations: persistent ones (SPC-4 §5.13, §6.13–6.14) and SPC-2's RESERVE(6)/RELEASE(6).
//!
//! A registration belongs to an initiator port's *name*, so a host that lost its cable and logs in
//! again still holds its disk. Nothing is kept over a restart of the server yet: APTPL is refused and
//! REPORT CAPABILITIES says so.
//!
//! This is plain data: [`Reservations::act`] changes it and says whom to tell; [`Reservations::refuses`]
//! is the table of commands that a reservation lets through.

use std::sync::Arc;

use crate::{
    cdb::{ByteCheck, Command},
    sense::Sense,
    unit::Refusal,
};

/// Registrations at most: more than any cluster has paths.
const REGISTRANTS_MAX: usize = 1024;

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
    fn parse(kind: u8) -> Result<Self, Sense> {
        Ok(match kind {
            1 => Self::WriteExclusive,
            3 => Self::ExclusiveAccess,
            5 => Self::WriteExclusiveRegistrants,
            6 => Self::ExclusiveAccessRegistrants,
            7 => Self::WriteExclusiveAll,
            8 => Self::ExclusiveAccessAll,
            _ => return Err(Sense::cdb(2, 3)),
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

#[derive(Clone, Debug)]
struct Registrant {
    port: Arc<str>,
    key: u64,
}

#[derive(Clone, Debug)]
struct Held {
    /// Who reserved; every registrant counts as holder if `kind.all_hold()`.
    port: Arc<str>,
    kind: Kind,
}

/// What a PERSISTENT RESERVE OUT brings about besides the new state.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Unit attentions, by port name.
    pub(crate) attentions: Vec<(Arc<str>, Sense)>,
    /// Writes of the preempted must have ended before the command is answered.
    pub(crate) abort: bool,
}

/// A logical unit's reservations.
#[derive(Debug, Default)]
pub(crate) struct Reservations {
    generation: u32,
    registrants: Vec<Registrant>,
    held: Option<Held>,
    spc2: Option<Arc<str>>,
}

impl Reservations {
    /// Whether any command could be refused.
    pub(crate) fn any(&self) -> bool {
        self.held.is_some() || self.spc2.is_some()
    }

    fn key_of(&self, port: &str) -> Option<u64> {
        self.registrants.iter().find(|r| &*r.port == port).map(|r| r.key)
    }

    fn holds(&self, port: &str) -> bool {
        self.held.as_ref().is_some_and(|held| {
            if held.kind.all_hold() { self.key_of(port).is_some() } else { &*held.port == port }
        })
    }

    /// Whether a reservation refuses `command` of `port`.
    pub(crate) fn refuses(&self, port: &str, command: &Command) -> bool {
        if let Some(holder) = &self.spc2 {
            return &**holder != port
                && !matches!(
                    command,
                    Command::Inquiry { .. }
                        | Command::ReportLuns { .. }
                        | Command::RequestSense { .. }
                        | Command::Release6
                        | Command::PreventAllow { prevent: false }
                );
        }
        let Some(held) = &self.held else {
            return false;
        };
        if self.holds(port) || (held.kind.registrants_pass() && self.key_of(port).is_some()) {
            return false;
        }
        match command {
            // Identity and state may always be asked; the PR commands and RESERVE(6) judge for themselves.
            Command::TestUnitReady
            | Command::RequestSense { .. }
            | Command::Inquiry { .. }
            | Command::ReportLuns { .. }
            | Command::ReadCapacity10
            | Command::ReadCapacity16 { .. }
            | Command::ReportOpcodes { .. }
            | Command::ReportTargetPortGroups { .. }
            | Command::PersistentReserveIn { .. }
            | Command::PersistentReserveOut { .. }
            | Command::Reserve6
            | Command::Release6
            | Command::PreventAllow { prevent: false }
            | Command::StartStop { start: true, load_eject: false, condition: 0 } => false,
            Command::Read { .. }
            | Command::Prefetch { .. }
            | Command::Verify {
                check: ByteCheck::Medium | ByteCheck::Blocks | ByteCheck::OneBlock, ..
            }
            | Command::GetLbaStatus { .. } => !held.kind.reads_pass(),
            Command::ModeSense { .. }
            | Command::ModeSelect { .. }
            | Command::Write { .. }
            | Command::WriteVerify { .. }
            | Command::WriteSame { .. }
            | Command::CompareAndWrite { .. }
            | Command::Unmap { .. }
            | Command::SynchronizeCache { .. }
            | Command::StartStop { .. }
            | Command::PreventAllow { .. } => true,
        }
    }

    /// RESERVE(6). With registrations about it does nothing, for registrants, or conflicts (CRH, SPC-4 §5.13.3).
    pub(crate) fn reserve6(&mut self, port: &Arc<str>) -> bool {
        if !self.registrants.is_empty() {
            return self.key_of(port).is_some();
        }
        match &self.spc2 {
            Some(holder) => holder == port,
            None => {
                self.spc2 = Some(Arc::clone(port));
                true
            }
        }
    }

    /// RELEASE(6), and the end of a nexus: only the holder's has an effect.
    pub(crate) fn release6(&mut self, port: &Arc<str>) -> bool {
        if !self.registrants.is_empty() {
            return self.key_of(port).is_some();
        }
        if self.spc2.as_ref() == Some(port) {
            self.spc2 = None;
        }
        true
    }

    /// A reset: whoever holds it.
    pub(crate) fn release6_any(&mut self) {
        self.spc2 = None;
    }

    /// PERSISTENT RESERVE IN.
    pub(crate) fn report(&self, action: u8) -> Result<Vec<u8>, Sense> {
        let mut body = Vec::new();
        match action {
            0 => self.registrants.iter().for_each(|r| body.extend(r.key.to_be_bytes())),
            1 => {
                if let Some(held) = &self.held {
                    // With "all registrants" there is no one holder, hence no key.
                    let key = if held.kind.all_hold() { 0 } else { self.key_of(&held.port).unwrap_or(0) };
                    body.extend(key.to_be_bytes());
                    body.extend([0, 0, 0, 0, 0, held.kind as u8, 0, 0]);
                }
            }
            // CRH; type mask valid; all six types; no APTPL, SPEC_I_PT or ALL_TG_PT.
            2 => return Ok(vec![0, 8, 0x10, 0x80, 0xea, 0x01, 0, 0]),
            3 => self.registrants.iter().for_each(|r| self.full_status(r, &mut body)),
            _ => return Err(Sense::cdb(1, 4)),
        }
        let mut out = self.generation.to_be_bytes().to_vec();
        out.extend(u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes());
        out.extend(body);
        Ok(out)
    }

    fn full_status(&self, registrant: &Registrant, out: &mut Vec<u8>) {
        let holds = self.holds(&registrant.port);
        let kind = self.held.as_ref().filter(|_| holds).map_or(0, |held| held.kind as u8);
        out.extend(registrant.key.to_be_bytes());
        out.extend([0, 0, 0, 0, u8::from(holds), kind, 0, 0, 0, 0]);
        out.extend(crate::identity::PORT_GROUP.to_be_bytes());
        // TransportID of an initiator port: name, ",i,0x", ISID (SPC-4 §7.6.4.6).
        let mut name = registrant.port.as_bytes().to_vec();
        name.push(0);
        while !name.len().is_multiple_of(4) {
            name.push(0);
        }
        let len = u16::try_from(name.len()).unwrap_or(u16::MAX);
        out.extend(u32::from(len).saturating_add(4).to_be_bytes());
        out.extend([0x45, 0]);
        out.extend(len.to_be_bytes());
        out.extend(name);
    }

    /// PERSISTENT RESERVE OUT.
    pub(crate) fn act(
        &mut self,
        port: &Arc<str>,
        action: u8,
        scope: u8,
        kind: u8,
        list: &[u8],
    ) -> Result<Outcome, Refusal> {
        if action > 6 {
            return Err(Sense::cdb(1, 4).into());
        }
        let (key, service_key, flags) = parse_list(list)?;
        if self.spc2.as_ref().is_some_and(|holder| holder != port) {
            return Err(Refusal::Conflict);
        }
        let registers = action == 0 || action == 6;
        // SPEC_I_PT, ALL_TG_PT and APTPL are refused rather than taken and forgotten.
        if flags & 0x08 != 0 || (registers && flags & 0x05 != 0) {
            return Err(Sense::parameter(20).into());
        }
        let mine = self.key_of(port);
        match action {
            0 => {
                if mine.unwrap_or(0) != key {
                    return Err(Refusal::Conflict);
                }
                self.register(port, service_key)
            }
            6 => self.register(port, service_key),
            _ if mine != Some(key) => Err(Refusal::Conflict),
            3 => Ok(self.clear(port)),
            _ if scope != 0 => Err(Sense::cdb(2, 7).into()),
            1 => self.reserve(port, Kind::parse(kind)?),
            2 => self.release(port, Kind::parse(kind)?),
            _ => {
                let mut outcome = self.preempt(port, service_key, Kind::parse(kind)?)?;
                outcome.abort = action == 5;
                Ok(outcome)
            }
        }
    }

    fn changed(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }

    fn register(&mut self, port: &Arc<str>, key: u64) -> Result<Outcome, Refusal> {
        let mut outcome = Outcome::default();
        let known = self.registrants.iter_mut().find(|r| r.port == *port);
        match (known, key) {
            (None, 0) => return Ok(outcome), // ignoring registration of nothing: GOOD, no effect
            (None, _) => {
                if self.registrants.len() >= REGISTRANTS_MAX {
                    return Err(Sense::NO_REGISTRATION_RESOURCES.into());
                }
                self.registrants.push(Registrant { port: Arc::clone(port), key });
            }
            (Some(_), 0) => self.unregister(port, &mut outcome),
            (Some(registrant), _) => registrant.key = key,
        }
        self.changed();
        Ok(outcome)
    }

    fn unregister(&mut self, port: &Arc<str>, outcome: &mut Outcome) {
        let held_it = self.holds(port);
        self.registrants.retain(|r| r.port != *port);
        let Some(held) = &self.held else { return };
        let kind = held.kind;
        // "All registrants" is held until the last of them goes.
        if held_it && (!kind.all_hold() || self.registrants.is_empty()) {
            self.held = None;
            if kind.registrants_pass() && !kind.all_hold() {
                self.tell_all_but(port, Sense::RESERVATIONS_RELEASED, outcome);
            }
        }
    }

    fn tell_all_but(&self, port: &Arc<str>, attention: Sense, outcome: &mut Outcome) {
        let others = self.registrants.iter().filter(|r| r.port != *port);
        outcome.attentions.extend(others.map(|r| (Arc::clone(&r.port), attention)));
    }

    fn reserve(&mut self, port: &Arc<str>, kind: Kind) -> Result<Outcome, Refusal> {
        match &self.held {
            None => self.held = Some(Held { port: Arc::clone(port), kind }),
            Some(held) if held.kind == kind && self.holds(port) => {}
            Some(_) => return Err(Refusal::Conflict),
        }
        Ok(Outcome::default())
    }

    fn release(&mut self, port: &Arc<str>, kind: Kind) -> Result<Outcome, Refusal> {
        let mut outcome = Outcome::default();
        if !self.holds(port) {
            return Ok(outcome); // nothing of ours to release: GOOD
        }
        if self.held.as_ref().is_some_and(|held| held.kind != kind) {
            return Err(Sense::INVALID_RELEASE.into());
        }
        self.held = None;
        if kind.registrants_pass() {
            self.tell_all_but(port, Sense::RESERVATIONS_RELEASED, &mut outcome);
        }
        Ok(outcome)
    }

    fn clear(&mut self, port: &Arc<str>) -> Outcome {
        let mut outcome = Outcome::default();
        self.tell_all_but(port, Sense::RESERVATIONS_PREEMPTED, &mut outcome);
        self.registrants.clear();
        self.held = None;
        self.changed();
        outcome
    }

    fn preempt(&mut self, port: &Arc<str>, victim: u64, kind: Kind) -> Result<Outcome, Refusal> {
        let mut outcome = Outcome::default();
        let held = self.held.clone();
        let all = held.as_ref().is_some_and(|held| held.kind.all_hold());
        // Does this take the reservation, or registrations only?
        let takes = match &held {
            Some(held) if held.kind.all_hold() => victim == 0,
            Some(held) => self.key_of(&held.port) == Some(victim),
            None => false,
        };
        if victim == 0 && !all {
            return Err(Sense::parameter(8).into());
        }
        let mut found = false;
        let everyone = all && victim == 0;
        self.registrants.retain(|r| {
            let matches = everyone || r.key == victim;
            found |= matches;
            if matches && r.port != *port {
                outcome.attentions.push((Arc::clone(&r.port), Sense::REGISTRATIONS_PREEMPTED));
                return false;
            }
            true
        });
        if !found {
            return Err(Refusal::Conflict);
        }
        if takes {
            let before = held.map(|held| held.kind);
            self.held = Some(Held { port: Arc::clone(port), kind });
            if before.is_some_and(|before| before != kind && before.registrants_pass()) {
                self.tell_all_but(port, Sense::RESERVATIONS_RELEASED, &mut outcome);
            }
        }
        self.changed();
        Ok(outcome)
    }
}

/// Reservation key, service action key, flags.
fn parse_list(list: &[u8]) -> Result<(u64, u64, u8), Sense> {
    let list: &[u8; 24] = list.try_into().map_err(|_| Sense::PARAMETER_LIST_LENGTH)?;
    let (keys, rest) = list.split_at(16);
    let (keys, _) = keys.as_chunks::<8>();
    match (keys, rest) {
        ([a, b], [_, _, _, _, flags, ..]) => Ok((u64::from_be_bytes(*a), u64::from_be_bytes(*b), *flags)),
        _ => Err(Sense::PARAMETER_LIST_LENGTH),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cdb::Run;

    const READ: Command = Command::Read { run: Run { lba: 0, blocks: 1 } };
    const WRITE: Command = Command::Write { run: Run { lba: 0, blocks: 1 }, stable: false };

    fn out(
        r: &mut Reservations,
        who: &str,
        action: u8,
        kind: u8,
        key: u64,
        service: u64,
    ) -> Result<Outcome, Refusal> {
        let mut list = key.to_be_bytes().to_vec();
        list.extend(service.to_be_bytes());
        list.resize(24, 0);
        r.act(&who.into(), action, 0, kind, &list)
    }

    /// Alice (key 1) and Bob (key 2) are registered, Carol is not; Alice reserves.
    fn reserved(kind: u8) -> Reservations {
        let mut r = Reservations::default();
        out(&mut r, "alice", 0, 0, 0, 1).unwrap();
        out(&mut r, "bob", 0, 0, 0, 2).unwrap();
        out(&mut r, "alice", 1, kind, 1, 0).unwrap();
        r
    }

    #[test]
    fn who_may_read_and_write_under_each_type() {
        for (kind, bob_reads, bob_writes, carol_reads) in [
            (1, true, false, true),
            (3, false, false, false),
            (5, true, true, true),
            (6, true, true, false),
            (7, true, true, true),
            (8, true, true, false),
        ] {
            let r = reserved(kind);
            assert!(!r.refuses("alice", &WRITE), "{kind}");
            assert_eq!(!r.refuses("bob", &READ), bob_reads, "{kind}");
            assert_eq!(!r.refuses("bob", &WRITE), bob_writes, "{kind}");
            assert_eq!(!r.refuses("carol", &READ), carol_reads, "{kind}");
            assert!(r.refuses("carol", &WRITE), "{kind}");
        }
    }

    #[test]
    fn a_preempted_holder_loses_disk_and_registration_and_is_told() {
        let mut r = reserved(5);
        let outcome = out(&mut r, "bob", 4, 5, 2, 1).unwrap();
        assert_eq!(outcome.attentions, [("alice".into(), Sense::REGISTRATIONS_PREEMPTED)]);
        assert!(r.refuses("alice", &WRITE));
        assert!(r.holds("bob"));
    }

    #[test]
    fn unregistering_the_holder_tells_the_others_but_never_itself() {
        let mut r = reserved(6);
        let outcome = out(&mut r, "alice", 0, 0, 1, 0).unwrap();
        assert_eq!(outcome.attentions, [("bob".into(), Sense::RESERVATIONS_RELEASED)]);
        assert!(!r.any());
    }

    #[test]
    fn a_wrong_key_changes_nothing() {
        let mut r = reserved(5);
        let generation = r.generation;
        for action in 1..=5 {
            assert!(matches!(out(&mut r, "bob", action, 5, 99, 1), Err(Refusal::Conflict)), "{action}");
        }
        assert_eq!((r.registrants.len(), r.generation), (2, generation));
        assert!(r.holds("alice"));
    }

    #[test]
    fn persistence_through_power_loss_is_refused_not_promised() {
        let mut r = Reservations::default();
        let mut list = vec![0; 24];
        (list[15], list[20]) = (1, 1);
        assert!(
            matches!(r.act(&"a".into(), 0, 0, 0, &list), Err(Refusal::Sense(s)) if s == Sense::parameter(20))
        );
        assert_eq!(r.report(2).unwrap()[2] & 1, 0);
    }
}
