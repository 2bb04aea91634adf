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
//! is thinner than it should be, and what has to be written where to make it whole ([`Repair`]). Not here: which
//! blocks there are (`verify`, the engine's scans). Facts: docs/format/vdevs.md §2–§5, docs/format/blkptr.md §6.

mod judge;

use bytes::Bytes;
use codec::checksum;
use ondisk::{
    blkptr::{BlkPtr, Dva},
    gang::GangHeader,
};
use smallvec::SmallVec;

use super::{
    Bookmark, Reader,
    device::Range,
    gang,
    join::join_all,
    repair::{How, Repair},
    trail::{Trail, note},
};
use crate::{
    BoxFuture,
    error::{BlockErrorKind, Evidence},
    vdev::{Geometry, Kind, Vdev, indirect::Piece, raidz::Layout},
};

/// Longest transfer. Small enough that its bytes are still near when they are hashed.
const TRANSFER_BYTES: u64 = 512 << 10;
/// A gap this small between two extents is read along.
const GAP_BYTES: u64 = 16 << 10;
/// The same for a scan of a disk that turns: it passes over the gap anyway, or loses more time by moving its arm.
const TURNING_GAP_BYTES: u64 = 256 << 10;
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
    /// What to write where to make it whole again; only where its bytes were asked for.
    pub repairs: Vec<Repair>,
    /// Leaves (guids) that answered with other bytes than were written there.
    pub corrupt: SmallVec<[u64; 2]>,
    /// Leaves (guids) that refused to answer.
    pub refused: SmallVec<[u64; 2]>,
    places: Vec<Place>,
}

