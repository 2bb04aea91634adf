//! How new an open pool is, written down where its devices say only how new they are themselves.
//!
//! A device that went away knows nothing of what came after. When the machine starts it may answer first, and of a mirror
//! one side is enough: alone, it would be opened as of then, and what was acknowledged since would be gone. So whenever a
//! device is away, a transaction group that it lacks is remembered in the cache file, and what is older than that is not
//! opened while a device is missing that may have it ([`crate::host`]).
//!
//! That is a write for each outage and for each end with a device away, none for a transaction group.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use engine::{engine::Engine, events::Event};
use pool::{
    Pool,
    vdev::{Aux, State as Condition, Vdev},
};

use crate::{host::chain, state::State};

/// Whether a device of an open pool is away, or will be with an event, so that there is something to write down.
pub(crate) fn matters(event: &Event) -> bool {
    match event {
        // What could not be written down meanwhile.
        Event::Resumed => true,
        Event::DeviceState { to, .. } => !to.is_readable(),
        _ => false,
    }
}

/// Of a pool that lacks devices, those that came back with another state than it has: their guids, and the newest transaction
/// group that both have. None if it lacks none.
pub(crate) fn away(view: &Pool) -> Option<BTreeMap<u64, u64>> {
    let tree = view.tree();
    let away: Vec<&Vdev> = tree.leaves().into_iter().filter(|leaf| !leaf.is_readable()).collect();
    if away.is_empty() {
        return None;
    }
    let apart = away.into_iter().filter(|vdev| vdev.state() == (Condition::CantOpen, Aux::NewerState));
    Some(apart.filter_map(|vdev| Some((vdev.guid, vdev.leaf.as_ref()?.condition.newest()))).collect())
}

/// Writes that down for one pool, beside what is done with it otherwise.
#[derive(Debug)]
pub(crate) struct Notes {
    state: State,
    engine: Weak<Engine>,
    /// One is about to do it: a shelf is many devices.
    is_under_way: AtomicBool,
}

impl Notes {
    pub(crate) fn new(state: State, engine: Weak<Engine>) -> Arc<Self> {
        Arc::new(Self { state, engine, is_under_way: AtomicBool::new(false) })
    }

    /// As soon as there is a transaction group that the devices lack which are away now. Wants a tokio runtime.
    pub(crate) fn soon(self: &Arc<Self>) {
        if self.is_under_way.swap(true, Relaxed) {
            return;
        }
        let this = Arc::clone(self);
        tokio::spawn(async move {
            let Some(engine) = this.engine.upgrade() else { return };
            this.is_under_way.store(false, Relaxed);
            // What is suspended gets no further than they are; there is another word when it goes on.
            if engine.sync().await.is_err() {
                return;
            }
            let view = engine.view();
            let Some(apart) = away(&view) else { return };
            if let Err(error) = this.state.note_newest(view.guid(), view.uberblock().txg, &apart) {
                let why = chain(&error);
                tracing::warn!(pool = view.name(), why, "how new the pool is was not written down");
            }
        });
    }
}
