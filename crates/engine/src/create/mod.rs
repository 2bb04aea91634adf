//! Pools from nothing, and devices that come to pools there are, or leave them: what goes on the labels, which devices
//! may be used.
//!
//! ```text
//!   words ─▶ VdevSpec ─▶ Plan (sizes, ashift, capacity; `-n` ends here) ─▶ create or add ─▶ a Syncer
//!                  device::prepare ─┘ (locked, free, made if need be)
//! ```
//!
//! [`create`] writes labels that say "not finished" (txg 0) and builds the MOS in memory; the pool exists once the
//! first transaction group is durable. Until then a power cut leaves devices without a pool.
//!
//! Facts: docs/format/labels.md §5, zvol.md §3, mos.md §1–§5, spacemap.md §1, §8.

pub mod config;
pub mod device;
mod features;
mod plan;
mod remove;
mod spec;
#[cfg(test)]
pub(crate) mod testing;

use std::sync::Arc;

use disk::Disk;
use ondisk::{
    Order,
    blkptr::BlkPtr,
    dnode::ObjectType,
    label::{Multihost, PoolState},
    nvlist::NvList,
    objset::ObjsetType,
    uberblock::{RaidzReflow, Uberblock, VERSION_FEATURES},
    zap::Value,
};
use pool::{
    PoolIo,
    cache::BlockCache,
    vdev::{Class, Disks, Tree, Vdev},
};
use rand::{Rng, RngCore, SeedableRng, rngs::StdRng};

pub(crate) use self::remove::listed;
pub use self::{
    config::Host,
    features::{COMPATIBILITY_DIRECTORIES, features, permitted},
    plan::{
        ASHIFT, ASHIFT_DEFAULT, Ashift, Capacity, DeviceFacts, Plan, PlannedLeaf, PlannedTop, VOLUME_BLOCKS,
    },
    remove::Removal,
    spec::{Shape, SpecError, TopSpec, Use, VdevSpec},
};
use crate::{
    BoxFuture, EngineError,
    alloc::{Allocator, NewTop},
    devices::Afterwards,
    dmu::{MutSet, NewObject},
    dsl::{self, OpError, Properties, Stored},
    events::Events,
    missed::Outages,
    mos::{DIRECTORY, features as counts, history, packed, salt, zap},
    open::multihost,
    policy::Traits,
    suspend::Suspension,
    sync::{Places, Syncer},
    write::{BlockWriter, labels, ours::Ours},
    zil::claim::Crashed,
};

/// The first transaction group of a pool, as in OpenZFS.
pub const FIRST_TXG: u64 = 4;

pub(crate) const VDEV_ZAP_MAP: &str = "com.delphix:vdev_zap_map";
/// In the configuration: its devices have ZAPs, and the map names them.
const HAS_VDEV_ZAPS: &str = "com.delphix:has_per_vdev_zaps";
const ALLOCATION_CLASSES: &str = "org.zfsonlinux:allocation_classes";
/// What is said where it is missing.
const NO_CLASSES: &str = "feature 'allocation_classes' is not enabled in this pool";
const NO_ZAPS: &str = "the pool's devices have no ZAPs, which say what a special or dedup device is for: export it, and \
                       import it once with OpenZFS 0.7 or later, which makes them";

/// What a pool is created with.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// Its name.
    pub name: String,
    /// Guids of the features to enable ([`features`]), dependencies first.
    pub features: Vec<&'static str>,
    /// Pool properties (`-o`). What `ashift` the devices have the plan says.
    pub pool_properties: Properties,
    /// Properties of the root dataset (`-O`).
    pub root_properties: Properties,
    /// Id of this host.
    pub hostid: u64,
    /// Name of this host.
    pub hostname: String,
    /// Wall clock, seconds since 1970.
    pub now: u64,
    /// Decides guids and salts: two pools of the same seed have the same guids.
    pub seed: u64,
    /// Where its blocks are cached.
    pub cache: Arc<BlockCache>,
    /// Threads for compression and checksums; 0 does all in the syncing task.
    pub workers: usize,
    /// First record of its history.
    pub history: Option<NvList>,
}

/// New top-level devices with their names and places: between a plan and a configuration.
struct Numbered {
    lists: Vec<NvList>,
    disks: Disks,
    caches: Vec<(NvList, u64)>,
    spares: Vec<(NvList, u64)>,
}

