//! What is wrong with a pool at this moment, as findings: which device, how bad, what it means, what to do.
//!
//! It looks at how things are, not at what happened; what only events tell (a device that is slow, a log device that
//! failed, blocks that were lost a moment ago) comes in as [`Memory`]. Pure: [`Facts`] in, findings out.

use std::collections::BTreeMap;

use engine::devices::{OLD, is_in_place};
use pool::{
    status::VdevStatus,
    vdev::{Aux, Class, State},
};

use super::words::{self, Place};
use crate::{
    api::alerts::{AlertDevice, Finding, Kind, Severity},
    disks::Identity,
    host, state,
};

/// Percentages of the pool allocated at which space is low.
pub(crate) const SPACE: [u64; 3] = [80, 90, 95];
/// Percent below a threshold at which it is no longer reached: a pool at the threshold must not come and go.
const SPACE_SLACK: u64 = 2;
/// How long an event about a device is taken for its state, in seconds.
const RECENT: u64 = 600;

/// A pool at one moment, from memory.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) name: String,
    pub(crate) guid: u64,
    /// Its devices.
    pub(crate) root: VdevStatus,
    pub(crate) spares: Vec<VdevStatus>,
    pub(crate) cache: Vec<VdevStatus>,
    /// Somebody finds out how fast they are.
    pub(crate) watched: bool,
    /// Why nothing is written, if that is so.
    pub(crate) suspended: Option<String>,
    /// Percent allocated of what is fuller, all or what data may go to, if that is known.
    pub(crate) capacity: Option<u64>,
    /// Blocks in the error log, if that is known.
    pub(crate) lost: Option<u64>,
    /// Why it cannot be written down how new it is, if that is so.
    pub(crate) unwritten: Option<String>,
}

impl Facts {
    /// Something about it, without a word of it so far.
    pub(crate) fn finding(&self, kind: Kind, severity: Severity, level: u32) -> Finding {
        let (pool, pool_guid) = (self.name.clone(), self.guid.to_string());
        Finding { pool, pool_guid, ..Finding::new(kind, severity, level) }
    }

    /// Whether what such an alert is about is not known: that it does not show then does not mean that it is over.
    pub(crate) fn is_unread(&self, kind: Kind) -> bool {
        match kind {
            Kind::Space => self.capacity.is_none(),
            Kind::DataLost => self.lost.is_none(),
            _ => false,
        }
    }
}

/// What events told, by device or pool.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    /// Device → its latency and that of its peers, in milliseconds.
    pub(crate) latency: BTreeMap<u64, (u64, u64)>,
    /// Log device → when it last failed.
    pub(crate) logs: BTreeMap<u64, u64>,
    /// Pool → when blocks were last lost, and which.
    pub(crate) lost: BTreeMap<u64, (u64, String)>,
    /// Device → what led to its state.
    pub(crate) why: BTreeMap<u64, String>,
}

/// A device and where it is in the tree.
pub(crate) struct Part<'a> {
    pub(crate) vdev: &'a VdevStatus,
    pub(crate) place: Place<'a>,
}

impl Part<'_> {
    /// Whether its successor has its place: then its path, and what `zpool status` calls it, end in a mark that is nothing a
    /// person finds in the machine.
    pub(crate) fn is_superseded(&self) -> bool {
        let place = self.vdev.path.as_deref().and_then(|path| path.strip_suffix(OLD));
        let beside = self.place.within.map(|within| within.children.as_slice()).unwrap_or_default();
        let succeeds = |other: &VdevStatus, place: &str| {
            other.path.as_deref().is_some_and(|path| is_in_place(path, place))
        };
        place.is_some_and(|place| beside.iter().any(|other| succeeds(other, place)))
    }

    fn unmarked<'a>(&self, text: &'a str) -> &'a str {
        if self.is_superseded() { text.strip_suffix(OLD).unwrap_or(text) } else { text }
    }

    /// What it is a part of, if that goes on without it.
    pub(crate) fn rest(&self) -> Option<&VdevStatus> {
        self.place.parent.filter(|parent| parent.state.is_readable())
    }

    /// What a person calls it: by where it is or was, though commands may know it by its guid only.
    pub(crate) fn called(&self) -> String {
        self.unmarked(&self.vdev.import_name()).to_owned()
    }
}

