//! Where more is in flight than there is space: who waits, in which order, and who is refused.

use std::cell::Cell;

use futures_util::future::{join, join_all};

use super::*;

const COMMIT: Duration = Duration::from_millis(50);

/// Syncs as the pool does until `clients` are done: each group takes a while, and `tell` says what there is then. Groups.
async fn sync_until<T>(
    txgs: &Txgs,
    tell: impl Fn() -> (Supply, BTreeMap<u64, Room>),
    clients: impl Future<Output = T>,
) -> (T, u64) {
    let groups = Cell::new(0);
    let syncing = async {
        loop {
            txgs.next().await;
            let (txg, _) = txgs.close().await;
            tokio::time::sleep(COMMIT).await;
            let (supply, rooms) = tell();
            txgs.counted();
            txgs.synced(txg, supply, rooms);
            groups.set(groups.get() + 1);
        }
    };
    let done = tokio::select! {
        done = clients => done,
        () = syncing => unreachable!("it has no end"),
    };
    (done, groups.get())
}

/// Takes `cost` again and again; the longest it waited.
async fn take(txgs: &Txgs, cost: Cost, times: usize) -> Result<Duration, VolumeError> {
    let mut longest = Duration::ZERO;
    for _ in 0..times {
        let start = Instant::now();
        let tx = txgs.assign(cost).await?;
        longest = longest.max(start.elapsed());
        tokio::time::sleep(Duration::from_millis(1)).await;
        drop(tx);
    }
    Ok(longest)
}

/// A volume that was written in full and is reserved in full was written over with more in flight than was left of its room, and
/// most of that was refused.
#[tokio::test(start_paused = true)]
async fn overwrites_with_more_in_flight_than_there_is_room_for_are_not_refused() {
    let own = (shared(0), room(100, 100));
    let of_all = (shared(100), room(1000, 0));
    let of_directory = (
        Supply { reserved: BTreeMap::from([(70, 100)]), ..shared(0) },
        Room { above: vec![70], ..room(1000, 0) },
    );
    let of_devices = (Supply { shared: 1000, free: 100, ..Supply::default() }, room(1000, 0));
    for (supply, room) in [own, of_all, of_directory, of_devices] {
        let txgs = Txgs::new(4, LIMITS);
        txgs.set_supply(supply.clone());
        let volume = txgs.for_volume(1, room.clone());
        let writers = join_all((0..30).map(|_| take(&volume, space(10), 20)));
        let tell = || (supply.clone(), BTreeMap::from([(1, room.clone())]));
        let (waited, groups) = sync_until(&txgs, tell, writers).await;
        for waited in waited {
            let waited = waited.expect("all of it comes back with each commit");
            assert!(waited <= 8 * COMMIT, "{supply:?}: 10 of 30 have room, and one waited for {waited:?}");
        }
        assert!(groups <= 600 / 10 + 4, "{supply:?}: {groups}, and 10 of 600 have room in each");
    }
}

/// A snapshot may keep the old ones of indirect blocks, and most of them it does not.
#[tokio::test(start_paused = true)]
async fn overwrites_of_which_a_snapshot_may_keep_something_are_not_refused_for_what_others_announced() {
    let txgs = Txgs::new(4, LIMITS);
    let supply = Supply { margin: 20, free: 1000, ..shared(30) };
    txgs.set_supply(supply.clone());
    let room = Room { is_shared: true, ..room(1000, 0) };
    let volume = txgs.for_volume(1, room.clone());
    let below = |number| {
        let above = Above { each: 10, ends: [Some(number), None], ..Above::default() };
        Cost { space: 10, above, ..Cost::default() }
    };
    let writers = join_all((0..10).map(|number| take(&volume, below(number), 10)));
    let tell = || (supply.clone(), BTreeMap::from([(1, room.clone())]));
    let (waited, _) = sync_until(&txgs, tell, writers).await;
    assert!(waited.iter().all(Result::is_ok), "{waited:?}");
    // Alone it does not fit.
    let large = volume.assign(Cost { space: 31, ..Cost::default() });
    assert_eq!(sync_until(&txgs, tell, large).await.0.err(), Some(VolumeError::NoSpace));
}

