//! The runtime all commands and the daemon run on.

use std::io;

use tokio::runtime::{Builder, Runtime};

/// Threads for what may block. They are made when all there are have something to do, and whoever uses them bounds himself:
/// a disk without io_uring (in most containers) to 32. As they are one supply for all pools, a bound below what a shelf of
/// disks that hang can hold would keep the disks of sound pools from being asked: they would seem to hang as well.
const BLOCKING_THREADS: usize = 8192;

/// A new one.
pub(crate) fn new() -> io::Result<Runtime> {
    Builder::new_multi_thread().enable_all().max_blocking_threads(BLOCKING_THREADS).build()
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Arc, RwLock},
        time::Duration,
    };

    use tokio::time::timeout;

    use super::*;

    /// Found by reading: sixteen disks that hung held all 512 threads there were, nothing was heard of the disks of other
    /// pools any more, and those were taken for failed.
    #[test]
    fn a_shelf_of_disks_that_hang_leaves_threads_for_others() {
        let hangs = Arc::new(RwLock::new(()));
        let runtime = new().unwrap();
        let until_then = hangs.write().unwrap();
        for _ in 0..32 * 32 {
            let hangs = Arc::clone(&hangs);
            runtime.spawn_blocking(move || drop(hangs.read()));
        }
        let other = runtime.spawn_blocking(|| 7);
        let other = runtime.block_on(async { timeout(Duration::from_secs(30), other).await });
        drop(until_then);
        assert_eq!(other.expect("it gets a thread").unwrap(), 7);
    }
}
