//! Reading *every* copy of blocks, where ordinary reads stop at the first good one: what a scrub does.
//!
//! ```text
//!   blocks ─▶ copies: each DVA × each side of a mirror │ each RAIDZ block with all its cells
//!          ─▶ extents on leaves, sorted, neighbours merged into transfers
//!          ─▶ verified while they are still in the processor's cache
//! ```
//!
//! The fast way has no branches for damage: whatever is not perfect (a wrong checksum, parity that does not
//! fit its data, a device that refuses) is looked at again, carefully, by asking the ordinary read path for
//! the truth and comparing each device's answer with it.
//!
//! Devices that are missing, or that missed the block's txg, are not asked; the outcome says that the block
//! is thinner than it should be. Not here: which blocks there are (`verify`). Facts: docs/format/vdevs.md §2–§5,
//! docs/format/blkptr.md §6.

use bytes::Bytes;
use codec::{
    checksum::{self, Checksum, embedded},
    parity,
};
use disk::IoBuf;
use ondisk::{
    blkptr::{BlkPtr, Dva},
    gang::GangHeader,
};
use smallvec::SmallVec;

use super::{
    Bookmark, Reader,
    device::Range,
    form,
    join::{BoxFuture, join_all},
    trail::Trail,
};
use crate::{
    error::{BlockErrorKind, Evidence},
    vdev::{Geometry, Kind, Vdev, indirect::Piece, raidz::Layout},
};

/// Longest transfer. Small enough that its bytes are still near when they are hashed.
const TRANSFER_BYTES: u64 = 512 << 10;
/// A gap this small between two extents is read along.
const GAP_BYTES: u64 = 16 << 10;
/// Transfers of one call under way at a time.
const TRANSFERS: usize = 16;
/// Gangs inside gangs.
const GANG_DEPTH_MAX: usize = 12;

/// What became of one block.
#[derive(Debug, Default)]
pub struct Examined {
    /// Its stored bytes, verified; kept only where asked for.
    pub raw: Option<Bytes>,
    /// No place had it: why.
    pub lost: Option<BlockErrorKind>,
    /// Places that did not give what was written there.
    pub evidence: Vec<Evidence>,
    /// Some copies are on devices that are missing or outdated.
    pub thin: bool,
    /// What a gang block takes on the devices: header and members.
    pub gang: Vec<(u64, u64, u64)>,
}

/// How the bytes are recognised.
#[derive(Clone, Copy)]
enum Proof<'a> {
    Block(&'a BlkPtr, checksum::Algorithm),
    GangHeader(&'a BlkPtr),
}

/// Something to read from each of some places.
struct Job<'a> {
    dvas: SmallVec<[Dva; 3]>,
    len: usize,
    birth: u64,
    proof: Proof<'a>,
    want: bool,
}

/// A range of a leaf.
#[derive(Clone, Copy)]
struct Extent<'v> {
    leaf: &'v Vdev,
    offset: u64,
    len: usize,
    scratch: bool,
}

/// One copy of a job's bytes.
enum Copy<'v> {
    /// Extents that follow each other: one, or several where a removed device was split up.
    Run(SmallVec<[usize; 1]>),
    /// Cells of a RAIDZ block with the extents of each (several if a child is a mirror).
    Stripe {
        vdev: &'v Vdev,
        geometry: &'v Geometry,
        offset: u64,
        layout: Layout,
        cells: Vec<SmallVec<[usize; 1]>>,
    },
}

/// Reads planned for a set of jobs.
#[derive(Default)]
struct Plan<'v> {
    extents: Vec<Extent<'v>>,
    /// Per extent: job, and whether the extent is a whole copy, to be judged as soon as it is read.
    owners: Vec<(usize, bool)>,
    copies: Vec<(usize, Copy<'v>)>,
}

/// What an extent gave.
enum Got {
    Failed,
    Right(Option<Bytes>),
    Wrong,
    Bytes(Bytes),
}

