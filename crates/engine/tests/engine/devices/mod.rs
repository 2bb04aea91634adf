//! Devices that go offline, come back, are joined by others, replaced and stood in for: after each change the pool is
//! what OpenZFS's own checker takes for a sound pool, opens again here, and has every byte. Here is the pool and who judges it;
//! the tests lie beside.

mod atomic;
mod offline;
mod replaced;
mod sizes;
mod spares;

use std::sync::Arc;

use block::{BlockVolume, Durability};
use disk::{Disk, Effect, Fault, FaultDisk, MemDisk, On};
use engine::{
    devices::{self, NewLeaf},
    dsl::{OpError, Properties},
    events::Event,
    volume::LiveVolume,
};
use ondisk::nvlist::NvList;
use pool::{
    Pool,
    vdev::{State, TxgSet, Vdev},
};
use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::{
    files,
    support::{DISK, POOL, Running, World, content, data},
};

const VOLUME: u64 = 4 << 20;

/// A pool in use: what its volume must hold.
pub(crate) struct Case {
    pub(crate) world: World,
    pub(crate) running: Option<Running>,
    twin: Vec<u8>,
    random: StdRng,
    what: String,
}

impl Case {
    pub(crate) async fn new(layout: &str, seed: u64) -> Self {
        let (world, running) = World::create(layout, 12, DISK, seed).await;
        let volume = running.volume(&format!("{POOL}/v"), VOLUME, 8192, Properties::new()).await;
        drop(volume);
        let mut this = Self {
            world,
            running: Some(running),
            twin: vec![0; VOLUME as usize],
            random: StdRng::seed_from_u64(seed),
            what: layout.to_owned(),
        };
        this.write(60).await;
        this
    }

    pub(crate) fn engine(&self) -> &engine::engine::Engine {
        &self.running.as_ref().unwrap().engine
    }

    async fn volume(&self) -> Arc<LiveVolume> {
        self.engine().volume(&format!("{POOL}/v")).await.unwrap()
    }

    /// Writes and a commit.
    pub(crate) async fn write(&mut self, count: usize) {
        let volume = self.volume().await;
        for _ in 0..count {
            let at = self.random.random_range(0..VOLUME as usize / 4096) * 4096;
            let end = self.twin.len().min(at + self.random.random_range(1..8) * 4096);
            let bytes: Vec<u8> = (at..end).map(|_| self.random.random()).collect();
            self.twin[at..end].copy_from_slice(&bytes);
            volume.write(at as u64, data(bytes), Durability::Cached).await.unwrap();
        }
        self.engine().sync().await.unwrap();
    }

    async fn check(&self) {
        assert!(content(&*self.volume().await).await == self.twin, "{}: content", self.what);
    }

    /// Another disk for the machine.
    fn disk(&mut self, size: u64) -> NewLeaf {
        let path = format!("/disks/d{}", self.world.media.len());
        let media = Arc::new(MemDisk::new(size).named(path.clone()));
        let disk = Arc::new(FaultDisk::with_write_cache(Arc::clone(&media) as Arc<dyn Disk>, 1));
        // In memory all would be over before anybody could look.
        let slow = std::time::Duration::from_millis(20);
        disk.inject(Fault::anywhere(On::Write, Effect::Delay(slow..=slow)));
        self.world.media.push(media);
        self.running.as_mut().unwrap().disks.push(Arc::clone(&disk));
        NewLeaf { path, disk, is_file: true, ashift: None }
    }

    pub(crate) fn guid(&self, word: &str) -> u64 {
        let view = self.engine().view();
        // A pool knows its devices by where they were found, once it was imported.
        devices::find(&view, word).or_else(|_| devices::find(&view, &format!("/disks/{word}"))).unwrap()
    }

    fn leaf<T>(&self, guid: u64, of: impl Fn(&Vdev) -> T) -> T {
        let tree = self.engine().view().tree();
        of(tree.leaves().into_iter().find(|leaf| leaf.guid == guid).expect("a leaf"))
    }

    fn state(&self, guid: u64) -> State {
        self.leaf(guid, |vdev| vdev.state().0)
    }

