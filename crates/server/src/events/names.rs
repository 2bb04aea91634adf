//! What the engine tells, under OpenZFS's names: one event of the engine becomes one or more of those that
//! `zpool events` shows, with the pairs that scripts around OpenZFS look for.
//!
//! What OpenZFS has no class for is under `io.millpond` in place of `fs.zfs`, so that no script mistakes it.

use engine::events::{DeviceName, Event, IoError, ScanKind, ScanStep};
use pool::{
    Bookmark,
    vdev::{Aux, State, Tree, Vdev},
};
use serde_json::{Map, Value, json};

/// How the class of the event ends that tells of a pool that was destroyed.
pub(crate) const DESTROYED: &str = "pool_destroy";

/// Class and pairs of an event.
pub type Named = (String, Map<String, Value>);

/// An event of the engine under OpenZFS's names. `tree` are the pool's devices as they are now.
#[must_use]
pub fn name(event: &Event, guid: u64, tree: Option<&Tree>) -> Vec<Named> {
    match event {
        // Told by whoever opens and closes pools: this one may come before anybody listens.
        Event::PoolOpened | Event::PoolClosing => Vec::new(),
        Event::PoolState { from, to } => vec![root_state(guid, *from, *to)],
        Event::DeviceState { device, from, to, aux, why } => {
            device_state(device, *from, *to, *aux, why, tree)
        }
        Event::IoFailed { device, error, at, count } => {
            vec![io_failed(device.as_ref(), *error, *at, *count, tree)]
        }
        Event::DataLost { at, what } => {
            let mut pairs = Map::new();
            place(&mut pairs, Some(*at));
            pairs.insert("io_millpond_what".to_owned(), json!(what));
            vec![("ereport.fs.zfs.data".to_owned(), pairs)]
        }
        Event::Repaired { device, bytes } => {
            let mut pairs = vdev(device, tree);
            pairs.insert("io_millpond_bytes".to_owned(), json!(bytes));
            vec![millpond("sysevent", "repaired", pairs)]
        }
        Event::Scan { kind, step, processed, errors } => vec![scan(*kind, *step, *processed, *errors)],
        Event::DeviceAttached { device, beside } => {
            let mut pairs = vdev(device, tree);
            if let Some(beside) = beside {
                pairs.insert("io_millpond_beside_guid".to_owned(), json!(beside.guid.to_string()));
                pairs.insert("io_millpond_beside".to_owned(), json!(beside.name));
            }
            vec![sysevent("vdev_attach", pairs), sysevent("config_sync", Map::new())]
        }
        Event::DeviceDetached { device } => {
            vec![sysevent("vdev_remove", vdev(device, tree)), sysevent("config_sync", Map::new())]
        }
        Event::SpareActivated { spare, device } => {
            let mut pairs = vdev(spare, tree);
            pairs.insert("io_millpond_for_guid".to_owned(), json!(device.guid.to_string()));
            pairs.insert("io_millpond_for".to_owned(), json!(device.name));
            vec![sysevent("vdev_spare", pairs)]
        }
        Event::SpareReturned { spare } => vec![millpond("sysevent", "spare_returned", vdev(spare, tree))],
        Event::Slow { device, latency, peers, sits_out } => {
            let mut pairs = vdev(device, tree);
            pairs.insert("io_millpond_latency_ns".to_owned(), json!(latency.as_nanos() as u64));
            pairs.insert("io_millpond_peers_ns".to_owned(), json!(peers.as_nanos() as u64));
            match sits_out {
                true => vec![("ereport.fs.zfs.delay".to_owned(), pairs)],
                false => vec![millpond("sysevent", "sit_out_end", pairs)],
            }
        }
        Event::Suspended { why } => {
            let mut pairs = Map::new();
            pairs.insert("io_millpond_why".to_owned(), json!(why));
            vec![("ereport.fs.zfs.io_failure".to_owned(), pairs)]
        }
        Event::Resumed => vec![millpond("sysevent", "pool_resume", Map::new())],
        Event::CommandDone => vec![millpond("sysevent", "command_done", Map::new())],
        Event::LogDeviceFailed { device } => vec![millpond("ereport", "log_device", vdev(device, tree))],
        Event::Cleared { device } => {
            vec![sysevent("vdev_clear", device.as_ref().map(|device| vdev(device, tree)).unwrap_or_default())]
        }
        Event::SpaceLow { percent } => {
            let mut pairs = Map::new();
            pairs.insert("io_millpond_percent".to_owned(), json!(percent));
            vec![millpond("sysevent", "space_low", pairs)]
        }
        // Told of all the same, so that nothing is lost on the way.
        other => {
            let mut pairs = Map::new();
            pairs.insert("io_millpond_what".to_owned(), json!(format!("{other:?}")));
            vec![millpond("sysevent", "other", pairs)]
        }
    }
}

