//! LOG SENSE: the page of logical block provisioning, so that hosts see how much room the pool has left, and that of the
//! temperature, which monitoring asks of every disk and a volume has not (SPC-4 §6.8, §7.3; SBC-3 §6.3).

use block::Space;

use crate::sense::Sense;

const PROVISIONING: u8 = 0x0c;
const TEMPERATURE: u8 = 0x0d;
/// In place of degrees Celsius: cannot be told.
const NO_DEGREES: u8 = 0xff;

/// Thin provisioning counts in units of 2^this logical blocks: one MiB of 512-byte blocks.
pub(crate) const THRESHOLD_EXPONENT: u8 = 11;

/// Bytes in threshold units.
pub(crate) fn units(bytes: u64, block_size: u32) -> u32 {
    let unit = u64::from(block_size).wrapping_shl(u32::from(THRESHOLD_EXPONENT)).max(1);
    u32::try_from(bytes.checked_div(unit).unwrap_or(0)).unwrap_or(u32::MAX)
}

/// The answer, whole; the caller applies the allocation length.
pub(crate) fn sense(
    page: u8,
    subpage: u8,
    control: u8,
    pointer: u16,
    space: Option<Space>,
    block_size: u32,
) -> Result<Vec<u8>, Sense> {
    if control != 1 && control != 0 {
        return Err(Sense::cdb(2, 7)); // there are no thresholds of their own, nor defaults
    }
    let mut body = Vec::new();
    match (page, subpage) {
        (0, 0) => {
            body.push(0);
            if space.is_some() {
                body.push(PROVISIONING);
            }
            body.push(TEMPERATURE);
        }
        (0, 0xff) => {
            body.extend([0, 0, 0, 0xff]);
            if space.is_some() {
                body.extend([PROVISIONING, 0]);
            }
            body.extend([TEMPERATURE, 0]);
        }
        (PROVISIONING, 0) if space.is_some() => {
            let space = space.unwrap_or_default();
            // Scope 2: what is available is shared with other volumes. Scope 1: what is used is this volume's own.
            for (code, bytes, scope) in [(0x0001_u16, space.available, 2), (0x0002, space.used, 1)] {
                if code >= pointer {
                    body.extend(code.to_be_bytes());
                    body.extend([0x03, 8]); // binary list, not saved
                    body.extend(units(bytes, block_size).to_be_bytes());
                    body.extend([scope, 0, 0, 0]);
                }
            }
        }
        (TEMPERATURE, 0) => {
            // Now, and what must not be exceeded.
            for code in (0..=1_u16).filter(|code| *code >= pointer) {
                body.extend(code.to_be_bytes());
                body.extend([0x03, 2, 0, NO_DEGREES]);
            }
        }
        (PROVISIONING, _) if space.is_none() => return Err(Sense::cdb(2, 5)),
        (0 | PROVISIONING | TEMPERATURE, _) => return Err(Sense::cdb(3, 7)),
        _ => return Err(Sense::cdb(2, 5)),
    }
    let mut out = vec![page | if subpage == 0 { 0 } else { 0x40 }, subpage];
    out.extend(u16::try_from(body.len()).unwrap_or(u16::MAX).to_be_bytes());
    out.extend(body);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPACE: Option<Space> = Some(Space { used: 3 << 20, available: (5 << 20) + 7, wanted: 0 });

    #[test]
    fn what_is_left_and_what_is_used_are_told_in_threshold_units() {
        let page = sense(0x0c, 0, 1, 0, SPACE, 512).unwrap();
        assert_eq!(page[..4], [0x0c, 0, 0, 24]);
        assert_eq!(page[4..16], [0, 1, 3, 8, 0, 0, 0, 5, 2, 0, 0, 0]);
        assert_eq!(page[16..], [0, 2, 3, 8, 0, 0, 0, 3, 1, 0, 0, 0]);
        assert_eq!(sense(0x0c, 0, 1, 2, SPACE, 512).unwrap().len(), 16, "from the parameter asked for");
    }

    #[test]
    fn a_volume_has_no_temperature_and_says_so_in_the_form_of_one() {
        let page = sense(0x0d, 0, 1, 0, None, 512).unwrap();
        assert_eq!(page, [0x0d, 0, 0, 12, 0, 0, 3, 2, 0, 0xff, 0, 1, 3, 2, 0, 0xff]);
        assert_eq!(sense(0x0d, 0, 1, 1, None, 512).unwrap().len(), 10, "from the parameter asked for");
        assert_eq!(sense(0x0d, 1, 1, 0, None, 512), Err(Sense::cdb(3, 7)));
    }

    #[test]
    fn pages_that_are_not_there_are_refused_and_not_listed() {
        assert_eq!(sense(0, 0, 1, 0, SPACE, 512), Ok(vec![0, 0, 0, 3, 0, 0x0c, 0x0d]));
        assert_eq!(sense(0, 0, 1, 0, None, 512), Ok(vec![0, 0, 0, 2, 0, 0x0d]));
        assert_eq!(sense(0x0c, 0, 1, 0, None, 512), Err(Sense::cdb(2, 5)));
        assert_eq!(sense(0x0c, 1, 1, 0, SPACE, 512), Err(Sense::cdb(3, 7)));
        assert_eq!(sense(0x2f, 0, 1, 0, SPACE, 512), Err(Sense::cdb(2, 5)));
    }
}
