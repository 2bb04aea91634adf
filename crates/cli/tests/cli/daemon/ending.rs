//! Signals, and how it ends: cleanly whoever is connected, after what was begun, and not for a signal that was not meant.

use std::{
    ffi::OsStr,
    fs,
    net::TcpStream,
    os::unix::net::UnixStream,
    process::{Command, Stdio},
};

use super::{SERVE, ask, lab, operate};
use crate::support::{
    Lab, wait_until,
    wire::{Nbd, Wire as _},
};

#[test]
fn it_ends_at_sigint_and_says_everything_as_json() {
    let lab = lab();
    let mut daemon = lab.serve("-d . serve --readonly -j --nbd 127.0.0.1:0 psingle");
    let objects: Vec<serde_json::Value> =
        daemon.lines.iter().map(|line| serde_json::from_str(line).expect(line)).collect();
    assert_eq!(objects.len(), 5, "{objects:#?}");
    assert_eq!(objects[0]["dataset"], "psingle/v1");
    assert_eq!(objects[0]["protocol"], "nbd", "no iSCSI was asked for");
    assert_eq!(objects[0]["size"], 6 << 20);
    assert_eq!(objects[4]["event"], "ready");
    daemon.signal("INT");
    assert_eq!(daemon.wait().code(), Some(0));
    assert!(!lab.socket().exists());
}

#[test]
fn a_client_that_asks_nothing_does_not_keep_it_from_ending() {
    let lab = lab();
    let daemon = lab.serve(SERVE);
    let silent = UnixStream::connect(lab.socket()).unwrap();
    let address = daemon.urls("nbd")[0].split('/').nth(2).unwrap().to_owned();
    let idle = TcpStream::connect(address).unwrap();
    assert_eq!(daemon.stop().code(), Some(0));
    drop((silent, idle));
}

#[test]
fn a_terminal_that_is_closed_ends_it_cleanly_and_not_under_nohup() {
    // A session with a terminal of its own, and the other end of that, which stays open.
    const TERMINAL: &str = "import fcntl, os, pty, sys, termios\n\
        ends = pty.openpty()\n\
        [os.set_inheritable(end, True) for end in ends]\n\
        os.setsid()\n\
        fcntl.ioctl(ends[1], termios.TIOCSCTTY, 0)\n\
        os.execvp(sys.argv[1], sys.argv[1:])";
    let lab = lab();
    let nohup = ["sh", "-c", "trap '' HUP && exec \"$0\" \"$@\""].map(OsStr::new);
    let daemon = lab.serve_through(&nohup, SERVE);
    daemon.signal("HUP");
    assert_eq!(ask(&lab, "/v1/version").1["pid"], daemon.pid(), "it was not meant");
    assert_eq!(daemon.stop().code(), Some(0));

    let Some(python) = fixtures::tool("python3") else { return };
    // Whoever runs these tests may have them under nohup.
    let terminal = ["env", "--default-signal=HUP", python.to_str().unwrap(), "-c", TERMINAL].map(OsStr::new);
    let mut daemon = lab.serve_through(&terminal, SERVE);
    daemon.signal("HUP");
    assert_eq!(daemon.wait().code(), Some(0));
    assert!(!lab.socket().exists(), "the socket goes with the daemon");
}

/// The hook of a certificate's renewal took all disks away, and nothing started the daemon again: it had ended with success.
#[test]
fn without_a_terminal_it_reads_its_keys_again_at_sighup_and_goes_on() {
    let lab = lab();
    let keys = lab.path("keys.psk");
    fs::write(&keys, format!("pve1:{}\n", "5a".repeat(32))).unwrap();
    let wrapper = ["setsid", "env", "--default-signal=HUP"].map(OsStr::new);
    let daemon = lab.serve_through(&wrapper, &format!("{SERVE} --nbd-tls-psk {}", keys.display()));
    fs::write(&keys, "nonsense\n").unwrap();
    daemon.signal("HUP");
    wait_until(|| daemon.said("nbd: TLS stays as it was: TLS cannot be used with what is in") > 0);
    assert_eq!(ask(&lab, "/v1/version").1["pid"], daemon.pid(), "it was not meant");
    assert_eq!(daemon.stop().code(), Some(0));
}

