//! Wrong bytes on drives: those that others have are healed, counted and cleared; what nobody has any more is lost, and the
//! error log names it, with who holds it, until it is written anew or gone.

use std::{fs, os::unix::fs::FileExt as _};

use super::{SIX, SLOT, Scene, Status, VOLUME, content};
use crate::support::wire::Wire as _;

/// Where a drive has what was written to a slot at first.
fn place(drive: &[u8], slot: usize) -> usize {
    let wanted = content(slot, 1);
    let mut places = (0..drive.len() - SLOT).step_by(4096);
    places.find(|at| drive[*at..*at + SLOT] == wanted[..]).expect("it was written")
}

impl Scene {
    fn damage(&self, name: &str, at: usize) {
        let drive = fs::OpenOptions::new().write(true).open(self.file(name)).unwrap();
        drive.write_all_at(&[0xee; 512], at as u64).unwrap();
    }

    /// What was written to these slots at first is lost, of a pool on one drive.
    fn lose(&self, slots: &[usize]) {
        let drive = fs::read(self.file("a")).unwrap();
        slots.iter().for_each(|slot| self.damage("a", place(&drive, *slot)));
    }

    /// Other blocks come in their place.
    fn write_anew(&self, slots: &[usize]) {
        let mut wire = self.nbd();
        slots.iter().for_each(|slot| self.write(&mut wire, *slot, 2));
        wire.flush().unwrap();
        drop(wire);
        self.zpool("sync tank").ok();
    }
}

#[test]
fn wrong_bytes_on_one_drive_are_healed_counted_and_cleared() {
    let scene = Scene::new(SIX);
    let here = scene.here();
    scene.under_load(|| {
        // Behind the labels, through the whole drive, now and then.
        for at in (5..150).step_by(5) {
            let written = std::process::Command::new("dd")
                .args(["if=/dev/urandom", "bs=64K", "count=4", "conv=notrunc", "status=none"])
                .arg(format!("of={}", scene.file("b").display()))
                .arg(format!("seek={}", at * 16))
                .status();
            assert!(written.unwrap().success());
        }
        scene.zpool("scrub -w tank").ok();
        let status = scene.status();
        assert_eq!((status.scan("function"), status.scan("errors")), ("SCRUB", "0"));
        assert!(status.scan_number("processed") > 0, "nothing was repaired");
        let counted: u64 = status.device("b")["checksum_errors"].as_str().unwrap().parse().unwrap();
        assert!(counted > 0, "{:#}", status.0);
        for well in ["a", "c", "d", "e", "f"] {
            assert_eq!(status.device(well)["checksum_errors"], "0", "{well}");
        }
        let text = scene.zpool("status tank").ok();
        assert!(text.contains("One or more devices has experienced an unrecoverable error."), "{text}");
        scene.zpool(&format!("clear tank {here}/b")).ok();
        let cleared = scene.status();
        assert_eq!((cleared.state(), &cleared.device("b")["checksum_errors"]), ("ONLINE", &"0".into()));
    });
    scene.zpool("scrub -w tank").ok();
    assert_eq!(scene.status().scan("processed"), "0");
    scene.judge();
}

#[test]
fn a_scrub_says_what_it_found_and_only_one_that_runs_is_stopped() {
    let scene = Scene::new("mirror HERE/a HERE/b");
    assert_eq!(
        scene.zpool("scrub -s tank").fails(1),
        "cannot cancel scrubbing tank: there is no active scrub\n"
    );
    assert_eq!(scene.zpool("scrub nothing").fails(1), "cannot open 'nothing': no such pool\n");
    scene.zpool("scrub -w tank").ok();
    let status = scene.status();
    assert_eq!((status.scan("state"), status.scan("errors")), ("FINISHED", "0"));
    assert!(status.scan_number("examined") >= VOLUME as u64, "{:#}", status.0);
    let text = scene.zpool("status tank").ok();
    assert!(
        text.contains("  scan: scrub repaired 0B in 00:00:") && text.contains(" with 0 errors on "),
        "{text}"
    );
    scene.judge();
}

/// A scrub files what a snapshot holds under the snapshot, and the list of what is lost knew live datasets only: it had the
/// number of an object set, no bytes, and nothing of the volume that clients use.
#[test]
fn what_a_snapshot_has_lost_is_named_with_its_bytes_and_so_is_who_shares_it() {
    let scene = Scene::new("HERE/a");
    name_what_a_snapshot_has_lost(&scene);
    scene.judge();
}

