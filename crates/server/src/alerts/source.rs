//! The pools that are looked at, and what is known of them from memory; what needs a read of the devices (how full, how
//! many blocks are lost) is asked for now and then, and not waited for.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use engine::BoxFuture;
use futures_util::future::join_all;
use parking_lot::Mutex;
use pool::status::{PoolStatus, VdevStatus};
use tokio::time::Instant;

use super::facts::Facts;
use crate::{
    late::{Late, Missing},
    ops::{Held, Host},
};

/// How often a pool is read for what is not in memory. A scan that has just ended is a reason to look before.
const READ_EVERY: Duration = Duration::from_secs(60);

/// Where facts about pools come from.
pub(crate) trait Source: fmt::Debug + Send + Sync + 'static {
    /// Of all pools; `fresh` are guids of those to be read again. None: there is nothing to look at any more.
    fn facts<'a>(&'a self, fresh: &'a [u64]) -> BoxFuture<'a, Option<Vec<Facts>>>;
    /// Pools that should be open and are not.
    fn missing(&self) -> Vec<Missing> {
        Vec::new()
    }
}

/// What was read of a pool.
#[derive(Clone, Copy, Debug, Default)]
struct Read {
    at: Option<Instant>,
    capacity: Option<u64>,
    lost: Option<u64>,
}

/// The pools of a daemon.
#[derive(Debug)]
pub(crate) struct Pools {
    host: Weak<Host>,
    /// Those that could not be opened when the daemon started.
    late: Arc<Late>,
    read: Mutex<BTreeMap<u64, Read>>,
}

impl Pools {
    pub(crate) fn new(host: Weak<Host>, late: Arc<Late>) -> Self {
        Self { host, late, read: Mutex::default() }
    }

    async fn facts_of(&self, held: &Held, fresh: bool) -> Facts {
        let view = held.view();
        let tree = view.tree();
        let suspended =
            held.engine().and_then(|engine| engine.suspended()).map(|error| crate::host::chain(&error));
        let mut read = self.read.lock().get(&held.guid()).copied().unwrap_or_default();
        let is_old = read.at.is_none_or(|at| at.elapsed() >= READ_EVERY);
        // A suspended pool's devices do not answer: what was known stays.
        if suspended.is_none() && (is_old || fresh) {
            // Waits a moment only; what cannot be read leaves what was known.
            let known = held.memory().recall(&view, false).await;
            read.capacity = known.space.as_ref().map(|space| space.fullest()).or(read.capacity);
            read.lost = known.log.as_ref().map(|log| log.len() as u64).or(read.lost);
            // Of a pool that was just opened there may be nothing yet: the next look asks again.
            if known.txg > 0 {
                read.at = Some(Instant::now());
            }
            self.read.lock().insert(held.guid(), read);
        }
        // What a disk did is known of it after it left as far as somebody looked: here somebody does, every few seconds.
        held.worked();
        let status = PoolStatus::of_tree(view.name(), view.guid(), &tree, None);
        Facts {
            name: view.name().to_owned(),
            guid: view.guid(),
            root: status.root,
            spares: view.spares().iter().map(|spare| VdevStatus::of_spare(spare, &tree)).collect(),
            cache: view.l2cache().iter().map(|cache| VdevStatus::of(cache, None)).collect(),
            watched: held.engine().is_some(),
            suspended,
            capacity: read.capacity,
            lost: read.lost,
            unwritten: held.unwritten().lock().clone(),
        }
    }
}

impl Source for Pools {
    fn facts<'a>(&'a self, fresh: &'a [u64]) -> BoxFuture<'a, Option<Vec<Facts>>> {
        Box::pin(async move {
            let host = self.host.upgrade()?;
            let all = host.all();
            self.read.lock().retain(|guid, _| all.iter().any(|held| held.guid() == *guid));
            // All at once: one that does not answer holds up the others no longer than a moment.
            let facts =
                join_all(all.iter().map(|held| self.facts_of(held, fresh.contains(&held.guid())))).await;
            // Devices that are there are looked at, so that they can be named when they are not.
            if let Some(watching) = host.watching() {
                let (disks, views) = (Arc::clone(&watching.disks), all.iter().map(|held| held.view()));
                let views: Vec<_> = views.collect();
                let look = move || views.iter().try_for_each(|view| disks.look(view));
                watching.disks.in_background(look).await;
            }
            Some(facts)
        })
    }

    fn missing(&self) -> Vec<Missing> {
        self.late.list().into_iter().filter(Missing::is_expected).collect()
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::{
        api::alerts::Kind,
        host::{Places, Settings},
        memory::Known,
        state::State,
    };

    /// What had not been read within two seconds was not asked for again for a minute, and the error log of a pool of which
    /// anything else could not be read was never known.
    #[tokio::test]
    async fn a_pool_of_which_nothing_is_known_yet_is_asked_again_at_the_next_look() {
        let (dir, kept) = (fixtures::pool("single").copy(), tempfile::tempdir().unwrap());
        let places = Places::new(vec![dir.path().to_owned()], State::at(kept.path()));
        let pool = places.open("psingle", &Settings::default()).await.unwrap().pool;
        tokio::time::pause();
        let txg = pool.uberblock().txg;
        let held = Held::reading(pool, "it is to be looked at");
        let pools = Pools::new(Weak::new(), Arc::new(Late::new(Weak::new(), Vec::new())));
        let (answer, slow) = oneshot::channel();
        held.memory().read(async move { slow.await.unwrap() });
        let first = pools.facts_of(&held, false).await;
        assert!(first.is_unread(Kind::Space) && first.is_unread(Kind::DataLost));
        let mut known = Known { txg, log: Some(Vec::new()), ..Known::default() };
        known.problems.push("cannot read the properties".to_owned());
        assert!(answer.send(known).is_ok());
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(pools.facts_of(&held, false).await.lost, Some(0));
    }
}
