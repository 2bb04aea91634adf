//! The `remove:` and `expand:` lines of `zpool status`: what moved data between devices, and how far it is.
//!
//! Facts: docs/format/spacemap.md §9b, docs/format/vdevs.md §5.

use std::time::{SystemTime, UNIX_EPOCH};

use super::human;
use crate::{
    Pool,
    time::{UtcOffset, ctime, duration},
    vdev::{Kind, Tree},
};

/// States of a removal or an expansion.
const RUNNING: u64 = 1;
const FINISHED: u64 = 2;
const CANCELLED: u64 = 3;
/// Memory OpenZFS says it keeps per run of a removed device.
const RUN_BYTES: u64 = 24;

/// What follows `remove: `, with times in local time.
#[must_use]
pub fn removal_line(pool: &Pool, offset: UtcOffset) -> Option<String> {
    let removal = pool.removal()?;
    let vdev = removal.vdev;
    let name = || pool.tree().top(vdev).map_or_else(|| format!("vdev {vdev}"), ToString::to_string);
    let minutes = removal.end.saturating_sub(removal.start) / 60;
    let mut line = match removal.state {
        RUNNING => format!(
            "Evacuation of {} in progress since {}\n\t{}",
            name(),
            ctime(removal.start, offset),
            copied(removal.copied, "copied out of", removal.to_copy, removal.start)
        ),
        FINISHED => format!(
            "Removal of vdev {vdev} copied {} in {}h{}m, completed on {}",
            human(removal.copied),
            minutes / 60,
            minutes % 60,
            ctime(removal.end, offset)
        ),
        CANCELLED => format!("Removal of {} canceled on {}", name(), ctime(removal.end, offset)),
        _ => return None,
    };
    let tree = pool.tree();
    let mappings = tree.tops.iter().filter_map(|top| top.top.as_ref()?.mapping.get());
    let bytes = mappings.map(|mapping| mapping.len() as u64 * RUN_BYTES).sum();
    if bytes > 0 {
        // A count in the eyes of OpenZFS: without the B.
        let bytes = human(bytes);
        line.push_str(&format!(
            "\n\t{} memory used for removed device mappings",
            bytes.trim_end_matches('B')
        ));
    }
    Some(line)
}

/// What follows `expand: `: of the running expansion, or of the one that ended last. Times are local.
#[must_use]
pub fn expansion_line(tree: &Tree, offset: UtcOffset) -> Option<String> {
    let known = tree.tops.iter().filter_map(|top| Some((top, top.top.as_ref()?.expansion.get()?)));
    let (top, expansion) = known
        .filter(|(_, expansion)| matches!(expansion.state, RUNNING | FINISHED))
        .max_by_key(|(_, expansion)| (expansion.state == RUNNING, expansion.end))?;
    if expansion.state == FINISHED {
        return Some(format!(
            "expanded {top} copied {} in {}, on {}",
            human(expansion.copied),
            duration(expansion.end.saturating_sub(expansion.start)),
            ctime(expansion.end, offset)
        ));
    }
    let asize = top.top.as_ref().map_or(0, |top| top.asize);
    let moved = match &top.kind {
        Kind::Raidz(geometry) => geometry.reflow.map_or(0, |reflow| reflow.offset),
        _ => 0,
    };
    Some(format!(
        "expansion of {top} in progress since {}\n\t{}",
        ctime(expansion.start, offset),
        copied(expansion.copied.max(moved), "/", asize, expansion.start)
    ))
}

/// `1.20G copied out of 3.00G at 300M/s, 40.00% done, 0h1m to go`
fn copied(done: u64, of: &str, total: u64, since: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(since, |now| now.as_secs());
    let rate = (done / now.saturating_sub(since).max(1)).max(1);
    let percent = if total == 0 { 0.0 } else { 100.0 * done as f64 / total as f64 };
    let minutes = total.saturating_sub(done) / rate / 60;
    let copied = if of == "/" { " copied" } else { "" };
    let left = match minutes / 60 {
        // More than a month at this rate: the pool was not open all the time.
        720.. => ", (copy is slow, no estimated time)".to_owned(),
        hours => format!(", {hours}h{}m to go", minutes % 60),
    };
    format!("{} {of} {}{copied} at {}/s, {percent:.2}% done{left}", human(done), human(total), human(rate))
}

#[cfg(test)]
mod tests {
    #[test]
    fn progress_reads_as_openzfs_prints_it() {
        let text = super::copied(1 << 30, "copied out of", 4 << 30, 0);
        assert!(text.starts_with("1G copied out of 4G at 1B/s, 25.00% done, (copy is slow"), "{text}");
        let text = super::copied(3 << 20, "/", 4 << 20, u64::MAX);
        assert_eq!(text, "3M / 4M copied at 3M/s, 75.00% done, 0h0m to go");
    }
}
