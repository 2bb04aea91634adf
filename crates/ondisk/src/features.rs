//! Feature flags: what may be in a pool, by name.
//!
//! A pool lists each enabled feature with a count; above 0 the feature is *active*, and software that
//! does not know it must not open the pool (or, if the feature is [`read_only_compatible`], not for
//! writing). This table knows all features of OpenZFS 2.4, so that a pool we refuse is refused with a
//! name and a reason instead of a guid. What this implementation supports is decided by the pool
//! engine; [`Reading`] says what reading would take.
//!
//! Facts: docs/format/features.md.
//!
//! [`read_only_compatible`]: Feature::read_only_compatible

/// What an active feature asks of software that only reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reading {
    /// Nothing: data is where it always was.
    Nothing,
    /// Structures a reader meets anywhere in the pool.
    Pool(&'static str),
    /// Structures inside the datasets that carry the feature; others read as before.
    Dataset(&'static str),
}

/// One feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature {
    /// Its name on disk.
    pub guid: &'static str,
    /// Its name for people: `feature@name`.
    pub name: &'static str,
    /// What it is, in a few words.
    pub description: &'static str,
    /// Software without it may still import read-only.
    pub read_only_compatible: bool,
    /// While active it is listed in every label, since it changes how the MOS is read.
    pub in_label: bool,
    /// Counted by datasets that carry its guid as a key.
    pub per_dataset: bool,
    /// Guids that must be enabled too.
    pub depends: &'static [&'static str],
    /// What a reader must do while it is active.
    pub reading: Reading,
}

impl Feature {
    /// The feature with this guid.
    #[must_use]
    pub fn by_guid(guid: &str) -> Option<&'static Self> {
        FEATURES.iter().find(|feature| feature.guid == guid)
    }

    /// The feature with this short name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<&'static Self> {
        FEATURES.iter().find(|feature| feature.name == name)
    }
}

/// What pools that are created here have enabled, by guid (docs/format/features.md, "Recommended set"), dependencies first.
pub const CREATED_WITH: &[&str] = &[
    "com.delphix:async_destroy",
    "com.delphix:empty_bpobj",
    "org.illumos:lz4_compress",
    "com.delphix:spacemap_histogram",
    "com.delphix:enabled_txg",
    "com.delphix:hole_birth",
    "com.delphix:spacemap_v2",
    "com.delphix:extensible_dataset",
    "com.delphix:embedded_data",
    "org.open-zfs:large_blocks",
    "com.delphix:bookmarks",
    "org.zfsonlinux:allocation_classes",
    "org.freebsd:zstd_compress",
];

const EXTENSIBLE: &str = "com.delphix:extensible_dataset";
const BOOKMARKS: &str = "com.delphix:bookmarks";
const BOOKMARK_V2: &str = "com.datto:bookmark_v2";

/// A feature with the flags most have; the methods below change one each.
const fn feature(
    guid: &'static str,
    name: &'static str,
    description: &'static str,
    reading: Reading,
) -> Feature {
    Feature {
        guid,
        name,
        description,
        read_only_compatible: false,
        in_label: false,
        per_dataset: matches!(reading, Dataset(_)),
        depends: &[],
        reading,
    }
}

impl Feature {
    const fn ro(self) -> Self {
        Self { read_only_compatible: true, ..self }
    }

    const fn label(self) -> Self {
        Self { in_label: true, ..self }
    }

    const fn counted_by_dataset(self) -> Self {
        Self { per_dataset: true, ..self }
    }

    const fn needs(self, depends: &'static [&'static str]) -> Self {
        Self { depends, ..self }
    }
}

use Reading::{Dataset, Nothing, Pool};

