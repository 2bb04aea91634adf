//! The records of a log block: one logged operation each.
//!
//! Every record starts with 32 bytes (type, length, txg, sequence) and is a multiple of 8 bytes long. Volumes log
//! only writes, truncations and clones; file systems log everything that changes a name or an attribute. What
//! follows the fixed part of a record (names, ACLs, data) is borrowed, and kept whole where its inner layout
//! depends on things the record does not say, so that encoding gives back the same bytes.
//! Facts: docs/format/zil.md §3.

use super::BLKPTR_BYTES;
use crate::blkptr::BlkPtr;
use crate::{Error, Order, Reader, Reason, Result, Writer};

const STRUCTURE: &str = "intent log record";
const HEADER: usize = 32;
/// Bytes of a write's record before its data.
pub const WRITE_BYTES: usize = 192;
const CASE_INSENSITIVE: u64 = 1 << 63;
const OBJECT_MASK: u64 = (1 << 48) - 1;

macro_rules! tx_types {
    ($($(#[$doc:meta])* $name:ident = $id:literal,)*) => {
        /// What was logged.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum TxType {
            $($(#[$doc])* $name = $id,)*
        }

        impl TxType {
            /// From the low bits of a record's first word.
            #[must_use]
            pub const fn from_id(id: u64) -> Option<Self> {
                match id {
                    $($id => Some(Self::$name),)*
                    _ => None,
                }
            }
        }
    };
}

tx_types! {
    /// A file was made.
    Create = 1,
    /// A directory was made.
    Mkdir = 2,
    /// A hidden directory of extended attributes was made.
    Mkxattr = 3,
    /// A symbolic link was made.
    Symlink = 4,
    /// A name was removed.
    Remove = 5,
    /// A directory was removed.
    Rmdir = 6,
    /// A second name was given.
    Link = 7,
    /// A name was changed.
    Rename = 8,
    /// Data was written.
    Write = 9,
    /// A range was freed.
    Truncate = 10,
    /// Attributes were set.
    SetAttr = 11,
    /// An ACL of the oldest form was set.
    AclV0 = 12,
    /// An ACL was set.
    Acl = 13,
    /// A file was made, with an ACL.
    CreateAcl = 14,
    /// A file was made, with extended attributes bits.
    CreateAttr = 15,
    /// A file was made, with both.
    CreateAclAttr = 16,
    /// A directory was made, with an ACL.
    MkdirAcl = 17,
    /// A directory was made, with extended attribute bits.
    MkdirAttr = 18,
    /// A directory was made, with both.
    MkdirAclAttr = 19,
    /// The size changed by a write whose data reached the pool already.
    Write2 = 20,
    /// An extended attribute kept among the system attributes was set.
    SetSaXattr = 21,
    /// Two names changed places.
    RenameExchange = 22,
    /// A name was changed and a whiteout left in its place.
    RenameWhiteout = 23,
    /// A range was made to share blocks.
    CloneRange = 24,
}

impl TxType {
    /// The on-disk number.
    #[must_use]
    pub const fn id(self) -> u8 {
        self as u8
    }
}

/// A point in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamp {
    /// Seconds since 1970.
    pub seconds: u64,
    /// Nanoseconds.
    pub nanoseconds: u64,
}

/// Which of the creating records this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateKind {
    /// The record's type: one of the creating ones.
    pub tx: TxType,
}

impl CreateKind {
    const fn has_acl(self) -> bool {
        matches!(self.tx, TxType::CreateAcl | TxType::CreateAclAttr | TxType::MkdirAcl | TxType::MkdirAclAttr)
    }

    const fn has_xvattr(self) -> bool {
        matches!(
            self.tx,
            TxType::CreateAttr | TxType::CreateAclAttr | TxType::MkdirAttr | TxType::MkdirAclAttr
        )
    }
}

/// What a creating record says of the new object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// The directory it appears in.
    pub dir: u64,
    /// Object number of the new object (48 bits).
    pub object: u64,
    /// Dnode slots of the new object, at least 1.
    pub dnode_slots: u16,
    /// `st_mode`.
    pub mode: u64,
    /// Owner, as FUID.
    pub uid: u64,
    /// Group, as FUID.
    pub gid: u64,
    /// Creation txg.
    pub generation: u64,
    /// Creation time.
    pub created: Timestamp,
    /// Device number.
    pub rdev: u64,
}

