//! The leaf of a fat ZAP: a hash table of chains, all of it in 24-byte chunks.
//!
//! ```text
//!   header 48 │ buckets: u16 chunk ids │ chunk 0 │ chunk 1 │ …
//!   entry chunk ──name──▶ array chunk ──▶ array chunk ──▶ end
//!        │  └────value──▶ array chunk ──▶ end
//!        └next──▶ entry chunk of the same bucket
//! ```
//!
//! Reading ([`Leaf`]) borrows the block and follows ids inside it; every chunk followed costs one unit of a
//! budget as large as the leaf, so a chain that loops or is shared ends in an error, not in a hang or in
//! gigabytes. Changing ([`LeafEdit`]) is done on a plain list of entries, and the block is laid out anew: a
//! leaf is a few hundred entries, and a fresh layout cannot inherit a broken free list.
//!
//! Array bytes are big-endian whatever the block's order; ids, counts and hashes are in the block's order.
//! Facts: docs/format/zap.md §2 (leaf block, growth).

use super::{IntSize, Key, LEAF, NAME_BYTES_MAX, OwnedKey, VALUE_BYTES_MAX, Value};
use crate::{Error, Order, Reader, Reason, Result, Writer};

/// What the names of an object are; a flag of the fat header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyShape {
    /// Strings ending in NUL.
    Names,
    /// Arrays of `u64`.
    Words,
}

/// One entry of a fat ZAP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name, as stored (not folded).
    pub key: OwnedKey,
    /// Its value.
    pub value: Value,
    /// Collision differentiator: tells entries of equal hash apart, and makes cursors stable.
    pub cd: u32,
    /// Hash of the (folded) key.
    pub hash: u64,
}

impl Entry {
    /// Chunks this entry takes: its own, and 21 bytes of name or value in each further one.
    #[must_use]
    pub fn chunks(&self) -> usize {
        let key_bytes = match &self.key {
            OwnedKey::Name(name) => name.len().saturating_add(1),
            OwnedKey::Words(words) => words.len().saturating_mul(8),
        };
        let value_bytes = self.value.be_bytes().len();
        key_bytes.div_ceil(ARRAY_BYTES).saturating_add(value_bytes.div_ceil(ARRAY_BYTES)).saturating_add(1)
    }
}

const STRUCTURE: &str = "zap leaf";
const MAGIC: u32 = 0x02AB_1EAF;
const HEADER_BYTES: usize = 48;
const CHUNK_BYTES: usize = 24;
const ARRAY_BYTES: usize = 21;
const END: u16 = 0xffff;
const CHUNK_FREE: u8 = 253;
const CHUNK_ENTRY: u8 = 252;
const CHUNK_ARRAY: u8 = 251;
const FLAG_CD_SORTED: u8 = 1;

/// Smallest and largest log2 of a leaf's bytes: below, the tables have no room; above, chunk ids no longer
/// fit 16 bits.
pub(super) const BLOCK_SHIFTS: std::ops::RangeInclusive<u32> = 9..=20;

/// log2 of a legal block size.
pub(super) fn block_shift(structure: &'static str, block: &[u8]) -> Result<u32> {
    let shift = block.len().trailing_zeros();
    if !block.len().is_power_of_two() || !BLOCK_SHIFTS.contains(&shift) {
        let value = block.len() as u64;
        return Err(Error::new(structure, 0, Reason::OutOfRange { field: "zap block size", value }));
    }
    Ok(shift)
}

/// log2 of the number of buckets.
const fn bucket_shift(block_shift: u32) -> u32 {
    block_shift.saturating_sub(5)
}

fn bucket_count(block_shift: u32) -> usize {
    1usize.checked_shl(bucket_shift(block_shift)).unwrap_or(0)
}

fn chunk_count(block_shift: u32) -> usize {
    let block = 1usize.checked_shl(block_shift).unwrap_or(0);
    // Half of each bucket id's 32 bytes of block; the header is worth two chunks.
    (block.saturating_sub(block >> 4) / CHUNK_BYTES).saturating_sub(2)
}

/// Which bucket of a leaf a hash falls into: the bits right below the leaf's prefix.
fn bucket_of(hash: u64, prefix_len: u16, block_shift: u32) -> usize {
    let bits = bucket_shift(block_shift);
    let below = 64u32.saturating_sub(bits).saturating_sub(u32::from(prefix_len));
    let mask = 1u64.checked_shl(bits).unwrap_or(0).wrapping_sub(1);
    usize::try_from(hash.checked_shr(below).unwrap_or(0) & mask).unwrap_or(0)
}

