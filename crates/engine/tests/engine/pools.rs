//! Pools from nothing on files, judged by other people's tools: OpenZFS's zdb and the reference checker.
#![expect(
    clippy::unwrap_used,
    clippy::large_futures,
    reason = "a test that cannot make its world fails, and does one thing at a time"
)]

use std::{io::ErrorKind, path::Path, sync::Arc};

use crate::{
    files::{export, judge, reopen, sync},
    support::{NOW, POOL, creating, going_on},
};
use disk::{Disk, Effect, Fault, FaultDisk, MemDisk, On};
use engine::{
    create::{self, CreateOptions, Plan, Removal, SpecError, VdevSpec, device},
    mos::{DIRECTORY, zap},
    open,
    sync::{Syncer, Task, Work},
    write::labels,
};
use fixtures::Log;
use ondisk::{dnode::ObjectType, label::PoolState};
use pool::import::{self, Device, Sources};

const MB: u64 = 1 << 20;

/// Files in `dir` for the words of `layout`, and what they would make.
async fn plan(dir: &Path, layout: &str, ashift: Option<u32>, bytes: u64) -> (Plan, Vec<Arc<dyn Disk>>) {
    let mut spec = VdevSpec::parse(&layout.split_whitespace().collect::<Vec<_>>()).unwrap();
    let at = |word: &str| dir.join(format!("{word}.img")).display().to_string();
    let paths: Vec<String> = spec.paths().into_iter().map(at).collect();
    spec.set_paths(paths).unwrap();
    let (mut facts, mut disks) = (Vec::new(), Vec::new());
    for path in spec.paths() {
        let prepared = device::prepare(Path::new(path), Some(bytes), false).await.unwrap();
        facts.push(prepared.facts);
        disks.push(prepared.disk);
    }
    (Plan::new(&spec, &facts, ashift, false).unwrap(), disks)
}

async fn new_pool(dir: &Path, layout: &str, ashift: u32, options: CreateOptions) -> Syncer {
    let (plan, disks) = plan(dir, layout, Some(ashift), 128 * MB).await;
    let mut cx = create::create(&plan, &disks, options).await.unwrap();
    sync(&mut cx).await;
    cx
}

async fn created_and_judged(layout: &str, ashift: u32) {
    let dir = tempfile::tempdir().unwrap();
    let mut cx = new_pool(dir.path(), layout, ashift, creating(POOL, u64::from(ashift))).await;
    sync(&mut cx).await;
    export(cx).await;
    judge(dir.path());
    let mut cx = reopen(dir.path(), 7).await.unwrap();
    sync(&mut cx).await;
    export(cx).await;
    judge(dir.path());
}

/// A pool that was created, or got devices, said until it was opened anew that nothing was allocated, so that nobody heard
/// of it becoming full.
#[tokio::test]
async fn how_full_a_pool_is_can_be_seen_while_the_one_who_created_it_has_it_open() {
    let dir = tempfile::tempdir().unwrap();
    let seen = async |cx: &Syncer| {
        let view = Arc::clone(cx.view.as_ref().unwrap());
        let space = view.space().await.unwrap().clone();
        let tops = view
            .tree()
            .tops
            .iter()
            .filter_map(|vdev| vdev.top.as_ref())
            .map(|top| (top.metaslab_array, top.metaslab_shift, top.asize, top.ashift, top.zap))
            .collect::<Vec<_>>();
        (space, tops)
    };
    let mut cx = new_pool(dir.path(), "mirror a b", 12, creating(POOL, 31)).await;
    sync(&mut cx).await;
    let (space, tops) = seen(&cx).await;
    assert!(tops.iter().all(|top| top.0 != 0), "{tops:?}");
    assert!(space.total.allocated > 100 << 10 && space.total.fragmentation.is_some(), "{space:?}");
    add_devices(&mut cx, dir.path(), "mirror c d special mirror e f").await;
    for _ in 0..3 {
        cx.config_dirty = true;
        sync(&mut cx).await;
    }
    let (space, live) = seen(&cx).await;
    assert!(space.tops.iter().all(|top| top.size > 0), "{space:?}");
    export(cx).await;
    judge(dir.path());
    let mut cx = reopen(dir.path(), 8).await.unwrap();
    let (after, tops) = seen(&cx).await;
    assert_eq!(live, tops, "as who opens it finds it");
    let (live, after) = (space.total.allocated, after.total.allocated);
    assert!(live.abs_diff(after) < 64 << 10, "{live} and then {after}");
    sync(&mut cx).await;
    export(cx).await;
}

