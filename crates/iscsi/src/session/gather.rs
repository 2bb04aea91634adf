//! Small reads that came together: looked up together, which is faster than one after the other.
//!
//! A read waits here for those behind it in the same bytes, and no longer: whatever else comes, and the end of what came,
//! is preceded by [`Session::look_up`]. So commands are still begun in the order of their numbers.

use std::sync::Arc;

use scsi::{Begin, Lookup};
use smallvec::SmallVec;
use tokio::time::Instant;

use super::Session;
use crate::task::{Ask, Phase, Task};

/// So many at most: as many as a volume looks up at once.
const TOGETHER: usize = 16;

/// A read of little that is checked and not begun.
#[derive(Debug)]
pub(super) struct SmallRead {
    pub(super) ask: Ask,
    pub(super) opcode: u8,
    pub(super) lookup: Lookup,
}

impl Session {
    /// Takes in a read without data or anything else to come.
    pub(super) fn gather(&mut self, read: SmallRead) {
        // As a command under way it counts against the window, which what is answered meanwhile tells.
        if !read.ask.immediate {
            self.under_way = self.under_way.saturating_add(1);
        }
        self.reads.push(read);
        if self.reads.len() >= TOGETHER {
            self.look_up();
        }
    }

    /// Answers what was gathered as far as it is in memory, and begins the rest.
    pub(super) fn look_up(&mut self) {
        if self.reads.is_empty() {
            return;
        }
        let mut reads = std::mem::take(&mut self.reads);
        for reads in reads.chunk_by(|one, next| one.ask.lun == next.ask.lun) {
            let unit = reads.first().and_then(|read| self.unit(read.ask.lun));
            // Disks come and go after what was gathered is looked up.
            let Some(unit) = unit.map(|(unit, _)| Arc::clone(unit)) else { continue };
            let lookups: SmallVec<[Lookup; TOGETHER]> = reads.iter().map(|read| read.lookup).collect();
            unit.look_up(&lookups, &mut |number, begun| {
                if let Some(SmallRead { ask, opcode, .. }) = reads.get(number) {
                    self.go_on(ask, *opcode, begun);
                }
            });
        }
        reads.clear();
        self.reads = reads;
    }

    fn go_on(&mut self, ask: &Ask, opcode: u8, begun: Begin) {
        if !ask.immediate {
            self.under_way = self.under_way.saturating_sub(1);
        }
        match begun {
            Begin::Done(response) => self.answer_at_once(ask, opcode, response),
            Begin::Job(job) => {
                let mut task = Task::new(*ask, Some(job), Phase::Unsolicited { left: 0 });
                (task.opcode, task.since) = (opcode, Some(Instant::now()));
                self.insert(task);
                self.sequence_complete(ask.itt);
            }
        }
    }
}
