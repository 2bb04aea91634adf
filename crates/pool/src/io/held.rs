//! What of a pool's blocks is in memory: found there without a wait, and put there when it was read.

use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use ondisk::blkptr::BlkPtr;

use super::{
    Bookmark, Shared,
    content::{decompress, is_compressed},
    pointers::{Pointers, copy_of, unpacked},
};
use crate::cache::{Access, Caching, Class, Found, Fresh, Key, Memory, Row, Uses, is_servable};

impl Shared {
    pub(super) fn counts(&self) -> bool {
        self.counting.load(Relaxed)
    }

    /// What the content is cached under; `None` for what needs no device.
    pub(super) fn key(&self, bp: &BlkPtr) -> Option<Key> {
        Key::of(bp, &self.origin)
    }

    /// The content, if it is in memory, in whatever form.
    pub(super) fn find(&self, bp: &BlkPtr, access: Access) -> Option<Bytes> {
        let key = self.key(bp)?;
        self.content(bp, &key, access, self.cache.find(&key, access))
    }

    /// The same, to be counted later.
    pub(super) fn find_for(&self, bp: &BlkPtr, access: Access, uses: &mut Uses) -> Option<Bytes> {
        let key = self.key(bp)?;
        self.content(bp, &key, access, self.cache.find_for(&key, access, uses))
    }

    /// The same of an indirect block, whose pointers are wanted.
    pub(super) fn find_pointers(&self, bp: &BlkPtr, access: Access) -> Option<Pointers> {
        let key = self.key(bp)?;
        self.pointers(bp, &key, access, self.cache.find(&key, access))
    }

    /// The same, to be counted later.
    pub(super) fn find_pointers_for(&self, bp: &BlkPtr, access: Access, uses: &mut Uses) -> Option<Pointers> {
        let key = self.key(bp)?;
        self.pointers(bp, &key, access, self.cache.find_for(&key, access, uses))
    }

    /// The same for several, if all of them are.
    pub(super) fn find_all(
        &self,
        pointers: &[BlkPtr],
        access: Access,
        uses: &mut Uses,
    ) -> Option<Row<Bytes>> {
        let keys = pointers.iter().map(|bp| self.key(bp)).collect::<Option<Row<Key>>>()?;
        let found = self.cache.find_all(&keys, access, uses)?.into_iter();
        let blocks = pointers.iter().zip(&keys).zip(found);
        blocks.map(|((bp, key), found)| self.content(bp, key, access, found)).collect()
    }

    /// The same for several, each that is.
    pub(super) fn find_each(
        &self,
        pointers: &[BlkPtr],
        access: Access,
        uses: &mut [Uses],
    ) -> Row<Option<Bytes>> {
        let Some(keys) = pointers.iter().map(|bp| self.key(bp)).collect::<Option<Row<Key>>>() else {
            let each = pointers.iter().zip(uses);
            return each.map(|(bp, uses)| self.find_for(bp, access, uses)).collect();
        };
        let mut contents: Row<Option<Bytes>> = Row::with_capacity(keys.len());
        for ((bp, key), found) in pointers.iter().zip(&keys).zip(self.cache.find_each(&keys, access, uses)) {
            // Of several reads of one compressed block the first decompresses it.
            let before = match found {
                Found::Stored(_) => keys[..contents.len()].iter().position(|before| before == key),
                Found::Content(_) | Found::Packed(_) | Found::Nothing => None,
            };
            let known = before.and_then(|before| contents[before].clone());
            contents.push(known.or_else(|| self.content(bp, key, access, found)));
        }
        contents
    }

    /// The same of indirect blocks, whose pointers are wanted. Each is asked for once.
    pub(super) fn find_each_pointers(
        &self,
        pointers: &[BlkPtr],
        access: Access,
        uses: &mut [Uses],
    ) -> Row<Option<Pointers>> {
        let Some(keys) = pointers.iter().map(|bp| self.key(bp)).collect::<Option<Row<Key>>>() else {
            let each = pointers.iter().zip(uses);
            return each.map(|(bp, uses)| self.find_pointers_for(bp, access, uses)).collect();
        };
        let found = self.cache.find_each(&keys, access, uses).into_iter();
        let blocks = pointers.iter().zip(&keys).zip(found);
        blocks.map(|((bp, key), found)| self.pointers(bp, key, access, found)).collect()
    }

    pub(super) fn content(&self, bp: &BlkPtr, key: &Key, access: Access, found: Found) -> Option<Bytes> {
        match found {
            Found::Content(content) => Some(content),
            Found::Packed(packed) => unpacked(bp, &packed),
            Found::Stored(raw) => {
                // It was verified when it came in.
                let content = decompress(bp, raw).ok()?;
                if access == Access::Demand {
                    self.cache.warm(key, Class::of(bp), copy_of(bp, &content));
                }
                Some(content)
            }
            Found::Nothing => None,
        }
    }

    pub(super) fn pointers(&self, bp: &BlkPtr, key: &Key, access: Access, found: Found) -> Option<Pointers> {
        match found {
            Found::Packed(packed) => Some(Pointers::Packed(packed)),
            found => self.content(bp, key, access, found).map(Pointers::Plain),
        }
    }

    /// A block was not here and is read.
    pub(super) fn count_miss(&self, bp: &BlkPtr, at: Bookmark, access: Access) {
        let class = Class::of(bp);
        self.cache.count_miss(access, class);
        if !self.wishes.of(at.objset).caching.primary.wants(class == Class::Metadata) {
            self.cache.count_unkept(access, class);
        }
    }

    /// Puts a verified block into the cache, if its dataset wants that.
    pub(super) fn keep(
        &self,
        bp: &BlkPtr,
        at: Bookmark,
        access: Access,
        stored: Option<Bytes>,
        content: Option<Bytes>,
        memory: Memory<'_>,
    ) {
        let caching = self.wishes.of(at.objset).caching;
        if let Some(fresh) = self.fresh(bp, at, caching, access, (stored, content), memory) {
            self.cache.insert(fresh);
        }
    }

    /// A block for the cache, if its dataset wants that.
    pub(super) fn fresh<'a>(
        &'a self,
        bp: &BlkPtr,
        at: Bookmark,
        caching: Caching,
        access: Access,
        (stored, content): (Option<Bytes>, Option<Bytes>),
        memory: Memory<'a>,
    ) -> Option<Fresh<'a>> {
        let class = Class::of(bp);
        let is_metadata = class == Class::Metadata;
        caching.primary.wants(is_metadata).then_some(())?;
        Some(Fresh {
            key: self.key(bp)?,
            origin: &self.origin,
            class,
            // A block has at most 16 MiB.
            lsize: bp.lsize() as u32,
            compress: bp.compression_id(),
            is_compressed: is_compressed(bp),
            level: bp.level(),
            objset: at.objset,
            access,
            is_eligible: caching.secondary.wants(is_metadata) && is_servable(bp),
            // Beside the stored form it is a copy.
            content: content.map(|content| if stored.is_some() { copy_of(bp, &content) } else { content }),
            stored,
            memory,
        })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Nobody else can ask for them: the next opening has another salt.
        self.cache.forget_all(&self.origin);
    }
}
