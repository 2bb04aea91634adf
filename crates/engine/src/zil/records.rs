//! Records of volumes: from changes to bytes of log blocks.
//!
//! Neighbouring changes of one transaction group share a record; one that is larger than a log block is cut at
//! 4 KiB. A record is in one log block as a whole, so a crash takes all of it or nothing.
//!
//! Facts: docs/format/zil.md §3.

use bytes::Bytes;
use disk::IoBuf;
use ondisk::{
    Order,
    blkptr::BlkPtr,
    zil::{BLOCK_BYTES_MAX, Body, CHAIN_BYTES, Record, WRITE_BYTES, write_head},
};
use smallvec::{SmallVec, smallvec};

/// The volume's data object.
pub(super) const DATA: u64 = 1;
/// Bytes of a truncation's record.
pub(crate) const TRUNCATE_BYTES: usize = 56;
/// Most bytes of content in a record: what a block of the largest size has room for, in whole sectors.
const CONTENT_MAX: usize = (BLOCK_BYTES_MAX - CHAIN_BYTES - WRITE_BYTES) & !4095;

/// A change to be logged.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    /// Its transaction group.
    pub(crate) txg: u64,
    /// First byte.
    offset: u64,
    change: Change,
}

#[derive(Clone, Debug)]
enum Change {
    /// Pieces next to each other, and bytes of all.
    Write(SmallVec<[Bytes; 1]>, usize),
    /// Bytes that become zeroes.
    Zero(u64),
    /// A whole block that may be written to its place first: its number and content.
    Ahead(u64, Bytes),
    /// The block at this place has its content, of so many bytes.
    Points(Box<BlkPtr>, u64),
}

/// Changes in the order in which they are to be logged.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pending: Vec<Pending>,
}

impl Batch {
    /// `content` was written at byte `offset`.
    pub(crate) fn write(&mut self, txg: u64, offset: u64, mut content: Bytes) {
        if let Some(Pending { txg: last, offset: start, change: Change::Write(pieces, len) }) =
            self.pending.last_mut()
            && *last == txg
            && *start + *len as u64 == offset
            && *len + content.len() <= CONTENT_MAX
        {
            *len += content.len();
            pieces.push(content);
            return;
        }
        let mut offset = offset;
        while !content.is_empty() {
            let piece = content.split_to(content.len().min(CONTENT_MAX));
            let len = piece.len();
            self.pending.push(Pending { txg, offset, change: Change::Write(smallvec![piece], len) });
            offset += len as u64;
        }
    }

    /// `len` bytes at byte `offset` became zeroes.
    pub(crate) fn zero(&mut self, txg: u64, offset: u64, len: u64) {
        self.pending.push(Pending { txg, offset, change: Change::Zero(len) });
    }

    /// Block `blkid` of a volume, all of it, was written, and may go to its place before it is logged.
    pub(crate) fn ahead(&mut self, txg: u64, blkid: u64, content: Bytes) {
        let offset = blkid * content.len() as u64;
        self.pending.push(Pending { txg, offset, change: Change::Ahead(blkid, content) });
    }

    /// The changes, in order.
    pub(crate) fn into_pending(self) -> Vec<Pending> {
        self.pending
    }
}

impl Pending {
    /// The block that may be written to its place first.
    pub(crate) fn to_write_ahead(&self) -> Option<(u64, &Bytes)> {
        match &self.change {
            Change::Ahead(blkid, content) => Some((*blkid, content)),
            _ => None,
        }
    }

    /// It was: the record points there, or says that the block is a hole now.
    pub(crate) fn point(&mut self, to: BlkPtr) {
        let len = self.to_write_ahead().map_or(0, |(_, content)| content.len() as u64);
        self.change = if to.is_hole() { Change::Zero(len) } else { Change::Points(Box::new(to), len) };
    }

    /// It was not: records with its content.
    pub(crate) fn inline(self) -> Vec<Self> {
        let Change::Ahead(_, content) = self.change else { return vec![self] };
        let mut batch = Batch::default();
        batch.write(self.txg, self.offset, content);
        batch.pending
    }

    /// Bytes of its record.
    pub(crate) fn bytes(&self) -> usize {
        match &self.change {
            Change::Write(_, len) => WRITE_BYTES + len.next_multiple_of(8),
            Change::Zero(_) => TRUNCATE_BYTES,
            // One that is not at its place by now is logged with its content: see `inline`.
            Change::Ahead(..) | Change::Points(..) => WRITE_BYTES,
        }
    }

    /// Bytes of content in the record, and bytes it points to.
    pub(crate) fn payload(&self) -> (u64, u64) {
        match &self.change {
            Change::Write(_, len) => (*len as u64, 0),
            Change::Zero(_) | Change::Ahead(..) => (0, 0),
            Change::Points(_, len) => (0, *len),
        }
    }

