//! Which features a new pool gets, by its property `compatibility`.
//!
//! What is recommended (docs/format/features.md) is cut to what the software named can use; a pool with fewer
//! features is always usable by more of it.

use std::{collections::BTreeSet, fs, path::Path};

use ondisk::features::{CREATED_WITH, Feature};

use super::spec::SpecError;

/// Where files of feature names are, as OpenZFS has them.
const DIRECTORIES: [&str; 2] = ["/etc/zfs/compatibility.d", "/usr/share/zfs/compatibility.d"];
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
/// What came with 0.8, of what we enable.
const WITH_0_8: &[&str] = &["allocation_classes", "spacemap_v2"];

/// Guids of the features to enable, dependencies first. `compatibility` is `off`, `legacy` (none at all), or a list
/// of names and files, all of which must know a feature.
///
/// # Errors
/// A name nobody knows, or a file that cannot be read.
pub fn features(compatibility: &str) -> Result<Vec<&'static str>, SpecError> {
    let mut enabled: Vec<&'static str> = CREATED_WITH.to_vec();
    for item in compatibility.split(',').map(str::trim) {
        match item {
            "off" | "" => {}
            "legacy" => enabled.clear(),
            _ => {
                let known = known_by(item)?;
                enabled.retain(|guid| known.iter().any(|name| guid.rsplit(':').next() == Some(name)));
            }
        }
    }
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
fn known_by(name: &str) -> Result<Vec<String>, SpecError> {
    let names = |lists: &[&[&str]]| Ok(lists.concat().into_iter().map(str::to_owned).collect());
    if name.starts_with('/') {
        return read(Path::new(name));
    }
    // A list that the system has is newer than this program.
    for dir in DIRECTORIES {
        let path = Path::new(dir).join(name);
        if !name.contains('/') && path.is_file() {
            return read(&path);
        }
    }
    let release = name.trim_end_matches("-linux").trim_end_matches("-freebsd");
    match release {
        "openzfs-2.0" | "openzfs-2.1" | "openzfs-2.2" | "openzfs-2.3" | "openzfs-2.4" => {
            Ok(CREATED_WITH.iter().filter_map(|guid| guid.rsplit(':').next()).map(str::to_owned).collect())
        }
        "zol-0.8" | "grub2" | "compat-2019" | "compat-2020" | "compat-2021" => names(&[OLDEST, WITH_0_8]),
        "zol-0.7" | "compat-2018" => names(&[OLDEST]),
        _ => Err(unreadable(name)),
    }
}

fn read(path: &Path) -> Result<Vec<String>, SpecError> {
    let name = path.display().to_string();
    let size = fs::metadata(path).map_err(|_| unreadable(&name))?.len();
    if size > FILE_BYTES_MAX {
        return Err(unreadable(&name));
    }
    let text = fs::read_to_string(path).map_err(|_| unreadable(&name))?;
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    let words = lines.flat_map(|line| line.split([',', ' ', '\t'])).filter(|word| !word.is_empty());
    words
        .map(|word| match Feature::by_name(word) {
            Some(feature) => Ok(feature.name.to_owned()),
            None => Err(SpecError::Refused(format!("invalid feature '{word}' in compatibility file {name}"))),
        })
        .collect()
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
        assert_eq!(features("openzfs-2.1,zol-0.7").unwrap(), old);
        assert_eq!(
            features("openzfs-9").unwrap_err().to_string(),
            "could not read/parse feature file(s): openzfs-9"
        );
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
    }
}
