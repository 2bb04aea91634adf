//! Devices of known sizes, arranged: how large the pool will be and what fits into it.
//!
//! Sizes follow docs/format/labels.md §1, vdevs.md §1.3 and spacemap.md §1.

use std::fmt::Write;

use ondisk::label::{DEVICE_BYTES_MIN, Geometry as LabelGeometry};
use pool::{
    dsl::PoolSpace,
    vdev::{Class, Geometry},
};

use super::spec::{Shape, SpecError, TopSpec, Use, VdevSpec};

/// log2 of the sector of files, and the least for block devices: nearly all disks have physical sectors of 4 KiB,
/// and a pool cannot be told later.
pub const ASHIFT_DEFAULT: u32 = 12;
/// What an ashift may be.
pub const ASHIFT: std::ops::RangeInclusive<u32> = 9..=16;
/// Sizes of volume blocks that capacities are told for.
pub const VOLUME_BLOCKS: [u32; 6] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10];
/// Sizes of a mirror's sides that still count as equal, in bytes apart.
const SIZE_FUZZ: u64 = 16 << 20;

/// What is known of a device before it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Bytes.
    pub bytes: u64,
    /// A block device, not a file.
    pub block_device: bool,
    /// Smallest unit it can address, in bytes.
    pub logical_sector: u32,
    /// Smallest unit it writes without reading first, in bytes.
    pub physical_sector: u32,
}

/// log2 of the smallest block of a top-level device, as far as it is not chosen by what its leaves are best used with.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ashift {
    /// Somebody said so: a device that it is impossible for is refused.
    pub asked: Option<u32>,
    /// What the pool has where nobody says anything, and the device allows it.
    pub usual: Option<u32>,
    /// What all devices for data of the pool have, for devices that are no slower with that than with their own.
    pub shared: Option<u32>,
}

impl Ashift {
    /// What all devices for data of a pool have, if that is one. Volumes' blocks lie on no others, and what is for metadata,
    /// dedup tables or the log keeps no device from being removed.
    #[must_use]
    pub fn shared_in(pool: &pool::vdev::Tree) -> Option<u32> {
        let data = staying(pool).filter(|top| top.class() == Class::Normal);
        let mut shifts = data.filter_map(|top| Some(top.top.as_ref()?.ashift));
        let first = shifts.next()?;
        shifts.all(|shift| shift == first).then_some(first)
    }
}

/// The top-level devices of a pool that are there and no logs.
fn staying(pool: &pool::vdev::Tree) -> impl DoubleEndedIterator<Item = &pool::vdev::Vdev> {
    pool.tops.iter().filter(|top| !top.is_log() && top.top.is_some() && !top.leaves().is_empty())
}

/// A leaf to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedLeaf {
    /// Where it is.
    pub path: String,
    /// What it is.
    pub facts: DeviceFacts,
}

/// A top-level device to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedTop {
    /// What for.
    pub purpose: Use,
    /// How.
    pub shape: Shape,
    /// log2 of its sector.
    pub ashift: u32,
    /// Allocatable bytes, parity included.
    pub asize: u64,
    /// log2 of a metaslab.
    pub metaslab_shift: u32,
    /// Its leaves.
    pub leaves: Vec<PlannedLeaf>,
}

/// Devices of known sizes, arranged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Top-level devices in order.
    pub tops: Vec<PlannedTop>,
    /// Cache devices.
    pub caches: Vec<PlannedLeaf>,
    /// Hot spares.
    pub spares: Vec<PlannedLeaf>,
}

/// What a pool can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Bytes of a volume's block.
    pub block: u32,
    /// Bytes of incompressible volume data that fit: parity, padding and slop space taken off.
    pub bytes: u64,
}

impl PlannedTop {
    /// Its shape, if it is a RAIDZ.
    #[must_use]
    pub fn raidz(&self) -> Option<Geometry> {
        let Shape::Raidz(parity) = self.shape else { return None };
        Some(Geometry {
            children: self.leaves.len(),
            parity: parity.into(),
            ashift: self.ashift,
            expand_txgs: Vec::new(),
            reflow: None,
        })
    }

