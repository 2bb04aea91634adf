//! What a verification found, in numbers and in words.

use std::{collections::BTreeMap, fmt, sync::atomic::Ordering::Relaxed, time::Duration};

use ondisk::blkptr::BlkPtr;

use super::{Finding, Job, Outcome, claims::TopClaims, kept::Kept, names::Names};
use crate::{error::Evidence, io::Bookmark};

/// What is counted under one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Row {
    /// Blocks of objects of this type.
    Type(ObjectTypeId),
    /// Allocated until freeing them is finished.
    DeferredFree,
    /// Self-describing types, which `zdb` counts together.
    Other,
}

/// What `zdb` calls the object types, by number: docs/format/dmu.md §6.
const TYPES: [&str; 54] = [
    "unallocated",
    "object directory",
    "object array",
    "packed nvlist",
    "packed nvlist size",
    "bpobj",
    "bpobj header",
    "SPA space map header",
    "SPA space map",
    "ZIL intent log",
    "DMU dnode",
    "DMU objset",
    "DSL directory",
    "DSL directory child map",
    "DSL dataset snap map",
    "DSL props",
    "DSL dataset",
    "ZFS znode",
    "ZFS V0 ACL",
    "ZFS plain file",
    "ZFS directory",
    "ZFS master node",
    "ZFS delete queue",
    "zvol object",
    "zvol prop",
    "other uint8[]",
    "other uint64[]",
    "other ZAP",
    "persistent error log",
    "SPA history",
    "SPA history offsets",
    "Pool properties",
    "DSL permissions",
    "ZFS ACL",
    "ZFS SYSACL",
    "FUID table",
    "FUID table size",
    "DSL dataset next clones",
    "scan work queue",
    "ZFS user/group/project used",
    "ZFS user/group/project quota",
    "snapshot refcount tags",
    "DDT ZAP algorithm",
    "DDT statistics",
    "System attributes",
    "SA master node",
    "SA attr registration",
    "SA attr layouts",
    "scan translations",
    "deduplicated block",
    "DSL deadlist map",
    "DSL deadlist map hdr",
    "DSL dir clones",
    "bpobj subobj",
];

/// Number of an object type below 54.
pub type ObjectTypeId = u8;

/// Blocks and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Block pointers.
    pub blocks: u64,
    /// Bytes before compression.
    pub lsize: u64,
    /// Bytes stored.
    pub psize: u64,
    /// Bytes taken on the devices, copies and parity included.
    pub asize: u64,
}

/// Counts by kind of object and level.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    rows: BTreeMap<(Row, u8), Count>,
}

/// How bad a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The block's data can be had from nowhere.
    Lost,
    /// A block was read, with the right checksum, and contradicts itself or the pool.
    Malformed,
    /// Space maps and blocks disagree.
    Space,
    /// A place does not give what was written, and redundancy makes up for it.
    Repairable,
}

/// Where a problem is, in words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// Dataset or snapshot; the MOS has none.
    pub dataset: Option<String>,
    /// Path of the file, below the root of its file system.
    pub path: Option<String>,
    /// Byte offset of the block in its object, for blocks of level 0.
    pub offset: Option<u64>,
}

/// Something wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// How bad.
    pub kind: Kind,
    /// Which block, if it is about one.
    pub at: Option<Bookmark>,
    /// Where that is.
    pub location: Location,
    /// What is wrong.
    pub what: String,
    /// Which devices gave what.
    pub evidence: Vec<Evidence>,
}

/// Space maps against what was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpaceReport {
    /// By device.
    Compared(Vec<TopClaims>),
    /// Not compared, and why.
    Skipped(String),
}

/// The result of a verification.
#[derive(Clone, Debug)]
pub struct Report {
    /// Blocks by kind and level.
    pub counts: Counts,
    /// The worst first; at most 10 000.
    pub problems: Vec<Problem>,
    /// How many there were.
    pub problems_total: u64,
    /// And of each kind.
    pub found: BTreeMap<Kind, u64>,
    /// Space.
    pub space: SpaceReport,
    /// Blocks that have fewer copies than they should, because devices are missing or outdated.
    pub thin: u64,
    /// How long it took.
    pub elapsed: Duration,
}

impl Count {
    fn add(&mut self, other: &Self) {
        self.blocks += other.blocks;
        self.lsize = self.lsize.saturating_add(other.lsize);
        self.psize = self.psize.saturating_add(other.psize);
        self.asize = self.asize.saturating_add(other.asize);
    }

    fn of(pointer: &BlkPtr) -> Self {
        // An embedded block is stored in its pointer and takes nothing of its own.
        let psize = if pointer.is_embedded() { 0 } else { pointer.psize() };
        Self { blocks: 1, lsize: pointer.lsize(), psize, asize: pointer.asize() }
    }
}

