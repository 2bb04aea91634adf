//! Which active features this writer keeps up, one line each. What is not in the table is refused.
//! Facts: docs/format/features.md.

/// What writing to a pool does about an active feature.
enum Writing {
    /// It is kept up, or nothing we write concerns it.
    Kept,
    /// Writing would break it; why.
    Refused(&'static str),
}

use Writing::{Kept, Refused};

const RULES: &[(&str, Writing)] = &[
    // The list of destroyed datasets is drained and counted.
    ("com.delphix:async_destroy", Kept),
    // References to the shared list are counted.
    ("com.delphix:empty_bpobj", Kept),
    // Metadata is lz4 where it is enabled, else lzjb.
    ("org.illumos:lz4_compress", Kept),
    // Says nothing about what is stored.
    ("com.joyent:multi_vdev_crash_dump", Kept),
    // Space maps are created with the long bonus and counted.
    ("com.delphix:spacemap_histogram", Kept),
    // Features enabled are listed and counted.
    ("com.delphix:enabled_txg", Kept),
    // Holes that were blocks carry their birth.
    ("com.delphix:hole_birth", Kept),
    // Zapified objects are counted.
    ("com.delphix:extensible_dataset", Kept),
    // Small blocks are embedded.
    ("com.delphix:embedded_data", Kept),
    // Bookmark lists are counted.
    ("com.delphix:bookmarks", Kept),
    // The counts of datasets and snapshots are kept in every directory.
    ("com.joyent:filesystem_limits", Kept),
    // Counted by datasets; snapshots and clones inherit the mark. The same for the next five.
    ("org.open-zfs:large_blocks", Kept),
    ("org.zfsonlinux:large_dnode", Kept),
    ("org.illumos:sha512", Kept),
    ("org.illumos:skein", Kept),
    ("org.illumos:edonr", Kept),
    ("org.openzfs:blake3", Kept),
    // Only file systems with files have it, and nothing writes files.
    ("org.zfsonlinux:userobj_accounting", Kept),
    ("org.zfsonlinux:project_quota", Kept),
    // The pool itself is not encrypted; encrypted datasets are refused one by one.
    ("com.datto:encryption", Kept),
    ("com.delphix:device_removal", Refused("addresses on removed devices are only read")),
    ("com.delphix:obsolete_counts", Refused("addresses on removed devices are only read")),
    (
        "com.delphix:zpool_checkpoint",
        Refused("blocks of the checkpoint would be overwritten: discard it first"),
    ),
    // Space maps have two-word entries.
    ("com.delphix:spacemap_v2", Kept),
    // Counted when such devices come.
    ("org.zfsonlinux:allocation_classes", Kept),
    ("com.datto:resilver_defer", Refused("a resilver is waiting: let it finish first")),
    // Longer bookmarks are made for encrypted datasets, else kept as they are, and counted when they come and go.
    ("com.datto:bookmark_v2", Kept),
    // The logs are kept up.
    ("com.delphix:log_spacemap", Kept),
    // Livelists are dropped when their clone changes, which is always allowed.
    ("com.delphix:livelist", Kept),
    ("com.delphix:redaction_bookmarks", Refused("redaction lists are not kept up")),
    ("com.delphix:redacted_datasets", Refused("redacted datasets are only recognised")),
    ("com.delphix:redaction_list_spill", Refused("redaction lists are not kept up")),
    // A bookmark forgets what it counted when its dataset changes.
    ("com.delphix:bookmark_written", Kept),
    ("org.openzfs:device_rebuild", Refused("a rebuild is running: let it finish first")),
    // Counted by datasets.
    ("org.freebsd:zstd_compress", Kept),
    ("org.openzfs:draid", Refused("dRAID is neither read nor written")),
    // Only logs of file systems have such records.
    ("org.openzfs:zilsaxattr", Kept),
    // Error logs are left alone.
    ("com.delphix:head_errlog", Kept),
    ("com.fudosecurity:block_cloning", Refused("references to cloned blocks are not kept up")),
    ("com.truenas:block_cloning_endian", Refused("references to cloned blocks are not kept up")),
    // The root's ZAP is carried along.
    ("com.klarasystems:vdev_zaps_v2", Kept),
    ("org.openzfs:raidz_expansion", Refused("an expanded RAIDZ is only read")),
    ("com.klarasystems:fast_dedup", Refused("dedup tables are not kept up")),
    // Only directories of file systems have such names.
    ("org.zfsonlinux:longname", Kept),
    // Microzaps of that size are changed in place, and none grows to it.
    ("com.klarasystems:large_microzap", Kept),
    ("com.klarasystems:dynamic_gang_header", Refused("large gang headers are only read")),
    // Births are compared by the physical one.
    ("com.truenas:physical_rewrite", Kept),
];

/// Why a pool in which `guid` is active (or with this dedup table) cannot be opened for writing; `None` if it can.
#[must_use]
pub fn refusal(guid: &str) -> Option<&'static str> {
    match RULES.iter().find(|(other, _)| *other == guid) {
        Some((_, Kept)) => None,
        Some((_, Refused(why))) => Some(why),
        None if is_dedup_table(guid) => Some("dedup tables are not kept up"),
        None => Some("not known to this version"),
    }
}

/// A directory entry of a dedup table. `DDT-statistics` alone is what is left when the last table went.
pub(super) fn is_dedup_table(name: &str) -> bool {
    name.starts_with("DDT-") && name != "DDT-statistics"
}

#[cfg(test)]
mod tests {
    use super::*;
    use ondisk::features::FEATURES;

    #[test]
    fn every_feature_has_exactly_one_line() {
        for feature in FEATURES {
            assert_eq!(RULES.iter().filter(|(guid, _)| *guid == feature.guid).count(), 1, "{}", feature.guid);
        }
        assert_eq!(RULES.len(), FEATURES.len());
        assert!(refusal("com.example:antigravity").is_some());
        assert!(refusal("DDT-sha256-zap-unique").is_some());
    }

    #[test]
    fn all_we_enable_can_be_written() {
        for guid in ondisk::features::CREATED_WITH {
            assert_eq!(refusal(guid), None, "{guid}");
        }
    }
}
