//! What the commands that change something print and do, to the letter: transcripts on pools made in the test, each
//! judged by zdb at the end.
//!
//! A transcript is a list of `$ command` lines, each with what it printed, lines of standard error marked with `!`,
//! and its exit code if that is not 0. Guids, times and paths of the test are replaced by words. After a wanted
//! change, write them anew and read the difference:
//!
//!     MILLPOND_BLESS=1 cargo test -p millpond --test cli write_commands

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use crate::support::{
    Lab, transcript,
    wire::{Nbd, Wire},
};

/// Each got some of the devices and none all of them: of eight that were begun together one or two gave up.
#[test]
fn commands_that_are_begun_together_have_their_turns() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    lab.run(&format!("zpool create --size 128M tank raidz {here}/a {here}/b {here}/c")).ok();
    lab.run("zfs create tank/d").ok();
    std::thread::scope(|scope| {
        for i in 0..16 {
            let lab = &lab;
            scope.spawn(move || lab.run(&format!("zfs snapshot tank/d@p{i}")).ok());
        }
    });
    assert_eq!(lab.run("zfs list -H -t snapshot -o name -r tank").ok().lines().count(), 16);
    let mut left = std::fs::read_dir(lab.path("state")).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(left.all(|name| !name.to_string_lossy().starts_with("turn-")), "no turn is left behind");
}

/// The line of the guides for a root on ZFS gave no pool, and told to upgrade one that was not there.
#[test]
fn a_new_pool_has_the_features_that_its_properties_need() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    let properties =
        "-O dnodesize=auto -O checksum=sha512 -O xattr=sa -O normalization=formD -O canmount=off";
    let created = lab.run(&format!("zpool create --size 128M {properties} tank {here}/a"));
    assert_eq!(created.code, Some(0), "{created:?}");
    let features = "feature@large_dnode,feature@sha512,feature@skein";
    let states = lab.run(&format!("zpool get -H -o value {features} tank")).ok();
    let states: Vec<&str> = states.lines().collect();
    assert!(states[0] == "enabled" && states[1] != "disabled" && states[2] == "disabled", "{states:?}");
    assert_eq!(lab.run("zfs get -H -o value dnodesize,checksum tank").ok(), "auto\nsha512\n");
    lab.run("zpool export tank").ok();
    fixtures::zdb_check(&[], lab.cwd(), "tank").unwrap();
}

/// Devices below `/dev` are named without it: what `zpool status` prints with slashes is understood as it stands there.
#[test]
fn cache_devices_are_found_by_the_name_that_is_shown_and_missed_when_they_are_gone() {
    let lab = Lab::scratch();
    let Ok(memory) = tempfile::tempdir_in("/dev/shm") else {
        eprintln!("NOT RUN: there is no /dev/shm to write to");
        return;
    };
    let (here, there) = (lab.cwd().display().to_string(), memory.path().display().to_string());
    lab.run(&format!(
        "zpool create --size 64M tank {here}/a cache {there}/c1 {there}/c2 {here}/c3 spare {there}/s"
    ))
    .ok();
    let shown = there.strip_prefix("/dev/").unwrap();
    let status = lab.run("zpool status tank").ok();
    assert!(status.contains(&format!("\t  {shown}/c1 ")), "{status}");
    let well = lab.run("zpool status -e tank").ok();
    assert!(!well.contains("cache") && !well.contains("spares") && !well.contains("/c1"), "{well}");

    let said = lab.run(&format!("zpool remove tank {shown}/none")).fails(1);
    assert_eq!(said, format!("cannot remove {shown}/none: no such device in pool\n"));
    // The device that is to take its place was taken and tried out first, and then there was "no such device in pool".
    let refused = lab.run(&format!("zpool replace tank {shown}/c1 {here}/new")).fails(1);
    assert_eq!(refused, format!("cannot replace {shown}/c1 with {here}/new: device is in use as a cache\n"));
    let planned = lab.run(&format!("zpool remove -n tank {shown}/c1 {there}/s")).ok();
    assert_eq!(planned.lines().count(), 2, "{planned}");
    assert_eq!(
        planned.lines().next().unwrap(),
        format!("Memory that will be used after removing {shown}/c1: 0B")
    );
    assert_eq!(lab.run("zpool status tank").ok(), status, "nothing was removed");
    lab.run(&format!("zpool remove -w tank {shown}/c1")).ok();
    // From here it is a path, too.
    lab.run("zpool remove tank ./c3").ok();
    lab.run(&format!("zpool remove tank {shown}/s")).ok();
    let status = lab.run("zpool status tank").ok();
    assert!(!status.contains("/c1") && !status.contains("/c3") && !status.contains("spares"), "{status}");
    assert_eq!(lab.run("zpool status -x").ok(), "all pools are healthy\n");

    std::fs::remove_file(memory.path().join("c2")).unwrap();
    let lost = lab.run("zpool status -x").ok();
    assert!(lost.contains("status: One or more devices could not be opened."), "{lost}");
    assert!(lost.contains("action: Attach the missing device") && lost.contains("UNAVAIL"), "{lost}");
    assert!(lab.run("zpool status -e tank").ok().contains("/c2"), "{lost}");
}

/// Other commands know a device by its short name; this one wanted a file of that name.
#[test]
fn labels_are_cleared_by_the_short_name_of_a_device() {
    let lab = Lab::scratch();
    let Ok(memory) = tempfile::tempdir_in("/dev/shm") else {
        eprintln!("NOT RUN: there is no /dev/shm to write to");
        return;
    };
    let there = memory.path().display().to_string();
    let shown = there.strip_prefix("/dev/").unwrap();
    lab.run(&format!("zpool create --size 64M tank {there}/a")).ok();
    lab.run("zpool export tank").ok();
    let refused = lab.run(&format!("zpool labelclear {shown}/a")).fails(1);
    assert!(refused.contains(&format!("{there}/a is a member of exported pool \"tank\"")), "{refused}");
    lab.run(&format!("zpool labelclear -f {shown}/a")).ok();
    let labels = std::fs::read(memory.path().join("a")).unwrap();
    assert!(labels[..256 << 10].iter().all(|byte| *byte == 0), "it has labels");
}

/// The first of two names of one device was removed, and the second not found any more: both were said to be there still, and
/// labels were left.
#[test]
fn a_device_that_is_named_twice_is_removed_once() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    lab.run(&format!("zpool create --size 64M tank {here}/a log {here}/l spare {here}/s")).ok();
    lab.run(&format!("zpool remove tank {here}/s ./s {here}/l {here}/l")).ok();
    let status = lab.run("zpool status tank").ok();
    assert!(status.contains("/a ") && !status.contains("/l ") && !status.contains("/s "), "{status}");
    for gone in ["l", "s"] {
        let label = std::fs::read(lab.cwd().join(gone)).unwrap();
        assert!(label[..256 << 10].iter().all(|byte| *byte == 0), "{gone} has labels");
    }
}

/// The first line that was printed ended the command, and well: the pools behind it were left as they were, and nobody was
/// told of the one that there is not.
#[test]
fn output_that_nobody_reads_leaves_nothing_out_and_hides_no_refusal() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    for pool in ["a", "b"] {
        lab.run(&format!("zpool create -d --size 64M {pool} {here}/{pool}")).ok();
    }
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut upgrade = lab.command("millpond");
    let said = upgrade.args(["zpool", "upgrade", "a", "nosuch", "b"]).stdout(writer).output().unwrap();
    let stderr = String::from_utf8(said.stderr).unwrap();
    assert!(said.status.code() == Some(1) && stderr.contains("nosuch"), "{:?}: {stderr}", said.status);
    let lacking = lab.run("zpool upgrade").ok();
    assert!(lacking.contains("Every feature flags pool has all features enabled"), "{lacking}");
}

