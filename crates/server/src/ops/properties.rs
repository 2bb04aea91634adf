//! `zfs set` and `zfs inherit`, and what properties given to `create` and `clone` become.
//!
//! Words become values in `pool::props::parse`; here is what takes a pool to know: whether its features allow the
//! value, what `auto` comes to for this volume, and that a volume's reservation grows with it.

use std::collections::BTreeMap;

use engine::dsl::{self, OpError, Properties, Stored};
use futures_util::{StreamExt as _, stream};
use pool::{
    Pool,
    dsl::{Dataset, DatasetKind, HeadKind, LookupError},
    features::Feature,
    props::{
        Access, PropertySet, Types, Value,
        parse::{self, Moment, ParseError, Parsed},
        table,
    },
    space::{volume_reservation, volume_space},
};

use super::{
    Answer, Assignment, Failure, Held, closed,
    create::set_kept,
    cut_off::{self, Reach, Setting},
    cx::Cx,
    pool_of, upgrade,
};
use crate::{
    host::chain,
    shares::{check, property},
};

/// Checksums and compressions that a pool must have a feature for: (property, number, guid of the feature).
const NEED_FEATURES: [(&str, u64, &str); 6] = [
    ("checksum", 11, "org.illumos:sha512"),
    ("checksum", 12, "org.illumos:skein"),
    ("checksum", 13, "org.illumos:edonr"),
    ("checksum", 14, "org.openzfs:blake3"),
    ("compression", 15, "org.illumos:lz4_compress"),
    ("compression", 16, "org.freebsd:zstd_compress"),
];
/// Low bits of a compression's number: the algorithm, without its level.
const ALGORITHM: u64 = 0x7f;
/// `sync=always`, as it is stored.
const SYNC_ALWAYS: u64 = 1;
/// Largest `recordsize` that every pool can have, in bytes.
const PLAIN_RECORD_MAX: u64 = 128 << 10;

/// Snapshots whose properties are read together.
const SNAPSHOTS_AT_ONCE: usize = 32;

/// Properties, understood.
#[derive(Debug, Default)]
pub(crate) struct Given {
    pub(crate) values: BTreeMap<String, Value>,
    /// `refreservation=auto`
    pub(crate) auto: bool,
}

impl Given {
    /// A number among them.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.values.get(name).and_then(Value::as_number)
    }

    /// For the engine.
    pub(crate) fn stored(self) -> Properties {
        let stored = |value| match value {
            Value::Number(number) => Stored::Number(number),
            Value::Text(text) => Stored::Text(text),
        };
        self.values.into_iter().map(|(name, value)| (name, stored(value))).collect()
    }
}

/// Understands properties for a dataset of this kind.
///
/// # Errors
/// The reason, to stand behind `cannot set property for 'x': ` or `cannot create 'x': `.
pub(crate) fn understand(
    pool: &Pool,
    assignments: &[Assignment],
    types: Types,
    moment: Moment,
) -> Result<Given, String> {
    let mut given = Given::default();
    for (name, text) in assignments {
        let parsed = parse::dataset(name, text, types, moment).map_err(|error| error.to_string())?;
        match parsed {
            Parsed::Auto => given.auto = true,
            Parsed::Value(name, value) => {
                allowed(pool, &name, &value)?;
                if given.values.insert(name.clone(), value).is_some() {
                    return Err(format!("property '{name}' specified multiple times"));
                }
            }
        }
    }
    Ok(given)
}

/// Whether this version can do what the value asks for, and understands what is its own.
///
/// # Errors
/// It cannot, or does not.
pub(crate) fn supported(name: &str, value: &Value) -> Result<(), String> {
    match (name, value) {
        ("dedup" | "encryption", Value::Number(2)) | ("keyformat" | "pbkdf2iters", Value::Number(0)) => {
            Ok(())
        }
        ("keylocation" | "mlslabel", Value::Text(text)) if text == "none" => Ok(()),
        ("dedup", _) => Err("deduplication is not supported by this version; leave 'dedup' off".to_owned()),
        ("encryption" | "keyformat" | "pbkdf2iters" | "keylocation", _) => {
            Err("encryption is not supported by this version".to_owned())
        }
        ("mlslabel", _) => Err("'mlslabel' is not supported by this version".to_owned()),
        ("filesystem_limit" | "snapshot_limit", Value::Number(limit)) if *limit != u64::MAX => Err(format!(
            "'{name}' is not supported by this version, which would not keep it; leave it 'none'"
        )),
        (name, Value::Text(text)) => check::of_dataset(name, text),
        _ => Ok(()),
    }
}

