//! What cannot be done is refused in OpenZFS's words, with its exit code, and leaves everything as it was.

use std::fs;

use crate::support::Lab;

/// Must fail with this code and exactly this on standard error, `HERE` standing for the working directory.
#[track_caller]
fn refused(lab: &Lab, line: &str, code: i32, says: &str) {
    let here = lab.cwd().display().to_string();
    let said = lab.run(&line.replace("HERE", &here)).fails(code);
    let said = said.replace(&here, "HERE");
    assert_eq!(said.trim_end(), says, "{line}");
}

/// The same, with the beginning of what it says.
#[track_caller]
fn refused_with(lab: &Lab, line: &str, code: i32, part: &str) {
    let here = lab.cwd().display().to_string();
    let said = lab.run(&line.replace("HERE", &here)).fails(code).replace(&here, "HERE");
    assert!(said.contains(part), "{line}: {said}");
}

#[test]
fn pools_that_cannot_be_created() {
    let lab = Lab::scratch();
    let make = |name: &str, bytes: u64| {
        fs::File::create(lab.cwd().join(name)).and_then(|file| file.set_len(bytes)).unwrap();
    };
    make("a", 128 << 20);
    make("b", 128 << 20);
    make("small", 32 << 20);
    let names = || {
        let mut names: Vec<_> = fs::read_dir(lab.cwd()).unwrap().flatten().map(|e| e.file_name()).collect();
        names.sort();
        names
    };
    let before = names();
    for (line, code, says) in [
        ("zpool create mirror HERE/a", 1, "cannot create 'mirror': name is reserved"),
        ("zpool create 9tank HERE/a", 1, "cannot create '9tank': name must begin with a letter"),
        ("zpool create ta*nk HERE/a", 1, "cannot create 'ta*nk': invalid character '*' in pool name"),
        (
            "zpool create tank/x HERE/a",
            1,
            "cannot create 'tank/x': invalid character '/' in pool name\nuse 'zfs create' to create a dataset",
        ),
        (
            "zpool create -o ashift=20 tank HERE/a",
            1,
            "cannot create 'tank': property 'ashift' number 20 is invalid, only values between 9 and 16 are allowed.",
        ),
        (
            "zpool create -o ashift=8 tank HERE/a",
            1,
            "cannot create 'tank': property 'ashift' number 8 is invalid, only values between 9 and 16 are allowed.",
        ),
        ("zpool create -o nonsense=1 tank HERE/a", 1, "cannot create 'tank': invalid property 'nonsense'"),
        ("zpool create -o size=1 tank HERE/a", 1, "cannot create 'tank': 'size' is readonly"),
        ("zpool create -O used=1 tank HERE/a", 1, "cannot create 'tank': 'used' is readonly"),
        (
            "zpool create -d -O dnodesize=auto tank HERE/a",
            1,
            "cannot create 'tank': pool and or dataset must be upgraded to set this property or value\n\
             to allow it: '-o feature@large_dnode=enabled'",
        ),
        (
            "zpool create -o feature@large_dnode=disabled -O dnodesize=auto tank HERE/a",
            1,
            "cannot create 'tank': pool and or dataset must be upgraded to set this property or value\n\
             to allow it: '-o feature@large_dnode=enabled'",
        ),
        (
            "zpool create -o compatibility=compat-2018 -O checksum=sha512 tank HERE/a",
            1,
            "cannot create 'tank': pool and or dataset must be upgraded to set this property or value\n\
             to allow it: '-o feature@sha512=enabled'",
        ),
        (
            "zpool create tank no-such-device",
            1,
            "cannot open 'no-such-device': no such device in /dev\nmust be a full path or shorthand device name",
        ),
        (
            "zpool create tank HERE/missing",
            1,
            "cannot open 'HERE/missing': No such file or directory\nto create files, give their size with --size",
        ),
        ("zpool create --size ten tank HERE/x", 1, "bad file size 'ten': bad numeric value 'ten'"),
    ] {
        refused(&lab, line, code, says);
    }
    for (line, part) in [
        (
            "zpool create tank HERE/small",
            "cannot create 'tank': one or more devices is less than the minimum size (64M)",
        ),
        ("zpool create tank mirror HERE/a", "invalid vdev specification: mirror requires at least 2 devices"),
        (
            "zpool create tank raidz2 HERE/a HERE/b",
            "invalid vdev specification: raidz2 requires at least 3 devices",
        ),
        ("zpool create tank HERE/a HERE/a", "one or more vdevs refer to the same device"),
        ("zpool create tank HERE/a HERE/../HERE", "cannot"),
        ("zpool create tank HERE/a mirror HERE/b HERE/x", "cannot open 'HERE/x': No such file or directory"),
        ("zpool create --size 128M tank HERE/x mirror HERE/a HERE/b", "mismatched replication level"),
        ("zpool create --size 1M tank HERE/x", "one or more devices is less than the minimum size (64M)"),
    ] {
        refused_with(&lab, line, 1, part);
    }
    assert_eq!(names(), before, "nothing was created");
    assert_eq!(lab.run("zpool list -H").ok(), "", "and nothing is imported");
}

