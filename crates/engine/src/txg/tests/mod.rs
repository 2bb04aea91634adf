use std::{collections::BTreeMap, time::Duration};

use futures_util::FutureExt as _;

use super::{assign::LATE, limits::DELAY_MAX, *};

mod short;

const LIMITS: Limits =
    Limits { dirty_max: 1000, timeout: Duration::from_secs(5), delay_scale: Duration::from_micros(500) };

/// A pool in which so much may be taken by anybody.
fn shared(bytes: u64) -> Supply {
    Supply { shared: bytes, free: u64::MAX, ..Supply::default() }
}

/// What volumes may take: dataset, all in all, reserved for it.
fn rooms(rooms: &[(u64, u64, u64)]) -> BTreeMap<u64, Room> {
    rooms.iter().map(|(dataset, limit, own)| (*dataset, room(*limit, *own))).collect()
}

fn room(limit: u64, own: u64) -> Room {
    Room { limit, own, ..Room::default() }
}

fn space(bytes: u64) -> Cost {
    Cost { space: bytes, ..Cost::default() }
}

fn both(dirty: u64, space: u64) -> Cost {
    Cost { dirty, space, ..Cost::default() }
}

#[test]
fn the_delay_curve_is_the_published_one() {
    let limits = Limits { dirty_max: 1_000_000, ..LIMITS };
    let micros = |percent: u64| limits.delay(percent * 10_000).map(|delay| delay.as_nanos() / 100);
    assert_eq!(limits.delay(600_000), None);
    // 13 µs, 167 µs, 500 µs, 1.5 ms, 19.5 ms: docs/format/txg-and-throttle.md §2, in tenths of a microsecond.
    assert_eq!(micros(61), Some(128));
    assert_eq!(micros(70), Some(1666));
    assert_eq!(micros(80), Some(5000));
    assert_eq!(micros(90), Some(15000));
    assert_eq!(micros(99), Some(195_000));
    assert_eq!(limits.delay(1_000_000), Some(DELAY_MAX));
}

#[tokio::test(start_paused = true)]
async fn a_group_is_not_closed_while_somebody_holds_it() {
    let txgs = Txgs::new(4, LIMITS);
    let tx = txgs.assign(Cost::default()).await.unwrap();
    assert_eq!(tx.txg(), 4);
    let closing = {
        let txgs = Arc::clone(&txgs);
        tokio::spawn(async move { txgs.close().await })
    };
    tokio::task::yield_now().await;
    assert!(!closing.is_finished());
    // Others go on in the next group meanwhile.
    assert_eq!(txgs.assign(Cost::default()).await.unwrap().txg(), 5);
    drop(tx);
    assert_eq!(closing.await.unwrap(), (4, true));
}

#[tokio::test(start_paused = true)]
async fn waiting_for_durability_asks_for_a_sync_and_ends_with_it() {
    let txgs = Txgs::new(4, LIMITS);
    txgs.wait_synced().await.unwrap();
    drop(txgs.assign(Cost { dirty: 1, ..Cost::default() }).await.unwrap());
    let waiter = {
        let txgs = Arc::clone(&txgs);
        tokio::spawn(async move { txgs.wait_synced().await })
    };
    let start = Instant::now();
    txgs.next().await;
    assert!(start.elapsed() < Duration::from_secs(1), "it did not wait for the timeout");
    let (txg, touched) = txgs.close().await;
    assert!(touched && !waiter.is_finished());
    txgs.synced(txg, shared(u64::MAX), BTreeMap::new());
    waiter.await.unwrap().unwrap();
    assert_eq!(txgs.dirty(), 0);
}

