//! Blocks in pieces, written when no free run was long enough.
//!
//! The pointer leads to a header, a small self-checking block of further pointers; their contents in
//! order are the block. A member may be a gang itself. Facts: docs/format/blkptr.md §6.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;
use codec::checksum::{Checksum, embedded};
use disk::IoBuf;
use ondisk::{
    Order,
    blkptr::{BlkPtr, Dva},
    gang::GangHeader,
};

use super::{Check, Reader, join::join_all, read::form, trail::Trail};
use crate::{BoxFuture, error::BlockError};

/// Size of the classic header, and the unit every header is a multiple of.
const HEADER_BYTES: u64 = 512;
/// Size of the self-checking trailer.
const TRAILER_BYTES: usize = 40;
/// Gangs inside gangs. With 3 members each, 16 MiB in pieces of 512 bytes nests 10 deep.
const DEPTH_MAX: usize = 12;
/// Members of a header that are read at a time.
const MEMBERS_AT_ONCE: usize = 8;

impl Reader {
    /// The stored bytes of a gang block, verified by `check`.
    /// (Boxed, because members lead back here.)
    pub(super) fn read_gang<'a>(
        &'a self,
        bp: &'a BlkPtr,
        depth: usize,
        check: &'a Check<'a>,
        trail: &'a Trail,
    ) -> BoxFuture<'a, Option<Bytes>> {
        Box::pin(self.read_gang_tree(bp, depth, check, trail))
    }

    async fn read_gang_tree(
        &self,
        bp: &BlkPtr,
        depth: usize,
        check: &Check<'_>,
        trail: &Trail,
    ) -> Option<Bytes> {
        if depth >= DEPTH_MAX {
            trail.malformed("gang blocks nested too deep");
            return None;
        }
        let header = self.read_gang_header(bp, trail).await?;
        let members = members(&header, bp, trail)?;
        let reads = members.iter().map(|member| {
            Box::pin(self.read_stored(member, depth + 1, trail)) as BoxFuture<'_, Option<Bytes>>
        });
        let mut block = IoBuf::with_len(bp.psize() as usize);
        let mut rest = &mut block[..];
        for data in join_all(reads.collect(), MEMBERS_AT_ONCE).await {
            let data = data?;
            let (head, tail) = std::mem::take(&mut rest).split_at_mut_checked(data.len())?;
            head.copy_from_slice(&data);
            rest = tail;
        }
        // A member in an outer gang is verified by its own checksum, the whole by its pointer's.
        if check(&block) {
            return Some(block.freeze());
        }
        if let Some(dva) = bp.dvas().next()
            && let Some(top) = self.tree.top(dva.vdev.into())
        {
            trail.wrong(top, dva.offset);
        }
        None
    }

    /// The space a gang block takes: every copy of its headers and members, as they were allocated. `came` goes up with each
    /// header that is read.
    ///
    /// # Errors
    /// A header cannot be read, or does not add up to the block.
    pub(super) async fn gang_extents(&self, bp: &BlkPtr, came: &AtomicUsize) -> Result<Vec<Dva>, BlockError> {
        let trail = Trail::default();
        let mut found = self.collect_extents(bp, 0, came, &trail).await;
        if found.is_none() && trail.has_to_wait() {
            found = self.collect_extents(bp, 0, came, &trail).await;
        }
        if let Some(found) = found {
            return Ok(found);
        }
        let (kind, evidence) = trail.conclude();
        Err(BlockError::new(kind, bp, None, evidence))
    }

    fn collect_extents<'a>(
        &'a self,
        bp: &'a BlkPtr,
        depth: usize,
        came: &'a AtomicUsize,
        trail: &'a Trail,
    ) -> BoxFuture<'a, Option<Vec<Dva>>> {
        Box::pin(async move {
            if depth >= DEPTH_MAX {
                trail.malformed("gang blocks nested too deep");
                return None;
            }
            let header = self.read_gang_header(bp, trail).await?;
            came.fetch_add(1, Relaxed);
            let members = members(&header, bp, trail)?;
            let mut found = Vec::new();
            for (copy, dva) in bp.dvas().enumerate() {
                // A pointer counts the members' copies in with its own; what is left is the header.
                let below = members.iter().filter_map(|member| member.dvas().nth(copy)).map(|dva| dva.asize);
                let below = below.fold(0, u64::saturating_add);
                let Some(asize) = dva.asize.checked_sub(below).filter(|&asize| asize > 0) else {
                    trail.malformed(format!("gang of {} bytes with members of {below}", dva.asize));
                    return None;
                };
                found.push(Dva { asize, gang: false, ..dva });
            }
            let (gangs, whole): (Vec<&BlkPtr>, Vec<&BlkPtr>) =
                members.iter().partition(|member| member.is_gang());
            found.extend(whole.into_iter().flat_map(BlkPtr::dvas));
            let below = gangs.into_iter().map(|member| self.collect_extents(member, depth + 1, came, trail));
            for extents in join_all(below.collect(), MEMBERS_AT_ONCE).await {
                found.extend(extents?);
            }
            Some(found)
        })
    }

    /// The header, from any copy and in either size.
    async fn read_gang_header(&self, bp: &BlkPtr, trail: &Trail) -> Option<Bytes> {
        let check = |data: &[u8]| header_bytes(bp, data).is_some();
        let found = self.read_places(bp, self.gang_header_bytes(bp), &check, trail).await?;
        let size = header_bytes(bp, &found)?;
        Some(found.slice(..size))
    }

    /// What is read of a gang block's header: where there may be large ones, a sector of the devices. A classic one has
    /// that sector for itself, so that either is found with one read, and no device has to answer twice.
    pub(super) fn gang_header_bytes(&self, bp: &BlkPtr) -> u64 {
        if !self.large_gang_headers.load(Relaxed) {
            return HEADER_BYTES;
        }
        let ashifts = bp.dvas().filter_map(|dva| Some(self.tree.top(dva.vdev.into())?.top.as_ref()?.ashift));
        ashifts.min().map_or(HEADER_BYTES, |ashift| (1 << ashift.min(24)).max(HEADER_BYTES))
    }
}

