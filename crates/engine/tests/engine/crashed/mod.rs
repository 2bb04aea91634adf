//! Pools whose host was cut off, with what was acknowledged in their intent logs: claimed, replayed, and judged by what
//! the real module made of a copy.
//!
//! Here is how such a pool comes about, of the real module's making or of ours, and how it is opened and looked at.

mod forged;
mod interrupted;
mod lost;
mod replayed;

use std::{collections::BTreeMap, path::Path, sync::Arc};

use block::{Asked, BlockVolume as _, Durability};
use bytes::Bytes;
use codec::checksum::{Checksum, embedded};
use disk::{Disk, MemDisk};
use engine::{
    alloc::Purpose,
    dsl::{self, Properties},
    engine::{Ending, Engine},
    open,
    sync::Work,
};
use fixtures::Fixture;
use ondisk::{
    Order,
    blkptr::{self, BlkPtr, Dva},
    dnode::ObjectType,
    label::DATA_OFFSET,
    zil::{ChainWords, Header},
};
use pool::{
    Pool,
    dsl::HeadKind,
    import::{self, Sources},
    zil,
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use sha2::{Digest as _, Sha256};

use crate::{
    files::{check, judge_as},
    support::{Running, World, as_disks, content, data, going_on, quiet},
};

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

pub(crate) async fn pool_on(disks: Vec<Arc<dyn Disk>>) -> Result<Arc<Pool>, String> {
    let found = import::scan(&Sources::disks(disks)).await;
    let candidate = found.pools.first().ok_or("no pool")?;
    let options = import::OpenOptions { force: true, ..import::OpenOptions::default() };
    import::open(candidate, &options).await.map_err(|error| error.to_string())
}

/// The images of a fixture as disks in memory.
fn in_memory(fixture: &Fixture) -> Vec<Arc<MemDisk>> {
    let disk = |path: std::path::PathBuf| {
        Arc::new(MemDisk::from_bytes(&std::fs::read(&path).unwrap()).named(path.display().to_string()))
    };
    fixture.images().into_iter().map(disk).collect()
}

pub(crate) async fn start(pool: Arc<Pool>) -> Result<Arc<Engine>, String> {
    let syncer = open::open(pool, going_on()).await.map_err(|error| error.to_string())?;
    Engine::start(syncer, quiet()).await.map_err(|error| error.to_string())
}

pub(crate) async fn start_on(media: &[Arc<MemDisk>]) -> Arc<Engine> {
    start(pool_on(as_disks(media)).await.unwrap()).await.unwrap()
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

/// Claims the logs, and is cut off before anything is replayed.
pub(crate) async fn only_claim(world: &World) {
    let mut cx = open::open(pool_on(as_disks(&world.media)).await.unwrap(), going_on()).await.unwrap();
    let (txg, now) = (cx.txg, cx.now);
    cx.sync_txg(txg, now, Work::default()).await.unwrap();
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

/// Puts other bytes in the place of a log block, as if they belonged there.
async fn put_sealed(world: &World, pointer: &BlkPtr, mut bytes: Vec<u8>) {
    let verifier = Checksum(pointer.checksum());
    embedded::seal(embedded::Kind::Zilog2, &mut bytes, verifier, codec::Order::Little).unwrap();
    let offset = pointer.dvas().next().unwrap().offset + DATA_OFFSET;
    world.media[0].write(offset, bytes.into()).await.unwrap();
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

pub(crate) async fn assert_holds(engine: &Engine, twins: &BTreeMap<String, Vec<u8>>, what: &str) {
    for (name, twin) in twins {
        let volume = engine.volume(name).await.unwrap();
        assert!(content(&*volume).await == *twin, "{what}: '{name}' is not what was acknowledged");
    }
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
