//! From a block's identity to where it is, for what must look blocks up by itself: simulations, miniature
//! caches, ghosts of classic ARC. A product's cache has its own map and remembers the [`Slot`](crate::Slot).

#![expect(clippy::disallowed_types, reason = "the map has a fixed hasher and is never iterated")]

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hash, Hasher},
};

use crate::mix;

/// A map from identity to index.
#[derive(Clone, Debug)]
pub struct Index<K = u64>(HashMap<K, u32, BuildHasherDefault<IdHasher>>);

impl<K> Default for Index<K> {
    fn default() -> Self {
        Self(HashMap::default())
    }
}

impl<K: Copy + Eq + Hash> Index<K> {
    /// Where this block is.
    #[inline]
    #[must_use]
    pub fn get(&self, id: K) -> Option<u32> {
        self.0.get(&id).copied()
    }

    /// Remembers where a block is; the place it had before, if any.
    #[inline]
    pub fn insert(&mut self, id: K, at: u32) -> Option<u32> {
        self.0.insert(id, at)
    }

    /// Forgets a block; where it was.
    #[inline]
    pub fn remove(&mut self, id: K) -> Option<u32> {
        self.0.remove(&id)
    }

    /// Blocks known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it knows no block.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Gives memory back that fewer blocks do not need.
    pub fn shrink(&mut self) {
        self.0.shrink_to_fit();
    }

    /// Bytes of memory behind it: a pair and a control byte for each place, one place in eight kept free.
    #[must_use]
    pub fn memory(&self) -> usize {
        (self.0.capacity() * 8 / 7) * (size_of::<(K, u32)>() + 1)
    }
}

/// Spreads an identity, which may be a plain number, over the map.
#[derive(Clone, Copy, Debug, Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }
    #[inline]
    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }
    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.0 = mix(self.0 ^ word);
    }
}
