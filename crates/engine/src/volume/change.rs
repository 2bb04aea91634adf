//! Changing: a piece of a request into the open transaction group.
//!
//! ```text
//!   bases of partial blocks ─▶ hold the open group ─▶ lock ─▶ still true? ─▶ insert ─▶ unlock
//!            ▲                                                  │ no
//!            └──────────────────────────────────────────────────┘
//! ```
//!
//! A block of which a part changes needs its other bytes. If it is in memory they are taken from there, under the
//! lock. If not, they are read before anything is held, so that a slow disk delays nobody else; what was read is
//! good if at the time of the insertion the block is still not in memory and the committed state is still the one
//! it was read from. Otherwise it is done again, and from the third time on with the group held while reading:
//! then at most two more states can be committed, so it ends.
//!
//! Devices that are away are waited for, as the group would that is to write the block, and as long as changes are taken.
//!
//! Locks: `memory`, under which nothing waits and nothing but the loads of `current` happens.

use std::sync::atomic::Ordering;

use block::{BlockVolume as _, Segment, VolumeError};
use pool::vdev::deadline;

use super::{
    LiveVolume,
    content::{self, Content},
    memory::{Memory, Replaced, Version},
    piece::{Base, Partial, Piece},
};
use crate::txg::{Above, Cost, Tx};

/// After this many failed attempts the transaction group is held while bases are read.
const PATIENCE: usize = 2;

/// Bytes of metadata that a changed block may add beyond a sixteenth of its own: pointers in two copies of an
/// indirect block. That all of that block is written anew is announced as well: [`Above`].
const METADATA_BYTES: u64 = 512;

/// Bytes of memory that a range of blocks costs that become holes: one in what is changed and one in what is not logged.
/// Without a price a client could have millions of them remembered, and nobody would write them out.
pub(super) const FREED_BYTES: u64 = 128;

/// Bytes of memory that each block costs that is there and goes, from the sync of its transaction group to the end of it:
/// its range in the allocator and in a space map that waits to be written, 100 to 150 bytes where neighbours in the volume
/// are not neighbours on the devices; and as much again on the list of what only a snapshot still has. With a price a
/// discard of any length is spread over as many groups as there is memory for.
pub(crate) const FREED_BLOCK_BYTES: u64 = 256;

/// The part of an indirect block above a change that is in memory from when it is written anew to the end of its transaction
/// group: one full of pointers compresses to 0.35 to 0.5 of its size, by the number of copies.
pub(super) const INDIRECT_PART: u64 = 2;

/// What came of an attempt.
#[derive(Debug, PartialEq, Eq)]
enum Attempt {
    /// It is done.
    Done,
    /// A newer group has changes already, or a block counts more by now.
    Late,
    /// The base of a partial block is no longer true, or there is none yet.
    Stale,
}

/// Bytes of the pool that are announced for a block which counts `block`.
fn announced(block: u64) -> u64 {
    block + block / 16 + METADATA_BYTES
}

impl LiveVolume {
    /// Does all of `piece`, without waiting if it can.
    ///
    /// # Errors
    /// As those of [`BlockVolume::write`](block::BlockVolume::write); then nothing of it was done.
    pub(super) async fn apply(&self, mut piece: Piece) -> Result<(), VolumeError> {
        self.find_pointers(&piece).await?;
        // With what was announced for it.
        let mut held: Option<(Tx, (Cost, u64))> = None;
        let mut patience = PATIENCE;
        for attempt in 0.. {
            let (cost, price) = held.as_ref().map_or_else(|| self.cost(&piece), |(_, cost)| *cost);
            if attempt >= patience && held.is_none() {
                held = Some((self.txgs.assign(cost).await?, (cost, price)));
            }
            // On an error the transaction group keeps what was announced until it is synced, which is harmless.
            match held.take() {
                None => self.find_bases_unheld(&mut piece).await?,
                Some((tx, _)) => {
                    let found = self.txgs.as_long_as_taken(self.find_bases(&mut piece, true));
                    match deadline::within(found, deadline::WRITE).await {
                        Some(found) => {
                            found?;
                            held = Some((tx, (cost, price)));
                        }
                        // The group cannot wait for long for devices that are away, or answer nobody: others want it synced.
                        None => {
                            self.give_back(&tx, cost.dirty, cost.space);
                            drop(tx);
                            self.find_bases_unheld(&mut piece).await?;
                        }
                    }
                }
            }
            let tx = match held.take().map(|(tx, _)| tx).or_else(|| self.txgs.try_assign(cost)) {
                Some(tx) => tx,
                None => {
                    // Who waits for room in memory does not take any meanwhile: a client may have a thousand bytes written
                    // to as many blocks at a time. What was read is in the cache, as a rule; if not, it is read again
                    // with the group held, rather than waiting twice.
                    piece.forget_bases();
                    let tx = self.txgs.assign(cost).await?;
                    patience = attempt;
                    self.find_bases_at_hand(&mut piece);
                    tx
                }
            };
            match self.insert(&tx, &mut piece, price)? {
                Attempt::Done => break,
                Attempt::Stale if attempt >= patience => held = Some((tx, (cost, price))),
                Attempt::Stale | Attempt::Late => self.give_back(&tx, cost.dirty, cost.space),
            }
        }
        Ok(())
    }

