//! Finding pools on this host, and opening them.
//!
//! Where a pool is looked for, in this order, until it is found:
//!
//! 1. directories and devices the user named (`-d`): who says where is believed;
//! 2. the devices that `zpool import` remembered ([`State`]), and if some of a pool that is named are not among those, for the
//!    rest also beside them, if they are files, and in 3 or 4: but nothing is taken there that is older than the pool, as nobody
//!    said that it is meant;
//! 3. `ZPOOL_IMPORT_PATH`, unless `-d` was given;
//! 4. block devices, unless one of the others was given.
//!
//! Pools are told apart by guid. A name that two of them have is refused, and the guids are said.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use engine::{BoxFuture, second::Config as TierConfig};
use futures_util::future::join_all;
use pool::{
    ImportError, Pool,
    cache::{BlockCache, Replacement},
    import::{self, Candidate, Found, OpenOptions, Rewind, Sources},
    ondisk::label::PoolState,
    time::utc,
    vdev::Vdev,
};

use crate::{
    hostid,
    state::{Remembered, State, StateError},
};

/// Cache of a command that opens a pool, does its work and ends, in bytes.
pub const COMMAND_CACHE: usize = 64 << 20;

/// How long a device is given to answer of which nobody said that it is of a pool that is looked for: it may be another's, and hang.
const IN_PASSING: Duration = Duration::from_secs(5);

/// Why a pool is only read that `-F` went back with.
pub const RECOVERED: &str = "its newest state cannot be read, and what -F went back to is not written to: copy what is in it; \
                             or 'zpool export' it here, have OpenZFS import it with -F and export it, and import it here \
                             again";

/// Where to look for pools.
#[derive(Clone, Debug)]
pub struct Places {
    named: Vec<PathBuf>,
    import_path: Vec<PathBuf>,
    state: State,
}

/// What to do about a pool that another host seems to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foreign {
    /// Refuse it, as `zpool import` does.
    Refuse,
    /// Open it and say so ([`Opened::notes`]): for commands that look once.
    Warn,
    /// Open it (`-f`).
    Open,
}

/// How to open a pool.
#[derive(Clone, Debug)]
pub struct Settings {
    /// A pool that another host seems to have.
    pub foreign: Foreign,
    /// Which state of it.
    pub rewind: Rewind,
    /// Although it is exported.
    pub exported: bool,
    /// Although it was destroyed.
    pub destroyed: bool,
    /// Although log devices are missing, or what is in a log cannot be read; only the former is remembered.
    pub missing_log: bool,
    /// Never to be written to.
    pub read_only: bool,
    /// Not while some of it is only on devices that are missing and may be late: nobody asked for it by name.
    pub awaits_late: bool,
    /// Whether it is to be opened by itself at the next start (not with `cachefile=none`); as it was before if it is not said.
    pub listed: Option<bool>,
    /// Size of the ARC, in bytes.
    pub cache_bytes: usize,
    /// Bytes of memory that this process may have; all of the machine's if it is not said.
    pub memory: Option<u64>,
    /// What decides in the ARC which blocks stay.
    pub replacement: Replacement,
    /// How cache devices are used.
    pub tier: TierConfig,
    /// The ARC that pools share; without it each gets one of its own.
    pub cache: Option<Arc<BlockCache>>,
}

impl Settings {
    /// The ARC that is shared, or a new one.
    #[must_use]
    pub fn cache(&self) -> Arc<BlockCache> {
        let new = || Arc::new(BlockCache::with_replacement(self.cache_bytes, self.replacement));
        self.cache.clone().unwrap_or_else(new)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            foreign: Foreign::Warn,
            rewind: Rewind::Latest,
            exported: true,
            destroyed: false,
            missing_log: false,
            read_only: false,
            awaits_late: false,
            listed: None,
            cache_bytes: COMMAND_CACHE,
            memory: None,
            replacement: Replacement::Default,
            tier: TierConfig::default(),
            cache: None,
        }
    }
}

/// A pool that was opened.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The pool.
    pub pool: Arc<Pool>,
    /// What the user should know about how it was opened, a sentence each.
    pub notes: Vec<String>,
    /// It was newer than what is there of it.
    pub older: Option<Older>,
    /// Some of it is only on devices that are missing and may be late: why it is not opened by who waits for them.
    pub late: Option<String>,
}

