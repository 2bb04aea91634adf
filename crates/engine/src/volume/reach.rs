//! Whether what leads to a changed block can be read, asked before the change is accepted.
//!
//! A transaction group reads the indirect blocks above all that changed. One that it cannot read is the end of the pool for
//! everybody; found out here it is an error of this request. Those are read for the group anyway, so as a rule it costs
//! nothing but that they are read earlier, and what was read once is remembered.
//!
//! Devices that are away are waited for, as the group would: only what is lost for good is an error. Who waits is told when
//! changes fail instead.

use std::{
    fmt,
    ops::Range,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use block::VolumeError;
use pool::dmu::{Cursor, Object, Step};

use super::{Current, LiveVolume, piece::Piece, read::RETRIES};

/// Places for indirect blocks of level 1. Each is above 1024 blocks, as a rule.
const PLACES: usize = 512;

/// Indirect blocks of level 1 that were read.
pub(super) struct Reach {
    /// By the low bits of their number, and one more than that; 0 for none.
    seen: Box<[AtomicU64]>,
}

impl Default for Reach {
    fn default() -> Self {
        Self { seen: (0..PLACES).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl fmt::Debug for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reach")
    }
}

impl Reach {
    fn place(&self, above: u64) -> &AtomicU64 {
        &self.seen[above as usize % PLACES]
    }

    fn knows(&self, above: u64) -> bool {
        self.place(above).load(Relaxed) == above.wrapping_add(1)
    }

    fn note(&self, above: u64) {
        self.place(above).store(above.wrapping_add(1), Relaxed);
    }

    /// The content is another one.
    pub(super) fn forget(&self) {
        self.seen.iter().for_each(|place| place.store(0, Relaxed));
    }
}

/// What a piece changes as a whole. Of partial blocks the base is read, or they are in memory, and were asked for then.
fn changed(piece: &Piece) -> impl Iterator<Item = Range<u64>> {
    let whole = piece.whole.iter().map(|(blkid, _)| *blkid..blkid + 1);
    whole.chain(piece.freed.iter().filter(|_| !piece.is_reached).cloned())
}

impl LiveVolume {
    /// Whether the pointers of all that `piece` changes are known to be readable, or at hand.
    pub(super) fn is_reached(&self, piece: &Piece) -> bool {
        let current = self.current.load();
        let data = current.volume.data();
        self.unknown(data, piece, |above, blkid| {
            let at_hand = Cursor::default().step(data, 0, blkid, |pointer| data.source().pointers(pointer));
            let is_there = matches!(at_hand, Ok(Step::Block(_) | Step::Hole { .. }));
            if is_there {
                self.note(&current, above);
            }
            is_there
        })
    }

    /// Reads the pointers of all that `piece` changes.
    ///
    /// # Errors
    /// [`VolumeError::Unreadable`], or what changes fail with.
    pub(super) async fn find_pointers(&self, piece: &Piece) -> Result<(), VolumeError> {
        let mut wanted = Vec::new();
        self.unknown(self.current.load().volume.data(), piece, |above, blkid| {
            wanted.push((above, blkid));
            true
        });
        if wanted.is_empty() {
            return Ok(());
        }
        self.txgs.as_long_as_taken(self.read_pointers(&wanted)).await
    }

    /// Reads the pointers of blocks that are below these indirect blocks.
    async fn read_pointers(&self, wanted: &[(u64, u64)]) -> Result<(), VolumeError> {
        let mut tries = 0;
        'again: loop {
            let current = self.current.load_full();
            let data = current.patient.data();
            for (above, blkid) in wanted {
                match data.seek(&mut Cursor::default(), 0, *blkid).await {
                    Ok(_) => self.note(&current, *above),
                    Err(_) if tries < RETRIES && self.current.load().generation != current.generation => {
                        tries += 1;
                        continue 'again;
                    }
                    Err(error) => {
                        let offset = blkid.saturating_mul(self.block);
                        return Err(VolumeError::Unreadable { offset, detail: error.to_string() });
                    }
                }
            }
            return Ok(());
        }
    }

    /// Remembers what was read of `current`, unless the content is another one by now: that is forgotten or will be.
    fn note(&self, current: &Current, above: u64) {
        let _updating = self.updating.lock();
        if self.current.load().generation == current.generation {
            self.reach.note(above);
        }
    }

    /// Asks `each` for every indirect block of level 1 above what `piece` changes that was not read yet, with a block
    /// below it, as long as it says yes; whether it always did.
    fn unknown(&self, data: &Object, piece: &Piece, mut each: impl FnMut(u64, u64) -> bool) -> bool {
        if data.levels() < 2 {
            return true;
        }
        let (fanout, mut last) = (data.fanout(), None);
        for blocks in changed(piece) {
            for above in fanout.ancestor(blocks.start, 1)..=fanout.ancestor(blocks.end - 1, 1) {
                if last.replace(above) == Some(above) || self.reach.knows(above) {
                    continue;
                }
                let blkid = blocks.start.max(fanout.first_descendant(above, 1));
                if !each(above, blkid) {
                    return false;
                }
            }
        }
        true
    }
}
