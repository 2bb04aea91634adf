//! Everything that can happen between a server and its clients happens, at random: the daemon is killed, stopped and started
//! again, connections are cut or abandoned, commands aborted, disks reset. Clients do what hosts do: connect again, log in under
//! their old names, send again what was not answered.
//!
//! Checked: what was answered is there (after a crash: what was answered as stable), a write of a connection that was given up
//! never lands late, nobody is told "no such target" or any error while the daemon comes back, and everybody is served again
//! within five seconds of the daemon's start. In the end the pool is exported and zdb looks at it.
//!
//! `make test` plays a dose; `make soak` (`MILLPOND_SOAK=SECONDS`) hours; `MILLPOND_SEED` repeats one's order of faults.

use std::{
    collections::{BTreeMap, VecDeque},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use crate::support::{
    Daemon, Lab,
    random::Random,
    wire::{Answer, Iscsi, Nbd, Trouble, Wire},
};

/// The unit of bookkeeping.
const SLOT: usize = 4096;
/// Slots of a client; neighbours share blocks.
const REGION: usize = 251;
/// The first ones over iSCSI, the others over NBD.
const CLIENTS: usize = 5;
const OVER_ISCSI: usize = 3;
const VOLUME: usize = (REGION * CLIENTS * SLOT).next_multiple_of(1 << 20);
/// Most slots of one request.
const RUN_MAX: usize = 12;
/// How long clients may stand still after the daemon's start.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Longest a client waits for one answer, or for the daemon.
const PATIENCE: Duration = Duration::from_secs(60);
const IQN: &str = "iqn.2026-11.io.millpond:tank:v";

/// What a slot holds after turn `turn`: words that tell both, and noise. Turn 0 is zeroes.
fn content(slot: usize, turn: u32) -> Vec<u8> {
    let mut random = Random((slot as u64) << 32 ^ u64::from(turn));
    let head = [(slot as u64).to_le_bytes(), u64::from(turn).to_le_bytes()];
    let noise = (2..SLOT / 8).map(|at| if at % 2 == 0 { random.next() } else { 0x2020_2020 }.to_le_bytes());
    head.into_iter().chain(noise).flatten().collect()
}

/// Which turn these bytes are, if they are one.
fn turn_of(slot: usize, bytes: &[u8]) -> Option<u32> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Some(0);
    }
    let turn = u32::from_le_bytes(bytes[8..12].try_into().unwrap());
    (content(slot, turn) == bytes).then_some(turn)
}

/// The notes about one slot: what it may hold after a crash, oldest first. Each number is used once; zeroes are noted as
/// (their number, true).
#[derive(Debug, Default)]
struct Notes {
    may_hold: VecDeque<(u32, bool)>,
    last: u32,
}

impl Notes {
    fn ask(&mut self, is_zero: bool) -> u32 {
        self.last += 1;
        self.may_hold.push_back((self.last, is_zero));
        self.last
    }

    /// The newest is stable now.
    fn stable(&mut self) {
        self.may_hold = self.may_hold.back().copied().into_iter().collect();
    }

    /// Where in `may_hold` the state is that these bytes are.
    fn find(&self, slot: usize, bytes: &[u8]) -> Option<usize> {
        let turn = turn_of(slot, bytes)?;
        let is_it = |(number, is_zero): &(u32, bool)| if turn == 0 { *is_zero } else { turn == *number };
        self.may_hold.iter().rposition(is_it)
    }
}

/// What happens to one client beside what happens to all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mishap {
    None,
    /// It leaves its connection open, a write under way, and logs in again under its name.
    Abandon,
    /// It aborts a write.
    Abort,
}

/// What the fault player and a client share.
#[derive(Default)]
struct Place {
    /// Its connection, to be cut.
    stream: Mutex<Option<TcpStream>>,
    mishap: AtomicUsize,
}

struct Scene {
    lab: Lab,
    nbd: u16,
    portals: [SocketAddr; 2],
    places: [Place; CLIENTS],
    /// Changes before and after each crash.
    crashes: AtomicU64,
    started: Mutex<Instant>,
    is_over: AtomicBool,
    seed: u64,
    counts: Mutex<BTreeMap<&'static str, u64>>,
    longest: Mutex<Duration>,
}

