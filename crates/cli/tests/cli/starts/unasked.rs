//! Pools that no start opens by itself, as they may be another's by now: exported, destroyed, never imported here, taken over
//! by another host, or imported only until the next start. Whoever names one, or its place, gets it.

use std::{fs, path::PathBuf};

use super::{SERVE, is_open, listed_as_it_is, login, pool, remembered, serve_where_it_looks, stop};
use crate::support::{Daemon, Lab, sha256, wait_until};

/// A daemon whose drives were late opened what others had exported, for writing.
#[test]
fn a_pool_that_is_exported_is_opened_only_by_who_names_it_or_its_place() {
    let lab = Lab::scratch();
    let paths = pool(&lab, "lake", "HERE/a");
    let here = lab.cwd().display().to_string();
    lab.run("zpool export lake").ok();
    let before = sha256(&paths[0]);
    let daemon = serve_where_it_looks(&lab, "");
    assert_eq!(lab.run("zpool list -H -o name").ok(), "");
    let said = stop(daemon);
    for part in ["'lake' is exported", "'zpool import lake'", "'millpond serve lake'", "no pool to serve yet"]
    {
        assert!(said.contains(part), "no {part:?} in: {said}");
    }
    // The same where another is imported that is late.
    let other = lab.path("other");
    lab.run(&format!("zpool create --size 128M tank {}", other.display())).ok();
    fs::remove_file(&other).unwrap();
    let daemon = serve_where_it_looks(&lab, "");
    assert_eq!(listed_as_it_is(&lab), "tank\tUNAVAIL\n");
    stop(daemon);
    assert_eq!(sha256(&paths[0]), before, "not a byte of it was written");
    stop(serve_where_it_looks(&lab, "lake"));
    lab.run("zpool export lake").ok();
    stop(lab.serve(&format!("-d {here} {SERVE}")));
    assert!(is_open(&lab, "lake"), "it is ours now");
}

/// A daemon that was started for the first time took what OpenZFS had left on the machine, and would not start for what another
/// host had.
#[test]
fn a_pool_that_was_never_imported_here_is_opened_only_by_who_names_it_or_its_place() {
    let is_left_alone = |lab: &Lab, pool: &str, device: &PathBuf| {
        let before = sha256(device);
        let daemon = serve_where_it_looks(lab, "");
        assert_eq!(lab.run("zpool list -H -o name").ok(), "");
        let said = stop(daemon);
        for part in [
            "no pool to serve yet",
            &format!("'{pool}' is there and was not opened, as it was not imported here"),
            &format!("'zpool import {pool}'"),
            &format!("'millpond serve {pool}'"),
        ] {
            assert!(said.contains(part), "no {part:?} in: {said}");
        }
        assert_eq!(sha256(device), before, "not a byte of it was written");
    };
    // Nobody exported it, and its labels have this host's id.
    let lab = Lab::scratch();
    let paths = pool(&lab, "lake", "HERE/a");
    let here = lab.cwd().display().to_string();
    let forget = || fs::remove_file(lab.path("state/pools.json")).unwrap();
    let is_served = |daemon: Daemon| {
        assert!(is_open(&lab, "lake"));
        stop(daemon);
    };
    forget();
    is_left_alone(&lab, "lake", &paths[0]);
    is_served(serve_where_it_looks(&lab, "lake"));
    forget();
    is_served(lab.serve(&format!("-d {here} {SERVE}")));
    forget();
    // As whoever lost the state directory does, while the daemon runs.
    let daemon = serve_where_it_looks(&lab, "");
    lab.run(&format!("zpool import -d {here} lake")).ok();
    is_served(daemon);
    is_served(serve_where_it_looks(&lab, ""));
    // Another host has it.
    let fixture = fixtures::pool("crash-main");
    let lab = Lab::copy_of(&fixture);
    let device = lab.cwd().join(fixture.images()[0].file_name().unwrap());
    is_left_alone(&lab, "pcrashmain", &device);
}

