//! The device tree of a pool: what devices there are, how they are, and which of them may be trusted
//! with which block.
//!
//! ```text
//!   root ─┬─ mirror-0 ─┬─ leaf            a top-level device gives linear space to block pointers,
//!         │            └─ replacing ─ …   interior ones map (offset, size) onto their children,
//!         ├─ raidz2-1 ─── leaf × n        leaves are `Disk`s
//!         ├─ indirect-2                   removed: its space lives on elsewhere, through a mapping
//!         └─ hole-3                       an id that stays taken
//! ```
//!
//! The tree is built from a configuration (labels, or the pool's own) and a table of opened devices,
//! and its shape does not change afterwards. What changes is how each leaf is ([`Condition`]), and what is learnt
//! later: error counters, dirty time logs, mappings and allocation classes. A clone of a device shares all that with
//! its original, so a pool that gets another device goes on with a new tree of the same devices
//! ([`Tree::with_top`], `PoolIo::set_tree`).
//!
//! Not here: reading (`io`), where a RAIDZ block lies ([`raidz`]). Facts: docs/format/vdevs.md.

use std::{collections::BTreeMap, fmt, sync::Arc, sync::OnceLock};

use disk::Disk;
use ondisk::nvlist::NvList;
use tokio::sync::Semaphore;

mod condition;
pub mod deadline;
pub mod indirect;
mod pulse;
pub mod raidz;
mod reshape;
mod state;
mod tally;
mod txgs;

pub use condition::{Condition, Standing};
pub use deadline::Deadline;
pub use indirect::Mapping;
pub use pulse::{Beat, Demand, Pulse, SLOW};
pub use raidz::{Geometry, Reflow};
pub use state::{Aux, Counters, Errors, State};
pub use tally::{Counted, Job, SIZES, TIMES, Tallied, Tally, Work};
pub use txgs::{Missed, TxgSet};

/// Deepest nesting accepted: root, mirror, raidz, spare, replacing and leaf are 6.
const DEPTH_MAX: usize = 8;
/// Most devices accepted in one pool. The largest known have some thousands; a list of a million costs
/// memory before anything about it can be checked.
const DEVICES_MAX: usize = 1 << 14;
/// Reads of one leaf that may be under way at once.
const LEAF_READS: usize = 32;

/// What kind of device a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A block device.
    Disk,
    /// A regular file.
    File,
    /// Copies.
    Mirror,
    /// An old device and the one that takes its place.
    Replacing,
    /// A device and the hot spare that stands in.
    Spare,
    /// Parity.
    Raidz(Geometry),
    /// Distributed parity: recognised, not read.
    Draid {
        /// Parity devices per group.
        parity: u64,
        /// Data devices per group.
        data: u64,
        /// Distributed spares.
        spares: u64,
    },
    /// A spare distributed inside a dRAID device: recognised, not read.
    DistributedSpare,
    /// A removed device.
    Indirect {
        /// MOS object of the mapping.
        mapping_object: u64,
        /// MOS object of the births.
        births_object: u64,
    },
    /// A slot whose device is gone.
    Hole,
    /// A top-level device that no label found tells about.
    Missing,
    /// A type this implementation does not know.
    Unknown(String),
}

/// Which allocations a top-level device is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Everything.
    #[default]
    Normal,
    /// Deduplication tables.
    Dedup,
    /// Metadata and small blocks.
    Special,
    /// The intent log.
    Log,
}

