//! Opening a pool to write to it: what is checked, what is refused, where the first transaction group starts.
//!
//! Everything that is not sure to be kept up is refused: a pool can always be opened read-only instead. Nothing is
//! written here; the first transaction group is greater than any that a label of the pool tells of, so no (address,
//! birth) is ever used twice, and its configuration says who has the pool now.
//!
//! Facts: docs/format/overview.md §7, features.md, zil.md §2.

use std::{collections::BTreeMap, sync::Arc};

use ondisk::{
    Order,
    dsl::{DatasetPhys, DirPhys},
    label::PoolState,
    nvlist::Value,
    uberblock::{Uberblock, VERSION_FEATURES},
};
use pool::{
    Pool,
    dsl::Dataset,
    vdev::{Kind, Vdev},
};
use rand::{SeedableRng, rngs::StdRng};

use crate::{
    BoxFuture, EngineError,
    alloc::Allocator,
    create::{
        Host,
        config::{self, set_host},
    },
    devices::Afterwards,
    dmu::MutSet,
    dsl::Stuck,
    events::Events,
    fill::Fill,
    missed::Outages,
    mos::{DIRECTORY, deadlist, features, zap},
    sync::{Places, Syncer},
    write::BlockWriter,
};

mod logs;
pub mod multihost;
pub(crate) mod rivals;

/// Transaction groups have numbers below this one. A thousand of them a second would last for ten thousand years; a pool
/// that is further was made up.
const TXG_END: u64 = 1 << 63;

/// Directory entry for clones whose blocks are still to be freed by the lists that OpenZFS had of them.
const DELETED_CLONES: &str = "com.delphix:deleted_clones";

/// What most refusals begin with.
pub const READ_ONLY: &str = "the pool can only be opened read-only: ";

/// How a pool is opened for writing.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Another name for it from now on.
    pub rename: Option<String>,
    /// Id of this host.
    pub hostid: u64,
    /// Name of this host.
    pub hostname: String,
    /// Wall clock, seconds since 1970.
    pub now: u64,
    /// Decides guids and salts.
    pub seed: u64,
    /// Threads for compression and checksums; 0 does all in the syncing task.
    pub workers: usize,
}

/// Goes on with a pool that was opened over writable, locked disks (`Candidate::reopen` with `import::writable`).
/// Nothing is written yet; the configuration is dirty, so that the first transaction group says whose the pool is.
///
/// # Errors
/// [`EngineError::Unsupported`] if the pool has something that cannot be kept up, or not all devices can be
/// written to; [`EngineError::Unanswered`] if a device does not give for now what says which logs there are; otherwise it
/// cannot be read.
pub fn open(pool: Arc<Pool>, options: OpenOptions) -> BoxFuture<'static, Result<Syncer, EngineError>> {
    Box::pin(async move {
        check_devices(&pool)?;
        let newest = pool.newest_uberblock();
        let last = newest.txg.max(pool.uberblock().txg);
        // Nobody got there by counting, and what counts on would run over.
        let txg = last.checked_add(1).filter(|txg| *txg < TXG_END).ok_or_else(|| {
            unsupported(format!(
                "the pool can only be opened read-only: after transaction group {last} there is none"
            ))
        })?;
        let source = Arc::clone(pool.io());
        let mut mos = MutSet::open(source, 0, pool.uberblock().rootbp).await?;
        check_features(&pool, &mut mos).await?;
        let heads = logs::heads(&pool).await?;
        let crashed = logs::find(&pool, &heads).await?;
        let places = places(&mut mos).await?;
        check_deadlists(&mut mos, &heads.0, places.origin_snapshot).await?;
        if zap::get_u64(&mut mos, DIRECTORY, DELETED_CLONES).await?.is_some() {
            tracing::warn!(
                pool = pool.name(),
                "destroyed clones are not freed yet: they keep their space until OpenZFS has the pool again"
            );
        }
        let traits = features::traits(&mut mos).await?;
        let alloc = Allocator::open(&pool, traits).await?;
        let out = BlockWriter::new(Arc::clone(pool.io()), alloc, traits, options.workers);
        mos.set_source(out.source());

        let mut config = pool.config().clone();
        let name = options.rename.unwrap_or_else(|| pool.name().to_owned());
        config.set("name", name.as_str());
        config.set("state", PoolState::Active.id());
        set_host(&mut config, &Host { id: options.hostid, name: options.hostname });
        let in_label = features::in_label(&mut mos).await?.into_iter();
        let in_label = in_label.map(|guid| (guid.to_owned(), Value::Boolean));
        config.set("features_for_read", in_label.collect::<ondisk::nvlist::NvList>());
        // Devices may have moved since; whoever imports next looks where they were last.
        let tree = pool.tree();
        let paths: BTreeMap<u64, &str> = tree
            .leaves()
            .into_iter()
            .filter(|leaf| leaf.leaf.as_ref().is_some_and(|leaf| leaf.disk().is_some()))
            .filter_map(|leaf| Some((leaf.guid, leaf.path.as_deref()?)))
            .collect();
        if let Some(Value::NvList(root)) = config::pair_mut(&mut config, "vdev_tree") {
            config::walk_mut(root, &mut |list| {
                if let Some(path) = list.u64("guid").and_then(|guid| paths.get(&guid)) {
                    list.set("path", *path);
                }
            });
        }
        let multihost = match zap::get_u64(&mut mos, DIRECTORY, "pool_props").await? {
            Some(object) => zap::get_u64(&mut mos, object, "multihost").await? == Some(1),
            None => false,
        };
        // Two hosts without an id would take each other's heartbeats for their own.
        if multihost && options.hostid == 0 {
            return Err(EngineError::Unsupported(
                "its property 'multihost' is on, and this host has no id: write one to /etc/hostid (zgenhostid)"
                    .into(),
            ));
        }
        let uberblock = Uberblock {
            order: Order::Little,
            software_version: VERSION_FEATURES,
            mmp: Some(multihost::fields(multihost::state(multihost))),
            ..*pool.uberblock()
        };
        Ok(Syncer {
            name,
            guid: pool.guid(),
            txg,
            now: options.now.max(newest.timestamp),
            random: StdRng::seed_from_u64(options.seed),
            out,
            mos,
            places,
            config,
            config_dirty: true,
            other_devices: false,
            uberblock,
            io: Arc::clone(pool.io()),
            outages: Outages::of(&pool.tree()),
            view: Some(pool),
            multihost,
            changes: Vec::new(),
            dirty_max: u64::MAX,
            shrinking: BTreeMap::new(),
            logs: Arc::default(),
            crashed,
            events: Events::new(|| std::time::Duration::ZERO),
            afterwards: Afterwards::default(),
            scans: Arc::default(),
            sizes: BTreeMap::new(),
            failing_logs: BTreeMap::new(),
            fill: Fill::default(),
            stuck: Stuck::default(),
        })
    })
}

