//! Devices that commands are given: any name of one finds it, and it keeps the name that it was given; what is made for a
//! pool is nobody else's, and what is somebody's is left as it is.

use std::{
    fs,
    io::Read as _,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use crate::{
    drives::Status,
    starts::{SERVE, pool, stop},
    support::{Lab, wait_until},
};

/// Whether the first of its labels is not empty.
fn has_labels(device: &Path) -> bool {
    fs::read(device).unwrap()[..256 << 10].iter().any(|byte| *byte != 0)
}

/// Devices below `/dev` are named without it: what `zpool status` prints with slashes is understood as it stands there.
#[test]
fn cache_devices_are_found_by_the_name_that_is_shown_and_missed_when_they_are_gone() {
    let lab = Lab::scratch();
    let Ok(memory) = tempfile::tempdir_in("/dev/shm") else {
        eprintln!("NOT RUN: there is no /dev/shm to write to");
        return;
    };
    let (here, there) = (lab.cwd().display().to_string(), memory.path().display().to_string());
    lab.run(&format!(
        "zpool create --size 64M tank {here}/a cache {there}/c1 {there}/c2 {here}/c3 spare {there}/s"
    ))
    .ok();
    let shown = there.strip_prefix("/dev/").unwrap();
    let status = lab.run("zpool status tank").ok();
    assert!(status.contains(&format!("\t  {shown}/c1 ")), "{status}");
    let well = lab.run("zpool status -e tank").ok();
    assert!(!well.contains("cache") && !well.contains("spares") && !well.contains("/c1"), "{well}");

    let said = lab.run(&format!("zpool remove tank {shown}/none")).fails(1);
    assert_eq!(said, format!("cannot remove {shown}/none: no such device in pool\n"));
    // The device that is to take its place was taken and tried out first, and then there was "no such device in pool".
    let refused = lab.run(&format!("zpool replace tank {shown}/c1 {here}/new")).fails(1);
    assert_eq!(refused, format!("cannot replace {shown}/c1 with {here}/new: device is in use as a cache\n"));
    let planned = lab.run(&format!("zpool remove -n tank {shown}/c1 {there}/s")).ok();
    assert_eq!(planned.lines().count(), 2, "{planned}");
    assert_eq!(
        planned.lines().next().unwrap(),
        format!("Memory that will be used after removing {shown}/c1: 0B")
    );
    assert_eq!(lab.run("zpool status tank").ok(), status, "nothing was removed");
    lab.run(&format!("zpool remove -w tank {shown}/c1")).ok();
    // From here it is a path, too.
    lab.run("zpool remove tank ./c3").ok();
    lab.run(&format!("zpool remove tank {shown}/s")).ok();
    let status = lab.run("zpool status tank").ok();
    assert!(!status.contains("/c1") && !status.contains("/c3") && !status.contains("spares"), "{status}");
    assert_eq!(lab.run("zpool status -x").ok(), "all pools are healthy\n");

    fs::remove_file(memory.path().join("c2")).unwrap();
    let lost = lab.run("zpool status -x").ok();
    assert!(lost.contains("status: One or more devices could not be opened."), "{lost}");
    assert!(lost.contains("action: Attach the missing device") && lost.contains("UNAVAIL"), "{lost}");
    assert!(lab.run("zpool status -e tank").ok().contains("/c2"), "{lost}");
}

/// Other commands know a device by its short name; this one wanted a file of that name.
#[test]
fn labels_are_cleared_by_the_short_name_of_a_device() {
    let lab = Lab::scratch();
    let Ok(memory) = tempfile::tempdir_in("/dev/shm") else {
        eprintln!("NOT RUN: there is no /dev/shm to write to");
        return;
    };
    let there = memory.path().display().to_string();
    let shown = there.strip_prefix("/dev/").unwrap();
    lab.run(&format!("zpool create --size 64M tank {there}/a")).ok();
    lab.run("zpool export tank").ok();
    let refused = lab.run(&format!("zpool labelclear {shown}/a")).fails(1);
    assert!(refused.contains(&format!("{there}/a is a member of exported pool \"tank\"")), "{refused}");
    lab.run(&format!("zpool labelclear -f {shown}/a")).ok();
    assert!(!has_labels(&memory.path().join("a")));
}

/// The first of two names of one device was removed, and the second not found any more: both were said to be there still, and
/// labels were left.
#[test]
fn a_device_that_is_named_twice_is_removed_once() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    lab.run(&format!("zpool create --size 64M tank {here}/a log {here}/l spare {here}/s")).ok();
    lab.run(&format!("zpool remove tank {here}/s ./s {here}/l {here}/l")).ok();
    let status = lab.run("zpool status tank").ok();
    assert!(status.contains("/a ") && !status.contains("/l ") && !status.contains("/s "), "{status}");
    for gone in ["l", "s"] {
        assert!(!has_labels(&lab.cwd().join(gone)), "{gone}");
    }
}