/// Of two pools with one name JSON had the last only, whatever was wrong with the other.
#[test]
fn two_pools_of_one_name_are_both_in_json() {
    let lab = Lab::scratch();
    let (here, other) = (lab.cwd().display().to_string(), lab.path("other").display().to_string());
    lab.run(&format!("zpool create --size 64M tank {here}/a")).ok();
    lab.run(&format!("--state {other} zpool create --size 64M tank {here}/b")).ok();
    for line in ["zpool status -j", "zpool list -j", "zpool get -j size", "zpool iostat -j"] {
        let shown = lab.run(&format!("-d {here} {line}")).ok();
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        let pools = shown["pools"].as_object().unwrap();
        assert!(pools.len() == 2 && !pools.contains_key("tank"), "{line}: {shown}");
        assert!(pools.values().all(|pool| pool["name"] == "tank"), "{line}: {shown}");
    }
}

#[test]
fn options_that_scripts_use_are_understood() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    let refused = lab.run(&format!("zpool create --size 15E tank {here}/a")).fails(1);
    assert!(refused.contains("files of 15E would be too large"), "{refused}");
    lab.run(&format!("zpool create --size 64M tank {here}/a")).ok();
    lab.run("zfs create -s -V 1M tank/v").ok();
    for (line, columns) in [
        ("zpool list -o all", ["NAME ", " SIZE ", " HEALTH ", " ASHIFT "]),
        ("zfs list -o all", ["NAME ", " VOLSIZE ", " COMPRESS ", " SYNC "]),
    ] {
        let shown = lab.run(line).ok();
        let header = shown.lines().next().unwrap();
        assert!(header.starts_with(columns[0]), "{header}");
        assert!(columns.iter().all(|column| header.contains(column)), "{header}");
    }
    // With getopt an option may be given again: a collector that runs `zpool iostat -vvv` got nothing.
    for line in ["zpool iostat -vvv", "zpool status -vv", "zpool list -H -p -H", "zfs destroy -nvv tank/v"] {
        assert_eq!(lab.run(line).code, Some(0), "{line}");
        let (program, rest) = line.split_once(' ').unwrap();
        assert_eq!(lab.run_args(program, rest.split(' ')).code, Some(0), "{line}");
    }
    assert_eq!(lab.run("zfs list -rHr -d 0 -d 1 -o name tank").ok(), "tank\ntank/v\n", "the last counts");
    let all_count = lab.run("zfs list -H -o name -o volsize -t vol -t fs tank/v").ok();
    assert_eq!(all_count, "tank/v\t1M\n");
    // As it stands above a column, too.
    assert_eq!(lab.run("zfs list -H -o name,encroot,rsnaps,resumetok tank/v").ok(), "tank/v\t-\t-\t-\n");
    assert!(lab.run("zpool list -o name,ddtsize,ddtquota").ok().starts_with("NAME  DDTSIZE  DDTQUOTA"));
    assert_eq!(lab.run("version").ok(), lab.run("zpool version").ok());
    assert!(lab.run("arcstat -v").ok().contains("l2hits l2miss l2read"));
    // Where the daemon is and what is imported may be said anywhere; history does not tell.
    let state = lab.path("elsewhere").display().to_string();
    assert_eq!(lab.run(&format!("zpool list -H --state {state}")).ok(), "");
    assert_eq!(
        lab.run(&format!("arcstat --socket {state}/none")).fails(1).lines().next().unwrap(),
        format!("cannot show the ARC: no daemon answers on '{state}/none'")
    );
    lab.run(&format!("zpool set comment=x tank --socket {state}/none")).ok();
    let history = lab.run("zpool history tank").ok();
    assert!(history.trim_end().ends_with(" zpool set comment=x tank"), "{history}");
}

/// Below a dataset that was named there were none, and above it those of all pools if one had it on.
#[test]
fn a_pool_with_listsnapshots_has_its_snapshots_in_lists_and_others_do_not() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    for pool in ["lake", "tank"] {
        lab.run(&format!("zpool create --size 64M {pool} {here}/{pool}")).ok();
        lab.run(&format!("zfs create -s -V 1M {pool}/v")).ok();
        lab.run(&format!("zfs snapshot {pool}/v@s")).ok();
    }
    lab.run("zpool set listsnapshots=on tank").ok();
    let is_heeded = || {
        for (line, names) in [
            ("", "lake lake/v tank tank/v tank/v@s"),
            ("-r tank", "tank tank/v tank/v@s"),
            ("-d 1 tank/v lake/v", "lake/v tank/v tank/v@s"),
            ("-d 1 tank", "tank tank/v"),
            ("tank/v", "tank/v"),
            ("-r lake tank", "lake lake/v tank tank/v tank/v@s"),
            // What is named is there, and once.
            ("-r lake/v lake/v@s tank/v tank/v@s", "lake/v lake/v@s tank/v tank/v@s"),
            ("-t fs,vol -r tank", "tank tank/v"),
            ("-t snap", "lake/v@s tank/v@s"),
        ] {
            let listed = lab.run(&format!("zfs list -H -o name {line}")).ok();
            assert_eq!(listed.lines().collect::<Vec<_>>().join(" "), names, "{line}");
        }
    };
    is_heeded();
    let _daemon = lab.serve("serve --nbd 127.0.0.1:0");
    is_heeded();
}

/// Whether it lists snapshots is asked of the pool first, and all that is to be known of it was said then, too.
#[test]
fn what_is_said_of_a_pool_that_is_listed_is_said_once() {
    let lab = Lab::at(fixtures::pool("crash-main").dir);
    for line in ["-d . zfs list -H -o name -r pcrashmain", "-d . zfs list -H -o name"] {
        let said = lab.run(line);
        assert_eq!(said.code, Some(0), "{line}: {said:?}");
        assert_eq!(said.stderr.matches("was last used by host").count(), 1, "{line}: {said:?}");
    }
}

/// A mount point that is no path was kept in the pool for whoever mounts it; what was not found had a header above it.
#[test]
fn values_and_names_that_make_no_sense_are_refused_and_show_nothing() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    let why = "'mountpoint' must be an absolute path, 'none', or 'legacy'";
    let said = lab.run(&format!("zpool create --size 64M -m foo tank {here}/a")).fails(1);
    assert!(said.contains(why) && !lab.cwd().join("a").exists(), "{said}");
    lab.run(&format!("zpool create --size 64M -m /srv/foo tank {here}/a")).ok();
    for line in ["zfs set mountpoint=foo tank", "zfs create -o mountpoint=./foo tank/fs"] {
        let said = lab.run(line).fails(1);
        assert!(said.contains(why), "{line}: {said}");
    }
    lab.run("zfs set mountpoint=legacy tank").ok();
    for line in ["zpool get all,foo tank", "zfs get all,foo tank", "zpool list -o all,foo tank"] {
        let said = lab.run(line).fails(2);
        assert!(said.contains("bad property list: invalid property 'foo'"), "{line}: {said}");
    }
    for line in [
        "zpool list nosuch",
        "zpool list -j nosuch",
        "zpool status -j nosuch",
        "zpool get -j all nosuch",
        "zfs list -j nosuch",
        "zfs get -j all nosuch",
    ] {
        let said = lab.run(line);
        assert_eq!((said.stdout.as_str(), said.code), ("", Some(1)), "{line}");
        assert!(said.stderr.contains("nosuch"), "{line}: {}", said.stderr);
    }
}

