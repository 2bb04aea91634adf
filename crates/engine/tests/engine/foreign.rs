//! Pools that OpenZFS made: Millpond goes on with them, or says why not, and changes nothing then.
#![expect(clippy::unwrap_used, reason = "a test that cannot make its world fails")]

use std::{path::Path, pin::Pin, process::Command, sync::Arc};

use crate::{
    files::{check, export, reopen, sync},
    support::{POOL, Running, World, content, data, noise, quiet},
};
use block::{BlockVolume as _, Durability};
use disk::{Disk, MemDisk};
use engine::{
    EngineError,
    create::{self, DeviceFacts, Plan, VdevSpec},
    dsl::{self, NewVolume, OpError, Properties, Stored},
    mos::{DIRECTORY, bpobj, zap},
    sync::{Syncer, Task, Work},
    write::labels,
};
use fixtures::{ALL, Fixture};
use ondisk::{
    Order,
    dnode::ObjectType,
    dsl::DatasetPhys,
    label::{DATA_OFFSET, Multihost},
    nvlist::{NvList, Value},
    spacemap::Header,
    uberblock::Uberblock,
};
use pool::import::{self, Sources};
use tempfile::TempDir;

/// Fixtures that are refused, and a word of the reason. All others are continued.
const REFUSED: &[(&str, &str)] = &[
    ("dedup", "fast_dedup"),
    ("expansion", "was expanded"),
    ("gang-dynamic", "dynamic_gang_header"),
    ("removal", "indirect-0"),
    ("ztest-raidz1", "inside of mirror-0"),
];
/// Fixtures in which something is wrong on purpose, by how their names begin.
const DAMAGED: [&str; 3] = ["corrupt-", "degraded-", "missing-"];
/// Parts into which the fixtures are divided, to be judged side by side.
const PARTS: usize = 4;

/// Runs one command in a transaction group of its own.
async fn command(
    cx: &mut Syncer,
    run: impl for<'a> FnOnce(&'a mut Syncer) -> Pin<Box<dyn Future<Output = Result<(), OpError>> + Send + 'a>>
    + Send
    + 'static,
) {
    let task = Task {
        is_snapshot: false,
        run: Box::new(move |cx| Box::pin(async move { run(cx).await.map_err(|error| panic!("{error}")) })),
        done: Box::new(|outcome| outcome.unwrap()),
    };
    let (txg, now) = (cx.txg, cx.now);
    cx.sync_txg(txg, now, Work { tasks: vec![task], ..Work::default() }).await.unwrap();
    cx.txg += 1;
}

/// Opens the pool, makes a volume and a snapshot, exports, opens and exports again.
async fn continued(fixture: &Fixture) -> Result<TempDir, String> {
    let copy = fixture.copy();
    let dir = copy.path();
    let before: Vec<_> = fixture.images().iter().map(|path| std::fs::metadata(path).unwrap().len()).collect();
    let mut cx = match reopen(dir, 1).await {
        Ok(cx) => cx,
        Err(error) => {
            for (image, size) in fixture.images().iter().zip(before) {
                let same = dir.join(image.file_name().unwrap());
                assert_eq!(std::fs::metadata(&same).unwrap().len(), size);
                assert!(same_content(image, &same), "{}: a refused pool was written to", fixture.name);
            }
            return Err(error);
        }
    };
    sync(&mut cx).await;
    let volume = format!("{}/millpond", cx.name);
    let new = NewVolume {
        name: volume.clone(),
        size: 8 << 20,
        block: 16 << 10,
        properties: Properties::new(),
        parents: false,
    };
    command(&mut cx, move |cx| Box::pin(async move { dsl::create_volume(cx, &new).await })).await;
    let names = [format!("{volume}@first")];
    command(&mut cx, move |cx| Box::pin(async move { dsl::snapshot(cx, &names, &Properties::new()).await }))
        .await;
    for _ in 0..3 {
        sync(&mut cx).await;
    }
    export(cx).await;
    let mut cx = reopen(dir, 2).await.unwrap();
    sync(&mut cx).await;
    export(cx).await;
    Ok(copy)
}

