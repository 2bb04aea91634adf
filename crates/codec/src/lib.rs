//! Kernels of the pool: block checksums, block compression and RAIDZ parity.
//!
//! Everything here is a pure function from bytes to bytes. There is no I/O, no clock and no knowledge of
//! block pointers: a caller that has decoded one passes the ids and lengths in. That keeps the crate at
//! the bottom of the arrows, and lets a fuzzer drive all of it with nothing but byte strings.
//!
//! * [`checksum`]: what a block pointer promises about a block, and the self-checking forms (labels,
//!   gang headers, log blocks). Facts: docs/format/checksums.md.
//! * [`compress`]: the compressors a block may have been stored with. Facts: docs/format/compression.md.
//! * [`parity`]: RAIDZ1–3 generation and reconstruction. Facts: docs/format/vdevs.md, section 4.
//!
//! All input is hostile. No function here panics, reads or writes out of bounds, or allocates by a length
//! found in the data, whatever bytes it is given. `unsafe` is confined to the vector kernels (`x86.rs`),
//! each of which has a twin in a `portable.rs` that tests hold equal to it.

#![deny(unsafe_code)]

pub mod checksum;
pub mod compress;
pub mod parity;

/// Byte order of the machine that wrote a block, as its block pointer (or its magic number) says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Least significant byte first: what every machine of today writes.
    Little,
    /// Most significant byte first: SPARC, s390x, PowerPC in its old mode.
    Big,
}
