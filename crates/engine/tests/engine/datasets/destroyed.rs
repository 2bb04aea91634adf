//! What is destroyed: its blocks are freed in portions, over transaction groups and crashes, and nothing that named it does so
//! any more.

use std::{collections::BTreeSet, sync::Arc};

use disk::Disk;
use engine::{
    engine::Ending,
    mos::{DIRECTORY, features, zap},
};
use ondisk::{dnode::ObjectType, label::DATA_OFFSET};
use pool::props::Value;

use super::*;
use crate::support::{quiet, start_on};

/// The walk of a destroyed tree stops after any number of blocks and goes on where it stopped.
#[tokio::test(start_paused = true)]
async fn freeing_in_small_portions_frees_everything_once() {
    let mut lab = Lab::new("d0", 12, 11).await;
    lab.create("tank/v", Properties::new()).await.unwrap();
    lab.write("tank/v", 0..64).await;
    lab.snapshot(&["tank/v@s"]).await.unwrap();
    lab.clone("tank/v@s", "tank/c").await.unwrap();
    lab.write("tank/c", 7..50).await;
    lab.filesystem("tank/f", false).await.unwrap();
    for name in ["tank/c", "tank/f"] {
        let owned = name.to_owned();
        lab.run(&format!("destroy {name}, 5 blocks at a time"), false, move |cx| {
            Box::pin(async move {
                dsl::destroy_head(cx, &owned).await?;
                let mut rounds = 0;
                while dsl::free_some(cx, 5).await? {
                    rounds += 1;
                    assert!(rounds < 100, "it never ends");
                }
                assert!(rounds > 0 || owned == "tank/f");
                Ok(())
            })
        })
        .await
        .unwrap();
        lab.check();
    }
    let name = vec!["tank/v@s".to_owned()];
    lab.write("tank/v", 0..60).await;
    lab.run("destroy tank/v@s, 7 blocks at a time", false, move |cx| {
        Box::pin(async move {
            dsl::destroy_snapshots(cx, &name, false).await?;
            while dsl::free_some(cx, 7).await? {}
            Ok(())
        })
    })
    .await
    .unwrap();
    lab.check();
    let view = lab.running.engine.view();
    let root = view.dsl().await.unwrap().root().await.unwrap();
    let map = pool::zap::Zap::open_in(view.mos(), root.dir().phys().child_map).await.unwrap();
    let free = map.get_u64("$FREE").await.unwrap().unwrap();
    let free = view.dsl().await.unwrap().dir(free).await.unwrap().phys().used_bytes;
    assert_eq!(free, 0, "nothing waits to be freed");
}

/// A tree of three levels: the walk stops in the middle of blocks of pointers and finds its way back.
#[tokio::test(start_paused = true)]
async fn a_deep_tree_is_freed_in_portions() {
    let mut lab = Lab::new("d0", 9, 13).await;
    let new = NewVolume {
        name: "tank/v".into(),
        size: 4 << 20,
        block: 512,
        properties: props(&[("compression", 2)]),
        parents: false,
    };
    lab.run("create -V -b 512", false, move |cx| {
        let new = new;
        Box::pin(async move { dsl::create_volume(cx, &new).await })
    })
    .await
    .unwrap();
    let volume = lab.running.engine.volume("tank/v").await.unwrap();
    let mut bytes = vec![0; 1600 << 10];
    lab.random.fill(&mut bytes[..]);
    volume.write(256 << 10, data(bytes), Durability::Cached).await.unwrap();
    lab.running.engine.sync().await.unwrap();
    lab.check();
    lab.run("destroy tank/v, 700 blocks", false, move |cx| {
        Box::pin(async move {
            dsl::destroy_head(cx, "tank/v").await?;
            assert!(dsl::free_some(cx, 700).await?, "there is more");
            assert!(dsl::free_some(cx, 900).await?, "there is more");
            while dsl::free_some(cx, 500).await? {}
            Ok(())
        })
    })
    .await
    .unwrap();
    lab.check();
    assert!(lab.number(POOL, "used").await < 1 << 20);
}

