//! One promise each, where the model would need luck to meet the case.

use bytes::Bytes;
use ondisk::{
    Order,
    blkptr::{BlkPtr, Dva, Stored},
    dnode::{Bonus, ObjectType, flags},
    objset::{ObjsetForm, ObjsetType},
};
use pool::dmu::{ObjectSet, Run};

use super::{
    super::{Account, MutSet, NewObject, Portion, portion, sink::Sink},
    memory::{Books, Memory, Out as _, policy},
};
use crate::{EngineError, space::Deflate, write::Job};

struct Bench {
    out: Memory,
    books: Books,
    set: MutSet,
}

impl Bench {
    fn new() -> Self {
        let out = Memory::new();
        let set = MutSet::create(out.source(), 5, ObjsetType::Volume);
        Self { out, books: Books::default(), set }
    }

    async fn sync(&mut self, txg: u64) -> BlkPtr {
        self.out.begin(txg);
        self.set.sync_to(&mut self.out, &policy(), &Deflate::default(), &mut self.books).await.unwrap()
    }

    async fn volume(&mut self, block_bytes: u32) -> u64 {
        self.set.allocate(NewObject::of(ObjectType::ZVOL).blocks(block_bytes)).await.unwrap()
    }

    /// The pointer at the end of the way to a block, hole or not.
    async fn pointer(&mut self, number: u64, blkid: u64) -> BlkPtr {
        let object = self.set.object(number).await.unwrap();
        let run = object.runs(0, blkid..blkid + 1).next().await.unwrap();
        match run.unwrap() {
            Run::Block { pointer, .. } => pointer,
            Run::Hole { pointer, .. } => pointer.unwrap_or(BlkPtr::EMPTY),
        }
    }
}

fn noise(len: usize, seed: u64) -> Bytes {
    let word = |i: u64| (seed ^ i).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    (0..len as u64 / 8).flat_map(word).collect()
}

#[tokio::test]
async fn a_clean_set_writes_nothing() {
    let mut bench = Bench::new();
    let number = bench.volume(512).await;
    bench.set.put_block(number, 7, noise(512, 1)).await.unwrap();
    let root = bench.sync(4).await;
    let written = bench.out.written;
    assert!(!bench.set.is_dirty());
    assert_eq!((bench.sync(5).await, bench.out.written), (root, written));
    bench.set.phys_mut().flags = 1;
    let root = bench.sync(6).await;
    assert_eq!(bench.out.written, written + 1, "the root block alone");
    assert_eq!(MutSet::open(bench.out.source(), 5, root).await.unwrap().phys().flags, 1);
}

#[tokio::test]
async fn a_small_change_rewrites_only_the_way_to_the_root() {
    let mut bench = Bench::new();
    let number = bench.volume(512).await;
    // Three levels: 2 × 1024 × 1024 blocks are not needed for that, block 1,500,000 is.
    for blkid in [0, 5000, 1_500_000] {
        bench.set.put_block(number, blkid, noise(512, blkid)).await.unwrap();
    }
    bench.sync(4).await;
    let written = bench.out.written;
    bench.set.put_block(number, 5001, noise(512, 9)).await.unwrap();
    bench.sync(5).await;
    // Data, L1, L2 (1.5 million blocks need two pointers in the dnode), block of dnodes, root.
    assert_eq!(bench.out.written - written, 5);
}

#[tokio::test]
async fn blocks_under_a_punched_indirect_block_remember_when_they_became_holes() {
    let mut bench = Bench::new();
    let number = bench.volume(512).await;
    let blocks = (0..3000).map(|blkid| (blkid, noise(512, blkid)));
    bench.set.put_blocks(number, blocks).await.unwrap();
    bench.sync(4).await;
    bench.set.punch(number, 1024..2048).await.unwrap();
    bench.sync(8).await;
    let hole = bench.pointer(number, 1500).await;
    assert_eq!((hole.is_hole(), hole.level(), hole.birth()), (true, 1, 8));

    bench.set.put_block(number, 1100, noise(512, 1)).await.unwrap();
    bench.sync(12).await;
    let hole = bench.pointer(number, 1500).await;
    assert_eq!((hole.is_hole(), hole.level(), hole.birth(), hole.lsize()), (true, 0, 8, 512));
    assert_eq!(bench.pointer(number, 1100).await.birth(), 12);

    // Zeroes over a hole change nothing.
    bench.set.put_block(number, 1500, vec![0; 512].into()).await.unwrap();
    bench.sync(16).await;
    assert_eq!(bench.pointer(number, 1500).await.birth(), 8);
}

