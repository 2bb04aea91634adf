//! Send streams: a dataset as a sequence of records, for `zfs send` and `zfs receive`.
//!
//! Each record is 312 bytes, most are followed by a payload whose length the record implies
//! ([`Record::payload_bytes`]). Bytes 280 to 311 of all but BEGIN hold a running fletcher4 over everything before
//! them ([`CHECKSUM_OFFSET`]); all zero means not present. END repeats the running value in its own fields. Byte
//! order is the sender's; BEGIN's magic tells which ([`order_of`]).
//!
//! No user yet but tests and the fuzzer: Millpond neither sends nor receives (README, "Limits").
//!
//! Not here: computing the checksum (`codec`), the order of records, receiving.
//! Facts: docs/format/send-stream.md.

use crate::{Error, Order, Reader, Reason, Result, Writer};

/// Bytes of a record.
pub const RECORD_BYTES: usize = 312;
/// Where the running checksum of a record is, and how many bytes of the record it covers.
pub const CHECKSUM_OFFSET: usize = 280;
/// Longest payload of any record but a compound BEGIN: one block.
pub const PAYLOAD_BYTES_MAX: u64 = 16 << 20;
/// [`Free::length`]: to the end of the object.
pub const TO_END: u64 = u64::MAX;

const STRUCTURE: &str = "send stream record";
const MAGIC: u64 = 0x2_F5BA_CBAC;
const NAME_OFFSET: usize = 56;

/// Bits of [`Begin::features`].
pub mod features {
    /// Deduplicated stream (refused by all current receivers).
    pub const DEDUP: u64 = 1 << 0;
    /// Dedup properties.
    pub const DEDUP_PROPS: u64 = 1 << 1;
    /// Spill blocks of system attributes.
    pub const SA_SPILL: u64 = 1 << 2;
    /// Embedded blocks.
    pub const EMBED_DATA: u64 = 1 << 16;
    /// lz4 blocks.
    pub const LZ4: u64 = 1 << 17;
    /// Blocks above 128 KiB.
    pub const LARGE_BLOCKS: u64 = 1 << 19;
    /// Continues an interrupted stream.
    pub const RESUMING: u64 = 1 << 20;
    /// Redacted.
    pub const REDACTED: u64 = 1 << 21;
    /// Compressed blocks.
    pub const COMPRESSED: u64 = 1 << 22;
    /// Dnodes of more than one slot.
    pub const LARGE_DNODE: u64 = 1 << 23;
    /// Raw (encrypted) blocks.
    pub const RAW: u64 = 1 << 24;
    /// zstd blocks.
    pub const ZSTD: u64 = 1 << 25;
    /// Holds.
    pub const HOLDS: u64 = 1 << 26;
    /// The block size limit changes in this stream.
    pub const SWITCH_TO_LARGE_BLOCKS: u64 = 1 << 27;
    /// Names above 255 bytes.
    pub const LONGNAME: u64 = 1 << 28;
    /// Microzaps above 128 KiB.
    pub const LARGE_MICROZAP: u64 = 1 << 29;
    /// All of the above.
    pub const KNOWN: u64 = 0x3ffb_0007;
}

/// Whether a BEGIN opens a dataset's records or a package of such streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderKind {
    /// One dataset.
    Substream,
    /// A package; the payload describes it.
    Compound,
}

/// Start of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begin {
    /// What follows.
    pub kind: HeaderKind,
    /// See [`features`]; a receiver refuses what it does not know.
    pub features: u64,
    /// Creation time of the snapshot, unix seconds.
    pub creation_time: u64,
    /// 2 file system, 3 volume.
    pub objset_type: u32,
    /// 1 clone, 2 case-insensitive, 4 all frees are present, 8 spill flags are reliable.
    pub flags: u32,
    /// Guid of the snapshot.
    pub to_guid: u64,
    /// Guid of the incremental source; 0: full stream.
    pub from_guid: u64,
    /// `pool/fs@snap`, at most 255 bytes.
    pub name: Vec<u8>,
    /// Bytes of the nvlist that follows; 0: none.
    pub payload_bytes: u32,
}

