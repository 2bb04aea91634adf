//! The intent log: what was acknowledged between two transaction groups.
//!
//! Each head dataset may have one log, a chain of blocks that starts in its objset. A block holds records and
//! the pointer to a successor that is already allocated, so that appending rewrites nothing. The pointer's
//! checksum words are no checksum but an identity, [`ChainWords`]: a block belongs to the chain only if its
//! embedded checksum was made with these words. The end of a log is therefore a block that does not verify.
//!
//! ```text
//!   slim (zilog2)   0 │ next 128 │ used │ magic, checksum 40 │ records …
//!   old  (zilog)    records … │ 0 │ next 128 │ used │ magic, checksum 40 │
//! ```
//!
//! Here: the header in the objset, blocks, and (in [`record`]) the records. Not here: reading the chain,
//! verifying the embedded checksum (`codec`), claim and replay.
//! Facts: docs/format/zil.md.

mod record;

pub use record::{
    Acl, Body, CreateKind, Node, Record, Records, SetAttr, Timestamp, TxType, WRITE_BYTES, WriteData,
    write_head,
};

use crate::blkptr::BlkPtr;
use crate::{Error, Order, Reader, Reason, Result, Writer};

/// Bytes of the log header, at byte 512 of an objset block.
pub const HEADER_BYTES: usize = 192;
/// Bytes of the chain structure in each log block.
pub const CHAIN_BYTES: usize = 184;
/// Smallest log block, and the unit of what is written and hashed of a slim one.
pub const BLOCK_UNIT: usize = 4096;
/// Largest log block.
pub const BLOCK_BYTES_MAX: usize = 128 << 10;
/// Magic of the embedded checksum.
pub const CHECKSUM_MAGIC: u64 = 0x0210_DA7A_B10C_7A11;

/// [`Header::flags`]: there are records to replay.
pub const FLAG_REPLAY_NEEDED: u64 = 1;
/// [`Header::flags`]: [`Header::claim_record_seq`] is valid.
pub const FLAG_CLAIM_RECORD_SEQ: u64 = 2;

const STRUCTURE: &str = "intent log header";
const BLOCK: &str = "intent log block";
const BLKPTR_BYTES: usize = 128;

/// The log header of an objset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The txg in which an import claimed the blocks; 0: never claimed.
    pub claim_txg: u64,
    /// Highest record sequence that has been replayed.
    pub replay_seq: u64,
    /// The first block; a hole means there is no log.
    pub log: BlkPtr,
    /// Highest block sequence that was claimed.
    pub claim_block_seq: u64,
    /// [`FLAG_REPLAY_NEEDED`], [`FLAG_CLAIM_RECORD_SEQ`]; other bits are kept.
    pub flags: u64,
    /// Highest record sequence that was claimed.
    pub claim_record_seq: u64,
}

impl Header {
    /// Reads the 192 bytes of the header.
    ///
    /// # Errors
    /// Too short, or a malformed block pointer.
    pub fn decode(data: &[u8], order: Order) -> Result<Self> {
        let mut reader = Reader::new(STRUCTURE, data, order);
        let [claim_txg, replay_seq] = reader.words()?;
        let log = BlkPtr::decode(reader.bytes(BLKPTR_BYTES)?, order)?;
        let [claim_block_seq, flags, claim_record_seq, _, _, _] = reader.words()?;
        Ok(Self { claim_txg, replay_seq, log, claim_block_seq, flags, claim_record_seq })
    }

    /// The 192 bytes of the header.
    #[must_use]
    pub fn encode(&self, order: Order) -> Vec<u8> {
        let mut writer = Writer::with_capacity(HEADER_BYTES, order);
        writer.words(&[self.claim_txg, self.replay_seq]);
        writer.bytes(&self.log.encode(order));
        writer.words(&[self.claim_block_seq, self.flags, self.claim_record_seq]);
        writer.pad_to(HEADER_BYTES);
        writer.finish()
    }

    /// Whether a block of this sequence may be read: a claimed log ends where the claim ended.
    #[must_use]
    pub fn admits_block(&self, sequence: u64) -> bool {
        self.claim_txg == 0 || sequence <= self.claim_block_seq
    }

    /// Whether a record of this sequence may be replayed under the claim.
    #[must_use]
    pub fn admits_record(&self, sequence: u64) -> bool {
        self.claim_txg == 0 || self.flags & FLAG_CLAIM_RECORD_SEQ == 0 || sequence <= self.claim_record_seq
    }
}

/// The identity of a log block: the checksum words of the pointer to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainWords {
    /// Random, chosen when the chain was started.
    pub chain: [u64; 2],
    /// Object number of the dataset in the MOS.
    pub objset: u64,
    /// Position in the chain, from 1.
    pub sequence: u64,
}

impl ChainWords {
    /// From a log block pointer's checksum words.
    #[must_use]
    pub const fn from_words([a, b, objset, sequence]: [u64; 4]) -> Self {
        Self { chain: [a, b], objset, sequence }
    }

