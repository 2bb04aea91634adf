//! Requests and their answers: what each is about, in which order they are done, and that connections see the same volume.

use std::{sync::Arc, time::Duration};

use block::MemVolume;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::{
    support::{FLUSH, READ, Raw, Served, TRIM, WRITE, WRITE_ZEROES},
    volumes::Gated,
};

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
