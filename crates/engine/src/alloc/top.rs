//! One top-level device as the allocator sees it: its metaslabs, what a block takes on it, and the streams of
//! allocations that are under way on it.

use std::sync::{Arc, Weak};

use ondisk::spacemap;
use pool::vdev::{Class, Kind, Vdev, raidz::Geometry};

use super::{Footprint, NewTop, Notice, metaslab::Metaslab};
use crate::EngineError;

/// Streams of allocations that each keep a metaslab of their own on each device: data by copy, metadata by
/// copy, the intent log. So a volume's data is contiguous whatever metadata is written in between, and a
/// transaction group touches few space maps.
pub(super) const LANES: usize = 7;

/// Most metaslabs accepted on one device, as many as OpenZFS makes.
const METASLABS_MAX: u64 = 1 << 17;

/// Where a stream is on a device.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lane {
    pub(super) metaslab: Option<usize>,
    /// Unit behind its last allocation.
    pub(super) cursor: u64,
}

#[derive(Debug)]
pub(super) struct Top {
    pub(super) id: u64,
    pub(super) ashift: u32,
    /// log2 of a metaslab's bytes.
    pub(super) shift: u32,
    pub(super) class: Class,
    /// New blocks may go here.
    pub(super) allocatable: bool,
    /// They may as soon as it is there, and the configuration does not exclude it: it was not when the pool was opened,
    /// or the configuration does.
    pub(super) absent: bool,
    /// Somebody wants it to leave the pool: they may not for as long as this is there.
    pub(super) notice: Option<Weak<Notice>>,
    /// What a block takes.
    pub(super) footprint: Arc<Footprint>,
    /// Devices that hold data of one row.
    pub(super) breadth: u64,
    pub(super) metaslabs: Vec<Metaslab>,
    /// Metaslab array object, 0 if there is none yet.
    pub(super) array: u64,
    /// Object with the unflushed transaction groups, 0 if there is none: then its changes are never logged.
    pub(super) unflushed_object: u64,
    /// Bytes in use.
    pub(super) used: u64,
    /// Bytes released that cannot be handed out yet.
    pub(super) waiting: u64,
    /// Bytes set aside for the intent log, or [`lent`](Self::lent).
    pub(super) aside: u64,
    /// Bytes that are [`Borrowed`](super::Borrowed), or were until they were given back in this transaction group.
    pub(super) lent: u64,
    pub(super) lanes: [Lane; LANES],
    /// Metaslabs with good odds that may still be loaded in vain until the next commit.
    pub(super) looks: u32,
    /// The same of others.
    pub(super) long_shots: u32,
}

impl Top {
    /// A device without content.
    pub(super) fn empty(new: &NewTop) -> Self {
        let shapes: Vec<Geometry> = new.raidz.clone().into_iter().collect();
        Self::build(new.id, new.ashift, new.asize, new.metaslab_shift, new.class, shapes)
    }

    /// A device of a pool that is opened, its maps not read yet. `None` if it has no metaslabs: a removed or
    /// unknown one.
    pub(super) fn of(vdev: &Vdev) -> Result<Option<Self>, EngineError> {
        let Some(top) = &vdev.top else { return Ok(None) };
        if matches!(vdev.kind, Kind::Hole | Kind::Indirect { .. } | Kind::Missing) {
            return Ok(None);
        }
        let metaslabs = top.metaslabs();
        let shift_fits = (top.ashift..=48).contains(&top.metaslab_shift);
        if !shift_fits || metaslabs > METASLABS_MAX {
            return Err(EngineError::Unsupported(format!(
                "top-level device {}: {metaslabs} metaslabs of 2^{} bytes cannot be managed",
                vdev.id, top.metaslab_shift
            )));
        }
        let mut shapes = Vec::new();
        collect_shapes(vdev, &mut shapes);
        let mut this = Self::build(vdev.id, top.ashift, top.asize, top.metaslab_shift, vdev.class(), shapes);
        let takes_blocks = !top.removing
            && !top.non_allocating
            && !matches!(vdev.kind, Kind::Draid { .. } | Kind::DistributedSpare | Kind::Unknown(_));
        let is_here = vdev.is_readable();
        (this.allocatable, this.absent) = (takes_blocks && is_here, takes_blocks && !is_here);
        Ok(Some(this))
    }

