//! Pools whose host was cut off, with what was acknowledged in their intent logs: claimed, replayed, and judged by what
//! the real module made of a copy.

use std::{collections::BTreeMap, ops::Range, path::Path, sync::Arc, time::Duration};

use crate::{
    commits::{cuts, replay},
    cuts::recorder::{Recording, Tape},
    files::{check, judge_as},
    support::{Running, World, as_disks, content, data, going_on, plain, quiet},
};
use block::{Asked, BlockVolume as _, Durability};
use bytes::Bytes;
use codec::checksum::{Checksum, embedded};
use disk::{Disk, Effect, Fault, FaultDisk, MemDisk, On};
use engine::{
    alloc::Purpose,
    dsl::{self, NewVolume, Properties, Stored},
    engine::{Ending, Engine, OpenError},
    open,
    sync::{Syncer, Task, TaskFuture, Work},
};
use fixtures::Fixture;
use ondisk::{
    Order,
    blkptr::{self, BlkPtr, Dva},
    dnode::ObjectType,
    label::DATA_OFFSET,
    zil::{Body, CHAIN_BYTES, ChainWords, Header, Record, TxType, WriteData},
};
use pool::{
    Pool,
    dmu::{Cursor, Step},
    dsl::HeadKind,
    import::{self, Sources},
    zil::{self, Chain},
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use sha2::{Digest as _, Sha256};

const CRASHED: [&str; 4] = ["crash-main", "crash-slog", "crash-raidz1x3", "crash-kill-slog"];

async fn pool_in(dir: &Path, writable: bool, missing_log: bool) -> Result<Arc<Pool>, String> {
    let found = import::scan(&Sources::paths([dir])).await;
    let mut candidate = found.pools.first().ok_or("no pool")?.clone();
    if writable {
        candidate = candidate.reopen(&import::writable()).await.map_err(|error| error.to_string())?;
    }
    let options = import::OpenOptions { force: true, missing_log, ..import::OpenOptions::default() };
    import::open(&candidate, &options).await.map_err(|error| error.to_string())
}

pub(crate) async fn start(pool: Arc<Pool>) -> Result<Arc<Engine>, String> {
    let syncer = open::open(pool, going_on()).await.map_err(|error| error.to_string())?;
    Engine::start(syncer, quiet()).await.map_err(|error| error.to_string())
}

fn hash(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Live volumes of the manifest with the sums of their content.
fn expected(fixture: &Fixture) -> BTreeMap<String, String> {
    let live = fixture.manifest.zvols.iter().filter(|zvol| !zvol.name.contains('@'));
    live.map(|zvol| (zvol.name.clone(), zvol.sha256.clone())).collect()
}

async fn sums(engine: &Engine, names: impl IntoIterator<Item = &String>) -> BTreeMap<String, String> {
    let mut sums = BTreeMap::new();
    for name in names {
        let volume = engine.volume(name).await.unwrap();
        sums.insert(name.clone(), hash(&content(&*volume).await));
    }
    sums
}

async fn exported(engine: Arc<Engine>) {
    engine.end(Ending::Export).await.unwrap();
}

/// What logs hold, as of the state on the devices.
async fn waiting(dir: &Path) -> Vec<zil::Waiting> {
    zil::waiting(&pool_in(dir, false, false).await.unwrap()).await.unwrap()
}

#[tokio::test]
async fn what_was_acknowledged_before_a_crash_is_there_again() {
    for fixture in CRASHED.iter().filter_map(|name| fixtures::try_pool(name)) {
        let name = &fixture.name;
        let copy = fixture.copy();
        let dir = copy.path();
        let before = waiting(dir).await;
        assert!(before.iter().any(|log| log.kind == HeadKind::Volume), "{name}: {before:?}");
        let mut files: Vec<_> =
            before.iter().filter(|log| log.kind == HeadKind::Filesystem).cloned().collect();
        let expected = expected(&fixture);

        let engine = start(pool_in(dir, true, false).await.unwrap()).await.unwrap();
        let replayed = engine.replayed();
        let volumes = before.iter().filter(|log| log.kind == HeadKind::Volume);
        assert_eq!(replayed.volumes, volumes.clone().count() as u64, "{name}");
        assert_eq!(replayed.records, volumes.map(|log| log.records).sum::<u64>(), "{name}");
        assert!(replayed.failed.is_empty() && replayed.lost.is_empty(), "{name}: {replayed:?}");
        assert_eq!(sums(&engine, expected.keys()).await, expected, "{name}");
        exported(engine).await;

        // Logs of file systems are as they were, and ours are gone.
        let mut after = waiting(dir).await;
        for logs in [&mut files, &mut after] {
            logs.sort_by(|a, b| a.name.cmp(&b.name));
        }
        assert_eq!(after, files, "{name}");
        let heads = zil::heads(&pool_in(dir, false, false).await.unwrap()).await.unwrap();
        for head in &heads {
            assert_ne!(head.kind, HeadKind::Volume, "{name}: '{}' still has a log", head.name);
            let has_records = files.iter().any(|log| log.name == head.name);
            assert!(!has_records || head.header.claim_txg != 0, "{name}: '{}' was not claimed", head.name);
        }
        judge_as(dir, &fixture.manifest.pool, &[]);

        // And once more, with nothing to do.
        let engine = start(pool_in(dir, true, false).await.unwrap()).await.unwrap();
        assert_eq!((engine.replayed().records, engine.replayed().kept), (0, files), "{name}");
        assert_eq!(sums(&engine, expected.keys()).await, expected, "{name}");
        exported(engine).await;
        check(dir).unwrap_or_else(|text| panic!("{name}: {text}"));
    }
}

/// The images of a fixture as disks in memory.
fn in_memory(fixture: &Fixture) -> Vec<Arc<MemDisk>> {
    let disk = |path: std::path::PathBuf| {
        Arc::new(MemDisk::from_bytes(&std::fs::read(&path).unwrap()).named(path.display().to_string()))
    };
    fixture.images().into_iter().map(disk).collect()
}

pub(crate) async fn pool_on(disks: Vec<Arc<dyn Disk>>) -> Result<Arc<Pool>, String> {
    let found = import::scan(&Sources::disks(disks)).await;
    let candidate = found.pools.first().ok_or("no pool")?;
    let options = import::OpenOptions { force: true, ..import::OpenOptions::default() };
    import::open(candidate, &options).await.map_err(|error| error.to_string())
}

pub(crate) async fn start_on(media: &[Arc<MemDisk>]) -> Arc<Engine> {
    start(pool_on(as_disks(media)).await.unwrap()).await.unwrap()
}

/// What was done to the media while the pool on them was opened and its logs were replayed.
async fn recorded(before: &[Arc<MemDisk>]) -> Recording {
    let media: Vec<_> = before.iter().map(|disk| Arc::new(disk.fork())).collect();
    let tape = Tape::new(media.len(), None);
    tape.start();
    let pool = pool_on(tape.disks(&media)).await.unwrap();
    let engine = start(pool).await.unwrap();
    assert!(engine.replayed().records > 0, "there was something to replay");
    tape.stop()
}

/// A pool that Millpond was writing to when the power was cut, and what its volumes must hold.
pub(crate) async fn cut_off(layout: &str, seed: u64) -> (World, BTreeMap<String, Vec<u8>>) {
    const SIZE: u64 = 256 << 10;
    let mut random = StdRng::seed_from_u64(seed);
    let (mut world, running) = World::create(layout, 12, 64 << 20, seed).await;
    let (mut volumes, mut twins) = (Vec::new(), BTreeMap::new());
    for (name, block) in [("tank/a", 8192), ("tank/b", 16384), ("tank/quiet", 8192)] {
        let volume = running.volume(name, SIZE, block, Properties::new()).await;
        // The log of a volume begins with a transaction group, so the first two are not in it.
        for _ in 0..2 {
            volume.write(0, data(vec![1; 4096]), Durability::Stable(Asked::Fua)).await.unwrap();
        }
        let mut twin = vec![0; SIZE as usize];
        twin[..4096].fill(1);
        volumes.push((name, volume, twin));
    }
    // From here on there is no transaction group.
    running.engine.sync().await.unwrap();
    for (name, volume, mut twin) in volumes {
        let writes = if name.ends_with("quiet") { 0 } else { 12 };
        for _ in 0..writes {
            let at = random.random_range(0..SIZE / 512 - 64) * 512;
            let len = [512, 4096, 16384, 32768][random.random_range(0..4)];
            let bytes: Vec<u8> = (0..len).map(|_| random.random()).collect();
            twin[at as usize..at as usize + len].copy_from_slice(&bytes);
            volume.write(at, data(bytes), Durability::Stable(Asked::Fua)).await.unwrap();
        }
        if writes > 0 {
            volume.write_zeroes(65536, 20000, false, Durability::Cached).await.unwrap();
            twin[65536..85536].fill(0);
            volume.flush().await.unwrap();
        }
        twins.insert(name.to_owned(), twin);
    }
    world.cut(running).await;
    (world, twins)
}

pub(crate) async fn assert_holds(engine: &Engine, twins: &BTreeMap<String, Vec<u8>>, what: &str) {
    for (name, twin) in twins {
        let volume = engine.volume(name).await.unwrap();
        assert!(content(&*volume).await == *twin, "{what}: '{name}' is not what was acknowledged");
    }
}

/// Until the logs are given back, a power cut leaves them to be replayed again, whatever was done in between.
async fn cut_everywhere(layout: &str, chances: &[u32]) {
    let (world, twins) = cut_off(layout, 5).await;
    let recording = recorded(&world.media).await;
    let mut random = StdRng::seed_from_u64(6);
    let mut replayed = [0; 2];
    for (number, cut) in cuts(&recording).enumerate() {
        for &chance in chances {
            let all = recording.events.len();
            let what = format!("{layout}: cut after {cut} of {all}, {chance} % kept");
            let media = replay(&world.media, &recording, cut, || random.random_range(0..100) < chance).await;
            let engine = start_on(&media).await;
            assert_holds(&engine, &twins, &what).await;
            replayed[usize::from(engine.replayed().records > 0)] += 1;
            engine.end(Ending::Export).await.unwrap();
            if number % 16 == 0 {
                let pool = pool_on(as_disks(&media)).await.unwrap();
                let report = pool::verify::verify(&pool, &Arc::default()).await;
                assert!(report.is_clean(), "{what}: {report:#?}");
                assert!(zil::heads(&pool).await.unwrap().is_empty(), "{what}: a log is left");
            }
        }
    }
    assert!(replayed.iter().all(|count| *count > 0), "{layout}: cut before and after: {replayed:?}");
    println!("{layout}: {} cuts while logs were claimed and replayed", replayed[0] + replayed[1]);
}

#[tokio::test(start_paused = true)]
async fn a_power_cut_while_logs_are_replayed_changes_nothing() {
    cut_everywhere("d0", &[100, 50, 0]).await;
}

#[tokio::test(start_paused = true)]
async fn a_power_cut_while_logs_on_a_log_device_are_replayed_changes_nothing() {
    cut_everywhere("mirror d0 d1 log d2", &[50]).await;
}

#[tokio::test(start_paused = true)]
async fn a_power_cut_while_logs_on_raidz_are_replayed_changes_nothing() {
    cut_everywhere("raidz d0 d1 d2", &[50]).await;
}

/// Nobody could clear such a pool, for nobody was given it, and its syncing task kept the devices until the process ended:
/// every later attempt to open it was told that they are in use.
#[tokio::test(start_paused = true)]
async fn a_pool_that_is_suspended_while_logs_are_replayed_lets_its_devices_go() {
    const PATIENCE: Duration = Duration::from_secs(600);
    let (world, twins) = cut_off("d0", 15).await;
    let disk_of = |world: &World| Arc::new(FaultDisk::new(Arc::clone(&world.media[0]) as Arc<dyn Disk>, 1));
    // What the first transaction group asks of the disk, which is the last that it takes.
    let first = disk_of(&world.fork());
    let pool = pool_on(vec![Arc::clone(&first) as Arc<dyn Disk>]).await.unwrap();
    let mut cx = open::open(pool, going_on()).await.unwrap();
    let txg = cx.txg;
    cx.sync_txg(txg, (quiet().now)(), Work::default()).await.unwrap();
    drop(cx);

    let disk = disk_of(&world);
    let refuses = Fault::anywhere(On::Write, Effect::Error(std::io::ErrorKind::Other));
    disk.inject(refuses.after(first.counts().writes));
    let pool = pool_on(vec![Arc::clone(&disk) as Arc<dyn Disk>]).await.unwrap();
    let started = tokio::time::timeout(PATIENCE, start(pool)).await.expect("no import hangs");
    assert!(started.is_err(), "what was replayed cannot be written");
    assert_eq!(world.look().await.unwrap().uberblock().txg, txg, "logs were claimed");
    let let_go = async {
        while Arc::strong_count(&disk) > 1 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, let_go).await.expect("nobody has the disk any more");
    disk.heal();
    let engine = start(pool_on(vec![disk as Arc<dyn Disk>]).await.unwrap()).await.unwrap();
    assert_holds(&engine, &twins, "opened again").await;
    engine.end(Ending::Export).await.unwrap();
    world.verify("opened again").await;
}

/// A power cut while a log that the real module left is replayed.
#[tokio::test]
async fn a_power_cut_while_a_foreign_log_is_replayed_changes_nothing() {
    const CUTS: usize = 12;
    let fixture = fixtures::pool("crash-main");
    let expected = expected(&fixture);
    let before = in_memory(&fixture);
    let recording = recorded(&before).await;
    let mut random = StdRng::seed_from_u64(7);
    for number in 0..=CUTS {
        let cut = recording.events.len() * number / CUTS;
        let media = replay(&before, &recording, cut, || random.random()).await;
        let engine = start_on(&media).await;
        assert_eq!(sums(&engine, expected.keys()).await, expected, "cut after {cut}");
        engine.end(Ending::Close).await.unwrap();
    }
}

/// A volume that may not be written to, or has become smaller, is what its clients left it as far as it goes.
#[tokio::test(start_paused = true)]
async fn neither_readonly_nor_another_size_is_in_the_way() {
    let (world, mut twins) = cut_off("d0", 8).await;
    // Claimed and changed in one transaction group, and cut off before anything was replayed.
    let mut cx = open::open(pool_on(as_disks(&world.media)).await.unwrap(), going_on()).await.unwrap();
    let mut tasks = Vec::new();
    for (name, property, value) in [("tank/a", "readonly", 1), ("tank/b", "volsize", 128 << 10)] {
        let properties: Properties = [(property.to_owned(), Stored::Number(value))].into();
        tasks.push(Task {
            is_snapshot: false,
            run: Box::new(move |cx| {
                Box::pin(async move {
                    dsl::set(cx, name, &properties).await.unwrap();
                    Ok(())
                })
            }),
            done: Box::new(|outcome| outcome.unwrap()),
        });
    }
    let (txg, now) = (cx.txg, cx.now);
    cx.sync_txg(txg, now, Work { tasks, ..Work::default() }).await.unwrap();
    drop(cx);
    twins.get_mut("tank/b").unwrap().truncate(128 << 10);

    let engine = start_on(&world.media).await;
    assert_eq!(engine.replayed().volumes, 2, "{:?}", engine.replayed());
    let geometry = engine.volume("tank/a").await.unwrap().geometry();
    assert!(geometry.read_only && geometry.size == 256 << 10);
    assert_holds(&engine, &twins, "readonly=on, smaller").await;
    engine.end(Ending::Export).await.unwrap();
    world.verify("replayed").await;
}

/// A log whose replay was not tried goes with its dataset, or with a rollback, and leaves nothing behind.
#[tokio::test(start_paused = true)]
async fn a_log_that_was_not_replayed_goes_with_its_content() {
    let (world, _) = cut_off("d0", 9).await;
    let mut cx = open::open(pool_on(as_disks(&world.media)).await.unwrap(), going_on()).await.unwrap();
    let (txg, now) = (cx.txg, cx.now);
    cx.sync_txg(txg, now, Work::default()).await.unwrap();
    let step = async |cx: &mut Syncer, is_snapshot: bool, name: &'static str| {
        let run: Box<dyn for<'a> FnOnce(&'a mut Syncer) -> TaskFuture<'a> + Send> = match is_snapshot {
            true => Box::new(move |cx| {
                Box::pin(async move {
                    dsl::snapshot(cx, &[name.to_owned()], &Properties::new()).await.unwrap();
                    Ok(())
                })
            }),
            false => Box::new(move |cx| {
                Box::pin(async move {
                    match name.contains('@') {
                        true => dsl::rollback(cx, name).await.unwrap(),
                        false => dsl::destroy_head(cx, name).await.unwrap(),
                    }
                    Ok(())
                })
            }),
        };
        let task = Task { is_snapshot, run, done: Box::new(|outcome| outcome.unwrap()) };
        let (txg, now) = (cx.txg + 1, cx.now);
        cx.sync_txg(txg, now, Work { tasks: vec![task], ..Work::default() }).await.unwrap();
    };
    step(&mut cx, true, "tank/a@s").await;
    step(&mut cx, false, "tank/a@s").await;
    step(&mut cx, false, "tank/b").await;
    drop(cx);
    let engine = start_on(&world.media).await;
    assert_eq!(engine.replayed().records, 0, "nothing is left to be replayed");
    for _ in 0..3 {
        engine.sync().await.unwrap();
    }
    engine.end(Ending::Export).await.unwrap();
    world.verify("given up").await;
}

