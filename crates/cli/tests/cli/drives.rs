//! Drives are pulled from a running box, and put back: files under a pool that the real daemon serves, while clients
//! write over NBD and iSCSI and check what they read.
//!
//! ```text
//!   scene      six files, one pool, the daemon           load   two clients, each with a region and notes about it
//!   pull, put  a file is moved away, and back            status what `zpool status` says, as text and as JSON
//! ```
//!
//! A file that was moved away can still be written to by whoever has it open. So a daemon that noticed nothing would
//! pass for healthy here, until the file is back, old; and what is asked for first is that it notices.

use std::{
    fs,
    net::TcpListener,
    os::unix::fs::FileExt as _,
    path::PathBuf,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::support::wire::{Iscsi, Nbd, Wire};
use crate::support::{Daemon, Lab, Outcome, wait_until};

/// The unit that clients write.
const SLOT: usize = 16 << 10;
/// Slots of each client.
const REGION: usize = 1024;
const VOLUME: usize = 2 * REGION * SLOT;
/// Slots of each region that are written under load: so that what a drive misses is less than what it holds.
const ACTIVE: usize = REGION / 4;
/// Pause of a client between two requests: a load, and no race.
const PAUSE: Duration = Duration::from_millis(4);
/// Longest a command may take to be refused.
const REFUSED_WITHIN: Duration = Duration::from_secs(15);

/// What a slot holds after turn `turn`; nothing that compresses.
fn content(slot: usize, turn: u32) -> Vec<u8> {
    let mut state = (slot as u64) << 32 ^ u64::from(turn) ^ 0x9e37_79b9_7f4a_7c15;
    let words = (0..SLOT / 8).flat_map(|_| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb).to_le_bytes()
    });
    words.collect()
}

/// Files, a pool of them, and a daemon that serves it.
struct Scene {
    lab: Lab,
    daemon: Option<Daemon>,
    ports: [u16; 2],
    /// Turn of each slot that was answered last.
    turns: Mutex<Vec<u32>>,
    written: AtomicU64,
    is_over: AtomicBool,
}

impl Scene {
    /// A pool of this layout, `HERE` standing for the directory of the test, with a volume that is full.
    fn new(layout: &str) -> Self {
        Self::sized("160M", layout)
    }

    fn sized(size: &str, layout: &str) -> Self {
        let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut scene = Self {
            lab: Lab::scratch(),
            daemon: None,
            ports: [free(), free()],
            turns: Mutex::new(vec![0; 2 * REGION]),
            written: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        };
        let here = scene.here();
        scene.zpool(&format!("create --size {size} tank {}", layout.replace("HERE", &here))).ok();
        scene.lab.run(&format!("zfs create -s -V {VOLUME} -b 16K tank/v")).ok();
        scene.serve();
        let mut wire = scene.nbd();
        for slot in 0..2 * REGION {
            scene.write(&mut wire, slot, 1);
        }
        wire.flush().unwrap();
        drop(wire);
        scene.zpool("sync tank").ok();
        scene
    }

    fn here(&self) -> String {
        self.lab.cwd().display().to_string()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.lab.cwd().join(name)
    }

    fn serve(&mut self) {
        let [nbd, iscsi] = self.ports;
        self.daemon =
            Some(self.lab.serve(&format!("serve --nbd 127.0.0.1:{nbd} --iscsi 127.0.0.1:{iscsi} tank")));
    }

    #[track_caller]
    fn stop(&mut self) {
        let mut daemon = self.daemon.take().unwrap();
        daemon.signal("TERM");
        assert_eq!(daemon.wait().code(), Some(0), "{}", daemon.stderr());
    }

    /// Drives that left the pool: zdb-check would ask whose they are.
    fn discard(&self, names: &[&str]) {
        names.iter().for_each(|name| fs::remove_file(self.file(name)).unwrap());
    }

    /// The end of every test: the pool is exported, and zdb finds nothing wrong.
    #[track_caller]
    fn judge(mut self) {
        self.verify();
        self.stop();
        self.zpool("export tank").ok();
        fixtures::zdb_check(&[], self.lab.cwd(), "tank").unwrap();
    }