    /// Whether it is a log device that gives places, or would if nobody wanted it to leave.
    pub(super) fn gives_logs(&self) -> bool {
        self.class == Class::Log && (self.allocatable || self.notice.is_some())
    }

    fn build(id: u64, ashift: u32, asize: u64, shift: u32, class: Class, shapes: Vec<Geometry>) -> Self {
        let len = 1u64 << (shift - ashift);
        let count = asize >> shift;
        let breadth = shapes.iter().map(|shape| shape.children - shape.parity).min().unwrap_or(1);
        Self {
            id,
            ashift,
            shift,
            class,
            allocatable: true,
            absent: false,
            notice: None,
            footprint: Arc::new(Footprint { ashift, shapes }),
            breadth: breadth.max(1) as u64,
            metaslabs: (0..count).map(|_| Metaslab::new(len)).collect(),
            array: 0,
            unflushed_object: 0,
            used: 0,
            waiting: 0,
            aside: 0,
            lent: 0,
            lanes: [Lane::default(); LANES],
            looks: 0,
            long_shots: 0,
        }
    }

    /// Bytes of as many metaslabs as it may have.
    pub(super) fn limit(&self) -> u64 {
        METASLABS_MAX.saturating_mul(1_u64 << self.shift)
    }

    /// Adds the metaslabs that fit behind those it has.
    pub(super) fn grow(&mut self, asize: u64) {
        let count = asize >> self.shift;
        let len = 1u64 << (self.shift - self.ashift);
        while (self.metaslabs.len() as u64) < count {
            self.metaslabs.push(Metaslab::new(len));
        }
    }

    /// Bytes its metaslabs hold.
    pub(super) fn capacity(&self) -> u64 {
        (self.metaslabs.len() as u64) << self.shift
    }

    /// Bytes that can be handed out.
    pub(super) fn free(&self) -> u64 {
        self.capacity().saturating_sub(self.used).saturating_sub(self.waiting).saturating_sub(self.aside)
    }

    /// Bytes a block of `psize` stored bytes takes.
    pub(super) fn asize(&self, psize: u64) -> u64 {
        self.footprint.asize(psize)
    }

    /// Its smallest write, of which stored blocks are multiples.
    pub(super) fn sector(&self) -> u64 {
        1 << self.ashift
    }

    /// The metaslab that holds `offset..offset + asize`, and the units there.
    pub(super) fn locate(&self, offset: u64, asize: u64) -> Option<(usize, std::ops::Range<u64>)> {
        let unit = 1u64 << self.ashift;
        if asize == 0 || !offset.is_multiple_of(unit) || !asize.is_multiple_of(unit) {
            return None;
        }
        let index = offset >> self.shift;
        let start = (offset & ((1 << self.shift) - 1)) >> self.ashift;
        let end = start.checked_add(asize >> self.ashift)?;
        let index = usize::try_from(index).ok()?;
        (end <= self.metaslabs.get(index)?.len).then_some((index, start..end))
    }

    /// How entries of its metaslabs' maps are written.
    pub(super) fn encoding(&self, two_words: bool) -> spacemap::Encoding {
        if two_words { spacemap::Encoding::Shortest } else { spacemap::Encoding::OneWord }
    }
}

/// RAIDZ shapes of a device and what is below it: a stress tester nests them in mirrors.
fn collect_shapes(vdev: &Vdev, shapes: &mut Vec<Geometry>) {
    if let Kind::Raidz(geometry) = &vdev.kind {
        shapes.push(geometry.clone());
    }
    vdev.children.iter().for_each(|child| collect_shapes(child, shapes));
}
