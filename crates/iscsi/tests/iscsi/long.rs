//! Commands that would take hours keep nobody: not who aborts them, not the next session of their host, not other hosts,
//! and not a server that stops.

use std::{
    io::Write as _,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use block::{
    BlockVolume, BoxFuture, Durability, Extent, Geometry, Identity, MemVolume, Segment, Segments,
    VolumeFuture,
};
use iscsi::{
    Config,
    pdu::{Header, Outbox, op},
};
use tokio::{
    net::TcpStream,
    sync::Semaphore,
    time::{Instant, sleep, timeout},
};

use crate::support::{Served, log_in, log_in_from, quick, receive, send, serve_volume, test_unit_ready};

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
    fn write_zeroes(&self, offset: u64, _: u64, _: bool, to: Durability) -> VolumeFuture<'_, ()> {
        self.write(offset, Segments::new(), to)
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

/// A command of the host that is logged in over this stream.
fn command(cmd_sn: u32, cdb: &[u8], flags: u8, expected: u32) -> Header {
    let mut h = Header::new(op::COMMAND);
    h.0[1] = 0x81 | flags;
    h.set(16, cmd_sn).set(20, expected).set(24, cmd_sn);
    h.0[32..32 + cdb.len()].copy_from_slice(cdb);
    h
}

/// EXTENDED COPY (LID4) of so many blocks from the beginning of one disk to somewhere on another.
async fn order_copy(
    stream: &mut TcpStream,
    cmd_sn: u32,
    disks: [&dyn BlockVolume; 2],
    (blocks, to): (u16, u64),
    immediate: bool,
) {
    let mut list = vec![0; 48];
    (list[0], list[3], list[15], list[16], list[23]) = (1, 0x20, u8::from(immediate), 0xff, 9);
    (list[43], list[45]) = (64, 28);
    for disk in disks {
        let mut target = [0; 32];
        (target[0], target[4], target[5], target[7]) = (0xe4, 1, 3, 16);
        target[8..24].copy_from_slice(&scsi::naa(&disk.identity()));
        target[30] = 2;
        list.extend(target);
    }
    list.extend([2, 0, 0, 24, 0, 0, 0, 1, 0, 0]);
    list.extend(blocks.to_be_bytes());
    list.extend([0; 8]);
    list.extend(to.to_be_bytes());
    let cdb = [0x83, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, list.len() as u8, 0, 0];
    send(stream, command(cmd_sn, &cdb, 0x20, list.len() as u32), &list).await;
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
        let begun = volume.steps.load(Ordering::Relaxed);
        sleep(Duration::from_millis(100)).await;
        assert!(volume.steps.load(Ordering::Relaxed) > begun, "it goes on");
        let _old = if is_cut { None } else { Some(stream) };
        let mut new = log_in(served.address, 1).await;
        let steps = volume.steps.load(Ordering::Relaxed);
        assert!(steps < 60, "it was not waited for to the end");
        assert_eq!(test_unit_ready(&mut new, 1).await, Some(2));
        sleep(Duration::from_millis(100)).await;
        assert_eq!(volume.steps.load(Ordering::Relaxed), steps, "nothing of it comes late");
    }
}

/// Reads that nobody answers; everything else is done.
struct Mute(MemVolume);

impl BlockVolume for Mute {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }
    fn identity(&self) -> Identity {
        self.0.identity()
    }
    fn read(&self, _: u64, _: usize) -> VolumeFuture<'_, Segments> {
        Box::pin(std::future::pending())
    }
    fn read_cached(&self, _: u64, _: usize) -> Option<Segments> {
        None
    }
    fn extents(&self, offset: u64, len: u64, max: usize) -> VolumeFuture<'_, Vec<Extent>> {
        self.0.extents(offset, len, max)
    }
    fn write(&self, offset: u64, data: Segments, to: Durability) -> VolumeFuture<'_, ()> {
        self.0.write(offset, data, to)
    }
}

/// ABORT TASK, resets and the next login of its host waited for it, and the host gave the disk up.
#[tokio::test]
async fn a_read_whose_device_does_not_answer_keeps_nobody_and_its_memory() {
    let volume = Arc::new(Mute(MemVolume::new("tank/mute", 4 << 20, 8192)));
    let config = Config { login_timeout: Duration::from_secs(2), ..quick() };
    let served = serve_volume(config, volume as Arc<dyn BlockVolume>).await;
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
        send(&mut stream, command(6, &read, 0x40, 1 << 20), &[]).await;
        sleep(Duration::from_millis(50)).await;
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
    let served = serve_volume(quick(), Arc::new(Mute(MemVolume::new("tank/mute", 4 << 20, 8192)))).await;
    let mut stream = log_in(served.address, 1).await;
    assert_eq!(test_unit_ready(&mut stream, 1).await, Some(2));
    let tally = served.targets.sessions().remove(0).counters.luns.list().remove(0).1;
    send(&mut stream, command(2, &[0x28, 0, 0, 0, 0, 0, 0, 0, 8, 0], 0x40, 4096), &[]).await;
    while tally.get().under_way == 0 {
        sleep(Duration::from_millis(1)).await;
    }
    sleep(Duration::from_millis(30)).await;
    let hangs = tally.get();
    assert!(hangs.busy_ns == 0 && hangs.queue_ns >= 30_000_000, "{hangs:?}");
    assert_eq!(manage(&mut stream, 1, 3).await, Some(0));
    let now = tally.get();
    assert_eq!((now.under_way, now.reads, now.read_bytes), (0, 1, 0));
    assert!(now.busy_ns >= 30_000_000 && now.latency.iter().sum::<u64>() == 1, "{now:?}");
}

