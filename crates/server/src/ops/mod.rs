//! Every command that changes something, as a value: what it is ([`Operation`]), what came of it ([`Answer`],
//! [`Failure`]), and the one function that does it ([`run`]).
//!
//! ```text
//!   zpool, zfs ──▶ Request ──┬─ a daemon has the pool: POST /v1/ops ─▶ run on the daemon's Host
//!                            └─ nobody has it: open it for writing ─▶ run on a Host of one's own ─▶ close it
//! ```
//!
//! What is refused is refused before anything changes: names, values and permissions are looked at in the view of
//! the last commit, under a lock that lets one operation at a time through; then the change itself is one task
//! in the engine, which checks again what only it can know (space, above all). What only looks passes by that lock, and
//! is given up when nobody waits for it any more, the pool is left, or the daemon ends. A failure's text is what OpenZFS's
//! programs print, to the letter where they have a sentence for it.
//!
//! Not here: words of the command line (`cli`), what datasets are on disk (`engine::dsl`).

use std::{sync::Arc, time::Duration};

use engine::BoxFuture;
use tokio::task::JoinError;

mod answer;
mod closed;
mod create;
mod cut_off;
mod cx;
mod destroy;
mod devices;
mod drives;
mod failure;
mod held;
mod host;
mod lus;
mod names;
mod pools;
mod properties;
mod request;
mod scans;
mod shares;
mod snapshots;
mod upgrade;
mod worked;

pub use answer::{Answer, HistoryEntry, HoldEntry};
pub(crate) use failure::ENDING;
pub use failure::Failure;
pub use held::Held;
pub(crate) use host::{Attempt, IN_USE, LOCK_PATIENCE, Watching, give_back, has_usable_name, seed};
pub use host::{Host, Mode};
pub use lus::LuChange;
pub use request::{
    Assignment, CreateVolume, Destroy, DeviceNew, Operation, PoolAdd, PoolCreate, PoolImport, Request,
    ScanWish, SweepAction, SweepWish, pool_of,
};
pub use shares::ShareChange;

pub use crate::shares::{Credential, Secret};

/// How often a running operation is asked whether its pool was suspended under it.
const LOOK: Duration = Duration::from_millis(200);

/// Does it, on the pools of `host`. Nobody waits for a suspended pool: if the pool is suspended before it is done, this
/// is a refusal that says so, and the operation is finished when the pool goes on. It is done also if this is dropped, but for
/// what [only looks](Operation::only_looks).
///
/// # Errors
/// It is refused, or a pool failed; what [`Failure`] says. Then nothing has changed, unless the text says what.
pub fn run(host: &Arc<Host>, request: Request) -> BoxFuture<'_, Result<Answer, Failure>> {
    Box::pin(async move {
        let operation = &request.operation;
        let (pool, is_remedy) = (operation.pool().to_owned(), operation.is_remedy());
        let only_looks = operation.only_looks();
        let looked_at = host.find(&pool).filter(|_| only_looks);
        let work = {
            let host = Arc::clone(host);
            async move { Box::pin(perform(&host, request)).await }
        };
        let mut done: BoxFuture<'_, Result<Result<Answer, Failure>, JoinError>> = match only_looks {
            // It ends with who asks, or many who do not wait for the answer would ask again and again; and with the daemon,
            // which does not wait for it: the next one can be asked.
            true => Box::pin(async {
                let mut ending = host.ending();
                tokio::select! {
                    biased;
                    // The sender is the host's: it is not gone.
                    _ends = ending.wait_for(|is_so| *is_so) => Ok(Err(Failure::ending())),
                    answer = work => Ok(answer),
                }
            }),
            // Half of a command is no command.
            false => Box::pin(tokio::spawn(work)),
        };
        loop {
            tokio::select! {
                biased;
                ended = &mut done => {
                    return ended.unwrap_or_else(|error| {
                        Err(Failure::new(format!("the operation ended abnormally: {error}")))
                    });
                }
                () = tokio::time::sleep(LOOK) => {}
            }
            let held = host.find(&pool);
            let is_it = |then: &Arc<Held>| held.as_ref().is_some_and(|held| Arc::ptr_eq(held, then));
            if looked_at.as_ref().is_some_and(|then| !is_it(then)) {
                // Its devices are locked as long as somebody looks at it.
                return Err(Failure::no_pool(&pool));
            }
            if let Some(why) = held.and_then(|held| held.suspended()).filter(|_| !is_remedy) {
                let refusal = failure::suspended(&pool, &why);
                let outlook = match only_looks {
                    true => "",
                    false => "\nwhat was begun is finished when the pool goes on",
                };
                return Err(Failure::new(format!("{refusal}{outlook}")));
            }
        }
    })
}

