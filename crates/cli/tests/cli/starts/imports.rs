//! What is remembered of imported pools: it is not forgotten for another pool, nor because drives are late; it is found again
//! under other names, and not mistaken for an older copy; and where nothing can be written down, that is said.

use std::{fs, path::PathBuf};

use super::{SERVE, is_open, pool, pull, remembered, stop};
use crate::support::{Lab, sha256};

/// It was forgotten without a word, and was not opened any more when its drives came.
#[test]
fn a_pool_whose_drives_are_late_is_not_forgotten_for_a_new_one_of_its_name() {
    let lab = Lab::scratch();
    let tank = pool(&lab, "tank", "HERE/a");
    let known = remembered(&lab, "tank");
    pull(&lab, &tank[0]);
    let other = lab.path("other").display().to_string();
    let create = format!("zpool create --size 128M tank {other}");
    let daemon = lab.serve(SERVE);
    for dry_run in ["", " -n"] {
        let said = lab.run(&create.replace("create", &format!("create{dry_run}"))).fails(1);
        assert!(said.contains("pool already exists: it was imported from"), "{said}");
        assert!(said.contains("'zpool export tank'"), "{said}");
    }
    assert_eq!(remembered(&lab, "tank"), known);
    lab.run("zpool export tank").ok();
    lab.run(&create).ok();
    assert_ne!(remembered(&lab, "tank")["guid"], known["guid"]);
    stop(daemon);
}

/// `zpool import` forgot it for another one, with a daemon and without.
#[test]
fn a_pool_whose_drives_are_late_is_not_forgotten_for_an_import_of_its_name() {
    let lab = Lab::scratch();
    let tank = pool(&lab, "tank", "HERE/a");
    let known = remembered(&lab, "tank");
    let away = pull(&lab, &tank[0]);
    let (there, elsewhere) = (Lab::scratch(), Lab::scratch());
    pool(&there, "tank", "HERE/b");
    there.run("zpool export tank").ok();
    let import = format!("zpool import -d {} tank", there.cwd().display());
    let is_refused = || {
        let said = lab.run(&import).fails(1);
        assert!(said.contains("another pool of that name was imported from"), "{said}");
        assert!(said.contains("'zpool export tank'"), "{said}");
        assert_eq!(remembered(&lab, "tank"), known);
    };
    is_refused();
    let daemon = lab.serve(SERVE);
    is_refused();
    lab.run(&format!("{import} other")).ok();
    assert_eq!(remembered(&lab, "tank"), known);
    // The pool that is waited for may be imported itself, wherever it is now.
    fs::copy(&away, elsewhere.cwd().join("a")).unwrap();
    lab.run(&format!("zpool import -d {} tank", elsewhere.cwd().display())).ok();
    assert_eq!(remembered(&lab, "tank")["guid"], known["guid"]);
    stop(daemon);
}

/// Nothing took it from the cache file, although an alert said that an export would.
#[test]
fn a_pool_that_cannot_be_opened_can_be_forgotten_and_its_name_be_had_again() {
    let lab = Lab::scratch();
    let paths = pool(&lab, "rz", "raidz1 HERE/r0 HERE/r1 HERE/r2");
    paths[..2].iter().for_each(|path| drop(pull(&lab, path)));
    let left = sha256(&paths[2]);
    let create = format!("zpool create --size 128M rz {}", lab.path("other").display());
    let is_refused = || {
        let said = lab.run(&create).fails(1);
        assert!(said.contains("pool already exists: it is imported here"), "{said}");
        assert!(said.contains("'zpool export rz'"), "{said}");
        let said = lab.run("zpool destroy rz").fails(1);
        assert!(said.contains("cannot open 'rz'") && said.contains("'zpool export rz'"), "{said}");
    };
    is_refused();
    let daemon = lab.serve(SERVE);
    is_refused();
    let exported = lab.run("zpool export rz");
    assert_eq!(exported.code, Some(0), "{exported:?}");
    assert!(exported.stderr.contains("its devices were not touched"), "{exported:?}");
    assert_eq!(lab.run("zpool list -H -o name").ok(), "");
    assert_eq!(sha256(&paths[2]), left);
    lab.run(&create).ok();
    stop(daemon);
}

