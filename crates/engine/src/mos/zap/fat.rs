//! A fat ZAP being changed: header and one leaf at a time in memory.
//!
//! A full leaf splits; a leaf whose prefix is as long as the pointer table's shift needs a table twice as large
//! first. The table is doubled in one step. One that other software left half doubled is completed before
//! anything else is changed. Emptied leaves stay.
//!
//! Facts: docs/format/zap.md §2.

use bytes::Bytes;
use ondisk::{
    Order,
    zap::{
        HashRule, Key, OwnedKey, Value,
        fat::{self, DEFAULT_BLOCK_SHIFT, Entry, Header, InsertError, Leaf, LeafEdit, Slot, Table},
    },
};
use pool::dmu::ReadError;

use super::{super::inconsistent, cannot};
use crate::{EngineError, dmu::MutSet};

/// First word of block 0.
pub(super) const TAG: u64 = 0x8000_0000_0000_0001;
/// Where the counters that change begin in block 0.
const COUNTERS: usize = 16;

/// An open one. Changes are in the [`MutSet`] after [`finish`](Self::finish).
pub(super) struct Fat<'a> {
    set: &'a mut MutSet,
    object: u64,
    header: Header,
    /// Block 0 with the counters of the last write.
    block: Vec<u8>,
    block_dirty: bool,
    leaf: Option<OpenLeaf>,
}

struct OpenLeaf {
    blkid: u64,
    edit: LeafEdit,
    dirty: bool,
}

impl<'a> Fat<'a> {
    /// Reads block 0.
    pub(super) fn open(set: &'a mut MutSet, object: u64, block: &[u8]) -> Result<Self, EngineError> {
        let at = super::super::at(set, object, 0);
        let header = Header::decode(block, Order::Little).map_err(ReadError::malformed(at))?;
        let block = block.to_vec();
        Ok(Self { set, object, header, block, block_dirty: false, leaf: None })
    }

    /// Makes the object, which has at most one block, an empty fat ZAP.
    pub(super) async fn create(
        set: &'a mut MutSet,
        object: u64,
        rule: HashRule,
    ) -> Result<Self, EngineError> {
        let unfit = || cannot(object, "no fat ZAP has such blocks");
        let header = Header::new(DEFAULT_BLOCK_SHIFT, rule.salt, rule.normflags, 0).ok_or_else(unfit)?;
        let table = Table::new(header.table_shift, 1).ok_or_else(unfit)?;
        let edit = LeafEdit::new(header.block_shift, header.key_shape(), rule.normflags).ok_or_else(unfit)?;
        let block = header.encode(&table, Order::Little).map_err(EngineError::encode("a ZAP"))?;
        set.set_block_bytes(object, 1 << header.block_shift).await?;
        let leaf = Some(OpenLeaf { blkid: 1, edit, dirty: true });
        Ok(Self { set, object, header, block, block_dirty: true, leaf })
    }

    /// How its keys hash.
    pub(super) fn rule(&self) -> HashRule {
        self.header.hash_rule()
    }

    /// The value of a key.
    pub(super) async fn get(mut self, key: Key<'_>) -> Result<Option<Value>, EngineError> {
        let Some(hash) = self.rule().hash(key) else {
            // A name that cannot be folded can only be found by looking at all.
            let all = self.entries().await?;
            return Ok(all.into_iter().find(|(other, _)| other.as_key() == key).map(|(_, value)| value));
        };
        let blkid = self.slot(self.header.slot_of(hash)).await?;
        let block = self.leaf_block(blkid).await?;
        Leaf::decode(&block, self.header.key_shape(), Order::Little)
            .and_then(|leaf| leaf.lookup(hash, key))
            .map_err(|error| self.malformed(blkid, error))
    }

    /// All entries, leaf by leaf in hash order.
    pub(super) async fn entries(mut self) -> Result<Vec<(OwnedKey, Value)>, EngineError> {
        let mut all = Vec::new();
        let mut slot = 0;
        while slot < self.header.slots() {
            let blkid = self.slot(slot).await?;
            let block = self.leaf_block(blkid).await?;
            let leaf = Leaf::decode(&block, self.header.key_shape(), Order::Little)
                .map_err(|error| self.malformed(blkid, error))?;
            // The slot must be the first of those the leaf's prefix stands for: this bounds the walk too.
            let span = leaf.table_span(self.header.table_shift).filter(|span| *span > 0);
            let Some(span) = span.filter(|span| leaf.prefix().checked_mul(*span) == Some(slot)) else {
                return Err(self.wrong(blkid, "a leaf is in slots of another prefix"));
            };
            for entry in leaf.entries() {
                let entry = entry.map_err(|error| self.malformed(blkid, error))?;
                all.push((entry.key, entry.value));
            }
            slot = slot.saturating_add(span);
        }
        Ok(all)
    }

