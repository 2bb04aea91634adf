//! Block pointers to verified bytes.
use std::fmt;
/// Where a block belongs: (object set, object, level, block id), as OpenZFS names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bookmark {
    /// Object number of the dataset in the MOS; 0 is the MOS itself.
    pub objset: u64,
    /// Object in the set; 0 is the meta dnode.
    pub object: u64,
    /// 0 data, above: indirect; -1 the object set block, -2 a ZIL block.
    pub level: i64,
    /// Block number at that level.
    pub blkid: u64,
}
impl fmt::Display for Bookmark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{:#x}:{:#x}:{}:{:#x}>", self.objset, self.object, self.level, self.blkid)
    }
}
/// Reads blocks of one pool.
#[derive(Debug)]
pub struct PoolIo {}
