//! Reading ZAPs, the name → value objects: lookup by key and iteration, micro and fat alike.
//!
//! A lookup in a fat ZAP costs one slot of the pointer table and one leaf. Iteration goes through the pointer
//! table slot by slot and insists that each leaf fills exactly the slots its prefix says: that is an invariant
//! of the format, and it bounds the work by the leaves that really exist, however the table was forged.
//!
//! Layouts and hashing: `ondisk::zap`. Facts: docs/format/zap.md.

use bytes::Bytes;
use ondisk::{
    Order,
    zap::{
        BlockKind, Key, OwnedKey, Value,
        fat::{self, Header, Leaf, Slot},
        micro::Micro,
    },
};

use crate::{
    BoxFuture,
    dmu::{Block, Object, ObjectSet, ReadError},
};

/// An open ZAP.
#[derive(Debug)]
pub struct Zap {
    object: Object,
    form: Form,
}

#[derive(Debug)]
enum Form {
    /// Never written: no entries.
    Empty,
    Micro {
        block: Bytes,
        order: Order,
    },
    Fat {
        header: Header,
        block: Bytes,
        order: Order,
    },
}

/// Numbers by their names.
pub type Numbers = Vec<(String, u64)>;

impl Zap {
    /// Opens `object` as a ZAP.
    ///
    /// # Errors
    /// Its first block cannot be read or is no ZAP.
    pub fn open(object: Object) -> BoxFuture<'static, Result<Self, ReadError>> {
        Box::pin(async move {
            let at = object.bookmark(0, 0);
            let Block { content, order } = object.read_block(0).await?;
            let form = match content {
                None => Form::Empty,
                Some(block) => match BlockKind::of(&block, order).map_err(ReadError::malformed(at))? {
                    BlockKind::Micro => {
                        Micro::decode(&block, order).map_err(ReadError::malformed(at))?;
                        Form::Micro { block, order }
                    }
                    BlockKind::FatHeader => {
                        let header = Header::decode(&block, order).map_err(ReadError::malformed(at))?;
                        Form::Fat { header, block, order }
                    }
                    BlockKind::FatLeaf | BlockKind::Untagged => {
                        return Err(ReadError::Inconsistent { at, what: "the object is not a ZAP" });
                    }
                },
            };
            Ok(Self { object, form })
        })
    }

    /// Opens object `number` of `set` as a ZAP.
    ///
    /// # Errors
    /// There is no such object, or as [`open`](Self::open).
    pub fn open_in(set: &ObjectSet, number: u64) -> BoxFuture<'_, Result<Self, ReadError>> {
        Box::pin(async move { Self::open(set.object(number).await?).await })
    }

    /// The object.
    #[must_use]
    pub fn object(&self) -> &Object {
        &self.object
    }

    /// The header of a fat ZAP, `None` for a microzap.
    #[must_use]
    pub fn header(&self) -> Option<&Header> {
        match &self.form {
            Form::Fat { header, .. } => Some(header),
            Form::Empty | Form::Micro { .. } => None,
        }
    }

    /// The value of exactly this key.
    ///
    /// # Errors
    /// A block cannot be read or is malformed.
    pub fn get<'a>(&'a self, key: impl Into<Key<'a>>) -> BoxFuture<'a, Result<Option<Value>, ReadError>> {
        self.find(key.into())
    }

    fn find<'a>(&'a self, key: Key<'a>) -> BoxFuture<'a, Result<Option<Value>, ReadError>> {
        Box::pin(async move {
            match &self.form {
                Form::Empty => Ok(None),
                Form::Micro { block, order } => {
                    let Key::Name(name) = key else { return Ok(None) };
                    let micro = Micro::decode(block, *order)
                        .map_err(ReadError::malformed(self.object.bookmark(0, 0)))?;
                    Ok(micro.lookup(name).map(Value::from_u64))
                }
                Form::Fat { header, .. } => match header.hash_rule().hash(key) {
                    Some(hash) => {
                        let leaf = self.leaf_block(header, header.slot_of(hash)).await?;
                        self.in_leaf(header, &leaf, |leaf| leaf.lookup(hash, key))
                    }
                    None => {
                        let mut entries = self.entries();
                        while let Some((found, value)) = entries.next().await? {
                            if found.as_key() == key {
                                return Ok(Some(value));
                            }
                        }
                        Ok(None)
                    }
                },
            }
        })
    }

    /// The value of `name` if it is one `u64`.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn get_u64<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<u64>, ReadError>> {
        Box::pin(async move { Ok(self.get(name).await?.and_then(|value| value.as_u64())) })
    }

    /// All entries in hash order, the order in which OpenZFS lists them (inside a leaf of a fat ZAP by bucket).
    #[must_use]
    pub fn entries(&self) -> Entries<'_> {
        Entries { zap: self, slot: 0, ready: Vec::new().into_iter(), done: false }
    }

    /// All entries at once. For objects whose size is that of a directory, not of a table.
    ///
    /// # Errors
    /// As [`Entries::next`].
    pub fn to_vec(&self) -> BoxFuture<'_, Result<Vec<(OwnedKey, Value)>, ReadError>> {
        Box::pin(async move {
            let mut entries = self.entries();
            let mut all = Vec::new();
            while let Some(entry) = entries.next().await? {
                all.push(entry);
            }
            Ok(all)
        })
    }

    /// All entries whose name is text and whose value is one `u64`, by name; others are left out.
    ///
    /// # Errors
    /// As [`Entries::next`].
    pub fn numbers(&self) -> BoxFuture<'_, Result<Numbers, ReadError>> {
        Box::pin(async move { Ok(self.numbers_within(usize::MAX).await?.unwrap_or_default()) })
    }

    /// The same; none if there are more than `most`: then the rest is not read.
    ///
    /// # Errors
    /// As [`Entries::next`].
    pub fn numbers_within(&self, most: usize) -> BoxFuture<'_, Result<Option<Numbers>, ReadError>> {
        Box::pin(async move {
            let mut entries = self.entries();
            let mut all = Vec::new();
            while let Some((key, value)) = entries.next().await? {
                if let OwnedKey::Name(name) = key
                    && let (Ok(name), Some(value)) = (String::from_utf8(name), value.as_u64())
                {
                    if all.len() == most {
                        return Ok(None);
                    }
                    all.push((name, value));
                }
            }
            all.sort_unstable();
            Ok(Some(all))
        })
    }

    /// The block of the leaf that slot `index` of the pointer table names, and its block id.
    async fn leaf_block(&self, header: &Header, index: u64) -> Result<(u64, Block), ReadError> {
        let at = self.object.bookmark(0, 0);
        let leaf = match header.slot(index) {
            None => return Err(ReadError::Inconsistent { at, what: "the pointer table is too short" }),
            Some(Slot::Embedded { byte }) => {
                let Form::Fat { block, order, .. } = &self.form else {
                    return Err(ReadError::Inconsistent { at, what: "the object is not a fat ZAP" });
                };
                fat::read_slot(block, byte, *order).map_err(ReadError::malformed(at))?
            }
            Some(Slot::External { block: blkid, byte }) => {
                let block = self.object.read_block(blkid).await?;
                let at = self.object.bookmark(0, blkid);
                fat::read_slot(block.bytes(), byte, block.order).map_err(ReadError::malformed(at))?
            }
        };
        if leaf > self.object.max_block_id() {
            return Err(ReadError::Inconsistent { at, what: "the pointer table leads outside the object" });
        }
        Ok((leaf, self.object.read_block(leaf).await?))
    }

    fn in_leaf<T>(
        &self,
        header: &Header,
        (blkid, block): &(u64, Block),
        f: impl FnOnce(&Leaf<'_>) -> ondisk::Result<T>,
    ) -> Result<T, ReadError> {
        Leaf::decode(block.bytes(), header.key_shape(), block.order)
            .and_then(|leaf| f(&leaf))
            .map_err(ReadError::malformed(self.object.bookmark(0, *blkid)))
    }
}

