//! Random histories against a twin in memory, with exports, and power cuts at rest and in the middle of a sync.
//!
//! After a cut the pool must be exactly what it was at the last transaction group that was acknowledged, or at
//! the one that was being synced; nothing in between. A failing seed prints itself:
//! `MILLPOND_SEED=n MILLPOND_SEEDS=1 cargo test -p millpond-engine --test engine model`. `make sim` runs thousands.

use std::{collections::BTreeMap, ops::RangeInclusive, time::Duration};

use crate::support::{self, POOL, Running, World, content, data, seeds};
use block::{BlockVolume, Durability};
use disk::{Effect, Fault, On};
use engine::dsl::{self, Properties, Stored};
use rand::{Rng, SeedableRng, rngs::StdRng};

/// What the pool must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Twin {
    volumes: BTreeMap<String, Vec<u8>>,
    /// By full name.
    snapshots: BTreeMap<String, Vec<u8>>,
    /// Clone to snapshot.
    origins: BTreeMap<String, String>,
}

impl Twin {
    fn snapshots_of(&self, volume: &str) -> Vec<String> {
        let prefix = format!("{volume}@");
        self.snapshots.keys().filter(|name| name.starts_with(&prefix)).cloned().collect()
    }
}

struct Player {
    world: World,
    running: Option<Running>,
    random: StdRng,
    live: Twin,
    durable: Twin,
    names: u32,
    /// Newest snapshot of each volume, by age.
    ages: BTreeMap<String, u32>,
    log: Vec<String>,
}

const LAYOUTS: [&str; 6] =
    ["d0", "d0 d1", "mirror d0 d1", "raidz1 d0 d1 d2", "raidz2 d0 d1 d2 d3", "mirror d0 d1 mirror d2 d3"];
const BLOCKS: [u32; 4] = [4096, 8192, 16384, 65536];
const SIZE: u64 = 512 << 10;