/// With feature `head_errlog` a scrub files it under the volume, whose bytes were listed as lost although it had good ones
/// there; of the snapshot and the clone, which had lost theirs, nothing was said.
#[test]
fn what_a_snapshot_has_lost_is_not_said_of_its_volume_if_the_log_is_by_volume() {
    let scene = Scene::sized("160M -o feature@head_errlog=enabled", "HERE/a");
    assert_eq!(scene.zpool("get -H -o value feature@head_errlog tank").ok(), "active\n");
    name_what_a_snapshot_has_lost(&scene);
    // Until the next scrub, be it one of the log, that has what nobody has any more.
    scene.lose(&[1500]);
    scene.zpool("scrub -w tank").ok();
    let text = scene.zpool("status -v tank").ok();
    assert!(text.ends_with("        tank/v:<0x1>\n            bytes 24576000-24592383\n"), "{text}");
    scene.write_anew(&[1500]);
    let text = scene.zpool("status -v tank").ok();
    assert!(text.ends_with("        tank/v:<0x1> (overwritten or freed since)\n"), "{text}");
    scene.zpool("scrub -e -w tank").ok();
    assert!(scene.zpool("status -v tank").ok().ends_with("errors: No known data errors\n"));
    scene.judge();
}

fn name_what_a_snapshot_has_lost(scene: &Scene) {
    scene.lab.run("zfs snapshot tank/v@s").ok();
    scene.lab.run("zfs clone tank/v@s tank/c").ok();
    // One block is the snapshot's and the clone's; the volume has another there.
    scene.write_anew(&[700]);
    scene.lose(&[3, 4, 700]);
    scene.zpool("scrub -w tank").ok();
    assert_eq!((scene.status().scan("state"), scene.status().scan("errors")), ("FINISHED", "3"));
    let text = scene.zpool("status -v tank").ok();
    let shared = "            bytes 49152-81919\n";
    let old = format!("{shared}            bytes 11468800-11485183\n");
    for (name, bytes) in [("tank/v", shared), ("tank/v@s", old.as_str()), ("tank/c", old.as_str())] {
        let wanted = format!("        {name}:<0x1>\n{bytes}");
        let (_, behind) = text.split_once(&wanted).unwrap_or_else(|| panic!("{wanted:?} is not in {text}"));
        assert!(!behind.starts_with("            bytes "), "{name}: {text}");
    }
    assert_eq!(text.matches(":<0x").count(), 3, "{text}");
    // A scrub of the log read the good block that the volume has there, and forgot the one that is lost.
    scene.zpool("scrub -e -w tank").ok();
    assert_eq!(scene.status().0["error_scrub"]["errors"], "3");
    let list = |text: &str| text.split_once("errors: ").unwrap().1.to_owned();
    assert_eq!(list(&scene.zpool("status -v tank").ok()), list(&text));
    // With those who hold it gone, and the rest written anew, nothing is lost any more.
    scene.lab.run("zfs destroy tank/c").ok();
    scene.lab.run("zfs destroy tank/v@s").ok();
    scene.write_anew(&[3, 4]);
    scene.zpool("scrub -w tank").ok();
    assert!(scene.zpool("status -v tank").ok().ends_with("errors: No known data errors\n"));
}

/// Its entries were not found any more: no error was known, and what was lost next went into it in the other form.
#[test]
fn the_error_log_keeps_its_form_while_it_tells_of_anything() {
    let scene = Scene::new("HERE/a");
    let is_lost = |bytes: &str| {
        let text = scene.zpool("status -v tank").ok();
        assert!(text.ends_with(&format!("        tank/v:<0x1>\n            bytes {bytes}\n")), "{text}");
    };
    scene.lose(&[1500]);
    scene.zpool("scrub -w tank").ok();
    is_lost("24576000-24592383");
    let said = scene.zpool("set feature@head_errlog=enabled tank").fails(1);
    assert!(said.contains("'tank': the error log") && said.contains("zpool scrub"), "{said}");
    is_lost("24576000-24592383");
    scene.write_anew(&[1500]);
    scene.zpool("scrub -w tank").ok();
    scene.zpool("set feature@head_errlog=enabled tank").ok();
    assert_eq!(scene.zpool("get -H -o value feature@head_errlog tank").ok(), "active\n");
    scene.lose(&[1501]);
    scene.zpool("scrub -w tank").ok();
    is_lost("24592384-24608767");
    scene.write_anew(&[1501]);
    scene.zpool("scrub -w tank").ok();
    scene.judge();
}