#[tokio::test]
async fn a_tree_that_grows_over_holes_keeps_their_births() {
    let mut bench = Bench::new();
    let number = bench.volume(512).await;
    bench.set.put_block(number, 1, noise(512, 1)).await.unwrap();
    bench.sync(4).await;
    bench.set.punch(number, 1..2).await.unwrap();
    bench.sync(8).await;
    bench.set.put_block(number, 40_000, noise(512, 2)).await.unwrap();
    bench.sync(12).await;
    assert_eq!(bench.pointer(number, 1).await.birth(), 8);
}

#[tokio::test]
async fn a_volume_is_punched_and_freed_in_little_memory() {
    let mut bench = Bench::new();
    let number = bench.volume(512).await;
    let blocks = (0..200_000).map(|blkid| (blkid, noise(512, blkid + 1)));
    bench.set.put_blocks(number, blocks).await.unwrap();
    bench.sync(4).await;
    assert!(bench.out.largest <= 8 << 20, "{} bytes in one call", bench.out.largest);
    bench.set.punch(number, 0..u64::MAX).await.unwrap();
    bench.set.put_block(number, 150_000, noise(512, 1)).await.unwrap();
    bench.sync(5).await;
    // Data, two levels (196 blocks of 1024 pointers are one block above), block of dnodes, root.
    assert_eq!(bench.books.stored.len(), 5);
    assert!(bench.out.most_read() <= 64, "{} blocks of 128 KiB at once", bench.out.most_read());
    bench.set.free(number).await.unwrap();
    bench.sync(6).await;
    assert_eq!(bench.books.stored.len(), 1, "the root");
}

#[tokio::test]
async fn large_dnodes_of_other_writers_are_respected() {
    let mut bench = Bench::new();
    bench.set.claim(1, NewObject::of(ObjectType::ZVOL)).await.unwrap();
    let sa = NewObject::of(ObjectType::PLAIN_FILE).bonus(ObjectType::SA, &[1]);
    bench.set.claim(8, sa).await.unwrap();
    let dnode = &mut bench.set.staged(8).await.unwrap().dnode;
    dnode.extra_slots = 3;
    dnode.bonus = Bonus::new(&[0xff; 1500]);
    let root = bench.sync(4).await;

    let mut set = MutSet::open(bench.out.source(), 5, root).await.unwrap();
    for inside in 9..12 {
        assert!(!set.exists(inside).await.unwrap());
        set.claim(inside, NewObject::of(ObjectType::ZVOL)).await.unwrap_err();
    }
    assert_eq!(set.bonus(8).await.unwrap(), [0xff; 1500]);
    for _ in 0..60 {
        let number = set.allocate(NewObject::of(ObjectType::ZVOL)).await.unwrap();
        assert!(!(8..12).contains(&number));
    }
    bench.set = set;
    let root = bench.sync(5).await;
    assert_eq!(root.fill(), 62);

    // Its slots are free at once when it goes, and are not cut off by what was in them.
    bench.set = MutSet::open(bench.out.source(), 5, root).await.unwrap();
    bench.set.free(8).await.unwrap();
    bench.set.claim(10, NewObject::of(ObjectType::ZVOL)).await.unwrap();
    let root = bench.sync(6).await;
    assert_eq!(root.fill(), 62);
    let set = ObjectSet::open(bench.out.source(), 5, root).await.unwrap();
    let (mut objects, mut numbers) = (set.objects(), Vec::new());
    while let Some(found) = objects.next().await.unwrap() {
        numbers.push(found.number);
    }
    assert!(numbers.contains(&10) && ![8, 9, 11].iter().any(|number| numbers.contains(number)));
}

#[tokio::test]
async fn numbers_are_used_again_and_full_blocks_are_passed_over() {
    let mut bench = Bench::new();
    for number in 1..=100 {
        assert_eq!(bench.volume(512).await, number);
    }
    bench.set.free(50).await.unwrap();
    assert_eq!(bench.volume(512).await, 50);
    bench.set.free(70).await.unwrap();
    let root = bench.sync(4).await;
    bench.set = MutSet::open(bench.out.source(), 5, root).await.unwrap();
    assert_eq!(bench.volume(512).await, 70);
    assert_eq!(bench.volume(512).await, 101);
}

