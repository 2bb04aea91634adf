//! What could not be offered is tried again: a device that did not answer for a moment, a name that another pool had,
//! would otherwise stay so until somebody changes something else.
//!
//! A pool of which something was refused, or could not be found out, is followed again after half a minute, then ever
//! more rarely: much of that is lasting (an encrypted volume), and costs a look at each of its volumes. It is done in the
//! pool's turn, as commands are: one that is just being exported must not be offered again. A pool that is suspended, or whose
//! turn is taken, is not tried, and loses nothing by it; one whose devices are back is tried at once, and so is one of which
//! something waited for a last write of the disk that it was, when that has ended. So is one in which a command was carried out
//! whose caller had been told that the pool is suspended, and does not see to it: to what is offered, to names of targets that
//! others wait for, and to the list of its devices.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    time::Duration,
};

use block::BlockVolume;
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until, timeout},
};

use super::Serving;
use crate::{
    events::observe::News,
    host::chain,
    ops::{Held, Host},
};

/// First pause.
const PAUSE: Duration = Duration::from_secs(30);
/// Longest.
const PAUSE_MAX: Duration = Duration::from_secs(15 * 60);
/// How long a pool's turn is waited for: an operation may have it for long, and other pools are waiting, too.
const TURN_PATIENCE: Duration = Duration::from_secs(1);

/// Pools that are not offered as they should be.
#[derive(Default)]
pub(super) struct Again {
    /// By guid.
    pools: Mutex<BTreeMap<u64, Unsettled>>,
    /// One came, or is due earlier.
    changed: Notify,
}

struct Unsettled {
    /// When it is tried.
    at: Instant,
    pause: Duration,
    /// What was said of it.
    said: Vec<String>,
    /// What of it waits for a last write.
    late: Vec<Arc<dyn BlockVolume>>,
    /// It changed, and nobody else follows it. It stays until that is done: who follows it now may have seen it before.
    is_changed: bool,
}

impl Unsettled {
    fn new() -> Self {
        let at = Instant::now() + PAUSE;
        Self { at, pause: PAUSE, said: Vec::new(), late: Vec::new(), is_changed: false }
    }
}

impl Again {
    /// What came of following a pool: whether that is all there is to do, what was said, and what waits for a last write. One
    /// that was given up is not noted: it may be open here again.
    pub(super) fn note(
        &self,
        held: &Held,
        is_settled: bool,
        said: &[String],
        late: Vec<Arc<dyn BlockVolume>>,
    ) {
        self.note_if(|| !held.is_withdrawn(), held.guid(), is_settled, said, late);
    }

    fn note_if(
        &self,
        is_meant: impl Fn() -> bool,
        guid: u64,
        is_settled: bool,
        said: &[String],
        late: Vec<Arc<dyn BlockVolume>>,
    ) {
        let mut pools = self.pools.lock();
        if !is_meant() {
            return;
        }
        if is_settled && pools.get(&guid).is_none_or(|pool| !pool.is_changed) {
            pools.remove(&guid);
            return;
        }
        let pool = pools.entry(guid).or_insert_with(Unsettled::new);
        said.clone_into(&mut pool.said);
        pool.late = late;
        self.changed.notify_one();
    }

    /// What waits for a last write, each with the guid of its pool.
    fn late(&self) -> Vec<(u64, Arc<dyn BlockVolume>)> {
        let mut late = Vec::new();
        for (guid, pool) in &*self.pools.lock() {
            late.extend(pool.late.iter().map(|volume| (*guid, Arc::clone(volume))));
        }
        late
    }

    /// A last write has ended that something of this pool waited for. Whoever tries it finds what waits still.
    fn write_ended(&self, guid: u64) {
        if let Some(pool) = self.pools.lock().get_mut(&guid) {
            pool.late.clear();
            pool.at = Instant::now();
        }
    }

    /// Something was given up, or is back, that they may have waited for: all of them, or the one of this guid.
    pub(super) fn hurry(&self, which: Option<u64>) {
        let now = Instant::now();
        let mut pools = self.pools.lock();
        let meant = pools.iter_mut().filter(|(guid, _)| which.is_none_or(|which| which == **guid));
        meant.for_each(|(_, pool)| pool.at = now);
        self.changed.notify_one();
    }

