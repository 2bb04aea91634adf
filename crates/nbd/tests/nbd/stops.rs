//! A stop of the server is a pause for its clients, and a short one: what is under way is finished and nothing refused, and who
//! takes no answers does not make it long. Once such a client made it last half a minute, during which nobody was served. An
//! export that is removed is a stop for those who have it.

use std::{sync::Arc, time::Duration};

use block::MemVolume;
use nbd::ServeLimits;
use tokio::{
    io::AsyncWriteExt,
    time::{Instant, sleep},
};

use crate::{
    support::{READ, Raw, Served, until},
    volumes::Gated,
};

/// Longer than a stop may take with the limits that everybody gets, on a machine that does other things as well.
const PAUSE: Duration = Duration::from_secs(5);

#[tokio::test]
async fn a_slow_read_delays_no_other_and_a_stop_waits_for_it_and_refuses_nothing() {
    let volume = Gated::new();
    let served = Served::of("v", volume.clone()).await;
    let (mut raw, mut idle) = (Raw::go(&served, "v").await, Raw::go(&served, "v").await);
    raw.send(READ, 1, 0, 512, &[]).await;
    for cookie in 2..20 {
        raw.send(READ, cookie, 4096, 512, &[]).await;
        assert_eq!(raw.reply(512).await, (0, cookie, vec![7; 512]));
    }
    served.begin_stop();
    // By then all have heard of it.
    idle.end().await;
    drop(idle);
    // An error would be passed on to the guest; what has no answer is sent again to the next server.
    raw.send(READ, 99, 4096, 512, &[]).await;
    volume.gate.add_permits(1);
    assert_eq!(raw.reply(512).await, (0, 1, vec![7; 512]));
    raw.end().await;
    served.stop().await;
}

#[tokio::test]
async fn a_stop_does_not_wait_for_ever() {
    let limits = ServeLimits { stop: Duration::from_millis(100), ..ServeLimits::default() };
    let served = Served::tcp(limits).await;
    let volume = Gated::new();
    served.registry.insert("v", "", volume.clone()).unwrap();
    let mut raw = Raw::go(&served, "v").await;
    raw.send(READ, 1, 0, 512, &[]).await;
    volume.begun().await;
    let started = Instant::now();
    served.stop().await;
    assert!(started.elapsed() < Duration::from_secs(5));
    raw.end().await;
}

/// Something was sent, and nothing more goes.
async fn stuck(served: &Served) {
    let mut before = 0;
    loop {
        let sent = served.server.totals().tx_bytes;
        if sent >= 4 << 10 && sent == before {
            return;
        }
        before = sent;
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_takes_no_answers_does_not_make_a_restart_long() {
    let served = Served::of("v", Arc::new(MemVolume::new("v", 64 << 20, 1 << 20))).await;
    let mut deaf = Vec::new();
    for _ in 0..4 {
        let mut raw = Raw::go(&served, "v").await;
        for cookie in 0..60 {
            raw.send(READ, cookie, cookie << 20, 1 << 20, &[]).await;
        }
        deaf.push(raw);
    }
    let mut idle = Raw::go(&served, "v").await;
    until("all are there", || served.server.connections().len() == 5).await;
    stuck(&served).await;
    let begun = Instant::now();
    served.begin_stop();
    idle.end().await;
    assert!(begun.elapsed() < Duration::from_secs(1), "who waits for nothing is let go at once");
    served.stop().await;
    assert!(begun.elapsed() < PAUSE, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn what_was_begun_for_a_client_that_has_left_does_not_make_a_restart_long_either() {
    let limits = ServeLimits { stop: Duration::from_millis(100), ..ServeLimits::default() };
    let served = Served::tcp(limits).await;
    served.registry.insert("v", "", Gated::new()).unwrap();
    let mut raw = Raw::go(&served, "v").await;
    raw.send(READ, 1, 0, 512, &[]).await;
    raw.0.shutdown().await.unwrap();
    sleep(Duration::from_millis(50)).await;
    assert_eq!(served.server.connections().len(), 1, "its read is under way");
    let begun = Instant::now();
    served.stop().await;
    assert!(begun.elapsed() < PAUSE, "{:?}", begun.elapsed());
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
    until("nobody holds the volume", || Arc::strong_count(&volume) == 1).await;
    served.stop().await;
}

/// Whoever removes an export waits for those who have it.
#[tokio::test]
async fn an_export_is_not_kept_by_a_client_that_takes_no_answers() {
    let limits = ServeLimits { stop: Duration::from_millis(100), ..ServeLimits::default() };
    let served = Served::tcp(limits).await;
    let volume = Arc::new(MemVolume::new("v", 64 << 20, 1 << 20));
    served.registry.insert("v", "", volume.clone()).unwrap();
    let mut deaf = Raw::go(&served, "v").await;
    for cookie in 0..60 {
        deaf.send(READ, cookie, cookie << 20, 1 << 20, &[]).await;
    }
    stuck(&served).await;
    let begun = Instant::now();
    served.registry.remove("v");
    while Arc::strong_count(&volume) > 1 {
        sleep(Duration::from_millis(5)).await;
        assert!(begun.elapsed() < PAUSE, "it is still held");
    }
    served.stop().await;
}
