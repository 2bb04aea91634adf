//! The fat ZAP: a header, a table of pointers indexed by the top bits of the hash, and leaves.
//!
//! ```text
//!   block 0: header │ embedded table      hash ── top `shift` bits ──▶ table slot ──▶ leaf block
//!   other blocks: leaves; and the table itself once 2^shift slots no longer fit half of block 0
//! ```
//!
//! A leaf with a short prefix fills many neighbouring slots; it splits by taking one more bit. When its prefix
//! is as long as the table's shift, the table doubles first ([`Table::double`]). A table found half copied into
//! its successor is read in its old place: that one stays authoritative until the copy is complete.
//!
//! These are pure steps. The reader fetches blocks by the ids it is told ([`Header::locate`]), the writer
//! stores what it is given. Facts: docs/format/zap.md §2.

use super::leaf::{BLOCK_SHIFTS, block_shift};
pub use super::leaf::{Entries, Entry, InsertError, KeyShape, Leaf, LeafEdit};
use super::{HEADER, HashRule};
use crate::{Error, Order, Reader, Reason, Result, Writer};

const STRUCTURE: &str = "fat zap header";
const MAGIC: u64 = 0x2_F52A_B2AB;
const FIELDS: usize = 13;

/// Flag: 48 significant hash bits instead of 28.
pub const FLAG_HASH64: u64 = 1;
/// Flag: keys are arrays of `u64`.
pub const FLAG_UINT64_KEY: u64 = 2;
/// Flag: the first word of a key is its hash.
pub const FLAG_PREHASHED_KEY: u64 = 4;

/// Default block size of a fat ZAP: 16 KiB.
pub const DEFAULT_BLOCK_SHIFT: u32 = 14;

/// Block 0 without its embedded table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// log2 of the object's block size in bytes.
    pub block_shift: u32,
    /// First block of the external pointer table; 0 if the table is embedded.
    pub table_block: u64,
    /// Blocks of the external table; 0 if embedded.
    pub table_blocks: u64,
    /// log2 of the number of table slots.
    pub table_shift: u32,
    /// While the table grows: first block of its successor; else 0. The old table stays authoritative.
    pub table_next_block: u64,
    /// While the table grows: old blocks copied so far.
    pub table_blocks_copied: u64,
    /// Next block id to hand out.
    pub free_block: u64,
    /// Number of leaves.
    pub leaves: u64,
    /// Number of entries in all leaves.
    pub entries: u64,
    /// Start value of the hash.
    pub salt: u64,
    /// Folding of names.
    pub normflags: u64,
    /// [`FLAG_HASH64`], [`FLAG_UINT64_KEY`], [`FLAG_PREHASHED_KEY`]; other bits are kept.
    pub flags: u64,
}

/// Where a slot of the pointer table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// In block 0, at this byte.
    Embedded {
        /// Byte offset in block 0.
        byte: usize,
    },
    /// In a block of the external table.
    External {
        /// Block id within the object.
        block: u64,
        /// Byte offset in that block.
        byte: usize,
    },
}

impl Header {
    /// The header of a new object: one empty leaf at block 1. `None` for a block size no ZAP has.
    #[must_use]
    pub fn new(block_shift: u32, salt: u64, normflags: u64, flags: u64) -> Option<Self> {
        BLOCK_SHIFTS.contains(&block_shift).then_some(Self {
            block_shift,
            table_block: 0,
            table_blocks: 0,
            table_shift: embedded_shift(block_shift),
            table_next_block: 0,
            table_blocks_copied: 0,
            free_block: 2,
            leaves: 1,
            entries: 0,
            salt,
            normflags,
            flags,
        })
    }

