//! Blocks in pieces: what to do when no free run is long enough for a block, but shorter ones are.
//!
//! A [`Shape`] is the space a block got: one place, or a tree of places under a header. It is made before the
//! content is known for good (metadata may be written again), and filled when it is. Facts: docs/format/blkptr.md §6.

use bytes::Bytes;
use codec::checksum::{self, Checksum, embedded};
use ondisk::{
    Order,
    blkptr::{BlkPtr, Dva, Stored},
    dnode::ObjectType,
    gang::{CLASSIC_BYTES, GangHeader},
};
use smallvec::SmallVec;

use super::{Extents, prepare};
use crate::{EngineError, alloc::Purpose};

/// Members of a header.
const MEMBERS: u64 = 3;
/// Gangs inside gangs, as readers accept them.
const DEPTH_MAX: usize = 10;

/// Places of one extent: its copies.
pub(crate) type Copies = SmallVec<[Dva; 3]>;

/// The space of a block.
#[derive(Clone, Debug)]
pub(crate) enum Shape {
    /// All in one run, as often as there are copies.
    Whole(Copies),
    /// In members, under a header.
    Gang {
        header: Copies,
        /// Stored bytes and space of each.
        members: Vec<(u64, Self)>,
    },
}

/// What the checksums of a block's members are made with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sums<'a> {
    pub(crate) algorithm: checksum::Algorithm,
    pub(crate) salt: Option<&'a checksum::Salt>,
    pub(crate) txg: u64,
}

impl Shape {
    /// The addresses its pointer gets.
    pub(crate) fn dvas(&self) -> [Dva; 3] {
        let mut dvas = [Dva::default(); 3];
        match self {
            Self::Whole(copies) => dvas.iter_mut().zip(copies).for_each(|(place, dva)| *place = *dva),
            Self::Gang { header, members } => {
                for (i, (place, dva)) in dvas.iter_mut().zip(header).enumerate() {
                    let below: u64 = members.iter().map(|(_, member)| member.dvas()[i].asize).sum();
                    *place = Dva { asize: dva.asize + below, gang: true, ..*dva };
                }
            }
        }
        dvas
    }

    /// Gives all of it back.
    pub(crate) fn release(&self, space: &mut impl Extents) {
        match self {
            Self::Whole(copies) => copies.iter().for_each(|dva| space.release(*dva)),
            Self::Gang { header, members } => {
                header.iter().for_each(|dva| space.release(*dva));
                members.iter().for_each(|(_, member)| member.release(space));
            }
        }
    }

    /// What has to be written where, so that the block is `data`.
    pub(crate) fn fill(
        &self,
        data: &Bytes,
        sums: Sums<'_>,
        out: &mut impl FnMut(&Dva, &Bytes) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let (header, members) = match self {
            Self::Whole(copies) => return copies.iter().try_for_each(|dva| out(dva, data)),
            Self::Gang { header, members } => (header, members),
        };
        let mut pointers = Vec::with_capacity(members.len());
        let mut at = 0;
        for (psize, member) in members {
            let part = data.slice(at..at + *psize as usize);
            at += *psize as usize;
            pointers.push(pointer(member, &part, sums)?);
            member.fill(&part, sums, out)?;
        }
        let encoding = EngineError::encode("gang header");
        let mut bytes =
            GangHeader { order: Order::Little, members: pointers }.encode(CLASSIC_BYTES).map_err(encoding)?;
        let Some(first) = header.first() else { return Ok(()) };
        let verifier = Checksum([u64::from(first.vdev), first.offset, sums.txg, 0]);
        embedded::seal(embedded::Kind::GangHeader, &mut bytes, verifier, codec::Order::Little)
            .map_err(|error| EngineError::Encode { what: "gang header", detail: error.to_string() })?;
        let bytes = Bytes::from(bytes);
        header.iter().try_for_each(|dva| out(dva, &bytes))
    }

    /// The copies of every extent in it.
    pub(crate) fn each(&self, visit: &mut impl FnMut(&Copies)) {
        match self {
            Self::Whole(copies) => visit(copies),
            Self::Gang { header, members } => {
                visit(header);
                members.iter().for_each(|(_, member)| member.each(visit));
            }
        }
    }
}

/// How many headers a gang has, by estimate: none if the block is no gang, half as many as it has sectors where each of these
/// lies for itself, and never more than its place has sectors beside the content.
pub(super) fn headers(bp: &BlkPtr, sector: u64) -> usize {
    let Some(place) = bp.dvas().next().filter(|place| place.gang) else { return 0 };
    let beside = place.asize.saturating_sub(bp.psize()) / sector;
    (bp.psize() / sector / 2).min(beside).max(1) as usize
}

/// The pointer to a member.
fn pointer(member: &Shape, part: &Bytes, sums: Sums<'_>) -> Result<BlkPtr, EngineError> {
    BlkPtr::stored(&Stored {
        dvas: member.dvas(),
        lsize: part.len() as u64,
        psize: part.len() as u64,
        compression_id: codec::compress::Algorithm::Off.id(),
        checksum_id: sums.algorithm.id(),
        object_type: ObjectType::NONE,
        level: 0,
        dedup: false,
        order: Order::Little,
        birth: sums.txg,
        physical_birth: sums.txg,
        fill: 0,
        checksum: prepare::sum(sums.algorithm, part, sums.salt)?,
    })
    .map_err(EngineError::encode("gang member"))
}

/// Space for a block that found no single place. Nothing stays allocated if there is none.
pub(crate) async fn allocate<S: Extents>(
    space: &mut S,
    psize: u64,
    copies: u8,
    purpose: Purpose,
) -> Result<Shape, EngineError> {
    let min = space.granularity().0.max(CLASSIC_BYTES as u64);
    let mut got = Vec::new();
    let shape = split(space, psize, copies, purpose, min, 0, &mut got).await;
    if shape.is_err() {
        got.into_iter().for_each(|dva| space.release(dva));
    }
    shape
}

/// A header and its members; `got` collects every extent.
async fn split<S: Extents>(
    space: &mut S,
    psize: u64,
    copies: u8,
    purpose: Purpose,
    min: u64,
    depth: usize,
    got: &mut Vec<Dva>,
) -> Result<Shape, EngineError> {
    if psize <= min || depth >= DEPTH_MAX {
        return Err(EngineError::NoSpace { psize });
    }
    // The header is worth a copy more than what it leads to.
    let header = space.allocate(CLASSIC_BYTES as u64, (copies + 1).min(3), purpose).await?;
    got.extend(header.iter().copied());
    // The pointer has as many addresses as the header, and must tell the size of every member's copies.
    let copies = copies.min(header.len() as u8);
    let (mut members, mut rest) = (Vec::new(), psize);
    for left in (1..=MEMBERS).rev() {
        let size = rest.div_ceil(left).next_multiple_of(min).min(rest);
        if size == 0 {
            break;
        }
        rest -= size;
        let member = match space.allocate(size, copies, purpose).await {
            Ok(dvas) => {
                got.extend(dvas.iter().copied());
                Shape::Whole(dvas)
            }
            Err(EngineError::NoSpace { .. }) => {
                Box::pin(split(space, size, copies, purpose, min, depth + 1, got)).await?
            }
            Err(error) => return Err(error),
        };
        members.push((size, member));
    }
    Ok(Shape::Gang { header, members })
}
