//! `millpond share` and `millpond initiators`: what is set takes effect at once, for strangers' initiators too, and is there
//! again after restart, rename, export and import elsewhere; a clone and a received copy do not take what was their origin's.

use std::{
    fs,
    io::Write as _,
    net::TcpListener,
    process::{Command, Stdio},
};

use serde_json::Value;
use server::engine::dsl::{self, Properties, Stored};

use crate::support::host::{CONFLICT, Host, WERO, action};
use crate::support::wire::{Iscsi, Nbd, Trouble, Wire as _};
use crate::support::{Lab, Outcome, ask, served_as, tank_opened, wait_until};

const SERVE: &str = "serve --nbd 127.0.0.1:0 --iscsi 127.0.0.1:0 tank";
const TARGET: &str = "iqn.2026-11.com.example:vms";
const SECRET: &str = "twelve bytes, or more";
/// REPORTED LUNS DATA HAS CHANGED.
const LUNS_CHANGED: (u8, u8) = (0x3f, 0x0e);

/// A pool with two small thin volumes.
fn pool() -> Lab {
    let lab = Lab::scratch();
    let disk = lab.cwd().join("a").display().to_string();
    lab.run(&format!("zpool create --size 128M tank {disk}")).ok();
    lab.run("zfs create -s -V 8M tank/a").ok();
    lab.run("zfs create -s -V 8M tank/b").ok();
    lab
}

/// Runs a command that is told something on its standard input.
fn told(lab: &Lab, line: &str, input: &str) -> Outcome {
    let mut command = lab.command("millpond");
    let child = command.args(line.split_whitespace()).stdin(Stdio::piped());
    let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Outcome { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Gives the pool, or a dataset of it, a property as a newer version or other software may have: nobody asks what it means. No
/// daemon has the pool.
fn plant(lab: &Lab, dataset: Option<&'static str>, name: &str, text: &str) {
    let properties = Properties::from([(name.to_owned(), Stored::Text(text.to_owned()))]);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let host = tank_opened(lab).await;
        let held = host.find("tank").unwrap();
        let set = held.engine().unwrap().run(move |cx| {
            Box::pin(async move {
                match dataset {
                    Some(dataset) => dsl::set(cx, dataset, &properties).await,
                    None => dsl::set_pool(cx, &properties).await,
                }
            })
        });
        set.await.unwrap();
        host.close().await.unwrap();
    });
}

/// The port that the daemon listens at for iSCSI.
fn port(lab: &Lab, dataset: &str) -> u16 {
    let url = served_as(lab, dataset, "iscsi");
    url.split(['/', ':']).nth(4).unwrap().parse().unwrap()
}

/// How `tank/a` and its like are served: protocol and the part of the address that stays.
fn urls(lab: &Lab, dataset: &str) -> Vec<String> {
    let body = ask(lab, "/v1/served");
    let served =
        body["served"].as_array().unwrap().iter().find(|served| served["dataset"] == dataset).cloned();
    let urls = served.map_or_else(Vec::new, |served| served["urls"].as_array().unwrap().clone());
    let url = |url: &Value| {
        let url = url["url"].as_str().unwrap();
        let (scheme, rest) = url.split_once("://").unwrap();
        format!("{scheme}:{}", rest.split_once('/').unwrap().1)
    };
    urls.iter().map(url).collect()
}

/// What is kept of a volume.
fn volume(lab: &Lab, name: &str) -> Value {
    let list: Value = serde_json::from_str(&lab.run("share list -j").stdout).unwrap();
    let volumes = list["pools"]["tank"]["volumes"].as_array().unwrap().clone();
    volumes.into_iter().find(|volume| volume["name"] == name).unwrap_or(Value::Null)
}

fn refused(answer: Result<Iscsi, Trouble>) -> String {
    match answer {
        Ok(_) => panic!("it was let in"),
        Err(Trouble::Refused(why)) => why,
        Err(Trouble::Gone(error)) => format!("gone: {error}"),
    }
}

