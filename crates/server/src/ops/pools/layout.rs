//! What is said of devices before a pool takes them: their layout, what it holds, what cache devices ask of memory.

use std::collections::BTreeSet;

use engine::{
    create::{Plan, PlannedLeaf, PlannedTop, Use},
    second::{self, Config as TierConfig},
};
use pool::{
    Pool,
    dsl::DatasetKind,
    props::value::bytes,
    space::{misfit, volume_reservation_beside, volume_space},
    status::human,
    vdev::{Geometry, Tree},
};

/// Bytes of a volume's block, unless it was made otherwise.
pub(super) const VOLUME_BLOCK: u64 = 16 << 10;
/// log2 of a sector, where it makes next to no difference.
const SECTOR_SHIFT: u32 = 12;

/// The layout, and what it holds.
pub(super) fn describe(plan: &Plan, pool: &str, is_new: bool) -> Vec<String> {
    let mut lines: Vec<String> = plan.describe(pool).lines().map(str::to_owned).collect();
    let capacities = plan.capacity();
    if capacities.iter().all(|capacity| capacity.bytes == 0) {
        return lines; // nothing of it holds volumes: cache, log, spare
    }
    let about = if is_new {
        "volumes written in full would fit, by volblocksize, with parity and padding:"
    } else {
        "further volumes written in full would fit, by volblocksize, with parity and padding:"
    };
    lines.extend([String::new(), about.to_owned()]);
    for capacity in capacities {
        lines.push(format!("\t{:>5}  {}", bytes(capacity.block.into()), bytes(capacity.bytes)));
    }
    lines
}

/// The smallest block on devices that stay: nobody can tell them another one later.
pub(super) fn smallest_blocks(plan: &Plan) -> Vec<String> {
    let staying = plan.tops.iter().filter(|top| top.purpose != Use::Log);
    let shifts: BTreeSet<u32> = staying.map(|top| top.ashift).collect();
    let line =
        |shift: &u32| format!("smallest block on them, for good: {} (ashift {shift})", bytes(1_u64 << shift));
    shifts.iter().map(line).collect()
}

/// What cache devices ask of memory when they are full of blocks of these sizes, and what becomes of them at a restart.
pub(super) fn about_caches(plan: &Plan, blocks: &BTreeSet<u64>, config: &TierConfig) -> Vec<String> {
    let mut lines = Vec::new();
    for leaf in &plan.caches {
        let full = |block: &u64| {
            format!(
                "{} with {} blocks",
                human(second::memory_needed(leaf.facts.bytes, *block)),
                human(*block)
            )
        };
        let full: Vec<String> = blocks.iter().rev().map(full).collect();
        lines.push(format!(
            "cache device {}: {} bytes of memory for each block it holds; full, {}",
            leaf.path,
            second::BLOCK_NEEDS,
            full.join(", ")
        ));
        lines.extend(what_is_forgotten(leaf, config));
    }
    lines
}

/// That a cache device is too small to remember what it holds, if it is.
fn what_is_forgotten(leaf: &PlannedLeaf, config: &TierConfig) -> Option<String> {
    if second::remembers(leaf.facts.bytes, SECTOR_SHIFT, config) {
        return None;
    }
    // Exact: `human` makes 1024M of the 1023.5M that there are of 1G.
    let reach = second::reach(leaf.facts.bytes) as f64 / f64::from(1 << 20);
    Some(format!(
        "cache device {}: of its {}, {reach}M lie before the labels at its end, which is less than {}, so what it holds is \
         forgotten when the pool is opened again",
        leaf.path,
        human(leaf.facts.bytes),
        human(config.persist_min)
    ))
}

/// The same behind something else.
pub(super) fn below(mut lines: Vec<String>) -> Vec<String> {
    if !lines.is_empty() {
        lines.insert(0, String::new());
    }
    lines
}