/// A destroyed pool kept its name from being used, was listed as if it was in use, and was waited for.
#[test]
fn a_destroyed_pool_is_a_candidate_for_nothing_but_an_import_that_asks_for_it() {
    let lab = Lab::scratch();
    pool(&lab, "tank", "HERE/a");
    lab.run("zpool destroy tank").ok();
    let here = lab.cwd().display().to_string();
    assert_eq!(lab.run(&format!("-d {here} zpool list -H")).ok(), "", "nothing is left");
    pool(&lab, "tank", "HERE/b");
    let guid = lab.run("zpool get -H -o value guid tank").ok();
    let listed = lab.run(&format!("-d {here} zpool list -H -o name,guid")).ok();
    assert_eq!(listed, format!("tank\t{guid}"));
    assert!(lab.run(&format!("-d {here} zpool status tank")).ok().contains("/b"));
    // It is back when it is asked for, under another name.
    let shown = lab.run(&format!("zpool import -D -d {here}")).ok();
    assert!(shown.contains("tank") && shown.contains("DESTROYED"), "{shown}");
    for words in ["", " tank"] {
        let daemon = lab.serve(&format!("-d {here} {SERVE}{words}"));
        assert_eq!(login(&lab, "tank/v"), "in");
        assert_eq!(login(&lab, "tank/none"), "login: status 0x2/0x3", "not found");
        stop(daemon);
    }
}

/// A daemon whose pool was taken over meanwhile opened it again, for writing, as soon as the other host gave it away.
#[test]
fn a_pool_that_another_host_took_over_and_exported_is_not_taken_back() {
    let lab = Lab::scratch();
    let paths = pool(&lab, "tank", "HERE/a");
    let other = Lab::at(lab.cwd());
    let here = lab.cwd().display().to_string();
    other.run(&format!("zpool import -f -d {here} tank")).ok();
    let theirs = other.serve(SERVE);
    let daemon = lab.begin_telling("server=debug", SERVE).ready();
    assert_eq!(listed_as_it_is(&lab), "tank\tUNAVAIL\n", "it is in use");
    let known = || fs::read_to_string(lab.path("state/pools.json")).unwrap();
    assert!(known().contains("tank"), "{}", known());
    other.run("zpool export tank").ok();
    let before = sha256(&paths[0]);
    wait_until(|| !known().contains("tank"));
    wait_until(|| daemon.said("no pool is awaited any more") > 0);
    assert_eq!(lab.run("zpool list -H -o name").ok(), "");
    let log = stop(daemon);
    assert_eq!(log.matches("is exported and was not opened").count(), 1, "{log}");
    assert_eq!(sha256(&paths[0]), before, "not a byte of it was written");
    stop(theirs);
    // One that was imported to be read only is what it was: exported.
    lab.run(&format!("zpool import -o readonly=on -d {here} tank")).ok();
    let daemon = lab.serve(SERVE);
    assert!(is_open(&lab, "tank"));
    stop(daemon);
    assert_eq!(sha256(&paths[0]), before);
}

/// Nobody noticed without a daemon: a timer's command took it back for writing while it was on its way elsewhere, and an import
/// of what was to come back was refused, as if it were here.
#[test]
fn a_pool_that_another_host_has_exported_is_neither_changed_by_commands_nor_in_the_way_of_its_import() {
    let lab = Lab::scratch();
    let paths = pool(&lab, "tank", "HERE/a");
    let other = Lab::at(lab.cwd());
    let here = lab.cwd().display().to_string();
    other.run(&format!("zpool import -f -d {here} tank")).ok();
    other.run("zpool export tank").ok();
    let before = sha256(&paths[0]);
    for line in ["zfs snapshot tank/v@s", "zpool destroy tank"] {
        let said = lab.run(line).fails(1);
        assert!(said.contains("'tank' is exported and was not opened"), "{line}: {said}");
        assert!(said.contains("'zpool import tank'"), "{line}: {said}");
    }
    assert_eq!(sha256(&paths[0]), before, "not a byte of it was written");
    let listed = lab.run(&format!("zpool import -d {here}")).ok();
    assert!(listed.contains("pool: tank"), "{listed}");
    lab.run(&format!("zpool import -d {here} tank")).ok();
    lab.run("zfs snapshot tank/v@s").ok();
    // It is here now.
    let said = lab.run(&format!("zpool import -d {here} tank")).fails(1);
    assert!(said.contains("a pool with that name already exists"), "{said}");
}

