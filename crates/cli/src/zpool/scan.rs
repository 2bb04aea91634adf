//! `zpool scrub` and `zpool resilver`.

use std::process::ExitCode;

use server::ops::{Operation, ScanWish};

use super::{change::imported, wait};
use crate::{
    act::Act,
    args::{Activity, ZpoolResilver, ZpoolScrub},
    context::Context,
};

pub(crate) async fn scrub(args: ZpoolScrub, context: &Context) -> anyhow::Result<ExitCode> {
    let scan = match () {
        () if args.stop => ScanWish::Stop,
        () if args.pause => ScanWish::Pause,
        () if args.errors => ScanWish::ScrubErrors,
        () if args.continue_from_last => ScanWish::ScrubNew,
        () => ScanWish::Scrub,
    };
    let mut act = Act::new(context).await?;
    let mut begun = Vec::new();
    let pools = if args.all { imported(&act, context).await? } else { args.pools };
    for pool in pools {
        if act.attempt(Operation::PoolScan { pool: pool.clone(), scan }).await.is_some() {
            begun.push(pool);
        }
    }
    if matches!(scan, ScanWish::Scrub | ScanWish::ScrubErrors | ScanWish::ScrubNew) {
        for pool in begun {
            wait::follow(&mut act, &pool, args.wait.then_some(Activity::Scrub)).await;
        }
    }
    Ok(act.finish().await)
}

pub(crate) async fn resilver(args: ZpoolResilver, context: &Context) -> anyhow::Result<ExitCode> {
    let mut act = Act::new(context).await?;
    for pool in args.pools {
        let begun = act.attempt(Operation::PoolScan { pool: pool.clone(), scan: ScanWish::Resilver }).await;
        if begun.is_some() {
            wait::follow(&mut act, &pool, None).await;
        }
    }
    Ok(act.finish().await)
}
