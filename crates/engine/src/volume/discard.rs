//! Discards: a range becomes holes in pieces that each free a bounded number of blocks.
//!
//! ```text
//!   range ─▶ what the committed tree says is there ─▶ piece: up to 16384 blocks ─▶ its price in dirty data
//!     ▲                                                                                   │
//!     └────────── the rest, as soon as there is room: in this transaction group or a later one
//! ```
//!
//! A freed block costs memory until its group is durable, and the length of a range says nothing of how many there are:
//! sparse volumes are discarded by the exabyte, full ones by the disk. Holes cost nothing and end no piece. What is dirty
//! in memory is not counted: it was paid for when it was written, at a higher price. What becomes a hole already, and is not
//! committed, is passed over: the committed tree still has all of it, and it would be paid for once more.

use std::ops::Range;

use block::VolumeError;

use super::{
    FREED_BLOCK_BYTES, LiveVolume,
    memory::Run,
    piece::{Cut, Piece, Zeroes},
    read::RETRIES,
};
use crate::dmu::{self, Portion};

/// Blocks that one piece frees, at most: 4 MiB at the price of a freed block.
const PIECE_WEIGHT: u64 = 16 << 10;

/// The part of what may be dirty that one piece has, as long as it frees more than hardly any blocks: it waits for room
/// beside writers, who leave less of it the more there is.
const PART: u64 = 8;

/// Hardly any.
const FEW: u64 = 64;

impl LiveVolume {
    /// Makes a range of bytes zeroes, piece by piece.
    ///
    /// # Errors
    /// What is there cannot be read: nobody could free it, so it is better said to the client. And those of a write.
    pub(super) async fn become_zeroes(
        &self,
        cut: &Cut<'_>,
        bytes: Range<u64>,
        what: Zeroes,
    ) -> Result<(), VolumeError> {
        let Range { start: mut at, end } = bytes;
        while at < end {
            // As long as there is room nothing waits, however much is to become zeroes.
            tokio::task::coop::consume_budget().await;
            if let Some(until) = self.end_of_holes(at, end).filter(|_| what != Zeroes::Store) {
                at = until;
                continue;
            }
            let (piece, until) = self.next_zeroes(cut, at, end, what).await?;
            if !piece.is_empty() {
                self.apply(piece).await?;
            }
            at = until;
        }
        Ok(())
    }

    /// Where the whole blocks end that begin at byte `at`, are below `end`, and are holes in memory; none if the first is not.
    fn end_of_holes(&self, at: u64, end: u64) -> Option<u64> {
        let (first, last) = (at / self.block, end / self.block);
        if !at.is_multiple_of(self.block) || first == last {
            return None;
        }
        match self.memory.read().run(first, last) {
            Run::Hole(blocks) => Some(blocks.end * self.block),
            Run::Data(..) | Run::Clean(_) => None,
        }
    }

    /// The first piece of bytes `at..end` becoming zeroes, and where it ends.
    async fn next_zeroes(
        &self,
        cut: &Cut<'_>,
        at: u64,
        end: u64,
        what: Zeroes,
    ) -> Result<(Piece, u64), VolumeError> {
        if what == Zeroes::Store {
            let until = cut.end_of_piece(at, end);
            return Ok((cut.zero(at, until, what), until));
        }
        let whole = at.div_ceil(self.block)..end / self.block;
        if whole.is_empty() {
            return Ok((cut.zero(at, end, what), end));
        }
        let Portion { end: last, weight } = self.txgs.as_long_as_taken(self.portion(whole.clone())).await?;
        let until = if last == whole.end { end } else { last * self.block };
        let mut piece = cut.zero(at, until, what);
        piece.weight = weight;
        piece.is_reached = true;
        Ok((piece, until))
    }

    /// The part of a range of blocks that makes a piece, by what is committed; its pointers can be read.
    async fn portion(&self, blocks: Range<u64>) -> Result<Portion, VolumeError> {
        let mut tries = 0;
        let most = (self.txgs.limits().dirty_max / PART / FREED_BLOCK_BYTES).clamp(FEW, PIECE_WEIGHT);
        loop {
            let current = self.current.load_full();
            match dmu::portion(current.patient.data(), blocks.clone(), most).await {
                Ok(portion) => return Ok(portion),
                Err(_) if tries < RETRIES && self.current.load().generation != current.generation => {
                    tries += 1
                }
                Err(error) => {
                    let offset = blocks.start.saturating_mul(self.block);
                    return Err(VolumeError::Unreadable { offset, detail: error.to_string() });
                }
            }
        }
    }
}
