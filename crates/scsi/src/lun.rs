//! Numbers of logical units: how they are written, which of them a target has, and what is said of one that is not there.

use crate::{
    cdb::Command,
    inquiry,
    sense::Sense,
    unit::{LogicalUnit, Response, allocated},
};

/// REPORT LUNS of a target that has these (SPC-4 §6.33).
pub(crate) fn report_luns(select: u8, allocation: u32, luns: &[u16]) -> Result<Vec<u8>, Sense> {
    if allocation < 16 {
        return Err(Sense::cdb(6, 7));
    }
    let luns = match select {
        0x00 | 0x02 => luns,
        0x01 => &[], // well-known logical units: none
        _ => return Err(Sense::cdb(2, 7)),
    };
    let mut out = vec![0; 8];
    for lun in luns {
        out.extend(lun_bytes(*lun));
    }
    let len = u32::try_from(out.len().saturating_sub(8)).unwrap_or(0);
    if let Some(head) = out.first_chunk_mut() {
        *head = len.to_be_bytes();
    }
    Ok(out)
}

/// A LUN as eight bytes: peripheral addressing up to 255, flat above (SAM-5 §4.7). At most 16,383.
pub fn lun_bytes(lun: u16) -> [u8; 8] {
    let [high, low] = lun.to_be_bytes();
    [if lun > 255 { 0x40 | (high & 0x3f) } else { 0 }, low, 0, 0, 0, 0, 0, 0]
}

/// The number in eight bytes of LUN, of one level: by peripheral or flat addressing. There are no buses, so what stands in the
/// place of one is part of the number: libiscsi, and so QEMU, writes numbers above 255 without the bit that says flat.
pub fn lun_number(bytes: [u8; 8]) -> Option<u16> {
    match bytes {
        [high, low, 0, 0, 0, 0, 0, 0] if high & 0x80 == 0 => Some(u16::from_be_bytes([high & 0x3f, low])),
        _ => None,
    }
}

/// REPORT LUNS of a target that has the LUNs `luns`, asked of one of its units or of none.
pub fn target_luns(cdb: &[u8; 16], luns: &[u16], asked: Option<&LogicalUnit>) -> Response {
    let told = match Command::parse(cdb) {
        Ok(Command::ReportLuns { select, allocation }) => {
            report_luns(select, allocation, luns).map(|bytes| allocated(bytes, allocation))
        }
        Ok(_) => Err(Sense::INVALID_OPCODE),
        Err(sense) => Err(sense),
    };
    told.unwrap_or_else(|sense| {
        asked.map_or_else(|| Response::check(sense.fixed()), |unit| unit.check(sense))
    })
}

/// The answer to a command for a LUN that has no logical unit (SPC-4 §6.4, §6.33, SAM-5 §4.7).
/// `luns` are those of the target that have one.
pub fn absent_lun(cdb: &[u8; 16], luns: &[u16]) -> Response {
    let answer = match Command::parse(cdb) {
        Ok(Command::Inquiry { page: None, allocation }) => Ok((inquiry::standard(false), allocation)),
        Ok(Command::ReportLuns { select, allocation }) => {
            report_luns(select, allocation, luns).map(|bytes| (bytes, allocation))
        }
        Ok(Command::RequestSense { descriptor, allocation }) => {
            let sense = Sense::LUN_NOT_SUPPORTED;
            let bytes = if descriptor { sense.descriptor() } else { sense.fixed() };
            Ok((bytes.as_slice().to_vec(), allocation))
        }
        _ => Err(Sense::LUN_NOT_SUPPORTED),
    };
    match answer {
        Ok((bytes, allocation)) => allocated(bytes, allocation),
        Err(sense) => Response::check(sense.fixed()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// QEMU could not connect to a disk above 255 by the number that it was given.
    #[test]
    fn a_number_is_taken_in_the_form_that_libiscsi_writes_it_too() {
        let number = |high: u8, low: u8| lun_number([high, low, 0, 0, 0, 0, 0, 0]);
        assert_eq!([number(0x01, 0x2c), number(0x41, 0x2c)], [Some(300); 2]);
        assert_eq!([number(0, 7), number(0x40, 7)], [Some(7); 2]);
        assert_eq!([number(0x3f, 0xff), number(0x7f, 0xff)], [Some(16_383); 2]);
        assert_eq!([number(0x80, 1), number(0xc1, 1)], [None; 2], "other methods of addressing");
        for later in 2..8 {
            let mut bytes = lun_bytes(300);
            assert_eq!(lun_number(bytes), Some(300), "as it is told to hosts");
            bytes[later] = 1;
            assert_eq!(lun_number(bytes), None, "of more than one level");
        }
    }
}
