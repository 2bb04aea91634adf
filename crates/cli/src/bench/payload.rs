//! What is written: a few mebibytes made once, of which every block takes a piece and a word of its own.
//!
//! `text` looks like the pages of a database of orders. A block of 8 KiB of it compresses to about 0.4 with lz4
//! and to 0.25 with zstd. Every 4 KiB carry a word that no other block has, so nothing can be shared or skipped.

use std::{fmt::Write as _, sync::Arc};

use bytes::{BufMut as _, Bytes};
use server::disk::Landing;

const POOL_BYTES: usize = 8 << 20;
/// So many bytes have a word of their own.
const PAGE: usize = 4096;

/// Words of the rows: short phrases that come again and again, as in any table.
const PHRASES: [&str; 32] = [
    "standard delivery",
    "express delivery",
    "collected in person",
    "left with neighbour",
    "second attempt",
    "paid by transfer",
    "paid by card",
    "payment overdue",
    "reminder sent",
    "written off",
    "line cancelled",
    "replaced under warranty",
    "stock transfer",
    "packed and labelled",
    "weighed and sealed",
    "in transit",
    "customs cleared",
    "held at depot",
    "arrived at branch",
    "signed by recipient",
    "credit applied",
    "discount granted",
    "price adjusted",
    "back order",
    "partly fulfilled",
    "fulfilled",
    "archived",
    "Mühlweg 4",
    "Uferstrasse 17",
    "Am Weiher 9",
    "Bahnhofplatz 1",
    "Seegasse 23",
];

/// Where blocks are taken from.
#[derive(Clone, Debug)]
pub(super) struct Pool(Arc<Vec<u8>>);

/// A generator of numbers that is good enough for bytes, and the same everywhere.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d)
}

impl Pool {
    pub(super) fn text() -> Self {
        let mut state = 0x6d69_6c6c_706f_6e64;
        let mut text = String::with_capacity(POOL_BYTES + 512);
        let mut number = 4_000_000_u64;
        while text.len() < POOL_BYTES {
            let (a, b) = (next(&mut state), next(&mut state));
            let phrase = |shift: u32| PHRASES[(a >> shift) as usize % PHRASES.len()];
            number += 1 + (b >> 60);
            let _infallible = writeln!(
                text,
                "{number};{};{};{:05}-{:03x};{};{};{}.{:02};2026-11-{:02};{};{}",
                phrase(59),
                phrase(39),
                b % 100_000,
                (b >> 17) & 0xfff,
                phrase(54),
                phrase(49),
                (a >> 10) % 1000,
                (a >> 20) % 100,
                1 + (b >> 37) % 28,
                phrase(44),
                phrase(34),
            );
        }
        Self(Arc::new(text.into_bytes()))
    }

    pub(super) fn random() -> Self {
        let mut state = 0x706f_6e64_6d69_6c6c;
        let words = std::iter::repeat_with(|| next(&mut state).to_le_bytes());
        Self(Arc::new(words.take(POOL_BYTES / 8).flatten().collect()))
    }

    /// What any compression reduces to almost nothing, and what benchmarks that do not say so often write.
    pub(super) fn repeat() -> Self {
        let line = b"the same line again and again, as no database has it, 64 bytes.\n";
        Self(Arc::new(line.iter().copied().cycle().take(POOL_BYTES).collect()))
    }

    /// A block of `len` bytes that differs from that of every other `tag`, in memory like that where the targets receive.
    pub(super) fn block(&self, len: usize, tag: u64) -> Bytes {
        let mut state = tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut at = next(&mut state) as usize % self.0.len();
        let mut block = Landing::new(len);
        for number in 0..len.div_ceil(PAGE) as u64 {
            let word = tag.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(number).to_le_bytes();
            let mut left = block.remaining_mut().min(PAGE);
            block.put_slice(word.get(..left).unwrap_or(&word));
            left = left.saturating_sub(word.len());
            at = (at + word.len()) % self.0.len();
            while left > 0 {
                let piece = self.0.get(at..self.0.len().min(at + left)).unwrap_or_default();
                block.put_slice(piece);
                (at, left) = ((at + piece.len()) % self.0.len(), left - piece.len());
            }
        }
        block.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_blocks_are_alike_and_every_one_has_its_length() {
        let pool = Pool::text();
        let blocks: Vec<Bytes> = (0..1000).map(|tag| pool.block(5000, tag)).collect();
        assert!(blocks.iter().all(|block| block.len() == 5000));
        let mut heads: Vec<&[u8]> = blocks.iter().map(|block| &block[..8]).collect();
        heads.sort_unstable();
        heads.dedup();
        assert_eq!(heads.len(), 1000);
        assert_eq!(Pool::random().block(20 << 20, 7).len(), 20 << 20, "longer than the pool");
        let same = Pool::repeat();
        assert_ne!(same.block(4096, 1), same.block(4096, 2), "even so");
    }
}
