//! What a session has to run, and when: commands whose data is there, oldest first, as far as there is room for what they
//! will hold; resets before all of them.

use std::sync::Arc;

use block::Segments;
use scsi::{Cancel, Job, LogicalUnit, Nexus, Response, Sense, Status};
use smallvec::SmallVec;

use super::{HELD_MAX, Session, manage::Act};
use crate::task::Phase;

/// A logical unit, and this session's nexus with it.
pub type Attached = (Arc<LogicalUnit>, Arc<Nexus>);

/// Something for the caller to run.
pub struct Work {
    /// Give it back to [`Session::complete`].
    pub itt: u32,
    /// Where: one logical unit, or every one that a reset is for.
    pub units: SmallVec<[Attached; 1]>,
    /// What to do.
    pub kind: WorkKind,
}

/// What to run.
#[derive(Debug)]
pub enum WorkKind {
    /// A command of the logical unit, with its data.
    Job(Job, Segments),
    /// One that may take long, and how an abort ends it early.
    Long(Job, Segments, Cancel),
    /// A reset of the logical units, to be told to others with this unit attention.
    Reset(Sense),
    /// CLEAR TASK SET: commands of other sessions end.
    ClearTaskSet,
}

impl Work {
    /// Runs it; what comes out is for [`Session::complete`].
    pub async fn run(mut self) -> (u32, Option<Response>) {
        let itt = self.itt;
        match self.kind {
            WorkKind::Job(job, data) => match self.units.pop() {
                Some((unit, nexus)) => (itt, Some(unit.run(&nexus, job, data).await)),
                None => (itt, Some(Response::status(Status::Busy))),
            },
            WorkKind::Long(job, data, cancel) => match self.units.pop() {
                Some((unit, nexus)) => (itt, Some(Box::pin(unit.run_until(&nexus, job, data, cancel)).await)),
                None => (itt, Some(Response::status(Status::Busy))),
            },
            WorkKind::Reset(attention) => {
                for (unit, _) in &self.units {
                    unit.reset(attention).await;
                }
                (itt, None)
            }
            WorkKind::ClearTaskSet => {
                for (unit, nexus) in &self.units {
                    unit.clear_task_set(nexus).await;
                }
                (itt, None)
            }
        }
    }
}

impl Session {
    /// The next thing to run, if there is room for it.
    pub fn poll_work(&mut self) -> Option<Work> {
        if let Some((itt, act)) = self.resets.pop_front() {
            let (lun, kind) = match act {
                Act::Reset { attention, lun, .. } => (lun, WorkKind::Reset(attention)),
                Act::Clear { lun } => (Some(lun), WorkKind::ClearTaskSet),
            };
            let units = self.units.iter().filter(|(number, _)| lun.is_none_or(|lun| lun == *number));
            return Some(Work { itt, units: units.map(|(_, attached)| attached.clone()).collect(), kind });
        }
        if !self.wants_input() {
            return None; // answers that nobody fetches would pile up
        }
        if self.is_outdated() {
            self.attach();
        }
        // Reads that have no room keep their places; what has its data already goes past them.
        let mut at = 0_usize;
        let mut full = false;
        loop {
            let Some(itt) = self.queued.get(at).copied() else {
                if !full {
                    self.going.withdraw();
                }
                return None;
            };
            let found = self.tasks.get(&itt).and_then(|task| Some((task.job?, task.waits_for_room())));
            let Some((job, waits)) = found else {
                self.queued.remove(at); // aborted meanwhile
                continue;
            };
            if waits {
                full = full || !self.has_room(job.holds);
                if full {
                    at = at.saturating_add(1);
                    continue;
                }
            }
            self.queued.remove(at);
            let Some(task) = self.tasks.get(&itt) else { continue };
            let attached = self.unit(task.ask.lun).filter(|_| !task.has_no_disk).cloned();
            let Some(attached) = attached else {
                self.absent(itt); // its disk was taken away while its data came
                continue;
            };
            let Some(task) = self.tasks.get_mut(&itt) else { continue };
            self.holds = self.holds.saturating_add(u64::from(job.holds));
            task.holds = job.holds;
            task.phase = Phase::Running;
            let data = std::mem::take(&mut task.data);
            let kind = if job.is_long() {
                let cancel = Cancel::default();
                task.cancel = Some(cancel.clone());
                WorkKind::Long(job, data, cancel)
            } else {
                WorkKind::Job(job, data)
            };
            let mut units = SmallVec::new();
            units.push(attached);
            return Some(Work { itt, units, kind });
        }
    }

    /// Whether a job that will hold `bytes` may begin.
    fn has_room(&mut self, bytes: u32) -> bool {
        let held = self.holds.saturating_add(self.outbox.len() as u64);
        let fits = self.holds == 0 || self.holds.saturating_add(u64::from(bytes)) <= HELD_MAX;
        (fits || self.going.has_turn()) && self.going.ask(held, u64::from(bytes))
    }

    #[cold]
    fn absent(&mut self, itt: u32) {
        if let Some(task) = self.end_task(itt) {
            // Any command but those that ask who is there gets the same answer.
            self.answer(&task.ask, scsi::absent_lun(&[0; 16], &[]), task.r2t_sn);
        }
    }

    /// The answer to a [`Work`]; for a reset `None`.
    pub fn complete(&mut self, itt: u32, response: Option<Response>) {
        let Some(response) = response else {
            self.resetting = self.resetting.saturating_sub(1);
            self.task_management_done(itt, 0);
            return;
        };
        if let Some(task) = self.end_task(itt) {
            if let Some((tally, since)) = self.tally(task.ask.lun).zip(task.since) {
                let read = scsi::pieces::total_len(&response.data) as u64;
                tally.done(task.opcode, read.max(u64::from(task.needs)), since.elapsed());
            }
            if !task.aborted {
                self.answer(&task.ask, response, task.r2t_sn);
            }
            self.ended_one(itt);
        }
    }
}
