use super::*;
use crate::testdata::hex;

#[test]
fn older_bonuses_lack_the_later_words() {
    let phys = BpobjPhys {
        blkptrs: 1,
        bytes: 2,
        compressed_bytes: 3,
        uncompressed_bytes: 4,
        subobjs: 5,
        subobj_count: 6,
        freed: 7,
    };
    for order in [Order::Little, Order::Big] {
        let bytes = phys.encode(56, order).unwrap();
        assert_eq!(BpobjPhys::decode(&bytes, order), Ok(phys));
        assert_eq!(BpobjPhys::decode(&bytes[..48], order), Ok(BpobjPhys { freed: 0, ..phys }));
        assert_eq!(
            BpobjPhys::decode(&bytes[..16], order),
            Ok(BpobjPhys { blkptrs: 1, bytes: 2, ..Default::default() })
        );
        assert!(BpobjPhys::decode(&bytes[..15], order).is_err());
    }
    assert!(phys.encode(48, Order::Little).is_err(), "would lose a count");
    assert!(phys.encode(60, Order::Little).is_err());
}

#[test]
fn entries_of_a_real_pool_are_stripped_already() {
    let block = hex(include_str!("../../testdata/bpobj-entries.hex"));
    for index in 0..4 {
        let entry = BpobjEntry::decode_at(&block, index, Order::Little).unwrap();
        assert!(!entry.freed && entry.blkptr.psize() > 0);
        assert_eq!(BpobjEntry::strip(&entry.blkptr, false), Ok(entry));
        assert_eq!(entry.encode(Order::Little), block[index * 128..][..128]);
    }
    assert!(BpobjEntry::decode_at(&block, 4, Order::Little).is_err());
}

#[test]
fn stripping_keeps_what_accounting_needs() {
    let all = hex(include_str!("../../testdata/blkptrs.hex"));
    for index in 0..all.len() / BlkPtr::BYTES {
        let pointer = BlkPtr::decode_at(&all, index, Order::Little).unwrap();
        let entry = BpobjEntry::strip(&pointer, true).unwrap();
        let left = entry.blkptr;
        assert_eq!(
            (left.asize(), left.psize(), left.lsize()),
            (pointer.asize(), pointer.psize(), pointer.lsize())
        );
        assert_eq!((left.birth(), left.is_dedup()), (pointer.birth(), pointer.is_dedup()));
        if pointer.is_dedup() {
            assert_eq!(left.checksum(), pointer.checksum());
        }
        let again = BpobjEntry::decode_at(&entry.encode(Order::Big), 0, Order::Big).unwrap();
        assert_eq!(again, entry);
        assert_eq!(again.freed, !pointer.is_embedded());
    }
}

#[test]
fn deadlist_and_bptree_records_survive() {
    for order in [Order::Little, Order::Big] {
        let deadlist = DeadlistPhys { used: 1, compressed_bytes: 2, uncompressed_bytes: 3, pad: [9; 37] };
        assert_eq!(DeadlistPhys::decode(&deadlist.encode(order), order), Ok(deadlist));
        let bptree = BptreePhys { begin: 1, end: 4, bytes: 5, compressed_bytes: 6, uncompressed_bytes: 7 };
        assert_eq!(BptreePhys::decode(&bptree.encode(order), order), Ok(bptree));
        let backwards = BptreePhys { begin: 5, ..bptree };
        assert!(BptreePhys::decode(&backwards.encode(order), order).is_err());
        let all = hex(include_str!("../../testdata/blkptrs.hex"));
        let objset = BlkPtr::decode(&all, Order::Little).unwrap();
        let entry = BptreeEntry { objset, birth_txg: 8, resume: [1, 2, 3, 4] };
        assert_eq!(entry.encode(order).len(), BptreeEntry::BYTES);
        assert_eq!(BptreeEntry::decode(&entry.encode(order), order), Ok(entry));
    }
}
