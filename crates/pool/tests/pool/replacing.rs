//! Devices that are being replaced and spares that stand in: the right one of two is asked for each block, and what
//! the other one lacks costs neither data nor a counted error. Real content, with the tree around it changed.

use std::{fs, sync::Arc};

use disk::{Disk, MemDisk};
use ondisk::nvlist::{NvList, Value};
use pool::{
    Pool, PoolIo,
    cache::BlockCache,
    import::open,
    vdev::{Disks, State, Tree, TxgSet},
};

use crate::support::{Walk, anyhow, candidate, walk, walk_through};

const NEW: u64 = 0x0e17;

/// A pool, its images by guid of the leaf, and what a walk finds.
struct Original {
    pool: Arc<Pool>,
    images: Vec<(u64, Vec<u8>)>,
    walk: Walk,
}

impl Original {
    async fn of(name: &str) -> Self {
        let fixture = fixtures::pool(name);
        let pool = open(&candidate(&fixture.dir).await, &anyhow()).await.unwrap();
        let tree = pool.tree();
        let leaves = tree.leaves();
        let images = leaves.iter().map(|leaf| (leaf.guid, fs::read(leaf.path.as_ref().unwrap()).unwrap()));
        Self { images: images.collect(), walk: walk(&pool).await, pool }
    }

    fn disks(&self) -> Disks {
        let disk = |image: &[u8]| Arc::new(MemDisk::from_bytes(image)) as Arc<dyn Disk>;
        self.images.iter().map(|(guid, image)| (*guid, disk(image))).collect()
    }

    /// The tree with child 1 of the only top-level device below a new interior device, beside a new leaf.
    fn tree(&self, word: &str, disks: &Disks) -> Tree {
        let root = self.pool.config().nvlist("vdev_tree").unwrap();
        let mut top = root.nvlist_array("children").unwrap()[0].clone();
        let mut children = top.nvlist_array("children").unwrap().to_vec();
        let old = children[1].clone();
        let mut new = old.clone();
        new.set("guid", NEW);
        new.set("id", 1u64);
        new.set("path", "/new");
        let mut pair = NvList::new();
        pair.set("type", word);
        pair.set("id", 1u64);
        pair.set("guid", 77u64);
        let mut first = old;
        first.set("id", 0u64);
        pair.set("children", Value::NvListArray(vec![first, new]));
        children[1] = pair;
        top.set("children", Value::NvListArray(children));
        Tree::from_tops(self.pool.guid(), &[&top], disks, None).unwrap()
    }

    /// Reads everything through `tree`; the checksum errors counted.
    async fn read(&self, tree: Tree) -> (Walk, u64) {
        let io = Arc::new(PoolIo::new(tree, Arc::new(BlockCache::new(8 << 20))));
        io.start_counting();
        let walk = walk_through(&io, self.pool.uberblock().rootbp).await;
        let counted = io.tree().leaves().iter().map(|leaf| leaf.counters.get().checksum).sum();
        (walk, counted)
    }

    /// `(blocks, digest, errors)` equal the original's.
    fn is_same(&self, walk: &Walk) -> bool {
        walk.errors.is_empty() && (walk.blocks, walk.digest) == (self.walk.blocks, self.walk.digest)
    }

    fn old_guid(&self) -> u64 {
        self.images[1].0
    }

    fn empty(&self) -> Arc<dyn Disk> {
        Arc::new(MemDisk::new(self.images[1].1.len() as u64))
    }

    fn copy(&self) -> Arc<dyn Disk> {
        Arc::new(MemDisk::from_bytes(&self.images[1].1))
    }
}

fn new_leaf(tree: &Tree) -> &pool::vdev::Leaf {
    tree.leaves().into_iter().find(|leaf| leaf.guid == NEW).unwrap().leaf.as_ref().unwrap()
}

const POOLS: [&str; 3] = ["mirror2", "raidz1x3", "raidz2x6"];

