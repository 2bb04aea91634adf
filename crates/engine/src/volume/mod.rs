//! A volume that can be written to: what is dirty in memory over what is committed on disk.

use std::{ops::Range, sync::Arc};

use block::Identity;
use bytes::Bytes;
use pool::dmu::Object;

use crate::{dsl::Dirty, txg::Txgs};

/// How a volume's clients are to be treated; from its properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// Bytes.
    pub size: u64,
    /// Bytes of a block.
    pub block: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// `sync` property.
    pub sync: SyncMode,
    /// Bytes of the pool per byte of data at most (copies).
    pub copies: u8,
    /// A block of zeroes may become a hole (compression is not off).
    pub punch_zeroes: bool,
}

/// The `sync` property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMode {
    /// Flush and FUA are durable.
    Standard,
    /// Every write is.
    Always,
    /// Nothing is.
    Disabled,
}

/// A volume open for writing. Implements [`block::BlockVolume`].
#[derive(Debug)]
pub struct LiveVolume {}

impl LiveVolume {
    /// A volume over its committed data object.
    pub fn new(
        _dataset: u64,
        _identity: Identity,
        _service: Service,
        _data: Object,
        _txgs: Arc<Txgs>,
    ) -> Arc<Self> {
        todo!("volume")
    }
    /// Its dataset object in the MOS.
    pub fn dataset(&self) -> u64 {
        todo!("volume")
    }
    /// Whether something is dirty in `txg`.
    pub fn is_dirty(&self, _txg: u64) -> bool {
        todo!("volume")
    }
    /// What is to be synced in `txg`, which takes no more changes. It stays readable.
    pub fn dirty(&self, _txg: u64) -> Dirty {
        todo!("volume")
    }
    /// `txg` is on disk: `data` replaces what was read from before, the dirty blocks of `txg` are forgotten.
    pub fn committed(&self, _txg: u64, _data: Object) {
        todo!("volume")
    }
    /// Another size, name or way to treat clients; takes effect at once.
    pub fn update(&self, _identity: Identity, _service: Service) {
        todo!("volume")
    }
    /// The dataset is gone or the pool closes: every further operation is `NotReady`.
    pub fn close(&self) {
        todo!("volume")
    }
    /// The committed content was replaced (rollback).
    pub fn replaced(&self, _data: Object) {
        todo!("volume")
    }
}

#[expect(dead_code, reason = "names used by the signature sketches above")]
type Names = (Range<u64>, Bytes);