/// A connection of either kind.
enum Line {
    Iscsi(Iscsi),
    Nbd(Nbd),
}

impl Line {
    fn wire(&mut self) -> &mut dyn Wire {
        match self {
            Self::Iscsi(line) => line,
            Self::Nbd(line) => line,
        }
    }
}

/// What a client wants done.
#[derive(Clone, Copy, Debug)]
enum Wish {
    Write { fua: bool },
    Zero { fua: bool },
    Flush,
    Read,
}

struct Client<'a> {
    scene: &'a Scene,
    number: usize,
    random: Random,
    notes: Vec<Notes>,
    line: Option<Line>,
    /// Connections given up and not closed.
    abandoned: Option<Line>,
    crashes_seen: u64,
    connects: usize,
}

impl Scene {
    fn new(seed: u64) -> Self {
        let free = || loop {
            // Below those that the system gives to whoever connects.
            let port = 20_000 + (std::time::UNIX_EPOCH.elapsed().unwrap().subsec_nanos() / 7 % 12_000) as u16;
            if TcpListener::bind(("127.0.0.1", port)).is_ok() {
                return port;
            }
        };
        let nbd = free();
        let mut portals = [nbd; 2];
        while portals[0] == nbd || portals[1] == nbd || portals[0] == portals[1] {
            portals = [free(), free()];
        }
        let lab = Lab::scratch();
        lab.run(&format!("zpool create --size 512M tank {}", lab.cwd().join("a").display())).ok();
        lab.run(&format!("zfs create -s -V {VOLUME} -b 16K tank/v")).ok();
        Self {
            lab,
            nbd,
            portals: portals.map(|port| SocketAddr::from(([127, 0, 0, 1], port))),
            places: Default::default(),
            crashes: AtomicU64::new(0),
            started: Mutex::new(Instant::now()),
            is_over: AtomicBool::new(false),
            seed,
            counts: Mutex::default(),
            longest: Mutex::default(),
        }
    }

    fn count(&self, what: &'static str) {
        *self.counts.lock().unwrap().entry(what).or_default() += 1;
    }

    fn serve(&self) -> Daemon {
        let [a, b] = self.portals;
        *self.started.lock().unwrap() = Instant::now();
        self.lab.serve(&format!("serve --nbd 127.0.0.1:{} --iscsi {a} --iscsi {b} tank", self.nbd))
    }

    fn kill(&self, mut daemon: Daemon) -> Daemon {
        self.crashes.fetch_add(1, SeqCst);
        daemon.signal("KILL");
        daemon.wait();
        self.crashes.fetch_add(1, SeqCst);
        self.serve()
    }

    fn restart(&self, mut daemon: Daemon) -> Daemon {
        daemon.signal("TERM");
        let begun = Instant::now();
        assert_eq!(daemon.wait().code(), Some(0), "{}", daemon.stderr());
        // Initiators are asked to log out, and these do.
        assert!(begun.elapsed() < PAUSE_MAX, "a stop took {:?}", begun.elapsed());
        self.serve()
    }

    fn cut(&self, client: usize) {
        if let Some(stream) = &*self.places[client].stream.lock().unwrap() {
            // It may be gone already.
            let _gone = stream.shutdown(Shutdown::Both);
        }
    }

    /// Plays faults: each kind in turn at least, then at random, until the time is over.
    fn play(&self, length: Duration, mut daemon: Daemon) -> Daemon {
        let mut random = Random(self.seed);
        let begun = Instant::now();
        for step in 0.. {
            thread::sleep(Duration::from_millis(50 + random.next() % 500));
            if self.is_over.load(SeqCst) || (step >= 10 && begun.elapsed() > length) {
                break;
            }
            let victim = random.below(CLIENTS);
            let kind = if step < 10 { step } else { random.below(16) };
            match kind {
                0 | 4 | 8 => {
                    self.count("kills");
                    daemon = self.kill(daemon);
                }
                1 => {
                    self.count("stops");
                    daemon = self.restart(daemon);
                }
                2 | 10 => {
                    self.count("cuts of all");
                    (0..CLIENTS).for_each(|client| self.cut(client));
                }
                3 | 7 | 11 | 12 => {
                    self.count("cuts");
                    self.cut(victim);
                }
                5 | 13 => {
                    self.count("abandoned");
                    self.places[victim % OVER_ISCSI].mishap.store(Mishap::Abandon as usize, SeqCst);
                }
                6 | 14 => {
                    self.count("aborted");
                    self.places[victim % OVER_ISCSI].mishap.store(Mishap::Abort as usize, SeqCst);
                }
                _ => {
                    self.count("resets");
                    let mut line = Iscsi::open_at(self.portals[0], PATIENCE, IQN, 99).unwrap();
                    assert_eq!(line.reset().unwrap(), 0, "LOGICAL UNIT RESET");
                    line.log_out().unwrap();
                }
            }
        }
        self.is_over.store(true, SeqCst);
        daemon
    }
}

