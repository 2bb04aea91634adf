//! An empty file system: the fewest objects that another implementation mounts.
//!
//! ```text
//!   1 master node ─▶ ROOT, DELETE_QUEUE, SA_ATTRS ─▶ REGISTRY (what attributes there are)
//!                     │                              LAYOUTS  (in which order a bonus has them)
//!                     └─ an empty directory, 0755, owned by root
//! ```
//!
//! Files are never written by us; a pool's root and the parents of volumes are file systems. User accounting is
//! marked as not done, which makes OpenZFS do it when it mounts. Facts: docs/format/zpl.md §2–§5, §10.

use ondisk::{
    Order, Writer,
    dnode::ObjectType,
    sa::{self, Attribute, Class, Registry},
    zap::Value,
};

use crate::{
    EngineError,
    dmu::{MutSet, NewObject},
    mos::zap,
};

const MASTER_NODE: u64 = 1;
const ZPL_VERSION: u64 = 5;
/// Name, bytes (0: variable), class of every attribute, in the order of their numbers.
const ATTRIBUTES: [(&str, u16, Class); 22] = [
    ("ZPL_ATIME", 16, Class::U64),
    ("ZPL_MTIME", 16, Class::U64),
    ("ZPL_CTIME", 16, Class::U64),
    ("ZPL_CRTIME", 16, Class::U64),
    ("ZPL_GEN", 8, Class::U64),
    ("ZPL_MODE", 8, Class::U64),
    ("ZPL_SIZE", 8, Class::U64),
    ("ZPL_PARENT", 8, Class::U64),
    ("ZPL_LINKS", 8, Class::U64),
    ("ZPL_XATTR", 8, Class::U64),
    ("ZPL_RDEV", 8, Class::U64),
    ("ZPL_FLAGS", 8, Class::U64),
    ("ZPL_UID", 8, Class::U64),
    ("ZPL_GID", 8, Class::U64),
    ("ZPL_PAD", 32, Class::U64),
    ("ZPL_ZNODE_ACL", 88, Class::Bytes),
    ("ZPL_DACL_COUNT", 8, Class::U64),
    ("ZPL_SYMLINK", 0, Class::Bytes),
    ("ZPL_SCANSTAMP", 32, Class::Bytes),
    ("ZPL_DACL_ACES", 0, Class::Acl),
    ("ZPL_DXATTR", 0, Class::Bytes),
    ("ZPL_PROJID", 8, Class::U64),
];
/// Numbers of the first two layouts are taken.
const LAYOUT: u16 = 2;
/// Mode, size, generation, owner, group, parent, flags, four times, links, number of ACL entries, those.
const LAYOUT_ATTRIBUTES: [u16; 14] = [5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 16, 19];

/// Header, 17 words, the ACL.
const BONUS_BYTES: usize = 168;
/// A directory, `rwxr-xr-x`.
const MODE: u64 = 0o040_755;
/// New (archive, scan pending), trivial ACL with inheritance, everybody may search.
const FLAGS: u64 = 0x0000_0408_0000_0144;
/// Entries and two.
const EMPTY_SIZE: u64 = 2;
/// Itself, and the entry nobody stores.
const LINKS: u64 = 2;
/// Type 0 (allow), flags and mask of owner, group and everybody.
const ACL: [(u16, u32); 3] = [(0x1000, 0x1e_01ff), (0x2040, 0x12_00a9), (0x4000, 0x12_00a9)];

