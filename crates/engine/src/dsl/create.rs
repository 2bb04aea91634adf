//! New volumes and file systems.
//!
//! Facts: docs/format/mos.md §11 (create dataset), zvol.md §1, zpl.md §2.

use ondisk::objset::ObjsetType;

use super::{
    NewVolume, OpError, Properties, Stored, attributes, dataset, dir,
    edit::Edit,
    encryption, filesystem,
    find::{self, Head, Vacancy},
    limits::{self, Count},
    policy, properties, space,
};
use crate::BoxFuture;
use crate::sync::Syncer;

/// Smallest and largest block of a volume, in bytes.
const VOLUME_BLOCK_MIN: u32 = 512;
const VOLUME_BLOCK_MAX: u32 = 1 << 20;

/// `zfs create -V`.
pub fn create_volume<'a>(cx: &'a mut Syncer, new: &'a NewVolume) -> BoxFuture<'a, Result<(), OpError>> {
    Box::pin(async move {
        let refused = |text: &str| Err(OpError::Refused(text.to_owned()));
        let vacancy = find::vacancy(cx, &new.name, new.parents).await?;
        encryption::check_new(cx, vacancy.above, &new.properties).await?;
        let large = u64::from(new.block) > attributes::PLAIN_BLOCK_MAX;
        let large_possible = policy::is_possible(cx, Some(attributes::LARGE_BLOCKS)).await?;
        if !new.block.is_power_of_two() || new.block < VOLUME_BLOCK_MIN || new.block > VOLUME_BLOCK_MAX {
            return refused("volume block size must be power of 2 from 512B to 1M");
        }
        if large && !large_possible {
            return refused("volume block size must be power of 2 from 512B to 128K");
        }
        if new.size == 0 {
            return refused("invalid volume size");
        }
        if !new.size.is_multiple_of(u64::from(new.block)) {
            return refused("volume size must be a multiple of volume block size");
        }
        if i64::try_from(new.size).is_err() {
            return refused("volume size exceeds limit for this system");
        }
        check(cx, &vacancy, &new.properties).await?;
        let head = make(cx, &vacancy, &new.properties).await?;
        let mut edit = Edit::create(cx, head.object, ObjsetType::Volume);
        properties::init_volume(&mut edit, new.size, new.block).await?;
        edit.commit(cx).await?;
        Ok(())
    })
}

/// `zfs create`: an empty file system (a minimal ZPL, docs/format/zpl.md).
pub fn create_filesystem<'a>(
    cx: &'a mut Syncer,
    name: &'a str,
    properties: &'a Properties,
    parents: bool,
) -> BoxFuture<'a, Result<(), OpError>> {
    Box::pin(async move {
        let vacancy = find::vacancy(cx, name, parents).await?;
        encryption::check_new(cx, vacancy.above, properties).await?;
        for (name, plain) in [("casesensitivity", 0), ("normalization", 0), ("utf8only", 0)] {
            if properties.get(name).is_some_and(|value| *value != Stored::Number(plain)) {
                return Err(OpError::Refused(format!("'{name}' can only have its default value here")));
            }
        }
        check(cx, &vacancy, properties).await?;
        let head = make(cx, &vacancy, properties).await?;
        fill_filesystem(cx, head).await
    })
}

async fn fill_filesystem(cx: &mut Syncer, head: Head) -> Result<(), OpError> {
    let mut edit = Edit::create(cx, head.object, ObjsetType::FileSystem);
    filesystem::init(&mut edit.set, cx.txg, cx.now).await?;
    edit.commit(cx).await?;
    Ok(())
}

/// Checks the properties of a dataset to be, and that there is room for what they set aside.
pub(super) async fn check(
    cx: &mut Syncer,
    vacancy: &Vacancy,
    properties: &Properties,
) -> Result<(), OpError> {
    properties::check_possible(cx, properties).await?;
    // They are kept in the volume, and nothing would read them where the others are.
    if let Some(name) = ["volsize", "volblocksize"].into_iter().find(|name| properties.contains_key(*name)) {
        return Err(OpError::Refused(format!("'{name}' is not to be set with this command")));
    }
    if cx.places.origin_snapshot == 0 {
        return Err(OpError::Refused("pool must be upgraded to create datasets".into()));
    }
    let bytes = |name| match properties.get(name) {
        Some(Stored::Number(bytes)) => *bytes,
        _ => 0,
    };
    let (quota, set_aside) = (bytes("quota"), bytes("reservation").max(bytes("refreservation")));
    let refquota = bytes("refquota");
    if refquota != 0 && bytes("refreservation") > refquota {
        return Err(OpError::NoSpace);
    }
    if (quota != 0 && set_aside > quota) || space::available_below(cx, vacancy.above).await? == 0 {
        return Err(OpError::NoSpace);
    }
    space::need(cx, vacancy.above, set_aside).await
}

/// Makes an ordinary dataset without content, and missing parents.
async fn make(cx: &mut Syncer, vacancy: &Vacancy, properties: &Properties) -> Result<Head, OpError> {
    let above = make_parents(cx, vacancy).await?;
    let origin = cx.places.origin_snapshot;
    let head = make_one(cx, above, &vacancy.name, origin).await?;
    properties::apply(cx, head, properties).await?;
    Ok(head)
}

/// Makes the parents that are missing, as file systems, and returns the directory of the last.
pub(super) async fn make_parents(cx: &mut Syncer, vacancy: &Vacancy) -> Result<u64, OpError> {
    let mut above = vacancy.above;
    for name in &vacancy.missing {
        let origin = cx.places.origin_snapshot;
        let head = make_one(cx, above, name, origin).await?;
        fill_filesystem(cx, head).await?;
        above = head.dir;
    }
    Ok(above)
}

/// Makes directory and head, a clone of `origin`.
pub(super) async fn make_one(cx: &mut Syncer, above: u64, name: &str, origin: u64) -> Result<Head, OpError> {
    let dir = dir::create(cx, above, name).await?;
    limits::begin(cx, dir).await?;
    limits::adjust(cx, above, Count::Datasets, 1).await?;
    let object = dataset::create_head(cx, dir, origin).await?;
    Ok(Head { dir, object })
}