    /// Reads the header from block 0, which must be given whole.
    ///
    /// # Errors
    /// Not a fat ZAP, an impossible block size, or a table whose size contradicts its shift.
    pub fn decode(block: &[u8], order: Order) -> Result<Self> {
        let block_shift = block_shift(STRUCTURE, block)?;
        let [
            tag,
            magic,
            table_block,
            table_blocks,
            shift,
            next,
            copied,
            free,
            leaves,
            entries,
            salt,
            norm,
            flags,
        ] = Reader::new(STRUCTURE, block, order).words::<FIELDS>()?;
        for (offset, found, expected) in [(0, tag, HEADER), (8, magic, MAGIC)] {
            if found != expected {
                return Err(Error::new(STRUCTURE, offset, Reason::BadMagic { found }));
            }
        }
        let bad_shift = Error::new(STRUCTURE, 32, Reason::OutOfRange { field: "table shift", value: shift });
        let hash_bits = if flags & FLAG_HASH64 == 0 { 28 } else { 48 };
        let table_shift = u32::try_from(shift).ok().filter(|shift| *shift <= hash_bits).ok_or(bad_shift)?;
        let fits = if table_blocks == 0 {
            table_block == 0 && table_shift <= embedded_shift(block_shift)
        } else {
            let slots_per_block = block_shift.saturating_sub(3);
            let slots = table_blocks.checked_mul(1u64.checked_shl(slots_per_block).unwrap_or(0));
            table_block != 0
                && slots == 1u64.checked_shl(table_shift)
                && table_block.checked_add(table_blocks).is_some()
        };
        if !fits {
            let reason = Reason::Inconsistent("pointer table: blocks and shift disagree");
            return Err(Error::new(STRUCTURE, 16, reason));
        }
        Ok(Self {
            block_shift,
            table_block,
            table_blocks,
            table_shift,
            table_next_block: next,
            table_blocks_copied: copied,
            free_block: free,
            leaves,
            entries,
            salt,
            normflags: norm,
            flags,
        })
    }

    /// How this object hashes its keys.
    #[must_use]
    pub fn hash_rule(&self) -> HashRule {
        HashRule {
            salt: self.salt,
            normflags: self.normflags,
            wide: self.flags & FLAG_HASH64 != 0,
            prehashed: self.flags & FLAG_PREHASHED_KEY != 0,
        }
    }

    /// What this object's keys are.
    #[must_use]
    pub fn key_shape(&self) -> KeyShape {
        if self.flags & FLAG_UINT64_KEY == 0 { KeyShape::Names } else { KeyShape::Words }
    }

    /// Number of slots in the pointer table.
    #[must_use]
    pub fn slots(&self) -> u64 {
        1u64.checked_shl(self.table_shift).unwrap_or(0)
    }

    /// Table slot of a hash.
    #[must_use]
    pub fn slot_of(&self, hash: u64) -> u64 {
        hash.checked_shr(64u32.saturating_sub(self.table_shift)).unwrap_or(0)
    }

    /// Where slot `index` of the pointer table is stored; `None` if the table is shorter.
    #[must_use]
    pub fn slot(&self, index: u64) -> Option<Slot> {
        if index >= self.slots() {
            return None;
        }
        if self.table_blocks == 0 {
            let start = embedded_start(self.block_shift);
            let byte = usize::try_from(index).ok()?.checked_mul(8)?.checked_add(start)?;
            return Some(Slot::Embedded { byte });
        }
        let slots_shift = self.block_shift.saturating_sub(3);
        let in_block = index & 1u64.checked_shl(slots_shift)?.checked_sub(1)?;
        let block = self.table_block.checked_add(index.checked_shr(slots_shift)?)?;
        Some(Slot::External { block, byte: usize::try_from(in_block).ok()?.checked_mul(8)? })
    }

    /// Where the id of the leaf for `hash` is stored: the next thing to read on the way to an entry.
    #[must_use]
    pub fn locate(&self, hash: u64) -> Option<Slot> {
        self.slot(self.slot_of(hash))
    }

    /// Block 0: this header and, if the table is embedded, the table.
    ///
    /// # Errors
    /// `table` is not the embedded table this header describes, or the block size is illegal.
    pub fn encode(&self, table: &Table, order: Order) -> Result<Vec<u8>> {
        if !BLOCK_SHIFTS.contains(&self.block_shift) {
            let value = self.block_shift.into();
            return Err(Error::new(STRUCTURE, 0, Reason::OutOfRange { field: "block shift", value }));
        }
        let embedded = self.table_blocks == 0;
        if table.shift != self.table_shift || (embedded && table.shift > embedded_shift(self.block_shift)) {
            return Err(Error::new(
                STRUCTURE,
                32,
                Reason::Inconsistent("header and table have another shift"),
            ));
        }
        let size = 1usize.checked_shl(self.block_shift).unwrap_or(0);
        let mut block = Writer::with_capacity(size, order);
        block.words(&[
            HEADER,
            MAGIC,
            self.table_block,
            self.table_blocks,
            self.table_shift.into(),
            self.table_next_block,
            self.table_blocks_copied,
            self.free_block,
            self.leaves,
            self.entries,
            self.salt,
            self.normflags,
            self.flags,
        ]);
        block.pad_to(embedded_start(self.block_shift));
        if embedded {
            block.words(&table.leaves);
        }
        block.pad_to(size);
        Ok(block.finish())
    }
}