/// `sysevent.fs.zfs.NAME`
#[must_use]
pub fn sysevent(name: &str, pairs: Map<String, Value>) -> Named {
    (format!("sysevent.fs.zfs.{name}"), pairs)
}

/// `KIND.io.millpond.NAME`
#[must_use]
pub fn millpond(kind: &str, name: &str, pairs: Map<String, Value>) -> Named {
    (format!("{kind}.io.millpond.{name}"), pairs)
}

/// OpenZFS's number of a state.
fn number(state: State) -> u64 {
    match state {
        State::Closed => 1,
        State::Offline => 2,
        State::Removed => 3,
        State::CantOpen => 4,
        State::Faulted => 5,
        State::Degraded => 6,
        State::Healthy => 7,
    }
}

fn find(tree: &Tree, guid: u64) -> Option<&Vdev> {
    fn below(vdev: &Vdev, guid: u64) -> Option<&Vdev> {
        if vdev.guid == guid { Some(vdev) } else { vdev.children.iter().find_map(|child| below(child, guid)) }
    }
    tree.tops.iter().find_map(|top| below(top, guid))
}

/// What is said of every device.
fn vdev(device: &DeviceName, tree: Option<&Tree>) -> Map<String, Value> {
    let mut pairs = Map::new();
    pairs.insert("vdev_guid".to_owned(), json!(device.guid.to_string()));
    let found = tree.and_then(|tree| find(tree, device.guid));
    if let Some(found) = found {
        pairs.insert("vdev_type".to_owned(), json!(found.type_word()));
    }
    if let Some(path) = &device.path {
        pairs.insert("vdev_path".to_owned(), json!(path));
    }
    pairs.insert("io_millpond_name".to_owned(), json!(device.name));
    if let Some(parent) = &device.parent {
        pairs.insert("io_millpond_parent".to_owned(), json!(parent));
    }
    if let Some(found) = found {
        let errors = found.counters.get();
        pairs.insert("vdev_read_errors".to_owned(), json!(errors.read));
        pairs.insert("vdev_write_errors".to_owned(), json!(errors.write));
        pairs.insert("vdev_cksum_errors".to_owned(), json!(errors.checksum));
    }
    pairs
}

fn states(pairs: &mut Map<String, Value>, from: State, to: State, aux: Aux) {
    pairs.insert("vdev_state".to_owned(), json!(number(to)));
    pairs.insert("vdev_state_str".to_owned(), json!(to.word(aux)));
    pairs.insert("vdev_laststate".to_owned(), json!(number(from)));
    pairs.insert("vdev_laststate_str".to_owned(), json!(from.word(Aux::None)));
}

fn root_state(guid: u64, from: State, to: State) -> Named {
    let mut pairs = Map::new();
    pairs.insert("vdev_guid".to_owned(), json!(guid.to_string()));
    pairs.insert("vdev_type".to_owned(), json!("root"));
    states(&mut pairs, from, to, Aux::None);
    ("resource.fs.zfs.statechange".to_owned(), pairs)
}

