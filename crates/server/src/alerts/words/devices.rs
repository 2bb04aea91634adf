//! What is said of a device: its condition, its errors, that it is slow, that it stands in for another.
//!
//! Each command that is told is one that would be carried out on this device as it is, and would help.

use pool::{
    status::VdevStatus,
    vdev::{Aux, State},
};

use super::redundancy::left;
use crate::{
    alerts::parts::{Part, Role},
    api::alerts::Finding,
};

/// A device that is not what it should be.
pub(in crate::alerts) fn device(mut finding: Finding, part: &Part<'_>, why: Option<&str>) -> Finding {
    let (vdev, pool) = (part.vdev, finding.pool.clone());
    let replaced = if part.is_superseded() { " (being replaced)" } else { "" };
    finding.title = format!(
        "{} {}{replaced} is {}{}",
        part.role.noun(),
        part.called(),
        vdev.state.word(vdev.aux),
        reason(vdev, why)
    );
    (finding.meaning, finding.action) = condition(part, &pool);
    let is_side = part.within.is_none() && part.rest().is_some_and(|rest| rest.type_word == "mirror");
    if part.role == Role::Log && is_side && !matches!(vdev.aux, Aux::NewerState | Aux::External) {
        finding.action.extend([
            "Or let the intent log do without this side:".to_owned(),
            format!("  zpool detach {pool} {}", vdev.name),
        ]);
    }
    finding
}

/// Why it is so, in brackets; nothing if nobody knows.
fn reason(vdev: &VdevStatus, why: Option<&str>) -> String {
    let mut reason = vdev.aux.note().unwrap_or_default().to_owned();
    if let Some(why) = why.filter(|why| !why.is_empty()) {
        // Some reasons say themselves that it was too much of something.
        let says_all = reason.is_empty() || why.starts_with("too many ");
        reason = if says_all { why.to_owned() } else { format!("{reason}: {why}") };
    }
    if reason.is_empty() { String::new() } else { format!(" ({reason})") }
}

/// What its condition means, and what to do.
fn condition(part: &Part<'_>, pool: &str) -> (String, Vec<String>) {
    let (vdev, name) = (part.vdev, &part.vdev.name);
    let left = left(part, pool);
    let replace = successor(part, pool, "NEW-DEVICE");
    let missed = if part.role.is_beside() { "" } else { ", and gets only what it missed" };
    // A spare at rest is never offline, and cannot be taken online.
    let look = match part.role {
        Role::Spare => format!("  zpool reopen {pool}"),
        _ => format!("  zpool online {pool} {name}"),
    };
    match vdev.state {
        State::CantOpen if vdev.aux == Aux::TooSmall => (
            format!("It has become too small for what is on it: a volume or LUN was reduced. Nothing is written to it, so that what it holds is whole when it has its size again. {left}"),
            vec![
                "Give it its size again: it is taken into use by itself. If it is not:".to_owned(),
                look,
                "If it cannot have it:".to_owned(),
                replace,
            ],
        ),
        State::CantOpen if vdev.aux == Aux::NewerState => newer_state(part, pool, &left),
        State::Degraded if part.role.is_beside() => (
            "It gave wrong answers more often than a good device ever does. No data is on it that is not elsewhere.".to_owned(),
            vec![
                "Look whether it is the device, or its cable, its controller, the memory of this machine. If it is the device:".to_owned(),
                replace,
            ],
        ),
        State::Degraded => (
            format!("It gave wrong answers more often than a good disk ever does. It stays in use, and what it gives wrongly is given and repaired from the others where they have it; a hot spare stands in if there is one. {left}"),
            vec![
                "Look whether it is the disk, or its cable, its controller, the memory of this machine. If it is the disk:".to_owned(),
                replace,
                "If the cause is removed, have everything read once, and forget the errors:".to_owned(),
                format!("  zpool scrub {pool}"),
                format!("  zpool clear {pool} {name}"),
            ],
        ),
        State::Removed => (
            format!("It went away while it was in use: it was pulled out, or lost its connection or its power. {left}"),
            vec![
                format!("Plug it in again: it is taken into use by itself{missed}. If it is there and is not:"),
                look,
                "If it is broken, put another in:".to_owned(),
                replace,
            ],
        ),
        State::Faulted if vdev.aux == Aux::External => (
            format!("An administrator faulted it ('zpool offline -f'), and it is not used until it is brought back. {left}"),
            vec!["To take it into use again:".to_owned(), look],
        ),
        State::Faulted => (
            format!("It failed too often and is not used any more. {left}"),
            vec![
                "Put another disk in, and let it take over:".to_owned(),
                replace,
                "If it was only the cable, the shelf or the power, it may go on:".to_owned(),
                format!("  zpool clear {pool} {name}"),
            ],
        ),
        _ => (
            match vdev.aux {
                Aux::BadLabel | Aux::CorruptData => {
                    format!("Something is there, but it is not this disk: it has no label of it, or another's. {left}")
                }
                _ => format!("It could not be opened: it is not there, or does not answer. {left}"),
            },
            vec![
                "Look whether it is plugged in and has power. When it is there:".to_owned(),
                look,
                "If it is lost:".to_owned(),
                replace,
            ],
        ),
    }
}

