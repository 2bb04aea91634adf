//! Before an export is chosen: how long a client may take, what it may ask, and what becomes of one that waits for an export.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use block::MemVolume;
use fixtures::{Log, window};
use nbd::ServeLimits;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

use crate::support::{READ, Raw, Served, until};

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
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    served.registry.set_awaited(move |name| {
        count.fetch_add(1, Relaxed);
        name == "v"
    });
    let mut client = greeted(&served).await;
    client.write_all(&info()).await.unwrap();
    until("it waits", || asked.load(Relaxed) > 0).await;
    let begun = Instant::now();
    drop(client);
    served.only(0).await;
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    served.stop().await;
}

#[tokio::test]
async fn a_client_that_chose_an_export_has_a_wide_window_and_nobody_before_that() {
    if !window::may_widen() {
        return;
    }
    let served = Served::of("v", Arc::new(MemVolume::new("v", 4096, 4096))).await;
    let asking = greeted(&served).await;
    let chose = Raw::go(&served, "v").await;
    let of = |client: &TcpStream| window::server_buffer(client.local_addr().unwrap());
    until("the window is open", || of(&chose.0) > Some(1 << 20)).await;
    assert!(of(&asking).is_some_and(|bytes| bytes < 1 << 20));
    served.stop().await;
}
