//! An open pool: everything above holds one of these.

use std::{fmt, sync::Arc};

use ondisk::{
    label::PoolState,
    nvlist::NvList,
    scan::{ErrorScrubPhys, ScanPhys},
    uberblock::Uberblock,
};
use tokio::sync::OnceCell;

use crate::{
    BoxFuture,
    dmu::{ObjectSet, ReadError},
    dsl::Dsl,
    features::FeatureState,
    import::{self, ImportError},
    io::PoolIo,
    space::{self, Space},
    vdev::{Disks, Tree, Vdev},
    zap::Zap,
};

/// A pool as it was at one uberblock. Shared as `Arc<Pool>`; whoever writes to the pool makes a new view of it
/// after each commit ([`Pool::at`]).
pub struct Pool {
    parts: PoolParts,
    space: OnceCell<Space>,
    dsl: OnceCell<Dsl>,
    /// What lies on devices for metadata and dedup tables, in accounted bytes.
    elsewhere: OnceCell<u64>,
}

/// What a pool is made of.
pub(crate) struct PoolParts {
    pub(crate) name: String,
    pub(crate) guid: u64,
    pub(crate) state: PoolState,
    pub(crate) uberblock: Uberblock,
    pub(crate) newest: Uberblock,
    pub(crate) config: NvList,
    pub(crate) io: Arc<PoolIo>,
    pub(crate) mos: Arc<ObjectSet>,
    pub(crate) directory: Zap,
    pub(crate) features: Vec<FeatureState>,
    pub(crate) scan: Option<ScanPhys>,
    pub(crate) error_scrub: Option<ErrorScrubPhys>,
    pub(crate) removal: Option<Removal>,
    pub(crate) spares: Vec<Vdev>,
    pub(crate) l2cache: Vec<Vdev>,
    pub(crate) missing_log: bool,
    pub(crate) unreadable_log: bool,
}

/// The last removal of a top-level device, as the pool remembers it: directory entry
/// `com.delphix:removing`, seven words. Times in seconds since 1970, sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removal {
    /// 1 running, 2 finished, 3 cancelled.
    pub state: u64,
    /// Which device.
    pub vdev: u64,
    /// When it began.
    pub start: u64,
    /// When it ended; 0 while it runs.
    pub end: u64,
    /// What was allocated on it.
    pub to_copy: u64,
    /// What of it was copied.
    pub copied: u64,
}

impl Removal {
    pub(crate) fn from_words(words: &[u64]) -> Option<Self> {
        let &[state, vdev, _previous, start, end, to_copy, copied] = words else { return None };
        Some(Self { state, vdev, start, end, to_copy, copied })
    }
}

impl Pool {
    pub(crate) fn assemble(parts: PoolParts) -> Arc<Self> {
        Arc::new(Self { parts, space: OnceCell::new(), dsl: OnceCell::new(), elsewhere: OnceCell::new() })
    }

