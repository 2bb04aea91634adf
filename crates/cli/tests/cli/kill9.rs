//! The daemon is killed, again and again, under clients that know what they were promised.
//!
//! Promised: what was answered under FUA, before a flush was asked for that was answered (on any connection, over
//! either protocol), without write cache or under `sync=always`, is there after a restart; everything else is there
//! or is not, each 4 KiB as a whole, and never goes back to what it was once it was seen after a crash.
//!
//! Checked: every client writes blocks that tell their place and their turn, and notes when it asks and when it is
//! answered. The daemon gets SIGKILL at a moment nobody chose, is started again (now and then killed once more while
//! it has barely begun), clients log in under their old names, and every block is compared with the notes. In the end
//! the pool is exported and zdb looks at it.
//!
//! `MILLPOND_KILLS=200` is the long run of `make sim`; `MILLPOND_SEED` repeats one.

use std::{
    collections::VecDeque,
    net::TcpListener,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use crate::support::{
    Daemon, Lab,
    random::Random,
    served_as,
    wire::{Iscsi, Nbd, Trouble, Wire},
};

/// The unit of atomicity, and of bookkeeping.
const SLOT: usize = 4096;
/// Slots of a client: not a multiple of any block's, so that neighbours share blocks.
const REGION: usize = 419;
/// Clients of a volume: half over NBD, half over iSCSI.
const CLIENTS: usize = 4;
const SLOTS: usize = REGION * CLIENTS;
/// Bytes of a volume: all regions, in whole blocks.
const VOLUME: usize = (SLOTS * SLOT).next_multiple_of(1 << 20);
/// Most slots of one request.
const RUN_MAX: usize = 12;

/// What a slot holds after turn `turn`: sectors that tell slot, turn and number, and bytes that compress a little.
fn content(slot: usize, turn: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(SLOT);
    for sector in 0..SLOT / 512 {
        let mut random = Random((slot as u64) << 40 ^ u64::from(turn) << 8 ^ sector as u64);
        out.extend(0x6d69_6c6c_706f_6e64_u64.to_le_bytes());
        out.extend((slot as u64).to_le_bytes());
        out.extend(u64::from(turn).to_le_bytes());
        out.extend((sector as u64).to_le_bytes());
        while out.len() < (sector + 1) * 512 {
            let word = random.next();
            // Half of the words are the same.
            out.extend(if word & 1 == 0 { word } else { 0x2020_2020_2020_2020 }.to_le_bytes());
        }
    }
    out
}

/// What a slot may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Zeroes,
    Turn(u32),
}

impl State {
    /// What these bytes are, if they are one thing.
    fn of(slot: usize, bytes: &[u8]) -> Option<Self> {
        if bytes.iter().all(|byte| *byte == 0) {
            return Some(Self::Zeroes);
        }
        let turn = u32::from_le_bytes(bytes[16..20].try_into().unwrap());
        (content(slot, turn) == bytes).then_some(Self::Turn(turn))
    }
}

/// The notes about one slot.
#[derive(Debug)]
struct Slot {
    /// What it may hold after a crash, oldest first, with the turn of each; the last is the newest that was asked for.
    may_hold: VecDeque<(u32, State)>,
    /// Newest turn that was answered.
    answered: u32,
    /// Newest turn there was. Never used twice.
    turn: u32,
}

impl Slot {
    fn durable(&mut self, turn: u32) {
        while self.may_hold.front().is_some_and(|(older, _)| *older < turn) {
            self.may_hold.pop_front();
        }
    }
}

/// A volume and the notes of all its clients.
struct Volume {
    name: &'static str,
    /// `sync=always`: an answer is a promise, whatever was asked for.
    is_always: bool,
    slots: Mutex<Vec<Slot>>,
}

impl Volume {
    fn new(name: &'static str, is_always: bool) -> Self {
        let slot = |_| Slot { may_hold: [(0, State::Zeroes)].into(), answered: 0, turn: 0 };
        Self { name, is_always, slots: Mutex::new((0..SLOTS).map(slot).collect()) }
    }