    /// Bytes that a block of `psize` stored bytes takes.
    #[must_use]
    pub fn allocated(&self, psize: u64) -> u64 {
        match self.raidz() {
            Some(geometry) => geometry.allocated(psize, geometry.children),
            None => psize.next_multiple_of(1 << self.ashift),
        }
    }

    /// Bytes in its metaslabs.
    #[must_use]
    pub fn usable(&self) -> u64 {
        self.asize >> self.metaslab_shift << self.metaslab_shift
    }

    /// The word for its kind in messages.
    fn kind(&self) -> &'static str {
        match self.shape {
            Shape::Mirror => "mirror",
            Shape::Raidz(_) => "raidz",
            Shape::Single if self.leaves.iter().any(|leaf| leaf.facts.block_device) => "disk",
            Shape::Single => "file",
        }
    }

    fn new(spec: &TopSpec, facts: &[DeviceFacts], ashift: Ashift) -> Result<Self, SpecError> {
        let leaves: Vec<PlannedLeaf> = spec
            .leaves
            .iter()
            .zip(facts)
            .map(|(path, facts)| PlannedLeaf { path: path.clone(), facts: *facts })
            .collect();
        let sectors = |sector: fn(&DeviceFacts) -> u32| {
            facts.iter().map(|facts| sector(facts).max(1).ilog2()).max().unwrap_or(0)
        };
        let addressable = sectors(|facts| facts.logical_sector);
        let comfortable = sectors(|facts| if facts.block_device { facts.physical_sector } else { 512 });
        // Nobody asked for what is usual, so it is no reason to refuse a device.
        let usual = ashift.usual.filter(|usual| *usual >= addressable);
        // A pool of one kind stays one where that costs nothing.
        let shared = ashift.shared.filter(|shared| *shared >= addressable.max(comfortable));
        let ashift = match ashift.asked.or(usual).or(shared) {
            Some(ashift) if !ASHIFT.contains(&ashift) => {
                return Err(SpecError::Refused(format!(
                    "property 'ashift' number {ashift} is invalid, only values between {} and {} are allowed",
                    ASHIFT.start(),
                    ASHIFT.end()
                )));
            }
            Some(ashift) if ashift < addressable => {
                return Err(SpecError::Refused(format!(
                    "property 'ashift' number {ashift} is invalid: '{}' has sectors of {} bytes, use {addressable} or \
                     more",
                    spec.leaves.join("', '"),
                    1u64 << addressable
                )));
            }
            Some(ashift) => ashift,
            None => ASHIFT_DEFAULT.max(addressable).max(comfortable).min(*ASHIFT.end()),
        };
        let mut smallest = u64::MAX;
        for leaf in &leaves {
            smallest = smallest.min(leaf.asize()?);
        }
        let asize = match spec.shape {
            Shape::Raidz(_) => smallest.saturating_mul(leaves.len() as u64),
            Shape::Single | Shape::Mirror => smallest,
        };
        let metaslab_shift = metaslab_shift(asize);
        Ok(Self { purpose: spec.purpose, shape: spec.shape, ashift, asize, metaslab_shift, leaves })
    }
}

impl PlannedLeaf {
    /// log2 of the sector it is best used with, for a device that is alone.
    pub(super) fn ashift(&self) -> u32 {
        let DeviceFacts { block_device, logical_sector, physical_sector, .. } = self.facts;
        let comfortable = if block_device { physical_sector } else { 512 };
        let sector = logical_sector.max(comfortable).max(1).ilog2();
        ASHIFT_DEFAULT.max(sector).min(*ASHIFT.end())
    }

    /// Allocatable bytes.
    fn asize(&self) -> Result<u64, SpecError> {
        LabelGeometry::new(self.facts.bytes).map(LabelGeometry::asize).ok_or_else(|| {
            SpecError::Refused(format!(
                "one or more devices is less than the minimum size ({}M): '{}' has {} bytes",
                DEVICE_BYTES_MIN >> 20,
                self.path,
                self.facts.bytes
            ))
        })
    }
}

