//! What commands print, to the letter: golden files in `transcripts/`, one per fixture or subject.
//!
//! A transcript is a list of `$ command` lines, each with what it printed, lines of standard error marked with
//! `!`, and its exit code if that is not 0. After a wanted change, write them anew and read the difference:
//!
//!     MILLPOND_BLESS=1 cargo test -p millpond --test cli transcripts

use crate::support::Lab;

/// A transcript with nothing to be made the same.
#[track_caller]
fn transcript(name: &str, lab: &Lab, commands: &[&str]) {
    crate::support::transcript(name, lab, commands, &str::to_owned);
}

fn fixture(name: &str) -> Lab {
    Lab::at(fixtures::pool(name).dir)
}

#[test]
fn help() {
    transcript(
        "help",
        &Lab::empty(),
        &[
            "millpond --help",
            "millpond zpool --help",
            "millpond zpool create --help",
            "millpond zpool destroy --help",
            "millpond zpool add --help",
            "millpond zpool import --help",
            "millpond zpool export --help",
            "millpond zpool status --help",
            "millpond zpool list --help",
            "millpond zpool get --help",
            "millpond zpool set --help",
            "millpond zpool history --help",
            "millpond zpool events --help",
            "millpond zpool sync --help",
            "millpond zpool labelclear --help",
            "millpond zpool checkpoint --help",
            "millpond zfs --help",
            "millpond zfs create --help",
            "millpond zfs destroy --help",
            "millpond zfs snapshot --help",
            "millpond zfs rollback --help",
            "millpond zfs clone --help",
            "millpond zfs promote --help",
            "millpond zfs rename --help",
            "millpond zfs bookmark --help",
            "millpond zfs list --help",
            "millpond zfs get --help",
            "millpond zfs set --help",
            "millpond zfs inherit --help",
            "millpond zfs hold --help",
            "millpond zfs holds --help",
            "millpond zfs release --help",
            "millpond serve --help",
            "millpond share --help",
            "millpond share list --help",
            "millpond share target --help",
            "millpond share target set --help",
            "millpond share lun --help",
            "millpond share lun add --help",
            "millpond share portal --help",
            "millpond share portal add --help",
            "millpond share access --help",
            "millpond share access allow --help",
            "millpond share chap --help",
            "millpond share chap set --help",
            "millpond share set --help",
            "millpond initiators --help",
            "millpond stmfadm --help",
            "millpond sbdadm --help",
            "millpond alert --help",
            "millpond alert add --help",
            "millpond alert add smtp --help",
            "millpond alert add webhook --help",
            "millpond alert add syslog --help",
            "millpond alert test --help",
            "millpond alert history --help",
            "millpond zilstat --help",
            "millpond advise --help",
            "millpond cachesim --help",
            "millpond zpool iostat --help",
            "millpond verify --help",
            "millpond image --help",
            "millpond ls --help",
            "millpond cat --help",
            "millpond get --help",
            "millpond dump --help",
            "zpool --help",
            "zpool list --help",
            "zfs --help",
            "zfs get --help",
        ],
    );
}

#[test]
fn wrong_usage() {
    transcript(
        "usage",
        &fixture("single"),
        &[
            "millpond",
            "millpond nonsense",
            "millpond zpool",
            "millpond zpool list --nonsense",
            "millpond zpool list -o size,nonsense",
            "millpond zpool get nonsense",
            "millpond zpool get -o name,nonsense all",
            "millpond zpool export",
            "millpond zpool import -n psingle",
            "millpond zpool import -o readonly=maybe psingle",
            "millpond zpool import -a psingle",
            "millpond zpool create",
            "millpond zpool create tank",
            "millpond zpool create -o ashift tank /a",
            "millpond zpool set comment psingle",
            "millpond zpool set",
            "millpond zpool labelclear",
            "millpond zfs create",
            "millpond zfs create -s psingle/thin",
            "millpond zfs set psingle/v1",
            "millpond zfs set compression=lz4",
            "millpond zfs inherit nonsense psingle",
            "millpond zfs destroy",
            "millpond zfs destroy -d psingle/v1",
            "millpond zfs hold tag",
            "millpond zfs snapshot psingle/nope@a",
            "millpond zfs list -t nonsense",
            "millpond zfs list -s nonsense",
            "millpond zfs get -s nonsense all",
            "millpond zfs get nonsense psingle",
            "zpool get nonsense",
            "zfs list -o nonsense",
            "millpond serve --nbd nonsense",
            "millpond share",
            "millpond share target create",
            "millpond share access allow --initiator iqn.a:b",
            "millpond share set psingle/v1",
            "millpond share lun remove iqn.a:b psingle/v1",
            "millpond initiators psingle",
            "stmfadm",
            "sbdadm create-lu",
        ],
    );
}

