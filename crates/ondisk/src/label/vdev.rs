//! One vdev of a configuration: a typed view of its name-value list, children included.
//!
//! The same shape occurs in labels (one top-level vdev), in the MOS config (the whole tree), and in
//! the lists of spares and cache devices. Fields we know are typed; the list itself is kept in `raw`,
//! so writing a config back changes nothing we did not mean to change.
//!
//! Facts: docs/format/labels.md §4, docs/format/vdevs.md §1.

use crate::Result;
use crate::nvlist::{DEPTH_MAX, NvList, NvStr, Value};
use crate::{Error, Reason};

/// What a vdev is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum VdevKind {
    /// A block device.
    Disk,
    /// A regular file.
    File,
    /// Copies.
    Mirror,
    /// Single, double or triple parity.
    Raidz,
    /// RAIDZ with distributed spares.
    Draid,
    /// An old and a new device while the new one fills.
    Replacing,
    /// A device and the spare that stands in for it.
    Spare,
    /// A distributed spare of a dRAID.
    DraidSpare,
    /// The root of the tree.
    Root,
    /// A removed log device: the slot stays.
    Hole,
    /// A removed data device: its blocks moved elsewhere.
    Indirect,
    /// A device absent when the config was put together.
    Missing,
    /// A word we do not know.
    Other(NvStr),
}

impl VdevKind {
    const WORDS: [(Self, &'static str); 12] = [
        (Self::Disk, "disk"),
        (Self::File, "file"),
        (Self::Mirror, "mirror"),
        (Self::Raidz, "raidz"),
        (Self::Draid, "draid"),
        (Self::Replacing, "replacing"),
        (Self::Spare, "spare"),
        (Self::DraidSpare, "dspare"),
        (Self::Root, "root"),
        (Self::Hole, "hole"),
        (Self::Indirect, "indirect"),
        (Self::Missing, "missing"),
    ];

    fn from_word(word: &NvStr) -> Self {
        let known = Self::WORDS.iter().find(|(_, known)| known.as_bytes() == word.as_bytes());
        known.map_or_else(|| Self::Other(word.clone()), |(kind, _)| kind.clone())
    }

    /// The word in the config.
    #[must_use]
    pub fn word(&self) -> NvStr {
        match self {
            Self::Other(word) => word.clone(),
            kind => {
                let known = Self::WORDS.iter().find(|(known, _)| known == kind);
                known.map_or_else(NvStr::default, |(_, word)| NvStr::from(*word))
            }
        }
    }

    /// Whether it is a device of its own, with labels.
    #[must_use]
    pub const fn is_leaf(&self) -> bool {
        matches!(self, Self::Disk | Self::File | Self::DraidSpare)
    }
}

impl std::fmt::Display for VdevKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.word().fmt(f)
    }
}

/// A vdev's configuration. `None` means the pair is absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VdevConfig {
    /// What it is.
    pub kind: VdevKind,
    /// Random, not 0 (except for holes), unique in the pool.
    pub guid: u64,
    /// Index in the parent; spares and cache devices have none.
    pub id: Option<u64>,
    /// Where the leaf was last seen: a hint only.
    pub path: Option<NvStr>,
    /// RAIDZ and dRAID: parity devices.
    pub nparity: Option<u64>,
    /// RAIDZ: an expansion is running.
    pub raidz_expanding: bool,
    /// RAIDZ: the txgs of finished expansions, ascending.
    pub raidz_expand_txgs: Vec<u64>,
    /// dRAID: data devices per group.
    pub draid_ndata: Option<u64>,
    /// dRAID: distributed spares.
    pub draid_nspares: Option<u64>,
    /// dRAID: groups.
    pub draid_ngroups: Option<u64>,
    /// Top-level: MOS object, the array of space maps.
    pub metaslab_array: Option<u64>,
    /// Top-level: log2 of a metaslab's size in bytes.
    pub metaslab_shift: Option<u64>,
    /// Top-level: log2 of the smallest I/O in bytes.
    pub ashift: Option<u64>,
    /// Top-level: allocatable bytes.
    pub asize: Option<u64>,
    /// Top-level: of the intent log.
    pub is_log: bool,
    /// Leaf: MOS object, the space map of txgs it missed.
    pub dtl: Option<u64>,
    /// Txg in which the vdev was added.
    pub create_txg: Option<u64>,
    /// Top-level: no new allocations here.
    pub non_allocating: bool,
    /// Top-level: being evacuated.
    pub removing: bool,
    /// Leaf: taken offline by the administrator.
    pub offline: bool,
    /// Leaf: too many errors.
    pub faulted: bool,
    /// Leaf: errors, still in use.
    pub degraded: bool,
    /// Leaf: pulled out.
    pub removed: bool,
    /// Leaf: could not be opened when the config was written.
    pub not_present: bool,
    /// Leaf: a hot spare in use.
    pub is_spare: bool,
    /// Leaf: detach the spare when the resilver ends.
    pub unspare: bool,
    /// Leaf: a healing resilver of it began in this txg.
    pub resilver_txg: Option<u64>,
    /// Leaf: a sequential rebuild of it began in this txg.
    pub rebuild_txg: Option<u64>,
    /// Indirect: MOS object of the mapping.
    pub indirect_object: Option<u64>,
    /// Indirect: MOS object of the births.
    pub indirect_births: Option<u64>,
    /// Indirect: the vdev removed before this one.
    pub prev_indirect_vdev: Option<u64>,
    /// MOS config: ZAP of a top-level vdev.
    pub zap_top: Option<u64>,
    /// MOS config: ZAP of a leaf.
    pub zap_leaf: Option<u64>,
    /// MOS config: ZAP of the root.
    pub zap_root: Option<u64>,
    /// Children, in order.
    pub children: Vec<Self>,
    /// All pairs as decoded, children emptied; typed fields win when encoding.
    pub raw: NvList,
}

