//! CDB bytes become a [`Command`], or the sense that says which field is wrong.
//!
//! Parsing needs no logical unit: what depends on its size, its state or its data is checked by
//! [`crate::LogicalUnit`]. Layouts: SBC-3 §5, SPC-4 §6. Transfer lengths are in logical blocks,
//! parameter lengths in bytes.

use crate::sense::Sense;

/// What a compare or verify command is to do with the data it was given (BYTCHK).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteCheck {
    /// Only see that the medium is readable.
    Medium,
    /// Compare with as many blocks of data.
    Blocks,
    /// Compare each block with one block of data.
    OneBlock,
}

/// A run of logical blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First block.
    pub lba: u64,
    /// Blocks.
    pub blocks: u32,
}

/// Which commands REPORT SUPPORTED OPERATION CODES is to tell about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpcodeQuery {
    /// All of them.
    All,
    /// One that has no service action.
    Code(u8),
    /// One with a service action.
    Action(u8, u16),
    /// One, with or without service action as it may be.
    Either(u8, u16),
}

/// A parsed command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the standards' own")]
pub enum Command {
    TestUnitReady,
    RequestSense { descriptor: bool, allocation: u32 },
    Inquiry { page: Option<u8>, allocation: u32 },
    ReportLuns { select: u8, allocation: u32 },
    ReadCapacity10,
    ReadCapacity16 { allocation: u32 },
    ModeSense { ten: bool, no_descriptors: bool, control: u8, page: u8, subpage: u8, allocation: u32 },
    ModeSelect { ten: bool, length: u32 },
    Read { run: Run },
    Prefetch { run: Run },
    Verify { run: Run, check: ByteCheck },
    Write { run: Run, stable: bool },
    WriteVerify { run: Run, check: ByteCheck },
    WriteSame { run: Run, unmap: bool, no_data: bool },
    CompareAndWrite { run: Run, stable: bool },
    Unmap { length: u32 },
    SynchronizeCache { run: Run },
    GetLbaStatus { lba: u64, allocation: u32 },
    StartStop { start: bool, load_eject: bool, condition: u8 },
    PreventAllow { prevent: bool },
    ReportOpcodes { query: OpcodeQuery, timeouts: bool, allocation: u32 },
    ReportTargetPortGroups { extended: bool, allocation: u32 },
    ReportTaskManagement { extended: bool, allocation: u32 },
    LogSense { page: u8, subpage: u8, control: u8, pointer: u16, allocation: u32 },
    OrWrite { run: Run, stable: bool },
    ExtendedCopy { long: bool, length: u32 },
    PopulateToken { list: u32, length: u32 },
    WriteUsingToken { list: u32, length: u32 },
    CopyAbort { list: u32 },
    ReceiveCopyStatus { long: bool, list: u32, allocation: u32 },
    CopyParameters { allocation: u32 },
    ReceiveTokens { list: u32, allocation: u32 },
    Reserve6,
    Release6,
    PersistentReserveIn { action: u8, allocation: u32 },
    PersistentReserveOut { action: u8, scope: u8, kind: u8, length: u32 },
}

fn be16(a: u8, b: u8) -> u32 {
    u32::from(u16::from_be_bytes([a, b]))
}

fn be32(c: &[u8; 16], at: [usize; 4]) -> u32 {
    u32::from_be_bytes(at.map(|i| c.get(i).copied().unwrap_or(0)))
}

fn lba16(c: &[u8; 16]) -> u64 {
    u64::from_be_bytes([c[2], c[3], c[4], c[5], c[6], c[7], c[8], c[9]])
}

/// First logical block that a command writes with its Data-Out as it comes.
pub(crate) fn written_from(c: &[u8; 16]) -> Option<u64> {
    matches!(c[0], 0x0a | 0x2a | 0x8a | 0xaa | 0x2e | 0x8e | 0xae).then(|| run(c).lba)
}

/// LBA and length of the 6-, 10-, 12- and 16-byte forms; the top three bits of an opcode tell which.
fn run(c: &[u8; 16]) -> Run {
    match c[0] >> 5 {
        0 => {
            let lba = u64::from(u32::from_be_bytes([0, c[1] & 0x1f, c[2], c[3]]));
            let blocks = if c[4] == 0 { 256 } else { u32::from(c[4]) };
            Run { lba, blocks }
        }
        1 | 2 => Run { lba: u64::from(be32(c, [2, 3, 4, 5])), blocks: be16(c[7], c[8]) },
        5 => Run { lba: u64::from(be32(c, [2, 3, 4, 5])), blocks: be32(c, [6, 7, 8, 9]) },
        _ => Run { lba: lba16(c), blocks: be32(c, [10, 11, 12, 13]) },
    }
}

