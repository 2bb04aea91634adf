//! INQUIRY: the standard data and the vital product data pages (SPC-4 §6.4, §7.8; SBC-3 §6.5).
//!
//! What is said here is what hosts believe: thin, non-rotating, 512 bytes emulated on 4096, one
//! target port group that is always active. Page lists are ascending and complete.

use crate::{identity::Naa, sense::Sense, service::PortGroup};

/// What the pages are made of.
pub(crate) struct Unit<'a> {
    pub(crate) target: &'a str,
    pub(crate) naa: &'a Naa,
    pub(crate) serial: &'a str,
    /// `volblocksize` in logical blocks: the unit space is freed in, and the best I/O size.
    pub(crate) granularity: u32,
    pub(crate) read_only: bool,
    pub(crate) limits: Limits,
    /// The target port that the question came by, and its target port group.
    pub(crate) port: u16,
    pub(crate) group: u16,
    /// Power of two of logical blocks in which thin provisioning thresholds count; 0: there are none.
    pub(crate) threshold_exponent: u8,
}

/// Transfer limits, in logical blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) transfer: u32,
    pub(crate) optimal_transfer: u32,
    pub(crate) unmap: u32,
    pub(crate) unmap_descriptors: u32,
    pub(crate) write_same: u64,
    pub(crate) compare_and_write: u8,
}

const PAGES: [u8; 8] = [0x00, 0x80, 0x83, 0x86, 0x8f, 0xb0, 0xb1, 0xb2];
const VENDOR: &[u8; 8] = b"MILLPOND";
const PRODUCT: &[u8; 16] = b"VOLUME          ";
const REVISION: &[u8; 4] = b"0001";

/// Standard INQUIRY data; `present` is false for a LUN that has no logical unit.
pub(crate) fn standard(present: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(96);
    out.push(if present { 0x00 } else { 0x7f });
    out.extend([
        0x00, // not removable
        0x06, // SPC-4
        0x12, // HISUP, response data format 2
        91,   // additional length: 96 bytes in all
        0x18, // TPGS: implicit asymmetric access; 3PC: copies for others
        0x00, 0x02, // CMDQUE
    ]);
    out.extend(VENDOR);
    out.extend(PRODUCT);
    out.extend(REVISION);
    out.resize(58, 0);
    // SAM-5, iSCSI, SPC-4, SBC-3: no version of them claimed
    for version in [0x00a0_u16, 0x0960, 0x0460, 0x04c0] {
        out.extend(version.to_be_bytes());
    }
    out.resize(96, 0);
    out
}

/// A vital product data page.
pub(crate) fn vital(page: u8, unit: &Unit<'_>) -> Result<Vec<u8>, Sense> {
    let body = match page {
        0x00 => PAGES.to_vec(),
        0x80 => unit.serial.as_bytes().to_vec(),
        0x83 => identification(unit),
        0x86 => {
            let mut b = vec![0; 60];
            // SIMPSUP alone: the other task attributes are taken, but commands that are under way together end in any order
            // whatever theirs are. Hosts that need an order wait for one command before they send the next.
            // V_SUP: there is a cache that a power cut empties, also of a disk that is read-only for now.
            if let [_, tags, cache, ..] = b.as_mut_slice() {
                *tags = 0x01;
                *cache = 0x01;
            }
            b
        }
        0x8f => crate::copy::third_party_page(),
        0xb0 => limits(unit),
        0xb1 => {
            let mut b = vec![0; 60];
            if let [_, rate, ..] = b.as_mut_slice() {
                *rate = 1; // non-rotating
            }
            b
        }
        0xb2 => {
            // LBPU, LBPWS, LBPWS10 where something can be freed; LBPRZ always: holes read as zeroes.
            let frees = if unit.read_only { 0x00 } else { 0xe0 };
            vec![unit.threshold_exponent, frees | 0x04, 0x02, 0x00]
        }
        _ => return Err(Sense::cdb(2, 7)),
    };
    let len = u16::try_from(body.len()).unwrap_or(u16::MAX);
    let mut out = vec![0x00, page];
    out.extend(len.to_be_bytes());
    out.extend(body);
    Ok(out)
}

