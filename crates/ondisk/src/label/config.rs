//! What a label's config (or the MOS config) says about the pool.
//!
//! A leaf that belongs to a pool carries the pool's identity and the tree of its own top-level vdev
//! only; the whole tree is in the MOS. Spares and cache devices at rest carry next to nothing. All
//! three are [`LabelConfig`]s; members and the MOS share [`PoolConfig`].
//!
//! Facts: docs/format/labels.md §4, docs/format/mos.md §4.

use super::vdev::{VdevConfig, put, put_array, put_flag};
use super::{CONFIG_BYTES, TRAILER_BYTES};
use crate::nvlist::{NvList, NvStr, Value};
use crate::uberblock::VERSION_FEATURES;
use crate::{Error, Reason, Result};

/// `state` of a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PoolState {
    /// In use, or was when the host stopped.
    Active,
    /// Cleanly exported.
    Exported,
    /// Destroyed; still importable on demand.
    Destroyed,
    /// The device is a spare at rest.
    Spare,
    /// The device is a cache.
    Cache,
    /// Not a number that belongs on disk.
    Other(u64),
}

impl PoolState {
    /// From the number in the config.
    #[must_use]
    pub const fn from_id(id: u64) -> Self {
        match id {
            0 => Self::Active,
            1 => Self::Exported,
            2 => Self::Destroyed,
            3 => Self::Spare,
            4 => Self::Cache,
            other => Self::Other(other),
        }
    }

    /// The number in the config.
    #[must_use]
    pub const fn id(self) -> u64 {
        match self {
            Self::Active => 0,
            Self::Exported => 1,
            Self::Destroyed => 2,
            Self::Spare => 3,
            Self::Cache => 4,
            Self::Other(other) => other,
        }
    }
}

/// What the config of a label says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LabelConfig {
    /// The device belongs to a pool.
    Member {
        /// Guid of this leaf.
        guid: u64,
        /// Guid of the top-level vdev it is under.
        top_guid: u64,
        /// The pool, with the tree of that top-level vdev.
        pool: Box<PoolConfig>,
    },
    /// A spare not in use.
    Spare(AuxConfig),
    /// A cache device.
    Cache(AuxConfig),
}

/// The config of a spare or cache device: which pool uses it is only in that pool's MOS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuxConfig {
    /// Pool version of the writer.
    pub version: u64,
    /// Guid of the device.
    pub guid: u64,
    /// Log2 of the smallest I/O; OpenZFS 2.3 and newer, cache devices only.
    pub ashift: Option<u64>,
    /// Where the device was last seen; OpenZFS 2.3 and newer.
    pub path: Option<NvStr>,
    /// All pairs as decoded.
    pub raw: NvList,
}

/// A pool's configuration, from a label (one top-level vdev) or the MOS (all).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Pool version: 5000 with feature flags.
    pub version: u64,
    /// Name of the pool.
    pub name: NvStr,
    /// What the pool was doing.
    pub state: PoolState,
    /// Txg of the write; 0 on a leaf whose first sync has not finished.
    pub txg: u64,
    /// Guid of the pool.
    pub pool_guid: u64,
    /// Id of the last host.
    pub hostid: Option<u64>,
    /// Name of the last host.
    pub hostname: Option<NvStr>,
    /// The administrator's comment.
    pub comment: Option<NvStr>,
    /// Top-level slots of the pool, holes included.
    pub vdev_children: Option<u64>,
    /// Ids of removed top-level vdevs.
    pub hole_array: Vec<u64>,
    /// The leaf is of the intent log.
    pub is_log: bool,
    /// The leaf is a spare in use.
    pub is_spare: bool,
    /// The vdev tree.
    pub vdev_tree: VdevConfig,
    /// Features one must know to read the MOS: their guids.
    pub features_for_read: Vec<String>,
    /// All pairs as decoded, the tree emptied; typed fields win when encoding.
    pub raw: NvList,
}

impl LabelConfig {
    /// Reads the config region of a label (with or without its trailer).
    ///
    /// # Errors
    /// No readable list, or as [`from_nvlist`](Self::from_nvlist).
    pub fn decode(region: &[u8]) -> Result<Self> {
        let end = region.len().min((CONFIG_BYTES as usize).saturating_sub(TRAILER_BYTES));
        Self::from_nvlist(&NvList::decode(region.get(..end).unwrap_or_default())?)
    }

