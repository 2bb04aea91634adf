//! `millpond dump`: a pool's structures as they are on disk, one section after the other.
//!
//! Every section is made of documents (JSON values), which are printed as indented text or, with `-j`, one a
//! line. They are made one at a time, so that memory does not grow with the pool. What cannot be read is said in
//! its place and ends nothing but itself; the exit code is 1 then.

mod datasets;
mod device;
mod space;

use std::{io::Write as _, process::ExitCode, sync::Arc};

use serde_json::{Map, Value, json};
use server::pool::{
    Pool,
    ondisk::{
        history::{self, HistoryPhys},
        nvlist::{NvList, Value as NvValue},
        uberblock::Uberblock,
        zil::{Body, Header, WriteData},
    },
    text::clean,
    time::utc,
    zil,
};

use crate::{
    args::Dump,
    context::{Context, FAILED, foreign},
};

/// Largest history read, in bytes: OpenZFS keeps at most 1 GiB, and a few MiB in practice.
const HISTORY_MAX: u64 = 64 << 20;

pub(crate) async fn run(args: Dump, context: &Context) -> anyhow::Result<ExitCode> {
    let mut out = Out::new(args.json);
    if args.labels {
        device::labels(&mut out, &args.target, args.uberblock).await?;
        return Ok(out.code());
    }
    let pool =
        context.open_pool_of(&args.search.search, &args.target, foreign(args.force), &args.rewind).await?;
    let nothing_asked = !args.config
        && args.uberblock == 0
        && args.datasets == 0
        && args.metaslabs == 0
        && !args.intent_logs
        && !args.history;
    let names_pool = !args.target.contains(['/', '@']);
    if args.config || (nothing_asked && names_pool) {
        out.section("config", &json!({ "config": list(pool.config()) }))?;
    }
    if args.uberblock > 0 || (nothing_asked && names_pool) {
        out.section("uberblock", &json!({ "uberblock": uberblock(pool.uberblock()) }))?;
        if args.uberblock > 1 {
            for path in pool.tree().leaves().iter().filter_map(|leaf| leaf.leaf.as_ref()?.disk()) {
                device::uberblocks(&mut out, &path).await?;
            }
        }
    }
    if args.datasets > 0 || nothing_asked {
        let detail = match (args.datasets, args.objects.is_empty()) {
            (asked, true) => asked.max(1),
            (asked, false) => asked.max(2),
        };
        datasets::show(&mut out, &pool, &args.target, detail, &args.objects).await?;
    }
    if args.metaslabs > 0 {
        space::show(&mut out, &pool, args.metaslabs).await?;
    }
    if args.intent_logs {
        intent_logs(&mut out, &pool, &args.target).await?;
    }
    if args.history {
        show_history(&mut out, &pool).await?;
    }
    Ok(out.code())
}

/// Where documents go.
pub(crate) struct Out {
    json: bool,
    failed: bool,
}

impl Out {
    fn new(json: bool) -> Self {
        Self { json, failed: false }
    }

    /// One document.
    fn section(&mut self, kind: &str, document: &Value) -> std::io::Result<()> {
        let mut text = String::new();
        if self.json {
            let mut object = Map::from_iter([("section".to_owned(), json!(kind))]);
            if let Value::Object(members) = document {
                object.extend(members.clone());
            }
            text = format!("{}\n", Value::Object(object));
        } else {
            lines(&mut text, document, 0);
        }
        std::io::stdout().lock().write_all(text.as_bytes())
    }

    /// Something that could not be read.
    fn failure(&mut self, what: &str, error: &dyn std::fmt::Display) -> std::io::Result<()> {
        self.failed = true;
        self.section("error", &json!({ format!("ERROR {what}"): error.to_string() }))
    }

    fn code(&self) -> ExitCode {
        if self.failed { ExitCode::from(FAILED) } else { ExitCode::SUCCESS }
    }
}

/// A value as indented lines.
fn lines(text: &mut String, value: &Value, indent: usize) {
    let Value::Object(members) = value else { return };
    for (name, value) in members {
        let name = clean(name);
        match value {
            Value::Object(_) => {
                text.push_str(&format!("{:indent$}{name}:\n", ""));
                lines(text, value, indent + 4);
            }
            Value::Array(items) if items.iter().any(Value::is_object) => {
                for (i, item) in items.iter().enumerate() {
                    text.push_str(&format!("{:indent$}{name}[{i}]:\n", ""));
                    lines(text, item, indent + 4);
                }
            }
            Value::Array(items) => {
                let items: Vec<String> = items.iter().map(scalar).collect();
                text.push_str(&format!("{:indent$}{name}: [{}]\n", "", items.join(", ")));
            }
            // A member without a name is a line by itself.
            _ if name.is_empty() => text.push_str(&format!("{:indent$}{}\n", "", scalar(value))),
            _ => text.push_str(&format!("{:indent$}{name}: {}\n", "", scalar(value))),
        }
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => clean(text),
        other => other.to_string(),
    }
}