#[tokio::test]
async fn a_single_device() {
    created_and_judged("a", 12).await;
}

#[tokio::test]
async fn a_single_device_with_small_sectors() {
    created_and_judged("a", 9).await;
}

#[tokio::test]
async fn a_mirror_beside_a_log_and_with_a_cache_and_a_spare() {
    created_and_judged("mirror a b log c cache d spare e", 12).await;
}

#[tokio::test]
async fn raidz1_with_small_sectors() {
    created_and_judged("raidz a b c", 9).await;
}

#[tokio::test]
async fn raidz2() {
    created_and_judged("raidz2 a b c d e", 12).await;
}

#[tokio::test]
async fn raidz3_and_special() {
    created_and_judged("raidz3 a b c d e special mirror f g h i", 12).await;
}

#[tokio::test]
async fn several_mirrors_with_large_sectors() {
    created_and_judged("mirror a b mirror c d", 13).await;
}

#[tokio::test]
async fn without_any_features() {
    let dir = tempfile::tempdir().unwrap();
    let options = CreateOptions { features: create::features("legacy").unwrap(), ..creating(POOL, 5) };
    export(new_pool(dir.path(), "a", 12, options).await).await;
    judge(dir.path());
}

#[tokio::test]
async fn devices_are_added_to_a_pool() {
    let dir = tempfile::tempdir().unwrap();
    let mut cx = new_pool(dir.path(), "mirror a b", 12, creating(POOL, 11)).await;
    let size = cx.view.as_ref().unwrap().space().await.unwrap().total.size;
    add_devices(&mut cx, dir.path(), "mirror c d log e cache f spare g").await;
    let view = Arc::clone(cx.view.as_ref().unwrap());
    assert_eq!(view.tree().tops.len(), 3);
    assert!(view.space().await.unwrap().total.size > size);
    assert_eq!((view.spares().len(), view.l2cache().len()), (1, 1));
    assert!(view.spares()[0].is_readable());
    for _ in 0..3 {
        cx.config_dirty = true;
        sync(&mut cx).await;
    }
    export(cx).await;
    judge(dir.path());
}

/// Runs a command in a transaction group.
async fn run<F>(cx: &mut Syncer, op: F)
where
    F: for<'a> FnOnce(&'a mut Syncer) -> engine::sync::TaskFuture<'a> + Send + 'static,
{
    let task = Task { is_snapshot: false, run: Box::new(op), done: Box::new(|outcome| outcome.unwrap()) };
    let txg = cx.txg;
    cx.sync_txg(txg, NOW, Work { tasks: vec![task], ..Work::default() }).await.unwrap();
    cx.txg += 1;
}

async fn add_devices(cx: &mut Syncer, dir: &Path, layout: &str) {
    let (more, disks) = plan(dir, layout, None, 64 * MB).await;
    run(cx, move |cx| {
        Box::pin(async move { create::add(cx, &more, &disks).await.map_err(|error| panic!("{error}")) })
    })
    .await;
}

async fn remove_device(cx: &mut Syncer, word: &str) {
    let removal = Removal::find(cx.view.as_ref().unwrap(), word).unwrap();
    let leaving = removal.clone();
    run(cx, move |cx| Box::pin(async move { leaving.finish(cx).await.map_err(|error| panic!("{error}")) }))
        .await;
    let disks = removal.disks(&cx.io.tree());
    assert!(!disks.is_empty());
    for disk in disks {
        labels::clear(&disk).await.unwrap();
    }
}

