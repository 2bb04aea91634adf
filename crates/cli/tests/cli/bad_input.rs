//! What goes wrong is said once, with the thing, the reason and the remedy, and the exit code is OpenZFS's.

use std::{fs, os::unix::fs::PermissionsExt as _, process::Command};

use crate::support::Lab;

/// An empty directory with the images of a fixture at these indices, as links.
fn some_of(fixture: &str, indices: &[usize]) -> Lab {
    let lab = Lab::empty();
    let images = fixtures::pool(fixture).images();
    for &index in indices {
        let image = fs::canonicalize(&images[index]).expect("it is unpacked");
        std::os::unix::fs::symlink(&image, lab.cwd().join(image.file_name().expect("a file"))).expect("ours");
    }
    lab
}

/// `cannot open 'fifo' as a device: fifo: …`, `failed to open gone: gone: cannot open: … (os error 2)`.
#[test]
fn what_cannot_be_opened_as_a_device_is_named_once() {
    let lab = Lab::empty();
    let made = Command::new("mkfifo").arg(lab.cwd().join("fifo")).status();
    assert!(made.unwrap().success());
    assert_eq!(
        lab.run("dump -l fifo").fails(1),
        "cannot open 'fifo' as a device: neither a file nor a block device\n"
    );
    assert_eq!(lab.run("zpool labelclear gone").fails(1), "failed to open gone: No such file or directory\n");
}

#[test]
fn a_file_that_is_no_pool() {
    let lab = Lab::empty();
    fs::write(lab.cwd().join("noise"), vec![0x5a_u8; 70 << 20]).unwrap();
    fs::write(lab.cwd().join("short"), b"hello").unwrap();
    for line in ["-d noise zpool import", "-d short zpool import", "-d noise zpool import tank"] {
        let error = lab.run(line).fails(1);
        assert!(error.contains("is not a device of any pool"), "{line}: {error}");
    }
    let error = lab.run("-d noise serve tank --nbd 127.0.0.1:0").fails(1);
    assert!(
        error.contains("cannot open 'tank': no such pool\n'noise' is not a device of any pool"),
        "{error}"
    );
    assert_eq!(lab.run("-d . zpool import").fails(1), "no pools available to import\n");
    assert_eq!(lab.run("-d . zpool import tank").fails(1), "cannot import 'tank': no such pool available\n");
}

#[test]
fn a_place_that_is_not_there() {
    let error = Lab::empty().run("-d nowhere zpool import").fails(1);
    assert!(error.contains("cannot search 'nowhere': No such file or directory"), "{error}");
}

#[test]
fn a_pool_with_too_few_devices() {
    let lab = some_of("raidz2x6", &[0, 2, 4]);
    let listed = lab.run("-d . zpool import").ok();
    assert!(listed.contains("state: UNAVAIL"), "{listed}");
    assert!(
        listed.contains("The pool cannot be imported. Attach the missing\n\tdevices and try again."),
        "{listed}"
    );
    for line in ["-d . zpool import praidz2x6", "-d . serve --readonly praidz2x6 --nbd 127.0.0.1:0"] {
        let error = lab.run(line).fails(1);
        assert!(error.contains("one or more devices is currently unavailable"), "{line}: {error}");
        assert!(error.contains("praidz2x6"), "{line}: {error}");
    }
    let status = lab.run("-d . zpool status");
    assert_eq!(status.code, Some(0), "that is the answer");
    assert!(status.stdout.contains(" state: UNAVAIL"), "{}", status.stdout);
    assert!(lab.run("-d . zpool list -H -o name,health").stdout.contains("praidz2x6\tUNAVAIL"));
    let error = lab.run("-d . zfs list praidz2x6").fails(1);
    assert!(error.contains("one or more devices is currently unavailable"), "{error}");
}

