//! One volume or snapshot is offered as planned: opened, and given to NBD and to its target. What clients have of it already
//! stays.
//!
//! ```text
//!   offer ── opened ──▶ give: late writes ended, what was written is stable ──▶ admit ──▶ its hosts are told
//!     └── not open: it stays what it was; or put off, its place kept or its target awaited; or refused
//! ```
//!
//! * What cannot be offered is known all the same, with why (`refused`): so it is listed, and tried again.
//! * The disk that takes a place which was kept for it is never missing in between: hosts take one that is missing for removed.
//! * A protocol that cannot have a volume is in no other's way.
//!
//! Not here: which volumes, and in which order (`super`), except that of two that want one place the first gets it; what
//! is taken from clients before (`withdraw.rs`).

use std::{collections::BTreeSet, sync::Arc};

use block::{BlockVolume, Identity, VolumeError};
use engine::engine::OpenError;
use futures_util::{StreamExt as _, stream::FuturesOrdered};
use iscsi::{Form, Offer, Shut, Target};
use parking_lot::Mutex;
use pool::{
    dsl::{Dataset, DatasetKind, LookupError},
    volume::OpenVolumeError,
};

use super::{Disk, Entry, Opened, Serving, coming::Unread};
use crate::{
    host::chain,
    lookout,
    ops::Held,
    shares::{Place, Plan},
};

/// Volumes and snapshots that are opened at a time: each is some small reads, one after the other.
const AT_ONCE: usize = 32;

/// A volume or snapshot that is to be offered.
pub(super) struct Wanted<'a> {
    pub(super) dataset: &'a Dataset,
    pub(super) plan: Plan,
    /// Its target, if that was shut: so it is until the disk is there again.
    pub(super) shut: Option<Shut>,
}

/// Why a volume is not open.
enum NotOpen {
    /// It is nothing that can be offered.
    Strange(String),
    /// It might have been a volume, or part of one, and is not.
    NoVolume,
    /// It could not be read, or lacks what its intent log holds: a disk all the same, which may be ready later.
    Unread(String),
}

impl Serving {
    /// Offers what has a place in a target that was set up. Where two want one place it is the first in the tree of datasets
    /// that gets it: the other waits.
    pub(super) async fn offer_placed(
        &self,
        held: &Held,
        mut placed: Vec<Wanted<'_>>,
        unread: &Mutex<Unread>,
    ) -> Vec<String> {
        placed.sort_by(|one, other| {
            let (one, other) = (one.dataset.live().name(), other.dataset.live().name());
            one.split('/').cmp(other.split('/'))
        });
        let mut places = BTreeSet::new();
        let (first, late): (Vec<_>, Vec<_>) =
            placed.into_iter().partition(|wanted| places.insert(wanted.plan.place.clone()));
        let mut problems = self.offer_all(held, first, unread).await;
        for wanted in late {
            problems.extend(self.offer_all(held, vec![wanted], unread).await);
        }
        problems
    }

    /// Offers these, some at a time: no two of them may want the same place. What could not be done is a sentence each.
    pub(super) async fn offer_all(
        &self,
        held: &Held,
        wanted: Vec<Wanted<'_>>,
        unread: &Mutex<Unread>,
    ) -> Vec<String> {
        let (mut problems, mut under_way) = (Vec::<String>::new(), FuturesOrdered::new());
        for Wanted { dataset, plan, shut } in wanted {
            under_way.push_back(async move {
                let problem = self.offer(held, dataset, plan, unread).await;
                drop(shut);
                problem
            });
            if under_way.len() == AT_ONCE {
                problems.extend(under_way.next().await.flatten());
            }
        }
        while let Some(problem) = under_way.next().await {
            problems.extend(problem);
        }
        problems
    }

