//! Structures that lie although their checksums are right: a real pool whose blocks are changed after they were
//! verified. Whatever comes out, it comes out soon, as a value or as an error that names a block.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use block::BlockVolume;
use bytes::Bytes;
use ondisk::blkptr::BlkPtr;
use pool::{
    BlockError, Bookmark, Pool, PoolIo,
    dmu::{BlockSource, ObjectSet, SourceFuture},
    dsl::Dsl,
    import::open,
    props::Style,
};

use crate::support::{anyhow, candidate};

/// Gives the blocks of a real pool, some of them with a few bytes changed.
#[derive(Debug)]
struct Liar {
    io: Arc<PoolIo>,
    seed: u64,
    changed: AtomicU64,
}

impl Liar {
    /// The same block is always changed in the same way.
    fn change(&self, bp: &BlkPtr, data: Bytes) -> Bytes {
        let [a, b, ..] = bp.checksum();
        let mut random = self.seed ^ a.rotate_left(17) ^ b;
        let mut next = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33
        };
        // Seeds are small numbers: the first outputs look alike.
        let _warm = [next(), next(), next(), next()];
        if next() % 4 != 0 || data.is_empty() {
            return data;
        }
        self.changed.fetch_add(1, Ordering::Relaxed);
        let mut data = data.to_vec();
        // Structures are at the front more often than not.
        let reach = if next() % 2 == 0 { data.len().min(1024) } else { data.len() };
        for _ in 0..1 + next() % 8 {
            let place = next() as usize % reach;
            data[place] = match next() % 4 {
                0 => 0xff,
                1 => data[place].wrapping_add(1),
                2 => data[place] ^ (1 << (next() % 8)),
                _ => next() as u8,
            };
        }
        data.into()
    }
}

impl BlockSource for Liar {
    fn cached(&self, _: &BlkPtr) -> Option<Bytes> {
        None
    }

    fn read<'a>(&'a self, bp: &'a BlkPtr, at: Bookmark) -> SourceFuture<'a, Result<Bytes, BlockError>> {
        Box::pin(async move { Ok(self.change(bp, self.io.read_block(bp, at).await?)) })
    }

    fn read_many<'a>(
        &'a self,
        blocks: &'a [(BlkPtr, Bookmark)],
    ) -> SourceFuture<'a, Vec<Result<Bytes, BlockError>>> {
        Box::pin(async move {
            let contents = self.io.read_blocks(blocks).await;
            contents.into_iter().zip(blocks).map(|(content, (bp, _))| Ok(self.change(bp, content?))).collect()
        })
    }
}

/// Looks at everything there is; counts what could be read and what could not.
async fn look_at_everything(pool: &Pool, source: Arc<Liar>) -> (u64, u64) {
    let (mut good, mut bad) = (0, 0);
    let mut count = |ok: bool| if ok { good += 1 } else { bad += 1 };
    let Ok(mos) = ObjectSet::open(source, 0, pool.uberblock().rootbp).await else { return (0, 1) };
    let Ok(dsl) = Dsl::open(pool.name(), pool.guid(), mos, &pool.tree(), 0).await else { return (0, 1) };
    let Ok(root) = dsl.root().await else { return (0, 1) };
    let (datasets, errors) = dsl.tree(root).await;
    errors.iter().for_each(|error| assert!(error.to_string().starts_with("cannot open '")));
    for dataset in datasets {
        match dataset.properties().await {
            Ok(properties) => {
                count(true);
                for property in properties.list() {
                    drop((property.print(Style::Exact), property.print(Style::UTC)));
                }
            }
            Err(_) => count(false),
        }
        let Ok(volume) = dataset.open_volume().await else { continue };
        let size = volume.geometry().size;
        count(volume.extents(0, size.min(1 << 30), 1000).await.is_ok());
        count(volume.read(0, size.min(1 << 20) as usize).await.is_ok());
    }
    (good, bad)
}

#[tokio::test]
async fn lies_behind_right_checksums_end_in_errors() {
    let (mut good, mut bad, mut changed) = (0, 0, 0);
    for name in ["single", "snapclone", "compress"] {
        let Some(fixture) = fixtures::try_pool(name) else { continue };
        let pool = open(&candidate(&fixture.dir).await, &anyhow()).await.unwrap();
        for seed in 1..=150 {
            let source = Arc::new(Liar { io: Arc::clone(pool.io()), seed, changed: AtomicU64::new(0) });
            let look = look_at_everything(&pool, Arc::clone(&source));
            let (g, b) = tokio::time::timeout(Duration::from_secs(20), look)
                .await
                .unwrap_or_else(|_| panic!("{name}, seed {seed}: takes too long"));
            (good, bad) = (good + g, bad + b);
            changed += source.changed.load(Ordering::Relaxed);
        }
    }
    // It must have bitten, and must not have destroyed everything at once.
    assert!(good > 100 && bad > 100 && changed > 1000, "{good} good, {bad} bad, {changed} blocks changed");
}
