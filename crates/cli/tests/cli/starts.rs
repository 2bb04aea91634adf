//! Which pools a start finds: those that are imported here, however they were imported, when their drives come, and no others.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{
        fs::{FileExt as _, MetadataExt as _},
        net::UnixListener,
    },
    path::PathBuf,
    process::Stdio,
    thread,
    time::Duration,
};

use crate::support::{
    Daemon, Lab, ask, served_as, sha256, wait_until,
    wire::{Iscsi, Nbd, Trouble, Wire},
};

mod sides;

const SERVE: &str = "serve --nbd 127.0.0.1:0 --iscsi 127.0.0.1:0";

/// A pool on files of this test, with a volume.
fn pool(lab: &Lab, name: &str, layout: &str) -> Vec<PathBuf> {
    let here = lab.cwd().display().to_string();
    lab.run(&format!("zpool create --size 128M {name} {}", layout.replace("HERE", &here))).ok();
    lab.run(&format!("zfs create -s -V 8M {name}/v")).ok();
    let paths = layout.split_whitespace().filter_map(|word| word.strip_prefix("HERE/"));
    paths.map(|name| lab.cwd().join(name)).collect()
}

/// Moves a file away. Where it goes is no directory in which it would be looked for.
fn pull(lab: &Lab, path: &PathBuf) -> PathBuf {
    let away = lab.path(path.file_name().unwrap().to_str().unwrap());
    fs::copy(path, &away).unwrap();
    fs::remove_file(path).unwrap();
    away
}

/// The entry of a pool in the cache file.
fn remembered(lab: &Lab, pool: &str) -> serde_json::Value {
    let text = fs::read_to_string(lab.path("state/pools.json")).unwrap();
    let all: serde_json::Value = serde_json::from_str(&text).unwrap();
    let found = all["pools"].as_array().unwrap().iter().find(|known| known["name"] == pool);
    found.unwrap_or_else(|| panic!("{pool} is not in {text}")).clone()
}

/// The next device command forgot `-m`, and the start after it refused the pool for the log that had been given up.
#[test]
fn a_pool_that_may_lack_its_log_may_so_until_the_log_is_back_or_gone_for_good() {
    let lab = Lab::scratch();
    let paths = pool(&lab, "tank", "mirror HERE/a HERE/b log HERE/log");
    let here = lab.cwd().display().to_string();
    lab.run("zpool export tank").ok();
    let away = pull(&lab, &paths[2]);
    lab.run(&format!("zpool import -d {here} tank")).fails(1);
    assert_eq!(lab.run(&format!("zpool import -d {here} -m tank")).code, Some(0));
    lab.run(&format!("zpool offline tank {here}/a")).ok();
    lab.run(&format!("zpool online tank {here}/a")).ok();
    lab.run(&format!("zpool add --size 128M tank cache {here}/cache")).ok();
    lab.run(&format!("zpool remove tank {here}/cache")).ok();
    let known = remembered(&lab, "tank");
    assert_eq!(known["missing_log"], true, "{known:#}");
    let has = |path: &PathBuf| known["devices"].to_string().contains(path.to_str().unwrap());
    assert!(has(&paths[2]), "the log is looked for where it was: {known:#}");
    let daemon = lab.serve(SERVE);
    assert!(daemon.stop().success());
    // Back: from now on it is not to be missing again.
    fs::copy(&away, &paths[2]).unwrap();
    lab.run("zpool clear tank").ok();
    let state = lab.run("zpool list -H -v -o name,health tank").ok();
    assert!(!state.contains("UNAVAIL"), "{state}");
    assert_eq!(remembered(&lab, "tank")["missing_log"], false);
}

