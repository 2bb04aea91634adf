//! The list of destroyed datasets whose blocks are still to be freed. Facts: docs/format/mos.md §8.

use ondisk::{
    Order,
    bpobj::{BptreeEntry, BptreePhys},
    dnode::ObjectType,
};
use pool::dmu::ReadError;

use super::{DIRECTORY, at, features, inconsistent, zap};
use crate::{
    BoxFuture, EngineError,
    dmu::{MutSet, NewObject},
    space::Space,
};

/// Its directory entry.
const ENTRY: &str = "bptree_obj";
/// Active while the list exists.
const FEATURE: &str = "com.delphix:async_destroy";
/// Bytes of a block.
const BLOCK: u32 = 128 << 10;

/// Puts a dataset on the list (creating it, directory entry `bptree_obj` and feature `async_destroy` included).
/// `space` is what it is going to free.
pub fn push<'a>(
    mos: &'a mut MutSet,
    entry: &'a BptreeEntry,
    space: Space,
) -> BoxFuture<'a, Result<(), EngineError>> {
    Box::pin(async move {
        let object = match zap::get_u64(mos, DIRECTORY, ENTRY).await? {
            Some(object) => object,
            None => {
                features::add(mos, FEATURE, 1).await?;
                let bonus = BptreePhys::default().encode(Order::Little);
                let new = NewObject::of(ObjectType::U64_METADATA).blocks(BLOCK);
                let object = mos.allocate(new.bonus(ObjectType::U64_METADATA, &bonus)).await?;
                zap::set_u64(mos, DIRECTORY, ENTRY, object).await?;
                object
            }
        };
        let mut list = header(mos, object).await?;
        write(mos, object, list.end, entry).await?;
        list.end = list.end.saturating_add(1);
        change(&mut list, space);
        mos.set_bonus(object, &list.encode(Order::Little)).await
    })
}

/// The entry to work on, if there is one.
pub fn first(mos: &mut MutSet) -> BoxFuture<'_, Result<Option<BptreeEntry>, EngineError>> {
    Box::pin(async move {
        let Some(object) = zap::get_u64(mos, DIRECTORY, ENTRY).await? else { return Ok(None) };
        let list = header(mos, object).await?;
        if list.begin == list.end {
            return Ok(None);
        }
        let bytes = mos.read(object, offset(list.begin), BptreeEntry::BYTES).await?;
        let entry = BptreeEntry::decode(&bytes, Order::Little);
        Ok(Some(entry.map_err(ReadError::malformed(at(mos, object, 0)))?))
    })
}

/// What all entries together are still going to free.
pub fn space(mos: &mut MutSet) -> BoxFuture<'_, Result<Space, EngineError>> {
    Box::pin(async move {
        let Some(object) = zap::get_u64(mos, DIRECTORY, ENTRY).await? else { return Ok(Space::ZERO) };
        let list = header(mos, object).await?;
        Ok(Space {
            used: list.bytes as i64,
            compressed: list.compressed_bytes as i64,
            uncompressed: list.uncompressed_bytes as i64,
        })
    })
}

/// Notes progress: `freed` came back; `next` is the entry with its new resume point, or none if it is finished
/// (the list itself goes away when it is empty).
pub fn progress<'a>(
    mos: &'a mut MutSet,
    freed: Space,
    next: Option<&'a BptreeEntry>,
) -> BoxFuture<'a, Result<(), EngineError>> {
    Box::pin(async move {
        let Some(object) = zap::get_u64(mos, DIRECTORY, ENTRY).await? else {
            return Err(inconsistent(mos, DIRECTORY, 0, "there is no list of destroyed datasets"));
        };
        let mut list = header(mos, object).await?;
        if list.begin == list.end && next.is_some() {
            return Err(inconsistent(mos, object, 0, "the list of destroyed datasets is empty"));
        }
        change(&mut list, -freed);
        match next {
            Some(entry) => write(mos, object, list.begin, entry).await?,
            None => list.begin = list.begin.saturating_add(1).min(list.end),
        }
        if list.begin < list.end {
            return mos.set_bonus(object, &list.encode(Order::Little)).await;
        }
        zap::remove(mos, DIRECTORY, ENTRY.into()).await?;
        mos.free(object).await?;
        features::add(mos, FEATURE, -1).await?;
        Ok(())
    })
}

async fn header(mos: &mut MutSet, object: u64) -> Result<BptreePhys, EngineError> {
    let bonus = mos.bonus(object).await?;
    Ok(BptreePhys::decode(&bonus, Order::Little).map_err(ReadError::malformed(at(mos, object, 0)))?)
}

async fn write(mos: &mut MutSet, object: u64, index: u64, entry: &BptreeEntry) -> Result<(), EngineError> {
    mos.write(object, offset(index), &entry.encode(Order::Little)).await
}

fn offset(index: u64) -> u64 {
    index.saturating_mul(BptreeEntry::BYTES as u64)
}

/// The totals are estimates while a dataset is being freed, so they stop at 0.
fn change(list: &mut BptreePhys, by: Space) {
    list.bytes = list.bytes.saturating_add_signed(by.used);
    list.compressed_bytes = list.compressed_bytes.saturating_add_signed(by.compressed);
    list.uncompressed_bytes = list.uncompressed_bytes.saturating_add_signed(by.uncompressed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mos::testing::{World, objects, pointer};

    fn entry(number: u64) -> BptreeEntry {
        BptreeEntry { objset: pointer(number, 8, 10), birth_txg: 7, resume: [0; 4] }
    }

    const SPACE: Space = Space { used: 1000, compressed: 900, uncompressed: 2000 };

    #[tokio::test]
    async fn datasets_are_worked_off_in_turn_and_the_list_goes_with_the_last() {
        let mut world = World::new().await;
        features::enable(&mut world.mos, FEATURE, 4).await.unwrap();
        let before = objects(&mut world.mos).await;
        assert_eq!(first(&mut world.mos).await.unwrap(), None);
        assert!(progress(&mut world.mos, Space::ZERO, None).await.is_err());
        for number in 1..=900 {
            push(&mut world.mos, &entry(number), SPACE).await.unwrap();
        }
        assert_eq!(features::count(&mut world.mos, FEATURE).await.unwrap(), Some(1));
        for number in 1..=900 {
            if number % 300 == 2 {
                world.commit().await;
            }
            let mos = &mut world.mos;
            assert_eq!(first(mos).await.unwrap(), Some(entry(number)));
            let resumed = BptreeEntry { resume: [1, 2, 3, number], ..entry(number) };
            progress(mos, Space { used: 400, ..Space::ZERO }, Some(&resumed)).await.unwrap();
            assert_eq!(first(mos).await.unwrap(), Some(resumed));
            assert_eq!(space(mos).await.unwrap().used, (901 - number as i64) * 1000 - 400);
            progress(mos, SPACE - Space { used: 400, ..Space::ZERO }, None).await.unwrap();
        }
        assert_eq!(features::count(&mut world.mos, FEATURE).await.unwrap(), Some(0));
        assert_eq!(space(&mut world.mos).await.unwrap(), Space::ZERO);
        assert_eq!(objects(&mut world.mos).await, before);
    }

    #[tokio::test]
    async fn without_the_feature_nothing_is_put_on_a_list() {
        let mut world = World::new().await;
        assert!(push(&mut world.mos, &entry(1), SPACE).await.is_err());
    }
}
