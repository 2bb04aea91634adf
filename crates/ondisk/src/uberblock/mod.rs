//! The uberblock: the one structure written in place, and the root of everything else.
//!
//! Committing a transaction group means writing one of these; the ring of old ones is the history a
//! crash or a rewind falls back to. Which is best is a comparison, [`Uberblock::rank`]; whether one is
//! intact is a checksum ([`crate::label::Region`] says over what).
//!
//! Heartbeats (MMP) rewrite the newest uberblock with another time stamp and sequence number, so that
//! a second host can see that the first is alive.
//!
//! Facts: docs/format/labels.md §3.

use crate::blkptr::BlkPtr;
use crate::{Error, Order, Reader, Reason, Result, Writer};

const STRUCTURE: &str = "uberblock";

/// First word of every uberblock.
pub const MAGIC: u64 = 0x00ba_b10c;
/// Marks the heartbeat fields as valid.
pub const MMP_MAGIC: u64 = 0xa11c_ea11;
/// Version of every pool with feature flags.
pub const VERSION_FEATURES: u64 = 5000;

/// Heartbeat (multihost) fields, as written by OpenZFS 0.8 and newer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Mmp {
    /// Nanoseconds between recent heartbeats; 0 means multihost is off.
    pub delay_ns: u64,
    /// The packed configuration word.
    pub config: u64,
}

impl Mmp {
    /// Heartbeats are being written.
    #[must_use]
    pub const fn is_active(self) -> bool {
        self.delay_ns != 0
    }

    const fn valid(self, bit: u64) -> bool {
        self.config & bit != 0
    }

    /// Milliseconds between heartbeats of this host.
    #[must_use]
    pub const fn interval_ms(self) -> Option<u64> {
        if self.valid(1) { Some((self.config >> 8) & 0xff_ffff) } else { None }
    }

    /// Counts heartbeats within one second.
    #[must_use]
    pub const fn sequence(self) -> Option<u16> {
        if self.valid(2) { Some((self.config >> 32) as u16) } else { None }
    }

    /// Missed intervals after which the host stops writing; 0 never.
    #[must_use]
    pub const fn fail_intervals(self) -> Option<u16> {
        if self.valid(4) { Some((self.config >> 48) as u16) } else { None }
    }

    /// A configuration word with all three fields; `interval_ms` is cut to 24 bits.
    #[must_use]
    pub const fn pack(interval_ms: u64, sequence: u16, fail_intervals: u16) -> u64 {
        7 | (interval_ms & 0xff_ffff) << 8 | (sequence as u64) << 32 | (fail_intervals as u64) << 48
    }
}

/// Progress of a RAIDZ expansion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RaidzReflow(pub u64);

/// Whether the boot area holds a copy of the sectors being moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScratchState {
    /// No expansion has used it.
    Unused,
    /// The affected rows must be read from there.
    Valid,
    /// Done with it: 2 synced, 3 synced on import, 4 synced and reflowing, or a newer number.
    Done(u16),
}

impl RaidzReflow {
    /// Byte offset (as in a DVA) of the next sector to move: everything below is in its new place.
    #[must_use]
    pub const fn offset(self) -> u64 {
        (self.0 & ((1 << 55) - 1)) << 9
    }

    /// Use of the scratch area.
    #[must_use]
    pub const fn scratch(self) -> ScratchState {
        match self.0 >> 55 {
            0 => ScratchState::Unused,
            1 => ScratchState::Valid,
            other => ScratchState::Done(other as u16),
        }
    }
}

/// What makes one uberblock better than another: newer txg, then later time, then later heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// Transaction group.
    pub txg: u64,
    /// Seconds since 1970, UTC.
    pub timestamp: u64,
    /// Heartbeat sequence, 0 without.
    pub mmp_sequence: u16,
}

/// A decoded uberblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uberblock {
    /// Byte order of the host that wrote it (and of its root pointer).
    pub order: Order,
    /// Pool version: 5000 with feature flags.
    pub version: u64,
    /// Transaction group it commits.
    pub txg: u64,
    /// Wrapping sum of the guids of all vdevs, root included.
    pub guid_sum: u64,
    /// Seconds since 1970, UTC.
    pub timestamp: u64,
    /// The meta object set.
    pub rootbp: BlkPtr,
    /// Newest version the writer supports.
    pub software_version: u64,
    /// Heartbeat fields; `None` if the writer had none.
    pub mmp: Option<Mmp>,
    /// In the uberblock kept by a checkpoint: the txg the checkpoint was taken at; else 0.
    pub checkpoint_txg: u64,
    /// Progress of a RAIDZ expansion; 0 on pools never expanded.
    pub raidz_reflow: RaidzReflow,
}

