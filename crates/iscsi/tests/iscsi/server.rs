//! The server's own promises, over real sockets: reinstatement, deadlines, limits, stopping.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use block::{BlockVolume, MemVolume, Segment};
use fixtures::window;
use iscsi::{
    Config, Form, Offer, Portal, Server, Targets,
    pdu::{Header, Outbox, op},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    sync::oneshot,
    time::{Instant, sleep, timeout},
};

use crate::support::{
    AtHand, NAME, begin_session, log_in, log_in_over, quick, receive, send, serve, serve_volume,
    test_unit_ready, until,
};

#[tokio::test]
async fn the_same_initiator_logging_in_again_ends_its_old_session_first() {
    let served = serve(quick()).await;
    let mut old = log_in(served.address, 1).await;
    let mut other = log_in(served.address, 2).await;
    let mut new = log_in(served.address, 1).await;
    let told = receive(&mut old).await.map(|(h, _)| (h.opcode(), h.0[36], [h.0[38], h.0[39]]));
    assert_eq!(told, Some((op::ASYNC, 2, [0xc1, 0xd2])), "with the connection's identifier");
    assert!(receive(&mut old).await.is_none(), "the old connection is closed");
    assert_eq!(served.targets.sessions().len(), 2);
    for stream in [&mut new, &mut other] {
        assert_eq!(test_unit_ready(stream, 1).await, Some(2), "a unit attention first");
        assert_eq!(test_unit_ready(stream, 2).await, Some(0));
    }
}

#[tokio::test]
async fn each_path_of_a_host_is_a_session_with_counters_of_its_own() {
    let targets = Targets::new(quick());
    targets.add(NAME, Arc::new(MemVolume::new("tank/vm", 1 << 20, 8192))).unwrap();
    let portals: Vec<SocketAddr> = (1..=3).map(|host| ([127, 0, 0, host], 0).into()).collect();
    let server = Server::bind(Arc::clone(&targets), &portals).await.unwrap();
    let portals = server.local_addrs().unwrap();
    let (_stop, stopped) = oneshot::channel::<()>();
    let _server = tokio::spawn(server.run(async { drop(stopped.await) }));
    let mut paths = Vec::new();
    for (isid, portal) in (1..).zip(&portals) {
        paths.push(log_in(*portal, isid).await);
    }
    // As a host does that takes its paths in turn.
    for turn in 1..=30 {
        for path in &mut paths {
            test_unit_ready(path, turn).await.unwrap();
        }
    }
    let mut sessions = targets.sessions();
    sessions.sort_by_key(|session| session.portal.address);
    for (session, portal) in sessions.iter().zip(&portals) {
        assert_eq!((session.portal.address, session.initiator.as_str()), (*portal, "iqn.test"));
        assert_eq!(session.counters.commands.load(std::sync::atomic::Ordering::Relaxed), 30);
    }
    assert_eq!(sessions.len(), 3);
}

/// The class and detail that a login to a target of that name is answered with.
async fn login_status(address: SocketAddr, name: &str) -> (u8, u8) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut h = Header::new(op::LOGIN | 0x40);
    (h.0[1], h.0[8], h.0[13]) = (0x87, 0x80, 9);
    send(&mut stream, h, format!("InitiatorName=iqn.test\0TargetName={name}\0").as_bytes()).await;
    receive(&mut stream).await.map(|(h, _)| (h.0[36], h.0[37])).unwrap()
}

#[tokio::test]
async fn hosts_are_told_to_try_again_while_their_target_may_still_come() {
    let served = serve(quick()).await;
    let (later, never) = ("iqn.2026-11.io.millpond:lake:vm", "iqn.2026-11.io.millpond:lakes:vm");
    assert_eq!(login_status(served.address, later).await, (2, 3), "not found");
    served.targets.set_awaited(|name| iscsi::iqn::may_be_of_pool(name, "lake"));
    assert_eq!(login_status(served.address, later).await, (3, 1), "service unavailable: hosts try again");
    assert_eq!(login_status(served.address, "iqn.2001-04.com.example:chosen").await, (3, 1));
    assert_eq!(login_status(served.address, never).await, (2, 3), "of another pool");
    served.targets.add(later, Arc::new(MemVolume::new("lake/vm", 1 << 20, 8192))).unwrap();
    assert_eq!(login_status(served.address, later).await, (0, 0));
    assert!(served.targets.remove(later));
    assert_eq!(login_status(served.address, later).await, (2, 4), "an operator's word counts");
}