#[tokio::test(start_paused = true)]
async fn writers_wait_at_the_limit_and_go_on_when_data_is_written() {
    let txgs = Txgs::new(4, LIMITS);
    drop(txgs.assign(Cost { dirty: 1000, ..Cost::default() }).await.unwrap());
    let writer = {
        let txgs = Arc::clone(&txgs);
        tokio::spawn(async move { txgs.assign(Cost { dirty: 100, ..Cost::default() }).await })
    };
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!writer.is_finished());
    txgs.undirty(4, 500);
    writer.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_single_write_larger_than_the_limit_is_let_through_alone() {
    let txgs = Txgs::new(4, LIMITS);
    drop(txgs.assign(Cost { dirty: 5000, ..Cost::default() }).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn no_space_is_said_only_when_nothing_is_pending_any_more() {
    let txgs = Txgs::new(4, LIMITS);
    let volume = txgs.for_volume(1, room(100, 0));
    drop(volume.assign(both(1, 80)).await.unwrap());
    let writer = {
        let volume = Arc::clone(&volume);
        tokio::spawn(async move { volume.assign(both(1, 80)).await.map(|tx| tx.txg()) })
    };
    tokio::task::yield_now().await;
    assert!(!writer.is_finished(), "what was announced may turn out to be less");
    txgs.next().await;
    let (txg, _) = txgs.close().await;
    txgs.synced(txg, shared(u64::MAX), rooms(&[(1, 90, 0)]));
    assert_eq!(writer.await.unwrap(), Ok(5));
    let (txg, _) = txgs.close().await;
    txgs.synced(txg, shared(u64::MAX), rooms(&[(1, 10, 0)]));
    assert_eq!(volume.assign(both(1, 80)).await.err(), Some(VolumeError::NoSpace));
    drop(volume.assign(Cost { dirty: 1, ..Cost::default() }).await.expect("freeing needs none"));
}

#[tokio::test(start_paused = true)]
async fn who_finds_no_space_is_told_so_however_long_others_go_on_announcing() {
    let txgs = Txgs::new(4, LIMITS);
    let (full, other) = (txgs.for_volume(1, room(10, 0)), txgs.for_volume(2, room(1000, 0)));
    let writer = {
        let full = Arc::clone(&full);
        tokio::spawn(async move { full.assign(space(80)).await.err() })
    };
    let mut groups = 0;
    while !writer.is_finished() {
        drop(other.assign(space(5)).await.unwrap());
        txgs.next().await;
        let (txg, _) = txgs.close().await;
        // Never a moment at which nothing is announced.
        drop(other.assign(space(5)).await.unwrap());
        txgs.synced(txg, shared(u64::MAX), rooms(&[(1, 10, 0), (2, 1000, 0)]));
        tokio::task::yield_now().await;
        groups += 1;
        assert!(groups < 5, "it waits for the end of what others announce");
    }
    assert_eq!(writer.await.unwrap(), Some(VolumeError::NoSpace));
}

#[tokio::test(start_paused = true)]
async fn who_found_space_and_waited_for_memory_has_not_been_refused_before() {
    let txgs = Txgs::new(4, LIMITS);
    let volume = txgs.for_volume(1, room(100, 0));
    drop(volume.assign(space(80)).await.unwrap());
    let writer = {
        let volume = Arc::clone(&volume);
        tokio::spawn(async move { volume.assign(both(500, 80)).await.map(|tx| tx.txg()) })
    };
    tokio::task::yield_now().await;
    let (txg, _) = txgs.close().await;
    drop(txgs.assign(Cost { dirty: 1000, ..Cost::default() }).await.unwrap());
    txgs.synced(txg, shared(u64::MAX), rooms(&[(1, 100, 0)]));
    tokio::task::yield_now().await;
    assert!(!writer.is_finished(), "there is space for it, and no memory");
    let (txg, _) = txgs.close().await;
    assert!(volume.try_assign(space(80)).is_none(), "others leave it what it found");
    drop(volume.assign(space(0)).await.unwrap());
    txgs.synced(txg, shared(u64::MAX), rooms(&[(1, 50, 0)]));
    tokio::task::yield_now().await;
    assert!(!writer.is_finished(), "there may be more with what is on its way");
    let (txg, _) = txgs.close().await;
    txgs.synced(txg, shared(u64::MAX), rooms(&[(1, 100, 0)]));
    assert_eq!(writer.await.unwrap(), Ok(7));
}

/// Those who wait for a group, those who find no space, and the task that goes from group to group: each of them looks at
/// what is synced and at the rest, on a thread of its own.
#[test]
fn whoever_asks_what_is_synced_stands_in_nobodys_way() {
    const GROUPS: u64 = 50_000;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(8).enable_time().build().unwrap();
    // Timers are the workers' business, who may all stand still.
    let (over, ended) = std::sync::mpsc::channel();
    let txgs = Txgs::new(4, LIMITS);
    let full = txgs.for_volume(1, room(10, 0));
    for _ in 0..32 {
        let (txgs, full) = (Arc::clone(&txgs), Arc::clone(&full));
        runtime.spawn(async move {
            while let Ok(tx) = txgs.assign(space(1)).await {
                drop(tx);
                drop(txgs.wait_synced().await);
            }
        });
        runtime.spawn(async move {
            while full.assign(space(80)).await.is_err_and(|error| error == VolumeError::NoSpace) {
                tokio::task::yield_now().await;
            }
        });
    }
    runtime.spawn(async move {
        for _ in 0..GROUPS {
            let (txg, _) = txgs.close().await;
            txgs.synced(txg, shared(u64::MAX), rooms(&[(1, 10, 0)]));
            tokio::task::yield_now().await;
        }
        txgs.refuse("over");
        over.send(()).unwrap();
    });
    let ended = ended.recv_timeout(Duration::from_secs(60));
    // Threads that wait for each other would be waited for.
    runtime.shutdown_background();
    ended.expect("nobody waits for ever");
}

#[tokio::test(start_paused = true)]
async fn what_is_done_before_a_change_is_given_up_when_changes_fail() {
    let txgs = Txgs::new(4, LIMITS);
    assert_eq!(txgs.as_long_as_taken(async { Ok(7) }).await, Ok(7));
    let waiting = {
        let txgs = Arc::clone(&txgs);
        tokio::spawn(async move { txgs.as_long_as_taken(std::future::pending::<Result<(), _>>()).await })
    };
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    txgs.fail_changes(Some("suspended".into()));
    let failed = Err(VolumeError::Failed("suspended".into()));
    assert_eq!(waiting.await.unwrap(), failed);
    assert_eq!(txgs.as_long_as_taken(async { Ok(()) }).await, failed, "it is not begun");
    txgs.fail_changes(None);
    assert_eq!(txgs.as_long_as_taken(async { Ok(7) }).await, Ok(7));
}

#[tokio::test(start_paused = true)]
async fn what_a_volume_reserved_is_not_taken_by_others() {
    let txgs = Txgs::new(4, LIMITS);
    drop(txgs.assign(Cost::default()).await.unwrap());
    let (txg, _) = txgs.close().await;
    txgs.synced(txg, shared(50), BTreeMap::new());
    let (thick, thin) = (txgs.for_volume(1, room(150, 100)), txgs.for_volume(2, room(50, 0)));
    drop(thin.try_assign(space(50)).expect("shared space"));
    assert!(thin.try_assign(space(1)).is_none());
    drop(thick.try_assign(space(100)).expect("its own"));
    assert!(thick.try_assign(space(1)).is_none(), "the rest is taken");
}

#[tokio::test(start_paused = true)]
async fn a_reservation_that_volumes_have_together_is_there_once() {
    let txgs = Txgs::new(4, LIMITS);
    let supply = Supply { reserved: BTreeMap::from([(70, 100), (71, 30)]), ..shared(0) };
    txgs.set_supply(supply.clone());
    let below = |dirs: &[u64]| Room { above: dirs.to_vec(), ..room(100, 0) };
    let one = txgs.for_volume(1, below(&[70]));
    let other = txgs.for_volume(2, below(&[71, 70]));
    assert_eq!((one.available(), other.available()), (100, 100), "its limit");
    drop(one.try_assign(space(100)).expect("all of what is reserved"));
    // What is reserved below the other's is its own.
    assert_eq!(other.available(), 30);
    drop(other.try_assign(space(30)).unwrap());
    assert!(other.try_assign(space(1)).is_none());
    let waiting = tokio::spawn({
        let other = Arc::clone(&other);
        async move { other.assign(space(70)).await.map(|tx| tx.txg()) }
    });
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished(), "what was announced may turn out to be less");
    let (txg, _) = txgs.close().await;
    // The first took 20 of its 100.
    let supply = Supply { reserved: BTreeMap::from([(70, 80)]), ..supply };
    txgs.synced(txg, supply, BTreeMap::from([(1, below(&[70])), (2, below(&[71, 70]))]));
    assert_eq!(waiting.await.unwrap(), Ok(5));
    assert_eq!(one.available(), 10);
}

/// Hosts of a thin disk were warned that its room runs short, with most of the pool free, while one wrote the same blocks again
/// and again.
#[tokio::test(start_paused = true)]
async fn what_hosts_are_told_is_left_does_not_fall_with_what_is_only_announced() {
    let txgs = Txgs::new(4, LIMITS);
    let supply = Supply { reserved: BTreeMap::from([(70, 30)]), free: 120, ..shared(50) };
    txgs.set_supply(supply.clone());
    let volume = txgs.for_volume(1, Room { above: vec![70], ..room(150, 20) });
    assert_eq!((volume.available(), volume.committed()), (100, 100));
    drop(volume.try_assign(space(90)).unwrap());
    assert_eq!((volume.available(), volume.committed()), (10, 100));
    let (txg, _) = txgs.close().await;
    txgs.synced(txg, Supply { free: 40, ..supply }, BTreeMap::new());
    assert_eq!(volume.committed(), 40, "what the devices have");
}

/// A pool that was nearly full took nothing while a transaction group was synced, because all that was left had been announced for it:
/// with slow devices, for many seconds at a time.
#[tokio::test(start_paused = true)]
async fn a_group_that_takes_half_of_what_is_left_is_synced_while_writers_have_the_other_half() {
    const MIB: u64 = 1 << 20;
    let limits = Limits { dirty_max: 1 << 30, ..LIMITS };
    let is_asked_for = |txgs: &Txgs| txgs.next().now_or_never().is_some();
    let of_devices = (Supply { shared: 400 * MIB, free: 64 * MIB, ..Supply::default() }, room(400 * MIB, 0));
    let of_all = (shared(64 * MIB), room(400 * MIB, 0));
    let its_own = (shared(400 * MIB), room(64 * MIB, 0));
    for (supply, room) in [of_devices, of_all, its_own] {
        let txgs = Txgs::new(4, limits);
        txgs.set_supply(supply.clone());
        let volume = txgs.for_volume(1, room.clone());
        for _ in 0..31 {
            drop(volume.try_assign(both(MIB, MIB)).unwrap());
        }
        assert!(!is_asked_for(&txgs), "{supply:?}: more is left");
        drop(volume.try_assign(both(MIB, MIB)).unwrap());
        assert!(is_asked_for(&txgs), "{supply:?}");
        let (txg, _) = txgs.close().await;
        for _ in 0..32 {
            assert_eq!(volume.try_assign(both(MIB, MIB)).map(|tx| tx.txg()), Some(5), "{supply:?}");
        }
        assert!(volume.try_assign(both(MIB, MIB)).is_none());
        // All was written over: what was free is free again.
        txgs.synced(txg, supply, BTreeMap::from([(1, room)]));
        assert!(is_asked_for(&txgs));
    }
    // Many together, of which none takes much.
    let txgs = Txgs::new(4, limits);
    txgs.set_supply(shared(64 * MIB));
    let volumes: Vec<_> = (1..=8).map(|dataset| txgs.for_volume(dataset, room(400 * MIB, 0))).collect();
    for volume in volumes.iter().cycle().take(31) {
        drop(volume.try_assign(both(MIB, MIB)).unwrap());
    }
    assert!(!is_asked_for(&txgs));
    drop(volumes[7].try_assign(both(MIB, MIB)).unwrap());
    assert!(is_asked_for(&txgs));
    // With next to nothing left each write would have a transaction group.
    let txgs = Txgs::new(4, limits);
    txgs.set_supply(shared(MIB));
    let volume = txgs.for_volume(1, room(400 * MIB, 0));
    drop(volume.try_assign(both(MIB, MIB)).unwrap());
    assert!(!is_asked_for(&txgs));
}

/// What is written over is announced once, and its log goes on: it took all that was left among the data, and writers stood
/// still until a group was synced.
#[tokio::test(start_paused = true)]
async fn a_group_whose_log_takes_half_of_what_is_left_is_synced_while_writers_have_the_other_half() {
    const MIB: u64 = 1 << 20;
    let limits = Limits { dirty_max: 1 << 30, ..LIMITS };
    let of_devices = Supply { shared: 400 * MIB, free: 64 * MIB, ..Supply::default() };
    for supply in [of_devices, shared(64 * MIB)] {
        let txgs = Txgs::new(4, limits);
        txgs.set_supply(supply.clone());
        let volume = txgs.for_volume(1, room(400 * MIB, 0));
        drop(volume.try_assign(both(MIB, MIB)).unwrap());
        for _ in 0..31 {
            assert!(txgs.next().now_or_never().is_none(), "{supply:?}: more is left");
            assert!(txgs.lend(MIB));
        }
        assert!(txgs.next().now_or_never().is_some(), "{supply:?}");
        for _ in 0..32 {
            drop(volume.try_assign(both(MIB, MIB)).unwrap());
        }
        // The next group has no log yet. What the log took comes back.
        let (txg, _) = txgs.close().await;
        txgs.counted();
        txgs.synced(txg, supply.clone(), BTreeMap::new());
        assert!(txgs.next().now_or_never().is_none(), "{supply:?}");
        // With next to nothing left it would have a group for each write.
        txgs.set_supply(shared(4 * MIB));
        assert!(txgs.lend(MIB) && txgs.next().now_or_never().is_none());
    }
}

/// Each time a dirty block was written over it was announced once more, and a group that took a hundred megabytes was closed
/// as though it were about to fill the pool.
#[tokio::test(start_paused = true)]
async fn what_is_written_over_in_its_group_is_announced_once() {
    const MIB: u64 = 1 << 20;
    let txgs = Txgs::new(4, Limits { dirty_max: 1 << 30, ..LIMITS });
    let supply = Supply { reserved: BTreeMap::from([(70, 10 * MIB)]), ..shared(64 * MIB) };
    txgs.set_supply(supply.clone());
    let volume = txgs.for_volume(1, Room { above: vec![70], ..room(400 * MIB, 20 * MIB) });
    let own = txgs.for_volume(2, room(400 * MIB, 0));
    drop(volume.try_assign(both(30 * MIB, 30 * MIB)).unwrap());
    for writer in [&volume, &own, &txgs] {
        let before = (volume.available(), own.available(), txgs.dirty());
        for _ in 0..100 {
            let tx = writer.try_assign(both(MIB, 2 * MIB)).unwrap();
            writer.give_back(tx.txg(), MIB, 2 * MIB);
        }
        assert_eq!((volume.available(), own.available(), txgs.dirty()), before);
    }
    assert_eq!(volume.available(), 64 * MIB);
    assert!(txgs.next().now_or_never().is_none(), "nothing is scarce");
    // What is left of it is forgotten with its group.
    let (txg, _) = txgs.close().await;
    txgs.synced(txg, supply, BTreeMap::new());
    assert_eq!((volume.available(), own.available()), (94 * MIB, 64 * MIB));
}

/// A group is closed with a fifth of what may be dirty where devices are slow, with up to two fifths where they are fast: what is
/// written over before that never gets to the devices.
#[tokio::test(start_paused = true)]
async fn a_group_is_as_large_as_what_the_devices_write_in_two_seconds() {
    const SIZE: u64 = 1 << 20;
    let txgs = Txgs::new(4, Limits { dirty_max: 10 * SIZE, timeout: Duration::from_secs(1 << 30), ..LIMITS });
    let takes = |bytes: u64| {
        assert_eq!(txgs.dirty(), 0);
        drop(txgs.try_assign(both(bytes - 1, 0)).unwrap());
        assert!(txgs.next().now_or_never().is_none(), "{bytes} bytes less one");
        drop(txgs.try_assign(both(1, 0)).unwrap());
        assert!(txgs.next().now_or_never().is_some(), "{bytes} bytes");
    };
    let sync = async |millis| {
        let (txg, _) = txgs.close().await;
        tokio::time::sleep(Duration::from_millis(millis)).await;
        txgs.synced(txg, Supply { free: u64::MAX, ..shared(u64::MAX) }, BTreeMap::new());
    };
    takes(2 * SIZE);
    // A fifth in four thirds of a second, so three tenths in two.
    sync(1333).await;
    takes(2 * SIZE * 2000 / 1333);
    // In no time, but the one before counts as well: not more than two fifths.
    sync(0).await;
    takes(4 * SIZE);
    // As slow as can be, or suspended for a day: a fifth.
    sync(86_400_000).await;
    takes(2 * SIZE);
    // Which says nothing for long.
    for _ in 0..6 {
        sync(100).await;
        drop(txgs.try_assign(both(2 * SIZE, 0)).unwrap());
    }
    sync(100).await;
    takes(4 * SIZE);
    sync(2000).await;
    // A group of which there is little mostly waits for flushes.
    for _ in 0..20 {
        drop(txgs.try_assign(both(SIZE - 1, 0)).unwrap());
        sync(2000).await;
    }
    drop(txgs.try_assign(both(3 * SIZE, 0)).unwrap());
    assert!(txgs.next().now_or_never().is_none(), "three tenths are less than what they write");
}

#[tokio::test(start_paused = true)]
async fn all_that_is_promised_fits_on_the_devices_whoever_reserved_it() {
    let txgs = Txgs::new(4, LIMITS);
    txgs.set_supply(Supply { free: 150, ..shared(0) });
    let (one, other) = (txgs.for_volume(1, room(100, 100)), txgs.for_volume(2, room(100, 100)));
    drop(one.try_assign(space(100)).unwrap());
    assert_eq!(other.available(), 50);
    assert!(other.try_assign(space(51)).is_none());
    drop(other.try_assign(space(50)).unwrap());
    let (txg, _) = txgs.close().await;
    // A group that is not durable has its promises still, the next begins with what is left.
    assert!(other.try_assign(space(1)).is_none());
    txgs.synced(txg, Supply { free: 40, ..shared(0) }, rooms(&[(1, 0, 0), (2, 50, 50)]));
    assert_eq!((one.available(), other.available()), (0, 40));
    assert!(other.assign(space(41)).await.is_err(), "nothing is pending that could make room");
}

/// Changes were announced without the indirect blocks above them, and a transaction group of scattered ones found no place for
/// those.
#[tokio::test(start_paused = true)]
async fn an_indirect_block_is_announced_once_in_a_group_and_comes_back_with_it() {
    let txgs = Txgs::new(4, LIMITS);
    let supply = Supply { free: 100, spare: 50, ..shared(100) };
    txgs.set_supply(supply.clone());
    let volume = txgs.for_volume(1, room(100, 0));
    let below = |number: u64, space: u64| {
        let above = Above { each: 40, ends: [Some(number), None], ..Above::default() };
        Cost { space, above, ..Cost::default() }
    };
    drop(volume.try_assign(below(1, 5)).unwrap());
    drop(volume.try_assign(below(1, 5)).expect("it is written once"));
    drop(volume.try_assign(below(2, 5)).unwrap());
    assert!(volume.try_assign(below(3, 5)).is_none(), "95 of 100 are announced");
    assert_eq!(volume.available(), 85, "what is written anew comes back");
    drop(volume.try_assign(below(3, 0)).expect("there is more for what only frees"));
    assert!(volume.try_assign(below(4, 0)).is_none());
    let waiting = tokio::spawn({
        let (volume, cost) = (Arc::clone(&volume), below(4, 5));
        async move { volume.assign(cost).await.map(|tx| tx.txg()) }
    });
    for others in [3, 3, 0] {
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished(), "it is waited for, however quick others are");
        let (txg, _) = txgs.close().await;
        txgs.synced(txg, supply.clone(), BTreeMap::new());
        for number in 0..others {
            drop(volume.try_assign(below(number, 0)).unwrap());
        }
    }
    assert_eq!(waiting.await.unwrap(), Ok(7));
}

