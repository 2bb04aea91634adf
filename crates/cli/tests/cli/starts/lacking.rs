//! Pools that lack something, or can only be read: what is in the way is said wherever the pool is listed, with what helps,
//! and an import that goes on without lasts until what was lacking is back or gone for good.

use std::{fs, os::unix::fs::FileExt as _, path::PathBuf};

use super::{SERVE, listed_as_it_is, pool, pull, remembered, stop};
use crate::support::{Lab, ask};

/// With a daemon it was nowhere to be seen, without one only if a device was left; and all pools were healthy. Lists of what
/// pools have went without it and said nothing, and who changed who is offered what got another pool for it.
#[test]
fn an_imported_pool_that_cannot_be_opened_is_seen_with_a_daemon_and_without() {
    let lab = Lab::scratch();
    pool(&lab, "good", "HERE/g");
    let paths = pool(&lab, "rz", "raidz1 HERE/r0 HERE/r1 HERE/r2");
    let is_seen = || {
        assert_eq!(listed_as_it_is(&lab), "good\tONLINE\nrz\tUNAVAIL\n");
        for line in ["zpool status", "zpool status -x", "zpool status rz"] {
            let shown = lab.run(line);
            assert_eq!(shown.code, Some(0), "{line}: {shown:?}");
            assert!(shown.stdout.contains("  pool: rz\n state: UNAVAIL\nstatus: "), "{line}: {shown:?}");
            assert!(!shown.stdout.contains("healthy"), "{line}: {shown:?}");
            assert!(shown.stderr.contains("cannot open 'rz': "), "{line}: {shown:?}");
        }
        // Scripts take no snapshot of any pool where a list of all is an error.
        let lists = ["zfs list -H -o name", "zfs get -H -o name type", "zpool iostat -H", "zfs load-key -a"];
        for (line, code) in lists.map(|line| (line, 0)).into_iter().chain([("share list", 1)]) {
            let shown = lab.run(line);
            assert_eq!(shown.code, Some(code), "{line}: {shown:?}");
            assert!(line == "zfs load-key -a" || shown.stdout.contains("good"), "{line}: {shown:?}");
            assert!(shown.stderr.contains("cannot open 'rz': "), "{line}: {shown:?}");
        }
        let listed = lab.run("zfs list -j").stdout;
        assert!(listed.contains("\"problems\":[\"cannot open 'rz': "), "{listed}");
        for line in ["zfs list rz", "zfs get type rz/v", "zpool iostat rz"] {
            let said = lab.run(line).fails(1);
            assert!(said.starts_with("cannot open 'rz"), "{line}: {said}");
        }
        let which = lab.run("share portal add 127.0.0.9").fails(2);
        assert!(which.starts_with("there are several pools"), "{which}");
        let target = lab.run("share chap clear iqn.2026-11.com.example:t").fails(1);
        assert!(target.contains("if 'rz' has it, say so with --pool"), "{target}");
        // Whoever asks about another pool is not told.
        lab.run("zfs list -H -r good").ok();
        lab.run("share --pool good list").ok();
    };
    // Too few devices are left, then none.
    for gone in [&paths[..2], &paths[2..]] {
        gone.iter().for_each(|path| drop(pull(&lab, path)));
        is_seen();
        let daemon = lab.serve(SERVE);
        is_seen();
        let pools = ask(&lab, "/v1/pools");
        assert_eq!(pools[1]["name"], "rz", "{pools:#}");
        assert_eq!(pools[1]["txg"], 0, "{pools:#}");
        assert!(pools[1]["problems"][0].is_string(), "{pools:#}");
        stop(daemon);
    }
}

