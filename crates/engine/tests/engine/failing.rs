//! Devices that are pulled, return and fail under load, within redundancy: clients notice nothing, states say what
//! happened, and what a device missed is known wherever it was pulled.

mod closed;
mod spares;

use std::{
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use block::{Asked, BlockVolume, Durability, Segment};
use disk::{Disk, Effect, Fault, FaultDisk, MemDisk, On};
use engine::{
    BoxFuture,
    devices::{NewLeaf, Opener},
    dsl::{self, Properties, Stored},
    engine::Engine,
    events::{DeviceName, Event, IoError, ScanStep},
    volume::LiveVolume,
};
use ondisk::label::{DATA_OFFSET, LABEL_BYTES};
use pool::{
    status::VdevStatus,
    vdev::{Aux, State, Vdev},
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::time::timeout;

use crate::support::{DISK, POOL, Running, World, as_disks, content, data, joined, quiet, start_caching};

const VOLUME: u64 = 4 << 20;
const BLOCK: u32 = 8192;
const MINUTE: Duration = Duration::from_secs(60);

/// Where disks are found again: in their bays, by path.
#[derive(Debug)]
pub(crate) struct Bays(pub(crate) Vec<Arc<FaultDisk>>);

impl Opener for Bays {
    fn open<'a>(&'a self, device: &'a DeviceName) -> BoxFuture<'a, io::Result<Arc<dyn Disk>>> {
        Box::pin(async move {
            let name = device.path.as_deref().unwrap_or_default().rsplit('/').next().unwrap_or_default();
            let number: usize = name.trim_start_matches('d').parse().map_err(io::Error::other)?;
            match self.0.get(number).filter(|disk| disk.is_present()) {
                Some(disk) => Ok(Arc::clone(disk) as Arc<dyn Disk>),
                None => Err(io::ErrorKind::NotFound.into()),
            }
        })
    }
    fn replacement<'a>(&'a self, _: &'a DeviceName) -> BoxFuture<'a, Option<NewLeaf>> {
        Box::pin(async { None })
    }
}

/// The same, and what somebody put into a bay: a new drive, or one that was in another.
#[derive(Debug)]
struct Refilled {
    bays: Bays,
    new: Mutex<Option<NewLeaf>>,
    /// Guid of a leaf, and its disk.
    elsewhere: Mutex<Vec<(u64, Arc<dyn Disk>)>>,
}

impl Refilled {
    fn of(running: &Running) -> Arc<Self> {
        let bays = Bays(running.disks.clone());
        Arc::new(Self { bays, new: Mutex::default(), elsewhere: Mutex::default() })
    }
}

impl Opener for Refilled {
    fn open<'a>(&'a self, device: &'a DeviceName) -> BoxFuture<'a, io::Result<Arc<dyn Disk>>> {
        let elsewhere = self.elsewhere.lock().unwrap();
        let found = elsewhere.iter().find(|(guid, _)| *guid == device.guid).map(|(_, disk)| Arc::clone(disk));
        match found {
            Some(disk) => Box::pin(async move { Ok(disk) }),
            None => self.bays.open(device),
        }
    }
    fn replacement<'a>(&'a self, device: &'a DeviceName) -> BoxFuture<'a, Option<NewLeaf>> {
        let mut new = self.new.lock().unwrap();
        let fits = new.as_ref().is_some_and(|new| device.path.as_ref() == Some(&new.path));
        let new = if fits { new.take() } else { None };
        Box::pin(async move { new })
    }
}

struct Case {
    world: World,
    running: Running,
    volume: Arc<LiveVolume>,
    twin: Vec<u8>,
    random: StdRng,
    what: String,
}

impl Case {
    async fn new(layout: &str, seed: u64, watched: bool) -> Self {
        let (world, running) = World::create(layout, 12, DISK, seed).await;
        let volume = running.volume(&format!("{POOL}/v"), VOLUME, BLOCK, Properties::new()).await;
        if watched {
            running.engine.watch(Arc::new(Bays(running.disks.clone())));
        }
        let what = format!("{layout}, seed {seed}, watched: {watched}");
        let twin = vec![0; VOLUME as usize];
        let mut this = Self { world, running, volume, twin, random: StdRng::seed_from_u64(seed), what };
        this.write(40, false).await;
        this.engine().sync().await.unwrap();
        this
    }

    fn engine(&self) -> &Arc<Engine> {
        &self.running.engine
    }

    async fn write(&mut self, count: usize, stable: bool) {
        let durability = if stable { Durability::Stable(Asked::Fua) } else { Durability::Cached };
        for _ in 0..count {
            let at = self.random.random_range(0..VOLUME as usize / 4096) * 4096;
            let end = self.twin.len().min(at + self.random.random_range(1..8) * 4096);
            let bytes: Vec<u8> = (at..end).map(|_| self.random.random()).collect();
            self.twin[at..end].copy_from_slice(&bytes);
            let write = self.volume.write(at as u64, data(bytes), durability);
            timeout(MINUTE, write).await.unwrap_or_else(|_| panic!("{}: a write hangs", self.what)).unwrap();
        }
    }

    async fn sync(&self) {
        let synced = timeout(MINUTE, self.engine().sync()).await;
        synced.unwrap_or_else(|_| panic!("{}: a sync hangs", self.what)).unwrap();
    }

    async fn check(&self) {
        assert!(content(&*self.volume).await == self.twin, "{}: content", self.what);
    }

    fn leaf<T>(&self, number: usize, of: impl Fn(&Vdev) -> T) -> T {
        let tree = self.engine().view().tree();
        let path = format!("d{number}");
        let is_it = |leaf: &&&Vdev| leaf.path.as_deref().is_some_and(|p| p.rsplit('/').next() == Some(&path));
        of(tree.leaves().iter().find(is_it).expect("a leaf"))
    }

    /// Whether it is a part of the tree, which a spare at rest is not.
    fn is_in_use(&self, number: usize) -> bool {
        let path = format!("d{number}");
        let is_it = |leaf: &Vdev| leaf.path.as_deref().is_some_and(|p| p.rsplit('/').next() == Some(&path));
        self.engine().view().tree().leaves().into_iter().any(is_it)
    }

    fn state(&self, number: usize) -> State {
        self.leaf(number, |vdev| vdev.state().0)
    }

    /// Whether it was found out how fast it is.
    fn is_judged(&self, number: usize) -> bool {
        self.leaf(number, |vdev| VdevStatus::of(vdev, None).judged)
    }

    fn lacks_anything(&self, number: usize) -> bool {
        self.leaf(number, |vdev| !vdev.leaf.as_ref().unwrap().missed.get().is_empty())
    }

    fn count(&self, wanted: impl Fn(&Event) -> bool) -> usize {
        self.engine().events().since(0).iter().filter(|record| wanted(&record.event)).count()
    }

    /// The same pool opened anew, unwatched, on disks that `prepare` sees before. Nothing is cached: whatever is read is read
    /// from them.
    async fn reopened(self, prepare: impl FnOnce(&[Arc<FaultDisk>])) -> Self {
        let Self { world, running, volume, twin, random, what } = self;
        drop(volume);
        running.export().await;
        let disk = |media: &Arc<MemDisk>| Arc::new(FaultDisk::new(Arc::clone(media) as Arc<dyn Disk>, 8));
        let disks: Vec<_> = world.media.iter().map(disk).collect();
        prepare(&disks);
        let engine = start_caching(as_disks(&disks), 8, quiet(), 0).await.unwrap();
        let running = Running { engine, disks };
        let volume = running.engine.volume(&format!("{POOL}/v")).await.unwrap();
        Self { world, running, volume, twin, random, what }
    }

    /// Everything is readable from the devices alone, without those that are away.
    async fn end(self) {
        let Self { world, running, volume, twin, what, .. } = self;
        drop(volume);
        timeout(MINUTE, running.engine.end(engine::engine::Ending::Export)).await.unwrap().unwrap();
        drop(running);
        let running = world.open().await;
        let volume = running.engine.volume(&format!("{POOL}/v")).await.unwrap();
        assert!(content(&*volume).await == twin, "{what}: content after a restart");
    }
}

const LAYOUTS: [(&str, usize); 4] =
    [("mirror d0 d1", 1), ("raidz d0 d1 d2 d3", 1), ("raidz2 d0 d1 d2 d3 d4", 2), ("mirror d0 d1 d2", 2)];

#[tokio::test(start_paused = true)]
async fn pulled_drives_are_noticed_and_return_by_themselves() {
    for (layout, most) in LAYOUTS {
        let mut case = Case::new(layout, 3, true).await;
        for round in 0..3 {
            for pulled in 0..most {
                case.running.disks[pulled].vanish();
                case.write(20, round == 1).await;
            }
            case.sync().await;
            case.check().await;
            tokio::time::sleep(MINUTE).await;
            assert!((0..most).all(|disk| case.state(disk) == State::Removed), "{}", case.what);
            assert!((0..most).all(|disk| case.lacks_anything(disk)), "{}", case.what);
            assert_eq!(case.engine().view().tree().state().0, State::Degraded);
            for pulled in 0..most {
                case.running.disks[pulled].come_back();
                case.write(10, false).await;
            }
            tokio::time::sleep(MINUTE).await;
            case.sync().await;
            assert!((0..most).all(|disk| case.state(disk) == State::Healthy), "{}", case.what);
            case.check().await;
            // Without a resilver another round would go beyond redundancy.
            if round == 0 && (0..most).any(|disk| case.lacks_anything(disk)) {
                break;
            }
        }
        let removed = case.count(|event| matches!(event, Event::DeviceState { to: State::Removed, .. }));
        let back = case.count(|event| matches!(event, Event::DeviceState { to: State::Healthy, .. }));
        assert!(removed >= most && back >= most, "{}: {removed} {back}", case.what);
        case.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_watch_a_pulled_drive_is_noticed_by_its_errors_and_is_back_after_a_clear() {
    for (layout, most) in LAYOUTS {
        let mut case = Case::new(layout, 4, false).await;
        (0..most).for_each(|disk| case.running.disks[disk].vanish());
        case.write(20, false).await;
        case.sync().await;
        tokio::time::sleep(MINUTE).await;
        assert!((0..most).all(|disk| case.state(disk) == State::Removed), "{}", case.what);
        assert!((0..most).all(|disk| case.lacks_anything(disk)), "{}", case.what);
        (0..most).for_each(|disk| case.running.disks[disk].come_back());
        timeout(MINUTE, case.engine().clear(None)).await.unwrap().unwrap();
        assert!((0..most).all(|disk| case.state(disk) == State::Healthy), "{}", case.what);
        case.write(20, true).await;
        case.sync().await;
        case.check().await;
        case.end().await;
    }
}

/// Wherever in a transaction group a drive is pulled and put back: what it lacks is known.
#[tokio::test(start_paused = true)]
async fn a_flapping_drive_never_gives_old_bytes() {
    for seed in 0..6 {
        let mut case = Case::new("raidz d0 d1 d2 d3", 100 + seed, true).await;
        let disk = Arc::clone(&case.running.disks[1]);
        for step in 0..24 {
            match case.random.random_range(0..4) {
                0 => disk.vanish(),
                1 => disk.come_back(),
                2 => tokio::time::sleep(Duration::from_millis(case.random.random_range(1..9000))).await,
                _ => case.sync().await,
            }
            case.write(4, step % 5 == 0).await;
        }
        disk.come_back();
        tokio::time::sleep(MINUTE).await;
        case.sync().await;
        case.check().await;
        assert_eq!(
            case.leaf(1, |vdev| vdev.counters.get().checksum),
            0,
            "{}: old bytes were read",
            case.what
        );
        case.end().await;
    }
}

/// Bays in which nothing answers any more that was pulled.
#[derive(Debug, Default)]
struct Hanging(AtomicU64);

impl Opener for Hanging {
    fn open<'a>(&'a self, _: &'a DeviceName) -> BoxFuture<'a, io::Result<Arc<dyn Disk>>> {
        self.0.fetch_add(1, Relaxed);
        Box::pin(std::future::pending())
    }
    fn replacement<'a>(&'a self, _: &'a DeviceName) -> BoxFuture<'a, Option<NewLeaf>> {
        Box::pin(async { None })
    }
}

/// Found by reading: places that did not answer were looked into one after the other, for ten seconds each, and as long nobody
/// watched the devices that were left.
#[tokio::test(start_paused = true)]
async fn places_that_do_not_answer_keep_nobody_from_watching_the_others() {
    let mut case = Case::new("mirror d0 d1 d2 d3 d4", 21, false).await;
    let bays = Arc::new(Hanging::default());
    case.engine().watch(Arc::clone(&bays) as Arc<dyn Opener>);
    case.running.disks[1..4].iter().for_each(|disk| disk.vanish());
    for _ in 0..120 {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!((1..4).all(|number| !case.state(number).is_readable()));
    // As soon as the next look into them begins.
    let before = bays.0.load(Relaxed);
    while bays.0.load(Relaxed) == before {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let looked = bays.0.load(Relaxed) - before;
    assert_eq!(looked, 3, "into all of them together");
    case.running.disks[4].vanish();
    case.write(4, false).await;
    case.sync().await;
    tokio::time::sleep(Duration::from_secs(16)).await;
    assert!(!case.state(4).is_readable(), "it was seen to be gone");
    case.check().await;
}

#[tokio::test(start_paused = true)]
async fn a_drive_with_too_many_errors_is_faulted_and_the_last_one_never() {
    let mut case = Case::new("mirror d0 d1", 5, true).await;
    let refuse = || Fault::anywhere(On::Write, Effect::Error(io::ErrorKind::Other));
    case.running.disks[0].inject(refuse());
    for _ in 0..30 {
        case.write(10, false).await;
        case.sync().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(case.state(0), State::Faulted);
    let events = case.count(|event| matches!(event, Event::IoFailed { .. }));
    assert!((1..60).contains(&events), "{events} events");
    case.check().await;
    // Now the other one is all there is: its errors do not fault it.
    case.running.disks[1]
        .inject(Fault::anywhere(On::Write, Effect::Error(io::ErrorKind::Other)).chance_ppm(200_000));
    for _ in 0..20 {
        case.write(4, false).await;
        drop(timeout(MINUTE, case.engine().sync()).await);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(case.state(1), State::Healthy);
    case.running.disks.iter().for_each(|disk| disk.heal());
    timeout(2 * MINUTE, case.engine().clear(None)).await.unwrap().unwrap();
    case.sync().await;
    assert_eq!((case.state(0), case.state(1)), (State::Healthy, State::Healthy));
    case.check().await;
    case.end().await;
}

#[tokio::test(start_paused = true)]
async fn another_disk_in_the_same_bay_is_not_taken_for_the_leaf() {
    let mut case = Case::new("mirror d0 d1", 6, true).await;
    case.running.disks[1].vanish();
    case.write(20, false).await;
    case.sync().await;
    tokio::time::sleep(MINUTE).await;
    case.running.disks[1].come_back_as(Arc::new(MemDisk::new(DISK).named("/disks/d1")));
    tokio::time::sleep(MINUTE).await;
    assert!(!case.state(1).is_readable(), "{:?}", case.state(1));
    case.running.disks[1].vanish();
    case.running.disks[1].come_back_as(Arc::clone(&case.world.media[1]) as Arc<dyn Disk>);
    tokio::time::sleep(MINUTE).await;
    assert_eq!(case.state(1), State::Healthy);
    case.check().await;
    case.end().await;
}

/// Once the pool had got further than the drive that was gone on with alone, it was taken for one that is behind, and what was
/// acknowledged there was overwritten.
#[tokio::test(start_paused = true)]
async fn a_drive_with_a_newer_state_of_the_pool_is_never_overwritten_by_itself() {
    let mut case = Case::new("mirror d0 d1", 15, true).await;
    case.running.disks[1].vanish();
    case.write(20, false).await;
    case.sync().await;
    tokio::time::sleep(MINUTE).await;
    // Another machine has it meanwhile, and gets further.
    let media = Arc::clone(&case.world.media[1]);
    let theirs = World::on(vec![Arc::clone(&media)]);
    let elsewhere = theirs.open().await;
    for _ in 0..20 {
        elsewhere.engine.sync().await.unwrap();
    }
    elsewhere.engine.end(engine::engine::Ending::Close).await.unwrap();
    drop(elsewhere);
    let newest = theirs.look().await.unwrap().uberblock().txg;
    let txg = |case: &Case| case.engine().view().uberblock().txg;
    assert!(newest > txg(&case), "{newest}");
    let before = media.snapshot(0..DISK);
    // Whoever is to decide is told where it is now.
    let media = Arc::new(media.fork().named("/disks/elsewhere"));
    case.running.disks[1].come_back_as(Arc::clone(&media) as Arc<dyn Disk>);
    tokio::time::sleep(MINUTE).await;
    let newer_at = |vdev: &Vdev| VdevStatus::of(vdev, None).newer_at;
    let is_left_alone = |case: &Case| {
        assert_eq!(case.leaf(1, Vdev::state), (State::CantOpen, Aux::NewerState));
        assert_eq!(case.leaf(1, newer_at).as_deref(), Some("/disks/elsewhere"));
        assert!(media.snapshot(0..DISK) == before, "it was written to");
    };
    is_left_alone(&case);
    while txg(&case) <= newest + 2 {
        case.write(1, false).await;
        case.sync().await;
    }
    tokio::time::sleep(5 * MINUTE).await;
    is_left_alone(&case);
    // Nor by who only says that it is there.
    case.engine().clear(None).await.unwrap();
    is_left_alone(&case);
    case.check().await;
    case.engine().end(engine::engine::Ending::Close).await.unwrap();
}

/// Found by reading: what a drive lacked was reckoned from when it went, also where an image from before that came back. It
/// counted as whole without what was written in between. So did a copy of it that was made meanwhile, front to back, as the
/// labels at its end are as it went.
#[tokio::test(start_paused = true)]
async fn a_drive_that_comes_back_older_than_it_went_gets_all_that_it_lacks() {
    let layouts = ["mirror d0 d1", "raidz d0 d1 d2"];
    for (layout, is_copied) in layouts.into_iter().flat_map(|layout| [(layout, false), (layout, true)]) {
        let mut case = Case::new(layout, 21, true).await;
        case.what = format!("{}, copied: {is_copied}", case.what);
        let image = Arc::new(case.world.media[1].fork());
        for _ in 0..3 {
            case.write(40, false).await;
            case.sync().await;
        }
        if is_copied {
            let end = DISK - 2 * LABEL_BYTES;
            image.restore(end, &case.world.media[1].snapshot(end..DISK));
        }
        case.running.disks[1].vanish();
        case.write(10, false).await;
        case.sync().await;
        tokio::time::sleep(MINUTE).await;
        assert_eq!(case.state(1), State::Removed, "{}", case.what);
        case.running.disks[1].come_back_as(Arc::clone(&image) as Arc<dyn Disk>);
        tokio::time::sleep(MINUTE).await;
        crate::scans::over(case.engine()).await;
        case.sync().await;
        assert!(case.state(1) == State::Healthy && !case.lacks_anything(1), "{}", case.what);
        let Case { mut world, running, volume, twin, what, .. } = case;
        drop(volume);
        running.export().await;
        world.media[1] = image;
        let (pool, disks) = world.look_through().await.unwrap();
        let volume = pool.open_volume(&format!("{POOL}/v")).await.unwrap();
        disks[0].vanish();
        for (at, expected) in twin.chunks(BLOCK as usize).enumerate() {
            let read = volume.read(at as u64 * u64::from(BLOCK), BLOCK as usize).await;
            let segments = read.unwrap_or_else(|error| panic!("{what}: block {at}: {error}"));
            assert!(joined(segments) == expected, "{what}: block {at}");
        }
    }
}

/// Found by reading: who watches looked whose it was, and not how large. To take it online was refused, but wrote down what it
/// lacked by then: a transaction group every five seconds for as long as it was too small.
#[tokio::test(start_paused = true)]
async fn a_drive_that_has_shrunk_is_let_alone_until_it_has_its_size_again() {
    let mut case = Case::new("mirror d0 d1", 14, true).await;
    let media = Arc::clone(&case.world.media[1]);
    let tail = media.snapshot(DISK / 2..DISK);
    media.resize(DISK / 2);
    case.write(10, false).await;
    case.sync().await;
    tokio::time::sleep(MINUTE).await;
    assert_eq!(case.leaf(1, Vdev::state), (State::CantOpen, Aux::TooSmall));
    let newest = |case: &Case| case.engine().view().uberblock().txg;
    let before = newest(&case);
    tokio::time::sleep(5 * MINUTE).await;
    let groups = newest(&case) - before;
    assert!(groups < 5, "{groups} transaction groups of a pool at rest");
    assert_eq!(case.leaf(1, Vdev::state), (State::CantOpen, Aux::TooSmall));
    media.resize(DISK);
    media.restore(DISK / 2, &tail);
    tokio::time::sleep(MINUTE).await;
    assert_eq!(case.state(1), State::Healthy);
    case.check().await;
    case.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_log_device_that_failed_is_used_again_when_it_is_back() {
    let mut case = Case::new("mirror d0 d1 log d2", 7, true).await;
    for _ in 0..3 {
        case.write(3, true).await;
        case.sync().await;
    }
    case.running.disks[2].vanish();
    case.write(10, true).await;
    case.sync().await;
    tokio::time::sleep(MINUTE).await;
    assert_eq!(case.state(2), State::Removed);
    assert_eq!(case.count(|event| matches!(event, Event::LogDeviceFailed { .. })), 1);
    case.running.disks[2].come_back();
    tokio::time::sleep(MINUTE).await;
    for _ in 0..4 {
        case.write(3, true).await;
        case.sync().await;
    }
    let before = case.running.disks[2].counts().writes;
    case.write(10, true).await;
    assert!(case.running.disks[2].counts().writes >= before + 10, "{}", case.what);
    case.check().await;
    case.end().await;
}

/// Reads that take a second where others take nothing are no reason to wait for them.
#[tokio::test(start_paused = true)]
async fn a_drive_that_is_slow_sits_out_and_comes_back_when_it_is_fast() {
    for layout in ["raidz2 d0 d1 d2 d3", "mirror d0 d1", "mirror d0 d1 d2"] {
        let mut case = Case::new(layout, 8, true).await;
        case.write(200, false).await;
        case.sync().await;
        let mut case = case.reopened(|_| ()).await;
        case.engine().watch(Arc::new(Bays(case.running.disks.clone())));
        let second = Duration::from_secs(1);
        case.running.disks[1].inject(Fault::anywhere(On::Read, Effect::Delay(second..=second)));
        let mut waited = 0;
        for _ in 0..1000 {
            let block = case.random.random_range(0..case.twin.len() / BLOCK as usize);
            let right = &case.twin[block * BLOCK as usize..(block + 1) * BLOCK as usize];
            let begun = tokio::time::Instant::now();
            let read = case.volume.read(block as u64 * u64::from(BLOCK), BLOCK as usize).await.unwrap();
            waited += u32::from(begun.elapsed() >= second);
            let read: Vec<u8> = read
                .into_iter()
                .flat_map(|segment| match segment {
                    Segment::Data(bytes) => bytes.to_vec(),
                    Segment::Zero(len) => vec![0; len],
                })
                .collect();
            assert!(read == right, "{}: block {block}", case.what);
        }
        assert!((1..60).contains(&waited), "{}: {waited} reads had to wait", case.what);
        assert_eq!(
            case.count(|event| matches!(event, Event::Slow { sits_out: true, .. })),
            1,
            "{}",
            case.what
        );
        assert!(case.is_judged(1), "{}", case.what);
        tokio::time::sleep(11 * MINUTE).await;
        assert_eq!(
            case.count(|event| matches!(event, Event::Slow { sits_out: false, .. })),
            0,
            "it is slow still"
        );
        case.running.disks[1].heal();
        tokio::time::sleep(11 * MINUTE).await;
        assert_eq!(
            case.count(|event| matches!(event, Event::Slow { sits_out: false, .. })),
            1,
            "{}",
            case.what
        );
        case.end().await;
    }
}

/// What is read to open a pool was taken for enough to know that a drive is not slow: so its alert was told as over at each
/// restart.
#[tokio::test(start_paused = true)]
async fn a_drive_that_nobody_reads_from_is_judged_by_a_trial_and_not_because_its_pool_was_opened() {
    let mut case = Case::new("raidz2 d0 d1 d2 d3", 8, false).await;
    case.write(200, false).await;
    case.sync().await;
    let second = Duration::from_secs(1);
    let slow = Fault::anywhere(On::Read, Effect::Delay(second..=second));
    let case = case.reopened(|disks| disks[1].inject(slow)).await;
    // As much as there may be to read where a pool is no toy.
    for offset in (0..VOLUME).step_by(BLOCK as usize) {
        case.volume.read(offset, BLOCK as usize).await.unwrap();
    }
    case.engine().watch(Arc::new(Bays(case.running.disks.clone())));
    let samples = case.leaf(1, |vdev| vdev.leaf.as_ref().unwrap().pulse.samples());
    assert!(samples > 16, "only {samples} reads");
    let judged = || [0, 1, 2, 3].map(|number| case.is_judged(number));
    tokio::time::sleep(MINUTE).await;
    assert_eq!(judged(), [false; 4]);
    tokio::time::sleep(11 * MINUTE).await;
    assert_eq!(judged(), [true, false, true, true], "that one is not quick");
    case.running.disks[1].heal();
    tokio::time::sleep(11 * MINUTE).await;
    assert_eq!(judged(), [true; 4]);
    assert_eq!(case.count(|event| matches!(event, Event::Slow { .. })), 0);
    case.end().await;
}

/// Damage to the list of what a drive missed costs time, not data.
#[tokio::test(start_paused = true)]
async fn a_drive_whose_list_of_what_it_missed_cannot_be_read_gets_everything() {
    for layout in ["mirror d0 d1", "mirror d0 d1 d2"] {
        let mut case = Case::new(layout, 9, false).await;
        case.write(200, false).await;
        case.sync().await;
        // A list so long that it does not fit into its dnode.
        for _ in 0..200 {
            case.write(1, false).await;
            case.sync().await;
        }
        case.running.disks[1].vanish();
        case.write(20, false).await;
        case.sync().await;
        tokio::time::sleep(MINUTE).await;
        let newest = case.engine().view().uberblock().txg;
        let some: Vec<u64> = (5..newest).filter(|_| case.random.random_range(0..3) == 0).collect();
        case.leaf(1, |vdev| some.iter().for_each(|txg| vdev.leaf.as_ref().unwrap().missed.add(*txg)));
        case.sync().await;
        let Case { world, running, volume, twin, random, what } = case;
        drop(volume);
        running.export().await;
        let pool = world.look().await.unwrap();
        let list = pool.tree().leaves().iter().find_map(|leaf| leaf.leaf.as_ref().unwrap().dtl_object);
        let object = pool.mos().object(list.expect("a list")).await.unwrap();
        let mut runs = object.runs(0, 0..object.max_block_id() + 1);
        let mut damaged = 0;
        while let Some(run) = runs.next().await.unwrap() {
            let pool::dmu::Run::Block { pointer, .. } = run else { continue };
            for (dva, media) in pointer.dvas().flat_map(|dva| world.media.iter().map(move |m| (dva, m))) {
                let at = DATA_OFFSET + dva.offset;
                media.write(at, vec![0x55; 512].into()).await.unwrap();
                damaged += 1;
            }
        }
        assert!(damaged > 0, "the list is in a block");
        let running = world.open().await;
        let volume = running.engine.volume(&format!("{POOL}/v")).await.unwrap();
        let case = Case { world, running, volume, twin, random, what };
        assert_eq!(case.count(|event| matches!(event, Event::HistoryLost { .. })), 1, "{}", case.what);
        case.check().await;
        let done = crate::scans::over(case.engine()).await;
        assert!(done.processed >= VOLUME * 3 / 4, "{}: only {} bytes", case.what, done.processed);
        case.sync().await;
        assert!(!case.lacks_anything(1), "{}", case.what);
        case.check().await;
        // Once is enough.
        let Case { world, running, volume, twin, random, what } = case;
        drop(volume);
        running.export().await;
        world.verify(&what).await;
        let running = world.open().await;
        let volume = running.engine.volume(&format!("{POOL}/v")).await.unwrap();
        let case = Case { world, running, volume, twin, random, what };
        assert_eq!(case.count(|event| matches!(event, Event::HistoryLost { .. })), 0, "{}", case.what);
        assert!(!case.lacks_anything(1), "{}", case.what);
        case.end().await;
    }
}

/// Found by random faults, seed 1013: all four labels of a drive that tore every write were torn, and nobody knew it again.
#[tokio::test(start_paused = true)]
async fn a_drive_that_tears_every_write_keeps_labels_by_which_it_is_known_again() {
    let mut case = Case::new("mirror d0 d1", 10, false).await;
    case.write(40, false).await;
    case.sync().await;
    for round in 0..4 {
        case.running.disks[1].inject(Fault::anywhere(On::Write, Effect::Tear(io::ErrorKind::Other)));
        let comment = Properties::from([("comment".to_owned(), Stored::Text(format!("round {round}")))]);
        // What the configuration says changes: labels are written.
        let set = case.engine().run(move |cx| {
            Box::pin(async move {
                cx.config_dirty = true;
                dsl::set_pool(cx, &comment).await
            })
        });
        set.await.unwrap();
        case.write(5, false).await;
        case.sync().await;
    }
    let Case { world, running, volume, twin, random, what } = case;
    drop(volume);
    running.export().await;
    let running = world.open().await;
    let volume = running.engine.volume(&format!("{POOL}/v")).await.unwrap();
    let case = Case { world, running, volume, twin, random, what };
    assert_ne!(case.state(1), State::CantOpen, "{}", case.what);
    timeout(MINUTE, case.engine().clear(None)).await.unwrap().unwrap();
    assert_eq!(case.state(1), State::Healthy, "{}", case.what);
    case.check().await;
    crate::scans::over(case.engine()).await;
    case.sync().await;
    assert!(!case.lacks_anything(1), "{}", case.what);
    case.end().await;
}

/// Found with real drives, three of six pulled and put back: the first that came back had an older state of what was read,
/// and so those that had never been away were charged with checksum errors, and the block counted as damaged.
#[tokio::test(start_paused = true)]
async fn what_a_returned_drive_missed_is_not_blamed_on_those_that_stayed() {
    for layout in ["raidz2 d0 d1 d2 d3 d4 d5", "mirror d0 d1 d2"] {
        let mut case = Case::new(layout, 11, false).await;
        [0, 1].iter().for_each(|&n| case.running.disks[n].vanish());
        case.write(60, false).await;
        case.sync().await;
        let Case { world, running, volume, twin, .. } = case;
        drop(volume);
        running.export().await;
        let (pool, disks) = world.look_through().await.unwrap();
        let volume = pool.open_volume(&format!("{POOL}/v")).await.unwrap();
        disks[2].vanish();
        let mut out_of_reach = 0;
        for (at, expected) in twin.chunks(BLOCK as usize).enumerate() {
            match volume.read(at as u64 * u64::from(BLOCK), BLOCK as usize).await {
                Ok(segments) => assert!(joined(segments) == expected, "{layout}: block {at}"),
                Err(_) => out_of_reach += 1,
            }
        }
        assert!(out_of_reach > 0, "{layout}");
        let tree = pool.tree();
        for leaf in tree.leaves() {
            assert_eq!(leaf.counters.get().checksum, 0, "{layout}: {leaf}");
        }
        assert_eq!(tree.counters.get().checksum, 0, "{layout}: the pool");
    }
}

/// Found by random faults, seed 80920: what a drive refused while it was resilvered was never tried again, so that it
/// lacked redundancy for ever although it worked.
#[tokio::test(start_paused = true)]
async fn what_a_drive_refused_while_it_was_resilvered_is_tried_again() {
    for (layout, is_cleared) in [("mirror d0 d1", true), ("mirror d0 d1", false), ("mirror d0 d1 d2", false)]
    {
        let mut case = Case::new(layout, 12, true).await;
        case.running.disks[1].vanish();
        case.write(60, false).await;
        case.sync().await;
        tokio::time::sleep(MINUTE).await;
        // It refuses what a resilver has to write there, and nothing else.
        let [has, lacks] = [0, 1].map(|n| case.world.media[n].snapshot(0..DISK));
        let bad = case.twin.chunks(BLOCK as usize).find_map(|block| {
            let at = (0..has.len() - block.len()).step_by(4096);
            let mut at = at.filter(|at| has[*at..].starts_with(block) && !lacks[*at..].starts_with(block));
            at.next().filter(|_| block.iter().any(|byte| *byte != 0))
        });
        let bad = bad.expect("a block that it lacks") as u64;
        let refuses = Effect::Error(io::ErrorKind::Other);
        case.running.disks[1].inject(Fault::new(On::Write, bad..bad + u64::from(BLOCK), refuses));
        case.running.disks[1].come_back();
        tokio::time::sleep(MINUTE / 2).await;
        let done = crate::scans::over(case.engine()).await;
        assert!(done.processed > 0, "{}: {done:?}", case.what);
        assert_eq!(case.state(1), State::Healthy, "{}", case.what);
        assert!(case.lacks_anything(1), "{}: it was refused", case.what);
        // Not again and again: a bad sector does not keep the pool busy.
        tokio::time::sleep(10 * MINUTE).await;
        let begun = case.count(|event| matches!(event, Event::Scan { step: ScanStep::Started, .. }));
        assert!((2..8).contains(&begun), "{}: {begun} resilvers", case.what);
        assert!(case.lacks_anything(1), "{}: it was refused", case.what);
        case.running.disks[1].heal();
        let wait = if is_cleared {
            let guid = case.leaf(1, |vdev| vdev.guid);
            case.engine().clear(Some(guid)).await.unwrap();
            MINUTE / 4
        } else {
            20 * MINUTE
        };
        tokio::time::sleep(wait).await;
        assert!(!case.lacks_anything(1), "{}: it has everything", case.what);
        case.check().await;
        let refused = |event: &Event| matches!(event, Event::IoFailed { error: IoError::Write, .. });
        assert!(case.count(refused) > 0, "{}: refused repairs are told", case.what);
        case.end().await;
    }
}

/// After a shelf had lost its power and its drives came back in each other's places, each was called what the other was, until
/// the pool was imported again.
#[tokio::test(start_paused = true)]
async fn drives_that_change_places_while_the_pool_is_suspended_are_known_by_their_new_ones() {
    let mut case = Case::new("mirror d0 d1", 20, false).await;
    let refilled = Refilled::of(&case.running);
    case.engine().watch(Arc::clone(&refilled) as Arc<dyn Opener>);
    let guids = [0, 1].map(|number| case.leaf(number, |vdev| vdev.guid));
    case.write(10, false).await;
    case.running.disks.iter().for_each(|disk| disk.vanish());
    let synced = timeout(MINUTE, case.engine().sync()).await.expect("no command hangs");
    assert!(synced.is_err() && case.engine().suspended().is_some(), "{}", case.what);
    tokio::time::sleep(MINUTE).await;
    for (number, guid) in guids.into_iter().enumerate() {
        let media = Arc::new(case.world.media[number].fork().named(format!("/disks/d{}", 1 - number)));
        refilled.elsewhere.lock().unwrap().push((guid, Arc::clone(&media) as Arc<dyn Disk>));
        case.world.media[number] = media;
    }
    tokio::time::sleep(5 * MINUTE).await;
    assert!(case.engine().suspended().is_none(), "{}", case.what);
    case.sync().await;
    assert_eq!([1, 0].map(|number| case.leaf(number, |vdev| vdev.guid)), guids, "{}", case.what);
    case.check().await;
    case.end().await;
}
