//! `millpond zilstat` and the warnings of `zpool status`: what clients asked for is what is counted, properties take
//! effect on volumes that are being written to, and what is said about it is true.

use serde_json::Value;

use crate::support::wire::{Iscsi, Nbd, Wire};
use crate::support::{Lab, ask, served_as};

const SERVE: &str = "serve --nbd 127.0.0.1:0 --iscsi 127.0.0.1:0 tank";

/// A pool with volumes of these names and options.
fn pool(layout: &str, volumes: &[(&str, &str)]) -> Lab {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    lab.run(&format!("zpool create --size 256M tank {}", layout.replace("HERE", &here))).ok();
    for (name, options) in volumes {
        lab.run(&format!("zfs create -s -V 16M {options} tank/{name}")).ok();
    }
    lab
}

fn port(url: &str) -> u16 {
    url.split([':', '/']).find_map(|part| part.parse().ok()).unwrap()
}

fn nbd(lab: &Lab, volume: &str) -> Nbd {
    Nbd::open(port(&served_as(lab, volume, "nbd")), volume).unwrap()
}

fn iscsi(lab: &Lab, volume: &str) -> Iscsi {
    let url = served_as(lab, volume, "iscsi");
    Iscsi::open(port(&url), url.rsplit('/').nth(1).unwrap(), 1).unwrap()
}

/// What `zilstat -j` says about a volume.
fn stat(lab: &Lab, volume: &str) -> Value {
    let all: Value = serde_json::from_str(&lab.run(&format!("zilstat -j {volume}")).ok()).unwrap();
    all["volumes"][volume].clone()
}

#[track_caller]
fn number(of: &Value, path: &str) -> u64 {
    of.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("{path} in {of}"))
}

/// Asks until the log answers in place of the transaction group; how often that was.
fn begin_log(lab: &Lab, volume: &str, wire: &mut Nbd) -> u64 {
    for times in 1..100 {
        wire.write(0, &[times as u8; 4096], true).unwrap();
        if number(&stat(lab, volume), "/commits") > 0 {
            return times;
        }
    }
    panic!("the log is never used: {}", stat(lab, volume));
}

#[test]
fn every_request_is_counted_by_what_it_asked_for_and_explained() {
    let lab = pool("HERE/a log HERE/slog", &[("idle", ""), ("db", ""), ("off", "-o sync=disabled")]);
    let daemon = lab.serve(SERVE);
    let (mut idle, mut db, mut off) = (nbd(&lab, "tank/idle"), nbd(&lab, "tank/db"), nbd(&lab, "tank/off"));
    for at in 0..10 {
        idle.write(at * 4096, &[1; 4096], false).unwrap();
    }
    let is_idle = |lab: &Lab| stat(lab, "tank/idle")["sentence"].as_str().unwrap().to_owned();
    assert_eq!(
        is_idle(&lab),
        "tank/idle: 0 of 10 writes asked for stability: the log device is idle, as it should be"
    );
    let begun = begin_log(&lab, "tank/db", &mut db);
    for at in 0..5 {
        db.write(at * 4096, &[2; 4096], true).unwrap();
    }
    for at in 0..3 {
        db.write((1 << 20) + at * 4096, &[3; 4096], false).unwrap();
        db.flush().unwrap();
    }
    db.flush().unwrap();
    let found = stat(&lab, "tank/db");
    assert_eq!((number(&found, "/asked/fua"), number(&found, "/asked/flush")), (begun + 5, 4));
    assert_eq!(number(&found, "/writes"), begun + 8);
    assert_eq!((number(&found, "/asked/cache_off"), number(&found, "/asked/always")), (0, 0));
    let waited: u64 =
        found["waited"].as_object().unwrap().values().map(|times| times.as_u64().unwrap()).sum();
    let met = number(&found, "/commits") + number(&found, "/nothing") + waited;
    assert_eq!(met, begun + 9, "everything that was asked for was met in one way: {found}");
    assert!(number(&found, "/commits") >= 8 && number(&found, "/nothing") >= 1, "{found}");
    assert!(number(&found, "/payload_bytes") >= 8 * 4096, "{found}");
    assert!(number(&found, "/log_bytes") >= number(&found, "/payload_bytes"), "{found}");
    let devices = found["devices"].as_array().unwrap();
    assert_eq!(devices.len(), 1, "{found}");
    assert!(devices[0]["name"].as_str().unwrap().ends_with("slog") && devices[0]["log"] == true, "{found}");
    assert_eq!(devices[0]["bytes"], found["log_bytes"]);
    let (total, queue) = (number(&found, "/latency_ns/total/p99"), number(&found, "/latency_ns/queue/p50"));
    assert!(total > 0 && queue <= total, "{found}");
    let sentence = found["sentence"].as_str().unwrap();
    assert!(
        sentence.starts_with(&format!("tank/db: {} commits (4 flushes, {} FUA), p50 ", begun + 9, begun + 5)),
        "{sentence}"
    );
    assert!(sentence.contains("all on log device ") && sentence.contains("slog"), "{sentence}");
    assert!(is_idle(&lab).ends_with("the log device works for others"));

    for at in 0..4 {
        off.write(at * 4096, &[4; 4096], at == 0).unwrap();
        off.flush().unwrap();
    }
    let found = stat(&lab, "tank/off");
    assert_eq!((number(&found, "/ignored"), number(&found, "/commits")), (5, 0));
    let sentence = found["sentence"].as_str().unwrap();
    assert!(
        sentence.starts_with(
            "tank/off: sync=disabled: 5 requests for stability (4 flushes, 1 FUA) were acknowledged without being durable; up to "
        ) && sentence.ends_with(" seconds of writes are lost in a power cut"),
        "{sentence}"
    );

    // The table says the same, a line per volume, then the sentences.
    let text = lab.run("zilstat tank").ok();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("VOLUME") && lines[0].trim_end().ends_with("WAITED"), "{text}");
    let words: Vec<&str> = lines[1].split_whitespace().collect();
    assert_eq!((words[0], words[2]), ("tank/db", "4"), "{text}");
    assert!(lines[2].starts_with("tank/idle") && lines[3].starts_with("tank/off"), "{text}");
    assert_eq!((lines[4], lines.len()), ("", 8), "{text}");
    assert!(lines[7].starts_with("tank/off: sync=disabled: 5 requests"), "{text}");
    let exact = lab.run("zilstat -H -p tank/db").ok();
    let cells: Vec<&str> = exact.trim_end().split('\t').collect();
    assert_eq!((cells.len(), cells[0], cells[2]), (19, "tank/db", "4"), "{exact}");
    assert!(lab.run("zilstat -v tank/db").ok().contains("tank/db up to"), "a histogram");

    // With an interval: only what happens in it.
    let rows = lab.run("zilstat tank/db 0.1 2").ok();
    assert_eq!(rows.lines().count(), 3, "one header, two reports: {rows}");
    let writer = std::thread::spawn(move || {
        for _ in 0..40 {
            db.write(0, &[9; 4096], true).unwrap();
        }
        db
    });
    let objects = lab.run("zilstat -j tank/db 0.3 3").ok();
    drop(writer.join().unwrap());
    let fua: u64 = objects
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .map(|object| {
            let seconds = object["volumes"]["tank/db"]["seconds"].as_f64().unwrap();
            assert!((0.25..20.0).contains(&seconds), "{seconds}");
            number(&object, "/volumes/tank~1db/asked/fua")
        })
        .sum();
    assert!(fua <= 40, "{fua} of 40");
    assert_eq!(daemon.stop().code(), Some(0));
}

