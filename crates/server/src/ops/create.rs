//! `zfs create`, `clone`, `promote` and `rename`: datasets with new names.

use std::collections::BTreeMap;

use engine::{
    dsl::{self, NewVolume, OpError, Properties, Stored},
    sync::Syncer,
};
use pool::{
    dsl::{Dataset, DatasetKind, HeadKind, LookupError},
    props::{Types, Value, parse::Moment, value::bytes},
    space::volume_reservation,
};

use super::{
    Answer, Assignment, CreateVolume, Failure,
    closed::{self, Kept},
    cx::Cx,
    failure::{PoolError, refused},
    held::Held,
    names, pool_of,
    properties::{Given, lookup, understand},
};
use crate::host::chain;

/// Block of a volume unless another is asked for, in bytes: as OpenZFS has it since 2.2.
const BLOCK_DEFAULT: u64 = 16 << 10;

/// The pool of a dataset to be, and whether its parent can have children.
async fn home(cx: &Cx<'_>, what: &str, name: &str, parents: bool) -> Result<Home, Failure> {
    names::dataset(name).map_err(|why| Failure::because(what, why))?;
    let pool = pool_of(name);
    let held = match cx.host.writable(pool).await {
        Ok(held) => held,
        Err(PoolError::Missing(hint)) => {
            return Err(Failure::because(what, format_args!("no such pool '{pool}'{hint}")));
        }
        Err(error) => return Err(error.of_dataset(what, name)),
    };
    let view = held.view();
    let dsl = view.dsl().await.map_err(|error| Failure::because(what, chain(&error)))?;
    match dsl.lookup(name).await {
        Ok(_) if parents => return Ok(Home::Exists),
        Ok(_) => return Err(Failure::because(what, OpError::Exists)),
        Err(LookupError::NotFound { .. }) => {}
        Err(error) => return Err(Failure::because(what, chain(&error))),
    }
    // The nearest ancestor there is decides whether there may be anything below it.
    let mut ancestor = name;
    while let Some((above, _)) = ancestor.rsplit_once('/') {
        ancestor = above;
        match dsl.lookup(ancestor).await {
            Ok(dataset) if dataset.head_kind() == HeadKind::Volume => {
                return Err(Failure::because(what, "parent is not a filesystem"));
            }
            Ok(dataset) => return Ok(Home::In(held, dataset)),
            Err(LookupError::NotFound { .. }) if parents => {}
            Err(LookupError::NotFound { .. }) => return Err(Failure::because(what, OpError::NoParent)),
            Err(error) => return Err(Failure::because(what, chain(&error))),
        }
    }
    Err(Failure::because(what, OpError::NoParent))
}

/// Where a new dataset goes.
enum Home {
    /// In this pool, below this ancestor.
    In(std::sync::Arc<Held>, Dataset),
    /// It is there already, and that is well.
    Exists,
}

/// Whether what is to be set aside fits: what the engine asks too, when it is done in earnest.
fn fits(given: &Given, room: u64) -> Result<(), OpError> {
    let bytes = |name| given.number(name).unwrap_or(0);
    let within = |limit: u64, bytes: u64| limit == 0 || bytes <= limit;
    let reserved = bytes("refreservation");
    let set_aside = bytes("reservation").max(reserved);
    let limits = within(bytes("quota"), set_aside) && within(bytes("refquota"), reserved);
    if limits && room > 0 && set_aside <= room { Ok(()) } else { Err(OpError::NoSpace) }
}

