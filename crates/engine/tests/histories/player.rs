//! Plays one history: does things to the pool and to the twin, and compares them.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use block::{BlockVolume, Durability, VolumeError};
use disk::{Disk, FaultDisk, MemDisk};
use engine::{
    create::{DeviceFacts, Plan as Layout, VdevSpec},
    dsl::{self, NewVolume, OpError, Properties, Stored},
    engine::{Ending, OpFuture},
    mos::features,
    sync::Syncer,
    volume::LiveVolume,
};
use pool::{
    dsl::DatasetKind,
    props::index,
    verify::{Progress, Row},
};
use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::{
    pairwise::{BLOCKS, CHECKSUMS, COMPRESSIONS, Choice, Plan},
    support::{POOL, Running, World, content, data},
    twin::{Snapshot, Twin, head},
};

/// Bytes of a disk: the least OpenZFS takes, so that filling it is quick.
const DISK: u64 = 64 << 20;
/// Bytes of a volume in the beginning, and what its size is always a multiple of.
const SIZE: usize = 1 << 20;
const SIZE_STEP: usize = 128 << 10;
/// Bytes of the volume that fills the pool, more than any of these pools holds; and of one write to it.
const FILL: u64 = 512 << 20;
const CHUNK: usize = 512 << 10;
/// File system that some volumes are in.
const FS: &str = "tank/fs";
/// Features of checksums that new pools do not have, and others' pools do.
const LATER_FEATURES: [&str; 4] =
    ["org.illumos:sha512", "org.illumos:skein", "org.illumos:edonr", "org.openzfs:blake3"];
/// Object type of space maps.
const SPACE_MAP: u8 = 8;
/// Bytes a pool may use more after everything was destroyed than when it was new, besides its space maps, which
/// are logs and keep their length until they are condensed. Numbers of objects are not given out again at once, so
/// the MOS keeps a few blocks of dnodes (16 KiB each before compression, three copies, up to four times that with
/// the parity of small blocks) and indirect blocks above them; a pool that got devices has a longer
/// configuration, an array of metaslabs and a ZAP for each of them.
const MOS_GROWTH: u64 = 1 << 20;

/// What a pool was like when it was new.
#[derive(Debug, Default)]
struct Fresh {
    used: u64,
    maps: u64,
    features: BTreeMap<String, u64>,
}

pub(crate) struct Player {
    world: World,
    running: Option<Running>,
    pub(crate) random: StdRng,
    twin: Twin,
    names: u32,
    plan: Plan,
    fresh: Fresh,
    images: PathBuf,
    /// What was done.
    pub(crate) log: Vec<String>,
    /// Images for the judges, and which they are.
    pub(crate) saved: Vec<(&'static str, PathBuf)>,
}

/// Bytes that no compressor makes smaller, always the same for one `seed`.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn properties(choice: &Choice) -> Properties {
    let number = |words, word| Stored::Number(index::number(words, word).expect("a known word"));
    let mut properties = Properties::new();
    properties.insert("compression".into(), number(index::COMPRESSION, choice.compression));
    properties.insert("checksum".into(), number(index::CHECKSUM, choice.checksum));
    properties.insert("copies".into(), Stored::Number(choice.copies));
    properties
}

