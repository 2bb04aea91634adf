//! Who takes the place of a leaf that failed, or gives wrong bytes: a new device in the very place of one that is gone
//! (`autoreplace`), or else a spare at rest.
//!
//! A spare stands in for one leaf at a time: also for what was to replace it, or stood in for it, and failed as well. One that was
//! tried and could not is not tried again for a while, and keeps no other from it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use pool::{
    Pool,
    space::{addressable, misfit_in},
    vdev::{Class, Kind, State, Tree, Vdev},
};
use tokio::time::{Instant, timeout};

use super::{away::Away, disk_of};
use crate::{
    devices::{NewLeaf, find, join, probe::PROBE},
    engine::Engine,
};

/// Pause before a spare that could not be taken is tried again.
const PAUSE: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Default)]
pub(super) struct StandIns {
    /// Spares, and replacements of leaves, are not tried before.
    patience: BTreeMap<u64, Instant>,
    /// Leaves that failed and that no spare at rest fits: told once.
    unspared: BTreeSet<u64>,
}

impl StandIns {
    /// Spares, and new devices in the places of old ones, for what failed.
    pub(super) async fn look(&mut self, engine: &Engine, away: &Away) {
        if engine.suspension().is_on() || engine.is_ending() {
            return;
        }
        let tree = engine.view().tree();
        let (without_stand_in, without_successor) = (without_stand_in(&tree), without_successor(&tree));
        self.unspared.retain(|guid| without_stand_in.contains(guid));
        let leaves: Vec<u64> = tree.leaves().into_iter().map(|leaf| leaf.guid).collect();
        for guid in leaves {
            if without_successor.contains(&guid)
                && self.is_due(guid)
                && self.succeed(engine, away, guid).await
            {
                continue;
            }
            if without_stand_in.contains(&guid) {
                self.find_stand_in(engine, guid).await;
            }
        }
    }

    /// All that could not be taken is tried at once.
    pub(super) fn try_all_again(&mut self) {
        self.patience.clear();
    }

    /// Of leaves whose disks were closed another device may be in the place by now.
    pub(super) fn try_places_again(&mut self, away: &Away) {
        self.patience.retain(|guid, _| !away.is_closed(*guid));
    }

    /// Whether it is time to try this spare, or a replacement of this leaf.
    fn is_due(&self, guid: u64) -> bool {
        self.patience.get(&guid).is_none_or(|until| *until <= Instant::now())
    }

    /// From now on: what was tried may have taken a while.
    fn try_later(&mut self, guid: u64) {
        self.patience.insert(guid, Instant::now() + PAUSE);
    }

    /// `autoreplace`: whether a new device takes the place of a leaf that is gone.
    async fn succeed(&mut self, engine: &Engine, away: &Away, guid: u64) -> bool {
        let tree = engine.view().tree();
        let device = find::name(&tree, guid);
        if !engine.conduct().autoreplace || disk_of(&tree, guid).is_some() {
            return false;
        }
        let Some(opener) = away.opener() else { return false };
        let found = timeout(PROBE, opener.replacement(&device)).await;
        let Ok(Some(new)) = found else {
            // One that failed may be there still, and hold up whoever looks.
            if away.is_closed(guid) {
                self.try_later(guid);
            }
            return false;
        };
        let new = NewLeaf { ashift: new.ashift.or(Some(join::SMALLEST)), ..new };
        let replaced = match engine.try_out(&new.disk).await {
            Ok(()) => engine.replace(guid, new).await.map(drop),
            Err(error) => Err(error),
        };
        if let Err(error) = &replaced {
            tracing::warn!(device = device.name, %error, "cannot be replaced");
            self.try_later(guid);
        }
        replaced.is_ok()
    }

    /// The first spare that can stands in for a leaf. One that cannot keeps no other from it.
    async fn find_stand_in(&mut self, engine: &Engine, guid: u64) {
        let view = engine.view();
        let device = find::name(&view.tree(), guid);
        let spares = spares_for(&view, guid);
        if spares.is_empty() && !at_rest(&view).is_empty() && self.unspared.insert(guid) {
            tracing::warn!(
                device = device.name,
                "no spare stands in: those at rest are too small, or of larger sectors"
            );
        }
        for spare in spares {
            if !self.is_due(spare) {
                continue;
            }
            let activated = match engine.try_out_spare(spare).await {
                Ok(()) => engine.activate_spare(guid, spare, None).await,
                Err(error) => Err(error),
            };
            let Err(error) = activated else { return };
            tracing::warn!(device = device.name, spare, %error, "a spare cannot stand in");
            self.try_later(spare);
            if engine.suspension().is_on() {
                return;
            }
        }
    }
}

/// Where one device should be, which may be several: a leaf of a mirror or RAIDZ, what replaces it, what stands in for it.
fn slots(tree: &Tree) -> impl Iterator<Item = &Vdev> {
    let tops = tree.tops.iter().filter(|top| top.class() != Class::Log);
    tops.flat_map(|top| match top.kind {
        Kind::Spare | Kind::Replacing => std::slice::from_ref(top),
        _ => top.children.as_slice(),
    })
}

fn has_failed(vdev: &Vdev) -> bool {
    matches!(vdev.state().0, State::Faulted | State::Removed | State::CantOpen)
}

/// Leaves that failed, or give wrong bytes, and that nothing stands in for: also not who was to do so, or to take their
/// places, and failed as well. Then it is the newest of them.
fn without_stand_in(tree: &Tree) -> Vec<u64> {
    let wanting = |slot: &Vdev| {
        let leaves = slot.leaves();
        let newest = *leaves.last()?;
        let is_wanting = match slot.leaf {
            Some(_) => has_failed(slot) || slot.state().0 == State::Degraded,
            None => has_failed(newest) && !leaves.iter().any(|leaf| leaf.is_readable()),
        };
        is_wanting.then_some(newest.guid)
    };
    slots(tree).filter_map(wanting).collect()
}

/// Leaves that failed and that nothing takes the place of; what stands in for one is to be free again.
fn without_successor(tree: &Tree) -> Vec<u64> {
    let original = |slot: &Vdev| {
        let first = if slot.kind == Kind::Spare { slot.children.first()? } else { slot };
        let is_original = first.leaf.as_ref().is_some_and(|leaf| !leaf.is_spare);
        (is_original && has_failed(first)).then_some(first.guid)
    };
    slots(tree).filter_map(original).collect()
}

/// The spares at rest that are there.
fn at_rest(view: &Pool) -> Vec<&Vdev> {
    let in_use: BTreeSet<u64> = view.tree().leaves().into_iter().map(|leaf| leaf.guid).collect();
    view.spares().iter().filter(|spare| !in_use.contains(&spare.guid) && spare.is_readable()).collect()
}

/// The spares at rest that are large enough for leaf `guid` and can be written to as it is, the smallest first. One that is
/// not for this leaf is not tried, and so is ready for another.
fn spares_for(view: &Pool, guid: u64) -> Vec<u64> {
    let tree = view.tree();
    let Some(place) = find::locate(&tree, guid) else { return Vec::new() };
    let sized = |spare: &Vdev| {
        let info = spare.leaf.as_ref()?.disk()?.info();
        let sector = addressable(spare.kind == Kind::File, &info);
        misfit_in(place.top, info.size, sector).is_none().then_some((info.size, spare.guid))
    };
    let mut fitting: Vec<(u64, u64)> = at_rest(view).into_iter().filter_map(sized).collect();
    fitting.sort_unstable();
    fitting.into_iter().map(|(_, guid)| guid).collect()
}
