//! Where the writer gets places for blocks: the seam that lets tests write without an allocator.

use std::{future::Future, sync::Arc};

use ondisk::blkptr::Dva;
use smallvec::SmallVec;

use crate::{
    EngineError,
    alloc::{Allocator, Purpose},
    suspend::Suspension,
};

/// Where extents come from: the [`Allocator`], or something simpler in tests.
pub trait Extents: Send {
    /// See [`Allocator::granularity`].
    fn granularity(&self) -> (u64, u64);
    /// See [`Allocator::allocate`].
    fn allocate(
        &mut self,
        psize: u64,
        copies: u8,
        purpose: Purpose,
    ) -> impl Future<Output = Result<SmallVec<[Dva; 3]>, EngineError>> + Send;
    /// See [`Allocator::release`].
    fn release(&mut self, dva: Dva);
    /// See [`Allocator::adopt`].
    fn adopt(&mut self, dva: Dva) -> Result<(), EngineError>;
    /// Devices came, went or came back.
    fn devices_changed(&mut self) {}
    /// See [`Allocator::wait_through`].
    fn wait_through(&mut self, _: &Arc<Suspension>) {}
}

impl Extents for Allocator {
    fn granularity(&self) -> (u64, u64) {
        Self::granularity(self)
    }
    fn allocate(
        &mut self,
        psize: u64,
        copies: u8,
        purpose: Purpose,
    ) -> impl Future<Output = Result<SmallVec<[Dva; 3]>, EngineError>> + Send {
        Self::allocate(self, psize, copies, purpose)
    }
    fn release(&mut self, dva: Dva) {
        Self::release(self, dva);
    }
    fn adopt(&mut self, dva: Dva) -> Result<(), EngineError> {
        Self::adopt(self, dva)
    }
    fn devices_changed(&mut self) {
        self.log_space().readmit();
    }
    fn wait_through(&mut self, suspension: &Arc<Suspension>) {
        Self::wait_through(self, Arc::clone(suspension));
    }
}
