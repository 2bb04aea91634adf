//! The four labels of a device, and the uberblocks in them.

use std::{collections::BTreeMap, sync::Arc};

use anyhow::{anyhow, bail};
use serde_json::json;
use server::{
    disk::{Disk, FileDisk, IoBuf, OpenOptions},
    host::reason,
    pool::{
        import,
        ondisk::{
            label::{CONFIG_BYTES, CONFIG_OFFSET, Geometry, LABEL_BYTES, Ring},
            nvlist::NvList,
            uberblock::Uberblock,
        },
    },
};

use super::{Out, list, uberblock};

struct Label {
    number: usize,
    start: u64,
    bytes: IoBuf,
}

impl Label {
    fn config_is_sealed(&self) -> bool {
        import::is_sealed(self.config_region(), self.start + CONFIG_OFFSET)
    }

    fn config_region(&self) -> &[u8] {
        &self.bytes[CONFIG_OFFSET as usize..(CONFIG_OFFSET + CONFIG_BYTES) as usize]
    }

    fn uberblocks(&self, ashift: Option<u64>) -> Vec<(u64, Uberblock)> {
        let ring = ashift.map(Ring::for_ashift);
        ring.into_iter().flat_map(|ring| import::uberblocks(ring, self.start, &self.bytes)).collect()
    }
}

async fn read(out: &mut Out, disk: &Arc<dyn Disk>) -> anyhow::Result<Vec<Label>> {
    let info = disk.info();
    let Some(geometry) = Geometry::new(info.size) else {
        bail!(
            "'{}' is too small to be a device of a pool: {} bytes, at least 64 MiB are needed",
            info.path,
            info.size
        );
    };
    let mut labels = Vec::new();
    for (number, start) in geometry.labels().into_iter().enumerate() {
        match disk.read(start, IoBuf::with_len(LABEL_BYTES as usize)).await {
            Ok(bytes) => labels.push(Label { number, start, bytes }),
            Err(error) => out.failure(&format!("label {number}"), &error)?,
        }
    }
    Ok(labels)
}

fn ashift(labels: &[Label]) -> Option<u64> {
    let config =
        |label: &Label| NvList::decode(label.config_region()).ok()?.nvlist("vdev_tree")?.u64("ashift");
    labels.iter().filter(|label| label.config_is_sealed()).find_map(config)
}

/// All labels of the device at `path`; `detail` 1 adds the newest uberblock of each, 2 all of them.
pub(super) async fn labels(out: &mut Out, path: &str, detail: u8) -> anyhow::Result<()> {
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let opened = FileDisk::open(path, options);
    let disk: Arc<dyn Disk> =
        Arc::new(opened.map_err(|error| anyhow!("cannot open '{path}' as a device: {}", reason(&error)))?);
    let labels = read(out, &disk).await?;
    let ashift = ashift(&labels);
    let mut valid = 0;
    for label in &labels {
        let sealed = label.config_is_sealed();
        let mut document = json!({
            "offset": label.start,
            "checksum": if sealed { "good" } else { "bad" },
        });
        match NvList::decode(label.config_region()) {
            Ok(config) if sealed => {
                document["config"] = list(&config);
                valid += 1;
            }
            Ok(_) => document["config"] = json!("not trusted: its checksum is wrong"),
            Err(error) => document["config"] = json!(format!("failed to unpack: {error}")),
        }
        let mut found = label.uberblocks(ashift);
        found.sort_by_key(|(_, uberblock)| uberblock.rank());
        document["uberblocks"] = json!(found.len());
        let shown = if detail > 1 { found.len() } else { usize::from(detail) };
        let newest: Vec<_> = found
            .iter()
            .rev()
            .take(shown)
            .map(|(slot, found)| {
                let mut document = uberblock(found);
                document["slot"] = json!(slot);
                document
            })
            .collect();
        if !newest.is_empty() {
            document["uberblock"] = json!(newest);
        }
        out.section("label", &json!({ "label": label.number, "path": path, "LABEL": document }))?;
    }
    if valid == 0 {
        bail!("'{path}' has no valid label: it is not a device of a pool, or its labels are lost");
    }
    Ok(())
}

/// Every valid uberblock of a device, newest first, each with the labels that have it.
pub(super) async fn uberblocks(out: &mut Out, disk: &Arc<dyn Disk>) -> anyhow::Result<()> {
    let labels = read(out, disk).await?;
    let ashift = ashift(&labels);
    let mut all: BTreeMap<_, (Uberblock, Vec<usize>)> = BTreeMap::new();
    for label in &labels {
        for (_, uberblock) in label.uberblocks(ashift) {
            all.entry(uberblock.rank()).or_insert((uberblock, Vec::new())).1.push(label.number);
        }
    }
    for (found, labels) in all.into_values().rev() {
        let mut document = uberblock(&found);
        document["labels"] = json!(labels);
        out.section("uberblock", &json!({ "device": disk.info().path, "uberblock": document }))?;
    }
    Ok(())
}
