//! Open pools as [`api`] values. The daemon and a command without one both come through here.

use std::{cmp::Ordering, collections::BTreeSet};

use engine::{
    BoxFuture, create,
    devices::{SweepKind, SweepState, SweepStatus, recorded_sweeps},
    engine::Engine,
    events::{Event, ScanKind},
    mos::features::refusal,
    scan::Progress,
    second::{DeviceStatus, Stopped},
};
use pool::{
    Pool,
    dmu::ReadError,
    dsl::HeadKind,
    import::Report,
    props::{self, PropertySet, Style},
    status::{self, PoolStatus, Problem, VdevStatus},
    text::clean,
    vdev::{Aux, Class, State, Tree},
};

use crate::{
    api::{self, SourceKind},
    host::{chain, is_defect, lacks_room},
    logs, lost,
    memory::{Known, PATIENCE},
    ops::Held,
    scans, shares,
};

/// The note of a leaf whose resilver has not begun.
const AWAITING: &str = "(awaiting resilver)";

/// `sync=disabled`, as it is stored.
const SYNC_DISABLED: u64 = 2;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ViewError {
    /// Nothing has this name. Prints as `zfs` says it.
    #[error("cannot open '{0}': dataset does not exist")]
    NoDataset(String),
    /// A name that nothing can have.
    #[error("cannot open '{name}': {reason}")]
    BadName {
        /// The name.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The dataset is of a kind that was not asked for.
    #[error("cannot open '{0}': operation not applicable to datasets of this type")]
    WrongKind(String),
    /// A word that is no kind of dataset.
    #[error("invalid type '{0}'")]
    BadType(String),
    /// A structure cannot be read.
    #[error("cannot open '{name}': {reason}")]
    Read {
        /// Dataset or pool.
        name: String,
        /// What failed.
        reason: String,
    },
    /// Its pool does not answer.
    #[error("cannot open '{name}': {why}")]
    Silent {
        /// Dataset or pool.
        name: String,
        /// Why, and what helps.
        why: String,
    },
}

impl ViewError {
    pub(crate) fn read(name: &str, error: &ReadError) -> Self {
        Self::Read { name: name.to_owned(), reason: chain(error) }
    }
}

/// For people, in local time.
pub(crate) const HUMAN: Style = Style::Human { utc_offset: local_offset };

/// Seconds that local time is ahead of UTC at `seconds` since 1970.
fn local_offset(seconds: i64) -> i64 {
    static ZONE: std::sync::LazyLock<jiff::tz::TimeZone> =
        std::sync::LazyLock::new(jiff::tz::TimeZone::system);
    let at = jiff::Timestamp::from_second(seconds);
    at.map_or(0, |at| i64::from(ZONE.to_offset(at).seconds()))
}

/// A time for people, in local time: `Sun Nov 22  2:05 2026`.
#[must_use]
pub fn date(seconds: u64) -> String {
    props::value::date(seconds, local_offset, false)
}

/// The same to the second, as of scans: `Sun Nov 22 02:05:09 2026`.
#[must_use]
pub fn moment(seconds: u64) -> String {
    pool::time::ctime(seconds, local_offset)
}

/// A time that sorts, in local time: `2026-11-22.02:05:09`.
#[must_use]
pub fn timestamp(seconds: u64) -> String {
    let at = i64::try_from(seconds).ok().and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    let zoned = at.map(|at| at.to_zoned(jiff::tz::TimeZone::system()));
    zoned.map_or_else(|| seconds.to_string(), |zoned| zoned.strftime("%Y-%m-%d.%H:%M:%S").to_string())
}

/// A time as `zpool events` shows it, in local time: `Nov 22 2026 02:05:09.000000001`.
#[must_use]
pub fn event_time((seconds, nanos): (u64, u32)) -> String {
    let at = i64::try_from(seconds).ok().and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    let zoned = at.map(|at| at.to_zoned(jiff::tz::TimeZone::system()));
    let text =
        zoned.map_or_else(|| seconds.to_string(), |zoned| zoned.strftime("%b %e %Y %H:%M:%S").to_string());
    format!("{text}.{nanos:09}")
}

/// What a daemon says of a pool, its scan's dates in the local time of this process: a daemon may live in another zone
/// than whoever asks it.
pub fn in_local_time(pool: &mut api::Pool) {
    if pool.scan.is_some() {
        pool.scan = scans::last(pool.scan_stats.as_ref(), pool.error_scrub.as_ref(), local_offset);
    }
}

/// The same of a dataset: its properties that are dates.
pub fn dates_in_local_time(dataset: &mut api::Dataset) {
    for property in &mut dataset.properties {
        let Ok(seconds) = property.exact.parse::<u64>() else { continue };
        let to_the_second = match props::table::dataset(&property.name).map(|row| row.kind) {
            Some(props::table::Kind::Date) => false,
            Some(props::table::Kind::DateSeconds) => true,
            _ => continue,
        };
        property.value = props::value::date(seconds, local_offset, to_the_second);
    }
}

/// A value as it is shown: what users keep in theirs is theirs, byte for byte.
fn value(of: &props::Property, printed: &str) -> String {
    if of.definition.is_none() { printed.to_owned() } else { clean(printed) }
}

/// A property as it is told, secrets hidden.
pub(crate) fn property(property: &props::Property) -> api::Property {
    let (source, inherited_from) = match &property.source {
        props::Source::None => (SourceKind::None, None),
        props::Source::Default => (SourceKind::Default, None),
        props::Source::Local => (SourceKind::Local, None),
        props::Source::Inherited(from) => (SourceKind::Inherited, Some(clean(from))),
        props::Source::Received => (SourceKind::Received, None),
        props::Source::Temporary => (SourceKind::Temporary, None),
    };
    if shares::property::is_secret(&property.name) {
        let hidden = || "(hidden)".to_owned();
        return api::Property {
            name: clean(&property.name),
            value: hidden(),
            exact: hidden(),
            source,
            inherited_from,
            received: property.received.as_ref().map(|_| hidden()),
        };
    }
    api::Property {
        name: clean(&property.name),
        value: value(property, &property.print(HUMAN)),
        exact: value(property, &property.print(Style::Exact)),
        source,
        inherited_from,
        received: property.received.as_ref().map(|_| value(property, &property.print_received(HUMAN))),
    }
}

/// A pool that is open here, with what only its owner knows: whether it is written to, and still can be; how far a scan
/// is. From memory: what has to be read is as of the last time that it could be.
pub fn held(held: &Held) -> BoxFuture<'_, api::Pool> {
    Box::pin(async move {
        let view = held.view();
        let suspended = held.suspended();
        let known = held.memory().recall(&view, suspended.is_some()).await;
        let mut shown = if let Some(engine) = held.engine() {
            let live = Live::of(engine, &view, suspended);
            api::Pool { replayed: logs::replayed(engine), ..shown(&view, &known, false, Some(&live)) }
        } else {
            let told = async { (logs::unreplayed(&view).await, recorded_sweeps(&view).await) };
            let (notes, sweeps) = tokio::time::timeout(PATIENCE, told).await.unwrap_or_default();
            let read_only = held.read_only_by_need().map(str::to_owned);
            let mut shown = shown(&view, &known, true, None);
            tell_of_sweeps(&mut shown.root, &sweeps);
            api::Pool { replayed: unreplayed(notes), read_only, ..shown }
        };
        if held.is_unlisted() {
            unlist(&mut shown);
        }
        shown
    })
}

