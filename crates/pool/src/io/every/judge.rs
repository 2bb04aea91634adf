//! What was read against what should be there: whole copies, and RAIDZ blocks cell by cell.
//!
//! A cell that nobody gave (its child is away, or lacks the block) is rebuilt from parity on the spot; only when the
//! result is not what the pointer promises, the ordinary read path is asked for the truth.

use bytes::Bytes;
use codec::parity;
use disk::IoBuf;
use ondisk::blkptr::BlkPtr;
use smallvec::SmallVec;

use super::{Examined, Extent, Got, Job, Place, Plan, add, evidence, note};
use crate::{
    io::{Reader, device::Range, rebuild, trail::Trail},
    vdev::{Geometry, Kind, Vdev, raidz::Layout},
};

/// Extents of each cell of a layout, in order.
type Cells = [SmallVec<[usize; 1]>];

impl Examined {
    /// This leaf gave other bytes than were written there.
    fn wrong(&mut self, extent: &Extent<'_>, place: usize, fault: &str) {
        add(&mut self.evidence, evidence(extent, fault));
        note(&mut self.corrupt, extent.leaf.guid);
        note(&mut self.places[place].wrong, extent.leaf.guid);
    }

    /// This leaf gave nothing.
    fn failed(&mut self, extent: &Extent<'_>, place: usize) {
        add(&mut self.evidence, evidence(extent, "read error"));
        note(&mut self.refused, extent.leaf.guid);
        note(&mut self.places[place].wrong, extent.leaf.guid);
    }

    /// This leaf did not answer in time; whoever watches it counts that once, however many blocks were asked for.
    fn late(&mut self, extent: &Extent<'_>, is_news: bool) {
        add(&mut self.evidence, evidence(extent, "it did not answer in time"));
        if is_news {
            note(&mut self.refused, extent.leaf.guid);
        }
    }
}

impl Reader {
    pub(super) fn judge_run(
        &self,
        job: &Job<'_>,
        extents: &[usize],
        plan: &Plan<'_>,
        got: &mut [Got],
        place: usize,
        outcome: &mut Examined,
    ) -> bool {
        if let [i] = *extents {
            match std::mem::replace(&mut got[i], Got::Failed) {
                Got::Right(raw) => {
                    if outcome.raw.is_none() {
                        outcome.raw = raw;
                    }
                    return true;
                }
                Got::Wrong | Got::Bytes(_) => self.blame(job, &plan.extents[i], place, outcome),
                Got::Late { is_news } => outcome.late(&plan.extents[i], is_news),
                Got::Failed => outcome.failed(&plan.extents[i], place),
            }
            return false;
        }
        let mut block = Vec::with_capacity(job.len);
        for &i in extents {
            match &got[i] {
                Got::Bytes(data) => block.extend_from_slice(data),
                _ => {
                    add(&mut outcome.evidence, evidence(&plan.extents[i], "read error"));
                    return false;
                }
            }
        }
        if self.proves(job, &block) {
            if outcome.raw.is_none() && job.want {
                outcome.raw = Some(Bytes::from(block));
            }
            return true;
        }
        for &i in extents {
            add(&mut outcome.evidence, evidence(&plan.extents[i], "checksum mismatch"));
            self.count_wrong(plan.extents[i].leaf, job.birth, &Trail::default());
        }
        false
    }

    fn blame(&self, job: &Job<'_>, extent: &Extent<'_>, place: usize, outcome: &mut Examined) {
        outcome.wrong(extent, place, "checksum mismatch");
        self.count_wrong(extent.leaf, job.birth, &Trail::default());
    }

    /// Whether the data is right as it was read, or could be rebuilt at once; notes which cells do not fit it.
    pub(super) fn judge_stripe(
        &self,
        job: &Job<'_>,
        (layout, cells): (&Layout, &Cells),
        plan: &Plan<'_>,
        got: &[Got],
        place: usize,
        outcome: &mut Examined,
    ) -> bool {
        let Some(block) = assemble(layout, cells, got) else { return false };
        if !self.proves(job, &block[..job.len]) {
            return false;
        }
        let Some(parity) = parity_of(layout, &block) else { return false };
        self.blame_cells(job, (layout, cells), (&block, &parity), plan, got, place, outcome, &[]);
        let block = block.freeze();
        if outcome.raw.is_none() && job.want {
            outcome.raw = Some(block.slice(..job.len));
        }
        outcome.places[place].padded = Some(block).filter(|_| job.want);
        true
    }

