//! Finding pools on this host.
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
//!
//! What was found is opened by `open`; whether it is this host's at all says `whose`, by its labels and what is remembered of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use engine::BoxFuture;
use futures_util::future::join_all;
use pool::{
    ImportError, Pool,
    import::{self, Candidate, Found, Sources},
    ondisk::label::PoolState,
};

use self::whose::denied;
pub use self::{
    open::{COMMAND_CACHE, Foreign, Older, Opened, RECOVERED, Settings, open},
    whose::{absent, has_gone},
    words::{chain, reason},
};
pub(crate) use self::{
    open::{LATE, lacks_log, late, open_knowing},
    whose::{given_away, is_given_away, lapsed, mute, never_imported},
    words::{is_defect, lacks_room, remedy},
};
use crate::state::{Remembered, State, StateError};

mod open;
mod whose;
mod words;

/// How long a device is given to answer of which nobody said that it is of a pool that is looked for: it may be another's, and hang.
const IN_PASSING: Duration = Duration::from_secs(5);

/// Where to look for pools.
#[derive(Clone, Debug)]
pub struct Places {
    named: Vec<PathBuf>,
    import_path: Vec<PathBuf>,
    state: State,
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
    /// It is imported here, and nothing of it is there. What else there is to say as above.
    #[error("{}{hint}", absent(pool))]
    Absent {
        /// The pool.
        pool: Box<Remembered>,
        /// What was in the way.
        hint: String,
    },
    /// It is imported here, and this user may not look whether it is there.
    #[error("{}{hint}", denied(pool))]
    Denied {
        /// The pool.
        pool: Box<Remembered>,
        /// What was in the way.
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

/// Why nothing was found of an imported pool on the devices it was imported from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lack {
    /// It is not there.
    Away,
    /// It may be, but this user may not read all of them.
    Denied,
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
            Ok(all.filter_map(|(remembered, candidate)| Some((remembered, candidate.ok()?))).collect())
        })
    }

    /// All imported pools, with what is still on the devices they were imported from.
    async fn remembered(&self) -> Result<Vec<(Remembered, Result<Candidate, Lack>)>, StateError> {
        let pools = self.state.pools()?;
        // At once: each waits a while for devices that do not answer.
        let mut looks = Vec::with_capacity(pools.len());
        for pool in &pools {
            looks.push(self.where_it_was_looked_for(pool));
        }
        let found = join_all(looks).await.into_iter().map(|(found, _)| found);
        Ok(pools.into_iter().zip(found).collect())
    }

    /// An imported pool, if something of it is still on the devices it was imported from. Those that went their own way since
    /// are none of it.
    pub(crate) async fn where_it_was(&self, remembered: &Remembered) -> Option<Candidate> {
        self.where_it_was_looked_for(remembered).await.0.ok()
    }

    /// The same, and where that was.
    async fn where_it_was_looked_for(
        &self,
        remembered: &Remembered,
    ) -> (Result<Candidate, Lack>, BTreeSet<PathBuf>) {
        let found = import::scan(&Sources::paths(&remembered.devices)).await;
        let pool = found.pools.into_iter().find(|candidate| candidate.guid == remembered.guid);
        let is_denied = |(_, error): &(PathBuf, io::Error)| error.kind() == io::ErrorKind::PermissionDenied;
        let lack = if found.problems.iter().any(is_denied) { Lack::Denied } else { Lack::Away };
        (pool.and_then(|pool| pool.without(&remembered.apart)).ok_or(lack), found.looked_at)
    }

    /// What is still [where it was](Self::where_it_was) of an imported pool, with those of its devices that are elsewhere now: the
    /// list may lack one that joined the pool, or have the name of another device for it. Nobody looks for those that went their
    /// own way, or without which a pool was imported that is only read. One that is older than the pool is not taken: it may be
    /// a copy.
    pub(crate) async fn wherever_it_is(&self, remembered: &Remembered) -> Option<Candidate> {
        self.wherever_it_may_be(remembered).await.ok()
    }

    async fn wherever_it_may_be(&self, remembered: &Remembered) -> Result<Candidate, Lack> {
        let (found, looked_at) = self.where_it_was_looked_for(remembered).await;
        let found = found?;
        let is_given_up =
            |guid: &u64| remembered.apart.contains_key(guid) || remembered.without.contains_key(guid);
        if found.lacking().iter().all(is_given_up) {
            return Ok(found);
        }
        let files = remembered.devices.iter().filter(|path| !path.starts_with("/dev"));
        let mut paths: BTreeSet<PathBuf> = files.filter_map(|path| Some(path.parent()?.to_owned())).collect();
        paths.extend(self.searched());
        let sources = Sources { looked_at, patience: IN_PASSING, ..Sources::paths(paths) };
        let more = import::scan(&sources).await.pools.into_iter();
        let mut more = more.filter(|candidate| candidate.guid == remembered.guid);
        let Some(more) = more.next().and_then(|more| more.without(&remembered.apart)) else {
            return Ok(found);
        };
        Ok(found.completed(&more, remembered.newest))
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
                    Ok(candidate) => known.pools.push((candidate, Some(remembered))),
                    Err(Lack::Away) => known.absent.push(remembered),
                    Err(Lack::Denied) => known.problems.push(denied(&remembered)),
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
            let mut away = None;
            for remembered in imported {
                if remembered.name != name && Some(remembered.guid) != guid {
                    continue;
                }
                match self.wherever_it_may_be(&remembered).await {
                    Ok(candidate) => return Ok((candidate, Some(remembered))),
                    Err(lack) => away = away.or(Some((Box::new(remembered), lack))),
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
            // What is in it is away and not gone: scripts take "does not exist" for something that was destroyed.
            Err(match away {
                Some((pool, Lack::Away)) => HostError::Absent { pool, hint },
                Some((pool, Lack::Denied)) => HostError::Denied { pool, hint },
                None => HostError::NoSuchPool { name: name.to_owned(), hint },
            })
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

/// Pools that were found, and what could not be looked at.
#[derive(Debug, Default)]
pub struct Known {
    /// Pools, those from the cache file with what is remembered.
    pub pools: Vec<(Candidate, Option<Remembered>)>,
    /// Pools from the cache file of which nothing is there.
    pub absent: Vec<Remembered>,
    /// A sentence for each place that was named and is of no use, and for each pool from the cache file that this user may not
    /// look at.
    pub problems: Vec<String>,
}

impl Known {
    /// Adds what a search found.
    fn add(&mut self, found: Found) {
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
fn problems(found: &Found) -> Vec<String> {
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
