//! Devices of an open pool that come, go, fail and return: every change of the device tree and of how a leaf is.
//!
//! ```text
//!   administrator ─▶ Engine::{offline, online, attach, replace, detach, …} ─▶ a command in the syncing task
//!   failing I/O, probes ─▶ watch ─▶ faulted, removed, sits out; opened again; a spare stands in
//!                                └▶ events
//!   every few seconds ─▶ auxiliaries ─▶ cache devices and spares at rest: gone, failing, back
//! ```
//!
//! `probe` says whether a device is there, `whose` by its labels which one a disk is, `trial` whether a new one takes writes.
//!
//! What a leaf is like at this moment is its [`pool::vdev::Condition`]; what of it is persisted goes into the
//! configuration in the transaction group that follows. Which transaction groups a leaf lacks is [`crate::missed`]'s
//! business, and bringing it up to date [`crate::scan`]'s.
//!
//! Facts: docs/format/vdevs.md §6, §8, §9.

use std::{fmt, io, sync::Arc, time::Duration};

use disk::Disk;
use ondisk::{label::PoolState, nvlist::NvList};
use pool::vdev::{Disks, Tree, TxgSet};

use crate::{
    BoxFuture,
    create::Removal,
    dsl::OpError,
    engine::Engine,
    error::EngineError,
    events::{DeviceName, Event},
    sync::Syncer,
    write::{labels, ours::Ours},
};

mod auxiliaries;
pub mod diagnose;
mod find;
mod grow;
mod join;
mod leave;
mod probe;
mod replicas;
mod shape;
mod slow;
mod state;
mod sweep;
mod trial;
pub(crate) mod watch;
mod whose;

pub use find::{find, name};
pub(crate) use grow::note_sizes;
pub use join::{OLD, is_in_place};
pub(crate) use probe::answers;
pub use replicas::late;
pub(crate) use replicas::{Absent, comings_and_goings, generation, is_away, tops};
pub(crate) use shape::edit;
pub(crate) use state::{persist, reinstate_logs};
pub(crate) use sweep::Sweeps;
pub use sweep::{SweepCommand, SweepKind, SweepState, SweepStatus, recorded_sweeps};

/// Longest that labels of a device that left may take: it may be leaving because it hangs.
const FAREWELL: Duration = Duration::from_secs(10);

/// A device that is to come into the pool: locked, not in use by another pool (`create::device::prepare`).
#[derive(Clone, Debug)]
pub struct NewLeaf {
    /// Its path, absolute.
    pub path: String,
    /// Itself.
    pub disk: Arc<dyn Disk>,
    /// A regular file, not a block device.
    pub is_file: bool,
    /// Smallest write it is to be used with; none: a physical sector of it.
    pub ashift: Option<u32>,
}

/// Opens devices of the pool: where to look is the server's knowledge, and a test's in simulation.
pub trait Opener: fmt::Debug + Send + Sync + 'static {
    /// Opens and locks the leaf `device` again, wherever it is now. Whether it really is that leaf is for the caller to
    /// see, by its label.
    ///
    /// # Errors
    /// `NotFound` if it is not there.
    fn open<'a>(&'a self, device: &'a DeviceName) -> BoxFuture<'a, io::Result<Arc<dyn Disk>>>;
    /// A new, unused device in the very place of a leaf that is gone (`autoreplace`); none if there is none.
    fn replacement<'a>(&'a self, device: &'a DeviceName) -> BoxFuture<'a, Option<NewLeaf>>;
}

/// What `zpool online` came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Onlined {
    /// It works.
    Healthy,
    /// It was taken online, and is not usable: its state says why.
    StillFaulted,
}

/// Leaves that can be read and written and lack something, with what they lack: a resilver is wanted. Their list may
/// name transaction groups that are yet to come, of which they lack some blocks. Changes whenever a leaf comes, goes or
/// fails: to be asked at the end of each transaction group.
#[must_use]
pub fn lacking(tree: &Tree) -> Vec<(u64, TxgSet)> {
    let leaves = tree.leaves().into_iter().filter(|vdev| vdev.is_readable());
    leaves
        .filter_map(|vdev| {
            let missed = vdev.leaf.as_ref()?.missed.get();
            (!missed.is_empty()).then_some((vdev.guid, missed))
        })
        .collect()
}

