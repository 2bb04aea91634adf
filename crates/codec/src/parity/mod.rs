//! RAIDZ1–3 parity: generate it, and rebuild any one to three lost columns from the others.
//!
//! A stripe is `n` data columns D and up to three parity columns. Byte by byte, over the field GF(2^8):
//!
//! ```text
//! P = Σ D_i        Q = Σ 2^(n−1−i)·D_i        R = Σ 4^(n−1−i)·D_i
//! ```
//! Columns may be of unequal length (the last row of a block is rarely full): a short one counts as zeros,
//! up to the length of the parity columns, and its exponent counts all the same.
//!
//! Both directions cut the stripe where a column ends, so that the kernels see columns of one length:
//!
//! ```text
//! D0 ████████│████        generate: Horner's rule over all columns, absent ones standing as zeros
//! D1 ████████│████        reconstruct: absent columns drop out, and so does an unknown that is absent
//! D2 ████████│
//! P  ████████│████
//! ```
//! * `field`: the arithmetic and its tables. `solve`: which combination of the intact columns gives a lost one.
//! * `portable`: the kernels; `x86`: their vector twins.
//!
//! Not here: where columns lie on disks, and which of them to suspect (the pool's vdev code).
//! Facts: docs/format/vdevs.md, section 4.

mod field;
mod portable;
mod solve;
#[cfg(target_arch = "x86_64")]
mod x86;

use solve::Plan;

/// Most parity columns.
pub const PARITY_MAX: usize = 3;
/// Most data columns for which every set of lost columns can be solved: the order of the field's generator.
pub const DATA_MAX: usize = 255;

/// What an absent column reads as; a stripe's ragged end is at most one sector long in practice.
static ZEROS: [u8; 4096] = [0; 4096];

/// One column of a stripe, as [`reconstruct`] sees it.
#[derive(Debug)]
pub enum Column<'a> {
    /// Read, and believed.
    Present(&'a [u8]),
    /// Lost; to be rebuilt into this buffer, which has the length of the column.
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
    /// Not 1–3 parity columns of one length over 1–255 data columns that are no longer than they.
    #[error("columns do not form a RAIDZ stripe")]
    Geometry,
}

/// One summand of a lost column: an intact column, and its coefficient in each column to rebuild.
#[derive(Clone, Copy, Debug)]
struct Term<'a> {
    bytes: &'a [u8],
    coefficients: [u8; PARITY_MAX],
}

/// Computes the parity columns P, Q, R (as many as `parity` has) of `data`.
///
/// # Errors
/// [`Error::Geometry`]; nothing has been written then.
pub fn generate(data: &[&[u8]], parity: &mut [&mut [u8]]) -> Result<(), Error> {
    match parity {
        [p] => generate_columns(data, [p]),
        [p, q] => generate_columns(data, [p, q]),
        [p, q, r] => generate_columns(data, [p, q, r]),
        _ => Err(Error::Geometry),
    }
}

fn generate_columns<const P: usize>(data: &[&[u8]], mut parity: [&mut [u8]; P]) -> Result<(), Error> {
    let size = parity[0].len();
    if !(1..=DATA_MAX).contains(&data.len())
        || parity.iter().any(|column| column.len() != size)
        || data.iter().any(|column| column.len() > size)
    {
        return Err(Error::Geometry);
    }
    let mut columns: Vec<&[u8]> = Vec::with_capacity(data.len());
    let mut at = 0;
    while at < size {
        let mut end = next_edge(data.iter().map(|column| column.len()), at, size);
        if data.iter().any(|column| column.len() <= at) {
            end = end.min(at + ZEROS.len());
        }
        columns.clear();
        columns.extend(data.iter().map(|column| column.get(at..end).unwrap_or_else(|| &ZEROS[..end - at])));
        let outputs = parity.each_mut().map(|column| &mut column[at..end]);
        generate_equal(&columns, outputs);
        at = end;
    }
    Ok(())
}

/// Rebuilds every [`Column::Missing`] in place, data and parity alike, from the columns that are present.
/// Data columns come in order and are complete; `parity` is P, Q, R in this order.
///
/// The first present parity columns are used, as many as there are missing data columns; others that are
/// present are not looked at. Missing parity becomes the parity of the (rebuilt) data.
///
/// # Errors
/// See [`Error`]; nothing has been written then.
pub fn reconstruct(data: &mut [Column<'_>], parity: &mut [Column<'_>]) -> Result<(), Error> {
    let size = check(data, parity)?;
    let mut at = 0;
    while at < size {
        let lengths = data.iter().filter_map(Column::len);
        let end = next_edge(lengths, at, size);
        reconstruct_rows(data, parity, at, end)?;
        at = end;
    }
    Ok(())
}

