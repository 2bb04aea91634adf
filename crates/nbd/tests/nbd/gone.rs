//! Clients that go, with or without a word. Without one their changes are given up: they may have sent them again on another
//! connection, and have been answered there. Behind a disconnect all is done that was asked for before it.

use std::{sync::Arc, time::Duration};

use block::{BlockVolume as _, Extent, MemVolume};
use nbd::ServeLimits;
use tokio::time::sleep;

use crate::{
    support::{DISC, READ, Raw, Served, WRITE, until},
    volumes::{Gated, Slow},
};

#[tokio::test]
async fn a_disconnect_is_obeyed_after_everything_in_flight_was_answered() {
    let volume = Gated::new();
    let served = Served::of("v", volume.clone()).await;
    let mut raw = Raw::go(&served, "v").await;
    raw.send(READ, 1, 0, 512, &[]).await;
    volume.begun().await;
    let heard = || served.server.totals().rx_bytes;
    let before = heard();
    raw.send(DISC, 2, 0, 0, &[]).await;
    until("it is heard", || heard() > before).await;
    volume.gate.add_permits(1);
    assert_eq!(raw.reply(512).await, (0, 1, vec![7; 512]));
    raw.end().await;
    served.stop().await;
}

#[tokio::test]
async fn a_client_that_leaves_in_mid_request_is_forgotten_and_its_half_write_too() {
    let volume = Arc::new(MemVolume::new("v", 1 << 20, 4096));
    let served = Served::of("v", volume.clone()).await;
    let mut raw = Raw::go(&served, "v").await;
    raw.send(WRITE, 1, 0, 100_000, &vec![1; 99_999]).await;
    drop(raw);
    served.only(0).await;
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
    served.only(1).await;
    volume.gate.add_permits(1);
    volume.left(0).await;
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
    served.only(1).await;
    volume.gate.add_permits(1);
    volume.left(0).await;
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
    served.only(1).await;
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
    served.only(0).await;
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
    volume.left(1).await;
    volume.gate.add_permits(1);
    served.only(0).await;
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
    served.only(0).await;
    has_ones(&served, 512).await;
    served.stop().await;
}
