//! Devices that do not answer. What only reads keeps nobody, but the memory that the device may still write to; what writes is
//! waited for, because it may land late: by who ends it, and by the next login of its host, of which only the newest counts.

use std::{pin::pin, sync::Arc, time::Duration};

use block::{BoxFuture, MemVolume};
use iscsi::{Config, pdu::op};
use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};

use crate::{
    support::{
        Served, command, log_in, log_in_from, manage, order_copy, quick, receive, send, serve_volume,
        test_unit_ready, until,
    },
    volumes::{Held, Mute},
};

/// ABORT TASK, resets and the next login of its host waited for it, and the host gave the disk up.
#[tokio::test]
async fn a_read_whose_device_does_not_answer_keeps_nobody_and_its_memory() {
    let volume = Mute::new();
    let config = Config { login_timeout: Duration::from_secs(2), ..quick() };
    let served = serve_volume(config, Arc::clone(&volume) as _).await;
    let used = || served.targets.config().gate.used();
    let read = [0x28, 0, 0, 0, 0, 0, 0, 0x08, 0, 0];
    for is_cut in [false, true] {
        let mut stream = log_in(served.address, 1).await;
        assert_eq!(test_unit_ready(&mut stream, 1).await, Some(2));
        for (cmd_sn, function) in [(2, 1), (3, 2), (4, 5)] {
            // ABORT TASK, ABORT TASK SET, LOGICAL UNIT RESET: of a task of that tag.
            let mut h = command(cmd_sn, &read, 0x40, 1 << 20);
            h.set(16, 2);
            send(&mut stream, h, &[]).await;
            assert_eq!(manage(&mut stream, function, cmd_sn + 1).await, Some(0), "{function}");
        }
        assert!(used() >= 3 << 20, "what devices may still write to");
        assert_eq!(test_unit_ready(&mut stream, 5).await, Some(2), "it was reset");
        let before = volume.reading.so_far();
        send(&mut stream, command(6, &read, 0x40, 1 << 20), &[]).await;
        volume.reading.begun(before + 1).await;
        let _old = if is_cut { None } else { Some(stream) };
        let mut new = log_in(served.address, 1).await;
        assert_eq!(test_unit_ready(&mut new, 1).await, Some(2));
        assert_eq!(test_unit_ready(&mut new, 2).await, Some(0));
        assert_eq!(served.targets.sessions().len(), 1);
        assert!(used() >= 4 << 20);
    }
}

/// A disk that answered nothing, and whose reads all were aborted, was the fastest of all.
#[tokio::test]
async fn what_was_aborted_has_taken_its_time() {
    let served = serve_volume(quick(), Mute::new()).await;
    let mut stream = log_in(served.address, 1).await;
    assert_eq!(test_unit_ready(&mut stream, 1).await, Some(2));
    let tally = served.targets.sessions().remove(0).counters.luns.list().remove(0).1;
    send(&mut stream, command(2, &[0x28, 0, 0, 0, 0, 0, 0, 0, 8, 0], 0x40, 4096), &[]).await;
    until("it is under way", || tally.get().under_way > 0).await;
    sleep(Duration::from_millis(30)).await;
    let hangs = tally.get();
    assert!(hangs.busy_ns == 0 && hangs.queue_ns >= 30_000_000, "{hangs:?}");
    assert_eq!(manage(&mut stream, 1, 3).await, Some(0));
    let now = tally.get();
    assert_eq!((now.under_way, now.reads, now.read_bytes), (0, 1, 0));
    assert!(now.busy_ns >= 30_000_000 && now.latency.iter().sum::<u64>() == 1, "{now:?}");
}

/// It waited for that device until nobody waited for it any more, and its hosts were told nothing.
#[tokio::test]
async fn a_server_stops_while_a_device_does_not_answer_a_read() {
    let volume = Mute::new();
    let served = serve_volume(quick(), Arc::clone(&volume) as _).await;
    let mut stream = log_in(served.address, 1).await;
    assert_eq!(test_unit_ready(&mut stream, 1).await, Some(2));
    send(&mut stream, command(2, &[0x28, 0, 0, 0, 0, 0, 0, 0x08, 0, 0], 0x40, 1 << 20), &[]).await;
    volume.reading.begun(1).await;
    served.stop.send(()).unwrap();
    let limit = quick().logout_wait + Duration::from_secs(1);
    timeout(limit, served.server).await.expect("no longer than logging out may take").unwrap();
    for event in [1, 2] {
        let told = receive(&mut stream).await.map(|(h, _)| (h.opcode(), h.0[36]));
        assert_eq!(told, Some((op::ASYNC, event)));
    }
}

