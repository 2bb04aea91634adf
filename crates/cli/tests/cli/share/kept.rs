//! Settings go where the pool goes: they are there again after a restart, a rename, an export and an import elsewhere, and what is
//! cloned stays the kind of disk that its content was written for, and is offered to nobody by itself.

use serde_json::Value;

use super::{SECRET, SERVE, TARGET, pool, portal, told, urls, volume};
use crate::support::{Lab, ask, wait_until, wire::Iscsi};

/// Settings of all kinds, made without a daemon.
fn set_all_kinds(lab: &Lab) {
    lab.run(&format!("share target create {TARGET}")).ok();
    // A LUN that is one already stays what it is.
    for _ in 0..2 {
        assert_eq!(
            lab.run(&format!("share lun add {TARGET} tank/a 5")).ok(),
            format!("tank/a is LUN 5 of {TARGET}\n")
        );
    }
    lab.run(&format!("share lun add {TARGET} tank/b")).ok();
    lab.run(&format!(
        "share access allow {TARGET} --initiator iqn.2026-11.test:client1 --network 127.0.0.0/8"
    ))
    .ok();
    told(
        lab,
        &format!("share chap set {TARGET} --user host --mutual-user pond"),
        &format!("{SECRET}\nanother secret, mine\n"),
    )
    .ok();
    lab.run("share set write-cache=off thin-threshold=10% tank/b").ok();
}

fn no_secret_is_shown_or_recorded(lab: &Lab) {
    for line in [
        "zpool get all tank",
        "zpool get -Hp all tank",
        "zpool history -il tank",
        "share list -v",
        "share list -j",
        "zpool get -j all tank",
        "dump -DDD tank",
        "dump -DDD -j tank",
    ] {
        let shown = lab.run(line).stdout;
        assert!(
            !shown.is_empty() && !shown.contains("twelve") && !shown.contains("another"),
            "{line}: {shown}"
        );
    }
    let by_name = format!("zpool get org.millpond:chap:{TARGET} tank");
    for line in [&*by_name, "dump -DDD tank"] {
        assert!(lab.run(line).stdout.contains("(hidden)"), "{line}");
    }
}

#[test]
fn settings_go_where_the_pool_goes() {
    let lab = pool();
    set_all_kinds(&lab);
    let mine = volume(&lab, "tank/a");
    assert_eq!((&mine["target"], &mine["lun"], &mine["nbd"]), (&TARGET.into(), &5.into(), &false.into()));
    assert_eq!(volume(&lab, "tank/b")["lun"], 0);
    // The JSON of it filled the table.
    let all = lab.run("zpool get all tank").ok();
    assert!(all.contains("failmode") && !all.contains("org.millpond:"), "{all}");
    let kept = lab.run(&format!("zpool get -H -o value org.millpond:target:{TARGET} tank")).ok();
    assert!(kept.starts_with('{'), "{kept}");

    // A snapshot is not everybody's, a clone is nobody's, a rollback changes nothing of this.
    lab.run("zfs snapshot tank/a@s").ok();
    let said = lab.run("zfs clone tank/a@s tank/clone");
    assert!(said.code == Some(0) && said.stderr.contains("tank/clone is offered to nobody"), "{said:?}");
    lab.run("zfs rollback tank/a@s").ok();
    let clone = volume(&lab, "tank/clone");
    assert_eq!((&clone["lun"], &clone["nbd"]), (&Value::Null, &false.into()));
    assert_ne!(clone["naa"], mine["naa"]);

    let daemon = lab.serve(SERVE);
    assert_eq!(urls(&lab, "tank/a"), [format!("iscsi:{TARGET}/5")]);
    assert_eq!(urls(&lab, "tank/a@s"), Vec::<String>::new());
    assert_eq!(urls(&lab, "tank/clone"), Vec::<String>::new());
    lab.run("share set offer= tank/clone").ok();
    assert_eq!(urls(&lab, "tank/clone"), ["nbd:tank/clone", "iscsi:iqn.2026-11.io.millpond:tank:clone/0"]);
    lab.run("zfs rename tank/a tank/renamed").ok();
    assert_eq!(urls(&lab, "tank/renamed"), [format!("iscsi:{TARGET}/5")]);
    assert_eq!(volume(&lab, "tank/renamed")["naa"], mine["naa"]);
    assert_eq!(daemon.stop().code(), Some(0));

    no_secret_is_shown_or_recorded(&lab);

    // Elsewhere: another state directory, another socket.
    lab.run("zpool export tank").ok();
    if fixtures::tool("zdb").is_some() {
        fixtures::zdb_check(&[], lab.cwd(), "tank").unwrap();
    }
    let there = Lab::at(lab.cwd());
    there.run("zpool import -d . tank").ok();
    let _daemon = there.serve(SERVE);
    assert_eq!(urls(&there, "tank/renamed"), [format!("iscsi:{TARGET}/5")]);
    let list: Value = serde_json::from_str(&there.run("share list -j").stdout).unwrap();
    let target = &list["pools"]["tank"]["targets"][0];
    assert_eq!(target["access"]["initiators"][0], "iqn.2026-11.test:client1");
    assert_eq!(target["access"]["chap"][0]["mutual_user"], "pond");
    let b = volume(&there, "tank/b");
    assert_eq!((&b["write_cache"], &b["thin_threshold"]), (&false.into(), &"10%".into()));
    // And back to no settings at all; what was for some only is not for everybody by that.
    let said = there.run(&format!("share target destroy {TARGET}"));
    assert!(said.code == Some(0) && said.stderr.matches("to nobody now").count() == 2, "{said:?}");
    assert_eq!(urls(&there, "tank/renamed"), Vec::<String>::new());
    there.run("share set offer= tank/renamed").ok();
    assert_eq!(
        urls(&there, "tank/renamed"),
        ["nbd:tank/renamed", "iscsi:iqn.2026-11.io.millpond:tank:renamed/0"]
    );
    assert_eq!(urls(&there, "tank/renamed@s").len(), 2);
}

