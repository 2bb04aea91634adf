//! Data-Out: asked for when there is room for it, taken in order (RFC 7143 §11.7, §11.8).

use std::{collections::VecDeque, sync::atomic::Ordering};

use disk::Landed;
use scsi::{Response, Sense, Status};

use super::{HELD_MAX, Session};
use crate::{
    pdu::{Fatal, Header, op},
    task::{Burst, Phase},
};

impl Session {
    /// All of a burst is there: run the command, ask for more, or send the answer that was waiting.
    pub(super) fn sequence_complete(&mut self, itt: u32) {
        let Some(task) = self.tasks.get_mut(&itt) else { return };
        if let Phase::Dropping(response) = &mut task.phase {
            let response = std::mem::replace(&mut **response, Response::status(Status::Busy));
            if let Some(task) = self.end_task(itt, 0) {
                self.answer_at_once(&task.ask, task.opcode, response);
            }
        } else if task.complete() {
            task.phase = Phase::Queued;
            task.job = task.job.map(|job| job.with_data(&task.data));
            self.awaited = self.awaited.saturating_sub(u64::from(std::mem::take(&mut task.awaited)));
            self.queued.push_back(itt);
            if task.granted > 0 && task.waits_for_room() {
                // What it brought is counted no more: whoever waits for room must not hold any.
                self.asked = self.asked.saturating_sub(u64::from(std::mem::take(&mut task.granted)));
                self.grant();
            }
        } else if task.granted > 0 {
            self.ask_for_data(itt); // there is room for all of it
        } else {
            task.phase = Phase::Waiting;
            self.waiting.push_back(itt);
            self.grant();
        }
    }

    /// Lets commands ask for their data while there is room.
    pub(super) fn grant(&mut self) {
        while let Some(itt) = self.waiting.front().copied() {
            let Some(task) = self.tasks.get_mut(&itt) else {
                self.waiting.pop_front();
                continue;
            };
            let more = task.needs.saturating_sub(task.received);
            let fits = self.asked == 0 || self.asked.saturating_add(u64::from(more)) <= HELD_MAX;
            let has_room = fits || self.coming.has_turn();
            if !has_room || !self.coming.ask(self.asked, u64::from(more)) {
                return;
            }
            self.waiting.pop_front();
            (task.granted, task.awaited) = (more, more);
            self.awaited = self.awaited.saturating_add(u64::from(more));
            self.asked = self.asked.saturating_add(u64::from(more));
            self.ask_for_data(itt);
        }
        // Whoever waited was aborted.
        self.coming.withdraw();
    }

    /// Asks for bursts, as many at once as was agreed.
    pub(super) fn ask_for_data(&mut self, itt: u32) {
        let most = self.params.r2ts as usize;
        while let Some(task) = self.tasks.get_mut(&itt) {
            if !matches!(task.phase, Phase::Solicited { .. }) {
                task.phase = Phase::Solicited { bursts: VecDeque::new() };
                task.data_sn = 0;
            }
            let Phase::Solicited { bursts } = &mut task.phase else { return };
            let start = bursts.back().map_or(task.received, |burst| burst.end);
            if bursts.len() >= most || start >= task.needs {
                return;
            }
            let end = start.saturating_add(self.params.max_burst).min(task.needs);
            let ttt = self.next_ttt;
            bursts.push_back(Burst { ttt, end });
            let mut h = Header::new(op::R2T);
            h.0[8..16].copy_from_slice(&task.ask.lun);
            h.set(16, itt).set(20, ttt).set(36, task.r2t_sn).set(40, start);
            h.set(44, end.saturating_sub(start));
            task.r2t_sn = task.r2t_sn.wrapping_add(1);
            self.take_ttt();
            self.send(h, &[], false);
        }
    }

    pub(super) fn data_out(&mut self, header: &Header, data: Landed) -> Result<(), Fatal> {
        let itt = header.itt();
        let Some(task) = self.tasks.get_mut(&itt) else {
            return Ok(()); // of a command that has been answered or aborted
        };
        let len = header.data_len();
        self.counters.bytes_in.fetch_add(len as u64, Ordering::Relaxed);
        if matches!(task.phase, Phase::Unsolicited { .. }) {
            let len = u32::try_from(len).unwrap_or(u32::MAX);
            task.unasked = task.unasked.saturating_add(len);
            self.unasked = self.unasked.saturating_add(u64::from(len));
        } else if matches!(task.phase, Phase::Solicited { .. }) {
            self.arrived = self.arrived.wrapping_add(len as u64);
        }
        match task.data_out(header, data) {
            Ok(true) => self.sequence_complete(itt),
            Ok(false) => {}
            Err(_) if matches!(task.phase, Phase::Queued | Phase::Running) => {} // too late to matter
            Err(_) => {
                if let Some(task) = self.end_task(itt, 0) {
                    let response = self.check(task.ask.lun, Sense::DATA_PHASE_ERROR);
                    self.answer(&task.ask, response, task.r2t_sn);
                }
            }
        }
        Ok(())
    }
}