/// The feature a pool must have for this value.
pub(crate) fn feature_of(name: &str, value: &Value) -> Option<&'static str> {
    let number = value.as_number()?;
    let number = match name {
        "recordsize" => return (number > PLAIN_RECORD_MAX).then_some("org.open-zfs:large_blocks"),
        // `legacy` and `off` are 0.
        "dnodesize" => return (number != 0).then_some("org.zfsonlinux:large_dnode"),
        "longname" => return (number != 0).then_some("org.zfsonlinux:longname"),
        "compression" => number & ALGORITHM,
        _ => number,
    };
    NEED_FEATURES.iter().find(|(of, value, _)| *of == name && *value == number).map(|(.., guid)| *guid)
}

/// Whether this version and the pool's features can do what the value asks for.
fn allowed(pool: &Pool, name: &str, value: &Value) -> Result<(), String> {
    supported(name, value)?;
    match feature_of(name, value) {
        Some(guid) if !pool.features().iter().any(|feature| feature.guid == guid) => {
            let feature = Feature::by_guid(guid);
            let lacking = upgrade::lacking(pool, feature.as_slice());
            let remedy = upgrade::permit(upgrade::compatibility(pool), &lacking).err().unwrap_or_else(|| {
                let short = feature.map_or(guid, |feature| feature.name);
                format!("to allow it: 'zpool set feature@{short}=enabled {}'", pool.name())
            });
            Err(format!("pool and or dataset must be upgraded to set this property or value\n{remedy}"))
        }
        _ => Ok(()),
    }
}

/// The dataset of this name in `pool`.
pub(crate) async fn lookup(pool: &Pool, name: &str) -> Result<Dataset, Failure> {
    let dsl = pool
        .dsl()
        .await
        .map_err(|error| Failure::because(&format!("cannot open '{name}'"), chain(&error)))?;
    dsl.lookup(name).await.map_err(|error| match error {
        LookupError::NotFound { .. } => Failure::no_dataset(name),
        other => Failure::new(chain(&other)),
    })
}

/// A dataset's properties as they are in effect.
pub(crate) async fn effective(dataset: &Dataset) -> Result<PropertySet, Failure> {
    let what = || format!("cannot open '{}'", dataset.name());
    dataset.properties().await.map_err(|error| Failure::because(&what(), chain(&error)))
}

/// `zfs set`: all of them or none.
pub(crate) async fn set(
    cx: &Cx<'_>,
    name: &str,
    assignments: &[Assignment],
    force: bool,
) -> Result<Answer, Failure> {
    let what = format!("cannot set property for '{name}'");
    let held = cx.host.writable(pool_of(name)).await.map_err(|error| error.of_dataset(&what, name))?;
    let view = held.view();
    let dataset = lookup(&view, name).await?;
    let types = match dataset.kind() {
        DatasetKind::Snapshot => Types::SNAPSHOT,
        DatasetKind::Bookmark => {
            return Err(Failure::because(&what, "operation not applicable to datasets of this type"));
        }
        DatasetKind::Head if dataset.head_kind() == HeadKind::Volume => Types::VOLUME,
        DatasetKind::Head => Types::FILESYSTEM,
    };
    let mut given =
        understand(&view, assignments, types, Moment::Later).map_err(|why| Failure::because(&what, why))?;
    if types == Types::SNAPSHOT
        && let Some(name) = given.values.keys().find(|name| !table::is_user(name))
    {
        return Err(Failure::because(&what, ParseError::WrongType(name.clone())));
    }
    if types == Types::VOLUME {
        volume(&view, &dataset, &mut given).await.map_err(|why| Failure::because(&what, why))?;
    }
    let mut warnings: Vec<String> = Vec::new();
    for setting in settings(&given) {
        let spared = cut_off::spare(cx, &view, &dataset, setting, Reach::default(), force).await;
        warnings.extend(spared.map_err(|why| Failure::because(&what, why))?);
    }
    let asks_for_space =
        ["refreservation", "reservation"].iter().any(|name| given.values.contains_key(*name));
    let limits_space = ["quota", "refquota"].iter().any(|name| given.values.contains_key(*name));
    let must_be_stable = given.number("sync") == Some(SYNC_ALWAYS);
    let (target, properties) = (name.to_owned(), given.stored());
    let changed =
        cx.try_change(&held, move |cx| Box::pin(async move { dsl::set(cx, &target, &properties).await }));
    changed.await.map_err(|error| match error {
        OpError::NoSpace if asks_for_space => Failure::because(&what, "size is greater than available space"),
        OpError::NoSpace if limits_space => {
            Failure::because(&what, "size is less than current used or reserved space")
        }
        other => super::failure::refused(&what, &other),
    })?;
    warnings.extend(cx.served(&held).await);
    if must_be_stable {
        warnings.extend(made_stable(&held).await);
    }
    Ok(Answer { warnings, ..Answer::default() })
}