/// Claims the logs, and is cut off before anything is replayed.
pub(crate) async fn only_claim(world: &World) {
    let mut cx = open::open(pool_on(as_disks(&world.media)).await.unwrap(), going_on()).await.unwrap();
    let (txg, now) = (cx.txg, cx.now);
    cx.sync_txg(txg, now, Work::default()).await.unwrap();
}

/// Where the block in the middle of a log is: its top-level device, and the bytes of a leaf.
async fn middle_of(world: &World, name: &str) -> (u32, Range<u64>) {
    let pool = pool_on(as_disks(&world.media)).await.unwrap();
    let (head, blocks) = chain_of(&pool, name).await;
    assert!(head.header.claim_txg != 0 && blocks.len() > 4, "{} blocks", blocks.len());
    let dva = blocks[blocks.len() / 2].0.dvas().next().unwrap();
    (dva.vdev, dva.offset + DATA_OFFSET..dva.offset + DATA_OFFSET + dva.asize)
}

/// Whoever says `-m` gives up what is damaged, and was not told of which volume that was.
#[tokio::test(start_paused = true)]
async fn a_claimed_log_that_is_damaged_is_replayed_up_to_there_with_m_and_its_volume_is_named() {
    let (world, twins) = cut_off("d0", 17).await;
    only_claim(&world).await;
    let (_, range) = middle_of(&world, "tank/a").await;
    let len = (range.end - range.start) as usize;
    world.media[0].write(range.start, vec![0xa5_u8; len].into()).await.unwrap();
    let engine = start_on(&world.media).await;
    let replayed = engine.replayed();
    let failed: Vec<&String> = replayed.failed.values().collect();
    let is_told = |why: &str| why.contains("tank/a") && why.contains("damaged behind block");
    assert!(failed.len() == 1 && is_told(failed[0]) && failed[0].contains("with -m"), "{replayed:?}");
    engine.end(Ending::Export).await.unwrap();

    let found = import::scan(&Sources::disks(as_disks(&world.media))).await;
    let asked = import::OpenOptions {
        force: true,
        missing_log: true,
        unreadable_log: true,
        ..import::OpenOptions::default()
    };
    let engine = start(import::open(&found.pools[0], &asked).await.unwrap()).await.unwrap();
    let replayed = engine.replayed();
    assert!(replayed.failed.is_empty() && replayed.records > 0, "{replayed:?}");
    let [(name, why)] = &replayed.lost[..] else { panic!("{replayed:?}") };
    assert!(name == "tank/a" && why.contains("damaged behind block"), "{replayed:?}");
    assert!(replayed.notes().iter().any(|note| note.contains("tank/a") && note.contains("lost")));
    let volume = engine.volume("tank/a").await.unwrap();
    assert!(content(&*volume).await != twins["tank/a"], "there was something to lose");
    let other = engine.volume("tank/b").await.unwrap();
    assert!(content(&*other).await == twins["tank/b"], "nothing of others");
    drop((volume, other));
    engine.end(Ending::Export).await.unwrap();
}

