//! `zpool create`, `destroy`, `add`, `remove`, `export`, `set`, `sync`, `labelclear`, `checkpoint`.

use std::process::ExitCode;

use server::{
    labelclear,
    ops::{Operation, PoolAdd, PoolCreate},
    pool::props::parse,
};

use crate::{
    act::{Act, assignments, device_of_pool, devices},
    args::{
        ZpoolAdd, ZpoolCheckpoint, ZpoolCreate, ZpoolDestroy, ZpoolExport, ZpoolLabelclear, ZpoolRemove,
        ZpoolSet, ZpoolSync,
    },
    ask::Ask,
    context::{Context, print},
};

/// Properties from `-o`, or what is wrong with them as a usage error.
pub(super) fn options(
    words: &[String],
    context: &Context,
    command: &str,
) -> anyhow::Result<Vec<(String, String)>> {
    assignments(words).map_err(|failure| context.usage(&["zpool", command], &failure.message).into())
}

/// With an alternate root for its mount points a pool is somewhere for a while: as in OpenZFS, it is not opened by itself
/// afterwards, unless its `cachefile` says so. Nothing is mounted, so that is all there is to it.
pub(super) fn for_a_while(has_altroot: bool, properties: &mut Vec<(String, String)>) {
    if has_altroot && properties.iter().all(|(name, _)| name != "cachefile") {
        properties.push(("cachefile".to_owned(), "none".to_owned()));
    }
}

fn size(text: Option<&String>) -> anyhow::Result<Option<u64>> {
    let Some(text) = text else { return Ok(None) };
    match parse::number(text) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) => anyhow::bail!("bad file size '{text}': {error}"),
    }
}

pub(crate) async fn create(args: ZpoolCreate, context: &Context) -> anyhow::Result<ExitCode> {
    let mut root_properties = options(&args.root_options, context, "create")?;
    root_properties.extend(args.mountpoint.map(|path| ("mountpoint".to_owned(), path)));
    let mut properties = options(&args.options, context, "create")?;
    let altroot = args.altroot.is_some() || properties.iter().any(|(name, _)| name == "altroot");
    for_a_while(altroot, &mut properties);
    let operation = Operation::PoolCreate(PoolCreate {
        pool: args.pool,
        devices: devices(args.devices),
        properties,
        root_properties,
        file_size: size(args.size.as_ref())?,
        force: args.force,
        dry_run: args.dry_run,
        no_features: args.no_features,
    });
    let mut act = Act::new(context).await?;
    let answer = act.attempt(operation).await.unwrap_or_default();
    act.finish_printed(lines(&answer.lines)).await
}

fn lines(lines: &[String]) -> std::io::Result<()> {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    print(&text)
}

pub(crate) async fn add(args: ZpoolAdd, context: &Context) -> anyhow::Result<ExitCode> {
    let operation = Operation::PoolAdd(PoolAdd {
        pool: args.pool,
        devices: devices(args.devices),
        properties: options(&args.options, context, "add")?,
        file_size: size(args.size.as_ref())?,
        force: args.force,
        dry_run: args.dry_run,
    });
    let mut act = Act::new(context).await?;
    let answer = act.attempt(operation).await.unwrap_or_default();
    act.finish_printed(lines(&answer.lines)).await
}

pub(crate) async fn remove(args: ZpoolRemove, context: &Context) -> anyhow::Result<ExitCode> {
    let devices: Vec<String> = args.devices.into_iter().map(device_of_pool).collect();
    let (names, dry_run) = (devices.clone(), args.dry_run);
    let operation = Operation::PoolRemove { pool: args.pool, devices, dry_run };
    let mut act = Act::new(context).await?;
    let mut planned = Vec::new();
    if act.attempt(operation).await.is_some() && dry_run {
        // In OpenZFS's words. Devices for data, which leave such a table behind, are refused.
        let none = if args.exact { "0" } else { "0B" };
        let line = |name: &String| format!("Memory that will be used after removing {name}: {none}");
        planned.extend(names.iter().map(line));
    }
    act.finish_printed(lines(&planned)).await
}

pub(crate) async fn destroy(args: ZpoolDestroy, context: &Context) -> anyhow::Result<ExitCode> {
    let mut act = Act::new(context).await?;
    act.attempt(Operation::PoolDestroy { pool: args.pool, force: args.force }).await;
    Ok(act.finish().await)
}

/// Names of all imported pools: the daemon's and those in the cache file.
pub(super) async fn imported(act: &Act, context: &Context) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    if let Some(daemon) = act.daemon() {
        let open = daemon.pools().await?.into_iter().filter(server::api::Pool::is_open);
        names.extend(open.map(|pool| pool.name));
    }
    names.extend(context.state().pools()?.into_iter().map(|pool| pool.name));
    names.sort();
    names.dedup();
    Ok(names)
}

pub(crate) async fn export(args: ZpoolExport, context: &Context) -> anyhow::Result<ExitCode> {
    let mut act = Act::new(context).await?;
    let pools = if args.all { imported(&act, context).await? } else { args.pools };
    for pool in pools {
        act.attempt(match args.drop {
            true => Operation::PoolAbandon { pool },
            false => Operation::PoolExport { pool, force: args.force },
        })
        .await;
    }
    Ok(act.finish().await)
}

pub(crate) async fn set(args: ZpoolSet, context: &Context) -> anyhow::Result<ExitCode> {
    let Some((name, value)) = args.property.split_once('=') else {
        return Err(context.usage(&["zpool", "set"], "missing value in property=value argument").into());
    };
    let mut act = Act::new(context).await?;
    for pool in args.pools {
        act.attempt(Operation::PoolSet { pool, property: (name.to_owned(), value.to_owned()) }).await;
    }
    Ok(act.finish().await)
}

pub(crate) async fn sync(args: ZpoolSync, context: &Context) -> anyhow::Result<ExitCode> {
    let mut act = Act::new(context).await?;
    let pools = if args.pools.is_empty() { imported(&act, context).await? } else { args.pools };
    for pool in pools {
        act.attempt(Operation::PoolSync { pool }).await;
    }
    Ok(act.finish().await)
}

pub(crate) async fn clear_label(args: ZpoolLabelclear, context: &Context) -> anyhow::Result<ExitCode> {
    let act = Act::new(context).await?;
    // No lock tells whose a device is that is offline or faulted.
    let open = match act.daemon() {
        Some(daemon) => daemon.pools().await?,
        None => Vec::new(),
    };
    match labelclear::clear(&args.device, args.force, &open).await {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(failure) => Err(failure.into()),
    }
}

pub(crate) async fn checkpoint(args: ZpoolCheckpoint, context: &Context) -> anyhow::Result<ExitCode> {
    let answer = Ask::new(context).await?.pools(std::slice::from_ref(&args.pool)).await?;
    if let Some(failure) = answer.failures.first() {
        anyhow::bail!("{failure}");
    }
    let name = args.pool;
    if args.discard {
        anyhow::bail!(
            "cannot discard checkpoint of '{name}': checkpoints of pools are not supported by this version"
        );
    }
    anyhow::bail!(
        "cannot checkpoint '{name}': checkpoints of pools are not supported by this version\nsnapshots of all its datasets at one \
         moment are: 'zfs snapshot -r {name}@NAME'"
    )
}