/// Device identification: NAA first, because hosts take the first that they like.
fn identification(unit: &Unit<'_>) -> Vec<u8> {
    fn descriptor(out: &mut Vec<u8>, head: [u8; 2], body: &[u8]) {
        out.extend(head);
        out.push(0);
        out.push(u8::try_from(body.len()).unwrap_or(u8::MAX));
        out.extend(body.iter().take(255));
    }
    let mut out = Vec::new();
    descriptor(&mut out, [0x01, 0x03], unit.naa);
    let mut t10 = VENDOR.to_vec();
    t10.extend(unit.serial.as_bytes());
    descriptor(&mut out, [0x02, 0x01], &t10);
    // Association target port (1), protocol iSCSI (5) where it says so.
    let [high, low] = unit.port.to_be_bytes();
    descriptor(&mut out, [0x51, 0x94], &[0, 0, high, low]);
    let [high, low] = unit.group.to_be_bytes();
    descriptor(&mut out, [0x51, 0x95], &[0, 0, high, low]);
    let name = |text: String| {
        let mut name = text.into_bytes();
        name.push(0);
        while !name.len().is_multiple_of(4) {
            name.push(0);
        }
        name
    };
    descriptor(&mut out, [0x53, 0x98], &name(format!("{},t,0x{:04x}", unit.target, unit.port)));
    descriptor(&mut out, [0x53, 0xa8], &name(unit.target.to_owned()));
    out
}

fn limits(unit: &Unit<'_>) -> Vec<u8> {
    let l = &unit.limits;
    let frees = !unit.read_only;
    let mut b = Vec::with_capacity(60);
    b.push(0); // WSNZ=0: WRITE SAME of no blocks goes to the end
    b.push(if frees { l.compare_and_write } else { 0 });
    b.extend(u16::try_from(unit.granularity).unwrap_or(u16::MAX).to_be_bytes());
    b.extend(l.transfer.to_be_bytes());
    b.extend(l.optimal_transfer.to_be_bytes());
    b.extend(l.transfer.to_be_bytes()); // prefetch
    b.extend(if frees { l.unmap } else { 0 }.to_be_bytes());
    b.extend(if frees { l.unmap_descriptors } else { 0 }.to_be_bytes());
    b.extend(unit.granularity.to_be_bytes());
    b.extend(0x8000_0000_u32.to_be_bytes()); // UGAVALID, alignment 0
    b.extend(l.write_same.to_be_bytes());
    b.resize(60, 0);
    b
}

/// READ CAPACITY(16): last LBA, block size, 4 KiB physical blocks, thin and zero-reading.
pub(crate) fn capacity16(last_lba: u64, block_size: u32, physical: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(32);
    out.extend(last_lba.to_be_bytes());
    out.extend(block_size.to_be_bytes());
    out.push(0);
    let ratio = physical.checked_div(block_size).unwrap_or(1).max(1);
    out.push(u8::try_from(ratio.ilog2()).unwrap_or(0));
    out.extend([0xc0, 0x00]); // LBPME, LBPRZ; lowest aligned LBA 0
    out.resize(32, 0);
    out
}

/// REPORT TARGET PORT GROUPS (SPC-4 §6.37): every group, whichever it was asked by.
pub(crate) fn target_port_groups(extended: bool, groups: &[PortGroup]) -> Vec<u8> {
    let mut out = vec![0; 4];
    if extended {
        out.extend([0x10, 0, 0, 0]); // no implicit transition time told
    }
    for group in groups {
        let ports = u8::try_from(group.ports.len()).unwrap_or(u8::MAX);
        out.push(if group.preferred { 0x80 } else { 0 } | group.access as u8);
        out.push(SUPPORTED_STATES);
        out.extend(group.id.to_be_bytes());
        // Status 2: the state was changed by the target (implicitly).
        out.extend([0, 2, 0, ports]);
        for port in group.ports.iter().take(usize::from(ports)) {
            out.extend([0, 0]);
            out.extend(port.to_be_bytes());
        }
    }
    let len = u32::try_from(out.len().saturating_sub(4)).unwrap_or(0);
    if let Some(head) = out.first_chunk_mut() {
        *head = len.to_be_bytes();
    }
    out
}