#[test]
fn a_dataset_that_is_only_to_be_seen_is_not_created() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    lab.run(&format!("zpool create --size 64M tank {here}/a")).ok();
    let said = lab.run("zfs create -n -v -s -V 8M -o sync=always tank/v").ok();
    assert_eq!(said, "would create tank/v\n\tvolsize=8M\n\tsync=always\n");
    // What it would be, in whole blocks, as scripts are told with -P.
    let said = lab.run("zfs create -n -v -s -V 1B tank/v").ok();
    assert_eq!(said, "would create tank/v\n\tvolsize=16K\n");
    // One of the two was taken without a word.
    let said = lab.run("zfs create -s -V 8M -o volsize=16M tank/v").fails(1);
    assert_eq!(said, "cannot create 'tank/v': property 'volsize' specified multiple times\n");
    assert_eq!(lab.run("zfs create -n tank/fs").ok(), "");
    assert!(lab.run("zfs create -n -o sync=never tank/fs").fails(1).contains("'sync' must be one of"));
    assert!(lab.run("zfs create -n tank/none/fs").fails(1).contains("parent does not exist"));
    assert_eq!(lab.run("zfs list -H -o name").ok(), "tank\n");
    assert!(!lab.run("zpool history tank").ok().contains("zfs create"));
    // What there is no room for is refused with -n as it is without.
    for line in ["zfs create -V 10G tank/big", "zfs create -o reservation=10G tank/big"] {
        for line in [line.replace(" create", " create -n"), line.to_owned()] {
            let said = lab.run(&line).fails(1);
            assert!(said.contains("cannot create 'tank/big': out of space"), "{line}: {said}");
        }
    }
    lab.run("zfs create -n -s -V 10G tank/big").ok();
    assert_eq!(lab.run("zfs create -P -s -V 8M tank/v").ok(), "create\ttank/v\nproperty\tvolsize\t8388608\n");
    assert_eq!(lab.run("zfs list -H -o name").ok(), "tank\ntank/v\n");
    // Scripts read bytes, and learn what is set aside.
    let said = lab.run("zfs create -P -V 4M -b 8K tank/thick").ok();
    let reserved = lab.run("zfs get -Hp -o value refreservation tank/thick").ok();
    assert_eq!(
        said,
        format!(
            "create\ttank/thick\nproperty\tvolsize\t4194304\nproperty\tvolblocksize\t8192\nproperty\trefreservation\t{reserved}"
        )
    );
}

/// It is kept, because other software that has the pool one day honours it; who sets it here waits for nothing.
#[test]
fn a_pool_that_is_to_trim_by_itself_is_told_that_it_does_not() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    let note = "this version does not trim by itself: use `zpool trim`";
    let created = lab.run(&format!("zpool create --size 64M -o autotrim=on tank {here}/a"));
    assert_eq!(created.code, Some(0), "{}", created.stderr);
    assert!(created.stderr.contains(note), "{}", created.stderr);
    assert_eq!(lab.run("zpool get -H -o value autotrim tank").ok(), "on\n");
    assert_eq!(lab.run("zpool set autotrim=off tank").ok(), "");
    let set = lab.run("zpool set autotrim=on tank");
    assert!(set.code == Some(0) && set.stderr.contains(note), "{}", set.stderr);
}

/// It is kept for other software, which boots from it: a step of each script that installs a system, and it was refused.
#[test]
fn the_file_system_to_boot_from_is_kept_under_any_name() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    let refused = lab.run(&format!("zpool create --size 64M -o bootfs=tank/ROOT tank {here}/a")).fails(1);
    assert!(refused.contains("can be set once the file system is there"), "{refused}");
    lab.run(&format!("zpool create --size 64M tank {here}/a")).ok();
    lab.run("zfs create tank/ROOT").ok();
    lab.run("zfs create -s -V 1M tank/v").ok();
    let shown = || lab.run("zpool get -H -o value bootfs tank").ok();
    for (name, why) in [
        ("tank/none", "dataset does not exist"),
        ("lake/ROOT", "dataset does not exist"),
        ("tank/v", "'tank/v' is not a file system"),
    ] {
        let said = lab.run(&format!("zpool set bootfs={name} tank")).fails(1);
        assert!(said.starts_with("cannot set property for 'tank': ") && said.contains(why), "{said}");
        assert_eq!(shown(), "-\n");
    }
    assert_eq!(lab.run("zpool set bootfs=tank/ROOT tank").ok(), "");
    assert_eq!(shown(), "tank/ROOT\n");
    lab.run("zfs rename tank/ROOT tank/debian").ok();
    assert_eq!(shown(), "tank/debian\n");
    lab.run("zpool set bootfs= tank").ok();
    assert_eq!(shown(), "-\n");
}

/// The property was kept and shown, and nothing followed it: what was added to a pool that was made with larger sectors had those
/// of 4K, for good.
#[test]
fn devices_that_are_added_have_the_sectors_that_the_pool_was_told() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    lab.run(&format!("zpool create --size 128M -o ashift=13 tank {here}/a")).ok();
    assert_eq!(lab.run("zpool get -H -o value ashift tank").ok(), "13\n");
    let planned = lab.run(&format!("zpool add -n --size 128M tank {here}/b")).ok();
    assert!(planned.contains("smallest block on them, for good: 8K (ashift 13)"), "{planned}");
    lab.run(&format!("zpool add --size 128M tank {here}/b")).ok();
    lab.run(&format!("zpool add --size 128M -o ashift=9 tank {here}/c")).ok();
    lab.run(&format!("zpool add --size 128M -o ashift=0 tank {here}/d")).ok();
    lab.run("zpool set ashift=14 tank").ok();
    lab.run(&format!("zpool add --size 128M tank {here}/e")).ok();
    lab.run("zpool set ashift=0 tank").ok();
    lab.run(&format!("zpool add --size 128M tank {here}/f")).ok();
    for (device, shift) in [("a", 13), ("b", 13), ("c", 9), ("d", 12), ("e", 14), ("f", 12)] {
        let label = lab.run(&format!("dump -l {here}/{device}")).ok();
        assert!(label.contains(&format!("ashift: {shift}\n")), "{device}: {label}");
    }
}

