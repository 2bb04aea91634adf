//! Reads under way, so that who misses a block that somebody is reading waits for that read instead of doing it again.
//!
//! ```text
//!   miss ─▶ join ─┬─ nobody reads it: lead ─▶ read ─▶ cache ─▶ landed ─▶ the answer to all who follow
//!                 └─ somebody does: follow ─▶ the answer; or the leader is gone: join again; or it takes too long
//! ```
//! A leader that is dropped, because its client went away, wakes those who follow, and one of them leads. One that is
//! kept and not polled, because whoever it reads for is busy with a slow connection, holds up others for
//! [`PATIENCE`] at most: then they read by themselves. So they do when what was read ahead could not be read. Hits never
//! come here.

use std::{pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::{sync::Notify, time::timeout};

use crate::{
    cache::{Access, Key},
    error::BlockError,
};

/// What a read comes to.
pub(super) type Answer = Result<Bytes, BlockError>;

/// How long another's read is waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// Parts with a lock of their own, a power of two.
const SHARDS: usize = 64;

/// The reads of one pool.
#[derive(Debug)]
pub(super) struct Flights {
    /// A few in each: they are looked through.
    shards: [Mutex<Vec<(Key, Following)>>; SHARDS],
}

/// Another's read.
pub(super) type Following = Arc<Flight>;

/// A read under way. Those who wait are woken in the order in which they came: simulations repeat themselves.
#[derive(Debug, Default)]
pub(super) struct Flight {
    state: Mutex<State>,
    over: Notify,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    UnderWay,
    Landed(Answer),
    Gone,
}

/// Who reads a block.
pub(super) enum Turn<'a> {
    /// The caller. It says so when it is done.
    Lead(Lead<'a>),
    /// Somebody else.
    Follow(Following),
}

/// A read that others may wait for.
#[derive(Debug)]
pub(super) struct Lead<'a> {
    flights: &'a Flights,
    key: Key,
    flight: Arc<Flight>,
}

impl Default for Flights {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()) }
    }
}

impl Flights {
    pub(super) fn join(&self, key: Key) -> Turn<'_> {
        let mut shard = self.shard(&key).lock();
        if let Some((_, following)) = shard.iter().find(|(other, _)| *other == key) {
            return Turn::Follow(Arc::clone(following));
        }
        let flight = Arc::<Flight>::default();
        shard.push((key, Arc::clone(&flight)));
        Turn::Lead(Lead { flights: self, key, flight })
    }

    fn shard(&self, key: &Key) -> &Mutex<Vec<(Key, Following)>> {
        // Not by the lowest bits, which neighbours share: they are read together.
        &self.shards[(key.id >> 8) as usize % SHARDS]
    }
}

impl Lead<'_> {
    /// The read is over, and what is worth keeping is in the cache.
    pub(super) fn landed(self, answer: &Answer, access: Access) {
        // What nobody asked for is not waited for: who does ask finds out by himself.
        if answer.is_err() && access == Access::Prefetch {
            return;
        }
        // One is in the list. Who comes between this look and the end asks the cache.
        if Arc::strong_count(&self.flight) > 2 {
            *self.flight.state.lock() = State::Landed(answer.clone());
        }
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let mut shard = self.flights.shard(&self.key).lock();
        if let Some(at) = shard.iter().position(|(key, _)| *key == self.key) {
            shard.swap_remove(at);
        }
        drop(shard);
        let mut state = self.flight.state.lock();
        if matches!(*state, State::UnderWay) {
            *state = State::Gone;
        }
        drop(state);
        self.flight.over.notify_waiters();
    }
}

/// How waiting for another's read ended.
pub(super) enum Followed {
    Answer(Answer),
    /// It was given up.
    Gone,
    /// It takes too long.
    Late,
}

/// Waits for another's read.
pub(super) async fn follow(flight: Following) -> Followed {
    let end = async {
        loop {
            let mut over = pin!(flight.over.notified());
            over.as_mut().enable();
            match &*flight.state.lock() {
                State::UnderWay => {}
                State::Landed(answer) => return Followed::Answer(answer.clone()),
                State::Gone => return Followed::Gone,
            }
            over.await;
        }
    };
    timeout(PATIENCE, end).await.unwrap_or(Followed::Late)
}