/// What only top-level devices have.
#[derive(Clone, Debug)]
pub struct Top {
    /// log2 of the smallest I/O.
    pub ashift: u32,
    /// Allocatable bytes, parity included.
    pub asize: u64,
    /// MOS object: array of space map objects, one per metaslab; 0 if there is none.
    pub metaslab_array: u64,
    /// log2 of the size of a metaslab.
    pub metaslab_shift: u32,
    /// Its ZAP in the MOS, if the configuration names one.
    pub zap: Option<u64>,
    /// Holds the intent log only.
    pub is_log: bool,
    /// Being removed.
    pub removing: bool,
    /// Takes no new allocations.
    pub non_allocating: bool,
    /// Learnt from its ZAP.
    pub bias: Arc<OnceLock<Class>>,
    /// Learnt from the MOS, for a removed device.
    pub mapping: Arc<OnceLock<Mapping>>,
    /// Learnt from its ZAP: its last expansion.
    pub expansion: Arc<OnceLock<Expansion>>,
}

/// How the last expansion of a RAIDZ device went, as its ZAP tells. Times in seconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expansion {
    /// 1 running, 2 finished.
    pub state: u64,
    /// When it began.
    pub start: u64,
    /// When it ended; 0 while it runs.
    pub end: u64,
    /// Bytes moved.
    pub copied: u64,
}

/// What only leaves have. Shared by all trees it is in.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// How it is now, and its device.
    pub condition: Arc<Condition>,
    /// The administrator gave a whole disk; the pool lives on its first partition.
    pub whole_disk: bool,
    /// A hot spare in use.
    pub is_spare: bool,
    /// MOS object of its dirty time log, as the configuration had it when the tree was made.
    pub dtl_object: Option<u64>,
    /// Txgs whose writes it missed: its dirty time log, once read, and writes that failed since.
    pub missed: Arc<Missed>,
    /// How busy and how fast it is.
    pub pulse: Arc<Pulse>,
    /// Bounds the reads under way.
    pub(crate) gate: Arc<Semaphore>,
}

/// One device of the tree.
#[derive(Clone, Debug)]
pub struct Vdev {
    /// What it is.
    pub kind: Kind,
    /// Index in its parent.
    pub id: u64,
    /// Random id; 0 for holes.
    pub guid: u64,
    /// Where its path was when the configuration was written.
    pub path: Option<String>,
    /// Devices below.
    pub children: Vec<Self>,
    /// Present on top-level devices.
    pub top: Option<Top>,
    /// Present on leaves.
    pub leaf: Option<Leaf>,
    /// Errors since the pool was opened.
    pub counters: Arc<Counters>,
}

/// All devices of a pool.
#[derive(Clone, Debug)]
pub struct Tree {
    /// The pool's guid.
    pub guid: u64,
    /// Top-level devices by id, without gaps.
    pub tops: Vec<Vdev>,
    /// Errors that reached the pool itself: blocks nothing could give.
    pub counters: Arc<Counters>,
}

/// A configuration that describes no possible tree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the pool configuration is invalid: {0}")]
pub struct ConfigError(pub String);

/// Devices found, by the guid their label claims.
pub type Disks = BTreeMap<u64, Arc<dyn Disk>>;

impl Tree {
    /// Builds the tree of a pool from the `vdev_tree` of its root, or from top-level trees alone.
    ///
    /// `reflow` is where a running RAIDZ expansion stands, from the uberblock.
    ///
    /// # Errors
    /// The configuration is no possible tree (missing ids, impossible geometry, too deep).
    pub fn from_tops(
        guid: u64,
        tops: &[&NvList],
        disks: &Disks,
        reflow: Option<Reflow>,
    ) -> Result<Self, ConfigError> {
        let devices = tops.iter().map(|nv| count_devices(nv, 0)).fold(0, usize::saturating_add);
        if devices > DEVICES_MAX {
            return Err(ConfigError(format!("{devices} devices, more than the {DEVICES_MAX} accepted")));
        }
        let mut by_id = BTreeMap::new();
        for nv in tops {
            let vdev = Vdev::build(nv, disks, reflow, None, 0)?;
            by_id.insert(vdev.id, vdev);
        }
        let last = by_id.keys().next_back().copied().unwrap_or(0);
        if last > 1 << 16 {
            return Err(ConfigError(format!("top-level device id {last}")));
        }
        let mut tops: Vec<Vdev> = Vec::with_capacity(by_id.len());
        for (id, vdev) in by_id {
            while (tops.len() as u64) < id {
                tops.push(Vdev::placeholder(Kind::Missing, tops.len() as u64));
            }
            tops.push(vdev);
        }
        Ok(Self { guid, tops, counters: Arc::default() })
    }

