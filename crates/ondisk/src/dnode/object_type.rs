//! What an object holds: the type number in dnodes and block pointers.
//!
//! Types 0–53 are a closed table. Everything newer describes itself in the number: bit 7 set, bit 6
//! metadata, bit 5 encrypted, bits 0–4 how to swap its bytes; so a reader can handle types it has
//! never heard of.
//!
//! Facts: docs/format/dmu.md §6.

use std::fmt;

/// An object type as stored in one byte. Any byte can be held; [`is_valid`](Self::is_valid) tells
/// whether it can occur.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ObjectType(pub u8);

/// How the payload of a block changes when it was written in the other byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Byteswap {
    /// Bytes: nothing to swap.
    U8,
    /// 16-bit words.
    U16,
    /// 32-bit words.
    U32,
    /// 64-bit words.
    U64,
    /// Micro or fat ZAP.
    Zap,
    /// Dnodes.
    Dnode,
    /// An object set.
    Objset,
    /// A znode of old file systems.
    Znode,
    /// A version 0 access control list.
    OldAcl,
    /// An access control list.
    Acl,
}

impl Byteswap {
    const BY_ID: [Self; 10] = [
        Self::U8,
        Self::U16,
        Self::U32,
        Self::U64,
        Self::Zap,
        Self::Dnode,
        Self::Objset,
        Self::Znode,
        Self::OldAcl,
        Self::Acl,
    ];

    /// By the id in a self-describing type.
    #[must_use]
    pub fn from_id(id: u8) -> Option<Self> {
        Self::BY_ID.get(usize::from(id)).copied()
    }

    /// Its name in self-describing types, as `zdb` says it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::U8 => "uint8",
            Self::U16 => "uint16",
            Self::U32 => "uint32",
            Self::U64 => "uint64",
            Self::Zap => "zap",
            Self::Dnode => "dnode",
            Self::Objset => "objset",
            Self::Znode => "znode",
            Self::OldAcl => "oldacl",
            Self::Acl => "acl",
        }
    }
}

/// One row of the closed table.
struct Row {
    name: &'static str,
    byteswap: Byteswap,
    metadata: bool,
    encrypted: bool,
}

const fn meta(name: &'static str, byteswap: Byteswap) -> Row {
    Row { name, byteswap, metadata: true, encrypted: false }
}

/// Metadata whose content is ciphertext in encrypted datasets.
const fn secret(name: &'static str, byteswap: Byteswap) -> Row {
    Row { name, byteswap, metadata: true, encrypted: true }
}

/// User data.
const fn data(name: &'static str, byteswap: Byteswap) -> Row {
    Row { name, byteswap, metadata: false, encrypted: true }
}

use Byteswap::{Acl, Dnode, Objset, OldAcl, U8, U64, Zap, Znode};

/// Types 0–53, by number.
static TABLE: [Row; 54] = [
    meta("unallocated", U8),
    meta("object directory", Zap),
    meta("object array", U64),
    meta("packed nvlist", U8),
    meta("packed nvlist size", U64),
    meta("bpobj", U64),
    meta("bpobj header", U64),
    meta("SPA space map header", U64),
    meta("SPA space map", U64),
    secret("ZIL intent log", U64),
    secret("DMU dnode", Dnode),
    meta("DMU objset", Objset),
    meta("DSL directory", U64),
    meta("DSL directory child map", Zap),
    meta("DSL dataset snap map", Zap),
    meta("DSL props", Zap),
    meta("DSL dataset", U64),
    meta("ZFS znode", Znode),
    secret("ZFS V0 ACL", OldAcl),
    data("ZFS plain file", U8),
    secret("ZFS directory", Zap),
    meta("ZFS master node", Zap),
    secret("ZFS delete queue", Zap),
    data("zvol object", U8),
    meta("zvol prop", Zap),
    data("other uint8[]", U8),
    data("other uint64[]", U64),
    meta("other ZAP", Zap),
    meta("persistent error log", Zap),
    meta("SPA history", U8),
    meta("SPA history offsets", U64),
    meta("Pool properties", Zap),
    meta("DSL permissions", Zap),
    secret("ZFS ACL", Acl),
    secret("ZFS SYSACL", U8),
    secret("FUID table", U8),
    meta("FUID table size", U64),
    meta("DSL dataset next clones", Zap),
    meta("scan work queue", Zap),
    secret("ZFS user/group/project used", Zap),
    secret("ZFS user/group/project quota", Zap),
    meta("snapshot refcount tags", Zap),
    meta("DDT ZAP algorithm", Zap),
    meta("DDT statistics", Zap),
    secret("System attributes", U8),
    secret("SA master node", Zap),
    secret("SA attr registration", Zap),
    secret("SA attr layouts", Zap),
    meta("scan translations", Zap),
    data("deduplicated block", U8),
    meta("DSL deadlist map", Zap),
    meta("DSL deadlist map hdr", U64),
    meta("DSL dir clones", Zap),
    meta("bpobj subobj", U64),
];

