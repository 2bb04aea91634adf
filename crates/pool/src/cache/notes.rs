//! What hits leave behind: a note for the policy, and counts. Each thread writes to a stripe of its own, so that cores
//! that only hit share no line that is written.

use std::{
    cell::Cell,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use ::cache::{HitBuffer, Slot};

use super::{Access, Class, shard::Hit};

/// Stripes, a power of two. More threads than this share some.
const STRIPES: usize = 16;
/// Hits of a stripe between two looks at the time.
const LOOK_EVERY: u64 = 32;
/// In a note: the slot is one of metadata.
const METADATA: u32 = 1 << 31;

/// One stripe.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Stripe {
    pub(super) notes: HitBuffer,
    /// By access, class, and whether it was frequent.
    hits: [[[AtomicU64; 2]; 2]; 2],
    /// By access and class.
    misses: [[AtomicU64; 2]; 2],
    /// Misses of data that somebody waited for and that may not be kept.
    unkept: AtomicU64,
    /// Those that found a read on its way, likewise.
    waits: [[AtomicU64; 2]; 2],
    /// First uses of what was read ahead.
    useful: AtomicU64,
    /// Requests by what they are to streams, and blocks that were to be read ahead.
    followed: [AtomicU64; 4],
    ahead: AtomicU64,
}

/// What a request is to the streams of its volume's readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Followed {
    /// A stream goes on with it.
    Hit,
    /// It is the next of those at one distance from each other.
    Stride,
    /// A stream had come by before.
    Past,
    /// None of these: it may begin one.
    Miss,
}

/// Blocks that were found for one request and are not counted yet, by class and whether they were frequent: a request that
/// lacks one of its blocks looks all of them up again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uses([[u32; 2]; 2]);

impl Uses {
    #[inline]
    pub(super) fn add(&mut self, hit: &Hit) {
        self.0[hit.class as usize][usize::from(hit.was_frequent)] += 1;
    }

    /// Those of another as well.
    pub fn join(&mut self, other: &Self) {
        let other = other.0.as_flattened();
        self.0.as_flattened_mut().iter_mut().zip(other).for_each(|(mine, other)| *mine += other);
    }
}

impl Stripe {
    /// Notes a hit; true if the notes should be played.
    #[inline]
    pub(super) fn note(&self, hit: &Hit) -> bool {
        if hit.was_prefetched {
            self.useful.fetch_add(1, Relaxed);
        }
        hit.note.is_some_and(|slot| self.notes.note(note(hit.class, slot)))
    }

    /// Counts hits; true if it is time to look at the time.
    #[inline]
    pub(super) fn count(&self, access: Access, uses: &Uses) -> bool {
        let counters = self.hits[access as usize].as_flattened();
        let mut look = false;
        for (counter, uses) in counters.iter().zip(uses.0.as_flattened()) {
            if *uses > 0 {
                let before = counter.fetch_add(u64::from(*uses), Relaxed);
                look |= before.next_multiple_of(LOOK_EVERY) < before + u64::from(*uses);
            }
        }
        look
    }

    pub(super) fn miss(&self, access: Access, class: Class) {
        self.misses[access as usize][class as usize].fetch_add(1, Relaxed);
    }

    pub(super) fn unkept(&self, access: Access, class: Class) {
        if (access, class) == (Access::Demand, Class::Data) {
            self.unkept.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn followed(&self, followed: Followed) {
        self.followed[followed as usize].fetch_add(1, Relaxed);
    }

    pub(super) fn ahead(&self, blocks: u64) {
        self.ahead.fetch_add(blocks, Relaxed);
    }

    pub(super) fn wait(&self, access: Access, class: Class) {
        self.waits[access as usize][class as usize].fetch_add(1, Relaxed);
    }
}

fn note(class: Class, slot: Slot) -> Slot {
    match class {
        Class::Data => slot,
        Class::Metadata => Slot(slot.0 | METADATA),
    }
}

/// Class and slot of a note.
pub(super) fn noted(note: Slot) -> (Class, Slot) {
    match note.0 & METADATA {
        0 => (Class::Data, note),
        _ => (Class::Metadata, Slot(note.0 & !METADATA)),
    }
}

/// All stripes.
#[derive(Debug)]
pub(super) struct Stripes {
    stripes: Box<[Stripe]>,
    /// The stripe whose notes are played next by somebody else than its threads.
    turn: AtomicUsize,
}

/// The sum of what the stripes counted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    pub(super) hits: [[[u64; 2]; 2]; 2],
    pub(super) misses: [[u64; 2]; 2],
    pub(super) waits: [[u64; 2]; 2],
    pub(super) useful: u64,
    pub(super) followed: [u64; 4],
    pub(super) ahead: u64,
}

impl Stripes {
    pub(super) fn new() -> Self {
        Self { stripes: (0..STRIPES).map(|_| Stripe::default()).collect(), turn: AtomicUsize::new(0) }
    }

    /// This thread's.
    #[inline]
    pub(super) fn mine(&self) -> &Stripe {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
        }
        let number = NUMBER.with(|cell| {
            if cell.get() == usize::MAX {
                cell.set(THREADS.fetch_add(1, Relaxed));
            }
            cell.get()
        });
        &self.stripes[number % STRIPES]
    }

    /// One after the other, for whoever holds the lock of the policies: notes of a thread that went quiet are played,
    /// too.
    pub(super) fn next(&self) -> &Stripe {
        &self.stripes[self.turn.fetch_add(1, Relaxed) % STRIPES]
    }

    /// Hits and misses of data that somebody waited for, and that may be kept.
    pub(super) fn demand(&self) -> [u64; 2] {
        let (demand, data) = (Access::Demand as usize, Class::Data as usize);
        self.stripes.iter().fold([0; 2], |[hits, misses], stripe| {
            let found: u64 = stripe.hits[demand][data].iter().map(|count| count.load(Relaxed)).sum();
            // A miss is counted before it is known what becomes of it.
            let unkept = stripe.unkept.load(Relaxed);
            [hits + found, misses + stripe.misses[demand][data].load(Relaxed).saturating_sub(unkept)]
        })
    }

    pub(super) fn counted(&self) -> Counted {
        let mut all = Counted::default();
        for stripe in &self.stripes {
            for (i, j) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                all.misses[i][j] += stripe.misses[i][j].load(Relaxed);
                all.waits[i][j] += stripe.waits[i][j].load(Relaxed);
                for k in 0..2 {
                    all.hits[i][j][k] += stripe.hits[i][j][k].load(Relaxed);
                }
            }
            all.useful += stripe.useful.load(Relaxed);
            for (sum, count) in all.followed.iter_mut().zip(&stripe.followed) {
                *sum += count.load(Relaxed);
            }
            all.ahead += stripe.ahead.load(Relaxed);
        }
        all
    }

    pub(super) fn memory(&self) -> usize {
        self.stripes.len() * size_of::<Stripe>()
    }
}
