//! Status and sense data: how a command says why it did not do what was asked (SPC-4 §4.5, SAM-5 §5.3).
//!
//! A [`Sense`] is the meaning; [`SenseBytes`] is its form on the wire, fixed or descriptor format as
//! the control mode page's `D_SENSE` bit says. Every number a client acts on is named once, here.

use std::ops::Range;

use block::VolumeError;

/// SCSI status byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Good,
    /// See the sense data.
    CheckCondition,
    /// Try again.
    Busy,
    /// Another nexus holds a reservation.
    ReservationConflict,
    /// No room for another command: the initiator should send fewer at a time.
    TaskSetFull,
    /// Another initiator cleared the command (TAS of the control mode page).
    TaskAborted,
}

impl Status {
    /// The byte on the wire.
    pub const fn code(self) -> u8 {
        match self {
            Self::Good => 0x00,
            Self::CheckCondition => 0x02,
            Self::Busy => 0x08,
            Self::ReservationConflict => 0x18,
            Self::TaskSetFull => 0x28,
            Self::TaskAborted => 0x40,
        }
    }
}

/// Where the offending field of a command or parameter list is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// In the CDB; otherwise in the parameter list.
    pub in_cdb: bool,
    /// Byte, counted from 0.
    pub byte: u16,
    /// Most significant bit of the field, where that is known.
    pub bit: Option<u8>,
}

/// Sense key, additional sense code and what goes with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sense {
    /// Sense key, 0..=15.
    pub key: u8,
    /// Additional sense code.
    pub asc: u8,
    /// Additional sense code qualifier.
    pub ascq: u8,
    /// INFORMATION: an LBA, or the offset of a miscompare.
    pub information: Option<u64>,
    /// Which field was wrong.
    pub field: Option<Field>,
}

