//! What a command makes of somebody on the socket who is no daemon, or not one that it knows: tests that listen there
//! themselves. It says what is not as it should be, and what may have been done.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    thread,
};

use super::lab;
use crate::support::Lab;

/// Somebody who has asked something.
fn asked(listener: &UnixListener) -> UnixStream {
    // The first connection only looks whether somebody is there.
    drop(listener.accept().unwrap());
    let (mut stream, _) = listener.accept().unwrap();
    assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
    stream
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
            asked(&listener).write_all(begun.as_bytes()).unwrap();
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
        let mut stream = asked(&listener);
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