/// A pool that is not as new as it was here, while devices are missing that may have the rest.
#[derive(Clone, Debug)]
pub struct Older {
    /// What is said of it: which devices, how old the others are, what to do.
    pub sentence: String,
    /// As of which transaction group it is there.
    pub txg: u64,
    /// Guids of the devices that are missing.
    pub missing: Vec<u64>,
}

/// Why a pool could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// It is nowhere.
    #[error("cannot open '{name}': no such pool{hint}")]
    NoSuchPool {
        /// What was asked for.
        name: String,
        /// What was in the way, each on a line of its own; empty if nothing was.
        hint: String,
    },
    /// Several have this name.
    #[error(
        "cannot open '{name}': more than one pool has this name; use the numeric ID instead: {}",
        list(guids)
    )]
    Ambiguous {
        /// The name.
        name: String,
        /// Their guids.
        guids: Vec<u64>,
    },
    /// It is there and cannot be opened.
    #[error("cannot open '{name}': {source}")]
    Import {
        /// The pool.
        name: String,
        /// Why. Its text is part of this one's.
        source: Box<ImportError>,
    },
    /// The cache file.
    #[error(transparent)]
    State(#[from] StateError),
}

fn list(guids: &[u64]) -> String {
    guids.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

impl Places {
    /// `named` is what the user said with `-d`; `ZPOOL_IMPORT_PATH` is taken from the environment.
    #[must_use]
    pub fn new(named: Vec<PathBuf>, state: State) -> Self {
        let import_path = match env::var_os("ZPOOL_IMPORT_PATH") {
            Some(paths) => env::split_paths(&paths).filter(|path| !path.as_os_str().is_empty()).collect(),
            None => Vec::new(),
        };
        Self { named, import_path, state }
    }

    /// What the user named.
    #[must_use]
    pub fn named(&self) -> &[PathBuf] {
        &self.named
    }

    /// The cache file.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// What `zpool import` searches, imported or not: what was named, or `ZPOOL_IMPORT_PATH`, or block devices.
    pub fn scan(&self) -> BoxFuture<'_, Known> {
        Box::pin(async move {
            let mut known = self.search().await;
            // What a device says of a pool that went its own way on it is not so here. If nothing else is there, whoever opens
            // it says so.
            for (candidate, _) in &mut known.pools {
                let apart = self.state.known(candidate.guid).map(|known| known.apart).unwrap_or_default();
                if !apart.is_empty()
                    && let Some(ours) = candidate.without(&apart)
                {
                    *candidate = ours;
                }
            }
            known
        })
    }

    fn search(&self) -> BoxFuture<'_, Known> {
        Box::pin(async move {
            let mut known = Known::default();
            let mut found = import::scan(&Sources::paths(self.searched())).await;
            if self.named.is_empty() && self.import_path.is_empty() {
                // Nobody asked for these: what is no pool or cannot be read is of interest only as a whole.
                let denied =
                    found.problems.iter().any(|(_, error)| error.kind() == io::ErrorKind::PermissionDenied);
                found.problems.clear();
                found.strangers.clear();
                if denied && found.pools.is_empty() && !crate::state::is_root() {
                    known.problems.push(
                        "block devices were not searched: this user may not read them (run as root, or name a \
                         directory or image with -d)"
                            .to_owned(),
                    );
                }
            }
            known.add(found);
            known
        })
    }

    /// Where that is.
    fn searched(&self) -> Vec<PathBuf> {
        match (self.named.is_empty(), self.import_path.is_empty()) {
            (false, _) => self.named.clone(),
            (true, false) => self.import_path.clone(),
            (true, true) => block_devices(),
        }
    }

    /// The imported pools that are still on the devices they were imported from.
    ///
    /// # Errors
    /// The cache file cannot be read.
    pub fn imported(&self) -> BoxFuture<'_, Result<Vec<(Remembered, Candidate)>, StateError>> {
        Box::pin(async move {
            let all = self.remembered().await?.into_iter();
            Ok(all.filter_map(|(remembered, candidate)| Some((remembered, candidate?))).collect())
        })
    }

    /// All imported pools, with what is still on the devices they were imported from.
    async fn remembered(&self) -> Result<Vec<(Remembered, Option<Candidate>)>, StateError> {
        let pools = self.state.pools()?;
        // At once: each waits a while for devices that do not answer.
        let mut looks = Vec::with_capacity(pools.len());
        for pool in &pools {
            looks.push(self.where_it_was(pool));
        }
        let found = join_all(looks).await;
        Ok(pools.into_iter().zip(found).collect())
    }

    /// An imported pool, if something of it is still on the devices it was imported from. Those that went their own way since
    /// are none of it.
    pub(crate) async fn where_it_was(&self, remembered: &Remembered) -> Option<Candidate> {
        self.where_it_was_looked_for(remembered).await.0
    }

    /// The same, and where that was.
    async fn where_it_was_looked_for(
        &self,
        remembered: &Remembered,
    ) -> (Option<Candidate>, BTreeSet<PathBuf>) {
        let found = import::scan(&Sources::paths(&remembered.devices)).await;
        let pool = found.pools.into_iter().find(|candidate| candidate.guid == remembered.guid);
        (pool.and_then(|pool| pool.without(&remembered.apart)), found.looked_at)
    }

    /// What is still [where it was](Self::where_it_was) of an imported pool, with those of its devices that are elsewhere now: the
    /// list may lack one that joined the pool, or have the name of another device for it. Nobody looks for those that went their
    /// own way, or without which a pool was imported that is only read. One that is older than the pool is not taken: it may be
    /// a copy.
    pub(crate) async fn wherever_it_is(&self, remembered: &Remembered) -> Option<Candidate> {
        let (found, looked_at) = self.where_it_was_looked_for(remembered).await;
        let found = found?;
        let is_given_up =
            |guid: &u64| remembered.apart.contains_key(guid) || remembered.without.contains_key(guid);
        if found.lacking().iter().all(is_given_up) {
            return Some(found);
        }
        let files = remembered.devices.iter().filter(|path| !path.starts_with("/dev"));
        let mut paths: BTreeSet<PathBuf> = files.filter_map(|path| Some(path.parent()?.to_owned())).collect();
        paths.extend(self.searched());
        let sources = Sources { looked_at, patience: IN_PASSING, ..Sources::paths(paths) };
        let more = import::scan(&sources).await.pools.into_iter();
        let mut more = more.filter(|candidate| candidate.guid == remembered.guid);
        let Some(more) = more.next().and_then(|more| more.without(&remembered.apart)) else {
            return Some(found);
        };
        Some(found.completed(&more, remembered.newest))
    }

    /// All pools that a command without a pool's name is about, by name: those that are where `-d` says, else those that
    /// are imported. Only where none ever was, all that are there: drives that are late must not make others' pools ours. They
    /// are to be looked at: nothing is remembered of them, and none is opened for writing unless somebody names it.
    /// Of destroyed ones only those that were imported as such: whoever wants one back says so. And so does whoever wants
    /// one again that was imported for a while.
    ///
    /// # Errors
    /// The cache file cannot be read.
    pub fn all(&self) -> BoxFuture<'_, Result<Known, StateError>> {
        Box::pin(async move {
            if !self.named.is_empty() || self.state.pools()?.is_empty() {
                let mut known = self.scan().await;
                let over = if self.named.is_empty() { self.state.over()? } else { Vec::new() };
                known.pools.retain(|(candidate, _)| {
                    candidate.state != PoolState::Destroyed && !over.contains(&candidate.guid)
                });
                return Ok(known);
            }
            let mut known = Known::default();
            for (remembered, candidate) in self.remembered().await? {
                match candidate {
                    Some(candidate) => known.pools.push((candidate, Some(remembered))),
                    None => known.absent.push(remembered),
                }
            }
            Ok(known)
        })
    }

    /// Finds the pool of this name or guid.
    ///
    /// # Errors
    /// There is none, or there are several.
    pub fn find<'a>(
        &'a self,
        name: &'a str,
    ) -> BoxFuture<'a, Result<(Candidate, Option<Remembered>), HostError>> {
        Box::pin(async move {
            let mut hints = Vec::new();
            if !self.named.is_empty() {
                let mut known = self.scan().await;
                if let Some(found) = known.select(name)? {
                    return Ok(found);
                }
                hints.append(&mut known.problems);
            }
            // The list of imported pools may be damaged; that must not keep a pool from being found by searching.
            let imported = match self.state.pools() {
                Ok(pools) => pools,
                Err(error) => {
                    hints.push(chain(&error));
                    Vec::new()
                }
            };
            let guid = name.parse::<u64>().ok();
            for remembered in imported {
                if remembered.name != name && Some(remembered.guid) != guid {
                    continue;
                }
                match self.wherever_it_is(&remembered).await {
                    Some(candidate) => return Ok((candidate, Some(remembered))),
                    None => hints.push(format!(
                        "'{name}' was imported from {}, where it is no more",
                        remembered.places()
                    )),
                }
            }
            if self.named.is_empty() {
                let mut known = self.scan().await;
                if let Some(found) = known.select(name)? {
                    return Ok(found);
                }
                hints.append(&mut known.problems);
            }
            let hint = hints.iter().map(|hint| format!("\n{hint}")).collect();
            Err(HostError::NoSuchPool { name: name.to_owned(), hint })
        })
    }

    /// Opens the pool of this name or guid, read-only.
    ///
    /// # Errors
    /// See [`HostError`].
    pub fn open<'a>(
        &'a self,
        name: &'a str,
        settings: &'a Settings,
    ) -> BoxFuture<'a, Result<Opened, HostError>> {
        Box::pin(async move {
            let (candidate, remembered) = self.find(name).await?;
            open(&candidate, remembered.as_ref(), settings).await
        })
    }
}