    /// Does all of `piece` if nothing has to be waited for; gives it back if something has.
    pub(super) fn apply_now(&self, mut piece: Piece) -> Result<Option<Piece>, VolumeError> {
        if !self.find_bases_at_hand(&mut piece) || !self.is_reached(&piece) {
            return Ok(Some(piece));
        }
        let (cost, price) = self.cost(&piece);
        let Some(tx) = self.txgs.try_assign(cost) else { return Ok(Some(piece)) };
        match self.insert(&tx, &mut piece, price)? {
            Attempt::Done => Ok(None),
            Attempt::Late | Attempt::Stale => {
                self.give_back(&tx, cost.dirty, cost.space);
                Ok(Some(piece))
            }
        }
    }

    /// The most that `piece` may need, and what a block was taken to count.
    fn cost(&self, piece: &Piece) -> (Cost, u64) {
        let blocks = piece.blocks();
        let current = self.current.load();
        let block = current.service.block_space;
        let dnode = current.volume.data().dnode();
        let above = Above {
            memory: dnode.indirect_block_bytes() / INDIRECT_PART,
            ..piece.above(dnode.fanout(), current.service.indirect_space)
        };
        let freed = FREED_BYTES * piece.freed.len() as u64;
        let freed = freed.saturating_add(FREED_BLOCK_BYTES.saturating_mul(piece.weight));
        let dirty = blocks.saturating_mul(self.block).saturating_add(freed);
        (Cost { dirty, space: blocks.saturating_mul(announced(block)), above }, block)
    }

    fn give_back(&self, tx: &Tx, bytes: u64, space: u64) {
        if bytes > 0 || space > 0 {
            self.txgs.give_back(tx.txg(), bytes, space);
        }
    }

    /// Makes the new content of partial blocks from what is committed, where memory does not have them. What is made
    /// before there is room for it (`is_counted`) is not kept while a device is waited for.
    async fn find_bases(&self, piece: &mut Piece, is_counted: bool) -> Result<(), VolumeError> {
        for number in 0..piece.partial.len() {
            if self.find_base_at_hand(&mut piece.partial[number]) {
                continue;
            }
            if !is_counted {
                piece.forget_bases();
            }
            let partial = &mut piece.partial[number];
            let offset = partial.blkid * self.block;
            let (generation, old) = self.read_patiently(offset, self.block as usize).await?;
            partial.base = Some(Base { generation, content: self.made_from(partial, &old) });
        }
        // One that was forgotten is in the cache, as a rule.
        self.find_bases_at_hand(piece);
        Ok(())
    }

    /// The same before there is room for it, as long as changes are taken.
    async fn find_bases_unheld(&self, piece: &mut Piece) -> Result<(), VolumeError> {
        if self.find_bases_at_hand(piece) {
            return Ok(());
        }
        self.txgs.as_long_as_taken(self.find_bases(piece, false)).await
    }

