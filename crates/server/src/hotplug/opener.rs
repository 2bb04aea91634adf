//! Opens devices of a pool that were away: by the path they had, by the names under which they were known
//! (`/dev/disk/by-id`, …), or wherever a disk with the right label is now.
//!
//! Labels are read before a device is locked: a name may lead to another pool's disk by now, and that one must not be
//! disturbed. Looking at every disk costs a read of each, so it is done when the system said that something changed,
//! and else every [`SEARCH_EVERY`]; and what was found to be another device then is left at rest for [`REST`], unless it can be
//! seen from outside that this may have changed. What a device does not answer goes on in the kernel, with its memory, long
//! after nobody waits any more: so a device is asked for one sector first, and for nothing else before it has given that.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::Duration,
};

use disk::{Disk, DiskInfo, IoBuf, OpenOptions};
use engine::{
    BoxFuture,
    create::{self, device::Prepared},
    devices::{NewLeaf, Opener},
    engine::Engine,
    events::DeviceName,
};
use futures_util::{StreamExt as _, future::join_all, stream};
use parking_lot::Mutex;
use pool::{
    import::{Device, look_up_within, open_in_time},
    space::{addressable, misfit_in},
};
use serde_json::{Map, json};
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use crate::{
    disks::Disks,
    events::{About, Journal, names},
    host::{block_devices, chain},
    hostid,
};

/// How often all devices are searched for one that is away, without a word from the system.
const SEARCH_EVERY: Duration = Duration::from_secs(30);
/// How long what was found to be another device is not read from again: disks may sleep, and a drive may be away for weeks.
const REST: Duration = Duration::from_secs(3600);
/// Devices looked at in one directory at most: somebody's home is no place for disks.
const ENTRIES_MAX: usize = 1000;
/// Devices looked at together in a search.
const LOOKED_AT_ONCE: usize = 16;
/// How long a path may take to be looked up: less than whoever asks for a device waits, who would not hear of another place.
const LOOK_UP: Duration = Duration::from_secs(2);
/// How long a device may take to give its first sector.
const ANSWER: Duration = Duration::from_secs(30);
/// Bytes of that.
const SECTOR: usize = 4096;
/// Bytes at either end of a device that are all zero if it holds nothing: labels, partition tables and superblocks of all
/// kinds are there, also of those nobody here has heard of.
const BLANK_BYTES: u64 = 1 << 20;

/// Whose turn it is to ask a device.
type Turn = Arc<tokio::sync::Mutex<()>>;

/// Devices that are being asked, in this process: it is the disk that hangs, whoever asks.
static TURNS: Mutex<BTreeMap<PathBuf, Turn>> = Mutex::new(BTreeMap::new());

/// How often devices came or went, as far as the system said.
#[derive(Debug, Default)]
pub(crate) struct Changes(watch::Sender<u64>);

impl Changes {
    pub(crate) fn one_more(&self) {
        self.0.send_modify(|count| *count += 1);
    }

    /// Hears of each from now on.
    pub(crate) fn heard(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }
}

/// The openers' knowledge about this machine.
#[derive(Debug)]
pub(crate) struct DeviceOpener {
    /// What the user named (`-d`), where devices are looked for first.
    pub(crate) named: Vec<PathBuf>,
    /// Names under which devices were known.
    pub(crate) disks: Arc<Disks>,
    /// When searching is worth while again.
    pub(crate) changes: Arc<Changes>,
    /// The pool, for where its other devices are.
    pub(crate) engine: Weak<Engine>,
    /// Where is told what was not taken in place of a device.
    journal: (About, Arc<Journal>),
    /// Device → number of changes, and when it was last searched for everywhere.
    searched: Mutex<BTreeMap<u64, (u64, Instant)>>,
    /// What was read in searches.
    looks: Looks,
    /// Device → what is in its place, and why it was not taken: said once.
    refused: Mutex<BTreeMap<u64, String>>,
}

impl DeviceOpener {
    pub(crate) fn new(
        named: Vec<PathBuf>,
        disks: Arc<Disks>,
        changes: Arc<Changes>,
        engine: Weak<Engine>,
        journal: (About, Arc<Journal>),
    ) -> Self {
        let (searched, looks, refused) = (Mutex::default(), Looks::default(), Mutex::default());
        Self { named, disks, changes, engine, journal, searched, looks, refused }
    }

    /// Names this device had, the pool's own first.
    fn names(&self, device: &DeviceName) -> Vec<PathBuf> {
        let mut names: Vec<PathBuf> = device.path.iter().map(PathBuf::from).collect();
        if let Some(known) = self.disks.get(device.guid) {
            names.extend(known.paths().map(PathBuf::from));
        }
        let mut seen = BTreeSet::new();
        names.retain(|name| name.is_absolute() && seen.insert(name.clone()));
        names
    }