/// They found it without a disk, and took that for removed.
#[tokio::test]
async fn hosts_are_told_to_try_again_until_the_disks_of_their_target_have_come() {
    let served = serve(quick()).await;
    let name = "iqn.2026-11.io.millpond:lake:vm";
    let target = served.targets.create(name, Offer { is_coming: true, ..Offer::default() }).unwrap();
    assert_eq!(login_status(served.address, name).await, (3, 1));
    target.add_lun(0, Arc::new(MemVolume::new("lake/vm", 1 << 20, 8192)), Form::default()).unwrap();
    assert_eq!(login_status(served.address, name).await, (3, 1), "there may be more");
    target.set_ready();
    assert_eq!(login_status(served.address, name).await, (0, 0));
}

/// They were told that there is no such target, and gave it up, before the address that they came by had its group.
#[tokio::test]
async fn hosts_are_told_to_try_again_by_an_address_whose_group_may_still_come() {
    let served = serve(quick()).await;
    let name = "iqn.2026-11.io.millpond:lake:vm";
    let offer = Offer { groups: Some(vec![2]), is_coming: true, ..Offer::default() };
    let target = served.targets.create(name, offer).unwrap();
    assert_eq!(login_status(served.address, name).await, (3, 1));
    target.set_ready();
    assert_eq!(login_status(served.address, name).await, (2, 3), "now it is known to be the wrong one");
    let shut = target.shut();
    assert_eq!(login_status(served.address, name).await, (3, 1));
    drop(shut);
    served.targets.set_portals(vec![Portal { address: served.address, group: 2 }]);
    assert_eq!(login_status(served.address, name).await, (0, 0));
}

/// Whoever came in by an address that others still wanted was sent away as well.
#[tokio::test]
async fn a_server_that_no_longer_listens_goes_on_with_those_that_it_is_to_keep() {
    let targets = Targets::new(quick());
    targets.add(NAME, Arc::new(MemVolume::new("tank/vm", 1 << 20, 8192))).unwrap();
    let everywhere: SocketAddr = ([0, 0, 0, 0], 0).into();
    let server = Server::bind(Arc::clone(&targets), &[everywhere]).await.unwrap();
    let port = server.local_addrs().unwrap()[0].port();
    let at = |host: u8| SocketAddr::from(([127, 0, 0, host], port));
    let (keep, kept) = tokio::sync::watch::channel(None);
    let closed = server.closed();
    let running = tokio::spawn(server.run_while(kept));
    let (mut goes, mut stays) = (log_in(at(1), 1).await, log_in(at(2), 2).await);
    keep.send_replace(Some(vec![at(2)]));
    timeout(Duration::from_secs(5), closed).await.expect("it listens no more");
    let next = Server::bind(Arc::clone(&targets), &[at(2)]).await.expect("the address is free");
    drop(next);
    let event = |told: Option<(Header, Vec<u8>)>| told.map(|(h, _)| (h.opcode(), h.0[36]));
    assert_eq!(event(receive(&mut goes).await), Some((op::ASYNC, 1)));
    assert_eq!(event(receive(&mut goes).await), Some((op::ASYNC, 2)));
    assert_eq!(test_unit_ready(&mut stays, 1).await, Some(2));
    assert_eq!(test_unit_ready(&mut stays, 2).await, Some(0));
    keep.send_replace(Some(Vec::new()));
    assert_eq!(event(receive(&mut stays).await), Some((op::ASYNC, 1)));
    timeout(Duration::from_secs(5), running).await.expect("nobody is left").unwrap();
}

#[tokio::test]
async fn who_does_not_log_in_in_time_is_dropped() {
    let served = serve(quick()).await;
    let mut silent = TcpStream::connect(served.address).await.unwrap();
    let mut slow = TcpStream::connect(served.address).await.unwrap();
    slow.write_all(&Header::new(op::LOGIN | 0x40).0[..20]).await.unwrap();
    assert!(receive(&mut silent).await.is_none());
    assert!(receive(&mut slow).await.is_none());
}

