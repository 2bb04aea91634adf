//! Setting properties: which of them the pool can honour, where each is kept, and what follows from it.
//!
//! Most go into the `props` ZAP of the directory; `quota` and `reservation` are fields of the directory, `volsize`
//! lives in the volume. A local value covers a received one; inheriting leaves a mark where one was received.
//! Facts: docs/format/mos.md §6, zvol.md §2, §4.

use ondisk::{
    dnode::ObjectType,
    dsl::keys::{SUFFIX_INHERIT, SUFFIX_RECEIVED},
    objset::ObjsetType,
    zap::Value,
};
use pool::dsl::{CACHING, name::Part};

use super::{
    OpError, Properties, Stored, account, attributes, dataset, dir,
    edit::{Edit, VOLUME_DATA, VOLUME_PROPERTIES},
    encryption,
    find::{self, Head},
    policy, shrink, space,
};
use crate::{
    BoxFuture, EngineError,
    dmu::MutSet,
    mos::{DIRECTORY, zap},
    sync::{Change, Syncer},
};

/// `dedup=off`.
const DEDUP_OFF: u64 = 2;
/// What larger dnodes and longer names of files need.
const LARGE_DNODE: &str = "org.zfsonlinux:large_dnode";
const LONGNAME: &str = "org.zfsonlinux:longname";
/// Properties of the pool that live in its configuration.
const IN_CONFIG: [&str; 2] = ["comment", "compatibility"];
/// Name of the directory entry for the others.
const POOL_PROPS: &str = "pool_props";
/// The pool's file system to boot from: kept as its object, which stays when it is renamed.
const BOOTFS: &str = "bootfs";
/// Key of a volume's size in its properties.
const SIZE: &str = "size";

fn refused(text: &str) -> OpError {
    OpError::Refused(text.to_owned())
}

fn number(value: &Stored) -> Result<u64, OpError> {
    match value {
        Stored::Number(number) => Ok(*number),
        Stored::Text(_) => Err(refused("bad numeric value")),
    }
}

fn stored(value: &Stored) -> Value {
    match value {
        Stored::Number(number) => Value::from_u64(*number),
        Stored::Text(text) => Value::from_text(text),
    }
}

/// Properties that are sums of bytes: they are added and subtracted as signed numbers, here and on every other system.
const IN_BYTES: [&str; 5] = ["volsize", "quota", "refquota", "reservation", "refreservation"];

/// Refuses values that this pool cannot have on any dataset.
pub(super) async fn check_possible(cx: &mut Syncer, properties: &Properties) -> Result<(), OpError> {
    for (name, value) in properties {
        let feature = match name.as_str() {
            "compression" => attributes::of_compression((number(value)? & 0x7f) as u8),
            "checksum" => attributes::of_checksum(u8::try_from(number(value)?).unwrap_or(0)),
            // Only of files, which others write: they take up the feature then, and ask no more whether there is one.
            "recordsize" => {
                (number(value)? > attributes::PLAIN_BLOCK_MAX).then_some(attributes::LARGE_BLOCKS)
            }
            // `legacy` and `off` are 0.
            "dnodesize" => (number(value)? != 0).then_some(LARGE_DNODE),
            "longname" => (number(value)? != 0).then_some(LONGNAME),
            "dedup" if number(value)? != DEDUP_OFF => return Err(refused("deduplication is not supported")),
            "encryption" if number(value)? != encryption::OFF => {
                return Err(refused("encryption is not supported"));
            }
            name if IN_BYTES.contains(&name) && i64::try_from(number(value)?).is_err() => {
                let is_size = name == "volsize";
                let text = if is_size {
                    "volume size exceeds limit for this system"
                } else {
                    "numeric value is too large"
                };
                return Err(refused(text));
            }
            _ => None,
        };
        if !policy::is_possible(cx, feature).await? {
            return Err(refused("pool must be upgraded to set this property or value"));
        }
        if let Stored::Text(text) = value
            && text.len() >= ondisk::zap::VALUE_BYTES_MAX
        {
            return Err(refused("property value too long"));
        }
        if name.len() > pool::dsl::name::BYTES_MAX {
            return Err(refused("property name too long"));
        }
    }
    Ok(())
}

