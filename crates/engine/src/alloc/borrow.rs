//! Free space that somebody works on for a while: it is written over or trimmed, and nothing may be put there meanwhile.
//!
//! It is set aside as places for the intent log are: neither free nor in use, known to no space map, gone after a crash. Whoever
//! drops what it borrowed gives it back, for whatever reason: a device that failed, a command whose answer nobody waits for.

use std::{ops::Range, sync::Arc};

use parking_lot::Mutex;

use super::Allocator;
use crate::EngineError;

/// Free space is left to allocations: at most one part in so many of it is borrowed at a time.
const SHARE: u64 = 8;

/// What was given back, and is not free yet: device and runs.
pub(super) type Returned = Mutex<Vec<(u64, Vec<Range<u64>>)>>;

/// Free runs of one top-level device that nobody else gets before this is dropped. They are free again in the next
/// transaction group, or when more is borrowed.
#[derive(Debug)]
pub struct Borrowed {
    /// The device.
    pub vdev: u64,
    /// Bytes of the device, ascending.
    pub runs: Vec<Range<u64>>,
    /// Everything below this offset (bytes) was in use, or is in `runs`.
    pub next: u64,
    /// There is nothing behind `next`.
    pub is_last: bool,
    returned: Arc<Returned>,
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        if !self.runs.is_empty() {
            self.returned.lock().push((self.vdev, std::mem::take(&mut self.runs)));
        }
    }
}

impl Allocator {
    /// Free runs of `vdev` from byte `from` on, of at most `most` bytes in all, from one metaslab. There may be none
    /// before `next`.
    ///
    /// # Errors
    /// A space map cannot be read.
    pub async fn borrow_free(&mut self, vdev: u64, from: u64, most: u64) -> Result<Borrowed, EngineError> {
        self.reclaim();
        let number = vdev as usize;
        let returned = Arc::clone(&self.returned);
        let borrowed =
            |runs, next, is_last| Borrowed { vdev, runs, next, is_last, returned: Arc::clone(&returned) };
        let nothing = |next| borrowed(Vec::new(), next, true);
        let Some(Some(top)) = self.tops.get(number) else { return Ok(nothing(from)) };
        let (shift, ashift) = (top.shift, top.ashift);
        let Some(index) = usize::try_from(from >> shift).ok().filter(|index| *index < top.metaslabs.len())
        else {
            return Ok(nothing(top.capacity()));
        };
        let start = (index as u64) << shift;
        let most = most.min(top.free() / SHARE) >> ashift;
        self.load(number, index).await?;
        let Some(Some(top)) = self.tops.get_mut(number) else { return Ok(nothing(from)) };
        let metaslab = &mut top.metaslabs[index];
        let first = (from - start) >> ashift;
        let (mut found, mut left, mut next) = (Vec::new(), most.max(1), metaslab.len);
        if let Some(loaded) = &metaslab.loaded {
            for run in loaded.free.runs(true) {
                let run = run.start.max(first)..run.end;
                if run.is_empty() {
                    continue;
                }
                let len = left.min(run.end - run.start);
                found.push(run.start..run.start + len);
                left -= len;
                if left == 0 {
                    next = run.start + len;
                    break;
                }
            }
        }
        let mut runs = Vec::with_capacity(found.len());
        for run in found {
            let bytes = start + (run.start << ashift)..start + (run.end << ashift);
            if metaslab.set_aside(run).is_err() {
                let detail = "free space cannot be set aside".to_owned();
                return Err(self.fail(EngineError::SpaceMap { vdev, metaslab: index as u64, detail }));
            }
            top.aside += bytes.end - bytes.start;
            runs.push(bytes);
        }
        let next = start + (next << ashift);
        Ok(borrowed(runs, next, next >= top.capacity()))
    }

    /// What was given back is free again.
    pub(super) fn reclaim(&mut self) {
        let returned = std::mem::take(&mut *self.returned.lock());
        for (vdev, runs) in returned {
            let vdev = u32::try_from(vdev).unwrap_or(u32::MAX);
            runs.into_iter().for_each(|run| self.unreserve_range(vdev, run.start, run.end - run.start));
        }
    }
}
