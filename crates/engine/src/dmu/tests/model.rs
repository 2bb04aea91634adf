//! Random changes over several transaction groups, each of several passes, compared with a twin.
//!
//! After every transaction group the set is opened from its root by the reading half of the pool, every tree is
//! walked, and everything that other software recomputes is recomputed.

use std::{collections::BTreeMap, pin::Pin, sync::Arc};

use bytes::Bytes;
use ondisk::{
    Order,
    blkptr::BlkPtr,
    dnode::{Dnode, ObjectType},
    objset::ObjsetType,
};
use pool::{
    Bookmark,
    dmu::{BlockSource, ObjectSet},
};
use rand::{Rng as _, RngCore as _, SeedableRng as _, rngs::StdRng};

use super::{
    super::{MutSet, NewObject},
    memory::{Books, Memory, Out, address, policy},
};
use crate::space::Deflate;

/// What an object should be.
#[derive(Clone, Debug)]
struct Twin {
    object_type: ObjectType,
    block_bytes: usize,
    max: u64,
    bonus: Vec<u8>,
    /// No all-zero ones.
    blocks: BTreeMap<u64, Vec<u8>>,
}

impl Twin {
    fn put(&mut self, blkid: u64, content: Vec<u8>) {
        self.max = self.max.max(blkid);
        if content.iter().any(|byte| *byte != 0) {
            self.blocks.insert(blkid, content);
        } else {
            self.blocks.remove(&blkid);
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        let size = self.block_bytes as u64;
        for (at, byte) in (offset..).zip(data) {
            let zeroes = vec![0; self.block_bytes];
            let mut content = self.blocks.get(&(at / size)).cloned().unwrap_or(zeroes);
            content[(at % size) as usize] = *byte;
            self.put(at / size, content);
        }
    }

    fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let size = self.block_bytes as u64;
        let byte = |at: u64| self.blocks.get(&(at / size)).map_or(0, |content| content[(at % size) as usize]);
        (offset..offset + len as u64).map(byte).collect()
    }
}

pub(super) struct World<O> {
    random: StdRng,
    pub(super) out: O,
    pub(super) books: Books,
    pub(super) set: MutSet,
    twins: BTreeMap<u64, Twin>,
}

/// Walks a tree and recomputes what its pointers claim.
struct Walk<'a> {
    source: &'a Arc<dyn BlockSource>,
    books: &'a Books,
    stored: usize,
    embedded: i64,
}

impl Walk<'_> {
    /// Returns (fill, used bytes) of a subtree, and its data blocks into `found`.
    fn tree<'b>(
        &'b mut self,
        dnode: &'b Dnode,
        bp: BlkPtr,
        level: u8,
        id: u64,
        found: &'b mut Vec<(u64, Bytes)>,
    ) -> Pin<Box<dyn Future<Output = (u64, u64)> + 'b>> {
        Box::pin(async move {
            if bp.is_hole() {
                if bp.birth() > 0 {
                    assert_eq!(bp.level(), level, "a hole with a birth knows its level");
                    assert_eq!(bp.lsize(), dnode.block_bytes(level), "and its size");
                }
                return (0, 0);
            }
            assert_eq!((bp.level(), bp.lsize()), (level, dnode.block_bytes(level)));
            let dsize = self.meet(&bp);
            let content = self.source.read(&bp, Bookmark::default()).await.unwrap();
            if level == 0 {
                let dnodes = dnode.object_type == ObjectType::DNODE;
                let fill = if dnodes { count_dnodes(&content) } else { 1 };
                assert!(fill > 0, "a block of free dnodes is a hole");
                assert_eq!(bp.fill(), fill);
                found.push((id, content));
                return (fill, dsize);
            }
            let fanout = content.len() / BlkPtr::BYTES;
            let (mut fill, mut used) = (0, dsize);
            for index in 0..fanout {
                let child = BlkPtr::decode_at(&content, index, Order::Little).unwrap();
                let id = id * fanout as u64 + index as u64;
                let below = self.tree(dnode, child, level - 1, id, found).await;
                fill += below.0;
                used += below.1;
            }
            assert!(fill > 0, "an indirect block of holes is a hole");
            assert_eq!(bp.fill(), fill, "fill of level {level} block {id}");
            (fill, used)
        })
    }

    fn meet(&mut self, bp: &BlkPtr) -> u64 {
        if bp.is_embedded() {
            self.embedded += 1;
            return 0;
        }
        self.stored += 1;
        let known = self.books.stored.get(&address(bp)).expect("reachable blocks were reported");
        assert_eq!((known.birth(), known.psize()), (bp.birth(), bp.psize()));
        Deflate::default().dsize(bp)
    }
}