fn shapes(cx: &Syncer) -> Vec<String> {
    cx.view.as_ref().unwrap().tree().tops.iter().map(|top| top.type_word().to_owned()).collect()
}

#[tokio::test]
async fn log_devices_leave_holes_and_the_pool_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut cx = new_pool(dir.path(), "a log b e mirror c d cache f spare g", 12, creating(POOL, 21)).await;
    sync(&mut cx).await;
    for (word, why) in
        [("file-0", "no such device"), ("nothing", "no such device"), ("tank", "no such device")]
    {
        let error = Removal::find(cx.view.as_ref().unwrap(), word).unwrap_err().to_string();
        assert!(error.contains(why), "{word}: {error}");
    }
    let path = |name: &str| dir.path().join(format!("{name}.img")).display().to_string();
    let refused =
        |cx: &Syncer, word: &str| Removal::find(cx.view.as_ref().unwrap(), word).unwrap_err().to_string();
    assert!(refused(&cx, &path("a")).contains("holds data"));
    assert!(refused(&cx, &path("c")).contains("is a part of mirror-3"));

    remove_device(&mut cx, &path("e")).await;
    assert_eq!(shapes(&cx), ["file", "file", "hole", "mirror"]);
    sync(&mut cx).await;
    remove_device(&mut cx, &path("f")).await;
    remove_device(&mut cx, &path("g")).await;
    let view = Arc::clone(cx.view.as_ref().unwrap());
    assert!(view.spares().is_empty() && view.l2cache().is_empty());
    drop(view);
    export(cx).await;
    for name in ["e", "f", "g"] {
        let found = import::scan(&Sources::paths([path(name)])).await;
        assert!(found.pools.is_empty(), "{name} belongs to nobody");
        std::fs::remove_file(path(name)).unwrap();
    }
    judge(dir.path());

    // A pool with a hole opens, takes another device behind it, and loses its last one.
    let mut cx = reopen(dir.path(), 3).await.unwrap();
    assert_eq!(shapes(&cx), ["file", "file", "hole", "mirror"]);
    assert!(refused(&cx, "hole-2").contains("no such device"));
    add_devices(&mut cx, dir.path(), "log mirror h i").await;
    assert_eq!(shapes(&cx), ["file", "file", "hole", "mirror", "mirror"]);
    sync(&mut cx).await;
    export(cx).await;
    judge(dir.path());
    let mut cx = reopen(dir.path(), 4).await.unwrap();
    remove_device(&mut cx, "mirror-4").await;
    remove_device(&mut cx, "mirror-3").await;
    assert_eq!(shapes(&cx), ["file", "file", "hole"]);
    remove_device(&mut cx, &path("b")).await;
    add_devices(&mut cx, dir.path(), "j").await;
    assert_eq!(shapes(&cx), ["file", "hole", "hole", "file"]);
    sync(&mut cx).await;
    export(cx).await;
    for name in ["b", "c", "d", "h", "i"] {
        std::fs::remove_file(path(name)).unwrap();
    }
    judge(dir.path());
    let mut cx = reopen(dir.path(), 5).await.unwrap();
    sync(&mut cx).await;
    export(cx).await;
    judge(dir.path());
}

/// The power goes when the device has left, and before its labels are cleared: they speak of the pool, and nobody listens.
#[tokio::test]
async fn labels_of_a_removed_device_confuse_nobody() {
    for layout in ["a log b c", "a log b"] {
        let dir = tempfile::tempdir().unwrap();
        let mut cx = new_pool(dir.path(), layout, 12, creating(POOL, 22)).await;
        sync(&mut cx).await;
        let path = dir.path().join("b.img").display().to_string();
        let removal = Removal::find(cx.view.as_ref().unwrap(), &path).unwrap();
        run(&mut cx, move |cx| {
            Box::pin(async move { removal.finish(cx).await.map_err(|error| panic!("{error}")) })
        })
        .await;
        let expected = shapes(&cx);
        drop(cx);
        let mut cx = reopen(dir.path(), 6).await.unwrap();
        assert_eq!(shapes(&cx), expected, "{layout}");
        sync(&mut cx).await;
        export(cx).await;
        std::fs::remove_file(dir.path().join("b.img")).unwrap();
        judge(dir.path());
    }
}

