//! What a dirty block holds: bytes as they came, or memory of our own that can be changed where it is.
//!
//! A client that writes less than a block (8 KiB into blocks of 16 KiB, say) comes back for the rest of it soon. So a block
//! put together here stays in a buffer of which nobody else has a part, until somebody reads or syncs it.

use std::sync::Arc;

use block::Segment;
use bytes::{Bytes, BytesMut};
use disk::{IoBuf, stream_copy};

use crate::write::summed::Summed;

/// The content of one block.
#[derive(Clone, Debug)]
pub(super) enum Content {
    /// As it was given.
    Given(Summed),
    /// Put together here; to be changed in place while nobody else holds it.
    Own(Arc<IoBuf>),
}

/// Keeps the buffer for those who read it.
struct Lent(Arc<IoBuf>);

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Content {
    /// `len` bytes written by `fill`, which has to write all of them: it gets what happens to be there, which may be a part
    /// of another volume.
    fn made(len: usize, fill: impl FnOnce(&mut [u8])) -> Self {
        // Blocks smaller than a page would take a whole one.
        if IoBuf::capacity_for(len) > len {
            let mut content = vec![0; len];
            fill(&mut content);
            return Bytes::from(content).into();
        }
        let mut content = IoBuf::with_len(len);
        fill(&mut content);
        Self::Own(Arc::new(content))
    }

    /// A block of `len` bytes with `data` at byte `at`, and `old` around it, which is of `len` bytes too.
    pub(super) fn over(old: &[Segment], len: usize, at: usize, data: &[Segment]) -> Self {
        Self::made(len, |block| {
            let end = at + bytes(data);
            let mut from = 0;
            for piece in old {
                let upto = (from + piece.len()).min(len);
                // What is about to be written over is not copied first.
                for range in [from..upto.min(at), from.max(end)..upto] {
                    if range.is_empty() {
                        continue;
                    }
                    match piece {
                        Segment::Data(bytes) => {
                            let bytes = &bytes[range.start - from..range.end - from];
                            stream_copy(&mut block[range], bytes);
                        }
                        Segment::Zero(_) => block[range].fill(0),
                    }
                }
                from = upto;
            }
            assert_eq!(from, len, "what was there before is a whole block");
            overwrite(&mut block[at..end], data);
        })
    }

    /// These pieces, one after the other, `len` bytes in all.
    pub(super) fn joined(len: usize, pieces: &[Segment]) -> Self {
        assert_eq!(bytes(pieces), len, "the pieces are a whole block");
        Self::made(len, |block| overwrite(block, pieces))
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Given(bytes) => bytes.len(),
            Self::Own(buf) => buf.len(),
        }
    }

    /// To be read and kept by others: it does not change under them.
    pub(super) fn bytes(&self) -> Bytes {
        match self {
            Self::Given(content) => content.bytes().clone(),
            Self::Own(buf) => Bytes::from_owner(Lent(Arc::clone(buf))),
        }
    }

    /// To be synced.
    pub(super) fn summed(&self) -> Summed {
        match self {
            Self::Given(content) => content.clone(),
            Self::Own(_) => self.bytes().into(),
        }
    }

    /// With `data` at byte `at`: the same memory if nobody else holds it, else a copy. What was replaced is to be dropped
    /// when no lock is held.
    pub(super) fn patch(&mut self, at: usize, data: &[Segment]) -> Option<Self> {
        if let Self::Own(buf) = self
            && let Some(block) = Arc::get_mut(buf)
        {
            overwrite(&mut block[at..], data);
            return None;
        }
        let old = match std::mem::replace(self, Self::Given(Summed::default())) {
            Self::Given(content) => match content.into_parts().0.try_into_mut() {
                Ok(mut block) => {
                    overwrite(&mut block[at..], data);
                    *self = BytesMut::freeze(block).into();
                    return None;
                }
                Err(shared) => shared.into(),
            },
            own @ Self::Own(_) => own,
        };
        *self = Self::over(&[Segment::Data(old.bytes())], old.len(), at, data);
        Some(old)
    }

    /// Whether this is what [`bytes`](Self::bytes) gave out, unchanged since.
    pub(super) fn is(&self, bytes: &Bytes) -> bool {
        let (start, len) = match self {
            Self::Given(own) => (own.as_ptr(), own.len()),
            Self::Own(buf) => (buf.as_ptr(), buf.len()),
        };
        (start, len) == (bytes.as_ptr(), bytes.len())
    }
}