impl Uberblock {
    /// Bytes used of a slot (its trailer not counted).
    pub const BYTES: usize = 216;
    /// Bytes a slot must have: what the oldest pools wrote.
    const BYTES_MIN: usize = 168;

    /// Reads an uberblock; its magic tells the byte order. Fields past the end of `data` read as
    /// zero, as they do in old pools.
    ///
    /// # Errors
    /// Fewer than 168 bytes, no magic in either order (an empty slot, say), or a bad root pointer.
    pub fn decode(data: &[u8]) -> Result<Self> {
        let mut bytes = [0; Self::BYTES];
        let len = data.len().min(Self::BYTES);
        if len < Self::BYTES_MIN {
            return Err(Error::new(STRUCTURE, 0, Reason::Truncated { need: Self::BYTES_MIN, have: len }));
        }
        for (place, byte) in bytes.iter_mut().zip(data) {
            *place = *byte;
        }
        let mut reader = Reader::new(STRUCTURE, &bytes, Order::Little);
        let magic = reader.array()?;
        let Some(order) = Order::of_magic(magic, MAGIC) else {
            return Err(Error::new(STRUCTURE, 0, Reason::BadMagic { found: Order::Little.u64(magic) }));
        };
        let words = Reader::new(STRUCTURE, &bytes, order).words::<{ Self::BYTES / 8 }>()?;
        Self::from_words(&words, order)
    }

    /// From its 27 words: how a checkpoint keeps one in the MOS directory.
    ///
    /// # Errors
    /// Bad magic or root pointer.
    pub fn from_words(words: &[u64; Self::BYTES / 8], order: Order) -> Result<Self> {
        let [magic, version, txg, guid_sum, timestamp, rest @ ..] = words;
        let (root, tail) = rest.split_at(16);
        let (Some(root), Some(tail)) = (root.first_chunk::<16>(), tail.first_chunk::<6>()) else {
            return Err(Error::new(STRUCTURE, 40, Reason::Truncated { need: 176, have: 0 }));
        };
        if *magic != MAGIC {
            return Err(Error::new(STRUCTURE, 0, Reason::BadMagic { found: *magic }));
        }
        let rootbp = BlkPtr::from_words(*root);
        let rootbp = rootbp.map_err(|error| Error { offset: error.offset.saturating_add(40), ..error })?;
        let [software_version, mmp_magic, delay_ns, config, checkpoint_txg, reflow] = *tail;
        Ok(Self {
            order,
            version: *version,
            txg: *txg,
            guid_sum: *guid_sum,
            timestamp: *timestamp,
            rootbp,
            software_version,
            mmp: (mmp_magic == MMP_MAGIC).then_some(Mmp { delay_ns, config }),
            checkpoint_txg,
            raidz_reflow: RaidzReflow(reflow),
        })
    }

    /// The 27 words.
    #[must_use]
    pub fn to_words(&self) -> [u64; Self::BYTES / 8] {
        let head = [MAGIC, self.version, self.txg, self.guid_sum, self.timestamp];
        let mmp = self.mmp.unwrap_or_default();
        let mmp_magic = if self.mmp.is_some() { MMP_MAGIC } else { 0 };
        let tail = [
            self.software_version,
            mmp_magic,
            mmp.delay_ns,
            mmp.config,
            self.checkpoint_txg,
            self.raidz_reflow.0,
        ];
        let all = head.iter().chain(self.rootbp.words()).chain(&tail);
        let mut words = [0; Self::BYTES / 8];
        for (place, word) in words.iter_mut().zip(all) {
            *place = *word;
        }
        words
    }

    /// The bytes, in the uberblock's own order; the caller pads to the slot and adds the trailer.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(Self::BYTES, self.order);
        writer.words(&self.to_words());
        writer.finish()
    }

    /// For choosing the best one.
    #[must_use]
    pub fn rank(&self) -> Rank {
        let mmp_sequence = self.mmp.and_then(Mmp::sequence).unwrap_or(0);
        Rank { txg: self.txg, timestamp: self.timestamp, mmp_sequence }
    }
}

#[cfg(test)]
mod tests;