/// It has what no other has: nothing of it is overwritten by itself.
fn newer_state(part: &Part<'_>, pool: &str, left: &str) -> (String, Vec<String>) {
    // The path that the pool has of it may be another disk's by now, which what is to be typed would overwrite.
    let newer_at = part.vdev.newer_at.as_deref().unwrap_or("DEVICE");
    let meaning = format!(
        "It is there, and has a newer state of '{pool}' than the one it was away from: the pool was gone on with on it alone, here or on another host. What was acknowledged there may be on no other disk. (If all disks of '{pool}' were in use until the power failed, it may be no more than what was being written at that moment: nothing that was acknowledged is on it alone then.) It is not used and never overwritten by itself, however far this pool gets. {left}"
    );
    let action = vec![
        "Do not replace or clear it before you know which of the two is wanted. To have what is on this disk, without what was written to the others since:".to_owned(),
        format!("  zpool export {pool}"),
        format!("  zpool import -d {newer_at} {pool}    with the others unplugged"),
        format!("If it is not needed, before '{pool}' is exported, which forgets that it was given up. Without -f first: that names '{pool}', if it is still there:"),
        format!("  zpool labelclear -f {newer_at}"),
        successor(part, pool, newer_at),
    ];
    (meaning, action)
}

/// Errors of a device in use.
pub(in crate::alerts) fn errors(finding: Finding, part: &Part<'_>) -> Finding {
    let errors = part.vdev.errors;
    let each = [(errors.read, "read"), (errors.write, "write"), (errors.checksum, "checksum")];
    let told: Vec<String> =
        each.iter().filter(|(n, _)| *n > 0).map(|(n, word)| format!("{n} {word}")).collect();
    let total: u64 = each.iter().map(|(n, _)| n).sum();
    let word = if total == 1 { "error" } else { "errors" };
    has_errors(finding, part, &format!("{} {word}", told.join(", ")))
}

/// Those of a device that the finding tells of, though since its pool was opened fewer were counted.
pub(in crate::alerts) fn errors_before(finding: Finding, part: &Part<'_>) -> Finding {
    let told = finding.title.rsplit_once(" has ").map_or("errors", |(_, told)| told).to_owned();
    has_errors(finding, part, &told)
}

fn has_errors(mut finding: Finding, part: &Part<'_>, told: &str) -> Finding {
    let (vdev, pool) = (part.vdev, finding.pool.clone());
    finding.title = format!("{} {} has {told}", part.role.noun(), part.called());
    if part.role.is_beside() {
        finding.meaning = "Read and write errors: it refused. Checksum errors: it gave other bytes than were written. No data \
            is on it that is not elsewhere. One error may be chance; many are a device, a cable, a controller or memory \
            that goes bad."
            .to_owned();
        finding.action = vec![
            "Forget those that were counted; this alert is resolved by that:".to_owned(),
            format!("  zpool clear {pool} {}", vdev.name),
            "If they come back, replace cable or device:".to_owned(),
            successor(part, &pool, "NEW-DEVICE"),
        ];
        return finding;
    }
    finding.meaning = "Read and write errors: it refused. Checksum errors: it gave other bytes than were written. Wherever \
        there is redundancy, right bytes were given to clients and written back. One error may be chance; many are a disk, \
        a cable, a controller or memory that goes bad."
        .to_owned();
    finding.action = vec![
        "Have everything read once, and see whether there are more:".to_owned(),
        format!("  zpool scrub {pool}"),
        "Then forget those that were counted; this alert is resolved by that:".to_owned(),
        format!("  zpool clear {pool} {}", vdev.name),
        "If they come back, replace cable or disk:".to_owned(),
        successor(part, &pool, "NEW-DEVICE"),
    ];
    finding
}

/// A device that sits out.
pub(in crate::alerts) fn slow(finding: Finding, part: &Part<'_>, latency: Option<(u64, u64)>) -> Finding {
    let others = if part.role == Role::Cache { "the pool's disks" } else { "its peers" };
    let told =
        latency.map_or_else(String::new, |(own, peers)| format!(": {own} ms where {others} take {peers} ms"));
    is_slow(finding, part, &told)
}

/// One of which that was told before its pool was opened anew, and which is none beside the tree.
pub(in crate::alerts) fn slow_before(finding: Finding, part: &Part<'_>) -> Finding {
    let told = finding.title.rsplit_once(" is slow").map_or("", |(_, told)| told).to_owned();
    let mut finding = is_slow(finding, part, &told);
    finding.meaning = "It answered much later than the disks beside it before its pool was opened anew. Whether it still does shows \
        when it is read from; if nobody does, it is tried every ten minutes. Disks often become slow before they fail."
        .to_owned();
    finding
}

