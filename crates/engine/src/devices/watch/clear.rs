//! `zpool clear`: what is known of the errors of devices is forgotten, and what failed or is away is tried again.
//!
//! What an administrator took offline stays so. What of this concerns a suspended pool, [`Engine::clear`] does when the errors are
//! forgotten.

use std::sync::Arc;

use pool::{
    Pool,
    vdev::{Aux, Tree, Vdev},
};

use super::{PAUSES, Watch, change};
use crate::{
    devices::{find, leave},
    dsl::OpError,
    engine::Engine,
    events::Event,
};

impl Watch {
    /// Of device `guid`, or of all.
    pub(super) async fn clear(&mut self, engine: &Engine, guid: Option<u64>) -> Result<(), OpError> {
        let view = engine.view();
        let tree = view.tree();
        let meant = meant(&view, &tree, guid)?;
        match guid {
            None => tree.reset_errors(),
            Some(_) => meant.iter().for_each(|vdev| reset(vdev)),
        }
        self.stand_ins.try_all_again();
        // What is cleared is looked for wherever it is by now.
        self.away.close_excluded(engine);
        let leaves: Vec<&Vdev> = meant.iter().flat_map(|vdev| vdev.leaves()).collect();
        let is_away = |vdev: &&&Vdev| {
            let standing = vdev.leaf.as_ref().map(|leaf| leaf.condition.get());
            standing.is_some_and(|now| now.disk.is_none() && !now.offline)
        };
        let away: Vec<u64> = leaves.iter().filter(is_away).map(|vdev| vdev.guid).collect();
        self.away.bring_back(engine, &away, &mut self.diagnosis).await;
        let mut may_unspare = false;
        for vdev in leaves {
            may_unspare |= self.clear_leaf(engine, &tree, vdev);
        }
        // One that lacks nothing has no resilver whose end would send the spare back.
        if may_unspare
            && !engine.suspension().is_on()
            && let Err(error) = engine.run(leave::resilvered).await
        {
            tracing::warn!(%error, "a spare cannot go back");
        }
        self.auxiliaries.look(engine, self.away.opener(), true).await;
        self.reports.take();
        self.pause = PAUSES.0;
        engine.events().tell(Event::Cleared { device: guid.map(|guid| find::name(&tree, guid)) });
        engine.txgs().wake();
        Ok(())
    }

    /// Of one leaf. Whether a spare that stands in for it may go back to rest.
    fn clear_leaf(&mut self, engine: &Engine, tree: &Tree, vdev: &Vdev) -> bool {
        self.diagnosis.forget(Some(vdev.guid));
        self.failed_probes.remove(&vdev.guid);
        self.mute.remove(&vdev.guid);
        engine.targets().trust(vdev.guid);
        engine.scans().forgive(vdev.guid);
        let Some(leaf) = &vdev.leaf else { return false };
        let standing = Arc::clone(&leaf.condition.get());
        if !standing.faulted && !standing.degraded {
            return false;
        }
        // A spare that stands in for it goes back to rest when it is whole again.
        let is_spared = find::locate(tree, vdev.guid).is_some_and(|place| place.is_spared());
        change(engine, vdev.guid, "its errors were cleared", |now| {
            now.unspare |= is_spared && (now.faulted || now.degraded);
            (now.faulted, now.degraded, now.aux) = (false, false, Aux::None);
        });
        is_spared
    }
}

/// What is to be cleared: a device of the tree with all below it, or one beside it; or the whole tree.
fn meant<'a>(view: &'a Pool, tree: &'a Tree, guid: Option<u64>) -> Result<Vec<&'a Vdev>, OpError> {
    let Some(guid) = guid else { return Ok(tree.tops.iter().collect()) };
    let in_tree = find::locate(tree, guid).map(|place| place.vdev);
    let beside = || view.l2cache().iter().chain(view.spares()).find(|vdev| vdev.guid == guid);
    match in_tree.or_else(beside) {
        Some(vdev) => Ok(vec![vdev]),
        None => Err(OpError::Refused("no such device in pool".to_owned())),
    }
}

fn reset(vdev: &Vdev) {
    vdev.counters.reset();
    if let Some(leaf) = &vdev.leaf {
        leaf.pulse.reset();
    }
    vdev.children.iter().for_each(reset);
}