/// A log was read once more to be given back. What was behind a block that its device did not give then stayed allocated for
/// good, and with it a log device could never be removed.
#[tokio::test(start_paused = true)]
async fn a_replayed_log_is_given_back_even_if_it_cannot_be_read_again() {
    let (world, twins) = cut_off("mirror d0 d1 log d2", 18).await;
    only_claim(&world).await;
    let (top, range) = middle_of(&world, "tank/a").await;
    assert_eq!(top, 1, "it is on the log device");
    let disk = FaultDisk::new(Arc::clone(&world.media[2]) as Arc<dyn Disk>, 1);
    let refused = Fault::new(On::Read, range, Effect::Error(std::io::ErrorKind::Other));
    disk.inject(refused.after(1));
    let mut disks = as_disks(&world.media);
    disks[2] = Arc::new(disk) as Arc<dyn Disk>;
    let engine = start(pool_on(disks).await.unwrap()).await.unwrap();
    let replayed = engine.replayed();
    assert!(replayed.volumes == 2 && replayed.failed.is_empty() && replayed.lost.is_empty(), "{replayed:?}");
    assert_holds(&engine, &twins, "read once").await;
    engine.end(Ending::Export).await.unwrap();
    world.verify("read once").await;
}

/// Either is what an administrator is told to do about it. Neither helped: the volume was refused until the next import, and
/// another one that got its number as well.
#[tokio::test(start_paused = true)]
async fn a_volume_is_refused_no_longer_than_the_log_that_could_not_be_replayed_is_there() {
    let (world, _) = cut_off("d0", 15).await;
    let pool = pool_on(as_disks(&world.media)).await.unwrap();
    let (head, blocks) = chain_of(&pool, "tank/a").await;
    drop(pool);
    // What no volume has, behind what can be replayed.
    let (pointer, raw) = blocks.last().unwrap();
    let mut bytes = raw.to_vec();
    let kind = u64::from(TxType::Create.id());
    bytes[CHAIN_BYTES..CHAIN_BYTES + 8].copy_from_slice(&kind.to_le_bytes());
    put_sealed(&world, pointer, bytes).await;
    for is_rolled_back in [true, false] {
        let world = world.fork();
        let engine = start_on(&world.media).await;
        assert!(engine.replayed().failed.contains_key(&head.objset), "{:?}", engine.replayed());
        assert!(matches!(engine.volume("tank/a").await, Err(OpenError::Unreplayed(_))));
        if is_rolled_back {
            let size = Properties::from([("volsize".to_owned(), Stored::Number(512 << 10))]);
            engine.run(move |cx| Box::pin(async move { dsl::set(cx, "tank/a", &size).await })).await.unwrap();
            let opened = engine.volume("tank/a").await;
            assert!(matches!(opened, Err(OpenError::Unreplayed(_))), "another size is no other content");
            let names = vec!["tank/a@s".to_owned()];
            engine
                .run_snapshot(move |cx| {
                    Box::pin(async move { dsl::snapshot(cx, &names, &Properties::new()).await })
                })
                .await
                .unwrap();
            engine.run(|cx| Box::pin(async move { dsl::rollback(cx, "tank/a@s").await })).await.unwrap();
        } else {
            engine.run(|cx| Box::pin(async move { dsl::destroy_head(cx, "tank/a").await })).await.unwrap();
            assert!(engine.replayed().failed.is_empty(), "its number is anybody's now");
            let new = NewVolume {
                name: "tank/a".to_owned(),
                size: 256 << 10,
                block: 8192,
                properties: Properties::new(),
                parents: false,
            };
            engine.run(move |cx| Box::pin(async move { dsl::create_volume(cx, &new).await })).await.unwrap();
        }
        let notes = engine.replayed().notes();
        assert!(notes.is_empty(), "{notes:?}");
        let volume = engine.volume("tank/a").await.unwrap();
        volume.write(0, data(vec![9; 8192]), Durability::Stable(Asked::Fua)).await.unwrap();
        assert!(content(&*volume).await[..8192] == [9; 8192]);
        drop(volume);
        engine.end(Ending::Export).await.unwrap();
        world.verify("the log is gone").await;
    }
}

