//! `zpool iostat -j`: the same as one object a report, nested as `zpool status -j` nests devices.
//!
//! Numbers are counts of the time that was looked at, which `seconds` says, and not rates; bytes and nanoseconds are exact.

use serde_json::{Map, Value, json};
use server::{
    api::{Device, iostat::PoolIo},
    pool::vdev::Tallied,
};

use super::{
    is_shown,
    rows::{SHOWN, depths, latencies, list, waits},
    work,
};
use crate::{args::ZpoolIostat, json};

/// What the columns of times are called.
const WAITS: [&str; 11] = [
    "total_wait_read",
    "total_wait_write",
    "disk_wait_read",
    "disk_wait_write",
    "syncq_wait_read",
    "syncq_wait_write",
    "asyncq_wait_read",
    "asyncq_wait_write",
    "scrub_wait",
    "trim_wait",
    "rebuild_wait",
];
/// Queues, and the histograms of sizes.
const QUEUES: [&str; SHOWN] = [
    "syncq_read",
    "syncq_write",
    "asyncq_read",
    "asyncq_write",
    "scrubq_read",
    "trimq_write",
    "rebuildq_write",
];
const SIZES: [&str; SHOWN] =
    ["sync_read", "sync_write", "async_read", "async_write", "scrub", "trim", "rebuild"];

pub(super) fn line(pools: &[&PoolIo], devices: &[&Device], args: &ZpoolIostat) -> String {
    let mut entries = Map::new();
    if !devices.is_empty() {
        for device in devices {
            entries.insert(args.names.of(device), Value::Object(one(device, args)));
        }
        return json::envelope("zpool iostat", "vdevs", entries);
    }
    for pool in pools {
        let mut object = one(&pool.root, args);
        object.insert("pool_guid".to_owned(), json!(pool.guid));
        if args.verbose {
            let tops = pool.root.children.iter().filter(|top| is_shown(top));
            object.insert("vdevs".to_owned(), nested(tops, args));
            if !pool.cache.is_empty() {
                object.insert("l2cache".to_owned(), nested(pool.cache.iter(), args));
            }
        }
        let key = json::key(&pool.name, &pool.guid, pools.iter().map(|other| &other.name));
        entries.insert(key, Value::Object(object));
    }
    json::envelope("zpool iostat", "pools", entries)
}

fn nested<'a>(devices: impl Iterator<Item = &'a Device>, args: &ZpoolIostat) -> Value {
    let mut entries = Map::new();
    for device in devices {
        let mut object = one(device, args);
        if !device.children.is_empty() {
            object.insert("vdevs".to_owned(), nested(device.children.iter(), args));
        }
        entries.insert(args.names.of(device), Value::Object(object));
    }
    Value::Object(entries)
}

fn one(device: &Device, args: &ZpoolIostat) -> Map<String, Value> {
    let work: Tallied = work(device);
    let mut object = Map::new();
    let mut put = |name: &str, value: Value| object.insert(name.to_owned(), value);
    put("name", json!(args.names.of(device)));
    put("vdev_type", json!(device.kind));
    put("guid", json!(device.guid));
    put("class", json!(device.class));
    if let Some(space) = device.space.filter(|space| space.size > 0) {
        put("alloc_space", json!(space.allocated));
        put("free_space", json!(space.free));
        put("total_space", json!(space.size));
    }
    put("seconds", json!((work.age_ns as f64 / 1e3).round() / 1e6));
    for (name, value) in [
        ("read_ops", work.operations[0]),
        ("write_ops", work.operations[1]),
        ("read_bytes", work.bytes[0]),
        ("write_bytes", work.bytes[1]),
    ] {
        put(name, json!(value));
    }
    if args.latency {
        let times: Map<String, Value> = WAITS
            .iter()
            .zip(latencies(&work))
            .map(|(name, nanos)| ((*name).to_owned(), json!(nanos)))
            .collect();
        put("latency_ns", Value::Object(times));
    }
    if args.queues {
        let depths = depths(&work);
        let queues = QUEUES.iter().zip(depths.chunks(2)).map(|(name, depth)| {
            ((*name).to_owned(), json!({ "pend": depth.first(), "activ": depth.get(1) }))
        });
        put("queues", Value::Object(queues.collect()));
    }
    if args.latency_histogram {
        let lists = WAITS.iter().zip(waits(&work)).map(|(name, list)| ((*name).to_owned(), json!(list)));
        put("latency_histograms", Value::Object(lists.collect()));
    }
    if args.size_histogram {
        let lists = SIZES.iter().enumerate().map(|(kind, name)| {
            let both = json!({ "ind": list(&work.alone, kind), "agg": list(&work.joined, kind) });
            ((*name).to_owned(), both)
        });
        put("size_histograms", Value::Object(lists.collect()));
    }
    object
}