/// Whether everything that is written to a dataset must be stable before it is acknowledged, as far as is known.
async fn is_always_stable(held: &Held, name: &str) -> bool {
    let view = held.view();
    let Ok(dataset) = lookup(&view, name).await else { return true };
    !effective(&dataset).await.is_ok_and(|properties| properties.number("sync") != Some(SYNC_ALWAYS))
}

/// When `sync=always` has come into effect: whoever relies on it now does so for what was acknowledged until then, too. Says
/// why that is not stable, if so.
async fn made_stable(held: &Held) -> Option<String> {
    let error = held.engine()?.sync().await.err()?;
    Some(format!("what was written before 'sync' changed is not stable yet: {error}"))
}

/// Those of them by which clients may lose a disk or an export, or what they take for stable.
fn settings(given: &Given) -> Vec<Setting<'_>> {
    let ours = given.values.iter().filter_map(|(name, value)| match value {
        Value::Text(text) if property::OF_VOLUMES.contains(&name.as_str()) => {
            Some(Setting::Ours(name.as_str(), Some(text.as_str())))
        }
        _ => None,
    });
    let volmode = cut_off::is_no_volmode(given.number("volmode")).then_some(Setting::NoVolmode);
    ours.chain(volmode).collect()
}

/// What a volume's size, block and reservation have to do with each other.
async fn volume(view: &Pool, dataset: &Dataset, given: &mut Given) -> Result<(), String> {
    // All else can be set where these cannot be read.
    if !given.auto && !given.values.contains_key("volsize") {
        return Ok(());
    }
    let current = dataset.properties().await.map_err(|error| chain(&error))?;
    let number = |name: &str| current.number(name).unwrap_or(0);
    let (size, block) = (number("volsize"), number("volblocksize").max(1));
    let copies = given.number("copies").unwrap_or_else(|| number("copies")).max(1);
    let needs = |size: u64| volume_reservation(&view.tree(), size, block, copies);
    let new_size = given.number("volsize").unwrap_or(size);
    if !new_size.is_multiple_of(block) {
        let block = pool::props::value::bytes(block);
        return Err(format!("'volsize' must be a multiple of volume block size ({block})"));
    }
    if given.auto {
        given.values.insert("refreservation".to_owned(), Value::Number(needs(new_size)));
        return Ok(());
    }
    // A volume that could always be written in full still can at its new size. It may need more by now than it did when it
    // was made: other devices came. What somebody reserved beyond that stays.
    let reserved = number("refreservation");
    let was_full = reserved != 0 && reserved >= size;
    if new_size != size && was_full && !given.values.contains_key("refreservation") {
        // `zpool add` advises more than `auto` where sectors are larger than blocks: that is kept up as well.
        let takes = |size: u64| volume_space(&view.tree(), &[], 0, size, block, copies);
        let (had, gets) = match takes(size) {
            had if reserved >= had => (had, takes(new_size)),
            _ => (needs(size), needs(new_size)),
        };
        let wanted = gets.saturating_add(reserved.saturating_sub(had));
        // Who makes it smaller wants room, though it may have had less reserved than it needs.
        let wanted = if new_size < size { wanted.min(reserved) } else { wanted };
        given.values.insert("refreservation".to_owned(), Value::Number(wanted));
    }
    Ok(())
}

/// Those of these datasets that may have a property themselves. Most snapshots have not, even where they have others: all that
/// are kept are read once more in one transaction group, which nobody's writes get past.
async fn that_may_lose(
    property: &str,
    datasets: Vec<Dataset>,
    is_for_snapshots: bool,
) -> Result<Vec<Dataset>, Failure> {
    let reads = datasets.into_iter().map(|dataset| {
        let property = property.to_owned();
        async move {
            let may_lose = match dataset.kind() {
                DatasetKind::Head => Ok(true),
                DatasetKind::Snapshot if is_for_snapshots => dataset.has_own(&property).await,
                DatasetKind::Snapshot | DatasetKind::Bookmark => Ok(false),
            };
            (dataset, may_lose)
        }
    });
    let reads: Vec<_> = reads.collect();
    let mut reads = stream::iter(reads).buffered(SNAPSHOTS_AT_ONCE);
    let mut kept = Vec::new();
    while let Some((dataset, may_lose)) = reads.next().await {
        let what = || format!("cannot inherit {property} for '{}'", dataset.name());
        if may_lose.map_err(|error| Failure::because(&what(), chain(&error)))? {
            kept.push(dataset);
        }
    }
    Ok(kept)
}