/// Creates a pool on `disks`, which are those of [`Plan::paths`], in that order. The labels are written; the pool
/// exists once the first transaction group, which the returned syncer is in, has been synced.
///
/// # Errors
/// A device fails, or properties or features contradict each other. What was written so far is no pool.
pub fn create<'a>(
    plan: &'a Plan,
    disks: &'a [Arc<dyn Disk>],
    options: CreateOptions,
) -> BoxFuture<'a, Result<Syncer, OpError>> {
    Box::pin(async move {
        if !plan.tops.iter().any(|top| top.purpose == Use::Data) {
            return Err(OpError::Refused("at least one toplevel vdev must be specified".to_owned()));
        }
        let mut random = StdRng::seed_from_u64(options.seed);
        let guid = new_guid(&mut random);
        let host = Host { id: options.hostid, name: options.hostname.clone() };
        let mut config = config::new_pool(&options.name, guid, &host, FIRST_TXG);
        if let Some(Stored::Text(comment)) = options.pool_properties.get("comment") {
            config.set("comment", comment.as_str());
        }
        if let Some(Stored::Text(compatibility)) = options.pool_properties.get("compatibility") {
            config.set("compatibility", compatibility.as_str());
        }
        let numbered = number(plan, disks, &mut random, 0, FIRST_TXG)?;
        let lists: Vec<&NvList> = numbered.lists.iter().collect();
        let tree = Tree::from_tops(guid, &lists, &numbered.disks, None).map_err(bad_config)?;
        set_classes(&tree, plan, 0);
        numbered.lists.iter().for_each(|list| config::push_top(&mut config, list.clone()));

        let traits = traits_of(&options.features);
        let tops: Vec<NewTop> = plan.tops.iter().zip(0..).map(|(top, id)| new_top(top, id)).collect();
        let io = Arc::new(PoolIo::new(tree, Arc::clone(&options.cache)));
        let mut salt = [0; 32];
        random.fill_bytes(&mut salt);
        io.set_salt(salt);
        io.start_counting();
        let multihost = match options.pool_properties.get("multihost") {
            Some(Stored::Number(1)) => Multihost::On,
            _ => Multihost::Off,
        };
        let uberblock = Uberblock {
            order: Order::Little,
            version: VERSION_FEATURES,
            txg: 0,
            guid_sum: io.tree().guid_sum(),
            timestamp: options.now,
            rootbp: BlkPtr::EMPTY,
            software_version: VERSION_FEATURES,
            mmp: Some(multihost::fields(multihost)),
            checkpoint_txg: 0,
            raidz_reflow: RaidzReflow::default(),
        };
        let out =
            BlockWriter::new(Arc::clone(&io), Allocator::create(traits, &tops), traits, options.workers);
        for top in 0..io.tree().tops.len() {
            labels::initialize(&io.tree(), &config, top, &out.suspension()).await?;
        }
        write_auxiliary_labels(&io, &numbered, &out.suspension()).await?;

        let mos = MutSet::create(out.source(), 0, ObjsetType::Meta);
        let mut cx = Syncer {
            name: options.name.clone(),
            guid,
            txg: FIRST_TXG,
            now: options.now,
            random,
            out,
            mos,
            places: Places::default(),
            config,
            config_dirty: true,
            other_devices: false,
            uberblock,
            io,
            view: None,
            multihost: multihost == Multihost::On,
            outages: Outages::default(),
            changes: Vec::new(),
            dirty_max: u64::MAX,
            shrinking: std::collections::BTreeMap::new(),
            logs: Arc::default(),
            crashed: Crashed::default(),
            events: Events::new(|| std::time::Duration::ZERO),
            afterwards: Afterwards::default(),
            scans: Arc::default(),
            sizes: std::collections::BTreeMap::new(),
            failing_logs: std::collections::BTreeMap::new(),
            fill: crate::fill::Fill::default(),
            stuck: dsl::Stuck::default(),
        };
        cx.out.begin(FIRST_TXG);
        fill(&mut cx, plan, &options, &numbered, salt).await?;
        Ok(cx)
    })
}

