//! The clock that answers carry whose numbers only go up: who asks twice knows how much time is between, and whether it was
//! the same daemon.

use std::sync::LazyLock;

use tokio::time::Instant;

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// It begins, if it has not. At the start of a daemon: one that began with the first question would seem to be older than one
/// that was started before it and asked later.
pub(crate) fn start() {
    let _began: Instant = *START;
}

/// Nanoseconds since then.
pub(crate) fn nanos() -> u64 {
    u64::try_from(START.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