/// log2 of the metaslabs OpenZFS would make on a device: 16 or more of them, around 200 on large devices.
#[must_use]
pub(super) fn metaslab_shift(asize: u64) -> u32 {
    let highbit = |value: u64| u64::BITS - value.leading_zeros();
    let shift = match asize >> 29 {
        0..16 => highbit(asize / 16),
        16..=200 => 29,
        _ => highbit(asize / 200),
    };
    match shift.max(24) {
        shift @ 0..=34 => shift,
        _ if asize >> 34 > 131_072 => highbit(asize / 131_072),
        _ => 34,
    }
}

impl Plan {
    /// Arranges devices. `facts` are of `spec.paths()`, in order; `ashift` is that of every top-level device, or
    /// chosen for each. `force` accepts mixed redundancy and sides of different sizes.
    ///
    /// # Errors
    /// A device is too small, redundancy is mixed without `force`, or the ashift is impossible.
    ///
    /// # Panics
    /// If there are not as many facts as paths.
    pub fn new(
        spec: &VdevSpec,
        facts: &[DeviceFacts],
        ashift: Option<u32>,
        force: bool,
    ) -> Result<Self, SpecError> {
        Self::with(spec, facts, Ashift { asked: ashift, ..Ashift::default() }, force)
    }

    /// The same for a pool that has a usual ashift.
    ///
    /// # Errors
    /// Those of [`new`](Self::new).
    ///
    /// # Panics
    /// If there are not as many facts as paths.
    pub fn with(
        spec: &VdevSpec,
        facts: &[DeviceFacts],
        ashift: Ashift,
        force: bool,
    ) -> Result<Self, SpecError> {
        assert_eq!(facts.len(), spec.paths().len(), "facts of every device");
        let mut rest = facts;
        let mut take = |count: usize| {
            let (first, others) = rest.split_at(count);
            rest = others;
            first
        };
        let mut tops = Vec::new();
        for top in &spec.tops {
            tops.push(PlannedTop::new(top, take(top.leaves.len()), ashift)?);
        }
        let mut leaves = |paths: &[String]| -> Result<Vec<PlannedLeaf>, SpecError> {
            let facts = take(paths.len());
            let leaf =
                |(path, facts): (&String, &DeviceFacts)| PlannedLeaf { path: path.clone(), facts: *facts };
            let leaves: Vec<PlannedLeaf> = paths.iter().zip(facts).map(leaf).collect();
            leaves.iter().try_for_each(|leaf| leaf.asize().map(drop))?;
            Ok(leaves)
        };
        let caches = leaves(&spec.caches)?;
        let spares = leaves(&spec.spares)?;
        let plan = Self { tops, caches, spares };
        let doubts = plan.doubts();
        if force || doubts.is_empty() { Ok(plan) } else { Err(SpecError::Override(doubts)) }
    }

    /// The leaves, in the order in which pools are created on them.
    pub fn paths(&self) -> Vec<&str> {
        self.leaves().map(|leaf| leaf.path.as_str()).collect()
    }

    pub(super) fn leaves(&self) -> impl Iterator<Item = &PlannedLeaf> {
        self.tops.iter().flat_map(|top| &top.leaves).chain(&self.caches).chain(&self.spares)
    }

    /// What makes the pool only as safe as its weakest part.
    fn doubts(&self) -> Vec<String> {
        let mismatch = |text: String| format!("mismatched replication level: {text}");
        let mut doubts = Vec::new();
        let mut last: Option<&PlannedTop> = None;
        for top in self.tops.iter().filter(|top| top.purpose != Use::Log) {
            let (devices, sizes) = (
                top.leaves.iter().filter(|leaf| leaf.facts.block_device).count(),
                top.leaves.iter().map(|leaf| leaf.facts.bytes),
            );
            if devices != 0 && devices != top.leaves.len() {
                doubts.push(mismatch(format!("{} contains both files and devices", top.kind())));
            }
            let (least, most) = (sizes.clone().min().unwrap_or(0), sizes.max().unwrap_or(0));
            if most - least > SIZE_FUZZ {
                doubts.push(format!("{} contains devices of different sizes", top.kind()));
            }
            if let Some(last) = last.replace(top) {
                doubts.extend(differ(last, top, "both", "and", "vdevs are present").map(mismatch));
            }
        }
        doubts
    }

