//! What lies between a reader and the devices: a second tier that may lie, and datasets that do not want to be cached.
//! On pools that OpenZFS wrote.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use block::BlockVolume;
use bytes::Bytes;
use ondisk::{blkptr::BlkPtr, dnode::ObjectType, dsl::DatasetPhys};
use pool::{
    Bookmark, Pool,
    cache::{Below, BelowFuture, BlockCache, Caching, Fate, Keep, Stored},
    dmu::{Object, ObjectSet, Run},
    import::{OpenOptions, open},
};
use tokio::sync::Semaphore;

use crate::support::{anyhow, candidate};

type Blocks = Vec<(BlkPtr, Bookmark)>;

/// A pool with a cache of its own.
async fn pool(name: &str, cache: usize) -> (Arc<Pool>, Arc<BlockCache>) {
    let fixture = fixtures::pool(name);
    let cache = Arc::new(BlockCache::new(cache));
    let options = OpenOptions { cache: Arc::clone(&cache), ..anyhow() };
    (open(&candidate(&fixture.dir).await, &options).await.unwrap(), cache)
}

/// Level 0 of everything that is readable without a key.
async fn blocks(pool: &Pool) -> Blocks {
    let mut found = Blocks::new();
    let mos = ObjectSet::open(pool.io().clone(), 0, pool.uberblock().rootbp).await.unwrap();
    for (id, root) in blocks_of(&mos, &mut found).await {
        if let Ok(set) = ObjectSet::open(pool.io().clone(), id, root).await {
            blocks_of(&set, &mut found).await;
        }
    }
    assert!(found.len() > 50, "there is something to read");
    found
}

async fn blocks_of(set: &ObjectSet, found: &mut Blocks) -> Vec<(u64, BlkPtr)> {
    let mut datasets = Vec::new();
    let mut objects = set.objects();
    while let Ok(Some(dnode)) = objects.next().await {
        if set.id() == 0 && dnode.dnode.bonus_type == ObjectType::DSL_DATASET {
            let dataset = DatasetPhys::decode(&dnode.dnode.bonus, dnode.order).unwrap();
            datasets.push((dnode.number, dataset.bp));
        }
        let object = Object::new(set.source().clone(), set.id(), dnode).unwrap();
        let mut runs = object.runs(0, 0..object.max_block_id() + 1);
        while let Ok(Some(run)) = runs.next().await {
            if let Run::Block { blkid, pointer } = run
                && !pointer.is_encrypted()
                && !pointer.is_embedded()
            {
                found.push((pointer, object.bookmark(0, blkid)));
            }
        }
    }
    datasets.retain(|(_, root)| !root.is_hole());
    datasets
}

/// A tier that has everything, and gives a part of it wrongly.
#[derive(Debug, Default)]
struct Tier {
    blocks: BTreeMap<(u64, u64, u64), Bytes>,
    asked: AtomicUsize,
    wrong: AtomicUsize,
    lied: Mutex<Vec<BlkPtr>>,
}

fn name(bp: &BlkPtr) -> (u64, u64, u64) {
    (bp.words()[0], bp.words()[1], bp.physical_birth())
}

impl Below for Tier {
    fn evicted(&self, block: Stored) -> Fate {
        block.fate()
    }

    fn read(&self, _pool: u64, bp: &BlkPtr, _is_eligible: bool) -> Option<BelowFuture> {
        let asked = self.asked.fetch_add(1, Relaxed);
        let right = self.blocks.get(&name(bp))?.clone();
        let answer = match asked % 6 {
            0 => None,
            1 => return None,
            2 | 3 => {
                self.wrong.fetch_add(1, Relaxed);
                let mut wrong = right.to_vec();
                if asked.is_multiple_of(2) {
                    wrong[asked % right.len()] ^= 1;
                } else {
                    wrong.truncate(right.len() / 2);
                }
                Some(Bytes::from(wrong))
            }
            _ => Some(right),
        };
        Some(Box::pin(async move {
            tokio::task::yield_now().await;
            answer
        }))
    }

    fn lied(&self, _pool: u64, bp: &BlkPtr) {
        self.lied.lock().unwrap().push(*bp);
    }
}

