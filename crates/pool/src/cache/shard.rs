//! A part of the map from keys to blocks, under its own lock, which is held for a lookup and the copy of a reference
//! count.
//!
//! Blocks lie densely in a vector (the last one takes the place of one that goes), so that a shard can become small
//! again; the map leads from a block's identity to its index. Two different keys of one identity cannot be here
//! together: the newer one wins.

#![expect(clippy::disallowed_types, reason = "the map has a fixed hasher and is never iterated")]

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    sync::Arc,
};

use ::cache::Slot;
use bytes::Bytes;

use smallvec::SmallVec;

use super::{AT_ONCE, Access, Class, Feed, Key, Origin, Row, clock::Moment, transfer::Transfer};

/// One block.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: Key,
    pub(super) origin: Arc<Origin>,
    /// The stored form; the content, if it is stored as it is or if only that is known.
    pub(super) held: Bytes,
    /// The content of a block that is stored in another form, while there is room for it; of an indirect block it may be a
    /// shorter form of that.
    pub(super) hot: Option<Bytes>,
    /// `held` is a part of the memory of this transfer.
    pub(super) transfer: Option<Arc<Transfer>>,
    pub(super) slot: Slot,
    /// What the policy was told that it takes.
    pub(super) units: u32,
    pub(super) lsize: u32,
    /// When it was last used.
    pub(super) used: Moment,
    pub(super) compress: u8,
    pub(super) level: u8,
    /// Rounds the hot copy has before it must go.
    pub(super) heat: u8,
    /// Of one that is sampled, uses that were one with another: the first [`SINGLY`], and those since that wait for others.
    pub(super) merged: u8,
    pub(super) class: Class,
    /// `held` is what a device has.
    pub(super) is_stored: bool,
    /// `held` is the content.
    pub(super) is_content: bool,
    pub(super) is_frequent: bool,
    pub(super) is_prefetched: bool,
    pub(super) is_eligible: bool,
}

/// Blocks that are looked at under one lock for those of a pool that was closed.
const LOOKED_AT_ONCE: usize = 4096;
/// Free places that are worth nobody's while.
const FEW: usize = 16;

/// Blocks that leave together.
pub(super) type Together = SmallVec<[Entry; 4]>;

/// Rounds of a hot copy that is used. To decompress an indirect block takes ten times as long as a small block of
/// data, and every read below it needs it.
const HEAT: [u8; 2] = [1, 4];

/// Uses of a sampled block that are one with another are noted each for itself at first, and so many at once later: of
/// most there are few, and a hot one must not cost a note each time.
const SINGLY: u8 = 16;
const TOGETHER: u8 = 16;

/// What a lookup finds.
#[derive(Debug)]
pub(crate) enum Found {
    /// The content.
    Content(Bytes),
    /// The copy of an indirect block, which is another form of its content, and shorter.
    Packed(Bytes),
    /// The stored form, to be decompressed.
    Stored(Bytes),
    /// Nothing.
    Nothing,
}

/// A block that was found, and what it is to the counters.
#[derive(Debug)]
pub(super) struct Hit {
    pub(super) found: Found,
    pub(super) class: Class,
    /// It had been used before.
    pub(super) was_frequent: bool,
    /// It had been read ahead, and this is its first use.
    pub(super) was_prefetched: bool,
    /// To be told to the policy.
    pub(super) note: Option<Slot>,
    /// Uses of a sampled block that the policy is not told of, to be counted now.
    pub(super) merged: u8,
}

impl Entry {
    pub(super) fn found(&self) -> Found {
        match &self.hot {
            Some(hot) if hot.len() < self.lsize as usize => Found::Packed(hot.clone()),
            Some(hot) => Found::Content(hot.clone()),
            None if self.is_content => Found::Content(self.held.clone()),
            None => Found::Stored(self.held.clone()),
        }
    }

    /// Whether a copy of its content may have this length.
    pub(super) fn is_copy(&self, len: usize) -> bool {
        let lsize = self.lsize as usize;
        len == lsize || self.level > 0 && len < lsize
    }

    fn hit(&mut self, access: Access, now: Moment) -> Hit {
        let mut hit = Hit {
            found: self.found(),
            class: self.class,
            was_frequent: self.is_frequent,
            was_prefetched: false,
            note: None,
            merged: 0,
        };
        if access == Access::Demand {
            if self.hot.is_some() {
                self.warm();
            }
            if self.is_prefetched {
                // Its first use, which is what its coming in stood for.
                (self.is_prefetched, self.used) = (false, now);
                hit.was_prefetched = true;
            } else if now.is_apart(self.used) {
                (self.is_frequent, self.used) = (true, now);
                hit.note = Some(self.slot);
            } else if Feed::wants(self.key.id) {
                hit.merged = self.merge();
            }
        }
        hit
    }

    /// Takes a use down that is one with another; how many such are to be counted now.
    fn merge(&mut self) -> u8 {
        self.merged += 1;
        match self.merged {
            ..=SINGLY => 1,
            merged if merged < SINGLY + TOGETHER => 0,
            _ => {
                self.merged = SINGLY;
                TOGETHER
            }
        }
    }