/// Whoever asked what is lost read the damaged metadata on the way there as anybody does, so that each look was counted
/// as new errors, and some looks later the devices of a mirror were degraded for it.
#[test]
fn a_look_at_what_is_lost_counts_no_errors() {
    let mut scene = Scene::new("mirror HERE/a HERE/b");
    scene.lab.run("zfs snapshot tank/v@s").ok();
    let damage = |scene: &Scene, at: usize| ["a", "b"].iter().for_each(|name| scene.damage(name, at));
    let drive = fs::read(scene.file("a")).unwrap();
    damage(&scene, place(&drive, 1500));
    scene.zpool("scrub -w tank").ok();
    assert_eq!((scene.status().scan("state"), scene.status().scan("errors")), ("FINISHED", "1"));
    // In good order it would note what is warm, and read that when it starts again.
    let mut daemon = scene.daemon.take().unwrap();
    daemon.signal("KILL");
    assert_eq!(daemon.wait().code(), None);
    // The pointers to the second half of the volume, which are the snapshot's and the volume's.
    let dump = scene.lab.run("dump -f -DDD tank/v@s 1").ok();
    let wanted = format!(" {:x} L1 DVA[0]=", 1024 * SLOT);
    let line = dump.lines().find(|line| line.contains(&wanted)).unwrap_or_else(|| panic!("{dump}"));
    for dva in line.split("DVA[").skip(1) {
        let offset = dva.split(':').nth(1).unwrap();
        damage(&scene, (4 << 20) + usize::from_str_radix(offset, 16).unwrap());
    }
    scene.serve();
    let counted = |status: &Status| {
        ["a", "b"].map(|name| status.device(name)["checksum_errors"].as_str().unwrap().to_owned())
    };
    let before = counted(&scene.status());
    for turn in 0..4 {
        // What was seen is kept until something is committed.
        scene.zpool(&format!("set comment={turn} tank")).ok();
        let text = scene.zpool("status -v tank").ok();
        assert!(text.contains("        tank/v@s:<0x1>\n"), "{text}");
    }
    let after = scene.status();
    assert_eq!((counted(&after), after.state()), (before, "ONLINE"));
    scene.stop();
}

/// The line of the scrub before it stood there, as if nothing had been looked at since.
#[test]
fn a_scrub_of_the_error_log_is_told_by_status() {
    let mut scene = Scene::new("HERE/a");
    let lost = [3, 700, 1500];
    scene.lose(&lost);
    scene.zpool("scrub -w tank").ok();
    assert_eq!((scene.status().scan("state"), scene.status().scan("errors")), ("FINISHED", "3"));
    scene.zpool("scrub -e -w tank").ok();
    let told = |scene: &Scene| {
        let text = scene.zpool("status tank").ok();
        let line = text.lines().find_map(|line| line.strip_prefix("  scan: ")).unwrap_or_default();
        assert!(line.starts_with("scrubbed 3 error block(s) in 00:00:0"), "{text}");
        let scrub = &scene.status().0["error_scrub"];
        let numbers = ["function", "state", "to_examine", "examined"].map(|key| scrub[key].as_str().unwrap());
        assert_eq!(numbers, ["ERRORSCRUB", "FINISHED", "3", "3"]);
        // The other one is not forgotten.
        assert_eq!((scene.status().scan("function"), scene.status().scan("state")), ("SCRUB", "FINISHED"));
        scrub["errors"].as_str().unwrap().to_owned()
    };
    assert_eq!(told(&scene), "3");
    // It is the pool that remembers.
    scene.stop();
    assert_eq!(told(&scene), "3");
    scene.serve();
    assert_eq!(told(&scene), "3");
    // Written anew they are whole, and the next one finds that.
    scene.write_anew(&lost);
    scene.zpool("scrub -e -w tank").ok();
    assert_eq!(told(&scene), "0");
    assert!(scene.zpool("status tank").ok().ends_with("errors: No known data errors\n"));
    scene.judge();
}
