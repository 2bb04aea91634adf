//! What a leaf was given, as far as it has to be given again.

use std::collections::BTreeMap;

use bytes::Bytes;

/// What of a history is still to be seen at its end, by offset: later pieces cover earlier ones.
pub(super) fn newest<'a>(history: impl DoubleEndedIterator<Item = &'a (u64, Bytes)>) -> Vec<(u64, Bytes)> {
    // Start of what is covered already ▶ its bytes; these do not overlap.
    let mut covered: BTreeMap<u64, Bytes> = BTreeMap::new();
    for (offset, data) in history.rev() {
        let end = offset + data.len() as u64;
        let mut at = *offset;
        let mut free: Vec<(u64, u64)> = Vec::new();
        let before = covered.range(..=at).next_back().map(|(start, bytes)| start + bytes.len() as u64);
        at = at.max(before.unwrap_or(0)).min(end);
        for (start, bytes) in covered.range(*offset + 1..end) {
            if at < *start {
                free.push((at, *start));
            }
            at = at.max(start + bytes.len() as u64);
        }
        if at < end {
            free.push((at, end));
        }
        for (start, end) in free {
            let part = data.slice((start - offset) as usize..(end - offset) as usize);
            covered.insert(start, part);
        }
    }
    covered.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_last_is_what_remains() {
        let mut random = 7_u64;
        let mut below = |bound: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % bound
        };
        for _ in 0..2000 {
            let mut image = [0_u8; 64];
            let mut history = Vec::new();
            for number in 1..=below(12) + 1 {
                let start = below(60);
                let len = 1 + below(64 - start);
                image[start as usize..(start + len) as usize].fill(number as u8);
                history.push((start, Bytes::from(vec![number as u8; len as usize])));
            }
            let (mut played, mut end) = ([0_u8; 64], 0);
            for (start, data) in newest(history.iter()) {
                assert!(start >= end, "no byte twice");
                end = start + data.len() as u64;
                played[start as usize..end as usize].copy_from_slice(&data);
            }
            assert_eq!(played, image, "{history:?}");
        }
    }
}