/// More blocks than one transaction group frees: the pool on disk between two of them is whole, for us and for `zdb`,
/// and whoever opens it goes on.
#[tokio::test(start_paused = true)]
async fn a_pool_left_in_the_middle_of_freeing_is_whole_and_goes_on() {
    const CHUNK: usize = 1 << 20;
    let mut lab = Lab::new("d0", 9, 14).await;
    let new = NewVolume {
        name: "tank/v".into(),
        size: 32 << 20,
        block: 512,
        properties: props(&[("compression", 2)]),
        parents: false,
    };
    lab.run("create -V -b 512", false, move |cx| Box::pin(async move { dsl::create_volume(cx, &new).await }))
        .await
        .unwrap();
    let volume = lab.running.engine.volume("tank/v").await.unwrap();
    let mut bytes = vec![0; CHUNK];
    for chunk in 0..28 {
        lab.random.fill(&mut bytes[..]);
        volume.write(chunk * CHUNK as u64, data(bytes.clone()), Durability::Cached).await.unwrap();
    }
    lab.running.engine.sync().await.unwrap();
    lab.destroy("tank/v").await.unwrap();
    let waiting = lab.running.engine.view().directory().get_u64("bptree_obj").await.unwrap();
    assert!(waiting.is_some(), "all was freed at once: this test needs more blocks");
    lab.world.verify("in the middle of freeing").await;
    lab.check_with_zdb();
    // The machine stops here, and another one takes over.
    let Lab { mut world, running, random, steps } = lab;
    world.cut(running).await;
    let running = world.open().await;
    let mut lab = Lab { world, running, random, steps };
    lab.settle().await;
    lab.check();
    assert!(lab.number(POOL, "used").await < 1 << 20);
}

/// The pool kept the number of what was destroyed: its properties could not be read any more, or, when the number was
/// another dataset's, that one was what machines boot from.
#[tokio::test(start_paused = true)]
async fn the_file_system_to_boot_from_is_forgotten_when_it_is_destroyed() {
    let mut lab = Lab::new("d0", 12, 5).await;
    lab.filesystem("tank/root", false).await.unwrap();
    lab.filesystem("tank/other", false).await.unwrap();
    let view = lab.running.engine.view();
    let object = view.dsl().await.unwrap().lookup("tank/root").await.unwrap().object();
    // As other software sets it.
    lab.run("bootfs", false, move |cx| {
        Box::pin(async move { dsl::set_pool(cx, &props(&[("bootfs", object)])).await })
    })
    .await
    .unwrap();
    for (destroyed, left) in [("tank/other", "tank/root"), ("tank/root", "-")] {
        lab.destroy(destroyed).await.unwrap();
        let view = lab.running.engine.view();
        let properties = view.properties().await.unwrap();
        let shown = properties.get("bootfs").map(|property| property.value.clone());
        assert_eq!(shown, Some(Value::Text(left.to_owned())));
        let stored = view.directory().get_u64("pool_props").await.unwrap().unwrap();
        let stored = pool::zap::Zap::open_in(view.mos(), stored).await.unwrap();
        let kept = stored.get_u64("bootfs").await.unwrap();
        assert_eq!(kept, (destroyed == "tank/other").then_some(object));
    }
    lab.check();
}

/// With feature `head_errlog` what had been lost of a head was counted on when that was gone, as another dataset's as soon as
/// its number was given out again. What a snapshot has lost is known whoever its head is.
#[tokio::test(start_paused = true)]
async fn the_error_log_forgets_a_head_and_not_the_snapshots_that_leave_it() {
    let mut lab = Lab::new("d0", 12, 11).await;
    lab.create("tank/v", Properties::new()).await.unwrap();
    lab.write("tank/v", 0..10).await;
    lab.snapshot(&["tank/v@s"]).await.unwrap();
    lab.clone("tank/v@s", "tank/c").await.unwrap();
    lab.clone("tank/v@s", "tank/d").await.unwrap();
    let view = lab.running.engine.view();
    let dsl = view.dsl().await.unwrap();
    let txg = dsl.lookup("tank/v@s").await.unwrap().create_txg();
    let mut heads = [0; 3];
    for (head, name) in heads.iter_mut().zip(["tank/v", "tank/c", "tank/d"]) {
        *head = dsl.lookup(name).await.unwrap().object();
    }
    let [origin, promoted, _] = heads;
    // Of each head one block that the snapshot has, and one that it has not.
    lab.run("lose blocks", false, move |cx| {
        Box::pin(async move {
            features::enable(&mut cx.mos, "com.delphix:head_errlog", cx.txg).await?;
            let log = zap::create(&mut cx.mos, ObjectType::ERROR_LOG, 0).await?;
            zap::set_u64(&mut cx.mos, DIRECTORY, "errlog_last", log).await?;
            for (block, head) in heads.into_iter().enumerate() {
                let list = zap::create(&mut cx.mos, ObjectType::ERROR_LOG, 0).await?;
                zap::set_u64(&mut cx.mos, log, &format!("{head:x}"), list).await?;
                for birth in [txg, txg + 1] {
                    let (key, text) = (format!("1:0:{block}:{birth:x}"), ondisk::zap::Value::from_text(""));
                    zap::set(&mut cx.mos, list, key.as_str().into(), text).await?;
                }
            }
            Ok(())
        })
    })
    .await
    .unwrap();
    let (then, later) = (Some(txg), Some(txg + 1));
    let logged = async |lab: &Lab| {
        let log = pool::status::error_log(&lab.running.engine.view()).await.unwrap();
        let of = |entry: pool::status::LoggedError| (entry.at.objset, entry.at.blkid, entry.birth);
        log.into_iter().map(of).collect::<BTreeSet<_>>()
    };
    lab.destroy("tank/d").await.unwrap();
    let mut left = BTreeSet::from([
        (origin, 0, then),
        (origin, 0, later),
        (promoted, 1, then),
        (promoted, 1, later),
        (origin, 2, then),
    ]);
    assert_eq!(logged(&lab).await, left);
    lab.promote("tank/c").await.unwrap();
    lab.destroy("tank/v").await.unwrap();
    left = [(0, then), (1, then), (1, later), (2, then)].map(|(block, born)| (promoted, block, born)).into();
    assert_eq!(logged(&lab).await, left);
    lab.destroy_snapshot("tank/c@s", false).await.unwrap();
    lab.destroy("tank/c").await.unwrap();
    assert_eq!(logged(&lab).await, BTreeSet::new());
    lab.settle().await;
    // Nothing of the lists is left over.
    lab.check();
    lab.check_with_zdb();
}