/// `zfs create -V`
pub(crate) async fn volume(cx: &Cx<'_>, new: CreateVolume) -> Result<Answer, Failure> {
    let CreateVolume { name, size, properties, sparse, parents, dry_run } = new;
    let what = format!("cannot create '{name}'");
    let Home::In(held, above) = home(cx, &what, &name, parents).await? else {
        return Ok(Answer::default());
    };
    let view = held.view();
    let mut given = understand(&view, &properties, Types::VOLUME, Moment::Creating)
        .map_err(|why| Failure::because(&what, why))?;
    let asked = given.values.remove("volblocksize").and_then(|value| value.as_number());
    let block = asked.unwrap_or(BLOCK_DEFAULT);
    if given.values.contains_key("volsize") {
        return Err(Failure::because(&what, "property 'volsize' specified multiple times"));
    }
    if size == 0 {
        return Err(Failure::because(&what, "volume size cannot be zero"));
    }
    let too_large = || Failure::because(&what, "volume size exceeds limit for this system");
    let size = size.checked_next_multiple_of(block).filter(|size| *size < 1 << 63).ok_or_else(too_large)?;
    let copies = match given.number("copies") {
        Some(copies) => copies,
        None => inherited_copies(&held, &name).await.map_err(|why| Failure::because(&what, why))?,
    };
    let mut decided = vec![("volsize".to_owned(), size.to_string())];
    decided.extend(asked.map(|block| ("volblocksize".to_owned(), block.to_string())));
    let thick = given.auto || !sparse && !given.values.contains_key("refreservation");
    if thick {
        let needed = volume_reservation(&view.tree(), size, block, copies);
        given.values.insert("refreservation".to_owned(), Value::Number(needed));
        decided.push(("refreservation".to_owned(), needed.to_string()));
    }
    let sector =
        view.tree().tops.iter().filter_map(|top| top.top.as_ref()).map(|top| 1u64 << top.ashift).max();
    let mut warnings = Vec::new();
    if let Some(sector) = sector.filter(|sector| *sector > block) {
        warnings.push(format!(
            "volblocksize ({}) is less than the size the devices write at once ({}): every block takes that much",
            bytes(block),
            bytes(sector)
        ));
    }
    if dry_run {
        fits(&given, above.available_in_dir()).map_err(|error| refused(&what, &error))?;
        return Ok(Answer { warnings, properties: decided, ..Answer::default() });
    }
    // At most 128 KiB, by its parser.
    let block = u32::try_from(block).unwrap_or(u32::MAX);
    let new = NewVolume { name: name.clone(), size, block, properties: given.stored(), parents };
    cx.change(&held, &what, move |cx| Box::pin(async move { Box::pin(dsl::create_volume(cx, &new)).await }))
        .await?;
    warnings.extend(cx.served(&held).await);
    Ok(Answer { warnings, properties: decided, ..Answer::default() })
}

/// What `copies` a new dataset will inherit.
async fn inherited_copies(held: &Held, name: &str) -> Result<u64, String> {
    let view = held.view();
    let dsl = view.dsl().await.map_err(|error| chain(&error))?;
    let mut ancestor = name;
    while let Some((above, _)) = ancestor.rsplit_once('/') {
        ancestor = above;
        if let Ok(dataset) = dsl.lookup(ancestor).await {
            let properties = dataset.properties().await.map_err(|error| chain(&error))?;
            return Ok(properties.number("copies").unwrap_or(1).clamp(1, 3));
        }
    }
    Ok(1)
}

/// `zfs create`
pub(crate) async fn filesystem(
    cx: &Cx<'_>,
    name: &str,
    properties: &[Assignment],
    parents: bool,
    dry_run: bool,
) -> Result<Answer, Failure> {
    let what = format!("cannot create '{name}'");
    let Home::In(held, above) = home(cx, &what, name, parents).await? else {
        return Ok(Answer::default());
    };
    let given = understand(&held.view(), properties, Types::FILESYSTEM, Moment::Creating)
        .map_err(|why| Failure::because(&what, why))?;
    if dry_run {
        fits(&given, above.available_in_dir()).map_err(|error| refused(&what, &error))?;
        return Ok(Answer::default());
    }
    let (name, properties) = (name.to_owned(), given.stored());
    cx.change(&held, &what, move |cx| {
        Box::pin(async move { dsl::create_filesystem(cx, &name, &properties, parents).await })
    })
    .await?;
    Ok(Answer::default())
}

/// `zfs clone`
pub(crate) async fn clone(
    cx: &Cx<'_>,
    snapshot: &str,
    name: &str,
    properties: &[Assignment],
    parents: bool,
) -> Result<Answer, Failure> {
    let what = format!("cannot create '{name}'");
    names::snapshot(snapshot).map_err(|why| Failure::because(&format!("cannot open '{snapshot}'"), why))?;
    let held =
        cx.host.writable(pool_of(snapshot)).await.map_err(|error| error.of_dataset(&what, snapshot))?;
    let origin = lookup(&held.view(), snapshot).await?;
    names::dataset(name).map_err(|why| Failure::because(&what, why))?;
    if pool_of(snapshot) != pool_of(name) {
        return Err(Failure::because(&what, "source and target pools differ"));
    }
    let Home::In(held, above) = home(cx, &what, name, parents).await? else { return Ok(Answer::default()) };
    let types = if origin.head_kind() == HeadKind::Volume { Types::VOLUME } else { Types::FILESYSTEM };
    let mut given = understand(&held.view(), properties, types, Moment::Later)
        .map_err(|why| Failure::because(&what, why))?;
    let wanted = given.number("volsize");
    if given.auto || wanted.is_some() {
        let of_origin = super::properties::effective(&origin).await?;
        let had = of_origin.number("volsize").unwrap_or(0);
        let block = held_block(&origin).await.unwrap_or(BLOCK_DEFAULT).max(1);
        let size = wanted.unwrap_or(had);
        if !size.is_multiple_of(block) {
            let why = format!("'volsize' must be a multiple of volume block size ({})", bytes(block));
            return Err(Failure::because(&what, why));
        }
        if size < had {
            let why = format!(
                "'volsize' of a clone cannot be less than that of its snapshot ({})\nto make it smaller: clone it, then 'zfs set \
                 volsize={size} {name}'",
                bytes(had)
            );
            return Err(Failure::because(&what, why));
        }
        if given.auto {
            let copies = match given.number("copies") {
                Some(copies) => copies,
                None => inherited_copies(&held, name).await.map_err(|why| Failure::because(&what, why))?,
            };
            let needed = volume_reservation(&held.view().tree(), size, block, copies);
            given.values.insert("refreservation".to_owned(), Value::Number(needed));
        }
    }
    let mut warnings = Vec::new();
    if origin.may_be_volume() {
        let said: Vec<&str> = given.values.keys().map(String::as_str).collect();
        let kept = closed::of_clone(&held.view(), &origin, &above, given.number("volmode"), &said).await;
        let kept = kept.map_err(|error| Failure::because(&what, chain(&error)))?;
        warnings.extend(closed::said(name, &kept, origin.live().name()));
        let kept = kept.properties().map(|(property, text)| (property.to_owned(), Value::Text(text)));
        given.values.extend(kept);
    }
    let (snapshot, name, properties) = (snapshot.to_owned(), name.to_owned(), given.stored());
    cx.change(&held, &what, move |cx| {
        Box::pin(async move { Box::pin(dsl::clone(cx, &snapshot, &name, &properties, parents)).await })
    })
    .await?;
    warnings.extend(cx.served(&held).await);
    Ok(Answer { warnings, ..Answer::default() })
}

