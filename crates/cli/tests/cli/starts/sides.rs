//! A start at which only some sides of a pool are there: which of them may be opened alone, and which have to wait for the others.

use std::{ffi::OsStr, fs, path::PathBuf};

use super::{SERVE, is_open, listed_as_it_is, login, pool, pull, remembered, stop};
use crate::support::{
    Lab, ask, port, served_as, sha256, wait_until,
    wire::{Nbd, Wire},
};

/// A mirror of which the first side went away, and the second has what was written since; both files are away now, where they
/// are not looked for. Another pool is served beside it.
fn with_a_stale_side(lab: &Lab) -> [(PathBuf, PathBuf); 2] {
    pool(lab, "tank", "HERE/t");
    let paths = pool(lab, "lake", "mirror HERE/a HERE/b");
    let away = lab.cwd().join("away");
    fs::create_dir(&away).unwrap();
    let [stale, new] =
        [&paths[0], &paths[1]].map(|path| (path.clone(), away.join(path.file_name().unwrap())));
    let daemon = lab.serve(SERVE);
    lab.run("zpool sync").ok();
    let newest = || remembered(lab, "lake")["newest"].as_u64();
    let before = newest();
    fs::rename(&stale.0, &stale.1).unwrap();
    wait_until(|| lab.run("zpool status lake").stdout.contains("REMOVED"));
    write(lab, 7);
    wait_until(|| newest() > before);
    for _ in 0..30 {
        lab.run("zpool sync lake").ok();
    }
    stop(daemon);
    fs::rename(&new.0, &new.1).unwrap();
    [stale, new]
}

/// Writes to the volume of the mirror, durably.
fn write(lab: &Lab, byte: u8) {
    nbd(lab).write(0, &[byte; 4096], true).unwrap();
}

/// A pool is listed before its volumes are offered.
pub(super) fn nbd(lab: &Lab) -> Nbd {
    let is_served = |served: &serde_json::Value| served["dataset"] == "lake/v";
    wait_until(|| ask(lab, "/v1/served")["served"].as_array().is_some_and(|all| all.iter().any(is_served)));
    Nbd::open(port(&served_as(lab, "lake/v", "nbd")), "lake/v").unwrap()
}

/// The side of a mirror that had been away answered first when the machine started: the pool was opened as of when it went,
/// without a word, and what had been acknowledged since was gone.
#[test]
fn a_stale_side_of_a_mirror_is_not_opened_while_the_side_with_the_newest_state_is_late() {
    let lab = Lab::scratch();
    let [stale, new] = with_a_stale_side(&lab);
    fs::rename(&stale.1, &stale.0).unwrap();
    let before = sha256(&stale.0);
    let daemon = lab.serve(SERVE);
    assert_eq!(listed_as_it_is(&lab), "lake\tUNAVAIL\ntank\tONLINE\n");
    assert_eq!(login(&lab, "lake/v"), "login: status 0x3/0x1", "service unavailable");
    let here = lab.cwd().display().to_string();
    let said = lab.run(&format!("zpool import -d {here} lake")).fails(1);
    let missing = format!("missing: {}\n", new.0.display());
    for part in
        ["cannot import 'lake': its newest state, of txg ", &missing, " UTC", "'zpool import -F lake'"]
    {
        assert!(said.contains(part), "no {part:?} in: {said}");
    }
    assert_eq!(sha256(&stale.0), before, "not a byte of it was written");
    fs::rename(&new.1, &new.0).unwrap();
    wait_until(|| is_open(&lab, "lake"));
    assert_eq!(nbd(&lab).read(0, 4096).unwrap(), [7; 4096]);
    let log = stop(daemon);
    assert!(log.contains("cannot open 'lake': its newest state, of txg "), "{log}");
}

