//! Where the bytes of a RAIDZ block lie: geometry only, no I/O and no parity arithmetic.
//!
//! The sectors of a RAIDZ device are numbered across its children, row after row. A block takes
//! consecutive numbers; seen as a table of `width` columns, its first `parity` columns hold P, Q, R and
//! the block's bytes run *down* the data columns, one after the other:
//!
//! ```text
//!   width 4, parity 1, 8 data sectors        child0 child1 child2 child3
//!   bytes: D00 D01 D02 | D10 D11 D12 | …                            P0
//!                                             D00    D10    D20     P1
//!                                             D01    D11    D21     P2
//!                                             D02    D12    skip
//! ```
//!
//! A [`Stripe`] is a set of cells that share parity. On a device that was never expanded the whole
//! block is one stripe, whose cells are whole columns (each contiguous on its child). On an expanded
//! device a block keeps the width it was written with but its sectors lie as if the device had
//! always been wider, so a column is scattered: there every row is a stripe of one-sector cells.
//!
//! Invariant used by the reader: within one stripe no child appears twice, so losing a child loses
//! at most one cell of each stripe.
//!
//! Facts: docs/format/vdevs.md §3 and §5.

use smallvec::SmallVec;

/// The largest block (bytes) a pointer may ask for.
const PSIZE_MAX: u64 = 32 << 20;

/// Shape of one RAIDZ top-level device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Children now.
    pub children: usize,
    /// 1, 2 or 3.
    pub parity: usize,
    /// log2 of the sector, 9…16.
    pub ashift: u32,
    /// Transaction groups in which expansions finished, ascending.
    pub expand_txgs: Vec<u64>,
    /// Bytes (of DVA space) already moved, while an expansion is running.
    pub reflow: Option<Reflow>,
}

/// How far a running expansion has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reflow {
    /// Everything that ends at or before this DVA byte lies at its new place.
    pub offset: u64,
    /// The scratch area holds the first rows (a crash in the very first step): they are read from the
    /// boot area instead.
    pub scratch: bool,
}

/// A piece of a block on one child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Index of the child.
    pub child: usize,
    /// Byte offset on the child, labels not counted.
    pub offset: u64,
    /// Bytes; 0 for a cell below the end of a short column.
    pub len: usize,
    /// Position in the block; meaningless for parity.
    pub start: usize,
    /// Number of the cell's first sector in the order of the device's rows.
    pub number: u64,
    /// Lies in the boot area, 3.5 MiB before its nominal offset.
    pub scratch: bool,
}

/// Cells that share parity: the first [`Layout::parity`] are P, Q, R.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stripe {
    /// Parity first, then data in order.
    pub cells: SmallVec<[Cell; 12]>,
}

/// Where one block lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Parity cells per stripe.
    pub parity: usize,
    /// One, or one per row on an expanded device.
    pub stripes: Vec<Stripe>,
    /// The block's length rounded up to sectors.
    pub padded: usize,
}

impl Geometry {
    /// The width blocks born in `birth` (physical birth) were written with.
    #[must_use]
    pub fn logical_width(&self, birth: u64) -> usize {
        let settled = self.children - usize::from(self.reflow.is_some());
        let later = self.expand_txgs.iter().filter(|&&txg| birth < txg).count();
        settled.saturating_sub(later).max(self.parity + 1).min(self.children)
    }

    /// The width of the device when it was created.
    #[must_use]
    pub fn original_width(&self) -> usize {
        self.logical_width(0)
    }

    /// Bytes a block of `psize` bytes takes when written at `width`, parity and padding included.
    #[must_use]
    pub fn allocated(&self, psize: u64, width: usize) -> u64 {
        let parity = self.parity as u64;
        let data = psize.div_ceil(1 << self.ashift);
        let rows = data.div_ceil((width as u64).saturating_sub(parity).max(1));
        (data + rows * parity).next_multiple_of(parity + 1) << self.ashift
    }

