use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::testdata::hex;

const XDR: Encoding = Encoding::Xdr(Order::Little);

/// The worked example of docs/format/labels.md §6, closed after the second pair.
#[test]
fn the_start_of_a_label_reads_as_documented() {
    let bytes = hex("01010000 00000000 00000001 00000024 00000020 00000007 76657273 696f6e00
         00000008 00000001 00000000 00001388 00000020 00000020 00000004 6e616d65
         00000009 00000001 00000004 74616e6b 00000000 00000000");
    let (list, encoding, len) = NvList::decode_stream(&bytes).unwrap();
    assert_eq!((encoding, len), (XDR, bytes.len()));
    assert_eq!((list.u64("version"), list.str("name")), (Some(5000), Some("tank")));
    assert_eq!(list.to_string(), "version: 5000\nname: 'tank'\n");
    assert_eq!(list.encode(XDR).unwrap(), bytes);
}

#[test]
fn packed_lists_of_real_pools_are_reproduced_byte_by_byte() {
    for text in [
        include_str!("../../testdata/config-mirror.hex"),
        include_str!("../../testdata/config-log.hex"),
        include_str!("../../testdata/config-raidz-expanding.hex"),
        include_str!("../../testdata/config-cache.hex"),
        include_str!("../../testdata/config-removal.hex"),
        include_str!("../../testdata/config-mos-removal.hex"),
    ] {
        let mut bytes = hex(text);
        bytes.extend([0; 32]); // the final zeros of the list itself
        let (list, encoding, len) = NvList::decode_stream(&bytes).unwrap();
        assert_eq!(list.encode(encoding).unwrap(), bytes[..len]);
        assert!(bytes[len..].iter().all(|byte| *byte == 0));
        let native = list.encode(Encoding::Native(Order::Big)).unwrap();
        assert_eq!(NvList::decode(&native), Ok(list));
    }
}

#[test]
fn history_of_a_real_pool_is_reproduced_byte_by_byte() {
    let bytes = hex(include_str!("../../testdata/history.hex"));
    let records: Vec<_> = crate::history::records(&bytes).collect::<Result<_>>().unwrap();
    assert_eq!(records.len(), 2);
    assert_eq!(records[1].str("ioctl"), Some("create"));
    let props = records[1].nvlist("in_nvl").and_then(|list| list.nvlist("props")).expect("nested twice");
    assert!(props.u64("volsize").is_some(), "{}", records[1]);
    let again = records.iter().flat_map(|list| crate::history::encode_record(list, Order::Little).unwrap());
    assert_eq!(again.collect::<Vec<_>>(), bytes);
}

#[test]
fn text_that_is_not_utf8_survives() {
    let mut list = NvList::new();
    list.set("path", NvStr::from_bytes(b"/dev/caf\xe9"));
    for encoding in [XDR, Encoding::Native(Order::Little)] {
        let again = NvList::decode(&list.encode(encoding).unwrap()).unwrap();
        assert_eq!(again.str("path"), None);
        assert_eq!(again.string("path").map(NvStr::as_bytes), Some(&b"/dev/caf\xe9"[..]));
    }
}

#[test]
fn lists_nested_too_deep_are_refused_on_both_ways() {
    let nest = |levels| {
        (0..levels).fold(NvList::new(), |inner, _| [("in", Value::NvList(inner))].into_iter().collect())
    };
    for encoding in [XDR, Encoding::Native(Order::Little)] {
        let deepest = nest(DEPTH_MAX).encode(encoding).unwrap();
        assert!(NvList::decode(&deepest).is_ok());
        assert_eq!(
            nest(DEPTH_MAX + 1).encode(encoding).unwrap_err().reason,
            Reason::TooDeep { limit: DEPTH_MAX }
        );
    }
    // A hand-made bomb: each pair opens another list.
    let mut bomb = vec![1, 1, 0, 0];
    for _ in 0..10_000 {
        bomb.extend(hex("00000000 00000001 00000020 00000020 00000001 61000000 00000013 00000001"));
    }
    assert_eq!(NvList::decode(&bomb).unwrap_err().reason, Reason::TooDeep { limit: DEPTH_MAX });
}

#[test]
fn counts_that_promise_too_much_cost_no_memory() {
    // "a": u64 array of 2^32-1, then nothing.
    let xdr = hex(
        "01010000 00000000 00000001 00000024 00000020 00000001 61000000 00000010 ffffffff ffffffff 00000000",
    );
    assert!(matches!(NvList::decode(&xdr).unwrap_err().reason, Reason::Truncated { .. }));
    for type_id in 10..=26_u8 {
        let mut list = xdr.clone();
        list[31] = type_id;
        assert!(NvList::decode(&list).is_err(), "type {type_id}");
    }
}

#[test]
fn a_pair_that_is_not_as_long_as_it_says_is_refused() {
    let mut list = NvList::new();
    list.set("version", 5000_u64);
    let mut bytes = list.encode(XDR).unwrap();
    bytes[15] += 4;
    assert!(matches!(NvList::decode(&bytes).unwrap_err().reason, Reason::Inconsistent(_)));
}

#[test]
fn required_pairs_say_what_is_wrong() {
    let mut list = NvList::new();
    list.set("guid", "not a number");
    assert_eq!(list.require_u64("txg").unwrap_err().to_string(), "nvlist, byte 0: no pair \"txg\"");
    assert_eq!(
        list.require_u64("guid").unwrap_err().to_string(),
        "nvlist, byte 0: pair \"guid\" is not a number"
    );
}

fn text() -> impl Strategy<Value = NvStr> {
    vec(1..=255_u8, 0..12).prop_map(|bytes| NvStr::from_bytes(&bytes))
}

fn scalar() -> impl Strategy<Value = Value> {
    use Value as V;
    prop_oneof![
        Just(V::Boolean),
        any::<u8>().prop_map(V::Byte),
        any::<i16>().prop_map(V::Int16),
        any::<u16>().prop_map(V::Uint16),
        any::<i32>().prop_map(V::Int32),
        any::<u32>().prop_map(V::Uint32),
        any::<i64>().prop_map(V::Int64),
        any::<u64>().prop_map(V::Uint64),
        any::<i64>().prop_map(V::HrTime),
        any::<bool>().prop_map(V::BooleanValue),
        any::<i8>().prop_map(V::Int8),
        any::<u8>().prop_map(V::Uint8),
        text().prop_map(V::String),
    ]
}

fn array() -> impl Strategy<Value = Value> {
    use Value as V;
    prop_oneof![
        vec(any::<u8>(), 0..9).prop_map(V::ByteArray),
        vec(any::<i16>(), 0..9).prop_map(V::Int16Array),
        vec(any::<u16>(), 0..9).prop_map(V::Uint16Array),
        vec(any::<i32>(), 0..9).prop_map(V::Int32Array),
        vec(any::<u32>(), 0..9).prop_map(V::Uint32Array),
        vec(any::<i64>(), 0..9).prop_map(V::Int64Array),
        vec(any::<u64>(), 0..9).prop_map(V::Uint64Array),
        vec(any::<bool>(), 0..9).prop_map(V::BooleanArray),
        vec(any::<i8>(), 0..9).prop_map(V::Int8Array),
        vec(any::<u8>(), 0..9).prop_map(V::Uint8Array),
        vec(text(), 0..4).prop_map(V::StringArray),
    ]
}

fn list() -> impl Strategy<Value = NvList> {
    let leaf = prop_oneof![scalar(), array()];
    let value = leaf.prop_recursive(3, 24, 4, |inner| {
        let list = vec(("[a-z:_]{0,9}", inner), 0..4).prop_map(|pairs| pairs.into_iter().collect::<NvList>());
        prop_oneof![list.clone().prop_map(Value::NvList), vec(list, 0..3).prop_map(Value::NvListArray),]
    });
    (vec(("[a-z:_]{0,20}", value), 0..6), 0..4_u32).prop_map(|(pairs, flags)| NvList { flags, pairs })
}

proptest! {
    #[test]
    fn every_list_survives_every_encoding(list in list(), little: bool) {
        let order = if little { Order::Little } else { Order::Big };
        for encoding in [Encoding::Xdr(order), Encoding::Native(order)] {
            let packed = list.encode(encoding).unwrap();
            prop_assert_eq!(NvList::decode_stream(&packed), Ok((list.clone(), encoding, packed.len())));
        }
    }

    #[test]
    fn damaged_lists_never_panic(list in list(), native: bool, at: usize, byte: u8, cut: usize) {
        let encoding = if native { Encoding::Native(Order::Little) } else { XDR };
        let mut packed = list.encode(encoding).unwrap();
        let at = at % packed.len();
        packed[at] = byte;
        drop(NvList::decode(&packed));
        let cut = cut % packed.len();
        if cut < packed.len() {
            drop(NvList::decode(&packed[..cut]));
        }
    }

    #[test]
    fn random_bytes_never_panic(mut bytes in vec(any::<u8>(), 4..200), xdr in 0..2_u8) {
        (bytes[0], bytes[1]) = (xdr, 1);
        bytes.splice(4..4, [0, 0, 0, 0, 0, 0, 0, 1]);
        drop(NvList::decode(&bytes));
    }
}