    /// Sets a key, new or not. An entry that is replaced keeps its cd, so that cursors stay valid.
    pub(super) async fn set(&mut self, key: OwnedKey, value: Value) -> Result<(), EngineError> {
        let object = self.object;
        let Some(hash) = self.rule().hash(key.as_key()) else {
            return Err(cannot(object, "the name cannot be folded"));
        };
        let entry = Entry { key, value, cd: 0, hash };
        let whole = LeafEdit::new(self.header.block_shift, self.header.key_shape(), 0);
        if whole.is_none_or(|mut leaf| leaf.insert_with_cd(entry.clone()).is_err()) {
            return Err(cannot(object, "no leaf of this ZAP can hold the key and its value"));
        }
        let leaf = self.leaf_of(hash).await?;
        let same = |old: &Entry| old.hash == hash && old.key == entry.key && old.value == entry.value;
        if leaf.edit.entries().iter().any(same) {
            return Ok(());
        }
        let old = leaf.take(hash, entry.key.as_key());
        let Some(old) = old else { return self.add(entry.key, hash, entry.value, None).await };
        self.place(entry.key, hash, entry.value, Some(old.cd)).await
    }

    /// Adds a key that is not there. `cd` if it has one already.
    pub(super) async fn add(
        &mut self,
        key: OwnedKey,
        hash: u64,
        value: Value,
        cd: Option<u32>,
    ) -> Result<(), EngineError> {
        self.place(key, hash, value, cd).await?;
        self.header.entries = self.header.entries.saturating_add(1);
        self.block_dirty = true;
        Ok(())
    }

    /// Removes a key; false if it is not there.
    pub(super) async fn remove(&mut self, key: Key<'_>) -> Result<bool, EngineError> {
        let Some(hash) = self.rule().hash(key) else {
            return Err(cannot(self.object, "the name cannot be folded"));
        };
        if self.leaf_of(hash).await?.take(hash, key).is_none() {
            return Ok(false);
        }
        self.header.entries = self.header.entries.saturating_sub(1);
        self.block_dirty = true;
        Ok(true)
    }

    /// Hands all changes to the set.
    pub(super) async fn finish(mut self) -> Result<(), EngineError> {
        self.put_leaf().await?;
        if !self.block_dirty {
            return Ok(());
        }
        let header = &self.header;
        let counters = [
            header.table_block,
            header.table_blocks,
            header.table_shift.into(),
            header.table_next_block,
            header.table_blocks_copied,
            header.free_block,
            header.leaves,
            header.entries,
        ];
        put_words(&mut self.block, COUNTERS, &counters);
        self.set.put_block(self.object, 0, self.block.into()).await
    }

    async fn place(
        &mut self,
        key: OwnedKey,
        hash: u64,
        value: Value,
        cd: Option<u32>,
    ) -> Result<(), EngineError> {
        // Each round takes one more bit of the hash, of which there are at most 48; doubling the table takes a
        // round of its own.
        for _ in 0..128 {
            let leaf = self.leaf_of(hash).await?;
            let entry = Entry { key: key.clone(), value: value.clone(), cd: cd.unwrap_or(0), hash };
            let result = match cd {
                None => leaf.edit.insert(entry.key, hash, entry.value).map(drop),
                Some(_) => leaf.edit.insert_with_cd(entry),
            };
            match result {
                Ok(()) => {
                    leaf.dirty = true;
                    return Ok(());
                }
                Err(InsertError::Full) => self.split(hash).await?,
                Err(error) => return Err(cannot(self.object, &error.to_string())),
            }
        }
        Err(cannot(self.object, "too many keys have the same hash"))
    }

