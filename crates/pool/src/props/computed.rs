//! Properties that nobody sets: space, ratios, guids, dates, and what a dataset was created with.
//!
//! What cannot be computed (the key of an encrypted file system is not loaded, what it was created with is damaged) is left
//! out, as `zfs get all` leaves it out. A volume is not to be had without its size: 0 bytes would be believed.
//! Facts: docs/format/mos.md §7, docs/format/zvol.md, docs/format/zpl.md §2.

use std::collections::BTreeMap;

use ondisk::{
    dsl::{DIR_USED_BREAKDOWN, dataset_flags, keys},
    zap::Value as ZapValue,
};

use super::Value;
use crate::{
    dmu::ReadError,
    dsl::{Dataset, DatasetKind, HeadKind},
    error::BlockErrorKind,
    volume::{self, Shape},
    zap::Zap,
};

/// Values by property name.
pub(super) type Computed = BTreeMap<&'static str, Value>;

/// Which properties are asked for. What nobody asks for is not computed where that would have to be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a>(pub(super) Option<&'a [&'a str]>);

impl Wanted<'_> {
    /// Whether this one is.
    pub(super) fn has(self, name: &str) -> bool {
        self.0.is_none_or(|names| names.contains(&name))
    }
}

/// First object of a file system: names its version and the choices made at creation.
const MASTER_NODE: u64 = 1;

/// Key of a dataset's list of redaction snapshots.
const REDACTED: &str = "com.delphix:redacted_datasets";

/// What a volume has in its object set, and nothing else can say.
pub(super) const OF_VOLUMES: [&str; 2] = ["volsize", "volblocksize"];

/// What the master node of a file system says: property, key, and what it is without an entry.
const OF_FILES: [(&str, &str, Option<u64>); 10] = [
    ("version", "VERSION", None),
    ("utf8only", "utf8only", Some(0)),
    ("normalization", "normalization", Some(0)),
    ("casesensitivity", "casesensitivity", Some(0)),
    ("defaultuserquota", "defaultuserquota", Some(0)),
    ("defaultgroupquota", "defaultgroupquota", Some(0)),
    ("defaultprojectquota", "defaultprojectquota", Some(0)),
    ("defaultuserobjquota", "defaultuserobjquota", Some(0)),
    ("defaultgroupobjquota", "defaultgroupobjquota", Some(0)),
    ("defaultprojectobjquota", "defaultprojectobjquota", Some(0)),
];

/// What is known of encryption.
const OF_KEYS: [&str; 5] = ["encryption", "keyformat", "pbkdf2iters", "keystatus", "encryptionroot"];

/// Bit of a bookmark's flags: it has space figures.
const BOOKMARK_HAS_SPACE: u64 = 1;

/// Computes what can be computed for `dataset`, and is wanted.
///
/// `refquota` and `refreservation` are the limits in effect, which decide over what is available.
pub(super) async fn compute(
    dataset: &Dataset,
    wanted: Wanted<'_>,
    refquota: u64,
    refreservation: u64,
) -> Result<Computed, ReadError> {
    let mut out = Computed::new();
    if let Some(word) = dataset.type_word() {
        out.insert("type", Value::Text(word.to_owned()));
    }
    number(&mut out, "createtxg", dataset.create_txg());
    number(&mut out, "guid", dataset.guid());
    if let Some(bookmark) = dataset.bookmark_phys() {
        number(&mut out, "creation", bookmark.creation_time);
        if let [_, flags, referenced, _, uncompressed, ..] = bookmark.extra[..]
            && flags & BOOKMARK_HAS_SPACE != 0
        {
            number(&mut out, "referenced", referenced);
            number(&mut out, "logicalreferenced", uncompressed);
        }
        return Ok(out);
    }
    data_state(dataset, wanted, &mut out).await?;
    match dataset.kind() {
        DatasetKind::Head => head(dataset, wanted, (refquota, refreservation), &mut out).await?,
        DatasetKind::Snapshot => snapshot(dataset, wanted, &mut out).await?,
        DatasetKind::Bookmark => {}
    }
    created_with(dataset, wanted, &mut out).await?;
    if OF_KEYS.iter().any(|name| wanted.has(name)) {
        encryption(dataset, &mut out).await?;
    }
    Ok(out)
}

fn number(out: &mut Computed, name: &'static str, value: u64) {
    out.insert(name, Value::Number(value));
}

/// Uncompressed to compressed, in hundredths; nothing at all is 1.00.
fn ratio(uncompressed: u64, compressed: u64) -> u64 {
    let hundredths = u128::from(uncompressed) * 100 / u128::from(compressed.max(1));
    if compressed == 0 { 100 } else { u64::try_from(hundredths).unwrap_or(u64::MAX) }
}

/// What heads and snapshots have.
async fn data_state(dataset: &Dataset, wanted: Wanted<'_>, out: &mut Computed) -> Result<(), ReadError> {
    let Some(phys) = dataset.phys() else { return Ok(()) };
    number(out, "creation", phys.creation_time);
    number(out, "referenced", phys.referenced_bytes);
    number(out, "logicalreferenced", phys.uncompressed_bytes);
    number(out, "refcompressratio", ratio(phys.uncompressed_bytes, phys.compressed_bytes));
    number(out, "objsetid", dataset.object());
    if wanted.has("written") {
        number(out, "written", dataset.written().await?);
    }
    if wanted.has("redact_snaps")
        && let Some(redacted) = dataset.extra().await?.get(REDACTED)
    {
        let guids: Vec<String> = redacted.integers().map(|guid| guid.to_string()).collect();
        out.insert("redact_snaps", Value::Text(guids.join(",")));
    }
    Ok(())
}

