//! What a block becomes: hole, embedded, compressed, plain; and what stays when it is written again.
//! docs/format/compression.md §2.

use bytes::Bytes;
use codec::{checksum, compress};
use ondisk::{blkptr::BlkPtr, dnode::ObjectType};
use proptest::prelude::*;

use super::bench::*;
use crate::{
    EngineError,
    policy::{BlockPolicy, Traits},
    write::{BlockWriter, Job, summed::Summed},
};

#[tokio::test]
async fn every_compressor_and_checksum_reads_back() {
    for ashift in [9, 12] {
        let bench = Bench::new(&[Shape::Leaf], ashift);
        let mut writer = bench.writer();
        let mut jobs = Vec::new();
        for compression in (0..=16).filter_map(compress::Algorithm::from_id) {
            for checksum in (0..=14).filter_map(checksum::Algorithm::from_id).filter(|sum| !sum.is_embedded())
            {
                for (seed, len) in [512, 1024, 4096, 8192, 12_800, 131_072].into_iter().enumerate() {
                    let policy = BlockPolicy { checksum, ..policy(compression) };
                    jobs.push(job(mixed(len, seed as u64, 50), policy));
                }
            }
            jobs.push(job(mixed(1 << 20, 9, 50), policy(compression)));
        }
        let pointers = writer.write(jobs.clone()).await.unwrap();
        writer.finish().await.unwrap();
        let io = bench.io(&[], 0);
        let mut smaller = 0;
        for (bp, job) in pointers.iter().zip(&jobs) {
            assert!(read(&io, bp).await == job.content, "{bp}");
            assert_eq!((bp.birth(), bp.fill(), bp.level()), (TXG, 1, 0));
            assert_eq!(bp.object_type(), job.object_type);
            if !bp.is_embedded() {
                assert_eq!(bp.checksum_id(), job.policy.checksum.id());
                assert!(
                    bp.compression_id() == 2 || bp.compression_id() == job.policy.compression.algorithm.id()
                );
                assert!((bp.psize() < bp.lsize()) == (bp.compression_id() != 2));
                assert!(bp.compression_id() == 2 || bp.psize().is_multiple_of(1 << ashift));
                smaller += u32::from(bp.psize() < bp.lsize());
            }
        }
        assert!(smaller > 100);
    }
}

/// Checksums that were computed when the content arrived: used if the block is stored as it is under that algorithm, and
/// else computed as ever.
#[tokio::test]
async fn a_checksum_that_is_known_is_used_where_it_fits() {
    use checksum::Algorithm::{Fletcher2, Fletcher4, Sha256};
    let bench = Bench::new(&[Shape::Leaf], 12);
    let mut writer = bench.writer();
    for known in [Fletcher2, Fletcher4] {
        for checksum in [Fletcher2, Fletcher4, Sha256] {
            for compression in [compress::Algorithm::Off, compress::Algorithm::Lz4] {
                let policy = BlockPolicy { checksum, ..policy(compression) };
                let (content, sum) = Summed::at_hand(mixed(8192, 3, 50), Some(known)).into_parts();
                assert!(sum.is_some_and(|sum| sum.algorithm == known), "it is cheap");
                let job = Job { sum, ..job(content.clone(), policy) };
                let fits = known == checksum && compression == compress::Algorithm::Off;
                assert_eq!(job.known_sum().is_some(), fits);
                let bp = writer.write(vec![job]).await.unwrap()[0];
                writer.finish().await.unwrap();
                assert_eq!(bp.checksum_id(), checksum.id());
                assert!(read(&bench.io(&[], 0), &bp).await == content, "{bp}");
            }
        }
    }
}

