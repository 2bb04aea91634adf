//! One stripe of a RAIDZ block from those of its cells that are known.

use codec::parity::{self, Column};
use smallvec::SmallVec;

use crate::vdev::raidz::{Layout, Stripe};

/// Puts the data of `stripe` into its places in `block`: cells that `known` has bytes for, by their numbers in the stripe,
/// as they are, the others rebuilt from parity. `None` if too many are not known; the block has some of them then.
pub(super) fn fill<'g>(
    layout: &Layout,
    stripe: &Stripe,
    known: impl Fn(usize) -> Option<&'g [u8]>,
    block: &mut [u8],
) -> Option<()> {
    let cells = || stripe.cells.iter().enumerate();
    let mut missing = false;
    for (number, cell) in cells().skip(layout.parity).filter(|(_, cell)| cell.len > 0) {
        match known(number) {
            Some(data) => block[cell.start..cell.start + cell.len].copy_from_slice(data),
            None => missing = true,
        }
    }
    if !missing {
        return Some(());
    }
    let mut parity: SmallVec<[Column<'_>; 3]> = cells()
        .take(layout.parity)
        .map(|(number, _)| known(number).map_or(Column::Ignored, Column::Present))
        .collect();
    // Data cells of a stripe ascend in the block and do not overlap, so the block can be cut up.
    let (mut rest, mut at) = (block, 0);
    let mut columns: SmallVec<[Column<'_>; 12]> = SmallVec::new();
    for (number, cell) in cells().skip(layout.parity) {
        if cell.len == 0 {
            columns.push(Column::Present(&[]));
            continue;
        }
        let (_, from_cell) = rest.split_at_mut(cell.start - at);
        let (own, after) = from_cell.split_at_mut(cell.len);
        (rest, at) = (after, cell.start + cell.len);
        columns.push(if known(number).is_some() { Column::Present(own) } else { Column::Missing(own) });
    }
    parity::reconstruct(&mut columns, &mut parity).ok()
}
