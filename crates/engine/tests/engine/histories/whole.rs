//! What a history does to the whole pool: adds devices, fills it, destroys everything; and how all of it is checked
//! and measured.

use std::{sync::Arc, time::Duration};

use block::{BlockVolume, Durability, VolumeError};
use disk::{Disk, FaultDisk, MemDisk};
use engine::{
    create::{Plan as Layout, VdevSpec},
    dsl,
};
use pool::{
    dsl::DatasetKind,
    verify::{Progress, Row},
};
use rand::Rng;

use crate::{
    histories::player::{DISK, FS, Fresh, Player, properties},
    support::{POOL, content, data, file_of, noise},
};

/// Bytes of the volume that fills the pool, more than any of these pools holds; and of one write to it.
const FILL: u64 = 512 << 20;
const CHUNK: usize = 512 << 10;
/// Object type of space maps.
const SPACE_MAP: u8 = 8;
/// Bytes a pool may use more after everything was destroyed than when it was new, besides its space maps, which
/// are logs and keep their length until they are condensed. Numbers of objects are not given out again at once, so
/// the MOS keeps a few blocks of dnodes (16 KiB each before compression, three copies, up to four times that with
/// the parity of small blocks) and indirect blocks above them; a pool that got devices has a longer
/// configuration, an array of metaslabs and a ZAP for each of them.
const MOS_GROWTH: u64 = 1 << 20;

impl Player {
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
        let facts = file_of(DISK);
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
        self.run(move |cx| Box::pin(async move { engine::create::add(cx, &layout, &added).await }))
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
                .write(chunks * CHUNK as u64, data(noise(seed + chunks, CHUNK as u64)), Durability::Cached)
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
            let bytes = data(noise(seed + chunk, CHUNK as u64));
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

    pub(crate) async fn read_fill(
        &self,
        volume: &dyn BlockVolume,
        seed: u64,
        chunks: u64,
        kept: impl Fn(u64) -> bool,
    ) {
        for chunk in (0..chunks).filter(|chunk| kept(*chunk)) {
            let found = block::flatten(&volume.read(chunk * CHUNK as u64, CHUNK).await.unwrap());
            assert!(found == noise(seed + chunk, CHUNK as u64), "chunk {chunk} of what filled the pool");
        }
    }

    pub(crate) async fn wait_for_frees(&mut self) {
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

    pub(crate) async fn sync(&self) {
        self.running().engine.sync().await.unwrap();
    }

    /// Our own checker over everything.
    pub(crate) async fn verify(&self, what: &str) -> pool::verify::Report {
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
        expected.sort();
        bookmarks.sort();
        volumes.sort();
        snapshots.sort();
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
    pub(crate) async fn measure(&self) -> Fresh {
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
            self.run(move |cx| Box::pin(async move { dsl::release(cx, "keep", &held).await })).await.unwrap();
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