#[tokio::test]
async fn a_new_device_is_not_asked_for_what_it_has_not_got_yet() {
    for name in POOLS {
        let original = Original::of(name).await;
        for word in ["replacing", "spare"] {
            let mut disks = original.disks();
            disks.insert(NEW, original.empty());
            let tree = original.tree(word, &disks);
            new_leaf(&tree).missed.add_all(&TxgSet::from_ranges(vec![(4, 1 << 40)]));
            let (walk, counted) = original.read(tree).await;
            assert!(original.is_same(&walk), "{name} {word}: {walk:?}");
            assert_eq!(counted, 0, "{name} {word}");
        }
    }
}

#[tokio::test]
async fn before_its_log_is_known_checksums_tell() {
    for name in POOLS {
        let original = Original::of(name).await;
        let mut disks = original.disks();
        disks.insert(NEW, original.empty());
        let (walk, counted) = original.read(original.tree("replacing", &disks)).await;
        assert!(original.is_same(&walk), "{name}: {walk:?}");
        assert!(counted > 0, "{name}: zeroes were met");
    }
}

#[tokio::test]
async fn with_the_old_device_gone_the_others_make_up_for_what_the_new_one_lacks() {
    for name in POOLS {
        let original = Original::of(name).await;
        let half = original.pool.uberblock().txg / 2;
        let mut disks = original.disks();
        disks.remove(&original.old_guid());
        disks.insert(NEW, original.copy());
        let tree = original.tree("replacing", &disks);
        assert_eq!(tree.tops[0].state().0, State::Degraded);
        new_leaf(&tree).missed.add_all(&TxgSet::from_ranges(vec![(4, half)]));
        let (walk, counted) = original.read(tree).await;
        assert!(original.is_same(&walk), "{name}: {walk:?}");
        assert_eq!(counted, 0, "{name}");
    }
}

#[tokio::test]
async fn a_spare_that_has_everything_leaves_redundancy_for_one_more() {
    for name in POOLS {
        let original = Original::of(name).await;
        let mut disks = original.disks();
        disks.remove(&original.old_guid());
        disks.remove(&original.images[0].0);
        disks.insert(NEW, original.copy());
        let (walk, counted) = original.read(original.tree("spare", &disks)).await;
        assert!(original.is_same(&walk), "{name}: {walk:?}");
        assert_eq!(counted, 0, "{name}");
    }
}

#[tokio::test]
async fn missing_and_lying_devices_together_may_be_as_many_as_there_is_parity() {
    let original = Original::of("raidz2x6").await;
    let mut disks = original.disks();
    disks.remove(&original.images[2].0);
    let mut liar = original.images[4].1.clone();
    for (number, page) in liar[4 << 20..].chunks_mut(4096).enumerate() {
        if number % 3 == 0 {
            page.iter_mut().for_each(|byte| *byte ^= 0x5a);
        }
    }
    disks.insert(original.images[4].0, Arc::new(MemDisk::from_bytes(&liar)));
    let root = original.pool.config().nvlist("vdev_tree").unwrap();
    let tops: Vec<&NvList> = root.nvlist_array("children").unwrap().iter().collect();
    let (walk, counted) =
        original.read(Tree::from_tops(original.pool.guid(), &tops, &disks, None).unwrap()).await;
    assert!(original.is_same(&walk), "{walk:?}");
    assert!(counted > 0);
}

#[tokio::test]
async fn both_sides_of_a_mirror_may_lie_as_long_as_it_is_about_different_blocks() {
    let original = Original::of("mirror2").await;
    let mut disks = original.disks();
    for (side, (guid, image)) in original.images.iter().enumerate() {
        let mut image = image.clone();
        // Alternate MiB: no block is larger, but one may lie across; so leave the borders alone.
        for (number, part) in image[4 << 20..].chunks_mut(1 << 20).enumerate() {
            let len = part.len();
            if number % 2 == side && len > 512 << 10 {
                part[256 << 10..len - (256 << 10)].fill(0xee);
            }
        }
        disks.insert(*guid, Arc::new(MemDisk::from_bytes(&image)));
    }
    let root = original.pool.config().nvlist("vdev_tree").unwrap();
    let tops: Vec<&NvList> = root.nvlist_array("children").unwrap().iter().collect();
    let (walk, counted) =
        original.read(Tree::from_tops(original.pool.guid(), &tops, &disks, None).unwrap()).await;
    assert!(original.is_same(&walk), "{walk:?}");
    assert!(counted > 0);
}
