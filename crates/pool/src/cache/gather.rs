//! Gives blocks other memory, so that huge pages in which few are left become free.

use std::mem::replace;

use bytes::Bytes;
use disk::IoBuf;

use super::{BlockCache, shard::Entry};

impl BlockCache {
    /// Moves what lies in memory that is to be given back ([`disk::is_leaving`]), in steps between which others get their
    /// turn: a cache may hold tens of millions of blocks.
    pub async fn gather(&self) {
        let mut place = (0, 0);
        while self.gather_some(&disk::is_leaving, &mut place) {
            tokio::task::yield_now().await;
        }
    }

    /// Moves some of what `is_leaving`, from a `place` on that was (0, 0) at first; false if that were the last.
    pub(super) fn gather_some(&self, is_leaving: &dyn Fn(&[u8]) -> bool, place: &mut (usize, usize)) -> bool {
        let (shard, from) = place;
        let Some(blocks) = self.shards.get(*shard) else { return false };
        let (leaving, is_last) = blocks.lock().some_that(from, |entry| {
            copies(entry).find(|bytes| is_leaving(bytes)).map(|bytes| (entry.key.id, bytes.clone()))
        });
        for (id, bytes) in leaving {
            let own = IoBuf::from_slice(&bytes).freeze();
            let mut blocks = blocks.lock();
            let is_it = |other: &&mut Bytes| other.as_ptr() == bytes.as_ptr() && other.len() == bytes.len();
            let place = blocks.by_id(id).and_then(|entry| copies_mut(entry).find(is_it));
            // Dropped after the lock.
            let _before = place.map(|place| replace(place, own));
            drop(blocks);
        }
        if is_last {
            (*shard, *from) = (*shard + 1, 0);
        }
        true
    }
}

/// The forms of a block that have memory of their own.
fn copies(entry: &Entry) -> impl Iterator<Item = &Bytes> {
    [entry.hot.as_ref(), Some(&entry.held).filter(|_| entry.transfer.is_none())].into_iter().flatten()
}

fn copies_mut(entry: &mut Entry) -> impl Iterator<Item = &mut Bytes> {
    let is_whole = entry.transfer.is_none();
    [entry.hot.as_mut(), Some(&mut entry.held).filter(|_| is_whole)].into_iter().flatten()
}
