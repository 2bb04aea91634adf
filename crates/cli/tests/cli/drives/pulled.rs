//! Drives that go, fail in their bays and come back: clients get on, states say what happened, spares step in and go back,
//! and with too few drives the pool is suspended, not broken.

use std::{
    sync::atomic::Ordering::SeqCst,
    thread,
    time::{Duration, Instant},
};

use super::{REGION, SIX, SLOT, Scene, Status, VOLUME};
use crate::support::{
    wait_until,
    wire::{Nbd, Wire as _},
};

/// Longest a command may take to be refused.
const REFUSED_WITHIN: Duration = Duration::from_secs(15);

/// The lines of a status from `config:` on, as they are with these devices: (depth, name, state).
fn config(rows: &[(usize, &str, &str)]) -> String {
    let width = rows.iter().map(|(depth, name, _)| 2 * depth + name.len()).max().unwrap_or(0).max(10);
    let mut text = format!("config:\n\n\t{:width$}  STATE     READ WRITE CKSUM\n", "NAME");
    for (depth, name, state) in rows {
        let name = format!("{:1$}{name}", "", 2 * depth);
        text.push_str(&format!("\t{name:width$}  {state:8}     0     0     0\n"));
    }
    text + "\nerrors: No known data errors\n"
}

#[test]
fn two_drives_of_a_raidz2_are_pulled_and_put_back() {
    let scene = Scene::new(SIX);
    let delta = scene.under_load(|| {
        scene.pull("a");
        scene.pull("d");
        scene.wait_for("both are gone", |now| {
            now.state_of("a") == "REMOVED" && now.state_of("d") == "REMOVED"
        });
        let here = scene.here();
        let names: Vec<String> = ["a", "b", "c", "d", "e", "f"].map(|name| format!("{here}/{name}")).into();
        let state = |name: &str| if matches!(name, "a" | "d") { "REMOVED" } else { "ONLINE" };
        let mut rows = vec![(0, "tank", "DEGRADED"), (1, "raidz2-0", "DEGRADED")];
        rows.extend(names.iter().map(|name| (2, name.as_str(), state(&name[name.len() - 1..]))));
        assert_eq!(
            scene.zpool("status tank").ok(),
            "  pool: tank\n state: DEGRADED\n\
             status: One or more devices has been removed by the administrator.\n\
             \tSufficient replicas exist for the pool to continue functioning in a\n\tdegraded state.\n\
             action: Online the device using zpool online' or replace the device with\n\t'zpool replace'.\n"
                .to_owned()
                + &config(&rows)
        );
        assert_eq!(scene.zpool("list -H -o health tank").ok(), "DEGRADED\n");
        let before = scene.written.load(SeqCst);
        scene.load_goes_on(4 << 20);
        // The one comes back by itself, the other is asked for.
        scene.put_back("a");
        scene.wait_for("the first is back", |now| now.state_of("a") == "ONLINE");
        scene.put_back("d");
        scene.zpool(&format!("online tank {here}/d")).ok();
        let delta = scene.written.load(SeqCst) - before;
        scene.wait_for("both are up to date", Status::is_whole);
        delta
    });
    let status = scene.status();
    let moved = status.scan_number("processed");
    eprintln!("{delta} bytes were written meanwhile, {moved} resilvered last");
    // Of each block a quarter lies on each of two drives; metadata comes on top. All of two drives is half the volume.
    assert!(moved <= delta / 2 + (4 << 20), "{moved} bytes for {delta} written");
    assert!(moved < VOLUME as u64 / 4, "{moved}: not much less than everything");
    assert_eq!(status.scan("errors"), "0");
    let text = scene.zpool("status tank").ok();
    assert!(!text.contains("One or more devices"), "{text}");
    scene.zpool("scrub -w tank").ok();
    let scrubbed = scene.status();
    assert_eq!((scrubbed.scan("function"), scrubbed.scan("processed")), ("SCRUB", "0"), "{:#}", scrubbed.0);
    scene.judge();
}

#[test]
fn a_hot_spare_takes_a_drive_s_place_and_goes_back() {
    let scene = Scene::new("raidz1 HERE/a HERE/b HERE/c spare HERE/s");
    scene.under_load(|| {
        let is_available = || {
            let text = scene.zpool("status tank").ok();
            text.lines().any(|line| line.contains("/s ") && line.trim_end().ends_with(" AVAIL"))
        };
        assert!(is_available(), "{}", scene.zpool("status tank").stdout);
        let spare = |now: Status| now.0["spares"][format!("{}/s", scene.here())]["state"].clone();
        assert_eq!(spare(scene.status()), "AVAIL");
        // That it had no path was said, which it has.
        let path = format!("{}/s", scene.here());
        assert_eq!(
            scene.zpool(&format!("replace tank {path}")).fails(1),
            format!("cannot replace {path}: device is reserved as a hot spare\n")
        );
        scene.pull("c");
        scene.wait_for("the spare stands in", |now| now.has_kind("spare") && now.is_resilvered());
        let text = scene.zpool("status tank").ok();
        assert!(text.contains("spare-2") && text.contains("INUSE     currently in use"), "{text}");
        assert_eq!(spare(scene.status()), "INUSE");
        scene.put_back("c");
        scene.wait_for("it went back", |now| now.state() == "ONLINE" && !now.has_kind("spare"));
        assert!(is_available(), "{}", scene.zpool("status tank").stdout);
    });
    scene.judge();
}

