//! How a pool is opened: because an operation names it, as a daemon does with all of its own, by an import.
//!
//! A pool is held for writing if it can be: devices locked, an engine started. Where it cannot (features this
//! version may only read, an intent log that only OpenZFS can claim, devices without permission) or must not
//! (`--readonly`, `-o readonly=on`, a rewound import), it is held for reading, and the reason is kept: it is what
//! every operation on it is refused with.
//!
//! What devices do not give for now is no such reason. Held for reading, a pool shows hosts what was there before the last
//! writes that were acknowledged to them, and nobody opens it again: it is not opened, and a daemon that was not told which
//! pools to serve tries it again. One that was told does not start.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use engine::{
    BoxFuture, EngineError,
    engine::Engine,
    open::{OpenOptions, READ_ONLY},
};
use pool::{
    Pool,
    import::{Candidate, Refused, Rewind},
    text::clean,
};
use tokio::time::Instant;

use super::{Host, Mode, give_back, seed, workers};
use crate::{
    host::{self, Foreign, HostError, Older, Opened, RECOVERED, Settings, chain},
    hostid, kernel, logs,
    opening::IN_USE_PATIENCE,
    ops::{Held, failure::PoolError, names},
    state::{CommandTurn, Remembered, StateError},
};

/// How long devices that somebody else has are asked for: a killed process gives its back within milliseconds, on a
/// busy machine within tenths of a second.
pub(crate) const LOCK_PATIENCE: Duration = Duration::from_millis(1500);
pub(super) const LOCK_PAUSE: Duration = Duration::from_millis(25);

/// What is said of a pool that somebody else has open.
pub(crate) const IN_USE: &str = "pool is in use";

/// A pool that was opened, and what the user should know; or the whole sentence that says why it was not.
type Outcome = Result<(Held, Vec<String>), String>;

impl Host {
    /// The pool of this name or guid, for reading at least. A command opens it if it is imported, or where `-d` says.
    pub(crate) async fn pool(&self, name: &str) -> Result<Arc<Held>, PoolError> {
        if let Some(held) = self.find(name) {
            return Ok(held);
        }
        if self.mode != Mode::Command {
            return Err(PoolError::Missing(String::new()));
        }
        let (candidate, remembered) = match self.places.find(name).await {
            Ok(found) => found,
            Err(HostError::NoSuchPool { hint, .. }) => return Err(PoolError::Missing(hint)),
            Err(error) => {
                let why = chain(&error);
                return Err(match error {
                    HostError::Absent { .. } => PoolError::Absent(why),
                    _ => PoolError::Failed(why),
                });
            }
        };
        // With -d it was found by searching; how it was imported holds all the same, also if nobody can tell at the moment.
        let imported = self.places.state().pools();
        let imported = imported
            .map_err(|error| PoolError::Failed(format!("cannot open '{name}': {}", chain(&error))))?;
        let known = || imported.into_iter().find(|pool| pool.guid == candidate.guid);
        let remembered = remembered.or_else(known);
        if remembered.is_none() && self.places.named().is_empty() {
            let hint = format!("\na pool of this name is there and not imported: 'zpool import {name}'");
            return Err(PoolError::Missing(hint));
        }
        // Nor is one that was imported here and that another host has exported since: it may be about to go elsewhere.
        let exported = !self.places.named().is_empty();
        let settings = Settings { foreign: Foreign::Refuse, exported, ..self.settings.clone() };
        let opened = self.open(&candidate, remembered.as_ref(), &settings, None, LOCK_PATIENCE).await;
        let (held, _notes) = opened.map_err(|why| match &remembered {
            Some(_) if !why.contains(IN_USE) => PoolError::Unopenable { guid: candidate.guid, why },
            _ => PoolError::Failed(why),
        })?;
        if held.engine().is_some() {
            // The next command looks for it anew then.
            let _unkept = self.remember(&held, &settings, remembered.as_ref());
        }
        Ok(self.keep(held))
    }