#[tokio::test]
async fn wrong_bytes_of_the_second_tier_never_reach_a_reader() {
    for name_of_pool in ["mirror2", "raidz1x3"] {
        // Nothing fits into the cache, so every read asks below.
        let (pool, _cache) = pool(name_of_pool, 0).await;
        let io = pool.io();
        let blocks = blocks(&pool).await;
        let truth: Vec<Bytes> =
            io.read_blocks_uncached(&blocks).await.into_iter().map(Result::unwrap).collect();
        let mut tier = Tier::default();
        for (bp, at) in &blocks {
            tier.blocks.insert(name(bp), io.read_raw(bp, *at).await.unwrap());
        }
        let tier = Arc::new(tier);
        io.set_below(Some(tier.clone()));
        for ((bp, at), truth) in blocks.iter().zip(&truth) {
            assert!(io.read_block(bp, *at).await.unwrap() == *truth, "{name_of_pool}: {at}");
        }
        for chunk in [1, 7, 64] {
            for (blocks, truth) in blocks.chunks(chunk).zip(truth.chunks(chunk)) {
                for (read, truth) in io.read_blocks(blocks).await.into_iter().zip(truth) {
                    assert!(read.unwrap() == *truth, "{name_of_pool}: in batches of {chunk}");
                }
            }
        }
        let asked = tier.asked.load(Relaxed);
        assert!(asked >= 4 * blocks.len(), "each time");
        assert_eq!(tier.lied.lock().unwrap().len(), tier.wrong.load(Relaxed), "it was told of each lie");
        let errors: u64 = io.tree().leaves().iter().map(|leaf| leaf.counters.get().checksum).sum();
        assert_eq!(errors, 0, "no device is blamed for it");
        io.read_blocks_uncached(&blocks).await;
        assert_eq!(tier.asked.load(Relaxed), asked, "a scan asks the devices");
        io.set_below(None);
        io.read_blocks(&blocks).await;
        assert_eq!(tier.asked.load(Relaxed), asked, "it is gone");
    }
}

/// Waits a little for each block, and counts.
#[derive(Debug, Default)]
struct Slow {
    blocks: BTreeMap<(u64, u64, u64), Bytes>,
    asked: AtomicUsize,
}

impl Below for Slow {
    fn evicted(&self, block: Stored) -> Fate {
        block.fate()
    }

    fn read(&self, _pool: u64, bp: &BlkPtr, _is_eligible: bool) -> Option<BelowFuture> {
        self.asked.fetch_add(1, Relaxed);
        let right = self.blocks.get(&name(bp))?.clone();
        Some(Box::pin(async move {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            Some(right)
        }))
    }

    fn lied(&self, _pool: u64, _bp: &BlkPtr) {}
}

#[tokio::test]
async fn who_misses_a_block_that_somebody_reads_waits_for_that_read_and_takes_over_if_it_is_given_up() {
    // With a cache, and where nothing is kept.
    for size in [64 << 20, 0] {
        let (pool, cache) = pool("mirror2", size).await;
        let io = pool.io();
        let mut blocks = blocks(&pool).await;
        blocks.sort_by_key(|(bp, _)| name(bp));
        blocks.dedup_by_key(|(bp, _)| name(bp));
        blocks.truncate(300);
        let truth: Vec<Bytes> =
            io.read_blocks_uncached(&blocks).await.into_iter().map(Result::unwrap).collect();
        let mut tier = Slow::default();
        for (bp, at) in &blocks {
            tier.blocks.insert(name(bp), io.read_raw(bp, *at).await.unwrap());
        }
        // As if it were opened anew.
        cache.set_budget(0);
        cache.set_budget(size);
        let tier = Arc::new(tier);
        io.set_below(Some(tier.clone()));
        let blocks = Arc::new(blocks);
        let waited = cache.stats().iohits;
        // One who reads everything and goes away in the middle; eight who meet him, one by one and in batches.
        let away = {
            let (io, blocks) = (Arc::clone(io), Arc::clone(&blocks));
            tokio::spawn(async move { drop(io.read_blocks(&blocks).await) })
        };
        tokio::task::yield_now().await;
        let mut readers = tokio::task::JoinSet::new();
        for reader in 0..8_usize {
            let (io, blocks, truth) = (Arc::clone(io), Arc::clone(&blocks), truth.clone());
            readers.spawn(async move {
                if reader.is_multiple_of(2) {
                    for (read, truth) in io.read_blocks(&blocks).await.into_iter().zip(&truth) {
                        assert!(read.unwrap() == *truth);
                    }
                    return;
                }
                for ((bp, at), truth) in blocks.iter().zip(&truth) {
                    assert!(io.read_block(bp, *at).await.unwrap() == *truth);
                }
            });
        }
        tokio::time::sleep(std::time::Duration::from_millis(35)).await;
        away.abort();
        while let Some(read) = readers.join_next().await {
            read.unwrap();
        }
        let (asked, all) = (tier.asked.load(Relaxed), blocks.len());
        assert!(cache.stats().iohits > waited);
        if size > 0 {
            // Each block once, and once more where the one who had begun with it went away.
            assert!(asked >= all && asked <= 2 * all, "{asked} reads of {all} blocks");
        } else {
            assert!(asked < 8 * all, "{asked} reads of {all} blocks");
        }
    }
}

