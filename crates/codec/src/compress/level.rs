//! zstd's levels as the pool stores them: one byte with every block, and in the property.
//!
//! zstd-1…19 are their own codes. zstd-fast-k, which the library knows as level −k, has codes from 103 up
//! for the values of k that are offered. Facts: docs/format/compression.md, section 4.6.

use std::fmt;

/// How hard zstd tries. Only values that OpenZFS accepts can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Level(u8);

const FIRST_FAST: u8 = 103;
/// The k of zstd-fast-k, in the order of their codes.
const FAST: [i32; 21] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 500, 1000];

impl Level {
    /// What `compression=zstd` means: zstd-3.
    pub const DEFAULT: Self = Self(3);

    /// The level with this code: 1–19 or 103–123. The property's 0 and 255 mean [`Level::DEFAULT`] and are
    /// never stored with a block, so they are not accepted here.
    pub fn from_code(code: u8) -> Option<Self> {
        let fast = FIRST_FAST..FIRST_FAST + FAST.len() as u8;
        ((1..=19).contains(&code) || fast.contains(&code)).then_some(Self(code))
    }

    /// The code stored with each block.
    pub fn code(self) -> u8 {
        self.0
    }

    /// The library's level: positive for zstd-N, negative for zstd-fast-K. `None` if not offered.
    pub fn from_zstd(level: i32) -> Option<Self> {
        match level {
            1..=19 => Some(Self(level as u8)),
            _ => {
                let index = FAST.iter().position(|k| Some(*k) == level.checked_neg())?;
                Some(Self(FIRST_FAST + index as u8))
            }
        }
    }

    /// The number the zstd library takes.
    pub fn zstd(self) -> i32 {
        match self.0.checked_sub(FIRST_FAST) {
            Some(fast) => -FAST.get(usize::from(fast)).copied().unwrap_or(1),
            None => i32::from(self.0),
        }
    }
}

/// As the `compression` property shows it. zstd-3 and zstd-fast-1 show with their number here; the
/// property's plain `zstd` and `zstd-fast` are the caller's business.
impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.zstd() {
            fast if fast < 0 => write!(f, "zstd-fast-{}", -fast),
            level => write!(f, "zstd-{level}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forty_levels_and_no_others() {
        let all: Vec<Level> = (0..=u8::MAX).filter_map(Level::from_code).collect();
        assert_eq!(all.len(), 40);
        for level in all {
            assert_eq!(Level::from_zstd(level.zstd()), Some(level));
        }
        for level in [0, 20, -11, -1001, i32::MIN, i32::MAX] {
            assert_eq!(Level::from_zstd(level), None);
        }
        assert_eq!(Level::from_zstd(-500).unwrap().to_string(), "zstd-fast-500");
        assert_eq!(Level::DEFAULT.to_string(), "zstd-3");
    }
}
