use proptest::prelude::*;

use super::*;
use crate::testdata::hex;

#[test]
fn a_real_uberblock_reads_and_writes_alike() {
    let bytes = hex(include_str!("../../testdata/uberblock-slot.hex"));
    let uberblock = Uberblock::decode(&bytes).unwrap();
    assert_eq!((uberblock.order, uberblock.version, uberblock.txg), (Order::Little, 5000, 32));
    assert_eq!((uberblock.guid_sum, uberblock.timestamp), (2_379_037_662_481_391_590, 1_795_227_310));
    assert_eq!((uberblock.mmp, uberblock.checkpoint_txg), (Some(Mmp::default()), 0));
    assert_eq!(uberblock.rootbp.object_type(), crate::dnode::ObjectType::OBJSET);
    assert_eq!(uberblock.encode(), bytes[..Uberblock::BYTES]);

    let big = Uberblock { order: Order::Big, ..uberblock };
    assert_eq!(Uberblock::decode(&big.encode()), Ok(big));
    assert_eq!(Uberblock::from_words(&uberblock.to_words(), Order::Little), Ok(uberblock));
}

#[test]
fn old_uberblocks_end_after_the_root_pointer() {
    let bytes = hex(include_str!("../../testdata/uberblock-slot.hex"));
    let old = Uberblock::decode(&bytes[..168]).unwrap();
    assert_eq!((old.txg, old.software_version, old.mmp), (32, 0, None));
    assert!(Uberblock::decode(&bytes[..167]).is_err());
}

#[test]
fn an_empty_slot_is_none_and_a_bad_root_pointer_is_told() {
    assert!(matches!(Uberblock::decode(&[0; 1024]).unwrap_err().reason, Reason::BadMagic { found: 0 }));
    let mut bytes = hex(include_str!("../../testdata/uberblock-slot.hex"));
    bytes[40 + 54] = 0x7f;
    assert_eq!(Uberblock::decode(&bytes).unwrap_err().offset, 40 + 48);
}

#[test]
fn newer_is_txg_then_time_then_heartbeat() {
    let bytes = hex(include_str!("../../testdata/uberblock-slot.hex"));
    let base = Uberblock::decode(&bytes).unwrap();
    let beat = |sequence| Uberblock {
        mmp: Some(Mmp { delay_ns: 1, config: Mmp::pack(1000, sequence, 10) }),
        ..base
    };
    assert!(beat(2).rank() > beat(1).rank());
    assert!(Uberblock { timestamp: base.timestamp + 1, ..base }.rank() > beat(9).rank());
    assert!(Uberblock { txg: base.txg + 1, timestamp: 0, ..base }.rank() > beat(9).rank());
    let mmp = beat(7).mmp.unwrap();
    assert_eq!((mmp.interval_ms(), mmp.sequence(), mmp.fail_intervals()), (Some(1000), Some(7), Some(10)));
    assert!(mmp.is_active() && !Mmp::default().is_active());
    assert_eq!(Mmp::default().sequence(), None);
}

/// The running expansion of docs/format/vdevs.md §5: state 4, offset 1590885376.
#[test]
fn reflow_progress_is_an_offset_and_a_state() {
    let reflow = RaidzReflow((4 << 55) | (1_590_885_376 / 512));
    assert_eq!((reflow.offset(), reflow.scratch()), (1_590_885_376, ScratchState::Done(4)));
    assert_eq!(RaidzReflow(0).scratch(), ScratchState::Unused);
    assert_eq!(RaidzReflow(1 << 55).scratch(), ScratchState::Valid);
}

proptest! {
    #[test]
    fn damaged_uberblocks_never_panic(at in 0..216_usize, byte: u8) {
        let mut bytes = hex(include_str!("../../testdata/uberblock-slot.hex"));
        bytes[at] = byte;
        if let Ok(uberblock) = Uberblock::decode(&bytes) {
            prop_assert_eq!(Uberblock::decode(&uberblock.encode()), Ok(uberblock));
        }
    }
}
