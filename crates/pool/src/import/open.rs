//! Opening a candidate: uberblock, MOS, the pool's own configuration, and back to the devices with it.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use disk::Disk;
use ondisk::{
    label::PoolState,
    nvlist::NvList,
    uberblock::{ScratchState, Uberblock},
};

use super::{
    Candidate, Device, ImportError, UnsupportedFeature, device::ANSWER, learn, opening::open_by, scan::newest,
};
use crate::{
    BlockErrorKind, BoxFuture,
    cache::BlockCache,
    dmu::{ObjectSet, ReadError},
    features,
    io::PoolIo,
    pool::{Pool, PoolParts},
    space::metaslab_bytes,
    time::utc,
    vdev::{Aux, Kind, Reflow, State, Tree, Vdev},
    zap::Zap,
};

/// Largest configuration accepted, in bytes: 255 devices take about 200 KiB.
pub(super) const CONFIG_MAX: u64 = 16 << 20;
/// What the mappings of removed devices may take of memory, in bytes: 45 million runs.
pub const MAPPINGS_MAX: u64 = 1 << 30;
/// Cache for the blocks read on the way to the trusted configuration.
const TENTATIVE_CACHE: usize = 8 << 20;
/// Longest wait for a heartbeat, whatever a label claims about its interval.
const HEARTBEAT_WAIT_MAX: Duration = Duration::from_secs(120);
/// The feature whose pools may have gang headers of more than 512 bytes.
pub(super) const LARGE_GANG_HEADERS: &str = "com.klarasystems:dynamic_gang_header";
/// On-disk version with feature flags.
const VERSION_FEATURES: u64 = 5000;

/// Which state of the pool to open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rewind {
    /// The newest.
    #[default]
    Latest,
    /// The newest at or before this txg (`-T`).
    To(u64),
    /// The newest whose metadata can be read (`-F`).
    Recover,
}

/// How to open a pool.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Open it although another host may have it. (Not for writing, if that host is known to be alive.)
    pub force: bool,
    /// Nobody asked for it: what another host has, alive or not, is refused at once. Others are not to wait for that.
    pub unasked: bool,
    /// Open it although it was destroyed.
    pub destroyed: bool,
    /// Open it although log devices are missing. (Nothing is replayed; what only the log holds is not seen.)
    pub missing_log: bool,
    /// Give up what of the intent logs cannot be read, whether or not a log device is missing.
    pub unreadable_log: bool,
    /// Which state to open.
    pub rewind: Rewind,
    /// Leaves on which the pool was gone on with elsewhere, by guid, and the newest transaction group that both have: those
    /// that come with a newer one are taken for absent.
    pub apart: BTreeMap<u64, u64>,
    /// Id of this host, as in `/etc/hostid`; 0 if it has none.
    pub hostid: u64,
    /// Another id that this host had when it had the pool last: its labels may still say that one, and it is this host's
    /// all the same. That id may be another host's by now, so it spares no wait for a heartbeat.
    pub had: Option<u64>,
    /// Name of this host, which tells pools without an id apart; empty if it does not matter.
    pub hostname: String,
    /// Where blocks are cached.
    pub cache: Arc<BlockCache>,
    /// Bytes of memory that the mappings of removed devices may take.
    pub mappings_max: u64,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            force: false,
            unasked: false,
            destroyed: false,
            missing_log: false,
            unreadable_log: false,
            rewind: Rewind::Latest,
            apart: BTreeMap::new(),
            hostid: 0,
            had: None,
            hostname: String::new(),
            cache: Arc::new(BlockCache::new(64 << 20)),
            mappings_max: MAPPINGS_MAX,
        }
    }
}

