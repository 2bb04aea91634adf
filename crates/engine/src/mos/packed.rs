//! Packed lists in objects: the configuration, spares, cache devices. Facts: docs/format/mos.md §4.

use ondisk::{
    Order,
    dnode::ObjectType,
    nvlist::{Encoding, NvList},
};
use pool::dmu::ReadError;

use super::at;
use crate::{
    BoxFuture, EngineError,
    dmu::{MutSet, NewObject},
};

/// Bytes of a block.
const BLOCK: u32 = 16 << 10;
/// Longest list believed, in bytes. The configuration of a pool of thousands of devices is a few MiB.
const BYTES_MAX: u64 = 64 << 20;

/// A new object for a packed list.
pub fn create(mos: &mut MutSet) -> BoxFuture<'_, Result<u64, EngineError>> {
    Box::pin(async move {
        let length = 0u64.to_le_bytes();
        let new = NewObject::of(ObjectType::PACKED_NVLIST).blocks(BLOCK);
        mos.allocate(new.bonus(ObjectType::PACKED_NVLIST_SIZE, &length)).await
    })
}

/// Replaces the list.
pub fn write<'a>(
    mos: &'a mut MutSet,
    object: u64,
    list: &'a NvList,
) -> BoxFuture<'a, Result<(), EngineError>> {
    Box::pin(async move {
        let mut packed =
            list.encode(Encoding::Xdr(Order::Little)).map_err(EngineError::encode("a packed list"))?;
        let block = mos.dnode(object).await?.data_block_bytes().max(1);
        let length = packed.len() as u64;
        packed.resize(length.next_multiple_of(block) as usize, 0);
        mos.truncate(object, length.div_ceil(block)).await?;
        mos.write(object, 0, &packed).await?;
        mos.set_bonus(object, &length.to_le_bytes()).await
    })
}

/// Reads the list.
pub fn read(mos: &mut MutSet, object: u64) -> BoxFuture<'_, Result<NvList, EngineError>> {
    Box::pin(async move {
        let bonus = mos.bonus(object).await?;
        let at = at(mos, object, 0);
        let length = Order::Little.u64_at("packed list", &bonus, 0).map_err(ReadError::malformed(at))?;
        if length > BYTES_MAX {
            return Err(ReadError::TooLarge { objset: at.objset, object, limit: BYTES_MAX }.into());
        }
        let packed = mos.read(object, 0, length as usize).await?;
        Ok(NvList::decode(&packed).map_err(ReadError::malformed(at))?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mos::testing::World;

    #[tokio::test]
    async fn lists_grow_and_shrink_and_read_back() {
        let mut world = World::new().await;
        let object = create(&mut world.mos).await.unwrap();
        for (disks, blocks) in [(1, 1), (900, 5), (40, 1)] {
            let mut config = NvList::new();
            config.set("name", "lake");
            let child = |id: u64| {
                let mut child = NvList::new();
                child.set("id", id);
                child.set("path", format!("/dev/disk/by-id/{id}").as_str());
                child
            };
            config.set("children", (0..disks).map(child).collect::<Vec<_>>());
            write(&mut world.mos, object, &config).await.unwrap();
            assert_eq!(read(&mut world.mos, object).await.unwrap(), config);
            world.commit().await;
            assert_eq!(read(&mut world.mos, object).await.unwrap(), config);
            let dnode = world.mos.dnode(object).await.unwrap();
            assert!((dnode.max_block_id + 1).abs_diff(blocks) <= 2, "{} blocks", dnode.max_block_id + 1);
            assert_eq!((dnode.max_block_id > 0, dnode.data_block_bytes()), (blocks > 1, 16 << 10));
        }
        world.mos.set_bonus(object, &u64::MAX.to_le_bytes()).await.unwrap();
        assert!(matches!(
            read(&mut world.mos, object).await,
            Err(EngineError::Read(ReadError::TooLarge { .. }))
        ));
    }
}
