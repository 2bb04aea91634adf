//! Which blocks to keep: replacement policies and miss-ratio curves as plain data structures.
//!
//! ```text
//!   hit  ─▶ HitBuffer (no lock) ··· some time later ···▶ Policy::hit
//!   miss ─▶ Policy::insert ─▶ slots of the blocks that must go
//!             ├ Plain      LRU, FIFO: the yardsticks
//!             ├ Arc        as published, to the digit
//!             └ Adaptive   the default: Queues under the rules that Minis show to be best
//!   any  ─▶ Curve: what LRU would miss at every other size
//!   a sample ─▶ Advisor: what the live policy would hit with more memory, or with a SecondTier below
//! ```
//! No I/O, no clock, no randomness, no lock but the atomics of [`HitBuffer`], no bytes of blocks: a cache holds the
//! blocks, a simulation ([`trace`]) only counts them, and both ask the same code. The same accesses in the same order
//! give the same decisions.
//!
//! Why these policies, and what they score: docs/decisions, "cache policy".
#![forbid(unsafe_code)]

mod adaptive;
mod advisor;
mod arc;
mod curve;
mod ghosts;
mod hits;
mod index;
mod judge;
mod ledger;
mod mini;
mod model;
mod order;
mod plain;
mod policy;
mod queues;
mod rules;
mod second;
mod seen;
mod shadow;
mod slab;
pub mod trace;

pub use self::{
    adaptive::Adaptive,
    advisor::{Advisor, GROUPS, Kind, Outlook, Point, RAM, SECOND},
    arc::Arc,
    curve::{Curve, KEYS},
    hits::HitBuffer,
    index::Index,
    plain::Plain,
    policy::{Block, GhostHits, Policy, Slot, Usage},
    second::SecondTier,
    seen::Seen,
};

/// Spreads the bits of one word over all 64 (the finaliser of SplitMix64, public domain): a bijection.
#[inline]
#[must_use]
pub const fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Names [`policy_named`] knows.
pub const POLICIES: [&str; 4] = ["lru", "fifo", "arc", "default"];

/// A policy by its name.
#[must_use]
pub fn policy_named(name: &str, capacity: u64) -> Option<Box<dyn Policy>> {
    Some(match name {
        "lru" => Box::new(Plain::lru(capacity)),
        "fifo" => Box::new(Plain::fifo(capacity)),
        "arc" => Box::new(Arc::new(capacity)),
        "default" => Box::new(Adaptive::new(capacity)),
        _ => return None,
    })
}
