//! Who is let in: by name, by credential, to discovery or to a target, from the moment that it is said; and nobody by settings that
//! cannot be understood.

use std::{fs, process::Command};

use serde_json::Value;
use server::engine::dsl::{self, Properties, Stored};

use super::{LUNS_CHANGED, SECRET, SERVE, TARGET, pool, portal, refused, told, urls};
use crate::support::{
    Lab, ask, tank_opened, wait_until,
    wire::{Iscsi, Wire as _},
};

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

/// Who is connected, and did what.
fn two_sessions_are_shown(lab: &Lab, port: u16) {
    let seen = ask(lab, "/v1/initiators");
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
}

/// A disk comes under a running session, and goes.
fn a_disk_comes_and_goes(lab: &Lab, first: &mut Iscsi) {
    first.news();
    lab.run(&format!("share lun add {TARGET} tank/b")).ok();
    assert_eq!(urls(lab, "tank/b"), [format!("iscsi:{TARGET}/1")]);
    assert_eq!(first.read(0, 512).unwrap(), [7; 512]);
    assert_eq!(first.news(), [LUNS_CHANGED], "so that hosts look for it by themselves");
    assert_eq!(lab.run(&format!("share lun remove {TARGET} tank/b")).code, Some(0));
    assert_eq!(first.read(0, 512).unwrap(), [7; 512]);
    assert_eq!(first.news(), [LUNS_CHANGED]);
}

/// The session that has not proven it ends, and nobody comes without.
fn a_credential_is_asked_for(lab: &Lab, port: u16) {
    told(lab, &format!("share chap set {TARGET} --user host"), &format!("{SECRET}\n")).ok();
    wait_until(|| ask(lab, "/v1/initiators")["sessions"].as_array().unwrap().is_empty());
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
}

#[test]
fn who_may_log_in_changes_under_those_who_have() {
    let lab = pool();
    let _daemon = lab.serve(SERVE);
    lab.run(&format!("share target create {TARGET}")).ok();
    lab.run(&format!("share lun add {TARGET} tank/a")).ok();
    let port = portal(&lab, "tank/a");
    let mut first = Iscsi::open(port, TARGET, 1).unwrap();
    let mut second = Iscsi::open(port, TARGET, 2).unwrap();
    first.write(0, &[7; 4096], true).unwrap();
    assert_eq!(second.read(0, 512).unwrap(), [7; 512]);

    two_sessions_are_shown(&lab, port);

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

    a_disk_comes_and_goes(&lab, &mut first);

    // Whoever is logged in keeps its volume and target busy.
    assert!(lab.run("zfs destroy tank/a").fails(1).contains("busy"));
    for name in [TARGET.to_owned(), TARGET.to_uppercase()] {
        assert!(lab.run(&format!("share target destroy {name}")).fails(1).contains("millpond initiators"));
    }
    assert!(lab.run("share set block=4096 tank/a").fails(1).contains("block size"));

    a_credential_is_asked_for(&lab, port);

    // Who takes the last one away closes the door, and is told.
    let said = lab.run(&format!("share access deny {TARGET} --initiator iqn.2026-11.test:client1"));
    assert!(said.stderr.contains("nobody is left"), "{said:?}");
    assert!(refused(Iscsi::open(port, TARGET, 1)).contains("0x2/0x2"));
    lab.run(&format!("share access allow {TARGET} --initiator *")).ok();
    drop(Iscsi::open(port, TARGET, 2).unwrap());
}

/// Settings that this version does not understand close a door and open none.
#[test]
fn discovery_has_credentials_of_its_own() {
    let Some(iscsi_ls) = fixtures::tool("iscsi-ls") else { return };
    let lab = pool();
    let _daemon = lab.serve(SERVE);
    let port = portal(&lab, "tank/a");
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
