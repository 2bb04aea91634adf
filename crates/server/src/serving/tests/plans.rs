//! Commands about whole trees, and about what goes with something else: what they mean to do, what they leave out, and what they
//! refuse before anything is done.

use engine::dsl;

use super::*;
use crate::ops::Destroy;

/// The plan went round in circles until the stack overflowed: the daemon was gone, and all disks with it.
#[tokio::test]
async fn a_clone_with_its_origin_below_it_is_not_destroyed_before_it_is_promoted() {
    let world = World::new().await;
    for (name, clone) in [("tank/a", "tank/b"), ("tank/k", "tank/k/d")] {
        let filesystem = Operation::CreateFilesystem {
            name: name.to_owned(),
            properties: Vec::new(),
            parents: false,
            dry_run: false,
        };
        world.run(filesystem).await.unwrap();
        let snapshot = format!("{name}@s");
        world.snapshot(&[&snapshot]).await;
        let name = clone.to_owned();
        let clone = Operation::Clone { snapshot, name, properties: Vec::new(), parents: false };
        world.run(clone).await.unwrap();
    }
    let (from, to) = ("tank/a".to_owned(), "tank/b/old".to_owned());
    world.run(Operation::Rename { from, to, parents: false, recursive: false }).await.unwrap();
    world.run(Operation::Promote { name: "tank/k/d".to_owned() }).await.unwrap();
    for (name, recursive, clones, at, clone) in [
        ("tank/b", false, false, "tank/b", "tank/b"),
        ("tank/b", true, false, "tank/b", "tank/b"),
        ("tank/b/old", true, false, "tank/b/old", "tank/b"),
        ("tank/b/old@s", false, true, "tank/b", "tank/b"),
        ("tank/k", true, true, "tank/k", "tank/k"),
    ] {
        let destroy =
            Destroy { name: name.to_owned(), recursive, clones, dry_run: true, ..Destroy::default() };
        let said = world.run(Operation::Destroy(destroy)).await.unwrap_err().message;
        let why = format!("recursive dependency at '{at}'\nuse 'zfs promote {clone}' first");
        assert_eq!(said, format!("cannot determine dependent datasets: {why}"), "{name}");
    }
    world.run(Operation::Promote { name: "tank/b".to_owned() }).await.unwrap();
    let destroy = Destroy { name: "tank/b".to_owned(), recursive: true, ..Destroy::default() };
    let destroyed = world.run(Operation::Destroy(destroy)).await.unwrap().destroyed;
    assert_eq!(destroyed, ["tank/b/old", "tank/b@s", "tank/b"]);
}

/// A plan was as deep on the stack as the chain was long: a clone of the latest each day, and after a year it overflowed.
#[tokio::test]
async fn a_long_chain_of_clones_can_be_planned() {
    const LINKS: usize = 400;
    let world = World::new().await;
    let make = world.engine.run(|cx| {
        Box::pin(async move { dsl::create_filesystem(cx, "tank/0", &Properties::new(), false).await })
    });
    make.await.unwrap();
    for link in 0..LINKS {
        let (snapshot, clone) = (format!("tank/{link}@s"), format!("tank/{}", link + 1));
        let names = vec![snapshot.clone()];
        let take = world.engine.run_snapshot(move |cx| {
            Box::pin(async move { dsl::snapshot(cx, &names, &Properties::new()).await })
        });
        take.await.unwrap();
        let make = world.engine.run(move |cx| {
            Box::pin(async move { dsl::clone(cx, &snapshot, &clone, &Properties::new(), false).await })
        });
        make.await.unwrap();
    }
    let destroy = Destroy { name: "tank/0".to_owned(), clones: true, dry_run: true, ..Destroy::default() };
    let planned = world.run(Operation::Destroy(destroy)).await.unwrap().destroyed;
    let mut expected = vec![format!("tank/{LINKS}")];
    expected.extend((0..LINKS).rev().flat_map(|link| [format!("tank/{link}@s"), format!("tank/{link}")]));
    assert_eq!(planned, expected);
}