    fn zpool(&self, line: &str) -> Outcome {
        self.lab.run(&format!("zpool {line}"))
    }

    fn nbd(&self) -> Nbd {
        Nbd::open(self.ports[0], "tank/v").unwrap()
    }

    fn write(&self, wire: &mut dyn Wire, slot: usize, turn: u32) {
        wire.write((slot * SLOT) as u64, &content(slot, turn), false).unwrap();
        self.turns.lock().unwrap()[slot] = turn;
        self.written.fetch_add(SLOT as u64, SeqCst);
    }

    #[track_caller]
    fn check(&self, wire: &mut dyn Wire, slot: usize) {
        let turn = self.turns.lock().unwrap()[slot];
        let found = wire.read((slot * SLOT) as u64, SLOT as u32).unwrap();
        assert!(found == content(slot, turn), "slot {slot} is not as of turn {turn}");
    }

    /// Every slot is what was written last.
    #[track_caller]
    fn verify(&self) {
        let mut wire = self.nbd();
        (0..2 * REGION).for_each(|slot| self.check(&mut wire, slot));
    }

    /// A client with a region of its own, until it is over.
    fn client(&self, mut wire: Box<dyn Wire>, number: usize) {
        let mut state = number as u64 + 7;
        let mut below = |bound: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % bound
        };
        while !self.is_over.load(SeqCst) {
            let slot = number * REGION + below(ACTIVE);
            match below(8) {
                0..4 => {
                    let turn = self.turns.lock().unwrap()[slot] + 1;
                    self.write(&mut *wire, slot, turn);
                }
                4 => wire.flush().unwrap(),
                _ => self.check(&mut *wire, slot),
            }
            thread::sleep(PAUSE);
        }
    }

    /// Does something while clients are at work, on sessions that must last.
    fn under_load<T>(&self, what: impl FnOnce() -> T) -> T {
        self.is_over.store(false, SeqCst);
        let iqn = "iqn.2026-11.io.millpond:tank:v";
        let clients: [Box<dyn Wire>; 2] =
            [Box::new(self.nbd()), Box::new(Iscsi::open(self.ports[1], iqn, 1).unwrap())];
        thread::scope(|scope| {
            for (number, wire) in clients.into_iter().enumerate() {
                scope.spawn(move || self.client(wire, number));
            }
            /// Also when a test fails in between: clients would wait for ever.
            struct End<'a>(&'a AtomicBool);
            impl Drop for End<'_> {
                fn drop(&mut self) {
                    self.0.store(true, SeqCst);
                }
            }
            let _end = End(&self.is_over);
            what()
        })
    }

    /// Clients get on: this many bytes more.
    #[track_caller]
    fn load_goes_on(&self, bytes: u64) {
        let before = self.written.load(SeqCst);
        wait_until(|| self.written.load(SeqCst) >= before + bytes);
    }

    fn pull(&self, name: &str) {
        fs::rename(self.file(name), self.file(&format!("{name}.pulled"))).unwrap();
    }

    fn put_back(&self, name: &str) {
        fs::rename(self.file(&format!("{name}.pulled")), self.file(name)).unwrap();
    }

    /// A new empty drive.
    fn blank(&self, name: &str, megabytes: u64) {
        fs::File::create(self.file(name)).unwrap().set_len(megabytes << 20).unwrap();
    }

    fn status(&self) -> Status {
        let text = self.zpool("status -j -p tank").ok();
        Status(serde_json::from_str::<Value>(&text).unwrap()["pools"]["tank"].clone())
    }

    #[track_caller]
    fn wait_for(&self, what: &str, is_so: impl Fn(&Status) -> bool) -> Status {
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            let status = self.status();
            if is_so(&status) {
                return status;
            }
            assert!(
                Instant::now() < deadline,
                "{what}: it never happened:\n{}",
                self.zpool("status tank").stdout
            );
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// What `zpool status -j -p` says of the pool.
struct Status(Value);

impl Status {
    fn state(&self) -> &str {
        self.0["state"].as_str().unwrap()
    }

    /// The device whose path ends like this, wherever it is.
    fn device(&self, name: &str) -> &Value {
        fn find<'a>(at: &'a Value, end: &str) -> Option<&'a Value> {
            let object = at.as_object()?;
            if object.get("path").and_then(Value::as_str).is_some_and(|path| path.ends_with(end)) {
                return Some(at);
            }
            object.values().find_map(|value| find(value, end))
        }
        let found = find(&self.0["vdevs"], &format!("/{name}"));
        found.unwrap_or_else(|| panic!("{name} is not in {:#}", self.0["vdevs"]))
    }

    fn state_of(&self, name: &str) -> &str {
        self.device(name)["state"].as_str().unwrap()
    }

    fn has_kind(&self, kind: &str) -> bool {
        self.0["vdevs"].to_string().contains(&format!("\"vdev_type\":\"{kind}\""))
    }

    fn scan(&self, key: &str) -> &str {
        self.0["scan_stats"][key].as_str().unwrap_or("")
    }

    fn scan_number(&self, key: &str) -> u64 {
        self.scan(key).parse().unwrap_or_else(|_| panic!("{key} of {:#}", self.0["scan_stats"]))
    }

    fn is_resilvered(&self) -> bool {
        self.scan("function") == "RESILVER" && self.scan("state") == "FINISHED"
    }

    fn is_whole(&self) -> bool {
        self.state() == "ONLINE" && self.is_resilvered()
    }
}

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