/// RDPROTECT, WRPROTECT, VRPROTECT: there is no protection information here.
fn unprotected(c: &[u8; 16]) -> Result<(), Sense> {
    if c[1] & 0xe0 == 0 { Ok(()) } else { Err(Sense::cdb(1, 7)) }
}

fn byte_check(c: &[u8; 16]) -> Result<ByteCheck, Sense> {
    match (c[1] >> 1) & 3 {
        0 => Ok(ByteCheck::Medium),
        1 => Ok(ByteCheck::Blocks),
        3 => Ok(ByteCheck::OneBlock),
        _ => Err(Sense::cdb(1, 2)),
    }
}

/// Whether a command of this opcode only reads data and sends it.
pub fn is_read(opcode: u8) -> bool {
    matches!(opcode, 0x88 | 0x28 | 0x08 | 0xa8)
}

impl Command {
    /// Parses a CDB; what the wire did not carry counts as zero.
    pub fn parse(c: &[u8; 16]) -> Result<Self, Sense> {
        let control = match c[0] >> 5 {
            0 => c[5],
            1 | 2 => c[9],
            5 => c[11],
            _ => c[15],
        };
        // NACA asks for auto contingent allegiance, which INQUIRY says we lack (SAM-5 §5.2).
        if control & 0x04 != 0 {
            return Err(Sense::INVALID_FIELD_IN_CDB);
        }
        Ok(match c[0] {
            opcode if is_read(opcode) => {
                if c[0] != 0x08 {
                    unprotected(c)?;
                }
                Self::Read { run: run(c) }
            }
            0x8a | 0x2a | 0x0a | 0xaa => {
                if c[0] != 0x0a {
                    unprotected(c)?;
                }
                Self::Write { run: run(c), stable: c[0] != 0x0a && c[1] & 0x08 != 0 }
            }
            0x00 => Self::TestUnitReady,
            0x03 => Self::RequestSense { descriptor: c[1] & 1 != 0, allocation: u32::from(c[4]) },
            0x12 => {
                if c[1] & 0xfe != 0 {
                    return Err(Sense::cdb(1, 1));
                }
                let page = (c[1] & 1 != 0).then_some(c[2]);
                if page.is_none() && c[2] != 0 {
                    return Err(Sense::cdb(2, 7));
                }
                Self::Inquiry { page, allocation: be16(c[3], c[4]) }
            }
            0xa0 => Self::ReportLuns { select: c[2], allocation: be32(c, [6, 7, 8, 9]) },
            0x25 => {
                if c[8] & 1 == 0 && be32(c, [2, 3, 4, 5]) != 0 {
                    return Err(Sense::cdb(2, 7));
                }
                Self::ReadCapacity10
            }
            0x9e => match c[1] & 0x1f {
                0x10 => Self::ReadCapacity16 { allocation: be32(c, [10, 11, 12, 13]) },
                0x12 => Self::GetLbaStatus { lba: lba16(c), allocation: be32(c, [10, 11, 12, 13]) },
                _ => return Err(Sense::cdb(1, 4)),
            },
            0x1a => Self::ModeSense {
                ten: false,
                no_descriptors: c[1] & 0x08 != 0,
                control: c[2] >> 6,
                page: c[2] & 0x3f,
                subpage: c[3],
                allocation: u32::from(c[4]),
            },
            0x5a => Self::ModeSense {
                ten: true,
                no_descriptors: c[1] & 0x08 != 0,
                control: c[2] >> 6,
                page: c[2] & 0x3f,
                subpage: c[3],
                allocation: be16(c[7], c[8]),
            },
            0x15 | 0x55 => {
                // PF=0 is vendor-specific, SP=1 wants saved pages: neither exists here.
                if c[1] & 0x10 == 0 {
                    return Err(Sense::cdb(1, 4));
                }
                if c[1] & 0x01 != 0 {
                    return Err(Sense::cdb(1, 0));
                }
                let ten = c[0] == 0x55;
                Self::ModeSelect { ten, length: if ten { be16(c[7], c[8]) } else { u32::from(c[4]) } }
            }
            0x34 | 0x90 => Self::Prefetch { run: run(c) },
            0x2f | 0xaf | 0x8f => {
                unprotected(c)?;
                Self::Verify { run: run(c), check: byte_check(c)? }
            }
            0x2e | 0xae | 0x8e => {
                unprotected(c)?;
                let check = byte_check(c)?;
                if check == ByteCheck::OneBlock {
                    return Err(Sense::cdb(1, 2)); // one block to compare with, and nothing to write
                }
                Self::WriteVerify { run: run(c), check }
            }
            0x41 | 0x93 => {
                unprotected(c)?;
                if c[1] & 0x10 != 0 {
                    return Err(Sense::cdb(1, 4)); // ANCHOR: no block is ever anchored
                }
                if c[1] & 0x06 != 0 {
                    return Err(Sense::cdb(1, 2)); // PBDATA, LBDATA: obsolete
                }
                let no_data = c[1] & 1 != 0;
                if no_data && c[0] == 0x41 {
                    return Err(Sense::cdb(1, 0));
                }
                Self::WriteSame { run: run(c), unmap: c[1] & 0x08 != 0, no_data }
            }
            0x89 => {
                unprotected(c)?;
                let run = Run { lba: lba16(c), blocks: u32::from(c[13]) };
                Self::CompareAndWrite { run, stable: c[1] & 0x08 != 0 }
            }
            0x42 => {
                if c[1] & 1 != 0 {
                    return Err(Sense::cdb(1, 0));
                }
                Self::Unmap { length: be16(c[7], c[8]) }
            }
            0x8b => {
                unprotected(c)?;
                Self::OrWrite { run: run(c), stable: c[1] & 0x08 != 0 }
            }
            0x83 => {
                let (list, length) = (be32(c, [6, 7, 8, 9]), be32(c, [10, 11, 12, 13]));
                match c[1] & 0x1f {
                    0x00 => Self::ExtendedCopy { long: false, length },
                    0x01 => Self::ExtendedCopy { long: true, length },
                    0x10 => Self::PopulateToken { list, length },
                    0x11 => Self::WriteUsingToken { list, length },
                    0x1c => Self::CopyAbort { list: be32(c, [2, 3, 4, 5]) },
                    _ => return Err(Sense::cdb(1, 4)),
                }
            }
            0x84 => {
                let (list, allocation) = (be32(c, [2, 3, 4, 5]), be32(c, [10, 11, 12, 13]));
                match c[1] & 0x1f {
                    0x00 => Self::ReceiveCopyStatus { long: false, list: u32::from(c[2]), allocation },
                    0x03 => Self::CopyParameters { allocation },
                    0x05 => Self::ReceiveCopyStatus { long: true, list, allocation },
                    0x07 => Self::ReceiveTokens { list, allocation },
                    _ => return Err(Sense::cdb(1, 4)),
                }
            }
            0x4d => {
                if c[1] & 0x01 != 0 {
                    return Err(Sense::cdb(1, 0)); // SP: nothing is saved
                }
                let (control, pointer) = (c[2] >> 6, u16::from_be_bytes([c[5], c[6]]));
                Self::LogSense {
                    page: c[2] & 0x3f,
                    subpage: c[3],
                    control,
                    pointer,
                    allocation: be16(c[7], c[8]),
                }
            }
            0x35 | 0x91 => Self::SynchronizeCache { run: run(c) },
            0x1b => Self::StartStop { start: c[4] & 1 != 0, load_eject: c[4] & 2 != 0, condition: c[4] >> 4 },
            0x1e => Self::PreventAllow { prevent: c[4] & 3 != 0 },
            0xa3 => match c[1] & 0x1f {
                0x0a => Self::ReportTargetPortGroups {
                    extended: match c[1] >> 5 {
                        0 => false,
                        1 => true,
                        _ => return Err(Sense::cdb(1, 7)),
                    },
                    allocation: be32(c, [6, 7, 8, 9]),
                },
                0x0c => {
                    let action = u16::from_be_bytes([c[4], c[5]]);
                    let query = match c[2] & 7 {
                        0 => OpcodeQuery::All,
                        1 => OpcodeQuery::Code(c[3]),
                        2 => OpcodeQuery::Action(c[3], action),
                        3 => OpcodeQuery::Either(c[3], action),
                        _ => return Err(Sense::cdb(2, 2)),
                    };
                    let allocation = be32(c, [6, 7, 8, 9]);
                    Self::ReportOpcodes { query, timeouts: c[2] & 0x80 != 0, allocation }
                }
                0x0d => {
                    let allocation = be32(c, [6, 7, 8, 9]);
                    Self::ReportTaskManagement { extended: c[2] & 0x80 != 0, allocation }
                }
                _ => return Err(Sense::cdb(1, 4)),
            },
            0x16 | 0x17 => {
                // Extents and third-party reservations went with SPC-2.
                if c[1] & 0x1f != 0 {
                    return Err(Sense::cdb(1, 4));
                }
                if c[0] == 0x16 { Self::Reserve6 } else { Self::Release6 }
            }
            0x5e => Self::PersistentReserveIn { action: c[1] & 0x1f, allocation: be16(c[7], c[8]) },
            0x5f => Self::PersistentReserveOut {
                action: c[1] & 0x1f,
                scope: c[2] >> 4,
                kind: c[2] & 0x0f,
                length: be32(c, [5, 6, 7, 8]),
            },
            _ => return Err(Sense::INVALID_OPCODE),
        })
    }