#[tokio::test]
async fn sectors_of_old_software_become_bytes() {
    let mut bench = Bench::new();
    let number = bench.volume(512).await;
    bench.set.put_block(number, 0, noise(512, 1)).await.unwrap();
    let root = bench.sync(4).await;
    assert_eq!(bench.set.dnode(number).await.unwrap().used, 4096);
    bench.set = MutSet::open(bench.out.source(), 5, root).await.unwrap();
    let dnode = &mut bench.set.staged(number).await.unwrap().dnode;
    (dnode.used, dnode.flags) = (8, 0);
    bench.set.put_block(number, 1, noise(512, 2)).await.unwrap();
    bench.sync(5).await;
    let dnode = bench.set.dnode(number).await.unwrap();
    assert_eq!((dnode.used, dnode.flags & flags::USED_BYTES), (2 * 4096, flags::USED_BYTES));
}

#[tokio::test]
async fn short_root_blocks_become_long() {
    let mut bench = Bench::new();
    bench.volume(512).await;
    bench.set.phys_mut().form = ObjsetForm::Plain;
    let root = bench.sync(4).await;
    assert_eq!(root.lsize(), 4096);
}

#[tokio::test]
async fn what_does_not_fit_is_refused() {
    let mut bench = Bench::new();
    let number = bench.volume(1536).await;
    let set = &mut bench.set;
    set.put_block(number, 0, noise(512, 1)).await.unwrap_err();
    set.put_block(number, 1, noise(1536, 1)).await.unwrap_err();
    set.put_block(number, 0, noise(1536, 1)).await.unwrap();
    set.set_bonus(number, &[1]).await.unwrap_err();
    set.set_block_bytes(number, 700).await.unwrap_err();
    set.allocate(NewObject::of(ObjectType::ZVOL).bonus(ObjectType::SA, &[0; 321])).await.unwrap_err();
    set.claim(number, NewObject::of(ObjectType::ZVOL)).await.unwrap_err();
    set.claim(0, NewObject::of(ObjectType::ZVOL)).await.unwrap_err();
    set.free(99).await.unwrap_err();
}

#[tokio::test]
async fn appending_does_not_copy_the_block_each_time() {
    let mut bench = Bench::new();
    let number = bench.volume(128 << 10).await;
    bench.set.write(number, 0, &[1; 128]).await.unwrap();
    let place = bench.set.staged(number).await.unwrap().blocks[&0].as_ptr();
    for entry in 1..1024 {
        bench.set.write(number, entry * 128, &[2; 128]).await.unwrap();
    }
    assert_eq!(bench.set.staged(number).await.unwrap().blocks[&0].as_ptr(), place);
}

/// Takes data blocks at no cost, so that what remains is ours.
struct Quick(Memory, u64);

impl Sink for Quick {
    async fn write(&mut self, jobs: Vec<Job>) -> Result<Vec<BlkPtr>, EngineError> {
        if jobs.iter().any(|job| job.policy.metadata) {
            return self.0.write(jobs).await;
        }
        let mut pointers = Vec::with_capacity(jobs.len());
        for job in jobs {
            self.1 += 8192;
            let dva = Dva { vdev: 0, offset: (1 << 40) + self.1, asize: 8192, gang: false };
            let stored = Stored {
                dvas: [dva, Dva::default(), Dva::default()],
                lsize: job.content.len() as u64,
                psize: 8192,
                compression_id: 2,
                checksum_id: 7,
                object_type: job.object_type,
                level: 0,
                dedup: false,
                order: Order::Little,
                birth: self.0.txg,
                physical_birth: self.0.txg,
                fill: job.fill,
                checksum: [1, 2, 3, 4],
            };
            pointers.push(BlkPtr::stored(&stored).unwrap());
        }
        Ok(pointers)
    }

    fn hole(&self, old: &BlkPtr, lsize: u64, object_type: ObjectType, level: u8) -> BlkPtr {
        self.0.hole(old, lsize, object_type, level)
    }

    async fn free_all(&mut self, blocks: &[BlkPtr]) -> Result<(), EngineError> {
        self.0.free_all(blocks).await
    }
}