/// A certificate that ran out was found out by who could not connect.
#[test]
fn a_certificate_that_has_run_out_is_told_until_another_is_read_at_sighup() {
    let (lab, Some(openssl)) = (lab(), fixtures::tool("openssl")) else { return };
    let run = |args: &str| {
        let output = Command::new(&openssl).args(args.split(' ')).current_dir(lab.path("")).output().unwrap();
        assert!(output.status.success(), "{args}: {}", String::from_utf8_lossy(&output.stderr));
    };
    run("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 4000 -subj /CN=localhost \
         -addext subjectAltName=DNS:localhost -keyout server-key.pem -out good.pem");
    run("x509 -in good.pem -signkey server-key.pem -days 0 -out server-cert.pem");
    let wrapper = ["setsid", "env", "--default-signal=HUP"].map(OsStr::new);
    let tls = format!("{SERVE} --nbd-tls-certificates {}", lab.path("").display());
    let mut daemon = lab.serve_through(&wrapper, &tls);
    // How bad it is, of which file, and whether it is gone.
    let told = || {
        let text = lab.run("alert status -H").ok();
        let rows = text.lines().map(|line| line.split('\t').map(str::to_owned).collect::<Vec<_>>());
        let rows = rows.filter(|cells| cells[5] == "certificate").collect::<Vec<_>>();
        rows.first().map(|cells| (cells[2].clone(), cells[4].clone(), cells[7] != "-"))
    };
    let file = lab.path("server-cert.pem").display().to_string();
    wait_until(|| told() == Some(("critical".to_owned(), file.clone(), false)));
    fs::copy(lab.path("good.pem"), lab.path("server-cert.pem")).unwrap();
    daemon.signal("HUP");
    wait_until(|| told().is_none_or(|(_, _, is_gone)| is_gone));
    daemon.signal("TERM");
    assert_eq!(daemon.wait().code(), Some(0));
    let log = daemon.stderr();
    let said = format!("warning: the server's certificate of NBD in '{file}' has run out");
    assert!(log.contains(&said) && log.contains("renew it"), "{log}");
}

const SERVE_TANK: &str = "serve --nbd 127.0.0.1:0 tank";

/// A pool on a file, with a volume.
fn pool() -> Lab {
    let lab = Lab::scratch();
    lab.run(&format!("zpool create --size 256M tank {}/a", lab.cwd().display())).ok();
    lab.run("zfs create -s -V 8M tank/v").ok();
    lab
}

/// Hosts were cut off first, and had nothing as long as a command took. Whoever came meanwhile was told that there is no
/// daemon, and took the devices from the one that was about to start.
#[test]
fn hosts_are_served_until_what_was_begun_is_over_and_who_comes_meanwhile_waits() {
    let lab = pool();
    let mut daemon = lab.begin_telling("server=debug", SERVE_TANK).ready();
    let port = daemon.port("nbd");
    let mut wire = Nbd::open(port, "tank/v").unwrap();
    // The command waits for it, ten seconds at most.
    let lock = fs::File::options().write(true).open(lab.path("state/lock")).unwrap();
    lock.lock().unwrap();
    let begin = |line: &str| lab.command("millpond").args(line.split(' ')).spawn().unwrap();
    let mut begun = begin(&format!("zpool add --size 256M tank {}/b", lab.cwd().display()));
    wait_until(|| {
        let mut open = fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().flatten();
        open.any(|entry| fs::read_link(entry.path()).is_ok_and(|path| path.ends_with("state/lock")))
    });
    daemon.signal("TERM");
    // What has not its turn before is put off from the moment that the signal is heard.
    let is_put_off =
        || operate(&lab, r#"{"operation": "pool-sync", "pool": "tank"}"#).starts_with("HTTP/1.1 503 ");
    wait_until(is_put_off);
    wire.read(0, 4096).unwrap();
    Nbd::open(port, "tank/v").expect("others come in, too");
    let is_told = || daemon.said("whoever asks is told that the daemon is ending");
    let before = is_told();
    let mut late = begin("zfs snapshot tank/v@late");
    wait_until(|| is_told() >= before + 2);
    assert!(late.try_wait().unwrap().is_none(), "it waits");
    drop(lock);
    assert!(begun.wait().unwrap().success());
    assert_eq!(daemon.wait().code(), Some(0));
    let daemon = lab.serve(SERVE_TANK);
    assert!(late.wait().unwrap().success());
    assert_eq!(lab.run("zfs list -H -t snapshot -o name").ok(), "tank/v@late\n");
    assert_eq!(daemon.stop().code(), Some(0));
}

/// It went on to its end, with nobody served, or until the daemon was killed.
#[test]
fn a_destroy_of_many_ends_after_a_step_when_the_daemon_ends() {
    const VOLUMES: usize = 200;
    let lab = pool();
    let mut daemon = lab.serve(SERVE_TANK);
    lab.run("zfs create tank/old").ok();
    for number in 0..VOLUMES {
        let name = format!("tank/old/{number}");
        let body = serde_json::json!({
            "operation": "create-volume", "name": name, "size": 1 << 20, "sparse": true
        });
        let answer = operate(&lab, &body.to_string());
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    let served = || ask(&lab, "/v1/served").1["served"].as_array().unwrap().len();
    assert_eq!(served(), VOLUMES + 1);
    let mut command = lab.command("millpond");
    command.args(["zfs", "destroy", "-r", "tank/old"]).stderr(Stdio::piped());
    let command = command.spawn().unwrap();
    wait_until(|| served() <= VOLUMES);
    daemon.signal("TERM");
    let output = command.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("': the daemon is ending\n"), "{said}");
    assert!(said.contains(&format!(" of {} are destroyed", VOLUMES + 1)), "{said}");
    assert_eq!(daemon.wait().code(), Some(0));
    let left = lab.run("zfs list -H -o name -r tank/old").ok().lines().count();
    assert!((1..=VOLUMES).contains(&left), "{left}");
}