/// All leaves of a pool with what is above them; spares and cache devices, too.
pub(crate) fn parts(facts: &Facts) -> Vec<Part<'_>> {
    fn below<'a>(vdev: &'a VdevStatus, place: Place<'a>, found: &mut Vec<Part<'a>>) {
        if vdev.children.is_empty() {
            found.push(Part { vdev, place });
            return;
        }
        for child in &vdev.children {
            let inner = matches!(vdev.type_word.as_str(), "replacing" | "spare");
            // A spare in use, and a disk being replaced, are part of what they are in for.
            let parent = if inner { place.parent.or(Some(vdev)) } else { Some(vdev) };
            let within = if inner { Some(vdev) } else { place.within };
            below(child, Place { parent, within, ..place }, found);
        }
    }
    let mut found = Vec::new();
    for top in &facts.root.children {
        let class = match top.class {
            Class::Log => words::Role::Log,
            Class::Special => words::Role::Special,
            Class::Dedup => words::Role::Dedup,
            _ => words::Role::Data,
        };
        below(top, Place { role: class, parent: None, within: None }, &mut found);
    }
    let beside = |role| move |vdev| Part { vdev, place: Place { role, parent: None, within: None } };
    found.extend(facts.spares.iter().map(beside(words::Role::Spare)));
    found.extend(facts.cache.iter().map(beside(words::Role::Cache)));
    found
}

/// A device that is there, if nothing worse is told of it than errors.
pub(crate) fn no_worse(facts: &Facts, guid: u64) -> Option<Part<'_>> {
    parts(facts).into_iter().find(|Part { vdev, .. }| {
        vdev.guid == guid && matches!(vdev.state, State::Healthy | State::Offline | State::Closed)
    })
}

/// Whether a device is another one, or below it.
pub(crate) fn is_within(facts: &Facts, guid: u64, whole: u64) -> bool {
    fn find(vdev: &VdevStatus, guid: u64) -> Option<&VdevStatus> {
        if vdev.guid == guid { Some(vdev) } else { vdev.children.iter().find_map(|child| find(child, guid)) }
    }
    let mut all = [&facts.root].into_iter().chain(&facts.spares).chain(&facts.cache);
    all.find_map(|vdev| find(vdev, whole)).is_some_and(|vdev| find(vdev, guid).is_some())
}

/// A device with what is known about the disk.
pub(crate) fn device(
    part: &Part<'_>,
    identity: Option<&Identity>,
    labels: &BTreeMap<String, String>,
) -> AlertDevice {
    let vdev = part.vdev;
    let known = identity.cloned().unwrap_or_default();
    let (name, path) = (part.called(), vdev.path.as_deref().map(|path| part.unmarked(path).to_owned()));
    let names = [known.serial.as_ref(), known.by_id.as_ref(), known.by_path.as_ref(), path.as_ref()];
    let label = names.into_iter().flatten().chain([&name, &vdev.name]).find_map(|name| labels.get(name));
    AlertDevice {
        name,
        guid: vdev.guid.to_string(),
        path: path.or_else(|| (!known.path.is_empty()).then_some(known.path)),
        by_id: known.by_id,
        model: known.model,
        serial: known.serial,
        bytes: known.bytes.or(vdev.device_bytes),
        bay: label.cloned().or(known.bay),
        part_of: part.place.parent.map(|parent| parent.name.clone()),
    }
}

