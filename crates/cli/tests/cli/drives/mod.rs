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

mod changed;
mod errors;
mod pulled;

use std::{
    fs,
    net::TcpListener,
    path::PathBuf,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::support::{
    Daemon, Lab, Outcome,
    random::Random,
    wait_until,
    wire::{Iscsi, Nbd, Wire},
};

/// The unit that clients write.
const SLOT: usize = 16 << 10;
/// Slots of each client.
const REGION: usize = 1024;
const VOLUME: usize = 2 * REGION * SLOT;
/// Slots of each region that are written under load: so that what a drive misses is less than what it holds.
const ACTIVE: usize = REGION / 4;
/// Pause of a client between two requests: a load, and no race.
const PAUSE: Duration = Duration::from_millis(4);
const SIX: &str = "raidz2 HERE/a HERE/b HERE/c HERE/d HERE/e HERE/f";

/// What a slot holds after turn `turn`; nothing that compresses.
fn content(slot: usize, turn: u32) -> Vec<u8> {
    let mut random = Random((slot as u64) << 32 ^ u64::from(turn));
    (0..SLOT / 8).flat_map(|_| random.next().to_le_bytes()).collect()
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
        let mut random = Random(number as u64 + 7);
        while !self.is_over.load(SeqCst) {
            let slot = number * REGION + random.below(ACTIVE);
            match random.below(8) {
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
        Status::of(&self.lab)
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
pub(crate) struct Status(Value);

impl Status {
    pub(crate) fn of(lab: &Lab) -> Self {
        let text = lab.run("zpool status -j -p tank").ok();
        Self(serde_json::from_str::<Value>(&text).unwrap()["pools"]["tank"].clone())
    }

    pub(crate) fn state(&self) -> &str {
        self.0["state"].as_str().unwrap()
    }

    /// The device whose path ends like this, wherever it is.
    pub(crate) fn device(&self, name: &str) -> &Value {
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

    pub(crate) fn state_of(&self, name: &str) -> &str {
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
