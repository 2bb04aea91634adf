//! Which disk is which: what was known of each device of a pool when it was last there, kept so that a disk that is
//! gone can still be named by its serial number, and found again under another name.
//!
//! Kept in `disks.json` of the state directory. It is a hint: whether a disk is the one it should be, its label says.

use std::{collections::BTreeMap, io, path::PathBuf, sync::Arc, time::Duration};

use parking_lot::Mutex;
use pool::Pool;
use serde::{Deserialize, Serialize};

mod sysfs;

pub(crate) use sysfs::Sysfs;

use crate::state;

/// Name of the file in the state directory.
const FILE: &str = "disks.json";
/// Devices remembered at most; those longest unseen go first, of which none is in a pool that is open.
const DEVICES_MAX: usize = 10_000;
/// How long a look is waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// What is known about a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Identity {
    /// As the pool has it.
    pub path: String,
    /// Its name in `/dev/disk/by-id`: full path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_id: Option<String>,
    /// In `/dev/disk/by-path`: the port it hangs on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_path: Option<String>,
    /// In `/dev/disk/by-partuuid`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_partuuid: Option<String>,
    /// Model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Serial number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Size in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Slot of its enclosure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bay: Option<String>,
}

impl Identity {
    /// Every name it had, the most lasting first.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        let links = [&self.by_id, &self.by_partuuid, &self.by_path];
        links.into_iter().filter_map(|link| link.as_deref()).chain([self.path.as_str()])
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Contents {
    version: u32,
    /// By the device's guid in the pool, in decimal.
    disks: BTreeMap<String, Identity>,
}

/// The devices that were seen.
#[derive(Debug)]
pub struct Disks {
    dir: PathBuf,
    sysfs: Sysfs,
    known: Mutex<BTreeMap<u64, Identity>>,
    /// Held by who looks in the background.
    looking: Arc<tokio::sync::Mutex<()>>,
}

impl Disks {
    /// Those remembered in the state directory `dir`. A file that cannot be read is forgotten: it is a hint.
    #[must_use]
    pub fn remembered(dir: impl Into<PathBuf>) -> Arc<Self> {
        Self::of(dir.into(), Sysfs::default())
    }

    pub(crate) fn of(dir: PathBuf, sysfs: Sysfs) -> Arc<Self> {
        let known = match state::read_json::<Contents>(&dir.join(FILE)) {
            Ok(contents) => contents.unwrap_or_default().disks,
            Err(error) => {
                tracing::warn!(%error, "what was known about disks is forgotten");
                BTreeMap::new()
            }
        };
        let known = known.into_iter().filter_map(|(guid, disk)| Some((guid.parse().ok()?, disk))).collect();
        Arc::new(Self { dir, sysfs, known: Mutex::new(known), looking: Arc::default() })
    }

    /// What is known about the device of this guid.
    #[must_use]
    pub fn get(&self, guid: u64) -> Option<Identity> {
        self.known.lock().get(&guid).cloned()
    }

    /// Whether nothing is known: nobody looked yet, or it was kept elsewhere.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.known.lock().is_empty()
    }

    /// Whether some device has this serial number, or one of its names.
    #[must_use]
    pub fn knows(&self, name: &str) -> bool {
        let is_it =
            |disk: &Identity| disk.serial.as_deref() == Some(name) || disk.paths().any(|path| path == name);
        self.known.lock().values().any(is_it)
    }

    /// Does this on a thread of its own, unless one is still at it, and waits a moment for it: nobody who tells of disks waits
    /// for what is known of them.
    pub(crate) async fn in_background(&self, look: impl FnOnce() -> io::Result<()> + Send + 'static) {
        let Ok(turn) = Arc::clone(&self.looking).try_lock_owned() else { return };
        let looking = tokio::task::spawn_blocking(move || {
            if let Err(error) = look() {
                tracing::warn!(%error, "what is known about disks cannot be kept for the next start");
            }
            drop(turn);
        });
        let _in_time = tokio::time::timeout(PATIENCE, looking).await;
    }

    /// Looks at all devices of a pool that are there. Blocks for as long as `/sys` takes.
    ///
    /// # Errors
    /// What is new could not be kept for the next start.
    pub fn look(&self, pool: &Pool) -> io::Result<()> {
        let tree = pool.tree();
        let beside = pool.spares().iter().chain(pool.l2cache());
        let all = tree.leaves().into_iter().chain(beside);
        let present: Vec<(u64, String, u64)> = all
            .filter_map(|vdev| {
                let info = vdev.leaf.as_ref()?.disk()?.info();
                let path = std::path::absolute(&info.path).ok()?;
                Some((vdev.guid, path.to_str()?.to_owned(), info.size))
            })
            .collect();
        let seen: Vec<(u64, Identity)> = present
            .into_iter()
            .map(|(guid, path, size)| {
                let found = self.sysfs.identify(&path);
                (guid, found.unwrap_or_else(|| Identity { path, bytes: Some(size), ..Identity::default() }))
            })
            .collect();
        let contents = {
            let mut known = self.known.lock();
            let mut changed = false;
            for (guid, now) in &seen {
                if known.get(guid) != Some(now) {
                    known.insert(*guid, now.clone());
                    changed = true;
                }
            }
            if !changed {
                return Ok(());
            }
            let in_use: Vec<u64> = seen.iter().map(|(guid, _)| *guid).collect();
            while known.len() > DEVICES_MAX
                && let Some(other) = known.keys().find(|guid| !in_use.contains(guid)).copied()
            {
                known.remove(&other);
            }
            let disks = known.iter().map(|(guid, disk)| (guid.to_string(), disk.clone())).collect();
            Contents { version: 1, disks }
        };
        state::replace_json(&self.dir, FILE, &contents)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc::channel,
    };

    use super::*;

    /// One path that hung kept every alert of every pool from being told.
    #[tokio::test]
    async fn a_look_that_hangs_is_waited_for_a_moment_and_not_begun_again() {
        let dir = tempfile::tempdir().unwrap();
        let disks = Disks::of(dir.path().to_owned(), Sysfs::below(dir.path()));
        let begun = Arc::new(AtomicUsize::new(0));
        let (answers, hangs) = channel::<()>();
        let count = |begun: &Arc<AtomicUsize>| {
            let begun = Arc::clone(begun);
            move || {
                begun.fetch_add(1, Relaxed);
                Ok(())
            }
        };
        let counted = count(&begun);
        let hanging = disks.in_background(move || {
            let _unblocked = hangs.recv();
            counted()
        });
        tokio::time::timeout(10 * PATIENCE, hanging).await.expect("it is not waited for");
        disks.in_background(count(&begun)).await;
        assert_eq!(begun.load(Relaxed), 0);
        drop(answers);
        while begun.load(Relaxed) < 2 {
            disks.in_background(count(&begun)).await;
            tokio::task::yield_now().await;
        }
    }
}
