//! `zpool offline`, `online`, `attach`, `detach`, `replace`, `clear`, `reopen`, `initialize`, `trim`.

use std::process::ExitCode;

use server::{
    ops::{DeviceNew, Operation, SweepAction, SweepWish},
    pool::props::parse,
};

use super::{
    change::{imported, options},
    wait,
};
use crate::{
    act::{Act, device_of_pool, devices},
    args::{
        Activity, ZpoolAttach, ZpoolClear, ZpoolDetach, ZpoolInitialize, ZpoolOffline, ZpoolOnline,
        ZpoolReopen, ZpoolReplace, ZpoolTrim,
    },
    context::Context,
};

/// A new device as typed, absolute if it is a path.
fn new_device(word: String) -> String {
    devices(vec![word]).pop().unwrap_or_default()
}

/// Devices of a pool, see [`device_of_pool`].
fn known(words: Vec<String>) -> Vec<String> {
    words.into_iter().map(device_of_pool).collect()
}

pub(crate) async fn offline(args: ZpoolOffline, context: &Context) -> anyhow::Result<ExitCode> {
    let mut act = Act::new(context).await?;
    for device in known(args.devices) {
        let (pool, temporary, fault) = (args.pool.clone(), args.temporary, args.fault);
        act.attempt(Operation::DeviceOffline { pool, device, temporary, fault }).await;
    }
    Ok(act.finish().await)
}

pub(crate) async fn online(args: ZpoolOnline, context: &Context) -> anyhow::Result<ExitCode> {
    let mut act = Act::new(context).await?;
    let mut is_done = false;
    for device in known(args.devices) {
        let online = Operation::DeviceOnline { pool: args.pool.clone(), device, expand: args.expand };
        is_done |= act.attempt(online).await.is_some();
    }
    if is_done {
        wait::follow(&mut act, &args.pool, None).await;
    }
    Ok(act.finish().await)
}

pub(crate) async fn attach(args: ZpoolAttach, context: &Context) -> anyhow::Result<ExitCode> {
    let asked = DeviceNew {
        pool: args.pool.clone(),
        device: device_of_pool(args.device),
        new: Some(new_device(args.new)),
        properties: options(&args.options, context, "attach")?,
        force: args.force,
    };
    let mut act = Act::new(context).await?;
    if act.attempt(Operation::DeviceAttach(asked)).await.is_some() {
        wait::follow(&mut act, &args.pool, args.wait.then_some(Activity::Resilver)).await;
    }
    Ok(act.finish().await)
}

pub(crate) async fn replace(args: ZpoolReplace, context: &Context) -> anyhow::Result<ExitCode> {
    let asked = DeviceNew {
        pool: args.pool.clone(),
        device: device_of_pool(args.device),
        new: args.new.map(new_device),
        properties: options(&args.options, context, "replace")?,
        force: args.force,
    };
    let mut act = Act::new(context).await?;
    if act.attempt(Operation::DeviceReplace(asked)).await.is_some() {
        wait::follow(&mut act, &args.pool, args.wait.then_some(Activity::Replace)).await;
    }
    Ok(act.finish().await)
}

pub(crate) async fn detach(args: ZpoolDetach, context: &Context) -> anyhow::Result<ExitCode> {
    let mut act = Act::new(context).await?;
    act.attempt(Operation::DeviceDetach { pool: args.pool, device: device_of_pool(args.device) }).await;
    Ok(act.finish().await)
}

pub(crate) async fn clear(args: ZpoolClear, context: &Context) -> anyhow::Result<ExitCode> {
    let mut act = Act::new(context).await?;
    let pool = args.pool;
    let which: Vec<Option<String>> = match known(args.devices) {
        all if all.is_empty() => vec![None],
        named => named.into_iter().map(Some).collect(),
    };
    let mut is_done = false;
    for device in which {
        is_done |= act.attempt(Operation::PoolClear { pool: pool.clone(), device }).await.is_some();
    }
    if is_done {
        wait::follow(&mut act, &pool, None).await;
    }
    Ok(act.finish().await)
}

pub(crate) async fn reopen(args: ZpoolReopen, context: &Context) -> anyhow::Result<ExitCode> {
    let mut act = Act::new(context).await?;
    let pools = if args.pools.is_empty() { imported(&act, context).await? } else { args.pools };
    for pool in pools {
        if act.attempt(Operation::PoolReopen { pool: pool.clone() }).await.is_some() {
            wait::follow(&mut act, &pool, None).await;
        }
    }
    Ok(act.finish().await)
}

pub(crate) async fn initialize(args: ZpoolInitialize, context: &Context) -> anyhow::Result<ExitCode> {
    let action = match () {
        () if args.cancel => SweepAction::Cancel,
        () if args.suspend => SweepAction::Suspend,
        () if args.forget => SweepAction::Forget,
        () => SweepAction::Start,
    };
    let devices = known(args.devices);
    let operation =
        |pool| Operation::DeviceSweep { pool, devices, sweep: SweepWish::Initialize, action, rate: None };
    sweep(args.pool, operation, args.wait.then_some(Activity::Initialize), context).await
}

pub(crate) async fn trim(args: ZpoolTrim, context: &Context) -> anyhow::Result<ExitCode> {
    let action = match () {
        () if args.cancel => SweepAction::Cancel,
        () if args.suspend => SweepAction::Suspend,
        () => SweepAction::Start,
    };
    let rate = args.rate.as_deref().map(parse::number).transpose();
    let rate = rate.map_err(|wrong| context.usage(&["zpool", "trim"], &format!("invalid rate: {wrong}")))?;
    let devices = known(args.devices);
    let operation = |pool| Operation::DeviceSweep { pool, devices, sweep: SweepWish::Trim, action, rate };
    sweep(args.pool, operation, args.wait.then_some(Activity::Trim), context).await
}

/// On one pool, or on all that are imported.
async fn sweep(
    pool: Option<String>,
    operation: impl FnOnce(String) -> Operation + Clone,
    wait: Option<Activity>,
    context: &Context,
) -> anyhow::Result<ExitCode> {
    let mut act = Act::new(context).await?;
    let pools = match pool {
        Some(pool) => vec![pool],
        None => imported(&act, context).await?,
    };
    let mut begun = Vec::new();
    for pool in pools {
        let operation = operation.clone()(pool.clone());
        let is_begun = matches!(operation, Operation::DeviceSweep { action: SweepAction::Start, .. });
        if act.attempt(operation).await.is_some() && is_begun {
            begun.push(pool);
        }
    }
    for pool in begun {
        wait::follow(&mut act, &pool, wait).await;
    }
    Ok(act.finish().await)
}