    /// Where a block of `psize` bytes at DVA offset `offset` lies. `None` if no block can lie there:
    /// the offset is not on a sector, or the sizes are out of range.
    #[must_use]
    pub fn layout(&self, offset: u64, psize: u64, birth: u64) -> Option<Layout> {
        let sector = 1u64 << self.ashift;
        let in_range = psize > 0 && psize <= PSIZE_MAX && offset.is_multiple_of(sector) && offset < 1 << 62;
        if !in_range || self.children <= self.parity {
            return None;
        }
        let width = self.logical_width(birth);
        let table = Table::new(psize.div_ceil(sector) as usize, width, self.parity);
        let first = offset >> self.ashift;
        // A permanent rule of single parity: in every second MiB, P and the first data column change
        // places, so that parity is not always on the same child.
        let swapped = self.parity == 1 && offset & 0x10_0000 != 0;
        let stripes = if width == self.children && self.reflow.is_none() {
            vec![self.whole(&table, first, swapped)]
        } else {
            (0..table.rows).map(|row| self.row(&table, first, row, swapped)).collect()
        };
        Some(Layout { parity: self.parity, stripes, padded: table.data_sectors << self.ashift })
    }

    /// The only stripe of a block whose columns are contiguous.
    fn whole(&self, table: &Table, first: u64, swapped: bool) -> Stripe {
        let mut cells: SmallVec<[Cell; 12]> = (0..table.columns())
            .map(|column| {
                let len = table.height(column) << self.ashift;
                let start = table.start(column) << self.ashift;
                self.place(first + column as u64, self.children, len, start)
            })
            .collect();
        swap_places(&mut cells, swapped);
        Stripe { cells }
    }

    /// One row of a block on an expanded device.
    fn row(&self, table: &Table, first: u64, row: usize, swapped: bool) -> Stripe {
        let sector = 1usize << self.ashift;
        let row_first = first + (row * table.width) as u64;
        let row_end = (row_first + table.columns() as u64) << self.ashift;
        let moved = self.reflow.is_none_or(|reflow| row_end <= reflow.offset);
        let children = if moved { self.children } else { self.children - 1 };
        let scratch = moved && self.reflow.is_some_and(|reflow| reflow.scratch);
        let mut cells: SmallVec<[Cell; 12]> = (0..table.columns())
            .map(|column| {
                let len = if row < table.height(column) { sector } else { 0 };
                let start = (table.start(column) + row) << self.ashift;
                Cell { scratch, ..self.place(row_first + column as u64, children, len, start) }
            })
            .collect();
        swap_places(&mut cells, swapped);
        Stripe { cells }
    }

    fn place(&self, number: u64, children: usize, len: usize, start: usize) -> Cell {
        let child = (number % children as u64) as usize;
        let offset = (number / children as u64) << self.ashift;
        Cell { child, offset, len, start, number, scratch: false }
    }
}

/// Exchanges where the first two cells lie; what they hold stays.
fn swap_places(cells: &mut [Cell], swapped: bool) {
    if let ([a, b, ..], true) = (cells, swapped) {
        std::mem::swap(&mut a.child, &mut b.child);
        std::mem::swap(&mut a.offset, &mut b.offset);
        std::mem::swap(&mut a.number, &mut b.number);
    }
}

/// A block as a table of columns: how many cells each has.
struct Table {
    data_sectors: usize,
    width: usize,
    parity: usize,
    rows: usize,
    /// Cells every data column has.
    full_rows: usize,
    /// Data columns that have one more.
    long: usize,
}

impl Table {
    fn new(data_sectors: usize, width: usize, parity: usize) -> Self {
        let data_columns = width - parity;
        let (full_rows, long) = (data_sectors / data_columns, data_sectors % data_columns);
        Self { data_sectors, width, parity, rows: data_sectors.div_ceil(data_columns), full_rows, long }
    }

    fn columns(&self) -> usize {
        self.parity + (self.width - self.parity).min(self.data_sectors)
    }

    fn height(&self, column: usize) -> usize {
        match column.checked_sub(self.parity) {
            None => self.rows,
            Some(data) => self.full_rows + usize::from(data < self.long),
        }
    }

