use ondisk::features::CREATED_WITH;

use super::*;
use crate::mos::testing::{World, fresh};

#[tokio::test]
async fn a_new_pool_counts_what_the_worked_example_counts() {
    let mut world = World::new().await;
    let mos = &mut world.mos;
    create(mos).await.unwrap();
    for guid in CREATED_WITH {
        enable(mos, guid, 4).await.unwrap();
        // Again is nothing.
        enable(mos, guid, 5).await.unwrap();
    }
    let active: Vec<_> = counts(mos).await.unwrap().into_iter().filter(|(_, count)| *count > 0).collect();
    let expected = [
        ("com.delphix:embedded_data", 1),
        ("com.delphix:hole_birth", 1),
        ("org.illumos:lz4_compress", 1),
        // Itself and the eight enabled after it.
        ("com.delphix:enabled_txg", 9),
        ("com.delphix:spacemap_v2", 1),
    ];
    assert_eq!(active, expected.map(|(guid, count)| (guid.to_owned(), count)));
    assert_eq!(in_label(mos).await.unwrap(), ["com.delphix:embedded_data", "com.delphix:hole_birth"]);
    assert_eq!(unwritable(mos).await.unwrap(), Vec::<String>::new());
    let traits = traits(mos).await.unwrap();
    assert!(traits.lz4 && traits.embedded_data && traits.hole_birth && traits.spacemap_v2);
    assert!(
        traits.spacemap_histogram && traits.empty_bpobj && traits.extensible_dataset && traits.async_destroy
    );
    assert!(!traits.log_spacemap && !traits.livelist);

    let committed = world.commit().await;
    let directory = pool::zap::Zap::open_in(&committed, DIRECTORY).await.unwrap();
    let mut lengths = Vec::new();
    for name in [FOR_READ, FOR_WRITE, DESCRIPTIONS, TXGS] {
        let object = directory.get_u64(name).await.unwrap().unwrap();
        let entries = pool::zap::Zap::open_in(&committed, object).await.unwrap().to_vec().await.unwrap();
        lengths.push(entries.len());
        for (key, value) in entries {
            let guid = std::str::from_utf8(key.name().unwrap()).unwrap().to_owned();
            let feature = Feature::by_guid(&guid).unwrap();
            match name {
                FOR_READ => assert!(!feature.read_only_compatible),
                FOR_WRITE => assert!(feature.read_only_compatible),
                DESCRIPTIONS => assert_eq!(value.as_text(), Some(feature.description)),
                _ => assert_eq!(value.as_u64(), Some(4)),
            }
        }
    }
    assert_eq!(lengths, [6, 7, 13, 9]);
}

#[tokio::test]
async fn what_a_feature_needs_is_enabled_with_it() {
    let mut mos = fresh().await;
    enable(&mut mos, "com.delphix:bookmark_written", 9).await.unwrap();
    for guid in ["com.datto:bookmark_v2", "com.delphix:bookmarks", "com.delphix:extensible_dataset"] {
        assert_eq!(count(&mut mos, guid).await.unwrap(), Some(0), "{guid}");
    }
    assert_eq!(count(&mut mos, ENABLED_TXG).await.unwrap(), None);
    assert_eq!(zap::get_u64(&mut mos, DIRECTORY, TXGS).await.unwrap(), None);
    assert!(enable(&mut mos, "com.example:antigravity", 9).await.is_err());
}

#[tokio::test]
async fn counts_go_up_and_down_but_not_below_nothing() {
    let mut mos = fresh().await;
    let guid = "org.open-zfs:large_blocks";
    assert!(add(&mut mos, guid, 1).await.unwrap_err().to_string().contains(guid), "not enabled");
    enable(&mut mos, guid, 4).await.unwrap();
    assert_eq!(add(&mut mos, guid, 3).await.unwrap(), 3);
    assert_eq!(add(&mut mos, guid, -2).await.unwrap(), 1);
    assert_eq!(add(&mut mos, guid, 0).await.unwrap(), 1);
    assert!(add(&mut mos, guid, -2).await.is_err());
    assert_eq!(count(&mut mos, guid).await.unwrap(), Some(1));
}

#[tokio::test]
async fn active_features_that_cannot_be_kept_up_are_named() {
    let mut mos = fresh().await;
    enable(&mut mos, "com.delphix:device_removal", 4).await.unwrap();
    enable(&mut mos, "com.delphix:log_spacemap", 4).await.unwrap();
    assert_eq!(unwritable(&mut mos).await.unwrap(), Vec::<String>::new(), "enabled is harmless");
    assert!(!traits(&mut mos).await.unwrap().log_spacemap);
    add(&mut mos, "com.delphix:device_removal", 1).await.unwrap();
    add(&mut mos, "com.delphix:log_spacemap", 1).await.unwrap();
    let for_write = list(&mut mos, FOR_WRITE).await.unwrap();
    zap::set_u64(&mut mos, for_write, "com.example:antigravity", 1).await.unwrap();
    zap::set_u64(&mut mos, for_write, "com.example:levitation", 0).await.unwrap();
    zap::set_u64(&mut mos, DIRECTORY, "DDT-statistics", 70).await.unwrap();
    let expected = ["com.delphix:device_removal", "com.example:antigravity"];
    assert_eq!(unwritable(&mut mos).await.unwrap(), expected);
    zap::set_u64(&mut mos, DIRECTORY, "DDT-sha256-zap-unique", 71).await.unwrap();
    assert_eq!(unwritable(&mut mos).await.unwrap()[0], "DDT-sha256-zap-unique");
    assert_eq!(in_label(&mut mos).await.unwrap(), ["com.delphix:device_removal"]);
    assert!(traits(&mut mos).await.unwrap().log_spacemap);
}

/// The damage that the log told of was not known any more when it was taken for one of the other form.
#[tokio::test]
async fn the_error_log_gets_another_form_only_when_nothing_is_in_it() {
    let mut mos = fresh().await;
    for name in ERROR_LOGS {
        assert_eq!(obstacle(&mut mos, HEAD_ERRLOG).await.unwrap(), None, "{name}");
        let log = zap::create(&mut mos, ObjectType::ERROR_LOG, 0).await.unwrap();
        zap::set_u64(&mut mos, DIRECTORY, name, log).await.unwrap();
        assert_eq!(obstacle(&mut mos, HEAD_ERRLOG).await.unwrap(), None, "{name}");
        zap::set(&mut mos, log, "36:1:0:5".into(), Value::from_text("")).await.unwrap();
        assert!(obstacle(&mut mos, HEAD_ERRLOG).await.unwrap().is_some(), "{name}");
        assert_eq!(obstacle(&mut mos, "com.delphix:bookmarks").await.unwrap(), None);
        zap::set_u64(&mut mos, DIRECTORY, name, 0).await.unwrap();
    }
}