/// The first `prefix_len` bits of a hash.
fn prefix_of(hash: u64, prefix_len: u16) -> u64 {
    hash.checked_shr(64u32.saturating_sub(u32::from(prefix_len))).unwrap_or(0)
}

/// A leaf, read in place.
#[derive(Clone, Copy, Debug)]
pub struct Leaf<'a> {
    order: Order,
    shape: KeyShape,
    block_shift: u32,
    prefix: u64,
    prefix_len: u16,
    entry_count: u16,
    free_count: u16,
    flags: u8,
    buckets: &'a [[u8; 2]],
    chunks: &'a [[u8; CHUNK_BYTES]],
}

/// The fixed part of an entry chunk.
#[derive(Clone, Copy, Debug)]
struct EntryChunk {
    int_size: u8,
    next: u16,
    key_chunk: u16,
    key_ints: u16,
    value_chunk: u16,
    value_ints: u16,
    cd: u32,
    hash: u64,
}

impl<'a> Leaf<'a> {
    /// Checks the header of `block`, the whole leaf block.
    ///
    /// # Errors
    /// Not a leaf, a size no leaf has, or a prefix longer than a hash.
    pub fn decode(block: &'a [u8], shape: KeyShape, order: Order) -> Result<Self> {
        let block_shift = block_shift(STRUCTURE, block)?;
        let mut reader = Reader::new(STRUCTURE, block, order);
        let tag = reader.u64()?;
        if tag != LEAF {
            return Err(Error::new(STRUCTURE, 0, Reason::BadMagic { found: tag }));
        }
        reader.skip(8)?;
        let prefix = reader.u64()?;
        let magic = reader.u32()?;
        if magic != MAGIC {
            return Err(Error::new(STRUCTURE, 24, Reason::BadMagic { found: magic.into() }));
        }
        let free_count = reader.u16()?;
        let entry_count = reader.u16()?;
        let prefix_len = reader.u16()?;
        let _freelist = reader.u16()?;
        let flags = reader.u8()?;
        if prefix_len > 64 || (prefix_len < 64 && prefix >> prefix_len != 0) {
            let value = u64::from(prefix_len);
            return Err(Error::new(STRUCTURE, 32, Reason::OutOfRange { field: "prefix_len", value }));
        }
        reader.seek(HEADER_BYTES)?;
        let buckets = reader.bytes(bucket_count(block_shift).saturating_mul(2))?.as_chunks().0;
        let chunks = reader.bytes(chunk_count(block_shift).saturating_mul(CHUNK_BYTES))?.as_chunks().0;
        Ok(Self {
            order,
            shape,
            block_shift,
            prefix,
            prefix_len,
            entry_count,
            free_count,
            flags,
            buckets,
            chunks,
        })
    }

    /// The hash bits all entries share, in the low [`prefix_len`](Self::prefix_len) bits.
    #[must_use]
    pub fn prefix(&self) -> u64 {
        self.prefix
    }

    /// Number of shared hash bits.
    #[must_use]
    pub fn prefix_len(&self) -> u16 {
        self.prefix_len
    }

    /// Entries the header counts.
    #[must_use]
    pub fn entry_count(&self) -> u16 {
        self.entry_count
    }

    /// Free chunks the header counts.
    #[must_use]
    pub fn free_count(&self) -> u16 {
        self.free_count
    }

    /// How many consecutive pointer-table slots name this leaf when the table has `1 << table_shift`.
    /// `None` if the prefix is longer than that: then the table or the leaf is wrong.
    #[must_use]
    pub fn table_span(&self, table_shift: u32) -> Option<u64> {
        1u64.checked_shl(table_shift.checked_sub(self.prefix_len.into())?)
    }

    /// Whether entries of this `hash` belong here.
    #[must_use]
    pub fn covers(&self, hash: u64) -> bool {
        prefix_of(hash, self.prefix_len) == self.prefix
    }

    /// The value stored under exactly `key`, whose hash is `hash`.
    ///
    /// # Errors
    /// A chain leaves the leaf, loops, or holds something that is no entry.
    pub fn lookup(&self, hash: u64, key: Key<'_>) -> Result<Option<Value>> {
        Ok(self.find(hash, |stored| stored.as_key() == key)?.map(|entry| entry.value))
    }

