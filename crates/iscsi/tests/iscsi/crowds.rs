//! Strangers and hosts that want everything: what is left for the others. Once connections that said nothing took all that
//! were not logged in yet, and hosts that came meanwhile were turned away.

use std::time::Duration;

use fixtures::Log;
use iscsi::{
    Config,
    pdu::{Header, op},
};
use tokio::{io::AsyncWriteExt as _, net::TcpStream};

use crate::support::{
    Served, begin_session, connect_from, log_in_from, quick, receive, send, serve, test_unit_ready,
};

/// Eight places, four for each; of those, four for strangers. Strangers have time.
async fn small() -> Served {
    let login_timeout = Config::default().login_timeout;
    serve(Config { connections_max: 8, connections_per_peer_max: 4, logins_max: 4, login_timeout, ..quick() })
        .await
}

/// It is logged in, and its disk answers.
async fn answers(stream: &mut TcpStream) {
    assert_eq!(test_unit_ready(stream, 1).await, Some(2), "a unit attention first");
    assert_eq!(test_unit_ready(stream, 2).await, Some(0));
}

async fn discover(host: u8, served: &Served) -> Option<TcpStream> {
    begin_session(host, served.address, 1, "InitiatorName=iqn.test\0SessionType=Discovery\0").await
}

/// Is told that there is no such target, and sent away.
async fn asks_for_nobody(host: u8, served: &Served) {
    let mut stranger = connect_from(host, served.address).await;
    let mut h = Header::new(op::LOGIN | 0x40);
    (h.0[1], h.0[8]) = (0x87, 0x80);
    h.set(24, 1);
    send(&mut stranger, h, b"InitiatorName=iqn.lost\0TargetName=iqn.nobody\0").await;
    assert_eq!(receive(&mut stranger).await.expect("an answer").0.0[36..38], [2, 3]);
    assert!(receive(&mut stranger).await.is_none());
}

/// The lines with these words, as soon as there are so many. They are written when a connection is over, which its end hears of
/// a moment before.
async fn told(log: &Log, words: &str, count: usize) -> Vec<String> {
    let told = async {
        while log.lines(words).len() < count {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), told).await.expect("it is logged");
    log.lines(words)
}

#[tokio::test]
async fn one_host_has_its_share_and_leaves_the_others_theirs() {
    let served = small().await;
    let mut hosts = Vec::new();
    for isid in 1..=4 {
        hosts.push(log_in_from(2, served.address, isid).await.expect("its share"));
    }
    assert!(log_in_from(2, served.address, 5).await.is_none(), "and no more");
    for (isid, host) in [(6, 3), (7, 3), (8, 4), (9, 5)] {
        hosts.push(log_in_from(host, served.address, isid).await.expect("what is left"));
    }
    assert!(log_in_from(6, served.address, 10).await.is_none(), "all places are taken");
    for host in &mut hosts {
        answers(host).await;
    }
}

#[tokio::test]
async fn those_that_say_nothing_give_way_and_those_that_are_logged_in_do_not() {
    let served = small().await;
    let mut stays = log_in_from(2, served.address, 1).await.unwrap();
    let mut silent = Vec::new();
    for host in [3, 3, 4, 5] {
        silent.push(connect_from(host, served.address).await);
    }
    let mut comes = log_in_from(6, served.address, 2).await.expect("a stranger gives way");
    assert!(receive(&mut silent[0]).await.is_none(), "the oldest of the host that has most of them");
    // The flood goes on, from one address and from many: it pays for that itself.
    let mut paths = Vec::new();
    for round in 0..20 {
        for host in [3, 3, 3, 10 + round] {
            silent.push(connect_from(host, served.address).await);
        }
        if paths.len() < 3 {
            paths.push(log_in_from(2, served.address, 3 + round).await.expect("another path of a host"));
        }
    }
    for host in [&mut stays, &mut comes].into_iter().chain(&mut paths) {
        answers(host).await;
    }
}

#[tokio::test]
async fn who_only_discovers_gives_way_too() {
    let served = small().await;
    let mut host = log_in_from(2, served.address, 1).await.unwrap();
    let mut idle = [discover(3, &served).await.unwrap(), discover(4, &served).await.unwrap()];
    let _silent = [connect_from(5, served.address).await, connect_from(6, served.address).await];
    let mut comes = log_in_from(7, served.address, 2).await.expect("a stranger gives way");
    assert!(receive(&mut idle[0]).await.is_none(), "the oldest");
    let _also_silent = connect_from(8, served.address).await;
    assert!(discover(2, &served).await.is_some());
    assert!(receive(&mut idle[1]).await.is_none(), "the next");
    answers(&mut host).await;
    answers(&mut comes).await;
    let mut targets: Vec<String> =
        served.targets.sessions().into_iter().map(|session| session.target).collect();
    targets.retain(|target| !target.is_empty());
    assert_eq!(targets.len(), 2);
}

#[tokio::test]
async fn refusals_are_told_with_address_and_reason_and_fill_no_disk() {
    let log = Log::begin();
    let served = small().await;
    let mut hosts = Vec::new();
    for isid in 1..=4 {
        hosts.push(log_in_from(2, served.address, isid).await.expect("its share"));
    }
    for _ in 0..100 {
        assert!(receive(&mut connect_from(2, served.address).await).await.is_none());
    }
    let refusals = log.lines("iscsi: connection refused");
    assert_eq!(refusals.len(), 10, "{refusals:?}");
    let remedy = "this client has 4 connections, as many as one may have: close those it does not need";
    assert!(refusals[0].contains("peer=127.0.0.2:") && refusals[0].contains(remedy), "{}", refusals[0]);
    // A name that is not there: the status, and who asked.
    asks_for_nobody(3, &served).await;
    assert!(told(&log, "login refused: NotFound", 1).await[0].contains("peer=127.0.0.3:"));
}

/// What became of a host was lost among what a scanner, or a host with a wrong secret, did in the same ten seconds.
#[tokio::test]
async fn strangers_that_are_refused_drown_nothing_that_is_said_of_hosts() {
    let log = Log::begin();
    let served = small().await;
    let mut host = log_in_from(2, served.address, 1).await.expect("a place");
    for _ in 0..20 {
        asks_for_nobody(3, &served).await;
    }
    assert_eq!(told(&log, "login refused: NotFound", 10).await.len(), 10);
    let mut endless = Header::new(op::NOP_OUT);
    endless.0[5..8].fill(0xff);
    host.write_all(&endless.0).await.unwrap();
    assert!(told(&log, "data segment of 16777215 bytes", 1).await[0].contains("peer=127.0.0.2:"));
}