/// A list of pairs as a document.
fn list(list: &NvList) -> Value {
    Value::Object(list.iter().map(|(name, value)| (name.to_owned(), pair(value))).collect())
}

fn pair(value: &NvValue) -> Value {
    match value {
        NvValue::Boolean => json!(true),
        NvValue::BooleanValue(value) => json!(value),
        NvValue::Byte(value) | NvValue::Uint8(value) => json!(value),
        NvValue::Int8(value) => json!(value),
        NvValue::Int16(value) => json!(value),
        NvValue::Uint16(value) => json!(value),
        NvValue::Int32(value) => json!(value),
        NvValue::Uint32(value) => json!(value),
        NvValue::Int64(value) | NvValue::HrTime(value) => json!(value),
        NvValue::Uint64(value) => json!(value),
        NvValue::String(value) => json!(value.to_string()),
        NvValue::NvList(value) => list(value),
        NvValue::NvListArray(values) => values.iter().map(list).collect(),
        NvValue::Uint64Array(values) => json!(values),
        NvValue::StringArray(values) => values.iter().map(|value| json!(value.to_string())).collect(),
        NvValue::ByteArray(values) | NvValue::Uint8Array(values) => {
            json!(values.iter().take(256).map(|byte| format!("{byte:02x}")).collect::<String>())
        }
        NvValue::BooleanArray(values) => json!(values),
        NvValue::Int8Array(values) => json!(values),
        NvValue::Int16Array(values) => json!(values),
        NvValue::Uint16Array(values) => json!(values),
        NvValue::Int32Array(values) => json!(values),
        NvValue::Uint32Array(values) => json!(values),
        NvValue::Int64Array(values) => json!(values),
    }
}

fn uberblock(ub: &Uberblock) -> Value {
    let mut object = json!({
        "magic": "0x00bab10c",
        "version": ub.version,
        "txg": ub.txg,
        "guid_sum": ub.guid_sum,
        "timestamp": format!("{} UTC = {}", ub.timestamp, utc(ub.timestamp)),
        "order": format!("{:?}", ub.order),
        "software_version": ub.software_version,
        "checkpoint_txg": ub.checkpoint_txg,
        "raidz_reflow": { "state": format!("{:?}", ub.raidz_reflow.scratch()), "offset": ub.raidz_reflow.offset() },
        "rootbp": ub.rootbp.to_string(),
    });
    if let Some(mmp) = ub.mmp {
        object["mmp"] = json!({
            "delay_ns": mmp.delay_ns,
            "interval_ms": mmp.interval_ms(),
            "sequence": mmp.sequence(),
            "fail_intervals": mmp.fail_intervals(),
        });
    }
    object
}

/// Intent logs of all live datasets, or of the one that was named.
async fn intent_logs(out: &mut Out, pool: &Arc<Pool>, target: &str) -> anyhow::Result<()> {
    let is_wanted = |head: &zil::Head| !target.contains('/') || head.name == target;
    for head in zil::heads(pool).await?.into_iter().filter(is_wanted) {
        let header = &head.header;
        out.section(
            "log",
            &json!({ format!("intent log of {}", head.name): {
                "claim_txg": header.claim_txg,
                "claim_blk_seq": header.claim_block_seq,
                "claim_lr_seq": header.claim_record_seq,
                "replay_seq": header.replay_seq,
                "flags": header.flags,
            }}),
        )?;
        chain(out, pool, &head).await?;
    }
    Ok(())
}

async fn chain(out: &mut Out, pool: &Arc<Pool>, head: &zil::Head) -> anyhow::Result<()> {
    let mut reader = zil::Reader::new(pool.io(), head.objset, &head.header);
    while let Some(zil::Found { pointer, at, block }) = reader.next().await {
        let mut document = json!({
            "sequence": at.blkid,
            "size": pointer.lsize(),
            "birth": pointer.birth(),
            "pointer": pointer.to_string(),
        });
        match block {
            Ok(block) => {
                let all = block.records().map(|found| record(&found, &head.header, pool));
                if out.json {
                    document["record"] = all.collect();
                } else {
                    for (number, record) in all.enumerate() {
                        document[format!("record[{number}]")] = json!(in_a_line(&record));
                    }
                }
            }
            Err(zil::NoBlock::Unwritten) => document["content"] = json!("never written: the log ends here"),
            Err(zil::NoBlock::Unreadable(error)) => {
                document["content"] = json!(format!("unreadable: {error}"))
            }
        }
        let title =
            if out.json { "block".to_owned() } else { format!("block {} of {}", at.blkid, head.name) };
        out.section("log_block", &json!({ title: document }))?;
    }
    let end = match reader.chain().end() {
        Some(zil::End::Foreign) => "it is the log of another dataset, which this one is a copy of",
        Some(zil::End::Loop) => "the log leads back to itself",
        Some(zil::End::Broken) => "the last block names no successor of its own",
        _ => return Ok(()),
    };
    Ok(out.section("log_end", &json!({ "end": end }))?)
}