    /// As checksum words: the verifier of the block's embedded checksum.
    #[must_use]
    pub const fn to_words(self) -> [u64; 4] {
        let [a, b] = self.chain;
        [a, b, self.objset, self.sequence]
    }

    /// The identity the next block must have; `None` after 2^64 blocks.
    #[must_use]
    pub const fn next(self) -> Option<Self> {
        match self.sequence.checked_add(1) {
            Some(sequence) => Some(Self { sequence, ..self }),
            None => None,
        }
    }
}

/// Where a log block keeps its chain structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// At the end; the whole block is hashed (checksum id 5, pools before version 26).
    Old,
    /// At the start; only the used 4 KiB units are written and hashed (checksum id 9).
    Slim,
}

impl Format {
    /// By the checksum id of the pointer to the block; `None` if that is no log block's.
    #[must_use]
    pub const fn from_checksum_id(id: u8) -> Option<Self> {
        match id {
            5 => Some(Self::Old),
            9 => Some(Self::Slim),
            _ => None,
        }
    }

    const fn chain_offset(self, block_bytes: usize) -> usize {
        match self {
            Self::Old => block_bytes.saturating_sub(CHAIN_BYTES),
            Self::Slim => 0,
        }
    }
}

/// A log block whose embedded checksum has been (or will be) verified by the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block<'a> {
    /// The successor: allocated, perhaps never written.
    pub next: BlkPtr,
    /// Record bytes.
    records: &'a [u8],
    order: Order,
}

impl<'a> Block<'a> {
    /// Reads the chain structure of `block`, which must be the whole allocation (or, for a slim block, at least
    /// its used part).
    ///
    /// # Errors
    /// Too short, the magic is missing, or the used length lies outside the block.
    pub fn decode(block: &'a [u8], format: Format, order: Order) -> Result<Self> {
        let mut reader = Reader::new(BLOCK, block, order);
        reader.seek(format.chain_offset(block.len()))?;
        reader.skip(8)?;
        let next = BlkPtr::decode(reader.bytes(BLKPTR_BYTES)?, order)?;
        let used_offset = reader.position();
        let used_word = reader.u64()?;
        let magic_offset = reader.position();
        let magic = reader.u64()?;
        if magic != CHECKSUM_MAGIC {
            return Err(Error::new(BLOCK, magic_offset, Reason::BadMagic { found: magic }));
        }
        let records = usize::try_from(used_word).ok().and_then(|used| match format {
            Format::Old => block.get(..used).filter(|_| used <= used_offset.saturating_sub(136)),
            Format::Slim => block.get(CHAIN_BYTES..used),
        });
        let Some(records) = records else {
            let reason = Reason::OutOfRange { field: "used bytes", value: used_word };
            return Err(Error::new(BLOCK, used_offset, reason));
        };
        Ok(Self { next, records, order })
    }

    /// Whether `next` is the successor of the block that was found with `words`. If not, the log ends here.
    #[must_use]
    pub fn continues(&self, words: ChainWords) -> bool {
        words.next().is_some_and(|next| self.next.checksum() == next.to_words())
    }

    /// The records, in order. After the first error there are no more, and the log ends there.
    #[must_use]
    pub fn records(&self) -> Records<'a> {
        Records::new(self.records, self.order)
    }

    /// The record bytes as they are.
    #[must_use]
    pub fn record_bytes(&self) -> &'a [u8] {
        self.records
    }
}

/// Makes a slim log block of `block`, in which encoded records stand from [`CHAIN_BYTES`] up to `used`: writes the
/// chain structure that names `next` before them, and zeros behind them as far as the embedded checksum covers. The
/// checksum itself is left zero for the caller. Returns how many bytes it covers: whole [`BLOCK_UNIT`]s, or all.
///
/// # Errors
/// `used` lies outside the block, or inside the chain structure.
pub fn write_chain(block: &mut [u8], next: &BlkPtr, used: usize, order: Order) -> Result<usize> {
    let hashed = used.checked_next_multiple_of(BLOCK_UNIT).unwrap_or(usize::MAX).min(block.len());
    let parts = block.get_mut(..hashed).and_then(|covered| {
        let (filled, behind) = covered.split_at_mut_checked(used)?;
        Some((filled.first_chunk_mut::<CHAIN_BYTES>()?, behind))
    });
    let Some((chain, behind)) = parts else {
        let reason = Reason::OutOfRange { field: "used bytes", value: used as u64 };
        return Err(Error::new(BLOCK, 0, reason));
    };
    // In place: each group of stable writes comes here. The first word is always zero, and so is the checksum yet.
    chain.fill(0);
    let words = [used as u64, CHECKSUM_MAGIC].map(|word| order.put_u64(word));
    let fields = next.encode(order).into_iter().chain(words.into_iter().flatten());
    chain.iter_mut().skip(8).zip(fields).for_each(|(place, byte)| *place = byte);
    behind.fill(0);
    Ok(hashed)
}