#[test]
fn one_disk() {
    transcript(
        "single",
        &fixture("single"),
        &[
            "millpond -d . zpool import",
            "millpond zpool import -d .",
            "millpond -d . zpool status",
            "millpond -d . zpool status -x",
            "millpond -d . zpool status -x psingle",
            "millpond -d . zpool status -g",
            "millpond -d . zpool list",
            "millpond -d . zpool list -v",
            "millpond -d . zpool list -Hpv",
            "millpond -d . zpool list -o name,free,cap,ashift,delegation,feature@async_destroy",
            "millpond -d . zpool list 7519396386605996200",
            "millpond -d . zpool get size,health,feature@lz4_compress psingle",
            "millpond -d . zpool get -Hp -o value,property free,alloc psingle",
            "millpond -d . zpool get name,ashift,org.example:note psingle",
            "millpond -d . zfs list",
            "millpond -d . zfs list -t all",
            "millpond -d . zfs list -Hp -o name,used,referenced -t snapshot",
            "millpond -d . zfs list psingle/v1@s1",
            "millpond -d . zfs list -t snap psingle/v1",
            "millpond -d . zfs list -t volume psingle/fs",
            "millpond -d . zfs list -d 1 psingle",
            "millpond -d . zfs list -r psingle/v1 -t all",
            "millpond -d . zfs list -o space",
            "millpond -d . zfs list -S used -o name,used,volsize",
            "millpond -d . zfs list -s volsize -s name -o name,volsize,compression,creation",
            "millpond -d . zfs list psingle psingle psingle/nope nope/vol",
            "millpond -d . zfs list psingle//v1",
            "millpond -d . zfs get compression,volsize,origin psingle/v1",
            "millpond -d . zfs get -r used psingle",
            "millpond -d . zfs get -t snapshot used psingle/v1",
            "millpond -d . zfs get -s local,inherited all psingle/fs",
            "millpond -d . zfs get -H -o all atime psingle/fs",
            "millpond -d . zfs get all psingle/v1@s1",
            "millpond -d . zpool status nope",
            "millpond -d . zpool get size nope",
            "millpond -d . zpool list -j",
            "millpond -d . zpool list -jvp",
            "millpond -d . zpool status -j",
            "millpond -d . zpool get -j size,feature@lz4_compress",
            "millpond -d . zpool import -j",
            "millpond -d . zfs list -j -t all -o name,used",
            "millpond -d . zfs get -j compression,mountpoint psingle/fs psingle/v1@s1",
        ],
    );
}

#[test]
fn called_by_the_names_of_openzfs() {
    transcript(
        "links",
        &fixture("mirror2"),
        &["zpool -d . list", "zpool -d . status", "zfs -d . list", "zfs -d . get used pmirror2"],
    );
}

#[test]
fn layouts() {
    for (name, pool) in [
        ("raidz2x6", "praidz2x6"),
        ("mirror2", "pmirror2"),
        ("l2arc", "pl2arc"),
        ("removal", "premoval"),
        ("expansion", "pexpansion"),
        ("dedup", "pdedup"),
        ("crash-main", "pcrashmain"),
    ] {
        transcript(
            name,
            &fixture(name),
            &[
                "zpool -d . import",
                "zpool -d . status",
                "zpool -d . list -v",
                &format!("zpool -d . get all {pool}"),
                "zfs -d . list -t all -o name,used,refer,ratio,origin",
            ],
        );
    }
}

/// A pool that was cut off: what its intent logs hold is listed, and said wherever the pool is shown without it.
#[test]
fn unreplayed() {
    transcript(
        "unreplayed",
        &fixture("crash-main"),
        &[
            "millpond dump -f -d . -i pcrashmain/idle",
            "millpond dump -f -d . -i pcrashmain/fs",
            "millpond dump -f -d . -i -j pcrashmain/idle",
        ],
    );
    let lab = Lab::copy_of(&fixtures::pool("crash-main"));
    crate::support::transcript(
        "replay",
        &lab,
        &[
            "zpool import -f -d . -o readonly=on pcrashmain",
            "zpool status",
            "zpool export pcrashmain",
            "zpool import -f -d . pcrashmain",
            "zpool status",
            "zpool export pcrashmain",
            "zpool import -d . pcrashmain",
            "zpool status",
        ],
        &same_everywhere,
    );
}

