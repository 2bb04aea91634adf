//! Gang headers: a block in pieces, for want of one place large enough.
//!
//! The pointer's DVAs lead to a small header of block pointers instead of the data; their blocks, one
//! after the other, are the stored bytes. Members may be gangs again. The classic header is 512 bytes
//! with 3 pointers; with feature `dynamic_gang_header` it is as large as the vdev's smallest
//! allocation. A reader tries the large size first and the checksum decides.
//!
//! Facts: docs/format/blkptr.md §6.

use crate::blkptr::BlkPtr;
use crate::label::{TRAILER_BYTES, Trailer};
use crate::{Error, Order, Reason, Result, Writer};

const STRUCTURE: &str = "gang header";

/// Size of the classic header in bytes.
pub const CLASSIC_BYTES: usize = 512;
/// Gangs nested deeper are refused by readers: each level at least halves what remains of 16 MiB.
pub const DEPTH_MAX: usize = 16;
/// Largest header: 1 << the largest ashift.
pub const HEADER_BYTES_MAX: usize = 1 << 16;

/// A decoded gang header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GangHeader {
    /// Byte order of the header.
    pub order: Order,
    /// The pieces, in order; unused places left out.
    pub members: Vec<BlkPtr>,
}

impl GangHeader {
    /// Pointers a header of `bytes` bytes has room for.
    #[must_use]
    pub const fn capacity(bytes: usize) -> usize {
        bytes.saturating_sub(TRAILER_BYTES) / BlkPtr::BYTES
    }

    /// Reads a header that takes all of `data`; the trailer's magic tells the byte order. The
    /// checksum is the caller's part, over `data` with [`verifier`](Self::verifier) in the trailer.
    ///
    /// # Errors
    /// A length that is no multiple of 512 or too large, no trailer, a bad pointer, a member that is
    /// embedded, or no members at all.
    pub fn decode(data: &[u8]) -> Result<Self> {
        if data.is_empty() || !data.len().is_multiple_of(CLASSIC_BYTES) || data.len() > HEADER_BYTES_MAX {
            let reason = Reason::OutOfRange { field: "length", value: data.len() as u64 };
            return Err(Error::new(STRUCTURE, 0, reason));
        }
        let order = Trailer::read(data)?.order;
        let mut members = Vec::new();
        for index in 0..Self::capacity(data.len()) {
            let member = BlkPtr::decode_at(data, index, order)?;
            if member.is_embedded() {
                let at = index.saturating_mul(BlkPtr::BYTES);
                return Err(Error::new(STRUCTURE, at, Reason::Inconsistent("an embedded member")));
            }
            if !member.is_hole() {
                members.push(member);
            }
        }
        if members.is_empty() {
            return Err(Error::new(STRUCTURE, 0, Reason::Inconsistent("no members")));
        }
        Ok(Self { order, members })
    }

    /// The header as `bytes` bytes, with an empty checksum in the trailer.
    ///
    /// # Errors
    /// More members than fit.
    pub fn encode(&self, bytes: usize) -> Result<Vec<u8>> {
        if self.members.len() > Self::capacity(bytes) {
            let reason = Reason::TooLarge { limit: Self::capacity(bytes), unit: "members" };
            return Err(Error::new(STRUCTURE, 0, reason));
        }
        let mut writer = Writer::with_capacity(bytes, self.order);
        for member in &self.members {
            writer.bytes(&member.encode(self.order));
        }
        writer.pad_to(bytes);
        let mut data = writer.finish();
        Trailer::place(&mut data, self.order, [0; 4]);
        Ok(data)
    }

    /// Checks that the pieces together are as long as `parent` says its stored bytes are.
    ///
    /// # Errors
    /// They are not.
    pub fn check_length(&self, parent: &BlkPtr) -> Result<()> {
        let total = self.members.iter().map(BlkPtr::psize).fold(0, u64::saturating_add);
        if total == parent.psize() {
            return Ok(());
        }
        Err(Error::new(STRUCTURE, 0, Reason::OutOfRange { field: "sum of the members' psize", value: total }))
    }

