//! The judges: OpenZFS's zdb, and the reference checker, on images of the pool's disks.

use std::{path::Path, process::Command};

use crate::support::POOL;

/// Both judges over the images in `dir`; what they complain about.
pub(crate) fn judge(dir: &Path) -> Result<(), String> {
    let mut images: Vec<_> = std::fs::read_dir(dir)
        .map_err(|error| error.to_string())?
        .flatten()
        .map(|entry| entry.path())
        .collect();
    images.sort();
    if let Some(python) = fixtures::tool("python3") {
        let script = fixtures::repository().join("docs/format/decode.py");
        let output = Command::new(python).arg(script).arg("--check").args(&images).output();
        let output = output.map_err(|error| error.to_string())?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stdout);
            let complaint = String::from_utf8_lossy(&output.stderr);
            return Err(format!("decode.py --check:\n{text}{complaint}"));
        }
    }
    if fixtures::tool("zdb").is_some() {
        fixtures::zdb_check(&[], dir, POOL).map_err(|complaint| format!("zdb:\n{complaint}"))?;
    }
    Ok(())
}