    /// Offers one volume or snapshot as planned. What could not be done is a sentence.
    pub(super) async fn offer(
        &self,
        held: &Held,
        dataset: &Dataset,
        plan: Plan,
        unread: &Mutex<Unread>,
    ) -> Option<String> {
        let name = dataset.name();
        let is_live = held.engine().is_some() && dataset.kind() == DatasetKind::Head;
        if !is_live && !self.is_for_somebody(&plan) {
            self.keep_closed(held, dataset, plan);
            return None;
        }
        let before = {
            let entries = self.entries.lock();
            let same = entries.get(name).filter(|entry| entry.served.guid == dataset.guid().to_string());
            same.and_then(|entry| entry.opened.clone()).filter(|(_, live)| live.is_some() == is_live)
        };
        let opened = match (&before, is_live) {
            // A snapshot is what it was.
            (Some(before), false) => Ok(before.clone()),
            _ => open(held, dataset, is_live).await,
        };
        match opened {
            Ok(opened) => self.give(held, dataset, plan, opened, before, unread).await,
            Err(NotOpen::NoVolume) => {
                self.withdraw(held, name);
                None
            }
            Err(NotOpen::Strange(why) | NotOpen::Unread(why)) if before.is_some() => {
                // Its target may have been taken away for another block size, and is one that comes.
                unread.lock().expect(name, &plan);
                // Some say so themselves.
                let said = format!("cannot open '{name}'");
                Some(if why.starts_with(&said) { why } else { format!("{said}: {why}") })
            }
            Err(NotOpen::Unread(why)) => self.put_off(held, dataset, plan, why, unread),
            Err(NotOpen::Strange(why)) => {
                self.refuse(held, dataset, Plan::default(), why);
                None
            }
        }
    }

    /// Whether it is to be given to anybody at all.
    fn is_for_somebody(&self, plan: &Plan) -> bool {
        plan.own || plan.place.is_some() || (plan.nbd && !self.nbd.is_empty())
    }

    /// Gives a volume that is open to clients, where they have not got it already. `before` is what was open of it before.
    async fn give(
        &self,
        held: &Held,
        dataset: &Dataset,
        plan: Plan,
        (volume, live): Opened,
        before: Option<Opened>,
        unread: &Mutex<Unread>,
    ) -> Option<String> {
        let name = dataset.name();
        let same = match (&before, &live) {
            (Some((_, Some(before))), Some(now)) => Arc::ptr_eq(before, now),
            (Some((_, None)), None) => true,
            _ => false,
        };
        let has = |entry: &Entry| (entry.is_place_of(dataset), entry.disk.is_some(), entry.is_in_nbd);
        let (has_place, has_disk, has_export) = self.entries.lock().get(name).map(has).unwrap_or_default();
        let is_new_disk = (plan.own || plan.place.is_some()) && !(same && has_disk);
        let is_new_export = plan.nbd && !self.nbd.is_empty() && !has_export;
        let is_new = live.is_some() && (is_new_disk || is_new_export);
        let is_late = is_new && !self.last_writes_ended(&volume).await;
        let late = is_late.then_some("a write that came by the disk it was before is still on its way");
        if is_late {
            let mut unread = unread.lock();
            unread.late.push(Arc::clone(&volume));
            unread.expect(name, &plan);
        } else if is_new_disk
            && !plan.write_cache
            && let Err(error) = volume.flush().await
        {
            // Who finds the write cache off takes everything for stable, what was written by another way before too.
            let why = unstable(name, &error);
            if !same {
                return self.put_off(held, dataset, plan, why, unread);
            }
            unread.lock().expect(name, &plan);
            return Some(why);
        }
        let target = plan.place.as_ref().map(|place| self.shared_target(held.name(), &place.target));
        let geometry = volume.geometry();
        let (write_cache, threshold) = (plan.write_cache, plan.threshold);
        let (unit, is_chosen) = {
            let mut entries = self.entries.lock();
            if held.is_withdrawn() {
                return None;
            }
            // Its own place it takes: the disk must not be missing in between. Nor is it unknown for a moment.
            if !same && !has_place {
                self.withdraw_in(&mut entries, name);
            }
            let entry = entries.entry(name.to_owned()).or_insert_with(|| Entry::new(dataset));
            (entry.served.size, entry.served.block) = (geometry.size, geometry.block);
            entry.opened = Some((Arc::clone(&volume), live));
            let is_chosen = entry.plan.threshold != threshold;
            entry.plan = plan;
            let admitted = match late {
                _ if self.is_aside(held.guid(), name) => {
                    Err("it is being rolled back, renamed or destroyed".to_owned())
                }
                Some(why) => Err(why.to_owned()),
                None => self.admit(entry, name, volume, target),
            };
            entry.served.refused = admitted.err();
            (entry.disk.as_ref().map(|disk| Arc::clone(&disk.unit)), is_chosen)
        };
        let late = late.map(|why| format!("cannot offer '{name}' yet: {why}"));
        let Some(unit) = unit else { return late };
        unit.announce();
        lookout::warn_below(&unit, threshold);
        if is_chosen {
            unit.threshold_chosen();
        }
        let switched = unit.set_write_cache(write_cache).await;
        switched.err().map(|error| unstable(name, &error)).or(late)
    }