/// One of the places a block is in.
#[derive(Debug)]
struct Place {
    vdev: u64,
    offset: u64,
    birth: u64,
    /// Bytes with what pads them, where that is known to be something else than zeroes.
    padded: Option<Bytes>,
    wrong: SmallVec<[u64; 2]>,
    lacking: SmallVec<[u64; 2]>,
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
    /// Job, index of the place among its outcome's, and how it is laid out.
    copies: Vec<(usize, usize, Copy<'v>)>,
}

/// What an extent gave.
enum Got {
    Failed,
    /// Not in time: that says nothing of what is there. Of all that was asked for at once one is news, if any.
    Late {
        is_news: bool,
    },
    Right(Option<Bytes>),
    Wrong,
    Bytes(Bytes),
}

impl Reader {
    /// Reads all copies of `blocks` and verifies each. `want` says whose bytes are to be returned.
    pub(crate) async fn examine(
        &self,
        blocks: &[(BlkPtr, Bookmark)],
        want: &(dyn Fn(usize) -> bool + Send + Sync),
        how: How<'_>,
    ) -> Vec<Examined> {
        let mut outcomes: Vec<Examined> = blocks.iter().map(|_| Examined::default()).collect();
        let (mut jobs, mut places) = (Vec::with_capacity(blocks.len()), Vec::with_capacity(blocks.len()));
        for (index, (bp, at)) in blocks.iter().enumerate() {
            if bp.is_hole() || bp.is_embedded() || bp.is_gang() {
                outcomes[index] = self.examine_special(bp, *at, 0, how).await;
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
        for (index, mut outcome) in places.into_iter().zip(self.run(&jobs, how).await) {
            if outcome.lost.is_some() {
                // Once more the ordinary way, which also asks the devices that are in doubt.
                let (bp, _) = &blocks[index];
                let trail = Trail::of_scan();
                match self.read_stored(bp, 0, &trail).await {
                    Some(raw) => {
                        self.let_off_sides(bp, &mut outcome.places).await;
                        (outcome.raw, outcome.lost) = (Some(raw), None);
                    }
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
            outcome.conclude();
            outcomes[index] = outcome;
        }
        outcomes
    }

    /// Holes, embedded blocks, gangs.
    fn examine_special<'a>(
        &'a self,
        bp: &'a BlkPtr,
        at: Bookmark,
        depth: usize,
        how: How<'a>,
    ) -> BoxFuture<'a, Examined> {
        Box::pin(async move {
            if bp.is_gang() {
                return self.examine_gang(bp, at, depth, how).await;
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

    async fn examine_gang(&self, bp: &BlkPtr, at: Bookmark, depth: usize, how: How<'_>) -> Examined {
        let malformed = |what: &str| Examined {
            lost: Some(BlockErrorKind::Malformed(what.to_owned())),
            ..Examined::default()
        };
        if depth >= GANG_DEPTH_MAX {
            return malformed("gang blocks nested too deep");
        }
        let Some((mut total, header)) = self.examine_gang_header(bp, how).await else {
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
                self.examine_special(member, at, depth + 1, how).await
            } else {
                for dva in member.dvas() {
                    total.gang.push((dva.vdev.into(), dva.offset, dva.asize));
                }
                let mut one: Vec<Examined> = Box::pin(self.examine(&[(*member, at)], &|_| true, how)).await;
                one.pop().unwrap_or_default()
            };
            total.thin |= one.thin;
            total.gang.extend(one.gang);
            total.repairs.extend(one.repairs);
            one.corrupt.iter().for_each(|&guid| note(&mut total.corrupt, guid));
            one.refused.iter().for_each(|&guid| note(&mut total.refused, guid));
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
    async fn examine_gang_header(&self, bp: &BlkPtr, how: How<'_>) -> Option<(Examined, Bytes)> {
        let job = Job {
            dvas: bp.dvas().collect(),
            len: self.gang_header_bytes(bp) as usize,
            birth: bp.physical_birth(),
            proof: Proof::GangHeader(bp),
            want: true,
        };
        let mut outcome = self.run(&[job], how).await.pop()?;
        outcome.conclude();
        let raw = outcome.raw.take()?;
        let size = gang::header_bytes(bp, &raw)?;
        for dva in bp.dvas() {
            let asize = self.allocated(dva.vdev.into(), size as u64, bp.physical_birth());
            outcome.gang.push((dva.vdev.into(), dva.offset, asize));
        }
        Some((outcome, raw.slice(..size)))
    }

    /// What a gang block takes on the devices, as far as its headers can be read.
    pub(crate) fn gang_segments<'a>(
        &'a self,
        bp: &'a BlkPtr,
        depth: usize,
    ) -> BoxFuture<'a, Vec<(u64, u64, u64)>> {
        Box::pin(async move {
            let Some((outcome, header)) = self.examine_gang_header(bp, How::default()).await else {
                return Vec::new();
            };
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
    async fn run(&self, jobs: &[Job<'_>], how: How<'_>) -> Vec<Examined> {
        let mut outcomes: Vec<Examined> = jobs.iter().map(|_| Examined::default()).collect();
        let mut plan = Plan::default();
        for (index, job) in jobs.iter().enumerate() {
            self.plan(index, job, how, &mut plan, &mut outcomes[index]);
        }
        let mut got = self.fetch_all(&plan, jobs, how).await;
        let mut good = vec![false; jobs.len()];
        for (index, place, copy) in &plan.copies {
            let (job, outcome) = (&jobs[*index], &mut outcomes[*index]);
            let right = match copy {
                Copy::Run(extents) => self.judge_run(job, extents, &plan, &mut got, *place, outcome),
                Copy::Stripe { vdev, geometry, offset, layout, cells } => {
                    let whole = self.judge_stripe(job, (layout, cells), &plan, &got, *place, outcome);
                    match whole {
                        true => true,
                        false => {
                            let range =
                                Range { offset: *offset, len: job.len, birth: job.birth, scratch: false };
                            let stripe = (*vdev, *geometry, range);
                            self.compare(job, stripe, (layout, cells), &plan, &got, *place, outcome).await
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

    fn plan<'v>(
        &'v self,
        index: usize,
        job: &Job<'_>,
        how: How<'_>,
        plan: &mut Plan<'v>,
        outcome: &mut Examined,
    ) {
        for dva in job.dvas.iter().take(if how.one_copy { 1 } else { job.dvas.len() }) {
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
            let place = outcome.places.len();
            outcome.places.push(Place {
                vdev: dva.vdev.into(),
                offset: dva.offset,
                birth: job.birth,
                padded: None,
                wrong: SmallVec::new(),
                lacking: SmallVec::new(),
            });
            let mut sides: Vec<SmallVec<[&'v Vdev; 4]>> = Vec::with_capacity(pieces.len());
            for piece in &pieces {
                let mut found = SmallVec::new();
                if let Some(top) = self.tree.top(piece.vdev) {
                    collect_sides(top, job.birth, &mut found, outcome, place);
                }
                if how.one_copy && found.len() > 1 {
                    // Each side its share, in long runs.
                    let turn = (piece.offset >> 21) as usize % found.len();
                    found.swap(0, turn);
                    found.truncate(1);
                }
                sides.push(found);
            }
            let copies = sides.iter().map(|sides| sides.len()).max().unwrap_or(0);
            if sides.iter().any(|sides| sides.is_empty()) {
                continue;
            }
            for copy in 0..copies {
                if let [piece] = pieces[..] {
                    self.plan_side((index, place), job, sides[0][copy], piece.offset, plan, outcome);
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
                plan.copies.push((index, place, Copy::Run(run)));
            }
        }
    }

    fn plan_side<'v>(
        &'v self,
        (index, place): (usize, usize),
        job: &Job<'_>,
        side: &'v Vdev,
        offset: u64,
        plan: &mut Plan<'v>,
        outcome: &mut Examined,
    ) {
        let Kind::Raidz(geometry) = &side.kind else {
            let number = plan.extents.len();
            plan.push(Extent { leaf: side, offset, len: job.len, scratch: false }, (index, true));
            plan.copies.push((index, place, Copy::Run(SmallVec::from_elem(number, 1))));
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
                collect_sides(&side.children[cell.child], job.birth, &mut leaves, outcome, place);
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
        plan.copies.push((index, place, Copy::Stripe { vdev: side, geometry, offset, layout, cells }));
    }

    /// Reads all extents; those that are a whole copy are verified on the spot.
    async fn fetch_all(&self, plan: &Plan<'_>, jobs: &[Job<'_>], how: How<'_>) -> Vec<Got> {
        let mut order: Vec<usize> = (0..plan.extents.len()).collect();
        order.sort_unstable_by_key(|&i| {
            let extent = &plan.extents[i];
            (extent.leaf.guid, extent.scratch, extent.offset)
        });
        let mut transfers: Vec<(Extent<'_>, &[usize])> = Vec::new();
        let (mut first, mut open): (usize, Option<Extent<'_>>) = (0, None);
        let (mut gap, mut longest) = (GAP_BYTES, TRANSFER_BYTES);
        for (position, &i) in order.iter().enumerate() {
            let next = plan.extents[i];
            let end = next.offset + next.len as u64;
            if open.is_none_or(|run| run.leaf.guid != next.leaf.guid) {
                let turns = how.turns.is_some()
                    && next
                        .leaf
                        .leaf
                        .as_ref()
                        .and_then(|leaf| leaf.disk())
                        .is_some_and(|disk| disk.info().rotational);
                gap = if turns { TURNING_GAP_BYTES } else { GAP_BYTES };
                longest =
                    how.turns.map_or(TRANSFER_BYTES, |turns| turns.longest(next.leaf)).min(TRANSFER_BYTES);
                gap = gap.min(longest / 2);
            }
            if let Some(run) = &mut open {
                let run_end = run.offset + run.len as u64;
                let joins = run.leaf.guid == next.leaf.guid
                    && run.scratch == next.scratch
                    && next.offset <= run_end.saturating_add(gap)
                    && end.max(run_end) - run.offset <= longest;
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
            Box::pin(self.transfer(run, inside, plan, jobs, how)) as BoxFuture<'_, Vec<(usize, Got)>>
        });
        // Whoever gives out turns bounds what is under way, and must know of all to keep them in order.
        let limit = if how.turns.is_some() { usize::MAX } else { TRANSFERS };
        let mut got: Vec<Got> = plan.extents.iter().map(|_| Got::Failed).collect();
        for (i, answer) in join_all(reads.collect(), limit).await.into_iter().flatten() {
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
        how: How<'_>,
    ) -> Vec<(usize, Got)> {
        let range = |extent: &Extent<'_>| Range {
            offset: extent.offset,
            len: extent.len,
            birth: 0,
            scratch: extent.scratch,
        };
        let trail = Trail::of_scan();
        let turn = match how.turns {
            Some(turns) => Some(turns.turn(run.leaf, run.len).await),
            None => None,
        };
        let data = self.read_leaf(run.leaf, range(&run), &trail).await;
        drop(turn);
        let mut answers = Vec::with_capacity(inside.len());
        if data.is_none() && trail.is_late() {
            let is_news = trail.take_guilty().is_some();
            let late = |(n, &i): (usize, &usize)| (i, Got::Late { is_news: is_news && n == 0 });
            answers.extend(inside.iter().enumerate().map(late));
            return answers;
        }
        // What is kept must not keep a transfer that is mostly gaps, or the blocks of a batch would not say what it takes.
        let used: usize = inside.iter().map(|&i| plan.extents[i].len).sum();
        let keep = |own: Bytes| if used * 2 < run.len { Bytes::copy_from_slice(&own) } else { own };
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
                None if trail.is_late() => Got::Late { is_news: trail.take_guilty().is_some() },
                None => Got::Failed,
                Some(own) if !whole => Got::Bytes(keep(own)),
                Some(own) if self.proves(job, &own) => Got::Right(job.want.then(|| keep(own))),
                Some(_) => Got::Wrong,
            };
            answers.push((i, answer));
        }
        answers
    }

    fn proves(&self, job: &Job<'_>, data: &[u8]) -> bool {
        match job.proof {
            Proof::Block(bp, algorithm) => self.verifies(bp, algorithm, data),
            Proof::GangHeader(bp) => gang::header_bytes(bp, data).is_some(),
        }
    }
}

impl Proof<'_> {
    /// Whether it tells right bytes from others at all.
    fn is_one(self) -> bool {
        match self {
            Self::Block(_, algorithm) => algorithm.is_verified(),
            Self::GangHeader(_) => true,
        }
    }
}

impl Examined {
    /// Says what to write where, now that it is known what is right.
    fn conclude(&mut self) {
        let Some(raw) = &self.raw else { return self.places.clear() };
        for place in self.places.drain(..) {
            if place.wrong.is_empty() && place.lacking.is_empty() {
                continue;
            }
            self.repairs.push(Repair {
                vdev: place.vdev,
                offset: place.offset,
                birth: place.birth,
                data: place.padded.unwrap_or_else(|| raw.clone()),
                wrong: place.wrong,
                lacking: place.lacking,
            });
        }
    }
}

impl<'v> Plan<'v> {
    fn push(&mut self, extent: Extent<'v>, owner: (usize, bool)) {
        self.extents.push(extent);
        self.owners.push(owner);
    }
}

/// The leaves and RAIDZ devices below `vdev` that should each have the bytes; who could have them and does not is noted.
fn collect_sides<'v>(
    vdev: &'v Vdev,
    birth: u64,
    found: &mut SmallVec<[&'v Vdev; 4]>,
    outcome: &mut Examined,
    place: usize,
) {
    match &vdev.kind {
        Kind::Mirror | Kind::Replacing | Kind::Spare => {
            vdev.children.iter().for_each(|child| collect_sides(child, birth, found, outcome, place));
        }
        // Cell by cell, even if more of its leaves lack the block than there is parity for: some of them may have it.
        Kind::Raidz(_) if vdev.is_readable() => found.push(vdev),
        Kind::Disk | Kind::File if vdev.is_readable() => {
            if !vdev.missed(birth) {
                return found.push(vdev);
            }
            outcome.thin = true;
            note(&mut outcome.places[place].lacking, vdev.guid);
        }
        _ => outcome.thin = true,
    }
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
