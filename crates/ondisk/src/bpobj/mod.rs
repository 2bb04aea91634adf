//! Lists of block pointers: what waits to be freed, and what only snapshots still need.
//!
//! A *bpobj* is an object full of pointers, and may have other bpobjs below it. The pointers are not
//! complete: fill and checksum are cleared (a dedup block keeps its checksum), and an embedded one
//! keeps only prop and birth, because accounting needs no more. A *deadlist* is a ZAP of bpobjs by
//! birth; the *bptree* lists whole destroyed datasets.
//!
//! Facts: docs/format/mos.md §8.

use crate::blkptr::BlkPtr;
use crate::{Error, Order, Reader, Reason, Result, Writer};

/// The bonus of a bpobj (type 6). Older pools stored fewer words; those read as 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct BpobjPhys {
    /// Pointers in the object itself.
    pub blkptrs: u64,
    /// Deflated bytes, sub-objects included.
    pub bytes: u64,
    /// Bytes after compression.
    pub compressed_bytes: u64,
    /// Bytes before compression.
    pub uncompressed_bytes: u64,
    /// Object with the numbers of sub-objects; 0 for none.
    pub subobjs: u64,
    /// Sub-objects listed there.
    pub subobj_count: u64,
    /// Livelists: entries that say "freed".
    pub freed: u64,
}

impl BpobjPhys {
    /// Bonus lengths that occur, oldest first.
    pub const LENGTHS: [usize; 4] = [16, 32, 48, 56];

    /// Reads a bonus of 16, 32, 48 or 56 bytes (longer ones are read as 56).
    ///
    /// # Errors
    /// Fewer than 16 bytes.
    pub fn decode(bonus: &[u8], order: Order) -> Result<Self> {
        let mut reader = Reader::new("bpobj", bonus, order);
        let [blkptrs, bytes] = reader.words()?;
        let mut phys = Self { blkptrs, bytes, ..Self::default() };
        if let Ok([compressed, uncompressed]) = reader.words() {
            (phys.compressed_bytes, phys.uncompressed_bytes) = (compressed, uncompressed);
        }
        if let Ok([subobjs, count]) = reader.words() {
            (phys.subobjs, phys.subobj_count) = (subobjs, count);
        }
        phys.freed = reader.u64().unwrap_or(0);
        Ok(phys)
    }

    /// The bonus, in one of [`LENGTHS`](Self::LENGTHS).
    ///
    /// # Errors
    /// A shorter length than a field that is not 0 needs, or a length that does not occur.
    pub fn encode(&self, len: usize, order: Order) -> Result<Vec<u8>> {
        let words = [
            self.blkptrs,
            self.bytes,
            self.compressed_bytes,
            self.uncompressed_bytes,
            self.subobjs,
            self.subobj_count,
            self.freed,
        ];
        let (kept, lost) = words.split_at_checked(len / 8).unwrap_or_default();
        if !Self::LENGTHS.contains(&len) || lost.iter().any(|word| *word != 0) {
            let reason = Reason::OutOfRange { field: "bonus length", value: len as u64 };
            return Err(Error::new("bpobj", 0, reason));
        }
        let mut writer = Writer::with_capacity(len, order);
        writer.words(kept);
        Ok(writer.finish())
    }
}

/// One entry of a bpobj.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BpobjEntry {
    /// What is left of the pointer.
    pub blkptr: BlkPtr,
    /// Livelists: the block was freed (else it was allocated).
    pub freed: bool,
}

impl BpobjEntry {
    /// Reads entry `index` of a block of entries.
    ///
    /// # Errors
    /// Beyond the end, or a bad pointer.
    pub fn decode_at(block: &[u8], index: usize, order: Order) -> Result<Self> {
        let blkptr = BlkPtr::decode_at(block, index, order)?;
        let [.., fill, _, _, _, _] = *blkptr.words();
        Ok(Self { blkptr, freed: !blkptr.is_embedded() && fill & 1 != 0 })
    }

    /// The entry for a complete pointer.
    ///
    /// # Errors
    /// None in practice: clearing words of a valid pointer leaves it valid.
    pub fn strip(pointer: &BlkPtr, freed: bool) -> Result<Self> {
        let mut words = *pointer.words();
        if pointer.is_embedded() {
            for (index, word) in words.iter_mut().enumerate() {
                if index != 6 && index != 10 {
                    *word = 0;
                }
            }
            return Ok(Self { blkptr: BlkPtr::from_words(words)?, freed: false });
        }
        let [.., fill, c0, c1, c2, c3] = &mut words;
        *fill = u64::from(freed);
        if !pointer.is_dedup() {
            (*c0, *c1, *c2, *c3) = (0, 0, 0, 0);
        }
        Ok(Self { blkptr: BlkPtr::from_words(words)?, freed })
    }

