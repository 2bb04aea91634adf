//! Commands that would take hours keep nobody: not who aborts them, not the next session of their host, not other hosts,
//! and not a server that stops.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use block::{BlockVolume, Durability, Extent, Geometry, Identity, Segment, Segments, VolumeFuture};
use iscsi::{
    Config,
    pdu::{Header, op},
};
use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};

use crate::support::{Served, log_in, quick, receive, send, serve_volume, test_unit_ready};

/// Four tebibytes of nothing.
struct Endless {
    /// For each step; `None`: it is there at once, and no command ever waits.
    pace: Option<Duration>,
    steps: AtomicUsize,
}

impl Endless {
    async fn step(&self) {
        self.steps.fetch_add(1, Ordering::Relaxed);
        if let Some(pace) = self.pace {
            sleep(pace).await;
        }
    }
}

impl BlockVolume for Endless {
    fn geometry(&self) -> Geometry {
        Geometry { size: 1 << 42, block: 8192, read_only: false }
    }
    fn identity(&self) -> Identity {
        Identity { name: "tank/endless".into(), guid: 1, pool_guid: 2 }
    }
    fn read(&self, _: u64, len: usize) -> VolumeFuture<'_, Segments> {
        Box::pin(async move {
            self.step().await;
            Ok([Segment::Zero(len)].into_iter().collect())
        })
    }
    fn extents(&self, _: u64, len: u64, _: usize) -> VolumeFuture<'_, Vec<Extent>> {
        Box::pin(async move { Ok(vec![Extent { len, hole: true }]) })
    }
    fn write(&self, _: u64, _: Segments, _: Durability) -> VolumeFuture<'_, ()> {
        Box::pin(async move {
            self.step().await;
            Ok(())
        })
    }
}

async fn serve_endless(pace: Option<Duration>) -> (Served, Arc<Endless>) {
    let volume = Arc::new(Endless { pace, steps: AtomicUsize::new(0) });
    // Logins wait for no longer than a step or two.
    let config = Config { login_timeout: Duration::from_secs(2), ..quick() };
    (serve_volume(config, Arc::clone(&volume) as Arc<dyn BlockVolume>).await, volume)
}

const SLOW: Option<Duration> = Some(Duration::from_millis(20));

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
    let before = volume.steps.load(Ordering::Relaxed);
    while volume.steps.load(Ordering::Relaxed) < before + 2 {
        sleep(Duration::from_millis(1)).await;
    }
    stream
}

async fn manage(stream: &mut TcpStream, function: u8, cmd_sn: u32) -> Option<u8> {
    let mut h = Header::new(op::TASK_MANAGEMENT | 0x40);
    h.0[1] = 0x80 | function;
    h.set(16, 99).set(20, 2).set(24, cmd_sn).set(32, 2);
    send(stream, h, &[]).await;
    let (h, _) = receive(stream).await?;
    (h.opcode() == op::TASK_MANAGEMENT_RESPONSE).then_some(h.0[2])
}

#[tokio::test]
async fn what_is_aborted_ends_soon_also_where_nothing_makes_it_wait() {
    for (pace, writes) in [(SLOW, false), (SLOW, true), (None, false)] {
        let (served, volume) = serve_endless(pace).await;
        let mut stream = busy_host(&served, &volume, writes).await;
        assert_eq!(manage(&mut stream, 1, 3).await, Some(0), "{pace:?} {writes}");
        assert_eq!(test_unit_ready(&mut stream, 3).await, Some(0));
        let steps = volume.steps.load(Ordering::Relaxed);
        sleep(Duration::from_millis(60)).await;
        assert_eq!(volume.steps.load(Ordering::Relaxed), steps, "it has ended");
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
    let steps = volume.steps.load(Ordering::Relaxed);
    sleep(Duration::from_millis(400)).await;
    assert!(volume.steps.load(Ordering::Relaxed) >= steps + 3, "the old session waits for its socket");
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