#[test]
fn devices_that_belong_to_somebody() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    lab.run(&format!("zpool create --size 128M tank {here}/a")).ok();
    refused(&lab, "zpool create tank HERE/b", 1, "cannot create 'tank': pool already exists");
    refused_with(&lab, "zpool create lake HERE/a", 1, "HERE/a is part of potentially active pool 'tank'");
    lab.run("zpool export tank").ok();
    refused(
        &lab,
        "zpool create lake HERE/a",
        1,
        "invalid vdev specification\nuse '-f' to override the following errors:\nHERE/a is part of exported pool 'tank'",
    );
    lab.run(&format!("zpool create -f lake {here}/a")).ok();
    lab.run("zpool destroy lake").ok();
    // A destroyed pool is in nobody's way.
    lab.run(&format!("zpool create pond {here}/a")).ok();
    lab.run("zpool export pond").ok();
    let mut ext4 = vec![0; 128 << 20];
    ext4[1080..1082].copy_from_slice(&[0x53, 0xef]);
    fs::write(lab.cwd().join("b"), ext4).unwrap();
    refused_with(&lab, "zpool create lake HERE/b", 1, "HERE/b contains a filesystem of type 'ext2'");
}

/// They were said to be in use by another process: it was the very one that said so.
#[test]
fn a_device_of_an_open_pool_is_refused_with_the_name_of_that_pool() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    lab.run(&format!("zpool create --size 128M tank mirror {here}/a {here}/b")).ok();
    lab.run(&format!("zpool create --size 128M lake {here}/c")).ok();
    let attach = "zpool attach tank HERE/a HERE/b";
    let says = "invalid vdev specification\nthe following errors must be manually repaired:\n\
                HERE/b is part of active pool 'tank'";
    refused(&lab, attach, 1, says);
    let daemon = lab.serve("serve --nbd 127.0.0.1:0");
    refused(&lab, attach, 1, says);
    for (line, part) in [
        ("zpool replace -f tank HERE/a HERE/c", "HERE/c is part of active pool 'lake'"),
        ("zpool add -f lake HERE/a", "HERE/a is part of active pool 'tank'"),
        ("zpool create -f pond HERE/c", "HERE/c is part of active pool 'lake'"),
    ] {
        refused_with(&lab, line, 1, part);
    }
    assert_eq!(daemon.stop().code(), Some(0));
}