impl<'a> Client<'a> {
    fn new(scene: &'a Scene, number: usize) -> Self {
        let mut notes: Vec<Notes> = Vec::new();
        notes.resize_with(REGION, Notes::default);
        notes.iter_mut().for_each(|notes| notes.may_hold.push_back((0, true)));
        let random = Random(scene.seed ^ (number as u64 + 1) << 48);
        Self { scene, number, random, notes, line: None, abandoned: None, crashes_seen: 0, connects: 0 }
    }

    fn slot(&self, at: usize) -> usize {
        self.number * REGION + at
    }

    fn offset(&self, at: usize) -> u64 {
        (self.slot(at) * SLOT) as u64
    }

    fn connect(&mut self) -> Answer<()> {
        self.connects += 1;
        let line = if self.number < OVER_ISCSI {
            // Another portal each time: of one portal group, so that it is the same session that comes back.
            let portal = self.scene.portals[self.connects % 2];
            Line::Iscsi(Iscsi::open_at(portal, PATIENCE, IQN, self.number as u8)?.patient())
        } else {
            Line::Nbd(Nbd::open(self.scene.nbd, "tank/v")?)
        };
        let stream = match &line {
            Line::Iscsi(line) => line.stream()?,
            Line::Nbd(line) => line.stream()?,
        };
        *self.scene.places[self.number].stream.lock().unwrap() = Some(stream);
        self.line = Some(line);
        Ok(())
    }

    /// Does this somewhere, however often it takes.
    fn persist(&mut self, wish: Wish) {
        let at = self.random.below(REGION);
        let count = (1 + self.random.below(RUN_MAX)).min(REGION - at);
        self.persist_at(wish, at, count);
    }

