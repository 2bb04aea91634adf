//! A commit, cut off after every single write and flush: what is on the media then is the state before or the state
//! after, whole. And a commit that some devices do not take.
//!
//! The disks write down what is done to them, and each prefix of that is played on a copy of the media: with all
//! writes of the prefix, and with an arbitrary choice of those that were not flushed.
#![expect(clippy::unwrap_used, reason = "a test that cannot make its world fails")]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::{
    cuts::recorder::{Event, Recording, Tape},
    files::{check, export, sync},
    support::{self, NOW, as_disks, creating, file_of, forgetful::Forgetful},
};
use disk::{Disk, Effect, Fault, FaultDisk, MemDisk, On};
use engine::{
    EngineError,
    create::{self, CreateOptions, Plan, VdevSpec},
    dsl::{self, Properties, Stored},
    engine::{Ending, Engine, Options},
    open,
    sync::Syncer,
    txg::Limits,
    write::labels,
};
use ondisk::label::{CONFIG_BYTES, CONFIG_OFFSET, Geometry, LABEL_BYTES, RING_BYTES, RING_OFFSET};
use pool::{
    Pool,
    import::{self, Sources},
};
use rand::{Rng, SeedableRng, rngs::StdRng};

const SIZE: u64 = 64 << 20;

async fn create_on(layout: &str, disks: &[Arc<dyn Disk>]) -> Syncer {
    let spec = VdevSpec::parse(&layout.split_whitespace().collect::<Vec<_>>()).unwrap();
    let facts = file_of(SIZE);
    let plan = Plan::new(&spec, &vec![facts; disks.len()], Some(12), true).unwrap();
    create::create(&plan, disks, creating("old", 1)).await.unwrap()
}

fn media(count: usize) -> Vec<Arc<MemDisk>> {
    (0..count).map(|n| Arc::new(MemDisk::new(SIZE).named(format!("/disks/{n}")))).collect()
}

fn faulty(media: &[Arc<MemDisk>]) -> Vec<Arc<FaultDisk>> {
    media.iter().map(|disk| Arc::new(FaultDisk::new(Arc::clone(disk) as Arc<dyn Disk>, 5))).collect()
}

async fn import_from(disks: Vec<Arc<dyn Disk>>) -> Result<Arc<Pool>, String> {
    let found = import::scan(&Sources::disks(disks)).await;
    let candidate = found.pools.first().ok_or("no pool")?;
    let options = import::OpenOptions { hostid: 7, ..import::OpenOptions::default() };
    import::open(candidate, &options).await.map_err(|error| error.to_string())
}

fn going_on(rename: Option<&str>) -> open::OpenOptions {
    open::OpenOptions { rename: rename.map(str::to_owned), now: NOW + 1, ..support::going_on() }
}

/// The media after the first `count` events; of what was not flushed by then, `keep` decides.
pub(crate) async fn replay(
    before: &[Arc<MemDisk>],
    recording: &Recording,
    count: usize,
    mut keep: impl FnMut() -> bool,
) -> Vec<Arc<MemDisk>> {
    let media: Vec<_> = before.iter().map(|disk| Arc::new(disk.fork())).collect();
    let disk = |id: &usize| recording.writes[*id].disk;
    let (mut finished, mut flushing, mut durable) = (Vec::new(), BTreeMap::new(), BTreeSet::new());
    for event in &recording.events[..count] {
        match event {
            Event::WriteEnd(id) if recording.writes[*id].through => drop(durable.insert(*id)),
            Event::WriteEnd(id) => finished.push(*id),
            Event::FlushBegin(flush) => {
                let its = finished.iter().copied().filter(|id| disk(id) == recording.flushes[*flush]);
                flushing.insert(*flush, its.collect::<Vec<usize>>());
            }
            Event::FlushEnd(flush) => durable.extend(flushing.remove(flush).unwrap_or_default()),
            Event::WriteBegin(_) | Event::WriteFailed(_) | Event::FlushFailed(_) | Event::Mark => {}
        }
    }
    for event in &recording.events[..count] {
        if let Event::WriteBegin(id) = event
            && (durable.contains(id) || keep())
        {
            let write = &recording.writes[*id];
            media[write.disk].write(write.offset, write.data.clone()).await.unwrap();
        }
    }
    media
}