/// Opens a pool that was found, to look at it. What was said when it was imported (`-f`, `-T`, `-m`) still holds.
///
/// # Errors
/// See [`HostError`].
pub fn open<'a>(
    candidate: &'a Candidate,
    remembered: Option<&'a Remembered>,
    settings: &'a Settings,
) -> BoxFuture<'a, Result<Opened, HostError>> {
    Box::pin(async move {
        let mut opened = open_knowing(candidate, remembered, remembered, settings).await?;
        opened.notes.extend(opened.older.as_ref().map(|older| older.sentence.clone()));
        Ok(opened)
    })
}

/// The same for whoever says himself what becomes of it if it was newer. `known` is what is remembered of it, also where
/// how it was imported does not hold any more.
///
/// # Errors
/// See [`HostError`].
pub(crate) fn open_knowing<'a>(
    candidate: &'a Candidate,
    remembered: Option<&'a Remembered>,
    known: Option<&'a Remembered>,
    settings: &'a Settings,
) -> BoxFuture<'a, Result<Opened, HostError>> {
    Box::pin(async move {
        // Imported here when this host had no id: it may have had another name, too.
        let had_no_id = remembered.is_some() && candidate.hostid == 0;
        let forced = had_no_id || remembered.is_some_and(|pool| pool.forced);
        let foreign = candidate.state == PoolState::Active && !is_ours(candidate, remembered);
        let rewind = match (settings.rewind, remembered.and_then(|pool| pool.txg)) {
            (Rewind::Latest, Some(txg)) => Rewind::To(txg),
            (asked, _) => asked,
        };
        let options = OpenOptions {
            force: forced || settings.foreign != Foreign::Refuse,
            unasked: remembered.is_some() && !settings.exported,
            destroyed: settings.destroyed || remembered.is_some_and(|pool| pool.destroyed),
            missing_log: settings.missing_log || remembered.is_some_and(|pool| pool.missing_log),
            unreadable_log: settings.missing_log,
            rewind,
            apart: known.map(|known| known.apart.clone()).unwrap_or_default(),
            hostid: hostid::hostid(),
            had: had(candidate, remembered),
            hostname: hostid::hostname(),
            cache: settings.cache(),
            mappings_max: settings.memory.map_or(u64::MAX, |memory| memory / 4).min(import::MAPPINGS_MAX),
        };
        let failed = |source| HostError::Import { name: candidate.name.clone(), source: Box::new(source) };
        let pool = import::open(candidate, &options).await.map_err(failed)?;
        let mut notes = Vec::new();
        if foreign && !forced && settings.foreign == Foreign::Warn {
            notes.push(format!(
            "pool '{}' was last used by host '{}' (hostid={:x}) and not exported: if it is in use there, what is read \
             here changes meanwhile",
            candidate.name,
            candidate.hostname.as_deref().unwrap_or("<unknown>"),
            candidate.hostid
        ));
        }
        let (open, newest) = (pool.uberblock(), pool.newest_uberblock());
        if open.txg < newest.txg {
            let seconds = newest.timestamp.saturating_sub(open.timestamp);
            notes.push(format!(
                "pool '{}' is open as of txg {}; the newest is {}, which is {seconds} s later",
                candidate.name, open.txg, newest.txg
            ));
        }
        let older = known.and_then(|known| older(&pool, known));
        let late = late(&pool, &options.apart);
        let sentence = late.values().max().map(|newest| {
            let (name, tree) = (pool.name(), pool.tree());
            let missing = tree.leaves().into_iter().filter(|leaf| late.contains_key(&leaf.guid));
            let missing = called(&missing.collect::<Vec<_>>());
            notes.push(format!(
                "pool '{name}' is open without {missing}: some of what was written up to txg {newest} {LATE}, and reading it \
                 is an error until they are there"
            ));
            format!(
                "cannot open '{name}': some of it {LATE}: {missing}\nthe others were to get it from them, and lack some of \
                 what was written up to txg {newest}\nconnect the missing devices; if they are lost for good, \
                 'zpool import {name}' goes on with what is there"
            )
        });
        // Of what can be written to its devices tell that.
        let is_given_up = |(guid, newest): (&u64, &u64)| {
            known.and_then(|known| known.without.get(guid)).is_some_and(|given_up| newest <= given_up)
        };
        let late = sentence.filter(|_| !late.iter().all(is_given_up));
        Ok(Opened { pool, notes, older, late })
    })
}