const SIX: &str = "raidz2 HERE/a HERE/b HERE/c HERE/d HERE/e HERE/f";

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
    let status = || {
        let text = lab.run("zpool status -j -p tank").ok();
        Status(serde_json::from_str::<Value>(&text).unwrap()["pools"]["tank"].clone())
    };
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

#[test]
fn wrong_bytes_on_one_drive_are_healed_counted_and_cleared() {
    let scene = Scene::new(SIX);
    let here = scene.here();
    scene.under_load(|| {
        // Behind the labels, through the whole drive, now and then.
        for at in (5..150).step_by(5) {
            let written = std::process::Command::new("dd")
                .args(["if=/dev/urandom", "bs=64K", "count=4", "conv=notrunc", "status=none"])
                .arg(format!("of={}", scene.file("b").display()))
                .arg(format!("seek={}", at * 16))
                .status();
            assert!(written.unwrap().success());
        }
        scene.zpool("scrub -w tank").ok();
        let status = scene.status();
        assert_eq!((status.scan("function"), status.scan("errors")), ("SCRUB", "0"));
        assert!(status.scan_number("processed") > 0, "nothing was repaired");
        let counted: u64 = status.device("b")["checksum_errors"].as_str().unwrap().parse().unwrap();
        assert!(counted > 0, "{:#}", status.0);
        for well in ["a", "c", "d", "e", "f"] {
            assert_eq!(status.device(well)["checksum_errors"], "0", "{well}");
        }
        let text = scene.zpool("status tank").ok();
        assert!(text.contains("One or more devices has experienced an unrecoverable error."), "{text}");
        scene.zpool(&format!("clear tank {here}/b")).ok();
        let cleared = scene.status();
        assert_eq!((cleared.state(), &cleared.device("b")["checksum_errors"]), ("ONLINE", &"0".into()));
    });
    scene.zpool("scrub -w tank").ok();
    assert_eq!(scene.status().scan("processed"), "0");
    scene.judge();
}

#[test]
fn a_scrub_says_what_it_found_and_only_one_that_runs_is_stopped() {
    let scene = Scene::new("mirror HERE/a HERE/b");
    assert_eq!(
        scene.zpool("scrub -s tank").fails(1),
        "cannot cancel scrubbing tank: there is no active scrub\n"
    );
    assert_eq!(scene.zpool("scrub nothing").fails(1), "cannot open 'nothing': no such pool\n");
    scene.zpool("scrub -w tank").ok();
    let status = scene.status();
    assert_eq!((status.scan("state"), status.scan("errors")), ("FINISHED", "0"));
    assert!(status.scan_number("examined") >= VOLUME as u64, "{:#}", status.0);
    let text = scene.zpool("status tank").ok();
    assert!(
        text.contains("  scan: scrub repaired 0B in 00:00:") && text.contains(" with 0 errors on "),
        "{text}"
    );
    scene.judge();
}