async fn perform(host: &Host, request: Request) -> Result<Answer, Failure> {
    let Request { operation, command, user } = request;
    // One at a time; but whoever has the turn may wait for the very pool that this one brings back. Pools come one after
    // the other, whatever they are called: devices are looked at before they are taken.
    let _turn = match (operation.is_remedy() || operation.only_looks(), operation.brings_a_pool()) {
        (true, _) => None,
        (false, true) => Some(host.next_turn("").await?),
        (false, false) => Some(host.next_turn(operation.pool()).await?),
    };
    let record = command.map(|command| cx::Record { command, user });
    let cx = cx::Cx { host, record };
    match operation {
        Operation::PoolCreate(what) => pools::create(&cx, what).await,
        Operation::PoolDestroy { pool, force } => pools::destroy(&cx, &pool, force).await,
        Operation::PoolExport { pool, force } => pools::export(&cx, &pool, force).await,
        Operation::PoolImport(what) => pools::import(&cx, what).await,
        Operation::PoolAdd(what) => pools::add(&cx, what).await,
        Operation::PoolRemove { pool, devices, dry_run } => {
            pools::remove(&cx, &pool, &devices, dry_run).await
        }
        Operation::PoolSet { pool, property } => pools::set(&cx, &pool, &property).await,
        Operation::PoolUpgrade { pool } => upgrade::upgrade(&cx, &pool).await,
        Operation::PoolSync { pool } => pools::sync(&cx, &pool).await,
        Operation::DeviceOffline { pool, device, temporary, fault } => {
            drives::offline(&cx, &pool, &device, temporary, fault).await
        }
        Operation::DeviceOnline { pool, device, expand } => drives::online(&cx, &pool, &device, expand).await,
        Operation::DeviceAttach(what) => drives::attach(&cx, what).await,
        Operation::DeviceReplace(what) => drives::replace(&cx, what).await,
        Operation::DeviceDetach { pool, device } => drives::detach(&cx, &pool, &device).await,
        Operation::PoolClear { pool, device } => drives::clear(&cx, &pool, device.as_deref()).await,
        Operation::PoolReopen { pool } => drives::reopen(&cx, &pool).await,
        Operation::PoolScan { pool, scan } => scans::scan(&cx, &pool, scan).await,
        Operation::DeviceSweep { pool, devices, sweep, action, rate } => {
            drives::sweep(&cx, &pool, &devices, (sweep, action), rate).await
        }
        Operation::PoolAbandon { pool } => pools::abandon(&cx, &pool).await,
        Operation::History { pool } => pools::history(&cx, &pool).await,
        Operation::CreateVolume(what) => create::volume(&cx, what).await,
        Operation::CreateFilesystem { name, properties, parents, dry_run } => {
            create::filesystem(&cx, &name, &properties, parents, dry_run).await
        }
        Operation::Clone { snapshot, name, properties, parents } => {
            create::clone(&cx, &snapshot, &name, &properties, parents).await
        }
        Operation::Promote { name } => create::promote(&cx, &name).await,
        Operation::Rename { from, to, parents, recursive } => {
            create::rename(&cx, &from, &to, parents, recursive).await
        }
        Operation::Set { name, properties, force } => properties::set(&cx, &name, &properties, force).await,
        Operation::Inherit { name, property, recursive, received, force } => {
            properties::inherit(&cx, &name, &property, (recursive, received), force).await
        }
        Operation::Snapshot { names, recursive, properties } => {
            snapshots::snapshot(&cx, &names, recursive, &properties).await
        }
        Operation::Hold { tag, names, recursive } => {
            snapshots::hold(&cx, &tag, &names, recursive, snapshots::Holding::Hold).await
        }
        Operation::Release { tag, names, recursive } => {
            snapshots::hold(&cx, &tag, &names, recursive, snapshots::Holding::Release).await
        }
        Operation::Holds { names, recursive } => snapshots::holds(&cx, &names, recursive).await,
        Operation::Bookmark { source, name } => snapshots::bookmark(&cx, &source, &name).await,
        Operation::Share { pool, change } => Box::pin(shares::change(&cx, &pool, change)).await,
        Operation::Lu { volume, change } => Box::pin(lus::change(&cx, &volume, change)).await,
        Operation::Destroy(what) => destroy::destroy(&cx, what).await,
        Operation::Rollback { snapshot, recursive, clones } => {
            destroy::rollback(&cx, &snapshot, recursive, clones).await
        }
    }
}
