//! When a search is worth while, and which devices it leaves at rest: looking at every disk costs a read of each, disks may
//! sleep, and a drive may be away for weeks.
//!
//! All devices are searched for one that is away when the system said that something changed, and else every
//! [`SEARCH_EVERY`]. What was found to be another device then is not read again for [`REST`], unless it can be seen from outside
//! that this may have changed ([`Outside`]). One that did not answer may be any, and is asked each time.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use futures_util::{StreamExt as _, stream};
use parking_lot::Mutex;
use tokio::time::Instant;

/// How often all devices are searched for one that is away, without a word from the system.
pub(super) const SEARCH_EVERY: Duration = Duration::from_secs(30);
/// How long what was found to be another device is not read from again: disks may sleep, and a drive may be away for weeks.
const REST: Duration = Duration::from_secs(3600);
/// Devices looked at together in a search.
const LOOKED_AT_ONCE: usize = 16;

/// What searches for the devices of a pool have found so far.
#[derive(Debug, Default)]
pub(super) struct Looks {
    /// Device → number of changes, and when it was last searched for everywhere.
    searched: Mutex<BTreeMap<u64, (u64, Instant)>>,
    /// Which devices were read, and what they were.
    read: Mutex<BTreeMap<PathBuf, Look>>,
}

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
pub(super) struct Outside {
    /// How often devices came or went.
    changes: u64,
    node: [u64; 3],
    times: [i64; 4],
    /// Size of a disk, and the kernel's number of it or of the disk that it is a part of.
    medium: [Option<String>; 3],
}

impl Outside {
    /// None of what is not there.
    pub(super) fn of(path: &Path, changes: u64) -> Option<Self> {
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
    /// Whether a device is to be searched for everywhere. Then it is taken for searched for.
    pub(super) fn is_search_due(&self, guid: u64, changes: u64) -> bool {
        let now = Instant::now();
        let mut searched = self.searched.lock();
        let last = searched.get(&guid);
        if last.is_some_and(|last| last.0 == changes && now.duration_since(last.1) < SEARCH_EVERY) {
            return false;
        }
        searched.insert(guid, (changes, now));
        true
    }

    /// The first of these devices to have this guid by its `label`. Those that are known to have another are not read. Some
    /// are looked at together: one that hangs on being opened would end each search at the same place.
    pub(super) async fn first_with<L>(
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
        let looks = paths.into_iter().map(|path| {
            let (outside, at, asked) = (Outside::of(&path, changes), Instant::now(), label(path.clone()));
            async move {
                let found = asked.await;
                if let (Some(outside), Ok(guid)) = (outside, &found) {
                    self.note(path.clone(), outside, *guid, at);
                }
                (path, found)
            }
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

    /// Whether that was read there, twice: once it may have been about to be written.
    pub(super) fn is_another(&self, path: &Path, guid: u64, outside: Option<&Outside>) -> bool {
        self.read.lock().get(path).is_some_and(|look| {
            let (first, last) = look.span;
            look.guid != Some(guid)
                && outside == Some(&look.outside)
                && last.duration_since(first) >= SEARCH_EVERY
                && last.elapsed() < REST
        })
    }

    pub(super) fn note(&self, path: PathBuf, outside: Outside, guid: Option<u64>, at: Instant) {
        let mut looks = self.read.lock();
        // Of names that are no more.
        looks.retain(|_, look| look.span.1.elapsed() < 2 * REST);
        let before = looks.get(&path).filter(|look| look.outside == outside && look.guid == guid);
        let first = before.map_or(at, |look| look.span.0);
        looks.insert(path, Look { guid, outside, span: (first, at) });
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

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
        let found = timeout(Duration::from_secs(1), Looks::default().first_with(7, paths, 0, answer)).await;
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
}
