//! What is said of a pool: that it lacks something, does not go on, is full, has lost blocks; what came of reading all of it.

use pool::{status::ERROR_LOG_MAX, vdev::State};

use crate::{
    alerts::{
        facts::Facts,
        message::short,
        parts::{Catalog, Part},
    },
    api::alerts::{Finding, Kind, Severity},
    host,
    late::Missing,
    ops::IN_USE,
};

/// The pool works, with less than all of it.
pub(in crate::alerts) fn degraded(mut finding: Finding, facts: &Facts, catalog: &dyn Catalog) -> Finding {
    let pool = finding.pool.clone();
    let bad: Vec<String> = facts
        .parts()
        .iter()
        .filter(|part| part.vdev.state != State::Healthy && !part.role.is_beside())
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
pub(in crate::alerts) fn unavailable(mut finding: Finding, facts: &Facts) -> Finding {
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
pub(in crate::alerts) fn missing(missing: &Missing) -> Finding {
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
pub(in crate::alerts) fn unwritten(mut finding: Finding, why: &str) -> Finding {
    finding.title = format!("how new pool '{}' is cannot be written down: {why}", finding.pool);
    let meaning = "A device of it went away, or came back, and the state directory does not say so. If the \
                   machine crashes now, and only a device comes back that was away, the pool is opened as of \
                   then: what was acknowledged since is missing.";
    meaning.clone_into(&mut finding.meaning);
    finding.action = vec![
        "Make room in the state directory, or put right what else is in the way; it is tried again by itself."
            .to_owned(),
    ];
    finding
}

/// The pool waits.
pub(in crate::alerts) fn suspended(mut finding: Finding, why: &str) -> Finding {
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
pub(in crate::alerts) fn space(mut finding: Finding, capacity: u64, threshold: u64) -> Finding {
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
pub(in crate::alerts) fn data_lost(mut finding: Finding, lost: u64, lately: Option<&str>) -> Finding {
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
pub(in crate::alerts) fn scrub(mut finding: Finding, repaired: u64, errors: u64) -> Finding {
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
pub(in crate::alerts) fn resilver(mut finding: Finding, copied: u64, errors: u64, facts: &Facts) -> Finding {
    let pool = finding.pool.clone();
    let errors_text = if errors == 0 { String::new() } else { format!(", with {errors} errors") };
    finding.title =
        format!("resilver of '{pool}' ended{errors_text}: {} written", pool::status::human(copied));
    let mut remains = facts.parts();
    remains.retain(|part| (part.vdev.state != State::Healthy || part.vdev.lacks) && !part.role.is_beside());
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
    !part.vdev.state.is_readable() && part.beside().iter().any(|vdev| vdev.lacks)
}

/// What was wrong when its pool went away: nobody here knows more.
pub(in crate::alerts) fn pool_left(mut finding: Finding) -> Finding {
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

#[cfg(test)]
mod tests {
    use pool::status::VdevStatus;

    use super::*;
    use crate::alerts::facts::tests::{facts, group, leaf};

    /// It was told to bring back disks that were there: a command had them.
    #[test]
    fn a_pool_that_another_process_has_open_is_not_blamed_on_its_disks() {
        let why = "cannot open 'lake': pool is in use: /dev/sdb is in use by another process".to_owned();
        let lake = Missing { name: "lake".into(), guid: 9, is_imported: true, why };
        let told = missing(&lake).action.concat();
        assert!(told.contains("fuser -v") && !told.contains("missing disks"), "{told}");
    }

    /// To see why it was not opened was to open it without what its missing disks alone have.
    #[test]
    fn a_pool_that_waits_for_what_only_missing_disks_have_is_not_opened_without_them_to_see_why() {
        let why = format!("cannot open 'lake': some of it {}: /dev/sdb\nconnect it", host::LATE);
        let lake = Missing { name: "lake".into(), guid: 9, is_imported: true, why };
        let told = missing(&lake).action.concat();
        assert!(told.contains("lost for good") && !told.contains("this says why"), "{told}");
    }

    /// "What it was for is up to date" was told of a replacement that could not be filled, because only a disk that was away had
    /// some of it; and nowhere what ends that.
    #[test]
    fn a_resilver_that_could_not_copy_everything_says_what_helps() {
        for (state, remedy) in
            [(State::Removed, "  zpool online tank sdb"), (State::Faulted, "  zpool clear tank sdb")]
        {
            let old = VdevStatus { state, ..leaf("sdb", 2) };
            let note = Some("(awaiting resilver)".to_owned());
            let new = VdevStatus { lacks: true, note, ..leaf("sdc", 3) };
            let replacing = group("replacing-1", "replacing", vec![old, new]);
            let all = facts(vec![group("mirror-0", "mirror", vec![leaf("sda", 1), replacing])]);
            let said = resilver(all.finding(Kind::Resilver, Severity::Critical, 0), 5 << 20, 1, &all);
            assert!(said.meaning.contains("sdc (ONLINE, (awaiting resilver))"), "{}", said.meaning);
            assert!(!said.meaning.contains("is up to date"), "{}", said.meaning);
            for line in [remedy, "  zpool detach tank sdb"] {
                assert!(said.action.iter().any(|action| action == line), "{line}: {:?}", said.action);
            }
            // Without an error it only waits for its turn.
            let said = resilver(all.finding(Kind::Resilver, Severity::Info, 0), 5 << 20, 0, &all);
            assert!(!said.action.concat().contains("zpool detach"), "{:?}", said.action);
        }
    }
}
