//! Finding pools: which devices there are, and which of them belong together.
//!
//! Devices are grouped by the guid of the pool their labels name, never by its name: two pools of one
//! name are two candidates. Facts: docs/format/labels.md §4–§5.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use disk::{Disk, FileDisk};
use ondisk::{
    label::{Geometry, PoolState, UBERBLOCK_TOPS},
    nvlist::NvList,
    uberblock::Uberblock,
};

use super::{
    ImportError,
    device::{ANSWER, Device},
    open::tentative_tree,
    opening::{look_up_within, open_by},
};
use crate::{
    BoxFuture,
    io::join::join_all,
    vdev::{Kind, Vdev},
};

/// Devices that are open and read at the same time: two file descriptors and 1 MiB each, however many
/// files a directory has.
const CONCURRENT: usize = 16;

/// Paths that are looked up at the same time: a thread each, which those keep that do not answer.
const LOOKED_UP: usize = 128;

/// Opens a device, read-only. It may block: it is called on a thread of its own, and not again for a path for which it has
/// not returned.
pub type Opener = Arc<dyn Fn(&Path) -> io::Result<Arc<dyn Disk>> + Send + Sync>;

/// Where to look for devices.
#[derive(Clone)]
pub struct Sources {
    /// Directories (their files and devices, not below), files, devices.
    pub paths: Vec<PathBuf>,
    /// Devices that are open already.
    pub disks: Vec<Arc<dyn Disk>>,
    /// How paths are opened.
    pub opener: Opener,
    /// Where nobody looks, as somebody did before: [`Found::looked_at`].
    pub looked_at: BTreeSet<PathBuf>,
    /// How long a path may take to be looked up, or to be opened, and what is there to be read from.
    pub patience: Duration,
}

impl Sources {
    /// These paths, opened as read-only files or block devices.
    #[must_use]
    pub fn paths(paths: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        let options = disk::OpenOptions { read_only: true, ..disk::OpenOptions::default() };
        Self {
            paths: paths.into_iter().map(Into::into).collect(),
            disks: Vec::new(),
            opener: Arc::new(move |path| Ok(Arc::new(FileDisk::open(path, options)?) as Arc<dyn Disk>)),
            looked_at: BTreeSet::new(),
            patience: ANSWER,
        }
    }

    /// These devices.
    #[must_use]
    pub fn disks(disks: impl IntoIterator<Item = Arc<dyn Disk>>) -> Self {
        Self { disks: disks.into_iter().collect(), ..Self::paths(Vec::<PathBuf>::new()) }
    }
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources")
            .field("paths", &self.paths)
            .field("disks", &self.disks)
            .finish_non_exhaustive()
    }
}

/// What a scan found.
#[derive(Debug, Default)]
pub struct Found {
    /// Pools, by name and guid.
    pub pools: Vec<Candidate>,
    /// Paths that were named and could not be used, and why. (Files of a directory that are no devices
    /// of a pool are not worth a word.)
    pub problems: Vec<(PathBuf, io::Error)>,
    /// Paths that were named, could be read, and are no device of any pool.
    pub strangers: Vec<PathBuf>,
    /// Things worth knowing that keep nothing from working: a device that is there twice, labels without
    /// a pool, a file in a directory that could not be read. A sentence each, also logged as warnings.
    pub notes: Vec<String>,
    /// Where was looked: where the paths lead, and paths of which that is not known.
    pub looked_at: BTreeSet<PathBuf>,
}

impl Found {
    /// The pool with this name, or this guid in decimal. Destroyed pools are found by guid only, or if no
    /// other has the name.
    ///
    /// # Errors
    /// [`ImportError::NoSuchPool`], or [`ImportError::Ambiguous`] if several have the name.
    pub fn find(&self, name: &str) -> Result<&Candidate, ImportError> {
        let guid = name.parse().ok();
        if let Some(pool) = self.pools.iter().find(|pool| Some(pool.guid) == guid) {
            return Ok(pool);
        }
        let named = |destroyed: bool| {
            let matches = self.pools.iter().filter(move |pool| pool.name == name);
            matches.filter(move |pool| (pool.state == PoolState::Destroyed) == destroyed).collect::<Vec<_>>()
        };
        let alive = named(false);
        match &(if alive.is_empty() { named(true) } else { alive })[..] {
            [] => Err(ImportError::NoSuchPool),
            [pool] => Ok(pool),
            several => Err(ImportError::Ambiguous { guids: several.iter().map(|pool| pool.guid).collect() }),
        }
    }
}

