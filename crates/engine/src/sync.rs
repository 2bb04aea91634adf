//! One transaction group, from dirty to durable.
//!
//! ```text
//!   deferred frees of others ▶ volumes ▶ commands ▶ a portion of what is to be freed
//!      ▶ ⟲ configuration, MOS, its own space, space maps: until nothing changes any more
//!      ▶ every block on stable media ▶ labels where the configuration changed ▶ uberblock
//! ```
//!
//! The loop is the classic one of sync passes, played in memory: writing the MOS allocates and frees, which
//! changes space maps, which are in the MOS. It ends because what was written once in this transaction group is
//! written again in its place, so each round allocates less than the one before. Blocks of metadata reach the
//! devices once, when it has ended.
//!
//! Facts: docs/format/overview.md §6.

use std::{collections::BTreeMap, pin::Pin, sync::Arc, time::Duration};

use codec::checksum::Salt;
use ondisk::{blkptr::BlkPtr, label::Multihost, nvlist::NvList, uberblock::Uberblock};
use pool::{
    Pool, PoolIo,
    dmu::{Object, ReadError},
    error::ImportError,
    vdev::{Class, Kind, Tree, Vdev, deadline},
};
use rand::{RngCore, rngs::StdRng};

use crate::{
    BoxFuture, EngineError,
    alloc::Totals,
    devices::{self, Afterwards},
    dmu::{Account, MutSet},
    dsl::{self, Dirty, Holding},
    events::Events,
    fill::Fill,
    missed::{self, Outages},
    mos::{bpobj, packed, salt},
    policy::SetPolicy,
    scan::{self, Scans},
    space::{Deflate, Space},
    suspend::may_pass,
    txg::{Room, Supply},
    write::{BlockWriter, Written, labels},
    zil::{
        Logs,
        claim::{self, Crashed},
    },
};

/// Rounds after which something is wrong: each needs a reason that the one before created.
const ROUNDS_MAX: usize = 64;
/// Blocks that one transaction group frees, or reads to free others, for datasets destroyed earlier.
const FREES_PER_TXG: usize = 50_000;

/// The part of what may be dirty that contents of volumes' indirect blocks may take beside their stored forms. Where it is not
/// exceeded nobody decompresses what was written just now; the rest is opened by who reads it next.
const CONTENTS_PART: u64 = 8;

/// Objects of the MOS that every transaction group needs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Places {
    /// Directory of the root dataset.
    pub root_dir: u64,
    /// Directory `$MOS`.
    pub mos_dir: u64,
    /// Directory `$FREE`.
    pub free_dir: u64,
    /// Directory `$ORIGIN`.
    pub origin_dir: u64,
    /// Snapshot `$ORIGIN@$ORIGIN`, a dataset; 0 on pools so old that they have none.
    pub origin_snapshot: u64,
    /// Lists of blocks to be freed.
    pub free_bpobj: u64,
    /// Deferred frees of other writers; ours stays empty.
    pub sync_bplist: u64,
    /// Object with the packed configuration.
    pub config: u64,
}

/// What happened to datasets in this transaction group that open volumes must hear of once it is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The dataset (object) has another content: rolled back, resized, or on the way to a smaller size.
    Content(u64),
    /// It has another name.
    Renamed(u64),
    /// It is gone.
    Destroyed(u64),
    /// Properties that concern serving changed (readonly, sync).
    Properties(u64),
    /// The same, and what caches may keep of it and of its snapshots.
    Caching(u64),
}

/// The state of a pool as the syncing task sees it.
#[derive(Debug)]
pub struct Syncer {
    /// The pool's name.
    pub name: String,
    /// Its guid.
    pub guid: u64,
    /// The transaction group being synced.
    pub txg: u64,
    /// Wall clock, seconds since 1970.
    pub now: u64,
    /// For guids and salts; seeded.
    pub random: StdRng,
    /// Writes blocks; the allocator is in it.
    pub out: BlockWriter,
    /// The MOS as it will be.
    pub mos: MutSet,
    /// Where things are.
    pub places: Places,
    /// The pool's configuration (what the MOS object `config` holds; labels are made from it).
    pub config: NvList,
    /// Configuration or label features changed: rewrite both in this transaction group.
    pub config_dirty: bool,
    /// The pool got other devices since the last commit.
    pub other_devices: bool,
    /// The last committed uberblock.
    pub uberblock: Uberblock,
    /// Devices and cache.
    pub io: Arc<PoolIo>,
    /// The view of the last commit; none while a pool is created.
    pub view: Option<Arc<Pool>>,
    /// Heartbeats are written: pool property `multihost`.
    pub multihost: bool,
    /// What absent devices missed.
    pub outages: Outages,
    /// See [`Change`].
    pub changes: Vec<Change>,
    /// Bytes of memory that may be dirty.
    pub dirty_max: u64,
    /// Volumes that are being made small, over several transaction groups, and the bytes of each that clients have
    /// meanwhile: what is going to be left.
    pub shrinking: BTreeMap<u64, u64>,
    /// Intent logs of the volumes that are open.
    pub logs: Arc<Logs>,
    /// Intent logs that the pool had when it was opened.
    pub crashed: Crashed,
    /// Told of what happens to devices; the engine's.
    pub events: Arc<Events>,
    /// What is done for devices once the transaction group is durable.
    pub(crate) afterwards: Afterwards,
    /// Scrubs and resilvers.
    pub scans: Arc<Scans>,
    /// How large the devices of leaves were, by guid.
    pub(crate) sizes: BTreeMap<u64, u64>,
    /// Log devices that fail, by guid, and the transaction group in which that was seen: see [`devices::persist`].
    pub(crate) failing_logs: BTreeMap<u64, u64>,
    /// How full it was.
    pub(crate) fill: Fill,
    /// Where freeing what was destroyed does not get on.
    pub(crate) stuck: dsl::Stuck,
}

