//! Clients nobody here wrote, writing: QEMU's image converter over NBD and over iSCSI, fio with verification, a file
//! system made outside and checked inside. What was written is there after the daemon stopped, after the pool was
//! exported and imported again, and zdb finds nothing wrong.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::support::{Daemon, Lab, served_as, sha256};

const SERVE: &str = "serve --nbd 127.0.0.1:0 --iscsi 127.0.0.1:0 tank";

/// A pool of this layout, `HERE` standing for the directory of the test, with a thin volume.
fn pool(layout: &str, size: &str) -> Lab {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    lab.run(&format!("zpool create --size 192M tank {}", layout.replace("HERE", &here))).ok();
    lab.run(&format!("zfs create -s -V {size} tank/v")).ok();
    lab
}

/// A raw image with data that does not compress, data that does, and holes.
fn image(path: &Path, megabytes: usize) {
    let mut file = fs::File::create(path).unwrap();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for at in 0..megabytes {
        let mut block = vec![0_u8; 1 << 20];
        match at % 4 {
            0 => block.chunks_exact_mut(8).for_each(|word| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                word.copy_from_slice(&(state ^ state >> 29).to_le_bytes());
            }),
            1 => block.chunks_exact_mut(16).enumerate().for_each(|(i, line)| {
                line.copy_from_slice(format!("line {at:04} {i:05}\n").as_bytes().get(..16).unwrap());
            }),
            2 => {}
            _ => block[..4096].fill(at as u8 | 1),
        }
        file.write_all(&block).unwrap();
    }
}

#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().expect("it starts");
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {said}");
    said
}

/// Writes an image into a volume, and flushes (which `convert` leaves out unless told).
fn put(qemu_img: &Path, from: &Path, url: &str) {
    run(Command::new(qemu_img)
        .args(["convert", "-n", "-t", "writeback", "-f", "raw", "-O", "raw"])
        .arg(from)
        .arg(url));
}

/// Reads a volume back, and gives its hash.
fn get(qemu_img: &Path, url: &str, to: &Path) -> String {
    let _old = fs::remove_file(to);
    run(Command::new(qemu_img).args(["convert", "-f", "raw", "-O", "raw", url]).arg(to));
    sha256(to)
}

#[track_caller]
fn stop(mut daemon: Daemon) {
    daemon.signal("TERM");
    assert_eq!(daemon.wait().code(), Some(0), "{}", daemon.stderr());
}

#[test]
fn an_image_written_over_each_protocol_is_there_after_export_and_import() {
    let Some(qemu_img) = fixtures::tool("qemu-img") else { return };
    for (layout, protocol) in [
        ("raidz2 HERE/a HERE/b HERE/c HERE/d HERE/e HERE/f", "nbd"),
        ("mirror HERE/a HERE/b mirror HERE/c HERE/d log HERE/e", "iscsi"),
    ] {
        let lab = pool(layout, "48M");
        let (source, back) = (lab.path("source.raw"), lab.path("back.raw"));
        image(&source, 48);
        let sum = sha256(&source);
        let daemon = lab.serve(SERVE);
        put(&qemu_img, &source, &served_as(&lab, "tank/v", protocol));
        assert_eq!(
            get(&qemu_img, &served_as(&lab, "tank/v", protocol), &back),
            sum,
            "{protocol}, as written"
        );
        // A snapshot taken beside it is served at once and keeps what was.
        lab.run("zfs snapshot tank/v@first").ok();
        let other = if protocol == "nbd" { "iscsi" } else { "nbd" };
        let empty = lab.path("empty.raw");
        fs::File::create(&empty).and_then(|file| file.set_len(48 << 20)).unwrap();
        put(&qemu_img, &empty, &served_as(&lab, "tank/v", other));
        assert_eq!(get(&qemu_img, &served_as(&lab, "tank/v", protocol), &back), sha256(&empty));
        assert_eq!(
            get(&qemu_img, &served_as(&lab, "tank/v@first", other), &back),
            sum,
            "{protocol}, snapshot"
        );
        lab.run("zfs rollback tank/v@first").ok();
        assert_eq!(
            get(&qemu_img, &served_as(&lab, "tank/v", protocol), &back),
            sum,
            "{protocol}, rolled back"
        );
        stop(daemon);
        lab.run("zpool export tank").ok();
        fixtures::zdb_check(&[], lab.cwd(), "tank").unwrap();

        lab.run("zpool import -d . tank").ok();
        let daemon = lab.serve(SERVE);
        assert_eq!(get(&qemu_img, &served_as(&lab, "tank/v", protocol), &back), sum, "{protocol}, imported");
        stop(daemon);
        assert_eq!(lab.run("verify tank").code, Some(0));
    }
}

