//! `millpond cachesim` prints the numbers that are defined for it, for several policies and sizes at once, and names
//! the line of a record it cannot use.

use std::{
    io::Write as _,
    path::PathBuf,
    process::{Command, Stdio},
};

use serde_json::Value;

/// Runs it; standard output, standard error, exit code.
fn cachesim(words: &[&str]) -> (String, String, Option<i32>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millpond"));
    let output = command.arg("cachesim").args(words).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr), output.status.code())
}

fn boots() -> String {
    let kept = "../cache/tests/traces/vm-3boots.csv.zst";
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(kept).display().to_string()
}

#[test]
fn the_reference_numbers_come_out_for_every_policy_and_size() {
    let trace = boots();
    let (out, err, code) = cachesim(&[
        &trace,
        "--policy",
        "arc,lru",
        "--permille",
        "100",
        "--permille",
        "400",
        "--size",
        "951",
        "-j",
    ]);
    assert_eq!(code, Some(0), "{err}");
    let objects: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let rows: Vec<_> = objects
        .iter()
        .map(|object| {
            let number = |key: &str| object[key].as_u64().unwrap();
            (object["policy"].as_str().unwrap(), number("capacity_blocks"), number("block_misses"))
        })
        .collect();
    assert_eq!(
        rows,
        [
            ("arc", 951, 168_236),
            ("lru", 951, 168_324),
            ("arc", 9510, 142_121),
            ("lru", 9510, 141_359),
            ("arc", 38_042, 121_287),
            ("lru", 38_042, 109_725),
        ]
    );
    let first = &objects[2];
    assert_eq!((first["requests"].as_u64(), first["accesses"].as_u64()), (Some(14_375), Some(171_569)));
    for (key, expected) in
        [("block_miss_ratio", 0.828_361), ("request_miss_ratio", 0.7777), ("byte_miss_ratio", 0.8284)]
    {
        assert!((first[key].as_f64().unwrap() - expected).abs() < 0.000_051, "{key} in {first}");
    }
}

#[test]
fn the_default_policy_is_the_one_that_is_tested_beside_it() {
    let (out, err, code) = cachesim(&[&boots(), "--policy", "default", "--size", "2853", "-j"]);
    assert_eq!(code, Some(0), "{err}");
    let object: Value = serde_json::from_str(&out).unwrap();
    let misses = object["block_misses"].as_u64().unwrap();
    assert!((140_305..167_061).contains(&misses), "between the optimum and ARC: {misses}");
    assert!(object["policy_bytes"].as_u64().unwrap() > 0);
}

#[test]
fn a_cache_device_below_gets_what_is_evicted_and_is_told_apart() {
    let (out, err, code) = cachesim(&[
        &boots(),
        "--policy",
        "arc",
        "--size",
        "9510",
        "--l2",
        "1,200000",
        "--l2-permille",
        "200",
        "-j",
    ]);
    assert_eq!(code, Some(0), "{err}");
    let objects: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let number = |object: &Value, key: &str| object[key].as_u64().unwrap();
    assert_eq!(objects.len(), 3);
    let [nothing, all, some] = &objects[..] else { panic!("{out}") };
    assert!(
        objects.iter().all(|object| number(object, "block_misses") == 142_121),
        "memory is as without it"
    );
    assert!(number(nothing, "l2_hits") < 100 && number(nothing, "l2_capacity_blocks") == 1, "{nothing}");
    // One that holds everything that was ever evicted misses what was never seen before, and what memory still has.
    let footprint = 95_105;
    assert_eq!(number(all, "block_misses") - number(all, "l2_hits"), footprint, "{all}");
    assert!(number(all, "l2_written_blocks") <= footprint);
    let hits = number(some, "l2_hits");
    assert!(hits > 1000 && hits < number(all, "l2_hits"), "{some}");
    let both = some["both_miss_ratio"].as_f64().unwrap();
    assert!((both - (142_121 - hits) as f64 / 171_569.0).abs() < 1e-9, "{some}");
    let (out, _, code) = cachesim(&[&boots(), "--policy", "lru", "--size", "951", "--l2", "4000"]);
    assert_eq!(code, Some(0));
    assert!(
        out.lines().next().unwrap().contains("L2HITS") && out.contains("misses of the two together"),
        "{out}"
    );
    for (option, blocks, why) in [
        ("--l2", "0", "0 blocks hold nothing"),
        ("--size", "0", "0 blocks hold nothing"),
        ("--size", "18446744073709551615", "blocks at most"),
        ("--l2", "18446744073709551615", "blocks at most"),
        ("--size", "18446744073709551616", "too large"),
    ] {
        let (_, err, code) = cachesim(&[&boots(), option, blocks]);
        assert_eq!(code, Some(2), "{option} {blocks}: {err}");
        assert!(err.contains(why), "{err}");
    }
}