/// How long the header at the front of `data` is: all of it, or as a classic one. `None` if it is neither.
pub(super) fn header_bytes(bp: &BlkPtr, data: &[u8]) -> Option<usize> {
    let verifier = Checksum(GangHeader::verifier(bp)?);
    let is_right =
        |header: &[u8]| embedded::verify(embedded::Kind::GangHeader, header, verifier, form(bp)).is_ok();
    let sizes = [data.len(), HEADER_BYTES as usize];
    sizes.into_iter().find(|&size| data.get(..size).is_some_and(is_right))
}

/// The member pointers of a verified header, which must add up to the block.
fn members(header: &[u8], bp: &BlkPtr, trail: &Trail) -> Option<Vec<BlkPtr>> {
    let magic = header.get(header.len().checked_sub(TRAILER_BYTES)?..)?.first_chunk::<8>()?;
    let order = Order::of_magic(*magic, 0x0210_da7a_b10c_7a11)?;
    let mut members = Vec::new();
    let mut total = 0u64;
    for index in 0..(header.len() - TRAILER_BYTES) / BlkPtr::BYTES {
        match BlkPtr::decode_at(header, index, order) {
            Ok(member) if member.is_hole() => {}
            Ok(member) => {
                total = total.saturating_add(member.psize());
                members.push(member);
            }
            Err(error) => {
                trail.malformed(format!("gang header: {error}"));
                return None;
            }
        }
    }
    if total != bp.psize() {
        trail.malformed(format!("gang members hold {total} bytes of {}", bp.psize()));
        return None;
    }
    Some(members)
}