#[tokio::test(start_paused = true)]
async fn a_large_one_is_not_passed_by_small_ones_of_other_volumes_for_ever() {
    let txgs = Txgs::new(4, LIMITS);
    txgs.set_supply(shared(100));
    let (one, other) = (txgs.for_volume(1, room(1000, 0)), txgs.for_volume(2, room(1000, 0)));
    let small = join_all((0..20).map(|_| take(&other, space(10), 50)));
    let large = async {
        tokio::time::sleep(10 * COMMIT).await;
        take(&one, space(90), 5).await
    };
    let tell = || (shared(100), BTreeMap::new());
    let ((small, large), _) = sync_until(&txgs, tell, join(small, large)).await;
    assert!(small.iter().all(Result::is_ok), "{small:?}");
    assert!(large.clone().is_ok_and(|waited| waited <= 6 * COMMIT), "{large:?}");
}

#[tokio::test(start_paused = true)]
async fn a_single_one_does_not_wait_for_space_behind_all_those_of_another_volume() {
    let txgs = Txgs::new(4, LIMITS);
    txgs.set_supply(shared(100));
    let (busy, quiet) = (txgs.for_volume(1, room(1000, 0)), txgs.for_volume(2, room(1000, 0)));
    let many = join_all((0..200).map(|_| take(&busy, space(10), 1)));
    let one = async {
        tokio::task::yield_now().await;
        take(&quiet, space(10), 1).await
    };
    let tell = || (shared(100), BTreeMap::new());
    let ((many, one), groups) = sync_until(&txgs, tell, join(many, one)).await;
    assert!(many.iter().all(Result::is_ok) && groups >= 19, "{groups}");
    assert!(one.clone().is_ok_and(|waited| waited <= 3 * COMMIT), "{one:?}");
}

/// What only time closes is skipped if nothing is in it, and gives nobody anything.
#[tokio::test(start_paused = true)]
async fn who_waits_for_a_group_that_is_skipped_asks_for_the_next_one() {
    let txgs = Txgs::new(4, LIMITS);
    txgs.set_supply(shared(100));
    let volume = txgs.for_volume(1, room(1000, 0));
    assert!(txgs.lend(50), "logs have it until a commit");
    let (txg, _) = txgs.close().await;
    let mut waiting = Box::pin(volume.assign(space(80)));
    assert!(waiting.as_mut().now_or_never().is_none());
    assert!(!txgs.is_wanted(txg + 1), "there would be nothing in it");
    txgs.skipped(txg);
    assert!(waiting.as_mut().now_or_never().is_none());
    assert!(txgs.is_wanted(txg + 1));
}