/// Why a pool could not be opened for writing, however its devices are opened; asked of one that was opened to be read. What
/// only the attempt shows is not among it: devices that refuse, intent logs that nobody here can claim, deadlists of the old
/// form.
pub fn refusal(pool: &Pool) -> BoxFuture<'_, Option<String>> {
    Box::pin(async move {
        let checked = async {
            check_layout(pool)?;
            let source = Arc::clone(pool.io());
            let mut mos = MutSet::open(source, 0, pool.uberblock().rootbp).await?;
            check_features(pool, &mut mos).await
        };
        match checked.await {
            Err(EngineError::Unsupported(why)) => {
                Some(why.strip_prefix(READ_ONLY).unwrap_or(&why).to_owned())
            }
            _ => None,
        }
    })
}

/// Lets this transaction group say what becomes of the pool: exported or destroyed. It must be the last.
pub fn close(cx: &mut Syncer, state: PoolState) {
    cx.config.set("state", state.id());
    cx.config_dirty = true;
}

fn unsupported(text: impl Into<String>) -> EngineError {
    EngineError::Unsupported(text.into())
}

/// Whether every device that is there can be written to, and each top-level device has enough of them.
fn check_devices(pool: &Pool) -> Result<(), EngineError> {
    check_layout(pool)?;
    for leaf in pool.tree().leaves() {
        let disk = leaf.leaf.as_ref().and_then(|leaf| leaf.disk());
        if disk.is_some_and(|disk| disk.info().read_only) {
            return Err(unsupported(format!("{leaf} was opened read-only")));
        }
    }
    Ok(())
}

/// Whether this version writes to devices that are arranged so, and enough of them are there.
fn check_layout(pool: &Pool) -> Result<(), EngineError> {
    for top in &pool.tree().tops {
        match &top.kind {
            Kind::Hole => continue,
            Kind::Indirect { .. } | Kind::Draid { .. } | Kind::Unknown(_) | Kind::Missing => {
                return Err(unsupported(format!(
                    "the pool can only be opened read-only: {top} cannot be written to"
                )));
            }
            Kind::Raidz(geometry) if geometry.reflow.is_some() || !geometry.expand_txgs.is_empty() => {
                return Err(unsupported(format!(
                    "the pool can only be opened read-only: {top} was expanded, such devices are only read"
                )));
            }
            _ => {}
        }
        // Without the log nothing is lost but the log, and whoever opened the pool was told.
        if !top.is_readable() && !top.is_log() {
            return Err(unsupported(format!(
                "the pool can only be opened read-only: too few devices of {top} are there"
            )));
        }
        check_shape(top)?;
    }
    Ok(())
}