    /// Everywhere else it may be, and where that leads: where the user said, beside the pool's other files, block devices.
    async fn elsewhere(&self, device: &DeviceName) -> Vec<(PathBuf, PathBuf)> {
        let now = (*self.changes.0.borrow(), Instant::now());
        {
            let mut searched = self.searched.lock();
            let last = searched.get(&device.guid);
            if last.is_some_and(|last| last.0 == now.0 && now.1.duration_since(last.1) < SEARCH_EVERY) {
                return Vec::new();
            }
            searched.insert(device.guid, now);
        }
        let mut places: BTreeSet<PathBuf> = self.named.iter().cloned().collect();
        for path in self.paths_of_pool().iter().map(Path::new).chain(device.path.as_deref().map(Path::new)) {
            // Block devices are searched below, by what `/sys` knows of them.
            if !path.starts_with("/dev")
                && let Some(directory) = path.parent()
            {
                places.insert(directory.to_owned());
            }
        }
        let mut looks = Vec::with_capacity(places.len());
        for place in &places {
            looks.push(look_up(place, |place| Ok(devices_at(place))));
        }
        let mut found: Vec<_> = join_all(looks).await.into_iter().flatten().flatten().collect();
        if self.named.is_empty() {
            found.extend(block_devices().into_iter().map(with_real));
        }
        found
    }

    fn paths_of_pool(&self) -> Vec<String> {
        let Some(engine) = self.engine.upgrade() else { return Vec::new() };
        engine.view().tree().leaves().into_iter().filter_map(|leaf| leaf.path.clone()).collect()
    }

