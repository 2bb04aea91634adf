//! Who is told of which targets, who is let in and with which proof, and which disks a host that is in may name in copies.

use std::sync::Arc;

use iscsi::{
    Access, Auth, Config, Form, Offer, Targets,
    login::{Status, Step},
};
use sha2::Digest as _;

use crate::hosts::{Entering, Host, NAME, cluster, disk, two_portals};

#[test]
fn portals_and_targets_are_listed_to_those_who_may_use_them() {
    let targets = two_portals();
    let offer = |initiators: &[&str], groups: Option<Vec<u16>>| Offer {
        access: Access {
            initiators: initiators.iter().map(ToString::to_string).collect(),
            ..Access::default()
        },
        groups,
        ..Offer::default()
    };
    targets.create("iqn.t:all", offer(&[], None)).unwrap();
    targets.create("iqn.t:second", offer(&["iqn.one"], Some(vec![2]))).unwrap();
    targets.create("iqn.t:hidden", offer(&["iqn.two"], None)).unwrap();
    let mut entering = Entering::new("192.0.2.11:3260", "192.0.2.1:1000");
    assert!(matches!(
        entering.say(&targets, 0x87, "InitiatorName=iqn.one|SessionType=Discovery|"),
        Step::Accepted
    ));
    let text = Host::entered(entering, &targets).send_targets("All");
    assert_eq!(
        text,
        "TargetName=iqn.t:all|TargetAddress=192.0.2.11:3260,2|TargetAddress=192.0.2.10:3260,1|\
         TargetName=iqn.t:second|TargetAddress=192.0.2.11:3260,2|"
    );
    let enter = |local: &str, target: &str| {
        let mut entering = Entering::new(local, "192.0.2.1:1000");
        entering.say(&targets, 0x87, &format!("InitiatorName=iqn.one|TargetName={target}|"));
        (entering.status, entering.value("TargetPortalGroupTag"))
    };
    assert_eq!(
        enter("192.0.2.11:3260", "iqn.t:second"),
        ((0, 0), None),
        "the tag comes with the last answer"
    );
    assert_eq!(enter("192.0.2.10:3260", "iqn.t:second").0, (2, 3), "not in this group");
    assert_eq!(enter("192.0.2.10:3260", "iqn.t:hidden").0, (2, 2), "not for this one");
    targets.remove("iqn.t:hidden");
    assert_eq!(enter("192.0.2.10:3260", "iqn.t:hidden").0, (2, 4), "removed");
}

/// Hosts that log in to all that they are told of had every snapshot as a disk.
#[test]
fn what_is_unlisted_is_named_to_those_who_name_it_and_reached_as_ever() {
    let targets = Targets::new(Config::default());
    let unlisted = Offer { is_unlisted: true, ..Offer::default() };
    targets.create("iqn.t:disk", Offer::default()).unwrap();
    targets.create("iqn.t:disk::snapshot", unlisted.clone()).unwrap();
    let told = |login: &str, asked: &str| {
        let mut entering = Entering::new("192.0.2.11:3260", "192.0.2.1:1000");
        let step = entering.say(&targets, 0x87, &format!("InitiatorName=iqn.one|{login}|"));
        assert!(matches!(step, Step::Accepted), "{login}");
        Host::entered(entering, &targets).send_targets(asked)
    };
    let disk = "TargetName=iqn.t:disk|TargetAddress=192.0.2.11:3260,1|";
    let snapshot = "TargetName=iqn.t:disk::snapshot|TargetAddress=192.0.2.11:3260,1|";
    assert_eq!(told("SessionType=Discovery", "All"), disk);
    assert_eq!(told("SessionType=Discovery", "iqn.t:disk::snapshot"), snapshot);
    assert_eq!(told("TargetName=iqn.t:disk::snapshot", ""), snapshot);
    assert!(targets.remove("iqn.t:disk"));
    assert_eq!(told("SessionType=Discovery", "All"), "");
    targets.create("iqn.t:disk", unlisted).unwrap();
    assert_eq!(told("SessionType=Discovery", "All"), "", "one of that name is another");
}

fn secured() -> Arc<Targets> {
    let targets = cluster(&[0]);
    let auth =
        Auth::new("host", b"a secret of hosts").unwrap().mutual("pond", b"secret of the pond").unwrap();
    targets.list()[0].set_access(Access { auth: vec![auth], ..Access::default() });
    targets
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold("0x".into(), |text, byte| format!("{text}{byte:02x}"))
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.strip_prefix("0x").unwrap();
    (0..digits.len() / 2).map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap()).collect()
}

fn proof(id: &str, secret: &[u8], challenge: &[u8]) -> String {
    hex(&sha2::Sha256::digest([&[id.parse().unwrap()], secret, challenge].concat()))
}

