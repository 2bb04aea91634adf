//! What is not offered and may be in a moment: all of a pool that was opened and not followed yet, and what of it could not
//! be read. Who logs in to such a target is told to try again, because hosts give one up for good that was never heard of.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    sync::Arc,
};

use block::BlockVolume;
use parking_lot::Mutex;

use super::{Entry, Serving};
use crate::{ops::Held, shares::Plan};

/// What of a pool could not be read, or has to wait.
#[derive(Default)]
pub(super) struct Unread {
    /// Its properties, or the list of its datasets: any target may be there.
    pub(super) any: bool,
    /// Volumes that have, or may have, targets of their own.
    pub(super) volumes: BTreeSet<String>,
    /// Volumes that are offered when a write has ended that came by the disk they were.
    pub(super) late: Vec<Arc<dyn BlockVolume>>,
}

impl Unread {
    /// All of it.
    pub(super) fn all() -> Self {
        Self { any: true, ..Self::default() }
    }

    /// A volume is not offered yet: the target of its own that is planned for it, if one is, may come.
    pub(super) fn expect(&mut self, volume: &str, plan: &Plan) {
        if plan.own {
            self.volumes.insert(volume.to_owned());
        }
    }
}

/// Pools with targets that may come, by guid: the name, and which.
#[derive(Default)]
pub(super) struct Coming(Mutex<BTreeMap<u64, (String, Unread)>>);

impl Coming {
    /// What came of following a pool. One that was given up is not noted: it may be open here again, and is expected then.
    pub(super) fn note(&self, held: &Held, unread: Unread) {
        let mut pools = self.0.lock();
        if held.is_withdrawn() {
            return;
        }
        match unread.any || !unread.volumes.is_empty() {
            true => drop(pools.insert(held.guid(), (held.name().to_owned(), unread))),
            false => drop(pools.remove(&held.guid())),
        }
    }

    /// The target of this volume's own is on its way, until it is noted what came of it.
    pub(super) fn expect(&self, held: &Held, volume: &str) {
        let mut pools = self.0.lock();
        let new = || (held.name().to_owned(), Unread::default());
        let (_, unread) = pools.entry(held.guid()).or_insert_with(new);
        unread.volumes.insert(volume.to_owned());
    }
}

/// The first volume from that name on. Snapshots are passed over all at once: there may be tens of thousands of a volume, and
/// anybody may ask over the network.
fn next_volume<'e>(
    entries: &'e BTreeMap<String, Entry>,
    from: Bound<&str>,
) -> Option<(&'e String, &'e Entry)> {
    let mut found = entries.range::<str, _>((from, Bound::Unbounded)).next()?;
    while let Some((volume, _)) = found.0.split_once('@') {
        // 'A' is what comes behind '@'.
        let behind = format!("{volume}A");
        found = entries.range::<str, _>((Bound::Included(behind.as_str()), Bound::Unbounded)).next()?;
    }
    Some(found)
}

impl Serving {
    /// A pool is open and will be followed: until then its targets are on their way, those too that went when it was last
    /// closed.
    pub(crate) fn expect(&self, held: &Held) {
        self.coming.note(held, Unread::all());
        self.targets.forget_removed(|target| iscsi::iqn::may_be_of_pool(target, held.name()));
    }

    /// It is not open here any more.
    pub(crate) fn forget(&self, guid: u64) {
        self.coming.0.lock().remove(&guid);
        self.again.forget(guid);
    }

    /// What NBD clients get that name nothing: the only volume there is, whether or not it is offered at the moment. A name that
    /// goes by what is would lead to another guest's disk as soon as that is alone: so it is the one that it was first, whatever
    /// its name is now, or what has its name since, or none. None while there may be others.
    pub(crate) fn only_volume(&self) -> Option<String> {
        if self.coming.0.lock().values().any(|(_, unread)| unread.any) {
            return None;
        }
        let entries = self.entries.lock();
        let (only, entry) = next_volume(&entries, Bound::Unbounded)?;
        if next_volume(&entries, Bound::Excluded(only)).is_some() {
            return None;
        }
        let guid = &entry.served.guid;
        let first = self.unnamed.get_or_init(|| (only.clone(), guid.clone()));
        (first.0 == *only || first.1 == *guid).then(|| only.clone())
    }

    /// Whether an export that is not there may come: with a pool that is not followed yet, or because it is planned, set aside
    /// maybe or not read yet.
    pub(crate) fn is_export_awaited(&self, name: &str) -> bool {
        let only = name.is_empty().then(|| self.only_volume()).flatten();
        let name = only.as_deref().unwrap_or(name);
        let (mut is_coming, mut is_unread) = (false, false);
        for (pool, unread) in self.coming.0.lock().values() {
            is_coming |= unread.any && (name.is_empty() || crate::ops::pool_of(name) == pool);
            is_unread |= unread.volumes.contains(name);
        }
        is_coming
            || match self.entries.lock().get(name) {
                Some(entry) if entry.plan.nbd => true,
                // One with a target of its own has a plan. Of others nobody could read it.
                entry => is_unread && !entry.is_some_and(|entry| entry.plan.own),
            }
    }

    /// Whether a target that is not there may come.
    pub(crate) fn is_awaited(&self, target: &str) -> bool {
        self.coming.0.lock().values().any(|(pool, unread)| match unread.any {
            true => iscsi::iqn::may_be_of_pool(target, pool),
            false => unread.volumes.iter().any(|volume| iscsi::iqn::for_dataset(volume) == target),
        })
    }
}
