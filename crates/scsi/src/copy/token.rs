//! ROD tokens: 512 bytes that stand for what some blocks held at one moment (SPC-4 §5.16.6, table "ROD token").
//!
//! ```text
//!   type 4 │ 2 │ length 2 │ identifier 8 │ creator: E4h descriptor 32 │ bytes 16 │ 32 │ device type data 32 │ secret 32 │ 0 …
//! ```
//!
//! A token is a bearer's: whoever has it may read what it stands for, so it holds 256 random bits, is compared whole
//! and in constant time, and ends when it was not used for a while ([`InUse`]). Nothing is copied when it is made: it is of the
//! type "point in time, change vulnerable", and the first write to its blocks revokes it *before* a byte changes
//! (`LogicalUnit::touched`). What changes a volume without coming by its logical unit is not seen here: that it became smaller
//! is, when somebody looks at its size (`LogicalUnit::geometry`); who rolls it back says so (`LogicalUnit::revoke_tokens`); and
//! who offers it to writers over NBD as well has two writers anyway.
//!
//! There are so many and no more. When one more is wanted, the oldest goes of the initiator that has most: who makes tokens
//! without end loses its own.

use std::{
    collections::BTreeMap,
    ops::Deref,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::{identity::Naa, sense::Sense, unit::LogicalUnit};

/// Length of a token, in bytes.
pub(crate) const TOKEN_LEN: usize = 512;
/// Seconds a token lives without being used, unless its maker asks otherwise.
pub(crate) const TIMEOUT: u32 = 60;
/// Seconds one may ask for at most.
pub(crate) const TIMEOUT_MAX: u32 = 600;
/// Tokens at most; each is less than a KiB besides its ranges.
const TOKENS_MAX: usize = 1024;

const POINT_IN_TIME_CHANGE_VULNERABLE: u32 = 0x0080_0001;
/// The token that stands for any number of zeroes.
const ZERO: u32 = 0xffff_0001;

/// A stretch of a volume, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl Range {
    fn end(self) -> u64 {
        self.offset.saturating_add(self.len)
    }
}

/// What a token stands for.
#[derive(Debug)]
pub(crate) struct Rod {
    /// The initiator that had it made.
    owner: Box<str>,
    /// Counts tokens as they are made.
    number: u64,
    token: Box<[u8; TOKEN_LEN]>,
    /// The unit that made it and sees what happens to its blocks; another one over the same volume does not.
    pub(crate) unit: Weak<LogicalUnit>,
    pub(crate) ranges: Vec<Range>,
    pub(crate) len: u64,
    timeout: Duration,
    life: Mutex<Life>,
    revoked: AtomicBool,
}

/// How long a token lives.
#[derive(Debug)]
struct Life {
    /// Copies under way, and the making of it.
    copies: usize,
    /// When it ends, unless there are any.
    expires: Instant,
}

impl Life {
    fn is_over(&self) -> bool {
        self.copies == 0 && Instant::now() >= self.expires
    }
}

impl Rod {
    /// Whether it still stands for what it did.
    pub(crate) fn valid(&self) -> Result<(), Sense> {
        if self.revoked.load(Ordering::Acquire) { Err(Sense::TOKEN_REVOKED) } else { Ok(()) }
    }

    /// Whether it stands for nothing any more, for ever.
    pub(crate) fn is_over(&self) -> bool {
        self.revoked.load(Ordering::Acquire) || self.life().is_over()
    }

    fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that it stands for are about to change.
    pub(crate) fn touched(&self, offset: u64, len: u64) {
        let end = offset.saturating_add(len);
        if self.ranges.iter().any(|range| range.offset < end && offset < range.end()) {
            self.revoked.store(true, Ordering::Release);
        }
    }

    pub(crate) fn revoke(&self) {
        self.revoked.store(true, Ordering::Release);
    }

    pub(crate) fn token(&self) -> Box<[u8; TOKEN_LEN]> {
        self.token.clone()
    }
}

/// What a token stands for, for a copy, or while it is made: as long as this is there the token does not expire, however long
/// that takes. Its unit would forget it otherwise, and let the copy go on when its blocks change.
#[derive(Debug)]
pub(crate) struct InUse(Arc<Rod>);

impl InUse {
    pub(super) fn new(rod: Arc<Rod>) -> Result<Self, Sense> {
        {
            let mut now = rod.life();
            if now.is_over() {
                return Err(Sense::TOKEN_EXPIRED);
            }
            now.copies = now.copies.saturating_add(1);
        }
        let used = Self(rod);
        used.valid()?;
        Ok(used)
    }
}

impl Deref for InUse {
    type Target = Rod;

    fn deref(&self) -> &Rod {
        &self.0
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let mut now = self.0.life();
        now.copies = now.copies.saturating_sub(1);
        now.expires = after(self.0.timeout);
    }
}

/// What a token that was presented stands for.
pub(crate) enum Presented {
    Zeroes,
    Rod(InUse),
}

