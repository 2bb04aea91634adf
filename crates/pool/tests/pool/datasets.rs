//! What real pools hold, against what OpenZFS says they hold: names, space, every property with its source, and
//! the content of every volume and volume snapshot.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use block::{BlockVolume, Segment};
use bytes::Bytes;
use ondisk::blkptr::BlkPtr;
use parking_lot::Mutex;
use pool::{
    BlockError, Bookmark, Pool, PoolIo,
    dmu::{BlockSource, SourceFuture},
    dsl::Dataset,
    import::open,
    props::Style,
};
use sha2::{Digest, Sha256};

use crate::support::{anyhow, candidate};

/// Bytes of one read of a whole volume: no multiple of any block, so that edges are met.
const READ: u64 = 3 * (1 << 20) + 512;

async fn open_fixture(fixture: &fixtures::Fixture) -> Arc<Pool> {
    let candidate = candidate(&fixture.dir).await;
    open(&candidate, &anyhow()).await.unwrap_or_else(|error| panic!("{}: {error}", fixture.name))
}

async fn all_datasets(pool: &Pool) -> BTreeMap<String, Dataset> {
    let (datasets, errors) = pool.datasets().await.unwrap();
    assert!(errors.is_empty(), "{errors:?}");
    datasets.into_iter().map(|dataset| (dataset.name().to_owned(), dataset)).collect()
}

/// A log that was not replayed when the manifest's properties were taken is replayed in its sums.
fn is_crashed(fixture: &fixtures::Fixture) -> bool {
    fixture.name.starts_with("crash-")
}

async fn sha256(volume: &dyn BlockVolume) -> String {
    let size = volume.geometry().size;
    let mut hash = Sha256::new();
    let zeroes = vec![0; 1 << 20];
    let mut offset = 0;
    while offset < size {
        let len = READ.min(size - offset) as usize;
        let segments = volume.read(offset, len).await.unwrap();
        assert_eq!(segments.iter().map(Segment::len).sum::<usize>(), len);
        for segment in segments {
            match segment {
                Segment::Data(bytes) => hash.update(&bytes),
                Segment::Zero(mut len) => {
                    while len > 0 {
                        let part = len.min(zeroes.len());
                        hash.update(&zeroes[..part]);
                        len -= part;
                    }
                }
            }
        }
        offset += len as u64;
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Gives the blocks of a pool, and remembers none but by name.
#[derive(Debug)]
struct Noting {
    io: Arc<PoolIo>,
    asked: Mutex<Vec<Bookmark>>,
}

impl BlockSource for Noting {
    fn cached(&self, _: &BlkPtr) -> Option<Bytes> {
        None
    }

    fn read<'a>(&'a self, bp: &'a BlkPtr, at: Bookmark) -> SourceFuture<'a, Result<Bytes, BlockError>> {
        self.asked.lock().push(at);
        Box::pin(self.io.read_block(bp, at))
    }

    fn read_many<'a>(
        &'a self,
        blocks: &'a [(BlkPtr, Bookmark)],
    ) -> SourceFuture<'a, Vec<Result<Bytes, BlockError>>> {
        self.asked.lock().extend(blocks.iter().map(|(_, at)| *at));
        Box::pin(self.io.read_blocks(blocks))
    }
}

/// To list 40,000 snapshots, or 25,000 metaslabs, took as many reads, one after the other.
#[tokio::test]
async fn the_dnodes_of_many_objects_are_those_of_each_and_a_block_of_them_is_read_once() {
    let fixture = fixtures::pool("single");
    let pool = open_fixture(&fixture).await;
    let source = Arc::new(Noting { io: Arc::clone(pool.io()), asked: Mutex::default() });
    let mos = pool.mos().over(Arc::clone(&source) as Arc<dyn BlockSource>).unwrap();
    // In another order, twice, and more than there are.
    let numbers: Vec<u64> = (0..1000).rev().chain(0..1000).collect();
    let found = mos.dnodes(&numbers).await;
    let asked = std::mem::take(&mut *source.asked.lock());
    let different: BTreeSet<Bookmark> = asked.iter().copied().collect();
    assert_eq!(different.len(), asked.len(), "{asked:?}");
    assert!(found.iter().filter(|found| found.is_ok()).count() > 50, "there are objects");
    assert_eq!(found.len(), numbers.len());
    for (number, found) in numbers.iter().zip(&found) {
        let alone = mos.dnode(*number).await;
        assert_eq!(format!("{found:?}"), format!("{alone:?}"), "{number}");
    }
}

