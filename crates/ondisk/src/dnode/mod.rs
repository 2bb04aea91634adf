//! Dnodes: one object each, as 512 bytes or more.
//!
//! ```text
//!   0 header │ 64 block pointers, 1–3 │ bonus …                  │ spill pointer
//!            └ top of the tree        └ small typed record       └ last 128 bytes, if flagged
//! ```
//!
//! A dnode says how its object's tree is shaped; [`Fanout`] does the arithmetic of block numbers from
//! level to level. Large dnodes take several 512-byte slots, and the inner slots are bonus bytes, not
//! dnodes: scan a block with [`Dnode::slots`] as the step.
//!
//! Facts: docs/format/dmu.md §1, §2.

use std::ops::Deref;

use crate::blkptr::BlkPtr;
use crate::{Error, Order, Reader, Reason, Result, Writer};

mod fanout;
mod object_type;
pub use fanout::Fanout;
pub use object_type::{Byteswap, ObjectType};

const STRUCTURE: &str = "dnode";

/// Size of one slot in bytes, and of nearly every dnode.
pub const SLOT_BYTES: usize = 512;
/// Most slots of one dnode.
pub const SLOTS_MAX: usize = 32;
/// Dnodes per block of the meta dnode that OpenZFS makes (16 KiB).
pub const SLOTS_PER_BLOCK: u64 = 32;

const HEADER_BYTES: usize = 64;
/// Largest log2 of an indirect block.
const INDIRECT_SHIFT_MAX: u8 = 17;
/// Smallest log2 of an indirect block in an object that has any.
const INDIRECT_SHIFT_MIN: u8 = 10;
/// More levels than 2^64 blocks can need.
const LEVELS_MAX: u8 = 30;
/// 16 MiB.
const DATA_SECTORS_MAX: u16 = 32768;

/// Bonus bytes of one-slot dnodes live inline: one pointer leaves 320.
const BONUS_INLINE: usize = 320;

/// Bits of a dnode's `flags`.
pub mod flags {
    /// `used` counts bytes, not sectors.
    pub const USED_BYTES: u8 = 1;
    /// The object is in the user/group accounting.
    pub const USER_ACCOUNTED: u8 = 2;
    /// The last 128 bytes are a spill pointer.
    pub const SPILL: u8 = 4;
    /// The object is in the object-count accounting.
    pub const USER_OBJECTS_ACCOUNTED: u8 = 8;
}

/// The bonus area: a small typed record kept in the dnode itself. Derefs to its bytes.
#[derive(Clone)]
pub struct Bonus(Storage);

#[derive(Clone)]
#[expect(clippy::large_enum_variant, reason = "inline on purpose: decoding a dnode must not allocate")]
enum Storage {
    Inline { len: u16, bytes: [u8; BONUS_INLINE] },
    Heap(Box<[u8]>),
}

impl Bonus {
    /// A copy of `bytes`; up to 320 of them without an allocation.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        let mut inline = [0; BONUS_INLINE];
        match (inline.get_mut(..bytes.len()), u16::try_from(bytes.len())) {
            (Some(place), Ok(len)) => {
                place.copy_from_slice(bytes);
                Self(Storage::Inline { len, bytes: inline })
            }
            _ => Self(Storage::Heap(bytes.into())),
        }
    }
}

impl Deref for Bonus {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Storage::Inline { len, bytes } => bytes.get(..usize::from(*len)).unwrap_or_default(),
            Storage::Heap(bytes) => bytes,
        }
    }
}

impl PartialEq for Bonus {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Bonus {}

impl std::fmt::Debug for Bonus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bonus({} bytes)", self.len())
    }
}

/// The top of an object's tree: one to three pointers. Derefs to a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlkPtrs {
    len: u8,
    pointers: [BlkPtr; 3],
}

impl BlkPtrs {
    /// One to three pointers.
    ///
    /// # Errors
    /// Another number of them.
    pub fn new(pointers: &[BlkPtr]) -> Result<Self> {
        let mut all = [BlkPtr::EMPTY; 3];
        match (all.get_mut(..pointers.len()), pointers.len()) {
            (Some(place), len @ 1..=3) => {
                place.copy_from_slice(pointers);
                Ok(Self { len: len as u8, pointers: all })
            }
            (_, len) => Err(bad(3, "number of block pointers", len as u64)),
        }
    }
}

impl Deref for BlkPtrs {
    type Target = [BlkPtr];

    fn deref(&self) -> &[BlkPtr] {
        self.pointers.get(..usize::from(self.len)).unwrap_or_default()
    }
}