    /// Gets the truth from the ordinary read path and compares every cell with it.
    #[expect(clippy::too_many_arguments, reason = "one step of `run`, which has all of them at hand")]
    pub(super) async fn compare(
        &self,
        job: &Job<'_>,
        (vdev, geometry, range): (&Vdev, &Geometry, Range),
        (layout, cells): (&Layout, &Cells),
        plan: &Plan<'_>,
        got: &[Got],
        place: usize,
        outcome: &mut Examined,
    ) -> bool {
        let trail = Trail::of_scan();
        if !job.proof.is_one() {
            trail.be_blind();
        }
        let check = |data: &[u8]| self.proves(job, data);
        let Some(truth) = self.read_stripe(vdev, geometry, range, &check, &trail).await else {
            let (_, evidence) = trail.conclude();
            evidence.into_iter().for_each(|one| add(&mut outcome.evidence, one));
            // Whose fault it is nobody knows. If another place has the block, all of this one is written anew.
            for &i in cells.iter().flatten().filter(|&&i| !matches!(got[i], Got::Late { .. })) {
                note(&mut outcome.places[place].wrong, plan.extents[i].leaf.guid);
            }
            return false;
        };
        let mut block = vec![0; layout.padded];
        block[..truth.len()].copy_from_slice(&truth);
        // What pads the last sector is covered by parity and not by the checksum: zeroes, unless the sector is
        // otherwise right and holds something else.
        for (number, cell) in layout.stripes.iter().flat_map(|stripe| &stripe.cells).enumerate() {
            let (end, inside) = (cell.start + cell.len, truth.len().saturating_sub(cell.start));
            let is_last = cell.start < truth.len() && end > truth.len() && number_is_data(layout, number);
            if let (true, Some(data)) = (is_last, first(&cells[number], got))
                && data[..inside] == truth[cell.start..]
            {
                block[truth.len()..end].copy_from_slice(&data[inside..]);
            }
        }
        let counted = trail.take_guilty().map(|guilty| guilty.corrupt).unwrap_or_default();
        if let Some(parity) = parity_of(layout, &block) {
            let right = (&block[..], &parity[..]);
            self.blame_cells(job, (layout, cells), right, plan, got, place, outcome, &counted);
            self.let_off(job, vdev, layout, right, &mut outcome.places[place].lacking).await;
        }
        if job.want {
            outcome.places[place].padded = Some(Bytes::from(block));
            outcome.raw.get_or_insert(truth);
        }
        true
    }

    /// Takes those off the list of leaves that lack something which have all of it nevertheless. Too few others could be
    /// trusted, so the only copy may be theirs, and what is right is not written again. Where nothing tells what is right
    /// they were not asked.
    async fn let_off(
        &self,
        job: &Job<'_>,
        vdev: &Vdev,
        layout: &Layout,
        (block, parity): (&[u8], &[Vec<Vec<u8>>]),
        lacking: &mut SmallVec<[u64; 2]>,
    ) {
        if !job.proof.is_one() {
            return;
        }
        let mut stale: SmallVec<[u64; 4]> = SmallVec::new();
        for (stripe, parity) in layout.stripes.iter().zip(parity) {
            for (c, cell) in stripe.cells.iter().enumerate().filter(|(_, cell)| cell.len > 0) {
                let expected =
                    parity.get(c).map_or_else(|| &block[cell.start..cell.start + cell.len], |p| &p[..]);
                for leaf in vdev.children[cell.child].leaves() {
                    if !lacking.contains(&leaf.guid) || stale.contains(&leaf.guid) {
                        continue;
                    }
                    let range =
                        Range { offset: cell.offset, len: cell.len, birth: job.birth, scratch: cell.scratch };
                    let is_right = self
                        .read_leaf(leaf, range, &Trail::quiet())
                        .await
                        .is_some_and(|data| data[..] == *expected);
                    if !is_right {
                        stale.push(leaf.guid);
                    }
                }
            }
        }
        lacking.retain(|guid| stale.contains(guid));
    }

