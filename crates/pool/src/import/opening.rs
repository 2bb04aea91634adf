//! Opening devices in time. A disk that hangs keeps whoever opens it in the kernel, where no deadline reaches; so it is
//! opened on a thread of its own, and after a while nobody waits for it any more. Where a server of files is away it is enough
//! to look a path up: that is done likewise.
//!
//! That thread may hang for good. Until it is back the same path is not asked for again, or each look for pools would cost
//! another thread.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use disk::{Disk, FileDisk, OpenOptions};
use parking_lot::Mutex;
use tokio::{sync::OwnedMutexGuard, task::spawn_blocking};

use super::{device::ANSWER, scan::Opener};
use crate::vdev::deadline;

/// Whose turn it is to ask for a path.
type Turn = Arc<tokio::sync::Mutex<()>>;

/// Paths that are being opened or looked up, in this process: it is the disk that hangs, whoever asks.
static TURNS: Mutex<BTreeMap<PathBuf, Turn>> = Mutex::new(BTreeMap::new());

/// Opens a file or block device.
///
/// # Errors
/// As [`FileDisk::open`], or that it has not ended for half a minute (`TimedOut`).
pub async fn open_in_time(path: impl AsRef<Path>, options: OpenOptions) -> io::Result<FileDisk> {
    open_within(ANSWER, path.as_ref(), move |path| FileDisk::open(path, options)).await
}

/// Asks the system about a path, without opening what is there.
///
/// # Errors
/// As `look_up`, or that it has not ended for half a minute (`TimedOut`).
pub async fn look_up_in_time<T: Send + 'static>(
    path: &Path,
    look_up: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    look_up_within(ANSWER, path, look_up).await
}

/// The same with another patience.
///
/// # Errors
/// As `look_up`, or that it has not ended for so long (`TimedOut`).
pub async fn look_up_within<T: Send + 'static>(
    patience: Duration,
    path: &Path,
    look_up: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    in_turn(patience, path, "looking for", look_up).await
}

/// As [`open_in_time`], by an opener of disks.
pub(super) async fn open_by(opener: &Opener, path: &Path, patience: Duration) -> io::Result<Arc<dyn Disk>> {
    let opener = Arc::clone(opener);
    open_within(patience, path, move |path| opener(path)).await
}

/// Opens a path by `open`, which may block, on a thread of its own.
async fn open_within<T: Send + 'static>(
    patience: Duration,
    path: &Path,
    open: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    in_turn(patience, path, "opening", open).await
}

/// Asks for a path by `ask`, which may block, on a thread of its own.
async fn in_turn<T: Send + 'static>(
    patience: Duration,
    path: &Path,
    what: &str,
    ask: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let asking = async {
        let turn = turn(path).await;
        let path = path.to_owned();
        // What nobody waits for any more is closed first, and then the path may be asked for again.
        spawn_blocking(move || (ask(&path), turn)).await.map(|(answer, _turn)| answer)
    };
    match deadline::within(asking, patience).await {
        Some(Ok(answer)) => answer,
        Some(Err(error)) => Err(io::Error::other(error)),
        None => {
            let what = format!("{what} it took longer than {patience:?}");
            Err(io::Error::new(io::ErrorKind::TimedOut, what))
        }
    }
}

async fn turn(path: &Path) -> OwnedMutexGuard<()> {
    let turn = {
        let mut turns = TURNS.lock();
        // Paths that nobody asks for any more.
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        Arc::clone(turns.entry(path.to_owned()).or_default())
    };
    turn.lock_owned().await
}

#[cfg(test)]
mod tests {
    use std::sync::{
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc::channel,
    };

    use super::*;

    /// A disk that hung took a thread of the runtime with it, and each further look another one.
    #[tokio::test]
    async fn an_opening_that_hangs_is_waited_for_a_while_and_not_begun_again() {
        let (path, patience) = (Path::new("/nowhere/that/hangs"), Duration::from_millis(50));
        let begun = Arc::new(AtomicUsize::new(0));
        let ((answers, hangs), (told, runs)) = (channel::<()>(), tokio::sync::oneshot::channel());
        let counted = Arc::clone(&begun);
        let hanging = open_within(patience, path, move |_| {
            counted.fetch_add(1, Relaxed);
            told.send(()).unwrap();
            let _unblocked = hangs.recv_timeout(Duration::from_secs(60));
            Ok(())
        });
        assert_eq!(hanging.await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        runs.await.unwrap();
        let again = async |patience| {
            let begun = Arc::clone(&begun);
            open_within(patience, path, move |_| Ok(begun.fetch_add(1, Relaxed))).await
        };
        let late = again(patience).await.unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        open_within(ANSWER, Path::new("/nowhere/else"), |_| Ok(())).await.unwrap();
        assert_eq!(begun.load(Relaxed), 1, "the path that hangs was left alone");
        drop(answers);
        assert_eq!(again(ANSWER).await.unwrap(), 1, "it is back");
    }
}