/// Shows that it is not opened by itself, which the pool does not know.
pub fn unlist(pool: &mut api::Pool) {
    for property in pool.properties.iter_mut().filter(|property| property.name == "cachefile") {
        "none".clone_into(&mut property.value);
        "none".clone_into(&mut property.exact);
        property.source = SourceKind::Local;
    }
}

/// A pool with its devices, problems and properties. What cannot be read is reported beside what can. `read_only`
/// is what its property of that name says.
pub fn pool(pool: &Pool, read_only: bool) -> BoxFuture<'_, api::Pool> {
    Box::pin(async move {
        // Nobody replays logs of a pool that is only looked at.
        let notes = logs::unreplayed(pool).await;
        let mut shown = shown(pool, &read(pool).await, read_only, None);
        tell_of_sweeps(&mut shown.root, &recorded_sweeps(pool).await);
        api::Pool { replayed: unreplayed(notes), ..shown }
    })
}

fn unreplayed(notes: Vec<String>) -> Option<api::log::Replayed> {
    (!notes.is_empty()).then(|| api::log::Replayed { notes, ..Default::default() })
}

/// What only the one who writes to a pool knows.
struct Live {
    suspended: Option<String>,
    scan: Option<Progress>,
    /// Leaves that the running scan writes to.
    repairing: BTreeSet<u64>,
    sweeps: Vec<SweepStatus>,
    rings: Vec<DeviceStatus>,
}