/// A scrub files what a snapshot holds under the snapshot, and the list of what is lost knew live datasets only: it had the
/// number of an object set, no bytes, and nothing of the volume that clients use.
#[test]
fn what_a_snapshot_has_lost_is_named_with_its_bytes_and_so_is_who_shares_it() {
    let scene = Scene::new("HERE/a");
    name_what_a_snapshot_has_lost(&scene);
    scene.judge();
}

/// With feature `head_errlog` a scrub files it under the volume, whose bytes were listed as lost although it had good ones
/// there; of the snapshot and the clone, which had lost theirs, nothing was said.
#[test]
fn what_a_snapshot_has_lost_is_not_said_of_its_volume_if_the_log_is_by_volume() {
    let scene = Scene::sized("160M -o feature@head_errlog=enabled", "HERE/a");
    assert_eq!(scene.zpool("get -H -o value feature@head_errlog tank").ok(), "active\n");
    name_what_a_snapshot_has_lost(&scene);
    // Until the next scrub, be it one of the log, that has what nobody has any more.
    let file = scene.file("a");
    let (bytes, wanted) = (fs::read(&file).unwrap(), content(1500, 1));
    let at = (0..bytes.len() - SLOT).step_by(4096).find(|at| bytes[*at..*at + SLOT] == wanted[..]).unwrap();
    let device = fs::OpenOptions::new().write(true).open(&file).unwrap();
    device.write_all_at(&[0xee; 512], at as u64).unwrap();
    scene.zpool("scrub -w tank").ok();
    let text = scene.zpool("status -v tank").ok();
    assert!(text.ends_with("        tank/v:<0x1>\n            bytes 24576000-24592383\n"), "{text}");
    let mut wire = scene.nbd();
    scene.write(&mut wire, 1500, 2);
    wire.flush().unwrap();
    drop(wire);
    scene.zpool("sync tank").ok();
    let text = scene.zpool("status -v tank").ok();
    assert!(text.ends_with("        tank/v:<0x1> (overwritten or freed since)\n"), "{text}");
    scene.zpool("scrub -e -w tank").ok();
    assert!(scene.zpool("status -v tank").ok().ends_with("errors: No known data errors\n"));
    scene.judge();
}

fn name_what_a_snapshot_has_lost(scene: &Scene) {
    scene.lab.run("zfs snapshot tank/v@s").ok();
    scene.lab.run("zfs clone tank/v@s tank/c").ok();
    // One block is the snapshot's and the clone's; the volume has another there.
    let mut wire = scene.nbd();
    scene.write(&mut wire, 700, 2);
    wire.flush().unwrap();
    drop(wire);
    scene.zpool("sync tank").ok();
    let file = scene.file("a");
    let bytes = fs::read(&file).unwrap();
    for slot in [3usize, 4, 700] {
        let wanted = content(slot, 1);
        let at =
            (0..bytes.len() - SLOT).step_by(4096).find(|at| bytes[*at..*at + SLOT] == wanted[..]).unwrap();
        let device = fs::OpenOptions::new().write(true).open(&file).unwrap();
        device.write_all_at(&[0xee; 512], at as u64).unwrap();
    }
    scene.zpool("scrub -w tank").ok();
    assert_eq!((scene.status().scan("state"), scene.status().scan("errors")), ("FINISHED", "3"));
    let text = scene.zpool("status -v tank").ok();
    let shared = "            bytes 49152-81919\n";
    let old = format!("{shared}            bytes 11468800-11485183\n");
    for (name, bytes) in [("tank/v", shared), ("tank/v@s", old.as_str()), ("tank/c", old.as_str())] {
        let wanted = format!("        {name}:<0x1>\n{bytes}");
        let (_, behind) = text.split_once(&wanted).unwrap_or_else(|| panic!("{wanted:?} is not in {text}"));
        assert!(!behind.starts_with("            bytes "), "{name}: {text}");
    }
    assert_eq!(text.matches(":<0x").count(), 3, "{text}");
    // A scrub of the log read the good block that the volume has there, and forgot the one that is lost.
    scene.zpool("scrub -e -w tank").ok();
    assert_eq!(scene.status().0["error_scrub"]["errors"], "3");
    let list = |text: &str| text.split_once("errors: ").unwrap().1.to_owned();
    assert_eq!(list(&scene.zpool("status -v tank").ok()), list(&text));
    // With those who hold it gone, and the rest written anew, nothing is lost any more.
    scene.lab.run("zfs destroy tank/c").ok();
    scene.lab.run("zfs destroy tank/v@s").ok();
    let mut wire = scene.nbd();
    [3, 4].iter().for_each(|slot| scene.write(&mut wire, *slot, 2));
    wire.flush().unwrap();
    drop(wire);
    scene.zpool("sync tank").ok();
    scene.zpool("scrub -w tank").ok();
    assert!(scene.zpool("status -v tank").ok().ends_with("errors: No known data errors\n"));
}