    /// Notes a request for these slots; returns the turn of each.
    fn ask(&self, slots: std::ops::Range<usize>, is_zero: bool) -> Vec<u32> {
        let mut notes = self.slots.lock().unwrap();
        let ask = |slot: usize| {
            let slot = &mut notes[slot];
            slot.turn += 1;
            slot.may_hold
                .push_back((slot.turn, if is_zero { State::Zeroes } else { State::Turn(slot.turn) }));
            slot.turn
        };
        slots.map(ask).collect()
    }

    fn answered(&self, slots: std::ops::Range<usize>, turns: &[u32], is_stable: bool) {
        let mut notes = self.slots.lock().unwrap();
        for (slot, turn) in slots.zip(turns) {
            notes[slot].answered = *turn;
            if is_stable || self.is_always {
                notes[slot].durable(*turn);
            }
        }
    }

    /// What a flush that is asked for now will promise.
    fn before_flush(&self) -> Vec<u32> {
        self.slots.lock().unwrap().iter().map(|slot| slot.answered).collect()
    }

    fn flushed(&self, turns: &[u32]) {
        let mut notes = self.slots.lock().unwrap();
        notes.iter_mut().zip(turns).for_each(|(slot, turn)| slot.durable(*turn));
    }

    /// Compares all of it with the notes. From here on each slot is what it was found to be.
    fn verify(&self, wire: &mut dyn Wire, when: &str) {
        let mut notes = self.slots.lock().unwrap();
        for first in (0..SLOTS).step_by(32) {
            let last = (first + 32).min(SLOTS);
            let bytes = wire.read((first * SLOT) as u64, ((last - first) * SLOT) as u32).unwrap();
            for (number, bytes) in (first..last).zip(bytes.chunks_exact(SLOT)) {
                let slot = &mut notes[number];
                let name = self.name;
                let Some(found) = State::of(number, bytes) else {
                    panic!(
                        "{when}: {name} slot {number} is torn: {:x?}… may be {:?}",
                        &bytes[..32],
                        slot.may_hold
                    );
                };
                let Some(at) = slot.may_hold.iter().rposition(|(_, state)| *state == found) else {
                    panic!(
                        "{when}: {name} slot {number} holds {found:?} and may hold {:?} only",
                        slot.may_hold
                    );
                };
                slot.may_hold = [slot.may_hold[at]].into();
                slot.answered = slot.may_hold[0].0;
            }
        }
    }
}

/// What was done so far.
#[derive(Debug, Default)]
struct Tally {
    writes: AtomicU64,
    stable: AtomicU64,
    flushes: AtomicU64,
    zeroes: AtomicU64,
    unanswered: AtomicU64,
}

/// Where the daemon listens: the same for all its lives.
struct Ports {
    nbd: u16,
    iscsi: u16,
}

impl Ports {
    /// Below those that the system gives to whoever connects.
    fn free(random: &mut Random) -> Self {
        let mut free = || loop {
            let port = 20_000 + random.below(12_000) as u16;
            if TcpListener::bind(("127.0.0.1", port)).is_ok() {
                return port;
            }
        };
        Self { nbd: free(), iscsi: free() }
    }
}

/// A daemon's lives.
struct Scene {
    lab: Lab,
    ports: Ports,
    volumes: [Volume; 2],
    is_killed: AtomicBool,
    tally: Tally,
}

impl Scene {
    /// No pool yet.
    fn empty(random: &mut Random) -> Self {
        let volumes = [Volume::new("tank/standard", false), Volume::new("tank/always", true)];
        let is_killed = AtomicBool::new(false);
        Self { lab: Lab::scratch(), ports: Ports::free(random), volumes, is_killed, tally: Tally::default() }
    }

    /// A pool of this layout, `HERE` standing for the directory of the test.
    fn create(&self, size: &str, layout: &str) {
        let here = self.lab.cwd().display().to_string();
        self.lab.run(&format!("zpool create --size {size} tank {}", layout.replace("HERE", &here))).ok();
    }

    fn new(layout: &str, random: &mut Random) -> Self {
        let scene = Self::empty(random);
        scene.create("512M", layout);
        scene.lab.run(&format!("zfs create -s -V {VOLUME} -b 16K tank/standard")).ok();
        let options = "-b 4K -o sync=always -o compression=off";
        scene.lab.run(&format!("zfs create -s -V {VOLUME} {options} tank/always")).ok();
        scene
    }