    /// The pool of this name or guid, to be looked at only: nothing is written to it, not even that it is open.
    pub(crate) async fn readable(&self, name: &str) -> Result<Arc<Held>, PoolError> {
        if let Some(held) = self.find(name) {
            return Ok(held);
        }
        if self.mode != Mode::Command {
            return Err(PoolError::Missing(String::new()));
        }
        match self.places.open(name, &self.settings).await {
            Ok(opened) => Ok(Arc::new(Held::reading(opened.pool, "it was opened to be looked at"))),
            Err(HostError::NoSuchPool { hint, .. }) => Err(PoolError::Missing(hint)),
            Err(error) => Err(PoolError::Failed(chain(&error))),
        }
    }

    /// The pool of this name or guid, for writing.
    pub(crate) async fn writable(&self, name: &str) -> Result<Arc<Held>, PoolError> {
        let held = self.pool(name).await?;
        match (held.read_only(), held.suspended()) {
            (None, None) => Ok(held),
            (Some(why), _) => Err(PoolError::ReadOnly(why.to_owned())),
            (None, Some(why)) => Err(PoolError::Suspended(held.name().to_owned(), why)),
        }
    }

    /// Opens a pool that was found: for writing if it can be, else for reading. Devices that somebody else has are asked for
    /// as long as `patience` says. What the user should know is in the notes.
    ///
    /// # Errors
    /// It cannot even be read, or only that where another name is asked for; its own name is none for a pool; or somebody else
    /// has it: the whole sentence.
    pub fn open<'a>(
        &'a self,
        candidate: &'a Candidate,
        remembered: Option<&'a Remembered>,
        settings: &'a Settings,
        rename: Option<String>,
        patience: Duration,
    ) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let attempt = Attempt::new(self, candidate, remembered, settings, rename.is_some());
            match attempt.must_not_write() {
                Some(RECOVERED) => {
                    let (held, mut notes) = attempt.read(RECOVERED.to_owned()).await?;
                    notes.push(attempt.only_read(RECOVERED));
                    Ok((held.by_need(), notes))
                }
                Some(why) => attempt.read(why.to_owned()).await,
                None => attempt.write(rename, patience).await,
            }
        })
    }

    /// A pool goes on from what was there of it, also if it was newer once. What more there is of it, on devices that are
    /// missing, is not to take its place at a later start, nor be overwritten without a word.
    fn go_on_from(
        &self,
        pool: &Pool,
        older: Option<&Older>,
        notes: &mut Vec<String>,
    ) -> Result<(), StateError> {
        let mut apart = BTreeMap::new();
        if let Some(older) = older {
            notes.push(format!(
                "pool '{}' goes on from txg {}: a device that was missing is not taken back by itself if it has more than \
                 that",
                pool.name(),
                older.txg
            ));
            apart.extend(older.missing.iter().map(|guid| (*guid, older.txg)));
        }
        self.places.state().go_on_from(pool.guid(), pool.newest_uberblock().txg, &apart)
    }

    /// Opens a pool that was found as a daemon opens all of its own; [`receive`](Self::receive) keeps it. Unless somebody asked
    /// for it, one that others exported stays closed: it may be about to go elsewhere. This takes as long as its devices do, so
    /// nobody who does it has a turn. `patience` as of [`open`](Self::open).
    ///
    /// # Errors
    /// As [`open`](Self::open), or another of its name is open.
    pub(crate) async fn reach(
        &self,
        candidate: &Candidate,
        remembered: Option<&Remembered>,
        is_asked_for: bool,
        patience: Duration,
    ) -> Outcome {
        self.has_no_other(&candidate.name, candidate.guid)?;
        let settings = Settings { exported: is_asked_for, ..self.settings.clone() };
        Box::pin(self.open(candidate, remembered, &settings, None, patience)).await
    }

    /// Keeps such a pool, and remembers it if it is open for writing; of one that can only be read, that its devices are back.
    /// What the user should know is in the notes.
    ///
    /// # Errors
    /// Another of its name was opened meanwhile: this one is closed again.
    pub(crate) async fn receive(&self, held: Held) -> Result<(Arc<Held>, Vec<String>), String> {
        if let Err(why) = self.has_no_other(held.name(), held.guid()) {
            give_back(&held).await;
            return Err(why);
        }
        let kept = match held.engine() {
            Some(_) => {
                let known = self.places.state().pools().unwrap_or_default();
                let before = known.iter().find(|known| known.guid == held.guid());
                self.remember(&held, &self.settings, before)
            }
            None => self.take_back(&held),
        };
        let notes = kept.err().map(|error| chain(&error)).into_iter().collect();
        Ok((self.keep(held), notes))
    }

    /// Nothing that is open has this name.
    fn has_no_other(&self, name: &str, guid: u64) -> Result<(), String> {
        let Some(other) = self.find(name) else { return Ok(()) };
        Err(chain(&HostError::Ambiguous { name: name.to_owned(), guids: vec![other.guid(), guid] }))
    }
}

