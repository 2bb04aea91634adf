//! Makes huge pages of usual ones, beside everything: where the machine's memory is in pieces a huge page costs milliseconds of
//! compaction, which no request is to wait for.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// One part in so many of a processor's time, at most. A gigabyte takes ten seconds where memory is not in pieces.
const SHARE: u32 = 32;
/// Pages at a time.
const AT_ONCE: usize = 8;
/// How long nothing is done when nothing was left.
const REST: Duration = Duration::from_secs(5);

/// Never ends.
pub(super) async fn collapse() {
    loop {
        let since = Instant::now();
        let some = || (0..AT_ONCE).all(|_| disk::collapse_one());
        let is_more = tokio::task::spawn_blocking(some).await.unwrap_or(false);
        sleep(if is_more { since.elapsed() * (SHARE - 1) } else { REST }).await;
    }
}
