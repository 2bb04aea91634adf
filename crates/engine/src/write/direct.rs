//! Single blocks straight to the devices, from any task, while transaction groups go their way: log blocks, and data
//! that log records point to.

use std::sync::Arc;

use bytes::Bytes;
use ondisk::blkptr::Dva;
use pool::PoolIo;

use crate::EngineError;

/// Writes blocks outside of transaction groups.
#[derive(Debug, Default)]
pub struct Direct {}

impl Direct {
    /// Over the devices of `io`.
    #[must_use]
    pub fn new(io: &PoolIo) -> Arc<Self> {
        let _ = io;
        Arc::new(Self {})
    }

    /// Writes `data` at `dva` on all sides and columns. With `durable` it is on stable media when this returns; without,
    /// after a [`flush`](Self::flush). `data` may be shorter than the place where
    /// [`may_shorten`](Self::may_shorten) says so. `txg` is noted as missed on leaves that fail.
    ///
    /// # Errors
    /// Too few leaves took it for it to be read back.
    pub async fn write(&self, dva: Dva, data: Bytes, txg: u64, durable: bool) -> Result<(), EngineError> {
        let _ = (dva, data, txg, durable);
        Err(EngineError::Device("no direct writes yet".to_owned()))
    }

    /// Makes durable what was written to these top-level devices.
    ///
    /// # Errors
    /// Too few leaves of one of them say so.
    pub async fn flush(&self, tops: &[u32], txg: u64) -> Result<(), EngineError> {
        let _ = (tops, txg);
        Err(EngineError::Device("no direct writes yet".to_owned()))
    }

    /// Whether only the used part of a log block at `dva` may be written: not where a block's bytes are dealt out over
    /// columns by its size (RAIDZ).
    #[must_use]
    pub fn may_shorten(&self, dva: &Dva) -> bool {
        let _ = dva;
        false
    }
}
