//! Pools that the daemon should have opened when it started, and could not.
//!
//! Their drives may be late: a shelf that spins up, a network that comes after the daemon. So they are tried again: on the
//! devices they were imported from every few seconds, which costs next to nothing while those are away, and wherever a
//! device may be when the system says that some came, and now and then. Each is tried by a task of its own, without a turn:
//! devices that are there and do not answer are waited for without end, and that is no other pool's affair. Meanwhile their
//! targets are answered "service unavailable", and an alert tells of them. Both end when the pool is open, or is exported, here
//! or by another host that had it meanwhile.
//!
//! The list is made at the start and only gets shorter: what a command imports later is open, or is that command's.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::future::join_all;
use parking_lot::Mutex;
use pool::import::{Candidate, examine};
use tokio::{
    sync::watch,
    task::{AbortHandle, JoinSet, spawn_blocking},
    time::{Instant, sleep, timeout},
};

use crate::{
    api::{self, share::SilentPool},
    host::{self, Places},
    hostid,
    memory::PATIENCE,
    opening::{self, Opened, Opening},
    ops::{self, Attempt, Host, LOCK_PATIENCE},
    shares::{PoolShares, PortalConfig},
    state::Remembered,
    view,
};

/// How often they are looked for where they were.
const TRY_EVERY: Duration = Duration::from_secs(5);
/// How often all devices are searched for them, without a word from the system.
const SEARCH_EVERY: Duration = Duration::from_secs(30);

/// A pool that should be open and is not.
#[derive(Clone, Debug)]
pub(crate) struct Missing {
    pub(crate) name: String,
    pub(crate) guid: u64,
    /// It is imported here, and wanted until it is exported; else it was only where `-d` says.
    pub(crate) is_imported: bool,
    /// Why.
    pub(crate) why: String,
}

impl Missing {
    /// Whether people are told that it is awaited: it was imported here, or some of it is there and waits for the rest, which may
    /// be all that this daemon was to serve.
    pub(crate) fn is_expected(&self) -> bool {
        self.is_imported || self.why.contains(host::LATE)
    }