/// Of a daemon that listens elsewhere nothing was said: whoever saved a volume did not know that it changes meanwhile.
#[test]
fn who_reads_what_somebody_writes_is_told_wherever_that_one_listens() {
    let lab = pool("HERE/a", "8M");
    lab.run("zfs snapshot tank/v@s").ok();
    let told = |options: &str, who: Option<&str>| {
        for command in ["image -f tank/v -o out", "verify tank", "image -f tank/v@s -o out"] {
            let said = lab.run(&format!("{options} {command}")).stderr;
            // What is in a snapshot stays.
            let who = who.filter(|_| !command.contains('@'));
            let warning = who.map(|who| format!("warning: {who} writes to pool 'tank': "));
            let is_right = warning.map_or(!said.contains("writes to pool"), |text| said.contains(&text));
            assert!(is_right, "{options} {command}: {said}");
        }
    };
    told("", None);
    let daemon = lab.serve(SERVE);
    told("", Some("a daemon"));
    told("--socket nowhere", Some("another process"));
    told("-d . --socket nowhere --state other", Some("another process"));
    stop(daemon);
    let daemon = lab.serve(&format!("{SERVE} --readonly"));
    told("--socket nowhere", None);
    stop(daemon);
}

#[test]
fn flushed_writes_survive_a_daemon_that_is_killed() {
    let Some(qemu_io) = fixtures::tool("qemu-io") else { return };
    let lab = pool("raidz1 HERE/a HERE/b HERE/c", "32M");
    for protocol in ["nbd", "iscsi"] {
        let mut daemon = lab.serve(SERVE);
        let url = served_as(&lab, "tank/v", protocol);
        let offset = if protocol == "nbd" { 0 } else { 8 << 20 };
        let write = format!("write -P 0x5a {offset} 1M");
        run(Command::new(&qemu_io).args(["-f", "raw", "-c", &write, "-c", "flush", &url]));
        daemon.signal("KILL");
        daemon.wait();
        let daemon = lab.serve(SERVE);
        let read = format!("read -P 0x5a {offset} 1M");
        let said = run(Command::new(&qemu_io)
            .args(["-f", "raw", "-r", "-c", &read])
            .arg(served_as(&lab, "tank/v", protocol)));
        assert!(!said.contains("verification failed"), "{protocol}: {said}");
        stop(daemon);
    }
    lab.run("zpool export tank").ok();
    fixtures::zdb_check(&[], lab.cwd(), "tank").unwrap();
}

#[test]
fn fio_verifies_what_it_wrote_over_nbd() {
    let Some(fio) = fixtures::tool("fio") else { return };
    let engines = run(Command::new(&fio).arg("--enghelp"));
    if !engines.lines().any(|line| line.trim() == "nbd") {
        eprintln!("NOT RUN: this fio has no engine for NBD");
        return;
    }
    let lab = pool("mirror HERE/a HERE/b", "32M");
    let daemon = lab.serve(SERVE);
    let url = served_as(&lab, "tank/v", "nbd");
    run(Command::new(&fio).current_dir(lab.cwd()).args([
        "--name=verify",
        "--ioengine=nbd",
        &format!("--uri={url}"),
        "--rw=randwrite",
        "--bsrange=4k-64k",
        "--size=24M",
        "--iodepth=16",
        "--verify=crc32c",
        "--do_verify=1",
        "--verify_fatal=1",
        "--fsync=64",
    ]));
    stop(daemon);
    lab.run("zpool export tank").ok();
    fixtures::zdb_check(&[], lab.cwd(), "tank").unwrap();
}

/// A file system made outside, with a file in it, is written into a volume; the daemon is killed as by a power cut
/// once the client has flushed; the volume is read back from the pool as it was left.
fn through_a_volume(file_system: &Path, protocol: &str) -> (Lab, PathBuf) {
    let lab = pool("raidz1 HERE/a HERE/b HERE/c", "32M");
    let back = lab.path("back.raw");
    let mut daemon = lab.serve(SERVE);
    let qemu_img = fixtures::tool("qemu-img").expect("asked for before");
    put(&qemu_img, file_system, &served_as(&lab, "tank/v", protocol));
    daemon.signal("KILL");
    daemon.wait();
    lab.run("zpool export tank").ok();
    fixtures::zdb_check(&[], lab.cwd(), "tank").unwrap();
    lab.run("zpool import -d . tank").ok();
    lab.run_args("millpond", ["image", "tank/v", "-o", back.to_str().unwrap()]).ok();
    assert_eq!(sha256(&back), sha256(file_system));
    (lab, back)
}