/// Hosts found no partition table on a clone, or on a volume that was renamed from below `block`, and lost what was not flushed where
/// `write-cache=off` had made every write stable.
#[test]
fn what_is_cloned_or_renamed_is_the_kind_of_disk_that_its_content_was_written_for() {
    let lab = pool();
    for name in ["tank/a4", "tank/a4/sub"] {
        lab.run(&format!("zfs create {name}")).ok();
    }
    for name in ["tank/a4/v", "tank/a4/sub/x", "tank/a4/sub/y"] {
        lab.run(&format!("zfs create -s -V 8M {name}")).ok();
    }
    for name in ["tank/a4", "tank/a"] {
        lab.run(&format!("share set block=4096 write-cache=off {name}")).ok();
    }
    lab.run("zfs snapshot tank/a@s").ok();
    let kind = |name: &str| {
        let share = volume(&lab, name);
        (share["block"].as_u64(), share["write_cache"].as_bool())
    };
    let kept = (Some(4096), Some(false));
    let said = lab.run("zfs clone tank/a@s tank/c");
    assert_eq!((said.code, kind("tank/c")), (Some(0), kept), "{said:?}");
    for part in ["tank/c is given logical blocks of 4096 bytes", "tank/c is given no write cache"] {
        assert!(said.stderr.contains(part), "{said:?}");
    }
    let said = lab.run("zfs rename tank/a4/sub tank/sub");
    assert_eq!((said.code, kind("tank/sub/x"), kind("tank/sub/y")), (Some(0), kept, kept), "{said:?}");
    for part in ["are given the logical blocks", "are given no write cache"] {
        assert!(said.stderr.contains(&format!("2 volumes, tank/sub/x among them, {part}")), "{said:?}");
    }
    // What is said on the command line holds, and what is so already is not set.
    lab.run("zfs clone -o org.millpond:block=512 -o org.millpond:write-cache=on tank/a@s tank/d").ok();
    assert_eq!(kind("tank/d"), (Some(512), Some(true)));
    lab.run("zfs clone tank/a@s tank/a4/e").ok();
    let source = lab.run("zfs get -H -o source org.millpond:block tank/a4/e").ok();
    assert_eq!((source.trim(), kind("tank/a4/e")), ("inherited from tank/a4", kept));
    // Below others it keeps its own blocks, and gets no write cache.
    lab.run("zfs snapshot tank/b@s").ok();
    let said = lab.run("zfs clone tank/b@s tank/a4/f");
    assert!(said.stderr.contains("tank/a4/f is given logical blocks of 512 bytes"), "{said:?}");
    assert_eq!(kind("tank/a4/f"), (Some(512), Some(false)));
    // A snapshot that goes to a disk with other blocks has those that it was made with.
    let said = lab.run("zfs promote tank/d");
    assert!(said.stderr.contains("tank/d@s is given logical blocks of 4096 bytes"), "{said:?}");
    lab.run("zfs clone tank/d@s tank/g");
    assert_eq!((kind("tank/g").0, kind("tank/d").0), (Some(4096), Some(512)));

    let _daemon = lab.serve(SERVE);
    lab.run(&format!("share target create {TARGET}")).ok();
    lab.run(&format!("share lun add {TARGET} tank/a4/v")).ok();
    let port = portal(&lab, "tank/a4/v");
    assert_eq!(Iscsi::open(port, TARGET, 1).unwrap().block_size().unwrap(), 4096);
    wait_until(|| ask(&lab, "/v1/served")["iscsi_sessions"] == 0);
    let said = lab.run("zfs rename tank/a4/v tank/v");
    assert_eq!((said.code, kind("tank/v")), (Some(0), kept), "{said:?}");
    assert!(said.stderr.contains("tank/v is given logical blocks of 4096 bytes"), "{said:?}");
    assert_eq!(Iscsi::open(port, TARGET, 1).unwrap().block_size().unwrap(), 4096);
}

