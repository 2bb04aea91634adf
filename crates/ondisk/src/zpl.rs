//! The POSIX layer: what a file system keeps about each file, and what its directories hold.
//!
//! Since version 5 a file's attributes are system attributes (module [`sa`](crate::sa)); before, a fixed
//! structure of 264 bytes. [`Attributes`] is both, read into one shape. Directory entries are one `u64` each
//! ([`DirEntry`]); extended attributes kept with the attributes are an nvlist ([`Attributes::dxattr`]).
//!
//! Not here: walking directories, quotas, and any Unicode folding. Facts: docs/format/zpl.md.

use crate::sa::{Image, Layouts, Registry};
use crate::zil::Timestamp;
use crate::{Error, Order, Reader, Reason, Result};

/// Bytes of the znode before version 5.
pub const ZNODE_BYTES: usize = 264;
/// [`Attributes::flags`]: this is an extended attribute or the directory of some.
pub const FLAG_XATTR: u64 = 1;
/// [`Attributes::flags`]: [`Attributes::project`] is valid.
pub const FLAG_PROJECT: u64 = 1 << 47;

const ATTRIBUTES: &str = "file attributes";
const ACL: &str = "access control list";

/// The kind of file a directory entry or mode names: bits 12 to 15 of `st_mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// Named pipe.
    Fifo,
    /// Character device.
    CharDevice,
    /// Directory.
    Directory,
    /// Block device.
    BlockDevice,
    /// Regular file.
    Regular,
    /// Symbolic link.
    Symlink,
    /// Socket.
    Socket,
    /// Not recorded (old directories), or a number nobody knows.
    Unknown(u8),
}

impl FileKind {
    /// From the four bits.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 15 {
            1 => Self::Fifo,
            2 => Self::CharDevice,
            4 => Self::Directory,
            6 => Self::BlockDevice,
            8 => Self::Regular,
            10 => Self::Symlink,
            12 => Self::Socket,
            other => Self::Unknown(other),
        }
    }

    /// The four bits.
    #[must_use]
    pub const fn bits(self) -> u8 {
        match self {
            Self::Fifo => 1,
            Self::CharDevice => 2,
            Self::Directory => 4,
            Self::BlockDevice => 6,
            Self::Regular => 8,
            Self::Symlink => 10,
            Self::Socket => 12,
            Self::Unknown(bits) => bits & 15,
        }
    }
}

/// The value of a directory's ZAP entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// Object number (48 bits).
    pub object: u64,
    /// What it is, as far as the directory knows.
    pub kind: FileKind,
}

impl DirEntry {
    /// From the entry's word.
    #[must_use]
    pub const fn from_u64(word: u64) -> Self {
        let [top, ..] = word.to_be_bytes();
        Self { object: word & ((1 << 48) - 1), kind: FileKind::from_bits(top >> 4) }
    }

    /// The entry's word.
    #[must_use]
    pub const fn to_u64(self) -> u64 {
        (self.object & ((1 << 48) - 1)) | (self.kind.bits() as u64) << 60
    }
}

/// A file's attributes. Borrows what is variable from bonus and spill block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes<'a> {
    /// `st_mode`, with the kind.
    pub mode: u64,
    /// Bytes; of a directory: entries + 2.
    pub size: u64,
    /// Creation txg.
    pub generation: u64,
    /// Object of the parent directory.
    pub parent: u64,
    /// Number of names.
    pub links: u64,
    /// Owner: a number below 2^32, or index of a foreign domain in the high half.
    pub uid: u64,
    /// Group, likewise.
    pub gid: u64,
    /// Flags.
    pub flags: u64,
    /// Access time.
    pub atime: Timestamp,
    /// Modification time.
    pub mtime: Timestamp,
    /// Change time.
    pub ctime: Timestamp,
    /// Creation time.
    pub crtime: Timestamp,
    /// Device number; 0 if none.
    pub rdev: u64,
    /// Object of the extended attributes' directory; 0 if none.
    pub xattr_object: u64,
    /// Project id.
    pub project: Option<u64>,
    /// Target of a symbolic link, where it fits the attributes (else it is the file's content).
    pub symlink: Option<&'a [u8]>,
    /// XDR nvlist of extended attributes: name → byte array.
    pub dxattr: Option<&'a [u8]>,
    /// Access control entries, see [`aces`]; they are in `acl_order`.
    pub acl: Option<&'a [u8]>,
    /// Byte order of [`acl`](Self::acl).
    pub acl_order: Option<Order>,
}