#[tokio::test]
async fn a_device_of_another_pool_is_taken_only_by_force() {
    let dir = tempfile::tempdir().unwrap();
    let cx = new_pool(dir.path(), "a", 12, creating(POOL, 1)).await;
    let path = dir.path().join("a.img");
    let name = path.display();
    let error = device::prepare(&path, None, true).await.unwrap_err();
    assert!(matches!(error, SpecError::Repair(_)), "open: {error}");
    drop(cx);
    let error = device::prepare(&path, None, false).await.unwrap_err().to_string();
    assert!(error.ends_with(&format!("{name} is part of potentially active pool 'tank'")), "{error}");
    export(reopen(dir.path(), 1).await.unwrap()).await;
    let error = device::prepare(&path, None, false).await.unwrap_err().to_string();
    assert!(error.ends_with(&format!("{name} is part of exported pool 'tank'")), "{error}");
    let mut cx = reopen(dir.path(), 2).await.unwrap();
    open::close(&mut cx, PoolState::Destroyed);
    sync(&mut cx).await;
    drop(cx);
    let prepared = device::prepare(&path, None, false).await.unwrap();
    labels::clear(&prepared.disk).await.unwrap();
    let found = import::scan(&Sources::disks([prepared.disk])).await;
    assert!(found.pools.is_empty(), "nothing is left");
}

/// Who repeated a command that was cut off was told of a pool that does not exist, and to use force.
#[tokio::test]
async fn what_a_creation_that_was_cut_off_left_is_in_nobodys_way() {
    let dir = tempfile::tempdir().unwrap();
    let (layout, disks) = plan(dir.path(), "a", Some(12), 128 * MB).await;
    drop(create::create(&layout, &disks, creating(POOL, 1)).await.unwrap());
    drop(disks);
    let path = dir.path().join("a.img");
    let found = import::scan(&Sources::paths([&path])).await;
    assert!(found.pools.is_empty(), "there is no pool");
    device::prepare(&path, None, false).await.unwrap();
}

/// Found by reading: the first label that a device refused to lose kept those behind it, by which it could open its pool.
#[tokio::test]
async fn labels_are_cleared_behind_one_that_stays() {
    let faulty = Arc::new(FaultDisk::new(Arc::new(MemDisk::new(64 * MB)), 1));
    let disk: Arc<dyn Disk> = Arc::clone(&faulty) as _;
    labels::initialize_auxiliary(&disk, 7, PoolState::Spare).await.unwrap();
    faulty.inject(Fault::new(On::Write, 0..1, Effect::Error(ErrorKind::Other)).times(1));
    assert!(labels::clear(&disk).await.is_err());
    let device = Device::read(Arc::clone(&disk)).await.unwrap().unwrap();
    let left: Vec<usize> = device.configs.iter().map(|(number, _)| *number).collect();
    assert_eq!(left, [0]);
    labels::clear(&disk).await.unwrap();
    assert!(Device::read(disk).await.unwrap().is_none());
}

#[tokio::test]
async fn one_pool_is_never_open_twice() {
    let dir = tempfile::tempdir().unwrap();
    let cx = new_pool(dir.path(), "mirror a b", 12, creating(POOL, 1)).await;
    let error = reopen(dir.path(), 1).await.unwrap_err();
    assert!(error.contains("is in use by another process"), "{error}");
    drop(cx);
    reopen(dir.path(), 1).await.unwrap();
}