    /// The first entry of `hash` (in cd order) whose key `accepts`: for objects that fold names, where the
    /// stored name need not be the one asked for.
    ///
    /// # Errors
    /// A chain leaves the leaf, loops, or holds something that is no entry.
    pub fn find(&self, hash: u64, mut accepts: impl FnMut(&OwnedKey) -> bool) -> Result<Option<Entry>> {
        let mut budget = self.chunks.len();
        let mut next = self.bucket(bucket_of(hash, self.prefix_len, self.block_shift));
        while next != END {
            let chunk = self.entry_chunk(next, &mut budget)?;
            if chunk.hash == hash {
                let key = self.key(&chunk, &mut budget)?;
                if accepts(&key) {
                    let value = self.value(&chunk, &mut budget)?;
                    return Ok(Some(Entry { key, value, cd: chunk.cd, hash }));
                }
            }
            next = chunk.next;
        }
        Ok(None)
    }

    /// All entries, by bucket and then by cd. After the first error there are no more.
    #[must_use]
    pub fn entries(&self) -> Entries<'a> {
        Entries { leaf: *self, bucket: 0, next: END, budget: self.chunks.len(), seen: 0, done: false }
    }

    fn bucket(&self, index: usize) -> u16 {
        self.buckets.get(index).map_or(END, |id| self.order.u16(*id))
    }

    fn chunk(&self, id: u16, budget: &mut usize) -> Result<&'a [u8; CHUNK_BYTES]> {
        let offset = self.chunk_offset(id);
        *budget = budget.checked_sub(1).ok_or(Error::new(
            STRUCTURE,
            offset,
            Reason::Inconsistent("chunks are shared or loop"),
        ))?;
        let reason = Reason::OutOfRange { field: "chunk id", value: id.into() };
        self.chunks.get(usize::from(id)).ok_or(Error::new(STRUCTURE, offset, reason))
    }

    fn chunk_offset(&self, id: u16) -> usize {
        let chunk = usize::from(id).saturating_mul(CHUNK_BYTES);
        chunk.saturating_add(self.buckets.len().saturating_mul(2)).saturating_add(HEADER_BYTES)
    }

    fn entry_chunk(&self, id: u16, budget: &mut usize) -> Result<EntryChunk> {
        let mut reader = Reader::new(STRUCTURE, self.chunk(id, budget)?, self.order);
        if reader.u8()? != CHUNK_ENTRY {
            let reason = Reason::Inconsistent("a bucket chain holds a chunk that is no entry");
            return Err(Error::new(STRUCTURE, self.chunk_offset(id), reason));
        }
        Ok(EntryChunk {
            int_size: reader.u8()?,
            next: reader.u16()?,
            key_chunk: reader.u16()?,
            key_ints: reader.u16()?,
            value_chunk: reader.u16()?,
            value_ints: reader.u16()?,
            cd: reader.u32()?,
            hash: reader.u64()?,
        })
    }

    /// The `len` bytes of the array chain that starts at `first`.
    fn array(&self, first: u16, len: usize, budget: &mut usize) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(len.min(budget.saturating_mul(ARRAY_BYTES)));
        let mut next = first;
        while bytes.len() < len {
            let [kind, data @ .., low, high] = self.chunk(next, budget)?;
            if *kind != CHUNK_ARRAY {
                let reason = Reason::Inconsistent("an array chain holds a chunk that is no array");
                return Err(Error::new(STRUCTURE, self.chunk_offset(next), reason));
            }
            let wanted = len.saturating_sub(bytes.len());
            bytes.extend(data.iter().take(wanted));
            next = self.order.u16([*low, *high]);
        }
        Ok(bytes)
    }

    fn key(&self, chunk: &EntryChunk, budget: &mut usize) -> Result<OwnedKey> {
        let offset = self.chunk_offset(chunk.key_chunk);
        let ints = usize::from(chunk.key_ints);
        match self.shape {
            KeyShape::Names => {
                let mut name = self.array(chunk.key_chunk, ints, budget)?;
                // The NUL is counted; a name without one, or with one inside, could not be looked up.
                if name.pop() != Some(0) || name.is_empty() || name.contains(&0) {
                    return Err(Error::new(
                        STRUCTURE,
                        offset,
                        Reason::Inconsistent("a name's NUL is misplaced"),
                    ));
                }
                Ok(OwnedKey::Name(name))
            }
            KeyShape::Words => {
                let bytes = self.array(chunk.key_chunk, ints.saturating_mul(8), budget)?;
                Ok(OwnedKey::Words(Order::Big.words(&bytes).collect()))
            }
        }
    }

    fn value(&self, chunk: &EntryChunk, budget: &mut usize) -> Result<Value> {
        let offset = self.chunk_offset(chunk.value_chunk);
        let bad_size = Reason::OutOfRange { field: "integer size", value: chunk.int_size.into() };
        let int_size = IntSize::from_bytes(chunk.int_size).ok_or(Error::new(STRUCTURE, offset, bad_size))?;
        let len = usize::from(chunk.value_ints).saturating_mul(int_size.bytes());
        let bytes = self.array(chunk.value_chunk, len, budget)?;
        Ok(Value { int_size, bytes })
    }
}