#[test]
fn as_many_devices_as_are_needed_are_enough() {
    let lab = some_of("raidz2x6", &[0, 1, 3, 5]);
    let status = lab.run("-d . zpool status").ok();
    assert!(status.contains(" state: DEGRADED") && status.contains("UNAVAIL"), "{status}");
    lab.run("-d . zpool import -o readonly=on praidz2x6").ok();
}

/// Root may read everything: then there is nothing to see, and the test says so.
#[test]
fn a_path_without_permission() {
    let lab = Lab::empty();
    let secret = lab.cwd().join("secret");
    fs::create_dir(&secret).unwrap();
    let image = lab.cwd().join("image");
    fs::write(&image, b"x").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o000)).unwrap();
    fs::set_permissions(&image, fs::Permissions::from_mode(0o000)).unwrap();
    let runs_as_root = fs::read_dir(&secret).is_ok();
    for place in ["secret", "image"] {
        let line = format!("-d {place} zpool import");
        let (code, error) = match runs_as_root {
            false => {
                let outcome = lab.run(&line);
                (outcome.code, outcome.stderr)
            }
            // `nobody`, if this root may become it.
            true => match lab.run_as_nobody(&line) {
                Some(outcome) => (outcome.code, outcome.stderr),
                None => return,
            },
        };
        assert_eq!(code, Some(1), "{error}");
        assert!(error.contains(&format!("cannot search '{place}': Permission denied")), "{error}");
    }
}

#[test]
fn two_pools_of_one_name_are_told_apart_by_guid() {
    let Some((lab, guids)) = twins() else { return };
    let listed = lab.run("-d . zpool import").ok();
    for guid in &guids {
        assert!(listed.contains(&format!("     id: {guid}")), "{listed}");
    }
    let error = lab.run("-d . zpool import twin").fails(1);
    assert!(
        error.starts_with("cannot import 'twin': more than one matching pool\nimport by numeric ID instead"),
        "{error}"
    );
    for guid in &guids {
        assert!(error.contains(guid), "{error}");
    }
    let error = lab.run("-d . zfs list twin").fails(1);
    assert!(error.contains("more than one pool has this name"), "{error}");
    let error = lab.run("-d . serve --readonly --nbd 127.0.0.1:0 twin").fails(1);
    assert!(error.contains("more than one pool has this name") && error.contains(&guids[0]), "{error}");
    lab.run(&format!("-d . zpool import {}", guids[1])).ok();
    assert_eq!(lab.run("zpool list -H -o name,guid").ok(), format!("twin\t{}\n", guids[1]));
}