/// Everything in the MOS of a new pool.
async fn fill(
    cx: &mut Syncer,
    plan: &Plan,
    options: &CreateOptions,
    numbered: &Numbered,
    salt: [u8; 32],
) -> Result<(), OpError> {
    let mos = &mut cx.mos;
    mos.claim(DIRECTORY, NewObject::of(ObjectType::OBJECT_DIRECTORY)).await?;
    zap::init(mos, DIRECTORY, 0).await?;
    cx.out.alloc.begin(FIRST_TXG, None, mos).await?;
    counts::create(mos).await?;
    for guid in &options.features {
        counts::enable(mos, guid, FIRST_TXG).await?;
    }
    let traits = counts::traits(mos).await?;
    if traits != cx.out.traits() {
        let detail = format!("the features {:?} are not complete", options.features);
        return Err(EngineError::Encode { what: "the features of a new pool", detail }.into());
    }
    salt::set(mos, salt).await?;
    zap::set_u64(mos, DIRECTORY, "deflate", 1).await?;
    zap::set_u64(mos, DIRECTORY, "creation_version", VERSION_FEATURES).await?;
    let object = packed::create(mos).await?;
    zap::set_u64(mos, DIRECTORY, "config", object).await?;
    cx.places.config = object;
    let map = zap::create(mos, ObjectType::ZAP_METADATA, 0).await?;
    zap::set_u64(mos, DIRECTORY, VDEV_ZAP_MAP, map).await?;
    add_zaps(cx, plan, 0, map).await?;
    let label_features = counts::in_label(&mut cx.mos).await?;
    let features = label_features.iter().map(|guid| ((*guid).to_owned(), ondisk::nvlist::Value::Boolean));
    cx.config.set("features_for_read", features.collect::<NvList>());
    add_auxiliaries(cx, numbered).await?;
    history::create(&mut cx.mos, plan.deflated()).await?;
    dsl::init(cx, &options.root_properties).await?;
    if !options.pool_properties.is_empty() {
        dsl::set_pool(cx, &options.pool_properties).await?;
    }
    if let Some(record) = &options.history {
        history::append(&mut cx.mos, record).await?;
    }
    Ok(())
}

/// `zpool add`: takes the devices of `plan` into the pool, in this transaction group. `disks` as in [`create`].
///
/// # Errors
/// A new device fails, or the pool cannot have such devices. Nothing has changed then.
pub fn add<'a>(
    cx: &'a mut Syncer,
    plan: &'a Plan,
    disks: &'a [Arc<dyn Disk>],
) -> BoxFuture<'a, Result<(), OpError>> {
    Box::pin(async move {
        let classes = special(plan);
        if classes > 0 && counts::count(&mut cx.mos, ALLOCATION_CLASSES).await?.is_none() {
            return Err(OpError::Refused(NO_CLASSES.to_owned()));
        }
        let map = vdev_zap_map(cx).await?;
        // Whoever opens the pool next would take them for ordinary ones, for good.
        if classes > 0 && map.is_none() {
            return Err(OpError::Refused(NO_ZAPS.to_owned()));
        }
        let first = cx.io.tree().tops.len();
        let numbered = number(plan, disks, &mut cx.random, first as u64, cx.txg)?;
        let mut tree = Tree::clone(&cx.io.tree());
        let mut config = cx.config.clone();
        for list in &numbered.lists {
            tree = tree.with_top(list, &numbered.disks).map_err(bad_config)?;
            config::push_top(&mut config, list.clone());
        }
        set_classes(&tree, plan, first);
        // That a new device fails is no misfortune of the pool's.
        let fails =
            |error: EngineError| OpError::Refused(format!("a new device cannot be labelled: {error}"));
        for top in first..tree.tops.len() {
            labels::initialize(&tree, &config, top, &cx.out.suspension()).await.map_err(fails)?;
        }
        write_auxiliary_labels(&cx.io, &numbered, &cx.out.suspension()).await.map_err(fails)?;

        // From here on only a failing pool can stop it.
        cx.devices_changed(tree);
        for (top, id) in plan.tops.iter().zip(first as u64..) {
            cx.out.alloc.add(&new_top(top, id));
        }
        (cx.config, cx.config_dirty) = (config, true);
        if let Some(map) = map {
            add_zaps(cx, plan, first, map).await?;
        }
        add_auxiliaries(cx, &numbered).await
    })
}

