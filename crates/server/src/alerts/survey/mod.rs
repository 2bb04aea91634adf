//! What is wrong with a pool at this moment, as findings: which device, how bad, what it means, what to do.
//!
//! ```text
//!   Facts: its devices, one by one ──▶ devices:      condition, errors, slow
//!                                  └─▶ auxiliaries:  spares, log devices
//!          the pool itself ──────────▶ whole:        condition, suspended, space, lost blocks
//! ```
//!
//! It looks at how things are, not at what happened; what only events tell (a device that is slow, a log device that
//! failed, blocks that were lost a moment ago) comes in as [`Memory`]. Pure: [`Facts`] in, findings out. What they say is in
//! `words`.

use std::collections::BTreeMap;

use super::{
    facts::Facts,
    parts::{Catalog, Part, Role},
};
use crate::api::alerts::{Finding, Kind, Severity};

mod auxiliaries;
mod devices;
mod whole;

/// How long an event about a device is taken for its state, in seconds.
const RECENT: u64 = 600;

/// What events told, by device or pool.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    /// Device → its latency and that of its peers, in milliseconds.
    pub(super) latency: BTreeMap<u64, (u64, u64)>,
    /// Log device → when it last failed.
    pub(super) logs: BTreeMap<u64, u64>,
    /// Pool → when blocks were last lost, and which.
    pub(super) lost: BTreeMap<u64, (u64, String)>,
    /// Device → what led to its state.
    pub(super) why: BTreeMap<u64, String>,
}

/// A look at a pool.
struct Look<'a> {
    facts: &'a Facts,
    memory: &'a Memory,
    catalog: &'a dyn Catalog,
    now: u64,
}

/// Everything that is wrong. `space` is how bad the open alert about this pool's space is.
pub(super) fn findings(
    facts: &Facts,
    memory: &Memory,
    catalog: &dyn Catalog,
    now: u64,
    space: Option<u32>,
) -> Vec<Finding> {
    let look = Look { facts, memory, catalog, now };
    let parts = facts.parts();
    let is_in_use = |guid| parts.iter().any(|part| part.role != Role::Spare && part.vdev.guid == guid);
    let mut found = Vec::new();
    for part in &parts {
        found.extend(look.useless_spare(part));
        // A spare that is in use is in the tree as well; there it is looked at.
        if part.role != Role::Spare || !is_in_use(part.vdev.guid) {
            let device = [look.condition(part), look.errors(part), look.slow(part)];
            found.extend(device.into_iter().flatten());
            found.extend(look.log_device(part));
            found.extend(look.spare_in_use(part));
        }
    }
    found.extend(look.pool());
    found.extend(look.unwritten());
    found.extend(look.suspended());
    found.extend(look.space(space));
    found.extend(look.data_lost());
    found
}

impl Look<'_> {
    /// Something about a device, without a word of it so far.
    fn about(&self, part: &Part<'_>, kind: Kind, severity: Severity, level: u32) -> Finding {
        let device = Some(self.catalog.device(part));
        Finding { device, ..self.facts.finding(kind, severity, level) }
    }

    /// Whether an event still tells how it is. A clock that was set back since then must not make it last.
    fn is_recent(&self, when: u64) -> bool {
        self.now.abs_diff(when) < RECENT
    }
}

#[cfg(test)]
pub(super) mod tests {
    use pool::vdev::{Aux, Class, State};

    use super::*;
    use crate::{
        alerts::facts::tests::{facts, group, leaf},
        api::alerts::AlertDevice,
        disks::Identity,
    };

    pub(super) struct Names;

    impl Catalog for Names {
        fn device(&self, part: &Part<'_>) -> AlertDevice {
            let identity = Identity { serial: Some("WSD1".into()), ..Identity::default() };
            part.described(Some(&identity), &BTreeMap::from([("WSD1".into(), "bay 3".into())]))
        }
    }

    pub(in crate::alerts) fn look(facts: &Facts, memory: &Memory) -> Vec<Finding> {
        findings(facts, memory, &Names, 1000, None)
    }

    pub(in crate::alerts) fn kinds(found: &[Finding]) -> Vec<(Kind, u32)> {
        found.iter().map(|finding| (finding.kind, finding.level)).collect()
    }

    pub(in crate::alerts) fn raidz2(state: State, aux: Aux) -> Facts {
        let mut leaves: Vec<_> = (1..=6).map(|guid| leaf(&format!("sd{guid}"), guid)).collect();
        (leaves[2].state, leaves[2].aux) = (state, aux);
        let mut top = group("raidz2-0", "raidz", leaves);
        let mut all = facts(Vec::new());
        if state != State::Healthy {
            (top.state, all.root.state) = (State::Degraded, State::Degraded);
        }
        all.root.children = vec![top];
        all
    }

    #[test]
    fn nothing_is_wrong_with_a_healthy_pool() {
        assert_eq!(look(&raidz2(State::Healthy, Aux::None), &Memory::default()), []);
    }

    #[test]
    fn slow_disks_logs_and_lost_blocks_are_told_as_long_as_they_last() {
        let mut facts = raidz2(State::Healthy, Aux::None);
        let mut log = leaf("nvme0n1", 50);
        log.class = Class::Log;
        facts.root.children.push(log);
        facts.root.children[0].children[1].sits_out = true;
        let memory = Memory {
            latency: BTreeMap::from([(2, (900, 12))]),
            logs: BTreeMap::from([(50, 1000 - RECENT + 1)]),
            lost: BTreeMap::from([(7, (990, "tank/vm1:<0x1>".into()))]),
            ..Memory::default()
        };
        let found = look(&facts, &memory);
        assert_eq!(kinds(&found), [(Kind::Slow, 1), (Kind::LogDevice, 1), (Kind::DataLost, 1)]);
        assert!(found[0].title.contains("900 ms") && found[0].title.contains("12 ms"), "{}", found[0].title);
        assert!(found[2].action.iter().any(|line| line == "  zpool status -v tank"));
        let later = findings(&facts, &memory, &Names, 1000 + RECENT, None);
        assert_eq!(kinds(&later), [(Kind::Slow, 1)]);
        let ahead = Memory {
            logs: BTreeMap::from([(50, 1 << 20)]),
            lost: BTreeMap::from([(7, (1 << 20, "tank/vm1:<0x1>".into()))]),
            ..Memory::default()
        };
        let set_back = findings(&facts, &ahead, &Names, 1000, None);
        assert_eq!(kinds(&set_back), [(Kind::Slow, 1)], "not until the clock is there again");
        facts.lost = Some(12);
        assert_eq!(
            kinds(&findings(&facts, &memory, &Names, 9000, None)),
            [(Kind::Slow, 1), (Kind::DataLost, 2)]
        );
        // As many as are read of a list at most.
        for (lost, blocks) in [(99_999, "99999 blocks"), (100_000, "at least 100000 blocks")] {
            facts.lost = Some(lost);
            let found = findings(&facts, &memory, &Names, 9000, None);
            assert_eq!(found[1].title, format!("pool 'tank': {blocks} are lost"));
        }
    }
}
