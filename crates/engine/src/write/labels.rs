//! The last writes of a transaction group: labels and uberblocks, in an order that a power cut may end anywhere.
//!
//! ```text
//!   everything the new root leads to is on stable media (BlockWriter::finish)
//!     │ configuration changed?                        yes: every leaf            no: up to 3 top-level devices
//!     ├─ even labels (L0, L2), config with txg T      ✓ flush                    –
//!     ├─ uberblock of T, all four labels              ✓ flush  ← the commit      ✓ flush  ← the commit
//!     └─ odd labels (L1, L3), config with txg T       ✓ flush                    –
//! ```
//!
//! A reader ignores a label that is newer than the best uberblock, so before the commit the odd labels hold, and
//! after it the even ones: one pair always agrees with the newest valid uberblock.
//!
//! A leaf that fails is left behind: it holds an older label and uberblock, and that is recognised. So one whose even labels
//! were refused, and may be torn, keeps its odd ones. A commit needs one label on each top-level device (logs excepted) and
//! one uberblock in the pool, on leaves that have all of the transaction group. One that lacks a part of it gets the
//! uberblock when others have it: alone with it, it could go neither on nor back.
//!
//! Others flush these leaves, too. If that fails between a write here and its flush, what was written may be gone, and a flush
//! that works then says nothing of it: it is written again. Of two flushes at once one gets the error of both, so those beside
//! it are waited for. (Log rounds do without that: they would wait for each other.)
//!
//! Not here: what is in the configuration (`create`, `open`, whoever changes it). Facts: docs/format/labels.md,
//! overview.md §6 D, §7.

use std::{io, sync::Arc};

use bytes::Bytes;
use codec::checksum::{
    Checksum,
    embedded::{self, Template},
};
use disk::Disk;
use futures_util::future::join_all;
use ondisk::{
    Order,
    label::{
        BOOT_ENV_BYTES, BOOT_ENV_OFFSET, CONFIG_BYTES, CONFIG_OFFSET, Geometry, LABEL_BYTES, LABELS,
        Multihost, PoolState, RING_BYTES, RING_OFFSET, Region, Ring, TRAILER_BYTES, UBERBLOCK_TOPS,
    },
    nvlist::{Encoding, NvList, Value},
    uberblock::Uberblock,
};
use pool::{
    space::fitting,
    vdev::{Class, Kind, Tree, Vdev, Work},
};

use super::ours::Ours;
use crate::{
    BoxFuture, EngineError, devices::diagnose::Reports, error::in_full, events::IoError, suspend::Suspension,
};

/// How often a leaf is given the same while flushes of others fail, before it has refused it.
const ATTEMPTS: usize = 3;
/// Labels written before the uberblock.
const EVEN: [usize; 2] = [0, 2];
/// Labels written after it.
const ODD: [usize; 2] = [1, 3];
/// Pairs of the pool's configuration that are not in labels. (Zaps of devices, and allocation flags, are kept only
/// where they can be read together with what they name.)
const MOS_ONLY: [&str; 7] = [
    "com.delphix:has_per_vdev_zaps",
    "com.delphix:vdev_zap_leaf",
    "com.delphix:vdev_zap_top",
    "com.klarasystems:vdev_zap_root",
    "com.datto:resilver_defer",
    "non_allocating",
    "removing",
];

/// A leaf that can be written to.
struct Leaf<'a> {
    vdev: &'a Vdev,
    /// Index of its top-level device.
    top: usize,
    disk: Arc<dyn Disk>,
    labels: [u64; LABELS],
    ring: Ring,
    /// It lacks a part of what is committed.
    lacks: bool,
}

impl Leaf<'_> {
    fn may_have(&self, txg: u64) {
        if let Some(leaf) = &self.vdev.leaf {
            leaf.condition.may_have(txg);
        }
    }

    fn has_durably(&self, txg: u64) {
        if let Some(leaf) = &self.vdev.leaf {
            leaf.condition.has_durably(txg);
        }
    }

    /// Another number than before: what it was given and did not flush may be gone.
    fn epoch(&self) -> u64 {
        self.vdev.leaf.as_ref().map_or(0, |leaf| leaf.condition.epoch())
    }

    /// Returns when the epoch says what became of flushes under way.
    async fn heard(&self) {
        if let Some(leaf) = &self.vdev.leaf {
            leaf.condition.deadline().heard().await;
        }
    }

    async fn write(&self, at: u64, bytes: Bytes) -> io::Result<()> {
        let (len, write) = (bytes.len() as u64, self.disk.write(at, bytes));
        match &self.vdev.leaf {
            Some(leaf) => leaf.pulse.tally.time(Work::SyncWrite, len, write).await,
            None => write.await,
        }
    }
}