/// A resilver has ended, and what it made up for was [subtracted](pool::vdev::Missed::subtract) from the lists of its
/// leaves: replacements that are whole take their places, spares whose device is whole again go back to rest. Within a
/// transaction group, before its `missed::sync`, which writes the shorter lists. Harmless at any other time.
///
/// # Errors
/// Only a failing pool.
pub fn resilvered(cx: &mut Syncer) -> BoxFuture<'_, Result<(), OpError>> {
    leave::resilvered(cx)
}

/// The same devices as the configuration describes them now.
pub(crate) fn described(tree: &Tree, config: &NvList) -> Result<Tree, EngineError> {
    let described = tree.reshaped(&shape::tops(config), &Disks::new());
    described.map_err(|error| EngineError::Encode { what: "the configuration", detail: error.to_string() })
}

/// A pool was opened, and some of its devices may be there again that were away. Before its first transaction group.
pub(crate) fn opened(tree: &Tree) {
    leave::returned(tree);
}

/// What a device that left gets instead of its labels.
#[derive(Clone, Copy, Debug)]
enum Farewell {
    /// None: it is free.
    Gone,
    /// Those of a spare at rest.
    Spare(u64),
}

/// What is done for devices once a transaction group is durable, before anybody is told of that.
#[derive(Debug, Default)]
pub(crate) struct Afterwards {
    events: Vec<Event>,
    labels: Vec<(Arc<dyn Disk>, Farewell)>,
}

impl Afterwards {
    fn tell(&mut self, event: Event) {
        self.events.push(event);
    }

    /// Does it. A device that does not take its labels keeps those of a member, as of now: who opens pools has to know that this
    /// one has got further.
    pub(crate) async fn run(cx: &mut Syncer) {
        let Self { events, labels } = std::mem::take(&mut cx.afterwards);
        let suspension = cx.out.suspension();
        for (disk, farewell) in labels {
            // It may be another host's by now.
            if suspension.may_write().is_err() {
                break;
            }
            let disk = Ours::over(disk, &suspension);
            let write = async {
                match farewell {
                    Farewell::Gone => labels::clear(&disk).await,
                    Farewell::Spare(guid) => {
                        labels::initialize_auxiliary(&disk, guid, PoolState::Spare).await
                    }
                }
            };
            let path = disk.info().path;
            match tokio::time::timeout(FAREWELL, write).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(path, %error, "labels not cleared"),
                Err(_) => tracing::warn!(path, "labels not cleared: the device does not answer"),
            }
        }
        events.into_iter().for_each(|event| cx.events.tell(event));
    }
}

fn refused(why: impl Into<String>) -> OpError {
    OpError::Refused(why.into())
}

