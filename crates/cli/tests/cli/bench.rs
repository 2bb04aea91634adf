//! `millpond bench engine`: one JSON object per test with numbers that fit together, and a pool behind it that is
//! clean; nothing is left where nothing was to be kept.

use crate::support::Lab;

const FIELDS: [&str; 17] = [
    "tag",
    "test",
    "layout",
    "compress",
    "vbs",
    "io",
    "threads",
    "ops",
    "secs",
    "iops",
    "mbps",
    "p50_us",
    "p99_us",
    "cpu_us_op",
    "written_per_payload",
    "read_per_payload",
    "rss_mb",
];

#[test]
fn every_test_prints_its_numbers_and_the_pool_it_leaves_is_clean() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    let line = format!(
        "bench engine --dir {here} --layout raidz1 --width 3 --log --cache --vdev-size 192m --vol 16m \
         --vbs 16k --compress lz4 --secs 0.2 --io 4k --tag night --keep --tests fill,read:2,overwrite,sync:3,seqread"
    );
    let out = lab.run(&line).ok();
    let tests: Vec<serde_json::Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<_> = tests.iter().map(|test| test["test"].as_str().unwrap()).collect();
    assert_eq!(names, ["fill", "read", "overwrite", "sync", "seqread"]);
    for test in &tests {
        let fields: Vec<&str> = test.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(fields, FIELDS);
        let number = |name: &str| test[name].as_f64().unwrap_or_else(|| panic!("{name} in {test}"));
        assert_eq!((test["tag"].as_str(), test["layout"].as_str()), (Some("night"), Some("raidz1")));
        assert!(number("ops") > 0.0 && number("secs") > 0.0 && number("cpu_us_op") > 0.0, "{test}");
        assert!(number("p50_us") <= number("p99_us") && number("rss_mb") > 1.0, "{test}");
        let mbps = number("ops") * number("io") / number("secs") / 1e6;
        // Printed to a hundredth, which is much of it where the machine is busy.
        assert!((mbps - number("mbps")).abs() < 0.01 * mbps + 0.006, "{test}");
        let written = number("written_per_payload");
        match test["test"].as_str().unwrap() {
            // All of it, half as large, with parity for half again; and a little metadata.
            "fill" => assert!((0.4..1.8).contains(&written) && number("ops") == 1024.0, "{test}"),
            "seqread" => {
                assert!(written == 0.0 && number("ops") == 1024.0 && number("io") == 16384.0, "{test}")
            }
            "read" => assert!(written == 0.0 && number("threads") == 2.0, "{test}"),
            // Each waits for a whole transaction group.
            "sync" => assert!(written > 1.0 && number("threads") == 3.0, "{test}"),
            _ => assert!(written > 0.0, "{test}"),
        }
    }
    let verified = lab.run(&format!("-d {here} verify bench")).ok();
    assert!(verified.contains("bench: all right"), "{verified}");
    fixtures::zdb_check(&[], lab.cwd(), "bench").unwrap();
}

#[test]
fn nothing_is_left_behind_least_of_all_by_nonsense() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    let files = || {
        std::fs::read_dir(lab.cwd())
            .unwrap()
            .flatten()
            .filter(|e| e.path().extension().is_some_and(|e| e == "img"))
            .count()
    };
    let bench = |rest: &str| lab.run(&format!("bench engine --dir {here} --vdev-size 128m {rest}"));
    bench("--vol 4m --secs 0.05 --data random --tests fill,overwrite").ok();
    assert_eq!(files(), 0);
    for (rest, code, says) in [
        ("--vol 4m --tests nap", 2, "tests are fill, read, overwrite, sync and seqread"),
        ("--vol 4m --tests read:0", 2, "one of 1 to 4096"),
        ("--vol 4m --io 0 --tests read", 2, "--io is between"),
        ("--vol 5000 --tests read", 2, "--vol"),
        ("--vol 4m --compress cement --tests read", 1, "compression"),
        ("--vol 4m --layout raidz3 --width 3 --tests read", 1, "raidz3"),
        ("--vol 5000000 --vbs 5000 --tests read", 1, "power of 2"),
    ] {
        let said = bench(rest).fails(code);
        assert!(said.contains(says), "{rest}: {said}");
        assert_eq!(files(), 0, "{rest}");
    }
}

/// The intent log once took so much of a small pool between two commits that the transaction group found no room, which
/// suspended the pool. It now leaves room for what is dirty, and who asks for stability waits for the group instead.
#[test]
fn the_log_leaves_room_for_the_transaction_group() {
    let lab = Lab::scratch();
    let memory = std::path::Path::new("/dev/shm");
    let files = match memory.is_dir() {
        true => tempfile::tempdir_in(memory).unwrap(),
        false => tempfile::tempdir_in(lab.cwd()).unwrap(),
    };
    let here = files.path().display().to_string();
    for (layout, size) in [("single", "1g"), ("raidz1 --width 3", "400m")] {
        let line = format!(
            "bench engine --dir {here} --layout {layout} --vdev-size {size} --vol 320m --secs 3 --data random --keep \
             --tests fill,sync:4"
        );
        let out = lab.run(&line).ok();
        assert_eq!(out.lines().count(), 2, "{out}");
        fixtures::zdb_check(&[], files.path(), "bench").unwrap();
    }
}
