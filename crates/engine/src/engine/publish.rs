//! What a commit means for those who use the pool: volumes, views, logs, whoever waited.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use block::BlockVolume as _;
use pool::{
    Pool,
    dmu::{ObjectSet, ReadError},
    dsl::LookupError,
};

use super::{
    Conduct, OpenError, Shared,
    volumes::{content, dataset_phys, describe, price, price_above},
};
use crate::{
    EngineError, dsl,
    suspend::may_pass,
    sync::{Change, Done, Syncer},
    volume::{LiveVolume, Service},
};

/// Pause between portions of what is to be freed for destroyed datasets, so that clients come first.
const FREE_PAUSE: Duration = Duration::from_millis(50);

/// How long a transaction group took.
pub(super) struct Took {
    pub(super) elapsed: Duration,
    /// The pool was suspended in it: how long that was says nothing of others.
    pub(super) was_suspended: bool,
}

/// Tells everybody what was committed. The order matters: volumes read from the new state before the view shows
/// it, and whoever waited for durability finds both.
pub(super) async fn publish(shared: &Arc<Shared>, syncer: &Syncer, txg: u64, done: Done, took: Took) {
    {
        let mut statistics = shared.statistics.lock();
        statistics.txgs += 1;
        statistics.written.blocks += done.written.blocks;
        statistics.written.bytes += done.written.bytes;
        statistics.written.device_bytes += done.written.device_bytes;
        statistics.syncing += took.elapsed;
        if !took.was_suspended {
            statistics.longest = statistics.longest.max(took.elapsed);
        }
    }
    let find = |dataset: &u64| shared.volumes.lock().get(dataset).cloned();
    for (dataset, data) in done.volumes {
        if let Some(volume) = find(&dataset) {
            volume.committed(txg, data);
        }
    }
    if let Some(view) = &syncer.view {
        // Before the view: who opens a volume looks at that first, and at this afterwards.
        if **shared.shrinking.load() != syncer.shrinking {
            shared.shrinking.store(Arc::new(syncer.shrinking.clone()));
        }
        shared.view.store(Arc::clone(view));
        shared.second.follow(|| Arc::clone(view));
        if let Ok(conduct) = Conduct::of(view).await {
            shared.conduct_is(conduct);
        }
        let mut of_caches = BTreeSet::new();
        for change in done.changes {
            if let Change::Caching(number) = change {
                of_caches.insert(number);
            }
            tell(shared, view, change).await;
        }
        tell_of_snapshots(shared, view, &of_caches).await;
        if done.other_devices {
            // Other devices, other prices.
            let volumes: Vec<Arc<LiveVolume>> = shared.volumes.lock().values().cloned().collect();
            for volume in volumes {
                let service = volume.service();
                let block_space = price(view, service.block.into(), service.copies);
                let indirect_space = price_above(view, service.copies);
                volume.update(volume.identity(), Service { block_space, indirect_space, ..service });
            }
        }
    }
    syncer.io.forget_freed();
    for log in shared.logs.all() {
        log.committed(txg);
    }
    for vdev in shared.means.space.barred() {
        if shared.means.direct.takes_writes(vdev) {
            shared.means.space.readmit_device(vdev);
        }
    }
    for (dataset, holding) in done.holdings {
        if let Some(volume) = find(&dataset) {
            volume.set_holding(holding);
        }
    }
    shared.txgs.synced(txg, done.supply, done.rooms);
    if let Some(pause) = done.more_to_do {
        let txgs = Arc::clone(&shared.txgs);
        tokio::spawn(async move {
            tokio::time::sleep(pause.max(FREE_PAUSE)).await;
            txgs.wake();
        });
    }
}

/// Tells an open volume what happened to its dataset.
async fn tell(shared: &Shared, view: &Arc<Pool>, change: Change) {
    let (Change::Content(number)
    | Change::Renamed(number)
    | Change::Destroyed(number)
    | Change::Properties(number)
    | Change::Caching(number)) = change;
    if change == Change::Destroyed(number) {
        view.io().cache().forget_dataset(view.guid(), number);
        view.io().forget_wishes(number);
    }
    serve_again(shared, view, &change).await;
    let Some(volume) = shared.volumes.lock().get(&number).cloned() else {
        return;
    };
    if change == Change::Destroyed(number) {
        volume.close();
        shared.volumes.lock().remove(&number);
        return;
    }
    loop {
        let before = shared.suspension.before();
        let Err(error) = follow(shared, view, &volume, &change).await else { return };
        // Devices that are away are waited for, as for everything a commit needs.
        let goes_on = match cut_off(&error) {
            Some(why) => shared.suspension.wait(before, why).await.is_ok(),
            None => false,
        };
        if !goes_on {
            tracing::error!(%error, dataset = number, "an open volume cannot be read any more");
            // It stays among the others: what was acknowledged before has still to be synced.
            volume.close();
            return;
        }
    }
}

