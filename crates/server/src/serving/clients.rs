//! Who uses what is offered, and who would lose what by a change: asked before anything is taken away from clients.
//!
//! Connections of NBD and sessions of iSCSI are asked for at that moment; nothing is counted along, so nothing can be counted
//! wrongly. A session counts for every disk of its target: whether a host has one mounted cannot be seen. And so does a copy
//! from or to a disk that a host ordered at another target.
//!
//! Who came in behind the answer is not in it. Where that matters nobody can come in any more when it is asked for the last
//! time ([`set_aside`](Serving::set_aside), and where a disk leaves its place).

use std::collections::BTreeSet;

use iscsi::Target;

use super::{Disk, Serving};
use crate::{ops::pool_of, shares::Plan};

impl Serving {
    /// Clients of this volume or snapshot, each by what it is and where it came from.
    pub(crate) fn clients(&self, name: &str) -> Vec<String> {
        self.users(|dataset| dataset == name)
    }

    /// Those of it, of its snapshots, and of what is below it. With `everywhere` a snapshot means those of its name of
    /// everything below its dataset.
    pub(crate) fn clients_below(&self, name: &str, everywhere: bool) -> Vec<String> {
        self.users(|dataset| is_below(dataset, name, everywhere))
    }

    /// What there is of that.
    pub(crate) fn names_below(&self, name: &str, everywhere: bool) -> Vec<String> {
        let entries = self.entries.lock();
        entries.keys().filter(|dataset| is_below(dataset, name, everywhere)).cloned().collect()
    }

    /// Clients of anything of a pool.
    pub(crate) fn clients_of_pool(&self, pool: &str) -> Vec<String> {
        self.users(|dataset| pool_of(dataset) == pool)
    }

    fn users(&self, is_meant: impl Fn(&str) -> bool) -> Vec<String> {
        let connections = self.nbd_server.connections();
        let nbd = connections.iter().filter(|connection| connection.export.as_deref().is_some_and(&is_meant));
        let nbd = nbd.map(|connection| format!("an NBD client from {}", connection.peer));
        let entries = self.entries.lock();
        let meant = entries.iter().filter(|(name, _)| is_meant(name));
        let disks: Vec<&Disk> = meant.filter_map(|(_, entry)| entry.disk.as_ref()).collect();
        let iqns: BTreeSet<&str> = disks.iter().map(|disk| disk.target.iqn()).collect();
        let sessions = self.targets.sessions();
        let of_disks = sessions.iter().filter(|session| iqns.contains(session.target.as_str()));
        let of_disks = of_disks.map(|session| format!("{} from {}", session.initiator, session.peer));
        let has_session = |disk: &Disk| sessions.iter().any(|session| session.target == disk.target.iqn());
        let copies = disks.iter().filter(|disk| disk.unit.is_in_copy() && !has_session(disk));
        let copies = copies.map(|_| "a copy that a host ordered".to_owned());
        nbd.chain(of_disks).chain(copies).collect()
    }

    /// Those of the volumes and snapshots that `is_meant` picks that have [`clients`](Self::clients).
    pub(crate) fn used(&self, is_meant: impl Fn(&str) -> bool) -> BTreeSet<String> {
        let connections = self.nbd_server.connections().into_iter();
        let exports = connections.filter_map(|connection| connection.export);
        let mut used: BTreeSet<String> = exports.filter(|name| is_meant(name)).collect();
        let entries = self.entries.lock();
        let sessions = self.targets.sessions();
        let iqns: BTreeSet<&str> = sessions.iter().map(|session| session.target.as_str()).collect();
        let is_used = |disk: &Disk| iqns.contains(disk.target.iqn()) || disk.unit.is_in_copy();
        let disks = entries.iter().filter(|(_, entry)| entry.disk.as_ref().is_some_and(is_used));
        used.extend(disks.map(|(name, _)| name).filter(|name| is_meant(name)).cloned());
        used
    }

    /// How many would lose this volume or snapshot if it were offered as planned; with `for_block` those count that would have
    /// it with another block size.
    pub(crate) fn cut_off_by(&self, name: &str, plan: &Plan, for_block: bool) -> usize {
        let entries = self.entries.lock();
        let Some(entry) = entries.get(name) else { return 0 };
        let connections = self.nbd_server.connections();
        let nbd = connections.iter().filter(|connection| connection.export.as_deref() == Some(name)).count();
        // One that has another block size meant for it keeps its own as long as somebody is there.
        let is_kept = match for_block {
            true => entry.plan.is_same_disk(plan),
            false => entry.plan.is_same_place(plan),
        };
        let lost = entry.disk.as_ref().filter(|_| !is_kept);
        lost.map_or(0, |disk| self.sessions_with(&disk.target)) + if plan.nbd { 0 } else { nbd }
    }

    /// Sessions with the disk of this volume that found no write cache by its plan, and would be under one by this.
    pub(crate) fn deceived_by(&self, name: &str, plan: &Plan) -> usize {
        let entries = self.entries.lock();
        let switched = entries.get(name).filter(|entry| plan.write_cache && !entry.plan.write_cache);
        switched.and_then(|entry| entry.disk.as_ref()).map_or(0, |disk| self.sessions_with(&disk.target))
    }

    /// How many initiators are logged in to this target of a pool; another pool's of that name is not meant.
    pub(crate) fn sessions_of(&self, pool: &str, iqn: &str) -> usize {
        let target = self.shared_target(pool, &iqn.to_ascii_lowercase());
        target.map_or(0, |target| self.sessions_with(&target))
    }

    /// How many are logged in to a target.
    pub(super) fn sessions_with(&self, target: &Target) -> usize {
        self.targets.sessions().iter().filter(|session| session.target == target.iqn()).count()
    }
}

/// Whether a dataset is this one, one of its snapshots, or below it. With `everywhere` a snapshot means those of its name of
/// everything below its dataset.
fn is_below(dataset: &str, name: &str, everywhere: bool) -> bool {
    let below = |of: &str| {
        dataset.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '@']))
    };
    match name.split_once('@').filter(|_| everywhere) {
        Some((head, short)) => {
            below(head) && dataset.split_once('@').is_some_and(|(_, other)| other == short)
        }
        None => below(name),
    }
}
