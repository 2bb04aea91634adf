//! What the commands do to a pool's datasets, judged by the reference checker, which recomputes every counter,
//! list and link of docs/format/mos.md from the blocks themselves, and by `zdb`.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly, its helpers too")]
#![allow(clippy::large_futures, reason = "a test's task may be large")]

mod encrypted;
mod limits;

use std::process::Command;

use crate::support::{POOL, Running, World, content, data};
use block::{BlockVolume, Durability};
use engine::{
    dsl::{self, NewVolume, OpError, Properties, Stored},
    engine::OpFuture,
    mos::zap,
    sync::Syncer,
};
use ondisk::{Order, dsl::DirPhys};
use pool::{dmu::Run, props::Value};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};

/// Bytes of a volume.
const SIZE: u64 = 512 << 10;
const BLOCK: u32 = 8192;

/// A pool and what is done to it.
struct Lab {
    world: World,
    running: Running,
    random: StdRng,
    steps: Vec<String>,
}

fn strings(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn props(list: &[(&str, u64)]) -> Properties {
    list.iter().map(|(name, value)| ((*name).to_owned(), Stored::Number(*value))).collect()
}

/// Runs the reference checker over the images in `dir`; what it complains of.
pub(crate) fn complaints(dir: &std::path::Path) -> Vec<String> {
    let images = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let output = Command::new("python3")
        .arg(fixtures::repository().join("docs/format/decode.py"))
        .arg("--check")
        .args(images)
        .output()
        .expect("python3 starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // Where Python lacks a decompressor for zstd, it says so for each such block; everything else is checked.
    let (excused, complaints): (Vec<&str>, Vec<&str>) = text
        .lines()
        .filter(|line| line.contains("ERROR") || line.contains("MISMATCH") || line.contains("leak "))
        .partition(|line| line.contains("No module named 'zstandard'"));
    let mut wrong: Vec<String> = complaints.into_iter().map(str::to_owned).collect();
    let mut must = |what: &str| {
        if !text.contains(what) {
            wrong.push(format!("missing: {what}"));
        }
    };
    must("leaked 0, referenced-but-free 0");
    must(&format!("bad 0; errors {}", excused.len()));
    must("all referenced: True");
    let mos = text.lines().find_map(|line| line.trim().strip_prefix("$MOS dir used "));
    let (used, walked) = mos.and_then(|line| line.split_once(", walked MOS ")).unwrap_or(("nothing", "more"));
    if used != walked {
        wrong.push(format!("$MOS counts {used}, walked {walked}"));
    }
    if !wrong.is_empty() {
        wrong.push(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    wrong
}

impl Lab {
    async fn new(layout: &str, ashift: u32, seed: u64) -> Self {
        let (world, running) = World::create(layout, ashift, 96 << 20, seed).await;
        Self { world, running, random: StdRng::seed_from_u64(seed), steps: vec![format!("create {layout}")] }
    }

    async fn run<F>(&mut self, what: &str, is_snapshot: bool, op: F) -> Result<(), OpError>
    where
        F: for<'a> FnOnce(&'a mut Syncer) -> OpFuture<'a, ()> + Clone + Send + 'static,
    {
        self.steps.push(what.to_owned());
        self.running.engine.run(is_snapshot, op).await
    }

    /// Everything is as it should be.
    fn check(&self) {
        let dir = tempfile::tempdir().unwrap();
        self.world.save(dir.path());
        let wrong = complaints(dir.path());
        assert!(wrong.is_empty(), "after {:#?}:\n{}", self.steps, wrong.join("\n"));
    }

    /// And other people's checker says so too.
    fn check_with_zdb(&self) {
        if fixtures::tool("zdb").is_none() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        self.world.save(dir.path());
        if let Err(text) = fixtures::zdb_check(&[], dir.path(), POOL) {
            panic!("after {:#?}:\n{text}", self.steps);
        }
    }

    async fn create(&mut self, name: &str, properties: Properties) -> Result<(), OpError> {
        let new = NewVolume { name: name.to_owned(), size: SIZE, block: BLOCK, properties, parents: false };
        self.run(&format!("create -V {name}"), false, move |cx| {
            Box::pin(async move { dsl::create_volume(cx, &new).await })
        })
        .await
    }

    async fn filesystem(&mut self, name: &str, parents: bool) -> Result<(), OpError> {
        let owned = name.to_owned();
        self.run(&format!("create {name}"), false, move |cx| {
            Box::pin(async move { dsl::create_filesystem(cx, &owned, &Properties::new(), parents).await })
        })
        .await
    }

    async fn snapshot(&mut self, names: &[&str]) -> Result<(), OpError> {
        let owned = strings(names);
        self.run(&format!("snapshot {names:?}"), true, move |cx| {
            Box::pin(async move { dsl::snapshot(cx, &owned, &Properties::new()).await })
        })
        .await
    }

    async fn destroy_snapshot(&mut self, name: &str, defer: bool) -> Result<(), OpError> {
        let owned = strings(&[name]);
        self.run(&format!("destroy {name}"), false, move |cx| {
            Box::pin(async move { dsl::destroy_snapshots(cx, &owned, defer).await })
        })
        .await
    }

    async fn destroy(&mut self, name: &str) -> Result<(), OpError> {
        let owned = name.to_owned();
        self.run(&format!("destroy {name}"), false, move |cx| {
            Box::pin(async move { dsl::destroy_head(cx, &owned).await })
        })
        .await
    }

    async fn clone(&mut self, snapshot: &str, name: &str) -> Result<(), OpError> {
        let (from, to) = (snapshot.to_owned(), name.to_owned());
        self.run(&format!("clone {snapshot} {name}"), false, move |cx| {
            Box::pin(async move { dsl::clone(cx, &from, &to, &Properties::new(), false).await })
        })
        .await
    }

    async fn promote(&mut self, name: &str) -> Result<(), OpError> {
        let owned = name.to_owned();
        self.run(&format!("promote {name}"), false, move |cx| {
            Box::pin(async move { dsl::promote(cx, &owned).await })
        })
        .await
    }

    async fn rollback(&mut self, name: &str) -> Result<(), OpError> {
        let owned = name.to_owned();
        self.run(&format!("rollback {name}"), false, move |cx| {
            Box::pin(async move { dsl::rollback(cx, &owned).await })
        })
        .await
    }

    async fn rename(&mut self, from: &str, to: &str, recursive: bool) -> Result<(), OpError> {
        let (old, new) = (from.to_owned(), to.to_owned());
        self.run(&format!("rename {from} {to}"), false, move |cx| {
            Box::pin(async move { dsl::rename(cx, &old, &new, false, recursive).await })
        })
        .await
    }

    async fn set(&mut self, name: &str, properties: &[(&str, u64)]) -> Result<(), OpError> {
        let (owned, values) = (name.to_owned(), props(properties));
        self.run(&format!("set {properties:?} {name}"), false, move |cx| {
            Box::pin(async move { dsl::set(cx, &owned, &values).await })
        })
        .await
    }

    async fn hold(&mut self, name: &str) -> Result<(), OpError> {
        let owned = strings(&[name]);
        self.run(&format!("hold {name}"), false, move |cx| {
            Box::pin(async move { dsl::hold(cx, "tag", &owned).await })
        })
        .await
    }

    async fn release(&mut self, name: &str) -> Result<(), OpError> {
        let owned = strings(&[name]);
        self.run(&format!("release {name}"), false, move |cx| {
            Box::pin(async move { dsl::release(cx, "tag", &owned).await })
        })
        .await
    }

    async fn bookmark(&mut self, from: &str, name: &str) -> Result<(), OpError> {
        let (old, new) = (from.to_owned(), name.to_owned());
        self.run(&format!("bookmark {from} {name}"), false, move |cx| {
            Box::pin(async move { dsl::bookmark(cx, &old, &new).await })
        })
        .await
    }

    async fn destroy_bookmark(&mut self, name: &str) -> Result<(), OpError> {
        let owned = name.to_owned();
        self.run(&format!("destroy {name}"), false, move |cx| {
            Box::pin(async move { dsl::destroy_bookmark(cx, &owned).await })
        })
        .await
    }

    /// Incompressible bytes over some of the volume's blocks, durable.
    async fn write(&mut self, name: &str, blocks: std::ops::Range<u64>) {
        self.steps.push(format!("write {name} {blocks:?}"));
        let volume = self.running.engine.volume(name).await.unwrap();
        let mut bytes = vec![0; ((blocks.end - blocks.start) * u64::from(BLOCK)) as usize];
        self.random.fill(&mut bytes[..]);
        volume.write(blocks.start * u64::from(BLOCK), data(bytes), Durability::Cached).await.unwrap();
        self.running.engine.sync().await.unwrap();
    }

    /// Content of a volume or snapshot as of the last commit.
    async fn read(&self, name: &str) -> Vec<u8> {
        content(self.running.engine.view().open_volume(name).await.unwrap().as_ref()).await
    }

    async fn number(&self, name: &str, property: &str) -> u64 {
        let view = self.running.engine.view();
        let dataset = view.dsl().await.unwrap().lookup(name).await.unwrap();
        dataset.properties().await.unwrap().number(property).unwrap()
    }

    /// Bytes of a limit or a reservation; 0 for none.
    async fn limit(&self, name: &str, property: &str) -> u64 {
        let view = self.running.engine.view();
        let dataset = view.dsl().await.unwrap().lookup(name).await.unwrap();
        dataset.properties().await.unwrap().number(property).unwrap_or(0)
    }

    async fn feature(&self, guid: &str) -> u64 {
        let features = self.running.engine.view();
        let list = features.directory().get_u64("features_for_read").await.unwrap().unwrap();
        let other = features.directory().get_u64("features_for_write").await.unwrap().unwrap();
        let mut count = None;
        for object in [list, other] {
            let zap = pool::zap::Zap::open_in(features.mos(), object).await.unwrap();
            count = count.or(zap.get_u64(guid).await.unwrap());
        }
        count.unwrap()
    }

    /// Whether blocks of destroyed datasets wait to be freed.
    async fn settle(&mut self) {
        for _ in 0..50 {
            self.running.engine.sync().await.unwrap();
            if self.running.engine.view().directory().get_u64("bptree_obj").await.unwrap().is_none() {
                return;
            }
        }
        panic!("destroyed datasets are never freed: {:#?}", self.steps);
    }
}

fn refusal(result: Result<(), OpError>) -> String {
    result.expect_err("must be refused").to_string()
}

#[tokio::test(start_paused = true)]
async fn a_fresh_pool_adds_up_and_its_root_is_a_file_system() {
    for (layout, ashift) in [("d0", 9), ("mirror d0 d1", 12), ("raidz1 d0 d1 d2", 12)] {
        let lab = Lab::new(layout, ashift, 1).await;
        lab.check();
        assert_eq!(lab.number(POOL, "version").await, 5);
        assert_eq!(lab.number(POOL, "createtxg").await, 1);
        if layout == "d0" {
            lab.check_with_zdb();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn volumes_and_file_systems_are_made_where_they_can_be() {
    let mut lab = Lab::new("d0", 12, 2).await;
    lab.create("tank/v", Properties::new()).await.unwrap();
    lab.filesystem("tank/a/b", true).await.unwrap();
    lab.create("tank/a/b/w", props(&[("compression", 16), ("copies", 2)])).await.unwrap();
    lab.check();
    assert_eq!(lab.number("tank/v", "volsize").await, SIZE);
    assert_eq!(lab.number("tank/v", "volblocksize").await, u64::from(BLOCK));
    assert_eq!(refusal(lab.create("tank/v", Properties::new()).await), "dataset already exists");
    assert_eq!(refusal(lab.create("tank/x/y", Properties::new()).await), "parent does not exist");
    assert_eq!(refusal(lab.create("tank/v/y", Properties::new()).await), "parent is not a filesystem");
    let thick = props(&[("refreservation", 1 << 40)]);
    assert_eq!(refusal(lab.create("tank/thick", thick).await), "out of space");
    assert_eq!(refusal(lab.create("tank/d", props(&[("dedup", 1)])).await), "deduplication is not supported");
    for (size, block, text) in [
        (SIZE, 3000, "volume block size must be power of 2 from 512B to 1M"),
        (SIZE, 256, "volume block size must be power of 2 from 512B to 1M"),
        (SIZE + 512, 8192, "volume size must be a multiple of volume block size"),
        (0, 8192, "invalid volume size"),
    ] {
        let new =
            NewVolume { name: "tank/bad".into(), size, block, properties: Properties::new(), parents: false };
        let result =
            lab.run("create", false, move |cx| Box::pin(async move { dsl::create_volume(cx, &new).await }));
        assert_eq!(refusal(result.await), text);
    }
    lab.check();
}

#[tokio::test(start_paused = true)]
async fn features_follow_the_blocks_that_need_them() {
    let mut lab = Lab::new("d0", 12, 3).await;
    const ZSTD: &str = "org.freebsd:zstd_compress";
    lab.create("tank/v", props(&[("compression", 16 | 5 << 7)])).await.unwrap();
    assert_eq!(lab.feature(ZSTD).await, 0, "nothing was written with it");
    let volume = lab.running.engine.volume("tank/v").await.unwrap();
    let text = b"a line that compresses well, again and again. ".repeat(2000);
    volume.write(0, data(text[..65536].to_vec()), Durability::Cached).await.unwrap();
    lab.running.engine.sync().await.unwrap();
    assert_eq!(lab.feature(ZSTD).await, 1);
    lab.check();
    lab.snapshot(&["tank/v@a"]).await.unwrap();
    lab.clone("tank/v@a", "tank/c").await.unwrap();
    assert_eq!(lab.feature(ZSTD).await, 3, "head, snapshot, clone");
    lab.check();
    lab.destroy("tank/c").await.unwrap();
    lab.destroy_snapshot("tank/v@a", false).await.unwrap();
    lab.destroy("tank/v").await.unwrap();
    assert_eq!(lab.feature(ZSTD).await, 0);
    lab.settle().await;
    lab.check();

    let large = NewVolume {
        name: "tank/large".into(),
        size: 4 << 20,
        block: 1 << 20,
        properties: Properties::new(),
        parents: false,
    };
    lab.run("create large", false, move |cx| Box::pin(async move { dsl::create_volume(cx, &large).await }))
        .await
        .unwrap();
    let volume = lab.running.engine.volume("tank/large").await.unwrap();
    volume.write(4096, data(text[..65536].to_vec()), Durability::Cached).await.unwrap();
    lab.running.engine.sync().await.unwrap();
    assert_eq!(lab.feature("org.open-zfs:large_blocks").await, 1);
    lab.check();
}

/// Stored sizes were multiples of the smallest allocation, parity included: what compression had saved was filled up again,
/// and blocks of 8 KiB were not compressed at all.
#[tokio::test(start_paused = true)]
async fn what_compression_saves_on_raidz_is_not_allocated() {
    let mut lab = Lab::new("raidz2 d0 d1 d2 d3 d4 d5", 12, 11).await;
    for block in [8 << 10, 16 << 10] {
        let name = format!("tank/v{block}");
        let volume = lab.running.volume(&name, SIZE, block, props(&[("compression", 15)])).await;
        let mut bytes: Vec<u8> = vec![0; SIZE as usize];
        bytes.chunks_mut(block as usize).for_each(|block| lab.random.fill(&mut block[..3000]));
        volume.write(0, data(bytes), Durability::Cached).await.unwrap();
        lab.running.engine.sync().await.unwrap();
        let committed = lab.running.engine.view().open_volume(&name).await.unwrap();
        let mut runs = committed.data().runs(0, 0..SIZE / u64::from(block));
        while let Some(run) = runs.next().await.unwrap() {
            let Run::Block { pointer, .. } = run else { panic!("{name}: {run:?}") };
            assert_eq!((pointer.psize(), pointer.asize()), (4096, 12288), "{name}: {pointer}");
        }
    }
    lab.check();
}

/// The pool kept the number of what was destroyed: its properties could not be read any more, or, when the number was
/// another dataset's, that one was what machines boot from.
#[tokio::test(start_paused = true)]
async fn the_file_system_to_boot_from_is_forgotten_when_it_is_destroyed() {
    let mut lab = Lab::new("d0", 12, 5).await;
    lab.filesystem("tank/root", false).await.unwrap();
    lab.filesystem("tank/other", false).await.unwrap();
    let view = lab.running.engine.view();
    let object = view.dsl().await.unwrap().lookup("tank/root").await.unwrap().object();
    // As other software sets it.
    lab.run("bootfs", false, move |cx| {
        Box::pin(async move { dsl::set_pool(cx, &props(&[("bootfs", object)])).await })
    })
    .await
    .unwrap();
    for (destroyed, left) in [("tank/other", "tank/root"), ("tank/root", "-")] {
        lab.destroy(destroyed).await.unwrap();
        let view = lab.running.engine.view();
        let properties = view.properties().await.unwrap();
        let shown = properties.get("bootfs").map(|property| property.value.clone());
        assert_eq!(shown, Some(Value::Text(left.to_owned())));
        let stored = view.directory().get_u64("pool_props").await.unwrap().unwrap();
        let stored = pool::zap::Zap::open_in(view.mos(), stored).await.unwrap();
        let kept = stored.get_u64("bootfs").await.unwrap();
        assert_eq!(kept, (destroyed == "tank/other").then_some(object));
    }
    lab.check();
}

#[tokio::test(start_paused = true)]
async fn snapshots_share_and_give_back_exactly() {
    let mut lab = Lab::new("d0", 12, 4).await;
    lab.create("tank/v", Properties::new()).await.unwrap();
    lab.write("tank/v", 0..40).await;
    lab.snapshot(&["tank/v@a", "tank@a"]).await.unwrap();
    lab.check();
    let at_a = lab.read("tank/v@a").await;
    lab.write("tank/v", 10..20).await;
    assert!(lab.number("tank/v@a", "used").await >= 10 * u64::from(BLOCK));
    lab.snapshot(&["tank/v@b"]).await.unwrap();
    lab.write("tank/v", 15..25).await;
    lab.snapshot(&["tank/v@c"]).await.unwrap();
    lab.write("tank/v", 0..5).await;
    lab.check();
    assert_eq!(lab.read("tank/v@a").await, at_a);
    assert_eq!(refusal(lab.snapshot(&["tank/v@c"]).await), "dataset already exists");
    assert_eq!(
        refusal(lab.snapshot(&["tank/v@d", "tank/v@e"]).await),
        "multiple snapshots of same fs not allowed"
    );
    assert_eq!(refusal(lab.snapshot(&["tank/w@d"]).await), "dataset does not exist");
    assert_eq!(refusal(lab.destroy("tank/v").await), "volume has children");
    // The middle one, the newest, the oldest.
    for name in ["tank/v@b", "tank/v@c", "tank/v@a"] {
        lab.destroy_snapshot(name, false).await.unwrap();
        lab.check();
    }
    assert_eq!(lab.number("tank/v", "usedbysnapshots").await, 0);
    lab.check_with_zdb();
}

/// Seeds to play: two, or as many as `MILLPOND_SEEDS` says, from `MILLPOND_SEED` on.
fn seeds() -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse().ok());
    let first = number("MILLPOND_SEED").unwrap_or(0);
    first..first + number("MILLPOND_SEEDS").unwrap_or(2)
}

/// All the ways to take a family of clones apart: whatever is refused is tried again later.
#[tokio::test(start_paused = true)]
async fn families_of_clones_come_apart_in_any_order() {
    for seed in seeds() {
        let mut lab = Lab::new(if seed % 2 == 0 { "d0" } else { "raidz1 d0 d1 d2" }, 12, 100 + seed).await;
        lab.create("tank/v", Properties::new()).await.unwrap();
        lab.write("tank/v", 0..30).await;
        lab.snapshot(&["tank/v@a"]).await.unwrap();
        lab.write("tank/v", 5..15).await;
        lab.snapshot(&["tank/v@b"]).await.unwrap();
        lab.write("tank/v", 10..20).await;
        lab.snapshot(&["tank/v@c"]).await.unwrap();
        lab.clone("tank/v@b", "tank/x").await.unwrap();
        lab.check();
        lab.write("tank/x", 0..12).await;
        lab.snapshot(&["tank/x@p"]).await.unwrap();
        lab.write("tank/x", 12..24).await;
        lab.clone("tank/x@p", "tank/y").await.unwrap();
        lab.clone("tank/v@a", "tank/z").await.unwrap();
        lab.write("tank/y", 3..6).await;
        lab.write("tank/v", 0..3).await;
        lab.check();
        let mut left: Vec<String> = strings(&["tank/v", "tank/x", "tank/y", "tank/z"]);
        let mut expected = std::collections::BTreeMap::new();
        for name in &left {
            expected.insert(name.clone(), lab.read(name).await);
        }
        left.extend(strings(&["tank/v@a", "tank/v@b", "tank/v@c", "tank/x@p"]));
        for _ in 0..60 {
            if left.is_empty() {
                break;
            }
            // A promoted clone takes its snapshots along, so names are looked up anew each time.
            let mut order = left.clone();
            order.shuffle(&mut lab.random);
            let name = order[0].clone();
            let heads: Vec<String> = left.iter().filter(|n| !n.contains('@')).cloned().collect();
            let result = match name.split_once('@') {
                None if lab.random.random() => lab.promote(&name).await,
                None => lab.destroy(&name).await,
                Some((_, last)) => {
                    let mut result = Err(OpError::NoDataset);
                    for head in &heads {
                        let full = format!("{head}@{last}");
                        match lab.destroy_snapshot(&full, false).await {
                            Err(OpError::NoDataset) => {}
                            other => {
                                result = other;
                                break;
                            }
                        }
                    }
                    result
                }
            };
            let step = lab.steps.last().cloned().unwrap_or_default();
            match result {
                Ok(()) if !step.starts_with("promote") => left.retain(|other| *other != name),
                Ok(()) => {}
                Err(OpError::Refused(_)) => continue,
                Err(error) => panic!("{step}: {error}; {:#?}", lab.steps),
            }
            lab.settle().await;
            lab.check();
            for (name, bytes) in &expected {
                if left.contains(name) {
                    assert!(lab.read(name).await == *bytes, "{name} changed: {:#?}", lab.steps);
                }
            }
        }
        assert!(left.is_empty(), "{left:?} are left: {:#?}", lab.steps);
        assert_eq!(lab.number(POOL, "usedbychildren").await, mos_bytes(&lab).await);
        if seed == seeds().start {
            lab.check_with_zdb();
        }
    }
}

/// What the pool's own directories use.
async fn mos_bytes(lab: &Lab) -> u64 {
    let view = lab.running.engine.view();
    let root = view.dsl().await.unwrap().root().await.unwrap();
    let map = root.dir().phys().child_map;
    let children = pool::zap::Zap::open_in(view.mos(), map).await.unwrap().numbers().await.unwrap();
    let mut sum = 0;
    for (_, object) in children {
        sum += view.dsl().await.unwrap().dir(object).await.unwrap().phys().used_bytes;
    }
    sum
}

#[tokio::test(start_paused = true)]
async fn a_rolled_back_volume_is_its_snapshot_again() {
    let mut lab = Lab::new("d0", 12, 5).await;
    lab.create("tank/v", props(&[("refreservation", 2 << 20)])).await.unwrap();
    lab.check();
    lab.write("tank/v", 0..30).await;
    lab.check();
    lab.snapshot(&["tank/v@a"]).await.unwrap();
    lab.check();
    let at_a = lab.read("tank/v@a").await;
    lab.write("tank/v", 10..50).await;
    let open = lab.running.engine.volume("tank/v").await.unwrap();
    assert!(content(open.as_ref()).await != at_a);
    lab.rollback("tank/v@a").await.unwrap();
    lab.settle().await;
    lab.check();
    assert_eq!(lab.number("tank/v@a", "used").await, 0);
    assert!(lab.read("tank/v").await == at_a);
    assert!(content(open.as_ref()).await == at_a, "the open volume shows it");
    // Twice, with nothing in between; then with a newer snapshot, and in a clone.
    lab.rollback("tank/v@a").await.unwrap();
    lab.snapshot(&["tank/v@b"]).await.unwrap();
    assert_eq!(refusal(lab.rollback("tank/v@a").await), "more recent snapshots or bookmarks exist");
    lab.clone("tank/v@a", "tank/c").await.unwrap();
    lab.write("tank/c", 0..10).await;
    lab.snapshot(&["tank/c@x"]).await.unwrap();
    lab.write("tank/c", 5..20).await;
    lab.rollback("tank/c@x").await.unwrap();
    lab.settle().await;
    lab.check();
    lab.write("tank/c", 1..2).await;
    lab.check();
    lab.check_with_zdb();
}

#[tokio::test(start_paused = true)]
async fn names_move_with_their_space() {
    let mut lab = Lab::new("d0", 12, 6).await;
    for name in ["tank/a", "tank/b", "tank/a/d"] {
        lab.filesystem(name, false).await.unwrap();
    }
    lab.create("tank/a/d/v", props(&[("reservation", 4 << 20)])).await.unwrap();
    lab.write("tank/a/d/v", 0..40).await;
    lab.snapshot(&["tank/a/d/v@s", "tank/a@s", "tank/a/d@s"]).await.unwrap();
    lab.check();
    lab.rename("tank/a/d", "tank/b/e", false).await.unwrap();
    lab.check();
    let open = lab.running.engine.volume("tank/b/e/v").await.unwrap();
    assert_eq!(open.dataset(), lab.number("tank/b/e/v", "objsetid").await);
    lab.rename("tank/b/e@s", "tank/b/e@t", true).await.unwrap();
    lab.check();
    assert_eq!(lab.number("tank/b/e/v@t", "volsize").await, SIZE);
    assert_eq!(lab.number("tank/a@s", "version").await, 5);
    lab.rename("tank/b/e/v", "tank/v", false).await.unwrap();
    lab.check();
    assert_eq!(
        refusal(lab.rename("tank/b", "tank/b/x", false).await),
        "new dataset name cannot be a descendant of current dataset name"
    );
    assert_eq!(refusal(lab.rename("tank/b", "tank/a", false).await), "dataset already exists");
    assert_eq!(refusal(lab.rename("tank/b", "tank/v/x", false).await), "parent is not a filesystem");
    assert_eq!(refusal(lab.rename("tank/b", "pond/b", false).await), "datasets must be within same pool");
    assert_eq!(
        refusal(lab.rename("tank/v@t", "tank/b@u", false).await),
        "snapshots must be part of same dataset"
    );
    lab.set("tank/b", &[("quota", 1 << 20)]).await.unwrap();
    assert_eq!(refusal(lab.rename("tank/v", "tank/b/v", false).await), "out of space");
    lab.check();
}

async fn directory(cx: &mut Syncer, object: u64) -> DirPhys {
    DirPhys::decode(&cx.mos.bonus(object).await.unwrap(), Order::Little).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_clone_is_not_promoted_to_snapshots_with_names_that_are_too_long() {
    let mut lab = Lab::new("d0", 12, 26).await;
    lab.create("tank/v", Properties::new()).await.unwrap();
    let snapshot = format!("tank/v@{}", "s".repeat(100));
    lab.snapshot(&[&snapshot]).await.unwrap();
    // "tank/", "@" and the snapshot's name: 106 of 255.
    for (bytes, fits) in [(150, false), (149, true)] {
        let clone = format!("tank/{}", "c".repeat(bytes));
        lab.clone(&snapshot, &clone).await.unwrap();
        let promoted = lab.promote(&clone).await;
        if fits {
            promoted.unwrap();
        } else {
            assert_eq!(refusal(promoted), "name is too long");
        }
        lab.check();
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_grows_and_shrinks() {
    let mut lab = Lab::new("d0", 12, 8).await;
    let thick = dsl::default_refreservation(SIZE, BLOCK, 1, BLOCK.into());
    lab.create("tank/v", props(&[("refreservation", thick)])).await.unwrap();
    lab.write("tank/v", 0..64).await;
    let before = lab.read("tank/v").await;
    let open = lab.running.engine.volume("tank/v").await.unwrap();
    lab.set("tank/v", &[("volsize", 2 * SIZE)]).await.unwrap();
    assert_eq!(open.geometry().size, 2 * SIZE);
    let reserved = lab.number("tank/v", "refreservation").await;
    assert_eq!(reserved, dsl::default_refreservation(2 * SIZE, BLOCK, 1, BLOCK.into()));
    lab.write("tank/v", 100..110).await;
    lab.check();
    assert!(lab.read("tank/v").await[..SIZE as usize] == before);
    lab.snapshot(&["tank/v@s"]).await.unwrap();
    lab.set("tank/v", &[("volsize", SIZE / 2)]).await.unwrap();
    lab.check();
    assert!(lab.read("tank/v").await == before[..SIZE as usize / 2]);
    lab.set("tank/v", &[("volsize", SIZE)]).await.unwrap();
    lab.check();
    assert!(
        lab.read("tank/v").await[SIZE as usize / 2..].iter().all(|byte| *byte == 0),
        "what was cut off is gone"
    );
    assert!(lab.read("tank/v@s").await[..SIZE as usize] == before);
    assert_eq!(
        refusal(lab.set("tank/v", &[("volsize", SIZE + 1)]).await),
        "volume size must be a multiple of volume block size"
    );
}

#[tokio::test(start_paused = true)]
async fn holds_keep_snapshots_and_release_lets_them_go() {
    let mut lab = Lab::new("d0", 12, 9).await;
    lab.create("tank/v", Properties::new()).await.unwrap();
    lab.write("tank/v", 0..10).await;
    lab.snapshot(&["tank/v@a"]).await.unwrap();
    lab.hold("tank/v@a").await.unwrap();
    assert_eq!(refusal(lab.hold("tank/v@a").await), "tag already exists on this dataset");
    lab.check();
    assert_eq!(
        refusal(lab.destroy_snapshot("tank/v@a", false).await),
        "it's being held. Run 'zfs holds -r tank/v@a' to see holders."
    );
    lab.destroy_snapshot("tank/v@a", true).await.unwrap();
    assert_eq!(lab.number("tank/v@a", "defer_destroy").await, 1);
    lab.release("tank/v@a").await.unwrap();
    assert_eq!(refusal(lab.release("tank/v@a").await), "dataset does not exist");
    lab.check();
    // A clone keeps its origin as well, and takes it along if that was asked for.
    lab.snapshot(&["tank/v@b"]).await.unwrap();
    lab.clone("tank/v@b", "tank/c").await.unwrap();
    lab.write("tank/v", 2..5).await;
    assert_eq!(refusal(lab.destroy_snapshot("tank/v@b", false).await), "snapshot has dependent clones");
    lab.destroy_snapshot("tank/v@b", true).await.unwrap();
    lab.check();
    lab.destroy("tank/c").await.unwrap();
    lab.settle().await;
    lab.check();
    assert_eq!(refusal(lab.destroy_snapshot("tank/v@b", false).await), "dataset does not exist");
}

#[tokio::test(start_paused = true)]
async fn bookmarks_outlive_their_snapshots() {
    let mut lab = Lab::new("d0", 12, 10).await;
    lab.create("tank/v", Properties::new()).await.unwrap();
    for (name, blocks) in [("tank/v@a", 0..20), ("tank/v@b", 5..15), ("tank/v@c", 10..12)] {
        lab.write("tank/v", blocks).await;
        lab.snapshot(&[name]).await.unwrap();
    }
    let guid = lab.number("tank/v@b", "guid").await;
    lab.bookmark("tank/v@b", "tank/v#b").await.unwrap();
    lab.bookmark("tank/v#b", "tank/v#again").await.unwrap();
    assert_eq!(lab.feature("com.delphix:bookmarks").await, 1);
    assert_eq!(refusal(lab.bookmark("tank/v@a", "tank/v#b").await), "bookmark exists");
    assert_eq!(
        refusal(lab.bookmark("tank/v@a", "tank#a").await),
        "source is not an ancestor of the new bookmark's dataset"
    );
    lab.check();
    lab.destroy_snapshot("tank/v@b", false).await.unwrap();
    lab.write("tank/v", 0..30).await;
    lab.check();
    assert_eq!(lab.number("tank/v#b", "guid").await, guid);
    lab.destroy_bookmark("tank/v#b").await.unwrap();
    lab.check();
    lab.destroy_bookmark("tank/v#again").await.unwrap();
    assert_eq!(lab.feature("com.delphix:bookmarks").await, 0);
    lab.check();
    lab.bookmark("tank/v@c", "tank/v#c").await.unwrap();
    for name in ["tank/v@a", "tank/v@c"] {
        lab.destroy_snapshot(name, false).await.unwrap();
        lab.check();
    }
    lab.destroy("tank/v").await.unwrap();
    lab.settle().await;
    assert_eq!(lab.feature("com.delphix:bookmarks").await, 0);
    lab.check();
}

/// The walk of a destroyed tree stops after any number of blocks and goes on where it stopped.
#[tokio::test(start_paused = true)]
async fn freeing_in_small_portions_frees_everything_once() {
    let mut lab = Lab::new("d0", 12, 11).await;
    lab.create("tank/v", Properties::new()).await.unwrap();
    lab.write("tank/v", 0..64).await;
    lab.snapshot(&["tank/v@s"]).await.unwrap();
    lab.clone("tank/v@s", "tank/c").await.unwrap();
    lab.write("tank/c", 7..50).await;
    lab.filesystem("tank/f", false).await.unwrap();
    for name in ["tank/c", "tank/f"] {
        let owned = name.to_owned();
        lab.run(&format!("destroy {name}, 5 blocks at a time"), false, move |cx| {
            Box::pin(async move {
                dsl::destroy_head(cx, &owned).await?;
                let mut rounds = 0;
                while dsl::free_some(cx, 5).await? {
                    rounds += 1;
                    assert!(rounds < 100, "it never ends");
                }
                assert!(rounds > 0 || owned == "tank/f");
                Ok(())
            })
        })
        .await
        .unwrap();
        lab.check();
    }
    let name = vec!["tank/v@s".to_owned()];
    lab.write("tank/v", 0..60).await;
    lab.run("destroy tank/v@s, 7 blocks at a time", false, move |cx| {
        Box::pin(async move {
            dsl::destroy_snapshots(cx, &name, false).await?;
            while dsl::free_some(cx, 7).await? {}
            Ok(())
        })
    })
    .await
    .unwrap();
    lab.check();
    let view = lab.running.engine.view();
    let root = view.dsl().await.unwrap().root().await.unwrap();
    let map = pool::zap::Zap::open_in(view.mos(), root.dir().phys().child_map).await.unwrap();
    let free = map.get_u64("$FREE").await.unwrap().unwrap();
    let free = view.dsl().await.unwrap().dir(free).await.unwrap().phys().used_bytes;
    assert_eq!(free, 0, "nothing waits to be freed");
}

/// A tree of three levels: the walk stops in the middle of blocks of pointers and finds its way back.
#[tokio::test(start_paused = true)]
async fn a_deep_tree_is_freed_in_portions() {
    let mut lab = Lab::new("d0", 9, 13).await;
    let new = NewVolume {
        name: "tank/v".into(),
        size: 4 << 20,
        block: 512,
        properties: props(&[("compression", 2)]),
        parents: false,
    };
    lab.run("create -V -b 512", false, move |cx| {
        let new = new;
        Box::pin(async move { dsl::create_volume(cx, &new).await })
    })
    .await
    .unwrap();
    let volume = lab.running.engine.volume("tank/v").await.unwrap();
    let mut bytes = vec![0; 1600 << 10];
    lab.random.fill(&mut bytes[..]);
    volume.write(256 << 10, data(bytes), Durability::Cached).await.unwrap();
    lab.running.engine.sync().await.unwrap();
    lab.check();
    lab.run("destroy tank/v, 700 blocks", false, move |cx| {
        Box::pin(async move {
            dsl::destroy_head(cx, "tank/v").await?;
            assert!(dsl::free_some(cx, 700).await?, "there is more");
            assert!(dsl::free_some(cx, 900).await?, "there is more");
            while dsl::free_some(cx, 500).await? {}
            Ok(())
        })
    })
    .await
    .unwrap();
    lab.check();
    assert!(lab.number(POOL, "used").await < 1 << 20);
}

/// More blocks than one transaction group frees: the pool on disk between two of them is whole, for us and for `zdb`,
/// and whoever opens it goes on.
#[tokio::test(start_paused = true)]
async fn a_pool_left_in_the_middle_of_freeing_is_whole_and_goes_on() {
    const CHUNK: usize = 1 << 20;
    let mut lab = Lab::new("d0", 9, 14).await;
    let new = NewVolume {
        name: "tank/v".into(),
        size: 32 << 20,
        block: 512,
        properties: props(&[("compression", 2)]),
        parents: false,
    };
    lab.run("create -V -b 512", false, move |cx| Box::pin(async move { dsl::create_volume(cx, &new).await }))
        .await
        .unwrap();
    let volume = lab.running.engine.volume("tank/v").await.unwrap();
    let mut bytes = vec![0; CHUNK];
    for chunk in 0..28 {
        lab.random.fill(&mut bytes[..]);
        volume.write(chunk * CHUNK as u64, data(bytes.clone()), Durability::Cached).await.unwrap();
    }
    lab.running.engine.sync().await.unwrap();
    lab.destroy("tank/v").await.unwrap();
    let waiting = lab.running.engine.view().directory().get_u64("bptree_obj").await.unwrap();
    assert!(waiting.is_some(), "all was freed at once: this test needs more blocks");
    lab.world.verify("in the middle of freeing").await;
    lab.check_with_zdb();
    // The machine stops here, and another one takes over.
    let Lab { mut world, running, random, steps } = lab;
    world.cut(running).await;
    let running = world.open().await;
    let mut lab = Lab { world, running, random, steps };
    lab.settle().await;
    lab.check();
    assert!(lab.number(POOL, "used").await < 1 << 20);
}

#[tokio::test(start_paused = true)]
async fn properties_come_and_go() {
    let mut lab = Lab::new("d0", 12, 12).await;
    lab.filesystem("tank/a", false).await.unwrap();
    lab.create("tank/a/v", Properties::new()).await.unwrap();
    lab.set("tank/a", &[("sync", 2), ("compression", 2)]).await.unwrap();
    assert_eq!(lab.number("tank/a/v", "sync").await, 2);
    lab.set("tank/a/v", &[("sync", 1)]).await.unwrap();
    assert_eq!(lab.number("tank/a/v", "sync").await, 1);
    lab.run("inherit sync", false, |cx| {
        Box::pin(async move { dsl::inherit(cx, "tank/a/v", "sync", false).await })
    })
    .await
    .unwrap();
    assert_eq!(lab.number("tank/a/v", "sync").await, 2);
    let user: Properties = [("org.millpond:note".to_owned(), Stored::Text("kept".to_owned()))].into();
    lab.snapshot(&["tank/a/v@s"]).await.unwrap();
    for name in ["tank/a", "tank/a/v@s"] {
        let user = user.clone();
        lab.run("set a note", false, move |cx| Box::pin(async move { dsl::set(cx, name, &user).await }))
            .await
            .unwrap();
        let view = lab.running.engine.view();
        let dataset = view.dsl().await.unwrap().lookup(name).await.unwrap();
        let properties = dataset.properties().await.unwrap();
        assert_eq!(properties.print("org.millpond:note", pool::props::Style::Exact), "kept");
    }
    assert_eq!(
        refusal(lab.set("tank/a/v", &[("checksum", 14)]).await),
        "pool must be upgraded to set this property or value"
    );
    assert_eq!(refusal(lab.set("tank/b", &[("sync", 1)]).await), "dataset does not exist");
    lab.check();
}

/// They were stored, and the first file that OpenZFS wrote there took up a feature that the pool has not.
#[tokio::test(start_paused = true)]
async fn what_only_files_take_is_refused_where_the_pool_lacks_the_feature() {
    let mut lab = Lab::new("d0", 12, 9).await;
    lab.filesystem("tank/a", false).await.unwrap();
    for (name, value, plain, guid) in
        [("dnodesize", 1, 0, "org.zfsonlinux:large_dnode"), ("longname", 1, 0, "org.zfsonlinux:longname")]
    {
        let why = refusal(lab.set("tank/a", &[(name, value)]).await);
        assert_eq!(why, "pool must be upgraded to set this property or value", "{name}");
        let given = props(&[(name, value)]);
        let what = format!("create with {name}");
        let new = lab.run(&what, false, move |cx| {
            Box::pin(async move { dsl::create_filesystem(cx, "tank/b", &given, false).await })
        });
        assert_eq!(refusal(new.await), why, "{name}");
        lab.set("tank/a", &[(name, plain)]).await.unwrap();
        lab.run("enable", false, move |cx| {
            Box::pin(async move { Ok(engine::mos::features::enable(&mut cx.mos, guid, cx.txg).await?) })
        })
        .await
        .unwrap();
        lab.set("tank/a", &[(name, value)]).await.unwrap();
    }
    // Pools that are made here have the one for this.
    lab.set("tank/a", &[("recordsize", 1 << 20)]).await.unwrap();
    lab.check();
}

/// With feature `head_errlog` what had been lost of a head was counted on when that was gone, as another dataset's as soon as
/// its number was given out again. What a snapshot has lost is known whoever its head is.
#[tokio::test(start_paused = true)]
async fn the_error_log_forgets_a_head_and_not_the_snapshots_that_leave_it() {
    use std::collections::BTreeSet;

    use engine::mos::{DIRECTORY, features};
    use ondisk::dnode::ObjectType;

    let mut lab = Lab::new("d0", 12, 11).await;
    lab.create("tank/v", Properties::new()).await.unwrap();
    lab.write("tank/v", 0..10).await;
    lab.snapshot(&["tank/v@s"]).await.unwrap();
    lab.clone("tank/v@s", "tank/c").await.unwrap();
    lab.clone("tank/v@s", "tank/d").await.unwrap();
    let view = lab.running.engine.view();
    let dsl = view.dsl().await.unwrap();
    let txg = dsl.lookup("tank/v@s").await.unwrap().create_txg();
    let mut heads = [0; 3];
    for (head, name) in heads.iter_mut().zip(["tank/v", "tank/c", "tank/d"]) {
        *head = dsl.lookup(name).await.unwrap().object();
    }
    let [origin, promoted, _] = heads;
    // Of each head one block that the snapshot has, and one that it has not.
    lab.run("lose blocks", false, move |cx| {
        Box::pin(async move {
            features::enable(&mut cx.mos, "com.delphix:head_errlog", cx.txg).await?;
            let log = zap::create(&mut cx.mos, ObjectType::ERROR_LOG, 0).await?;
            zap::set_u64(&mut cx.mos, DIRECTORY, "errlog_last", log).await?;
            for (block, head) in heads.into_iter().enumerate() {
                let list = zap::create(&mut cx.mos, ObjectType::ERROR_LOG, 0).await?;
                zap::set_u64(&mut cx.mos, log, &format!("{head:x}"), list).await?;
                for birth in [txg, txg + 1] {
                    let (key, text) = (format!("1:0:{block}:{birth:x}"), ondisk::zap::Value::from_text(""));
                    zap::set(&mut cx.mos, list, key.as_str().into(), text).await?;
                }
            }
            Ok(())
        })
    })
    .await
    .unwrap();
    let (then, later) = (Some(txg), Some(txg + 1));
    let logged = async |lab: &Lab| {
        let log = pool::status::error_log(&lab.running.engine.view()).await.unwrap();
        let of = |entry: pool::status::LoggedError| (entry.at.objset, entry.at.blkid, entry.birth);
        log.into_iter().map(of).collect::<BTreeSet<_>>()
    };
    lab.destroy("tank/d").await.unwrap();
    let mut left = BTreeSet::from([
        (origin, 0, then),
        (origin, 0, later),
        (promoted, 1, then),
        (promoted, 1, later),
        (origin, 2, then),
    ]);
    assert_eq!(logged(&lab).await, left);
    lab.promote("tank/c").await.unwrap();
    lab.destroy("tank/v").await.unwrap();
    left = [(0, then), (1, then), (1, later), (2, then)].map(|(block, born)| (promoted, block, born)).into();
    assert_eq!(logged(&lab).await, left);
    lab.destroy_snapshot("tank/c@s", false).await.unwrap();
    lab.destroy("tank/c").await.unwrap();
    assert_eq!(logged(&lab).await, BTreeSet::new());
    lab.settle().await;
    // Nothing of the lists is left over.
    lab.check();
    lab.check_with_zdb();
}