impl Engine {
    /// Takes a leaf offline: nothing is read from it or written to it, and its device is closed if it [can be
    /// opened](Opener) again. `temporary` is forgotten when the pool is opened again.
    ///
    /// # Errors
    /// Data would be unavailable (`no valid replicas`).
    pub fn offline(&self, guid: u64, temporary: bool) -> BoxFuture<'_, Result<(), OpError>> {
        Box::pin(async move {
            let view = self.view();
            // Nothing is put there again before it is offline.
            let _vacated = match state::log_of(&view.tree(), guid) {
                Some(top) => {
                    let removal = Removal::find(&view, &top.to_string())?;
                    removal.vacate(self).await?;
                    Some(removal)
                }
                None => None,
            };
            self.run(move |cx| state::offline(cx, guid, temporary)).await?;
            self.let_go().await;
            Ok(())
        })
    }

    /// Excludes a leaf as if it had failed, until it is cleared or taken online (`zpool offline -f`).
    ///
    /// # Errors
    /// Data would be unavailable (`no valid replicas`).
    pub fn fault(&self, guid: u64) -> BoxFuture<'_, Result<(), OpError>> {
        Box::pin(async move {
            self.run(move |cx| Box::pin(async move { state::fault(cx, guid) })).await?;
            self.let_go().await;
            Ok(())
        })
    }

    /// Takes a leaf into use again, faulted and removed ones included; what it missed is brought up to date by a
    /// resilver. `disk` is what it was opened as if it was away; without it whoever watches the devices looks for it. With
    /// `expand` its top-level device grows to what its leaves offer.
    ///
    /// # Errors
    /// No such leaf.
    pub fn online(
        &self,
        guid: u64,
        disk: Option<Arc<dyn Disk>>,
        expand: bool,
    ) -> BoxFuture<'_, Result<Onlined, OpError>> {
        Box::pin(async move {
            let view = self.view();
            let Some(cache) = view.l2cache().iter().find(|vdev| vdev.guid == guid) else {
                let is_away = find::locate(&view.tree(), guid).is_some_and(|place| !place.vdev.is_readable());
                let disk = match disk {
                    None if is_away => self.find(guid).await,
                    disk => disk,
                };
                let onlined = self.run(move |cx| state::online(cx, guid, disk, expand)).await?;
                self.sweeps().go_on();
                return Ok(onlined);
            };
            // No part of the tree: who watches the devices opens it.
            self.look().await;
            let is_here = cache.leaf.as_ref().is_some_and(|leaf| leaf.disk().is_some());
            Ok(if is_here { Onlined::Healthy } else { Onlined::StillFaulted })
        })
    }

    /// Makes `new` another side of the leaf or mirror `guid`; returns its guid. A resilver fills it.
    ///
    /// # Errors
    /// Too small, or `guid` is part of a RAIDZ device.
    pub fn attach(&self, guid: u64, new: NewLeaf) -> BoxFuture<'_, Result<u64, OpError>> {
        self.run(move |cx| join::attach(cx, guid, new))
    }

    /// Lets `new` take the place of leaf `guid`, which leaves the pool when a resilver has filled the new one; returns
    /// the new one's guid.
    ///
    /// # Errors
    /// Too small, or the leaf is being replaced already.
    pub fn replace(&self, guid: u64, new: NewLeaf) -> BoxFuture<'_, Result<u64, OpError>> {
        self.run(move |cx| join::replace(cx, guid, new))
    }

    /// Takes a side of a mirror, a replacement or a spare in use out of the tree for good; its labels are cleared.
    ///
    /// # Errors
    /// `only applicable to mirror and replacing vdevs`, `no valid replicas`.
    pub fn detach(&self, guid: u64) -> BoxFuture<'_, Result<(), OpError>> {
        self.run(move |cx| leave::detach(cx, guid))
    }

    /// Lets the hot spare `spare` stand in for leaf `guid`. Its physical sectors may be larger than what is written there,
    /// unless it is to be used with an `ashift`.
    ///
    /// # Errors
    /// It is in use, or too small, or does not answer.
    pub fn activate_spare(
        &self,
        guid: u64,
        spare: u64,
        ashift: Option<u32>,
    ) -> BoxFuture<'_, Result<(), OpError>> {
        let under_way = self.sweeps().under_way();
        self.run(move |cx| join::activate_spare(cx, guid, spare, ashift, under_way))
    }

    /// Whether a device that is to come into the pool takes writes: in the command that lets it in the pool waits for it.
    ///
    /// # Errors
    /// It does not.
    pub fn try_out<'a>(&'a self, disk: &'a Arc<dyn Disk>) -> BoxFuture<'a, Result<(), OpError>> {
        Box::pin(trial::try_out(Arc::clone(disk), self.suspension()))
    }

    /// The same of a hot spare at rest.
    ///
    /// # Errors
    /// It does not.
    pub fn try_out_spare(&self, spare: u64) -> BoxFuture<'_, Result<(), OpError>> {
        Box::pin(async move {
            let view = self.view();
            let at_rest = view.spares().iter().find(|vdev| vdev.guid == spare);
            let at_rest = at_rest.filter(|_| find::locate(&view.tree(), spare).is_none());
            // Whatever else is in its way is for the command to say.
            match at_rest.and_then(|vdev| vdev.leaf.as_ref()?.timed()) {
                Some(disk) => trial::try_out(disk, self.suspension()).await,
                None => Ok(()),
            }
        })
    }
}
