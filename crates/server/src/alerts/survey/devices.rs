//! What is wrong with a device, whatever it is for.

use pool::vdev::{Aux, State};

use super::Look;
use crate::{
    alerts::{parts::Part, words},
    api::alerts::{Finding, Kind, Severity},
    host,
};

/// How bad it is that it is so; none where nothing is wrong, or whoever took it offline knows it.
fn urgency(state: State, aux: Aux) -> Option<(u32, Severity)> {
    match state {
        State::Healthy | State::Offline | State::Closed => None,
        State::Degraded => Some((1, Severity::Warning)),
        State::Removed => Some((2, Severity::Critical)),
        State::CantOpen => Some((3, Severity::Critical)),
        // Whoever did that knows it.
        State::Faulted if aux == Aux::External => Some((1, Severity::Warning)),
        State::Faulted => Some((4, Severity::Critical)),
    }
}

impl Look<'_> {
    pub(super) fn condition(&self, part: &Part<'_>) -> Option<Finding> {
        let (level, severity) = urgency(part.vdev.state, part.vdev.aux)?;
        let severity = if part.role.is_beside() { Severity::Warning } else { severity };
        let why = self.memory.why.get(&part.vdev.guid).map(String::as_str);
        Some(words::device(self.about(part, Kind::Device, severity, level), part, why))
    }

    /// Of one about whose condition nothing is told.
    pub(super) fn errors(&self, part: &Part<'_>) -> Option<Finding> {
        let vdev = part.vdev;
        let errors = vdev.errors.read + vdev.errors.write + vdev.errors.checksum;
        // Writes for which there was no room tell nothing of the device; that the pool waits for it does.
        let only_lacks_room =
            vdev.errors.write == errors && self.facts.suspended.as_deref().is_some_and(host::lacks_room);
        if errors == 0 || urgency(vdev.state, vdev.aux).is_some() || only_lacks_room {
            return None;
        }
        let finding = self.about(part, Kind::Errors, Severity::Warning, 1 + errors.ilog10());
        Some(words::errors(finding, part))
    }

    pub(super) fn slow(&self, part: &Part<'_>) -> Option<Finding> {
        let latency = self.memory.latency.get(&part.vdev.guid).copied();
        let finding = || self.about(part, Kind::Slow, Severity::Warning, 1);
        part.vdev.sits_out.then(|| words::slow(finding(), part, latency))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use pool::vdev::Errors;

    use super::*;
    use crate::alerts::{
        facts::Facts,
        survey::{
            Memory,
            tests::{kinds, look, raidz2},
        },
    };

    #[test]
    fn a_failed_disk_is_named_with_what_is_left_and_what_to_do() {
        let facts = raidz2(State::Faulted, Aux::ErrorsExceeded);
        let memory = Memory {
            why: BTreeMap::from([(3, "12 writes were refused: Input/output error".into())]),
            ..Memory::default()
        };
        let found = look(&facts, &memory);
        assert_eq!(kinds(&found), [(Kind::Device, 4), (Kind::Pool, 1)]);
        let device = found[0].device.as_ref().unwrap();
        assert_eq!((device.name.as_str(), device.bay.as_deref()), ("sd3", Some("bay 3")));
        assert_eq!(device.part_of.as_deref(), Some("raidz2-0"));
        assert_eq!(
            found[0].title,
            "disk sd3 is FAULTED (too many errors: 12 writes were refused: Input/output error)"
        );
        assert!(found[0].meaning.contains("one more disk of raidz2-0 may fail"), "{}", found[0].meaning);
        assert!(found[0].action.iter().any(|line| line == "  zpool replace tank sd3 NEW-DEVICE"));
        assert_eq!(found[1].title, "pool 'tank' is DEGRADED");
    }

    #[test]
    fn an_administrator_who_takes_a_disk_offline_knows_it() {
        let found = look(&raidz2(State::Offline, Aux::None), &Memory::default());
        assert_eq!(kinds(&found), [(Kind::Pool, 1)], "but the pool is degraded all the same");
    }

    /// It was told as critical, with errors that there never were and the advice to put another disk in.
    #[test]
    fn a_disk_that_an_administrator_faulted_has_not_failed() {
        let found = look(&raidz2(State::Faulted, Aux::External), &Memory::default());
        assert_eq!(kinds(&found), [(Kind::Device, 1), (Kind::Pool, 1)]);
        assert_eq!((found[0].severity, found[1].severity), (Severity::Warning, Severity::Warning));
        assert_eq!(found[0].title, "disk sd3 is FAULTED (external device fault)");
        let said = format!("{} {}", found[0].meaning, found[0].action.concat());
        assert!(said.contains("'zpool offline -f'") && said.contains("zpool online tank sd3"), "{said}");
        assert!(!said.contains("failed too often") && !said.contains("zpool replace"), "{said}");
    }

    #[test]
    fn errors_of_a_disk_in_use_grow_by_magnitudes() {
        let mut facts = raidz2(State::Healthy, Aux::None);
        let errors = |facts: &mut Facts, checksum| {
            facts.root.children[0].children[1].errors = Errors { read: 0, write: 0, checksum };
            kinds(&look(facts, &Memory::default()))
        };
        assert_eq!(errors(&mut facts, 1), [(Kind::Errors, 1)]);
        assert_eq!(errors(&mut facts, 9), [(Kind::Errors, 1)]);
        assert_eq!(errors(&mut facts, 10), [(Kind::Errors, 2)]);
        assert_eq!(errors(&mut facts, 0), []);
    }
}