/// Iterator over the entries of a [`Leaf`].
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    leaf: Leaf<'a>,
    bucket: usize,
    next: u16,
    budget: usize,
    seen: usize,
    done: bool,
}

impl Entries<'_> {
    fn step(&mut self) -> Result<Option<Entry>> {
        while self.next == END {
            if self.bucket == self.leaf.buckets.len() {
                if self.seen == usize::from(self.leaf.entry_count) {
                    return Ok(None);
                }
                return Err(Error::new(STRUCTURE, 30, Reason::Inconsistent("entry count is wrong")));
            }
            self.next = self.leaf.bucket(self.bucket);
            self.bucket = self.bucket.saturating_add(1);
        }
        let id = self.next;
        let chunk = self.leaf.entry_chunk(id, &mut self.budget)?;
        self.next = chunk.next;
        self.seen = self.seen.saturating_add(1);
        let here = bucket_of(chunk.hash, self.leaf.prefix_len, self.leaf.block_shift);
        if !self.leaf.covers(chunk.hash) || here.saturating_add(1) != self.bucket {
            let reason = Reason::Inconsistent("an entry's hash belongs elsewhere");
            return Err(Error::new(STRUCTURE, self.leaf.chunk_offset(id), reason));
        }
        let key = self.leaf.key(&chunk, &mut self.budget)?;
        let value = self.leaf.value(&chunk, &mut self.budget)?;
        Ok(Some(Entry { key, value, cd: chunk.cd, hash: chunk.hash }))
    }
}

impl Iterator for Entries<'_> {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let item = self.step().transpose();
        self.done = !matches!(item, Some(Ok(_)));
        item
    }
}

/// Why an entry was not put into a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InsertError {
    /// Not enough free chunks: split the leaf (after growing the table, if need be) and try again.
    #[error("the leaf is full")]
    Full,
    /// The key is there already.
    #[error("the name exists")]
    Exists,
    /// No leaf of this size can hold the entry, or the name or value is longer than the format allows.
    #[error("the entry is too large")]
    TooLarge,
    /// The hash lies outside the leaf's prefix, or the key has another shape than the object's keys.
    #[error("the entry belongs elsewhere")]
    Misplaced,
}

/// A leaf being changed: its entries as a list, laid out again when it is encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafEdit {
    block_shift: u32,
    shape: KeyShape,
    prefix: u64,
    prefix_len: u16,
    flags: u8,
    entries: Vec<Entry>,
    chunks_used: usize,
}

impl LeafEdit {
    /// The first leaf of a new object with blocks of `1 << block_shift` bytes; `None` for a size no leaf has.
    #[must_use]
    pub fn new(block_shift: u32, shape: KeyShape, normflags: u64) -> Option<Self> {
        let flags = if normflags == 0 { 0 } else { FLAG_CD_SORTED };
        BLOCK_SHIFTS.contains(&block_shift).then_some(Self {
            block_shift,
            shape,
            prefix: 0,
            prefix_len: 0,
            flags,
            entries: Vec::new(),
            chunks_used: 0,
        })
    }

    /// Takes over all entries of a leaf.
    ///
    /// # Errors
    /// As [`Leaf::entries`].
    pub fn from_leaf(leaf: &Leaf<'_>) -> Result<Self> {
        let entries = leaf.entries().collect::<Result<Vec<_>>>()?;
        let chunks_used = entries.iter().map(Entry::chunks).sum();
        Ok(Self {
            block_shift: leaf.block_shift,
            shape: leaf.shape,
            prefix: leaf.prefix,
            prefix_len: leaf.prefix_len,
            flags: leaf.flags,
            entries,
            chunks_used,
        })
    }

    /// The entries, in no particular order.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Number of shared hash bits.
    #[must_use]
    pub fn prefix_len(&self) -> u16 {
        self.prefix_len
    }