/// A log block that points to more data than is in memory at a time. What is read later was written later.
#[tokio::test(start_paused = true)]
async fn the_records_of_a_block_that_points_to_much_data_are_replayed_in_their_order() {
    const LARGE: u64 = 128 << 10;
    const RECORDS: u64 = 600;
    const PLACES: u64 = 50;
    const START: u64 = 8 << 20;
    let fua = Durability::Stable(Asked::Fua);
    let (mut world, running) = World::create("d0", 12, 96 << 20, 16).await;
    let source = running.volume("tank/source", 3 * LARGE, LARGE as u32, plain()).await;
    for number in 0..3_u8 {
        let bytes = vec![number + 1; LARGE as usize];
        source.write(u64::from(number) * LARGE, data(bytes), Durability::Cached).await.unwrap();
    }
    let volume = running.volume("tank/a", 16 << 20, 8192, plain()).await;
    volume.write(0, data(vec![1; 512]), fua).await.unwrap();
    running.engine.sync().await.unwrap();
    // So much at once gets the longest log blocks.
    for _ in 0..4 {
        volume.write(0, data(vec![1; 1 << 20]), fua).await.unwrap();
    }
    drop((source, volume));
    world.cut(running).await;

    let pool = pool_on(as_disks(&world.media)).await.unwrap();
    let source = pool.open_volume("tank/source").await.unwrap();
    let mut sources = Vec::new();
    for number in 0..3 {
        let found = source.data().seek(&mut Cursor::default(), 0, number).await.unwrap();
        let Step::Block(pointer) = found else { panic!("{found:?}") };
        sources.push(pointer);
    }
    let (_, blocks) = chain_of(&pool, "tank/a").await;
    drop((source, pool));
    let (pointer, raw) = blocks.iter().rfind(|(pointer, _)| pointer.psize() == LARGE).unwrap();
    let word = |at: usize| u64::from_le_bytes(raw[CHAIN_BYTES + at..][..8].try_into().unwrap());
    let (txg, sequence) = (word(16), word(24));
    let mut bytes = raw[..CHAIN_BYTES].to_vec();
    for number in 0..RECORDS {
        let to = WriteData::Indirect(sources[number as usize % 3]);
        let offset = START + number % PLACES * LARGE;
        let body = Body::Write { object: 1, offset, length: LARGE, data: to };
        let record = Record { case_insensitive: false, txg, sequence: sequence + number, body };
        bytes.extend(record.encode(Order::Little).unwrap());
    }
    let used = bytes.len() as u64;
    bytes[136..144].copy_from_slice(&used.to_le_bytes());
    bytes.resize(LARGE as usize, 0);
    put_sealed(&world, pointer, bytes).await;

    let engine = start_on(&world.media).await;
    let replayed = engine.replayed();
    assert!(replayed.failed.is_empty() && replayed.records >= RECORDS, "{replayed:?}");
    let volume = engine.volume("tank/a").await.unwrap();
    let all = content(&*volume).await;
    for place in 0..PLACES {
        let last = RECORDS - PLACES + place;
        let at = (START + place * LARGE) as usize;
        let expected = (last % 3) as u8 + 1;
        assert!(all[at..at + LARGE as usize].iter().all(|byte| *byte == expected), "place {place}");
    }
    drop(volume);
    engine.end(Ending::Export).await.unwrap();
    world.verify("replayed").await;
}

