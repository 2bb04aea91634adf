//! Pools that the daemon opens by itself, beside all operations: whoever exports one meanwhile ends that, and knows when nothing
//! of it has its devices any more.

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use disk::Disk;
use pool::import::Opener;
use tokio::{
    task::spawn_blocking,
    time::{sleep, timeout},
};

use super::{Host, open::LOCK_PAUSE};

/// How long one that is given up is waited for: it may be closing what it has open.
const LAST_STEPS: Duration = Duration::from_secs(15);

/// How long a device is waited for that is to say whether somebody has it.
const ASKED: Duration = Duration::from_secs(5);

/// An attempt to open a pool, as long as this lives: nothing of it is left when it has [ended](Self::end), but what devices owe
/// to one that failed by itself, which is kept in mind.
pub(crate) struct Attempt {
    host: Arc<Host>,
    guid: u64,
}

impl Attempt {
    /// Ends it when it has nothing else any more. One that was given up may have been dropped anywhere: tasks of it end a moment
    /// later, and what a device was given and has not answered may still land, with the device locked until then.
    pub(crate) async fn end(self) {
        let taken = self.host.taken.lock().remove(&self.guid).unwrap_or_default();
        let is_given_up = self.host.attempts.borrow().get(&self.guid) == Some(&true);
        if is_given_up {
            self.host.until_free(self.guid, taken).await;
            return;
        }
        // The next attempt comes all the same.
        if self.host.is_open(self.guid) {
            return;
        }
        let owing = self.host.in_use(taken).await;
        if !owing.is_empty() {
            self.host.taken.lock().entry(self.guid).or_default().extend(owing);
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.host.attempts.send_modify(|attempts| {
            attempts.remove(&self.guid);
        });
    }
}

impl Host {
    /// An attempt to open this pool begins, which is the only one.
    pub(crate) fn attempt(self: &Arc<Self>, guid: u64) -> Attempt {
        self.attempts.send_modify(|attempts| {
            attempts.insert(guid, false);
        });
        Attempt { host: Arc::clone(self), guid }
    }

    /// What a `step` of such an attempt comes to; none if the attempt is given up before that, and the step with it.
    pub(crate) async fn unless_given_up<T>(&self, guid: u64, step: impl Future<Output = T>) -> Option<T> {
        let mut attempts = self.attempts.subscribe();
        tokio::select! {
            biased;
            // The sender is ours: it is not gone.
            _given_up = attempts.wait_for(|attempts| attempts.get(&guid) == Some(&true)) => None,
            done = step => Some(done),
        }
    }

    /// The attempt to open this pool is to end, if there is one.
    pub(crate) fn give_up_attempt(&self, guid: u64) {
        self.attempts.send_if_modified(|attempts| match attempts.get_mut(&guid) {
            Some(is_given_up) => !std::mem::replace(is_given_up, true),
            None => false,
        });
    }

    /// The same, and waits for that, and for what devices owe to earlier ones; whether all has ended.
    pub(crate) async fn end_attempt(&self, guid: u64) -> bool {
        self.give_up_attempt(guid);
        let mut attempts = self.attempts.subscribe();
        let ended = async {
            drop(attempts.wait_for(|attempts| !attempts.contains_key(&guid)).await);
            let owing = self.taken.lock().get(&guid).cloned().unwrap_or_default();
            self.until_free(guid, owing).await;
            self.taken.lock().remove(&guid);
        };
        timeout(LAST_STEPS, ended).await.is_ok()
    }

    /// Opens devices of this pool to be written to, and notes their paths.
    pub(super) fn taking(&self, guid: u64) -> Opener {
        let (opener, taken) = ((self.writable)(), Arc::clone(&self.taken));
        Arc::new(move |path: &Path| -> io::Result<Arc<dyn Disk>> {
            let disk = opener(path)?;
            taken.lock().entry(guid).or_default().insert(path.to_owned());
            Ok(disk)
        })
    }

    /// Returns when nobody has a device at one of these paths; or when the pool is open, which was somebody else's doing.
    async fn until_free(&self, guid: u64, paths: BTreeSet<PathBuf>) {
        let mut taken = paths;
        loop {
            taken = self.in_use(taken).await;
            if taken.is_empty() || self.is_open(guid) {
                return;
            }
            sleep(LOCK_PAUSE).await;
        }
    }

    /// Those of these paths at which somebody has the device.
    async fn in_use(&self, paths: BTreeSet<PathBuf>) -> BTreeSet<PathBuf> {
        let mut in_use = BTreeSet::new();
        for path in paths {
            if self.is_in_use(&path).await {
                in_use.insert(path);
            }
        }
        in_use
    }

    /// Whether somebody has the device at this path, so that it cannot be written to. So has one that does not even say.
    async fn is_in_use(&self, path: &Path) -> bool {
        let (opener, path) = ((self.writable)(), path.to_owned());
        let opened = spawn_blocking(move || opener(&path).map(drop));
        match timeout(ASKED, opened).await {
            Ok(opened) => matches!(opened, Ok(Err(error)) if error.kind() == io::ErrorKind::ResourceBusy),
            Err(_) => true,
        }
    }
}