    /// Bytes of metaslabs for data, free of parity: what datasets may fill, slop space included.
    #[must_use]
    pub fn deflated(&self) -> u64 {
        let data = self.tops.iter().filter(|top| top.purpose == Use::Data);
        data.map(|top| (top.usable() >> 9) * ((128 << 10) / (top.allocated(128 << 10) >> 9))).sum()
    }

    /// What fits, by volume block size.
    #[must_use]
    pub fn capacity(&self) -> Vec<Capacity> {
        let deflated = self.deflated();
        let slop = PoolSpace { devices: deflated, ..PoolSpace::default() }.slop();
        // A pool is full when its deflated size less slop is used, however much of it padding takes.
        let share = |bytes: u64| {
            (u128::from(bytes) * u128::from(deflated - slop) / u128::from(deflated.max(1))) as u64
        };
        VOLUME_BLOCKS
            .into_iter()
            .map(|block| {
                let data = self.tops.iter().filter(|top| top.purpose == Use::Data);
                let fits = |top: &PlannedTop| top.usable() / top.allocated(block.into()) * u64::from(block);
                Capacity { block, bytes: share(data.map(fits).sum()) }
            })
            .collect()
    }

    /// The layout as `zpool create -n` prints it, below the line with the pool's name.
    #[must_use]
    pub fn describe(&self, pool: &str) -> String {
        let mut text = String::new();
        let mut section = |title: &str, purpose: Use| {
            let tops: Vec<_> = self.tops.iter().filter(|top| top.purpose == purpose).collect();
            if tops.is_empty() {
                return;
            }
            let _infallible = writeln!(text, "\t{title}");
            for top in tops {
                let indent = if top.shape == Shape::Single {
                    "  "
                } else {
                    let _infallible = writeln!(text, "\t  {}", top.shape.word());
                    "    "
                };
                for leaf in &top.leaves {
                    let _infallible = writeln!(text, "\t{indent}{}", short(&leaf.path));
                }
            }
        };
        section(pool, Use::Data);
        section("dedup", Use::Dedup);
        section("special", Use::Special);
        section("logs", Use::Log);
        for (title, leaves) in [("cache", &self.caches), ("spares", &self.spares)] {
            if !leaves.is_empty() {
                let _infallible = writeln!(text, "\t{title}");
            }
            for leaf in leaves {
                let _infallible = writeln!(text, "\t  {}", short(&leaf.path));
            }
        }
        text
    }

    /// Whether a pool can have these devices. `has` says which features it has, by guid.
    ///
    /// # Errors
    /// It lacks one that they need.
    pub fn check_features(&self, has: impl Fn(&str) -> bool) -> Result<(), SpecError> {
        if super::special(self) > 0 && !has(super::ALLOCATION_CLASSES) {
            return Err(SpecError::Refused(super::NO_CLASSES.to_owned()));
        }
        Ok(())
    }

