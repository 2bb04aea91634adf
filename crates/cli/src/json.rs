//! JSON in the envelope of OpenZFS's `-j`: one object, `output_version` first, everything keyed by name.

use serde_json::{Map, Value, json};
use server::{
    api::{self, Dataset, Device, ErrorScrubStats, Pool, Property, ScanStats, SourceKind},
    pool::status::human,
    view,
};

use crate::args::JsonNumbers;

/// The whole output of one command: one line.
pub(crate) fn envelope(command: &str, key: &str, entries: Map<String, Value>) -> String {
    sections(command, vec![(key, Value::Object(entries))])
}

/// The same of a list that may lack something: then `problems` says what, a sentence each.
pub(crate) fn partial(command: &str, key: &str, entries: Map<String, Value>, problems: &[String]) -> String {
    let problems = (!problems.is_empty()).then(|| ("problems", json!(problems)));
    sections(command, [(key, Value::Object(entries))].into_iter().chain(problems).collect())
}

/// The same of several things.
pub(crate) fn sections(command: &str, sections: Vec<(&str, Value)>) -> String {
    let mut object = Map::new();
    let version = json!({ "command": command, "vers_major": 0, "vers_minor": 1 });
    object.insert("output_version".to_owned(), version);
    object.extend(sections.into_iter().map(|(key, value)| (key.to_owned(), value)));
    format!("{}\n", Value::Object(object))
}

/// Names that may look like numbers.
const NAMES: [&str; 4] = ["name", "dataset", "snapshot_name", "bookmark"];

/// Numbers as numbers if that is wanted (`--json-int`); otherwise they are texts.
pub(crate) fn numbers(entries: Map<String, Value>, wanted: JsonNumbers) -> Map<String, Value> {
    match wanted.integers {
        true => entries.into_iter().map(integers).collect(),
        false => entries,
    }
}

fn integers((name, value): (String, Value)) -> (String, Value) {
    let value = match value {
        Value::String(text) => match text.parse::<u64>() {
            Ok(number) if number.to_string() == text && !NAMES.contains(&name.as_str()) => json!(number),
            _ => Value::String(text),
        },
        Value::Array(all) => all.into_iter().map(|value| integers((String::new(), value)).1).collect(),
        Value::Object(all) => Value::Object(all.into_iter().map(integers).collect()),
        other => other,
    };
    (name, value)
}

/// `"size": {"value": "112M", "source": {"type": "NONE", "data": "-"}}`
pub(crate) fn property(property: &Property, exact: bool) -> Value {
    let data = match (property.source, &property.inherited_from) {
        (SourceKind::Inherited, Some(from)) => from.as_str(),
        _ => "-",
    };
    let mut object = json!({
        "value": property.shown(exact),
        "source": { "type": property.source.word().to_uppercase(), "data": data },
    });
    if let (Some(received), Value::Object(object)) = (&property.received, &mut object) {
        object.insert("received".to_owned(), json!(received));
    }
    object
}

/// A property that the thing does not have.
pub(crate) fn absent() -> Value {
    json!({ "value": "-", "source": { "type": "NONE", "data": "-" } })
}

/// Under what a pool stands: its name, or its guid if several of the pools with these names are called so.
pub(crate) fn key<'a>(name: &str, guid: &str, names: impl Iterator<Item = &'a String>) -> String {
    let is_shared = names.filter(|other| *other == name).count() > 1;
    if is_shared { guid.to_owned() } else { name.to_owned() }
}

/// What every command says of a pool.
pub(crate) fn pool(pool: &Pool, with_type: bool) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("name".to_owned(), json!(pool.name));
    if with_type {
        object.insert("type".to_owned(), json!("POOL"));
    }
    object.insert("state".to_owned(), json!(pool.state));
    object.insert("pool_guid".to_owned(), json!(pool.guid));
    object.insert("txg".to_owned(), json!(pool.txg.to_string()));
    object.insert("spa_version".to_owned(), json!("5000"));
    object.insert("zpl_version".to_owned(), json!("5"));
    object
}

