//! Memory for blocks: how much of it may wait to be used again, and in which pages it lies.

use std::time::Duration;

use ::memory::plan::Terms;
use tokio::time::{Instant, sleep};

/// Whoever may have so much memory has blocks in huge pages: with less, what may be idle is too little for what comes and goes
/// with transaction groups, and pages would be split and made again all the time (`docs/decisions/0021`).
const HUGE_FROM: u64 = 16 << 30;
/// One part in so many of a processor's time, at most. A gigabyte takes ten seconds where memory is not in pieces.
const SHARE: u32 = 32;
/// Pages at a time.
const AT_ONCE: usize = 8;
/// How long nothing is done when nothing was left.
const REST: Duration = Duration::from_secs(5);

/// Buffers of this process are for one that has these terms from now on. Whether they lie in huge pages as far as the system has
/// some.
pub fn furnish(terms: &Terms) -> bool {
    let addresses = usize::try_from(terms.limit.saturating_mul(4)).unwrap_or(usize::MAX);
    let has_huge_pages = terms.limit >= HUGE_FROM && disk::use_huge_pages(addresses);
    allow_idle(terms);
    has_huge_pages
}

/// What these terms allow may be idle.
pub(super) fn allow_idle(terms: &Terms) {
    disk::set_idle_max(usize::try_from(terms.idle()).unwrap_or(usize::MAX));
}

/// Makes huge pages of usual ones, beside everything: where the machine's memory is in pieces a huge page costs milliseconds of
/// compaction, which no request is to wait for. Never ends.
pub(super) async fn collapse() {
    loop {
        let since = Instant::now();
        let some = || (0..AT_ONCE).all(|_| disk::collapse_one());
        let is_more = tokio::task::spawn_blocking(some).await.unwrap_or(false);
        sleep(if is_more { since.elapsed() * (SHARE - 1) } else { REST }).await;
    }
}
