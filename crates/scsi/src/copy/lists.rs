//! Parameter lists of EXTENDED COPY (SPC-4 §6.4): who takes part, and which blocks go where.
//!
//! ```text
//!   LID1  list id 1 │ flags 1 │ targets 2 │ 4 │ segments 4 │ inline 4                   │ targets … │ segments … │ inline …
//!   LID4  format 1 │ flags 1 │ header 2 │ … │ G_SENSE IMMED at 15 │ … │ list id 4 at 20 │ targets, segments, inline at 42 │ …
//!   target   E4h │ type 1 │ port 2 │ code set, type, 0, length │ name ≤ 20 │ … │ block size 3
//!   segment  02h │ DC CAT │ length 2 │ source 2 │ destination 2 │ 2 │ blocks 2 │ source LBA 8 │ destination LBA 8
//! ```

use crate::{identity::Naa, sense::Sense};

use super::{DESCRIPTORS_MAX, SEGMENTS_MAX, TARGETS_MAX};

/// Segment: blocks from disk to disk.
pub(crate) const BLOCK_TO_BLOCK: u8 = 0x02;
/// Segment: bytes from disk to disk, from an offset in a block.
pub(crate) const BLOCK_TO_BLOCK_OFFSET: u8 = 0x0a;
/// Target: named by an identification descriptor.
pub(crate) const IDENTIFICATION: u8 = 0xe4;

/// A unit that takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Its NAA name; `None` if it is named in another way, which no unit here is.
    pub(crate) naa: Option<Naa>,
    pub(crate) block_size: u32,
}

/// One stretch to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Indices into the targets; the initiator's, so they may be wrong.
    pub(crate) from: u16,
    pub(crate) to: u16,
    pub(crate) from_lba: u64,
    pub(crate) to_lba: u64,
    pub(crate) amount: Amount,
}

/// How much a segment copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Amount {
    /// Blocks of the source's size, or of the destination's.
    Blocks { count: u16, of_destination: bool },
    /// Bytes, beginning this far into the blocks named.
    Bytes { count: u32, from_offset: u16, to_offset: u16 },
}

/// A whole list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CopyList {
    /// `None`: the initiator does not want to ask about this copy.
    pub(crate) id: Option<u32>,
    /// Answer as soon as the list is understood.
    pub(crate) immediate: bool,
    pub(crate) targets: Vec<Target>,
    pub(crate) segments: Vec<Segment>,
}

/// Parses a list; an empty one copies nothing.
pub(crate) fn parse(long: bool, list: &[u8]) -> Result<Option<CopyList>, Sense> {
    if list.is_empty() {
        return Ok(None);
    }
    let short = Sense::PARAMETER_LIST_LENGTH;
    let usage = list.get(1).map_or(0, |flags| (flags >> 3) & 3);
    let (id, immediate, targets, segments, inline, rest) = if long {
        let (head, rest) = list.split_first_chunk::<48>().ok_or(short)?;
        if head[0] != 1 {
            return Err(Sense::parameter(0));
        }
        if [head[2], head[3]] != [0, 0x20] || head[16] != 0xff {
            return Err(Sense::parameter(2));
        }
        let id = u32::from_be_bytes([head[20], head[21], head[22], head[23]]);
        let two = |a: u8, b: u8| usize::from(u16::from_be_bytes([a, b]));
        let lens = (two(head[42], head[43]), two(head[44], head[45]), two(head[46], head[47]));
        (id, head[15] & 1 != 0, lens.0, lens.1, lens.2, rest)
    } else {
        let (head, rest) = list.split_first_chunk::<16>().ok_or(short)?;
        let four = |a, b, c, d| u32::from_be_bytes([a, b, c, d]) as usize;
        let targets = usize::from(u16::from_be_bytes([head[2], head[3]]));
        let segments = four(head[8], head[9], head[10], head[11]);
        let inline = four(head[12], head[13], head[14], head[15]);
        (u32::from(head[0]), false, targets, segments, inline, rest)
    };
    // With 11b the identifier means nothing (and is to be zero); 10b: nothing is held, which it never is here.
    let id = (usage != 3).then_some(id);
    if inline > 0 {
        return Err(Sense::INLINE_DATA);
    }
    if targets.saturating_add(segments) > DESCRIPTORS_MAX {
        return Err(short);
    }
    let (target_bytes, rest) = rest.split_at_checked(targets).ok_or(short)?;
    let (segment_bytes, _) = rest.split_at_checked(segments).ok_or(short)?;
    let (chunks, odd) = target_bytes.as_chunks::<32>();
    if !odd.is_empty() {
        return Err(short);
    }
    if chunks.len() > TARGETS_MAX {
        return Err(Sense::TOO_MANY_TARGETS);
    }
    let targets = chunks.iter().map(target).collect::<Result<Vec<_>, _>>()?;
    let segments = self::segments(segment_bytes)?;
    Ok(Some(CopyList { id, immediate, targets, segments }))
}

fn target(d: &[u8; 32]) -> Result<Target, Sense> {
    if d[0] != IDENTIFICATION || d[1] & 0x1f != 0 {
        return Err(Sense::TARGET_DESCRIPTOR_TYPE); // not by name, or not a disk
    }
    // Binary, association logical unit, NAA, 16 bytes; RELATIVE INITIATOR PORT and LU ID TYPE say nothing here.
    let naa = match (d[4] & 0x0f, d[5] & 0x3f, d[7]) {
        (1, 3, 16) => d.get(8..24).and_then(|name| Naa::try_from(name).ok()),
        _ => None,
    };
    Ok(Target { naa, block_size: u32::from_be_bytes([0, d[29], d[30], d[31]]) })
}

