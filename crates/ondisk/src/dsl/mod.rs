//! The dataset and snapshot layer: directories, datasets, and the names of their extra attributes.
//!
//! A *directory* is a node of the name tree with its space accounting; a *dataset* is one state of
//! the data, live (head) or frozen (snapshot). Both are bonus records of otherwise empty objects, and
//! an object with extra attributes turns into a ZAP of type `0xc4` while the bonus stays: recognise
//! them by bonus type.
//!
//! Facts: docs/format/mos.md §6, §10.

use crate::blkptr::BlkPtr;
use crate::{Error, Order, Reader, Result, Writer};

/// Keys of ZAPs that belong to directories and datasets.
pub mod keys {
    /// Dataset: ZAP of its bookmarks.
    pub const BOOKMARKS: &str = "com.delphix:bookmarks";
    /// Dataset: identity of an encrypted snapshot's initialisation vectors.
    pub const IVSET_GUID: &str = "com.datto:ivset_guid";
    /// Dataset: blocks remapped by device removal and only in snapshots.
    pub const REMAP_DEADLIST: &str = "com.delphix:remap_deadlist";
    /// Dataset: object a resumable receive continues with.
    pub const RESUME_OBJECT: &str = "com.delphix:resume_object";
    /// Dataset: guid of the snapshot being received.
    pub const RESUME_TO_GUID: &str = "com.delphix:resume_toguid";
    /// Directory: file systems below, with limits in use.
    pub const FILESYSTEM_COUNT: &str = "com.joyent:filesystem_count";
    /// Directory: snapshots below, with limits in use.
    pub const SNAPSHOT_COUNT: &str = "com.joyent:snapshot_count";
    /// Directory: object of the encryption key.
    pub const CRYPTO_KEY: &str = "com.datto:crypto_key_obj";
    /// Directory of a clone: its livelist.
    pub const LIVELIST: &str = "com.delphix:livelist";
    /// Directory: when snapshots were last added or removed.
    pub const SNAPSHOTS_CHANGED: &str = "com.ixsystems:snapshots_changed";
    /// Name of the directory that accounts for the MOS.
    pub const DIR_MOS: &str = "$MOS";
    /// Name of the directory that accounts for space waiting to be freed.
    pub const DIR_FREE: &str = "$FREE";
    /// Name of the directory whose empty snapshot every ordinary dataset is a clone of.
    pub const DIR_ORIGIN: &str = "$ORIGIN";
    /// Suffix of a received property.
    pub const SUFFIX_RECEIVED: &str = "$recvd";
    /// Suffix of a property that inherits although a value was received.
    pub const SUFFIX_INHERIT: &str = "$inherit";
    /// Property: a received value exists.
    pub const HAS_RECEIVED: &str = "$hasrecvd";
}

/// Bit of [`DirPhys::flags`]: the breakdown of `used` is valid.
pub const DIR_USED_BREAKDOWN: u64 = 1;

/// A DSL directory: the bonus of type 12. Object numbers are of the MOS, 0 for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DirPhys {
    /// Seconds since 1970.
    pub creation_time: u64,
    /// The live dataset; 0 for `$MOS` and `$FREE`.
    pub head_dataset: u64,
    /// Parent directory; 0 for the root.
    pub parent: u64,
    /// Snapshot this is a clone of; `$ORIGIN@$ORIGIN` for ordinary ones.
    pub origin: u64,
    /// ZAP: child name → directory.
    pub child_map: u64,
    /// Bytes used, children included.
    pub used_bytes: u64,
    /// Bytes after compression.
    pub compressed_bytes: u64,
    /// Bytes before compression.
    pub uncompressed_bytes: u64,
    /// Limit in bytes; 0 for none.
    pub quota: u64,
    /// Bytes set aside.
    pub reserved: u64,
    /// ZAP of properties.
    pub props: u64,
    /// ZAP of delegated permissions.
    pub delegation: u64,
    /// See [`DIR_USED_BREAKDOWN`].
    pub flags: u64,
    /// Bytes used by: head, snapshots, children, children's reservations, own refreservation.
    pub used_breakdown: [u64; 5],
    /// ZAP of heads cloned from snapshots here.
    pub clones: u64,
    /// Words 19–31, zero so far.
    pub pad: [u64; 13],
}

