//! Clients nobody here wrote read every volume of every fixture: libnbd's `nbdcopy` over NBD, QEMU with libiscsi
//! over iSCSI. What they get has the hash of the manifest.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use crate::support::{Daemon, Lab, served_as, sha256};

/// Crashed pools are read without replay: their manifest says what is there after it.
fn hashes_hold(fixture: &fixtures::Fixture) -> bool {
    !fixture.name.starts_with("crash-")
}

#[test]
fn every_volume_reads_right_over_nbd_and_iscsi() {
    let (Some(nbdcopy), Some(qemu_img)) = (fixtures::tool("nbdcopy"), fixtures::tool("qemu-img")) else {
        return;
    };
    let scratch = tempfile::tempdir_in(fixtures::scratch()).unwrap();
    let out = scratch.path().join("out.raw");
    let (mut volumes, mut pools) = (0, 0);
    for fixture in fixtures::all() {
        if fixture.manifest.zvols.is_empty() {
            continue;
        }
        let lab = Lab::at(&fixture.dir);
        let daemon = lab.serve("-d . serve --readonly -f --nbd 127.0.0.1:0 --iscsi 127.0.0.1:0");
        pools += 1;
        for zvol in &fixture.manifest.zvols {
            let nbd = url(&daemon, "nbd", &format!("/{}", zvol.name));
            // A crashed pool may lack what only its log knows.
            let Some(nbd) = nbd.filter(|_| hashes_hold(&fixture)) else {
                assert!(!hashes_hold(&fixture), "{}: {} is not served", fixture.name, zvol.name);
                continue;
            };
            run(&fixture.name, Command::new(&nbdcopy).arg(nbd).arg(fresh(&out, zvol.size)));
            assert_eq!(fs::metadata(&out).unwrap().len(), zvol.size, "{} {}", fixture.name, zvol.name);
            assert_eq!(sha256(&out), zvol.sha256, "{}: {} over NBD", fixture.name, zvol.name);

            let iscsi = served_as(&lab, &zvol.name, "iscsi");
            run(
                &fixture.name,
                Command::new(&qemu_img).args(["convert", "-O", "raw", &iscsi]).arg(fresh(&out, 0)),
            );
            assert_eq!(sha256(&out), zvol.sha256, "{}: {} over iSCSI", fixture.name, zvol.name);
            volumes += 1;
        }
        assert_eq!(daemon.stop().code(), Some(0), "{}", fixture.name);
    }
    eprintln!("{volumes} volumes and snapshots of {pools} pools");
    assert!(volumes >= 40, "the repository's own fixtures alone have more");
}

/// The first address of `protocol` that ends like this.
fn url<'a>(daemon: &'a Daemon, protocol: &str, end: &str) -> Option<&'a str> {
    daemon.urls(protocol).into_iter().find(|url| url.ends_with(end))
}

/// A file of zeroes of this size: `nbdcopy` skips holes.
fn fresh(path: &Path, size: u64) -> &Path {
    fs::File::create(path).and_then(|file| file.set_len(size)).unwrap();
    path
}