    /// Reads the list of a label.
    ///
    /// # Errors
    /// A pair that must exist is absent or of another type.
    pub fn from_nvlist(list: &NvList) -> Result<Self> {
        let aux = || -> Result<AuxConfig> {
            Ok(AuxConfig {
                version: list.require_u64("version")?,
                guid: list.require_u64("guid")?,
                ashift: list.u64("ashift"),
                path: list.string("path").cloned(),
                raw: list.clone(),
            })
        };
        match PoolState::from_id(list.require_u64("state")?) {
            PoolState::Spare => aux().map(Self::Spare),
            PoolState::Cache => aux().map(Self::Cache),
            _ => {
                let pool = Box::new(PoolConfig::from_nvlist(list)?);
                if pool.version >= VERSION_FEATURES {
                    list.require_nvlist("features_for_read")?;
                }
                let (guid, top_guid) = (list.require_u64("guid")?, list.require_u64("top_guid")?);
                Ok(Self::Member { guid, top_guid, pool })
            }
        }
    }

    /// The list, with unknown pairs and the order they were decoded in.
    #[must_use]
    pub fn to_nvlist(&self) -> NvList {
        match self {
            Self::Member { guid, top_guid, pool } => {
                let mut list = pool.to_nvlist();
                list.set("top_guid", *top_guid);
                list.set("guid", *guid);
                list
            }
            Self::Spare(aux) => aux.to_nvlist(PoolState::Spare),
            Self::Cache(aux) => aux.to_nvlist(PoolState::Cache),
        }
    }

    /// Guid of the device.
    #[must_use]
    pub const fn guid(&self) -> u64 {
        match self {
            Self::Member { guid, .. } => *guid,
            Self::Spare(aux) | Self::Cache(aux) => aux.guid,
        }
    }

    /// The pool, if the device belongs to one.
    #[must_use]
    pub fn pool(&self) -> Option<&PoolConfig> {
        match self {
            Self::Member { pool, .. } => Some(pool),
            Self::Spare(_) | Self::Cache(_) => None,
        }
    }
}

impl AuxConfig {
    fn to_nvlist(&self, state: PoolState) -> NvList {
        let mut list = self.raw.clone();
        list.set("version", self.version);
        list.set("state", state.id());
        list.set("guid", self.guid);
        put(&mut list, "ashift", self.ashift);
        put(&mut list, "path", self.path.clone());
        list
    }
}

impl PoolConfig {
    /// Reads the list of a label or of the MOS config.
    ///
    /// # Errors
    /// A pair that must exist is absent or of another type, or the vdev tree is bad.
    pub fn from_nvlist(list: &NvList) -> Result<Self> {
        let vdev_tree = VdevConfig::from_nvlist(list.require_nvlist("vdev_tree")?)?;
        let mut raw = NvList { flags: list.flags, pairs: Vec::with_capacity(list.pairs.len()) };
        for (name, value) in list.iter() {
            let value = if name == "vdev_tree" { Value::NvList(NvList::new()) } else { value.clone() };
            raw.pairs.push((name.to_owned(), value));
        }
        let features = raw.nvlist("features_for_read").map(|features| &features.pairs);
        let pool_guid = list.require_u64("pool_guid")?;
        if pool_guid == 0 {
            let reason = Reason::OutOfRange { field: "pool_guid", value: 0 };
            return Err(Error::new("pool config", 0, reason));
        }
        Ok(Self {
            version: list.require_u64("version")?,
            name: list.require_string("name")?.clone(),
            state: PoolState::from_id(list.require_u64("state")?),
            txg: list.require_u64("txg")?,
            pool_guid,
            hostid: list.u64("hostid"),
            hostname: list.string("hostname").cloned(),
            comment: list.string("comment").cloned(),
            vdev_children: list.u64("vdev_children"),
            hole_array: list.u64_array("hole_array").unwrap_or_default().to_vec(),
            is_log: list.flag("is_log"),
            is_spare: list.flag("is_spare"),
            vdev_tree,
            features_for_read: features.into_iter().flatten().map(|(name, _)| name.clone()).collect(),
            raw,
        })
    }

    /// The list, with unknown pairs and the order they were decoded in.
    #[must_use]
    pub fn to_nvlist(&self) -> NvList {
        let mut list = self.raw.clone();
        list.set("version", self.version);
        list.set("name", self.name.clone());
        list.set("state", self.state.id());
        list.set("txg", self.txg);
        list.set("pool_guid", self.pool_guid);
        put(&mut list, "hostid", self.hostid);
        put(&mut list, "hostname", self.hostname.clone());
        put(&mut list, "comment", self.comment.clone());
        put_flag(&mut list, "is_log", self.is_log, Value::Uint64(1));
        put_flag(&mut list, "is_spare", self.is_spare, Value::Uint64(1));
        put_array(&mut list, "hole_array", self.hole_array.clone());
        put(&mut list, "vdev_children", self.vdev_children);
        list.set("vdev_tree", self.vdev_tree.to_nvlist());
        let known = list.nvlist("features_for_read");
        let same = known.is_some_and(|known| known.iter().map(|(name, _)| name).eq(&self.features_for_read));
        if !same {
            let features = self.features_for_read.iter().map(|name| (name.clone(), Value::Boolean));
            list.set("features_for_read", features.collect::<NvList>());
        }
        list
    }
}
