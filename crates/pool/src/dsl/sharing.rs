//! What deduplication and block cloning save, from the sums that the pool keeps of its tables.
//!
//! Facts: docs/format/mos.md §1, docs/format/blkptr.md §5.

use ondisk::{
    brt::{DIRECTORY_PREFIX, VdevTable},
    zap::OwnedKey,
};

use crate::{
    BoxFuture,
    dmu::{ObjectSet, ReadError},
    zap::Zap,
};

/// Words of one row of a dedup histogram: blocks and logical, physical and deflated size as stored, then the same as
/// referenced.
const ROW: usize = 8;
/// Deflated size as stored, and as referenced.
const STORED: usize = 3;
const REFERENCED: usize = 7;

/// Bytes shared in a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sharing {
    /// What deduplicated blocks take.
    pub dedup_stored: u64,
    /// What they would take if each reference had its own copy.
    pub dedup_referenced: u64,
    /// What the dedup tables themselves take.
    pub dedup_table: u64,
    /// What cloned blocks take.
    pub clone_used: u64,
    /// What further copies of them would take.
    pub clone_saved: u64,
}

impl Sharing {
    /// Space that counts as used in datasets and is not.
    #[must_use]
    pub fn saved(&self) -> u64 {
        self.dedup_referenced.saturating_sub(self.dedup_stored).saturating_add(self.clone_saved)
    }

    /// Referenced to stored in hundredths, for deduplicated blocks.
    #[must_use]
    pub fn dedup_ratio(&self) -> u64 {
        hundredths(self.dedup_referenced, self.dedup_stored)
    }

    /// The same for cloned blocks.
    #[must_use]
    pub fn clone_ratio(&self) -> u64 {
        hundredths(self.clone_used.saturating_add(self.clone_saved), self.clone_used)
    }

    /// Reads the sums of a pool.
    ///
    /// # Errors
    /// A table's header or the statistics cannot be read.
    pub fn read<'a>(mos: &'a ObjectSet, directory: &'a Zap) -> BoxFuture<'a, Result<Self, ReadError>> {
        Box::pin(async move {
            let mut sharing = Self::default();
            let mut entries = directory.entries();
            while let Some((key, value)) = entries.next().await? {
                let OwnedKey::Name(name) = key else { continue };
                let (Ok(name), Some(object)) = (std::str::from_utf8(&name), value.as_u64()) else { continue };
                if name == "DDT-statistics" {
                    sharing.add_histograms(mos, object).await?;
                } else if name.starts_with("DDT-") {
                    sharing.add_table(mos, name, object).await?;
                } else if name.starts_with(DIRECTORY_PREFIX) {
                    let found = mos.dnode(object).await?;
                    let at = crate::Bookmark { object, ..crate::Bookmark::default() };
                    let table = VdevTable::decode(&found.dnode.bonus, found.order)
                        .map_err(ReadError::malformed(at))?;
                    sharing.clone_used = sharing.clone_used.saturating_add(table.used_bytes);
                    sharing.clone_saved = sharing.clone_saved.saturating_add(table.saved_bytes);
                }
            }
            Ok(sharing)
        })
    }

    async fn add_histograms(&mut self, mos: &ObjectSet, object: u64) -> Result<(), ReadError> {
        let zap = Zap::open_in(mos, object).await?;
        let mut entries = zap.entries();
        while let Some((_, value)) = entries.next().await? {
            let words: Vec<u64> = value.integers().collect();
            for row in words.as_chunks::<ROW>().0 {
                self.dedup_stored = self.dedup_stored.saturating_add(row[STORED]);
                self.dedup_referenced = self.dedup_referenced.saturating_add(row[REFERENCED]);
            }
        }
        Ok(())
    }

    /// A table, or (since 2.3) a directory of the tables and logs of one checksum.
    async fn add_table(&mut self, mos: &ObjectSet, name: &str, object: u64) -> Result<(), ReadError> {
        let mut tables = vec![object];
        if !name.contains("-zap-") {
            let directory = Zap::open_in(mos, object).await?.numbers().await?;
            tables =
                directory.into_iter().filter(|(name, _)| name.contains("-zap-")).map(|(_, id)| id).collect();
        }
        for table in tables {
            let used = mos.dnode(table).await?.dnode.used_bytes().unwrap_or(0);
            self.dedup_table = self.dedup_table.saturating_add(used);
        }
        Ok(())
    }
}

fn hundredths(whole: u64, part: u64) -> u64 {
    let ratio = (u128::from(whole) * 100).checked_div(u128::from(part)).unwrap_or(100);
    u64::try_from(ratio).unwrap_or(u64::MAX)
}
