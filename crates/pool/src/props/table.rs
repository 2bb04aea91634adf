//! Every dataset property there is, one row each: the single description that reading, listing and
//! setting share.
//!
//! The order of the rows is the order in which `zfs get all` prints them. A row says what kind of value
//! the property has, who may set it, which datasets have it, what it is when nobody set it and how a
//! column of it looks in a list. Facts: docs/format/mos.md §6, docs/format/zvol.md §2, and the property
//! lists that real pools print.

use super::index::{self, Words};

/// A set of dataset types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Types(u8);

impl Types {
    /// No dataset at all.
    pub const NONE: Self = Self(0);
    /// File systems.
    pub const FILESYSTEM: Self = Self(1);
    /// Volumes.
    pub const VOLUME: Self = Self(2);
    /// Snapshots of either.
    pub const SNAPSHOT: Self = Self(4);
    /// Bookmarks.
    pub const BOOKMARK: Self = Self(8);
    /// File systems and volumes.
    pub const HEADS: Self = Self(3);
    /// Everything but bookmarks.
    pub const DATASETS: Self = Self(7);
    /// Everything.
    pub const ALL: Self = Self(15);

    /// Both sets together.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether the sets share a type.
    #[must_use]
    pub const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// What a property's value is made of, and how it is shown to people.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Bytes, shown as `1.21T`.
    Bytes,
    /// Bytes for which 0 means "no limit" and is shown as `none`.
    Limit,
    /// A count for which the largest number means "no limit", always shown as `none`.
    Count,
    /// A plain number, never abbreviated: guids, txgs, object ids.
    Plain,
    /// A number shown abbreviated as `1.2K`.
    Number,
    /// Hundredths, shown as `1.00x`.
    Ratio,
    /// Shown as `5%`.
    Percent,
    /// Seconds since 1970, shown as a date.
    Date,
    /// The same with seconds.
    DateSeconds,
    /// One of a list of words.
    Index(Words),
    /// Free text.
    Text,
}

/// Who decides the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Computed; nobody can set it.
    ReadOnly,
    /// Set on one dataset and not inherited.
    Settable,
    /// Set on a dataset and inherited by those below it.
    Inherit,
    /// Chosen when the dataset is created.
    OneTime,
    /// Chosen when the dataset is created, with a default that is reported as such.
    OneTimeDefault,
}

/// The value of a property that nobody set.
#[derive(Clone, Copy, Debug)]
pub enum Default {
    /// A number or the number of a word.
    Number(u64),
    /// A text.
    Text(&'static str),
    /// It has none: a property that cannot be computed for a dataset is left out.
    Absent,
}

/// One row of the table.
#[derive(Debug)]
pub struct Definition {
    /// Name, as the user types it and as it stands in property objects on disk.
    pub name: &'static str,
    /// Shape of the value.
    pub kind: Kind,
    /// Who decides it.
    pub access: Access,
    /// Which datasets have it.
    pub types: Types,
    /// Value when nobody set it.
    pub default: Default,
    /// What may be given when setting it, for a usage text.
    pub values: &'static str,
    /// Heading of its column in a list.
    pub heading: &'static str,
    /// Whether its column is aligned to the right.
    pub right: bool,
}

impl Definition {
    /// Whether a dataset of type `own` has the property. For a snapshot `head` is the type of its
    /// dataset: a snapshot of a volume has no `exec`.
    #[must_use]
    pub fn applies_to(&self, own: Types, head: Types) -> bool {
        let for_heads = self.types.meets(Types::HEADS);
        self.types.meets(own) && (own != Types::SNAPSHOT || !for_heads || self.types.meets(head))
    }

    /// Whether `name` is understood as this property: its name, or the heading of its column in small letters, which is shorter
    /// and what scripts take from OpenZFS's lists.
    fn is_called(&self, name: &str) -> bool {
        let lowers_to = |(heading, typed): (u8, u8)| heading.to_ascii_lowercase() == typed;
        self.name == name
            || (self.heading.len() == name.len() && self.heading.bytes().zip(name.bytes()).all(lowers_to))
    }

