//! `zpool import` and `zpool export`: which pools there are, and which of them are remembered.
//!
//! Nothing is written to a pool: importing opens it, sees that it can be read, and writes its devices into the
//! cache file, where every later command finds them; exporting forgets them.

use std::{path::PathBuf, process::ExitCode};

use serde_json::{Map, Value, json};
use server::{
    client::Client,
    host::{self, Foreign, HostError, Known, Opened, Settings, chain},
    hostid::hostid,
    pool::{
        Pool,
        import::{self, Candidate, examine},
    },
    state::Remembered,
    view,
};

use super::finish;
use crate::{
    args::{ZpoolExport, ZpoolImport},
    context::{Context, FAILED, foreign, print},
    json,
};

/// Number of a destroyed pool's state in its labels.
const DESTROYED: u64 = 2;

pub(crate) async fn import(args: ZpoolImport, context: &Context) -> anyhow::Result<ExitCode> {
    for option in &args.options {
        match option.as_str() {
            "readonly=on" => {}
            // Nothing is mounted, and what is remembered has a file of its own: said for scripts, no effect.
            other if other.starts_with("cachefile=") || other.starts_with("altroot=") => {}
            "readonly=off" => {
                anyhow::bail!(
                    "cannot import: pools are opened read-only by this version; leave 'readonly=off' out"
                )
            }
            other => {
                let message =
                    format!("property '{other}' cannot be set while importing; only 'readonly=on' is known");
                return Err(context.usage(&["zpool", "import"], &message).into());
            }
        }
    }
    if args.all && args.pool.is_some() {
        return Err(context.usage(&["zpool", "import"], "-a and a pool's name exclude each other").into());
    }
    let places = context.places(&args.search.search);
    let imported = places.imported().await?;
    let mut known = places.scan().await;
    known.pools.retain(|(candidate, _)| {
        imported.iter().all(|(remembered, _)| remembered.guid != candidate.guid)
            && (candidate.state.id() == DESTROYED) == args.destroyed
    });
    if let Some(name) = &args.pool {
        if imported.iter().any(|(pool, _)| pool.name == *name || pool.guid.to_string() == *name) {
            anyhow::bail!("cannot import '{name}': a pool with that name already exists");
        }
        return match known.select(name) {
            Ok(Some((candidate, _))) => match import_one(&candidate, &args, context).await {
                Ok(()) => Ok(ExitCode::SUCCESS),
                Err(error) => anyhow::bail!("cannot import '{name}': {error}"),
            },
            Ok(None) => {
                known.problems.iter().for_each(|problem| eprintln!("{problem}"));
                anyhow::bail!("cannot import '{name}': no such pool available")
            }
            Err(HostError::Ambiguous { guids, .. }) => {
                let guids: Vec<String> = guids.iter().map(|guid| format!("\t{guid}")).collect();
                anyhow::bail!(
                    "cannot import '{name}': more than one matching pool\nimport by numeric ID instead:\n{}",
                    guids.join("\n")
                )
            }
            Err(error) => Err(error.into()),
        };
    }
    known.problems.iter().for_each(|problem| eprintln!("{problem}"));
    if known.pools.is_empty() {
        if args.json {
            print(&json::envelope("zpool import", "pools", Map::new()))?;
        } else {
            eprintln!("no pools available to import");
        }
        return Ok(if args.all { ExitCode::SUCCESS } else { ExitCode::from(FAILED) });
    }
    if args.all {
        let mut failures = Vec::new();
        for (candidate, _) in &known.pools {
            if let Err(error) = import_one(candidate, &args, context).await {
                failures.push(format!("cannot import '{}': {error}", candidate.name));
            }
        }
        return Ok(finish(&failures));
    }
    list(&known, args.json).await?;
    Ok(ExitCode::SUCCESS)
}