/// Closes the pool, and takes the object sets of these datasets from its first disk.
async fn closed_and_spoiled(lab: Lab, names: &[&str]) -> Lab {
    lab.running.engine.end(Ending::Close).await.unwrap();
    let view = lab.world.look().await.unwrap();
    for name in names {
        let dataset = view.dsl().await.unwrap().lookup(name).await.unwrap();
        for dva in dataset.phys().unwrap().bp.dvas() {
            lab.world.media[0].restore(DATA_OFFSET + dva.offset, &vec![0xa5; dva.asize as usize]);
        }
    }
    lab
}

/// A reservation was given back, or a clone was there, when the object set was first read: that it is lost was the end of the
/// pool, each time that somebody wanted to be rid of such a volume. To go back to a snapshot that is whole was refused.
#[tokio::test(start_paused = true)]
async fn what_has_lost_its_object_set_is_destroyed_or_rolled_back_and_is_not_cloned() {
    let mut lab = Lab::new("d0", 12, 15).await;
    for name in ["tank/gone", "tank/back", "tank/well"] {
        lab.create(name, props(&[("refreservation", SIZE)])).await.unwrap();
        lab.write(name, 0..8).await;
    }
    lab.snapshot(&["tank/back@whole", "tank/well@lost"]).await.unwrap();
    for name in ["tank/back", "tank/well"] {
        lab.write(name, 4..20).await;
    }
    let whole = lab.read("tank/back@whole").await;
    let lab = closed_and_spoiled(lab, &["tank/gone", "tank/back", "tank/well@lost"]).await;
    let Lab { world, random, steps, .. } = lab;
    let running = world.open().await;
    let mut lab = Lab { world, running, random, steps };
    lab.destroy("tank/gone").await.unwrap();
    lab.rollback("tank/back@whole").await.unwrap();
    assert!(lab.read("tank/back").await == whole);
    for _ in 0..2 {
        let refused = refusal(lab.clone("tank/well@lost", "tank/rescue").await);
        assert!(refused.contains("checksum"), "{refused}");
    }
    assert!(lab.running.engine.suspended().is_none());
    for name in ["tank/back", "tank/well"] {
        lab.write(name, 2..6).await;
    }
    lab.settle().await;
    lab.running.engine.end(Ending::Export).await.unwrap();
}

/// The intent log that it names would have been given up for good.
#[tokio::test(start_paused = true)]
async fn what_a_device_that_is_away_may_have_of_a_dataset_is_waited_for_before_that_goes() {
    let mut lab = Lab::new("mirror d0 d1", 12, 16).await;
    for name in ["tank/v", "tank/other"] {
        lab.create(name, props(&[("refreservation", SIZE)])).await.unwrap();
        lab.write(name, 0..8).await;
    }
    let lab = closed_and_spoiled(lab, &["tank/v"]).await;
    let Lab { world, random, steps, .. } = lab;
    let alone = vec![Arc::clone(&world.media[0]) as Arc<dyn Disk>];
    let engine = start_on(alone, world.seed, quiet()).await.unwrap();
    let running = Running { engine, disks: Vec::new() };
    let mut lab = Lab { world, running, random, steps };
    let refused = refusal(lab.destroy("tank/v").await);
    assert!(refused.contains("checksum"), "{refused}");
    assert!(lab.running.engine.suspended().is_none());
    lab.write("tank/other", 2..6).await;
    lab.running.engine.end(Ending::Close).await.unwrap();
    let Lab { world, random, steps, .. } = lab;
    let running = world.open().await;
    let mut lab = Lab { world, running, random, steps };
    lab.destroy("tank/v").await.unwrap();
    lab.settle().await;
    lab.running.engine.end(Ending::Export).await.unwrap();
}