/// "Does not exist" is what scripts take for destroyed: they booked volumes as gone that were there when the drives were.
#[test]
fn of_a_pool_that_is_away_nobody_says_that_something_of_it_does_not_exist() {
    let lab = Lab::scratch();
    pool(&lab, "lake", "HERE/b");
    let tank = pool(&lab, "tank", "HERE/a");
    lab.run("zfs snapshot tank/v@s").ok();
    let away = pull(&lab, &tank[0]);
    let it_is_away = || {
        for line in [
            "zfs list tank/v",
            "zfs get -H type tank/v@s",
            "zfs set compression=lz4 tank/v",
            "zfs create tank/w",
            "zfs snapshot tank/v@t",
            "zfs clone tank/v@s tank/w",
            "zfs rename tank/v tank/w",
            "zfs rollback tank/v@s",
            "zfs destroy tank/v@s",
            "zfs destroy -r tank/v",
            "zpool scrub tank",
            "zpool destroy tank",
            "image tank/v -o v.img",
        ] {
            let said = lab.run(line).fails(1);
            let why = "cannot open 'tank': none of its devices is there\nit was imported from ";
            assert!(said.starts_with(why) && !said.contains("exist"), "{line}: {said}");
        }
        // Of one that is there it is known.
        let said = lab.run("zfs destroy -r lake/w").fails(1);
        assert_eq!(said, "cannot open 'lake/w': dataset does not exist\n");
        assert!(
            lab.run("zfs list pond/v").fails(1).starts_with("cannot open 'pond/v': dataset does not exist")
        );
    };
    it_is_away();
    let daemon = lab.serve(SERVE);
    it_is_away();
    stop(daemon);
    fs::copy(&away, &tank[0]).unwrap();
    lab.run("zfs list tank/v@s").ok();
    fs::remove_file(&tank[0]).unwrap();
    assert!(lab.run("zpool destroy tank").fails(1).ends_with("\nto forget it: 'zpool export tank'\n"));
    lab.run("zpool export tank").ok();
    assert!(lab.run("zfs list tank/v").fails(1).starts_with("cannot open 'tank/v': dataset does not exist"));
}

/// It said so once, when it was imported: then it looked like any other, and without a daemon as if it were written to.
#[test]
fn a_pool_that_can_only_be_read_says_so_and_why() {
    let lab = Lab::copy_of(&fixtures::pool("dedup"));
    let imported = lab.run("zpool import -f -d . pdedup");
    assert_eq!(imported.code, Some(0), "{imported:?}");
    let says = |by_need: bool| {
        let status = lab.run("zpool status pdedup").stdout;
        assert_eq!(status.contains("  note: the pool is open read-only: "), by_need, "{status}");
        assert_eq!(status.contains("fast_dedup"), by_need, "{status}");
        assert_eq!(lab.run("zpool get -H -o value readonly pdedup").stdout, "on\n");
    };
    says(true);
    let daemon = lab.serve(SERVE);
    says(true);
    stop(daemon);
    // Whoever wished it knows it.
    assert_eq!(lab.run("zpool export pdedup").code, Some(0));
    assert_eq!(lab.run("zpool import -o readonly=on -f -d . pdedup").code, Some(0));
    says(false);
    let daemon = lab.serve(SERVE);
    says(false);
    stop(daemon);
}

/// An import with -F ended well, and hosts could write no more: nobody was told that, nor what helps.
#[test]
fn a_pool_that_was_gone_back_with_says_that_it_is_only_read_and_why() {
    let lab = Lab::scratch();
    let paths = pool(&lab, "tank", "HERE/a");
    let here = lab.cwd().display().to_string();
    lab.run("zpool export tank").ok();
    let shown = lab.run(&format!("dump -u -d {here} tank")).ok();
    let root = shown.lines().find(|line| line.contains("rootbp")).unwrap();
    let file = fs::File::options().write(true).open(&paths[0]).unwrap();
    for copy in root.split("DVA[").skip(1) {
        let offset = u64::from_str_radix(copy.split(':').nth(1).unwrap(), 16).unwrap();
        file.write_all_at(&[0x77; 512], (4 << 20) + offset).unwrap();
    }
    let said = lab.run(&format!("zpool import -d {here} tank")).fails(1);
    assert!(said.contains("-F"), "{said}");
    let why = "its newest state cannot be read";
    let imported = lab.run(&format!("zpool import -F -d {here} tank"));
    assert_eq!(imported.code, Some(0), "{imported:?}");
    assert!(imported.stderr.contains(&format!("pool 'tank' is open read-only: {why}")), "{imported:?}");
    let says = || {
        let status = lab.run("zpool status tank").stdout;
        assert!(status.contains(&format!("  note: the pool is open read-only: {why}")), "{status}");
        // As long as the import is remembered, it is as of that state, whatever OpenZFS did.
        assert!(status.contains("'zpool export' it here, have OpenZFS import it with -F"), "{status}");
        assert_eq!(lab.run("zpool get -H -o value readonly tank").stdout, "on\n");
        assert!(lab.run("zfs create -s -V 1M tank/w").fails(1).contains(why));
    };
    says();
    let daemon = lab.serve(SERVE);
    says();
    stop(daemon);
    assert_eq!(lab.run("zpool export tank").code, Some(0));
    assert!(!fs::read_to_string(lab.path("state/pools.json")).unwrap().contains("\"tank\""));
}

