//! Plays one history: does things to the pool and to the twin, and compares them.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use block::{BlockVolume, Durability, VolumeError};
use engine::{
    dsl::{self, NewVolume, OpError, Properties, Stored},
    engine::{Ending, OpFuture},
    mos::features,
    sync::Syncer,
    volume::LiveVolume,
};
use pool::props::index;
use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::{
    histories::pairwise::{BLOCKS, CHECKSUMS, COMPRESSIONS, Choice, Plan},
    histories::twin::{Snapshot, Twin, head},
    support::{self, POOL, Running, World, content, data, noise},
};

/// Bytes of a disk: the least OpenZFS takes, so that filling it is quick.
pub(crate) const DISK: u64 = 64 << 20;
/// Bytes of a volume in the beginning, and what its size is always a multiple of.
const SIZE: usize = 1 << 20;
const SIZE_STEP: usize = 128 << 10;
/// File system that some volumes are in.
pub(crate) const FS: &str = "tank/fs";
/// Features of checksums that new pools do not have, and others' pools do.
const LATER_FEATURES: [&str; 4] =
    ["org.illumos:sha512", "org.illumos:skein", "org.illumos:edonr", "org.openzfs:blake3"];

/// What a pool was like when it was new.
#[derive(Debug, Default)]
pub(crate) struct Fresh {
    pub(crate) used: u64,
    pub(crate) maps: u64,
    pub(crate) features: BTreeMap<String, u64>,
}

pub(crate) struct Player {
    pub(crate) world: World,
    pub(crate) running: Option<Running>,
    pub(crate) random: StdRng,
    pub(crate) twin: Twin,
    pub(crate) names: u32,
    pub(crate) plan: Plan,
    pub(crate) fresh: Fresh,
    pub(crate) images: PathBuf,
    /// What was done.
    pub(crate) log: Vec<String>,
    /// Images for the judges, and which they are.
    pub(crate) saved: Vec<(&'static str, PathBuf)>,
}

pub(crate) fn properties(choice: &Choice) -> Properties {
    let number = |words, word| Stored::Number(index::number(words, word).expect("a known word"));
    let mut properties = Properties::new();
    properties.insert("compression".into(), number(index::COMPRESSION, choice.compression));
    properties.insert("checksum".into(), number(index::CHECKSUM, choice.checksum));
    properties.insert("copies".into(), Stored::Number(choice.copies));
    properties
}

/// Tells the compiler that a closure's future lives as long as the syncer it is lent.
pub(crate) fn task<F>(op: F) -> F
where
    F: for<'a> FnOnce(&'a mut Syncer) -> OpFuture<'a, ()> + Clone + Send + 'static,
{
    op
}

impl Player {
    pub(crate) async fn new(seed: u64, plan: Plan, images: PathBuf) -> Self {
        let (world, running) = World::create(plan.layout, plan.ashift, DISK, seed).await;
        let log = vec![format!("{plan:?}")];
        Self {
            world,
            running: Some(running),
            random: StdRng::seed_from_u64(seed ^ 0x7157_0431),
            twin: Twin::default(),
            names: 0,
            plan,
            fresh: Fresh::default(),
            images,
            log,
            saved: Vec::new(),
        }
    }

    pub(crate) fn running(&self) -> &Running {
        self.running.as_ref().expect("the pool is open")
    }

    pub(crate) fn layout(&self) -> String {
        format!("{} ashift {}", self.plan.layout, self.plan.ashift)
    }

    pub(crate) fn note(&mut self, what: impl Into<String>) {
        self.log.push(what.into());
    }

    pub(crate) fn chance(&mut self, of: u32) -> bool {
        self.random.random_range(0..of) == 0
    }

    pub(crate) fn pick(&mut self, from: Vec<String>) -> Option<String> {
        (!from.is_empty()).then(|| from[self.random.random_range(0..from.len())].clone())
    }

    pub(crate) fn volume_names(&self) -> Vec<String> {
        self.twin.volumes.keys().cloned().collect()
    }

    /// Snapshots that are not about to go.
    pub(crate) fn snapshot_names(&self) -> Vec<String> {
        let staying = self.twin.snapshots.iter().filter(|(_, snapshot)| !snapshot.deferred);
        staying.map(|(name, _)| name.clone()).collect()
    }

