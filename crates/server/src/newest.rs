//! How new an open pool is, written down where its devices say only how new they are themselves.
//!
//! A device that went away knows nothing of what came after, and one that has left the pool may have its labels still: it
//! was away then, or refused to lose them. When the machine starts it may answer first, and of a mirror one side is enough:
//! alone, it would be opened as of then, and what was acknowledged since would be gone. So whenever a pool is opened, and
//! when its devices come, go and leave, a transaction group is remembered in the cache file that those lack which are not in
//! use; what is older than that is not opened while a device is missing that may have it ([`crate::host`]). One that is in
//! use again has the pool as it is: that it was set apart once is over then.
//!
//! That is a write for each of these, and for each end with a device away, none for a transaction group. While the pool is
//! open it is done on a thread of its own: the disk with the state directory may hang together with those of the pool.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use engine::{engine::Engine, events::Event};
use pool::{
    Pool,
    vdev::{Aux, State as Condition, Vdev},
};
use tokio::{task::spawn_blocking, time::timeout};

use crate::{host::chain, state::State};

/// How long the end of a pool waits until that is written down.
const LAST_NOTE: Duration = Duration::from_secs(3);

/// Whether a device of an open pool is away or back, or has left it, with an event, so that there may be something to write
/// down.
pub(crate) fn matters(event: &Event) -> bool {
    // The first is for what could not be written down meanwhile.
    matches!(
        event,
        Event::Resumed
            | Event::DeviceState { .. }
            | Event::DeviceDetached { .. }
            | Event::SpareReturned { .. }
    )
}

/// A transaction group that an open pool has, and that all lack which went away or left it before. With a device away it is
/// the last: as of that the pool is whole without it, and a start that finds it so waits for nobody
/// ([`crate::opening`]). With all of them it is the one before, lest it seem so.
pub(crate) fn reached(view: &Pool) -> u64 {
    view.uberblock().txg.saturating_sub(u64::from(!Note::of(view).lacks_one))
}

/// What is to be remembered of an open pool.
#[derive(Debug)]
pub(crate) struct Note {
    name: String,
    guid: u64,
    /// A device is away.
    lacks_one: bool,
    /// A transaction group that those lack which are away, or have left it; 0 if there is nothing to say of that.
    newest: u64,
    /// Of those, the ones that came back with another state than the pool has: their guids, and the newest transaction group
    /// that both have.
    apart: BTreeMap<u64, u64>,
    /// Guids of those that are in use.
    used: BTreeSet<u64>,
}

impl Note {
    /// Of a pool with the devices that it has now.
    pub(crate) fn of(view: &Pool) -> Self {
        let tree = view.tree();
        let (used, away): (Vec<&Vdev>, Vec<&Vdev>) =
            tree.leaves().into_iter().partition(|leaf| leaf.is_readable());
        let apart = away.iter().filter(|vdev| vdev.state() == (Condition::CantOpen, Aux::NewerState));
        Self {
            name: view.name().to_owned(),
            guid: view.guid(),
            lacks_one: !away.is_empty(),
            newest: 0,
            apart: apart
                .filter_map(|vdev| Some((vdev.guid, vdev.leaf.as_ref()?.condition.newest())))
                .collect(),
            used: used.iter().map(|vdev| vdev.guid).collect(),
        }
    }

    /// The same at its end, when it has got as far as this.
    pub(crate) fn at_txg(self, txg: u64) -> Self {
        Self { newest: if self.lacks_one { txg } else { 0 }, ..self }
    }

    /// Whether a device is away.
    pub(crate) fn lacks_one(&self) -> bool {
        self.lacks_one
    }

    /// Writes it down, and waits a moment for that: a state directory that does not answer keeps no pool from being left.
    pub(crate) async fn in_time(self, state: &State) {
        let name = self.name.clone();
        if timeout(LAST_NOTE, self.written(state)).await.is_err() {
            tracing::warn!(
                pool = name,
                "how new the pool is was not written down: the state directory does not answer"
            );
        }
    }

    async fn written(self, state: &State) {
        let state = state.clone();
        let _only_if_the_runtime_ends = spawn_blocking(move || self.write(&state)).await;
    }

    fn write(&self, state: &State) {
        // At an end with all of them in use there is only what was said of one before.
        let is_apart = || {
            let known = state.known(self.guid);
            known.is_some_and(|known| known.apart.keys().any(|guid| self.used.contains(guid)))
        };
        if self.newest == 0 && !is_apart() {
            return;
        }
        if let Err(error) = state.note_newest(self.guid, self.newest, &self.apart, &self.used) {
            let why = chain(&error);
            tracing::warn!(pool = self.name, why, "how new the pool is was not written down");
        }
    }
}

/// Writes that down for one pool, beside what is done with it otherwise.
#[derive(Debug)]
pub(crate) struct Notes {
    state: State,
    engine: Weak<Engine>,
    /// Words that are not heeded yet. One task does it for all: a shelf is many devices.
    asked: AtomicUsize,
}

impl Notes {
    pub(crate) fn new(state: State, engine: Weak<Engine>) -> Arc<Self> {
        Arc::new(Self { state, engine, asked: AtomicUsize::new(0) })
    }

    /// As soon as there is a transaction group that the devices lack which are away now, or have left. Wants a tokio runtime.
    pub(crate) fn soon(self: &Arc<Self>) {
        if self.asked.fetch_add(1, SeqCst) > 0 {
            return;
        }
        let this = Arc::clone(self);
        tokio::spawn(async move {
            loop {
                let heeded = this.asked.load(SeqCst);
                this.note().await;
                // Others may have come and gone while that was written.
                if this.asked.fetch_sub(heeded, SeqCst) == heeded {
                    return;
                }
            }
        });
    }

    async fn note(&self) {
        let Some(engine) = self.engine.upgrade() else { return };
        // What is suspended gets no further than they are; there is another word when it goes on.
        if engine.sync().await.is_err() {
            return;
        }
        let note = {
            let view = engine.view();
            Note { newest: reached(&view), ..Note::of(&view) }
        };
        drop(engine);
        note.written(&self.state).await;
    }
}
