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
/// How long nothing is done when nothing was left, or none of those that were tried could be made.
const REST: Duration = Duration::from_secs(5);
/// And at most: twice as long each time that none could be made.
const REST_MOST: Duration = Duration::from_secs(300);

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
    collapse_with(disk::collapse_one).await;
}

/// The same; `one` makes a page, and says whether it could, or that nothing is left.
async fn collapse_with(one: impl Fn() -> Option<bool> + Clone + Send + 'static) {
    let mut rest = REST;
    loop {
        let since = Instant::now();
        let one = one.clone();
        let some = move || (0..AT_ONCE).map_while(|_| one()).collect::<Vec<_>>();
        let tried = tokio::task::spawn_blocking(some).await.unwrap_or_default();
        let share = since.elapsed() * (SHARE - 1);
        if tried.contains(&true) {
            rest = REST;
            let is_more = tried.len() == AT_ONCE;
            sleep(if is_more { share } else { rest }).await;
        } else {
            sleep(rest.max(share)).await;
            // On the way, too: a pass over all of a large cache, each of them refused, would take an hour.
            if !tried.is_empty() {
                rest = REST_MOST.min(2 * rest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    };

    use tokio::task::JoinSet;

    use super::*;

    /// The kernel was asked again and again, and an idle daemon took up to a 32nd of a processor.
    #[tokio::test(start_paused = true)]
    async fn huge_pages_that_cannot_be_made_are_tried_ever_more_rarely_until_one_can() {
        let (tried, has_one) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let one = {
            let (tried, has_one) = (Arc::clone(&tried), Arc::clone(&has_one));
            move || {
                tried.fetch_add(1, Relaxed);
                Some(has_one.swap(false, Relaxed))
            }
        };
        // It ends with this.
        let mut beside = JoinSet::new();
        beside.spawn(collapse_with(one));
        let times = || tried.swap(0, Relaxed) / AT_ONCE;
        // After 0, 5, 15, 35, 75, 155, 315, 615 and 915 s.
        sleep(Duration::from_secs(1000)).await;
        assert_eq!(times(), 9);
        // After 1215 s one is made, and the next ones are not: at once, and 5, 15, 35 and 75 s later.
        has_one.store(true, Relaxed);
        sleep(Duration::from_secs(300)).await;
        assert_eq!(times(), 6);
    }
}
