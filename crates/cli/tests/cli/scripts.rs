//! What scripts rely on that were written for OpenZFS: options they use are understood, what makes no sense is refused and
//! changes nothing, what only looks creates nothing, and commands that are begun together all come to their end.

use std::{fs, os::unix::fs::MetadataExt as _, thread};

use crate::support::Lab;

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
    // Whoever counts fields counts those of OpenZFS: nothing of a pool is received.
    assert_eq!(lab.run("zpool get -H -o all comment tank").ok(), "tank\tcomment\t-\tdefault\n");
    let refused = lab.run("zpool get -o received comment tank").fails(2);
    assert!(refused.starts_with("invalid column name 'received'\n"), "{refused}");
    assert_eq!(
        lab.run("zfs get -H -o all,received sync tank/v").ok(),
        "tank/v\tsync\tstandard\t-\tdefault\t-\n"
    );
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
        let written = fs::metadata(lab.cwd().join(pool)).unwrap().blocks() * 512;
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

/// Each got some of the devices and none all of them: of eight that were begun together one or two gave up.
#[test]
fn commands_that_are_begun_together_have_their_turns() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    lab.run(&format!("zpool create --size 128M tank raidz {here}/a {here}/b {here}/c")).ok();
    lab.run("zfs create tank/d").ok();
    thread::scope(|scope| {
        for i in 0..16 {
            let lab = &lab;
            scope.spawn(move || lab.run(&format!("zfs snapshot tank/d@p{i}")).ok());
        }
    });
    assert_eq!(lab.run("zfs list -H -t snapshot -o name -r tank").ok().lines().count(), 16);
    let mut left = fs::read_dir(lab.path("state")).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(left.all(|name| !name.to_string_lossy().starts_with("turn-")), "no turn is left behind");
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