    /// A tree without devices, for a pool whose configuration makes no sense.
    #[must_use]
    pub fn empty(guid: u64) -> Self {
        Self { guid, tops: Vec::new(), counters: Arc::default() }
    }

    /// Appends placeholders until there are `count` top-level devices; `holes` names the ids that are
    /// known to be empty.
    pub fn fill(&mut self, count: u64, holes: &[u64]) {
        while (self.tops.len() as u64) < count.min(1 << 16) {
            self.tops.push(Vdev::placeholder(Kind::Missing, self.tops.len() as u64));
        }
        for &id in holes {
            if let Some(top) = usize::try_from(id).ok().and_then(|i| self.tops.get_mut(i))
                && top.kind == Kind::Missing
            {
                *top = Vdev::placeholder(Kind::Hole, id);
            }
        }
    }

    /// The same devices and one more, which must have the next id.
    ///
    /// # Errors
    /// The configuration is no possible device, or its id is not the next.
    pub fn with_top(&self, nv: &NvList, disks: &Disks) -> Result<Self, ConfigError> {
        let vdev = Vdev::build(nv, disks, None, None, 0)?;
        if vdev.id != self.tops.len() as u64 {
            return Err(ConfigError(format!("device {} after {}", vdev.id, self.tops.len())));
        }
        let mut tree = self.clone();
        tree.tops.push(vdev);
        Ok(tree)
    }

    /// The same devices with a hole in the place of one.
    #[must_use]
    pub fn with_hole(&self, id: u64) -> Self {
        let mut tree = self.clone();
        if let Some(top) = usize::try_from(id).ok().and_then(|id| tree.tops.get_mut(id)) {
            *top = Vdev::placeholder(Kind::Hole, id);
        }
        tree
    }

    /// The same devices without the last.
    #[must_use]
    pub fn without_last(&self) -> Self {
        let mut tree = self.clone();
        tree.tops.pop();
        tree
    }

    /// A top-level device by id.
    #[must_use]
    pub fn top(&self, id: u64) -> Option<&Vdev> {
        self.tops.get(usize::try_from(id).ok()?)
    }

    /// The top-level device that a leaf is or is part of.
    #[must_use]
    pub fn top_around(&self, leaf: u64) -> Option<&Vdev> {
        self.tops.iter().find(|top| top.leaves().iter().any(|vdev| vdev.guid == leaf))
    }

    /// All leaves, left to right.
    #[must_use]
    pub fn leaves(&self) -> Vec<&Vdev> {
        let mut found = Vec::new();
        self.tops.iter().for_each(|top| top.collect_leaves(&mut found));
        found
    }

    /// Sum of all guids, the pool's included, as an uberblock records it.
    #[must_use]
    pub fn guid_sum(&self) -> u64 {
        self.tops.iter().fold(self.guid, |sum, top| sum.wrapping_add(top.guid_sum()))
    }

    /// State of the whole: worst of what it needs. `UNAVAIL` if a top-level device other than a log
    /// cannot be read.
    #[must_use]
    pub fn state(&self) -> (State, Aux) {
        let (mut faulted, mut degraded, mut corrupted) = (false, false, false);
        for top in self.tops.iter().filter(|top| !matches!(top.kind, Kind::Hole | Kind::Indirect { .. })) {
            let (state, aux) = top.state();
            match state {
                State::Healthy => {}
                _ if state.is_readable() || top.is_log() => degraded = true,
                _ => faulted = true,
            }
            corrupted |= aux == Aux::CorruptData;
        }
        match (faulted, degraded) {
            (true, _) if corrupted => (State::CantOpen, Aux::CorruptData),
            (true, _) => (State::CantOpen, Aux::NoReplicas),
            (_, true) => (State::Degraded, Aux::None),
            _ => (State::Healthy, Aux::None),
        }
    }