/// The moments after which something else may be on the media.
pub(crate) fn cuts(recording: &Recording) -> impl Iterator<Item = usize> {
    let changes =
        |event: &Event| matches!(event, Event::WriteBegin(_) | Event::WriteEnd(_) | Event::FlushEnd(_));
    let before = (0..).zip(&recording.events).filter(move |(_, event)| changes(event)).map(|(cut, _)| cut);
    before.chain([recording.events.len()])
}

async fn cut_everywhere(layout: &str, count: usize) {
    let before = media(count);
    let mut cx = create_on(layout, &as_disks(&before)).await;
    sync(&mut cx).await;
    export(cx).await;
    let start = import_from(as_disks(&before)).await.unwrap().uberblock().txg;

    let after: Vec<_> = before.iter().map(|disk| Arc::new(disk.fork())).collect();
    let tape = Tape::new(count, None);
    tape.start();
    let pool = import_from(tape.disks(&after)).await.unwrap();
    let mut cx = open::open(pool, going_on(Some("new"))).await.unwrap();
    sync(&mut cx).await;
    let dirty = tape.mark();
    sync(&mut cx).await;
    let recording = tape.stop();
    assert!(recording.events.len() > dirty, "the second commit writes an uberblock");

    let mut random = StdRng::seed_from_u64(3);
    let mut seen = [0; 3];
    for cut in cuts(&recording) {
        for chance in [100, 0, 50, 50] {
            let media = replay(&before, &recording, cut, || random.random_range(0..100) < chance).await;
            let all = recording.events.len();
            let what = format!("{layout}: cut after {cut} of {all}, {chance} % kept");
            let pool = import_from(as_disks(&media)).await.unwrap_or_else(|error| panic!("{what}: {error}"));
            let committed = pool.uberblock().txg - start;
            seen[committed as usize] += 1;
            let name = if committed == 0 { "old" } else { "new" };
            assert_eq!(pool.name(), name, "{what}: labels tell of another commit than the uberblock");
            assert_eq!(pool.config().str("name"), Some(name), "{what}");
            assert!(pool.tree().leaves().iter().all(|leaf| leaf.is_readable()), "{what}");
            if chance == 100 && cut == all {
                assert_eq!(committed, 2, "{what}: all of it was done");
            }
            if cut == dirty {
                assert!(committed >= 1, "{what}: the first commit had returned");
            }
        }
    }
    assert!(seen.iter().all(|count| *count > 0), "{layout}: each state was met: {seen:?}");
}

#[tokio::test]
async fn a_power_cut_leaves_one_commit_or_the_other() {
    cut_everywhere("a", 1).await;
}

#[tokio::test]
async fn a_power_cut_leaves_one_commit_or_the_other_on_mirrors() {
    cut_everywhere("mirror a b mirror c d", 4).await;
}

#[tokio::test]
async fn a_power_cut_leaves_one_commit_or_the_other_on_raidz_with_a_log() {
    cut_everywhere("raidz a b c log d", 4).await;
}

/// While a pool is created, a power cut leaves no pool at all, or the whole one.
#[tokio::test]
async fn a_pool_is_created_wholly_or_not_at_all() {
    let before = media(2);
    let after: Vec<_> = before.iter().map(|disk| Arc::new(disk.fork())).collect();
    let tape = Tape::new(2, None);
    tape.start();
    let mut cx = create_on("mirror a b", &tape.disks(&after)).await;
    sync(&mut cx).await;
    let recording = tape.stop();
    let mut random = StdRng::seed_from_u64(4);
    let mut seen = [0; 2];
    for cut in cuts(&recording) {
        for chance in [100, 0, 50] {
            let media = replay(&before, &recording, cut, || random.random_range(0..100) < chance).await;
            match import_from(as_disks(&media)).await {
                Ok(pool) => {
                    assert_eq!(pool.uberblock().txg, create::FIRST_TXG);
                    seen[1] += 1;
                }
                Err(error) => {
                    assert_eq!(error, "no pool", "cut after {cut}");
                    seen[0] += 1;
                }
            }
        }
    }
    assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
}

fn save(media: &[Arc<MemDisk>], dir: &std::path::Path) {
    for (n, media) in media.iter().enumerate() {
        let file = std::fs::File::create(dir.join(format!("{n}.img"))).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &media.snapshot(0..SIZE), 0).unwrap();
    }
}