const INDIRECT_OBJECT: &str = "com.delphix:indirect_object";
const INDIRECT_BIRTHS: &str = "com.delphix:indirect_births";
const PREV_INDIRECT: &str = "com.delphix:prev_indirect_vdev";
const ZAP_TOP: &str = "com.delphix:vdev_zap_top";
const ZAP_LEAF: &str = "com.delphix:vdev_zap_leaf";
const ZAP_ROOT: &str = "com.klarasystems:vdev_zap_root";

impl VdevConfig {
    /// A vdev of which only kind and guid are known.
    #[must_use]
    pub fn new(kind: VdevKind, guid: u64) -> Self {
        Self::from_known(kind, guid, NvList::new(), Vec::new())
    }

    /// Reads a `vdev_tree`, a child, a spare or a cache device.
    ///
    /// # Errors
    /// No `type` or no `guid`, or deeper nesting than [`DEPTH_MAX`].
    pub fn from_nvlist(list: &NvList) -> Result<Self> {
        Self::read(list, 0)
    }

    fn read(list: &NvList, depth: usize) -> Result<Self> {
        if depth > DEPTH_MAX {
            return Err(Error::new("vdev config", 0, Reason::TooDeep { limit: DEPTH_MAX }));
        }
        let kind = VdevKind::from_word(list.require_string("type")?);
        let guid = list.require_u64("guid")?;
        let children = list.nvlist_array("children").unwrap_or_default();
        let deeper = depth.saturating_add(1);
        let children = children.iter().map(|child| Self::read(child, deeper)).collect::<Result<_>>()?;
        let mut raw = NvList { flags: list.flags, pairs: Vec::with_capacity(list.pairs.len()) };
        for (name, value) in list.iter() {
            let emptied = name == "children" && matches!(value, Value::NvListArray(_));
            let value = if emptied { Value::NvListArray(Vec::new()) } else { value.clone() };
            raw.pairs.push((name.to_owned(), value));
        }
        Ok(Self::from_known(kind, guid, raw, children))
    }

    fn from_known(kind: VdevKind, guid: u64, raw: NvList, children: Vec<Self>) -> Self {
        Self {
            kind,
            guid,
            id: raw.u64("id"),
            path: raw.string("path").cloned(),
            nparity: raw.u64("nparity"),
            raidz_expanding: raw.flag("raidz_expanding"),
            raidz_expand_txgs: raw.u64_array("raidz_expand_txgs").unwrap_or_default().to_vec(),
            draid_ndata: raw.u64("draid_ndata"),
            draid_nspares: raw.u64("draid_nspares"),
            draid_ngroups: raw.u64("draid_ngroups"),
            metaslab_array: raw.u64("metaslab_array"),
            metaslab_shift: raw.u64("metaslab_shift"),
            ashift: raw.u64("ashift"),
            asize: raw.u64("asize"),
            is_log: raw.flag("is_log"),
            dtl: raw.u64("DTL"),
            create_txg: raw.u64("create_txg"),
            non_allocating: raw.flag("non_allocating"),
            removing: raw.flag("removing"),
            offline: raw.flag("offline"),
            faulted: raw.flag("faulted"),
            degraded: raw.flag("degraded"),
            removed: raw.flag("removed"),
            not_present: raw.flag("not_present"),
            is_spare: raw.flag("is_spare"),
            unspare: raw.flag("unspare"),
            resilver_txg: raw.u64("resilver_txg"),
            rebuild_txg: raw.u64("rebuild_txg"),
            indirect_object: raw.u64(INDIRECT_OBJECT),
            indirect_births: raw.u64(INDIRECT_BIRTHS),
            prev_indirect_vdev: raw.u64(PREV_INDIRECT),
            zap_top: raw.u64(ZAP_TOP),
            zap_leaf: raw.u64(ZAP_LEAF),
            zap_root: raw.u64(ZAP_ROOT),
            children,
            raw,
        }
    }

