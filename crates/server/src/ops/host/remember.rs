//! What is remembered of the pools that are open, in the cache file: which are opened at the next start, and how.

use std::collections::BTreeSet;

use pool::{import::Rewind, vdev::Vdev};

use super::Host;
use crate::{
    host::{self, Foreign, Settings},
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
        let (newest, mut apart) = known.map(|known| (known.newest, known.apart)).unwrap_or_default();
        // One that is in use has the pool as it is, and one that was replaced is a device like others.
        let is_used = |leaf: &&Vdev| held.engine().is_some() && leaf.is_readable();
        let tree = pool.tree();
        let others: BTreeSet<u64> =
            tree.leaves().into_iter().filter(|leaf| !is_used(leaf)).map(|leaf| leaf.guid).collect();
        apart.retain(|guid, _| others.contains(guid));
        let may_lack_log = settings.missing_log || before.is_some_and(|pool| pool.missing_log);
        let remembered = Remembered {
            name: pool.name().to_owned(),
            guid: pool.guid(),
            devices: host::devices(&pool),
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
            newest,
            apart,
        };
        if before == Some(&remembered) {
            return Ok(());
        }
        self.places.state().remember(remembered, |guid| others.contains(&guid))
    }

    /// After a change of an open pool's devices: the cache file follows. How the pool was imported still holds, or the
    /// next start would refuse what `-m` allowed.
    pub(crate) fn remember_devices(&self, held: &Held) -> Result<(), StateError> {
        let known = self.places.state().pools()?;
        let before = known.iter().find(|known| known.guid == held.guid());
        self.remember(held, &Settings::default(), before)
    }

    /// Whether an open pool is opened by itself at the next start, from now on (`cachefile`).
    pub(crate) fn list(&self, held: &Held, is_listed: bool) -> Result<(), StateError> {
        let known = self.places.state().pools()?;
        let before = known.iter().find(|known| known.guid == held.guid());
        self.remember_since((!is_listed).then(state::boot), held, &Settings::default(), before)
    }
}
