//! Names that move, with all that is below them, and that have an end.

use engine::mos::zap;
use ondisk::{
    dnode::ObjectType,
    dsl::{DatasetPhys, dataset_flags, keys::BOOKMARKS},
    zap::{NORM_UPPER, Value},
};

use super::*;

#[tokio::test(start_paused = true)]
async fn names_move_with_their_space() {
    let mut lab = Lab::new("d0", 12, 6).await;
    for name in ["tank/a", "tank/b", "tank/a/d"] {
        lab.filesystem(name, false).await.unwrap();
    }
    lab.create("tank/a/d/v", props(&[("reservation", 4 << 20)])).await.unwrap();
    lab.write("tank/a/d/v", 0..40).await;
    lab.snapshot(&["tank/a/d/v@s", "tank/a@s", "tank/a/d@s"]).await.unwrap();
    lab.check();
    lab.rename("tank/a/d", "tank/b/e", false).await.unwrap();
    lab.check();
    let open = lab.running.engine.volume("tank/b/e/v").await.unwrap();
    assert_eq!(open.dataset(), lab.number("tank/b/e/v", "objsetid").await);
    lab.rename("tank/b/e@s", "tank/b/e@t", true).await.unwrap();
    lab.check();
    assert_eq!(lab.number("tank/b/e/v@t", "volsize").await, SIZE);
    assert_eq!(lab.number("tank/a@s", "version").await, 5);
    lab.rename("tank/b/e/v", "tank/v", false).await.unwrap();
    lab.check();
    assert_eq!(
        refusal(lab.rename("tank/b", "tank/b/x", false).await),
        "new dataset name cannot be a descendant of current dataset name"
    );
    assert_eq!(refusal(lab.rename("tank/b", "tank/a", false).await), "dataset already exists");
    assert_eq!(refusal(lab.rename("tank/b", "tank/v/x", false).await), "parent is not a filesystem");
    assert_eq!(refusal(lab.rename("tank/b", "pond/b", false).await), "datasets must be within same pool");
    assert_eq!(
        refusal(lab.rename("tank/v@t", "tank/b@u", false).await),
        "snapshots must be part of same dataset"
    );
    lab.set("tank/b", &[("quota", 1 << 20)]).await.unwrap();
    assert_eq!(refusal(lab.rename("tank/v", "tank/b/v", false).await), "out of space");
    lab.check();
}

#[tokio::test(start_paused = true)]
async fn a_clone_is_not_promoted_to_snapshots_with_names_that_are_too_long() {
    let mut lab = Lab::new("d0", 12, 26).await;
    lab.create("tank/v", Properties::new()).await.unwrap();
    let snapshot = format!("tank/v@{}", "s".repeat(100));
    lab.snapshot(&[&snapshot]).await.unwrap();
    // "tank/", "@" and the snapshot's name: 106 of 255.
    for (bytes, fits) in [(150, false), (149, true)] {
        let clone = format!("tank/{}", "c".repeat(bytes));
        lab.clone(&snapshot, &clone).await.unwrap();
        let promoted = lab.promote(&clone).await;
        if fits {
            promoted.unwrap();
        } else {
            assert_eq!(refusal(promoted), "name is too long");
        }
        lab.check();
    }
}

/// Makes a file system one with `casesensitivity=insensitive`, as other software creates them.
async fn fold(lab: &mut Lab, name: &str) {
    let head = lab.number(name, "objsetid").await;
    lab.run("casesensitivity=insensitive", false, move |cx| {
        Box::pin(async move {
            let mut phys = DatasetPhys::decode(&cx.mos.bonus(head).await?, Order::Little).unwrap();
            phys.flags |= dataset_flags::CASE_INSENSITIVE;
            cx.mos.set_bonus(head, &phys.encode(Order::Little)).await?;
            Ok(())
        })
    })
    .await
    .unwrap();
}

/// There they are in OpenZFS, which destroyed the older of two snapshots that we had given such names, whichever it was told to.
#[tokio::test(start_paused = true)]
async fn names_of_a_case_insensitive_dataset_are_one_in_any_case() {
    let mut lab = Lab::new("d0", 12, 27).await;
    for name in ["tank/f", "tank/g"] {
        lab.filesystem(name, false).await.unwrap();
    }
    fold(&mut lab, "tank/f").await;
    lab.snapshot(&["tank/f@daily", "tank/g@daily"]).await.unwrap();
    let exists = "dataset already exists";
    assert_eq!(refusal(lab.snapshot(&["tank/f@Daily"]).await), exists);
    lab.snapshot(&["tank/f@other", "tank/g@Daily"]).await.unwrap();
    assert_eq!(refusal(lab.rename("tank/f@other", "tank/f@DAILY", false).await), exists);
    lab.clone("tank/f@other", "tank/c").await.unwrap();
    lab.snapshot(&["tank/c@Daily"]).await.unwrap();
    let conflict = "conflicting snapshot 'daily' from parent 'tank/f@daily'";
    assert_eq!(refusal(lab.promote("tank/c").await), conflict);
    // What is not stored so is found nevertheless, and goes by the name it has.
    lab.rename("tank/f@OTHER", "tank/f@weekly", false).await.unwrap();
    let view = lab.running.engine.view();
    let found = view.dsl().await.unwrap().lookup("tank/f@Weekly").await.unwrap();
    assert_eq!(found.name(), "tank/f@weekly");
    lab.destroy_snapshot("tank/f@DAILY", false).await.unwrap();
    let view = lab.running.engine.view();
    assert!(view.dsl().await.unwrap().lookup("tank/f@daily").await.is_err());
    lab.check();
}