/// Opens a pool, to look at it. With devices that can be written to it is opened for a writer, so that another host
/// whose heartbeat goes on keeps it even from `force`.
///
/// # Errors
/// See [`ImportError`].
pub fn open<'a>(
    candidate: &'a Candidate,
    options: &'a OpenOptions,
) -> BoxFuture<'a, Result<Arc<Pool>, ImportError>> {
    Box::pin(async move {
        let reduced;
        let candidate = match options.apart.is_empty() {
            true => candidate,
            false => {
                reduced = candidate.without(&options.apart).ok_or_else(|| all_apart(candidate))?;
                &reduced
            }
        };
        if candidate.state == PoolState::Destroyed && !options.destroyed {
            return Err(ImportError::Destroyed);
        }
        let chosen: Vec<&Uberblock> = match options.rewind {
            Rewind::Latest => candidate.uberblocks.iter().take(1).collect(),
            Rewind::To(txg) => candidate.uberblocks.iter().filter(|ub| ub.txg <= txg).take(1).collect(),
            Rewind::Recover => candidate.uberblocks.iter().collect(),
        };
        if let (Rewind::To(txg), true) = (options.rewind, chosen.is_empty()) {
            return Err(ImportError::NoUberblock(txg, candidate.uberblocks.last().map_or(0, |ub| ub.txg)));
        }
        // Who reads with force risks nothing; who writes does not take a pool from a host that is alive.
        let writing = candidate.devices.iter().any(|device| !device.disk.info().read_only);
        if !options.force || writing {
            check_hosts(candidate, options).await?;
        }
        let mut first_failure = None;
        let mut tried = None;
        for uberblock in chosen {
            // Heartbeats repeat a txg with the same root: trying it again finds the same damage.
            if tried == Some(uberblock.rootbp) {
                continue;
            }
            tried = Some(uberblock.rootbp);
            match open_at(candidate, uberblock, options).await {
                Ok(pool) => return Ok(pool),
                // Only damage can be healed by going back; devices do not return that way.
                Err(
                    error @ (ImportError::Metadata { .. }
                    | ImportError::Config(_)
                    | ImportError::GuidSum { .. }),
                ) => {
                    tracing::warn!(txg = uberblock.txg, %error, "uberblock not usable");
                    first_failure.get_or_insert(error);
                }
                Err(error) => return Err(explained(candidate, first_failure.unwrap_or(error))),
            }
        }
        Err(explained(candidate, first_failure.unwrap_or(ImportError::NoSuchPool)))
    })
}

/// With devices missing, that may be the reason for which metadata cannot be read, and damage only its symptom: of a device
/// that is still to be filled nobody knows what it lacks before the metadata is read.
fn explained(candidate: &Candidate, error: ImportError) -> ImportError {
    let (txg, block) = match &error {
        ImportError::Metadata { txg, source: ReadError::Block(block) } => (txg, block),
        ImportError::MissingDevices { missing } => {
            return ImportError::MissingDevices { missing: with_older(candidate, missing.clone()) };
        }
        ImportError::MissingLog { missing } => {
            return ImportError::MissingLog { missing: with_older(candidate, missing.clone()) };
        }
        _ => return error,
    };
    let is_unread = matches!(block.kind(), BlockErrorKind::Device | BlockErrorKind::Checksum);
    let uberblock = candidate.uberblocks.iter().find(|uberblock| uberblock.txg == *txg);
    let tree = uberblock.filter(|_| is_unread).and_then(|at| tentative_tree(candidate, at).ok());
    let mut missing = tree.as_ref().map(absent).unwrap_or_default();
    if missing.is_empty() {
        return error;
    }
    missing = with_older(candidate, missing);
    missing.push(format!("Without them the pool metadata of txg {txg} cannot be read: {block}"));
    missing.push(
        "If they are lost for good, recovery to an earlier txg may be possible: try -F, or -T TXG".to_owned(),
    );
    ImportError::MissingDevices { missing }
}

/// What is missing, and what is there of it that nobody took, as it is older than the pool.
fn with_older(candidate: &Candidate, mut missing: Vec<String>) -> Vec<String> {
    if !candidate.older.is_empty() {
        missing.extend(candidate.older.iter().cloned());
        missing.push(format!(
            "What is older is not taken by itself: 'zpool export {0}', and then 'zpool import -d DIR {0}', take it",
            candidate.name
        ));
    }
    missing
}

/// Nothing is there but devices that went their own way.
fn all_apart(candidate: &Candidate) -> ImportError {
    let line =
        |device: &Device| format!("\t{} is there, with a state of the pool that was given up", device.path);
    let remedy = format!(
        "'zpool export {0}' forgets that, and 'zpool import {0}' takes what is there",
        candidate.name
    );
    let lines = candidate.devices.iter().map(line);
    ImportError::MissingDevices { missing: lines.chain([remedy]).collect() }
}

