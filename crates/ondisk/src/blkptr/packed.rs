//! Block pointers as they are kept in memory where many are looked up one at a time: an indirect block in a third of its
//! size, and each pointer of it at hand.
//!
//! An indirect block is compressed as a whole on disk, and to know one pointer of it all of it has to be decompressed; as it is
//! decompressed it takes 128 bytes a pointer, most of them the same in all. Here of each of the sixteen words only what it is
//! more than the least in the block is kept, in as many bytes as the largest such difference needs. That leaves
//! the checksum, and a few bytes of address and births: 30 to 45 bytes for a pointer of a volume.
//!
//! ```text
//!   0      16 widths, a byte each: bytes that a word takes in an entry, 0 to 8
//!  16      16 words: what is added
//! 144      how many pointers there are, a word
//! 152      a bit for each: set if it is not all zero
//!   …      entries, one a pointer: its words one behind the other, the lowest bytes first
//!   …      8 bytes of nothing, so that a word can be read wherever one begins
//! ```
//!
//! Not on disk: this is ours, and may change.

use super::{BlkPtr, STRUCTURE};
use crate::{Error, Order, Reason, Result};

const WORDS: usize = 16;
const BASES: usize = WORDS;
const COUNT: usize = BASES + WORDS * 8;
const BITMAP: usize = COUNT + 8;
/// A word is read and written with all of its eight bytes, whatever its width, which may be nothing.
const PADDING: usize = 8;
/// The lowest bytes of a word, by how many.
const MASKS: [u64; 9] = [
    0,
    0xff,
    0xffff,
    0xff_ffff,
    0xffff_ffff,
    0xff_ffff_ffff,
    0xffff_ffff_ffff,
    0xff_ffff_ffff_ffff,
    u64::MAX,
];

/// Packs the pointers of an indirect block whose words are in `order`. `None` if that would not save a quarter: where
/// pointers carry data, or there are few.
#[must_use]
pub fn pack(block: &[u8], order: Order) -> Option<Vec<u8>> {
    let (pointers, []) = block.as_chunks::<{ BlkPtr::BYTES }>() else { return None };
    let (mut least, mut most) = ([u64::MAX; WORDS], [0; WORDS]);
    let mut is_used = vec![0_u8; pointers.len().div_ceil(8)];
    for (index, pointer) in pointers.iter().enumerate() {
        let words = words_of(pointer, order);
        if words == [0; WORDS] {
            continue;
        }
        if let Some(bits) = is_used.get_mut(index / 8) {
            *bits |= 1 << (index % 8);
        }
        for ((least, most), word) in least.iter_mut().zip(&mut most).zip(words) {
            (*least, *most) = (word.min(*least), word.max(*most));
        }
    }
    let mut widths = [0_u8; WORDS];
    for ((width, least), most) in widths.iter_mut().zip(&mut least).zip(most) {
        // Where all are zero.
        *least = most.min(*least);
        let bits = u64::BITS.saturating_sub(most.wrapping_sub(*least).leading_zeros());
        *width = bits.div_ceil(8) as u8;
    }
    let entry: usize = widths.iter().map(|width| usize::from(*width)).sum();
    let entries = BITMAP.saturating_add(is_used.len());
    let len = entry.saturating_mul(pointers.len()).saturating_add(entries).saturating_add(PADDING);
    if len > block.len().saturating_sub(block.len() / 4) {
        return None;
    }
    let mut packed = Vec::with_capacity(len);
    packed.extend(widths);
    packed.extend(least.iter().flat_map(|word| word.to_le_bytes()));
    packed.extend((pointers.len() as u64).to_le_bytes());
    packed.extend(is_used);
    packed.resize(len, 0);
    let mut rest = packed.get_mut(entries..)?;
    for pointer in pointers {
        let words = words_of(pointer, order);
        if words == [0; WORDS] {
            rest = rest.get_mut(entry..)?;
            continue;
        }
        for ((word, least), width) in words.into_iter().zip(least).zip(widths) {
            // What it writes beyond its width is zero, and the next one's.
            *rest.first_chunk_mut::<8>()? = word.wrapping_sub(least).to_le_bytes();
            rest = rest.get_mut(usize::from(width)..)?;
        }
    }
    Some(packed)
}