/// The block sizes of a pool's volumes; where there is none, that of the next.
pub(super) async fn volume_blocks(pool: &Pool) -> BTreeSet<u64> {
    let mut blocks = BTreeSet::new();
    if let Ok(dsl) = pool.dsl().await
        && let Ok((volumes, _unread)) = dsl.volumes().await
    {
        for volume in volumes.iter().filter(|volume| volume.kind() == DatasetKind::Head) {
            if let Ok(set) = volume.objset().await
                && let Ok(shape) = pool::volume::shape(set.as_ref()).await
            {
                blocks.insert(shape.block);
            }
        }
    }
    if blocks.is_empty() { BTreeSet::from([VOLUME_BLOCK]) } else { blocks }
}

/// The volumes that have their whole size reserved, and may need more of the pool when their blocks lie on the devices of a
/// plan; and what helps.
pub(super) async fn short_reservations(plan: &Plan, pool: &Pool) -> Vec<String> {
    let tops: Vec<&PlannedTop> = plan.tops.iter().filter(|top| top.purpose == Use::Data).collect();
    let mut lines = Vec::new();
    if tops.is_empty() {
        return lines;
    }
    let raidz: Vec<Geometry> = tops.iter().filter_map(|top| top.raidz()).collect();
    let (tree, Ok(dsl)) = (pool.tree(), pool.dsl().await) else { return lines };
    let Ok((volumes, _unread)) = dsl.volumes().await else { return lines };
    for volume in volumes.iter().filter(|volume| volume.kind() == DatasetKind::Head) {
        let Ok(properties) = volume.properties().await else { continue };
        let number = |name: &str| properties.number(name).unwrap_or(0);
        let (size, reserved) = (number("volsize"), number("refreservation"));
        let (block, copies) = (number("volblocksize").max(1), number("copies").max(1));
        if size == 0 || reserved < size {
            continue;
        }
        let plain = tops.iter().filter(|top| top.raidz().is_none()).map(|top| top.allocated(block)).max();
        let before = volume_space(&tree, &[], 0, size, block, copies);
        let needed = volume_space(&tree, &raidz, plain.unwrap_or(0), size, block, copies);
        // It is OpenZFS's, which knows nothing of sectors that are larger than blocks.
        let auto = volume_reservation_beside(&tree, &raidz, size, block, copies);
        if needed <= before.max(reserved) {
            continue;
        }
        let (name, to) = (volume.name(), if needed == auto { "auto".to_owned() } else { needed.to_string() });
        lines.push(format!(
            "volume '{name}' reserves {}, and needs {} if its blocks lie on the new devices: 'zfs set refreservation={to} \
             {name}'",
            human(reserved),
            human(needed)
        ));
    }
    lines
}

/// The hot spares of a plan that can stand in for nothing in a pool.
pub(super) fn useless_spares(plan: &Plan, pool: &Tree) -> Vec<String> {
    let told = |spare: &PlannedLeaf| {
        let facts = spare.facts;
        let sector = if facts.block_device { facts.logical_sector } else { 512 };
        let misfit = misfit(pool, facts.bytes, sector).filter(|misfit| misfit.everywhere)?;
        Some(format!("hot spare {} cannot stand in: {}", spare.path, misfit.why))
    };
    // What comes with them they may be for.
    plan.spares.iter().filter(|_| plan.tops.is_empty()).filter_map(told).collect()
}

#[cfg(test)]
mod tests {
    use engine::create::DeviceFacts;

    use super::*;

    #[test]
    fn a_cache_device_that_is_too_small_by_its_labels_only_is_told_so() {
        let said = |bytes| {
            let facts = DeviceFacts { bytes, block_device: true, logical_sector: 512, physical_sector: 4096 };
            what_is_forgotten(&PlannedLeaf { path: "/dev/c".to_owned(), facts }, &TierConfig::default())
        };
        let line = said(1 << 30).unwrap();
        assert!(
            line.contains("of its 1G, 1023.5M lie before the labels at its end, which is less than 1G"),
            "{line}"
        );
        assert_eq!(said((1 << 30) + (512 << 10)), None);
    }
}