/// See [`Host::open`].
struct Attempt<'a> {
    host: &'a Host,
    candidate: &'a Candidate,
    remembered: Option<&'a Remembered>,
    settings: Settings,
    /// Nobody asked for it under the name that it has, which another pool may have as well.
    is_renamed: bool,
}

impl<'a> Attempt<'a> {
    fn new(
        host: &'a Host,
        candidate: &'a Candidate,
        remembered: Option<&'a Remembered>,
        settings: &Settings,
        is_renamed: bool,
    ) -> Self {
        let settings =
            Settings { cache: Some(host.cache()), memory: host.settings.memory, ..settings.clone() };
        Self { host, candidate, remembered, settings, is_renamed }
    }

    /// Why it is only to be read, if so.
    fn must_not_write(&self) -> Option<&'static str> {
        match (self.host.mode, self.remembered) {
            (Mode::ReadOnly, _) => Some("it was opened with --readonly"),
            (_, Some(pool)) if pool.read_only => Some("it was imported with readonly=on"),
            (_, Some(pool)) if pool.is_recovered() => Some(RECOVERED),
            _ if self.settings.read_only => Some("it was opened with readonly=on"),
            _ if matches!(self.settings.rewind, Rewind::To(_)) => {
                Some("it was opened as of an earlier transaction group")
            }
            _ => None,
        }
    }

    /// Whoever goes back says so; a pool that is only read loses nothing by it.
    fn may_be_older(&self) -> bool {
        self.settings.read_only
            || self.settings.rewind != Rewind::Latest
            || self.remembered.is_some_and(|pool| pool.read_only || pool.txg.is_some())
    }

    /// What is known of it now: whoever had its devices until now may have found out more.
    fn known(&self) -> Option<Remembered> {
        self.host.places.state().known(self.candidate.guid)
    }

    fn keeps_its_name(&self, why: &str) -> Result<(), String> {
        match self.is_renamed {
            true => Err(format!(
                "cannot open '{}': it can only be read: {why}\nwhat is only read keeps its name",
                self.candidate.name
            )),
            false => Ok(()),
        }
    }

    /// What is said where nobody wished that.
    fn only_read(&self, why: &str) -> String {
        format!("pool '{}' is open read-only: {why}", self.candidate.name)
    }

    fn in_use(&self, error: &dyn std::fmt::Display) -> String {
        let remedy = match self.host.mode {
            Mode::Command => "if a daemon serves it, say where its control socket is with --socket",
            Mode::Daemon | Mode::ReadOnly => {
                "'fuser -v DEVICE' says which process that is; if it is this daemon, it is trying to open the pool \
                 itself: try again"
            }
        };
        format!("cannot open '{}': {IN_USE}: {error}\n{remedy}", self.candidate.name)
    }

    /// Not if it was newer here, or if what is missing of it is awaited; also if it can only be read: hosts would get old blocks.
    async fn open_as_it_was(&self, candidate: &Candidate) -> Result<Opened, String> {
        if !self.is_renamed {
            has_usable_name(candidate)?;
        }
        let known = self.known();
        let opened = host::open_knowing(candidate, self.remembered, known.as_ref(), &self.settings).await;
        let opened = opened.map_err(|error| chain(&error))?;
        let may_be_older = self.may_be_older();
        if let Some(older) = opened.older.as_ref().filter(|_| !may_be_older) {
            return Err(older.sentence.clone());
        }
        if let Some(why) = opened.late.as_ref().filter(|_| self.settings.awaits_late && !may_be_older) {
            return Err(why.clone());
        }
        Ok(opened)
    }

    async fn read(&self, why: String) -> Outcome {
        self.keeps_its_name(&why)?;
        let opened = self.open_as_it_was(self.candidate).await?;
        let mut notes = opened.notes;
        notes.extend(logs::unreplayed(&opened.pool).await);
        Ok((Held::reading(opened.pool, why), notes))
    }

    async fn read_for_want_of_devices(&self, error: &std::io::Error) -> Outcome {
        let why = format!("its devices cannot be opened for writing: {}", chain(error));
        let (held, mut notes) = self.read(why.clone()).await?;
        notes.push(self.only_read(&why));
        Ok((held.by_need(), notes))
    }

    async fn write(&self, rename: Option<String>, patience: Duration) -> Outcome {
        let (host, candidate) = (self.host, self.candidate);
        if kernel::has_imported(&candidate.name, candidate.guid) {
            return Err(format!(
                "cannot open '{}': {IN_USE}: OpenZFS has it imported on this host; export it there first",
                candidate.name
            ));
        }
        let (turn, has_waited) = host.turn_among_commands(candidate.guid).await.map_err(|other| {
            format!("cannot open '{}': {IN_USE}: {other}\ntry again when that has ended", candidate.name)
        })?;
        // Whoever had its turn until now may have given the pool other devices.
        let again = match has_waited && (self.remembered.is_some() || !host.places.named().is_empty()) {
            true => host.places.find(&candidate.guid.to_string()).await.ok(),
            false => None,
        };
        let again = again.as_ref().map(|(again, _)| again).filter(|again| again.guid == candidate.guid);
        let locked = match host.lock(again.unwrap_or(candidate), patience).await {
            Ok(locked) => locked,
            Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => return Err(self.in_use(&error)),
            Err(error) => return self.read_for_want_of_devices(&error).await,
        };
        // Whoever had the devices until now may have exported it.
        if !self.settings.exported && host::is_given_away(&locked, self.remembered) {
            return Err(host::given_away(&locked));
        }
        let mut opened = match (self.open_as_it_was(&locked).await, &locked.refused[..]) {
            (Ok(opened), _) => opened,
            (Err(why), []) => return Err(why),
            // It cannot do without them.
            (Err(_), [first, ..]) => {
                let refused = locked.refused.iter().find(|refused| refused.is_in_use()).unwrap_or(first);
                let error = Arc::clone(&refused.error);
                let is_in_use = refused.is_in_use();
                drop(locked);
                return match is_in_use {
                    true => Err(self.in_use(&error)),
                    false => self.read_for_want_of_devices(&error).await,
                };
            }
        };
        let mut notes = std::mem::take(&mut opened.notes);
        notes.extend(self.go_on_without(&locked.refused, &opened.pool)?);
        if opened.pool.uberblock().txg < opened.pool.newest_uberblock().txg {
            self.keeps_its_name(RECOVERED)?;
            notes.push(self.only_read(RECOVERED));
            notes.extend(logs::unreplayed(&opened.pool).await);
            return Ok((Held::reading(opened.pool, RECOVERED).by_need().in_turn(turn), notes));
        }
        self.start(turn, locked, opened, rename, notes).await
    }

    /// What is said of devices of the pool that cannot be opened for writing, unless somebody has one.
    fn go_on_without(&self, refused: &[Refused], pool: &Pool) -> Result<Vec<String>, String> {
        let tree = pool.tree();
        let is_of_pool = |refused: &&Refused| tree.leaves().iter().any(|leaf| leaf.guid == refused.guid);
        let said = refused.iter().filter(is_of_pool).map(|Refused { path, error, .. }| {
            // Whoever has it may write to it.
            if error.kind() == std::io::ErrorKind::ResourceBusy {
                return Err(self.in_use(error));
            }
            Ok(format!(
                "pool '{}' goes on without {path}, which cannot be opened for writing: {}",
                self.candidate.name,
                chain(&**error)
            ))
        });
        said.collect()
    }

    /// Goes on with the pool, whose devices are `locked`. Of what it is given the turn is dropped last: nobody else has it while
    /// the devices are still ours.
    async fn start(
        &self,
        turn: Option<Arc<CommandTurn>>,
        locked: Candidate,
        opened: Opened,
        rename: Option<String>,
        mut notes: Vec<String>,
    ) -> Outcome {
        let options = OpenOptions {
            rename,
            hostid: hostid::hostid(),
            hostname: hostid::hostname(),
            now: hostid::now(),
            seed: seed(),
            workers: workers(),
        };
        let started = async {
            let syncer = engine::open::open(Arc::clone(&opened.pool), options).await?;
            Engine::start_caching(syncer, self.host.options(), self.host.tier()).await
        };
        match Box::pin(started).await {
            Ok(engine) => {
                notes.extend(engine.replayed().notes());
                engine.resume_sweeps().await;
                let txg = opened.pool.newest_uberblock().txg;
                if self.known().is_some_and(|known| known.newest > txg) {
                    let gone_on = self.host.go_on_from(&opened.pool, opened.older.as_ref(), &mut notes);
                    notes.extend(gone_on.err().map(|error| chain(&error)));
                }
                Ok((Held::writing(engine).in_turn(turn), notes))
            }
            Err(error @ EngineError::Unsupported(_)) => {
                let why = error.to_string();
                let why = why.strip_prefix(READ_ONLY).unwrap_or(&why).to_owned();
                notes.push(self.only_read(&why));
                // Opened anew: what was locked for writing is given back.
                drop(opened.pool);
                drop(locked);
                let (held, more) = self.read(why).await?;
                notes.extend(more.into_iter().filter(|note| !notes.contains(note)).collect::<Vec<_>>());
                Ok((held.by_need(), notes))
            }
            Err(error) => Err(format!("cannot open '{}': {}", self.candidate.name, chain(&error))),
        }
    }
}

