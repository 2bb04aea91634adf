//! Which blocks left memory before: the second time is worth a write to the cache device, the first mostly is not.
//!
//! Two generations of a Bloom filter. A block is looked up in both and noted in the younger one; when that has seen
//! twice as many blocks as the devices hold, it becomes the older one and a new one begins. So the memory reaches back
//! two to four devices-full of evictions, and costs 2.5 bytes a cached block. One block in ten that was never seen
//! passes for seen: that many writes too many, and nothing else.

use crate::mix;

/// The memory of evictions. Blocks are known by a well spread hash of their identity.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    now: Generation,
    before: Generation,
    /// Of a miniature: generations may be small.
    is_small: bool,
}

#[derive(Clone, Debug, Default)]
struct Generation {
    bits: Box<[u64]>,
    noted: u64,
    /// Blocks it is made for.
    capacity: u64,
}

/// Blocks in a generation, at least.
const CAPACITY_MIN: u64 = 8192;
/// The same of a small one.
const SMALL_MIN: u64 = 64;
const BITS_EACH: u64 = 5;
/// Bits set for each block.
const PROBES: u32 = 3;

impl Seen {
    /// One for a tier so small that what is usual would reach back too far.
    #[must_use]
    pub fn small() -> Self {
        Self { is_small: true, ..Self::default() }
    }

    /// Whether this block was here before, and notes that it is here now. `held` is how many blocks the devices hold.
    pub fn again(&mut self, hash: u64, held: u64) -> bool {
        if self.now.noted >= self.now.capacity {
            let next = Generation::new(self.capacity_for(held));
            self.before = std::mem::replace(&mut self.now, next);
        }
        let known = self.now.has(hash) || self.before.has(hash);
        self.now.note(hash);
        known
    }

    /// Bytes of memory.
    #[must_use]
    pub fn memory(&self) -> u64 {
        8 * (self.now.bits.len() + self.before.bits.len()) as u64
    }

    /// Bytes of that beyond what a tier needs that holds so many blocks now: it held far more when its generations began.
    /// None if it is less than as much again, which goes by itself.
    #[must_use]
    pub fn beyond(&self, held: u64) -> u64 {
        let (memory, needed) = (self.memory(), 2 * self.capacity_for(held) * BITS_EACH / 8);
        if memory > 2 * needed { memory - needed } else { 0 }
    }

    /// Blocks that a generation is made for.
    fn capacity_for(&self, held: u64) -> u64 {
        (2 * held).max(if self.is_small { SMALL_MIN } else { CAPACITY_MIN })
    }
}

impl Generation {
    fn new(capacity: u64) -> Self {
        Self { bits: vec![0; (capacity * BITS_EACH).div_ceil(64) as usize].into(), noted: 0, capacity }
    }

    fn places(&self, hash: u64) -> impl Iterator<Item = (usize, u64)> + use<> {
        let bits = self.bits.len() as u64 * 64;
        let step = mix(hash) | 1;
        (0..u64::from(PROBES)).map(move |probe| {
            let mixed = hash.wrapping_add(step.wrapping_mul(probe));
            let bit = ((u128::from(mixed) * u128::from(bits)) >> 64) as u64;
            ((bit / 64) as usize, 1 << (bit % 64))
        })
    }

    fn has(&self, hash: u64) -> bool {
        !self.bits.is_empty() && self.places(hash).all(|(word, mask)| self.bits[word] & mask != 0)
    }

    fn note(&mut self, hash: u64) {
        for (word, mask) in self.places(hash) {
            self.bits[word] |= mask;
        }
        self.noted += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_time_is_recognised_and_the_first_mostly_is_not() {
        let mut seen = Seen::default();
        let held = 50_000;
        let strangers = (0..150_000).filter(|n| seen.again(mix(*n), held)).count();
        assert!(strangers < 20_000, "{strangers} of 150000 took for seen");
        assert!((100_000..150_000).all(|n| seen.again(mix(n), held)), "all of the last were seen");
        assert!(seen.memory() <= held * 5 / 2 + 64, "{} bytes", seen.memory());
        let old = (1_000_000..1_500_000).map(|n| seen.again(mix(n), held)).count();
        assert_eq!(old, 500_000);
        let old = (0..10_000).filter(|n| seen.again(mix(*n), held)).count();
        assert!(old < 2_000, "{old} of 10000 remembered for too long");
    }
}
