//! Opening fixtures, and reading every block of a pool without knowing what datasets are.

pub(crate) mod patch;

use std::sync::Arc;

use disk::Disk;
use ondisk::{blkptr::BlkPtr, dnode::ObjectType, dsl::DatasetPhys};
use pool::{
    BlockError, Bookmark, Pool, PoolIo,
    dmu::{ObjectSet, ReadError, Run},
    import::{Candidate, ImportError, OpenOptions, Sources, open, scan},
};

/// Options that open whatever can be opened.
pub(crate) fn anyhow() -> OpenOptions {
    OpenOptions { force: true, ..OpenOptions::default() }
}

/// The only pool in a directory.
pub(crate) async fn candidate(dir: &std::path::Path) -> Candidate {
    let mut found = scan(&Sources::paths([dir])).await;
    assert_eq!(found.pools.len(), 1, "{:?}", found.problems);
    found.pools.remove(0)
}

/// The only pool on these devices.
pub(crate) async fn open_disks(
    disks: impl IntoIterator<Item = Arc<dyn Disk>>,
) -> Result<Arc<Pool>, ImportError> {
    let found = scan(&Sources::disks(disks)).await;
    let pool = found.pools.first().ok_or(ImportError::NoSuchPool)?;
    open(pool, &anyhow()).await
}

/// What a walk met.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
    pub(crate) objsets: u64,
    /// Objects of each object set, by its number.
    pub(crate) objects: std::collections::BTreeMap<u64, u64>,
    pub(crate) encrypted: u64,
    pub(crate) errors: Vec<String>,
    /// Sum over all content, to compare two walks.
    pub(crate) digest: u64,
}

impl Walk {
    fn take(&mut self, bp: &BlkPtr, at: Bookmark, outcome: Result<bytes::Bytes, BlockError>) {
        match outcome {
            Ok(data) => {
                assert_eq!(data.len() as u64, bp.lsize(), "block {at}");
                self.blocks += 1;
                self.bytes += data.len() as u64;
                let sum = data.iter().fold(0u64, |sum, &byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
                self.digest = self.digest.wrapping_mul(1_000_003).wrapping_add(sum);
            }
            Err(error) => {
                assert!(error.to_string().contains(&at.to_string()), "names the block: {error}");
                self.errors.push(error.to_string());
            }
        }
    }
}

/// Reads every block that can be reached, directly from devices.
pub(crate) async fn walk(pool: &Arc<Pool>) -> Walk {
    walk_through(pool.io(), pool.uberblock().rootbp).await
}

/// The same through any reader, from a root.
pub(crate) async fn walk_through(io: &Arc<PoolIo>, root: BlkPtr) -> Walk {
    let mut walk = Walk::default();
    let mos = ObjectSet::open(io.clone(), 0, root).await.unwrap();
    let datasets = walk_objset(io, &mos, &mut walk).await;
    for (id, bp) in datasets {
        if bp.is_hole() {
            continue;
        }
        match ObjectSet::open(io.clone(), id, bp).await {
            Ok(set) => {
                walk_objset(io, &set, &mut walk).await;
            }
            Err(error) => walk.errors.push(error.to_string()),
        }
    }
    walk
}

async fn walk_objset(io: &Arc<PoolIo>, set: &ObjectSet, walk: &mut Walk) -> Vec<(u64, BlkPtr)> {
    walk.objsets += 1;
    let mut datasets = Vec::new();
    let mut objects = set.objects();
    loop {
        let dnode = match objects.next().await {
            Ok(None) => break,
            Ok(Some(dnode)) => dnode,
            Err(error) => {
                walk.errors.push(error.to_string());
                continue;
            }
        };
        *walk.objects.entry(set.id()).or_default() += 1;
        if set.id() == 0 && dnode.dnode.bonus_type == ObjectType::DSL_DATASET {
            let dataset = DatasetPhys::decode(&dnode.dnode.bonus, dnode.order).unwrap();
            datasets.push((dnode.number, dataset.bp));
        }
        match pool::dmu::Object::new(set.source().clone(), set.id(), dnode) {
            Ok(object) => walk_object(io, &object, walk).await,
            Err(error) => walk.errors.push(error.to_string()),
        }
    }
    datasets
}

async fn walk_object(io: &Arc<PoolIo>, object: &pool::dmu::Object, walk: &mut Walk) {
    let mut runs = object.runs(0, 0..object.max_block_id() + 1);
    let mut batch = Vec::new();
    loop {
        let run = match runs.next().await {
            Ok(run) => run,
            Err(error) => {
                if !matches!(error, ReadError::Block(_)) {
                    walk.errors.push(format!("{error:?}"));
                } else {
                    walk.errors.push(error.to_string());
                }
                continue;
            }
        };
        let done = run.is_none();
        if let Some(Run::Block { blkid, pointer }) = run {
            if pointer.is_encrypted() {
                // No key, no content; but what is stored is verified without one.
                walk.encrypted += 1;
                let at = object.bookmark(0, blkid);
                match io.read_raw(&pointer, at).await {
                    Ok(raw) => assert_eq!(raw.len() as u64, pointer.psize()),
                    Err(error) => walk.errors.push(error.to_string()),
                }
                let refused = io.read_block_uncached(&pointer, at).await.map(|content| content.len());
                let expected = object.dnode().object_type == ObjectType::DNODE;
                if refused.is_ok() != expected {
                    walk.errors.push(format!("an encrypted block {at} read as {refused:?}"));
                }
            } else {
                batch.push((pointer, object.bookmark(0, blkid)));
            }
        }
        if batch.len() >= 64 || done {
            let outcomes = io.read_blocks_uncached(&batch).await;
            for ((bp, at), outcome) in batch.drain(..).zip(outcomes) {
                walk.take(&bp, at, outcome);
            }
        }
        if done {
            return;
        }
    }
}