    /// The same of the sides of mirrors, and of single leaves, when only somebody who is said to lack the block had it.
    pub(super) async fn let_off_sides(&self, bp: &BlkPtr, places: &mut [Place]) {
        let algorithm = self.algorithm(bp, &Trail::default());
        let Some(algorithm) = algorithm.filter(|algorithm| algorithm.is_verified()) else { return };
        for place in places.iter_mut().filter(|place| !place.lacking.is_empty()) {
            let Some(top) = self.tree.top(place.vdev).filter(|top| !matches!(top.kind, Kind::Raidz(_)))
            else {
                continue;
            };
            let range =
                Range { offset: place.offset, len: bp.psize() as usize, birth: place.birth, scratch: false };
            for leaf in top.leaves() {
                if place.lacking.contains(&leaf.guid)
                    && let Some(data) = self.read_leaf(leaf, range, &Trail::quiet()).await
                    && self.verifies(bp, algorithm, &data)
                {
                    place.lacking.retain(|guid| *guid != leaf.guid);
                }
            }
        }
    }

    /// Notes which cells were read as something else than is right. Those of `counted` were charged already.
    #[expect(clippy::too_many_arguments, reason = "the tail of both judgements")]
    fn blame_cells(
        &self,
        job: &Job<'_>,
        (layout, cells): (&Layout, &Cells),
        (block, parity): (&[u8], &[Vec<Vec<u8>>]),
        plan: &Plan<'_>,
        got: &[Got],
        place: usize,
        outcome: &mut Examined,
        counted: &[u64],
    ) {
        let mut number = 0;
        let mut charged: SmallVec<[u64; 4]> = SmallVec::from_slice(counted);
        for (stripe, parity) in layout.stripes.iter().zip(parity) {
            for (c, cell) in stripe.cells.iter().enumerate() {
                let expected =
                    parity.get(c).map_or_else(|| &block[cell.start..cell.start + cell.len], |p| &p[..]);
                for &i in &cells[number] {
                    let extent = &plan.extents[i];
                    match &got[i] {
                        Got::Bytes(data) if data[..] == *expected => {}
                        Got::Bytes(_) => {
                            let fault = if c < layout.parity { "wrong parity" } else { "checksum mismatch" };
                            outcome.wrong(extent, place, fault);
                            if !charged.contains(&extent.leaf.guid) {
                                charged.push(extent.leaf.guid);
                                self.count_wrong(extent.leaf, job.birth, &Trail::default());
                            }
                        }
                        Got::Late { is_news } => outcome.late(extent, *is_news),
                        _ => outcome.failed(extent, place),
                    }
                }
                number += 1;
            }
        }
    }
}

/// The data of the block, what nobody gave rebuilt from parity; `None` if too much is missing.
fn assemble(layout: &Layout, cells: &Cells, got: &[Got]) -> Option<IoBuf> {
    let mut block = IoBuf::with_len(layout.padded);
    let mut number = 0;
    for stripe in &layout.stripes {
        let of_stripe = &cells[number..number + stripe.cells.len()];
        let known = |cell: usize| first(&of_stripe[cell], got).map(|data| &data[..]);
        rebuild::fill(layout, stripe, known, &mut block)?;
        number += stripe.cells.len();
    }
    Some(block)
}

/// What the first leaf that answered gave for a cell.
fn first<'g>(cell: &[usize], got: &'g [Got]) -> Option<&'g Bytes> {
    cell.iter().find_map(|&i| match &got[i] {
        Got::Bytes(data) => Some(data),
        _ => None,
    })
}

fn number_is_data(layout: &Layout, number: usize) -> bool {
    let mut before = 0;
    for stripe in &layout.stripes {
        if number < before + stripe.cells.len() {
            return number - before >= layout.parity;
        }
        before += stripe.cells.len();
    }
    false
}

/// The parity cells of each stripe that belong to `block`.
fn parity_of(layout: &Layout, block: &[u8]) -> Option<Vec<Vec<Vec<u8>>>> {
    let mut all = Vec::with_capacity(layout.stripes.len());
    for stripe in &layout.stripes {
        let (parity_cells, data_cells) = stripe.cells.split_at(layout.parity);
        let data: SmallVec<[&[u8]; 12]> = data_cells
            .iter()
            .map(|cell| if cell.len == 0 { &[][..] } else { &block[cell.start..cell.start + cell.len] })
            .collect();
        let mut right: Vec<Vec<u8>> = parity_cells.iter().map(|cell| vec![0; cell.len]).collect();
        {
            let mut slices: SmallVec<[&mut [u8]; 3]> = right.iter_mut().map(|cell| &mut cell[..]).collect();
            parity::generate(&data, &mut slices).ok()?;
        }
        all.push(right);
    }
    Some(all)
}
