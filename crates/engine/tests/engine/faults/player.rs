//! Plays one campaign: a pool under load, to which things happen.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use block::{BlockVolume, flatten};
use disk::Disk;
use engine::{
    devices::{NewLeaf, Onlined},
    dsl::{self, NewVolume, OpError, Properties, Stored},
    engine::{Ending, Engine, OpFuture},
    scan::ScanCommand,
    sync::Syncer,
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::{
    sync::RwLock,
    time::{Instant, sleep, timeout},
};

use super::{
    budget::{Harm, Places},
    ledger::{Frozen, Ledger, UNIT},
    load::{self, Clients, Findings, HANG, Seat},
    world::{Bays, start_clock},
};
use crate::support::{self, POOL};

/// A mistake put into the simulator on purpose: the campaign has to find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// What a disk lacks is forgotten as soon as it is back.
    ForgetsWhatWasMissed,
    /// Clients are given what was there before, now and then.
    AnswersFromThePast,
    /// No disk does anything when it is asked to flush.
    IgnoresFlushes,
    /// More is corrupted than there is parity for, and nobody counts it.
    RotsBeyondParity,
}

/// How much may go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// What redundancy can repair: nobody may notice.
    Redundancy,
    /// More than that: errors, and never wrong bytes.
    None,
}

const LAYOUTS: [&str; 12] = [
    "mirror d0 d1",
    "mirror d0 d1 d2",
    "raidz1 d0 d1 d2",
    "raidz2 d0 d1 d2 d3 d4",
    "raidz2 d0 d1 d2 d3",
    "raidz3 d0 d1 d2 d3 d4 d5",
    "mirror d0 d1 mirror d2 d3",
    "raidz1 d0 d1 d2 raidz1 d3 d4 d5",
    "mirror d0 d1 log d2",
    "raidz2 d0 d1 d2 d3 log mirror d4 d5",
    "raidz1 d0 d1 d2 spare d3",
    "mirror d0 d1 mirror d2 d3 spare d4",
];
const BLOCKS: [u32; 4] = [4096, 8192, 16384, 65536];
/// Units of a volume: 1 MiB.
const UNITS: usize = 256;
/// Virtual time in which a pool becomes whole again whose disks are all well.
const PATIENCE: Duration = Duration::from_secs(3 * 3600);

pub(crate) struct Player {
    pub(crate) bays: Arc<Bays>,
    pub(crate) engine: Option<Arc<Engine>>,
    clients: Option<Clients>,
    pub(crate) seats: Vec<Arc<Seat>>,
    /// What each snapshot may hold, and which volume it is of.
    pub(crate) snapshots: BTreeMap<String, (usize, Frozen)>,
    /// What clones descend from.
    pub(crate) origins: BTreeMap<usize, String>,
    pub(crate) findings: Arc<Findings>,
    pub(crate) harm: BTreeMap<usize, Harm>,
    pub(crate) random: StdRng,
    pub(crate) limit: Limit,
    bug: Option<Bug>,
    pub(crate) layout: &'static str,
    pub(crate) ashift: u32,
    /// An administrator changes what the pool consists of, too.
    reshapes: bool,
    pub(crate) names: u32,
    pub(crate) log: Vec<String>,
    /// A device may have said that something is durable which is not.
    pub(crate) is_lied_to: bool,
    /// Bays whose disk has written other bytes than it was given, labels too, and said nothing.
    pub(crate) liars: BTreeSet<usize>,
    /// Bays whose disks are an exported pool, to be judged.
    pub(crate) left: Vec<usize>,
    began: Instant,
}

impl Player {
    pub(crate) async fn new(seed: u64, limit: Limit, bug: Option<Bug>) -> Self {
        start_clock();
        let mut random = StdRng::seed_from_u64(seed ^ 0xfa17);
        // Each layout comes up as often as any other, whatever the number of seeds.
        let layout = LAYOUTS[(seed % LAYOUTS.len() as u64) as usize];
        let ashift = if random.random() { 9 } else { 12 };
        let reshapes = random.random();
        let (bays, engine) = Bays::create(layout, ashift, seed).await;
        let mut player = Self {
            bays,
            engine: Some(engine),
            clients: None,
            seats: Vec::new(),
            snapshots: BTreeMap::new(),
            origins: BTreeMap::new(),
            findings: Arc::default(),
            harm: BTreeMap::new(),
            random,
            limit,
            bug,
            layout,
            ashift,
            reshapes,
            names: 0,
            log: vec![format!("{layout} ashift {ashift} reshaped {reshapes}")],
            is_lied_to: false,
            liars: BTreeSet::new(),
            left: Vec::new(),
            began: Instant::now(),
        };
        for _ in 0..player.random.random_range(2..=3) {
            player.create_volume().await;
        }
        player.work().await;
        player
    }

