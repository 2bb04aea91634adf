//! A status is asked for while disks hang: it comes, from memory, and says what it does not know. So do lists: they have what
//! others know, and name the pool they lack.
//!
//! The disks are simulated and so is the clock: a read that takes an hour is one that never comes back, as far as the
//! person who asked is concerned.

use std::{sync::Arc, time::Duration};

use server::{
    answers::Pools,
    api::DatasetQuery,
    disk::{Disk, Effect, Fault, FaultDisk, MemDisk, On},
    engine::{
        create::{self, CreateOptions, DeviceFacts, Plan, VdevSpec},
        dsl::Properties,
        engine::{Engine, Options},
    },
    ops::Held,
    pool::cache::BlockCache,
    view::{self, ViewError},
};
use tokio::time::Instant;

const SIZE: u64 = 160 << 20;
const HOUR: Duration = Duration::from_secs(3600);

async fn pool() -> (Arc<Engine>, Vec<Arc<FaultDisk>>) {
    pool_named("tank", 1).await
}

/// Each name with a seed of its own.
async fn pool_named(name: &str, seed: u64) -> (Arc<Engine>, Vec<Arc<FaultDisk>>) {
    let words = ["mirror", "/disks/a", "/disks/b"].map(str::to_owned);
    let spec = VdevSpec::parse(&words).unwrap();
    let disk = |name: &str| {
        let media: Arc<dyn Disk> = Arc::new(MemDisk::new(SIZE).named(name.to_owned()));
        Arc::new(FaultDisk::new(media, 1))
    };
    let disks: Vec<Arc<FaultDisk>> = ["/disks/a", "/disks/b"].into_iter().map(disk).collect();
    let facts =
        [DeviceFacts { bytes: SIZE, block_device: false, logical_sector: 512, physical_sector: 512 }; 2];
    let plan = Plan::new(&spec, &facts, Some(12), true).unwrap();
    let options = CreateOptions {
        name: name.to_owned(),
        features: create::features("off").unwrap(),
        pool_properties: Properties::new(),
        root_properties: Properties::new(),
        hostid: 7,
        hostname: "simulation".to_owned(),
        now: 1_700_000_000,
        seed,
        // Nothing is kept: what is asked for is read.
        cache: Arc::new(BlockCache::new(0)),
        workers: 0,
        history: None,
    };
    let as_disks: Vec<Arc<dyn Disk>> = disks.iter().map(|disk| Arc::clone(disk) as Arc<dyn Disk>).collect();
    let syncer = create::create(&plan, &as_disks, options).await.unwrap();
    (Engine::start(syncer, Options::default()).await.unwrap(), disks)
}

#[tokio::test(start_paused = true)]
async fn status_is_answered_while_every_disk_hangs() {
    let (engine, disks) = pool().await;
    for disk in &disks {
        disk.inject(Fault::anywhere(On::Read, Effect::Delay(HOUR..=HOUR)));
    }
    let held = Held::writing(engine);
    let start = Instant::now();
    let first = view::held(&held).await;
    assert!(start.elapsed() <= Duration::from_secs(5), "{:?}", start.elapsed());
    assert_eq!((first.name.as_str(), first.state.as_str()), ("tank", "ONLINE"));
    assert_eq!(first.root.children[0].children.len(), 2, "devices are in memory");
    assert!(first.properties.is_empty() && first.problems[0].contains("not known"), "{:?}", first.problems);
    // Whoever asks again does not wait again.
    let start = Instant::now();
    view::held(&held).await;
    assert_eq!(start.elapsed(), Duration::ZERO);
    // What was asked for comes some day, and is known then, also when the disks hang again.
    disks.iter().for_each(|disk| disk.heal());
    tokio::time::sleep(100 * HOUR).await;
    for disk in &disks {
        disk.inject(Fault::anywhere(On::Read, Effect::Delay(HOUR..=HOUR)));
    }
    let later = view::held(&held).await;
    assert_eq!(later.property("health").unwrap().value, "ONLINE");
    assert!(later.problems.is_empty(), "{:?}", later.problems);
}

fn hang(disks: &[Arc<FaultDisk>]) {
    for disk in disks {
        disk.inject(Fault::anywhere(On::Read, Effect::Delay(HOUR..=HOUR)));
    }
}

fn all(engines: [&Arc<Engine>; 2]) -> Pools {
    Pools::new(engines.map(|engine| Arc::new(Held::writing(Arc::clone(engine)))).to_vec())
}

async fn names(pools: &Pools) -> (Vec<String>, Vec<String>) {
    let listed = pools.datasets(&DatasetQuery::default()).await.unwrap();
    (listed.datasets.into_iter().map(|dataset| dataset.name).collect(), listed.problems)
}

