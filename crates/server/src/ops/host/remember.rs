//! What is remembered of the pools that are open, in the cache file: which are opened at the next start, and how.

use std::collections::{BTreeMap, BTreeSet};

use pool::{import::Rewind, vdev::Vdev};

use super::Host;
use crate::{
    host::{self, Foreign, Settings},
    newest::reached,
    ops::Held,
    state::{self, Remembered, StateError},
};

impl Host {
    /// Notes an imported pool in the cache file. One that is only named again is imported for as long as it was to be, also if
    /// that is over: from now until the machine or a daemon starts.
    pub(crate) fn remember(
        &self,
        held: &Held,
        settings: &Settings,
        before: Option<&Remembered>,
    ) -> Result<(), StateError> {
        let is_listed = match settings.listed {
            Some(is_listed) => is_listed,
            None => !self.places.state().is_for_a_while(held.guid())?,
        };
        self.remember_since((!is_listed).then(state::boot), held, settings, before)
    }

    /// The same; with a start of the machine, for a while.
    fn remember_since(
        &self,
        boot: Option<String>,
        held: &Held,
        settings: &Settings,
        before: Option<&Remembered>,
    ) -> Result<(), StateError> {
        held.unlist(boot.is_some());
        let pool = held.view();
        let rewound = pool.uberblock().txg < pool.newest_uberblock().txg;
        let known = self.places.state().known(pool.guid());
        let (newest, mut apart, unread) =
            known.map(|known| (known.newest, known.apart, known.unread)).unwrap_or_default();
        // One that is in use has the pool as it is, and one that was replaced is a device like others.
        let is_used = |leaf: &&Vdev| held.engine().is_some() && leaf.is_readable();
        let tree = pool.tree();
        let others: BTreeSet<u64> =
            tree.leaves().into_iter().filter(|leaf| !is_used(leaf)).map(|leaf| leaf.guid).collect();
        apart.retain(|guid, _| others.contains(guid));
        let devices = host::devices(&pool);
        // Not after each command: the disk with the state directory may hang together with those of the pool.
        let is_news = !self.is_open(held.guid()) || before.is_none_or(|before| before.devices != devices);
        let may_lack_log = settings.missing_log || before.is_some_and(|pool| pool.missing_log);
        let remembered = Remembered {
            name: pool.name().to_owned(),
            guid: pool.guid(),
            devices,
            // Once it is ours, nothing has to be forced any more.
            forced: held.engine().is_none()
                && (settings.foreign == Foreign::Open || before.is_some_and(|pool| pool.forced)),
            txg: (rewound || matches!(settings.rewind, Rewind::To(_))).then_some(pool.uberblock().txg),
            missing_log: may_lack_log && host::lacks_log(&pool),
            destroyed: held.engine().is_none()
                && (settings.destroyed || before.is_some_and(|pool| pool.destroyed)),
            read_only: settings.read_only || before.is_some_and(|pool| pool.read_only),
            untouched: held.engine().is_none(),
            hostid: match held.engine() {
                Some(_) => pool.config().u64("hostid"),
                None => before.and_then(|pool| pool.hostid),
            },
            boot,
            newest: match held.engine() {
                Some(_) if is_news => newest.max(reached(&pool)),
                _ => newest,
            },
            without: match held.engine() {
                None if !settings.awaits_late => host::late(&pool, &apart),
                _ => BTreeMap::new(),
            },
            apart,
            unread,
        };
        if before == Some(&remembered) {
            return Ok(());
        }
        self.places.state().remember(remembered, |guid| others.contains(&guid))
    }

    /// A pool that can only be read may be open with devices without which it was imported once: that they were given up is over,
    /// and a start waits for them as for others.
    pub(super) fn take_back(&self, held: &Held) -> Result<(), StateError> {
        let state = self.places.state();
        if state.known(held.guid()).is_none_or(|known| known.without.is_empty()) {
            return Ok(());
        }
        let tree = held.view().tree();
        let used = tree.leaves().into_iter().filter(|leaf| leaf.is_readable()).map(|leaf| leaf.guid);
        state.note_used(held.guid(), &used.collect())
    }

    /// After a change of an open pool's devices: the cache file follows. How the pool was imported still holds, or the
    /// next start would refuse what `-m` allowed.
    pub(crate) fn remember_devices(&self, held: &Held) -> Result<(), StateError> {
        let known = self.places.state().pools()?;
        let before = known.iter().find(|known| known.guid == held.guid());
        self.remember(held, &Settings::default(), before)
    }

    /// The same of a pool that may be open here without being remembered: then it stays so.
    pub(crate) fn remember_known_devices(&self, held: &Held) -> Result<(), StateError> {
        match self.places.state().pools()?.iter().any(|pool| pool.guid == held.guid()) {
            true => self.remember_devices(held),
            false => Ok(()),
        }
    }

    /// Whether an open pool is opened by itself at the next start, from now on (`cachefile`).
    pub(crate) fn list(&self, held: &Held, is_listed: bool) -> Result<(), StateError> {
        let known = self.places.state().pools()?;
        let before = known.iter().find(|known| known.guid == held.guid());
        self.remember_since((!is_listed).then(state::boot), held, &Settings::default(), before)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        host::Places,
        ops::{LOCK_PATIENCE, Mode, Operation, PoolCreate, Request, run},
        state::State,
    };

    /// A device that had left the pool with its labels, or a copy of one, opened it as of then when the others were late.
    #[tokio::test]
    async fn how_new_a_pool_is_at_least_is_known_as_soon_as_it_is_open() {
        let dir = tempfile::tempdir().unwrap();
        let places = Places::new(vec![dir.path().to_owned()], State::at(dir.path().join("state")));
        let host = Arc::new(Host::new(places, Mode::Daemon, Settings::default()));
        let at = |name: &str| dir.path().join(name).display().to_string();
        let ask = async |operation| {
            run(&host, Request { operation, command: None, user: 0 }).await.unwrap();
        };
        let again = async || {
            host.close().await.unwrap();
            let (candidate, _) = host.places().find("lake").await.unwrap();
            let (held, _) = host.reach(&candidate, None, true, LOCK_PATIENCE).await.unwrap();
            drop(host.receive(held).await.unwrap());
            candidate.uberblocks[0].txg
        };
        let newest = || host.places().state().pools().unwrap()[0].newest;
        let last = || host.find("lake").unwrap().view().uberblock().txg;
        let devices = vec!["mirror".to_owned(), at("d0"), at("d1")];
        let (pool, file_size) = ("lake".to_owned(), Some(128 << 20));
        ask(Operation::PoolCreate(PoolCreate { pool, devices, file_size, ..PoolCreate::default() })).await;
        // Never the last one: a start after a power failure would not wait for a device that is a moment late.
        assert!((1..last()).contains(&newest()), "{} of {}", newest(), last());
        let found = again().await;
        assert!((found..last()).contains(&newest()), "{} of {found} and {}", newest(), last());
        let (pool, device) = ("lake".to_owned(), at("d1"));
        ask(Operation::DeviceOffline { pool, device, temporary: false, fault: false }).await;
        // The other is the pool as it is, and waits for nobody.
        let found = again().await;
        assert!((found + 1..=last()).contains(&newest()), "{} of {found} and {}", newest(), last());
        host.close().await.unwrap();
        assert!(newest() > found + 1, "its end is known as well");
    }
}
