//! Mode pages: 01h, 08h, 0Ah and 1Ch, and the few bits of them that may be changed (SPC-4 §7.5, SBC-3 §6.4).
//!
//! `WCE` is true where writes are cached: hosts then flush. A host that clears it gets stable writes. The page says so of a
//! read-only disk as well, in whose cache there is nothing: hosts look once, when they start the disk, and one that found no
//! cache would not flush when the disk may be written to.

use crate::sense::Sense;

/// What MODE SELECT can change; shared by all initiators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Params {
    /// Descriptor format sense.
    pub(crate) d_sense: bool,
    /// Software write protect.
    pub(crate) swp: bool,
    /// Write cache: when false, every write is stable before it is answered.
    pub(crate) wce: bool,
}

impl Params {
    /// What initiators find until somebody changes it.
    pub(crate) const fn new(write_cache: bool) -> Self {
        Self { d_sense: false, swp: false, wce: write_cache }
    }

    /// Those that may be changed; the write cache if it may.
    pub(crate) const fn changeable(write_cache: bool) -> Self {
        Self { d_sense: true, swp: true, wce: write_cache }
    }
}

/// The pages there are, ascending.
const PAGES: [u8; 4] = [0x01, 0x08, 0x0a, 0x1c];

fn bit(set: bool, mask: u8) -> u8 {
    if set { mask } else { 0 }
}