const FAR: &str = "iqn.2026-11.io.millpond:far:vm";

/// A disk with data at the target [`FAR`], and one without that hosts log in to.
async fn serve_two() -> (Served, Arc<Held>, Arc<Held>) {
    let far = Held::filled("far/vm").await;
    let near = Held::over(MemVolume::new("tank/vm", 4 << 20, 8192));
    let config = Config { login_timeout: Duration::from_secs(2), ..quick() };
    let served = serve_volume(config, Arc::clone(&near) as _).await;
    served.targets.add(FAR, Arc::clone(&far) as _).unwrap();
    (served, far, near)
}

/// A host had no way into a target that had nothing wrong for as long as another pool was away: neither ABORT TASK nor a reset
/// was answered, and its next login waited for the copy until it was given up.
#[tokio::test]
async fn a_copy_whose_source_does_not_answer_keeps_nobody_and_writes_nothing_more() {
    let ways = [(false, Some(1)), (false, Some(5)), (false, None), (true, Some(5)), (true, None)];
    for (immediate, function) in ways {
        let what = format!("answered before it is done: {immediate}, ended by {function:?}");
        let (served, far, near) = serve_two().await;
        near.writes.add_permits(100);
        let used = || served.targets.config().gate.used();
        let mut old = log_in(served.address, 1).await;
        assert_eq!(test_unit_ready(&mut old, 1).await, Some(2));
        order_copy(&mut old, 2, [&*far, &*near], (4096, 0), immediate).await;
        if immediate {
            let (h, _) = receive(&mut old).await.unwrap();
            assert_eq!((h.opcode(), h.0[3]), (op::RESPONSE, 0), "{what}");
        }
        far.reading.begun(1).await;
        if let Some(function) = function {
            assert_eq!(manage(&mut old, function, 3).await, Some(0), "{what}");
        }
        let mut new = log_in(served.address, 1).await;
        assert_eq!(test_unit_ready(&mut new, 1).await, Some(2), "{what}");
        assert_eq!(test_unit_ready(&mut new, 2).await, Some(0), "{what}");
        assert!(used() >= 2 << 20, "its device may still write to that: {what}");
        let before = far.reading.so_far();
        // By the name that the first had.
        order_copy(&mut new, 3, [&*far, &*near], (4096, 0), false).await;
        far.reading.begun(before + 1).await;
        far.reads.add_permits(1);
        // The first one's read ends; whatever came of that would come at once.
        far.reading.left(1).await;
        sleep(Duration::from_millis(5)).await;
        assert_eq!(near.written().await, 0, "{what}");
        far.reads.add_permits(100);
        let (h, _) = receive(&mut new).await.unwrap();
        assert_eq!((h.opcode(), h.0[3]), (op::RESPONSE, 0), "{what}");
        assert_eq!(near.written().await, 2 << 20, "{what}");
    }
}

/// They took all the room that a session has for reads: for as long as the other pool was away, each read of this one was told
/// to come again later.
#[tokio::test]
async fn copies_whose_source_does_not_answer_are_in_the_way_of_no_read() {
    // As many as hold what reads of a session may hold.
    const COPIES: u32 = 16;
    let far = Held::filled("far/vm").await;
    let near = Held::filled("tank/vm").await;
    let config =
        Config { login_timeout: Duration::from_secs(2), room_wait: Duration::from_millis(500), ..quick() };
    let served = serve_volume(config, Arc::clone(&near) as _).await;
    served.targets.add(FAR, Arc::clone(&far) as _).unwrap();
    near.reads.add_permits(100);
    let mut stream = log_in(served.address, 1).await;
    assert_eq!(test_unit_ready(&mut stream, 1).await, Some(2));
    for cmd_sn in 2..2 + COPIES {
        let before = far.reading.so_far();
        order_copy(&mut stream, cmd_sn, [&*far, &*near], (4096, 4096), false).await;
        far.reading.begun(before + 1).await;
        // ABORT TASK SET, which is immediate and takes no number.
        assert_eq!(manage(&mut stream, 2, cmd_sn + 1).await, Some(0), "{cmd_sn}");
    }
    let held = u64::from(COPIES) * (2 << 20);
    assert!(served.targets.config().gate.used() >= held, "their device may still write to that");
    let cmd_sn = 2 + COPIES;
    send(&mut stream, command(cmd_sn, &[0x28, 0, 0, 0, 0, 0, 0, 0x08, 0, 0], 0x40, 1 << 20), &[]).await;
    let (h, _) = receive(&mut stream).await.unwrap();
    assert_eq!((h.opcode(), h.0[3]), (op::DATA_IN, 0));
}

