//! libiscsi's conformance suite over volumes of a pool that is written to, served by the daemon at two portals: every
//! test that a serious target must pass, and those that clusters and clones use besides, each in a process of its own.
//! What writes, unmaps and compares runs also with blocks as small as a physical one, and with blocks that have to be
//! durable each.
//!
//! The daemon and the volumes stay: a test that left a reservation, a mode or a unit attention behind would be found
//! out by the next. Several lanes, each with a volume of its own, run side by side.

use std::{
    path::Path,
    process::{Command, Stdio},
    sync::Mutex,
};

use fixtures::suite::{must, should, verdict};

use crate::support::{Lab, ask};

/// What writes, unmaps, compares, or asks what is there.
const WRITERS: [&str; 29] = [
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

/// Lanes with the usual volume.
const LANES: usize = 4;

/// Runs one test; what the suite said.
fn run(tool: &Path, test: &str, paths: &[String]) -> String {
    let output = Command::new("timeout")
        .arg("60")
        .arg(tool)
        .args(["-d", "-t", &format!("ALL.{test}")])
        .args(paths)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Every address of a volume: two paths.
fn paths(lab: &Lab, dataset: &str) -> Vec<String> {
    let body = ask(lab, "/v1/served");
    let served = body["served"].as_array().unwrap().iter().find(|served| served["dataset"] == dataset);
    let urls = served.unwrap_or_else(|| panic!("{dataset} is not served: {body:#}"))["urls"].clone();
    let urls = urls.as_array().unwrap().iter().filter(|url| url["protocol"] == "iscsi");
    let urls: Vec<String> = urls.map(|url| url["url"].as_str().unwrap().to_owned()).collect();
    assert_eq!(urls.len(), 2, "{urls:?}");
    urls
}

/// Runs tests of `queue` until there are none; what did not pass goes to `bad`.
fn lane(tool: &Path, paths: &[String], queue: &Mutex<Vec<String>>, bad: &Mutex<Vec<String>>) {
    loop {
        // Not within the condition: the lock would be held while the test runs.
        let next = queue.lock().unwrap().pop();
        let Some(test) = next else { return };
        let said = run(tool, &test, paths);
        if let Err(why) = verdict(&said) {
            bad.lock().unwrap().push(format!("{} {test} {why}:\n{said}", paths[0]));
        }
    }
}

#[test]
fn volumes_of_a_pool_pass_what_a_serious_target_must_pass() {
    let _turn = crate::alone();
    let Some(tool) = fixtures::tool("iscsi-test-cu") else { return };
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    lab.run(&format!("zpool create --size 3G tank {here}/a log {here}/b")).ok();
    let mut volumes =
        vec![("small".to_owned(), "-b 4K"), ("stable".to_owned(), "-b 8K -o compression=off -o sync=always")];
    volumes.extend((0..LANES).map(|n| (format!("usual{n}"), "-b 16K")));
    for (name, options) in &volumes {
        lab.run(&format!("zfs create -s -V 1G {options} tank/{name}")).ok();
    }
    let daemon = lab.serve("serve --iscsi 127.0.0.1:0 --iscsi 127.0.0.1:0 tank");
    // The long ones first, so that no lane is left with them in the end: they are last in the lists.
    let all: Vec<String> = should().into_iter().chain(must()).collect();
    assert_eq!(all.len(), 199);
    let writers = || WRITERS.into_iter().map(str::to_owned);
    // Some write every block of a range alone: where each has to be durable that takes its time, and shows nothing.
    let is_long = |test: &String| {
        [".Simple", ".Check", ".Unmap"].iter().any(|part| test.ends_with(part)) && !test.starts_with("Get")
    };
    let small = Mutex::new(writers().collect());
    let stable = Mutex::new(writers().filter(|test| !is_long(test)).collect());
    let (usual, bad) = (Mutex::new(all), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for (name, _) in &volumes {
            let paths = paths(&lab, &format!("tank/{name}"));
            let queue = match name.as_str() {
                "small" => &small,
                "stable" => &stable,
                _ => &usual,
            };
            let (tool, bad) = (&tool, &bad);
            scope.spawn(move || lane(tool, &paths, queue, bad));
        }
    });
    let bad = bad.into_inner().unwrap();
    assert!(bad.is_empty(), "{} tests did not pass:\n{}", bad.len(), bad.join("\n"));
    assert_eq!(daemon.stop().code(), Some(0));
    lab.run("zpool export tank").ok();
    fixtures::zdb_check(&[], lab.cwd(), "tank").unwrap();
}
