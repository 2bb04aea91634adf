//! What `zpool import` shows about a pool that is not open: everything that can be told without
//! changing anything, in OpenZFS's words.

use std::{collections::BTreeMap, fmt::Write, sync::Arc};

use ondisk::label::PoolState;

use super::{
    Candidate, ImportError, OpenOptions, Rewind, open,
    open::{MAPPINGS_MAX, missing, tentative_tree},
};
use crate::{
    BoxFuture, Pool,
    cache::BlockCache,
    status::{Advice, IMPORTABLE, MESSAGE_URL, PoolStatus, Problem, VdevStatus},
    text::{PAD_MAX, clean},
    vdev::{Aux, Class, State},
};

/// Cache of a pool that is opened only to look at it.
const CACHE: usize = 16 << 20;
/// What stands behind the `action:` of a pool whose log is missing.
const WITHOUT_LOG: &str =
    "\n\tA log device is missing: the '-m' flag is needed, which gives up what only the\n\tlog holds.";
/// Narrowest name column.
const NAME_WIDTH_MIN: usize = 10;

/// A candidate, examined.
#[derive(Debug)]
pub struct Report {
    /// Devices and the worst problem.
    pub status: PoolStatus,
    /// What its labels say it was doing.
    pub state: PoolState,
    /// The administrator's comment.
    pub comment: Option<String>,
    /// Why it cannot be opened, if it cannot.
    pub error: Option<ImportError>,
    /// Whether it can be opened only if its log may be missing (`zpool import -m`).
    pub lacks_log: bool,
}

/// Examines a candidate: opens it for a look, whoever had it last, and closes it again.
pub fn examine<'a>(candidate: &'a Candidate, hostid: u64, hostname: &'a str) -> BoxFuture<'a, Report> {
    Box::pin(async move {
        let options = OpenOptions {
            force: true,
            unasked: false,
            destroyed: true,
            missing_log: true,
            unreadable_log: false,
            rewind: Rewind::Latest,
            apart: BTreeMap::new(),
            hostid,
            had: None,
            hostname: hostname.to_owned(),
            cache: Arc::new(BlockCache::new(CACHE)),
            mappings_max: MAPPINGS_MAX,
        };
        let (mut status, error, lacks_log) = match open(candidate, &options).await {
            Ok(pool) => (of_open(&pool), None, !missing(&pool.tree(), true).is_empty()),
            Err(error) => (of_failed(candidate, &error), Some(error), false),
        };
        // Whose it is matters more than how it is.
        if candidate.state == PoolState::Active && !candidate.is_of(hostid, hostname) {
            status.problem = Some(Problem::HostMismatch);
        }
        Report { status, state: candidate.state, comment: candidate.comment.clone(), error, lacks_log }
    })
}

fn of_open(pool: &Pool) -> PoolStatus {
    let status = PoolStatus::of(pool, None, 0);
    let harmless = matches!(status.problem, Some(Problem::FailingDevice));
    PoolStatus { problem: status.problem.clone().filter(|_| !harmless), ..status }
}

fn of_failed(candidate: &Candidate, error: &ImportError) -> PoolStatus {
    let tree = tentative_tree(candidate, &candidate.uberblocks[0]);
    let tree = tree.unwrap_or_else(|_| crate::vdev::Tree::empty(candidate.guid));
    let mut status = PoolStatus::of_tree(&candidate.name, candidate.guid, &tree, None);
    let (aux, problem) = match error {
        ImportError::Unsupported { features } => {
            let lines = features.iter().map(|f| match &f.description {
                Some(description) => clean(&format!("{} ({description})", f.guid)),
                None => clean(&f.guid),
            });
            (Aux::UnsupportedFeature, Some(Problem::UnsupportedFeatures(lines.collect())))
        }
        ImportError::Version(_) => (Aux::VersionOlder, Some(Problem::OldVersion)),
        // By their states the others make up for them, but not for what they alone have.
        ImportError::MissingDevices { .. } if status.state.is_readable() => {
            (Aux::NoReplicas, Some(Problem::MissingDeviceUnreplicated))
        }
        ImportError::MissingDevices { .. } => (Aux::NoReplicas, status.problem.clone()),
        ImportError::GuidSum { .. } => (Aux::BadGuidSum, Some(Problem::BadGuidSum)),
        _ => (Aux::CorruptData, Some(Problem::CorruptPool)),
    };
    if status.state != State::CantOpen || status.aux == Aux::None {
        (status.state, status.aux) = (State::CantOpen, aux);
    }
    if status.root.children.iter().any(|top| top.type_word == "missing") {
        status.aux = Aux::BadGuidSum;
    }
    (status.root.state, status.root.aux) = (status.state, status.aux);
    status.problem = match (status.aux, problem) {
        (Aux::BadGuidSum, _) => Some(Problem::BadGuidSum),
        (_, problem) => problem.or(Some(Problem::CorruptPool)),
    };
    status
}