/// Refuses limits and reservations that do not fit a dataset that exists, or not each other: all of them are looked at
/// as they will be.
async fn check_limits(cx: &mut Syncer, head: Head, properties: &Properties) -> Result<(), OpError> {
    let (draft, want) = limits(cx, head, properties).await?;
    draft.set_aside(cx, &[want]).await
}

/// The same but for the room: how many bytes have to be set aside in which directory, and with which quotas.
async fn limits(
    cx: &mut Syncer,
    head: Head,
    properties: &Properties,
) -> Result<(space::Draft, (u64, u64)), OpError> {
    if properties.contains_key("volblocksize") {
        return Err(refused("property is read-only"));
    }
    let given = |name| properties.get(name).map(number).transpose();
    let (quota, refquota) = (given("quota")?, given("refquota")?);
    let (reservation, refreservation) = (given("reservation")?, given("refreservation")?);
    let dir = dir::load(&mut cx.mos, head.dir).await?;
    let phys = dataset::load(&mut cx.mos, head.object).await?;
    let reserved_before = dir::refreservation(&mut cx.mos, head.dir).await?;
    let own_refquota = dir::own_number(&mut cx.mos, dir.props, "refquota").await?.unwrap_or(0);

    let or_none = |quota: u64| if quota == 0 { u64::MAX } else { quota };
    let quota_after = or_none(quota.unwrap_or(dir.quota));
    let refquota_after = or_none(refquota.unwrap_or(own_refquota));
    if reservation.is_some_and(|bytes| bytes > quota_after)
        || refreservation.is_some_and(|bytes| bytes > quota_after.min(refquota_after))
    {
        return Err(OpError::NoSpace);
    }
    let reserved_after = refreservation.unwrap_or(reserved_before);
    let growth = space::growth_of_refreservation(reserved_before, reserved_after, phys.unique_bytes);
    let shrinkage = space::growth_of_refreservation(reserved_after, reserved_before, phys.unique_bytes);
    let used = dir.used_bytes.saturating_sub(shrinkage);
    if (quota.is_some() && quota_after < used.max(reservation.unwrap_or(dir.reserved)))
        || (refquota.is_some() && refquota_after < phys.referenced_bytes.max(reserved_after))
    {
        return Err(refused("size is less than current used or reserved space"));
    }
    let draft = space::Draft::with_quota(head.dir, quota.unwrap_or(dir.quota));
    let Some(reservation) = reservation else {
        return Ok((draft, (head.dir, growth)));
    };
    // What the reservation of the head takes comes out of the one of the directory first.
    let used = used.saturating_add(growth);
    if growth > 0 && used > quota_after {
        return Err(OpError::NoSpace);
    }
    let growth = used.max(reservation).saturating_sub(dir.used_bytes.max(dir.reserved));
    let above = if dir.parent == 0 { head.dir } else { dir.parent };
    Ok((draft, (above, growth)))
}

/// Stores the properties of a head, which were checked. `volsize` is not among them.
pub(super) async fn apply(cx: &mut Syncer, head: Head, properties: &Properties) -> Result<(), OpError> {
    for (name, value) in properties {
        match name.as_str() {
            "quota" => {
                let quota = number(value)?;
                dir::update(&mut cx.mos, head.dir, |phys| phys.quota = quota).await?;
            }
            "reservation" => account::set_reservation(&mut cx.mos, head.dir, number(value)?).await?,
            "refreservation" => set_refreservation(cx, head, number(value)?).await?,
            // Off, and that is what a dataset without a key is.
            "encryption" => {}
            _ => set_local(cx, head.dir, name, stored(value)).await?,
        }
    }
    Ok(())
}

async fn set_refreservation(cx: &mut Syncer, head: Head, bytes: u64) -> Result<(), OpError> {
    let before = dir::refreservation(&mut cx.mos, head.dir).await?;
    set_local(cx, head.dir, "refreservation", Value::from_u64(bytes)).await?;
    Ok(refreservation_changed(cx, head, before).await?)
}

