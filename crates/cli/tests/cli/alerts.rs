//! `zpool events` and `millpond alert`, with a real daemon: what happens is shown, and somebody is told.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::{fs::PermissionsExt as _, net::UnixDatagram},
    process::Stdio,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::support::Lab;

const SERVE: &str = "serve --nbd 127.0.0.1:0";

/// A pool `tank` on one file, imported in the lab's state directory.
fn tank() -> Lab {
    let lab = Lab::scratch();
    let path = lab.cwd().join("a");
    fs::File::create(&path).unwrap().set_len(128 << 20).unwrap();
    lab.run(&format!("zpool create tank {}", path.display())).ok();
    lab
}

fn classes(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| line.split_whitespace().last()).collect()
}

#[test]
fn events_are_shown_followed_and_forgotten() {
    let lab = tank();
    let said = lab.run("zpool events").fails(1);
    assert!(said.contains("no daemon answers on") && said.contains("millpond serve"), "{said}");
    let daemon = lab.serve(SERVE);
    let text = lab.run("zpool events").ok();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "TIME                           CLASS");
    // As ctime has it: `Nov 22 2026 02:05:09.000000000`.
    assert_eq!(
        (&lines[1][6..7], &lines[1][11..12], &lines[1][20..21], &lines[1][30..31]),
        (" ", " ", ".", " ")
    );
    assert_eq!(&lines[1][31..], "sysevent.fs.zfs.pool_import");
    let verbose = lab.run("zpool events -v tank").ok();
    for says in [
        "        class = \"sysevent.fs.zfs.pool_import\"\n",
        "        pool = \"tank\"\n        pool_guid = 0x",
        "        eid = 0x1\n\n",
    ] {
        assert!(verbose.contains(says), "{verbose}");
    }
    let scripted = lab.run("zpool events -H").ok();
    assert_eq!(scripted.lines().next().unwrap().split('\t').nth(1), Some("sysevent.fs.zfs.pool_import"));
    let line = lab.run("zpool events -j").ok();
    let object: Value = serde_json::from_str(line.lines().next().unwrap()).unwrap();
    assert_eq!(object["events"]["1"]["pool"], "tank");
    assert_eq!(lab.run("zpool events nope").fails(1), "cannot open 'nope': no such pool\n");

    // Somebody who follows sees what is there, and then what happens.
    let mut follower = lab.command("zpool").args(["events", "-fH"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut followed = BufReader::new(follower.stdout.take().unwrap()).lines().map(|line| line.unwrap());
    assert!(followed.next().unwrap().ends_with("\tsysevent.fs.zfs.pool_import"));
    lab.run("zpool export tank").ok();
    assert!(followed.any(|line| line.ends_with("\tsysevent.fs.zfs.pool_export")));
    follower.kill().unwrap();
    follower.wait().unwrap();
    assert!(
        classes(&lab.run("zpool events tank").ok()).contains(&"sysevent.fs.zfs.pool_export"),
        "a pool of the past"
    );
    // Times of pools that come and go were of whole seconds, before those of what they had just done.
    let text = lab.run("zpool events -H tank").ok();
    let times: Vec<&str> = text.lines().filter_map(|line| line.split('\t').next()).collect();
    assert!(times.len() >= 2 && times.is_sorted(), "{text}");
    assert!(times.iter().all(|time| !time.ends_with(".000000000")), "{text}");

    let said = lab.run("zpool events -c").ok();
    assert!(said.starts_with("cleared ") && said.ends_with(" events\n"), "{said}");
    assert_eq!(lab.run("zpool events -H").ok(), "");
    lab.run("zpool events -c -f").fails(2);
    assert_eq!(daemon.stop().code(), Some(0));
}

/// Syslog's socket, as the test's own.
fn listen(lab: &Lab) -> (UnixDatagram, String) {
    let path = lab.path("log");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    (socket, format!("unix:{}", path.display()))
}

fn hear(socket: &UnixDatagram) -> String {
    let mut buffer = [0; 8192];
    let len = socket.recv(&mut buffer).expect("somebody is told");
    String::from_utf8(buffer[..len].to_vec()).unwrap()
}

#[test]
fn who_is_told_is_set_shown_and_tried_with_a_daemon_and_without() {
    let lab = tank();
    let (socket, target) = listen(&lab);
    let password = lab.path("password");
    fs::write(&password, "hunter2\n").unwrap();
    let state = lab.path("state/alerts.json");
    for daemon in [None, Some(lab.serve(SERVE))] {
        assert!(lab.run("alert list").ok().contains("millpond alert add"));
        assert!(lab.run("alert test").fails(1).contains("nobody is told"));
        lab.run(&format!("alert add syslog here --target {target} --facility local0 --min-severity warning"))
            .ok();
        lab.run(&format!(
            "alert add smtp mail --server 127.0.0.1:1 --user mill --password-file {} --from a@example.org --to b@example.org",
            password.display()
        ))
        .ok();
        assert_eq!(fs::metadata(&state).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(fs::read_to_string(&state).unwrap().contains("hunter2"));

        let text = lab.run("alert list").ok();
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["NAME", "TYPE", "AT", "LEAST", "POOLS", "DIGEST", "PER", "HOUR", "TO"]);
        assert_eq!(rows[1], ["here", "syslog", "warning", "all", "15s", "30", &target]);
        assert_eq!(
            rows[2],
            ["mail", "smtp", "info", "all", "15s", "30", "b@example.org", "via", "127.0.0.1:1"]
        );
        let json = lab.run("alert list -j").ok();
        assert!(!json.contains("hunter2") && json.contains("********"), "{json}");

        let said = lab.run("alert test here").ok();
        assert!(said.starts_with("here: delivered: 1 written to "), "{said}");
        assert!(hear(&socket).contains("alerts arrive here"));
        let outcome = lab.run("alert test");
        assert_eq!(outcome.code, Some(1), "one of two");
        assert!(
            outcome.stderr.starts_with("mail: not delivered: cannot connect to 127.0.0.1:1: "),
            "{outcome:?}"
        );
        hear(&socket);
        let tried: Value = serde_json::from_str(&lab.run("alert test -j here").ok()).unwrap();
        assert_eq!(tried["sinks"]["here"]["delivered"], true);
        hear(&socket);

        let wrong = [
            ("alert test nope", 1, "there is no sink 'nope'"),
            ("alert remove nope", 1, "there is no sink 'nope'"),
            ("alert add syslog here", 1, "there is a sink 'here' already"),
            ("alert add syslog x --facility nope", 1, "'nope' is not a facility"),
            ("alert add webhook x --url ftp://h/", 1, "is not a URL"),
            ("alert add smtp x --server h --from a --to b@c.d", 1, "'a' is not a mail address"),
            ("alert add smtp x --server h --from a@b.c", 2, "--to"),
        ];
        for (words, code, says) in wrong {
            let said = lab.run(words).fails(code);
            assert!(said.contains(says), "{words}: {said}");
        }
        // A typing error would be noticed when the disk has failed and nobody was told.
        let added = lab.run("alert add syslog some --pool tank --pool nope");
        assert_eq!(added.code, Some(0), "{added:?}");
        assert_eq!(added.stderr.matches("warning: no pool 'nope' ").count(), 1, "{added:?}");
        assert_eq!(added.stderr.lines().count(), 1, "tank is known: {added:?}");
        lab.run("alert remove some").ok();
        let labelled = lab.run_args("millpond", ["alert", "label", "WSD1", "bay 3"]);
        // Whether it is missed hangs on whether a daemon has looked at the disks yet.
        assert_eq!(labelled.code, Some(0), "{labelled:?}");
        assert!(lab.run("alert list").ok().ends_with("\nlabels of disks:\n  WSD1: bay 3\n"));
        lab.run("alert label WSD1").ok();
        lab.run("alert label WSD1").fails(1);
        lab.run("alert remove mail").ok();
        lab.run("alert remove here").ok();
        if let Some(daemon) = daemon {
            let status: Value = serde_json::from_str(&lab.run("alert status -j").ok()).unwrap();
            assert_eq!(status["alerts"]["open"], serde_json::json!([]), "{status}");
            assert_eq!(daemon.stop().code(), Some(0));
        }
    }
}

/// Of two changes at once one was lost: each began with what the file had before.
#[test]
fn changes_of_who_is_told_at_the_same_time_are_all_kept() {
    let lab = tank();
    let daemon = lab.serve(SERVE);
    let add = |from: usize| {
        let children: Vec<_> = (from..from + 10)
            .map(|i| {
                lab.command("millpond").args(["alert", "add", "syslog", &format!("s{i:02}")]).spawn().unwrap()
            })
            .collect();
        children.into_iter().for_each(|mut child| assert!(child.wait().unwrap().success()));
        let listed = lab.run("alert list").ok();
        assert_eq!(listed.lines().filter(|line| line.starts_with('s')).count(), from + 10, "{listed}");
    };
    add(0);
    assert_eq!(daemon.stop().code(), Some(0));
    // The same without a daemon.
    add(10);
}

/// A mirror with a disk that is not there.
#[test]
fn a_missing_disk_is_told_with_what_to_do_and_not_anew_by_the_next_daemon() {
    let lab = Lab::scratch();
    let images: Vec<String> =
        ["a", "b"].iter().map(|name| lab.cwd().join(name).display().to_string()).collect();
    for image in &images {
        fs::File::create(image).unwrap().set_len(128 << 20).unwrap();
    }
    lab.run(&format!("zpool create tank mirror {} {}", images[0], images[1])).ok();
    let (socket, target) = listen(&lab);
    lab.run(&format!("alert add syslog here --target {target} --digest 0")).ok();
    // Once, so that the disks are known.
    let daemon = lab.serve(SERVE);
    crate::support::wait_until(|| lab.path("state/disks.json").exists());
    // A label for a disk that nobody has was taken without a word.
    let missed = lab.run_args("millpond", ["alert", "label", "nosuch", "slot 3"]);
    assert!(
        missed.code == Some(0) && missed.stderr.contains("no pool has a disk 'nosuch' now"),
        "{missed:?}"
    );
    lab.run_args("millpond", ["alert", "label", &images[0], "slot 1"]).ok();
    assert_eq!(daemon.stop().code(), Some(0));

    let aside = lab.cwd().join("aside.gone");
    fs::rename(&images[1], &aside).unwrap();
    // Out of sight: the daemon looks beside the pool's other files.
    let hidden = lab.path("hidden");
    fs::rename(&aside, &hidden).unwrap_or_else(|_| {
        fs::copy(&aside, &hidden).unwrap();
        fs::remove_file(&aside).unwrap();
    });
    let began = Instant::now();
    let daemon = lab.serve(SERVE);
    let told = [hear(&socket), hear(&socket)];
    assert!(began.elapsed() < Duration::from_secs(60));
    let disk =
        told.iter().find(|line| line.contains("UNAVAIL") || line.contains("REMOVED")).expect("the disk");
    assert!(disk.starts_with("<26>"), "critical: {disk}");
    assert!(told.iter().any(|line| line.contains("pool 'tank' is DEGRADED")), "{told:?}");
    let text = lab.run("alert status").ok();
    assert!(text.contains("part of mirror-0") && text.contains(&images[1]), "{text}");
    assert!(text.contains("zpool replace tank "), "{text}");
    let status: Value = serde_json::from_str(&lab.run("alert status -j").ok()).unwrap();
    assert_eq!(status["alerts"]["open"].as_array().unwrap().len(), 2, "{status}");
    assert_eq!(status["alerts"]["sinks"][0]["failures"], 0);
    let mut daemon_ended = daemon;
    daemon_ended.signal("TERM");
    assert_eq!(daemon_ended.wait().code(), Some(0));
    let log = daemon_ended.stderr();
    assert!(log.contains("millpond::alert") && log.contains("pool 'tank' is DEGRADED"), "{log}");

    // What was open stays open while nobody runs, and is not told anew by the next daemon.
    let outcome = lab.run("alert status");
    assert!(outcome.stdout.contains("DEGRADED") && outcome.stderr.contains("no daemon runs"), "{outcome:?}");
    let daemon = lab.serve(SERVE);
    socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let mut buffer = [0; 8192];
    assert!(socket.recv(&mut buffer).is_err(), "{}", String::from_utf8_lossy(&buffer));
    assert_eq!(daemon.stop().code(), Some(0));
}
