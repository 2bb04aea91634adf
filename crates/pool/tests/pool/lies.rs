//! Lies told with right checksums, each in a place of its own: every one ends soon, in little memory, and in an
//! error that says where.

use std::{future::Future, sync::Arc, time::Duration};

use disk::{Disk, MemDisk};
use ondisk::{
    dnode::{BlkPtrs, Bonus},
    nvlist::{NvList, Value},
};
use pool::{
    import::{ImportError, OpenOptions, Sources, examine, open, scan},
    status::{PoolStatus, Problem, error_log},
    zap::Zap,
};

use crate::support::{
    anyhow,
    patch::{Patch, relabel},
    walk,
};

/// Everything there is to say about a pool, and what of it failed.
async fn look(image: &[u8]) -> Vec<String> {
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::from_bytes(image).named("liar"));
    let found = scan(&Sources::disks([disk])).await;
    let pool = match open(&found.pools[0], &anyhow()).await {
        Ok(pool) => pool,
        Err(error) => return vec![error.to_string()],
    };
    let mut errors = Vec::new();
    errors.extend(pool.space().await.err().map(|error| error.to_string()));
    errors.extend(error_log(&pool).await.err().map(|error| error.to_string()));
    drop(PoolStatus::of(&pool, None, 0));
    match pool.dsl().await {
        Ok(dsl) => match dsl.root().await {
            Ok(root) => {
                let (datasets, failed) = dsl.tree(root).await;
                assert!(datasets.len() < 1000);
                for error in failed {
                    let mut text = error.to_string();
                    let mut source = std::error::Error::source(&error);
                    while let Some(cause) = source {
                        text += &format!(": {cause}");
                        source = cause.source();
                    }
                    errors.push(text);
                }
                for dataset in datasets {
                    errors.extend(dataset.properties().await.err().map(|error| error.to_string()));
                    if let Err(error) = dataset.open_volume().await {
                        errors.push(format!("{error:?}"));
                    }
                }
            }
            Err(error) => errors.push(error.to_string()),
        },
        Err(error) => errors.push(error.to_string()),
    }
    errors.extend(walk(&pool).await.errors);
    errors
}

/// Tells a lie and expects some error to contain `expected`.
async fn told<F: Future<Output = Vec<u8>>>(name: &str, expected: &str, lie: impl FnOnce(Patch) -> F) {
    let fixture = fixtures::pool("single");
    let image = lie(Patch::of(&fixture).await).await;
    let errors = tokio::time::timeout(Duration::from_secs(30), look(&image)).await;
    let errors = errors.unwrap_or_else(|_| panic!("{name}: takes too long"));
    println!("{name}: {} errors: {:.300}", errors.len(), format!("{errors:?}"));
    assert!(errors.iter().any(|error| error.contains(expected)), "{name}: {expected:?} not in {errors:#?}");
}

/// Number of an object that the directory of the MOS names.
async fn named(patch: &Patch, name: &str) -> u64 {
    patch.pool().directory().get_u64(name).await.unwrap().unwrap()
}

/// Sets the value of an entry of a microzap.
fn set_entry(block: &mut [u8], name: Option<&str>, value: u64) {
    let wanted = |slot: &[u8]| match name {
        Some(name) => slot[14..].starts_with(name.as_bytes()) && slot[14 + name.len()] == 0,
        None => slot[14] != 0 && slot[14] != b'$',
    };
    let slot = block.chunks_mut(64).skip(1).find(|slot| wanted(slot)).expect("the entry is there");
    slot[..8].copy_from_slice(&value.to_le_bytes());
}

#[tokio::test]
async fn a_configuration_of_a_terabyte() {
    told("config", "is larger than", async |patch: Patch| {
        let config = named(&patch, "config").await;
        patch.dnode(config, |dnode| dnode.max_block_id = 1 << 26).await
    })
    .await;
}

#[tokio::test]
async fn a_directory_that_is_its_own_configuration() {
    told("config is a ZAP", "the pool metadata of txg", async |patch: Patch| {
        let config = named(&patch, "config").await;
        let directory = patch.pool().mos().dnode(1).await.unwrap().dnode;
        patch.dnode(config, |dnode| dnode.blkptrs = directory.blkptrs).await
    })
    .await;
}

#[tokio::test]
async fn a_metaslab_array_without_end() {
    told("metaslab_array", "is larger than", async |patch: Patch| {
        let array = patch.pool().tree().tops[0].top.as_ref().unwrap().metaslab_array;
        patch.dnode(array, |dnode| dnode.max_block_id = u64::MAX >> 24).await
    })
    .await;
}

#[tokio::test]
async fn a_metaslab_array_of_things_that_are_no_space_maps() {
    told("metaslabs", "block <0:1:0:0>", async |patch: Patch| {
        let array = patch.pool().tree().tops[0].top.as_ref().unwrap().metaslab_array;
        patch.data(array, 0, |block| block[..8].copy_from_slice(&1u64.to_le_bytes())).await
    })
    .await;
}

#[tokio::test]
async fn a_log_of_space_maps_of_an_absurd_length() {
    told("log space map", "is larger than", async |patch: Patch| {
        let zap = named(&patch, "com.delphix:log_spacemap_zap").await;
        let logs = Zap::open_in(patch.pool().mos(), zap).await.unwrap().numbers().await.unwrap();
        let (_, log) = logs[0];
        patch.dnode(log, |dnode| dnode.max_block_id = 1 << 30).await
    })
    .await;
}

#[tokio::test]
async fn a_tree_of_thirty_levels_over_the_same_pointers() {
    told("levels", "block <0:", async |patch: Patch| {
        let object = patch.pool().tree().tops[0].top.as_ref().unwrap().metaslab_array;
        patch.dnode(object, |dnode| dnode.levels = 30).await
    })
    .await;
}