/// A vdev of larger sectors came without a word, and thick volumes needed twice what they had reserved; one that was made larger
/// kept the reservation of its former size.
#[test]
fn devices_that_make_thick_volumes_thin_are_told_of() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    let six =
        |of: &str| (0..6).map(|number| format!("{here}/{of}{number}")).collect::<Vec<String>>().join(" ");
    lab.run(&format!("zpool create --size 128M -o ashift=9 tank raidz2 {}", six("a"))).ok();
    // As OpenZFS leaves it.
    lab.run("zpool set ashift=0 tank").ok();
    lab.run("zfs create -V 64M -b 8K tank/thick").ok();
    lab.run("zfs create -s -V 64M -b 8K tank/thin").ok();
    let same = lab.run(&format!("zpool add -n --size 128M tank raidz2 {}", six("b")));
    assert!(same.code == Some(0) && same.stdout.contains("(ashift 9)"), "{} {}", same.stdout, same.stderr);
    assert!(!same.stderr.contains("refreservation"), "{}", same.stderr);
    let add = format!("--size 128M -o ashift=0 tank raidz2 {}", six("b"));
    let refused = lab.run(&format!("zpool add {add}")).fails(1);
    assert!(refused.contains("mismatched sector size: pool uses 512 bytes and new vdev 4096"), "{refused}");
    assert!(refused.contains("use '-f'") && refused.contains("-o ashift=9"), "{refused}");
    for line in [format!("zpool add -n -f {add}"), format!("zpool add -f {add}")] {
        let added = lab.run(&line);
        assert_eq!(added.code, Some(0), "{}", added.stderr);
        assert!(added.stderr.contains("'zfs set refreservation=auto tank/thick'"), "{}", added.stderr);
        assert!(!added.stderr.contains("tank/thin"), "{}", added.stderr);
    }
    let reserved = || lab.run("zfs get -H -p -o value refreservation tank/thick").ok();
    // A reservation that was less than what it needs by now rose when it was made smaller.
    let number = || reserved().trim().parse::<u64>().unwrap();
    let before = number();
    lab.run("zfs set volsize=56M tank/thick").ok();
    assert!((56 << 20..=before).contains(&number()), "{before} {}", number());
    lab.run("zfs set volsize=96M tank/thick").ok();
    let grown = reserved();
    assert!(grown.trim().parse::<u64>().unwrap() >= 192 << 20, "{grown}");
    lab.run("zfs set refreservation=auto tank/thick").ok();
    assert_eq!(reserved(), grown);
}

/// Where sectors are larger than a volume's blocks `auto` is not enough. What was advised instead was not kept up when the volume
/// grew, and nothing was advised where a device for metadata had such sectors already.
#[test]
fn volumes_of_blocks_that_are_smaller_than_sectors_stay_thick() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    lab.run(&format!("zpool create --size 512M -o ashift=9 tank {here}/a")).ok();
    lab.run("zpool set ashift=0 tank").ok();
    lab.run("zfs create -V 16M -b 512 tank/v").ok();
    let special = lab.run(&format!("zpool add --size 512M -o ashift=12 tank special {here}/s"));
    assert_eq!(special.code, Some(0), "{}", special.stderr);
    assert!(!special.stderr.contains("refreservation"), "{}", special.stderr);
    let add = format!("--size 512M -o ashift=0 tank {here}/b");
    let refused = lab.run(&format!("zpool add {add}")).fails(1);
    assert!(refused.contains("mismatched sector size: pool uses 512 bytes and new vdev 4096"), "{refused}");
    let added = lab.run(&format!("zpool add -f {add}"));
    assert_eq!(added.code, Some(0), "{}", added.stderr);
    let (_, advised) = added.stderr.split_once("'zfs set refreservation=").expect(&added.stderr);
    let advised = advised.split(' ').next().unwrap();
    assert!(advised.parse::<u64>().unwrap() >= 8 * (16 << 20), "{advised}");
    lab.run(&format!("zfs set refreservation={advised} tank/v")).ok();
    lab.run("zfs set volsize=32M tank/v").ok();
    let grown = lab.run("zfs get -H -p -o value refreservation tank/v").ok();
    assert!(grown.trim().parse::<u64>().unwrap() >= 8 * (32 << 20), "{grown}");
    lab.run("zfs set volsize=16M tank/v").ok();
    let reserved = lab.run("zfs get -H -p -o value refreservation tank/v").ok();
    assert_eq!(reserved.trim(), advised);
}

#[test]
fn all_pools_and_all_file_systems_are_meant_by_a_letter() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    for pool in ["tank", "lake"] {
        lab.run(&format!("zpool create --size 64M {pool} {here}/{pool}")).ok();
    }
    lab.run("zpool scrub -a").ok();
    lab.run("zpool initialize -a").ok();
    for pool in ["tank", "lake"] {
        let status = lab.run(&format!("zpool status {pool}")).ok();
        assert!(status.contains("scrub repaired"), "{status}");
        let written = std::fs::metadata(lab.cwd().join(pool)).unwrap().blocks() * 512;
        assert!(written > 40 << 20, "{pool}: {written} bytes of its free space");
    }
    for line in
        ["zpool scrub", "zpool trim", "zpool scrub -a tank", "zpool initialize -a tank", "zfs unmount"]
    {
        lab.run(line).fails(2);
    }
    // What is mounted: without an argument that is listed.
    for line in
        ["zfs mount", "zfs mount -a", "zfs unmount -a", "zfs umount -a", "zfs share -a", "zfs unshare -a"]
    {
        assert_eq!(lab.run(line).ok(), "", "{line}");
    }
    assert!(lab.run("zfs mount tank").fails(1).contains("are neither mounted nor shared by this version"));
    assert_eq!(lab.run("zfs umount tank").fails(1), "cannot unmount 'tank': not currently mounted\n");
    assert_eq!(lab.run("zfs unshare tank").fails(1), "cannot unshare 'tank': not currently shared\n");
}

/// There was no such subcommand, and Incus, which loads the keys of each pool that it imports, gave every pool up.
#[test]
fn keys_are_loaded_where_nothing_is_encrypted() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    lab.run(&format!("zpool create --size 64M tank {here}/a")).ok();
    lab.run("zfs create -s -V 1M tank/v").ok();
    for line in ["-r tank", "-a", "-r tank/v"] {
        for what in ["load", "unload"] {
            let said = lab.run(&format!("zfs {what}-key {line}")).ok();
            assert_eq!(said, format!("0 / 0 key(s) successfully {what}ed\n"), "{what}-key {line}");
        }
    }
    lab.run("zfs load-key -n -L file:///key -r tank").ok();
    let said = lab.run("zfs load-key tank/v").fails(1);
    assert_eq!(said, "cannot load key for 'tank/v': it is not encrypted\n");
    for (line, code) in [("-r tank/none", 1), ("", 2), ("-a tank", 2)] {
        lab.run(&format!("zfs load-key {line}")).fails(code);
    }
}

/// An import took hardly any property.
#[test]
fn properties_can_be_set_with_an_import() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    lab.run(&format!("zpool create --size 64M tank {here}/a")).ok();
    lab.run("zpool export tank").ok();
    let import =
        "zpool import -d . -o failmode=continue -o comment=rack7 -o cachefile=none -o altroot=/mnt tank";
    lab.run(import).ok();
    let shown = lab.run("zpool get -H -o value failmode,comment tank").ok();
    assert_eq!(shown, "continue\nrack7\n");
    assert!(lab.run("zpool history tank").ok().contains(import));
    lab.run("zpool export tank").ok();
    let said = lab.run("zpool import -d . -o nonsense=1 tank").fails(1);
    assert_eq!(said, "cannot import 'tank': invalid property 'nonsense'\n");
    lab.run("zpool import -d . -o readonly=maybe tank").fails(2);
    assert_eq!(lab.run("zpool list -H").stdout, "");
}

