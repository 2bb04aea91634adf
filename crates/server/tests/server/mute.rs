//! A status is asked for while disks hang: it comes, from memory, and says what it does not know.
//!
//! The disks are simulated and so is the clock: a read that takes an hour is one that never comes back, as far as the
//! person who asked is concerned.

use std::{sync::Arc, time::Duration};

use server::{
    disk::{Disk, Effect, Fault, FaultDisk, MemDisk, On},
    engine::{
        create::{self, CreateOptions, DeviceFacts, Plan, VdevSpec},
        dsl::Properties,
        engine::{Engine, Options},
    },
    ops::Held,
    pool::cache::BlockCache,
    view,
};
use tokio::time::Instant;

const SIZE: u64 = 160 << 20;
const HOUR: Duration = Duration::from_secs(3600);

async fn pool() -> (Arc<Engine>, Vec<Arc<FaultDisk>>) {
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
        name: "tank".to_owned(),
        features: create::features("off").unwrap(),
        pool_properties: Properties::new(),
        root_properties: Properties::new(),
        hostid: 7,
        hostname: "simulation".to_owned(),
        now: 1_700_000_000,
        seed: 1,
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