    /// The entry's bytes.
    #[must_use]
    pub fn encode(&self, order: Order) -> [u8; BlkPtr::BYTES] {
        self.blkptr.encode(order)
    }
}

/// The bonus of a deadlist (type 51): totals over its buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadlistPhys {
    /// Deflated bytes.
    pub used: u64,
    /// Bytes after compression.
    pub compressed_bytes: u64,
    /// Bytes before compression.
    pub uncompressed_bytes: u64,
    /// Words 3–39, zero so far.
    pub pad: [u64; 37],
}

impl DeadlistPhys {
    /// Size in bytes.
    pub const BYTES: usize = 320;

    /// Reads a bonus.
    ///
    /// # Errors
    /// Fewer than 320 bytes.
    pub fn decode(bonus: &[u8], order: Order) -> Result<Self> {
        let mut reader = Reader::new("deadlist", bonus, order);
        let [used, compressed_bytes, uncompressed_bytes] = reader.words()?;
        Ok(Self { used, compressed_bytes, uncompressed_bytes, pad: reader.words()? })
    }

    /// The bonus.
    #[must_use]
    pub fn encode(&self, order: Order) -> Vec<u8> {
        let mut writer = Writer::with_capacity(Self::BYTES, order);
        writer.words(&[self.used, self.compressed_bytes, self.uncompressed_bytes]);
        writer.words(&self.pad);
        writer.finish()
    }
}

/// The bonus of the bptree: which entries are pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct BptreePhys {
    /// First pending entry.
    pub begin: u64,
    /// One past the last.
    pub end: u64,
    /// Deflated bytes still to free.
    pub bytes: u64,
    /// Bytes after compression.
    pub compressed_bytes: u64,
    /// Bytes before compression.
    pub uncompressed_bytes: u64,
}

impl BptreePhys {
    /// Size in bytes.
    pub const BYTES: usize = 40;

    /// Reads a bonus.
    ///
    /// # Errors
    /// Fewer than 40 bytes, or an end before the begin.
    pub fn decode(bonus: &[u8], order: Order) -> Result<Self> {
        let mut reader = Reader::new("bptree", bonus, order);
        let [begin, end, bytes, compressed_bytes, uncompressed_bytes] = reader.words()?;
        if end < begin {
            return Err(Error::new("bptree", 8, Reason::OutOfRange { field: "end", value: end }));
        }
        Ok(Self { begin, end, bytes, compressed_bytes, uncompressed_bytes })
    }

    /// The bonus.
    #[must_use]
    pub fn encode(&self, order: Order) -> Vec<u8> {
        let mut writer = Writer::with_capacity(Self::BYTES, order);
        let totals = [self.begin, self.end, self.bytes, self.compressed_bytes, self.uncompressed_bytes];
        writer.words(&totals);
        writer.finish()
    }
}

/// One destroyed dataset in the bptree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BptreeEntry {
    /// Its object set.
    pub objset: BlkPtr,
    /// Only blocks born after this txg are to be freed.
    pub birth_txg: u64,
    /// Where to go on: objset, object, level, block.
    pub resume: [u64; 4],
}

impl BptreeEntry {
    /// Size in bytes.
    pub const BYTES: usize = 168;

    /// Reads the entry at the start of `data`.
    ///
    /// # Errors
    /// Short input, or a bad pointer.
    pub fn decode(data: &[u8], order: Order) -> Result<Self> {
        let mut reader = Reader::new("bptree entry", data, order);
        let objset = BlkPtr::from_words(reader.words()?)?;
        Ok(Self { objset, birth_txg: reader.u64()?, resume: reader.words()? })
    }

    /// The entry's bytes.
    #[must_use]
    pub fn encode(&self, order: Order) -> Vec<u8> {
        let mut writer = Writer::with_capacity(Self::BYTES, order);
        writer.words(self.objset.words());
        writer.u64(self.birth_txg);
        writer.words(&self.resume);
        writer.finish()
    }
}

#[cfg(test)]
mod tests;
