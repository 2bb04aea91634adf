//! A pool that is given up, comes again, or is tried again: what was about to be done with it before is done no more, to it or
//! to the next of its name.

use super::*;
use crate::events::observe::News;

/// What hung on a suspended pool went on when that was given up, and offered it again.
#[tokio::test(start_paused = true)]
async fn what_was_about_to_be_offered_when_a_pool_was_given_up_is_not() {
    let world = World::with_volumes().await;
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let portal = ShareChange::PortalAdd { address: free, group: 1, force: false };
    world.run(Operation::Share { pool: "tank".to_owned(), change: portal }).await.unwrap();
    world.serving.portals.stop().await;
    let held = Arc::new(world.reopened().await);
    for block in [
        None,
        Some(world.root_block("tank/a").await),
        Some(world.objects_block("tank/b").await),
        Some(world.objects_block("tank/a").await),
    ] {
        let serving = serving();
        world.hang(block.as_ref());
        let held = Arc::new(Held::reading(held.view(), "it is to be looked at"));
        let following = begun(&serving, &held);
        tokio::time::sleep(LONG / 2).await;
        assert!(!following.is_finished(), "it hangs, at {block:?}");
        serving.withdraw_pool(&held).await;
        following.await.unwrap();
        assert!(serving.entries.lock().is_empty(), "at {block:?}");
        assert!(serving.targets.list().is_empty() && serving.portals.list().is_empty(), "at {block:?}");
        assert!(!serving.is_awaited(TARGET));
        world.disk.heal();
    }
}

/// Whoever had hung in a read of the old pool took away what the new one of its name offered, and nobody put it right.
#[tokio::test(start_paused = true)]
async fn what_hung_on_a_pool_that_was_given_up_leaves_the_next_of_its_name_alone() {
    let (old, new) = (World::with_volumes().await, World::of(2).await.and_volumes().await);
    old.set_much("tank/a").await;
    let (old_held, new_held) = (old.reopened().await, new.reopened().await);
    assert_ne!(old_held.guid(), new_held.guid());
    for block in [
        // First: what is set the pool knows once it was read.
        Some(old.settings_block("tank/a").await),
        None,
        Some(old.root_block("tank/a").await),
        Some(old.objects_block("tank/b").await),
        Some(old.objects_block("tank/a").await),
    ] {
        let serving = serving();
        old.hang(block.as_ref());
        let fresh = |held: &Held| Arc::new(Held::reading(held.view(), "it is to be looked at"));
        let (old_held, new_held) = (fresh(&old_held), fresh(&new_held));
        let following = begun(&serving, &old_held);
        tokio::time::sleep(LONG / 2).await;
        serving.withdraw_pool(&old_held).await;
        assert_eq!(serving.follow(&new_held).await, Vec::<String>::new());
        assert!(!following.is_finished(), "it hangs, at {block:?}");
        let offered = || -> Vec<(String, Arc<LogicalUnit>)> {
            let targets = serving.targets.list();
            targets.iter().map(|target| (target.iqn().to_owned(), target.unit(0).expect("a disk"))).collect()
        };
        let before = offered();
        following.await.unwrap();
        let after = offered();
        assert_eq!((before.len(), after.len(), serving.entries.lock().len()), (2, 2, 2), "at {block:?}");
        let same = before.iter().zip(&after).all(|(a, b)| a.0 == b.0 && Arc::ptr_eq(&a.1, &b.1));
        assert!(same, "at {block:?}");
        old.disk.heal();
    }
}

/// Hosts were told that an operator had taken their targets away, until the pool had been followed: they give them up then.
#[tokio::test]
async fn targets_of_a_pool_that_is_imported_again_are_awaited_whatever_became_of_them_before() {
    let world = World::with_volumes().await;
    let held = world.reopened().await;
    let serving = serving();
    let address = listen(&serving.targets).await;
    let asked = Arc::downgrade(&serving);
    serving
        .targets
        .set_awaited(move |target| asked.upgrade().is_some_and(|serving| serving.is_awaited(target)));
    let own = iscsi::iqn::for_dataset("tank/b");
    let status = async || [log_in(address, TARGET).await.1, log_in(address, &own).await.1];
    serving.follow(&held).await;
    assert_eq!(status().await, [(0, 0); 2]);
    serving.withdraw_pool(&held).await;
    serving.forget(held.guid());
    assert_eq!(status().await, [(2, 4); 2], "removed");
    let next = Held::reading(held.view(), "it is to be looked at");
    serving.expect(&next);
    assert_eq!(status().await, [(3, 1); 2], "try again");
    // Who was about to follow it when it was given up says nothing of what it is now.
    world.break_reads();
    serving.follow(&next).await;
    world.disk.heal();
    serving.follow(&held).await;
    assert!(serving.again.next().is_some(), "it is tried again");
    assert_eq!(status().await, [(3, 1); 2]);
    serving.follow(&next).await;
    assert_eq!((status().await, serving.again.next()), ([(0, 0); 2], None));
}