/// It was accepted and did nothing: after a crash the daemon of each host of a cluster opened the pool by itself.
#[test]
fn a_pool_with_cachefile_none_is_opened_by_no_start_until_it_is_imported_again() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    let cachefile = || lab.run("zpool get -H -o value,source cachefile tank").ok();
    // There is no other, so all that are there are looked at.
    let serve = || serve_where_it_looks(&lab, "");
    lab.run(&format!("zpool create --size 128M -o cachefile=none tank {here}/tank")).ok();
    assert_eq!(cachefile(), "none\tlocal\n");
    // Until then it is imported, whoever opens it.
    lab.run("zfs create -s -V 8M tank/v").ok();
    for (cache, how) in [("c0", "-o cachefile=none"), ("c1", "-R /mnt")] {
        let daemon = serve();
        assert!(!is_open(&lab, "tank"), "{how}");
        assert_eq!(lab.run(&format!("zpool import -d {here} {how} tank")).code, Some(0), "{how}");
        assert!(is_open(&lab, "tank"), "{how}");
        assert_eq!(cachefile(), "none\tlocal\n", "{how}");
        // Another command that notes its devices does not make more of it.
        lab.run(&format!("zpool add --size 128M tank cache {here}/{cache}")).ok();
        lab.run(&format!("zpool remove tank {here}/{cache}")).ok();
        assert!(remembered(&lab, "tank")["boot"].is_string(), "{how}");
        let said = stop(daemon);
        assert!(said.contains("'tank' was imported with cachefile=none and was not opened"), "{said}");
        // It was waited for as if its devices were gone.
        assert!(!said.contains("none of its devices is there"), "{said}");
        assert!(said.contains("no pool to serve yet"), "{said}");
    }
    let daemon = serve();
    assert_eq!(lab.run(&format!("zpool import -d {here} tank")).code, Some(0));
    assert_eq!(cachefile(), "-\tdefault\n");
    lab.run("zpool set cachefile=none tank").ok();
    assert_eq!(cachefile(), "none\tlocal\n");
    lab.run("zpool set cachefile= tank").ok();
    assert_eq!(cachefile(), "-\tdefault\n");
    stop(daemon);
    let daemon = serve();
    assert!(is_open(&lab, "tank"));
    stop(daemon);
}

/// The first command or daemon that named it after a start of the machine made it one that every start opens.
#[test]
fn a_pool_with_cachefile_none_stays_so_for_who_names_it_after_the_machine_was_started() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    lab.run(&format!("zpool create --size 128M -o cachefile=none tank {here}/tank")).ok();
    lab.run("zfs create -s -V 8M tank/v").ok();
    let serve = |words: &str| serve_where_it_looks(&lab, words);
    let machine_starts = || {
        let file = lab.path("state/pools.json");
        let mut all: serde_json::Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        all["pools"][0]["boot"] = "an earlier one".into();
        fs::write(&file, all.to_string()).unwrap();
    };
    let is_opened_by_no_start = || {
        let boot = remembered(&lab, "tank")["boot"].clone();
        assert!(boot.is_string() && boot != "an earlier one", "it is imported until the next start: {boot}");
        let daemon = serve("");
        assert!(!is_open(&lab, "tank"));
        stop(daemon);
    };
    machine_starts();
    lab.run(&format!("-d {here} zfs snapshot tank/v@s")).ok();
    is_opened_by_no_start();
    machine_starts();
    let daemon = serve("tank");
    assert!(is_open(&lab, "tank"));
    stop(daemon);
    is_opened_by_no_start();
}
