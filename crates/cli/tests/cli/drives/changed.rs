//! What an administrator does with drives while clients are at work: they are taken offline, replaced, attached and
//! detached, made larger, initialized and trimmed.

use std::fs;

use super::{SIX, Scene, Status};
use crate::support::{wait_until, wire::Wire as _};

#[test]
fn two_drives_are_replaced_by_new_ones_under_load() {
    let scene = Scene::new(SIX);
    let here = scene.here();
    scene.under_load(|| {
        scene.pull("b");
        scene.wait_for("it is gone", |now| now.state_of("b") == "REMOVED");
        scene.blank("g", 160);
        scene.blank("h", 160);
        let taken = scene.zpool(&format!("replace tank {here}/b {here}/c")).fails(1);
        assert!(taken.contains("/c"), "{taken}");
        scene.zpool(&format!("replace -w tank {here}/b {here}/g")).ok();
        // One that works is replaced, too.
        scene.zpool(&format!("replace tank {here}/e {here}/h")).ok();
        scene.zpool("wait -t replace tank").ok();
        let status = scene
            .wait_for("both took their places", |now| now.state() == "ONLINE" && !now.has_kind("replacing"));
        assert_eq!((status.state_of("g"), status.state_of("h")), ("ONLINE", "ONLINE"));
    });
    scene.zpool("scrub -w tank").ok();
    let status = scene.status();
    assert_eq!((status.scan("processed"), status.scan("errors")), ("0", "0"), "{:#}", status.0);
    scene.discard(&["b.pulled", "e"]);
    scene.judge();
}

/// It said of a path that only the pool's configuration has that it is not a directory.
#[test]
fn a_drive_that_is_replaced_in_its_place_is_not_replaced_once_more() {
    let scene = Scene::new(SIX);
    let here = scene.here();
    let old = scene.status().device("b")["guid"].as_str().unwrap().to_owned();
    scene.pull("b");
    scene.wait_for("it is gone", |now| now.state_of("b") == "REMOVED");
    scene.blank("b", 160);
    scene.zpool(&format!("replace tank {here}/b")).ok();
    let refused = scene.zpool(&format!("replace tank {old}")).fails(1);
    // Or its successor was filled meanwhile.
    let over = format!("cannot replace {old}: no such device in pool\n");
    let under_way =
        format!("cannot replace {old}: it is already being replaced, by what is at '{here}/b' now\n");
    assert!(refused == under_way || refused == over, "{refused}");
    scene.wait_for("it took its place", |now| now.state() == "ONLINE" && !now.has_kind("replacing"));
    scene.discard(&["b.pulled"]);
    scene.judge();
}

#[test]
fn a_drive_is_offline_until_the_pool_is_opened_again() {
    let mut scene = Scene::new("mirror HERE/a HERE/b");
    let here = scene.here();
    let refused = scene.zpool(&format!("offline tank {here}/nothing")).fails(1);
    assert_eq!(refused, format!("cannot offline {here}/nothing: no such device in pool\n"));
    scene.under_load(|| {
        scene.zpool(&format!("offline -t tank {here}/b")).ok();
        let status = scene.status();
        assert_eq!((status.state(), status.state_of("b")), ("DEGRADED", "OFFLINE"));
        let last = scene.zpool(&format!("offline tank {here}/a")).fails(1);
        assert_eq!(last, format!("cannot offline {here}/a: no valid replicas\n"));
        scene.load_goes_on(1 << 20);
    });
    scene.stop();
    scene.serve();
    scene.wait_for("it is there again, and up to date", Status::is_whole);
    scene.zpool(&format!("offline tank {here}/b")).ok();
    scene.stop();
    scene.serve();
    assert_eq!(scene.status().state_of("b"), "OFFLINE", "without -t it stays");
    scene.zpool(&format!("online tank {here}/b")).ok();
    scene.wait_for("it is online", |now| now.state() == "ONLINE");
    scene.judge();
}

/// It stayed open and locked: whoever had an encrypted or a logical volume below it, or a file system, could not take that
/// apart, and where it was by then was never looked for.
#[test]
fn a_drive_that_is_offline_or_faulted_is_nobodys_and_found_where_it_is_when_it_is_back() {
    let scene = Scene::new("raidz HERE/a HERE/b HERE/c");
    let here = scene.here();
    for (out, back, old, new) in [("offline", "online", "b", "d"), ("offline -f", "clear", "c", "e")] {
        scene.zpool(&format!("{out} tank {here}/{old}")).ok();
        let file = fs::File::open(scene.file(old)).unwrap();
        wait_until(|| file.try_lock().is_ok());
        drop(file);
        let said = scene.zpool(&format!("create -f lake {here}/{old}")).fails(1);
        assert!(said.contains("is part of active pool 'tank'"), "{out}: {said}");
        let said = scene.zpool(&format!("labelclear -f {here}/{old}")).fails(1);
        assert!(said.contains("is a member (ACTIVE) of pool \"tank\", where it is "), "{out}: {said}");
        let mut wire = scene.nbd();
        scene.write(&mut wire, 7, 2);
        wire.flush().unwrap();
        drop(wire);
        fs::rename(scene.file(old), scene.file(new)).unwrap();
        scene.zpool(&format!("{back} tank {here}/{old}")).ok();
        assert_eq!(scene.status().state_of(new), "ONLINE", "{back}: {}", scene.zpool("status tank").stdout);
        scene.zpool("wait -t resilver tank").ok();
        scene.wait_for("it is up to date", Status::is_whole);
    }
    scene.judge();
}