impl<'a> Attributes<'a> {
    /// From the images in the bonus and, if there is one, the spill block.
    ///
    /// # Errors
    /// An image whose layout the file system does not have or that does not fit it; a fixed attribute of a length
    /// it cannot have; no mode at all.
    pub fn from_sa(images: &[Image<'a>], layouts: &Layouts, registry: &Registry) -> Result<Self> {
        let names = Names::of(registry);
        let mut found = Self::default();
        let mut has_mode = false;
        for image in images {
            let unknown = Reason::Unsupported { field: "attribute layout", value: image.layout().into() };
            let layout = layouts.get(image.layout()).ok_or(Error::new(ATTRIBUTES, 4, unknown))?;
            for attribute in image.attributes(layout, registry) {
                let (number, bytes) = attribute?;
                has_mode |= Some(number) == names.mode;
                found.take(number, bytes, image.order(), &names)?;
            }
        }
        if has_mode {
            Ok(found)
        } else {
            Err(Error::new(ATTRIBUTES, 0, Reason::Missing { name: "ZPL_MODE" }))
        }
    }

    /// From the bonus of a file system before version 5.
    ///
    /// # Errors
    /// Shorter than 264 bytes.
    pub fn from_znode(bonus: &'a [u8], order: Order) -> Result<Self> {
        let mut reader = Reader::new("znode", bonus, order);
        let mut time = || {
            let [seconds, nanoseconds] = reader.words()?;
            Ok::<_, Error>(Timestamp { seconds, nanoseconds })
        };
        let (atime, mtime, ctime, crtime) = (time()?, time()?, time()?, time()?);
        let [generation, mode, size, parent, links, xattr_object, rdev, flags, uid, gid] = reader.words()?;
        reader.seek(ZNODE_BYTES)?;
        let kind = FileKind::from_bits(kind_bits(mode));
        // A target that fits stands right behind the structure; a longer one is the file's content.
        let target = usize::try_from(size).ok().and_then(|size| reader.rest().get(..size));
        let symlink = target.filter(|target| kind == FileKind::Symlink && !target.is_empty());
        Ok(Self {
            mode,
            size,
            generation,
            parent,
            links,
            uid,
            gid,
            flags,
            atime,
            mtime,
            ctime,
            crtime,
            rdev,
            xattr_object,
            symlink,
            ..Self::default()
        })
    }

    /// The kind of file, from the mode.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        FileKind::from_bits(kind_bits(self.mode))
    }

    fn take(&mut self, number: u16, bytes: &'a [u8], order: Order, names: &Names) -> Result<()> {
        let number = Some(number);
        let mut reader = Reader::new(ATTRIBUTES, bytes, order);
        let words = [
            (names.mode, &mut self.mode),
            (names.size, &mut self.size),
            (names.generation, &mut self.generation),
            (names.parent, &mut self.parent),
            (names.links, &mut self.links),
            (names.uid, &mut self.uid),
            (names.gid, &mut self.gid),
            (names.flags, &mut self.flags),
            (names.rdev, &mut self.rdev),
            (names.xattr, &mut self.xattr_object),
        ];
        for (name, place) in words {
            if name == number {
                *place = reader.u64()?;
                return Ok(());
            }
        }
        let times = [
            (names.atime, &mut self.atime),
            (names.mtime, &mut self.mtime),
            (names.ctime, &mut self.ctime),
            (names.crtime, &mut self.crtime),
        ];
        for (name, place) in times {
            if name == number {
                let [seconds, nanoseconds] = reader.words()?;
                *place = Timestamp { seconds, nanoseconds };
                return Ok(());
            }
        }
        if names.project == number {
            self.project = Some(reader.u64()?);
        } else if names.symlink == number {
            self.symlink = Some(bytes);
        } else if names.dxattr == number {
            self.dxattr = Some(bytes);
        } else if names.dacl_aces == number {
            self.acl = Some(bytes);
            self.acl_order = Some(order);
        }
        Ok(())
    }
}

/// The four kind bits of a mode.
const fn kind_bits(mode: u64) -> u8 {
    (mode >> 12 & 15) as u8
}

/// Attribute numbers of the names read here.
struct Names {
    mode: Option<u16>,
    size: Option<u16>,
    generation: Option<u16>,
    parent: Option<u16>,
    links: Option<u16>,
    uid: Option<u16>,
    gid: Option<u16>,
    flags: Option<u16>,
    rdev: Option<u16>,
    xattr: Option<u16>,
    atime: Option<u16>,
    mtime: Option<u16>,
    ctime: Option<u16>,
    crtime: Option<u16>,
    project: Option<u16>,
    symlink: Option<u16>,
    dxattr: Option<u16>,
    dacl_aces: Option<u16>,
}

impl Names {
    fn of(registry: &Registry) -> Self {
        Self {
            mode: registry.number("ZPL_MODE"),
            size: registry.number("ZPL_SIZE"),
            generation: registry.number("ZPL_GEN"),
            parent: registry.number("ZPL_PARENT"),
            links: registry.number("ZPL_LINKS"),
            uid: registry.number("ZPL_UID"),
            gid: registry.number("ZPL_GID"),
            flags: registry.number("ZPL_FLAGS"),
            rdev: registry.number("ZPL_RDEV"),
            xattr: registry.number("ZPL_XATTR"),
            atime: registry.number("ZPL_ATIME"),
            mtime: registry.number("ZPL_MTIME"),
            ctime: registry.number("ZPL_CTIME"),
            crtime: registry.number("ZPL_CRTIME"),
            project: registry.number("ZPL_PROJID"),
            symlink: registry.number("ZPL_SYMLINK"),
            dxattr: registry.number("ZPL_DXATTR"),
            dacl_aces: registry.number("ZPL_DACL_ACES"),
        }
    }
}