/// It was listed as a pool that can be imported; the import then refused it without `-m`.
#[test]
fn a_pool_that_lacks_its_log_is_listed_with_the_flag_that_its_import_takes() {
    let lab = Lab::scratch();
    let paths = pool(&lab, "tank", "mirror HERE/a HERE/b log HERE/log");
    let here = lab.cwd().display().to_string();
    lab.run("zpool export tank").ok();
    let told = "A log device is missing: the '-m' flag is needed, which gives up what only the log holds.";
    let listed = || {
        let text = lab.run(&format!("zpool import -d {here}")).ok();
        assert!(text.contains(" action: The pool can be imported"), "{text}");
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words.contains(told), lab.run(&format!("zpool import -j -d {here}")).ok().contains(told));
        words.contains(told)
    };
    assert!(!listed());
    pull(&lab, &paths[2]);
    assert!(listed());
}

/// It was called by its guid only, which nobody knows a pool by.
#[test]
fn a_pool_that_is_not_imported_with_the_others_is_called_by_its_name() {
    let lab = Lab::scratch();
    let paths = pool(&lab, "tank", "mirror HERE/a HERE/b log HERE/log");
    let here = lab.cwd().display().to_string();
    lab.run("zpool export tank").ok();
    pull(&lab, &paths[2]);
    let said = lab.run(&format!("zpool import -d {here} -a")).fails(1);
    assert!(said.starts_with("cannot import 'tank': ") && said.contains("use '-m'"), "{said}");
    // Of two with one name the first gets it, and the guid tells which the other is.
    let mut guids = Vec::new();
    for file in ["c", "d"] {
        pool(&lab, "lake", &format!("HERE/{file}"));
        guids.push(lab.run("zpool get -H -o value guid lake").ok().trim().to_owned());
        lab.run("zpool export lake").ok();
    }
    let said = lab.run(&format!("zpool import -d {here} -a")).fails(1);
    let is_told = |guid: &String| {
        said.contains(&format!("cannot import 'lake' ({guid}): a pool with that name already exists\n"))
    };
    assert_eq!(guids.iter().filter(|guid| is_told(guid)).count(), 1, "{said}");
}

/// How a login to the target of this volume ends.
fn login(lab: &Lab, volume: &str) -> String {
    // The portal's port, by any volume that is served.
    let port = served_as(lab, "tank/v", "iscsi").split([':', '/']).nth(4).unwrap().parse().unwrap();
    let target = format!("iqn.2026-11.io.millpond:{}", volume.replace('/', ":"));
    match Iscsi::open(port, &target, 1) {
        Ok(_) => "in".to_owned(),
        Err(Trouble::Refused(why)) => why,
        Err(Trouble::Gone(error)) => panic!("{target}: {error}"),
    }
}

fn is_open(lab: &Lab, pool: &str) -> bool {
    let listed = lab.run("zpool list -H -o name,health").stdout;
    listed.lines().any(|line| line == format!("{pool}\tONLINE"))
}

/// What is listed where a pool cannot be opened.
#[track_caller]
fn listed_with_a_failure(lab: &Lab) -> String {
    let listed = lab.run("zpool list -H -o name,health");
    assert_eq!(listed.code, Some(1), "{listed:?}");
    assert!(listed.stderr.contains("cannot open '"), "{listed:?}");
    listed.stdout
}