    /// Forgets all counted errors.
    pub fn reset_errors(&self) {
        self.counters.reset();
        self.tops.iter().for_each(Vdev::reset_errors);
    }
}

/// Devices in a configuration, interior ones included.
fn count_devices(nv: &NvList, depth: usize) -> usize {
    let children = nv.nvlist_array("children").unwrap_or_default();
    if depth > DEPTH_MAX {
        return 1;
    }
    children.iter().map(|child| count_devices(child, depth + 1)).fold(1, usize::saturating_add)
}

/// Smallest and largest sector, as powers of two.
const ASHIFTS: std::ops::RangeInclusive<u64> = 9..=16;

impl Vdev {
    fn placeholder(kind: Kind, id: u64) -> Self {
        Self {
            kind,
            id,
            guid: 0,
            path: None,
            children: Vec::new(),
            top: None,
            leaf: None,
            counters: Arc::default(),
        }
    }

    /// A leaf outside the tree: an inactive spare or a cache device.
    ///
    /// # Errors
    /// As [`Tree::from_tops`].
    pub fn auxiliary(nv: &NvList, disks: &Disks) -> Result<Self, ConfigError> {
        let mut nv = nv.clone();
        // No block is laid out on it. OpenZFS writes 0 for one that it never could open.
        if nv.u64("ashift").is_some_and(|ashift| !ASHIFTS.contains(&ashift)) {
            nv.remove("ashift");
        }
        Self::build(&nv, disks, None, None, 0)
    }

    /// `ashift` is that of the parent: only top-level devices say theirs.
    fn build(
        nv: &NvList,
        disks: &Disks,
        reflow: Option<Reflow>,
        ashift: Option<u64>,
        depth: usize,
    ) -> Result<Self, ConfigError> {
        let word = nv.str("type").ok_or_else(|| ConfigError("a device without type".to_owned()))?;
        if depth > DEPTH_MAX {
            return Err(ConfigError("devices nested too deep".to_owned()));
        }
        // The place of a removed device has sizes too, all of them 0.
        let ashift = nv.u64("ashift").or(ashift).filter(|_| word != "hole");
        let mut children = Vec::new();
        for child in nv.nvlist_array("children").unwrap_or_default() {
            children.push(Self::build(child, disks, reflow, ashift, depth + 1)?);
        }
        let top = (depth == 0 && word != "hole" && word != "missing").then(|| Top::from_config(nv));
        if let Some(ashift) = ashift.filter(|ashift| !ASHIFTS.contains(ashift)) {
            return Err(ConfigError(format!("ashift {ashift}")));
        }
        let kind = match word {
            "disk" => Kind::Disk,
            "file" => Kind::File,
            "mirror" => Kind::Mirror,
            "replacing" => Kind::Replacing,
            "spare" => Kind::Spare,
            "raidz" => Kind::Raidz(raidz_geometry(nv, children.len(), ashift, reflow)?),
            "draid" => Kind::Draid {
                parity: nv.u64("nparity").unwrap_or(1),
                data: nv.u64("draid_ndata").unwrap_or(0),
                spares: nv.u64("draid_nspares").unwrap_or(0),
            },
            "dspare" => Kind::DistributedSpare,
            "indirect" => Kind::Indirect {
                mapping_object: nv.u64("com.delphix:indirect_object").unwrap_or(0),
                births_object: nv.u64("com.delphix:indirect_births").unwrap_or(0),
            },
            "hole" => Kind::Hole,
            "missing" => Kind::Missing,
            other => Kind::Unknown(other.to_owned()),
        };
        if children.is_empty() && matches!(kind, Kind::Mirror | Kind::Replacing | Kind::Spare) {
            return Err(ConfigError(format!("a {word} without children")));
        }
        let guid = nv.u64("guid").unwrap_or(0);
        let leaf = matches!(kind, Kind::Disk | Kind::File | Kind::DistributedSpare)
            .then(|| Leaf::new(nv, disks.get(&guid)));
        Ok(Self {
            id: nv.u64("id").unwrap_or(0),
            guid,
            path: nv.str("path").map(str::to_owned),
            children,
            top,
            leaf,
            kind,
            counters: Arc::default(),
        })
    }

