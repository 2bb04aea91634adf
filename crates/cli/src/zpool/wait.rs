//! Waiting for what goes on in a pool: `zpool wait`, and `-w` of the commands that begin something.
//!
//! With a daemon it goes on there, and is asked about. Without one it goes on in this very process, which has the pool
//! open: it stays until the scan is over, because nobody else would finish it. Interrupted, it closes the pool properly;
//! the scan goes on when the pool is opened next, and whoever waits for it then opens it. So it does for a daemon that
//! comes meanwhile: its hosts must not wait for the end of a scrub.

use std::{process::ExitCode, time::Duration};

use clap::ValueEnum as _;
use server::{
    api::{Device, Pool, Sweep},
    ops::{Failure, Operation},
    pool::{props::value::bytes, time::duration},
};

use crate::{
    act::Act,
    args::{Activity, ZpoolWait},
    ask::Ask,
    context::{Context, print},
    progress::{Amount, Meter},
    repeat,
    table::{Column, render},
};

/// What goes on in the process that has the pool open.
const OF_THE_ENGINE: [Activity; 4] =
    [Activity::Scrub, Activity::Resilver, Activity::Initialize, Activity::Trim];
/// How often it is looked whether it is over.
const LOOK: Duration = Duration::from_millis(200);
/// How long a device that is being replaced may stay without a resilver, before waiting for it has no use any more.
const STUCK: Duration = Duration::from_secs(10);

/// How long to wait.
#[derive(Clone, Copy, Debug)]
enum Until<'a> {
    /// None of these is under way.
    Over(&'a [Activity]),
    /// Nothing is under way that ends with this process.
    Idle,
}

/// Bytes left of something that is under way, of a scrub of the error log blocks; `None` if it is not. What has to be read
/// from the pool and is not known as of the commit of `txg` is under way: nobody knows that it is over.
fn left(pool: &Pool, activity: Activity, txg: u64) -> Option<u64> {
    let scan = pool.scan_stats.as_ref().filter(|scan| scan.is_under_way() && scan.paused == 0);
    let of_scan = |function: &str| {
        let scan = scan.filter(|scan| scan.function == function)?;
        Some(scan.to_examine.saturating_sub(scan.issued.max(scan.skipped)))
    };
    let of_log = || {
        let scrub = pool.error_scrub.as_ref().filter(|scrub| scrub.is_under_way() && scrub.paused == 0)?;
        Some(scrub.to_examine.saturating_sub(scrub.examined))
    };
    match activity {
        Activity::Scrub => of_scan("SCRUB").or_else(of_log),
        Activity::Resilver => of_scan("RESILVER"),
        Activity::Replace => is_replacing(&pool.root).then(|| of_scan("RESILVER").unwrap_or(0)),
        Activity::Free => {
            let freeing = freeing(pool).unwrap_or(0);
            (freeing > 0 || pool.is_open() && !is_freeing_known(pool, txg)).then_some(freeing)
        }
        Activity::Remove => pool.removal.as_ref().filter(|line| line.contains("in progress")).map(|_| 0),
        Activity::RaidzExpand => {
            pool.expansion.as_ref().filter(|line| line.contains("in progress")).map(|_| 0)
        }
        // Checkpoints are not supported, so none is discarded.
        Activity::Discard => None,
        Activity::Initialize => {
            sweeping(&pool.root, &|device| device.initialize.as_ref()).map(|at| at.left())
        }
        Activity::Trim => sweeping(&pool.root, &|device| device.trim.as_ref()).map(|at| at.left()),
    }
}

/// Bytes that are still to be freed, if that was read.
fn freeing(pool: &Pool) -> Option<u64> {
    pool.property("freeing")?.exact.parse().ok()
}

/// Whether that was read as of the commit of `txg` or a later one.
fn is_freeing_known(pool: &Pool, txg: u64) -> bool {
    freeing(pool).is_some() && pool.known_txg.is_none_or(|known| known >= txg)
}

/// Why that is not known, if it could not be read.
fn unreadable(pool: &Pool, txg: u64) -> Option<String> {
    let is_read = pool.known_txg.is_some_and(|known| known >= txg);
    (is_read && freeing(pool).is_none()).then(|| match &pool.problems[..] {
        [] => "its properties cannot be read".to_owned(),
        problems => problems.join("\n"),
    })
}