/// Reads and writes that wait until they are let through.
struct Held {
    volume: MemVolume,
    reads: Semaphore,
    writes: Semaphore,
}

impl Held {
    /// Two MiB of data, and as much again of nothing.
    async fn filled(name: &str) -> Arc<Self> {
        let volume = MemVolume::new(name, 4 << 20, 8192);
        let data = [Segment::Data(vec![7; 2 << 20].into())].into_iter().collect();
        volume.write(0, data, Durability::Cached).await.unwrap();
        Self::over(volume)
    }

    fn over(volume: MemVolume) -> Arc<Self> {
        Arc::new(Self { volume, reads: Semaphore::new(0), writes: Semaphore::new(0) })
    }

    /// Bytes of the first two MiB that something was written to.
    async fn written(&self) -> u64 {
        let extents = self.volume.extents(0, 2 << 20, 1000).await.unwrap();
        extents.iter().filter(|extent| !extent.hole).map(|extent| extent.len).sum()
    }
}

impl BlockVolume for Held {
    fn geometry(&self) -> Geometry {
        self.volume.geometry()
    }
    fn identity(&self) -> Identity {
        self.volume.identity()
    }
    fn read(&self, offset: u64, len: usize) -> VolumeFuture<'_, Segments> {
        Box::pin(async move {
            self.reads.acquire().await.unwrap().forget();
            self.volume.read(offset, len).await
        })
    }
    fn extents(&self, offset: u64, len: u64, max: usize) -> VolumeFuture<'_, Vec<Extent>> {
        self.volume.extents(offset, len, max)
    }
    fn write(&self, offset: u64, data: Segments, to: Durability) -> VolumeFuture<'_, ()> {
        Box::pin(async move {
            self.writes.acquire().await.unwrap().forget();
            self.volume.write(offset, data, to).await
        })
    }
}

const FAR: &str = "iqn.2026-11.io.millpond:far:vm";

/// A disk with data at the target [`FAR`], and one without that hosts log in to.
async fn serve_two() -> (Served, Arc<Held>, Arc<Held>) {
    let far = Held::filled("far/vm").await;
    let near = Held::over(MemVolume::new("tank/vm", 4 << 20, 8192));
    let config = Config { login_timeout: Duration::from_secs(2), ..quick() };
    let served = serve_volume(config, Arc::clone(&near) as Arc<dyn BlockVolume>).await;
    served.targets.add(FAR, Arc::clone(&far) as Arc<dyn BlockVolume>).unwrap();
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
        sleep(Duration::from_millis(50)).await;
        if let Some(function) = function {
            assert_eq!(manage(&mut old, function, 3).await, Some(0), "{what}");
        }
        let mut new = log_in(served.address, 1).await;
        assert_eq!(test_unit_ready(&mut new, 1).await, Some(2), "{what}");
        assert_eq!(test_unit_ready(&mut new, 2).await, Some(0), "{what}");
        assert!(used() >= 2 << 20, "its device may still write to that: {what}");
        // By the name that the first had.
        order_copy(&mut new, 3, [&*far, &*near], (4096, 0), false).await;
        sleep(Duration::from_millis(50)).await;
        far.reads.add_permits(1);
        sleep(Duration::from_millis(50)).await;
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
    let served = serve_volume(config, Arc::clone(&near) as Arc<dyn BlockVolume>).await;
    served.targets.add(FAR, Arc::clone(&far) as Arc<dyn BlockVolume>).unwrap();
    near.reads.add_permits(100);
    let mut stream = log_in(served.address, 1).await;
    assert_eq!(test_unit_ready(&mut stream, 1).await, Some(2));
    for cmd_sn in 2..2 + COPIES {
        order_copy(&mut stream, cmd_sn, [&*far, &*near], (4096, 4096), false).await;
        sleep(Duration::from_millis(50)).await;
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
        sleep(Duration::from_millis(50)).await;
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
    let served = serve_volume(config, Arc::clone(&volume) as Arc<dyn BlockVolume>).await;
    let mut stream = log_in(served.address, 1).await;
    assert_eq!(test_unit_ready(&mut stream, 1).await, Some(2));
    let tally = served.targets.sessions().remove(0).counters.luns.list().remove(0).1;
    send(&mut stream, command(2, &[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0], 0x20, 512), &[7; 512]).await;
    while tally.get().under_way == 0 {
        sleep(Duration::from_millis(1)).await;
    }
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

/// It waited for that device until nobody waited for it any more, and its hosts were told nothing.
#[tokio::test]
async fn a_server_stops_while_a_device_does_not_answer_a_read() {
    let volume = Arc::new(Mute(MemVolume::new("tank/mute", 4 << 20, 8192)));
    let served = serve_volume(quick(), volume as Arc<dyn BlockVolume>).await;
    let mut stream = log_in(served.address, 1).await;
    assert_eq!(test_unit_ready(&mut stream, 1).await, Some(2));
    send(&mut stream, command(2, &[0x28, 0, 0, 0, 0, 0, 0, 0x08, 0, 0], 0x40, 1 << 20), &[]).await;
    sleep(Duration::from_millis(50)).await;
    served.stop.send(()).unwrap();
    let limit = quick().logout_wait + Duration::from_secs(1);
    timeout(limit, served.server).await.expect("no longer than logging out may take").unwrap();
    for event in [1, 2] {
        let told = receive(&mut stream).await.map(|(h, _)| (h.opcode(), h.0[36]));
        assert_eq!(told, Some((op::ASYNC, event)));
    }
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