/// Its entries were not found any more: no error was known, and what was lost next went into it in the other form.
#[test]
fn the_error_log_keeps_its_form_while_it_tells_of_anything() {
    let scene = Scene::new("HERE/a");
    let lose = |slot: usize| {
        let file = scene.file("a");
        let (bytes, wanted) = (fs::read(&file).unwrap(), content(slot, 1));
        let at =
            (0..bytes.len() - SLOT).step_by(4096).find(|at| bytes[*at..*at + SLOT] == wanted[..]).unwrap();
        let device = fs::OpenOptions::new().write(true).open(&file).unwrap();
        device.write_all_at(&[0xee; 512], at as u64).unwrap();
        scene.zpool("scrub -w tank").ok();
    };
    let restore = |slot: usize| {
        let mut wire = scene.nbd();
        scene.write(&mut wire, slot, 2);
        wire.flush().unwrap();
        drop(wire);
        scene.zpool("sync tank").ok();
        scene.zpool("scrub -w tank").ok();
    };
    let lost = |bytes: &str| {
        let text = scene.zpool("status -v tank").ok();
        assert!(text.ends_with(&format!("        tank/v:<0x1>\n            bytes {bytes}\n")), "{text}");
    };
    lose(1500);
    lost("24576000-24592383");
    let said = scene.zpool("set feature@head_errlog=enabled tank").fails(1);
    assert!(said.contains("'tank': the error log") && said.contains("zpool scrub"), "{said}");
    lost("24576000-24592383");
    restore(1500);
    scene.zpool("set feature@head_errlog=enabled tank").ok();
    assert_eq!(scene.zpool("get -H -o value feature@head_errlog tank").ok(), "active\n");
    lose(1501);
    lost("24592384-24608767");
    restore(1501);
    scene.judge();
}

