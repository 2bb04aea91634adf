//! From "which columns are lost" to "what each lost column is a sum of".
//!
//! Let `k` data columns be lost and take `k` intact parity columns. Moving what is known to one side leaves
//!
//! ```text
//! A · lost = used parity + Σ (coefficients of column i) · D_i      over the intact data columns i
//! ```
//! with A the k×k block of parity coefficients at the lost columns. A is invertible for any choice among
//! at most 255 columns (docs/format/vdevs.md, section 4.1), so each lost column is a sum of intact ones with
//! constant coefficients; and parity to be regenerated is such a sum too, once the lost columns
//! in it are replaced by theirs. One pass over the intact columns then yields all that is wanted.

use super::PARITY_MAX;
use super::field::{coefficient, inverse, mul};

type Matrix = [[u8; PARITY_MAX]; PARITY_MAX];

/// The solution for one set of lost columns.
#[derive(Debug)]
pub(super) struct Plan {
    data_columns: usize,
    /// Rows of the parity columns that are used, one for each lost data column.
    used: Slots,
    /// Rows of the parity columns to regenerate.
    wanted: Slots,
    /// Inverse of A: row = lost column, column = used parity.
    inverse: Matrix,
    /// Coefficients of the lost columns in the wanted parity: row = wanted, column = lost.
    carry: Matrix,
    lost: usize,
}

/// Up to three small indices.
#[derive(Clone, Copy, Debug, Default)]
struct Slots {
    at: [usize; PARITY_MAX],
    len: usize,
}

impl Slots {
    /// `None` if there are more than three.
    fn collect(indices: impl Iterator<Item = usize>) -> Option<Self> {
        let mut slots = Self::default();
        for index in indices {
            *slots.at.get_mut(slots.len)? = index;
            slots.len += 1;
        }
        Some(slots)
    }

    fn iter(&self) -> impl Iterator<Item = usize> {
        self.at.into_iter().take(self.len)
    }
}

impl Plan {
    /// Solves for the data columns `lost` and the parity columns `wanted`, given the parity columns
    /// `intact`, of a stripe of `data_columns`. `None` if there is no solution.
    pub(super) fn new(
        data_columns: usize,
        lost: impl Iterator<Item = usize>,
        intact: impl Iterator<Item = usize>,
        wanted: impl Iterator<Item = usize>,
    ) -> Option<Self> {
        let lost = Slots::collect(lost)?;
        let used = Slots::collect(intact.take(lost.len))?;
        let wanted = Slots::collect(wanted)?;
        if used.len < lost.len || lost.len + wanted.len > PARITY_MAX {
            return None;
        }
        let at = |row: usize, column: usize| coefficient(row, data_columns - 1 - column);
        let block = |rows: &Slots| {
            let mut block = Matrix::default();
            for (out, row) in block.iter_mut().zip(rows.iter()) {
                for (cell, column) in out.iter_mut().zip(lost.iter()) {
                    *cell = at(row, column);
                }
            }
            block
        };
        Some(Self {
            data_columns,
            used,
            wanted,
            inverse: invert(block(&used), lost.len)?,
            carry: block(&wanted),
            lost: lost.len,
        })
    }

    /// Columns that come out: the lost data columns first, then the wanted parity columns.
    pub(super) fn outputs(&self) -> usize {
        self.lost + self.wanted.len
    }

    /// Coefficients of intact data column `index` in each output.
    pub(super) fn of_data(&self, index: usize) -> [u8; PARITY_MAX] {
        let after = self.data_columns - 1 - index;
        let mut in_used = [0; PARITY_MAX];
        for (cell, row) in in_used.iter_mut().zip(self.used.iter()) {
            *cell = coefficient(row, after);
        }
        let mut out = self.spread(in_used);
        for (cell, row) in out.iter_mut().skip(self.lost).zip(self.wanted.iter()) {
            *cell ^= coefficient(row, after);
        }
        out
    }

    /// Coefficients of intact parity column `row` in each output; `None` if it is not used.
    pub(super) fn of_parity(&self, row: usize) -> Option<[u8; PARITY_MAX]> {
        let place = self.used.iter().position(|used| used == row)?;
        let mut in_used = [0; PARITY_MAX];
        in_used[place] = 1;
        Some(self.spread(in_used))
    }

    /// What a column with these coefficients in the used parity adds to each output, by way of the lost
    /// columns.
    fn spread(&self, in_used: [u8; PARITY_MAX]) -> [u8; PARITY_MAX] {
        let dot = |row: &[u8; PARITY_MAX], column: &[u8; PARITY_MAX]| {
            row.iter().zip(column).fold(0, |acc, (a, b)| acc ^ mul(*a, *b))
        };
        let mut in_lost = [0; PARITY_MAX];
        for (cell, row) in in_lost.iter_mut().zip(&self.inverse).take(self.lost) {
            *cell = dot(row, &in_used);
        }
        let mut out = in_lost;
        for (cell, row) in out.iter_mut().skip(self.lost).zip(&self.carry).take(self.wanted.len) {
            *cell = dot(row, &in_lost);
        }
        out
    }
}

/// Gauss–Jordan on the leading k×k block. `None` if singular.
fn invert(mut a: Matrix, k: usize) -> Option<Matrix> {
    let mut result = Matrix::default();
    for (i, row) in result.iter_mut().enumerate() {
        row[i] = 1;
    }
    for i in 0..k {
        let pivot = (i..k).find(|row| a[*row][i] != 0)?;
        a.swap(i, pivot);
        result.swap(i, pivot);
        let scale = inverse(a[i][i])?;
        for cell in a[i].iter_mut().chain(&mut result[i]) {
            *cell = mul(*cell, scale);
        }
        for row in (0..k).filter(|row| *row != i) {
            let factor = a[row][i];
            for column in 0..PARITY_MAX {
                a[row][column] ^= mul(factor, a[i][column]);
                result[row][column] ^= mul(factor, result[i][column]);
            }
        }
    }
    // Outside the block stands what is left of the identity; it meets only zeros.
    Some(result)
}