/// Whoever saved a volume before he touched the pool had an image without the last writes that were acknowledged, and was not
/// told.
#[test]
fn what_is_copied_of_a_pool_that_was_cut_off_says_what_it_lacks() {
    let lab = fixture("crash-main");
    let image = lab.path("image").display().to_string();
    for (command, is_told) in [
        (format!("image -f -d . pcrashmain/v1 -o {image}"), Some("'pcrashmain/v1' is shown as of txg ")),
        (format!("image -f -d . pcrashmain/v1@before -o {image}"), None),
        // Gone back to: nobody replays anything into that, and the newest state may have it.
        (
            format!("image -f -d . -T 32 pcrashmain/v1 -o {image}"),
            Some("'pcrashmain/v1' is shown as of txg 32, without what was acknowledged after that"),
        ),
        ("ls -d . pcrashmain/fs".to_owned(), Some("'pcrashmain/fs' is shown as of txg ")),
        ("ls -d . pcrashmain/fs@before".to_owned(), None),
    ] {
        let said = lab.run(&command);
        assert_eq!(said.code, Some(0), "{command}: {said:?}");
        assert_eq!(
            said.stderr.contains("its intent log holds"),
            is_told.is_some() && !command.contains("-T"),
            "{command}: {}",
            said.stderr
        );
        assert!(is_told.is_none_or(|words| said.stderr.contains(words)), "{command}: {}", said.stderr);
    }
}

/// A daemon writes to the pool, and replays no log of a file system: whoever saved the files was told only that.
#[test]
fn what_is_copied_of_a_pool_that_a_daemon_writes_to_says_what_waits_in_a_log_that_is_kept() {
    let lab = Lab::copy_of(&fixtures::pool("crash-main"));
    let image = lab.path("image").display().to_string();
    let imported = lab.run("zpool import -f -d . pcrashmain");
    assert_eq!(imported.code, Some(0), "{imported:?}");
    let daemon = lab.serve("serve --nbd 127.0.0.1:0");
    for (command, is_told) in [
        ("ls pcrashmain/fs".to_owned(), true),
        ("ls pcrashmain/fs@before".to_owned(), false),
        // Replayed.
        (format!("image pcrashmain/v1 -o {image}"), false),
    ] {
        let said = lab.run(&command);
        assert_eq!(said.code, Some(0), "{command}: {said:?}");
        assert_eq!(said.stderr.contains("its intent log holds"), is_told, "{command}: {}", said.stderr);
    }
    assert!(daemon.stop().success());
}

/// How long something took, where the images are, and how many transaction groups there were: none of it is told.
fn same_everywhere(text: &str) -> String {
    let tame = |line: &str| match line.strip_suffix(" ms").and_then(|line| line.rsplit_once(' ')) {
        Some((front, _)) if line.contains("replayed") => format!("{front} N ms\n"),
        _ => format!("{line}\n"),
    };
    let number = |line: String| match line.split_once(" as of txg ") {
        Some((front, rest)) => {
            format!("{front} as of txg N{}", rest.trim_start_matches(|c: char| c.is_ascii_digit()))
        }
        None => line,
    };
    text.lines().filter(|line| !line.starts_with('\t')).map(tame).map(number).collect()
}

#[test]
fn a_pool_is_remembered_from_import_to_export() {
    let lab = Lab::copy_of(&fixtures::pool("mirror2"));
    transcript(
        "import",
        &lab,
        &[
            "zpool list",
            "zpool import -d . nope",
            "zpool import -d . pmirror2",
            "zpool list -o name,health",
            "zfs list -o name",
            "zpool import -d .",
            "zpool import -d . pmirror2",
            "zpool export nope",
            "zpool export pmirror2",
            "zpool list",
            "zpool import -d . -a",
            "zpool list -o name,health",
        ],
    );
}

