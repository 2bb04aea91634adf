//! What a session sends: sequence numbers, rejects, and the data, status and residual of commands (RFC 7143 §11.4, §11.7).

use std::sync::atomic::Ordering;

use block::{Segment, Segments};
use scsi::{Response, Status};

use super::{Session, window};
use crate::{
    pdu::{Header, NO_TAG, op},
    task::Ask,
};

impl Session {
    /// Fills in the sequence numbers and queues. `counts`: the PDU takes a StatSN of its own.
    pub(super) fn send(&mut self, mut h: Header, data: &[u8], counts: bool) {
        self.number(&mut h, counts);
        self.outbox.push(h, data);
    }

    fn number(&mut self, h: &mut Header, counts: bool) {
        let free = window(self.coming.gate(), &self.params).saturating_sub(self.under_way);
        let max = self.exp_cmd_sn.wrapping_add(free).wrapping_sub(1);
        // It may never go back: serial number arithmetic (§4.2.2.1).
        if max.wrapping_sub(self.max_cmd_sn) < 1 << 31 {
            self.max_cmd_sn = max;
        }
        h.set(24, self.stat_sn).set(28, self.exp_cmd_sn).set(32, self.max_cmd_sn);
        if counts {
            self.stat_sn = self.stat_sn.wrapping_add(1);
        }
    }

    pub(super) fn reject(&mut self, header: &Header, reason: u8) {
        let mut h = Header::new(op::REJECT);
        h.0[2] = reason;
        h.set(16, NO_TAG);
        self.send(h, &header.0, true);
    }

    /// Data-In, status and residual of one command.
    pub(super) fn answer(&mut self, ask: &Ask, response: Response, r2ts: u32) {
        let Response { status, mut data, sense } = response;
        let have = u32::try_from(scsi::pieces::total_len(&data)).unwrap_or(u32::MAX);
        let room = if ask.read { ask.expected } else { 0 };
        // What the CDB speaks of, against what the initiator expected (§11.4.5).
        let speaks_of = if ask.write && !ask.read { ask.wanted } else { have };
        let expected = if ask.read || ask.write { ask.expected } else { 0 };
        let (residual, overflow) = match speaks_of.checked_sub(expected) {
            Some(0) => (0, None),
            Some(more) => (more, Some(true)),
            None => (expected.saturating_sub(speaks_of), Some(false)),
        };
        let flags = match overflow {
            None => 0,
            Some(true) => 0x04,
            Some(false) => 0x02,
        };
        let mut sent_sn = r2ts;
        if room > 0 && have > 0 {
            let total = have.min(room);
            self.counters.bytes_out.fetch_add(u64::from(total), Ordering::Relaxed);
            if total < have {
                scsi::pieces::truncate(&mut data, total as usize);
            }
            let with_status = status == Status::Good;
            let pdus = self.data_in(ask, data, total, with_status.then_some((flags, residual)));
            sent_sn = sent_sn.wrapping_add(pdus);
            if with_status {
                return;
            }
        }
        let mut h = Header::new(op::RESPONSE);
        h.0[1] |= flags;
        h.0[3] = status.code();
        h.set(16, ask.itt).set(36, sent_sn).set(44, residual);
        let sense = sense.as_slice();
        if sense.is_empty() {
            return self.send(h, &[], true);
        }
        let mut body = [0_u8; 64];
        let len = sense.len().min(62);
        let [high, low] = u16::try_from(len).unwrap_or(0).to_be_bytes();
        (body[0], body[1]) = (high, low);
        for (to, from) in body.iter_mut().skip(2).zip(sense) {
            *to = *from;
        }
        self.send(h, body.get(..len.saturating_add(2)).unwrap_or(&body), true);
    }

    /// Cuts data into PDUs; the last one carries the status if that is given. Returns how many.
    fn data_in(&mut self, ask: &Ask, data: Segments, total: u32, status: Option<(u8, u32)>) -> u32 {
        let mut pieces = data.into_iter();
        let mut current: Option<Segment> = None;
        let (mut at, mut burst, mut sn) = (0_u32, 0_u32, 0_u32);
        while at < total {
            let burst_left = self.params.max_burst.saturating_sub(burst);
            let len = total.saturating_sub(at).min(self.params.send_max).min(burst_left).max(1);
            let last = at.saturating_add(len) >= total;
            burst = burst.saturating_add(len);
            let mut h = Header::new(op::DATA_IN);
            h.0[1] = 0;
            if last || burst >= self.params.max_burst {
                h.0[1] = 0x80; // the end of a sequence
                burst = 0;
            }
            h.set(16, ask.itt).set(20, NO_TAG).set(36, sn).set(40, at);
            match status {
                Some((flags, residual)) if last => {
                    h.0[1] |= 0x01 | flags;
                    h.set(44, residual);
                    self.number(&mut h, true);
                }
                _ => {
                    self.number(&mut h, false);
                    h.set(24, 0); // no status, no StatSN
                }
            }
            let mut left = len as usize;
            let cut = std::iter::from_fn(|| {
                while left > 0 {
                    let piece = match current.take() {
                        Some(piece) => piece,
                        None => pieces.next()?,
                    };
                    if piece.is_empty() {
                        continue;
                    }
                    let (now, rest) = cut_piece(piece, left);
                    current = rest;
                    left = left.saturating_sub(now.len());
                    return Some(now);
                }
                None
            });
            self.outbox.push_pieces(h, len as usize, cut);
            at = at.saturating_add(len);
            sn = sn.wrapping_add(1);
        }
        sn
    }
}

/// The first `len` bytes of a piece, and what is left of it.
fn cut_piece(piece: Segment, len: usize) -> (Segment, Option<Segment>) {
    if piece.len() <= len {
        return (piece, None);
    }
    match piece {
        Segment::Data(mut bytes) => {
            let first = bytes.split_to(len);
            (Segment::Data(first), Some(Segment::Data(bytes)))
        }
        Segment::Zero(total) => (Segment::Zero(len), Some(Segment::Zero(total.saturating_sub(len)))),
    }
}
