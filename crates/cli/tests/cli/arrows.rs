//! The crates' arrows run one way, downwards, and every library has its reason: these tests keep `docs/ARCHITECTURE.md` and
//! `docs/dependencies.md` true.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    process::Command,
};

/// Crate → the crates of ours it may use, in its own code (`dev` dependencies on `fixtures` aside).
const ARROWS: &[(&str, &[&str])] = &[
    ("millpond-codec", &[]),
    ("millpond-ondisk", &[]),
    ("millpond-disk", &[]),
    ("millpond-block", &[]),
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
    ("millpond-peers", &["millpond-disk"]),
    ("millpond-scsi", &["millpond-block"]),
    (
        "millpond-iscsi",
        &["millpond-block", "millpond-disk", "millpond-memory", "millpond-peers", "millpond-scsi"],
    ),
    ("millpond-nbd", &["millpond-block", "millpond-disk", "millpond-memory", "millpond-peers"]),
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

/// What cargo knows of the crates of this workspace.
fn packages() -> Vec<serde_json::Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo metadata runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    metadata["packages"].as_array().expect("a list of packages").clone()
}

#[test]
fn crates_depend_downwards_only() {
    let allowed: BTreeMap<&str, &[&str]> = ARROWS.iter().copied().collect();
    let packages = packages();
    assert_eq!(packages.len(), ARROWS.len(), "a crate came or went: update ARROWS and docs/ARCHITECTURE.md");
    for package in &packages {
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

/// Names between commas, or all crates but those.
fn users(cell: &str, all: &BTreeSet<String>) -> BTreeSet<String> {
    let list = |text: &str| text.split(',').map(|name| name.trim().to_owned()).collect::<BTreeSet<_>>();
    match cell.strip_prefix("all but ") {
        Some(rest) => {
            let others = list(rest);
            assert!(others.is_subset(all), "{cell}");
            all - &others
        }
        None => list(cell),
    }
}

#[test]
fn every_library_is_used_by_the_crates_that_the_page_names() {
    let (mut all, mut used) = (BTreeSet::new(), BTreeMap::<String, BTreeSet<String>>::new());
    let mut libraries = BTreeSet::new();
    for package in packages() {
        let short = match package["name"].as_str().expect("a name") {
            "millpond" => "cli".to_owned(),
            name => name.trim_start_matches("millpond-").to_owned(),
        };
        for dependency in package["dependencies"].as_array().expect("a list of dependencies") {
            let on = dependency["name"].as_str().expect("a name");
            if on.starts_with("millpond") {
                continue;
            }
            libraries.insert(on.to_owned());
            if short != "fixtures" && dependency["kind"].is_null() {
                used.entry(on.to_owned()).or_default().insert(short.clone());
            }
        }
        if short != "fixtures" {
            all.insert(short);
        }
    }
    let page =
        fs::read_to_string(fixtures::repository().join("docs/dependencies.md")).expect("the page is there");
    let mut told = BTreeMap::new();
    for row in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.split(" | ").collect();
        for name in cells[0].trim_start_matches("| ").split(", ") {
            told.insert(name.trim_matches('`').to_owned(), users(cells[1], &all));
        }
    }
    assert_eq!(told, used);
    let unnamed: Vec<_> = libraries.iter().filter(|name| !page.contains(&format!("`{name}`"))).collect();
    assert!(unnamed.is_empty(), "libraries without a reason: {unnamed:?}");
}
