//! Families of datasets that OpenZFS made, taken further at random: written, snapshotted, cloned, promoted, rolled
//! back, renamed, destroyed. The reference checker recomputes every counter and link on the way, contents are
//! compared with what they were, and in the end `zdb` judges.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly, its helpers too")]
#![allow(clippy::large_futures, reason = "a test's task may be large")]

use std::collections::BTreeMap;

use crate::{
    files::{check, export, reopen, sync},
    support::seeds,
};
use bytes::Bytes;
use engine::{
    dsl::{self, Dirty, OpError, Properties},
    sync::{Syncer, Task, Work},
};
use pool::dsl::{DatasetKind, HeadKind};
use rand::{Rng, SeedableRng, rngs::StdRng};

/// Pools in the repository.
const FIXTURES: [&str; 4] = ["volblocks", "manytxg", "raidz1x3", "files"];
/// Others: clones and promotion; a livelist, bookmarks that count; no features at all; gangs; a log device.
const MORE: [&str; 5] = ["snapclone", "streams", "nofeatures", "gang", "slog"];
/// Random steps per pool.
const STEPS: usize = 24;
/// Volumes larger than this are not compared.
const COMPARED_MAX: u64 = 64 << 20;

struct Family {
    cx: Syncer,
    random: StdRng,
    contents: BTreeMap<String, Vec<u8>>,
    log: Vec<String>,
    names: u32,
}

/// A dataset as found.
#[derive(Clone, Debug)]
struct Found {
    name: String,
    object: u64,
    is_snapshot: bool,
    is_volume: bool,
    block: u64,
    size: u64,
}

impl Family {
    async fn datasets(&self) -> Vec<Found> {
        let view = self.cx.view.clone().unwrap();
        let (all, errors) = view.datasets().await.unwrap();
        assert!(errors.is_empty(), "{errors:?}");
        let mut found = Vec::new();
        for dataset in all {
            if dataset.kind() == DatasetKind::Bookmark || dataset.is_encrypted() {
                continue;
            }
            let is_volume = dataset.head_kind() == HeadKind::Volume;
            let (mut size, mut block) = (0, 0);
            if is_volume {
                let shape = pool::volume::shape(dataset.objset().await.unwrap().as_ref()).await.unwrap();
                (size, block) = (shape.size, shape.block);
            }
            found.push(Found {
                name: dataset.name().to_owned(),
                object: dataset.object(),
                is_snapshot: dataset.kind() == DatasetKind::Snapshot,
                is_volume,
                block,
                size,
            });
        }
        found
    }

    async fn read(&self, dataset: &Found) -> Vec<u8> {
        let view = self.cx.view.clone().unwrap();
        let volume = view.open_volume(&dataset.name).await.unwrap();
        let mut bytes = Vec::new();
        for offset in (0..dataset.size).step_by(1 << 20) {
            let len = (dataset.size - offset).min(1 << 20) as usize;
            let read = block::BlockVolume::read(volume.as_ref(), offset, len).await.unwrap();
            bytes.extend(block::flatten(&read));
        }
        bytes
    }

    async fn compare(&self) {
        for dataset in self.datasets().await {
            if let Some(expected) = self.contents.get(&dataset.name) {
                assert!(self.read(&dataset).await == *expected, "{} changed: {:#?}", dataset.name, self.log);
            }
        }
    }

