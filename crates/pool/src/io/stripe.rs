//! Reading a RAIDZ block: columns, parity, and finding out who lied.
//!
//! 1. Read the data cells. If a child is away, or was away when the block was written, or sits out because
//!    it is slow, read parity too and rebuild.
//! 2. If the checksum does not match, read everything there is, doubtful children included.
//! 3. Still wrong: some child returned other bytes than were written, silently. Assume each set of up
//!    to `parity` children in turn, rebuild what they hold, and let the checksum decide.
//!
//! Where devices are waited for as long as it takes, everything is read at once, and steps 2 and 3 are tried whenever a cell
//! comes: those that are still to come may never do.
//!
//! Facts: docs/format/vdevs.md §4.2 and, for expanded devices, §5.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use codec::parity;
use disk::IoBuf;
use smallvec::SmallVec;

use super::{
    Check, Reader,
    device::{Copy, OUTDATED, Range, alternatives},
    join::next_of,
    rebuild,
    trail::Trail,
};
use crate::vdev::{
    Geometry, Vdev,
    raidz::{Cell, Layout},
};

/// Suspect sets looked at for one block, whether or not they hold any of it: more than the widest device has.
const LOOKED_MAX: u64 = 4_000_000;
/// Suspect sets tried for one block: enough for every set of three among 50 children, and for wider
/// devices a bound on the time one bad block can take.
const SUSPECTS_MAX: usize = 20_000;
/// Bytes rebuilt and hashed for one block, for the same reason: about 4 s.
const REBUILT_BYTES_MAX: usize = 4 << 30;

/// What is known of one cell.
#[derive(Clone, Debug)]
enum Got<'a> {
    /// Not asked yet.
    Nothing,
    /// Asked in vain.
    Failed,
    /// These bytes, right or wrong.
    Data(Copy<'a>),
}

/// One block being read.
struct Block<'a> {
    vdev: &'a Vdev,
    layout: Layout,
    birth: u64,
    /// One entry per cell of each stripe.
    got: Vec<Vec<Got<'a>>>,
}

/// Cells to read, of which those that touch on a child travel together.
struct Wanted<'a> {
    /// Stripe, index in it, and the cell.
    cells: Vec<(usize, usize, Cell)>,
    runs: Vec<(&'a Vdev, Range)>,
    /// Of each cell: its run, in ascending order, and where it begins in that.
    run_of: SmallVec<[(usize, usize); 16]>,
}

/// Which cells to treat as lost although there are bytes for them.
type Suspects<'s> = dyn Fn(&Cell) -> bool + Send + Sync + 's;

impl Reader {
    /// A block on a RAIDZ device, verified by `check`.
    pub(super) async fn read_stripe(
        &self,
        vdev: &Vdev,
        geometry: &Geometry,
        range: Range,
        check: &Check<'_>,
        trail: &Trail,
    ) -> Option<Bytes> {
        let Some(layout) = geometry.layout(range.offset, range.len as u64, range.birth) else {
            trail.malformed(format!("{vdev} has no block of {} bytes at {:#x}", range.len, range.offset));
            return None;
        };
        let got = layout.stripes.iter().map(|stripe| vec![Got::Nothing; stripe.cells.len()]).collect();
        let mut block = Block { vdev, layout, birth: range.birth, got };
        if trail.is_endless()
            && let Some(mut data) = self.await_block(&mut block, geometry, range.len, check, trail).await
        {
            self.charge(&block, &data, true, trail);
            data.truncate(range.len);
            return Some(data.freeze());
        }
        let fresh = |child: &Vdev| child.is_readable() && !child.missed(range.birth);
        // One that is slow is left out as if it were away, unless that is one too many.
        let out = vdev.children.iter().filter(|child| !fresh(child) || child.sits_out()).count();
        let certain = |child: &Vdev| fresh(child) && (out > geometry.parity || !child.sits_out());

        let whole = vdev.children.iter().all(certain);
        self.fetch(
            &mut block,
            |index, cell, parity| (index >= parity || !whole) && certain(&vdev.children[cell.child]),
            0,
            trail,
        )
        .await;
        if whole && block.has_failures() {
            self.fetch(&mut block, |_, cell, _| certain(&vdev.children[cell.child]), 0, trail).await;
        }
        if let Some(mut data) = block.assemble(&|_| false)
            && check(&data[..range.len])
        {
            self.charge(&block, &data, false, trail);
            data.truncate(range.len);
            return Some(data.freeze());
        }

        // Whoever gave bytes that were compared with the checksum in vain.
        let mut suspects: BTreeMap<u64, (&Vdev, u64)> = BTreeMap::new();
        let mut outdated = BTreeSet::new();
        for other in 0..vdev.children.iter().map(alternatives).max().unwrap_or(1) {
            if other > 0 {
                block.forget();
            }
            self.fetch(&mut block, |_, _, _| true, other, trail).await;
            if let Some(mut data) = self.search(&block, geometry, range.len, check).await {
                self.charge(&block, &data, true, trail);
                data.truncate(range.len);
                return Some(data.freeze());
            }
            // Where too few have answered of those that were there when it was written, nobody is to blame but those who
            // did not answer.
            let out = block.outdated();
            if block.assemble(&|cell| out.contains(&cell.child)).is_some() {
                for (cell, copy) in block.answers() {
                    suspects.entry(copy.from.guid).or_insert((copy.from, cell.offset));
                }
            }
            outdated.extend(out);
        }
        if suspects.is_empty() {
            for child in outdated {
                let first = block.layout.stripes.iter().flat_map(|stripe| &stripe.cells);
                let first =
                    first.filter(|cell| cell.child == child && cell.len > 0).map(|cell| cell.offset).min();
                trail.fault(&vdev.children[child], first.unwrap_or_default(), OUTDATED);
            }
        }
        for (suspect, offset) in suspects.into_values() {
            self.mistrust(suspect, offset, block.birth, trail);
        }
        None
    }