    /// A pool changed, and nobody follows it who was told.
    fn follow_later(&self, guid: u64) {
        let mut pools = self.pools.lock();
        let pool = pools.entry(guid).or_insert_with(Unsettled::new);
        (pool.at, pool.is_changed) = (Instant::now(), true);
        self.changed.notify_one();
    }

    /// When the next one is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.pools.lock().values().map(|pool| pool.at).min()
    }

    /// Those that are due, each with what was said of it. What cannot be tried now is due again after the first pause.
    fn due(&self) -> Vec<(u64, Vec<String>)> {
        let now = Instant::now();
        let mut pools = self.pools.lock();
        let due = pools.iter_mut().filter(|(_, pool)| pool.at <= now);
        due.map(|(guid, pool)| {
            pool.at = now + PAUSE;
            (*guid, pool.said.clone())
        })
        .collect()
    }

    /// It is tried now: when it is after this time. Whether it [changed](Self::follow_later) meanwhile.
    fn tries(&self, guid: u64) -> bool {
        let mut pools = self.pools.lock();
        let Some(pool) = pools.get_mut(&guid) else { return false };
        pool.at = Instant::now() + pool.pause;
        pool.pause = (pool.pause * 2).min(PAUSE_MAX);
        std::mem::take(&mut pool.is_changed)
    }

    /// That it changed is not done with yet: it is, like what could not be offered, when it is tried again.
    fn stays_changed(&self, guid: u64) {
        if let Some(pool) = self.pools.lock().get_mut(&guid) {
            pool.is_changed = true;
        }
    }

    /// Whether a pool was tried again already, and is still not offered as it should be.
    pub(super) fn has_tried(&self, guid: u64) -> bool {
        self.pools.lock().get(&guid).is_some_and(|pool| pool.pause > PAUSE)
    }

    /// It is not open here any more.
    pub(super) fn forget(&self, guid: u64) {
        self.pools.lock().remove(&guid);
    }
}

impl Serving {
    /// What a pool could not be read from, or written to, is back.
    pub(crate) fn try_soon(&self, pool: u64) {
        self.again.hurry(Some(pool));
    }

    /// What its engine told of a pool.
    pub(crate) fn hear(&self, pool: u64, news: News) {
        match news {
            News::Back => self.try_soon(pool),
            News::Changed => self.again.follow_later(pool),
        }
    }

    /// Tries again what could not be offered, until there are no pools any more.
    pub(crate) async fn try_again(self: Arc<Self>, host: Weak<Host>) {
        loop {
            let next = self.again.next();
            tokio::select! {
                () = async {
                    match next {
                        Some(at) => sleep_until(at).await,
                        None => std::future::pending().await,
                    }
                } => {}
                () = self.again.changed.notified() => {}
                guid = self.a_last_write() => self.again.write_ended(guid),
            }
            for (guid, said) in self.again.due() {
                let Some(host) = host.upgrade() else { return };
                self.try_pool(&host, guid, &said).await;
            }
        }
    }

    /// Waits until a last write has ended that something waits for: the guid of its pool.
    async fn a_last_write(&self) -> u64 {
        let service = self.targets.service();
        let mut under_way = FuturesUnordered::new();
        for (guid, volume) in self.again.late() {
            under_way.push(async move {
                service.last_writes_ended(&volume, Duration::MAX).await;
                guid
            });
        }
        match under_way.next().await {
            Some(guid) => guid,
            None => std::future::pending().await,
        }
    }

    pub(super) async fn try_pool(&self, host: &Host, guid: u64, said: &[String]) {
        let find = || host.find(&guid.to_string());
        let Some(held) = find() else { return self.again.forget(guid) };
        if held.suspended().is_some() {
            return;
        }
        let Ok(_turn) = timeout(TURN_PATIENCE, host.turn(held.name())).await else { return };
        let Some(held) = find() else { return self.again.forget(guid) };
        let is_changed = self.again.tries(guid);
        let written = is_changed.then(|| host.remember_known_devices(&held));
        if let Some(Err(error)) = &written {
            tracing::warn!(pool = held.name(), "its devices are not written down: {}", chain(error));
            self.again.stays_changed(guid);
        }
        let problems = self.follow(&held).await;
        // It may wait for a name itself, and must not be tried without a pause as long as its devices cannot be written down.
        if let Some(Ok(())) = written {
            self.names_are_free();
        }
        for problem in problems.iter().filter(|problem| !said.contains(problem)) {
            tracing::warn!(pool = held.name(), "tried again: {problem}");
        }
        if !is_changed && !held.is_withdrawn() && self.is_settled(&held, &problems) {
            tracing::info!(pool = held.name(), "what could not be offered is offered now");
        }
    }

