//! The clock that answers carry whose numbers only go up, and when it began: who asks twice knows how much time is between, and
//! whether it was the same daemon.

use std::{sync::LazyLock, time::SystemTime};

use tokio::time::Instant;

/// By the clock that only goes up, and by the machine's: nanoseconds since 1970.
static START: LazyLock<(Instant, u64)> = LazyLock::new(|| (Instant::now(), since_1970()));

/// Nanoseconds since 1970: what tells two beginnings apart.
pub(crate) fn since_1970() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    disk::nanos(since)
}

/// It begins, if it has not. At the start of a daemon: all that it counts happened since.
pub(crate) fn start() {
    let _began: u64 = started();
}

/// When that was, in nanoseconds since 1970: another daemon's is another.
pub(crate) fn started() -> u64 {
    START.1
}

/// Nanoseconds since then.
pub(crate) fn nanos() -> u64 {
    disk::nanos(START.0.elapsed())
}