    /// The leaves below it, left to right; itself if it is one.
    #[must_use]
    pub fn leaves(&self) -> Vec<&Self> {
        let mut found = Vec::new();
        self.collect_leaves(&mut found);
        found
    }

    pub(crate) fn collect_leaves<'a>(&'a self, found: &mut Vec<&'a Self>) {
        if self.leaf.is_some() {
            found.push(self);
        }
        self.children.iter().for_each(|child| child.collect_leaves(found));
    }

    fn guid_sum(&self) -> u64 {
        self.children.iter().fold(self.guid, |sum, child| sum.wrapping_add(child.guid_sum()))
    }

    fn reset_errors(&self) {
        self.counters.reset();
        if let Some(leaf) = &self.leaf {
            leaf.pulse.reset();
        }
        self.children.iter().for_each(Self::reset_errors);
    }

    /// Its state now, and why.
    #[must_use]
    pub fn state(&self) -> (State, Aux) {
        if let Some(leaf) = &self.leaf {
            return leaf.state();
        }
        match &self.kind {
            Kind::Hole | Kind::Indirect { .. } => return (State::Healthy, Aux::None),
            Kind::Missing => return (State::CantOpen, Aux::BadGuidSum),
            Kind::Unknown(_) => return (State::CantOpen, Aux::UnsupportedFeature),
            _ => {}
        }
        let states: Vec<_> = self.children.iter().map(Self::state).collect();
        let faulted = states.iter().filter(|(state, _)| !state.is_readable()).count();
        let degraded = states.iter().filter(|(state, _)| *state == State::Degraded).count();
        let tolerated = match &self.kind {
            Kind::Raidz(geometry) => geometry.parity,
            Kind::Draid { parity, .. } => *parity as usize,
            _ => self.children.len().saturating_sub(1),
        };
        let all_offline = states.iter().all(|(state, _)| *state == State::Offline);
        match (faulted, degraded) {
            _ if faulted > tolerated && all_offline && faulted == self.children.len() => {
                (State::Offline, Aux::ChildrenOffline)
            }
            _ if faulted > tolerated => (State::CantOpen, Aux::NoReplicas),
            (0, 0) => (State::Healthy, Aux::None),
            _ => (State::Degraded, Aux::None),
        }
    }

    /// Whether it was excluded for its faults, all of it, and the configuration says so: of a log device, that is only
    /// written down when everything it was trusted with is in the pool.
    #[must_use]
    pub fn is_excluded(&self) -> bool {
        match &self.leaf {
            Some(leaf) => leaf.condition.get().faulted,
            None => !self.children.is_empty() && self.children.iter().all(Self::is_excluded),
        }
    }

    /// Whether data can be read from it at all.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        self.state().0.is_readable()
    }

    /// Whether it is so slow that others are to be asked before it.
    #[must_use]
    pub fn sits_out(&self) -> bool {
        match &self.leaf {
            Some(leaf) => leaf.condition.get().sits_out,
            None => {
                let mut readable = self.children.iter().filter(|child| child.is_readable()).peekable();
                !matches!(self.kind, Kind::Raidz(_))
                    && readable.peek().is_some()
                    && readable.all(Self::sits_out)
            }
        }
    }

    /// Whether it may hold older bytes than a block born in `birth` (physical birth) has: it was away
    /// when that txg was written.
    #[must_use]
    pub fn missed(&self, birth: u64) -> bool {
        if let Some(leaf) = &self.leaf {
            return leaf.missed.contains(birth);
        }
        let stale = self.children.iter().filter(|child| !child.is_readable() || child.missed(birth)).count();
        match &self.kind {
            Kind::Raidz(geometry) => stale > geometry.parity,
            _ => !self.children.is_empty() && stale == self.children.len(),
        }
    }

    /// The name `zpool status` shows: path, `mirror-0`, `raidz2-1`, or the guid of a device that is gone.
    #[must_use]
    pub fn display_name(&self) -> String {
        let id = self.id;
        match &self.kind {
            Kind::Disk | Kind::File | Kind::DistributedSpare => match (&self.path, &self.leaf) {
                (Some(path), Some(leaf)) if leaf.condition.get().is_known_here() => {
                    short_path(path, leaf.whole_disk).to_owned()
                }
                _ => self.guid.to_string(),
            },
            Kind::Mirror => format!("mirror-{id}"),
            Kind::Replacing => format!("replacing-{id}"),
            Kind::Spare => format!("spare-{id}"),
            Kind::Raidz(geometry) => format!("raidz{}-{id}", geometry.parity),
            Kind::Draid { parity, data, spares } => {
                format!("draid{parity}:{data}d:{}c:{spares}s-{id}", self.children.len())
            }
            Kind::Indirect { .. } => format!("indirect-{id}"),
            Kind::Hole => format!("hole-{id}"),
            Kind::Missing => format!("missing-{id}"),
            Kind::Unknown(word) => format!("{word}-{id}"),
        }
    }

    /// The path of the disk of which OpenZFS made a partition for this leaf: what it was given, and shows.
    #[must_use]
    pub fn disk_path(&self) -> Option<&str> {
        let is_whole_disk = self.leaf.as_ref().is_some_and(|leaf| leaf.whole_disk);
        disk_of(self.path.as_deref().filter(|_| is_whole_disk)?)
    }

    /// The word in its configuration.
    #[must_use]
    pub fn type_word(&self) -> &str {
        match &self.kind {
            Kind::Disk => "disk",
            Kind::File => "file",
            Kind::Mirror => "mirror",
            Kind::Replacing => "replacing",
            Kind::Spare => "spare",
            Kind::Raidz(_) => "raidz",
            Kind::Draid { .. } => "draid",
            Kind::DistributedSpare => "dspare",
            Kind::Indirect { .. } => "indirect",
            Kind::Hole => "hole",
            Kind::Missing => "missing",
            Kind::Unknown(word) => word,
        }
    }

    /// Which allocations a top-level device is for.
    #[must_use]
    pub fn class(&self) -> Class {
        match &self.top {
            Some(top) if top.is_log => Class::Log,
            Some(top) => top.bias.get().copied().unwrap_or_default(),
            None => Class::Normal,
        }
    }

    /// Whether it is a top-level device that holds nothing but the intent log.
    #[must_use]
    pub fn is_log(&self) -> bool {
        self.top.as_ref().is_some_and(|top| top.is_log)
    }
}

