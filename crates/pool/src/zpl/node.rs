//! One file of any kind: its attributes, and its content.

use ondisk::{
    Order,
    dnode::ObjectType,
    sa::Image,
    zpl::{Attributes, DirEntry, FileKind},
};

use super::{FileError, FileSystem, xattr};
use crate::{
    BoxFuture,
    dmu::{Object, ReadError, Runs},
    zap::Zap,
};

/// Longest target of a symbolic link that is believed, in bytes (Linux's own limit).
const TARGET_MAX: u64 = 4096;

/// What `stat` tells, with the field's names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Kind and permission bits, as `st_mode`.
    pub mode: u32,
    /// Bytes; of a directory: entries + 2.
    pub size: u64,
    /// Names it has.
    pub links: u64,
    /// Owner. The low half is the number; a high half other than 0 names a foreign domain.
    pub uid: u64,
    /// Group, likewise.
    pub gid: u64,
    /// Access, modification, change, creation: seconds since 1970 and nanoseconds.
    pub atime: (u64, u64),
    /// Modification.
    pub mtime: (u64, u64),
    /// Change.
    pub ctime: (u64, u64),
    /// Creation.
    pub crtime: (u64, u64),
    /// Device number as the writing platform encodes it; 0 if none.
    pub rdev: u64,
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// The name: any bytes but `/` and NUL.
    pub name: Vec<u8>,
    /// Object number.
    pub object: u64,
    /// Kind, as far as the directory knows.
    pub kind: FileKind,
}

/// An extended attribute: its name and its value.
pub type Xattr = (Vec<u8>, Vec<u8>);

/// A file, directory, link, pipe, socket or device.
#[derive(Debug)]
pub struct Node {
    fs: FileSystem,
    object: Object,
    stat: Stat,
    parent: u64,
    target: Option<Vec<u8>>,
    pub(super) xattr_object: u64,
    pub(super) xattr_list: Option<Vec<u8>>,
}

impl Node {
    pub(super) async fn read_attributes(fs: FileSystem, number: u64) -> Result<Self, ReadError> {
        let set = fs.object_set();
        let object = set.object(number).await?;
        let at = object.bookmark(0, 0);
        let bonus: &[u8] = &object.dnode().bonus;
        let spill = match object.dnode().spill {
            Some(pointer) if !pointer.is_hole() => Some(set.source().read(&pointer, at).await?),
            _ => None,
        };
        let kind = object.dnode().bonus_type;
        let attributes = match (kind, &fs.0.tables) {
            (ObjectType::SA, Some(tables)) => {
                let mut images = vec![image(bonus).map_err(ReadError::malformed(at))?];
                if let Some(spill) = &spill {
                    images.push(image(spill).map_err(ReadError::malformed(at))?);
                }
                Attributes::from_sa(&images, &tables.1, &tables.0)
            }
            (ObjectType::ZNODE, _) => {
                let meta = set.meta();
                let per_block = meta.block_bytes() / ondisk::dnode::SLOT_BYTES as u64;
                let order = meta.read_block(number / per_block).await?.order;
                Attributes::from_znode(bonus, order)
            }
            _ => return Err(ReadError::Inconsistent { at, what: "the object is not a file" }),
        };
        let attributes = attributes.map_err(ReadError::malformed(at))?;
        let time = |t: ondisk::zil::Timestamp| (t.seconds, t.nanoseconds);
        let stat = Stat {
            // The format keeps 64 bits of which st_mode is the low half.
            mode: (attributes.mode & 0xffff_ffff) as u32,
            size: attributes.size,
            links: attributes.links,
            uid: attributes.uid,
            gid: attributes.gid,
            atime: time(attributes.atime),
            mtime: time(attributes.mtime),
            ctime: time(attributes.ctime),
            crtime: time(attributes.crtime),
            rdev: attributes.rdev,
        };
        let parent = attributes.parent;
        let target = attributes.symlink.map(<[u8]>::to_vec);
        let xattr_object = attributes.xattr_object;
        let xattr_list = attributes.dxattr.map(<[u8]>::to_vec);
        Ok(Self { object: object.clone(), fs, stat, parent, target, xattr_object, xattr_list })
    }