    /// The state a later commit made: the same devices, cache and error counters. `io` is `previous`'s.
    /// Reads a handful of blocks, which are in the cache if the writer put them
    /// there; everything else is read when asked for.
    ///
    /// # Errors
    /// The new state cannot be read.
    pub fn at(
        previous: &Self,
        io: Arc<PoolIo>,
        uberblock: Uberblock,
        config: NvList,
    ) -> BoxFuture<'_, Result<Arc<Self>, ImportError>> {
        Box::pin(Self::of(Some(previous), io, uberblock, config))
    }

    /// The first state of a pool that was just created.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn new(
        io: Arc<PoolIo>,
        uberblock: Uberblock,
        config: NvList,
    ) -> BoxFuture<'static, Result<Arc<Self>, ImportError>> {
        Box::pin(Self::of(None, io, uberblock, config))
    }

    /// Whether it was opened although devices of the log may be missing (`zpool import -m`).
    #[must_use]
    pub fn may_lack_log(&self) -> bool {
        self.parts.missing_log
    }

    /// Whether who opened it gives up what of the intent logs cannot be read (`zpool import -m`).
    #[must_use]
    pub fn gives_up_log(&self) -> bool {
        self.parts.unreadable_log
    }

    async fn of(
        previous: Option<&Self>,
        io: Arc<PoolIo>,
        uberblock: Uberblock,
        config: NvList,
    ) -> Result<Arc<Self>, ImportError> {
        let damaged = |source: ReadError| ImportError::Metadata { txg: uberblock.txg, source };
        let mos = ObjectSet::open(io.clone(), 0, uberblock.rootbp).await.map_err(damaged)?;
        let directory = Zap::open_in(&mos, 1).await.map_err(damaged)?;
        let known = previous.map_or(&[][..], Self::features);
        let features = import::features(&mos, &directory, known).await.map_err(damaged)?;
        let scan = import::last_scan(&directory).await.map_err(damaged)?;
        let error_scrub = import::last_error_scrub(&directory).await.map_err(damaged)?;
        let (old_spares, old_caches) =
            previous.map_or((&[][..], &[][..]), |pool| (pool.spares(), pool.l2cache()));
        let mut disks = io.auxiliaries();
        for vdev in old_spares.iter().chain(old_caches) {
            if let Some(disk) = vdev.leaf.as_ref().and_then(|leaf| leaf.disk()) {
                disks.entry(vdev.guid).or_insert(disk);
            }
        }
        let spares = auxiliary(&mos, &directory, "spares", old_spares, &disks);
        let spares = spares.await.map_err(damaged)??;
        let l2cache = auxiliary(&mos, &directory, "l2cache", old_caches, &disks);
        let l2cache = l2cache.await.map_err(damaged)??;
        // From now on later views have them of this one. One that is let go must not be kept open and locked by what told of it.
        spares.iter().chain(&l2cache).for_each(|vdev| io.remove_auxiliary(vdev.guid));
        Ok(Self::assemble(PoolParts {
            name: config.str("name").unwrap_or_default().to_owned(),
            guid: config.u64("pool_guid").unwrap_or(io.tree().guid),
            state: PoolState::from_id(config.u64("state").unwrap_or(0)),
            uberblock,
            newest: uberblock,
            config,
            io,
            mos,
            directory,
            features,
            scan,
            error_scrub,
            removal: previous.and_then(|pool| pool.parts.removal),
            spares,
            l2cache,
            missing_log: false,
            unreadable_log: false,
        }))
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.parts.name
    }

    /// Its guid.
    #[must_use]
    pub fn guid(&self) -> u64 {
        self.parts.guid
    }

    /// What its labels say it was doing when it was last written: exported, or in use.
    #[must_use]
    pub fn label_state(&self) -> PoolState {
        self.parts.state
    }

    /// The state that is open.
    #[must_use]
    pub fn uberblock(&self) -> &Uberblock {
        &self.parts.uberblock
    }

    /// The newest uberblock of the pool: another one than [`uberblock`](Self::uberblock) after a rewind.
    #[must_use]
    pub fn newest_uberblock(&self) -> &Uberblock {
        &self.parts.newest
    }

    /// The configuration in the MOS.
    #[must_use]
    pub fn config(&self) -> &NvList {
        &self.parts.config
    }

    /// Reads its blocks.
    #[must_use]
    pub fn io(&self) -> &Arc<PoolIo> {
        &self.parts.io
    }

    /// Its devices.
    #[must_use]
    pub fn tree(&self) -> Arc<Tree> {
        self.parts.io.tree()
    }

    /// The meta object set.
    #[must_use]
    pub fn mos(&self) -> &Arc<ObjectSet> {
        &self.parts.mos
    }

    /// The object directory of the meta object set.
    #[must_use]
    pub fn directory(&self) -> &Zap {
        &self.parts.directory
    }

    /// Its features, enabled and active, by guid.
    #[must_use]
    pub fn features(&self) -> &[FeatureState] {
        &self.parts.features
    }

    /// Whether a feature is in use.
    #[must_use]
    pub fn is_active(&self, guid: &str) -> bool {
        self.features().iter().any(|feature| feature.guid == guid && feature.count > 0)
    }

    /// The last scrub or resilver, if there ever was one.
    #[must_use]
    pub fn scan(&self) -> Option<&ScanPhys> {
        self.parts.scan.as_ref()
    }

    /// The last scrub of the error log, if there ever was one.
    #[must_use]
    pub fn error_scrub(&self) -> Option<&ErrorScrubPhys> {
        self.parts.error_scrub.as_ref()
    }

    /// The last removal of a top-level device, if there ever was one.
    #[must_use]
    pub fn removal(&self) -> Option<&Removal> {
        self.parts.removal.as_ref()
    }

    /// Hot spares, in use or not.
    #[must_use]
    pub fn spares(&self) -> &[Vdev] {
        &self.parts.spares
    }

    /// Cache devices.
    #[must_use]
    pub fn l2cache(&self) -> &[Vdev] {
        &self.parts.l2cache
    }

    /// How full it is, per top-level device. Read from the space maps when first asked for.
    ///
    /// # Errors
    /// A space map cannot be read.
    pub fn space(&self) -> BoxFuture<'_, Result<&Space, ReadError>> {
        Box::pin(async move { self.space.get_or_try_init(|| Space::read(self)).await })
    }

    /// Its datasets.
    ///
    /// # Errors
    /// The root of the datasets cannot be read.
    pub fn dsl(&self) -> BoxFuture<'_, Result<&Dsl, ReadError>> {
        Box::pin(async move {
            let open = || async {
                let elsewhere = self.elsewhere().await;
                let mos = Arc::clone(self.mos());
                Dsl::open(self.name(), self.guid(), mos, &self.tree(), elsewhere).await
            };
            self.dsl.get_or_try_init(open).await
        })
    }

    /// Tells a new view what lies on devices for metadata and dedup tables, in accounted bytes. Whoever writes to the pool knows
    /// it; otherwise space maps are read for it.
    pub fn set_elsewhere(&self, bytes: u64) {
        let _already_known = self.elsewhere.set(bytes);
    }

    async fn elsewhere(&self) -> u64 {
        let read = || async {
            if !self.tree().tops.iter().any(space::is_beside) {
                return 0;
            }
            match self.space().await {
                Ok(space) => space.elsewhere(&self.tree()),
                // Less seems to be available then; nothing else depends on it.
                Err(error) => {
                    tracing::warn!(pool = self.name(), %error, "how much lies on special and dedup devices cannot be told");
                    0
                }
            }
        };
        *self.elsewhere.get_or_init(read).await
    }
}

/// The spares or cache devices of the pool: the ones known before, and those that are new.
async fn auxiliary(
    mos: &ObjectSet,
    directory: &Zap,
    name: &str,
    old: &[Vdev],
    disks: &Disks,
) -> Result<Result<Vec<Vdev>, ImportError>, ReadError> {
    let lists = import::device_list(mos, directory, name).await?;
    let vdev = |nv: &NvList| match old.iter().find(|vdev| Some(vdev.guid) == nv.u64("guid")) {
        Some(known) => Ok(known.clone()),
        None => Vdev::auxiliary(nv, disks).map_err(ImportError::Config),
    };
    Ok(lists.iter().map(vdev).collect())
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({}, txg {})", self.name(), self.uberblock().txg)
    }
}
