//! From stored bytes to content: what a block holds once its checksum has been found right.

use bytes::Bytes;
use codec::compress;
use ondisk::blkptr::BlkPtr;

use crate::{cache::EXACT_BELOW, error::BlockErrorKind};

/// Whether a block is stored in another form than its content.
pub(super) fn is_compressed(bp: &BlkPtr) -> bool {
    bp.compression_id() != compress::Algorithm::Off.id()
}

/// Zero bytes, without allocating for the usual sizes.
pub(super) fn zeroes(len: u64) -> Bytes {
    static ZEROES: [u8; 128 << 10] = [0; 128 << 10];
    match usize::try_from(len) {
        Ok(len) if len <= ZEROES.len() => Bytes::from_static(&ZEROES[..len]),
        // A block pointer holds at most 32 MiB.
        _ => Bytes::from(vec![0; len.min(32 << 20) as usize]),
    }
}

/// The content of verified stored bytes.
pub(crate) fn decompress(bp: &BlkPtr, raw: Bytes) -> Result<Bytes, BlockErrorKind> {
    let malformed = |what: String| BlockErrorKind::Malformed(what);
    let id = bp.compression_id();
    let algorithm =
        compress::Algorithm::from_id(id).ok_or_else(|| malformed(format!("compression id {id}")))?;
    let lsize = bp.lsize() as usize;
    if algorithm == compress::Algorithm::Off {
        if raw.len() == lsize {
            return Ok(raw);
        }
        return Err(malformed(format!("{} stored bytes for {lsize} uncompressed", raw.len())));
    }
    if lsize < EXACT_BELOW && !disk::has_slots(lsize) {
        // It may be kept for long, and is to waste nothing.
        let mut content = vec![0; lsize];
        compress::decompress(algorithm, &raw, &mut content).map_err(|error| malformed(error.to_string()))?;
        return Ok(content.into());
    }
    let mut content = disk::IoBuf::with_len(lsize);
    compress::decompress(algorithm, &raw, &mut content).map_err(|error| malformed(error.to_string()))?;
    Ok(content.freeze())
}