#[test]
fn a_secured_target_lets_in_who_proves_itself_and_proves_itself_to_who_asks() {
    let targets = secured();
    let mut host = Entering::new("127.0.0.1:3260", "127.0.0.1:9");
    host.say(&targets, 0x81, &format!("InitiatorName=iqn.a|TargetName={NAME}|AuthMethod=CHAP,None|"));
    assert_eq!((host.flags & 0x80, host.value("AuthMethod").as_deref()), (0, Some("CHAP")), "not yet");
    host.say(&targets, 0x00, "CHAP_A=6,7,5|");
    assert_eq!(host.value("CHAP_A").as_deref(), Some("7"));
    let (id, challenge) = (host.value("CHAP_I").unwrap(), unhex(&host.value("CHAP_C").unwrap()));
    let response = proof(&id, b"a secret of hosts", &challenge);
    let step = host.say(&targets, 0x81, &format!("CHAP_N=host|CHAP_R={response}|CHAP_I=7|CHAP_C=0x0102|"));
    assert!(matches!(step, Step::Continue));
    assert_eq!(host.flags, 0x81, "on to the next stage");
    assert_eq!(host.value("CHAP_N").as_deref(), Some("pond"));
    assert_eq!(host.value("CHAP_R"), Some(proof("7", b"secret of the pond", &[1, 2])));
    assert!(matches!(host.say(&targets, 0x87, ""), Step::Accepted));
}

#[test]
fn nobody_gets_around_the_proof() {
    let targets = secured();
    let start = format!("InitiatorName=iqn.a|TargetName={NAME}|");
    let refused = |requests: &[(u8, String)]| {
        let mut host = Entering::new("127.0.0.1:3260", "127.0.0.1:9");
        for (stages, text) in requests {
            if let Step::Refused(status) = host.say(&targets, *stages, text) {
                return Some(status);
            }
        }
        None
    };
    let failed = Some(Status::AuthenticationFailed);
    assert_eq!(refused(&[(0x87, start.clone())]), failed, "the stage skipped");
    assert_eq!(refused(&[(0x81, format!("{start}AuthMethod=None|"))]), failed);
    assert_eq!(refused(&[(0x83, start.clone())]), failed, "no method at all");
    let chap = (0x00, format!("{start}AuthMethod=CHAP|"));
    assert_eq!(refused(&[chap.clone(), (0x83, String::new())]), failed, "the exchange left out");
    assert_eq!(refused(&[chap.clone(), (0x00, "CHAP_A=6,8|".into())]), failed, "no algorithm in common");
    let asked = [chap, (0x00, "CHAP_A=7|".into())];
    for text in ["", "CHAP_N=host|", "CHAP_N=host|CHAP_R=0x00|", "CHAP_N=host|CHAP_R=nonsense|"] {
        let requests: Vec<_> = asked.iter().cloned().chain([(0x83, text.to_owned())]).collect();
        assert_eq!(refused(&requests), failed, "{text}");
    }
    // Our own challenge comes back as theirs: to be refused even with the right answer.
    let mut host = Entering::new("127.0.0.1:3260", "127.0.0.1:9");
    for (stages, text) in &asked {
        host.say(&targets, *stages, text);
    }
    let (id, theirs) = (host.value("CHAP_I").unwrap(), host.value("CHAP_C").unwrap());
    let response = proof(&id, b"a secret of hosts", &unhex(&theirs));
    host.say(&targets, 0x81, &format!("CHAP_N=host|CHAP_R={response}|CHAP_I={id}|CHAP_C={theirs}|"));
    assert_eq!(host.status, (2, 1));
    assert_eq!(host.value("CHAP_R"), None);
}

#[test]
fn a_copy_may_name_disks_of_targets_that_would_let_its_host_in() {
    let targets = cluster(&[0]);
    let other = |name: &str, access: Access| {
        let target = targets.create(name, Offer { access, ..Offer::default() }).unwrap();
        target.add_lun(0, disk(name), Form::default()).unwrap().naa()
    };
    let open = other("iqn.t:open", Access::default());
    let closed = other("iqn.t:closed", Access { initiators: vec!["iqn.two".into()], ..Access::default() });
    let auth = vec![Auth::new("host", b"a secret of hosts").unwrap()];
    let secured = other("iqn.t:secured", Access { auth, ..Access::default() });
    let mut host = Host::log_in(&targets, "iqn.one");
    host.settle(0);
    for (naa, status) in [(open, 0), (closed, 2), (secured, 2)] {
        let mut list = vec![1, 0, 0, 32, 0, 0, 0, 0, 0, 0, 0, 28, 0, 0, 0, 0];
        list.extend([0xe4, 0, 0, 0, 1, 3, 0, 16]);
        list.extend(naa);
        list.extend([0, 0, 0, 0, 0, 0, 2, 0]);
        list.extend([2, 0, 0, 24, 0, 0, 0, 0, 0, 0, 0, 1]);
        list.extend([0; 16]);
        let cdb = [0x83, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, list.len() as u8, 0, 0];
        let (got, sense) = host.send(0, &cdb, &list, 0);
        assert_eq!(got, status, "{sense:02x?}");
    }
}