impl Sense {
    /// No sense: nothing to tell.
    pub const NONE: Self = Self::new(0x0, 0x00, 0x00);
    /// The logical unit comes up; hosts retry.
    pub const BECOMING_READY: Self = Self::new(0x2, 0x04, 0x01);
    /// The target port group changes its access state; hosts wait and try again.
    pub const TRANSITIONING: Self = Self::new(0x2, 0x04, 0x0a);
    /// The target port group stands by; hosts take another path.
    pub const STANDBY: Self = Self::new(0x2, 0x04, 0x0b);
    /// The target port group is unavailable; hosts take another path.
    pub const UNAVAILABLE: Self = Self::new(0x2, 0x04, 0x0c);
    /// A human has to act first (a key to load).
    pub const MANUAL_INTERVENTION: Self = Self::new(0x2, 0x04, 0x03);
    /// Bytes that no copy could give.
    pub const UNRECOVERED_READ: Self = Self::new(0x3, 0x11, 0x00);
    /// Our own fault.
    pub const INTERNAL_FAILURE: Self = Self::new(0x4, 0x44, 0x00);
    /// The parameter list is shorter than its own header says or the CDB needs.
    pub const PARAMETER_LIST_LENGTH: Self = Self::new(0x5, 0x1a, 0x00);
    /// No such command.
    pub const INVALID_OPCODE: Self = Self::new(0x5, 0x20, 0x00);
    /// A copy of that list identifier is under way.
    pub const OPERATION_IN_PROGRESS: Self = Self::new(0x5, 0x00, 0x16);
    /// The token was not made here, or its time is long over.
    pub const TOKEN_UNKNOWN: Self = Self::new(0x5, 0x23, 0x04);
    /// The token's bytes are not one of ours.
    pub const TOKEN_CORRUPT: Self = Self::new(0x5, 0x23, 0x05);
    /// What the token stood for has changed since.
    pub const TOKEN_REVOKED: Self = Self::new(0x5, 0x23, 0x06);
    /// The token was not used in time.
    pub const TOKEN_EXPIRED: Self = Self::new(0x5, 0x23, 0x07);
    /// More targets named in one copy than RECEIVE COPY OPERATING PARAMETERS allows.
    pub const TOO_MANY_TARGETS: Self = Self::new(0x5, 0x26, 0x06);
    /// A kind of target descriptor that does not name a disk.
    pub const TARGET_DESCRIPTOR_TYPE: Self = Self::new(0x5, 0x26, 0x07);
    /// More segments in one copy than allowed.
    pub const TOO_MANY_SEGMENTS: Self = Self::new(0x5, 0x26, 0x08);
    /// A kind of copy that is not block to block.
    pub const SEGMENT_DESCRIPTOR_TYPE: Self = Self::new(0x5, 0x26, 0x09);
    /// Data carried in a copy's parameter list.
    pub const INLINE_DATA: Self = Self::new(0x5, 0x26, 0x0b);
    /// Beyond the last block.
    pub const LBA_OUT_OF_RANGE: Self = Self::new(0x5, 0x21, 0x00);
    /// A field of the CDB.
    pub const INVALID_FIELD_IN_CDB: Self = Self::new(0x5, 0x24, 0x00);
    /// No logical unit has this number.
    pub const LUN_NOT_SUPPORTED: Self = Self::new(0x5, 0x25, 0x00);
    /// A field of the parameter list.
    pub const INVALID_FIELD_IN_PARAMETERS: Self = Self::new(0x5, 0x26, 0x00);
    /// A persistent reservation that the client does not hold.
    pub const INVALID_RELEASE: Self = Self::new(0x5, 0x26, 0x04);
    /// No room for another registration.
    pub const NO_REGISTRATION_RESOURCES: Self = Self::new(0x5, 0x55, 0x04);
    /// What the medium holds is not what was written to it.
    pub const MEDIUM_CHANGED: Self = Self::new(0x6, 0x28, 0x00);
    /// New nexus, never seen before.
    pub const POWER_ON: Self = Self::new(0x6, 0x29, 0x00);
    /// Target reset by a task management function.
    pub const BUS_RESET: Self = Self::new(0x6, 0x29, 0x02);
    /// Logical unit reset by another nexus.
    pub const DEVICE_RESET: Self = Self::new(0x6, 0x29, 0x03);
    /// A nexus that is back after its session had ended.
    pub const NEXUS_LOSS: Self = Self::new(0x6, 0x29, 0x07);
    /// Mode parameters changed, by another nexus or an operator.
    pub const MODE_CHANGED: Self = Self::new(0x6, 0x2a, 0x01);
    /// A preempt or clear took the reservation away.
    pub const RESERVATIONS_PREEMPTED: Self = Self::new(0x6, 0x2a, 0x03);
    /// The holder released a registrants-only reservation.
    pub const RESERVATIONS_RELEASED: Self = Self::new(0x6, 0x2a, 0x04);
    /// A preempt took the registration away.
    pub const REGISTRATIONS_PREEMPTED: Self = Self::new(0x6, 0x2a, 0x05);
    /// The volume grew or shrank.
    pub const CAPACITY_CHANGED: Self = Self::new(0x6, 0x2a, 0x09);
    /// A target port group changed its access state.
    pub const ACCESS_CHANGED: Self = Self::new(0x6, 0x2a, 0x06);
    /// Less room than the soft threshold of thin provisioning.
    pub const THIN_THRESHOLD: Self = Self::new(0x6, 0x38, 0x07);
    /// INQUIRY or a vital product data page says something else now.
    pub const INQUIRY_CHANGED: Self = Self::new(0x6, 0x3f, 0x03);
    /// A logical unit came or went.
    pub const LUNS_CHANGED: Self = Self::new(0x6, 0x3f, 0x0e);
    /// Snapshot, read-only volume or pool.
    pub const WRITE_PROTECTED: Self = Self::new(0x7, 0x27, 0x00);
    /// The SWP bit of the control mode page is set.
    pub const SOFTWARE_WRITE_PROTECTED: Self = Self::new(0x7, 0x27, 0x02);
    /// The pool is full: a hypervisor pauses the virtual machine that wrote, Windows takes the whole disk offline.
    pub const SPACE_EXHAUSTED: Self = Self::new(0x7, 0x27, 0x07);
    /// The copy ended before its end, without a reason that has a code of its own.
    pub const COPY_ABORTED: Self = Self::new(0xa, 0x00, 0x00);
    /// A third party refused its part of the copy.
    pub const COPY_DEVICE_FAILED: Self = Self::new(0xa, 0x0d, 0x01);
    /// No such logical unit, or the initiator may not use it.
    pub const COPY_UNREACHABLE: Self = Self::new(0xa, 0x0d, 0x02);
    /// The transfer itself went wrong (data out of order, wrong tag).
    pub const DATA_PHASE_ERROR: Self = Self::new(0xb, 0x4b, 0x00);
    /// Compared bytes differ.
    pub const MISCOMPARE: Self = Self::new(0xe, 0x1d, 0x00);

    const fn new(key: u8, asc: u8, ascq: u8) -> Self {
        Self { key, asc, ascq, information: None, field: None }
    }

    /// Invalid field in the CDB, pointing at it.
    pub const fn cdb(byte: u16, bit: u8) -> Self {
        let mut sense = Self::INVALID_FIELD_IN_CDB;
        sense.field = Some(Field { in_cdb: true, byte, bit: Some(bit) });
        sense
    }

    /// Invalid field in the parameter list, pointing at its byte.
    pub const fn parameter(byte: u16) -> Self {
        let mut sense = Self::INVALID_FIELD_IN_PARAMETERS;
        sense.field = Some(Field { in_cdb: false, byte, bit: None });
        sense
    }