    /// Runs one command in a transaction group of its own.
    async fn command<F>(&mut self, what: String, is_snapshot: bool, run: F) -> Result<(), OpError>
    where
        F: for<'a> FnOnce(&'a mut Syncer) -> engine::engine::OpFuture<'a, ()> + Send + 'static,
    {
        let (tell, told) = std::sync::mpsc::channel();
        let task = Task {
            is_snapshot,
            run: Box::new(move |cx| {
                Box::pin(async move {
                    tell.send(run(cx).await).unwrap();
                    Ok(())
                })
            }),
            done: Box::new(|outcome| outcome.unwrap()),
        };
        let (txg, now) = (self.cx.txg, self.cx.now);
        let work = Work { tasks: vec![task], ..Work::default() };
        Box::pin(self.cx.sync_txg(txg, now, work)).await.unwrap();
        self.cx.txg += 1;
        let outcome = told.recv().unwrap();
        self.log.push(format!("{what}: {outcome:?}"));
        match &outcome {
            Err(OpError::Engine(error)) => panic!("{error}: {:#?}", self.log),
            _ => outcome,
        }
    }

    async fn write(&mut self, to: &Found) {
        let blocks = (to.size / to.block).min(512);
        let first = self.random.random_range(0..blocks);
        let count = self.random.random_range(1..=8).min(blocks - first);
        let mut dirty = Dirty::default();
        self.log.push(format!("write {} {first}+{count}", to.name));
        for blkid in first..first + count {
            let mut bytes = vec![0; to.block as usize];
            self.random.fill(&mut bytes[..]);
            if let Some(content) = self.contents.get_mut(&to.name) {
                content[(blkid * to.block) as usize..][..bytes.len()].copy_from_slice(&bytes);
            }
            dirty.blocks.push((blkid, Bytes::from(bytes).into()));
        }
        if first > 2 {
            dirty.freed.push(0..1);
            if let Some(content) = self.contents.get_mut(&to.name) {
                content[..to.block as usize].fill(0);
            }
        }
        let (txg, now) = (self.cx.txg, self.cx.now);
        let work = Work { volumes: vec![(to.object, dirty)], ..Work::default() };
        Box::pin(self.cx.sync_txg(txg, now, work)).await.unwrap();
        self.cx.txg += 1;
    }

    /// Renames what is remembered of datasets whose names begin with `from`.
    fn rename_contents(&mut self, from: &str, to: &str) {
        let old = std::mem::take(&mut self.contents);
        for (name, content) in old {
            let name = match name.strip_prefix(from) {
                Some(rest) if rest.is_empty() || rest.starts_with(['@', '/']) => format!("{to}{rest}"),
                _ => name,
            };
            self.contents.insert(name, content);
        }
    }

    async fn step(&mut self) {
        let all = self.datasets().await;
        let pick = |random: &mut StdRng, wanted: &dyn Fn(&Found) -> bool| {
            let fitting: Vec<&Found> = all.iter().filter(|found| wanted(found)).collect();
            (!fitting.is_empty()).then(|| fitting[random.random_range(0..fitting.len())].clone())
        };
        let root = self.cx.name.clone();
        self.names += 1;
        let fresh = self.names;
        let head = |found: &Found| !found.is_snapshot && found.name.contains('/');
        let result = match self.random.random_range(0..16) {
            0..4 => {
                let Some(to) = pick(&mut self.random, &|found| head(found) && found.is_volume) else {
                    return;
                };
                self.write(&to).await;
                Ok(())
            }
            4..7 => {
                let Some(of) = pick(&mut self.random, &head) else { return };
                let name = format!("{}@r{fresh}", of.name);
                if let Some(content) = self.contents.get(&of.name).cloned() {
                    self.contents.insert(name.clone(), content);
                }
                let names = [name];
                self.command(format!("snapshot {names:?}"), true, move |cx| {
                    Box::pin(async move { dsl::snapshot(cx, &names, &Properties::new()).await })
                })
                .await
            }
            7..9 => {
                let Some(of) = pick(&mut self.random, &|found| found.is_snapshot) else { return };
                let (from, to) = (of.name.clone(), format!("{root}/r{fresh}"));
                if let Some(content) = self.contents.get(&from).cloned() {
                    self.contents.insert(to.clone(), content);
                }
                self.command(format!("clone {from} {to}"), false, move |cx| {
                    Box::pin(async move { dsl::clone(cx, &from, &to, &Properties::new(), false).await })
                })
                .await
            }
            9..11 => {
                let Some(of) = pick(&mut self.random, &head) else { return };
                let name = of.name.clone();
                let origin = {
                    let view = self.cx.view.clone().unwrap();
                    let dataset = view.dsl().await.unwrap().lookup(&name).await.unwrap();
                    dataset.origin().await.unwrap()
                };
                let before: Vec<(String, u64)> = all.iter().map(|f| (f.name.clone(), f.object)).collect();
                let result = self
                    .command(format!("promote {name} of {origin:?}"), false, move |cx| {
                        Box::pin(async move { dsl::promote(cx, &name).await })
                    })
                    .await;
                // Snapshots go by their objects.
                let mut moved = BTreeMap::new();
                for now in self.datasets().await {
                    if let Some((old, _)) = before.iter().find(|(_, object)| *object == now.object)
                        && let Some(content) = self.contents.remove(old)
                    {
                        moved.insert(now.name, content);
                    }
                }
                self.contents.append(&mut moved);
                result
            }
            11..13 => {
                let Some(of) = pick(&mut self.random, &|found| found.is_snapshot) else { return };
                let names = [of.name.clone()];
                self.command(format!("destroy {names:?}"), false, move |cx| {
                    Box::pin(async move { dsl::destroy_snapshots(cx, &names, false).await })
                })
                .await
                .map(|()| drop(self.contents.remove(&of.name)))
            }
            13 => {
                let Some(of) = pick(&mut self.random, &head) else { return };
                let name = of.name.clone();
                self.command(format!("destroy {name}"), false, move |cx| {
                    Box::pin(async move { dsl::destroy_head(cx, &name).await })
                })
                .await
                .map(|()| drop(self.contents.remove(&of.name)))
            }
            14 => {
                let Some(of) = pick(&mut self.random, &|found| found.is_snapshot) else { return };
                let name = of.name.clone();
                self.command(format!("rollback {name}"), false, move |cx| {
                    Box::pin(async move { dsl::rollback(cx, &name).await })
                })
                .await
                .map(|()| {
                    if let (Some(content), Some((head, _))) =
                        (self.contents.get(&of.name).cloned(), of.name.split_once('@'))
                    {
                        self.contents.insert(head.to_owned(), content);
                    }
                })
            }
            _ => {
                let Some(of) = pick(&mut self.random, &head) else { return };
                let (from, to) = (of.name.clone(), format!("{root}/n{fresh}"));
                let (old, new) = (from.clone(), to.clone());
                self.command(format!("rename {from} {to}"), false, move |cx| {
                    Box::pin(async move { dsl::rename(cx, &old, &new, false, false).await })
                })
                .await
                .map(|()| self.rename_contents(&from, &to))
            }
        };
        match result {
            Ok(()) | Err(OpError::Refused(_)) => {}
            Err(error) => panic!("{error}: {:#?}", self.log),
        }
    }
}