#[tokio::test]
async fn a_pool_at_the_last_of_all_transaction_groups_is_refused() {
    for txg in [u64::MAX, 1 << 63, (1 << 63) - 1] {
        let Some(copy) = ALL.iter().find_map(|name| fixtures::try_pool(name)).map(|fixture| fixture.copy())
        else {
            return;
        };
        let cx = reopen(copy.path(), 1).await.unwrap();
        let uberblock = Uberblock { txg, ..cx.uberblock };
        let (reports, suspension) = (cx.out.reports(), cx.out.suspension());
        let writer = labels::Writer { reports: &reports, suspension: &suspension };
        labels::commit(&cx.io.tree(), &uberblock, None, Multihost::Off, &[], writer).await.unwrap();
        drop(cx);
        let error = reopen(copy.path(), 1).await.map(drop).unwrap_err();
        assert!(error.contains(&format!("after transaction group {txg} there is none")), "{error}");
    }
}

/// It was opened, and the first client who overwrote what the snapshot has was the end of it: no transaction group with that
/// could be written, after the next import neither.
#[tokio::test(start_paused = true)]
async fn a_pool_with_a_deadlist_as_it_was_before_version_26_is_refused() {
    let (world, running) = World::create("d0", 12, 96 << 20, 41).await;
    let name = format!("{POOL}/v");
    drop(running.volume(&name, 8 << 20, 16384, Properties::new()).await);
    let names = [format!("{name}@s")];
    let snapshot = running
        .engine
        .run_snapshot(move |cx| Box::pin(async move { dsl::snapshot(cx, &names, &Properties::new()).await }));
    snapshot.await.unwrap();
    running.engine.sync().await.unwrap();
    let view = running.engine.view();
    let head = view.dsl().await.unwrap().lookup(&name).await.unwrap().object();
    drop(view);
    let old = running.engine.run(move |cx| {
        Box::pin(async move {
            let traits = cx.out.traits();
            let list = bpobj::create(&mut cx.mos, &traits, 128 << 10).await?;
            let mut phys = DatasetPhys::decode(&cx.mos.bonus(head).await?, Order::Little).unwrap();
            phys.deadlist = list;
            cx.mos.set_bonus(head, &phys.encode(Order::Little)).await?;
            Ok(())
        })
    });
    old.await.unwrap();
    running.export().await;
    let error = world.try_open(quiet()).await.map(drop).unwrap_err();
    assert!(error.contains(&format!("'{name}': ")) && error.contains("before 26"), "{error}");
}

/// Takes these snapshots, and gives their objects.
async fn taken(running: &Running, names: &[String]) -> Vec<u64> {
    let mut objects = Vec::new();
    for name in names {
        let taken = [name.clone()];
        let snapshot = running.engine.run_snapshot(move |cx| {
            Box::pin(async move { dsl::snapshot(cx, &taken, &Properties::new()).await })
        });
        snapshot.await.unwrap();
        let view = running.engine.view();
        objects.push(view.dsl().await.unwrap().lookup(name).await.unwrap().object());
    }
    objects
}

/// Lists holds of these snapshots as a `zfs send` does: they end with it.
async fn list_as_temporary(cx: &mut Syncer, objects: &[u64]) -> Result<(), EngineError> {
    let list = zap::create(&mut cx.mos, ObjectType(41), 0).await?;
    zap::set_u64(&mut cx.mos, DIRECTORY, "tmp_userrefs", list).await?;
    for object in objects {
        zap::set_u64(&mut cx.mos, list, &format!("{object:x}-.send-1-1"), cx.now).await?;
    }
    Ok(())
}

/// They were kept for ever, and the snapshots with them.
#[tokio::test(start_paused = true)]
async fn holds_of_a_send_that_died_with_its_host_are_gone_after_the_import() {
    let (world, running) = World::create("d0", 12, 96 << 20, 42).await;
    let volume = format!("{POOL}/v");
    drop(running.volume(&volume, 8 << 20, 16384, Properties::new()).await);
    let names = ["a", "b", "c"].map(|name| format!("{volume}@{name}"));
    let mut objects = taken(&running, &names).await;
    // What is not there any more, and what is no snapshot.
    objects.extend([1 << 20, 1]);
    let [_, deferred, held] = names.clone();
    let died = running.engine.run(move |cx| {
        Box::pin(async move {
            dsl::hold(cx, ".send-1-1", &names).await?;
            dsl::hold(cx, "kept", &[held]).await?;
            dsl::destroy_snapshots(cx, &[deferred], true).await?;
            Ok(list_as_temporary(cx, &objects).await?)
        })
    });
    died.await.unwrap();
    running.export().await;

    let running = world.open().await;
    let view = running.engine.view();
    let list = view.directory().get_u64("tmp_userrefs").await.unwrap().unwrap();
    let list = pool::zap::Zap::open_in(view.mos(), list).await.unwrap();
    assert!(list.numbers().await.unwrap().is_empty());
    let mut left = Vec::new();
    for snapshot in view.dsl().await.unwrap().lookup(&volume).await.unwrap().snapshots().await.unwrap() {
        let holds = snapshot.holds().await.unwrap();
        let tags = holds.into_iter().map(|hold| hold.tag).collect::<Vec<_>>();
        left.push((snapshot.last_name().to_owned(), tags));
    }
    assert_eq!(left, [("a".to_owned(), vec![]), ("c".to_owned(), vec!["kept".to_owned()])]);
    drop(view);
    let names = [format!("{volume}@a")];
    let destroyed = running
        .engine
        .run(move |cx| Box::pin(async move { dsl::destroy_snapshots(cx, &names, false).await }));
    destroyed.await.unwrap();
    running.export().await;
    world.verify("after the import").await;
}