/// How far the sweeps are that run on a device and all below, together; `None` if there is none.
fn sweeping<'a>(device: &'a Device, of: &dyn Fn(&'a Device) -> Option<&'a Sweep>) -> Option<Amount> {
    let own = of(device).filter(|sweep| sweep.state == "ACTIVE");
    let own = own.map(|sweep| Amount { done: sweep.done, total: sweep.total });
    let below = device.children.iter().filter_map(|child| sweeping(child, of));
    own.into_iter().chain(below).reduce(|a, b| Amount { done: a.done + b.done, total: a.total + b.total })
}

fn is_replacing(device: &Device) -> bool {
    device.kind == "replacing" || device.children.iter().any(is_replacing)
}

impl Until<'_> {
    /// `txg` is of the first look: what was under way then is in its commit.
    fn is_over(self, pool: &Pool, txg: u64) -> bool {
        match self {
            Self::Over(activities) => activities.iter().all(|activity| left(pool, *activity, txg).is_none()),
            Self::Idle => Self::Over(&OF_THE_ENGINE).is_over(pool, txg),
        }
    }

    /// Why nobody will know when it is over, if that is so and nothing else is waited for.
    fn hidden(self, pool: &Pool, txg: u64) -> Option<Failure> {
        let Self::Over(activities) = self else { return None };
        let is_left = |activity: &&Activity| left(pool, **activity, txg).is_some();
        if activities.iter().filter(is_left).any(|activity| *activity != Activity::Free) {
            return None;
        }
        let why = unreadable(pool, txg).filter(|_| activities.contains(&Activity::Free))?;
        let name = &pool.name;
        Some(Failure::new(format!("cannot wait for '{name}': what it still frees is not known: {why}")))
    }
}

/// Waits, with a bar. What is wrong is remembered in `act`.
async fn until(act: &mut Act, pool: &str, until: Until<'_>) {
    let mut meter = Meter::new(pool);
    let (mut stuck, mut first) = (Duration::ZERO, None);
    loop {
        if act.give_way(pool).await && matches!(until, Until::Idle) {
            break;
        }
        let now = match act.look(pool).await {
            Ok(Some(now)) => now,
            Ok(None) => {
                act.refuse(Failure::new(format!("cannot wait for '{pool}': it was exported")));
                break;
            }
            Err(failure) => {
                act.refuse(Failure::because(&format!("cannot wait for '{pool}'"), failure));
                break;
            }
        };
        let txg = *first.get_or_insert(now.txg);
        if until.is_over(&now, txg) {
            break;
        }
        if let Some(failure) = until.hidden(&now, txg) {
            act.refuse(failure);
            break;
        }
        if let Some(why) = &now.suspended {
            act.refuse(Failure::new(format!(
                "cannot wait for '{pool}': pool I/O is currently suspended: {why}"
            )));
            break;
        }
        match now.scan_stats.as_ref().filter(|scan| scan.is_under_way()) {
            Some(scan) => {
                stuck = Duration::ZERO;
                let rest = match scan.remaining {
                    Some((least, most)) if least != most => {
                        format!("{} to {} to go", duration(least), duration(most))
                    }
                    Some((rest, _)) => format!("{} to go", duration(rest)),
                    None => "no estimated completion time".to_owned(),
                };
                let what = format!("{} {pool}", scan.function.to_lowercase());
                meter.show(
                    &what,
                    Amount { done: scan.issued, total: scan.to_examine },
                    scan.issued_rate,
                    &rest,
                );
            }
            None if now.error_scrub.as_ref().is_some_and(|scrub| scrub.is_under_way()) => {}
            None if is_replacing(&now.root) => {
                stuck += LOOK;
                if stuck >= STUCK {
                    act.refuse(Failure::new(format!(
                        "cannot wait for '{pool}': a device is still being replaced, and nothing fills it\n'zpool status \
                         {pool}' says why; 'zpool resilver {pool}' begins anew"
                    )));
                    break;
                }
            }
            None => {
                for (word, amount) in [
                    ("initialize", sweeping(&now.root, &|device| device.initialize.as_ref())),
                    ("trim", sweeping(&now.root, &|device| device.trim.as_ref())),
                ] {
                    if let Some(amount) = amount {
                        meter.show_amount(&format!("{word} {pool}"), amount);
                    }
                }
            }
        }
        tokio::time::sleep(LOOK).await;
    }
    meter.end();
}