fn count_dnodes(block: &[u8]) -> u64 {
    let step = |slot: &mut usize| {
        let rest = block.get(*slot * 512..).filter(|rest| !rest.is_empty())?;
        *slot += Dnode::slots_at(rest);
        Some(u64::from(rest[0] != 0))
    };
    let mut slot = 0;
    std::iter::from_fn(|| step(&mut slot)).sum()
}

impl<O: Out> World<O> {
    pub(super) fn new(out: O, seed: u64) -> Self {
        let set = MutSet::create(out.source(), 0, ObjsetType::Meta);
        let random = StdRng::seed_from_u64(seed);
        // Whatever frees dead blocks while the set is being synced must not free what the sync still reads.
        let books = Books { frees_early: seed % 2 == 1, ..Books::default() };
        Self { random, out, books, set, twins: BTreeMap::new() }
    }

    fn any(&mut self) -> Option<u64> {
        let count = self.twins.len();
        let index = self.random.random_range(0..count.max(1));
        self.twins.keys().nth(index).copied()
    }

    fn content(&mut self, len: usize) -> Vec<u8> {
        let mut content = vec![0; len];
        match self.random.random_range(0..6) {
            0 => {}
            1 => content[self.random.random_range(0..100)] = 7,
            _ => self.random.fill_bytes(&mut content),
        }
        content
    }

    /// Near the start mostly, so that blocks meet again; sometimes far away.
    fn blkid(&mut self) -> u64 {
        match self.random.random_range(0..10) {
            0..6 => self.random.random_range(0..80),
            6..9 => self.random.random_range(0..3000),
            _ => self.random.random_range(0..200_000),
        }
    }

    async fn allocate(&mut self) {
        let types = [ObjectType::ZVOL, ObjectType::ZAP_METADATA, ObjectType::BPOBJ, ObjectType::DSL_DIR];
        let object_type = types[self.random.random_range(0..types.len())];
        let block_bytes = [512, 1024, 4096, 1536][self.random.random_range(0..4)];
        let bonus = vec![9; [0, 24, 48, 256, 320][self.random.random_range(0..5)]];
        let bonus_type = if bonus.is_empty() { ObjectType::NONE } else { ObjectType::DSL_DATASET };
        let new = NewObject::of(object_type).blocks(block_bytes).bonus(bonus_type, &bonus);
        let new = NewObject { indirect_shift: self.random.random_range(12..=14), ..new };
        let number = if self.random.random_ratio(1, 5) {
            let number = self.random.random_range(1..20_000);
            if self.twins.contains_key(&number) {
                self.set.claim(number, new).await.unwrap_err();
                return;
            }
            self.set.claim(number, new).await.unwrap();
            number
        } else {
            self.set.allocate(new).await.unwrap()
        };
        let block_bytes = block_bytes as usize;
        let twin = Twin { object_type, block_bytes, max: 0, bonus, blocks: BTreeMap::new() };
        assert!(self.twins.insert(number, twin).is_none(), "{number} was free");
    }