/// Bit 7: the number describes itself.
const NEW: u8 = 0x80;
const NEW_METADATA: u8 = 0x40;
const NEW_ENCRYPTED: u8 = 0x20;
const NEW_BYTESWAP: u8 = 0x1f;

impl ObjectType {
    /// A free dnode, or a gang member.
    pub const NONE: Self = Self(0);
    /// The directory of the MOS (object 1).
    pub const OBJECT_DIRECTORY: Self = Self(1);
    /// An array of object numbers.
    pub const OBJECT_ARRAY: Self = Self(2);
    /// A packed nvlist.
    pub const PACKED_NVLIST: Self = Self(3);
    /// Bonus of a packed nvlist: its length in bytes.
    pub const PACKED_NVLIST_SIZE: Self = Self(4);
    /// A list of block pointers.
    pub const BPOBJ: Self = Self(5);
    /// Bonus of a bpobj.
    pub const BPOBJ_HEADER: Self = Self(6);
    /// Bonus of a space map.
    pub const SPACE_MAP_HEADER: Self = Self(7);
    /// A space map.
    pub const SPACE_MAP: Self = Self(8);
    /// A block of the intent log.
    pub const INTENT_LOG: Self = Self(9);
    /// An array of dnodes.
    pub const DNODE: Self = Self(10);
    /// An object set.
    pub const OBJSET: Self = Self(11);
    /// A DSL directory (as bonus type too).
    pub const DSL_DIR: Self = Self(12);
    /// Children of a DSL directory.
    pub const DSL_DIR_CHILD_MAP: Self = Self(13);
    /// Snapshots of a dataset.
    pub const DSL_DATASET_SNAP_MAP: Self = Self(14);
    /// Properties.
    pub const DSL_PROPS: Self = Self(15);
    /// A DSL dataset (as bonus type too).
    pub const DSL_DATASET: Self = Self(16);
    /// Bonus of files in file systems before version 5.
    pub const ZNODE: Self = Self(17);
    /// A file's data.
    pub const PLAIN_FILE: Self = Self(19);
    /// A directory of a file system.
    pub const DIRECTORY: Self = Self(20);
    /// The first object of a file system.
    pub const MASTER_NODE: Self = Self(21);
    /// Deleted files that were open.
    pub const DELETE_QUEUE: Self = Self(22);
    /// A volume's data.
    pub const ZVOL: Self = Self(23);
    /// A volume's size.
    pub const ZVOL_PROP: Self = Self(24);
    /// The error log.
    pub const ERROR_LOG: Self = Self(28);
    /// The pool's history.
    pub const HISTORY: Self = Self(29);
    /// Bonus of the history.
    pub const HISTORY_OFFSETS: Self = Self(30);
    /// Snapshots cloned from.
    pub const NEXT_CLONES: Self = Self(37);
    /// Datasets a scan has still to visit.
    pub const SCAN_QUEUE: Self = Self(38);
    /// System attributes: bonus and spill of files.
    pub const SA: Self = Self(44);
    /// Deadlist.
    pub const DEADLIST: Self = Self(50);
    /// Bonus of a deadlist.
    pub const DEADLIST_HEADER: Self = Self(51);
    /// Sub-objects of a bpobj.
    pub const BPOBJ_SUBOBJ: Self = Self(53);
    /// Self-describing: a ZAP that is metadata.
    pub const ZAP_METADATA: Self = Self(0xc4);
    /// Self-describing: 64-bit words that are metadata.
    pub const U64_METADATA: Self = Self(0xc3);

