//! `zpool`: the words, columns and exit codes of OpenZFS.

mod change;
mod drives;
mod events;
mod get;
mod history;
mod import;
mod iostat;
mod list;
mod names;
mod scan;
pub(crate) mod status;
mod upgrade;
mod wait;

use std::process::ExitCode;

use server::pool::props::{
    Kind,
    table::{self, is_user},
};

use crate::{
    args::Zpool,
    context::{Context, FAILED, Usage},
    table::Column,
    version,
};

pub(crate) async fn run(command: Zpool, context: &Context) -> anyhow::Result<ExitCode> {
    match command {
        Zpool::Import(args) => import::import(args, context).await,
        Zpool::Export(args) => change::export(args, context).await,
        Zpool::Create(args) => change::create(args, context).await,
        Zpool::Destroy(args) => change::destroy(args, context).await,
        Zpool::Add(args) => change::add(args, context).await,
        Zpool::Remove(args) => change::remove(args, context).await,
        Zpool::Set(args) => change::set(args, context).await,
        Zpool::Upgrade(args) => upgrade::run(args, context).await,
        Zpool::Sync(args) => change::sync(args, context).await,
        Zpool::History(args) => history::run(args, context).await,
        Zpool::Events(args) => events::run(args, context).await,
        Zpool::Labelclear(args) => change::clear_label(args, context).await,
        Zpool::Checkpoint(args) => change::checkpoint(args, context).await,
        Zpool::Offline(args) => drives::offline(args, context).await,
        Zpool::Online(args) => drives::online(args, context).await,
        Zpool::Attach(args) => drives::attach(args, context).await,
        Zpool::Detach(args) => drives::detach(args, context).await,
        Zpool::Replace(args) => drives::replace(args, context).await,
        Zpool::Clear(args) => drives::clear(args, context).await,
        Zpool::Reopen(args) => drives::reopen(args, context).await,
        Zpool::Scrub(args) => scan::scrub(args, context).await,
        Zpool::Resilver(args) => scan::resilver(args, context).await,
        Zpool::Initialize(args) => drives::initialize(args, context).await,
        Zpool::Trim(args) => drives::trim(args, context).await,
        Zpool::Wait(args) => wait::run(args, context).await,
        Zpool::Status(args) => status::run(args, status::About::Pools, context).await,
        Zpool::List(args) => list::run(args, context).await,
        Zpool::Iostat(args) => iostat::run(args, context).await,
        Zpool::Get(args) => get::run(args, context).await,
        Zpool::Version(args) => version::run(&args, "zpool"),
    }
}

/// Prints what went wrong and says so with the exit code.
pub(crate) fn finish(failures: &[String]) -> ExitCode {
    failures.iter().for_each(|failure| say!("{failure}"));
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) }
}

/// A property of pools by its name or alias, under its full name.
pub(crate) fn property(name: &str, context: &Context, command: &str) -> Result<String, Usage> {
    if let Some(row) = table::pool(name) {
        return Ok(row.name.to_owned());
    }
    let feature = name.strip_prefix("feature@").is_some_and(server::view::is_feature);
    if name == "name" || feature || name.starts_with("unsupported@") || is_user(name) {
        return Ok(name.to_owned());
    }
    Err(context.usage(&["zpool", command], &format!("bad property list: invalid property '{name}'")))
}

/// The column of a property in a list.
pub(crate) fn column(name: &str) -> Column {
    match (name, table::pool(name)) {
        ("name", _) => Column::left("NAME"),
        ("health", _) => Column::right("HEALTH", 8),
        (_, Some(row)) => match row.kind {
            Kind::Index(words) => {
                let widest = words.all().map(str::len).max().unwrap_or(0);
                Column { width_min: widest, ..Column::left(row.heading) }
            }
            Kind::Text => Column::left(row.heading),
            _ => Column::right(row.heading, 5),
        },
        (name, None) => Column::left(&name.to_uppercase()),
    }
}

/// How wide the VALUE column of `get` is at least, for this property.
pub(crate) fn value_width(name: &str) -> usize {
    if table::pool(name).is_none() && name != "name" {
        // Features and users' own: as wide as their name.
        return name.len();
    }
    let column = column(name);
    column.header.len().max(column.width_min)
}