/// The pool goes on, remembers what the device lacks, and reads around it when it is back.
#[tokio::test]
async fn a_device_that_fails_is_known_to_have_missed_what_came_after() {
    for (layout, count) in [("mirror a b", 2), ("raidz2 a b c d", 4)] {
        let media = media(count);
        let faulty = faulty(&media);
        let mut cx = create_on(layout, &as_disks(&faulty)).await;
        sync(&mut cx).await;
        let whole = cx.txg - 1;
        faulty[1].inject(Fault::anywhere(On::Write, Effect::Error(std::io::ErrorKind::Other)));
        for _ in 0..3 {
            cx.config_dirty = true;
            sync(&mut cx).await;
        }
        let last = cx.txg - 1;
        drop(cx);
        let pool = import_from(as_disks(&media)).await.unwrap();
        assert_eq!(pool.uberblock().txg, last, "{layout}");
        let tree = pool.tree();
        let leaves = tree.leaves();
        let missed = leaves[1].leaf.as_ref().unwrap().missed.get();
        assert_eq!(missed.ranges(), [(whole + 1, last + 1)], "{layout}");
        assert!(leaves[0].leaf.as_ref().unwrap().missed.get().is_empty());
        drop(leaves);
        // It is back: what is written from now on it has, what it missed it still lacks.
        let mut cx = open::open(pool, going_on(None)).await.unwrap();
        sync(&mut cx).await;
        let back = cx.txg - 1;
        export(cx).await;
        let pool = import_from(as_disks(&media)).await.unwrap();
        let missed = pool.tree().leaves()[1].leaf.as_ref().unwrap().missed.get();
        assert!(missed.contains(last) && !missed.contains(back), "{layout}: {missed:?}");
        let dir = tempfile::tempdir().unwrap();
        save(&media, dir.path());
        check(dir.path()).unwrap();
        if fixtures::tool("zdb").is_some() {
            fixtures::zdb_check(&["--degraded"], dir.path(), "old").unwrap();
        }
    }
}

#[tokio::test]
async fn a_device_that_is_away_is_known_to_have_missed_it() {
    let media = media(3);
    let mut cx = create_on("raidz a b c", &as_disks(&media)).await;
    sync(&mut cx).await;
    export(cx).await;
    let without: Vec<Arc<dyn Disk>> = as_disks(&[Arc::clone(&media[0]), Arc::clone(&media[2])]);
    let mut cx = open::open(import_from(without).await.unwrap(), going_on(None)).await.unwrap();
    let first = cx.txg;
    for _ in 0..3 {
        sync(&mut cx).await;
    }
    export(cx).await;
    let pool = import_from(as_disks(&media)).await.unwrap();
    let missed = pool.tree().leaves()[1].leaf.as_ref().unwrap().missed.get();
    assert_eq!(missed.ranges(), [(first, pool.uberblock().txg + 1)]);
    assert_eq!(pool.uberblock().txg, first + 3);
}

#[tokio::test]
async fn too_few_devices_are_an_error() {
    let media = media(2);
    let faulty = faulty(&media);
    let mut cx = create_on("mirror a b", &as_disks(&faulty)).await;
    sync(&mut cx).await;
    let committed = cx.txg - 1;
    for disk in &faulty {
        disk.inject(Fault::anywhere(On::Write, Effect::Error(std::io::ErrorKind::Other)));
    }
    let (txg, now) = (cx.txg, cx.now);
    cx.config_dirty = true;
    cx.sync_txg(txg, now, engine::sync::Work::default()).await.unwrap_err();
    drop(cx);
    assert_eq!(import_from(as_disks(&media)).await.unwrap().uberblock().txg, committed);
}

/// A side that had refused blocks of a group took its uberblock, and that was enough: the group counted as committed, and who
/// was left with that side alone had neither this group nor the one before.
#[tokio::test]
async fn a_group_is_not_committed_by_the_side_that_lacks_a_part_of_it() {
    let geometry = Geometry::new(SIZE).unwrap();
    let labels = geometry.labels();
    let (whole, ring) = (0..LABEL_BYTES, RING_OFFSET..RING_OFFSET + RING_BYTES);
    for (what, refused) in [("nothing", 0..0), ("labels", whole), ("uberblocks", ring)] {
        let media = media(2);
        let faulty = faulty(&media);
        let mut cx = create_on("mirror a b", &as_disks(&faulty)).await;
        sync(&mut cx).await;
        let committed = cx.txg - 1;
        let refuse = |range| Fault::new(On::Write, range, Effect::Error(std::io::ErrorKind::Other));
        faulty[0].inject(refuse(geometry.allocatable()));
        if !refused.is_empty() {
            labels.iter().for_each(|at| faulty[1].inject(refuse(at + refused.start..at + refused.end)));
        }
        let (txg, now) = (cx.txg, cx.now);
        cx.config_dirty = true;
        let synced = cx.sync_txg(txg, now, engine::sync::Work::default()).await.map(drop);
        assert_eq!(cx.out.failed_leaves().len(), 1, "{what}");
        drop(cx);
        if refused.is_empty() {
            synced.unwrap();
            // Once the other side has it, a label without its uberblock would be of no use.
            for side in &media {
                let found = import::scan(&Sources::disks(as_disks(std::slice::from_ref(side)))).await;
                assert_eq!(found.pools[0].uberblocks[0].txg, txg);
            }
            continue;
        }
        assert!(matches!(synced, Err(EngineError::Device(_))), "{what}: {synced:?}");
        for sides in [&media[..1], &media[..]] {
            let pool = import_from(as_disks(sides)).await.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(pool.uberblock().txg, committed, "{what}");
        }
    }
}