/// On whose behalf a commit is written.
#[derive(Clone, Copy, Debug)]
pub struct Writer<'a> {
    /// Hears of devices that refuse.
    pub reports: &'a Reports,
    /// Knows whether the pool is still this host's: asked before every write.
    pub suspension: &'a Suspension,
}

impl Writer<'_> {
    /// Whether a leaf took it.
    async fn put(&self, leaf: &Leaf<'_>, at: u64, bytes: Bytes) -> bool {
        self.suspension.may_write().is_ok() && done(self.reports, leaf, leaf.write(at, bytes).await)
    }

    /// Gives a leaf these regions and flushes it; how many of them are durable.
    async fn keep(&self, leaf: &Leaf<'_>, regions: &[(u64, Bytes)]) -> usize {
        for _ in 0..ATTEMPTS {
            let epoch = leaf.epoch();
            let mut taken = 0;
            for (at, bytes) in regions {
                taken += usize::from(self.put(leaf, *at, bytes.clone()).await);
            }
            if taken == 0 || !done(self.reports, leaf, leaf.disk.flush().await) {
                return 0;
            }
            leaf.heard().await;
            if leaf.epoch() == epoch {
                return taken;
            }
            tracing::warn!(device = %leaf.vdev, "labels may have gone with a flush of somebody else that failed");
        }
        let lost = format!("a flush of somebody else failed meanwhile, {ATTEMPTS} times");
        done(self.reports, leaf, Err(io::Error::other(lost)));
        0
    }
}

/// Commits `uberblock`: after this, the pool is what its root says. `config` is the pool's configuration if
/// labels must be rewritten; its `txg` is taken from the uberblock. `lacking` are the guids of leaves that lack a part of
/// the transaction group: that they take something makes no commit.
///
/// # Errors
/// Too few devices took it, or were still this host's by `suspension`; the commit may or may not have happened.
/// [`EngineError::Encode`] if a configuration does not fit a label, before anything is written.
pub async fn commit(
    tree: &Tree,
    uberblock: &Uberblock,
    config: Option<&NvList>,
    multihost: Multihost,
    lacking: &[u64],
    writer: Writer<'_>,
) -> Result<(), EngineError> {
    let mut leaves = writable_leaves(tree);
    for leaf in &mut leaves {
        leaf.lacks = lacking.contains(&leaf.vdev.guid);
        // Before it has it: what it answers may be lost.
        leaf.may_have(uberblock.txg);
    }
    let Some(config) = config else {
        let chosen = rotation(tree, uberblock.txg);
        let some: Vec<&Leaf<'_>> = leaves.iter().filter(|leaf| chosen.contains(&leaf.top)).collect();
        if write_uberblock(&some, uberblock, multihost, writer).await {
            return Ok(());
        }
        tracing::warn!(txg = uberblock.txg, "no uberblock on the devices chosen: trying all of them");
        let rest: Vec<&Leaf<'_>> = leaves.iter().filter(|leaf| !chosen.contains(&leaf.top)).collect();
        return settled(write_uberblock(&rest, uberblock, multihost, writer).await, uberblock);
    };
    let mut regions = Vec::with_capacity(leaves.len());
    for leaf in &leaves {
        regions.push(config_region(&leaf_config(config, tree, leaf.vdev, leaf.top, uberblock.txg)?)?);
    }
    let mut both: Vec<(&Leaf<'_>, &Template)> = leaves.iter().zip(&regions).collect();
    let written = write_labels(tree, &both, EVEN, uberblock.txg, writer).await?;
    let all: Vec<&Leaf<'_>> = leaves.iter().collect();
    settled(write_uberblock(&all, uberblock, multihost, writer).await, uberblock)?;
    let mut written = written.into_iter();
    both.retain(|_| written.next().unwrap_or(false));
    write_labels(tree, &both, ODD, uberblock.txg, writer).await?;
    Ok(())
}

/// Writes all four labels of every leaf of top-level device `top` as OpenZFS wants them before the first sync of
/// new devices: configuration with txg 0, an empty boot environment, no valid uberblock. Every leaf must take it.
///
/// # Errors
/// A leaf fails, the configuration does not fit a label, or the pool may be another host's by `suspension`.
pub fn initialize<'a>(
    tree: &'a Tree,
    config: &'a NvList,
    top: usize,
    suspension: &'a Arc<Suspension>,
) -> BoxFuture<'a, Result<(), EngineError>> {
    Box::pin(async move {
        let leaves = our_leaves(tree, suspension);
        let mut writes = Vec::new();
        for leaf in leaves.iter().filter(|leaf| leaf.top == top) {
            let config = leaf_config(config, tree, leaf.vdev, leaf.top, 0)?;
            writes.push(write_whole(Arc::clone(&leaf.disk), config));
        }
        let all = tree.tops.get(top).map_or(0, |top| top.leaves().len());
        if writes.len() < all {
            return Err(EngineError::Device(format!("{} of {all} new devices are there", writes.len())));
        }
        join_all(writes).await.into_iter().collect()
    })
}