    /// Gives it to clients as planned, where they have not got it already. A protocol that cannot have it is in no other's
    /// way.
    fn admit(
        &self,
        entry: &mut Entry,
        name: &str,
        volume: Arc<dyn BlockVolume>,
        target: Option<Result<Arc<Target>, String>>,
    ) -> Result<(), String> {
        let exported = self.export(entry, name, &volume);
        let attached = self.attach(entry, name, volume, target);
        match (exported, attached) {
            (Err(nbd), Err(iscsi)) => Err(format!("{nbd}; {iscsi}")),
            (exported, attached) => exported.and(attached),
        }
    }

    fn export(&self, entry: &mut Entry, name: &str, volume: &Arc<dyn BlockVolume>) -> Result<(), String> {
        if entry.is_in_nbd {
            self.registry.describe(name, &description(&**volume));
        } else if entry.plan.nbd && !self.nbd.is_empty() {
            let inserted = self.registry.insert(name, &description(&**volume), Arc::clone(volume));
            inserted.map_err(|error| error.to_string())?;
            entry.is_in_nbd = true;
        }
        Ok(())
    }

    fn attach(
        &self,
        entry: &mut Entry,
        name: &str,
        volume: Arc<dyn BlockVolume>,
        target: Option<Result<Arc<Target>, String>>,
    ) -> Result<(), String> {
        if entry.disk.as_ref().is_some_and(|disk| !disk.unit.is_coming()) {
            return Ok(());
        }
        let (target, lun, own) = match (&entry.plan.place, target) {
            (Some(place), Some(target)) => (target?, place.lun, false),
            _ if entry.plan.own => {
                // Hosts that log in to all that is named would have every snapshot as a disk, and no retention could destroy one.
                let is_unlisted = name.contains('@');
                let offer = Offer { is_coming: true, is_unlisted, ..Offer::default() };
                let created = self.targets.create(&iscsi::iqn::for_dataset(name), offer);
                (created.map_err(|error| error.to_string())?, 0, true)
            }
            _ => return Ok(()),
        };
        let form = Form { block_size: entry.plan.block, write_cache: entry.plan.write_cache };
        let unit = target.add_lun(lun, volume, form).map_err(|error| error.to_string())?;
        if own {
            target.set_ready();
        }
        entry.disk = Some(Disk { target, lun, unit, own });
        Ok(())
    }

    /// Offers a volume later that cannot be offered at the moment: its place is kept, or its target awaited. What could not be
    /// done is a sentence.
    fn put_off(
        &self,
        held: &Held,
        dataset: &Dataset,
        plan: Plan,
        why: String,
        unread: &Mutex<Unread>,
    ) -> Option<String> {
        if let Some(place) = plan.place.clone() {
            return self.keep_place(held, dataset, (plan, place), why);
        }
        unread.lock().expect(dataset.name(), &plan);
        self.refuse(held, dataset, plan, why);
        None
    }