    async fn change(&mut self) {
        let Some(number) = self.any() else { return self.allocate().await };
        let size = self.twins[&number].block_bytes;
        let whole = size.is_power_of_two();
        let mut blkid = if whole { self.blkid() } else { 0 };
        match self.random.random_range(0..18) {
            0..3 => self.allocate().await,
            3 => {
                self.set.free(number).await.unwrap();
                self.twins.remove(&number);
                assert!(!self.set.exists(number).await.unwrap());
                self.set.dnode(number).await.unwrap_err();
            }
            4..7 => {
                let content = self.content(size);
                self.set.put_block(number, blkid, content.clone().into()).await.unwrap();
                self.twins.get_mut(&number).unwrap().put(blkid, content);
            }
            7..9 if whole => {
                let mut blocks = Vec::new();
                for _ in 0..self.random.random_range(0..60) {
                    blocks.push((blkid, Bytes::from(self.content(size))));
                    blkid += self.random.random_range(1..4);
                }
                self.set.put_blocks(number, blocks.clone()).await.unwrap();
                let object_type = self.twins[&number].object_type;
                let mut ahead = Vec::new();
                for (blkid, content) in &blocks {
                    if self.random.random_bool(0.4)
                        && let Some(bp) = self.out.write_ahead(content.clone(), object_type)
                    {
                        ahead.push((*blkid, bp));
                    }
                }
                self.set.put_ahead(number, ahead).await.unwrap();
                for (blkid, content) in blocks {
                    self.twins.get_mut(&number).unwrap().put(blkid, content.to_vec());
                }
            }
            9..12 => {
                let end = match self.random.random_range(0..4) {
                    0 => u64::MAX,
                    1 => blkid + self.random.random_range(0..5000),
                    _ => blkid + self.random.random_range(0..40),
                };
                self.set.punch(number, blkid..end).await.unwrap();
                self.twins.get_mut(&number).unwrap().blocks.retain(|at, _| !(blkid..end).contains(at));
            }
            12 => {
                self.set.truncate(number, blkid).await.unwrap();
                let twin = self.twins.get_mut(&number).unwrap();
                twin.blocks.split_off(&blkid);
                twin.max = twin.max.min(blkid.saturating_sub(1));
            }
            13 => {
                let bonus = vec![self.random.random(); self.twins[&number].bonus.len()];
                self.set.set_bonus(number, &bonus).await.unwrap();
                self.twins.get_mut(&number).unwrap().bonus = bonus;
            }
            14 => {
                let bytes = [512, 1024, 2048, 8192, 2560][self.random.random_range(0..5)];
                let twin = self.twins.get_mut(&number).unwrap();
                if twin.max > 0 && bytes as usize != twin.block_bytes {
                    self.set.set_block_bytes(number, bytes).await.unwrap_err();
                    return;
                }
                self.set.set_block_bytes(number, bytes).await.unwrap();
                twin.block_bytes = bytes as usize;
                if let Some(mut content) = twin.blocks.remove(&0) {
                    content.resize(bytes as usize, 0);
                    twin.put(0, content);
                }
            }
            15 => {
                let offset = blkid * size as u64 + self.random.random_range(0..size as u64);
                let room = if whole { 3 * size } else { size - offset as usize };
                let len = self.random.random_range(0..=room);
                let data = self.content(len.max(100))[..len].to_vec();
                self.set.write(number, offset, &data).await.unwrap();
                self.twins.get_mut(&number).unwrap().write(offset, &data);
            }
            _ => {
                let offset = blkid * size as u64 + self.random.random_range(0..size as u64);
                let len = self.random.random_range(0..4 * size);
                let read = self.set.read(number, offset, len).await.unwrap();
                assert!(read == self.twins[&number].read(offset, len), "bytes of {number} at {offset}");
                let block = self.set.block(number, blkid).await.unwrap();
                let zeroes = vec![0; size];
                let block = block.unwrap_or_else(|| zeroes.clone().into());
                assert!(block == *self.twins[&number].blocks.get(&blkid).unwrap_or(&zeroes), "block {blkid}");
                assert_eq!(*self.set.bonus(number).await.unwrap(), self.twins[&number].bonus);
            }
        }
    }

