//! Who hears of what goes wrong while blocks are read: the engine, which counts, repairs and reports. Nobody does in
//! a pool that is only looked at.

use std::fmt;

use ondisk::blkptr::BlkPtr;

use super::Bookmark;

/// A read that did not go as it should.
#[derive(Clone, Debug)]
pub struct Wrong {
    /// Which block.
    pub bp: BlkPtr,
    /// Where it belongs.
    pub at: Bookmark,
    /// Leaves (guids) that answered with other bytes than were written there. They did not miss its transaction group.
    pub corrupt: Vec<u64>,
    /// Leaves (guids) that refused to answer.
    pub refused: Vec<u64>,
    /// No place had it: the block is lost.
    pub is_lost: bool,
}

/// Hears of reads that went wrong. Called from readers' tasks: must not wait.
pub trait Ear: fmt::Debug + Send + Sync {
    /// Once per block, when it is known whether it could be read after all.
    fn wrong(&self, wrong: Wrong);
}