/// Whether another host has the pool, as far as can be told.
async fn check_hosts(candidate: &Candidate, options: &OpenOptions) -> Result<(), ImportError> {
    let best = &candidate.uberblocks[0];
    let hostname = candidate.hostname.clone().unwrap_or_else(|| "<unknown>".to_owned());
    let is_same_id = candidate.hostid != 0 && candidate.hostid == options.hostid;
    let is_ours = candidate.is_of(options.hostid, &options.hostname) || options.had == Some(candidate.hostid);
    let is_anothers = candidate.state == PoolState::Active && !is_ours && !options.force;
    // A heartbeat first: whoever is told to use force must not be told so about a pool that is alive. A name is no
    // reason not to listen: many hosts may have it.
    let beats = best.mmp.is_some_and(|mmp| mmp.is_active()) && !is_same_id;
    if beats && !(options.unasked && is_anothers) && is_alive(candidate, best).await {
        return Err(ImportError::Active { hostname, hostid: candidate.hostid });
    }
    if is_anothers {
        let timestamp = best.timestamp;
        return Err(ImportError::InUse {
            hostname,
            hostid: candidate.hostid,
            when: utc(timestamp),
            timestamp,
        });
    }
    Ok(())
}

/// Whether some host goes on writing uberblocks: waits for as long as a living one would need to be heard,
/// and looks again. Facts: docs/format/labels.md §5.
async fn is_alive(candidate: &Candidate, best: &Uberblock) -> bool {
    let Some(mmp) = best.mmp else { return false };
    let interval = Duration::from_millis(mmp.interval_ms().unwrap_or(1000));
    let wait = match mmp.fail_intervals() {
        Some(fails) if fails > 0 => interval.saturating_mul(u32::from(fails) * 2),
        _ => (interval.saturating_add(Duration::from_nanos(mmp.delay_ns)))
            .saturating_mul(20)
            .max(Duration::from_secs(20)),
    };
    tokio::time::sleep(wait.min(HEARTBEAT_WAIT_MAX)).await;
    for device in &candidate.devices {
        if let Ok(Some(now)) = Device::read(Arc::clone(&device.disk)).await
            && now.best() > Some(best.rank())
        {
            return true;
        }
    }
    false
}

/// The tree the labels describe, as of an uberblock.
pub(super) fn tentative_tree(candidate: &Candidate, uberblock: &Uberblock) -> Result<Tree, ImportError> {
    let mut tops: BTreeMap<u64, (u64, &NvList)> = BTreeMap::new();
    let newest = newest(&candidate.devices, uberblock.txg);
    let holes = newest.and_then(|config| config.u64_array("hole_array")).unwrap_or_default();
    let count = newest.and_then(|config| config.u64("vdev_children"));
    for device in &candidate.devices {
        let Some(config) = device.config_at(uberblock.txg) else { continue };
        let Some(tree) = config.nvlist("vdev_tree") else { continue };
        let (id, txg) = (tree.u64("id").unwrap_or(0), config.u64("txg").unwrap_or(0));
        // It was removed, and its labels were not cleared any more.
        if holes.contains(&id) || count.is_some_and(|count| id >= count) {
            continue;
        }
        let slot = tops.entry(id).or_insert((txg, tree));
        if txg > slot.0 {
            *slot = (txg, tree);
        }
    }
    let lists: Vec<&NvList> = tops.values().map(|(_, tree)| *tree).collect();
    let mut tree = Tree::from_tops(candidate.guid, &lists, &disks(candidate), reflow(uberblock))?;
    if newest.is_some() {
        tree.fill(count.unwrap_or(0), holes);
    }
    settle_leaves(&mut tree, candidate);
    Ok(tree)
}

/// The devices of a candidate by guid of the leaf.
fn disks(candidate: &Candidate) -> BTreeMap<u64, Arc<dyn Disk>> {
    let devices = candidate.devices.iter().chain(&candidate.auxiliaries);
    devices.filter_map(|device| Some((device.guids()?.0, Arc::clone(&device.disk)))).collect()
}