/// An object's dnode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    /// Object number.
    pub object: u64,
    /// Object type.
    pub object_type: u32,
    /// Bonus type.
    pub bonus_type: u32,
    /// Block size in bytes.
    pub block_bytes: u32,
    /// Bonus length in bytes.
    pub bonus_bytes: u32,
    /// Checksum id of the dnode, 0 inherit.
    pub checksum_id: u8,
    /// Compression id of the dnode, 0 inherit.
    pub compression_id: u8,
    /// Dnode slots; 0 means 1.
    pub dnode_slots: u8,
    /// 2 raw byteswapped, 4 has a spill block.
    pub flags: u8,
    /// Raw streams: stored bonus length.
    pub raw_bonus_bytes: u32,
    /// Guid of the snapshot.
    pub to_guid: u64,
    /// Raw streams: log2 of the indirect block size.
    pub indirect_shift: u8,
    /// Raw streams: levels.
    pub levels: u8,
    /// Raw streams: block pointers in the dnode.
    pub pointers: u8,
    /// Raw streams: highest block id.
    pub max_block: u64,
}

/// Encryption parameters of a raw record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Crypt {
    /// Salt.
    pub salt: [u8; 8],
    /// Initialisation vector.
    pub iv: [u8; 12],
    /// Message authentication code.
    pub mac: [u8; 16],
}

/// One block of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// Object number.
    pub object: u64,
    /// Object type.
    pub object_type: u32,
    /// Byte offset.
    pub offset: u64,
    /// Bytes the block has when decompressed.
    pub lsize: u64,
    /// Guid of the snapshot.
    pub to_guid: u64,
    /// Checksum id of `key`.
    pub checksum_id: u8,
    /// 1 checksum usable for dedup, 2 raw byteswapped.
    pub flags: u8,
    /// Compression id of the payload; 0: plain.
    pub compression_id: u8,
    /// The block's checksum words.
    pub key: [u64; 4],
    /// Sizes and compression of the stored block.
    pub key_prop: u64,
    /// Payload bytes if compressed.
    pub compressed_bytes: u64,
    /// Raw streams.
    pub crypt: Crypt,
}

/// A range of an object that is a hole (or, in REDACT, withheld).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Free {
    /// Object number.
    pub object: u64,
    /// Byte offset.
    pub offset: u64,
    /// Bytes; [`TO_END`].
    pub length: u64,
    /// Guid of the snapshot.
    pub to_guid: u64,
}

/// A spill block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spill {
    /// Object number.
    pub object: u64,
    /// Bytes when decompressed.
    pub length: u64,
    /// Guid of the snapshot.
    pub to_guid: u64,
    /// 4: unmodified.
    pub flags: u8,
    /// Compression id of the payload; 0: plain.
    pub compression_id: u8,
    /// Payload bytes if compressed.
    pub compressed_bytes: u64,
    /// Raw streams.
    pub crypt: Crypt,
    /// Raw streams: object type.
    pub object_type: u32,
}

/// A block small enough to live in its pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteEmbedded {
    /// Object number.
    pub object: u64,
    /// Byte offset.
    pub offset: u64,
    /// Bytes of the block.
    pub length: u64,
    /// Guid of the snapshot.
    pub to_guid: u64,
    /// Compression id of the payload.
    pub compression_id: u8,
    /// Kind of embedded data; 0.
    pub embedded_type: u8,
    /// Bytes when decompressed.
    pub lsize: u32,
    /// Payload bytes.
    pub psize: u32,
}

/// A block that an earlier stream holds (deduplicated streams only, which nobody receives any more).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteByRef {
    /// Object number.
    pub object: u64,
    /// Byte offset.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// Guid of the snapshot.
    pub to_guid: u64,
    /// Guid of the snapshot that has the data.
    pub from_guid: u64,
    /// Object there.
    pub from_object: u64,
    /// Offset there.
    pub from_offset: u64,
}

/// A block of dnodes of a raw stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectRange {
    /// First object number.
    pub first: u64,
    /// Dnode slots.
    pub slots: u64,
    /// Guid of the snapshot.
    pub to_guid: u64,
    /// Encryption parameters.
    pub crypt: Crypt,
    /// 2: byteswapped.
    pub flags: u8,
}

/// One record of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Start.
    Begin(Begin),
    /// An object exists, with this dnode.
    Object(Object),
    /// No objects in this range of numbers.
    FreeObjects {
        /// First object number.
        first: u64,
        /// How many.
        count: u64,
        /// Guid of the snapshot.
        to_guid: u64,
    },
    /// Data.
    Write(Write),
    /// A hole.
    Free(Free),
    /// End.
    End {
        /// Running checksum before this record.
        checksum: [u64; 4],
        /// Guid of the snapshot.
        to_guid: u64,
    },
    /// Data by reference.
    WriteByRef(WriteByRef),
    /// A spill block.
    Spill(Spill),
    /// Small data.
    WriteEmbedded(WriteEmbedded),
    /// Raw dnodes.
    ObjectRange(ObjectRange),
    /// Withheld data.
    Redact(Free),
}