#[tokio::test]
async fn zeroes_become_holes_unless_compression_is_off() {
    let bench = Bench::new(&[Shape::Leaf], 12);
    let mut writer = bench.writer();
    let zeroes = || Bytes::from(vec![0; 8192]);
    let old = writer.write(vec![job(noise(8192, 1), off())]).await.unwrap()[0];
    writer.begin(TXG + 1);
    let lz4 = policy(compress::Algorithm::Lz4);
    let new = job(zeroes(), lz4);
    let overwritten = Job { old, ..job(zeroes(), lz4) };
    let kept = Job { old, ..job(zeroes(), off()) };
    let pointers = writer.write(vec![new, overwritten.clone(), kept]).await.unwrap();
    assert_eq!(pointers[0], BlkPtr::EMPTY, "never existed, never remembered");
    assert!(pointers[1].is_hole());
    assert_eq!((pointers[1].birth(), pointers[1].lsize()), (TXG + 1, 8192));
    assert_eq!(pointers[1].object_type(), ObjectType::ZVOL);
    assert!(!pointers[2].is_hole(), "a block of zeroes with compression off is a block");
    writer.set_traits(Traits { hole_birth: false, ..TRAITS });
    assert_eq!(writer.write(vec![overwritten]).await.unwrap(), [BlkPtr::EMPTY], "old pools do not remember");
}

#[tokio::test]
async fn tiny_blocks_are_embedded_where_a_pointer_can_say_all() {
    let bench = Bench::new(&[Shape::Leaf], 12);
    let mut writer = bench.writer();
    let tiny = || {
        let mut content = vec![0; 4096];
        content[..40].copy_from_slice(&noise(40, 3));
        Bytes::from(content)
    };
    let lz4 = policy(compress::Algorithm::Lz4);
    let of = |object_type, level, policy| Job { object_type, level, ..job(tiny(), policy) };
    let jobs = vec![
        of(ObjectType::ZVOL, 0, lz4),
        of(ObjectType::ZAP_METADATA, 0, metadata()),
        of(ObjectType::ZVOL, 1, metadata()),
        of(ObjectType::DNODE, 0, metadata()),
        of(ObjectType::OBJSET, 0, metadata()),
        of(ObjectType::ZVOL, 0, off()),
    ];
    let pointers = writer.write(jobs.clone()).await.unwrap();
    let embedded: Vec<bool> = pointers.iter().map(BlkPtr::is_embedded).collect();
    assert_eq!(embedded, [true, true, false, false, false, false]);
    assert_eq!((pointers[0].birth(), pointers[0].compression_id()), (TXG, 15));
    writer.set_traits(Traits { embedded_data: false, ..TRAITS });
    let plain = writer.write(vec![jobs[0].clone()]).await.unwrap()[0];
    assert_eq!((plain.is_embedded(), plain.psize(), plain.compression_id()), (false, 4096, 2));
    writer.finish().await.unwrap();
    let io = bench.io(&[], 0);
    for bp in pointers.iter().chain([&plain]) {
        assert!(read(&io, bp).await == tiny());
    }
}

#[tokio::test]
async fn metadata_written_again_stays_in_its_place_if_it_fits() {
    let bench = Bench::new(&[Shape::Leaf], 12);
    let mut writer = bench.writer();
    let source = writer.source();
    let size = 64 << 10;
    let mut bp = writer.write(vec![job(mixed(size, 1, 40), metadata())]).await.unwrap()[0];
    let (first, psize) = (bp, bp.psize());
    assert!(psize < size as u64);
    for (seed, percent) in [(2, 40), (3, 10), (4, 1)] {
        let content = mixed(size, seed, percent);
        let old = bp;
        bp = writer.write(vec![Job { old, ..job(content.clone(), metadata()) }]).await.unwrap()[0];
        assert!(bp.dvas().eq(first.dvas()));
        assert_eq!(bp.psize(), psize, "padded to what it had");
        let at = pool::Bookmark::default();
        assert!(source.read(&bp, at).await.unwrap() == content);
        assert!(source.read(&old, at).await.is_err(), "the old pointer does not get the new content");
    }
    let extents = writer.alloc.allocated.len();
    let grown = mixed(size, 5, 90);
    let old = bp;
    bp = writer.write(vec![Job { old, ..job(grown, metadata()) }]).await.unwrap()[0];
    assert_eq!((bp.compression_id(), bp.psize()), (2, size as u64), "plain, so that it never grows again");
    assert!(!bp.dvas().eq(old.dvas()));
    assert_eq!(writer.alloc.allocated.len(), extents, "the old place was given back");
    writer.free(&old).await.unwrap();
    assert_eq!(writer.alloc.allocated.len(), extents, "once");
    let content = mixed(size, 6, 10);
    let last = writer.write(vec![Job { old: bp, ..job(content.clone(), metadata()) }]).await.unwrap()[0];
    assert!(last.dvas().eq(bp.dvas()), "there is room for anything now");
    let written = writer.finish().await.unwrap();
    assert_eq!((written.blocks, written.bytes), (1, size as u64), "one write per block");
    assert!(read(&bench.io(&[], 0), &last).await == content);
}

