//! `zpool import`: which pools there are, and one of them opened and remembered.
//!
//! An import writes whose the pool is into its labels, unless it is read-only; every later command finds the pool by
//! the cache file, until it is exported.

use std::process::ExitCode;

use serde_json::{Map, Value, json};
use server::{
    host::{Known, Places, has_gone},
    hostid,
    ops::{Operation, PoolImport},
    pool::import::examine,
    view,
};

use super::change::{for_a_while, options};
use crate::{
    act::{Act, search},
    args::ZpoolImport,
    context::{Context, FAILED, print},
    json,
};

/// Number of a destroyed pool's state in its labels.
const DESTROYED: u64 = 2;

pub(crate) async fn import(args: ZpoolImport, context: &Context) -> anyhow::Result<ExitCode> {
    let mut read_only = false;
    let mut properties = options(&args.options, context, "import")?;
    for (_, value) in properties.extract_if(.., |(name, _)| name == "readonly") {
        read_only = match value.as_str() {
            "on" => true,
            "off" => false,
            _ => {
                return Err(context
                    .usage(&["zpool", "import"], "'readonly' must be one of 'on | off'")
                    .into());
            }
        };
    }
    // Of this import only, like -R.
    let altroot = properties.extract_if(.., |(name, _)| name == "altroot").count() > 0;
    for_a_while(altroot || args.altroot.is_some(), &mut properties);
    if args.all && args.pool.is_some() {
        return Err(context.usage(&["zpool", "import"], "-a and a pool's name exclude each other").into());
    }
    let asked = PoolImport {
        search: search(&args.search.search),
        new_name: args.new_name.clone(),
        force: args.force,
        txg: args.rewind.txg,
        recover: args.rewind.recover,
        dry_run: args.dry_run,
        missing_log: args.missing_log,
        destroyed: args.destroyed,
        read_only,
        properties,
        pool: String::new(),
    };
    let mut act = Act::new(context).await?;
    if let Some(pool) = &args.pool {
        import_one(&mut act, PoolImport { pool: pool.clone(), ..asked }).await;
        return Ok(act.finish().await);
    }
    let places = context.places(&args.search.search);
    let here = here(&act, &places).await?;
    let mut known = places.scan().await;
    known.pools.retain(|(candidate, _)| {
        !here.contains(&candidate.guid) && (candidate.state.id() == DESTROYED) == args.destroyed
    });
    if args.cache_file.is_some() {
        // Who says so means what was imported before, and nothing else that is there.
        let remembered = places.state().pools()?;
        known.pools.retain(|(candidate, _)| remembered.iter().any(|pool| pool.guid == candidate.guid));
    }
    known.problems.iter().for_each(|problem| say!("{problem}"));
    if known.pools.is_empty() {
        if args.json {
            print(&json::envelope("zpool import", "pools", Map::new()))?;
        } else {
            say!("no pools available to import");
        }
        return Ok(if args.all { ExitCode::SUCCESS } else { ExitCode::from(FAILED) });
    }
    if args.all {
        for (candidate, _) in &known.pools {
            // By guid: two may have one name, of which the first gets it.
            import_one(&mut act, PoolImport { pool: candidate.guid.to_string(), ..asked.clone() }).await;
        }
        return Ok(act.finish().await);
    }
    list(&known, args.json).await?;
    Ok(ExitCode::SUCCESS)
}

/// Guids of the pools that need no import: those the daemon has open. One that it could not open is remembered as well, and
/// is shown with what is in its way. Without a daemon every command opens what is remembered, unless another host has had it
/// since.
async fn here(act: &Act, places: &Places) -> anyhow::Result<Vec<u64>> {
    match act.daemon() {
        Some(daemon) => {
            let open = daemon.pools().await?.into_iter().filter(server::api::Pool::is_open);
            Ok(open.filter_map(|pool| pool.guid.parse().ok()).collect())
        }
        None => {
            let mut imported = places.imported().await?;
            imported.retain(|(remembered, candidate)| !has_gone(candidate, remembered));
            Ok(imported.iter().map(|(remembered, _)| remembered.guid).collect())
        }
    }
}

async fn import_one(act: &mut Act, asked: PoolImport) {
    match act.run(Operation::PoolImport(asked)).await {
        Ok(answer) => answer.warnings.iter().for_each(|warning| say!("{warning}")),
        Err(failure) => act.refuse(failure),
    }
}

/// Shows what could be imported.
async fn list(known: &Known, as_json: bool) -> anyhow::Result<()> {
    let (hostid, hostname) = (hostid::hostid(), hostid::hostname());
    let mut entries = Map::new();
    let mut texts = Vec::new();
    for (candidate, _) in &known.pools {
        let report = examine(candidate, hostid, &hostname).await;
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
        let one = |device: &server::api::Device| {
            json::device(device, &name, &number, &number, json::Asked::default())
        };
        object.insert("vdevs".to_owned(), json::devices([&pool.root].into_iter(), &one, &name));
        let key = json::key(&pool.name, &pool.guid, known.pools.iter().map(|(other, _)| &other.name));
        entries.insert(key, Value::Object(object));
    }
    match as_json {
        true => print(&json::envelope("zpool import", "pools", entries))?,
        false => print(&texts.join("\n"))?,
    }
    Ok(())
}