#[test]
fn settings_go_where_the_pool_goes() {
    let lab = pool();
    // Without a daemon; and a LUN that is one already stays what it is.
    lab.run(&format!("share target create {TARGET}")).ok();
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
        &lab,
        &format!("share chap set {TARGET} --user host --mutual-user pond"),
        &format!("{SECRET}\nanother secret, mine\n"),
    )
    .ok();
    lab.run("share set write-cache=off thin-threshold=10% tank/b").ok();
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

    // No secret is shown or recorded.
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

#[test]
fn who_may_log_in_changes_under_those_who_have() {
    let lab = pool();
    let _daemon = lab.serve(SERVE);
    lab.run(&format!("share target create {TARGET}")).ok();
    lab.run(&format!("share lun add {TARGET} tank/a")).ok();
    let port = port(&lab, "tank/a");
    let mut first = Iscsi::open(port, TARGET, 1).unwrap();
    let mut second = Iscsi::open(port, TARGET, 2).unwrap();
    first.write(0, &[7; 4096], true).unwrap();
    assert_eq!(second.read(0, 512).unwrap(), [7; 512]);

    // Who is connected, and did what.
    let seen = ask(&lab, "/v1/initiators");
    let sessions = seen["sessions"].as_array().unwrap();
    assert_eq!(sessions.len(), 2);
    let lun = |at: usize| sessions[at]["luns"][0].clone();
    assert_eq!(
        (&lun(0)["volume"], &lun(0)["writes"], &lun(0)["write_bytes"]),
        (&"tank/a".into(), &1.into(), &4096.into())
    );
    assert_eq!(
        (&lun(1)["reads"], &lun(1)["read_bytes"], &lun(1)["under_way"]),
        (&1.into(), &512.into(), &0.into())
    );
    assert_eq!(lun(0)["latency"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).sum::<u64>(), 1);
    assert_eq!(sessions[0]["isid"], "800000000001");
    let shown = lab.run("initiators -Hp").ok();
    assert!(shown.lines().next().unwrap().starts_with("iqn.2026-11.test:client1\t127.0.0.1:"), "{shown}");
    let shown = lab.run("initiators -v").ok();
    assert!(shown.contains(&format!("127.0.0.1:{port}")) && shown.contains("SESSIONS"), "{shown}");

    // The second is not named: out at once, and not in again.
    lab.run(&format!("share access allow {TARGET} --initiator iqn.2026-11.test:client1")).ok();
    wait_until(|| ask(&lab, "/v1/initiators")["sessions"].as_array().unwrap().len() == 1);
    assert!(second.read(0, 512).is_err());
    assert!(refused(Iscsi::open(port, TARGET, 2)).contains("0x2/0x2"));
    assert_eq!(first.read(0, 512).unwrap(), [7; 512]);

    // One that somebody uses as it is offered now has to be let go first.
    let own = Iscsi::open(port, "iqn.2026-11.io.millpond:tank:b", 3).unwrap();
    let said = lab.run(&format!("share lun add {TARGET} tank/b")).fails(1);
    assert!(said.contains("disconnect them first"), "{said}");
    drop(own);
    wait_until(|| ask(&lab, "/v1/initiators")["sessions"].as_array().unwrap().len() == 1);

    // A disk comes under a running session, and goes.
    first.news();
    lab.run(&format!("share lun add {TARGET} tank/b")).ok();
    assert_eq!(urls(&lab, "tank/b"), [format!("iscsi:{TARGET}/1")]);
    assert_eq!(first.read(0, 512).unwrap(), [7; 512]);
    assert_eq!(first.news(), [LUNS_CHANGED], "so that hosts look for it by themselves");
    assert_eq!(lab.run(&format!("share lun remove {TARGET} tank/b")).code, Some(0));
    assert_eq!(first.read(0, 512).unwrap(), [7; 512]);
    assert_eq!(first.news(), [LUNS_CHANGED]);

    // Whoever is logged in keeps its volume and target busy.
    assert!(lab.run("zfs destroy tank/a").fails(1).contains("busy"));
    for name in [TARGET.to_owned(), TARGET.to_uppercase()] {
        assert!(lab.run(&format!("share target destroy {name}")).fails(1).contains("millpond initiators"));
    }
    assert!(lab.run("share set block=4096 tank/a").fails(1).contains("block size"));

    // A credential: the session that has not proven it ends, and nobody comes without.
    told(&lab, &format!("share chap set {TARGET} --user host"), &format!("{SECRET}\n")).ok();
    wait_until(|| ask(&lab, "/v1/initiators")["sessions"].as_array().unwrap().is_empty());
    assert!(refused(Iscsi::open(port, TARGET, 1)).contains("0x2/"));
    if let Some(qemu_img) = fixtures::tool("qemu-img") {
        let by = |user: &str, secret: &str| {
            let dir = lab.path(secret.split(' ').next().unwrap());
            fs::write(&dir, secret).unwrap();
            Command::new(&qemu_img)
                .args(["info", "--object", &format!("secret,id=s,file={}", dir.display()), "--image-opts"])
                .arg(format!(
                    "driver=raw,file.driver=iscsi,file.transport=tcp,file.portal=127.0.0.1:{port},file.target={TARGET},file.lun=0,\
                     file.initiator-name=iqn.2026-11.test:client1,file.user={user},file.password-secret=s"
                ))
                .output()
                .unwrap()
        };
        let let_in = by("host", SECRET);
        assert!(let_in.status.success(), "{}", String::from_utf8_lossy(&let_in.stderr));
        assert!(!by("host", "wrong bytes of a secret").status.success());
    }
    let said = lab.run(&format!("share chap clear {TARGET}"));
    assert!(said.stderr.contains("nobody is asked"), "{said:?}");
    drop(Iscsi::open(port, TARGET, 1).unwrap());

    // Who takes the last one away closes the door, and is told.
    let said = lab.run(&format!("share access deny {TARGET} --initiator iqn.2026-11.test:client1"));
    assert!(said.stderr.contains("nobody is left"), "{said:?}");
    assert!(refused(Iscsi::open(port, TARGET, 1)).contains("0x2/0x2"));
    lab.run(&format!("share access allow {TARGET} --initiator *")).ok();
    drop(Iscsi::open(port, TARGET, 2).unwrap());
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

/// Guests were cut off without a question, as by nothing else.
#[test]
fn who_uses_a_disk_is_asked_about_before_it_is_offered_no_more() {
    let lab = pool();
    let _daemon = lab.serve(SERVE);
    let guest = Iscsi::open(port(&lab, "tank/a"), "iqn.2026-11.io.millpond:tank:a", 1).unwrap();
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
    let _guest = Iscsi::open(port(&lab, "tank/a"), "iqn.2026-11.io.millpond:tank:a", 1).unwrap();
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
    let mut guest = Iscsi::open(port(&lab, "tank/a"), TARGET, 1).unwrap();
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
    let mut guest = Iscsi::open(port(&lab, "tank/a"), TARGET, 1).unwrap();
    assert_eq!(guest.block_size().unwrap(), 4096);
    lab.run("zfs inherit -f org.millpond:lun tank/a").ok();
    assert_eq!(urls(&lab, "tank/a").len(), 2);
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
    let port = port(&lab, "tank/a4/v");
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
    let guest = Iscsi::open(port(&lab, &format!("{first}/a")), TARGET, 1).unwrap();
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

/// They were taken for empty and written over: everybody could discover.
#[test]
fn settings_of_discovery_that_cannot_be_understood_are_not_written_over() {
    let lab = pool();
    let set = |property: &str| lab.run_args("millpond", ["zpool", "set", property, "tank"]);
    for (name, text) in [("org.millpond:discovery", "{\"new\":1}"), ("org.millpond:chap", "new")] {
        let said = set(&format!("{name}={text}")).fails(1);
        assert!(said.contains("cannot be understood") && said.contains("millpond share"), "{said}");
        assert_eq!(lab.run(&format!("zpool get -H -o value {name} tank")).ok(), "-\n");
        plant(&lab, None, name, text);
        for line in ["allow --discovery --initiator iqn.a:b", "deny --discovery --initiator *"] {
            let said = lab.run(&format!("share access {line}")).fails(1);
            let remedy = format!("'zpool set {name}= POOL'");
            assert!(said.contains("cannot be understood") && said.contains(&remedy), "{said}");
        }
        told(&lab, "share chap set --discovery --user scout", &format!("{SECRET}\n")).fails(1);
        lab.run("share chap clear --discovery").fails(1);
        let list: Value = serde_json::from_str(&lab.run("share list -j").stdout).unwrap();
        assert_eq!(list["pools"]["tank"]["discovery"]["initiators"], serde_json::json!([]), "{list}");
        let kept = lab.run(&format!("zpool get -H -o value {name} tank")).ok();
        assert!(kept == format!("{text}\n") || kept.contains("hidden"), "{kept}");
        assert_eq!(set(&format!("{name}=")).code, Some(0));
    }
    lab.run("share access allow --discovery --initiator iqn.2026-11.test:*").ok();
}

/// What both hosts were told since they were asked last.
fn news(hosts: &mut [Host; 2]) -> Vec<(u8, u8)> {
    let [one, other] = hosts.each_mut().map(Host::settle);
    assert_eq!(one, other, "both are told the same");
    one
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
    let mut nbd = Nbd::open(export.split([':', '/']).nth(4).unwrap().parse().unwrap(), "tank/a").unwrap();
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
    let first = port(&lab, "tank/a");
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

    let at = port(&lab, "tank/a");
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

/// Settings that this version does not understand close a door and open none.
#[test]
fn discovery_has_credentials_of_its_own() {
    let Some(iscsi_ls) = fixtures::tool("iscsi-ls") else { return };
    let lab = pool();
    let _daemon = lab.serve(SERVE);
    let port = port(&lab, "tank/a");
    let found = |secret: Option<&str>| {
        let mut command = Command::new(&iscsi_ls);
        command.arg(format!("iscsi://127.0.0.1:{port}"));
        if let Some(secret) = secret {
            command.env("LIBISCSI_CHAP_USERNAME", "scout").env("LIBISCSI_CHAP_PASSWORD", secret);
        }
        let output = command.output().unwrap();
        output.status.success() && String::from_utf8_lossy(&output.stdout).contains("io.millpond:tank:a")
    };
    assert!(found(None));
    told(&lab, "share chap set --discovery --user scout", &format!("{SECRET}\n")).ok();
    assert!(found(Some(SECRET)));
    assert!(!found(None) && !found(Some("another dozen of bytes")));
    // Who knows a target by name is asked for what that target asks.
    drop(Iscsi::open(port, "iqn.2026-11.io.millpond:tank:a", 1).unwrap());
    let _said = lab.run("share chap clear --discovery");
    assert!(found(None));
}

#[test]
fn settings_that_cannot_be_understood_let_nobody_in() {
    let lab = pool();
    lab.run(&format!("share target create {TARGET}")).ok();
    lab.run(&format!("share lun add {TARGET} tank/a")).ok();
    plant(&lab, None, &format!("org.millpond:target:{TARGET}"), "{\"fence\":true}");
    plant(&lab, Some("tank/b"), "org.millpond:lun", "nonsense");
    let _daemon = lab.serve(SERVE);
    let problems = lab.run("share list -j").stdout;
    assert!(problems.contains(&format!("target {TARGET} is not offered")), "{problems}");
    assert_eq!(urls(&lab, "tank/a"), Vec::<String>::new());
    let refused = ask(&lab, "/v1/served");
    assert!(refused["served"][0]["refused"].as_str().unwrap().contains("no target"), "{refused}");
    assert!(lab.run(&format!("share target create {TARGET}")).fails(1).contains("target destroy"));
    assert_eq!(lab.run(&format!("share target destroy {TARGET}")).code, Some(0));
    assert_eq!(urls(&lab, "tank/a"), Vec::<String>::new(), "nobody knows who it was for");
    lab.run("share set offer= tank/a").ok();
    assert_eq!(urls(&lab, "tank/a").len(), 2);
    assert_eq!(urls(&lab, "tank/b"), Vec::<String>::new());
    lab.run("zfs inherit org.millpond:lun tank/b").ok();
    assert_eq!(urls(&lab, "tank/b").len(), 2);
}
