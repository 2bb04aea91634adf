//! Devices that neither do what they are told nor refuse: nobody waits for them while others can answer, a pool that cannot
//! do without says so, and what they carry out long after it was given up harms nothing.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use block::{Asked, BlockVolume, Durability, VolumeError};
use bytes::Bytes;
use disk::{Disk, DiskFuture, DiskInfo, IoBuf, MemDisk};
use engine::{
    dsl::{self, Properties, Stored},
    engine::{Ending, Engine},
    events::Event,
    volume::LiveVolume,
};
use pool::vdev::{State, deadline};
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use crate::{
    scans::over,
    support::{DISK, POOL, World, as_disks, content, data, quiet, start_caching},
};

const VOLUME: u64 = 5 << 20;
const BLOCK: usize = 8192;
const MINUTE: Duration = Duration::from_secs(60);

/// What a disk keeps for later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Holds {
    reads: bool,
    writes: bool,
}

/// A disk that holds operations back until it is let go, and carries them out then, in any order.
#[derive(Debug)]
struct Holding {
    inner: Arc<MemDisk>,
    holds: watch::Sender<Holds>,
    random: Mutex<StdRng>,
}

impl Holding {
    fn new(inner: Arc<MemDisk>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            holds: watch::Sender::default(),
            random: Mutex::new(StdRng::seed_from_u64(5)),
        })
    }

    fn hold(&self, reads: bool, writes: bool) {
        self.holds.send_replace(Holds { reads, writes });
    }

    fn let_go(&self) {
        self.hold(false, false);
    }

    async fn pass(&self, is_held: fn(&Holds) -> bool) {
        if !is_held(&self.holds.borrow()) {
            return;
        }
        let mut holds = self.holds.subscribe();
        drop(holds.wait_for(|holds| !is_held(holds)).await);
        let millis = self.random.lock().unwrap().random_range(0..50);
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }
}

impl Disk for Holding {
    fn info(&self) -> DiskInfo {
        self.inner.info()
    }
    fn read(&self, offset: u64, buf: IoBuf) -> DiskFuture<'_, IoBuf> {
        Box::pin(async move {
            self.pass(|holds| holds.reads).await;
            self.inner.read(offset, buf).await
        })
    }
    fn write(&self, offset: u64, data: Bytes) -> DiskFuture<'_, ()> {
        Box::pin(async move {
            self.pass(|holds| holds.writes).await;
            self.inner.write(offset, data).await
        })
    }
    fn flush(&self) -> DiskFuture<'_, ()> {
        Box::pin(async move {
            self.pass(|holds| holds.writes).await;
            self.inner.flush().await
        })
    }
    fn trim(&self, offset: u64, len: u64) -> DiskFuture<'_, ()> {
        self.inner.trim(offset, len)
    }
}

struct Case {
    world: World,
    engine: Arc<Engine>,
    disks: Vec<Arc<Holding>>,
    volume: Arc<LiveVolume>,
    twin: Vec<u8>,
    random: StdRng,
    what: String,
}

impl Case {
    /// A pool with a full volume, of which nothing is in memory.
    async fn new(layout: &str, seed: u64) -> Self {
        Self::caching(layout, seed, 16 << 20).await
    }

    async fn caching(layout: &str, seed: u64, cache: usize) -> Self {
        let (world, running) = World::create(layout, 12, DISK, seed).await;
        let volume = running.volume(&format!("{POOL}/v"), VOLUME, BLOCK as u32, Properties::new()).await;
        let mut twin = vec![0; VOLUME as usize];
        let mut random = StdRng::seed_from_u64(seed);
        random.fill(&mut twin[..]);
        volume.write(0, data(twin.clone()), Durability::Cached).await.unwrap();
        drop(volume);
        running.export().await;
        let disks: Vec<_> = world.media.iter().map(|media| Holding::new(Arc::clone(media))).collect();
        let engine = start_caching(as_disks(&disks), seed, quiet(), cache).await.unwrap();
        let volume = engine.volume(&format!("{POOL}/v")).await.unwrap();
        Self { world, engine, disks, volume, twin, random, what: format!("{layout} seed {seed}") }
    }

