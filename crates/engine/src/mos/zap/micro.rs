//! A microzap being changed: its block, edited in place, so that entries stay where other software put them.
//! Facts: docs/format/zap.md §1.

use bytes::Bytes;
use ondisk::{
    Order, Writer,
    zap::{
        HashRule, Key,
        micro::{self, BLOCK_BYTES_MAX, NAME_BYTES_MAX},
    },
};

/// First word of the block.
pub(super) const TAG: u64 = 0x8000_0000_0000_0003;
/// Bytes of the header and of each entry.
const SLOT: usize = 64;
/// Where the name begins in an entry.
const NAME: usize = 14;
/// Blocks grow by this many bytes.
const STEP: usize = 512;

/// What became of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It is made.
    Done,
    /// Only a fat ZAP can hold that.
    Unfit,
    /// The object folds names in a way we do not know for this one.
    Unhashable,
}

/// The block, without its header.
#[derive(Clone, Debug)]
pub(super) struct Micro {
    rule: HashRule,
    slots: Vec<[u8; SLOT]>,
    changed: bool,
}

impl Micro {
    /// An empty one of `bytes` bytes.
    pub(super) fn new(rule: HashRule, bytes: usize) -> Self {
        Self { rule, slots: vec![[0; SLOT]; (bytes / SLOT).saturating_sub(1)], changed: true }
    }

    /// Reads a block and checks all of it.
    pub(super) fn open(block: &[u8]) -> ondisk::Result<Self> {
        let decoded = micro::Micro::decode(block, Order::Little)?;
        decoded.entries().try_for_each(|entry| entry.map(drop))?;
        let (_, entries) = block.split_at_checked(SLOT).unwrap_or_default();
        let slots = entries.as_chunks::<SLOT>().0.to_vec();
        Ok(Self { rule: decoded.hash_rule(), slots, changed: false })
    }

    /// How its names hash.
    pub(super) fn rule(&self) -> HashRule {
        self.rule
    }

    /// Size of the block.
    pub(super) fn bytes(&self) -> usize {
        (self.slots.len() + 1) * SLOT
    }

    /// Name, value and cd of each entry.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&[u8], u64, u32)> {
        self.slots.iter().filter(|slot| slot[NAME] != 0).map(|slot| {
            let cd = slot.get(8..12).and_then(|cd| cd.try_into().ok()).unwrap_or_default();
            (name_of(slot), value_of(slot), u32::from_le_bytes(cd))
        })
    }

    /// The value of a name.
    pub(super) fn get(&self, name: &[u8]) -> Option<u64> {
        self.slots.iter().find(|slot| is_called(slot, name)).map(value_of)
    }

    /// Sets a name, growing the block if need be.
    pub(super) fn set(&mut self, name: &[u8], value: u64) -> Outcome {
        if name.len() > NAME_BYTES_MAX {
            return Outcome::Unfit;
        }
        if let Some(slot) = self.slots.iter_mut().find(|slot| is_called(slot, name)) {
            if value_of(slot) != value {
                slot[..8].copy_from_slice(&value.to_le_bytes());
                self.changed = true;
            }
            return Outcome::Done;
        }
        let Some(hash) = self.rule.hash(Key::Name(name)) else { return Outcome::Unhashable };
        let Some(free) = self.free_slot() else { return Outcome::Unfit };
        self.changed = true;
        let mut used: Vec<u32> = self
            .entries()
            .filter(|(other, ..)| self.rule.hash(Key::Name(other)) == Some(hash))
            .map(|(.., cd)| cd)
            .collect();
        used.sort_unstable();
        // The smallest number nobody has: the first that differs from its place in the sorted list.
        let cd =
            (0u32..).zip(&used).find(|(want, have)| want != *have).map_or(used.len() as u32, |(cd, _)| cd);
        if let Some(slot) = self.slots.get_mut(free) {
            slot[..8].copy_from_slice(&value.to_le_bytes());
            slot[8..12].copy_from_slice(&cd.to_le_bytes());
            // At most 49 bytes: the NUL is what the free slot has there.
            slot[NAME..NAME + name.len()].copy_from_slice(name);
        }
        Outcome::Done
    }

    /// Removes a name; false if it is not there.
    pub(super) fn remove(&mut self, name: &[u8]) -> bool {
        let slot = self.slots.iter_mut().find(|slot| is_called(slot, name));
        let removed = slot.map(|slot| *slot = [0; SLOT]).is_some();
        self.changed |= removed;
        removed
    }

    /// Whether the block differs from what was read.
    pub(super) fn is_changed(&self) -> bool {
        self.changed
    }

    /// The block.
    pub(super) fn into_block(self) -> Bytes {
        let mut block = Writer::with_capacity(self.bytes(), Order::Little);
        block.words(&[TAG, self.rule.salt, self.rule.normflags]);
        block.pad_to(SLOT);
        for slot in &self.slots {
            block.bytes(slot);
        }
        block.finish().into()
    }

    /// A free place, in a larger block if there is none; `None` if the block must not grow.
    fn free_slot(&mut self) -> Option<usize> {
        if let Some(free) = self.slots.iter().position(|slot| slot[NAME] == 0) {
            // What an older writer may have left behind the empty name is not ours to keep.
            if let Some(slot) = self.slots.get_mut(free) {
                *slot = [0; SLOT];
            }
            return Some(free);
        }
        let bytes = (self.bytes() + 1).next_multiple_of(STEP);
        if bytes > BLOCK_BYTES_MAX {
            return None;
        }
        let free = self.slots.len();
        self.slots.resize(bytes / SLOT - 1, [0; SLOT]);
        Some(free)
    }
}

fn name_of(slot: &[u8; SLOT]) -> &[u8] {
    let field = &slot[NAME..];
    field.iter().position(|byte| *byte == 0).and_then(|end| field.get(..end)).unwrap_or(field)
}

fn value_of(slot: &[u8; SLOT]) -> u64 {
    u64::from_le_bytes(slot.first_chunk().copied().unwrap_or_default())
}

fn is_called(slot: &[u8; SLOT], name: &[u8]) -> bool {
    let field = &slot[NAME..];
    !name.is_empty() && field.starts_with(name) && field.get(name.len()) == Some(&0)
}
