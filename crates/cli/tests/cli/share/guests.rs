//! Changes under hosts that are logged in: whoever uses a disk is asked about before it becomes another or is taken away, is told
//! of what he has to know and of nothing else, and keeps his reservations.

use std::net::TcpListener;

use super::{LUNS_CHANGED, SERVE, TARGET, pool, portal, refused, urls, volume};
use crate::support::{
    ask,
    host::{CONFLICT, Host, WERO, action},
    port, served_as, wait_until,
    wire::{Iscsi, Nbd, Trouble, Wire as _},
};

/// What both hosts were told since they were asked last.
fn news(hosts: &mut [Host; 2]) -> Vec<(u8, u8)> {
    let [one, other] = hosts.each_mut().map(Host::settle);
    assert_eq!(one, other, "both are told the same");
    one
}

/// Guests were cut off without a question, as by nothing else.
#[test]
fn who_uses_a_disk_is_asked_about_before_it_is_offered_no_more() {
    let lab = pool();
    let _daemon = lab.serve(SERVE);
    let guest = Iscsi::open(portal(&lab, "tank/a"), "iqn.2026-11.io.millpond:tank:a", 1).unwrap();
    for line in [
        "share set offer=none tank",
        "share set offer=nbd tank/a",
        "zfs set volmode=none tank/a",
        "zfs set volmode=none tank",
        "zfs set org.millpond:offer=none tank",
    ] {
        let said = lab.run(line).fails(1);
        assert!(said.contains("1 client uses tank/a") && said.contains("'-f'"), "{line}: {said}");
        assert_eq!(urls(&lab, "tank/b").len(), 2, "{line}");
    }
    // What does not reach it, or takes nothing from it, is nobody's loss.
    lab.run("share set offer=iscsi tank/a").ok();
    lab.run("share set offer=none tank").ok();
    lab.run("zfs set volmode=none tank/b").ok();
    lab.run("zfs set volmode=dev tank/a").ok();
    lab.run("zfs set volmode=none tank").ok();
    assert!(lab.run("zfs inherit volmode tank/a").fails(1).contains("1 client uses tank/a"));
    lab.run("zfs inherit volmode tank").ok();
    lab.run("zfs inherit volmode tank/a").ok();
    assert!(lab.run("zfs inherit org.millpond:offer tank/a").fails(1).contains("1 client uses tank/a"));
    assert_eq!((urls(&lab, "tank/a").len(), urls(&lab, "tank/b").len()), (1, 0));
    assert!(lab.run("share set offer= tank/a").fails(1).contains("1 client uses tank/a"));
    drop(guest);
    wait_until(|| ask(&lab, "/v1/served")["iscsi_sessions"] == 0);
    lab.run("zfs set volmode=none tank/a").ok();
    assert_eq!(urls(&lab, "tank/a"), Vec::<String>::new());
    lab.run("zfs inherit volmode tank/a").ok();
    let _guest = Iscsi::open(portal(&lab, "tank/a"), "iqn.2026-11.io.millpond:tank:a", 1).unwrap();
    lab.run("zfs set -f volmode=none tank/a").ok();
    wait_until(|| ask(&lab, "/v1/served")["iscsi_sessions"] == 0);
}

/// `zfs set` and `zfs inherit` gave a disk another block size under its hosts, so that they wrote elsewhere, or took it away.
#[test]
fn what_share_asks_about_is_asked_about_when_it_is_set_as_a_property_too() {
    let lab = pool();
    let _daemon = lab.serve(SERVE);
    lab.run(&format!("share target create {TARGET}")).ok();
    lab.run(&format!("share lun add {TARGET} tank/a")).ok();
    let mut guest = Iscsi::open(portal(&lab, "tank/a"), TARGET, 1).unwrap();
    for (line, why) in [
        ("zfs set org.millpond:block=4096 tank/a", "cannot change its block size"),
        ("zfs set -f org.millpond:block=4096 tank", "cannot change its block size"),
        ("zfs inherit org.millpond:lun tank/a", "'-f'"),
        ("zfs inherit -r org.millpond:lun tank", "'-f'"),
    ] {
        let said = lab.run(line).fails(1);
        assert!(said.contains("1 client uses tank/a") && said.contains(why), "{line}: {said}");
        assert_eq!(guest.read(0, 512).unwrap(), [0; 512], "{line}");
    }
    // Whoever uses it or not.
    for (line, why, instead) in [
        ("zfs set org.millpond:write-cache=no tank", "neither on nor off", "millpond share set"),
        ("zfs set -f org.millpond:offer=everyone tank/b", "none of auto", "millpond share set"),
        ("zfs set org.millpond:lun=nonsense tank/b", "is not a target's name", "millpond share lun add"),
        ("zfs set org.millpond:chap=hunter2 tank", "a property of pools", "millpond share chap set"),
        ("zfs create -V 8M -o org.millpond:block=7 tank/c", "neither 512 nor 4096", "millpond share set"),
    ] {
        let said = lab.run(line).fails(1);
        assert!(said.contains(why) && said.contains(instead), "{line}: {said}");
    }
    assert_eq!(urls(&lab, "tank/b").len(), 2);
    // What does not reach it, or takes nothing from it, is nobody's loss.
    lab.run("zfs inherit org.millpond:lun tank").ok();
    lab.run("zfs set org.millpond:block=512 tank/a").ok();
    lab.run("zfs set org.millpond:block=4096 tank").ok();
    lab.run("zfs set org.millpond:write-cache=off tank").ok();
    // Its host finds none, and flushes no more.
    for line in [
        "zfs set org.millpond:write-cache=on tank/a",
        "zfs inherit org.millpond:write-cache tank",
        "share set write-cache= tank",
    ] {
        let said = lab.run(line).fails(1);
        assert!(said.contains("1 client uses tank/a and found no write cache"), "{line}: {said}");
    }
    assert_eq!(guest.read(0, 512).unwrap(), [0; 512]);
    let said = lab.run("zfs inherit -f org.millpond:block tank/a").fails(1);
    assert!(said.contains("disconnect them first"), "{said}");
    drop(guest);
    wait_until(|| ask(&lab, "/v1/served")["iscsi_sessions"] == 0);
    lab.run("zfs inherit org.millpond:block tank/a").ok();
    assert_eq!(volume(&lab, "tank/a")["block"], 4096);
    let mut guest = Iscsi::open(portal(&lab, "tank/a"), TARGET, 1).unwrap();
    assert_eq!(guest.block_size().unwrap(), 4096);
    lab.run("zfs inherit -f org.millpond:lun tank/a").ok();
    assert_eq!(urls(&lab, "tank/a").len(), 2);
}