    /// The same as far as nothing has to be waited for: false if some are missing, which the insertion finds out as well.
    fn find_bases_at_hand(&self, piece: &mut Piece) -> bool {
        piece.partial.iter_mut().all(|partial| self.find_base_at_hand(partial))
    }

    /// The same for one, without waiting: false if it would have to be read.
    fn find_base_at_hand(&self, partial: &mut Partial) -> bool {
        if self.memory.read().knows(partial.blkid) {
            partial.base = None;
            return true;
        }
        // Loaded after memory was asked: see `read`.
        let current = self.current.load();
        let generation = current.generation;
        if partial.base.as_ref().is_some_and(|base| base.generation == generation) {
            return true;
        }
        let offset = partial.blkid * self.block;
        let Some(old) = current.volume.read_cached(offset, self.block as usize) else { return false };
        partial.base = Some(Base { generation, content: self.made_from(partial, &old) });
        true
    }

    /// The block with the change; `None` if it is a hole and stays one.
    fn made_from(&self, partial: &Partial, old: &[Segment]) -> Option<Content> {
        if partial.keeps_holes && old.iter().all(|segment| matches!(segment, Segment::Zero(_))) {
            return None;
        }
        Some(Content::over(old, self.block as usize, partial.at, &partial.data))
    }

    /// The step under the lock. `piece` is used up if it was done, and as before if not. `price` is what was announced for
    /// a block.
    fn insert(&self, tx: &Tx, piece: &mut Piece, price: u64) -> Result<Attempt, VolumeError> {
        let txg = tx.txg();
        let mut replaced = Replaced::new();
        // Blocks that were dirty in this group already, or stay holes: what they were announced for then is enough. And what
        // is freed takes no memory any more; what was announced for it stays, that may have been at another price.
        let (mut spare, mut gone, mut merged) = (piece.blocks(), 0, 0);
        {
            let mut memory = self.memory.write();
            let current = self.current.load();
            // Whoever closes or shrinks the volume does it under the lock: nothing comes after it.
            self.check_open()?;
            current.check_blocks(piece, self.block)?;
            if memory.is_ahead_of(txg) || current.service.block_space > price {
                return Ok(Attempt::Late);
            }
            let is_stale = |partial: &Partial| {
                let base = partial.base.as_ref().map(|base| base.generation);
                base != Some(current.generation) && !memory.knows(partial.blkid)
            };
            if piece.partial.iter().any(is_stale) {
                return Ok(Attempt::Stale);
            }
            for partial in piece.partial.drain(..) {
                spare -= u64::from(self.change_part(&mut memory, txg, partial, &mut replaced));
            }
            for (blkid, content) in piece.whole.drain(..) {
                let within = 0..content.len();
                spare -= u64::from(memory.put(txg, blkid, content, within, &mut replaced));
            }
            for blocks in piece.freed.drain(..) {
                let (were_dirty, is_one_more) = memory.free(txg, blocks, &mut replaced);
                gone += were_dirty;
                merged += u64::from(!is_one_more);
            }
            self.groups.store(memory.len(), Ordering::Release);
        }
        drop(replaced);
        self.give_back(tx, (spare + gone) * self.block + merged * FREED_BYTES, spare * announced(price));
        Ok(Attempt::Done)
    }

    /// Changes a part of a block; true if the block was not dirty in this group before.
    fn change_part(&self, memory: &mut Memory, txg: u64, partial: Partial, replaced: &mut Replaced) -> bool {
        let Partial { blkid, at, data, keeps_holes, base } = partial;
        let block = self.block as usize;
        // Before `find`, whose clone would keep it from being changed where it is.
        if memory.patch(txg, blkid, at, &data, replaced) {
            return false;
        }
        let content = match memory.find(blkid) {
            Some(Version::Data(old)) => Some(Content::over(&[Segment::Data(old)], block, at, &data)),
            Some(Version::Hole) if keeps_holes => None,
            Some(Version::Hole) => Some(Content::over(&[Segment::Zero(block)], block, at, &data)),
            None => base.and_then(|base| base.content),
        };
        let within = at..at + content::bytes(&data);
        content.is_some_and(|content| memory.put(txg, blkid, content, within, replaced))
    }
}
