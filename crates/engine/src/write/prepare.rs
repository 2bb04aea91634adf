//! What a block becomes before anybody knows where it will lie: a hole, a few bytes inside its pointer, or stored
//! bytes with their checksum.
//!
//! Pure, and by far most of the processor time of a transaction group, so it is what runs on worker threads.
//! Facts: docs/format/compression.md §2, docs/format/checksums.md §1.

use std::cell::RefCell;

use bytes::Bytes;
use codec::{checksum, compress};
use ondisk::{
    Order,
    blkptr::{BLOCK_BYTES_MAX, BlkPtr},
    dnode::ObjectType,
};

use super::Job;
use crate::EngineError;

/// What the pool says about all blocks of a transaction group.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    /// Smallest stored size, bytes.
    pub(crate) min_alloc: usize,
    /// Greatest common divisor of stored sizes that waste nothing, bytes.
    pub(crate) gcd_alloc: usize,
    /// Small blocks may live in their pointer.
    pub(crate) embedded_data: bool,
    /// Key of salted checksums.
    pub(crate) salt: Option<checksum::Salt>,
    /// The transaction group.
    pub(crate) txg: u64,
}

impl Rules {
    /// Whether the same block comes out of the same content, whatever the transaction group.
    pub(crate) fn agree(&self, other: &Self) -> bool {
        let Self { min_alloc, gcd_alloc, embedded_data, salt, txg: _ } = self;
        (*min_alloc, *gcd_alloc, *embedded_data) == (other.min_alloc, other.gcd_alloc, other.embedded_data)
            && *salt == other.salt
    }
}

/// A block ready to be placed.
#[derive(Clone, Debug)]
pub(crate) enum Prepared {
    /// All zeroes.
    Hole,
    /// It fits into its pointer.
    Embedded(Box<BlkPtr>),
    /// It has been at its place for a while.
    Written(Box<BlkPtr>),
    /// To be stored.
    Stored {
        /// What goes to the devices: psize bytes, padding included.
        data: Bytes,
        /// How it is compressed.
        compression: compress::Algorithm,
        /// Over `data`.
        checksum: [u64; 4],
    },
}