impl Live {
    fn of(engine: &Engine, view: &Pool, suspended: Option<String>) -> Self {
        let scan = engine.scan_beside(view);
        let mut repairing = BTreeSet::new();
        if let Some(scan) = scan.as_ref().filter(|scan| scan.ended.is_none()) {
            repairing.extend(scan.targets.iter().copied());
            if scan.kind == ScanKind::Scrub {
                let since = engine.events().since(0);
                repairing.extend(since.iter().filter(|record| record.time.0 >= scan.started).filter_map(
                    |record| match &record.event {
                        Event::Repaired { device, .. } => Some(device.guid),
                        _ => None,
                    },
                ));
            }
        }
        let rings = engine.second().devices();
        Self { suspended, scan, repairing, sweeps: engine.sweep_status(), rings }
    }
}

/// What can be told at once, with what was read before.
fn shown(pool: &Pool, known: &Known, read_only: bool, live: Option<&Live>) -> api::Pool {
    let mut found = PoolStatus::of(pool, known.space.as_ref(), known.log.as_ref().map_or(0, Vec::len) as u64);
    let suspended = live.and_then(|live| live.suspended.clone());
    if suspended.is_some() {
        let is_wait = known
            .properties
            .iter()
            .find(|property| property.name == "failmode")
            .is_none_or(|failmode| failmode.value != "continue");
        found.problem = Some(if is_wait { Problem::SuspendedWaiting } else { Problem::SuspendedFailing });
    }
    let mut shown = of_status(&found);
    if suspended.is_some() {
        shown.state = "SUSPENDED".to_owned();
        shown.root.state = shown.state.clone();
    }
    if let (Some(why), Some(problem)) = (&suspended, &mut shown.problem) {
        let action = match () {
            () if is_defect(why) => {
                Some("Let go of the pool with 'zpool export -F', then run\n\t'zpool import'.")
            }
            () if lacks_room(why) => {
                Some("Make room in the file system that holds the pool's files, then run\n\t'zpool clear'.")
            }
            () => None,
        };
        problem.action = action.map(str::to_owned).or(problem.action.take());
    }
    // What is over is in the commit that ended it, and how it ended.
    let running = live.and_then(|live| live.scan.as_ref()).filter(|scan| scan.ended.is_none());
    shown.scan_stats = match running.filter(|scan| scan.logged.is_none()) {
        Some(progress) => Some(scans::of_engine(progress)),
        None => pool.scan().and_then(scans::of_commit),
    };
    let error_scrub = running.and_then(scans::error_scrub_of_engine);
    shown.error_scrub = error_scrub.or_else(|| pool.error_scrub().and_then(scans::error_scrub_of_commit));
    shown.removal = status::removal_line(pool, local_offset);
    shown.expansion = status::expansion_line(&pool.tree(), local_offset);
    shown.scan = scans::last(shown.scan_stats.as_ref(), shown.error_scrub.as_ref(), local_offset);
    if let Some(live) = live {
        decorate(&mut shown.root, live);
        tell_of_sweeps(&mut shown.root, &live.sweeps);
        shown.cache.iter_mut().for_each(|device| tell_of_ring(device, &live.rings));
    }
    let in_use: BTreeSet<u64> = pool.tree().leaves().iter().map(|leaf| leaf.guid).collect();
    for spare in &mut shown.spares {
        if spare.guid.parse().is_ok_and(|guid| in_use.contains(&guid)) {
            spare.state = "INUSE".to_owned();
            spare.note = Some("currently in use".to_owned());
        } else if spare.state == "ONLINE" {
            spare.state = "AVAIL".to_owned();
        }
    }
    shown.txg = pool.uberblock().txg;
    shown.errors_unread = known.log.is_none();
    shown.known_txg = Some(known.txg).filter(|txg| *txg > 0);
    shown.lost.clone_from(&known.lost);
    shown.lost_bytes.clone_from(&known.lost_bytes);
    shown.lost_more = known.lost_more;
    shown.sync_disabled.clone_from(&known.sync_disabled);
    shown.problems.clone_from(&known.problems);
    shown.properties.clone_from(&known.properties);
    for property in &mut shown.properties {
        // These change without a commit.
        let now = match property.name.as_str() {
            "health" => shown.state.as_str(),
            "readonly" if read_only => "on",
            "readonly" => "off",
            _ => continue,
        };
        (property.value, property.exact) = (now.to_owned(), now.to_owned());
    }
    shown.suspended = suspended;
    shown
}

