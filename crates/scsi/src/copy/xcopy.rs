//! EXTENDED COPY: a host names units and blocks, and the blocks go there without passing the wire
//! (SPC-4 §6.4; VAAI full copy, `qemu-img convert -C`).

use std::sync::Arc;

use block::Geometry;

use super::{
    Operation, SEGMENT_BYTES_MAX, Standing,
    lists::{Amount, CopyList, Segment, Target, parse},
    mover::{InCopy, Stretch},
};
use crate::{
    errand::{Errand, Rest},
    nexus::Nexus,
    sense::Sense,
    unit::{LogicalUnit, Refusal},
};

/// A unit that takes part in a copy.
enum Party {
    Own,
    Other(Arc<LogicalUnit>),
}

impl Party {
    fn unit<'a>(&'a self, own: &'a LogicalUnit) -> &'a LogicalUnit {
        match self {
            Self::Own => own,
            Self::Other(unit) => unit,
        }
    }

    /// Whether the host of the nexus may name it now: access lists change, and disks go.
    fn is_reached(&self, nexus: &Nexus) -> bool {
        match self {
            Self::Own => true,
            Self::Other(unit) => nexus.neighbour(&unit.naa()).is_some_and(|now| Arc::ptr_eq(&now, unit)),
        }
    }
}

/// One segment in bytes: offsets in source and destination, and how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bytes {
    from: u64,
    to: u64,
    len: u64,
}

impl LogicalUnit {
    /// EXTENDED COPY (LID1 or LID4), and what of it goes on behind the answer.
    pub(crate) async fn extended_copy(
        &self,
        errand: &Errand,
        long: bool,
        list: &[u8],
    ) -> Result<Option<Rest>, Refusal> {
        let Some(list) = parse(long, list)? else { return Ok(None) };
        let operation = self.copies.begin(errand, list.id, u8::from(long))?;
        let immediate = list.immediate;
        let carry_out = async move |own: &Self, errand: &Errand| {
            let result = own.copy_segments(errand, &list, &operation).await.map_err(aborted);
            operation.end(match &result {
                Ok(()) => Standing::Done,
                Err(sense) => Standing::Failed(*sense),
            });
            result
        };
        match self.me.upgrade().filter(|_| immediate) {
            Some(own) => {
                let errand = errand.clone();
                Ok(Some(Rest::new(async move {
                    carry_out(&own, &errand).await.ok();
                })))
            }
            None => Ok(carry_out(self, errand).await.map(|()| None)?),
        }
    }

    async fn copy_segments(
        &self,
        errand: &Errand,
        list: &CopyList,
        operation: &Operation,
    ) -> Result<(), Refusal> {
        // All of it is looked at before the first byte moves.
        let mut plan = Vec::new();
        for segment in &list.segments {
            let from = self.party(&errand.nexus, list.targets.get(usize::from(segment.from)))?;
            let to = self.party(&errand.nexus, list.targets.get(usize::from(segment.to)))?;
            let bytes = bytes(segment, from.unit(self), to.unit(self))?;
            plan.push((from, to, bytes));
        }
        let units = plan.iter().flat_map(|(from, to, _)| [from.unit(self), to.unit(self)]);
        let _busy: Vec<InCopy<'_>> = units.map(InCopy::new).collect();
        for (from, to, bytes) in &plan {
            let (source, destination) = (from.unit(self), to.unit(self));
            let reaches = || [from, to].into_iter().all(|party| party.is_reached(&errand.nexus));
            let stretch = Stretch {
                errand,
                from: Some((source, bytes.from)),
                to: (destination, bytes.to),
                len: bytes.len,
                valid: &|| Ok(()),
                reaches: &reaches,
                operation,
            };
            // Ends inside blocks need no more care than others: a volume takes any offset.
            stretch.run().await?;
            operation.segment_done();
        }
        Ok(())
    }

    fn party(&self, nexus: &Nexus, target: Option<&Target>) -> Result<Party, Refusal> {
        let unreachable = || Refusal::from(Sense::COPY_UNREACHABLE);
        let target = target.ok_or_else(unreachable)?;
        let naa = target.naa.ok_or_else(unreachable)?;
        let party = if naa == self.naa() {
            Party::Own
        } else {
            Party::Other(nexus.neighbour(&naa).ok_or_else(unreachable)?)
        };
        // A host that believes in other blocks would copy other bytes than it means.
        if target.block_size != 0 && target.block_size != party.unit(self).block_size {
            return Err(Sense::COPY_DEVICE_FAILED.into());
        }
        Ok(party)
    }
}

/// A segment in bytes, checked against both units.
fn bytes(segment: &Segment, from: &LogicalUnit, to: &LogicalUnit) -> Result<Bytes, Refusal> {
    let beyond = || Refusal::from(Sense::COPY_ABORTED);
    let (len, from_offset, to_offset) = match segment.amount {
        Amount::Blocks { count, of_destination } => {
            let size = if of_destination { to.block_size } else { from.block_size };
            (u64::from(count).saturating_mul(u64::from(size)), 0, 0)
        }
        Amount::Bytes { count, from_offset, to_offset } => (u64::from(count), from_offset, to_offset),
    };
    if len > u64::from(SEGMENT_BYTES_MAX) {
        return Err(Sense::INVALID_FIELD_IN_PARAMETERS.into());
    }
    let at = |lba: u64, unit: &LogicalUnit, offset: u16, geometry: &Geometry| {
        let first = lba.checked_mul(u64::from(unit.block_size))?.checked_add(u64::from(offset))?;
        let size = unit.blocks(geometry).saturating_mul(u64::from(unit.block_size));
        first.checked_add(len).filter(|end| *end <= size).map(|_| first)
    };
    let source = at(segment.from_lba, from, from_offset, &from.geometry()).ok_or_else(beyond)?;
    let destination = at(segment.to_lba, to, to_offset, &to.geometry()).ok_or_else(beyond)?;
    Ok(Bytes { from: source, to: destination, len })
}

/// Why a copy ended, as its host is told: what it can do something about by its own name (make room, wait, stop
/// writing what is protected, correct its list), all else as a copy that was aborted.
fn aborted(refusal: Refusal) -> Sense {
    match refusal {
        Refusal::Sense(sense) if matches!(sense.key, 0x2 | 0x5 | 0x7 | 0xa) => sense,
        Refusal::Sense(_) | Refusal::Conflict | Refusal::Cleared | Refusal::Busy => Sense::COPY_DEVICE_FAILED,
    }
}