#[test]
fn properties_and_the_write_cache_bit_take_effect_on_volumes_in_use() {
    let lab = pool("HERE/a log HERE/slog", &[("v", ""), ("w", "")]);
    let daemon = lab.serve(SERVE);
    let (mut one, mut two) = (nbd(&lab, "tank/v"), iscsi(&lab, "tank/v"));
    begin_log(&lab, "tank/v", &mut one);
    let asked = |name: &str| number(&stat(&lab, "tank/v"), &format!("/asked/{name}"));
    two.write(0, &[1; 4096], false).unwrap();
    assert_eq!((asked("cache_off"), asked("always")), (0, 0));
    two.write_through().unwrap();
    two.write(0, &[2; 4096], false).unwrap();
    two.zero(4096, 4096, false).unwrap();
    one.write(8192, &[3; 4096], false).unwrap();
    assert_eq!(asked("cache_off"), 2, "the initiator's, not the other client's");

    lab.run("zfs set sync=always tank").ok();
    one.write(0, &[4; 4096], false).unwrap();
    assert_eq!(asked("always"), 1, "inherited, and at once");
    lab.run("zfs set sync=disabled tank/v").ok();
    let commits = number(&stat(&lab, "tank/v"), "/commits");
    one.write(0, &[5; 4096], true).unwrap();
    one.flush().unwrap();
    two.write(0, &[6; 4096], false).unwrap();
    let found = stat(&lab, "tank/v");
    assert_eq!((number(&found, "/ignored"), number(&found, "/commits")), (3, commits), "{found}");
    let status = lab.run("zpool status").ok();
    assert!(
        status.contains(
            "\n  sync: 'tank/v' has sync=disabled: a power cut takes the last seconds of what its clients wrote, flushed or not\n"
        ),
        "{status}"
    );
    assert!(!status.contains("tank/w"), "{status}");
    let json: Value = serde_json::from_str(&lab.run("zpool status -j").ok()).unwrap();
    assert_eq!(json["pools"]["tank"]["sync_disabled"], serde_json::json!(["tank/v"]));
    lab.run("zfs inherit sync tank/v").ok();
    lab.run("zfs set sync=standard tank").ok();
    assert!(!lab.run("zpool status").ok().contains("sync:"));

    // The log leaves the log device, and comes back.
    lab.run("zfs set logbias=throughput tank/v").ok();
    let on = |found: &Value, is_log: bool| -> u64 {
        let devices = found["devices"].as_array().unwrap().iter();
        devices.filter(|share| share["log"] == is_log).map(|share| number(share, "/blocks")).sum()
    };
    // The next place may have been taken before.
    let mut turns = 0..200_u32;
    let mut write =
        |one: &mut Nbd| one.write(0, &turns.next().unwrap().to_le_bytes().repeat(1024), true).unwrap();
    (0..4).for_each(|_| write(&mut one));
    let before = stat(&lab, "tank/v");
    (0..8).for_each(|_| write(&mut one));
    let after = stat(&lab, "tank/v");
    assert_eq!(after["logbias"], "throughput");
    assert_eq!(on(&after, true), on(&before, true), "{after}");
    assert!(on(&after, false) > on(&before, false), "{after}");
    lab.run("zfs set logbias=latency tank/v").ok();
    (0..4).for_each(|_| write(&mut one));
    assert!(on(&stat(&lab, "tank/v"), true) > on(&after, true));
    assert_eq!(daemon.stop().code(), Some(0));
    lab.run("zfs set sync=disabled tank/w").ok();
    assert!(
        lab.run("zpool status").ok().contains("  sync: 'tank/w' has sync=disabled"),
        "without a daemon too"
    );
    lab.run("zpool export tank").ok();
    fixtures::zdb_check(&[], lab.cwd(), "tank").unwrap();
}