/// The byte order of a stream, from its first record.
///
/// # Errors
/// Too short, or no BEGIN in either order.
pub fn order_of(begin: &[u8]) -> Result<Order> {
    let mut reader = Reader::new(STRUCTURE, begin, Order::Little);
    let kind = reader.u32()?;
    reader.skip(4)?;
    let magic: [u8; 8] = reader.array()?;
    let found = Order::Little.u64(magic);
    let order = Order::of_magic(magic, MAGIC).filter(|_| kind == 0);
    order.ok_or(Error::new(STRUCTURE, 8, Reason::BadMagic { found }))
}

/// The running checksum stored in a record; `None` if it is all zero (not present) or the record is a BEGIN.
#[must_use]
pub fn stored_checksum(record: &[u8; RECORD_BYTES], order: Order) -> Option<[u64; 4]> {
    let mut reader = Reader::new(STRUCTURE, record, order);
    if reader.u32().ok()? == 0 {
        return None;
    }
    reader.seek(CHECKSUM_OFFSET).ok()?;
    reader.words().ok().filter(|words| *words != [0; 4])
}

impl Record {
    /// Reads a record.
    ///
    /// # Errors
    /// An unknown type, a BEGIN without magic, or a payload longer than a block.
    pub fn decode(data: &[u8; RECORD_BYTES], order: Order) -> Result<Self> {
        let mut reader = Reader::new(STRUCTURE, data, order);
        let kind = reader.u32()?;
        let payload_bytes = reader.u32()?;
        let record = match kind {
            0 => Self::Begin(begin(&mut reader, payload_bytes)?),
            1 => Self::Object(object(&mut reader)?),
            2 => {
                let [first, count, to_guid] = reader.words()?;
                Self::FreeObjects { first, count, to_guid }
            }
            3 => Self::Write(write(&mut reader)?),
            4 => Self::Free(free(&mut reader)?),
            5 => Self::End { checksum: reader.words()?, to_guid: reader.u64()? },
            6 => {
                let [object, offset, length, to_guid, from_guid, from_object, from_offset] =
                    reader.words()?;
                let record =
                    WriteByRef { object, offset, length, to_guid, from_guid, from_object, from_offset };
                Self::WriteByRef(record)
            }
            7 => Self::Spill(spill(&mut reader)?),
            8 => Self::WriteEmbedded(embedded(&mut reader)?),
            9 => {
                let [first, slots, to_guid] = reader.words()?;
                Self::ObjectRange(ObjectRange {
                    first,
                    slots,
                    to_guid,
                    crypt: crypt(&mut reader)?,
                    flags: reader.u8()?,
                })
            }
            10 => Self::Redact(free(&mut reader)?),
            other => {
                let reason = Reason::Unsupported { field: "record type", value: other.into() };
                return Err(Error::new(STRUCTURE, 0, reason));
            }
        };
        let compound = matches!(&record, Self::Begin(begin) if begin.kind == HeaderKind::Compound);
        let payload = record.payload_bytes();
        if payload > PAYLOAD_BYTES_MAX && !compound {
            return Err(Error::new(
                STRUCTURE,
                4,
                Reason::OutOfRange { field: "payload length", value: payload },
            ));
        }
        Ok(record)
    }