    /// Whether the value comes from property objects (its own, an ancestor's) and not from computation.
    #[must_use]
    pub fn is_stored(&self) -> bool {
        !matches!(self.access, Access::ReadOnly)
    }
}

const fn row(
    name: &'static str,
    heading: &'static str,
    kind: Kind,
    access: Access,
    types: Types,
    default: Default,
    values: &'static str,
) -> Definition {
    let right = !matches!(kind, Kind::Index(_) | Kind::Text | Kind::Date | Kind::DateSeconds);
    Definition { name, kind, access, types, default, values, heading, right }
}

const fn computed(
    name: &'static str,
    heading: &'static str,
    kind: Kind,
    types: Types,
    values: &'static str,
) -> Definition {
    row(name, heading, kind, Access::ReadOnly, types, Default::Absent, values)
}

const fn inherited_word(
    name: &'static str,
    heading: &'static str,
    words: Words,
    types: Types,
    default: u64,
    values: &'static str,
) -> Definition {
    row(name, heading, Kind::Index(words), Access::Inherit, types, Default::Number(default), values)
}

const fn left(definition: Definition) -> Definition {
    Definition { right: false, ..definition }
}

const FS: Types = Types::FILESYSTEM;
const VOL: Types = Types::VOLUME;
const SNAP: Types = Types::SNAPSHOT;
const HEADS: Types = Types::HEADS;
const SETS: Types = Types::DATASETS;
const ALL: Types = Types::ALL;
const FS_SNAP: Types = FS.with(SNAP);
const VOL_SNAP: Types = VOL.with(SNAP);

const ON_OFF_TEXT: &str = "on | off";
const SIZE_TEXT: &str = "<size>";
const SIZE_OR_NONE: &str = "<size> | none";
const CACHE_TEXT: &str = "all | none | metadata";
const LABEL_TEXT: &str = "<selinux context>";

/// Every visible dataset property.
pub static DATASET: &[Definition] = &[
    left(computed("type", "TYPE", Kind::Text, ALL, "filesystem | volume | snapshot | bookmark")),
    computed("creation", "CREATION", Kind::Date, ALL, "<date>"),
    computed("used", "USED", Kind::Bytes, SETS, SIZE_TEXT),
    computed("available", "AVAIL", Kind::Bytes, HEADS, SIZE_TEXT),
    computed("referenced", "REFER", Kind::Bytes, ALL, SIZE_TEXT),
    computed("compressratio", "RATIO", Kind::Ratio, SETS, "<1.00x or higher if compressed>"),
    computed("mounted", "MOUNTED", Kind::Index(index::YES_NO), FS, "yes | no"),
    computed("origin", "ORIGIN", Kind::Text, HEADS, "<snapshot>"),
    row("quota", "QUOTA", Kind::Limit, Access::Settable, FS, Default::Number(0), SIZE_OR_NONE),
    row("reservation", "RESERV", Kind::Limit, Access::Settable, HEADS, Default::Number(0), SIZE_OR_NONE),
    row("volsize", "VOLSIZE", Kind::Bytes, Access::Settable, VOL_SNAP, Default::Number(0), SIZE_TEXT),
    row(
        "volblocksize",
        "VOLBLOCK",
        Kind::Bytes,
        Access::OneTime,
        VOL,
        Default::Number(16384),
        "512 to 128k, power of 2",
    ),
    row(
        "recordsize",
        "RECSIZE",
        Kind::Bytes,
        Access::Inherit,
        FS,
        Default::Number(131_072),
        "512 to 16M, power of 2",
    ),
    row(
        "mountpoint",
        "MOUNTPOINT",
        Kind::Text,
        Access::Inherit,
        FS,
        Default::Text("/"),
        "<path> | legacy | none",
    ),
    row(
        "sharenfs",
        "SHARENFS",
        Kind::Text,
        Access::Inherit,
        FS,
        Default::Text("off"),
        "on | off | NFS share options",
    ),
    inherited_word(
        "checksum",
        "CHECKSUM",
        index::CHECKSUM,
        HEADS,
        1,
        "on | off | fletcher2 | fletcher4 | sha256 | sha512 | skein | edonr | blake3",
    ),
    inherited_word(
        "compression",
        "COMPRESS",
        index::COMPRESSION,
        HEADS,
        1,
        "on | off | lzjb | gzip | gzip-[1-9] | zle | lz4 | zstd | zstd-[1-19] | zstd-fast | \
         zstd-fast-[1-10,20,30,40,50,60,70,80,90,100,500,1000]",
    ),
    inherited_word("atime", "ATIME", index::ON_OFF, FS, 1, ON_OFF_TEXT),
    inherited_word("devices", "DEVICES", index::ON_OFF, FS_SNAP, 1, ON_OFF_TEXT),
    inherited_word("exec", "EXEC", index::ON_OFF, FS_SNAP, 1, ON_OFF_TEXT),
    inherited_word("setuid", "SETUID", index::ON_OFF, FS_SNAP, 1, ON_OFF_TEXT),
    inherited_word("readonly", "RDONLY", index::ON_OFF, HEADS, 0, ON_OFF_TEXT),
    inherited_word("zoned", "ZONED", index::ON_OFF, FS, 0, ON_OFF_TEXT),
    inherited_word("snapdir", "SNAPDIR", index::SNAPDIR, FS, 0, "disabled | hidden | visible"),
    inherited_word(
        "aclmode",
        "ACLMODE",
        index::ACLMODE,
        FS,
        0,
        "discard | groupmask | passthrough | restricted",
    ),
    inherited_word(
        "aclinherit",
        "ACLINHERIT",
        index::ACLINHERIT,
        FS,
        4,
        "discard | noallow | restricted | passthrough | passthrough-x",
    ),
    computed("createtxg", "CREATETXG", Kind::Plain, ALL, "<txg>"),
    row(
        "canmount",
        "CANMOUNT",
        Kind::Index(index::CANMOUNT),
        Access::Settable,
        FS,
        Default::Number(1),
        "on | off | noauto",
    ),
    inherited_word("xattr", "XATTR", index::XATTR, FS_SNAP, 2, "on | off | dir | sa"),
    inherited_word("copies", "COPIES", index::COPIES, HEADS, 1, "1 | 2 | 3"),
    left(row(
        "version",
        "VERSION",
        Kind::Index(index::ZPL_VERSION),
        Access::ReadOnly,
        FS_SNAP,
        Default::Absent,
        "1 | 2 | 3 | 4 | 5 | current",
    )),
    row(
        "utf8only",
        "UTF8ONLY",
        Kind::Index(index::ON_OFF),
        Access::OneTime,
        FS_SNAP,
        Default::Absent,
        ON_OFF_TEXT,
    ),
    row(
        "normalization",
        "NORMALIZATION",
        Kind::Index(index::NORMALIZATION),
        Access::OneTime,
        FS_SNAP,
        Default::Absent,
        "none | formC | formD | formKC | formKD",
    ),
    row(
        "casesensitivity",
        "CASE",
        Kind::Index(index::CASE),
        Access::OneTime,
        FS_SNAP,
        Default::Absent,
        "sensitive | insensitive | mixed",
    ),
    inherited_word("vscan", "VSCAN", index::ON_OFF, FS, 0, ON_OFF_TEXT),
    inherited_word("nbmand", "NBMAND", index::ON_OFF, FS_SNAP, 0, ON_OFF_TEXT),
    row(
        "sharesmb",
        "SHARESMB",
        Kind::Text,
        Access::Inherit,
        FS,
        Default::Text("off"),
        "on | off | SMB share options",
    ),
    row("refquota", "REFQUOTA", Kind::Limit, Access::Settable, FS, Default::Number(0), SIZE_OR_NONE),
    row(
        "refreservation",
        "REFRESERV",
        Kind::Limit,
        Access::Settable,
        HEADS,
        Default::Number(0),
        "<size> | none | auto",
    ),
    computed("guid", "GUID", Kind::Plain, ALL, "<uint64>"),
    inherited_word("primarycache", "PRIMARYCACHE", index::CACHE, SETS, 2, CACHE_TEXT),
    inherited_word("secondarycache", "SECONDARYCACHE", index::CACHE, SETS, 2, CACHE_TEXT),
    computed("usedbysnapshots", "USEDSNAP", Kind::Bytes, HEADS, SIZE_TEXT),
    computed("usedbydataset", "USEDDS", Kind::Bytes, HEADS, SIZE_TEXT),
    computed("usedbychildren", "USEDCHILD", Kind::Bytes, HEADS, SIZE_TEXT),
    computed("usedbyrefreservation", "USEDREFRESERV", Kind::Bytes, HEADS, SIZE_TEXT),
    computed("defer_destroy", "DEFER_DESTROY", Kind::Index(index::ON_OFF), SNAP, "yes | no"),
    computed("userrefs", "USERREFS", Kind::Plain, SNAP, "<count>"),
    inherited_word("logbias", "LOGBIAS", index::LOGBIAS, HEADS, 0, "latency | throughput"),
    computed("objsetid", "OBJSETID", Kind::Plain, SETS, "<uint64>"),
    inherited_word(
        "dedup",
        "DEDUP",
        index::DEDUP,
        HEADS,
        2,
        "on | off | verify | sha256[,verify] | sha512[,verify] | skein[,verify] | edonr,verify | blake3[,verify]",
    ),
    row(
        "mlslabel",
        "MLSLABEL",
        Kind::Text,
        Access::Inherit,
        SETS,
        Default::Text("none"),
        "<sensitivity label>",
    ),
    inherited_word("sync", "SYNC", index::SYNC, HEADS, 0, "standard | always | disabled"),
    inherited_word("dnodesize", "DNSIZE", index::DNODESIZE, FS, 0, "legacy | auto | 1k | 2k | 4k | 8k | 16k"),
    computed("refcompressratio", "REFRATIO", Kind::Ratio, SETS, "<1.00x or higher if compressed>"),
    computed("written", "WRITTEN", Kind::Bytes, SETS, SIZE_TEXT),
    computed("clones", "CLONES", Kind::Text, SNAP, "<dataset>[,...]"),
    computed("logicalused", "LUSED", Kind::Bytes, HEADS, SIZE_TEXT),
    computed("logicalreferenced", "LREFER", Kind::Bytes, ALL, SIZE_TEXT),
    inherited_word("volmode", "VOLMODE", index::VOLMODE, HEADS, 0, "default | full | geom | dev | none"),
    row(
        "filesystem_limit",
        "FSLIMIT",
        Kind::Count,
        Access::Settable,
        FS,
        Default::Number(u64::MAX),
        "<count> | none",
    ),
    row(
        "snapshot_limit",
        "SSLIMIT",
        Kind::Count,
        Access::Settable,
        HEADS,
        Default::Number(u64::MAX),
        "<count> | none",
    ),
    row(
        "filesystem_count",
        "FSCOUNT",
        Kind::Count,
        Access::ReadOnly,
        FS,
        Default::Number(u64::MAX),
        "<count>",
    ),
    row(
        "snapshot_count",
        "SSCOUNT",
        Kind::Count,
        Access::ReadOnly,
        HEADS,
        Default::Number(u64::MAX),
        "<count>",
    ),
    inherited_word("snapdev", "SNAPDEV", index::SNAPDEV, HEADS, 0, "hidden | visible"),
    inherited_word("acltype", "ACLTYPE", index::ACLTYPE, FS_SNAP, 0, "off | nfsv4 | posix"),
    row("context", "CONTEXT", Kind::Text, Access::Inherit, SETS, Default::Text("none"), LABEL_TEXT),
    row("fscontext", "FSCONTEXT", Kind::Text, Access::Inherit, SETS, Default::Text("none"), LABEL_TEXT),
    row("defcontext", "DEFCONTEXT", Kind::Text, Access::Inherit, SETS, Default::Text("none"), LABEL_TEXT),
    row("rootcontext", "ROOTCONTEXT", Kind::Text, Access::Inherit, SETS, Default::Text("none"), LABEL_TEXT),
    inherited_word("relatime", "RELATIME", index::ON_OFF, FS, 1, ON_OFF_TEXT),
    inherited_word(
        "redundant_metadata",
        "REDUND_MD",
        index::REDUNDANT_METADATA,
        HEADS,
        0,
        "all | most | some | none",
    ),
    inherited_word("overlay", "OVERLAY", index::ON_OFF, FS, 1, ON_OFF_TEXT),
    computed("receive_resume_token", "RESUMETOK", Kind::Text, HEADS, "<string token>"),
    row(
        "encryption",
        "ENCRYPTION",
        Kind::Index(index::ENCRYPTION),
        Access::OneTimeDefault,
        SETS,
        Default::Number(2),
        "on | off | aes-128-ccm | aes-192-ccm | aes-256-ccm | aes-128-gcm | aes-192-gcm | aes-256-gcm",
    ),
    row(
        "keylocation",
        "KEYLOCATION",
        Kind::Text,
        Access::Settable,
        HEADS,
        Default::Text("none"),
        "prompt | <file URI> | <https URL> | <http URL>",
    ),
    row(
        "keyformat",
        "KEYFORMAT",
        Kind::Index(index::KEYFORMAT),
        Access::OneTimeDefault,
        HEADS,
        Default::Number(0),
        "none | raw | hex | passphrase",
    ),
    row(
        "pbkdf2iters",
        "PBKDF2ITERS",
        Kind::Plain,
        Access::OneTimeDefault,
        HEADS,
        Default::Number(0),
        "<iters>",
    ),
    computed("encryptionroot", "ENCROOT", Kind::Text, SETS, "<filesystem | volume>"),
    computed("keystatus", "KEYSTATUS", Kind::Index(index::KEYSTATUS), SETS, "none | unavailable | available"),
    row(
        "special_small_blocks",
        "SPECIAL_SMALL_BLOCKS",
        Kind::Bytes,
        Access::Inherit,
        HEADS,
        Default::Number(0),
        "zero to 16M",
    ),
    computed("redact_snaps", "RSNAPS", Kind::Text, SETS.with(Types::BOOKMARK), "<snapshot>[,...]"),
    computed("snapshots_changed", "SNAPSHOTS_CHANGED", Kind::DateSeconds, HEADS, "<date>"),
    inherited_word("prefetch", "PREFETCH", index::CACHE, SETS, 2, CACHE_TEXT),
    inherited_word("volthreading", "VOLTHREADING", index::ON_OFF, VOL, 1, ON_OFF_TEXT),
    inherited_word("direct", "DIRECT", index::DIRECT, FS, 1, "disabled | standard | always"),
    inherited_word("longname", "LONGNAME", index::ON_OFF, FS, 0, ON_OFF_TEXT),
    row(
        "defaultuserquota",
        "DEFAULTUSERQUOTA",
        Kind::Limit,
        Access::Settable,
        FS_SNAP,
        Default::Absent,
        SIZE_OR_NONE,
    ),
    row(
        "defaultgroupquota",
        "DEFAULTGROUPQUOTA",
        Kind::Limit,
        Access::Settable,
        FS_SNAP,
        Default::Absent,
        SIZE_OR_NONE,
    ),
    row(
        "defaultprojectquota",
        "DEFAULTPROJECTQUOTA",
        Kind::Limit,
        Access::Settable,
        FS_SNAP,
        Default::Absent,
        SIZE_OR_NONE,
    ),
    row(
        "defaultuserobjquota",
        "DEFAULTUSEROBJQUOTA",
        Kind::Limit,
        Access::Settable,
        FS_SNAP,
        Default::Absent,
        SIZE_OR_NONE,
    ),
    row(
        "defaultgroupobjquota",
        "DEFAULTGROUPOBJQUOTA",
        Kind::Limit,
        Access::Settable,
        FS_SNAP,
        Default::Absent,
        SIZE_OR_NONE,
    ),
    row(
        "defaultprojectobjquota",
        "DEFAULTPROJECTOBJQUOTA",
        Kind::Limit,
        Access::Settable,
        FS_SNAP,
        Default::Absent,
        SIZE_OR_NONE,
    ),
];

/// Every pool property but the features, in the order of `zpool get all`.
pub static POOL: &[Definition] = &[
    computed("size", "SIZE", Kind::Bytes, Types::NONE, SIZE_TEXT),
    computed("capacity", "CAP", Kind::Percent, Types::NONE, SIZE_TEXT),
    row("altroot", "ALTROOT", Kind::Text, Access::Settable, Types::NONE, Default::Text("-"), "<path>"),
    left(computed("health", "HEALTH", Kind::Text, Types::NONE, "<state>")),
    computed("guid", "GUID", Kind::Plain, Types::NONE, "<guid>"),
    row("version", "VERSION", Kind::Text, Access::Settable, Types::NONE, Default::Text("-"), "<version>"),
    row("bootfs", "BOOTFS", Kind::Text, Access::Settable, Types::NONE, Default::Text("-"), "<filesystem>"),
    pool_word("delegation", "DELEGATION", index::ON_OFF, 1, ON_OFF_TEXT),
    pool_word("autoreplace", "REPLACE", index::ON_OFF, 0, ON_OFF_TEXT),
    row(
        "cachefile",
        "CACHEFILE",
        Kind::Text,
        Access::Settable,
        Types::NONE,
        Default::Text("-"),
        "<file> | none",
    ),
    pool_word("failmode", "FAILMODE", index::FAILMODE, 0, "wait | continue | panic"),
    pool_word("listsnapshots", "LISTSNAPS", index::ON_OFF, 0, ON_OFF_TEXT),
    pool_word("autoexpand", "EXPAND", index::ON_OFF, 0, ON_OFF_TEXT),
    computed("dedupratio", "DEDUP", Kind::Ratio, Types::NONE, "<1.00x or higher if deduped>"),
    computed("free", "FREE", Kind::Bytes, Types::NONE, SIZE_TEXT),
    computed("allocated", "ALLOC", Kind::Bytes, Types::NONE, SIZE_TEXT),
    computed("readonly", "RDONLY", Kind::Index(index::ON_OFF), Types::NONE, ON_OFF_TEXT),
    row(
        "ashift",
        "ASHIFT",
        Kind::Plain,
        Access::Settable,
        Types::NONE,
        Default::Number(0),
        "<ashift, 9-16, or 0=default>",
    ),
    row(
        "comment",
        "COMMENT",
        Kind::Text,
        Access::Settable,
        Types::NONE,
        Default::Text("-"),
        "<comment-string>",
    ),
    computed("expandsize", "EXPANDSZ", Kind::Bytes, Types::NONE, SIZE_TEXT),
    computed("freeing", "FREEING", Kind::Bytes, Types::NONE, SIZE_TEXT),
    computed("fragmentation", "FRAG", Kind::Percent, Types::NONE, "<percent>"),
    computed("leaked", "LEAKED", Kind::Bytes, Types::NONE, SIZE_TEXT),
    pool_word("multihost", "MULTIHOST", index::ON_OFF, 0, ON_OFF_TEXT),
    computed("checkpoint", "CKPOINT", Kind::Bytes, Types::NONE, SIZE_TEXT),
    computed("load_guid", "LOAD_GUID", Kind::Plain, Types::NONE, "<load_guid>"),
    pool_word("autotrim", "AUTOTRIM", index::ON_OFF, 0, ON_OFF_TEXT),
    row(
        "compatibility",
        "COMPATIBILITY",
        Kind::Text,
        Access::Settable,
        Types::NONE,
        Default::Text("off"),
        "<file[,file...]> | off | legacy",
    ),
    computed("bcloneused", "BCLONE_USED", Kind::Bytes, Types::NONE, SIZE_TEXT),
    computed("bclonesaved", "BCLONE_SAVED", Kind::Bytes, Types::NONE, SIZE_TEXT),
    computed("bcloneratio", "BCLONE_RATIO", Kind::Ratio, Types::NONE, "<1.00x or higher if cloned>"),
    computed("dedup_table_size", "DDTSIZE", Kind::Bytes, Types::NONE, SIZE_TEXT),
    row(
        "dedup_table_quota",
        "DDTQUOTA",
        Kind::Text,
        Access::Settable,
        Types::NONE,
        Default::Text("auto"),
        "<size> | none | auto",
    ),
    computed("last_scrubbed_txg", "LAST_SCRUBBED_TXG", Kind::Plain, Types::NONE, "<txg>"),
];

const fn pool_word(
    name: &'static str,
    heading: &'static str,
    words: Words,
    default: u64,
    values: &'static str,
) -> Definition {
    row(name, heading, Kind::Index(words), Access::Settable, Types::NONE, Default::Number(default), values)
}

/// The row of a pool property, by any name that is understood; features have none.
#[must_use]
pub fn pool(name: &str) -> Option<&'static Definition> {
    POOL.iter().find(|row| row.is_called(name))
}