/// Forms that monitoring, shells and systemd's units use, and that were refused.
#[test]
fn forms_of_stock_commands_that_scripts_use_are_understood() {
    let lab = fixture("single");
    let lines = |line: &str| -> Vec<String> { lab.run(line).ok().lines().map(str::to_owned).collect() };
    let squeezed = |line: String| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let listed = lines("-d . zpool list -o name,health psingle 0.01 3");
    let listed: Vec<String> = listed.into_iter().map(squeezed).collect();
    assert_eq!(listed, ["NAME HEALTH", "psingle ONLINE", "psingle ONLINE", "psingle ONLINE"], "{listed:#?}");
    assert_eq!(lines("-d . zpool list -H -o name 0.01 2"), ["psingle", "psingle"]);
    for line in ["zpool list -H", "zpool status", "zpool list"] {
        let (seconds, date) = (lines(&format!("-d . {line} -T u")), lines(&format!("-d . {line} -T d")));
        assert!(
            seconds[0].parse::<u64>().is_ok_and(|seconds| seconds > 1_700_000_000),
            "{line}: {seconds:#?}"
        );
        assert!(date[0].contains(':') && date[0].contains("20"), "{line}: {date:#?}");
        assert_eq!(seconds[1..], date[1..], "{line}");
    }
    // A boot imports what was imported before; a pool that only is there stays as it is.
    let said = lab.run(&format!("zpool import -c /etc/zfs/zpool.cache -d {} -aN", lab.cwd().display()));
    assert_eq!((said.code, said.stdout.as_str()), (Some(0), ""), "{said:?}");
    for program in ["zpool", "zfs"] {
        assert!(lines(&format!("{program} version"))[0].starts_with("millpond-"));
        let json: serde_json::Value =
            serde_json::from_str(&lab.run(&format!("{program} version -j")).ok()).unwrap();
        assert!(json["zfs_version"]["userland"].as_str().unwrap().starts_with("millpond-"), "{json}");
    }
    // Either way of asking has one answer: `--version` said "zfs 0.1.0", which is older than any OpenZFS.
    let version = lab.run("version").ok();
    for program in ["millpond", "zpool", "zfs"] {
        for word in ["version", "--version", "-V"] {
            assert_eq!(lab.run_args(program, [word]).ok(), version, "{program} {word}");
        }
    }
    let json = |line: &str| -> serde_json::Value {
        serde_json::from_str(&lab.run(&format!("-d . {line}")).ok()).unwrap()
    };
    for (line, path) in [
        ("zpool list -j", "/pools/psingle/properties/size/value"),
        ("zpool get -j size", "/pools/psingle/properties/size/value"),
        ("zpool status -j", "/pools/psingle/txg"),
        ("zfs list -j psingle/v1", "/datasets/psingle~1v1/properties/used/value"),
        ("zfs get -j volsize psingle/v1", "/datasets/psingle~1v1/properties/volsize/value"),
    ] {
        assert!(json(line).pointer(path).unwrap().is_string(), "{line}");
        let numbers = json(&line.replace("-j", "-j --json-int"));
        assert!(numbers.pointer(path).unwrap().is_u64(), "{line}: {numbers}");
    }
    lab.run("-d . zpool list --json-int").fails(2);
}

/// `-s` says which rows there are; with `received` among the sources there was a column more, and who read the source as the
/// fourth had `-`.
#[test]
fn sources_leave_rows_out_and_columns_as_they_are() {
    let lab = fixture("single");
    let said = lab.run("-d . zfs get -H -s local,received,default all psingle/v1").ok();
    assert!(!said.is_empty() && said.lines().all(|line| line.matches('\t').count() == 3), "{said}");
}

/// No command told which properties there are, and Salt, which asks in this way, took every size for a text.
#[test]
fn whoever_names_no_property_is_told_which_there_are() {
    let lab = fixture("single");
    for (line, head, rows) in [
        (
            "zfs get",
            "PROPERTY EDIT INHERIT VALUES",
            [
                "volmode YES YES default | full | geom | dev | none",
                "volsize YES NO <size>",
                "used NO NO <size>",
                "volblocksize NO NO 512 to 128k, power of 2",
            ],
        ),
        (
            "zpool get",
            "PROPERTY EDIT VALUES",
            [
                "failmode YES wait | continue | panic",
                "size NO <size>",
                "guid NO <guid>",
                "autotrim YES on | off",
            ],
        ),
    ] {
        let said = lab.run(line);
        assert_eq!((said.code, said.stdout.as_str()), (Some(2), ""), "{line}");
        let listed = said.stderr.lines().filter_map(|line| line.strip_prefix('\t'));
        let listed: Vec<String> =
            listed.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(listed[0], head, "{line}: {}", said.stderr);
        for row in rows {
            assert!(listed.iter().any(|line| line == row), "{line}: no '{row}' in {}", said.stderr);
        }
        let usage = format!("\n\nUsage: millpond {line} [OPTIONS] [all|PROPERTY,…] ");
        assert!(said.stderr.starts_with(&format!("missing property argument{usage}")), "{}", said.stderr);
        assert_eq!(lab.run(&format!("{line} -H")).fails(2), said.stderr);
    }
}
