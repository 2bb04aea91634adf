//! Which pools a start finds: those that are imported here, however they were imported, when their drives come, and no others.
//!
//! Here is what its files have in common: a pool on files, one of them pulled, how a pool is listed, and a login to it.

mod filling;
mod imports;
mod lacking;
mod late;
mod sides;
mod unasked;

use std::{fs, path::PathBuf};

use crate::support::{
    Daemon, Lab, port, served_as,
    wire::{Iscsi, Trouble},
};

pub(crate) const SERVE: &str = "serve --nbd 127.0.0.1:0 --iscsi 127.0.0.1:0";

/// A pool on files of this test, with a volume.
pub(crate) fn pool(lab: &Lab, name: &str, layout: &str) -> Vec<PathBuf> {
    let here = lab.cwd().display().to_string();
    lab.run(&format!("zpool create --size 128M {name} {}", layout.replace("HERE", &here))).ok();
    lab.run(&format!("zfs create -s -V 8M {name}/v")).ok();
    let paths = layout.split_whitespace().filter_map(|word| word.strip_prefix("HERE/"));
    paths.map(|name| lab.cwd().join(name)).collect()
}

/// A daemon that is told no directory, and looks for pools in that of the test, in place of block devices.
fn serve_where_it_looks(lab: &Lab, words: &str) -> Daemon {
    let mut command = lab.command("millpond");
    command.env("ZPOOL_IMPORT_PATH", lab.cwd()).args(SERVE.split(' ')).args(words.split_whitespace());
    lab.serve_by(&mut command)
}

/// Moves a file away. Where it goes is no directory in which it would be looked for.
fn pull(lab: &Lab, path: &PathBuf) -> PathBuf {
    let away = lab.path(path.file_name().unwrap().to_str().unwrap());
    fs::copy(path, &away).unwrap();
    fs::remove_file(path).unwrap();
    away
}

/// The entry of a pool in the cache file.
fn remembered(lab: &Lab, pool: &str) -> serde_json::Value {
    let text = fs::read_to_string(lab.path("state/pools.json")).unwrap();
    let all: serde_json::Value = serde_json::from_str(&text).unwrap();
    let found = all["pools"].as_array().unwrap().iter().find(|known| known["name"] == pool);
    found.unwrap_or_else(|| panic!("{pool} is not in {text}")).clone()
}

/// How a login to the target of this volume ends.
fn login(lab: &Lab, volume: &str) -> String {
    // The portal's port, by any volume that is served.
    let port = port(&served_as(lab, "tank/v", "iscsi"));
    let target = format!("iqn.2026-11.io.millpond:{}", volume.replace('/', ":"));
    match Iscsi::open(port, &target, 1) {
        Ok(_) => "in".to_owned(),
        Err(Trouble::Refused(why)) => why,
        Err(Trouble::Gone(error)) => panic!("{target}: {error}"),
    }
}

fn is_open(lab: &Lab, pool: &str) -> bool {
    let listed = lab.run("zpool list -H -o name,health").stdout;
    listed.lines().any(|line| line == format!("{pool}\tONLINE"))
}

/// What is listed where a pool cannot be opened.
#[track_caller]
fn listed_as_it_is(lab: &Lab) -> String {
    let listed = lab.run("zpool list -H -o name,health");
    assert_eq!(listed.code, Some(0), "{listed:?}");
    assert!(listed.stderr.contains("cannot open '"), "{listed:?}");
    listed.stdout
}

/// Ends a daemon, and returns what it had to say.
pub(crate) fn stop(mut daemon: Daemon) -> String {
    daemon.signal("TERM");
    assert_eq!(daemon.wait().code(), Some(0));
    daemon.stderr()
}