#[tokio::test]
async fn connections_beyond_the_limit_are_closed_and_room_comes_back() {
    let served = serve(Config { connections_max: 2, ..quick() }).await;
    let first = log_in(served.address, 1).await;
    let _second = log_in(served.address, 2).await;
    let mut third = TcpStream::connect(served.address).await.unwrap();
    assert!(receive(&mut third).await.is_none());
    drop(first);
    let mut tries = 0;
    while served.targets.sessions().len() > 1 {
        tries += 1;
        assert!(tries < 500, "the session of a closed connection stays");
        sleep(Duration::from_millis(10)).await;
    }
    log_in(served.address, 3).await;
}

#[tokio::test]
async fn a_silent_initiator_is_pinged_and_then_dropped() {
    let served = serve(Config { ping_after: Duration::from_millis(100), ..quick() }).await;
    let mut stream = log_in(served.address, 1).await;
    let (ping, _) = receive(&mut stream).await.unwrap();
    assert_eq!(ping.opcode(), op::NOP_IN);
    let mut pong = Header::new(op::NOP_OUT | 0x40);
    pong.set(16, u32::MAX).set(20, ping.word20()).set(24, 1);
    send(&mut stream, pong, &[]).await;
    assert_eq!(receive(&mut stream).await.unwrap().0.opcode(), op::NOP_IN, "alive, asked again later");
    assert!(receive(&mut stream).await.is_none());
}

/// While its answers wait for it nothing it says is read: what it takes is the sign of life.
#[tokio::test(flavor = "multi_thread")]
async fn an_initiator_that_takes_its_answers_slowly_is_not_silent() {
    let served = serve(Config { ping_after: Duration::from_millis(500), ..quick() }).await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(16 << 10).unwrap();
    let stream = log_in_over(socket.connect(served.address).await.unwrap(), 1).await;
    let (mut receiving, mut sending) = stream.into_split();
    // 24 times 1 MiB, as fast as they can be said.
    tokio::spawn(async move {
        for number in 1..=24 {
            let mut h = Header::new(op::COMMAND);
            h.0[1] = 0xc1;
            h.set(16, number).set(20, 1 << 20).set(24, number);
            (h.0[32], h.0[39], h.0[40]) = (0x28, 8, 0);
            if sending.write_all(&h.0).await.is_err() {
                return;
            }
        }
        std::future::pending::<()>().await;
    });
    // A megabyte every 150 ms.
    let (mut taken, begun, mut piece) = (0_usize, Instant::now(), vec![0; 64 << 10]);
    while taken < 20 << 20 {
        let read = timeout(Duration::from_secs(5), receiving.read(&mut piece)).await.unwrap().unwrap();
        assert!(read > 0, "hung up on after {taken} bytes and {:?}", begun.elapsed());
        taken += read;
        let due = Duration::from_micros(taken as u64 * 3 / 20);
        sleep(due.saturating_sub(begun.elapsed())).await;
    }
    assert!(begun.elapsed() > Duration::from_secs(2), "nothing was slow: {:?}", begun.elapsed());
}

/// Its listeners know IPv4 addresses in their IPv6 form only.
#[tokio::test]
async fn a_portal_of_one_ipv4_address_keeps_its_group_beside_that_of_all_addresses() {
    let targets = Targets::new(quick());
    let target = targets.add(NAME, Arc::new(MemVolume::new("tank/vm", 1 << 20, 8192))).unwrap();
    let Ok(server) = Server::bind(Arc::clone(&targets), &["[::]:0".parse().unwrap()]).await else {
        return; // no IPv6 here
    };
    let any = server.local_addrs().unwrap()[0];
    let own = SocketAddr::from(([127, 0, 0, 1], any.port()));
    targets.set_portals(vec![Portal { address: any, group: 1 }, Portal { address: own, group: 2 }]);
    target.set_groups(Some(vec![2]));
    let (_stop, stopped) = oneshot::channel::<()>();
    let _server = tokio::spawn(server.run(async { drop(stopped.await) }));
    assert_eq!(login_status(own, NAME).await, (0, 0));
    let other = SocketAddr::from(([127, 0, 0, 2], any.port()));
    assert_eq!(login_status(other, NAME).await, (2, 3), "an address of the other group");
    let _session = log_in(own, 1).await;
    let session = targets.sessions().pop().unwrap();
    assert_eq!((session.portal.address, session.portal.group), (own, 2));
    assert!(session.peer.is_ipv4());
    // A portal may have been written in that form, too.
    let written = SocketAddr::new("::ffff:127.0.0.1".parse().unwrap(), any.port());
    targets.set_portals(vec![Portal { address: any, group: 1 }, Portal { address: written, group: 2 }]);
    assert_eq!(login_status(own, NAME).await, (0, 0));
}