/// What came behind it in the list stayed held, at each import again.
#[tokio::test(start_paused = true)]
async fn a_hold_that_cannot_be_read_keeps_no_other_from_being_released() {
    // Whichever comes first in the list.
    for (damaged, other) in [(0, 1), (1, 0)] {
        let (world, running) = World::create("d0", 12, 96 << 20, 43).await;
        let volume = format!("{POOL}/v");
        drop(running.volume(&volume, 8 << 20, 16384, Properties::new()).await);
        let names = ["a", "b"].map(|name| format!("{volume}@{name}"));
        let objects = taken(&running, &names).await;
        let (held, kept) = (names.clone(), format!("{:x}-.send-1-1", objects[damaged]));
        let died = running.engine.run(move |cx| {
            Box::pin(async move {
                dsl::hold(cx, ".send-1-1", &held).await?;
                let phys =
                    DatasetPhys::decode(&cx.mos.bonus(objects[damaged]).await?, Order::Little).unwrap();
                cx.mos.write(phys.user_refs, 0, &[0xff; 8]).await?;
                Ok(list_as_temporary(cx, &objects).await?)
            })
        });
        died.await.unwrap();
        running.export().await;

        let running = world.open().await;
        let view = running.engine.view();
        let snapshot = view.dsl().await.unwrap().lookup(&names[other]).await.unwrap();
        assert!(snapshot.holds().await.unwrap().is_empty());
        let list = view.directory().get_u64("tmp_userrefs").await.unwrap().unwrap();
        let list = pool::zap::Zap::open_in(view.mos(), list).await.unwrap();
        let left = list.numbers().await.unwrap().into_iter().map(|(entry, _)| entry);
        assert_eq!(left.collect::<Vec<_>>(), [kept]);
        drop((snapshot, list, view));
        running.export().await;
    }
}

/// The first block with a checksum that needs one was the end of the pool, after each import again.
#[tokio::test(start_paused = true)]
async fn a_pool_without_a_salt_gets_one() {
    const SALT: &str = "org.illumos:checksum_salt";
    let mut features = create::features("off").unwrap();
    features.push("org.illumos:skein");
    let (world, running) = World::create_having(features, "d0", 12, 96 << 20, 44, Properties::new()).await;
    let forget = running.engine.run(|cx| {
        Box::pin(async move {
            assert!(zap::remove(&mut cx.mos, DIRECTORY, SALT.into()).await?);
            Ok(())
        })
    });
    forget.await.unwrap();
    running.export().await;

    let running = world.open().await;
    let name = format!("{POOL}/v");
    let skein = [("checksum", 12), ("compression", 2)];
    let skein = skein.map(|(name, value)| (name.to_owned(), Stored::Number(value)));
    let volume = running.volume(&name, 8 << 20, 16384, Properties::from(skein)).await;
    volume.write(0, data(vec![7; 65536]), Durability::Cached).await.unwrap();
    running.engine.sync().await.unwrap();
    drop(volume);
    running.export().await;
    world.verify("with its salt").await;

    let running = world.open().await;
    let salt = running.engine.view().directory().get(SALT).await.unwrap().unwrap();
    assert_eq!(salt.be_bytes().len(), 32);
    let volume = running.engine.volume(&name).await.unwrap();
    assert!(content(&*volume).await[..65536].iter().all(|byte| *byte == 7));
    drop(volume);
    running.export().await;
}