impl Reader {
    /// Reads all copies of `blocks` and verifies each. `want` says whose bytes are to be returned.
    pub(crate) async fn examine(
        &self,
        blocks: &[(BlkPtr, Bookmark)],
        want: impl Fn(usize) -> bool + Send + Sync,
    ) -> Vec<Examined> {
        let mut outcomes: Vec<Examined> = blocks.iter().map(|_| Examined::default()).collect();
        let (mut jobs, mut places) = (Vec::with_capacity(blocks.len()), Vec::with_capacity(blocks.len()));
        for (index, (bp, at)) in blocks.iter().enumerate() {
            if bp.is_hole() || bp.is_embedded() || bp.is_gang() {
                outcomes[index] = self.examine_special(bp, *at, 0).await;
                continue;
            }
            let trail = Trail::default();
            match self.algorithm(bp, &trail) {
                Some(algorithm) => {
                    jobs.push(Job {
                        dvas: bp.dvas().collect(),
                        len: bp.psize() as usize,
                        birth: bp.physical_birth(),
                        proof: Proof::Block(bp, algorithm),
                        want: want(index),
                    });
                    places.push(index);
                }
                None => {
                    let (kind, evidence) = trail.conclude();
                    outcomes[index] = Examined { lost: Some(kind), evidence, ..Examined::default() };
                }
            }
        }
        for (index, mut outcome) in places.into_iter().zip(self.run(&jobs).await) {
            if outcome.lost.is_some() {
                // Once more the ordinary way, which also asks the devices that are in doubt.
                let (bp, _) = &blocks[index];
                let trail = Trail::default();
                match self.read_stored(bp, 0, &trail).await {
                    Some(raw) => (outcome.raw, outcome.lost) = (Some(raw), None),
                    None => {
                        let (kind, evidence) = trail.conclude();
                        outcome.lost = Some(kind);
                        for one in evidence {
                            add(&mut outcome.evidence, one);
                        }
                        self.tree.counters.count_checksum();
                    }
                }
            }
            outcomes[index] = outcome;
        }
        outcomes
    }

    /// Holes, embedded blocks, gangs.
    fn examine_special<'a>(&'a self, bp: &'a BlkPtr, at: Bookmark, depth: usize) -> BoxFuture<'a, Examined> {
        Box::pin(async move {
            if bp.is_gang() {
                return self.examine_gang(bp, at, depth).await;
            }
            let trail = Trail::default();
            match self.read_stored(bp, 0, &trail).await {
                Some(raw) => Examined { raw: Some(raw), ..Examined::default() },
                None => {
                    let (kind, evidence) = trail.conclude();
                    Examined { lost: Some(kind), evidence, ..Examined::default() }
                }
            }
        })
    }

    async fn examine_gang(&self, bp: &BlkPtr, at: Bookmark, depth: usize) -> Examined {
        let malformed = |what: &str| Examined {
            lost: Some(BlockErrorKind::Malformed(what.to_owned())),
            ..Examined::default()
        };
        if depth >= GANG_DEPTH_MAX {
            return malformed("gang blocks nested too deep");
        }
        let Some((mut total, header)) = self.examine_gang_header(bp).await else {
            // The ordinary read path says why.
            let trail = Trail::default();
            let raw = self.read_stored(bp, depth, &trail).await;
            let (kind, evidence) = trail.conclude();
            return Examined { lost: raw.is_none().then_some(kind), raw, evidence, ..Examined::default() };
        };
        let Ok(header) = GangHeader::decode(&header) else {
            return malformed("the gang header is malformed");
        };
        let members: Vec<BlkPtr> = header.members.into_iter().filter(|member| !member.is_hole()).collect();
        if members.iter().fold(0u64, |sum, member| sum.saturating_add(member.psize())) != bp.psize() {
            return malformed("the gang's members are not as long as the block");
        }
        let mut data = Vec::with_capacity(bp.psize() as usize);
        for member in &members {
            let one = if member.is_gang() {
                self.examine_special(member, at, depth + 1).await
            } else {
                for dva in member.dvas() {
                    total.gang.push((dva.vdev.into(), dva.offset, dva.asize));
                }
                let mut one: Vec<Examined> = Box::pin(self.examine(&[(*member, at)], |_| true)).await;
                one.pop().unwrap_or_default()
            };
            total.thin |= one.thin;
            total.gang.extend(one.gang);
            for evidence in one.evidence {
                add(&mut total.evidence, evidence);
            }
            total.lost = total.lost.or(one.lost);
            if let Some(raw) = one.raw {
                data.extend_from_slice(&raw);
            }
        }
        if total.lost.is_none() {
            let trail = Trail::default();
            let algorithm = self.algorithm(bp, &trail);
            if data.len() as u64 == bp.psize()
                && algorithm.is_some_and(|algorithm| self.verifies(bp, algorithm, &data))
            {
                total.raw = Some(Bytes::from(data));
            } else {
                total.lost = Some(BlockErrorKind::Checksum);
            }
        }
        total
    }