/// A pool that some devices tell about.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Guid of the pool.
    pub guid: u64,
    /// Name it had last.
    pub name: String,
    /// What it was doing.
    pub state: PoolState,
    /// Host that had it last, 0 if unknown.
    pub hostid: u64,
    /// Name of that host.
    pub hostname: Option<String>,
    /// On-disk version, 5000 with feature flags.
    pub version: u64,
    /// The administrator's comment.
    pub comment: Option<String>,
    /// Its devices that were found.
    pub devices: Vec<Device>,
    /// Devices that are spares or caches at rest, of whichever pool: they do not say.
    pub auxiliaries: Vec<Device>,
    /// All its uberblocks, best first. Never empty.
    pub uberblocks: Vec<Uberblock>,
    /// Devices that could not be opened for writing ([`reopen`](Self::reopen)). Whether the pool misses them, only the pool
    /// says: some may have left it long ago.
    pub refused: Vec<Refused>,
    /// Devices that it lacks and that are there, older than it is: a line each.
    pub(super) older: Vec<String>,
    /// Opens its spares and cache devices for writing, once it is known which they are.
    pub(super) again: Again,
}

/// A device that could not be opened.
#[derive(Clone, Debug)]
pub struct Refused {
    /// The leaf that it is, or was.
    pub guid: u64,
    /// Where it is.
    pub path: String,
    /// Why.
    pub error: Arc<io::Error>,
}

impl Refused {
    /// Whether somebody else has it.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        self.error.kind() == io::ErrorKind::ResourceBusy
    }
}

/// How to open devices again, if there is a way.
#[derive(Clone, Default)]
pub(super) struct Again(pub(super) Option<Opener>);

impl fmt::Debug for Again {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Again" } else { "Never" })
    }
}

impl Candidate {
    /// Whether the host of this id and name had it last. Only labels without an id are told apart by the name; one that is
    /// empty tells nothing.
    #[must_use]
    pub fn is_of(&self, hostid: u64, hostname: &str) -> bool {
        match (self.hostid, self.hostname.as_deref()) {
            (0, None | Some("")) => true,
            (0, Some(name)) => hostname.is_empty() || name == hostname,
            (id, _) => id == hostid,
        }
    }

    /// The same pool without devices on which it was gone on with elsewhere: `apart` says of leaves, by guid, up to which
    /// transaction group theirs is the same. None if nothing else is there.
    #[must_use]
    pub fn without(&self, apart: &BTreeMap<u64, u64>) -> Option<Self> {
        let is_apart = |device: &&Device| {
            let both = device.guids().and_then(|(guid, _)| apart.get(&guid));
            both.is_some_and(|both| device.best().is_some_and(|best| best.txg > *both))
        };
        let devices: Vec<Device> = self.devices.iter().filter(|device| !is_apart(device)).cloned().collect();
        if devices.len() == self.devices.len() {
            return Some(self.clone());
        }
        let rest = candidate(self.guid, devices, &self.auxiliaries)?;
        let (refused, older, again) = (self.refused.clone(), self.older.clone(), self.again.clone());
        Some(Self { refused, older, again, ..rest })
    }