    /// The list, with unknown pairs and the order they were decoded in.
    #[must_use]
    pub fn to_nvlist(&self) -> NvList {
        let mut list = self.raw.clone();
        list.set("type", self.kind.word());
        put(&mut list, "id", self.id);
        list.set("guid", self.guid);
        put(&mut list, "path", self.path.clone());
        put(&mut list, "nparity", self.nparity);
        put_flag(&mut list, "raidz_expanding", self.raidz_expanding, Value::Boolean);
        put_array(&mut list, "raidz_expand_txgs", self.raidz_expand_txgs.clone());
        for (name, value) in [
            ("draid_ndata", self.draid_ndata),
            ("draid_nspares", self.draid_nspares),
            ("draid_ngroups", self.draid_ngroups),
            ("metaslab_array", self.metaslab_array),
            ("metaslab_shift", self.metaslab_shift),
            ("ashift", self.ashift),
            ("asize", self.asize),
        ] {
            put(&mut list, name, value);
        }
        for (name, set) in [
            ("is_log", self.is_log),
            ("non_allocating", self.non_allocating),
            ("removing", self.removing),
            ("offline", self.offline),
            ("faulted", self.faulted),
            ("degraded", self.degraded),
            ("removed", self.removed),
            ("not_present", self.not_present),
            ("is_spare", self.is_spare),
            ("unspare", self.unspare),
        ] {
            put_flag(&mut list, name, set, Value::Uint64(1));
        }
        for (name, value) in [
            ("DTL", self.dtl),
            ("create_txg", self.create_txg),
            ("resilver_txg", self.resilver_txg),
            ("rebuild_txg", self.rebuild_txg),
            (INDIRECT_OBJECT, self.indirect_object),
            (INDIRECT_BIRTHS, self.indirect_births),
            (PREV_INDIRECT, self.prev_indirect_vdev),
            (ZAP_TOP, self.zap_top),
            (ZAP_LEAF, self.zap_leaf),
            (ZAP_ROOT, self.zap_root),
        ] {
            put(&mut list, name, value);
        }
        put_array(&mut list, "children", self.children.iter().map(Self::to_nvlist).collect());
        list
    }

    /// This vdev and all below it, parents first.
    pub fn walk(&self) -> impl Iterator<Item = &Self> {
        let mut pending = vec![self];
        std::iter::from_fn(move || {
            let next = pending.pop()?;
            pending.extend(next.children.iter().rev());
            Some(next)
        })
    }

    /// Wrapping sum of the guids of this vdev and all below it: what an uberblock's `guid_sum` is for
    /// the root.
    #[must_use]
    pub fn guid_sum(&self) -> u64 {
        self.walk().map(|vdev| vdev.guid).fold(0, u64::wrapping_add)
    }
}

/// Sets a pair, or removes it: but a pair of a type we did not expect stays as it is.
pub(super) fn put<T: Into<Value>>(list: &mut NvList, name: &str, value: Option<T>) {
    match (value, list.get(name)) {
        (Some(value), _) => list.set(name, value),
        (None, Some(Value::Uint64(_) | Value::String(_))) => drop(list.remove(name)),
        (None, _) => {}
    }
}

/// Sets an array; an empty one only if the pair is there already, as removed vdevs have `children`.
pub(super) fn put_array<T>(list: &mut NvList, name: &str, values: Vec<T>)
where
    Vec<T>: Into<Value>,
{
    if !values.is_empty() || list.contains(name) {
        list.set(name, values);
    }
}

/// Makes `name` say `set`, in the form it already has if that says the same.
pub(super) fn put_flag(list: &mut NvList, name: &str, set: bool, value: Value) {
    match (set, list.flag(name)) {
        (true, false) => list.set(name, value),
        (false, true) => drop(list.remove(name)),
        _ => {}
    }
}
