use super::*;
use crate::testdata::padded;
use crate::uberblock::Uberblock;

fn config(text: &str) -> LabelConfig {
    let region = padded(text, CONFIG_BYTES as usize);
    let config = LabelConfig::decode(&region).unwrap();
    assert_eq!(config.to_nvlist(), NvList::decode(&region).unwrap(), "typed and back changes nothing");
    config
}

#[test]
fn labels_lie_at_both_ends_and_asize_is_what_is_between() {
    let geometry = Geometry::new((256 << 20) + 12345).unwrap();
    assert_eq!(geometry.labels(), [0, 0x40000, (256 << 20) - 0x80000, (256 << 20) - 0x40000]);
    assert_eq!(geometry.asize(), 263_716_864);
    assert_eq!(geometry.allocatable(), 0x40_0000..(256 << 20) - 0x80000);
    assert_eq!(Geometry::new((64 << 20) - 1), None);
}

#[test]
fn slot_sizes_follow_the_ashift() {
    for (ashift, bytes, slots) in
        [(9, 1024, 128), (10, 1024, 128), (11, 2048, 64), (12, 4096, 32), (13, 8192, 16), (16, 8192, 16)]
    {
        let ring = Ring::for_ashift(ashift);
        assert_eq!((ring.slot_bytes(), ring.slots()), (bytes, slots), "ashift {ashift}");
        assert_eq!(ring.regions().count() as u64, slots);
        let last = ring.slot(slots - 1).unwrap();
        assert_eq!(last.offset() + last.bytes(), LABEL_BYTES);
        assert_eq!(ring.slot(slots), None);
    }
    // The worked example: txg 37 on ashift 12 is slot 5, at 0x25000.
    let ring = Ring::for_ashift(12);
    let slot = ring.slot(ring.slot_for(37, Multihost::Off)).unwrap();
    assert_eq!(slot.offset(), 0x25000);
    assert_eq!(slot.verifier(0x40000), [0x65000, 0, 0, 0]);
    assert_eq!(ring.slot_for(37, Multihost::On), 37 % 31);
}

#[test]
fn a_trailer_tells_its_order_and_reads_back() {
    for order in [Order::Little, Order::Big] {
        let mut region = [0; 1024];
        Trailer::place(&mut region, order, [1, 2, 3, 4]);
        assert_eq!(Trailer::read(&region), Ok(Trailer { order, checksum: [1, 2, 3, 4] }));
        assert!(region[..984].iter().all(|byte| *byte == 0));
    }
    assert!(Trailer::read(&[0; 1024]).is_err());
    assert!(Trailer::read(&[0; 39]).is_err());
}

#[test]
fn a_real_uberblock_slot_has_its_trailer_in_place() {
    let bytes = crate::testdata::hex(include_str!("../../testdata/uberblock-slot.hex"));
    let trailer = Trailer::read(&bytes).unwrap();
    assert_eq!(trailer.order, Order::Little);
    assert_eq!(trailer.order, Uberblock::decode(&bytes).unwrap().order);
}

#[test]
fn a_leaf_of_a_mirror_knows_its_pool_and_its_sibling() {
    let LabelConfig::Member { guid, top_guid, pool } =
        config(include_str!("../../testdata/config-mirror.hex"))
    else {
        panic!("not a member")
    };
    assert_eq!(
        (pool.version, pool.name.as_str(), pool.state),
        (5000, Some("pmirrors2x2"), PoolState::Exported)
    );
    assert_eq!(pool.vdev_children, Some(2));
    let tree = &pool.vdev_tree;
    assert_eq!((&tree.kind, tree.guid, tree.ashift), (&VdevKind::Mirror, top_guid, Some(12)));
    assert_eq!(tree.children.len(), 2);
    assert!(
        tree.children.iter().any(|child| child.guid == guid && child.kind.is_leaf() && child.path.is_some())
    );
    assert_eq!(pool.features_for_read[..2], ["com.delphix:hole_birth", "com.delphix:embedded_data"]);
    let sum = tree.children.iter().fold(tree.guid, |sum, child| sum.wrapping_add(child.guid));
    assert_eq!(tree.guid_sum(), sum);
}

#[test]
fn a_log_device_says_so_twice() {
    let config = config(include_str!("../../testdata/config-log.hex"));
    let pool = config.pool().unwrap();
    assert!(pool.is_log && pool.vdev_tree.is_log);
    assert_eq!(pool.vdev_tree.guid, config.guid());
}