/// Opens the pool's spares at rest and its cache devices as its members were: so that they can stand in and be written to,
/// and so that nobody else takes them. One that cannot be had, as another pool has it in use, counts as away: whoever watches
/// the open pool takes it when it is free.
async fn take_auxiliaries(
    candidate: &Candidate,
    listed: impl Iterator<Item = &NvList>,
    tree: &Tree,
    disks: &mut BTreeMap<u64, Arc<dyn Disk>>,
) {
    let Some(opener) = &candidate.again.0 else { return };
    let guids: Vec<u64> = listed.filter_map(|device| device.u64("guid")).collect();
    let is_at_rest = |guid: u64| guids.contains(&guid) && tree.leaves().iter().all(|leaf| leaf.guid != guid);
    let found = candidate.auxiliaries.iter().filter_map(|device| Some((device.guids()?.0, device)));
    let found: Vec<(u64, &Device)> = found.filter(|(guid, _)| is_at_rest(*guid)).collect();
    for (guid, _) in &found {
        // What the search opened is only to be read from.
        disks.remove(guid);
    }
    for (guid, device) in found {
        // A disk with several paths is busy by the others as soon as it was had by one.
        if disks.contains_key(&guid) {
            continue;
        }
        let again = match open_by(opener, Path::new(&device.path), ANSWER).await {
            Ok(disk) => Device::read(disk).await,
            Err(error) => Err(error),
        };
        match again {
            Ok(Some(again)) if again.guids() == device.guids() => drop(disks.insert(guid, again.disk)),
            Ok(_) => tracing::warn!(path = device.path, "no longer a spare or cache device"),
            Err(error) => {
                tracing::warn!(path = device.path, %error, "a spare or cache device that cannot be used")
            }
        }
    }
}

fn reflow(uberblock: &Uberblock) -> Option<Reflow> {
    let info = uberblock.raidz_reflow;
    Some(Reflow { offset: info.offset(), scratch: info.scratch() == ScratchState::Valid })
}

/// Opens the state one uberblock describes.
async fn open_at(
    candidate: &Candidate,
    uberblock: &Uberblock,
    options: &OpenOptions,
) -> Result<Arc<Pool>, ImportError> {
    let damaged = |source: ReadError| ImportError::Metadata { txg: uberblock.txg, source };
    if uberblock.version != VERSION_FEATURES {
        return Err(ImportError::Version(uberblock.version));
    }
    let label = newest(&candidate.devices, uberblock.txg).ok_or(ImportError::NoSuchPool)?;
    let mut unknown = unreadable(label);
    let tree = tentative_tree(candidate, uberblock);
    // Before the pool itself says so: what says it may lie behind such a header.
    let large_gang_headers =
        label.nvlist("features_for_read").is_some_and(|features| features.contains(LARGE_GANG_HEADERS));
    let reader = |tree, cache| {
        let io = Arc::new(PoolIo::new(tree, cache));
        io.set_large_gang_headers(large_gang_headers);
        io
    };
    let look = |tree| reader(tree, Arc::new(BlockCache::new(TENTATIVE_CACHE)));
    if !unknown.is_empty() {
        if let Ok(tree) = tree {
            describe(&look(tree), uberblock, &mut unknown).await;
        }
        return Err(ImportError::Unsupported { features: unknown });
    }
    let tentative = look(tree?);
    let config = match read_config(&tentative, uberblock).await {
        Ok(config) => config,
        Err(source) => {
            let missing = missing(&tentative.tree(), false);
            // With devices missing, that is the reason, and damage only its symptom.
            return Err(if missing.is_empty() {
                damaged(source)
            } else {
                ImportError::MissingDevices { missing }
            });
        }
    };
    let tree = tree_of(candidate, uberblock, &config, options)?;
    let io = reader(tree, Arc::clone(&options.cache));
    learn::before_mos(&io, uberblock, options.mappings_max).await?;
    let mos = ObjectSet::open(io.clone(), 0, uberblock.rootbp).await.map_err(damaged)?;
    let directory = Zap::open_in(&mos, 1).await.map_err(damaged)?;
    let learnt = learn::from_mos(&io, &mos, &directory).await.map_err(damaged)?;
    let unsupported: Vec<UnsupportedFeature> = learnt
        .features
        .iter()
        .filter(|feature| feature.for_read && feature.count > 0 && !features::is_readable(&feature.guid))
        .map(|feature| UnsupportedFeature {
            guid: feature.guid.clone(),
            description: feature.description.clone(),
        })
        .collect();
    if !unsupported.is_empty() {
        return Err(ImportError::Unsupported { features: unsupported });
    }
    let (spares, l2cache) = at_rest(candidate, &learnt, &io.tree(), options).await?;
    io.start_counting();
    Ok(Pool::assemble(PoolParts {
        name: candidate.name.clone(),
        guid: candidate.guid,
        state: candidate.state,
        uberblock: *uberblock,
        newest: candidate.uberblocks[0],
        config,
        io,
        mos,
        directory,
        features: learnt.features,
        scan: learnt.scan,
        error_scrub: learnt.error_scrub,
        removal: learnt.removal,
        spares,
        l2cache,
        missing_log: options.missing_log,
        unreadable_log: options.unreadable_log,
    }))
}

