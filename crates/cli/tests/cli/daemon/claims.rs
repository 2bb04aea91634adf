//! What a daemon takes for itself: a state directory has one daemon, and so has a socket; who comes second, or looks for it
//! elsewhere, is told, and leaves everything alone.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{fs::MetadataExt as _, net::UnixListener},
};

use crate::{
    starts::{SERVE, pool, stop},
    support::Lab,
};

/// The daemon's socket was where a timer's command did not look: all pools were healthy, whatever the daemon had suspended; and
/// what was changed went past it.
#[test]
fn a_daemon_that_does_not_answer_where_it_is_looked_for_is_missed() {
    let lab = Lab::scratch();
    pool(&lab, "tank", "HERE/a");
    let other = format!("--socket {}", lab.path("other.sock").display());
    let daemon = lab.serve(&format!("{other} {SERVE}"));
    let misses = |line: &str| {
        let said = lab.run(line);
        assert_eq!(said.code, Some(1), "{line}: {said:?}");
        for part in ["--socket or MILLPOND_SOCKET", &format!("a daemon (process {}) has", daemon.pid())] {
            assert_eq!(said.stderr.matches(part).count(), 1, "{line}: {said:?}");
        }
        assert!(!said.stdout.contains("healthy"), "{line}: {said:?}");
        said.stdout
    };
    for line in ["zpool status -x", "zpool status -x tank", "zpool iostat", "share list"] {
        misses(line);
    }
    assert_eq!(misses("zpool list -H -o name"), "tank\n");
    assert_eq!(misses("zfs list -H -o name tank/v"), "tank/v\n");
    let create = format!("zpool create --size 128M lake {}", lab.path("b").display());
    for line in ["zfs snapshot tank/v@s", "zpool export tank", "sbdadm list-lu", &create] {
        assert_eq!(misses(line), "", "{line}");
    }
    assert!(!lab.path("b").exists());
    assert_eq!(lab.run(&format!("{other} zpool status -x")).ok(), "all pools are healthy\n");
    // Who says where is believed.
    assert_eq!(lab.run(&format!("-d {} zpool list -H -o name", lab.cwd().display())).ok(), "tank\n");
    stop(daemon);
    assert_eq!(lab.run("zpool status -x").ok(), "all pools are healthy\n");
}

/// Two told people of each other's pools, and wrote over what the other remembered.
#[test]
fn a_state_directory_has_one_daemon() {
    let lab = Lab::scratch();
    pool(&lab, "tank", "HERE/a");
    let daemon = lab.serve(SERVE);
    // One that starts would never end by itself.
    let bounded = [OsStr::new("timeout"), OsStr::new("60")];
    let elsewhere = format!("--socket {} {SERVE}", lab.path("other.sock").display());
    let output = lab.through(&bounded, &elsewhere).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    for part in ["state directory of another daemon", &format!("process {}", daemon.pid()), "--state"] {
        assert!(said.contains(part), "no {part:?} in: {said}");
    }
    stop(daemon);
    let daemon = lab.serve(SERVE);
    stop(daemon);
}

/// Of two that were started at the same moment the one that gave up removed the socket of the other.
#[test]
fn a_daemon_whose_state_directory_is_anothers_leaves_the_socket_alone() {
    let lab = Lab::scratch();
    fs::create_dir_all(lab.path("state")).unwrap();
    // The other one's: claimed, and nobody listens yet.
    let claim = fs::File::create(lab.path("state/daemon")).unwrap();
    claim.try_lock().unwrap();
    drop(UnixListener::bind(lab.socket()).unwrap());
    let inode = || fs::symlink_metadata(lab.socket()).map(|socket| socket.ino()).unwrap();
    let before = inode();
    let said = lab.run(SERVE).fails(1);
    assert!(said.contains("state directory of another daemon"), "{said}");
    assert_eq!(inode(), before);
}
