//! Which features a new pool gets, and which one may get at all, by its property `compatibility`.
//!
//! What is recommended (docs/format/features.md) is cut to what the software named can use; a pool with fewer
//! features is always usable by more of it.

use std::{collections::BTreeSet, fs, path::Path};

use ondisk::features::{CREATED_WITH, FEATURES, Feature};

use super::spec::SpecError;

/// Where files of feature names are, as OpenZFS has them: the administrator's, and those that came with OpenZFS.
pub const COMPATIBILITY_DIRECTORIES: [&str; 2] = ["/etc/zfs/compatibility.d", SHIPPED];
const SHIPPED: &str = "/usr/share/zfs/compatibility.d";
/// Largest such file accepted, in bytes; OpenZFS accepts no more either.
const FILE_BYTES_MAX: u64 = 16 << 10;

/// What all software with feature flags has that is still in use.
const OLDEST: &[&str] = &[
    "async_destroy",
    "bookmarks",
    "embedded_data",
    "empty_bpobj",
    "enabled_txg",
    "extensible_dataset",
    "filesystem_limits",
    "hole_birth",
    "large_blocks",
    "lz4_compress",
    "spacemap_histogram",
];
/// What a release of OpenZFS for Linux knows besides, and besides what those before it know.
const RELEASES: &[(&str, &[&str])] = &[
    ("zol-0.7", &["edonr", "large_dnode", "multi_vdev_crash_dump", "sha512", "skein", "userobj_accounting"]),
    (
        "zol-0.8",
        &[
            "allocation_classes",
            "bookmark_v2",
            "device_removal",
            "encryption",
            "obsolete_counts",
            "project_quota",
            "resilver_defer",
            "spacemap_v2",
            "zpool_checkpoint",
        ],
    ),
    (
        "openzfs-2.0",
        &[
            "bookmark_written",
            "device_rebuild",
            "livelist",
            "log_spacemap",
            "redacted_datasets",
            "redaction_bookmarks",
            "zstd_compress",
        ],
    ),
    ("openzfs-2.1", &["draid"]),
    ("openzfs-2.2", &["blake3", "block_cloning", "head_errlog", "vdev_zaps_v2", "zilsaxattr"]),
    ("openzfs-2.3", &["fast_dedup", "large_microzap", "longname", "raidz_expansion", "redaction_list_spill"]),
    ("openzfs-2.4", &["block_cloning_endian", "dynamic_gang_header", "physical_rewrite"]),
];
/// What others know besides.
const OTHERS: &[(&str, &[&str])] = &[
    // Of the two lists that have had this name, the shorter.
    ("grub2", &["allocation_classes", "spacemap_v2"]),
    (
        "grub2-2.12",
        &[
            "allocation_classes",
            "block_cloning",
            "device_rebuild",
            "livelist",
            "log_spacemap",
            "project_quota",
            "resilver_defer",
            "spacemap_v2",
            "userobj_accounting",
            "zilsaxattr",
            "zpool_checkpoint",
        ],
    ),
    ("compat-2018", &[]),
    ("compat-2019", &["multi_vdev_crash_dump", "sha512", "skein"]),
    ("compat-2020", &["multi_vdev_crash_dump", "sha512", "skein"]),
    (
        "compat-2021",
        &[
            "device_removal",
            "multi_vdev_crash_dump",
            "obsolete_counts",
            "sha512",
            "skein",
            "spacemap_v2",
            "zpool_checkpoint",
        ],
    ),
];

/// The one list without all of the [`OLDEST`], whole: before 2.12 this boot loader finds no pool with snapshots of its root where
/// `extensible_dataset` is enabled.
const GRUB_2_06: (&str, &[&str]) = (
    "grub2-2.06",
    &[
        "allocation_classes",
        "async_destroy",
        "block_cloning",
        "device_rebuild",
        "embedded_data",
        "empty_bpobj",
        "enabled_txg",
        "hole_birth",
        "log_spacemap",
        "lz4_compress",
        "resilver_defer",
        "spacemap_histogram",
        "spacemap_v2",
        "zpool_checkpoint",
    ],
);
/// Other names of these lists, as OpenZFS has them.
const ALIASES: [(&str, &str); 11] = [
    ("2018", "compat-2018"),
    ("2019", "compat-2019"),
    ("2020", "compat-2020"),
    ("2021", "compat-2021"),
    ("freebsd-13.0", "openzfs-2.1-freebsd"),
    ("freebsd-13.1", "openzfs-2.1-freebsd"),
    ("freebsd-13.2", "openzfs-2.1-freebsd"),
    ("truenas-12.0", "openzfs-2.0-freebsd"),
    ("ubuntu-18.04", "zol-0.7"),
    ("ubuntu-20.04", "zol-0.8"),
    ("ubuntu-22.04", "openzfs-2.1-linux"),
];

