//! What all may hold together is not one client's to keep: who takes no answers, or announces what does not come, costs little
//! and is sent away while others wait.

use std::{sync::Arc, time::Duration};

use block::MemVolume;
use memory::Gate;
use nbd::ServeLimits;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::{sleep, timeout},
};

use crate::{
    support::{READ, Raw, Served, WRITE, until},
    volumes::Gated,
};

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
    until("it has all the room", || gate.used() >= 4 << 20).await;
}

/// Another one waits for room, and has it once the stalled one was sent away.
async fn passes(gate: &Gate, mut stalled: Raw, other: &mut Raw) {
    other.send(READ, 2, 0, 4 << 20, &[]).await;
    until("it waits for room", || gate.waiting() > 0).await;
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
    until("the reply is on its way", || served.server.totals().tx_bytes >= 64 << 10).await;
    other.send(READ, 3, 4096, LONG, &[]).await;
    until("it waits for room", || gate.waiting() > 0).await;
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
    until("it holds nothing", || gate.used() == 0).await;
    stall(&gate, &mut stalled).await;
    passes(&gate, stalled, &mut Raw::go(&served, "v").await).await;
    idle.send(READ, 3, 0, 4096, &[]).await;
    assert_eq!(idle.reply(4096).await.0, 0, "it is still here");
    served.stop().await;
}