/// Writes the objects into an empty object set. `now` in seconds since 1970.
pub(super) async fn init(set: &mut MutSet, txg: u64, now: u64) -> Result<(), EngineError> {
    set.claim(MASTER_NODE, NewObject::of(ObjectType::MASTER_NODE)).await?;
    zap::init(set, MASTER_NODE, 0).await?;
    let attributes = zap::create(set, SA_MASTER_NODE, 0).await?;
    let queue = zap::create(set, ObjectType::DELETE_QUEUE, 0).await?;
    // The bonus names the object itself, so it is filled in when there is one.
    let empty = [0; BONUS_BYTES];
    let root = set.allocate(NewObject::of(ObjectType::DIRECTORY).bonus(ObjectType::SA, &empty)).await?;
    zap::init(set, root, 0).await?;
    let registry = zap::create(set, SA_REGISTRATION, 0).await?;
    let layouts = zap::create(set, SA_LAYOUTS, 0).await?;
    for (name, value) in [
        ("VERSION", ZPL_VERSION),
        ("utf8only", 0),
        ("normalization", 0),
        ("casesensitivity", 0),
        ("SA_ATTRS", attributes),
        ("DELETE_QUEUE", queue),
        ("ROOT", root),
    ] {
        zap::set_u64(set, MASTER_NODE, name, value).await?;
    }
    zap::set_u64(set, attributes, "REGISTRY", registry).await?;
    zap::set_u64(set, attributes, "LAYOUTS", layouts).await?;
    for (name, word) in registered() {
        zap::set_u64(set, registry, name, word).await?;
    }
    let layout = Value::from_u16s(&LAYOUT_ATTRIBUTES);
    zap::set(set, layouts, LAYOUT.to_string().as_str().into(), layout).await?;
    let bonus = root_attributes(root, txg, now).map_err(EngineError::encode("a root directory"))?;
    set.set_bonus(root, &bonus).await
}

/// What the registry says: name and word of each attribute.
fn registered() -> impl Iterator<Item = (&'static str, u64)> {
    (0u16..).zip(ATTRIBUTES).map(|(number, (name, bytes, class))| {
        let length = Some(bytes).filter(|bytes| *bytes != 0);
        (name, Attribute { number, class, length }.to_u64())
    })
}

/// The bonus of the root directory.
fn root_attributes(root: u64, txg: u64, now: u64) -> ondisk::Result<Vec<u8>> {
    let mut registry = Registry::default();
    registered().try_for_each(|(name, word)| registry.insert(name.as_bytes(), word))?;
    let mut acl = Writer::new(Order::Little);
    for (flags, mask) in ACL {
        acl.u16(0);
        acl.u16(flags);
        acl.u32(mask);
    }
    let acl = acl.finish();
    let word = |value: u64| value.to_le_bytes().to_vec();
    let time = [now, 0].map(u64::to_le_bytes).concat();
    let (owner, group) = (0, 0);
    let values = [MODE, EMPTY_SIZE, txg, owner, group, root, FLAGS].map(word).into_iter();
    let values = values.chain([time.clone(), time.clone(), time.clone(), time]);
    let values: Vec<Vec<u8>> = values.chain([LINKS, ACL.len() as u64].map(word)).chain([acl]).collect();
    let values: Vec<(u16, &[u8])> =
        LAYOUT_ATTRIBUTES.into_iter().zip(values.iter().map(Vec::as_slice)).collect();
    sa::encode(LAYOUT, &values, &registry, Order::Little)
}

const SA_MASTER_NODE: ObjectType = ObjectType(45);
const SA_REGISTRATION: ObjectType = ObjectType(46);
const SA_LAYOUTS: ObjectType = ObjectType(47);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_directory_looks_like_a_real_one() {
        // docs/format/zpl.md §3.5, without the project id, which needs a feature.
        let bonus = root_attributes(34, 45, 0x609b_7d25).unwrap();
        assert_eq!(bonus.len(), BONUS_BYTES);
        assert_eq!(bonus[..8], [0x5a, 0x50, 0x2f, 0, 2, 4, 0x18, 0]);
        assert_eq!(bonus[8..16], [0xed, 0x41, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bonus[24..32], 45u64.to_le_bytes());
        assert_eq!(bonus[48..56], 34u64.to_le_bytes());
        assert_eq!(
            bonus[144..168],
            [
                0, 0, 0, 0x10, 0xff, 1, 0x1e, 0, 0, 0, 0x40, 0x20, 0xa9, 0, 0x12, 0, 0, 0, 0, 0x40, 0xa9, 0,
                0x12, 0
            ]
        );
    }
}