    async fn pass(&mut self) {
        let root = self.set.sync_to(&mut self.out, &policy(), &Deflate::default(), &mut self.books).await;
        let root = root.unwrap();
        assert!(!self.set.is_dirty());
        assert_eq!(root, *self.set.root());
    }

    /// The end of a transaction group: what is dead can no longer be read, what lives is all there.
    async fn check(&mut self) {
        let killed = std::mem::take(&mut self.books.killed);
        self.out.settle(killed).await;
        let source = self.out.source();
        let set = ObjectSet::open(self.out.source(), 0, *self.set.root()).await.unwrap();
        let mut walk = Walk { source: &source, books: &self.books, stored: 0, embedded: 0 };
        walk.meet(self.set.root());
        let meta = &set.phys().meta_dnode;
        let (mut fill, mut used, mut blocks) = (0, 0, Vec::new());
        for (index, bp) in (0..).zip(meta.blkptrs.iter()) {
            let sums = walk.tree(meta, *bp, meta.levels - 1, index, &mut blocks).await;
            fill += sums.0;
            used += sums.1;
        }
        assert_eq!((fill, fill), (self.twins.len() as u64, self.set.root().fill()));
        assert_eq!(meta.used_bytes(), Some(used));
        let mut objects = set.objects();
        let mut twins = self.twins.iter();
        while let Some(found) = objects.next().await.unwrap() {
            let (number, twin) = twins.next().expect("no object too many");
            let dnode = &found.dnode;
            assert_eq!((found.number, dnode.object_type), (*number, twin.object_type));
            assert_eq!(dnode.max_block_id, twin.max, "highest block of {number}");
            assert_eq!(*dnode.bonus, *twin.bonus);
            assert_eq!(dnode.data_block_bytes(), twin.block_bytes as u64);
            let (mut used, mut blocks) = (0, Vec::new());
            for (index, bp) in (0..).zip(dnode.blkptrs.iter()) {
                used += walk.tree(dnode, *bp, dnode.levels - 1, index, &mut blocks).await.1;
            }
            assert_eq!(dnode.used_bytes(), Some(used), "space of {number}");
            assert!(
                blocks
                    .iter()
                    .map(|(id, content)| (id, &content[..]))
                    .eq(twin.blocks.iter().map(|(id, content)| (id, &content[..]))),
                "content of {number}"
            );
            let object = self.set.object(*number).await.unwrap();
            assert_eq!(object.dnode(), dnode);
        }
        assert!(twins.next().is_none(), "no object too few");
        let (stored, embedded) = (walk.stored, walk.embedded);
        assert_eq!(
            (stored, embedded),
            (self.books.stored.len(), self.books.embedded),
            "every block in the books can be reached"
        );
    }
}

/// Plays a history.
pub(super) async fn live<O: Out>(out: O, seed: u64, txgs: u64, changes: u64) -> World<O> {
    let mut world = World::new(out, seed);
    for txg in 0..txgs {
        world.out.begin(10 + txg);
        for _ in 0..world.random.random_range(1..4) {
            for _ in 0..world.random.random_range(0..changes) {
                world.change().await;
            }
            world.pass().await;
        }
        world.check().await;
        if world.random.random_ratio(1, 3) {
            world.set = MutSet::open(world.out.source(), 0, *world.set.root()).await.unwrap();
        }
    }
    world
}

#[tokio::test]
async fn a_set_holds_what_its_twin_holds() {
    let mut ahead = 0;
    for seed in 0..60 {
        ahead += live(Memory::new(), seed, 8, 60).await.out.ahead_used;
    }
    assert!(ahead > 1000, "{ahead} blocks were written ahead");
}