    /// Whether the new devices are as redundant as those of the pool, and have their sectors if `ashift` asks for none.
    ///
    /// # Errors
    /// They are not, or have not.
    pub fn check_like(&self, pool: &pool::vdev::Tree, ashift: Ashift) -> Result<(), SpecError> {
        let old = staying(pool).next_back().map(|top| {
            let shape = match &top.kind {
                pool::vdev::Kind::Raidz(geometry) => Shape::Raidz(geometry.parity as u8),
                pool::vdev::Kind::Mirror => Shape::Mirror,
                _ => Shape::Single,
            };
            let block_device = top.leaves().iter().any(|leaf| leaf.kind == pool::vdev::Kind::Disk);
            let facts = DeviceFacts { bytes: 0, block_device, logical_sector: 512, physical_sector: 512 };
            let leaf = PlannedLeaf { path: String::new(), facts };
            // One that is being replaced, or that a spare stands in for, is still one device.
            let count = if shape == Shape::Single { 1 } else { top.children.len() };
            let leaves = vec![leaf; count];
            PlannedTop { purpose: Use::Data, shape, ashift: 12, asize: 0, metaslab_shift: 0, leaves }
        });
        let new = self.tops.iter().find(|top| top.purpose != Use::Log);
        let redundancy =
            old.zip(new).and_then(|(old, new)| differ(&old, new, "pool uses", "and new vdev", ""));
        let mut doubts: Vec<String> =
            redundancy.map(|text| format!("mismatched replication level: {text}")).into_iter().collect();
        if ashift.asked.is_none()
            && let Some(shared) = Ashift::shared_in(pool)
        {
            doubts.extend(self.other_sectors(shared));
        }
        if doubts.is_empty() { Ok(()) } else { Err(SpecError::Override(doubts)) }
    }

    /// How the sectors of the new devices differ from those that all devices for data of a pool have, if they do.
    fn other_sectors(&self, shared: u32) -> Option<String> {
        let others = || self.tops.iter().filter(|top| top.purpose != Use::Log && top.ashift != shared);
        let data = others().find(|top| top.purpose == Use::Data);
        let other = data.or_else(|| others().next())?;
        let why = match data {
            Some(_) => {
                ": volumes may need more than they reserve, and OpenZFS can remove no device from such a pool"
            }
            None => "",
        };
        let (uses, is) = (1_u64 << shared.min(63), 1_u64 << other.ashift);
        let is_possible = other.leaves.iter().all(|leaf| u64::from(leaf.facts.logical_sector) <= uses);
        let remedy = match is_possible && ASHIFT.contains(&shared) {
            true => format!("; '-o ashift={shared}' makes them the same"),
            false => String::new(),
        };
        Some(format!(
            "mismatched sector size: pool uses {uses} bytes and new vdev {is}, for good{why}{remedy}"
        ))
    }
}

/// How the redundancy of two top-level devices differs, if it does, in the words of `create` or of `add`.
fn differ(a: &PlannedTop, b: &PlannedTop, first: &str, second: &str, end: &str) -> Option<String> {
    let adding = end.is_empty();
    let (uses, is) = if adding { (" uses", " is") } else { ("", "") };
    let sentence = |a: String, b: String, verb: &str, end: &str| {
        let text = format!("{first} {a} {second}{verb} {b} {end}");
        Some(text.trim_end().to_owned())
    };
    let redundancy = |top: &PlannedTop| top.shape.redundancy(top.leaves.len());
    if a.kind() != b.kind() {
        // A mirror and a RAIDZ that survive as many failures go together.
        let both_redundant = redundancy(a) > 0 && redundancy(b) > 0;
        if both_redundant && redundancy(a) == redundancy(b) {
            return None;
        }
        if both_redundant && !adding {
            let (some, other) = (redundancy(a), redundancy(b));
            let kinds = format!("{} and {}", a.kind(), b.kind());
            return Some(format!(
                "{kinds} vdevs with different redundancy, {some} vs. {other} {}",
                &end[6..]
            ));
        }
        return sentence(a.kind().to_owned(), b.kind().to_owned(), is, end);
    }
    if redundancy(a) != redundancy(b) && matches!(a.shape, Shape::Raidz(_)) {
        let parity = |top: &PlannedTop| format!("{} device parity", redundancy(top));
        let end = if adding { String::new() } else { format!("{} {end}", a.kind()) };
        return sentence(parity(a), parity(b), uses, &end);
    }
    if a.leaves.len() != b.leaves.len() {
        let (ways, end) = if adding {
            (format!("-way {}", a.kind()), String::new())
        } else {
            ("-way".to_owned(), format!("{} {end}", a.kind()))
        };
        let way = |top: &PlannedTop| format!("{}{ways}", top.leaves.len());
        return sentence(way(a), way(b), uses, &end);
    }
    None
}