    pub(crate) fn engine(&self) -> Arc<Engine> {
        Arc::clone(self.engine.as_ref().expect("the pool is open"))
    }

    pub(crate) fn note(&mut self, what: impl std::fmt::Display) {
        let at = self.began.elapsed().as_secs_f64();
        self.log.push(format!("{at:9.3} {what}"));
    }

    pub(crate) fn chance(&mut self, percent: u32) -> bool {
        self.random.random_range(0..100) < percent
    }

    pub(crate) fn places(&self) -> Places {
        Places::of(&self.engine().view().tree(), &self.bays)
    }

    /// Clients begin, or go on with a pool that was opened again.
    async fn work(&mut self) {
        let seed = self.random.random();
        let clients = load::start(&self.engine(), &self.seats, &self.findings, self.bug, seed).await;
        self.clients = Some(clients);
    }

    /// Clients begin with one more volume.
    pub(crate) async fn work_on(&mut self, which: usize) {
        let seed = self.random.random();
        let seats = &self.seats[which..=which];
        let more = load::start(&self.engine(), seats, &self.findings, self.bug, seed).await;
        if let Some(clients) = &mut self.clients {
            clients.join(more);
        }
    }

    /// Commands may be refused, they may not hang.
    pub(crate) async fn within<T>(&self, what: &str, future: impl Future<Output = T>) -> T {
        match timeout(HANG, future).await {
            Ok(result) => result,
            Err(_) => panic!("{what} hangs"),
        }
    }

