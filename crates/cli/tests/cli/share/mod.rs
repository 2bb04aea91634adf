//! `millpond share` and `millpond initiators`: what is set takes effect at once, for strangers' initiators too, and is there
//! again after restart, rename, export and import elsewhere; a clone and a received copy do not take what was their origin's.

mod access;
mod guests;
mod kept;
mod offered;

use std::{io::Write as _, process::Stdio};

use serde_json::Value;

use crate::support::{
    Lab, Outcome, ask, port, served_as,
    wire::{Iscsi, Trouble},
};

const SERVE: &str = "serve --nbd 127.0.0.1:0 --iscsi 127.0.0.1:0 tank";
const TARGET: &str = "iqn.2026-11.com.example:vms";
const SECRET: &str = "twelve bytes, or more";
/// REPORTED LUNS DATA HAS CHANGED.
const LUNS_CHANGED: (u8, u8) = (0x3f, 0x0e);

/// A pool with two small thin volumes.
fn pool() -> Lab {
    let lab = Lab::scratch();
    let disk = lab.cwd().join("a").display().to_string();
    lab.run(&format!("zpool create --size 128M tank {disk}")).ok();
    lab.run("zfs create -s -V 8M tank/a").ok();
    lab.run("zfs create -s -V 8M tank/b").ok();
    lab
}

/// Runs a command that is told something on its standard input.
fn told(lab: &Lab, line: &str, input: &str) -> Outcome {
    let mut command = lab.command("millpond");
    let child = command.args(line.split_whitespace()).stdin(Stdio::piped());
    let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Outcome { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// The port of the portal at which a volume is served.
fn portal(lab: &Lab, dataset: &str) -> u16 {
    port(&served_as(lab, dataset, "iscsi"))
}

/// How `tank/a` and its like are served: protocol and the part of the address that stays.
fn urls(lab: &Lab, dataset: &str) -> Vec<String> {
    let body = ask(lab, "/v1/served");
    let served =
        body["served"].as_array().unwrap().iter().find(|served| served["dataset"] == dataset).cloned();
    let urls = served.map_or_else(Vec::new, |served| served["urls"].as_array().unwrap().clone());
    let url = |url: &Value| {
        let url = url["url"].as_str().unwrap();
        let (scheme, rest) = url.split_once("://").unwrap();
        format!("{scheme}:{}", rest.split_once('/').unwrap().1)
    };
    urls.iter().map(url).collect()
}

/// What is kept of a volume.
fn volume(lab: &Lab, name: &str) -> Value {
    let list: Value = serde_json::from_str(&lab.run("share list -j").stdout).unwrap();
    let volumes = list["pools"]["tank"]["volumes"].as_array().unwrap().clone();
    volumes.into_iter().find(|volume| volume["name"] == name).unwrap_or(Value::Null)
}

/// Why a login was refused.
fn refused(answer: Result<Iscsi, Trouble>) -> String {
    match answer {
        Ok(_) => panic!("it was let in"),
        Err(Trouble::Refused(why)) => why,
        Err(Trouble::Gone(error)) => format!("gone: {error}"),
    }
}