/// With a daemon it was nowhere to be seen, without one only if a device was left; and all pools were healthy. Lists of what
/// pools have went without it and said nothing, and who changed who is offered what got another pool for it.
#[test]
fn an_imported_pool_that_cannot_be_opened_is_seen_with_a_daemon_and_without() {
    let lab = Lab::scratch();
    pool(&lab, "good", "HERE/g");
    let paths = pool(&lab, "rz", "raidz1 HERE/r0 HERE/r1 HERE/r2");
    let is_seen = || {
        assert_eq!(listed_with_a_failure(&lab), "good\tONLINE\nrz\tUNAVAIL\n");
        for line in ["zpool status", "zpool status -x", "zpool status rz"] {
            let shown = lab.run(line);
            assert_eq!(shown.code, Some(1), "{line}: {shown:?}");
            assert!(shown.stdout.contains("  pool: rz\n state: UNAVAIL\nstatus: "), "{line}: {shown:?}");
            assert!(!shown.stdout.contains("healthy"), "{line}: {shown:?}");
            assert!(shown.stderr.contains("cannot open 'rz': "), "{line}: {shown:?}");
        }
        for line in ["zfs list -H -o name", "zfs get -H -o name type", "share list", "zpool iostat -H"] {
            let shown = lab.run(line);
            assert_eq!(shown.code, Some(1), "{line}: {shown:?}");
            assert!(shown.stdout.contains("good"), "{line}: {shown:?}");
            assert!(shown.stderr.contains("cannot open 'rz': "), "{line}: {shown:?}");
        }
        let which = lab.run("share portal add 127.0.0.9").fails(2);
        assert!(which.starts_with("there are several pools"), "{which}");
        let target = lab.run("share chap clear iqn.2026-11.com.example:t").fails(1);
        assert!(target.contains("if 'rz' has it, say so with --pool"), "{target}");
        // Whoever asks about another pool is not told.
        lab.run("zfs list -H -r good").ok();
        lab.run("share --pool good list").ok();
    };
    // Too few devices are left, then none.
    for gone in [&paths[..2], &paths[2..]] {
        gone.iter().for_each(|path| drop(pull(&lab, path)));
        is_seen();
        let daemon = lab.serve(SERVE);
        is_seen();
        let pools = ask(&lab, "/v1/pools");
        assert_eq!(pools[1]["name"], "rz", "{pools:#}");
        assert_eq!(pools[1]["txg"], 0, "{pools:#}");
        assert!(pools[1]["problems"][0].is_string(), "{pools:#}");
        stop(daemon);
    }
}

fn stop(mut daemon: Daemon) -> String {
    daemon.signal("TERM");
    assert_eq!(daemon.wait().code(), Some(0));
    daemon.stderr()
}

/// It was accepted and did nothing: after a crash the daemon of each host of a cluster opened the pool by itself.
#[test]
fn a_pool_with_cachefile_none_is_opened_by_no_start_until_it_is_imported_again() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    let cachefile = || lab.run("zpool get -H -o value,source cachefile tank").ok();
    // There is no other, so all that are there are looked at.
    let serve = || {
        let mut command = lab.command("millpond");
        lab.serve_by(command.args(SERVE.split(' ')).env("ZPOOL_IMPORT_PATH", &here))
    };
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
    let serve = |words: &str| {
        let mut command = lab.command("millpond");
        command.env("ZPOOL_IMPORT_PATH", &here).args(SERVE.split(' ')).args(words.split_whitespace());
        lab.serve_by(&mut command)
    };
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

/// It was never tried again, and `zpool import` did not show it: only who knew that could bring it back.
#[test]
fn a_pool_whose_drives_come_after_the_daemon_is_served_when_they_are_there() {
    let lab = Lab::scratch();
    pool(&lab, "tank", "HERE/a");
    let lake = pool(&lab, "lake", "HERE/b HERE/c");
    let here = lab.cwd().display().to_string();
    let away = lake.iter().map(|path| pull(&lab, path)).collect::<Vec<_>>();
    let daemon = lab.serve(SERVE);
    assert_eq!(login(&lab, "lake/v"), "login: status 0x3/0x1", "service unavailable");
    // The first drive alone makes no pool; what is in the way can be seen.
    fs::copy(&away[0], &lake[0]).unwrap();
    let listed = lab.run(&format!("zpool import -d {here}")).ok();
    assert!(listed.contains("pool: lake") && !listed.contains("pool: tank"), "{listed}");
    fs::copy(&away[1], &lake[1]).unwrap();
    wait_until(|| is_open(&lab, "lake"));
    assert_eq!(login(&lab, "lake/v"), "in");
    let port = served_as(&lab, "lake/v", "nbd").split([':', '/']).nth(4).unwrap().parse().unwrap();
    Nbd::open(port, "lake/v").unwrap().write(0, &[7; 4096], true).unwrap();
    assert_eq!(lab.run(&format!("zpool import -d {here}")).fails(1), "no pools available to import\n");
    let log = stop(daemon);
    assert_eq!(log.matches("is open now").count(), 1, "{log}");
    assert!(log.matches("server::late").count() <= 2, "a reason is said once: {log}");
}