    fn serve(&self) -> Daemon {
        self.is_killed.store(false, SeqCst);
        let Ports { nbd, iscsi } = self.ports;
        self.lab.serve(&format!("serve --nbd 127.0.0.1:{nbd} --iscsi 127.0.0.1:{iscsi} tank"))
    }

    fn kill(&self, mut daemon: Daemon) {
        self.is_killed.store(true, SeqCst);
        daemon.signal("KILL");
        daemon.wait();
    }

    fn nbd(&self, volume: &Volume) -> Result<Nbd, Trouble> {
        Nbd::open(self.ports.nbd, volume.name)
    }

    fn iscsi(&self, volume: &Volume, number: u8) -> Result<Iscsi, Trouble> {
        let iqn = format!("iqn.2026-11.io.millpond:{}", volume.name.replace('/', ":"));
        Iscsi::open(self.ports.iscsi, &iqn, number)
    }

    fn verify(&self, round: u64, when: &str) {
        for volume in &self.volumes {
            let when = format!("round {round}, {when}");
            match round % 2 {
                0 => volume.verify(&mut self.nbd(volume).unwrap(), &when),
                _ => volume.verify(&mut self.iscsi(volume, 0).unwrap(), &when),
            }
        }
    }

    /// A client until the daemon dies.
    fn client(&self, volume: &Volume, number: usize, seed: u64, may_switch: bool) {
        let mut random = Random(seed);
        let ended = self.client_until_it_breaks(volume, number, &mut random, may_switch);
        match ended {
            Err(Trouble::Gone(_)) if self.is_killed.load(SeqCst) => {}
            Err(trouble) => {
                panic!("{} client {number}: {trouble:?}, and nobody killed the daemon", volume.name)
            }
            Ok(never) => match never {},
        }
    }

    fn client_until_it_breaks(
        &self,
        volume: &Volume,
        number: usize,
        random: &mut Random,
        may_switch: bool,
    ) -> Result<std::convert::Infallible, Trouble> {
        let mut nbd;
        let mut iscsi;
        let mut is_write_through = false;
        let wire: &mut dyn Wire = if number.is_multiple_of(2) {
            nbd = self.nbd(volume)?;
            &mut nbd
        } else {
            iscsi = self.iscsi(volume, number as u8)?;
            if may_switch {
                iscsi.write_through()?;
            }
            is_write_through = iscsi.is_write_through();
            &mut iscsi
        };
        loop {
            let first = number * REGION + random.below(REGION);
            let run = first..(first + 1 + random.below(RUN_MAX)).min((number + 1) * REGION);
            let (offset, len) = ((run.start * SLOT) as u64, run.len() * SLOT);
            match random.below(100) {
                kind @ 0..65 => {
                    let fua = kind < 25;
                    let turns = volume.ask(run.clone(), false);
                    let data: Vec<u8> =
                        run.clone().zip(&turns).flat_map(|(slot, turn)| content(slot, *turn)).collect();
                    self.tally.unanswered.fetch_add(1, SeqCst);
                    wire.write(offset, &data, fua)?;
                    volume.answered(run, &turns, fua || is_write_through);
                    self.tally.writes.fetch_add(1, SeqCst);
                    self.tally
                        .stable
                        .fetch_add(u64::from(fua || is_write_through || volume.is_always), SeqCst);
                    self.tally.unanswered.fetch_sub(1, SeqCst);
                }
                kind @ 65..75 => {
                    let fua = kind < 68;
                    let turns = volume.ask(run.clone(), true);
                    wire.zero(offset, len as u32, fua)?;
                    volume.answered(run, &turns, fua || is_write_through);
                    self.tally.zeroes.fetch_add(1, SeqCst);
                }
                75..85 => {
                    let turns = volume.before_flush();
                    wire.flush()?;
                    volume.flushed(&turns);
                    self.tally.flushes.fetch_add(1, SeqCst);
                }
                _ => {
                    // Nobody else writes here: it reads what it wrote.
                    let bytes = wire.read(offset, len as u32)?;
                    let notes = volume.slots.lock().unwrap();
                    for (slot, bytes) in run.zip(bytes.chunks_exact(SLOT)) {
                        let newest = notes[slot].may_hold.back().unwrap().1;
                        assert_eq!(State::of(slot, bytes), Some(newest), "{} slot {slot}", volume.name);
                    }
                }
            }
        }
    }