/// `normflags` of the list of a head's bookmarks.
async fn normflags(lab: &Lab, name: &str) -> u64 {
    let head = lab.number(name, "objsetid").await;
    let look = lab.running.engine.run(move |cx| {
        Box::pin(async move {
            let map = zap::get_u64(&mut cx.mos, head, BOOKMARKS).await?.unwrap();
            Ok::<_, OpError>(zap::normflags(&mut cx.mos, map).await?)
        })
    });
    look.await.unwrap()
}

/// OpenZFS destroyed another one than it was told to, or panicked; and of a list that was begun here it found none.
#[tokio::test(start_paused = true)]
async fn bookmarks_of_a_case_insensitive_dataset_are_one_in_any_case() {
    let mut lab = Lab::new("d0", 12, 28).await;
    for name in ["tank/f", "tank/g"] {
        lab.filesystem(name, false).await.unwrap();
    }
    fold(&mut lab, "tank/f").await;
    lab.snapshot(&["tank/f@daily", "tank/g@daily"]).await.unwrap();
    lab.snapshot(&["tank/f@other"]).await.unwrap();
    for (from, name) in [
        ("tank/f@daily", "tank/f#daily"),
        ("tank/f#DAILY", "tank/f#copy"),
        ("tank/g@daily", "tank/g#daily"),
        ("tank/g@daily", "tank/g#Daily"),
    ] {
        lab.bookmark(from, name).await.unwrap();
    }
    for name in ["tank/f", "tank/g"] {
        assert_eq!(normflags(&lab, name).await, NORM_UPPER, "{name}");
    }
    assert_eq!(refusal(lab.bookmark("tank/f@other", "tank/f#Daily").await), "bookmark exists");
    let view = lab.running.engine.view();
    let found = view.dsl().await.unwrap().lookup("tank/f#Daily").await.unwrap();
    assert_eq!(found.name(), "tank/f#daily");
    lab.destroy_bookmark("tank/f#DAILY").await.unwrap();
    let view = lab.running.engine.view();
    assert!(view.dsl().await.unwrap().lookup("tank/f#daily").await.is_err());
    lab.check();
}

#[tokio::test(start_paused = true)]
async fn a_list_of_bookmarks_that_was_begun_without_folding_gets_it_with_the_next() {
    let mut lab = Lab::new("d0", 12, 29).await;
    lab.filesystem("tank/f", false).await.unwrap();
    fold(&mut lab, "tank/f").await;
    lab.snapshot(&["tank/f@a"]).await.unwrap();
    lab.bookmark("tank/f@a", "tank/f#One").await.unwrap();
    let head = lab.number("tank/f", "objsetid").await;
    let unfolded = lab.run("a list as they once were", false, move |cx| {
        Box::pin(async move {
            let old = zap::get_u64(&mut cx.mos, head, BOOKMARKS).await?.unwrap();
            let entries = zap::entries(&mut cx.mos, old).await?;
            cx.mos.free(old).await?;
            let map = zap::create(&mut cx.mos, ObjectType::ZAP_METADATA, 0).await?;
            zap::set_many(&mut cx.mos, map, entries).await?;
            zap::set(&mut cx.mos, head, BOOKMARKS.into(), Value::from_u64(map)).await?;
            Ok(())
        })
    });
    unfolded.await.unwrap();
    assert_eq!(normflags(&lab, "tank/f").await, 0);
    lab.bookmark("tank/f#one", "tank/f#two").await.unwrap();
    assert_eq!(normflags(&lab, "tank/f").await, NORM_UPPER);
    assert_eq!(lab.feature("com.delphix:bookmarks").await, 1);
    lab.check();
    for name in ["tank/f#one", "tank/f#TWO"] {
        lab.destroy_bookmark(name).await.unwrap();
    }
    assert_eq!(lab.feature("com.delphix:bookmarks").await, 0);
    lab.check();
}
