//! `zpool upgrade`: which pools lack features that new ones have, and getting them.

use std::process::ExitCode;

use server::{
    ops::Operation,
    view::{features, features_lacking},
};

use super::{change::imported, finish};
use crate::{
    act::Act,
    args::ZpoolUpgrade,
    ask::Ask,
    context::{Context, print},
};

const FLAGS: &str = "This system supports ZFS pool feature flags.\n\n";
const LACKING: &str = "Some supported features are not enabled on the following pools. Once a\n\
    feature is enabled the pool may become incompatible with software\n\
    that does not support the feature. See zpool-features(7) for details.\n\n\
    Note that the pool 'compatibility' feature can be used to inhibit\n\
    feature upgrades.\n\n\
    POOL  FEATURE\n---------------\n";

pub(crate) async fn run(args: ZpoolUpgrade, context: &Context) -> anyhow::Result<ExitCode> {
    match () {
        () if args.verbose => explain(),
        () if args.all || !args.pools.is_empty() => upgrade(args, context).await,
        () => list(context).await,
    }
}

async fn upgrade(args: ZpoolUpgrade, context: &Context) -> anyhow::Result<ExitCode> {
    let mut act = Act::new(context).await?;
    let pools = if args.all { imported(&act, context).await? } else { args.pools };
    let mut text = FLAGS.to_owned();
    for pool in pools {
        if let Some(answer) = act.attempt(Operation::PoolUpgrade { pool }).await {
            text.push_str(&format!("{}\n\n", answer.lines.join("\n")));
        }
    }
    act.finish_printed(print(&text)).await
}

async fn list(context: &Context) -> anyhow::Result<ExitCode> {
    let answer = Ask::new(context).await?.pools(&[]).await?;
    let mut failures = answer.failures;
    let mut table = String::new();
    for pool in &answer.found {
        match features_lacking(pool) {
            Ok(lacking) if lacking.is_empty() => {}
            Ok(lacking) => table.push_str(&format!("{}\n      {}\n\n", pool.name, lacking.join("\n      "))),
            Err(why) => failures.push(why),
        }
    }
    let verdict = match table.is_empty() {
        true => "Every feature flags pool has all features enabled that a new pool has.\n",
        false => LACKING,
    };
    print(&format!("{FLAGS}{verdict}{table}"))?;
    Ok(finish(&failures))
}

fn explain() -> anyhow::Result<ExitCode> {
    let line = "-".repeat(61);
    let mut text = format!("{FLAGS}The following features are supported:\n\nFEAT DESCRIPTION\n{line}\n");
    for (name, is_readable, description) in features() {
        let note = if is_readable { " (read-only compatible)" } else { "" };
        let heading = format!("{name:<37}{note}");
        text.push_str(&format!("{}\n     {description}\n", heading.trim_end()));
    }
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}