impl DirPhys {
    /// Size in bytes.
    pub const BYTES: usize = 256;

    /// Reads a bonus.
    ///
    /// # Errors
    /// Fewer than 256 bytes.
    pub fn decode(bonus: &[u8], order: Order) -> Result<Self> {
        let mut reader = Reader::new("DSL directory", bonus, order);
        let [creation_time, head_dataset, parent, origin, child_map, used_bytes] = reader.words()?;
        let [compressed_bytes, uncompressed_bytes, quota, reserved, props, delegation] = reader.words()?;
        Ok(Self {
            creation_time,
            head_dataset,
            parent,
            origin,
            child_map,
            used_bytes,
            compressed_bytes,
            uncompressed_bytes,
            quota,
            reserved,
            props,
            delegation,
            flags: reader.u64()?,
            used_breakdown: reader.words()?,
            clones: reader.u64()?,
            pad: reader.words()?,
        })
    }

    /// The bonus.
    #[must_use]
    pub fn encode(&self, order: Order) -> Vec<u8> {
        let mut writer = Writer::with_capacity(Self::BYTES, order);
        writer.words(&[
            self.creation_time,
            self.head_dataset,
            self.parent,
            self.origin,
            self.child_map,
            self.used_bytes,
            self.compressed_bytes,
            self.uncompressed_bytes,
            self.quota,
            self.reserved,
            self.props,
            self.delegation,
            self.flags,
        ]);
        writer.words(&self.used_breakdown);
        writer.u64(self.clones);
        writer.words(&self.pad);
        writer.finish()
    }
}

/// Bits of [`DatasetPhys::flags`].
pub mod dataset_flags {
    /// Half received: not to be used.
    pub const INCONSISTENT: u64 = 1;
    /// Must not be promoted.
    pub const NO_PROMOTE: u64 = 2;
    /// `unique_bytes` is right; always set.
    pub const UNIQUE_ACCURATE: u64 = 4;
    /// To be destroyed when the last hold and clone are gone.
    pub const DEFER_DESTROY: u64 = 8;
    /// Names in the file system, and of its snapshots, ignore case.
    pub const CASE_INSENSITIVE: u64 = 0x10000;
}

/// A DSL dataset: the bonus of type 16. Object numbers are of the MOS, 0 for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatasetPhys {
    /// Its directory.
    pub dir: u64,
    /// The snapshot before it.
    pub prev_snap: u64,
    /// Txg of that snapshot: younger blocks are this dataset's alone.
    pub prev_snap_txg: u64,
    /// Snapshot or head after it; 0 for heads.
    pub next_snap: u64,
    /// Heads: ZAP of snapshot names.
    pub snap_names: u64,
    /// Datasets whose `prev_snap` this is.
    pub children: u64,
    /// Seconds since 1970.
    pub creation_time: u64,
    /// Txg of creation.
    pub creation_txg: u64,
    /// Blocks the previous snapshot has and this one no longer.
    pub deadlist: u64,
    /// Bytes reachable, deflated.
    pub referenced_bytes: u64,
    /// Bytes reachable, after compression.
    pub compressed_bytes: u64,
    /// Bytes reachable, before compression.
    pub uncompressed_bytes: u64,
    /// Bytes only this dataset reaches.
    pub unique_bytes: u64,
    /// 56 random bits that name the mounted file system.
    pub fsid_guid: u64,
    /// Random name of this state of the data, kept by replication.
    pub guid: u64,
    /// See [`dataset_flags`].
    pub flags: u64,
    /// The object set.
    pub bp: BlkPtr,
    /// ZAP of clones made of this snapshot.
    pub next_clones: u64,
    /// Snapshots: ZAP of own properties.
    pub props: u64,
    /// ZAP of holds.
    pub user_refs: u64,
    /// Words 35–39, zero so far.
    pub pad: [u64; 5],
}

impl DatasetPhys {
    /// Size in bytes.
    pub const BYTES: usize = 320;
    /// Byte offset of `bp`.
    const BP_OFFSET: usize = 128;