/// The pointer at `index` of what was [packed](pack), with the errors of [`BlkPtr::decode_at`].
///
/// # Errors
/// The pointer breaks a rule of [`BlkPtr::from_words`], or there are fewer.
#[inline]
pub fn decode_at(packed: &[u8], index: usize) -> Result<BlkPtr> {
    let start = index.saturating_mul(BlkPtr::BYTES);
    let Some(words) = Packed::of(packed).and_then(|packed| packed.words(index)) else {
        return Err(Error::new(STRUCTURE, start, Reason::Truncated { need: BlkPtr::BYTES, have: 0 }));
    };
    BlkPtr::from_words(words).map_err(|error| Error { offset: error.offset.saturating_add(start), ..error })
}

/// Where the pointer at `index` lies in what was [packed](pack), and its bytes; beyond the end if there are fewer.
#[inline]
#[must_use]
pub fn place(packed: &[u8], index: usize) -> (usize, usize) {
    let taken_apart = Packed::of(packed).filter(|packed| index < packed.pointers);
    taken_apart.map_or((packed.len(), 0), |it| {
        let first = packed.len().saturating_sub(it.entries.len());
        (first.saturating_add(index.saturating_mul(it.entry)), it.entry)
    })
}

/// Puts what was [packed](pack) into `block`, which has the length it had, in `order`. False if it is of another length.
#[must_use]
pub fn unpack(packed: &[u8], order: Order, block: &mut [u8]) -> bool {
    let (pointers, []) = block.as_chunks_mut::<{ BlkPtr::BYTES }>() else { return false };
    let Some(packed) = Packed::of(packed).filter(|packed| packed.pointers == pointers.len()) else {
        return false;
    };
    for (index, pointer) in pointers.iter_mut().enumerate() {
        let Some(words) = packed.words(index) else { return false };
        for (place, word) in pointer.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *place = order.put_u64(word);
        }
    }
    true
}

fn words_of(pointer: &[u8; BlkPtr::BYTES], order: Order) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(pointer.as_chunks::<8>().0) {
        *word = order.u64(*bytes);
    }
    words
}

/// What was packed, taken apart.
struct Packed<'a> {
    widths: &'a [u8; WORDS],
    bases: &'a [[u8; 8]],
    is_used: &'a [u8],
    /// With the padding.
    entries: &'a [u8],
    /// Bytes of an entry.
    entry: usize,
    pointers: usize,
}

impl<'a> Packed<'a> {
    #[inline]
    fn of(packed: &'a [u8]) -> Option<Self> {
        let widths = packed.first_chunk::<WORDS>()?;
        let bases = packed.get(BASES..COUNT)?.as_chunks::<8>().0;
        let pointers = usize::try_from(u64::from_le_bytes(*packed.get(COUNT..)?.first_chunk()?)).ok()?;
        let (is_used, entries) = packed.get(BITMAP..)?.split_at_checked(pointers.div_ceil(8))?;
        let entry = widths.iter().map(|width| usize::from(*width)).sum();
        Some(Self { widths, bases, is_used, entries, entry, pointers })
    }

