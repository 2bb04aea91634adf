use proptest::prelude::*;

use super::*;
use crate::testdata::hex;

/// The worked example of docs/format/blkptr.md §7: the root pointer of an uberblock.
const ROOT: [u64; 16] =
    [8, 0x181c0, 8, 0x201c0, 8, 0x58320, 0x800b_0702_0007_0007, 0, 0, 0, 0x25, 0x3b, 9, 0x62fc_86df, 3, 4];

#[test]
fn the_root_pointer_reads_as_documented() {
    let pointer = BlkPtr::from_words(ROOT).unwrap();
    let dvas: Vec<_> = pointer.dvas().collect();
    let dva = |offset| Dva { vdev: 0, offset, asize: 4096, gang: false };
    assert_eq!(dvas, [dva(0x303_8000), dva(0x403_8000), dva(0xb06_4000)]);
    assert_eq!((pointer.lsize(), pointer.psize(), pointer.asize()), (4096, 4096, 12288));
    assert_eq!((pointer.compression_id(), pointer.checksum_id()), (2, 7));
    assert_eq!((pointer.object_type(), pointer.level()), (ObjectType::OBJSET, 0));
    assert_eq!((pointer.birth(), pointer.physical_birth(), pointer.fill()), (37, 37, 59));
    assert_eq!(pointer.order(), Order::Little);
    assert!(!pointer.is_hole() && !pointer.is_gang() && !pointer.is_dedup() && !pointer.is_encrypted());
    assert_eq!(
        pointer.to_string(),
        "DVA[0]=<0:3038000:1000> DVA[1]=<0:4038000:1000> DVA[2]=<0:b064000:1000> [L0 DMU objset] fletcher4 \
         uncompressed unencrypted LE contiguous unique triple size=1000L/1000P birth=37L/37P fill=59 \
         cksum=0000000000000009:0000000062fc86df:0000000000000003:0000000000000004"
    );
}

/// The worked example of docs/format/blkptr.md §3.
#[test]
fn an_embedded_block_gives_its_payload_back() {
    let mut payload = hex("00000026 21030001 00418055 a4070900 0f020020 16043400");
    payload.resize(42, 0x61);
    let pointer = BlkPtr::embed(&payload, 512, 15, ObjectType(0x18), Order::Little, 5).unwrap();
    assert_eq!(pointer.words()[6].to_le_bytes(), [0xff, 0x01, 0x00, 0x52, 0x8f, 0x00, 0x18, 0x80]);
    let embedded = pointer.embedded().unwrap();
    assert_eq!(embedded.payload(), payload);
    assert_eq!((embedded.kind, embedded.lsize, embedded.compression_id), (EmbeddedKind::Data, 512, 15));
    assert_eq!((pointer.psize(), pointer.asize(), pointer.fill(), pointer.birth()), (0, 0, 1, 5));
    assert_eq!(pointer.encode(Order::Little)[..24], payload[..24], "payload bytes lie there as they are");
    let big = BlkPtr::decode(&pointer.encode(Order::Big), Order::Big).unwrap();
    assert_eq!(big.embedded().unwrap().payload(), payload);
    assert!(BlkPtr::embed(&[0; 113], 512, 2, ObjectType::ZVOL, Order::Little, 5).is_err());
    assert!(BlkPtr::embed(&[], 512, 2, ObjectType::ZVOL, Order::Little, 5).is_err());
}

/// Verified bytes of docs/format/blkptr.md §2: zvol block 0 punched at txg 16.
#[test]
fn a_punched_hole_keeps_size_type_level_and_birth() {
    let hole = BlkPtr::punched(16384, ObjectType::ZVOL, 0, 16).unwrap();
    assert_eq!(hole.words()[6].to_le_bytes(), [0x1f, 0, 0, 0, 0, 0, 0x17, 0]);
    assert!(hole.is_hole());
    assert_eq!((hole.lsize(), hole.psize(), hole.birth(), hole.fill()), (16384, 0, 16, 0));
    assert_eq!(hole.dvas().count(), 0);
    assert!(BlkPtr::EMPTY.is_hole());
}

