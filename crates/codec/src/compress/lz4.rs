//! lz4: a big-endian 32-bit length, then that many bytes of one raw LZ4 block.
//!
//! liblz4 does both ways (it is the reference the speed is measured against, and its decoder is bounded
//! by both buffers). Facts: docs/format/compression.md, section 4.4.

use super::Corrupt;

const PREFIX: usize = 4;

pub(super) fn decompress(src: &[u8], dst: &mut [u8]) -> Result<(), Corrupt> {
    let (prefix, rest) = src.split_first_chunk::<PREFIX>().ok_or(Corrupt)?;
    let len = usize::try_from(u32::from_be_bytes(*prefix)).map_err(|_| Corrupt)?;
    let block = rest.get(..len).ok_or(Corrupt)?;
    let lsize = i32::try_from(dst.len()).map_err(|_| Corrupt)?;
    match lz4::block::decompress_to_buffer(block, Some(lsize), dst) {
        Ok(len) if len == dst.len() => Ok(()),
        _ => Err(Corrupt),
    }
}

pub(super) fn compress(src: &[u8], dst: &mut [u8]) -> Option<usize> {
    let (prefix, block) = dst.split_first_chunk_mut::<PREFIX>()?;
    let len = lz4::block::compress_to_buffer(src, None, false, block).ok()?;
    *prefix = u32::try_from(len).ok()?.to_be_bytes();
    Some(PREFIX + len)
}
