//! The end of a transaction group, as far as its blocks go: metadata that waited is written, and all of it is on stable
//! media, or is waited for.
//!
//! ```text
//!   metadata in order of address ─▶ drain ─▶ flush ─▶ can each block be read back? ──yes──▶ done
//!                                     ▲                   │ no: leaves that are back are given what they lack
//!                                     └── suspended until ◀┘ still no
//!                                         devices are there
//! ```
//!
//! Long groups are secured on the way as well, because what a leaf may have to be given again is in memory until then.

use std::collections::BTreeSet;

use bytes::Bytes;
use ondisk::blkptr::Dva;
use pool::{WrittenBlock, vdev::Vdev};

use super::{
    BlockWriter, Extents, Written,
    batch::LOOK_EVERY,
    devices::Tops,
    gang::Sums,
    overlay::NOWHERE,
    store::{Pending, is_kept, touch},
};
use crate::EngineError;

/// Attempts to write to a device that refuses, before copies elsewhere have to do at the end of a transaction group.
const ROUNDS_TO_LOOK: u32 = 3;

/// How much of a transaction group is made safe.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Secured {
    /// What was written so far; more is to come.
    SoFar,
    All,
}

impl<S: Extents> BlockWriter<S> {
    /// Everything written is on stable media when this returns.
    pub async fn finish(&mut self) -> Result<Written, EngineError> {
        let pending = std::mem::take(&mut self.pending);
        self.contents = 0;
        let salt = self.io.salt().copied();
        let mut extents: Vec<(Dva, Bytes)> = Vec::with_capacity(pending.len() * 2);
        for block in pending.values() {
            self.written.blocks += 1;
            self.written.bytes += block.data.len() as u64;
            touch(&mut self.touched, &block.shape);
            let sums = Sums { algorithm: block.policy.checksum, salt: salt.as_ref(), txg: self.txg };
            block.shape.fill(&block.data, sums, &mut |dva, data| {
                extents.push((*dva, data.clone()));
                Ok(())
            })?;
        }
        extents.sort_unstable_by_key(|(dva, _)| (dva.vdev, dva.offset));
        for (number, (dva, data)) in extents.into_iter().enumerate() {
            self.devices.put(&dva, &data, NOWHERE)?;
            if number % LOOK_EVERY == LOOK_EVERY - 1 || self.devices.leaves.is_full() {
                self.make_room().await?;
            }
        }
        self.secure(Secured::All).await?;
        let kept = pending.into_values().map(|Pending { bp, at, content, data, .. }| WrittenBlock {
            bp,
            at,
            content,
            stored: Some(data),
        });
        self.io.remember(kept.filter(is_kept));
        self.overlay.clear();
        self.moved.clear();
        self.gangs.clear();
        self.written.device_bytes = self.devices.leaves.device_bytes();
        Ok(self.written)
    }

    /// Waits until everything that was written is on stable media, on as many leaves as are needed to read it back. A
    /// top-level device that is away as a whole is waited for even if all its blocks have copies elsewhere: without it
    /// the pool could not be opened again. One that is there and refuses may be done without when nothing more of the
    /// transaction group is to come ([`Secured::All`]): what is forgotten here it can never be given again, and the only copy
    /// of a later block may have its place there.
    async fn secure(&mut self, what: Secured) -> Result<(), EngineError> {
        for round in 0_u32.. {
            let before = self.suspension.before();
            self.devices.leaves.drain().await;
            self.devices.leaves.flush().await;
            if self.stands_in_the_way(false).is_none() {
                break;
            }
            self.recall()?;
            if self.devices.leaves.can_catch_up() {
                self.devices.leaves.catch_up().await;
                self.devices.leaves.flush().await;
            }
            let Some(why) = self.stands_in_the_way(what == Secured::All && round >= ROUNDS_TO_LOOK) else {
                break;
            };
            self.suspension.wait(before, why).await?;
        }
        self.entered.clear();
        self.devices.leaves.secured();
        Ok(())
    }

    /// Why what was written is not safe yet. `have_tried`: devices that are there and refuse may be done without.
    fn stands_in_the_way(&self, have_tried: bool) -> Option<EngineError> {
        if let Err(lost) = self.devices.check(&self.touched) {
            return Some(lost);
        }
        if !self.suspension.is_patient() {
            return None;
        }
        let tree = self.io.tree();
        let is_missed = |id: u32| {
            // Whether it is away is known only after somebody has looked.
            !have_tried || !tree.top(id.into()).is_some_and(Vdev::is_readable)
        };
        let tops: BTreeSet<u32> = self.touched.iter().flatten().copied().collect();
        let one = |id: u32| BTreeSet::from([Tops::from_slice(&[id])]);
        tops.into_iter().find_map(|id| self.devices.check(&one(id)).err().filter(|_| is_missed(id)))
    }

    /// Secures what was written so far if it has become much.
    pub(super) async fn secure_some(&mut self) -> Result<(), EngineError> {
        if self.devices.leaves.is_history_long() { self.secure(Secured::SoFar).await } else { Ok(()) }
    }
}