/// Writes all four labels of one leaf as [`initialize`] does: it is to come into a device that is there.
///
/// # Errors
/// It is not in the tree or cannot be written to, the configuration does not fit a label, or the pool may be another
/// host's by `suspension`.
pub fn initialize_leaf<'a>(
    tree: &'a Tree,
    config: &'a NvList,
    guid: u64,
    suspension: &'a Arc<Suspension>,
) -> BoxFuture<'a, Result<(), EngineError>> {
    Box::pin(async move {
        let leaves = our_leaves(tree, suspension);
        let Some(leaf) = leaves.iter().find(|leaf| leaf.vdev.guid == guid) else {
            return Err(EngineError::Device("the new device cannot be written to".to_owned()));
        };
        let config = leaf_config(config, tree, leaf.vdev, leaf.top, 0)?;
        write_whole(Arc::clone(&leaf.disk), config).await
    })
}

/// Empties the last two labels of leaf `guid`, whose device has grown: where they are now there may be anything, a label
/// of another pool too. The next commit of a configuration fills them. Whether the device took all of it.
pub fn initialize_ends<'a>(tree: &'a Tree, guid: u64, writer: Writer<'a>) -> BoxFuture<'a, bool> {
    Box::pin(async move {
        let zeroes = Bytes::from(vec![0; LABEL_BYTES as usize]);
        for leaf in writable_leaves(tree).iter().filter(|leaf| leaf.vdev.guid == guid) {
            let mut regions = Vec::new();
            for start in leaf.labels.into_iter().skip(LABELS / 2) {
                let at = start + Region::BootEnv.offset();
                regions.push((start, zeroes.clone()));
                regions.push((at, sealed(vec![0; BOOT_ENV_BYTES as usize], at)));
            }
            if writer.keep(leaf, &regions).await < regions.len() {
                return false;
            }
        }
        true
    })
}

/// Writes the short labels of a spare or cache device at rest.
///
/// # Errors
/// The device fails.
pub fn initialize_auxiliary(
    disk: &Arc<dyn Disk>,
    guid: u64,
    state: PoolState,
) -> BoxFuture<'_, Result<(), EngineError>> {
    Box::pin(async move {
        let mut config = NvList::new();
        config.set("version", ondisk::uberblock::VERSION_FEATURES);
        config.set("state", state.id());
        config.set("guid", guid);
        write_whole(Arc::clone(disk), config).await
    })
}

/// `zpool labelclear`: the four label areas become zeroes, where one is refused the others all the same: each that stays says
/// that the device is of its pool.
///
/// # Errors
/// The device fails, or is too small to have labels.
pub fn clear(disk: &Arc<dyn Disk>) -> BoxFuture<'_, Result<(), EngineError>> {
    Box::pin(async move {
        let zeroes = Bytes::from(vec![0; LABEL_BYTES as usize]);
        let mut cleared = Ok(());
        for start in geometry(disk)?.labels() {
            let written = disk.write(start, zeroes.clone()).await;
            cleared = cleared.and(written);
        }
        let flushed = disk.flush().await;
        cleared.and(flushed).map_err(device_error)
    })
}