    /// Keeps the place of a volume that could not be read among the disks of its target: hosts take one that is missing for
    /// removed. What could not be done is a sentence.
    fn keep_place(
        &self,
        held: &Held,
        dataset: &Dataset,
        (plan, place): (Plan, Place),
        why: String,
    ) -> Option<String> {
        let name = dataset.name();
        let target = self.shared_target(held.name(), &place.target);
        let mut entries = self.entries.lock();
        if held.is_withdrawn() {
            return None;
        }
        if !entries.get(name).is_some_and(|entry| entry.is_place_of(dataset)) {
            self.withdraw_in(&mut entries, name);
        }
        let entry = entries.entry(name.to_owned()).or_insert_with(|| Entry::new(dataset));
        entry.served.refused = Some(why);
        let form = Form { block_size: plan.block, write_cache: plan.write_cache };
        entry.plan = plan;
        if entry.disk.is_some() {
            return None;
        }
        let (guid, pool_guid) = (dataset.guid(), held.guid());
        let who = Identity { name: name.to_owned(), guid, pool_guid };
        let kept = target.and_then(|target| {
            let unit = target.keep_lun(place.lun, who, form).map_err(|error| error.to_string())?;
            entry.disk = Some(Disk { target, lun: place.lun, unit, own: false });
            Ok(())
        });
        kept.err()
    }

    /// Does not offer one volume or snapshot, and says why. It is known all the time, with what is planned for later.
    pub(super) fn refuse(&self, held: &Held, dataset: &Dataset, plan: Plan, why: String) {
        let mut entry = Entry { plan, ..Entry::new(dataset) };
        entry.served.refused = Some(why);
        self.keep(held, entry);
    }

    /// Knows of a volume or snapshot that is only read and that nobody gets: it is not opened, and takes next to no memory.
    fn keep_closed(&self, held: &Held, dataset: &Dataset, plan: Plan) {
        self.keep(held, Entry { plan, ..Entry::new(dataset) });
    }

    /// From here on this is all there is of a volume or snapshot.
    fn keep(&self, held: &Held, entry: Entry) {
        let mut entries = self.entries.lock();
        if !held.is_withdrawn() {
            self.withdraw_in(&mut entries, &entry.served.dataset);
            entries.insert(entry.served.dataset.clone(), entry);
        }
    }
}

async fn open(held: &Held, dataset: &Dataset, is_live: bool) -> Result<Opened, NotOpen> {
    if let Some(engine) = held.engine().filter(|_| is_live) {
        return match engine.volume(dataset.name()).await {
            Ok(volume) => Ok((Arc::clone(&volume) as Arc<dyn BlockVolume>, Some(volume))),
            Err(OpenError::NotAVolume(_)) => Err(NotOpen::NoVolume),
            Err(
                error @ (OpenError::Closed(_)
                | OpenError::Read(_)
                | OpenError::Unreplayed(_)
                | OpenError::Lookup(LookupError::Read { .. })),
            ) => Err(NotOpen::Unread(chain(&error))),
            Err(error) => Err(NotOpen::Strange(chain(&error))),
        };
    }
    match dataset.open_volume().await {
        Ok(volume) => Ok((volume, None)),
        Err(OpenVolumeError::NotAVolume(_)) => Err(NotOpen::NoVolume),
        Err(error @ (OpenVolumeError::Encrypted(_) | OpenVolumeError::Partial(_))) => {
            Err(NotOpen::Strange(error.to_string()))
        }
        Err(error) => Err(NotOpen::Unread(chain(&error))),
    }
}

/// What an NBD client's list says about a volume.
fn description(volume: &dyn BlockVolume) -> String {
    let geometry = volume.geometry();
    let access = if geometry.read_only { "read-only" } else { "read-write" };
    format!("{} bytes, {access}", geometry.size)
}

fn unstable(name: &str, error: &VolumeError) -> String {
    format!("the write cache of '{name}' is off, and what was written before is not stable: {}", chain(error))
}