/// The flush of somebody else failed behind an uberblock and took it along. The next one, which was for the uberblock, worked, so
/// the group counted as committed, and a power cut took what clients had been told is stable. The same if both were under way at
/// once, and the one that worked was heard first.
#[tokio::test]
async fn what_went_with_a_failed_flush_of_somebody_else_is_written_again_before_a_commit_counts() {
    let labels = Geometry::new(SIZE).unwrap().labels();
    let (config, ring) = (CONFIG_OFFSET..CONFIG_OFFSET + CONFIG_BYTES, RING_OFFSET..RING_OFFSET + RING_BYTES);
    // Behind the last of each; and whether the pool is as of this group then.
    let moments = [
        ("even labels", 2, &config, false),
        ("the uberblock", 3, &ring, false),
        ("odd labels", 3, &config, true),
    ];
    for (what, label, region, is_committed) in moments {
        let cases = [1, 2, u32::MAX].into_iter().flat_map(|times| [(times, false), (times, true)]);
        for (times, beside) in cases {
            let what = format!("{what}, {times} times, beside: {beside}");
            let disk = Arc::new(Forgetful::new(&MemDisk::new(SIZE)));
            let mut cx = create_on("a", &as_disks(&[Arc::clone(&disk)])).await;
            sync(&mut cx).await;
            let before = disk.durable().fork();
            let leaf = Arc::clone(&cx.io.tree().leaves()[0].leaf.as_ref().unwrap().condition);
            let behind = labels[label] + region.start..labels[label] + region.end;
            disk.refuse_behind(behind, leaf, times, beside);
            let (txg, now) = (cx.txg, cx.now);
            cx.config_dirty = true;
            let synced = cx.sync_txg(txg, now, engine::sync::Work::default()).await.map(drop);
            let after = disk.durable();
            let found = import_from(vec![Arc::clone(&after) as Arc<dyn Disk>]).await.unwrap().uberblock().txg;
            if times == u32::MAX {
                assert!(matches!(synced, Err(EngineError::Device(_))), "{what}: {synced:?}");
                assert_eq!(found == txg, is_committed, "{what}");
                continue;
            }
            synced.unwrap();
            assert_eq!(found, txg, "{what}");
            for (number, start) in labels.iter().enumerate() {
                let written = start + config.start..start + config.end;
                let is_old = before.snapshot(written.clone()) == after.snapshot(written);
                assert!(!is_old, "{what}: label {number} is as it was");
            }
        }
    }
}

/// The same with what the uberblock leads to: it was durable, and the blocks of its group were not.
#[tokio::test]
async fn data_that_went_with_a_failed_flush_of_somebody_else_is_written_again_before_a_commit_counts() {
    for beside in [false, true] {
        let disk = Arc::new(Forgetful::new(&MemDisk::new(SIZE)));
        let mut cx = create_on("a", &as_disks(&[Arc::clone(&disk)])).await;
        sync(&mut cx).await;
        let leaf = Arc::clone(&cx.io.tree().leaves()[0].leaf.as_ref().unwrap().condition);
        disk.refuse_behind(Geometry::new(SIZE).unwrap().allocatable(), leaf, 1, beside);
        let (txg, now) = (cx.txg, cx.now);
        cx.config_dirty = true;
        cx.sync_txg(txg, now, engine::sync::Work::default()).await.map(drop).unwrap();
        assert!(disk.is_through(), "nobody flushed in vain");
        let after = import_from(vec![disk.durable() as Arc<dyn Disk>]).await.unwrap();
        assert_eq!(after.uberblock().txg, txg, "beside: {beside}");
        let report = pool::verify::verify(&after, &Arc::default()).await;
        assert!(report.is_clean(), "beside: {beside}: {report:?}");
    }
}