    async fn find(&self, device: &DeviceName) -> io::Result<Arc<dyn Disk>> {
        let mut tried = BTreeSet::new();
        let mut first_error = None;
        let mut other: Option<(PathBuf, Arc<dyn Disk>)> = None;
        let changes = *self.changes.0.borrow();
        for name in self.names(device) {
            let seen =
                look_up(&name, move |name| Ok((with_real(name.to_owned()).1, Outside::of(name, changes))));
            let (real, outside) = match seen.await {
                Ok(seen) => seen,
                Err(error) => {
                    first_error = first_error.or(Some(error));
                    continue;
                }
            };
            // What it is was told when it was looked at.
            if !tried.insert(real) || self.looks.is_another(&name, device.guid, outside.as_ref()) {
                continue;
            }
            let at = Instant::now();
            let looked = look(&name).await;
            if let (Some(outside), Ok((guid, _))) = (outside, &looked) {
                self.looks.note(name.clone(), outside, *guid, at);
            }
            match looked {
                Ok((Some(guid), _)) if guid == device.guid => return lock(&name).await,
                // Something is there, and it is not this device; who asked may want to say so.
                Ok((_, disk)) => other = other.or(Some((name, disk))),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        let elsewhere = self.elsewhere(device).await.into_iter();
        let untried = elsewhere.filter_map(|(path, real)| tried.insert(real).then_some(path));
        let paths: Vec<PathBuf> = untried.collect();
        let label = |path: PathBuf| async move { label(&path).await };
        if let Some(path) = self.looks.first_with(device.guid, paths, changes, label).await {
            tracing::info!(device = device.name, path = %path.display(), "found under another name");
            return lock(&path).await;
        }
        match (other, first_error) {
            // Its own path only: a stranger under an old name says nothing about this device. It is told of and not used, so
            // it stays as it was looked at, for reading.
            (Some((path, disk)), _) if device.path.as_deref().map(Path::new) == Some(&path) => Ok(disk),
            (_, Some(error)) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Err(io::Error::new(io::ErrorKind::NotFound, format!("{} is not there", device.name))),
        }
    }

    /// The place of a device that is gone: a port, or a file's path. Names like `/dev/sdc` are no places: the next disk
    /// gets them wherever it is plugged in.
    fn place(&self, device: &DeviceName) -> Vec<PathBuf> {
        let path = device.path.clone().map(PathBuf::from);
        let is_place = |path: &PathBuf| {
            ["/dev/disk/by-path", "/dev/disk/by-vdev"].iter().any(|dir| path.starts_with(dir))
                || (!path.starts_with("/dev") && path.is_absolute())
        };
        let known = self.disks.get(device.guid).and_then(|known| known.by_path).map(PathBuf::from);
        let mut places: Vec<PathBuf> = Vec::new();
        for place in path.into_iter().filter(is_place).chain(known) {
            // Of a disk that OpenZFS partitioned it is the disk: a new one has no partition, and one that has is somebody's.
            let whole = place.to_str().filter(|_| place.starts_with("/dev")).and_then(without_partition);
            let place = whole.map_or(place.clone(), PathBuf::from);
            if !places.contains(&place) {
                places.push(place);
            }
        }
        places
    }

    /// Why a device cannot be a leaf in the place of another.
    fn misfit(&self, guid: u64, info: &DiskInfo, is_file: bool) -> Option<String> {
        let tree = self.engine.upgrade()?.view().tree();
        let top = tree.top_around(guid)?;
        misfit_in(top, info.size, addressable(is_file, info))
    }

    /// Says what is in the place of a device and was not taken, once for each reason.
    fn not_taken(&self, device: &DeviceName, place: &Path, why: &str) {
        let said = format!("{}: {why}", place.display());
        if self.refused.lock().insert(device.guid, said.clone()) == Some(said) {
            return;
        }
        tracing::warn!(device = device.name, place = %place.display(), why, "not taken as a replacement");
        let mut pairs = Map::new();
        pairs.insert("vdev_guid".to_owned(), json!(device.guid.to_string()));
        pairs.insert("vdev_path".to_owned(), json!(place.display().to_string()));
        pairs.insert("io_millpond_for".to_owned(), json!(device.name));
        pairs.insert("io_millpond_why".to_owned(), json!(why));
        let (class, pairs) = names::millpond("sysevent", "replacement_refused", pairs);
        let (about, journal) = &self.journal;
        journal.add(about, &class, (hostid::now(), 0), pairs, None);
    }
}

/// The disk of a partition's name in `/dev/disk/by-path`; none if it is no partition's.
fn without_partition(name: &str) -> Option<&str> {
    let (whole, number) = name.rsplit_once("-part")?;
    (!number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())).then_some(whole)
}

/// A device in the place of one that is gone, if nothing is on it. Nobody was asked, so what could be anybody's is left
/// alone: that it has none of the marks of which `zpool replace` warns is not enough. `misfit` says why it is of no use, by what
/// it is and whether that is a file.
async fn take_blank(
    place: &Path,
    misfit: impl Fn(&DiskInfo, bool) -> Option<String>,
) -> Result<Prepared, String> {
    let seen =
        look_up(place, |path| Ok((path.canonicalize()?, path.metadata()?.file_type().is_block_device())));
    let (real, is_block_device) = seen.await.map_err(|error| error.to_string())?;
    let name = real.file_name().filter(|_| real.starts_with("/dev"));
    if name.is_some_and(|name| Path::new("/sys/class/block").join(name).join("partition").exists()) {
        return Err("it is a partition of a disk that somebody partitioned".to_owned());
    }
    // What is left as it is must not have been open for writing: udev would say that it changed, and all be looked at again.
    let disk = open_in_time(place, to_look()).await.map_err(|error| error.to_string())?;
    let disk: Arc<dyn Disk> = Arc::new(disk);
    answered(place, &disk).await.map_err(|error| error.to_string())?;
    if let Some(why) = misfit(&disk.info(), !is_block_device) {
        return Err(why);
    }
    create::device::check(place, Arc::clone(&disk), false).await.map_err(|error| chain(&error))?;
    is_blank(&*disk).await?;
    // Now it is locked, and somebody may have written to it meanwhile.
    let prepared = create::device::prepare(place, None, false).await.map_err(|error| chain(&error))?;
    is_blank(&*prepared.disk).await?;
    Ok(prepared)
}

/// Whether a device is zero at both ends; what is there and what helps, if it is not.
async fn is_blank(disk: &dyn Disk) -> Result<(), String> {
    let size = disk.info().size;
    let len = size.min(BLANK_BYTES);
    for at in [0, size - len] {
        let read = disk.read(at, IoBuf::with_len(len as usize)).await;
        let bytes = read.map_err(|error| chain(&error))?;
        if let Some(offset) = bytes.iter().position(|byte| *byte != 0) {
            return Err(format!(
                "something is on it (at byte {}); if it is not needed: 'zpool replace' with -f, or zeroes over its first and last MiB \
                 ('blkdiscard -z' writes them over all of it)",
                at + offset as u64
            ));
        }
    }
    Ok(())
}

fn is_device(metadata: &fs::Metadata) -> bool {
    // Less than this holds no pool.
    (metadata.is_file() && metadata.len() >= 64 << 20) || metadata.file_type().is_block_device()
}

/// Asks the system about a path, which may lead to a server of files that is away.
async fn look_up<T: Send + 'static>(
    path: &Path,
    ask: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    look_up_within(LOOK_UP, path, ask).await
}

/// A path, and where it leads: itself if that is nowhere.
fn with_real(path: PathBuf) -> (PathBuf, PathBuf) {
    let real = fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
    (path, real)
}

