//! The daemon's life: it starts, says where everything is, answers on its socket, and ends cleanly.

mod claims;
mod ending;
mod impostors;
mod said;

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::{
        fs::{FileTypeExt as _, PermissionsExt as _},
        net::UnixStream,
    },
};

use crate::support::{Daemon, Lab};

const SERVE: &str = "-d . serve --readonly --nbd 127.0.0.1:0 --iscsi 127.0.0.1:0";

fn lab() -> Lab {
    Lab::at(fixtures::pool("single").dir)
}

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
