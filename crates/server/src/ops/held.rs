//! A pool that is open: written to, or only read and why.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use engine::engine::Engine;
use parking_lot::Mutex;
use pool::{Pool, vdev::Tallied};

use super::worked::Worked;
use crate::{clock, host::chain, memory::Memory, newest::Unwritten, state::CommandTurn};

/// A pool that is open.
#[derive(Clone, Debug)]
pub struct Held {
    name: String,
    guid: u64,
    access: Access,
    opened_ns: u64,
    memory: Arc<Memory>,
    /// Shared by all clones.
    worked: Arc<Mutex<Worked>>,
    /// Shared by all clones.
    unwritten: Unwritten,
    /// Shared by all clones.
    is_withdrawn: Arc<AtomicBool>,
    /// It would be written to if that could be.
    is_read_only_by_need: bool,
    /// It is not opened by itself at the next start. Shared by all clones.
    is_unlisted: Arc<AtomicBool>,
    /// Of the command that has it. Shared by all clones.
    _turn: Option<Arc<CommandTurn>>,
}

#[derive(Clone, Debug)]
enum Access {
    Writing(Arc<Engine>),
    /// As it was when it was opened, and why it is not written to.
    Reading(Arc<Pool>, String),
}

impl Held {
    /// A pool that is written to.
    #[must_use]
    pub fn writing(engine: Arc<Engine>) -> Self {
        let view = engine.view();
        let name = view.name().to_owned();
        Self::of(name, view.guid(), Access::Writing(engine))
    }

    /// A pool that is only read, and why.
    #[must_use]
    pub fn reading(pool: Arc<Pool>, why: impl Into<String>) -> Self {
        let (name, guid) = (pool.name().to_owned(), pool.guid());
        Self::of(name, guid, Access::Reading(pool, why.into()))
    }

    fn of(name: String, guid: u64, access: Access) -> Self {
        Self {
            name,
            guid,
            access,
            opened_ns: clock::since_1970(),
            memory: Arc::default(),
            worked: Arc::new(Mutex::new(Worked::new())),
            unwritten: Unwritten::default(),
            is_withdrawn: Arc::default(),
            is_read_only_by_need: false,
            is_unlisted: Arc::default(),
            _turn: None,
        }
    }

    /// The same, and nobody wished that it is only read.
    pub(super) fn by_need(self) -> Self {
        Self { is_read_only_by_need: true, ..self }
    }

    /// The same, and other commands wait for their turn with it as long as this lives.
    pub(crate) fn in_turn(self, turn: Option<Arc<CommandTurn>>) -> Self {
        Self { _turn: turn, ..self }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its guid.
    #[must_use]
    pub fn guid(&self) -> u64 {
        self.guid
    }

    /// When it was opened, nanoseconds since 1970.
    pub(crate) fn opened_ns(&self) -> u64 {
        self.opened_ns
    }

    /// What its disks have done since then, as far as each was looked at before it left.
    pub(crate) fn worked(&self) -> Tallied {
        let mut worked = self.worked.lock();
        // Under the lock: a look at an older state would find those again that have left.
        worked.look(&self.view().tree())
    }

    /// Why it cannot be written down how new it is, if that is so.
    pub(crate) fn unwritten(&self) -> &Unwritten {
        &self.unwritten
    }

    /// Its state as of the last commit.
    #[must_use]
    pub fn view(&self) -> Arc<Pool> {
        match &self.access {
            Access::Writing(engine) => engine.view(),
            Access::Reading(pool, _) => Arc::clone(pool),
        }
    }

    /// What writes to it, if anything may.
    #[must_use]
    pub fn engine(&self) -> Option<&Arc<Engine>> {
        match &self.access {
            Access::Writing(engine) => Some(engine),
            Access::Reading(..) => None,
        }
    }

    /// Why nothing can be written any more, if that is so.
    #[must_use]
    pub fn suspended(&self) -> Option<String> {
        let why = chain(&self.engine()?.suspended()?);
        Some(why.strip_prefix("the pool is suspended: ").unwrap_or(&why).to_owned())
    }

    /// Nothing of it is to be offered any more, whoever is just about to.
    pub(crate) fn withdraw(&self) {
        self.is_withdrawn.store(true, Ordering::Release);
    }

    /// Whether that is so.
    pub(crate) fn is_withdrawn(&self) -> bool {
        self.is_withdrawn.load(Ordering::Acquire)
    }

    /// From now on it is opened by itself at the next start, or not.
    pub(super) fn unlist(&self, is_unlisted: bool) {
        self.is_unlisted.store(is_unlisted, Ordering::Release);
    }

    /// Whether it is not opened by itself at the next start: `cachefile=none`.
    #[must_use]
    pub fn is_unlisted(&self) -> bool {
        self.is_unlisted.load(Ordering::Acquire)
    }

    /// What was found out about it so far.
    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Why it is not written to, if that is so.
    #[must_use]
    pub fn read_only(&self) -> Option<&str> {
        match &self.access {
            Access::Writing(_) => None,
            Access::Reading(_, why) => Some(why),
        }
    }

    /// The same, unless somebody wished so.
    #[must_use]
    pub fn read_only_by_need(&self) -> Option<&str> {
        self.read_only().filter(|_| self.is_read_only_by_need)
    }
}