    fn missed(&self, guid: u64) -> TxgSet {
        missed(&self.engine().view(), guid)
    }

    fn draw(&self) -> String {
        draw(&self.engine().view())
    }

    /// What the pool's configuration says of a device.
    fn config(&self, guid: u64) -> NvList {
        fn find(list: &NvList, guid: u64) -> Option<NvList> {
            if list.u64("guid") == Some(guid) {
                return Some(list.clone());
            }
            let children = list.nvlist_array("children").unwrap_or_default();
            children.iter().find_map(|child| find(child, guid))
        }
        let view = self.engine().view();
        let tops = view.config().nvlist("vdev_tree").unwrap().nvlist_array("children").unwrap();
        tops.iter().find_map(|top| find(top, guid)).expect("a device of the configuration")
    }

    /// Exports at once, lets everybody judge, opens again, compares; the pool as it was found in between.
    pub(crate) async fn judge(&mut self, what: &str) -> Arc<Pool> {
        what.clone_into(&mut self.what);
        self.running.take().unwrap().export().await;
        let pool = self.world.look().await.unwrap_or_else(|error| panic!("{what}: {error}"));
        let mut report = pool::verify::verify(&pool, &Arc::default()).await;
        // Less redundant than it should be is what such a pool is.
        let lacks = pool
            .tree()
            .leaves()
            .iter()
            .any(|leaf| !leaf.is_readable() || !leaf.leaf.as_ref().unwrap().missed.get().is_empty());
        if lacks {
            report.thin = 0;
        }
        assert!(report.is_clean(), "{what}: {report:#?}");
        let dir = tempfile::tempdir().unwrap();
        self.world.save(dir.path());
        drop_strangers(dir.path(), &self.world);
        if !lacks {
            files::judge(dir.path());
        } else if fixtures::tool("zdb").is_some() {
            // The reference checker knows nothing of what leaves lack.
            fixtures::zdb_check(&["--degraded"], dir.path(), POOL)
                .unwrap_or_else(|why| panic!("{what}: zdb: {why}"));
        }
        self.running = Some(self.world.open().await);
        self.check().await;
        pool
    }

    /// Waits until everything is resilvered that can be.
    async fn settled(&self) {
        for _ in 0..1000 {
            let is_running = self.engine().scan_progress().is_some_and(|progress| progress.running);
            if devices::lacking(&self.engine().view().tree()).is_empty() && !is_running {
                // The devices change before the transaction group that says so is durable.
                self.engine().sync().await.unwrap();
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        panic!("{}: not resilvered: {:?}", self.what, self.engine().scan_progress());
    }

    fn events(&self) -> Vec<Event> {
        self.engine().events().since(0).into_iter().map(|record| record.event.clone()).collect()
    }
}

/// The tree in words.
fn draw(pool: &Pool) -> String {
    pool.tree().tops.iter().map(vdev).collect::<Vec<_>>().join(" ")
}

fn vdev(vdev: &Vdev) -> String {
    let children: Vec<String> = vdev.children.iter().map(self::vdev).collect();
    let name = match &vdev.path {
        Some(path) => path.trim_start_matches("/disks/").to_owned(),
        None => vdev.display_name(),
    };
    if children.is_empty() { name } else { format!("{name}({})", children.join(" ")) }
}

fn missed(pool: &Pool, guid: u64) -> TxgSet {
    let tree = pool.tree();
    let leaf = tree.leaves().into_iter().find(|leaf| leaf.guid == guid).expect("a leaf");
    leaf.leaf.as_ref().unwrap().missed.get()
}

/// Images without a label are no part of the pool.
fn drop_strangers(dir: &std::path::Path, world: &World) {
    for (n, media) in world.media.iter().enumerate() {
        let label = media.snapshot(0..256 << 10);
        if label[16 << 10..].iter().all(|byte| *byte == 0) {
            std::fs::remove_file(dir.join(format!("d{n}.img"))).unwrap();
        }
    }
}

pub(crate) fn refused<T: std::fmt::Debug>(result: Result<T, OpError>) -> String {
    result.unwrap_err().to_string()
}
