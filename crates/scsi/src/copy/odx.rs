//! Offloaded data transfer: POPULATE TOKEN says "these blocks, now", WRITE USING TOKEN says "put them there"
//! (SBC-3 §5.17, §5.46; the way Windows copies between volumes of one target).
//!
//! ```text
//!   POPULATE TOKEN     length 2 │ RTV IMMED 1 │ 1 │ time-out 4 │ type 4 │ 2 │ ranges 2 │ { LBA 8 │ blocks 4 │ 4 }…
//!   WRITE USING TOKEN  length 2 │ DEL IMMED 1 │ 5 │ offset 8 │ token 512 │ 6 │ ranges 2 │ { LBA 8 │ blocks 4 │ 4 }…
//! ```

use std::sync::Arc;

use block::Geometry;

use super::{
    Operation, Standing,
    mover::{InCopy, Stretch},
    token::{InUse, Maker, Presented, Range, TOKEN_LEN},
};
use crate::{
    errand::{Errand, Rest},
    nexus::Nexus,
    sense::Sense,
    unit::{LogicalUnit, Refusal},
};

/// Ranges in one list at most.
pub(crate) const RANGES_MAX: usize = 256;
/// Blocks one token may stand for, and one WRITE USING TOKEN may write: what a slow pool writes in seconds.
pub(crate) const TRANSFER_BLOCKS_MAX: u64 = 1 << 19;
/// Blocks that hosts should move at a time: enough that the commands around it cost nothing.
pub(crate) const TRANSFER_BLOCKS_BEST: u64 = 1 << 17;

/// Longest parameter list, in bytes.
pub(crate) const LIST_MAX: u32 = 536 + 16 * RANGES_MAX as u32;

/// The ranges of a list, whole in the volume and apart from each other, in bytes.
fn ranges(unit: &LogicalUnit, list: &[u8], geometry: &Geometry, field: u16) -> Result<Vec<Range>, Sense> {
    let (descriptors, odd) = list.as_chunks::<16>();
    if !odd.is_empty() || descriptors.is_empty() {
        return Err(Sense::parameter(field));
    }
    if descriptors.len() > RANGES_MAX {
        return Err(Sense::TOO_MANY_SEGMENTS);
    }
    let size = u64::from(unit.block_size);
    let mut blocks = 0_u64;
    let mut out = Vec::with_capacity(descriptors.len());
    for d in descriptors {
        let lba = u64::from_be_bytes([d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7]]);
        let count = u64::from(u32::from_be_bytes([d[8], d[9], d[10], d[11]]));
        unit.check_range(lba, count, geometry)?;
        blocks = blocks.saturating_add(count);
        out.push(Range { offset: lba.saturating_mul(size), len: count.saturating_mul(size) });
    }
    if blocks > TRANSFER_BLOCKS_MAX {
        return Err(Sense::parameter(field));
    }
    let mut sorted: Vec<Range> = out.iter().copied().filter(|range| range.len > 0).collect();
    sorted.sort_unstable_by_key(|range| range.offset);
    let apart = sorted.windows(2).all(|pair| match pair {
        [a, b] => a.offset.saturating_add(a.len) <= b.offset,
        _ => true,
    });
    if apart { Ok(out) } else { Err(Sense::parameter(field)) }
}

/// The descriptors that a header announces: as many as it says and no fewer.
fn announced(list: &[u8], at: usize) -> Result<&[u8], Sense> {
    let len = list.get(at..).and_then(<[u8]>::first_chunk).map(|len| u16::from_be_bytes(*len));
    let len = usize::from(len.ok_or(Sense::PARAMETER_LIST_LENGTH)?);
    let from = at.saturating_add(2);
    list.get(from..from.saturating_add(len)).ok_or(Sense::PARAMETER_LIST_LENGTH)
}

/// What a WRITE USING TOKEN is to do, checked.
struct Plan {
    /// `None`: zeroes.
    rod: Option<(InUse, Arc<LogicalUnit>)>,
    /// First byte of the token's data.
    offset: u64,
    ranges: Vec<Range>,
}

impl Plan {
    /// Pairs the destination's ranges with the source's: (source offset or zeroes, destination offset, length).
    fn stretches(&self) -> Vec<(Option<u64>, u64, u64)> {
        let Some((rod, _)) = &self.rod else {
            return self.ranges.iter().map(|range| (None, range.offset, range.len)).collect();
        };
        let mut out = Vec::new();
        let mut sources = rod.ranges.iter().copied();
        let mut source = sources.next();
        let mut skip = self.offset;
        for range in &self.ranges {
            let mut done = 0_u64;
            while let Some(from) = source
                && done < range.len
            {
                let left = from.len.saturating_sub(skip);
                if left == 0 {
                    skip = skip.saturating_sub(from.len);
                    source = sources.next();
                    continue;
                }
                let len = left.min(range.len.saturating_sub(done));
                out.push((Some(from.offset.saturating_add(skip)), range.offset.saturating_add(done), len));
                done = done.saturating_add(len);
                skip = skip.saturating_add(len);
            }
        }
        out
    }

