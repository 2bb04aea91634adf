//! What is wrong with devices for what they are for: spares that stand in, or could not; log devices of which the intent log makes
//! no use.

use pool::vdev::State;

use super::Look;
use crate::{
    alerts::{
        parts::{Part, Role},
        words,
    },
    api::alerts::{Finding, Kind, Severity},
};

impl Look<'_> {
    /// One that is there, and could stand in for none of the pool's disks.
    pub(super) fn useless_spare(&self, part: &Part<'_>) -> Option<Finding> {
        let misfit = part.vdev.misfit.as_ref().filter(|misfit| misfit.everywhere)?;
        if part.vdev.state != State::Healthy {
            return None;
        }
        let finding = self.about(part, Kind::Spare, Severity::Warning, 2);
        Some(words::useless_spare(finding, part, &misfit.why))
    }

    pub(super) fn log_device(&self, part: &Part<'_>) -> Option<Finding> {
        // What the event said is so as long as the device is away: the log cannot write to it. Of a mirror it goes on on the
        // other sides.
        let is_away = part.role == Role::Log
            && matches!(part.vdev.state, State::Removed | State::CantOpen | State::Faulted);
        let has_failed = self.memory.logs.get(&part.vdev.guid).is_some_and(|failed| self.is_recent(*failed));
        if !(is_away || has_failed) || part.rest().is_some() {
            return None;
        }
        Some(words::log_device(self.about(part, Kind::LogDevice, Severity::Warning, 1), part))
    }

    pub(super) fn spare_in_use(&self, part: &Part<'_>) -> Option<Finding> {
        let within = part.within.filter(|within| within.type_word == "spare")?;
        let slot = within.children.first()?;
        let is_spare = slot.guid != part.vdev.guid
            // The original may itself be in the middle of being replaced.
            && self.facts.spares.iter().any(|spare| spare.guid == part.vdev.guid);
        let finding = || self.about(part, Kind::Spare, Severity::Warning, 1);
        is_spare.then(|| words::spare(finding(), part, slot))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use pool::{
        space::Misfit,
        status::VdevStatus,
        vdev::{Aux, Class},
    };

    use super::*;
    use crate::alerts::{
        facts::tests::{facts, group, leaf},
        survey::{
            Memory,
            tests::{kinds, look, raidz2},
        },
    };

    #[test]
    fn a_spare_in_use_is_told_with_whom_it_stands_in_for() {
        let mut facts = raidz2(State::Removed, Aux::None);
        let original = facts.root.children[0].children[2].clone();
        let spare = leaf("sdz", 99);
        facts.root.children[0].children[2] = group("spare-2", "spare", vec![original, spare.clone()]);
        facts.spares = vec![spare];
        let found = look(&facts, &Memory::default());
        assert_eq!(kinds(&found), [(Kind::Device, 2), (Kind::Spare, 1), (Kind::Pool, 1)]);
        assert_eq!(found[1].title, "hot spare sdz is in use in place of sd3");
        assert_eq!(found[0].device.as_ref().unwrap().part_of.as_deref(), Some("raidz2-0"));
    }

    /// It stood "in place of replacing-0", which commands know as nothing that can be replaced or detached.
    #[test]
    fn a_spare_in_use_waits_for_a_disk_that_is_being_replaced() {
        let mut facts = raidz2(State::Removed, Aux::None);
        let original = facts.root.children[0].children[2].clone();
        let old = VdevStatus { path: Some("/dev/sd3/old".into()), name: "sd3/old".into(), ..original };
        let replacing = group("replacing-0", "replacing", vec![old, leaf("sd3", 33)]);
        let spare = leaf("sdz", 99);
        facts.root.children[0].children[2] = group("spare-2", "spare", vec![replacing, spare.clone()]);
        facts.spares = vec![spare];
        let found = look(&facts, &Memory::default());
        let told = found.iter().find(|finding| finding.kind == Kind::Spare).unwrap();
        assert_eq!(told.title, "hot spare sdz is in use in place of sd3");
        let action = told.action.concat();
        assert!(action.contains("is being replaced"), "{action}");
        assert!(!action.contains("zpool replace") && !action.contains("zpool detach"), "{action}");
    }

    /// The pool's disks had been replaced by larger ones, and the spare was AVAIL, also when one of them failed.
    #[test]
    fn a_spare_that_fits_nowhere_is_a_finding() {
        let mut facts = raidz2(State::Healthy, Aux::None);
        let mut told = |everywhere| {
            let misfit = Misfit { why: "too small for raidz2-0".into(), everywhere };
            facts.spares = vec![VdevStatus { misfit: Some(misfit), ..leaf("sdz", 99) }];
            look(&facts, &Memory::default())
        };
        let found = told(true);
        assert_eq!(kinds(&found), [(Kind::Spare, 2)]);
        assert_eq!(found[0].title, "hot spare sdz cannot stand in: too small for raidz2-0");
        assert!(found[0].action.contains(&"  zpool add tank spare NEW-DEVICE".to_owned()), "{found:?}");
        assert_eq!(told(false), [], "one may be for small disks, and another for large ones");
    }

    /// Beside what was right it was told that clients' stable writes go to the pool, and to remove the side, which is refused.
    #[test]
    fn a_side_of_a_mirrored_log_that_is_away_leaves_the_log_where_it_is() {
        let away = || VdevStatus { state: State::Removed, ..leaf("nvme1n1", 51) };
        let log = |other: VdevStatus, state| {
            let sides = group("mirror-1", "mirror", vec![away(), other]);
            facts(vec![leaf("sda", 1), VdevStatus { class: Class::Log, state, ..sides }])
        };
        // The event of the moment says no more than that one side is away.
        let memory = Memory { logs: BTreeMap::from([(51, 1000)]), ..Memory::default() };
        let found = look(&log(leaf("nvme2n1", 52), State::Degraded), &memory);
        assert_eq!(kinds(&found), [(Kind::Device, 2)]);
        let action = found[0].action.join("\n");
        assert!(action.contains("  zpool detach tank nvme1n1"), "{action}");
        assert!(!action.contains("zpool remove"), "{action}");
        let other = VdevStatus { state: State::Removed, ..leaf("nvme2n1", 52) };
        let found = look(&log(other, State::CantOpen), &Memory::default());
        assert_eq!(kinds(&found), [(Kind::Device, 2), (Kind::LogDevice, 1)].repeat(2));
        for finding in found.iter().filter(|finding| finding.kind == Kind::LogDevice) {
            assert!(finding.action.contains(&"  zpool remove tank mirror-1".to_owned()), "{finding:?}");
        }
        let detached = found.iter().any(|finding| finding.action.concat().contains("zpool detach"));
        assert!(!detached, "one side is all that a mirror needs, and none is there: {found:?}");
    }

    /// It was told as over ten minutes after the event, and after each restart.
    #[test]
    fn a_log_device_that_is_away_is_told_as_long_as_it_is() {
        for (state, expected) in [(State::Removed, true), (State::CantOpen, true), (State::Healthy, false)] {
            let log = VdevStatus { class: Class::Log, state, ..leaf("nvme0n1", 50) };
            let found = look(&facts(vec![leaf("sda", 1), log]), &Memory::default());
            let told = found.iter().any(|finding| finding.kind == Kind::LogDevice);
            assert_eq!(told, expected, "{state:?}");
        }
    }
}
