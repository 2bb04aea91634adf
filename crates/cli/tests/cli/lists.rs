//! What lists and `zpool status` show, as text and as JSON: all that is there, once, under the names of OpenZFS, and the
//! same with a daemon and without.

use crate::support::Lab;
use std::fs;

/// Of two pools with one name JSON had the last only, whatever was wrong with the other.
#[test]
fn two_pools_of_one_name_are_both_in_json() {
    let lab = Lab::scratch();
    let (here, other) = (lab.cwd().display().to_string(), lab.path("other").display().to_string());
    lab.run(&format!("zpool create --size 64M tank {here}/a")).ok();
    lab.run(&format!("--state {other} zpool create --size 64M tank {here}/b")).ok();
    for line in ["zpool status -j", "zpool list -j", "zpool get -j size", "zpool iostat -j"] {
        let shown = lab.run(&format!("-d {here} {line}")).ok();
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        let pools = shown["pools"].as_object().unwrap();
        assert!(pools.len() == 2 && !pools.contains_key("tank"), "{line}: {shown}");
        assert!(pools.values().all(|pool| pool["name"] == "tank"), "{line}: {shown}");
    }
}

/// A spare was ONLINE, everything was among the devices for data, and what `-i`, `-t` and `-s` tell had names of our own or
/// was left out.
#[test]
fn json_has_the_sections_and_names_of_openzfs() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    lab.run(&format!(
        "zpool create --size 128M tank mirror {here}/a {here}/b log {here}/l cache {here}/c spare {here}/s"
    ))
    .ok();
    assert_eq!(lab.run(&format!("zpool initialize -w tank {here}/a")).code, Some(0));
    let json = |line: &str| {
        let text = lab.run(line).ok();
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["pools"]["tank"].clone()
    };
    let named = |name: &str| format!("{here}/{name}");
    let list = json("zpool list -jv tank");
    for (section, device) in [
        ("vdevs", "mirror-0".to_owned()),
        ("logs", named("l")),
        ("l2cache", named("c")),
        ("spares", named("s")),
    ] {
        let names: Vec<&String> = list[section].as_object().unwrap().keys().collect();
        assert_eq!(names, [&device], "{section}");
    }
    let status = json("zpool status -j -s -i -t tank");
    for pool in [&list, &status] {
        assert_eq!(pool["spares"][named("s")]["state"], "AVAIL");
    }
    let text = lab.run("zpool list -Hv -o name,health tank").ok();
    assert!(text.contains(&format!("{here}/s\tAVAIL\n")), "{text}");
    let sides = &status["vdevs"]["tank"]["vdevs"]["mirror-0"]["vdevs"];
    let (a, b) = (&sides[named("a")], &sides[named("b")]);
    assert_eq!((&a["slow_ios"], &a["init_errors"]), (&"0".into(), &"0".into()), "{a}");
    assert_eq!((&a["init_state"], &a["trim_state"]), (&"COMPLETE".into(), &"UNTRIMMED".into()), "{a}");
    assert!(a["initialized"].is_string() && a["initialized"] == a["to_initialize"], "{a}");
    assert!(a["init_time"].as_str().unwrap().contains(':'), "{a}");
    assert_eq!(
        (&b["init_state"], &b["init_time"]),
        (&"UNINITIALIZED".into(), &serde_json::Value::Null),
        "{b}"
    );
    let plain = json("zpool status -j tank").to_string();
    assert!(!plain.contains("UNTRIMMED") && !plain.contains("slow_ios"), "{plain}");
}

/// Below a dataset that was named there were none, and above it those of all pools if one had it on.
#[test]
fn a_pool_with_listsnapshots_has_its_snapshots_in_lists_and_others_do_not() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    for pool in ["lake", "tank"] {
        lab.run(&format!("zpool create --size 64M {pool} {here}/{pool}")).ok();
        lab.run(&format!("zfs create -s -V 1M {pool}/v")).ok();
        lab.run(&format!("zfs snapshot {pool}/v@s")).ok();
    }
    lab.run("zpool set listsnapshots=on tank").ok();
    let is_heeded = || {
        for (line, names) in [
            ("", "lake lake/v tank tank/v tank/v@s"),
            ("-r tank", "tank tank/v tank/v@s"),
            ("-d 1 tank/v lake/v", "lake/v tank/v tank/v@s"),
            ("-d 1 tank", "tank tank/v"),
            ("tank/v", "tank/v"),
            ("-r lake tank", "lake lake/v tank tank/v tank/v@s"),
            // What is named is there, and once.
            ("-r lake/v lake/v@s tank/v tank/v@s", "lake/v lake/v@s tank/v tank/v@s"),
            ("-t fs,vol -r tank", "tank tank/v"),
            ("-t snap", "lake/v@s tank/v@s"),
        ] {
            let listed = lab.run(&format!("zfs list -H -o name {line}")).ok();
            assert_eq!(listed.lines().collect::<Vec<_>>().join(" "), names, "{line}");
        }
    };
    is_heeded();
    let _daemon = lab.serve("serve --nbd 127.0.0.1:0");
    is_heeded();
}

