//! Which pools OpenZFS's kernel module has imported on this host.
//!
//! Block devices the module holds for itself, so that nobody else gets them. Of image files it does not: who opens them to write
//! is told nothing, and in the labels stands the id of this very host. Nor are devices that it has locked, as ours are. So it
//! is asked where it shows its pools.

use std::{fs, path::Path};

/// What the module shows of each pool, in a directory by its name.
const POOLS: &str = "/proc/spl/kstat/zfs";

/// Whether it has the pool of this name and guid.
#[must_use]
pub fn has_imported(name: &str, guid: u64) -> bool {
    is_among(Path::new(POOLS), name, guid)
}

/// Older modules do not show the guid: the name has to do then.
fn is_among(pools: &Path, name: &str, guid: u64) -> bool {
    let pool = pools.join(name);
    let text = fs::read_to_string(pool.join("guid")).unwrap_or_default();
    let shown = text.lines().find_map(|line| line.trim().parse::<u64>().ok());
    pool.is_dir() && shown.is_none_or(|shown| shown == guid)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pool on image files that the module had imported was imported here without a question: two wrote to it.
    #[test]
    fn a_pool_that_the_module_has_is_known_by_its_name_and_its_guid() {
        let dir = tempfile::tempdir().unwrap();
        let pools = dir.path();
        for name in ["old", "new"] {
            fs::create_dir(pools.join(name)).unwrap();
        }
        fs::write(pools.join("new/guid"), "17\n").unwrap();
        fs::write(pools.join("arcstats"), "9 1 0x01\n").unwrap();
        assert!(is_among(pools, "new", 17) && !is_among(pools, "new", 18), "another of its name");
        assert!(is_among(pools, "old", 18));
        assert!(!is_among(pools, "other", 17) && !is_among(pools, "arcstats", 17));
        assert!(!is_among(&pools.join("without the module"), "new", 17));
    }
}