/// What may be a device in a directory, or the place itself if it is none; each with where it leads.
fn devices_at(place: &Path) -> Vec<(PathBuf, PathBuf)> {
    let Ok(entries) = fs::read_dir(place) else { return vec![with_real(place.to_owned())] };
    // Another file system may begin in a directory, and hang for whoever looks at that.
    let entries = entries.flatten().filter(|entry| !entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let mut files: Vec<PathBuf> = entries.take(ENTRIES_MAX).map(|entry| entry.path()).collect();
    files.retain(|path| fs::metadata(path).is_ok_and(|metadata| is_device(&metadata)));
    files.sort();
    files.into_iter().map(with_real).collect()
}

/// How a device is opened that is only looked at: not locked, and udev does not take it for changed when it is closed.
fn to_look() -> OpenOptions {
    OpenOptions { read_only: true, ..OpenOptions::default() }
}

/// The guid a device's label claims, without locking it.
async fn label(path: &Path) -> io::Result<Option<u64>> {
    Ok(look(path).await?.0)
}

/// The same, and the device it was read from.
async fn look(path: &Path) -> io::Result<(Option<u64>, Arc<dyn Disk>)> {
    let disk: Arc<dyn Disk> = Arc::new(open_in_time(path, to_look()).await?);
    answered(path, &disk).await?;
    let device = Device::read(Arc::clone(&disk)).await?;
    Ok((device.and_then(|device| device.config_at(u64::MAX)?.u64("guid")), disk))
}

/// Whether a device may be that of this guid, by what its label claims: one that is there and cannot be read may be any, and
/// is no blank one.
fn may_be(label: &io::Result<Option<u64>>, guid: u64) -> bool {
    match label {
        Ok(found) => *found == Some(guid),
        Err(error) => {
            // Nothing is there that could be read.
            let unread =
                [io::ErrorKind::NotFound, io::ErrorKind::InvalidInput, io::ErrorKind::PermissionDenied];
            !unread.contains(&error.kind())
        }
    }
}

/// Returns when a device has answered a read, be it with an error. That is begun when the one before it, of whomever, is over.
async fn answered(path: &Path, disk: &Arc<dyn Disk>) -> io::Result<()> {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let turn = {
        let mut turns = TURNS.lock();
        // Of devices that nobody asks any more.
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        Arc::clone(turns.entry(path.clone()).or_default())
    };
    let disk = Arc::clone(disk);
    let asked = async move {
        let turn = turn.lock_owned().await;
        // The turn ends with the read, not with the patience of who waits for it.
        let read = tokio::spawn(async move {
            let _whatever_it_says = disk.read(0, IoBuf::with_len(SECTOR)).await;
            drop(turn);
        });
        read.await.map_err(io::Error::other)
    };
    match timeout(ANSWER, asked).await {
        Ok(asked) => asked,
        Err(_) => {
            let what = format!("{} does not answer", path.display());
            Err(io::Error::new(io::ErrorKind::TimedOut, what))
        }
    }
}

/// The first of these devices to answer with this guid. Some are looked at together: one that hangs on being opened would
/// end each search at the same place.
async fn first_with<L>(guid: u64, paths: Vec<PathBuf>, label: impl Fn(PathBuf) -> L) -> Option<PathBuf>
where
    L: Future<Output = io::Result<Option<u64>>>,
{
    let looks = paths.into_iter().map(|path| {
        let looked = label(path.clone());
        async move { (path, looked.await) }
    });
    let looks: Vec<_> = looks.collect();
    let mut looks = stream::iter(looks).buffer_unordered(LOOKED_AT_ONCE);
    while let Some((path, found)) = looks.next().await {
        if matches!(found, Ok(Some(found)) if found == guid) {
            return Some(path);
        }
    }
    None
}

/// Which devices were read in searches, and what they were.
#[derive(Debug, Default)]
struct Looks(Mutex<BTreeMap<PathBuf, Look>>);

#[derive(Debug)]
struct Look {
    guid: Option<u64>,
    /// As it was before it was read.
    outside: Outside,
    /// It was read for the first and for the last time while it was so.
    span: (Instant, Instant),
}

/// What can be seen of a device without waking it: something else when there is another, or somebody has written to it.
#[derive(Debug, PartialEq, Eq)]
struct Outside {
    /// How often devices came or went.
    changes: u64,
    node: [u64; 3],
    times: [i64; 4],
    /// Size of a disk, and the kernel's number of it or of the disk that it is a part of.
    medium: [Option<String>; 3],
}

impl Outside {
    /// None of what is not there.
    fn of(path: &Path, changes: u64) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        let mut medium = [None, None, None];
        if metadata.file_type().is_block_device() {
            let sysfs = Path::new("/sys/class/block").join(fs::canonicalize(path).ok()?.file_name()?);
            medium = ["size", "diskseq", "../diskseq"].map(|name| fs::read_to_string(sysfs.join(name)).ok());
        }
        Some(Self {
            changes,
            node: [metadata.ino(), metadata.rdev(), metadata.size()],
            times: [metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec()],
            medium,
        })
    }
}

impl Looks {
    /// The first of these devices to have this guid by its `label`. Those that are known to have another are not read.
    async fn first_with<L>(
        &self,
        guid: u64,
        mut paths: Vec<PathBuf>,
        changes: u64,
        label: impl Fn(PathBuf) -> L,
    ) -> Option<PathBuf>
    where
        L: Future<Output = io::Result<Option<u64>>>,
    {
        // They answered a moment ago, when they were found.
        paths.retain(|path| !self.is_another(path, guid, Outside::of(path, changes).as_ref()));
        let label = |path: PathBuf| {
            let (outside, at, asked) = (Outside::of(&path, changes), Instant::now(), label(path.clone()));
            async move {
                let found = asked.await;
                if let (Some(outside), Ok(guid)) = (outside, &found) {
                    self.note(path, outside, *guid, at);
                }
                found
            }
        };
        first_with(guid, paths, label).await
    }