/// The second one stayed unoffered until something else in it was changed, and nothing said so.
#[test]
fn a_target_whose_name_another_pool_had_is_there_when_that_is_gone() {
    let lab = pool();
    let disk = lab.cwd().join("b").display().to_string();
    lab.run(&format!("zpool create --size 128M lake {disk}")).ok();
    lab.run("zfs create -s -V 8M lake/a").ok();
    for pool in ["lake", "tank"] {
        lab.run(&format!("share --pool {pool} target create {TARGET}")).ok();
        lab.run(&format!("share --pool {pool} lun add {TARGET} {pool}/a")).ok();
    }
    let several = lab.run(&format!("share target destroy {TARGET}")).fails(2);
    assert!(several.contains("--pool"), "{several}");
    let _daemon = lab.serve("serve --nbd 127.0.0.1:0 --iscsi 127.0.0.1:0 lake tank");
    let offered = |pool: &str| urls(&lab, &format!("{pool}/a")) == [format!("iscsi:{TARGET}/0")];
    // Which is the first follows from their guids.
    let (first, second) = if offered("lake") { ("lake", "tank") } else { ("tank", "lake") };
    assert!(offered(first) && !offered(second));
    let shares = ask(&lab, "/v1/share");
    let pools = shares["pools"].as_array().unwrap();
    let of_second = pools.iter().find(|pool| pool["pool"] == second).unwrap();
    let conflict = format!("pool '{first}' has one of this name");
    assert!(of_second["problems"][0].as_str().unwrap().contains(&conflict), "{of_second}");
    let guest = Iscsi::open(portal(&lab, &format!("{first}/a")), TARGET, 1).unwrap();
    let sessions = |pool: &str| {
        let shares = ask(&lab, "/v1/share");
        let found = shares["pools"].as_array().unwrap().iter().find(|found| found["pool"] == pool).cloned();
        found.unwrap()["targets"][0]["sessions"].as_u64().unwrap()
    };
    assert_eq!((sessions(first), sessions(second)), (1, 0), "each its own");
    drop(guest);
    wait_until(|| ask(&lab, "/v1/served")["iscsi_sessions"] == 0);
    lab.run(&format!("zpool export {first}")).ok();
    wait_until(|| offered(second));
    // And when only the target goes.
    let said = lab.run(&format!("zpool import -d {} {first}", lab.cwd().display()));
    let conflict = format!("pool '{second}' has one of this name");
    assert!(said.code == Some(0) && said.stderr.contains(&conflict), "{said:?}");
    assert!(!offered(first));
    // Whatever has it offered anew says so, what is inherited included.
    assert_eq!(lab.run(&format!("zfs set volmode=none {first}/a")).code, Some(0));
    let said = lab.run(&format!("zfs inherit volmode {first}/a"));
    assert!(said.code == Some(0) && said.stderr.contains(&conflict), "{said:?}");
    assert_eq!(lab.run(&format!("share --pool {second} target destroy {TARGET}")).code, Some(0));
    wait_until(|| offered(first));
}