/// Says how far the free space of leaves is initialized or trimmed.
fn tell_of_sweeps(device: &mut api::Device, sweeps: &[SweepStatus]) {
    let guid = device.guid.parse::<u64>().unwrap_or(0);
    for sweep in sweeps.iter().filter(|sweep| sweep.guid == guid) {
        let state = match sweep.state {
            SweepState::Active => "ACTIVE",
            SweepState::Cancelled => "CANCELED",
            SweepState::Suspended => "SUSPENDED",
            SweepState::Complete => "COMPLETE",
        };
        let (done, total, when) = (sweep.done, sweep.total, sweep.when);
        let told = api::Sweep { state: state.to_owned(), done, total, when, error: sweep.error.clone() };
        match sweep.kind {
            SweepKind::Initialize => device.initialize = Some(told),
            SweepKind::Trim => device.trim = Some(told),
        }
    }
    device.children.iter_mut().for_each(|child| tell_of_sweeps(child, sweeps));
}

/// Says which leaves a running scan writes to.
fn decorate(device: &mut api::Device, live: &Live) {
    let guid = device.guid.parse::<u64>().unwrap_or(0);
    if live.repairing.contains(&guid) && device.present {
        device.repairing = true;
        let is_resilver = live.scan.as_ref().is_some_and(|scan| scan.kind == ScanKind::Resilver);
        let word = if is_resilver { "(resilvering)" } else { "(repairing)" };
        device.note = Some(match device.note.take().filter(|note| note != AWAITING) {
            Some(note) => format!("{note}  {word}"),
            None => word.to_owned(),
        });
    }
    device.children.iter_mut().for_each(|child| decorate(child, live));
}

/// How much a cache device holds, and what was found on it when it was opened.
fn tell_of_ring(device: &mut api::Device, rings: &[DeviceStatus]) {
    let Some(ring) = rings.iter().find(|ring| ring.vdev.to_string() == device.guid) else { return };
    device.space = Some(api::Space {
        size: ring.size,
        allocated: ring.used,
        free: ring.size.saturating_sub(ring.used),
        fragmentation: None,
        expandable: 0,
        capacity: (u128::from(ring.used) * 100).checked_div(ring.size.into()).unwrap_or(0) as u64,
    });
    let said = match &ring.recovered {
        None => "(rebuilding)".to_owned(),
        // How much it remembered is not known where nothing could be read of it.
        Some(found) if matches!(found.because, Stopped::Refused(_) | Stopped::TooSmall) => {
            format!("(recovered 0 blocks, because {})", found.because)
        }
        // It was empty.
        Some(found) if found.of_blocks == 0 => return,
        Some(found) if found.blocks == found.of_blocks => format!("(recovered {} blocks)", found.blocks),
        Some(found) => {
            format!("(recovered {} of {} blocks, because {})", found.blocks, found.of_blocks, found.because)
        }
    };
    device.note = Some(match device.note.take() {
        Some(note) => format!("{note}  {said}"),
        None => said,
    });
}

