//! REPORT SUPPORTED OPERATION CODES: the commands there are, from one table (SPC-4 §6.35).
//!
//! Each row's bytes are the CDB usage data: which bits of which byte are looked at. Its length is the
//! length of the CDB. A test holds the table and [`crate::Command::parse`] together.

use crate::{cdb::OpcodeQuery, sense::Sense};

/// A command: its service action where it has one, and its CDB usage data.
struct Row(Option<u16>, &'static [u8]);

const FF: u8 = 0xff;

#[rustfmt::skip]
const TABLE: &[Row] = &[
    Row(None, &[0x00, 0, 0, 0, 0, 4]),                                           // TEST UNIT READY
    Row(None, &[0x03, 1, 0, 0, FF, 4]),                                          // REQUEST SENSE
    Row(None, &[0x08, 0x1f, FF, FF, FF, 4]),                                     // READ(6)
    Row(None, &[0x0a, 0x1f, FF, FF, FF, 4]),                                     // WRITE(6)
    Row(None, &[0x12, 1, FF, FF, FF, 4]),                                        // INQUIRY
    Row(None, &[0x15, 0x11, 0, 0, FF, 4]),                                       // MODE SELECT(6)
    Row(None, &[0x16, 0x1f, 0, 0, 0, 4]),                                        // RESERVE(6)
    Row(None, &[0x17, 0x1f, 0, 0, 0, 4]),                                        // RELEASE(6)
    Row(None, &[0x1a, 0x08, FF, FF, FF, 4]),                                     // MODE SENSE(6)
    Row(None, &[0x1b, 1, 0, 0, 0xf3, 4]),                                        // START STOP UNIT
    Row(None, &[0x1e, 0, 0, 0, 3, 4]),                                           // PREVENT ALLOW MEDIUM REMOVAL
    Row(None, &[0x25, 0, FF, FF, FF, FF, 0, 0, 1, 4]),                           // READ CAPACITY(10)
    Row(None, &[0x28, 0xf8, FF, FF, FF, FF, 0x3f, FF, FF, 4]),                   // READ(10)
    Row(None, &[0x2a, 0xf8, FF, FF, FF, FF, 0x3f, FF, FF, 4]),                   // WRITE(10)
    Row(None, &[0x2e, 0xf2, FF, FF, FF, FF, 0x3f, FF, FF, 4]),                   // WRITE AND VERIFY(10)
    Row(None, &[0x2f, 0xf6, FF, FF, FF, FF, 0x3f, FF, FF, 4]),                   // VERIFY(10)
    Row(None, &[0x34, 2, FF, FF, FF, FF, 0x3f, FF, FF, 4]),                      // PRE-FETCH(10)
    Row(None, &[0x35, 2, FF, FF, FF, FF, 0x3f, FF, FF, 4]),                      // SYNCHRONIZE CACHE(10)
    Row(None, &[0x41, 0xfe, FF, FF, FF, FF, 0x3f, FF, FF, 4]),                   // WRITE SAME(10)
    Row(None, &[0x42, 1, 0, 0, 0, 0, 0x3f, FF, FF, 4]),                          // UNMAP
    Row(None, &[0x4d, 0, FF, FF, 0, FF, FF, FF, FF, 4]),                         // LOG SENSE
    Row(None, &[0x55, 0x11, 0, 0, 0, 0, 0, FF, FF, 4]),                          // MODE SELECT(10)
    Row(None, &[0x5a, 0x08, FF, FF, 0, 0, 0, FF, FF, 4]),                        // MODE SENSE(10)
    Row(Some(0), &[0x5e, 0, 0, 0, 0, 0, 0, FF, FF, 4]),                          // PERSISTENT RESERVE IN: READ KEYS
    Row(Some(1), &[0x5e, 1, 0, 0, 0, 0, 0, FF, FF, 4]),                          //   READ RESERVATION
    Row(Some(2), &[0x5e, 2, 0, 0, 0, 0, 0, FF, FF, 4]),                          //   REPORT CAPABILITIES
    Row(Some(3), &[0x5e, 3, 0, 0, 0, 0, 0, FF, FF, 4]),                          //   READ FULL STATUS
    Row(Some(0), &[0x5f, 0, FF, 0, 0, FF, FF, FF, FF, 4]),                       // PERSISTENT RESERVE OUT: REGISTER
    Row(Some(1), &[0x5f, 1, FF, 0, 0, FF, FF, FF, FF, 4]),                       //   RESERVE
    Row(Some(2), &[0x5f, 2, FF, 0, 0, FF, FF, FF, FF, 4]),                       //   RELEASE
    Row(Some(3), &[0x5f, 3, FF, 0, 0, FF, FF, FF, FF, 4]),                       //   CLEAR
    Row(Some(4), &[0x5f, 4, FF, 0, 0, FF, FF, FF, FF, 4]),                       //   PREEMPT
    Row(Some(5), &[0x5f, 5, FF, 0, 0, FF, FF, FF, FF, 4]),                       //   PREEMPT AND ABORT
    Row(Some(6), &[0x5f, 6, FF, 0, 0, FF, FF, FF, FF, 4]),                       //   REGISTER AND IGNORE EXISTING KEY
    Row(Some(7), &[0x5f, 7, FF, 0, 0, FF, FF, FF, FF, 4]),                       //   REGISTER AND MOVE
    Row(Some(0x00), &[0x83, 0x00, 0, 0, 0, 0, 0, 0, 0, 0, FF, FF, FF, FF, 0, 4]),      // EXTENDED COPY (LID1)
    Row(Some(0x01), &[0x83, 0x01, 0, 0, 0, 0, 0, 0, 0, 0, FF, FF, FF, FF, 0, 4]),      //   (LID4)
    Row(Some(0x10), &[0x83, 0x10, 0, 0, 0, 0, FF, FF, FF, FF, FF, FF, FF, FF, 0x3f, 4]), // POPULATE TOKEN
    Row(Some(0x11), &[0x83, 0x11, 0, 0, 0, 0, FF, FF, FF, FF, FF, FF, FF, FF, 0x3f, 4]), // WRITE USING TOKEN
    Row(Some(0x1c), &[0x83, 0x1c, FF, FF, FF, FF, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4]),      // COPY OPERATION ABORT
    Row(Some(0x00), &[0x84, 0x00, FF, 0, 0, 0, 0, 0, 0, 0, FF, FF, FF, FF, 0, 4]),     // RECEIVE COPY STATUS (LID1)
    Row(Some(0x03), &[0x84, 0x03, 0, 0, 0, 0, 0, 0, 0, 0, FF, FF, FF, FF, 0, 4]),      // RECEIVE COPY OPERATING PARAMETERS
    Row(Some(0x05), &[0x84, 0x05, FF, FF, FF, FF, 0, 0, 0, 0, FF, FF, FF, FF, 0, 4]),  // RECEIVE COPY STATUS (LID4)
    Row(Some(0x07), &[0x84, 0x07, FF, FF, FF, FF, 0, 0, 0, 0, FF, FF, FF, FF, 0, 4]),  // RECEIVE ROD TOKEN INFORMATION
    Row(None, &[0x88, 0xf8, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, 0x3f, 4]), // READ(16)
    Row(None, &[0x89, 0xf8, FF, FF, FF, FF, FF, FF, FF, FF, 0, 0, 0, FF, 0x3f, 4]),    // COMPARE AND WRITE
    Row(None, &[0x8a, 0xf8, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, 0x3f, 4]), // WRITE(16)
    Row(None, &[0x8b, 0xf8, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, 0x3f, 4]), // ORWRITE
    Row(None, &[0x8e, 0xf2, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, 0x3f, 4]), // WRITE AND VERIFY(16)
    Row(None, &[0x8f, 0xf6, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, 0x3f, 4]), // VERIFY(16)
    Row(None, &[0x90, 2, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, 0x3f, 4]),    // PRE-FETCH(16)
    Row(None, &[0x91, 2, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, 0x3f, 4]),    // SYNCHRONIZE CACHE(16)
    Row(None, &[0x93, 0xff, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, 0x3f, 4]), // WRITE SAME(16)
    Row(Some(0x10), &[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, FF, FF, FF, FF, 0, 4]),      // READ CAPACITY(16)
    Row(Some(0x12), &[0x9e, 0x12, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, 0, 4]), // GET LBA STATUS
    Row(None, &[0xa0, 0, FF, 0, 0, 0, FF, FF, FF, FF, 0, 4]),                    // REPORT LUNS
    Row(Some(0x0a), &[0xa3, 0xea, 0, 0, 0, 0, FF, FF, FF, FF, 0, 4]),            // REPORT TARGET PORT GROUPS
    Row(Some(0x0c), &[0xa3, 0x0c, 0x87, FF, FF, FF, FF, FF, FF, FF, 0, 4]),      // REPORT SUPPORTED OPERATION CODES
    Row(Some(0x0d), &[0xa3, 0x0d, 0x80, 0, 0, 0, FF, FF, FF, FF, 0, 4]),         // REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS
    Row(None, &[0xa8, 0xf8, FF, FF, FF, FF, FF, FF, FF, FF, 0x3f, 4]),           // READ(12)
    Row(None, &[0xaa, 0xf8, FF, FF, FF, FF, FF, FF, FF, FF, 0x3f, 4]),           // WRITE(12)
    Row(None, &[0xae, 0xf2, FF, FF, FF, FF, FF, FF, FF, FF, 0x3f, 4]),           // WRITE AND VERIFY(12)
    Row(None, &[0xaf, 0xf6, FF, FF, FF, FF, FF, FF, FF, FF, 0x3f, 4]),           // VERIFY(12)
];

impl Row {
    fn code(&self) -> u8 {
        self.1.first().copied().unwrap_or(0)
    }
}

/// Seconds a host should wait for a command at most before it aborts it: a pool that lost a disk or changes its head
/// answers within the first, a copy of many gigabytes within the second.
const RECOMMENDED: u32 = 60;
const RECOMMENDED_LONG: u32 = 300;

fn timeouts_descriptor(row: &Row, out: &mut Vec<u8>) {
    let (nominal, recommended) = match row.code() {
        // What moves, zeroes or frees ranges of any length.
        0x83 | 0x41 | 0x93 | 0x42 | 0x2f | 0xaf | 0x8f => (1_u32, RECOMMENDED_LONG),
        _ => (0, RECOMMENDED), // nominally less than a second
    };
    // Length, nothing command-specific, nominal and recommended time.
    out.extend([0, 0x0a, 0, 0]);
    out.extend(nominal.to_be_bytes());
    out.extend(recommended.to_be_bytes());
}

/// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS (SPC-4 §6.36).
pub(crate) fn task_management(extended: bool) -> Vec<u8> {
    // ABORT TASK, ABORT TASK SET, CLEAR TASK SET, LOGICAL UNIT RESET, and the target resets of iSCSI (obsolete in
    // the model, hence the last bit); no CLEAR ACA, no QUERY functions.
    let mut out = vec![0x80 | 0x40 | 0x10 | 0x08 | 0x02, 0, 0, 0];
    if extended {
        if let Some(len) = out.last_mut() {
            *len = 0x0c;
        }
        out.extend([0; 12]); // no times said: these answer when the commands they end have ended
    }
    out
}

/// The answer, whole; the caller applies the allocation length.
pub(crate) fn report(query: OpcodeQuery, timeouts: bool) -> Result<Vec<u8>, Sense> {
    let (code, action, either) = match query {
        OpcodeQuery::All => return Ok(all(timeouts)),
        OpcodeQuery::Code(code) => (code, None, false),
        OpcodeQuery::Action(code, action) => (code, Some(action), false),
        OpcodeQuery::Either(code, action) => (code, Some(action), true),
    };
    let has_actions = TABLE.iter().any(|row| row.code() == code && row.0.is_some());
    let known = TABLE.iter().any(|row| row.code() == code);
    // Asked the wrong way: with a service action where there is none, or without where there is one.
    if !either && known && has_actions != action.is_some() {
        return Err(Sense::cdb(2, 2));
    }
    let wanted = if has_actions { action } else { None };
    let row = TABLE.iter().find(|row| row.code() == code && row.0 == wanted);
    let Some(row) = row else {
        return Ok(vec![0, 0x01, 0, 0]); // not supported
    };
    let len = u16::try_from(row.1.len()).unwrap_or(0);
    let mut out = vec![0, if timeouts { 0x83 } else { 0x03 }];
    out.extend(len.to_be_bytes());
    out.extend(row.1);
    if timeouts {
        timeouts_descriptor(row, &mut out);
    }
    Ok(out)
}

fn all(timeouts: bool) -> Vec<u8> {
    let mut out = vec![0; 4];
    for row in TABLE {
        let [high, low] = row.0.unwrap_or(0).to_be_bytes();
        let flags = u8::from(row.0.is_some()) | if timeouts { 2 } else { 0 };
        let len = u8::try_from(row.1.len()).unwrap_or(0);
        out.extend([row.code(), 0, high, low, 0, flags, 0, len]);
        if timeouts {
            timeouts_descriptor(row, &mut out);
        }
    }
    let len = u32::try_from(out.len().saturating_sub(4)).unwrap_or(0);
    if let Some(head) = out.first_chunk_mut() {
        *head = len.to_be_bytes();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cdb::Command;

    #[test]
    fn what_is_listed_parses_and_what_parses_is_listed() {
        for opcode in 0..=u8::MAX {
            for action in 0..32_u8 {
                let mut cdb = [0; 16];
                (cdb[0], cdb[1]) = (opcode, action);
                let listed = TABLE.iter().any(|r| r.code() == opcode && r.0 == Some(u16::from(action)));
                let takes_actions = TABLE.iter().any(|r| r.code() == opcode && r.0.is_some());
                let plain = TABLE.iter().any(|r| r.code() == opcode && r.0.is_none());
                let parsed = Command::parse(&cdb);
                if takes_actions && opcode & 0xfe != 0x5e {
                    assert_eq!(parsed.is_ok(), listed, "{opcode:#x}/{action:#x}: {parsed:?}");
                } else {
                    assert_eq!(parsed == Err(Sense::INVALID_OPCODE), !plain && !takes_actions, "{opcode:#x}");
                }
            }
        }
    }

    #[test]
    fn one_command_is_told_with_its_usage_data() {
        let answer = report(OpcodeQuery::Action(0x9e, 0x10), true).unwrap();
        assert_eq!((answer[1], answer[3], answer[5], answer.len()), (0x83, 16, 0x10, 32));
        assert_eq!(report(OpcodeQuery::Code(0x9e), false), Err(Sense::cdb(2, 2)));
        assert_eq!(report(OpcodeQuery::Code(0xc0), false), Ok(vec![0, 1, 0, 0]));
        assert_eq!(report(OpcodeQuery::Either(0x12, 0), false).unwrap()[1], 3);
    }
}