/// The id that a pool's labels give, if it is the one that this host had when it was imported here: they say that one until it
/// is opened again. A copy of the host that has the pool remembers the same, but is not called the same.
fn had(candidate: &Candidate, remembered: Option<&Remembered>) -> Option<u64> {
    let id = remembered?.hostid.filter(|id| *id == candidate.hostid)?;
    (candidate.hostname.as_deref() == Some(hostid::hostname().as_str())).then_some(id)
}

/// Whether this host had a pool last, by what its labels say.
fn is_ours(candidate: &Candidate, remembered: Option<&Remembered>) -> bool {
    candidate.is_of(hostid::hostid(), &hostid::hostname()) || had(candidate, remembered).is_some()
}

/// Whether what is there of a pool is older than it was here, and devices are missing that may be newer. With all of them
/// there is nothing to wait for: then somebody gave them back what they held before.
fn older(pool: &Pool, known: &Remembered) -> Option<Older> {
    let newest = pool.newest_uberblock();
    if newest.txg >= known.newest {
        return None;
    }
    let tree = pool.tree();
    let is_missing = |vdev: &&Vdev| {
        let is_there = vdev.leaf.as_ref().is_some_and(|leaf| leaf.disk().is_some());
        !is_there && !known.apart.contains_key(&vdev.guid)
    };
    let missing: Vec<&Vdev> = tree.leaves().into_iter().filter(is_missing).collect();
    if missing.is_empty() {
        return None;
    }
    let name = pool.name();
    let sentence = format!(
        "cannot open '{name}': its newest state, of txg {} or later, is not on the devices that are there; \
         missing: {}\nwhat is there is as of txg {}, {} UTC: what was written since would be lost\nconnect the \
         missing devices; if they are lost for good, 'zpool import -F {name}' goes on with what is there",
        known.newest,
        called(&missing),
        newest.txg,
        utc(newest.timestamp),
    );
    let missing = missing.iter().map(|vdev| vdev.guid).collect();
    Some(Older { sentence, txg: newest.txg, missing })
}