    async fn carry_out(
        &self,
        unit: &LogicalUnit,
        errand: &Errand,
        operation: &Operation,
    ) -> Result<(), Refusal> {
        let _busy = (InCopy::new(unit), self.rod.as_ref().map(|(_, source)| InCopy::new(source)));
        let valid = || self.rod.as_ref().map_or(Ok(()), |(rod, _)| rod.valid());
        for (from, to, len) in self.stretches() {
            let source = self.rod.as_ref().zip(from).map(|((_, source), from)| (&**source, from));
            // Who has a token may read what it stands for: it needs no other leave.
            let reaches = || true;
            let to = (unit, to);
            let stretch =
                Stretch { errand, from: source, to, len, valid: &valid, reaches: &reaches, operation };
            stretch.run().await?;
        }
        Ok(())
    }
}

impl LogicalUnit {
    /// POPULATE TOKEN. The token is fetched with RECEIVE ROD TOKEN INFORMATION.
    pub(crate) async fn populate_token(
        &self,
        nexus: &Nexus,
        list_id: u32,
        list: &[u8],
        geometry: &Geometry,
    ) -> Result<(), Refusal> {
        let head = list.first_chunk::<16>().ok_or(Sense::PARAMETER_LIST_LENGTH)?;
        let kind = u32::from_be_bytes([head[8], head[9], head[10], head[11]]);
        // RTV: the host wants a type. Of those there are, ours keeps the promise of all three.
        if head[2] & 2 != 0 && !matches!(kind, 0x0001_0000 | 0x0080_0000 | 0x0080_0001) {
            return Err(Sense::parameter(8).into());
        }
        let ranges = ranges(self, announced(list, 14)?, geometry, 16)?;
        let len = ranges.iter().fold(0_u64, |sum, range| sum.saturating_add(range.len));
        let rod = self.service.tokens.make(Maker {
            owner: nexus.id().initiator_name(),
            name: self.naa(),
            unit: self.me.clone(),
            block_size: self.block_size,
            ranges,
            timeout: u32::from_be_bytes([head[4], head[5], head[6], head[7]]),
            random: &|bytes| self.service.fill_random(bytes),
        })?;
        // Every later write to these blocks sees that somebody watches, and ends the token. Who had begun before did not: the
        // moment is when the last of those is seen. Hosts make tokens all the time, so nobody is kept meanwhile.
        self.watch(&rod);
        // Its time is for whoever is given it.
        let making = InUse::new(Arc::clone(&rod))?;
        self.exclusive.past().await;
        drop(making);
        // Nobody could fetch it.
        self.copies.add_token(nexus.id(), list_id, len, rod.token()).inspect_err(|_| rod.revoke())?;
        Ok(())
    }

    /// WRITE USING TOKEN, and what of it goes on behind the answer.
    pub(crate) async fn write_using_token(
        &self,
        errand: &Errand,
        list_id: u32,
        list: &[u8],
    ) -> Result<Option<Rest>, Refusal> {
        let short = Sense::PARAMETER_LIST_LENGTH;
        let head = list.first_chunk::<16>().ok_or(short)?;
        let token = list.get(16..).and_then(<[u8]>::first_chunk::<TOKEN_LEN>).ok_or(short)?;
        let (immediate, delete) = (head[2] & 1 != 0, head[2] & 2 != 0);
        let offset = u64::from_be_bytes([
            head[8], head[9], head[10], head[11], head[12], head[13], head[14], head[15],
        ]);
        let offset = offset.checked_mul(u64::from(self.block_size)).ok_or(Sense::parameter(8))?;
        let ranges = ranges(self, announced(list, 534)?, &self.geometry(), 536)?;
        let len = ranges.iter().fold(0_u64, |sum, range| sum.saturating_add(range.len));
        let rod = match self.service.tokens.present(token)? {
            Presented::Zeroes => None,
            Presented::Rod(rod) => {
                if offset.checked_add(len).is_none_or(|end| end > rod.len) {
                    return Err(Sense::parameter(8).into());
                }
                let source = rod.unit.upgrade().ok_or(Sense::TOKEN_REVOKED)?;
                Some((rod, source))
            }
        };
        let operation = self.copies.begin(errand, Some(list_id), 0x11)?;
        let plan = Plan { rod, offset, ranges };
        let carry_out = async move |unit: &Self, errand: &Errand| {
            let result = plan.carry_out(unit, errand, &operation).await;
            if let Some((rod, _)) = plan.rod.as_ref().filter(|_| delete) {
                rod.revoke();
            }
            operation.end(match &result {
                Ok(()) => Standing::Done,
                Err(refusal) => Standing::Failed(refusal.sense()),
            });
            result
        };
        match self.me.upgrade().filter(|_| immediate) {
            Some(unit) => {
                let errand = errand.clone();
                Ok(Some(Rest::new(async move {
                    carry_out(&unit, &errand).await.ok();
                })))
            }
            None => carry_out(self, errand).await.map(|()| None),
        }
    }
}
