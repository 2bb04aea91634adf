//! What a session has to run, and when: commands whose data is there, oldest first, as far as there is room for what they
//! will hold; resets before all of them.
//!
//! What runs may outlast its command: a copy that was answered before it is done, or a read, that of a copy too, which was
//! aborted and whose device does not answer. It is written down as what goes on (`Behind`), because what it holds is held
//! still; and what changes something must have ended before another session of this name may begin ([`Session::is_owed`]).

use std::sync::Arc;

use block::Segments;
use memory::Member;
use scsi::{Cancel, Job, LogicalUnit, Nexus, Response, Rest, Sense, Status};
use smallvec::SmallVec;

use super::{AT_ONCE_MAX, HELD_MAX, Session, WINDOW, manage::Act};
use crate::task::{Phase, Task};

/// A logical unit, and this session's nexus with it.
pub type Attached = (Arc<LogicalUnit>, Arc<Nexus>);

/// Something for the caller to run.
pub struct Work {
    /// Give it back to [`Session::complete`].
    pub ticket: Ticket,
    /// Where: one logical unit, or every one that a reset is for.
    pub units: SmallVec<[Attached; 1]>,
    /// What to do.
    pub kind: WorkKind,
}

/// Which piece of work it is. The tag alone does not say so: it may be another command's when what was aborted ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// Tag of the command or request.
    pub itt: u32,
    number: u64,
}

/// What came of it.
#[derive(Debug)]
pub enum Came {
    /// The answer to a command, and what of it goes on behind that.
    Answer(Response, Option<Rest>),
    /// A reset, or CLEAR TASK SET, is done.
    Acted,
    /// What went on behind an answer has ended.
    Over,
}

/// What runs though its command is gone.
#[derive(Debug)]
pub(super) struct Behind {
    holds: u32,
    cancel: Option<Cancel>,
    /// Its bytes are counted with those of copies.
    is_copy: bool,
    /// A copy that was answered: it changes something until it is ended. Else it was aborted, and only looks.
    was_answered: bool,
}

impl Behind {
    /// Whether others must not think yet that it has ended.
    fn may_change(&self) -> bool {
        self.was_answered && !self.cancel.as_ref().is_some_and(Cancel::keeps_nobody)
    }
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
    /// What goes on behind an answer.
    Rest(Rest),
}

impl Work {
    /// Runs it; what comes out is for [`Session::complete`].
    pub async fn run(mut self) -> (Ticket, Came) {
        let came = match self.kind {
            WorkKind::Job(job, data) => match self.units.pop() {
                Some((unit, nexus)) => Came::Answer(unit.run(&nexus, job, data).await, None),
                None => Came::Answer(Response::status(Status::Busy), None),
            },
            WorkKind::Long(job, data, cancel) => match self.units.pop() {
                Some((unit, nexus)) => {
                    let (response, rest) = Box::pin(unit.run_until(&nexus, job, data, cancel)).await;
                    Came::Answer(response, rest)
                }
                None => Came::Answer(Response::status(Status::Busy), None),
            },
            WorkKind::Reset(attention) => {
                for (unit, _) in &self.units {
                    unit.reset(attention).await;
                }
                Came::Acted
            }
            WorkKind::ClearTaskSet => {
                for (unit, nexus) in &self.units {
                    unit.clear_task_set(nexus).await;
                }
                Came::Acted
            }
            WorkKind::Rest(rest) => {
                rest.await;
                Came::Over
            }
        };
        (self.ticket, came)
    }
}

impl Session {
    /// The next thing to run, if there is room for it.
    pub fn poll_work(&mut self) -> Option<Work> {
        if self.is_outdated() {
            self.attach();
        }
        if let Some((itt, act)) = self.resets.pop_front() {
            let (lun, kind) = match act {
                Act::Reset { attention, lun, .. } => (lun, WorkKind::Reset(attention)),
                Act::Clear { lun } => (Some(lun), WorkKind::ClearTaskSet),
            };
            let units = self.units.iter().filter(|(number, _)| lun.is_none_or(|lun| lun == *number));
            let units = units.map(|(_, attached)| attached.clone()).collect();
            return Some(Work { ticket: Ticket { itt, number: self.next_work() }, units, kind });
        }
        if let Some((ticket, rest)) = self.rests.pop_front() {
            return Some(Work { ticket, units: SmallVec::new(), kind: WorkKind::Rest(rest) });
        }
        if !self.wants_input() {
            return None; // answers that nobody fetches would pile up
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
                self.queued.remove(at);
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
            let number = self.next_work();
            let Some(task) = self.tasks.get_mut(&itt) else { continue };
            task.work = number;
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
            return Some(Work { ticket: Ticket { itt, number }, units, kind });
        }
    }

    fn next_work(&mut self) -> u64 {
        self.works = self.works.wrapping_add(1);
        self.works
    }

    /// Bytes that what runs and what was answered hold.
    pub(super) fn held(&self) -> u64 {
        self.holds.saturating_add(self.copies_hold).saturating_add(self.outbox.len() as u64)
    }

