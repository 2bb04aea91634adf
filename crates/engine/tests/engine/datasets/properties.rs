//! What datasets are made with and what is set of them later: what is refused, and what blocks and features come of it.

use std::sync::Arc;

use disk::Disk;
use pool::{dmu::Run, import::Device};

use super::*;

#[tokio::test(start_paused = true)]
async fn a_fresh_pool_adds_up_and_its_root_is_a_file_system() {
    for (layout, ashift) in [("d0", 9), ("mirror d0 d1", 12), ("raidz1 d0 d1 d2", 12)] {
        let lab = Lab::new(layout, ashift, 1).await;
        lab.check();
        assert_eq!(lab.number(POOL, "version").await, 5);
        assert_eq!(lab.number(POOL, "createtxg").await, 1);
        if layout == "d0" {
            lab.check_with_zdb();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn volumes_and_file_systems_are_made_where_they_can_be() {
    let mut lab = Lab::new("d0", 12, 2).await;
    lab.create("tank/v", Properties::new()).await.unwrap();
    lab.filesystem("tank/a/b", true).await.unwrap();
    lab.create("tank/a/b/w", props(&[("compression", 16), ("copies", 2)])).await.unwrap();
    lab.check();
    assert_eq!(lab.number("tank/v", "volsize").await, SIZE);
    assert_eq!(lab.number("tank/v", "volblocksize").await, u64::from(BLOCK));
    assert_eq!(refusal(lab.create("tank/v", Properties::new()).await), "dataset already exists");
    assert_eq!(refusal(lab.create("tank/x/y", Properties::new()).await), "parent does not exist");
    assert_eq!(refusal(lab.create("tank/v/y", Properties::new()).await), "parent is not a filesystem");
    let thick = props(&[("refreservation", 1 << 40)]);
    assert_eq!(refusal(lab.create("tank/thick", thick).await), "out of space");
    assert_eq!(refusal(lab.create("tank/d", props(&[("dedup", 1)])).await), "deduplication is not supported");
    for (size, block, text) in [
        (SIZE, 3000, "volume block size must be power of 2 from 512B to 1M"),
        (SIZE, 256, "volume block size must be power of 2 from 512B to 1M"),
        (SIZE + 512, 8192, "volume size must be a multiple of volume block size"),
        (0, 8192, "invalid volume size"),
    ] {
        let new =
            NewVolume { name: "tank/bad".into(), size, block, properties: Properties::new(), parents: false };
        let result =
            lab.run("create", false, move |cx| Box::pin(async move { dsl::create_volume(cx, &new).await }));
        assert_eq!(refusal(result.await), text);
    }
    lab.check();
}

#[tokio::test(start_paused = true)]
async fn properties_come_and_go() {
    let mut lab = Lab::new("d0", 12, 12).await;
    lab.filesystem("tank/a", false).await.unwrap();
    lab.create("tank/a/v", Properties::new()).await.unwrap();
    lab.set("tank/a", &[("sync", 2), ("compression", 2)]).await.unwrap();
    assert_eq!(lab.number("tank/a/v", "sync").await, 2);
    lab.set("tank/a/v", &[("sync", 1)]).await.unwrap();
    assert_eq!(lab.number("tank/a/v", "sync").await, 1);
    lab.run("inherit sync", false, |cx| {
        Box::pin(async move { dsl::inherit(cx, "tank/a/v", "sync", false).await })
    })
    .await
    .unwrap();
    assert_eq!(lab.number("tank/a/v", "sync").await, 2);
    let user: Properties = [("org.millpond:note".to_owned(), Stored::Text("kept".to_owned()))].into();
    lab.snapshot(&["tank/a/v@s"]).await.unwrap();
    for name in ["tank/a", "tank/a/v@s"] {
        let user = user.clone();
        lab.run("set a note", false, move |cx| Box::pin(async move { dsl::set(cx, name, &user).await }))
            .await
            .unwrap();
        let view = lab.running.engine.view();
        let dataset = view.dsl().await.unwrap().lookup(name).await.unwrap();
        let properties = dataset.properties().await.unwrap();
        assert_eq!(properties.print("org.millpond:note", pool::props::Style::Exact), "kept");
    }
    assert_eq!(
        refusal(lab.set("tank/a/v", &[("checksum", 14)]).await),
        "pool must be upgraded to set this property or value"
    );
    assert_eq!(refusal(lab.set("tank/b", &[("sync", 1)]).await), "dataset does not exist");
    lab.check();
}

/// They were stored, and the first file that OpenZFS wrote there took up a feature that the pool has not.
#[tokio::test(start_paused = true)]
async fn what_only_files_take_is_refused_where_the_pool_lacks_the_feature() {
    let mut lab = Lab::new("d0", 12, 9).await;
    lab.filesystem("tank/a", false).await.unwrap();
    for (name, value, plain, guid) in
        [("dnodesize", 1, 0, "org.zfsonlinux:large_dnode"), ("longname", 1, 0, "org.zfsonlinux:longname")]
    {
        let why = refusal(lab.set("tank/a", &[(name, value)]).await);
        assert_eq!(why, "pool must be upgraded to set this property or value", "{name}");
        let given = props(&[(name, value)]);
        let what = format!("create with {name}");
        let new = lab.run(&what, false, move |cx| {
            Box::pin(async move { dsl::create_filesystem(cx, "tank/b", &given, false).await })
        });
        assert_eq!(refusal(new.await), why, "{name}");
        lab.set("tank/a", &[(name, plain)]).await.unwrap();
        lab.run("enable", false, move |cx| {
            Box::pin(async move { Ok(engine::mos::features::enable(&mut cx.mos, guid, cx.txg).await?) })
        })
        .await
        .unwrap();
        lab.set("tank/a", &[(name, value)]).await.unwrap();
    }
    // Pools that are made here have the one for this.
    lab.set("tank/a", &[("recordsize", 1 << 20)]).await.unwrap();
    lab.check();
}

#[tokio::test(start_paused = true)]
async fn a_volume_grows_and_shrinks() {
    let mut lab = Lab::new("d0", 12, 8).await;
    let thick = dsl::default_refreservation(SIZE, BLOCK, 1, BLOCK.into());
    lab.create("tank/v", props(&[("refreservation", thick)])).await.unwrap();
    lab.write("tank/v", 0..64).await;
    let before = lab.read("tank/v").await;
    let open = lab.running.engine.volume("tank/v").await.unwrap();
    lab.set("tank/v", &[("volsize", 2 * SIZE)]).await.unwrap();
    assert_eq!(open.geometry().size, 2 * SIZE);
    let reserved = lab.number("tank/v", "refreservation").await;
    assert_eq!(reserved, dsl::default_refreservation(2 * SIZE, BLOCK, 1, BLOCK.into()));
    lab.write("tank/v", 100..110).await;
    lab.check();
    assert!(lab.read("tank/v").await[..SIZE as usize] == before);
    lab.snapshot(&["tank/v@s"]).await.unwrap();
    lab.set("tank/v", &[("volsize", SIZE / 2)]).await.unwrap();
    lab.check();
    assert!(lab.read("tank/v").await == before[..SIZE as usize / 2]);
    lab.set("tank/v", &[("volsize", SIZE)]).await.unwrap();
    lab.check();
    assert!(
        lab.read("tank/v").await[SIZE as usize / 2..].iter().all(|byte| *byte == 0),
        "what was cut off is gone"
    );
    assert!(lab.read("tank/v@s").await[..SIZE as usize] == before);
    assert_eq!(
        refusal(lab.set("tank/v", &[("volsize", SIZE + 1)]).await),
        "volume size must be a multiple of volume block size"
    );
}

#[tokio::test(start_paused = true)]
async fn features_follow_the_blocks_that_need_them() {
    let mut lab = Lab::new("d0", 12, 3).await;
    const ZSTD: &str = "org.freebsd:zstd_compress";
    lab.create("tank/v", props(&[("compression", 16 | 5 << 7)])).await.unwrap();
    assert_eq!(lab.feature(ZSTD).await, 0, "nothing was written with it");
    let volume = lab.running.engine.volume("tank/v").await.unwrap();
    let text = b"a line that compresses well, again and again. ".repeat(2000);
    volume.write(0, data(text[..65536].to_vec()), Durability::Cached).await.unwrap();
    lab.running.engine.sync().await.unwrap();
    assert_eq!(lab.feature(ZSTD).await, 1);
    lab.check();
    lab.snapshot(&["tank/v@a"]).await.unwrap();
    lab.clone("tank/v@a", "tank/c").await.unwrap();
    assert_eq!(lab.feature(ZSTD).await, 3, "head, snapshot, clone");
    lab.check();
    lab.destroy("tank/c").await.unwrap();
    lab.destroy_snapshot("tank/v@a", false).await.unwrap();
    lab.destroy("tank/v").await.unwrap();
    assert_eq!(lab.feature(ZSTD).await, 0);
    lab.settle().await;
    lab.check();

    let large = NewVolume {
        name: "tank/large".into(),
        size: 4 << 20,
        block: 1 << 20,
        properties: Properties::new(),
        parents: false,
    };
    lab.run("create large", false, move |cx| Box::pin(async move { dsl::create_volume(cx, &large).await }))
        .await
        .unwrap();
    let volume = lab.running.engine.volume("tank/large").await.unwrap();
    volume.write(4096, data(text[..65536].to_vec()), Durability::Cached).await.unwrap();
    lab.running.engine.sync().await.unwrap();
    assert_eq!(lab.feature("org.open-zfs:large_blocks").await, 1);
    lab.check();
}

/// They were when the pool was opened the next time. Until then holes were punched without a birth, in a pool that said that
/// they have one, and labels did not list what it takes to read it.
#[tokio::test(start_paused = true)]
async fn features_are_in_effect_in_the_open_pool_that_gets_them() {
    let (world, running) = World::create_having(Vec::new(), "d0", 12, 96 << 20, 13, Properties::new()).await;
    let steps = vec!["create d0 without features".to_owned()];
    let mut lab = Lab { world, running, random: StdRng::seed_from_u64(13), steps };
    lab.create("tank/v", Properties::new()).await.unwrap();
    lab.write("tank/v", 0..16).await;
    let all = engine::create::features("off").unwrap();
    lab.run("upgrade", false, move |cx| Box::pin(async move { engine::upgrade::enable(cx, &all).await }))
        .await
        .unwrap();
    let enabled = lab.running.engine.view().uberblock().txg;
    let disk = Arc::clone(&lab.world.media[0]) as Arc<dyn Disk>;
    let device = Device::read(disk).await.unwrap().unwrap();
    let listed = device.config_at(u64::MAX).unwrap().nvlist("features_for_read").unwrap();
    assert!(listed.contains("com.delphix:hole_birth"), "{listed:?}");

    let volume = lab.running.engine.volume("tank/v").await.unwrap();
    volume.unmap(4 * u64::from(BLOCK), BLOCK.into(), Durability::Cached).await.unwrap();
    lab.running.engine.sync().await.unwrap();
    let committed = lab.running.engine.view().open_volume("tank/v").await.unwrap();
    let mut runs = committed.data().runs(0, 4..5);
    let Some(Run::Hole { pointer: Some(hole), .. }) = runs.next().await.unwrap() else {
        panic!("block 4 was unmapped");
    };
    assert!(hole.birth() > enabled, "{hole}, enabled in {enabled}");
    lab.write("tank/v", 32..40).await;
    lab.snapshot(&["tank/v@s"]).await.unwrap();
    lab.destroy_snapshot("tank/v@s", false).await.unwrap();
    lab.check();
    lab.check_with_zdb();
}

/// Stored sizes were multiples of the smallest allocation, parity included: what compression had saved was filled up again,
/// and blocks of 8 KiB were not compressed at all.
#[tokio::test(start_paused = true)]
async fn what_compression_saves_on_raidz_is_not_allocated() {
    let mut lab = Lab::new("raidz2 d0 d1 d2 d3 d4 d5", 12, 11).await;
    for block in [8 << 10, 16 << 10] {
        let name = format!("tank/v{block}");
        let volume = lab.running.volume(&name, SIZE, block, props(&[("compression", 15)])).await;
        let mut bytes: Vec<u8> = vec![0; SIZE as usize];
        bytes.chunks_mut(block as usize).for_each(|block| lab.random.fill(&mut block[..3000]));
        volume.write(0, data(bytes), Durability::Cached).await.unwrap();
        lab.running.engine.sync().await.unwrap();
        let committed = lab.running.engine.view().open_volume(&name).await.unwrap();
        let mut runs = committed.data().runs(0, 0..SIZE / u64::from(block));
        while let Some(run) = runs.next().await.unwrap() {
            let Run::Block { pointer, .. } = run else { panic!("{name}: {run:?}") };
            assert_eq!((pointer.psize(), pointer.asize()), (4096, 12288), "{name}: {pointer}");
        }
    }
    lab.check();
}

/// A property of nobody's but the user's.
const NOTE: &str = "org.millpond:note";

async fn note(lab: &mut Lab, name: &'static str) {
    let given: Properties = [(NOTE.to_owned(), Stored::Text("kept".to_owned()))].into();
    let set =
        lab.run("set a note", false, move |cx| Box::pin(async move { dsl::set(cx, name, &given).await }));
    set.await.unwrap();
}

async fn clear_notes(lab: &mut Lab, names: &[&str]) -> Result<(), OpError> {
    let names = strings(names);
    lab.run("inherit a note", false, move |cx| {
        Box::pin(async move { dsl::inherit_all(cx, &names, NOTE, false).await })
    })
    .await
}

async fn has_note(lab: &Lab, name: &str) -> bool {
    let view = lab.running.engine.view();
    let dataset = view.dsl().await.unwrap().lookup(name).await.unwrap();
    dataset.has_own(NOTE).await.unwrap()
}

/// A job that destroyed one of thousands of snapshots meanwhile kept all others from losing a property.
#[tokio::test(start_paused = true)]
async fn a_snapshot_that_is_gone_keeps_no_others_from_losing_a_property() {
    let mut lab = Lab::new("d0", 12, 27).await;
    lab.create("tank/v", Properties::new()).await.unwrap();
    lab.snapshot(&["tank/v@a"]).await.unwrap();
    note(&mut lab, "tank/v@a").await;
    assert!(has_note(&lab, "tank/v@a").await);
    assert_eq!(refusal(clear_notes(&mut lab, &["tank/v@a", "tank/w"]).await), "dataset does not exist");
    assert!(has_note(&lab, "tank/v@a").await);
    clear_notes(&mut lab, &["tank/v@gone", "tank/v@a"]).await.unwrap();
    assert!(!has_note(&lab, "tank/v@a").await);
    let one = lab.run("inherit of none", false, |cx| {
        Box::pin(async move { dsl::inherit(cx, "tank/v@gone", NOTE, false).await })
    });
    assert_eq!(refusal(one.await), "dataset does not exist");
    lab.check();
}

/// It was found out when others had lost theirs: the pool was suspended for good.
#[tokio::test(start_paused = true)]
async fn properties_that_cannot_be_read_are_found_out_before_any_others_change() {
    let mut lab = Lab::new("d0", 12, 28).await;
    lab.create("tank/v", Properties::new()).await.unwrap();
    for name in ["tank/v@a", "tank/v@b"] {
        lab.snapshot(&[name]).await.unwrap();
        note(&mut lab, name).await;
    }
    let view = lab.running.engine.view();
    let damaged = view.dsl().await.unwrap().lookup("tank/v@b").await.unwrap().phys().unwrap().props;
    drop(view);
    let damage = lab.run("damage", false, move |cx| {
        Box::pin(async move { Ok(cx.mos.write(damaged, 0, &[0xff; 8]).await?) })
    });
    damage.await.unwrap();
    let cleared = clear_notes(&mut lab, &["tank/v@a", "tank/v@b"]).await;
    assert!(matches!(cleared, Err(OpError::Engine(_))), "{cleared:?}");
    assert!(lab.running.engine.suspended().is_none());
    assert!(has_note(&lab, "tank/v@a").await);
    clear_notes(&mut lab, &["tank/v@a"]).await.unwrap();
}