    /// Reads all cells until the block can be put together from those that came, however long that takes. `None` if there
    /// are no more to come and it cannot.
    async fn await_block<'a>(
        &'a self,
        block: &mut Block<'a>,
        geometry: &Geometry,
        len: usize,
        check: &Check<'_>,
        trail: &'a Trail,
    ) -> Option<IoBuf> {
        let wanted = block.wanted(|_, _, _| true);
        let mut reads = Vec::with_capacity(wanted.runs.len());
        for &(vdev, range) in &wanted.runs {
            reads.push(Some(self.read_copy(vdev, range, 0, trail)));
        }
        while let Some((run, answer)) = next_of(&mut reads).await {
            let is_news = answer.is_some();
            block.put(&wanted, run, answer);
            if is_news
                && block.can_be_rebuilt(&|_| false)
                && let Some(data) = self.search(block, geometry, len, check).await
            {
                return Some(data);
            }
        }
        None
    }

    /// Reads the cells that `wanted` (index in the stripe, cell, parity cells) names and that were not
    /// asked for yet.
    async fn fetch<'a>(
        &'a self,
        block: &mut Block<'a>,
        wanted: impl Fn(usize, &Cell, usize) -> bool,
        other: usize,
        trail: &'a Trail,
    ) {
        let wanted = block.wanted(wanted);
        let answers = self.read_copies(&wanted.runs, other, trail).await;
        for (run, answer) in answers.into_iter().enumerate() {
            block.put(&wanted, run, answer);
        }
    }

    /// Tries suspects until the checksum matches.
    async fn search(
        &self,
        block: &Block<'_>,
        geometry: &Geometry,
        len: usize,
        check: &Check<'_>,
    ) -> Option<IoBuf> {
        if let Some(data) = block.assemble(&|_| false)
            && check(&data[..len])
        {
            return Some(data);
        }
        let mut looked = 0u64;
        let mut attempts = SUSPECTS_MAX.min(REBUILT_BYTES_MAX / block.layout.padded.max(1));
        // On an expanded device the damage may have happened when the device was narrower, and was moved
        // with the sectors since: suspect its children at each width it ever had.
        let narrowest =
            if block.layout.stripes.len() > 1 { geometry.original_width() } else { geometry.children };
        for width in (narrowest..=geometry.children).rev() {
            for count in 1..=geometry.parity.min(width) {
                let mut suspects: SmallVec<[usize; 3]> = (0..count).collect();
                loop {
                    // Sets that hold none of the block cost little each, and there may be very many.
                    looked += 1;
                    if looked > LOOKED_MAX {
                        return None;
                    }
                    if looked.is_multiple_of(4096) {
                        tokio::task::yield_now().await;
                    }
                    let suspected = |cell: &Cell| suspects.contains(&((cell.number % width as u64) as usize));
                    if block.depends_on(&suspected)
                        && block.can_be_rebuilt(&suspected)
                        && let Some(data) = block.assemble(&suspected)
                    {
                        if check(&data[..len]) {
                            return Some(data);
                        }
                        attempts -= 1;
                        if attempts == 0 {
                            return None;
                        }
                        if attempts.is_multiple_of(16) {
                            tokio::task::yield_now().await;
                        }
                    }
                    if !next_combination(&mut suspects, width) {
                        break;
                    }
                }
            }
        }
        None
    }

    /// Compares what children returned with what is now known to be right, and counts the differences.
    /// `searched`: data cells may differ too, otherwise only parity can.
    fn charge(&self, block: &Block<'_>, data: &[u8], searched: bool, trail: &Trail) {
        if !self.counts() {
            return;
        }
        let mut guilty: BTreeMap<u64, &Vdev> = BTreeMap::new();
        for (stripe, got) in block.layout.stripes.iter().zip(&block.got) {
            let (parity_got, data_got) = got.split_at(block.layout.parity);
            let (parity_cells, data_cells) = stripe.cells.split_at(block.layout.parity);
            if searched {
                for (cell, got) in data_cells.iter().zip(data_got) {
                    if let Got::Data(copy) = got
                        && copy.data[..] != data[cell.start..cell.start + cell.len]
                    {
                        guilty.insert(copy.from.guid, copy.from);
                    }
                }
            }
            if parity_got.iter().all(|got| !matches!(got, Got::Data(_))) {
                continue;
            }
            let columns: SmallVec<[&[u8]; 12]> = data_cells
                .iter()
                .map(|cell| if cell.len == 0 { &[][..] } else { &data[cell.start..cell.start + cell.len] })
                .collect();
            let mut right: Vec<Vec<u8>> = parity_cells.iter().map(|cell| vec![0; cell.len]).collect();
            let generated = {
                let mut slices: SmallVec<[&mut [u8]; 3]> = right.iter_mut().map(|p| &mut p[..]).collect();
                parity::generate(&columns, &mut slices)
            };
            if generated.is_err() {
                continue;
            }
            for (right, got) in right.iter().zip(parity_got) {
                if let Got::Data(copy) = got
                    && copy.data[..] != right[..]
                {
                    guilty.insert(copy.from.guid, copy.from);
                }
            }
        }
        for vdev in guilty.into_values() {
            self.count_wrong(vdev, block.birth, trail);
        }
    }
}

