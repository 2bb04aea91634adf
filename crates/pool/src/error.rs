//! What can go wrong between a block pointer and its bytes.
//!
//! Grouped by what a caller can do about it: bytes that were lost may come back with a device, a
//! lie in the pointer cannot be helped, ciphertext needs a key. The error names the block (if the
//! caller said which it is), its addresses, and every device that failed to deliver, so that an
//! administrator can act on it. (Why a *pool* cannot be opened: [`ImportError`].)

use std::{fmt, sync::Arc};

use ondisk::blkptr::BlkPtr;

use crate::io::Bookmark;

pub use crate::import::ImportError;

/// Why a block could not be read. Cheap to clone; equal errors may be reported to many readers.
#[derive(Clone)]
pub struct BlockError(Arc<Inner>);

struct Inner {
    kind: BlockErrorKind,
    at: Option<Bookmark>,
    pointer: String,
    evidence: Vec<Evidence>,
}

/// What kind of wrong it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BlockErrorKind {
    /// Devices answered, and no combination of their answers has the promised checksum. Lost, unless
    /// a device that is missing now comes back.
    #[error("checksum mismatch")]
    Checksum,
    /// Not enough devices answered at all. Comes back with them.
    #[error("read failed")]
    Device,
    /// The same, and it was found that devices which may have it are away just now: it is not their medium that is bad.
    #[error("its devices are away")]
    Away,
    /// The pointer, or the structure it leads to, contradicts itself or the pool: its *parent* holds
    /// the lie, and no other copy can help.
    #[error("malformed block: {0}")]
    Malformed(String),
    /// The bytes are ciphertext; a key would be needed.
    #[error("the block is encrypted")]
    Encrypted,
    /// Something this implementation does not read (a dRAID device, a redacted block).
    #[error("{0}")]
    Unsupported(String),
}

/// One place that failed to give a block, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// Path of the leaf, or the type and id of an interior device.
    pub device: String,
    /// Byte offset on that device (DVA offset, without labels).
    pub offset: u64,
    /// What it did: `checksum mismatch`, `cannot open`, the operating system's words.
    pub fault: String,
}

impl BlockError {
    /// An error about `pointer`, read for `at`.
    #[cold]
    #[must_use]
    pub fn new(
        kind: BlockErrorKind,
        pointer: &BlkPtr,
        at: Option<Bookmark>,
        evidence: Vec<Evidence>,
    ) -> Self {
        Self(Arc::new(Inner { kind, at, pointer: describe(pointer), evidence }))
    }

    /// The same of a block whose devices turned out to be away.
    #[must_use]
    pub fn away(&self) -> Self {
        let Inner { at, pointer, evidence, .. } = &*self.0;
        let (pointer, evidence) = (pointer.clone(), evidence.clone());
        Self(Arc::new(Inner { kind: BlockErrorKind::Away, at: *at, pointer, evidence }))
    }

    /// What kind of wrong it is.
    #[must_use]
    pub fn kind(&self) -> &BlockErrorKind {
        &self.0.kind
    }

    /// Which block, if the reader said so.
    #[must_use]
    pub fn bookmark(&self) -> Option<Bookmark> {
        self.0.at
    }

    /// Everything that failed on the way, in the order it was tried.
    #[must_use]
    pub fn evidence(&self) -> &[Evidence] {
        &self.0.evidence
    }
}

/// The addresses of a block in OpenZFS's notation, `vdev:offset:asize` in hex.
fn describe(pointer: &BlkPtr) -> String {
    let mut text = String::new();
    for dva in pointer.dvas() {
        let separator = if text.is_empty() { "" } else { " " };
        text.push_str(&format!("{separator}{:x}:{:x}:{:x}", dva.vdev, dva.offset, dva.asize));
    }
    text
}

impl fmt::Display for BlockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { kind, at, pointer, evidence } = &*self.0;
        f.write_str("block")?;
        if let Some(at) = at {
            write!(f, " {at}")?;
        }
        if !pointer.is_empty() {
            write!(f, " at {pointer}")?;
        }
        write!(f, ": {kind}")?;
        // A wide RAIDZ block with many failed columns must not fill a screen.
        for Evidence { device, offset, fault } in evidence.iter().take(8) {
            write!(f, "; {device} offset {offset:#x}: {fault}")?;
        }
        match evidence.len().saturating_sub(8) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

impl fmt::Debug for BlockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockError({self})")
    }
}

impl std::error::Error for BlockError {}