/// They kept uberblocks of another pool if the flush of somebody else took the zeroes, and the next commit of a configuration
/// made those ours.
#[tokio::test]
async fn labels_behind_a_new_end_are_emptied_again_if_that_went_with_a_flush_of_somebody_else() {
    let disk = Arc::new(Forgetful::new(&MemDisk::new(SIZE)));
    let mut cx = create_on("a", &as_disks(&[Arc::clone(&disk)])).await;
    sync(&mut cx).await;
    let tree = cx.io.tree();
    let vdev = tree.leaves()[0];
    let end = Geometry::new(SIZE).unwrap().labels()[3];
    let leaf = Arc::clone(&vdev.leaf.as_ref().unwrap().condition);
    disk.refuse_behind(end..end + LABEL_BYTES, leaf, 1, false);
    let (reports, suspension) = (cx.out.reports(), cx.out.suspension());
    let writer = labels::Writer { reports: &reports, suspension: &suspension };
    assert!(labels::initialize_ends(&tree, vdev.guid, writer).await);
    let ring = disk.durable().snapshot(end + RING_OFFSET..end + RING_OFFSET + RING_BYTES);
    assert!(ring.iter().all(|byte| *byte == 0));
}

/// Heartbeats change the rank of the best uberblock and nothing else, and use the slot that commits leave free.
#[tokio::test(start_paused = true)]
async fn heartbeats_are_seen_by_another_host() {
    let media = media(2);
    let spec = VdevSpec::parse(&["mirror", "a", "b"]).unwrap();
    let facts = file_of(SIZE);
    let plan = Plan::new(&spec, &[facts; 2], Some(12), true).unwrap();
    let properties: Properties = [("multihost".to_owned(), Stored::Number(1))].into();
    let options = CreateOptions { pool_properties: properties, ..creating("old", 1) };
    let mut cx = create::create(&plan, &as_disks(&media), options).await.unwrap();
    sync(&mut cx).await;
    let committed = open::multihost::Committed { uberblock: cx.uberblock, io: Arc::clone(&cx.io) };
    assert!(committed.uberblock.mmp.unwrap().is_active());
    let (sender, receiver) = tokio::sync::watch::channel(committed);
    let beating = tokio::spawn(async move {
        let alive = open::multihost::Alive::default();
        open::multihost::run(receiver, || NOW + 5, StdRng::seed_from_u64(1), &alive).await
    });
    // Another host, which does not know whether this one is alive.
    let found = import::scan(&Sources::disks(as_disks(&media))).await;
    let options = import::OpenOptions { hostid: 8, ..import::OpenOptions::default() };
    let error = import::open(&found.pools[0], &options).await.unwrap_err();
    assert!(matches!(error, import::ImportError::Active { .. }), "{error}");
    let best = import::scan(&Sources::disks(as_disks(&media))).await.pools[0].uberblocks[0];
    assert_eq!((best.txg, best.rootbp), (cx.uberblock.txg, cx.uberblock.rootbp));
    assert!(best.timestamp > cx.uberblock.timestamp);
    drop(sender);
    beating.await.unwrap().unwrap();
    let again = import::scan(&Sources::disks(as_disks(&media))).await;
    let error = import::open(&again.pools[0], &options).await.unwrap_err();
    assert!(matches!(error, import::ImportError::InUse { .. }), "silent now: {error}");
    // A host without an id may look at it, and no more: nobody could tell its heartbeats from another's.
    let forced = import::OpenOptions { force: true, hostid: 0, ..options };
    let pool = import::open(&again.pools[0], &forced).await.unwrap();
    let nobody = open::OpenOptions { hostid: 0, ..going_on(None) };
    let error = open::open(pool, nobody).await.err().unwrap().to_string();
    assert!(error.contains("write one to /etc/hostid"), "{error}");
}