/// Whether the columns form a stripe that can be solved; its length in bytes.
fn check(data: &[Column<'_>], parity: &[Column<'_>]) -> Result<usize, Error> {
    let missing = data.iter().filter(|column| matches!(column, Column::Missing(_))).count();
    let intact = parity.iter().filter(|column| matches!(column, Column::Present(_))).count();
    if !(1..=DATA_MAX).contains(&data.len()) || !(1..=PARITY_MAX).contains(&parity.len()) {
        return Err(Error::Geometry);
    }
    if missing > intact {
        return Err(Error::TooManyMissing { missing, parity: intact });
    }
    let mut sizes = parity.iter().filter_map(Column::len);
    // No parity column takes part: then no data is missing (see above), and there is nothing to do.
    let Some(size) = sizes.next() else { return Ok(0) };
    let fits = |column: &Column<'_>| column.len().is_some_and(|len| len <= size);
    if sizes.any(|other| other != size) || !data.iter().all(fits) {
        return Err(Error::Geometry);
    }
    Ok(size)
}

/// Rebuilds bytes `at..end` of the missing columns. No column ends in between.
fn reconstruct_rows(
    data: &mut [Column<'_>],
    parity: &mut [Column<'_>],
    at: usize,
    end: usize,
) -> Result<(), Error> {
    // A column that has ended is known to be zero here, so it is neither unknown nor a summand.
    let plan = Plan::new(
        data.len(),
        positions(data, |column| matches!(column, Column::Missing(bytes) if bytes.len() > at)),
        positions(parity, |column| matches!(column, Column::Present(_))),
        positions(parity, |column| matches!(column, Column::Missing(_))),
    )
    .ok_or(Error::Geometry)?;
    if plan.outputs() == 0 {
        return Ok(());
    }
    let mut terms = Vec::with_capacity(data.len() + PARITY_MAX);
    let mut outputs: Vec<&mut [u8]> = Vec::with_capacity(PARITY_MAX);
    for (index, column) in data.iter_mut().enumerate() {
        match column {
            Column::Present(bytes) if bytes.len() > at => {
                terms.push(Term { bytes: &bytes[at..end], coefficients: plan.of_data(index) });
            }
            Column::Missing(bytes) if bytes.len() > at => outputs.push(&mut bytes[at..end]),
            _ => {}
        }
    }
    for (index, column) in parity.iter_mut().enumerate() {
        match column {
            Column::Present(bytes) => {
                if let Some(coefficients) = plan.of_parity(index) {
                    terms.push(Term { bytes: &bytes[at..end], coefficients });
                }
            }
            Column::Missing(bytes) => outputs.push(&mut bytes[at..end]),
            Column::Ignored => {}
        }
    }
    match outputs.as_mut_slice() {
        [a] => combine_equal(&terms, [a]),
        [a, b] => combine_equal(&terms, [a, b]),
        [a, b, c] => combine_equal(&terms, [a, b, c]),
        _ => return Err(Error::Geometry),
    }
    Ok(())
}

impl Column<'_> {
    fn len(&self) -> Option<usize> {
        match self {
            Self::Present(bytes) => Some(bytes.len()),
            Self::Missing(bytes) => Some(bytes.len()),
            Self::Ignored => None,
        }
    }
}

fn positions<'a>(
    columns: &'a [Column<'a>],
    wanted: impl Fn(&Column<'a>) -> bool,
) -> impl Iterator<Item = usize> {
    columns.iter().enumerate().filter(move |(_, column)| wanted(column)).map(|(index, _)| index)
}

/// The first length beyond `at`, at most `size`.
fn next_edge(lengths: impl Iterator<Item = usize>, at: usize, size: usize) -> usize {
    lengths.filter(|len| *len > at).min().unwrap_or(size)
}

/// Parity of columns of one length.
fn generate_equal<const P: usize>(columns: &[&[u8]], mut parity: [&mut [u8]; P]) {
    #[cfg(target_arch = "x86_64")]
    let done = x86::Kernel::best().map_or(0, |kernel| x86::generate(kernel, columns, &mut parity));
    #[cfg(not(target_arch = "x86_64"))]
    let done = 0;
    portable::generate(columns, &mut parity, done);
}

/// Every output becomes the sum of the terms by its coefficients. All of one length.
fn combine_equal<const M: usize>(terms: &[Term<'_>], mut outputs: [&mut [u8]; M]) {
    if M == 1 && terms.iter().all(|term| term.coefficients[0] == 1) {
        // One column lost and P intact, the common case: a plain XOR, which is what P is.
        let columns: Vec<&[u8]> = terms.iter().map(|term| term.bytes).collect();
        return generate_equal(&columns, outputs);
    }
    #[cfg(target_arch = "x86_64")]
    let done = x86::Kernel::best().map_or(0, |kernel| x86::combine(kernel, terms, &mut outputs));
    #[cfg(not(target_arch = "x86_64"))]
    let done = 0;
    portable::combine(terms, &mut outputs, done);
}

#[cfg(test)]
mod tests;
