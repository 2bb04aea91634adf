//! How blocks are to be written: what the pool's features allow, and what a dataset's properties ask for.

use codec::{checksum, compress};
use ondisk::dnode::ObjectType;

/// What the pool's enabled features allow a writer to write. Facts: docs/format/features.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traits {
    /// Metadata is lz4 (else lzjb).
    pub lz4: bool,
    /// Small blocks may live in their pointer.
    pub embedded_data: bool,
    /// Punched holes carry their birth.
    pub hole_birth: bool,
    /// Space maps may have two-word entries.
    pub spacemap_v2: bool,
    /// Space maps have the long bonus, and are counted.
    pub spacemap_histogram: bool,
    /// Changes of metaslabs are logged pool-wide. Never enabled by us; kept up on pools that have it.
    pub log_spacemap: bool,
    /// Empty lists of block pointers may share one object.
    pub empty_bpobj: bool,
    /// DSL objects may carry attributes.
    pub extensible_dataset: bool,
    /// `com.delphix:async_destroy` is enabled.
    pub async_destroy: bool,
    /// bpobj bonuses are 56 bytes (feature `livelist` active).
    pub livelist: bool,
}

/// Compression of new blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compression {
    /// How.
    pub algorithm: compress::Algorithm,
    /// How hard; only zstd has levels here.
    pub level: compress::Level,
}

/// What new blocks of one object set are to be like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetPolicy {
    /// Of data.
    pub checksum: checksum::Algorithm,
    /// Of data.
    pub compression: Compression,
    /// Copies of data, 1–3.
    pub copies: u8,
    /// Of metadata: fletcher4, or the dataset's if that is stronger.
    pub metadata_checksum: checksum::Algorithm,
    /// Of metadata: lz4, or lzjb on pools without it.
    pub metadata_compression: Compression,
    /// Copies of metadata: of the MOS 3, of datasets `copies + 1`, at most 3.
    pub metadata_copies: u8,
}

/// What one block is to be like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPolicy {
    /// Checksum.
    pub checksum: checksum::Algorithm,
    /// Compression.
    pub compression: Compression,
    /// Copies, 1–3.
    pub copies: u8,
    /// It is metadata, so zero-filled blocks are stored even when they are all zero if `compression` is off.
    pub metadata: bool,
}

impl SetPolicy {
    /// What the MOS is written with.
    #[must_use]
    pub fn mos(traits: &Traits) -> Self {
        let algorithm = if traits.lz4 { compress::Algorithm::Lz4 } else { compress::Algorithm::Lzjb };
        let compression = Compression { algorithm, level: compress::Level::DEFAULT };
        Self {
            checksum: checksum::Algorithm::Fletcher4,
            compression,
            copies: 3,
            metadata_checksum: checksum::Algorithm::Fletcher4,
            metadata_compression: compression,
            metadata_copies: 3,
        }
    }

    /// The same with so many copies of data at most.
    #[must_use]
    pub fn with_copies_up_to(self, max: Option<u8>) -> Self {
        let max = max.unwrap_or(3);
        let metadata_copies = self.metadata_copies.min(max + 1);
        Self { copies: self.copies.min(max), metadata_copies, ..self }
    }

    /// The policy for a block of `object_type` at `level`. `checksum_id` and `compression_id` are the dnode's
    /// own wishes, 0 for none.
    #[must_use]
    pub fn block(
        &self,
        object_type: ObjectType,
        level: u8,
        checksum_id: u8,
        compression_id: u8,
    ) -> BlockPolicy {
        let metadata = level > 0 || object_type.is_metadata();
        let (mut checksum, mut compression, copies) = if metadata {
            (self.metadata_checksum, self.metadata_compression, self.metadata_copies)
        } else {
            (self.checksum, self.compression, self.copies)
        };
        if let Some(own) = Some(checksum_id).filter(|id| *id > 1).and_then(checksum::Algorithm::from_id) {
            checksum = own;
        }
        if let Some(own) = Some(compression_id).filter(|id| *id > 1).and_then(compress::Algorithm::from_id)
            && level == 0
        {
            compression.algorithm = own;
        }
        BlockPolicy { checksum, compression, copies, metadata }
    }
}

/// What pools have that everything is enabled on.
#[cfg(test)]
pub(crate) const TRAITS: Traits = Traits {
    lz4: true,
    embedded_data: true,
    hole_birth: true,
    spacemap_v2: true,
    spacemap_histogram: true,
    log_spacemap: false,
    empty_bpobj: true,
    extensible_dataset: true,
    async_destroy: true,
    livelist: false,
};