    fn persist_at(&mut self, wish: Wish, at: usize, count: usize) {
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < PATIENCE, "client {} is not served any more", self.number);
            match self.attempt(wish, at, count) {
                Ok(()) => return,
                Err(Trouble::Gone(_)) => {
                    self.line = None;
                    if self.number >= OVER_ISCSI {
                        // NBD knows no sessions: what the old connection had received may be done after this one's first
                        // request, so it is let come to its end.
                        thread::sleep(Duration::from_millis(50));
                    }
                    thread::sleep(Duration::from_millis(5));
                }
                // Service unavailable: a server that is just going.
                Err(Trouble::Refused(why)) if why.starts_with("login: status 0x3/0x1") => {
                    self.line = None;
                    thread::sleep(Duration::from_millis(20));
                }
                Err(Trouble::Refused(why)) => panic!("client {}: {wish:?}: {why}", self.number),
            }
        }
    }

    fn attempt(&mut self, wish: Wish, at: usize, count: usize) -> Answer<()> {
        if self.line.is_none() {
            self.connect()?;
            let crashes = self.scene.crashes.load(SeqCst);
            if crashes != self.crashes_seen {
                self.check_all(true)?;
                self.crashes_seen = crashes;
                let pause = self.scene.started.lock().unwrap().elapsed();
                let mut longest = self.scene.longest.lock().unwrap();
                *longest = pause.max(*longest);
            }
        }
        let mishap = self.scene.places[self.number].mishap.swap(Mishap::None as usize, SeqCst);
        if mishap != Mishap::None as usize {
            self.mishap(mishap == Mishap::Abort as usize, at, count);
            return self.attempt(wish, at, count);
        }
        let offset = self.offset(at);
        let (slots, len) = (at..at + count, count * SLOT);
        let data: Vec<u8> = match wish {
            Wish::Write { .. } => slots.clone().flat_map(|at| self.ask(at, false)).collect(),
            Wish::Zero { .. } => slots.clone().flat_map(|at| self.ask(at, true)).collect(),
            _ => Vec::new(),
        };
        let line = self.line.as_mut().unwrap();
        match wish {
            Wish::Write { fua } => line.wire().write(offset, &data, fua)?,
            Wish::Zero { fua } => line.wire().zero(offset, len as u32, fua)?,
            Wish::Flush => line.wire().flush()?,
            Wish::Read => {
                let bytes = line.wire().read(offset, len as u32)?;
                self.check(at, &bytes, false);
            }
        }
        match wish {
            Wish::Write { fua: true } | Wish::Zero { fua: true } => {
                slots.for_each(|at| self.notes[at].stable());
            }
            Wish::Flush => self.notes.iter_mut().for_each(Notes::stable),
            _ => {}
        }
        if let Some(Line::Iscsi(line)) =
            self.line.take_if(|line| matches!(line, Line::Iscsi(line) if line.shall_leave()))
        {
            self.scene.count("logouts");
            line.log_out()?;
        }
        self.abandoned = None;
        Ok(())
    }

    fn ask(&mut self, at: usize, is_zero: bool) -> Vec<u8> {
        let slot = self.slot(at);
        let turn = self.notes[at].ask(is_zero);
        content(slot, turn)
    }

    /// A write that is begun and then given up, in one of two ways. Then another, and what was given up anew.
    fn mishap(&mut self, is_abort: bool, at: usize, count: usize) {
        let data: Vec<u8> = (at..at + count).flat_map(|at| self.ask(at, false)).collect();
        let offset = self.offset(at);
        let Some(Line::Iscsi(mut line)) = self.line.take() else { panic!("NBD has no such mishaps") };
        let begun = line.begin_write(offset, &data);
        match begun.and_then(|tag| if is_abort { line.abort(tag) } else { Ok(0) }) {
            Ok(answer) if is_abort => {
                assert!(answer <= 1, "ABORT TASK: {answer}");
                self.line = Some(Line::Iscsi(line));
            }
            Ok(_) => self.abandoned = Some(Line::Iscsi(line)),
            Err(Trouble::Gone(_)) => {}
            Err(Trouble::Refused(why)) => panic!("client {}: {why}", self.number),
        }
        // Done or not, it is over; what comes now is newer.
        self.persist_at(Wish::Write { fua: false }, at, count);
        self.persist(Wish::Write { fua: false });
    }

    /// Compares with the notes: after a crash any state since the last stable one will do, and is what it is from there on.
    fn check(&mut self, first: usize, bytes: &[u8], is_after_crash: bool) {
        for (at, bytes) in (first..).zip(bytes.chunks_exact(SLOT)) {
            let slot = self.slot(at);
            let notes = &mut self.notes[at];
            let found = notes.find(slot, bytes);
            let is_right = match is_after_crash {
                true => found.is_some(),
                // A turn number is used once, zeroes may be there twice.
                false => found.is_some_and(|found| found + 1 == notes.may_hold.len()),
            };
            assert!(
                is_right,
                "client {} slot {at}: {:x?}… is turn {:?}; crash: {is_after_crash}; it may be {:?}; MILLPOND_SEED={:#x}",
                self.number,
                &bytes[..24],
                turn_of(slot, bytes),
                notes.may_hold,
                self.scene.seed
            );
            if let Some(found) = found.filter(|_| is_after_crash) {
                notes.may_hold = [notes.may_hold[found]].into();
            }
        }
    }

    fn check_all(&mut self, is_after_crash: bool) -> Answer<()> {
        for first in (0..REGION).step_by(64) {
            let count = 64.min(REGION - first);
            let offset = self.offset(first);
            let bytes = self.line.as_mut().unwrap().wire().read(offset, (count * SLOT) as u32)?;
            self.check(first, &bytes, is_after_crash);
        }
        Ok(())
    }

    fn work(mut self) {
        while !self.scene.is_over.load(SeqCst) {
            let wish = match self.random.below(20) {
                0..6 => Wish::Write { fua: true },
                6..12 => Wish::Write { fua: false },
                12 => Wish::Zero { fua: self.random.below(2) == 0 },
                13 => Wish::Flush,
                _ => Wish::Read,
            };
            self.persist(wish);
            self.scene.count(if self.number < OVER_ISCSI {
                "requests over iSCSI"
            } else {
                "requests over NBD"
            });
        }
        // The last words: everything, once more.
        self.persist(Wish::Flush);
        self.check_all(false).unwrap();
    }
}

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    text.strip_prefix("0x").map_or_else(|| text.parse().ok(), |hex| u64::from_str_radix(hex, 16).ok())
}