thread_local! {
    /// Where compressors write, because how long the result is becomes known only afterwards.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Largest scratch memory a thread keeps between blocks: the largest block most pools have.
const SCRATCH_KEPT: usize = 1 << 20;

/// Turns content into what is stored. `reuse` is the stored size of the place the block has already, if it should
/// be used again: then the result has that size if it can, and is not compressed at all if it cannot, so that it
/// will never grow again.
pub(crate) fn prepare(job: &Job, reuse: Option<usize>, rules: &Rules) -> Result<Prepared, EngineError> {
    if let Some(bp) = &job.written {
        return Ok(Prepared::Written(bp.clone()));
    }
    let content = &job.content;
    let lsize = content.len();
    if lsize == 0 || !lsize.is_multiple_of(512) || lsize as u64 > BLOCK_BYTES_MAX {
        return Err(EngineError::Encode {
            what: "block",
            detail: format!("block {} has {lsize} bytes, no multiple of 512 up to 16 MiB", job.at),
        });
    }
    let algorithm = job.policy.compression.algorithm;
    if algorithm == compress::Algorithm::Off {
        if let Some(checksum) = job.known_sum() {
            debug_assert_eq!(
                Ok(checksum),
                sum(job.policy.checksum, content, None).map_err(drop),
                "block {}",
                job.at
            );
            return Ok(Prepared::Stored { data: content.clone(), compression: algorithm, checksum });
        }
        return stored(job, content.clone(), algorithm, rules);
    }
    if compress::is_all_zero(content) {
        return Ok(Prepared::Hole);
    }
    let compressed = match reuse {
        // The place has room for the plain block, so nothing is won by compressing it.
        Some(place) if place >= lsize => None,
        Some(place) => squeeze(job, place, |stream| pad(stream, place)),
        None => {
            let limit = compress::limit(algorithm, lsize, rules.min_alloc, rules.gcd_alloc);
            let may_embed = rules.embedded_data && is_embeddable(job);
            match squeeze(job, limit, |stream| shape(stream, lsize, may_embed, rules)) {
                Some(Shaped::Embed(payload)) => {
                    return embed(job, &payload, rules);
                }
                Some(Shaped::Store(data)) => Some(data),
                Some(Shaped::Plain) | None => None,
            }
        }
    };
    match compressed {
        Some(data) => stored(job, data, algorithm, rules),
        None => stored(job, content.clone(), compress::Algorithm::Off, rules),
    }
}

impl Job {
    /// Its checksum, if that is known already and the block is stored as it is.
    pub(super) fn known_sum(&self) -> Option<[u64; 4]> {
        let is_plain = self.policy.compression.algorithm == compress::Algorithm::Off;
        self.sum.filter(|sum| is_plain && sum.algorithm == self.policy.checksum).map(|sum| sum.words)
    }
}

/// What to do with a compressed stream.
enum Shaped {
    Embed(Bytes),
    Store(Bytes),
    /// Padded, it saves nothing.
    Plain,
}

fn shape(stream: &[u8], lsize: usize, may_embed: bool, rules: &Rules) -> Shaped {
    if may_embed && stream.len() <= compress::EMBEDDED_MAX {
        return Shaped::Embed(Bytes::copy_from_slice(stream));
    }
    let psize = if stream.len() <= rules.min_alloc {
        rules.min_alloc
    } else {
        stream.len().next_multiple_of(rules.gcd_alloc.max(512))
    };
    if psize >= lsize { Shaped::Plain } else { Shaped::Store(pad(stream, psize)) }
}

fn pad(stream: &[u8], psize: usize) -> Bytes {
    let mut data = Vec::with_capacity(psize);
    data.extend_from_slice(stream);
    data.resize(psize, 0);
    data.into()
}

/// Compresses into at most `limit` bytes and passes the stream on; `None` if it does not fit.
fn squeeze<T>(job: &Job, limit: usize, then: impl FnOnce(&[u8]) -> T) -> Option<T> {
    let compression = job.policy.compression;
    SCRATCH.with_borrow_mut(|scratch| {
        if scratch.len() < limit {
            scratch.resize(limit, 0);
        }
        let len =
            compress::compress(compression.algorithm, compression.level, &job.content, &mut scratch[..limit]);
        let result = len.map(|len| then(&scratch[..len]));
        if scratch.len() > SCRATCH_KEPT {
            *scratch = Vec::new();
        }
        result
    })
}

/// Blocks whose pointer has to say more than an embedded one can are never embedded.
fn is_embeddable(job: &Job) -> bool {
    job.level == 0 && job.object_type != ObjectType::DNODE && job.object_type != ObjectType::OBJSET
}

fn embed(job: &Job, payload: &[u8], rules: &Rules) -> Result<Prepared, EngineError> {
    BlkPtr::embed(
        payload,
        job.content.len() as u64,
        job.policy.compression.algorithm.id(),
        job.object_type,
        Order::Little,
        rules.txg,
    )
    .map(|bp| Prepared::Embedded(Box::new(bp)))
    .map_err(EngineError::encode("embedded block"))
}

fn stored(
    job: &Job,
    data: Bytes,
    compression: compress::Algorithm,
    rules: &Rules,
) -> Result<Prepared, EngineError> {
    let checksum = sum(job.policy.checksum, &data, rules.salt.as_ref())?;
    Ok(Prepared::Stored { data, compression, checksum })
}

/// The checksum words of stored bytes.
pub(crate) fn sum(
    algorithm: checksum::Algorithm,
    data: &[u8],
    salt: Option<&checksum::Salt>,
) -> Result<[u64; 4], EngineError> {
    checksum::compute(algorithm, codec::Order::Little, salt, data)
        .map(|sum| sum.0)
        .map_err(|error| EngineError::Encode { what: "checksum", detail: error.to_string() })
}