/// After something was begun: it is waited for if that is `asked`, or if nobody else would go on with it.
pub(crate) async fn follow(act: &mut Act, pool: &str, asked: Option<Activity>) {
    if by_oneself(act, pool).await
        && let Some(activity) = asked
    {
        until(act, pool, Until::Over(&[activity])).await;
    }
}

/// Without a daemon: stays until the scan that was begun is over, somebody interrupts, or a daemon comes that goes on with
/// it. With one: nothing. Whether it is a daemon's in the end.
async fn by_oneself(act: &mut Act, pool: &str) -> bool {
    if act.daemon_has(pool).await {
        return true;
    }
    let is_interrupted = tokio::select! {
        () = until(act, pool, Until::Idle) => false,
        _ = tokio::signal::ctrl_c() => true,
    };
    if is_interrupted {
        act.refuse(interrupted(pool));
        return false;
    }
    let is_taken = act.daemon_has(pool).await;
    if is_taken {
        say!("a daemon has come and has '{pool}' open now: what was begun goes on there");
    }
    is_taken
}

fn interrupted(pool: &str) -> Failure {
    Failure::new(format!(
        "interrupted: it goes on when '{pool}' is opened for writing next\nto go on: 'zpool wait {pool}' or 'millpond \
         serve {pool}'"
    ))
}

/// Without a daemon: opens the pool, if something that is waited for and goes on in whoever has it open was left in the
/// middle. Whether there is something to wait for; what cannot be waited for is remembered in `act`.
async fn take_up(
    act: &mut Act,
    context: &Context,
    args: &ZpoolWait,
    activities: &[Activity],
) -> anyhow::Result<bool> {
    let answer = Ask::new(context).await?.pools(std::slice::from_ref(&args.pool)).await?;
    answer.failures.into_iter().for_each(|failure| act.refuse(Failure::new(failure)));
    let mut is_open = false;
    for found in answer.found.iter().filter(|found| !Until::Over(activities).is_over(found, found.txg)) {
        if Until::Idle.is_over(found, found.txg) {
            act.refuse(Failure::new(format!(
                "cannot wait for '{name}': nobody has it open, so nothing goes on\nto go on: 'millpond serve {name}'",
                name = found.name
            )));
        } else {
            is_open = act.attempt(Operation::PoolSync { pool: args.pool.clone() }).await.is_some();
        }
    }
    Ok(is_open)
}

pub(crate) async fn run(args: ZpoolWait, context: &Context) -> anyhow::Result<ExitCode> {
    let asked: Vec<String> = args.interval.iter().cloned().collect();
    let asked = repeat::parse(&asked).map_err(|wrong| context.usage(&["zpool", "wait"], &wrong))?;
    if let Some(word) = asked.names.first() {
        return Err(context.usage(&["zpool", "wait"], &format!("invalid interval '{word}'")).into());
    }
    let activities = match &args.activities[..] {
        [] => Activity::value_variants(),
        activities => activities,
    };
    let mut act = Act::new(context).await?;
    let is_here = !act.daemon_has(&args.pool).await;
    if is_here && !take_up(&mut act, context, &args, activities).await? {
        return Ok(act.finish().await);
    }
    let waited = tokio::select! {
        waited = watch(&mut act, &args, activities, asked.interval) => waited.map(|()| false),
        _ = tokio::signal::ctrl_c(), if is_here => Ok(true),
    };
    if matches!(waited, Ok(true)) && !act.daemon_has(&args.pool).await {
        act.refuse(interrupted(&args.pool));
    }
    // Whatever came of it, a pool that was opened here is closed.
    let code = act.finish().await;
    waited.map(|_| code)
}

