//! Packed lists in objects: the configuration, spares, cache devices. Facts: docs/format/mos.md §4.

use ondisk::{
    Order,
    dnode::ObjectType,
    nvlist::{Encoding, NvList},
};
use pool::dmu::ReadError;

use super::at;
use crate::{
    EngineError,
    dmu::{MutSet, NewObject},
};

/// Bytes of a block.
const BLOCK: u32 = 16 << 10;
/// Longest list believed, in bytes. The configuration of a pool of thousands of devices is a few MiB.
const BYTES_MAX: u64 = 64 << 20;

/// A new object for a packed list.
pub async fn create(mos: &mut MutSet) -> Result<u64, EngineError> {
    let length = 0u64.to_le_bytes();
    let new = NewObject::of(ObjectType::PACKED_NVLIST).blocks(BLOCK);
    mos.allocate(new.bonus(ObjectType::PACKED_NVLIST_SIZE, &length)).await
}

/// Replaces the list.
pub async fn write(mos: &mut MutSet, object: u64, list: &NvList) -> Result<(), EngineError> {
    let mut packed =
        list.encode(Encoding::Xdr(Order::Little)).map_err(EngineError::encode("a packed list"))?;
    let block = mos.dnode(object).await?.data_block_bytes().max(1);
    let length = packed.len() as u64;
    packed.resize(length.next_multiple_of(block) as usize, 0);
    mos.truncate(object, length.div_ceil(block)).await?;
    mos.write(object, 0, &packed).await?;
    mos.set_bonus(object, &length.to_le_bytes()).await
}

/// Reads the list.
pub async fn read(mos: &mut MutSet, object: u64) -> Result<NvList, EngineError> {
    let bonus = mos.bonus(object).await?;
    let at = at(mos, object, 0);
    let length = Order::Little.u64_at("packed list", &bonus, 0).map_err(ReadError::malformed(at))?;
    if length > BYTES_MAX {
        return Err(ReadError::TooLarge { objset: at.objset, object, limit: BYTES_MAX }.into());
    }
    let packed = mos.read(object, 0, length as usize).await?;
    Ok(NvList::decode(&packed).map_err(ReadError::malformed(at))?)
}