/// Whoever asked what is lost read the damaged metadata on the way there as anybody does, so that each look was counted
/// as new errors, and some looks later the devices of a mirror were degraded for it.
#[test]
fn a_look_at_what_is_lost_counts_no_errors() {
    let mut scene = Scene::new("mirror HERE/a HERE/b");
    scene.lab.run("zfs snapshot tank/v@s").ok();
    let bytes = fs::read(scene.file("a")).unwrap();
    let damage = |scene: &Scene, at: usize| {
        for name in ["a", "b"] {
            let device = fs::OpenOptions::new().write(true).open(scene.file(name)).unwrap();
            device.write_all_at(&[0xee; 512], at as u64).unwrap();
        }
    };
    let wanted = content(1500, 1);
    let at = (0..bytes.len() - SLOT).step_by(4096).find(|at| bytes[*at..*at + SLOT] == wanted[..]).unwrap();
    damage(&scene, at);
    scene.zpool("scrub -w tank").ok();
    assert_eq!((scene.status().scan("state"), scene.status().scan("errors")), ("FINISHED", "1"));
    // In good order it would note what is warm, and read that when it starts again.
    let mut daemon = scene.daemon.take().unwrap();
    daemon.signal("KILL");
    assert_eq!(daemon.wait().code(), None);
    // The pointers to the second half of the volume, which are the snapshot's and the volume's.
    let dump = scene.lab.run("dump -f -DDD tank/v@s 1").ok();
    let wanted = format!(" {:x} L1 DVA[0]=", 1024 * SLOT);
    let line = dump.lines().find(|line| line.contains(&wanted)).unwrap_or_else(|| panic!("{dump}"));
    for dva in line.split("DVA[").skip(1) {
        let offset = dva.split(':').nth(1).unwrap();
        damage(&scene, (4 << 20) + usize::from_str_radix(offset, 16).unwrap());
    }
    scene.serve();
    let counted = |status: &Status| {
        ["a", "b"].map(|name| status.device(name)["checksum_errors"].as_str().unwrap().to_owned())
    };
    let before = counted(&scene.status());
    for turn in 0..4 {
        // What was seen is kept until something is committed.
        scene.zpool(&format!("set comment={turn} tank")).ok();
        let text = scene.zpool("status -v tank").ok();
        assert!(text.contains("        tank/v@s:<0x1>\n"), "{text}");
    }
    let after = scene.status();
    assert_eq!((counted(&after), after.state()), (before, "ONLINE"));
    scene.stop();
}

/// The line of the scrub before it stood there, as if nothing had been looked at since.
#[test]
fn a_scrub_of_the_error_log_is_told_by_status() {
    let mut scene = Scene::new("HERE/a");
    let (file, lost) = (scene.file("a"), [3usize, 700, 1500]);
    let mut bytes = fs::read(&file).unwrap();
    for slot in lost {
        let wanted = content(slot, 1);
        let at =
            (0..bytes.len() - SLOT).step_by(4096).find(|at| bytes[*at..*at + SLOT] == wanted[..]).unwrap();
        bytes[at..at + 512].fill(0xee);
        let device = fs::OpenOptions::new().write(true).open(&file).unwrap();
        device.write_all_at(&[0xee; 512], at as u64).unwrap();
    }
    scene.zpool("scrub -w tank").ok();
    assert_eq!((scene.status().scan("state"), scene.status().scan("errors")), ("FINISHED", "3"));
    scene.zpool("scrub -e -w tank").ok();
    let told = |scene: &Scene, wanted: &str| {
        let text = scene.zpool("status tank").ok();
        let line = text.lines().find_map(|line| line.strip_prefix("  scan: ")).unwrap_or_default();
        assert!(line.starts_with(wanted), "{text}");
        let scrub = &scene.status().0["error_scrub"];
        let numbers = ["function", "state", "to_examine", "examined"].map(|key| scrub[key].as_str().unwrap());
        assert_eq!(numbers, ["ERRORSCRUB", "FINISHED", "3", "3"]);
        // The other one is not forgotten.
        assert_eq!((scene.status().scan("function"), scene.status().scan("state")), ("SCRUB", "FINISHED"));
        scrub["errors"].as_str().unwrap().to_owned()
    };
    assert_eq!(told(&scene, "scrubbed 3 error block(s) in 00:00:0"), "3");
    // It is the pool that remembers.
    scene.stop();
    assert_eq!(told(&scene, "scrubbed 3 error block(s) in 00:00:0"), "3");
    scene.serve();
    assert_eq!(told(&scene, "scrubbed 3 error block(s) in 00:00:0"), "3");
    // Written anew they are whole, and the next one finds that.
    let mut wire = scene.nbd();
    lost.iter().for_each(|slot| scene.write(&mut wire, *slot, 2));
    wire.flush().unwrap();
    drop(wire);
    scene.zpool("sync tank").ok();
    scene.zpool("scrub -e -w tank").ok();
    assert_eq!(told(&scene, "scrubbed 3 error block(s) in 00:00:0"), "0");
    assert!(scene.zpool("status tank").ok().ends_with("errors: No known data errors\n"));
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