async fn snapshot(dataset: &Dataset, wanted: Wanted<'_>, out: &mut Computed) -> Result<(), ReadError> {
    let Some(phys) = dataset.phys() else { return Ok(()) };
    number(out, "used", phys.unique_bytes);
    number(out, "compressratio", ratio(phys.uncompressed_bytes, phys.compressed_bytes));
    number(out, "defer_destroy", u64::from(phys.flags & dataset_flags::DEFER_DESTROY != 0));
    if wanted.has("userrefs") {
        number(out, "userrefs", dataset.holds().await?.len() as u64);
    }
    if wanted.has("clones") {
        let clones = dataset.clones().await?;
        if !clones.is_empty() {
            out.insert("clones", Value::Text(clones.join(",")));
        }
    }
    Ok(())
}

async fn head(
    dataset: &Dataset,
    wanted: Wanted<'_>,
    (refquota, refreservation): (u64, u64),
    out: &mut Computed,
) -> Result<(), ReadError> {
    let Some(phys) = dataset.phys() else { return Ok(()) };
    let dir = dataset.dir().phys();
    number(out, "used", dir.used_bytes);
    number(out, "logicalused", dir.uncompressed_bytes);
    number(out, "compressratio", ratio(dir.uncompressed_bytes, dir.compressed_bytes));
    number(out, "quota", dir.quota);
    number(out, "reservation", dir.reserved);
    let mut available = dataset.available_in_dir();
    available = available.saturating_add(refreservation.saturating_sub(phys.unique_bytes));
    if refquota != 0 {
        available = available.min(refquota.saturating_sub(phys.referenced_bytes));
    }
    number(out, "available", available);
    if dir.flags & DIR_USED_BREAKDOWN != 0 {
        let [head, snapshots, children, children_reserved, refreserved] = dir.used_breakdown;
        number(out, "usedbydataset", head);
        number(out, "usedbysnapshots", snapshots);
        number(out, "usedbychildren", children.saturating_add(children_reserved));
        number(out, "usedbyrefreservation", refreserved);
    }
    if dataset.head_kind() == HeadKind::Filesystem {
        // Nothing here ever mounts one.
        number(out, "mounted", 0);
    }
    if wanted.has("origin")
        && let Some(origin) = dataset.origin().await?
    {
        out.insert("origin", Value::Text(origin));
    }
    let counted = [
        ("filesystem_count", keys::FILESYSTEM_COUNT),
        ("snapshot_count", keys::SNAPSHOT_COUNT),
        ("snapshots_changed", keys::SNAPSHOTS_CHANGED),
    ];
    if !counted.iter().any(|(name, _)| wanted.has(name)) {
        return Ok(());
    }
    let extra = dataset.dir().extra(dataset.dsl()).await?;
    for (name, key) in counted {
        // The date is followed by its nanoseconds.
        if let Some(value) = extra.get(key).and_then(|value| value.integers().next()) {
            number(out, name, value);
        }
    }
    Ok(())
}

/// What was chosen when the dataset was created and is kept in its own object set.
async fn created_with(dataset: &Dataset, wanted: Wanted<'_>, out: &mut Computed) -> Result<(), ReadError> {
    match dataset.head_kind() {
        HeadKind::Volume if OF_VOLUMES.iter().any(|name| wanted.has(name)) => {
            if let Some(Shape { size, block }) = shape(dataset).await? {
                number(out, "volsize", size);
                number(out, "volblocksize", block);
            }
        }
        HeadKind::Filesystem if OF_FILES.iter().any(|(name, ..)| wanted.has(name)) => {
            let Ok(set) = dataset.objset().await else { return Ok(()) };
            let Ok(master) = Zap::open_in(&set, MASTER_NODE).await else { return Ok(()) };
            for (name, key, default) in OF_FILES {
                let Ok(found) = master.get_u64(key).await else { continue };
                if let Some(value) = found.or(default) {
                    number(out, name, value);
                }
            }
        }
        HeadKind::Volume | HeadKind::Filesystem | HeadKind::Other => {}
    }
    Ok(())
}

/// That of a volume; none if a key would be needed, or not all of it was received yet.
async fn shape(dataset: &Dataset) -> Result<Option<Shape>, ReadError> {
    let read = async { volume::shape(dataset.objset().await?.as_ref()).await };
    match read.await {
        Ok(shape) => Ok(Some(shape)),
        Err(ReadError::Block(error)) if *error.kind() == BlockErrorKind::Encrypted => Ok(None),
        Err(_) if dataset.phys().is_some_and(|phys| phys.is_inconsistent()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// What is known of an encrypted dataset without its key.
async fn encryption(dataset: &Dataset, out: &mut Computed) -> Result<(), ReadError> {
    let dsl = dataset.dsl();
    let extra = dataset.dir().extra(dsl).await?;
    let Some(key) = extra.get(keys::CRYPTO_KEY).and_then(ZapValue::as_u64) else { return Ok(()) };
    let key = Zap::open_in(dsl.mos(), key).await?;
    for (name, entry) in
        [("encryption", "DSL_CRYPTO_SUITE"), ("keyformat", "keyformat"), ("pbkdf2iters", "pbkdf2iters")]
    {
        if let Some(value) = key.get_u64(entry).await? {
            number(out, name, value);
        }
    }
    // 1: unavailable. Keys cannot be loaded.
    number(out, "keystatus", 1);
    if let Some(root) = key.get_u64("DSL_CRYPTO_ROOT_DDOBJ").await? {
        out.insert("encryptionroot", Value::Text(dsl.dir(root).await?.name().to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn ratios_are_hundredths_and_never_divide_by_zero() {
        assert_eq!(super::ratio(0, 0), 100);
        assert_eq!(super::ratio(301, 100), 301);
        assert_eq!(super::ratio(u64::MAX, 1), u64::MAX);
    }
}
