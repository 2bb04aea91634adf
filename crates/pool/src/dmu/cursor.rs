//! One walk down an object's tree of indirect blocks, as a value that never waits.
//!
//! [`Cursor::step`] goes from the dnode towards a block and stops at one of three things: the block's
//! pointer, a hole (with how far it reaches), or an indirect block that is not at hand. The driver fetches
//! the latter, [supplies](Cursor::supply) it and steps again. The cursor keeps the indirect blocks of the
//! last path, so walking a range in order reads each of them once whatever the cache does.

use ondisk::{Order, blkptr::BlkPtr};
use smallvec::SmallVec;

use super::{Object, ReadError};
use crate::io::{Bookmark, Pointers};

/// Where a [`Cursor::step`] ended.
#[derive(Clone, Debug)]
pub enum Step {
    /// The block asked for.
    Block(BlkPtr),
    /// It was never written or was freed: block ids below `until` at the same level are holes as well.
    /// `pointer` is the hole at the end of the walk, if there is one (it may carry a birth).
    Hole {
        /// First block id that may be something else.
        until: u64,
        /// The pointer that says so; none beyond what the dnode can address.
        pointer: Option<BlkPtr>,
    },
    /// This indirect block must be [supplied](Cursor::supply) first.
    Need {
        /// Its pointer.
        pointer: BlkPtr,
        /// Which block it is.
        at: Bookmark,
    },
}

/// The indirect blocks of the last path through one object.
#[derive(Clone, Debug, Default)]
pub struct Cursor {
    /// Index 0 is level 1.
    path: SmallVec<[Option<Indirect>; 4]>,
}

#[derive(Clone, Debug)]
struct Indirect {
    blkid: u64,
    pointers: Pointers,
    order: Order,
}

impl Cursor {
    /// Walks towards block `blkid` of `level` in `object`, taking indirect blocks from the last path or
    /// from `at_hand`.
    ///
    /// # Errors
    /// A pointer on the way is malformed, or is of another level or size than its place in the tree says.
    pub fn step(
        &mut self,
        object: &Object,
        level: u8,
        blkid: u64,
        mut at_hand: impl FnMut(&BlkPtr) -> Option<Pointers>,
    ) -> Result<Step, ReadError> {
        let (top, fanout) = (object.levels().saturating_sub(1), object.fanout());
        if level > top {
            return Ok(Step::Hole { until: u64::MAX, pointer: None });
        }
        // The lowest block of the last path that is above the one asked for.
        let lowest = (level + 1..=top).find_map(|above| {
            let held = self.path.get(usize::from(above) - 1)?.as_ref()?;
            (held.blkid == fanout.ancestor(blkid, above - level)).then_some((above, held))
        });
        let (mut at_level, mut pointer) = match lowest {
            Some((above, held)) => {
                let child = above - 1;
                (child, held.entry(object, child, fanout.ancestor(blkid, child - level))?)
            }
            None => {
                let index = fanout.ancestor(blkid, top - level);
                let Some(pointer) = usize::try_from(index).ok().and_then(|index| object.top_pointer(index))
                else {
                    return Ok(Step::Hole { until: u64::MAX, pointer: None });
                };
                (top, pointer)
            }
        };
        loop {
            let id = fanout.ancestor(blkid, at_level - level);
            if pointer.is_hole() {
                let until = fanout.first_descendant(id.saturating_add(1), at_level - level);
                return Ok(Step::Hole { until, pointer: Some(pointer) });
            }
            let at = object.bookmark(at_level, id);
            object.check_pointer(&pointer, at_level, at)?;
            if at_level == level {
                return Ok(Step::Block(pointer));
            }
            let Some(pointers) = at_hand(&pointer) else { return Ok(Step::Need { pointer, at }) };
            let held = self.hold(at_level, id, pointers, pointer.order());
            at_level -= 1;
            pointer = held.entry(object, at_level, fanout.ancestor(blkid, at_level - level))?;
        }
    }

    /// Hands over the content of an indirect block that [`step`](Self::step) needed.
    pub fn supply(&mut self, pointer: &BlkPtr, at: Bookmark, content: impl Into<Pointers>) {
        if let Ok(level) = u8::try_from(at.level)
            && level > 0
        {
            self.hold(level, at.blkid, content.into(), pointer.order());
        }
    }

    /// `level` is at least 1.
    fn hold(&mut self, level: u8, blkid: u64, pointers: Pointers, order: Order) -> &Indirect {
        let index = usize::from(level) - 1;
        if self.path.len() <= index {
            self.path.resize_with(index + 1, || None);
        }
        self.path[index].insert(Indirect { blkid, pointers, order })
    }
}

impl Indirect {
    /// The pointer to block `blkid` of `level`, one below this block.
    fn entry(&self, object: &Object, level: u8, blkid: u64) -> Result<BlkPtr, ReadError> {
        let at = object.bookmark(level + 1, self.blkid);
        self.pointers.get(object.fanout().slot(blkid), self.order).map_err(ReadError::malformed(at))
    }
}
