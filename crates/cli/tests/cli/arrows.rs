//! The crates' arrows run one way, downwards, and every library has its reason: these tests keep `docs/ARCHITECTURE.md` and
//! `docs/dependencies.md` true.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    process::Command,
};

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

/// What a crate is called on these pages.
fn short(package: &serde_json::Value) -> String {
    match package["name"].as_str().expect("a name") {
        "millpond" => "cli".to_owned(),
        name => name.trim_start_matches("millpond-").to_owned(),
    }
}

/// What it depends on by itself, its tests aside, in this workspace (by short names) and elsewhere.
fn uses(package: &serde_json::Value) -> (BTreeSet<String>, BTreeSet<String>) {
    let all = package["dependencies"].as_array().expect("a list of dependencies").iter();
    let names = all.filter(|one| one["kind"].is_null()).map(|one| one["name"].as_str().expect("a name"));
    let (ours, others): (Vec<&str>, Vec<&str>) = names.partition(|name| name.starts_with("millpond"));
    let ours = ours.iter().map(|name| name.trim_start_matches("millpond-").to_owned());
    (ours.collect(), others.iter().map(|name| (*name).to_owned()).collect())
}

fn page(name: &str) -> String {
    fs::read_to_string(fixtures::repository().join("docs").join(name)).expect("the page is there")
}

#[test]
fn crates_know_what_the_map_says_and_nothing_below() {
    let page = page("ARCHITECTURE.md");
    let mut told = BTreeMap::new();
    for row in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.trim_end_matches(" |").split(" | ").collect();
        let name = cells[0].trim_start_matches("| ").trim_matches('`').to_owned();
        let knows: BTreeSet<String> = cells[2].split('`').skip(1).step_by(2).map(str::to_owned).collect();
        for known in &knows {
            assert!(told.contains_key(known), "{name} may not use {known}: the arrow would point upwards");
        }
        told.insert(name, knows);
    }
    let used: BTreeMap<String, BTreeSet<String>> =
        packages().iter().map(|package| (short(package), uses(package).0)).collect();
    assert_eq!(told, used, "docs/ARCHITECTURE.md, and what is so");
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
        let dependencies = package["dependencies"].as_array().expect("a list of dependencies");
        let names = dependencies.iter().map(|one| one["name"].as_str().expect("a name").to_owned());
        libraries.extend(names.filter(|name| !name.starts_with("millpond")));
        let name = short(&package);
        if name != "fixtures" {
            for library in uses(&package).1 {
                used.entry(library).or_default().insert(name.clone());
            }
            all.insert(name);
        }
    }
    let page = page("dependencies.md");
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
