//! Transaction groups as clients see them: which one is open, who holds it, and how fast they may fill it.
//!
//! Facts: docs/format/txg-and-throttle.md.

use block::VolumeError;

/// What an operation is going to need.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// Bytes of memory it makes dirty, at most.
    pub dirty: u64,
    /// Bytes of the pool it may take (deflated, copies included); 0 for what only frees.
    pub space: u64,
}

/// Holds a transaction group open: while it lives, `txg` stays quiescing at most.
#[derive(Debug)]
pub struct Tx {}

impl Tx {
    /// Its transaction group.
    pub fn txg(&self) -> u64 {
        todo!("txg")
    }
}

/// Transaction groups of one pool.
#[derive(Debug)]
pub struct Txgs {}

impl Txgs {
    /// Joins the open transaction group. Waits while there is too much dirty data, longer the more there is.
    ///
    /// # Errors
    /// [`VolumeError::NoSpace`], or [`VolumeError::NotReady`] when the pool is suspended or closing.
    pub async fn assign(&self, _cost: Cost) -> Result<Tx, VolumeError> {
        todo!("txg")
    }
    /// The same if nothing has to be waited for.
    pub fn try_assign(&self, _cost: Cost) -> Option<Tx> {
        todo!("txg")
    }
    /// `bytes` that were announced as dirty are not (overwrote what was dirty already), or no longer: they are
    /// on their way to the devices.
    pub fn undirty(&self, _txg: u64, _bytes: u64) {
        todo!("txg")
    }
    /// Waits until everything done before the call is durable.
    ///
    /// # Errors
    /// The pool was suspended before that.
    pub async fn wait_synced(&self) -> Result<(), VolumeError> {
        todo!("txg")
    }
}