fn is_slow(mut finding: Finding, part: &Part<'_>, told: &str) -> Finding {
    let (name, pool) = (&part.vdev.name, finding.pool.clone());
    let is_cache = part.role == Role::Cache;
    finding.title = format!("{} {} is slow{told}", part.role.noun(), part.called());
    if is_cache {
        finding.meaning = "It answers, but much later than the pool's own disks, which are asked in its place for now; it is tried \
            again within ten minutes. No data is on it that is not elsewhere."
            .to_owned();
        finding.action = vec![
            "Look at what the device says of itself (smartctl -a), and at its temperature. If it stays slow:"
                .to_owned(),
            format!("  zpool remove {pool} {name}"),
        ];
        return finding;
    }
    finding.meaning = "It answers, but much later than the disks beside it. It is not read from for now, what it has is \
        computed from the others; it is tried again every ten minutes. Disks often become slow before they fail."
        .to_owned();
    finding.action = vec![
        "Look at what the disk says of itself (smartctl -a), at its cable and its temperature. If it stays slow:".to_owned(),
        format!("  zpool replace {pool} {name} NEW-DEVICE"),
    ];
    finding
}

/// A log device that refuses. Only whole devices can be removed.
pub(in crate::alerts) fn log_device(mut finding: Finding, part: &Part<'_>) -> Finding {
    let (name, pool) = (&part.vdev.name, finding.pool.clone());
    let whole = part.parent.map_or(name, |parent| &parent.name);
    finding.title = format!("log device {} cannot be used", part.called());
    finding.meaning = format!(
        "The intent log could not write to it. Nothing is lost: what clients want durable at once is written to the other \
         devices of '{pool}', more slowly."
    );
    finding.action = vec![
        "See what the device has:".to_owned(),
        format!("  zpool status {pool}"),
        "Replace it, or do without:".to_owned(),
        format!("  zpool replace {pool} {name} NEW-DEVICE"),
        format!("  zpool remove {pool} {whole}"),
    ];
    finding
}

/// A spare in use. `slot` is what it stands in for, which may be in the middle of being replaced.
pub(in crate::alerts) fn spare(mut finding: Finding, part: &Part<'_>, slot: &VdevStatus) -> Finding {
    let original = Part { vdev: original(slot), within: Some(slot), ..*part };
    let (instead_of, pool) = (&original.vdev.name, finding.pool.clone());
    finding.title = format!("hot spare {} is in use in place of {}", part.called(), original.called());
    finding.meaning = format!(
        "A resilver fills it, then redundancy is as before; but this spare cannot stand in for another disk of '{pool}'."
    );
    if slot.type_word == "replacing" {
        finding.action = vec![
            "The failed disk is being replaced; the spare is free again when the new one is filled:"
                .to_owned(),
            format!("  zpool status {pool}"),
        ];
        return finding;
    }
    finding.action = vec![
        "Replace the failed disk; the spare is free again when the new one is filled:".to_owned(),
        format!("  zpool replace {pool} {instead_of} NEW-DEVICE"),
        "Or let the spare stay for good, and add another spare:".to_owned(),
        format!("  zpool detach {pool} {instead_of}"),
    ];
    finding
}

/// The device that was first in this place.
fn original(vdev: &VdevStatus) -> &VdevStatus {
    vdev.children.first().map_or(vdev, original)
}

/// A spare at rest that is good for none of the pool's disks.
pub(in crate::alerts) fn useless_spare(mut finding: Finding, part: &Part<'_>, why: &str) -> Finding {
    let pool = finding.pool.clone();
    finding.title = format!("hot spare {} cannot stand in: {why}", part.called());
    finding.meaning = format!("It would stand in for no disk of '{pool}' that failed now.");
    finding.action = vec![
        "Take one that fits:".to_owned(),
        format!("  zpool remove {pool} {}", part.vdev.name),
        format!("  zpool add {pool} spare NEW-DEVICE"),
    ];
    finding
}

/// The command that puts `new` in the place of a device.
fn successor(part: &Part<'_>, pool: &str, new: &str) -> String {
    let name = &part.vdev.name;
    let list = match part.role {
        Role::Spare => "spare",
        Role::Cache => "cache",
        _ => return format!("  zpool replace {pool} {name} {new}"),
    };
    format!("  zpool remove {pool} {name}    and then 'zpool add {pool} {list} {new}'")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use pool::vdev::Errors;

    use super::*;
    use crate::{
        alerts::{
            facts::tests::{facts, group, leaf},
            survey::{
                Memory,
                tests::{kinds, look, raidz2},
            },
        },
        api::alerts::Kind,
    };

    /// It was DEGRADED (too many errors: too many checksum errors).
    #[test]
    fn what_there_was_too_much_of_is_said_once() {
        let facts = raidz2(State::Degraded, Aux::ErrorsExceeded);
        let memory =
            Memory { why: BTreeMap::from([(3, "too many checksum errors".into())]), ..Memory::default() };
        assert_eq!(look(&facts, &memory)[0].title, "disk sd3 is DEGRADED (too many checksum errors)");
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
}
