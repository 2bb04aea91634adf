//! `zpool iostat`: what reaches the devices of a pool is counted where it does, by who wanted it, and shown in OpenZFS's
//! columns, with the log and the cache devices in sections of their own.

use serde_json::Value;

use crate::support::wire::{Nbd, Wire};
use crate::support::{Lab, served_as};

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[track_caller]
fn number(of: &Value, path: &str) -> u64 {
    of.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("{path} in {of}"))
}

#[test]
fn what_reaches_devices_is_counted_there_and_shown_in_columns() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    lab.run(&format!(
        "zpool create --size 256M tank mirror {here}/a {here}/b log {here}/slog cache {here}/l2"
    ))
    .ok();
    lab.run("zfs create -s -V 16M -b 16384 -o compression=off tank/v").ok();
    let alone = lab.run("zpool iostat -H -p tank").ok();
    let fields: Vec<&str> = alone.trim_end().split('\t').collect();
    assert_eq!(fields.len(), 7, "{alone:?}");
    assert!(fields[0] == "tank" && fields[1].parse::<u64>().unwrap() > 0, "{alone:?}");
    assert_eq!(fields[3..], ["-"; 4], "what opening it takes is no rate");
    let alone = json(&lab.run("zpool iostat -j tank").ok());
    assert_eq!(number(&alone, "/pools/tank/write_ops"), 0, "a command that looks writes nothing");

    let _daemon = lab.serve("serve --nbd 127.0.0.1:0 tank");
    let url = served_as(&lab, "tank/v", "nbd");
    let port = url.split([':', '/']).find_map(|part| part.parse().ok()).unwrap();
    let mut nbd = Nbd::open(port, "tank/v").unwrap();
    for at in 0..200 {
        nbd.write(at % 64 * 16384, &[at as u8 | 1; 16384], true).unwrap();
    }
    lab.run("zpool sync tank").ok();

    let found = json(&lab.run("zpool iostat -v -w -r -j tank").ok());
    let pool = &found["pools"]["tank"];
    let device = |path: &str| {
        let mirror = &pool["vdevs"]["mirror-0"];
        match path {
            "mirror" => mirror.clone(),
            "slog" => pool["vdevs"][&format!("{here}/slog")].clone(),
            "l2" => pool["l2cache"][&format!("{here}/l2")].clone(),
            side => mirror["vdevs"][&format!("{here}/{side}")].clone(),
        }
    };
    let written = |of: &Value| (number(of, "/write_ops"), number(of, "/write_bytes"));
    let (a, b, mirror, slog) = (device("a"), device("b"), device("mirror"), device("slog"));
    assert_eq!(written(&a).0 + written(&b).0, written(&mirror).0, "both sides of a mirror count");
    assert_eq!(written(&a).1 + written(&b).1, written(&mirror).1);
    assert_eq!(written(pool).1, written(&mirror).1 + written(&slog).1, "a pool is what its devices are");
    assert!(written(&a).1 >= 1 << 20 && written(&b).1 >= 1 << 20, "64 blocks of 16 KiB: {a} {b}");
    assert!(written(&slog).0 >= 100, "a commit is a write to the log: {slog}");
    let sum = |of: &Value, path: &str| -> u64 {
        of.pointer(path).unwrap().as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).sum()
    };
    for leaf in [&a, &b, &slog] {
        let (operations, _) = written(leaf);
        let waited = sum(leaf, "/latency_histograms/syncq_wait_write")
            + sum(leaf, "/latency_histograms/asyncq_wait_write");
        assert_eq!(waited, operations, "each has waited in one queue: {leaf}");
        assert_eq!(sum(leaf, "/latency_histograms/total_wait_write"), operations);
        assert_eq!(sum(leaf, "/latency_histograms/disk_wait_write"), operations);
        let sizes: u64 = ["sync_write/ind", "sync_write/agg", "async_write/ind", "async_write/agg"]
            .iter()
            .map(|list| sum(leaf, &format!("/size_histograms/{list}")))
            .sum();
        assert_eq!(sizes, operations, "and has one size: {leaf}");
    }
    assert!(sum(&slog, "/size_histograms/sync_write/ind") > 50, "somebody waits for a log: {slog}");
    assert!(sum(&a, "/size_histograms/async_write/agg") > 0, "neighbours are joined: {a}");
    assert!(device("l2")["total_space"].as_u64().unwrap() > 100 << 20, "{}", device("l2"));

    let text = lab.run("zpool iostat -v tank").ok();
    let lines: Vec<&str> = text.lines().collect();
    let width = lines[2].find("  ").unwrap();
    assert_eq!(lines[0], format!("{:width$}    capacity     operations     bandwidth ", ""));
    assert_eq!(lines[1], format!("{:width$}  alloc   free   read  write   read  write", "pool"));
    let names: Vec<&str> = lines[3..]
        .iter()
        .map(|line| line.split("  ").find(|part| !part.is_empty()).unwrap().trim())
        .collect();
    let wanted = ["tank", "mirror-0", "a", "b", "logs", "slog", "cache", "l2"];
    assert_eq!(names.len(), wanted.len() + 1, "{text}");
    assert!(names.iter().zip(wanted).all(|(name, wanted)| name.ends_with(wanted)), "{text}");
    assert!(
        lines[7].ends_with("      -      -      -      -      -      -"),
        "a section has no numbers: {text}"
    );
    assert!(lines[5].contains("      -      -  "), "a side of a mirror has no space of its own: {text}");
    assert_eq!(lines[2], *lines.last().unwrap(), "{text}");

    let text = lab.run("zpool iostat -l -q -p tank").ok();
    let row = text.lines().nth(3).unwrap();
    assert_eq!(row.split_whitespace().count(), 1 + 6 + 11 + 14, "{text}");
    let heads = text.lines().next().unwrap();
    for head in ["total_wait", "asyncq_wait", "rebuild", "syncq_read", "rebuildq_write"] {
        assert!(heads.contains(head), "{text}");
    }
    let text = lab.run("zpool iostat -w tank").ok();
    assert_eq!(text.lines().count(), 1 + 3 + 37 + 1, "{text}");
    assert!(text.lines().nth(2).unwrap().ends_with("  scrub   trim  rebuild"), "{text}");
    assert!(text.lines().nth(40).unwrap().starts_with("137s "), "{text}");
    let text = lab.run("zpool iostat -r tank").ok();
    assert_eq!(text.lines().count(), 1 + 3 + 16 + 1, "{text}");
    assert!(text.contains("\n16M "), "{text}");

    // Of an interval only what happened in it; of a device only that.
    let text = lab.run("zpool iostat -H -p -y tank 0.2 2").ok();
    assert_eq!(text.lines().count(), 2, "{text}");
    let text = lab.run(&format!("zpool iostat -H -p tank {here}/slog")).ok();
    assert!(text.starts_with(&format!("{here}/slog\t")) && text.lines().count() == 1, "{text}");
    let rows = lab.run("zpool iostat -T u tank 0.1 3").ok();
    assert_eq!(rows.lines().count(), 3 + 3 + 3, "the header once, and the time before each report: {rows}");
    for (command, code, says) in [
        ("zpool iostat -w -l tank", 2, "histograms (-r, -w) cannot be shown with -l or -q"),
        ("zpool iostat nope", 1, "cannot open 'nope': no such pool or device"),
        ("zpool iostat tank nope", 1, "cannot open 'nope': no such device in the pool"),
    ] {
        // Nothing of a report that would have to be told from the right one.
        assert_eq!(lab.run(command).stdout, "", "{command}");
        let said = lab.run(command).fails(code);
        assert!(said.contains(says), "{command}: {said}");
    }
}