/// Puts other bytes in the place of a log block, as if they belonged there.
async fn put_sealed(world: &World, pointer: &BlkPtr, mut bytes: Vec<u8>) {
    let verifier = Checksum(pointer.checksum());
    embedded::seal(embedded::Kind::Zilog2, &mut bytes, verifier, codec::Order::Little).unwrap();
    let offset = pointer.dvas().next().unwrap().offset + DATA_OFFSET;
    world.media[0].write(offset, bytes.into()).await.unwrap();
}

/// Nobody had counted the references that OpenZFS gives up with a claimed log, also where records are in the pool already: what
/// a file had of cloned blocks was free as soon as OpenZFS mounted its file system.
#[tokio::test(start_paused = true)]
async fn a_log_with_cloned_blocks_is_not_claimed_even_if_they_are_in_the_pool() {
    let (world, _) = cut_off("d0", 19).await;
    let pool = pool_on(as_disks(&world.media)).await.unwrap();
    let synced = pool.uberblock().txg;
    let (_, blocks) = chain_of(&pool, "tank/a").await;
    let shared = pool.dsl().await.unwrap().lookup("tank/b").await.unwrap().phys().unwrap().bp;
    drop(pool);
    let (pointer, raw) = blocks.last().unwrap();
    let sequence = u64::from_le_bytes(raw[CHAIN_BYTES + 24..][..8].try_into().unwrap());
    let pointers = shared.encode(Order::Little);
    let body =
        Body::CloneRange { object: 1, offset: 0, length: 8192, block_bytes: 8192, pointers: &pointers };
    let record = Record { case_insensitive: false, txg: synced, sequence, body };
    let mut bytes = raw[..CHAIN_BYTES].to_vec();
    bytes.extend(record.encode(Order::Little).unwrap());
    let used = bytes.len() as u64;
    bytes[136..144].copy_from_slice(&used.to_le_bytes());
    bytes.resize(raw.len(), 0);
    put_sealed(&world, pointer, bytes).await;

    let error = start(pool_on(as_disks(&world.media)).await.unwrap()).await.map(drop).unwrap_err();
    assert!(error.contains("tank/a") && error.contains("cloned blocks"), "{error}");
    assert!(error.contains("block_cloning"), "and what comes of the remedy: {error}");
    assert_eq!(world.look().await.unwrap().uberblock().txg, synced, "nothing was claimed");
}

