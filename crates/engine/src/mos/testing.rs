//! What the tests of these modules share: a MOS over blocks in memory, and block pointers to nothing.

use std::{collections::BTreeSet, sync::Arc};

use ondisk::{
    Order,
    blkptr::{BlkPtr, Dva, Stored},
    dnode::ObjectType,
    objset::ObjsetType,
};
use pool::dmu::ObjectSet;

use super::{DIRECTORY, zap};
pub(crate) use crate::policy::TRAITS;
use crate::{
    dmu::{
        MutSet, NewObject,
        tests::memory::{Books, Memory, Out, address, policy},
    },
    space::Deflate,
};

/// A MOS that can be committed.
pub(crate) struct World {
    pub(crate) mos: MutSet,
    out: Memory,
    books: Books,
}

impl World {
    /// With an empty directory.
    pub(crate) async fn new() -> Self {
        let out = Memory::new();
        let mut mos = MutSet::create(out.source(), 0, ObjsetType::Meta);
        mos.claim(DIRECTORY, NewObject::of(ObjectType::OBJECT_DIRECTORY)).await.unwrap();
        zap::init(&mut mos, DIRECTORY, 0).await.unwrap();
        Self { mos, out, books: Books::default() }
    }

    /// Ends a transaction group; what the reading half of the pool sees of it. Blocks that died cannot be read.
    pub(crate) async fn commit(&mut self) -> Arc<ObjectSet> {
        let deflate = Deflate::default();
        let root = self.mos.sync_to(&mut self.out, &policy(), &deflate, &mut self.books).await.unwrap();
        let dead = std::mem::take(&mut self.books.killed).into_iter();
        let dead = dead.filter(|bp| !self.books.stored.contains_key(&address(bp))).collect();
        self.out.settle(dead).await;
        self.out.begin(self.out.txg + 1);
        ObjectSet::open(self.out.source(), 0, root).await.unwrap()
    }

    /// Blocks of this type cannot be read any more.
    pub(crate) async fn lose(&mut self, object_type: ObjectType) {
        let blocks = self.out.all().into_iter().map(|(bp, _)| bp);
        let lost = blocks.filter(|bp| bp.object_type() == object_type).collect();
        self.out.settle(lost).await;
    }
}

/// A MOS with an empty directory.
pub(crate) async fn fresh() -> MutSet {
    World::new().await.mos
}

/// The objects there are, as far as a test makes any.
pub(crate) async fn objects(mos: &mut MutSet) -> BTreeSet<u64> {
    let mut all = BTreeSet::new();
    for number in 1..4096 {
        if mos.exists(number).await.unwrap() {
            all.insert(number);
        }
    }
    all
}

/// A block of `sectors` sectors, two thirds of them free, born in `birth`. Each `unique` is another block.
pub(crate) fn pointer(unique: u64, sectors: u64, birth: u64) -> BlkPtr {
    let dva = Dva { vdev: 0, asize: sectors << 9, offset: unique << 20, gang: false };
    BlkPtr::stored(&Stored {
        dvas: [dva, Dva::default(), Dva::default()],
        lsize: sectors << 10,
        psize: sectors << 9,
        compression_id: 15,
        checksum_id: 7,
        object_type: ObjectType::ZVOL,
        level: 0,
        dedup: false,
        order: Order::Little,
        birth,
        physical_birth: birth,
        fill: 1,
        checksum: [unique, 1, 2, 3],
    })
    .unwrap()
}