/// All indirect blocks were taken to be given back. What a snapshot keeps is not, and came out of what others had reserved.
#[tokio::test(start_paused = true)]
async fn indirect_blocks_that_a_snapshot_keeps_come_out_of_no_reservation_of_others() {
    let txgs = Txgs::new(4, LIMITS);
    let supply = Supply { free: 1000, spare: 50, margin: 30, ..shared(10) };
    txgs.set_supply(supply.clone());
    let thick = txgs.for_volume(1, room(100, 100));
    let kept = txgs.for_volume(2, Room { is_shared: true, ..room(10, 0) });
    let plain = txgs.for_volume(3, room(10, 0));
    let partly = txgs.for_volume(4, Room { is_shared: true, ..room(200, 100) });
    let below = |number: u64, space: u64| {
        let above = Above { each: 40, ends: [Some(number), None], ..Above::default() };
        Cost { space, above, ..Cost::default() }
    };
    drop(kept.try_assign(below(1, 0)).expect("what nobody reserved, and the margin"));
    drop(kept.try_assign(below(1, 0)).expect("it is written once"));
    assert!(kept.try_assign(below(2, 0)).is_none(), "the rest is reserved");
    drop(plain.try_assign(below(1, 0)).expect("it comes back"));
    assert!(plain.try_assign(space(1)).is_none(), "it may be taken");
    assert_eq!(plain.available(), 10, "or it may not");
    drop(partly.try_assign(below(1, 40)).expect("its own"));
    assert!(partly.try_assign(below(2, 0)).is_none(), "that is used but for 20");
    drop(thick.try_assign(space(100)).expect("what is reserved is there"));
    let waiting = tokio::spawn({
        let plain = Arc::clone(&plain);
        async move { plain.assign(space(10)).await.map(|tx| tx.txg()) }
    });
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished(), "it is waited for");
    let (txg, _) = txgs.close().await;
    txgs.synced(txg, supply, BTreeMap::new());
    assert_eq!(waiting.await.unwrap(), Ok(5));
    let (txg, _) = txgs.close().await;
    txgs.synced(txg, Supply { free: 100, spare: 50, ..shared(0) }, BTreeMap::new());
    assert_eq!(kept.assign(below(1, 0)).await.err(), Some(VolumeError::NoSpace));
    drop(plain.try_assign(below(1, 0)).expect("others free as before"));
}