/// It said what it would do, and the command without `-n` was refused.
#[test]
fn a_dry_run_refuses_what_the_command_refuses() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    lab.run(&format!("zpool create -d --size 128M tank {here}/a")).ok();
    lab.run(&format!("zpool create --size 128M lake {here}/b")).ok();
    let mut xfs = vec![0; 128 << 20];
    xfs[..4].copy_from_slice(b"XFSB");
    fs::write(lab.cwd().join("c"), xfs).unwrap();
    let both = |line: &str, part: &str| {
        let verb = if line.starts_with("zpool add ") { " add" } else { " create" };
        refused_with(&lab, line, 1, part);
        refused_with(&lab, &line.replacen(verb, &format!("{verb} -n"), 1), 1, part);
        assert!(!lab.cwd().join("d").exists(), "{line}");
    };
    both("zpool add -f tank HERE/a", "HERE/a is part of active pool 'tank'");
    both("zpool add tank HERE/b", "HERE/b is part of potentially active pool 'lake'");
    both("zpool add tank HERE/c", "HERE/c contains a filesystem of type 'xfs'");
    both("zpool create pond HERE/b", "HERE/b is part of potentially active pool 'lake'");
    both("zpool create pond HERE/c", "HERE/c contains a filesystem of type 'xfs'");
    let classes = "feature 'allocation_classes' is not enabled in this pool";
    both("zpool add --size 128M tank special HERE/d", &format!("cannot add to 'tank': {classes}"));
    both(
        "zpool create -d --size 128M pond HERE/d special HERE/e",
        &format!("cannot create 'pond': {classes}"),
    );
    let daemon = lab.serve("serve --nbd 127.0.0.1:0");
    both("zpool add -f tank HERE/a", "HERE/a is part of active pool 'tank'");
    both("zpool create -f pond HERE/b", "HERE/b is part of active pool 'lake'");
    assert_eq!(daemon.stop().code(), Some(0));
    lab.run("zpool export lake").ok();
    lab.run("zpool import -d . -o readonly=on lake").ok();
    let read_only = "cannot add to 'lake': pool is read-only: it was imported with readonly=on";
    both("zpool add --size 128M lake HERE/d", read_only);
    lab.run(&format!("zpool add -n --size 128M tank {here}/d")).ok();
}

