//! What a queue engine does, as data: the rule sets that compete for a cache.
//!
//! No published policy wins everywhere. ARC and LRU are best where the cache is a thousandth of what is used; a
//! probation queue (2Q, S3-FIFO) where much is used once; LIRS on loops. They differ in few decisions over the same
//! two lists and ghosts, so each is a value of [`Rules`] and a cache can go from one to another without moving a block.
//!
//! The names say where the idea is from; none is that policy to the digit.

/// How much of the capacity the recent list may have before it must give way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// Thousandths of the capacity.
    Fixed(u32),
    /// ARC's `p`: grows when a ghost of the recent list is wanted, shrinks with one of the frequent list.
    Learned,
    /// Whatever was used longest ago goes, from either list: plain LRU.
    Oldest,
}

/// What moves a block from the recent to the frequent list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Promote {
    /// Its next use.
    AtOnce,
    /// As many uses by the time it reaches the end of the recent list. Until then hits do not move it.
    AtTheEnd(u32),
    /// A use sooner after the last one than the tail of the frequent list can say of itself (LIRS). A ghost must
    /// pass the same test, and what the frequent list gives up goes through the recent list once more.
    IfSooner,
}

/// One rule set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    /// For people who want to know what the cache does now.
    pub(crate) name: &'static str,
    pub(crate) share: Share,
    pub(crate) promote: Promote,
    /// Ghosts of the recent list, in thousandths of the blocks a full cache holds; with [`Share::Learned`] ARC's bounds.
    pub(crate) ghosts: u32,
    /// A block of the frequent list that was hit goes round again, up to this often; 0: the list is kept by last use.
    pub(crate) rounds: u32,
}

impl Rules {
    /// Whether frequent blocks pass through the recent list on their way out, and the frequent list is filled from
    /// it as long as it is below its share. Then a loop larger than the cache keeps the part that fits.
    pub(crate) const fn is_by_reuse(&self) -> bool {
        matches!(self.promote, Promote::IfSooner)
    }
}

/// ARC, with approximate ghosts: what a cache begins with and what all others are measured by.
pub(crate) const ARC: Rules =
    Rules { name: "arc", share: Share::Learned, promote: Promote::AtOnce, ghosts: 1000, rounds: 0 };

/// All rule sets, [`ARC`] first. Chosen by what was best anywhere on traces; `docs/decisions` has the table.
pub(crate) const RULES: [Rules; 8] = [
    ARC,
    Rules { name: "lru", share: Share::Oldest, ..ARC },
    Rules { name: "reuse-1", share: Share::Fixed(10), promote: Promote::IfSooner, ghosts: 1500, rounds: 0 },
    Rules { name: "reuse-10", share: Share::Fixed(100), promote: Promote::IfSooner, ghosts: 1500, rounds: 0 },
    Rules {
        name: "once-10",
        share: Share::Fixed(100),
        promote: Promote::AtTheEnd(1),
        ghosts: 900,
        rounds: 3,
    },
    Rules {
        name: "twice-10",
        share: Share::Fixed(100),
        promote: Promote::AtTheEnd(2),
        ghosts: 900,
        rounds: 3,
    },
    Rules {
        name: "twice-30",
        share: Share::Fixed(300),
        promote: Promote::AtTheEnd(2),
        ghosts: 900,
        rounds: 3,
    },
    Rules { name: "once-3", share: Share::Fixed(30), promote: Promote::AtTheEnd(1), ghosts: 900, rounds: 3 },
];