/// Labels, status and the cache file named what links led to: names like `/dev/sdb`, of another disk after the next start.
#[test]
fn devices_keep_the_names_they_were_given_and_are_found_by_any() {
    let lab = Lab::scratch();
    let (real, links) = (lab.cwd().join("real"), lab.cwd().join("by-id"));
    std::fs::create_dir(&real).unwrap();
    std::fs::create_dir(&links).unwrap();
    for name in ["1", "2", "3", "4", "5"] {
        std::fs::File::create(real.join(name)).unwrap().set_len(128 << 20).unwrap();
        std::os::unix::fs::symlink(real.join(name), links.join(format!("ata-{name}"))).unwrap();
    }
    let disk = real.join("1");
    let (real, links) = (real.display().to_string(), links.display().to_string());
    let twice = lab.run(&format!("zpool create tank mirror {links}/ata-1 {real}/1")).fails(1);
    assert!(twice.contains("is named twice"), "{twice}");
    lab.run(&format!("zpool create tank mirror {links}/ata-1 by-id/../by-id/ata-2")).ok();
    let _daemon = lab.serve("serve --nbd 127.0.0.1:0 tank");
    lab.run(&format!("zpool add tank spare {links}/ata-3")).ok();
    lab.run(&format!("zpool attach -w tank {real}/2 {links}/ata-4")).ok();
    lab.run(&format!("zpool replace -w tank {links}/ata-4 {links}/ata-5")).ok();
    let used = lab.run(&format!("zpool add -f tank log {real}/5")).fails(1);
    assert!(used.contains("is part of active pool 'tank'"), "{used}");

    let status = lab.run("zpool status tank").ok();
    for name in ["1", "2", "3", "5"] {
        assert!(status.contains(&format!("{links}/ata-{name} ")), "{name}: {status}");
    }
    let mut label = vec![0_u8; 256 << 10];
    std::io::Read::read_exact(&mut std::fs::File::open(disk).unwrap(), &mut label).unwrap();
    let label = String::from_utf8_lossy(&label).into_owned();
    let known = std::fs::read_to_string(lab.path("state/pools.json")).unwrap();
    for (place, text) in [("status", &status), ("label", &label), ("cache file", &known)] {
        assert!(text.contains(&format!("{links}/ata-1")) && !text.contains(&format!("{real}/")), "{place}");
        assert!(!text.contains("/../"), "{place}");
    }

    lab.run(&format!("zpool detach tank {real}/5")).ok();
    lab.run(&format!("zpool replace -w tank {real}/2 {real}/3")).ok();
    let status = lab.run("zpool status tank").ok();
    assert!(status.contains("INUSE"), "the spare was meant: {status}");
    lab.run(&format!("zpool detach tank {real}/3")).ok();
    lab.run(&format!("zpool remove tank {real}/3")).ok();
    lab.run(&format!("zpool offline tank {real}/1")).ok();
    lab.run(&format!("zpool online tank {real}/1")).ok();
    let status = lab.run("zpool status tank").ok();
    assert!(!status.contains("ata-5") && !status.contains("ata-3"), "{status}");
    assert!(status.contains(&format!("{links}/ata-1 ")), "{status}");
}

/// A spare was ONLINE, everything was among the devices for data, and what `-i`, `-t` and `-s` tell had names of our own or
/// was left out.
#[test]
fn json_has_the_sections_and_names_of_openzfs() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    lab.run(&format!(
        "zpool create --size 128M tank mirror {here}/a {here}/b log {here}/l cache {here}/c spare {here}/s"
    ))
    .ok();
    assert_eq!(lab.run(&format!("zpool initialize -w tank {here}/a")).code, Some(0));
    let json = |line: &str| {
        let text = lab.run(line).ok();
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["pools"]["tank"].clone()
    };
    let named = |name: &str| format!("{here}/{name}");
    let list = json("zpool list -jv tank");
    for (section, device) in [
        ("vdevs", "mirror-0".to_owned()),
        ("logs", named("l")),
        ("l2cache", named("c")),
        ("spares", named("s")),
    ] {
        let names: Vec<&String> = list[section].as_object().unwrap().keys().collect();
        assert_eq!(names, [&device], "{section}");
    }
    let status = json("zpool status -j -s -i -t tank");
    for pool in [&list, &status] {
        assert_eq!(pool["spares"][named("s")]["state"], "AVAIL");
    }
    let text = lab.run("zpool list -Hv -o name,health tank").ok();
    assert!(text.contains(&format!("{here}/s\tAVAIL\n")), "{text}");
    let sides = &status["vdevs"]["tank"]["vdevs"]["mirror-0"]["vdevs"];
    let (a, b) = (&sides[named("a")], &sides[named("b")]);
    assert_eq!((&a["slow_ios"], &a["init_errors"]), (&"0".into(), &"0".into()), "{a}");
    assert_eq!((&a["init_state"], &a["trim_state"]), (&"COMPLETE".into(), &"UNTRIMMED".into()), "{a}");
    assert!(a["initialized"].is_string() && a["initialized"] == a["to_initialize"], "{a}");
    assert!(a["init_time"].as_str().unwrap().contains(':'), "{a}");
    assert_eq!(
        (&b["init_state"], &b["init_time"]),
        (&"UNINITIALIZED".into(), &serde_json::Value::Null),
        "{b}"
    );
    let plain = json("zpool status -j tank").to_string();
    assert!(!plain.contains("UNTRIMMED") && !plain.contains("slow_ios"), "{plain}");
}

/// Whoever asked for less waited for it as well.
#[test]
fn only_who_asks_for_stable_writes_waits_for_one_more_transaction_group() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    lab.run(&format!("zpool create --size 64M tank {here}/a")).ok();
    lab.run("zfs create -s -V 1M tank/v").ok();
    let txg = || {
        let status: serde_json::Value = serde_json::from_str(&lab.run("zpool status -j tank").ok()).unwrap();
        status["pools"]["tank"]["txg"].as_str().unwrap().parse::<u64>().unwrap()
    };
    let groups = |line: &str| {
        let before = txg();
        lab.run(line).ok();
        txg() - before
    };
    let always = groups("zfs set sync=always tank");
    for line in ["zfs set sync=disabled tank", "zfs set sync=standard tank", "zfs inherit -r sync tank"] {
        let less = groups(line);
        assert!(less < always, "{line}: {less} of {always}");
    }
    lab.run("zfs set sync=always tank").ok();
    lab.run("zfs set sync=standard tank/v").ok();
    assert!(groups("zfs inherit sync tank/v") >= always);
}

/// Without a daemon all devices were uninitialized: nobody had read what is on record.
#[test]
fn how_far_devices_are_initialized_is_told_without_a_daemon() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    lab.run(&format!("zpool create --size 128M tank mirror {here}/a {here}/b")).ok();
    assert_eq!(lab.run(&format!("zpool initialize -w tank {here}/a")).code, Some(0));
    let text = lab.run("zpool status -i -t tank").ok();
    let line = |end: &str| text.lines().find(|line| line.contains(&format!("{here}/{end} "))).unwrap();
    assert!(line("a").contains("(100% initialized, completed at "), "{text}");
    assert!(line("b").contains("(uninitialized)"), "{text}");
    assert_eq!(text.matches("(untrimmed)").count(), 2, "{text}");
}

/// It was 99 % of it, because columns of a row end in different places: who took that for unfinished had all of it written
/// over once more.
#[test]
fn a_raidz_device_that_is_initialized_is_so_without_a_daemon_too() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    lab.run(&format!("zpool create --size 128M tank raidz1 {here}/a {here}/b {here}/c")).ok();
    assert_eq!(lab.run(&format!("zpool initialize -w tank {here}/b")).code, Some(0));
    let text = lab.run("zpool status -i tank").ok();
    let line = text.lines().find(|line| line.contains(&format!("{here}/b "))).unwrap_or_default();
    assert!(line.contains("(100% initialized, completed at "), "{text}");
}

/// It stood there as if it were gone, although the manual says what it is.
#[test]
fn a_device_that_has_become_smaller_is_too_small() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    lab.run(&format!("zpool create --size 256M tank mirror {here}/a {here}/b")).ok();
    std::fs::File::options().write(true).open(lab.cwd().join("b")).unwrap().set_len(128 << 20).unwrap();
    let status = lab.run("zpool status tank").ok();
    let line = status.lines().find(|line| line.contains("/b ")).unwrap_or_default();
    assert!(line.contains("UNAVAIL") && line.ends_with("too small"), "{status}");
}

