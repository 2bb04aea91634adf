//! What a daemon takes for itself: a state directory has one, and so have a socket and a port; who comes second, or looks for it
//! elsewhere, is told, and leaves everything alone. And of descriptors it takes what it may have.

use std::{
    ffi::OsStr,
    fs,
    net::TcpStream,
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _},
        net::UnixListener,
    },
};

use super::{SERVE, ask, files, lab, with_files};
use crate::{
    starts::{SERVE as SERVE_ALL, pool, stop},
    support::Lab,
};

#[test]
fn a_living_daemon_is_not_pushed_aside_and_a_dead_one_is_replaced() {
    let lab = lab();
    let daemon = lab.serve(SERVE);
    let error = lab.run(SERVE).fails(1);
    assert!(error.contains("state directory of another daemon"), "{error}");
    let error = lab.run(&format!("--state {} {SERVE}", lab.path("other").display())).fails(1);
    assert!(error.contains("another daemon is listening on") && error.contains("--socket"), "{error}");
    assert_eq!(ask(&lab, "/v1/version").1["pid"], daemon.pid(), "the first one still answers");
    daemon.signal("KILL");
    drop(daemon);
    assert!(lab.socket().exists(), "nobody removed it");
    assert_eq!(lab.run("zpool list -H").code, Some(0), "a dead socket is nobody to ask");
    let second = lab.serve(SERVE);
    assert_eq!(second.stop().code(), Some(0));
}

/// The daemon's socket was where a timer's command did not look: all pools were healthy, whatever the daemon had suspended; and
/// what was changed went past it.
#[test]
fn a_daemon_that_does_not_answer_where_it_is_looked_for_is_missed() {
    let lab = Lab::scratch();
    pool(&lab, "tank", "HERE/a");
    let other = format!("--socket {}", lab.path("other.sock").display());
    let daemon = lab.serve(&format!("{other} {SERVE_ALL}"));
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

/// A monitor without root's rights told of dead pools that were well: that it may not look was taken for absence, of devices and of
/// the daemon alike.
#[test]
fn who_may_not_look_is_told_that_and_not_that_pools_are_away() {
    let lab = Lab::scratch();
    pool(&lab, "tank", "HERE/a");
    let state = lab.path("state");
    fs::set_permissions(&state, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(state.join("pools.json"), fs::Permissions::from_mode(0o644)).unwrap();
    let may_not_look = |is_hidden: bool| {
        for line in
            ["zpool list -H", "zpool status -x", "zpool status tank", "zfs list tank/v", "zpool iostat"]
        {
            let Some(said) = lab.run_as_nobody(&format!("{line} --state {}", state.display())) else {
                return;
            };
            assert_eq!((said.code, said.stdout.as_str()), (Some(1), ""), "{line}: {said:?}");
            let why = "cannot open 'tank': this user may not read its devices (run as one who may)\nit was imported from ";
            assert!(said.stderr.contains(why) && !said.stderr.contains("none of its"), "{line}: {said:?}");
            let hidden =
                format!("a daemon may have the state directory '{}', which this user", state.display());
            assert_eq!(said.stderr.contains(&hidden), is_hidden, "{line}: {said:?}");
        }
    };
    may_not_look(false);
    let daemon = lab.serve(SERVE_ALL);
    may_not_look(true);
    stop(daemon);
    may_not_look(true);
}

/// Two told people of each other's pools, and wrote over what the other remembered.
#[test]
fn a_state_directory_has_one_daemon() {
    let lab = Lab::scratch();
    pool(&lab, "tank", "HERE/a");
    let daemon = lab.serve(SERVE_ALL);
    // One that starts would never end by itself.
    let bounded = [OsStr::new("timeout"), OsStr::new("60")];
    let elsewhere = format!("--socket {} {SERVE_ALL}", lab.path("other.sock").display());
    let output = lab.through(&bounded, &elsewhere).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    for part in ["state directory of another daemon", &format!("process {}", daemon.pid()), "--state"] {
        assert!(said.contains(part), "no {part:?} in: {said}");
    }
    stop(daemon);
    let daemon = lab.serve(SERVE_ALL);
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
    let said = lab.run(SERVE_ALL).fails(1);
    assert!(said.contains("state directory of another daemon"), "{said}");
    assert_eq!(inode(), before);
}

#[test]
fn a_file_in_the_place_of_the_socket_is_left_alone() {
    let lab = lab();
    fs::write(lab.socket(), "precious").unwrap();
    let error = lab.run(SERVE).fails(1);
    assert!(error.contains("it is not a socket"), "{error}");
    assert_eq!(fs::read_to_string(lab.socket()).unwrap(), "precious");
}

#[test]
fn a_port_that_is_taken_is_named() {
    let lab = lab();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    for protocol in ["nbd", "iscsi"] {
        let error = lab.run(&format!("-d . serve --readonly --{protocol} {address}")).fails(1);
        assert!(
            error.contains(&format!("cannot listen on {address}")) && error.contains("in use"),
            "{error}"
        );
        assert!(!lab.socket().exists(), "a daemon that did not start leaves nothing behind");
    }
}

#[test]
fn a_flood_of_connections_takes_nobody_elses_descriptors() {
    let lab = lab();
    let wrapper = with_files(64, 400);
    let mut daemon = lab.serve_through(&wrapper.each_ref().map(OsStr::new), SERVE);
    assert_eq!(files(&daemon), [400, 400], "as many as it may");
    let place = |url: &str| url.split('/').nth(2).unwrap().to_owned();
    let (iscsi, nbd) = (place(daemon.urls("iscsi")[0]), place(daemon.urls("nbd")[0]));
    // More than it may have open, and none of them says a word.
    let flood: Vec<TcpStream> =
        (0..450).map(|n| TcpStream::connect([&iscsi, &nbd][n % 2]).unwrap()).collect();
    for _ in 0..3 {
        assert_eq!(ask(&lab, "/v1/pools/psingle").1["state"], "ONLINE");
        assert!(lab.run("status psingle").ok().contains("state: ONLINE"));
    }
    drop(flood);
    daemon.signal("TERM");
    assert_eq!(daemon.wait().code(), Some(0));
    let log = daemon.stderr();
    assert!(!log.contains("Too many open files"), "{log}");
    let said = "at most 400 files can be open, so ";
    assert_eq!(log.matches(said).count(), 1, "{log}");
}