/// A timer's scrub that began before the daemon kept the pool, and all hosts without it, until the scrub was over.
#[test]
fn a_command_that_stays_for_what_it_began_gives_way_to_a_daemon() {
    let lab = Lab::scratch();
    let paths = pool(&lab, "tank", "HERE/a");
    let mut command = lab.command("millpond");
    // Minutes.
    command.args(["zpool", "trim", "-r", "1M", "tank"]);
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until(|| fs::File::open(&paths[0]).unwrap().try_lock().is_err());
    let daemon = lab.serve(SERVE);
    wait_until(|| is_open(&lab, "tank"));
    assert_eq!(login(&lab, "tank/v"), "in");
    let output = command.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), said.contains("a daemon has come")), (Some(0), true), "{said}");
    let status = lab.run("zpool status -t tank").ok();
    assert!(status.contains("% trimmed, started at "), "it goes on: {status}");
    stop(daemon);
}

/// A command that gives way closes its pool first, which may take seconds: a daemon that was told which pools to serve ended
/// meanwhile, and with it all who waited for them.
#[test]
fn a_daemon_that_was_told_what_to_serve_waits_for_who_is_about_to_let_go_of_it() {
    let lab = Lab::scratch();
    let paths = pool(&lab, "tank", "HERE/a");
    let held = fs::File::options().read(true).write(true).open(&paths[0]).unwrap();
    held.try_lock().unwrap();
    let lets_go = thread::spawn(move || {
        thread::sleep(Duration::from_secs(4));
        drop(held);
    });
    let daemon = lab.serve(&format!("{SERVE} tank"));
    assert!(is_open(&lab, "tank"));
    lets_go.join().unwrap();
    stop(daemon);
}

/// With `-d` there was no warning, no alert, and hosts gave its targets up for good.
#[test]
fn a_late_pool_is_waited_for_where_the_daemon_was_told_to_look() {
    let lab = Lab::scratch();
    pool(&lab, "tank", "HERE/a");
    let lake = pool(&lab, "lake", "HERE/b");
    pool(&lab, "elsewhere", &lab.path("elsewhere").display().to_string());
    let here = lab.cwd().display().to_string();
    let away = pull(&lab, &lake[0]);
    let daemon = lab.serve(&format!("-d {here} {SERVE}"));
    assert_eq!(login(&lab, "lake/v"), "login: status 0x3/0x1", "service unavailable");
    assert_eq!(login(&lab, "elsewhere/v"), "login: status 0x2/0x3", "not this daemon's");
    fs::copy(&away, &lake[0]).unwrap();
    wait_until(|| is_open(&lab, "lake"));
    assert_eq!(login(&lab, "lake/v"), "in");
    let log = stop(daemon);
    assert!(log.contains("cannot open 'lake': none of its devices is there"), "{log}");
    assert!(!log.contains("cannot open 'elsewhere'"), "{log}");
    // And where nothing else is.
    fs::remove_file(&lake[0]).unwrap();
    fs::remove_file(lab.cwd().join("a")).unwrap();
    let daemon = lab.serve(&format!("-d {here} {SERVE}"));
    fs::copy(&away, &lake[0]).unwrap();
    wait_until(|| is_open(&lab, "lake"));
    stop(daemon);
}