#[test]
fn clients_that_try_again_lose_nothing_whatever_happens_to_server_and_connections() {
    let _turn = crate::alone();
    let seed = setting("MILLPOND_SEED")
        .unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64);
    let length = Duration::from_secs(setting("MILLPOND_SOAK").unwrap_or(4));
    eprintln!("outages: {length:?}, MILLPOND_SEED={seed:#x}");
    let scene = Scene::new(seed);
    let daemon = scene.serve();
    let mut daemon = thread::scope(|scope| {
        // Whoever panics ends the play, so that the test ends.
        struct Over<'a>(&'a AtomicBool);
        impl Drop for Over<'_> {
            fn drop(&mut self) {
                self.0.store(true, SeqCst);
            }
        }
        for number in 0..CLIENTS {
            let scene = &scene;
            scope.spawn(move || {
                let _over = Over(&scene.is_over);
                Client::new(scene, number).work();
            });
        }
        let _over = Over(&scene.is_over);
        scene.play(length, daemon)
    });
    daemon.signal("TERM");
    assert_eq!(daemon.wait().code(), Some(0), "{}", daemon.stderr());
    let longest = *scene.longest.lock().unwrap();
    eprintln!(
        "outages: {:?}; longest until all was read and right after a crash {longest:.2?}",
        scene.counts.lock().unwrap()
    );
    assert!(longest < PAUSE_MAX, "{longest:?}");
    scene.lab.run("zpool export tank").ok();
    fixtures::zdb_check(&[], scene.lab.cwd(), "tank").unwrap();
}

#[test]
fn hosts_of_a_pool_whose_drives_are_late_are_told_to_try_again() {
    let _turn = crate::alone();
    let lab = Lab::scratch();
    let (late, away) = (lab.cwd().join("late"), lab.cwd().join("away"));
    lab.run(&format!("zpool create --size 128M tank {}", lab.cwd().join("a").display())).ok();
    lab.run(&format!("zpool create --size 128M lake {}", late.display())).ok();
    lab.run("zfs create -s -V 8M lake/v").ok();
    std::fs::rename(&late, &away).unwrap();
    let port = |daemon: &Daemon| -> u16 {
        let url = daemon.urls("iscsi").first().map(|url| (*url).to_owned());
        url.map_or(0, |url| url.split(['/', ':']).nth(4).unwrap().parse().unwrap())
    };
    lab.run("zfs create -s -V 8M tank/v").ok();
    let daemon = lab.serve("serve --iscsi 127.0.0.1:0");
    let status = |target: &str| match Iscsi::open(port(&daemon), target, 1) {
        Ok(_) => "in".to_owned(),
        Err(Trouble::Refused(why)) => why,
        Err(Trouble::Gone(error)) => panic!("{target}: {error}"),
    };
    assert_eq!(status("iqn.2026-11.io.millpond:tank:v"), "in");
    assert_eq!(status("iqn.2026-11.io.millpond:lake:v"), "login: status 0x3/0x1", "service unavailable");
    assert_eq!(status("iqn.2026-11.io.millpond:lakes:v"), "login: status 0x2/0x3", "not found");
    std::fs::rename(&away, &late).unwrap();
    daemon.stop();
    let daemon = lab.serve("serve --iscsi 127.0.0.1:0");
    drop(Iscsi::open(port(&daemon), "iqn.2026-11.io.millpond:lake:v", 1).unwrap());
    daemon.stop();
}