    pub(crate) async fn run<F>(&self, op: F) -> Result<(), OpError>
    where
        F: for<'a> FnOnce(&'a mut Syncer) -> OpFuture<'a, ()> + Clone + Send + 'static,
    {
        self.running().engine.run(op).await
    }

    /// Runs a command that nothing but a lack of space may refuse; whether it was done.
    pub(crate) async fn command<F>(&mut self, what: String, is_snapshot: bool, op: F) -> bool
    where
        F: for<'a> FnOnce(&'a mut Syncer) -> OpFuture<'a, ()> + Clone + Send + 'static,
    {
        self.note(what.clone());
        match support::run(&self.running().engine, is_snapshot, op).await {
            Ok(()) => true,
            Err(OpError::NoSpace) => {
                self.note("  no space");
                false
            }
            Err(error) => panic!("{what}: {error}"),
        }
    }

    pub(crate) async fn live(&self, name: &str) -> Arc<LiveVolume> {
        self.running().engine.volume(name).await.unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// The new pool is measured, and gets its volumes.
    pub(crate) async fn begin(&mut self) {
        self.run(|cx| {
            Box::pin(async move {
                for guid in LATER_FEATURES {
                    features::enable(&mut cx.mos, guid, cx.txg).await?;
                }
                Ok(())
            })
        })
        .await
        .unwrap();
        self.fresh = self.measure().await;
        let fs = properties(&self.plan.volumes[0]);
        self.command(format!("create {FS}"), false, move |cx| {
            Box::pin(async move { dsl::create_filesystem(cx, FS, &fs, false).await })
        })
        .await;
        for choice in self.plan.volumes.clone() {
            self.create(choice).await;
        }
        for name in self.volume_names() {
            self.write_to(&name).await;
        }
        self.check("in the beginning").await;
    }

    pub(crate) async fn step(&mut self) {
        match self.random.random_range(0..100) {
            0..30 => self.write().await,
            30..38 => self.punch().await,
            38..50 => self.snapshot().await,
            50..56 => self.clone_snapshot().await,
            56..60 => self.promote().await,
            60..65 => self.rollback().await,
            65..70 => self.rename().await,
            70..74 => self.hold_or_release().await,
            74..77 => self.bookmark().await,
            77..81 => self.set().await,
            81..85 => self.resize().await,
            85..92 => self.destroy_snapshots().await,
            92..95 => self.destroy_volume().await,
            95..97 => {
                let choice = self.choice();
                self.create(choice).await;
            }
            _ => self.reopen().await,
        }
    }

    pub(crate) fn choice(&mut self) -> Choice {
        Choice {
            block: BLOCKS[self.random.random_range(0..BLOCKS.len())],
            compression: COMPRESSIONS[self.random.random_range(0..COMPRESSIONS.len())],
            checksum: CHECKSUMS[self.random.random_range(0..CHECKSUMS.len())],
            copies: self.random.random_range(1..=2),
        }
    }

    pub(crate) fn new_name(&mut self, letter: char) -> String {
        self.names += 1;
        let above = if self.random.random() { FS } else { POOL };
        format!("{above}/{letter}{}", self.names)
    }

    pub(crate) async fn create(&mut self, choice: Choice) {
        if self.twin.volumes.len() >= 9 {
            return;
        }
        let name = self.new_name('v');
        let mut properties = properties(&choice);
        let is_thick = self.chance(4);
        if is_thick {
            let bytes = dsl::default_refreservation(SIZE as u64, choice.block, 1, choice.block.into());
            properties.insert("refreservation".into(), Stored::Number(bytes));
        }
        let what = format!("create {name} {choice:?} thick {is_thick}");
        let new = NewVolume {
            name: name.clone(),
            size: SIZE as u64,
            block: choice.block,
            properties,
            parents: false,
        };
        let op = task(move |cx| Box::pin(async move { dsl::create_volume(cx, &new).await }));
        if self.command(what, false, op).await {
            self.twin.volumes.insert(name.clone(), vec![0; SIZE]);
            self.twin.blocks.insert(name, choice.block);
        }
    }

    pub(crate) async fn write(&mut self) {
        for _ in 0..self.random.random_range(1..=3) {
            if let Some(name) = self.pick(self.volume_names()) {
                self.write_to(&name).await;
            }
        }
    }

    /// A few writes of one pattern.
    pub(crate) async fn write_to(&mut self, name: &str) {
        let size = self.twin.volumes[name].len();
        let block = self.twin.blocks[name] as usize;
        let (pattern, count, aligned) =
            (self.random.random_range(0..6), self.random.random_range(1..=6), !self.chance(3));
        let unit = if aligned { block } else { 512 };
        let mut sequential = self.random.random_range(0..size / unit) * unit;
        for _ in 0..count {
            let most = ((192 << 10) / unit).clamp(1, size / unit);
            let len = unit * self.random.random_range(1..=most);
            let offset = match pattern {
                0 => {
                    let next = (sequential + len) % size;
                    std::mem::replace(&mut sequential, next).min(size - len)
                }
                _ => self.random.random_range(0..=(size - len) / unit) * unit,
            };
            let seed = self.random.random();
            let bytes = match pattern {
                // Repeats itself: every compressor likes it.
                2 => noise(seed, 96).into_iter().cycle().take(len).collect(),
                3 => vec![0; len],
                // Little in every block: small enough for the pointer, if the volume compresses.
                4 => {
                    let mut bytes = vec![0; len];
                    for piece in bytes.chunks_mut(block) {
                        let few = piece.len().min(40);
                        piece[..few].copy_from_slice(&noise(seed, few as u64));
                    }
                    bytes
                }
                // Compresses to about a half.
                5 => noise(seed, len as u64).chunks(64).flat_map(|c| c.iter().map(|b| b & 0x0f)).collect(),
                _ => noise(seed, len as u64),
            };
            let what = format!("write {name} {offset}+{len} pattern {pattern}");
            self.change(what, name, offset, bytes).await;
        }
    }

    /// Writes `bytes`, or notes that there is no room for them.
    pub(crate) async fn change(&mut self, what: String, name: &str, offset: usize, bytes: Vec<u8>) {
        self.note(what);
        let volume = self.live(name).await;
        let range = offset..offset + bytes.len();
        match volume.write(offset as u64, data(bytes.clone()), Durability::Cached).await {
            Ok(()) => self.twin.volumes.get_mut(name).unwrap()[range].copy_from_slice(&bytes),
            Err(VolumeError::NoSpace) => {
                self.note("  no space");
                // A part of it may be done, sector by sector.
                let found = content(&*volume).await;
                let old = self.twin.volumes.get_mut(name).unwrap();
                for (at, sector) in bytes.chunks(512).enumerate() {
                    let place = offset + at * 512..offset + at * 512 + sector.len();
                    let found = &found[place.clone()];
                    assert!(
                        found == sector || *found == old[place.clone()],
                        "neither old nor new at {place:?}"
                    );
                    old[place].copy_from_slice(found);
                }
            }
            Err(error) => panic!("write {name}: {error}"),
        }
    }

    pub(crate) async fn punch(&mut self) {
        let Some(name) = self.pick(self.volume_names()) else { return };
        let size = self.twin.volumes[&name].len();
        let block = self.twin.blocks[&name] as usize;
        let (offset, len) = if self.chance(6) {
            (0, size)
        } else {
            let len = 512 * self.random.random_range(1..=size / 1024);
            (self.random.random_range(0..=(size - len) / 512) * 512, len)
        };
        let volume = self.live(&name).await;
        if self.random.random() {
            let allocate = self.random.random();
            self.note(format!("zero {name} {offset}+{len} allocate {allocate}"));
            match volume.write_zeroes(offset as u64, len as u64, allocate, Durability::Cached).await {
                Ok(()) => self.twin.volumes.get_mut(&name).unwrap()[offset..offset + len].fill(0),
                Err(VolumeError::NoSpace) => {
                    let found = content(&*volume).await;
                    self.twin.volumes.insert(name, found);
                }
                Err(error) => panic!("zero {name}: {error}"),
            }
        } else {
            self.note(format!("unmap {name} {offset}+{len}"));
            volume.unmap(offset as u64, len as u64, Durability::Cached).await.unwrap();
            let (from, to) = (offset.next_multiple_of(block), (offset + len) / block * block);
            if from < to {
                self.twin.volumes.get_mut(&name).unwrap()[from..to].fill(0);
            }
        }
    }

    pub(crate) async fn snapshot(&mut self) {
        if self.twin.snapshots.len() >= 10 {
            return;
        }
        let mut volumes = self.volume_names();
        let count = if self.chance(4) { volumes.len() } else { 1 };
        let Some(one) = self.pick(volumes.clone()) else { return };
        if count == 1 {
            volumes = vec![one];
        }
        self.names += 1;
        let age = self.names;
        let names: Vec<String> = volumes.iter().map(|volume| format!("{volume}@s{age}")).collect();
        let taken = names.clone();
        let op = task(move |cx| Box::pin(async move { dsl::snapshot(cx, &names, &Properties::new()).await }));
        if self.command(format!("snapshot {}", taken.join(" ")), true, op).await {
            for name in taken {
                let bytes = self.twin.volumes[head(&name)].clone();
                self.twin.snapshots.insert(name, Snapshot { bytes, age, held: false, deferred: false });
            }
        }
    }

    pub(crate) async fn clone_snapshot(&mut self) {
        let Some(snapshot) = self.pick(self.snapshot_names()) else { return };
        if self.twin.volumes.len() >= 9 {
            return;
        }
        let name = self.new_name('c');
        let what = format!("clone {snapshot} {name}");
        let (from, to) = (snapshot.clone(), name.clone());
        let op = task(move |cx| {
            Box::pin(async move { dsl::clone(cx, &from, &to, &Properties::new(), false).await })
        });
        if self.command(what, false, op).await {
            let bytes = self.twin.snapshots[&snapshot].bytes.clone();
            let block = self.block_of(&snapshot).await;
            self.twin.volumes.insert(name.clone(), bytes);
            self.twin.blocks.insert(name.clone(), block);
            self.twin.origins.insert(name.clone(), snapshot);
            self.write_to(&name).await;
        }
    }

    /// The head of a snapshot has the block size of the snapshot.
    pub(crate) async fn block_of(&self, snapshot: &str) -> u32 {
        self.twin.blocks[head(snapshot)]
    }

    pub(crate) async fn promote(&mut self) {
        let Some(name) = self.pick(self.twin.origins.keys().cloned().collect()) else { return };
        let clone = name.clone();
        let op = task(move |cx| Box::pin(async move { dsl::promote(cx, &clone).await }));
        if self.command(format!("promote {name}"), false, op).await {
            self.twin.promote(&name);
        }
    }

    pub(crate) async fn rollback(&mut self) {
        let Some(name) = self.pick(self.volume_names()) else { return };
        let Some(snapshot) = self.twin.newest_of(&name) else { return };
        self.note(format!("rollback {snapshot}"));
        let to = snapshot.clone();
        let result = self.run(move |cx| Box::pin(async move { dsl::rollback(cx, &to).await })).await;
        match result {
            Ok(()) => {
                let bytes = self.twin.snapshots[&snapshot].bytes.clone();
                self.twin.volumes.insert(name, bytes);
            }
            Err(OpError::NoSpace) => self.note("  no space"),
            Err(error) => {
                let has_bookmarks = self.twin.bookmarks.iter().any(|bookmark| head(bookmark) == name);
                assert!(has_bookmarks, "rollback {snapshot}: {error}");
                self.note(format!("  {error}"));
            }
        }
    }

    pub(crate) async fn rename(&mut self) {
        let is_snapshot = self.random.random();
        let all =
            if is_snapshot { self.twin.snapshots.keys().cloned().collect() } else { self.volume_names() };
        let Some(from) = self.pick(all) else { return };
        let to = if is_snapshot {
            self.names += 1;
            format!("{}@r{}", head(&from), self.names)
        } else {
            self.new_name('r')
        };
        let (old, new) = (from.clone(), to.clone());
        let op = task(move |cx| Box::pin(async move { dsl::rename(cx, &old, &new, false, false).await }));
        if self.command(format!("rename {from} {to}"), false, op).await {
            if is_snapshot {
                self.twin.rename_snapshot(&from, &to);
            } else {
                self.twin.rename_volume(&from, &to);
            }
        }
    }

    pub(crate) async fn hold_or_release(&mut self) {
        let Some(name) = self.pick(self.twin.snapshots.keys().cloned().collect()) else { return };
        let names = vec![name.clone()];
        let Snapshot { held, deferred, .. } = self.twin.snapshots[&name];
        if held {
            self.command(format!("release {name}"), false, move |cx| {
                Box::pin(async move { dsl::release(cx, "keep", &names).await })
            })
            .await;
        } else if deferred {
            return;
        } else {
            self.command(format!("hold {name}"), false, move |cx| {
                Box::pin(async move { dsl::hold(cx, "keep", &names).await })
            })
            .await;
        }
        if let Some(snapshot) = self.twin.snapshots.get_mut(&name) {
            snapshot.held = !held;
        }
        self.twin.settle();
    }

    pub(crate) async fn bookmark(&mut self) {
        if self.random.random()
            && let Some(name) = self.pick(self.twin.bookmarks.clone())
        {
            let gone = name.clone();
            self.command(format!("destroy {name}"), false, move |cx| {
                Box::pin(async move { dsl::destroy_bookmark(cx, &gone).await })
            })
            .await;
            self.twin.bookmarks.retain(|bookmark| *bookmark != name);
            return;
        }
        let Some(snapshot) = self.pick(self.snapshot_names()) else { return };
        self.names += 1;
        let name = format!("{}#b{}", head(&snapshot), self.names);
        let (from, to) = (snapshot.clone(), name.clone());
        self.command(format!("bookmark {snapshot} {name}"), false, move |cx| {
            Box::pin(async move { dsl::bookmark(cx, &from, &to).await })
        })
        .await;
        self.twin.bookmarks.push(name);
    }

    pub(crate) async fn set(&mut self) {
        let mut all = self.volume_names();
        all.extend([FS.to_owned(), POOL.to_owned()]);
        let Some(name) = self.pick(all) else { return };
        let on = name.clone();
        if self.chance(4) {
            let property = ["compression", "checksum", "copies"][self.random.random_range(0..3)];
            self.command(format!("inherit {property} {name}"), false, move |cx| {
                Box::pin(async move { dsl::inherit(cx, &on, property, false).await })
            })
            .await;
            return;
        }
        let choice = self.choice();
        let mut properties = properties(&choice);
        properties.insert("org.millpond:note".into(), Stored::Text(format!("by step {}", self.log.len())));
        properties.insert("primarycache".into(), Stored::Number(self.random.random_range(0..3)));
        if self.twin.volumes.contains_key(&name) && self.chance(3) {
            let bytes = self.random.random_range(0..3) * SIZE as u64;
            properties.insert("refreservation".into(), Stored::Number(bytes));
        }
        self.command(format!("set {name} {properties:?}"), false, move |cx| {
            Box::pin(async move { dsl::set(cx, &on, &properties).await })
        })
        .await;
    }

    pub(crate) async fn resize(&mut self) {
        let Some(name) = self.pick(self.volume_names()) else { return };
        let size = SIZE_STEP * self.random.random_range(2..=16);
        let on = name.clone();
        let properties: Properties = [("volsize".to_owned(), Stored::Number(size as u64))].into();
        let op = task(move |cx| Box::pin(async move { dsl::set(cx, &on, &properties).await }));
        if self.command(format!("set {name} volsize {size}"), false, op).await {
            self.twin.volumes.get_mut(&name).unwrap().resize(size, 0);
        }
    }

    pub(crate) async fn destroy_snapshots(&mut self) {
        let mut names = Vec::new();
        for _ in 0..self.random.random_range(1..=3) {
            names.extend(self.pick(self.twin.snapshots.keys().cloned().collect()));
        }
        names.sort();
        names.dedup();
        if names.is_empty() {
            return;
        }
        let defer = self.chance(3);
        let busy = |name: &String| self.twin.snapshots[name].held || self.twin.has_clones(name);
        let refused = !defer && names.iter().any(busy);
        self.note(format!("destroy {} defer {defer} refused {refused}", names.join(" ")));
        let gone = names.clone();
        let result =
            self.run(move |cx| Box::pin(async move { dsl::destroy_snapshots(cx, &gone, defer).await })).await;
        assert_eq!(result.is_err(), refused, "{result:?}");
        if !refused {
            for name in names {
                self.twin.snapshots.get_mut(&name).unwrap().deferred = true;
            }
            self.twin.settle();
        }
    }

    pub(crate) async fn destroy_volume(&mut self) {
        let Some(name) = self.pick(self.volume_names()) else { return };
        let refused = !self.twin.snapshots_of(&name).is_empty();
        self.note(format!("destroy {name} refused {refused}"));
        let gone = name.clone();
        let result = self.run(move |cx| Box::pin(async move { dsl::destroy_head(cx, &gone).await })).await;
        assert_eq!(result.is_err(), refused, "{result:?}");
        if !refused {
            self.twin.destroy_volume(&name);
        }
    }

    pub(crate) async fn reopen(&mut self) {
        let ending = if self.random.random() { Ending::Export } else { Ending::Close };
        self.note(format!("{ending:?}, import"));
        let running = self.running.take().expect("the pool is open");
        running.engine.end(ending).await.unwrap();
        drop(running);
        self.verify("after the end").await;
        self.running = Some(self.world.open().await);
        self.compare().await;
    }
}