#[tokio::test]
async fn the_list_of_dnodes_as_data_of_one_of_them() {
    told("meta dnode inside", "block <0:", async |patch: Patch| {
        let config = named(&patch, "config").await;
        let meta = patch.pool().mos().meta().dnode().clone();
        patch
            .dnode(config, |dnode| {
                dnode.levels = meta.levels;
                dnode.blkptrs = BlkPtrs::new(&meta.blkptrs[..1]).unwrap();
            })
            .await
    })
    .await;
}

#[tokio::test]
async fn a_directory_that_is_its_own_child() {
    told("dir loop", "cannot open", async |patch: Patch| {
        let root = named(&patch, "root_dataset").await;
        let dir = patch.pool().mos().dnode(root).await.unwrap().dnode;
        let dir = ondisk::dsl::DirPhys::decode(&dir.bonus, ondisk::Order::Little).unwrap();
        patch.data(dir.child_map, 0, |block| set_entry(block, None, root)).await
    })
    .await;
}

#[tokio::test]
async fn a_child_that_is_beyond_all_objects() {
    told("absurd child", "object 140737488355328 of object set 0", async |patch: Patch| {
        let root = named(&patch, "root_dataset").await;
        let dir = patch.pool().mos().dnode(root).await.unwrap().dnode;
        let dir = ondisk::dsl::DirPhys::decode(&dir.bonus, ondisk::Order::Little).unwrap();
        patch.data(dir.child_map, 0, |block| set_entry(block, None, 1 << 47)).await
    })
    .await;
}

#[tokio::test]
async fn a_chain_of_snapshots_that_bites_its_tail() {
    let fixture = fixtures::pool("single");
    let patch = Patch::of(&fixture).await;
    let root = named(&patch, "root_dataset").await;
    let dir = patch.pool().mos().dnode(root).await.unwrap().dnode;
    let head = ondisk::dsl::DirPhys::decode(&dir.bonus, ondisk::Order::Little).unwrap().head_dataset;
    let image = patch
        .dnode(head, |dnode| {
            let mut bonus = dnode.bonus.to_vec();
            // prev_snap, then next_snap: itself.
            bonus[8..16].copy_from_slice(&head.to_le_bytes());
            bonus[24..32].copy_from_slice(&head.to_le_bytes());
            dnode.bonus = Bonus::new(&bonus);
        })
        .await;
    // It need not be noticed by who does not follow the chain, but nobody may follow it for ever.
    let errors = tokio::time::timeout(Duration::from_secs(30), look(&image)).await.unwrap();
    println!("{errors:?}");
}

#[tokio::test]
async fn a_feature_of_the_future_is_named_with_what_the_pool_says_of_it() {
    let fixture = fixtures::pool("single");
    let mut image = std::fs::read(&fixture.images()[0]).unwrap();
    let mut add = |guid: &'static str| {
        relabel(&mut image, |config| {
            let mut features = config.nvlist("features_for_read").unwrap().clone();
            features.set(guid, Value::Boolean);
            config.set("features_for_read", features);
        });
    };
    add("com.example:time_travel");
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::from_bytes(&image));
    let found = scan(&Sources::disks([disk])).await;
    let error = open(&found.pools[0], &OpenOptions { force: true, ..anyhow() }).await.unwrap_err();
    let ImportError::Unsupported { features } = &error else { panic!("{error}") };
    assert_eq!(features[0].guid, "com.example:time_travel");
    assert!(error.to_string().contains("\tcom.example:time_travel\n"), "{error}");
    assert!(error.to_string().contains("still listed by 'zpool import'"), "{error}");
    let report = examine(&found.pools[0], 0, "").await;
    assert!(matches!(&report.status.problem, Some(Problem::UnsupportedFeatures(lines)) if lines.len() == 1));
    let text = report.text();
    assert!(text.contains("state: UNAVAIL") && text.contains("com.example:time_travel"), "{text}");
    assert!(text.contains("config:") && text.contains("unsupported feature(s)"), "{text}");
}

#[tokio::test]
async fn a_draid_pool_is_listed_with_its_devices_and_says_why_it_cannot_be_read() {
    let fixture = fixtures::pool("raidz1x3");
    let disks: Vec<Arc<dyn Disk>> = fixture
        .images()
        .iter()
        .enumerate()
        .map(|(i, path)| {
            let mut image = std::fs::read(path).unwrap();
            relabel(&mut image, |config| {
                let mut tree: NvList = config.nvlist("vdev_tree").unwrap().clone();
                tree.set("type", "draid");
                for (name, value) in
                    [("draid_ndata", 1u64), ("draid_nspares", 1), ("draid_ngroups", 1), ("nparity", 1)]
                {
                    tree.set(name, value);
                }
                config.set("vdev_tree", tree);
                let mut features = config.nvlist("features_for_read").unwrap().clone();
                features.set("org.openzfs:draid", Value::Boolean);
                config.set("features_for_read", features);
            });
            Arc::new(MemDisk::from_bytes(&image).named(format!("draid{i}"))) as Arc<dyn Disk>
        })
        .collect();
    let found = scan(&Sources::disks(disks)).await;
    let error = open(&found.pools[0], &anyhow()).await.unwrap_err();
    assert!(error.to_string().contains("org.openzfs:draid (RAIDZ with distributed spares)"), "{error}");
    let text = examine(&found.pools[0], 0, "").await.text();
    assert!(text.contains("\t  draid1:1d:3c:1s-0  ONLINE\n\t    draid0 "), "{text}");
}
