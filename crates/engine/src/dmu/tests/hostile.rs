//! Bytes from strangers: whatever stands in a block, changing the set ends in success or an error.

use bytes::Bytes;
use ondisk::{Order, blkptr::BlkPtr, dnode::ObjectType};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

use super::{
    super::{Account, MutSet, NewObject},
    memory::{Memory, Out as _, policy},
    model::live,
};
use crate::{EngineError, space::Deflate};

/// Does not look.
struct Blind;

impl Account for Blind {
    fn born(&mut self, _: &BlkPtr) {}
    fn killed(&mut self, _: &BlkPtr) {}
}

/// Tries everything on one object.
async fn meddle(set: &mut MutSet, random: &mut StdRng, number: u64) -> Result<(), EngineError> {
    let dnode = set.dnode(number).await?;
    let (size, max) = (dnode.data_block_bytes(), dnode.max_block_id);
    let blkid = random.random_range(0..=max.min(5000));
    match random.random_range(0..8) {
        0 => set.free(number).await,
        1 => set.put_block(number, blkid, vec![3; size as usize].into()).await,
        2 => set.punch(number, blkid..u64::MAX).await,
        3 => set.truncate(number, blkid).await,
        4 => set.set_block_bytes(number, 4096).await,
        5 => set.write(number, blkid * size + 5, &[6; 700]).await,
        6 => set.read(number, blkid.saturating_mul(size), 5000).await.map(|_| ()),
        _ => set.block(number, blkid).await.map(|_| ()),
    }
}

#[tokio::test]
async fn no_byte_in_a_block_of_metadata_makes_it_panic() {
    for seed in 0..25 {
        let world = live(Memory::new(), seed, 3, 40).await;
        let root = *world.set.root();
        let mut random = StdRng::seed_from_u64(seed);
        let mut out = world.out;
        let honest = out.all();
        let claims = |(bp, _): &&(BlkPtr, Bytes)| bp.level() > 0 || bp.object_type() == ObjectType::DNODE;
        let targets: Vec<_> = honest.iter().filter(claims).cloned().collect();
        for _ in 0..40 {
            for _ in 0..random.random_range(1..4) {
                let (bp, content) = &targets[random.random_range(0..targets.len())];
                let mut content = content.to_vec();
                for _ in 0..random.random_range(1..4) {
                    // Where something stands rather than in the emptiness behind it.
                    let end = content.iter().rposition(|byte| *byte != 0).unwrap_or(0) + 1;
                    let mut at = random.random_range(0..end);
                    if random.random() {
                        at = at / 512 * 512 + random.random_range(0..24);
                    }
                    let at = at.min(content.len() - 1);
                    content[at] = random.random();
                }
                out.forge(*bp, content.into());
            }
            let mut set = MutSet::open(out.source(), 0, root).await.unwrap();
            out.begin(100);
            for _ in 0..random.random_range(1..20) {
                let number = random.random_range(1..70);
                let done = meddle(&mut set, &mut random, number).await;
                drop(done);
                drop(set.allocate(NewObject::of(ObjectType::ZVOL)).await);
            }
            drop(set.sync_to(&mut out, &policy(), &Deflate::default(), &mut Blind).await);
            for (bp, content) in &honest {
                out.forge(*bp, content.clone());
            }
        }
    }
}

#[tokio::test]
async fn big_endian_indirect_blocks_are_turned_when_they_are_written_again() {
    let mut out = Memory::new();
    let mut set = MutSet::create(out.source(), 0, ondisk::objset::ObjsetType::Volume);
    let number = set.allocate(NewObject::of(ObjectType::ZVOL)).await.unwrap();
    let blocks = (0..10).map(|blkid| (blkid, Bytes::from(vec![blkid as u8 + 1; 512])));
    set.put_blocks(number, blocks).await.unwrap();
    set.sync_to(&mut out, &policy(), &Deflate::default(), &mut Blind).await.unwrap();

    // The same indirect block as the other kind of machine would have written it.
    let little = set.object(number).await.unwrap().top_pointer(0).unwrap();
    let mut content = out.source().read(&little, Default::default()).await.unwrap().to_vec();
    content.as_chunks_mut::<8>().0.iter_mut().for_each(|word| word.reverse());
    let mut words = *little.words();
    words[6] &= !(1 << 63);
    let big = BlkPtr::from_words(words).unwrap();
    assert_eq!(big.order(), Order::Big);
    out.forge(big, content.into());
    let staged = set.staged(number).await.unwrap();
    staged.dnode.blkptrs = ondisk::dnode::BlkPtrs::new(&[big, BlkPtr::EMPTY, BlkPtr::EMPTY]).unwrap();

    set.put_block(number, 3, vec![99; 512].into()).await.unwrap();
    out.begin(20);
    set.sync_to(&mut out, &policy(), &Deflate::default(), &mut Blind).await.unwrap();
    let object = set.object(number).await.unwrap();
    assert_eq!(object.top_pointer(0).unwrap().order(), Order::Little);
    for blkid in 0..10 {
        let wanted = if blkid == 3 { 99 } else { blkid as u8 + 1 };
        assert_eq!(object.read_block(blkid).await.unwrap().bytes(), vec![wanted; 512]);
    }
}