/// Sets aside for a head what its reservation, which was `before`, now asks for.
async fn refreservation_changed(cx: &mut Syncer, head: Head, before: u64) -> Result<(), EngineError> {
    let now = dir::refreservation(&mut cx.mos, head.dir).await?;
    let unique = dataset::load(&mut cx.mos, head.object).await?.unique_bytes;
    let change = account::unused_refreservation(now, unique) - account::unused_refreservation(before, unique);
    let change = account::Delta::default().bytes(account::Kind::RefReserved, change);
    account::dir_change(&mut cx.mos, head.dir, change).await
}

/// A local value, which covers a received one.
async fn set_local(cx: &mut Syncer, dir: u64, name: &str, value: Value) -> Result<(), EngineError> {
    let mut props = dir::load(&mut cx.mos, dir).await?.props;
    if props == 0 {
        props = zap::create(&mut cx.mos, ObjectType::DSL_PROPS, 0).await?;
        dir::update(&mut cx.mos, dir, |phys| phys.props = props).await?;
    }
    zap::remove(&mut cx.mos, props, format!("{name}{SUFFIX_INHERIT}").as_str().into()).await?;
    zap::set(&mut cx.mos, props, name.into(), value).await
}

/// Size and block size of a volume, in bytes.
async fn shape(set: &mut MutSet) -> Result<(u64, u64), EngineError> {
    let size = zap::get_u64(set, VOLUME_PROPERTIES, SIZE).await?.unwrap_or(0);
    Ok((size, set.dnode(VOLUME_DATA).await?.data_block_bytes()))
}

/// Gives a new volume its size.
pub(super) async fn init_volume(edit: &mut Edit, size: u64, block: u32) -> Result<(), EngineError> {
    use crate::dmu::NewObject;
    edit.set.claim(VOLUME_DATA, NewObject::of(ObjectType::ZVOL).blocks(block)).await?;
    edit.set.claim(VOLUME_PROPERTIES, NewObject::of(ObjectType::ZVOL_PROP)).await?;
    zap::init(&mut edit.set, VOLUME_PROPERTIES, 0).await?;
    zap::set_u64(&mut edit.set, VOLUME_PROPERTIES, SIZE, size).await
}

/// A change of size that was found possible, and the reservation that goes with the new size.
pub(super) struct Resize {
    from: u64,
    to: u64,
    block: u64,
    refreservation: Option<u64>,
}

/// Checks a new size. A thick volume whose reservation was the one for its old size gets the one for the new.
async fn check_resize(
    cx: &mut Syncer,
    head: Head,
    to: u64,
    properties: &Properties,
) -> Result<Resize, OpError> {
    let phys = dataset::load(&mut cx.mos, head.object).await?;
    if dataset::kind(cx, head.object, &phys).await? != ObjsetType::Volume {
        return Err(refused("property does not apply to datasets of this type"));
    }
    // To open it for a change would move its intent log on, which has to be written then.
    let mut edit = Edit::open_as_it_is(cx, head.object).await?;
    let (from, block) = shape(&mut edit.set).await?;
    if to == 0 {
        return Err(refused("invalid volume size"));
    }
    if !to.is_multiple_of(block.max(1)) {
        return Err(refused("volume size must be a multiple of volume block size"));
    }
    let mut refreservation = None;
    if !properties.contains_key("refreservation") {
        let before = dir::refreservation(&mut cx.mos, head.dir).await?;
        let copies = policy(cx, head.dir).await?.copies;
        let block = u32::try_from(block).unwrap_or(u32::MAX);
        let stored = space::accounted_block(&cx.io.tree(), block.into());
        let of = |size| space::default_refreservation(size, block, copies, stored);
        if before != 0 && (before == of(from) || before == from) {
            refreservation = Some(if before == from { to } else { of(to) });
        }
    }
    Ok(Resize { from, to, block, refreservation })
}

