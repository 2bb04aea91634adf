//! The write policy of a dataset: what its properties, and those it inherits, say about new blocks.
//!
//! Facts: docs/format/zvol.md §2, compression.md §1, checksums.md.

use codec::{
    checksum,
    compress::{self, Level},
};

use super::{attributes, dir};
use crate::{
    BoxFuture, EngineError,
    mos::features,
    policy::{Compression, SetPolicy},
    sync::Syncer,
};

/// The word `on` as a number, and "not set".
const ON: u64 = 1;
/// Bits of the compression property that name the algorithm.
const ALGORITHM_BITS: u32 = 7;
/// `redundant_metadata=none`.
const NO_REDUNDANCY: u64 = 3;

/// The value of a property that is inherited: set here or at the next directory above that has it.
pub(super) async fn inherited(cx: &mut Syncer, dir: u64, name: &str) -> Result<Option<u64>, EngineError> {
    let mut at = dir;
    for _ in 0..pool::dsl::name::BYTES_MAX {
        if at == 0 {
            return Ok(None);
        }
        let phys = dir::load(&mut cx.mos, at).await?;
        if let Some(value) = dir::own_number(&mut cx.mos, phys.props, name).await? {
            return Ok(Some(value));
        }
        at = phys.parent;
    }
    Err(dir::inconsistent(dir, "the directories above it form a loop"))
}

/// The effective write policy of a dataset: its properties and those it inherits. What the pool has no feature for
/// counts as `on`.
pub fn policy(cx: &mut Syncer, dir: u64) -> BoxFuture<'_, Result<SetPolicy, EngineError>> {
    Box::pin(async move {
        let lz4 = cx.out.traits().lz4;
        let metadata_compression = SetPolicy::mos(&cx.out.traits()).metadata_compression;
        let compression = inherited(cx, dir, "compression").await?.unwrap_or(ON);
        let compression = match compression_of(compression) {
            Some(chosen) if is_possible(cx, attributes::of_compression(chosen.algorithm.id())).await? => {
                let needs_lz4 = chosen.algorithm == compress::Algorithm::Lz4 && !lz4;
                if needs_lz4 { metadata_compression } else { chosen }
            }
            _ => metadata_compression,
        };
        let checksum = inherited(cx, dir, "checksum").await?.unwrap_or(ON);
        let checksum = match u8::try_from(checksum).ok().and_then(checksum::Algorithm::from_id) {
            Some(chosen)
                if !chosen.is_embedded() && is_possible(cx, attributes::of_checksum(chosen.id())).await? =>
            {
                chosen
            }
            _ => checksum::Algorithm::Fletcher4,
        };
        let copies = inherited(cx, dir, "copies").await?.unwrap_or(1).clamp(1, 3) as u8;
        let redundancy = inherited(cx, dir, "redundant_metadata").await?.unwrap_or(0);
        let metadata_copies = if redundancy == NO_REDUNDANCY { copies } else { (copies + 1).min(3) };
        Ok(SetPolicy {
            checksum,
            compression,
            copies,
            metadata_checksum: metadata_checksum(checksum),
            metadata_compression,
            metadata_copies,
        })
    })
}

/// Algorithm and level of a value of the compression property; none for `on` and for values nobody knows.
fn compression_of(value: u64) -> Option<Compression> {
    let algorithm = compress::Algorithm::from_id((value & ((1 << ALGORITHM_BITS) - 1)) as u8)?;
    if matches!(algorithm, compress::Algorithm::Empty) {
        return None;
    }
    let level = u8::try_from(value >> ALGORITHM_BITS).ok().and_then(Level::from_code);
    Some(Compression { algorithm, level: level.unwrap_or(Level::DEFAULT) })
}

/// Metadata is never without a checksum, and never with a weak one.
fn metadata_checksum(data: checksum::Algorithm) -> checksum::Algorithm {
    use checksum::Algorithm::{Blake3, EdonR, Fletcher4, Sha256, Sha512, Skein};
    match data {
        strong @ (Sha256 | Sha512 | Skein | EdonR | Blake3) => strong,
        _ => Fletcher4,
    }
}

/// Whether the pool can have blocks that need this feature.
pub(super) async fn is_possible(cx: &mut Syncer, feature: Option<&str>) -> Result<bool, EngineError> {
    match feature {
        None => Ok(true),
        Some(guid) => Ok(features::count(&mut cx.mos, guid).await?.is_some()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compression_property_carries_a_level() {
        let of = |value| compression_of(value).map(|c| (c.algorithm, c.level.code()));
        assert_eq!(of(1), None);
        assert_eq!(of(2), Some((compress::Algorithm::Off, 3)));
        assert_eq!(of(15), Some((compress::Algorithm::Lz4, 3)));
        assert_eq!(of(16), Some((compress::Algorithm::Zstd, 3)));
        assert_eq!(of(16 | 255 << 7), Some((compress::Algorithm::Zstd, 3)));
        assert_eq!(of(16 | 19 << 7), Some((compress::Algorithm::Zstd, 19)));
        assert_eq!(of(99), None);
    }

    #[test]
    fn metadata_always_has_a_checksum() {
        use checksum::Algorithm;
        assert_eq!(metadata_checksum(Algorithm::Off), Algorithm::Fletcher4);
        assert_eq!(metadata_checksum(Algorithm::Fletcher2), Algorithm::Fletcher4);
        assert_eq!(metadata_checksum(Algorithm::Sha256), Algorithm::Sha256);
    }
}
