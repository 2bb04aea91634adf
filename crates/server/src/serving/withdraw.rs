//! What is taken back from clients: of a volume that is gone or has another name, of one that is planned to be elsewhere, of a
//! pool that is given up.
//!
//! The same volume keeps what it can: one that was renamed its place in a target that was set up, one that gets another block
//! size the one it has, as long as somebody reads and writes by that. A list that lacks something says of nothing that it is
//! gone.
//!
//! What leaves a place has done so before others are offered that may want it (`Serving::planned`). Whether clients are to be
//! spared was asked before it comes to this (`clients.rs`).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use block::BlockVolume;
use engine::volume::LiveVolume;
use iscsi::Shut;
use pool::dsl::Dataset;

use super::{Disk, Entry, NoPlan, Serving};
use crate::{
    ops::{Held, pool_of},
    shares::Plan,
};

/// How long the last writes of a disk that was taken away are waited for, from then on: longer than most reads of the blocks
/// that they change parts of.
const LAST_WRITES: Duration = Duration::from_secs(12);

impl Serving {
    /// Offers no longer this volume or snapshot of a pool.
    pub fn withdraw(&self, held: &Held, name: &str) {
        let mut entries = self.entries.lock();
        if !held.is_withdrawn() {
            self.withdraw_in(&mut entries, name);
        }
    }

    pub(super) fn withdraw_in(&self, entries: &mut BTreeMap<String, Entry>, name: &str) {
        self.registry.remove(name);
        if let Some(Entry { disk: Some(disk), .. }) = entries.remove(name) {
            self.take(&disk);
        }
    }

    /// A volume is no disk any more.
    pub(super) fn take(&self, disk: &Disk) {
        if disk.own {
            self.targets.remove(disk.target.iqn());
        } else {
            disk.target.remove_lun(disk.lun);
        }
    }

    /// Whether nothing lands in a volume any more that came by a disk of it which was taken away. That is waited for, but not
    /// for ever: its devices may not answer.
    pub(super) async fn last_writes_ended(&self, volume: &Arc<dyn BlockVolume>) -> bool {
        self.targets.service().last_writes_ended(volume, LAST_WRITES).await
    }

    /// Offers nothing of this pool any more, not even if somebody is just following it: that may last, where devices do not
    /// answer.
    pub(crate) async fn withdraw_pool(&self, held: &Held) {
        // First: what is offered from here on is among what is taken back, or is not offered.
        held.withdraw();
        let pool = held.name();
        {
            let mut entries = self.entries.lock();
            let of_pool = entries.keys().filter(|name| pool_of(name) == pool);
            let names: Vec<String> = of_pool.cloned().collect();
            names.iter().for_each(|name| self.withdraw_in(&mut entries, name));
        }
        self.withdraw_targets(pool);
        self.portals.leave(pool).await;
    }

    /// What has another name now keeps its place in a target that was set up; what is gone goes. A list that is not
    /// complete says of none that it is gone: of volumes that were open, those that are destroyed are closed, and of snapshots
    /// and what could not be read yet nobody knows more than the list does.
    pub(super) fn follow_names(&self, held: &Held, has: &BTreeSet<&str>, is_complete: bool) {
        let gone: Vec<(String, Option<Arc<LiveVolume>>)> = {
            let entries = self.entries.lock();
            if held.is_withdrawn() {
                return;
            }
            let of_pool = entries.iter().filter(|(name, _)| pool_of(name) == held.name());
            let gone = of_pool.filter(|(name, _)| !has.contains(name.as_str()));
            gone.map(|(name, entry)| (name.clone(), entry.live().cloned())).collect()
        };
        for (name, live) in gone {
            let open = held.engine().map(|engine| engine.open_volumes()).unwrap_or_default();
            let is_open = |live: &Arc<LiveVolume>| open.iter().any(|open| Arc::ptr_eq(open, live));
            let is_closed = live.as_ref().is_some_and(|live| !is_open(live));
            match live.filter(is_open).map(|live| live.identity().name) {
                Some(new) if new != name && has.contains(new.as_str()) => self.rename(held, &name, &new),
                _ if !is_complete && !is_closed => {}
                _ => self.withdraw(held, &name),
            }
        }
    }

    /// The same volume by another name. Exports and targets of its own are named by it.
    fn rename(&self, held: &Held, name: &str, new: &str) {
        let mut entries = self.entries.lock();
        if held.is_withdrawn() {
            return;
        }
        self.registry.remove(name);
        let Some(mut entry) = entries.remove(name) else { return };
        entry.is_in_nbd = false;
        if let Some(own) = entry.disk.take_if(|disk| disk.own) {
            self.take(&own);
        }
        new.clone_into(&mut entry.served.dataset);
        // Another volume had the name and is gone: its export, too, leads to that one.
        self.withdraw_in(&mut entries, new);
        entries.insert(new.to_owned(), entry);
    }

    /// Takes a volume from where it will not be. A disk gets no other block size under hosts that are logged in, who would read
    /// and write elsewhere by the one that they know: then it is left as it is, in the plan too, which is a sentence. Where
    /// nobody is, nobody comes in until it has the other: its target is shut, or awaited if it is the disk's own.
    pub(super) fn leave(
        &self,
        held: &Held,
        dataset: &Dataset,
        plan: &mut Result<Plan, NoPlan>,
    ) -> Result<Option<Shut>, String> {
        let name = dataset.name();
        let plan = match plan {
            Ok(plan) => plan,
            Err(NoPlan::Strange(why)) => {
                self.refuse(held, dataset, Plan::default(), why.clone());
                return Ok(None);
            }
            Err(NoPlan::Unread(_)) => return Ok(None),
        };
        let mut entries = self.entries.lock();
        if held.is_withdrawn() {
            return Ok(None);
        }
        let Some(entry) = entries.get_mut(name) else { return Ok(None) };
        if entry.is_in_nbd && !plan.nbd {
            self.registry.remove(name);
            entry.is_in_nbd = false;
        }
        if entry.plan.is_same_disk(plan) {
            return Ok(None);
        }
        let has_other_blocks = entry.plan.is_same_place(plan);
        let Some(disk) = entry.disk.take() else { return Ok(None) };
        // Before it is asked who is there: nobody comes in between. Else it stays open, for its other disks.
        let shut = has_other_blocks.then(|| disk.target.shut());
        if has_other_blocks && self.sessions_with(&disk.target) > 0 {
            plan.block = entry.plan.block;
            entry.disk = Some(disk);
            return Err(format!(
                "'{name}' keeps its block size of {} bytes as long as initiators are logged in ('millpond initiators')",
                plan.block
            ));
        }
        match has_other_blocks && disk.own {
            true => {
                self.coming.expect(held, name);
                self.targets.remove_for_now(disk.target.iqn());
            }
            false => self.take(&disk),
        }
        Ok(shut)
    }
}
