//! Strangers and hosts that want everything: what is left for the others. Once 256 connections of one host, even such
//! that said nothing, were all that the server had, and everybody else was turned away.

use std::{sync::Arc, time::Duration};

use block::MemVolume;
use fixtures::Log;
use nbd::{Listener, ServeLimits};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    sync::watch,
    time::timeout,
};

use crate::support::{Raw, Served, connect_from};

/// Six places, four for each.
async fn small() -> Served {
    let limits = ServeLimits { connections: 6, per_peer: 4, ..ServeLimits::default() };
    let served = Served::tcp(limits).await;
    served.registry.insert("v", "", Arc::new(MemVolume::new("v", 4096, 4096))).unwrap();
    served
}

/// What the server says without being asked, up to the end if it closes.
async fn greeting(stream: &mut (impl AsyncRead + Unpin)) -> usize {
    let mut said = [0; 18];
    let read = timeout(Duration::from_secs(10), stream.read_exact(&mut said)).await;
    read.expect("a word, or the end").unwrap_or(0)
}

async fn answers(raw: &mut Raw) {
    raw.send(0, 7, 0, 16, &[]).await;
    assert_eq!(raw.reply(16).await, (0, 7, vec![0; 16]));
}

#[tokio::test]
async fn one_host_has_its_share_and_leaves_the_others_theirs() {
    let served = small().await;
    let mut greedy = Vec::new();
    for _ in 0..4 {
        greedy.push(Raw::go_from(2, &served, "v").await.expect("its share"));
    }
    assert!(Raw::go_from(2, &served, "v").await.is_none(), "and no more");
    let mut modest =
        [Raw::go_from(3, &served, "v").await.unwrap(), Raw::go_from(4, &served, "v").await.unwrap()];
    assert!(Raw::go_from(5, &served, "v").await.is_none(), "all places are taken");
    for raw in greedy.iter_mut().chain(&mut modest) {
        answers(raw).await;
    }
    // A place that becomes free is free for whoever comes.
    greedy.pop().unwrap().end_by_leaving().await;
    let comes = async {
        loop {
            match Raw::go_from(5, &served, "v").await {
                Some(raw) => break raw,
                None => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    };
    answers(&mut timeout(Duration::from_secs(10), comes).await.expect("a place")).await;
    served.stop().await;
}

/// Where few files can be open there are few places, and an address could have them all.
#[tokio::test]
async fn of_few_places_one_host_does_not_get_all() {
    let served = Served::tcp(ServeLimits { connections: 4, ..ServeLimits::default() }).await;
    served.registry.insert("v", "", Arc::new(MemVolume::new("v", 4096, 4096))).unwrap();
    let mut greedy = Vec::new();
    while let Some(raw) = Raw::go_from(2, &served, "v").await {
        greedy.push(raw);
    }
    assert_eq!(greedy.len(), 3);
    answers(&mut Raw::go_from(3, &served, "v").await.expect("what was left")).await;
    served.stop().await;
}

#[tokio::test]
async fn those_that_say_nothing_give_way_and_those_that_are_served_do_not() {
    let served = small().await;
    let mut stays = Raw::go_from(2, &served, "v").await.unwrap();
    let mut silent = Vec::new();
    for host in [3, 3, 3, 3, 4] {
        let mut stream = connect_from(host, &served).await;
        assert_eq!(greeting(&mut stream).await, 18);
        silent.push(stream);
    }
    // Everything is taken, mostly by one host that does not say what it wants.
    let mut comes = Raw::go_from(5, &served, "v").await.expect("a stranger gives way");
    let mut nothing = Vec::new();
    drop(timeout(Duration::from_secs(5), silent[0].read_to_end(&mut nothing)).await.expect("the oldest"));
    // Its flood goes on for as long as it likes: it pays for that itself.
    for _ in 0..50 {
        assert_eq!(greeting(&mut connect_from(3, &served).await).await, 18);
        silent.push(connect_from(3, &served).await);
    }
    let mut also = Raw::go_from(2, &served, "v").await.expect("the host that stays may have another");
    for raw in [&mut stays, &mut comes, &mut also] {
        answers(raw).await;
    }
    served.stop().await;
}

#[tokio::test]
async fn a_full_network_does_not_shut_out_clients_of_a_unix_socket() {
    let served = small().await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nbd.sock");
    let (stop, stopping) = watch::channel(false);
    let (server, listener) = (served.server.clone(), UnixListener::bind(&path).unwrap());
    let task = tokio::spawn(async move { server.serve(Listener::Unix(listener), stopping).await });
    let mut network = Vec::new();
    for host in [2, 2, 2, 2, 3, 3] {
        network.push(Raw::go_from(host, &served, "v").await.unwrap());
    }
    assert!(Raw::go_from(4, &served, "v").await.is_none());
    let mut local = Vec::new();
    for _ in 0..4 {
        let mut stream = UnixStream::connect(&path).await.unwrap();
        assert_eq!(greeting(&mut stream).await, 18);
        local.push(stream);
    }
    for raw in &mut network {
        answers(raw).await;
    }
    stop.send_replace(true);
    drop(local);
    task.await.unwrap().unwrap();
    served.stop().await;
}

#[tokio::test]
async fn refusals_are_told_with_address_and_remedy_and_fill_no_disk() {
    let log = Log::begin();
    let served = small().await;
    let mut greedy = Vec::new();
    for _ in 0..4 {
        greedy.push(Raw::go_from(2, &served, "v").await.unwrap());
    }
    for _ in 0..100 {
        assert!(Raw::go_from(2, &served, "v").await.is_none());
    }
    let refusals = log.lines("connection refused");
    assert_eq!(refusals.len(), 10, "{refusals:?}");
    let remedy = "this client has 4 connections, as many as one may have: close those it does not need";
    assert!(refusals[0].contains("peer=\"127.0.0.2:") && refusals[0].contains(remedy), "{}", refusals[0]);
    served.stop().await;
}

/// A host that starts twenty guests was told of ten times, and then nobody heard of what was dropped.
#[tokio::test]
async fn those_that_come_in_drown_nothing_that_is_said_of_those_that_are() {
    let log = Log::begin();
    let served = small().await;
    for _ in 0..12 {
        Raw::go_from(2, &served, "v").await.expect("a place").end_by_leaving().await;
    }
    assert_eq!(log.lines("nbd: connected").len(), 10);
    let mut raw = Raw::go_from(3, &served, "v").await.expect("a place");
    raw.0.write_all(&[0x11; 28]).await.unwrap();
    raw.end().await;
    let dropped = log.lines("bad request magic");
    assert!(dropped.len() == 1 && dropped[0].contains("peer=\"127.0.0.3:"), "{dropped:?}");
    served.stop().await;
}