/// What of a pool has to be read.
pub(crate) async fn read(pool: &Pool) -> Known {
    let mut problems = Vec::new();
    let mut note =
        |what: &str, error: &ReadError| problems.push(format!("cannot read {what}: {}", chain(error)));
    let space = pool.space().await.map_err(|error| note("the space maps", &error)).ok();
    let log = status::error_log(pool).await.map_err(|error| note("the error log", &error)).ok();
    let properties = match pool.properties().await {
        Ok(properties) => properties.list().iter().map(property).collect(),
        Err(error) => {
            note("the properties", &error);
            Vec::new()
        }
    };
    let lost::Named { objects: lost, bytes: lost_bytes, more: lost_more } =
        lost::named(pool, log.as_deref().unwrap_or_default()).await;
    let sync_disabled = sync_disabled(pool).await.unwrap_or_else(|error| {
        note("the datasets", &error);
        Vec::new()
    });
    let (txg, space) = (pool.uberblock().txg, space.cloned());
    Known { txg, space, log, lost, lost_bytes, lost_more, properties, sync_disabled, problems, at: None }
}

/// Volumes that acknowledge what is not durable. One whose properties cannot be read is named by what else reads it.
async fn sync_disabled(pool: &Pool) -> Result<Vec<String>, ReadError> {
    let (heads, _failed) = pool.heads().await?;
    let mut found = Vec::new();
    for volume in heads.iter().filter(|head| head.head_kind() == HeadKind::Volume) {
        let properties = PropertySet::read_some(volume, Some(&["sync"])).await;
        if properties.is_ok_and(|properties| properties.number("sync") == Some(SYNC_DISABLED)) {
            found.push(clean(volume.name()));
        }
    }
    found.sort();
    Ok(found)
}

/// The name of the dataset or snapshot with this number.
pub(crate) async fn dataset_name(pool: &Pool, object: u64) -> Option<String> {
    let dataset = pool.dsl().await.ok()?.by_object(object).await.ok()??;
    Some(dataset.name().to_owned())
}

/// A pool that cannot be opened: what its labels tell.
#[must_use]
pub fn unopened(report: &Report) -> api::Pool {
    let mut pool = labelled(&report.status);
    pool.problems.extend(report.error.as_ref().map(|error| format!("cannot open '{}': {error}", pool.name)));
    pool
}

/// A pool that should be open and is not: what its labels tell, if anything of it is there, and `why`, the whole sentence.
#[must_use]
pub fn not_open(name: &str, guid: u64, report: Option<&Report>, why: &str) -> api::Pool {
    if let Some(report) = report.filter(|report| report.error.is_some()) {
        return unopened(report);
    }
    // What is there of it may well be whole; nobody can use it all the same.
    let mut status = match report {
        Some(report) => report.status.clone(),
        None => PoolStatus::of_tree(name, guid, &Tree::empty(guid), None),
    };
    (status.state, status.aux) = (State::CantOpen, Aux::None);
    (status.root.state, status.root.aux, status.root.note) = (State::CantOpen, Aux::None, None);
    let reason = why.strip_prefix(&format!("cannot open '{name}': ")).unwrap_or(why).replace('\n', "\n\t");
    let mut pool = labelled(&status);
    pool.problem = Some(api::Problem {
        status: format!("The pool cannot be opened:\n\t{reason}"),
        action: Some(format!(
            "Remove what is in the way. If the pool is imported here and not wanted\n\tany more, forget it using 'zpool \
             export {name}'."
        )),
        see: None,
        message_id: None,
        harmless: false,
    });
    pool.problems.push(why.to_owned());
    pool
}

/// With the properties that labels have.
fn labelled(status: &PoolStatus) -> api::Pool {
    let mut pool = of_status(status);
    let text = |name: &str, value: String| api::Property {
        name: name.to_owned(),
        value: value.clone(),
        exact: value,
        source: SourceKind::None,
        inherited_from: None,
        received: None,
    };
    pool.properties = vec![text("health", pool.state.clone()), text("guid", pool.guid.clone())];
    pool
}