    /// The same pool with those devices of `more` that it lacks. Not with one that is older than the pool's newest configuration,
    /// which all its devices got before the uberblock; of those that came later not all have one, but in a pool of few top-level
    /// devices, where one that lacks what is `known` to be of the pool is left out, too. Nor with any if the pool would be older
    /// all the same than that transaction group. That may be copies, or sides that were away. Whoever cannot open the pool without
    /// them is told.
    #[must_use]
    pub fn completed(&self, more: &Self, known: u64) -> Self {
        let best = self.uberblocks.first().map_or(0, |best| best.txg);
        let config = newest(&self.devices, best);
        let least = config.and_then(|config| config.u64("txg")).filter(|txg| *txg <= best).unwrap_or(0);
        let tops = config.and_then(|config| config.u64("vdev_children"));
        let has_few = tops.is_some_and(|tops| tops <= UBERBLOCK_TOPS as u64);
        let is_new_here = |device: &&Device| self.devices.iter().all(|own| own.guids() != device.guids());
        let best_of = |device: &Device| device.best().map(|best| best.txg);
        let there = more.devices.iter().filter(is_new_here).filter_map(best_of).max();
        let is_known_state = best.max(there.unwrap_or(0)) >= known;
        let is_as_new = |device: &Device| {
            let label = device.config_at(u64::MAX);
            // Logs get none.
            let is_log = label.and_then(|label| label.nvlist("vdev_tree")?.u64("is_log")).unwrap_or(0) != 0;
            let least = if has_few && !is_log { least.max(known) } else { least };
            let has = label.and_then(|label| label.u64("txg")).max(best_of(device));
            is_known_state && has.is_some_and(|txg| txg >= least)
        };
        let (taken, older): (Vec<Device>, Vec<Device>) =
            more.devices.iter().filter(is_new_here).cloned().partition(is_as_new);
        // Of a top-level device of which there is nothing nobody knows the guids.
        let lacking = self.lacking();
        let is_missing = |guid: u64| lacking.contains(&guid) || lacking.contains(&0);
        let is_lacking = |device: &&Device| device.guids().is_some_and(|(guid, _)| is_missing(guid));
        let line = |device: &Device| {
            let txg = best_of(device).unwrap_or(0);
            format!("\t{} is one of them as of txg {txg}: a copy, or behind the others", device.path)
        };
        let older = older.iter().filter(is_lacking).map(line).collect();
        let devices = self.devices.iter().cloned().chain(taken).collect();
        let auxiliaries: Vec<Device> = self.auxiliaries.iter().chain(&more.auxiliaries).cloned().collect();
        let completed = candidate(self.guid, devices, &auxiliaries).unwrap_or_else(|| self.clone());
        Self { older, ..completed }
    }

    /// Guids of leaves that its labels tell of and that were not found; 0 for a top-level device of which nothing was. Another
    /// device has the place of one that is not present any more: that is none of them.
    #[must_use]
    pub fn lacking(&self) -> Vec<u64> {
        let Some(tree) = self.uberblocks.first().and_then(|best| tentative_tree(self, best).ok()) else {
            return Vec::new();
        };
        let is_away = |vdev: &&Vdev| {
            let now = vdev.leaf.as_ref().map(|leaf| leaf.condition.get());
            now.is_some_and(|now| now.disk.is_none() && !now.not_present)
        };
        let leaves = tree.leaves().into_iter().filter(is_away).map(|leaf| leaf.guid);
        let unknown = tree.tops.iter().filter(|top| top.kind == Kind::Missing).map(|_| 0);
        leaves.chain(unknown).collect()
    }

    /// The same pool on devices that may be written to. Each is opened anew with `opener` (which should lock it)
    /// and its labels are read again: another process may have written to it since the scan. Its spares and cache devices
    /// follow when the pool is opened, for only the pool says which they are. A device that cannot be opened is among the
    /// [`refused`](Self::refused): whoever opens the pool sees whether it is of the pool still.
    ///
    /// # Errors
    /// No device can be opened, or none that has the pool's newest state: why the first of them cannot.
    pub fn reopen<'a>(&'a self, opener: &'a Opener) -> BoxFuture<'a, io::Result<Self>> {
        Box::pin(async move {
            let (mut devices, mut refused) = (Vec::new(), Vec::new());
            for device in &self.devices {
                match self.reopen_one(device, opener).await {
                    Ok(again) => devices.push(again),
                    Err(error) => refused.push(Refused {
                        guid: device.guids().map_or(0, |(guid, _)| guid),
                        path: device.path.clone(),
                        error: Arc::new(error),
                    }),
                }
            }
            let newest = |candidate: &Self| candidate.uberblocks.first().map(Uberblock::rank);
            let again = candidate(self.guid, devices, &self.auxiliaries);
            // What the others have may be older than what was acknowledged.
            let again = again.filter(|again| refused.is_empty() || newest(again) >= newest(self));
            let Some(mut again) = again else {
                return Err(match refused.first() {
                    Some(first) => io::Error::new(first.error.kind(), Arc::clone(&first.error)),
                    None => io::Error::new(
                        io::ErrorKind::NotFound,
                        format!("pool '{}' has no valid uberblock", self.name),
                    ),
                });
            };
            (again.refused, again.older) = (refused, self.older.clone());
            again.again = Again(Some(Arc::clone(opener)));
            Ok(again)
        })
    }

