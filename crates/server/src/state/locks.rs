//! Who has a state directory, or something of it: a daemon as long as it runs, a command its turn with a pool, and whoever changes
//! what is kept there for a moment. Each is a lock on a file, which goes with its process, however that ends.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use super::{State, StateError, failed};

/// How long the lock is waited for. Whoever has it rightly has it for the time of a small file's replacement.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);
/// Locked by a daemon as long as it runs, and who that is.
const DAEMON: &str = "daemon";
/// What the names of files begin with that commands lock as long as they have a pool, and that say who that is. The pool's guid
/// follows.
const TURN: &str = "turn-";
/// How long the daemon's lock is asked for: whoever only [looks](State::daemon) whether there is a daemon has it for a moment.
const CLAIM_PATIENCE: Duration = Duration::from_millis(500);
const LOCK_PAUSE: Duration = Duration::from_millis(20);

impl State {
    /// Claims the directory for a daemon.
    ///
    /// # Errors
    /// [`StateError::InUse`], or nothing can be written there.
    pub fn for_a_daemon(&self) -> Result<Claim, StateError> {
        self.claim_within(CLAIM_PATIENCE)
    }

    fn claim_within(&self, patience: Duration) -> Result<Claim, StateError> {
        let path = self.dir.join(DAEMON);
        fs::create_dir_all(&self.dir).map_err(failed("create", &self.dir))?;
        let file =
            fs::File::options().create(true).truncate(false).read(true).write(true).mode(0o600).open(&path);
        let mut file = file.map_err(failed("write", &path))?;
        let attempt = || try_lock(&file, &path);
        if !(attempt()? || aside(|| wait_for(attempt, patience))?) {
            return Err(StateError::InUse { dir: self.dir.clone(), process: process(&path) });
        }
        // Only for people: what counts is the lock.
        let _unsaid = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(Claim { _file: file })
    }

    /// Whether a daemon has claimed the directory. Who may not look has to reckon with one.
    #[must_use]
    pub fn daemon(&self) -> Option<Claimed> {
        let path = self.dir.join(DAEMON);
        // Only to look: nothing is made.
        let file = match fs::File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Some(Claimed::Hidden),
            Err(_) => return None,
        };
        match file.try_lock_shared() {
            Err(fs::TryLockError::WouldBlock) => Some(Claimed::By { process: process(&path) }),
            _ => None,
        }
    }

    /// Takes the turn of commands with the pool of this guid, if no other has it.
    ///
    /// # Errors
    /// [`StateError::Taken`], or nothing can be written there.
    pub(crate) fn turn(&self, guid: u64) -> Result<CommandTurn, StateError> {
        let path = self.dir.join(format!("{TURN}{guid}"));
        fs::create_dir_all(&self.dir).map_err(failed("create", &self.dir))?;
        let file = fs::File::options().create(true).truncate(false).write(true).mode(0o600).open(&path);
        let mut file = file.map_err(failed("write", &path))?;
        // A file that is gone was the turn of a command that ended since it was opened here: the next one makes another.
        if !try_lock(&file, &path)? || !is_still(&file, &path) {
            return Err(StateError::Taken { process: process(&path) });
        }
        // Others know by it that it is another's turn; what counts is the lock.
        let _unsaid = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(CommandTurn { path, file })
    }
}

/// A daemon's claim to a state directory: it goes with this.
#[derive(Debug)]
pub struct Claim {
    /// Locked as long as it is open.
    _file: fs::File,
}

/// A command's turn with a pool among those that run side by side: it goes with this.
#[derive(Debug)]
pub(crate) struct CommandTurn {
    path: PathBuf,
    /// Locked as long as it is open.
    file: fs::File,
}

impl Drop for CommandTurn {
    fn drop(&mut self) {
        // Still locked: it is nobody else's that goes, where it has its name.
        if is_still(&self.file, &self.path) {
            let _stays = fs::remove_file(&self.path);
        }
    }
}

/// A state directory is a daemon's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// It is.
    By {
        /// Its process, as it says.
        process: Option<String>,
    },
    /// It may be, which this user may not see.
    Hidden,
}

fn process(path: &Path) -> Option<String> {
    let process = fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    process.filter(|pid| !pid.is_empty() && pid.len() < 20)
}

/// The lock under which what is kept in a directory is read, changed and replaced, by tasks and processes alike. It goes
/// with the handle.
///
/// Others cannot open the file, let alone lock it: whoever could would decide when this program goes on. A daemon's other
/// tasks do not wait with the one that waits for it.
///
/// # Errors
/// The directory cannot be made, or the lock not be had within [`LOCK_PATIENCE`].
pub(crate) fn lock(dir: &Path) -> Result<fs::File, StateError> {
    lock_within(dir, LOCK_PATIENCE)
}

fn lock_within(dir: &Path, patience: Duration) -> Result<fs::File, StateError> {
    fs::create_dir_all(dir).map_err(failed("create", dir))?;
    let path = dir.join("lock");
    let lock = fs::File::options().create(true).truncate(false).write(true).mode(0o600).open(&path);
    let lock = lock.map_err(failed("write", &path))?;
    // Those of older versions could be read, and so be locked, by all. Not ours to change: then it is not theirs either.
    let _others_file = lock.set_permissions(fs::Permissions::from_mode(0o600));
    let attempt = || try_lock(&lock, &path);
    if attempt()? || aside(|| wait_for(attempt, patience))? {
        return Ok(lock);
    }
    Err(StateError::Held { path, waited: patience })
}