/// Whom an access control entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AceWho {
    /// `owner@`.
    Owner,
    /// `group@`.
    OwningGroup,
    /// `everyone@`.
    Everyone,
    /// A user or group by FUID.
    Id(u64),
}

/// One access control entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ace {
    /// 0 allow, 1 deny; 2 and 3 audit and alarm.
    pub kind: u16,
    /// Inheritance and identity flags, as stored.
    pub flags: u16,
    /// Permissions.
    pub mask: u32,
    /// Whom it is about.
    pub who: AceWho,
}

const ACE_OWNER: u16 = 0x1000;
const ACE_OWNING_GROUP: u16 = 0x2040;
const ACE_EVERYONE: u16 = 0x4000;
const ACE_IDENTITY: u16 = ACE_OWNER | ACE_OWNING_GROUP | ACE_EVERYONE;

/// The entries of an ACL. After the first error there are no more.
///
/// # Errors
/// (Per item) an entry beyond the end, or of the kinds with object ids, which no release of OpenZFS writes here.
pub fn aces(data: &[u8], order: Order) -> impl Iterator<Item = Result<Ace>> + '_ {
    let mut reader = Some(Reader::new(ACL, data, order));
    std::iter::from_fn(move || {
        let mut at = reader.take().filter(|reader| reader.remaining() > 0)?;
        let item = ace(&mut at);
        if item.is_ok() {
            reader = Some(at);
        }
        Some(item)
    })
}

fn ace(reader: &mut Reader<'_>) -> Result<Ace> {
    let kind = reader.u16()?;
    if kind > 3 {
        return Err(reader.error(Reason::Unsupported { field: "access control entry", value: kind.into() }));
    }
    let flags = reader.u16()?;
    let mask = reader.u32()?;
    let who = match flags & ACE_IDENTITY {
        ACE_OWNER => AceWho::Owner,
        ACE_OWNING_GROUP => AceWho::OwningGroup,
        ACE_EVERYONE => AceWho::Everyone,
        _ => AceWho::Id(reader.u64()?),
    };
    Ok(Ace { kind, flags, mask, who })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_entry_keeps_object_and_kind() {
        let entry = DirEntry { object: 0x1234_5678_9abc, kind: FileKind::Symlink };
        assert_eq!(entry.to_u64(), 0xa000_1234_5678_9abc);
        assert_eq!(DirEntry::from_u64(entry.to_u64()), entry);
        assert_eq!(DirEntry::from_u64(7).kind, FileKind::Unknown(0));
        for bits in 0..16 {
            assert_eq!(FileKind::from_bits(bits).bits(), bits);
        }
    }

    #[test]
    fn the_trivial_acl_of_mode_0644_is_three_entries() {
        let bytes = [
            0, 0, 0, 0x10, 0x9f, 0x01, 0x1e, 0, 0, 0, 0x40, 0x20, 0x89, 0, 0x12, 0, 0, 0, 0, 0x40, 0x89, 0,
            0x12, 0,
        ];
        let list: Vec<_> = aces(&bytes, Order::Little).map(Result::unwrap).collect();
        let [owner, group, everyone] = list[..] else { panic!("{list:?}") };
        assert_eq!((owner.who, owner.mask), (AceWho::Owner, 0x1E_019F));
        assert_eq!((group.who, group.mask), (AceWho::OwningGroup, 0x12_0089));
        assert_eq!((everyone.who, everyone.mask), (AceWho::Everyone, 0x12_0089));
    }

    #[test]
    fn an_entry_with_an_id_is_longer_and_a_torn_one_ends_the_list() {
        let mut bytes = vec![0, 0, 0, 0, 0, 0, 0, 1];
        bytes.extend(1000u64.to_be_bytes());
        bytes.extend([0, 1, 0x10]);
        let list: Vec<_> = aces(&bytes, Order::Big).collect();
        assert_eq!(list[0], Ok(Ace { kind: 0, flags: 0, mask: 1, who: AceWho::Id(1000) }));
        assert!(list[1].is_err());
        assert_eq!(list.len(), 2);
    }

    #[test]
    fn an_old_znode_carries_short_targets_behind_itself() {
        for order in [Order::Little, Order::Big] {
            let mut words = [0u64; 33];
            words[8] = 45;
            words[9] = 0o120_777;
            words[10] = 6;
            words[11] = 34;
            words[12] = 1;
            words[16] = 1000;
            let mut bonus: Vec<u8> = words.iter().flat_map(|word| order.put_u64(*word)).collect();
            bonus.extend(b"target\0\0");
            let file = Attributes::from_znode(&bonus, order).unwrap();
            assert_eq!(file.kind(), FileKind::Symlink);
            assert_eq!((file.symlink, file.uid, file.parent), (Some(&b"target"[..]), 1000, 34));
            assert!(Attributes::from_znode(&bonus[..263], order).is_err());
        }
    }
}