impl Report {
    /// The problem and what to do, or only what to do.
    #[must_use]
    pub fn advice(&self) -> Advice {
        let mut advice = match &self.status.problem {
            Some(problem) => problem.in_import(self.status.state),
            None if self.status.state == State::Healthy => {
                Advice { status: String::new(), action: Some(IMPORTABLE.to_owned()), message_id: None }
            }
            None => Advice { status: String::new(), ..Problem::CorruptPool.in_import(self.status.state) },
        };
        if let Some(action) = advice.action.as_mut().filter(|_| self.lacks_log) {
            action.push_str(WITHOUT_LOG);
        }
        advice
    }

    /// The paragraph `zpool import` prints about the pool.
    #[must_use]
    pub fn text(&self) -> String {
        let status = &self.status;
        let advice = self.advice();
        let destroyed = if self.state == PoolState::Destroyed { " (DESTROYED)" } else { "" };
        let mut out = format!(
            "   pool: {}\n     id: {}\n  state: {}{destroyed}\n",
            status.name,
            status.guid,
            status.word()
        );
        let mut line = |text: std::fmt::Arguments<'_>| {
            let _infallible = out.write_fmt(text);
        };
        if !advice.status.is_empty() {
            line(format_args!("status: {}\n", advice.status));
        }
        if let Some(action) = &advice.action {
            line(format_args!(" action: {action}\n"));
        }
        if let Some(comment) = &self.comment {
            line(format_args!("comment: {}\n", clean(comment)));
        }
        if let Some(id) = advice.message_id {
            line(format_args!("   see: {MESSAGE_URL}{id}\n"));
        }
        line(format_args!(" config:\n\n"));
        let width = name_width(&status.root, 0).clamp(NAME_WIDTH_MIN, PAD_MAX);
        print_vdev(&mut out, &status.root, 0, width);
        for (class, title) in [(Class::Dedup, "dedup"), (Class::Special, "special"), (Class::Log, "logs")] {
            if status.tops(class).next().is_some() {
                let _infallible = writeln!(out, "\t{title:width$}");
            }
            status.tops(class).for_each(|top| print_vdev(&mut out, top, 2, width));
        }
        for (devices, title) in [(&status.l2cache, "cache"), (&status.spares, "spares")] {
            if !devices.is_empty() {
                let _infallible = writeln!(out, "\t{title}");
            }
            for device in devices {
                let _infallible = writeln!(out, "\t  {}", device.import_name());
            }
        }
        if status.aux == Aux::BadGuidSum {
            out.push_str("\n\tAdditional devices are known to be part of this pool, though\n\ttheir exact configuration cannot be determined.\n");
        }
        out
    }
}

fn shown(vdev: &VdevStatus) -> impl Iterator<Item = &VdevStatus> {
    let root = vdev.type_word == "root";
    vdev.children.iter().filter(move |child| {
        !root
            || (child.class == Class::Normal
                && !matches!(child.type_word.as_str(), "missing" | "indirect" | "hole"))
    })
}

fn name_width(vdev: &VdevStatus, depth: usize) -> usize {
    let own = depth + vdev.import_name().len();
    vdev.children.iter().map(|child| name_width(child, depth + 2)).fold(own, usize::max)
}

fn print_vdev(out: &mut String, vdev: &VdevStatus, depth: usize, width: usize) {
    let name_width = width.saturating_sub(depth);
    let _infallible = write!(out, "\t{:depth$}{:name_width$}  {}", "", vdev.import_name(), vdev.word());
    if let Some(note) = vdev.aux.note() {
        let _infallible = write!(out, "  {note}");
    }
    out.push('\n');
    shown(vdev).for_each(|child| print_vdev(out, child, depth + 2, width));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vdev::Tree;

    fn text(name: &str, comment: &str) -> String {
        let status = PoolStatus::of_tree(name, 7, &Tree::empty(7), None);
        let comment = Some(comment.to_owned());
        Report { status, state: PoolState::Exported, comment, error: None, lacks_log: false }.text()
    }

    /// A disk whose label has a name of 70 000 bytes made `zpool import` panic in the middle of its list.
    #[test]
    fn a_long_name_is_shown_like_any_other() {
        let name = "x".repeat(70_000);
        assert!(text(&name, "none").contains(&format!("\t{name}  ")));
    }

    /// The names on a strange disk went to the terminal as they were: as commands to it, and as lines of the report.
    #[test]
    fn what_a_stranger_wrote_in_a_label_is_no_line_and_no_command() {
        let shown = text("tank\u{1b}[2J", "old\n config:\n\n\ttank ONLINE");
        assert!(!shown.contains('\u{1b}'), "{shown:?}");
        assert_eq!(shown.matches("tank\u{fffd}[2J").count(), 2, "{shown:?}");
        assert_eq!(shown.lines().filter(|line| *line == " config:").count(), 1, "{shown:?}");
        let comment = "comment: old\u{fffd} config:\u{fffd}\u{fffd}\u{fffd}tank ONLINE\n";
        assert!(shown.contains(comment), "{shown:?}");
    }
}