/// The leaf id stored at `byte` of a block ([`Slot`]).
///
/// # Errors
/// The block is shorter than that, or the id is 0, which is the header itself.
pub fn read_slot(block: &[u8], byte: usize, order: Order) -> Result<u64> {
    let mut reader = Reader::new("zap pointer table", block, order);
    reader.seek(byte)?;
    match reader.u64()? {
        0 => Err(Error::new("zap pointer table", byte, Reason::Inconsistent("a slot points to the header"))),
        leaf => Ok(leaf),
    }
}

/// The whole pointer table, for the writer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    shift: u32,
    leaves: Vec<u64>,
}

impl Table {
    /// A table of `1 << shift` slots that all name `leaf`; `None` above 26 bits (512 MiB of table).
    #[must_use]
    pub fn new(shift: u32, leaf: u64) -> Option<Self> {
        let slots = 1usize.checked_shl(shift).filter(|_| shift <= TABLE_SHIFT_MAX)?;
        Some(Self { shift, leaves: vec![leaf; slots] })
    }

    /// From all slots in order; `None` unless their number is a power of two.
    #[must_use]
    pub fn from_leaves(leaves: Vec<u64>) -> Option<Self> {
        let shift = leaves.len().is_power_of_two().then(|| leaves.len().trailing_zeros())?;
        Some(Self { shift, leaves })
    }

    /// log2 of the number of slots.
    #[must_use]
    pub fn shift(&self) -> u32 {
        self.shift
    }

    /// Leaf ids by slot.
    #[must_use]
    pub fn leaves(&self) -> &[u64] {
        &self.leaves
    }

    /// The leaf for `hash`.
    #[must_use]
    pub fn leaf_of(&self, hash: u64) -> Option<u64> {
        let slot = hash.checked_shr(64u32.saturating_sub(self.shift)).unwrap_or(0);
        self.leaves.get(usize::try_from(slot).ok()?).copied()
    }

    /// One more bit: each slot twice. `None` if the table may not grow further.
    #[must_use]
    pub fn double(&self) -> Option<Self> {
        let shift = self.shift.checked_add(1).filter(|shift| *shift <= TABLE_SHIFT_MAX)?;
        Some(Self { shift, leaves: self.leaves.iter().flat_map(|leaf| [*leaf, *leaf]).collect() })
    }

    /// After a split: the slots of the sibling's prefix now name `block`. `false` if the table has too few bits
    /// for that prefix ([`double`](Self::double) it first).
    pub fn redirect(&mut self, sibling: &LeafEdit, block: u64) -> bool {
        let Some(free_bits) = self.shift.checked_sub(sibling.prefix_len().into()) else { return false };
        let first = sibling.prefix().checked_shl(free_bits).and_then(|first| usize::try_from(first).ok());
        let range = first.zip(1usize.checked_shl(free_bits));
        let range = range.and_then(|(first, count)| Some(first..first.checked_add(count)?));
        let Some(slots) = range.and_then(|range| self.leaves.get_mut(range)) else { return false };
        slots.fill(block);
        true
    }

    /// The blocks of this table as an external one, for blocks of `1 << block_shift` bytes.
    #[must_use]
    pub fn encode_external(&self, block_shift: u32, order: Order) -> Vec<Vec<u8>> {
        let per_block = 1usize.checked_shl(block_shift.saturating_sub(3)).unwrap_or(1).max(1);
        let block = |slots: &[u64]| {
            let mut block = Writer::with_capacity(per_block.saturating_mul(8), order);
            block.words(slots);
            block.pad_to(per_block.saturating_mul(8));
            block.finish()
        };
        self.leaves.chunks(per_block).map(block).collect()
    }
}

/// Largest table OpenZFS grows to without the 48-bit hash.
const TABLE_SHIFT_MAX: u32 = 26;

/// log2 of the slots that fit the second half of block 0.
const fn embedded_shift(block_shift: u32) -> u32 {
    block_shift.saturating_sub(4)
}

fn embedded_start(block_shift: u32) -> usize {
    1usize.checked_shl(block_shift.saturating_sub(1)).unwrap_or(0)
}
