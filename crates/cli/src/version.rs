//! `millpond version`, `zpool version`, `zfs version`: scripts ask by the one program what they may expect of the other.

use std::process::ExitCode;

use serde_json::json;

use crate::{args::Version, context::print, json};

pub(crate) fn run(args: &Version, program: &str) -> anyhow::Result<ExitCode> {
    let version = concat!("millpond-", env!("CARGO_PKG_VERSION"));
    print(&match args.json {
        // No part of it is in the kernel.
        true => json::sections(
            &format!("{program} version"),
            vec![("zfs_version", json!({ "userland": version, "kernel": "-" }))],
        ),
        false => format!("{version}\n"),
    })?;
    Ok(ExitCode::SUCCESS)
}