/// Iterates over the entries of a ZAP: see [`Zap::entries`].
#[derive(Debug)]
pub struct Entries<'a> {
    zap: &'a Zap,
    /// Next slot of the pointer table.
    slot: u64,
    /// What the last leaf held.
    ready: std::vec::IntoIter<(OwnedKey, Value)>,
    done: bool,
}

impl Entries<'_> {
    /// The next entry; `None` at the end.
    ///
    /// # Errors
    /// A block cannot be read or is malformed. The iteration ends with it.
    pub async fn next(&mut self) -> Result<Option<(OwnedKey, Value)>, ReadError> {
        loop {
            if let Some(entry) = self.ready.next() {
                return Ok(Some(entry));
            }
            if self.done {
                return Ok(None);
            }
            self.fetch().await?;
        }
    }

    /// Reads what the next leaf holds.
    fn fetch(&mut self) -> BoxFuture<'_, Result<(), ReadError>> {
        Box::pin(async move {
            // Set first: an error ends the iteration.
            self.done = true;
            match &self.zap.form {
                Form::Empty => {}
                Form::Micro { block, order } => {
                    let at = self.zap.object.bookmark(0, 0);
                    let micro = Micro::decode(block, *order).map_err(ReadError::malformed(at))?;
                    let all: Result<Vec<_>, _> = micro.entries().collect();
                    let mut all = all.map_err(ReadError::malformed(at))?;
                    let rule = micro.hash_rule();
                    all.sort_by_key(|entry| (rule.hash(entry.name.into()), entry.cd));
                    let owned = |e: &ondisk::zap::micro::Entry<'_>| {
                        (OwnedKey::Name(e.name.to_vec()), Value::from_u64(e.value))
                    };
                    self.ready = all.iter().map(owned).collect::<Vec<_>>().into_iter();
                }
                Form::Fat { header, .. } if self.slot < header.slots() => {
                    let leaf = self.zap.leaf_block(header, self.slot).await?;
                    let (span, all) = self.zap.in_leaf(header, &leaf, |leaf| {
                        let span = leaf.table_span(header.table_shift).filter(|span| *span > 0);
                        // The slot must be the first of those the leaf's prefix stands for.
                        let span = span.filter(|span| self.slot == leaf.prefix().saturating_mul(*span));
                        let all: ondisk::Result<Vec<_>> =
                            leaf.entries().map(|entry| entry.map(|e| (e.key, e.value))).collect();
                        Ok((span, all?))
                    })?;
                    let Some(span) = span else {
                        let at = self.zap.object.bookmark(0, leaf.0);
                        return Err(ReadError::Inconsistent {
                            at,
                            what: "a leaf is in slots of another prefix",
                        });
                    };
                    self.slot = self.slot.saturating_add(span);
                    self.ready = all.into_iter();
                    self.done = false;
                }
                Form::Fat { .. } => {}
            }
            Ok(())
        })
    }
}
