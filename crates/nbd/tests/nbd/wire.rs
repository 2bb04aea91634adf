//! The server itself: coherence of connections, order, limits, shutdown, removal.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use block::{
    BlockVolume, Durability, Extent, Geometry, Identity, MemVolume, Segment, Segments, VolumeFuture,
};
use bytes::Bytes;
use fixtures::Log;
use memory::Gate;
use nbd::ServeLimits;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Semaphore,
    time::{Instant, sleep, timeout},
};

use crate::support::{Raw, Served};

const READ: u16 = 0;
const WRITE: u16 = 1;
const DISC: u16 = 2;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const WRITE_ZEROES: u16 = 6;

/// Reads at offset 0 wait for a permit; others are in memory.
pub(crate) struct Gated {
    gate: Semaphore,
}

impl Gated {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { gate: Semaphore::new(0) })
    }
}

/// Sevens up to the second block, and other bytes in each behind it.
fn bytes(offset: u64, len: usize) -> Segments {
    let byte = if offset < 8192 { 7 } else { 7 + (offset >> 12) as u8 };
    std::iter::once(Segment::Data(Bytes::from(vec![byte; len]))).collect()
}

impl BlockVolume for Gated {
    fn geometry(&self) -> Geometry {
        Geometry { size: 1 << 30, block: 4096, read_only: true }
    }
    fn identity(&self) -> Identity {
        Identity { name: "gated".into(), guid: 1, pool_guid: 1 }
    }
    fn read_cached(&self, offset: u64, len: usize) -> Option<Segments> {
        (offset > 0).then(|| bytes(offset, len))
    }
    fn read(&self, offset: u64, len: usize) -> VolumeFuture<'_, Segments> {
        Box::pin(async move {
            self.gate.acquire().await.expect("never closed").forget();
            Ok(bytes(offset, len))
        })
    }
    fn extents(&self, _offset: u64, len: u64, _max: usize) -> VolumeFuture<'_, Vec<Extent>> {
        Box::pin(async move { Ok(vec![Extent { len, hole: false }]) })
    }
}

/// The first writes wait for a permit before they change anything.
struct Slow {
    inner: MemVolume,
    gate: Semaphore,
    /// So many.
    first: usize,
    writes: AtomicUsize,
}

impl Slow {
    fn new(first: usize) -> Arc<Self> {
        let inner = MemVolume::new("slow", 1 << 20, 4096);
        Arc::new(Self { inner, gate: Semaphore::new(0), first, writes: AtomicUsize::new(0) })
    }

    /// Until they have begun.
    async fn begun(&self) {
        while self.writes.load(Relaxed) < self.first {
            sleep(Duration::from_millis(1)).await;
        }
    }
}

impl BlockVolume for Slow {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn identity(&self) -> Identity {
        self.inner.identity()
    }
    fn read(&self, offset: u64, len: usize) -> VolumeFuture<'_, Segments> {
        self.inner.read(offset, len)
    }
    fn extents(&self, offset: u64, len: u64, max: usize) -> VolumeFuture<'_, Vec<Extent>> {
        self.inner.extents(offset, len, max)
    }
    fn write(&self, offset: u64, data: Segments, durability: Durability) -> VolumeFuture<'_, ()> {
        let is_first = self.writes.fetch_add(1, Relaxed) < self.first;
        Box::pin(async move {
            if is_first {
                self.gate.acquire().await.expect("never closed").forget();
            }
            self.inner.write(offset, data, durability).await
        })
    }
}