/// A volume whose log could not be replayed is served again once that log has gone with its content; and so is who gets its
/// number when it is destroyed.
async fn serve_again(shared: &Shared, view: &Pool, change: &Change) {
    let (Change::Content(number) | Change::Destroyed(number)) = *change else { return };
    if !shared.replayed.lock().failed.contains_key(&number) {
        return;
    }
    if matches!(change, Change::Content(_)) {
        match has_waiting_log(view, number).await {
            Ok(false) => {}
            // Another size is no other content.
            Ok(true) => return,
            Err(error) => {
                tracing::warn!(%error, dataset = number, "whether its intent log is still there cannot be told");
                return;
            }
        }
    }
    shared.replayed.lock().failed.remove(&number);
}

/// Whether a head has a log with records that wait to be replayed.
async fn has_waiting_log(view: &Pool, number: u64) -> Result<bool, ReadError> {
    let phys = dataset_phys(view, number).await?;
    let set = ObjectSet::open(view.io().clone(), number, phys.bp).await?;
    Ok(dsl::waits(set.phys()))
}

/// Tells the caches what open snapshots of these datasets want now: as their volumes, unless they have properties of their own.
/// Each of them is looked at once, however many volumes there are: there may be tens of thousands.
async fn tell_of_snapshots(shared: &Shared, view: &Arc<Pool>, heads: &BTreeSet<u64>) {
    if heads.is_empty() {
        return;
    }
    let mut told = view.io().told_of();
    {
        let volumes = shared.volumes.lock();
        told.retain(|object| !heads.contains(object) && !volumes.contains_key(object));
    }
    if told.is_empty() {
        return;
    }
    // They are cached as they were before.
    let stays = |number: u64, error: &OpenError| {
        tracing::warn!(%error, dataset = number, "snapshots do not follow the properties of their volume");
    };
    let mut of_dirs = BTreeMap::new();
    for &number in heads {
        match dataset_phys(view, number).await {
            Ok(phys) => {
                of_dirs.insert(phys.dir, (number, Vec::new()));
            }
            Err(error) => stays(number, &OpenError::Read(error)),
        }
    }
    // One that cannot be read is found again below, if it is a snapshot of any of these.
    let mut unread = Vec::new();
    for object in told {
        match dataset_phys(view, object).await {
            Ok(phys) => {
                if let Some((_, snapshots)) = of_dirs.get_mut(&phys.dir) {
                    snapshots.push(object);
                }
            }
            Err(_) => unread.push(object),
        }
    }
    for (number, mut snapshots) in of_dirs.into_values() {
        snapshots.extend(&unread);
        if let Err(error) = tell_of_these(view, number, &snapshots).await {
            stays(number, &error);
        }
    }
}

/// The same of those of these snapshots that are a dataset's.
async fn tell_of_these(view: &Arc<Pool>, number: u64, snapshots: &[u64]) -> Result<(), OpenError> {
    if snapshots.is_empty() {
        return Ok(());
    }
    let dsl = view.dsl().await?;
    let Some(name) = dsl.head_name(number).await? else { return Ok(()) };
    let mut told = Ok(());
    for snapshot in dsl.lookup(&name).await?.snapshots_among(snapshots).await? {
        // One that is damaged is in no other's way.
        if let Err(error) = snapshot.tell_caches(&**view.io()).await {
            told = Err(error.into());
        }
    }
    told
}

/// Shows an open volume its dataset as it is now.
async fn follow(
    shared: &Shared,
    view: &Arc<Pool>,
    volume: &LiveVolume,
    change: &Change,
) -> Result<(), OpenError> {
    let number = volume.dataset();
    let (data, name) = content(view, number).await?;
    if matches!(change, Change::Content(_)) {
        volume.replaced(data);
    }
    let dataset = view.dsl().await?.lookup(&name).await?;
    let (identity, service) = describe(view, &dataset).await?;
    volume.update(identity, shared.within(number, service));
    Ok(())
}

/// Why something could not be read, if that is only that devices are away.
fn cut_off(error: &OpenError) -> Option<EngineError> {
    let (OpenError::Read(source) | OpenError::Lookup(LookupError::Read { source, .. })) = error else {
        return None;
    };
    match source {
        ReadError::Block(block) if may_pass(block) => Some(EngineError::Read(source.clone())),
        _ => None,
    }
}