    /// Changes the medium or what it holds: refused on a read-only volume.
    pub fn writes(&self) -> bool {
        matches!(
            self,
            Self::Write { .. }
                | Self::WriteVerify { .. }
                | Self::WriteSame { .. }
                | Self::OrWrite { .. }
                | Self::CompareAndWrite { .. }
                | Self::Unmap { .. }
                | Self::WriteUsingToken { .. }
        )
    }

    /// Changes what is kept of hosts beside what the medium holds.
    pub fn reserves(&self) -> bool {
        matches!(self, Self::PersistentReserveOut { .. })
    }

    /// Goes in steps: it may move or free more than anybody wants to wait for once it was aborted.
    pub fn is_long(&self) -> bool {
        matches!(
            self,
            Self::Verify { .. }
                | Self::Prefetch { .. }
                | Self::WriteSame { .. }
                | Self::Unmap { .. }
                | Self::ExtendedCopy { .. }
                | Self::WriteUsingToken { .. }
        )
    }

    /// Moves what is read to where it is written, and says when it writes.
    pub fn is_copy(&self) -> bool {
        matches!(self, Self::ExtendedCopy { .. } | Self::WriteUsingToken { .. })
    }

    /// Of those that wait: changes neither what the medium holds nor what is known of its hosts.
    pub fn only_looks(&self) -> bool {
        matches!(
            self,
            Self::Read { .. }
                | Self::Verify { .. }
                | Self::Prefetch { .. }
                | Self::GetLbaStatus { .. }
                | Self::SynchronizeCache { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cdb(bytes: &[u8]) -> [u8; 16] {
        let mut c = [0; 16];
        c[..bytes.len()].copy_from_slice(bytes);
        c
    }

    #[test]
    fn the_four_read_forms_say_the_same() {
        let want = Ok(Command::Read { run: Run { lba: 0x1234, blocks: 0x56 } });
        assert_eq!(Command::parse(&cdb(&[0x08, 0, 0x12, 0x34, 0x56, 0])), want);
        assert_eq!(Command::parse(&cdb(&[0x28, 0, 0, 0, 0x12, 0x34, 0, 0, 0x56, 0])), want);
        assert_eq!(Command::parse(&cdb(&[0xa8, 0, 0, 0, 0x12, 0x34, 0, 0, 0, 0x56, 0, 0])), want);
        let sixteen = [0x88, 0, 0, 0, 0, 0, 0, 0, 0x12, 0x34, 0, 0, 0, 0x56, 0, 0];
        assert_eq!(Command::parse(&sixteen), want);
    }

    #[test]
    fn a_length_of_zero_means_256_in_the_six_byte_form_only() {
        let blocks = |c: &[u8]| match Command::parse(&cdb(c)) {
            Ok(Command::Read { run }) => run.blocks,
            other => panic!("{other:?}"),
        };
        assert_eq!(blocks(&[0x08]), 256);
        assert_eq!(blocks(&[0x28]), 0);
    }

    #[test]
    fn protection_is_refused_with_a_pointer_at_its_field() {
        for opcode in [0x28, 0xa8, 0x88, 0x2a, 0xaa, 0x8a, 0x2f, 0x8f, 0x41, 0x93, 0x89, 0x8b] {
            assert_eq!(Command::parse(&cdb(&[opcode, 0x20])), Err(Sense::cdb(1, 7)), "{opcode:#x}");
        }
    }
}