/// Counts that precede an ACL in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acl {
    /// Number of entries.
    pub ace_count: u64,
    /// Number of FUID domain strings.
    pub domain_count: u64,
    /// Number of FUIDs.
    pub fuid_count: u64,
    /// Bytes of the entries.
    pub ace_bytes: u64,
    /// ACL flags.
    pub flags: u64,
}

/// Attributes being set; the mask's bits are those of the platform that logged them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetAttr<'a> {
    /// The object.
    pub object: u64,
    /// Which attributes are set.
    pub mask: u64,
    /// `st_mode`.
    pub mode: u64,
    /// Owner.
    pub uid: u64,
    /// Group.
    pub gid: u64,
    /// Size in bytes.
    pub size: u64,
    /// Access time.
    pub atime: Timestamp,
    /// Modification time.
    pub mtime: Timestamp,
    /// Further attribute bits, if the mask says so.
    pub rest: &'a [u8],
}

/// The content of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteData<'a> {
    /// In the record.
    Inline(&'a [u8]),
    /// In a block that was written to its final place. It holds the *whole* file block around the offset, and
    /// may be a hole (write zeros) or embedded.
    Indirect(BlkPtr),
}

/// A record's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// A file, directory, symbolic link or attribute directory was made.
    Create {
        /// Which form.
        kind: CreateKind,
        /// The new object.
        node: Node,
        /// Counts of the ACL in `rest`, for the forms that have one.
        acl: Option<Acl>,
        /// Attribute bits, ACL, FUID domains, name, target: see [`Body::created_name`].
        rest: &'a [u8],
    },
    /// A name was removed.
    Remove {
        /// Whether it was a directory.
        rmdir: bool,
        /// The directory it was in.
        dir: u64,
        /// The name.
        name: &'a [u8],
    },
    /// A second name was given.
    Link {
        /// The directory of the new name.
        dir: u64,
        /// The object.
        object: u64,
        /// The name.
        name: &'a [u8],
    },
    /// A name was changed, or two were exchanged.
    Rename {
        /// Whether both names stay.
        exchange: bool,
        /// Directory of the old name.
        from_dir: u64,
        /// Directory of the new name.
        to_dir: u64,
        /// The old name.
        from: &'a [u8],
        /// The new name.
        to: &'a [u8],
    },
    /// A name was changed and a whiteout left.
    RenameWhiteout {
        /// The whiteout, in the old name's directory.
        node: Node,
        /// Directory of the new name.
        to_dir: u64,
        /// The old name.
        from: &'a [u8],
        /// The new name.
        to: &'a [u8],
    },
    /// Data was written.
    Write {
        /// The object (1 in a volume).
        object: u64,
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
        /// What was written.
        data: WriteData<'a>,
    },
    /// Only the size change of a write; ignored for volumes.
    Write2 {
        /// The object.
        object: u64,
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
    },
    /// A range was freed; it reads as zeros.
    Truncate {
        /// The object.
        object: u64,
        /// First byte.
        offset: u64,
        /// Bytes; 0 in a file system means to the end.
        length: u64,
    },
    /// Attributes were set.
    SetAttr(SetAttr<'a>),
    /// An ACL of the oldest form.
    AclV0 {
        /// The object.
        object: u64,
        /// Number of entries.
        count: u64,
        /// The entries.
        aces: &'a [u8],
    },
    /// An ACL.
    Acl {
        /// The object.
        object: u64,
        /// Counts.
        acl: Acl,
        /// Entries, FUIDs and domains.
        rest: &'a [u8],
    },
    /// An extended attribute.
    SetSaXattr {
        /// The object.
        object: u64,
        /// Its name.
        name: &'a [u8],
        /// Its value; `None` removes it.
        value: Option<&'a [u8]>,
    },
    /// Shared blocks.
    CloneRange {
        /// The object.
        object: u64,
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Bytes of each block.
        block_bytes: u64,
        /// The block pointers, 128 bytes each ([`Body::cloned_blocks`]).
        pointers: &'a [u8],
    },
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The request named things without regard to case.
    pub case_insensitive: bool,
    /// Txg the operation belongs to (not monotonic along the chain).
    pub txg: u64,
    /// Sequence, strictly increasing along the chain.
    pub sequence: u64,
    /// What was done.
    pub body: Body<'a>,
}

