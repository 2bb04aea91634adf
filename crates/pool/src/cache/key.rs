//! What a block is found by, and what is known of one that comes in.
//!
//! A block is never changed in place, so its first address and its physical birth name it for good, and there is no
//! invalidation. A tag made from its checksum and its sizes is compared too, so that of two pointers that merely
//! *claim* the same address (one of them a lie) neither gets the other's content; and so that pools with equal
//! addresses do not mix, it depends on the opened pool as well.

use ::cache::mix;
use ondisk::blkptr::BlkPtr;

use super::{Origin, SHARDS};

/// What a block is found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    /// The words of the first address.
    pub(crate) dva: [u64; 2],
    /// Physical birth txg.
    pub(crate) birth: u64,
    /// Mix of the checksum words, the sizes, compression and type, and the opened pool.
    pub(crate) tag: u64,
    /// Hash of address, birth and the pool's guid: the same in every run, because policies decide by it. Its lowest bits are
    /// the shard, which neighbours on a device share if they are data.
    pub(crate) id: u64,
}

impl Key {
    /// The key of a block; `None` for what needs no device.
    #[inline]
    pub(crate) fn of(bp: &BlkPtr, origin: &Origin) -> Option<Self> {
        if bp.is_embedded() || bp.is_hole() {
            return None;
        }
        let words = bp.words();
        let dva = [words[0], words[1]];
        let birth = bp.physical_birth();
        // The property word and the checksum: the same only for the same content, unless there is no checksum at all;
        // then it is the opened pool that tells two of them apart. Independent products, because a hit pays for this.
        let tag = mix(words[6] ^ origin.salt)
            ^ mix(words[12].wrapping_add(0x9e37_79b9_7f4a_7c15))
            ^ mix(words[13].wrapping_add(0x3c6e_f372_fe94_f82a))
            ^ mix(words[14].wrapping_add(0xdaa6_6d2b_7ddf_743f))
            ^ mix(words[15].wrapping_add(0x78dd_e6e4_fd29_f054));
        Some(Self { dva, birth, tag, id: identity(dva, birth, origin.guid, Class::of(bp)) })
    }
}

/// Sectors of 512 bytes whose blocks are in one shard (as a shift): 256 KiB, a request or two.
const NEIGHBOURS: u32 = 9;

fn identity(dva: [u64; 2], birth: u64, guid: u64, class: Class) -> u64 {
    // The device must not merely move bits of the offset about: of blocks at many devices' equal offsets each needs an
    // identity of its own.
    let whole = mix(dva[1] ^ dva[0].wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ mix(birth ^ guid));
    if class == Class::Metadata {
        // Asked for by every read below it, from all threads, and written all in one place.
        return whole;
    }
    let region = mix((dva[1] >> NEIGHBOURS) ^ (dva[0] >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ guid);
    let shard = SHARDS as u64 - 1;
    whole & !shard | region & shard
}

/// Which of a dataset's blocks a cache keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// None.
    None,
    /// Metadata only.
    Metadata,
    /// All.
    #[default]
    All,
}

impl Keep {
    /// The number by which the property is stored; what is unknown keeps all.
    #[must_use]
    pub fn from_number(number: u64) -> Self {
        match number {
            0 => Self::None,
            1 => Self::Metadata,
            _ => Self::All,
        }
    }

    /// Whether it keeps blocks of this kind.
    #[must_use]
    pub fn wants(self, metadata: bool) -> bool {
        self == Self::All || (self == Self::Metadata && metadata)
    }
}

/// What a dataset wants of the caches: `primarycache` and `secondarycache`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caching {
    /// In memory.
    pub primary: Keep,
    /// In the tier below.
    pub secondary: Keep,
}

/// What a dataset wants of the caches, and of what is read before anybody asks for it (`prefetch`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wishes {
    pub(crate) caching: Caching,
    pub(crate) prefetch: Keep,
}

