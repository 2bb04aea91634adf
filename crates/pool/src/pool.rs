//! An open pool: everything above holds one of these.

use std::{fmt, sync::Arc};

use ondisk::{label::PoolState, nvlist::NvList, scan::ScanPhys, uberblock::Uberblock};
use tokio::sync::OnceCell;

use crate::{
    dmu::{ObjectSet, ReadError},
    dsl::Dsl,
    features::FeatureState,
    io::PoolIo,
    space::Space,
    vdev::{Tree, Vdev},
    zap::Zap,
};

/// A pool that was opened, read-only. Shared as `Arc<Pool>`.
pub struct Pool {
    parts: PoolParts,
    space: OnceCell<Space>,
    dsl: OnceCell<Dsl>,
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
    pub(crate) removal: Option<Removal>,
    pub(crate) spares: Vec<Vdev>,
    pub(crate) l2cache: Vec<Vdev>,
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
        Arc::new(Self { parts, space: OnceCell::new(), dsl: OnceCell::new() })
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
    pub fn tree(&self) -> &Tree {
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
    pub async fn space(&self) -> Result<&Space, ReadError> {
        self.space.get_or_try_init(|| Space::read(self)).await
    }

    /// Its datasets.
    ///
    /// # Errors
    /// The root of the datasets cannot be read.
    pub async fn dsl(&self) -> Result<&Dsl, ReadError> {
        let open = || async {
            let devices = crate::space::deflated_size(self.tree());
            Dsl::open(self.name(), self.guid(), Arc::clone(self.mos()), devices).await
        };
        self.dsl.get_or_try_init(open).await
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({}, txg {})", self.name(), self.uberblock().txg)
    }
}