/// What it writes may land late, and is waited for; what it reads beside that is not.
#[tokio::test]
async fn who_ends_a_copy_waits_for_its_write_and_not_for_its_next_read() {
    for comes_back in [false, true] {
        let (served, far, near) = serve_two().await;
        let mut old = log_in(served.address, 1).await;
        assert_eq!(test_unit_ready(&mut old, 1).await, Some(2));
        far.reads.add_permits(1);
        order_copy(&mut old, 2, [&*far, &*near], (4096, 0), false).await;
        near.writing.begun(1).await;
        let mut end = pin!(async {
            match comes_back {
                false => assert_eq!(manage(&mut old, 1, 3).await, Some(0)),
                true => drop(log_in(served.address, 1).await),
            }
        });
        let early = timeout(Duration::from_millis(200), &mut end).await;
        assert!(early.is_err(), "its write is on its way: {comes_back}");
        near.writes.add_permits(1);
        end.await;
        assert_eq!(near.written().await, 1 << 20);
    }
}

/// A host has gone whose write has not ended: its next login waits for that.
async fn serve_stuck(config: Config) -> (Served, Arc<Held>) {
    let volume = Held::over(MemVolume::new("tank/vm", 4 << 20, 8192));
    let config = Config { login_timeout: Duration::from_secs(10), ..config };
    let served = serve_volume(config, Arc::clone(&volume) as _).await;
    let mut stream = log_in(served.address, 1).await;
    assert_eq!(test_unit_ready(&mut stream, 1).await, Some(2));
    let tally = served.targets.sessions().remove(0).counters.luns.list().remove(0).1;
    send(&mut stream, command(2, &[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0], 0x20, 512), &[7; 512]).await;
    until("it is under way", || tally.get().under_way > 0).await;
    (served, volume)
}

/// A login that waits; dropped, its host gives it up.
async fn log_in_in_vain(served: &Served) -> BoxFuture<'static, Option<TcpStream>> {
    for _ in 0..300 {
        let mut login: BoxFuture<'static, _> = Box::pin(log_in_from(1, served.address, 1));
        match timeout(Duration::from_millis(200), &mut login).await {
            Err(_) => return login,
            Ok(None) => sleep(Duration::from_millis(10)).await,
            Ok(Some(_)) => panic!("the write has not ended"),
        }
    }
    panic!("there is no place for it");
}

/// What it waited for has ended: it becomes the only session, and one that lasts.
async fn comes_in(served: &Served, volume: &Held, login: BoxFuture<'static, Option<TcpStream>>) {
    volume.writes.add_permits(1);
    let mut stream = login.await.expect("a session");
    assert_eq!(test_unit_ready(&mut stream, 1).await, Some(2), "its nexus was lost");
    for cmd_sn in 2..12 {
        assert_eq!(test_unit_ready(&mut stream, cmd_sn).await, Some(0));
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(served.targets.sessions().len(), 1);
}

/// It kept its place for as long as a login may take, however long ago its host had closed it.
#[tokio::test]
async fn a_login_that_was_given_up_keeps_no_place() {
    // One for what is left of the old session, and one for a login.
    let (served, volume) = serve_stuck(Config { connections_max: 2, ..quick() }).await;
    for _ in 0..3 {
        drop(log_in_in_vain(&served).await);
    }
    let last = log_in_in_vain(&served).await;
    comes_in(&served, &volume, last).await;
}

/// Whichever woke first had the place, and was ended by all others, however old these were.
#[tokio::test]
async fn of_logins_that_wait_for_one_place_the_newest_gets_it_and_the_others_leave_at_once() {
    let (served, volume) = serve_stuck(quick()).await;
    let mut newest = log_in_in_vain(&served).await;
    for _ in 0..3 {
        let older = std::mem::replace(&mut newest, log_in_in_vain(&served).await);
        assert!(older.await.is_none(), "it is closed, though the old session has not ended");
    }
    comes_in(&served, &volume, newest).await;
}