    /// Whether that was read there, twice: once it may have been about to be written.
    fn is_another(&self, path: &Path, guid: u64, outside: Option<&Outside>) -> bool {
        self.0.lock().get(path).is_some_and(|look| {
            let (first, last) = look.span;
            look.guid != Some(guid)
                && outside == Some(&look.outside)
                && last.duration_since(first) >= SEARCH_EVERY
                && last.elapsed() < REST
        })
    }

    fn note(&self, path: PathBuf, outside: Outside, guid: Option<u64>, at: Instant) {
        let mut looks = self.0.lock();
        // Of names that are no more.
        looks.retain(|_, look| look.span.1.elapsed() < 2 * REST);
        let before = looks.get(&path).filter(|look| look.outside == outside && look.guid == guid);
        let first = before.map_or(at, |look| look.span.0);
        looks.insert(path, Look { guid, outside, span: (first, at) });
    }
}

async fn lock(path: &Path) -> io::Result<Arc<dyn Disk>> {
    let options = OpenOptions { lock: true, ..OpenOptions::default() };
    let disk = open_in_time(path, options).await?;
    Ok(Arc::new(disk))
}

impl Opener for DeviceOpener {
    fn open<'a>(&'a self, device: &'a DeviceName) -> BoxFuture<'a, io::Result<Arc<dyn Disk>>> {
        Box::pin(self.find(device))
    }

    fn replacement<'a>(&'a self, device: &'a DeviceName) -> BoxFuture<'a, Option<NewLeaf>> {
        Box::pin(async move {
            // One that failed may be where it was.
            if let Some(path) = &device.path
                && may_be(&label(Path::new(path)).await, device.guid)
            {
                return None;
            }
            for place in self.place(device) {
                if look_up(&place, |place| place.metadata().map(drop)).await.is_err() {
                    continue;
                }
                let misfit = |info: &DiskInfo, is_file| self.misfit(device.guid, info, is_file);
                match take_blank(&place, misfit).await {
                    Ok(prepared) => {
                        self.refused.lock().remove(&device.guid);
                        tracing::warn!(
                            device = device.name,
                            place = %place.display(),
                            "nothing is on the device in its place, which takes its part"
                        );
                        return Some(NewLeaf {
                            path: place.to_str()?.to_owned(),
                            is_file: !prepared.facts.block_device,
                            disk: prepared.disk,
                            ashift: None,
                        });
                    }
                    Err(why) => self.not_taken(device, &place, &why),
                }
            }
            None
        })
    }
}

#[cfg(test)]
mod tests {
    use disk::{Effect, Fault, FaultDisk, MemDisk, On};
    use pool::import::look_up_in_time;

    use super::*;

    fn opener(dir: &Path, named: Vec<PathBuf>) -> DeviceOpener {
        let disks = Disks::remembered(dir.join("state"));
        let journal = (About { pool: "tank".into(), guid: 7 }, Arc::default());
        DeviceOpener::new(named, disks, Arc::default(), Weak::new(), journal)
    }

    fn device(guid: u64, path: &Path) -> DeviceName {
        DeviceName { guid, path: Some(path.to_str().unwrap().into()), name: "a".into(), parent: None }
    }

    /// The leaf guid of a fixture's image.
    async fn guid(path: &Path) -> u64 {
        label(path).await.unwrap().unwrap()
    }

    fn mirror() -> tempfile::TempDir {
        fixtures::pool("mirror2").copy()
    }