/// Iterator over the records of a block.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    reader: Reader<'a>,
    failed: bool,
}

impl<'a> Records<'a> {
    /// Over record bytes, back to back.
    #[must_use]
    pub fn new(data: &'a [u8], order: Order) -> Self {
        Self { reader: Reader::new(STRUCTURE, data, order), failed: false }
    }

    fn step(&mut self) -> Result<Record<'a>> {
        let start = self.reader.position();
        let mut header = self.reader.clone();
        header.skip(8)?;
        let length = header.u64()?;
        let whole = usize::try_from(length).ok().filter(|len| *len >= HEADER && len.is_multiple_of(8));
        let Some(whole) = whole else {
            let reason = Reason::OutOfRange { field: "record length", value: length };
            return Err(Error::new(STRUCTURE, start.saturating_add(8), reason));
        };
        let record = self.reader.bytes(whole)?;
        Record::decode(record, self.reader.order()).map_err(|mut error| {
            error.offset = error.offset.saturating_add(start);
            error
        })
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.reader.remaining() < HEADER {
            return None;
        }
        let item = self.step();
        self.failed = item.is_err();
        Some(item)
    }
}

/// The fixed part of a write's record whose data follows it, for writers that copy the data themselves.
/// `record_bytes` is all of the record: this, the data, and zeroes up to a multiple of 8. Little endian.
#[must_use]
pub fn write_head(
    record_bytes: u64,
    txg: u64,
    sequence: u64,
    object: u64,
    offset: u64,
    length: u64,
) -> [u8; WRITE_BYTES] {
    let mut head = [0; WRITE_BYTES];
    let words = [u64::from(TxType::Write.id()), record_bytes, txg, sequence, object, offset, length];
    for (place, word) in head.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    head
}

impl<'a> Record<'a> {
    /// Reads one record, which fills `data` exactly.
    ///
    /// # Errors
    /// An unknown type, a length that contradicts the content, or a name without NUL.
    pub fn decode(data: &'a [u8], order: Order) -> Result<Self> {
        let mut reader = Reader::new(STRUCTURE, data, order);
        let [type_word, length, txg, sequence] = reader.words()?;
        if length != data.len() as u64 {
            return Err(Error::new(STRUCTURE, 8, Reason::Inconsistent("record length and record differ")));
        }
        let id = type_word & !CASE_INSENSITIVE;
        let unknown = Error::new(STRUCTURE, 0, Reason::Unsupported { field: "record type", value: id });
        let tx = TxType::from_id(id).ok_or(unknown)?;
        let body = decode_body(tx, &mut reader, data.len())?;
        Ok(Self { case_insensitive: type_word & CASE_INSENSITIVE != 0, txg, sequence, body })
    }

    /// The record's bytes, padded to a multiple of 8.
    ///
    /// # Errors
    /// Inline data whose length is not the record's `length`, or a name with a NUL in it.
    pub fn encode(&self, order: Order) -> Result<Vec<u8>> {
        let mut writer = Writer::new(order);
        let flag = if self.case_insensitive { CASE_INSENSITIVE } else { 0 };
        writer.words(&[u64::from(self.body.tx().id()) | flag, 0, self.txg, self.sequence]);
        encode_body(&self.body, &mut writer)?;
        writer.align(8);
        writer.patch(8, &order.put_u64(writer.position() as u64));
        Ok(writer.finish())
    }
}