#[tokio::test]
async fn datasets_are_cached_as_their_properties_say() {
    let (pool, cache) = pool("mirror2", 64 << 20).await;
    let io = pool.io();
    let blocks = blocks(&pool).await;
    let is_data = |bp: &BlkPtr| bp.level() == 0 && !bp.object_type().is_metadata();
    let sets: BTreeSet<u64> = blocks.iter().map(|(_, at)| at.objset).collect();
    let data = blocks.iter().filter(|(bp, _)| is_data(bp)).count();
    assert!(data > 10 && data < blocks.len());
    for (primary, data_kept) in [(Keep::None, 0), (Keep::Metadata, 0), (Keep::All, data)] {
        cache.set_budget(0);
        cache.set_budget(64 << 20);
        sets.iter().for_each(|set| io.set_caching(*set, Caching { primary, secondary: Keep::All }));
        io.read_blocks(&blocks).await;
        for (bp, at) in &blocks {
            io.read_block(bp, *at).await.unwrap();
        }
        let kept = |wanted: bool| {
            let kept = |bp: &BlkPtr| is_data(bp) == wanted && io.is_cached(bp);
            blocks.iter().filter(|(bp, _)| kept(bp)).count()
        };
        // Two pointers may lead to one block.
        assert_eq!(kept(true), data_kept, "{primary:?}");
        let metadata = if primary == Keep::None { 0 } else { blocks.len() - data };
        assert_eq!(kept(false), metadata, "{primary:?}");
        if primary == Keep::None {
            assert_eq!(cache.stats().hash_elements, 0);
        }
    }
}

/// Such misses are in the counters, but memory of no size would make them hits.
#[tokio::test]
async fn what_a_dataset_lets_nobody_keep_is_promised_to_no_larger_cache() {
    let (pool, cache) = pool("mirror2", 64 << 20).await;
    let io = pool.io();
    let mut blocks = blocks(&pool).await;
    let mut met = BTreeSet::new();
    blocks.retain(|(bp, _)| bp.level() == 0 && !bp.object_type().is_metadata() && met.insert(name(bp)));
    let sets: BTreeSet<u64> = blocks.iter().map(|(_, at)| at.objset).collect();
    let unwilling =
        *sets.iter().max_by_key(|set| blocks.iter().filter(|(_, at)| at.objset == **set).count()).unwrap();
    let unkept = blocks.iter().filter(|(_, at)| at.objset == unwilling).count() as u64;
    let kept = blocks.len() as u64 - unkept;
    assert!(unkept > 10 && kept > 10, "{unkept}, {kept}");
    cache.set_budget(0);
    cache.set_budget(64 << 20);
    io.set_caching(unwilling, Caching { primary: Keep::Metadata, secondary: Keep::All });
    let before = cache.stats();
    for _ in 0..10 {
        assert!(io.read_blocks(&blocks).await.iter().all(Result::is_ok));
        for (bp, at) in &blocks {
            io.read_block(bp, *at).await.unwrap();
        }
    }
    let after = cache.stats();
    let missed = after.demand_data_misses - before.demand_data_misses;
    assert_eq!(missed, 20 * unkept + kept, "what is kept is missed once");
    let advice = cache.advice().unwrap();
    let expected = 19.0 / 20.0;
    assert!((advice.whole.hit_ratio - expected).abs() < 1e-6, "{} of {expected}", advice.whole.hit_ratio);
}