#[test]
fn ext4_inside_a_volume_is_whole_after_a_power_cut() {
    let (Some(_), Some(mke2fs), Some(e2fsck), Some(debugfs)) =
        (fixtures::tool("qemu-img"), sbin("mke2fs"), sbin("e2fsck"), sbin("debugfs"))
    else {
        return;
    };
    let outside = Lab::scratch();
    let (system, file) = (outside.path("ext4.raw"), outside.path("file"));
    image(&file, 6);
    fs::File::create(&system).and_then(|file| file.set_len(32 << 20)).unwrap();
    run(Command::new(mke2fs).args(["-q", "-F", "-t", "ext4"]).arg(&system));
    run(Command::new(&debugfs).args(["-w", "-R", &format!("write {} inside", file.display())]).arg(&system));
    let (lab, back) = through_a_volume(&system, "iscsi");
    run(Command::new(e2fsck).args(["-f", "-n"]).arg(&back));
    let out = lab.path("out");
    run(Command::new(&debugfs).args(["-R", &format!("dump inside {}", out.display())]).arg(&back));
    assert_eq!(sha256(&out), sha256(&file));
}

#[test]
fn ntfs_inside_a_volume_is_whole_after_a_power_cut() {
    let (Some(_), Some(mkntfs), Some(ntfscp), Some(ntfsfix), Some(ntfscat)) =
        (fixtures::tool("qemu-img"), sbin("mkntfs"), sbin("ntfscp"), sbin("ntfsfix"), sbin("ntfscat"))
    else {
        return;
    };
    let outside = Lab::scratch();
    let (system, file) = (outside.path("ntfs.raw"), outside.path("file"));
    image(&file, 6);
    fs::File::create(&system).and_then(|file| file.set_len(32 << 20)).unwrap();
    run(Command::new(mkntfs).args(["-q", "-F", "-f"]).arg(&system));
    run(Command::new(ntfscp).arg(&system).arg(&file).arg("inside"));
    let (lab, back) = through_a_volume(&system, "nbd");
    run(Command::new(ntfsfix).arg("-n").arg(&back));
    let out = lab.path("out");
    let read =
        Command::new(ntfscat).arg(&back).arg("inside").stdout(fs::File::create(&out).unwrap()).status();
    assert!(read.unwrap().success());
    assert_eq!(sha256(&out), sha256(&file));
}

/// A tool, wherever the distribution has it.
fn sbin(name: &str) -> Option<PathBuf> {
    let path = Path::new("/usr/sbin").join(name);
    if path.exists() { Some(path) } else { fixtures::tool(name) }
}