    /// Divides the leaf of `hash`, or makes the table ready for that.
    async fn split(&mut self, hash: u64) -> Result<(), EngineError> {
        let object = self.object;
        let shift = self.header.table_shift;
        let full = || cannot(object, "too many keys have the same hash");
        let leaf = self.leaf_of(hash).await?;
        if u32::from(leaf.edit.prefix_len()) >= shift {
            return self.grow_table(None).await;
        }
        let sibling = leaf.edit.split().ok_or_else(full)?;
        leaf.dirty = true;
        let blkid = self.new_blocks(1).await?;
        self.header.leaves = self.header.leaves.saturating_add(1);
        self.set.put_block(object, blkid, sibling.encode(Order::Little).into()).await?;
        let span = shift.checked_sub(sibling.prefix_len().into()).ok_or_else(full)?;
        self.redirect(sibling.prefix() << span, 1 << span, blkid).await
    }

    /// The next `count` block ids, none of which may be in use. Other software that gave up the last leaves hands their
    /// ids out again, so they may be holes below the highest block.
    async fn new_blocks(&mut self, count: u64) -> Result<u64, EngineError> {
        let first = self.header.free_block;
        let used = "the next free block of the ZAP is in use";
        let Some(end) = first.checked_add(count) else { return Err(self.wrong(0, used)) };
        let last = self.set.dnode(self.object).await?.max_block_id;
        for blkid in first..end.min(last.saturating_add(1)) {
            if self.set.block(self.object, blkid).await?.is_some() {
                return Err(self.wrong(blkid, used));
            }
        }
        self.header.free_block = end;
        self.block_dirty = true;
        Ok(first)
    }

    /// The leaf of `hash`, open for changes.
    async fn leaf_of(&mut self, hash: u64) -> Result<&mut OpenLeaf, EngineError> {
        if self.header.table_next_block != 0 {
            self.grow_table(Some(self.header.table_next_block)).await?;
        }
        let blkid = self.slot(self.header.slot_of(hash)).await?;
        if self.leaf.as_ref().is_none_or(|leaf| leaf.blkid != blkid) {
            self.put_leaf().await?;
            let block = self.leaf_block(blkid).await?;
            let edit = Leaf::decode(&block, self.header.key_shape(), Order::Little)
                .and_then(|leaf| LeafEdit::from_leaf(&leaf))
                .map_err(|error| self.malformed(blkid, error))?;
            self.leaf = Some(OpenLeaf { blkid, edit, dirty: false });
        }
        let at = super::super::at(self.set, self.object, blkid);
        let covers = |leaf: &&mut OpenLeaf| {
            let below = 64u32.saturating_sub(leaf.edit.prefix_len().into());
            hash.checked_shr(below).unwrap_or(0) == leaf.edit.prefix()
        };
        let what = "a leaf is in slots of another prefix";
        self.leaf.as_mut().filter(covers).ok_or(ReadError::Inconsistent { at, what }.into())
    }

    async fn put_leaf(&mut self) -> Result<(), EngineError> {
        match self.leaf.take() {
            Some(leaf) if leaf.dirty => {
                let block = leaf.edit.encode(Order::Little);
                self.set.put_block(self.object, leaf.blkid, block.into()).await
            }
            _ => Ok(()),
        }
    }

    async fn leaf_block(&mut self, blkid: u64) -> Result<Bytes, EngineError> {
        match self.set.block(self.object, blkid).await? {
            Some(block) => Ok(block),
            None => Err(self.wrong(blkid, "a leaf of the ZAP is a hole")),
        }
    }

    /// What slot `index` of the pointer table holds.
    async fn slot(&mut self, index: u64) -> Result<u64, EngineError> {
        let (blkid, leaf) = match self.header.slot(index) {
            None => return Err(self.wrong(0, "the pointer table is too short")),
            Some(Slot::Embedded { byte }) => (0, fat::read_slot(&self.block, byte, Order::Little)),
            Some(Slot::External { block: blkid, byte }) => {
                let block = self.table_block(blkid).await?;
                (blkid, fat::read_slot(&block, byte, Order::Little))
            }
        };
        let leaf = leaf.map_err(|error| self.malformed(blkid, error))?;
        if leaf >= self.header.free_block {
            return Err(self.wrong(blkid, "the pointer table leads outside the ZAP"));
        }
        Ok(leaf)
    }

    /// A block of the external table.
    async fn table_block(&mut self, blkid: u64) -> Result<Vec<u8>, EngineError> {
        match self.set.block(self.object, blkid).await? {
            Some(block) => Ok(block.into()),
            None => Err(self.wrong(blkid, "a block of the pointer table is a hole")),
        }
    }