impl Wishes {
    /// Whether blocks of this kind are read ahead. What memory does not keep would have to be read again by whoever asks.
    pub(crate) fn ahead(self, metadata: bool) -> bool {
        self.caching.primary.wants(metadata) && self.prefetch.wants(metadata)
    }
}

/// Who asks for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Somebody who waits for it.
    Demand,
    /// Nobody yet: it is read ahead.
    Prefetch,
}

/// How a block is in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Warmth {
    /// Used once, or read ahead.
    Recent,
    /// Used more than once.
    Frequent,
}

/// The classes of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Data,
    Metadata,
}

impl Class {
    pub(crate) const ALL: [Self; 2] = [Self::Data, Self::Metadata];

    pub(crate) fn of(bp: &BlkPtr) -> Self {
        if bp.level() > 0 || bp.object_type().is_metadata() { Self::Metadata } else { Self::Data }
    }

    pub(crate) const fn other(self) -> Self {
        match self {
            Self::Data => Self::Metadata,
            Self::Metadata => Self::Data,
        }
    }
}

#[cfg(test)]
impl Key {
    /// The `n`th block of a pool.
    pub(crate) fn nth(n: u64, origin: &Origin) -> Self {
        let dva = [1, n << 3];
        Self { dva, birth: 7, tag: mix(origin.salt), id: identity(dva, 7, origin.guid, Class::Data) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_kept_is_read_ahead() {
        let of = |primary: Keep, prefetch: Keep| {
            let wishes = Wishes { caching: Caching { primary, ..Caching::default() }, prefetch };
            [wishes.ahead(false), wishes.ahead(true)]
        };
        assert_eq!(of(Keep::All, Keep::All), [true, true]);
        for (primary, prefetch) in
            [(Keep::All, Keep::Metadata), (Keep::Metadata, Keep::All), (Keep::Metadata, Keep::Metadata)]
        {
            assert_eq!(of(primary, prefetch), [false, true], "{primary:?} {prefetch:?}");
        }
        for keep in [Keep::None, Keep::Metadata, Keep::All] {
            assert_eq!([of(keep, Keep::None), of(Keep::None, keep)], [[false; 2]; 2], "{keep:?}");
        }
    }

    /// They were one for devices whose numbers differed as their blocks' offsets did, in sectors shifted by eight: a pool
    /// of 22 mirrors filled two fifths of its cache.
    #[test]
    fn blocks_at_the_same_places_of_many_devices_have_identities_of_their_own() {
        let mut seen = std::collections::BTreeSet::new();
        for vdev in 0..64_u64 {
            for block in 0..4096_u64 {
                let dva = [vdev << 32 | 16, block * 16];
                assert!(seen.insert(identity(dva, 7, 99, Class::Data)), "device {vdev}, block {block}");
            }
        }
    }

    /// A request of neighbouring blocks takes one lock or two; those of different requests are spread over all.
    #[test]
    fn neighbours_are_in_one_shard_and_regions_in_all() {
        let of = |class: Class, vdev: u64, sector: u64| {
            identity([vdev << 32 | 16, sector], sector, 99, class) % SHARDS as u64
        };
        let shard = |vdev: u64, sector: u64| of(Class::Data, vdev, sector);
        let mut blocks = [0; SHARDS];
        for vdev in 0..4 {
            for region in 0..4096 {
                let first = shard(vdev, region << NEIGHBOURS);
                blocks[first as usize] += 1;
                assert!((0..32).all(|block| shard(vdev, (region << NEIGHBOURS) + block * 16) == first));
            }
        }
        let even = 4 * 4096 / SHARDS;
        assert!(blocks.iter().all(|count| (even / 2..even * 2).contains(count)), "{blocks:?}");
        // Pointers to data are not to meet there.
        let metadata: std::collections::BTreeSet<u64> =
            (0..32).map(|block| of(Class::Metadata, 0, block * 16)).collect();
        assert!(metadata.len() > 16, "{metadata:?}");
    }
}