    /// Whether all of a pool is offered that should be.
    pub(super) fn is_settled(&self, held: &Held, problems: &[String]) -> bool {
        let entries = self.entries.lock();
        let mut of_pool = entries.iter().filter(|(name, _)| crate::ops::pool_of(name) == held.name());
        problems.is_empty() && of_pool.all(|(_, entry)| entry.served.refused.is_none())
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use iscsi::Offer;

    use super::*;
    use crate::{
        host::{Places, Settings},
        ops::Mode,
        shares::Portals,
        state::State,
    };

    /// A volume that was refused at the start stayed so until somebody changed something in its pool.
    #[tokio::test]
    async fn what_could_not_be_offered_is_offered_when_it_can_be() {
        let (dir, kept) = (fixtures::pool("single").copy(), tempfile::tempdir().unwrap());
        let places = Places::new(vec![PathBuf::from(dir.path())], State::at(kept.path()));
        let opened = places.open("psingle", &Settings::default()).await.unwrap();
        let registry = Arc::new(nbd::Registry::new());
        let targets = iscsi::Targets::new(iscsi::Config::default());
        let nbd =
            nbd::Server::new(Arc::clone(&registry) as Arc<dyn nbd::Exports>, nbd::ServeLimits::default());
        let portals = Portals::new(Arc::clone(&targets), Vec::new()).unwrap();
        let serving = Arc::new(Serving::new(registry, nbd, Arc::clone(&targets), Vec::new(), portals));
        let host = Host::new(places, Mode::ReadOnly, Settings::default()).with_serving(Arc::clone(&serving));
        let host = Arc::new(host);
        let held = host.keep(Held::reading(opened.pool, "it is to be looked at"));

        let names: Vec<String> = {
            serving.follow(&held).await;
            serving.entries.lock().keys().cloned().collect()
        };
        let name = names.first().expect("a volume").clone();
        serving.withdraw(&held, &name);
        let in_the_way = iscsi::iqn::for_dataset(&name);
        targets.create(&in_the_way, Offer::default()).unwrap();
        serving.follow(&held).await;
        let refused = || serving.entries.lock()[&name].served.refused.clone();
        assert!(refused().is_some());
        let task = tokio::spawn(Arc::clone(&serving).try_again(Arc::downgrade(&host)));
        targets.remove(&in_the_way);
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(refused().is_some(), "not at once");
        serving.again.hurry(None);
        for _ in 0..200 {
            if refused().is_none() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(refused(), None);
        task.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_tried_is_not_put_off_for_longer_and_longer() {
        let again = Again::default();
        let began = Instant::now();
        again.note_if(|| true, 7, false, &[], Vec::new());
        for look in 1..=40 {
            sleep_until(again.next().unwrap()).await;
            assert_eq!((again.due().len(), began.elapsed()), (1, look * PAUSE));
        }
        again.hurry(Some(8));
        assert!(again.due().is_empty());
        again.hurry(Some(7));
        assert_eq!(again.due().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_tried_ever_more_rarely() {
        let again = Again::default();
        let began = Instant::now();
        let note = |is_settled| again.note_if(|| true, 7, is_settled, &["x".to_owned()], Vec::new());
        note(false);
        let mut tried = Vec::new();
        while tried.len() < 8 {
            sleep_until(again.next().unwrap()).await;
            assert_eq!(again.due(), [(7, vec!["x".to_owned()])]);
            again.tries(7);
            tried.push(began.elapsed().as_secs());
            note(false);
        }
        assert_eq!(tried, [30, 60, 120, 240, 480, 960, 1860, 2760]);
        note(true);
        assert_eq!(again.next(), None);
    }
}
