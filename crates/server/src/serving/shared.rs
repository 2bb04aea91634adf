//! Targets that were set up: created, changed and removed as the pools' properties say. Whoever would not be let in any
//! more is out at once.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
};

use iscsi::{Access, Offer, Target};

use super::Serving;
use crate::{ops::Held, shares::PoolShares};

/// What pools have said so far.
#[derive(Default)]
pub(super) struct Shared {
    targets: BTreeMap<String, Owned>,
    discovery: BTreeMap<String, Access>,
    /// Pools with targets whose names another pool had first: what is said of that.
    waiting: BTreeMap<String, Vec<String>>,
}

struct Owned {
    pool: String,
    target: Arc<Target>,
}

impl Serving {
    /// The target of this name, which must be of this pool.
    pub(super) fn shared_target(&self, pool: &str, iqn: &str) -> Result<Arc<Target>, String> {
        match self.shared.lock().targets.get(iqn) {
            Some(owned) if owned.pool == pool => Ok(Arc::clone(&owned.target)),
            Some(owned) => Err(format!("target {iqn} is of pool '{}'", owned.pool)),
            None => Err(format!("there is no target {iqn}: 'millpond share target create {iqn}'")),
        }
    }

    /// The name of a target may be free now that another pool has one of: it gets it in that pool's turn.
    pub(crate) fn names_are_free(&self) {
        if !self.shared.lock().waiting.is_empty() {
            self.again.hurry(None);
        }
    }

    /// Targets of a pool that are not offered because another pool has one of the name, a sentence each.
    pub(crate) fn conflicts(&self, pool: &str) -> Vec<String> {
        self.shared.lock().waiting.get(pool).cloned().unwrap_or_default()
    }

    /// All disks of a pool's targets are there that can be: whoever waited for them may log in.
    pub(super) fn targets_are_ready(&self, held: &Held) {
        let shared = self.shared.lock();
        let is_its = |owned: &&Owned| owned.pool == held.name() && !held.is_withdrawn();
        shared.targets.values().filter(is_its).for_each(|owned| owned.target.set_ready());
    }

    /// The targets of a pool are these from now on. What cannot be done is a sentence each. One that is new takes logins when
    /// its disks are there: [`targets_are_ready`](Self::targets_are_ready).
    pub(super) fn follow_targets(&self, held: &Held, shares: &PoolShares) -> Vec<String> {
        let mut shared = self.shared.lock();
        if held.is_withdrawn() {
            return Vec::new();
        }
        self.put_targets(&mut shared, held.name(), shares)
    }

    /// A pool is given up: it has no targets any more.
    pub(super) fn withdraw_targets(&self, pool: &str) {
        self.put_targets(&mut self.shared.lock(), pool, &PoolShares::default());
    }

    fn put_targets(&self, shared: &mut Shared, pool: &str, shares: &PoolShares) -> Vec<String> {
        let mut problems = Vec::new();
        let gone: Vec<String> = shared
            .targets
            .iter()
            .filter(|(iqn, owned)| owned.pool == pool && !shares.targets.contains_key(*iqn))
            .map(|(iqn, _)| iqn.clone())
            .collect();
        for iqn in gone {
            shared.targets.remove(&iqn);
            self.targets.remove(&iqn);
            // Its disks went with it; NBD clients of their volumes stay.
            for entry in self.entries.lock().values_mut() {
                drop(entry.disk.take_if(|disk| !disk.own && disk.target.iqn() == iqn));
            }
        }
        let mut conflicts = Vec::new();
        for (iqn, share) in &shares.targets {
            match shared.targets.entry(iqn.clone()) {
                Entry::Occupied(owned) if owned.get().pool != pool => {
                    conflicts.push(format!(
                        "target {iqn} of pool '{pool}' is not offered: pool '{}' has one of this name",
                        owned.get().pool
                    ));
                }
                Entry::Occupied(owned) => {
                    let target = &owned.get().target;
                    target.set_access(share.access.clone());
                    target.set_groups(share.config.groups.clone());
                    let ended = self.targets.enforce(target);
                    if ended > 0 {
                        tracing::info!(iqn, ended, "iscsi: sessions ended: they are no longer allowed");
                    }
                }
                Entry::Vacant(place) => {
                    let (access, groups) = (share.access.clone(), share.config.groups.clone());
                    let offer = Offer { access, groups, is_coming: true, is_unlisted: false };
                    match self.targets.create(iqn, offer) {
                        Ok(target) => {
                            place.insert(Owned { pool: pool.to_owned(), target });
                        }
                        Err(error) => problems.push(format!("target {iqn} is not offered: {error}")),
                    }
                }
            }
        }
        problems.extend(conflicts.iter().cloned());
        shared.waiting.remove(pool);
        if !conflicts.is_empty() {
            shared.waiting.insert(pool.to_owned(), conflicts);
        }
        match shares.discovery() {
            Some(share) => shared.discovery.insert(pool.to_owned(), share.access),
            None => shared.discovery.remove(pool),
        };
        self.targets.set_discovery(discovery(&shared.discovery));
        problems
    }
}

/// Discovery is the server's: whom one of its pools admits may discover, and prove any credential of theirs. Names of one
/// pool and networks of another are no rule that anybody made: together they would admit everybody.
fn discovery(pools: &BTreeMap<String, Access>) -> Access {
    let auth = pools.values().flat_map(|access| access.auth.iter().cloned()).collect();
    let mut rules = pools.values().map(|access| Access { auth: Vec::new(), ..access.clone() });
    match rules.next() {
        Some(first) => Access { auth, or: rules.collect(), ..first },
        None => Access::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shares::Rule;

    #[test]
    fn what_pools_say_of_discovery_is_added_up() {
        let rule = |names: &[&str]| {
            let initiators = Some(names.iter().map(|name| (*name).to_owned()).collect());
            Rule { initiators, networks: None }.access(&[]).unwrap()
        };
        let mut pools = BTreeMap::new();
        let peer = "192.0.2.1".parse().unwrap();
        assert!(discovery(&pools).admits("iqn.a:x", peer));
        pools.insert("a".to_owned(), rule(&["iqn.a:x"]));
        pools.insert("b".to_owned(), rule(&["iqn.b:*"]));
        let both = discovery(&pools);
        assert!(
            both.admits("iqn.a:x", peer) && both.admits("iqn.b:y", peer) && !both.admits("iqn.c:z", peer)
        );
        pools.insert("c".to_owned(), Access::default());
        assert!(discovery(&pools).admits("iqn.c:z", peer));
    }

    /// Each of the two lists left open what the other one closed.
    #[test]
    fn names_of_one_pool_and_networks_of_another_do_not_open_discovery_to_everybody() {
        let names = Rule { initiators: Some(vec!["iqn.a:x".to_owned()]), networks: None };
        let networks = Rule { initiators: None, networks: Some(vec!["192.0.2.0/24".to_owned()]) };
        let [names, networks] = [names, networks].map(|rule| rule.access(&[]).unwrap());
        let pools = BTreeMap::from([("a".to_owned(), names), ("b".to_owned(), networks)]);
        let both = discovery(&pools);
        let (inside, outside) = ("192.0.2.1".parse().unwrap(), "198.51.100.1".parse().unwrap());
        assert!(both.admits("iqn.a:x", outside) && both.admits("iqn.c:z", inside));
        assert!(!both.admits("iqn.c:z", outside), "neither pool admits it");
    }
}