async fn play(name: &str, seed: u64) {
    let Some(fixture) = fixtures::try_pool(name) else { return };
    let copy = fixture.copy();
    let dir = copy.path();
    let cx = reopen(dir, seed).await.unwrap();
    let random = StdRng::seed_from_u64(seed);
    let log = vec![format!("fixture {name}, seed {seed}")];
    let mut family = Family { cx, random, contents: BTreeMap::new(), log, names: 0 };
    sync(&mut family.cx).await;
    for dataset in family.datasets().await {
        if dataset.is_volume && dataset.size <= COMPARED_MAX {
            let content = family.read(&dataset).await;
            family.contents.insert(dataset.name, content);
        }
    }
    for step in 0..STEPS {
        family.step().await;
        if step % 6 == 5 {
            // What was destroyed is freed in the meantime.
            sync(&mut family.cx).await;
            family.compare().await;
            check(dir).unwrap_or_else(|text| panic!("{:#?}\n{text}", family.log));
        }
    }
    let Family { mut cx, log, .. } = family;
    sync(&mut cx).await;
    let pool = cx.name.clone();
    export(cx).await;
    check(dir).unwrap_or_else(|text| panic!("{log:#?}\n{text}"));
    if fixtures::tool("zdb").is_some() {
        fixtures::zdb_check(&[], dir, &pool).unwrap_or_else(|text| panic!("{log:#?}\n{text}"));
    }
}

/// One seed of each pool, or as many as somebody asks for.
async fn play_all(names: &[&str]) {
    for seed in seeds(1..2) {
        for name in names {
            play(name, seed).await;
        }
    }
}

#[tokio::test]
async fn families_that_openzfs_began_are_continued() {
    play_all(&FIXTURES[..2]).await;
}

#[tokio::test]
async fn families_that_openzfs_began_are_continued_part_2() {
    play_all(&FIXTURES[2..]).await;
}

#[tokio::test]
async fn families_that_openzfs_began_are_continued_part_3() {
    play_all(&MORE[..2]).await;
}

#[tokio::test]
async fn families_that_openzfs_began_are_continued_part_4() {
    play_all(&MORE[2..]).await;
}
