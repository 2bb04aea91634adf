//! What commands print, to the letter: golden files in `transcripts/`, one per fixture or subject.
//!
//! A transcript is a list of `$ command` lines, each with what it printed, lines of standard error marked with
//! `!`, and its exit code if that is not 0. After a wanted change, write them anew and read the difference:
//!
//!     MILLPOND_BLESS=1 cargo test -p millpond --test transcripts

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "what fails here fails a test, and what was not run is said; the world outside is real"
)]

mod support;

use std::{fmt::Write as _, fs, path::PathBuf};

use support::Lab;

/// Compares the transcript `name` with what its commands print now in `lab`; for a new one, `commands` are run.
#[track_caller]
fn transcript(name: &str, lab: &Lab, commands: &[&str]) {
    let mut now = String::new();
    for line in commands {
        writeln!(now, "$ {line}").expect("a String takes any text");
        let mut words = line.split_whitespace();
        let outcome = lab.run_args(words.next().expect("a program"), words);
        now.push_str(&outcome.stdout);
        for line in outcome.stderr.lines() {
            writeln!(now, "! {line}").expect("a String takes any text");
        }
        if outcome.code != Some(0) {
            writeln!(now, "[exit {}]", outcome.code.map_or("by signal".into(), |code| code.to_string()))
                .expect("a String takes any text");
        }
        now.push('\n');
    }
    let path =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts").join(format!("{name}.txt"));
    if std::env::var_os("MILLPOND_BLESS").is_some() {
        fs::write(&path, &now).expect("the repository is writable");
        return;
    }
    let golden = fs::read_to_string(&path).unwrap_or_default();
    if golden != now {
        let at = golden.lines().zip(now.lines()).position(|(a, b)| a != b);
        let at = at.unwrap_or_else(|| golden.lines().count().min(now.lines().count()));
        panic!(
            "{} differs from line {} on:\n  then: {:?}\n  now:  {:?}\nall of it now:\n{now}",
            path.display(),
            at + 1,
            golden.lines().nth(at),
            now.lines().nth(at)
        );
    }
}

fn fixture(name: &str) -> Lab {
    Lab::at(fixtures::pool(name).dir)
}

#[test]
fn help() {
    transcript(
        "help",
        &Lab::empty(),
        &[
            "millpond --help",
            "millpond zpool --help",
            "millpond zpool import --help",
            "millpond zpool export --help",
            "millpond zpool status --help",
            "millpond zpool list --help",
            "millpond zpool get --help",
            "millpond zfs --help",
            "millpond zfs list --help",
            "millpond zfs get --help",
            "millpond serve --help",
            "millpond verify --help",
            "millpond image --help",
            "millpond ls --help",
            "millpond cat --help",
            "millpond get --help",
            "millpond dump --help",
            "zpool --help",
            "zpool list --help",
            "zfs --help",
            "zfs get --help",
        ],
    );
}

#[test]
fn wrong_usage() {
    transcript(
        "usage",
        &fixture("single"),
        &[
            "millpond",
            "millpond nonsense",
            "millpond zpool",
            "millpond zpool list --nonsense",
            "millpond zpool list -o size,nonsense",
            "millpond zpool get",
            "millpond zpool get nonsense",
            "millpond zpool get -o name,nonsense all",
            "millpond zpool export",
            "millpond zpool import -n psingle",
            "millpond zpool import -o ashift=9 psingle",
            "millpond zpool import -a psingle",
            "millpond zfs list -t nonsense",
            "millpond zfs list -s nonsense",
            "millpond zfs get -s nonsense all",
            "millpond zfs get nonsense psingle",
            "zpool get nonsense",
            "zfs list -o nonsense",
            "millpond serve --nbd nonsense",
        ],
    );
}