#[test]
fn settings_change_under_hosts_and_whoever_was_fenced_stays_fenced() {
    let lab = pool();
    lab.run(&format!("share target create {TARGET}")).ok();
    lab.run(&format!("share lun add {TARGET} tank/a 0")).ok();
    lab.run("share set offer=nbd tank/a").ok();
    let daemon = lab.serve(SERVE);
    let url = daemon
        .urls("iscsi")
        .into_iter()
        .find(|url| url.ends_with(&format!("{TARGET}/0")))
        .unwrap()
        .to_owned();
    let mut hosts = [Host::at(&url, "one", 1), Host::at(&url, "two", 1)];
    let export = served_as(&lab, "tank/a", "nbd");
    let mut nbd = Nbd::open(port(&export), "tank/a").unwrap();
    // Nothing but the daemon's memory keeps this: no APTPL.
    assert_eq!(hosts[0].pr_out(action::REGISTER, 0, 0, 1, 0), 0);
    assert_eq!(hosts[0].pr_out(action::RESERVE, WERO, 1, 0, 0), 0);
    assert_eq!(hosts[1].write(0, 7), CONFLICT);
    news(&mut hosts);

    // Its export has a client, and its LUN stays: one of the two is counted.
    let said = lab.run("share set offer=none tank/a").fails(1);
    assert!(said.contains("1 client uses tank/a") && said.contains("'-f'"), "{said}");
    let (mode, inquiry) = ((0x2a, 0x01), (0x3f, 0x03));
    let mut nbd_lives = true;
    for (line, told) in [
        ("share set write-cache=off tank/a", vec![mode]),
        ("share set write-cache=off tank/a", vec![]),
        ("share set thin-threshold=1M tank/a", vec![mode]),
        ("share set thin-threshold=1M tank/a", vec![]),
        ("share set thin-threshold=none tank", vec![]),
        ("share set thin-threshold= tank/a", vec![mode]),
        ("share set -f write-cache= thin-threshold=1M tank/a", vec![mode]),
        ("share set thin-threshold=none tank/a", vec![mode]),
        ("share set write-cache=off tank", vec![mode]),
        ("zfs set readonly=on tank/a", vec![mode, inquiry]),
        ("zfs set readonly=off tank/a", vec![mode, inquiry]),
        ("zfs set volsize=16M tank/a", vec![(0x2a, 0x09)]),
        ("zfs set sync=always tank/a", vec![]),
        ("zfs set compression=off tank/a", vec![]),
        ("zfs snapshot tank/a@s", vec![]),
        ("share target set VMS --default on", vec![]),
        ("share access allow VMS --initiator iqn.2026-11.test:*", vec![]),
        ("share lun add VMS tank/b", vec![LUNS_CHANGED]),
        ("share set -f write-cache=on tank/b", vec![]),
        ("share lun remove VMS tank/b", vec![LUNS_CHANGED]),
        ("share set -f offer=none tank/a", vec![]),
    ] {
        nbd_lives &= !line.contains("offer");
        assert_eq!(lab.run(&line.replace("VMS", TARGET)).code, Some(0), "{line}");
        assert_eq!(news(&mut hosts), told, "{line}");
        assert_eq!(hosts[0].write(0, 7) == 0, !line.contains("readonly=on"), "{line}");
        assert_eq!(hosts[1].write(0, 7), CONFLICT, "{line}");
        assert_eq!(hosts[0].holder(), Some((1, WERO)), "{line}");
        match nbd_lives {
            true => assert!(nbd.read(0, 512).is_ok(), "{line}"),
            false => wait_until(|| nbd.read(0, 512).is_err()),
        }
    }
    assert!(lab.run("zfs rename tank/a tank/c").fails(1).contains("busy"));

    // While nobody is there it may have another name, and is the same disk.
    drop((hosts, nbd));
    wait_until(|| {
        let served = ask(&lab, "/v1/served");
        served["iscsi_sessions"] == 0 && served["nbd_connections"] == 0
    });
    lab.run("zfs rename tank/a tank/c").ok();
    assert_eq!(urls(&lab, "tank/c"), [format!("iscsi:{TARGET}/0")]);
    assert_eq!(Host::at(&url, "two", 1).write(0, 7), CONFLICT, "its fence is as it was");
    assert_eq!(Host::at(&url, "one", 1).write(0, 7), 0);
    assert_eq!(daemon.stop().code(), Some(0));
}