impl<'a> Body<'a> {
    /// The record type of this content.
    #[must_use]
    pub const fn tx(&self) -> TxType {
        match self {
            Self::Create { kind, .. } => kind.tx,
            Self::Remove { rmdir: false, .. } => TxType::Remove,
            Self::Remove { rmdir: true, .. } => TxType::Rmdir,
            Self::Link { .. } => TxType::Link,
            Self::Rename { exchange: false, .. } => TxType::Rename,
            Self::Rename { exchange: true, .. } => TxType::RenameExchange,
            Self::RenameWhiteout { .. } => TxType::RenameWhiteout,
            Self::Write { .. } => TxType::Write,
            Self::Write2 { .. } => TxType::Write2,
            Self::Truncate { .. } => TxType::Truncate,
            Self::SetAttr(_) => TxType::SetAttr,
            Self::AclV0 { .. } => TxType::AclV0,
            Self::Acl { .. } => TxType::Acl,
            Self::SetSaXattr { .. } => TxType::SetSaXattr,
            Self::CloneRange { .. } => TxType::CloneRange,
        }
    }

    /// Name and (for symbolic links) target of a [`Body::Create`], where the record says where they start:
    /// not if owner or group are in a foreign domain, because the domains' names then come first, uncounted.
    #[must_use]
    pub fn created_name(&self, order: Order) -> Option<(&'a [u8], Option<&'a [u8]>)> {
        let Self::Create { kind, node, acl, rest } = self else { return None };
        let mut reader = Reader::new(STRUCTURE, rest, order);
        if kind.has_xvattr() {
            // Bitmap of as many words as the first one says; attribute bits, creation time, scan stamp.
            let words = usize::try_from(reader.u32().ok()?).ok()?;
            reader.skip(words.checked_mul(4)?.checked_add(8 + 16 + 32)?).ok()?;
        }
        let mut domains = 0;
        if let Some(acl) = acl {
            let ace_bytes = usize::try_from(acl.ace_bytes).ok()?.checked_next_multiple_of(8)?;
            let fuids = usize::try_from(acl.fuid_count).ok()?.checked_mul(8)?;
            reader.skip(ace_bytes.checked_add(fuids)?).ok()?;
            domains = acl.domain_count;
        } else if (node.uid | node.gid) >> 32 != 0 {
            return None;
        }
        for _ in 0..domains {
            string(&mut reader).ok()?;
        }
        let name = string(&mut reader).ok()?;
        let target = if kind.tx == TxType::Symlink { Some(string(&mut reader).ok()?) } else { None };
        Some((name, target))
    }

    /// The blocks of a [`Body::CloneRange`].
    pub fn cloned_blocks(&self, order: Order) -> impl Iterator<Item = Result<BlkPtr>> + use<'a> {
        let pointers: &'a [u8] = if let Self::CloneRange { pointers, .. } = self { pointers } else { &[] };
        pointers.as_chunks::<BLKPTR_BYTES>().0.iter().map(move |pointer| BlkPtr::decode(pointer, order))
    }
}

/// Bytes up to the next NUL; the reader then stands behind it.
fn string<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8]> {
    let Some(end) = reader.rest().iter().position(|byte| *byte == 0) else {
        return Err(reader.error(Reason::Inconsistent("a name has no NUL")));
    };
    let name = reader.bytes(end)?;
    reader.skip(1)?;
    Ok(name)
}

fn timestamp(reader: &mut Reader<'_>) -> Result<Timestamp> {
    let [seconds, nanoseconds] = reader.words()?;
    Ok(Timestamp { seconds, nanoseconds })
}

