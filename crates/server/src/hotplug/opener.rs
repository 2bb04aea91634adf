//! Opens devices of a pool that were away: by the path they had, by the names under which they were known
//! (`/dev/disk/by-id`, …), or wherever a disk with the right label is now.
//!
//! The names it had come first, and none of them says what is there now: cables may have been swapped. What has its guid, by
//! its label, is locked, and is the device. If none has, everything is searched, when that is worth while.
//!
//! Not here: how a device is asked what it is (`ask.rs`), which are left at rest (`looks.rs`), and what is taken if the device is
//! gone for good (`replacement.rs`).

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Weak},
};

use disk::{Disk, OpenOptions};
use engine::{
    BoxFuture,
    devices::{NewLeaf, Opener},
    engine::Engine,
    events::DeviceName,
};
use futures_util::future::join_all;
use parking_lot::Mutex;
use pool::import::open_in_time;
use tokio::time::Instant;

use super::{
    Changes,
    ask::{label, look, look_up},
    looks::{Looks, Outside},
};
use crate::{
    disks::Disks,
    events::{About, Journal},
    host::block_devices,
};

/// Devices looked at in one directory at most: somebody's home is no place for disks.
const ENTRIES_MAX: usize = 1000;

/// The openers' knowledge about this machine.
#[derive(Debug)]
pub(crate) struct DeviceOpener {
    /// What the user named (`-d`), where devices are looked for first.
    named: Vec<PathBuf>,
    /// Names under which devices were known.
    pub(super) disks: Arc<Disks>,
    /// When searching is worth while again.
    changes: Arc<Changes>,
    /// The pool, for where its other devices are.
    pub(super) engine: Weak<Engine>,
    /// Where is told what was not taken in place of a device.
    pub(super) journal: (About, Arc<Journal>),
    /// What was read in searches.
    looks: Looks,
    /// Device → what is in its place, and why it was not taken: said once.
    pub(super) refused: Mutex<BTreeMap<u64, String>>,
}

impl DeviceOpener {
    pub(crate) fn new(
        named: Vec<PathBuf>,
        disks: Arc<Disks>,
        changes: Arc<Changes>,
        engine: Weak<Engine>,
        journal: (About, Arc<Journal>),
    ) -> Self {
        let (looks, refused) = (Looks::default(), Mutex::default());
        Self { named, disks, changes, engine, journal, looks, refused }
    }

    async fn find(&self, device: &DeviceName) -> io::Result<Arc<dyn Disk>> {
        let mut tried = BTreeSet::new();
        let mut first_error = None;
        let mut other: Option<(PathBuf, Arc<dyn Disk>)> = None;
        let changes = self.changes.count();
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
        if !self.looks.is_search_due(device.guid, self.changes.count()) {
            return Vec::new();
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
}

impl Opener for DeviceOpener {
    fn open<'a>(&'a self, device: &'a DeviceName) -> BoxFuture<'a, io::Result<Arc<dyn Disk>>> {
        Box::pin(self.find(device))
    }

    fn replacement<'a>(&'a self, device: &'a DeviceName) -> BoxFuture<'a, Option<NewLeaf>> {
        Box::pin(self.take_place(device))
    }
}

fn is_device(metadata: &fs::Metadata) -> bool {
    // Less than this holds no pool.
    (metadata.is_file() && metadata.len() >= 64 << 20) || metadata.file_type().is_block_device()
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

async fn lock(path: &Path) -> io::Result<Arc<dyn Disk>> {
    let options = OpenOptions { lock: true, ..OpenOptions::default() };
    let disk = open_in_time(path, options).await?;
    Ok(Arc::new(disk))
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use pool::import::look_up_in_time;
    use tokio::time::timeout;

    use super::{super::looks::SEARCH_EVERY, *};

    pub(in crate::hotplug) fn opener(dir: &Path, named: Vec<PathBuf>) -> DeviceOpener {
        let disks = Disks::remembered(dir.join("state"));
        let journal = (About { pool: "tank".into(), guid: 7 }, Arc::default());
        DeviceOpener::new(named, disks, Arc::default(), Weak::new(), journal)
    }

    pub(in crate::hotplug) fn device(guid: u64, path: &Path) -> DeviceName {
        DeviceName { guid, path: Some(path.to_str().unwrap().into()), name: "a".into(), parent: None }
    }

    /// The leaf guid of a fixture's image.
    pub(in crate::hotplug) async fn guid(path: &Path) -> u64 {
        label(path).await.unwrap().unwrap()
    }

    pub(in crate::hotplug) fn mirror() -> tempfile::TempDir {
        fixtures::pool("mirror2").copy()
    }

    pub(in crate::hotplug) fn images(dir: &Path) -> Vec<PathBuf> {
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
}