/// Gives all new devices guids, and puts the disks to them. `first` is the id of the first top-level device.
fn number(
    plan: &Plan,
    disks: &[Arc<dyn Disk>],
    random: &mut StdRng,
    first: u64,
    txg: u64,
) -> Result<Numbered, OpError> {
    if disks.len() != plan.leaves().count() {
        let detail = format!("{} disks for {} devices", disks.len(), plan.leaves().count());
        return Err(EngineError::Encode { what: "a new pool", detail }.into());
    }
    let mut rest = disks.iter();
    let mut named =
        Numbered { lists: Vec::new(), disks: Disks::new(), caches: Vec::new(), spares: Vec::new() };
    for (top, id) in plan.tops.iter().zip(first..) {
        let own = new_guid(random);
        let leaves: Vec<u64> = match top.shape {
            Shape::Single => vec![own],
            Shape::Mirror | Shape::Raidz(_) => top.leaves.iter().map(|_| new_guid(random)).collect(),
        };
        named.disks.extend(leaves.iter().zip(&mut rest).map(|(guid, disk)| (*guid, Arc::clone(disk))));
        let mut guids = vec![own];
        guids.extend(leaves.iter().filter(|guid| **guid != own));
        let zaps = config::Zaps { top: 0, leaves: vec![0; top.leaves.len()] };
        named.lists.push(config::top(top, id, &guids, &zaps, txg));
    }
    for (leaves, list) in [(&plan.caches, &mut named.caches), (&plan.spares, &mut named.spares)] {
        for (leaf, disk) in leaves.iter().zip(&mut rest) {
            let guid = new_guid(random);
            named.disks.insert(guid, Arc::clone(disk));
            list.push((config::auxiliary(leaf, guid, txg), guid));
        }
    }
    // A cache device's layout depends on it, and whoever imports the pool has to come to the same.
    for ((list, _), leaf) in named.caches.iter_mut().zip(&plan.caches) {
        list.set("ashift", u64::from(leaf.ashift()));
    }
    Ok(named)
}

fn new_guid(random: &mut StdRng) -> u64 {
    random.random_range(1..u64::MAX)
}

fn new_top(top: &PlannedTop, id: u64) -> NewTop {
    NewTop {
        id,
        ashift: top.ashift,
        asize: top.asize,
        metaslab_shift: top.metaslab_shift,
        raidz: top.raidz(),
        class: class(top.purpose),
    }
}

fn class(purpose: Use) -> Class {
    match purpose {
        Use::Data => Class::Normal,
        Use::Log => Class::Log,
        Use::Special => Class::Special,
        Use::Dedup => Class::Dedup,
    }
}

/// Top-level devices that count in the feature `allocation_classes`.
fn special(plan: &Plan) -> i64 {
    plan.tops.iter().filter(|top| matches!(top.purpose, Use::Special | Use::Dedup)).count() as i64
}

/// What the tree would learn from the devices' ZAPs.
fn set_classes(tree: &Tree, plan: &Plan, first: usize) {
    for (vdev, planned) in tree.tops.iter().skip(first).zip(&plan.tops) {
        if let (Some(top), Use::Special | Use::Dedup) = (&vdev.top, planned.purpose) {
            let _already_known = top.bias.set(class(planned.purpose));
        }
    }
}

/// The map of ZAPs of devices, if the pool's devices have them. One that the configuration does not vouch for is of before an
/// old program had the pool: whoever makes ZAPs of devices anew frees all that it names.
pub(crate) async fn vdev_zap_map(cx: &mut Syncer) -> Result<Option<u64>, EngineError> {
    if cx.config.contains(HAS_VDEV_ZAPS) {
        zap::get_u64(&mut cx.mos, DIRECTORY, VDEV_ZAP_MAP).await
    } else {
        Ok(None)
    }
}

