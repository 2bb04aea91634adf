//! The microzap: one block of 64-byte entries, each a name of at most 49 bytes and one `u64`.
//!
//! Most directories, property lists and maps are of this form for life. Order within the block means nothing;
//! an empty name is a free place. Facts: docs/format/zap.md §1.

use super::{HashRule, Key, MICRO};
use crate::{Error, Order, Reader, Reason, Result, Writer};

const STRUCTURE: &str = "microzap";
/// Bytes of the header and of each entry.
const SLOT: usize = 64;
const NAME_OFFSET: usize = 14;

/// Longest name of a microzap in bytes, without its NUL.
pub const NAME_BYTES_MAX: usize = 49;
/// Largest microzap block in bytes without feature `large_microzap`.
pub const BLOCK_BYTES_MAX: usize = 128 << 10;

/// A microzap, read in place.
#[derive(Clone, Copy, Debug)]
pub struct Micro<'a> {
    order: Order,
    salt: u64,
    normflags: u64,
    slots: &'a [[u8; SLOT]],
}

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The name, without its NUL.
    pub name: &'a [u8],
    /// The value.
    pub value: u64,
    /// Tells entries of equal hash apart.
    pub cd: u32,
}

impl<'a> Micro<'a> {
    /// Checks the header of `block`, the object's only block.
    ///
    /// # Errors
    /// Not a microzap, or shorter than its header.
    pub fn decode(block: &'a [u8], order: Order) -> Result<Self> {
        let mut reader = Reader::new(STRUCTURE, block, order);
        let [tag, salt, normflags] = reader.words()?;
        if tag != MICRO {
            return Err(Error::new(STRUCTURE, 0, Reason::BadMagic { found: tag }));
        }
        reader.seek(SLOT)?;
        Ok(Self { order, salt, normflags, slots: reader.rest().as_chunks().0 })
    }

    /// How names would hash, for an upgrade to a fat ZAP and for cursors.
    #[must_use]
    pub fn hash_rule(&self) -> HashRule {
        HashRule::plain(self.salt, self.normflags)
    }

    /// All entries in block order.
    ///
    /// # Errors
    /// (Per item) a name without its NUL.
    pub fn entries(&self) -> impl Iterator<Item = Result<Entry<'a>>> + use<'a> {
        let order = self.order;
        let occupied =
            |(_, slot): &(usize, &'a [u8; SLOT])| slot.get(NAME_OFFSET).is_some_and(|first| *first != 0);
        self.slots.iter().enumerate().filter(occupied).map(move |(index, slot)| {
            let offset = index.saturating_add(1).saturating_mul(SLOT);
            let mut reader = Reader::new(STRUCTURE, slot, order);
            let value = reader.u64()?;
            let cd = reader.u32()?;
            reader.seek(NAME_OFFSET)?;
            let field = reader.rest();
            let Some(name) = field.iter().position(|byte| *byte == 0).and_then(|end| field.get(..end)) else {
                let reason = Reason::Inconsistent("a name has no NUL");
                return Err(Error::new(STRUCTURE, offset.saturating_add(NAME_OFFSET), reason));
            };
            Ok(Entry { name, value, cd })
        })
    }

    /// The value of exactly this name. Damaged entries do not hide the others.
    #[must_use]
    pub fn lookup(&self, name: &[u8]) -> Option<u64> {
        self.entries().filter_map(Result::ok).find(|entry| entry.name == name).map(|entry| entry.value)
    }
}

/// Why entries do not make a microzap of the size asked for: each means the object must become fat (or larger).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// A name is empty, longer than [`NAME_BYTES_MAX`] or has a NUL in it.
    #[error("a name does not fit a microzap")]
    Name,
    /// More entries than the block has room for.
    #[error("the microzap is full")]
    Full,
    /// Two entries have one name.
    #[error("a name occurs twice")]
    Duplicate,
    /// The object folds names by Unicode tables and this one is not ASCII: its cd cannot be chosen.
    #[error("a name cannot be folded")]
    Unhashable,
    /// Not a multiple of 512 bytes, or none at all.
    #[error("not a block size of a microzap")]
    BlockSize,
}

/// The block of a microzap with these entries, in this order; cds are assigned.
///
/// # Errors
/// See [`EncodeError`].
pub fn encode(
    rule: HashRule,
    entries: &[(&[u8], u64)],
    block_bytes: usize,
    order: Order,
) -> Result<Vec<u8>, EncodeError> {
    if block_bytes == 0 || !block_bytes.is_multiple_of(512) {
        return Err(EncodeError::BlockSize);
    }
    if entries.len() >= block_bytes / SLOT {
        return Err(EncodeError::Full);
    }
    let mut names: Vec<&[u8]> = entries.iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    if names.windows(2).any(|pair| matches!(pair, [a, b] if a == b)) {
        return Err(EncodeError::Duplicate);
    }
    let mut cds = std::collections::BTreeMap::<u64, u32>::new();
    let mut block = Writer::with_capacity(block_bytes, order);
    block.words(&[MICRO, rule.salt, rule.normflags]);
    block.pad_to(SLOT);
    for (name, value) in entries {
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(&0) {
            return Err(EncodeError::Name);
        }
        let hash = rule.hash(Key::Name(name)).ok_or(EncodeError::Unhashable)?;
        let cd = cds.entry(hash).or_default();
        let end = block.position().saturating_add(SLOT);
        block.u64(*value);
        block.u32(*cd);
        block.u16(0);
        block.bytes(name);
        block.pad_to(end);
        *cd = cd.saturating_add(1);
    }
    block.pad_to(block_bytes);
    Ok(block.finish())
}