/// Devices are leaves, mirrors, RAIDZ, and what stands in for leaves; only a stress tester builds others.
fn check_shape(vdev: &Vdev) -> Result<(), EngineError> {
    let nested = |child: &Vdev| matches!(child.kind, Kind::Mirror | Kind::Raidz(_) | Kind::Draid { .. });
    if let Some(child) = vdev.children.iter().find(|child| nested(child)) {
        return Err(unsupported(format!(
            "the pool can only be opened read-only: {child} inside of {vdev} cannot be written to"
        )));
    }
    vdev.children.iter().try_for_each(check_shape)
}

async fn check_features(pool: &Pool, mos: &mut MutSet) -> Result<(), EngineError> {
    let refused = features::unwritable(mos).await?;
    if !refused.is_empty() {
        let lines = refused.iter().map(|guid| match features::refusal(guid) {
            Some(why) => format!("\t{guid} ({why})"),
            None => format!("\t{guid}"),
        });
        return Err(unsupported(format!(
            "the pool can only be opened read-only: it uses features that this version cannot write\n{}",
            lines.collect::<Vec<_>>().join("\n")
        )));
    }
    if pool.uberblock().checkpoint_txg != 0 {
        return Err(unsupported("a checkpoint can only be opened read-only"));
    }
    if pool.uberblock().order != Order::Little {
        return Err(unsupported(
            "the pool can only be opened read-only: it was written by a big-endian host last",
        ));
    }
    Ok(())
}

/// Whether the deadlists of all heads that something may be put on are of a form that is written here. Those of snapshots, and of
/// heads without one, are only counted, emptied and merged, whatever their form.
async fn check_deadlists(mos: &mut MutSet, heads: &[Dataset], origin: u64) -> Result<(), EngineError> {
    for head in heads {
        // Without a snapshot nothing is ever put there, and with the first there is another list.
        let Some(phys) = head.phys().filter(|phys| ![0, origin].contains(&phys.prev_snap)) else { continue };
        // One that is damaged is in the way of nothing else.
        if let Ok(true) = deadlist::is_old(mos, phys.deadlist).await {
            return Err(unsupported(format!(
                "{READ_ONLY}'{}': its deadlist is of a pool version before 26: take a snapshot of it with OpenZFS, which gives it \
                 another one",
                head.name()
            )));
        }
    }
    Ok(())
}

/// Where the objects are that every transaction group needs.
async fn places(mos: &mut MutSet) -> Result<Places, EngineError> {
    let root_dir = entry(mos, "root_dataset").await?;
    let bonus = mos.bonus(root_dir).await?;
    let root = DirPhys::decode(&bonus, Order::Little).map_err(EngineError::encode("the root directory"))?;
    let child = async |mos: &mut MutSet, name: &str| match zap::get_u64(mos, root.child_map, name).await? {
        Some(object) => Ok(object),
        None => Err(unsupported(format!(
            "the pool can only be opened read-only: it has no directory '{name}', so it is older than this version \
             can write"
        ))),
    };
    let mos_dir = child(mos, "$MOS").await?;
    let free_dir = child(mos, "$FREE").await?;
    let origin_dir = child(mos, "$ORIGIN").await?;
    let bonus = mos.bonus(origin_dir).await?;
    let origin = DirPhys::decode(&bonus, Order::Little).map_err(EngineError::encode("$ORIGIN"))?;
    let bonus = mos.bonus(origin.head_dataset).await?;
    let head = DatasetPhys::decode(&bonus, Order::Little).map_err(EngineError::encode("$ORIGIN"))?;
    Ok(Places {
        root_dir,
        mos_dir,
        free_dir,
        origin_dir,
        origin_snapshot: head.prev_snap,
        free_bpobj: entry(mos, "free_bpobj").await?,
        sync_bplist: entry(mos, "sync_bplist").await?,
        config: entry(mos, "config").await?,
    })
}

async fn entry(mos: &mut MutSet, name: &str) -> Result<u64, EngineError> {
    match zap::get_u64(mos, DIRECTORY, name).await? {
        Some(object) => Ok(object),
        None => Err(unsupported(format!(
            "the pool can only be opened read-only: its object directory has no entry '{name}'"
        ))),
    }
}