/// A ZAP for each new top-level device and each new leaf, in the map and in the configuration.
async fn add_zaps(cx: &mut Syncer, plan: &Plan, first: usize, map: u64) -> Result<(), OpError> {
    for (top, id) in plan.tops.iter().zip(first..) {
        let mut objects = Vec::with_capacity(top.leaves.len() + 1);
        for _ in 0..=top.leaves.len() {
            let object = zap::create(&mut cx.mos, ObjectType::ZAP_METADATA, 0).await?;
            zap::set_int(&mut cx.mos, map, object).await?;
            objects.push(object);
        }
        let own = objects[0];
        if matches!(top.purpose, Use::Special | Use::Dedup) {
            let class = Value::from_text(&top.purpose.to_string());
            zap::set(&mut cx.mos, own, "org.zfsonlinux:allocation_bias".into(), class).await?;
        }
        let Some(list) = config::tops_mut(&mut cx.config).get_mut(id) else { continue };
        list.set("com.delphix:vdev_zap_top", own);
        let mut leaves = objects[1..].iter();
        config::walk_mut(list, &mut |list| {
            if list.contains("path")
                && let Some(object) = leaves.next()
            {
                list.set("com.delphix:vdev_zap_leaf", *object);
            }
        });
    }
    match special(plan) {
        0 => Ok(()),
        count => Ok(counts::add(&mut cx.mos, ALLOCATION_CLASSES, count).await.map(drop)?),
    }
}

/// The labels of new spares and cache devices. Each write of them ends in time, as those of other devices do: the pool waits.
async fn write_auxiliary_labels(
    io: &PoolIo,
    numbered: &Numbered,
    suspension: &Arc<Suspension>,
) -> Result<(), EngineError> {
    let mut labelled = Vec::new();
    for (list, state) in [(&numbered.caches, PoolState::Cache), (&numbered.spares, PoolState::Spare)] {
        for (list, guid) in list {
            let bad = |error: pool::vdev::ConfigError| EngineError::Device(error.to_string());
            let vdev = Vdev::auxiliary(list, &numbered.disks).map_err(bad)?;
            let Some(timed) = vdev.leaf.as_ref().and_then(|leaf| leaf.timed()) else { continue };
            labels::initialize_auxiliary(&Ours::over(timed, suspension), *guid, state).await?;
            labelled.extend(numbered.disks.get(guid).map(|disk| (*guid, disk)));
        }
    }
    labelled.into_iter().for_each(|(guid, disk)| io.add_auxiliary(guid, Arc::clone(disk)));
    Ok(())
}

/// New spares and cache devices into their lists in the MOS.
async fn add_auxiliaries(cx: &mut Syncer, numbered: &Numbered) -> Result<(), OpError> {
    for (name, new) in [("l2cache", &numbered.caches), ("spares", &numbered.spares)] {
        if new.is_empty() {
            continue;
        }
        let object = match zap::get_u64(&mut cx.mos, DIRECTORY, name).await?.filter(|object| *object != 0) {
            Some(object) => object,
            None => {
                let object = packed::create(&mut cx.mos).await?;
                packed::write(&mut cx.mos, object, &NvList::new()).await?;
                zap::set_u64(&mut cx.mos, DIRECTORY, name, object).await?;
                object
            }
        };
        let mut list = packed::read(&mut cx.mos, object).await?;
        let mut all = list.nvlist_array(name).unwrap_or_default().to_vec();
        all.extend(new.iter().map(|(list, _)| list.clone()));
        list.set(name, all);
        packed::write(&mut cx.mos, object, &list).await?;
    }
    Ok(())
}

/// What features allow before there is a MOS to ask.
fn traits_of(features: &[&str]) -> Traits {
    let has = |guid: &str| features.contains(&guid);
    Traits {
        lz4: has("org.illumos:lz4_compress"),
        embedded_data: has("com.delphix:embedded_data"),
        hole_birth: has("com.delphix:hole_birth"),
        spacemap_v2: has("com.delphix:spacemap_v2"),
        spacemap_histogram: has("com.delphix:spacemap_histogram"),
        log_spacemap: false,
        empty_bpobj: has("com.delphix:empty_bpobj"),
        extensible_dataset: has("com.delphix:extensible_dataset"),
        async_destroy: has("com.delphix:async_destroy"),
        livelist: false,
    }
}

fn bad_config(error: pool::vdev::ConfigError) -> OpError {
    OpError::Refused(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_pool_of_log_devices_alone_is_refused() {
        let Err(OpError::Refused(why)) = testing::try_in_memory(&["log", "a"]).await else { panic!() };
        assert_eq!(why, "at least one toplevel vdev must be specified");
    }
}