/// Whether it is locked now, and not by somebody else.
fn try_lock(file: &fs::File, path: &Path) -> Result<bool, StateError> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(fs::TryLockError::WouldBlock) => Ok(false),
        Err(fs::TryLockError::Error(error)) => Err(failed("lock", path)(error)),
    }
}

/// Whether this path is that file's still. How many names it has does not tell: what is removed from a file server while it is
/// open stays there under another one.
fn is_still(file: &fs::File, path: &Path) -> bool {
    match (file.metadata(), fs::metadata(path)) {
        (Ok(open), Ok(there)) => (open.dev(), open.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

/// Tries again and again; whether it succeeded in time.
fn wait_for(
    mut attempt: impl FnMut() -> Result<bool, StateError>,
    patience: Duration,
) -> Result<bool, StateError> {
    let mut waited = Duration::ZERO;
    while waited < patience {
        pause();
        if attempt()? {
            return Ok(true);
        }
        waited += LOCK_PAUSE;
    }
    Ok(false)
}

#[expect(
    clippy::disallowed_methods,
    reason = "commands without a runtime wait here, too; no pool is involved"
)]
fn pause() {
    std::thread::sleep(LOCK_PAUSE);
}

/// Does what blocks without holding up the tasks of a runtime that has other threads for them.
fn aside<T>(blocks: impl FnOnce() -> T) -> T {
    use tokio::runtime::{Handle, RuntimeFlavor};
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(blocks),
        _ => blocks(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Any local user could open the file for reading, lock it, and so stop whatever the daemon did next.
    #[test]
    fn the_lock_is_not_for_others_and_not_waited_for_forever() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let held = lock(dir.path()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600, "an old one");
        let error = lock_within(dir.path(), Duration::from_millis(60)).unwrap_err();
        assert!(matches!(error, StateError::Held { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(&format!("fuser {}", path.display())), "{text}");
        drop(held);
        drop(lock(dir.path()).unwrap());
        let fresh = dir.path().join("fresh");
        drop(lock(&fresh).unwrap());
        assert_eq!(
            fs::metadata(fresh.join("lock")).unwrap().permissions().mode() & 0o777,
            0o600,
            "a new one"
        );
    }

    #[test]
    fn whoever_looks_sees_a_daemon_and_is_in_the_way_of_none() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::at(dir.path().join("state"));
        assert_eq!(state.daemon(), None);
        assert!(!state.dir().exists(), "who looks makes nothing");
        let claim = state.for_a_daemon().unwrap();
        let process = Some(std::process::id().to_string());
        assert_eq!(state.daemon(), Some(Claimed::By { process: process.clone() }));
        let error = state.for_a_daemon().unwrap_err();
        assert!(matches!(&error, StateError::InUse { process: other, .. } if *other == process), "{error:?}");
        drop(claim);
        assert_eq!(state.daemon(), None);
        // As who looks has it, for longer.
        let looks = fs::File::open(state.dir().join(DAEMON)).unwrap();
        looks.try_lock_shared().unwrap();
        std::thread::scope(|scope| {
            let claim = scope.spawn(|| state.claim_within(Duration::from_secs(60)));
            pause();
            drop(looks);
            claim.join().unwrap().unwrap();
        });
    }

    #[test]
    fn one_command_at_a_time_has_its_turn_with_a_pool_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::at(dir.path().join("state"));
        let path = state.dir().join("turn-7");
        let turn = state.turn(7).unwrap();
        let error = state.turn(7).unwrap_err();
        assert_eq!(error.to_string(), format!("another command has it (process {})", std::process::id()));
        drop(state.turn(8).unwrap());
        drop(turn);
        assert!(!path.exists());
        // One that was killed leaves its file.
        fs::write(&path, "1\n").unwrap();
        let has_waited = fs::File::options().write(true).open(&path).unwrap();
        let turn = state.turn(7).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
        drop(turn);
        // The lock of a file that is gone keeps nobody out.
        has_waited.try_lock().unwrap();
        drop(state.turn(7).unwrap());
    }

    /// On a file server it stays under another name while somebody has it open: who had waited for it had a turn with it, beside
    /// the next one, and removed that one's file when it was over.
    #[test]
    fn the_turn_of_a_command_that_ended_is_nobodys_although_its_file_is_there_under_another_name() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::at(dir.path());
        let (path, aside) = (dir.path().join("turn-7"), dir.path().join(".nfs7"));
        let turn = state.turn(7).unwrap();
        assert!(is_still(&turn.file, &path));
        fs::rename(&path, &aside).unwrap();
        assert_eq!(turn.file.metadata().unwrap().nlink(), 1);
        assert!(!is_still(&turn.file, &path), "there is none");
        let next = state.turn(7).unwrap();
        assert!(!is_still(&turn.file, &path) && is_still(&next.file, &path), "it is another's");
        drop(turn);
        assert!(is_still(&next.file, &path), "it stays");
        drop(next);
        assert!(!path.exists());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn the_only_worker_goes_on_while_a_task_waits_for_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let held = lock(dir.path()).unwrap();
        let path = dir.path().to_owned();
        let waits = tokio::spawn(async move { lock_within(&path, Duration::from_secs(60)).is_ok() });
        // Another task gives it back: without another worker it would never run.
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(200)).await;
            drop(held);
        });
        assert!(waits.await.unwrap());
    }
}
