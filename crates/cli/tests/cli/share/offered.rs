//! What is offered, as LUNs and besides them, and to whom it is when it is a LUN no more: never to more than before, unless that is
//! said.

use super::{SERVE, TARGET, pool, portal, told, urls, volume};
use crate::support::{ask, wait_until, wire::Iscsi};

#[test]
fn what_is_offered_besides_luns_can_be_chosen() {
    let lab = pool();
    lab.run("zfs snapshot tank/a@s").ok();
    let _daemon = lab.serve(SERVE);
    let own = |name: &str| format!("iscsi:iqn.2026-11.io.millpond:tank:{name}/0");
    for (offer, expected) in [
        ("iscsi", vec![own("a")]),
        ("nbd", vec!["nbd:tank/a".to_owned()]),
        ("none", vec![]),
        ("auto", vec!["nbd:tank/a".to_owned(), own("a")]),
    ] {
        lab.run(&format!("share set offer={offer} tank/a")).ok();
        assert_eq!(urls(&lab, "tank/a"), expected, "{offer}");
        assert_eq!(urls(&lab, "tank/a@s").len(), expected.len(), "{offer}");
    }
    // For all of a pool; and nothing but its LUNs is left.
    lab.run("share set offer= tank/a").ok();
    lab.run("share set offer=none tank").ok();
    assert_eq!((urls(&lab, "tank/a"), urls(&lab, "tank/b")), (vec![], vec![]));
    lab.run(&format!("share target create {TARGET}")).ok();
    lab.run(&format!("share lun add {TARGET} tank/a")).ok();
    assert_eq!(urls(&lab, "tank/a"), [format!("iscsi:{TARGET}/0")]);
    lab.run("share set offer=all tank/a").ok();
    assert_eq!(urls(&lab, "tank/a"), ["nbd:tank/a".to_owned(), format!("iscsi:{TARGET}/0")]);

    let at = portal(&lab, "tank/a");
    assert_eq!(Iscsi::open(at, TARGET, 1).unwrap().block_size().unwrap(), 512);
    wait_until(|| ask(&lab, "/v1/initiators")["sessions"].as_array().unwrap().is_empty());
    lab.run("share set block=4096 tank/a").ok();
    assert_eq!(Iscsi::open(at, TARGET, 1).unwrap().block_size().unwrap(), 4096);
    for (line, word) in [
        ("share set offer=everyone tank/a", "none of auto"),
        ("share set size=1 tank/a", "the options are"),
        ("share set block=513 tank/a", "neither 512"),
        ("share target create vms", "for example"),
        ("share target create iqn.2026-11.io.millpond:tank:b", "tank/b"),
        ("share lun add iqn.2026-11.com.example:no tank/b", "target create"),
        ("share lun add iqn.2026-11.com.example:vms tank", "only volumes"),
        ("share lun add iqn.2026-11.com.example:vms tank/a 3", "lun remove"),
        ("share lun add iqn.2026-11.com.example:vms tank/b 0", "is tank/a"),
        ("share access allow iqn.2026-11.com.example:vms --network 10.0.0.0/99", "network"),
        ("share access allow iqn.2026-11.com.example:vms", "--initiator"),
    ] {
        let said = lab.run(line).fails(1);
        assert!(said.contains(word), "{line}: {said}");
    }
    let said = lab.run(&format!("share lun add {TARGET} tank/b 16384")).fails(2);
    assert!(said.contains("16384 is not in 0..=16383"), "{said}");
    let short = told(&lab, &format!("share chap set {TARGET} --user u"), "short\n").fails(1);
    assert!(short.contains("12 to 255") && !short.contains("short"), "{short}");
}

/// Whoever reached the server could write to a volume, and read its snapshots, once it was no LUN of a target for some only.
#[test]
fn a_lun_that_is_taken_away_is_not_open_to_everybody_unless_it_was() {
    let lab = pool();
    lab.run("zfs snapshot tank/a@s").ok();
    let _daemon = lab.serve(SERVE);
    lab.run(&format!("share target create {TARGET}")).ok();
    for disk in ["tank/a", "tank/b"] {
        lab.run(&format!("share lun add {TARGET} {disk}")).ok();
    }
    // Open it was.
    let said = lab.run(&format!("share lun remove {TARGET} tank/b"));
    assert!(said.code == Some(0) && said.stderr.contains("to everybody now"), "{said:?}");
    assert!(said.stderr.contains("'millpond share set offer=none tank/b'"), "{said:?}");
    assert_eq!(urls(&lab, "tank/b").len(), 2);
    lab.run(&format!("share access allow {TARGET} --initiator iqn.2026-11.test:client1")).ok();
    let said = lab.run(&format!("share lun remove {TARGET} tank/a"));
    assert!(said.code == Some(0) && said.stderr.contains("to nobody now"), "{said:?}");
    for name in ["tank/a", "tank/a@s"] {
        assert_eq!(urls(&lab, name), Vec::<String>::new(), "{name}");
    }
    // It can be a LUN again, and be opened as was said.
    lab.run(&format!("share lun add {TARGET} tank/a")).ok();
    assert_eq!(urls(&lab, "tank/a"), [format!("iscsi:{TARGET}/0")]);
    let said = lab.run(&format!("share target destroy {TARGET}"));
    assert!(said.code == Some(0) && said.stderr.contains("to nobody now"), "{said:?}");
    assert_eq!(urls(&lab, "tank/a"), Vec::<String>::new());
    lab.run("share set offer= tank/a").ok();
    assert_eq!((urls(&lab, "tank/a").len(), urls(&lab, "tank/a@s").len()), (2, 2));
}