/// Waits, with a bar, or with a report each interval.
async fn watch(
    act: &mut Act,
    args: &ZpoolWait,
    activities: &[Activity],
    interval: Option<Duration>,
) -> anyhow::Result<()> {
    let Some(interval) = interval else {
        until(act, &args.pool, Until::Over(activities)).await;
        return Ok(());
    };
    let mut first = None;
    loop {
        // Whoever has it, it is asked about.
        act.give_way(&args.pool).await;
        let now = match act.look(&args.pool).await {
            Ok(Some(now)) => now,
            Ok(None) => {
                act.refuse(Failure::no_pool(&args.pool));
                break;
            }
            Err(failure) => {
                act.refuse(Failure::because(&format!("cannot wait for '{}'", args.pool), failure));
                break;
            }
        };
        let is_first = first.is_none();
        let txg = *first.get_or_insert(now.txg);
        print(&report(&now, activities, args, is_first, txg))?;
        if Until::Over(activities).is_over(&now, txg) {
            break;
        }
        if let Some(failure) = Until::Over(activities).hidden(&now, txg) {
            act.refuse(failure);
            break;
        }
        tokio::time::sleep(interval).await;
    }
    Ok(())
}

/// One line with what is left of each activity.
fn report(pool: &Pool, activities: &[Activity], args: &ZpoolWait, with_header: bool, txg: u64) -> String {
    let name = |activity: &Activity| {
        activity.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    };
    let columns: Vec<Column> = activities.iter().map(|activity| Column::right(&name(activity), 6)).collect();
    let cell = |activity: &Activity| match left(pool, *activity, txg) {
        None => "-".to_owned(),
        Some(left) if args.exact => left.to_string(),
        Some(left) => bytes(left),
    };
    let row: Vec<String> = activities.iter().map(cell).collect();
    let text = render(&columns, &[row], args.scripted);
    match with_header || args.scripted {
        true => text,
        false => text.lines().skip(1).map(|line| format!("{line}\n")).collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pool(txg: u64, known_txg: Option<u64>, freeing: Option<&str>) -> Pool {
        let property =
            |bytes: &str| json!({ "name": "freeing", "value": bytes, "exact": bytes, "source": "none" });
        serde_json::from_value(json!({
            "name": "tank", "guid": "7", "state": "ONLINE", "txg": txg, "known_txg": known_txg, "errors": 0,
            "properties": freeing.into_iter().map(property).collect::<Vec<_>>(),
            "root": {
                "name": "tank", "kind": "root", "guid": "7", "class": "normal", "state": "ONLINE", "present": true,
                "read_errors": 0, "write_errors": 0, "checksum_errors": 0,
            },
        }))
        .unwrap()
    }

    /// It was over at once in a pool whose devices had not answered yet, or had answered last before what is freed was
    /// destroyed: scripts took the space for there.
    #[test]
    fn freeing_is_not_over_before_somebody_has_read_that() {
        let left = |pool: &Pool| left(pool, Activity::Free, 61);
        assert_eq!(left(&pool(61, None, None)), Some(0), "nothing is known");
        assert_eq!(left(&pool(63, Some(60), Some("0"))), Some(0), "as of before");
        assert_eq!(left(&pool(63, Some(61), Some("512"))), Some(512));
        assert_eq!(left(&pool(63, Some(61), Some("0"))), None);
        assert_eq!(left(&pool(63, None, Some("0"))), None, "of a daemon that does not tell");
        assert_eq!(left(&pool(0, None, None)), None, "it is not open: nothing goes on");
    }

    /// Who waited would have waited for ever.
    #[test]
    fn freeing_that_cannot_be_read_is_not_waited_for() {
        let until = Until::Over(&[Activity::Scrub, Activity::Free]);
        assert!(until.hidden(&pool(61, None, None), 61).is_none(), "it may still be read");
        let failure = until.hidden(&pool(61, Some(61), None), 61).unwrap();
        assert!(failure.to_string().contains("what it still frees is not known"), "{failure}");
        assert!(Until::Over(&[Activity::Scrub]).hidden(&pool(61, Some(61), None), 61).is_none());
        assert!(until.hidden(&pool(61, Some(61), Some("512")), 61).is_none());
    }
}
