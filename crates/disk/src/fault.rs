//! A disk that fails on purpose (skeleton).
use std::{io, ops::Range, sync::Arc, time::Duration};

use bytes::Bytes;

use crate::{Disk, DiskFuture, DiskInfo, IoBuf};

/// Operations a [`Fault`] applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// `read`
    Read,
    /// `write`
    Write,
    /// `flush`
    Flush,
    /// `trim`
    Trim,
}

/// What goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The operation fails with this kind and does nothing.
    Error(io::ErrorKind),
    /// Bits of what was read (or is written) are flipped, the operation succeeds.
    FlipBits,
    /// The operation takes this much longer.
    Delay(Duration),
    /// A write succeeds and is thrown away.
    Lose,
    /// A write (or read) succeeds elsewhere: this many bytes further on.
    Misdirect(i64),
}

/// One rule.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Operations it applies to.
    pub on: On,
    /// Byte range an operation must touch.
    pub range: Range<u64>,
    /// What happens.
    pub effect: Effect,
    /// Chance per matching operation, in parts per million.
    pub chance_ppm: u32,
    /// Times it may happen.
    pub times: u32,
}

/// A [`Disk`] around another that fails as told.
#[derive(Debug)]
pub struct FaultDisk {
    inner: Arc<dyn Disk>,
}

impl FaultDisk {
    /// A disk without faults. `seed` decides all chances.
    pub fn new(inner: Arc<dyn Disk>, seed: u64) -> Self {
        let _ = seed;
        Self { inner }
    }
    /// Adds a rule.
    pub fn inject(&self, fault: Fault) {
        let _ = fault;
    }
    /// Forgets all rules; what they corrupted on media stays so.
    pub fn heal(&self) {}
    /// Every operation fails from now on, until [`FaultDisk::come_back`].
    pub fn vanish(&self) {}
    /// Undoes [`FaultDisk::vanish`].
    pub fn come_back(&self) {}
}

impl Disk for FaultDisk {
    fn info(&self) -> DiskInfo {
        self.inner.info()
    }
    fn read(&self, offset: u64, buf: IoBuf) -> DiskFuture<'_, IoBuf> {
        self.inner.read(offset, buf)
    }
    fn write(&self, offset: u64, data: Bytes) -> DiskFuture<'_, ()> {
        self.inner.write(offset, data)
    }
    fn flush(&self) -> DiskFuture<'_, ()> {
        self.inner.flush()
    }
    fn trim(&self, offset: u64, len: u64) -> DiskFuture<'_, ()> {
        self.inner.trim(offset, len)
    }
}