/// A record's fields in a line.
fn in_a_line(record: &Value) -> String {
    let mut text = String::new();
    for (name, value) in record.as_object().into_iter().flatten() {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        match name.as_str() {
            "type" => text.push_str(&value),
            _ => text.push_str(&format!(" {name} {value}")),
        }
    }
    text
}

/// One record: what every record says, and of those that volumes have what was written where.
fn record(found: &zil::LogRecord, header: &Header, pool: &Pool) -> Value {
    let kind = match found.tx() {
        Some(tx) => format!("TX_{}", format!("{tx:?}").to_uppercase()),
        None => format!("unknown type {}", found.kind),
    };
    let mut object = json!({
        "type": kind, "txg": found.txg, "sequence": found.sequence, "bytes": found.len(),
        "waits": zil::is_pending(header, found, pool.uberblock().txg),
    });
    let mut range = |number: u64, offset: u64, length: u64| {
        object["object"] = json!(number);
        object["offset"] = json!(offset);
        object["length"] = json!(length);
    };
    let decoded = match found.decode() {
        Ok(decoded) => decoded,
        Err(error) => {
            object["malformed"] = json!(error.to_string());
            return object;
        }
    };
    match decoded.body {
        Body::Write { object: number, offset, length, data } => {
            range(number, offset, length);
            match data {
                WriteData::Indirect(pointer) if pointer.is_hole() => object["data"] = json!("zeroes"),
                WriteData::Indirect(pointer) => object["pointer"] = json!(pointer.to_string()),
                WriteData::Inline(_) => object["data"] = json!("inline"),
            }
        }
        Body::Write2 { object: number, offset, length }
        | Body::Truncate { object: number, offset, length }
        | Body::CloneRange { object: number, offset, length, .. } => range(number, offset, length),
        Body::Create { node, .. } => {
            object["dir"] = json!(node.dir);
            object["object"] = json!(node.object);
            if let Some((name, _)) = decoded.body.created_name(found.order()) {
                object["name"] = json!(String::from_utf8_lossy(name));
            }
        }
        Body::Remove { dir, name, .. } => {
            object["dir"] = json!(dir);
            object["name"] = json!(String::from_utf8_lossy(name));
        }
        Body::Link { dir, object: number, name } => {
            object["dir"] = json!(dir);
            object["object"] = json!(number);
            object["name"] = json!(String::from_utf8_lossy(name));
        }
        Body::Rename { from, to, .. } | Body::RenameWhiteout { from, to, .. } => {
            object["name"] = json!(String::from_utf8_lossy(from));
            object["to"] = json!(String::from_utf8_lossy(to));
        }
        Body::SetAttr(set) => object["object"] = json!(set.object),
        Body::AclV0 { object: number, .. } | Body::Acl { object: number, .. } => {
            object["object"] = json!(number);
        }
        Body::SetSaXattr { object: number, name, .. } => {
            object["object"] = json!(number);
            object["name"] = json!(String::from_utf8_lossy(name));
        }
    }
    object
}

/// Everything that was done to the pool.
async fn show_history(out: &mut Out, pool: &Arc<Pool>) -> anyhow::Result<()> {
    let Some(number) = pool.directory().get_u64("history").await? else { return Ok(()) };
    let object = pool.mos().object(number).await?;
    let phys = HistoryPhys::decode(&object.dnode().bonus, object.bonus_order())?;
    let mut data = Vec::new();
    // The first record is kept for ever; the ring holds the rest.
    for (from, to) in [(0, phys.create_len), (phys.bof.max(phys.create_len), phys.eof)] {
        let len = to.saturating_sub(from);
        if len > HISTORY_MAX {
            out.failure("history", &format!("it claims {len} bytes"))?;
            continue;
        }
        for (start, len) in phys.extents(from, len).into_iter().flatten().filter(|(_, len)| *len > 0) {
            data.extend(object.read(start, len as usize).await?);
        }
    }
    for record in history::records(&data) {
        match record {
            Ok(record) => {
                let time = record.u64("history time").map(utc).unwrap_or_default();
                let what = ["history command", "history internal str", "internal_name", "ioctl"]
                    .iter()
                    .find_map(|name| record.string(name))
                    .map(ToString::to_string)
                    .unwrap_or_default();
                let title = format!("{time} {what}");
                out.section("history", &json!({ title.trim(): list(&record) }))?;
            }
            Err(error) => out.failure("history", &error)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_read_as_indented_lines() {
        let mut text = String::new();
        let value =
            json!({ "a": 1, "b": { "c": "x\u{1b}[2J", "d": [1, 2] }, "e": [{ "f": true }], "": "alone" });
        lines(&mut text, &value, 0);
        assert_eq!(text, "a: 1\nb:\n    c: x\u{fffd}[2J\n    d: [1, 2]\ne[0]:\n    f: true\nalone\n");
    }
}