/// Has nothing, and counts how often each block of data was wanted.
#[derive(Debug, Default)]
struct Asked(Mutex<BTreeMap<(u64, u64, u64), usize>>);

impl Below for Asked {
    fn evicted(&self, block: Stored) -> Fate {
        block.fate()
    }

    fn read(&self, _pool: u64, bp: &BlkPtr, _is_eligible: bool) -> Option<BelowFuture> {
        if bp.level() == 0 {
            *self.0.lock().unwrap().entry(name(bp)).or_default() += 1;
        }
        None
    }

    fn lied(&self, _pool: u64, _bp: &BlkPtr) {}
}

/// What is not kept was fetched, waited for, dropped, and read once more by who had waited.
#[tokio::test]
async fn a_volume_that_is_read_in_order_is_read_ahead_as_its_properties_say_and_no_block_twice() {
    let (pool, cache) = pool("single", 64 << 20).await;
    let io = pool.io();
    use Keep::{All, Metadata, None};
    for (primary, prefetch) in [(All, All), (Metadata, All), (All, Metadata), (None, All), (All, None)] {
        let volume = pool.open_volume("psingle/v1").await.unwrap();
        let (objset, size) = (volume.data().objset(), volume.geometry().size);
        // It is open, and had other properties then.
        cache.set_budget(0);
        cache.set_budget(64 << 20);
        io.set_caching(objset, Caching { primary, secondary: All });
        io.set_prefetch(objset, prefetch);
        let asked = Arc::new(Asked::default());
        io.set_below(Some(asked.clone()));
        let before = cache.stats();
        for offset in (0..size).step_by(64 << 10) {
            volume.read(offset, 64 << 10).await.unwrap();
        }
        // A fetch may be under way that nobody waits for.
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        let ahead = cache.stats().prefetch_data_misses - before.prefetch_data_misses;
        assert_eq!(ahead > 0, primary == All && prefetch == All, "{primary:?} {prefetch:?}: {ahead}");
        let asked = asked.0.lock().unwrap();
        assert!(asked.len() > 100 && asked.values().all(|times| *times == 1), "{primary:?} {prefetch:?}");
    }
}

/// Has nothing, and does not say so before it may; counts what it was asked for.
#[derive(Debug)]
struct Withheld {
    asked: AtomicUsize,
    may: Arc<Semaphore>,
}

impl Below for Withheld {
    fn evicted(&self, block: Stored) -> Fate {
        block.fate()
    }

    fn read(&self, _pool: u64, _bp: &BlkPtr, _is_eligible: bool) -> Option<BelowFuture> {
        self.asked.fetch_add(1, Relaxed);
        let may = Arc::clone(&self.may);
        Some(Box::pin(async move {
            drop(may.acquire().await);
            None
        }))
    }

    fn lied(&self, _pool: u64, _bp: &BlkPtr) {}
}

/// It was in nobody's account: 64 MiB in each pool, however little memory the daemon may have.
#[tokio::test]
async fn no_more_is_read_ahead_at_a_time_than_there_is_room_for() {
    let (pool, cache) = pool("single", 64 << 20).await;
    let io = pool.io();
    let mut blocks = blocks(&pool).await;
    blocks.sort_by_key(|(bp, _)| name(bp));
    blocks.dedup_by_key(|(bp, _)| name(bp));
    blocks.truncate(40);
    let (some, others) = blocks.split_at(20);
    cache.set_budget(0);
    cache.set_budget(64 << 20);
    let tier = Arc::new(Withheld { asked: AtomicUsize::new(0), may: Arc::new(Semaphore::new(0)) });
    io.set_below(Some(tier.clone()));
    let asked = || tier.asked.load(Relaxed);
    io.set_ahead_max(some.iter().map(|(bp, _)| bp.lsize()).sum());
    let first = {
        let (io, some) = (Arc::clone(io), some.to_vec());
        tokio::spawn(async move { io.read_ahead(&some).await })
    };
    while asked() < some.len() {
        tokio::task::yield_now().await;
    }
    io.read_ahead(others).await;
    assert_eq!(asked(), some.len(), "what finds no room in time is left to who asks for it");
    tier.may.add_permits(1);
    first.await.unwrap();
    io.read_ahead(others).await;
    assert_eq!(asked(), blocks.len());
    assert!(blocks.iter().all(|(bp, _)| io.is_cached(bp)));
}