    /// Clients at work on both volumes, until the daemon is killed after a while.
    fn load_and_kill(&self, daemon: Daemon, random: &mut Random, round: u64) {
        let seeds = random.next();
        let load = Duration::from_micros(5_000 + random.next() % 500_000);
        // Now and then the initiators of the one volume do without a write cache, and a snapshot is taken.
        let (may_switch, is_snapshot) = (random.below(3) == 0, random.below(3) == 0);
        thread::scope(|scope| {
            for (at, volume) in self.volumes.iter().enumerate() {
                for number in 0..CLIENTS {
                    let seed = seeds ^ ((at * CLIENTS + number) as u64) << 32;
                    scope.spawn(move || self.client(volume, number, seed, may_switch && at == 0));
                }
            }
            if is_snapshot {
                // It is done, or the daemon dies under it.
                scope.spawn(move || self.lab.run(&format!("zfs snapshot -r tank@round{round}")));
            }
            thread::sleep(load);
            self.kill(daemon);
        });
    }
}

fn rounds() -> u64 {
    let set = std::env::var("MILLPOND_KILLS").ok().and_then(|text| text.parse().ok());
    set.unwrap_or(6)
}

fn seed() -> u64 {
    let set = std::env::var("MILLPOND_SEED").ok().and_then(|text| {
        text.strip_prefix("0x").map_or_else(|| text.parse().ok(), |hex| u64::from_str_radix(hex, 16).ok())
    });
    set.unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64)
}

fn kill_again_and_again(name: &str, layout: &str) {
    let (seed, rounds) = (seed(), rounds());
    eprintln!("kill9 {name}: {rounds} rounds, MILLPOND_SEED={seed:#x}");
    let mut random = Random(seed);
    let scene = Scene::new(layout, &mut random);
    let mut longest = Duration::ZERO;
    let mut daemon = scene.serve();
    for round in 0..rounds {
        scene.load_and_kill(daemon, &mut random, round);
        if random.below(4) == 0 {
            // Once more, in the middle of being started: what was replayed is replayed again.
            scene.kill_while_starting(Duration::from_micros(random.next() % 300_000));
        }
        let start = Instant::now();
        daemon = scene.serve();
        longest = longest.max(start.elapsed());
        scene.verify(round, &format!("MILLPOND_SEED={seed:#x}"));
        if round % 8 == 7 {
            scene.destroy_snapshots();
        }
        if round + 1 < rounds && random.below(4) == 0 {
            scene.kill(daemon);
            daemon = scene.serve();
            scene.verify(round + 1, "killed right after the restart");
        }
    }
    // The last crash is for a command to clear up, which no daemon does for it.
    scene.load_and_kill(daemon, &mut random, rounds);
    scene.lab.run("zpool export tank").ok();
    fixtures::zdb_check(&[], scene.lab.cwd(), "tank").unwrap();
    scene.lab.run("zpool import -d . tank").ok();
    let mut daemon = scene.serve();
    scene.verify(rounds, "exported and imported");
    assert!(served_as(&scene.lab, "tank/standard", "iscsi").contains(&scene.ports.iscsi.to_string()));
    daemon.signal("TERM");
    assert_eq!(daemon.wait().code(), Some(0), "{}", daemon.stderr());
    eprintln!("kill9 {name}: {:?}; longest restart {longest:.1?}", scene.tally);
    assert!(scene.tally.stable.load(SeqCst) > 0, "nothing was promised");
}

impl Scene {
    /// The pool is small: what snapshots keep would fill it.
    fn destroy_snapshots(&self) {
        let names = self.lab.run("zfs list -H -o name -t snapshot -r -d 1 tank").ok();
        for name in names.lines().filter(|name| name.starts_with("tank@")) {
            self.lab.run(&format!("zfs destroy -r {name}")).ok();
        }
    }