/// A host was cut off from the snapshot that it read when somebody else let go of the last that kept that.
#[tokio::test]
async fn a_snapshot_that_is_to_go_later_does_not_go_while_somebody_uses_it() {
    const NAME: &str = "tank/b@s";
    let world = World::over(1, door().await).await.and_volumes().await;
    let address = listen(&world.serving.targets).await;
    let own = iscsi::iqn::for_dataset(NAME);
    let (tag, names) = ("job".to_owned(), vec![NAME.to_owned()]);
    let (snapshot, clone) = (NAME.to_owned(), "tank/c".to_owned());
    let of_clone = Destroy { name: clone.clone(), ..Destroy::default() };
    for (keep, let_go, what) in [
        (
            Operation::Hold { tag: tag.clone(), names: names.clone(), recursive: false },
            Operation::Release { tag, names, recursive: false },
            "cannot release hold from snapshot 'tank/b@s'",
        ),
        (
            Operation::Clone { snapshot, name: clone, properties: Vec::new(), parents: false },
            Operation::Destroy(of_clone),
            "cannot destroy 'tank/b@s'",
        ),
    ] {
        world.snapshot(&[NAME]).await;
        world.run(keep).await.unwrap();
        let mark = Destroy { name: NAME.to_owned(), defer: true, ..Destroy::default() };
        world.run(Operation::Destroy(mark)).await.unwrap();
        let (guest, status) = log_in(address, &own).await;
        assert_eq!(status, (0, 0));
        let said = world.run(let_go.clone()).await.unwrap_err().message;
        assert!(said.starts_with(&format!("{what}: dataset is busy: used by ")), "{said}");
        assert!(world.dataset(NAME).await.is_ok());
        drop(guest);
        left(&world.serving, NAME).await;
        // Nor does anybody come in while it goes.
        world.disk.inject(Fault::anywhere(On::Flush, Effect::Delay(LONG..=LONG)).times(1));
        let going = world.begin(let_go);
        tokio::time::sleep(LONG / 4).await;
        assert_eq!((log_in(address, &own).await.1, exported(&world.serving, NAME)), ((3, 1), None), "{what}");
        assert!(!going.is_finished());
        going.await.unwrap().unwrap();
        assert!(matches!(world.dataset(NAME).await, Err(LookupError::NotFound { .. })));
        assert!(target(&world.serving, &own).is_none());
    }
}

/// They stayed, and the snapshot with them, and it was said to be done.
#[tokio::test]
async fn deferred_destruction_with_clones_takes_the_clones() {
    let world = World::new().await;
    world.volume("tank/v").await;
    let (snapshot, name) = ("tank/v@s".to_owned(), "tank/c".to_owned());
    let destroy = Destroy { name: snapshot.clone(), clones: true, defer: true, ..Destroy::default() };
    let destroy = Operation::Destroy(destroy);
    let clone = Operation::Clone { snapshot, name, properties: Vec::new(), parents: false };
    let hold = |name: &str| {
        let (tag, names) = ("job".to_owned(), vec![name.to_owned()]);
        Operation::Hold { tag, names, recursive: false }
    };
    for is_held in [false, true] {
        world.snapshot(&["tank/v@s"]).await;
        world.run(clone.clone()).await.unwrap();
        world.snapshot(&["tank/c@x"]).await;
        if is_held {
            world.run(hold("tank/v@s")).await.unwrap();
        }
        let destroyed = world.run(destroy.clone()).await.unwrap().destroyed;
        assert_eq!(destroyed, ["tank/c@x", "tank/c", "tank/v@s"]);
        assert!(world.dataset("tank/c").await.is_err());
        assert_eq!(world.dataset("tank/v@s").await.is_ok(), is_held);
    }
    // Then it goes with its last hold.
    let (tag, names) = ("job".to_owned(), vec!["tank/v@s".to_owned()]);
    world.run(Operation::Release { tag, names, recursive: false }).await.unwrap();
    assert!(world.dataset("tank/v@s").await.is_err());

    // A clone cannot go and leave a snapshot.
    world.snapshot(&["tank/v@s"]).await;
    world.run(clone).await.unwrap();
    world.snapshot(&["tank/c@x"]).await;
    world.run(hold("tank/c@x")).await.unwrap();
    let said = world.run(destroy).await.unwrap_err().message;
    assert!(said.starts_with("cannot destroy snapshot tank/c@x: it's being held."), "{said}");
    for name in ["tank/v@s", "tank/c", "tank/c@x"] {
        assert!(world.dataset(name).await.is_ok(), "{name}");
    }
}

/// It went with its last clone, and then the command failed, because there was no such snapshot any more, and left the rest.
#[tokio::test]
async fn a_snapshot_that_was_to_go_with_its_clones_goes_with_them_once() {
    let world = World::new().await;
    world.volume("tank/v").await;
    for (name, defer, expected) in [
        ("tank/v@s%t", true, vec!["tank/c", "tank/v@s", "tank/v@t"]),
        ("tank/v@s%t", false, vec!["tank/c", "tank/v@s", "tank/v@t"]),
        ("tank/v@s", true, vec!["tank/c", "tank/v@s"]),
        ("tank/v@s", false, vec!["tank/c", "tank/v@s"]),
    ] {
        world.snapshot(&["tank/v@s"]).await;
        if expected.contains(&"tank/v@t") {
            world.snapshot(&["tank/v@t"]).await;
        }
        let (snapshot, clone) = ("tank/v@s".to_owned(), "tank/c".to_owned());
        let clone = Operation::Clone { snapshot, name: clone, properties: Vec::new(), parents: false };
        world.run(clone).await.unwrap();
        let mark = Destroy { name: "tank/v@s".to_owned(), defer: true, ..Destroy::default() };
        world.run(Operation::Destroy(mark)).await.unwrap();
        assert!(world.dataset("tank/v@s").await.is_ok());
        let destroy = Destroy { name: name.to_owned(), clones: true, defer, ..Destroy::default() };
        let destroyed = world.run(Operation::Destroy(destroy)).await.unwrap().destroyed;
        assert_eq!(destroyed, expected, "{name}");
        for name in expected {
            assert!(matches!(world.dataset(name).await, Err(LookupError::NotFound { .. })), "{name}");
        }
    }
}

