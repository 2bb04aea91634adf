//! Snapshots, and what hangs on them: rollbacks, clones, holds, bookmarks. Whatever goes first, space is counted to the byte
//! and content stays.

use rand::seq::SliceRandom;

use super::*;

/// Played in the ordinary run.
const SEEDS: std::ops::Range<u64> = 0..2;

#[tokio::test(start_paused = true)]
async fn snapshots_share_and_give_back_exactly() {
    let mut lab = Lab::new("d0", 12, 4).await;
    lab.create("tank/v", Properties::new()).await.unwrap();
    lab.write("tank/v", 0..40).await;
    lab.snapshot(&["tank/v@a", "tank@a"]).await.unwrap();
    lab.check();
    let at_a = lab.read("tank/v@a").await;
    lab.write("tank/v", 10..20).await;
    assert!(lab.number("tank/v@a", "used").await >= 10 * u64::from(BLOCK));
    lab.snapshot(&["tank/v@b"]).await.unwrap();
    lab.write("tank/v", 15..25).await;
    lab.snapshot(&["tank/v@c"]).await.unwrap();
    lab.write("tank/v", 0..5).await;
    lab.check();
    assert_eq!(lab.read("tank/v@a").await, at_a);
    assert_eq!(refusal(lab.snapshot(&["tank/v@c"]).await), "dataset already exists");
    assert_eq!(
        refusal(lab.snapshot(&["tank/v@d", "tank/v@e"]).await),
        "multiple snapshots of same fs not allowed"
    );
    assert_eq!(refusal(lab.snapshot(&["tank/w@d"]).await), "dataset does not exist");
    assert_eq!(refusal(lab.destroy("tank/v").await), "volume has children");
    // The middle one, the newest, the oldest.
    for name in ["tank/v@b", "tank/v@c", "tank/v@a"] {
        lab.destroy_snapshot(name, false).await.unwrap();
        lab.check();
    }
    assert_eq!(lab.number("tank/v", "usedbysnapshots").await, 0);
    lab.check_with_zdb();
}

/// What their deadlists need not tell apart any more is forgotten for all of them together, and must not be what a clone or a
/// bookmark still needs.
#[tokio::test(start_paused = true)]
async fn snapshots_destroyed_in_one_group_leave_what_others_need() {
    let mut lab = Lab::new("d0", 12, 12).await;
    lab.create("tank/v", Properties::new()).await.unwrap();
    for number in 0..12 {
        lab.write("tank/v", number..number + 20).await;
        lab.snapshot(&[&format!("tank/v@{number}")]).await.unwrap();
    }
    lab.bookmark("tank/v@4", "tank/v#4").await.unwrap();
    lab.clone("tank/v@6", "tank/c").await.unwrap();
    lab.write("tank/c", 0..30).await;
    lab.snapshot(&["tank/c@x"]).await.unwrap();
    lab.write("tank/c", 10..40).await;
    let kept = [lab.read("tank/v@3").await, lab.read("tank/v@7").await, lab.read("tank/c@x").await];
    for numbers in [&[1, 2, 4, 5, 8, 9, 11][..], &[0, 10]] {
        let names: Vec<String> = numbers.iter().map(|number| format!("tank/v@{number}")).collect();
        lab.run(&format!("destroy {names:?}"), false, move |cx| {
            Box::pin(async move { dsl::destroy_snapshots(cx, &names, false).await })
        })
        .await
        .unwrap();
        lab.check();
        lab.write("tank/v", 5..35).await;
        lab.check();
    }
    let left = [lab.read("tank/v@3").await, lab.read("tank/v@7").await, lab.read("tank/c@x").await];
    assert!(left == kept);
    lab.destroy_bookmark("tank/v#4").await.unwrap();
    lab.check();
    lab.check_with_zdb();
}

#[tokio::test(start_paused = true)]
async fn a_rolled_back_volume_is_its_snapshot_again() {
    let mut lab = Lab::new("d0", 12, 5).await;
    lab.create("tank/v", props(&[("refreservation", 2 << 20)])).await.unwrap();
    lab.check();
    lab.write("tank/v", 0..30).await;
    lab.check();
    lab.snapshot(&["tank/v@a"]).await.unwrap();
    lab.check();
    let at_a = lab.read("tank/v@a").await;
    lab.write("tank/v", 10..50).await;
    let open = lab.running.engine.volume("tank/v").await.unwrap();
    assert!(content(open.as_ref()).await != at_a);
    lab.rollback("tank/v@a").await.unwrap();
    lab.settle().await;
    lab.check();
    assert_eq!(lab.number("tank/v@a", "used").await, 0);
    assert!(lab.read("tank/v").await == at_a);
    assert!(content(open.as_ref()).await == at_a, "the open volume shows it");
    // Twice, with nothing in between; then with a newer snapshot, and in a clone.
    lab.rollback("tank/v@a").await.unwrap();
    lab.snapshot(&["tank/v@b"]).await.unwrap();
    assert_eq!(refusal(lab.rollback("tank/v@a").await), "more recent snapshots or bookmarks exist");
    lab.clone("tank/v@a", "tank/c").await.unwrap();
    lab.write("tank/c", 0..10).await;
    lab.snapshot(&["tank/c@x"]).await.unwrap();
    lab.write("tank/c", 5..20).await;
    lab.rollback("tank/c@x").await.unwrap();
    lab.settle().await;
    lab.check();
    lab.write("tank/c", 1..2).await;
    lab.check();
    lab.check_with_zdb();
}

