//! Hosts that open a pool with `multihost=on` at the same moment: one of them at most goes on.
//!
//! Who waits for a heartbeat does not hear of others that wait as well, and nothing is seen of a host that reads a pool until
//! its first transaction group is durable. So before that it says that it is there: it writes the newest uberblock again, as a
//! heartbeat does, with a time and a sequence number of its own. It is the claim of the pool, and goes into the slot for
//! heartbeats of every label: who claims later overwrites it. Then it waits, and looks again.
//!
//! ```text
//!   one     waits for heartbeats ─ looks ─ claims ─ ─ ─ ─ waits ─ ─ ─ ─ looks: somebody else's ─▶ refused
//!   other   ─ ─ waits for heartbeats ─ looks ─ ─ claims ─ ─ ─ ─ waits ─ ─ ─ ─ looks: its own ─▶ beats, then commits
//! ```
//!
//! Who claims when the other has looked already finds its heartbeats, which begin at once. And if that one stands still
//! meanwhile, it is as with any host that was silent for too long: [`Alive`](super::multihost::Alive) is asked before
//! everything that the first transaction group writes.
//!
//! A host whose name is in the labels claims like others: while it was away somebody may have begun to take the pool by force.
//!
//! To others a claim is a host that lives. So who could not commit does not claim: before, the newest uberblock is written just as
//! it is, which nobody takes for anything new, and on too few devices that is the end. Else a host that tries again and again with
//! devices that refuse its writes would keep all others from the pool.

use std::{sync::Arc, time::Duration};

use disk::Disk;
use futures_util::{StreamExt, future::join_all, stream};
use ondisk::{
    Order,
    label::LABELS,
    uberblock::{Mmp, Rank, Uberblock},
};
use pool::{
    import::Device,
    vdev::{Tree, deadline::within},
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout_at},
};

use super::multihost::{Committed, FAIL_INTERVALS, Heartbeats, INTERVAL_MS, PATIENCE};
use crate::{BoxFuture, EngineError, devices::Absent, sync::Syncer, write::labels};

/// From a claim to the look: in that time a host beats several times. Each start of a pool takes as long.
const WAIT: Duration = Duration::from_millis(5 * INTERVAL_MS);
/// How long more a device is waited for that does not answer, when as many have answered well as a commit needs: whoever looks
/// finds it on those.
const GRACE: Duration = Duration::from_millis(INTERVAL_MS);
/// How long labels are read. Shorter than who looks may be silent.
const LOOK: Duration = Duration::from_millis(INTERVAL_MS * FAIL_INTERVALS as u64 / 2);
/// Devices that are looked at together: the labels of each are a MiB.
const LOOKED_AT_ONCE: usize = 16;

/// Claims a pool that was opened and has `multihost` on, and begins its heartbeats. `now` is the wall clock in seconds.
///
/// # Errors
/// Another host claims it, or has it; or too few devices take what is written, or none gives the claim back.
pub(crate) fn exclude<'a>(
    cx: &'a mut Syncer,
    heartbeats: &'a mut Heartbeats,
    now: fn() -> u64,
) -> BoxFuture<'a, Result<(), EngineError>> {
    Box::pin(async move {
        // A new pool is known to nobody yet.
        let Some(view) = cx.view.as_ref().filter(|_| cx.multihost) else { return Ok(()) };
        let (known, tree) = (*view.newest_uberblock(), cx.io.tree());
        let begun = Instant::now();
        // Since then much of the pool was read.
        if !beyond(&tree, known.rank()).await.is_empty() {
            return Err(taken());
        }
        let known_again = Uberblock { order: Order::Little, ..known };
        spread(&tree, known_again).await?;
        let claim = Uberblock {
            timestamp: now().max(known.timestamp.saturating_add(1)),
            mmp: Some(Mmp {
                // Within the interval: another thing by which claims of the same second differ.
                delay_ns: INTERVAL_MS * 1_000_000 + cx.random.random_range(0..1_000_000_u64),
                config: Mmp::pack(INTERVAL_MS, cx.random.random_range(1..=u16::MAX), FAIL_INTERVALS),
            }),
            ..known_again
        };
        let claimed = spread(&tree, claim).await?;
        // Devices that are slow are so for others, whose claims may be on their way as long as this one was.
        sleep(WAIT + claimed.duration_since(begun) * 2).await;
        // Before the look: what is seen there is from now on.
        heartbeats.alive().on();
        let found = beyond(&tree, known.rank()).await;
        let is_own = |found: &Uberblock| (found.rank(), found.mmp) == (claim.rank(), claim.mmp);
        if !found.iter().all(is_own) {
            return Err(taken());
        }
        if found.is_empty() {
            return Err(unclaimed());
        }
        // Above the claim, whatever its sequence number is.
        let uberblock = Uberblock { timestamp: claim.timestamp.saturating_add(1), ..claim };
        let random = StdRng::seed_from_u64(cx.guid ^ cx.txg);
        heartbeats.begin(Committed { uberblock, io: Arc::clone(&cx.io) }, random, now);
        Ok(())
    })
}