/// Writes a heartbeat: `uberblock`, which repeats the last commit, to the reserved last slot of label `label` of
/// one leaf. Facts: docs/format/labels.md §5.
///
/// # Errors
/// The device fails.
pub async fn heartbeat(
    tree: &Tree,
    leaf: usize,
    label: usize,
    uberblock: &Uberblock,
) -> Result<(), EngineError> {
    let leaves = writable_leaves(tree);
    let Some(leaf) = leaves.get(leaf % leaves.len().max(1)) else {
        return Err(EngineError::Device("no device can be written to".to_owned()));
    };
    // It may be back since that commit.
    leaf.may_have(uberblock.txg);
    let slot = leaf.ring.slots().saturating_sub(1);
    let start = leaf.labels[label % LABELS];
    let (at, bytes) = sealed_uberblock(leaf.ring, slot, start, uberblock);
    leaf.disk.write(at, bytes).await.map_err(device_error)?;
    leaf.disk.flush().await.map_err(device_error)
}

/// How many leaves can be written to.
#[must_use]
pub fn writable(tree: &Tree) -> usize {
    writable_leaves(tree).len()
}

/// Their devices.
pub(crate) fn disks(tree: &Tree) -> Vec<Arc<dyn Disk>> {
    writable_leaves(tree).into_iter().map(|leaf| leaf.disk).collect()
}

/// Their guids, in the order in which [`heartbeat`] counts them.
pub(crate) fn guids(tree: &Tree) -> Vec<u64> {
    writable_leaves(tree).into_iter().map(|leaf| leaf.vdev.guid).collect()
}

/// What the label of `vdev` says, made from the pool's configuration.
fn leaf_config(
    config: &NvList,
    tree: &Tree,
    vdev: &Vdev,
    top: usize,
    txg: u64,
) -> Result<NvList, EngineError> {
    let tops = config.nvlist("vdev_tree").and_then(|root| root.nvlist_array("children")).unwrap_or_default();
    let same_id = |list: &&NvList| list.u64("id") == Some(top as u64);
    let Some(subtree) = tops.iter().find(same_id) else {
        return Err(EngineError::Encode {
            what: "label",
            detail: format!("the configuration does not have device {}", tree.tops[top]),
        });
    };
    let mut list = NvList { flags: config.flags, pairs: Vec::with_capacity(config.pairs.len() + 4) };
    let replaced = ["vdev_tree", "features_for_read", "hole_array", "vdev_children", "is_log", "is_spare"];
    for (name, value) in config.iter() {
        if !MOS_ONLY.contains(&name) && !replaced.contains(&name) {
            list.pairs.push((name.to_owned(), value.clone()));
        }
    }
    list.set("txg", txg);
    list.set("top_guid", tree.tops[top].guid);
    list.set("guid", vdev.guid);
    if tree.tops[top].class() == Class::Log {
        list.set("is_log", 1_u64);
    }
    if vdev.leaf.as_ref().is_some_and(|leaf| leaf.is_spare) {
        list.set("is_spare", 1_u64);
    }
    let holes = tops.iter().filter(|list| list.str("type") == Some("hole"));
    let holes: Vec<u64> = holes.filter_map(|list| list.u64("id")).collect();
    if !holes.is_empty() {
        list.set("hole_array", holes);
    }
    list.set("vdev_children", tree.tops.len() as u64);
    list.set("vdev_tree", for_label(subtree));
    list.set("features_for_read", config.nvlist("features_for_read").cloned().unwrap_or_default());
    Ok(list)
}

/// A device's list without what labels do not have.
fn for_label(list: &NvList) -> NvList {
    let mut pairs = Vec::with_capacity(list.pairs.len());
    for (name, value) in list.iter().filter(|(name, _)| !MOS_ONLY.contains(name)) {
        let value = match value {
            Value::NvListArray(children) if name == "children" => {
                Value::NvListArray(children.iter().map(for_label).collect())
            }
            other => other.clone(),
        };
        pairs.push((name.to_owned(), value));
    }
    NvList { flags: list.flags, pairs }
}

