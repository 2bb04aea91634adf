//! A device of the pool for whoever writes to it beside transaction groups: it takes nothing any more once the pool may be
//! another host's, which is asked when a write has its turn.
//!
//! Writers of blocks ask by themselves ([`super::target`]), as they have to tell that from a device that refuses.

use std::{io, sync::Arc};

use bytes::Bytes;
use disk::{Disk, DiskFuture, DiskInfo, IoBuf};

use crate::suspend::Suspension;

/// See the module.
#[derive(Debug)]
pub(crate) struct Ours {
    disk: Arc<dyn Disk>,
    suspension: Arc<Suspension>,
}

impl Ours {
    pub(crate) fn over(disk: Arc<dyn Disk>, suspension: &Arc<Suspension>) -> Arc<dyn Disk> {
        Arc::new(Self { disk, suspension: Arc::clone(suspension) })
    }

    fn may_write(&self) -> io::Result<()> {
        self.suspension.may_write().map_err(io::Error::other)
    }
}

impl Disk for Ours {
    fn info(&self) -> DiskInfo {
        self.disk.info()
    }

    fn read(&self, offset: u64, buf: IoBuf) -> DiskFuture<'_, IoBuf> {
        self.disk.read(offset, buf)
    }

    fn write(&self, offset: u64, data: Bytes) -> DiskFuture<'_, ()> {
        Box::pin(async move {
            self.may_write()?;
            self.disk.write(offset, data).await
        })
    }

    fn write_parts(&self, offset: u64, parts: Arc<[Bytes]>) -> DiskFuture<'_, ()> {
        Box::pin(async move {
            self.may_write()?;
            self.disk.write_parts(offset, parts).await
        })
    }

    fn write_through(&self, offset: u64, data: Bytes) -> DiskFuture<'_, ()> {
        Box::pin(async move {
            self.may_write()?;
            self.disk.write_through(offset, data).await
        })
    }

    fn flush(&self) -> DiskFuture<'_, ()> {
        self.disk.flush()
    }

    fn probe(&self) -> DiskFuture<'_, ()> {
        self.disk.probe()
    }

    fn trim(&self, offset: u64, len: u64) -> DiskFuture<'_, ()> {
        Box::pin(async move {
            self.may_write()?;
            self.disk.trim(offset, len).await
        })
    }
}