/// Where descriptions of disks come from.
pub(crate) trait Catalog {
    /// The device of a part.
    fn device(&self, part: &Part<'_>) -> AlertDevice;
}

/// Everything that is wrong. `level` is how bad the open alert of a kind is for this pool.
pub(crate) fn findings(
    facts: &Facts,
    memory: &Memory,
    catalog: &dyn Catalog,
    now: u64,
    level: &dyn Fn(Kind) -> Option<u32>,
) -> Vec<Finding> {
    // A clock that was set back since then must not make it last.
    let is_recent = |when: u64| now.abs_diff(when) < RECENT;
    let mut found = Vec::new();
    let parts = parts(facts);
    for part in &parts {
        let vdev = part.vdev;
        let about = |kind, severity, level: u32| Finding {
            device: Some(catalog.device(part)),
            ..facts.finding(kind, severity, level)
        };
        if let Some(misfit) = &vdev.misfit
            && misfit.everywhere
            && vdev.state == State::Healthy
        {
            found.push(words::useless_spare(about(Kind::Spare, Severity::Warning, 2), part, &misfit.why));
        }
        // A spare that is in use is in the tree as well; there it is looked at.
        let in_use = part.place.role == words::Role::Spare
            && parts
                .iter()
                .any(|other| other.place.role != words::Role::Spare && other.vdev.guid == vdev.guid);
        if in_use {
            continue;
        }
        let state = match vdev.state {
            State::Healthy | State::Offline | State::Closed => None,
            State::Degraded => Some((1, Severity::Warning)),
            State::Removed => Some((2, Severity::Critical)),
            State::CantOpen => Some((3, Severity::Critical)),
            // Whoever did that knows it.
            State::Faulted if vdev.aux == Aux::External => Some((1, Severity::Warning)),
            State::Faulted => Some((4, Severity::Critical)),
        };
        if let Some((level, severity)) = state {
            let severity = if part.place.role.is_beside() { Severity::Warning } else { severity };
            let why = memory.why.get(&vdev.guid).map(String::as_str);
            let finding = about(Kind::Device, severity, level);
            found.push(words::device(finding, part, why));
        }
        let errors = vdev.errors.read + vdev.errors.write + vdev.errors.checksum;
        // Writes for which there was no room tell nothing of the device; that the pool waits for it does.
        let only_lacks_room =
            vdev.errors.write == errors && facts.suspended.as_deref().is_some_and(host::lacks_room);
        if errors > 0 && state.is_none() && !only_lacks_room {
            found.push(words::errors(about(Kind::Errors, Severity::Warning, 1 + errors.ilog10()), part));
        }
        if vdev.sits_out {
            let latency = memory.latency.get(&vdev.guid).copied();
            found.push(words::slow(about(Kind::Slow, Severity::Warning, 1), part, latency));
        }
        // What the event said is so as long as the device is away: the log cannot write to it. Of a mirror it goes on on the
        // other sides.
        let is_away = part.place.role == words::Role::Log
            && matches!(vdev.state, State::Removed | State::CantOpen | State::Faulted);
        let has_failed = memory.logs.get(&vdev.guid).is_some_and(|failed| is_recent(*failed));
        if (is_away || has_failed) && part.rest().is_none() {
            found.push(words::log_device(about(Kind::LogDevice, Severity::Warning, 1), part));
        }
        if let Some(within) = part.place.within
            && within.type_word == "spare"
            && let Some(slot) = within.children.first()
            && slot.guid != vdev.guid
            // The original may itself be in the middle of being replaced.
            && facts.spares.iter().any(|spare| spare.guid == vdev.guid)
        {
            found.push(words::spare(about(Kind::Spare, Severity::Warning, 1), part, slot));
        }
    }
    match facts.root.state {
        State::Degraded => {
            found.push(words::degraded(facts.finding(Kind::Pool, Severity::Warning, 1), facts, catalog));
        }
        State::Healthy => {}
        _ => found.push(words::unavailable(facts.finding(Kind::Pool, Severity::Critical, 2), facts)),
    }
    if let Some(why) = &facts.unwritten {
        // About the file: that the pool is degraded, as it is then, is another one.
        let file = Some(state::FILE.to_owned());
        found
            .push(words::unwritten(Finding { file, ..facts.finding(Kind::Pool, Severity::Warning, 1) }, why));
    }
    if let Some(why) = &facts.suspended {
        found.push(words::suspended(facts.finding(Kind::Suspended, Severity::Critical, 1), why));
    }
    if let Some(capacity) = facts.capacity {
        let was = level(Kind::Space).unwrap_or(0) as usize;
        let reached = |at: &usize| {
            let slack = if was > *at { SPACE_SLACK } else { 0 };
            capacity + slack >= SPACE[*at]
        };
        if let Some(at) = (0..SPACE.len()).rev().find(reached) {
            let severity = if at + 1 == SPACE.len() { Severity::Critical } else { Severity::Warning };
            found.push(words::space(
                facts.finding(Kind::Space, severity, at as u32 + 1),
                capacity,
                SPACE[at],
            ));
        }
    }
    let lately = memory.lost.get(&facts.guid).filter(|(when, _)| is_recent(*when));
    if facts.lost.is_some_and(|lost| lost > 0) || lately.is_some() {
        let lost = facts.lost.unwrap_or(0);
        let finding =
            facts.finding(Kind::DataLost, Severity::Critical, 1 + lost.checked_ilog10().unwrap_or(0));
        found.push(words::data_lost(finding, lost, lately.map(|(_, what)| what.as_str())));
    }
    found
}

#[cfg(test)]
pub(crate) mod tests {
    use pool::{space::Misfit, vdev::Errors};

