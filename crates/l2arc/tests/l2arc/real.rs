//! A cache device that the OpenZFS kernel module wrote, read as it is: what it remembers is compared with what the pool
//! has in those places, block by block.

use std::{collections::BTreeMap, sync::Arc};

use disk::{Disk, IoBuf, MemDisk};
use l2arc::{Config, Geometry, Key, L2, Open, Stopped};
use ondisk::blkptr::BlkPtr;
use pool::{
    Bookmark, Pool,
    import::{OpenOptions, Sources, open, scan},
    traverse::{Scopes, expand},
};

use crate::support::{ASHIFT, eager, rebuilt};

/// Every block of the pool that has an address, by it.
async fn all_blocks(pool: &Pool) -> BTreeMap<Key, (BlkPtr, Bookmark)> {
    let scopes = Scopes::read(pool).await;
    let mut found = BTreeMap::new();
    let mut todo = scopes.roots();
    while let Some(visit) = todo.pop() {
        let pointer = visit.pointer;
        if pointer.is_hole() {
            continue;
        }
        if let Some(dva) = pointer.dvas().next().filter(|_| !pointer.is_embedded()) {
            let key = Key { dva: dva.to_words().unwrap(), birth: pointer.physical_birth() };
            found.insert(key, (pointer, visit.at));
        }
        if visit.has_children()
            && let Ok(content) = pool.io().read_block(&pointer, visit.at).await
        {
            todo.extend(expand(&visit, &scopes.all[visit.scope as usize], &content).visits);
        }
    }
    found
}

#[tokio::test]
async fn what_the_kernel_module_cached_is_what_the_pool_has() {
    let fixture = fixtures::pool("l2arc");
    let found = scan(&Sources::paths(fixture.images())).await;
    let options = OpenOptions { force: true, ..OpenOptions::default() };
    let pool = open(&found.pools[0], &options).await.unwrap();
    let [cache] = pool.l2cache() else { panic!("one cache device") };
    let device = cache.leaf.as_ref().and_then(|leaf| leaf.disk()).unwrap();
    let bytes = device.read(0, IoBuf::with_len(device.info().size as usize)).await.unwrap();
    let disk = Arc::new(MemDisk::from_bytes(&bytes));

    // It was made with the least size at zero, as is said here, too.
    let geometry = Geometry::of(disk.info().size, ASHIFT, 0).unwrap();
    assert_eq!(geometry.log_entries, 3);
    let l2 = L2::new(pool.guid(), eager());
    let before = disk.snapshot(0..disk.info().size);
    l2.add(disk.clone(), cache.guid, ASHIFT, Open::Remember).unwrap();
    let recovered = rebuilt(&l2).await;
    assert_eq!((recovered.log_blocks, recovered.of_log_blocks), (384, 384), "{recovered}");
    assert_eq!((recovered.of_blocks, recovered.because.clone()), (1152, Stopped::End), "{recovered}");
    assert!(disk.snapshot(0..disk.info().size) == before, "looking changes nothing");

    let (mut right, mut wrong, mut metadata) = (0, 0, 0);
    for (key, (pointer, at)) in all_blocks(&pool).await {
        let psize = pointer.psize();
        let Some(read) = l2.read(&key, u32::try_from(psize).unwrap()) else { continue };
        let cached = read.await.unwrap();
        let stored = pool.io().read_raw(&pointer, at).await.unwrap();
        if cached == stored {
            right += 1;
            metadata += u64::from(pointer.level() > 0 || pointer.object_type().is_metadata());
        } else {
            wrong += 1;
        }
    }
    println!("{right} blocks as in the pool ({metadata} of metadata), {wrong} not; {recovered}");
    assert_eq!(wrong, 0, "no block has another's bytes");
    assert!(right > 1000 && metadata > 0, "{right} of {} are still in the pool", recovered.blocks);

    // Not for a device that should be too small to remember anything.
    let l2 = L2::new(pool.guid(), Config::default());
    l2.add(disk, cache.guid, ASHIFT, Open::Remember).unwrap();
    let refused = rebuilt(&l2).await;
    assert!(refused.to_string().contains("log blocks of 3 entries"), "{refused}");
}