    async fn write(&mut self, count: usize, fua: bool) {
        for _ in 0..count {
            let block = self.random.random_range(0..VOLUME as usize / BLOCK);
            let mut bytes = vec![0; BLOCK];
            self.random.fill(&mut bytes[..]);
            self.twin[block * BLOCK..(block + 1) * BLOCK].copy_from_slice(&bytes);
            let durability = if fua { Durability::Stable(Asked::Fua) } else { Durability::Cached };
            let write = self.volume.write((block * BLOCK) as u64, data(bytes), durability);
            let wrote = timeout(3 * MINUTE, write).await;
            wrote.unwrap_or_else(|_| panic!("{}: a write hangs", self.what)).unwrap();
        }
    }

    async fn sync(&self) {
        let synced = timeout(3 * MINUTE, self.engine.sync()).await;
        synced.unwrap_or_else(|_| panic!("{}: a sync hangs", self.what)).unwrap();
    }

    async fn check(&self) {
        assert!(content(&*self.volume).await == self.twin, "{}: content", self.what);
    }

    fn state(&self, number: usize) -> State {
        let tree = self.engine.view().tree();
        let path = format!("/disks/d{number}");
        let leaf = tree.leaves().into_iter().find(|leaf| leaf.path.as_deref() == Some(&path)).unwrap();
        leaf.state().0
    }

    fn count(&self, wanted: impl Fn(&Event) -> bool) -> usize {
        self.engine.events().since(0).iter().filter(|record| wanted(&record.event)).count()
    }

    /// All devices answer again, and nothing was lost.
    async fn recover(self) {
        self.disks.iter().for_each(|disk| disk.let_go());
        tokio::time::sleep(MINUTE).await;
        timeout(MINUTE, self.engine.clear(None)).await.unwrap().unwrap();
        self.sync().await;
        tokio::time::sleep(MINUTE).await;
        self.sync().await;
        assert_eq!(self.count(|event| matches!(event, Event::DataLost { .. })), 0, "{}", self.what);
        self.check().await;
        self.end().await;
    }

    /// Every copy on every device is right.
    async fn end(self) {
        let Self { world, engine, volume, twin, what, .. } = self;
        drop(volume);
        timeout(3 * MINUTE, engine.end(Ending::Export)).await.unwrap().unwrap();
        drop(engine);
        world.verify(&what).await;
        let running = world.open().await;
        let volume = running.engine.volume(&format!("{POOL}/v")).await.unwrap();
        assert!(content(&*volume).await == twin, "{what}: content after a restart");
    }
}