    /// Writes the record to the front of `to`, which has room for [`bytes`](Self::bytes).
    fn encode(&self, sequence: u64, to: &mut [u8]) {
        let (txg, offset) = (self.txg, self.offset);
        match &self.change {
            Change::Write(pieces, len) => {
                let (head, mut rest) = to.split_at_mut(WRITE_BYTES);
                let record_bytes = self.bytes() as u64;
                head.copy_from_slice(&write_head(record_bytes, txg, sequence, DATA, offset, *len as u64));
                for piece in pieces {
                    let (place, behind) = rest.split_at_mut(piece.len());
                    place.copy_from_slice(piece);
                    rest = behind;
                }
                rest.fill(0);
            }
            Change::Zero(length) => {
                let body = Body::Truncate { object: DATA, offset, length: *length };
                copy_record(txg, sequence, body, to);
            }
            Change::Ahead(..) => unreachable!("a block that is neither at its place nor in its record"),
            Change::Points(pointer, length) => {
                let data = ondisk::zil::WriteData::Indirect(**pointer);
                let body = Body::Write { object: DATA, offset, length: *length, data };
                copy_record(txg, sequence, body, to);
            }
        }
    }
}

/// Records whose encoding cannot fail: fixed parts only.
fn copy_record(txg: u64, sequence: u64, body: Body<'_>, to: &mut [u8]) {
    let record = Record { case_insensitive: false, txg, sequence, body };
    let bytes = record.encode(Order::Little).expect("a record of fixed parts");
    to.copy_from_slice(&bytes);
}

/// A log block that is being filled.
#[derive(Debug)]
pub(crate) struct Filling {
    buf: IoBuf,
    used: usize,
    /// Newest transaction group of its records.
    pub(crate) max_txg: u64,
    pub(crate) records: u64,
}

impl Filling {
    /// For a block of this many bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        Self { buf: IoBuf::with_len(bytes), used: CHAIN_BYTES, max_txg: 0, records: 0 }
    }

    /// Whether there is room for it.
    pub(crate) fn fits(&self, pending: &Pending) -> bool {
        self.used + pending.bytes() <= self.buf.len()
    }

    /// Adds a record, which must fit.
    pub(crate) fn push(&mut self, pending: &Pending, sequence: u64) {
        let end = self.used + pending.bytes();
        pending.encode(sequence, &mut self.buf[self.used..end]);
        self.used = end;
        self.max_txg = self.max_txg.max(pending.txg);
        self.records += 1;
    }

    /// Bytes of its records.
    pub(crate) fn bytes(&self) -> usize {
        self.used - CHAIN_BYTES
    }

    /// The buffer, and bytes of it that are in use, header included.
    pub(crate) fn into_parts(self) -> (IoBuf, usize) {
        (self.buf, self.used)
    }
}

#[cfg(test)]
mod tests {
    use ondisk::zil::{Records, WriteData};

    use super::*;

    #[test]
    fn neighbours_share_a_record_and_long_ones_are_cut() {
        let mut batch = Batch::default();
        batch.write(5, 8192, Bytes::from(vec![1; 4096]));
        batch.write(5, 12288, Bytes::from(vec![2; 100]));
        batch.write(6, 12388, Bytes::from(vec![3; 4]));
        batch.zero(6, 0, 4096);
        batch.write(6, 1 << 20, Bytes::from(vec![4; 256 << 10]));
        let pending = batch.into_pending();
        let mut filling = Filling::new(1 << 20);
        for (number, pending) in (10..).zip(&pending) {
            assert!(filling.fits(pending));
            filling.push(pending, number);
        }
        assert_eq!((filling.max_txg, filling.records), (6, pending.len() as u64));
        let (buf, used) = filling.into_parts();
        let mut found = Vec::new();
        for record in Records::new(&buf[CHAIN_BYTES..used], Order::Little) {
            let record = record.unwrap();
            found.push(match record.body {
                Body::Write { object: 1, offset, length, data: WriteData::Inline(data) } => {
                    let content = &data[..length as usize];
                    assert!(data[length as usize..].iter().all(|byte| *byte == 0));
                    (record.txg, record.sequence, offset, length, content[0], content[content.len() - 1])
                }
                Body::Truncate { object: 1, offset, length } => {
                    (record.txg, record.sequence, offset, length, 0, 0)
                }
                other => panic!("{other:?}"),
            });
        }
        let cut = CONTENT_MAX as u64;
        let rest = (256 << 10) - 2 * cut;
        let expected = [
            (5, 10, 8192, 4196, 1, 2),
            (6, 11, 12388, 4, 3, 3),
            (6, 12, 0, 4096, 0, 0),
            (6, 13, 1 << 20, cut, 4, 4),
            (6, 14, (1 << 20) + cut, cut, 4, 4),
            (6, 15, (1 << 20) + 2 * cut, rest, 4, 4),
        ];
        assert_eq!(found, expected);
        assert!(pending.iter().all(|pending| pending.bytes() + CHAIN_BYTES <= BLOCK_BYTES_MAX));
    }
}