/// Words of the test in place of what differs from run to run: paths, and columns as wide as they are.
fn tame(lab: &Lab) -> impl Fn(&str) -> String {
    let here = lab.cwd().display().to_string();
    move |text| {
        let mut text = text.replace(&here, "/here");
        while text.contains("     ") {
            text = text.replace("     ", "    ");
        }
        text
    }
}

#[test]
fn a_pool_with_everything_that_can_be_done_to_volumes() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    let create = format!(
        "zpool create --size 256M -o comment=hello tank raidz1 {here}/a {here}/b {here}/c log {here}/log cache {here}/cache"
    );
    transcript(
        "write-volumes",
        &lab,
        &[
            &create.replace("zpool create", "zpool create -n"),
            &create,
            &create,
            "zpool list -o name,health,comment,ashift,readonly",
            "zpool status",
            "zfs create -s -V 64M -b 8K -o compression=lz4 tank/thin",
            "zfs create -V 32M tank/thick",
            "zfs create tank/dir",
            "zfs create -p -s -V 16M tank/dir/deep/er/v",
            "zfs create -s -V 16M tank/dir/deep/er/v",
            "zfs list -o name,volsize,volblocksize,refreservation",
            "zfs set compression=zstd-3 sync=always readonly=on org.example:note=kept tank/thin",
            "zfs get -o property,value,source compression,sync,readonly,org.example:note tank/thin",
            "zfs inherit sync tank/thin",
            "zfs get -H -o value,source sync tank/thin",
            "zfs set volsize=128M tank/thin",
            "zfs set volsize=48M tank/thick",
            "zfs get -H -p -o value volsize,refreservation tank/thick",
            "zfs set refreservation=none tank/thick",
            "zfs set refreservation=auto tank/thick",
            "zfs get -H -p -o value refreservation tank/thick",
            "zfs snapshot tank/thin@a tank/thick@a",
            "zfs snapshot -r tank/dir@a",
            "zfs snap tank/thin@b",
            "zfs snapshot tank/thin@c",
            "zfs snapshot tank/thin@c",
            "zfs list -t snapshot -o name",
            "zfs hold keep tank/thin@b",
            "zfs hold keep tank/thin@b",
            "zfs destroy tank/thin@b",
            "zfs release keep tank/thin@b",
            "zfs release keep tank/thin@b",
            "zfs bookmark tank/thin@b #b",
            "zfs bookmark tank/thin@b #b",
            "zfs clone tank/thin@b tank/clone",
            "zfs get -H -o value origin tank/clone",
            "zfs destroy tank/thin@b",
            "zfs rollback tank/thin@b",
            "zfs rollback -r tank/thin@b",
            "zfs promote tank/clone",
            "zfs get -H -o value origin tank/thin",
            "zfs promote tank/clone",
            "zfs destroy -nv tank/clone@a%b",
            "zfs rename tank/clone tank/dir/clone",
            "zfs rename tank/dir/clone@a @first",
            "zfs rename -r tank/dir@a @again",
            "zfs list -t all -o name",
            "zfs destroy tank/dir",
            "zfs destroy -r tank/dir",
            "zfs destroy -rnv tank/thick",
            "zfs destroy -r tank/thick",
            "zfs destroy tank/thin",
            "zfs destroy -R tank/dir",
            "zfs list -t all -o name",
            "zfs create -s -V 16M tank/r",
            "zfs snapshot tank/r@1 tank/q@1",
            "zfs snapshot tank/r@1",
            "zfs snapshot tank/r@2",
            "zfs snapshot -o org.example:why=test tank/r@3",
            "zfs snapshot tank/r@4",
            "zfs snapshot tank/r@5",
            "zfs get -H -o value org.example:why tank/r@3",
            "zfs destroy -nv tank/r@2%4",
            "zfs destroy -nvp tank/r@%2,5",
            "zfs destroy -nv tank/r@4%",
            "zfs destroy -nv tank/r@4%2",
            "zfs destroy -v tank/r@2%3",
            "zfs hold keep tank/r@4",
            "zfs destroy -d tank/r@4",
            "zfs get -H -o value defer_destroy,userrefs tank/r@4",
            "zfs release keep tank/r@4",
            "zfs list -t snapshot -o name",
            "zfs destroy -r tank",
            "zfs list -t all -o name",
            "zpool set autotrim=on tank",
            "zpool get -H -o value,source autotrim tank",
            "zpool sync",
            "zpool checkpoint tank",
            "zpool export tank",
            "zpool list",
        ],
        &tame(&lab),
    );
    fixtures::zdb_check(&[], lab.cwd(), "tank").unwrap();
}

#[test]
fn a_pool_leaves_and_comes_back_and_its_history_tells() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    let tame = tame(&lab);
    let without_times = |text: &str| {
        let line = |line: &str| match line.get(..20) {
            Some(time) if time.as_bytes()[4] == b'-' && time.ends_with(' ') => {
                format!("TIME {}", &line[20..])
            }
            _ => line.to_owned(),
        };
        tame(text).lines().map(|text| line(text) + "\n").collect::<String>()
    };
    transcript(
        "write-life",
        &lab,
        &[
            &format!("zpool create --size 128M tank mirror {here}/a {here}/b"),
            "zfs create -s -V 32M tank/v",
            "zfs snapshot tank/v@s",
            &format!("zpool add -n --size 128M tank mirror {here}/c {here}/d"),
            &format!("zpool add --size 128M tank {here}/c"),
            &format!("zpool add --size 128M tank mirror {here}/c {here}/d"),
            &format!("zpool add -n --size 128M tank log {here}/l spare {here}/s cache {here}/k"),
            &format!("zpool add --size 128M tank log {here}/l spare {here}/s cache {here}/k"),
            &format!("zpool remove tank {here}/a {here}/l"),
            "zpool remove tank mirror-1",
            &format!("zpool remove tank {here}/l {here}/s {here}/k"),
            &format!("zpool remove tank {here}/l"),
            &format!("zpool import -d {here}/l"),
            "zpool list -v -o name,health tank",
            &format!("zpool import -d {here}"),
            &format!("zpool labelclear {here}/a"),
            "zpool export tank",
            "zpool export tank",
            "zfs list tank",
            &format!("zpool labelclear {here}/a"),
            &format!("zpool create lake {here}/a"),
            &format!("zpool import -d {here} tank lake"),
            &format!("zpool import -d {here} lake"),
            "zfs list -t all -o name",
            "zpool export lake",
            &format!("zpool import -d {here} -o readonly=on lake"),
            "zfs snapshot lake/v@no",
            "zpool export lake",
            &format!("zpool import -d {here} lake"),
            "zpool history lake",
            "zpool destroy lake",
            "zpool list",
            &format!("zpool import -d {here}"),
            &format!("zpool import -d {here} -D lake"),
            "zfs list -t all -o name",
            "zpool destroy lake",
            &format!("zpool labelclear {here}/a"),
            &format!("zpool labelclear {here}/a"),
            &format!("zpool create pond {here}/a"),
            "zpool export -a",
        ],
        &without_times,
    );
    // Devices that left the pool have no labels to be judged.
    for gone in ["l", "s", "k"] {
        std::fs::remove_file(lab.cwd().join(gone)).unwrap();
    }
    fixtures::zdb_check(&[], lab.cwd(), "pond").unwrap();
}