/// Features that nobody here can read, as far as a label tells.
fn unreadable(label: &NvList) -> Vec<UnsupportedFeature> {
    let listed = label.nvlist("features_for_read").into_iter().flat_map(NvList::iter);
    let unknown = listed.filter(|(guid, _)| !features::is_readable(guid));
    let described = unknown.map(|(guid, _)| UnsupportedFeature {
        guid: guid.to_owned(),
        description: features::find(guid).map(|feature| feature.description.to_owned()),
    });
    described.collect()
}

/// The tree that the pool's own configuration describes, if enough of it is there.
fn tree_of(
    candidate: &Candidate,
    uberblock: &Uberblock,
    config: &NvList,
    options: &OpenOptions,
) -> Result<Tree, ImportError> {
    let root = config.nvlist("vdev_tree").ok_or_else(|| no_tree(uberblock))?;
    let tops: Vec<&NvList> = root.nvlist_array("children").unwrap_or_default().iter().collect();
    let mut tree = Tree::from_tops(candidate.guid, &tops, &disks(candidate), reflow(uberblock))?;
    if tree.guid_sum() != uberblock.guid_sum {
        return Err(ImportError::GuidSum { found: tree.guid_sum(), expected: uberblock.guid_sum });
    }
    settle_leaves(&mut tree, candidate);
    let ends: BTreeMap<u64, bool> =
        candidate.devices.iter().filter_map(|device| Some((device.guids()?.0, device.has_ends()))).collect();
    for vdev in tree.leaves() {
        let Some(leaf) = &vdev.leaf else { continue };
        leaf.condition.may_have(newest_of(candidate, vdev.guid, options));
        if let Some(are_own) = ends.get(&vdev.guid) {
            leaf.condition.found_ends(*are_own);
        }
    }
    let missing_data = missing(&tree, false);
    if !missing_data.is_empty() {
        return Err(ImportError::MissingDevices { missing: missing_data });
    }
    let missing_log = missing(&tree, true);
    if !missing_log.is_empty() && !options.missing_log {
        return Err(ImportError::MissingLog { missing: missing_log });
    }
    Ok(tree)
}

/// The last transaction group that a device may have; of one that went its own way, the last that both have.
fn newest_of(candidate: &Candidate, guid: u64, options: &OpenOptions) -> u64 {
    options.apart.get(&guid).copied().unwrap_or(candidate.uberblocks[0].txg)
}

/// Spares and cache devices, as they are listed.
async fn at_rest(
    candidate: &Candidate,
    learnt: &learn::Learnt,
    tree: &Tree,
    options: &OpenOptions,
) -> Result<(Vec<Vdev>, Vec<Vdev>), ImportError> {
    let mut all_disks = disks(candidate);
    let listed = learnt.spares.iter().chain(&learnt.l2cache);
    take_auxiliaries(candidate, listed, tree, &mut all_disks).await;
    let auxiliary = |list: &[NvList]| -> Result<Vec<Vdev>, ImportError> {
        list.iter().map(|nv| Vdev::auxiliary(nv, &all_disks).map_err(ImportError::Config)).collect()
    };
    let mut spares = auxiliary(&learnt.spares)?;
    for spare in &mut spares {
        let in_use = tree.leaves().into_iter().find(|leaf| leaf.guid == spare.guid);
        match (&mut spare.leaf, in_use.and_then(|leaf| leaf.leaf.as_ref())) {
            // One that stands in for another is one device, wherever it is listed.
            (Some(leaf), Some(in_use)) => leaf.condition = Arc::clone(&in_use.condition),
            // If it was away when it went back to rest, it comes with what it was given while it stood in.
            (Some(leaf), None) => leaf.condition.may_have(newest_of(candidate, spare.guid, options)),
            (None, _) => {}
        }
    }
    Ok((spares, auxiliary(&learnt.l2cache)?))
}

/// What the pool itself says about features nobody here has heard of, if that much can be read without
/// them: often it can, and checksums keep it honest.
async fn describe(io: &Arc<PoolIo>, uberblock: &Uberblock, unknown: &mut [UnsupportedFeature]) {
    let Ok(mos) = ObjectSet::open(io.clone(), 0, uberblock.rootbp).await else { return };
    let Ok(directory) = Zap::open_in(&mos, 1).await else { return };
    let Ok(Some(object)) = directory.get_u64("feature_descriptions").await else { return };
    let Ok(descriptions) = Zap::open_in(&mos, object).await else { return };
    for feature in unknown.iter_mut().filter(|feature| feature.description.is_none()) {
        if let Ok(Some(value)) = descriptions.get(feature.guid.as_str()).await {
            feature.description = value.as_text().filter(|text| !text.is_empty()).map(str::to_owned);
        }
    }
}