/// Of one dataset, and how long that took.
async fn named(pools: &Pools, name: &str) -> (Result<(), ViewError>, Duration) {
    let query = DatasetQuery { name: Some(name.to_owned()), ..DatasetQuery::default() };
    let start = Instant::now();
    let answer = pools.datasets(&query).await.map(drop);
    (answer, start.elapsed())
}

/// One pool whose disks hung held up what was asked of all, as long as they did.
#[tokio::test(start_paused = true)]
async fn a_list_of_all_pools_does_not_wait_for_one_that_hangs() {
    let ((well, _), (hung, disks)) = (pool_named("lake", 2).await, pool_named("tank", 1).await);
    hang(&disks);
    let pools = all([&well, &hung]);
    let start = Instant::now();
    let (found, problems) = names(&pools).await;
    assert!(start.elapsed() <= Duration::from_secs(3), "{:?}", start.elapsed());
    assert_eq!(found, ["lake"]);
    let [problem] = &problems[..] else { panic!("{problems:?}") };
    assert!(problem.starts_with("cannot list 'tank': its devices do not answer: /disks/"), "{problem}");
    assert!(problem.contains("'zpool status tank'") && problem.contains("'zpool clear tank'"), "{problem}");
    let start = Instant::now();
    let shares = pools.shares().await;
    assert!(start.elapsed() <= Duration::from_secs(3), "{:?}", start.elapsed());
    assert_eq!((shares.pools.len(), shares.pools[0].pool.as_str()), (1, "lake"));
    assert_eq!((shares.silent.len(), shares.silent[0].pool.as_str()), (1, "tank"));
    assert!(shares.silent[0].problem.starts_with("cannot list 'tank': its devices do not answer: "));
    // Who wants just that hears so.
    let (answer, took) = named(&pools, "tank").await;
    let said = answer.unwrap_err().to_string();
    assert!(said.starts_with("cannot open 'tank': its devices do not answer: "), "{said}");
    assert!(took <= Duration::from_secs(30), "{took:?}");
    assert!(named(&pools, "lake").await.0.is_ok());
    // Nothing is left behind.
    disks.iter().for_each(|disk| disk.heal());
    tokio::time::sleep(HOUR).await;
    assert_eq!(names(&pools).await, (vec!["lake".to_owned(), "tank".to_owned()], Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn a_suspended_pool_that_cannot_be_read_is_left_out_and_says_why() {
    let ((well, _), (hung, disks)) = (pool_named("lake", 2).await, pool_named("tank", 1).await);
    for disk in &disks {
        disk.inject(Fault::anywhere(On::Write, Effect::Error(std::io::ErrorKind::Other)));
    }
    assert!(hung.sync().await.is_err());
    assert!(hung.suspended().is_some());
    let pools = all([&well, &hung]);
    // What can be read is.
    assert_eq!(names(&pools).await.0, ["lake", "tank"]);
    hang(&disks);
    let start = Instant::now();
    let (found, problems) = names(&pools).await;
    assert!(start.elapsed() <= Duration::from_secs(3), "{:?}", start.elapsed());
    assert_eq!((found.len(), problems.len()), (1, 1), "{problems:?}");
    let said = "cannot list 'tank': pool I/O is currently suspended: ";
    assert!(problems[0].starts_with(said) && problems[0].contains("'zpool clear tank'"), "{problems:?}");
    let (answer, took) = named(&pools, "tank").await;
    assert!(
        answer.unwrap_err().to_string().starts_with("cannot open 'tank': pool I/O is currently suspended: ")
    );
    assert!(took <= Duration::from_secs(3), "{took:?}");
    hung.abandon().await;
}

/// However long it takes, as long as something comes.
#[tokio::test(start_paused = true)]
async fn a_pool_that_is_only_slow_is_waited_for() {
    let ((well, _), (slow, disks)) = (pool_named("lake", 2).await, pool_named("tank", 1).await);
    for disk in &disks {
        let long = Duration::from_millis(1500);
        disk.inject(Fault::anywhere(On::Read, Effect::Delay(long..=long)));
    }
    let start = Instant::now();
    let (found, problems) = names(&all([&well, &slow])).await;
    assert_eq!(found, ["lake", "tank"], "{problems:?}");
    assert!(start.elapsed() > Duration::from_secs(4), "{:?}", start.elapsed());
}

/// What one side of a mirror does not answer within ten seconds is read from the other.
#[tokio::test(start_paused = true)]
async fn a_pool_that_can_do_without_the_device_that_hangs_answers_who_asks_for_it() {
    let ((well, _), (half, disks)) = (pool_named("lake", 2).await, pool_named("tank", 1).await);
    for (one, other) in [(0, 1), (1, 0)] {
        disks[other].heal();
        hang(&disks[one..=one]);
        let (answer, took) = named(&all([&well, &half]), "tank").await;
        answer.unwrap_or_else(|error| panic!("{took:?}: {error}"));
    }
}