/// A pool that was just made lacks nothing (see the transcript).
#[test]
fn only_a_pool_that_lacks_a_feature_of_new_ones_says_so() {
    let lab = Lab::scratch();
    lab.run(&format!("zpool create --size 64M -o feature@bookmarks=disabled tank {}/a", lab.cwd().display()))
        .ok();
    let status = lab.run("zpool status tank").ok();
    assert!(status.contains("features are not enabled on the pool"), "{status}");
    lab.run("zpool set feature@bookmarks=enabled tank").ok();
    let status = lab.run("zpool status tank").ok();
    assert!(!status.contains("status:"), "{status}");
}

/// It kept new features from coming with an upgrade, and not from being enabled by name, which was advised: GRUB, or the other
/// system that the pool was to stay readable for, did not read it any more.
#[test]
fn what_compatibility_leaves_out_is_not_enabled_by_name_either() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    lab.run(&format!("zpool create --size 64M -o compatibility=zol-0.7 tank {here}/a")).ok();
    let left_out = "feature 'zstd_compress' is not in the pool's compatibility set 'zol-0.7'\n\
                    consider setting 'compatibility' to a less restrictive set, or to 'off'\n";
    let said = lab.run("zpool set feature@zstd_compress=enabled tank").fails(1);
    assert_eq!(said, format!("cannot set property for 'tank': {left_out}"));
    let said = lab.run("zfs set compression=zstd tank").fails(1);
    assert!(said.ends_with(&format!("to set this property or value\n{left_out}")), "{said}");
    // One that is permitted takes with it what it needs, as long as that is, too.
    lab.run("zpool set feature@skein=enabled tank").ok();
    let said = lab.run("zpool set feature@encryption=enabled tank").fails(1);
    assert!(said.contains("'bookmark_v2' is not in"), "{said}");
    let state = |feature: &str| lab.run(&format!("zpool get -H -o value feature@{feature} tank")).ok();
    for (feature, expected) in
        [("zstd_compress", "disabled\n"), ("skein", "enabled\n"), ("encryption", "disabled\n")]
    {
        assert_eq!(state(feature), expected, "{feature}");
    }
    let said = lab.run("zpool set compatibility=nonsense tank").fails(1);
    assert_eq!(said, "cannot set property for 'tank': could not read/parse feature file(s): nonsense\n");
    assert_eq!(lab.run("zpool get -H -o value compatibility tank").ok(), "zol-0.7\n");

    // With an import what is set with it counts.
    lab.run("zpool export tank").ok();
    let import = format!("zpool import -d {here} -o feature@blake3=enabled");
    let said = lab.run(&format!("{import} tank")).fails(1);
    assert!(said.contains("'blake3' is not in the pool's compatibility set 'zol-0.7'"), "{said}");
    lab.run("zpool export tank").ok();
    lab.run(&format!("{import} -o compatibility=openzfs-2.2 tank")).ok();
    assert_eq!(state("blake3"), "enabled\n");
    lab.run("zpool set compatibility=off tank").ok();
    lab.run("zpool set feature@zstd_compress=enabled tank").ok();
    lab.run("zfs set compression=zstd tank").ok();
}

/// Marks by which snapshots are kept stayed on them, and it was said to be done.
#[test]
fn inherit_r_reaches_what_snapshots_have_themselves() {
    let lab = Lab::scratch();
    lab.run(&format!("zpool create --size 64M tank {}/a", lab.cwd().display())).ok();
    lab.run("zfs create -s -V 1M tank/v").ok();
    for snapshot in ["tank/v@a", "tank/v@b", "tank/v@c"] {
        lab.run(&format!("zfs snapshot {snapshot}")).ok();
        lab.run(&format!("zfs set com.example:keep=yes {snapshot}")).ok();
        lab.run(&format!("zfs set com.example:note=yes {snapshot}")).ok();
    }
    let source = |property: &str, dataset: &str| {
        lab.run(&format!("zfs get -H -o source {property} {dataset}")).ok().trim().to_owned()
    };
    lab.run("zfs inherit -r com.example:keep tank/v@a").ok();
    assert_eq!(["tank/v@a", "tank/v@b"].map(|name| source("com.example:keep", name)), ["-", "local"]);
    // What only datasets have is nothing of theirs.
    lab.run("zfs set sync=disabled tank").ok();
    lab.run("zfs inherit -r sync tank").ok();
    lab.run("zfs set com.example:keep=no tank").ok();
    lab.run("zfs inherit -r com.example:keep tank/v").ok();
    for snapshot in ["tank/v@a", "tank/v@b", "tank/v@c"] {
        assert_eq!(source("com.example:keep", snapshot), "inherited from tank", "{snapshot}");
        assert_eq!(source("com.example:note", snapshot), "local", "{snapshot}");
    }
}

/// It was refused, because the snapshot was not an ancestor of its own clone.
#[test]
fn a_clone_can_have_a_bookmark_of_its_origin() {
    let lab = Lab::scratch();
    lab.run(&format!("zpool create --size 64M tank {}/a", lab.cwd().display())).ok();
    lab.run("zfs create -s -V 1M tank/v").ok();
    lab.run("zfs snapshot tank/v@first").ok();
    lab.run("zfs snapshot tank/v@mon").ok();
    lab.run("zfs clone tank/v@mon tank/test").ok();
    lab.run("zfs snapshot tank/v@later").ok();
    lab.run("zfs bookmark tank/v@mon tank/test#mon").ok();
    // And what is left of one, which it comes from as well.
    lab.run("zfs bookmark tank/v@first #first").ok();
    lab.run("zfs bookmark tank/v@later #later").ok();
    lab.run("zfs destroy tank/v@first").ok();
    lab.run("zfs bookmark tank/v#first tank/test#first").ok();
    let guid = |name: &str| lab.run(&format!("zfs get -H -p -o value guid {name}")).ok();
    assert_eq!(guid("tank/test#mon"), guid("tank/v@mon"));
    assert_eq!(guid("tank/test#first"), guid("tank/v#first"));
    for source in ["tank/v@later", "tank/v#later"] {
        let said = lab.run(&format!("zfs bookmark {source} tank/test#later")).fails(1);
        let why = "source is not an ancestor of the new bookmark's dataset";
        assert_eq!(said, format!("cannot create bookmark 'tank/test#later': {why}\n"), "{source}");
    }
    let said = lab.run("zfs bookmark tank/v@mon lake/v#mon").fails(1);
    assert_eq!(said, "cannot create bookmark 'lake/v#mon': bookmark is in a different pool\n");
    let shown = lab.run("zfs list -H -o name -t bookmark tank/test").ok();
    assert_eq!(shown.lines().collect::<Vec<_>>(), ["tank/test#first", "tank/test#mon"]);
}