/// It was looked for among what is being written, one block at a time and under a lock, until the next transaction group
/// began: a third of the time of large reads of a volume that had just been written.
#[tokio::test]
async fn what_was_written_last_is_not_looked_for_among_what_is_being_written() {
    let bench = Bench::new(&[Shape::Leaf], 12);
    let mut writer = bench.writer();
    let bp = writer.write(vec![job(mixed(64 << 10, 1, 40), metadata())]).await.unwrap()[0];
    assert!(writer.overlay.may_have(&bp));
    writer.finish().await.unwrap();
    assert!(!writer.overlay.may_have(&bp));
    // A transaction group that does not settle at once goes on after that.
    let content = mixed(64 << 10, 2, 40);
    let again = writer.write(vec![Job { old: bp, ..job(content.clone(), metadata()) }]).await.unwrap()[0];
    let at = pool::Bookmark::default();
    assert!(writer.source().read(&again, at).await.unwrap() == content);
    writer.begin(TXG + 1);
    assert!(!writer.overlay.may_have(&again));
}

/// They were held twice until the end of their transaction group, beside what is stored what it was made from: of scattered
/// changes that is most of the memory a group takes.
#[tokio::test]
async fn indirect_blocks_of_volumes_are_read_from_what_is_stored_when_there_are_many() {
    const BYTES: usize = 64 << 10;
    let bench = Bench::new(&[Shape::Leaf], 12);
    let mut writer = bench.writer();
    writer.keep_contents(BYTES as u64);
    let contents: Vec<Bytes> = (1..=3).map(|seed| mixed(BYTES, seed, 40)).collect();
    let above =
        |content: &Bytes| Job { object_type: ObjectType::ZVOL, level: 1, ..job(content.clone(), metadata()) };
    let mut pointers = writer.write(contents.iter().map(above).collect()).await.unwrap();
    assert!(pointers.iter().all(|bp| bp.psize() < BYTES as u64));
    let twice = |writer: &BlockWriter<Space>| {
        writer.pending.values().filter(|pending| pending.content.is_some()).count()
    };
    assert_eq!(twice(&writer), 1);
    // One that goes, or comes again, makes room for another.
    writer.free(&pointers.remove(0)).await.unwrap();
    let again = Job { old: pointers[0], ..above(&contents[1]) };
    pointers[0] = writer.write(vec![again]).await.unwrap()[0];
    assert_eq!(twice(&writer), 1);
    let at = pool::Bookmark::default();
    for (bp, content) in pointers.iter().zip(&contents[1..]) {
        assert!(writer.source().has(bp));
        assert!(writer.source().read(bp, at).await.unwrap() == *content);
    }
    writer.finish().await.unwrap();
    for (bp, content) in pointers.iter().zip(&contents[1..]) {
        assert!(read(&bench.io(&[], 0), bp).await == *content);
        assert!(writer.source().read(bp, at).await.unwrap() == *content);
    }
}

#[tokio::test]
async fn metadata_that_vanishes_in_its_own_group_leaves_nothing() {
    let bench = Bench::new(&[Shape::Leaf], 12);
    let mut writer = bench.writer();
    let made = writer.write((0..3).map(|n| job(noise(8192, n), metadata())).collect()).await.unwrap();
    let zeroes = Job { old: made[0], ..job(Bytes::from(vec![0; 8192]), metadata()) };
    assert!(writer.write(vec![zeroes]).await.unwrap()[0].is_hole());
    writer.free(&made[0]).await.unwrap();
    writer.free(&made[1]).await.unwrap();
    assert_eq!(writer.alloc.allocated.len(), 2, "two copies of the third");
    assert_eq!(writer.finish().await.unwrap().blocks, 1);
    writer.begin(TXG + 1);
    writer.free(&made[2]).await.unwrap();
    assert!(writer.alloc.allocated.is_empty());
    assert_eq!(writer.finish().await.unwrap(), Default::default(), "and nothing is written or flushed");
}