    /// Bytes of payload behind the record, padding included. Only a compound BEGIN may have more than
    /// [`PAYLOAD_BYTES_MAX`]; its reader must bring its own bound.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        match self {
            Self::Begin(begin) => begin.payload_bytes.into(),
            Self::Object(object) if object.raw_bonus_bytes != 0 => object.raw_bonus_bytes.into(),
            Self::Object(object) => u64::from(object.bonus_bytes).next_multiple_of(8),
            Self::Write(write) if write.compression_id != 0 => write.compressed_bytes,
            Self::Write(write) => write.lsize,
            Self::Spill(spill) if spill.compressed_bytes != 0 => spill.compressed_bytes,
            Self::Spill(spill) => spill.length,
            Self::WriteEmbedded(embedded) => u64::from(embedded.psize).next_multiple_of(8),
            Self::FreeObjects { .. }
            | Self::Free(_)
            | Self::End { .. }
            | Self::WriteByRef(_)
            | Self::ObjectRange(_)
            | Self::Redact(_) => 0,
        }
    }

    /// The on-disk number of this record's type.
    #[must_use]
    pub const fn type_id(&self) -> u32 {
        match self {
            Self::Begin(_) => 0,
            Self::Object(_) => 1,
            Self::FreeObjects { .. } => 2,
            Self::Write(_) => 3,
            Self::Free(_) => 4,
            Self::End { .. } => 5,
            Self::WriteByRef(_) => 6,
            Self::Spill(_) => 7,
            Self::WriteEmbedded(_) => 8,
            Self::ObjectRange(_) => 9,
            Self::Redact(_) => 10,
        }
    }

    /// The record's 312 bytes, checksum zero ([`with_checksum`] puts it in).
    #[must_use]
    pub fn encode(&self, order: Order) -> [u8; RECORD_BYTES] {
        let mut writer = Writer::with_capacity(RECORD_BYTES, order);
        writer.u32(self.type_id());
        writer.u32(if let Self::Begin(begin) = self { begin.payload_bytes } else { 0 });
        match self {
            Self::Begin(begin) => put_begin(&mut writer, begin),
            Self::Object(object) => put_object(&mut writer, object),
            Self::FreeObjects { first, count, to_guid } => writer.words(&[*first, *count, *to_guid]),
            Self::Write(write) => put_write(&mut writer, write),
            Self::Free(free) | Self::Redact(free) => {
                writer.words(&[free.object, free.offset, free.length, free.to_guid]);
            }
            Self::End { checksum, to_guid } => {
                writer.words(checksum);
                writer.u64(*to_guid);
            }
            Self::WriteByRef(by) => {
                writer.words(&[by.object, by.offset, by.length, by.to_guid]);
                writer.words(&[by.from_guid, by.from_object, by.from_offset]);
            }
            Self::Spill(spill) => {
                writer.words(&[spill.object, spill.length, spill.to_guid]);
                writer.bytes(&[spill.flags, spill.compression_id]);
                writer.align(8);
                writer.u64(spill.compressed_bytes);
                put_crypt(&mut writer, &spill.crypt);
                writer.u32(spill.object_type);
            }
            Self::WriteEmbedded(embedded) => {
                writer.words(&[embedded.object, embedded.offset, embedded.length, embedded.to_guid]);
                writer.bytes(&[embedded.compression_id, embedded.embedded_type]);
                writer.align(8);
                writer.u32(embedded.lsize);
                writer.u32(embedded.psize);
            }
            Self::ObjectRange(range) => {
                writer.words(&[range.first, range.slots, range.to_guid]);
                put_crypt(&mut writer, &range.crypt);
                writer.u8(range.flags);
            }
        }
        writer.pad_to(RECORD_BYTES);
        let mut record = [0; RECORD_BYTES];
        for (to, from) in record.iter_mut().zip(writer.finish()) {
            *to = from;
        }
        record
    }
}

/// Puts the running checksum into an encoded record (not into a BEGIN, which has a name there).
#[must_use]
pub fn with_checksum(record: [u8; RECORD_BYTES], checksum: [u64; 4], order: Order) -> [u8; RECORD_BYTES] {
    let mut record = record;
    if record.first_chunk() != Some(&[0u8; 4]) {
        let words = checksum.map(|word| order.put_u64(word));
        for (to, from) in record.iter_mut().skip(CHECKSUM_OFFSET).zip(words.as_flattened()) {
            *to = *from;
        }
    }
    record
}

fn begin(reader: &mut Reader<'_>, payload_bytes: u32) -> Result<Begin> {
    let [magic, version, creation_time] = reader.words()?;
    if magic != MAGIC {
        return Err(Error::new(STRUCTURE, 8, Reason::BadMagic { found: magic }));
    }
    let kind = match version & 3 {
        1 => HeaderKind::Substream,
        2 => HeaderKind::Compound,
        value => return Err(Error::new(STRUCTURE, 16, Reason::OutOfRange { field: "header type", value })),
    };
    let (objset_type, flags) = (reader.u32()?, reader.u32()?);
    let [to_guid, from_guid] = reader.words()?;
    debug_assert_eq!(reader.position(), NAME_OFFSET);
    let name = reader.rest().split(|byte| *byte == 0).next().unwrap_or_default();
    if name.len() == reader.remaining() {
        return Err(reader.error(Reason::Inconsistent("the name has no NUL")));
    }
    let (features, name) = (version >> 2, name.to_vec());
    Ok(Begin { kind, features, creation_time, objset_type, flags, to_guid, from_guid, name, payload_bytes })
}

