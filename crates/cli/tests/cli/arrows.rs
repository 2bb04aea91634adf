//! The crates' arrows run one way, downwards. `docs/ARCHITECTURE.md` draws them; this test keeps it true.

use std::{collections::BTreeMap, process::Command};

/// Crate → the crates of ours it may use, in its own code (`dev` dependencies on `fixtures` aside).
const ARROWS: &[(&str, &[&str])] = &[
    ("millpond-codec", &[]),
    ("millpond-ondisk", &[]),
    ("millpond-disk", &[]),
    ("millpond-block", &["millpond-disk"]),
    ("millpond-memory", &[]),
    ("millpond-cache", &[]),
    ("millpond-fixtures", &[]),
    ("millpond-l2arc", &["millpond-cache", "millpond-codec", "millpond-disk", "millpond-ondisk"]),
    (
        "millpond-pool",
        &["millpond-block", "millpond-cache", "millpond-codec", "millpond-disk", "millpond-ondisk"],
    ),
    (
        "millpond-engine",
        &[
            "millpond-block",
            "millpond-codec",
            "millpond-disk",
            "millpond-l2arc",
            "millpond-memory",
            "millpond-ondisk",
            "millpond-pool",
        ],
    ),
    ("millpond-lab", &["millpond-block", "millpond-disk", "millpond-engine", "millpond-pool"]),
    ("millpond-scsi", &["millpond-block"]),
    ("millpond-iscsi", &["millpond-block", "millpond-disk", "millpond-memory", "millpond-scsi"]),
    ("millpond-nbd", &["millpond-block", "millpond-disk", "millpond-memory"]),
    (
        "millpond-server",
        &[
            "millpond-block",
            "millpond-disk",
            "millpond-engine",
            "millpond-iscsi",
            "millpond-memory",
            "millpond-nbd",
            "millpond-pool",
        ],
    ),
    ("millpond", &["millpond-cache", "millpond-lab", "millpond-server"]),
];

#[test]
fn crates_depend_downwards_only() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo metadata runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    let allowed: BTreeMap<&str, &[&str]> = ARROWS.iter().copied().collect();

    let packages = metadata["packages"].as_array().expect("a list of packages");
    assert_eq!(packages.len(), ARROWS.len(), "a crate came or went: update ARROWS and docs/ARCHITECTURE.md");
    for package in packages {
        let name = package["name"].as_str().expect("a name");
        let allowed = allowed.get(name).unwrap_or_else(|| panic!("{name} is new: give it its arrows here"));
        for dependency in package["dependencies"].as_array().expect("a list of dependencies") {
            let on = dependency["name"].as_str().expect("a name");
            let for_tests = dependency["kind"].as_str() == Some("dev");
            if on.starts_with("millpond") && !for_tests {
                assert!(allowed.contains(&on), "{name} may not use {on}: the arrow would point upwards");
            }
        }
    }
}
