//! Object sets: the MOS and datasets, their objects, the blocks of each.

use std::sync::Arc;

use serde_json::{Value, json};
use server::{
    pool::{
        Pool,
        dmu::{DnodeAt, Object, ObjectSet, ReadError, Run},
        dsl::{Dataset, DatasetKind},
        ondisk::dnode::flags,
        zap::Zap,
    },
    shares::is_secret,
};

use super::Out;

/// Entries of a ZAP that are shown.
const ENTRIES_MAX: usize = 1000;

/// `detail` 1: a line for each object set, 2: and its objects, 3: and their blocks. `target` is a pool, or one
/// dataset. With `only`, those objects alone.
pub(super) async fn show(
    out: &mut Out,
    pool: &Arc<Pool>,
    target: &str,
    detail: u8,
    only: &[u64],
) -> anyhow::Result<()> {
    if target.contains(['/', '@']) || (!only.is_empty() && target != pool.name()) {
        let dataset = pool.dsl().await?.lookup(target).await?;
        return one(out, &dataset, detail, only).await;
    }
    set_line(out, "mos [META]", pool.mos(), None)?;
    objects(out, pool.mos(), detail, only).await?;
    if !only.is_empty() {
        return Ok(());
    }
    let (datasets, failed) = pool.datasets().await?;
    for error in failed {
        out.failure("datasets", &error)?;
    }
    for dataset in datasets.iter().filter(|dataset| dataset.kind() != DatasetKind::Bookmark) {
        one(out, dataset, detail, only).await?;
    }
    Ok(())
}

async fn one(out: &mut Out, dataset: &Dataset, detail: u8, only: &[u64]) -> anyhow::Result<()> {
    match dataset.objset().await {
        Ok(set) => {
            set_line(out, dataset.name(), &set, Some(dataset))?;
            objects(out, &set, detail, only).await
        }
        Err(error) => Ok(out.failure(dataset.name(), &error)?),
    }
}

fn set_line(out: &mut Out, name: &str, set: &ObjectSet, dataset: Option<&Dataset>) -> std::io::Result<()> {
    let mut document = json!({
        "dataset": name,
        "type": format!("{:?}", set.kind()),
        "id": set.id(),
        "objects": set.pointer().fill(),
        "rootbp": set.pointer().to_string(),
    });
    if let Some(phys) = dataset.and_then(Dataset::phys) {
        document["create_txg"] = json!(phys.creation_txg);
        document["referenced"] = json!(phys.referenced_bytes);
        document["unique"] = json!(phys.unique_bytes);
        document["guid"] = json!(phys.guid);
        document["prev_snap"] = json!(phys.prev_snap);
        document["deadlist"] = json!(phys.deadlist);
    }
    out.section("dataset", &json!({ format!("Dataset {name}"): document }))
}

async fn objects(out: &mut Out, set: &Arc<ObjectSet>, detail: u8, only: &[u64]) -> anyhow::Result<()> {
    if detail < 2 {
        return Ok(());
    }
    if !only.is_empty() {
        for &number in only {
            match set.dnode(number).await {
                Ok(found) => object(out, set, found, detail).await?,
                Err(error) => out.failure(&format!("object {number}"), &error)?,
            }
        }
        return Ok(());
    }
    let mut found = set.objects();
    loop {
        match found.next().await {
            Ok(Some(dnode)) => object(out, set, dnode, detail).await?,
            Ok(None) => return Ok(()),
            Err(error) => out.failure("dnodes", &error)?,
        }
    }
}

async fn object(out: &mut Out, set: &Arc<ObjectSet>, found: DnodeAt, detail: u8) -> anyhow::Result<()> {
    let (number, dnode) = (found.number, found.dnode.clone());
    let mut document = json!({
        "type": dnode.object_type.to_string(),
        "levels": dnode.levels,
        "indirect_block": dnode.indirect_block_bytes(),
        "data_block": dnode.data_block_bytes(),
        "dnode_bytes": dnode.slots() * 512,
        "used": dnode.used_bytes(),
        "max_block_id": dnode.max_block_id,
        "bonus": format!("{} bytes {}", dnode.bonus.len(), dnode.bonus_type),
        "flags": dnode.flags,
    });
    if dnode.flags & flags::SPILL != 0
        && let Some(spill) = dnode.spill
    {
        document["spill"] = json!(spill.to_string());
    }
    let title = format!("    Object {number}");
    let object = match Object::new(Arc::clone(set.source()), set.id(), found) {
        Ok(object) => object,
        Err(error) => return Ok(out.failure(&title, &error)?),
    };
    // With one object after another, the entries of a table say more than its blocks.
    if detail >= 3 && dnode.object_type.is_zap() && !set.pointer().uses_crypt() {
        match entries(&object).await {
            Ok(entries) => document["entries"] = entries,
            Err(error) => document["entries"] = json!(format!("ERROR {error}")),
        }
    }
    out.section("object", &json!({ title.as_str(): document }))?;
    if detail < 3 {
        return Ok(());
    }
    for level in (0..object.levels()).rev() {
        let fanout = object.fanout();
        let last = fanout.ancestor(object.max_block_id(), level);
        let mut runs = object.runs(level, 0..last.saturating_add(1));
        loop {
            match runs.next().await {
                Ok(Some(Run::Block { blkid, pointer })) => {
                    let first = fanout.first_descendant(blkid, level);
                    let offset = first.saturating_mul(object.block_bytes());
                    let line = format!("{offset:>12x} L{level} {pointer}");
                    out.section("block", &json!({ "        ": line }))?;
                }
                Ok(Some(Run::Hole { .. })) => {}
                Ok(None) => break,
                Err(error) => out.failure(&title, &error)?,
            }
        }
    }
    Ok(())
}

async fn entries(object: &Object) -> Result<Value, ReadError> {
    let zap = Zap::open(object.clone()).await?;
    let mut entries = zap.entries();
    let mut shown = serde_json::Map::new();
    while let Some((key, value)) = entries.next().await? {
        if shown.len() >= ENTRIES_MAX {
            shown.insert("…".to_owned(), json!("and more"));
            break;
        }
        let key = match key.name() {
            Some(name) => String::from_utf8_lossy(name).into_owned(),
            None => format!("{key:x?}"),
        };
        // Where properties are kept, what came with a stream has a suffix: `NAME$recvd`.
        let is_hidden = key.split('$').next().is_some_and(is_secret);
        let value = match (value.as_u64(), value.as_text()) {
            _ if is_hidden => json!("(hidden)"),
            (Some(number), _) => json!(number),
            (None, Some(text)) => json!(text),
            _ => value.integers().take(64).collect(),
        };
        shown.insert(key, value);
    }
    Ok(Value::Object(shown))
}