/// What every command says of a dataset.
pub(crate) fn dataset(dataset: &Dataset) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("name".to_owned(), json!(dataset.name));
    object.insert("type".to_owned(), json!(dataset.kind.word().to_uppercase()));
    object.insert("pool".to_owned(), json!(dataset.pool()));
    object.insert("createtxg".to_owned(), json!(dataset.createtxg.to_string()));
    if let Some((of, snapshot)) = dataset.name.split_once('@') {
        object.insert("dataset".to_owned(), json!(of));
        object.insert("snapshot_name".to_owned(), json!(snapshot));
    } else if let Some((of, bookmark)) = dataset.name.split_once('#') {
        object.insert("dataset".to_owned(), json!(of));
        object.insert("bookmark".to_owned(), json!(bookmark));
    }
    object
}

/// What of a device is told only to who asked (`zpool status -s -i -t`), and whether times are numbers (`-p`).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    pub(crate) slow: bool,
    pub(crate) initialize: bool,
    pub(crate) trim: bool,
    pub(crate) exact: bool,
}

/// OpenZFS's names of a sweep's state, of bytes done and in all, of when it came into its state, and of errors.
const INITIALIZE: [&str; 5] = ["init_state", "initialized", "to_initialize", "init_time", "init_errors"];
const TRIM: [&str; 5] = ["trim_state", "trimmed", "to_trim", "trim_time", "trim_errors"];

/// Whether it is of the devices whose free space can be initialized and trimmed.
pub(crate) fn is_swept(device: &Device) -> bool {
    device.path.is_some() && !matches!(device.class.as_str(), "spare" | "l2cache")
}

/// What every list says of a device first: what it is, and how.
pub(crate) fn head(device: &Device, name: &str) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("name".to_owned(), json!(name));
    object.insert("vdev_type".to_owned(), json!(device.kind));
    object.insert("guid".to_owned(), json!(device.guid));
    if let Some(path) = &device.path {
        object.insert("path".to_owned(), json!(path));
    }
    object.insert("class".to_owned(), json!(device.class));
    object.insert("state".to_owned(), json!(device.state));
    object
}

/// A device and all below, as `zpool status -j` nests them.
pub(crate) fn device(
    device: &Device,
    name: &dyn Fn(&Device) -> String,
    number: &dyn Fn(u64) -> String,
    counter: &dyn Fn(u64) -> String,
    asked: Asked,
) -> Value {
    let mut object = head(device, &name(device));
    if let Some(space) = &device.space {
        object.insert("alloc_space".to_owned(), json!(number(space.allocated)));
        object.insert("total_space".to_owned(), json!(number(space.size)));
    }
    if let Some(bytes) = device.device_bytes {
        object.insert("phys_space".to_owned(), json!(number(bytes)));
    }
    if !device.present {
        object.insert("not_present".to_owned(), json!("1"));
    }
    if let Some(note) = &device.note {
        object.insert("note".to_owned(), json!(note));
    }
    object.insert("read_errors".to_owned(), json!(counter(device.read_errors)));
    object.insert("write_errors".to_owned(), json!(counter(device.write_errors)));
    object.insert("checksum_errors".to_owned(), json!(counter(device.checksum_errors)));
    if let Some(slow) = device.slow_ios.filter(|slow| asked.slow || *slow > 0) {
        object.insert("slow_ios".to_owned(), json!(counter(slow)));
    }
    for (sweep, is_asked, names, never) in [
        (&device.initialize, asked.initialize, INITIALIZE, "UNINITIALIZED"),
        (&device.trim, asked.trim, TRIM, "UNTRIMMED"),
    ] {
        let [state, done, total, when, errors] = names.map(str::to_owned);
        match sweep {
            Some(sweep) => {
                object.insert(state, json!(sweep.state));
                object.insert(done, json!(number(sweep.done)));
                object.insert(total, json!(number(sweep.total)));
                object.insert(when, json!(time(sweep.when, asked.exact)));
                // That there were any is known, not how many.
                object.insert(errors, json!(counter(sweep.error.is_some().into())));
            }
            None if is_asked && is_swept(device) => {
                object.insert(state, json!(never));
            }
            None => {}
        }
    }
    if device.sits_out {
        object.insert("sit_out".to_owned(), json!("on"));
    }
    if !device.children.is_empty() {
        let children = device.children.iter().filter(|child| !matches!(child.kind.as_str(), "hole"));
        object.insert(
            "vdevs".to_owned(),
            devices(children, &|child| self::device(child, name, number, counter, asked), name),
        );
    }
    Value::Object(object)
}