/// Checks the size that a clone of snapshot `origin` is to have: not less than that, of which nothing is given up by it.
pub(super) async fn check_size_of_clone(
    cx: &mut Syncer,
    origin: u64,
    size: &Stored,
) -> Result<Resize, OpError> {
    let to = number(size)?;
    let phys = dataset::load(&mut cx.mos, origin).await?;
    if dataset::kind(cx, origin, &phys).await? != ObjsetType::Volume {
        return Err(refused("property does not apply to datasets of this type"));
    }
    if i64::try_from(to).is_err() {
        return Err(refused("volume size exceeds limit for this system"));
    }
    let mut set = Box::new(MutSet::open(cx.out.source(), origin, phys.bp).await?);
    let (from, block) = shape(&mut set).await?;
    if to < from {
        return Err(refused("a clone cannot be smaller than its snapshot; set 'volsize' when it is there"));
    }
    if !to.is_multiple_of(block.max(1)) {
        return Err(refused("volume size must be a multiple of volume block size"));
    }
    Ok(Resize { from, to, block, refreservation: None })
}

impl Resize {
    pub(super) async fn apply(self, cx: &mut Syncer, head: Head) -> Result<(), OpError> {
        let mut edit = Edit::open(cx, head.object).await?;
        zap::set_u64(&mut edit.set, VOLUME_PROPERTIES, SIZE, self.to).await?;
        // If it grows, too: other software may have been cut off after it had made it smaller and before it freed the rest.
        edit.set.truncate(VOLUME_DATA, self.from.min(self.to).div_ceil(self.block.max(1))).await?;
        edit.commit(cx).await?;
        if let Some(bytes) = self.refreservation {
            set_refreservation(cx, head, bytes).await?;
        }
        cx.changes.push(Change::Content(head.object));
        Ok(())
    }
}

/// See [`set`](super::set).
pub(super) fn set<'a>(
    cx: &'a mut Syncer,
    name: &'a str,
    properties: &'a Properties,
) -> BoxFuture<'a, Result<(), OpError>> {
    Box::pin(async move {
        check_possible(cx, properties).await?;
        if matches!(find::parse(cx, name)?.1, Part::Snapshot(_)) {
            let snapshot = find::snapshot(cx, name).await?.object;
            if properties.keys().any(|name| !name.contains(':')) {
                return Err(refused("this property can not be modified for snapshots"));
            }
            return Ok(set_on_snapshot(cx, snapshot, properties).await?);
        }
        let head = find::head(cx, name).await?;
        let mut properties = properties.clone();
        let resize = match properties.remove("volsize") {
            Some(size) => Some(check_resize(cx, head, number(&size)?, &properties).await?),
            None => None,
        };
        let mut all = properties.clone();
        if let Some(bytes) = resize.as_ref().and_then(|resize| resize.refreservation) {
            all.insert("refreservation".into(), Stored::Number(bytes));
        }
        check_limits(cx, head, &all).await?;
        if let Some(resize) = &resize {
            shrink::make_way(cx, head, resize.from.min(resize.to), resize.block).await?;
        }
        apply(cx, head, &properties).await?;
        if let Some(resize) = resize {
            Box::pin(resize.apply(cx, head)).await?;
        }
        tell_all_below(cx, head.dir, properties.keys().any(|name| CACHING.contains(&name.as_str()))).await
    })
}

/// Open volumes at and below `dir` may be concerned, and their snapshots if it `is_of_caches`.
async fn tell_all_below(cx: &mut Syncer, dir: u64, is_of_caches: bool) -> Result<(), OpError> {
    let change: fn(u64) -> Change = if is_of_caches { Change::Caching } else { Change::Properties };
    for (_, dir) in dir::tree(cx, dir).await? {
        let head = dir::load(&mut cx.mos, dir).await?.head_dataset;
        cx.changes.push(change(head));
    }
    Ok(())
}