/// Two pools named `twin`, by the writer that goes with the documents of the format.
fn twins() -> Option<(Lab, Vec<String>)> {
    let python = fixtures::tool("python3")?;
    let lab = Lab::empty();
    for image in ["a.img", "b.img"] {
        let output = Command::new(&python)
            .arg(fixtures::repository().join("docs/format/mkpool.py"))
            .arg(lab.cwd().join(image))
            .args(["--size", "64M", "--volsize", "1M", "--name", "twin"])
            .output()
            .expect("python3 starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let listed = lab.run("-d . zpool import");
    let guids: Vec<String> =
        listed.stdout.lines().filter_map(|line| line.strip_prefix("     id: ")).map(str::to_owned).collect();
    assert_eq!(guids.len(), 2, "{listed:?}");
    Some((lab, guids))
}

#[test]
fn a_pool_that_another_host_has() {
    let lab = some_of("crash-main", &[0]);
    for line in
        ["-d . zpool import -o readonly=on pcrashmain", "-d . serve --readonly pcrashmain --nbd 127.0.0.1:0"]
    {
        let error = lab.run(line).fails(1);
        assert!(error.contains("pool was previously in use from another system"), "{line}: {error}");
        assert!(error.contains("-f"), "the remedy: {error}");
    }
    // Commands that only look say it and go on.
    let looked = lab.run("-d . zfs list -H -o name pcrashmain");
    assert_eq!((looked.code, looked.stdout.as_str()), (Some(0), "pcrashmain\n"), "{}", looked.stderr);
    assert!(looked.stderr.contains("warning: pool 'pcrashmain' was last used by host"), "{}", looked.stderr);
    // Imported by force, it is everybody's.
    let imported = lab.run("-d . zpool import -o readonly=on -f pcrashmain");
    assert_eq!((imported.code, imported.stdout.as_str()), (Some(0), ""), "{}", imported.stderr);
    // All it says is which logs hold more than what is shown.
    let told = |line: &str| line.contains("is shown as of txg 33: its intent log holds");
    assert!(
        imported.stderr.lines().all(told) && imported.stderr.contains("'pcrashmain/v1'"),
        "{}",
        imported.stderr
    );
    assert_eq!(lab.run("zfs list -H -o name pcrashmain").ok(), "pcrashmain\n");
}

#[test]
fn a_state_directory_that_is_no_directory() {
    let lab = some_of("single", &[0]);
    fs::write(lab.path("file"), b"").unwrap();
    let state = lab.path("file");
    let outcome = lab.run(&format!("--state {} -d . zpool import -o readonly=on psingle", state.display()));
    let error = outcome.fails(1);
    assert!(error.contains(state.to_str().unwrap()), "{error}");
}

#[test]
fn a_transaction_group_from_before_the_pool() {
    let lab = some_of("single", &[0]);
    let error = lab.run("-d . zpool import -T 1 psingle").fails(1);
    assert!(error.contains("cannot import 'psingle': no uberblock at or before txg 1"), "{error}");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let fixture = fixtures::pool("files");
    let lab = Lab::at(&fixture.dir);
    let mut command = lab.command("millpond");
    command.args(["-d", ".", "zfs", "get", "-r", "all"]);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    // Closed before anything was read.
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_ne!(output.status.code(), Some(101), "a panic");
}

#[test]
fn no_read_only_import_changes_an_image() {
    let fixture = fixtures::pool("mirror2");
    let copy = fixture.copy();
    let images: Vec<_> = fs::read_dir(copy.path()).unwrap().flatten().map(|entry| entry.path()).collect();
    let sums = || images.iter().map(|path| crate::support::sha256(path)).collect::<Vec<_>>();
    let before = sums();
    let lab = Lab::at(copy.path());
    for line in [
        "-d . zpool import",
        "-d . zpool import -o readonly=on pmirror2",
        "zpool status -v",
        "zfs get -r all",
        "zpool export pmirror2",
    ] {
        assert_eq!(lab.run(line).code, Some(0), "{line}");
    }
    assert_eq!(sums(), before);
}

#[test]
fn the_bare_name_shows_what_there_is_whatever_the_environment_says() {
    for called in ["millpond", "zpool", "zfs"] {
        // `Lab` sets MILLPOND_STATE and MILLPOND_SOCKET, which are options to clap.
        let text = Lab::empty().run_args(called, [""; 0]).fails(2);
        assert!(text.contains("Usage:") && text.contains("Commands:"), "{called}: {text}");
    }
}

#[test]
fn an_image_is_never_written_over_a_device_of_the_pool() {
    let fixture = fixtures::pool("single");
    let copy = fixture.copy();
    let member = copy.path().join("single-0.img");
    let before = fs::metadata(&member).unwrap();
    let lab = Lab::at(copy.path());
    let link = lab.path("innocent.img");
    std::os::unix::fs::symlink(&member, &link).unwrap();
    for output in [&member, &link] {
        let error = lab.run(&format!("-d . image psingle/v1 -o {}", output.display())).fails(1);
        assert!(error.contains("it is a device of pool 'psingle'"), "{error}");
    }
    let after = fs::metadata(&member).unwrap();
    use std::os::unix::fs::MetadataExt as _;
    assert_eq!((before.ino(), before.mtime(), before.len()), (after.ino(), after.mtime(), after.len()));
}

/// Output truncated a device of an open pool in place, and images took the places of devices of other pools.
#[test]
fn nothing_is_written_over_a_device_of_any_pool_nor_over_a_file_that_is_there() {
    let lab = Lab::scratch();
    let here = lab.cwd().display().to_string();
    for (pool, devices) in [("tank", "a cache c"), ("lake", "b spare s"), ("pond", "d")] {
        let devices = devices.split(' ').map(|word| match word {
            "cache" | "spare" => word.to_owned(),
            name => format!("{here}/{name}"),
        });
        let devices = devices.collect::<Vec<_>>().join(" ");
        lab.run(&format!("zpool create --size 128M {pool} {devices}")).ok();
    }
    lab.run("zfs create -s -V 8M tank/v").ok();
    lab.run("zfs snapshot tank/v@s").ok();
    lab.run("zpool export lake").ok();
    // Two of its labels are lost: the others are enough.
    let torn = fs::File::options().write(true).open(lab.cwd().join("b")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&torn, &vec![0; 512 << 10], 0).unwrap();
    let _daemon = lab.serve("serve --nbd 127.0.0.1:0 tank");
    let state = |name: &str| {
        use std::os::unix::fs::MetadataExt as _;
        let metadata = fs::metadata(lab.cwd().join(name)).unwrap();
        (metadata.ino(), metadata.len())
    };
    for (name, why) in [
        ("a", "it is a device of "),
        ("c", "it is a device of "),
        ("b", "it is a device of pool 'lake'"),
        ("s", "it is a device of a pool"),
        ("d", "it is a device of pool 'pond'"),
    ] {
        let before = state(name);
        for command in ["arcstat", "image -f tank/v@s", "image tank/v"] {
            let said = lab.run(&format!("{command} -o {here}/{name}")).fails(1);
            assert!(said.contains(&format!("cannot write '{here}/{name}'")), "{command}: {said}");
            assert!(said.contains(why), "{command}: {said}");
        }
        assert_eq!(state(name), before, "{name}");
    }
    let plain = lab.cwd().join("plain");
    fs::write(&plain, "somebody's").unwrap();
    let said = lab.run("image tank/v@s -o plain").fails(1);
    assert!(said.contains("cannot write 'plain': it exists; use '-f' to replace it"), "{said}");
    assert_eq!(fs::read(&plain).unwrap(), b"somebody's");
    assert!(!said.contains("a daemon writes"), "a snapshot stays as it is: {said}");
    let said = lab.run("image -f tank/v@s -o plain");
    assert_eq!((said.code, said.stderr.contains("a daemon writes")), (Some(0), false), "{}", said.stderr);
    assert_eq!(fs::metadata(&plain).unwrap().len(), 8 << 20);
    assert!(lab.run("image tank/v -o other").stderr.contains("a daemon writes to pool 'tank'"));
    lab.run("arcstat -o plain").ok();
    assert!(fs::read_to_string(&plain).unwrap().contains("ddh%"), "the log of a tool is written anew");
}

/// `zfs send` had the tip that there is a similar subcommand, `set`.
#[test]
fn a_subcommand_that_only_openzfs_has_is_said_to_be_missing() {
    let lab = Lab::empty();
    for (line, what) in [
        ("zfs send -R tank/v@a", "zfs send"),
        ("-d . zfs recv -F tank/v", "zfs recv"),
        ("zpool split tank lake", "zpool split"),
        ("help zfs diff", "zfs diff"),
    ] {
        let said = lab.run(line).fails(1);
        assert_eq!(said, format!("'{what}' is not supported by this version\n"), "{line}");
    }
    let said = lab.run_args("zfs", ["-d", ".", "send", "tank/v@a"]).fails(1);
    assert_eq!(said, "'zfs send' is not supported by this version\n");
    // Of what nobody has there may be something similar.
    let said = lab.run("zfs sett a=b tank").fails(2);
    assert!(said.contains("similar subcommand") && said.contains("'set'"), "{said}");
    lab.run("zpool send tank").fails(2);
}