/// Gives `uberblock` to every label of every leaf, in the place of heartbeats. Says when the last leaf had it of those that were
/// waited for: longer than [`GRACE`] only for those without which nothing can be committed.
///
/// # Errors
/// So many refuse it that nothing could be committed, or none takes it.
async fn spread(tree: &Arc<Tree>, uberblock: Uberblock) -> Result<Instant, EngineError> {
    let mut without = labels::guids(tree);
    let mut writes = JoinSet::new();
    for (leaf, guid) in without.iter().copied().enumerate() {
        let tree = Arc::clone(tree);
        writes.spawn(async move {
            let mut each = Vec::with_capacity(LABELS);
            for label in 0..LABELS {
                each.push(labels::heartbeat(&tree, leaf, label, &uberblock));
            }
            (guid, join_all(each).await.into_iter().reduce(Result::or))
        });
    }
    let (mut refused, mut had) = (Vec::new(), None);
    let mut until = Instant::now() + PATIENCE;
    while let Ok(Some(written)) = timeout_at(until, writes.join_next()).await {
        let Ok((guid, Some(outcome))) = written else { continue };
        match outcome {
            Ok(()) => {
                without.retain(|leaf| *leaf != guid);
                had = Some(Instant::now());
            }
            Err(error) => {
                refused.push(guid);
                if Absent::of(refused.clone()).cuts_off(tree) {
                    writes.detach_all();
                    return Err(error);
                }
            }
        }
        if had.is_some() && !Absent::of(without.clone()).cuts_off(tree) {
            until = until.min(Instant::now() + GRACE);
        }
    }
    // They end as every write does: a leaf on which one may still land knows of that.
    writes.detach_all();
    had.ok_or_else(|| EngineError::Device("no device takes an uberblock".to_owned()))
}

fn taken() -> EngineError {
    let text =
        "another host is importing it at this moment, or has imported it; leave it to that one, or try again";
    EngineError::Device(text.to_owned())
}

/// Who had looked already may have written over the claim, and not claimed yet; or devices lose what they take.
fn unclaimed() -> EngineError {
    let text = "no device gives back the uberblock that claims it: another host may be importing it at this moment, or have \
                imported it; leave it to that one, or try again";
    EngineError::Device(text.to_owned())
}

/// All uberblocks better than that on devices that answer in time. Not only the best: the clock of whoever wrote another may be
/// behind.
async fn beyond(tree: &Tree, known: Rank) -> Vec<Uberblock> {
    let disks: Vec<Arc<dyn Disk>> = labels::disks(tree);
    let looks: Vec<_> = disks.into_iter().map(|disk| within(Device::read(disk), LOOK)).collect();
    let mut looks = stream::iter(looks).buffer_unordered(LOOKED_AT_ONCE);
    let mut found = Vec::new();
    while let Some(device) = looks.next().await {
        if let Some(Ok(Some(device))) = device {
            found.extend(device.uberblocks.into_values().filter(|uberblock| uberblock.rank() > known));
        }
    }
    found
}
