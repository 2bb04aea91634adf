//! `millpond prewarm`: reads again what was warm, or shows how far that is.

use std::{process::ExitCode, time::Duration};

use server::{
    api::prewarm::{Prewarm, PrewarmWish},
    pool::{status::human, time::duration},
};

use crate::{
    args::PrewarmArgs,
    context::{Context, FAILED, print},
    progress::{Amount, Meter},
};

/// How often is asked how far it is.
const LOOK: Duration = Duration::from_millis(100);

pub(crate) async fn run(args: PrewarmArgs, context: &Context) -> anyhow::Result<ExitCode> {
    let Some(daemon) = context
        .serving_daemon("pre-warm", "what is warmed is the memory of the process that serves the volumes")
        .await?
    else {
        return Ok(ExitCode::from(FAILED));
    };
    let wish = PrewarmWish { pool: args.pool, stop: args.stop };
    let mut now = daemon.prewarm(&wish).await?.pools;
    if args.wait && !args.stop {
        let mut meter = Meter::of_blocks("pre-warm");
        while now.iter().any(|pool| pool.state == "running") {
            let sum = |part: fn(&Prewarm) -> u64| now.iter().map(part).sum::<u64>();
            let amount = Amount {
                done: sum(|pool| pool.memory_done + pool.device_done),
                total: sum(|pool| pool.memory_total + pool.device_total),
            };
            meter.show_blocks("pre-warm", amount, rate(&now));
            tokio::time::sleep(LOOK).await;
            let names: Vec<String> = now.iter().map(|pool| pool.guid.clone()).collect();
            now = daemon.prewarm_state().await?.pools;
            now.retain(|pool| names.contains(&pool.guid));
        }
        meter.end();
    }
    for pool in &now {
        print(&match args.json {
            true => format!("{}\n", serde_json::to_string(pool)?),
            false => line(pool),
        })?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Bytes per second of all that run: they do so side by side.
fn rate(pools: &[Prewarm]) -> u64 {
    let running = pools.iter().filter(|pool| pool.state == "running");
    running.map(|pool| (u128::from(pool.bytes) * 1000 / u128::from(pool.ms.max(1))) as u64).sum()
}

fn line(pool: &Prewarm) -> String {
    let Prewarm { pool: name, state, memory_done, memory_total, device_done, device_total, .. } = pool;
    let what = match state.as_str() {
        "none" => return format!("{name}: nothing was pre-warmed since the pool was opened\n"),
        "running" => "under way",
        "full" => {
            "ended, memory or cache devices are full, or there was no memory for all that was remembered"
        }
        "stopped" => "stopped",
        _ => "complete",
    };
    format!(
        "{name}: {what}: {memory_done} of {memory_total} blocks in memory, {device_done} of {device_total} on cache \
         devices; {} read in {}\n",
        human(pool.bytes),
        duration(pool.ms / 1000)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four pools side by side were told as slow as one, and one that had ended long ago made it slower still.
    #[test]
    fn pools_that_are_warmed_side_by_side_are_as_fast_as_all_of_them_together() {
        let pool = |state: &str, bytes, ms| Prewarm { state: state.into(), bytes, ms, ..Prewarm::default() };
        let pools = [pool("running", 4000, 2000), pool("running", 3000, 1000), pool("complete", 9000, 9000)];
        assert_eq!(rate(&pools), 5000);
        assert_eq!(rate(&[pool("running", 0, 0)]), 0);
    }

    /// It was said to be full on a small machine with what a large one remembered, whatever was free there.
    #[test]
    fn what_ended_because_memory_had_no_room_for_all_that_was_remembered_is_not_said_to_be_full() {
        let pool = Prewarm {
            pool: "tank".into(),
            state: "full".into(),
            memory_done: 88_000,
            memory_total: 88_000,
            ..Prewarm::default()
        };
        let said = line(&pool);
        let told =
            "or there was no memory for all that was remembered: 88000 of 88000 blocks in memory, 0 of 0";
        assert!(said.contains(told), "{said}");
    }
}