/// Whether no other's datasets can be meant by the name that a pool's labels give it. Whoever brings a disk has chosen it.
pub(crate) fn has_usable_name(candidate: &Candidate) -> Result<(), String> {
    names::existing_pool(&candidate.name).map_err(|why| {
        // A label has room for a long one.
        let (name, guid) = (clean(&candidate.name), candidate.guid);
        format!("cannot open '{name:.256}': {why}\nto give it another name: 'zpool import {guid} NEWNAME'")
    })
}

impl Host {
    /// Opens a pool's devices for writing. Those of a process that was killed a moment ago are not free at once: the kernel
    /// first ends what the process had in flight. So whoever is told that they are in use asks again for a while.
    async fn lock(&self, candidate: &Candidate, patience: Duration) -> std::io::Result<Candidate> {
        // With multihost on whoever opens it has them for seconds, in which he listens for other hosts.
        let beats = candidate.uberblocks.first().and_then(|best| best.mmp).is_some_and(|mmp| mmp.is_active());
        let patience = if beats { patience.max(IN_USE_PATIENCE) } else { patience };
        let (writable, deadline) = (self.taking(candidate.guid), Instant::now() + patience);
        loop {
            let outcome = candidate.reopen(&writable).await;
            let is_in_use = match &outcome {
                Ok(locked) => locked.refused.iter().any(Refused::is_in_use),
                Err(error) => error.kind() == std::io::ErrorKind::ResourceBusy,
            };
            let is_in_vain = || Instant::now() >= deadline || self.is_arriving(candidate.guid);
            if !is_in_use || is_in_vain() {
                return outcome;
            }
            drop(outcome);
            tracing::trace!(pool = candidate.name, "its devices are in use still");
            tokio::time::sleep(LOCK_PAUSE).await;
        }
    }
}
