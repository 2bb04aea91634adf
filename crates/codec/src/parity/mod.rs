//! RAIDZ1–3 parity: generate, and reconstruct any 1–3 lost columns. Facts: docs/format/vdevs.md, section 4.

/// One column of a stripe, as [`reconstruct`] sees it.
#[derive(Debug)]
pub enum Column<'a> {
    /// Read, and believed.
    Present(&'a [u8]),
    /// Lost; to be rebuilt into this buffer.
    Missing(&'a mut [u8]),
    /// A parity column that was not read and is not wanted back.
    Ignored,
}

/// Why parity cannot be computed from what was passed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// More data columns are missing than parity columns are present.
    #[error("{missing} data columns missing, only {parity} parity columns present")]
    TooManyMissing {
        /// Data columns missing.
        missing: usize,
        /// Parity columns present.
        parity: usize,
    },
    /// Not 1–3 parity columns of one size over 1–252 data columns no longer than they.
    #[error("columns do not form a RAIDZ stripe")]
    Geometry,
}

/// Computes the parity columns P, Q, R (1–3 of them) of `data`.
///
/// # Errors
/// [`Error::Geometry`].
pub fn generate(data: &[&[u8]], parity: &mut [&mut [u8]]) -> Result<(), Error> {
    let _ = (data, parity);
    Err(Error::Geometry)
}

/// Rebuilds every [`Column::Missing`] in place, data and parity alike.
///
/// # Errors
/// See [`Error`]; nothing has been written then.
pub fn reconstruct(data: &mut [Column<'_>], parity: &mut [Column<'_>]) -> Result<(), Error> {
    let _ = (data, parity);
    Err(Error::Geometry)
}