impl Top {
    /// Whole metaslabs in its allocatable bytes. What remains behind the last one is never used.
    #[must_use]
    pub fn metaslabs(&self) -> u64 {
        self.metaslabs_of(self.asize)
    }

    /// How many there would be if it had `asize` allocatable bytes.
    #[must_use]
    pub fn metaslabs_of(&self, asize: u64) -> u64 {
        asize.checked_shr(self.metaslab_shift).unwrap_or(0)
    }

    fn from_config(nv: &NvList) -> Self {
        let flag = |name| nv.u64(name).unwrap_or(0) != 0;
        Self {
            ashift: nv.u64("ashift").and_then(|v| u32::try_from(v).ok()).unwrap_or(9),
            asize: nv.u64("asize").unwrap_or(0),
            metaslab_array: nv.u64("metaslab_array").unwrap_or(0),
            metaslab_shift: nv.u64("metaslab_shift").map_or(0, |v| v.min(63) as u32),
            zap: nv.u64("com.delphix:vdev_zap_top").filter(|&object| object != 0),
            is_log: flag("is_log"),
            removing: flag("removing"),
            non_allocating: flag("non_allocating"),
            bias: Arc::default(),
            mapping: Arc::default(),
            expansion: Arc::default(),
        }
    }
}

impl Leaf {
    fn new(nv: &NvList, disk: Option<&Arc<dyn Disk>>) -> Self {
        let flag = |name| nv.u64(name).unwrap_or(0) != 0;
        Self {
            condition: Arc::new(Condition::new(Standing::of(nv, disk.cloned()))),
            whole_disk: flag("whole_disk"),
            is_spare: flag("is_spare"),
            dtl_object: nv.u64("DTL").filter(|&object| object != 0),
            missed: Arc::default(),
            pulse: Arc::default(),
            gate: Arc::new(Semaphore::new(LEAF_READS)),
        }
    }