/// Hits were counted by who looked whether all of a request was there, and once more by who read what was not: and the way
/// to each block that was missed, too.
#[tokio::test]
async fn what_is_found_of_a_request_counts_once_whether_or_not_all_of_it_is_there() {
    let (pool, cache) = pool("single", 64 << 20).await;
    let volume = pool.open_volume("psingle/v1").await.unwrap();
    let data = volume.data();
    pool.io().set_prefetch(data.objset(), Keep::None);
    // Twenty blocks in a row: more than are looked up at once.
    let mut runs = data.runs(0, 0..data.max_block_id() + 1);
    let mut row: Vec<u64> = Vec::new();
    while row.len() < 20 {
        match runs.next().await.unwrap().expect("a volume with data") {
            Run::Block { blkid, .. } if row.last().is_none_or(|last| last + 1 == blkid) => row.push(blkid),
            Run::Block { blkid, .. } => row = vec![blkid],
            Run::Hole { .. } => row.clear(),
        }
    }
    let block = u64::from(volume.geometry().block);
    let len = |blocks: u64| (blocks * block) as usize;
    let counted = || {
        let stats = cache.stats();
        [
            stats.demand_data_hits,
            stats.demand_data_misses,
            stats.demand_metadata_hits,
            stats.demand_metadata_misses,
        ]
    };
    let since = |before: [u64; 4]| std::array::from_fn(|n| counted()[n] - before[n]);
    let start = row[0] * block;
    let cold = || {
        cache.set_budget(0);
        cache.set_budget(64 << 20);
    };

    cold();
    volume.read(start, len(18)).await.unwrap();
    let before = counted();
    assert!(volume.read_cached(start, len(18)).is_some());
    let [hits, misses, way, 0] = since(before) else { panic!("no pointer is missing") };
    assert!((hits, misses) == (18, 0) && way > 0, "all of it is there: {hits} {misses} {way}");
    let before = counted();
    assert!(volume.read_cached(start, len(20)).is_none());
    assert_eq!(since(before), [0; 4], "it is to be read");
    volume.read(start, len(20)).await.unwrap();
    assert_eq!(since(before), [18, 2, way, 0]);

    // Two requests together, one of which is answered.
    cold();
    volume.read(start, len(1)).await.unwrap();
    let before = counted();
    let mut answered = Vec::new();
    let reads = [(start, len(1)), (start + block, len(1))];
    volume.read_cached_each(&reads, &mut |number, found| answered.push((number, found.is_some())));
    answered.sort_unstable();
    assert_eq!((answered, since(before)), (vec![(0, true), (1, false)], [1, 0, way, 0]));
    volume.read(start + block, len(1)).await.unwrap();
    assert_eq!(since(before), [1, 1, 2 * way, 0]);
}

#[tokio::test]
async fn contents_are_the_same_from_the_cache_in_either_form_and_from_devices() {
    let (pool, cache) = pool("mirror2", 64 << 20).await;
    let io = pool.io();
    let blocks = blocks(&pool).await;
    let truth: Vec<Bytes> = io.read_blocks_uncached(&blocks).await.into_iter().map(Result::unwrap).collect();
    io.read_blocks(&blocks).await;
    let compressed = cache.stats();
    assert!(compressed.compressed_size < compressed.uncompressed_size, "{compressed:?}");
    // With little room for copies of contents: most of what is found has to be decompressed.
    cache.set_budget(12 << 20);
    for _ in 0..2 {
        for ((bp, at), truth) in blocks.iter().zip(&truth) {
            if let Some(found) = io.read_cached(bp) {
                assert!(found == *truth, "{at}");
            }
        }
    }
    let stats = cache.stats();
    assert!(stats.hits > compressed.hits && stats.size <= stats.c, "{stats:?}");
    drop(pool);
    assert_eq!(cache.stats().hash_elements, 0, "a closed pool leaves nothing behind");
}