impl Player {
    async fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let layout = LAYOUTS[random.random_range(0..LAYOUTS.len())];
        let ashift = if random.random() { 9 } else { 12 };
        let (world, running) = World::create(layout, ashift, 96 << 20, seed).await;
        let log = vec![format!("{layout} ashift {ashift}")];
        let (live, durable) = (Twin::default(), Twin::default());
        Self { world, running: Some(running), random, live, durable, names: 0, ages: BTreeMap::new(), log }
    }

    fn running(&self) -> &Running {
        self.running.as_ref().expect("the pool is open")
    }

    fn pick<'a>(&mut self, from: impl Iterator<Item = &'a String>) -> Option<String> {
        let all: Vec<&String> = from.collect();
        (!all.is_empty()).then(|| all[self.random.random_range(0..all.len())].clone())
    }

    fn note(&mut self, what: String) {
        self.log.push(what);
    }

    async fn command<F>(&mut self, is_snapshot: bool, op: F) -> Result<(), dsl::OpError>
    where
        F: for<'a> FnOnce(&'a mut engine::sync::Syncer) -> engine::engine::OpFuture<'a, ()>
            + Clone
            + Send
            + 'static,
    {
        let result = support::run(&self.running().engine, is_snapshot, op).await;
        if result.is_ok() {
            // The transaction group of the command takes everything before it along.
            self.durable = self.live.clone();
        }
        result
    }

    async fn step(&mut self) {
        match self.random.random_range(0..100) {
            0..45 => self.write().await,
            45..52 => self.punch().await,
            52..60 => self.sync().await,
            60..66 => self.create().await,
            66..76 => self.snapshot().await,
            76..80 => self.clone_snapshot().await,
            80..84 => self.rollback().await,
            84..87 => self.promote().await,
            87..91 => self.destroy_snapshot().await,
            91..93 => self.destroy_volume().await,
            93..95 => self.reopen().await,
            95..97 => self.cut_at_rest().await,
            _ => self.cut_in_sync().await,
        }
    }

    async fn create(&mut self) {
        if self.live.volumes.len() >= 4 {
            return;
        }
        self.names += 1;
        let name = format!("{POOL}/v{}", self.names);
        let block = BLOCKS[self.random.random_range(0..BLOCKS.len())];
        let compression = [2, 15, 16, 5, 14, 3][self.random.random_range(0..6)];
        let checksum = [7, 8, 7, 6, 11, 12, 13, 14][self.random.random_range(0..4)];
        let mut properties = Properties::new();
        properties.insert("compression".into(), Stored::Number(compression));
        properties.insert("checksum".into(), Stored::Number(checksum));
        if self.random.random_range(0..4) == 0 {
            properties.insert("copies".into(), Stored::Number(2));
        }
        self.note(format!("create {name} block {block} compression {compression} checksum {checksum}"));
        self.live.volumes.insert(name.clone(), vec![0; SIZE as usize]);
        let new = dsl::NewVolume { name, size: SIZE, block, properties, parents: false };
        self.command(false, move |cx| Box::pin(async move { dsl::create_volume(cx, &new).await }))
            .await
            .unwrap();
    }

    async fn write(&mut self) {
        let Some(name) = self.pick(self.live.clone().volumes.keys()) else { return };
        let aligned = self.random.random_range(0..3) > 0;
        let unit = if aligned { 4096 } else { 512 };
        let len = unit * self.random.random_range(1..=if aligned { 32 } else { 20 });
        let offset = self.random.random_range(0..=(SIZE as usize - len) / unit) * unit;
        let mut bytes = vec![0; len];
        match self.random.random_range(0..4) {
            0 => {}
            1 => bytes.fill(self.random.random()),
            _ => self.random.fill(&mut bytes[..]),
        }
        self.note(format!("write {name} {offset}+{len}"));
        self.live.volumes.get_mut(&name).unwrap()[offset..offset + len].copy_from_slice(&bytes);
        let volume = self.running().engine.volume(&name).await.unwrap();
        volume.write(offset as u64, data(bytes), Durability::Cached).await.unwrap();
        if self.random.random_range(0..4) == 0 {
            self.compare_volume(&name).await;
        }
    }

    async fn punch(&mut self) {
        let Some(name) = self.pick(self.live.clone().volumes.keys()) else { return };
        let len = 512 * self.random.random_range(1..=400);
        let offset = self.random.random_range(0..=(SIZE as usize - len) / 512) * 512;
        let volume = self.running().engine.volume(&name).await.unwrap();
        if self.random.random() {
            self.note(format!("zero {name} {offset}+{len}"));
            let allocate = self.random.random();
            volume.write_zeroes(offset as u64, len as u64, allocate, Durability::Cached).await.unwrap();
            self.live.volumes.get_mut(&name).unwrap()[offset..offset + len].fill(0);
        } else {
            self.note(format!("unmap {name} {offset}+{len}"));
            volume.unmap(offset as u64, len as u64, Durability::Cached).await.unwrap();
            let block = volume.geometry().block as usize;
            let (from, to) = (offset.next_multiple_of(block), (offset + len) / block * block);
            if from < to {
                self.live.volumes.get_mut(&name).unwrap()[from..to].fill(0);
            }
        }
    }

    async fn sync(&mut self) {
        self.note("sync".into());
        self.running().engine.sync().await.unwrap();
        self.durable = self.live.clone();
    }

    async fn snapshot(&mut self) {
        let Some(name) = self.pick(self.live.clone().volumes.keys()) else { return };
        if self.live.snapshots.len() >= 8 {
            return;
        }
        self.names += 1;
        let snapshot = format!("{name}@s{}", self.names);
        self.note(format!("snapshot {snapshot}"));
        self.ages.insert(snapshot.clone(), self.names);
        let bytes = self.live.volumes[&name].clone();
        self.live.snapshots.insert(snapshot.clone(), bytes);
        let names = vec![snapshot];
        self.command(true, move |cx| {
            Box::pin(async move { dsl::snapshot(cx, &names, &Properties::new()).await })
        })
        .await
        .unwrap();
    }

    async fn clone_snapshot(&mut self) {
        let Some(snapshot) = self.pick(self.live.clone().snapshots.keys()) else { return };
        if self.live.volumes.len() >= 5 {
            return;
        }
        self.names += 1;
        let name = format!("{POOL}/c{}", self.names);
        self.note(format!("clone {snapshot} {name}"));
        self.live.volumes.insert(name.clone(), self.live.snapshots[&snapshot].clone());
        self.live.origins.insert(name.clone(), snapshot.clone());
        self.command(false, move |cx| {
            Box::pin(async move { dsl::clone(cx, &snapshot, &name, &Properties::new(), false).await })
        })
        .await
        .unwrap();
    }

    async fn rollback(&mut self) {
        let Some(name) = self.pick(self.live.clone().volumes.keys()) else { return };
        let newest = self.live.snapshots_of(&name).into_iter().max_by_key(|snapshot| self.ages[snapshot]);
        let Some(snapshot) = newest else { return };
        self.note(format!("rollback {snapshot}"));
        self.live.volumes.insert(name, self.live.snapshots[&snapshot].clone());
        self.command(false, move |cx| Box::pin(async move { dsl::rollback(cx, &snapshot).await }))
            .await
            .unwrap();
    }

    async fn promote(&mut self) {
        let Some(name) = self.pick(self.live.clone().origins.keys()) else { return };
        self.note(format!("promote {name}"));
        let origin = self.live.origins[&name].clone();
        let old = origin.split('@').next().unwrap().to_owned();
        // Snapshots up to the origin change hands; the origin of the old one becomes the clone's.
        let age = self.ages[&origin];
        let mut next = self.live.clone();
        for moved in self.live.snapshots_of(&old) {
            if self.ages[&moved] <= age {
                let to = moved.replacen(&old, &name, 1);
                let bytes = next.snapshots.remove(&moved).unwrap();
                next.snapshots.insert(to.clone(), bytes);
                self.ages.insert(to.clone(), self.ages[&moved]);
                for origin in next.origins.values_mut().filter(|origin| **origin == moved) {
                    origin.clone_from(&to);
                }
            }
        }
        let inherited = self.live.origins.get(&old).cloned();
        next.origins.remove(&name);
        next.origins.insert(old.clone(), origin.replacen(&old, &name, 1));
        if let Some(inherited) = inherited {
            next.origins.insert(name.clone(), inherited);
        }
        self.live = next;
        self.command(false, move |cx| Box::pin(async move { dsl::promote(cx, &name).await })).await.unwrap();
    }

    async fn destroy_snapshot(&mut self) {
        let Some(snapshot) = self.pick(self.live.clone().snapshots.keys()) else { return };
        let has_clones = self.live.origins.values().any(|origin| *origin == snapshot);
        self.note(format!("destroy {snapshot} (clones: {has_clones})"));
        let names = vec![snapshot.clone()];
        let before = self.live.clone();
        self.live.snapshots.remove(&snapshot);
        let result = self
            .command(false, move |cx| {
                Box::pin(async move { dsl::destroy_snapshots(cx, &names, false).await })
            })
            .await;
        assert_eq!(result.is_err(), has_clones, "{result:?}");
        if has_clones {
            // The transaction group was synced all the same.
            self.durable = before.clone();
            self.live = before;
        }
    }

    async fn destroy_volume(&mut self) {
        let Some(name) = self.pick(self.live.clone().volumes.keys()) else { return };
        let has_snapshots = !self.live.snapshots_of(&name).is_empty();
        self.note(format!("destroy {name} (snapshots: {has_snapshots})"));
        let before = self.live.clone();
        self.live.volumes.remove(&name);
        self.live.origins.remove(&name);
        let result =
            self.command(false, move |cx| Box::pin(async move { dsl::destroy_head(cx, &name).await })).await;
        assert_eq!(result.is_err(), has_snapshots, "{result:?}");
        if has_snapshots {
            self.durable = before.clone();
            self.live = before;
        }
    }

    async fn reopen(&mut self) {
        self.note("export, import".into());
        self.running.take().unwrap().export().await;
        self.durable = self.live.clone();
        self.world.verify("after export").await;
        self.running = Some(self.world.open().await);
        self.compare().await;
    }

    async fn cut_at_rest(&mut self) {
        self.note("power cut at rest".into());
        let running = self.running.take().unwrap();
        self.world.cut(running).await;
        self.world.verify("after a power cut").await;
        self.running = Some(self.world.open().await);
        self.live = self.durable.clone();
        self.compare().await;
    }

    async fn cut_in_sync(&mut self) {
        let running = self.running.take().unwrap();
        let slow: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_millis(4);
        for disk in &running.disks {
            disk.inject(Fault::anywhere(On::Write, Effect::Delay(slow.clone())));
            disk.inject(Fault::anywhere(On::Flush, Effect::Delay(slow.clone())));
        }
        let wait = Duration::from_micros(self.random.random_range(0..30_000));
        self.note(format!("power cut {wait:?} after the begin of a sync"));
        let engine = std::sync::Arc::clone(&running.engine);
        let syncing = tokio::spawn(async move { engine.sync().await });
        tokio::time::sleep(wait).await;
        let acknowledged = syncing.is_finished();
        self.world.cut(running).await;
        let _cut_off = syncing.await;
        self.world.verify("after a power cut in a sync").await;
        self.running = Some(self.world.open().await);
        let found = self.read_all().await;
        if acknowledged {
            assert!(found == self.live, "what was acknowledged is lost");
        } else {
            assert!(found == self.live || found == self.durable, "neither the old nor the new state");
        }
        self.live = found.clone();
        self.durable = found;
    }

    async fn compare_volume(&mut self, name: &str) {
        let volume = self.running().engine.volume(name).await.unwrap();
        assert!(content(&*volume).await == self.live.volumes[name], "content of {name}");
    }

    /// Everything as the pool has it.
    async fn read_all(&self) -> Twin {
        let mut twin = Twin { origins: self.live.origins.clone(), ..Twin::default() };
        let view = self.running().engine.view();
        let dsl = view.dsl().await.unwrap();
        for dataset in dsl.volumes().await.unwrap().0 {
            let name = dataset.name().to_owned();
            if name.contains('@') {
                let volume = dataset.open_volume().await.unwrap();
                twin.snapshots.insert(name, content(&*volume).await);
            } else {
                let volume = self.running().engine.volume(&name).await.unwrap();
                twin.volumes.insert(name, content(&*volume).await);
            }
        }
        twin
    }

    async fn compare(&self) {
        let found = self.read_all().await;
        assert_eq!(
            found.volumes.keys().collect::<Vec<_>>(),
            self.live.volumes.keys().collect::<Vec<_>>(),
            "volumes"
        );
        assert_eq!(
            found.snapshots.keys().collect::<Vec<_>>(),
            self.live.snapshots.keys().collect::<Vec<_>>(),
            "snapshots"
        );
        for (name, bytes) in found.volumes.iter().chain(&found.snapshots) {
            let expected = self.live.volumes.get(name).or_else(|| self.live.snapshots.get(name)).unwrap();
            assert!(bytes == expected, "content of {name}");
        }
    }
}

async fn play(seed: u64, steps: u32) {
    let mut player = Box::pin(Player::new(seed)).await;
    for _ in 0..steps {
        let step = Box::pin(player.step());
        if let Err(panic) = futures_util::FutureExt::catch_unwind(std::panic::AssertUnwindSafe(step)).await {
            eprintln!("seed {seed}:\n  {}", player.log.join("\n  "));
            std::panic::resume_unwind(panic);
        }
    }
    player.compare().await;
    player.running.take().unwrap().export().await;
    player.world.verify("at the end").await;
}

#[tokio::test(start_paused = true)]
async fn random_histories_with_power_cuts_match_the_twin() {
    for seed in seeds(1..25) {
        play(seed, 120).await;
    }
}
