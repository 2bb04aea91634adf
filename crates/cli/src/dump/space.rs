//! Metaslabs, their space maps, and the log of changes that are not in them yet.

use std::sync::Arc;

use serde_json::{Value, json};
use server::pool::{
    Pool,
    dmu::{Object, ReadError, Run},
    ondisk::spacemap::{self, Header, MapEntry},
    zap::Zap,
};

use super::Out;

/// Metaslabs of one device that are believed.
const METASLABS_MAX: u64 = 1 << 17;

/// `detail` 1: totals, 2: each metaslab, 3: the entries of its map.
pub(super) async fn show(out: &mut Out, pool: &Arc<Pool>, detail: u8) -> anyhow::Result<()> {
    for vdev in &pool.tree().tops {
        let Some(top) = vdev.top.as_ref().filter(|top| top.metaslab_array != 0) else { continue };
        let count = top.metaslabs().min(METASLABS_MAX);
        let space = pool
            .space()
            .await
            .ok()
            .and_then(|space| space.tops.get(vdev.id as usize).copied())
            .unwrap_or_default();
        out.section(
            "vdev",
            &json!({ format!("vdev {} {vdev}", vdev.id): {
                "metaslabs": count,
                "metaslab_bytes": 1u64.checked_shl(top.metaslab_shift),
                "ashift": top.ashift,
                "allocated": space.allocated,
                "free": space.free(),
                "fragmentation": space.fragmentation,
            }}),
        )?;
        if detail < 2 {
            continue;
        }
        let array = match pool.mos().object(top.metaslab_array).await {
            Ok(array) => array,
            Err(error) => {
                out.failure("metaslab array", &error)?;
                continue;
            }
        };
        for index in 0..count {
            let number = match word(&array, index).await {
                Ok(number) => number,
                Err(error) => {
                    out.failure(&format!("metaslab {index}"), &error)?;
                    continue;
                }
            };
            let title = format!("    metaslab {index}");
            let offset = index.checked_shl(top.metaslab_shift);
            if number == 0 {
                out.section("metaslab", &json!({ title: { "offset": offset, "spacemap": 0 } }))?;
                continue;
            }
            map(out, pool, number, json!({ "vdev": vdev.id, "offset": offset }), &title, top.ashift, detail)
                .await?;
        }
    }
    if let Some(object) = pool.directory().get_u64("com.delphix:log_spacemap_zap").await? {
        for (txg, number) in Zap::open_in(pool.mos(), object).await?.numbers().await? {
            let txg = u64::from_str_radix(&txg, 16).unwrap_or(0);
            map(out, pool, number, json!({ "txg": txg }), &format!("log space map of txg {txg}"), 9, detail)
                .await?;
        }
    }
    Ok(())
}

/// Number `index` of an array of words.
async fn word(array: &Object, index: u64) -> Result<u64, ReadError> {
    let per_block = array.block_bytes() / 8;
    let block = array.read_block(index / per_block).await?;
    let bytes = block.bytes().as_chunks::<8>().0.get((index % per_block) as usize);
    Ok(bytes.map_or(0, |bytes| block.order.u64(*bytes)))
}

async fn map(
    out: &mut Out,
    pool: &Arc<Pool>,
    number: u64,
    mut document: Value,
    title: &str,
    shift: u32,
    detail: u8,
) -> anyhow::Result<()> {
    let object = match pool.mos().object(number).await {
        Ok(object) => object,
        Err(error) => return Ok(out.failure(title, &error)?),
    };
    let header = match Header::decode(&object.dnode().bonus, object.bonus_order()) {
        Ok(header) => header,
        Err(error) => return Ok(out.failure(title, &error)?),
    };
    document["spacemap"] = json!(number);
    document["length"] = json!(header.length);
    document["alloc"] = json!(header.alloc);
    if let Some(histogram) = header.histogram {
        let used: Vec<String> = histogram
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
            .map(|(bucket, count)| format!("2^{}: {count}", bucket as u32 + shift))
            .collect();
        document["free_segments"] = json!(used);
    }
    out.section("metaslab", &json!({ title: document }))?;
    if detail < 3 {
        return Ok(());
    }
    let mut runs =
        object.runs(0, 0..header.length.div_ceil(object.block_bytes()).min(object.max_block_id() + 1));
    while let Some(run) = runs.next().await? {
        let Run::Block { blkid, pointer } = run else { continue };
        let content = match object.source().read(&pointer, object.bookmark(0, blkid)).await {
            Ok(content) => content,
            Err(error) => {
                out.failure(title, &error)?;
                continue;
            }
        };
        let left = header.length.saturating_sub(blkid.saturating_mul(object.block_bytes()));
        let valid = content.get(..left as usize).unwrap_or(&content);
        for entry in spacemap::entries(valid, pointer.order()) {
            let line = match entry {
                Ok(MapEntry::Padding) => continue,
                Ok(MapEntry::Debug { action, pass, txg }) => format!("-- {action:?} txg {txg} pass {pass}"),
                Ok(MapEntry::Segment(segment)) => match segment.range(shift) {
                    Some(range) => {
                        let vdev = segment.vdev.map(|vdev| format!(" vdev {vdev}")).unwrap_or_default();
                        format!(
                            "{:?}{vdev} {:#x}-{:#x} size {:#x}",
                            segment.kind,
                            range.start,
                            range.end,
                            range.end - range.start
                        )
                    }
                    None => format!("{segment:?}"),
                },
                Err(error) => {
                    out.failure(title, &error)?;
                    break;
                }
            };
            out.section("segment", &json!({ "        ": line }))?;
        }
    }
    Ok(())
}
