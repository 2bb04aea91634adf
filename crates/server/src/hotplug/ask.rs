//! Asks a device what it is, without disturbing whoever has it, and without asking twice.
//!
//! A name may lead to another pool's disk by now: so its label is read before anything is locked, on a device that is open for
//! reading only. (udev has the kernel say that a device changed when somebody closes it who could have written.)
//!
//! What a device does not answer goes on in the kernel, with its memory, long after nobody waits any more. So a device is asked
//! for one sector first, and for nothing else before it has given that; and for that by one at a time, whoever asks.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use disk::{Disk, IoBuf, OpenOptions};
use parking_lot::Mutex;
use pool::import::{Device, look_up_within, open_in_time};
use tokio::time::timeout;

/// How long a path may take to be looked up: less than whoever asks for a device waits, who would not hear of another place.
const LOOK_UP: Duration = Duration::from_secs(2);
/// How long a device may take to give its first sector.
const ANSWER: Duration = Duration::from_secs(30);
/// Bytes of that.
const SECTOR: usize = 4096;

/// Whose turn it is to ask a device.
type Turn = Arc<tokio::sync::Mutex<()>>;

/// Devices that are being asked, in this process: it is the disk that hangs, whoever asks.
static TURNS: Mutex<BTreeMap<PathBuf, Turn>> = Mutex::new(BTreeMap::new());

/// Asks the system about a path, which may lead to a server of files that is away.
pub(super) async fn look_up<T: Send + 'static>(
    path: &Path,
    ask: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    look_up_within(LOOK_UP, path, ask).await
}

/// The guid a device's label claims, without locking it.
pub(super) async fn label(path: &Path) -> io::Result<Option<u64>> {
    Ok(look(path).await?.0)
}

/// The same, and the device it was read from.
pub(super) async fn look(path: &Path) -> io::Result<(Option<u64>, Arc<dyn Disk>)> {
    let disk = open_to_look(path).await?;
    let device = Device::read(Arc::clone(&disk)).await?;
    Ok((device.and_then(|device| device.config_at(u64::MAX)?.u64("guid")), disk))
}

/// Opens a device that is only looked at, once it has answered. It is not locked.
pub(super) async fn open_to_look(path: &Path) -> io::Result<Arc<dyn Disk>> {
    let to_look = OpenOptions { read_only: true, ..OpenOptions::default() };
    let disk: Arc<dyn Disk> = Arc::new(open_in_time(path, to_look).await?);
    answered(path, &disk).await?;
    Ok(disk)
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

#[cfg(test)]
mod tests {
    use disk::{Effect, Fault, FaultDisk, MemDisk, On};

    use super::*;

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
}