    /// The shared hash bits.
    #[must_use]
    pub fn prefix(&self) -> u64 {
        self.prefix
    }

    /// Chunks not used by any entry.
    #[must_use]
    pub fn chunks_free(&self) -> usize {
        chunk_count(self.block_shift).saturating_sub(self.chunks_used)
    }

    /// Adds an entry under the smallest cd no entry of the same hash uses, and returns that cd.
    ///
    /// # Errors
    /// See [`InsertError`]; the leaf is then unchanged.
    pub fn insert(&mut self, key: OwnedKey, hash: u64, value: Value) -> Result<u32, InsertError> {
        let same_hash = || self.entries.iter().filter(|entry| entry.hash == hash);
        if same_hash().any(|entry| entry.key == key) {
            return Err(InsertError::Exists);
        }
        let mut used: Vec<u32> = same_hash().map(|entry| entry.cd).collect();
        used.sort_unstable();
        let cd =
            (0u32..).zip(&used).find(|(free, cd)| free != *cd).map_or(used.len(), |(free, _)| free as usize);
        let cd = u32::try_from(cd).map_err(|_| InsertError::Full)?;
        self.insert_with_cd(Entry { key, value, cd, hash })?;
        Ok(cd)
    }

    /// Adds an entry that keeps its cd: one that comes from a microzap or a sibling.
    ///
    /// # Errors
    /// See [`InsertError`]; the leaf is then unchanged.
    pub fn insert_with_cd(&mut self, entry: Entry) -> Result<(), InsertError> {
        let shape = match &entry.key {
            OwnedKey::Name(name) if name.is_empty() || name.contains(&0) => {
                return Err(InsertError::Misplaced);
            }
            OwnedKey::Name(name) if name.len() > NAME_BYTES_MAX => return Err(InsertError::TooLarge),
            OwnedKey::Name(_) => KeyShape::Names,
            OwnedKey::Words(_) => KeyShape::Words,
        };
        let chunks = entry.chunks();
        if entry.value.be_bytes().len() > VALUE_BYTES_MAX || chunks > chunk_count(self.block_shift) {
            return Err(InsertError::TooLarge);
        }
        if shape != self.shape || prefix_of(entry.hash, self.prefix_len) != self.prefix {
            return Err(InsertError::Misplaced);
        }
        if self
            .entries
            .iter()
            .any(|old| old.hash == entry.hash && (old.key == entry.key || old.cd == entry.cd))
        {
            return Err(InsertError::Exists);
        }
        if chunks > self.chunks_free() {
            return Err(InsertError::Full);
        }
        self.chunks_used = self.chunks_used.saturating_add(chunks);
        self.entries.push(entry);
        Ok(())
    }

    /// Takes the entry of `key` out.
    pub fn remove(&mut self, hash: u64, key: Key<'_>) -> Option<Entry> {
        let at = self.entries.iter().position(|entry| entry.hash == hash && entry.key.as_key() == key)?;
        let entry = self.entries.remove(at);
        self.chunks_used = self.chunks_used.saturating_sub(entry.chunks());
        Some(entry)
    }

    /// Divides the leaf by the next hash bit: entries with 0 stay, those with 1 go to the sibling returned.
    /// `None` if no hash bit is left to tell entries apart.
    ///
    /// The caller stores the sibling in a new block and redirects the upper half of the table range.
    pub fn split(&mut self) -> Option<Self> {
        let prefix_len = self.prefix_len.checked_add(1).filter(|len| *len <= 64)?;
        let low = self.prefix.checked_mul(2)?;
        let high = low | 1;
        let (stay, leave): (Vec<_>, Vec<_>) = std::mem::take(&mut self.entries)
            .into_iter()
            .partition(|entry| prefix_of(entry.hash, prefix_len) == low);
        let chunks = |entries: &[Entry]| entries.iter().map(Entry::chunks).sum();
        let sibling = Self { prefix: high, prefix_len, chunks_used: chunks(&leave), entries: leave, ..*self };
        self.chunks_used = chunks(&stay);
        self.entries = stay;
        self.prefix = low;
        self.prefix_len = prefix_len;
        Some(sibling)
    }