#[tokio::test]
async fn removing_a_target_ends_its_sessions_and_later_logins() {
    let served = serve(quick()).await;
    let mut stream = log_in(served.address, 1).await;
    assert!(served.targets.remove(NAME) && !served.targets.remove(NAME));
    assert_eq!(receive(&mut stream).await.map(|(h, _)| h.opcode()), Some(op::ASYNC));
    assert!(receive(&mut stream).await.is_none());
    let mut late = TcpStream::connect(served.address).await.unwrap();
    let mut h = Header::new(op::LOGIN | 0x40);
    h.0[1] = 0x87;
    send(&mut late, h, format!("InitiatorName=iqn.test\0TargetName={NAME}\0").as_bytes()).await;
    let (reply, _) = receive(&mut late).await.unwrap();
    assert_eq!([reply.0[36], reply.0[37]], [2, 4], "removed, not unheard of");
}

#[tokio::test]
async fn stopping_asks_for_a_logout_serves_meanwhile_and_ends() {
    let served = serve(quick()).await;
    let mut stays = log_in(served.address, 1).await;
    let mut leaves = log_in(served.address, 2).await;
    served.stop.send(()).unwrap();
    for stream in [&mut stays, &mut leaves] {
        assert_eq!(receive(stream).await.map(|(h, _)| (h.opcode(), h.0[36])), Some((op::ASYNC, 1)));
    }
    assert_eq!(test_unit_ready(&mut stays, 1).await, Some(2), "commands are still answered");
    let mut h = Header::new(op::LOGOUT | 0x40);
    h.set(16, 9).set(24, 1);
    send(&mut leaves, h, &[]).await;
    assert_eq!(receive(&mut leaves).await.map(|(h, _)| (h.opcode(), h.0[2])), Some((op::LOGOUT_RESPONSE, 0)));
    assert!(receive(&mut leaves).await.is_none());
    assert_eq!(receive(&mut stays).await.map(|(h, _)| (h.opcode(), h.0[36])), Some((op::ASYNC, 2)));
    timeout(Duration::from_secs(5), served.server).await.expect("the server ends").unwrap();
}

/// One connection that said nothing kept a daemon from stopping until nobody waited for it any more.
#[tokio::test]
async fn who_is_not_logged_in_does_not_hold_up_a_stop() {
    let (login_timeout, logout_wait) = (Duration::from_secs(60), Duration::from_secs(60));
    let served = serve(Config { login_timeout, logout_wait, ..quick() }).await;
    let connect = async || TcpStream::connect(served.address).await.unwrap();
    let (mut silent, mut stuck, mut asks) = (connect().await, connect().await, connect().await);
    let mut h = Header::new(op::LOGIN | 0x40);
    (h.0[1], h.0[8], h.0[13]) = (0x87, 0x80, 9);
    let mut out = Outbox::default();
    out.push(h, format!("InitiatorName=iqn.test\0TargetName={NAME}\0").as_bytes());
    let request = out.drain();
    for stream in [&mut stuck, &mut asks] {
        stream.write_all(&request[..50]).await.unwrap();
    }
    sleep(Duration::from_millis(100)).await;
    let began = Instant::now();
    served.stop.send(()).unwrap();
    asks.write_all(&request[50..]).await.unwrap();
    let told = receive(&mut asks).await.map(|(h, _)| (h.0[36], h.0[37]));
    assert_eq!(told, Some((3, 1)), "service unavailable: it comes again");
    timeout(Duration::from_secs(5), served.server).await.expect("the server ends").unwrap();
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    for stream in [&mut silent, &mut stuck] {
        assert!(receive(stream).await.is_none());
    }
}