fn no_tree(uberblock: &Uberblock) -> ImportError {
    let at = crate::io::Bookmark::default();
    ImportError::Metadata {
        txg: uberblock.txg,
        source: ReadError::Inconsistent { at, what: "the configuration has no vdev_tree" },
    }
}

/// The pool's own configuration.
async fn read_config(io: &Arc<PoolIo>, uberblock: &Uberblock) -> Result<NvList, ReadError> {
    let mos = ObjectSet::open(io.clone(), 0, uberblock.rootbp).await?;
    let directory = Zap::open_in(&mos, 1).await?;
    let object = learn::required(&directory, "config").await?;
    learn::packed_nvlist(&mos, object).await
}

/// Names of top-level devices that cannot be read: those of the log, or the others. A log that an administrator took
/// offline or that was excluded for its faults is not missing: nothing lay on it then.
pub(super) fn missing(tree: &Tree, log: bool) -> Vec<String> {
    tree.tops
        .iter()
        .filter(|top| !(top.is_log() && (top.state().0 == State::Offline || top.is_excluded())))
        .filter(|top| !top.is_readable() && top.is_log() == log && !matches!(top.kind, Kind::Draid { .. }))
        .flat_map(|top| {
            let mut leaves = Vec::new();
            top.children.iter().for_each(|child| child.collect_leaves(&mut leaves));
            let absent = leaves.into_iter().filter(|leaf| !leaf.is_readable()).map(|leaf| line(leaf, "  "));
            std::iter::once(line(top, "")).chain(absent).collect::<Vec<_>>()
        })
        .collect()
}

/// Names of devices that are not there and would be read from if they were, whether or not the others make up for them. Those
/// of logs do not count.
fn absent(tree: &Tree) -> Vec<String> {
    let is_absent = |leaf: &&Vdev| matches!(leaf.state().0, State::CantOpen | State::Removed);
    let leaves = tree.tops.iter().filter(|top| !top.is_log()).flat_map(Vdev::leaves);
    leaves.filter(is_absent).map(|leaf| line(leaf, "")).collect()
}

/// What is said of a device that is missing.
fn line(vdev: &Vdev, indent: &str) -> String {
    let (state, aux) = vdev.state();
    let note = aux.note().unwrap_or_default();
    let was = vdev
        .path
        .as_ref()
        .filter(|_| vdev.leaf.is_some())
        .map(|path| format!(" was {path}"))
        .unwrap_or_default();
    format!("\t{indent}{} {} {note}{was}", vdev.display_name(), state.word(aux)).trim_end().to_owned()
}

/// Devices that have shrunk cannot hold what they should: not used at all, as OpenZFS does. Devices
/// that were found are named by where they were found, wherever that was before.
fn settle_leaves(tree: &mut Tree, candidate: &Candidate) {
    let found: BTreeMap<u64, (u64, &str)> = candidate
        .devices
        .iter()
        .filter_map(|device| Some((device.guids()?.0, (device.allocatable, device.path.as_str()))))
        .collect();
    for top in &mut tree.tops {
        // Space behind the last metaslab is never used, so a device may lack it.
        let need = top.top.as_ref().map_or(0, |top| match top.metaslab_shift {
            0 => top.asize,
            _ => metaslab_bytes(top),
        });
        settle(top, need, &found);
    }
}

/// `need` is what a vdev must have room for. RAIDZ may be below a mirror, as in pools of OpenZFS's stress test, so each level has
/// its own.
fn settle(vdev: &mut Vdev, need: u64, found: &BTreeMap<u64, (u64, &str)>) {
    if let (Some(leaf), Some((size, path))) = (&vdev.leaf, found.get(&vdev.guid)) {
        vdev.path = Some((*path).to_owned());
        if *size < need {
            leaf.condition.update(|now| (now.disk, now.refused) = (None, Aux::TooSmall));
        }
    }
    let need = match &vdev.kind {
        Kind::Raidz(geometry) => need.div_ceil(geometry.children as u64),
        Kind::Mirror | Kind::Replacing | Kind::Spare => need,
        _ => 0,
    };
    vdev.children.iter_mut().for_each(|child| settle(child, need, found));
}