/// Labels, status and the cache file named what links led to: names like `/dev/sdb`, of another disk after the next start.
#[test]
fn devices_keep_the_names_they_were_given_and_are_found_by_any() {
    let lab = Lab::scratch();
    let (real, links) = (lab.cwd().join("real"), lab.cwd().join("by-id"));
    fs::create_dir(&real).unwrap();
    fs::create_dir(&links).unwrap();
    for name in ["1", "2", "3", "4", "5"] {
        fs::File::create(real.join(name)).unwrap().set_len(128 << 20).unwrap();
        symlink(real.join(name), links.join(format!("ata-{name}"))).unwrap();
    }
    let disk = real.join("1");
    let (real, links) = (real.display().to_string(), links.display().to_string());
    let twice = lab.run(&format!("zpool create tank mirror {links}/ata-1 {real}/1")).fails(1);
    assert!(twice.contains("is named twice"), "{twice}");
    lab.run(&format!("zpool create tank mirror {links}/ata-1 by-id/../by-id/ata-2")).ok();
    let _daemon = lab.serve("serve --nbd 127.0.0.1:0 tank");
    lab.run(&format!("zpool add tank spare {links}/ata-3")).ok();
    lab.run(&format!("zpool attach -w tank {real}/2 {links}/ata-4")).ok();
    lab.run(&format!("zpool replace -w tank {links}/ata-4 {links}/ata-5")).ok();
    let used = lab.run(&format!("zpool add -f tank log {real}/5")).fails(1);
    assert!(used.contains("is part of active pool 'tank'"), "{used}");

    let status = lab.run("zpool status tank").ok();
    for name in ["1", "2", "3", "5"] {
        assert!(status.contains(&format!("{links}/ata-{name} ")), "{name}: {status}");
    }
    let mut label = vec![0_u8; 256 << 10];
    fs::File::open(disk).unwrap().read_exact(&mut label).unwrap();
    let label = String::from_utf8_lossy(&label).into_owned();
    let known = fs::read_to_string(lab.path("state/pools.json")).unwrap();
    for (place, text) in [("status", &status), ("label", &label), ("cache file", &known)] {
        assert!(text.contains(&format!("{links}/ata-1")) && !text.contains(&format!("{real}/")), "{place}");
        assert!(!text.contains("/../"), "{place}");
    }

    lab.run(&format!("zpool detach tank {real}/5")).ok();
    lab.run(&format!("zpool replace -w tank {real}/2 {real}/3")).ok();
    let status = lab.run("zpool status tank").ok();
    assert!(status.contains("INUSE"), "the spare was meant: {status}");
    lab.run(&format!("zpool detach tank {real}/3")).ok();
    lab.run(&format!("zpool remove tank {real}/3")).ok();
    lab.run(&format!("zpool offline tank {real}/1")).ok();
    lab.run(&format!("zpool online tank {real}/1")).ok();
    let status = lab.run("zpool status tank").ok();
    assert!(!status.contains("ata-5") && !status.contains("ata-3"), "{status}");
    assert!(status.contains(&format!("{links}/ata-1 ")), "{status}");
}

/// Found by reading: a drive that was dead at a start had the name still that another has by now, and what was said of that
/// one was done to it.
#[test]
fn a_name_means_the_device_that_is_there() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    lab.run(&format!("zpool create --size 128M tank raidz {here}/a {here}/b {here}/c")).ok();
    let file = |name: &str| lab.cwd().join(name);
    fs::remove_file(file("a")).unwrap();
    fs::rename(file("b"), file("a")).unwrap();
    fs::rename(file("c"), file("b")).unwrap();
    let daemon = lab.serve(&format!("-d {here} serve --nbd 127.0.0.1:0 tank"));
    for name in ["a", "b"] {
        let said = lab.run(&format!("zpool offline tank {here}/{name}")).fails(1);
        assert_eq!(said, format!("cannot offline {here}/{name}: no valid replicas\n"));
    }
    assert_eq!(daemon.stop().code(), Some(0));
}