/// The door that `share lun remove` closes stood open when the property went by its name.
#[test]
fn a_lun_that_is_inherited_away_is_not_open_to_everybody_either() {
    let lab = pool();
    let _daemon = lab.serve(SERVE);
    lab.run(&format!("share target create {TARGET}")).ok();
    lab.run(&format!("share lun add {TARGET} tank/b")).ok();
    // Open it was.
    lab.run("zfs inherit org.millpond:lun tank/b").ok();
    assert_eq!(urls(&lab, "tank/b").len(), 2);
    lab.run(&format!("share access allow {TARGET} --initiator iqn.2026-11.test:client1")).ok();
    lab.run(&format!("share lun add {TARGET} tank/a")).ok();
    let said = lab.run("zfs inherit -r org.millpond:lun tank");
    assert!(said.code == Some(0) && said.stderr.contains("tank/a is offered to nobody"), "{said:?}");
    assert_eq!((urls(&lab, "tank/a").len(), urls(&lab, "tank/b").len()), (0, 2));
    lab.run("share set offer= tank/a").ok();
    assert_eq!(urls(&lab, "tank/a").len(), 2);
}

/// It was accepted, shown, and the volume was offered all the same.
#[test]
fn a_volume_with_volmode_none_is_offered_only_as_a_lun() {
    let lab = pool();
    lab.run("zfs snapshot tank/a@s").ok();
    lab.run("zfs create -s -V 8M -o volmode=none tank/c").ok();
    let _daemon = lab.serve(SERVE);
    assert_eq!(urls(&lab, "tank/c"), Vec::<String>::new());
    lab.run("zfs set volmode=none tank").ok();
    for name in ["tank/a", "tank/a@s", "tank/b"] {
        assert_eq!(urls(&lab, name), Vec::<String>::new(), "{name}");
    }
    assert_eq!(volume(&lab, "tank/a")["offer"], "none");
    lab.run(&format!("share target create {TARGET}")).ok();
    lab.run(&format!("share lun add {TARGET} tank/a")).ok();
    assert_eq!(urls(&lab, "tank/a"), [format!("iscsi:{TARGET}/0")]);
    lab.run("zfs inherit volmode tank").ok();
    assert_eq!((urls(&lab, "tank/b").len(), urls(&lab, "tank/c").len()), (2, 0));
    // Limits that nobody would keep are refused.
    for property in ["snapshot_limit", "filesystem_limit"] {
        let said = lab.run(&format!("zfs set {property}=1 tank")).fails(1);
        assert!(said.contains("not supported by this version"), "{said}");
        lab.run(&format!("zfs set {property}=none tank")).ok();
    }
    lab.run("zfs create -o snapshot_limit=1 tank/fs").fails(1);
}

/// They were warnings, with exit code 0, and some were noted in the pool's history as if something had been done.
#[test]
fn what_is_not_there_cannot_be_taken_away_and_what_is_there_not_be_created() {
    let lab = pool();
    lab.run(&format!("share target create {TARGET}")).ok();
    lab.run(&format!("share lun add {TARGET} tank/a")).ok();
    let history = lab.run("zpool history tank").ok();
    assert!(history.contains(&format!(" millpond share lun add {TARGET} tank/a\n")), "{history}");
    let upper = TARGET.to_uppercase();
    for (line, code, says) in [
        (format!("share target create {TARGET}"), 1, "cannot create target"),
        (format!("share target create {upper}"), 1, "has it already"),
        ("share target destroy iqn.a:none".to_owned(), 1, "no such target"),
        (format!("share target set {TARGET}"), 2, "--groups"),
        (format!("share lun remove {TARGET} tank/b"), 1, "no such LUN"),
        (format!("share lun remove {TARGET} 7"), 1, "no such LUN"),
        ("share portal remove 192.0.2.1".to_owned(), 1, "no such portal"),
        (format!("share access deny {TARGET} --initiator iqn.b:x"), 1, "every initiator is allowed"),
        (format!("share chap clear {TARGET}"), 1, "there is no credential"),
        (format!("share chap clear {TARGET} --user eve"), 1, "there is no credential for 'eve'"),
    ] {
        let said = lab.run(&line).fails(code);
        assert!(said.contains(says), "{line}: {said}");
    }
    assert_eq!(lab.run("zpool history tank").ok(), history);
    lab.run(&format!("share target destroy {TARGET}"));
    let said = lab.run(&format!("share target destroy {TARGET}")).fails(1);
    assert!(said.contains("no such target"), "{said}");
    for line in ["share list nosuch", "share list -j nosuch"] {
        let said = lab.run(line);
        assert_eq!((said.stdout.as_str(), said.code), ("", Some(1)), "{line}");
    }
}
