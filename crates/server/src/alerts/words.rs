//! What alerts say: one line that names the thing, what it means, what to do with the exact command.
//!
//! `docs/alerts.md` lists them all; a test holds the two together.

use nbd::Credential;
use pool::{
    status::{ERROR_LOG_MAX, VdevStatus},
    vdev::{Aux, State},
};

use super::{
    message::short,
    survey::{Catalog, Facts, Part},
};
use crate::{
    api::alerts::{Finding, Kind, Severity},
    certificates::Expiry,
    host,
    late::Missing,
    ops::IN_USE,
    view,
};

/// What a device is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Data.
    Data,
    /// Metadata and small blocks.
    Special,
    /// Deduplication tables.
    Dedup,
    /// The intent log.
    Log,
    /// A hot spare.
    Spare,
    /// A read cache.
    Cache,
}

/// Where a device is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub(crate) role: Role,
    /// The mirror or RAIDZ device it is a part of.
    pub(crate) parent: Option<&'a VdevStatus>,
    /// The `replacing` or `spare` device it is in.
    pub(crate) within: Option<&'a VdevStatus>,
}

impl Role {
    fn noun(self) -> &'static str {
        match self {
            Self::Data => "disk",
            Self::Special => "special device",
            Self::Dedup => "dedup device",
            Self::Log => "log device",
            Self::Spare => "hot spare",
            Self::Cache => "cache device",
        }
    }

    /// Whether it is beside the pool's data: no scrub reads it, and no other takes its place by a resilver.
    pub(crate) fn is_beside(self) -> bool {
        matches!(self, Self::Spare | Self::Cache)
    }
}

/// The command that puts `new` in the place of a device.
fn successor(part: &Part<'_>, pool: &str, new: &str) -> String {
    let name = &part.vdev.name;
    let list = match part.place.role {
        Role::Spare => "spare",
        Role::Cache => "cache",
        _ => return format!("  zpool replace {pool} {name} {new}"),
    };
    format!("  zpool remove {pool} {name}    and then 'zpool add {pool} {list} {new}'")
}

fn lines(lines: &[&str]) -> Vec<String> {
    lines.iter().map(|line| (*line).to_owned()).collect()
}

fn small(number: usize) -> String {
    ["no", "one", "two", "three"].get(number).map_or_else(|| number.to_string(), |word| (*word).to_owned())
}

/// Whether it has all that it should without this device. What a resilver still fills is readable, and is nobody's redundancy
/// yet.
fn is_whole(vdev: &VdevStatus, without: u64) -> bool {
    match vdev.type_word.as_str() {
        "replacing" | "spare" => vdev.children.iter().any(|child| is_whole(child, without)),
        _ => vdev.guid != without && vdev.state.is_readable() && !vdev.lacks,
    }
}

/// The device that was first in this place.
fn original(vdev: &VdevStatus) -> &VdevStatus {
    vdev.children.first().map_or(vdev, original)
}

