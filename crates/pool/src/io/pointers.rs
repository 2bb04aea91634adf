//! The block pointers in an indirect block, in whichever form memory has them.
//!
//! Every read goes by one of them, and of a large volume most indirect blocks are asked for one pointer once in a while. Kept as
//! their contents they would be a twentieth of the cache at hand and the rest to be decompressed each time, which takes longer
//! than the read itself: so copies of them are kept [packed](ondisk::blkptr::packed).

use bytes::Bytes;
use ondisk::{
    Order,
    blkptr::{BlkPtr, packed},
};

use crate::cache::EXACT_BELOW;

/// See the module.
#[derive(Clone, Debug)]
pub enum Pointers {
    /// As they are on disk, decompressed.
    Plain(Bytes),
    /// As [`packed::pack`] has them.
    Packed(Bytes),
}

impl Pointers {
    /// The pointer at `index`; `order` is that of the block.
    ///
    /// # Errors
    /// As [`BlkPtr::decode_at`].
    #[inline]
    pub fn get(&self, index: usize, order: Order) -> ondisk::Result<BlkPtr> {
        match self {
            Self::Plain(content) => BlkPtr::decode_at(content, index, order),
            Self::Packed(packed) => packed::decode_at(packed, index),
        }
    }

    /// A byte of each line of memory that [`get`](Self::get) is about to look at, for who waits for several at once.
    #[inline]
    pub(crate) fn peek(&self, index: usize) -> [u8; 2] {
        let (bytes, start, len) = match self {
            Self::Plain(content) => (content, index.saturating_mul(BlkPtr::BYTES), BlkPtr::BYTES),
            Self::Packed(packed) => {
                let (start, len) = packed::place(packed, index);
                (packed, start, len)
            }
        };
        [start, start.saturating_add(len / 2)].map(|at| bytes.get(at).copied().unwrap_or_default())
    }
}

impl From<Bytes> for Pointers {
    fn from(content: Bytes) -> Self {
        Self::Plain(content)
    }
}

/// The form in which a copy of a block's `content` is kept for its next reader: that of an indirect block packed, if that is
/// worth it, and then shorter than the content.
pub(super) fn copy_of(bp: &BlkPtr, content: &Bytes) -> Bytes {
    let packed = (bp.level() > 0).then(|| packed::pack(content, bp.order())).flatten();
    packed.map_or_else(|| content.clone(), Bytes::from)
}

/// The content of the block that was packed so.
pub(super) fn unpacked(bp: &BlkPtr, packed: &[u8]) -> Option<Bytes> {
    let len = usize::try_from(bp.lsize()).ok()?;
    if len < EXACT_BELOW {
        let mut content = vec![0; len];
        return packed::unpack(packed, bp.order(), &mut content).then(|| content.into());
    }
    let mut content = disk::IoBuf::with_len(len);
    packed::unpack(packed, bp.order(), &mut content).then(|| content.freeze())
}