#[test]
fn what_is_served_follows_what_the_pool_has() {
    let (Some(nbdinfo), Some(qemu_io)) = (fixtures::tool("nbdinfo"), fixtures::tool("qemu-io")) else {
        return;
    };
    let lab = pool("HERE/a", "32M");
    let daemon = lab.serve(SERVE);
    let size = |name: &str| {
        let url = served_as(&lab, name, "nbd");
        run(Command::new(&nbdinfo).arg("--size").arg(url)).trim().parse::<u64>().unwrap()
    };
    let names = || {
        let listed = lab.run("zfs list -H -o name -t volume,snapshot").ok();
        let served = crate::support::ask(&lab, "/v1/served");
        let served = served["served"].as_array().unwrap().iter();
        let mut served: Vec<_> = served.map(|one| one["dataset"].as_str().unwrap().to_owned()).collect();
        // The root is a file system: its snapshots are not served.
        let mut listed: Vec<_> =
            listed.lines().filter(|name| !name.starts_with("tank@")).map(str::to_owned).collect();
        served.sort();
        listed.sort();
        assert_eq!(served, listed);
        served.join(" ")
    };
    assert_eq!(size("tank/v"), 32 << 20);
    lab.run("zfs set volsize=64M tank/v").ok();
    assert_eq!(size("tank/v"), 64 << 20, "seen by who comes next");
    lab.run("zfs create -s -V 16M tank/w").ok();
    lab.run("zfs snapshot -r tank@s").ok();
    assert_eq!(names(), "tank/v tank/v@s tank/w tank/w@s");
    lab.run("zfs clone tank/v@s tank/c").ok();
    lab.run("zfs promote tank/c").ok();
    assert_eq!(names(), "tank/c tank/c@s tank/v tank/w tank/w@s");
    lab.run("zfs rename tank/w tank/x").ok();
    assert_eq!(names(), "tank/c tank/c@s tank/v tank/x tank/x@s");
    lab.run("zfs set readonly=on tank/x").ok();
    let info = run(Command::new(&nbdinfo).arg(served_as(&lab, "tank/x", "nbd")));
    assert!(info.contains("is_read_only: true"), "{info}");

    // A client is connected for as long as it sleeps.
    let url = served_as(&lab, "tank/x", "nbd");
    let mut client = Command::new(&qemu_io)
        .args(["-f", "raw", "-r", "-c", "sleep 60000", &url])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // A connection is nobody's before it has chosen its export.
    crate::support::wait_until(|| {
        crate::support::ask(&lab, "/v1/initiators")["nbd"][0]["volume"] == "tank/x"
    });
    // In one line: whoever waits until it is not busy reads the last.
    for (line, what) in [
        ("destroy -r tank/x", "destroy"),
        ("rollback tank/x@s", "rollback"),
        ("rename tank/x tank/y", "rename"),
    ] {
        let said = lab.run(&format!("zfs {line}")).fails(1);
        let begin = format!("cannot {what} 'tank/x': dataset is busy: used by an NBD client from 127.0.0.1:");
        assert!(said.starts_with(&begin) && said.ends_with(" ('millpond initiators')\n"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    assert_eq!(lab.run("zpool export tank").fails(1), "cannot export 'tank': pool is busy\n");
    let history = lab.run("zpool history tank").ok();
    assert!(!history.contains("zpool export"), "what was refused is no history: {history}");
    let given_up = lab.run("zpool export -F tank").fails(1);
    assert!(given_up.starts_with("cannot give up 'tank': it is not suspended\n"), "{given_up}");
    assert!(given_up.contains("'zpool export tank'") && given_up.contains("'-f'"), "{given_up}");
    assert_eq!(lab.run("zpool destroy tank").fails(1), "cannot destroy 'tank': pool is busy\n");
    client.kill().unwrap();
    client.wait().unwrap();
    crate::support::wait_until(|| crate::support::ask(&lab, "/v1/served")["nbd_connections"] == 0);
    lab.run("zfs destroy -r tank/x").ok();
    assert_eq!(names(), "tank/c tank/c@s tank/v");

    // Pools come and go, too.
    let here = lab.cwd().display().to_string();
    lab.run(&format!("zpool create --size 128M lake {here}/lake")).ok();
    lab.run("zfs create -s -V 16M lake/v").ok();
    assert_eq!(size("lake/v"), 16 << 20);
    lab.run("zpool export tank").ok();
    assert_eq!(lab.run("zpool list -H -o name").ok(), "lake\n");
    lab.run(&format!("zpool import -d {here} tank")).ok();
    assert_eq!(size("tank/v"), 64 << 20);
    lab.run("zpool destroy lake").ok();
    stop(daemon);
    assert_eq!(lab.run("zpool list -H -o name").ok(), "tank\n", "stopped, not exported");
    lab.run("zpool export tank").ok();
    fixtures::zdb_check(&[], lab.cwd(), "tank").unwrap();
}

#[test]
fn an_initiator_hears_of_a_volume_that_grows() {
    let (Some(_), Some(qemu_io)) = (fixtures::tool("iscsi-inq"), fixtures::tool("qemu-io")) else { return };
    let lab = pool("HERE/a", "16M");
    let daemon = lab.serve(SERVE);
    let url = served_as(&lab, "tank/v", "iscsi");
    let mut client = Command::new(&qemu_io)
        .args(["-f", "raw", &url])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = client.stdin.take().unwrap();
    crate::support::wait_until(|| crate::support::ask(&lab, "/v1/served")["iscsi_sessions"] == 1);
    lab.run("zfs set volsize=32M tank/v").ok();
    // The session goes on, beyond what was the end when it began.
    stdin.write_all(b"read 0 4096\ntruncate 32M\nlength\nquit\n").unwrap();
    drop(stdin);
    let output = client.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("read 4096/4096 bytes"), "{said}");
    assert!(said.contains("32 MiB"), "{said}");
    stop(daemon);
}

#[test]
fn a_full_pool_says_so_keeps_what_it_has_and_recovers() {
    let (Some(qemu_img), Some(qemu_io)) = (fixtures::tool("qemu-img"), fixtures::tool("qemu-io")) else {
        return;
    };
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    lab.run(&format!("zpool create --size 80M tank {here}/a")).ok();
    lab.run("zfs create -s -V 16M -o compression=off tank/kept").ok();
    lab.run("zfs create -s -V 256M -o compression=off tank/v").ok();
    let daemon = lab.serve(SERVE);
    let (source, back) = (lab.path("source.raw"), lab.path("back.raw"));
    image(&source, 16);
    let sum = sha256(&source);
    put(&qemu_img, &source, &served_as(&lab, "tank/kept", "nbd"));
    let url = served_as(&lab, "tank/v", "nbd");
    let mut full = None;
    for megabyte in 0..256 {
        let write = format!("write -P 0xa7 {megabyte}M 1M");
        let output =
            Command::new(&qemu_io).args(["-f", "raw", "-c", &write, "-c", "flush", &url]).output().unwrap();
        let said =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        if !said.contains("wrote 1048576/1048576") {
            assert!(said.contains("No space left on device"), "{said}");
            full = Some(megabyte);
            break;
        }
    }
    let full = full.expect("it is full at some time");
    assert!(full > 10, "{full} MiB fit");
    assert_eq!(get(&qemu_img, &served_as(&lab, "tank/kept", "nbd"), &back), sum);
    lab.run("zfs destroy tank/v").ok();
    lab.run("zfs create -s -V 16M tank/again").ok();
    put(&qemu_img, &source, &served_as(&lab, "tank/again", "nbd"));
    assert_eq!(get(&qemu_img, &served_as(&lab, "tank/again", "nbd"), &back), sum);
    stop(daemon);
    lab.run("zpool export tank").ok();
    fixtures::zdb_check(&[], lab.cwd(), "tank").unwrap();
}

#[test]
fn a_pool_of_openzfs_is_gone_on_with() {
    let Some(qemu_img) = fixtures::tool("qemu-img") else { return };
    let fixture = fixtures::pool("mirror2");
    let lab = Lab::copy_of(&fixture);
    lab.run("zpool import -f -d . pmirror2").ok();
    let daemon = lab.serve("serve --nbd 127.0.0.1:0 pmirror2");
    let (source, back) = (lab.path("source.raw"), lab.path("back.raw"));
    image(&source, 6);
    let sum = sha256(&source);
    put(&qemu_img, &source, &served_as(&lab, "pmirror2/v1", "nbd"));
    lab.run("zfs snapshot pmirror2/v1@ours").ok();
    lab.run("zfs destroy pmirror2/v1@s1").ok();
    assert_eq!(get(&qemu_img, &served_as(&lab, "pmirror2/v1@ours", "nbd"), &back), sum);
    stop(daemon);
    lab.run("zpool export pmirror2").ok();
    fixtures::zdb_check(&[], lab.cwd(), "pmirror2").unwrap();
}

#[test]
fn what_destroying_snapshots_gives_back_is_what_was_said() {
    let Some(qemu_io) = fixtures::tool("qemu-io") else { return };
    let lab = pool("mirror HERE/a HERE/b", "32M");
    let daemon = lab.serve(SERVE);
    let write = |pattern: u8, from: u64, megabytes: u64| {
        let command = format!("write -P {pattern} {from}M {megabytes}M");
        let url = served_as(&lab, "tank/v", "nbd");
        run(Command::new(&qemu_io).args(["-f", "raw", "-c", &command, "-c", "flush", &url]));
    };
    lab.run("zfs set compression=off tank/v").ok();
    write(1, 0, 16);
    lab.run("zfs snapshot tank/v@a").ok();
    write(2, 0, 4);
    lab.run("zfs snapshot tank/v@b").ok();
    write(3, 2, 4);
    lab.run("zfs snapshot tank/v@c").ok();
    write(4, 0, 8);
    // A flush is in the intent log; what is used is counted when its transaction group is over.
    lab.run("zpool sync tank").ok();
    let used = || lab.run("zfs get -H -p -o value used tank/v").ok().trim().parse::<u64>().unwrap();
    for range in ["b", "a%c"] {
        let said = lab.run(&format!("zfs destroy -nvp tank/v@{range}")).ok();
        let said =
            said.lines().find_map(|line| line.strip_prefix("reclaim\t")).unwrap().parse::<u64>().unwrap();
        assert!(said >= 2 << 20, "{range}: {said}");
        let before = used();
        lab.run(&format!("zfs destroy tank/v@{range}")).ok();
        assert_eq!(before - used(), said, "{range}");
    }
    stop(daemon);
    lab.run("zpool export tank").ok();
    fixtures::zdb_check(&[], lab.cwd(), "tank").unwrap();
}