/// The features that a pool may have at most. `compatibility` is `off` (all of them), `legacy` (none at all), or a list of names
/// and files, all of which must know a feature.
///
/// # Errors
/// A name nobody knows, or a file that cannot be read.
pub fn permitted(compatibility: &str) -> Result<Vec<&'static Feature>, SpecError> {
    let mut permitted: Vec<&'static Feature> = FEATURES.iter().collect();
    for item in compatibility.split(',').map(str::trim) {
        match item {
            "off" | "" => {}
            "legacy" => permitted.clear(),
            _ => {
                let known = known_by(item)?;
                permitted.retain(|feature| known.contains(&feature.name));
            }
        }
    }
    Ok(permitted)
}

/// Guids of the features to enable in a pool that has what new ones have, dependencies first: of those that are [`permitted`].
///
/// # Errors
/// As there.
pub fn features(compatibility: &str) -> Result<Vec<&'static str>, SpecError> {
    let permitted = permitted(compatibility)?;
    let mut enabled: Vec<&'static str> = CREATED_WITH.to_vec();
    enabled.retain(|guid| permitted.iter().any(|feature| feature.guid == *guid));
    // A feature without what it depends on is none.
    loop {
        let left: BTreeSet<&str> = enabled.iter().copied().collect();
        let before = enabled.len();
        enabled.retain(|guid| {
            Feature::by_guid(guid)
                .is_some_and(|feature| feature.depends.iter().all(|guid| left.contains(guid)))
        });
        if enabled.len() == before {
            return Ok(enabled);
        }
    }
}

/// Names of the features that software of this name knows.
fn known_by(name: &str) -> Result<Vec<&'static str>, SpecError> {
    if name.starts_with('/') {
        return read(Path::new(name), false);
    }
    // A list that the system has is newer than this program.
    for dir in COMPATIBILITY_DIRECTORIES {
        let path = Path::new(dir).join(name);
        if !name.contains('/') && path.is_file() {
            return read(&path, dir == SHIPPED);
        }
    }
    let name = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, list)| *list);
    if name == GRUB_2_06.0 {
        return Ok(GRUB_2_06.1.to_vec());
    }
    let release = name.trim_end_matches("-linux").trim_end_matches("-freebsd");
    if let Some((_, more)) = OTHERS.iter().find(|(other, _)| *other == release) {
        return Ok([OLDEST, *more].concat());
    }
    let Some(last) = RELEASES.iter().position(|(other, _)| *other == release) else {
        return Err(unreadable(name));
    };
    let added = RELEASES.iter().take(last + 1).flat_map(|(_, added)| added.iter());
    let mut known: Vec<&'static str> = OLDEST.iter().chain(added).copied().collect();
    // There it came with 2.2.
    if matches!(name, "openzfs-2.0-freebsd" | "openzfs-2.1-freebsd") {
        known.retain(|feature| *feature != "edonr");
    }
    Ok(known)
}

/// The features that a file names. One that came with OpenZFS may name what is not known here yet, and is not enabled then.
fn read(path: &Path, is_shipped: bool) -> Result<Vec<&'static str>, SpecError> {
    let name = path.display().to_string();
    let size = fs::metadata(path).map_err(|_| unreadable(&name))?.len();
    if size > FILE_BYTES_MAX {
        return Err(unreadable(&name));
    }
    let text = fs::read_to_string(path).map_err(|_| unreadable(&name))?;
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    let words = lines.flat_map(|line| line.split([',', ' ', '\t'])).filter(|word| !word.is_empty());
    let mut known = Vec::new();
    for word in words {
        match Feature::by_name(word) {
            Some(feature) => known.push(feature.name),
            None if is_shipped => {}
            None => {
                let text = format!("invalid feature '{word}' in compatibility file {name}");
                return Err(SpecError::Refused(text));
            }
        }
    }
    Ok(known)
}