/// An allocated dnode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dnode {
    /// What the object is. Datasets with extra attributes say `0xc4` here: see
    /// [`bonus_type`](Self::bonus_type).
    pub object_type: ObjectType,
    /// Log2 of the size of indirect blocks in bytes.
    pub indirect_shift: u8,
    /// Levels of the tree; 1 means the pointers here lead to data.
    pub levels: u8,
    /// What the bonus holds.
    pub bonus_type: ObjectType,
    /// Checksum id for new blocks; 0 inherits.
    pub checksum_id: u8,
    /// Compression id for new blocks; 0 inherits.
    pub compression_id: u8,
    /// See [`flags`].
    pub flags: u8,
    /// Size of a data block in sectors of 512 bytes.
    pub data_sectors: u16,
    /// Slots that follow the first and belong to this dnode.
    pub extra_slots: u8,
    /// Highest block number that exists (0 for an empty object too).
    pub max_block_id: u64,
    /// Space used as stored: bytes or sectors, see [`used_bytes`](Self::used_bytes).
    pub used: u64,
    /// Bytes 13–15 and 32–63, zero in all known pools.
    pub reserved: ([u8; 3], [u8; 32]),
    /// Top of the tree.
    pub blkptrs: BlkPtrs,
    /// The bonus area.
    pub bonus: Bonus,
    /// Where the bonus continues.
    pub spill: Option<BlkPtr>,
}

#[cold]
fn bad(offset: usize, field: &'static str, value: u64) -> Error {
    Error::new(STRUCTURE, offset, Reason::OutOfRange { field, value })
}

impl Dnode {
    /// Slots the dnode at the start of `data` takes, 1 for a free slot: the step of a scan. Reads
    /// one byte, so a scan can go on behind a dnode that does not decode.
    #[must_use]
    pub fn slots_at(data: &[u8]) -> usize {
        match (data.first(), data.get(12)) {
            (Some(1..), Some(extra)) if usize::from(*extra) < SLOTS_MAX => {
                usize::from(*extra).saturating_add(1)
            }
            _ => 1,
        }
    }

    /// Reads the dnode at the start of `data`; `None` is a free slot.
    ///
    /// # Errors
    /// Short input, a field out of range, parts that do not fit, or a bad block pointer.
    #[inline]
    pub fn decode(data: &[u8], order: Order) -> Result<Option<Self>> {
        let mut reader = Reader::new(STRUCTURE, data, order);
        let [object_type, indirect_shift, levels, nblkptr] = reader.array()?;
        if object_type == 0 {
            return if data.len() < SLOT_BYTES { reader.skip(SLOT_BYTES).map(|()| None) } else { Ok(None) };
        }
        let [bonus_type, checksum_id, compression_id, flags] = reader.array()?;
        let (data_sectors, bonus_len) = (reader.u16()?, usize::from(reader.u16()?));
        let extra_slots = reader.u8()?;
        let reserved_low = reader.array::<3>()?;
        let (max_block_id, used) = (reader.u64()?, reader.u64()?);
        let reserved = (reserved_low, reader.array::<32>()?);

        if usize::from(extra_slots) >= SLOTS_MAX {
            return Err(bad(12, "extra slots", u64::from(extra_slots)));
        }
        let len = usize::from(extra_slots).saturating_add(1).saturating_mul(SLOT_BYTES);
        let Some(data) = data.get(..len) else {
            return Err(Error::new(STRUCTURE, 0, Reason::Truncated { need: len, have: data.len() }));
        };
        let mut blkptrs = BlkPtrs { len: nblkptr, pointers: [BlkPtr::EMPTY; 3] };
        if !(1..=3).contains(&nblkptr) {
            return Err(bad(3, "number of block pointers", u64::from(nblkptr)));
        }
        let mut at = HEADER_BYTES;
        for place in blkptrs.pointers.iter_mut().take(usize::from(nblkptr)) {
            *place = pointer_at(data, at, order)?;
            at = at.saturating_add(BlkPtr::BYTES);
        }
        let has_spill = flags & flags::SPILL != 0;
        let spill_at = len.saturating_sub(BlkPtr::BYTES);
        let bonus_end = if has_spill { spill_at } else { len };
        let bonus = match data.get(at..bonus_end).unwrap_or_default().get(..bonus_len) {
            Some(bytes) => Bonus::new(bytes),
            None => return Err(bad(10, "bonus length", bonus_len as u64)),
        };
        let spill = if has_spill { Some(pointer_at(data, spill_at, order)?) } else { None };
        let dnode = Self {
            object_type: ObjectType(object_type),
            indirect_shift,
            levels,
            bonus_type: ObjectType(bonus_type),
            checksum_id,
            compression_id,
            flags,
            data_sectors,
            extra_slots,
            max_block_id,
            used,
            reserved,
            blkptrs,
            bonus,
            spill,
        };
        dnode.validate()?;
        Ok(Some(dnode))
    }