/// What is said where some of a pool is only on devices that may be late.
pub(crate) const LATE: &str = "is only on devices that are missing";

/// Devices that may be late, and alone have some of a pool: guid, and the newest transaction group of which it has something.
/// Those that went their own way are not waited for.
pub(crate) fn late(pool: &Pool, apart: &BTreeMap<u64, u64>) -> BTreeMap<u64, u64> {
    let late = engine::devices::late(&pool.tree()).into_iter();
    let late = late.filter(|(guid, _)| !apart.contains_key(guid));
    late.filter_map(|(guid, alone)| Some((guid, alone.span()?.1.saturating_sub(1)))).collect()
}

/// Devices by where they are, or were.
fn called(devices: &[&Vdev]) -> String {
    let name = |vdev: &&Vdev| vdev.path.clone().unwrap_or_else(|| vdev.guid.to_string());
    devices.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// Whether a pool is suspended because the file system that holds its files is full, or the quota there is used up, by the
/// system's words.
pub(crate) fn lacks_room(why: &str) -> bool {
    ["No space left on device", "Disk quota exceeded"].iter().any(|words| why.contains(words))
}

/// Whether a pool is suspended for good because something is wrong with this program, by the engine's words.
pub(crate) fn is_defect(why: &str) -> bool {
    why.contains("a defect of Millpond")
}

/// What helps a suspended pool.
pub(crate) fn remedy(pool: &str, why: &str) -> String {
    let before = match () {
        () if is_defect(why) => {
            return format!("let go of it with 'zpool export -F {pool}', then run 'zpool import {pool}'");
        }
        () if lacks_room(why) => "make room in the file system that holds its files",
        () => "make sure its devices are connected",
    };
    format!("{before}, then run 'zpool clear {pool}'")
}

/// What is said of an imported pool of which nothing is there.
#[must_use]
pub fn absent(pool: &Remembered) -> String {
    let name = &pool.name;
    let given_up = match pool.apart.is_empty() {
        true => String::new(),
        false => format!(
            "\nwhat was given up of it is not looked at: 'zpool export {name}' forgets that, and 'zpool import {name}' takes \
             what is there"
        ),
    };
    format!(
        "cannot open '{name}': none of its devices is there\nit was imported from {}{given_up}",
        pool.places()
    )
}

/// What is said of a pool that is there, and whose devices do not answer while it is being opened.
pub(crate) fn mute(name: &str) -> String {
    format!("cannot open '{name}': its devices do not answer; it is opened when they do")
}

/// Whether a pool is exported: nobody has it, and whoever wants it says so. One that was imported here was exported, or
/// destroyed, by another host since, unless nothing was written to it.
pub(crate) fn is_given_away(candidate: &Candidate, remembered: Option<&Remembered>) -> bool {
    let by_another = remembered.is_some_and(|pool| !pool.untouched);
    match candidate.state {
        PoolState::Exported => by_another || remembered.is_none(),
        PoolState::Destroyed => by_another,
        _ => false,
    }
}

/// Whether another host has had a pool since it was imported here: it gave it away, or has it. What was forced past a host
/// that still is in its labels was imported all the same, and so was what labels without an id are of.
#[must_use]
pub fn has_gone(candidate: &Candidate, remembered: &Remembered) -> bool {
    let is_forced = remembered.forced || candidate.hostid == 0;
    let is_anothers = candidate.state == PoolState::Active && !is_ours(candidate, Some(remembered));
    is_given_away(candidate, Some(remembered)) || (is_anothers && !is_forced)
}

/// What is said of a pool that was given away.
pub(crate) fn given_away(candidate: &Candidate) -> String {
    let name = &candidate.name;
    match candidate.state {
        PoolState::Destroyed => format!(
            "pool '{name}' was destroyed elsewhere and was not opened; to have it here: 'zpool import -D {name}'"
        ),
        _ => format!(
            "pool '{name}' is exported and was not opened; to have it here: 'zpool import {name}', or name it: \
             'millpond serve {name}'"
        ),
    }
}

/// What is said of a pool that nobody exported, and that is none of this host's.
pub(crate) fn never_imported(name: &str) -> String {
    format!(
        "pool '{name}' is there and was not opened, as it was not imported here; to have it here: 'zpool import {name}', or \
         name it: 'millpond serve {name}'"
    )
}

/// What is said of a pool that was imported for a while, when that is over.
pub(crate) fn lapsed(name: &str) -> String {
    format!(
        "pool '{name}' was imported with cachefile=none and was not opened; to have it here: 'zpool import {name}', or \
         name it: 'millpond serve {name}'"
    )
}

/// Absolute paths of all devices of an open pool. One that is away is expected where it was last: a pool is to be found
/// by it, too, when it is back and others are not.
#[must_use]
pub fn devices(pool: &Pool) -> Vec<PathBuf> {
    let beside = pool.spares().iter().chain(pool.l2cache());
    let tree = pool.tree();
    let all = tree.leaves().into_iter().chain(beside);
    let paths = all.filter_map(|vdev| match vdev.leaf.as_ref()?.disk() {
        Some(disk) => Some(disk.info().path),
        None => vdev.path.clone(),
    });
    paths.map(|path| std::path::absolute(&path).unwrap_or_else(|_| path.into())).collect()
}

/// Whether a log device is away, so that the pool opens only because it may (`zpool import -m`).
pub(crate) fn lacks_log(pool: &Pool) -> bool {
    pool.tree().tops.iter().any(|top| top.is_log() && !top.is_readable())
}

/// Pools that were found, and what could not be looked at.
#[derive(Debug, Default)]
pub struct Known {
    /// Pools, those from the cache file with what is remembered.
    pub pools: Vec<(Candidate, Option<Remembered>)>,
    /// Pools from the cache file of which nothing is there.
    pub absent: Vec<Remembered>,
    /// A sentence for each place that was named and is of no use.
    pub problems: Vec<String>,
}

impl Known {
    /// Adds what a search found.
    pub fn add(&mut self, found: Found) {
        self.problems.extend(problems(&found));
        self.pools.extend(found.pools.into_iter().map(|candidate| (candidate, None)));
    }

    /// The one pool of this name or guid, if there is any. A destroyed one has its name only as long as no other has it.
    ///
    /// # Errors
    /// There are several.
    pub fn select(&mut self, name: &str) -> Result<Option<(Candidate, Option<Remembered>)>, HostError> {
        let guid = name.parse::<u64>().ok();
        let is_destroyed = |i: usize| self.pools[i].0.state == PoolState::Destroyed;
        let mut matching: Vec<usize> = (0..self.pools.len())
            .filter(|&i| self.pools[i].0.name == name || Some(self.pools[i].0.guid) == guid)
            .collect();
        if !matching.iter().all(|&i| is_destroyed(i)) {
            matching.retain(|&i| !is_destroyed(i) || Some(self.pools[i].0.guid) == guid);
        }
        match matching.as_slice() {
            [] => Ok(None),
            [one] => Ok(Some(self.pools.swap_remove(*one))),
            several => {
                let guids = several.iter().map(|&i| self.pools[i].0.guid).collect();
                Err(HostError::Ambiguous { name: name.to_owned(), guids })
            }
        }
    }
}

/// A sentence for each place that was named and could not be used.
#[must_use]
pub fn problems(found: &Found) -> Vec<String> {
    let unreadable = found.problems.iter().map(|(path, error)| {
        let remedy = match error.kind() {
            io::ErrorKind::PermissionDenied => " (run as a user who may read it)",
            _ => "",
        };
        format!("cannot search '{}': {}{remedy}", path.display(), reason(error))
    });
    let strangers =
        found.strangers.iter().map(|path| format!("'{}' is not a device of any pool", path.display()));
    unreadable.chain(strangers).collect()
}

/// What the system itself said, at the bottom of an error, without its number.
#[must_use]
pub fn reason(error: &io::Error) -> String {
    let mut deepest: &dyn std::error::Error = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    let text = deepest.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

/// An error and its sources in one line.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        source = error.source();
    }
    text
}

/// Every block device that may hold a pool: whole disks and partitions, by the most lasting name.
pub(crate) fn block_devices() -> Vec<PathBuf> {
    let names = |dir: &str| -> Vec<PathBuf> {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        paths.sort();
        paths
    };
    let mut by_device: BTreeMap<PathBuf, PathBuf> = BTreeMap::new();
    for path in names("/sys/class/block") {
        let Some(name) = path.file_name() else { continue };
        // Never a pool: RAM disks, empty loop devices, optical drives; and what this program itself may serve.
        let text = name.to_string_lossy();
        if ["ram", "sr", "fd", "zram", "nbd"].iter().any(|prefix| text.starts_with(prefix)) || is_empty(&path)
        {
            continue;
        }
        let device = Path::new("/dev").join(name);
        by_device.insert(device.clone(), device);
    }
    for path in names("/dev/disk/by-id") {
        if let Ok(device) = fs::canonicalize(&path)
            && let Some(name) = by_device.get_mut(&device)
            && name.starts_with("/dev")
            && *name == device
        {
            *name = path;
        }
    }
    by_device.into_values().collect()
}

fn is_empty(sys: &Path) -> bool {
    fs::read_to_string(sys.join("size")).is_ok_and(|sectors| sectors.trim() == "0")
}