/// What cannot be opened is only forgotten: of a pool that is served through another socket that would be half an export.
#[test]
fn a_pool_that_somebody_else_has_open_is_not_forgotten() {
    let lab = Lab::scratch();
    let paths = pool(&lab, "tank", "HERE/a");
    let held = fs::File::options().read(true).write(true).open(&paths[0]).unwrap();
    held.try_lock().unwrap();
    let refused = lab.run("zpool export tank").fails(1);
    assert!(refused.contains("pool is in use"), "{refused}");
    drop(held);
    assert_eq!(remembered(&lab, "tank")["name"], "tank");
    lab.run("zpool export tank").ok();
}

/// One that was where it had been was enough, and nobody looked for the other: it was "missing", and a daemon that was told which
/// pools to serve did not start.
#[test]
fn a_stripe_of_which_one_device_has_another_name_now_is_found_by_its_labels() {
    let lab = Lab::scratch();
    let paths = pool(&lab, "tank", "HERE/a HERE/b");
    let moved = lab.cwd().join("c");
    fs::rename(&paths[1], &moved).unwrap();
    fs::write(&paths[1], "").unwrap();
    assert_eq!(lab.run("zfs list -H -o name -r tank").ok(), "tank\ntank/v\n");
    stop(lab.serve(&format!("{SERVE} tank")));
    let known = remembered(&lab, "tank");
    let devices = known["devices"].as_array().unwrap();
    let is_known = |path: &PathBuf| devices.iter().any(|device| device.as_str() == path.to_str());
    assert!(is_known(&moved) && !is_known(&paths[1]), "{known}");
    // And where pools are searched.
    let elsewhere = lab.path("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::copy(&moved, elsewhere.join("d")).unwrap();
    fs::remove_file(&moved).unwrap();
    let mut command = lab.command("millpond");
    command.args(["zfs", "snapshot", "tank@x"]).env("ZPOOL_IMPORT_PATH", &elsewhere);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(lab.run("zfs list -H -o name -t snapshot").ok(), "tank@x\n");
}

/// A copy of last week beside a stripe's file was taken for the device that was missing, and written to: neither it nor the device
/// was whole from then on.
#[test]
fn an_older_copy_of_a_device_that_is_missing_is_not_taken_for_it() {
    let lab = Lab::scratch();
    let paths = pool(&lab, "tank", "HERE/a HERE/b");
    // It has what the pool had when that was opened last.
    let daemon = lab.serve(SERVE);
    lab.run("zfs snapshot tank/v@before").ok();
    let copy = lab.cwd().join("b.old");
    fs::copy(&paths[1], &copy).unwrap();
    lab.run("zfs snapshot tank/v@after").ok();
    stop(daemon);
    let away = pull(&lab, &paths[1]);
    let before = sha256(&copy);
    let said = lab.run("zfs snapshot tank/v@x").fails(1);
    for part in ["cannot open 'tank': ", "b.old is one of them as of txg ", "'zpool import -d DIR tank'"] {
        assert!(said.contains(part), "no {part:?} in: {said}");
    }
    // One that is as new is found by its labels all the same.
    let moved = lab.cwd().join("c");
    fs::copy(&away, &moved).unwrap();
    let taken = lab.run("zfs snapshot tank/v@x");
    assert_eq!(taken.code, Some(0), "{taken:?}");
    let known = remembered(&lab, "tank")["devices"].to_string();
    assert!(known.contains(moved.to_str().unwrap()) && !known.contains("b.old"), "{known}");
    assert_eq!(sha256(&copy), before, "not a byte of it was written");
}

/// An import ended with success, and the next command knew no such pool; a daemon said nothing until it had forgotten.
#[test]
fn where_nothing_can_be_remembered_an_import_fails_with_a_remedy_and_a_daemon_says_so() {
    let lab = Lab::scratch();
    pool(&lab, "tank", "HERE/a");
    let here = lab.cwd().display().to_string();
    lab.run("zpool export tank").ok();
    // Nobody makes a directory there, not even root.
    let said = lab.run(&format!("--state /proc/none zpool import -d {here} tank")).fails(1);
    assert!(said.contains("'tank' is imported, and cannot be remembered"), "{said}");
    assert!(said.contains(&format!("'zpool import -d {here} tank'")), "{said}");
    lab.run(&format!("zpool import -d {here} tank")).ok();
    let mut daemon = lab.serve(&format!("--state /proc/none {SERVE}"));
    daemon.signal("TERM");
    daemon.wait();
    let said = daemon.stderr();
    assert_eq!(said.matches("nothing can be kept in the state directory").count(), 1, "{said}");
    assert!(said.contains("/proc/none"), "{said}");
}

/// A daemon whose state directory was full did not start, and served none of its pools, as one of them was to be forgotten.
#[test]
fn a_pool_that_was_given_away_and_cannot_be_forgotten_keeps_no_daemon_from_its_start() {
    let lab = Lab::scratch();
    let paths = pool(&lab, "tank", "HERE/a");
    pool(&lab, "lake", "HERE/b");
    let other = Lab::at(lab.cwd());
    other.run(&format!("zpool import -f -d {} tank", lab.cwd().display())).ok();
    other.run("zpool export tank").ok();
    let before = sha256(&paths[0]);
    // In the way of whoever replaces the cache file, be it root.
    let in_the_way = lab.path("state/pools.json.new");
    fs::create_dir_all(in_the_way.join("full")).unwrap();
    let daemon = lab.serve(SERVE);
    assert!(is_open(&lab, "lake"));
    assert_eq!(lab.run("zpool list -H -o name").ok(), "lake\n", "nobody waits for what was given away");
    let log = stop(daemon);
    for part in ["'tank' is exported and was not opened", "'tank' stays remembered: cannot write "] {
        assert_eq!(log.matches(part).count(), 1, "{part:?} in: {log}");
    }
    assert_eq!(remembered(&lab, "tank")["name"], "tank");
    fs::remove_dir_all(&in_the_way).unwrap();
    stop(lab.serve(SERVE));
    let known = fs::read_to_string(lab.path("state/pools.json")).unwrap();
    assert!(!known.contains("tank") && known.contains("lake"), "{known}");
    assert_eq!(sha256(&paths[0]), before, "not a byte of it was written");
}

/// A daemon whose state directory was full did not start, and served none of its pools, as the import of one was over.
#[test]
fn a_pool_whose_import_is_over_keeps_no_daemon_from_its_start_if_that_cannot_be_written_down() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    lab.run(&format!("zpool create --size 128M -o cachefile=none tank {here}/a")).ok();
    pool(&lab, "lake", "HERE/b");
    // In the way of whoever replaces the cache file, be it root.
    let in_the_way = lab.path("state/pools.json.new");
    fs::create_dir_all(in_the_way.join("full")).unwrap();
    let daemon = lab.serve(SERVE);
    assert!(is_open(&lab, "lake"));
    assert_eq!(lab.run("zpool list -H -o name").ok(), "lake\n", "nobody waits for it");
    let log = stop(daemon);
    let told = "'tank' was imported with cachefile=none and was not opened";
    for part in [told, "'tank' stays remembered: cannot write "] {
        assert_eq!(log.matches(part).count(), 1, "{part:?} in: {log}");
    }
    fs::remove_dir_all(&in_the_way).unwrap();
    let log = stop(lab.serve(SERVE));
    assert!(log.contains(told) && !log.contains("stays remembered"), "{log}");
    assert_eq!(remembered(&lab, "tank")["boot"], "");
}