/// Without its log device a pool is opened only if that is asked for, and then says what is lost.
#[tokio::test(start_paused = true)]
async fn without_its_log_device_a_pool_goes_on_as_of_its_last_transaction_group() {
    let (world, twins) = cut_off("mirror d0 d1 log d2", 10).await;
    let rest: Vec<Arc<dyn Disk>> = as_disks(&world.media[..2]);
    let error = pool_on(rest.clone()).await.unwrap_err();
    assert!(error.contains("'-m'"), "{error}");
    let found = import::scan(&Sources::disks(rest)).await;
    let options = import::OpenOptions { force: true, missing_log: true, ..import::OpenOptions::default() };
    let pool = import::open(&found.pools[0], &options).await.unwrap();
    let engine = start(pool).await.unwrap();
    let replayed = engine.replayed();
    let lost: Vec<&str> = replayed.lost.iter().map(|(name, _)| name.as_str()).collect();
    assert!(lost.contains(&"tank/a") && lost.contains(&"tank/b"), "{replayed:?}");
    assert!(replayed.notes().iter().any(|note| note.contains("tank/a") && note.contains("lost")));
    let volume = engine.volume("tank/a").await.unwrap();
    assert!(content(&*volume).await != twins["tank/a"], "there was something to lose");
    volume.write(0, data(vec![9; 8192]), Durability::Stable(Asked::Fua)).await.unwrap();
    volume.write(0, data(vec![8; 8192]), Durability::Stable(Asked::Fua)).await.unwrap();
    drop(volume);
    engine.end(Ending::Export).await.unwrap();
    // The device is back.
    let pool = pool_on(as_disks(&world.media)).await.unwrap();
    let report = pool::verify::verify(&pool, &Arc::default()).await;
    assert!(report.is_clean(), "{report:#?}");
    let engine = start(pool).await.unwrap();
    let volume = engine.volume("tank/a").await.unwrap();
    assert!(content(&*volume).await[..8192] == [8; 8192], "it went on without the device");
}