/// Its space is written to again and again meanwhile by the others: what it does in the end is an hour late, and is found
/// nowhere.
#[tokio::test(start_paused = true)]
async fn a_device_that_never_answers_writes_is_done_without_and_its_late_writes_are_found_nowhere() {
    for (seed, layout) in (1..).zip(["mirror d0 d1", "raidz d0 d1 d2 d3", "raidz2 d0 d1 d2 d3 d4"]) {
        let mut case = Case::new(layout, seed).await;
        case.write(20, true).await;
        case.sync().await;
        case.disks[1].hold(false, true);
        let begun = Instant::now();
        case.write(20, seed % 2 == 0).await;
        case.sync().await;
        assert!(begun.elapsed() >= deadline::WRITE, "{}: it was waited for", case.what);
        tokio::time::sleep(MINUTE).await;
        assert_eq!(case.state(1), State::Faulted, "{}", case.what);
        assert_eq!(case.engine.view().tree().state().0, State::Degraded, "{}", case.what);
        assert_eq!(case.count(|event| matches!(event, Event::Suspended { .. })), 0, "{}", case.what);
        let begun = Instant::now();
        for round in 0..40 {
            case.write(60, round % 8 == 0).await;
            case.sync().await;
        }
        assert!(begun.elapsed() < MINUTE, "{}: nobody waits any more", case.what);
        // An administrator who believes in it is told otherwise.
        drop(timeout(MINUTE, case.engine.clear(None)).await.expect("no command hangs"));
        case.write(5, true).await;
        case.sync().await;
        tokio::time::sleep(MINUTE).await;
        assert_eq!(case.state(1), State::Faulted, "{}: it owes writes", case.what);
        case.check().await;
        case.disks[1].let_go();
        tokio::time::sleep(MINUTE).await;
        case.check().await;
        timeout(MINUTE, case.engine.clear(None)).await.unwrap().unwrap();
        case.write(20, false).await;
        case.sync().await;
        over(&case.engine).await;
        case.sync().await;
        assert_eq!(case.engine.view().tree().state().0, State::Healthy, "{}", case.what);
        case.check().await;
        case.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_device_the_pool_cannot_do_without_suspends_it_until_it_answers() {
    for (seed, layout, silent) in
        [(11, "d0", vec![0]), (12, "mirror d0 d1", vec![0, 1]), (13, "raidz d0 d1 d2", vec![0, 2])]
    {
        let mut case = Case::new(layout, seed).await;
        case.write(20, true).await;
        silent.iter().for_each(|disk| case.disks[*disk].hold(false, true));
        case.write(20, false).await;
        let synced = timeout(10 * MINUTE, case.engine.sync()).await.expect("no command hangs");
        assert!(synced.is_err(), "{}", case.what);
        let why = case.engine.suspended().expect("it says so").to_string();
        assert!(why.contains("/disks/d0"), "{}: {why}", case.what);
        assert_eq!(case.count(|event| matches!(event, Event::Suspended { .. })), 1, "{}", case.what);
        case.check().await;
        let cleared = timeout(3 * MINUTE, case.engine.clear(None)).await.expect("no command hangs");
        assert!(cleared.is_err(), "{}", case.what);
        tokio::time::sleep(30 * MINUTE).await;
        assert!(case.engine.suspended().is_some());
        silent.iter().for_each(|disk| case.disks[*disk].let_go());
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert!(case.engine.suspended().is_none(), "{}: it goes on by itself", case.what);
        case.sync().await;
        case.write(20, true).await;
        timeout(MINUTE, case.engine.clear(None)).await.unwrap().unwrap();
        case.sync().await;
        case.check().await;
        // A side that failed before the pool could not go on is made good.
        tokio::time::sleep(MINUTE).await;
        case.sync().await;
        case.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn reads_that_are_not_answered_are_rebuilt_from_the_others() {
    for (seed, layout) in (21..).zip(["mirror d0 d1", "raidz d0 d1 d2 d3", "raidz2 d0 d1 d2 d3 d4"]) {
        let case = Case::new(layout, seed).await;
        case.disks[1].hold(true, false);
        let begun = Instant::now();
        case.check().await;
        assert!(begun.elapsed() <= Duration::from_secs(30), "{}: {:?}", case.what, begun.elapsed());
        let leaf = |of: fn(&pool::vdev::Vdev) -> u64| {
            let tree = case.engine.view().tree();
            tree.leaves().iter().map(|leaf| of(leaf)).sum::<u64>()
        };
        assert_eq!(leaf(|leaf| leaf.counters.get().read), 1, "{}: one thing went wrong", case.what);
        if seed == 21 {
            // It was busy for a while.
            case.disks[1].let_go();
            tokio::time::sleep(MINUTE).await;
            assert_eq!(case.state(1), State::Healthy, "{}", case.what);
        } else {
            tokio::time::sleep(3 * MINUTE).await;
            assert_eq!(case.state(1), State::Faulted, "{}: it does not even answer probes", case.what);
            case.disks[1].let_go();
        }
        tokio::time::sleep(MINUTE).await;
        timeout(MINUTE, case.engine.clear(None)).await.unwrap().unwrap();
        case.sync().await;
        tokio::time::sleep(MINUTE).await;
        case.sync().await;
        case.check().await;
        case.end().await;
    }
}

/// With both sides late such a read was left with the one that is asked first: if that never answered the read never ended,
/// whatever the other gave since.
#[tokio::test(start_paused = true)]
async fn a_read_that_has_to_wait_takes_the_side_that_answers_first() {
    const PIECE: usize = 1 << 20;
    let case = Case::new("mirror d0 d1", 24).await;
    // The way to all blocks is in memory from here on.
    case.volume.read(0, BLOCK).await.unwrap();
    // One side has fallen silent when it is the turn of those that the other has not answered.
    case.disks[1].hold(true, false);
    let mut random = StdRng::seed_from_u64(24);
    let early: Vec<_> = (0..40)
        .map(|_| {
            let volume = Arc::clone(&case.volume);
            let block = random.random_range(0..VOLUME / BLOCK as u64);
            tokio::spawn(async move { volume.read(block * BLOCK as u64, BLOCK).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(2)).await;
    case.disks[0].hold(true, false);
    let reading: Vec<_> = (0..VOLUME)
        .step_by(PIECE)
        .map(|at| {
            let volume = Arc::clone(&case.volume);
            tokio::spawn(async move { block::flatten(&volume.read(at, PIECE).await.unwrap()) })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(13)).await;
    assert!(reading.iter().any(|read| !read.is_finished()), "{}: nobody answers", case.what);
    case.disks[1].let_go();
    for (read, expected) in reading.into_iter().zip(case.twin.chunks(PIECE)) {
        let read = timeout(MINUTE, read).await.unwrap_or_else(|_| panic!("{}: d1 answers", case.what));
        assert!(read.unwrap() == expected, "{}: content", case.what);
    }
    for read in early {
        timeout(MINUTE, read).await.unwrap().unwrap().unwrap();
    }
    case.recover().await;
}

/// The same of a stripe, all of whose cells were waited for though those that came were enough.
#[tokio::test(start_paused = true)]
async fn a_stripe_that_has_to_wait_is_put_together_from_the_cells_that_come_first() {
    let case = Case::new("raidz d0 d1 d2", 25).await;
    case.disks[0].hold(true, false);
    case.disks[1].hold(true, false);
    let reading = tokio::spawn({
        let volume = Arc::clone(&case.volume);
        async move { content(&*volume).await }
    });
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert!(!reading.is_finished(), "{}: one answers, and one is not enough", case.what);
    case.disks[1].let_go();
    let read = timeout(MINUTE, reading).await.unwrap_or_else(|_| panic!("{}: two answer", case.what));
    assert!(read.unwrap() == case.twin, "{}: content", case.what);
    case.recover().await;
}

#[tokio::test(start_paused = true)]
async fn who_needs_what_only_a_silent_device_has_waits_for_it_and_a_transaction_group_says_so() {
    // Nothing is kept: what a transaction group needs, space maps too, is read.
    let case = Case::caching("d0", 31, 0).await;
    case.disks[0].hold(true, false);
    let reading = tokio::spawn({
        let volume = Arc::clone(&case.volume);
        async move { content(&*volume).await }
    });
    let created = tokio::spawn({
        let engine = Arc::clone(&case.engine);
        let new = dsl::NewVolume {
            name: format!("{POOL}/a/b/c"),
            size: VOLUME,
            block: BLOCK as u32,
            properties: Properties::new(),
            parents: true,
        };
        async move { engine.run(move |cx| Box::pin(async move { dsl::create_volume(cx, &new).await })).await }
    });
    tokio::time::sleep(5 * MINUTE).await;
    assert!(!reading.is_finished(), "nobody says that what is there is lost");
    assert!(case.engine.suspended().is_some(), "nothing can be written");
    let told = timeout(MINUTE, created).await.expect("no command hangs").unwrap().unwrap_err().to_string();
    case.disks[0].let_go();
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(case.engine.suspended().is_none(), "it goes on by itself");
    assert!(timeout(MINUTE, reading).await.unwrap().unwrap() == case.twin);
    let is_there = case.engine.volume(&format!("{POOL}/a/b/c")).await.is_ok();
    assert_eq!(is_there, !told.contains("not carried out"), "{told}");
    case.end().await;
}

/// Only a commit says that it is over, and where nothing was dirty nobody made one: the pool stayed suspended although its
/// devices answered again.
#[tokio::test(start_paused = true)]
async fn a_pool_that_is_suspended_for_a_read_goes_on_when_the_device_answers_though_nothing_is_dirty() {
    let case = Case::caching("d0", 32, 0).await;
    case.sync().await;
    case.disks[0].hold(true, false);
    let reading = tokio::spawn({
        let volume = Arc::clone(&case.volume);
        async move { content(&*volume).await }
    });
    tokio::time::sleep(5 * MINUTE).await;
    assert!(case.engine.suspended().is_some(), "somebody waits for it");
    case.disks[0].let_go();
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(case.engine.suspended().is_none(), "it goes on by itself");
    assert!(timeout(MINUTE, reading).await.unwrap().unwrap() == case.twin);
    case.sync().await;
    case.end().await;
}

/// The same with nobody left who waits: changes failed until the pool was cleared, and none of them could make it commit.
#[tokio::test(start_paused = true)]
async fn changes_that_fail_for_a_silent_device_do_no_longer_when_it_answers() {
    let mut case = Case::caching("d0", 33, 0).await;
    let failmode = Properties::from([("failmode".to_owned(), Stored::Number(1))]);
    let set = case.engine.run(move |cx| Box::pin(async move { dsl::set_pool(cx, &failmode).await }));
    set.await.unwrap();
    case.sync().await;
    case.disks[0].hold(true, false);
    let part = case.volume.write(BLOCK as u64, data(vec![7; 512]), Durability::Cached);
    let part = timeout(5 * MINUTE, part).await.expect("no change hangs");
    assert!(matches!(part, Err(VolumeError::Failed(_))), "{part:?}");
    assert!(case.engine.suspended().is_some(), "it says why");
    case.disks[0].let_go();
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(case.engine.suspended().is_none(), "it goes on by itself");
    case.volume.write(BLOCK as u64, data(vec![8; 512]), Durability::Cached).await.unwrap();
    case.twin[BLOCK..BLOCK + 512].fill(8);
    case.sync().await;
    case.check().await;
    case.end().await;
}

/// Found by random faults, seed 105: an import waited for a drive that answered nothing, for as long as that took.
#[tokio::test(start_paused = true)]
async fn an_import_goes_on_without_a_device_that_does_not_answer() {
    for (seed, layout) in (1..).zip(["mirror d0 d1", "raidz d0 d1 d2"]) {
        let Case { world, engine, volume, twin, .. } = Case::new(layout, seed).await;
        drop(volume);
        engine.end(Ending::Export).await.unwrap();
        drop(engine);
        let disks: Vec<_> = world.media.iter().map(|media| Holding::new(Arc::clone(media))).collect();
        disks[1].hold(true, false);
        let begun = timeout(2 * MINUTE, start_caching(as_disks(&disks), seed, quiet(), 16 << 20)).await;
        let engine = begun.unwrap_or_else(|_| panic!("{layout}: an import hangs")).unwrap();
        assert_eq!(engine.view().tree().state().0, State::Degraded, "{layout}");
        let volume = engine.volume(&format!("{POOL}/v")).await.unwrap();
        assert!(content(&*volume).await == twin, "{layout}: content");
        drop(volume);
        timeout(2 * MINUTE, engine.end(Ending::Export)).await.unwrap().unwrap();
    }
}