/// They began again from the time that the clock had been set back to, below those that were there already: until all of these
/// were overwritten, another host heard nobody.
#[tokio::test(start_paused = true)]
async fn heartbeats_are_heard_when_the_clock_is_set_back() {
    let media = media(2);
    let mut cx = create_on("mirror a b", &as_disks(&media)).await;
    sync(&mut cx).await;
    let committed = open::multihost::Committed { uberblock: cx.uberblock, io: Arc::clone(&cx.io) };
    let (sender, receiver) = tokio::sync::watch::channel(committed);
    let clock = Arc::new(AtomicU64::new(NOW + 7200));
    let seen = Arc::clone(&clock);
    let beating = tokio::spawn(async move {
        let alive = open::multihost::Alive::default();
        open::multihost::run(receiver, move || seen.load(Relaxed), StdRng::seed_from_u64(1), &alive).await
    });
    let best = async || import::scan(&Sources::disks(as_disks(&media))).await.pools[0].uberblocks[0].rank();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let mut before = best().await;
    assert_eq!(before.timestamp, NOW + 7200);
    clock.store(NOW + 3600, Relaxed);
    for second in 0..10 {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let now = best().await;
        assert!(now > before, "{second}: {now:?} after {before:?}");
        before = now;
    }
    drop(sender);
    beating.await.unwrap().unwrap();
}

/// An open pool beats while the property is on, and no longer.
#[tokio::test(start_paused = true)]
async fn a_running_pool_beats_while_multihost_is_on() {
    let media = media(1);
    let cx = create_on("a", &as_disks(&media)).await;
    let limits = Limits { timeout: Duration::from_secs(1 << 30), ..Limits::default() };
    let engine = Engine::start(cx, Options { limits, now: || NOW + 9, ..Options::default() }).await.unwrap();
    let set = |on: u64| {
        let properties: Properties = [("multihost".to_owned(), Stored::Number(on))].into();
        engine.run(move |cx| Box::pin(async move { dsl::set_pool(cx, &properties).await }))
    };
    let best = async || import::scan(&Sources::disks(as_disks(&media))).await.pools[0].uberblocks[0];
    set(1).await.unwrap();
    let mut before = best().await.rank();
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let now = best().await;
        assert!(now.rank() > before, "{now:?}");
        assert_eq!(now.rootbp, engine.view().uberblock().rootbp);
        before = now.rank();
    }
    set(0).await.unwrap();
    let silent = best().await.rank();
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(best().await.rank(), silent);
    engine.end(Ending::Export).await.unwrap();
}

/// Two leaves that beat once a second between them, on `disks`.
async fn beating(disks: &[Arc<dyn Disk>]) -> Arc<Engine> {
    let cx = create_on("mirror a b", disks).await;
    let limits = Limits { timeout: Duration::from_secs(1 << 30), ..Limits::default() };
    let engine = Engine::start(cx, Options { limits, now: || NOW + 9, ..Options::default() }).await.unwrap();
    set_multihost(&engine, 1).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    engine
}

async fn set_multihost(engine: &Engine, on: u64) -> Result<(), dsl::OpError> {
    let properties: Properties = [("multihost".to_owned(), Stored::Number(on))].into();
    engine.run(move |cx| Box::pin(async move { dsl::set_pool(cx, &properties).await })).await
}

/// A process that was stopped, or a machine that was: its devices take everything when it goes on, but another host had
/// time to import the pool.
#[tokio::test(start_paused = true)]
async fn a_host_that_stood_still_for_too_long_writes_nothing_more() {
    for ends_at_once in [false, true] {
        let media = media(2);
        let engine = beating(&as_disks(&media)).await;
        let best = async || import::scan(&Sources::disks(as_disks(&media))).await.pools[0].uberblocks[0];
        let before = best().await.rank();
        tokio::time::advance(Duration::from_secs(25)).await;
        if !ends_at_once {
            tokio::time::sleep(Duration::from_secs(5)).await;
            assert_eq!(best().await.rank(), before, "another host would take this one for alive");
            let error = set_multihost(&engine, 1).await.unwrap_err().to_string();
            assert!(error.contains("another host may have imported the pool"), "{error}");
            assert_eq!(best().await.rank(), before);
        }
        engine.end(Ending::Close).await.unwrap_err();
        assert_eq!(best().await.rank(), before, "not even to close it");
    }
}

#[tokio::test(start_paused = true)]
async fn a_leaf_that_hangs_does_not_keep_the_others_from_beating() {
    let media = media(2);
    let faulty = faulty(&media);
    let engine = beating(&as_disks(&faulty)).await;
    let hour = Duration::from_secs(3600);
    faulty[0].inject(Fault::anywhere(On::Write, Effect::Delay(hour..=hour)));
    let best = async || import::scan(&Sources::disks(as_disks(&media[1..]))).await.pools[0].uberblocks[0];
    let mut before = best().await;
    for second in 0..30 {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let now = best().await;
        assert!(now.mmp.unwrap().config > before.mmp.unwrap().config, "{second}: {now:?}");
        before = now;
    }
    engine.abandon().await;
}