    /// Makes `count` slots from `first` on name `leaf`.
    async fn redirect(&mut self, first: u64, count: u64, leaf: u64) -> Result<(), EngineError> {
        let mut index = first;
        let end = first.saturating_add(count);
        while index < end {
            match self.header.slot(index) {
                None => return Err(self.wrong(0, "the pointer table is too short")),
                Some(Slot::Embedded { byte }) => {
                    put_words(&mut self.block, byte, &[leaf]);
                    self.block_dirty = true;
                    index += 1;
                }
                Some(Slot::External { block: blkid, byte }) => {
                    let mut block = self.table_block(blkid).await?;
                    let here = (block.len().saturating_sub(byte) as u64 / 8).min(end - index).max(1);
                    put_words(&mut block, byte, &vec![leaf; here as usize]);
                    self.set.put_block(self.object, blkid, block.into()).await?;
                    index += here;
                }
            }
        }
        Ok(())
    }

    /// Doubles the pointer table, into new blocks or into those that were set aside for it (`place`).
    async fn grow_table(&mut self, place: Option<u64>) -> Result<(), EngineError> {
        let object = self.object;
        let mut slots = Vec::new();
        match self.header.table_blocks {
            0 => {
                let Some(Slot::Embedded { byte }) = self.header.slot(0) else {
                    return Err(self.wrong(0, "the pointer table is too short"));
                };
                let table = self.block.get(byte..).unwrap_or_default();
                slots.extend(Order::Little.words(table).take(self.header.slots() as usize));
            }
            blocks => {
                for index in 0..blocks {
                    let block = self.table_block(self.header.table_block.saturating_add(index)).await?;
                    slots.extend(Order::Little.words(&block));
                }
            }
        }
        let table = Table::from_leaves(slots).filter(|table| table.shift() == self.header.table_shift);
        let Some(table) = table else { return Err(self.wrong(0, "the pointer table has another size")) };
        let doubled = table.double().ok_or_else(|| cannot(object, "too many keys have the same hash"))?;
        let old = self.header.table_block..self.header.table_block.saturating_add(self.header.table_blocks);
        self.header.table_shift = doubled.shift();
        self.block_dirty = true;
        if self.header.table_blocks == 0
            && place.is_none()
            && let Some(Slot::Embedded { byte }) = self.header.slot(0)
            && byte.saturating_add(doubled.leaves().len().saturating_mul(8)) <= self.block.len()
        {
            put_words(&mut self.block, byte, doubled.leaves());
            return Ok(());
        }
        let blocks = doubled.encode_external(self.header.block_shift, Order::Little);
        let count = blocks.len() as u64;
        let first = match place {
            None => self.new_blocks(count).await?,
            Some(first) if first.checked_add(count).is_some_and(|end| end <= self.header.free_block) => first,
            Some(_) => return Err(self.wrong(0, "the new pointer table lies outside the ZAP")),
        };
        let end = first.saturating_add(count);
        for (blkid, block) in (first..end).zip(blocks) {
            self.set.put_block(object, blkid, block.into()).await?;
        }
        if !old.is_empty() {
            self.set.punch(object, old).await?;
        }
        self.header.table_block = first;
        self.header.table_blocks = count;
        self.header.table_next_block = 0;
        self.header.table_blocks_copied = 0;
        Ok(())
    }

    fn malformed(&self, blkid: u64, error: ondisk::Error) -> EngineError {
        ReadError::malformed(super::super::at(self.set, self.object, blkid))(error).into()
    }

    fn wrong(&self, blkid: u64, what: &'static str) -> EngineError {
        inconsistent(self.set, self.object, blkid, what)
    }
}

impl OpenLeaf {
    fn take(&mut self, hash: u64, key: Key<'_>) -> Option<Entry> {
        let entry = self.edit.remove(hash, key)?;
        self.dirty = true;
        Some(entry)
    }
}

/// Writes little-endian words at `byte`; what does not fit the block is left out.
fn put_words(block: &mut [u8], byte: usize, words: &[u64]) {
    let places = block.get_mut(byte..).unwrap_or_default().as_chunks_mut::<8>().0;
    for (place, word) in places.iter_mut().zip(words) {
        *place = word.to_le_bytes();
    }
}