/// What the pool's own directories use.
async fn mos_bytes(lab: &Lab) -> u64 {
    let view = lab.running.engine.view();
    let root = view.dsl().await.unwrap().root().await.unwrap();
    let map = root.dir().phys().child_map;
    let children = pool::zap::Zap::open_in(view.mos(), map).await.unwrap().numbers().await.unwrap();
    let mut sum = 0;
    for (_, object) in children {
        sum += view.dsl().await.unwrap().dir(object).await.unwrap().phys().used_bytes;
    }
    sum
}

/// All the ways to take a family of clones apart: whatever is refused is tried again later.
#[tokio::test(start_paused = true)]
async fn families_of_clones_come_apart_in_any_order() {
    for seed in seeds(SEEDS) {
        let mut lab = Lab::new(if seed % 2 == 0 { "d0" } else { "raidz1 d0 d1 d2" }, 12, 100 + seed).await;
        lab.create("tank/v", Properties::new()).await.unwrap();
        lab.write("tank/v", 0..30).await;
        lab.snapshot(&["tank/v@a"]).await.unwrap();
        lab.write("tank/v", 5..15).await;
        lab.snapshot(&["tank/v@b"]).await.unwrap();
        lab.write("tank/v", 10..20).await;
        lab.snapshot(&["tank/v@c"]).await.unwrap();
        lab.clone("tank/v@b", "tank/x").await.unwrap();
        lab.check();
        lab.write("tank/x", 0..12).await;
        lab.snapshot(&["tank/x@p"]).await.unwrap();
        lab.write("tank/x", 12..24).await;
        lab.clone("tank/x@p", "tank/y").await.unwrap();
        lab.clone("tank/v@a", "tank/z").await.unwrap();
        lab.write("tank/y", 3..6).await;
        lab.write("tank/v", 0..3).await;
        lab.check();
        let mut left: Vec<String> = strings(&["tank/v", "tank/x", "tank/y", "tank/z"]);
        let mut expected = std::collections::BTreeMap::new();
        for name in &left {
            expected.insert(name.clone(), lab.read(name).await);
        }
        left.extend(strings(&["tank/v@a", "tank/v@b", "tank/v@c", "tank/x@p"]));
        for _ in 0..60 {
            if left.is_empty() {
                break;
            }
            // A promoted clone takes its snapshots along, so names are looked up anew each time.
            let mut order = left.clone();
            order.shuffle(&mut lab.random);
            let name = order[0].clone();
            let heads: Vec<String> = left.iter().filter(|n| !n.contains('@')).cloned().collect();
            let result = match name.split_once('@') {
                None if lab.random.random() => lab.promote(&name).await,
                None => lab.destroy(&name).await,
                Some((_, last)) => {
                    let mut result = Err(OpError::NoDataset);
                    for head in &heads {
                        let full = format!("{head}@{last}");
                        match lab.destroy_snapshot(&full, false).await {
                            Err(OpError::NoDataset) => {}
                            other => {
                                result = other;
                                break;
                            }
                        }
                    }
                    result
                }
            };
            let step = lab.steps.last().cloned().unwrap_or_default();
            match result {
                Ok(()) if !step.starts_with("promote") => left.retain(|other| *other != name),
                Ok(()) => {}
                Err(OpError::Refused(_)) => continue,
                Err(error) => panic!("{step}: {error}; {:#?}", lab.steps),
            }
            lab.settle().await;
            lab.check();
            for (name, bytes) in &expected {
                if left.contains(name) {
                    assert!(lab.read(name).await == *bytes, "{name} changed: {:#?}", lab.steps);
                }
            }
        }
        assert!(left.is_empty(), "{left:?} are left: {:#?}", lab.steps);
        assert_eq!(lab.number(POOL, "usedbychildren").await, mos_bytes(&lab).await);
        if seed == seeds(SEEDS).start {
            lab.check_with_zdb();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn holds_keep_snapshots_and_release_lets_them_go() {
    let mut lab = Lab::new("d0", 12, 9).await;
    lab.create("tank/v", Properties::new()).await.unwrap();
    lab.write("tank/v", 0..10).await;
    lab.snapshot(&["tank/v@a"]).await.unwrap();
    lab.hold("tank/v@a").await.unwrap();
    assert_eq!(refusal(lab.hold("tank/v@a").await), "tag already exists on this dataset");
    lab.check();
    assert_eq!(
        refusal(lab.destroy_snapshot("tank/v@a", false).await),
        "it's being held. Run 'zfs holds -r tank/v@a' to see holders."
    );
    lab.destroy_snapshot("tank/v@a", true).await.unwrap();
    assert_eq!(lab.number("tank/v@a", "defer_destroy").await, 1);
    lab.release("tank/v@a").await.unwrap();
    assert_eq!(refusal(lab.release("tank/v@a").await), "dataset does not exist");
    lab.check();
    // A clone keeps its origin as well, and takes it along if that was asked for.
    lab.snapshot(&["tank/v@b"]).await.unwrap();
    lab.clone("tank/v@b", "tank/c").await.unwrap();
    lab.write("tank/v", 2..5).await;
    assert_eq!(refusal(lab.destroy_snapshot("tank/v@b", false).await), "snapshot has dependent clones");
    lab.destroy_snapshot("tank/v@b", true).await.unwrap();
    lab.check();
    lab.destroy("tank/c").await.unwrap();
    lab.settle().await;
    lab.check();
    assert_eq!(refusal(lab.destroy_snapshot("tank/v@b", false).await), "dataset does not exist");
}

#[tokio::test(start_paused = true)]
async fn bookmarks_outlive_their_snapshots() {
    let mut lab = Lab::new("d0", 12, 10).await;
    lab.create("tank/v", Properties::new()).await.unwrap();
    for (name, blocks) in [("tank/v@a", 0..20), ("tank/v@b", 5..15), ("tank/v@c", 10..12)] {
        lab.write("tank/v", blocks).await;
        lab.snapshot(&[name]).await.unwrap();
    }
    let guid = lab.number("tank/v@b", "guid").await;
    lab.bookmark("tank/v@b", "tank/v#b").await.unwrap();
    lab.bookmark("tank/v#b", "tank/v#again").await.unwrap();
    assert_eq!(lab.feature("com.delphix:bookmarks").await, 1);
    assert_eq!(refusal(lab.bookmark("tank/v@a", "tank/v#b").await), "bookmark exists");
    assert_eq!(
        refusal(lab.bookmark("tank/v@a", "tank#a").await),
        "source is not an ancestor of the new bookmark's dataset"
    );
    lab.check();
    lab.destroy_snapshot("tank/v@b", false).await.unwrap();
    lab.write("tank/v", 0..30).await;
    lab.check();
    assert_eq!(lab.number("tank/v#b", "guid").await, guid);
    lab.destroy_bookmark("tank/v#b").await.unwrap();
    lab.check();
    lab.destroy_bookmark("tank/v#again").await.unwrap();
    assert_eq!(lab.feature("com.delphix:bookmarks").await, 0);
    lab.check();
    lab.bookmark("tank/v@c", "tank/v#c").await.unwrap();
    for name in ["tank/v@a", "tank/v@c"] {
        lab.destroy_snapshot(name, false).await.unwrap();
        lab.check();
    }
    lab.destroy("tank/v").await.unwrap();
    lab.settle().await;
    assert_eq!(lab.feature("com.delphix:bookmarks").await, 0);
    lab.check();
}

/// They stayed with what was cloned from, where nothing can go on from them, and went with it.
#[tokio::test(start_paused = true)]
async fn bookmarks_go_to_the_clone_that_is_promoted_with_the_snapshots_that_they_are_of() {
    let mut lab = Lab::new("d0", 12, 17).await;
    lab.create("tank/v", Properties::new()).await.unwrap();
    for (snapshot, bookmark, blocks) in [("tank/v@a", "tank/v#a", 0..20), ("tank/v@b", "tank/v#b", 5..15)] {
        lab.write("tank/v", blocks).await;
        lab.snapshot(&[snapshot]).await.unwrap();
        lab.bookmark(snapshot, bookmark).await.unwrap();
    }
    let guid = lab.number("tank/v#a", "guid").await;
    lab.destroy_snapshot("tank/v@a", false).await.unwrap();
    lab.clone("tank/v@b", "tank/c").await.unwrap();
    lab.write("tank/c", 10..30).await;
    lab.write("tank/v", 0..8).await;
    lab.snapshot(&["tank/v@later"]).await.unwrap();
    lab.bookmark("tank/v@later", "tank/v#later").await.unwrap();
    // One that has its name is in the way, and what was refused has changed nothing.
    lab.snapshot(&["tank/c@own"]).await.unwrap();
    lab.bookmark("tank/c@own", "tank/c#b").await.unwrap();
    assert_eq!(refusal(lab.promote("tank/c").await), "conflicting bookmark 'b' from parent 'tank/v#b'");
    assert_eq!(bookmarks(&lab, "tank/v").await, ["a", "b", "later"]);
    assert_eq!(bookmarks(&lab, "tank/c").await, ["b"]);
    lab.check();
    lab.destroy_bookmark("tank/c#b").await.unwrap();
    assert_eq!(lab.feature("com.delphix:bookmarks").await, 1);

    lab.promote("tank/c").await.unwrap();
    assert_eq!(bookmarks(&lab, "tank/c").await, ["a", "b"]);
    assert_eq!(bookmarks(&lab, "tank/v").await, ["later"]);
    assert_eq!(lab.number("tank/c#a", "guid").await, guid);
    assert_eq!(lab.feature("com.delphix:bookmarks").await, 2);
    lab.check();
    lab.destroy_snapshot("tank/v@later", false).await.unwrap();
    lab.destroy("tank/v").await.unwrap();
    lab.settle().await;
    assert_eq!(bookmarks(&lab, "tank/c").await, ["a", "b"]);
    assert_eq!(lab.feature("com.delphix:bookmarks").await, 1);
    lab.check();
    lab.destroy_bookmark("tank/c#a").await.unwrap();
    lab.destroy_snapshot("tank/c@b", false).await.unwrap();
    lab.check();
    lab.check_with_zdb();
}

/// The list of the dataset that has none left goes, and what it was counted for with it.
#[tokio::test(start_paused = true)]
async fn a_dataset_whose_last_bookmark_is_promoted_away_is_not_counted_any_more() {
    let mut lab = Lab::new("d0", 12, 18).await;
    lab.create("tank/v", Properties::new()).await.unwrap();
    lab.write("tank/v", 0..20).await;
    lab.snapshot(&["tank/v@a"]).await.unwrap();
    lab.bookmark("tank/v@a", "tank/v#a").await.unwrap();
    lab.clone("tank/v@a", "tank/c").await.unwrap();
    for (promoted, other) in [("tank/c", "tank/v"), ("tank/v", "tank/c")] {
        lab.promote(promoted).await.unwrap();
        assert_eq!(bookmarks(&lab, promoted).await, ["a"]);
        assert!(bookmarks(&lab, other).await.is_empty());
        assert_eq!(lab.feature("com.delphix:bookmarks").await, 1);
        lab.check();
    }
    lab.check_with_zdb();
}

/// It was what was written from each snapshot to the next, all of it: many times what a volume has that is overwritten each day.
#[tokio::test(start_paused = true)]
async fn what_was_written_since_a_snapshot_is_what_that_has_not() {
    /// What leads to the blocks, in bytes at most.
    const POINTERS: u64 = 128 << 10;
    let mut lab = Lab::new("d0", 12, 19).await;
    lab.create("tank/v", Properties::new()).await.unwrap();
    let snapshots = ["tank/v@a", "tank/v@b", "tank/v@c", "tank/v@d", "tank/v@e"];
    for (blocks, name) in [0..30, 0..40, 0..40, 10..50, 0..40].into_iter().zip(snapshots) {
        lab.write("tank/v", blocks).await;
        lab.snapshot(&[name]).await.unwrap();
    }
    lab.write("tank/v", 5..45).await;
    lab.clone("tank/v@c", "tank/c").await.unwrap();
    lab.write("tank/c", 0..40).await;
    lab.snapshot(&["tank/c@x"]).await.unwrap();
    lab.write("tank/c", 20..60).await;
    for (name, count) in [("tank/v", 5), ("tank/v@d", 3), ("tank/c", 3), ("tank/c@x", 3)] {
        for since in &snapshots[..count] {
            let (now, then) = (lab.read(name).await, lab.read(since).await);
            let blocks = now.chunks(BLOCK as usize).zip(then.chunks(BLOCK as usize));
            let differing = blocks.filter(|(now, then)| now != then).count() as u64 * u64::from(BLOCK);
            let written = lab.written_since(name, since).await;
            assert!((differing..differing + POINTERS).contains(&written), "{name} since {since}: {written}");
        }
    }
}

/// Last names of a head's bookmarks, oldest first.
async fn bookmarks(lab: &Lab, head: &str) -> Vec<String> {
    let view = lab.running.engine.view();
    let head = view.dsl().await.unwrap().lookup(head).await.unwrap();
    let found = head.bookmarks().await.unwrap();
    found.iter().map(|bookmark| bookmark.last_name().to_owned()).collect()
}