/// A device that had left the pool, or one that could not be written to, kept all of it from being opened for writing.
#[tokio::test]
async fn a_pool_is_opened_without_devices_that_it_can_do_without() {
    let dir = tempfile::tempdir().unwrap();
    export(new_pool(dir.path(), "mirror a b", 12, creating(POOL, 1)).await).await;
    let found = import::scan(&Sources::paths([dir.path()])).await;
    let refusing = |names: &'static [&'static str]| -> import::Opener {
        let real = import::writable();
        Arc::new(move |path: &Path| match names.iter().any(|name| path.ends_with(name)) {
            true => Err(ErrorKind::PermissionDenied.into()),
            false => real(path),
        })
    };
    let refused = found.pools[0].reopen(&refusing(&["a.img", "b.img"])).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    let reopened = found.pools[0].reopen(&refusing(&["b.img"])).await.unwrap();
    assert_eq!((reopened.devices.len(), reopened.refused.len()), (1, 1));
    assert!(reopened.refused[0].path.ends_with("b.img") && !reopened.refused[0].is_in_use());
    let pool = import::open(&reopened, &import::OpenOptions::default()).await.unwrap();
    let tree = pool.tree();
    let away: Vec<u64> =
        tree.leaves().iter().filter(|leaf| !leaf.is_readable()).map(|leaf| leaf.guid).collect();
    assert_eq!(away, [reopened.refused[0].guid]);
    drop((tree, pool, reopened));
    // Not without the one that has the newest state: what was acknowledged would be gone.
    let (a, old) = (dir.path().join("a.img"), dir.path().join("old"));
    std::fs::copy(&a, &old).unwrap();
    export(reopen(dir.path(), 1).await.unwrap()).await;
    std::fs::rename(&old, &a).unwrap();
    let found = import::scan(&Sources::paths([dir.path()])).await;
    assert_eq!(found.pools[0].devices.len(), 2);
    found.pools[0].reopen(&refusing(&["b.img"])).await.unwrap_err();
    assert!(found.pools[0].reopen(&refusing(&["a.img"])).await.unwrap().refused.len() == 1);
}

/// They are freed by lists that nothing here works off, so their space was missing for good and nobody heard why.
#[tokio::test]
async fn clones_that_are_left_to_openzfs_to_be_freed_are_told_of() {
    let dir = tempfile::tempdir().unwrap();
    let mut cx = new_pool(dir.path(), "a", 12, creating(POOL, 1)).await;
    let log = Log::begin();
    run(&mut cx, |cx| {
        Box::pin(async move {
            let list = zap::create(&mut cx.mos, ObjectType::ZAP_METADATA, 0).await?;
            zap::set_u64(&mut cx.mos, DIRECTORY, "com.delphix:deleted_clones", list).await
        })
    })
    .await;
    export(cx).await;
    assert_eq!(log.lines("not freed yet").len(), 0);
    let cx = reopen(dir.path(), 1).await.unwrap();
    let told = log.lines("not freed yet");
    assert!(told.len() == 1 && told[0].contains("tank"), "{told:?}");
    export(cx).await;
}

#[tokio::test]
async fn a_pool_can_get_another_name() {
    let dir = tempfile::tempdir().unwrap();
    export(new_pool(dir.path(), "a", 12, creating(POOL, 1)).await).await;
    let found = import::scan(&Sources::paths([dir.path()])).await;
    let writable = found.pools[0].reopen(&import::writable()).await.unwrap();
    let pool = import::open(&writable, &import::OpenOptions::default()).await.unwrap();
    let options = open::OpenOptions { rename: Some("lake".to_owned()), hostid: 1, ..going_on() };
    let mut cx = open::open(pool, options).await.unwrap();
    sync(&mut cx).await;
    drop(cx);
    let found = import::scan(&Sources::paths([dir.path()])).await;
    assert_eq!((found.pools[0].name.as_str(), found.pools[0].hostid), ("lake", 1));
    let pool = import::open(&found.pools[0], &import::OpenOptions { hostid: 1, ..Default::default() })
        .await
        .unwrap();
    assert_eq!(pool.config().str("name"), Some("lake"));
}