#[test]
fn a_raidz_that_grew_lists_when() {
    let config = config(include_str!("../../testdata/config-raidz-expanding.hex"));
    let tree = &config.pool().unwrap().vdev_tree;
    assert_eq!((&tree.kind, tree.nparity, tree.children.len()), (&VdevKind::Raidz, Some(1), 4));
    assert_eq!(tree.raidz_expand_txgs, [51]);
    assert!(!tree.raidz_expanding);
    assert_eq!(tree.children[0].dtl, Some(145));
}

#[test]
fn a_cache_device_belongs_to_nobody() {
    let LabelConfig::Cache(cache) = config(include_str!("../../testdata/config-cache.hex")) else {
        panic!("not a cache device")
    };
    assert_eq!((cache.guid, cache.ashift), (12_777_545_571_639_264_456, Some(12)));
    assert_eq!(cache.path.unwrap().as_str(), Some("/dev/img/l2arc-1.img"));
}

/// OpenZFS 2.1 and 2.2 write no more than this.
#[test]
fn the_short_form_of_a_spare_is_enough() {
    let mut list = NvList::new();
    list.set("version", 5000_u64);
    list.set("state", 3_u64);
    list.set("guid", 77_u64);
    let config = LabelConfig::from_nvlist(&list).unwrap();
    assert!(matches!(&config, LabelConfig::Spare(spare) if spare.guid == 77 && spare.path.is_none()));
    assert!(config.pool().is_none());
    assert_eq!(config.to_nvlist(), list);
}

#[test]
fn the_mos_config_has_the_whole_tree_with_removed_vdevs() {
    let bytes = padded(include_str!("../../testdata/config-mos-removal.hex"), 16384);
    let list = NvList::decode(&bytes).unwrap();
    let pool = PoolConfig::from_nvlist(&list).unwrap();
    assert_eq!(pool.to_nvlist(), list);
    let kinds: Vec<_> = pool.vdev_tree.walk().map(|vdev| vdev.kind.to_string()).collect();
    assert_eq!(kinds, ["root", "indirect", "disk", "disk"]);
    let removed = &pool.vdev_tree.children[0];
    assert_eq!((removed.indirect_object, removed.indirect_births), (Some(76), Some(78)));
    assert!(removed.non_allocating);
    assert_eq!(pool.vdev_tree.zap_root, Some(129));
    assert_eq!(
        (pool.vdev_tree.children[1].zap_leaf, pool.vdev_tree.children[1].zap_top),
        (Some(132), Some(133))
    );
}

#[test]
fn a_changed_field_changes_one_pair_and_keeps_the_unknown_ones() {
    let LabelConfig::Member { guid, top_guid, mut pool } =
        config(include_str!("../../testdata/config-log.hex"))
    else {
        panic!("not a member")
    };
    let before = LabelConfig::Member { guid, top_guid, pool: pool.clone() }.to_nvlist();
    pool.txg = 1234;
    pool.vdev_tree.offline = true;
    pool.vdev_tree.path = None;
    let after = LabelConfig::Member { guid, top_guid, pool }.to_nvlist();
    assert_eq!(after.u64("txg"), Some(1234));
    assert_eq!(after.u64("min_alloc"), before.u64("min_alloc"));
    let tree = after.nvlist("vdev_tree").unwrap();
    assert_eq!((tree.u64("offline"), tree.str("path")), (Some(1), None));
    assert_eq!(after.pairs.len(), before.pairs.len());
}

#[test]
fn what_must_be_there_must_be_there() {
    let list = config(include_str!("../../testdata/config-log.hex")).to_nvlist();
    for name in
        ["version", "name", "state", "txg", "pool_guid", "guid", "top_guid", "vdev_tree", "features_for_read"]
    {
        let mut list = list.clone();
        list.remove(name).expect(name);
        let error = LabelConfig::from_nvlist(&list).unwrap_err();
        assert_eq!(error.reason, Reason::Missing { name });
    }
}

#[test]
fn the_boot_environment_of_a_fresh_pool_is_empty_text() {
    assert_eq!(BootEnv::decode(&[0; 8192], Order::Little), Ok(BootEnv::Raw(Vec::new())));
    let mut text = [0; 8192];
    text[8..12].copy_from_slice(b"zfs:");
    assert_eq!(BootEnv::decode(&text, Order::Little), Ok(BootEnv::Raw(b"zfs:".to_vec())));
    text[0] = 9;
    assert!(BootEnv::decode(&text, Order::Little).is_err());
}

#[test]
fn a_label_is_256_kib() {
    let bytes = vec![0; LABEL_BYTES as usize];
    let label = Label::new(&bytes).unwrap();
    assert_eq!(label.region(Region::Config).len(), 112 << 10);
    assert!(label.config().is_err());
    assert!(Label::new(&bytes[1..]).is_err());
}