    /// What stands in the trailer while hashing a header that `parent` points to: the same for all
    /// copies. `None` if `parent` has no DVA.
    #[must_use]
    pub fn verifier(parent: &BlkPtr) -> Option<[u64; 4]> {
        let dva = parent.dvas().next()?;
        Some([u64::from(dva.vdev), dva.offset, parent.physical_birth(), 0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blkptr::{Dva, Stored};
    use crate::dnode::ObjectType;

    fn member(sectors: u64) -> BlkPtr {
        let dva = Dva { vdev: 1, offset: 0x4000, asize: sectors * 512, gang: false };
        BlkPtr::stored(&Stored {
            dvas: [dva, Dva::default(), Dva::default()],
            lsize: sectors * 512,
            psize: sectors * 512,
            compression_id: 2,
            checksum_id: 7,
            object_type: ObjectType::NONE,
            level: 0,
            dedup: false,
            order: Order::Little,
            birth: 9,
            physical_birth: 9,
            fill: 0,
            checksum: [1, 2, 3, 4],
        })
        .unwrap()
    }

    #[test]
    fn a_classic_header_has_room_for_3_pointers_and_a_4_kib_one_for_31() {
        assert_eq!(GangHeader::capacity(CLASSIC_BYTES), 3);
        assert_eq!(GangHeader::capacity(4096), 31);
        assert_eq!(GangHeader::capacity(8), 0);
    }

    #[test]
    fn headers_survive_a_round_trip_in_both_orders() {
        for (order, bytes, count) in [(Order::Little, 512, 3), (Order::Big, 512, 2), (Order::Big, 4096, 31)] {
            let header = GangHeader { order, members: (1..=count).map(member).collect() };
            let data = header.encode(bytes).unwrap();
            assert_eq!(data.len(), bytes);
            assert_eq!(GangHeader::decode(&data), Ok(header.clone()));
            assert!(header.check_length(&member(count * (count + 1) / 2)).is_ok());
            assert!(header.check_length(&member(1000)).is_err());
            assert!(header.encode(256).is_err());
        }
    }

    /// Each file holds the pointer and then the header it leads to.
    #[test]
    fn headers_of_real_pools_are_as_long_as_their_pointer_says() {
        let classic = crate::testdata::hex(include_str!("../testdata/gang-classic.hex"));
        let dynamic = crate::testdata::hex(include_str!("../testdata/gang-dynamic.hex"));
        for (bytes, members) in [(classic, 3), (dynamic, 3)] {
            let parent = BlkPtr::decode(&bytes, Order::Little).unwrap();
            let header = GangHeader::decode(&bytes[128..]).unwrap();
            assert!(parent.is_gang());
            assert_eq!(header.members.len(), members);
            assert_eq!(header.check_length(&parent), Ok(()));
            let encoded = header.encode(bytes.len() - 128).unwrap();
            let checksum_at = encoded.len() - 32;
            assert_eq!(encoded[..checksum_at], bytes[128..][..checksum_at]);
        }
    }

    #[test]
    fn what_is_no_header_is_refused() {
        assert!(GangHeader::decode(&[]).is_err());
        assert!(GangHeader::decode(&[0; 512]).is_err(), "no trailer");
        let mut empty = [0; 512];
        Trailer::place(&mut empty, Order::Little, [0; 4]);
        assert!(GangHeader::decode(&empty).is_err(), "a gang of nothing");
    }

    #[test]
    fn the_verifier_is_place_and_birth_of_the_pointer() {
        assert_eq!(GangHeader::verifier(&member(1)), Some([1, 0x4000, 9, 0]));
        assert_eq!(GangHeader::verifier(&BlkPtr::EMPTY), None);
    }
}
