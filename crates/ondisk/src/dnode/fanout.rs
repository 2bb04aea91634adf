//! How far an object's tree spreads from level to level: the arithmetic of block numbers.
//!
//! The blocks of each level are numbered from 0, left to right, and every indirect block leads to as many of the level
//! below as it has pointers, a power of two. So the numbers of neighbouring levels differ by a shift. Levels and numbers
//! come from strangers, and a tree may claim more levels than 64 bits can need: what shifts out at the lower end is 0, and
//! at the upper one the number saturates.
//!
//! Facts: docs/format/dmu.md §2.

/// How many blocks an indirect block leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fanout {
    shift: u32,
}

impl Fanout {
    /// Of indirect blocks with `1 << shift` pointers.
    #[must_use]
    pub const fn from_shift(shift: u32) -> Self {
        Self { shift }
    }

    /// Pointers in an indirect block.
    #[must_use]
    pub fn entries(self) -> u64 {
        self.first_descendant(1, 1)
    }

    /// The block `up` levels above block `id`.
    #[must_use]
    #[inline]
    pub fn ancestor(self, id: u64, up: u8) -> u64 {
        id.checked_shr(self.over(up)).unwrap_or(0)
    }

    /// The lowest of the blocks `down` levels below block `id`; saturates.
    #[must_use]
    #[inline]
    pub fn first_descendant(self, id: u64, down: u8) -> u64 {
        let shift = self.over(down);
        if id != 0 && id.leading_zeros() < shift { u64::MAX } else { id.checked_shl(shift).unwrap_or(0) }
    }

    /// Which pointer of its parent leads to block `id`.
    #[must_use]
    #[inline]
    pub fn slot(self, id: u64) -> usize {
        (id & self.entries().saturating_sub(1)) as usize
    }

    /// What `levels` levels make of a number, as a shift.
    fn over(self, levels: u8) -> u32 {
        self.shift.saturating_mul(u32::from(levels))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Indirect blocks of 128 KiB.
    const USUAL: Fanout = Fanout::from_shift(10);

    #[test]
    fn a_block_is_found_through_its_ancestors() {
        assert_eq!(USUAL.entries(), 1024);
        assert_eq!((USUAL.ancestor(2303, 0), USUAL.slot(2303)), (2303, 255));
        assert_eq!((USUAL.ancestor(2303, 1), USUAL.slot(USUAL.ancestor(2303, 1))), (2, 2));
        assert_eq!(USUAL.ancestor(1 << 50, 5), 1);
        assert_eq!((USUAL.first_descendant(2, 1), USUAL.first_descendant(3, 2)), (2048, 3 << 20));
        assert_eq!(Fanout::from_shift(0).slot(u64::MAX), 0, "one pointer");
    }

    #[test]
    fn levels_beyond_64_bits_lead_to_the_ends() {
        assert_eq!(USUAL.ancestor(u64::MAX, 29), 0);
        assert_eq!(USUAL.first_descendant(15, 6), 15 << 60);
        assert_eq!(USUAL.first_descendant(16, 6), u64::MAX);
        assert_eq!(USUAL.first_descendant(1, 29), u64::MAX);
        assert_eq!(USUAL.first_descendant(0, 29), 0);
        assert_eq!(Fanout::from_shift(u32::MAX).first_descendant(1, u8::MAX), u64::MAX);
    }

    proptest! {
        #[test]
        fn every_block_is_below_its_ancestor(id: u64, shift in 0..=17_u32, levels in 0..30_u8) {
            let fanout = Fanout::from_shift(shift);
            let above = fanout.ancestor(id, levels);
            prop_assert!(fanout.first_descendant(above, levels) <= id);
            let next = fanout.first_descendant(above.saturating_add(1), levels);
            prop_assert!(next > id || next == u64::MAX);
            prop_assert!((fanout.slot(id) as u64) < fanout.entries());
        }
    }
}