    use super::*;
    use crate::alerts::book;

    pub(crate) fn leaf(name: &str, guid: u64) -> VdevStatus {
        VdevStatus {
            name: name.into(),
            type_word: "disk".into(),
            guid,
            id: 0,
            path: Some(format!("/dev/{name}")),
            newer_at: None,
            state: State::Healthy,
            aux: Aux::None,
            not_present: false,
            note: None,
            lacks: false,
            errors: Errors::default(),
            slow: None,
            sits_out: false,
            judged: true,
            misfit: None,
            class: Class::Normal,
            space: None,
            device_bytes: Some(8 << 40),
            children: Vec::new(),
        }
    }

    pub(crate) fn group(name: &str, word: &str, children: Vec<VdevStatus>) -> VdevStatus {
        VdevStatus { type_word: word.into(), path: None, device_bytes: None, children, ..leaf(name, 1000) }
    }

    pub(crate) fn facts(tops: Vec<VdevStatus>) -> Facts {
        Facts {
            name: "tank".into(),
            guid: 7,
            root: group("tank", "root", tops),
            spares: Vec::new(),
            cache: Vec::new(),
            watched: true,
            suspended: None,
            capacity: Some(10),
            lost: Some(0),
            unwritten: None,
        }
    }

    struct Names;

    impl Catalog for Names {
        fn device(&self, part: &Part<'_>) -> AlertDevice {
            let identity = Identity { serial: Some("WSD1".into()), ..Identity::default() };
            device(part, Some(&identity), &BTreeMap::from([("WSD1".into(), "bay 3".into())]))
        }
    }

    fn look(facts: &Facts, memory: &Memory) -> Vec<Finding> {
        findings(facts, memory, &Names, 1000, &|_| None)
    }

    fn kinds(found: &[Finding]) -> Vec<(Kind, u32)> {
        found.iter().map(|finding| (finding.kind, finding.level)).collect()
    }