/// Names a log in the object set of `name` as OpenZFS leaves one there: a block that is allocated, and was never written. It was
/// claimed if there are flags.
pub(crate) async fn leave_log(running: &Running, name: &str, flags: u64) {
    let objset = running.engine.view().dsl().await.unwrap().lookup(name).await.unwrap().object();
    let leave = running.engine.run(move |cx| {
        Box::pin(async move {
            let place = cx.out.alloc.allocate(4096, 1, Purpose::Log).await?[0];
            let log = BlkPtr::stored(&blkptr::Stored {
                dvas: [place, Dva::default(), Dva::default()],
                lsize: 4096,
                psize: 4096,
                compression_id: 2,
                checksum_id: 9,
                object_type: ObjectType::INTENT_LOG,
                level: 0,
                dedup: false,
                order: Order::Little,
                birth: cx.txg,
                physical_birth: cx.txg,
                fill: 0,
                checksum: ChainWords { chain: [5, 6], objset, sequence: 1 }.to_words(),
            });
            let header = Header {
                claim_txg: if flags == 0 { 0 } else { cx.txg },
                replay_seq: 0,
                log: log.unwrap(),
                claim_block_seq: u64::from(flags != 0),
                flags,
                claim_record_seq: 0,
            };
            dsl::set_log(cx, objset, Some(&header)).await?;
            Ok(())
        })
    });
    leave.await.unwrap();
}

/// What was exported was called damaged: each dataset with a log on the device that stayed behind had lost writes, it was said.
#[tokio::test(start_paused = true)]
async fn a_pool_that_was_exported_has_lost_nothing_with_its_log_device() {
    let (world, running) = World::create("mirror d0 d1 log d2", 12, 64 << 20, 20).await;
    let create = running.engine.run(|cx| {
        Box::pin(async move { dsl::create_filesystem(cx, "tank/f", &Properties::new(), false).await })
    });
    create.await.unwrap();
    let volume = running.volume("tank/v", 1 << 20, 8192, Properties::new()).await;
    for _ in 0..3 {
        volume.write(0, data(vec![7; 8192]), Durability::Stable(Asked::Fua)).await.unwrap();
    }
    drop(volume);
    leave_log(&running, "tank/f", 0).await;
    running.export().await;
    world.verify("with its log device").await;

    let found = import::scan(&Sources::disks(as_disks(&world.media[..2]))).await;
    let options = import::OpenOptions { force: true, missing_log: true, ..import::OpenOptions::default() };
    let engine = start(import::open(&found.pools[0], &options).await.unwrap()).await.unwrap();
    let replayed = engine.replayed();
    assert!(replayed.lost.is_empty() && replayed.notes().is_empty(), "{replayed:?}");
    let logs = zil::heads(&engine.view()).await.unwrap();
    assert!(
        logs.iter().all(|head| head.name != "tank/f"),
        "the next crash would make a loss of it: {logs:?}"
    );
    let volume = engine.volume("tank/v").await.unwrap();
    assert!(content(&*volume).await[..8192] == [7; 8192]);
    drop(volume);
    exported(engine).await;
    world.verify("its log device is back").await;
}

/// The blocks of a log, as they are on the devices, with the places they are in.
pub(crate) async fn chain_of(pool: &Pool, name: &str) -> (zil::Head, Vec<(BlkPtr, Bytes)>) {
    let heads = zil::heads(pool).await.unwrap();
    let head = heads.into_iter().find(|head| head.name == name).unwrap();
    let mut reader = zil::Reader::new(pool.io(), head.objset, &head.header);
    let mut blocks = Vec::new();
    while let Some(zil::Found { pointer, at, block: Ok(_) }) = reader.next().await {
        blocks.push((pointer, pool.io().read_raw(&pointer, at).await.unwrap()));
    }
    (head, blocks)
}