#[tokio::test]
async fn whoever_frees_blocks_is_never_left_with_many() {
    const BLOCKS: u64 = 20 * 1024;
    let blocks =
        |seed: u64| (0..BLOCKS).map(move |blkid| (blkid, noise(512, blkid ^ seed))).collect::<Vec<_>>();
    let mut bench = Bench::new();
    let number = bench.volume(512).await;
    bench.books.frees_early = true;
    bench.set.put_blocks(number, blocks(0)).await.unwrap();
    bench.sync(4).await;
    // Written over, punched one by one, and as a whole.
    bench.set.put_blocks(number, blocks(1 << 40)).await.unwrap();
    bench.sync(5).await;
    assert!((4096..5000).contains(&bench.books.most_killed), "a batch: {}", bench.books.most_killed);
    bench.books.most_killed = 0;
    for half in 0..BLOCKS / 512 {
        bench.set.punch(number, half * 512..half * 512 + 511).await.unwrap();
    }
    bench.sync(6).await;
    assert!(
        (1000..2000).contains(&bench.books.most_killed),
        "an indirect block: {}",
        bench.books.most_killed
    );
    bench.set.put_blocks(number, blocks(0)).await.unwrap();
    bench.sync(7).await;
    bench.books.most_killed = 0;
    bench.set.punch(number, 0..BLOCKS).await.unwrap();
    bench.sync(8).await;
    assert!(
        (1000..2000).contains(&bench.books.most_killed),
        "an indirect block: {}",
        bench.books.most_killed
    );
    assert!(bench.books.stored.len() < 5, "all are gone");
}

#[tokio::test]
async fn a_portion_reaches_as_far_as_what_is_there_allows() {
    let mut bench = Bench::new();
    let number = bench.volume(512).await;
    let far = [1 << 40, (1 << 40) + 5000];
    let blocks = (0..3 * 1024).chain(far).map(|blkid| (blkid, noise(512, blkid)));
    bench.set.put_blocks(number, blocks.collect::<Vec<_>>()).await.unwrap();
    bench.sync(4).await;
    let object = bench.set.object(number).await.unwrap();
    let all = 0..1 << 50;
    for (blocks, max, end, weight) in [
        (all.clone(), 2048, 2048, 2048),
        (all.clone(), 3000, 2048, 2048),
        (100..1 << 50, 2048, 2048, 1948),
        // At least something.
        (all.clone(), 100, 1024, 1024),
        // The hole is no part of the weight, and the two blocks behind it have an indirect block each.
        (3072..1 << 50, 128, 1 << 50, 128),
        (3072..1 << 50, 127, (1 << 40) + 4096, 64),
        (all, 1 << 20, 1 << 50, 3072 + 128),
        (2048..2100, 10, 2100, 52),
        ((1 << 41)..1 << 50, 1, 1 << 50, 0),
    ] {
        let found = portion(&object, blocks.clone(), max).await.unwrap();
        assert_eq!(found, Portion { end, weight }, "{blocks:?}, {max}");
    }
}

/// Remembers what metadata died.
struct Graves(Vec<BlkPtr>);

impl Account for Graves {
    fn born(&mut self, _: &BlkPtr) {}
    fn killed(&mut self, bp: &BlkPtr) {
        if bp.level() > 0 || bp.object_type().is_metadata() {
            self.0.push(*bp);
        }
    }
}

#[tokio::test]
#[ignore = "a measurement"]
async fn how_long_a_transaction_group_of_60000_blocks_takes() {
    for (name, step) in [("next to each other", 1), ("every 16th", 16), ("one per indirect block", 1024)] {
        let mut out = Quick(Memory::new(), 0);
        let mut set = MutSet::create(out.0.source(), 5, ObjsetType::Volume);
        let number = set.allocate(NewObject::of(ObjectType::ZVOL).blocks(8192)).await.unwrap();
        let content = noise(8192, 1);
        let count = if step == 1024 { 4096 } else { 60_000 };
        for txg in 4..8 {
            out.0.begin(txg);
            let blocks: Vec<_> = (0..count).map(|i| (i * step, content.clone())).collect();
            let (mut graves, deflate) = (Graves(Vec::new()), Deflate::default());
            let start = tokio::time::Instant::now();
            set.put_blocks(number, blocks).await.unwrap();
            let staged = start.elapsed();
            set.sync_to(&mut out, &policy(), &deflate, &mut graves).await.unwrap();
            let per_block = start.elapsed().as_nanos() / u128::from(count);
            println!("{name}, txg {txg}: staged in {staged:?}, synced at {per_block} ns a block");
            out.0.settle(graves.0).await;
        }
    }
}