/// Sets properties of a snapshot itself.
pub(super) async fn set_on_snapshot(
    cx: &mut Syncer,
    snapshot: u64,
    properties: &Properties,
) -> Result<(), EngineError> {
    if properties.is_empty() {
        return Ok(());
    }
    let mut props = dataset::load(&mut cx.mos, snapshot).await?.props;
    if props == 0 {
        props = zap::create(&mut cx.mos, ObjectType::DSL_PROPS, 0).await?;
        dataset::update(&mut cx.mos, snapshot, |phys| phys.props = props).await?;
    }
    for (name, value) in properties {
        zap::set(&mut cx.mos, props, name.as_str().into(), stored(value)).await?;
    }
    Ok(())
}

/// `zfs inherit`; with `received`, back to what a stream brought (`-S`).
pub fn inherit<'a>(
    cx: &'a mut Syncer,
    name: &'a str,
    property: &'a str,
    received: bool,
) -> BoxFuture<'a, Result<(), OpError>> {
    inherit_each(cx, vec![name], property, received, false)
}

/// The same for several datasets: all of them or none. A snapshot that is gone has nothing any more, and is passed over: among
/// thousands some may have been destroyed since they were listed.
pub fn inherit_all<'a>(
    cx: &'a mut Syncer,
    names: &'a [String],
    property: &'a str,
    received: bool,
) -> BoxFuture<'a, Result<(), OpError>> {
    inherit_each(cx, names.iter().map(String::as_str).collect(), property, received, true)
}

fn inherit_each<'a>(
    cx: &'a mut Syncer,
    names: Vec<&'a str>,
    property: &'a str,
    received: bool,
    may_be_gone: bool,
) -> BoxFuture<'a, Result<(), OpError>> {
    Box::pin(async move {
        let (mut there, mut wants) = (Vec::with_capacity(names.len()), Vec::new());
        for name in names {
            match check_inherit(cx, name, property, received).await {
                Err(OpError::NoDataset) if may_be_gone && name.contains('@') => continue,
                checked => wants.extend(checked?),
            }
            there.push(name);
        }
        space::Draft::default().set_aside(cx, &wants).await?;
        for name in there {
            inherit_one(cx, name, property, received).await?;
        }
        Ok(())
    })
}

/// Refuses what cannot be; how many bytes have to be set aside in which directory, if any may have to. Reads what
/// [`inherit_one`] will: what fails then, with others changed already, is the end of the pool.
async fn check_inherit(
    cx: &mut Syncer,
    name: &str,
    property: &str,
    received: bool,
) -> Result<Option<(u64, u64)>, OpError> {
    if matches!(find::parse(cx, name)?.1, Part::Snapshot(_)) {
        let snapshot = find::snapshot(cx, name).await?.object;
        let props = dataset::load(&mut cx.mos, snapshot).await?.props;
        if props != 0 {
            zap::get(&mut cx.mos, props, property.into()).await?;
        }
        return Ok(None);
    }
    let head = find::head(cx, name).await?;
    if ["quota", "reservation", "volsize", "volblocksize"].contains(&property) {
        return Err(OpError::Refused(format!("'{property}' property cannot be inherited")));
    }
    let props = dir::load(&mut cx.mos, head.dir).await?.props;
    if props != 0 {
        for suffix in ["", SUFFIX_INHERIT, SUFFIX_RECEIVED] {
            zap::get(&mut cx.mos, props, format!("{property}{suffix}").as_str().into()).await?;
        }
    }
    if property != "refreservation" || !received || props == 0 {
        return Ok(None);
    }
    // What a stream brought takes effect, and has to be there like any other.
    let key = format!("{property}{SUFFIX_RECEIVED}");
    let bytes = zap::get_u64(&mut cx.mos, props, &key).await?.unwrap_or(0);
    let coming = Properties::from([(property.to_owned(), Stored::Number(bytes))]);
    check_possible(cx, &coming).await?;
    let (_, want) = limits(cx, head, &coming).await?;
    Ok(Some(want))
}

