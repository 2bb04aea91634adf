//! Parity against its definition, over every set of lost columns; and vector kernels against their twins.

use super::field::{coefficient, mul};
use super::*;
use proptest::prelude::*;

/// Deterministic bytes that differ everywhere.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

/// Column lengths as a RAIDZ map makes them: `long` columns of `rows` sectors, the others one less.
fn stripe(columns: usize, long: usize, rows: usize, sector: usize) -> Vec<Vec<u8>> {
    (0..columns).map(|i| noise((if i < long { rows } else { rows - 1 }) * sector, i as u64 + 1)).collect()
}

/// Parity by the formula, byte by byte.
fn by_definition(data: &[Vec<u8>], nparity: usize) -> Vec<Vec<u8>> {
    let size = data.iter().map(Vec::len).max().unwrap();
    let byte = |row: usize, at: usize| {
        data.iter().enumerate().fold(0, |acc, (i, column)| {
            let byte = column.get(at).copied().unwrap_or(0);
            acc ^ mul(coefficient(row, data.len() - 1 - i), byte)
        })
    };
    (0..nparity).map(|row| (0..size).map(|at| byte(row, at)).collect()).collect()
}

fn generated(data: &[Vec<u8>], nparity: usize) -> Vec<Vec<u8>> {
    let size = data.iter().map(Vec::len).max().unwrap();
    let columns: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let mut parity = vec![vec![0xEE; size]; nparity];
    let mut views: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    generate(&columns, &mut views).unwrap();
    parity
}

/// Data columns and parity columns.
type Stripe = (Vec<Vec<u8>>, Vec<Vec<u8>>);

/// What [`reconstruct`] makes of a stripe whose columns in `lost` (a bit set, data first) are missing.
/// Those in `ignored` are parity columns nobody reads.
fn rebuilt(data: &[Vec<u8>], parity: &[Vec<u8>], lost: u32, ignored: u32) -> Result<Stripe, Error> {
    let (mut data, mut parity) = (data.to_vec(), parity.to_vec());
    let n = data.len();
    let is = |set: u32, i: usize| set >> i & 1 == 1;
    let view = |columns: &mut Vec<Vec<u8>>, first: usize| -> Vec<Column<'static>> {
        // Leaked, so that both lists can be borrowed at once without ceremony; tests are short-lived.
        let columns = std::mem::take(columns);
        columns
            .into_iter()
            .enumerate()
            .map(|(i, mut bytes)| {
                if is(ignored, first + i) {
                    Column::Ignored
                } else if is(lost, first + i) {
                    bytes.fill(0xA5);
                    Column::Missing(bytes.leak())
                } else {
                    Column::Present(bytes.leak())
                }
            })
            .collect()
    };
    let (mut d, mut p) = (view(&mut data, 0), view(&mut parity, n));
    reconstruct(&mut d, &mut p)?;
    let bytes = |column: Column<'static>| match column {
        Column::Present(bytes) => bytes.to_vec(),
        Column::Missing(bytes) => bytes.to_vec(),
        Column::Ignored => Vec::new(),
    };
    Ok((d.into_iter().map(bytes).collect(), p.into_iter().map(bytes).collect()))
}

#[test]
fn generation_follows_the_formula_for_every_shape() {
    for nparity in 1..=3 {
        for columns in 1..=9 {
            for long in 1..=columns {
                // 4608 makes the ragged end longer than the page of zeros.
                for sector in [8, 512, 4608] {
                    let rows = if long == columns { 1 } else { 2 };
                    let data = stripe(columns, long, rows, sector);
                    assert_eq!(generated(&data, nparity), by_definition(&data, nparity));
                }
            }
        }
    }
}

#[test]
fn every_erasure_a_stripe_can_survive_is_repaired() {
    for nparity in 1..=3usize {
        for (columns, long) in [(1, 1), (2, 1), (2, 2), (3, 1), (5, 2), (6, 6), (8, 3)] {
            let rows = if long == columns { 1 } else { 3 };
            let data = stripe(columns, long, rows, 72);
            let parity = generated(&data, nparity);
            for lost in 0u32..1 << (columns + nparity) {
                let data_lost = (lost & ((1 << columns) - 1)).count_ones() as usize;
                let result = rebuilt(&data, &parity, lost, 0);
                if lost.count_ones() as usize <= nparity {
                    let (d, p) = result.unwrap();
                    assert_eq!((&d, &p), (&data, &parity), "{columns}+{nparity} lost {lost:b}");
                } else {
                    let intact = nparity - (lost >> columns).count_ones() as usize;
                    if data_lost > intact {
                        let error = Error::TooManyMissing { missing: data_lost, parity: intact };
                        assert_eq!(result.unwrap_err(), error);
                    }
                }
            }
        }
    }
}