    async fn reopen_one(&self, device: &Device, opener: &Opener) -> io::Result<Device> {
        let disk = open_by(opener, Path::new(&device.path), ANSWER).await?;
        let again = Device::read(disk).await?;
        again.filter(|again| again.guids() == device.guids()).ok_or_else(|| {
            let what = format!("{} is no longer a device of pool '{}'", device.path, self.name);
            io::Error::new(io::ErrorKind::NotFound, what)
        })
    }
}

/// Opens paths for writing, so that nobody else can: what [`Candidate::reopen`] wants.
#[must_use]
pub fn writable() -> Opener {
    let options = disk::OpenOptions { lock: true, ..disk::OpenOptions::default() };
    Arc::new(move |path| Ok(Arc::new(FileDisk::open(path, options)?) as Arc<dyn Disk>))
}

/// Looks at all sources.
///
/// Never fails as a whole: what cannot be read, or does not answer in time, is reported beside what can.
pub fn scan(sources: &Sources) -> BoxFuture<'_, Found> {
    scan_by(sources, expand)
}

/// The same; paths are looked up by `look_up`.
fn scan_by(
    sources: &Sources,
    look_up: impl Fn(&Path) -> io::Result<Vec<Spot>> + Clone + Send + Sync + 'static,
) -> BoxFuture<'_, Found> {
    Box::pin(async move {
        let (mut found, patience) = (Found::default(), sources.patience);
        let mut seen = sources.looked_at.clone();
        let paths: Vec<&PathBuf> = sources.paths.iter().filter(|path| !seen.contains(*path)).collect();
        let mut places: Vec<Place> = sources.disks.iter().map(|disk| Place::Open(Arc::clone(disk))).collect();
        let look_ups = paths.iter().map(|&path| {
            Box::pin(look_up_within(patience, path, look_up.clone())) as BoxFuture<'_, io::Result<Vec<Spot>>>
        });
        let looked_up = join_all(look_ups.collect(), LOOKED_UP).await;
        for (path, spots) in paths.into_iter().zip(looked_up) {
            match spots {
                Ok(spots) => {
                    let new = spots.into_iter().filter(|spot| seen.insert(spot.real.clone()));
                    places.extend(new.map(|Spot { path, named, .. }| Place::Path { path, named }));
                }
                Err(error) => {
                    seen.insert(path.clone());
                    found.problems.push((path.clone(), error));
                }
            }
        }
        found.looked_at = seen;
        let reads = places
            .into_iter()
            .map(|place| Box::pin(look(place, &sources.opener, patience)) as BoxFuture<'_, _>);
        let mut devices = Vec::new();
        for (outcome, path, named) in join_all(reads.collect(), CONCURRENT).await {
            match (outcome, path) {
                (Ok(Some(device)), _) => devices.push(device),
                (Ok(None), Some(path)) if named => found.strangers.push(path),
                (Err(error), Some(path)) if named => found.problems.push((path, error)),
                (Err(error), Some(path)) if is_refusal(&error) => {
                    found.notes.push(format!("{} could not be searched: {error}", path.display()));
                }
                (Err(error), path) => tracing::debug!(?path, %error, "not scanned"),
                _ => {}
            }
        }
        found.pools = group(devices, &mut found.notes);
        found.notes.iter().for_each(|note| tracing::warn!("{note}"));
        found
    })
}

/// Where a device may be.
enum Place {
    Open(Arc<dyn Disk>),
    Path { path: PathBuf, named: bool },
}

/// Opens a place and reads its labels; what is no device of a pool is closed again at once.
async fn look(
    place: Place,
    opener: &Opener,
    patience: Duration,
) -> (io::Result<Option<Device>>, Option<PathBuf>, bool) {
    match place {
        Place::Open(disk) => (Device::read_within(disk, patience).await, None, true),
        Place::Path { path, named } => {
            let outcome = match open_by(opener, &path, patience).await {
                Ok(disk) => Device::read_within(disk, patience).await,
                Err(error) => Err(error),
            };
            (outcome, Some(path), named)
        }
    }
}