fn segments(mut rest: &[u8]) -> Result<Vec<Segment>, Sense> {
    let mut out = Vec::new();
    while !rest.is_empty() {
        let (&[kind, flags, high, low], body) =
            rest.split_first_chunk::<4>().ok_or(Sense::PARAMETER_LIST_LENGTH)?;
        let len = usize::from(u16::from_be_bytes([high, low]));
        let needs = match kind {
            BLOCK_TO_BLOCK => 24,
            BLOCK_TO_BLOCK_OFFSET => 28,
            _ => return Err(Sense::SEGMENT_DESCRIPTOR_TYPE),
        };
        if len != needs {
            return Err(Sense::INVALID_FIELD_IN_PARAMETERS);
        }
        if out.len() >= SEGMENTS_MAX {
            return Err(Sense::TOO_MANY_SEGMENTS);
        }
        let (d, more) = body.split_at_checked(len).ok_or(Sense::PARAMETER_LIST_LENGTH)?;
        let two = |at: usize| d.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |b| u16::from_be_bytes(*b));
        let four =
            |at: usize| d.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |b| u32::from_be_bytes(*b));
        let eight =
            |at: usize| d.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |b| u64::from_be_bytes(*b));
        let amount = if kind == BLOCK_TO_BLOCK {
            Amount::Blocks { count: two(6), of_destination: flags & 2 != 0 }
        } else {
            Amount::Bytes { count: four(4), from_offset: two(24), to_offset: two(26) }
        };
        out.push(Segment { from: two(0), to: two(2), from_lba: eight(8), to_lba: eight(16), amount });
        rest = more;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short_list(targets: &[[u8; 32]], segments: &[Vec<u8>]) -> Vec<u8> {
        let segments = segments.concat();
        let mut out = vec![7, 0];
        out.extend((targets.len() as u16 * 32).to_be_bytes());
        out.extend([0; 4]);
        out.extend((segments.len() as u32).to_be_bytes());
        out.extend([0; 4]);
        out.extend(targets.concat());
        out.extend(segments);
        out
    }

    fn disk(naa: u8) -> [u8; 32] {
        let mut d = [0; 32];
        (d[0], d[4], d[5], d[7]) = (0xe4, 1, 3, 16);
        d[8..24].fill(naa);
        d[30] = 2;
        d
    }

    fn blocks(count: u16) -> Vec<u8> {
        let mut d = vec![2, 0, 0, 24, 0, 0, 0, 1, 0, 0];
        d.extend(count.to_be_bytes());
        d.extend(5_u64.to_be_bytes());
        d.extend(9_u64.to_be_bytes());
        d
    }

    #[test]
    fn a_list_says_who_and_what() {
        let list = parse(false, &short_list(&[disk(0x61), disk(0x62)], &[blocks(3)])).unwrap().unwrap();
        assert_eq!(list.id, Some(7));
        assert_eq!(list.targets[1], Target { naa: Some([0x62; 16]), block_size: 512 });
        let amount = Amount::Blocks { count: 3, of_destination: false };
        assert_eq!(list.segments, [Segment { from: 0, to: 1, from_lba: 5, to_lba: 9, amount }]);
    }

    #[test]
    fn the_long_form_says_the_same() {
        let short = short_list(&[disk(0x61)], &[blocks(3)]);
        let mut long = vec![0; 48];
        (long[0], long[3], long[16], long[23]) = (1, 0x20, 0xff, 9);
        (long[43], long[45]) = (32, 28);
        long.extend(&short[16..]);
        // G_SENSE, which was taken for IMMED, asks for sense data with GOOD, of which there is none here.
        for (flags, immediate) in [(0, false), (1, true), (2, false), (3, true)] {
            long[15] = flags;
            let list = parse(true, &long).unwrap().unwrap();
            assert_eq!((list.id, list.immediate, list.segments.len()), (Some(9), immediate, 1), "{flags}");
        }
        long[46] = 1;
        assert_eq!(parse(true, &long), Err(Sense::INLINE_DATA));
    }

    #[test]
    fn every_excess_and_every_cut_has_its_own_sense() {
        let good = short_list(&[disk(1)], &[blocks(1)]);
        for cut in 1..good.len() {
            assert_eq!(parse(false, &good[..cut]), Err(Sense::PARAMETER_LIST_LENGTH), "{cut}");
        }
        assert_eq!(parse(false, &[]), Ok(None));
        let many = short_list(&vec![disk(1); TARGETS_MAX + 1], &[blocks(1)]);
        assert_eq!(parse(false, &many), Err(Sense::TOO_MANY_TARGETS));
        let many = short_list(&[disk(1)], &vec![blocks(1); SEGMENTS_MAX + 1]);
        assert_eq!(parse(false, &many), Err(Sense::TOO_MANY_SEGMENTS));
        let many = short_list(&vec![disk(1); TARGETS_MAX + 1], &vec![blocks(1); SEGMENTS_MAX + 1]);
        assert_eq!(parse(false, &many), Err(Sense::PARAMETER_LIST_LENGTH));
        let mut other = disk(1);
        other[0] = 0xe0;
        assert_eq!(parse(false, &short_list(&[other], &[])), Err(Sense::TARGET_DESCRIPTOR_TYPE));
        let mut stream = blocks(1);
        stream[0] = 3;
        assert_eq!(parse(false, &short_list(&[disk(1)], &[stream])), Err(Sense::SEGMENT_DESCRIPTOR_TYPE));
    }
}
