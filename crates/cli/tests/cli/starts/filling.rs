//! A side of a mirror that a resilver is filling, at a start that its source is late for: it has all of the metadata and not all
//! of the data. It is opened alone by who says so, and by no start before.

use std::{fs, path::PathBuf, thread, time::Duration};

use super::{
    SERVE, is_open, listed_as_it_is, login, pool,
    sides::{device_state, nbd},
    stop,
};
use crate::support::{Lab, ask, sha256, wait_until, wire::Wire as _};

/// Bytes of the volume of the mirror with a half filled side.
const FILLED: u64 = 64 << 20;

/// A mirror of which the second side was away while its volume was filled with sevens, and then got all of the metadata and some
/// of the data before the daemon was stopped. The first side is away now, where it is not looked for: where it was, where it is,
/// and the other one. Another pool is served beside it.
fn with_a_half_filled_side(lab: &Lab) -> (PathBuf, PathBuf, PathBuf) {
    pool(lab, "tank", "HERE/t");
    let [source, half] = ["a", "b"].map(|name| lab.cwd().join(name));
    lab.run(&format!("zpool create --size 256M lake mirror {} {}", source.display(), half.display())).ok();
    let properties = "-b 4K -o compression=off -o primarycache=none";
    lab.run(&format!("zfs create -s -V {FILLED} {properties} lake/v")).ok();
    let away = lab.cwd().join("away");
    fs::create_dir(&away).unwrap();
    let aside = away.join("a");
    // How far the resilver gets is a matter of time, of which there are seconds: as long as somebody reads from the first side it
    // gives way to him.
    for _ in 0..20 {
        let daemon = lab.serve(SERVE);
        lab.run("zpool wait -t resilver lake").ok();
        lab.run(&format!("zpool offline lake {}", half.display())).ok();
        let mut volume = nbd(lab);
        for at in (0..FILLED).step_by(1 << 20) {
            volume.write(at, &vec![7; 1 << 20], false).unwrap();
        }
        volume.flush().unwrap();
        lab.run("zpool sync lake").ok();
        // Until the daemon ends.
        let reader = thread::spawn(move || {
            while volume.read(FILLED / 2, 4096).is_ok() {
                thread::sleep(Duration::from_millis(5));
            }
        });
        lab.run(&format!("zpool online lake {}", half.display())).ok();
        // What leads to the data comes first, and is less than this.
        wait_until(|| {
            let pools = ask(lab, "/v1/pools");
            let lake = pools.as_array().unwrap().iter().find(|pool| pool["name"] == "lake").unwrap();
            let scan = &lake["scan_stats"];
            scan["state"] == "FINISHED" || scan["processed"].as_u64() >= Some(3 << 20)
        });
        stop(daemon);
        reader.join().unwrap();
        fs::rename(&source, &aside).unwrap();
        let shown = lab.run("zpool status lake").stdout;
        if shown.contains("resilver in progress") && shown.contains(" state: DEGRADED\n") {
            return (source, aside, half);
        }
        fs::rename(&aside, &source).unwrap();
    }
    panic!("the resilver was never stopped half-way");
}

#[track_caller]
fn is_all_sevens(lab: &Lab) {
    let mut volume = nbd(lab);
    for at in (0..FILLED).step_by(1 << 20) {
        assert!(volume.read(at, 1 << 20).unwrap().iter().all(|byte| *byte == 7), "at {at}");
    }
}

