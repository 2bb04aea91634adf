//! Commands that would take hours keep nobody: not who aborts them, not the next session of their host, not other hosts,
//! and not a server that stops.

use std::{io::Write as _, sync::Arc, time::Duration};

use block::BlockVolume;
use iscsi::{
    Config,
    pdu::{Header, Outbox, op},
};
use tokio::{
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

use crate::{
    support::{Served, log_in, manage, order_copy, quick, receive, send, serve_volume, test_unit_ready},
    volumes::Endless,
};

const SLOW: Option<Duration> = Some(Duration::from_millis(20));

async fn serve_endless(pace: Option<Duration>) -> (Served, Arc<Endless>) {
    let volume = Arc::new(Endless::new(pace));
    // Logins wait for no longer than a step or two.
    let config = Config { login_timeout: Duration::from_secs(2), ..quick() };
    (serve_volume(config, Arc::clone(&volume) as Arc<dyn BlockVolume>).await, volume)
}

/// Logs in and has something to do until long after the test; its tag and number are 2.
async fn busy_host(served: &Served, volume: &Endless, writes: bool) -> TcpStream {
    let mut stream = log_in(served.address, 1).await;
    assert_eq!(test_unit_ready(&mut stream, 1).await, Some(2));
    let mut h = Header::new(op::COMMAND);
    h.0[1] = 0x81;
    h.set(16, 2).set(24, 2);
    if writes {
        // WRITE SAME(16) of 4 GiB
        h.0[1] |= 0x20;
        h.set(20, 512);
        h.0[32] = 0x93;
        h.set(42, 8 << 20);
        send(&mut stream, h, &[7; 512]).await;
    } else {
        // VERIFY(16) of 2 TiB
        h.0[32] = 0x8f;
        h.set(42, u32::MAX);
        send(&mut stream, h, &[]).await;
    }
    volume.steps.begun(volume.steps.so_far() + 2).await;
    stream
}

#[tokio::test]
async fn what_is_aborted_ends_soon_also_where_nothing_makes_it_wait() {
    for (pace, writes) in [(SLOW, false), (SLOW, true), (None, false)] {
        let (served, volume) = serve_endless(pace).await;
        let mut stream = busy_host(&served, &volume, writes).await;
        assert_eq!(manage(&mut stream, 1, 3).await, Some(0), "{pace:?} {writes}");
        assert_eq!(test_unit_ready(&mut stream, 3).await, Some(0));
        let steps = volume.steps.so_far();
        sleep(Duration::from_millis(60)).await;
        assert_eq!(volume.steps.so_far(), steps, "it has ended");
    }
}

#[tokio::test]
async fn one_host_resets_a_disk_that_another_keeps_busy() {
    for writes in [false, true] {
        let (served, volume) = serve_endless(SLOW).await;
        let mut busy = busy_host(&served, &volume, writes).await;
        let mut other = log_in(served.address, 2).await;
        assert_eq!(manage(&mut other, 5, 1).await, Some(0));
        let (h, _) = receive(&mut busy).await.unwrap();
        assert_eq!((h.opcode(), h.0[3]), (op::RESPONSE, 0x40), "TASK ABORTED");
    }
}

/// What it has begun may be what others wait for: their writes may be in a log block with its own.
#[tokio::test]
async fn what_runs_goes_on_while_a_session_ends_whose_host_takes_nothing() {
    let (served, volume) = serve_endless(SLOW).await;
    let mut old = busy_host(&served, &volume, false).await;
    // READ(16) of 1 MiB each, more than sockets hold.
    for tag in 3..67 {
        let mut h = Header::new(op::COMMAND);
        h.0[1] = 0xc1;
        h.set(16, tag).set(20, 1 << 20).set(24, tag);
        h.0[32] = 0x88;
        h.set(42, 2048);
        send(&mut old, h, &[]).await;
    }
    sleep(Duration::from_millis(500)).await;
    let address = served.address;
    let next = tokio::spawn(async move { log_in(address, 1).await });
    sleep(Duration::from_millis(200)).await;
    let steps = volume.steps.begun(volume.steps.so_far() + 3);
    timeout(Duration::from_millis(400), steps).await.expect("the old session does not wait for its socket");
    assert_eq!(test_unit_ready(&mut next.await.unwrap(), 1).await, Some(2));
}

/// Its login waited for what the old session had begun, and was given up.
#[tokio::test]
async fn a_host_comes_back_while_what_it_began_before_would_go_on_for_hours() {
    for writes in [false, true] {
        for is_cut in [false, true] {
            let (served, volume) = serve_endless(SLOW).await;
            let old = busy_host(&served, &volume, writes).await;
            let _old = if is_cut { None } else { Some(old) };
            let mut new = log_in(served.address, 1).await;
            assert_eq!(test_unit_ready(&mut new, 1).await, Some(2), "its nexus was lost");
            assert_eq!(test_unit_ready(&mut new, 2).await, Some(0));
            assert_eq!(served.targets.sessions().len(), 1);
        }
    }
}

/// The old session's copy overwrote what the new one wrote, and what an operator had rolled back.
#[tokio::test]
async fn a_copy_that_was_answered_before_it_is_done_ends_before_its_host_comes_back() {
    for is_cut in [false, true] {
        let (served, volume) = serve_endless(SLOW).await;
        let mut stream = log_in(served.address, 1).await;
        assert_eq!(test_unit_ready(&mut stream, 1).await, Some(2));
        // Of 32 MiB to eight blocks further on: from the end, a MiB at a time.
        order_copy(&mut stream, 2, [&*volume, &*volume], (0xffff, 8), true).await;
        let (h, _) = receive(&mut stream).await.unwrap();
        assert_eq!((h.opcode(), h.0[3]), (op::RESPONSE, 0), "answered");
        assert!(served.targets.config().gate.used() >= 2 << 20, "what it holds is held");
        // The session serves beside it.
        assert_eq!(test_unit_ready(&mut stream, 3).await, Some(0));
        // And it goes on.
        volume.steps.begun(volume.steps.so_far() + 1).await;
        let _old = if is_cut { None } else { Some(stream) };
        let mut new = log_in(served.address, 1).await;
        let steps = volume.steps.so_far();
        assert!(steps < 60, "it was not waited for to the end");
        assert_eq!(test_unit_ready(&mut new, 1).await, Some(2));
        sleep(Duration::from_millis(100)).await;
        assert_eq!(volume.steps.so_far(), steps, "nothing of it comes late");
    }
}

#[tokio::test]
async fn a_server_stops_while_hosts_keep_its_disks_busy() {
    let (served, volume) = serve_endless(SLOW).await;
    let mut busy = busy_host(&served, &volume, true).await;
    served.stop.send(()).unwrap();
    timeout(Duration::from_secs(3), served.server)
        .await
        .expect("no longer than logging out may take")
        .unwrap();
    assert_eq!(receive(&mut busy).await.map(|(h, _)| (h.opcode(), h.0[36])), Some((op::ASYNC, 1)));
    assert_eq!(
        receive(&mut busy).await.map(|(h, _)| (h.opcode(), h.0[36])),
        Some((op::ASYNC, 2)),
        "no answer"
    );
}

/// It was read from as long as there was something, and its order to end never looked at.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_sends_without_end_ends_when_it_is_told_to() {
    let (served, _) = serve_endless(None).await;
    let mut old = log_in(served.address, 1).await.into_std().unwrap();
    old.set_nonblocking(false).unwrap();
    let mut ping = Header::new(op::NOP_OUT | 0x40);
    ping.0[1] = 0x80;
    ping.set(16, u32::MAX).set(20, u32::MAX).set(24, 1);
    let mut out = Outbox::default();
    (0..5000).for_each(|_| out.push(ping, &[]));
    let flood = out.drain();
    // By a thread beside: what it sends lies there before the last of it is read.
    let flooding = tokio::task::spawn_blocking(move || while old.write_all(&flood).is_ok() {});
    sleep(Duration::from_millis(300)).await;
    let before = Instant::now();
    let mut new = log_in(served.address, 1).await;
    assert!(before.elapsed() < Duration::from_millis(500), "{:?}", before.elapsed());
    assert_eq!(test_unit_ready(&mut new, 1).await, Some(2));
    flooding.await.unwrap();
}