impl<'a> Block<'a> {
    /// The cells that `wanted` names and that were not asked for yet.
    fn wanted(&self, wanted: impl Fn(usize, &Cell, usize) -> bool) -> Wanted<'a> {
        let mut cells: Vec<(usize, usize, Cell)> = Vec::new();
        for (s, stripe) in self.layout.stripes.iter().enumerate() {
            for (c, cell) in stripe.cells.iter().enumerate() {
                let open = matches!(self.got[s][c], Got::Nothing) && cell.len > 0;
                if open && wanted(c, cell, self.layout.parity) {
                    cells.push((s, c, *cell));
                }
            }
        }
        cells.sort_unstable_by_key(|(_, _, cell)| (cell.child, cell.scratch, cell.offset));
        let mut runs: Vec<(&'a Vdev, Range)> = Vec::new();
        let mut run_of: SmallVec<[(usize, usize); 16]> = SmallVec::new();
        let mut previous: Option<Cell> = None;
        for (_, _, cell) in &cells {
            let touches = previous.is_some_and(|p| {
                p.child == cell.child && p.scratch == cell.scratch && p.offset + p.len as u64 == cell.offset
            });
            let number = runs.len();
            if let Some((_, run)) = runs.last_mut().filter(|_| touches) {
                run_of.push((number - 1, run.len));
                run.len += cell.len;
            } else {
                run_of.push((number, 0));
                let range =
                    Range { offset: cell.offset, len: cell.len, birth: self.birth, scratch: cell.scratch };
                runs.push((&self.vdev.children[cell.child], range));
            }
            previous = Some(*cell);
        }
        Wanted { cells, runs, run_of }
    }