impl From<Bytes> for Content {
    fn from(bytes: Bytes) -> Self {
        Self::Given(bytes.into())
    }
}

impl From<Summed> for Content {
    fn from(content: Summed) -> Self {
        Self::Given(content)
    }
}

/// Bytes in all pieces.
pub(super) fn bytes(pieces: &[Segment]) -> usize {
    pieces.iter().map(Segment::len).sum()
}

/// Copies the pieces, one after the other, to the front of `place`.
fn overwrite(mut place: &mut [u8], data: &[Segment]) {
    for piece in data {
        let (front, rest) = place.split_at_mut(piece.len());
        match piece {
            Segment::Data(bytes) => stream_copy(front, bytes),
            Segment::Zero(_) => front.fill(0),
        }
        place = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(byte: u8, len: usize) -> Segment {
        Segment::Data(Bytes::from(vec![byte; len]))
    }

    #[test]
    fn a_part_is_put_into_what_was_there_before() {
        for len in [512, 16384] {
            for (at, end) in [(0, len), (0, 100), (100, 300), (100, len), (len / 2, len / 2 + 200), (7, 7)] {
                // Stale memory must not show through.
                drop(IoBuf::from_slice(&vec![9; len]));
                let old = [data(1, 200), Segment::Zero(len - 300), data(3, 100)];
                let new = [data(5, (end - at) / 2), Segment::Zero(end - at - (end - at) / 2)];
                let mut expected = vec![1; 200];
                expected.resize(len - 100, 0);
                expected.resize(len, 3);
                overwrite(&mut expected[at..end], &new);
                assert!(Content::over(&old, len, at, &new).bytes() == expected, "{len}: {at}..{end}");
            }
        }
    }

    #[test]
    fn what_is_our_own_is_changed_in_place_and_what_others_hold_is_not() {
        for len in [512, 16384] {
            let mut content = Content::joined(len, &[data(1, len)]);
            let start = content.bytes().as_ptr();
            assert!(content.patch(10, &[data(2, 5)]).is_none());
            assert_eq!(content.bytes().as_ptr(), start, "nobody holds it");
            let held = content.bytes();
            assert!(content.is(&held));
            assert!(content.patch(20, &[data(3, 5)]).is_some_and(|old| old.is(&held)));
            assert!(!content.is(&held));
            assert_eq!((held[10], held[20], content.bytes()[10], content.bytes()[20]), (2, 1, 2, 3));
        }
        // The buffer of a request, which others may hold parts of.
        let given = IoBuf::from_slice(&[1; 16384]).freeze();
        let mut content = Content::from(given.clone());
        assert!(content.patch(0, &[data(2, 1)]).is_some());
        assert_eq!((given[0], content.bytes()[0], content.bytes()[1], content.len()), (1, 2, 1, 16384));
        // In place or not, its checksum is another one.
        for held in [None, Some(())] {
            let bytes = Bytes::from(vec![1; 512]);
            let _held = held.map(|()| bytes.clone());
            let mut content =
                Content::from(Summed::at_hand(bytes, Some(codec::checksum::Algorithm::Fletcher4)));
            assert!(content.summed().into_parts().1.is_some());
            content.patch(0, &[data(2, 1)]);
            assert_eq!((content.bytes()[0], content.summed().into_parts().1), (2, None));
        }
    }
}