/// What a [`Task`] returns.
pub type TaskFuture<'a> = Pin<Box<dyn Future<Output = Result<(), EngineError>> + Send + 'a>>;

/// A command, to be run inside a transaction group.
pub struct Task {
    /// After a snapshot nothing else may change datasets in the same transaction group: a block born behind it
    /// would carry its birth, and be taken for a part of it.
    pub is_snapshot: bool,
    /// Changes the pool. An error here means that it may be half done: the transaction group is lost.
    pub run: Box<dyn for<'a> FnOnce(&'a mut Syncer) -> TaskFuture<'a> + Send>,
    /// Told when it is durable, or why it never will be.
    pub done: Box<dyn FnOnce(Result<(), EngineError>) + Send>,
}

/// What a transaction group has to do.
#[derive(Default)]
pub struct Work {
    /// Volumes with changes, or whose intent log moves on: (dataset, changes).
    pub volumes: Vec<(u64, Dirty)>,
    /// Commands in order.
    pub tasks: Vec<Task>,
    /// Volumes whose room is to be told: datasets.
    pub rooms: Vec<u64>,
    /// The pool is being left: what was destroyed earlier is freed by whoever opens it next.
    pub is_closing: bool,
}

/// What a transaction group did.
#[derive(Debug, Default)]
pub struct Done {
    /// Data objects of the synced volumes, by dataset.
    pub volumes: Vec<(u64, Object)>,
    /// What else open volumes must hear of.
    pub changes: Vec<Change>,
    /// What went to the devices.
    pub written: Written,
    /// There is more to free for destroyed datasets, or to be written down in another group: after this time, at least.
    pub more_to_do: Option<Duration>,
    /// What may be taken from now on.
    pub supply: Supply,
    /// The pool has other devices than before.
    pub other_devices: bool,
    /// And by the volumes asked for.
    pub rooms: BTreeMap<u64, Room>,
    /// What these hold.
    pub holdings: BTreeMap<u64, Holding>,
}

/// Collects what syncing the MOS does to the MOS.
struct MosAccount<'a> {
    deflate: &'a Deflate,
    space: Space,
    killed: Vec<BlkPtr>,
}

impl Account for MosAccount<'_> {
    fn born(&mut self, bp: &BlkPtr) {
        self.space += self.deflate.space(bp);
    }
    fn killed(&mut self, bp: &BlkPtr) {
        self.space -= self.deflate.space(bp);
        self.killed.push(*bp);
    }
}

