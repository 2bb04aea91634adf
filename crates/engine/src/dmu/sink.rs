//! Where new blocks go and dead ones, as far as an object tree cares: three calls, so that trees can be tested without
//! devices.

use std::future::Future;

use ondisk::{blkptr::BlkPtr, dnode::ObjectType};

use crate::{
    EngineError,
    write::{BlockWriter, Extents, Job},
};

/// Stores blocks; [`BlockWriter`] in earnest.
pub(crate) trait Sink: Send {
    /// See [`BlockWriter::write`].
    fn write(&mut self, jobs: Vec<Job>) -> impl Future<Output = Result<Vec<BlkPtr>, EngineError>> + Send;
    /// See [`BlockWriter::hole`].
    fn hole(&self, old: &BlkPtr, lsize: u64, object_type: ObjectType, level: u8) -> BlkPtr;
    /// See [`BlockWriter::free_all`].
    fn free_all(&mut self, blocks: &[BlkPtr]) -> impl Future<Output = Result<(), EngineError>> + Send;
}

impl<E: Extents> Sink for BlockWriter<E> {
    fn write(&mut self, jobs: Vec<Job>) -> impl Future<Output = Result<Vec<BlkPtr>, EngineError>> + Send {
        Self::write(self, jobs)
    }
    fn hole(&self, old: &BlkPtr, lsize: u64, object_type: ObjectType, level: u8) -> BlkPtr {
        Self::hole(self, old, lsize, object_type, level)
    }
    fn free_all(&mut self, blocks: &[BlkPtr]) -> impl Future<Output = Result<(), EngineError>> + Send {
        Self::free_all(self, blocks)
    }
}