/// A list that could not be read was one of no pools to a daemon that was told which to serve, or where they are, and to
/// commands with `-d`: what was imported to be read only was written to, and so was the stale side of a mirror.
#[test]
fn a_list_of_imports_that_cannot_be_read_is_no_reason_to_write_to_anything() {
    let is_refused = |lab: &Lab, line: &str| {
        // A daemon that starts would never end by itself.
        let bounded = [OsStr::new("timeout"), OsStr::new("60")];
        let output = lab.through(&bounded, line).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{line}: {said}");
        assert!(
            said.contains("pools.json' is not a cache file of this version; remove it"),
            "{line}: {said}"
        );
    };
    let unreadable = |lab: &Lab| fs::write(lab.path("state/pools.json"), "{nonsense").unwrap();
    let lab = Lab::scratch();
    let paths = pool(&lab, "lake", "HERE/a");
    let here = lab.cwd().display().to_string();
    lab.run("zpool export lake").ok();
    lab.run(&format!("zpool import -o readonly=on -d {here} lake")).ok();
    let before = sha256(&paths[0]);
    unreadable(&lab);
    is_refused(&lab, &format!("{SERVE} lake"));
    is_refused(&lab, &format!("-d {here} {SERVE}"));
    is_refused(&lab, &format!("-d {here} zfs snapshot lake/v@s"));
    assert_eq!(sha256(&paths[0]), before, "not a byte of it was written");
    // Whoever only looks finds it all the same.
    assert_eq!(lab.run(&format!("-d {here} zfs list -H -o name lake/v")).ok(), "lake/v\n");

    let lab = Lab::scratch();
    let [stale, _] = with_a_stale_side(&lab);
    fs::rename(&stale.1, &stale.0).unwrap();
    let before = sha256(&stale.0);
    unreadable(&lab);
    is_refused(&lab, &format!("{SERVE} lake"));
    assert_eq!(sha256(&stale.0), before, "not a byte of it was written");
}

/// Who goes on without the newest state says so, and can. What was given up was taken for what is only behind as soon as the
/// pool had got further, or for the pool itself at the next start.
#[test]
fn a_state_that_was_given_up_is_neither_overwritten_nor_taken_for_the_pool_by_itself() {
    let lab = Lab::scratch();
    let [stale, new] = with_a_stale_side(&lab);
    let here = lab.cwd().display().to_string();
    fs::rename(&stale.1, &stale.0).unwrap();
    let daemon = lab.serve(SERVE);
    assert_eq!(lab.run(&format!("zpool import -d {here} -F lake")).code, Some(0));
    write(&lab, 8);
    fs::rename(&new.1, &new.0).unwrap();
    let before = sha256(&new.0);
    let is_left_alone = || {
        wait_until(|| lab.run("zpool status lake").stdout.contains("has a newer state of the pool"));
        assert_eq!(lab.run("zpool list -H -o health lake").ok(), "DEGRADED\n");
        assert_eq!(nbd(&lab).read(0, 4096).unwrap(), [8; 4096]);
        assert_eq!(sha256(&new.0), before, "not a byte of it was written");
    };
    is_left_alone();
    // The first start finds it newer than the pool, the second one older.
    stop(daemon);
    let daemon = lab.serve(SERVE);
    is_left_alone();
    for _ in 0..60 {
        lab.run("zpool sync lake").ok();
    }
    is_left_alone();
    stop(daemon);
    let daemon = lab.serve(SERVE);
    is_left_alone();
    // Until somebody says that it is not needed, with the commands that the alert names.
    for command in ["zpool labelclear -f ", "zpool replace lake "] {
        let told = || {
            let alerts = lab.run("alert status").stdout;
            alerts.lines().map(str::trim).find(|line| line.starts_with(command)).map(str::to_owned)
        };
        wait_until(|| told().is_some());
        lab.run(&told().unwrap()).ok();
    }
    wait_until(|| is_open(&lab, "lake"));
    stop(daemon);
    stop(lab.serve(SERVE));
    let known = remembered(&lab, "lake");
    assert!(known["apart"].is_null(), "{known:#}");
}