    /// The words of a pointer.
    #[inline]
    fn words(&self, index: usize) -> Option<[u64; WORDS]> {
        let mut words = [0; WORDS];
        if index >= self.pointers {
            return None;
        }
        if self.is_used.get(index / 8)? & 1 << (index % 8) == 0 {
            return Some(words);
        }
        let mut rest = self.entries.get(index.checked_mul(self.entry)?..)?;
        for ((word, width), base) in words.iter_mut().zip(self.widths).zip(self.bases) {
            let more = u64::from_le_bytes(*rest.first_chunk()?) & MASKS.get(usize::from(*width))?;
            *word = u64::from_le_bytes(*base).wrapping_add(more);
            rest = rest.get(usize::from(*width)..)?;
        }
        Some(words)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A block whose pointers differ in these bytes of each word, and are zero where `is_used` is not.
    fn block(widths: [u32; WORDS], is_used: &[bool], order: Order, seed: u64) -> Vec<u8> {
        let mut state = seed | 1;
        let mut next = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let bases: [u64; WORDS] = std::array::from_fn(|_| next());
        let mut block = Vec::new();
        for is_used in is_used {
            for (base, width) in bases.iter().zip(widths) {
                let more = if width == 0 { 0 } else { next() >> (64 - 8 * width) };
                let word = if *is_used { (base << 8 >> 8).wrapping_add(more) } else { 0 };
                block.extend(order.put_u64(word));
            }
        }
        block
    }

    fn same_in_all_ways(block: &[u8], packed: &[u8], order: Order) {
        let mut back = vec![0xee; block.len()];
        assert!(unpack(packed, order, &mut back), "it unpacks");
        assert_eq!(back, block, "what is unpacked is what was packed");
        for index in 0..block.len() / BlkPtr::BYTES {
            assert_eq!(decode_at(packed, index), BlkPtr::decode_at(block, index, order), "pointer {index}");
        }
    }

    proptest! {
        #[test]
        fn any_block_of_words_comes_back_or_is_left_alone(
            widths in proptest::array::uniform16(0..=8_u32),
            is_used in proptest::collection::vec(any::<bool>(), 0..300),
            seed in any::<u64>(),
            is_big in any::<bool>(),
        ) {
            let order = if is_big { Order::Big } else { Order::Little };
            let block = block(widths, &is_used, order, seed);
            if let Some(packed) = pack(&block, order) {
                prop_assert!(packed.len() <= block.len() * 3 / 4);
                prop_assert_eq!(packed.capacity(), packed.len(), "it wastes nothing");
                same_in_all_ways(&block, &packed, order);
            }
        }

        #[test]
        fn what_was_not_packed_is_never_more_than_an_error(
            bytes in proptest::collection::vec(any::<u8>(), 0..600),
            index in any::<usize>(),
            pointers in 0..40_usize,
        ) {
            drop(decode_at(&bytes, index));
            drop(decode_at(&bytes, index % 64));
            std::hint::black_box(place(&bytes, index));
            std::hint::black_box(unpack(&bytes, Order::Little, &mut vec![0; pointers * BlkPtr::BYTES]));
        }
    }

    /// What it is for: an indirect block of a volume.
    #[test]
    fn pointers_of_a_volume_take_a_third_and_are_what_they_were() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut block = Vec::new();
        for index in 0..1024_u64 {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let sum = [state >> 21, state >> 10, state >> 1, state.rotate_left(17)];
            let stored = super::super::Stored {
                dvas: [
                    super::super::Dva {
                        vdev: 2,
                        offset: (1 << 38) + (state >> 30 << 12),
                        asize: 16384,
                        gang: false,
                    },
                    super::super::Dva::default(),
                    super::super::Dva::default(),
                ],
                lsize: 16384,
                psize: 4096 * (1 + state % 4),
                compression_id: 15,
                checksum_id: 7,
                object_type: crate::dnode::ObjectType::ZVOL,
                level: 0,
                dedup: false,
                order: Order::Little,
                birth: 4_000_000 + index,
                physical_birth: 4_000_000 + index,
                fill: 1,
                checksum: sum,
            };
            let pointer = if index % 7 == 0 { BlkPtr::EMPTY } else { BlkPtr::stored(&stored).unwrap() };
            block.extend(pointer.encode(Order::Little));
        }
        let packed = pack(&block, Order::Little).unwrap();
        assert!(packed.len() <= block.len() * 3 / 8, "{} bytes", packed.len());
        same_in_all_ways(&block, &packed, Order::Little);
        let beyond = BlkPtr::decode_at(&block, 1024, Order::Little).unwrap_err();
        assert_eq!(decode_at(&packed, 1024).unwrap_err(), beyond, "the same error");
    }

    #[test]
    fn holes_alone_take_next_to_nothing_and_what_carries_data_is_left_alone() {
        let holes = vec![0; 1024 * BlkPtr::BYTES];
        let packed = pack(&holes, Order::Big).unwrap();
        assert!(packed.len() < 300, "{} bytes", packed.len());
        same_in_all_ways(&holes, &packed, Order::Big);
        let data = block([8; WORDS], &[true; 64], Order::Little, 5);
        assert_eq!(pack(&data, Order::Little), None);
        assert_eq!(pack(&holes[..100], Order::Little), None, "no whole number of pointers");
        assert_eq!(pack(&[], Order::Little), None);
    }
}