fn short(path: &str) -> &str {
    path.strip_prefix("/dev/").unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: DeviceFacts =
        DeviceFacts { bytes: 256 << 20, block_device: false, logical_sector: 512, physical_sector: 4096 };

    fn plan(
        words: &str,
        facts: impl Fn(usize) -> DeviceFacts,
        ashift: Option<u32>,
    ) -> Result<Plan, SpecError> {
        let spec = VdevSpec::parse(&words.split_whitespace().collect::<Vec<_>>()).unwrap();
        let facts: Vec<_> = (0..spec.paths().len()).map(facts).collect();
        Plan::new(&spec, &facts, ashift, false)
    }

    #[test]
    fn sizes_are_those_of_the_documents() {
        let single = plan("a", |_| FILE, None).unwrap();
        assert_eq!((single.tops[0].asize, single.tops[0].metaslab_shift), (263_716_864, 24));
        assert_eq!(single.tops[0].usable() >> 24, 15);
        let raidz = plan("raidz a b c d", |_| FILE, None).unwrap();
        assert_eq!((raidz.tops[0].asize, raidz.tops[0].metaslab_shift), (1_054_867_456, 26));
        let mirror =
            plan("mirror a b", |i| DeviceFacts { bytes: (256 + i as u64) << 20, ..FILE }, None).unwrap();
        assert_eq!(mirror.tops[0].asize, 263_716_864, "as large as its smaller side");
        assert_eq!(metaslab_shift(1 << 40), 33);
        assert_eq!(metaslab_shift(100 << 30), 29);
        assert_eq!(metaslab_shift(60 << 20), 24);
        assert_eq!(metaslab_shift(1 << 46), 34);
        assert_eq!(metaslab_shift(1 << 53), 37, "2^53 / 131072 = 2^36, whose highest bit is the 37th");
    }

    #[test]
    fn sectors_decide_the_ashift() {
        let disk = |logical, physical| DeviceFacts {
            block_device: true,
            logical_sector: logical,
            physical_sector: physical,
            ..FILE
        };
        let ashift = |facts: DeviceFacts, asked| plan("a", |_| facts, asked).map(|plan| plan.tops[0].ashift);
        assert_eq!(ashift(FILE, None).unwrap(), 12);
        assert_eq!(ashift(disk(512, 512), None).unwrap(), 12);
        assert_eq!(ashift(disk(512, 8192), None).unwrap(), 13);
        assert_eq!(ashift(disk(4096, 4096), None).unwrap(), 12);
        assert_eq!(ashift(disk(512, 1 << 20), None).unwrap(), 16);
        assert_eq!(ashift(FILE, Some(9)).unwrap(), 9);
        assert!(ashift(disk(4096, 4096), Some(9)).unwrap_err().to_string().contains("sectors of 4096 bytes"));
        for wrong in [8, 17] {
            assert_eq!(
                ashift(FILE, Some(wrong)).unwrap_err().to_string(),
                format!(
                    "property 'ashift' number {wrong} is invalid, only values between 9 and 16 are allowed"
                )
            );
        }
    }

    /// Found by reading: to add a device with sectors of 4096 bytes to a pool whose property says 9 was refused as if somebody
    /// had asked for 9.
    #[test]
    fn an_ashift_that_nobody_asked_for_is_no_reason_to_refuse_a_device() {
        let ashift = |logical: u32, asked| {
            let disk = DeviceFacts { block_device: true, logical_sector: logical, ..FILE };
            let spec = VdevSpec::parse(&["a"]).unwrap();
            let plan = Plan::with(&spec, &[disk], Ashift { asked, usual: Some(9), shared: None }, false);
            plan.map(|plan| plan.tops[0].ashift)
        };
        assert_eq!(ashift(512, None).unwrap(), 9);
        assert_eq!(ashift(4096, None).unwrap(), 12);
        assert_eq!(ashift(512, Some(13)).unwrap(), 13);
        assert!(ashift(4096, Some(9)).is_err(), "what was asked for counts");
    }

    /// A pool of 512-byte sectors got a vdev of 4K unasked: its thick volumes were thick no more, for good, and nobody said so.
    #[test]
    fn a_pool_stays_of_one_sector_size_unless_somebody_wants_another() {
        let pool = |shifts: &[u64], special: Option<usize>| {
            let devices = shifts.iter().zip(0_u64..).map(|(shift, id)| {
                let mut list = ondisk::nvlist::NvList::new();
                list.set("type", "disk");
                list.set("path", "/dev/a");
                for (name, value) in [("id", id), ("guid", id + 1), ("ashift", *shift)] {
                    list.set(name, value);
                }
                list
            });
            let devices: Vec<_> = devices.collect();
            let tops: Vec<_> = devices.iter().collect();
            let tree = pool::vdev::Tree::from_tops(1, &tops, &pool::vdev::Disks::new(), None).unwrap();
            if let Some(special) = special {
                tree.tops[special].top.as_ref().unwrap().bias.set(Class::Special).unwrap();
            }
            tree
        };
        let add_to = |tree: &pool::vdev::Tree, words: &[&str], (logical, physical), asked| {
            let disk = DeviceFacts {
                block_device: true,
                logical_sector: logical,
                physical_sector: physical,
                ..FILE
            };
            let ashift = Ashift { asked, usual: None, shared: Ashift::shared_in(tree) };
            let plan = Plan::with(&VdevSpec::parse(words).unwrap(), &[disk], ashift, true).unwrap();
            let shift = plan.tops[0].ashift;
            plan.check_like(tree, ashift).map(|()| shift).map_err(|doubt| doubt.to_string())
        };
        let add = |shifts: &[u64], sectors, asked| add_to(&pool(shifts, None), &["a"], sectors, asked);
        assert_eq!(add(&[9, 9], (512, 512), None), Ok(9));
        assert_eq!(add(&[13], (512, 4096), None), Ok(13));
        let doubt = add(&[9, 9], (512, 4096), None).unwrap_err();
        assert!(doubt.contains("mismatched sector size: pool uses 512 bytes and new vdev 4096"), "{doubt}");
        assert!(doubt.contains("use '-f'") && doubt.contains("'-o ashift=9' makes them the same"), "{doubt}");
        let doubt = add(&[9], (4096, 4096), None).unwrap_err();
        assert!(doubt.contains("mismatched sector size") && !doubt.contains("-o ashift"), "{doubt}");
        assert_eq!(add(&[9], (512, 4096), Some(9)), Ok(9));
        assert_eq!(add(&[9], (512, 4096), Some(12)), Ok(12), "who asks for it wants it");
        assert_eq!(add(&[9, 12], (512, 512), None), Ok(12), "there is nothing to be kept");
        // One for metadata, which has other sectors, makes no mixed pool of it.
        let tree = pool(&[9, 9, 12], Some(2));
        assert_eq!(add_to(&tree, &["a"], (512, 512), None), Ok(9));
        let doubt = add_to(&tree, &["a"], (512, 4096), None).unwrap_err();
        assert!(doubt.contains("volumes may need more"), "{doubt}");
        let doubt = add_to(&tree, &["special", "a"], (512, 4096), None).unwrap_err();
        assert!(doubt.contains("mismatched sector size") && !doubt.contains("volumes"), "{doubt}");
    }

    #[test]
    fn raidz_padding_is_in_the_figures() {
        // Six disks, RAIDZ2, 4 KiB sectors: 4K takes 12K, 8K 24K (padded), 16K 24K, 32K 48K, 64K 96K, 128K 192K… by
        // docs/format/vdevs.md §3.1: data + parity per row, rounded up to a multiple of 3 sectors.
        let plan = plan("raidz2 a b c d e f", |_| DeviceFacts { bytes: 64 << 30, ..FILE }, None).unwrap();
        let top = &plan.tops[0];
        let takes: Vec<u64> = VOLUME_BLOCKS.iter().map(|&block| top.allocated(block.into()) >> 10).collect();
        assert_eq!(takes, [12, 24, 24, 48, 96, 192]);
        let capacity = plan.capacity();
        let fits = |i: usize| capacity[i].bytes as f64 / top.usable() as f64;
        for (i, ratio) in [(0, 1.0 / 3.0), (1, 1.0 / 3.0), (2, 2.0 / 3.0), (5, 2.0 / 3.0)] {
            let expected = ratio * 31.0 / 32.0;
            assert!((fits(i) - expected).abs() < 1e-4, "{i}: {} {expected}", fits(i));
        }
        assert_eq!(plan.deflated(), (top.usable() >> 9) * 341, "131072 / 384 sectors = 341.3");
    }

    #[test]
    fn small_pools_keep_half_as_slop() {
        let plan = plan("a", |_| DeviceFacts { bytes: 128 << 20, ..FILE }, None).unwrap();
        assert_eq!(plan.capacity()[5].bytes, plan.deflated() / 2);
    }

    #[test]
    fn force_overrules_doubts() {
        let spec = VdevSpec::parse(&["a", "mirror", "b", "c"]).unwrap();
        assert!(matches!(Plan::new(&spec, &[FILE; 3], None, false), Err(SpecError::Override(_))));
        assert_eq!(Plan::new(&spec, &[FILE; 3], None, true).unwrap().tops.len(), 2);
    }

    #[test]
    fn mixed_redundancy_is_said_in_openzfs_words() {
        for (words, message) in [
            (
                "mirror a b raidz2 c d e",
                "mirror and raidz vdevs with different redundancy, 1 vs. 2 are present",
            ),
            ("a mirror b c", "both file and mirror vdevs are present"),
            ("raidz a b c raidz2 d e f", "both 1 device parity and 2 device parity raidz vdevs are present"),
            ("raidz a b c raidz d e f g", "both 3-way and 4-way raidz vdevs are present"),
            ("mirror a b mirror c d e", "both 2-way and 3-way mirror vdevs are present"),
        ] {
            let error = plan(words, |_| FILE, None).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!(
                    "invalid vdev specification\nuse '-f' to override the following errors:\nmismatched replication \
                     level: {message}"
                ),
                "{words}"
            );
        }
        plan("mirror a b raidz c d e", |_| FILE, None).expect("both survive one failure");
        plan("mirror a b log c", |_| FILE, None).expect("logs are their own affair");
        let sizes = |i: usize| DeviceFacts { bytes: (256 + 32 * i as u64) << 20, ..FILE };
        assert!(plan("mirror a b", sizes, None).unwrap_err().to_string().contains("different sizes"));
        let kinds = |i: usize| DeviceFacts { block_device: i == 0, ..FILE };
        assert!(plan("mirror a b", kinds, None).unwrap_err().to_string().contains("both files and devices"));
    }

    #[test]
    fn small_devices_are_refused() {
        let error = plan("a", |_| DeviceFacts { bytes: (64 << 20) - 1, ..FILE }, None).unwrap_err();
        assert!(error.to_string().starts_with("one or more devices is less than the minimum size (64M)"));
        assert!(plan("a spare b", |i| DeviceFacts { bytes: (64 << 20) >> i, ..FILE }, None).is_err());
    }

    #[test]
    fn the_layout_is_shown_as_openzfs_does() {
        let plan = plan("raidz a b /dev/c log mirror d e cache f spare g", |_| FILE, None).unwrap();
        assert_eq!(
            plan.describe("tank"),
            "\ttank\n\t  raidz1\n\t    a\n\t    b\n\t    c\n\tlogs\n\t  mirror\n\t    d\n\t    e\n\tcache\n\t  \
             f\n\tspares\n\t  g\n"
        );
    }
}