/// Its disks were becoming ready until a quarter of an hour after it was well.
#[tokio::test(start_paused = true)]
async fn a_pool_whose_turn_is_taken_counts_as_not_tried_and_one_whose_errors_are_cleared_is_due() {
    let world = World::with_volumes().await;
    let held = world.host.find("tank").unwrap();
    let again = &world.serving.again;
    again.note(&held, false, &[], Vec::new());
    let turn = world.host.turn("tank").await;
    world.serving.try_pool(&world.host, held.guid(), &[]).await;
    assert!(!again.has_tried(held.guid()));
    drop(turn);
    assert!(again.next().is_some_and(|at| at > tokio::time::Instant::now()));
    world.run(Operation::PoolClear { pool: "tank".to_owned(), device: None }).await.unwrap();
    assert!(again.next().is_some_and(|at| at <= tokio::time::Instant::now()));
    world.serving.try_pool(&world.host, held.guid(), &[]).await;
    assert_eq!(again.next(), None, "all of it is offered");
}

/// They were removed with the refusal, and the pool took them when it went on: at its next start it lacked them. Nor did the list
/// of its devices name them.
#[tokio::test]
async fn files_that_a_suspended_pool_may_yet_take_stay() {
    let (world, dir) = (World::new().await, tempfile::tempdir().unwrap());
    let file = dir.path().join("d1");
    let _observer = world.observed();
    world.host.remember_devices(&world.host.find("tank").unwrap()).unwrap();
    world.disk.inject(Fault::anywhere(On::Write, Effect::Error(std::io::ErrorKind::TimedOut)));
    let refused = world.run(Operation::PoolAdd(PoolAdd {
        pool: "tank".to_owned(),
        devices: vec![file.to_str().unwrap().to_owned()],
        file_size: Some(128 << 20),
        force: true,
        ..PoolAdd::default()
    }));
    let error = refused.await.unwrap_err();
    assert!(error.message.contains("suspended"), "{}", error.message);
    world.disk.heal();
    let clear = || world.run(Operation::PoolClear { pool: "tank".to_owned(), device: None });
    eventually("it goes on", async || clear().await.is_ok()).await;
    world.engine.sync().await.unwrap();
    assert_eq!(world.engine.view().tree().tops.len(), 2, "it has gone on, and taken it");
    assert!(file.exists());
    let known = async || world.host.places().state().pools().unwrap()[0].devices.contains(&file);
    eventually("the next start knows it", known).await;
}

/// The list could not be written at that moment, and was not until somebody changed the pool's devices again.
#[tokio::test]
async fn devices_that_could_not_be_written_down_are_when_the_pool_is_tried_again() {
    let world = World::new().await;
    let (held, state) = (world.host.find("tank").unwrap(), world.host.places().state());
    world.host.remember_devices(&held).unwrap();
    let known = || state.pools().unwrap().remove(0);
    let current = known().devices;
    assert!(!current.is_empty());
    let mut lacking = known();
    lacking.devices.clear();
    state.remember(lacking, |_| false).unwrap();
    let text = std::fs::read(state.file()).unwrap();
    std::fs::write(state.file(), "{nonsense").unwrap();
    let again = &world.serving.again;
    world.serving.hear(held.guid(), News::Changed);
    world.serving.try_pool(&world.host, held.guid(), &[]).await;
    assert!(again.next().is_some_and(|at| at > tokio::time::Instant::now()), "after a pause");
    std::fs::write(state.file(), text).unwrap();
    world.serving.try_pool(&world.host, held.guid(), &[]).await;
    assert_eq!((known().devices, again.next()), (current, None));
}