    fn validate(&self) -> Result<()> {
        if !self.object_type.is_valid() || self.object_type == ObjectType::NONE {
            return Err(bad(0, "type", u64::from(self.object_type.0)));
        }
        if !self.bonus_type.is_valid() {
            return Err(bad(4, "bonus type", u64::from(self.bonus_type.0)));
        }
        if !(1..=LEVELS_MAX).contains(&self.levels) {
            return Err(bad(2, "levels", u64::from(self.levels)));
        }
        let shift_min = if self.levels > 1 { INDIRECT_SHIFT_MIN } else { 0 };
        if !(shift_min..=INDIRECT_SHIFT_MAX).contains(&self.indirect_shift) {
            return Err(bad(1, "indirect block shift", u64::from(self.indirect_shift)));
        }
        if !(1..=DATA_SECTORS_MAX).contains(&self.data_sectors) {
            return Err(bad(8, "data block sectors", u64::from(self.data_sectors)));
        }
        Ok(())
    }

    /// The dnode's bytes: [`slots`](Self::slots) × 512.
    ///
    /// # Errors
    /// Parts that do not fit into the slots, a spill flag without a spill pointer (or the reverse),
    /// or a field [`decode`](Self::decode) would refuse.
    pub fn encode(&self, order: Order) -> Result<Vec<u8>> {
        self.validate()?;
        if usize::from(self.extra_slots) >= SLOTS_MAX {
            return Err(bad(12, "extra slots", u64::from(self.extra_slots)));
        }
        if self.spill.is_some() != (self.flags & flags::SPILL != 0) {
            return Err(Error::new(
                STRUCTURE,
                7,
                Reason::Inconsistent("spill flag and spill pointer differ"),
            ));
        }
        let len = self.slots().saturating_mul(SLOT_BYTES);
        let bonus_len = u16::try_from(self.bonus.len());
        let bonus_len = bonus_len.map_err(|_| bad(10, "bonus length", self.bonus.len() as u64))?;
        let mut writer = Writer::with_capacity(len, order);
        writer.bytes(&[self.object_type.0, self.indirect_shift, self.levels, self.blkptrs.len]);
        writer.bytes(&[self.bonus_type.0, self.checksum_id, self.compression_id, self.flags]);
        writer.u16(self.data_sectors);
        writer.u16(bonus_len);
        writer.u8(self.extra_slots);
        writer.bytes(&self.reserved.0);
        writer.u64(self.max_block_id);
        writer.u64(self.used);
        writer.bytes(&self.reserved.1);
        for pointer in self.blkptrs.iter() {
            writer.bytes(&pointer.encode(order));
        }
        writer.bytes(&self.bonus);
        let spill_bytes = if self.spill.is_some() { BlkPtr::BYTES } else { 0 };
        if writer.position() > len.saturating_sub(spill_bytes) {
            return Err(bad(10, "bonus length", u64::from(bonus_len)));
        }
        writer.pad_to(len.saturating_sub(spill_bytes));
        if let Some(spill) = &self.spill {
            writer.bytes(&spill.encode(order));
        }
        Ok(writer.finish())
    }

    /// 512-byte slots this dnode takes.
    #[must_use]
    pub fn slots(&self) -> usize {
        usize::from(self.extra_slots).saturating_add(1)
    }

    /// Size of a data block in bytes.
    #[must_use]
    pub fn data_block_bytes(&self) -> u64 {
        u64::from(self.data_sectors) << crate::blkptr::SECTOR_SHIFT
    }

    /// Size of an indirect block in bytes.
    #[must_use]
    pub fn indirect_block_bytes(&self) -> u64 {
        1_u64.checked_shl(u32::from(self.indirect_shift)).unwrap_or(0)
    }

    /// Size of a block at `level` in bytes.
    #[must_use]
    pub fn block_bytes(&self, level: u8) -> u64 {
        if level == 0 { self.data_block_bytes() } else { self.indirect_block_bytes() }
    }

    /// How many blocks each indirect block leads to.
    #[must_use]
    pub fn fanout(&self) -> Fanout {
        Fanout::from_shift(u32::from(self.indirect_shift).saturating_sub(BlkPtr::SHIFT))
    }

    /// Allocated space of the whole object in (deflated) bytes; `None` if a corrupt count overflows.
    #[must_use]
    pub fn used_bytes(&self) -> Option<u64> {
        if self.flags & flags::USED_BYTES != 0 { Some(self.used) } else { self.used.checked_mul(512) }
    }
}

/// The block pointer at byte `at`; an error's offset counts from the start of the dnode.
fn pointer_at(data: &[u8], at: usize, order: Order) -> Result<BlkPtr> {
    let decoded = BlkPtr::decode(data.get(at..).unwrap_or_default(), order);
    decoded.map_err(|error| Error { offset: error.offset.saturating_add(at), ..error })
}

#[cfg(test)]
mod tests;