fn device_state(
    device: &DeviceName,
    from: State,
    to: State,
    aux: Aux,
    why: &str,
    tree: Option<&Tree>,
) -> Vec<Named> {
    let mut pairs = vdev(device, tree);
    states(&mut pairs, from, to, aux);
    if !why.is_empty() {
        pairs.insert("io_millpond_why".to_owned(), json!(why));
    }
    let mut named = Vec::new();
    match to {
        State::Removed => named.push(("resource.fs.zfs.removed".to_owned(), pairs.clone())),
        State::CantOpen => {
            let reason = match aux {
                Aux::CorruptData => "corrupt_data",
                Aux::NoReplicas => "no_replicas",
                Aux::BadGuidSum => "bad_guid_sum",
                Aux::TooSmall => "too_small",
                Aux::BadLabel => "bad_label",
                Aux::VersionNewer => "version_newer",
                _ => "open_failed",
            };
            named.push((format!("ereport.fs.zfs.vdev.{reason}"), pairs.clone()));
        }
        _ => {}
    }
    let is_back = to.is_readable() && !from.is_readable();
    let back = is_back.then(|| sysevent("vdev_online", vdev(device, tree)));
    named.push(("resource.fs.zfs.statechange".to_owned(), pairs));
    named.extend(back);
    named
}

/// Which block, in OpenZFS's names.
fn place(pairs: &mut Map<String, Value>, at: Option<Bookmark>) {
    if let Some(at) = at {
        pairs.insert("zio_objset".to_owned(), json!(at.objset));
        pairs.insert("zio_object".to_owned(), json!(at.object));
        pairs.insert("zio_level".to_owned(), json!(at.level));
        pairs.insert("zio_blkid".to_owned(), json!(at.blkid));
    }
}

fn io_failed(
    device: Option<&DeviceName>,
    error: IoError,
    at: Option<Bookmark>,
    count: u64,
    tree: Option<&Tree>,
) -> Named {
    let mut pairs = device.map(|device| vdev(device, tree)).unwrap_or_default();
    place(&mut pairs, at);
    pairs.insert("io_millpond_count".to_owned(), json!(count));
    let class = match (device, error) {
        (None, _) => "ereport.fs.zfs.data",
        (Some(_), IoError::Checksum) => "ereport.fs.zfs.checksum",
        (Some(_), error) => {
            // EIO; and OpenZFS's words for what was tried.
            pairs.insert("zio_err".to_owned(), json!(5));
            let word = if error == IoError::Read { "read" } else { "write" };
            pairs.insert("io_millpond_operation".to_owned(), json!(word));
            "ereport.fs.zfs.io"
        }
    };
    (class.to_owned(), pairs)
}

