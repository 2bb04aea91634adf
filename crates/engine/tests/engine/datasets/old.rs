//! Pools that were made before version 26: whatever their version is now, deadlists of that time stay as they are, each one list
//! of blocks of all births.

use engine::mos::{bpobj, deadlist};
use ondisk::dsl::DatasetPhys;

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
    let first = lab.running.engine.run(false, |cx| {
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
