//! Commands that wait for room too long: they are answered before their host's patience ends.
//!
//! A host that hears nothing for half a minute aborts, then resets, and in the end gives the disk up, which makes what was
//! short shorter still. TASK SET FULL says what is the matter: hosts send fewer at a time, and send this one again (SAM-5
//! §5.3.1). It may be said of what nothing was done of: reads that have not begun, nor what goes in steps and brings no more than
//! a block; writes whose data was not asked for. All else has its room and goes on.

use std::collections::VecDeque;

use scsi::{Response, Status};
use tokio::time::Instant;

use super::Session;
use crate::task::Task;

impl Session {
    /// When the command that has waited longest for room will have waited too long. `None` while none waits, and while the
    /// initiator does not take its answers: then it waits for itself.
    pub fn room_due(&self) -> Option<Instant> {
        if !self.wants_input() {
            return None;
        }
        let oldest = |queue: &VecDeque<u32>| {
            let mut waiting = queue.iter().filter_map(|itt| self.tasks.get(itt));
            waiting.find(|task| task.waits_for_room()).and_then(|task| self.patience_ends(task))
        };
        oldest(&self.waiting).into_iter().chain(oldest(&self.queued)).min()
    }

    fn patience_ends(&self, task: &Task) -> Option<Instant> {
        task.since?.checked_add(self.targets.config().room_wait)
    }

    /// Answers those that have waited too long by now.
    pub fn give_up(&mut self, now: Instant) {
        let waiting: Vec<u32> = self.waiting.iter().chain(&self.queued).copied().collect();
        for itt in waiting {
            // The end of those before it may have made room.
            let is_late =
                |task: &Task| task.waits_for_room() && self.patience_ends(task).is_some_and(|end| end <= now);
            if !self.tasks.get(&itt).is_some_and(is_late) {
                continue;
            }
            if let Some(task) = self.end_task(itt, 0) {
                // To who has no other command it would say to send fewer than one.
                let status = if self.tasks.is_empty() { Status::Busy } else { Status::TaskSetFull };
                self.answer(&task.ask, Response::status(status), task.r2t_sn);
            }
        }
    }
}
