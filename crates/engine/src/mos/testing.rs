//! What the tests of these modules share: a MOS that is nowhere on disk, and block pointers to nothing.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use ondisk::{
    Order,
    blkptr::{BlkPtr, Dva, Stored},
    dnode::ObjectType,
    objset::ObjsetType,
};
use pool::{
    BlockError, Bookmark,
    dmu::{BlockSource, SourceFuture},
};

use super::{DIRECTORY, zap};
use crate::{
    dmu::{MutSet, NewObject},
    policy::Traits,
};

/// All that pools of ours allow.
pub(crate) const TRAITS: Traits = Traits {
    lz4: true,
    embedded_data: true,
    hole_birth: true,
    spacemap_v2: true,
    spacemap_histogram: true,
    log_spacemap: false,
    empty_bpobj: true,
    extensible_dataset: true,
    async_destroy: true,
    livelist: false,
};

#[derive(Debug)]
struct Nothing;

impl BlockSource for Nothing {
    fn cached(&self, _bp: &BlkPtr) -> Option<Bytes> {
        None
    }
    fn read<'a>(&'a self, _bp: &'a BlkPtr, at: Bookmark) -> SourceFuture<'a, Result<Bytes, BlockError>> {
        panic!("nothing is on disk, also not {at}")
    }
    fn read_many<'a>(
        &'a self,
        blocks: &'a [(BlkPtr, Bookmark)],
    ) -> SourceFuture<'a, Vec<Result<Bytes, BlockError>>> {
        panic!("nothing is on disk, also not {blocks:?}")
    }
}

/// A MOS with an empty directory.
pub(crate) async fn fresh() -> MutSet {
    let mut mos = MutSet::create(Arc::new(Nothing), 0, ObjsetType::Meta);
    mos.claim(DIRECTORY, NewObject::of(ObjectType::OBJECT_DIRECTORY)).await.unwrap();
    zap::init(&mut mos, DIRECTORY, 0).await.unwrap();
    mos
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