/// Found by reading: it was closed, so nothing was cleared, and it passed for a part of the pool until somebody looked.
#[test]
fn a_log_device_that_is_removed_while_it_is_offline_is_free_at_once() {
    let scene = Scene::new("HERE/a log HERE/l");
    let here = scene.here();
    scene.zpool(&format!("offline tank {here}/l")).ok();
    let file = fs::File::open(scene.file("l")).unwrap();
    wait_until(|| file.try_lock().is_ok());
    drop(file);
    scene.zpool(&format!("remove tank {here}/l")).ok();
    scene.zpool(&format!("create lake {here}/l")).ok();
    scene.zpool("destroy lake").ok();
    scene.discard(&["l"]);
    scene.judge();
}

#[test]
fn a_side_of_a_mirror_is_attached_and_detached() {
    let scene = Scene::new("HERE/a");
    let here = scene.here();
    scene.under_load(|| {
        scene.blank("b", 160);
        scene.zpool(&format!("attach -w tank {here}/a {here}/b")).ok();
        let status = scene.status();
        assert!(status.has_kind("mirror") && status.is_whole(), "{:#}", status.0);
        scene.zpool(&format!("detach tank {here}/a")).ok();
        assert!(!scene.status().has_kind("mirror"));
        let last = scene.zpool(&format!("detach tank {here}/b")).fails(1);
        assert!(last.starts_with(&format!("cannot detach {here}/b: ")), "{last}");
        scene.blank("small", 80);
        let small = scene.zpool(&format!("attach tank {here}/b {here}/small")).fails(1);
        assert_eq!(small, format!("cannot attach {here}/small to {here}/b: device is too small\n"));
    });
    scene.discard(&["a", "small"]);
    scene.judge();
}

/// How much there is to be had was never told: `EXPANDSZ` was a dash whatever the drives had become.
#[test]
fn a_pool_grows_with_its_drives() {
    let scene = Scene::sized("160M", "mirror HERE/a HERE/b");
    let here = scene.here();
    let size = || scene.zpool("list -H -p -o size tank").ok().trim().parse::<u64>().unwrap();
    let before = size();
    let offered = || scene.zpool("list -H -p -o expandsize tank").ok().trim().to_owned();
    assert_eq!(offered(), "-");
    scene.under_load(|| {
        let enlarge = |name: &str, mebibytes: u64| {
            let file = fs::OpenOptions::new().write(true).open(scene.file(name)).unwrap();
            file.set_len(mebibytes << 20).unwrap();
        };
        enlarge("a", 480);
        let told = scene.zpool(&format!("online -e tank {here}/a"));
        assert_eq!(told.code, Some(0), "{}", told.stderr);
        assert!(told.stderr.contains(&format!("was not expanded: {here}/b is no larger")), "{}", told.stderr);
        enlarge("b", 320);
        wait_until(|| {
            scene.zpool("sync tank").ok();
            offered() != "-"
        });
        let more = offered().parse::<u64>().unwrap();
        let text = scene.zpool("list -v -H -p -o name,expandsize tank").ok();
        assert!(text.contains(&format!("\tmirror-0\t{more}\n")), "{text}");
        // What one of them has beyond the other was said to have kept both from growing, although they had.
        let told = scene.zpool(&format!("online -e tank {here}/a {here}/b"));
        assert_eq!(told.code, Some(0), "{}", told.stderr);
        assert!(!told.stderr.contains("was not expanded"), "{}", told.stderr);
        wait_until(|| size() >= before + (100 << 20));
        assert_eq!((size(), offered()), (before + more, "-".to_owned()));
        scene.load_goes_on(1 << 20);
    });
    scene.judge();
}

#[test]
fn free_space_is_initialized_and_trimmed_beside_clients() {
    let scene = Scene::new("mirror HERE/a HERE/b");
    let here = scene.here();
    scene.under_load(|| {
        assert!(scene.zpool("status -i tank").ok().contains("(uninitialized)"));
        scene.zpool(&format!("initialize -w tank {here}/a")).ok();
        let status = scene.status();
        assert_eq!(status.device("a")["init_state"], "COMPLETE", "{:#}", status.0);
        assert!(status.device("b")["init_state"].is_null());
        let text = scene.zpool("status -i tank").ok();
        let (_, when) =
            text.split_once("(100% initialized, completed at ").unwrap_or_else(|| panic!("{text}"));
        // To the second, as OpenZFS has it.
        assert_eq!(when.split(')').next().unwrap().split(':').count(), 3, "{text}");
        let idle = scene.zpool(&format!("initialize -s tank {here}/b")).fails(1);
        assert!(idle.contains("there is no active initialization"), "{idle}");
        scene.zpool("trim -w tank").ok();
        assert_eq!(scene.status().device("b")["trim_state"], "COMPLETE");
    });
    scene.judge();
}