/// Block of a volume that is a snapshot: its head's.
async fn held_block(snapshot: &Dataset) -> Option<u64> {
    snapshot.live().properties().await.ok()?.number("volblocksize")
}

/// `zfs promote`
pub(crate) async fn promote(cx: &Cx<'_>, name: &str) -> Result<Answer, Failure> {
    let what = format!("cannot promote '{name}'");
    let held = cx.host.writable(pool_of(name)).await.map_err(|error| error.of_dataset(&what, name))?;
    let clone = lookup(&held.view(), name).await?;
    if clone.kind() != DatasetKind::Head {
        return Err(Failure::because(&what, "operation not applicable to datasets of this type"));
    }
    let origin = clone.origin().await.map_err(|error| Failure::because(&what, chain(&error)))?;
    let Some(origin) = origin else { return Err(Failure::because(&what, "not a cloned filesystem")) };
    let (parent, _) = origin.split_once('@').unwrap_or((&origin, ""));
    let (parent, unreadable) =
        (lookup(&held.view(), parent).await?, |error| Failure::because(&what, chain(&error)));
    // What the clone takes over must not have names it has already, and nobody must be reading it under the old one.
    let own: Vec<String> =
        clone.snapshots().await.map_err(unreadable)?.iter().map(|s| s.last_name().to_owned()).collect();
    let snapshots = parent.snapshots().await.map_err(unreadable)?;
    let used = cx.used(snapshots.iter().map(Dataset::name));
    let mut moving = Vec::new();
    for snapshot in snapshots {
        let moves = snapshot.create_txg() <= lookup(&held.view(), &origin).await?.create_txg();
        if moves && own.contains(&snapshot.last_name().to_owned()) {
            return Err(Failure::because(
                &what,
                format_args!(
                    "conflicting snapshot '{}' from parent '{}'",
                    snapshot.last_name(),
                    parent.name()
                ),
            ));
        }
        if moves && used.contains(snapshot.name()) {
            return Err(Failure::because(&what, OpError::Busy));
        }
        if moves {
            moving.push(snapshot);
        }
    }
    let kept = match clone.may_be_volume() {
        true => closed::of_promoted(&held.view(), &clone, &parent, &moving).await,
        false => Ok(BTreeMap::new()),
    };
    let kept = kept.map_err(unreadable)?;
    let mut warnings = closed::said_of_all(&kept, "snapshots", parent.name());
    let names: Vec<String> = moving.iter().map(|snapshot| snapshot.name().to_owned()).collect();
    let asides = cx.set_aside(&held, &names).await;
    let asides = asides.map_err(|_| Failure::because(&what, OpError::Busy))?;
    let name = name.to_owned();
    let promoted = cx.try_change_aside(&held, &asides, move |cx| {
        Box::pin(async move {
            dsl::promote(cx, &name).await?;
            set_kept(cx, &kept).await
        })
    });
    if let Err(error) = promoted.await {
        cx.served(&held).await;
        return Err(refused(&what, &error));
    }
    // First by their new names: whoever found one by the old would lose it.
    warnings.extend(cx.served(&held).await);
    asides.iter().for_each(|aside| aside.spare());
    Ok(Answer { warnings, ..Answer::default() })
}