/// Whatever other software left of it, nobody could release it.
#[tokio::test]
async fn a_hold_whose_tag_is_a_programs_can_be_released_and_not_placed() {
    let world = World::new().await;
    world.volume("tank/a").await;
    world.snapshot(&["tank/a@s"]).await;
    let (tag, names) = (".send-1-1".to_owned(), vec!["tank/a@s".to_owned()]);
    let hold = Operation::Hold { tag: tag.clone(), names: names.clone(), recursive: false };
    let refused = world.run(hold).await.unwrap_err();
    assert_eq!((refused.code, refused.message.as_str()), (2, "tag may not start with '.'"));
    let (left, of) = (tag.clone(), names.clone());
    let held = world.engine.run(move |cx| Box::pin(async move { dsl::hold(cx, &left, &of).await }));
    held.await.unwrap();
    world.run(Operation::Release { tag, names, recursive: false }).await.unwrap();
    assert!(world.dataset("tank/a@s").await.unwrap().holds().await.unwrap().is_empty());
}

/// One dataset whose first receive was interrupted kept all others from having snapshots, which were said to be busy.
#[tokio::test]
async fn what_was_received_in_part_is_left_out_of_a_recursive_snapshot() {
    // Of a dataset, the byte with the flag for it.
    const IN_PART: (usize, u8) = (15 * 8, 1);
    let world = World::new().await;
    for name in ["tank/x/v", "tank/y/v"] {
        world.volume(name).await;
    }
    let object = world.dataset("tank/x").await.unwrap().object();
    let mark = world.engine.run(move |cx| {
        Box::pin(async move {
            let mut bonus = cx.mos.bonus(object).await?;
            bonus[IN_PART.0] |= IN_PART.1;
            Ok(cx.mos.set_bonus(object, &bonus).await?)
        })
    });
    mark.await.unwrap();
    let snapshot = |name: &str, recursive| {
        let names = vec![name.to_owned()];
        world.run(Operation::Snapshot { names, recursive, properties: Vec::new() })
    };
    snapshot("tank@s", true).await.unwrap();
    for (name, is_there) in [
        ("tank@s", true),
        ("tank/x@s", false),
        ("tank/x/v@s", false),
        ("tank/y@s", true),
        ("tank/y/v@s", true),
    ] {
        assert_eq!(world.dataset(name).await.is_ok(), is_there, "{name}");
    }
    for recursive in [false, true] {
        let said = snapshot("tank/x@s", recursive).await.unwrap_err().message;
        assert_eq!(
            said,
            "cannot create snapshot 'tank/x@s': only a part of 'tank/x' has been received\nfinish that where it was begun, or \
             destroy 'tank/x'\nno snapshots were created"
        );
    }
    snapshot("tank/x/v@s", false).await.unwrap();
}

/// For each snapshot the lists of all before it were looked at, which nearly all are the same empty one; and that also when
/// nobody had asked how much becomes free. Of 44 000 snapshots nothing was destroyed for minutes, and hosts waited.
#[tokio::test]
async fn what_snapshots_hold_is_found_out_only_for_who_asks_and_with_few_reads() {
    let world = World::new().await;
    world.volume("tank/a").await;
    let all = Destroy { name: "tank/a@%".to_owned(), ..Destroy::default() };
    let destroy = |dry_run| Operation::Destroy(Destroy { dry_run, ..all.clone() });
    let (mut taken, mut reads) = (0, Vec::new());
    for count in [40, 80] {
        while taken < count {
            let names = vec![format!("tank/a@{taken}")];
            let take = world.engine.run_snapshot(move |cx| {
                Box::pin(async move { dsl::snapshot(cx, &names, &Properties::new()).await })
            });
            take.await.unwrap();
            taken += 1;
        }
        let before = world.disk.counts().reads;
        let answer = world.run(destroy(true)).await.unwrap();
        assert_eq!((answer.destroyed.len(), answer.reclaimed.is_some()), (count, true));
        reads.push(world.disk.counts().reads - before);
    }
    assert!(reads[1] < 3 * reads[0], "for twice as many: {reads:?}");
    let answer = world.run(destroy(false)).await.unwrap();
    assert_eq!((answer.destroyed.len(), answer.reclaimed), (80, None));
}
