//! zstd and zstd-fast: an 8-byte header, then one frame without magic number, content size or checksum.
//!
//! ```text
//! 0            4       5               8
//! │ length, BE │ level │ version, BE   │ frame …
//! ```
//! A big-endian writer may have put the version first and the level last: its first byte is zero, which no
//! level is. The version is that of the library that compressed, for people; no reader needs it.
//!
//! Contexts are kept per thread, because making one costs more than a small block. A decoder is 100 KiB
//! and writes into the caller's buffer, whatever window the frame asks for. An encoder that grew beyond
//! [`ENCODER_KEPT`] on a large block is dropped again.
//!
//! Facts: docs/format/compression.md, section 4.5.

use super::{Corrupt, Level, lz4};
use std::cell::RefCell;
use zstd_safe::{CCtx, CParameter, DCtx, DParameter, FrameFormat};

const HEADER: usize = 8;
/// Bytes of encoder state a thread may keep between blocks.
const ENCODER_KEPT: usize = 8 << 20;
/// From this level and length on, cheap compressors are tried first.
const ABORT_LEVEL: i32 = 3;
const ABORT_LEN: usize = 128 << 10;

thread_local! {
    static DECODER: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
    static ENCODER: RefCell<Option<CCtx<'static>>> = const { RefCell::new(None) };
}

pub(super) fn decompress(src: &[u8], dst: &mut [u8]) -> Result<(), Corrupt> {
    let (header, rest) = src.split_first_chunk::<HEADER>().ok_or(Corrupt)?;
    let &[l0, l1, l2, l3, first, second, _, last] = header;
    let code = match (first, second) {
        (code, 0) => code,
        (0, _) => last,
        _ => return Err(Corrupt),
    };
    Level::from_code(code).ok_or(Corrupt)?;
    let len = usize::try_from(u32::from_be_bytes([l0, l1, l2, l3])).map_err(|_| Corrupt)?;
    let frame = rest.get(..len).ok_or(Corrupt)?;
    DECODER.with_borrow_mut(|slot| {
        let decoder = match slot {
            Some(decoder) => decoder,
            None => slot.insert(new_decoder().ok_or(Corrupt)?),
        };
        match decoder.decompress(dst, frame) {
            Ok(len) if len == dst.len() => Ok(()),
            _ => Err(Corrupt),
        }
    })
}

fn new_decoder() -> Option<DCtx<'static>> {
    let mut decoder = DCtx::try_create()?;
    decoder.set_parameter(DParameter::Format(FrameFormat::Magicless)).ok()?;
    Some(decoder)
}

pub(super) fn compress(level: Level, src: &[u8], dst: &mut [u8]) -> Option<usize> {
    // Most large blocks that do not shrink at all are found out by lz4 at a tenth of the time; those it
    // finds hopeless get a second opinion from zstd-1 before they are given up.
    if level.zstd() >= ABORT_LEVEL
        && src.len() >= ABORT_LEN
        && lz4::compress(src, dst).is_none()
        && frame(1, src, dst.get_mut(HEADER..)?).is_none()
    {
        return None;
    }
    let (header, room) = dst.split_first_chunk_mut::<HEADER>()?;
    let len = frame(level.zstd(), src, room)?;
    let [l0, l1, l2, l3] = u32::try_from(len).ok()?.to_be_bytes();
    let [_, v1, v2, v3] = zstd_safe::version_number().to_be_bytes();
    *header = [l0, l1, l2, l3, level.code(), v1, v2, v3];
    Some(HEADER + len)
}

/// One bare frame of `src`.
fn frame(level: i32, src: &[u8], dst: &mut [u8]) -> Option<usize> {
    ENCODER.with_borrow_mut(|slot| {
        let mut encoder = match slot.take() {
            Some(encoder) => encoder,
            None => new_encoder()?,
        };
        encoder.set_parameter(CParameter::CompressionLevel(level)).ok()?;
        let len = encoder.compress2(dst, src).ok();
        if encoder.sizeof() <= ENCODER_KEPT {
            *slot = Some(encoder);
        }
        len
    })
}

fn new_encoder() -> Option<CCtx<'static>> {
    let mut encoder = CCtx::try_create()?;
    encoder.set_parameter(CParameter::Format(FrameFormat::Magicless)).ok()?;
    encoder.set_parameter(CParameter::ContentSizeFlag(false)).ok()?;
    encoder.set_parameter(CParameter::ChecksumFlag(false)).ok()?;
    Some(encoder)
}
