//! Many seeds, played on all cores.

use std::{
    panic::resume_unwind,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// Plays `count` seeds from `first` on, until one fails.
pub(crate) fn play_all(first: u64, count: u64, play: impl Fn(u64) + Copy + Send + 'static) {
    let next = Arc::new(AtomicU64::new(first));
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let worker = || {
            let next = Arc::clone(&next);
            tokio::task::spawn_blocking(move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        return;
                    }
                    play(seed);
                }
            })
        };
        let workers: Vec<_> = (0..cores).map(|_| worker()).collect();
        for worker in workers {
            if let Err(error) = worker.await {
                // The others need not go on.
                next.store(u64::MAX / 2, Ordering::Relaxed);
                resume_unwind(error.into_panic());
            }
        }
    });
    runtime.shutdown_timeout(Duration::from_secs(60));
}