fn unreadable(name: &str) -> SpecError {
    SpecError::Refused(format!("could not read/parse feature file(s): {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_shrink_and_never_grow() {
        let all = features("off").unwrap();
        assert_eq!(all, CREATED_WITH);
        assert!(features("legacy").unwrap().is_empty());
        assert_eq!(features("openzfs-2.1-linux").unwrap(), all);
        let old = features("zol-0.7").unwrap();
        assert!(old.iter().all(|guid| all.contains(guid)));
        assert!(!old.contains(&"org.freebsd:zstd_compress") && !old.contains(&"com.delphix:spacemap_v2"));
        let later = features("zol-0.8").unwrap();
        assert!(later.contains(&"com.delphix:spacemap_v2") && !later.contains(&"org.freebsd:zstd_compress"));
        assert_eq!(features("openzfs-2.1,zol-0.7").unwrap(), old);
        assert_eq!(
            features("openzfs-9").unwrap_err().to_string(),
            "could not read/parse feature file(s): openzfs-9"
        );
    }

    #[test]
    fn lists_have_each_feature_once_and_the_newest_has_all() {
        let named = OLDEST.iter().chain(RELEASES.iter().flat_map(|(_, added)| added.iter()));
        let mut named: Vec<&str> = named.copied().collect();
        named.sort_unstable();
        let mut all: Vec<&str> = FEATURES.iter().map(|feature| feature.name).collect();
        all.sort_unstable();
        assert_eq!(named, all);
        let mut others = OTHERS.iter().flat_map(|(_, more)| more.iter());
        assert!(others.all(|name| all.contains(name) && !OLDEST.contains(name)));
        assert!(GRUB_2_06.1.iter().all(|name| all.contains(name)));
        for (alias, list) in ALIASES {
            assert!(permitted(list).is_ok(), "{alias}");
        }
    }

    /// What a new pool does not have either may come later.
    #[test]
    fn what_software_knows_is_permitted_and_nothing_else() {
        let permits =
            |set: &str, name: &str| permitted(set).unwrap().iter().any(|feature| feature.name == name);
        for (set, name, expected) in [
            ("off", "physical_rewrite", true),
            ("", "blake3", true),
            ("legacy", "async_destroy", false),
            ("zol-0.8", "encryption", true),
            ("zol-0.8", "zstd_compress", false),
            ("openzfs-2.1-linux", "draid", true),
            ("openzfs-2.1-linux", "blake3", false),
            ("openzfs-2.1-linux", "edonr", true),
            ("openzfs-2.1-freebsd", "edonr", false),
            ("openzfs-2.2", "blake3", true),
            ("openzfs-2.2,zol-0.7", "blake3", false),
            ("openzfs-2.2,zol-0.7", "skein", true),
            ("compat-2020", "spacemap_v2", false),
            ("2021", "spacemap_v2", true),
            ("ubuntu-20.04", "encryption", true),
            ("ubuntu-20.04", "zstd_compress", false),
            ("freebsd-13.2", "draid", true),
            ("freebsd-13.2", "edonr", false),
            ("grub2-2.12", "log_spacemap", true),
            ("grub2-2.12", "extensible_dataset", true),
            ("grub2-2.12", "zstd_compress", false),
            ("grub2-2.06", "log_spacemap", true),
            ("grub2-2.06", "extensible_dataset", false),
        ] {
            assert_eq!(permits(set, name), expected, "{name} of {set}");
        }
        // Nothing in the list for this boot loader is without what it depends on.
        let all = features("off").unwrap();
        let mut bootable = permitted("grub2-2.06").unwrap();
        bootable.retain(|feature| all.contains(&feature.guid));
        assert_eq!(features("grub2-2.06").unwrap().len(), bootable.len());
    }

    #[test]
    fn files_name_features() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mine");
        fs::write(
            &path,
            "# what my boot loader knows\nlz4_compress, bookmarks # without extensible_dataset\n",
        )
        .unwrap();
        assert_eq!(features(path.to_str().unwrap()).unwrap(), ["org.illumos:lz4_compress"]);
        fs::write(&path, "antigravity\n").unwrap();
        assert!(features(path.to_str().unwrap()).is_err());
        assert!(read(&path, true).unwrap().is_empty());
    }
}