#[test]
fn portals_open_and_close_under_a_running_daemon() {
    let lab = pool();
    let mut daemon = lab.serve(SERVE);
    lab.run(&format!("share target create {TARGET}")).ok();
    lab.run(&format!("share lun add {TARGET} tank/a")).ok();
    let first = portal(&lab, "tank/a");
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    lab.run(&format!("share portal add --group 2 {free}")).ok();
    assert_eq!(lab.run("share portal list -H").ok(), format!("{free}\t2\ttank\tlistens\n"));
    assert_eq!(urls(&lab, "tank/a").len(), 2);
    drop(Iscsi::open(free.port(), TARGET, 1).unwrap());

    // A target that is to be reached by the second group only.
    lab.run(&format!("share target set {TARGET} --groups 2")).ok();
    assert!(refused(Iscsi::open(first, TARGET, 1)).contains("0x2/0x3"));
    let session = Iscsi::open(free.port(), TARGET, 1).unwrap();
    let seen = ask(&lab, "/v1/initiators");
    assert_eq!(
        (&seen["sessions"][0]["group"], &seen["sessions"][0]["portal"]),
        (&2.into(), &free.to_string().into())
    );
    // It would not have its reservations in another.
    let said = lab.run(&format!("share portal add --group 3 {free}")).fails(1);
    assert!(said.contains("1 initiators came in there in another portal group"), "{said}");
    assert_eq!(lab.run("share portal list -H").ok(), format!("{free}\t2\ttank\tlistens\n"));
    // Nor does another list of portals give it that, or a text that is none take its target away.
    let other = format!("org.millpond:portals=[{{\"address\":\"{free}\",\"group\":3}}]");
    let target = format!("org.millpond:target:{TARGET}");
    for (property, why) in [
        (other, "1 initiators came in there in another portal group"),
        (format!("{target}="), "1 initiators are logged in"),
        (format!("{target}={{"), "cannot be understood"),
        ("org.millpond:portals=192.0.2.1".to_owned(), "cannot be understood"),
    ] {
        let said = lab.run(&format!("zpool set {property} tank")).fails(1);
        assert!(said.contains(why) && said.contains("millpond share"), "{property}: {said}");
    }
    assert_eq!(lab.run("share portal list -H").ok(), format!("{free}\t2\ttank\tlistens\n"));
    drop(session);

    // One that somebody else has is told, and kept.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let said = lab.run(&format!("share portal add {address}"));
    assert!(said.code == Some(0) && said.stderr.contains("does not listen"), "{said:?}");
    lab.run(&format!("share portal remove {address}")).ok();

    daemon.signal("KILL");
    daemon.wait();
    let _daemon = lab.serve(SERVE);
    drop(Iscsi::open(free.port(), TARGET, 1).unwrap());
    lab.run(&format!("share portal remove {free}")).ok();
    wait_until(|| matches!(Iscsi::open(free.port(), TARGET, 1), Err(Trouble::Gone(_))));
}

/// What stood for its address went on to listen there in another group, and nobody was told: hosts came back without their
/// reservations.
#[test]
fn a_portal_gets_no_other_group_under_its_sessions_by_being_removed() {
    let lab = pool();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let _daemon = lab.serve(&format!("serve --nbd 127.0.0.1:0 --iscsi 0.0.0.0:{} tank", free.port()));
    lab.run(&format!("share target create {TARGET}")).ok();
    lab.run(&format!("share lun add {TARGET} tank/a")).ok();
    lab.run(&format!("share portal add --group 2 {free}")).ok();
    let session = Iscsi::open(free.port(), TARGET, 1).unwrap();
    let said = lab.run(&format!("share portal remove {free}")).fails(1);
    assert!(said.contains("1 initiators came in there in another portal group"), "{said}");
    lab.run(&format!("share portal remove -f {free}")).ok();
    drop(session);
}
