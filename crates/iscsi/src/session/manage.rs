//! Task management and logout: what ends commands, and is answered when the last of them has ended (RFC 7143 §11.5,
//! §11.14).

use bytes::Bytes;
use scsi::Sense;

use super::{IMMEDIATE_MAX, Session, WINDOW};
use crate::{
    pdu::{Header, op, reject},
    task::{Phase, Task},
};

/// What a task management function does once this session's own commands have ended, if it does more than to end them.
#[derive(Clone, Copy, Debug)]
pub(super) enum Act {
    /// For a logical unit, or for all of them.
    Reset {
        attention: Sense,
        lun: Option<u16>,
        cold: bool,
    },
    Clear {
        lun: u16,
    },
}

/// What waits for aborted commands to end.
#[derive(Debug)]
pub(super) enum Reply {
    TaskManagement(Option<Act>),
    Logout,
}

#[derive(Debug)]
pub(super) struct Wait {
    itt: u32,
    reply: Reply,
    /// Commands that must end first.
    on: Vec<u32>,
}

impl Session {
    pub(super) fn logout(&mut self, header: &Header) {
        let reason = header.flags() & 0x7f;
        if reason > 1 {
            // Removing a connection for recovery belongs to a higher error recovery level.
            return self.logout_response(header.itt(), 2);
        }
        if self.too_many_waits() {
            return self.reject(header, reject::TOO_MANY_IMMEDIATE);
        }
        let on = self.abort(|_| true);
        self.wait(Wait { itt: header.itt(), reply: Reply::Logout, on });
    }

    pub(super) fn too_many_waits(&self) -> bool {
        self.waits.len().saturating_add(self.resetting) >= IMMEDIATE_MAX
    }

    pub(super) fn logout_response(&mut self, itt: u32, response: u8) {
        let mut h = Header::new(op::LOGOUT_RESPONSE);
        h.0[2] = response;
        h.set(16, itt);
        self.send(h, &[], true);
        self.closing |= response == 0;
    }

    pub(super) fn task_management(&mut self, header: &Header) {
        let itt = header.itt();
        if self.too_many_waits() || self.waits.iter().any(|wait| wait.itt == itt) {
            return self.reject(header, reject::TOO_MANY_IMMEDIATE);
        }
        if self.is_outdated() {
            self.attach(); // a reset of the disk that was there before would reach nobody
        }
        let function = header.flags() & 0x7f;
        let lun = scsi::lun_number(header.lun()).filter(|_| self.unit(header.lun()).is_some());
        let (on, act) = match (function, lun) {
            (1, _) => {
                let tag = header.word20();
                if !self.tasks.contains_key(&tag) {
                    let response = if self.abort_unseen(tag, header) { 0 } else { 1 };
                    return self.task_management_done(itt, response);
                }
                (self.abort(|task| task.ask.itt == tag), None)
            }
            (2 | 4 | 5, None) => return self.task_management_done(itt, 2),
            (2, Some(lun)) => (self.abort_lun(lun), None),
            (4, Some(lun)) => (self.abort_lun(lun), Some(Act::Clear { lun })),
            (5, Some(lun)) => {
                let attention = Sense::DEVICE_RESET;
                (self.abort_lun(lun), Some(Act::Reset { attention, lun: Some(lun), cold: false }))
            }
            (6, _) => {
                let attention = Sense::BUS_RESET;
                (self.abort(|_| true), Some(Act::Reset { attention, lun: None, cold: false }))
            }
            (7, _) => {
                let attention = Sense::POWER_ON;
                (self.abort(|_| true), Some(Act::Reset { attention, lun: None, cold: true }))
            }
            (8, _) => return self.task_management_done(itt, 4),
            // CLEAR ACA: there never is an ACA condition (NormACA in INQUIRY).
            _ => return self.task_management_done(itt, 5),
        };
        self.wait(Wait { itt, reply: Reply::TaskManagement(act), on });
    }