/// It was taken for a property and shown as `-`.
#[test]
fn what_was_written_since_any_snapshot_is_told_and_nothing_where_there_was_none() {
    let lab = Lab::scratch();
    lab.run(&format!("zpool create --size 128M tank {}/a", lab.cwd().display())).ok();
    lab.run("zfs create -s -V 8M -b 16K -o compression=off tank/v").ok();
    let daemon = lab.serve("serve --nbd 127.0.0.1:0 tank");
    let port = daemon.urls("nbd")[0].split([':', '/']).nth(4).unwrap().parse().unwrap();
    let write = |offset: u64, byte: u8| {
        Nbd::open(port, "tank/v").unwrap().write(offset, &vec![byte; 1 << 20], true).unwrap();
    };
    write(0, 1);
    lab.run("zfs snapshot tank/v@a").ok();
    write(0, 2);
    lab.run("zfs snapshot tank/v@b").ok();
    write(2 << 20, 3);
    lab.run("zfs clone tank/v@b tank/c").ok();
    lab.run("zpool sync tank").ok();
    let value = |property: &str, dataset: &str| {
        lab.run(&format!("zfs get -H -p -o value {property} {dataset}")).ok().trim().to_owned()
    };
    assert_eq!(value("written@b", "tank/v"), value("written", "tank/v"));
    assert_eq!(value("written@a", "tank/v@b"), value("written", "tank/v@b"));
    let number = |property: &str, dataset: &str| value(property, dataset).parse::<u64>().unwrap();
    let since_a = number("written@a", "tank/v");
    assert!((2 << 20..3 << 20).contains(&since_a), "what was overwritten counts, too: {since_a}");
    // A clone knows its origin's by their whole names.
    let of_both = number("written", "tank/v@b") + number("written", "tank/c");
    assert!((1 << 20..=of_both).contains(&number("written@tank/v@a", "tank/c")), "{of_both}");
    for none in [("written@a", "tank/c"), ("written@b", "tank/v@a"), ("written@nothing", "tank/v")] {
        assert_eq!(value(none.0, none.1), "-", "{none:?}");
    }
    let listed = lab.run("zfs list -H -p -o written@a tank/v").ok();
    assert_eq!(listed, format!("{since_a}\n"));
    // What came and went in between does not.
    write(4 << 20, 5);
    lab.run("zfs snapshot tank/v@c").ok();
    write(4 << 20, 6);
    lab.run("zpool sync tank").ok();
    for (property, megabytes) in [("written@c", 1), ("written@b", 2), ("written@a", 3)] {
        let written = number(property, "tank/v");
        assert!((megabytes << 20..(megabytes + 1) << 20).contains(&written), "{property}: {written}");
    }
}

/// It was said to be done, and the clone had the size of its snapshot, with a stray property on the devices.
#[test]
fn a_clone_has_the_size_that_it_is_given() {
    let lab = Lab::scratch();
    lab.run(&format!("zpool create --size 192M tank {}/a", lab.cwd().display())).ok();
    lab.run("zfs create -s -V 16M -b 16K tank/v").ok();
    lab.run("zfs snapshot tank/v@s").ok();
    lab.run("zfs clone -o volsize=32M tank/v@s tank/c").ok();
    let value = |property: &str, dataset: &str| {
        lab.run(&format!("zfs get -H -p -o value,source {property} {dataset}")).ok().trim().to_owned()
    };
    assert_eq!(value("volsize", "tank/c"), "33554432\tlocal");
    lab.run("zfs clone -o volsize=32M -o refreservation=auto tank/v@s tank/thick").ok();
    lab.run("zfs create -V 32M -b 16K tank/full").ok();
    assert_eq!(value("refreservation", "tank/thick"), value("refreservation", "tank/full"));
    for (size, why) in [
        ("8M", "'volsize' of a clone cannot be less than that of its snapshot (16M)"),
        ("16777217", "'volsize' must be a multiple of volume block size (16K)"),
    ] {
        let said = lab.run(&format!("zfs clone -o volsize={size} tank/v@s tank/none")).fails(1);
        assert!(said.starts_with(&format!("cannot create 'tank/none': {why}\n")), "{said}");
    }
    let daemon = lab.serve("serve --nbd 127.0.0.1:0 tank");
    let port = daemon.urls("nbd")[0].split([':', '/']).nth(4).unwrap().parse().unwrap();
    Nbd::open(port, "tank/c").unwrap().write(31 << 20, &[7; 4096], true).unwrap();
    assert_eq!(daemon.stop().code(), Some(0));
    lab.run("zpool export tank").ok();
    if fixtures::tool("zdb").is_some() {
        fixtures::zdb_check(&[], lab.cwd(), "tank").unwrap();
    }
}

/// What one copy takes was set aside, where two are kept: what could always be written in full found no room.
#[test]
fn a_thick_clone_has_room_for_the_copies_that_it_inherits() {
    let lab = Lab::scratch();
    lab.run(&format!("zpool create --size 192M tank {}/a", lab.cwd().display())).ok();
    lab.run("zfs create -s -V 8M -b 16K tank/v").ok();
    lab.run("zfs snapshot tank/v@s").ok();
    lab.run("zfs create -o copies=2 tank/two").ok();
    lab.run("zfs clone -o refreservation=auto tank/v@s tank/two/clone").ok();
    lab.run("zfs create -V 8M -b 16K tank/two/full").ok();
    let reserved = |dataset: &str| lab.run(&format!("zfs get -H -p -o value refreservation {dataset}")).ok();
    assert_eq!(reserved("tank/two/clone"), reserved("tank/two/full"));
}

/// Any local user could read all that was in the pool, secrets included, and lock its files, which kept it from being opened.
#[test]
fn files_that_are_made_for_a_pool_are_nobody_elses() {
    let lab = Lab::scratch();
    let here = lab.cwd().display();
    lab.run(&format!("zpool create --size 128M tank {here}/a")).ok();
    lab.run(&format!("zpool add --size 128M tank log {here}/l")).ok();
    let theirs = lab.cwd().join("theirs");
    std::fs::write(&theirs, "").unwrap();
    std::fs::set_permissions(&theirs, std::fs::Permissions::from_mode(0o640)).unwrap();
    lab.run(&format!("zpool add --size 128M tank spare {here}/theirs")).ok();
    for (name, mode) in [("a", 0o600), ("l", 0o600), ("theirs", 0o640)] {
        let found = std::fs::metadata(lab.cwd().join(name)).unwrap().mode() & 0o777;
        assert_eq!(found, mode, "{name}: {found:o}");
    }
    // Nor what is copied out of it.
    lab.run("zfs create -s -V 1M tank/v").ok();
    lab.run("zfs snapshot tank/v@s").ok();
    let image = lab.path("image");
    let mode = || std::fs::metadata(&image).unwrap().mode() & 0o777;
    lab.run(&format!("image tank/v@s -o {}", image.display())).ok();
    assert_eq!(mode(), 0o600, "{:o}", mode());
    std::fs::set_permissions(&image, std::fs::Permissions::from_mode(0o640)).unwrap();
    lab.run(&format!("image -f tank/v@s -o {}", image.display())).ok();
    assert_eq!(mode(), 0o640, "{:o}", mode());
}

/// What the status advises is there, and gives a pool what its `compatibility` allows and no more.
#[test]
fn an_upgraded_pool_has_what_new_ones_have() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    transcript(
        "write-upgrade",
        &lab,
        &[
            &format!("zpool create --size 64M -d -o feature@lz4_compress=enabled tank {here}/a"),
            &format!("zpool create --size 64M -d -o compatibility=zol-0.7 pond {here}/b"),
            &format!("zpool create --size 64M lake {here}/c"),
            "zpool upgrade",
            "zpool upgrade pond nowhere",
            "zpool get -H -o property,value feature@spacemap_v2,feature@bookmarks pond",
            "zpool upgrade -a",
            "zpool upgrade",
            "zpool upgrade -a tank",
            "zpool get -H -o property,value feature@zstd_compress,feature@enabled_txg tank",
            "zfs create -s -V 16M -o compression=zstd tank/v",
            "zpool upgrade -v",
            "zpool export -a",
        ],
        &tame(&lab),
    );
    for pool in ["tank", "pond", "lake"] {
        fixtures::zdb_check(&[], lab.cwd(), pool).unwrap();
    }
}