/// States a group may be in: transitioning, unavailable, standby, active non-optimised, active optimised.
const SUPPORTED_STATES: u8 = 0x80 | 0x08 | 0x04 | 0x02 | 0x01;

#[cfg(test)]
mod tests {
    use super::*;

    fn unit() -> Unit<'static> {
        Unit {
            target: "iqn.2026-11.io.millpond:tank",
            naa: &[0x60; 16],
            serial: "0123",
            granularity: 16,
            port: 0x0203,
            group: 0x0405,
            threshold_exponent: 0,
            read_only: false,
            limits: Limits {
                transfer: 1,
                optimal_transfer: 1,
                unmap: 1,
                unmap_descriptors: 1,
                write_same: 1,
                compare_and_write: 1,
            },
        }
    }

    #[test]
    fn every_listed_page_exists_in_ascending_order_and_tells_its_length() {
        let list = vital(0, &unit()).unwrap();
        assert!(list[4..].is_sorted());
        for page in &list[4..] {
            let body = vital(*page, &unit()).unwrap();
            assert_eq!(
                (body[1], usize::from(u16::from_be_bytes([body[2], body[3]]))),
                (*page, body.len() - 4)
            );
        }
        assert_eq!(vital(0x8e, &unit()), Err(Sense::cdb(2, 7)));
    }

    #[test]
    fn no_order_of_commands_is_promised_that_is_not_kept() {
        assert_eq!(vital(0x86, &unit()).unwrap()[5], 0x01, "SIMPSUP, neither HEADSUP nor ORDSUP");
    }

    #[test]
    fn sizes_are_those_of_the_standard() {
        assert_eq!(standard(true).len(), 96);
        assert_eq!(usize::from(standard(true)[4]) + 5, 96);
        assert_eq!(vital(0xb0, &unit()).unwrap().len(), 64);
        assert_eq!(capacity16(9, 512, 4096)[13], 3);
        assert_eq!(capacity16(9, 4096, 4096)[13], 0);
    }

    #[test]
    fn a_disk_names_the_port_and_the_group_it_was_asked_by() {
        let page = vital(0x83, &unit()).unwrap();
        let mut rest = &page[4..];
        let mut seen = Vec::new();
        while let [head, kind, _, len, body @ ..] = rest {
            let (body, more) = body.split_at(usize::from(*len));
            seen.push((*head, *kind, body.to_vec()));
            rest = more;
        }
        assert_eq!((seen[0].0, seen[0].1, seen[0].2.len()), (0x01, 0x03, 16), "the NAA name comes first");
        assert!(seen.contains(&(0x51, 0x94, vec![0, 0, 2, 3])));
        assert!(seen.contains(&(0x51, 0x95, vec![0, 0, 4, 5])));
        let (_, _, port) = seen.iter().find(|(_, kind, _)| *kind == 0x98).unwrap();
        assert!(port.starts_with(b"iqn.2026-11.io.millpond:tank,t,0x0203\0"));
    }

    #[test]
    fn two_heads_are_two_groups() {
        use crate::service::Access;
        let groups = [
            PortGroup { id: 1, access: Access::ActiveOptimized, preferred: true, ports: vec![1, 2] },
            PortGroup { id: 2, access: Access::Standby, preferred: false, ports: vec![3] },
        ];
        let answer = target_port_groups(false, &groups);
        assert_eq!(answer[..12], [0, 0, 0, 28, 0x80, 0x8f, 0, 1, 0, 2, 0, 2]);
        assert_eq!(answer[12..20], [0, 0, 0, 1, 0, 0, 0, 2]);
        assert_eq!(answer[20..], [0x02, 0x8f, 0, 2, 0, 2, 0, 1, 0, 0, 0, 3]);
        assert_eq!(target_port_groups(true, &groups)[..8], [0, 0, 0, 32, 0x10, 0, 0, 0]);
    }
}
