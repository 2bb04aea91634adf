//! A stop of the server is a pause for its clients, and a short one. Once a client that took no answers made it last half
//! a minute, during which nobody was served.

use std::{sync::Arc, time::Duration};

use block::MemVolume;
use nbd::ServeLimits;
use tokio::{
    io::AsyncWriteExt,
    time::{Instant, sleep},
};

use crate::{
    support::{Raw, Served},
    wire::Gated,
};

const READ: u16 = 0;

/// Longer than a stop may take with the limits that everybody gets, on a machine that does other things as well.
const PAUSE: Duration = Duration::from_secs(5);

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
    let stuck = async {
        while served.server.totals().tx_bytes < 4 << 10 || served.server.connections().len() < 5 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    stuck.await;
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
    sleep(Duration::from_millis(50)).await;
    let begun = Instant::now();
    served.registry.remove("v");
    while Arc::strong_count(&volume) > 1 {
        sleep(Duration::from_millis(5)).await;
        assert!(begun.elapsed() < PAUSE, "it is still held");
    }
    served.stop().await;
}
