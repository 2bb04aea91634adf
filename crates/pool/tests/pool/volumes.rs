//! Volumes as the protocols see them: ranges, edges, extents, cached reads, snapshots beside their heads.

use std::sync::Arc;

use block::{BlockVolume, Durability, Segment, Segments, VolumeError, flatten};
use pool::{
    Pool,
    cache::BlockCache,
    import::{OpenOptions, open},
};

use crate::support::{anyhow, candidate};

async fn open_fixture(name: &str) -> Arc<Pool> {
    // Room for everything: what is forgotten cannot be read from memory.
    let options = OpenOptions { cache: Arc::new(BlockCache::new(1 << 30)), ..anyhow() };
    open(&candidate(&fixtures::pool(name).dir).await, &options).await.unwrap()
}

#[tokio::test]
async fn any_range_reads_as_the_whole_does() {
    let pool = open_fixture("single").await;
    for name in ["psingle/v1", "psingle/v2@s1"] {
        let volume = pool.open_volume(name).await.unwrap();
        let size = volume.geometry().size;
        let whole = flatten(&volume.read(0, size as usize).await.unwrap());
        let mut random = 7u64;
        for _ in 0..400 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let offset = (random >> 20) % size;
            let len = ((random >> 40) % 100_000).min(size - offset) as usize;
            let part = flatten(&volume.read(offset, len).await.unwrap());
            assert_eq!(part, whole[offset as usize..offset as usize + len], "{name} {offset}+{len}");
            // Everything has been read, so memory has it, and gives the same.
            if let Some(cached) = volume.read_cached(offset, len) {
                assert_eq!(flatten(&cached), part);
            }
        }
        assert!(volume.read_cached(0, 65536).is_some(), "what was just read is in memory");
        assert_eq!(volume.read(size, 0).await.unwrap().len(), 0);
        for (offset, len) in [(size, 1), (size - 1, 2), (u64::MAX, 1), (u64::MAX - 1, 2)] {
            let refused = volume.read(offset, len).await.unwrap_err();
            assert_eq!(refused, VolumeError::OutOfRange { offset, len: len as u64, size });
            assert!(volume.read_cached(offset, len).is_none());
        }
    }
}

/// Holes, blocks that are not in memory and those whose pointers are not, ranges outside, parts of blocks and several.
#[tokio::test]
async fn reads_that_are_looked_up_together_get_what_each_gets_alone() {
    for (name, volume) in
        [("single", "psingle/v1"), ("single", "psingle/v2"), ("compress", "pcompress/c-lz4")]
    {
        let pool = open_fixture(name).await;
        let volume = pool.open_volume(volume).await.unwrap();
        let geometry = volume.geometry();
        let mut random = 11u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let (mut hits, mut misses) = (0, 0);
        for round in 0..300 {
            let reads: Vec<(u64, usize)> = (0..next(40))
                .map(|_| match next(12) {
                    0 => (geometry.size - next(3000), 2000),
                    1 => (next(geometry.size / 2), 1 + next(100_000) as usize),
                    2 => (u64::MAX - next(2), 3),
                    _ => (next(geometry.size / 512 - 8) * 512, 512 * (1 + next(8)) as usize),
                })
                .collect();
            let mut together = vec![None; reads.len()];
            volume.read_cached_each(&reads, &mut |number, found| {
                assert!(
                    together[number].replace(found).is_none(),
                    "{round}: read {number} is answered twice"
                );
            });
            for ((offset, len), together) in reads.iter().zip(together) {
                let (alone, together) = (volume.read_cached(*offset, *len), together.expect("an answer"));
                assert_eq!(
                    alone.as_ref().map(|data| flatten(data)),
                    together.as_ref().map(|data| flatten(data)),
                    "{round}: {offset}+{len}"
                );
                *(if alone.is_some() { &mut hits } else { &mut misses }) += 1;
            }
            // More of it is in memory from round to round.
            let offset = next(geometry.size);
            volume.read(offset, next(9000).min(geometry.size - offset) as usize).await.unwrap();
        }
        assert!(hits > 100 && misses > 100, "{hits} hits, {misses} misses");
    }
}