fn of_status(found: &PoolStatus) -> api::Pool {
    let problem = found.problem.as_ref().map(|problem| {
        let advice = problem.in_status();
        api::Problem {
            status: advice.status,
            action: advice.action,
            see: advice.message_id.map(|id| format!("{}{id}", status::MESSAGE_URL)),
            message_id: advice.message_id.map(str::to_owned),
            harmless: matches!(problem, Problem::FeaturesDisabled | Problem::OldVersion),
        }
    });
    api::Pool {
        name: found.name.clone(),
        guid: found.guid.to_string(),
        state: found.word().to_owned(),
        txg: 0,
        properties: Vec::new(),
        problem,
        scan: None,
        scan_stats: None,
        error_scrub: None,
        suspended: None,
        read_only: None,
        removal: None,
        expansion: None,
        root: device(&found.root, None),
        cache: found.l2cache.iter().map(|vdev| device(vdev, Some("l2cache"))).collect(),
        spares: found.spares.iter().map(|vdev| device(vdev, Some("spare"))).collect(),
        errors: found.error_count,
        errors_unread: false,
        known_txg: None,
        lost: Vec::new(),
        lost_bytes: Vec::new(),
        lost_more: 0,
        sync_disabled: Vec::new(),
        replayed: None,
        problems: Vec::new(),
    }
}

fn device(vdev: &VdevStatus, class: Option<&str>) -> api::Device {
    let class = class.unwrap_or(match vdev.class {
        Class::Normal => "normal",
        Class::Dedup => "dedup",
        Class::Special => "special",
        Class::Log => "log",
    });
    api::Device {
        name: vdev.name.clone(),
        kind: vdev.type_word.clone(),
        guid: vdev.guid.to_string(),
        path: vdev.path.clone(),
        class: class.to_owned(),
        state: vdev.word().to_owned(),
        note: vdev.note.clone(),
        present: !vdev.not_present,
        read_errors: vdev.errors.read,
        write_errors: vdev.errors.write,
        checksum_errors: vdev.errors.checksum,
        slow_ios: vdev.slow,
        repairing: false,
        sits_out: vdev.sits_out,
        initialize: None,
        trim: None,
        space: vdev.space.map(|space| api::Space {
            size: space.size,
            allocated: space.allocated,
            free: space.free(),
            fragmentation: space.fragmentation,
            expandable: space.expandable,
            capacity: space.capacity(),
        }),
        device_bytes: vdev.device_bytes,
        io: None,
        children: vdev
            .children
            .iter()
            .map(|child| device(child, Some(class).filter(|_| vdev.type_word != "root")))
            .collect(),
    }
}

/// By name; snapshots right behind their dataset, oldest first; bookmarks by name behind those.
pub fn sort(datasets: &mut [api::Dataset]) {
    datasets.sort_by(order);
}

/// Which comes first in that order.
pub(crate) fn order(a: &api::Dataset, b: &api::Dataset) -> Ordering {
    fn key(dataset: &api::Dataset) -> (&str, bool, u64, &str) {
        let at = dataset.name.find('@');
        let head = at.map_or(dataset.name.as_str(), |at| &dataset.name[..at]);
        (head, at.is_some(), if at.is_some() { dataset.createtxg } else { 0 }, &dataset.name)
    }
    key(a).cmp(&key(b))
}

/// Whether this implementation knows the feature of this short name, as in `feature@async_destroy`.
#[must_use]
pub fn is_feature(name: &str) -> bool {
    pool::features::Feature::by_name(name).is_some()
}

/// Features that this implementation can write, oldest first: name, whether software without it may still read the pool,
/// and what it is.
pub fn features() -> impl Iterator<Item = (&'static str, bool, &'static str)> {
    let known = pool::features::FEATURES.iter().filter(|feature| refusal(feature.guid).is_none());
    known.map(|feature| (feature.name, feature.read_only_compatible, feature.description))
}

/// Names of the features that `zpool upgrade` would enable. An error says what is wrong with the pool's `compatibility`.
pub fn features_lacking(pool: &api::Pool) -> Result<Vec<&'static str>, String> {
    let compatibility = pool.property("compatibility").map_or("off", |property| &property.value);
    let wanted = create::features(compatibility).map_err(|error| format!("'{}': {error}", pool.name))?;
    let wanted = wanted.into_iter().filter_map(pool::features::Feature::by_guid).map(|feature| feature.name);
    let is_disabled = |name: &&str| {
        pool.property(&format!("feature@{name}")).is_some_and(|property| property.value == "disabled")
    };
    Ok(wanted.filter(is_disabled).collect())
}