fn put_begin(writer: &mut Writer, begin: &Begin) {
    let kind: u64 = match begin.kind {
        HeaderKind::Substream => 1,
        HeaderKind::Compound => 2,
    };
    writer.words(&[MAGIC, kind | begin.features << 2, begin.creation_time]);
    writer.u32(begin.objset_type);
    writer.u32(begin.flags);
    writer.words(&[begin.to_guid, begin.from_guid]);
    // One byte stays for the NUL; longer names do not exist (dataset names end at 255).
    let room = RECORD_BYTES.saturating_sub(NAME_OFFSET).saturating_sub(1);
    writer.bytes(begin.name.get(..room).unwrap_or(&begin.name));
}

fn object(reader: &mut Reader<'_>) -> Result<Object> {
    Ok(Object {
        object: reader.u64()?,
        object_type: reader.u32()?,
        bonus_type: reader.u32()?,
        block_bytes: reader.u32()?,
        bonus_bytes: reader.u32()?,
        checksum_id: reader.u8()?,
        compression_id: reader.u8()?,
        dnode_slots: reader.u8()?,
        flags: reader.u8()?,
        raw_bonus_bytes: reader.u32()?,
        to_guid: reader.u64()?,
        indirect_shift: reader.u8()?,
        levels: reader.u8()?,
        pointers: reader.u8()?,
        max_block: {
            reader.skip(5)?;
            reader.u64()?
        },
    })
}

fn put_object(writer: &mut Writer, object: &Object) {
    writer.u64(object.object);
    for field in [object.object_type, object.bonus_type, object.block_bytes, object.bonus_bytes] {
        writer.u32(field);
    }
    writer.bytes(&[object.checksum_id, object.compression_id, object.dnode_slots, object.flags]);
    writer.u32(object.raw_bonus_bytes);
    writer.u64(object.to_guid);
    writer.bytes(&[object.indirect_shift, object.levels, object.pointers]);
    writer.zeros(5);
    writer.u64(object.max_block);
}

fn write(reader: &mut Reader<'_>) -> Result<Write> {
    let object = reader.u64()?;
    let object_type = reader.u32()?;
    reader.skip(4)?;
    let [offset, lsize, to_guid] = reader.words()?;
    let [checksum_id, flags, compression_id, ..] = reader.array::<8>()?;
    let key = reader.words()?;
    let [key_prop, compressed_bytes] = reader.words()?;
    Ok(Write {
        object,
        object_type,
        offset,
        lsize,
        to_guid,
        checksum_id,
        flags,
        compression_id,
        key,
        key_prop,
        compressed_bytes,
        crypt: crypt(reader)?,
    })
}

fn put_write(writer: &mut Writer, write: &Write) {
    writer.u64(write.object);
    writer.u32(write.object_type);
    writer.u32(0);
    writer.words(&[write.offset, write.lsize, write.to_guid]);
    writer.bytes(&[write.checksum_id, write.flags, write.compression_id, 0, 0, 0, 0, 0]);
    writer.words(&write.key);
    writer.words(&[write.key_prop, write.compressed_bytes]);
    put_crypt(writer, &write.crypt);
}

fn free(reader: &mut Reader<'_>) -> Result<Free> {
    let [object, offset, length, to_guid] = reader.words()?;
    Ok(Free { object, offset, length, to_guid })
}

fn spill(reader: &mut Reader<'_>) -> Result<Spill> {
    let [object, length, to_guid] = reader.words()?;
    let [flags, compression_id, ..] = reader.array::<8>()?;
    Ok(Spill {
        object,
        length,
        to_guid,
        flags,
        compression_id,
        compressed_bytes: reader.u64()?,
        crypt: crypt(reader)?,
        object_type: reader.u32()?,
    })
}

fn embedded(reader: &mut Reader<'_>) -> Result<WriteEmbedded> {
    let [object, offset, length, to_guid] = reader.words()?;
    let [compression_id, embedded_type, ..] = reader.array::<8>()?;
    let (lsize, psize) = (reader.u32()?, reader.u32()?);
    Ok(WriteEmbedded { object, offset, length, to_guid, compression_id, embedded_type, lsize, psize })
}

fn crypt(reader: &mut Reader<'_>) -> Result<Crypt> {
    Ok(Crypt { salt: reader.array()?, iv: reader.array()?, mac: reader.array()? })
}

fn put_crypt(writer: &mut Writer, crypt: &Crypt) {
    writer.bytes(&crypt.salt);
    writer.bytes(&crypt.iv);
    writer.bytes(&crypt.mac);
}