/// A time of a scan; with `-p` in seconds since 1970.
fn time(seconds: u64, exact: bool) -> String {
    match (seconds, exact) {
        (0, _) => "-".to_owned(),
        (seconds, true) => seconds.to_string(),
        (seconds, false) => view::date(seconds),
    }
}

/// How far a scrub of the error log is: numbers are blocks.
pub(crate) fn error_scrub(scrub: &ErrorScrubStats, exact: bool) -> Value {
    json!({
        "function": "ERRORSCRUB",
        "state": scrub.state,
        "start_time": time(scrub.start_time, exact),
        "end_time": time(scrub.end_time, exact),
        "scrub_pause": time(scrub.paused, exact),
        "to_examine": scrub.to_examine.to_string(),
        "examined": scrub.examined.to_string(),
        "errors": scrub.errors.to_string(),
    })
}

/// How far a scan is, under OpenZFS's names; with `-p` in bytes and seconds since 1970.
pub(crate) fn scan(scan: &ScanStats, exact: bool) -> Value {
    let number = |number: u64| if exact { number.to_string() } else { human(number) };
    let time = |seconds: u64| time(seconds, exact);
    let mut object = json!({
        "function": scan.function,
        "state": scan.state,
        "start_time": time(scan.start_time),
        "end_time": time(scan.end_time),
        "to_examine": number(scan.to_examine),
        "examined": number(scan.examined),
        "skipped": number(scan.skipped),
        "processed": number(scan.processed),
        "errors": scan.errors.to_string(),
        "bytes_per_scan": number(scan.examined),
        "pass_start": scan.start_time.to_string(),
        "scrub_pause": time(scan.paused),
        "scrub_spent_paused": "0",
        "issued_bytes_per_scan": number(scan.issued),
        "issued": number(scan.issued),
    });
    if let (Value::Object(object), true) = (&mut object, scan.is_under_way()) {
        object.insert("issued_rate".to_owned(), json!(number(scan.issued_rate)));
        if let Some((least, most)) = scan.remaining {
            object.insert("seconds_to_go".to_owned(), json!([least, most]));
        }
    }
    object
}

/// Devices by name.
pub(crate) fn devices<'a>(
    devices: impl Iterator<Item = &'a Device>,
    one: &dyn Fn(&Device) -> Value,
    name: &dyn Fn(&Device) -> String,
) -> Value {
    Value::Object(devices.map(|device| (name(device), one(device))).collect())
}

/// A problem's fields.
pub(crate) fn problem(problem: &api::Problem, object: &mut Map<String, Value>) {
    object.insert("status".to_owned(), json!(one_line(&problem.status)));
    if let Some(action) = &problem.action {
        object.insert("action".to_owned(), json!(one_line(action)));
    }
    if let Some(id) = &problem.message_id {
        object.insert("msgid".to_owned(), json!(id));
    }
    if let Some(see) = &problem.see {
        object.insert("moreinfo".to_owned(), json!(see));
    }
}

/// Text that was broken for a terminal.
pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