    /// Reads a bonus.
    ///
    /// # Errors
    /// Fewer than 320 bytes, or a bad block pointer.
    pub fn decode(bonus: &[u8], order: Order) -> Result<Self> {
        let mut reader = Reader::new("DSL dataset", bonus, order);
        let [dir, prev_snap, prev_snap_txg, next_snap, snap_names, children] = reader.words()?;
        let [creation_time, creation_txg, deadlist, referenced_bytes] = reader.words()?;
        let [compressed_bytes, uncompressed_bytes, unique_bytes, fsid_guid, guid, flags] = reader.words()?;
        let bp = BlkPtr::from_words(reader.words()?)
            .map_err(|error| Error { offset: error.offset.saturating_add(Self::BP_OFFSET), ..error })?;
        let [next_clones, props, user_refs] = reader.words()?;
        Ok(Self {
            dir,
            prev_snap,
            prev_snap_txg,
            next_snap,
            snap_names,
            children,
            creation_time,
            creation_txg,
            deadlist,
            referenced_bytes,
            compressed_bytes,
            uncompressed_bytes,
            unique_bytes,
            fsid_guid,
            guid,
            flags,
            bp,
            next_clones,
            props,
            user_refs,
            pad: reader.words()?,
        })
    }

    /// The bonus.
    #[must_use]
    pub fn encode(&self, order: Order) -> Vec<u8> {
        let mut writer = Writer::with_capacity(Self::BYTES, order);
        writer.words(&[
            self.dir,
            self.prev_snap,
            self.prev_snap_txg,
            self.next_snap,
            self.snap_names,
            self.children,
            self.creation_time,
            self.creation_txg,
            self.deadlist,
            self.referenced_bytes,
            self.compressed_bytes,
            self.uncompressed_bytes,
            self.unique_bytes,
            self.fsid_guid,
            self.guid,
            self.flags,
        ]);
        writer.words(self.bp.words());
        writer.words(&[self.next_clones, self.props, self.user_refs]);
        writer.words(&self.pad);
        writer.finish()
    }

    /// Whether this is a snapshot (heads list snapshot names, snapshots have a successor).
    #[must_use]
    pub const fn is_snapshot(&self) -> bool {
        self.next_snap != 0
    }

    /// Whether names are the same in any case, those of its snapshots and bookmarks included.
    #[must_use]
    pub const fn ignores_case(&self) -> bool {
        self.flags & dataset_flags::CASE_INSENSITIVE != 0
    }

    /// Whether this head takes two names of snapshots, or of bookmarks, for one.
    #[must_use]
    pub fn is_same_name(&self, one: &str, other: &str) -> bool {
        one == other || self.ignores_case() && one.eq_ignore_ascii_case(other)
    }

    /// A half-received state that must not be shown.
    #[must_use]
    pub const fn is_inconsistent(&self) -> bool {
        self.flags & dataset_flags::INCONSISTENT != 0
    }
}

/// A bookmark: the birth of a snapshot that may be gone, enough to send increments from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BookmarkPhys {
    /// Guid of the snapshot.
    pub guid: u64,
    /// Its txg.
    pub creation_txg: u64,
    /// Seconds since 1970.
    pub creation_time: u64,
    /// The words of version 2: redaction object, flags, referenced, compressed and uncompressed bytes,
    /// the same three freed before the next snapshot, set of initialisation vectors. Up to 9.
    pub extra: Vec<u64>,
}

impl BookmarkPhys {
    /// From the 3 to 12 words of its ZAP entry.
    ///
    /// # Errors
    /// Another number of words.
    pub fn from_words(words: &[u64]) -> Result<Self> {
        match words {
            [guid, creation_txg, creation_time, extra @ ..] if extra.len() <= 9 => Ok(Self {
                guid: *guid,
                creation_txg: *creation_txg,
                creation_time: *creation_time,
                extra: extra.to_vec(),
            }),
            _ => {
                let reason =
                    crate::Reason::OutOfRange { field: "number of words", value: words.len() as u64 };
                Err(Error::new("bookmark", 0, reason))
            }
        }
    }

    /// The words of its ZAP entry.
    #[must_use]
    pub fn to_words(&self) -> Vec<u64> {
        let head = [self.guid, self.creation_txg, self.creation_time];
        head.into_iter().chain(self.extra.iter().copied()).collect()
    }

    /// The redaction list it belongs to, if any.
    #[must_use]
    pub fn redaction_object(&self) -> Option<u64> {
        self.extra.first().copied().filter(|object| *object != 0)
    }
}

#[cfg(test)]
mod tests;