fn decode_body<'a>(tx: TxType, reader: &mut Reader<'a>, record_bytes: usize) -> Result<Body<'a>> {
    Ok(match tx {
        TxType::Create
        | TxType::Mkdir
        | TxType::Mkxattr
        | TxType::Symlink
        | TxType::CreateAcl
        | TxType::CreateAttr
        | TxType::CreateAclAttr
        | TxType::MkdirAcl
        | TxType::MkdirAttr
        | TxType::MkdirAclAttr => {
            let kind = CreateKind { tx };
            let [dir, id, mode, uid, gid, generation] = reader.words()?;
            let created = timestamp(reader)?;
            let rdev = reader.u64()?;
            let acl = if kind.has_acl() {
                let [ace_count, domain_count, fuid_count, ace_bytes, flags] = reader.words()?;
                Some(Acl { ace_count, domain_count, fuid_count, ace_bytes, flags })
            } else {
                None
            };
            let (object, dnode_slots) = split_object(id);
            let node = Node { dir, object, dnode_slots, mode, uid, gid, generation, created, rdev };
            Body::Create { kind, node, acl, rest: reader.rest() }
        }
        TxType::Remove | TxType::Rmdir => {
            Body::Remove { rmdir: tx == TxType::Rmdir, dir: reader.u64()?, name: string(reader)? }
        }
        TxType::Link => Body::Link { dir: reader.u64()?, object: reader.u64()?, name: string(reader)? },
        TxType::Rename | TxType::RenameExchange => Body::Rename {
            exchange: tx == TxType::RenameExchange,
            from_dir: reader.u64()?,
            to_dir: reader.u64()?,
            from: string(reader)?,
            to: string(reader)?,
        },
        TxType::RenameWhiteout => {
            let [dir, to_dir, id, mode, uid, gid, generation] = reader.words()?;
            let created = timestamp(reader)?;
            let rdev = reader.u64()?;
            let (object, dnode_slots) = split_object(id);
            let node = Node { dir, object, dnode_slots, mode, uid, gid, generation, created, rdev };
            Body::RenameWhiteout { node, to_dir, from: string(reader)?, to: string(reader)? }
        }
        TxType::Write => {
            let [object, offset, length, _] = reader.words()?;
            let pointer = reader.bytes(BLKPTR_BYTES)?;
            let data = if record_bytes == WRITE_BYTES {
                WriteData::Indirect(BlkPtr::decode(pointer, reader.order())?)
            } else {
                let inline = usize::try_from(length).ok().and_then(|length| reader.rest().get(..length));
                let reason = Reason::OutOfRange { field: "write length", value: length };
                WriteData::Inline(inline.ok_or(Error::new(STRUCTURE, 48, reason))?)
            };
            Body::Write { object, offset, length, data }
        }
        TxType::Write2 => {
            let [object, offset, length] = reader.words()?;
            Body::Write2 { object, offset, length }
        }
        TxType::Truncate => {
            let [object, offset, length] = reader.words()?;
            Body::Truncate { object, offset, length }
        }
        TxType::SetAttr => {
            let [object, mask, mode, uid, gid, size] = reader.words()?;
            let (atime, mtime) = (timestamp(reader)?, timestamp(reader)?);
            Body::SetAttr(SetAttr { object, mask, mode, uid, gid, size, atime, mtime, rest: reader.rest() })
        }
        TxType::AclV0 => Body::AclV0 { object: reader.u64()?, count: reader.u64()?, aces: reader.rest() },
        TxType::Acl => {
            let [object, ace_count, domain_count, fuid_count, ace_bytes, flags] = reader.words()?;
            let acl = Acl { ace_count, domain_count, fuid_count, ace_bytes, flags };
            Body::Acl { object, acl, rest: reader.rest() }
        }
        TxType::SetSaXattr => {
            let [object, size] = reader.words()?;
            let name = string(reader)?;
            let value = match size {
                0 => None,
                _ => {
                    let reason = Reason::OutOfRange { field: "attribute size", value: size };
                    let size = usize::try_from(size).map_err(|_| Error::new(STRUCTURE, 40, reason))?;
                    Some(reader.bytes(size)?)
                }
            };
            Body::SetSaXattr { object, name, value }
        }
        TxType::CloneRange => {
            let [object, offset, length, block_bytes, count] = reader.words()?;
            let bytes = usize::try_from(count).ok().and_then(|count| count.checked_mul(BLKPTR_BYTES));
            let reason = Reason::OutOfRange { field: "block pointer count", value: count };
            let pointers = reader.bytes(bytes.ok_or(Error::new(STRUCTURE, 64, reason))?)?;
            Body::CloneRange { object, offset, length, block_bytes, pointers }
        }
    })
}

/// Object number (48 bits) and dnode slots (top byte, minus one) of a record that creates an object.
fn split_object(id: u64) -> (u64, u16) {
    let [slots, ..] = id.to_be_bytes();
    (id & OBJECT_MASK, u16::from(slots).saturating_add(1))
}

