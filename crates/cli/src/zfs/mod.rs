//! `zfs`: the words, columns and exit codes of OpenZFS.

mod change;
mod get;
mod keys;
mod list;

use std::process::ExitCode;

use server::{
    api::{DatasetQuery, Kind},
    pool::props::{
        Kind as ValueKind,
        table::{self, is_user},
    },
};

use crate::{
    args::Zfs,
    context::{Context, Usage},
    table::Column,
    version,
};

/// Names of properties that are made up as one asks: `userused@joe`, `written@monday`.
const OPEN_ENDED: [&str; 13] = [
    "userused@",
    "userquota@",
    "groupused@",
    "groupquota@",
    "userobjused@",
    "userobjquota@",
    "groupobjused@",
    "groupobjquota@",
    "projectused@",
    "projectquota@",
    "projectobjused@",
    "projectobjquota@",
    "written@",
];

/// The widest word of `compression`: levels are not in the list of its words.
const WIDEST_LEVEL: &str = "zstd-fast-1000";

pub(crate) async fn run(command: Zfs, context: &Context) -> anyhow::Result<ExitCode> {
    match command {
        Zfs::List(args) => list::run(args, context).await,
        Zfs::Get(args) => get::run(args, context).await,
        Zfs::Create(args) => change::create(args, context).await,
        Zfs::Set(args) => change::set(args, context).await,
        Zfs::Inherit(args) => change::inherit(args, context).await,
        Zfs::Snapshot(args) => change::snapshot(args, context).await,
        Zfs::Destroy(args) => change::destroy(args, context).await,
        Zfs::Rollback(args) => change::rollback(args, context).await,
        Zfs::Clone(args) => change::clone(args, context).await,
        Zfs::Promote(args) => change::promote(args, context).await,
        Zfs::Rename(args) => change::rename(args, context).await,
        Zfs::Bookmark(args) => change::bookmark(args, context).await,
        Zfs::Hold(args) => change::hold(args, context).await,
        Zfs::Release(args) => change::release(args, context).await,
        Zfs::Holds(args) => change::holds(args, context).await,
        Zfs::Mount(args) => change::mount(args, "mount", context),
        Zfs::Unmount(args) => change::mount(args, "unmount", context),
        Zfs::Share(args) => change::mount(args, "share", context),
        Zfs::Unshare(args) => change::mount(args, "unshare", context),
        Zfs::LoadKey(args) => keys::run(args.keys, "load", context).await,
        Zfs::UnloadKey(args) => keys::run(args, "unload", context).await,
        Zfs::Version(args) => version::run(&args, "zfs"),
    }
}

/// A property of datasets by its name or alias, under its full name.
pub(crate) fn property(name: &str, context: &Context, command: &str) -> Result<String, Usage> {
    if let Some(row) = table::dataset(name) {
        return Ok(row.name.to_owned());
    }
    if name == "name" || is_user(name) || OPEN_ENDED.iter().any(|prefix| name.starts_with(prefix)) {
        return Ok(name.to_owned());
    }
    Err(context.usage(&["zfs", command], &format!("bad property list: invalid property '{name}'")))
}

/// The column of a property in a list.
pub(crate) fn column(name: &str) -> Column {
    match (name, table::dataset(name)) {
        ("name", _) => Column::left("NAME"),
        (_, Some(row)) => match row.kind {
            ValueKind::Index(words) => {
                let levels = if row.name == "compression" { WIDEST_LEVEL.len() } else { 0 };
                let widest = words.all().map(str::len).max().unwrap_or(0).max(levels);
                Column { width_min: widest, ..Column::left(row.heading) }
            }
            _ if row.right => Column::right(row.heading, 5),
            _ => Column::left(row.heading),
        },
        (name, None) => Column::left(&name.to_uppercase()),
    }
}

/// How wide the VALUE column of `get` is at least, for this property.
pub(crate) fn value_width(name: &str) -> usize {
    match table::dataset(name) {
        Some(_) => {
            let column = column(name);
            column.header.len().max(column.width_min)
        }
        None => name.len(),
    }
}

/// The kinds that `-t` names.
pub(crate) fn kinds(words: &[String], context: &Context, command: &str) -> Result<Vec<Kind>, Usage> {
    let mut kinds = Vec::new();
    for word in words {
        match word.as_str() {
            "all" => kinds.extend(Kind::ALL),
            "fs" => kinds.push(Kind::Filesystem),
            "vol" => kinds.push(Kind::Volume),
            "snap" => kinds.push(Kind::Snapshot),
            word => match Kind::from_word(word) {
                Some(kind) => kinds.push(kind),
                None => return Err(context.usage(&["zfs", command], &format!("invalid type '{word}'"))),
            },
        }
    }
    kinds.sort();
    kinds.dedup();
    Ok(kinds)
}

/// What to ask for: how far down, and which kinds.
pub(crate) fn query(
    recursive: bool,
    depth: Option<usize>,
    kinds: &[Kind],
    named: bool,
    properties: Option<&[String]>,
) -> DatasetQuery {
    // Snapshots of a dataset are what is meant by "its snapshots", without asking for recursion.
    let only_parts = matches!(kinds, [Kind::Snapshot] | [Kind::Bookmark]);
    let depth = match (recursive, depth) {
        (_, Some(depth)) => Some(depth as u64),
        (true, None) => None,
        (false, None) if !named => None,
        (false, None) if only_parts => Some(1),
        (false, None) => Some(0),
    };
    DatasetQuery {
        name: None,
        depth,
        types: Some(kinds.iter().map(|kind| kind.word()).collect::<Vec<_>>().join(",")),
        properties: properties.map(|names| names.join(",")),
    }
}
