//! What hypervisor clusters do to a disk, over the wire, at a daemon with a real pool: the reservations by which Windows
//! failover clusters decide whose disk it is, kept through SIGKILL and through the pool's way to another server; the
//! locks, copies, zeroing and freeing of ESXi; and what all of them are told when the room runs short.
//!
//! Hosts here are sessions that say exactly what they are told (`support/host.rs`), because stock clients neither pick
//! their ISIDs nor come back after a crash under the same ones.
//! Facts: SPC-4 §5.13, SBC-3 §5, docs/targets.md.

use std::{
    collections::BTreeSet,
    sync::{
        Barrier,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use crate::support::host::{ABORTED, APTPL, CONFLICT, Host, WERO, action, number};
use crate::support::{Daemon, Lab, ask, served_as, wait_until};

const SERVE: &str = "serve --iscsi 127.0.0.1:0 tank";
/// A pool with thin volumes of these sizes.
fn pool(size: &str, volumes: &[(&str, &str)]) -> Lab {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    lab.run(&format!("zpool create --size {size} tank mirror {here}/a {here}/b")).ok();
    for (name, size) in volumes {
        lab.run(&format!("zfs create -s -V {size} -b 16K tank/{name}")).ok();
    }
    lab
}

fn kill(mut daemon: Daemon) {
    daemon.signal("KILL");
    daemon.wait();
}

/// It stood for the blocks of before still, and brought those of after.
#[test]
fn a_token_of_a_disk_that_was_rolled_back_stands_for_nothing() {
    let lab = pool("256M", &[("vm", "64M")]);
    let daemon = lab.serve(SERVE);
    let url = served_as(&lab, "tank/vm", "iscsi");
    lab.run("zfs snapshot tank/vm@before").ok();
    let range = [0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0];
    let command = |action: u8, list: &[u8]| {
        let [high, low] = (list.len() as u16).to_be_bytes();
        [0x83, action, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, high, low, 0, 0]
    };
    let mut host = Host::at(&url, "hyperv", 1);
    assert_eq!(host.write(0, 7), 0);
    let populate = [[0; 14].as_slice(), &range].concat();
    host.good(&command(0x10, &populate), &populate, 0);
    let info = host.good(&[0x84, 7, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0], &[], 1024);
    drop(host);
    wait_until(|| ask(&lab, "/v1/served")["iscsi_sessions"] == 0);
    lab.run("zfs rollback tank/vm@before").ok();
    let mut host = Host::at(&url, "hyperv", 1);
    let paste = [[0; 16].as_slice(), &info[38..550], &[0; 6], &range].concat();
    let said = host.say(&command(0x11, &paste), &paste, 0);
    assert_eq!((said.status, said.sense), (2, (5, 0x23, 6)), "revoked");
    assert_eq!(daemon.stop().code(), Some(0));
}

/// Sees that nodes 1 and 2 are registered and node 1 has the disk, and nobody else writes to it.
fn check_kept(url: &str, what: &str) -> (Host, Host) {
    let (mut one, mut two) = (Host::at(url, "node1", 1), Host::at(url, "node2", 1));
    let mut stranger = Host::at(url, "node3", 1);
    let registered = |host: &mut Host| host.keys().into_iter().collect::<BTreeSet<_>>();
    assert_eq!(registered(&mut stranger), [0x11, 0x22].into(), "{what}: READ KEYS");
    assert_eq!(stranger.holder(), Some((0x11, WERO)), "{what}: READ RESERVATION");
    let port = |node: &str| format!("iqn.2026-11.test:{node},i,0x800000000001");
    assert_eq!(
        stranger.full_status(),
        [(port("node1"), 0x11, Some(WERO)), (port("node2"), 0x22, None)],
        "{what}: READ FULL STATUS"
    );
    let capabilities = stranger.pr_in(2);
    assert_eq!((capabilities[2] & 1, capabilities[3] & 1), (1, 1), "{what}: can keep, and does");
    assert_eq!(stranger.write(1, 3), CONFLICT, "{what}: a stranger is fenced");
    assert_eq!(stranger.read(1, 1).status, 0, "{what}: and may read");
    // Another path of the holder's is another nexus, which has not registered.
    assert_eq!(Host::at(url, "node1", 2).write(1, 3), CONFLICT, "{what}: another port of the holder's");
    assert_eq!((one.write(1, 1), two.write(2, 2)), (0, 0), "{what}: whoever registered writes");
    (one, two)
}

#[test]
fn reservations_outlive_a_daemon_that_is_killed_and_go_with_the_pool() {
    let lab = pool("256M", &[("csv", "64M"), ("other", "64M")]);
    let daemon = lab.serve(SERVE);
    let url = served_as(&lab, "tank/csv", "iscsi");
    let (mut one, mut two) = (Host::at(&url, "node1", 1), Host::at(&url, "node2", 1));
    for (host, key) in [(&mut one, 0x11), (&mut two, 0x22)] {
        assert_eq!(host.pr_out(action::REGISTER_AND_IGNORE, 0, 0, key, APTPL), 0);
    }
    let before = Instant::now();
    assert_eq!(one.pr_out(action::RESERVE, WERO, 0x11, 0, 0), 0);
    assert!(
        before.elapsed() < Duration::from_secs(4),
        "it does not wait for the time of a transaction group"
    );
    kill(daemon);

    let daemon = lab.serve(SERVE);
    let url = served_as(&lab, "tank/csv", "iscsi");
    // Before anybody is there.
    let seen = ask(&lab, "/v1/initiators");
    let absent = seen["absent"].as_array().unwrap().iter();
    let absent: Vec<_> = absent.map(|one| (one["port"].as_str(), one["holds"].as_str())).collect();
    assert_eq!(
        absent,
        [
            (Some("iqn.2026-11.test:node1,i,0x800000000001"), Some("write exclusive, registrants only")),
            (Some("iqn.2026-11.test:node2,i,0x800000000001"), None)
        ]
    );
    check_kept(&url, "killed");
    let mut other = Host::at(&served_as(&lab, "tank/other", "iscsi"), "node1", 1);
    assert_eq!((other.keys(), other.holder()), (vec![], None), "the disk beside it");
    // What the volume is called and what it held before are nothing to its reservations.
    lab.run("zfs snapshot tank/csv@before").ok();
    lab.run("zfs rollback tank/csv@before").ok();
    check_kept(&served_as(&lab, "tank/csv", "iscsi"), "rolled back");
    assert_eq!(daemon.stop().code(), Some(0));
    lab.run("zfs rename tank/csv tank/renamed").ok();
    lab.run("zfs clone tank/renamed@before tank/clone").ok();
    let shown = lab.run("zfs get -H -o property all tank/renamed").ok();
    assert!(!shown.contains("millpond"), "{shown}");
    lab.run("zpool export tank").ok();
    fixtures::zdb_check(&[], lab.cwd(), "tank").unwrap();

    // Another server, that has heard of nothing.
    let there = Lab::at(lab.cwd());
    there.run("zpool import -d . tank").ok();
    let daemon = there.serve(SERVE);
    let (one, mut two) = check_kept(&served_as(&there, "tank/renamed", "iscsi"), "imported elsewhere");
    let mut clone = Host::at(&served_as(&there, "tank/clone", "iscsi"), "node1", 1);
    assert_eq!((clone.keys(), clone.holder()), (vec![], None), "a clone");
    // Node 1 loses the disk; the moment it is answered, nothing may give it back.
    drop(one);
    assert_eq!(two.pr_out(action::PREEMPT, WERO, 0x22, 0x11, 0), 0);
    kill(daemon);
    let daemon = there.serve(SERVE);
    let url = served_as(&there, "tank/renamed", "iscsi");
    let (mut one, mut two) = (Host::at(&url, "node1", 1), Host::at(&url, "node2", 1));
    assert_eq!((one.keys(), one.holder()), (vec![0x22], Some((0x22, WERO))));
    assert_eq!((one.write(1, 1), two.write(1, 1)), (CONFLICT, 0));
    // And what is given up stays given up.
    assert_eq!(two.pr_out(action::CLEAR, 0, 0x22, 0, 0), 0);
    kill(daemon);
    let daemon = there.serve(SERVE);
    let mut one = Host::at(&served_as(&there, "tank/renamed", "iscsi"), "node1", 1);
    assert_eq!((one.keys(), one.holder(), one.write(1, 1)), (vec![], None, 0));
    assert_eq!(daemon.stop().code(), Some(0));
    there.run("zpool export tank").ok();
    fixtures::zdb_check(&[], lab.cwd(), "tank").unwrap();
}

/// Disk arbitration: an owner defends, a challenger waits, breaks the reservation of an owner that is dead, and keeps one
/// away that only seemed so. Then the sequence of the SCSI-3 validation, from every node.
fn arbitration(url: &str) {
    let (mut owner, mut challenger) = (Host::at(url, "node1", 1), Host::at(url, "node2", 1));
    assert_eq!(owner.pr_out(action::RESERVE, WERO, 0x11, 0, 0), CONFLICT, "not registered");
    assert_eq!(owner.pr_out(action::REGISTER, 0, 0, 0x11, APTPL), 0);
    assert_eq!(owner.pr_out(action::REGISTER, 0, 0, 0x12, 0), CONFLICT, "registered under another key");
    assert_eq!(owner.pr_out(action::RESERVE, WERO, 0x11, 0, 0), 0);
    assert_eq!(owner.pr_out(action::RESERVE, WERO, 0x11, 0, 0), 0, "as it is");
    assert_eq!(owner.pr_out(action::RESERVE, 1, 0x11, 0, 0), CONFLICT, "of another type");

    assert_eq!(challenger.pr_out(action::RESERVE, WERO, 0, 0, 0), CONFLICT);
    assert_eq!(challenger.pr_out(action::REGISTER_AND_IGNORE, 0, 0, 0x22, APTPL), 0);
    assert_eq!(challenger.pr_out(action::RESERVE, WERO, 0x22, 0, 0), CONFLICT, "it is taken");
    assert_eq!(challenger.pr_out(action::RELEASE, WERO, 0x22, 0, 0), 0, "not its own: nothing happens");
    let generation = |host: &mut Host| u32::from_be_bytes(host.pr_in(0)[..4].try_into().unwrap());
    // The owner shows that it lives by registering anew; the challenger sees it and goes.
    let seen = generation(&mut challenger);
    assert_eq!(owner.pr_out(action::REGISTER, 0, 0x11, 0x11, APTPL), 0);
    assert_ne!(generation(&mut challenger), seen);
    assert_eq!(challenger.holder(), Some((0x11, WERO)));

    // The owner is silent.
    owner.settle();
    assert_eq!(challenger.pr_out(action::PREEMPT, WERO, 0x22, 0x33, 0), CONFLICT, "nobody has this key");
    assert_eq!(challenger.pr_out(action::PREEMPT, WERO, 0x22, 0x11, 0), 0);
    assert_eq!((challenger.keys(), challenger.holder()), (vec![0x22], Some((0x22, WERO))));
    assert_eq!(challenger.settle(), [], "who acts is not told");
    assert_eq!(owner.settle(), [(0x2a, 5)], "registrations preempted");
    assert_eq!((owner.write(1, 1), challenger.write(1, 2)), (CONFLICT, 0));
    assert_eq!(owner.pr_out(action::RESERVE, WERO, 0x11, 0, 0), CONFLICT);
    assert_eq!(owner.pr_out(action::PREEMPT, WERO, 0x11, 0x22, 0), CONFLICT, "it has no registration");

    // It joins again, and both write: a cluster shared volume.
    assert_eq!(owner.pr_out(action::REGISTER_AND_IGNORE, 0, 0, 0x11, APTPL), 0);
    assert_eq!((owner.write(1, 1), challenger.write(2, 2)), (0, 0));
    assert_eq!(challenger.pr_out(action::RELEASE, 1, 0x22, 0, 0), 2, "of another type");
    assert_eq!(challenger.pr_out(action::RELEASE, WERO, 0x22, 0, 0), 0);
    assert_eq!((owner.settle(), challenger.settle()), (vec![(0x2a, 4)], vec![]), "reservations released");
    assert_eq!((owner.holder(), owner.keys().len()), (None, 2));
    assert_eq!(owner.pr_out(action::CLEAR, 0, 0x11, 0, 0), 0);
    assert_eq!((owner.settle(), challenger.settle()), (vec![], vec![(0x2a, 3)]), "reservations preempted");
    assert!(owner.keys().is_empty());
    assert_eq!(owner.pr_out(action::CLEAR, 0, 0x11, 0, 0), CONFLICT);
}

/// An owner that writes as fast as it can is thrown off: from the answer on, no block changes.
fn abort_under_load(url: &str) {
    let stop = AtomicBool::new(false);
    let written = AtomicU64::new(0);
    let mut challenger = Host::at(url, "node2", 1);
    assert_eq!(challenger.pr_out(action::REGISTER_AND_IGNORE, 0, 0, 0x22, APTPL), 0);
    let mut first = Host::at(url, "node1", 1);
    assert_eq!(first.pr_out(action::REGISTER_AND_IGNORE, 0, 0, 0x11, APTPL), 0);
    assert_eq!(first.pr_out(action::RESERVE, WERO, 0x11, 0, 0), 0);
    thread::scope(|scope| {
        // One of the owner's paths is registered and holds the disk; it writes until it is thrown off.
        let owner = scope.spawn(|| {
            let (mut turn, mut is_aborted) = (0_u64, false);
            while !stop.load(SeqCst) {
                turn += 1;
                let block = [turn as u8; 512].repeat(64);
                match first.put(1024 + turn % 8 * 64, &block).status {
                    0 if !is_aborted => written.store(turn, SeqCst),
                    // One that was let in before, and had not begun (SAM-5 §5.3.1).
                    ABORTED if !is_aborted => is_aborted = true,
                    CONFLICT => return true,
                    status => panic!("status {status:#x}"),
                }
            }
            false
        });
        while written.load(SeqCst) < 40 {
            assert!(!owner.is_finished(), "it was stopped too early");
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(challenger.pr_out(action::PREEMPT_AND_ABORT, WERO, 0x22, 0x11, 0), 0);
        let now = challenger.read(1024, 512).data;
        thread::sleep(Duration::from_millis(100));
        assert!(challenger.read(1024, 512).data == now, "a write of the preempted landed after the answer");
        for block in now.chunks(64 * 512) {
            assert!(block.iter().all(|byte| *byte == block[0]), "a torn write");
        }
        assert!(owner.join().unwrap(), "it is told with its next write");
        stop.store(true, SeqCst);
    });
    assert_eq!(challenger.pr_out(action::CLEAR, 0, 0x22, 0, 0), 0);
}

/// All nodes take the disk at the same moment, again and again: one has it, and all agree who.
fn simultaneous_failover(url: &str) {
    const NODES: u64 = 4;
    const ROUNDS: usize = 6;
    let start = Barrier::new(NODES as usize);
    let mut nodes: Vec<Host> = (1..=NODES).map(|n| Host::at(url, &format!("node{n}"), 1)).collect();
    assert_eq!(nodes[0].pr_out(action::REGISTER, 0, 0, 1, APTPL), 0);
    assert_eq!(nodes[0].pr_out(action::RESERVE, WERO, 1, 0, 0), 0);
    for round in 0..ROUNDS {
        let taken: Vec<bool> = thread::scope(|scope| {
            let takers: Vec<_> = (1..=NODES)
                .zip(&mut nodes)
                .map(|(key, node)| {
                    let start = &start;
                    scope.spawn(move || {
                        assert_eq!(node.pr_out(action::REGISTER_AND_IGNORE, 0, 0, key, APTPL), 0);
                        let (holder, _) = node.holder().unwrap();
                        start.wait();
                        holder != key && node.pr_out(action::PREEMPT, WERO, key, holder, 0) == 0
                    })
                })
                .collect();
            takers.into_iter().map(|taker| taker.join().unwrap()).collect()
        });
        assert!(taken.contains(&true), "round {round}: nobody took it: {taken:?}");
        let held: BTreeSet<_> = nodes.iter_mut().map(|node| node.holder().unwrap()).collect();
        assert_eq!(held.len(), 1, "round {round}: {held:?}");
        let (holder, kind) = held.into_iter().next().unwrap();
        let keys: BTreeSet<u64> = nodes[0].keys().into_iter().collect();
        assert!(kind == WERO && keys.contains(&holder) && taken[holder as usize - 1], "round {round}");
        for (key, node) in (1..=NODES).zip(&mut nodes) {
            let expected = if keys.contains(&key) { 0 } else { CONFLICT };
            assert_eq!(node.write(8, key as u8), expected, "round {round}: node {key}, {keys:?}");
        }
    }
    let (holder, _) = nodes[0].holder().unwrap();
    assert_eq!(nodes[holder as usize - 1].pr_out(action::CLEAR, 0, holder, 0, 0), 0);
}

/// ATS: hosts take a lock and beat their hearts in one block each, and no beat is lost.
fn heartbeats(url: &str) {
    const BEATS: u64 = 25;
    let hosts = ["esx1", "esx2", "esx3"];
    let block = |count: u64| {
        let mut block = [0x5a; 512];
        block[500..508].copy_from_slice(&count.to_be_bytes());
        block
    };
    Host::at(url, "esx1", 1).put(200, &block(0));
    let misses: u64 = thread::scope(|scope| {
        let beating = hosts.map(|name| {
            scope.spawn(move || {
                let mut host = Host::at(url, name, 1);
                let (mut done, mut missed, mut known) = (0, 0, 0);
                while done < BEATS {
                    let said = host.compare_and_write(200, &block(known), &block(known + 1));
                    match (said.status, said.sense) {
                        (0, _) => (done, known) = (done + 1, known + 1),
                        (2, (0x0e, 0x1d, 0)) => {
                            missed += 1;
                            assert_eq!(said.bytes[0] & 0x80, 0x80, "it says where: {said:x?}");
                            let at = u32::from_be_bytes(said.bytes[3..7].try_into().unwrap());
                            assert!((500..508).contains(&at), "the first difference is at {at}");
                            known = number(&host.read(200, 1).data[500..]);
                        }
                        _ => panic!("{said:x?}"),
                    }
                }
                missed
            })
        });
        beating.into_iter().map(|host| host.join().unwrap()).sum()
    });
    let count = number(&Host::at(url, "esx1", 1).read(200, 1).data[500..]);
    assert_eq!(count, BEATS * hosts.len() as u64, "{misses} misses, and every beat counts once");
    let said = Host::at(url, "esx1", 1).compare_and_write(200, &[0; 512], &[1; 512]);
    assert_eq!((said.status, said.sense), (2, (0x0e, 0x1d, 0)));
}

fn used(lab: &Lab, dataset: &str) -> u64 {
    lab.run(&format!("zfs get -Hp -o value used {dataset}")).ok().trim().parse().unwrap()
}

/// VAAI's full copy, block zeroing and space reclamation.
fn vaai(lab: &Lab, from: &str, to: &str) {
    const MIB: u64 = 2048;
    let (mut source, mut target) = (Host::at(from, "esx1", 1), Host::at(to, "esx1", 1));
    // What makes a host use them at all.
    assert_eq!(source.good(&[0x12, 0, 0, 0, 96, 0], &[], 96)[5] & 0x08, 0x08, "third-party copy");
    let limits = source.good(&[0x12, 1, 0xb0, 0, 64, 0], &[], 64);
    assert!(limits[5] >= 1, "COMPARE AND WRITE");
    assert_eq!(limits[28..32], 32_u32.to_be_bytes(), "UNMAP granularity: a volume block");
    let thin = source.good(&[0x12, 1, 0xb2, 0, 64, 0], &[], 64);
    assert_eq!((thin[5] & 0xe4, thin[6] & 7), (0xe4, 2), "UNMAP, WRITE SAME, reads zeroes, thin");

    // Eight MiB of which the second half is a hole, in segments of one MiB, as a clone of a virtual machine.
    let data: Vec<u8> = (0..4 << 20_u32).map(|n| (n / 512 * 7 + n % 251) as u8).collect();
    for (n, part) in (0..).zip(data.chunks(32 << 10)) {
        assert_eq!(source.put(n * 64, part).status, 0);
    }
    assert_eq!(target.put(9 * MIB, &[9; 512]).status, 0);
    let mut list = vec![1, 0, 0, 64, 0, 0, 0, 0, 0, 0, 0, 28 * 8, 0, 0, 0, 0];
    for naa in [source.naa(), target.naa()] {
        list.extend([0xe4, 0, 0, 0, 1, 3, 0, 16]);
        list.extend(naa);
        list.extend([0, 0, 0, 0, 0, 0, 2, 0]);
    }
    for segment in 0..8_u64 {
        list.extend([2, 0, 0, 24, 0, 0, 0, 1, 0, 0]);
        list.extend((MIB as u16).to_be_bytes());
        list.extend((segment * MIB).to_be_bytes());
        list.extend((2 * MIB + segment * MIB).to_be_bytes());
    }
    let mut cdb = [0; 16];
    cdb[0] = 0x83;
    cdb[10..14].copy_from_slice(&(list.len() as u32).to_be_bytes());
    source.good(&cdb, &list, 0);
    for (n, part) in (0..).zip(data.chunks(32 << 10)) {
        assert!(target.read(2 * MIB as u32 + n * 64, 64).data == part, "copied at {n}");
    }
    assert!(target.read(6 * MIB as u32, 256).data.iter().all(|byte| *byte == 0));
    assert!(target.lba_status(6 * MIB).0, "a hole stays a hole");
    assert_eq!(target.read(9 * MIB as u32 + 1, 1).data, [0; 512]);

    // Zeroed, a MiB each, and freed with that.
    lab.run("zpool sync tank").ok();
    let full = used(lab, "tank/b");
    for lba in [2 * MIB, 3 * MIB] {
        let mut cdb = [0; 16];
        cdb[0] = 0x93;
        cdb[2..10].copy_from_slice(&lba.to_be_bytes());
        cdb[10..14].copy_from_slice(&(MIB as u32).to_be_bytes());
        target.good(&cdb, &[0; 512], 0);
        assert!(target.lba_status(lba).0);
    }
    assert!(target.read(3 * MIB as u32, 256).data.iter().all(|byte| *byte == 0));
    assert!(target.read(4 * MIB as u32, 256).data == data[2 << 20..][..128 << 10], "and no more than that");
    // What a guest deleted.
    let mut list = vec![0, 38, 0, 32, 0, 0, 0, 0];
    for lba in [4 * MIB, 5 * MIB] {
        list.extend(lba.to_be_bytes());
        list.extend((MIB as u32).to_be_bytes());
        list.extend([0; 4]);
    }
    target.good(&[0x42, 0, 0, 0, 0, 0, 0, 0, list.len() as u8, 0], &list, 0);
    assert!(target.lba_status(4 * MIB).0);
    target.good(&[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[], 0);
    lab.run("zpool sync tank").ok();
    let freed = full - used(lab, "tank/b");
    assert!(freed > full / 2, "{freed} of {full} bytes came back");
}

#[test]
fn windows_and_esxi_find_what_their_clusters_stand_on() {
    let lab = pool("384M", &[("csv", "64M"), ("a", "64M"), ("b", "64M")]);
    let daemon = lab.serve(SERVE);
    let url = |name: &str| served_as(&lab, &format!("tank/{name}"), "iscsi");
    let csv = url("csv");
    arbitration(&csv);
    abort_under_load(&csv);
    simultaneous_failover(&csv);
    heartbeats(&csv);
    vaai(&lab, &url("a"), &url("b"));
    assert_eq!(daemon.stop().code(), Some(0));
    lab.run("zpool export tank").ok();
    fixtures::zdb_check(&[], lab.cwd(), "tank").unwrap();
}

#[test]
fn hosts_are_warned_before_the_room_ends_and_told_when_it_has() {
    let lab = pool("192M", &[("thin", "256M")]);
    let daemon = lab.serve(SERVE);
    let mut host = Host::at(&served_as(&lab, "tank/thin", "iscsi"), "esx1", 1);
    // Log page 0Ch: MiB that are left, and MiB in use.
    let room = |host: &mut Host| {
        let page = host.good(&[0x4d, 0, 0x4c, 0, 0, 0, 0, 1, 0, 0], &[], 256);
        [8, 20].map(|at| u32::from_be_bytes(page[at..at + 4].try_into().unwrap()))
    };
    let [available, in_use] = room(&mut host);
    assert!((70..120).contains(&available) && in_use == 0, "{available} MiB, {in_use} in use");
    let mut random = 1_u64;
    let mut noise = || {
        let mut block = vec![0; 32 << 10];
        block.chunks_exact_mut(8).for_each(|word| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            word.copy_from_slice(&(random ^ random >> 29).to_le_bytes());
        });
        block
    };
    let mut lba = 0;
    let mut write = |host: &mut Host| {
        let said = host.put(lba, &noise());
        lba += 64;
        said
    };
    // What was promised counts in full until it is written, so the room comes and goes while it is filled.
    let begun = Instant::now();
    while !host.settle().contains(&(0x38, 7)) {
        assert!(begun.elapsed() < Duration::from_secs(60), "never warned");
        if room(&mut host)[0] > 20 {
            assert_eq!(write(&mut host).status, 0);
        } else {
            thread::sleep(Duration::from_millis(50));
        }
    }
    let refused = loop {
        let said = write(&mut host);
        if said.status != 0 {
            break said;
        }
    };
    assert_eq!((refused.status, refused.sense), (2, (7, 0x27, 7)), "no room");
    assert!(room(&mut host)[0] < 8, "{:?}", room(&mut host));
    assert_eq!(host.read(0, 256).status, 0, "reads go on");
    // What is freed can be had again.
    let mut list = vec![0, 22, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    list.extend((64 * 2048_u32).to_be_bytes());
    list.extend([0; 4]);
    host.good(&[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], &list, 0);
    let begun = Instant::now();
    while write(&mut host).status != 0 {
        assert!(begun.elapsed() < Duration::from_secs(30), "there is still no room");
        thread::sleep(Duration::from_millis(200));
    }
    drop(host);
    assert!(ask(&lab, "/v1/served")["iscsi_sessions"].is_number());
    assert_eq!(daemon.stop().code(), Some(0));
    lab.run("zpool export tank").ok();
    fixtures::zdb_check(&[], lab.cwd(), "tank").unwrap();
}