/// Whether it lists snapshots is asked of the pool first, and all that is to be known of it was said then, too.
#[test]
fn what_is_said_of_a_pool_that_is_listed_is_said_once() {
    let lab = Lab::at(fixtures::pool("crash-main").dir);
    for line in ["-d . zfs list -H -o name -r pcrashmain", "-d . zfs list -H -o name"] {
        let said = lab.run(line);
        assert_eq!(said.code, Some(0), "{line}: {said:?}");
        assert_eq!(said.stderr.matches("was last used by host").count(), 1, "{line}: {said:?}");
    }
}

/// Without a daemon all devices were uninitialized: nobody had read what is on record.
#[test]
fn how_far_devices_are_initialized_is_told_without_a_daemon() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    lab.run(&format!("zpool create --size 128M tank mirror {here}/a {here}/b")).ok();
    assert_eq!(lab.run(&format!("zpool initialize -w tank {here}/a")).code, Some(0));
    let text = lab.run("zpool status -i -t tank").ok();
    let line = |end: &str| text.lines().find(|line| line.contains(&format!("{here}/{end} "))).unwrap();
    assert!(line("a").contains("(100% initialized, completed at "), "{text}");
    assert!(line("b").contains("(uninitialized)"), "{text}");
    assert_eq!(text.matches("(untrimmed)").count(), 2, "{text}");
}

/// It was 99 % of it, because columns of a row end in different places: who took that for unfinished had all of it written
/// over once more.
#[test]
fn a_raidz_device_that_is_initialized_is_so_without_a_daemon_too() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    lab.run(&format!("zpool create --size 128M tank raidz1 {here}/a {here}/b {here}/c")).ok();
    assert_eq!(lab.run(&format!("zpool initialize -w tank {here}/b")).code, Some(0));
    let text = lab.run("zpool status -i tank").ok();
    let line = text.lines().find(|line| line.contains(&format!("{here}/b "))).unwrap_or_default();
    assert!(line.contains("(100% initialized, completed at "), "{text}");
}

/// It stood there as if it were gone, although the manual says what it is.
#[test]
fn a_device_that_has_become_smaller_is_too_small() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    lab.run(&format!("zpool create --size 256M tank mirror {here}/a {here}/b")).ok();
    fs::File::options().write(true).open(lab.cwd().join("b")).unwrap().set_len(128 << 20).unwrap();
    let status = lab.run("zpool status tank").ok();
    let line = status.lines().find(|line| line.contains("/b ")).unwrap_or_default();
    assert!(line.contains("UNAVAIL") && line.ends_with("too small"), "{status}");
}

/// Healthy pools were named among the sick, and what could not be done was said twice.
#[test]
fn what_is_said_is_said_once_and_of_what_was_asked_about() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    lab.run(&format!("zpool create --size 128M sick mirror {here}/a {here}/b")).ok();
    lab.run(&format!("zpool create --size 128M well {here}/c")).ok();
    assert_eq!(lab.run("zpool status -x").ok(), "all pools are healthy\n");
    lab.run(&format!("zpool offline sick {here}/b")).ok();
    let text = lab.run("zpool status -x").ok();
    assert!(text.contains("pool: sick") && !text.contains("well"), "{text}");
    let text = lab.run("zpool status -x well sick").ok();
    assert!(text.contains("pool: sick") && text.ends_with("pool 'well' is healthy\n"), "{text}");
    for line in ["zpool clear nosuch", "zpool online nosuch x", "zpool reopen nosuch"] {
        let said = lab.run(line).fails(1);
        assert_eq!(said.lines().count(), 1, "{line}: {said}");
    }
}