/// Found by reading: of a drive that was pulled, or had failed, while it was in use the path is kept as its name, and alerts and
/// status print it with what helps. Done after a start at which another drive had that name, it was done to that one.
#[test]
fn a_name_that_was_told_of_a_pulled_drive_is_not_taken_for_the_drive_that_has_it_by_now() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    lab.run(&format!("zpool create --size 160M tank raidz {here}/a {here}/b {here}/c")).ok();
    let file = |name: &str| lab.cwd().join(name);
    let status = || Status::of(&lab);
    let serve = || lab.serve(&format!("-d {here} serve --nbd 127.0.0.1:0 tank"));
    let daemon = serve();
    let guid = |name: &str| status().device(name)["guid"].as_str().unwrap().to_owned();
    let (pulled, other) = (guid("a"), guid("b"));
    fs::create_dir(file("away")).unwrap();
    fs::rename(file("a"), file("away/a")).unwrap();
    wait_until(|| lab.run("zpool status tank").stdout.contains("REMOVED"));
    lab.run("zpool sync tank").ok();
    assert_eq!(daemon.stop().code(), Some(0));
    fs::rename(file("b"), file("a")).unwrap();
    fs::rename(file("c"), file("b")).unwrap();
    let daemon = serve();
    let shown = lab.run("zpool status tank").ok();
    let line = shown.lines().find(|line| line.contains("REMOVED")).expect(&shown);
    assert!(line.contains(&pulled) && line.ends_with(&format!("was {here}/a")), "{shown}");
    let new = file("new");
    fs::File::create(&new).unwrap().set_len(160 << 20).unwrap();
    let new = new.display();
    for line in [
        format!("offline tank {here}/a"),
        format!("detach tank {here}/a"),
        format!("replace tank {here}/a {new}"),
    ] {
        let said = lab.run(&format!("zpool {line}")).fails(1);
        for part in [
            "is more than one device of the pool",
            &format!("{pulled} (REMOVED)"),
            &format!("{other} (ONLINE)"),
            "name it by its guid",
        ] {
            assert!(said.contains(part), "no {part:?} in: {said}");
        }
    }
    lab.run(&format!("zpool replace tank {pulled} {new}")).ok();
    wait_until(|| status().state() == "ONLINE");
    assert_eq!((guid("a"), status().state_of("a").to_owned()), (other, "ONLINE".to_owned()));
    assert_eq!(daemon.stop().code(), Some(0));
}

/// Any local user could read all that was in the pool, secrets included, and lock its files, which kept it from being opened.
#[test]
fn files_that_are_made_for_a_pool_are_nobody_elses() {
    let lab = Lab::scratch();
    let here = lab.cwd().display();
    lab.run(&format!("zpool create --size 128M tank {here}/a")).ok();
    lab.run(&format!("zpool add --size 128M tank log {here}/l")).ok();
    let theirs = lab.cwd().join("theirs");
    fs::write(&theirs, "").unwrap();
    fs::set_permissions(&theirs, fs::Permissions::from_mode(0o640)).unwrap();
    lab.run(&format!("zpool add --size 128M tank spare {here}/theirs")).ok();
    for (name, mode) in [("a", 0o600), ("l", 0o600), ("theirs", 0o640)] {
        let found = fs::metadata(lab.cwd().join(name)).unwrap().mode() & 0o777;
        assert_eq!(found, mode, "{name}: {found:o}");
    }
    // Nor what is copied out of it.
    lab.run("zfs create -s -V 1M tank/v").ok();
    lab.run("zfs snapshot tank/v@s").ok();
    let image = lab.path("image");
    let mode = || fs::metadata(&image).unwrap().mode() & 0o777;
    lab.run(&format!("image tank/v@s -o {}", image.display())).ok();
    assert_eq!(mode(), 0o600, "{:o}", mode());
    fs::set_permissions(&image, fs::Permissions::from_mode(0o640)).unwrap();
    lab.run(&format!("image -f tank/v@s -o {}", image.display())).ok();
    assert_eq!(mode(), 0o640, "{:o}", mode());
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