/// `zfs inherit`
pub(crate) async fn inherit(
    cx: &Cx<'_>,
    name: &str,
    property: &str,
    (recursive, received): (bool, bool),
    force: bool,
) -> Result<Answer, Failure> {
    let row = table::dataset(property);
    match row {
        None if !table::is_user(property) => {
            return Err(Failure { code: 2, ..Failure::new(format!("invalid property '{property}'")) });
        }
        Some(row) if row.access == Access::ReadOnly => {
            return Err(Failure::new(format!("{} property is read-only", row.name)));
        }
        Some(row) if row.access != Access::Inherit && !received => {
            let mut message = format!("'{}' property cannot be inherited", row.name);
            if matches!(
                row.name,
                "quota"
                    | "reservation"
                    | "refquota"
                    | "refreservation"
                    | "filesystem_limit"
                    | "snapshot_limit"
            ) {
                message.push_str(&format!("\nuse 'zfs set {}=none' to clear", row.name));
            }
            return Err(Failure::new(message));
        }
        Some(row) if received && matches!(row.name, "volsize" | "version") => {
            return Err(Failure::new(format!(
                "'{}' property cannot be reverted to a received value",
                row.name
            )));
        }
        _ => {}
    }
    let property = row.map_or(property, |row| row.name).to_owned();
    let what = format!("cannot inherit {property} for '{name}'");
    let held = cx.host.writable(pool_of(name)).await.map_err(|error| error.of_dataset(&what, name))?;
    let view = held.view();
    let dataset = lookup(&view, name).await?;
    let inherited = match property.as_str() {
        "volmode" => Some(Setting::VolmodeAbove),
        ours if property::OF_VOLUMES.contains(&ours) => Some(Setting::Ours(ours, None)),
        _ => None,
    };
    let mut warnings: Vec<String> = Vec::new();
    if let Some(setting) = inherited {
        let reach = Reach { recursive, received };
        let spared = cut_off::spare(cx, &view, &dataset, setting, reach, force).await;
        warnings.extend(spared.map_err(|why| Failure::because(&what, why))?);
    }
    let mut datasets = vec![dataset.clone()];
    if recursive {
        let dsl = view.dsl().await.map_err(|error| Failure::because(&what, chain(&error)))?;
        let (below, problems) = dsl.tree(dataset).await;
        if let Some(problem) = problems.first() {
            return Err(Failure::because(&what, chain(problem)));
        }
        let is_for_snapshots = row.is_none_or(|row| row.types.meets(Types::SNAPSHOT));
        datasets = that_may_lose(&property, below, is_for_snapshots).await?;
    }
    let kept = match property.as_str() {
        property::LUN | property::LU => closed::of_unplaced(&view, &datasets, &property).await,
        _ => Ok(BTreeMap::new()),
    };
    let kept = kept.map_err(|error| Failure::because(&what, chain(&error)))?;
    warnings.extend(closed::said_of_all(&kept, "volumes", "what was a logical unit"));
    let names: Vec<String> = datasets.iter().map(|dataset| dataset.name().to_owned()).collect();
    let (is_sync, may_differ) = (property == "sync", recursive && received);
    cx.change(&held, &what, move |cx| {
        Box::pin(async move {
            dsl::inherit_all(cx, &names, &property, received).await?;
            set_kept(cx, &kept).await
        })
    })
    .await?;
    warnings.extend(cx.served(&held).await);
    // What is below has the same, unless it has gone back to a value of its own.
    if is_sync && (may_differ || is_always_stable(&held, name).await) {
        warnings.extend(made_stable(&held).await);
    }
    Ok(Answer { warnings, ..Answer::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// They were stored where the pool lacks it. OpenZFS asks when they are set, and takes up the feature when it writes the
    /// first such file: there is nobody left then to be told that it cannot.
    #[test]
    fn what_files_are_to_be_written_with_names_the_feature_that_takes() {
        for (name, text, needed) in [
            ("recordsize", "128K", None),
            ("recordsize", "256K", Some("org.open-zfs:large_blocks")),
            ("dnodesize", "legacy", None),
            ("dnsize", "auto", Some("org.zfsonlinux:large_dnode")),
            ("dnodesize", "1k", Some("org.zfsonlinux:large_dnode")),
            ("longname", "off", None),
            ("longname", "on", Some("org.zfsonlinux:longname")),
            ("compression", "zstd-9", Some("org.freebsd:zstd_compress")),
            ("sync", "always", None),
        ] {
            let parsed = parse::dataset(name, text, Types::FILESYSTEM, Moment::Later).unwrap();
            let Parsed::Value(name, value) = parsed else { panic!("{name}={text}") };
            assert_eq!(feature_of(&name, &value), needed, "{name}={text}");
        }
    }
}