/// People were told that the metadata is corrupted, and to create the pool anew from a backup, where one drive was not there yet.
#[test]
fn a_pool_whose_metadata_only_a_late_side_has_says_which_that_is() {
    let lab = Lab::scratch();
    let paths = pool(&lab, "lake", "mirror HERE/a HERE/b");
    // As a side is that was attached a moment ago: it has labels, and nothing else.
    let empty = fs::File::options().write(true).open(&paths[1]).unwrap();
    let len = empty.metadata().unwrap().len();
    empty.set_len(4 << 20).unwrap();
    empty.set_len(len).unwrap();
    drop(empty);
    let away = lab.cwd().join("away");
    fs::create_dir(&away).unwrap();
    fs::rename(&paths[0], away.join("a")).unwrap();
    let says_so = || {
        let shown = lab.run("zpool status lake");
        assert!(shown.stdout.contains("  pool: lake\n state: UNAVAIL\n"), "{shown:?}");
        assert!(!shown.stdout.contains("Destroy and re-create"), "{shown:?}");
        assert!(!shown.stdout.contains("metadata is corrupted"), "{shown:?}");
        assert!(shown.stderr.contains("one or more devices is currently unavailable"), "{shown:?}");
        assert!(shown.stderr.contains(&format!(" was {}", paths[0].display())), "{shown:?}");
    };
    says_so();
    let daemon = lab.serve(SERVE);
    says_so();
    fs::rename(away.join("a"), &paths[0]).unwrap();
    wait_until(|| is_open(&lab, "lake"));
    stop(daemon);
}

/// The state of one of these devices, as it is shown.
pub(super) fn device_state(lab: &Lab, pool: &str, file: &str) -> String {
    let shown = lab.run(&format!("zpool status {pool}")).stdout;
    let lines = shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut devices = lines.filter(|words| words.first().is_some_and(|name| name.ends_with(file)));
    devices.next().and_then(|words| words.get(1).map(|state| (*state).to_owned())).unwrap_or_default()
}

/// Found by reading: with the newest state all devices that were missing were given up, also one that was only behind. Taken
/// back and resilvered, it was shut out as newer than the pool at every later start, and could not open it alone.
#[test]
fn a_device_that_was_only_behind_when_the_newest_state_was_given_up_is_of_the_pool_again() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    let paths = pool(&lab, "lake", "mirror HERE/a HERE/b HERE/c");
    let away = lab.cwd().join("away");
    fs::create_dir(&away).unwrap();
    let aside = |path: &PathBuf| away.join(path.file_name().unwrap());
    let take = |path: &PathBuf| fs::rename(path, aside(path)).unwrap();
    let bring = |path: &PathBuf| fs::rename(aside(path), path).unwrap();
    let [a, b, c] = &paths[..] else { panic!("{paths:?}") };
    let newest = || remembered(&lab, "lake")["newest"].as_u64().unwrap();
    let daemon = lab.serve(SERVE);
    for (path, file) in [(c, "/c"), (a, "/a")] {
        lab.run("zpool sync").ok();
        let before = newest();
        take(path);
        wait_until(|| device_state(&lab, "lake", file) == "REMOVED");
        write(&lab, 7);
        wait_until(|| newest() > before);
    }
    for _ in 0..30 {
        lab.run("zpool sync lake").ok();
    }
    stop(daemon);
    take(b);
    bring(a);
    let daemon = lab.serve(SERVE);
    assert_eq!(listed_as_it_is(&lab), "lake\tUNAVAIL\n");
    assert_eq!(lab.run(&format!("zpool import -d {here} -F lake")).code, Some(0));
    let apart = || remembered(&lab, "lake")["apart"].as_object().map_or(0, serde_json::Map::len);
    assert_eq!(apart(), 2);
    bring(c);
    wait_until(|| device_state(&lab, "lake", "/c") == "ONLINE");
    wait_until(|| !lab.run("zpool status lake").stdout.contains("resilver in progress"));
    wait_until(|| apart() == 1);
    write(&lab, 8);
    stop(daemon);
    let daemon = lab.serve(SERVE);
    assert_eq!(device_state(&lab, "lake", "/c"), "ONLINE");
    assert_eq!(apart(), 1, "what was given up is so still");
    stop(daemon);
    // All that was acknowledged is on it, too.
    take(a);
    let daemon = lab.serve(SERVE);
    assert_eq!(lab.run("zpool list -H -o health lake").ok(), "DEGRADED\n");
    assert_eq!(nbd(&lab).read(0, 4096).unwrap(), [8; 4096]);
    stop(daemon);
}