    /// Whether a job that will hold `bytes` may begin.
    fn has_room(&mut self, bytes: u32) -> bool {
        let held = self.held();
        let fits = self.holds == 0 || self.holds.saturating_add(u64::from(bytes)) <= HELD_MAX;
        (fits || self.going.has_turn()) && self.going.ask(held, u64::from(bytes))
    }

    /// Whether a read that will hold `bytes` may be answered from memory: else a host that takes no answers had as many of them
    /// lie there as its commands ask for. It overtakes none that waits.
    pub(super) fn may_be_answered(&mut self, bytes: u32) -> bool {
        let held = self.held();
        bytes <= AT_ONCE_MAX || (!self.going.is_waiting() && self.going.ask(held, u64::from(bytes)))
    }

    #[cold]
    fn absent(&mut self, itt: u32) {
        if let Some(task) = self.end_task(itt, 0) {
            // Any command but those that ask who is there gets the same answer.
            self.answer(&task.ask, scsi::absent_lun(&[0; 16], &[]), task.r2t_sn);
        }
    }

    /// What came of a [`Work`].
    pub fn complete(&mut self, ticket: Ticket, came: Came) {
        let Ticket { itt, number } = ticket;
        let (response, rest) = match came {
            Came::Answer(response, rest) => (response, rest),
            Came::Acted => {
                self.resetting = self.resetting.saturating_sub(1);
                if !self.closing {
                    self.task_management_done(itt, 0);
                }
                return;
            }
            Came::Over => return self.forget(number),
        };
        let needs = match self.tasks.get(&itt) {
            Some(task) if task.work == number => task.needs,
            _ => return self.forget(number),
        };
        let moved = match response.status {
            Status::Good => (scsi::pieces::total_len(&response.data) as u64).max(u64::from(needs)),
            _ => 0,
        };
        let Some(task) = self.end_task(itt, moved) else { return };
        if let Some(rest) = rest {
            let ticket = Ticket { itt, number: self.next_work() };
            self.copies_hold = self.copies_hold.saturating_add(u64::from(task.holds));
            let (holds, cancel) = (task.holds, task.cancel.clone());
            let behind = Behind { holds, cancel, is_copy: true, was_answered: true };
            self.behind.insert(ticket.number, behind);
            self.rests.push_back((ticket, rest));
        }
        if self.closing {
            return; // nobody is told what came of it any more
        }
        if !task.aborted {
            self.answer(&task.ask, response, task.r2t_sn);
        }
        self.ended_one(itt);
    }

    /// A command that runs was aborted, and need not be waited for because it only looks, or is a copy that will change nothing
    /// more. False if it may change something, or too much goes on like that.
    pub(super) fn let_go(&mut self, itt: u32) -> bool {
        let keeps_nobody = |task: &Task| !task.may_change();
        if self.behind.len() >= WINDOW as usize || !self.tasks.get(&itt).is_some_and(keeps_nobody) {
            return false;
        }
        if let Some(task) = self.end_task(itt, 0) {
            // Its memory is what its device may still write to. A copy's may be that of another pool, which is away for as long as
            // it likes: reads of this one do not wait for it.
            let is_copy = task.job.is_some_and(|job| job.is_copy());
            let holds = if is_copy { &mut self.copies_hold } else { &mut self.holds };
            *holds = holds.saturating_add(u64::from(task.holds));
            let (holds, cancel) = (task.holds, task.cancel.clone());
            self.behind.insert(task.work, Behind { holds, cancel, is_copy, was_answered: false });
        }
        true
    }

    /// What went on without its command has ended.
    fn forget(&mut self, number: u64) {
        let Some(behind) = self.behind.remove(&number) else { return };
        let holds = if behind.is_copy { &mut self.copies_hold } else { &mut self.holds };
        *holds = holds.saturating_sub(u64::from(behind.holds));
    }

    /// The connection goes away: what may take long ends soon and gets no answer, so that whoever waits for all that runs
    /// (the next session of this name, a server that stops) waits for what is short.
    pub fn end_long(&mut self) {
        for task in self.tasks.values_mut() {
            if let Some(cancel) = &task.cancel {
                task.aborted = true;
                cancel.cancel();
            }
        }
        self.behind.values().filter_map(|behind| behind.cancel.as_ref()).for_each(Cancel::cancel);
        while let Some((ticket, _)) = self.rests.pop_front() {
            self.forget(ticket.number);
        }
    }

    /// Whether something runs that must have ended before another session of this name may begin: it changes something, or may
    /// yet.
    pub fn is_owed(&self) -> bool {
        let runs = |task: &Task| matches!(task.phase, Phase::Running);
        self.resetting > 0
            || self.tasks.values().any(|task| runs(task) && task.may_change())
            || self.behind.values().any(Behind::may_change)
    }

    /// The session ends. What it leaves is the memory of what only looks and goes on: to be kept until that has ended.
    pub fn leave(mut self) -> Member {
        let successor = Member::of(Arc::clone(self.going.gate()), self.client());
        let mut member = std::mem::replace(&mut self.going, successor);
        member.withdraw();
        member.settle(self.holds.saturating_add(self.copies_hold));
        member.note(0, self.outbox.gone()); // nothing of it waits for the host
        member
    }
}