/// It was the first of all to the end of two groups, and its client came again: others had one request in each.
#[tokio::test(start_paused = true)]
async fn who_asks_for_more_than_there_is_keeps_nothing_from_others_until_it_is_refused() {
    for dataset in [1, 2] {
        let txgs = Txgs::new(4, LIMITS);
        txgs.set_supply(shared(50));
        let volumes = [1, 2].map(|dataset| txgs.for_volume(dataset, room(1000, 0)));
        let [full, other] = [&volumes[0], &volumes[dataset - 1]];
        let insisting = async {
            while full.assign(space(60)).await.err() == Some(VolumeError::NoSpace) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let writer = async {
            tokio::select! {
                waited = take(other, space(10), 50) => waited,
                () = insisting => unreachable!("there are 50"),
            }
        };
        let tell = || (shared(50), BTreeMap::new());
        let (waited, groups) = sync_until(&txgs, tell, writer).await;
        assert!(waited.is_ok() && groups <= 50 / 5 * 2 + 2, "{dataset}: {waited:?}, {groups}");
    }
}

/// A pool that is nearly full: what was announced is taken.
#[tokio::test(start_paused = true)]
async fn where_space_comes_to_its_end_what_is_left_is_given_out_and_the_rest_refused_soon() {
    let txgs = Txgs::new(4, LIMITS);
    txgs.set_supply(shared(55));
    let volume = txgs.for_volume(1, room(1000, 0));
    let (taken, left) = (Cell::new(0), Cell::new(55));
    let writers = join_all((0..64).map(async |_| {
        let got = take(&volume, space(10), 1).await;
        taken.set(taken.get() + 10 * u64::from(got.is_ok()));
        got
    }));
    let tell = || {
        // As though all that was taken by now had been in the group.
        left.set(55 - taken.get());
        (shared(left.get()), BTreeMap::new())
    };
    let (got, groups) = sync_until(&txgs, tell, writers).await;
    let refused = got.iter().filter(|got| matches!(got, Err(VolumeError::NoSpace))).count();
    assert_eq!((refused, left.get()), (59, 5));
    assert!(groups <= 3, "{groups}");
}

#[tokio::test(start_paused = true)]
async fn who_comes_while_others_wait_leaves_the_first_of_them_what_that_waits_for() {
    let txgs = Txgs::new(4, LIMITS);
    txgs.set_supply(shared(100));
    let (one, other) = (txgs.for_volume(1, room(1000, 0)), txgs.for_volume(2, room(1000, 0)));
    let thick = txgs.for_volume(3, room(1000, 500));
    drop(one.try_assign(space(40)).unwrap());
    let mut waiting = Box::pin(one.assign(space(70)));
    assert!(waiting.as_mut().now_or_never().is_none());
    assert!(one.try_assign(space(1)).is_none(), "it is behind");
    assert!(other.try_assign(space(1)).is_none(), "there are 60 and not 70");
    assert!(!txgs.lend(1), "nor for logs");
    drop(thick.try_assign(space(500)).expect("its own"));
    drop(one.try_assign(space(0)).expect("what only frees makes room"));
    // Who waits there as well does not count before it is the first.
    let mut behind = Box::pin(other.assign(space(100)));
    assert!(behind.as_mut().now_or_never().is_none());
    drop(waiting);
    assert!(one.try_assign(space(1)).is_none(), "the other one is the first now");
    drop(behind);
    drop(other.try_assign(space(60)).expect("nobody waits"));
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_room_of_its_own_keeps_no_other_volume_waiting() {
    let txgs = Txgs::new(4, LIMITS);
    txgs.set_supply(shared(100));
    let (full, other) = (txgs.for_volume(1, room(10, 0)), txgs.for_volume(2, room(1000, 0)));
    drop(full.try_assign(space(5)).unwrap());
    let mut waiting: Vec<_> = (0..50).map(|_| Box::pin(full.assign(space(6)))).collect();
    assert!(waiting.iter_mut().all(|write| write.as_mut().now_or_never().is_none()));
    drop(other.try_assign(space(89)).expect("but for what the first of them waits for"));
    assert!(other.try_assign(space(1)).is_none());
}

#[tokio::test(start_paused = true)]
async fn all_who_wait_for_space_are_told_at_once_that_changes_fail() {
    for is_refused in [true, false] {
        let txgs = Txgs::new(4, LIMITS);
        txgs.set_supply(shared(10));
        let (one, other) = (txgs.for_volume(1, room(1000, 0)), txgs.for_volume(2, room(1000, 0)));
        drop(one.try_assign(space(10)).unwrap());
        let mut waiting: Vec<_> =
            [&one, &one, &other].into_iter().map(|volume| Box::pin(volume.assign(space(10)))).collect();
        assert!(waiting.iter_mut().all(|write| write.as_mut().now_or_never().is_none()));
        if is_refused {
            txgs.refuse("over");
        } else {
            txgs.fail_changes(Some("suspended".into()));
        }
        for write in waiting.iter_mut().rev() {
            let error = write.as_mut().now_or_never().expect("it looks again").unwrap_err();
            assert_ne!(error, VolumeError::NoSpace);
        }
        drop(waiting);
        txgs.fail_changes(None);
        if !is_refused {
            let (txg, _) = txgs.close().await;
            txgs.synced(txg, shared(10), BTreeMap::new());
            drop(other.try_assign(space(10)).expect("nobody waits any more"));
        }
    }
}

/// For the length of one commit after a volume was opened it was taken to have nothing reserved, and what hosts had queued while
/// the daemon started anew was refused.
#[tokio::test(start_paused = true)]
async fn a_volume_of_which_no_commit_told_yet_is_not_refused_what_it_may_have_reserved() {
    let txgs = Txgs::new(4, LIMITS);
    txgs.set_supply(shared(10));
    let volume = txgs.for_volume(1, None);
    drop(volume.try_assign(space(10)).expect("what all share"));
    let (txg, _) = txgs.close().await;
    // The group that is being synced may have begun before it was opened.
    let write = async {
        tokio::task::yield_now().await;
        take(&volume, space(50), 2).await
    };
    txgs.synced(txg, shared(0), BTreeMap::new());
    let tell = || (shared(0), rooms(&[(1, 100, 100)]));
    let (written, groups) = sync_until(&txgs, tell, write).await;
    assert!(written.is_ok() && groups <= 2, "{written:?}, {groups}");
    // Of one that is destroyed meanwhile none ever tells.
    let gone = txgs.for_volume(2, None);
    let (refused, groups) = sync_until(&txgs, tell, gone.assign(space(50))).await;
    assert_eq!(refused.err(), Some(VolumeError::NoSpace));
    assert!(groups <= 2, "{groups}");
}