#[tokio::test]
async fn names_and_every_property_are_those_of_openzfs() {
    let mut compared = 0;
    let mut wrong = Vec::new();
    for fixture in fixtures::all() {
        let manifest = &fixture.manifest;
        // The properties of a crashed pool were taken after its log was replayed.
        if manifest.zfs_get.is_empty() || is_crashed(&fixture) {
            continue;
        }
        let pool = open_fixture(&fixture).await;
        let (datasets, errors) = pool.datasets().await.unwrap();
        assert!(errors.is_empty(), "{}: {errors:?}", fixture.name);
        let listed: Vec<&str> = datasets.iter().map(Dataset::name).collect();
        let expected: Vec<&str> = manifest.list.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(listed, expected, "{}", fixture.name);
        for dataset in datasets {
            let Some(expected) = manifest.zfs_get.get(dataset.name()) else {
                wrong.push(format!("{} is not in the manifest", dataset.name()));
                continue;
            };
            let properties = dataset.properties().await.unwrap();
            let ours: BTreeMap<&str, (String, String)> = properties
                .list()
                .iter()
                .map(|p| (&*p.name, (p.print(Style::Exact).into_owned(), p.source.to_string())))
                .collect();
            let theirs: BTreeMap<&str, (String, String)> = expected
                .iter()
                .map(|(name, p)| (name.as_str(), (p.value().to_owned(), p.source().to_owned())))
                .collect();
            for name in ours.keys().chain(theirs.keys()) {
                compared += 1;
                if ours.get(name) != theirs.get(name) {
                    let (ours, theirs) = (ours.get(name), theirs.get(name));
                    wrong.push(format!("{} {name}: {ours:?}, should be {theirs:?}", dataset.name()));
                }
            }
        }
    }
    wrong.dedup();
    assert!(wrong.is_empty(), "{} of {compared} differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(compared > 10_000, "{compared}");
}

/// Whoever lists much names all of it first, and finds each again by its name.
#[tokio::test]
async fn snapshots_are_named_without_being_opened_and_datasets_found_by_name() {
    let mut compared = 0;
    for fixture in fixtures::all() {
        if fixture.manifest.zfs_get.is_empty() {
            continue;
        }
        let pool = open_fixture(&fixture).await;
        let dsl = pool.dsl().await.unwrap();
        let (heads, errors) = pool.heads().await.unwrap();
        assert!(errors.is_empty(), "{}: {errors:?}", fixture.name);
        for head in &heads {
            let found = dsl.head(head.name()).await.unwrap().unwrap();
            assert_eq!((found.name(), found.object()), (head.name(), head.object()));
            let (mut named, failed) = head.snapshot_names(usize::MAX).await.unwrap().unwrap();
            assert!(failed.is_empty(), "{}: {failed:?}", fixture.name);
            let snapshots = head.snapshots().await.unwrap();
            let mut opened: Vec<(String, u64)> =
                snapshots.iter().map(|found| (found.last_name().to_owned(), found.create_txg())).collect();
            named.sort();
            opened.sort();
            assert_eq!(named, opened, "{}", head.name());
            assert!(head.snapshot_names(named.len()).await.unwrap().is_some());
            if let Some(fewer) = named.len().checked_sub(1) {
                assert!(head.snapshot_names(fewer).await.unwrap().is_none(), "{}", head.name());
            }
            compared += 1 + named.len();
        }
        for depth in 0..3 {
            let (within, _) = dsl.heads_within(dsl.root().await.unwrap(), depth).await;
            let within: Vec<&str> = within.iter().map(Dataset::name).collect();
            let names = heads.iter().map(Dataset::name);
            let expected: Vec<&str> =
                names.filter(|name| name.matches('/').count() as u64 <= depth).collect();
            assert_eq!(within, expected, "{} at {depth}", fixture.name);
        }
        assert!(dsl.head(&format!("{}/nothing", pool.name())).await.unwrap().is_none());
        assert!(dsl.head("nothing").await.unwrap().is_none());
    }
    assert!(compared > 50, "{compared}");
}

#[tokio::test]
async fn pool_properties_are_those_of_openzfs() {
    /// What depends on who looks, and when: the manifests were taken on a pool imported under another root, whose
    /// space maps were not loaded.
    const OF_THE_MOMENT: [&str; 6] =
        ["load_guid", "cachefile", "free", "allocated", "capacity", "fragmentation"];
    let mut wrong = Vec::new();
    let mut compared = 0;
    for fixture in fixtures::all() {
        if fixture.manifest.zpool_get.is_empty() {
            continue;
        }
        let pool = open_fixture(&fixture).await;
        let properties = pool.properties().await.unwrap();
        assert_eq!(properties.list().len(), fixture.manifest.zpool_get.len(), "{}", fixture.name);
        for property in properties.list() {
            let ours = (property.print(Style::Exact).into_owned(), property.source.to_string());
            if property.name == "health" && fixture.name.starts_with("missing-") {
                // The disks were taken away after the manifest was made.
                assert_eq!(ours.0, "DEGRADED", "{}", fixture.name);
                continue;
            }
            let theirs =
                fixture.manifest.zpool_get.get(&*property.name).map(|p| (p.value.clone(), p.source.clone()));
            compared += 1;
            if theirs.as_ref() != Some(&ours) && !OF_THE_MOMENT.contains(&&*property.name) {
                wrong.push(format!("{} {}: {ours:?}, should be {theirs:?}", fixture.name, property.name));
            }
        }
        let number = |name| properties.get(name).and_then(|p| p.value.as_number()).unwrap();
        assert_eq!(number("free") + number("allocated"), number("size"));
        assert!(number("allocated") > 0);
    }
    assert!(wrong.is_empty(), "{} of {compared} differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(compared > 1000, "{compared}");
}

#[tokio::test]
async fn every_volume_and_snapshot_has_its_content() {
    let mut compared = 0;
    for fixture in fixtures::all() {
        if fixture.manifest.zvols.is_empty() {
            continue;
        }
        let pool = open_fixture(&fixture).await;
        let datasets = all_datasets(&pool).await;
        let mut sums = BTreeMap::new();
        for zvol in &fixture.manifest.zvols {
            sums.insert(zvol.name.as_str(), zvol);
        }
        for zvol in &fixture.manifest.zvols {
            let mut expected = zvol;
            if is_crashed(&fixture) && !zvol.name.contains('@') {
                // What the log holds is not replayed: the volume is as its last snapshot.
                match sums.get(format!("{}@before", zvol.name).as_str()) {
                    Some(before) => expected = before,
                    None => continue,
                }
            }
            let dataset = &datasets[&zvol.name];
            let volume = dataset.open_volume().await.unwrap();
            assert_eq!(volume.geometry().size, zvol.size);
            assert_eq!(volume.identity().name, zvol.name);
            assert_eq!(sha256(&*volume).await, expected.sha256, "{}", zvol.name);
            compared += 1;
        }
    }
    assert!(compared > 50, "{compared}");
}
