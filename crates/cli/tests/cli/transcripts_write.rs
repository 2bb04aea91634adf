//! What the commands that change something print and do, to the letter: transcripts on pools made in the test, each
//! judged by zdb at the end.
//!
//! Guids, times and paths of the test are replaced by words. How they are written anew: `transcripts.rs`.

use crate::support::{Lab, transcript};

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