    fn row(self) -> Option<&'static Row> {
        TABLE.get(usize::from(self.0))
    }

    /// Whether the number describes itself.
    #[must_use]
    pub const fn is_self_describing(self) -> bool {
        self.0 & NEW != 0
    }

    /// Whether the number is one OpenZFS could have written.
    #[must_use]
    pub fn is_valid(self) -> bool {
        self.byteswap().is_some()
    }

    /// How its payload is byte-swapped; `None` if the number is not valid.
    #[must_use]
    pub fn byteswap(self) -> Option<Byteswap> {
        if self.is_self_describing() {
            Byteswap::from_id(self.0 & NEW_BYTESWAP)
        } else {
            self.row().map(|row| row.byteswap)
        }
    }

    /// Whether level-0 blocks get the treatment of metadata. True for invalid numbers.
    #[must_use]
    pub fn is_metadata(self) -> bool {
        if self.is_self_describing() {
            self.0 & NEW_METADATA != 0
        } else {
            self.row().is_none_or(|row| row.metadata)
        }
    }

    /// Whether level-0 blocks are ciphertext in encrypted datasets.
    #[must_use]
    pub fn is_encrypted(self) -> bool {
        if self.is_self_describing() {
            self.0 & NEW_ENCRYPTED != 0
        } else {
            self.row().is_some_and(|row| row.encrypted)
        }
    }

    /// Whether objects of this type are ZAPs.
    #[must_use]
    pub fn is_zap(self) -> bool {
        self.byteswap() == Some(Zap)
    }
}

/// The name `zdb` prints; `unknown type 0x..` for numbers nobody knows.
impl fmt::Display for ObjectType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (false, Some(row)) = (self.is_self_describing(), self.row()) {
            return f.pad(row.name);
        }
        match self.byteswap() {
            Some(byteswap) => {
                let kind = if self.is_metadata() { "metadata" } else { "data" };
                let secret = if self.is_encrypted() { " (encrypted)" } else { "" };
                f.pad(&format!("{} {kind}{secret}", byteswap.name()))
            }
            None => f.pad(&format!("unknown type {:#x}", self.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_the_table_are_where_they_belong() {
        assert_eq!(ObjectType(10).to_string(), "DMU dnode");
        assert_eq!(ObjectType::ZVOL.to_string(), "zvol object");
        assert_eq!(ObjectType::SA.to_string(), "System attributes");
        assert_eq!(ObjectType::DEADLIST.to_string(), "DSL deadlist map");
        assert_eq!(ObjectType(53).to_string(), "bpobj subobj");
        assert_eq!(ObjectType(54).byteswap(), None);
        assert!(!ObjectType::PLAIN_FILE.is_metadata() && ObjectType::PLAIN_FILE.is_encrypted());
        assert!(ObjectType::DNODE.is_metadata() && ObjectType::DNODE.is_encrypted());
        assert!(ObjectType::MASTER_NODE.is_metadata() && !ObjectType::MASTER_NODE.is_encrypted());
    }

    #[test]
    fn newer_types_describe_themselves() {
        let zap = ObjectType::ZAP_METADATA;
        assert!(zap.is_valid() && zap.is_zap() && zap.is_metadata() && !zap.is_encrypted());
        assert_eq!(zap.to_string(), "zap metadata");
        assert_eq!(ObjectType::U64_METADATA.byteswap(), Some(U64));
        assert_eq!(ObjectType(0xa0).to_string(), "uint8 data (encrypted)");
        assert!(!ObjectType(0x8a).is_valid(), "byteswap id 10 does not exist");
        assert_eq!((0..=255).filter(|&n| ObjectType(n).is_valid()).count(), 54 + 4 * 10);
    }
}