/// Found by reading: a side that had left the pool while its labels could not be cleared was a mirror's still, by what they
/// said. When the other was late it was the pool, as of when it had left, and was written to.
#[test]
fn a_side_that_left_the_pool_with_its_labels_does_not_open_it_alone() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    let paths = pool(&lab, "lake", "mirror HERE/a HERE/b");
    let [a, b] = &paths[..] else { panic!("{paths:?}") };
    let daemon = lab.serve(SERVE);
    write(&lab, 7);
    stop(daemon);
    // Where it is not looked for.
    let with_labels = lab.cwd().join("aside/b");
    fs::create_dir(lab.cwd().join("aside")).unwrap();
    fs::copy(b, &with_labels).unwrap();
    let daemon = lab.serve(SERVE);
    lab.run(&format!("zpool detach lake {}", b.display())).ok();
    write(&lab, 8);
    stop(daemon);
    fs::copy(&with_labels, b).unwrap();
    let away = pull(&lab, a);
    let before = sha256(b);
    let daemon = lab.serve(&format!("-d {here} {SERVE}"));
    assert_eq!(listed_as_it_is(&lab), "lake\tUNAVAIL\n");
    assert_eq!(sha256(b), before, "not a byte of it was written");
    fs::copy(&away, a).unwrap();
    wait_until(|| is_open(&lab, "lake"));
    assert_eq!(nbd(&lab).read(0, 4096).unwrap(), [8; 4096]);
    stop(daemon);
    assert_eq!(sha256(b), before, "not a byte of it was written");
}

/// How new the pool was is remembered at each start, and disks that were given back what they held before are older.
#[test]
fn a_pool_whose_disks_were_all_restored_is_opened_and_goes_on_from_there() {
    let lab = Lab::scratch();
    let paths = pool(&lab, "lake", "mirror HERE/a HERE/b");
    let daemon = lab.serve(SERVE);
    write(&lab, 7);
    stop(daemon);
    let aside = lab.cwd().join("aside");
    fs::create_dir(&aside).unwrap();
    let backups: Vec<(&PathBuf, PathBuf)> =
        paths.iter().map(|path| (path, aside.join(path.file_name().unwrap()))).collect();
    for (path, backup) in &backups {
        fs::copy(path, backup).unwrap();
    }
    let daemon = lab.serve(SERVE);
    write(&lab, 8);
    for _ in 0..30 {
        lab.run("zpool sync lake").ok();
    }
    stop(daemon);
    stop(lab.serve(SERVE));
    let newest = || remembered(&lab, "lake")["newest"].as_u64();
    let before = newest();
    for (path, backup) in &backups {
        fs::copy(backup, path).unwrap();
    }
    let daemon = lab.serve(SERVE);
    assert!(is_open(&lab, "lake"));
    assert_eq!(nbd(&lab).read(0, 4096).unwrap(), [7; 4096]);
    assert!(newest() < before, "{:?}", newest());
    stop(daemon);
    // Either side is the pool now.
    pull(&lab, &paths[0]);
    let daemon = lab.serve(SERVE);
    assert_eq!(lab.run("zpool list -H -o health lake").ok(), "DEGRADED\n");
    assert_eq!(nbd(&lab).read(0, 4096).unwrap(), [7; 4096]);
    stop(daemon);
}