    /// As a list is told that goes without it.
    pub(crate) fn silent(self) -> SilentPool {
        SilentPool { pool: self.name, problem: self.why }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Late {
    host: Weak<Host>,
    pools: Mutex<Vec<Missing>>,
    /// Those of them that are being opened since the start, until that is gone on with.
    begun: Mutex<Vec<(Missing, Opening)>>,
    /// Held by the thread that reads the cache file.
    reading: Arc<tokio::sync::Mutex<()>>,
}

/// The task of an attempt, and since when it is under way.
type UnderWay = (AbortHandle, Instant);

impl Late {
    pub(crate) fn new(host: Weak<Host>, pools: Vec<Missing>) -> Self {
        Self { host, pools: Mutex::new(pools), begun: Mutex::default(), reading: Arc::default() }
    }

    /// The same, where some of these are being opened already.
    pub(crate) fn with_begun(self, begun: Vec<(Missing, Opening)>) -> Self {
        Self { begun: Mutex::new(begun), ..self }
    }

    /// Those that are still to come: not opened meanwhile, and wanted when that was [looked up](Self::renew) last.
    pub(crate) fn list(&self) -> Vec<Missing> {
        let mut pools = self.pools.lock();
        if let Some(host) = self.host.upgrade() {
            pools.retain(|pool| !host.is_open(pool.guid));
        }
        pools.clone()
    }

    /// Looks up which of them are wanted still: exported ones are not.
    pub(crate) async fn renew(&self) {
        let Some(host) = self.host.upgrade().filter(|_| !self.pools.lock().is_empty()) else { return };
        // A cache file that cannot be read at the moment says nothing.
        let Some(wanted) = self.known(&host).await else { return };
        let is_wanted =
            |pool: &Missing| !pool.is_imported || wanted.iter().any(|wanted| wanted.guid == pool.guid);
        self.pools.lock().retain(is_wanted);
    }

    /// The pools that are imported here, if the cache file can be read and answers in a moment. It may lie on a server that is
    /// away: it is read by one thread at most, which is none that serves hosts, and with nothing locked that they wait for.
    async fn known(&self, host: &Host) -> Option<Vec<Remembered>> {
        let state = host.places().state().clone();
        let read = async {
            let turn = Arc::clone(&self.reading).lock_owned().await;
            let reading = spawn_blocking(move || {
                let known = state.pools();
                drop(turn);
                known
            });
            reading.await
        };
        timeout(PATIENCE, read).await.ok()?.ok()?.ok()
    }

    /// Those of a [`list`](Self::list) as pools: who asks for all pools is to see that they are not there.
    pub(crate) async fn shown(&self, missing: &[Missing]) -> Vec<api::Pool> {
        let Some(host) = self.host.upgrade().filter(|_| !missing.is_empty()) else { return Vec::new() };
        let known = self.known(&host).await.unwrap_or_default();
        let mut looks = Vec::with_capacity(missing.len());
        for pool in missing {
            let remembered = known.iter().find(|known| known.guid == pool.guid);
            looks.push(shown(host.places(), pool, remembered));
        }
        join_all(looks).await
    }

    /// Whether one of these is away.
    fn is_away(&self, host: &Host, which: impl Fn(&Missing) -> bool) -> bool {
        let pools = self.pools.lock();
        pools.iter().any(|pool| which(pool) && !host.is_open(pool.guid))
    }

    /// Whether a target may come: with a pool that is away, or of one that is open and not offered in full yet.
    pub(crate) fn is_awaited(&self, target: &str) -> bool {
        let Some(host) = self.host.upgrade() else { return false };
        let is_away = self.is_away(&host, |pool| iscsi::iqn::may_be_of_pool(target, &pool.name));
        // After that: a pool is expected before it is among those that are open.
        is_away || host.serving.as_ref().is_some_and(|serving| serving.is_awaited(target))
    }

    /// The same of an export.
    pub(crate) fn is_export_awaited(&self, name: &str) -> bool {
        let Some(host) = self.host.upgrade() else { return false };
        let is_away = self.is_away(&host, |pool| name.is_empty() || pool.name == ops::pool_of(name));
        // After that, as above.
        is_away || host.serving.as_ref().is_some_and(|serving| serving.is_export_awaited(name))
    }

    /// What NBD clients get that name nothing, as `Serving` has it; none while a pool is away.
    pub(crate) fn only_volume(&self) -> Option<String> {
        let host = self.host.upgrade()?;
        let is_away = self.is_away(&host, |_| true);
        // After that, as above.
        host.serving.as_ref().filter(|_| !is_away)?.only_volume()
    }

    /// Tries until all are open, or the daemon is told to stop. What has begun is finished.
    pub(crate) async fn run(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        let changes = self.host.upgrade().and_then(|host| Some(host.watching()?.changes.heard()));
        let Some(mut changes) = changes else { return };
        let (mut tasks, mut attempts) = (JoinSet::new(), BTreeMap::new());
        let begun = std::mem::take(&mut *self.begun.lock());
        for (pool, opening) in begun {
            let (late, guid, stop) = (Arc::clone(&self), pool.guid, stop.clone());
            let attempt = self.begin(guid);
            let task = tasks.spawn(async move {
                late.receive_begun(&pool, opening, &stop).await;
                end(attempt).await;
            });
            attempts.insert(guid, (task, Instant::now()));
        }
        let mut searched: Option<Instant> = None;
        let mut can_change = true;
        self.renew().await;
        while !self.list().is_empty() {
            let mut everywhere = searched.is_none_or(|at| at.elapsed() >= SEARCH_EVERY);
            tokio::select! {
                // An error means that the sender is gone, which is a stop, too.
                _stopped = stop.wait_for(|stop| *stop) => break,
                changed = changes.changed(), if can_change => {
                    can_change = changed.is_ok();
                    everywhere = true;
                }
                () = sleep(TRY_EVERY) => {}
            }
            if everywhere {
                searched = Some(Instant::now());
            }
            while tasks.try_join_next().is_some() {}
            self.renew().await;
            self.retain(&mut attempts);
            for pool in self.list() {
                if let Some((_, since)) = attempts.get(&pool.guid) {
                    if since.elapsed() >= opening::PATIENCE {
                        self.still(&pool, host::mute(&pool.name));
                    }
                    continue;
                }
                let (late, guid, stop) = (Arc::clone(&self), pool.guid, stop.clone());
                let attempt = self.begin(guid);
                let task = tasks.spawn(async move {
                    late.attempt(&pool, everywhere, &stop).await;
                    end(attempt).await;
                });
                attempts.insert(guid, (task, Instant::now()));
            }
        }
        self.renew().await;
        self.retain(&mut attempts);
        while tasks.join_next().await.is_some() {}
        if self.list().is_empty() {
            tracing::debug!("no pool is awaited any more");
        }
    }

    /// Another attempt begins: its task [ends](end) it when it has nothing else any more.
    fn begin(&self, guid: u64) -> Option<Attempt> {
        Some(self.host.upgrade()?.attempt(guid))
    }

    /// Those that are under way still. One whose pool was exported meanwhile is given up, whatever it waits for.
    fn retain(&self, attempts: &mut BTreeMap<u64, UnderWay>) {
        let (pools, host) = (self.list(), self.host.upgrade());
        attempts.retain(|guid, (task, _)| {
            // It closes what it has open, which must not be cut off.
            if let Some(host) = &host
                && pools.iter().all(|pool| pool.guid != *guid)
                && !host.is_open(*guid)
            {
                host.give_up_attempt(*guid);
            }
            !task.is_finished()
        });
    }

    /// Whether it is to be opened still.
    async fn is_wanted(&self, pool: &Missing, stop: &watch::Receiver<bool>) -> bool {
        self.renew().await;
        !*stop.borrow() && self.list().iter().any(|late| late.guid == pool.guid)
    }

    async fn attempt(&self, pool: &Missing, everywhere: bool, stop: &watch::Receiver<bool>) {
        let Some(host) = self.host.upgrade() else { return };
        // How it was imported holds: what is to be read only is not written to because nobody can tell at the moment.
        let Some(known) = self.known(&host).await else { return };
        let remembered = known.iter().find(|known| known.guid == pool.guid);
        if pool.is_imported && remembered.is_none() {
            return;
        }
        let finding = Box::pin(find(host.places(), pool.guid, remembered, everywhere));
        let Some(candidate) = host.unless_given_up(pool.guid, finding).await.flatten() else { return };
        self.open(pool, &candidate, remembered, stop).await;
    }

    /// Opens it where it was found. Whoever reads from its devices may have to wait for them: nobody else does.
    pub(crate) async fn open(
        &self,
        pool: &Missing,
        candidate: &Candidate,
        remembered: Option<&Remembered>,
        stop: &watch::Receiver<bool>,
    ) {
        let Some(host) = self.host.upgrade() else { return };
        if pool.is_imported && host::is_given_away(candidate, remembered) {
            let turn = host.unless_given_up(pool.guid, host.turn(&pool.name)).await;
            if turn.is_some()
                && self.is_wanted(pool, stop).await
                && host.places().state().forget(&pool.guid.to_string()).is_ok()
            {
                tracing::warn!(pool = pool.name, "{}", host::given_away(candidate));
            }
            return;
        }
        let reaching = Box::pin(host.reach(candidate, remembered, !pool.is_imported, LOCK_PATIENCE));
        let Some(opened) = host.unless_given_up(pool.guid, reaching).await else { return };
        self.receive(pool, opened, stop).await;
    }

    /// The same of one that is being opened since the start.
    async fn receive_begun(&self, pool: &Missing, mut opening: Opening, stop: &watch::Receiver<bool>) {
        let Some(host) = self.host.upgrade() else { return };
        let opened = host.unless_given_up(pool.guid, opening.end()).await;
        match opened {
            Some(opened) => self.receive(pool, opened, stop).await,
            None => opening.give_up().await,
        }
    }

    /// Keeps and offers it, if it was opened and is wanted still.
    pub(crate) async fn receive(&self, pool: &Missing, opened: Opened, stop: &watch::Receiver<bool>) {
        let Some(host) = self.host.upgrade() else { return };
        let (held, mut notes) = match opened {
            Ok(opened) => opened,
            Err(why) => return self.still(pool, why),
        };
        // As operations do: those that bring pools come one after the other, and nobody exports it meanwhile.
        let arrival = host.arrival(held.guid());
        let turns = async { (host.turn("").await, host.turn(&pool.name).await) };
        // Whoever exports it has its turn, and waits until it is closed.
        let mut turns = host.unless_given_up(pool.guid, turns).await;
        if turns.is_some() && !self.is_wanted(pool, stop).await {
            turns = None;
        }
        let Some((first, turn)) = turns else {
            // Whoever waits for it gets the devices in a moment.
            drop(arrival);
            return ops::give_back(&held).await;
        };
        let received = host.receive(held).await;
        drop((first, arrival));
        match received {
            Ok((held, more)) => {
                notes.extend(more);
                if let Some(serving) = &host.serving {
                    // In time it would have had the groups that it says before anybody was let in, and hosts of all pools have
                    // registered in these: not in those of a stranger's. What cannot be read is said by who follows.
                    let portals = match pool.is_imported {
                        true => PoolShares::read(&held.view()).await.unwrap_or_default().portals,
                        false => Vec::new(),
                    };
                    for portal in &portals {
                        serving.portals().give(held.name(), portal.address).await;
                    }
                    notes.extend(serving.follow(&held).await);
                    let strangers = |portal: &PortalConfig| serving.portals().strangers(portal);
                    notes.extend(portals.iter().filter_map(strangers));
                }
                notes.iter().for_each(|note| tracing::warn!(pool = pool.name, "{note}"));
                tracing::warn!(
                    pool = pool.name,
                    "the pool that could not be opened at the start is open now"
                );
            }
            Err(why) => self.still(pool, why),
        }
        drop(turn);
    }

    /// Said once for each reason: it may stay the same for weeks.
    fn still(&self, pool: &Missing, why: String) {
        if let Some(late) =
            self.pools.lock().iter_mut().find(|late| late.guid == pool.guid && late.why != why)
        {
            tracing::warn!(pool = pool.name, "tried again: {why}");
            late.why = why;
        }
    }
}

/// The last that the task of an attempt does.
async fn end(attempt: Option<Attempt>) {
    if let Some(attempt) = attempt {
        attempt.end().await;
    }
}

/// A pool that is missing, with its devices as they are now, if they answer in a moment.
async fn shown(places: &Places, pool: &Missing, remembered: Option<&Remembered>) -> api::Pool {
    let look = async {
        let candidate = places.where_it_was(remembered?).await?;
        Some(examine(&candidate, hostid::hostid(), &hostid::hostname()).await)
    };
    let report = timeout(PATIENCE, look).await.ok().flatten();
    view::not_open(&pool.name, pool.guid, report.as_ref(), &pool.why)
}

/// A pool on the devices it was imported from; `everywhere`, with those of its devices that are elsewhere now. Those that went
/// their own way since are none of it, wherever they are: they may say that it is exported.
async fn find(
    places: &Places,
    guid: u64,
    remembered: Option<&Remembered>,
    everywhere: bool,
) -> Option<Candidate> {
    // Who says where is believed, whatever is there.
    let is_said = !places.named().is_empty();
    let there = match remembered {
        Some(remembered) if everywhere && !is_said => places.wherever_it_is(remembered).await,
        Some(remembered) => places.where_it_was(remembered).await,
        None => None,
    };
    if !everywhere || (there.is_some() && !is_said) {
        return there;
    }
    let pools = places.scan().await.pools.into_iter().map(|(candidate, _)| candidate);
    let is_ours = |candidate: Candidate| match remembered {
        Some(known) => candidate.without(&known.apart),
        None => Some(candidate),
    };
    let found = pools.filter(|candidate| candidate.guid == guid).filter_map(is_ours);
    there.into_iter().chain(found).max_by_key(|candidate| candidate.devices.len())
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, path::PathBuf};

    use engine::engine::Ending;

    use super::*;
    use crate::{
        host::Settings,
        ops::{Answer, Mode, Operation, PoolCreate, Request, Watching, run},
        serving::Serving,
        shares::Portals,
        state::State,
    };

    async fn ask(host: &Arc<Host>, operation: Operation) -> Answer {
        run(host, Request { operation, command: None, user: 0 }).await.unwrap()
    }

    /// A pool in files at these places.
    async fn create_tank(host: &Arc<Host>, devices: Vec<String>) {
        let (pool, file_size) = ("tank".to_owned(), Some(128 << 20));
        let create = PoolCreate { pool, devices, file_size, ..PoolCreate::default() };
        ask(host, Operation::PoolCreate(create)).await;
    }

    /// The export said that it was done at once. What had been opened was dropped later where it was, and its engine went on for
    /// ever: no command found the pool, nobody could import it, and another host that took it had two writing to it.
    #[tokio::test]
    async fn a_late_pool_that_is_exported_while_it_waits_for_its_turn_is_closed_when_that_is_done() {
        let dir = tempfile::tempdir().unwrap();
        let places = || Places::new(Vec::new(), State::at(dir.path().join("state")));
        let before = Arc::new(Host::new(places(), Mode::Daemon, Settings::default()));
        create_tank(&before, vec![dir.path().join("d0").display().to_string()]).await;
        let guid = before.find("tank").unwrap().guid();
        before.close().await.unwrap();
        let watching = Watching::alone(dir.path());
        let host = Host::new(places(), Mode::Daemon, Settings::default()).with_watching(watching);
        let host = Arc::new(host);
        let missing =
            Missing { name: "tank".to_owned(), guid, is_imported: true, why: "it is late".to_owned() };
        let late = Arc::new(Late::new(Arc::downgrade(&host), vec![missing]));
        let (stop, stopping) = watch::channel(false);
        // Some import takes its time.
        let first = host.turn("").await;
        let trying = tokio::spawn(late.run(stopping));
        let is_open = async {
            while !host.is_arriving(guid) {
                host.watching().unwrap().changes.one_more();
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(60), is_open).await.expect("it is there");
        let export = Operation::PoolExport { pool: "tank".to_owned(), force: false };
        let answer = ask(&host, export).await;
        assert!(answer.warnings.is_empty(), "{:?}", answer.warnings);
        let named = Places::new(vec![dir.path().to_owned()], State::at(dir.path().join("other")));
        let other = Arc::new(Host::new(named, Mode::Daemon, Settings::default()));
        let (theirs, _) = other.places().find("tank").await.unwrap();
        let (held, _) = other.reach(&theirs, None, true, LOCK_PATIENCE).await.unwrap();
        assert!(held.engine().is_some(), "{:?}", held.read_only());
        ops::give_back(&held).await;
        drop(first);
        stop.send_replace(true);
        trying.await.unwrap();
        assert!(host.find("tank").is_none());
    }

    /// Found by reading: called by its guid it had another turn. It was forgotten while it was just being kept, and stayed open.
    #[tokio::test]
    async fn a_late_pool_that_is_exported_by_its_guid_while_it_is_kept_is_closed_when_that_is_done() {
        let dir = tempfile::tempdir().unwrap();
        let places = Places::new(Vec::new(), State::at(dir.path().join("state")));
        let host = Arc::new(Host::new(places, Mode::Daemon, Settings::default()));
        create_tank(&host, vec![dir.path().join("d0").display().to_string()]).await;
        host.close().await.unwrap();
        let remembered = host.places().state().pools().unwrap().remove(0);
        let candidate = host.places().where_it_was(&remembered).await.unwrap();
        let (held, _) = host.reach(&candidate, Some(&remembered), false, LOCK_PATIENCE).await.unwrap();
        let guid = held.guid().to_string();
        // Whoever opens it by itself has it while he keeps it.
        let turn = host.turn("tank").await;
        for operation in [
            Operation::PoolExport { pool: guid.clone(), force: false },
            Operation::PoolAbandon { pool: guid.clone() },
        ] {
            let mut exporting = run(&host, Request { operation, command: None, user: 0 });
            assert!(timeout(Duration::from_millis(50), &mut exporting).await.is_err(), "it waits");
        }
        assert_eq!(host.places().state().pools().unwrap().len(), 1);
        drop(host.receive(held).await.unwrap());
        drop(turn);
        let is_gone = async {
            while host.find("tank").is_some() || !host.places().state().pools().unwrap().is_empty() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(60), is_gone).await.expect("it is exported");
    }

    /// Found by reading: a side that was exported elsewhere was the first to be found by a search, and spoke for the pool. That
    /// was forgotten then, with all that was known of the side, and its own devices came to a daemon that did not want them.
    #[tokio::test]
    async fn a_side_that_went_its_own_way_does_not_say_of_a_late_pool_that_it_is_exported() {
        let dir = tempfile::tempdir().unwrap();
        let [here, there] = ["here", "there"].map(|name| dir.path().join(name));
        for side in [&here, &there] {
            std::fs::create_dir(side).unwrap();
        }
        let places = |named: Vec<PathBuf>, state: &str| Places::new(named, State::at(dir.path().join(state)));
        let daemon = |places| Arc::new(Host::new(places, Mode::Daemon, Settings::default()));
        let host = daemon(places(Vec::new(), "state"));
        let [d0, d1] = [&here, &there].map(|side| side.join("d").display().to_string());
        create_tank(&host, vec!["mirror".to_owned(), d0, d1]).await;
        host.close().await.unwrap();
        let other = daemon(places(vec![there.clone()], "other"));
        let (theirs, _) = other.places().find("tank").await.unwrap();
        let (held, _) = other.reach(&theirs, None, true, LOCK_PATIENCE).await.unwrap();
        let (held, _) = other.receive(held).await.unwrap();
        other.end(&held, Ending::Export).await.unwrap();
        let (guid, _) = theirs.devices[0].guids().unwrap();
        let (both, state) = (theirs.uberblocks[0].txg, host.places().state());
        let apart = BTreeMap::from([(guid, both)]);
        state.note_newest(theirs.guid, both, &apart, &BTreeSet::new()).unwrap();
        let remembered = state.known(theirs.guid).unwrap();
        let places = places(vec![here.clone(), there], "state");
        let late = dir.path().join("late");
        std::fs::rename(here.join("d"), &late).unwrap();
        assert!(find(&places, theirs.guid, Some(&remembered), true).await.is_none());
        // By another name: it is not where it was.
        std::fs::rename(&late, here.join("e")).unwrap();
        let found = find(&places, theirs.guid, Some(&remembered), true).await.unwrap();
        assert_eq!(found.devices.len(), 1);
        assert!(!host::is_given_away(&found, Some(&remembered)), "{:?}", found.state);
        let (found, _) = places.find("tank").await.unwrap();
        assert!(!host::is_given_away(&found, Some(&remembered)), "{:?}", found.state);
    }

    /// It lay on a file server that was away, and was read with the list locked: each login to a target that was not there waited for
    /// that, on the threads that serve hosts.
    #[tokio::test]
    async fn who_asks_for_a_target_waits_for_no_state_directory() {
        let kept = tempfile::tempdir().unwrap();
        let state = State::at(kept.path());
        // Who opens it for reading waits for a writer.
        assert!(std::process::Command::new("mkfifo").arg(state.file()).status().unwrap().success());
        let places = Places::new(Vec::new(), state.clone());
        let host = Arc::new(Host::new(places, Mode::ReadOnly, Settings::default()));
        let (name, why) = ("tank".to_owned(), "it is late".to_owned());
        let missing = Missing { name, guid: 7, is_imported: true, why };
        let late = Arc::new(Late::new(Arc::downgrade(&host), vec![missing]));
        let renewing = tokio::spawn({
            let late = Arc::clone(&late);
            async move { late.renew().await }
        });
        let asked = spawn_blocking({
            let late = Arc::clone(&late);
            move || (late.list().len(), late.is_awaited("iqn.2026-11.io.millpond:tank:v"))
        });
        let answer = timeout(5 * PATIENCE, asked).await;
        // Or the test would not end either. There is a reader by then, or soon: its task has this thread meanwhile.
        let file = state.file();
        let writing = spawn_blocking(move || drop(std::fs::File::options().write(true).open(file).unwrap()));
        writing.await.unwrap();
        assert_eq!(answer.expect("it waits for nothing").unwrap(), (1, true));
        renewing.await.unwrap();
        assert_eq!(late.list().len(), 1, "what does not answer, or makes no sense, says nothing");
        // Exported meanwhile.
        std::fs::remove_file(state.file()).unwrap();
        late.renew().await;
        assert!(late.list().is_empty());
    }

    /// From the moment it was open until its targets were there, hosts were told that there are none: they give them up then.
    #[tokio::test]
    async fn targets_of_a_pool_that_came_late_are_awaited_until_they_are_there() {
        let (dir, kept) = (fixtures::pool("single").copy(), tempfile::tempdir().unwrap());
        let places = Places::new(vec![PathBuf::from(dir.path())], State::at(kept.path()));
        let (candidate, _) = places.find("psingle").await.unwrap();
        let (registry, targets) =
            (Arc::new(nbd::Registry::new()), iscsi::Targets::new(iscsi::Config::default()));
        let exports = Arc::clone(&registry) as Arc<dyn nbd::Exports>;
        let nbd = nbd::Server::new(exports, nbd::ServeLimits::default());
        let portals = Portals::new(Arc::clone(&targets), Vec::new()).unwrap();
        let serving = Arc::new(Serving::new(registry, nbd, Arc::clone(&targets), Vec::new(), portals));
        let host = Host::new(places, Mode::ReadOnly, Settings::default()).with_serving(Arc::clone(&serving));
        let host = Arc::new(host);
        let missing = Missing {
            name: candidate.name.clone(),
            guid: candidate.guid,
            is_imported: false,
            why: "it is late".to_owned(),
        };
        let late = Late::new(Arc::downgrade(&host), vec![missing]);
        let (some, others) = ("iqn.2026-11.io.millpond:psingle:some", "iqn.2026-11.io.millpond:other:some");
        assert!(late.is_awaited(some) && !late.is_awaited(others));
        assert!(late.is_export_awaited("psingle/some") && !late.is_export_awaited("other/some"));
        assert!(late.is_export_awaited("") && late.only_volume().is_none(), "nobody knows what it will be");
        let (held, _) = host.reach(&candidate, None, true, LOCK_PATIENCE).await.unwrap();
        let (held, _) = host.receive(held).await.unwrap();
        assert!(late.is_awaited(some), "it is open, and nothing of it is offered");
        assert!(late.is_export_awaited("psingle/some"), "nor of its exports");
        serving.follow(&held).await;
        assert!(!targets.list().is_empty());
        assert!(!late.is_awaited(some), "there is none");
        assert!(!late.is_export_awaited("psingle/some"));
        // One that was never offered is not awaited any more when it is gone.
        serving.expect(&held);
        host.release(held.guid());
        assert!(!serving.is_awaited(some));
    }
}