    /// Notes what became of a run.
    fn put(&mut self, wanted: &Wanted<'_>, run: usize, answer: Option<Copy<'a>>) {
        let first = wanted.run_of.partition_point(|(of, _)| *of < run);
        let cells = wanted.cells[first..].iter().zip(&wanted.run_of[first..]);
        for ((s, c, cell), (_, start)) in cells.take_while(|(_, (of, _))| *of == run) {
            self.got[*s][*c] = match &answer {
                Some(copy) => {
                    Got::Data(Copy { data: copy.data.slice(*start..start + cell.len), from: copy.from })
                }
                None => Got::Failed,
            };
        }
    }

    fn has_failures(&self) -> bool {
        self.got.iter().flatten().any(|got| matches!(got, Got::Failed))
    }

    fn answers(&self) -> impl Iterator<Item = (&Cell, &Copy<'a>)> {
        let cells = self.layout.stripes.iter().flat_map(|stripe| &stripe.cells);
        cells.zip(self.got.iter().flatten()).filter_map(|(cell, got)| match got {
            Got::Data(copy) => Some((cell, copy)),
            _ => None,
        })
    }

    /// Whether there is enough parity for what is lost or suspected; costs nothing where there is not.
    fn can_be_rebuilt(&self, suspects: &Suspects<'_>) -> bool {
        self.layout.stripes.iter().zip(&self.got).all(|(stripe, got)| {
            let is_known = |(cell, got): &(&Cell, &Got<'_>)| matches!(got, Got::Data(_)) && !suspects(cell);
            let mut cells = stripe.cells.iter().zip(got);
            let parity = cells.by_ref().take(self.layout.parity).filter(is_known).count();
            cells.filter(|pair| pair.0.len > 0 && !is_known(pair)).count() <= parity
        })
    }

    /// The children whose bytes may be older than the block.
    fn outdated(&self) -> BTreeSet<usize> {
        let is_outdated = |got: &Got<'_>| matches!(got, Got::Data(copy) if copy.from.missed(self.birth));
        let all =
            self.layout.stripes.iter().zip(&self.got).flat_map(|(stripe, got)| stripe.cells.iter().zip(got));
        all.filter(|(_, got)| is_outdated(got)).map(|(cell, _)| cell.child).collect()
    }

    fn forget(&mut self) {
        self.got.iter_mut().flatten().for_each(|got| *got = Got::Nothing);
    }

    /// Whether treating `suspects` as lost changes the data at all. Parity does where data is rebuilt from it.
    fn depends_on(&self, suspects: &Suspects<'_>) -> bool {
        self.layout.stripes.iter().zip(&self.got).any(|(stripe, got)| {
            let parity = self.layout.parity;
            let is_held = |got: &Got<'_>| matches!(got, Got::Data(_));
            let cells = || stripe.cells.iter().zip(got).enumerate().filter(|(_, (cell, _))| cell.len > 0);
            let rebuilds = cells().any(|(index, (_, got))| index >= parity && !is_held(got));
            cells()
                .any(|(index, (cell, got))| (index >= parity || rebuilds) && is_held(got) && suspects(cell))
        })
    }

    /// The block, with everything lost or suspected rebuilt from parity. `None` if too much is.
    fn assemble(&self, suspects: &Suspects<'_>) -> Option<IoBuf> {
        let mut block = IoBuf::with_len(self.layout.padded);
        for (stripe, got) in self.layout.stripes.iter().zip(&self.got) {
            let known = |cell: usize| match &got[cell] {
                Got::Data(copy) if !suspects(&stripe.cells[cell]) => Some(&copy.data[..]),
                _ => None,
            };
            rebuild::fill(&self.layout, stripe, known, &mut block)?;
        }
        Some(block)
    }
}

/// The next set of numbers below `bound` of the same size, lowest moving first; false after the last.
fn next_combination(set: &mut [usize], bound: usize) -> bool {
    for i in 0..set.len() {
        let limit = set.get(i + 1).copied().unwrap_or(bound);
        if set[i] + 1 < limit {
            set[i] += 1;
            for (lower, value) in set[..i].iter_mut().enumerate() {
                *value = lower;
            }
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::next_combination;

    #[test]
    fn combinations_are_complete_and_in_order() {
        let mut set = [0, 1];
        let mut seen = vec![set];
        while next_combination(&mut set, 4) {
            seen.push(set);
        }
        assert_eq!(seen, [[0, 1], [0, 2], [1, 2], [0, 3], [1, 3], [2, 3]]);
        let mut all = [0, 1, 2];
        assert!(!next_combination(&mut all, 3));
    }
}