#[test]
fn any_pair_of_three_parities_recovers_two_columns() {
    let data = stripe(6, 4, 2, 512);
    let parity = generated(&data, 3);
    for ignored in 6..9 {
        for (x, y) in [(0, 1), (0, 5), (3, 4), (4, 5)] {
            let (d, _) = rebuilt(&data, &parity, 1 << x | 1 << y, 1 << ignored).unwrap();
            assert_eq!(d, data);
        }
    }
}

/// The widest stripe: coefficients wrap around the generator's order, and stay distinct.
#[test]
fn the_widest_stripe_is_solvable() {
    let data = stripe(255, 200, 2, 16);
    let parity = generated(&data, 3);
    let mut columns: Vec<Column<'_>> = data.iter().map(|bytes| Column::Present(bytes)).collect();
    let mut buffers = [0, 100, 254].map(|i| (i, vec![0; data[i].len()]));
    for (i, buffer) in &mut buffers {
        columns[*i] = Column::Missing(buffer);
    }
    let mut parity: Vec<Column<'_>> = parity.iter().map(|bytes| Column::Present(bytes)).collect();
    reconstruct(&mut columns, &mut parity).unwrap();
    drop(columns);
    for (i, buffer) in buffers {
        assert_eq!(buffer, data[i]);
    }
}

/// A short column is zero behind its end whatever the parity says there: damage in P's last row must not
/// leak into a Q that is regenerated beside the short column.
#[test]
fn damage_behind_a_short_lost_column_stays_where_it_is() {
    let data = stripe(3, 2, 2, 64);
    let mut parity = generated(&data, 2);
    parity[0][100] ^= 0x40;
    let (d, p) = rebuilt(&data, &parity, 1 << 2 | 1 << 4, 0).unwrap();
    assert_eq!(d, data);
    assert_eq!(p[1], by_definition(&data, 2)[1]);
}

#[test]
fn what_is_no_stripe_is_refused() {
    let (long, short) = ([1u8; 8], [1u8; 7]);
    let refused = Err(Error::Geometry);
    assert_eq!(generate(&[&long], &mut []), refused);
    assert_eq!(generate(&[], &mut [&mut [0; 8]]), refused);
    assert_eq!(generate(&[&long], &mut [&mut [0; 7]]), refused);
    assert_eq!(generate(&[&long], &mut [&mut [0; 8], &mut [0; 9]]), refused);
    let too_many: Vec<&[u8]> = vec![&short; 256];
    assert_eq!(generate(&too_many, &mut [&mut [0; 8]]), refused);
    assert_eq!(reconstruct(&mut [Column::Present(&long)], &mut [Column::Present(&short)]), refused);
    assert_eq!(reconstruct(&mut [Column::Ignored], &mut [Column::Present(&short)]), refused);
    assert_eq!(reconstruct(&mut [], &mut [Column::Present(&short)]), refused);
    assert_eq!(reconstruct(&mut [Column::Present(&long)], &mut [Column::Ignored]), Ok(()));
}

#[cfg(target_arch = "x86_64")]
mod kernels {
    use super::*;

    fn twins<const P: usize>(columns: &[&[u8]], terms: &[Term<'_>]) -> Result<(), TestCaseError> {
        let len = columns[0].len();
        let run = |compute: &dyn Fn(&mut [&mut [u8]; P])| {
            let mut out = vec![vec![0x77; len]; P];
            let mut views = out.iter_mut().map(Vec::as_mut_slice);
            compute(&mut std::array::from_fn(|_| views.next().unwrap()));
            out
        };
        let parity = run(&|out| portable::generate(columns, out, 0));
        let sums = run(&|out| portable::combine(terms, out, 0));
        for kernel in x86::Kernel::available() {
            let vector = run(&|out| {
                let done = x86::generate(kernel, columns, out);
                assert!(done + 256 > len, "a kernel that leaves the work to its twin");
                portable::generate(columns, out, done);
            });
            prop_assert_eq!(&vector, &parity, "{:?} generate {}", kernel, P);
            let vector = run(&|out| {
                let done = x86::combine(kernel, terms, out);
                portable::combine(terms, out, done);
            });
            prop_assert_eq!(&vector, &sums, "{:?} combine {}", kernel, P);
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn vectors_equal_their_twins(
            n in 1usize..12,
            len in 0usize..1500,
            skip in 0usize..64,
            seed: u64,
            coefficients in proptest::collection::vec(any::<[u8; 3]>(), 12),
        ) {
            // Columns begin at odd places of one buffer, so that alignments differ.
            let buffer = noise(12 * (len + 7) + skip, seed);
            let columns: Vec<&[u8]> = (0..n).map(|i| &buffer[skip + i * (len + 7)..][..len]).collect();
            let terms: Vec<Term<'_>> = columns
                .iter()
                .zip(coefficients)
                .map(|(bytes, coefficients)| Term { bytes, coefficients })
                .collect();
            twins::<1>(&columns, &terms)?;
            twins::<2>(&columns, &terms)?;
            twins::<3>(&columns, &terms)?;
        }
    }
}