/// It would hold all that may be in flight for as long as it says that it is alive.
#[tokio::test]
async fn who_sends_no_data_that_it_was_asked_for_loses_its_session_while_others_wait() {
    let gate = memory::Gate::new(64 << 10);
    let served = serve(Config { gate: Arc::clone(&gate), ..quick() }).await;
    let (mut stalled, mut other) = (log_in(served.address, 1).await, log_in(served.address, 2).await);
    for stream in [&mut stalled, &mut other] {
        assert_eq!(test_unit_ready(stream, 1).await, Some(2));
        let mut h = Header::new(op::COMMAND);
        h.0[1] = 0xa1;
        h.set(16, 2).set(20, 64 << 10).set(24, 2);
        (h.0[32], h.0[40]) = (0x2a, 128);
        send(stream, h, &[]).await;
    }
    assert_eq!(receive(&mut stalled).await.map(|(h, _)| h.opcode()), Some(op::R2T));
    while gate.waiting() == 0 {
        sleep(Duration::from_millis(1)).await;
    }
    // Somebody looks, for twelve seconds: twice in each.
    for _ in 0..24 {
        gate.watch(Duration::from_millis(500), false);
    }
    assert!(receive(&mut stalled).await.is_none(), "it is closed");
    assert_eq!(receive(&mut other).await.map(|(h, _)| h.opcode()), Some(op::R2T));
    assert_eq!(served.targets.sessions().len(), 1);
}

/// It would hear nothing until its host has lost patience with the disk.
#[tokio::test]
async fn a_command_that_waits_for_room_is_answered_before_its_host_gives_up() {
    let gate = memory::Gate::new(64 << 10);
    let room_wait = Duration::from_millis(300);
    let served = serve(Config { gate: Arc::clone(&gate), room_wait, ..quick() }).await;
    let mut others = memory::Member::new(Arc::clone(&gate));
    assert!(others.ask(0, 64 << 10));
    let mut host = log_in(served.address, 1).await;
    assert_eq!(test_unit_ready(&mut host, 1).await, Some(2));
    let begun = Instant::now();
    for (number, code, flags) in [(2, 0x2a, 0xa1), (3, 0x28, 0xc1)] {
        let mut h = Header::new(op::COMMAND);
        h.0[1] = flags;
        h.set(16, number).set(20, 8 << 10).set(24, number);
        (h.0[32], h.0[40]) = (code, 16);
        send(&mut host, h, &[]).await;
    }
    let mut answers = Vec::new();
    for _ in 0..2 {
        let (h, _) = receive(&mut host).await.unwrap();
        answers.push((h.opcode(), h.itt(), h.0[3]));
    }
    assert!(begun.elapsed() >= room_wait);
    assert_eq!(
        answers,
        [(op::RESPONSE, 2, 0x28), (op::RESPONSE, 3, 0x08)],
        "TASK SET FULL; BUSY if it is alone"
    );
    assert_eq!(gate.waiting(), 0);
    // With room again it is served.
    drop(others);
    assert_eq!(test_unit_ready(&mut host, 4).await, Some(0));
    let mut h = Header::new(op::COMMAND);
    h.0[1] = 0xc1;
    h.set(16, 5).set(20, 8 << 10).set(24, 5);
    (h.0[32], h.0[40]) = (0x28, 16);
    send(&mut host, h, &[]).await;
    assert_eq!(
        receive(&mut host).await.map(|(h, data)| (h.opcode(), data.len())),
        Some((op::DATA_IN, 8 << 10))
    );
}

#[tokio::test]
async fn an_initiator_that_reads_late_still_gets_every_byte() {
    let served = serve(quick()).await;
    let mut stream = log_in(served.address, 1).await;
    assert_eq!(test_unit_ready(&mut stream, 1).await, Some(2));
    // 100 reads of the whole volume are 100 MiB: far above what may wait for the socket.
    for sn in 2..102 {
        let mut h = Header::new(op::COMMAND);
        h.0[1] = 0xc1;
        h.set(16, sn).set(20, 1 << 20).set(24, sn);
        (h.0[32], h.0[39], h.0[40]) = (0x28, 8, 0);
        send(&mut stream, h, &[]).await;
    }
    sleep(Duration::from_millis(200)).await;
    let mut bytes = 0;
    while bytes < 100 << 20 {
        let (h, data) = receive(&mut stream).await.expect("all of it");
        assert_eq!(h.opcode(), op::DATA_IN);
        bytes += data.len();
    }
    assert_eq!(test_unit_ready(&mut stream, 102).await, Some(0));
}

