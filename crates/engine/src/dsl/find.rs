//! From names to objects of the MOS, and whether a new name can be had.
//!
//! Facts: docs/format/mos.md §6; the rules for names are those of [`pool::dsl::name`].

use ondisk::objset::ObjsetType;
use pool::dsl::name::{self, Part};

use super::{OpError, dataset, dir, encryption};
use crate::{mos::zap, sync::Syncer};

/// Deepest nesting of datasets OpenZFS creates.
const NESTING_MAX: usize = 50;

/// A live dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Its directory.
    pub(super) dir: u64,
    /// The dataset.
    pub(super) object: u64,
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Snapshot {
    /// The live dataset it belongs to.
    pub(super) head: Head,
    /// The dataset.
    pub(super) object: u64,
    /// What stands behind the `@`, as it is stored.
    pub(super) name: String,
}

/// A name that is free, and its place.
#[derive(Clone, Debug)]
pub(super) struct Vacancy {
    /// The deepest directory above it that exists.
    pub(super) above: u64,
    /// Parents that are missing, topmost first.
    pub(super) missing: Vec<String>,
    /// Its own last component.
    pub(super) name: String,
}

/// Takes a full name of this pool apart: components below the pool, and what of the dataset is meant.
pub(super) fn parse<'a>(cx: &Syncer, full: &'a str) -> Result<(Vec<&'a str>, Part<'a>), OpError> {
    let parsed = name::parse(full).map_err(|reason| OpError::Refused(reason.to_string()))?;
    let mut components = parsed.dataset.split('/');
    if components.next() != Some(cx.name.as_str()) {
        return Err(OpError::NoDataset);
    }
    Ok((components.collect(), parsed.part))
}

/// The directory of a live dataset.
async fn directory(cx: &mut Syncer, path: &[&str]) -> Result<Head, OpError> {
    let Some(dir) = dir::walk(cx, path).await? else { return Err(OpError::NoDataset) };
    match dir::load(&mut cx.mos, dir).await?.head_dataset {
        0 => Err(OpError::NoDataset),
        object => Ok(Head { dir, object }),
    }
}

/// The live dataset of this name.
pub(super) async fn head(cx: &mut Syncer, full: &str) -> Result<Head, OpError> {
    match parse(cx, full)? {
        (path, Part::Head) => directory(cx, &path).await,
        _ => Err(OpError::Refused(format!("'{full}' is not a file system or volume"))),
    }
}

/// The snapshot of this name.
pub(super) async fn snapshot(cx: &mut Syncer, full: &str) -> Result<Snapshot, OpError> {
    let (path, Part::Snapshot(last)) = parse(cx, full)? else {
        return Err(OpError::Refused(format!("'{full}' is not a snapshot")));
    };
    let head = directory(cx, &path).await?;
    snapshot_of(cx, head, last).await?.ok_or(OpError::NoDataset)
}

/// The snapshot of a live dataset with this last name: with just this, or with one that is the same for the dataset.
pub(super) async fn snapshot_of(
    cx: &mut Syncer,
    head: Head,
    name: &str,
) -> Result<Option<Snapshot>, OpError> {
    let phys = dataset::load(&mut cx.mos, head.object).await?;
    if phys.snap_names == 0 {
        return Ok(None);
    }
    if let Some(object) = zap::get_u64(&mut cx.mos, phys.snap_names, name).await? {
        return Ok(Some(Snapshot { head, object, name: name.to_owned() }));
    }
    if !phys.ignores_case() {
        return Ok(None);
    }
    let names = dataset::snapshots(&mut cx.mos, &phys).await?;
    let found = names.into_iter().find(|(other, _)| phys.is_same_name(other, name));
    Ok(found.map(|(name, object)| Snapshot { head, object, name }))
}

/// Checks that a dataset of this name can be made: the name is legal and free, and what is above it can have
/// children. Without `parents` the parent must exist.
pub(super) async fn vacancy(cx: &mut Syncer, full: &str, parents: bool) -> Result<Vacancy, OpError> {
    let (path, Part::Head) = parse(cx, full)? else {
        return Err(OpError::Refused("invalid character '@' in name".into()));
    };
    let Some((last, above)) = path.split_last() else { return Err(OpError::Exists) };
    if let Some(component) = path.iter().find(|component| component.starts_with('%')) {
        return Err(OpError::Refused(format!("invalid character '%' in name '{component}'")));
    }
    if path.len() >= NESTING_MAX {
        return Err(OpError::Refused(format!("name is nested more than {NESTING_MAX} deep")));
    }
    if dir::walk(cx, &path).await?.is_some() {
        return Err(OpError::Exists);
    }
    let mut known = above.len();
    let at = loop {
        match dir::walk(cx, &above[..known]).await? {
            Some(at) => break at,
            None => known -= 1,
        }
    };
    if known < above.len() && !parents {
        return Err(OpError::NoParent);
    }
    let head = dir::load(&mut cx.mos, at).await?.head_dataset;
    let phys = dataset::load(&mut cx.mos, head).await?;
    if dataset::kind(cx, head, &phys).await? == ObjsetType::Volume {
        return Err(OpError::Refused("parent is not a filesystem".into()));
    }
    if known < above.len() {
        encryption::check_missing(cx, at).await?;
    }
    let missing = above[known..].iter().map(|name| (*name).to_owned()).collect();
    Ok(Vacancy { above: at, missing, name: (*last).to_owned() })
}