/// The config region of labels: the seal depends on where it is written.
fn config_region(config: &NvList) -> Result<Template, EngineError> {
    let mut region = config.encode(Encoding::Xdr(Order::Little)).map_err(EngineError::encode("label"))?;
    let room = CONFIG_BYTES as usize - TRAILER_BYTES;
    if region.len() > room {
        let detail = format!("a configuration of {} bytes does not fit the {room} of a label", region.len());
        return Err(EngineError::Encode { what: "label", detail });
    }
    region.resize(CONFIG_BYTES as usize, 0);
    Ok(Template::new(region, codec::Order::Little).expect("a configuration is longer than its trailer"))
}

fn writable_leaves(tree: &Tree) -> Vec<Leaf<'_>> {
    let mut found = Vec::new();
    for (top, vdev) in tree.tops.iter().enumerate() {
        let Some(ashift) = vdev.top.as_ref().map(|top| top.ashift) else { continue };
        for vdev in vdev.leaves().into_iter().filter(|leaf| leaf.is_readable()) {
            let Some(disk) = vdev.leaf.as_ref().and_then(|leaf| leaf.timed()) else { continue };
            let Some(geometry) = fitting(&tree.tops[top], disk.info().size) else { continue };
            let (labels, ring) = (geometry.labels(), Ring::for_ashift(ashift.into()));
            found.push(Leaf { vdev, top, disk, labels, ring, lacks: false });
        }
    }
    found
}

/// The same for who does not ask before each write whether the pool is still this host's.
fn our_leaves<'a>(tree: &'a Tree, suspension: &Arc<Suspension>) -> Vec<Leaf<'a>> {
    let ours = |leaf: Leaf<'a>| Leaf { disk: Ours::over(leaf.disk, suspension), ..leaf };
    writable_leaves(tree).into_iter().map(ours).collect()
}

/// The top-level devices whose turn it is. Counting by txg spreads the wear, and needs no memory.
fn rotation(tree: &Tree, txg: u64) -> Vec<usize> {
    let usable = |top: &Vdev| {
        top.class() != Class::Log
            && top.is_readable()
            && !matches!(top.kind, Kind::Hole | Kind::Indirect { .. })
    };
    let mut tops: Vec<usize> = (0..tree.tops.len()).filter(|&i| usable(&tree.tops[i])).collect();
    if !tops.is_empty() {
        let start = (txg % tops.len() as u64) as usize;
        tops.rotate_left(start);
        tops.truncate(UBERBLOCK_TOPS);
    }
    tops
}

