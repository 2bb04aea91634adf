//! Free space that somebody works on for a while: it is written over or trimmed, and nothing may be put there meanwhile.
//!
//! It is set aside as places for the intent log are: neither free nor in use, known to no space map, gone after a crash. Whoever
//! drops what it borrowed gives it back, for whatever reason: a device that failed, a command whose answer nobody waits for.
//!
//! Nothing of it was promised to anybody: a transaction group could not wait for it.

use std::{ops::Range, sync::Arc};

use parking_lot::Mutex;
use pool::vdev::Class;

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
    /// before `next`, which is `from` itself if all that is free was promised, or if it is a log device that gives no places:
    /// nothing of it may be anybody's when it leaves.
    ///
    /// # Errors
    /// A space map cannot be read.
    pub async fn borrow_free(&mut self, vdev: u64, from: u64, most: u64) -> Result<Borrowed, EngineError> {
        self.reclaim();
        let number = vdev as usize;
        let returned = Arc::clone(&self.returned);
        let borrowed_as =
            |runs, next, is_last| Borrowed { vdev, runs, next, is_last, returned: Arc::clone(&returned) };
        let nothing = |next| borrowed_as(Vec::new(), next, true);
        let Some(Some(top)) = self.tops.get(number) else { return Ok(nothing(from)) };
        if top.class == Class::Log && !top.allocatable {
            return Ok(borrowed_as(Vec::new(), from, false));
        }
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
        let units = found.iter().map(|run: &Range<u64>| run.end - run.start).sum();
        let lent = self.lend(vdev, units);
        if lent < units {
            next = found.first().map_or(next, |run| run.start);
            left = lent;
            found.retain_mut(|run| {
                run.end = run.end.min(run.start + left);
                left -= run.end - run.start;
                next = if run.is_empty() { next } else { run.end };
                !run.is_empty()
            });
        }
        let mut runs = Vec::with_capacity(found.len());
        let Some(Some(top)) = self.tops.get_mut(number) else { return Ok(nothing(from)) };
        let metaslab = &mut top.metaslabs[index];
        for run in found {
            let bytes = start + (run.start << ashift)..start + (run.end << ashift);
            if metaslab.set_aside(run).is_err() {
                let detail = "free space cannot be set aside".to_owned();
                return Err(self.fail(EngineError::SpaceMap { vdev, metaslab: index as u64, detail }));
            }
            top.aside += bytes.end - bytes.start;
            top.lent += bytes.end - bytes.start;
            runs.push(bytes);
        }
        let next = start + (next << ashift);
        Ok(borrowed_as(runs, next, next >= top.capacity()))
    }

    /// Bytes of a device that are [`Borrowed`].
    #[must_use]
    pub fn lent(&self, vdev: u64) -> u64 {
        self.tops.get(vdev as usize).and_then(Option::as_ref).map_or(0, |top| top.lent)
    }

    /// How many of so many free units of a device may be borrowed: what writers were promised is not.
    fn lend(&mut self, vdev: u64, units: u64) -> u64 {
        let Some(ashift) = self.ashift_of_promised(vdev) else { return units };
        let mut lent = units;
        while lent > 0 {
            let bytes = self.deflate.bytes(vdev, lent << ashift);
            if self.log_space.lend_for_a_while(bytes, self.borrowed) {
                self.borrowed += bytes;
                break;
            }
            lent /= 2;
        }
        lent
    }

    /// log2 of a unit of a device, if what is free there is promised to writers.
    fn ashift_of_promised(&self, vdev: u64) -> Option<u32> {
        let top = self.tops.get(vdev as usize)?.as_ref()?;
        (top.class == Class::Normal).then_some(top.ashift)
    }

    /// What was given back is free again. True if there was any.
    pub(super) fn reclaim(&mut self) -> bool {
        let returned = std::mem::take(&mut *self.returned.lock());
        let any = !returned.is_empty();
        for (vdev, runs) in returned {
            let number = u32::try_from(vdev).unwrap_or(u32::MAX);
            let was_lent = self.ashift_of_promised(vdev).is_some();
            for run in runs {
                let bytes = run.end - run.start;
                self.unreserve_range(number, run.start, bytes);
                if let Some(Some(top)) = self.tops.get_mut(vdev as usize) {
                    top.lent = top.lent.saturating_sub(bytes);
                }
                let lent = if was_lent { self.deflate.bytes(vdev, bytes) } else { 0 };
                self.borrowed = self.borrowed.saturating_sub(lent);
            }
        }
        any
    }
}