/// The row of a dataset property, by any name that is understood. `name` itself (a column of lists, never one of `all`) has none.
#[must_use]
pub fn dataset(name: &str) -> Option<&'static Definition> {
    DATASET.iter().find(|row| row.is_called(name))
}

/// Whether `name` is one a user may invent: it holds a colon.
#[must_use]
pub fn is_user(name: &str) -> bool {
    name.contains(':')
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_.: +".contains(&b))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_and_headings_are_unique() {
        for table in [DATASET, POOL] {
            let mut seen = BTreeSet::new();
            for row in table {
                let names = BTreeSet::from([row.name.to_owned(), row.heading.to_ascii_lowercase()]);
                for name in names {
                    assert!(seen.insert(name.clone()), "{name} twice");
                }
            }
        }
    }

    /// `encroot` and other headings were unknown and ended a script that takes a list's columns from OpenZFS's.
    #[test]
    fn a_property_is_found_by_the_heading_of_its_column_in_small_letters() {
        let check = |row: &Definition, find: fn(&str) -> Option<&'static Definition>| {
            let found = find(&row.heading.to_ascii_lowercase());
            assert_eq!(found.map(|found| found.name), Some(row.name));
            assert!(find(row.heading).is_none(), "{}", row.heading);
        };
        DATASET.iter().for_each(|row| check(row, dataset));
        POOL.iter().for_each(|row| check(row, pool));
    }

    #[test]
    fn defaults_of_words_are_words() {
        for row in DATASET.iter().chain(POOL) {
            if let (Kind::Index(words), Default::Number(value)) = (row.kind, row.default) {
                assert!(index::word(words, value).is_some(), "{}", row.name);
            }
        }
    }

    #[test]
    fn a_snapshot_has_what_its_head_has() {
        let exec = dataset("exec").unwrap();
        assert!(exec.applies_to(Types::SNAPSHOT, Types::FILESYSTEM));
        assert!(!exec.applies_to(Types::SNAPSHOT, Types::VOLUME));
        let userrefs = dataset("userrefs").unwrap();
        assert!(userrefs.applies_to(Types::SNAPSHOT, Types::VOLUME));
        assert!(!userrefs.applies_to(Types::VOLUME, Types::VOLUME));
        assert!(dataset("avail").is_some_and(|row| row.name == "available"));
    }

    #[test]
    fn user_properties_have_a_colon() {
        assert!(is_user("org.millpond:note"));
        assert!(!is_user("compression"));
        assert!(!is_user("Bad:Name"));
    }
}