/// Writes two labels of these leaves and flushes; which leaves took both.
async fn write_labels(
    tree: &Tree,
    leaves: &[(&Leaf<'_>, &Template)],
    which: [usize; 2],
    txg: u64,
    writer: Writer<'_>,
) -> Result<Vec<bool>, EngineError> {
    let writes = leaves.iter().map(async |(leaf, region)| {
        let regions = which.map(|number| {
            let at = leaf.labels[number] + CONFIG_OFFSET;
            (at, sealed_at(region, at))
        });
        let durable = writer.keep(leaf, &regions).await;
        (durable > 0, durable == regions.len())
    });
    let written = join_all(writes).await;
    for (top, vdev) in tree.tops.iter().enumerate() {
        let its = || leaves.iter().zip(&written).filter(move |((leaf, _), _)| leaf.top == top);
        let needed = vdev.class() != Class::Log && its().next().is_some();
        // Those that lack something count where there are no others.
        let all_lack = its().all(|((leaf, _), _)| leaf.lacks);
        if needed && !its().any(|((leaf, _), (has_one, _))| *has_one && (all_lack || !leaf.lacks)) {
            return Err(EngineError::Device(format!("no device of {vdev} took the label of txg {txg}")));
        }
    }
    Ok(written.into_iter().map(|(_, has_both)| has_both).collect())
}

/// Writes an uberblock to all labels of some leaves and flushes; true if at least one copy is safe. Only then those get it
/// that lack a part of what it leads to.
async fn write_uberblock(
    leaves: &[&Leaf<'_>],
    uberblock: &Uberblock,
    multihost: Multihost,
    writer: Writer<'_>,
) -> bool {
    for lacks in [false, true] {
        let writes = leaves.iter().filter(|leaf| leaf.lacks == lacks).map(async |leaf| {
            let slot = leaf.ring.slot_for(uberblock.txg, multihost);
            let slots = leaf.labels.map(|start| sealed_uberblock(leaf.ring, slot, start, uberblock));
            let durable = writer.keep(leaf, &slots).await;
            if durable == slots.len() {
                leaf.has_durably(uberblock.txg);
            }
            durable > 0
        });
        let is_safe = join_all(writes).await.contains(&true);
        if !lacks && !is_safe {
            return false;
        }
    }
    true
}

/// The bytes of a slot of the label at `start`, and where they go.
fn sealed_uberblock(ring: Ring, slot: u64, start: u64, uberblock: &Uberblock) -> (u64, Bytes) {
    let mut bytes = uberblock.encode();
    bytes.resize(ring.slot_bytes() as usize, 0);
    let at = start + Region::Uberblock { ring, slot }.offset();
    (at, sealed(bytes, at))
}

fn settled(written: bool, uberblock: &Uberblock) -> Result<(), EngineError> {
    if written {
        return Ok(());
    }
    Err(EngineError::Device(format!("no device took the uberblock of txg {}", uberblock.txg)))
}

/// Whether an operation worked; a failure is counted on the leaf, and told.
fn done(reports: &Reports, leaf: &Leaf<'_>, result: io::Result<()>) -> bool {
    if let Err(error) = &result {
        tracing::warn!(device = %leaf.vdev, %error, "label not written");
        leaf.vdev.counters.count_write();
        reports.note(leaf.vdev.guid, IoError::Write, None, &format!("label not written: {error}"));
    }
    result.is_ok()
}

/// A region with its checksum, for device byte `at`.
fn sealed(mut region: Vec<u8>, at: u64) -> Bytes {
    embedded::seal(embedded::Kind::Label, &mut region, Checksum([at, 0, 0, 0]), codec::Order::Little)
        .expect("a region of a label is longer than its trailer");
    region.into()
}

/// The same of a region that is written at several places.
fn sealed_at(region: &Template, at: u64) -> Bytes {
    region.sealed(Checksum([at, 0, 0, 0])).into()
}

/// All four labels of a device from pad to ring, with nothing in them but `config`, and nothing behind them.
async fn write_whole(disk: Arc<dyn Disk>, config: NvList) -> Result<(), EngineError> {
    let region = config_region(&config)?;
    let ring = Bytes::from(vec![0; RING_BYTES as usize]);
    let pad = Bytes::from(vec![0; BOOT_ENV_OFFSET as usize]);
    let labels = geometry(&disk)?.labels();
    for start in labels {
        // What a former owner left there would still be taken for a file system by those who look for one.
        disk.write(start, pad.clone()).await.map_err(device_error)?;
        let boot = sealed(vec![0; BOOT_ENV_BYTES as usize], start + Region::BootEnv.offset());
        disk.write(start + Region::BootEnv.offset(), boot).await.map_err(device_error)?;
        let config = sealed_at(&region, start + CONFIG_OFFSET);
        disk.write(start + CONFIG_OFFSET, config).await.map_err(device_error)?;
        disk.write(start + RING_OFFSET, ring.clone()).await.map_err(device_error)?;
    }
    // Nor what an array left there: whoever finds its superblock puts it together again.
    let end = labels[LABELS - 1] + LABEL_BYTES;
    let behind = disk.info().size.saturating_sub(end).min(LABEL_BYTES) as usize;
    if behind > 0 {
        disk.write(end, Bytes::from(vec![0; behind])).await.map_err(device_error)?;
    }
    disk.flush().await.map_err(device_error)
}

fn geometry(disk: &Arc<dyn Disk>) -> Result<Geometry, EngineError> {
    let info = disk.info();
    Geometry::new(info.size).ok_or_else(|| EngineError::Device(format!("{} is too small", info.path)))
}

fn device_error(error: io::Error) -> EngineError {
    EngineError::Device(in_full(&error))
}