    /// The device, if it was found and is the one it should be.
    #[must_use]
    pub fn disk(&self) -> Option<Arc<dyn Disk>> {
        self.condition.get().disk.clone()
    }

    /// The same for whoever writes to it: what it does ends in time ([`deadline`]).
    #[must_use]
    pub fn timed(&self) -> Option<Arc<dyn Disk>> {
        self.condition.get().timed().cloned()
    }

    /// Its state now, and why.
    #[must_use]
    pub fn state(&self) -> (State, Aux) {
        self.condition.get().state()
    }
}

fn raidz_geometry(
    nv: &NvList,
    children: usize,
    ashift: Option<u64>,
    reflow: Option<Reflow>,
) -> Result<Geometry, ConfigError> {
    // Very old pools do not say: there was only single parity then.
    let parity = nv.u64("nparity").unwrap_or(1);
    if !(1..=3).contains(&parity) || children as u64 <= parity || children > 255 {
        return Err(ConfigError(format!("raidz{parity} of {children} devices")));
    }
    let expanding = nv.contains("raidz_expanding");
    let expand_txgs = nv.u64_array("raidz_expand_txgs").unwrap_or_default().to_vec();
    if children < parity as usize + 1 + expand_txgs.len() + usize::from(expanding) {
        return Err(ConfigError(format!(
            "raidz{parity} of {children} devices was expanded {} times",
            expand_txgs.len()
        )));
    }
    Ok(Geometry {
        children,
        parity: parity as usize,
        ashift: ashift.unwrap_or(9) as u32,
        expand_txgs,
        reflow: expanding.then(|| reflow.unwrap_or(Reflow { offset: 0, scratch: false })),
    })
}

/// Directories whose names say nothing about a device.
const DEVICE_DIRS: [&str; 9] = [
    "/dev/disk/by-vdev/",
    "/dev/disk/by-partlabel/",
    "/dev/disk/by-partuuid/",
    "/dev/disk/by-label/",
    "/dev/disk/by-uuid/",
    "/dev/disk/by-id/",
    "/dev/disk/by-path/",
    "/dev/mapper/",
    "/dev/",
];

/// A path without the directory all devices are in, and without the partition OpenZFS itself made.
fn short_path(path: &str, whole_disk: bool) -> &str {
    let Some(name) = in_device_dir(path) else { return path };
    match without_partition(name) {
        Some(disk) if whole_disk => disk,
        _ => name,
    }
}

fn in_device_dir(path: &str) -> Option<&str> {
    DEVICE_DIRS.iter().find_map(|dir| path.strip_prefix(dir))
}

