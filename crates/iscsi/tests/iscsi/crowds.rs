//! Strangers and hosts that want everything: what is left for the others. Once connections that said nothing took all that
//! were not logged in yet, and hosts that came meanwhile were turned away.

use iscsi::Config;
use tokio::net::TcpStream;

use crate::support::{
    Served, begin_session, connect_from, log_in_from, quick, receive, serve, test_unit_ready,
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