/// The tokens of a service.
#[derive(Debug, Default)]
pub(crate) struct Tokens(Mutex<Made>);

#[derive(Debug, Default)]
struct Made {
    /// By the identifiers in them.
    rods: BTreeMap<u64, Arc<Rod>>,
    /// How many were made.
    count: u64,
}

impl Made {
    /// Makes room for one more.
    fn make_room(&mut self) {
        if self.rods.len() < TOKENS_MAX {
            return;
        }
        self.rods.retain(|_, rod| !rod.is_over());
        if self.rods.len() < TOKENS_MAX {
            return;
        }
        let mut owners: BTreeMap<&str, (usize, u64, u64)> = BTreeMap::new();
        for (id, rod) in &self.rods {
            let (has, oldest, which) = owners.entry(&rod.owner).or_insert((0, rod.number, *id));
            *has = has.saturating_add(1);
            if rod.number < *oldest {
                (*oldest, *which) = (rod.number, *id);
            }
        }
        let most = owners.values().max_by_key(|(has, ..)| *has).map(|(_, _, id)| *id);
        // Who copies with it already may finish.
        drop(most.and_then(|id| self.rods.remove(&id)));
    }
}

/// What a new token is made of.
pub(crate) struct Maker<'a> {
    /// The initiator that has it made.
    pub(crate) owner: &'a str,
    pub(crate) name: Naa,
    pub(crate) unit: Weak<LogicalUnit>,
    pub(crate) block_size: u32,
    pub(crate) ranges: Vec<Range>,
    /// Seconds; 0: the default.
    pub(crate) timeout: u32,
    pub(crate) random: &'a dyn Fn(&mut [u8]),
}

impl Tokens {
    fn lock(&self) -> MutexGuard<'_, Made> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn make(&self, maker: Maker<'_>) -> Result<Arc<Rod>, Sense> {
        let len = maker.ranges.iter().fold(0_u64, |sum, range| sum.saturating_add(range.len));
        let mut all = self.lock();
        all.make_room();
        let (mut id, mut secret) = ([0; 8], [0; 32]);
        loop {
            (maker.random)(&mut id);
            if !all.rods.contains_key(&u64::from_be_bytes(id)) {
                break;
            }
        }
        (maker.random)(&mut secret);
        let mut token = Vec::with_capacity(TOKEN_LEN);
        token.extend(POINT_IN_TIME_CHANGE_VULNERABLE.to_be_bytes());
        token.extend([0, 0, 0x01, 0xf8]); // 504 bytes follow
        token.extend(id);
        // The creator: an identification descriptor like those of EXTENDED COPY.
        token.extend([super::lists::IDENTIFICATION, 0, 0, 0, 0x01, 0x03, 0, 16]);
        token.extend(maker.name);
        token.extend([0; 4]);
        token.extend([0]);
        token.extend(maker.block_size.to_be_bytes().get(1..).unwrap_or(&[]));
        token.extend(u128::from(len).to_be_bytes());
        token.extend([0; 32]);
        token.extend(maker.block_size.to_be_bytes());
        token.extend([0; 28]);
        token.extend(secret);
        token.resize(TOKEN_LEN, 0);
        let token = token.into_boxed_slice().try_into().map_err(|_| Sense::INTERNAL_FAILURE)?;
        let seconds = if maker.timeout == 0 { TIMEOUT } else { maker.timeout.min(TIMEOUT_MAX) };
        let timeout = Duration::from_secs(u64::from(seconds));
        all.count = all.count.wrapping_add(1);
        let rod = Arc::new(Rod {
            owner: maker.owner.into(),
            number: all.count,
            token,
            unit: maker.unit,
            ranges: maker.ranges,
            len,
            timeout,
            life: Mutex::new(Life { copies: 0, expires: after(timeout) }),
            revoked: AtomicBool::new(false),
        });
        all.rods.insert(u64::from_be_bytes(id), Arc::clone(&rod));
        Ok(rod)
    }

    /// What a token stands for, if it is one of ours and its time is not over.
    pub(crate) fn present(&self, token: &[u8; TOKEN_LEN]) -> Result<Presented, Sense> {
        let (kind, rest) = token.split_first_chunk::<4>().ok_or(Sense::TOKEN_CORRUPT)?;
        if u32::from_be_bytes(*kind) == ZERO {
            return Ok(Presented::Zeroes);
        }
        let id = rest.get(4..).and_then(<[u8]>::first_chunk).map_or(0, |id| u64::from_be_bytes(*id));
        let rod = self.lock().rods.get(&id).cloned().ok_or(Sense::TOKEN_UNKNOWN)?;
        let differs = token.iter().zip(rod.token.iter()).fold(0, |all, (a, b)| all | (a ^ b));
        if differs != 0 {
            return Err(Sense::TOKEN_CORRUPT);
        }
        InUse::new(rod).map(Presented::Rod)
    }
}

fn after(time: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(time).unwrap_or(now)
}