/// How many free segments each space map of a pool of one device says there are.
async fn free_segments(world: &World) -> Vec<u64> {
    let view = world.look().await.unwrap();
    let tree = view.tree();
    let top = tree.tops[0].top.as_ref().unwrap();
    let array = view.mos().object(top.metaslab_array).await.unwrap().read_all(1 << 20).await.unwrap();
    let mut segments = Vec::new();
    for object in Order::Little.words(&array).filter(|object| *object != 0) {
        let found = view.mos().dnode(object).await.unwrap();
        let header = Header::decode(&found.dnode.bonus, found.order).unwrap();
        segments.push(header.histogram.unwrap().iter().sum());
    }
    segments
}

/// Whoever frees without having space maps loaded guesses what they have free. Of what was left so nothing was counted, unless
/// something was allocated there.
#[tokio::test(start_paused = true)]
async fn free_segments_that_there_cannot_be_are_counted_when_the_pool_is_opened() {
    // A metaslab has 4096 units.
    const TOO_MANY: u64 = 5000;
    let (world, running) = World::create("d0", 12, 256 << 20, 46).await;
    let volume = running.volume(&format!("{POOL}/v"), 128 << 20, 16384, Properties::new()).await;
    // Full metaslabs: the last transaction group of an export has nothing to do there.
    for piece in 0..12 {
        let bytes = noise(piece, 8 << 20);
        volume.write(piece * (8 << 20), data(bytes), Durability::Cached).await.unwrap();
        running.engine.sync().await.unwrap();
    }
    drop(volume);
    let guess = running.engine.run(|cx| {
        Box::pin(async move {
            for (_, array) in cx.out.alloc.arrays() {
                let array = cx.mos.read(array, 0, 512).await?;
                for object in Order::Little.words(&array).filter(|object| *object != 0) {
                    let mut header = Header::decode(&cx.mos.bonus(object).await?, Order::Little).unwrap();
                    header.histogram.as_mut().unwrap()[0] = TOO_MANY;
                    cx.mos.set_bonus(object, &header.encode(Order::Little)).await?;
                }
            }
            Ok(())
        })
    });
    guess.await.unwrap();
    running.export().await;
    let before = free_segments(&world).await;
    assert!(before.iter().any(|segments| *segments >= TOO_MANY), "{before:?}");

    let running = world.open().await;
    for _ in 0..before.len() {
        running.engine.run(|_| Box::pin(async { Ok(()) })).await.unwrap();
    }
    running.export().await;
    let after = free_segments(&world).await;
    assert!(after.iter().all(|segments| *segments < TOO_MANY), "{after:?} after {before:?}");
    world.verify("counted").await;
}

/// Takes from a device and all below it what names their ZAPs.
fn forget_zaps(list: &mut NvList) {
    for name in ["com.delphix:vdev_zap_top", "com.delphix:vdev_zap_leaf"] {
        list.remove(name);
    }
    for (_, value) in &mut list.pairs {
        match value {
            Value::NvList(below) => forget_zaps(below),
            Value::NvListArray(below) => below.iter_mut().for_each(forget_zaps),
            _ => {}
        }
    }
}