fn inherit_one<'a>(
    cx: &'a mut Syncer,
    name: &'a str,
    property: &'a str,
    received: bool,
) -> BoxFuture<'a, Result<(), OpError>> {
    Box::pin(async move {
        if matches!(find::parse(cx, name)?.1, Part::Snapshot(_)) {
            let snapshot = find::snapshot(cx, name).await?.object;
            let props = dataset::load(&mut cx.mos, snapshot).await?.props;
            if props != 0 {
                zap::remove(&mut cx.mos, props, property.into()).await?;
            }
            return Ok(());
        }
        let head = find::head(cx, name).await?;
        let props = dir::load(&mut cx.mos, head.dir).await?.props;
        let before = dir::refreservation(&mut cx.mos, head.dir).await?;
        if props != 0 {
            let mark = format!("{property}{SUFFIX_INHERIT}");
            zap::remove(&mut cx.mos, props, property.into()).await?;
            zap::remove(&mut cx.mos, props, mark.as_str().into()).await?;
            let has_received =
                zap::get(&mut cx.mos, props, format!("{property}{SUFFIX_RECEIVED}").as_str().into()).await?;
            if has_received.is_some() && !received {
                // The mark is an empty string.
                zap::set(&mut cx.mos, props, mark.as_str().into(), Value::from_text("")).await?;
            }
        }
        if property == "refreservation" {
            refreservation_changed(cx, head, before).await?;
        }
        tell_all_below(cx, head.dir, CACHING.contains(&property)).await
    })
}

/// `zpool set`: properties of the pool, in the directory's `pool_props` or in the configuration. `bootfs` is a name, or the object
/// that is kept.
pub fn set_pool<'a>(cx: &'a mut Syncer, properties: &'a Properties) -> BoxFuture<'a, Result<(), OpError>> {
    Box::pin(async move {
        // May be refused: before anything is changed.
        let bootfs = match properties.get(BOOTFS) {
            Some(Stored::Text(name)) if !name.is_empty() => Some(bootable(cx, name).await?),
            _ => None,
        };
        for (name, value) in properties {
            if name == "multihost" {
                crate::open::multihost::set(cx, *value == Stored::Number(1));
            }
            if IN_CONFIG.contains(&name.as_str()) {
                let Stored::Text(text) = value else { return Err(refused("bad property value")) };
                if text.is_empty() || (name == "compatibility" && text == "off") {
                    cx.config.remove(name);
                } else {
                    cx.config.set(name, text.as_str());
                }
                cx.config_dirty = true;
                continue;
            }
            let object = match zap::get_u64(&mut cx.mos, DIRECTORY, POOL_PROPS).await? {
                Some(object) => object,
                None => {
                    let object = zap::create(&mut cx.mos, POOL_PROPERTIES, 0).await?;
                    zap::set_u64(&mut cx.mos, DIRECTORY, POOL_PROPS, object).await?;
                    object
                }
            };
            // An empty value of a user's property is none.
            if (name.contains(':') || name == BOOTFS) && *value == Stored::Text(String::new()) {
                zap::remove(&mut cx.mos, object, name.as_str().into()).await?;
                continue;
            }
            let value = match bootfs {
                Some(head) if name == BOOTFS => Value::from_u64(head),
                _ => stored(value),
            };
            zap::set(&mut cx.mos, object, name.as_str().into(), value).await?;
        }
        Ok(())
    })
}

/// The object of the file system of this name.
async fn bootable(cx: &mut Syncer, name: &str) -> Result<u64, OpError> {
    let head = find::head(cx, name).await?;
    let phys = dataset::load(&mut cx.mos, head.object).await?;
    match dataset::kind(cx, head.object, &phys).await? {
        ObjsetType::FileSystem => Ok(head.object),
        _ => Err(OpError::Refused(format!("'{name}' is not a file system"))),
    }
}

/// Where a head that is destroyed is the pool's `bootfs`, it has none any more: its object number may become another's.
pub(super) async fn forget_bootfs(cx: &mut Syncer, head: u64) -> Result<(), EngineError> {
    if let Some(object) = zap::get_u64(&mut cx.mos, DIRECTORY, POOL_PROPS).await?
        && zap::get_u64(&mut cx.mos, object, BOOTFS).await? == Some(head)
    {
        zap::remove(&mut cx.mos, object, BOOTFS.into()).await?;
    }
    Ok(())
}

/// Object type of the pool's properties.
const POOL_PROPERTIES: ObjectType = ObjectType(31);