/// What else may fail.
fn left(part: &Part<'_>, pool: &str) -> String {
    let name = match part.place.role {
        Role::Spare => return "It would not stand in if a disk failed now.".to_owned(),
        Role::Cache => return "Reads are slower; no data is on it that is not elsewhere.".to_owned(),
        Role::Log => {
            let instead = format!("is written to the other devices of '{pool}', more slowly.");
            return match part.rest() {
                Some(parent) => format!(
                    "The intent log goes on on what is left of {}. If that fails, too, what clients want durable at once \
                     {instead}",
                    parent.name
                ),
                None => format!("What clients want durable at once {instead}"),
            };
        }
        _ => part.place.parent,
    };
    let is_in_use = part.vdev.state.is_readable();
    let Some(parent) = name else {
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
    let tolerated = match parent.type_word.as_str() {
        "raidz" => parent
            .name
            .strip_prefix("raidz")
            .and_then(|rest| rest.split('-').next()?.parse().ok())
            .unwrap_or(1),
        "draid" => parent
            .name
            .strip_prefix("draid")
            .and_then(|rest| rest.split(':').next()?.parse().ok())
            .unwrap_or(1),
        _ => parent.children.len().saturating_sub(1),
    };
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

/// A device that is not what it should be.
pub(crate) fn device(mut finding: Finding, part: &Part<'_>, why: Option<&str>) -> Finding {
    let (vdev, pool) = (part.vdev, finding.pool.clone());
    let (noun, name) = (part.place.role.noun(), &vdev.name);
    let mut reason = vdev.aux.note().unwrap_or_default().to_owned();
    if let Some(why) = why.filter(|why| !why.is_empty()) {
        // Some reasons say themselves that it was too much of something.
        let says_all = reason.is_empty() || why.starts_with("too many ");
        reason = if says_all { why.to_owned() } else { format!("{reason}: {why}") };
    }
    let reason = if reason.is_empty() { String::new() } else { format!(" ({reason})") };
    let replaced = if part.is_superseded() { " (being replaced)" } else { "" };
    finding.title = format!("{noun} {}{replaced} is {}{reason}", part.called(), vdev.state.word(vdev.aux));
    let left = left(part, &pool);
    let replace = successor(part, &pool, "NEW-DEVICE");
    let missed = if part.place.role.is_beside() { "" } else { ", and gets only what it missed" };
    // A spare at rest is never offline, and cannot be taken online.
    let look = match part.place.role {
        Role::Spare => format!("  zpool reopen {pool}"),
        _ => format!("  zpool online {pool} {name}"),
    };
    // The path that the pool has of it may be another disk's by now, which what is to be typed would overwrite.
    let newer_at = vdev.newer_at.as_deref().unwrap_or("DEVICE");
    let (meaning, action) = match vdev.state {
        State::CantOpen if vdev.aux == Aux::TooSmall => (
            format!("It has become too small for what is on it: a volume or LUN was reduced. Nothing is written to it, so that what it holds is whole when it has its size again. {left}"),
            vec![
                "Give it its size again: it is taken into use by itself. If it is not:".to_owned(),
                look,
                "If it cannot have it:".to_owned(),
                replace,
            ],
        ),
        State::CantOpen if vdev.aux == Aux::NewerState => (
            format!("It is there, and has a newer state of '{pool}' than the one it was away from: the pool was gone on with on it alone, here or on another host. What was acknowledged there may be on no other disk. (If all disks of '{pool}' were in use until the power failed, it may be no more than what was being written at that moment: nothing that was acknowledged is on it alone then.) It is not used and never overwritten by itself, however far this pool gets. {left}"),
            vec![
                "Do not replace or clear it before you know which of the two is wanted. To have what is on this disk, without what was written to the others since:".to_owned(),
                format!("  zpool export {pool}"),
                format!("  zpool import -d {newer_at} {pool}    with the others unplugged"),
                format!("If it is not needed, before '{pool}' is exported, which forgets that it was given up. Without -f first: that names '{pool}', if it is still there:"),
                format!("  zpool labelclear -f {newer_at}"),
                successor(part, &pool, newer_at),
            ],
        ),
        State::Degraded if part.place.role.is_beside() => (
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
    };
    (finding.meaning, finding.action) = (meaning, action);
    let is_side = part.place.within.is_none() && part.rest().is_some_and(|rest| rest.type_word == "mirror");
    if part.place.role == Role::Log && is_side && !matches!(vdev.aux, Aux::NewerState | Aux::External) {
        finding.action.extend([
            "Or let the intent log do without this side:".to_owned(),
            format!("  zpool detach {pool} {name}"),
        ]);
    }
    finding
}

/// Errors of a device in use.
pub(crate) fn errors(finding: Finding, part: &Part<'_>) -> Finding {
    let errors = part.vdev.errors;
    let each = [(errors.read, "read"), (errors.write, "write"), (errors.checksum, "checksum")];
    let told: Vec<String> =
        each.iter().filter(|(n, _)| *n > 0).map(|(n, word)| format!("{n} {word}")).collect();
    let total: u64 = each.iter().map(|(n, _)| n).sum();
    let word = if total == 1 { "error" } else { "errors" };
    has_errors(finding, part, &format!("{} {word}", told.join(", ")))
}

/// Those of a device that the finding tells of, though since its pool was opened fewer were counted.
pub(crate) fn errors_before(finding: Finding, part: &Part<'_>) -> Finding {
    let told = finding.title.rsplit_once(" has ").map_or("errors", |(_, told)| told).to_owned();
    has_errors(finding, part, &told)
}

fn has_errors(mut finding: Finding, part: &Part<'_>, told: &str) -> Finding {
    let (vdev, pool) = (part.vdev, finding.pool.clone());
    finding.title = format!("{} {} has {told}", part.place.role.noun(), part.called());
    if part.place.role.is_beside() {
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
pub(crate) fn slow(finding: Finding, part: &Part<'_>, latency: Option<(u64, u64)>) -> Finding {
    let others = if part.place.role == Role::Cache { "the pool's disks" } else { "its peers" };
    let told =
        latency.map_or_else(String::new, |(own, peers)| format!(": {own} ms where {others} take {peers} ms"));
    is_slow(finding, part, &told)
}

/// One of which that was told before its pool was opened anew, and which is none beside the tree.
pub(crate) fn slow_before(finding: Finding, part: &Part<'_>) -> Finding {
    let told = finding.title.rsplit_once(" is slow").map_or("", |(_, told)| told).to_owned();
    let mut finding = is_slow(finding, part, &told);
    finding.meaning = "It answered much later than the disks beside it before its pool was opened anew. Whether it still does shows \
        when it is read from; if nobody does, it is tried every ten minutes. Disks often become slow before they fail."
        .to_owned();
    finding
}

fn is_slow(mut finding: Finding, part: &Part<'_>, told: &str) -> Finding {
    let (name, pool) = (&part.vdev.name, finding.pool.clone());
    let is_cache = part.place.role == Role::Cache;
    finding.title = format!("{} {} is slow{told}", part.place.role.noun(), part.called());
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
pub(crate) fn log_device(mut finding: Finding, part: &Part<'_>) -> Finding {
    let (name, pool) = (&part.vdev.name, finding.pool.clone());
    let whole = part.place.parent.map_or(name, |parent| &parent.name);
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
pub(crate) fn spare(mut finding: Finding, part: &Part<'_>, slot: &VdevStatus) -> Finding {
    let place = Place { within: Some(slot), ..part.place };
    let original = Part { vdev: original(slot), place };
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

/// A spare at rest that is good for none of the pool's disks.
pub(crate) fn useless_spare(mut finding: Finding, part: &Part<'_>, why: &str) -> Finding {
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

/// The pool works, with less than all of it.
pub(crate) fn degraded(mut finding: Finding, facts: &Facts, catalog: &dyn Catalog) -> Finding {
    let pool = finding.pool.clone();
    let bad: Vec<String> = super::survey::parts(facts)
        .iter()
        .filter(|part| part.vdev.state != State::Healthy && !part.place.role.is_beside())
        .map(|part| {
            let about = short(&catalog.device(part));
            format!("{}{about} {}", part.called(), part.vdev.state.word(part.vdev.aux))
        })
        .collect();
    let bad = if bad.is_empty() { String::new() } else { format!(": {}", bad.join(", ")) };
    finding.title = format!("pool '{pool}' is DEGRADED");
    finding.meaning =
        format!("All data can be read and written, with less redundancy than it should have{bad}.");
    finding.action = vec!["See which devices, and what runs:".to_owned(), format!("  zpool status {pool}")];
    finding
}

/// The pool does not work.
pub(crate) fn unavailable(mut finding: Finding, facts: &Facts) -> Finding {
    let pool = finding.pool.clone();
    finding.title = format!("pool '{pool}' is {}", facts.root.state.word(facts.root.aux));
    finding.meaning =
        "More devices are missing than its redundancy can replace. What needs them cannot be read, nothing is written."
            .to_owned();
    finding.action = vec![
        "Bring the missing disks back; nothing is lost as long as they are whole:".to_owned(),
        format!("  zpool status {pool}"),
        "When they are there:".to_owned(),
        format!("  zpool clear {pool}"),
    ];
    finding
}

/// A pool that could not be opened when the daemon started.
pub(crate) fn missing(missing: &Missing) -> Finding {
    let name = &missing.name;
    let (when, first) = match missing.why.contains(IN_USE) {
        true => (
            "another process of this machine lets go of its disks",
            ["See which process has them (DEVICE is the one above):", "  fuser -v DEVICE"],
        ),
        false => {
            ("its disks are there", ["Bring missing disks back; see what is in the way:", "  zpool import"])
        }
    };
    // One that is late and asked for by name is opened without what is missing.
    let then = match missing.why.contains(host::LATE) {
        true => "If they are lost for good, this goes on without what they alone have:",
        false => "If it stays as it is then, this says why, and what helps:",
    };
    let mut action = first.map(str::to_owned).to_vec();
    action.extend([then.to_owned(), format!("  zpool import {name}")]);
    let mut meaning = format!("Nothing of it is served. It is opened when {when}.");
    if missing.is_imported {
        meaning = format!("It was imported here, and nothing of it is served. It is opened when {when}.");
        action.push("If it is not wanted here any more:".to_owned());
        action.push(format!("  zpool export {name}"));
    }
    Finding {
        pool: name.clone(),
        pool_guid: missing.guid.to_string(),
        title: format!(
            "pool '{name}' could not be opened: {}",
            missing.why.lines().next().unwrap_or_default()
        ),
        meaning,
        action,
        ..Finding::new(Kind::Pool, Severity::Critical, 3)
    }
}

/// What the next start has to know of it cannot be kept.
pub(crate) fn unwritten(mut finding: Finding, why: &str) -> Finding {
    finding.title = format!("how new pool '{}' is cannot be written down: {why}", finding.pool);
    let meaning = "A device of it went away, or came back, and the state directory does not say so. If the \
                   machine crashes now, and only a device comes back that was away, the pool is opened as of \
                   then: what was acknowledged since is missing.";
    meaning.clone_into(&mut finding.meaning);
    finding.action = lines(&[
        "Make room in the state directory, or put right what else is in the way; it is tried again by itself.",
    ]);
    finding
}

/// The pool waits.
pub(crate) fn suspended(mut finding: Finding, why: &str) -> Finding {
    let pool = finding.pool.clone();
    finding.title = format!("pool '{pool}' is SUSPENDED: {}", why.lines().next().unwrap_or_default());
    if host::is_defect(why) {
        finding.meaning = "Millpond is at fault: the task that writes to the pool is gone, and clients' writes fail; what can be \
                           read is read. What was acknowledged as durable is not lost. The daemon's log says more: please report \
                           it."
            .to_owned();
        finding.action = vec![
            "Let go of it, and import it again:".to_owned(),
            format!("  zpool export -F {pool}"),
            format!("  zpool import {pool}"),
        ];
        return finding;
    }
    let cause = match host::lacks_room(why) {
        true => "The file system that holds the pool's files has no room for them.",
        false => "Too many devices failed to write anything more.",
    };
    finding.meaning = format!(
        "{cause} Clients' writes wait (failmode=wait) or fail (failmode=continue); what can be read is read. What was \
         acknowledged as durable is not lost."
    );
    let first = match host::lacks_room(why) {
        true => "Make room in the file system that holds the pool's files, then let it go on:",
        false => "Bring the devices back (cables, power, shelf), then let it go on:",
    };
    finding.action =
        vec![first.to_owned(), format!("  zpool status {pool}"), format!("  zpool clear {pool}")];
    finding
}

/// Little space.
pub(crate) fn space(mut finding: Finding, capacity: u64, threshold: u64) -> Finding {
    let pool = finding.pool.clone();
    finding.title = format!("pool '{pool}' is {capacity}% full (alert at {threshold}%)");
    finding.meaning = match threshold {
        ..=80 => "Plan for more space now: the fuller a pool, the more its free space is in small pieces, and the slower it writes.",
        81..=90 => "Writing becomes slower. When the pool is full, clients' writes fail.",
        _ => "The pool is nearly full. Soon clients' writes fail, and virtual machines stop.",
    }
    .to_owned();
    finding.action = vec![
        "See what holds the space; snapshots often do:".to_owned(),
        format!("  zfs list -r -t all -o name,used,usedbysnapshots {pool}"),
        "Destroy what is not needed, or add devices:".to_owned(),
        format!("  zpool add {pool} …"),
    ];
    finding
}

/// Blocks that nothing gives back.
pub(crate) fn data_lost(mut finding: Finding, lost: u64, lately: Option<&str>) -> Finding {
    let pool = finding.pool.clone();
    let blocks = match lost {
        0 => "data is lost".to_owned(),
        1 => "one block is lost".to_owned(),
        // Of a longer list the rest is not read.
        many if many >= ERROR_LOG_MAX as u64 => format!("at least {many} blocks are lost"),
        many => format!("{many} blocks are lost"),
    };
    let what = lately.map(|what| format!(": {what}")).unwrap_or_default();
    finding.title = format!("pool '{pool}': {blocks}{what}");
    finding.meaning =
        "No copy and no parity gives these bytes back. Reading them is an error, never wrong bytes; \
        everything else is served."
            .to_owned();
    finding.action = vec![
        "See what is affected, and restore it from a backup:".to_owned(),
        format!("  zpool status -v {pool}"),
        "If a disk that is away may still have them, bring it back and have everything read again:"
            .to_owned(),
        format!("  zpool scrub {pool}"),
    ];
    finding
}

/// A scrub that found something.
pub(crate) fn scrub(mut finding: Finding, repaired: u64, errors: u64) -> Finding {
    let pool = finding.pool.clone();
    let repaired_text = pool::status::human(repaired);
    finding.title = match errors {
        0 => format!("scrub of '{pool}' repaired {repaired_text}"),
        many => format!(
            "scrub of '{pool}' ended with {many} errors it could not repair ({repaired_text} repaired)"
        ),
    };
    (finding.meaning, finding.action) = match errors {
        0 => (
            "Some disk had other bytes than were written; they were rebuilt from the others and written again. Nothing is lost."
                .to_owned(),
            vec!["See which disk it was, by its CKSUM column:".to_owned(), format!("  zpool status {pool}")],
        ),
        _ => (
            "No copy and no parity gives these blocks back.".to_owned(),
            vec![
                "See what is affected, and restore it from a backup:".to_owned(),
                format!("  zpool status -v {pool}"),
            ],
        ),
    };
    finding
}

/// A resilver that ended, and what is still not whole.
pub(crate) fn resilver(mut finding: Finding, copied: u64, errors: u64, facts: &Facts) -> Finding {
    let pool = finding.pool.clone();
    let errors_text = if errors == 0 { String::new() } else { format!(", with {errors} errors") };
    finding.title =
        format!("resilver of '{pool}' ended{errors_text}: {} written", pool::status::human(copied));
    let mut remains = super::survey::parts(facts);
    remains.retain(|part| {
        (part.vdev.state != State::Healthy || part.vdev.lacks) && !part.place.role.is_beside()
    });
    let named: Vec<String> = remains
        .iter()
        .map(|part| {
            let word = part.vdev.state.word(part.vdev.aux);
            let note = part.vdev.note.as_ref().map(|note| format!(", {note}")).unwrap_or_default();
            format!("{} ({word}{note})", part.called())
        })
        .collect();
    let still = format!("Still not as it should be: {}.", named.join(", "));
    finding.meaning = if remains.is_empty() {
        "All devices have all data again; redundancy is as it should be.".to_owned()
    } else if remains.iter().any(|part| part.vdev.lacks) {
        format!("{still} What awaits a resilver gets what it lacks in another one, which begins by itself.")
    } else {
        format!("What it was for is up to date. {still}")
    };
    finding.action = match (remains.as_slice(), errors) {
        ([], 0) => Vec::new(),
        _ => vec!["See what is left to do:".to_owned(), format!("  zpool status -v {pool}")],
    };
    for old in remains.iter().filter(|part| errors > 0 && is_waited_for(part)) {
        let (called, name) = (old.called(), &old.vdev.name);
        let verb = if old.vdev.state == State::Faulted { "clear" } else { "online" };
        finding.action.extend([
            format!("{called} may have what could not be read. Bring it back, then that is copied, too:"),
            format!("  zpool {verb} {pool} {name}"),
            "Or give up what it alone may have:".to_owned(),
            format!("  zpool detach {pool} {name}"),
        ]);
    }
    finding
}

/// Whether it is away, and what was put in its place lacks something.
fn is_waited_for(part: &Part<'_>) -> bool {
    let beside = part.place.within.map(|within| within.children.as_slice()).unwrap_or_default();
    !part.vdev.state.is_readable() && beside.iter().any(|vdev| vdev.lacks)
}

/// What runs out, or has.
pub(crate) fn expiry(mut finding: Finding, expiry: &Expiry, now: u64) -> Finding {
    let (noun, file, when) = (expiry.noun(), &expiry.file, view::timestamp(expiry.validity.until));
    finding.title = match expiry.has_run_out(now) {
        true => format!("the {noun} of NBD in '{file}' has run out ({when})"),
        false => format!("the {noun} of NBD in '{file}' runs out at {when}"),
    };
    let (meaning, renew) = match expiry.validity.of {
        Credential::Chain => (
            "From then on clients that come do not take this server for the one they know, and do not connect. Who is \
             connected stays.",
            "Have it renewed, and put the new one in its place;",
        ),
        Credential::Authority => (
            "From then on clients that look at it themselves, as QEMU and libnbd do, do not connect. Who is connected \
             stays.",
            "Put a new one in its place, or take it out if others in the file have taken over; give clients what they need \
             with the new one;",
        ),
        Credential::Revoked => (
            "Whoever is on it is kept out all the same; but there should be a newer one by then, and whose certificate was \
             taken back meanwhile is let in.",
            "Get the newer one from the authority, and put it in its place;",
        ),
    };
    meaning.clone_into(&mut finding.meaning);
    finding.action = vec![
        format!("{renew} then have the daemon read it, which disconnects nobody:"),
        "  systemctl reload UNIT    or without a unit: kill -HUP PID, if it has no terminal".to_owned(),
    ];
    finding
}

/// A sink that does not work.
pub(crate) fn delivery(mut finding: Finding, failures: u64, waiting: usize, error: &str) -> Finding {
    let sink = finding.sink.clone().unwrap_or_default();
    finding.title = format!("alerts cannot be delivered by '{sink}': {error}");
    finding.meaning = format!(
        "{failures} attempts in a row failed; {waiting} notices wait. They are tried again for three days, then dropped."
    );
    finding.action = vec![
        "Put the cause right, then try:".to_owned(),
        format!("  millpond alert test {sink}"),
        "If its settings are wrong, remove it and add it again:".to_owned(),
        format!("  millpond alert remove {sink}"),
    ];
    finding
}

/// What was wrong when its pool went away: nobody here knows more.
pub(crate) fn pool_left(mut finding: Finding) -> Finding {
    finding.title = format!(
        "pool '{}' is not open here any more; it was left as it was: {}",
        finding.pool, finding.title
    );
    finding.meaning =
        "It was exported or destroyed. What was wrong is not known to be over, and is not watched here."
            .to_owned();
    finding.action = Vec::new();
    finding
}

/// A sink that cannot even be tried.
pub(crate) fn unusable(mut finding: Finding, waiting: usize, why: &str) -> Finding {
    let sink = finding.sink.clone().unwrap_or_default();
    finding.title = format!("alerts cannot be delivered by '{sink}': {why}");
    finding.meaning = format!(
        "It cannot be used as it is set up; {waiting} notices wait. It is tried again every few seconds, without a restart."
    );
    finding.action = vec![
        "Put the cause right, or remove it and add it again:".to_owned(),
        format!("  millpond alert remove {sink}"),
    ];
    finding
}

/// What a test says.
pub(crate) fn test(sink: &str) -> Finding {
    Finding {
        sink: Some(sink.to_owned()),
        title: format!("test of '{sink}': alerts arrive here"),
        meaning: "Somebody ran 'millpond alert test'. Nothing is wrong.".to_owned(),
        ..Finding::new(Kind::Test, Severity::Info, 0)
    }
}
