//! `millpond drill`: the list, report cards in words and as JSON, drills on a copy that leave the original as it was.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use crate::support::Lab;

const LINES: [&str; 4] = ["lost", "dropped", "longest pause of a client", "check of the whole pool"];

#[test]
fn the_list_names_every_drill_of_the_house() {
    let lab = Lab::empty();
    let listed = lab.run("drill list -H").ok();
    let names: Vec<&str> = listed.lines().map(|line| line.split('\t').next().unwrap()).collect();
    for name in
        ["double-pull", "slow-disk", "corrupting-disk", "lying-flush", "log-loss", "memory-hog", "full-pool"]
    {
        assert!(names.contains(&name), "{listed}");
    }
    let in_json = lab.run("drill list -j").ok();
    assert_eq!(in_json.lines().count(), names.len());
    for line in in_json.lines() {
        let drill: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(names.contains(&drill["drill"].as_str().unwrap()), "{line}");
    }
}

#[test]
fn a_simulated_drill_ends_in_a_report_card() {
    let lab = Lab::empty();
    let text = lab.run("drill run -v full-pool --layout mirror:2x2").ok();
    for what in LINES.iter().chain(&["no space", "the pool is full", "full-pool: passed", "simulated in"]) {
        assert!(text.contains(what), "{what}: {text}");
    }
    let line = lab.run("drill run log-loss full-pool --seed 7 -j").ok();
    let cards: Vec<serde_json::Value> =
        line.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(cards.len(), 2);
    for card in &cards {
        assert_eq!(
            (&card["passed"], card["lost"].as_u64(), card["seed"].as_u64()),
            (&true.into(), Some(0), Some(7))
        );
        let named: Vec<&str> =
            card["lines"].as_array().unwrap().iter().map(|l| l["what"].as_str().unwrap()).collect();
        assert!(LINES.iter().all(|what| named.contains(what)), "{named:?}");
        let (simulated, real) = (card["seconds"].as_f64().unwrap(), card["real_seconds"].as_f64().unwrap());
        assert!(simulated > 50.0 && real > 0.0, "{card}");
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let lab = Lab::empty();
    for (words, code, says) in [
        ("drill run", 2, "name drills, or --all"),
        ("drill run earthquake", 2, "no drill 'earthquake'"),
        ("drill run slow-disk --layout raidz9:3", 2, "is no layout"),
        ("drill run slow-disk --layout stripe:2", 1, "no redundancy"),
        ("drill run slow-disk --on /dev/null/nowhere", 1, "holds 0 pools"),
    ] {
        let said = lab.run(words).fails(code);
        assert!(said.contains(says), "{words}: {said}");
    }
}

/// The first drill that did not suit the pool was the end of all that came after it.
#[test]
fn of_all_drills_those_that_do_not_suit_the_pool_are_left_out() {
    let lab = Lab::empty();
    let listed = lab.run("drill list -H").ok();
    let said = lab.run("drill run --all --layout stripe:2").fails(1);
    for line in listed.lines() {
        let name = line.split('\t').next().unwrap();
        assert!(
            said.contains(&format!("left out: drill {name}: the pool has no redundancy")),
            "{name}: {said}"
        );
    }
    // It is none of those that passed.
    assert!(!said.lines().last().unwrap().starts_with("left out"), "{said}");
}

#[test]
fn a_copy_is_hurt_and_its_original_is_not() {
    let lab = Lab::scratch();
    let paths: Vec<String> =
        (0..3).map(|n| lab.cwd().join(format!("d{n}.img")).display().to_string()).collect();
    for path in &paths {
        std::fs::File::create(path).unwrap().set_len(192 << 20).unwrap();
    }
    let here = lab.cwd().display().to_string();
    lab.run(&format!("zpool create herd raidz1 {}", paths.join(" "))).ok();
    lab.run("zpool export herd").ok();
    let sums = || -> BTreeMap<String, Vec<u8>> {
        paths
            .iter()
            .map(|path| (path.clone(), Sha256::digest(std::fs::read(path).unwrap()).to_vec()))
            .collect()
    };
    let before = sums();
    let scratch = lab.path("scratch");
    std::fs::create_dir(&scratch).unwrap();
    let refused =
        lab.run(&format!("drill run log-loss --on {here} --scratch {}", scratch.display())).fails(1);
    assert!(refused.contains("needs a pool with a log device"), "{refused}");
    // How far the copy is is said if that takes long.
    let run = lab.run(&format!("drill run memory-hog --on {here} --scratch {}", scratch.display()));
    assert_eq!(run.code, Some(0), "{}", run.stdout);
    let text = run.stdout;
    assert!(
        text.contains("a copy of pool 'herd' (3 files)") && text.contains("memory-hog: passed"),
        "{text}"
    );
    assert_eq!(sums(), before, "the original was written to");
    assert_eq!(std::fs::read_dir(&scratch).unwrap().count(), 0, "copies were left behind");
}
