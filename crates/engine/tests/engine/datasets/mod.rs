//! What the commands do to a pool's datasets, judged by the reference checker, which recomputes every counter,
//! list and link of docs/format/mos.md from the blocks themselves, and by `zdb`. Here are the pool and the commands; the tests
//! lie beside.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly, its helpers too")]
#![allow(clippy::large_futures, reason = "a test's task may be large")]

mod destroyed;
mod encrypted;
mod limits;
mod names;
mod old;
mod properties;
mod snapshots;

use std::process::Command;

use crate::support::{self, POOL, Running, World, content, data, seeds};
use block::{BlockVolume, Durability};
use engine::{
    dsl::{self, NewVolume, OpError, Properties, Stored},
    engine::OpFuture,
    sync::Syncer,
};
use ondisk::{Order, dsl::DirPhys};
use rand::{Rng, SeedableRng, rngs::StdRng};

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
        support::run(&self.running.engine, is_snapshot, op).await
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

    /// Bytes that a volume or snapshot has and `since` has not.
    async fn written_since(&self, name: &str, since: &str) -> u64 {
        let view = self.running.engine.view();
        let datasets = view.dsl().await.unwrap();
        let since = datasets.lookup(since).await.unwrap();
        datasets.lookup(name).await.unwrap().written_since(&since).await.unwrap().expect("it comes from it")
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

async fn directory(cx: &mut Syncer, object: u64) -> DirPhys {
    DirPhys::decode(&cx.mos.bonus(object).await.unwrap(), Order::Little).unwrap()
}
