//! What is wrong with a pool as a whole.

use pool::vdev::State;

use super::Look;
use crate::{
    alerts::words,
    api::alerts::{Finding, Kind, Severity},
    state,
};

/// Percentages of the pool allocated at which space is low.
const SPACE: [u64; 3] = [80, 90, 95];
/// Percent below a threshold at which it is no longer reached: a pool at the threshold must not come and go.
const SPACE_SLACK: u64 = 2;

impl Look<'_> {
    pub(super) fn pool(&self) -> Option<Finding> {
        let finding = |severity, level| self.facts.finding(Kind::Pool, severity, level);
        match self.facts.root.state {
            State::Healthy => None,
            State::Degraded => Some(words::degraded(finding(Severity::Warning, 1), self.facts, self.catalog)),
            _ => Some(words::unavailable(finding(Severity::Critical, 2), self.facts)),
        }
    }

    /// About the file: that the pool is degraded, as it is then, is another one.
    pub(super) fn unwritten(&self) -> Option<Finding> {
        let why = self.facts.unwritten.as_ref()?;
        let file = Some(state::FILE.to_owned());
        let finding = Finding { file, ..self.facts.finding(Kind::Pool, Severity::Warning, 1) };
        Some(words::unwritten(finding, why))
    }

    pub(super) fn suspended(&self) -> Option<Finding> {
        let why = self.facts.suspended.as_ref()?;
        Some(words::suspended(self.facts.finding(Kind::Suspended, Severity::Critical, 1), why))
    }

    /// `was` is how bad the open alert about it is.
    pub(super) fn space(&self, was: Option<u32>) -> Option<Finding> {
        let capacity = self.facts.capacity?;
        let was = was.unwrap_or(0) as usize;
        let reached = |at: &usize| {
            let slack = if was > *at { SPACE_SLACK } else { 0 };
            capacity + slack >= SPACE[*at]
        };
        let at = (0..SPACE.len()).rev().find(reached)?;
        let severity = if at + 1 == SPACE.len() { Severity::Critical } else { Severity::Warning };
        let finding = self.facts.finding(Kind::Space, severity, at as u32 + 1);
        Some(words::space(finding, capacity, SPACE[at]))
    }

    pub(super) fn data_lost(&self) -> Option<Finding> {
        let lately = self.memory.lost.get(&self.facts.guid).filter(|(when, _)| self.is_recent(*when));
        let lost = self.facts.lost.unwrap_or(0);
        if lost == 0 && lately.is_none() {
            return None;
        }
        let level = 1 + lost.checked_ilog10().unwrap_or(0);
        let finding = self.facts.finding(Kind::DataLost, Severity::Critical, level);
        Some(words::data_lost(finding, lost, lately.map(|(_, what)| what.as_str())))
    }
}

#[cfg(test)]
mod tests {
    use pool::vdev::Aux;

    use super::*;
    use crate::alerts::{
        book,
        facts::Facts,
        survey::{
            Memory, findings,
            tests::{Names, kinds, look, raidz2},
        },
    };

    #[test]
    fn space_has_thresholds_that_do_not_flap() {
        let mut facts = raidz2(State::Healthy, Aux::None);
        let mut at = |capacity, was| {
            facts.capacity = Some(capacity);
            let found = findings(&facts, &Memory::default(), &Names, 0, was);
            found.first().map(|finding| (finding.level, finding.severity))
        };
        assert_eq!(at(79, None), None);
        assert_eq!(at(80, None), Some((1, Severity::Warning)));
        assert_eq!(at(79, Some(1)), Some((1, Severity::Warning)), "still");
        assert_eq!(at(77, Some(1)), None);
        assert_eq!(at(90, Some(1)), Some((2, Severity::Warning)));
        assert_eq!(at(95, Some(2)), Some((3, Severity::Critical)));
        assert_eq!(at(93, Some(3)), Some((3, Severity::Critical)));
        assert_eq!(at(92, Some(3)), Some((2, Severity::Warning)));
    }

    /// Only the daemon's log said so, on the disk that had no room.
    #[test]
    fn that_nobody_will_know_how_new_a_pool_is_is_told_beside_what_is_wrong_with_it() {
        let why = "cannot write '/var/lib/millpond/pools.json': No space left on device (os error 28)";
        let facts = Facts { unwritten: Some(why.to_owned()), ..raidz2(State::Removed, Aux::None) };
        let found = look(&facts, &Memory::default());
        assert_eq!(kinds(&found), [(Kind::Device, 2), (Kind::Pool, 1), (Kind::Pool, 1)]);
        assert!(found[2].title.contains("'tank'") && found[2].title.ends_with(why), "{}", found[2].title);
        assert_ne!(book::key(&found[1]), book::key(&found[2]), "two alerts");
    }

    #[test]
    fn a_suspended_pool_is_the_worst() {
        let mut facts = raidz2(State::CantOpen, Aux::OpenFailed);
        facts.root.state = State::CantOpen;
        facts.suspended = Some("sd3: write refused".into());
        let found = look(&facts, &Memory::default());
        assert_eq!(kinds(&found), [(Kind::Device, 3), (Kind::Pool, 2), (Kind::Suspended, 1)]);
        assert!(found[2].action.iter().any(|line| line == "  zpool clear tank"));
        assert!(found[2].title.contains("sd3: write refused"));
    }

    #[test]
    fn whose_pool_a_defect_suspended_is_told_what_helps_and_not_to_look_for_devices() {
        let mut facts = raidz2(State::Healthy, Aux::None);
        facts.suspended = Some(engine::EngineError::Defect("index out of bounds".into()).to_string());
        let found = look(&facts, &Memory::default());
        assert_eq!(kinds(&found), [(Kind::Suspended, 1)]);
        assert!(found[0].meaning.starts_with("Millpond is at fault"), "{}", found[0].meaning);
        assert!(found[0].action.iter().any(|line| line == "  zpool export -F tank"), "{:?}", found[0].action);
    }

    /// Beside it an alert told of a disk that goes bad, and to look at its cable.
    #[test]
    fn a_pool_whose_files_find_no_room_is_suspended_and_its_devices_are_well() {
        let mut facts = raidz2(State::Healthy, Aux::None);
        facts.suspended = Some("sd1: write failed: No space left on device (os error 28)".into());
        facts.root.children[0].children[0].errors.write = 3;
        let found = look(&facts, &Memory::default());
        assert_eq!(kinds(&found), [(Kind::Suspended, 1)]);
        assert!(found[0].meaning.starts_with("The file system"), "{}", found[0].meaning);
        assert!(found[0].action[0].starts_with("Make room"), "{:?}", found[0].action);
        facts.root.children[0].children[0].errors.read = 1;
        assert_eq!(kinds(&look(&facts, &Memory::default())), [(Kind::Errors, 1), (Kind::Suspended, 1)]);
    }
}