/// It began with the first question: a daemon that was restarted seemed to be as old as the one before, or older.
#[test]
fn the_clock_of_answers_runs_from_the_start_of_the_daemon() {
    let lab = pool("HERE/a", &[("v", "")]);
    let daemon = lab.serve(SERVE);
    let pause = std::time::Duration::from_millis(200);
    for (path, pauses) in [("/v1/log", 1_u32), ("/v1/arc", 2), ("/v1/initiators", 3)] {
        std::thread::sleep(pause);
        let least = u64::try_from((pauses * pause).as_nanos()).unwrap();
        assert!(number(&ask(&lab, path), "/at_ns") >= least, "{path}");
    }
    // And tells which daemon it was.
    let started = || {
        let [log, arc, initiators] =
            ["/v1/log", "/v1/arc", "/v1/initiators"].map(|path| number(&ask(&lab, path), "/started_ns"));
        assert!(log == arc && arc == initiators && log > 0, "{log} {arc} {initiators}");
        log
    };
    let before = started();
    assert_eq!(started(), before);
    assert_eq!(daemon.stop().code(), Some(0));
    let daemon = lab.serve(SERVE);
    assert_ne!(started(), before);
    assert_eq!(daemon.stop().code(), Some(0));
}

/// It said "all in the pool" of what a log device had taken that was removed since.
#[test]
fn what_went_to_a_log_device_is_told_of_it_when_it_is_removed() {
    let lab = pool("HERE/a log HERE/slog", &[("v", "")]);
    let daemon = lab.serve(SERVE);
    let mut wire = nbd(&lab, "tank/v");
    begin_log(&lab, "tank/v", &mut wire);
    lab.run(&format!("zpool remove tank {}/slog", lab.cwd().display())).ok();
    let found = stat(&lab, "tank/v");
    let share = &found["devices"][0];
    assert_eq!((share["log"].as_bool(), share["removed"].as_bool()), (Some(true), Some(true)), "{found}");
    let sentence = found["sentence"].as_str().unwrap();
    assert!(
        sentence.contains("all on log device ") && sentence.contains("slog (since removed)"),
        "{sentence}"
    );
    assert_eq!(daemon.stop().code(), Some(0));
}

#[test]
fn what_cannot_be_shown_is_said_with_the_reason() {
    let lab = pool("HERE/a", &[("v", "")]);
    let said = lab.run("zilstat").fails(1);
    assert!(said.contains("no daemon answers on") && said.contains("'millpond serve'"), "{said}");
    let daemon = lab.serve(SERVE);
    for (words, code, says) in [
        ("zilstat tank/nope", 1, "cannot open 'tank/nope': no volume of this name is open for writing"),
        ("zilstat lake", 1, "cannot open 'lake': the daemon has no such pool open for writing"),
        ("zilstat tank/nope 1 1", 1, "cannot open 'tank/nope'"),
        ("zilstat 0", 2, "invalid interval '0'"),
        ("zilstat tank 1 0", 2, "invalid count '0'"),
        ("zilstat 1 2 3", 2, "'3' is too much"),
        ("zilstat -z", 2, "unexpected argument '-z'"),
    ] {
        let said = lab.run(words).fails(code);
        assert!(said.contains(says), "{words}: {said}");
    }
    // One of two: what is there is shown, and the exit code says that something is missing.
    let outcome = lab.run("zilstat tank/v tank/nope");
    assert!(outcome.code == Some(1) && outcome.stdout.contains("tank/v: nothing was written"), "{outcome:?}");
    assert_eq!(daemon.stop().code(), Some(0));
    let daemon = lab.serve("serve --readonly --nbd 127.0.0.1:0 tank");
    let outcome = lab.run("zilstat");
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), "no volumes are open for writing\n"));
    assert_eq!(daemon.stop().code(), Some(0));
}
