use proptest::prelude::*;

use super::*;
use crate::testdata::padded;

#[test]
fn a_real_snapshot_reads_and_writes_alike() {
    let bytes = padded(include_str!("../../testdata/dataset-snapshot.hex"), DatasetPhys::BYTES);
    let dataset = DatasetPhys::decode(&bytes, Order::Little).unwrap();
    assert_eq!(
        (dataset.dir, dataset.prev_snap, dataset.prev_snap_txg, dataset.next_snap),
        (128, 141, 18, 146)
    );
    assert_eq!((dataset.creation_txg, dataset.deadlist, dataset.guid), (23, 142, 8_842_360_960_897_557_671));
    assert!(dataset.is_snapshot() && !dataset.is_inconsistent());
    assert_eq!(dataset.flags, dataset_flags::UNIQUE_ACCURATE);
    assert!(dataset.is_same_name("a", "a") && !dataset.is_same_name("a", "A"));
    let flags = dataset.flags | dataset_flags::CASE_INSENSITIVE;
    let folding = DatasetPhys { flags, ..dataset };
    assert!(folding.is_same_name("a", "A") && !folding.is_same_name("a", "ab"));
    assert_eq!(dataset.bp.birth(), 19);
    assert_eq!(dataset.next_clones, 155);
    assert_eq!(dataset.encode(Order::Little), bytes);
    assert_eq!(DatasetPhys::decode(&dataset.encode(Order::Big), Order::Big), Ok(dataset));
    assert!(DatasetPhys::decode(&bytes[..319], Order::Little).is_err());
}

#[test]
fn a_real_directory_adds_up() {
    let bytes = padded(include_str!("../../testdata/dir.hex"), DirPhys::BYTES);
    let dir = DirPhys::decode(&bytes, Order::Little).unwrap();
    assert_eq!((dir.head_dataset, dir.parent, dir.origin, dir.child_map), (54, 0, 48, 34));
    assert_eq!(dir.flags, DIR_USED_BREAKDOWN);
    assert_eq!(dir.used_breakdown.iter().sum::<u64>(), dir.used_bytes, "docs/format/mos.md §7 rule 4");
    assert_eq!(dir.encode(Order::Little), bytes);
    assert_eq!(DirPhys::decode(&dir.encode(Order::Big), Order::Big), Ok(dir));
}

#[test]
fn bookmarks_have_3_to_12_words() {
    for len in 0..16_u64 {
        let words: Vec<_> = (1..=len).collect();
        match BookmarkPhys::from_words(&words) {
            Ok(bookmark) => {
                assert!((3..=12).contains(&len));
                assert_eq!(bookmark.to_words(), words);
                assert_eq!(bookmark.redaction_object(), (len > 3).then_some(4));
            }
            Err(_) => assert!(!(3..=12).contains(&len)),
        }
    }
}

proptest! {
    #[test]
    fn damaged_datasets_never_panic(at in 0..320_usize, byte: u8, len in 0..=320_usize) {
        let mut bytes = padded(include_str!("../../testdata/dataset-snapshot.hex"), 320);
        bytes[at] = byte;
        if let Ok(dataset) = DatasetPhys::decode(&bytes[..len], Order::Little) {
            prop_assert_eq!(dataset.encode(Order::Little), bytes);
        }
    }
}