/// One page's bytes; for the changeable mask only the bits of `p` count.
fn page(code: u8, p: Params, mask: bool) -> Vec<u8> {
    let fixed = |byte: u8| if mask { 0 } else { byte };
    match code {
        0x01 => vec![0x01, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        0x08 => {
            let mut b = vec![0x08, 0x12, bit(p.wce, 0x04)];
            b.resize(20, 0);
            b
        }
        0x0a => {
            let flags = fixed(0x02) | bit(p.d_sense, 0x04); // GLTSD
            // TAS: commands that another initiator cleared are answered, so that their host need not wait for a
            // time-out to find out.
            let tas = fixed(0x40);
            vec![0x0a, 0x0a, flags, fixed(0x10), bit(p.swp, 0x08), tas, 0, 0, fixed(0xff), fixed(0xff), 0, 0]
        }
        _ => vec![0x1c, 0x0a, fixed(0x08), 0, 0, 0, 0, 0, 0, 0, 0, 0],
    }
}

/// The page of logical block provisioning (1Ch/02h): one soft threshold on what is available.
fn provisioning(threshold: u32, mask: bool) -> Vec<u8> {
    let mut b = vec![0x5c, 0x02, 0, 20];
    if mask {
        b.resize(24, 0); // the pool's administrator sets it, not an initiator
        return b;
    }
    b.resize(16, 0);
    b.extend([if threshold > 0 { 0x80 } else { 0 }, 0x01, 0, 0]); // enabled, soft, below; resource 1: available
    b.extend(threshold.to_be_bytes());
    b
}

/// What MODE SENSE needs to know of the unit.
pub(crate) struct Medium {
    pub(crate) write_protected: bool,
    pub(crate) blocks: u64,
    pub(crate) block_size: u32,
    pub(crate) defaults: Params,
    /// What the one that asks may change.
    pub(crate) changeable: Params,
    /// Soft threshold in threshold units, where thin provisioning has any; 0: off.
    pub(crate) threshold: Option<u32>,
}

/// What MODE SENSE asks for.
pub(crate) struct Query {
    pub(crate) ten: bool,
    pub(crate) no_descriptors: bool,
    pub(crate) control: u8,
    pub(crate) page: u8,
    pub(crate) subpage: u8,
}

/// The answer to MODE SENSE(6) or (10).
pub(crate) fn sense(query: &Query, medium: &Medium, current: Params) -> Result<Vec<u8>, Sense> {
    let (params, mask) = match query.control {
        0 => (current, false),
        1 => (medium.changeable, true),
        2 => (medium.defaults, false),
        _ => {
            let mut saving = Sense::INVALID_FIELD_IN_CDB;
            saving.asc = 0x39;
            return Err(saving);
        }
    };
    let threshold = medium.threshold.filter(|_| query.page == 0x1c || query.page == 0x3f);
    if !matches!(query.subpage, 0 | 0xff)
        && (query.page, query.subpage, threshold.is_some()) != (0x1c, 2, true)
    {
        return Err(Sense::cdb(3, 7));
    }
    let mut pages = Vec::new();
    for code in PAGES {
        if query.subpage != 2 && (query.page == code || query.page == 0x3f) {
            pages.extend(page(code, params, mask));
        }
    }
    if let Some(threshold) = threshold.filter(|_| query.subpage != 0) {
        pages.extend(provisioning(threshold, mask));
    }
    if pages.is_empty() {
        return Err(Sense::cdb(2, 5));
    }
    let mut descriptor = Vec::new();
    if !query.no_descriptors {
        descriptor.extend(u32::try_from(medium.blocks).unwrap_or(u32::MAX).to_be_bytes());
        descriptor.extend(medium.block_size.to_be_bytes());
        if let Some(reserved) = descriptor.get_mut(4) {
            *reserved = 0;
        }
    }
    let specific = bit(medium.write_protected, 0x80) | 0x10; // DPOFUA
    let descriptor_len = u8::try_from(descriptor.len()).unwrap_or(0);
    let rest = descriptor.len().saturating_add(pages.len());
    let mut out = Vec::new();
    if query.ten {
        out.extend(u16::try_from(rest.saturating_add(6)).unwrap_or(u16::MAX).to_be_bytes());
        out.extend([0, specific, 0, 0, 0, descriptor_len]);
    } else {
        out.extend([u8::try_from(rest.saturating_add(3)).unwrap_or(u8::MAX), 0, specific, descriptor_len]);
    }
    out.extend(descriptor);
    out.extend(pages);
    Ok(out)
}

/// Parses a MODE SELECT parameter list against what is current, and what of it may be changed; nothing is applied unless all
/// is right.
pub(crate) fn select(
    ten: bool,
    list: &[u8],
    block_size: u32,
    current: Params,
    changeable: Params,
) -> Result<Params, Sense> {
    let (header, descriptor_len) = match (ten, list) {
        (_, []) => return Ok(current),
        (false, [_, _, _, len, ..]) => (4, usize::from(*len)),
        (true, [_, _, _, _, _, _, high, low, ..]) => (8, usize::from(u16::from_be_bytes([*high, *low]))),
        _ => return Err(Sense::PARAMETER_LIST_LENGTH),
    };
    let descriptor_at = list.get(header..).unwrap_or(&[]);
    let Some((descriptor, mut pages)) = descriptor_at.split_at_checked(descriptor_len) else {
        return Err(Sense::PARAMETER_LIST_LENGTH);
    };
    match descriptor {
        [] => {}
        [_, _, _, _, _, a, b, c] if u32::from_be_bytes([0, *a, *b, *c]) == block_size => {}
        _ => return Err(Sense::parameter(u16::try_from(header).unwrap_or(0))),
    }
    let mut params = current;
    while let [code, len, ..] = *pages {
        let at = u16::try_from(list.len().saturating_sub(pages.len())).unwrap_or(u16::MAX);
        let Some((bytes, rest)) = pages.split_at_checked(usize::from(len).saturating_add(2)) else {
            return Err(Sense::PARAMETER_LIST_LENGTH);
        };
        if !PAGES.contains(&code) {
            return Err(Sense::parameter(at)); // SPF and PS included: both are reserved here
        }
        let is = page(code, params, false);
        let may = page(code, changeable, true);
        if is.len() != bytes.len() {
            return Err(Sense::parameter(at.saturating_add(1)));
        }
        // Page code and length are no parameters; the mask has them too.
        for (i, ((new, old), mask)) in bytes.iter().zip(&is).zip(&may).enumerate().skip(2) {
            if (new ^ old) & !mask != 0 {
                return Err(Sense::parameter(at.saturating_add(u16::try_from(i).unwrap_or(0))));
            }
        }
        match (code, bytes) {
            (0x08, [_, _, flags, ..]) => params.wce = flags & 0x04 != 0,
            (0x0a, [_, _, flags, _, swp, ..]) => {
                params.d_sense = flags & 0x04 != 0;
                params.swp = swp & 0x08 != 0;
            }
            _ => {}
        }
        pages = rest;
    }
    if pages.is_empty() { Ok(params) } else { Err(Sense::PARAMETER_LIST_LENGTH) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEDIUM: Medium = Medium {
        write_protected: true,
        blocks: 100,
        block_size: 512,
        defaults: Params::new(true),
        changeable: Params::changeable(true),
        threshold: Some(9),
    };

    fn query(page: u8, control: u8) -> Query {
        Query { ten: false, no_descriptors: false, control, page, subpage: 0 }
    }

    #[test]
    fn a_read_only_unit_sets_the_write_protect_bit() {
        let answer = sense(&query(0x3f, 0), &MEDIUM, Params::new(false)).unwrap();
        assert_eq!(usize::from(answer[0]) + 1, answer.len());
        assert_eq!(&answer[1..12], [0, 0x90, 8, 0, 0, 0, 100, 0, 0, 2, 0]);
    }

    #[test]
    fn what_mode_sense_gives_mode_select_takes_back_with_changes_in_changeable_bits_only() {
        let current = Params::new(true);
        let mut list = sense(&query(0x0a, 0), &MEDIUM, current).unwrap();
        let mask = sense(&query(0x0a, 1), &MEDIUM, current).unwrap();
        assert_eq!((mask[14], mask[15], mask[16]), (0x04, 0, 0x08));
        let select = |list: &[u8]| select(false, list, 512, current, MEDIUM.changeable);
        list[16] |= 0x08;
        assert_eq!(select(&list), Ok(Params { swp: true, ..current }));
        list[15] ^= 0x20;
        assert_eq!(select(&list), Err(Sense::parameter(15)));
        assert_eq!(select(&list[..20]), Err(Sense::PARAMETER_LIST_LENGTH));
    }

    #[test]
    fn the_threshold_page_is_a_subpage_that_is_asked_for_by_name_or_with_all() {
        let asked = |page, subpage| sense(&Query { subpage, ..query(page, 0) }, &MEDIUM, Params::new(true));
        let page = asked(0x1c, 2).unwrap();
        assert_eq!(page[12..16], [0x5c, 2, 0, 20]);
        assert_eq!(page[28..], [0x80, 1, 0, 0, 0, 0, 0, 9]);
        let all = asked(0x3f, 0xff).unwrap();
        assert!(all.ends_with(&page[12..]));
        assert_eq!(asked(0x3f, 0).unwrap().len() + 24, all.len());
        assert_eq!(asked(0x08, 2), Err(Sense::cdb(3, 7)));
    }
}
