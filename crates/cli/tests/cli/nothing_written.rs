//! Looking never writes: commands that look, a read-only import and a daemon with `--readonly` are run under
//! `strace`, which must see no image opened but for reading, and the images must be the same to the bit afterwards.

use std::{collections::BTreeMap, fs, path::Path, process::Stdio, time::Duration};

use sha2::{Digest as _, Sha256};

use crate::support::Lab;

/// System calls by which a device could be opened for writing.
const OPENS: &str = "trace=open,openat,openat2,creat";

fn sums(dir: &Path) -> BTreeMap<String, String> {
    let mut sums = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let mut hash = Sha256::new();
        std::io::copy(&mut fs::File::open(&path).unwrap(), &mut hash).unwrap();
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        sums.insert(path.display().to_string(), format!("{:x} {modified:?}", hash.finalize()));
    }
    sums
}

/// Lines of a trace in which one of the images is opened, and those of them that could write.
fn opens(trace: &Path, dir: &Path) -> (usize, Vec<String>) {
    let dir = dir.display().to_string();
    let text = fs::read_to_string(trace).unwrap();
    let opened: Vec<&str> =
        text.lines().filter(|line| line.contains(&dir) && line.contains(".img")).collect();
    let writing =
        opened.iter().filter(|line| !line.contains("O_RDONLY")).map(|line| (*line).to_owned()).collect();
    (opened.len(), writing)
}

#[test]
fn no_command_that_looks_opens_a_device_for_writing() {
    let Some(strace) = fixtures::tool("strace") else { return };
    let fixture = fixtures::pool("single");
    // A copy: no other test's reads, and no access times of a shared file.
    let copy = fixture.copy();
    let dir = copy.path();
    let before = sums(dir);
    let lab = Lab::empty();
    let commands = [
        "zpool import",
        "zpool import -o readonly=on psingle",
        "zpool status -v",
        "zpool list -v",
        "zpool get all",
        "zfs list -t all -r",
        "zfs get all",
        "verify psingle",
        "image psingle/v1 -o v1.img",
        "ls -lR psingle/fs",
        "dump -C -uu -DDD -mm -i -H psingle",
        "zpool history -il psingle",
        "zfs holds psingle/v1@s1",
        "zfs destroy -nv psingle/v1@s1",
        "zpool export psingle",
    ];
    let mut seen = 0;
    for (number, command) in commands.iter().enumerate() {
        let trace = lab.path(&format!("trace-{number}"));
        let program = lab.command("millpond");
        let output = std::process::Command::new(&strace)
            .args(["-f", "-qq", "-e", OPENS, "-o"])
            .arg(&trace)
            .arg(program.get_program())
            .arg("-d")
            .arg(dir)
            .args(command.split_whitespace())
            .envs(program.get_envs().filter_map(|(name, value)| value.map(|value| (name, value))))
            .current_dir(lab.cwd())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        let (opened, writing) = opens(&trace, dir);
        assert!(writing.is_empty(), "{command}:\n{}", writing.join("\n"));
        seen += opened;
    }
    assert!(seen >= commands.len() - 1, "the trace shows the opens: {seen}");
    assert_eq!(before, sums(dir), "the images are the same to the bit");
}

#[test]
fn a_read_only_daemon_opens_no_device_for_writing() {
    let Some(strace) = fixtures::tool("strace") else { return };
    let fixture = fixtures::pool("single");
    let copy = fixture.copy();
    let dir = copy.path();
    let before = sums(dir);
    let lab = Lab::empty();
    let trace = lab.path("trace");
    let program = lab.command("millpond");
    let mut daemon = std::process::Command::new(&strace)
        .args(["-f", "-qq", "-e", OPENS, "-o"])
        .arg(&trace)
        .arg(program.get_program())
        .arg("-d")
        .arg(dir)
        .args(["serve", "--readonly", "--nbd", "127.0.0.1:0", "--iscsi", "127.0.0.1:0"])
        .envs(program.get_envs().filter_map(|(name, value)| value.map(|value| (name, value))))
        .current_dir(lab.cwd())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // It answers on its socket once it serves; asked to show what it has, and then ended through strace,
    // which passes the signal on.
    let mut answered = false;
    for _ in 0..300 {
        std::thread::sleep(Duration::from_millis(100));
        if lab.socket().exists() && lab.run("zpool list").code == Some(0) {
            answered = true;
            break;
        }
    }
    let pid = daemon.id().to_string();
    let child = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    for child in child.split_whitespace() {
        assert!(std::process::Command::new("kill").args(["-TERM", child]).status().unwrap().success());
    }
    let ended = daemon.wait().unwrap();
    assert!(answered, "the daemon never answered");
    assert!(ended.success(), "{ended}");
    let (opened, writing) = opens(&trace, dir);
    assert!(opened > 0, "the trace shows the opens");
    assert!(writing.is_empty(), "{}", writing.join("\n"));
    assert_eq!(before, sums(dir), "the images are the same to the bit");
}
