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
//! open it is done on a thread of its own: the disk with the state directory may hang together with those of the pool. What
//! cannot be written is tried again until it can, and is an alert meanwhile.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use engine::{engine::Engine, events::Event};
use parking_lot::Mutex;
use pool::{
    Pool,
    vdev::{Aux, State as Condition, Vdev},
};
use tokio::{
    task::spawn_blocking,
    time::{sleep, timeout},
};

use crate::{host::chain, state::State};

/// How long the end of a pool waits until that is written down.
const LAST_NOTE: Duration = Duration::from_secs(3);
/// When what could not be written down is tried again first, and the longest pause after more failures. The pool may be
/// opened as of an old state for as long.
const RETRY: Duration = Duration::from_secs(5);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Whether a device of an open pool is away or back, or has left it, with an event, so that there may be something to write
/// down.
pub(crate) fn matters(event: &Event) -> bool {
    // While it was suspended it got no further, and nothing was written down.
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
        let failed = match timeout(LAST_NOTE, self.written(state)).await {
            Ok(Ok(())) => return,
            Ok(Err(why)) => why,
            Err(_) => "the state directory does not answer".to_owned(),
        };
        tracing::warn!(pool = name, why = failed, "how new the pool is was not written down");
    }

    /// Writes it down, or says why that cannot be.
    async fn written(self, state: &State) -> Result<(), String> {
        let state = state.clone();
        // There is no answer only if the runtime ends.
        spawn_blocking(move || self.write(&state)).await.unwrap_or(Ok(()))
    }

    fn write(&self, state: &State) -> Result<(), String> {
        // At an end with all of them in use there is only what was said of one before.
        let is_apart = || {
            let known = state.known(self.guid);
            known.is_some_and(|known| known.apart.keys().any(|guid| self.used.contains(guid)))
        };
        if self.newest == 0 && !is_apart() {
            return Ok(());
        }
        state.note_newest(self.guid, self.newest, &self.apart, &self.used).map_err(|error| chain(&error))
    }
}

/// Writes that down for one pool, beside what is done with it otherwise.
#[derive(Debug)]
pub(crate) struct Notes {
    state: State,
    engine: Weak<Engine>,
    /// Words that are not heeded yet. One task does it for all: a shelf is many devices.
    asked: AtomicUsize,
    /// Why it cannot be written down now, for whoever tells of that.
    failed: Unwritten,
    /// The first pause after a failure.
    retry: Duration,
}

/// Why something cannot be written down of a pool, as long as that is so.
pub(crate) type Unwritten = Arc<Mutex<Option<String>>>;

impl Notes {
    pub(crate) fn new(state: State, engine: Weak<Engine>, failed: Unwritten) -> Arc<Self> {
        Arc::new(Self { state, engine, asked: AtomicUsize::new(0), failed, retry: RETRY })
    }

    /// As soon as there is a transaction group that the devices lack which are away now, or have left. Wants a tokio runtime.
    pub(crate) fn soon(self: &Arc<Self>) {
        if self.asked.fetch_add(1, SeqCst) > 0 {
            return;
        }
        let this = Arc::clone(self);
        tokio::spawn(async move {
            let mut pause = this.retry;
            loop {
                let heeded = this.asked.load(SeqCst);
                if !this.note().await {
                    sleep(pause).await;
                    pause = (2 * pause).min(RETRY_MAX);
                    continue;
                }
                pause = this.retry;
                // Others may have come and gone while that was written.
                if this.asked.fetch_sub(heeded, SeqCst) == heeded {
                    return;
                }
            }
        });
    }

    /// Whether nothing is left to be tried again.
    async fn note(&self) -> bool {
        let Some(engine) = self.engine.upgrade() else { return true };
        // What is suspended gets no further than they are; there is another word when it goes on.
        if engine.sync().await.is_err() {
            return true;
        }
        let note = {
            let view = engine.view();
            Note { newest: reached(&view), ..Note::of(&view) }
        };
        drop(engine);
        let name = note.name.clone();
        let outcome = note.written(&self.state).await.err();
        let mut failed = self.failed.lock();
        if let Some(why) = &outcome
            && *failed != outcome
        {
            tracing::warn!(pool = name, why, "how new the pool is cannot be written down; it is tried again");
        }
        *failed = outcome;
        failed.is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{
        host::{Places, Settings},
        ops::{Host, Mode, Operation, PoolCreate, Request, run},
    };

    /// It was tried once. A state directory that had no room at that moment left the pool to be opened as of any time before
    /// by the device that had gone then.
    #[tokio::test]
    async fn how_new_a_pool_is_is_written_down_as_soon_as_it_can_be() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::at(dir.path().join("state"));
        let places = Places::new(Vec::new(), state.clone());
        let host = Arc::new(Host::new(places, Mode::Daemon, Settings::default()));
        let at = |name: &str| dir.path().join(name).display().to_string();
        let ask = async |operation| {
            run(&host, Request { operation, command: None, user: 0 }).await.unwrap();
        };
        let devices = vec!["mirror".to_owned(), at("d0"), at("d1")];
        let (pool, file_size) = ("lake".to_owned(), Some(128 << 20));
        ask(Operation::PoolCreate(PoolCreate { pool, devices, file_size, ..PoolCreate::default() })).await;
        let (pool, device) = ("lake".to_owned(), at("d1"));
        ask(Operation::DeviceOffline { pool, device, temporary: false, fault: false }).await;
        let newest = || state.pools().unwrap()[0].newest;
        let before = newest();
        // As if there was no room, for root too.
        let in_the_way = state.dir().join("pools.json.new");
        fs::create_dir_all(in_the_way.join("x")).unwrap();
        let notes = {
            let held = host.find("lake").unwrap();
            let engine = Arc::downgrade(held.engine().unwrap());
            let (asked, failed) = (AtomicUsize::new(0), Unwritten::default());
            let retry = Duration::from_millis(10);
            Arc::new(Notes { state: state.clone(), engine, asked, failed, retry })
        };
        notes.soon();
        until(|| notes.failed.lock().is_some()).await;
        assert_eq!(newest(), before);
        fs::remove_dir_all(in_the_way).unwrap();
        until(|| newest() > before && notes.failed.lock().is_none()).await;
        host.close().await.unwrap();
    }

    async fn until(is_so: impl Fn() -> bool) {
        let waiting = async {
            while !is_so() {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(Duration::from_secs(30), waiting).await.expect("it comes to that");
    }
}
