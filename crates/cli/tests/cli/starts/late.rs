//! Pools that are late: their drives come after the daemon, or somebody else still has them, or there is no pool yet. They are
//! waited for, and nobody who uses another pool is.

use std::{fs, process::Stdio};

use super::{SERVE, is_open, listed_as_it_is, login, pool, pull, stop};
use crate::support::{
    Lab, port, served_as, wait_until,
    wire::{Nbd, Wire as _},
};

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
    Nbd::open(port(&served_as(&lab, "lake/v", "nbd")), "lake/v").unwrap().write(0, &[7; 4096], true).unwrap();
    assert_eq!(lab.run(&format!("zpool import -d {here}")).fails(1), "no pools available to import\n");
    let log = stop(daemon);
    assert_eq!(log.matches("is open now").count(), 1, "{log}");
    assert!(log.matches("server::late").count() <= 2, "a reason is said once: {log}");
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

/// Hosts give a target up for good that is "not found", and nobody answers at all where there is no daemon.
#[test]
fn a_daemon_whose_only_pool_is_late_waits_for_it_and_not_for_one_that_is_exported_meanwhile() {
    let lab = Lab::scratch();
    let tank = pool(&lab, "tank", "HERE/a");
    pool(&lab, "lake", "HERE/b");
    lab.run("zpool export lake").ok();
    let away = pull(&lab, &tank[0]);
    let daemon = lab.serve(SERVE);
    assert_eq!(listed_as_it_is(&lab), "tank\tUNAVAIL\n");
    fs::copy(&away, &tank[0]).unwrap();
    wait_until(|| is_open(&lab, "tank"));
    assert_eq!(login(&lab, "tank/v"), "in");
    stop(daemon);
    fs::remove_file(&tank[0]).unwrap();
    let daemon = lab.begin_telling("server=debug", SERVE).ready();
    lab.run("zpool export tank").ok();
    fs::copy(&away, &tank[0]).unwrap();
    wait_until(|| daemon.said("no pool is awaited any more") > 0);
    assert_eq!(lab.run("zpool list -H -o name").ok(), "", "nobody wants it here");
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
    let daemon = lab.begin_telling("server=debug", SERVE);
    wait_until(|| daemon.said("some of its devices are awaited") > 0);
    fs::rename(aside, &paths[1]).unwrap();
    let daemon = daemon.ready();
    assert!(is_open(&lab, "tank"), "with all of its devices");
    stop(daemon);
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
    let daemon = lab.begin_telling("server=trace", &format!("{SERVE} tank"));
    // Forty times a second at the most, and a second and a half is as long as others ask.
    wait_until(|| daemon.said("its devices are in use still") > 64);
    drop(held);
    let daemon = daemon.ready();
    assert!(is_open(&lab, "tank"));
    stop(daemon);
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