/// Errors of a file in a directory that may hide a device somebody looks for.
fn is_refusal(error: &io::Error) -> bool {
    !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput)
}

/// What may be a device.
struct Spot {
    path: PathBuf,
    /// Where that leads: a device has many names.
    real: PathBuf,
    /// It is a path of the sources, not one of a directory's.
    named: bool,
}

/// The devices at a path. It may block.
fn expand(path: &Path) -> io::Result<Vec<Spot>> {
    let spot = |path: PathBuf, named| {
        let real = std::fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
        Spot { path, real, named }
    };
    if !std::fs::metadata(path)?.is_dir() {
        return Ok(vec![spot(path.to_owned(), true)]);
    }
    // Another file system may begin in a directory, and hang for whoever looks at that.
    let entries = std::fs::read_dir(path)?.flatten();
    let entries = entries.filter(|entry| !entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).filter(|path| may_be_device(path)).collect();
    paths.sort();
    Ok(paths.into_iter().map(|path| spot(path, false)).collect())
}

/// Block devices, and regular files that are large enough; opening anything else can have effects (tapes
/// rewind, watchdogs bite, pipes wait).
fn may_be_device(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::metadata(path).is_ok_and(|metadata| {
        let large = metadata.is_file() && Geometry::new(metadata.len()).is_some();
        large || metadata.file_type().is_block_device()
    })
}

fn group(devices: Vec<Device>, notes: &mut Vec<String>) -> Vec<Candidate> {
    let mut members: BTreeMap<u64, BTreeMap<u64, Device>> = BTreeMap::new();
    let mut auxiliaries = Vec::new();
    for device in devices {
        match device.guids() {
            Some((_, 0)) => auxiliaries.push(device),
            Some((guid, pool)) => {
                // Two with the same guid: one is a copy or an old path of the other; the newer one counts.
                let known = members.entry(pool).or_default();
                let Some(other) = known.remove(&guid) else {
                    known.insert(guid, device);
                    continue;
                };
                let (kept, ignored) =
                    if device.best() > other.best() { (device, other) } else { (other, device) };
                notes.push(format!(
                    "{} and {} are the same device of a pool (guid {guid}): using {}",
                    kept.path, ignored.path, kept.path
                ));
                known.insert(guid, kept);
            }
            None => {}
        }
    }
    for devices in members.values() {
        if let Some(device) =
            devices.values().next().filter(|_| devices.values().all(|d| d.uberblocks.is_empty()))
        {
            let config = device.config_at(u64::MAX);
            let name = config.and_then(|config| config.str("name")).unwrap_or("?");
            notes.push(format!(
                "{}: a label of pool '{name}', but no uberblock is valid: never written, or damaged",
                device.path
            ));
        }
    }
    let mut pools: Vec<Candidate> = members
        .into_iter()
        .filter_map(|(guid, devices)| candidate(guid, devices.into_values().collect(), &auxiliaries))
        .collect();
    pools.sort_by(|a, b| (&a.name, a.guid).cmp(&(&b.name, b.guid)));
    pools
}

fn candidate(guid: u64, devices: Vec<Device>, auxiliaries: &[Device]) -> Option<Candidate> {
    let mut ranked = BTreeMap::new();
    for device in &devices {
        ranked.extend(device.uberblocks.iter().map(|(rank, uberblock)| (*rank, *uberblock)));
    }
    let uberblocks: Vec<Uberblock> = ranked.into_values().rev().collect();
    let best = uberblocks.first()?;
    let config = newest(&devices, best.txg)?;
    Some(Candidate {
        guid,
        name: config.string("name")?.to_string(),
        state: PoolState::from_id(config.u64("state").unwrap_or(0)),
        hostid: config.u64("hostid").unwrap_or(0),
        hostname: config.string("hostname").map(ToString::to_string),
        version: config.u64("version").unwrap_or(0),
        comment: config.string("comment").map(ToString::to_string),
        auxiliaries: auxiliaries.to_vec(),
        uberblocks,
        devices,
        refused: Vec::new(),
        older: Vec::new(),
        again: Again::default(),
    })
}