fn join_object(object: u64, dnode_slots: u16) -> u64 {
    (object & OBJECT_MASK) | (u64::from(dnode_slots.saturating_sub(1) & 0xff) << 56)
}

fn put_string(writer: &mut Writer, name: &[u8]) -> Result<()> {
    if name.contains(&0) {
        let reason = Reason::Inconsistent("a name has a NUL in it");
        return Err(Error::new(STRUCTURE, writer.position(), reason));
    }
    writer.bytes(name);
    writer.u8(0);
    Ok(())
}

fn put_node_tail(writer: &mut Writer, node: &Node) {
    writer.words(&[
        join_object(node.object, node.dnode_slots),
        node.mode,
        node.uid,
        node.gid,
        node.generation,
    ]);
    writer.words(&[node.created.seconds, node.created.nanoseconds, node.rdev]);
}

fn put_acl(writer: &mut Writer, acl: &Acl) {
    writer.words(&[acl.ace_count, acl.domain_count, acl.fuid_count, acl.ace_bytes, acl.flags]);
}

fn encode_body(body: &Body<'_>, writer: &mut Writer) -> Result<()> {
    match body {
        Body::Create { node, acl, rest, .. } => {
            writer.u64(node.dir);
            put_node_tail(writer, node);
            if let Some(acl) = acl {
                put_acl(writer, acl);
            }
            writer.bytes(rest);
        }
        Body::Remove { dir, name, .. } => {
            writer.u64(*dir);
            put_string(writer, name)?;
        }
        Body::Link { dir, object, name } => {
            writer.words(&[*dir, *object]);
            put_string(writer, name)?;
        }
        Body::Rename { from_dir, to_dir, from, to, .. } => {
            writer.words(&[*from_dir, *to_dir]);
            put_string(writer, from)?;
            put_string(writer, to)?;
        }
        Body::RenameWhiteout { node, to_dir, from, to } => {
            writer.words(&[node.dir, *to_dir]);
            put_node_tail(writer, node);
            put_string(writer, from)?;
            put_string(writer, to)?;
        }
        Body::Write { object, offset, length, data } => {
            writer.words(&[*object, *offset, *length, 0]);
            match data {
                WriteData::Indirect(pointer) => writer.bytes(&pointer.encode(writer.order())),
                WriteData::Inline(data) => {
                    // An empty inline write would look like an indirect one.
                    if data.len() as u64 != *length || data.is_empty() {
                        let reason = Reason::OutOfRange { field: "write length", value: *length };
                        return Err(Error::new(STRUCTURE, 48, reason));
                    }
                    writer.zeros(BLKPTR_BYTES);
                    writer.bytes(data);
                }
            }
        }
        Body::Write2 { object, offset, length } => {
            writer.words(&[*object, *offset, *length, 0]);
            writer.zeros(BLKPTR_BYTES);
        }
        Body::Truncate { object, offset, length } => writer.words(&[*object, *offset, *length]),
        Body::SetAttr(set) => {
            writer.words(&[set.object, set.mask, set.mode, set.uid, set.gid, set.size]);
            for time in [set.atime, set.mtime] {
                writer.words(&[time.seconds, time.nanoseconds]);
            }
            writer.bytes(set.rest);
        }
        Body::AclV0 { object, count, aces } => {
            writer.words(&[*object, *count]);
            writer.bytes(aces);
        }
        Body::Acl { object, acl, rest } => {
            writer.u64(*object);
            put_acl(writer, acl);
            writer.bytes(rest);
        }
        Body::SetSaXattr { object, name, value } => {
            writer.words(&[*object, value.map_or(0, <[u8]>::len) as u64]);
            put_string(writer, name)?;
            writer.bytes(value.unwrap_or_default());
        }
        Body::CloneRange { object, offset, length, block_bytes, pointers } => {
            let count = pointers.len() / BLKPTR_BYTES;
            writer.words(&[*object, *offset, *length, *block_bytes, count as u64]);
            writer.bytes(pointers);
        }
    }
    Ok(())
}
