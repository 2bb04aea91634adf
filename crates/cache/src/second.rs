//! A second tier as numbers: what a cache device would hold of the blocks that leave memory, by the rules of the product.
//!
//! ```text
//!   leaves memory ─▶ here already? nothing      first time, and it is full? nothing      else ▶ written at the hand
//!   the hand comes by: asked for since it was written? written again      else gone
//! ```
//! * Until it is full it takes everything; then only what leaves memory for the second time ([`Seen`], which the
//!   product's own tier asks too).
//! * It is a ring: what lies ahead of the hand goes, whatever it is worth, unless it was asked for. Of such blocks at most
//!   three units are written again for each new one, so a write always ends.
//!
//! No devices, no rates: what a budget of writes keeps out, and what is overwritten while it is read, is not here.

use std::collections::VecDeque;

use crate::{Seen, index::Index};

/// Units written again for a unit that is new, at most.
const AGAIN: u64 = 3;
/// Times a block is asked for that are remembered.
const HEAT_MAX: u32 = 3;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct SecondTier {
    capacity: u64,
    used: u64,
    /// Oldest first.
    ring: VecDeque<(u64, u32)>,
    /// How often each was asked for since it was written.
    heat: Index,
    seen: Seen,
    is_full: bool,
    written: u64,
    rewritten: u64,
}

impl SecondTier {
    /// An empty one that holds so many units.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        Self { capacity, ..Self::default() }
    }

    /// The same on a sample of the blocks.
    pub(crate) fn miniature(capacity: u64) -> Self {
        Self { capacity, seen: Seen::small(), ..Self::default() }
    }

    /// Units it may hold.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Blocks it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heat.len()
    }

    /// Whether it holds nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heat.is_empty()
    }

    /// Units written to it, and those of them that were written again.
    #[must_use]
    pub const fn written(&self) -> (u64, u64) {
        (self.written, self.rewritten)
    }

    /// Bytes of memory behind it.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.ring.capacity() * size_of::<(u64, u32)>() + self.heat.memory() + self.seen.memory() as usize
    }

    /// A block that is not in memory is asked for: whether it is here.
    pub fn get(&mut self, id: u64) -> bool {
        let Some(heat) = self.heat.get(id) else { return false };
        self.heat.insert(id, (heat + 1).min(HEAT_MAX));
        true
    }

    /// A block leaves memory.
    pub fn offer(&mut self, id: u64, size: u32) {
        let units = u64::from(size);
        if units > self.capacity || self.heat.get(id).is_some() {
            return;
        }
        let is_known = self.seen.again(id, self.heat.len() as u64);
        if self.is_full && !is_known {
            return;
        }
        let mut again = AGAIN * units;
        while self.used + units > self.capacity {
            self.is_full = true;
            let Some((old, size)) = self.ring.pop_front() else { break };
            match self.heat.get(old) {
                Some(1..) if u64::from(size) <= again => {
                    again -= u64::from(size);
                    self.rewritten += u64::from(size);
                    self.written += u64::from(size);
                    self.heat.insert(old, 0);
                    self.ring.push_back((old, size));
                }
                _ => {
                    self.heat.remove(old);
                    self.used -= u64::from(size);
                }
            }
        }
        self.used += units;
        self.written += units;
        self.heat.insert(id, 0);
        self.ring.push_back((id, size));
    }

    /// Keeps only some blocks, and may hold so much from now on.
    pub fn thin(&mut self, capacity: u64, keep: impl Fn(u64) -> bool) {
        let mut used = 0;
        let heat = &mut self.heat;
        self.ring.retain(|(id, size)| {
            let stays = keep(*id);
            if stays {
                used += u64::from(*size);
            } else {
                heat.remove(*id);
            }
            stays
        });
        self.used = used;
        self.resize(capacity);
    }

    /// May hold so much from now on; what is oldest goes.
    pub fn resize(&mut self, capacity: u64) {
        self.is_full &= capacity <= self.capacity;
        self.capacity = capacity;
        while self.used > capacity
            && let Some((id, size)) = self.ring.pop_front()
        {
            self.heat.remove(id);
            self.used -= u64::from(size);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix;

    #[test]
    fn it_takes_everything_until_it_is_full_and_then_what_comes_twice() {
        let mut tier = SecondTier::new(1000);
        (0..1000).for_each(|n| tier.offer(mix(n), 1));
        assert!((0..1000).all(|n| tier.get(mix(n))));
        let mut tier = SecondTier::new(1000);
        (0..1001).for_each(|n| tier.offer(mix(n), 1));
        (5000..6000).for_each(|n| tier.offer(mix(n), 1));
        let strangers = (5000..6000).filter(|n| tier.get(mix(*n))).count();
        assert!(strangers < 50, "{strangers} of 1000 came in at first sight");
        (5000..6000).for_each(|n| tier.offer(mix(n), 1));
        let known = (5000..6000).filter(|n| tier.get(mix(*n))).count();
        assert_eq!(known, 1000);
        assert_eq!(tier.len(), 1000);
    }

    #[test]
    fn what_was_asked_for_survives_the_hand_and_writes_end() {
        let mut tier = SecondTier::new(1000);
        (0..1000).for_each(|n| tier.offer(mix(n), 1));
        (0..1000).filter(|n| n % 2 == 0).for_each(|n| assert!(tier.get(mix(n))));
        for n in 2000..2500 {
            (0..2).for_each(|_| tier.offer(mix(n), 1));
        }
        let kept = (0..1000).filter(|n| n % 2 == 0 && tier.get(mix(*n))).count();
        assert!(kept > 400, "{kept} of 500 that were asked for");
        let cold = (0..1000).filter(|n| n % 2 == 1 && tier.get(mix(*n))).count();
        assert!(cold < 150, "{cold} of 500 that were not");
        // All hot: what is new still comes in.
        (0..10_000).for_each(|n| {
            tier.get(mix(n));
        });
        (0..2).for_each(|_| tier.offer(1, 1));
        assert!(tier.get(1));
        assert!(tier.len() <= 1000);
        let (all, again) = tier.written();
        assert!(all > again && again > 0);
    }
}