/// It was listed as a pool that can be imported; the import then refused it without `-m`.
#[test]
fn a_pool_that_lacks_its_log_is_listed_with_the_flag_that_its_import_takes() {
    let lab = Lab::scratch();
    let paths = pool(&lab, "tank", "mirror HERE/a HERE/b log HERE/log");
    let here = lab.cwd().display().to_string();
    lab.run("zpool export tank").ok();
    let told = "A log device is missing: the '-m' flag is needed, which gives up what only the log holds.";
    let listed = || {
        let text = lab.run(&format!("zpool import -d {here}")).ok();
        assert!(text.contains(" action: The pool can be imported"), "{text}");
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words.contains(told), lab.run(&format!("zpool import -j -d {here}")).ok().contains(told));
        words.contains(told)
    };
    assert!(!listed());
    pull(&lab, &paths[2]);
    assert!(listed());
}

/// It was said to exist already: it had to be exported first, which said that it cannot be opened.
#[test]
fn an_imported_pool_that_cannot_be_opened_without_its_log_may_be_imported_again_without() {
    let lab = Lab::scratch();
    let paths = pool(&lab, "tank", "mirror HERE/a HERE/b log HERE/log");
    let here = lab.cwd().display().to_string();
    let exists = |line: &str| {
        let said = lab.run(&format!("zpool import -d {here} {line}tank")).fails(1);
        assert!(said.contains("a pool with that name already exists"), "{said}");
    };
    exists("-m ");
    pull(&lab, &paths[2]);
    exists("");
    let imported = lab.run(&format!("zpool import -d {here} -m tank"));
    assert_eq!(imported.code, Some(0), "{imported:?}");
    assert_eq!(remembered(&lab, "tank")["missing_log"], true);
    assert_eq!(lab.run("zfs list -H -o name tank/v").ok(), "tank/v\n");
}

/// The next device command forgot `-m`, and the start after it refused the pool for the log that had been given up.
#[test]
fn a_pool_that_may_lack_its_log_may_so_until_the_log_is_back_or_gone_for_good() {
    let lab = Lab::scratch();
    let paths = pool(&lab, "tank", "mirror HERE/a HERE/b log HERE/log");
    let here = lab.cwd().display().to_string();
    lab.run("zpool export tank").ok();
    let away = pull(&lab, &paths[2]);
    lab.run(&format!("zpool import -d {here} tank")).fails(1);
    assert_eq!(lab.run(&format!("zpool import -d {here} -m tank")).code, Some(0));
    lab.run(&format!("zpool offline tank {here}/a")).ok();
    lab.run(&format!("zpool online tank {here}/a")).ok();
    lab.run(&format!("zpool add --size 128M tank cache {here}/cache")).ok();
    lab.run(&format!("zpool remove tank {here}/cache")).ok();
    let known = remembered(&lab, "tank");
    assert_eq!(known["missing_log"], true, "{known:#}");
    let has = |path: &PathBuf| known["devices"].to_string().contains(path.to_str().unwrap());
    assert!(has(&paths[2]), "the log is looked for where it was: {known:#}");
    let daemon = lab.serve(SERVE);
    assert!(daemon.stop().success());
    // Back: from now on it is not to be missing again.
    fs::copy(&away, &paths[2]).unwrap();
    lab.run("zpool clear tank").ok();
    let state = lab.run("zpool list -H -v -o name,health tank").ok();
    assert!(!state.contains("UNAVAIL"), "{state}");
    assert_eq!(remembered(&lab, "tank")["missing_log"], false);
}

/// It was called by its guid only, which nobody knows a pool by.
#[test]
fn a_pool_that_is_not_imported_with_the_others_is_called_by_its_name() {
    let lab = Lab::scratch();
    let paths = pool(&lab, "tank", "mirror HERE/a HERE/b log HERE/log");
    let here = lab.cwd().display().to_string();
    lab.run("zpool export tank").ok();
    pull(&lab, &paths[2]);
    let said = lab.run(&format!("zpool import -d {here} -a")).fails(1);
    assert!(said.starts_with("cannot import 'tank': ") && said.contains("use '-m'"), "{said}");
    // Of two with one name the first gets it, and the guid tells which the other is.
    let mut guids = Vec::new();
    for file in ["c", "d"] {
        pool(&lab, "lake", &format!("HERE/{file}"));
        guids.push(lab.run("zpool get -H -o value guid lake").ok().trim().to_owned());
        lab.run("zpool export lake").ok();
    }
    let said = lab.run(&format!("zpool import -d {here} -a")).fails(1);
    let is_told = |guid: &String| {
        said.contains(&format!("cannot import 'lake' ({guid}): a pool with that name already exists\n"))
    };
    assert_eq!(guids.iter().filter(|guid| is_told(guid)).count(), 1, "{said}");
}
