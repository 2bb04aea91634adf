//! gzip-1…9: a zlib stream (RFC 1950), not a gzip file.
//!
//! libdeflate does both ways, about twice as fast as zlib. Its encoder's output differs from zlib's bit by bit and is as
//! valid; readers never see the level. Contexts are kept per thread: the decoder's is 11 KiB, an
//! encoder's up to 1 MiB at level 9, so only the last level used is kept.
//!
//! Facts: docs/format/compression.md, section 4.3.

use super::Corrupt;
use libdeflater::{CompressionLvl, Compressor, Decompressor};
use std::cell::RefCell;

thread_local! {
    static DECODER: RefCell<Option<Decompressor>> = const { RefCell::new(None) };
    static ENCODER: RefCell<Option<(u8, Compressor)>> = const { RefCell::new(None) };
}

pub(super) fn decompress(src: &[u8], dst: &mut [u8]) -> Result<(), Corrupt> {
    DECODER.with_borrow_mut(|decoder| {
        let decoder = decoder.get_or_insert_with(Decompressor::new);
        // Stops behind the Adler-32, so the padding is not looked at.
        match decoder.zlib_decompress(src, dst) {
            Ok(len) if len == dst.len() => Ok(()),
            _ => Err(Corrupt),
        }
    })
}

pub(super) fn compress(level: u8, src: &[u8], dst: &mut [u8]) -> Option<usize> {
    ENCODER.with_borrow_mut(|slot| {
        let fits = slot.take().filter(|(made_for, _)| *made_for == level);
        let (_, encoder) = match fits {
            Some(encoder) => slot.insert(encoder),
            None => slot.insert((level, Compressor::new(CompressionLvl::new(i32::from(level)).ok()?))),
        };
        encoder.zlib_compress(src, dst).ok()
    })
}