#[test]
fn datasets_that_cannot_be_created_or_destroyed() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    lab.run(&format!("zpool create --size 256M tank {here}/a")).ok();
    lab.run("zfs create -s -V 16M tank/v").ok();
    lab.run("zfs snapshot tank/v@s").ok();
    lab.run("zfs clone tank/v@s tank/c").ok();
    lab.run("zfs snapshot tank/v@t").ok();
    lab.run("zfs hold keep tank/v@t").ok();
    let before = lab.run("zfs list -t all -o name,volsize,refer,refreservation").ok();
    for (line, code, says) in [
        ("zfs create -V 16M tank/v", 1, "cannot create 'tank/v': dataset already exists"),
        ("zfs create -V 16M tank", 1, "cannot create 'tank': missing dataset name"),
        ("zfs create -V 16M tank/no/v", 1, "cannot create 'tank/no/v': parent does not exist"),
        ("zfs create -V 16M nope/v", 1, "cannot create 'nope/v': no such pool 'nope'"),
        ("zfs create -V 16M tank/v/w", 1, "cannot create 'tank/v/w': parent is not a filesystem"),
        (
            "zfs create -V 16M tank/v@s",
            1,
            "cannot create 'tank/v@s': snapshot delimiter '@' is not expected here",
        ),
        ("zfs create -V 16M tank/a*b", 1, "cannot create 'tank/a*b': invalid character '*' in name"),
        (
            "zfs create -V 16M tank//b",
            1,
            "cannot create 'tank//b': empty component or misplaced '@' or '#' delimiter in name",
        ),
        ("zfs create -V 0 tank/w", 1, "cannot create 'tank/w': volume size cannot be zero"),
        ("zfs create -V ten tank/w", 1, "bad volume size 'ten': bad numeric value 'ten'"),
        ("zfs create -V 16E tank/w", 1, "bad volume size '16E': numeric value is too large"),
        ("zfs create -V 1G tank/w", 1, "cannot create 'tank/w': out of space"),
        (
            "zfs create -V 16M -b 12K tank/w",
            1,
            "cannot create 'tank/w': 'volblocksize' must be power of 2 from 512B to 128K",
        ),
        (
            "zfs create -V 16M -b 256K tank/w",
            1,
            "cannot create 'tank/w': 'volblocksize' must be power of 2 from 512B to 128K",
        ),
        ("zfs create -V 16M -o nonsense=1 tank/w", 1, "cannot create 'tank/w': invalid property 'nonsense'"),
        (
            "zfs create -V 16M -o recordsize=8K tank/w",
            1,
            "cannot create 'tank/w': 'recordsize' does not apply to datasets of this type",
        ),
        ("zfs create -o refreservation=1T tank/fs", 1, "cannot create 'tank/fs': out of space"),
        (
            "zfs create -o longname=on tank/fs",
            1,
            "cannot create 'tank/fs': pool and or dataset must be upgraded to set this property or value\n\
             to allow it: 'zpool set feature@longname=enabled tank'",
        ),
        (
            "zfs set refreservation=1T tank/v",
            1,
            "cannot set property for 'tank/v': size is greater than available space",
        ),
        (
            "zfs set volsize=10000 tank/v",
            1,
            "cannot set property for 'tank/v': 'volsize' must be a multiple of volume block size (16K)",
        ),
        ("zfs set volsize=0 tank/v", 1, "cannot set property for 'tank/v': 'volsize' cannot be zero"),
        ("zfs set volblocksize=8K tank/v", 1, "cannot set property for 'tank/v': 'volblocksize' is readonly"),
        (
            "zfs set quota=1 tank/v",
            1,
            "cannot set property for 'tank/v': 'quota' does not apply to datasets of this type",
        ),
        ("zfs set used=1 tank/v", 1, "cannot set property for 'tank/v': 'used' is readonly"),
        ("zfs set nonsense=1 tank/v", 1, "cannot set property for 'tank/v': invalid property 'nonsense'"),
        (
            "zfs set copies=4 tank/v",
            1,
            "cannot set property for 'tank/v': 'copies' must be one of '1 | 2 | 3'",
        ),
        (
            "zfs set sync=on tank/v",
            1,
            "cannot set property for 'tank/v': 'sync' must be one of 'standard | always | disabled'",
        ),
        (
            "zfs set dedup=on tank/v",
            1,
            "cannot set property for 'tank/v': deduplication is not supported by this version; leave 'dedup' off",
        ),
        ("zfs set sync=always tank/nope", 1, "cannot open 'tank/nope': dataset does not exist"),
        ("zfs inherit used tank/v", 1, "used property is read-only"),
        ("zfs inherit volsize tank/v", 1, "'volsize' property cannot be inherited"),
        (
            "zfs inherit reservation tank/v",
            1,
            "'reservation' property cannot be inherited\nuse 'zfs set reservation=none' to clear",
        ),
        ("zfs destroy tank/nope", 1, "cannot open 'tank/nope': dataset does not exist"),
        ("zfs destroy tank/v@nope", 1, "could not find any snapshots to destroy; check snapshot names."),
        (
            "zfs destroy tank",
            1,
            "cannot destroy 'tank': operation does not apply to pools\nuse 'zfs destroy -r tank' to destroy all datasets in the pool\nuse 'zpool destroy tank' to destroy the pool itself",
        ),
        (
            "zfs destroy tank/v",
            1,
            "cannot destroy 'tank/v': volume has children\nuse '-r' to destroy the following datasets:\ntank/v@s\ntank/v@t",
        ),
        (
            "zfs destroy -r tank/v",
            1,
            "cannot destroy 'tank/v': volume has dependent clones\nuse '-R' to destroy the following datasets:\ntank/c",
        ),
        (
            "zfs destroy tank/v@s",
            1,
            "cannot destroy 'tank/v@s': snapshot has dependent clones\nuse '-R' to destroy the following datasets:\ntank/c",
        ),
        (
            "zfs destroy tank/v@t",
            1,
            "cannot destroy snapshot tank/v@t: it's being held. Run 'zfs holds -r tank/v@t' to see holders.",
        ),
        (
            "zfs destroy -R tank/v",
            1,
            "cannot destroy snapshot tank/v@t: it's being held. Run 'zfs holds -r tank/v@t' to see holders.",
        ),
        (
            "zfs rollback tank/v@s",
            1,
            "cannot rollback to 'tank/v@s': more recent snapshots or bookmarks exist\nuse '-r' to force deletion of the following snapshots and bookmarks:\ntank/v@t",
        ),
        ("zfs rollback tank/v", 1, "cannot open 'tank/v': missing '@' delimiter in snapshot name"),
        ("zfs clone tank/v@nope tank/d", 1, "cannot open 'tank/v@nope': dataset does not exist"),
        ("zfs clone tank/v@s tank/c", 1, "cannot create 'tank/c': dataset already exists"),
        ("zfs clone tank/v@s lake/d", 1, "cannot create 'lake/d': source and target pools differ"),
        ("zfs promote tank/v", 1, "cannot promote 'tank/v': not a cloned filesystem"),
        ("zfs rename tank/v tank/c", 1, "cannot rename 'tank/v': dataset already exists"),
        ("zfs rename tank/v lake/v", 1, "cannot rename to 'lake/v': datasets must be within same pool"),
        (
            "zfs rename tank/v tank/v/w",
            1,
            "cannot rename to 'tank/v/w': new dataset name cannot be a descendant of current dataset name",
        ),
        (
            "zfs rename tank/v@s tank/c@s",
            1,
            "cannot rename to 'tank/c@s': snapshots must be part of same dataset",
        ),
        (
            "zfs snapshot tank/v@s",
            1,
            "cannot create snapshot 'tank/v@s': dataset already exists\nno snapshots were created",
        ),
        (
            "zfs snapshot tank/v@new tank/v@s",
            1,
            "cannot create snapshot 'tank/v@s': dataset already exists\nno snapshots were created",
        ),
        (
            "zfs snapshot tank/v",
            1,
            "cannot create snapshot 'tank/v': missing '@' delimiter in snapshot name\nno snapshots were created",
        ),
        ("zfs hold keep tank/v@nope", 1, "cannot hold snapshot 'tank/v@nope': dataset does not exist"),
        (
            "zfs release other tank/v@t",
            1,
            "cannot release hold from snapshot 'tank/v@t': no such tag on this dataset",
        ),
        ("zfs destroy tank/v#nope", 1, "bookmark 'tank/v#nope' does not exist."),
        ("zpool destroy nope", 1, "cannot open 'nope': no such pool"),
        ("zpool set nonsense=1 tank", 1, "cannot set property for 'tank': invalid property 'nonsense'"),
        ("zpool set size=1 tank", 1, "cannot set property for 'tank': 'size' is readonly"),
        (
            "zpool set failmode=maybe tank",
            1,
            "cannot set property for 'tank': 'failmode' must be one of 'wait | continue | panic'",
        ),
    ] {
        refused(&lab, line, code, says);
    }
    refused_with(
        &lab,
        "zfs bookmark tank/v@s tank/v",
        2,
        "invalid bookmark name 'tank/v': must contain a '#'",
    );
    refused_with(&lab, "zfs inherit nonsense tank/v", 2, "invalid property 'nonsense'");
    assert_eq!(
        lab.run("zfs list -t all -o name,volsize,refer,refreservation").ok(),
        before,
        "nothing half done"
    );
    lab.run("zpool export tank").ok();
    fixtures::zdb_check(&[], lab.cwd(), "tank").unwrap();
}

#[test]
fn a_pool_is_opened_by_one_only() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    lab.run(&format!("zpool create --size 128M tank {here}/a")).ok();
    let daemon = lab.serve("serve --nbd 127.0.0.1:0 tank");
    // Another daemon, and a command that does not know of the first.
    let elsewhere = lab.path("elsewhere.sock").display().to_string();
    let state = lab.path("elsewhere").display().to_string();
    refused_with(
        &lab,
        &format!("--state {state} --socket {elsewhere} serve -d {here} --nbd 127.0.0.1:0 tank"),
        1,
        "cannot open 'tank': pool is in use",
    );
    refused_with(
        &lab,
        &format!("--state {state} --socket {elsewhere} -d {here} zfs create -s -V 16M tank/v"),
        1,
        "cannot open 'tank': pool is in use",
    );
    lab.run("zfs create -s -V 16M tank/v").ok();
    assert_eq!(daemon.stop().code(), Some(0));
}