    fn images(dir: &Path) -> Vec<PathBuf> {
        let mut images: Vec<PathBuf> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| fs::metadata(path).is_ok_and(|metadata| is_device(&metadata)))
            .collect();
        images.sort();
        images
    }

    #[tokio::test]
    async fn a_device_that_moved_is_found_by_its_label_and_locked() {
        let dir = mirror();
        let paths = images(dir.path());
        let wanted = device(guid(&paths[0]).await, &paths[0]);
        let opener = opener(dir.path(), Vec::new());
        let here = opener.open(&wanted).await.unwrap();
        assert_eq!(here.info().path, paths[0].to_str().unwrap());
        let busy = opener.open(&wanted).await.unwrap_err();
        assert_eq!(busy.kind(), io::ErrorKind::ResourceBusy, "it is locked");
        drop(here);

        // Beside where it was, under another name.
        let moved = dir.path().join("elsewhere.img");
        fs::rename(&paths[0], &moved).unwrap();
        let found = opener.open(&wanted).await.unwrap();
        assert_eq!(found.info().path, moved.to_str().unwrap());
        drop(found);

        // Nowhere: searched for once, then only when the system said something, or half a minute later.
        let away = dir.path().join("state/away");
        fs::create_dir_all(away.parent().unwrap()).unwrap();
        fs::rename(&moved, &away).unwrap();
        opener.changes.one_more();
        assert_eq!(opener.open(&wanted).await.unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::rename(&away, &moved).unwrap();
        assert_eq!(opener.open(&wanted).await.unwrap_err().kind(), io::ErrorKind::NotFound);
        opener.changes.one_more();
        opener.open(&wanted).await.unwrap();
    }

    #[tokio::test]
    async fn another_disk_under_the_same_name_is_not_mistaken() {
        let dir = mirror();
        let paths = images(dir.path());
        let wanted = device(guid(&paths[0]).await, &paths[0]);
        let opener = opener(dir.path(), vec![dir.path().to_owned()]);
        let aside = dir.path().join("aside");
        fs::rename(&paths[0], &aside).unwrap();
        fs::rename(&paths[1], &paths[0]).unwrap();
        fs::rename(&aside, &paths[1]).unwrap();
        let found = opener.open(&wanted).await.unwrap();
        assert_eq!(found.info().path, paths[1].to_str().unwrap(), "swapped cables");
    }

    /// It was opened for writing at each look and closed again, udev told everybody that it changed, and that was a reason
    /// to look again: for ever, at the labels of all devices of the machine.
    #[tokio::test]
    async fn a_stranger_in_the_place_of_a_device_is_only_read() {
        let dir = mirror();
        let paths = images(dir.path());
        let wanted = device(guid(&paths[0]).await, &paths[0]);
        let opener = opener(dir.path(), vec![dir.path().to_owned()]);
        fs::remove_file(&paths[0]).unwrap();
        fs::copy(&paths[1], &paths[0]).unwrap();
        // Whoever opens it for writing locks it, and could not.
        let user = fs::File::open(&paths[0]).unwrap();
        user.lock().unwrap();
        let found = opener.open(&wanted).await.unwrap();
        assert_eq!(found.info().path, paths[0].to_str().unwrap());
        assert!(found.write(0, bytes::Bytes::from(vec![0_u8; 4096])).await.is_err());
        assert!(opener.replacement(&wanted).await.is_none());
        let told = opener.journal.1.since(0, None);
        let why = told[0].zevent.pairs["io_millpond_why"].as_str().unwrap();
        assert!(why.contains("pool 'pmirror2'"), "{why}");
    }

    /// Found by reading: what lies under a name that a missing drive had was read every five seconds, be it a spare that sleeps.
    #[tokio::test]
    async fn another_device_under_a_name_of_one_that_is_away_is_left_at_rest_until_there_is_a_reason() {
        let dir = mirror();
        let paths = images(dir.path());
        let wanted = device(guid(&paths[0]).await, &paths[0]);
        let opener = opener(dir.path(), vec![dir.path().to_owned()]);
        fs::remove_file(&paths[0]).unwrap();
        fs::copy(&paths[1], &paths[0]).unwrap();
        let is_read = async || match opener.open(&wanted).await {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
                false
            }
        };
        let later = async || {
            tokio::time::pause();
            tokio::time::advance(SEARCH_EVERY).await;
            tokio::time::resume();
        };
        assert!(is_read().await);
        later().await;
        assert!(is_read().await, "somebody may have been about to write it");
        assert!(!is_read().await);
        later().await;
        assert!(!is_read().await);
        opener.changes.one_more();
        assert!(is_read().await);
    }

    /// Whoever looks up a path on a server that is away waits for that, and nobody watched the pool meanwhile.
    #[tokio::test]
    async fn a_path_that_hangs_when_it_is_looked_up_ends_no_search() {
        let dir = mirror();
        let paths = images(dir.path());
        let stuck = dir.path().join("stuck");
        let wanted = device(guid(&paths[0]).await, &stuck);
        let ((answers, hangs), (told, runs)) =
            (std::sync::mpsc::channel::<()>(), tokio::sync::oneshot::channel());
        let hanging = tokio::spawn(async move {
            let hang = move |_: &Path| {
                told.send(()).unwrap();
                let _unblocked = hangs.recv_timeout(Duration::from_secs(60));
                Ok(())
            };
            look_up_in_time(&stuck, hang).await
        });
        runs.await.unwrap();
        let opener = opener(dir.path(), vec![dir.path().to_owned()]);
        let found = timeout(Duration::from_secs(10), opener.open(&wanted)).await.unwrap().unwrap();
        assert_eq!(found.info().path, paths[0].to_str().unwrap());
        drop(answers);
        hanging.await.unwrap().unwrap();
    }

    /// Each search ended at a disk that hung, and what came behind it was never found.
    #[tokio::test(start_paused = true)]
    async fn a_disk_that_hangs_ends_no_search() {
        async fn answer(path: PathBuf) -> io::Result<Option<u64>> {
            match path.to_str() {
                Some("/dev/vd0") => std::future::pending().await,
                Some("/dev/vd1") => Err(io::ErrorKind::TimedOut.into()),
                Some("/dev/vd39") => Ok(Some(7)),
                _ => Ok(Some(8)),
            }
        }
        let paths: Vec<PathBuf> = (0..40).map(|number| format!("/dev/vd{number}").into()).collect();
        let found = timeout(Duration::from_secs(1), first_with(7, paths, answer)).await;
        assert_eq!(found.unwrap().unwrap(), Path::new("/dev/vd39"));
    }

    /// Found by reading: as long as a drive was away all disks of the machine were read twice a minute, spares that sleep too.
    #[tokio::test(start_paused = true)]
    async fn what_a_search_found_to_be_another_is_left_at_rest_until_there_is_a_reason() {
        let dir = tempfile::tempdir().unwrap();
        let (spare, broken) = (dir.path().join("spare"), dir.path().join("broken"));
        [&spare, &broken].into_iter().for_each(|path| fs::write(path, "as it is").unwrap());
        let (looks, reads) = (Looks::default(), Mutex::new(Vec::new()));
        // Which of them one more search reads, for a device that is not there.
        let search = async |changes: u64| {
            tokio::time::sleep(SEARCH_EVERY).await;
            let label = |path: PathBuf| {
                let found = match path.ends_with("broken") {
                    true => Err(io::Error::from(io::ErrorKind::TimedOut)),
                    false => Ok(Some(8)),
                };
                reads.lock().push(path);
                std::future::ready(found)
            };
            assert_eq!(looks.first_with(7, vec![spare.clone(), broken.clone()], changes, label).await, None);
            std::mem::take(&mut *reads.lock())
        };
        let (all, failing) = ([spare.clone(), broken.clone()], std::slice::from_ref(&broken));
        let settles = async |changes: u64| {
            for _ in 0..2 {
                assert_eq!(search(changes).await, all);
            }
            for _ in 0..10 {
                assert_eq!(search(changes).await, failing, "it did not answer");
            }
        };
        settles(0).await;
        // Devices came or went.
        settles(1).await;
        fs::write(&spare, "somebody wrote to it").unwrap();
        settles(1).await;
        tokio::time::sleep(REST).await;
        assert_eq!(search(1).await, all, "once an hour");
        assert_eq!(search(1).await, failing);
        let found = looks.first_with(8, vec![spare.clone()], 1, |_| std::future::ready(Ok(Some(8)))).await;
        assert_eq!(found.as_ref(), Some(&spare), "it is the one that is looked for now");
    }

    /// Found by reading: each look at a disk that was opened and did not answer began more reads of it, which never ended: the
    /// memory of the machine, or its threads, were theirs within a day.
    #[tokio::test(start_paused = true)]
    async fn a_disk_that_does_not_answer_is_asked_once() {
        let media: Arc<dyn Disk> = Arc::new(MemDisk::new(1 << 20));
        let mute = Arc::new(FaultDisk::new(media, 1));
        let late = Duration::from_secs(3600);
        mute.inject(Fault::anywhere(On::Read, Effect::Delay(late..=late)).times(1));
        let disk: Arc<dyn Disk> = Arc::clone(&mute) as _;
        let path = Path::new("/dev/millpond-mute");
        for _ in 0..20 {
            assert_eq!(answered(path, &disk).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        }
        assert_eq!(mute.counts().reads, 1);
        tokio::time::sleep(late).await;
        answered(path, &disk).await.unwrap();
    }

    #[tokio::test]
    async fn only_an_unused_device_in_the_same_place_is_a_replacement() {
        let dir = mirror();
        let paths = images(dir.path());
        let wanted = device(guid(&paths[0]).await, &paths[0]);
        let opener = opener(dir.path(), Vec::new());
        assert!(opener.replacement(&wanted).await.is_none(), "it is still the old one");
        assert!(opener.journal.1.since(0, None).is_empty(), "which was faulted, and is nothing to tell of");
        fs::remove_file(&paths[0]).unwrap();
        assert!(opener.replacement(&wanted).await.is_none(), "nothing is there");
        fs::File::create(&paths[0]).unwrap().set_len(64 << 20).unwrap();
        let new = opener.replacement(&wanted).await.unwrap();
        assert_eq!((new.path.as_str(), new.is_file), (paths[0].to_str().unwrap(), true));
        drop(new);
        // A name that the next disk gets wherever it is plugged in is no place.
        let floating = DeviceName { path: Some("/dev/sdzz".into()), ..wanted };
        assert!(opener.place(&floating).is_empty());
        let port = DeviceName { path: Some("/dev/disk/by-path/pci-1-ata-3-part1".into()), ..floating };
        assert_eq!(
            opener.place(&port),
            [PathBuf::from("/dev/disk/by-path/pci-1-ata-3")],
            "never a partition"
        );
        assert_eq!(without_partition("/dev/disk/by-path/pci-part1-x"), None);
    }

    /// Found by reading: a drive that refused reads was told of as a replacement for itself that was not taken.
    #[test]
    fn a_drive_that_cannot_be_read_may_be_the_one_that_failed() {
        let failed = |kind: io::ErrorKind| Err(io::Error::from(kind));
        assert!(may_be(&Ok(Some(7)), 7));
        assert!(may_be(&failed(io::ErrorKind::Other), 7), "it refuses reads");
        assert!(may_be(&failed(io::ErrorKind::TimedOut), 7), "it does not answer");
        assert!(!may_be(&Ok(Some(8)), 7));
        assert!(!may_be(&Ok(None), 7));
        assert!(!may_be(&failed(io::ErrorKind::NotFound), 7));
    }

    /// Only some fourteen marks in the first 68 KiB kept a disk from being overwritten.
    #[tokio::test]
    async fn a_device_with_anything_at_its_beginning_or_end_is_no_replacement() {
        use std::os::unix::fs::FileExt as _;
        let dir = mirror();
        let paths = images(dir.path());
        let wanted = device(guid(&paths[0]).await, &paths[0]);
        let opener = opener(dir.path(), Vec::new());
        let size = (64 << 20) + 4096;
        // What is known by its mark, and data of nobody knows whom.
        for (at, mark, kind) in [
            (0, &b"bluestore block device"[..], Some("ceph_bluestore")),
            (3, b"-FVE-FS-", Some("BitLocker")),
            (32, b"NXSB", Some("apfs")),
            (BLANK_BYTES - 1, b"x", None),
            (size - (64 << 10), &[0xfc, 0x4e, 0x2b, 0xa9], None),
            (size - (8 << 10), &[0xfc, 0x4e, 0x2b, 0xa9], Some("linux_raid_member")),
            (size - 512, b"EFI PART", Some("gpt")),
            (size - 1, b"x", None),
        ] {
            let _gone = fs::remove_file(&paths[0]);
            let file = fs::File::create(&paths[0]).unwrap();
            file.set_len(size).unwrap();
            file.write_all_at(mark, at).unwrap();
            assert!(opener.replacement(&wanted).await.is_none(), "{at}");
            assert!(opener.replacement(&wanted).await.is_none(), "{at}");
            // Another test's child has this file open, locked, until it is another program: that is told, too.
            let why = match kind {
                Some(kind) => format!(" of type '{kind}'"),
                None => format!("something is on it (at byte {at})"),
            };
            let told = opener.journal.1.since(0, None);
            let events = told.iter().map(|told| &told.zevent);
            let said = events.filter(|event| event.pairs["io_millpond_why"].as_str().unwrap().contains(&why));
            let classes: Vec<&str> = said.map(|event| event.class.as_str()).collect();
            assert_eq!(classes, ["sysevent.io.millpond.replacement_refused"], "{at}: said once");
        }
        let _gone = fs::remove_file(&paths[0]);
        fs::File::create(&paths[0]).unwrap().set_len(size).unwrap();
        assert!(opener.replacement(&wanted).await.is_some(), "nothing is on it");
    }

    /// It was taken, for the pool to refuse it: each minute anew, opened for writing, on which udev says that it changed; and
    /// whoever had put it there was not told.
    #[tokio::test]
    async fn a_replacement_that_does_not_fit_is_only_read() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("new");
        fs::File::create(&place).unwrap().set_len(64 << 20).unwrap();
        // Whoever opens it for writing locks it, and could not.
        let user = fs::File::open(&place).unwrap();
        user.lock().unwrap();
        let misfit = |info: &DiskInfo, is_file: bool| Some(format!("{} {is_file}", info.size));
        let why = take_blank(&place, misfit).await.map(drop).unwrap_err();
        assert_eq!(why, format!("{} true", 64 << 20));
    }

    /// `wipefs` was what helps, which takes marks away and nothing else: the device was refused as before.
    #[tokio::test]
    async fn a_device_that_was_used_is_a_replacement_once_there_are_zeroes_at_both_ends() {
        use std::os::unix::fs::FileExt as _;
        let dir = mirror();
        let paths = images(dir.path());
        let wanted = device(guid(&paths[0]).await, &paths[0]);
        let opener = opener(dir.path(), Vec::new());
        let size = 64 << 20;
        fs::remove_file(&paths[0]).unwrap();
        let file = fs::File::create(&paths[0]).unwrap();
        file.set_len(size).unwrap();
        // The entries of a partition table without its marks: of Linux.
        let kind = b"\xaf\x3d\xc6\x0f\x83\x84\x72\x47\x8e\x79\x3d\x69\xd8\x47\x7d\xe4";
        for at in [1024, size - 33 * 512] {
            file.write_all_at(kind, at).unwrap();
        }
        assert!(opener.replacement(&wanted).await.is_none());
        let told = opener.journal.1.since(0, None);
        let why = told[0].zevent.pairs["io_millpond_why"].as_str().unwrap();
        assert!(why.starts_with("something is on it (at byte 1024)"), "{why}");
        assert!(why.contains("zeroes over its first and last MiB") && !why.contains("wipefs"), "{why}");
        for at in [0, size - BLANK_BYTES] {
            file.write_all_at(&vec![0; BLANK_BYTES as usize], at).unwrap();
        }
        assert!(opener.replacement(&wanted).await.is_some());
    }
}
