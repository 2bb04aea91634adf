//! Opening a pool that was found, to look at it: as was said when it was imported, and with what has to be said of it.
//!
//! A pool may be there and not be all there: opened as of before its newest state, or without devices that alone have some of
//! it. Whoever looks is told so. Whoever goes on with it by himself is told as well what would be lost by that ([`Older`],
//! [`Opened::late`]), and decides.
//!
//! Not here: writing to it (`ops::Host`), whose it is (`whose.rs`).

use std::{collections::BTreeMap, sync::Arc};

use engine::{BoxFuture, second::Config as TierConfig};
use pool::{
    Pool,
    cache::{BlockCache, Replacement},
    import::{self, Candidate, OpenOptions, Rewind},
    ondisk::label::PoolState,
    time::utc,
    vdev::Vdev,
};

use super::{HostError, whose};
use crate::{hostid, state::Remembered};

/// Cache of a command that opens a pool, does its work and ends, in bytes.
pub const COMMAND_CACHE: usize = 64 << 20;

/// Why a pool is only read that `-F` went back with.
pub const RECOVERED: &str = "its newest state cannot be read, and what -F went back to is not written to: copy what is in it; \
                             or 'zpool export' it here, have OpenZFS import it with -F and export it, and import it here \
                             again";

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
        let options = options(candidate, remembered, known, settings);
        let is_foreign = candidate.state == PoolState::Active && !whose::is_ours(candidate, remembered);
        let is_forced = remembered.is_some_and(|pool| whose::is_forced(candidate, pool));
        let failed = |source| HostError::Import { name: candidate.name.clone(), source: Box::new(source) };
        let pool = import::open(candidate, &options).await.map_err(failed)?;
        let mut notes = Vec::new();
        if is_foreign && !is_forced && settings.foreign == Foreign::Warn {
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
        let (note, sentence) = said_without(&pool, &late).unzip();
        notes.extend(note);
        // Of what can be written to its devices tell that.
        let is_given_up = |(guid, newest): (&u64, &u64)| {
            known.and_then(|known| known.without.get(guid)).is_some_and(|given_up| newest <= given_up)
        };
        let late = sentence.filter(|_| !late.iter().all(is_given_up));
        Ok(Opened { pool, notes, older, late })
    })
}

/// What was said when it was imported, and what is asked now.
fn options(
    candidate: &Candidate,
    remembered: Option<&Remembered>,
    known: Option<&Remembered>,
    settings: &Settings,
) -> OpenOptions {
    let is_forced = remembered.is_some_and(|pool| whose::is_forced(candidate, pool));
    let rewind = match (settings.rewind, remembered.and_then(|pool| pool.txg)) {
        (Rewind::Latest, Some(txg)) => Rewind::To(txg),
        (asked, _) => asked,
    };
    OpenOptions {
        force: is_forced || settings.foreign != Foreign::Refuse,
        unasked: remembered.is_some() && !settings.exported,
        destroyed: settings.destroyed || remembered.is_some_and(|pool| pool.destroyed),
        missing_log: settings.missing_log || remembered.is_some_and(|pool| pool.missing_log),
        unreadable_log: settings.missing_log,
        rewind,
        apart: known.map(|known| known.apart.clone()).unwrap_or_default(),
        hostid: hostid::hostid(),
        had: whose::had(candidate, remembered),
        hostname: hostid::hostname(),
        cache: settings.cache(),
        mappings_max: settings.memory.map_or(u64::MAX, |memory| memory / 4).min(import::MAPPINGS_MAX),
    }
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

/// What is said of a pool without these devices: if it is open, and if it is not opened for that.
fn said_without(pool: &Pool, late: &BTreeMap<u64, u64>) -> Option<(String, String)> {
    let newest = late.values().max()?;
    let (name, tree) = (pool.name(), pool.tree());
    let missing = tree.leaves().into_iter().filter(|leaf| late.contains_key(&leaf.guid));
    let missing = called(&missing.collect::<Vec<_>>());
    let note = format!(
        "pool '{name}' is open without {missing}: some of what was written up to txg {newest} {LATE}, and reading it \
         is an error until they are there"
    );
    let sentence = format!(
        "cannot open '{name}': some of it {LATE}: {missing}\nthe others were to get it from them, and lack some of \
         what was written up to txg {newest}\nconnect the missing devices; if they are lost for good, \
         'zpool import {name}' goes on with what is there"
    );
    Some((note, sentence))
}

/// Devices by where they are, or were.
fn called(devices: &[&Vdev]) -> String {
    let name = |vdev: &&Vdev| vdev.path.clone().unwrap_or_else(|| vdev.guid.to_string());
    devices.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// Whether a log device is away, so that the pool opens only because it may (`zpool import -m`).
pub(crate) fn lacks_log(pool: &Pool) -> bool {
    pool.tree().tops.iter().any(|top| top.is_log() && !top.is_readable())
}
