//! Runs set aside for the intent log: neither free nor in use, known to no space map, gone after a crash.
//!
//! ```text
//!   free ──restock──▶ set aside ──LogSpace::take──▶ a log block's place ──adopt──▶ in use, in the maps
//!    ▲                    │                                │
//!    └──── take back ─────┴─────────── unreserve ──────────┘
//! ```
//!
//! How much is set aside follows what is taken; little is, where little is free. What nobody took comes back before
//! anybody else is told that the pool is full.

use std::sync::Arc;

use ondisk::blkptr::Dva;
use pool::vdev::Class;

use super::{
    Allocator, Purpose,
    place::{Effort, Use, Want},
    top::Top,
};
use crate::{
    EngineError,
    txg::WORTH_A_GROUP,
    zil::space::{BLOCK_MAX, LogSpace, Order, Run, Supply},
};

/// Bytes of a run on one data disk: the log is written in sequence, and a megabyte is worth a seek.
const RUN: u64 = 1 << 20;
/// Set aside is at most one part in so many of what is free on the devices for data.
const DATA_SHARE: u64 = 64;
/// The same on log devices, which have nothing else to do.
const LOG_SHARE: u64 = 2;
/// Nothing is set aside among the data when less than one part in so many of the capacity is free.
const SCARCE: u64 = 32;

impl Allocator {
    /// Where log blocks get their places from.
    #[must_use]
    pub fn log_space(&self) -> &Arc<LogSpace> {
        &self.log_space
    }

    /// Sets aside what [`LogSpace`] asks for, as far as there is room, and takes back what it has too much of. Between
    /// transaction groups or while one is being synced; before the first, only when what a crash left is claimed.
    ///
    /// What cannot be read of the space maps is said and passed over: who has no place in a log commits with the transaction
    /// group, and whoever allocates from such a map for good will stumble over it.
    pub async fn restock(&mut self) {
        let orders = self.log_space.begin_restock();
        for run in self.log_space.returned() {
            self.unreserve_run(&run);
        }
        let mut wrong = None;
        for order in orders {
            let (runs, refused) = self.fill(&order, &mut wrong).await;
            self.log_space.stock(order.supply, runs, refused);
        }
        if let Some(error) = wrong {
            self.quiet.say(|left_out| {
                tracing::warn!(%error, left_out, "cannot set space aside for the intent log");
            });
        }
    }

    /// Whether log devices have less left than was taken of them for the open transaction group, and that is worth one.
    /// Synced now it gives that back; else what comes next is logged among the data, on devices that may be much slower.
    pub(crate) fn is_log_running_out(&self) -> bool {
        let (taken, held) = self.log_space.of_log_devices();
        if taken < WORTH_A_GROUP {
            return false;
        }
        let barred = self.log_space.barred();
        let tops =
            self.groups[Class::Log as usize].tops.iter().filter_map(|index| self.tops[*index].as_ref());
        let free: u64 = tops.filter(|top| !barred.contains(&(top.id as u32))).map(Top::free).sum();
        taken >= free + held
    }

    /// Runs for one supply, and the stored size from which on blocks cannot be had.
    async fn fill(&mut self, order: &Order, wrong: &mut Option<EngineError>) -> (Vec<Run>, Option<u64>) {
        let class = match order.supply {
            Supply::Log => Class::Log,
            Supply::Pool => Class::Normal,
        };
        let members: Vec<usize> = self.groups[class as usize]
            .tops
            .iter()
            .copied()
            .filter(|index| {
                self.tops[*index].as_ref().is_some_and(|top| !order.barred.contains(&(top.id as u32)))
            })
            .collect();
        let limit = self.aside_limit(&members, class);
        let (mut runs, mut left) = (Vec::new(), limit.saturating_sub(order.held));
        let mut missing = order.target.min(limit).saturating_sub(order.good);
        let mut need = order.need;
        let mut fruitless = 0;
        let mut step = 0;
        while (missing > 0 || need > 0) && fruitless < members.len() && left > 0 {
            // Each in turn, and another one first each time.
            let position = (order.first + step) % members.len();
            step += 1;
            let found = self.set_aside(members[position], missing.max(need), need, left).await;
            match found {
                Ok(Some(run)) => {
                    fruitless = 0;
                    left = left.saturating_sub(run.len);
                    missing = missing.saturating_sub(run.len);
                    if run.holds(need) {
                        need = 0;
                    }
                    runs.push(run);
                }
                Ok(None) => fruitless += 1,
                Err(error) => {
                    *wrong = Some(error);
                    fruitless += 1;
                }
            }
        }
        (runs, (need > 0).then_some(need))
    }

