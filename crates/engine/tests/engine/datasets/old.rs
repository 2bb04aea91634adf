//! Pools that were made before version 26: whatever their version is now, deadlists of that time stay as they are, each one list
//! of blocks of all births.

use std::collections::BTreeMap;

use engine::mos::{bpobj, deadlist};
use ondisk::{bpobj::BpobjPhys, dsl::DatasetPhys};

use super::*;

/// Gives the dataset `object` a deadlist of the old form, with the same blocks in it.
async fn age(lab: &mut Lab, object: u64) {
    lab.run(&format!("old deadlist of {object}"), false, move |cx| {
        Box::pin(async move {
            let traits = cx.out.traits();
            let deflate = cx.out.alloc.deflate().clone();
            let mut phys = dataset(cx, object).await;
            let mut pointers = Vec::new();
            for (_, bucket) in deadlist::buckets(&mut cx.mos, phys.deadlist).await? {
                let entries = bpobj::all(&mut cx.mos, bucket).await?;
                pointers.extend(entries.iter().map(|entry| entry.blkptr));
            }
            deadlist::destroy(&mut cx.mos, &traits, phys.deadlist).await?;
            phys.deadlist = bpobj::create(&mut cx.mos, &traits, 128 << 10).await?;
            bpobj::append(&mut cx.mos, phys.deadlist, &deflate, &pointers).await?;
            cx.mos.set_bonus(object, &phys.encode(Order::Little)).await?;
            Ok(())
        })
    })
    .await
    .unwrap();
}

async fn dataset(cx: &mut Syncer, object: u64) -> DatasetPhys {
    DatasetPhys::decode(&cx.mos.bonus(object).await.unwrap(), Order::Little).unwrap()
}

/// Checks the keys of the deadlist of the dataset `object`.
async fn has_keys(lab: &mut Lab, object: u64, expected: &'static [u64]) {
    lab.run(&format!("look at the deadlist of {object}"), false, move |cx| {
        Box::pin(async move {
            let list = dataset(cx, object).await.deadlist;
            let buckets = deadlist::buckets(&mut cx.mos, list).await?;
            let keys: Vec<u64> = buckets.into_iter().map(|(key, _)| key).collect();
            assert_eq!(keys, expected);
            Ok(())
        })
    })
    .await
    .unwrap();
}

/// `$ORIGIN` is never snapshotted, so the deadlist of its head is of the old form for ever. What was made after it had no key 0,
/// and the head kept key 1 when its only snapshot was destroyed: OpenZFS adds that with the next one, and panics.
#[tokio::test(start_paused = true)]
async fn no_head_keeps_a_deadlist_key_that_openzfs_is_going_to_add() {
    let mut lab = Lab::new("d0", 12, 31).await;
    let first = lab.running.engine.run(|cx| {
        Box::pin(async move {
            let origin = cx.places.origin_dir;
            Ok(directory(cx, origin).await.head_dataset)
        })
    });
    let first = first.await.unwrap();
    age(&mut lab, first).await;
    lab.create("tank/v", Properties::new()).await.unwrap();
    let head = lab.number("tank/v", "objsetid").await;
    has_keys(&mut lab, head, &[0]).await;
    lab.write("tank/v", 0..20).await;
    lab.snapshot(&["tank/v@a"]).await.unwrap();
    has_keys(&mut lab, head, &[0, 1]).await;
    lab.write("tank/v", 5..10).await;
    lab.destroy_snapshot("tank/v@a", false).await.unwrap();
    has_keys(&mut lab, head, &[0]).await;
    lab.snapshot(&["tank/v@b"]).await.unwrap();
    has_keys(&mut lab, head, &[0, 1]).await;
    lab.check();
}

/// As the lists are that such pools got from us: the next destruction, or the next snapshot, repairs them.
#[tokio::test(start_paused = true)]
async fn a_deadlist_without_its_first_key_gets_it_back() {
    for destroys in [true, false] {
        let mut lab = Lab::new("d0", 12, 32).await;
        lab.create("tank/v", Properties::new()).await.unwrap();
        lab.write("tank/v", 0..20).await;
        let head = lab.number("tank/v", "objsetid").await;
        if destroys {
            lab.snapshot(&["tank/v@a"]).await.unwrap();
        }
        let broken = lab.run("no key 0", false, move |cx| {
            Box::pin(async move {
                let traits = cx.out.traits();
                let mut phys = dataset(cx, head).await;
                deadlist::destroy(&mut cx.mos, &traits, phys.deadlist).await?;
                phys.deadlist = deadlist::create(&mut cx.mos, &traits, &[1]).await?;
                cx.mos.set_bonus(head, &phys.encode(Order::Little)).await?;
                Ok(())
            })
        });
        broken.await.unwrap();
        if destroys {
            lab.destroy_snapshot("tank/v@a", false).await.unwrap();
            has_keys(&mut lab, head, &[0]).await;
            lab.check();
        }
        lab.snapshot(&["tank/v@b"]).await.unwrap();
        has_keys(&mut lab, head, &[0, 1]).await;
        lab.write("tank/v", 5..10).await;
        lab.destroy_snapshot("tank/v@b", false).await.unwrap();
        has_keys(&mut lab, head, &[0]).await;
        lab.check();
    }
}