/// The newest configuration on any device, as of `txg`.
pub(super) fn newest(devices: &[Device], txg: u64) -> Option<&NvList> {
    let txg_of = |config: &&NvList| config.u64("txg").filter(|&t| t <= txg).unwrap_or(0);
    devices.iter().filter_map(|device| device.config_at(txg)).max_by_key(txg_of)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use disk::{Effect, Fault, FaultDisk, MemDisk, On};
    use tokio::time::Instant;

    use super::*;

    /// A pool of which some was where it had been was searched for on the same devices again, and each that hung was waited for
    /// twice.
    #[tokio::test]
    async fn who_looks_further_asks_nothing_that_was_asked_before() {
        let copy = fixtures::pool("single").copy();
        let gone = copy.path().join("gone");
        let paths = [gone.as_path(), copy.path()];
        let first = scan(&Sources::paths(paths)).await;
        assert_eq!(first.find("psingle").unwrap().devices.len(), 1);
        assert!(first.looked_at.contains(&gone), "it may hang, for all that is known");
        let opened = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let noted = Arc::clone(&opened);
        let opener: Opener = Arc::new(move |path: &Path| -> io::Result<Arc<dyn Disk>> {
            noted.lock().push(path.to_owned());
            Err(io::ErrorKind::NotFound.into())
        });
        let sources = Sources { looked_at: first.looked_at, opener, ..Sources::paths(paths) };
        let further = scan(&sources).await;
        assert!(further.problems.is_empty(), "{:?}", further.problems);
        assert_eq!(*opened.lock(), Vec::<PathBuf>::new());
    }

    /// A hung disk of another pool kept each command of a pool that lacked a device waiting for half a minute.
    #[tokio::test(start_paused = true)]
    async fn a_device_that_hangs_when_it_is_read_is_given_the_time_that_was_said() {
        const DAY: Duration = Duration::from_secs(24 * 3600);
        const PATIENCE: Duration = Duration::from_secs(5);
        let hung = FaultDisk::new(Arc::new(MemDisk::new(64 << 20)), 1);
        hung.inject(Fault::anywhere(On::Read, Effect::Delay(DAY..=DAY)));
        let disks = [Arc::new(hung) as Arc<dyn Disk>];
        let began = Instant::now();
        let found = scan(&Sources { patience: PATIENCE, ..Sources::disks(disks) }).await;
        assert!(found.pools.is_empty());
        assert!((PATIENCE..2 * PATIENCE).contains(&began.elapsed()), "{:?}", began.elapsed());
    }

    /// A copy of last week that lay beside a stripe's files was taken for the device that was missing.
    #[tokio::test]
    async fn only_what_is_as_new_as_a_pool_completes_it() {
        let whole = scan(&Sources::paths(fixtures::pool("mirror2").images())).await.pools.remove(0);
        let [here, there] = &whole.devices[..] else { panic!("two sides") };
        let best = whole.uberblocks[0].txg;
        assert_eq!(completed(here, there, best), (2, 0));
        assert_eq!(completed(here, here, best), (1, 0), "it is there");
        assert_eq!(completed(here, there, best + 1), (1, 1), "the pool is known to have been newer");
    }

    /// Found by reading: in a pool of many top-level devices not all get the uberblock of a transaction group without a
    /// configuration, nor any all at once. Those that had got another name by the next start were taken for copies.
    #[tokio::test]
    async fn how_new_a_device_is_that_completes_a_pool_its_configuration_says() {
        let whole = scan(&Sources::paths(fixtures::pool("mirror2").images())).await.pools.remove(0);
        let [here, there] = &whole.devices[..] else { panic!("two sides") };
        let newest: Vec<u64> = here.uberblocks.keys().rev().map(|rank| rank.txg).collect();
        let (best, config) = (newest[0], newest[2]);
        assert!(config < best, "{newest:?}");
        let of_group = |device: &Device, tops: usize, config: u64, best: u64| {
            let mut device = device.clone();
            for (_, label) in &mut device.configs {
                label.set("txg", config);
                label.set("vdev_children", tops as u64);
            }
            device.uberblocks.retain(|rank, _| rank.txg <= best);
            assert!(!device.uberblocks.is_empty());
            device
        };
        for (tops, known_and_missed) in [(UBERBLOCK_TOPS, (1, 1)), (UBERBLOCK_TOPS + 1, (2, 0))] {
            let here = of_group(here, tops, config, best);
            let missed = of_group(there, tops, config, config);
            assert_eq!(
                completed(&here, &missed, best),
                known_and_missed,
                "{tops}: where not all have a turn"
            );
            assert_eq!(completed(&here, &missed, config), (2, 0), "{tops}: nothing is known to be later");
            let cut_off = of_group(there, tops, config, config - 1);
            assert_eq!(completed(&here, &cut_off, 0), (2, 0), "{tops}: its label was there before");
            let copy = of_group(there, tops, config - 1, config - 1);
            assert_eq!(completed(&here, &copy, 0), (1, 1), "{tops}: all got a configuration since");
        }
    }

    /// Of how many devices a pool on `here` is with `there`, and how many are older than it; `known` as of
    /// [`Candidate::completed`].
    fn completed(here: &Device, there: &Device, known: u64) -> (usize, usize) {
        let of = |device: &Device| {
            let (_, pool) = device.guids().unwrap();
            candidate(pool, vec![device.clone()], &[]).unwrap()
        };
        let completed = of(here).completed(&of(there), known);
        (completed.devices.len(), completed.older.len())
    }

    /// The daemon neither started nor heard that it was to end, for one disk of somebody else's.
    #[tokio::test]
    async fn a_disk_that_hangs_when_it_is_opened_keeps_no_other_pool_and_no_task_waiting() {
        const PATIENCE: Duration = Duration::from_secs(2);
        let copy = fixtures::pool("single").copy();
        let stuck = copy.path().join("stuck");
        std::fs::write(&stuck, "").unwrap();
        let (answers, hangs) = channel::<()>();
        let (hangs, hanging) = (parking_lot::Mutex::new(hangs), stuck.clone());
        let sources = Sources::paths([stuck.as_path(), copy.path()]);
        let real = Arc::clone(&sources.opener);
        let opener: Opener = Arc::new(move |path: &Path| {
            if path == hanging {
                let _unblocked = hangs.lock().recv_timeout(2 * PATIENCE);
            }
            real(path)
        });
        let other = tokio::spawn(tokio::time::sleep(PATIENCE / 4));
        let found = scan(&Sources { opener, patience: PATIENCE, ..sources }).await;
        assert!(other.is_finished(), "others went on meanwhile");
        assert_eq!(found.find("psingle").unwrap().devices.len(), 1);
        let [(path, error)] = &found.problems[..] else { panic!("{:?}", found.problems) };
        assert_eq!((path, error.kind()), (&stuck, io::ErrorKind::TimedOut), "{error}");
        drop(answers);
    }

    /// Nor for a server of somebody else's files.
    #[tokio::test]
    async fn a_path_that_hangs_when_it_is_looked_up_keeps_no_other_pool_and_no_task_waiting() {
        const PATIENCE: Duration = Duration::from_secs(2);
        let copy = fixtures::pool("single").copy();
        let stuck = Path::new("/nowhere/on/a/server/that/is/away");
        let (answers, hangs) = channel::<()>();
        let hangs = Arc::new(parking_lot::Mutex::new(hangs));
        let look_up = move |path: &Path| {
            if path == stuck {
                let _unblocked = hangs.lock().recv_timeout(2 * PATIENCE);
            }
            expand(path)
        };
        let sources = Sources { patience: PATIENCE, ..Sources::paths([stuck, copy.path()]) };
        let other = tokio::spawn(tokio::time::sleep(PATIENCE / 4));
        let found = scan_by(&sources, look_up).await;
        assert!(other.is_finished(), "others went on meanwhile");
        assert_eq!(found.find("psingle").unwrap().devices.len(), 1);
        let [(path, error)] = &found.problems[..] else { panic!("{:?}", found.problems) };
        assert_eq!((path.as_path(), error.kind()), (stuck, io::ErrorKind::TimedOut), "{error}");
        drop(answers);
    }
}
