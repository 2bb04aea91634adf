//! Properties and features of pools: what is set is there and does what it says, with the features that it needs and no
//! others; what is inherited reaches everything.

use crate::support::Lab;

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
