//! Reads under way, so that who misses a block that somebody is reading waits for that read instead of doing it again.
//!
//! ```text
//!   miss ─▶ join ─┬─ nobody reads it: lead ─▶ read ─▶ cache ─▶ landed ─▶ the answer to all who follow
//!                 └─ somebody does: follow ─▶ the answer; or the leader is gone: join again; or it takes too long
//! ```
//! A leader that is dropped, because its client went away, wakes those who follow, and one of them leads. One that is
//! kept and not polled, because whoever it reads for is busy with a slow connection, holds up others for
//! [`PATIENCE`] at most: then they read by themselves. Hits never come here.

use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::{sync::watch, time::timeout};

use crate::{cache::Key, error::BlockError};

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

/// Waits for another's read.
pub(super) type Following = watch::Receiver<Option<Answer>>;

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
    answer: watch::Sender<Option<Answer>>,
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
            return Turn::Follow(following.clone());
        }
        let (answer, following) = watch::channel(None);
        shard.push((key, following));
        Turn::Lead(Lead { flights: self, key, answer })
    }

    fn shard(&self, key: &Key) -> &Mutex<Vec<(Key, Following)>> {
        &self.shards[key.id as usize % SHARDS]
    }
}

impl Lead<'_> {
    /// The read is over, and what is worth keeping is in the cache.
    pub(super) fn landed(self, answer: &Answer) {
        // One receiver is in the list.
        if self.answer.receiver_count() > 1 {
            self.answer.send_replace(Some(answer.clone()));
        }
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let mut shard = self.flights.shard(&self.key).lock();
        if let Some(at) = shard.iter().position(|(key, _)| *key == self.key) {
            shard.swap_remove(at);
        }
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
pub(super) async fn follow(mut following: Following) -> Followed {
    match timeout(PATIENCE, following.wait_for(Option::is_some)).await {
        Ok(Ok(answer)) => answer.clone().map_or(Followed::Gone, Followed::Answer),
        Ok(Err(_)) => Followed::Gone,
        Err(_) => Followed::Late,
    }
}