#[test]
fn the_arc_has_a_page_and_what_more_of_it_would_be_worth_is_said_when_it_is_known() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    for command in ["arc-summary", "advise"] {
        let said = lab.run(command).fails(1);
        assert!(said.contains("no daemon answers") && said.contains("millpond serve"), "{said}");
    }
    lab.run(&format!("zpool create --size 256M tank {here}/a cache {here}/l2")).ok();
    lab.run("zfs create -s -V 16M tank/v").ok();
    let _daemon = lab.serve("serve --nbd 127.0.0.1:0 tank");
    let page = lab.run("arc-summary").ok();
    for section in [
        "ARC status:",
        "ARC structural breakdown (current size):",
        "ARC types breakdown (compressed + overhead):",
        "ARC states breakdown (compressed + overhead):",
        "ARC misc:",
        "ARC total accesses:",
        "ARC demand data accesses:",
        "ARC predictive prefetches:",
        "ARC states hits of all accesses:",
        "L2ARC status:",
        "L2ARC rebuild:",
    ] {
        assert!(page.lines().any(|line| line.starts_with(section)), "{section} in {page}");
    }
    let all = json(&lab.run("arc-summary -j").ok());
    assert!(number(&all["arcstats"], "/c") > 0 && all["arcstats"]["rules_data"].is_string(), "{all}");
    assert_eq!(number(&all["arcstats"], "/l2_ndev"), 1);
    // A part of it, and for grep; also by the names of OpenZFS's programs.
    let hits = lab.run("arc-summary -s archits").ok();
    assert!(hits.starts_with("ARC total accesses:") && !hits.contains("L2ARC"), "{hits}");
    let called = |program: &str, line: &str| lab.run_args(program, line.split_whitespace());
    for program in ["arc_summary", "arc-summary"] {
        assert!(called(program, "").ok().starts_with("ARC status:"), "{program}");
        let raw = called(program, "--raw").ok();
        assert!(raw.starts_with("ARCSTATS:\n") && raw.lines().count() > 50, "{program}: {raw}");
        assert!(raw.lines().any(|line| line.split_whitespace().eq(["l2_ndev", "1"])), "{program}: {raw}");
    }
    assert!(called("arcstat", "").ok().contains("  ddread  "));
    assert_eq!(called("arcstat", "-H -f hit%,size").ok().trim().split('\t').count(), 2);
    let refused = called("arcstat", "tank 1").fails(2);
    assert!(
        refused.contains("'tank' is no interval") && refused.contains("Usage: arcstat [OPTIONS]"),
        "{refused}"
    );
    // For scripts: into a file, with something else between the columns.
    assert_eq!(lab.run("arcstat -f read,size,c -s , -o arc.csv").ok(), "");
    let kept = std::fs::read_to_string(lab.cwd().join("arc.csv")).unwrap();
    assert!(kept.lines().all(|line| line.split(',').count() == 3) && kept.lines().count() == 2, "{kept}");
    let said = lab.run("advise").ok();
    assert!(said.ends_with("of 1000 sampled accesses so far: too few to judge by\n"), "{said}");
    let advice = json(&lab.run("advise -j").ok());
    assert!(number(&advice["advice"]["arc"], "/one_in") >= 64, "{advice}");
    let said = lab.run("advise tank/nope").fails(1);
    assert!(
        said.contains("cannot advise on 'tank/nope': there is no such pool, file system or volume"),
        "{said}"
    );
    let said = lab.run("advise tank/v").fails(1);
    assert!(said.contains("cannot advise on 'tank/v': too little of it was used lately"), "{said}");
    // The cache device is empty, and why.
    let status = lab.run("zpool status tank").ok();
    let line = status.lines().find(|line| line.contains("/l2 ")).unwrap();
    let said = "0     0     0  (recovered 0 blocks, because it is too small to remember what it holds)";
    assert!(line.contains("ONLINE") && line.trim_end().ends_with(said), "{line:?}");
    // Who holds memory is the daemon's to say, not OpenZFS's.
    assert!(!status.contains("memory:"), "{status}");
    let status = lab.run("status tank").ok();
    assert!(
        status.contains("memory: ") && status.contains("  held: ") && status.contains("  shed: nothing"),
        "{status}"
    );
    let status = json(&lab.run("status -j tank").ok());
    assert!(number(&status, "/memory/limit") > 0 && status["pools"]["tank"].is_object(), "{status}");
}