    /// A command that is on its way still, or came before its turn: its number counts as received, and whatever comes under
    /// it is nothing (§11.5.1). False if it cannot be.
    fn abort_unseen(&mut self, tag: u32, header: &Header) -> bool {
        let number = header.word32();
        let is_ahead = number.wrapping_sub(self.exp_cmd_sn) < WINDOW;
        let is_older = (1..WINDOW).contains(&header.cmd_sn().wrapping_sub(number));
        if !is_ahead || !is_older {
            return false;
        }
        match self.early.get(&number) {
            Some(Some((early, _))) if early.itt() != tag => return false,
            Some(Some((_, data))) => {
                let len: usize = data.iter().map(Bytes::len).sum();
                self.early_bytes = self.early_bytes.saturating_sub(len as u64);
            }
            Some(None) | None => {}
        }
        self.early.insert(number, None);
        true
    }

    pub(super) fn abort_lun(&mut self, lun: u16) -> Vec<u32> {
        self.abort(|task| scsi::lun_number(task.ask.lun) == Some(lun))
    }

    pub(super) fn task_management_done(&mut self, itt: u32, response: u8) {
        let mut h = Header::new(op::TASK_MANAGEMENT_RESPONSE);
        h.0[2] = response;
        h.set(16, itt);
        self.send(h, &[], true);
    }

    /// Ends commands; returns those that are running, change something, and will end later, without an answer. A read whose
    /// device does not answer keeps nobody, that of a copy neither.
    pub(super) fn abort(&mut self, which: impl Fn(&Task) -> bool) -> Vec<u32> {
        let chosen: Vec<u32> = self.tasks.values().filter(|t| which(t)).map(|t| t.ask.itt).collect();
        let mut running = Vec::new();
        for itt in chosen {
            match self.tasks.get_mut(&itt) {
                Some(task) if matches!(task.phase, Phase::Running) => {
                    task.aborted = true;
                    if let Some(cancel) = &task.cancel {
                        cancel.cancel();
                    }
                    if !self.let_go(itt) {
                        running.push(itt);
                    }
                }
                _ => {
                    self.end_task(itt, 0);
                }
            }
        }
        running
    }

    /// Looks again at what is waited for: the write of a copy may have ended, and its next read not. Whether any of it keeps
    /// nobody any more.
    pub fn let_go_of_aborted(&mut self) -> bool {
        if self.closing {
            return false; // nobody is told what came of it any more
        }
        let waited: Vec<u32> = self.waits.iter().flat_map(|wait| wait.on.iter().copied()).collect();
        let mut any = false;
        for itt in waited {
            if self.let_go(itt) {
                self.ended_one(itt);
                any = true;
            }
        }
        any
    }

    pub(super) fn wait(&mut self, wait: Wait) {
        if wait.on.is_empty() {
            self.waited(wait.itt, &wait.reply);
        } else {
            self.waits.push(wait);
        }
    }

    pub(super) fn waited(&mut self, itt: u32, reply: &Reply) {
        match reply {
            Reply::Logout => {
                // Before it is said: another session may reserve what this one had as soon as its host has heard that.
                self.detach();
                self.logout_response(itt, 0);
            }
            Reply::TaskManagement(None) => self.task_management_done(itt, 0),
            Reply::TaskManagement(Some(act)) => {
                self.resetting = self.resetting.saturating_add(1);
                self.resets.push_back((itt, *act));
                if let Act::Reset { cold: true, .. } = act {
                    self.targets.end_sessions(&self.key.target);
                }
            }
        }
    }

    /// A command that others may have waited for is gone.
    pub(super) fn ended_one(&mut self, itt: u32) {
        if self.waits.is_empty() {
            return;
        }
        for wait in &mut self.waits {
            wait.on.retain(|other| *other != itt);
        }
        let (done, left) = std::mem::take(&mut self.waits).into_iter().partition(|wait| wait.on.is_empty());
        self.waits = left;
        let done: Vec<Wait> = done;
        for wait in done {
            self.waited(wait.itt, &wait.reply);
        }
    }
}