/// Each would have decompressed it for itself.
#[tokio::test]
async fn several_reads_of_one_compressed_block_share_its_content() {
    let pool = open_fixture("compress").await;
    let volume = pool.open_volume("pcompress/c-lz4").await.unwrap();
    let geometry = volume.geometry();
    let block = u64::from(geometry.block);
    let mut shared = 0;
    for at in (0..geometry.size / block).map(|n| n * block) {
        volume.read(at, 1).await.unwrap();
        let reads: Vec<(u64, usize)> = (0..4).map(|n| (at + n * 512, 512)).collect();
        let mut starts = Vec::new();
        volume.read_cached_each(&reads, &mut |number, found| {
            if let Some([Segment::Data(data)]) = found.as_deref() {
                starts.push(data.as_ptr().addr() - number * 512);
            }
        });
        assert!(starts.windows(2).all(|pair| pair[0] == pair[1]), "{at}: {starts:?}");
        shared += starts.len();
    }
    assert!(shared > 8, "{shared}");
}

#[tokio::test]
async fn extents_tell_where_data_is() {
    let pool = open_fixture("single").await;
    let volume = pool.open_volume("psingle/v2").await.unwrap();
    let size = volume.geometry().size;
    let extents = volume.extents(0, size, usize::MAX).await.unwrap();
    assert_eq!(extents.iter().map(|e| e.len).sum::<u64>(), size);
    assert!(extents.windows(2).all(|pair| pair[0].hole != pair[1].hole), "runs are maximal");
    assert!(extents.iter().any(|e| e.hole) && extents.iter().any(|e| !e.hole));
    let mut at = 0;
    for extent in &extents {
        let content = volume.read(at, extent.len as usize).await.unwrap();
        if extent.hole {
            assert!(content.iter().all(|segment| matches!(segment, Segment::Zero(_))));
        } else {
            assert!(content.iter().all(|segment| matches!(segment, Segment::Data(_))));
        }
        at += extent.len;
    }
    // An unaligned window is cut to size, and a limit keeps the first ones.
    let window = volume.extents(1000, size - 3000, usize::MAX).await.unwrap();
    assert_eq!(window.iter().map(|e| e.len).sum::<u64>(), size - 3000);
    assert_eq!(window[0].len, extents[0].len - 1000);
    let first = volume.extents(0, size, 1).await.unwrap();
    assert_eq!(first, extents[..1]);
    assert!(volume.extents(size, 1, 1).await.is_err());
}

#[tokio::test]
async fn who_it_is_and_that_it_cannot_be_written() {
    let pool = open_fixture("single").await;
    let volume = pool.open_volume("psingle/v1@s1").await.unwrap();
    let identity = volume.identity();
    assert_eq!((identity.name.as_str(), identity.guid), ("psingle/v1@s1", 14_624_448_439_373_187_701));
    assert_eq!(identity.pool_guid, pool.guid());
    let geometry = volume.geometry();
    assert_eq!((geometry.size, geometry.block, geometry.read_only), (6_291_456, 16_384, true));
    let refused = volume.write(0, Segments::new(), Durability::Cached).await;
    assert_eq!(refused, Err(VolumeError::ReadOnly));
    volume.flush().await.unwrap();
}

#[tokio::test]
async fn names_that_lead_nowhere_say_so_in_the_words_of_zfs() {
    let pool = open_fixture("single").await;
    for (name, words) in [
        ("psingle/none", "cannot open 'psingle/none': dataset does not exist"),
        ("psingle/v1@none", "cannot open 'psingle/v1@none': dataset does not exist"),
        ("psingle/v1#none", "cannot open 'psingle/v1#none': dataset does not exist"),
        ("other/v1", "cannot open 'other/v1': dataset does not exist"),
        ("psingle/v1/", "cannot open 'psingle/v1/': trailing slash in name"),
        ("psingle/$ORIGIN", "cannot open 'psingle/$ORIGIN': invalid character '$' in name"),
        ("psingle/fs", "'psingle/fs' is not a volume"),
    ] {
        assert_eq!(pool.open_volume(name).await.unwrap_err().to_string(), words);
    }
    let (volumes, errors) = pool.dsl().await.unwrap().volumes().await.unwrap();
    assert!(errors.is_empty());
    let names: Vec<&str> = volumes.iter().map(pool::dsl::Dataset::name).collect();
    assert_eq!(names, ["psingle/v1", "psingle/v1@s1", "psingle/v2", "psingle/v2@s1"]);
}