#[test]
fn one_disk() {
    transcript(
        "single",
        &fixture("single"),
        &[
            "millpond -d . zpool import",
            "millpond zpool import -d .",
            "millpond -d . zpool status",
            "millpond -d . zpool status -x",
            "millpond -d . zpool status -x psingle",
            "millpond -d . zpool status -g",
            "millpond -d . zpool list",
            "millpond -d . zpool list -v",
            "millpond -d . zpool list -Hpv",
            "millpond -d . zpool list -o name,free,cap,ashift,delegation,feature@async_destroy",
            "millpond -d . zpool list 7519396386605996200",
            "millpond -d . zpool get size,health,feature@lz4_compress psingle",
            "millpond -d . zpool get -Hp -o value,property free,alloc psingle",
            "millpond -d . zpool get name,ashift,org.example:note psingle",
            "millpond -d . zfs list",
            "millpond -d . zfs list -t all",
            "millpond -d . zfs list -Hp -o name,used,referenced -t snapshot",
            "millpond -d . zfs list psingle/v1@s1",
            "millpond -d . zfs list -t snap psingle/v1",
            "millpond -d . zfs list -t volume psingle/fs",
            "millpond -d . zfs list -d 1 psingle",
            "millpond -d . zfs list -r psingle/v1 -t all",
            "millpond -d . zfs list -o space",
            "millpond -d . zfs list -S used -o name,used,volsize",
            "millpond -d . zfs list -s volsize -s name -o name,volsize,compression,creation",
            "millpond -d . zfs list psingle psingle psingle/nope nope/vol",
            "millpond -d . zfs list psingle//v1",
            "millpond -d . zfs get compression,volsize,origin psingle/v1",
            "millpond -d . zfs get -r used psingle",
            "millpond -d . zfs get -t snapshot used psingle/v1",
            "millpond -d . zfs get -s local,inherited all psingle/fs",
            "millpond -d . zfs get -H -o all atime psingle/fs",
            "millpond -d . zfs get all psingle/v1@s1",
            "millpond -d . zpool status nope",
            "millpond -d . zpool get size nope",
            "millpond -d . zpool list -j",
            "millpond -d . zpool list -jvp",
            "millpond -d . zpool status -j",
            "millpond -d . zpool get -j size,feature@lz4_compress",
            "millpond -d . zpool import -j",
            "millpond -d . zfs list -j -t all -o name,used",
            "millpond -d . zfs get -j compression,mountpoint psingle/fs psingle/v1@s1",
        ],
    );
}

#[test]
fn called_by_the_names_of_openzfs() {
    transcript(
        "links",
        &fixture("mirror2"),
        &["zpool -d . list", "zpool -d . status", "zfs -d . list", "zfs -d . get used pmirror2"],
    );
}

#[test]
fn layouts() {
    for (name, pool) in [
        ("raidz2x6", "praidz2x6"),
        ("mirror2", "pmirror2"),
        ("l2arc", "pl2arc"),
        ("removal", "premoval"),
        ("expansion", "pexpansion"),
        ("dedup", "pdedup"),
        ("crash-main", "pcrashmain"),
    ] {
        transcript(
            name,
            &fixture(name),
            &[
                "zpool -d . import",
                "zpool -d . status",
                "zpool -d . list -v",
                &format!("zpool -d . get all {pool}"),
                "zfs -d . list -t all -o name,used,refer,ratio,origin",
            ],
        );
    }
}

#[test]
fn a_pool_is_remembered_from_import_to_export() {
    let fixture = fixtures::pool("mirror2");
    let lab = Lab::at(&fixture.dir);
    transcript(
        "import",
        &lab,
        &[
            "zpool list",
            "zpool import -d . nope",
            "zpool import -d . pmirror2",
            "zpool list -o name,health",
            "zfs list -o name,used",
            "zpool import -d .",
            "zpool import -d . pmirror2",
            "zpool export nope",
            "zpool export pmirror2",
            "zpool list",
            "zpool import -d . -a",
            "zpool list -o name,health",
        ],
    );
}