#[track_caller]
fn run(fixture: &str, command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().expect("it starts");
    assert!(output.status.success(), "{fixture}: {command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A server's process opens sockets, and they become ours: what systemd does.
const ACTIVATE: &str = "import fcntl, os, socket, sys
local, tcp = socket.socket(socket.AF_UNIX), socket.socket()
local.bind(sys.argv[1])
tcp.bind(('127.0.0.1', 0))
for number, sock in [(23, local), (24, tcp)]:
    sock.listen(8)
    os.dup2(sock.fileno(), number)
os.dup2(23, 3), os.dup2(24, 4)
os.environ.update(LISTEN_FDS='2', LISTEN_PID=str(os.getpid()))
os.execv(sys.argv[2], sys.argv[2:])";

fn reads_right(lab: &Lab, url: &str, nbdcopy: &Path) {
    let fixture = fixtures::pool("single");
    let zvol =
        fixture.manifest.zvols.iter().find(|zvol| url.contains(&zvol.name)).expect("one of the pool's");
    let out = lab.path("out.raw");
    run(url, Command::new(nbdcopy).arg(url).arg(fresh(&out, zvol.size)));
    assert_eq!(sha256(&out), zvol.sha256, "{url}");
}

fn both_ways_read_right(lab: &Lab, daemon: &Daemon, nbdcopy: &Path) {
    for protocol in ["nbd", "nbd+unix"] {
        let urls = daemon.urls(protocol);
        assert!(!urls.is_empty(), "{protocol}: {:?}", daemon.lines);
        urls.iter().filter(|url| !url.contains('@')).for_each(|url| reads_right(lab, url, nbdcopy));
    }
}

#[test]
fn nbd_is_served_on_unix_sockets_in_place_of_those_of_the_dead() {
    let Some(nbdcopy) = fixtures::tool("nbdcopy") else { return };
    let lab = Lab::at(fixtures::pool("single").dir);
    let path = lab.path("nbd .sock");
    let line = "-d . serve --readonly --nbd unix:UNIX --nbd 127.0.0.1:0";
    // A path with a space in it, as a word of its own.
    let serve = |lab: &Lab| {
        let mut command = lab.command("millpond");
        let unix = format!("unix:{}", path.display());
        command.args(line.split_whitespace().map(|word| if word == "unix:UNIX" { &unix } else { word }));
        lab.serve_by(&mut command)
    };
    let daemon = serve(&lab);
    both_ways_read_right(&lab, &daemon, &nbdcopy);
    // One that lives is not pushed aside, whatever else is there is not touched.
    let other = Lab::at(fixtures::pool("mirror2").dir);
    for (path, says) in
        [(path.clone(), "another daemon is listening on"), (lab.path("out.raw"), "is in the way")]
    {
        let nbd = format!("unix:{}", path.display());
        let refused = other.run_args("millpond", ["-d", ".", "serve", "--readonly", "--nbd", &nbd]).fails(1);
        assert!(refused.contains(says) && refused.contains("--nbd"), "{refused}");
        assert!(path.exists());
    }
    daemon.signal("KILL");
    drop(daemon);
    assert!(path.exists(), "nobody was left to remove it");
    let daemon = serve(&lab);
    let url = daemon.urls("nbd+unix").into_iter().find(|url| !url.contains('@')).unwrap();
    reads_right(&lab, url, &nbdcopy);
    assert_eq!(daemon.stop().code(), Some(0));
    assert!(!path.exists(), "removed at the end");
}

#[test]
fn nbd_is_served_on_sockets_that_somebody_else_opened() {
    let (Some(nbdcopy), Some(python)) = (fixtures::tool("nbdcopy"), fixtures::tool("python3")) else {
        return;
    };
    let lab = Lab::at(fixtures::pool("single").dir);
    let path = lab.path("given.sock");
    let wrapper = [python.as_os_str(), "-c".as_ref(), ACTIVATE.as_ref(), path.as_os_str()];
    let daemon = lab.serve_through(&wrapper, "-d . serve --readonly");
    assert!(daemon.urls("iscsi").is_empty(), "nobody asked for it: {:?}", daemon.lines);
    both_ways_read_right(&lab, &daemon, &nbdcopy);
    assert_eq!(daemon.stop().code(), Some(0));
    assert!(path.exists(), "it is not ours");
}

/// What systemd does with `Accept=yes`: one daemon for each client, whose connection it is given.
#[test]
fn a_socket_that_is_connected_already_is_refused() {
    const CONNECTED: &str = "import os, socket, sys
pair = socket.socketpair()
os.dup2(pair[0].fileno(), 23), os.dup2(23, 3)
os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid()))
os.execv(sys.argv[1], sys.argv[1:])";
    let Some(python) = fixtures::tool("python3") else { return };
    let lab = Lab::at(fixtures::pool("single").dir);
    let wrapper = [python.as_os_str(), "-c".as_ref(), CONNECTED.as_ref()];
    let output = lab.through(&wrapper, "-d . serve --readonly").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("number 1") && said.contains("Accept=no"), "{said}");
}

#[test]
fn writes_are_refused_by_a_read_only_daemon() {
    let (Some(qemu_io), Some(nbdinfo)) = (fixtures::tool("qemu-io"), fixtures::tool("nbdinfo")) else {
        return;
    };
    let lab = Lab::at(fixtures::pool("single").dir);
    let daemon = lab.serve("-d . serve --readonly --nbd 127.0.0.1:0 --iscsi 127.0.0.1:0");
    for protocol in ["nbd", "iscsi"] {
        let url = served_as(&lab, "psingle/v1", protocol);
        let output = Command::new(&qemu_io).args(["-f", "raw", "-c", "write 0 4096", &url]).output().unwrap();
        let said =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(!output.status.success() || !said.contains("wrote 4096/4096"), "{protocol}: {said}");
    }
    let url = served_as(&lab, "psingle/v1", "nbd");
    let output = Command::new(nbdinfo).arg(&url).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("is_read_only: true"), "{said}");
    assert_eq!(daemon.stop().code(), Some(0));
}