    /// The leaf's block: entries from chunk 0 on, then one ascending free list.
    #[must_use]
    pub fn encode(&self, order: Order) -> Vec<u8> {
        let mut buckets: Vec<Vec<usize>> = vec![Vec::new(); bucket_count(self.block_shift)];
        for (index, entry) in self.entries.iter().enumerate() {
            if let Some(chain) = buckets.get_mut(bucket_of(entry.hash, self.prefix_len, self.block_shift)) {
                // Behind all entries of the same or a smaller cd.
                let cd_at = |at: &usize| self.entries.get(*at).map_or(0, |other| other.cd);
                let place = chain.partition_point(|at| cd_at(at) <= entry.cd);
                chain.insert(place, index);
            }
        }
        // Every id is below the chunk count, which fits 16 bits for every legal block size.
        let id = |chunk: usize| u16::try_from(chunk).unwrap_or(END);
        let mut first_chunk = Vec::with_capacity(self.entries.len());
        let mut used = 0usize;
        for entry in &self.entries {
            first_chunk.push(id(used));
            used = used.saturating_add(entry.chunks());
        }
        let mut next_in_bucket = vec![END; self.entries.len()];
        let chunk_of = |entry: usize| first_chunk.get(entry).copied().unwrap_or(END);
        for pair in buckets.iter().flat_map(|chain| chain.windows(2)) {
            if let [before, after] = *pair
                && let Some(next) = next_in_bucket.get_mut(before)
            {
                *next = chunk_of(after);
            }
        }

        let total = chunk_count(self.block_shift);
        let block_bytes = 1usize.checked_shl(self.block_shift).unwrap_or(0);
        let mut block = Writer::with_capacity(block_bytes, order);
        block.words(&[LEAF, 0, self.prefix]);
        block.u32(MAGIC);
        block.u16(id(total.saturating_sub(used)));
        block.u16(id(self.entries.len()));
        block.u16(self.prefix_len);
        block.u16(if used < total { id(used) } else { END });
        block.u8(self.flags);
        block.pad_to(HEADER_BYTES);
        for chain in &buckets {
            block.u16(chain.first().map_or(END, |entry| chunk_of(*entry)));
        }
        for (entry, next) in self.entries.iter().zip(&next_in_bucket) {
            write_entry(&mut block, entry, *next, id, self.block_shift);
        }
        for chunk in used..total {
            let next = chunk.saturating_add(1);
            block.u8(CHUNK_FREE);
            block.zeros(ARRAY_BYTES);
            block.u16(if next < total { id(next) } else { END });
        }
        block.pad_to(block_bytes);
        block.finish()
    }
}

/// Appends the entry's chunk and its name and value chunks; the writer stands at a chunk boundary.
fn write_entry(block: &mut Writer, entry: &Entry, next: u16, id: impl Fn(usize) -> u16, block_shift: u32) {
    let key_bytes: Vec<u8> = match &entry.key {
        OwnedKey::Name(name) => name.iter().copied().chain([0]).collect(),
        OwnedKey::Words(words) => words.iter().flat_map(|word| word.to_be_bytes()).collect(),
    };
    let key_ints = match &entry.key {
        OwnedKey::Name(_) => key_bytes.len(),
        OwnedKey::Words(words) => words.len(),
    };
    let chunks_start = bucket_count(block_shift).saturating_mul(2).saturating_add(HEADER_BYTES);
    let own = block.position().saturating_sub(chunks_start) / CHUNK_BYTES;
    let key_chunk = own.saturating_add(1);
    let value_chunk = key_chunk.saturating_add(key_bytes.len().div_ceil(ARRAY_BYTES));
    let value_bytes = entry.value.be_bytes();
    block.u8(CHUNK_ENTRY);
    block.u8(u8::try_from(entry.value.int_size().bytes()).unwrap_or(0));
    block.u16(next);
    block.u16(if key_bytes.is_empty() { END } else { id(key_chunk) });
    block.u16(id(key_ints));
    block.u16(if value_bytes.is_empty() { END } else { id(value_chunk) });
    block.u16(id(entry.value.count()));
    block.u32(entry.cd);
    block.u64(entry.hash);
    for (bytes, first) in [(key_bytes.as_slice(), key_chunk), (value_bytes, value_chunk)] {
        let pieces = bytes.chunks(ARRAY_BYTES);
        let last = pieces.len().saturating_sub(1);
        for (index, piece) in pieces.enumerate() {
            let after = first.saturating_add(index).saturating_add(1);
            block.u8(CHUNK_ARRAY);
            block.bytes(piece);
            block.zeros(ARRAY_BYTES.saturating_sub(piece.len()));
            block.u16(if index < last { id(after) } else { END });
        }
    }
}