    /// The same with INFORMATION.
    pub const fn with_information(mut self, information: u64) -> Self {
        self.information = Some(information);
        self
    }

    /// What a volume's error means to an initiator that asked for these `bytes` of it; `block_size` turns them into LBAs.
    pub fn from_volume(error: &VolumeError, block_size: u32, bytes: Range<u64>) -> Self {
        match error {
            VolumeError::OutOfRange { .. } => Self::LBA_OUT_OF_RANGE,
            VolumeError::ReadOnly => Self::WRITE_PROTECTED,
            VolumeError::NoSpace => Self::SPACE_EXHAUSTED,
            VolumeError::Unreadable { offset, .. } => {
                // A volume names where its block begins, or the first that it cannot find: that may be before what was asked
                // for. Hosts take the block that INFORMATION names for bad, and those before it for good.
                let first = bytes.start.max(*offset);
                let lba = first.checked_div(u64::from(block_size));
                Self { information: lba.filter(|_| first < bytes.end), ..Self::UNRECOVERED_READ }
            }
            VolumeError::NotReady(_) => Self::BECOMING_READY,
            VolumeError::Unsupported(_) => Self::MANUAL_INTERVENTION,
            _ => Self::INTERNAL_FAILURE,
        }
    }

    /// Sense-key specific bytes: validity, where, and the pointer.
    fn specific(self) -> Option<[u8; 3]> {
        let field = self.field?;
        let [high, low] = field.byte.to_be_bytes();
        let mut flags = 0x80;
        if field.in_cdb {
            flags |= 0x40;
        }
        if let Some(bit) = field.bit {
            flags |= 0x08 | (bit & 0x07);
        }
        Some([flags, high, low])
    }

    /// Fixed format: 18 bytes (SPC-4 §4.5.3). INFORMATION above 32 bits does not fit and is left out.
    pub fn fixed(self) -> SenseBytes {
        let mut b = [0; SenseBytes::CAPACITY];
        b[0] = 0x70;
        if let Some(info) = self.information.and_then(|i| u32::try_from(i).ok()) {
            b[0] |= 0x80;
            [b[3], b[4], b[5], b[6]] = info.to_be_bytes();
        }
        b[2] = self.key;
        b[7] = 10;
        b[12] = self.asc;
        b[13] = self.ascq;
        if let Some(specific) = self.specific() {
            [b[15], b[16], b[17]] = specific;
        }
        SenseBytes { len: 18, bytes: b }
    }

    /// Descriptor format (SPC-4 §4.5.2).
    pub fn descriptor(self) -> SenseBytes {
        let mut out = SenseBytes::default();
        out.extend(&[0x72, self.key, self.asc, self.ascq, 0, 0, 0, 0]);
        if let Some(info) = self.information {
            out.extend(&[0x00, 0x0a, 0x80, 0x00]);
            out.extend(&info.to_be_bytes());
        }
        if let Some([a, b, c]) = self.specific() {
            out.extend(&[0x02, 0x06, 0x00, 0x00, a, b, c, 0x00]);
        }
        out.bytes[7] = out.len.saturating_sub(8);
        out
    }
}

/// Encoded sense data, without a heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenseBytes {
    len: u8,
    bytes: [u8; Self::CAPACITY],
}

impl SenseBytes {
    const CAPACITY: usize = 32;

    fn extend(&mut self, more: &[u8]) {
        let at = usize::from(self.len);
        let end = at.saturating_add(more.len());
        if let Some(room) = self.bytes.get_mut(at..end) {
            room.copy_from_slice(more);
            self.len = u8::try_from(end).unwrap_or(self.len);
        }
    }

    /// The bytes; none for status GOOD.
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or(&[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_format_has_information_and_field_pointer_where_hosts_look() {
        let sense = Sense::cdb(3, 7).with_information(0x0102_0304).fixed();
        assert_eq!(sense.as_slice(), [0xf0, 0, 5, 1, 2, 3, 4, 10, 0, 0, 0, 0, 0x24, 0, 0, 0xcf, 0, 3]);
    }

    #[test]
    fn descriptor_format_carries_a_64_bit_information() {
        let sense = Sense::MISCOMPARE.with_information(0x1_0000_0000).descriptor();
        assert_eq!(
            sense.as_slice(),
            [0x72, 0xe, 0x1d, 0, 0, 0, 0, 12, 0, 10, 0x80, 0, 0, 0, 0, 1, 0, 0, 0, 0]
        );
    }

    #[test]
    fn a_fixed_information_that_does_not_fit_is_not_told_wrong() {
        assert_eq!(Sense::MISCOMPARE.with_information(1 << 40).fixed().as_slice()[0], 0x70);
    }
}
