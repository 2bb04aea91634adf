//! libiscsi's conformance suite over volumes of a pool that is written to: what it passes over a volume in memory it
//! passes over a live one, with blocks smaller and larger than a physical block, compressed and not, with and without
//! a log device.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test may panic: that is how it fails")]

mod support;

use std::process::{Command, Stdio};

use support::{Lab, served_as};

/// What writes, unmaps, compares, or asks what is there; each in a process of its own, for one leaves traces in the next.
const TESTS: [&str; 29] = [
    "CompareAndWrite.DpoFua",
    "CompareAndWrite.InvalidDataOutSize",
    "CompareAndWrite.Miscompare",
    "CompareAndWrite.Simple",
    "CompareAndWrite.Unwritten",
    "GetLBAStatus.BeyondEol",
    "GetLBAStatus.Simple",
    "ModeSense6.AllPages",
    "ModeSense6.Control",
    "ModeSense6.Control-D_SENSE",
    "ModeSense6.Residuals",
    "Unmap.Simple",
    "Unmap.VPD",
    "Unmap.ZeroBlocks",
    "Write10.Async",
    "Write10.DpoFua",
    "Write10.Simple",
    "Write12.DpoFua",
    "Write12.Simple",
    "Write16.DpoFua",
    "Write16.Simple",
    "WriteSame10.Check",
    "WriteSame10.Simple",
    "WriteSame10.Unmap",
    "WriteSame10.UnmapUnaligned",
    "WriteSame16.Check",
    "WriteSame16.Simple",
    "WriteSame16.Unmap",
    "WriteSame16.UnmapUnaligned",
];

/// Runs one test; what the suite said.
fn ask(tool: &std::path::Path, test: &str, url: &str) -> String {
    let output = Command::new("timeout")
        .arg("60")
        .arg(tool)
        .args(["-d", "-t", &format!("ALL.{test}"), url])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Assertions that failed. The suite's exit code says nothing about them.
fn failures(said: &str) -> Vec<&str> {
    let numbered = |line: &&str| {
        line.trim_start().split_once(". test_").is_some_and(|(n, _)| n.bytes().all(|b| b.is_ascii_digit()))
    };
    said.lines().filter(numbered).collect()
}

fn all_tests(tool: &std::path::Path, name: &str, url: &str) {
    // Some write every block of a range alone: where each has to be durable that takes its time, and shows nothing.
    let is_long = |test: &&str| {
        [".Simple", ".Check", ".Unmap"].iter().any(|part| test.ends_with(part)) && !test.starts_with("Get")
    };
    for test in TESTS.into_iter().filter(|test| name != "stable" || !is_long(test)) {
        let said = ask(tool, test, url);
        let is_whole = said.contains("Run Summary") && !said.contains("SKIPPED");
        assert!(is_whole && failures(&said).is_empty(), "{name}: {test}:\n{said}");
    }
    // All of it holds but the one thing that contradicts what was asked: an LBA inside a physical block, for which it
    // wants the state of the next.
    let said = ask(tool, "GetLBAStatus.UnmapSingle", url);
    let wrong = failures(&said);
    assert!(
        wrong.len() == 1 && wrong[0].contains("lba offset in first descriptor does not"),
        "{name}:\n{said}"
    );
    assert!(
        said.contains("asserts    102    102    101"),
        "{name}: it ends where it does elsewhere:\n{said}"
    );
}

#[test]
fn live_volumes_pass_what_volumes_in_memory_pass() {
    let Some(tool) = fixtures::tool("iscsi-test-cu") else { return };
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    lab.run(&format!("zpool create --size 2G tank {here}/a log {here}/b")).ok();
    for (name, options) in
        [("small", "-b 4K"), ("usual", "-b 16K"), ("stable", "-b 8K -o compression=off -o sync=always")]
    {
        lab.run(&format!("zfs create -s -V 1G {options} tank/{name}")).ok();
    }
    let daemon = lab.serve("serve --iscsi 127.0.0.1:0 tank");
    std::thread::scope(|scope| {
        for name in ["small", "usual", "stable"] {
            let url = served_as(&lab, &format!("tank/{name}"), "iscsi");
            let tool = &tool;
            scope.spawn(move || all_tests(tool, name, &url));
        }
    });
    assert_eq!(daemon.stop().code(), Some(0));
    lab.run("zpool export tank").ok();
    fixtures::zdb_check(&[], lab.cwd(), "tank").unwrap();
}