/// Found by reading: the new side of a mirror was opened alone if the other one was seconds late after a restart, as all metadata
/// was on it: clients were told of bad blocks, and of everything that was not copied yet that it is lost.
#[test]
fn a_side_that_is_being_filled_is_not_opened_while_its_source_is_late() {
    let lab = Lab::scratch();
    let (source, aside, half) = with_a_half_filled_side(&lab);
    let before = sha256(&half);
    // Where nobody remembers anything and it is all there is, the daemon ended.
    let here = lab.cwd().display().to_string();
    let kept = [
        (lab.path("state/pools.json"), lab.path("pools.kept")),
        (lab.cwd().join("t"), aside.with_file_name("t")),
    ];
    kept.iter().for_each(|(path, kept)| fs::rename(path, kept).unwrap());
    let daemon = lab.serve(&format!("-d {here} {SERVE}"));
    assert_eq!(listed_as_it_is(&lab), "lake\tUNAVAIL\n");
    stop(daemon);
    kept.iter().for_each(|(path, kept)| fs::rename(kept, path).unwrap());
    let daemon = lab.serve(SERVE);
    assert_eq!(listed_as_it_is(&lab), "lake\tUNAVAIL\ntank\tONLINE\n");
    assert_eq!(login(&lab, "lake/v"), "login: status 0x3/0x1", "service unavailable");
    let shown = lab.run("zpool status lake");
    let told = format!("some of it is only on devices that are missing: {}\n", source.display());
    assert!(shown.stdout.contains(" state: UNAVAIL\n") && shown.stdout.contains(&told), "{shown:?}");
    assert!(shown.stdout.contains("'zpool import lake'"), "{shown:?}");
    assert_eq!(sha256(&half), before, "not a byte of it was written");
    fs::rename(&aside, &source).unwrap();
    wait_until(|| is_open(&lab, "lake"));
    is_all_sevens(&lab);
    stop(daemon);
}

/// A source that is dead for good is no reason to keep from everybody what is there: who says so opens it, and from then on
/// every start does.
#[test]
fn a_side_that_is_being_filled_is_opened_without_its_source_by_who_names_the_pool() {
    let lab = Lab::scratch();
    let (source, aside, _) = with_a_half_filled_side(&lab);
    let daemon = lab.serve(SERVE);
    assert_eq!(listed_as_it_is(&lab), "lake\tUNAVAIL\ntank\tONLINE\n");
    // As was said: where it is is known.
    let imported = lab.run("zpool import lake");
    assert_eq!(imported.code, Some(0), "{imported:?}");
    let told = format!("pool 'lake' is open without {}: some of what was written", source.display());
    assert!(imported.stderr.contains(&told), "{imported:?}");
    stop(daemon);
    let daemon = lab.serve(SERVE);
    assert_eq!(lab.run("zpool list -H -o health lake").ok(), "DEGRADED\n");
    // It was not, after all.
    fs::rename(&aside, &source).unwrap();
    wait_until(|| device_state(&lab, "lake", "/a") == "ONLINE");
    is_all_sevens(&lab);
    stop(daemon);
}

/// Found by reading: where nothing can be written that would tell that the pool was gone on with without it, each start refused
/// it anew, whoever had said before that its source is dead.
#[test]
fn a_pool_that_is_only_read_is_opened_by_each_start_without_the_source_without_which_it_was_imported() {
    let lab = Lab::scratch();
    let (source, aside, half) = with_a_half_filled_side(&lab);
    let before = sha256(&half);
    let reading = format!("{SERVE} --readonly");
    let daemon = lab.serve(&reading);
    assert_eq!(listed_as_it_is(&lab), "lake\tUNAVAIL\ntank\tONLINE\n");
    let imported = lab.run("zpool import lake");
    assert_eq!(imported.code, Some(0), "{imported:?}");
    stop(daemon);
    let daemon = lab.serve(&reading);
    assert_eq!(lab.run("zpool list -H -o health lake").ok(), "DEGRADED\n");
    let log = stop(daemon);
    let told = format!("pool 'lake' is open without {}: some of what was written", source.display());
    assert!(log.contains(&told), "{log}");
    // It was not, after all; and is waited for again from then on, as it was not when it was late once more.
    fs::rename(&aside, &source).unwrap();
    let daemon = lab.serve(&reading);
    is_all_sevens(&lab);
    stop(daemon);
    fs::rename(&source, &aside).unwrap();
    let daemon = lab.serve(&reading);
    assert_eq!(listed_as_it_is(&lab), "lake\tUNAVAIL\ntank\tONLINE\n");
    stop(daemon);
    assert_eq!(sha256(&half), before, "not a byte of it was written");
}