async fn object(lab: &Lab, name: &str) -> u64 {
    let view = lab.running.engine.view();
    view.dsl().await.unwrap().lookup(name).await.unwrap().object()
}

/// A volume with three snapshots of which each has what no other has, their deadlists of the old form.
async fn aged(seed: u64) -> Lab {
    let mut lab = with_snapshots(seed).await;
    age_snapshots(&mut lab).await;
    lab
}

/// The same volume, with deadlists as they are now.
async fn with_snapshots(seed: u64) -> Lab {
    let mut lab = Lab::new("d0", 12, seed).await;
    lab.create("tank/v", Properties::new()).await.unwrap();
    for (name, blocks) in [("tank/v@q", 0..8), ("tank/v@r", 8..16), ("tank/v@s", 4..12)] {
        lab.write("tank/v", blocks).await;
        lab.snapshot(&[name]).await.unwrap();
    }
    lab.write("tank/v", 6..14).await;
    lab
}

async fn age_snapshots(lab: &mut Lab) {
    for name in ["tank/v@q", "tank/v@r", "tank/v@s"] {
        let snapshot = object(lab, name).await;
        age(lab, snapshot).await;
    }
    lab.check();
}

/// What `zfs destroy -nv` of these snapshots of `tank/v` tells.
async fn reclaimed(lab: &Lab, names: &[String]) -> u64 {
    let view = lab.running.engine.view();
    let datasets = view.dsl().await.unwrap();
    let mut doomed = Vec::new();
    for name in names {
        doomed.push(datasets.lookup(name).await.unwrap());
    }
    datasets.lookup("tank/v").await.unwrap().reclaimed(&doomed).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn what_was_written_since_a_snapshot_is_told_over_deadlists_of_before_version_26() {
    let mut lab = with_snapshots(39).await;
    let pairs = [("tank/v", "tank/v@q"), ("tank/v", "tank/v@r"), ("tank/v@s", "tank/v@q")];
    let mut told = Vec::new();
    for (name, since) in pairs {
        told.push(lab.written_since(name, since).await);
    }
    age_snapshots(&mut lab).await;
    for ((name, since), expected) in pairs.into_iter().zip(told) {
        assert_eq!(lab.written_since(name, since).await, expected, "{name} since {since}");
    }
}

/// That was the end of the pool: it was found out in the middle of the change.
#[tokio::test(start_paused = true)]
async fn a_snapshot_with_a_deadlist_of_before_version_26_is_destroyed() {
    // One by one: what comes after it has a list of the old form, or of the new one; and together.
    for order in ["q r s", "r s q", "s q r", "qsr"] {
        let mut lab = aged(33).await;
        let mut left = BTreeMap::new();
        for name in ["tank/v@q", "tank/v@r", "tank/v@s"] {
            left.insert(name.to_owned(), lab.read(name).await);
        }
        for group in order.split(' ') {
            let names: Vec<String> = group.chars().map(|name| format!("tank/v@{name}")).collect();
            left.retain(|name, _| !names.contains(name));
            let told = reclaimed(&lab, &names).await;
            let before = lab.number("tank/v", "usedbysnapshots").await;
            lab.run(&format!("destroy {names:?}"), false, move |cx| {
                Box::pin(async move { dsl::destroy_snapshots(cx, &names, false).await })
            })
            .await
            .unwrap();
            for (name, content) in &left {
                assert!(lab.read(name).await == *content, "{name} after {group} of {order}");
            }
            let after = lab.number("tank/v", "usedbysnapshots").await;
            assert_eq!(before - after, told, "{group} of {order}");
            lab.check();
        }
        assert_eq!(lab.number("tank/v", "usedbysnapshots").await, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_clone_takes_over_snapshots_with_deadlists_of_before_version_26() {
    let mut lab = aged(34).await;
    lab.clone("tank/v@r", "tank/c").await.unwrap();
    lab.write("tank/c", 0..5).await;
    lab.promote("tank/c").await.unwrap();
    lab.check();
}

/// It has had no snapshot since: with the first that gets its deadlist.
#[tokio::test(start_paused = true)]
async fn a_dataset_that_has_had_no_snapshot_since_before_version_26_is_like_any_other() {
    let mut lab = Lab::new("d0", 12, 35).await;
    for name in ["tank/v", "tank/w"] {
        lab.create(name, Properties::new()).await.unwrap();
        lab.write(name, 0..20).await;
        let head = object(&lab, name).await;
        age(&mut lab, head).await;
    }
    lab.write("tank/v", 5..25).await;
    lab.snapshot(&["tank/v@a"]).await.unwrap();
    lab.write("tank/v", 10..15).await;
    lab.check();
    lab.destroy_snapshot("tank/v@a", false).await.unwrap();
    lab.destroy("tank/w").await.unwrap();
    lab.settle().await;
    lab.check();
}

/// Makes a snapshot's deadlist of the old form say that it has so many blocks; how many it said it has.
async fn set_length(lab: &Lab, name: &str, blocks: u64) -> u64 {
    let snapshot = object(lab, name).await;
    let change = lab.running.engine.run(move |cx| {
        Box::pin(async move {
            let list = dataset(cx, snapshot).await.deadlist;
            let bonus = cx.mos.bonus(list).await?;
            let mut phys = BpobjPhys::decode(&bonus, Order::Little).unwrap();
            let before = std::mem::replace(&mut phys.blkptrs, blocks);
            cx.mos.set_bonus(list, &phys.encode(bonus.len(), Order::Little).unwrap()).await?;
            Ok::<_, OpError>(before)
        })
    });
    change.await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn what_has_too_long_a_deadlist_of_before_version_26_is_not_destroyed() {
    let mut lab = aged(36).await;
    set_length(&lab, "tank/v@s", 2 << 20).await;
    // The one before it as well: it is what would be put on that list.
    for name in ["tank/v@s", "tank/v@r"] {
        let refused = refusal(lab.destroy_snapshot(name, false).await);
        assert!(refused.contains("before 26") && refused.contains("with OpenZFS"), "{refused}");
    }
    lab.write("tank/v", 0..3).await;
}

async fn destroy_both(lab: &mut Lab) -> Result<(), OpError> {
    let names = strings(&["tank/v@q", "tank/v@r"]);
    lab.run("destroy q and r", false, move |cx| {
        Box::pin(async move { dsl::destroy_snapshots(cx, &names, false).await })
    })
    .await
}

/// Each snapshot that goes before it writes it anew.
#[tokio::test(start_paused = true)]
async fn a_deadlist_of_before_version_26_counts_as_often_as_it_is_written() {
    let mut lab = aged(37).await;
    let mut lengths = Vec::new();
    // Too much is only what all of it comes to.
    for (name, blocks) in [("tank/v@r", 200_000), ("tank/v@s", 400_000)] {
        lengths.push((name, set_length(&lab, name, blocks).await));
    }
    let refused = refusal(destroy_both(&mut lab).await);
    assert!(refused.contains("before 26") && refused.contains("fewer"), "{refused}");
    for (name, blocks) in lengths {
        set_length(&lab, name, blocks).await;
    }
    destroy_both(&mut lab).await.unwrap();
    lab.check();
}

/// It went in the middle of the change, however long its list was.
#[tokio::test(start_paused = true)]
async fn what_a_snapshot_with_too_long_a_deadlist_would_go_with_stays_as_well() {
    let mut lab = aged(38).await;
    lab.clone("tank/v@r", "tank/c").await.unwrap();
    lab.destroy_snapshot("tank/v@r", true).await.unwrap();
    let length = set_length(&lab, "tank/v@s", 2 << 20).await;
    let refused = refusal(lab.destroy("tank/c").await);
    assert!(refused.contains("before 26"), "{refused}");
    lab.hold("tank/v@r").await.unwrap();
    lab.destroy("tank/c").await.unwrap();
    let refused = refusal(lab.release("tank/v@r").await);
    assert!(refused.contains("before 26"), "{refused}");
    set_length(&lab, "tank/v@s", length).await;
    lab.release("tank/v@r").await.unwrap();
    lab.settle().await;
    lab.check();
}