/// Tells the compiler that a closure's future lives as long as the syncer it is lent.
fn task<F>(op: F) -> F
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

    fn running(&self) -> &Running {
        self.running.as_ref().expect("the pool is open")
    }

    fn note(&mut self, what: impl Into<String>) {
        self.log.push(what.into());
    }

    fn chance(&mut self, of: u32) -> bool {
        self.random.random_range(0..of) == 0
    }

    fn pick(&mut self, from: Vec<String>) -> Option<String> {
        (!from.is_empty()).then(|| from[self.random.random_range(0..from.len())].clone())
    }

    fn volume_names(&self) -> Vec<String> {
        self.twin.volumes.keys().cloned().collect()
    }

    /// Snapshots that are not about to go.
    fn snapshot_names(&self) -> Vec<String> {
        let staying = self.twin.snapshots.iter().filter(|(_, snapshot)| !snapshot.deferred);
        staying.map(|(name, _)| name.clone()).collect()
    }

    async fn run<F>(&self, is_snapshot: bool, op: F) -> Result<(), OpError>
    where
        F: for<'a> FnOnce(&'a mut Syncer) -> OpFuture<'a, ()> + Clone + Send + 'static,
    {
        self.running().engine.run(is_snapshot, op).await
    }

    /// Runs a command that nothing but a lack of space may refuse; whether it was done.
    async fn command<F>(&mut self, what: String, is_snapshot: bool, op: F) -> bool
    where
        F: for<'a> FnOnce(&'a mut Syncer) -> OpFuture<'a, ()> + Clone + Send + 'static,
    {
        self.note(what.clone());
        match self.run(is_snapshot, op).await {
            Ok(()) => true,
            Err(OpError::NoSpace) => {
                self.note("  no space");
                false
            }
            Err(error) => panic!("{what}: {error}"),
        }
    }

    async fn live(&self, name: &str) -> Arc<LiveVolume> {
        self.running().engine.volume(name).await.unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// The new pool is measured, and gets its volumes.
    pub(crate) async fn begin(&mut self) {
        self.run(false, |cx| {
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

    fn choice(&mut self) -> Choice {
        Choice {
            block: BLOCKS[self.random.random_range(0..BLOCKS.len())],
            compression: COMPRESSIONS[self.random.random_range(0..COMPRESSIONS.len())],
            checksum: CHECKSUMS[self.random.random_range(0..CHECKSUMS.len())],
            copies: self.random.random_range(1..=2),
        }
    }

    fn new_name(&mut self, letter: char) -> String {
        self.names += 1;
        let above = if self.random.random() { FS } else { POOL };
        format!("{above}/{letter}{}", self.names)
    }

    async fn create(&mut self, choice: Choice) {
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

    async fn write(&mut self) {
        for _ in 0..self.random.random_range(1..=3) {
            if let Some(name) = self.pick(self.volume_names()) {
                self.write_to(&name).await;
            }
        }
    }

    /// A few writes of one pattern.
    async fn write_to(&mut self, name: &str) {
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
                        piece[..few].copy_from_slice(&noise(seed, few));
                    }
                    bytes
                }
                // Compresses to about a half.
                5 => noise(seed, len).chunks(64).flat_map(|c| c.iter().map(|b| b & 0x0f)).collect(),
                _ => noise(seed, len),
            };
            let what = format!("write {name} {offset}+{len} pattern {pattern}");
            self.change(what, name, offset, bytes).await;
        }
    }

    /// Writes `bytes`, or notes that there is no room for them.
    async fn change(&mut self, what: String, name: &str, offset: usize, bytes: Vec<u8>) {
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

    async fn punch(&mut self) {
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

    async fn snapshot(&mut self) {
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

    async fn clone_snapshot(&mut self) {
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
    async fn block_of(&self, snapshot: &str) -> u32 {
        self.twin.blocks[head(snapshot)]
    }

    async fn promote(&mut self) {
        let Some(name) = self.pick(self.twin.origins.keys().cloned().collect()) else { return };
        let clone = name.clone();
        let op = task(move |cx| Box::pin(async move { dsl::promote(cx, &clone).await }));
        if self.command(format!("promote {name}"), false, op).await {
            self.twin.promote(&name);
        }
    }

    async fn rollback(&mut self) {
        let Some(name) = self.pick(self.volume_names()) else { return };
        let Some(snapshot) = self.twin.newest_of(&name) else { return };
        self.note(format!("rollback {snapshot}"));
        let to = snapshot.clone();
        let result = self.run(false, move |cx| Box::pin(async move { dsl::rollback(cx, &to).await })).await;
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

    async fn rename(&mut self) {
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

    async fn hold_or_release(&mut self) {
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

    async fn bookmark(&mut self) {
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

    async fn set(&mut self) {
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

    async fn resize(&mut self) {
        let Some(name) = self.pick(self.volume_names()) else { return };
        let size = SIZE_STEP * self.random.random_range(2..=16);
        let on = name.clone();
        let properties: Properties = [("volsize".to_owned(), Stored::Number(size as u64))].into();
        let op = task(move |cx| Box::pin(async move { dsl::set(cx, &on, &properties).await }));
        if self.command(format!("set {name} volsize {size}"), false, op).await {
            self.twin.volumes.get_mut(&name).unwrap().resize(size, 0);
        }
    }

    async fn destroy_snapshots(&mut self) {
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
        let result = self
            .run(false, move |cx| Box::pin(async move { dsl::destroy_snapshots(cx, &gone, defer).await }))
            .await;
        assert_eq!(result.is_err(), refused, "{result:?}");
        if !refused {
            for name in names {
                self.twin.snapshots.get_mut(&name).unwrap().deferred = true;
            }
            self.twin.settle();
        }
    }

    async fn destroy_volume(&mut self) {
        let Some(name) = self.pick(self.volume_names()) else { return };
        let refused = !self.twin.snapshots_of(&name).is_empty();
        self.note(format!("destroy {name} refused {refused}"));
        let gone = name.clone();
        let result =
            self.run(false, move |cx| Box::pin(async move { dsl::destroy_head(cx, &gone).await })).await;
        assert_eq!(result.is_err(), refused, "{result:?}");
        if !refused {
            self.twin.destroy_volume(&name);
        }
    }

    async fn reopen(&mut self) {
        let ending = if self.random.random() { Ending::Export } else { Ending::Close };
        self.note(format!("{ending:?}, import"));
        let running = self.running.take().expect("the pool is open");
        running.engine.end(ending).await.unwrap();
        drop(running);
        self.verify("after the end").await;
        self.running = Some(self.world.open().await);
        self.compare().await;
    }

    /// `zpool add`: one more like the first.
    pub(crate) async fn add_devices(&mut self) {
        let words: Vec<&str> = self.plan.layout.split_whitespace().collect();
        let is_disk = |word: &&&str| word.starts_with('d');
        let disks = words.iter().skip(usize::from(!is_disk(&&words[0]))).take_while(is_disk).count();
        let (mut spec, count) = match is_disk(&&words[0]) {
            true => (Vec::new(), 1),
            false => (vec![words[0].to_owned()], disks),
        };
        let first = self.world.media.len();
        spec.extend((first..first + count).map(|number| format!("d{number}")));
        self.note(format!("add {}", spec.join(" ")));
        let spec = VdevSpec::parse(&spec).unwrap();
        let facts =
            DeviceFacts { bytes: DISK, block_device: false, logical_sector: 512, physical_sector: 512 };
        let layout = Layout::new(&spec, &vec![facts; count], Some(self.plan.ashift), true).unwrap();
        let mut added: Vec<Arc<dyn Disk>> = Vec::new();
        for number in first..first + count {
            let media = Arc::new(MemDisk::new(DISK).named(format!("/disks/d{number}")));
            self.world.media.push(Arc::clone(&media));
            let disk = Arc::new(FaultDisk::with_write_cache(media as Arc<dyn Disk>, number as u64));
            self.running.as_mut().expect("the pool is open").disks.push(Arc::clone(&disk));
            added.push(disk);
        }
        let layout = Arc::new(layout);
        self.run(false, move |cx| Box::pin(async move { engine::create::add(cx, &layout, &added).await }))
            .await
            .unwrap();
    }

    /// Fills the pool until nothing more goes in, frees a half, goes on, and gives all of it back.
    pub(crate) async fn fill(&mut self, judged: bool) {
        let choice = self.plan.volumes[self.random.random_range(0..self.plan.volumes.len())];
        let name = format!("{POOL}/fill");
        self.note(format!("fill with {choice:?}"));
        let volume = self.running().volume(&name, FILL, choice.block, properties(&choice)).await;
        let seed = self.world.seed << 32;
        let mut chunks = 0;
        let mut refusals = 0;
        // What is announced for a write is more than it takes in the end: after a sync there is room again.
        while refusals < 3 {
            assert!((chunks + 1) * (CHUNK as u64) < FILL, "the pool takes more than it can hold");
            match volume
                .write(chunks * CHUNK as u64, data(noise(seed + chunks, CHUNK)), Durability::Cached)
                .await
            {
                Ok(()) => (chunks, refusals) = (chunks + 1, 0),
                Err(VolumeError::NoSpace) => {
                    refusals += 1;
                    self.sync().await;
                }
                Err(error) => panic!("fill: {error}"),
            }
        }
        self.note(format!("  full after {chunks} chunks"));
        assert!(chunks > 8, "the pool takes next to nothing");
        self.check("full").await;
        if judged {
            self.save("full").await;
        }
        self.read_fill(&*volume, seed, chunks, |_| true).await;
        // Somebody else finds no room either, and keeps what is there.
        self.write().await;
        self.sync().await;

        self.note("free every other chunk".to_owned());
        for chunk in (0..chunks).step_by(2) {
            volume.unmap(chunk * CHUNK as u64, CHUNK as u64, Durability::Cached).await.unwrap();
        }
        // What was freed can be taken again a few transaction groups later.
        for _ in 0..5 {
            self.sync().await;
        }
        self.check("half freed").await;
        for chunk in (0..chunks.min(8)).step_by(2) {
            let bytes = data(noise(seed + chunk, CHUNK));
            volume.write(chunk * CHUNK as u64, bytes, Durability::Cached).await.unwrap_or_else(|error| {
                panic!("after half of the pool was freed: {error}");
            });
        }
        self.sync().await;
        self.read_fill(&*volume, seed, chunks, |chunk| chunk % 2 == 1 || chunk < 8).await;
        let gone = name.clone();
        self.command(format!("destroy {name}"), false, move |cx| {
            Box::pin(async move { dsl::destroy_head(cx, &gone).await })
        })
        .await;
        self.check("while its blocks are being freed").await;
        self.wait_for_frees().await;
    }

    async fn read_fill(&self, volume: &dyn BlockVolume, seed: u64, chunks: u64, kept: impl Fn(u64) -> bool) {
        for chunk in (0..chunks).filter(|chunk| kept(*chunk)) {
            let mut found = Vec::with_capacity(CHUNK);
            for segment in volume.read(chunk * CHUNK as u64, CHUNK).await.unwrap() {
                match segment {
                    block::Segment::Data(bytes) => found.extend_from_slice(&bytes),
                    block::Segment::Zero(len) => found.resize(found.len() + len, 0),
                }
            }
            assert!(found == noise(seed + chunk, CHUNK), "chunk {chunk} of what filled the pool");
        }
    }

    async fn wait_for_frees(&mut self) {
        for _ in 0..1000 {
            self.sync().await;
            let view = self.running().engine.view();
            if view.dsl().await.unwrap().internal_used("$FREE").await.unwrap() == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("what was destroyed is never freed");
    }

    async fn sync(&self) {
        self.running().engine.sync().await.unwrap();
    }

    /// Our own checker over everything.
    async fn verify(&self, what: &str) -> pool::verify::Report {
        // A copy, so that nothing changes meanwhile.
        let pool = self.world.fork().look().await.unwrap_or_else(|error| panic!("{what}: {error}"));
        let report = pool::verify::verify(&pool, &Arc::new(Progress::default())).await;
        assert!(report.is_clean(), "{what}: {report:#?}");
        report
    }

    /// Everything there is is durable and clean.
    pub(crate) async fn check(&mut self, what: &str) {
        self.sync().await;
        self.verify(what).await;
        if let Some(name) = self.pick(self.volume_names()) {
            let volume = self.live(&name).await;
            assert!(content(&*volume).await == self.twin.volumes[&name], "{what}: content of {name}");
        }
    }

    /// Everything is as the twin has it.
    pub(crate) async fn compare(&self) {
        let view = self.running().engine.view();
        let (mut volumes, mut snapshots, mut bookmarks) = (Vec::new(), Vec::new(), Vec::new());
        for dataset in view.dsl().await.unwrap().volumes().await.unwrap().0 {
            let name = dataset.name().to_owned();
            if dataset.kind() == DatasetKind::Head {
                let volume = self.live(&name).await;
                let expected = self.twin.volumes.get(&name);
                assert!(Some(&content(&*volume).await) == expected, "content of {name}");
                assert_eq!(
                    dataset.origin().await.unwrap().as_ref(),
                    self.twin.origins.get(&name),
                    "origin of {name}"
                );
                for bookmark in dataset.bookmarks().await.unwrap() {
                    bookmarks.push(bookmark.name().to_owned());
                }
                volumes.push(name);
            } else {
                let Some(expected) = self.twin.snapshots.get(&name) else {
                    panic!("{name} should not be there")
                };
                let volume = dataset.open_volume().await.unwrap();
                assert!(content(&*volume).await == expected.bytes, "content of {name}");
                assert_eq!(!dataset.holds().await.unwrap().is_empty(), expected.held, "holds of {name}");
                snapshots.push(name);
            }
        }
        let mut expected = self.twin.bookmarks.clone();
        (expected.sort(), bookmarks.sort(), volumes.sort(), snapshots.sort());
        assert_eq!(bookmarks, expected, "bookmarks");
        assert_eq!(volumes, self.volume_names(), "volumes");
        assert_eq!(snapshots, self.twin.snapshots.keys().cloned().collect::<Vec<_>>(), "snapshots");
    }

    /// What is on the media now, as images for the judges.
    pub(crate) async fn save(&mut self, what: &'static str) {
        self.note(format!("saved: {what}"));
        let dir = self.images.join(what);
        std::fs::create_dir(&dir).unwrap();
        self.world.save(&dir);
        self.saved.push((what, dir));
    }

    /// What the pool itself takes.
    async fn measure(&self) -> Fresh {
        self.sync().await;
        let report = self.verify("measured").await;
        let maps = report.counts.rows().into_iter().filter(|(row, _)| *row == Row::Type(SPACE_MAP));
        let maps = maps.map(|(_, count)| count.asize).sum();
        let view = self.running().engine.view();
        let root = view.dsl().await.unwrap().lookup(POOL).await.unwrap();
        // These two count space maps, not what is stored.
        let counts = |guid: &str| !guid.contains("spacemap");
        let features = view.features().iter().filter(|feature| counts(&feature.guid));
        Fresh {
            used: root.dir().phys().used_bytes,
            maps,
            features: features.map(|feature| (feature.guid.clone(), feature.count)).collect(),
        }
    }

    /// Destroys all there is. The space comes back, and features are not in use any more.
    pub(crate) async fn destroy_everything(&mut self) {
        self.note("destroy everything");
        let held: Vec<String> =
            self.twin.snapshots.iter().filter(|(_, s)| s.held).map(|(name, _)| name.clone()).collect();
        if !held.is_empty() {
            self.run(false, move |cx| Box::pin(async move { dsl::release(cx, "keep", &held).await }))
                .await
                .unwrap();
        }
        self.twin.snapshots.values_mut().for_each(|snapshot| snapshot.held = false);
        self.twin.settle();
        while !self.twin.volumes.is_empty() {
            let free = |name: &&String| {
                !self.twin.snapshots_of(name).iter().any(|snapshot| self.twin.has_clones(snapshot))
            };
            let all = self.volume_names();
            let name = all.iter().find(free).expect("clones do not form a circle").clone();
            let names = self.twin.snapshots_of(&name);
            if !names.is_empty() {
                self.twin.snapshots.retain(|name, _| !names.contains(name));
                self.command(format!("destroy {}", names.join(" ")), false, move |cx| {
                    Box::pin(async move { dsl::destroy_snapshots(cx, &names, false).await })
                })
                .await;
            }
            let gone = name.clone();
            self.command(format!("destroy {name}"), false, move |cx| {
                Box::pin(async move { dsl::destroy_head(cx, &gone).await })
            })
            .await;
            self.twin.destroy_volume(&name);
        }
        self.command(format!("destroy {FS}"), false, move |cx| {
            Box::pin(async move { dsl::destroy_head(cx, FS).await })
        })
        .await;
        self.wait_for_frees().await;
        let now = self.measure().await;
        assert_eq!(now.features, self.fresh.features, "features of the empty pool");
        let bound = self.fresh.used + now.maps.saturating_sub(self.fresh.maps) + MOS_GROWTH;
        let line = format!(
            "  used {} and maps {} were {} and {}",
            now.used, now.maps, self.fresh.used, self.fresh.maps
        );
        assert!(now.used <= bound, "space does not come back:{line}");
        self.note(line);
    }

    pub(crate) async fn export_and_save(&mut self) {
        self.running.take().expect("the pool is open").export().await;
        self.verify("at the end").await;
        self.save("end").await;
    }
}