/// Each had the place of the other in what the volume remembers, and was announced anew with every change.
#[tokio::test(start_paused = true)]
async fn indirect_blocks_a_power_of_two_apart_are_announced_once_in_a_group() {
    for apart in [512, 1024, 1 << 20] {
        let txgs = Txgs::new(4, LIMITS);
        txgs.set_supply(Supply { free: 2 * 40, ..shared(100) });
        let volume = txgs.for_volume(1, room(100, 0));
        for turn in 0..1000 {
            let above = Above { each: 40, ends: [Some(1 + turn % 2 * apart), None], ..Above::default() };
            let taken = volume.try_assign(Cost { above, ..Cost::default() });
            drop(taken.unwrap_or_else(|| panic!("{apart} apart, turn {turn}: both were announced before")));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_command_sets_aside_is_promised_to_nobody_else_and_was_promised_to_nobody() {
    let txgs = Txgs::new(4, LIMITS);
    txgs.set_supply(shared(100));
    let volume = txgs.for_volume(1, room(1000, 0));
    drop(volume.try_assign(space(30)).unwrap());
    let (syncing, _) = txgs.close().await;
    drop(volume.try_assign(space(40)).unwrap());
    // The command sees what was taken in its own group, and not what is announced for the next one.
    let (now, none) = (shared(70), BTreeMap::new());
    let claim = |bytes| vec![Claim { above: Vec::new(), bytes }];
    assert!(!txgs.claim(syncing, &now, &none, &claim(31)));
    assert!(txgs.claim(syncing, &now, &none, &claim(20)));
    assert_eq!(volume.available(), 10, "until it is durable");
    assert!(volume.try_assign(space(11)).is_none());
    txgs.synced(syncing, shared(50), BTreeMap::new());
    assert_eq!(volume.available(), 10, "and then as well");
    // Below a reservation the claim takes of that first.
    let reserved = Supply { reserved: BTreeMap::from([(70, 25)]), ..shared(50) };
    let (syncing, _) = txgs.close().await;
    assert!(!txgs.claim(syncing, &reserved, &none, &[Claim { above: vec![70], bytes: 76 }]));
    assert!(txgs.claim(syncing, &reserved, &none, &[Claim { above: vec![70], bytes: 75 }]));
}

#[tokio::test(start_paused = true)]
async fn what_a_volume_that_is_gone_announced_is_not_promised_again() {
    let txgs = Txgs::new(4, LIMITS);
    txgs.set_supply(Supply { free: 100, ..shared(100) });
    let (one, other) = (txgs.for_volume(1, room(100, 60)), txgs.for_volume(2, room(100, 0)));
    drop(one.try_assign(space(60)).unwrap());
    drop(one);
    assert_eq!(other.available(), 40);
    let (txg, _) = txgs.close().await;
    txgs.synced(txg, Supply { free: 90, ..shared(90) }, BTreeMap::new());
    assert_eq!(other.available(), 90);
}

#[tokio::test(start_paused = true)]
async fn a_suspended_pool_answers_at_once() {
    let txgs = Txgs::new(4, LIMITS);
    drop(txgs.assign(Cost { dirty: 1, ..Cost::default() }).await.unwrap());
    let waiter = {
        let txgs = Arc::clone(&txgs);
        tokio::spawn(async move { txgs.wait_synced().await })
    };
    tokio::task::yield_now().await;
    txgs.refuse("gone");
    assert_eq!(waiter.await.unwrap(), Err(VolumeError::NotReady("gone".into())));
    assert!(txgs.try_assign(Cost::default()).is_none());
    assert!(txgs.assign(Cost::default()).await.is_err());
}

/// Timers go off a millisecond late. If every writer paid for that, a delay of microseconds would let through one
/// request a millisecond and client.
#[tokio::test(start_paused = true)]
async fn writers_that_are_delayed_by_microseconds_are_not_slowed_down_to_milliseconds() {
    let limits = Limits { dirty_max: 1_000_000, ..LIMITS };
    let txgs = Txgs::new(4, limits);
    drop(txgs.assign(Cost { dirty: 640_000, ..Cost::default() }).await.unwrap());
    let delay = limits.delay(640_000).unwrap();
    let start = Instant::now();
    for _ in 0..1000 {
        drop(txgs.assign(Cost::default()).await.unwrap());
    }
    let (took, least) = (start.elapsed(), delay * 1000);
    assert!(took + LATE >= least, "{took:?} instead of {least:?}: they are delayed");
    assert!(took < least + Duration::from_millis(5), "{took:?} instead of {least:?}");
}

/// `count` writers of a volume, each with `dirty` bytes, that wait by the time this returns.
async fn writers(
    txgs: &Arc<Txgs>,
    count: usize,
    dirty: u64,
) -> Vec<tokio::task::JoinHandle<Result<(), VolumeError>>> {
    let one = |_| {
        let txgs = Arc::clone(txgs);
        tokio::spawn(async move { txgs.assign(both(dirty, 0)).await.map(drop) })
    };
    let writers: Vec<_> = (0..count).map(one).collect();
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(writers.iter().all(|writer| !writer.is_finished()), "they wait");
    writers
}

/// Who had waited at the limit was delayed by what was dirty when there was room for the first one, one behind the other: 500
/// writers slept for 50 seconds on a pool that had nothing to do.
#[tokio::test(start_paused = true)]
async fn nobody_sleeps_on_when_what_is_dirty_has_become_little() {
    let txgs = Txgs::new(4, LIMITS);
    drop(txgs.assign(both(1000, 0)).await.unwrap());
    let writers = writers(&txgs, 500, 1).await;
    txgs.undirty(4, 1);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(writers.iter().all(|writer| !writer.is_finished()), "the first one is delayed");
    let start = Instant::now();
    txgs.undirty(4, 999);
    for writer in writers {
        writer.await.unwrap().unwrap();
    }
    assert!(start.elapsed() < Duration::from_millis(10), "{:?}", start.elapsed());
}

/// One was let go, then the next one's task was told, and so on; whoever came meanwhile had to wait behind them. With writers
/// of two volumes that had no end, however little was dirty, and each write cost the whole pool a task switch.
#[tokio::test(start_paused = true)]
async fn all_who_find_room_without_a_delay_are_let_in_at_once() {
    let txgs = Txgs::new(4, LIMITS);
    let (one, other) = (txgs.for_volume(1, room(u64::MAX, 0)), txgs.for_volume(2, room(u64::MAX, 0)));
    drop(txgs.assign(both(1000, 0)).await.unwrap());
    let volumes = [&one, &other, &one, &other];
    let mut waiting: Vec<_> =
        volumes.into_iter().map(|volume| Box::pin(volume.assign(both(100, 0)))).collect();
    assert!(waiting.iter_mut().all(|write| write.as_mut().now_or_never().is_none()), "they wait");
    txgs.undirty(4, 1000);
    drop(txgs.try_assign(both(200, 0)).expect("who comes now need not wait"));
    assert!(txgs.try_assign(both(1, 0)).is_none(), "room is kept for the others");
    for write in waiting.iter_mut().rev() {
        drop(write.as_mut().now_or_never().expect("nobody waits for the turn of another").unwrap());
    }
    assert_eq!(txgs.dirty(), 600);
}

#[tokio::test(start_paused = true)]
async fn who_was_let_in_and_gives_up_leaves_the_room_to_others() {
    let txgs = Txgs::new(4, LIMITS);
    let other = txgs.for_volume(1, room(u64::MAX, 0));
    drop(txgs.assign(both(1000, 0)).await.unwrap());
    let mut gives_up = Box::pin(txgs.assign(both(500, 0)));
    assert!(gives_up.as_mut().now_or_never().is_none());
    let large = writers(&other, 1, 600).await;
    txgs.undirty(4, 1000);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(!large[0].is_finished(), "room is kept for the one before");
    drop(gives_up);
    for writer in large {
        writer.await.unwrap().unwrap();
    }
    assert_eq!(txgs.dirty(), 600);
}

#[tokio::test(start_paused = true)]
async fn who_was_let_in_and_takes_more_in_the_next_group_finds_room_for_that() {
    for (undirty, others) in [(700, 190), (400, 0)] {
        let txgs = Txgs::new(4, LIMITS);
        let volume = txgs.for_volume(1, room(u64::MAX, 0));
        let below = |dirty| {
            let above = Above { memory: 200, ends: [Some(1), None], ..Above::default() };
            Cost { dirty, above, ..Cost::default() }
        };
        drop(volume.assign(below(700)).await.unwrap());
        let mut waiting = Box::pin(volume.assign(below(10)));
        assert!(waiting.as_mut().now_or_never().is_none(), "it is delayed");
        txgs.undirty(4, undirty);
        let (txg, _) = txgs.close().await;
        let tx = waiting.now_or_never().expect("there is room").unwrap();
        assert_eq!((tx.txg(), txgs.dirty()), (5, 900 - undirty + 210));
        // Nothing is kept any more.
        assert!(txgs.try_assign(both(others + 1, 0)).is_none());
        assert_eq!(txgs.try_assign(both(others, 0)).is_some(), others > 0);
        txgs.synced(txg, shared(u64::MAX), BTreeMap::new());
        drop(txgs.try_assign(both(390 - others, 0)).expect("what the next group has is all that is dirty"));
    }
}

/// All writers of a pool stood in one line, and a volume with one request waited for all of those of another.
#[tokio::test(start_paused = true)]
async fn a_single_write_does_not_wait_behind_all_those_of_another_volume() {
    let limits = Limits { dirty_max: 1_000_000, ..LIMITS };
    let txgs = Txgs::new(4, limits);
    let (busy, quiet) = (txgs.for_volume(1, room(u64::MAX, 0)), txgs.for_volume(2, room(u64::MAX, 0)));
    drop(txgs.assign(both(900_000, 0)).await.unwrap());
    let delay = limits.delay(900_000).unwrap();
    let writers = writers(&busy, 1000, 1).await;
    let start = Instant::now();
    drop(quiet.assign(both(1, 0)).await.unwrap());
    assert!(start.elapsed() <= 4 * delay, "{:?}", start.elapsed());
    // The others are let go at the rate of the curve, in the order in which they came.
    tokio::time::sleep(100 * delay).await;
    let gone = writers.iter().filter(|writer| writer.is_finished()).count();
    assert!((90..110).contains(&gone), "{gone} in 100 delays");
    assert!(writers[..gone].iter().all(tokio::task::JoinHandle::is_finished), "in order");
}

#[tokio::test(start_paused = true)]
async fn a_large_write_is_not_passed_by_small_ones_for_ever() {
    let txgs = Txgs::new(4, LIMITS);
    drop(txgs.assign(both(500, 0)).await.unwrap());
    let large = writers(&txgs, 1, 900).await;
    assert!(txgs.try_assign(both(1, 0)).is_none(), "there would be room for this one");
    let small = writers(&txgs, 1, 1).await;
    txgs.undirty(4, 300);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!large[0].is_finished() && !small[0].is_finished());
    txgs.undirty(4, 200);
    for writer in large.into_iter().chain(small) {
        writer.await.unwrap().unwrap();
    }
    assert_eq!(txgs.dirty(), 901);
}

/// It waited for the group's time to be up, as nothing else asked for a sync.
#[tokio::test(start_paused = true)]
async fn a_write_that_finds_no_room_beside_little_asks_for_a_sync() {
    let txgs = Txgs::new(4, LIMITS);
    drop(txgs.assign(both(150, 0)).await.unwrap());
    let large = writers(&txgs, 1, 900).await;
    let start = Instant::now();
    txgs.next().await;
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    let (txg, _) = txgs.close().await;
    txgs.synced(txg, shared(u64::MAX), BTreeMap::new());
    for writer in large {
        writer.await.unwrap().unwrap();
    }
}

/// They slept until their delay was over, and who closed the pool waited for them.
#[tokio::test(start_paused = true)]
async fn all_who_are_delayed_are_told_at_once_that_changes_fail() {
    for is_refused in [true, false] {
        let txgs = Txgs::new(4, LIMITS);
        let other = txgs.for_volume(1, room(u64::MAX, 0));
        drop(txgs.assign(both(990, 0)).await.unwrap());
        let (some, more) = (writers(&txgs, 100, 1).await, writers(&other, 100, 1).await);
        let start = Instant::now();
        if is_refused {
            txgs.refuse("over");
        } else {
            txgs.fail_changes(Some("suspended".into()));
        }
        for writer in some.into_iter().chain(more) {
            writer.await.unwrap().unwrap_err();
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}

#[tokio::test(start_paused = true)]
async fn who_gives_up_waiting_keeps_nobody_waiting() {
    let txgs = Txgs::new(4, LIMITS);
    drop(txgs.assign(both(1000, 0)).await.unwrap());
    let mut writers = writers(&txgs, 3, 1).await;
    writers.remove(0).abort();
    writers.remove(1).abort();
    tokio::time::sleep(Duration::from_millis(1)).await;
    txgs.undirty(4, 500);
    writers.remove(0).await.unwrap().unwrap();
    drop(txgs.try_assign(both(1, 0)).expect("nobody waits"));
}

#[tokio::test(start_paused = true)]
async fn a_change_whose_indirect_blocks_take_more_than_the_limit_is_let_through_alone() {
    let txgs = Txgs::new(4, LIMITS);
    let volume = txgs.for_volume(1, room(u64::MAX, 0));
    let below = |number| {
        let above = Above { memory: 600, ends: [Some(number), Some(number + 1)], ..Above::default() };
        Cost { dirty: 1, above, ..Cost::default() }
    };
    drop(volume.assign(below(1)).await.unwrap());
    assert_eq!(txgs.dirty(), 1201);
    let waiting = tokio::spawn({
        let volume = Arc::clone(&volume);
        async move { volume.assign(below(2)).await.map(|tx| tx.txg()) }
    });
    tokio::task::yield_now().await;
    // What is on its way to the devices; indirect blocks go there at the end.
    txgs.undirty(4, 1);
    txgs.next().await;
    let (txg, _) = txgs.close().await;
    assert!(!waiting.is_finished());
    assert_eq!(txgs.dirty(), 1200);
    txgs.synced(txg, shared(u64::MAX), BTreeMap::new());
    assert_eq!(waiting.await.unwrap(), Ok(5));
    assert_eq!(txgs.dirty(), 1201, "they are written anew in each group");
}
