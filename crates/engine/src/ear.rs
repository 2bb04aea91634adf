//! What the engine hears of reads that went wrong, from whichever task read.
//!
//! ```text
//!   readers ─▶ EngineEar ─┬─▶ Reports: who refused, who lied, how often (devices::watch judges)
//!                         └─▶ wounds: blocks that some leaf holds wrongly, or that are lost (whoever heals takes them)
//! ```
//!
//! Readers never wait here. Both lists have a bound: a disk that lies about everything is found by its counters, and a
//! scrub finds what did not fit.
//!
//! Who reads as of an old state may find that the place was given to another block. Then all that have it seem to lie, so of
//! a block that nobody has it is held back who gave what, until whoever heals has found that it is still there. Their error
//! counters, which `zpool status` shows, do not wait for that.

use std::{
    collections::{BTreeSet, VecDeque},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use ondisk::blkptr::BlkPtr;
use parking_lot::Mutex;
use pool::{Ear, Wrong};
use tokio::sync::Notify;

use crate::{devices::diagnose::Reports, events::IoError};

/// Wounds that wait at most: some megabytes, and more than is healed between two transaction groups.
const WOUNDS_MAX: usize = 8192;

/// See the module.
#[derive(Debug)]
pub struct EngineEar {
    reports: Arc<Reports>,
    wounds: Mutex<Wounds>,
    wounded: Notify,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct Wounds {
    waiting: VecDeque<Wrong>,
    /// First address and birth of those that wait: one block is read by many.
    known: BTreeSet<(u32, u64, u64)>,
}

/// What tells a block from others; none for what has no address.
fn key(bp: &BlkPtr) -> Option<(u32, u64, u64)> {
    bp.dvas().next().map(|dva| (dva.vdev, dva.offset, bp.physical_birth()))
}

impl EngineEar {
    /// An ear that tells `reports` who did what.
    #[must_use]
    pub fn new(reports: Arc<Reports>) -> Arc<Self> {
        Arc::new(Self {
            reports,
            wounds: Mutex::default(),
            wounded: Notify::new(),
            dropped: AtomicU64::new(0),
        })
    }

    /// Takes up to `most` wounds, oldest first: blocks with leaves that hold them wrongly, and lost ones.
    pub fn take_wounds(&self, most: usize) -> Vec<Wrong> {
        let mut wounds = self.wounds.lock();
        let count = most.min(wounds.waiting.len());
        let taken: Vec<Wrong> = wounds.waiting.drain(..count).collect();
        for key in taken.iter().filter_map(|wrong| key(&wrong.bp)) {
            wounds.known.remove(&key);
        }
        taken
    }

    /// Whether there are any.
    #[must_use]
    pub fn has_wounds(&self) -> bool {
        !self.wounds.lock().waiting.is_empty()
    }

    /// Returns when there are some.
    pub async fn wounded(&self) {
        loop {
            let mut wounded = pin!(self.wounded.notified());
            // Before the look, so that what comes right after it is heard.
            wounded.as_mut().enable();
            if self.has_wounds() {
                return;
            }
            wounded.await;
        }
    }

    /// One that was taken cannot be healed: it waits for a scrub.
    pub(crate) fn give_up(&self, wound: &Wrong) {
        self.dropped.fetch_add(1, Relaxed);
        self.charge_lost(wound);
    }

    /// Tells who gave wrong bytes of a block that nobody has: it is still there, or nobody will find out.
    pub(crate) fn charge_lost(&self, wound: &Wrong) {
        if wound.is_lost {
            self.charge(wound);
        }
    }

    fn charge(&self, wrong: &Wrong) {
        for guid in &wrong.corrupt {
            self.reports.note(*guid, IoError::Checksum, Some(wrong.at), "checksum mismatch");
        }
    }

    /// Wounds that found no room, or that whoever heals gave up, and that wait for a scrub.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }
}

impl Ear for EngineEar {
    fn wrong(&self, wrong: Wrong) {
        for guid in &wrong.refused {
            self.reports.note(*guid, IoError::Read, Some(wrong.at), "a read was refused");
        }
        if !wrong.is_lost {
            self.charge(&wrong);
        }
        if wrong.corrupt.is_empty() && !wrong.is_lost {
            return;
        }
        let Some(key) = key(&wrong.bp) else { return self.charge_lost(&wrong) };
        {
            let mut wounds = self.wounds.lock();
            if wounds.waiting.len() >= WOUNDS_MAX {
                drop(wounds);
                return self.give_up(&wrong);
            }
            if !wounds.known.insert(key) {
                return;
            }
            wounds.waiting.push_back(wrong);
        }
        self.wounded.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use ondisk::{
        Order,
        blkptr::{Dva, Stored},
        dnode::ObjectType,
    };
    use pool::Bookmark;

    use super::*;

    fn wrong(offset: u64, corrupt: Vec<u64>, refused: Vec<u64>) -> Wrong {
        let dva = Dva { vdev: 0, offset, asize: 512, gang: false };
        let bp = BlkPtr::stored(&Stored {
            dvas: [dva, Dva::default(), Dva::default()],
            lsize: 512,
            psize: 512,
            compression_id: 2,
            checksum_id: 7,
            object_type: ObjectType::ZVOL,
            level: 0,
            dedup: false,
            order: Order::Little,
            birth: 9,
            physical_birth: 9,
            fill: 1,
            checksum: [1; 4],
        });
        Wrong { bp: bp.unwrap(), at: Bookmark::default(), corrupt, refused, is_lost: false }
    }

    #[tokio::test]
    async fn a_block_waits_once_and_refusals_are_only_counted() {
        let reports: Arc<Reports> = Arc::default();
        let ear = EngineEar::new(Arc::clone(&reports));
        ear.wrong(wrong(512, vec![5], vec![]));
        ear.wrong(wrong(512, vec![5], vec![6]));
        ear.wrong(wrong(1024, vec![], vec![6]));
        ear.wounded().await;
        assert_eq!(ear.take_wounds(10).len(), 1);
        assert!(!ear.has_wounds());
        let counted: Vec<_> = reports.take().into_iter().map(|r| (r.guid, r.error, r.count)).collect();
        assert_eq!(counted, [(5, IoError::Checksum, 2), (6, IoError::Read, 2)]);
        ear.wrong(wrong(512, vec![5], vec![]));
        assert!(ear.has_wounds(), "it was taken, and is wrong again");
        for n in 0..2 * WOUNDS_MAX as u64 {
            ear.wrong(wrong(n * 512, vec![5], vec![]));
        }
        assert_eq!(ear.take_wounds(usize::MAX).len(), WOUNDS_MAX);
        assert!(ear.dropped() > 0);
    }

    /// Ten reads that commits overtook, and a device that does what it should was called degraded.
    #[tokio::test]
    async fn of_a_block_that_nobody_has_it_is_held_back_who_was_wrong_if_somebody_will_look() {
        let reports: Arc<Reports> = Arc::default();
        let ear = EngineEar::new(Arc::clone(&reports));
        let lost = |number: u64| Wrong { is_lost: true, ..wrong(number * 512, vec![5], vec![6]) };
        let told = || reports.take().into_iter().map(|r| (r.guid, r.error, r.count)).collect::<Vec<_>>();
        ear.wrong(lost(0));
        assert_eq!(told(), [(6, IoError::Read, 1)], "it may be gone");
        ear.charge_lost(&ear.take_wounds(1)[0]);
        assert_eq!(told(), [(5, IoError::Checksum, 1)]);
        for number in 0..WOUNDS_MAX as u64 {
            ear.wrong(lost(number));
        }
        assert_eq!(told(), [(6, IoError::Read, WOUNDS_MAX as u64)]);
        ear.wrong(lost(WOUNDS_MAX as u64));
        assert_eq!(told(), [(5, IoError::Checksum, 1), (6, IoError::Read, 1)], "there is no room for it");
        assert_eq!(ear.dropped(), 1);
    }
}