    /// All copies of a gang's header.
    async fn examine_gang_header(&self, bp: &BlkPtr) -> Option<(Examined, Bytes)> {
        let ashifts =
            || bp.dvas().filter_map(|dva| Some(self.tree.top(dva.vdev.into())?.top.as_ref()?.ashift));
        let mut sizes = vec![512u64];
        if self.large_gang_headers.load(std::sync::atomic::Ordering::Relaxed) {
            sizes.extend(ashifts().min().map(|ashift| 1u64 << ashift).filter(|size| *size > 512));
        }
        for size in sizes.into_iter().rev() {
            let job = Job {
                dvas: bp.dvas().collect(),
                len: size as usize,
                birth: bp.physical_birth(),
                proof: Proof::GangHeader(bp),
                want: true,
            };
            let mut outcome = self.run(&[job]).await.pop()?;
            if let Some(raw) = outcome.raw.take() {
                for dva in bp.dvas() {
                    let asize = self.allocated(dva.vdev.into(), size, bp.physical_birth());
                    outcome.gang.push((dva.vdev.into(), dva.offset, asize));
                }
                return Some((outcome, raw));
            }
        }
        None
    }

    /// What a gang block takes on the devices, as far as its headers can be read.
    pub(crate) fn gang_segments<'a>(
        &'a self,
        bp: &'a BlkPtr,
        depth: usize,
    ) -> BoxFuture<'a, Vec<(u64, u64, u64)>> {
        Box::pin(async move {
            let Some((outcome, header)) = self.examine_gang_header(bp).await else { return Vec::new() };
            let mut segments = outcome.gang;
            // As long as the block together: otherwise a header could name itself many times over.
            let members = GangHeader::decode(&header).and_then(|header| {
                header.check_length(bp)?;
                Ok(header.members)
            });
            for member in members.unwrap_or_default() {
                if member.is_gang() && depth < GANG_DEPTH_MAX {
                    segments.extend(self.gang_segments(&member, depth + 1).await);
                } else {
                    segments.extend(member.dvas().map(|dva| (u64::from(dva.vdev), dva.offset, dva.asize)));
                }
            }
            segments
        })
    }

    /// Bytes that `size` bytes take on a top-level device.
    fn allocated(&self, vdev: u64, size: u64, birth: u64) -> u64 {
        match self.tree.top(vdev).map(|vdev| (&vdev.kind, &vdev.top)) {
            Some((Kind::Raidz(geometry), _)) => geometry.allocated(size, geometry.logical_width(birth)),
            Some((_, Some(top))) => size.next_multiple_of(1 << top.ashift.min(24)),
            _ => size,
        }
    }

    /// Reads every copy of every job.
    async fn run(&self, jobs: &[Job<'_>]) -> Vec<Examined> {
        let mut outcomes: Vec<Examined> = jobs.iter().map(|_| Examined::default()).collect();
        let mut plan = Plan::default();
        for (index, job) in jobs.iter().enumerate() {
            self.plan(index, job, &mut plan, &mut outcomes[index]);
        }
        let mut got = self.fetch_all(&plan, jobs).await;
        let mut good = vec![false; jobs.len()];
        for (index, copy) in &plan.copies {
            let (job, outcome) = (&jobs[*index], &mut outcomes[*index]);
            let right = match copy {
                Copy::Run(extents) => self.judge_run(job, extents, &plan, &mut got, outcome),
                Copy::Stripe { vdev, geometry, offset, layout, cells } => {
                    let whole = self.judge_stripe(job, layout, cells, &got, outcome);
                    match whole {
                        true => true,
                        false => {
                            let range =
                                Range { offset: *offset, len: job.len, birth: job.birth, scratch: false };
                            self.compare(job, (vdev, geometry, range), (layout, cells), &plan, &got, outcome)
                                .await
                        }
                    }
                }
            };
            good[*index] |= right;
        }
        for (good, outcome) in good.into_iter().zip(&mut outcomes) {
            if !good && outcome.lost.is_none() {
                outcome.lost = Some(BlockErrorKind::Device);
            }
        }
        outcomes
    }

    fn plan<'v>(&'v self, index: usize, job: &Job<'_>, plan: &mut Plan<'v>, outcome: &mut Examined) {
        for dva in &job.dvas {
            let trail = Trail::default();
            let mut pieces: SmallVec<[Piece; 4]> = SmallVec::new();
            let whole = Piece { vdev: dva.vdev.into(), offset: dva.offset, len: job.len as u64 };
            if self.resolve(whole, 0, &mut pieces, &trail).is_none() {
                let (kind, evidence) = trail.conclude();
                if let BlockErrorKind::Malformed(fault) = kind {
                    add(
                        &mut outcome.evidence,
                        Evidence { device: format!("vdev {}", dva.vdev), offset: dva.offset, fault },
                    );
                }
                evidence.into_iter().for_each(|one| add(&mut outcome.evidence, one));
                continue;
            }
            let mut sides: Vec<SmallVec<[&'v Vdev; 4]>> = Vec::with_capacity(pieces.len());
            for piece in &pieces {
                let mut found = SmallVec::new();
                if let Some(top) = self.tree.top(piece.vdev) {
                    collect_sides(top, job.birth, &mut found, &mut outcome.thin);
                }
                sides.push(found);
            }
            let copies = sides.iter().map(|sides| sides.len()).max().unwrap_or(0);
            if sides.iter().any(|sides| sides.is_empty()) {
                continue;
            }
            for copy in 0..copies {
                if let [piece] = pieces[..] {
                    self.plan_side(index, job, sides[0][copy], piece.offset, plan, outcome);
                    continue;
                }
                let mut run = SmallVec::new();
                for (piece, sides) in pieces.iter().zip(&sides) {
                    let leaf = sides[copy % sides.len()];
                    run.push(plan.extents.len());
                    let extent =
                        Extent { leaf, offset: piece.offset, len: piece.len as usize, scratch: false };
                    plan.push(extent, (index, false));
                }
                plan.copies.push((index, Copy::Run(run)));
            }
        }
    }

    fn plan_side<'v>(
        &'v self,
        index: usize,
        job: &Job<'_>,
        side: &'v Vdev,
        offset: u64,
        plan: &mut Plan<'v>,
        outcome: &mut Examined,
    ) {
        let Kind::Raidz(geometry) = &side.kind else {
            let number = plan.extents.len();
            plan.push(Extent { leaf: side, offset, len: job.len, scratch: false }, (index, true));
            plan.copies.push((index, Copy::Run(SmallVec::from_elem(number, 1))));
            return;
        };
        let Some(layout) = geometry.layout(offset, job.len as u64, job.birth) else {
            let fault = format!("no block of {} bytes can lie here", job.len);
            add(&mut outcome.evidence, Evidence { device: side.display_name(), offset, fault });
            return;
        };
        let mut cells = Vec::new();
        for cell in layout.stripes.iter().flat_map(|stripe| &stripe.cells) {
            let mut numbers = SmallVec::new();
            if cell.len > 0 {
                let mut leaves = SmallVec::new();
                collect_sides(&side.children[cell.child], job.birth, &mut leaves, &mut outcome.thin);
                for leaf in leaves {
                    numbers.push(plan.extents.len());
                    plan.push(
                        Extent { leaf, offset: cell.offset, len: cell.len, scratch: cell.scratch },
                        (index, false),
                    );
                }
            }
            cells.push(numbers);
        }
        plan.copies.push((index, Copy::Stripe { vdev: side, geometry, offset, layout, cells }));
    }

    /// Reads all extents; those that are a whole copy are verified on the spot.
    async fn fetch_all(&self, plan: &Plan<'_>, jobs: &[Job<'_>]) -> Vec<Got> {
        let mut order: Vec<usize> = (0..plan.extents.len()).collect();
        order.sort_unstable_by_key(|&i| {
            let extent = &plan.extents[i];
            (extent.leaf.guid, extent.scratch, extent.offset)
        });
        let mut transfers: Vec<(Extent<'_>, &[usize])> = Vec::new();
        let (mut first, mut open): (usize, Option<Extent<'_>>) = (0, None);
        for (position, &i) in order.iter().enumerate() {
            let next = plan.extents[i];
            let end = next.offset + next.len as u64;
            if let Some(run) = &mut open {
                let run_end = run.offset + run.len as u64;
                let joins = run.leaf.guid == next.leaf.guid
                    && run.scratch == next.scratch
                    && next.offset <= run_end.saturating_add(GAP_BYTES)
                    && end.max(run_end) - run.offset <= TRANSFER_BYTES;
                if joins {
                    run.len = (end.max(run_end) - run.offset) as usize;
                    continue;
                }
                transfers.push((*run, &order[first..position]));
            }
            (first, open) = (position, Some(next));
        }
        transfers.extend(open.map(|run| (run, &order[first..])));
        let reads = transfers.into_iter().map(|(run, inside)| {
            Box::pin(self.transfer(run, inside, plan, jobs)) as BoxFuture<'_, Vec<(usize, Got)>>
        });
        let mut got: Vec<Got> = plan.extents.iter().map(|_| Got::Failed).collect();
        for (i, answer) in join_all(reads.collect(), TRANSFERS).await.into_iter().flatten() {
            got[i] = answer;
        }
        got
    }

    async fn transfer(
        &self,
        run: Extent<'_>,
        inside: &[usize],
        plan: &Plan<'_>,
        jobs: &[Job<'_>],
    ) -> Vec<(usize, Got)> {
        let range = |extent: &Extent<'_>| Range {
            offset: extent.offset,
            len: extent.len,
            birth: 0,
            scratch: extent.scratch,
        };
        let trail = Trail::of_scan();
        let data = self.read_leaf(run.leaf, range(&run), &trail).await;
        let mut answers = Vec::with_capacity(inside.len());
        for &i in inside {
            let extent = &plan.extents[i];
            let own = match &data {
                Some(data) => {
                    let from = (extent.offset - run.offset) as usize;
                    Some(data.slice(from..from + extent.len))
                }
                // A neighbour's bad sector: this one may be fine.
                None if inside.len() > 1 => self.read_leaf(extent.leaf, range(extent), &trail).await,
                None => None,
            };
            let (index, whole) = plan.owners[i];
            let job = &jobs[index];
            let answer = match own {
                None => Got::Failed,
                Some(own) if !whole => Got::Bytes(own),
                Some(own) if self.proves(job, &own) => Got::Right(job.want.then_some(own)),
                Some(_) => Got::Wrong,
            };
            answers.push((i, answer));
        }
        answers
    }

    fn proves(&self, job: &Job<'_>, data: &[u8]) -> bool {
        match job.proof {
            Proof::Block(bp, algorithm) => self.verifies(bp, algorithm, data),
            Proof::GangHeader(bp) => {
                let Some(words) = GangHeader::verifier(bp) else { return false };
                embedded::verify(embedded::Kind::GangHeader, data, Checksum(words), form(bp)).is_ok()
            }
        }
    }

    fn judge_run(
        &self,
        job: &Job<'_>,
        extents: &[usize],
        plan: &Plan<'_>,
        got: &mut [Got],
        outcome: &mut Examined,
    ) -> bool {
        let mut wrong = |extent: &Extent<'_>| {
            add(&mut outcome.evidence, evidence(extent, "checksum mismatch"));
            self.count_wrong(extent.leaf, job.birth, &Trail::default());
        };
        if let [i] = *extents {
            match std::mem::replace(&mut got[i], Got::Failed) {
                Got::Right(raw) => {
                    if outcome.raw.is_none() {
                        outcome.raw = raw;
                    }
                    return true;
                }
                Got::Wrong | Got::Bytes(_) => wrong(&plan.extents[i]),
                Got::Failed => add(&mut outcome.evidence, evidence(&plan.extents[i], "read error")),
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
        extents.iter().for_each(|&i| wrong(&plan.extents[i]));
        false
    }

    /// Whether all cells are there, the data is right and the parity fits it.
    fn judge_stripe(
        &self,
        job: &Job<'_>,
        layout: &Layout,
        cells: &[SmallVec<[usize; 1]>],
        got: &[Got],
        outcome: &mut Examined,
    ) -> bool {
        let Some(block) = assemble(layout, cells, got) else { return false };
        if !self.proves(job, &block[..job.len]) {
            return false;
        }
        let Some(right) = parity_of(layout, &block) else { return false };
        let mut number = 0;
        for (stripe, right) in layout.stripes.iter().zip(&right) {
            for (c, cell) in stripe.cells.iter().enumerate() {
                let expected =
                    right.get(c).map_or_else(|| &block[cell.start..cell.start + cell.len], |p| &p[..]);
                let same = |i: &usize| matches!(&got[*i], Got::Bytes(data) if data[..] == *expected);
                // Data cells of one side were compared by the checksum already.
                let checked = c >= layout.parity && cells[number].len() == 1;
                if cell.len > 0 && !checked && !cells[number].iter().all(same) {
                    return false;
                }
                number += 1;
            }
        }
        if outcome.raw.is_none() && job.want {
            outcome.raw = Some(Bytes::copy_from_slice(&block[..job.len]));
        }
        true
    }

    /// Gets the truth from the ordinary read path and compares every cell with it.
    async fn compare(
        &self,
        job: &Job<'_>,
        (vdev, geometry, range): (&Vdev, &Geometry, Range),
        (layout, cells): (&Layout, &[SmallVec<[usize; 1]>]),
        plan: &Plan<'_>,
        got: &[Got],
        outcome: &mut Examined,
    ) -> bool {
        let trail = Trail::default();
        let check = |data: &[u8]| self.proves(job, data);
        let Some(truth) = self.read_stripe(vdev, geometry, range, &check, &trail).await else {
            let (_, evidence) = trail.conclude();
            evidence.into_iter().for_each(|one| add(&mut outcome.evidence, one));
            return false;
        };
        let mut block = vec![0; layout.padded];
        block[..truth.len()].copy_from_slice(&truth);
        // What pads the last sector is covered by parity and not by the checksum: zeroes, unless the sector is
        // otherwise right and holds something else.
        for (number, cell) in layout.stripes.iter().flat_map(|stripe| &stripe.cells).enumerate() {
            let (end, inside) = (cell.start + cell.len, truth.len().saturating_sub(cell.start));
            let is_last = cell.start < truth.len() && end > truth.len() && number_is_data(layout, number);
            if let (true, Some(Got::Bytes(data))) = (is_last, first(&cells[number], got))
                && data[..inside] == truth[cell.start..]
            {
                block[truth.len()..end].copy_from_slice(&data[inside..]);
            }
        }
        let Some(right) = parity_of(layout, &block) else { return true };
        let mut number = 0;
        for (stripe, right) in layout.stripes.iter().zip(&right) {
            for (c, cell) in stripe.cells.iter().enumerate() {
                let expected =
                    right.get(c).map_or_else(|| &block[cell.start..cell.start + cell.len], |p| &p[..]);
                for &i in &cells[number] {
                    match &got[i] {
                        Got::Bytes(data) if data[..] == *expected => {}
                        Got::Bytes(_) => {
                            let fault = if c < layout.parity { "wrong parity" } else { "checksum mismatch" };
                            add(&mut outcome.evidence, evidence(&plan.extents[i], fault));
                        }
                        _ => add(&mut outcome.evidence, evidence(&plan.extents[i], "read error")),
                    }
                }
                number += 1;
            }
        }
        if outcome.raw.is_none() && job.want {
            outcome.raw = Some(truth);
        }
        true
    }
}

impl<'v> Plan<'v> {
    fn push(&mut self, extent: Extent<'v>, owner: (usize, bool)) {
        self.extents.push(extent);
        self.owners.push(owner);
    }
}

/// The leaves and RAIDZ devices below `vdev` that should each have the bytes.
fn collect_sides<'v>(vdev: &'v Vdev, birth: u64, found: &mut SmallVec<[&'v Vdev; 4]>, thin: &mut bool) {
    match &vdev.kind {
        Kind::Mirror | Kind::Replacing | Kind::Spare => {
            vdev.children.iter().for_each(|child| collect_sides(child, birth, found, thin));
        }
        Kind::Disk | Kind::File | Kind::Raidz(_) if vdev.is_readable() && !vdev.missed(birth) => {
            found.push(vdev)
        }
        _ => *thin = true,
    }
}

/// The data cells as one block, if all of them were read.
fn assemble(layout: &Layout, cells: &[SmallVec<[usize; 1]>], got: &[Got]) -> Option<IoBuf> {
    let mut block = IoBuf::with_len(layout.padded);
    let mut number = 0;
    for stripe in &layout.stripes {
        for (c, cell) in stripe.cells.iter().enumerate() {
            if c >= layout.parity && cell.len > 0 {
                let Some(Got::Bytes(data)) = first(&cells[number], got) else { return None };
                block[cell.start..cell.start + cell.len].copy_from_slice(data);
            }
            number += 1;
        }
    }
    Some(block)
}

fn first<'g>(cell: &[usize], got: &'g [Got]) -> Option<&'g Got> {
    cell.first().map(|&i| &got[i])
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

fn evidence(extent: &Extent<'_>, fault: &str) -> Evidence {
    let device = extent.leaf.path.clone().unwrap_or_else(|| extent.leaf.display_name());
    Evidence { device, offset: extent.offset, fault: fault.to_owned() }
}

/// Adds what is not there yet; a wide stripe must not fill a screen.
fn add(all: &mut Vec<Evidence>, one: Evidence) {
    if all.len() < 64 && !all.contains(&one) {
        all.push(one);
    }
}