/// Waits until only so many connections are left.
async fn only(served: &Served, connections: usize) {
    let gone = async {
        while served.server.connections().len() > connections {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(10), gone).await.expect("the connection ends");
}

#[tokio::test]
async fn what_one_connection_was_answered_the_other_sees_and_flushes() {
    let volume = Arc::new(MemVolume::new("v", 1 << 20, 4096));
    let served = Served::of("v", volume.clone()).await;
    let (mut one, mut two) = (Raw::go(&served, "v").await, Raw::go(&served, "v").await);
    for round in 0..50_u8 {
        one.send(WRITE, 1, 100, 600, &[round; 600]).await;
        assert_eq!(one.reply(0).await.0, 0);
        two.send(READ, 2, 100, 600, &[]).await;
        assert_eq!(two.reply(600).await, (0, 2, vec![round; 600]));
    }
    two.send(FLUSH, 3, 0, 0, &[]).await;
    assert_eq!(two.reply(0).await, (0, 3, vec![]));
    assert_eq!(volume.flushes(), 1);
    served.stop().await;
}

/// Its size was told when the export was chosen, so such requests reach the volume.
#[tokio::test]
async fn beyond_the_end_of_a_volume_that_shrank_there_is_no_room_and_nothing_to_read() {
    let volume = Arc::new(MemVolume::new("v", 1 << 20, 4096));
    let served = Served::of("v", volume.clone()).await;
    let mut raw = Raw::go(&served, "v").await;
    volume.resize(512 << 10);
    for (command, payload, errno) in
        [(WRITE, &[7; 512][..], 28), (WRITE_ZEROES, &[], 28), (READ, &[], 22), (TRIM, &[], 22)]
    {
        raw.send(command, 1, 600 << 10, 512, payload).await;
        assert_eq!(raw.reply(512).await, (errno, 1, vec![]), "command {command}");
    }
    raw.send(WRITE, 2, 0, 512, &[7; 512]).await;
    assert_eq!(raw.reply(0).await, (0, 2, vec![]), "the rest is served");
    served.stop().await;
}

#[tokio::test]
async fn a_slow_read_delays_no_other_and_a_stop_waits_for_it_and_refuses_nothing() {
    let volume = Gated::new();
    let served = Served::of("v", volume.clone()).await;
    let mut raw = Raw::go(&served, "v").await;
    raw.send(READ, 1, 0, 512, &[]).await;
    for cookie in 2..20 {
        raw.send(READ, cookie, 4096, 512, &[]).await;
        assert_eq!(raw.reply(512).await, (0, cookie, vec![7; 512]));
    }
    served.begin_stop();
    sleep(Duration::from_millis(20)).await;
    // An error would be passed on to the guest; what has no answer is sent again to the next server.
    raw.send(READ, 99, 4096, 512, &[]).await;
    volume.gate.add_permits(1);
    assert_eq!(raw.reply(512).await, (0, 1, vec![7; 512]));
    raw.end().await;
    served.stop().await;
}

/// Those in memory are answered together; those that are not, and what comes between, keep nobody waiting.
#[tokio::test]
async fn reads_that_come_together_are_answered_each() {
    let volume = Gated::new();
    let served = Served::of("v", volume.clone()).await;
    let mut raw = Raw::go(&served, "v").await;
    for cookie in 1..=100_u64 {
        // The first of ten has to wait, one is long, one lies outside.
        let (offset, len) = match cookie % 10 {
            0 => (0, 512),
            1 => (8192, 100_000),
            2 => (1 << 30, 512),
            n => (n * 4096, 512),
        };
        raw.send(READ, cookie, offset, len, &[]).await;
        if cookie % 25 == 0 {
            raw.send(FLUSH, 1000 + cookie, 0, 0, &[]).await;
        }
    }
    volume.gate.add_permits(10);
    let mut open: std::collections::BTreeSet<u64> = (1..=100).chain((1..=4).map(|n| 1000 + 25 * n)).collect();
    while !open.is_empty() {
        let mut head = [0; 16];
        raw.0.read_exact(&mut head).await.unwrap();
        let error = u32::from_be_bytes(head[4..8].try_into().unwrap());
        let cookie = u64::from_be_bytes(head[8..].try_into().unwrap());
        assert!(open.remove(&cookie), "{cookie}");
        let len = match cookie % 10 {
            _ if cookie > 1000 => 0,
            1 => 100_000,
            2 => 0,
            _ => 512,
        };
        assert_eq!(error != 0, cookie % 10 == 2 && cookie < 1000, "{cookie}: {error}");
        let mut data = vec![0; len];
        raw.0.read_exact(&mut data).await.unwrap();
        let byte = match cookie % 10 {
            0 => 7,
            1 => 9,
            n => 7 + n as u8,
        };
        assert!(data.iter().all(|found| *found == byte), "{cookie}: {data:?}");
    }
    served.stop().await;
}

/// A write is done when its turn comes: a read before it in the same bytes sees what was there before.
#[tokio::test]
async fn what_comes_behind_reads_does_not_overtake_them() {
    let served = Served::of("v", Arc::new(MemVolume::new("v", 1 << 20, 4096))).await;
    let mut raw = Raw::go(&served, "v").await;
    let mut all = Vec::new();
    for (command, cookie) in [(READ, 1_u64), (WRITE, 2), (READ, 3)] {
        all.extend(0x2560_9513_u32.to_be_bytes());
        all.extend(0_u16.to_be_bytes());
        all.extend(command.to_be_bytes());
        all.extend(cookie.to_be_bytes());
        all.extend(4096_u64.to_be_bytes());
        all.extend(512_u32.to_be_bytes());
        all.extend(vec![5; if command == WRITE { 512 } else { 0 }]);
    }
    raw.0.write_all(&all).await.unwrap();
    assert_eq!(raw.reply(512).await, (0, 1, vec![0; 512]));
    assert_eq!(raw.reply(0).await, (0, 2, vec![]));
    assert_eq!(raw.reply(512).await, (0, 3, vec![5; 512]));
    served.stop().await;
}

#[tokio::test]
async fn a_disconnect_is_obeyed_after_everything_in_flight_was_answered() {
    let volume = Gated::new();
    let served = Served::of("v", volume.clone()).await;
    let mut raw = Raw::go(&served, "v").await;
    raw.send(READ, 1, 0, 512, &[]).await;
    raw.send(DISC, 2, 0, 0, &[]).await;
    sleep(Duration::from_millis(20)).await;
    volume.gate.add_permits(1);
    assert_eq!(raw.reply(512).await, (0, 1, vec![7; 512]));
    raw.end().await;
    served.stop().await;
}

#[tokio::test]
async fn a_stop_does_not_wait_for_ever() {
    let limits = ServeLimits { stop: Duration::from_millis(100), ..ServeLimits::default() };
    let served = Served::tcp(limits).await;
    served.registry.insert("v", "", Gated::new()).unwrap();
    let mut raw = Raw::go(&served, "v").await;
    raw.send(READ, 1, 0, 512, &[]).await;
    sleep(Duration::from_millis(20)).await;
    let started = Instant::now();
    served.stop().await;
    assert!(started.elapsed() < Duration::from_secs(5));
    raw.end().await;
}

#[tokio::test]
async fn a_client_that_leaves_in_mid_request_is_forgotten_and_its_half_write_too() {
    let volume = Arc::new(MemVolume::new("v", 1 << 20, 4096));
    let served = Served::of("v", volume.clone()).await;
    let mut raw = Raw::go(&served, "v").await;
    raw.send(WRITE, 1, 0, 100_000, &vec![1; 99_999]).await;
    drop(raw);
    only(&served, 0).await;
    assert_eq!(volume.extents(0, 1 << 20, 2).await.unwrap(), [Extent { len: 1 << 20, hole: true }]);
    served.stop().await;
}

/// What its client had sent again on another connection, and had written anew after that, it wrote over up to half a minute
/// later.
#[tokio::test]
async fn a_write_of_a_client_that_is_gone_does_not_land_on_what_was_acknowledged_since() {
    let volume = Slow::new(1);
    let served = Served::of("v", volume.clone()).await;
    let (mut one, mut two) = (Raw::go(&served, "v").await, Raw::go(&served, "v").await);
    one.send(WRITE, 1, 0, 512, &[1; 512]).await;
    volume.begun().await;
    drop(one);
    for byte in [1, 2] {
        two.send(WRITE, 1, 0, 512, &[byte; 512]).await;
        assert_eq!(two.reply(0).await, (0, 1, vec![]));
    }
    only(&served, 1).await;
    volume.gate.add_permits(1);
    sleep(Duration::from_millis(20)).await;
    two.send(READ, 2, 0, 512, &[]).await;
    assert_eq!(two.reply(512).await, (0, 2, vec![2; 512]));
    served.stop().await;
}

/// A server that has one request of a connection under way at a time.
async fn one_at_a_time(volume: Arc<Slow>) -> Served {
    let session = nbd::Limits { requests: 1, ..nbd::Limits::default() };
    let served = Served::tcp(ServeLimits { session, ..ServeLimits::default() }).await;
    served.registry.insert("v", "", volume).unwrap();
    served
}

/// With as much under way as may be, nothing is read, and it was not heard that the client was gone: its write landed as late as
/// ever, and one more was begun after it.
#[tokio::test]
async fn writes_of_a_client_that_is_gone_do_not_land_though_nothing_is_read_of_it() {
    let volume = Slow::new(1);
    let served = one_at_a_time(volume.clone()).await;
    let (mut one, mut two) = (Raw::go(&served, "v").await, Raw::go(&served, "v").await);
    for offset in [0, 4096] {
        one.send(WRITE, 1, offset, 4096, &[1; 4096]).await;
    }
    volume.begun().await;
    drop(one);
    only(&served, 1).await;
    volume.gate.add_permits(1);
    sleep(Duration::from_millis(20)).await;
    two.send(READ, 2, 0, 8192, &[]).await;
    assert_eq!(two.reply(8192).await, (0, 2, vec![0; 8192]));
    served.stop().await;
}

/// It was looked ten times a second whether the client was gone, and not when the one before it ended: what waited was begun
/// then, over what had been acknowledged elsewhere since.
#[tokio::test]
async fn a_write_that_waits_is_not_begun_for_a_client_that_has_just_gone() {
    let volume = Slow::new(1);
    let served = one_at_a_time(volume.clone()).await;
    let (mut one, mut two) = (Raw::go(&served, "v").await, Raw::go(&served, "v").await);
    for offset in [0, 4096] {
        one.send(WRITE, 1, offset, 4096, &[1; 4096]).await;
    }
    volume.begun().await;
    drop(one);
    sleep(Duration::from_millis(20)).await;
    volume.gate.add_permits(1);
    only(&served, 1).await;
    two.send(READ, 2, 4096, 4096, &[]).await;
    assert_eq!(two.reply(4096).await, (0, 2, vec![0; 4096]));
    served.stop().await;
}

/// What others find of writes of ones.
async fn has_ones(served: &Served, len: usize) {
    let mut other = Raw::go(served, "v").await;
    other.send(READ, 9, 0, len as u32, &[]).await;
    assert_eq!(other.reply(len).await, (0, 9, vec![1; len]));
}

#[tokio::test]
async fn what_a_client_asked_for_before_it_disconnected_is_begun_though_it_is_gone() {
    let volume = Slow::new(1);
    let served = one_at_a_time(volume.clone()).await;
    let mut raw = Raw::go(&served, "v").await;
    for offset in [0, 4096] {
        raw.send(WRITE, 1, offset, 4096, &[1; 4096]).await;
    }
    raw.send(DISC, 2, 0, 0, &[]).await;
    volume.begun().await;
    drop(raw);
    // It is noticed meanwhile.
    sleep(Duration::from_millis(500)).await;
    volume.gate.add_permits(1);
    only(&served, 0).await;
    has_ones(&served, 8192).await;
    served.stop().await;
}

/// An answer that could not be sent was the end, whatever the client had said before: it had disconnected, and its last write
/// was given up.
#[tokio::test]
async fn a_disconnect_that_came_before_the_connection_was_reset_is_heard() {
    let volume = Slow::new(2);
    let served = Served::of("v", volume.clone()).await;
    let mut raw = Raw::go(&served, "v").await;
    for offset in [0, 4096] {
        raw.send(WRITE, 1, offset, 4096, &[1; 4096]).await;
    }
    volume.begun().await;
    raw.send(READ, 2, 0, 4096, &[]).await;
    raw.0.peek(&mut [0; 16]).await.unwrap();
    // All at once: the server finds a write done before it has read on. With an answer not taken, it is a reset.
    raw.send(DISC, 3, 0, 0, &[]).await;
    drop(raw);
    volume.gate.add_permits(1);
    sleep(Duration::from_millis(100)).await;
    volume.gate.add_permits(1);
    only(&served, 0).await;
    has_ones(&served, 8192).await;
    served.stop().await;
}

#[tokio::test]
async fn a_write_that_a_client_sent_before_it_disconnected_is_done_though_it_is_gone() {
    let volume = Slow::new(1);
    let served = Served::of("v", volume.clone()).await;
    let mut raw = Raw::go(&served, "v").await;
    raw.send(WRITE, 1, 0, 512, &[1; 512]).await;
    raw.send(DISC, 2, 0, 0, &[]).await;
    volume.begun().await;
    drop(raw);
    sleep(Duration::from_millis(20)).await;
    volume.gate.add_permits(1);
    only(&served, 0).await;
    has_ones(&served, 512).await;
    served.stop().await;
}

#[tokio::test]
async fn a_removed_export_closes_its_connections_and_lets_go_of_the_volume() {
    let volume = Arc::new(MemVolume::new("v", 1 << 20, 4096));
    let served = Served::of("v", volume.clone()).await;
    served.registry.insert("other", "", Arc::new(MemVolume::new("other", 4096, 4096))).unwrap();
    let (mut one, mut other) = (Raw::go(&served, "v").await, Raw::go(&served, "other").await);
    assert!(Arc::strong_count(&volume) > 2, "the registry and a connection hold it");
    assert!(served.registry.remove("v"));
    one.end().await;
    drop(one);
    other.send(READ, 5, 0, 1, &[]).await;
    assert_eq!(other.reply(1).await, (0, 5, vec![0]));
    let freed = async {
        while Arc::strong_count(&volume) > 1 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(10), freed).await.expect("nobody holds the volume");
    served.stop().await;
}

#[tokio::test]
async fn a_client_that_says_nothing_is_dropped_and_so_is_one_too_many() {
    let limits =
        ServeLimits { handshake: Duration::from_millis(100), connections: 2, ..ServeLimits::default() };
    let served = Served::tcp(limits).await;
    served.registry.insert("v", "", Arc::new(MemVolume::new("v", 4096, 4096))).unwrap();
    let mut silent = TcpStream::connect(("127.0.0.1", served.port)).await.unwrap();
    let mut greeting = Vec::new();
    timeout(Duration::from_secs(10), silent.read_to_end(&mut greeting)).await.expect("dropped").unwrap();
    assert_eq!(greeting.len(), 18);
    let (_one, _two) = (Raw::go(&served, "v").await, Raw::go(&served, "v").await);
    let mut third = TcpStream::connect(("127.0.0.1", served.port)).await.unwrap();
    let mut nothing = Vec::new();
    drop(timeout(Duration::from_secs(10), third.read_to_end(&mut nothing)).await.expect("closed at once"));
    assert!(nothing.is_empty());
    let mut exports: Vec<_> = served.server.connections().into_iter().map(|c| c.export).collect();
    exports.dedup();
    assert_eq!(exports, [Some("v".to_owned())]);
    served.stop().await;
}

/// What INFO asks about the export `v`.
fn info() -> Vec<u8> {
    [&b"IHAVEOPT"[..], &6_u32.to_be_bytes(), &7_u32.to_be_bytes(), &1_u32.to_be_bytes(), b"v\0\0"].concat()
}

/// A client that was greeted, and has not asked for anything yet.
async fn greeted(served: &Served) -> TcpStream {
    let mut client = TcpStream::connect(("127.0.0.1", served.port)).await.unwrap();
    client.set_nodelay(true).unwrap();
    client.read_exact(&mut [0; 18]).await.unwrap();
    client.write_all(&[0, 0, 0, 3]).await.unwrap();
    client
}

/// Asks about the export, and whether it was answered to the end.
async fn is_told(client: &mut TcpStream) -> bool {
    if client.write_all(&info()).await.is_err() {
        return false;
    }
    loop {
        let mut head = [0; 20];
        if client.read_exact(&mut head).await.is_err() {
            return false;
        }
        let (kind, len) = (&head[12..16], u32::from_be_bytes(head[16..].try_into().unwrap()));
        client.read_exact(&mut vec![0; len as usize]).await.unwrap();
        match kind {
            [0, 0, 0, 1] => return true,
            [0, 0, 0, 3] => {}
            kind => panic!("INFO was answered with {kind:?}"),
        }
    }
}

/// Ten seconds had to do for all questions: `nbdinfo --list` was cut off in the middle where there were fifty exports.
#[tokio::test]
async fn a_client_that_asks_about_many_exports_is_answered_to_the_end() {
    let limits = ServeLimits { handshake: Duration::from_secs(4), ..ServeLimits::default() };
    let served = Served::tcp(limits).await;
    served.registry.insert("v", "", Arc::new(MemVolume::new("v", 4096, 4096))).unwrap();
    let mut client = greeted(&served).await;
    for number in 0..16 {
        assert!(is_told(&mut client).await, "question {number}");
        sleep(Duration::from_millis(400)).await;
    }
    assert!(is_told(&mut client).await, "the last question");
    drop(client);
    served.stop().await;
}

#[tokio::test]
async fn a_client_that_never_ends_its_question_or_its_questions_is_dropped() {
    let limits = ServeLimits {
        handshake: Duration::from_secs(1),
        handshake_in_all: Duration::from_secs(6),
        ..ServeLimits::default()
    };
    let served = Served::tcp(limits).await;
    served.registry.insert("v", "", Arc::new(MemVolume::new("v", 4096, 4096))).unwrap();
    // Bytes of one question are no questions.
    let mut client = greeted(&served).await;
    let begun = Instant::now();
    let (mut reading, mut writing) = client.split();
    let dribble = async {
        for byte in info() {
            // It may be gone already.
            drop(writing.write_all(&[byte]).await);
            sleep(Duration::from_millis(500)).await;
        }
    };
    let mut said = Vec::new();
    tokio::select! {
        () = dribble => panic!("it was waited for"),
        _ = reading.read_to_end(&mut said) => {}
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert!(said.is_empty());
    // Nor is there time for any number of them.
    let mut client = greeted(&served).await;
    let asking = async {
        while is_told(&mut client).await {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(Duration::from_secs(20), asking).await.expect("dropped");
    served.stop().await;
}

/// Its questions kept the thread for as long as they came together, whatever each of them cost, and its time had no end.
#[tokio::test]
async fn a_stranger_with_thousands_of_questions_keeps_no_thread() {
    let limits = ServeLimits { handshake_in_all: Duration::from_secs(2), ..ServeLimits::default() };
    let served = Served::tcp(limits).await;
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    served.registry.set_unnamed(move || {
        // Many questions about a list that is long.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(1) {
            std::hint::spin_loop();
        }
        count.fetch_add(1, Relaxed);
        None
    });
    let mut client = greeted(&served).await;
    let unnamed = [&b"IHAVEOPT"[..], &6_u32.to_be_bytes(), &6_u32.to_be_bytes(), &[0; 6]].concat();
    let (mut reading, mut writing) = client.split();
    let asking = async {
        // Until it is dropped.
        while writing.write_all(&unnamed.repeat(1000)).await.is_ok() {}
    };
    let reading = async {
        let mut scrap = vec![0; 64 << 10];
        while reading.read(&mut scrap).await.is_ok_and(|read| read > 0) {}
    };
    let others = async {
        let mut longest = 0_usize;
        loop {
            let before = asked.load(Relaxed);
            sleep(Duration::from_millis(1)).await;
            longest = longest.max(asked.load(Relaxed) - before);
            if before > 0 && served.server.connections().is_empty() {
                return longest;
            }
        }
    };
    let all = async { tokio::join!(asking, reading, others).2 };
    let longest = timeout(Duration::from_secs(20), all).await.expect("it is dropped");
    // Each option is looked up twice.
    assert!(longest <= 500, "{longest} questions, and nobody else was asked");
    served.stop().await;
}

/// It was told that there is no such export, and gave its disk up for good; then the same of a connection that ended after the
/// time of a handshake.
#[tokio::test]
async fn who_asks_for_an_export_that_is_on_its_way_waits_for_it() {
    let limits = ServeLimits {
        handshake: Duration::from_secs(1),
        handshake_in_all: Duration::from_secs(4),
        ..ServeLimits::default()
    };
    let served = Served::tcp(limits).await;
    served.registry.set_awaited(|name| name == "v");
    let mut client = greeted(&served).await;
    assert!(!is_told(&mut client).await, "it did not come, and the connection is closed without a word");
    let coming = async {
        sleep(Duration::from_secs(2)).await;
        served.registry.insert("v", "", Arc::new(MemVolume::new("v", 4096, 4096))).unwrap();
    };
    let (mut raw, ()) = tokio::join!(Raw::go(&served, "v"), coming);
    raw.send(READ, 1, 0, 4, &[]).await;
    assert_eq!(raw.reply(4).await, (0, 1, vec![0; 4]));
    served.stop().await;
}

/// Escaped twice, a name of 32 KiB that was waited for was a line of 200 KB.
#[tokio::test]
async fn names_that_are_waited_for_fill_no_log_either() {
    let log = Log::begin();
    let limits = ServeLimits { handshake_in_all: Duration::from_secs(1), ..ServeLimits::default() };
    let served = Served::tcp(limits).await;
    served.registry.set_awaited(|_| true);
    for (len, why) in [(4096_u32, "is awaited, and has not come"), (30_000, "no export named")] {
        let mut client = greeted(&served).await;
        let option = [&b"IHAVEOPT"[..], &1_u32.to_be_bytes(), &len.to_be_bytes()].concat();
        client.write_all(&option).await.unwrap();
        client.write_all(&vec![1; len as usize]).await.unwrap();
        let told = async {
            loop {
                match log.lines(why).pop() {
                    Some(line) => break line,
                    None => sleep(Duration::from_millis(5)).await,
                }
            }
        };
        let line = timeout(Duration::from_secs(10), told).await.expect("it is dropped, and that is logged");
        assert!(line.contains("connection dropped") && line.len() < 1500, "{} bytes", line.len());
    }
    served.stop().await;
}

/// It kept its place to the end of its time, and one that comes again and again took them all.
#[tokio::test]
async fn who_waits_for_an_export_and_has_gone_keeps_no_place() {
    let served = Served::tcp(ServeLimits::default()).await;
    served.registry.set_awaited(|name| name == "v");
    let mut client = greeted(&served).await;
    client.write_all(&info()).await.unwrap();
    sleep(Duration::from_millis(50)).await;
    let begun = Instant::now();
    drop(client);
    only(&served, 0).await;
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    served.stop().await;
}

#[tokio::test]
async fn garbage_ends_its_own_connection_only() {
    let served = Served::of("v", Arc::new(MemVolume::new("v", 4096, 4096))).await;
    let mut good = Raw::go(&served, "v").await;
    for garbage in [&[0xff; 64][..], b"GET / HTTP/1.1\r\n\r\n", &[0; 64]] {
        let mut bad = TcpStream::connect(("127.0.0.1", served.port)).await.unwrap();
        bad.write_all(garbage).await.unwrap();
        let mut said = Vec::new();
        drop(timeout(Duration::from_secs(10), bad.read_to_end(&mut said)).await.expect("closed"));
        let mut bad = Raw::go(&served, "v").await;
        bad.0.write_all(&[0x11; 28]).await.unwrap();
        bad.end().await;
    }
    good.send(READ, 1, 0, 4, &[]).await;
    assert_eq!(good.reply(4).await, (0, 1, vec![0; 4]));
    served.stop().await;
}

/// More is asked for than the socket's buffers hold, so the server is stopped by a client that does not
/// read; it must neither hoard nor forget to go on.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reads_late_gets_everything_and_costs_bounded_memory() {
    let limits =
        ServeLimits { session: nbd::Limits { requests: 16, bytes: 4 << 20 }, ..ServeLimits::default() };
    let served = Served::tcp(limits).await;
    served.registry.insert("v", "", Gated::new()).unwrap();
    let raw = Raw::go(&served, "v").await;
    let (mut reading, mut writing) = raw.0.into_split();
    const COUNT: u64 = 200;
    let asking = tokio::spawn(async move {
        for cookie in 0..COUNT {
            let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
            request.extend_from_slice(&[0; 4]);
            request.extend_from_slice(&cookie.to_be_bytes());
            request.extend_from_slice(&4096_u64.to_be_bytes());
            request.extend_from_slice(&(1_u32 << 20).to_be_bytes());
            writing.write_all(&request).await.unwrap();
        }
        writing
    });
    sleep(Duration::from_millis(200)).await;
    let sent = served.server.connections()[0].counters;
    assert!(sent.reads < COUNT, "all {} reads were answered into memory", sent.reads);
    let mut body = vec![0; 16 + (1 << 20)];
    for cookie in 0..COUNT {
        timeout(Duration::from_secs(20), reading.read_exact(&mut body)).await.expect("it goes on").unwrap();
        assert_eq!(body[8..16], cookie.to_be_bytes());
    }
    drop(asking.await.unwrap());
    served.stop().await;
}

/// Announces a write that takes all the room, of which next to nothing comes.
async fn stall(gate: &Gate, client: &mut Raw) {
    client.send(WRITE, 1, 0, 4 << 20, &[7; 1000]).await;
    while gate.used() < 4 << 20 {
        sleep(Duration::from_millis(1)).await;
    }
}

/// Another one waits for room, and has it once the stalled one was sent away.
async fn passes(gate: &Gate, mut stalled: Raw, other: &mut Raw) {
    other.send(READ, 2, 0, 4 << 20, &[]).await;
    while gate.waiting() == 0 {
        sleep(Duration::from_millis(1)).await;
    }
    // Somebody looks, for twelve seconds: twice in each.
    for _ in 0..24 {
        gate.watch(Duration::from_millis(500), false);
    }
    stalled.end().await;
    assert_eq!(other.reply(4 << 20).await.0, 0);
}

/// It would hold all that may be in flight for as long as it likes.
#[tokio::test]
async fn who_announces_a_write_and_sends_nothing_is_no_longer_in_the_way_of_others() {
    let gate = Gate::new(4 << 20);
    let served = Served::tcp(ServeLimits { gate: Arc::clone(&gate), ..ServeLimits::default() }).await;
    served.registry.insert("v", "", Arc::new(MemVolume::new("v", 8 << 20, 4096))).unwrap();
    let (mut stalled, mut other) = (Raw::go(&served, "v").await, Raw::go(&served, "v").await);
    stall(&gate, &mut stalled).await;
    passes(&gate, stalled, &mut other).await;
    served.stop().await;
}

/// Of a reply that is cut off the client takes whatever comes next for the rest.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_sent_away_in_the_middle_of_a_reply_is_told_nothing_more() {
    const LONG: u32 = 32 << 20;
    let gate = Gate::new(40 << 20);
    let served = Served::tcp(ServeLimits { gate: Arc::clone(&gate), ..ServeLimits::default() }).await;
    let volume = Gated::new();
    served.registry.insert("v", "", volume.clone()).unwrap();
    let (mut deaf, mut other) = (Raw::go(&served, "v").await, Raw::go(&served, "v").await);
    deaf.send(READ, 1, 0, 512, &[]).await;
    deaf.send(READ, 2, 4096, LONG, &[]).await;
    while served.server.totals().tx_bytes < 64 << 10 {
        sleep(Duration::from_millis(1)).await;
    }
    other.send(READ, 3, 4096, LONG, &[]).await;
    while gate.waiting() == 0 {
        sleep(Duration::from_millis(1)).await;
    }
    for _ in 0..24 {
        gate.watch(Duration::from_millis(500), false);
    }
    assert_eq!(other.reply(LONG as usize).await.0, 0, "the other one has its turn");
    volume.gate.add_permits(1);
    let mut said = Vec::new();
    // A reset is an end, too.
    drop(timeout(Duration::from_secs(10), deaf.0.read_to_end(&mut said)).await.expect("the server closes"));
    assert!((16..LONG as usize).contains(&said.len()), "{} bytes", said.len());
    assert!(said[16..].iter().all(|byte| *byte == 7), "the data of the one read, and nothing else");
    served.stop().await;
}

/// What it has taken counted as owed until it said something more: it was sent away as one that stands still while others wait.
#[tokio::test]
async fn who_has_taken_its_answers_holds_nothing_and_is_in_nobodys_way() {
    let gate = Gate::new(4 << 20);
    let served = Served::tcp(ServeLimits { gate: Arc::clone(&gate), ..ServeLimits::default() }).await;
    served.registry.insert("v", "", Arc::new(MemVolume::new("v", 8 << 20, 4096))).unwrap();
    let (mut idle, mut stalled) = (Raw::go(&served, "v").await, Raw::go(&served, "v").await);
    idle.send(READ, 1, 0, 64 << 10, &[]).await;
    assert_eq!(idle.reply(64 << 10).await.0, 0);
    timeout(Duration::from_secs(10), async {
        while gate.used() > 0 {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await
    .expect("it holds nothing");
    stall(&gate, &mut stalled).await;
    passes(&gate, stalled, &mut Raw::go(&served, "v").await).await;
    idle.send(READ, 3, 0, 4096, &[]).await;
    assert_eq!(idle.reply(4096).await.0, 0, "it is still here");
    served.stop().await;
}