/// Answers to long writes leave together, but none waits for data that has not been sent.
#[tokio::test]
async fn an_answer_waits_for_no_write_that_has_not_arrived() {
    const LEN: usize = 128 << 10;
    let volume = Arc::new(MemVolume::new("tank/vm", 64 << 20, 16384));
    let served = serve_volume(quick(), Arc::clone(&volume) as Arc<dyn BlockVolume>).await;
    let text = format!(
        "InitiatorName=iqn.test\0TargetName={NAME}\0ImmediateData=Yes\0InitialR2T=No\0FirstBurstLength=262144\0\
         MaxBurstLength=262144\0"
    );
    let mut stream = begin_session(1, served.address, 1, &text).await.unwrap();
    assert_eq!(test_unit_ready(&mut stream, 1).await, Some(2));
    let mut number = 1_u32;
    for whole in [1_usize, 2, 4, 9, 20] {
        for missing in [1, LEN / 2, LEN, LEN + 40] {
            let first = number + 1;
            let mut out = Outbox::default();
            for _ in 0..=whole {
                number += 1;
                let mut h = Header::new(op::COMMAND);
                h.0[1] = 0xa1;
                h.set(16, number).set(20, LEN as u32).set(24, number);
                h.0[32] = 0x2a;
                h.set(34, number % 400 * (LEN as u32 / 512));
                h.0[39] = 1; // 256 blocks
                out.push(h, &vec![(number % 251) as u8; LEN]);
            }
            let wire = out.drain();
            let (now, later) = wire.split_at(wire.len() - missing);
            let answered = async |stream: &mut TcpStream, itt: u32| {
                let answer = timeout(Duration::from_secs(10), receive(stream)).await;
                let (h, _) = answer.unwrap_or_else(|_| panic!("{itt} has to wait")).unwrap();
                assert_eq!((h.opcode(), h.itt(), h.0[3]), (op::RESPONSE, itt, 0));
            };
            stream.write_all(now).await.unwrap();
            for itt in first..number {
                answered(&mut stream, itt).await;
            }
            stream.write_all(later).await.unwrap();
            answered(&mut stream, number).await;
            for number in first..=number {
                let read = volume.read(u64::from(number % 400) * LEN as u64, LEN).await.unwrap();
                let found: Vec<u8> = read
                    .iter()
                    .flat_map(|segment| match segment {
                        Segment::Data(bytes) => bytes.to_vec(),
                        Segment::Zero(len) => vec![0; *len],
                    })
                    .collect();
                assert!(found == vec![(number % 251) as u8; LEN], "{number}");
            }
        }
    }
}

/// They were left where they were until the host sent something more.
#[tokio::test]
async fn commands_that_came_early_are_served_when_their_host_has_taken_answers_though_nothing_more_comes() {
    const READS: u32 = 24;
    let served = serve_volume(quick(), AtHand::volume()).await;
    let mut stream = log_in(served.address, 1).await;
    assert_eq!(test_unit_ready(&mut stream, 1).await, Some(2));
    for cmd_sn in (3..3 + READS).chain([2]) {
        let mut h = Header::new(op::COMMAND);
        h.0[1] = 0x81;
        h.set(16, cmd_sn).set(24, cmd_sn);
        if cmd_sn > 2 {
            // READ(10) of 1 MiB
            h.0[1] |= 0x40;
            h.set(20, 1 << 20);
            (h.0[32], h.0[39]) = (0x28, 8);
        }
        send(&mut stream, h, &[]).await;
    }
    let mut ended = Vec::new();
    while ended.len() <= READS as usize {
        let (h, _) = receive(&mut stream).await.expect("an answer");
        if h.opcode() == op::RESPONSE || h.0[1] & 1 != 0 {
            ended.push(h.itt());
        }
    }
    assert!(ended.iter().copied().eq(2..3 + READS), "{ended:?}");
}

#[tokio::test]
async fn a_host_that_logged_in_to_a_target_has_a_wide_window_and_who_only_discovers_has_not() {
    if !window::may_widen() {
        return;
    }
    let served = serve(quick()).await;
    let discovers = "InitiatorName=iqn.test\0SessionType=Discovery\0";
    let discovers = begin_session(1, served.address, 1, discovers).await.unwrap();
    let host = log_in(served.address, 2).await;
    let of = |client: &TcpStream| window::server_buffer(client.local_addr().unwrap());
    until("the window is open", || of(&host) > Some(1 << 20)).await;
    assert!(of(&discovers).is_some_and(|bytes| bytes < 1 << 20));
}
