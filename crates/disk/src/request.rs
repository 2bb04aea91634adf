//! One operation on an open file, as a value that owns everything the operation touches.
//!
//! The kernel works on a buffer while nobody waits for it: a future is dropped, a runtime ends. So the buffer
//! travels inside the [`Request`], and the request belongs to whoever carries it out (the ring, a thread of the
//! blocking pool) until it is [`Finished`]. Both ways take the same value and hand it back, so that one can
//! stand in for the other at any moment.

#![expect(unsafe_code, reason = "vectors for the kernel: raw pointers that have to change threads")]

use std::{fmt, fs::File, io, os::unix::fs::FileExt, sync::Arc};

use bytes::Bytes;
use tokio::sync::{OwnedRwLockWriteGuard, Semaphore};

use crate::{IoBuf, sys};

/// What to do with the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// `len` bytes at `offset` into the payload from `start`. May transfer fewer.
    Read,
    /// `len` bytes of the payload from `start` to `offset`. May transfer fewer.
    Write,
    /// The same, and what it transferred is on stable media before it is over. `Unsupported` from kernels and
    /// file systems that do not know how.
    WriteThrough,
    /// fdatasync.
    Sync,
    /// Give the file's blocks under `offset..offset + len` back.
    Punch,
    /// Tell the block device that `offset..offset + len` is unused.
    Discard,
}

/// The memory of a transfer.
#[derive(Debug)]
pub(crate) enum Payload {
    None,
    /// To be filled (or, for a bounced write, written). Everything up to its capacity may be used.
    Buf(IoBuf),
    Bytes(Bytes),
    Parts(Parts),
}

/// Bytes that lie in several places and are written one behind the other.
pub(crate) struct Parts {
    parts: Arc<[Bytes]>,
    /// What the next transfer takes of them: see [`Parts::aim`].
    vectors: Vec<libc::iovec>,
}

// SAFETY: the vectors point into `parts`, which nobody changes, and go where those go.
unsafe impl Send for Parts {}
// SAFETY: through a shared reference the vectors are only read.
unsafe impl Sync for Parts {}

impl Parts {
    pub(crate) fn new(parts: Arc<[Bytes]>) -> Self {
        Self { parts, vectors: Vec::new() }
    }

    /// The next transfer is of `len` bytes behind the first `start`.
    fn aim(&mut self, mut start: usize, mut len: usize) {
        self.vectors.clear();
        for part in self.parts.iter() {
            let rest = part.get(start..).unwrap_or_default();
            let taken = &rest[..rest.len().min(len)];
            start = start.saturating_sub(part.len());
            len -= taken.len();
            if !taken.is_empty() {
                let iov_base = taken.as_ptr().cast_mut().cast();
                self.vectors.push(libc::iovec { iov_base, iov_len: taken.len() });
            }
        }
    }

    /// What a transfer takes; it stays where it is when this is moved.
    pub(crate) fn vectors(&self) -> &[libc::iovec] {
        &self.vectors
    }
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parts({})", self.parts.len())
    }
}

/// An operation and all it needs.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) file: Arc<File>,
    pub(crate) verb: Verb,
    pub(crate) offset: u64,
    pub(crate) start: usize,
    pub(crate) len: u64,
    pub(crate) payload: Payload,
    /// Keeps other writes away from the sectors of a read-modify-write until its write is over, even if
    /// nobody waits for it any more: a late write would put stale neighbours back.
    #[expect(dead_code, reason = "held, not read")]
    pub(crate) exclusive: Option<Arc<OwnedRwLockWriteGuard<()>>>,
}

/// A request that is over: bytes transferred or the error, and the request with its payload.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) result: io::Result<usize>,
    pub(crate) request: Request,
}

/// Most bytes asked of the kernel at once; it caps a transfer a page below 2 GiB itself.
const TRANSFER_MAX: u64 = 1 << 30;

impl Request {
    /// The payload's bytes that take part, as the kernel wants them. A read only gets an address inside an
    /// [`IoBuf`], which nobody else can see while the request owns it.
    pub(crate) fn memory(&self) -> (*const u8, usize) {
        let (base, capacity) = match &self.payload {
            Payload::None => return (std::ptr::null(), 0),
            Payload::Buf(buf) => (buf.as_raw().cast_const(), buf.capacity()),
            Payload::Bytes(bytes) => {
                assert!(self.verb != Verb::Read, "shared memory is never read into");
                (bytes.as_ptr(), bytes.len())
            }
            Payload::Parts(_) => unreachable!("parts are asked for their vectors"),
        };
        let len = self.transfer_len();
        assert!(self.start <= capacity, "the transfer starts in its buffer");
        assert!(len <= capacity - self.start, "the transfer ends in its buffer");
        (base.wrapping_add(self.start), len)
    }

