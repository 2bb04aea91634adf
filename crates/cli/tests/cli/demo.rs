//! `scripts/demo`, the first thing that many run: it makes a pool once, and touches nothing that it has not made.

use std::{fs, process::Command};

use crate::support::Lab;

/// The first start removed a directory `disks` that was somebody's, and the list of his imported pools.
#[test]
fn scripts_demo_creates_a_pool_and_the_second_time_imports_it() {
    let lab = Lab::scratch();
    let demo = lab.cwd().join("demo");
    let (theirs, mine) = (lab.path("state/pools.json"), demo.join("disks/mine"));
    for (file, content) in [(&theirs, "their pools"), (&mine, "my disk")] {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, content).unwrap();
    }
    let begin = || {
        Command::new(fixtures::repository().join("scripts/demo"))
            .env("MILLPOND", env!("CARGO_BIN_EXE_millpond"))
            .env("MILLPOND_DEMO_DIR", &demo)
            .env("MILLPOND_DEMO_SECONDS", "1")
            .env("MILLPOND_DEMO_NBD", "127.0.0.1:0")
            .env("MILLPOND_DEMO_ISCSI", "127.0.0.1:0")
            // The path of a socket has 107 bytes at most.
            .env("MILLPOND_DEMO_SOCKET", lab.socket())
            .env("MILLPOND_STATE", lab.path("state"))
            .output()
            .expect("it starts")
    };
    let run = || {
        let output = begin();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        for part in
            ["pool: demo", "raidz2", "logs", "cache", "nbd://127.0.0.1:", "iscsi://127.0.0.1:", "\nready\n"]
        {
            assert!(text.contains(part), "no {part:?} in:\n{text}");
        }
        text
    };
    let refused = begin();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("demo/disks is there") && said.contains("MILLPOND_DEMO_DIR="), "{said}");
    assert_eq!(fs::read_to_string(&mine).unwrap(), "my disk");
    fs::remove_dir_all(mine.parent().unwrap()).unwrap();
    // As if the first start had been interrupted.
    fs::create_dir(demo.join("disks")).unwrap();
    fs::write(demo.join("disks/disk1"), "a part").unwrap();
    fs::write(demo.join("begun"), "").unwrap();
    assert!(run().contains("zpool create"), "the first time it is created");
    let second = run();
    assert!(!second.contains("zpool create") && second.contains("zpool status"), "{second}");
    assert_eq!(fs::read_to_string(&theirs).unwrap(), "their pools");
}
