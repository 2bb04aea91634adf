//! A device leaves the pool: it gives no more places, and when nothing of it is in use its space maps go with it.
//!
//! Facts: docs/format/spacemap.md §1, §2, §6.

use pool::vdev::Class;

use super::Allocator;
use crate::{EngineError, dmu::MutSet};

impl Allocator {
    /// Gives out no more places on a log device. Returns the bytes of it that are still somebody's: in use, or taken
    /// for log blocks on their way.
    pub async fn retire(&mut self, vdev: u64) -> u64 {
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

    /// [Retires](Self::retire) a log device, unless something of it is somebody's: then it is used as before.
    /// Whether it is retired.
    pub async fn retire_unused(&mut self, vdev: u64) -> bool {
        let is_unused = self.retire(vdev).await == 0;
        if !is_unused {
            self.reinstate(vdev);
        }
        is_unused
    }

    /// Takes a device that was [retired](Self::retire) into use again.
    pub fn reinstate(&mut self, vdev: u64) {
        if let Some(Some(top)) = self.tops.get_mut(vdev as usize) {
            top.allocatable = true;
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