/// Found by reading: one side of a mirror answers seconds before the other. Opened without it, the pool had to resilver it; and
/// if a power cut had left it a torn transaction group ahead it was never used again.
#[test]
fn a_device_that_comes_a_moment_after_the_others_of_its_pool_is_waited_for() {
    let lab = Lab::scratch();
    let paths = pool(&lab, "tank", "mirror HERE/a HERE/b");
    let away = lab.cwd().join("away");
    fs::create_dir(&away).unwrap();
    let aside = away.join("b");
    fs::rename(&paths[1], &aside).unwrap();
    let comes = thread::spawn({
        let path = paths[1].clone();
        move || {
            thread::sleep(Duration::from_secs(1));
            fs::rename(aside, path).unwrap();
        }
    });
    let daemon = lab.serve(SERVE);
    assert!(is_open(&lab, "tank"), "with all of its devices");
    comes.join().unwrap();
    stop(daemon);
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

/// Hosts give a target up for good that is "not found", and nobody answers at all where there is no daemon.
#[test]
fn a_daemon_whose_only_pool_is_late_waits_for_it_and_not_for_one_that_is_exported_meanwhile() {
    let lab = Lab::scratch();
    let tank = pool(&lab, "tank", "HERE/a");
    pool(&lab, "lake", "HERE/b");
    lab.run("zpool export lake").ok();
    let away = pull(&lab, &tank[0]);
    let daemon = lab.serve(SERVE);
    assert_eq!(listed_with_a_failure(&lab), "tank\tUNAVAIL\n");
    fs::copy(&away, &tank[0]).unwrap();
    wait_until(|| is_open(&lab, "tank"));
    assert_eq!(login(&lab, "tank/v"), "in");
    stop(daemon);
    fs::remove_file(&tank[0]).unwrap();
    let daemon = lab.serve(SERVE);
    lab.run("zpool export tank").ok();
    fs::copy(&away, &tank[0]).unwrap();
    thread::sleep(Duration::from_secs(12));
    assert_eq!(lab.run("zpool list -H -o name").ok(), "", "nobody wants it here");
    stop(daemon);
}

/// A daemon whose drives were late opened what others had exported, for writing.
#[test]
fn a_pool_that_is_exported_is_opened_only_by_who_names_it_or_its_place() {
    let lab = Lab::scratch();
    let paths = pool(&lab, "lake", "HERE/a");
    let here = lab.cwd().display().to_string();
    lab.run("zpool export lake").ok();
    let before = sha256(&paths[0]);
    let serve = |words: &str| {
        // In place of block devices.
        let mut command = lab.command("millpond");
        command.env("ZPOOL_IMPORT_PATH", lab.cwd()).args(SERVE.split(' ')).args(words.split_whitespace());
        command
    };
    let daemon = lab.serve_by(&mut serve(""));
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
    let daemon = lab.serve_by(&mut serve(""));
    assert_eq!(listed_with_a_failure(&lab), "tank\tUNAVAIL\n");
    stop(daemon);
    assert_eq!(sha256(&paths[0]), before, "not a byte of it was written");
    stop(lab.serve_by(&mut serve("lake")));
    lab.run("zpool export lake").ok();
    stop(lab.serve(&format!("-d {here} {SERVE}")));
    assert!(is_open(&lab, "lake"), "it is ours now");
}

/// A daemon that was started for the first time took what OpenZFS had left on the machine, and would not start for what another
/// host had.
#[test]
fn a_pool_that_was_never_imported_here_is_opened_only_by_who_names_it_or_its_place() {
    let serve = |lab: &Lab, words: &str| {
        // In place of block devices.
        let mut command = lab.command("millpond");
        command.env("ZPOOL_IMPORT_PATH", lab.cwd()).args(SERVE.split(' ')).args(words.split_whitespace());
        lab.serve_by(&mut command)
    };
    let is_left_alone = |lab: &Lab, pool: &str, device: &PathBuf| {
        let before = sha256(device);
        let daemon = serve(lab, "");
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
    is_served(serve(&lab, "lake"));
    forget();
    is_served(lab.serve(&format!("-d {here} {SERVE}")));
    forget();
    // As whoever lost the state directory does, while the daemon runs.
    let daemon = serve(&lab, "");
    lab.run(&format!("zpool import -d {here} lake")).ok();
    is_served(daemon);
    is_served(serve(&lab, ""));
    // Another host has it.
    let fixture = fixtures::pool("crash-main");
    let lab = Lab::copy_of(&fixture);
    let device = lab.cwd().join(fixture.images()[0].file_name().unwrap());
    is_left_alone(&lab, "pcrashmain", &device);
}

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

/// It was said to exist already: it had to be exported first, which said that it cannot be opened.
#[test]
fn an_imported_pool_that_cannot_be_opened_without_its_log_may_be_imported_again_without() {
    let lab = Lab::scratch();
    let paths = pool(&lab, "tank", "mirror HERE/a HERE/b log HERE/log");
    let here = lab.cwd().display().to_string();
    let exists = |line: &str| {
        let said = lab.run(&format!("zpool import -d {here} {line}tank")).fails(1);
        assert!(said.contains("a pool with that name already exists"), "{said}");
    };
    exists("-m ");
    pull(&lab, &paths[2]);
    exists("");
    let imported = lab.run(&format!("zpool import -d {here} -m tank"));
    assert_eq!(imported.code, Some(0), "{imported:?}");
    assert_eq!(remembered(&lab, "tank")["missing_log"], true);
    assert_eq!(lab.run("zfs list -H -o name tank/v").ok(), "tank/v\n");
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

/// It said so once, when it was imported: then it looked like any other, and without a daemon as if it were written to.
#[test]
fn a_pool_that_can_only_be_read_says_so_and_why() {
    let lab = Lab::copy_of(&fixtures::pool("dedup"));
    let imported = lab.run("zpool import -f -d . pdedup");
    assert_eq!(imported.code, Some(0), "{imported:?}");
    let says = |by_need: bool| {
        let status = lab.run("zpool status pdedup").stdout;
        assert_eq!(status.contains("  note: the pool is open read-only: "), by_need, "{status}");
        assert_eq!(status.contains("fast_dedup"), by_need, "{status}");
        assert_eq!(lab.run("zpool get -H -o value readonly pdedup").stdout, "on\n");
    };
    says(true);
    let daemon = lab.serve(SERVE);
    says(true);
    stop(daemon);
    // Whoever wished it knows it.
    assert_eq!(lab.run("zpool export pdedup").code, Some(0));
    assert_eq!(lab.run("zpool import -o readonly=on -f -d . pdedup").code, Some(0));
    says(false);
    let daemon = lab.serve(SERVE);
    says(false);
    stop(daemon);
}

/// An import with -F ended well, and hosts could write no more: nobody was told that, nor what helps.
#[test]
fn a_pool_that_was_gone_back_with_says_that_it_is_only_read_and_why() {
    let lab = Lab::scratch();
    let paths = pool(&lab, "tank", "HERE/a");
    let here = lab.cwd().display().to_string();
    lab.run("zpool export tank").ok();
    let shown = lab.run(&format!("dump -u -d {here} tank")).ok();
    let root = shown.lines().find(|line| line.contains("rootbp")).unwrap();
    let file = fs::File::options().write(true).open(&paths[0]).unwrap();
    for copy in root.split("DVA[").skip(1) {
        let offset = u64::from_str_radix(copy.split(':').nth(1).unwrap(), 16).unwrap();
        file.write_all_at(&[0x77; 512], (4 << 20) + offset).unwrap();
    }
    let said = lab.run(&format!("zpool import -d {here} tank")).fails(1);
    assert!(said.contains("-F"), "{said}");
    let why = "its newest state cannot be read";
    let imported = lab.run(&format!("zpool import -F -d {here} tank"));
    assert_eq!(imported.code, Some(0), "{imported:?}");
    assert!(imported.stderr.contains(&format!("pool 'tank' is open read-only: {why}")), "{imported:?}");
    let says = || {
        let status = lab.run("zpool status tank").stdout;
        assert!(status.contains(&format!("  note: the pool is open read-only: {why}")), "{status}");
        // As long as the import is remembered, it is as of that state, whatever OpenZFS did.
        assert!(status.contains("'zpool export' it here, have OpenZFS import it with -F"), "{status}");
        assert_eq!(lab.run("zpool get -H -o value readonly tank").stdout, "on\n");
        assert!(lab.run("zfs create -s -V 1M tank/w").fails(1).contains(why));
    };
    says();
    let daemon = lab.serve(SERVE);
    says();
    stop(daemon);
    assert_eq!(lab.run("zpool export tank").code, Some(0));
    assert!(!fs::read_to_string(lab.path("state/pools.json")).unwrap().contains("\"tank\""));
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

/// A refused command left the file of a pool that is served, and files of others, longer than they were.
#[test]
fn a_command_that_is_refused_leaves_files_as_long_as_they_were() {
    let lab = Lab::scratch();
    let paths = pool(&lab, "tank", "HERE/a");
    let here = lab.cwd().display().to_string();
    let (mine, other) = (lab.cwd().join("mine"), lab.cwd().join("other"));
    fs::write(&mine, [7; 10_000]).unwrap();
    fs::write(&other, [b"XFSB".as_slice(), &[0; 8188]].concat()).unwrap();
    let len = |path: &PathBuf| fs::metadata(path).unwrap().len();
    let daemon = lab.serve(SERVE);
    lab.run(&format!("zpool create --size 256M lake {here}/a")).fails(1);
    lab.run(&format!("zpool create --size 256M lake {here}/mine {here}/other")).fails(1);
    lab.run(&format!("zpool add -f --size 256M tank {here}/mine {here}/a")).fails(1);
    // Of no kind that is known here, and all the same somebody's.
    let said = lab.run(&format!("zpool create --size 256M lake {here}/mine")).fails(1);
    assert!(said.contains("mine is a file of 9.77K that would grow to 256M"), "{said}");
    assert_eq!((len(&paths[0]), len(&mine), len(&other)), (128 << 20, 10_000, 8192));
    assert_eq!(fs::read(&mine).unwrap(), [7; 10_000]);
    stop(daemon);
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
    let daemon = lab.serve(SERVE);
    assert_eq!(listed_with_a_failure(&lab), "tank\tUNAVAIL\n", "it is in use");
    let known = || fs::read_to_string(lab.path("state/pools.json")).unwrap();
    assert!(known().contains("tank"), "{}", known());
    other.run("zpool export tank").ok();
    let before = sha256(&paths[0]);
    wait_until(|| !known().contains("tank"));
    thread::sleep(Duration::from_secs(6));
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

/// A disk that had left a pool and was in use elsewhere kept the pool from being imported; one that is of it still must.
#[test]
fn a_device_that_left_a_pool_may_be_in_use_elsewhere() {
    let lab = Lab::scratch();
    let paths = pool(&lab, "tank", "mirror HERE/a HERE/b HERE/c");
    let here = lab.cwd().display().to_string();
    let before = fs::read(&paths[2]).unwrap();
    lab.run(&format!("zpool detach tank {here}/c")).ok();
    lab.run("zpool export tank").ok();
    fs::write(&paths[2], before).unwrap();
    let hold = |path: &PathBuf| {
        let file = fs::File::options().read(true).write(true).open(path).unwrap();
        file.try_lock().unwrap();
        file
    };
    let elsewhere = hold(&paths[2]);
    lab.run(&format!("zpool import -d {here} tank")).ok();
    lab.run("zpool export tank").ok();
    let member = hold(&paths[0]);
    let refused = lab.run(&format!("zpool import -d {here} tank")).fails(1);
    assert!(refused.contains("pool is in use") && refused.contains("/a"), "{refused}");
    drop((elsewhere, member));
}

/// Where the daemon is started with the machine there may be no pool yet: it could not be started before one was created, and
/// one that was created through it seemed empty until it was opened anew.
#[test]
fn a_daemon_waits_for_the_first_pool_and_knows_how_full_it_is() {
    let lab = Lab::scratch();
    let daemon = lab.serve(SERVE);
    let device = lab.path("a");
    lab.run(&format!("zpool create --size 128M -O compression=off tank {}", device.display())).ok();
    lab.run("zfs create -V 16M tank/v").ok();
    let allocated = || lab.run("zpool list -Hp -o alloc tank").ok().trim().parse::<u64>().unwrap();
    let empty = allocated();
    assert!(empty > 0);
    let url = served_as(&lab, "tank/v", "nbd");
    if let Some(qemu_io) = fixtures::tool("qemu-io") {
        let write = ["-f", "raw", "-c", "write -P 7 0 8M", "-c", "flush", &url];
        assert!(std::process::Command::new(qemu_io).args(write).output().unwrap().status.success());
        lab.run("zpool sync").ok();
        assert!(allocated() >= empty + (8 << 20), "{} and before {empty}", allocated());
    }
    assert_ne!(lab.run("zpool list -H -o frag tank").ok().trim(), "-");
    stop(daemon);
}

/// The daemon's socket was where a timer's command did not look: all pools were healthy, whatever the daemon had suspended; and
/// what was changed went past it.
#[test]
fn a_daemon_that_does_not_answer_where_it_is_looked_for_is_missed() {
    let lab = Lab::scratch();
    pool(&lab, "tank", "HERE/a");
    let other = format!("--socket {}", lab.path("other.sock").display());
    let daemon = lab.serve(&format!("{other} {SERVE}"));
    let misses = |line: &str| {
        let said = lab.run(line);
        assert_eq!(said.code, Some(1), "{line}: {said:?}");
        for part in ["--socket or MILLPOND_SOCKET", &format!("a daemon (process {}) has", daemon.pid())] {
            assert_eq!(said.stderr.matches(part).count(), 1, "{line}: {said:?}");
        }
        assert!(!said.stdout.contains("healthy"), "{line}: {said:?}");
        said.stdout
    };
    for line in ["zpool status -x", "zpool status -x tank", "zpool iostat", "share list"] {
        misses(line);
    }
    assert_eq!(misses("zpool list -H -o name"), "tank\n");
    assert_eq!(misses("zfs list -H -o name tank/v"), "tank/v\n");
    let create = format!("zpool create --size 128M lake {}", lab.path("b").display());
    for line in ["zfs snapshot tank/v@s", "zpool export tank", "sbdadm list-lu", &create] {
        assert_eq!(misses(line), "", "{line}");
    }
    assert!(!lab.path("b").exists());
    assert_eq!(lab.run(&format!("{other} zpool status -x")).ok(), "all pools are healthy\n");
    // Who says where is believed.
    assert_eq!(lab.run(&format!("-d {} zpool list -H -o name", lab.cwd().display())).ok(), "tank\n");
    stop(daemon);
    assert_eq!(lab.run("zpool status -x").ok(), "all pools are healthy\n");
}

/// Two told people of each other's pools, and wrote over what the other remembered.
#[test]
fn a_state_directory_has_one_daemon() {
    let lab = Lab::scratch();
    pool(&lab, "tank", "HERE/a");
    let daemon = lab.serve(SERVE);
    // One that starts would never end by itself.
    let bounded = [OsStr::new("timeout"), OsStr::new("60")];
    let elsewhere = format!("--socket {} {SERVE}", lab.path("other.sock").display());
    let output = lab.through(&bounded, &elsewhere).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    for part in ["state directory of another daemon", &format!("process {}", daemon.pid()), "--state"] {
        assert!(said.contains(part), "no {part:?} in: {said}");
    }
    stop(daemon);
    let daemon = lab.serve(SERVE);
    stop(daemon);
}

/// Of two that were started at the same moment the one that gave up removed the socket of the other.
#[test]
fn a_daemon_whose_state_directory_is_anothers_leaves_the_socket_alone() {
    let lab = Lab::scratch();
    fs::create_dir_all(lab.path("state")).unwrap();
    // The other one's: claimed, and nobody listens yet.
    let claim = fs::File::create(lab.path("state/daemon")).unwrap();
    claim.try_lock().unwrap();
    drop(UnixListener::bind(lab.socket()).unwrap());
    let inode = || fs::symlink_metadata(lab.socket()).map(|socket| socket.ino()).unwrap();
    let before = inode();
    let said = lab.run(SERVE).fails(1);
    assert!(said.contains("state directory of another daemon"), "{said}");
    assert_eq!(inode(), before);
}