/// Shows what could be imported.
async fn list(known: &Known, as_json: bool) -> anyhow::Result<()> {
    let hostid = hostid();
    let mut entries = Map::new();
    let mut texts = Vec::new();
    for (candidate, _) in &known.pools {
        let report = examine(candidate, hostid).await;
        if !as_json {
            texts.push(report.text());
            continue;
        }
        let pool = view::unopened(&report);
        let mut object = json::pool(&pool, true);
        object.insert("txg".to_owned(), json!(candidate.uberblocks[0].txg.to_string()));
        let advice = report.advice();
        if !advice.status.is_empty() {
            object.insert("status".to_owned(), json!(json::one_line(&advice.status)));
        }
        if let Some(action) = &advice.action {
            object.insert("action".to_owned(), json!(json::one_line(action)));
        }
        if let Some(id) = advice.message_id {
            object.insert("msgid".to_owned(), json!(id));
        }
        if let Some(comment) = &report.comment {
            object.insert("comment".to_owned(), json!(comment));
        }
        let name = |device: &server::api::Device| device.name.clone();
        let number = |number: u64| number.to_string();
        let one = |device: &server::api::Device| json::device(device, &name, &number, &number);
        object.insert("vdevs".to_owned(), json::devices([&pool.root].into_iter(), &one, &name));
        // Two pools of one name are both shown: then it is their guids that tell them apart.
        let twice = known.pools.iter().filter(|(other, _)| other.name == candidate.name).count() > 1;
        let key = if twice { pool.guid.clone() } else { pool.name.clone() };
        entries.insert(key, Value::Object(object));
    }
    match as_json {
        true => print(&json::envelope("zpool import", "pools", entries))?,
        false => print(&texts.join("\n"))?,
    }
    Ok(())
}

async fn import_one(candidate: &Candidate, args: &ZpoolImport, context: &Context) -> anyhow::Result<()> {
    let settings = Settings {
        foreign: foreign(args.force),
        rewind: (&args.rewind).into(),
        destroyed: args.destroyed,
        missing_log: args.missing_log,
        ..Settings::default()
    };
    let Opened { pool, notes } = match host::open(candidate, None, &settings).await {
        Ok(opened) => opened,
        // Its text without `cannot open …`: the caller says `cannot import …`.
        Err(HostError::Import { source, .. }) => return Err(anyhow::Error::msg(chain(&*source))),
        Err(error) => return Err(error.into()),
    };
    notes.iter().for_each(|note| eprintln!("{note}"));
    if args.dry_run {
        let when = server::pool::props::value::date(pool.uberblock().timestamp, |_| 0, true);
        eprintln!("Would be able to return {} to its state as of {when} UTC.", pool.name());
        return Ok(());
    }
    let state = context.state();
    if state.pools()?.iter().any(|known| known.name == pool.name() && known.guid != pool.guid()) {
        // Remembered, but no longer on its devices: `imported` left it out.
        eprintln!(
            "the pool '{}' that was imported before is no longer on its devices and is forgotten",
            pool.name()
        );
    }
    let rewound = pool.uberblock().txg < pool.newest_uberblock().txg;
    state.remember(Remembered {
        name: pool.name().to_owned(),
        guid: pool.guid(),
        devices: devices(&pool),
        forced: settings.foreign == Foreign::Open,
        txg: (rewound || matches!(settings.rewind, import::Rewind::To(_))).then_some(pool.uberblock().txg),
        missing_log: args.missing_log,
        destroyed: args.destroyed,
    })?;
    Ok(())
}

/// Absolute paths of all devices of an open pool that are there.
fn devices(pool: &Pool) -> Vec<PathBuf> {
    let beside = pool.spares().iter().chain(pool.l2cache());
    let all = pool.tree().leaves().into_iter().chain(beside);
    let present = all.filter_map(|vdev| Some(vdev.leaf.as_ref()?.disk.as_ref()?.info().path));
    present.map(|path| std::path::absolute(&path).unwrap_or_else(|_| path.into())).collect()
}

pub(crate) async fn export(args: ZpoolExport, context: &Context) -> anyhow::Result<ExitCode> {
    let state = context.state();
    let daemon = Client::find(&context.socket()).await?;
    let mut failures = Vec::new();
    for name in &args.pools {
        if let Some(daemon) = &daemon
            && daemon.pool(name).await.is_ok()
        {
            failures.push(format!(
                "cannot export '{name}': pool is busy: the daemon on '{}' serves it; stop that first",
                context.socket().display()
            ));
            continue;
        }
        if !state.forget(name)? {
            failures.push(format!("cannot open '{name}': no such pool"));
        }
    }
    Ok(finish(&failures))
}
