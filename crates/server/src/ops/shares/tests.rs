//! What changes come to, by settings that are made up.

use super::*;
use crate::shares::{LogicalUnitName, Offering, Place, PoolShares, VolumeShare};

fn now() -> Now {
    let users: BTreeMap<String, String> =
        [("org.millpond:target:iqn.a:t".to_owned(), "{}".to_owned())].into_iter().collect();
    let mut shares = PoolShares::default();
    shares.targets.insert("iqn.a:t".to_owned(), crate::shares::TargetShare::default());
    let at = |lun| VolumeShare {
        place: Some(Place { target: "iqn.a:t".to_owned(), lun }),
        managed: true,
        ..VolumeShare::default()
    };
    let was = LogicalUnitName {
        guid: "6".repeat(32),
        base: String::new(),
        deleted: true,
        was: Some("iqn.a:t 1".to_owned()),
    };
    let volumes = [
        ("tank/a", at(0)),
        ("tank/b", at(2)),
        ("tank/c", VolumeShare::default()),
        ("tank/d", VolumeShare { name: Some(was), ..VolumeShare::default() }),
    ];
    let volumes = volumes.into_iter().map(|(name, share)| (name.to_owned(), share)).collect();
    Now { users, shares, volumes, unlisted: None }
}

/// The number of a disk that could not be read was given to another, and hosts met that under it.
#[test]
fn no_number_is_free_while_nobody_knows_whose_it_is() {
    let now = Now { unlisted: Some("object 7 cannot be read".to_owned()), ..now() };
    let said = now.place("tank/c", "iqn.a:t", None).unwrap_err();
    assert!(said.contains("object 7 cannot be read") && said.contains("say a number"), "{said}");
    assert_eq!(now.place("tank/c", "iqn.a:t", Some(9)).unwrap().unwrap().lun, 9);
}

/// One whose properties could not be read kept everything in its pool from being changed, credentials included.
#[test]
fn a_volume_that_cannot_be_read_is_left_alone_and_others_are_changed() {
    let mut now = now();
    now.volumes.remove("tank/b");
    now.list("tank/b", Err("a block is damaged".to_owned()));
    now.list("tank/e", Ok(VolumeShare::default()));
    assert!(now.volumes.contains_key("tank/e"));
    assert_eq!(now.place("tank/e", "iqn.a:t", Some(9)).unwrap().unwrap().lun, 9);
    assert!(plan(&now, ShareChange::TargetCreate { target: "iqn.2026-11.com.example:t".to_owned() }).is_ok());
    let remove = ShareChange::LunRemove { target: "iqn.a:t".to_owned(), disk: "tank/b".to_owned() };
    for said in [
        now.place("tank/b", "iqn.a:t", Some(8)).unwrap_err(),
        now.place("tank/e", "iqn.a:t", None).unwrap_err(),
        plan(&now, remove).unwrap_err(),
    ] {
        assert!(said.contains("'tank/b': a block is damaged"), "{said}");
    }
}

#[test]
fn numbers_are_the_lowest_free_and_those_of_deleted_disks_wait_for_them() {
    let now = now();
    assert_eq!(now.place("tank/c", "iqn.a:t", None).unwrap().unwrap().lun, 3);
    assert_eq!(now.place("tank/c", "iqn.a:t", Some(1)).unwrap().unwrap().lun, 1);
    assert!(now.place("tank/c", "iqn.a:t", Some(2)).unwrap_err().contains("tank/b"));
    assert_eq!(now.place("tank/a", "iqn.a:t", None).unwrap(), None);
    assert!(now.place("tank/a", "iqn.a:t", Some(7)).unwrap_err().contains("lun remove"));
}