impl Row {
    /// The name `zdb` gives it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Type(id) => TYPES.get(usize::from(id)).copied().unwrap_or("unknown"),
            Self::DeferredFree => "deferred free",
            Self::Other => "other",
        }
    }
}

impl Counts {
    pub(super) fn add(&mut self, pointer: &BlkPtr) {
        let kind = pointer.object_type();
        let row = if kind.is_self_describing() { Row::Other } else { Row::Type(kind.0) };
        self.rows.entry((row, pointer.level())).or_default().add(&Count::of(pointer));
    }

    pub(super) fn add_deferred(&mut self, pointer: &BlkPtr) {
        self.rows.entry((Row::DeferredFree, pointer.level())).or_default().add(&Count::of(pointer));
    }

    pub(super) fn merge(&mut self, other: &Self) {
        for (key, count) in &other.rows {
            self.rows.entry(*key).or_default().add(count);
        }
    }

    /// By kind and level.
    pub fn levels(&self) -> impl Iterator<Item = (Row, u8, Count)> + '_ {
        self.rows.iter().map(|((row, level), count)| (*row, *level, *count))
    }

    /// By kind.
    #[must_use]
    pub fn rows(&self) -> Vec<(Row, Count)> {
        let mut rows: BTreeMap<Row, Count> = BTreeMap::new();
        for ((row, _), count) in &self.rows {
            rows.entry(*row).or_default().add(count);
        }
        rows.into_iter().collect()
    }

    /// Over everything.
    #[must_use]
    pub fn total(&self) -> Count {
        let mut total = Count::default();
        self.rows.values().for_each(|count| total.add(count));
        total
    }
}

impl Report {
    /// Whether everything is as it was written, in every copy.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.problems_total == 0 && self.thin == 0 && self.leaked() == 0
    }

    /// Whether all data can be had.
    #[must_use]
    pub fn is_intact(&self) -> bool {
        self.count(Kind::Lost) == 0 && self.count(Kind::Malformed) == 0
    }

    /// Allocated bytes that nothing refers to.
    #[must_use]
    pub fn leaked(&self) -> u64 {
        match &self.space {
            SpaceReport::Compared(tops) => tops.iter().map(|top| top.leaked).sum(),
            SpaceReport::Skipped(_) => 0,
        }
    }

    /// Number of problems of one kind, whether or not they are listed.
    #[must_use]
    pub fn count(&self, kind: Kind) -> u64 {
        self.found.get(&kind).copied().unwrap_or(0)
    }
}

/// Gives findings their names and sums up.
pub(super) async fn conclude(job: &Job, outcome: Outcome, kept: Kept, elapsed: Duration) -> Report {
    let Outcome { counts, thin, .. } = outcome;
    let (found, findings) = kept.end();
    let problems_total: u64 = found.values().sum();
    let mut names = Names::new(&job.pool);
    let mut problems = Vec::with_capacity(findings.len());
    for Finding { kind, at, block_bytes, what, evidence } in findings {
        let location = match at {
            Some(at) => names.locate(at, block_bytes).await,
            None => Location::default(),
        };
        problems.push(Problem { kind, at, location, what, evidence });
    }
    let space = match job.claims.skipped() {
        Some(why) => SpaceReport::Skipped(why.to_owned()),
        None => SpaceReport::Compared(job.claims.compare()),
    };
    job.progress.problems.store(problems_total, Relaxed);
    Report { counts, problems, problems_total, found, space, thin, elapsed }
}

impl Kind {
    /// One word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Malformed => "malformed",
            Self::Space => "space",
            Self::Repairable => "repairable",
        }
    }
}

/// `tank/fs:/path offset 0x2000 (block <36:8:0:1>)`
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Location { dataset, path, offset } = &self.location;
        match (dataset, self.at) {
            (Some(dataset), _) => f.write_str(dataset)?,
            (None, Some(at)) if at.objset == 0 => f.write_str("<metadata>")?,
            (None, Some(at)) => write!(f, "<{:#x}>", at.objset)?,
            (None, None) => f.write_str("<pool>")?,
        }
        match (path, self.at) {
            (Some(path), _) => write!(f, ":{path}")?,
            (None, Some(at)) if at.level >= 0 => write!(f, ":<{:#x}>", at.object)?,
            _ => {}
        }
        if let Some(offset) = offset {
            write!(f, " offset {offset}")?;
        }
        if let Some(at) = self.at {
            write!(f, " (block {at})")?;
        }
        write!(f, ": {}", self.what)?;
        for Evidence { device, offset, fault } in self.evidence.iter().take(8) {
            write!(f, "; {device} offset {offset:#x}: {fault}")?;
        }
        match self.evidence.len().saturating_sub(8) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}