/// Only the ZAPs of devices say what they are for: it was a special device until the pool was opened anew, and an ordinary one, of
/// which nobody could get rid, from then on.
#[tokio::test(start_paused = true)]
async fn a_special_device_is_not_added_to_a_pool_without_zaps_of_devices() {
    const MAP: &str = "com.delphix:vdev_zap_map";
    // Without the map: as before OpenZFS 0.7. With it: as after such a one that had the pool for a while.
    for has_map in [false, true] {
        let (mut world, running) = World::create("mirror d0 d1", 12, 96 << 20, 45).await;
        let forget = running.engine.run(move |cx| {
            Box::pin(async move {
                let map = zap::get_u64(&mut cx.mos, DIRECTORY, MAP).await?.unwrap();
                if !has_map {
                    for (_, object) in zap::numbers(&mut cx.mos, map).await? {
                        cx.mos.free(object).await?;
                    }
                    cx.mos.free(map).await?;
                    zap::remove(&mut cx.mos, DIRECTORY, MAP.into()).await?;
                }
                cx.config.remove("com.delphix:has_per_vdev_zaps");
                forget_zaps(&mut cx.config);
                cx.config_dirty = true;
                Ok(())
            })
        });
        forget.await.unwrap();
        running.export().await;

        let running = world.open().await;
        let new = ["/disks/d2", "/disks/d3"];
        let new = new.map(|path| Arc::new(MemDisk::new(96 << 20).named(path.to_owned())));
        let add = async |layout: &str| {
            let spec = VdevSpec::parse(&layout.split_whitespace().collect::<Vec<_>>()).unwrap();
            let facts = DeviceFacts {
                bytes: 96 << 20,
                block_device: false,
                logical_sector: 512,
                physical_sector: 512,
            };
            let plan = Plan::new(&spec, &[facts; 2], Some(12), true).unwrap();
            let disks = new.clone().map(|disk| disk as Arc<dyn Disk>);
            let adding =
                running.engine.run(move |cx| Box::pin(async move { create::add(cx, &plan, &disks).await }));
            adding.await.map_err(|error| error.to_string())
        };
        let why = add("special mirror /disks/d2 /disks/d3").await.unwrap_err();
        assert!(why.starts_with("the pool's devices have no ZAPs"), "{why}");
        assert_eq!(running.engine.view().tree().tops.len(), 1);
        assert!(new.iter().all(|disk| disk.snapshot(0..DATA_OFFSET).iter().all(|byte| *byte == 0)));

        // An ordinary device needs none. What an old map names will be freed, so it must not be one of this.
        add("mirror /disks/d2 /disks/d3").await.unwrap();
        let named = running.engine.run(|cx| {
            Box::pin(async move {
                let Some(map) = zap::get_u64(&mut cx.mos, DIRECTORY, MAP).await? else { return Ok(0) };
                Ok(zap::numbers(&mut cx.mos, map).await?.len())
            })
        });
        // Those of the mirror and of its two devices.
        assert_eq!(named.await.unwrap(), if has_map { 3 } else { 0 });
        running.export().await;
        world.media.extend(new);
        assert_eq!(world.look().await.unwrap().tree().tops.len(), 2);
        world.verify("with another mirror").await;
    }
}

fn same_content(a: &Path, b: &Path) -> bool {
    let status = Command::new("cmp").arg("-s").arg(a).arg(b).status().unwrap();
    status.success()
}

/// Our own check: it copes with as much damage as the pool does, which the reference checker does not.
async fn verified(dir: &Path) {
    let found = import::scan(&Sources::paths([dir])).await;
    let pool = import::open(&found.pools[0], &import::OpenOptions { force: true, ..Default::default() })
        .await
        .unwrap();
    let report = pool::verify::verify(&pool, &Arc::default()).await;
    assert!(report.is_intact() && report.leaked() == 0, "{:?}", report.problems);
}

/// The same for a pool with wrong bytes on a device: all of it can be repaired, and no space is lost.
async fn intact(dir: &Path) {
    let found = import::scan(&Sources::paths([dir])).await;
    let pool = import::open(&found.pools[0], &import::OpenOptions { force: true, ..Default::default() })
        .await
        .unwrap();
    let report = pool::verify::verify(&pool, &Arc::default()).await;
    assert!(report.is_intact() && report.leaked() == 0, "{report:?}");
}

async fn part(part: usize) {
    let mine = ALL.iter().enumerate().filter(|(i, _)| i % PARTS == part);
    for fixture in mine.filter_map(|(_, name)| fixtures::try_pool(name)) {
        let refused = REFUSED.iter().find(|(name, _)| *name == fixture.name);
        match (continued(&fixture).await, refused) {
            (Ok(dir), None) if DAMAGED.iter().any(|kind| fixture.name.starts_with(kind)) => {
                verified(dir.path()).await;
            }
            // The reference checker does not reconstruct what is wrong on a device of a RAIDZ.
            (Ok(dir), None) if fixture.name.starts_with("corrupt-raidz") => intact(dir.path()).await,
            (Ok(dir), None) => check(dir.path()).unwrap_or_else(|text| panic!("{}: {text}", fixture.name)),
            (Err(error), Some((_, word))) => assert!(error.contains(word), "{}: {error}", fixture.name),
            (Ok(_), Some(_)) => panic!("{}: should have been refused", fixture.name),
            (Err(error), None) => panic!("{}: {error}", fixture.name),
        }
    }
}

#[tokio::test]
async fn what_openzfs_made_is_continued_or_refused_with_a_reason() {
    part(0).await;
}

#[tokio::test]
async fn what_openzfs_made_is_continued_or_refused_with_a_reason_part_2() {
    part(1).await;
}

#[tokio::test]
async fn what_openzfs_made_is_continued_or_refused_with_a_reason_part_3() {
    part(2).await;
}

#[tokio::test]
async fn what_openzfs_made_is_continued_or_refused_with_a_reason_part_4() {
    part(3).await;
}