/// `zfs rename`
pub(crate) async fn rename(
    cx: &Cx<'_>,
    from: &str,
    to: &str,
    parents: bool,
    recursive: bool,
) -> Result<Answer, Failure> {
    let (what_to, what) = (format!("cannot rename to '{to}'"), format!("cannot rename '{from}'"));
    let held = cx.host.writable(pool_of(from)).await.map_err(|error| error.of_dataset(&what, from))?;
    let view = held.view();
    let source = lookup(&view, from).await?;
    let mut target = to.to_owned();
    // A dataset's, where it comes.
    let mut above = None;
    match source.kind() {
        DatasetKind::Snapshot => {
            let (head, _) = from.split_once('@').unwrap_or((from, ""));
            if let Some(bare) = to.strip_prefix('@') {
                target = format!("{head}@{bare}");
            } else if !to.contains(['@', '/']) {
                target = format!("{head}@{to}");
            }
            let (to_head, _) = names::snapshot(&target).map_err(|why| Failure::because(&what_to, why))?;
            if to_head != head {
                return Err(Failure::because(&what_to, "snapshots must be part of same dataset"));
            }
        }
        DatasetKind::Bookmark => {
            return Err(Failure::because(&what, "operation not applicable to datasets of this type"));
        }
        DatasetKind::Head => {
            names::dataset(to).map_err(|why| Failure::because(&what_to, why))?;
            if !from.contains('/') || pool_of(from) != pool_of(to) {
                return Err(Failure::because(&what_to, "datasets must be within same pool"));
            }
            if to.strip_prefix(from).is_some_and(|rest| rest.starts_with('/')) {
                let why = "new dataset name cannot be a descendant of current dataset name";
                return Err(Failure::because(&what_to, why));
            }
            let mut parent = to.rsplit_once('/').map_or(to, |(parent, _)| parent);
            let dsl = view.dsl().await.map_err(|error| Failure::because(&what, chain(&error)))?;
            let found = loop {
                // Of parents that are to be made the nearest ancestor there is counts.
                match (dsl.lookup(parent).await, parent.rsplit_once('/')) {
                    (Err(LookupError::NotFound { .. }), Some((nearer, _))) if parents => parent = nearer,
                    (found, _) => break found,
                }
            };
            match found {
                Ok(parent) if parent.head_kind() == HeadKind::Volume => {
                    return Err(Failure::because(&what_to, "parent is not a filesystem"));
                }
                Ok(parent) => above = Some(parent),
                Err(LookupError::NotFound { .. }) => {
                    return Err(Failure::because(&what_to, OpError::NoParent));
                }
                Err(error) => return Err(Failure::because(&what, chain(&error))),
            }
        }
    }
    if recursive && source.kind() != DatasetKind::Snapshot {
        return Err(Failure {
            code: 2,
            ..Failure::new("source dataset must be a snapshot for recursive rename")
        });
    }
    // Clients know it by its name: with another they would be cut off.
    cx.spare_clients_below(from, recursive, &what)?;
    let kept = match &above {
        Some(parent) => closed::of_renamed(&view, &source, to, parent).await,
        None => Ok(BTreeMap::new()),
    };
    let kept = kept.map_err(|error| Failure::because(&what, chain(&error)))?;
    let mut warnings = closed::said_of_all(&kept, "volumes", &format!("what was {from}"));
    let serving = cx.host.serving.as_ref();
    let names = serving.map(|serving| serving.names_below(from, recursive)).unwrap_or_default();
    let asides = cx.set_aside(&held, &names).await;
    let asides = asides.map_err(|_| Failure::because(&what, OpError::Busy))?;
    let from = from.to_owned();
    let renamed = cx.try_change_aside(&held, &asides, move |cx| {
        Box::pin(async move {
            dsl::rename(cx, &from, &target, parents, recursive).await?;
            set_kept(cx, &kept).await
        })
    });
    if let Err(error) = renamed.await {
        cx.served(&held).await;
        return Err(match error {
            OpError::Exists if recursive => {
                Failure::because(&what, "a child dataset already has a snapshot with the new name")
            }
            other => refused(&what, &other),
        });
    }
    // First by their new names: whoever found one by the old would lose it.
    warnings.extend(cx.served(&held).await);
    asides.iter().for_each(|aside| aside.spare());
    Ok(Answer { warnings, ..Answer::default() })
}

/// Sets on each what it keeps.
pub(super) async fn set_kept(cx: &mut Syncer, kept: &BTreeMap<String, Kept>) -> Result<(), OpError> {
    for (name, kept) in kept {
        let properties = kept.properties().map(|(property, text)| (property.to_owned(), Stored::Text(text)));
        let properties: Properties = properties.collect();
        dsl::set(cx, name, &properties).await?;
    }
    Ok(())
}