#[test]
fn what_was_for_some_only_is_not_for_everybody_without_its_lun() {
    let lost = |now: &Now, disk: &str| {
        let change = ShareChange::LunRemove { target: "iqn.a:t".to_owned(), disk: disk.to_owned() };
        let planned = plan(now, change).unwrap();
        let offer = planned.edits.unwrap().datasets[disk].get(property::OFFER).cloned().flatten();
        (offer, planned.warnings.concat())
    };
    let mut now = now();
    let (offer, said) = lost(&now, "tank/a");
    assert!(offer.is_none() && said.contains("to everybody now") && said.contains("offer=none"), "{said}");
    let target = now.shares.targets.get_mut("iqn.a:t").unwrap();
    target.config.access.initiators = Some(vec!["iqn.b:x".to_owned()]);
    let (offer, said) = lost(&now, "tank/a");
    assert!(offer.as_deref() == Some("none") && said.contains("share set offer= tank/a"), "{said}");
    // Somebody has decided already, there or above it.
    for (offer, offer_is_own, written, word) in [
        (Offering::All, true, None, "everybody"),
        (Offering::None, false, None, "nobody"),
        (Offering::Nbd, false, None, "over NBD"),
        (Offering::All, false, Some("nbd"), "over NBD only"),
        (Offering::Iscsi, false, Some("none"), "nobody"),
    ] {
        let share = now.volumes.get_mut("tank/a").unwrap();
        (share.offer, share.offer_is_own) = (offer, offer_is_own);
        let (kept, said) = lost(&now, "tank/a");
        assert!(kept.as_deref() == written && said.contains(word), "{offer:?}: {kept:?}, {said}");
    }
    // A snapshot goes with its volume, and what stmfadm manages is nobody's without a view.
    let place = Some(Place { target: "iqn.a:t".to_owned(), lun: 5 });
    let snapshot = VolumeShare { place, ..now.volumes["tank/b"].clone() };
    now.volumes.insert("tank/b@s".to_owned(), snapshot);
    assert_eq!(lost(&now, "tank/b@s"), (None, "tank/b@s is offered to nobody now".to_owned()));
}

/// They were warnings, with exit code 0: a script with a mistyped name went on as if it had been done.
#[test]
fn what_is_to_be_taken_away_and_is_not_there_is_an_error_and_so_is_a_target_that_is_there() {
    let (target, nobody) = ("iqn.a:t".to_owned(), "iqn.a:none".to_owned());
    let deny = |initiator: &str| ShareChange::Access {
        target: Some(target.clone()),
        allow: false,
        initiators: vec![initiator.to_owned()],
        networks: Vec::new(),
    };
    for (change, word) in [
        (ShareChange::TargetCreate { target: target.clone() }, "already"),
        (ShareChange::TargetCreate { target: target.to_uppercase() }, "already"),
        (ShareChange::TargetDestroy { target: nobody.clone(), force: false }, "no such target"),
        (ShareChange::TargetSet { target: target.clone(), groups: None, default: None }, "nothing"),
        (ShareChange::LunRemove { target: target.clone(), disk: "tank/c".to_owned() }, "no such LUN"),
        (ShareChange::LunRemove { target: target.clone(), disk: "1".to_owned() }, "no such LUN"),
        (ShareChange::LunRemove { target: nobody, disk: "tank/a".to_owned() }, "no such target"),
        (
            ShareChange::PortalRemove { address: "192.0.2.1:3260".parse().unwrap(), force: false },
            "no such portal",
        ),
        (deny("iqn.b:x"), "every initiator is allowed"),
        (ShareChange::ChapClear { target: Some(target.clone()), user: None }, "no credential"),
        (
            ShareChange::ChapClear { target: Some(target.clone()), user: Some("eve".to_owned()) },
            "no credential for 'eve'",
        ),
    ] {
        let said = plan(&now(), change.clone()).map(|planned| planned.warnings).unwrap_err();
        assert!(said.contains(word), "{change:?}: {said}");
    }
}

#[test]
fn a_change_with_a_secret_survives_the_journey_and_is_not_printed() {
    let change = ShareChange::ChapSet {
        target: Some("iqn.a:t".to_owned()),
        credential: serde_json::from_str(r#"{"user":"u","secret":"a secret of size"}"#).unwrap(),
    };
    let text = serde_json::to_string(&change).unwrap();
    assert_eq!(serde_json::from_str::<ShareChange>(&text).unwrap(), change);
    assert!(!format!("{change:?}").contains("of size"));
}
