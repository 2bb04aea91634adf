//! What a decoder says when the bytes cannot be what they claim.
//!
//! One type for all structures: which structure, at which byte of it, and why. Callers act on the
//! [`Reason`] (try another copy, refuse the pool); people read the whole sentence.

/// Shorthand for a [`Result`](std::result::Result) with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A structure could not be decoded, or a value has no encoding.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{structure}, byte {offset}: {reason}")]
pub struct Error {
    /// The structure, in the field's word: `block pointer`, `nvlist`, `label config`.
    pub structure: &'static str,
    /// Byte offset inside the slice given to the decoder, of the field at fault.
    pub offset: usize,
    /// What is wrong there.
    pub reason: Reason,
}

impl Error {
    /// An error about `structure`, at byte `offset` of the decoder's input.
    #[cold]
    pub fn new(structure: &'static str, offset: usize, reason: Reason) -> Self {
        Self { structure, offset, reason }
    }
}

/// Why a structure was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// The slice ends inside the structure.
    #[error("needs {need} more bytes, {have} left")]
    Truncated {
        /// Bytes the next field takes.
        need: usize,
        /// Bytes that were left.
        have: usize,
    },
    /// The magic number is wrong in both byte orders: something else lives here.
    #[error("bad magic {found:#x}")]
    BadMagic {
        /// What stands in the magic's place, as read in the order tried.
        found: u64,
    },
    /// A field holds a value outside its legal range.
    #[error("{field} is {value:#x}, which is out of range")]
    OutOfRange {
        /// Name of the field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// A legal value this implementation does not know.
    #[error("{field} {value:#x} is not supported")]
    Unsupported {
        /// Name of the field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// Fields contradict each other, or a promise of the format is broken.
    #[error("{0}")]
    Inconsistent(&'static str),
    /// A name or string is not UTF-8.
    #[error("{field} is not UTF-8")]
    NotText {
        /// Name of the field.
        field: &'static str,
    },
    /// A name-value pair that must exist does not.
    #[error("no pair \"{name}\"")]
    Missing {
        /// Name of the pair.
        name: &'static str,
    },
    /// A name-value pair exists with another type than the format says.
    #[error("pair \"{name}\" is not a {expected}")]
    WrongType {
        /// Name of the pair.
        name: &'static str,
        /// The type it should have.
        expected: &'static str,
    },
    /// Nested deeper than any real structure: refused before it costs stack.
    #[error("nested deeper than {limit} levels")]
    TooDeep {
        /// The limit, in levels.
        limit: usize,
    },
    /// Larger than any real structure: refused before it costs memory.
    #[error("larger than {limit} {unit}")]
    TooLarge {
        /// The limit.
        limit: usize,
        /// What is counted: `bytes`, `pairs`.
        unit: &'static str,
    },
}