    /// First data sector of a data column.
    fn start(&self, column: usize) -> usize {
        let data = column.saturating_sub(self.parity);
        data * self.full_rows + data.min(self.long)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry(children: usize, parity: usize, ashift: u32) -> Geometry {
        Geometry { children, parity, ashift, expand_txgs: vec![], reflow: None }
    }

    #[test]
    fn sizes_of_the_table_in_the_format_page() {
        for (width, parity, ashift, psize, asize) in [
            (3, 1, 12, 4, 8),
            (4, 1, 9, 4, 6),
            (4, 1, 12, 128, 176),
            (5, 1, 12, 16, 24),
            (6, 2, 12, 4, 12),
            (6, 2, 12, 16, 24),
            (8, 2, 12, 128, 180),
            (7, 3, 9, 1, 4),
        ] {
            assert_eq!(geometry(width, parity, ashift).allocated(psize << 10, width), asize << 10);
        }
    }

    #[test]
    fn real_block_with_swapped_parity() {
        let layout = geometry(4, 1, 9).layout(0x81e_5c00, 0x1000, 5).unwrap();
        let got: Vec<_> =
            layout.stripes[0].cells.iter().map(|c| (c.child, c.offset, c.len, c.start)).collect();
        let expected = [
            (3, 0x207_9600, 0x600, 0),
            (2, 0x207_9600, 0x600, 0),
            (0, 0x207_9800, 0x600, 0x600),
            (1, 0x207_9800, 0x400, 0xc00),
        ];
        assert_eq!(got, expected);
    }

    #[test]
    fn real_block_of_a_running_expansion() {
        let reflow = Reflow { offset: 1_590_885_376, scratch: false };
        let geometry = Geometry { reflow: Some(reflow), ..geometry(5, 1, 9) };
        let layout = geometry.layout(0x1800_9c00, 0x1000, 6).unwrap();
        let got: Vec<Vec<_>> = layout
            .stripes
            .iter()
            .map(|s| {
                s.cells.iter().filter(|c| c.len > 0).map(|c| (c.child, c.offset, c.start >> 9)).collect()
            })
            .collect();
        assert_eq!(got[0], [(0, 0x4cc_ec00, 0), (1, 0x4cc_ec00, 0), (2, 0x4cc_ec00, 3), (3, 0x4cc_ec00, 6)]);
        assert_eq!(got[1], [(4, 0x4cc_ec00, 1), (0, 0x4cc_ee00, 1), (1, 0x4cc_ee00, 4), (2, 0x4cc_ee00, 7)]);
        assert_eq!(got[2], [(3, 0x4cc_ee00, 2), (4, 0x4cc_ee00, 2), (0, 0x4cc_f000, 5)]);
    }

    #[test]
    fn every_byte_lies_somewhere_and_no_two_cells_overlap() {
        for (children, parity, expanded) in
            [(3, 1, 0), (5, 1, 1), (6, 2, 0), (7, 2, 2), (9, 3, 0), (9, 3, 1), (4, 3, 0)]
        {
            let geometry = Geometry {
                expand_txgs: (1..=expanded).map(|i| i * 100).collect(),
                ..geometry(children, parity, 12)
            };
            for (offset, sectors, birth) in
                [(0, 1, 1), (0x10_0000, 7, 1), (0x12_3000, 33, 150), (0x3000, 256, 9999), (0x1000, 5, 1)]
            {
                let layout = geometry.layout(offset, sectors << 12, birth).unwrap();
                let mut covered = vec![0u8; (sectors as usize) << 12];
                let mut places = std::collections::BTreeSet::new();
                for stripe in &layout.stripes {
                    let children: std::collections::BTreeSet<_> =
                        stripe.cells.iter().map(|c| c.child).collect();
                    assert_eq!(children.len(), stripe.cells.len(), "a child twice in one stripe");
                    for (i, cell) in stripe.cells.iter().enumerate() {
                        for sector in 0..cell.len >> 12 {
                            assert!(places.insert((cell.child, cell.offset + ((sector as u64) << 12))));
                        }
                        if i >= parity {
                            covered[cell.start..cell.start + cell.len].iter_mut().for_each(|b| *b += 1);
                        }
                    }
                }
                assert!(covered.iter().all(|&times| times == 1));
            }
        }
    }

    #[test]
    fn nonsense_has_no_layout() {
        let geometry = geometry(4, 1, 12);
        assert!(geometry.layout(512, 4096, 1).is_none());
        assert!(geometry.layout(0, 0, 1).is_none());
        assert!(geometry.layout(0, u64::MAX, 1).is_none());
        assert!(geometry.layout(u64::MAX << 12, 4096, 1).is_none());
    }
}
