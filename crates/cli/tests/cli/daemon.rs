//! The daemon's life: it starts, says where everything is, answers on its socket, and ends cleanly.

mod claims;

use std::{
    ffi::OsStr,
    fs,
    io::{PipeReader, Read as _, Write as _},
    net::TcpStream,
    os::unix::{
        fs::{FileTypeExt as _, PermissionsExt as _},
        net::{UnixListener, UnixStream},
    },
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::io::ioctl_fionbio;

use crate::support::wire::{Iscsi, Nbd, Wire as _};
use crate::support::{Daemon, Lab, wait_until};

fn lab() -> Lab {
    Lab::at(fixtures::pool("single").dir)
}

const SERVE: &str = "-d . serve --readonly --nbd 127.0.0.1:0 --iscsi 127.0.0.1:0";

/// What is asked without any client of ours: status line and body.
fn ask(lab: &Lab, path: &str) -> (String, serde_json::Value) {
    ask_by("GET", lab, path)
}

fn ask_by(method: &str, lab: &Lab, path: &str) -> (String, serde_json::Value) {
    let mut stream = UnixStream::connect(lab.socket()).expect("the daemon listens");
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").expect("an answer");
    (head.lines().next().unwrap().to_owned(), serde_json::from_str(body).expect(body))
}

/// What an operation is answered, head and all, that is asked for without any client of ours.
fn operate(lab: &Lab, body: &str) -> String {
    let mut stream = UnixStream::connect(lab.socket()).expect("the daemon listens");
    write!(
        stream,
        "POST /v1/ops HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn it_serves_answers_and_ends_at_sigterm() {
    let lab = lab();
    let daemon = lab.serve(SERVE);
    assert_eq!(daemon.lines.last().map(String::as_str), Some("ready"));
    let names: Vec<&str> =
        daemon.urls("nbd").iter().map(|url| url.splitn(4, '/').nth(3).expect("an export")).collect();
    assert_eq!(names, ["psingle/v1", "psingle/v1@s1", "psingle/v2", "psingle/v2@s1"]);
    assert_eq!(daemon.urls("iscsi").len(), 4);
    assert!(daemon.urls("iscsi")[1].ends_with("/iqn.2026-11.io.millpond:psingle:v1::s1/0"));

    let metadata = fs::symlink_metadata(lab.socket()).unwrap();
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600, "only its owner may talk to it");

    let (status, version) = ask(&lab, "/v1/version");
    assert_eq!((status.as_str(), version["api"].as_str()), ("HTTP/1.1 200 OK", Some("v1")));
    assert_eq!(version["pid"], daemon.pid());
    assert_eq!(ask(&lab, "/v1/pools").1[0]["name"], "psingle");
    assert_eq!(ask(&lab, "/v1/pools/psingle").1["state"], "ONLINE");
    assert_eq!(ask(&lab, "/v1/pools/7519396386605996200").1["name"], "psingle");
    assert_eq!(ask(&lab, "/v1/datasets?name=psingle/v1%40s1").1["datasets"][0]["kind"], "snapshot");
    assert_eq!(ask(&lab, "/v1/served").1["served"].as_array().unwrap().len(), 4);
    let (status, failure) = ask(&lab, "/v1/pools/nope");
    assert_eq!(status, "HTTP/1.1 404 Not Found");
    assert_eq!(failure["error"], "cannot open 'nope': no such pool");
    assert_eq!(ask(&lab, "/v1/datasets?types=nonsense").0, "HTTP/1.1 400 Bad Request");
    assert_eq!(ask(&lab, "/v2/pools").0, "HTTP/1.1 404 Not Found");
    // Whatever is wrong with a question, it is said in JSON.
    for (method, path, status) in [
        ("GET", "/v1/events?since=never", "400 Bad Request"),
        ("GET", "/v1/datasets?depth=deep", "400 Bad Request"),
        ("GET", "/v1/pools/%ff", "400 Bad Request"),
        ("DELETE", "/v1/alerts/sinks/%ff", "400 Bad Request"),
        ("DELETE", "/v1/pools", "405 Method Not Allowed"),
        ("GET", "/v1/ops", "405 Method Not Allowed"),
        ("POST", "/v1/nowhere", "404 Not Found"),
    ] {
        let (line, refusal) = ask_by(method, &lab, path);
        assert_eq!(line, format!("HTTP/1.1 {status}"), "{method} {path}");
        assert!(refusal["error"].is_string(), "{method} {path}: {refusal}");
    }

    assert_eq!(daemon.stop().code(), Some(0));
    assert!(!lab.socket().exists(), "the socket goes with the daemon");
}

#[test]
fn commands_ask_it_and_see_the_same_as_without_it() {
    let lab = lab();
    let lines = [
        "zpool list",
        "zpool status",
        "zpool get all psingle",
        "zfs list -t all",
        "zfs get all psingle/v1@s1",
        "zfs list -j -t all -o name,used,creation",
        "zpool status -j",
    ];
    let without: Vec<String> = lines.iter().map(|line| lab.run(&format!("-d . {line}")).ok()).collect();
    assert_eq!(lab.run("zpool list -H").code, Some(0), "nothing is imported");
    assert_eq!(lab.run("zpool list -H").stdout, "");
    let daemon = lab.serve(SERVE);
    for (line, without) in lines.iter().zip(&without) {
        assert_eq!(lab.run(line).ok(), *without, "{line}");
    }
    assert_eq!(
        lab.run("zfs list psingle/nope").fails(1),
        "cannot open 'psingle/nope': dataset does not exist\n"
    );
    let refused = lab.run("zfs snapshot psingle/v1@new").fails(1);
    assert_eq!(
        refused,
        "cannot create snapshot 'psingle/v1@new': pool is read-only: it was opened with --readonly\n"
    );
    // It is open: that it could not be opened would be no reason.
    for (line, what) in [
        ("zpool scrub psingle", "cannot scrub psingle"),
        ("zpool set comment=x psingle", "cannot set property for 'psingle'"),
        ("zpool upgrade psingle", "cannot upgrade 'psingle'"),
    ] {
        let refused = lab.run(line).fails(1);
        assert_eq!(refused, format!("{what}: pool is read-only: it was opened with --readonly\n"), "{line}");
    }
    lab.run("zpool export psingle").ok();
    assert_eq!(lab.run("zpool list -H").ok(), "", "the daemon has let it go");
    assert_eq!(daemon.stop().code(), Some(0));
}

/// With a daemon two megabytes were the limit, "Failed to buffer the request body", and without one there was none.
#[test]
fn an_operation_of_many_names_is_answered_by_what_does_it() {
    let lab = lab();
    let _daemon = lab.serve(SERVE);
    let names: Vec<String> =
        (0..50_000).map(|number| format!("nosuch/{}@{number}", "v".repeat(60))).collect();
    let body = serde_json::json!({ "operation": "snapshot", "names": names }).to_string();
    assert!(body.len() > 3 << 20);
    let answer = operate(&lab, &body);
    assert!(answer.starts_with("HTTP/1.1 404 ") && answer.contains("cannot open 'nosuch/"), "{answer}");
}

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
    let mut daemon = lab.serve_through(&wrapper, &format!("{SERVE} --nbd-tls-psk {}", keys.display()));
    fs::write(&keys, "nonsense\n").unwrap();
    daemon.signal("HUP");
    thread::sleep(Duration::from_secs(1));
    assert_eq!(ask(&lab, "/v1/version").1["pid"], daemon.pid(), "it was not meant");
    daemon.signal("TERM");
    assert_eq!(daemon.wait().code(), Some(0));
    let log = daemon.stderr();
    assert!(log.contains("nbd: TLS stays as it was: TLS cannot be used with what is in"), "{log}");
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

/// Readers of a log that do not take it: gone, on a disk that is full, at rest.
fn bad_readers() -> [(&'static str, Stdio, Option<PipeReader>); 3] {
    let (_, gone) = std::io::pipe().unwrap();
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let (resting, rests) = std::io::pipe().unwrap();
    [("gone", gone.into(), None), ("full", full.into(), None), ("resting", rests.into(), Some(resting))]
}

#[test]
fn nobody_who_takes_its_log_is_no_reason_to_serve_nobody() {
    for (reader, log, kept) in bad_readers() {
        let lab = lab();
        let mut command = lab.command("millpond");
        command.args(SERVE.split(' ')).env("MILLPOND_LOG", "trace");
        let mut daemon = lab.serve_logging_to(log, &mut command);
        let port = |protocol: &str| -> u16 {
            daemon.urls(protocol)[0].split([':', '/']).nth(4).unwrap().parse().unwrap()
        };
        let (nbd, iscsi) = (port("nbd"), port("iscsi"));
        // More than a pipe holds, if each connection has a few lines.
        for _ in 0..300 {
            let mut wire = Nbd::open(nbd, "psingle/v1").unwrap_or_else(|error| panic!("{reader}: {error:?}"));
            wire.read(0, 4096).unwrap();
            ask(&lab, "/v1/version");
        }
        for _ in 0..20 {
            let mut wire = Iscsi::open(iscsi, "iqn.2026-11.io.millpond:psingle:v1", 1).unwrap();
            wire.read(0, 4096).unwrap();
        }
        let began = Instant::now();
        daemon.signal("TERM");
        assert_eq!(daemon.wait().code(), Some(0), "{reader}");
        assert!(began.elapsed() < Duration::from_secs(20), "{reader}: it took {:?}", began.elapsed());
        if let Some(mut resting) = kept {
            drop(command);
            let mut taken = Vec::new();
            resting.read_to_end(&mut taken).unwrap();
            assert!(taken.len() >= 60_000, "only {} bytes of log: nothing was tried", taken.len());
        }
    }
}

/// What is served is printed before anybody is let in: a reader that rested kept the daemon from serving, from answering its
/// control socket, and from hearing that it was to end.
#[test]
fn nobody_who_takes_what_it_prints_is_no_reason_to_serve_nobody() {
    for is_read_later in [false, true] {
        let lab = lab();
        let (reader, writer) = std::io::pipe().unwrap();
        ioctl_fionbio(&reader, true).unwrap();
        ioctl_fionbio(&writer, true).unwrap();
        // As after the addresses of some hundred volumes.
        while (&writer).write_all(&[b'x'; 4096]).is_ok() {}
        ioctl_fionbio(&writer, false).unwrap();
        let mut daemon = lab.serve_printing_to(writer.into(), SERVE);
        wait_until(|| {
            let Ok(mut stream) = UnixStream::connect(lab.socket()) else { return false };
            // It listens before it answers.
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let request = "GET /v1/version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
            let mut answer = String::new();
            let asked =
                stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_string(&mut answer));
            asked.is_ok() && answer.starts_with("HTTP/1.1 200 OK")
        });
        if is_read_later {
            let mut taken = Vec::new();
            wait_until(|| {
                // That there is nothing at the moment is not its end.
                let _nothing = (&reader).read_to_end(&mut taken);
                taken.ends_with(b"\nready\n")
            });
            let taken = String::from_utf8(taken).unwrap();
            assert_eq!(taken.matches("://").count(), 8, "{taken}");
        }
        daemon.signal("TERM");
        assert_eq!(daemon.wait().code(), Some(0), "read later: {is_read_later}");
    }
}

#[test]
fn a_slip_in_what_is_to_be_logged_is_said_and_silences_nothing() {
    let lab = lab();
    let run = |log: &str| {
        let output = lab.command("millpond").arg("version").env("MILLPOND_LOG", log).output().unwrap();
        assert!(output.status.success(), "{log}");
        String::from_utf8(output.stderr).unwrap()
    };
    let said = run("warning");
    assert!(
        said.starts_with("millpond: MILLPOND_LOG 'warning' cannot be understood: 'warning' is"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    for fine in ["", "warn", "warn,iscsi=debug"] {
        assert_eq!(run(fine), "", "{fine}");
    }
}

#[test]
fn a_command_whose_words_nobody_takes_fails_as_it_would() {
    let lab = lab();
    for line in ["arcstat", "zpool status nowhere", "", "zpool list -o nothing"] {
        for (reader, log, _kept) in bad_readers() {
            let status = lab.command("millpond").args(line.split_whitespace()).stderr(log).status().unwrap();
            assert!(matches!(status.code(), Some(1 | 2)), "{line}, {reader}: {status}");
        }
    }
}

#[test]
fn what_was_asked_for_in_vain_is_said_when_it_starts() {
    let lab = lab();
    for (protocol, port) in [("nbd", 10809), ("iscsi", 3260)] {
        let error = lab.run(&format!("-d . serve --readonly --{protocol} 127.0.0.1")).fails(1);
        assert!(error.contains(&format!("for example 127.0.0.1:{port}")), "{error}");
    }
    let mut daemon = lab.serve(&format!("{SERVE} --memory-limit 256M --arc-max 1T --alerts /nosuch/x"));
    daemon.signal("TERM");
    assert_eq!(daemon.wait().code(), Some(0));
    let log = daemon.stderr();
    assert!(log.contains("warning: the cache may have 1T and the whole daemon 256M: "), "{log}");
    assert!(log.contains("'/nosuch/x' does not exist, and its directory does not either"), "{log}");
}

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
fn devices_are_opened_for_reading_only() {
    let lab = lab();
    let daemon = lab.serve(SERVE);
    let dir = format!("/proc/{}/fd", daemon.pid());
    let mut images = 0;
    for entry in fs::read_dir(&dir).unwrap().flatten() {
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        if target.extension().is_some_and(|extension| extension == "img") {
            let info = format!("/proc/{}/fdinfo/{}", daemon.pid(), entry.file_name().to_string_lossy());
            let info = fs::read_to_string(info).unwrap();
            let flags =
                info.lines().find_map(|line| line.strip_prefix("flags:")).expect("flags").trim().to_owned();
            let access = u32::from_str_radix(&flags, 8).unwrap() & 3;
            assert_eq!(access, 0, "{} is open for writing", target.display());
            images += 1;
        }
    }
    assert!(images > 0, "the pool is open");
    assert_eq!(daemon.stop().code(), Some(0));
}

/// A shell that may have so many files open, at first and at most, and becomes what it is given.
fn with_files(soft: u32, hard: u32) -> [String; 3] {
    [
        "sh".to_owned(),
        "-c".to_owned(),
        format!("ulimit -Sn {soft} && ulimit -Hn {hard} && exec \"$0\" \"$@\""),
    ]
}

/// What it may have open, as the kernel says.
fn files(daemon: &Daemon) -> Vec<u64> {
    let limits = fs::read_to_string(format!("/proc/{}/limits", daemon.pid())).unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap().to_owned();
    line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
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

#[test]
fn by_itself_it_logs_what_operators_need_in_plain_text() {
    let lab = lab();
    let wrapper = with_files(64, 4096);
    let mut daemon = lab.serve_through(&wrapper.each_ref().map(OsStr::new), SERVE);
    assert_eq!(files(&daemon), [4096, 4096]);
    let url = daemon.urls("iscsi")[0].to_owned();
    let port = url.split([':', '/']).nth(4).unwrap().parse().unwrap();
    assert!(Iscsi::open(port, "iqn.2026-11.com.example:nowhere", 1).is_err(), "there is no such target");
    daemon.signal("TERM");
    assert_eq!(daemon.wait().code(), Some(0));
    let log = daemon.stderr();
    assert!(log.contains("WARN") && log.contains("login refused"), "{log}");
    assert!(!log.contains('\u{1b}') && !log.contains("files can be open"), "{log}");
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

/// History and events always were: one terminal showed two zones.
#[test]
fn dates_are_in_the_zone_of_who_asks_not_of_the_daemon() {
    let lab = Lab::at(fixtures::pool("expansion").dir);
    let look = |from: &str| {
        let created = lab.run(&format!("{from}zfs get -H -o value creation pexpansion")).ok();
        let status = lab.run(&format!("{from}zpool status pexpansion"));
        let scan =
            status.stdout.lines().find(|line| line.starts_with("  scan: ")).expect("a scan").to_owned();
        (created, scan)
    };
    let here = look("-d . ");
    assert!(here.1.ends_with(" 2026"), "{}", here.1);
    let mut command = lab.command("millpond");
    command.args(SERVE.split(' ')).env("TZ", "JST-9");
    let daemon = lab.serve_by(&mut command);
    assert_eq!(look(""), here);
    assert_eq!(daemon.stop().code(), Some(0));
}

#[test]
fn somebody_else_on_the_socket_is_said() {
    let lab = lab();
    let listener = UnixListener::bind(lab.socket()).unwrap();
    let impostor = thread::spawn(move || {
        // The first connection only looks whether somebody is there.
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().unwrap();
            // Not before it is asked: whoever hangs up early is somebody who ended.
            let _asked = stream.read(&mut [0; 4096]);
            let _sent = stream.write_all(b"SSH-2.0-nonsense\r\n");
        }
    });
    let error = lab.run("zpool list").fails(1);
    assert!(error.contains("gave no usable answer"), "{error}");
    impostor.join().unwrap();
}

/// That the answer was of no use sounded as if nothing had been done; and neither what was asked for was said, nor, where
/// half an answer had come or nothing was to be changed, that the daemon had gone.
#[test]
fn a_daemon_that_ends_during_a_change_leaves_open_whether_it_was_made() {
    const DOUBT: &str =
        "; whether it was done is not known: see `zfs list`, `zpool status` or `zpool history`";
    let lab = lab();
    for (command, begun, what, doubt) in [
        ("zpool create lake /nowhere/a", "", "zpool create 'lake'", DOUBT),
        (
            "zpool create lake /nowhere/a",
            "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{",
            "zpool create 'lake'",
            DOUBT,
        ),
        // It is asked for the pool first.
        ("zfs snapshot lake/a@b", "", "zfs snapshot 'lake/a@b'", ""),
    ] {
        let listener = UnixListener::bind(lab.socket()).unwrap();
        let dying = thread::spawn(move || {
            // The first connection only looks whether somebody is there.
            drop(listener.accept().unwrap());
            let (mut stream, _) = listener.accept().unwrap();
            let read = stream.read(&mut [0; 4096]).unwrap();
            assert!(read > 0);
            stream.write_all(begun.as_bytes()).unwrap();
        });
        let error = lab.run(command).fails(1);
        let said =
            format!("{what}: the daemon on '{}' ended before it answered{doubt}\n", lab.socket().display());
        assert!(error.ends_with(&said), "{command}: {error}");
        dying.join().unwrap();
        fs::remove_file(lab.socket()).unwrap();
    }
}

/// What the program of an upgrade asked of the daemon that was still the old one was refused in the words of a parser.
#[test]
fn a_daemon_that_does_not_know_what_is_asked_for_is_said_to_be_of_another_version() {
    const SAID: &str = "Failed to deserialize the JSON body into the target type: unknown field `twist`";
    let lab = lab();
    let listener = UnixListener::bind(lab.socket()).unwrap();
    let older = thread::spawn(move || {
        // The first connection only looks whether somebody is there.
        drop(listener.accept().unwrap());
        let (mut stream, _) = listener.accept().unwrap();
        assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
        let body = format!(r#"{{"error": "{SAID}"}}"#);
        let head = "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length";
        write!(stream, "{head}: {}\r\n\r\n{body}", body.len()).unwrap();
        // What is closed with something unread in it takes the answer along.
        let _gone = stream.read_to_end(&mut Vec::new());
    });
    let error = lab.run("zpool create lake /nowhere/a").fails(1);
    let why = "zpool create 'lake': nothing was done: the daemon that runs is of another version";
    assert!(error.contains(why) && error.contains("restart it\n") && error.contains(SAID), "{error}");
    older.join().unwrap();
}

/// A pool on a file, with a volume.
fn pool() -> Lab {
    let lab = Lab::scratch();
    lab.run(&format!("zpool create --size 256M tank {}/a", lab.cwd().display())).ok();
    lab.run("zfs create -s -V 8M tank/v").ok();
    lab
}

const SERVE_TANK: &str = "serve --nbd 127.0.0.1:0 tank";

/// Hosts were cut off first, and had nothing as long as a command took. Whoever came meanwhile was told that there is no
/// daemon, and took the devices from the one that was about to start.
#[test]
fn hosts_are_served_until_what_was_begun_is_over_and_who_comes_meanwhile_waits() {
    let lab = pool();
    let mut daemon = lab.serve(SERVE_TANK);
    let port = daemon.urls("nbd")[0].split([':', '/']).nth(4).unwrap().parse().unwrap();
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
    thread::sleep(Duration::from_secs(1));
    wire.read(0, 4096).unwrap();
    Nbd::open(port, "tank/v").expect("others come in, too");
    let mut late = begin("zfs snapshot tank/v@late");
    thread::sleep(Duration::from_secs(1));
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

/// A daemon that gives these answers, by the beginning of what is asked, as long as somebody asks.
fn pretend(lab: &Lab, answers: &'static [(&'static str, &'static str, &'static str)]) {
    let listener = UnixListener::bind(lab.socket()).unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let (mut asked, mut buffer) = (Vec::new(), [0; 4096]);
            while !asked.windows(4).any(|four| four == b"\r\n\r\n") {
                match stream.read(&mut buffer) {
                    Ok(count) if count > 0 => asked.extend_from_slice(&buffer[..count]),
                    // Whoever only looks whether somebody is there asks nothing.
                    _ => break,
                }
            }
            let asked = String::from_utf8(asked).unwrap();
            let is_meant = |answer: &&(&str, &str, &str)| asked.starts_with(&format!("GET {} ", answer.0));
            if let Some((_, status, body)) = answers.iter().find(is_meant) {
                let length = body.len();
                write!(
                    stream,
                    "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
                )
                .unwrap();
            }
        }
    });
}

/// A list that lacks a pool says so and fails; what it has is there.
#[test]
fn a_list_without_a_pool_that_does_not_answer_says_so() {
    let lab = Lab::empty();
    pretend(
        &lab,
        &[
            ("/v1/pools", "200 OK", "[]"),
            (
                "/v1/datasets?types=filesystem,volume&properties=name",
                "200 OK",
                r#"{"datasets": [{"name": "lake", "kind": "filesystem", "createtxg": 1, "properties": []}],
                    "problems": ["cannot list 'tank': its devices do not answer: a"]}"#,
            ),
            (
                "/v1/datasets?name=tank/v&depth=0&types=filesystem,volume&properties=name",
                "503 Service Unavailable",
                r#"{"error": "cannot open 'tank/v': its devices do not answer: a"}"#,
            ),
            (
                "/v1/share",
                "200 OK",
                r#"{"pools": [{"pool": "lake", "targets": [], "portals": [], "volumes": []}],
                    "silent": [{"pool": "tank", "problem": "cannot list 'tank': its devices do not answer: a"}]}"#,
            ),
        ],
    );
    let problem = "cannot list 'tank': its devices do not answer: a\n";
    let problems = serde_json::json!([problem.trim_end()]);
    let part = |line: &str| {
        let outcome = lab.run(line);
        assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(1), problem), "{line}");
        outcome.stdout
    };
    let json = |line: &str| serde_json::from_str::<serde_json::Value>(&part(line)).unwrap();
    assert_eq!(part("zfs list -H -o name"), "lake\n");
    assert_eq!(json("zfs list -j -o name")["problems"], problems);
    assert!(json("zfs list -j -o name")["datasets"]["lake"].is_object());
    assert_eq!(part("share list -H"), "");
    assert_eq!(json("share list --json")["problems"], problems);
    assert!(json("share list --json")["pools"]["lake"].is_object());
    assert_eq!(part("share list tank/v"), "");
    assert_eq!(part("share portal list"), "PORTAL  GROUP  POOL  STATE\n");
    // Nothing is said of it to who does not ask about it.
    lab.run("share --pool lake list").ok();
    lab.run("share list lake").ok();
    let other = lab.run("share list lake/v").fails(1);
    assert!(
        other.starts_with("cannot open 'lake/v': no such pool, target or volume in the pools that answer\n")
    );
    let named = lab.run("zfs list -o name tank/v").fails(1);
    assert_eq!(named, "cannot open 'tank/v': its devices do not answer: a\n");
    // What is meant cannot be guessed.
    let which = lab.run("share portal add 192.0.2.1").fails(2);
    assert!(which.starts_with("there are several pools"), "{which}");
    let target = lab.run("share access allow iqn.2026-11.com.example:t").fails(1);
    assert!(target.contains("if 'tank' has it, say so with --pool"), "{target}");
}
