//! A device leaves the pool: it gives no more places, and when nothing of it is in use its space maps go with it. Until then
//! it may stay after all: it gives none only as long as somebody holds a [`Notice`] for it.
//!
//! Facts: docs/format/spacemap.md §1, §2, §6.

use std::sync::Arc;

use pool::vdev::Class;

use super::{Allocator, top::Top};
use crate::{EngineError, dmu::MutSet};

/// Somebody wants a log device to leave. Whoever gives that up, for whatever reason and whatever state the pool is in, lets
/// this go: the next transaction group uses the device as before.
#[derive(Debug, Default)]
pub struct Notice;

impl Allocator {
    /// Gives out no more places on a log device for as long as `notice` is there. Returns the bytes of it that are still
    /// somebody's: in use, taken for log blocks on their way, or [lent](Self::lent), which comes back soon.
    pub async fn retire(&mut self, vdev: u64, notice: &Arc<Notice>) -> u64 {
        if let Some(Some(top)) = self.tops.get_mut(vdev as usize)
            && top.gives_logs()
        {
            top.notice = Some(Arc::downgrade(notice));
        }
        self.stop(vdev).await
    }

    async fn stop(&mut self, vdev: u64) -> u64 {
        let Some(Some(top)) = self.tops.get_mut(vdev as usize) else { return 0 };
        if top.class == Class::Log {
            top.allocatable = false;
            self.regroup();
            self.log_space.forget_device(u32::try_from(vdev).unwrap_or(u32::MAX));
            self.restock().await;
        }
        let top = self.tops.get(vdev as usize).and_then(Option::as_ref);
        top.map_or(0, |top| top.used + top.aside)
    }

    /// Gives out no more places on a log device until it is [reinstated](Self::reinstate), unless something of it is
    /// somebody's: then it is used as before. Whether it gives none.
    pub async fn retire_unused(&mut self, vdev: u64) -> bool {
        let gave = self.tops.get(vdev as usize).and_then(Option::as_ref).is_some_and(Top::gives_logs);
        let is_unused = self.stop(vdev).await == 0;
        if gave && !is_unused {
            self.reinstate(vdev);
        } else if gave && let Some(Some(top)) = self.tops.get_mut(vdev as usize) {
            (top.absent, top.notice) = (true, None);
        }
        is_unused
    }

    /// The same at once, whatever of it is somebody's: the configuration excludes it. True if it gave places until now.
    pub(crate) fn exclude(&mut self, vdev: u64) -> bool {
        let top = self.tops.get_mut(vdev as usize).and_then(Option::as_mut);
        let Some(top) = top.filter(|top| top.gives_logs()) else { return false };
        (top.allocatable, top.absent, top.notice) = (false, true, None);
        self.regroup();
        self.log_space.forget_device(u32::try_from(vdev).unwrap_or(u32::MAX));
        true
    }

    /// Takes into use again what nobody wants to leave any more.
    pub(super) fn reinstate_unwanted(&mut self) {
        let stays = |top: &Top| top.notice.as_ref().is_some_and(|notice| notice.strong_count() == 0);
        let tops = self.tops.iter().flatten();
        let staying: Vec<u64> = tops.filter(|top| stays(top)).map(|top| top.id).collect();
        staying.into_iter().for_each(|id| self.reinstate(id));
    }

    /// Log devices that were not there when the pool was opened, or were excluded since, and give no places until they
    /// are [reinstated](Self::reinstate).
    pub(crate) fn absent_logs(&self) -> Vec<u64> {
        let tops = self.tops.iter().flatten();
        tops.filter(|top| top.class == Class::Log && top.absent).map(|top| top.id).collect()
    }

    /// Takes a device that was retired, or was not there, into use again. One that the configuration excludes only when
    /// a configuration that does not is committed.
    pub fn reinstate(&mut self, vdev: u64) {
        if let Some(Some(top)) = self.tops.get_mut(vdev as usize) {
            (top.allocatable, top.absent, top.notice) = (true, false, None);
            self.regroup();
            self.log_space.readmit();
        }
    }

    /// Forgets a device, and frees its space maps and their array.
    ///
    /// # Errors
    /// Something on it is in use, or the MOS cannot be changed.
    pub async fn remove(&mut self, vdev: u64, mos: &mut MutSet) -> Result<(), EngineError> {
        let number = vdev as usize;
        let Some(place) = self.tops.get_mut(number) else { return Ok(()) };
        if let Some(top) = place.as_ref().filter(|top| top.used + top.aside > 0) {
            let bytes = top.used + top.aside;
            return Err(EngineError::Unsupported(format!("{bytes} bytes of device {vdev} are in use")));
        }
        let Some(top) = place.take() else { return Ok(()) };
        self.changed.retain(|(device, _)| *device != number);
        self.regroup();
        for metaslab in top.metaslabs.iter().filter(|metaslab| metaslab.object != 0) {
            self.free_map(metaslab.object, mos).await?;
        }
        for object in [top.array, top.unflushed_object] {
            if object != 0 {
                mos.free(object).await?;
            }
        }
        Ok(())
    }

    /// Frees a list of missed transaction groups, which is a space map too.
    pub(crate) async fn free_dirty_time_log(&self, object: u64, mos: &mut MutSet) -> Result<(), EngineError> {
        self.free_map(object, mos).await
    }
}