    /// Carries it out on the calling thread.
    pub(crate) fn execute(mut self) -> Finished {
        let (start, len) = (self.start, self.transfer_len());
        let result = loop {
            let result = match (self.verb, &mut self.payload) {
                (Verb::Read, Payload::Buf(buf)) => {
                    self.file.read_at(&mut buf.whole_mut()[start..start + len], self.offset)
                }
                (Verb::Write, Payload::Buf(buf)) => {
                    self.file.write_at(&buf.whole_mut()[start..start + len], self.offset)
                }
                (Verb::Write, Payload::Bytes(bytes)) => {
                    self.file.write_at(&bytes[start..start + len], self.offset)
                }
                (Verb::Write, Payload::Parts(parts)) => {
                    sys::write_vectors(&self.file, parts.vectors(), self.offset)
                }
                (Verb::WriteThrough, Payload::Buf(buf)) => {
                    sys::write_through(&self.file, &buf.whole_mut()[start..start + len], self.offset)
                }
                (Verb::WriteThrough, Payload::Bytes(bytes)) => {
                    sys::write_through(&self.file, &bytes[start..start + len], self.offset)
                }
                (Verb::Read | Verb::Write | Verb::WriteThrough, _) => {
                    unreachable!("a transfer has memory: see FileDisk::transfer")
                }
                (Verb::Sync, _) => self.file.sync_data().map(|()| 0),
                (Verb::Punch, _) => sys::punch_hole(&self.file, self.offset, self.len).map(|()| 0),
                (Verb::Discard, _) => sys::discard(&self.file, self.offset, self.len).map(|()| 0),
            };
            match result {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        Finished { result, request: self }
    }

    /// Carries it out on tokio's blocking pool, at most as many at once as there are `permits`; on the calling
    /// thread where there is no runtime. An error means that the runtime is shutting down.
    pub(crate) async fn execute_blocking(self, permits: &Arc<Semaphore>) -> io::Result<Finished> {
        if tokio::runtime::Handle::try_current().is_err() {
            return Ok(self.execute());
        }
        let permit = Arc::clone(permits).acquire_owned().await.expect("the semaphore is never closed");
        tokio::task::spawn_blocking(move || {
            let finished = self.execute();
            drop(permit);
            finished
        })
        .await
        .map_err(io::Error::other)
    }

    /// Bytes of memory that take part in this step.
    pub(crate) fn transfer_len(&self) -> usize {
        match self.payload {
            Payload::None => 0,
            Payload::Buf(_) | Payload::Bytes(_) | Payload::Parts(_) => self.len.min(TRANSFER_MAX) as usize,
        }
    }

    /// The next step is from byte `start` of the payload on.
    pub(crate) fn aim(&mut self, start: usize, offset: u64, len: u64) {
        (self.start, self.offset, self.len) = (start, offset, len);
        if let Payload::Parts(parts) = &mut self.payload {
            parts.aim(start, usize::try_from(len).expect("a transfer fits into memory"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device may take less than it was given; the next transfer begins in the middle of a part, and one in
    /// steps ends there.
    #[test]
    fn a_transfer_of_parts_goes_on_where_it_stopped() {
        let parts: Arc<[Bytes]> = ["abc", "", "defgh", "i"].map(Bytes::from).into();
        let whole = parts.concat();
        let mut vectors = Parts::new(Arc::clone(&parts));
        for (start, end) in
            (0..=whole.len()).flat_map(|start| (start..=whole.len()).map(move |end| (start, end)))
        {
            vectors.aim(start, end - start);
            let mut seen = Vec::new();
            for vector in vectors.vectors() {
                assert!(vector.iov_len > 0);
                // SAFETY: a vector is of so many bytes of one of the parts, which live.
                seen.extend_from_slice(unsafe {
                    std::slice::from_raw_parts(vector.iov_base.cast::<u8>(), vector.iov_len)
                });
            }
            assert_eq!(seen, &whole[start..end], "{start}..{end}");
        }
    }
}