    pub(crate) async fn run<F>(&mut self, what: String, is_snapshot: bool, op: F) -> bool
    where
        F: for<'a> FnOnce(&'a mut Syncer) -> OpFuture<'a, ()> + Clone + Send + 'static,
    {
        self.note(&what);
        let engine = self.engine();
        match self.within(&what, support::run(&engine, is_snapshot, op)).await {
            Ok(()) => true,
            Err(error) if self.limit == Limit::None => {
                self.note(format!("  {error}"));
                false
            }
            Err(error) => panic!("{what}: {error}"),
        }
    }

    async fn create_volume(&mut self) {
        self.names += 1;
        let name = format!("{POOL}/v{}", self.names);
        let block = BLOCKS[self.random.random_range(0..BLOCKS.len())];
        let mut properties = Properties::new();
        let copies = if self.chance(20) { 2 } else { 1 };
        properties.insert("copies".into(), Stored::Number(copies));
        // lz4 or nothing.
        let compression = if self.chance(50) { 15 } else { 2 };
        properties.insert("compression".into(), Stored::Number(compression));
        let size = (UNITS * UNIT) as u64;
        let new = NewVolume { name: name.clone(), size, block, properties, parents: false };
        let what = format!("create {name} block {block} copies {copies} compression {compression}");
        let op = task(move |cx| Box::pin(async move { dsl::create_volume(cx, &new).await }));
        if self.run(what, false, op).await {
            let ledger = Ledger::new(self.names, UNITS);
            self.seats.push(Arc::new(Seat { name, ledger, gate: RwLock::default(), is_gone: false.into() }));
        }
    }

    /// Something happens.
    pub(crate) async fn step(&mut self) {
        match self.random.random_range(0..100) {
            0..24 => self.pause().await,
            24..52 => self.hurt().await,
            52..64 => self.mend_something().await,
            64..71 => self.scan().await,
            71..74 if self.reshapes => self.change_family().await,
            71..80 => self.snapshot_or_so().await,
            80..88 if self.reshapes && self.random.random() => self.change_shape().await,
            80..88 => self.change_devices().await,
            88..93 => self.make_whole().await,
            93..97 => self.power_cut().await,
            _ => self.reopen().await,
        }
        self.check();
    }

    async fn pause(&mut self) {
        let longest = [100, 2_000, 30_000][self.random.random_range(0..3)];
        let pause = Duration::from_millis(self.random.random_range(10..=longest));
        self.note(format!("{pause:?} go by"));
        sleep(pause).await;
    }

    /// What must hold at any time.
    pub(crate) fn check(&mut self) {
        if let Some(wrong) = self.findings.wrong.lock().first() {
            panic!("{wrong}");
        }
        if self.limit == Limit::None {
            return;
        }
        if let Some(refused) = self.findings.refused.lock().first() {
            panic!("a client was refused: {refused}");
        }
        if let Some(why) = self.engine.as_ref().and_then(|engine| engine.suspended()) {
            panic!("the pool is suspended: {why}");
        }
    }

    /// A scan is begun, halted or ended: whatever comes up, refused or not.
    async fn scan(&mut self) {
        let commands = [
            ScanCommand::Scrub,
            ScanCommand::Scrub,
            ScanCommand::Scrub,
            ScanCommand::ScrubErrors,
            ScanCommand::Pause,
            ScanCommand::Stop,
            ScanCommand::Resilver,
        ];
        let command = commands[self.random.random_range(0..commands.len())];
        let engine = self.engine();
        let result = self.within("scan", engine.scan(command)).await;
        self.note(format!("{command:?}: {}", said(&result)));
    }

    async fn snapshot_or_so(&mut self) {
        let which = self.random.random_range(0..self.seats.len());
        let seat = Arc::clone(&self.seats[which]);
        if seat.is_gone.load(Relaxed) {
            return;
        }
        let of_it: Vec<String> =
            self.snapshots.iter().filter(|(_, (of, _))| *of == which).map(|(name, _)| name.clone()).collect();
        let has_clones = |name: &String| self.origins.values().any(|origin| origin == name);
        match (self.random.random_range(0..4), of_it.last().cloned()) {
            (0, Some(name)) if !has_clones(&name) => {
                let gone = vec![name.clone()];
                let op =
                    task(move |cx| Box::pin(async move { dsl::destroy_snapshots(cx, &gone, false).await }));
                // What fails beyond the limit may be done or not.
                self.run(format!("destroy {name}"), false, op).await;
                self.snapshots.remove(&name);
            }
            (1, Some(name)) if self.limit == Limit::Redundancy => {
                let _gate = seat.gate.write().await;
                let to = name.clone();
                let op = task(move |cx| Box::pin(async move { dsl::rollback(cx, &to).await }));
                if self.run(format!("rollback {name}"), false, op).await {
                    seat.ledger.roll_back(&self.snapshots[&name].1);
                }
            }
            _ if of_it.len() < 3 => {
                // Names in the order of age.
                self.names += 1;
                let name = format!("{}@s{:04}", seat.name, self.names);
                seat.ledger.begin_snapshot();
                let names = vec![name.clone()];
                let op = task(move |cx| {
                    Box::pin(async move { dsl::snapshot(cx, &names, &Properties::new()).await })
                });
                let taken = self.run(format!("snapshot {name}"), true, op).await;
                let frozen = seat.ledger.end_snapshot();
                if taken {
                    self.snapshots.insert(name, (which, frozen));
                }
            }
            _ => {}
        }
    }

    /// An administrator takes devices offline, online, and replaces them.
    async fn change_devices(&mut self) {
        let places = self.places();
        let place = places.all[self.random.random_range(0..places.all.len())].clone();
        let path = self.bays.0[place.bay].path.clone();
        let engine = self.engine();
        match self.random.random_range(0..11) {
            0..4 if !place.is_log && places.is_safe(&self.bays, &self.harm, Some(place.bay)) => {
                let temporary = self.chance(50);
                let result = self.within("offline", engine.offline(place.guid, temporary)).await;
                self.note(format!("offline {path} temporary {temporary}: {}", said(&result)));
            }
            4..6 => drop(self.online(&place.guid, place.bay).await),
            6..9 => {
                let Some(bay) = self.unused(&places) else { return };
                self.bays.0[bay].put(blank(&self.bays.0[bay].path));
                self.harm.remove(&bay);
                let result = self.within("replace", engine.replace(place.guid, self.new_leaf(bay))).await;
                self.note(format!("replace {path} with {}: {}", self.bays.0[bay].path, said(&result)));
            }
            9 if !place.is_log && places.is_safe(&self.bays, &self.harm, Some(place.bay)) => {
                let result = self.within("offline -f", engine.fault(place.guid)).await;
                self.note(format!("offline -f {path}: {}", said(&result)));
            }
            // Only where another stands in for it: less parity is not what is rehearsed.
            _ if places.is_stood_in_for(&place, &self.bays, &self.harm) => {
                let result = self.within("detach", engine.detach(place.guid)).await;
                self.note(format!("detach {path}: {}", said(&result)));
                if result.is_ok() && self.places().in_bay(place.bay).is_some() {
                    // What was there before it is looked for there again, and it is a blank disk now.
                    self.harm.insert(place.bay, Harm { empty: true, ..Harm::default() });
                }
            }
            _ => {}
        }
    }

    /// Whether it is used again, or a matter of time.
    pub(crate) async fn online(&mut self, guid: &u64, bay: usize) -> bool {
        let engine = self.engine();
        let here = &self.bays.0[bay];
        let disk = here.is_present().then(|| here.disk() as Arc<dyn Disk>);
        let result = self.within("online", engine.online(*guid, disk, false)).await;
        self.note(format!("online {}: {}", self.bays.0[bay].path, said(&result)));
        !matches!(result, Ok(Onlined::StillFaulted))
    }

    /// A bay whose disk no pool has.
    pub(crate) fn unused(&self, places: &Places) -> Option<usize> {
        self.all_unused(places).next()
    }

    pub(crate) fn all_unused(&self, places: &Places) -> impl Iterator<Item = usize> {
        let view = self.engine().view();
        let spares: BTreeSet<&str> = view.spares().iter().filter_map(|spare| spare.path.as_deref()).collect();
        let free = |bay: &usize| places.in_bay(*bay).is_none() && !spares.contains(&*self.bays.0[*bay].path);
        let free: Vec<usize> = (0..self.bays.0.len()).filter(free).collect();
        free.into_iter()
    }

    pub(crate) fn new_leaf(&self, bay: usize) -> NewLeaf {
        let bay = &self.bays.0[bay];
        NewLeaf {
            path: bay.path.clone(),
            disk: bay.disk() as Arc<dyn Disk>,
            is_file: false,
            ashift: Some(self.ashift),
        }
    }

    /// What is acknowledged now is durable when this returns.
    async fn settle_down(&mut self) {
        let marks: Vec<Vec<u32>> = self.seats.iter().map(|seat| seat.ledger.marks()).collect();
        let engine = self.engine();
        let synced = self.within("sync", engine.sync()).await;
        match synced {
            Ok(()) => {
                self.seats.iter().zip(&marks).for_each(|(seat, marks)| seat.ledger.durable(marks));
            }
            Err(error) if self.limit == Limit::None => self.note(format!("  sync: {error}")),
            Err(error) => panic!("sync: {error}"),
        }
    }

    pub(crate) async fn power_cut(&mut self) {
        // What only a log device holds is lost with it: no redundancy, no promise.
        let logs_well = self.places().all.iter().filter(|place| place.is_log).all(|place| {
            place.is_up_to_date && self.bays.0[place.bay].is_present() && !self.harm.contains_key(&place.bay)
        });
        if !logs_well {
            self.clients = None;
            self.settle_down().await;
        }
        let seed: u64 = self.random.random();
        self.note("power cut");
        self.clients = None;
        self.bays.power_cut(seed).await;
        if let Some(engine) = self.engine.take() {
            // Its disks are gone for good.
            self.within("abandon", engine.abandon()).await;
        }
        // What was under way notices that its disks are gone.
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
        self.lose_rules();
        self.come_up().await;
    }

    /// A restart ends what goes wrong by rule; what it did to the bytes stays.
    fn lose_rules(&mut self) {
        for (bay, harm) in &mut self.harm {
            harm.rules.clear();
            self.bays.0[*bay].heal();
        }
        self.harm.retain(|_, harm| *harm != Harm::default());
    }

    pub(crate) async fn reopen(&mut self) {
        let ending = if self.random.random() { Ending::Export } else { Ending::Close };
        let in_peace = self.chance(50);
        self.note(format!("{ending:?}, import; clients leave in peace {in_peace}"));
        if let Some(clients) = self.clients.take().filter(|_| in_peace) {
            clients.leave(&self.findings).await;
        }
        let marks: Vec<Vec<u32>> = self.seats.iter().map(|seat| seat.ledger.marks()).collect();
        let engine = self.engine.take().expect("the pool is open");
        let ended = self.within("the end", engine.end(ending)).await;
        match ended {
            Ok(()) => self.seats.iter().zip(&marks).for_each(|(seat, marks)| seat.ledger.durable(marks)),
            Err(error) if self.limit == Limit::None => self.note(format!("  {error}")),
            Err(error) => panic!("{ending:?}: {error}"),
        }
        drop(engine);
        self.come_up().await;
    }

    /// The pool is opened again, and everything in it is what it may be.
    async fn come_up(&mut self) {
        let seed = self.random.random();
        let opened = self.within("import", self.bays.open(seed)).await;
        match opened {
            Ok(engine) => self.engine = Some(engine),
            Err(error) if self.limit == Limit::None => {
                self.note(format!("  cannot be opened: {error}"));
                return;
            }
            Err(error) => panic!("the pool cannot be opened: {error}"),
        }
        self.compare(true).await;
        self.work().await;
    }

    /// Reads everything. With `settle` what is found is what is from now on.
    pub(crate) async fn compare(&mut self, settle: bool) {
        let engine = self.engine();
        for seat in self.seats.clone() {
            if seat.is_gone.load(Relaxed) {
                continue;
            }
            let _gate = seat.gate.write().await;
            let volume = match engine.volume(&seat.name).await {
                Ok(volume) => volume,
                Err(error) if self.limit == Limit::None => {
                    self.note(format!("  {}: {error}", seat.name));
                    continue;
                }
                Err(error) => panic!("{}: {error}", seat.name),
            };
            let (bytes, readable) = self.read_all(&*volume, &seat.name).await;
            let result = if settle {
                let lied_to = self.limit == Limit::None && self.is_lied_to;
                seat.ledger.settle(&bytes, |unit| readable[unit], lied_to)
            } else {
                let piece = |unit: usize| &bytes[unit * UNIT..(unit + 1) * UNIT];
                let mut found = (0..UNITS).filter(|unit| readable[*unit]);
                found.try_for_each(|unit| seat.ledger.check(unit, piece(unit)))
            };
            if let Err(what) = result {
                panic!("acknowledged bytes are lost or wrong: {what}");
            }
        }
        for (name, (which, frozen)) in self.snapshots.clone() {
            let seat = Arc::clone(&self.seats[which]);
            let view = engine.view();
            let opened = async {
                let dataset = view.dsl().await.map_err(|e| e.to_string())?.lookup(&name).await;
                dataset.map_err(|e| e.to_string())?.open_volume().await.map_err(|e| e.to_string())
            };
            let volume = match opened.await {
                Ok(volume) => volume,
                Err(error) if self.limit == Limit::None => {
                    self.note(format!("  {name}: {error}"));
                    continue;
                }
                Err(error) => panic!("{name}: {error}"),
            };
            let (bytes, readable) = self.read_all(&*volume, &name).await;
            if readable.iter().all(|readable| *readable)
                && let Err(what) = seat.ledger.check_frozen(&frozen, &bytes)
            {
                panic!("snapshot {name} is not what it was: {what}");
            }
        }
    }

    async fn read_all(&self, volume: &dyn BlockVolume, name: &str) -> (Vec<u8>, Vec<bool>) {
        let (mut bytes, mut readable) = (Vec::with_capacity(UNITS * UNIT), vec![true; UNITS]);
        for (unit, readable) in readable.iter_mut().enumerate() {
            let is_beyond = self.limit == Limit::None;
            match timeout(HANG, volume.read((unit * UNIT) as u64, UNIT)).await {
                Ok(Ok(found)) => bytes.extend(flatten(&found)),
                Ok(Err(error)) if !is_beyond => {
                    panic!("acknowledged bytes cannot be read: {name} unit {unit}: {error}")
                }
                // A suspended pool waits for disks that are away, and one without a right label stays away.
                Err(_) if !is_beyond || self.engine().suspended().is_none() => panic!("{name} hangs"),
                Ok(Err(_)) | Err(_) => {
                    bytes.resize((unit + 1) * UNIT, 0);
                    *readable = false;
                }
            }
        }
        (bytes, readable)
    }

    /// Everything is put right as a person would who has time, and after that nothing is wrong any more.
    pub(crate) async fn make_whole(&mut self) {
        self.note("everything is put right");
        for bay in 0..self.bays.0.len() {
            self.mend(bay).await;
        }
        self.wait_until_whole().await;
        if self.harm.values().any(|harm| harm.suspect) || self.chance(30) {
            self.scrub().await;
            let engine = self.engine();
            let cleared = self.within("clear", engine.clear(None)).await;
            self.note(format!("clear: {}", said(&cleared)));
            self.harm.values_mut().for_each(|harm| harm.suspect = false);
            self.harm.retain(|_, harm| *harm != Harm::default());
            self.wait_until_whole().await;
        }
    }

    async fn wait_until_whole(&mut self) {
        let engine = self.engine();
        let start = Instant::now();
        let nothing_hidden = |harm: &BTreeMap<usize, Harm>| -> BTreeMap<usize, Harm> {
            let mut known = harm.clone();
            known.values_mut().for_each(|harm| harm.suspect = false);
            known
        };
        loop {
            let harm = nothing_hidden(&self.harm);
            let places = self.places();
            self.findings.leisure.store(start.elapsed() > Duration::from_secs(60), Relaxed);
            if places.is_all_whole(&self.bays, &harm) {
                self.findings.leisure.store(false, Relaxed);
                self.note(format!("whole after {:?}", start.elapsed()));
                return;
            }
            if start.elapsed() > PATIENCE {
                let progress = engine.scan_progress();
                panic!("does not become whole: {}; {progress:?}", places.describe(&self.bays, &self.harm));
            }
            self.check();
            sleep(Duration::from_secs(5)).await;
            // What needs a person who looks again: a device that was faulted while it was being mended.
            if start.elapsed().as_secs() % 600 < 5 {
                for place in self.places().all {
                    if !place.state.is_readable() && self.bays.0[place.bay].is_present() {
                        self.mend(place.bay).await;
                    }
                }
            }
        }
    }

    /// A scrub, from beginning to end; bytes repaired, errors.
    pub(crate) async fn scrub(&mut self) -> (u64, u64) {
        let engine = self.engine();
        let start = Instant::now();
        let is_over = || engine.scan_progress().is_none_or(|progress| progress.ended.is_some());
        let began = loop {
            // One that runs, or is paused, may have gone past what is to be found.
            let stopped = self.within("scrub -s", engine.scan(ScanCommand::Stop)).await;
            let begun = self.within("scrub", engine.scan(ScanCommand::Scrub)).await;
            match begun {
                Ok(()) => break Instant::now(),
                Err(error) if start.elapsed() < PATIENCE => {
                    self.note(format!("scrub: {error} (stop: {})", said(&stopped)));
                    sleep(Duration::from_secs(30)).await;
                }
                Err(error) => panic!("no scrub can be begun: {error}"),
            }
        };
        while !is_over() {
            self.check();
            assert!(began.elapsed() < PATIENCE, "a scrub does not end: {:?}", engine.scan_progress());
            sleep(Duration::from_secs(1)).await;
        }
        let progress = engine.scan_progress().expect("a scan that was");
        self.note(format!("scrub: {} bytes repaired, {} errors", progress.processed, progress.errors));
        (progress.processed, progress.errors)
    }

    /// The end: all whole, a scrub that finds nothing, every byte there; the pool is left exported.
    pub(crate) async fn finish(&mut self) {
        self.make_whole().await;
        self.scrub().await;
        let engine = self.engine();
        let cleared = self.within("clear", engine.clear(None)).await;
        self.note(format!("clear: {}", said(&cleared)));
        self.wait_until_whole().await;
        let again = self.scrub().await;
        assert_eq!(again, (0, 0), "a second scrub repaired or missed something");
        self.check();
        self.clients = None;
        self.compare(false).await;
        self.left = self.places().all.iter().map(|place| place.bay).collect();
        drop(engine);
        let engine = self.engine.take().expect("the pool is open");
        self.within("export", engine.end(Ending::Export)).await.unwrap();
        let pool = self.bays.look().await.unwrap();
        let report = pool::verify::verify(&pool, &Arc::new(pool::verify::Progress::default())).await;
        assert!(report.is_clean(), "at the end: {report:#?}");
        let operations = self.findings.operations.load(Relaxed);
        self.note(format!("{operations} operations of clients"));
    }

    pub(crate) fn stop_clients(&mut self) {
        self.clients = None;
    }

    pub(crate) fn bug(&self) -> Option<Bug> {
        self.bug
    }
}

/// Tells the compiler that a closure's future lives as long as the syncer it is lent.
pub(crate) fn task<F>(op: F) -> F
where
    F: for<'a> FnOnce(&'a mut Syncer) -> OpFuture<'a, ()> + Clone + Send + 'static,
{
    op
}

pub(crate) fn said<T: std::fmt::Debug>(result: &Result<T, OpError>) -> String {
    match result {
        Ok(value) => format!("{value:?}"),
        Err(error) => error.to_string(),
    }
}

pub(crate) fn blank(path: &str) -> Arc<disk::MemDisk> {
    Arc::new(disk::MemDisk::new(super::world::DISK).named(path))
}