    /// Bytes that may be set aside on these devices in all.
    fn aside_limit(&self, members: &[usize], class: Class) -> u64 {
        let tops = || members.iter().filter_map(|index| self.tops[*index].as_ref());
        let free: u64 = tops().map(|top| top.free() + top.aside).sum();
        let capacity: u64 = tops().map(Top::capacity).sum();
        match class {
            Class::Log => free / LOG_SHARE,
            _ if free < capacity / SCARCE => 0,
            _ => free / DATA_SHARE,
        }
    }

    /// A run on one device: a long one, or one that holds the longest log block, or at least the block of `need`
    /// stored bytes that somebody waits for; at most `most` bytes long.
    async fn set_aside(
        &mut self,
        index: usize,
        wanted: u64,
        need: u64,
        most: u64,
    ) -> Result<Option<Run>, EngineError> {
        let Some(top) = &self.tops[index] else { return Ok(None) };
        let block = top.footprint.asize(BLOCK_MAX);
        let needed = if need > 0 { top.footprint.asize(need) } else { block };
        // Whole blocks of the longest kind: what is left over of a run is then still a legal size for other uses.
        let whole = |bytes: u64| (bytes / block).max(1) * block;
        let long = whole((RUN * top.breadth).min(wanted).min(most)).max(needed);
        let (id, ashift, shift, class) = (top.id as u32, top.ashift, top.shift, top.class);
        let (footprint, lane) = (Arc::clone(&top.footprint), Purpose::Log.lane(0));
        let mut last = 0;
        for len in [long, whole(long / 4).max(needed), block.max(needed), needed] {
            if len == last || len > most {
                continue;
            }
            last = len;
            let lent = if class == Class::Log { 0 } else { self.deflate.bytes(id.into(), len) };
            if lent > 0 && !self.log_space.lend(lent) {
                continue;
            }
            let (units, effort) = (len >> ashift, Effort::Moderate);
            let want = Want { top: index, lane, units, excluded: &[], purpose: Use::Aside, effort };
            let placed = self.place_on(want).await;
            if let Ok(Some((metaslab, unit))) = placed {
                let offset = ((metaslab as u64) << shift) + (unit << ashift);
                return Ok(Some(Run { vdev: id, offset, len, footprint }));
            }
            self.log_space.unlend(lent);
            placed?;
        }
        Ok(None)
    }

    /// A place taken from [`LogSpace`] is an allocation of the running transaction group from now on, to be
    /// [released](Self::release) as any other. Only within a transaction group.
    ///
    /// # Errors
    /// It was not set aside.
    pub fn adopt(&mut self, dva: Dva) -> Result<(), EngineError> {
        let number = dva.vdev as usize;
        let place = self.tops.get_mut(number).and_then(Option::as_mut).and_then(|top| {
            let (index, units) = top.locate(dva.offset, dva.asize)?;
            Some((top, index, units))
        });
        let Some((top, index, units)) = place else {
            return Err(
                self.fail(EngineError::Unsupported(format!("cannot adopt {dva:?}: there is no such place")))
            );
        };
        let metaslab = &mut top.metaslabs[index];
        if metaslab.adopt(units).is_err() {
            let detail = format!("cannot adopt {dva:?}: it was not set aside");
            return Err(self.fail(EngineError::SpaceMap {
                vdev: dva.vdev.into(),
                metaslab: index as u64,
                detail,
            }));
        }
        metaslab.last_use = self.txg;
        top.used += dva.asize;
        top.aside -= dva.asize;
        if !std::mem::replace(&mut metaslab.listed, true) {
            self.changed.push((number, index));
        }
        Ok(())
    }

    /// A place taken from [`LogSpace`] that nothing on disk refers to is free again, at once.
    pub fn unreserve(&mut self, dva: Dva) {
        self.unreserve_range(dva.vdev, dva.offset, dva.asize);
    }

    fn unreserve_run(&mut self, run: &Run) {
        self.unreserve_range(run.vdev, run.offset, run.len);
    }

    pub(super) fn unreserve_range(&mut self, vdev: u32, offset: u64, len: u64) {
        // A device that was removed has taken its runs along.
        let Some(top) = self.tops.get_mut(vdev as usize).and_then(Option::as_mut) else { return };
        let located = top.locate(offset, len);
        let metaslab = located.as_ref().map_or(offset >> top.shift, |(index, _)| *index as u64);
        let done = located.is_some_and(|(index, units)| top.metaslabs[index].unreserve(units).is_ok());
        if done {
            top.aside -= len;
        } else {
            let detail = format!("cannot free {len} bytes at {offset:#x}: they were not set aside");
            self.fail(EngineError::SpaceMap { vdev: vdev.into(), metaslab, detail });
        }
    }

    /// Takes back the runs among the data that no log block lies in yet. True if there were any.
    pub(super) fn take_back(&mut self) -> bool {
        let runs = self.log_space.take_back();
        let any = !runs.is_empty();
        runs.iter().for_each(|run| self.unreserve_run(run));
        any
    }
}
