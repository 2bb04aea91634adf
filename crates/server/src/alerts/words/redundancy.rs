//! What may fail besides a device that did: the sentence by which somebody knows whether to come at night.

use pool::status::VdevStatus;

use crate::alerts::parts::{Part, Role};

/// What else may fail without this device.
pub(super) fn left(part: &Part<'_>, pool: &str) -> String {
    let parent = match part.role {
        Role::Spare => return "It would not stand in if a disk failed now.".to_owned(),
        Role::Cache => return "Reads are slower; no data is on it that is not elsewhere.".to_owned(),
        Role::Log => return left_of_log(part, pool),
        _ => part.parent,
    };
    let is_in_use = part.vdev.state.is_readable();
    let Some(parent) = parent else {
        if is_in_use {
            return "It has no redundancy of its own: what it alone has and gives wrongly is lost."
                .to_owned();
        }
        return format!(
            "It has no redundancy of its own: what lies on it alone cannot be read, and '{pool}' writes nothing."
        );
    };
    let failed = parent.children.iter().filter(|child| !child.state.is_readable()).count();
    let lacking = parent.children.iter().filter(|child| !is_whole(child, part.vdev.guid)).count();
    let tolerated = tolerated(parent);
    match tolerated.checked_sub(lacking) {
        None if is_in_use => {
            format!(
                "'{pool}' cannot do without it: too many disks of {} are away or not filled.",
                parent.name
            )
        }
        None if failed <= tolerated => format!(
            "What is not resilvered yet cannot be read: for that, too many disks of {} are away.",
            parent.name
        ),
        None => format!("More disks of {} failed than it can do without.", parent.name),
        Some(0) => format!(
            "'{pool}' works without it, but no other disk of {} may fail: the next one loses data.",
            parent.name
        ),
        Some(more) => {
            let disks = if more == 1 { "disk" } else { "disks" };
            format!("'{pool}' works without it; {} more {disks} of {} may fail.", small(more), parent.name)
        }
    }
}

/// What clients want durable at once goes on without this device of the intent log.
fn left_of_log(part: &Part<'_>, pool: &str) -> String {
    let instead = format!("is written to the other devices of '{pool}', more slowly.");
    match part.rest() {
        Some(parent) => format!(
            "The intent log goes on on what is left of {}. If that fails, too, what clients want durable at once \
             {instead}",
            parent.name
        ),
        None => format!("What clients want durable at once {instead}"),
    }
}

/// How many of its devices this one can do without.
fn tolerated(vdev: &VdevStatus) -> usize {
    let parity = |word: &str, end: char| {
        let digits = vdev.name.strip_prefix(word).and_then(|rest| rest.split(end).next());
        digits.and_then(|digits| digits.parse().ok()).unwrap_or(1)
    };
    match vdev.type_word.as_str() {
        "raidz" => parity("raidz", '-'),
        "draid" => parity("draid", ':'),
        _ => vdev.children.len().saturating_sub(1),
    }
}

/// Whether it has all that it should without this device. What a resilver still fills is readable, and is nobody's redundancy
/// yet.
fn is_whole(vdev: &VdevStatus, without: u64) -> bool {
    match vdev.type_word.as_str() {
        "replacing" | "spare" => vdev.children.iter().any(|child| is_whole(child, without)),
        _ => vdev.guid != without && vdev.state.is_readable() && !vdev.lacks,
    }
}

fn small(number: usize) -> String {
    ["no", "one", "two", "three"].get(number).map_or_else(|| number.to_string(), |word| (*word).to_owned())
}

#[cfg(test)]
mod tests {
    use pool::vdev::{Aux, Class, State};

    use super::*;
    use crate::{
        alerts::{
            facts::{
                Facts,
                tests::{facts, group, leaf},
            },
            survey::{
                Memory,
                tests::{look, raidz2},
            },
        },
        api::alerts::{Finding, Kind},
    };

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
}