/// All features of OpenZFS 2.4, oldest first.
pub static FEATURES: &[Feature] = &[
    feature("com.delphix:async_destroy", "async_destroy", "destroys file systems in the background", Nothing)
        .ro(),
    feature("com.delphix:empty_bpobj", "empty_bpobj", "snapshots share one empty block list", Nothing).ro(),
    feature("org.illumos:lz4_compress", "lz4_compress", "LZ4 compression", Pool("decompress LZ4")),
    feature(
        "com.joyent:multi_vdev_crash_dump",
        "multi_vdev_crash_dump",
        "crash dumps to pools of several devices",
        Nothing,
    ),
    feature("com.delphix:spacemap_histogram", "spacemap_histogram", "space maps keep histograms", Nothing)
        .ro(),
    feature("com.delphix:enabled_txg", "enabled_txg", "records when features were enabled", Nothing).ro(),
    feature(
        "com.delphix:hole_birth",
        "hole_birth",
        "holes remember when they were made",
        Pool("accept holes with a birth"),
    )
    .label()
    .needs(&["com.delphix:enabled_txg"]),
    feature(
        EXTENSIBLE,
        "extensible_dataset",
        "datasets with extra attributes",
        Pool("know datasets by bonus type when the object is a ZAP"),
    ),
    feature(
        "com.delphix:embedded_data",
        "embedded_data",
        "small blocks live in their block pointer",
        Pool("read embedded block pointers"),
    )
    .label(),
    feature(BOOKMARKS, "bookmarks", "bookmarks of snapshots", Nothing).ro().needs(&[EXTENSIBLE]),
    feature(
        "com.joyent:filesystem_limits",
        "filesystem_limits",
        "limits on the number of file systems and snapshots",
        Nothing,
    )
    .ro()
    .needs(&[EXTENSIBLE]),
    feature(
        "org.open-zfs:large_blocks",
        "large_blocks",
        "blocks larger than 128 KiB",
        Dataset("read blocks up to 16 MiB"),
    )
    .needs(&[EXTENSIBLE]),
    feature(
        "org.zfsonlinux:large_dnode",
        "large_dnode",
        "dnodes of several slots",
        Dataset("step over the extra slots of a dnode"),
    )
    .needs(&[EXTENSIBLE]),
    feature("org.illumos:sha512", "sha512", "SHA-512/256 checksums", Dataset("verify SHA-512/256"))
        .needs(&[EXTENSIBLE]),
    feature("org.illumos:skein", "skein", "Skein checksums", Dataset("verify Skein with the pool's salt"))
        .needs(&[EXTENSIBLE]),
    feature("org.illumos:edonr", "edonr", "Edon-R checksums", Dataset("verify Edon-R with the pool's salt"))
        .needs(&[EXTENSIBLE]),
    feature(
        "org.zfsonlinux:userobj_accounting",
        "userobj_accounting",
        "counts objects by user and group",
        Nothing,
    )
    .ro()
    .counted_by_dataset()
    .needs(&[EXTENSIBLE]),
    feature(
        "com.datto:encryption",
        "encryption",
        "encrypted datasets",
        Dataset("decrypt; without keys refuse the encrypted datasets"),
    )
    .needs(&[EXTENSIBLE, BOOKMARK_V2]),
    feature("org.zfsonlinux:project_quota", "project_quota", "quotas by project", Nothing)
        .ro()
        .counted_by_dataset()
        .needs(&[EXTENSIBLE]),
    feature(
        "com.delphix:device_removal",
        "device_removal",
        "removed top-level devices",
        Pool("remap addresses on indirect vdevs"),
    )
    .label(),
    feature(
        "com.delphix:obsolete_counts",
        "obsolete_counts",
        "forgets remapped blocks of removed devices",
        Nothing,
    )
    .ro()
    .needs(&[EXTENSIBLE, "com.delphix:device_removal"]),
    feature(
        "com.delphix:zpool_checkpoint",
        "zpool_checkpoint",
        "the pool can be rewound to a checkpoint",
        Nothing,
    )
    .ro(),
    feature("com.delphix:spacemap_v2", "spacemap_v2", "space maps with longer entries", Nothing).ro(),
    feature(
        "org.zfsonlinux:allocation_classes",
        "allocation_classes",
        "devices for metadata and small blocks",
        Nothing,
    )
    .ro(),
    feature("com.datto:resilver_defer", "resilver_defer", "new resilvers wait for running ones", Nothing)
        .ro(),
    feature(BOOKMARK_V2, "bookmark_v2", "larger bookmarks", Pool("accept bookmarks of more than 3 words"))
        .needs(&[EXTENSIBLE, BOOKMARKS]),
    feature("com.delphix:log_spacemap", "log_spacemap", "changes of space maps are logged first", Nothing)
        .ro()
        .needs(&["com.delphix:spacemap_v2"]),
    feature("com.delphix:livelist", "livelist", "clones keep a list of their blocks", Nothing)
        .ro()
        .needs(&[EXTENSIBLE]),
    feature(
        "com.delphix:redaction_bookmarks",
        "redaction_bookmarks",
        "bookmarks that say what to leave out of a stream",
        Pool("accept redaction bookmarks"),
    )
    .needs(&[BOOKMARK_V2, EXTENSIBLE, BOOKMARKS]),
    feature(
        "com.delphix:redacted_datasets",
        "redacted_datasets",
        "datasets received without some blocks",
        Dataset("report redacted blocks as unreadable"),
    )
    .needs(&[EXTENSIBLE]),
    feature(
        "com.delphix:bookmark_written",
        "bookmark_written",
        "bookmarks that know what was written since",
        Pool("accept bookmarks of 12 words"),
    )
    .needs(&[BOOKMARK_V2, EXTENSIBLE, BOOKMARKS]),
    feature("org.openzfs:device_rebuild", "device_rebuild", "sequential rebuilds of mirrors", Nothing).ro(),
    feature(
        "org.freebsd:zstd_compress",
        "zstd_compress",
        "Zstandard compression",
        Dataset("decompress Zstandard"),
    )
    .needs(&[EXTENSIBLE]),
    feature("org.openzfs:draid", "draid", "RAIDZ with distributed spares", Pool("compute dRAID addresses"))
        .label(),
    feature("org.openzfs:zilsaxattr", "zilsaxattr", "logs extended attributes", Nothing)
        .ro()
        .counted_by_dataset()
        .needs(&[EXTENSIBLE]),
    feature(
        "com.delphix:head_errlog",
        "head_errlog",
        "the error log is kept by dataset",
        Pool("read the error log by dataset"),
    ),
    feature(
        "org.openzfs:blake3",
        "blake3",
        "BLAKE3 checksums",
        Dataset("verify BLAKE3 with the pool's salt"),
    )
    .needs(&[EXTENSIBLE]),
    feature("com.fudosecurity:block_cloning", "block_cloning", "blocks shared between files", Nothing).ro(),
    feature(
        "com.klarasystems:vdev_zaps_v2",
        "vdev_zaps_v2",
        "the root vdev has properties",
        Pool("accept a ZAP of the root vdev"),
    )
    .label(),
    feature(
        "com.delphix:redaction_list_spill",
        "redaction_list_spill",
        "longer lists of redaction snapshots",
        Pool("accept redaction lists that spill"),
    )
    .needs(&["com.delphix:redaction_bookmarks"]),
    feature(
        "org.openzfs:raidz_expansion",
        "raidz_expansion",
        "RAIDZ that grew by a device",
        Pool("compute addresses of blocks older than the expansion"),
    )
    .label(),
    feature("com.klarasystems:fast_dedup", "fast_dedup", "smaller dedup tables with a log", Nothing).ro(),
    feature(
        "org.zfsonlinux:longname",
        "longname",
        "file names up to 1023 bytes",
        Dataset("read ZAP names beyond 255 bytes"),
    )
    .needs(&[EXTENSIBLE]),
    feature("com.klarasystems:large_microzap", "large_microzap", "microzaps larger than 128 KiB", Nothing)
        .ro()
        .counted_by_dataset()
        .needs(&[EXTENSIBLE, "org.open-zfs:large_blocks"]),
    feature(
        "com.truenas:block_cloning_endian",
        "block_cloning_endian",
        "one byte order for keys of cloned blocks",
        Nothing,
    )
    .ro(),
    feature(
        "com.klarasystems:dynamic_gang_header",
        "dynamic_gang_header",
        "gang headers as large as the smallest allocation",
        Pool("try the large gang header before the classic one"),
    )
    .label(),
    feature(
        "com.truenas:physical_rewrite",
        "physical_rewrite",
        "data rewritten in place of its old copy",
        Nothing,
    )
    .ro()
    .counted_by_dataset()
    .needs(&[EXTENSIBLE]),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn guids_and_names_are_unique_and_agree() {
        let guids: BTreeSet<_> = FEATURES.iter().map(|feature| feature.guid).collect();
        assert_eq!(guids.len(), FEATURES.len());
        for feature in FEATURES {
            assert!(feature.guid.ends_with(&format!(":{}", feature.name)), "{}", feature.guid);
            assert_eq!(Feature::by_guid(feature.guid), Some(feature));
            assert_eq!(Feature::by_name(feature.name), Some(feature));
        }
        assert_eq!(Feature::by_guid("com.example:antigravity"), None);
    }

    #[test]
    fn dependencies_exist_and_have_no_circles() {
        for feature in FEATURES {
            for guid in feature.depends {
                assert_ne!(*guid, feature.guid);
                let needed = Feature::by_guid(guid).expect(guid);
                assert!(!needed.depends.contains(&feature.guid), "{} ↔ {guid}", feature.guid);
            }
        }
    }

    #[test]
    fn what_labels_list_is_what_software_must_know_to_read() {
        for feature in FEATURES {
            assert!(!(feature.in_label && feature.read_only_compatible), "{}", feature.guid);
        }
        let listed = FEATURES.iter().filter(|feature| feature.in_label).map(|feature| feature.name);
        let expected = [
            "hole_birth",
            "embedded_data",
            "device_removal",
            "draid",
            "vdev_zaps_v2",
            "raidz_expansion",
            "dynamic_gang_header",
        ];
        assert_eq!(listed.collect::<Vec<_>>(), expected);
    }
}