#[test]
fn pointers_of_real_pools_survive_in_both_orders() {
    let bytes = hex(include_str!("../../testdata/blkptrs.hex"));
    let (mut holes, mut embedded, mut gangs, mut dedup) = (0, 0, 0, 0);
    for index in 0..bytes.len() / BlkPtr::BYTES {
        let pointer = BlkPtr::decode_at(&bytes, index, Order::Little).unwrap();
        assert_eq!(pointer.encode(Order::Little), bytes[index * 128..][..128]);
        assert_eq!(BlkPtr::decode(&pointer.encode(Order::Big), Order::Big), Ok(pointer));
        holes += u32::from(pointer.is_hole());
        embedded += u32::from(pointer.is_embedded());
        gangs += u32::from(pointer.is_gang());
        dedup += u32::from(pointer.is_dedup());
    }
    assert!(holes > 0 && embedded > 0 && gangs > 0 && dedup > 0, "{holes} {embedded} {gangs} {dedup}");
    assert!(BlkPtr::decode_at(&bytes, bytes.len() / 128, Order::Little).is_err());
    assert!(BlkPtr::decode_at(&bytes, usize::MAX, Order::Little).is_err());
}

/// One change to the root pointer for each rule.
#[test]
fn each_rule_refuses_its_violation() {
    let with = |word: usize, value: u64| {
        let mut words = ROOT;
        words[word] = value;
        BlkPtr::from_words(words)
    };
    let prop = ROOT[6];
    for (what, result) in [
        ("type", with(6, prop & !(0xff << 48) | 54 << 48)),
        ("compression", with(6, prop & !(0x7f << 32) | 17 << 32)),
        ("checksum", with(6, prop & !(0xff << 40) | 15 << 40)),
        ("lsize", with(6, prop | 0xffff)),
        ("psize", with(6, prop | 0xffff << 16)),
        ("asize", with(0, 0)),
        ("offset", with(1, (1 << 62) - 1)),
        ("second offset", with(3, (1 << 62) - 1)),
        ("mixed gang", with(1, 0x181c0 | 1 << 63)),
        ("embedded type", with(6, prop | 1 << 39)),
    ] {
        assert!(result.is_err(), "{what}: {result:?}");
    }
    let too_long = 1 << 39 | 112 << 25; // psize 113
    assert!(with(6, too_long).is_err());
    assert!(with(6, 1 << 39 | 111 << 25).is_ok());
    // A DVA without size is unused, whatever else it says.
    assert_eq!(with(2, 0).unwrap().dvas().count(), 2);
}

#[test]
fn the_third_dva_of_ciphertext_is_salt_and_iv() {
    let mut words = ROOT;
    words[6] = ROOT[6] & !(0xff << 48) | 0x17 << 48 | 1 << 61;
    (words[4], words[5], words[11]) = (0x1111, u64::MAX, 7 | 0xaabb_ccdd << 32);
    let pointer = BlkPtr::from_words(words).unwrap();
    assert_eq!(pointer.protection(), Protection::Encrypted);
    assert_eq!(pointer.dvas().count(), 2);
    assert_eq!(pointer.fill(), 7);
    let (salt, iv) = pointer.crypt_params().unwrap();
    assert_eq!(
        (salt, iv[..8].iter().all(|byte| *byte == 0xff), &iv[8..]),
        (0x1111, true, &[0xdd, 0xcc, 0xbb, 0xaa][..])
    );
    words[6] |= 1 << 56;
    words[4] = 8;
    words[5] = 64;
    assert_eq!(BlkPtr::from_words(words).unwrap().protection(), Protection::IndirectMac);
}

#[test]
fn births_of_rewritten_blocks_count_physically() {
    let mut words = ROOT;
    words[9] = 50;
    let pointer = BlkPtr::from_words(words).unwrap();
    assert_eq!((pointer.birth(), pointer.physical_birth(), pointer.space_birth()), (37, 50, 37));
    words[7] = 1 << 63;
    let rewritten = BlkPtr::from_words(words).unwrap();
    assert_eq!(rewritten.space_birth(), 50);
    assert!(pointer.same_block(&rewritten));
}