impl Syncer {
    /// Syncs transaction group `txg`, which must be greater than any before. When this returns, everything in
    /// it is durable.
    ///
    /// # Errors
    /// Nothing of it is; the state in memory is not to be used any more.
    pub fn sync_txg<'a>(
        &'a mut self,
        txg: u64,
        now: u64,
        work: Work,
    ) -> BoxFuture<'a, Result<Done, EngineError>> {
        Box::pin(async move {
            (self.txg, self.now) = (txg, now);
            // A pool that is being created has begun already: its root dataset was written.
            if self.out.txg() != txg {
                self.out.begin(txg);
                self.out.keep_contents(self.dirty_max / CONTENTS_PART);
                // Space maps are read as everything else that a transaction group needs: patiently.
                let source = self.out.source();
                let committed = self.view.as_ref().map(|view| view.mos().over(source)).transpose()?;
                self.out.alloc.begin(txg, committed, &mut self.mos).await?;
            }
            missed::begin(self);
            claim::claim(self).await?;
            let new_salt = self.note_salt().await?;
            self.free_deferred().await?;
            let mut done = Done::default();
            for (dataset, dirty) in work.volumes {
                let synced = dsl::sync_volume(self, dataset, dirty).await?;
                done.volumes.push((dataset, synced.data));
            }
            for task in work.tasks {
                (task.run)(self).await?;
            }
            let is_left = !work.is_closing && dsl::free_some(self, FREES_PER_TXG).await?;
            done.more_to_do = is_left.then(|| self.stuck.pause().unwrap_or_default());
            scan::sync(self).await?;
            self.note_devices().await?;
            self.settle().await?;
            self.out.alloc.log_space().counted();
            (done.supply, done.rooms) = dsl::supply(self, &work.rooms).await?;
            for dataset in done.rooms.keys() {
                done.holdings.insert(*dataset, dsl::holding(self, *dataset).await?);
            }
            // While the devices flush nothing is allocated, and so nothing set aside for logs.
            if self.out.alloc.log_space().is_wanted() {
                self.out.alloc.restock().await;
            }
            done.written = self.out.finish().await?;
            // A device that failed just now: the pool must know what it lacks as soon as the rest is committed.
            while self.note_devices().await? {
                self.settle().await?;
                done.written = self.out.finish().await?;
            }
            self.commit().await?;
            // Not before: what is logged with a salt that was never committed nobody could verify.
            if let Some(salt) = new_salt {
                self.io.set_salt(salt);
            }
            devices::reinstate_logs(self);
            Afterwards::run(self).await;
            self.fill.note(&self.out.alloc.totals(), &self.events);
            done.changes = std::mem::take(&mut self.changes);
            done.other_devices = std::mem::take(&mut self.other_devices);
            if !self.failing_logs.is_empty() {
                done.more_to_do = Some(Duration::ZERO);
            }
            Ok(done)
        })
    }

    /// The same as before: a command has changed nothing, whatever others changed in this transaction group before it.
    pub(crate) fn state(&self) -> (u64, Totals, bool, usize, u64) {
        let devices = self.uberblock.guid_sum;
        (self.mos.changes(), self.out.alloc.totals(), self.config_dirty, self.changes.len(), devices)
    }

    /// The pool has other devices from now on: readers and writers follow at once, the configuration is the caller's.
    pub fn devices_changed(&mut self, tree: Tree) {
        self.other_devices = true;
        self.uberblock.guid_sum = tree.guid_sum();
        self.io.set_tree(tree);
        self.out.devices_changed();
    }

    /// Gives the pool a salt if it has none. Blocks can be written with it in later transaction groups.
    async fn note_salt(&mut self) -> Result<Option<Salt>, EngineError> {
        if self.io.salt().is_some() || salt::is_there(&mut self.mos).await? {
            return Ok(None);
        }
        let mut salt = [0; 32];
        self.random.fill_bytes(&mut salt);
        salt::set(&mut self.mos, salt).await?;
        Ok(Some(salt))
    }

    /// How devices are and what they lack, into the configuration and their lists. True if something changed.
    async fn note_devices(&mut self) -> Result<bool, EngineError> {
        let lists = missed::sync(self).await?;
        let sizes = devices::note_sizes(self).await;
        Ok(devices::persist(self) || lists || sizes)
    }

    /// Frees what another writer left in the list of deferred frees. We never put anything there.
    async fn free_deferred(&mut self) -> Result<(), EngineError> {
        let deflate = self.out.alloc.deflate().clone();
        loop {
            let entries = bpobj::take(&mut self.mos, self.places.sync_bplist, &deflate, 10_000).await?;
            if entries.is_empty() {
                return Ok(());
            }
            let blocks: Vec<BlkPtr> = entries.iter().map(|entry| entry.blkptr).collect();
            self.out.free_all(&blocks).await?;
        }
    }

    /// Writes the MOS until nothing in it changes any more.
    async fn settle(&mut self) -> Result<(), EngineError> {
        let deflate = self.out.alloc.deflate().clone();
        let policy = SetPolicy::mos(&self.out.traits());
        let mut round = 0;
        // What datasets allocated and freed belongs to the maps before the MOS is written for the first time.
        self.write_maps().await?;
        while self.mos.is_dirty() || self.config_changed() {
            round += 1;
            if round > ROUNDS_MAX {
                let detail = format!("transaction group {} does not settle", self.txg);
                return Err(EngineError::Encode { what: "the MOS", detail });
            }
            self.write_config().await?;
            let mut account = MosAccount { deflate: &deflate, space: Space::ZERO, killed: Vec::new() };
            self.mos.sync(&mut self.out, &policy, &deflate, &mut account).await?;
            let MosAccount { space, killed, .. } = account;
            self.out.free_all(&killed).await?;
            if space != Space::ZERO {
                dsl::account::dir_add(&mut self.mos, self.places.mos_dir, dsl::account::Kind::Head, space)
                    .await?;
            }
            self.write_maps().await?;
        }
        Ok(())
    }

    /// Space map changes, and new metaslab arrays into the configuration.
    async fn write_maps(&mut self) -> Result<(), EngineError> {
        self.out.alloc.write_maps(&mut self.mos).await?;
        let arrays = self.out.alloc.arrays();
        if set_metaslab_arrays(&mut self.config, &arrays) {
            self.config_dirty = true;
            // How full the devices are is looked up by them.
            self.io.set_tree(devices::described(&self.io.tree(), &self.config)?);
        }
        Ok(())
    }

    /// Whether the last uberblock slot is kept for heartbeats.
    fn multihost(&self) -> Multihost {
        if self.multihost { Multihost::On } else { Multihost::Off }
    }

    fn config_changed(&self) -> bool {
        self.config_dirty && self.config.u64("txg") != Some(self.txg)
    }

    /// The configuration into its object, if it changed since it was last written in this transaction group.
    async fn write_config(&mut self) -> Result<(), EngineError> {
        if !self.config_dirty {
            return Ok(());
        }
        self.config.set("txg", self.txg);
        let written = packed::read(&mut self.mos, self.places.config).await.ok();
        if written.as_ref() != Some(&self.config) {
            packed::write(&mut self.mos, self.places.config, &self.config).await?;
        }
        Ok(())
    }

    /// Labels and uberblock.
    async fn commit(&mut self) -> Result<(), EngineError> {
        let uberblock =
            Uberblock { txg: self.txg, timestamp: self.now, rootbp: *self.mos.root(), ..self.uberblock };
        let (config, multihost) = (self.config_dirty.then_some(&self.config), self.multihost());
        let (suspension, reports) = (self.out.suspension(), self.out.reports());
        let lacking: Vec<u64> = self.out.failed_leaves().into_iter().map(|leaf| leaf.guid).collect();
        loop {
            suspension.may_write()?;
            let before = suspension.before();
            if let Some(top) = self.io.tree().tops.iter().find(|top| is_cut_off(top)) {
                let why = EngineError::Device(format!("too few devices of {top} are there"));
                suspension.wait(before, why).await?;
                continue;
            }
            // A second time it writes the same again: whatever of it is there already agrees with it.
            let writer = labels::Writer { reports: &reports, suspension: &suspension };
            let written =
                labels::commit(&self.io.tree(), &uberblock, config, multihost, &lacking, writer).await;
            match written {
                Err(error @ EngineError::Device(_)) => suspension.wait(before, error).await?,
                result => break result?,
            }
        }
        let view = self.look(uberblock).await?;
        view.set_elsewhere(self.out.alloc.totals().elsewhere);
        self.view = Some(view);
        suspension.over();
        self.uberblock = uberblock;
        self.config_dirty = false;
        self.out.alloc.committed();
        Ok(())
    }

    /// The state that was just committed, as readers will see it. Most of what is read for it is in memory; for the rest
    /// devices are waited for.
    async fn look(&self, uberblock: Uberblock) -> Result<Arc<Pool>, EngineError> {
        let suspension = self.out.suspension();
        loop {
            let before = suspension.before();
            let (io, config) = (Arc::clone(&self.io), self.config.clone());
            let open = Box::pin(async {
                match &self.view {
                    Some(view) => Pool::at(view, io, uberblock, config).await,
                    None => Pool::new(io, uberblock, config).await,
                }
            });
            let why = match deadline::within(open, deadline::WRITE).await {
                Some(Ok(view)) => return Ok(view),
                Some(Err(ImportError::Metadata { source: ReadError::Block(error), .. }))
                    if may_pass(&error) =>
                {
                    error.into()
                }
                Some(Err(error)) => return Err(EngineError::Unsupported(error.to_string())),
                None => EngineError::Device("devices do not answer".to_owned()),
            };
            suspension.wait(before, why).await?;
        }
    }
}

/// Whether a part of the pool is away as a whole: what is committed without it could not be opened again. Logs can be
/// done without.
fn is_cut_off(top: &Vdev) -> bool {
    top.class() != Class::Log && !matches!(top.kind, Kind::Hole | Kind::Indirect { .. }) && !top.is_readable()
}

/// Notes the metaslab arrays of top-level devices, (id, object), in the configuration. True if that changed it.
fn set_metaslab_arrays(config: &mut NvList, arrays: &[(u64, u64)]) -> bool {
    let Some(root) = config.nvlist("vdev_tree") else { return false };
    let mut tops = root.nvlist_array("children").unwrap_or_default().to_vec();
    let mut changed = false;
    for top in &mut tops {
        let id = top.u64("id");
        if let Some((_, object)) = arrays.iter().find(|(array, _)| Some(*array) == id)
            && *object != 0
            && top.u64("metaslab_array") != Some(*object)
        {
            top.set("metaslab_array", *object);
            changed = true;
        }
    }
    if changed {
        let mut root = root.clone();
        root.set("children", tops);
        config.set("vdev_tree", root);
    }
    changed
}