/// It was tried anew each minute, and whoever had put it in was not told.
#[test]
fn a_drive_that_is_too_small_for_the_place_of_a_lost_one_is_told_of() {
    let scene = Scene::new("mirror HERE/a HERE/b");
    scene.zpool("set autoreplace=on tank").ok();
    scene.pull("b");
    scene.wait_for("it is gone", |now| now.state_of("b") == "REMOVED");
    scene.blank("b", 80);
    wait_until(|| {
        let events = scene.zpool("events -v").ok();
        events.contains("replacement_refused") && events.contains("too small for mirror-0")
    });
    scene.discard(&["b"]);
    scene.put_back("b");
    scene.wait_for("it is back", |now| now.state() == "ONLINE");
    scene.judge();
}

#[test]
fn three_drives_away_suspend_the_pool_and_clear_lets_it_go_on() {
    let scene = Scene::new(&format!("{SIX} spare HERE/s"));
    scene.under_load(|| {
        ["a", "b", "c"].iter().for_each(|name| scene.pull(name));
        let status = scene.wait_for("it is suspended", |now| now.state() == "SUSPENDED");
        assert!(status.0["suspended"].is_string(), "{:#}", status.0);
        let start = Instant::now();
        let text = scene.zpool("status tank").ok();
        assert!(
            text.contains(
                "status: One or more devices are faulted in response to IO failures.\n\
                 action: Make sure the affected devices are connected, then run 'zpool clear'.\n   see: "
            ) && text.contains("ZFS-8000-HC"),
            "{text}"
        );
        assert!(text.contains("\n   why: "), "what -j says is in the text, too: {text}");
        assert_eq!(scene.zpool("list -H -o health tank").ok(), "SUSPENDED\n");
        for line in [
            "zpool export tank",
            "zpool scrub tank",
            "zpool set comment=x tank",
            "zfs create tank/x",
            "zfs snapshot tank/v@x",
            "zfs destroy tank/v",
        ] {
            let refused = scene.lab.run(line).fails(1);
            assert!(refused.contains("pool I/O is currently suspended"), "{line}: {refused}");
        }
        assert!(start.elapsed() < REFUSED_WITHIN, "{:?}", start.elapsed());
        ["a", "b", "c"].iter().for_each(|name| scene.put_back(name));
        scene.zpool("clear tank").ok();
        scene.wait_for("it goes on", |now| now.state() == "ONLINE");
        scene.load_goes_on(1 << 20);
        // A spare that was called while the pool fell goes back, too.
        scene.wait_for("the spare is back", |now| !now.has_kind("spare"));
    });
    // It may go before those have all that they lack that came back after the pool went on, if there are such.
    scene.zpool("wait -t resilver tank").ok();
    scene.zpool("scrub -w tank").ok();
    let scrubbed =
        scene.wait_for("it is whole", |now| now.state() == "ONLINE" && now.scan("function") == "SCRUB");
    assert_eq!((scrubbed.scan("processed"), scrubbed.scan("errors")), ("0", "0"), "{:#}", scrubbed.0);
    scene.judge();
}

#[test]
fn a_suspended_pool_can_be_given_up_and_a_daemon_with_one_ends() {
    for is_dropped in [true, false] {
        let mut scene = Scene::new("mirror HERE/a HERE/b");
        scene.pull("a");
        scene.pull("b");
        // Somebody writes, and does not wait for the answer.
        let port = scene.ports[0];
        thread::spawn(move || {
            if let Ok(mut wire) = Nbd::open(port, "tank/v") {
                let _never = wire.write(0, &[1; SLOT], true);
            }
        });
        scene.wait_for("it is suspended", |now| now.state() == "SUSPENDED");
        if is_dropped {
            let said = scene.zpool("export -F tank");
            assert_eq!(said.code, Some(0), "{said:?}");
            assert!(said.stderr.contains("what was not flushed is lost"), "{said:?}");
            assert_eq!(scene.zpool("status tank").fails(1), "cannot open 'tank': no such pool\n");
        }
        let mut daemon = scene.daemon.take().unwrap();
        let start = Instant::now();
        daemon.signal("TERM");
        let code = daemon.wait().code();
        assert!(start.elapsed() < REFUSED_WITHIN, "{:?}", start.elapsed());
        assert_eq!(code, Some(i32::from(!is_dropped)), "{}", daemon.stderr());
        // What was flushed before is there.
        scene.put_back("a");
        scene.put_back("b");
        let imported = scene.zpool("import -d . tank");
        assert!(imported.code == Some(0) || !is_dropped, "{imported:?}");
        scene.serve();
        let mut wire = scene.nbd();
        (1..2 * REGION).for_each(|slot| scene.check(&mut wire, slot));
        drop(wire);
        scene.stop();
        scene.zpool("export tank").ok();
        fixtures::zdb_check(&[], scene.lab.cwd(), "tank").unwrap();
    }
}