fn scan(kind: ScanKind, step: ScanStep, processed: u64, errors: u64) -> Named {
    let mut pairs = Map::new();
    pairs.insert("io_millpond_processed".to_owned(), json!(processed));
    pairs.insert("io_millpond_errors".to_owned(), json!(errors));
    match (kind, step) {
        (ScanKind::Scrub, ScanStep::Started) => sysevent("scrub_start", pairs),
        (ScanKind::Scrub, ScanStep::Paused) => sysevent("scrub_paused", pairs),
        (ScanKind::Scrub, ScanStep::Resumed | ScanStep::Continued) => sysevent("scrub_resume", pairs),
        (ScanKind::Scrub, ScanStep::Cancelled) => sysevent("scrub_abort", pairs),
        (ScanKind::Scrub, ScanStep::Finished) => sysevent("scrub_finish", pairs),
        (ScanKind::Resilver, ScanStep::Started) => sysevent("resilver_start", pairs),
        (ScanKind::Resilver, ScanStep::Finished) => sysevent("resilver_finish", pairs),
        (ScanKind::Resilver, ScanStep::Cancelled) => millpond("sysevent", "resilver_abort", pairs),
        (ScanKind::Resilver, ScanStep::Paused) => millpond("sysevent", "resilver_paused", pairs),
        (ScanKind::Resilver, ScanStep::Resumed | ScanStep::Continued) => {
            millpond("sysevent", "resilver_resume", pairs)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> DeviceName {
        DeviceName {
            guid: u64::MAX,
            path: Some("/dev/sdc1".into()),
            name: "sdc".into(),
            parent: Some("raidz2-0".into()),
        }
    }

    fn classes(event: &Event) -> Vec<String> {
        name(event, 7, None).into_iter().map(|(class, _)| class).collect()
    }

    #[test]
    fn a_disk_that_goes_and_comes_is_told_in_openzfs_words() {
        let state =
            |from, to, aux| Event::DeviceState { device: device(), from, to, aux, why: String::new() };
        let gone = state(State::Healthy, State::Removed, Aux::None);
        assert_eq!(classes(&gone), ["resource.fs.zfs.removed", "resource.fs.zfs.statechange"]);
        let (_, pairs) = &name(&gone, 7, None)[1];
        assert_eq!(
            Value::Object(pairs.clone()),
            json!({
                "vdev_guid": "18446744073709551615", "vdev_path": "/dev/sdc1", "io_millpond_name": "sdc",
                "io_millpond_parent": "raidz2-0", "vdev_state": 3, "vdev_state_str": "REMOVED",
                "vdev_laststate": 7, "vdev_laststate_str": "ONLINE",
            })
        );
        let back = state(State::Removed, State::Healthy, Aux::None);
        assert_eq!(classes(&back), ["resource.fs.zfs.statechange", "sysevent.fs.zfs.vdev_online"]);
        let unusable = state(State::Healthy, State::CantOpen, Aux::BadLabel);
        assert_eq!(classes(&unusable), ["ereport.fs.zfs.vdev.bad_label", "resource.fs.zfs.statechange"]);
        let fault = state(State::Healthy, State::Faulted, Aux::ErrorsExceeded);
        assert_eq!(classes(&fault), ["resource.fs.zfs.statechange"]);
        assert_eq!(name(&fault, 7, None)[0].1["vdev_state"], 5);
    }

    #[test]
    fn errors_have_the_class_of_what_went_wrong_and_name_the_block() {
        let at = Bookmark { objset: 54, object: 1, level: 0, blkid: 9 };
        let failed = |device, error| Event::IoFailed { device, error, at: Some(at), count: 3 };
        let (class, pairs) = name(&failed(Some(device()), IoError::Write), 7, None).remove(0);
        assert_eq!(class, "ereport.fs.zfs.io");
        assert_eq!(
            (&pairs["zio_objset"], &pairs["zio_blkid"], &pairs["zio_err"]),
            (&json!(54), &json!(9), &json!(5))
        );
        assert_eq!(pairs["io_millpond_operation"], "write");
        assert_eq!(classes(&failed(Some(device()), IoError::Checksum)), ["ereport.fs.zfs.checksum"]);
        assert_eq!(classes(&failed(None, IoError::Checksum)), ["ereport.fs.zfs.data"]);
    }

    #[test]
    fn every_step_of_a_scan_has_its_name() {
        let scan = |kind, step| classes(&Event::Scan { kind, step, processed: 1, errors: 0 }).remove(0);
        for (step, word) in [
            (ScanStep::Started, "start"),
            (ScanStep::Paused, "paused"),
            (ScanStep::Resumed, "resume"),
            (ScanStep::Cancelled, "abort"),
            (ScanStep::Finished, "finish"),
        ] {
            assert_eq!(scan(ScanKind::Scrub, step), format!("sysevent.fs.zfs.scrub_{word}"));
        }
        assert_eq!(scan(ScanKind::Resilver, ScanStep::Started), "sysevent.fs.zfs.resilver_start");
        assert_eq!(scan(ScanKind::Resilver, ScanStep::Finished), "sysevent.fs.zfs.resilver_finish");
        assert_eq!(scan(ScanKind::Resilver, ScanStep::Cancelled), "sysevent.io.millpond.resilver_abort");
    }
}