#[tokio::test]
async fn what_cannot_be_stored_is_refused_before_anything_is_allocated() {
    let bench = Bench::new(&[Shape::Leaf], 12);
    let mut writer = bench.writer();
    for len in [0, 100, 513, (16 << 20) + 512] {
        let error = writer.write(vec![job(Bytes::from(vec![1; len]), off())]).await.unwrap_err();
        assert!(matches!(error, EngineError::Encode { what: "block", .. }), "{error}");
    }
    let gang = BlockPolicy { checksum: checksum::Algorithm::GangHeader, ..off() };
    assert!(writer.write(vec![job(noise(512, 1), gang)]).await.is_err());
    assert!(writer.alloc.allocated.is_empty());
}

/// Blocks keep their mark when the last entry of a dedup table was pruned, and the pool can be written to then. The first of
/// them that was overwritten was the end of it: no transaction group with that could be written.
#[tokio::test]
async fn a_block_whose_dedup_table_is_gone_is_freed_like_any_other() {
    let bench = Bench::new(&[Shape::Leaf], 12);
    let mut writer = bench.writer();
    let made = writer.write((0..2).map(|n| job(noise(8192, n), off())).collect()).await.unwrap();
    let as_deduplicated = |bp: &BlkPtr| {
        let mut words = *bp.words();
        words[6] |= 1 << 62;
        BlkPtr::from_words(words).unwrap()
    };
    writer.finish().await.unwrap();
    writer.begin(TXG + 1);
    let old = as_deduplicated(&made[0]);
    assert!(old.is_dedup());
    let new = writer.write(vec![Job { old, ..job(noise(8192, 2), off()) }]).await.unwrap()[0];
    assert!(!new.is_dedup() && !new.dvas().eq(old.dvas()));
    writer.free(&old).await.unwrap();
    writer.free(&as_deduplicated(&made[1])).await.unwrap();
    assert_eq!(writer.alloc.allocated.len(), 1, "what was written last");
    writer.finish().await.unwrap();
    assert!(read(&bench.io(&[], 0), &new).await == noise(8192, 2));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whatever is written over whatever, the last content is what is read, and space is what pointers say.
    #[test]
    fn any_sequence_of_rewrites_converges(steps in proptest::collection::vec((0u64..1000, 0usize..101, 0usize..3), 1..12)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let bench = Bench::new(&[raidz(1, 3)], 12);
            let mut writer = bench.writer();
            let (mut bp, mut content) = (BlkPtr::EMPTY, Bytes::new());
            for (seed, percent, size) in steps {
                content = mixed([4096, 16384, 131_072][size], seed, percent);
                let old = bp;
                bp = writer.write(vec![Job { old, ..job(content.clone(), metadata()) }]).await.unwrap()[0];
                if !bp.dvas().eq(old.dvas()) {
                    writer.free(&old).await.unwrap();
                }
                let pointed: Vec<_> = bp.dvas().map(|dva| ((dva.vdev, dva.offset), dva.asize)).collect();
                let held: Vec<_> = writer.alloc.allocated.clone().into_iter().collect();
                assert_eq!(pointed, held);
            }
            writer.finish().await.unwrap();
            assert!(read(&bench.io(&[2], 0), &bp).await == content);
        });
    }
}

/// A block that was written ahead and has to be given to a device again is made a second time: it must come out the same.
#[test]
fn what_was_written_ahead_under_other_rules_is_not_taken_for_what_would_be_written_now() {
    let bench = Bench::new(&[Shape::Leaf], 12);
    let mut writer = bench.writer();
    let mut told = |txg, embedded_data| {
        writer.begin(txg);
        writer.set_traits(Traits { embedded_data, ..TRAITS });
        writer.has_had_its_rules()
    };
    let told = [(TXG + 1, true), (TXG + 2, false), (TXG + 3, false), (TXG + 4, false)]
        .map(|(txg, is_on)| told(txg, is_on));
    assert_eq!(told, [true, false, false, true], "the next one was open already when they changed");
}