const TINY: &str = "time_us,op,offset,length\n0,R,0,8192\n1,W,4096,4096\n2,R,0,512\n";

#[test]
fn people_get_a_table_of_all_policies() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("tiny.csv");
    std::fs::write(&trace, TINY).unwrap();
    let (out, err, code) = cachesim(&[trace.to_str().unwrap(), "--size", "1", "--policy", "lru"]);
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(
        out,
        "POLICY  BLOCKS    SIZE  MISSES    MISS  REQUESTS   BYTES\n\
         lru          1      4K       3  75.00%    66.67%  68.00%\n\n\
         3 requests, 4 block accesses. MISS of these, REQUESTS with a missed block, BYTES in missed blocks\n"
    );
}

/// After hours of a first pass the second found nothing: "the file is empty"; or waited for ever for somebody to write it
/// again.
#[test]
fn a_pipe_can_be_read_once_and_that_is_said() {
    let from_pipe = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millpond"));
        command.args(["cachesim", "/dev/stdin"]).args(words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // Nobody reads it where it is refused.
        let _refused = child.stdin.take().unwrap().write_all(TINY.as_bytes());
        let output = child.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (text(output.stdout), text(output.stderr), output.status.code())
    };
    let (out, err, code) = from_pipe(&["--size", "1", "--l2", "2"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("3 requests, 4 block accesses"), "{out}");
    let relative: [&[&str]; 3] = [&[], &["--permille", "100"], &["--size", "1", "--l2-permille", "100"]];
    for words in relative {
        let (out, err, code) = from_pipe(words);
        assert_eq!((out.as_str(), code), ("", Some(1)), "{words:?}: {err}");
        let says = "/dev/stdin: sizes in thousandths of the footprint take two passes";
        assert!(err.contains(says) && err.contains("--size"), "{words:?}: {err}");
    }
}

#[test]
fn a_bad_record_is_named_by_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("bad.csv");
    let path = trace.to_str().unwrap();
    for (text, says) in [
        ("", "the file is empty: the first line of a trace is 'time_us,op,offset,length'"),
        ("0,R,0,512\n", "line 1: the first line of a trace is 'time_us,op,offset,length'"),
        ("time_us,op,offset,length\n0,R,0,512\n1,R,0,0\n", "line 3: length is 0 bytes, not 1 to 1073741824"),
        ("time_us,op,offset,length\n0,Q,0,512\n", "line 2: op is 'Q', neither R nor W"),
        ("time_us,op,offset,length\n0,R,0\n", "line 2: 3 fields where 'time_us,op,offset,length' are 4"),
    ] {
        std::fs::write(&trace, text).unwrap();
        let (out, err, code) = cachesim(&[path, "--size", "10"]);
        assert_eq!((out.as_str(), code), ("", Some(1)), "{err}");
        assert!(err.contains(says) && err.contains(path), "{err}");
    }
    let packed = std::fs::read(boots()).unwrap();
    std::fs::write(&trace, &packed[..packed.len() / 2]).unwrap();
    let (_, err, code) = cachesim(&[path, "--size", "10"]);
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("line "), "half a frame is an error at the line it ends in: {err}");
}

#[test]
fn wrong_words_are_answered_with_what_there_is() {
    let (_, err, code) = cachesim(&[&boots(), "--policy", "belady", "--size", "10"]);
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("no policy 'belady': there are lru, fifo, arc, default"), "{err}");
    let (_, err, code) = cachesim(&["/nowhere.csv", "--size", "10"]);
    assert_eq!(code, Some(1));
    assert!(err.contains("cannot open '/nowhere.csv'"), "{err}");
}