#[test]
fn a_stored_block_reads_back_and_misfits_are_refused() {
    let dva = Dva { vdev: 3, offset: 1 << 40, asize: 8192, gang: false };
    let stored = Stored {
        dvas: [dva, Dva::default(), Dva::default()],
        lsize: 131_072,
        psize: 4096,
        compression_id: 15,
        checksum_id: 7,
        object_type: ObjectType::ZVOL,
        level: 1,
        dedup: false,
        order: Order::Little,
        birth: 9,
        physical_birth: 9,
        fill: 16,
        checksum: [1, 2, 3, 4],
    };
    let pointer = BlkPtr::stored(&stored).unwrap();
    assert_eq!(pointer.dvas().collect::<Vec<_>>(), [dva]);
    assert_eq!((pointer.lsize(), pointer.psize(), pointer.level(), pointer.fill()), (131_072, 4096, 1, 16));
    assert_eq!((pointer.words()[9], pointer.physical_birth()), (0, 9));
    assert!(BlkPtr::stored(&Stored { psize: 1000, ..stored }).is_err());
    assert!(BlkPtr::stored(&Stored { lsize: 0, ..stored }).is_err());
    assert!(BlkPtr::stored(&Stored { level: 32, ..stored }).is_err());
    let crooked = Dva { offset: 100, ..dva };
    assert!(BlkPtr::stored(&Stored { dvas: [crooked; 3], ..stored }).is_err());
    let far = Dva { vdev: 1 << 24, ..dva };
    assert!(BlkPtr::stored(&Stored { dvas: [far; 3], ..stored }).is_err());
}

/// Every accessor on whatever passes: none may panic.
fn use_all(pointer: &BlkPtr) -> u64 {
    let text = pointer.to_string().len() as u64;
    let payload = pointer.embedded().map_or(0, |embedded| embedded.payload().len() as u64);
    let ends = pointer.dvas().map(|dva| dva.offset + dva.asize).max().unwrap_or(0);
    assert!(ends <= Dva::END_MAX && pointer.psize() <= BLOCK_BYTES_MAX && pointer.lsize() <= 1 << 25);
    assert_eq!(pointer.crypt_params().is_some(), pointer.is_encrypted() && !pointer.is_hole());
    text ^ payload ^ pointer.fill() ^ pointer.space_birth() ^ pointer.asize()
}

proptest! {
    #[test]
    fn random_words_are_refused_or_harmless(words: [u64; 16]) {
        if let Ok(pointer) = BlkPtr::from_words(words) {
            use_all(&pointer);
        }
    }

    #[test]
    fn plausible_words_are_refused_or_harmless_and_survive(
        dvas in prop::array::uniform6(0..u64::MAX >> 4),
        prop in (0..1_u64 << 15, 0..1_u64 << 15, 0..17_u64, prop::bool::weighted(0.3), 0..15_u64, 0..64_u64, 0..8_u64, 0..8_u64),
        rest: [u64; 9],
    ) {
        let (lsize, psize, comp, embedded, checksum, kind, level, flags) = prop;
        let word = lsize | psize << 16 | comp << 32 | u64::from(embedded) << 39 | checksum << 40 | kind << 48 | level << 56 | flags << 61;
        let [a, b, c, d, e, f] = dvas;
        let [r0, r1, r2, r3, r4, r5, r6, r7, r8] = rest;
        let words = [a, b >> 10, c, d >> 10, e, f >> 10, word, r0, r1, r2, r3, r4, r5, r6, r7, r8];
        if let Ok(pointer) = BlkPtr::from_words(words) {
            use_all(&pointer);
            for order in [Order::Little, Order::Big] {
                prop_assert_eq!(BlkPtr::decode(&pointer.encode(order), order), Ok(pointer));
            }
        }
    }

    #[test]
    fn what_is_embedded_comes_out(payload in prop::collection::vec(any::<u8>(), 1..=112), lsize in 1..=1_u64 << 24, birth: u64) {
        let pointer = BlkPtr::embed(&payload, lsize, 15, ObjectType::PLAIN_FILE, Order::Big, birth).unwrap();
        let embedded = pointer.embedded().unwrap();
        prop_assert_eq!((embedded.payload(), embedded.lsize, pointer.birth()), (&payload[..], lsize, birth));
    }
}