/// A real log and what becomes of it when bytes in it change: it ends, earlier or later, and every record that is
/// given out lies in its block.
#[tokio::test]
async fn a_log_of_any_bytes_ends() {
    let fixture = fixtures::pool("crash-main");
    let pool = pool_on(as_disks(&in_memory(&fixture))).await.unwrap();
    let (head, blocks) = chain_of(&pool, "pcrashmain/v1").await;
    assert!(blocks.len() > 3, "{} blocks", blocks.len());
    let mut random = StdRng::seed_from_u64(12);
    let mut lengths = std::collections::BTreeSet::new();
    for _ in 0..4000 {
        let mut mutated = blocks.clone();
        for _ in 0..random.random_range(1..4) {
            let number = random.random_range(0..mutated.len());
            let mut bytes = mutated[number].1.to_vec();
            mutate(&mut bytes, &mut random);
            mutated[number].1 = bytes.into();
        }
        if random.random_ratio(1, 8) {
            // Back to an earlier block, which has its own identity still.
            let (to, pointer) = (random.random_range(1..mutated.len()), mutated[0].0);
            let mut bytes = mutated[to].1.to_vec();
            bytes[8..136].copy_from_slice(&pointer.encode(pointer.order()));
            mutated[to].1 = bytes.into();
        }
        let mut header = head.header.clone();
        if random.random_ratio(1, 4) {
            header.claim_txg = random.random_range(0..50);
            header.claim_block_seq = random.random_range(0..20);
        }
        let mut chain = Chain::new(head.objset, &header);
        let mut length = 0;
        while let Some((pointer, _)) = chain.next() {
            let found = mutated.iter().find(|(known, _)| known.dvas().eq(pointer.dvas()));
            length += 1;
            assert!(length <= blocks.len() + 1, "it goes on and on");
            let Some(block) = chain.follow(found.map(|(_, raw)| raw.clone())) else { continue };
            let total: usize = block.records().map(|record| look(&record)).sum();
            assert!(total <= block.record_bytes());
        }
        assert!(chain.end().is_some());
        lengths.insert(length);
    }
    assert!(lengths.len() > 3, "changes end it at different places: {lengths:?}");
}

/// Everything that is done with a record, for its panics.
fn look(record: &zil::LogRecord) -> usize {
    let is_write = record.tx() == Some(TxType::Write);
    assert!(is_write || (record.indirect().is_none() && zil::written(record) == 0));
    assert!(!record.is_empty() && record.len().is_multiple_of(8));
    record.len()
}

fn mutate(bytes: &mut [u8], random: &mut StdRng) {
    // Where it hurts: the chain, and the beginnings of records.
    let at = match random.random_range(0..3) {
        0 => random.random_range(0..CHAIN_BYTES),
        1 => CHAIN_BYTES + random.random_range(0..64),
        _ => random.random_range(0..bytes.len()),
    };
    match random.random_range(0..4) {
        0 => bytes[at] ^= 1 << random.random_range(0..8),
        1 => bytes[at] = random.random(),
        _ => {
            let at = at / 8 * 8;
            let end = (at + 8).min(bytes.len());
            let value = [0, 1, 31, 192, 1 << 20, u64::MAX, u64::MAX - 7, 1 << 63][random.random_range(0..8)];
            bytes[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
        }
    }
}

/// Records that make no sense, in blocks whose checksums are right: the pool is opened or refused, with a reason, and
/// whatever happens it is consistent.
#[tokio::test(start_paused = true)]
async fn forged_logs_are_refused_or_end() {
    let (world, _) = cut_off("d0", 13).await;
    let pool = pool_on(as_disks(&world.media)).await.unwrap();
    let (_, blocks) = chain_of(&pool, "tank/a").await;
    drop(pool);
    let mut random = StdRng::seed_from_u64(14);
    let (mut opened, mut closed, mut refused) = (0, 0, 0);
    for round in 0..80 {
        let forged = world.fork();
        for _ in 0..random.random_range(1..4) {
            let (pointer, raw) = &blocks[random.random_range(0..blocks.len())];
            let mut bytes = raw.to_vec();
            mutate(&mut bytes, &mut random);
            if round % 2 == 0 {
                // Any record type there is.
                bytes[CHAIN_BYTES..CHAIN_BYTES + 8]
                    .copy_from_slice(&random.random_range(0_u64..26).to_le_bytes());
            }
            let verifier = Checksum(pointer.checksum());
            if embedded::seal(embedded::Kind::Zilog2, &mut bytes, verifier, codec::Order::Little).is_err() {
                // Nothing that could be sealed is left of it: a torn block.
                bytes.truncate(bytes.len() / 2);
            }
            let offset = pointer.dvas().next().unwrap().offset + DATA_OFFSET;
            forged.media[0].write(offset, bytes.into()).await.unwrap();
        }
        match start(pool_on(as_disks(&forged.media)).await.unwrap()).await {
            Ok(engine) => {
                let replayed = engine.replayed();
                match replayed.failed.is_empty() {
                    true => opened += 1,
                    false => {
                        closed += 1;
                        let error = engine.volume("tank/a").await.unwrap_err().to_string();
                        assert!(error.contains("tank/a"), "{error}");
                    }
                }
                engine.end(Ending::Export).await.unwrap();
                forged.verify("forged").await;
            }
            Err(error) => {
                assert!(error.contains("tank/a"), "{error}");
                refused += 1;
            }
        }
    }
    println!(
        "forged logs: {opened} replayed as far as they go, {closed} volumes closed, {refused} pools refused"
    );
    assert!(opened > 0 && closed > 0, "{opened} {closed} {refused}");
}
