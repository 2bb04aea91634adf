use proptest::prelude::*;

use super::*;
use crate::testdata::{hex, padded};

fn dnode(text: &str, len: usize) -> Dnode {
    let bytes = padded(text, len);
    let dnode = Dnode::decode(&bytes, Order::Little).unwrap().expect("allocated");
    assert_eq!(dnode.encode(Order::Little).unwrap(), bytes);
    assert_eq!(Dnode::decode(&dnode.encode(Order::Big).unwrap(), Order::Big), Ok(Some(dnode.clone())));
    assert_eq!(Dnode::slots_at(&bytes), dnode.slots());
    dnode
}

#[test]
fn the_data_object_of_a_real_volume_has_the_shape_of_its_tree() {
    let dnode = dnode(include_str!("../../testdata/dnode-zvol.hex"), 512);
    assert_eq!((dnode.object_type, dnode.levels, dnode.blkptrs.len()), (ObjectType::ZVOL, 2, 3));
    assert_eq!(
        (dnode.data_block_bytes(), dnode.indirect_block_bytes(), dnode.fanout()),
        (8192, 131_072, Fanout::from_shift(10))
    );
    assert_eq!((dnode.max_block_id, dnode.used_bytes()), (0x8ff, Some(0x1f_d000)));
    assert!(dnode.bonus.is_empty() && dnode.spill.is_none());
    let used: Vec<_> = dnode.blkptrs.iter().filter(|pointer| !pointer.is_hole()).collect();
    assert!(!used.is_empty());
    assert!(used.iter().all(|pointer| pointer.level() == 1 && pointer.lsize() == 131_072));
}

#[test]
fn a_file_with_a_spill_block_has_both_slots_of_bonus() {
    let dnode = dnode(include_str!("../../testdata/dnode-spill.hex"), 1024);
    assert_eq!((dnode.slots(), dnode.bonus_type, dnode.bonus.len()), (2, ObjectType::SA, 0x2c0));
    let spill = dnode.spill.expect("flagged");
    assert_eq!(spill.object_type(), ObjectType::SA);
}

#[test]
fn other_real_dnodes_survive() {
    assert!(dnode(include_str!("../../testdata/dnode-zap.hex"), 512).object_type.is_zap());
    assert_eq!(dnode(include_str!("../../testdata/dnode-large.hex"), 1024).slots(), 2);
}

#[test]
fn zero_is_a_free_slot() {
    assert_eq!(Dnode::decode(&[0; 512], Order::Little), Ok(None));
    assert_eq!(Dnode::slots_at(&[0; 512]), 1);
    assert!(Dnode::decode(&[0; 511], Order::Little).is_err());
}

#[test]
fn each_bad_field_is_refused_by_name() {
    let good = padded(include_str!("../../testdata/dnode-zvol.hex"), 512);
    for (at, value, what) in [
        (0, 54, "type"),
        (1, 18, "indirect block shift"),
        (1, 7, "indirect block shift"),
        (2, 0, "levels"),
        (2, 31, "levels"),
        (3, 0, "number of block pointers"),
        (3, 4, "number of block pointers"),
        (4, 60, "bonus type"),
        (9, 0xff, "data block sectors"),
        (11, 1, "bonus length"),
        (12, 32, "extra slots"),
    ] {
        let mut bytes = good.clone();
        bytes[at] = value;
        let error = Dnode::decode(&bytes, Order::Little).unwrap_err();
        assert!(matches!(error.reason, Reason::OutOfRange { field, .. } if field == what), "{what}: {error}");
    }
    let mut bytes = good.clone();
    bytes[12] = 1;
    assert!(matches!(Dnode::decode(&bytes, Order::Little).unwrap_err().reason, Reason::Truncated { .. }));
    bytes = good;
    bytes[64 + 128 + 54] = 0x7f; // type of the second pointer
    assert_eq!(Dnode::decode(&bytes, Order::Little).unwrap_err().offset, 64 + 128 + 48);
}

#[test]
fn what_does_not_fit_is_not_encoded() {
    let mut dnode = dnode(include_str!("../../testdata/dnode-zvol.hex"), 512);
    dnode.bonus = Bonus::new(&[1; 64]);
    dnode.bonus_type = ObjectType::BPOBJ_HEADER;
    assert!(dnode.encode(Order::Little).is_ok());
    dnode.bonus = Bonus::new(&[1; 65]);
    assert!(dnode.encode(Order::Little).is_err());
    dnode.bonus = Bonus::new(&[]);
    dnode.flags |= flags::SPILL;
    assert!(dnode.encode(Order::Little).is_err());
    assert!(BlkPtrs::new(&[BlkPtr::EMPTY; 4]).is_err());
    assert!(BlkPtrs::new(&[]).is_err());
}

proptest! {
    #[test]
    fn every_dnode_survives_in_both_orders(
        (kind, bonus_kind, levels, pointers, slots) in (1..54_u8, 0..54_u8, 1..=30_u8, 1..=3_usize, 0..32_u8),
        (bonus, spill) in (prop::collection::vec(any::<u8>(), 0..=64), any::<bool>()),
        (max_block_id, used, sectors) in (any::<u64>(), any::<u64>(), 1..=32768_u16),
    ) {
        let bonus = if spill && slots == 0 && pointers == 3 { &[] } else { &bonus[..] };
        let dnode = Dnode {
            object_type: ObjectType(kind), indirect_shift: 17, levels, bonus_type: ObjectType(bonus_kind),
            checksum_id: 0, compression_id: 0, flags: 1 | if spill { flags::SPILL } else { 0 }, data_sectors: sectors,
            extra_slots: slots, max_block_id, used, reserved: ([1, 2, 3], [4; 32]),
            blkptrs: BlkPtrs::new(&[BlkPtr::EMPTY; 3][..pointers]).unwrap(), bonus: Bonus::new(bonus),
            spill: spill.then_some(BlkPtr::EMPTY),
        };
        let fits = 64 + pointers * 128 + bonus.len() + if spill { 128 } else { 0 } <= dnode.slots() * 512;
        for order in [Order::Little, Order::Big] {
            match dnode.encode(order) {
                Ok(bytes) => prop_assert_eq!(Dnode::decode(&bytes, order), Ok(Some(dnode.clone()))),
                Err(_) => prop_assert!(!fits),
            }
        }
    }

    #[test]
    fn damaged_dnodes_never_panic(at in 0..512_usize, byte: u8) {
        let mut bytes = padded(include_str!("../../testdata/dnode-zvol.hex"), 512);
        bytes[at] = byte;
        for order in [Order::Little, Order::Big] {
            if let Ok(Some(dnode)) = Dnode::decode(&bytes, order) {
                prop_assert!(dnode.fanout().entries() <= 1 << 10);
                prop_assert!(dnode.encode(order).is_ok());
                prop_assert!(dnode.used_bytes().is_none_or(|used| used >= dnode.used));
            }
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        drop(Dnode::decode(&bytes, Order::Little));
        prop_assert!((1..=SLOTS_MAX).contains(&Dnode::slots_at(&bytes)));
    }
}

#[test]
fn a_long_bonus_keeps_its_bytes() {
    let long: Vec<u8> = (0..1000).map(|n| n as u8).collect();
    assert_eq!(*Bonus::new(&long), long[..]);
    assert_eq!(*Bonus::new(&long[..320]), long[..320]);
    assert_eq!(hex("00 ff"), *Bonus::new(&[0, 255]));
}