/// The disk of a partition that is called as OpenZFS calls the one it makes; none if it is not called so.
fn without_partition(name: &str) -> Option<&str> {
    if let Some(disk) = name.strip_suffix("-part1") {
        return Some(disk);
    }
    // nvme0n1p1 → nvme0n1, sda1 → sda; nvme0n1 is a disk.
    let disk = name.strip_suffix('1')?;
    let numbered = disk.strip_suffix('p').filter(|disk| disk.ends_with(|c: char| c.is_ascii_digit()));
    let lettered =
        Some(disk).filter(|disk| !disk.is_empty() && disk.chars().all(|c| c.is_ascii_alphabetic()));
    numbered.or(lettered)
}

/// The path of the disk of a partition below `/dev` that is called as OpenZFS calls the one it makes of a whole disk.
#[must_use]
pub fn disk_of(path: &str) -> Option<&str> {
    let name = in_device_dir(path)?;
    let disk = without_partition(name)?;
    path.get(..path.len() - (name.len() - disk.len()))
}

/// The name of a leaf by its path alone.
pub(crate) fn short_name(path: &str) -> String {
    short_path(path, false).to_owned()
}

impl fmt::Display for Vdev {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.display_name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_that_openzfs_made_has_a_disk() {
        for (path, disk) in [
            ("/dev/sdc1", Some("/dev/sdc")),
            ("/dev/sdp1", Some("/dev/sdp")),
            ("/dev/nvme0n1p1", Some("/dev/nvme0n1")),
            ("/dev/disk/by-id/ata-X-part1", Some("/dev/disk/by-id/ata-X")),
            ("/dev/sdc1/old", None),
            ("/dev/sdc2", None),
            ("/dev/nvme0n1", None),
            ("/images/a1", None),
        ] {
            assert_eq!(disk_of(path), disk, "{path}");
        }
    }

    /// As the pool's own configuration has it after a log device was removed.
    #[test]
    fn the_place_of_a_removed_device_is_a_hole_whatever_its_sizes() {
        let device = |word: &str, id: u64, ashift: u64| {
            let mut nv = NvList::new();
            nv.set("type", word);
            for (name, value) in [("id", id), ("guid", id * 7), ("ashift", ashift)] {
                nv.set(name, value);
            }
            nv
        };
        let (disk, hole) = (device("disk", 0, 9), device("hole", 1, 0));
        let tree = Tree::from_tops(1, &[&disk, &hole], &Disks::new(), None).unwrap();
        assert_eq!((tree.tops[1].kind.clone(), tree.tops[1].state().0), (Kind::Hole, State::Healthy));
        assert!(Tree::from_tops(1, &[&device("disk", 0, 0)], &Disks::new(), None).is_err());
    }

    #[test]
    fn a_million_devices_are_refused_before_any_is_built() {
        let mut leaf = NvList::new();
        leaf.set("type", "disk");
        let mut mirror = leaf.clone();
        mirror.set("children", vec![leaf; 1_000_000]);
        let error = Tree::from_tops(1, &[&mirror], &Disks::new(), None).unwrap_err();
        assert!(error.to_string().contains("1000001 devices, more than"), "{error}");
    }

    #[test]
    fn the_remainder_of_a_device_belongs_to_no_metaslab() {
        let mut nv = NvList::new();
        for (name, value) in [("asize", 263_716_864_u64), ("metaslab_shift", 24)] {
            nv.set(name, value);
        }
        let top = Top::from_config(&nv);
        assert_eq!((top.metaslabs(), top.metaslabs_of(16 << 24), top.metaslabs_of(0)), (15, 16, 0));
    }

    #[test]
    fn names_of_devices_are_short() {
        for (path, whole, name) in [
            ("/dev/sda1", true, "sda"),
            ("/dev/sda1", false, "sda1"),
            ("/dev/nvme0n1p1", true, "nvme0n1"),
            ("/dev/disk/by-id/ata-X-part1", true, "ata-X"),
            ("/dev/img/a.img", false, "img/a.img"),
            ("/tmp/a.img", false, "/tmp/a.img"),
        ] {
            assert_eq!(short_path(path, whole), name);
        }
    }
}