    /// Its attributes.
    #[must_use]
    pub fn stat(&self) -> &Stat {
        &self.stat
    }

    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        FileKind::from_bits((self.stat.mode >> 12 & 15) as u8)
    }

    /// Its object number: the inode number.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.object.number()
    }

    /// Object number of its directory; the root's is its own.
    #[must_use]
    pub fn parent(&self) -> u64 {
        self.parent
    }

    /// The object: its blocks and holes.
    #[must_use]
    pub fn object(&self) -> &Object {
        &self.object
    }

    /// The file system it is in.
    #[must_use]
    pub fn file_system(&self) -> &FileSystem {
        &self.fs
    }

    /// The names in this directory, by name.
    ///
    /// # Errors
    /// It is no directory, or a block of it cannot be read.
    pub fn entries(&self) -> BoxFuture<'_, Result<Vec<DirectoryEntry>, FileError>> {
        Box::pin(async move {
            let mut found = Vec::new();
            let zap = self.directory().await?;
            let mut entries = zap.entries();
            while let Some((key, value)) = entries.next().await? {
                if let (Some(name), Some(word)) = (key.name(), value.as_u64()) {
                    let DirEntry { object, kind } = DirEntry::from_u64(word);
                    found.push(DirectoryEntry { name: name.to_vec(), object, kind });
                }
            }
            found.sort_unstable_by(|a, b| a.name.cmp(&b.name));
            Ok(found)
        })
    }

    /// The object called `name` in this directory.
    ///
    /// # Errors
    /// It is no directory, or a block of it cannot be read.
    pub fn child<'a>(&'a self, name: &'a [u8]) -> BoxFuture<'a, Result<Option<DirEntry>, FileError>> {
        Box::pin(async move {
            let value = self.directory().await?.get(name).await?;
            Ok(value.and_then(|value| value.as_u64()).map(DirEntry::from_u64))
        })
    }

    async fn directory(&self) -> Result<Zap, FileError> {
        if self.kind() != FileKind::Directory {
            return Err(FileError::NotDirectory { path: format!("object {}", self.number()) });
        }
        Ok(Zap::open(self.object.clone()).await?)
    }

    /// Where a symbolic link points; `None` for anything else.
    ///
    /// # Errors
    /// The target is kept as content and cannot be read, or is absurdly long.
    pub fn target(&self) -> BoxFuture<'_, Result<Option<Vec<u8>>, FileError>> {
        Box::pin(async move {
            if self.kind() != FileKind::Symlink {
                return Ok(None);
            }
            if let Some(target) = &self.target {
                return Ok(Some(target.clone()));
            }
            if self.stat.size > TARGET_MAX {
                let (objset, object) = (self.object.objset(), self.number());
                return Err(ReadError::TooLarge { objset, object, limit: TARGET_MAX }.into());
            }
            Ok(Some(self.read(0, TARGET_MAX as usize).await?))
        })
    }

    /// Up to `len` bytes of a file's content at `offset`: fewer only at its end.
    ///
    /// # Errors
    /// A block cannot be read.
    pub fn read(&self, offset: u64, len: usize) -> BoxFuture<'_, Result<Vec<u8>, FileError>> {
        Box::pin(async move {
            let left = self.stat.size.saturating_sub(offset);
            let len = usize::try_from(left).unwrap_or(usize::MAX).min(len);
            Ok(self.object.read(offset, len).await?)
        })
    }

    /// The blocks and holes up to the end of the content, for copies that keep the holes.
    #[must_use]
    pub fn runs(&self) -> Runs<'_> {
        self.object.runs(0, 0..self.stat.size.div_ceil(self.object.block_bytes()))
    }

    /// Extended attributes by name, from both places they are kept in.
    ///
    /// # Errors
    /// One of the places cannot be read.
    pub fn xattrs(&self) -> BoxFuture<'_, Result<Vec<Xattr>, FileError>> {
        Box::pin(xattr::read(self))
    }
}

/// Attributes say their own byte order by their magic.
fn image(data: &[u8]) -> ondisk::Result<Image<'_>> {
    Image::decode(data, Order::Little).or_else(|error| Image::decode(data, Order::Big).map_err(|_| error))
}
