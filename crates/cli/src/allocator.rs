//! The allocator of the program: jemalloc, which gives memory back by itself, and at once when it is told to.
//!
//! A cache frees small pieces all over its memory. What an allocator keeps of that is memory that nobody has and the
//! limit is charged with. Why this one, and what was measured: docs/decisions/0015-memory.md.

use server::governor::Allocator;
use tikv_jemalloc_ctl::{Access as _, AsName as _, arenas, background_thread, epoch, stats};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// How long freed pages are kept for the next who wants some, in milliseconds: what jemalloc would do by itself. A
/// transaction group frees what the next one takes, a few seconds later: at 500 ms a stream of writes had two and a half
/// times the page faults of 5 s.
const KEPT_MS: isize = 10_000;
/// The same while memory is short.
const KEPT_SHORT_MS: isize = 500;

/// What the daemon knows of it.
#[derive(Debug)]
pub(crate) struct Jemalloc(());

impl Jemalloc {
    /// Makes it give back what is not used, without being asked. For a process that stays.
    pub(crate) fn for_a_daemon() -> Self {
        // Refused only where it was built without: then it gives back when somebody allocates or frees.
        let _as_it_is = background_thread::write(true);
        let _as_it_is = b"arenas.dirty_decay_ms\0".name().write(KEPT_MS);
        decay(KEPT_MS);
        Self(())
    }
}

/// How long each arena keeps pages; with 0 it gives all of them back now.
fn decay(milliseconds: isize) {
    for arena in 0..arenas::narenas::read().unwrap_or(0) {
        // An arena that nobody has used yet is not there.
        let _none = format!("arena.{arena}.dirty_decay_ms\0").name().write(milliseconds);
    }
}

impl Allocator for Jemalloc {
    fn name(&self) -> &'static str {
        "jemalloc"
    }

    fn in_use(&self) -> Option<(u64, u64)> {
        epoch::advance().ok()?;
        Some((stats::allocated::read().ok()? as u64, stats::resident::read().ok()? as u64))
    }

    fn release(&self) {
        decay(0);
        decay(KEPT_SHORT_MS);
    }

    fn relax(&self) {
        decay(KEPT_MS);
    }
}