    fn kill_while_starting(&self, after: Duration) {
        let Ports { nbd, iscsi } = self.ports;
        let mut command = self.lab.command("millpond");
        command.args([
            "serve",
            "--nbd",
            &format!("127.0.0.1:{nbd}"),
            "--iscsi",
            &format!("127.0.0.1:{iscsi}"),
            "tank",
        ]);
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        let mut child = command.spawn().unwrap();
        thread::sleep(after);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn nothing_promised_is_lost_with_the_log_in_the_pool() {
    kill_again_and_again("in the pool", "HERE/a");
}

#[test]
fn nothing_promised_is_lost_with_the_log_on_a_device_of_its_own() {
    kill_again_and_again("on a log device", "mirror HERE/a HERE/b log HERE/c");
}

/// How much of the log a restart has to do again, and how long clients may wait for it.
const GIBIBYTE: u64 = 1 << 30;
const RESTART_MAX: Duration = Duration::from_secs(5);

/// A few blocks are written again and again: each time is in the log, and only the last in the transaction group, which
/// so is not full, and not over, before a gibibyte is logged.
#[test]
#[ignore = "writes gigabytes and measures: run by `make bench`"]
fn a_gibibyte_of_log_that_was_not_replayed_holds_nobody_up() {
    const WRITERS: usize = 4;
    const EACH: usize = 16;
    let memory = std::path::Path::new("/dev/shm");
    let scene = Scene::empty(&mut Random(seed()));
    // In memory if there is such a place: the daemon is measured, and not this machine's disk.
    let files = match memory.is_dir() {
        true => tempfile::tempdir_in(memory).unwrap(),
        false => tempfile::tempdir_in(scene.lab.cwd()).unwrap(),
    };
    let here = files.path().display().to_string();
    scene.lab.run(&format!("zpool create --size 4G tank {here}/a log {here}/c")).ok();
    scene.lab.run("zfs create -s -V 256M -b 16K -o compression=off tank/big").ok();
    let daemon = scene.serve();
    let big = Volume::new("tank/big", false);
    let mebibyte = |at: usize, turn: u32| -> Vec<u8> {
        (at * 256..(at + 1) * 256).flat_map(|slot| content(slot, turn)).collect()
    };
    // The log is begun with the first commit.
    for _ in 0..3 {
        scene.nbd(&big).unwrap().write(0, &[1; SLOT], true).unwrap();
    }
    scene.lab.run("zpool sync tank").ok();
    let logged = AtomicU64::new(0);
    let start = Instant::now();
    let turns: Vec<Vec<u32>> = thread::scope(|scope| {
        let writer = |number: usize| {
            let (scene, big, logged, mebibyte) = (&scene, &big, &logged, &mebibyte);
            scope.spawn(move || {
                let (mut wire, mut turns) = (scene.nbd(big).unwrap(), vec![0; EACH]);
                'all: for turn in 1.. {
                    for (at, last) in turns.iter_mut().enumerate() {
                        if logged.load(SeqCst) >= GIBIBYTE + (16 << 20) {
                            break 'all;
                        }
                        let place = number * EACH + at;
                        wire.write((place as u64) << 20, &mebibyte(place, turn), true).unwrap();
                        *last = turn;
                        logged.fetch_add(1 << 20, SeqCst);
                    }
                }
                turns
            })
        };
        let writers: Vec<_> = (0..WRITERS).map(writer).collect();
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    let writing = start.elapsed();
    scene.kill(daemon);
    let start = Instant::now();
    let mut daemon = scene.serve();
    let restart = start.elapsed();
    let status = scene.lab.run("zpool status -j tank").ok();
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let bytes = status["pools"]["tank"]["replayed"]["bytes"].as_u64().unwrap_or(0);
    let mib = bytes >> 20;
    eprintln!(
        "restart to serving with {mib} MiB of log to replay (logged in {writing:.1?}): {restart:.2?}, bar {RESTART_MAX:?}"
    );
    let mut wire = scene.nbd(&big).unwrap();
    for (place, turn) in turns.concat().into_iter().enumerate().filter(|(_, turn)| *turn > 0) {
        let found = wire.read((place as u64) << 20, 1 << 20).unwrap();
        assert!(found == mebibyte(place, turn), "mebibyte {place}");
    }
    drop(wire);
    daemon.signal("TERM");
    daemon.wait();
    assert!(bytes >= GIBIBYTE, "only {mib} MiB had to be replayed: a transaction group was over too soon");
    assert!(restart < RESTART_MAX, "{restart:?}");
}