    fn raidz2(state: State, aux: Aux) -> Facts {
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

    /// A disk that is filled counted as one that has everything: "one more disk may fail" was told where none may, and
    /// "works without it" where what was not filled yet was gone.
    #[test]
    fn a_disk_that_is_being_filled_is_no_redundancy_yet() {
        let filling = |name: &str, guid| VdevStatus { lacks: true, ..leaf(name, guid) };
        let failed = |name: &str, guid| VdevStatus { state: State::Faulted, ..leaf(name, guid) };
        let degraded = |name: &str, word: &str, children| VdevStatus {
            state: State::Degraded,
            ..group(name, word, children)
        };
        let said = |top: VdevStatus, guid: u64| {
            let mut all = facts(vec![top]);
            all.root.state = State::Degraded;
            let found = look(&all, &Memory::default());
            let guid = guid.to_string();
            let about = |finding: &&Finding| {
                finding.kind == Kind::Device
                    && finding.device.as_ref().is_some_and(|device| device.guid == guid)
            };
            found.iter().find(about).unwrap().meaning.clone()
        };
        let raidz2 = |spare: VdevStatus| {
            let instead = degraded("spare-2", "spare", vec![failed("sd3", 3), spare]);
            let leaves = vec![leaf("sd1", 1), leaf("sd2", 2), instead, leaf("sd4", 4), failed("sd5", 5)];
            degraded("raidz2-0", "raidz", leaves)
        };
        let meaning = said(raidz2(filling("sdz", 99)), 5);
        assert!(meaning.contains("no other disk of raidz2-0 may fail"), "{meaning}");
        let meaning = said(raidz2(leaf("sdz", 99)), 5);
        assert!(meaning.contains("one more disk of raidz2-0 may fail"), "{meaning}");
        // One that came back, and another that fails before it has what it missed.
        let raidz1 = vec![failed("sd1", 1), filling("sd2", 2), leaf("sd3", 3)];
        let meaning = said(degraded("raidz1-0", "raidz", raidz1), 1);
        assert!(meaning.contains("What is not resilvered yet cannot be read"), "{meaning}");
        // That it gives wrong bytes is all that is told of it, and it counted as filled.
        let (state, aux, note) = (State::Degraded, Aux::ErrorsExceeded, Some("too many errors".to_owned()));
        let worse = VdevStatus { state, aux, note, ..filling("sd2", 2) };
        let raidz1 = vec![failed("sd1", 1), worse, leaf("sd3", 3)];
        let meaning = said(degraded("raidz1-0", "raidz", raidz1), 1);
        assert!(meaning.contains("What is not resilvered yet cannot be read"), "{meaning}");
        let instead = degraded("replacing-1", "replacing", vec![failed("sdb", 2), filling("sdc", 3)]);
        let meaning = said(degraded("mirror-0", "mirror", vec![leaf("sda", 1), instead]), 2);
        assert!(meaning.contains("no other disk of mirror-0 may fail"), "{meaning}");
    }

    /// One that gives wrong bytes was told to be "in use because nothing else has what is on it", which others have, else it
    /// would not be DEGRADED; and counted as redundancy.
    #[test]
    fn a_disk_that_gives_wrong_bytes_is_repaired_from_others_and_is_no_redundancy() {
        let said = |facts: &Facts| look(facts, &Memory::default())[0].meaning.clone();
        let meaning = said(&raidz2(State::Degraded, Aux::ErrorsExceeded));
        assert!(meaning.contains("repaired from the others"), "{meaning}");
        assert!(meaning.contains("one more disk of raidz2-0 may fail"), "{meaning}");
        let bad = || VdevStatus { state: State::Degraded, ..leaf("sdb", 2) };
        let mirror = |other: VdevStatus| facts(vec![group("mirror-0", "mirror", vec![bad(), other])]);
        let meaning = said(&mirror(leaf("sda", 1)));
        assert!(meaning.contains("no other disk of mirror-0 may fail"), "{meaning}");
        let meaning = said(&mirror(VdevStatus { state: State::Removed, ..leaf("sda", 1) }));
        assert!(meaning.contains("'tank' cannot do without it"), "{meaning}");
        // A spare that has everything stands in.
        let instead = group("spare-0", "spare", vec![bad(), leaf("sdz", 99)]);
        let meaning = said(&facts(vec![group("mirror-0", "mirror", vec![instead, leaf("sda", 1)])]));
        assert!(meaning.contains("one more disk of mirror-0 may fail"), "{meaning}");
    }

    /// "The next one loses data" was told where it costs speed.
    #[test]
    fn a_side_of_a_mirrored_log_costs_no_data() {
        let away = VdevStatus { state: State::Removed, ..leaf("nvme0n1", 50) };
        let mut log = group("mirror-1", "mirror", vec![away, leaf("nvme1n1", 51)]);
        (log.class, log.state) = (Class::Log, State::Degraded);
        let found = look(&facts(vec![leaf("sda", 1), log]), &Memory::default());
        let meaning = &found[0].meaning;
        assert!(meaning.contains("goes on on what is left of mirror-1"), "{meaning}");
        assert!(meaning.contains("more slowly") && !meaning.contains("loses data"), "{meaning}");
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

    /// It was DEGRADED (too many errors: too many checksum errors).
    #[test]
    fn what_there_was_too_much_of_is_said_once() {
        let facts = raidz2(State::Degraded, Aux::ErrorsExceeded);
        let memory =
            Memory { why: BTreeMap::from([(3, "too many checksum errors".into())]), ..Memory::default() };
        assert_eq!(look(&facts, &memory)[0].title, "disk sd3 is DEGRADED (too many checksum errors)");
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

    /// A title told a guid, or a path that ended in `/old`, of which nobody finds a disk in the machine; and who took a
    /// labelled disk offline was told of the pool alone.
    #[test]
    fn a_disk_is_named_so_that_it_is_found_in_the_machine() {
        let mut facts = raidz2(State::CantOpen, Aux::OpenFailed);
        let disk = &mut facts.root.children[0].children[2];
        (disk.name, disk.not_present) = ("3".into(), true);
        let found = look(&facts, &Memory::default());
        assert!(found[0].title.starts_with("disk sd3 is UNAVAIL"), "{}", found[0].title);
        assert!(found[0].action.iter().any(|line| line == "  zpool replace tank 3 NEW-DEVICE"));
        let (device, pool) = (found[0].device.as_ref().unwrap(), &found[1]);
        assert_eq!((device.name.as_str(), device.guid.as_str()), ("sd3", "3"));
        assert!(
            pool.meaning.ends_with("it should have: sd3 [serial WSD1, bay 3] UNAVAIL."),
            "{}",
            pool.meaning
        );
        // Another disk takes its place.
        let original = facts.root.children[0].children[2].clone();
        let old = VdevStatus { path: Some("/dev/sd3/old".into()), ..original };
        facts.root.children[0].children[2] = group("replacing-2", "replacing", vec![old, leaf("sd3", 33)]);
        let found = look(&facts, &Memory::default());
        assert!(found[0].title.starts_with("disk sd3 (being replaced) is UNAVAIL"), "{}", found[0].title);
        let device = found[0].device.as_ref().unwrap();
        assert_eq!((device.name.as_str(), device.path.as_deref()), ("sd3", Some("/dev/sd3")));
        // A file may be called so.
        facts.root.children[0].children[2] = VdevStatus { path: Some("/disks/old".into()), ..leaf("old", 3) };
        facts.root.children[0].children[2].errors.read = 1;
        assert_eq!(look(&facts, &Memory::default())[0].title, "disk old has 1 read error");
    }

    /// `zpool labelclear -f sdb` was told, where that is no path, or another's by then: -f overrules that.
    #[test]
    fn a_disk_with_a_newer_state_is_cleared_where_it_is() {
        let mut facts = raidz2(State::CantOpen, Aux::NewerState);
        facts.root.children[0].children[2].newer_at = Some("/dev/sdh1".into());
        let action = look(&facts, &Memory::default())[0].action.clone();
        for line in [
            "  zpool import -d /dev/sdh1 tank    with the others unplugged",
            "  zpool labelclear -f /dev/sdh1",
            "  zpool replace tank sd3 /dev/sdh1",
        ] {
            assert!(action.iter().any(|told| told == line), "{line}: {action:?}");
        }
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

    #[test]
    fn space_has_thresholds_that_do_not_flap() {
        let mut facts = raidz2(State::Healthy, Aux::None);
        let mut at = |capacity, was| {
            facts.capacity = Some(capacity);
            let found = findings(&facts, &Memory::default(), &Names, 0, &|_| was);
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

    #[test]
    fn a_slow_cache_device_is_told_as_one_that_can_be_done_without() {
        let mut facts = facts(vec![leaf("sda", 1)]);
        facts.cache.push(VdevStatus { sits_out: true, ..leaf("nvme0n1", 50) });
        let memory = Memory { latency: BTreeMap::from([(50, (600, 10))]), ..Memory::default() };
        let found = look(&facts, &memory);
        assert_eq!(kinds(&found), [(Kind::Slow, 1)]);
        assert!(found[0].title.ends_with("600 ms where the pool's disks take 10 ms"), "{}", found[0].title);
        assert!(found[0].action.iter().any(|line| line == "  zpool remove tank nvme0n1"), "{found:?}");
    }

    /// A spare was to be taken online, a cache device to be read through by a scrub and replaced: all of that is refused, or
    /// helps nothing.
    #[test]
    fn of_spares_and_cache_devices_only_commands_are_told_that_help() {
        let conditions = [
            (State::Healthy, Aux::None),
            (State::Degraded, Aux::ErrorsExceeded),
            (State::Removed, Aux::None),
            (State::Faulted, Aux::ErrorsExceeded),
            (State::Faulted, Aux::External),
            (State::CantOpen, Aux::OpenFailed),
            (State::CantOpen, Aux::BadLabel),
            (State::CantOpen, Aux::NewerState),
            (State::CantOpen, Aux::TooSmall),
        ];
        for ((state, aux), is_spare) in conditions.into_iter().flat_map(|how| [(how, true), (how, false)]) {
            let errors = Errors { read: 1, write: 0, checksum: 2 };
            let device = VdevStatus { state, aux, errors, ..leaf("nvme0n1", 50) };
            let mut facts = facts(vec![leaf("sda", 1)]);
            let list = if is_spare { &mut facts.spares } else { &mut facts.cache };
            list.push(device);
            let found = look(&facts, &Memory::default());
            let kind = if state == State::Healthy { Kind::Errors } else { Kind::Device };
            assert_eq!(found.iter().map(|finding| finding.kind).collect::<Vec<_>>(), [kind], "{state:?}");
            let action = found[0].action.join("\n");
            let refused = ["zpool scrub", "zpool replace", "zpool online"];
            for refused in &refused[..if is_spare { 3 } else { 2 }] {
                assert!(!action.contains(refused), "{state:?} {aux:?}: {action}");
            }
            let list = if is_spare { "spare" } else { "cache" };
            let others = format!("  zpool remove tank nvme0n1    and then 'zpool add tank {list} ");
            assert_eq!(action.contains(&others), aux != Aux::External, "{state:?} {aux:?}: {action}");
            let looked_for = "  zpool reopen tank";
            let is_away = state == State::Removed || aux == Aux::OpenFailed;
            assert!(!is_away || action.contains(looked_for) == is_spare, "{state:?} {aux:?}: {action}");
        }
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
        let later = findings(&facts, &memory, &Names, 1000 + RECENT, &|_| None);
        assert_eq!(kinds(&later), [(Kind::Slow, 1)]);
        let ahead = Memory {
            logs: BTreeMap::from([(50, 1 << 20)]),
            lost: BTreeMap::from([(7, (1 << 20, "tank/vm1:<0x1>".into()))]),
            ..Memory::default()
        };
        let set_back = findings(&facts, &ahead, &Names, 1000, &|_| None);
        assert_eq!(kinds(&set_back), [(Kind::Slow, 1)], "not until the clock is there again");
        facts.lost = Some(12);
        assert_eq!(
            kinds(&findings(&facts, &memory, &Names, 9000, &|_| None)),
            [(Kind::Slow, 1), (Kind::DataLost, 2)]
        );
        // As many as are read of a list at most.
        for (lost, blocks) in [(99_999, "99999 blocks"), (100_000, "at least 100000 blocks")] {
            facts.lost = Some(lost);
            let found = findings(&facts, &memory, &Names, 9000, &|_| None);
            assert_eq!(found[1].title, format!("pool 'tank': {blocks} are lost"));
        }
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