    /// The copy of the content is worth its rounds again.
    pub(super) fn warm(&mut self) {
        self.heat = HEAT[self.class as usize];
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Shard {
    places: HashMap<u64, u32, BuildHasherDefault<AsIs>>,
    /// Places the map has had since it was last made smaller; what it says of itself sinks with what is removed.
    places_max: usize,
    entries: Vec<Entry>,
}

impl Shard {
    /// Looks a block up and notes the use. Uses of a block that follow each other at once are one.
    #[inline]
    pub(super) fn hit(&mut self, key: &Key, access: Access, now: Moment) -> Option<Hit> {
        Some(self.get_mut(key)?.hit(access, now))
    }

    /// Where the block of this identity lies, which may be another than the one of this key. Good until something comes or
    /// goes.
    #[inline]
    pub(super) fn place(&self, key: &Key) -> Option<u32> {
        self.places.get(&key.id).copied()
    }

    /// Whether the block that lies there is the one of this key.
    #[inline]
    pub(super) fn is_at(&self, place: u32, key: &Key) -> bool {
        self.entries[place as usize].key == *key
    }

    /// Notes the use of the block that lies there.
    pub(super) fn hit_at(&mut self, place: u32, access: Access, now: Moment) -> Hit {
        self.entries[place as usize].hit(access, now)
    }

    /// The block of this key.
    #[inline]
    pub(super) fn get_mut(&mut self, key: &Key) -> Option<&mut Entry> {
        let at = *self.places.get(&key.id)?;
        Some(&mut self.entries[at as usize]).filter(|entry| entry.key == *key)
    }

    /// The block of this identity.
    pub(super) fn by_id(&mut self, id: u64) -> Option<&mut Entry> {
        let at = *self.places.get(&id)?;
        Some(&mut self.entries[at as usize])
    }

    /// Whether the block of this identity is the one of this key, if there is one.
    pub(super) fn knows(&self, key: &Key) -> Option<bool> {
        let at = *self.places.get(&key.id)?;
        Some(self.entries[at as usize].key == *key)
    }

    /// Puts a block in; there is none of its identity.
    pub(super) fn insert(&mut self, entry: Entry) {
        if self.entries.len() == self.entries.capacity() {
            // An eighth, not the usual doubling: this is charged to the budget.
            self.entries.reserve_exact(self.entries.len() / 8 + 4);
        }
        let at = u32::try_from(self.entries.len()).expect("a shard holds fewer than four billion blocks");
        let before = self.places.insert(entry.key.id, at);
        debug_assert!(before.is_none(), "there is one block of an identity");
        self.entries.push(entry);
        self.places_max = self.places_max.max(self.places.capacity());
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<Entry> {
        let at = self.places.remove(&id)? as usize;
        let gone = self.entries.swap_remove(at);
        if let Some(moved) = self.entries.get(at) {
            self.places.insert(moved.key.id, at as u32);
        }
        Some(gone)
    }

    /// Takes the blocks of these keys out, as far as they are here.
    pub(super) fn remove_keys(&mut self, keys: &[Key]) -> Row<Entry> {
        // In steps, for the reason that `find_all` has.
        let places: Row<Option<u32>> = keys.iter().map(|key| self.place(key)).collect();
        let is_here = |at: &Option<u32>, key: &Key| at.is_some_and(|at| self.is_at(at, key));
        let here: Row<u64> =
            keys.iter().zip(&places).filter(|(key, at)| is_here(at, key)).map(|(key, _)| key.id).collect();
        here.into_iter().filter_map(|id| self.remove(id)).collect()
    }

    /// Takes some blocks of an opened pool out: of those that lie below `from`, which is where to go on afterwards.
    pub(super) fn remove_some(&mut self, origin: &Arc<Origin>, from: &mut usize) -> Together {
        // Downwards: what takes the place of one that goes was looked at already.
        let mut gone = Together::new();
        let mut at = self.entries.len().min(*from);
        let last = at.saturating_sub(LOOKED_AT_ONCE);
        while at > last && gone.len() < AT_ONCE {
            at -= 1;
            if Arc::ptr_eq(&self.entries[at].origin, origin) {
                gone.extend(self.remove(self.entries[at].key.id));
            }
        }
        *from = at;
        gone
    }

    /// What `pick` makes of some blocks, from the place `from` on, which is where to go on afterwards; and whether those were
    /// the last. A block that changes its place meanwhile may be missed.
    pub(super) fn some_that<T>(
        &self,
        from: &mut usize,
        pick: impl Fn(&Entry) -> Option<T>,
    ) -> (SmallVec<[T; AT_ONCE]>, bool) {
        let mut picked = SmallVec::new();
        let mut rest = self.entries.iter().skip(*from).take(LOOKED_AT_ONCE);
        while picked.len() < AT_ONCE
            && let Some(entry) = rest.next()
        {
            *from += 1;
            picked.extend(pick(entry));
        }
        (picked, *from >= self.entries.len())
    }

    pub(super) fn entries_mut(&mut self) -> &mut [Entry] {
        &mut self.entries
    }

    /// Whether a good part of its memory is for blocks that are gone.
    pub(super) fn is_loose(&self) -> bool {
        let len = self.entries.len();
        // A map doubles when it is full.
        self.entries.capacity() > len + len / 4 + FEW || self.places_max > 4 * (len + FEW)
    }

    pub(super) fn shrink(&mut self) {
        self.entries.shrink_to_fit();
        self.places.shrink_to_fit();
        self.places_max = self.places.capacity();
    }

    /// Bytes of memory behind it, without that of blocks. A map has a pair and a control byte for each place, and one
    /// place in eight is kept free.
    pub(super) fn memory(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>() + self.places_max * 8 / 7 * (size_of::<(u64, u32)>() + 1)
    }
}

/// Identities are hashes already.
#[derive(Debug, Default)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }
    #[inline]
    fn write_u64(&mut self, word: u64) {
        // The lowest bits are the same in all of a shard, and the map tells neighbours apart by the uppermost.
        self.0 = self.0.rotate_left(5) ^ word.rotate_right(32);
    }
}
