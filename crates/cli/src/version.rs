//! `millpond version`, `zpool version`, `zfs version`, and `--version` of each: scripts ask by the one program what they may
//! expect of the other, in either way.

use std::process::ExitCode;

use serde_json::json;

use crate::{args::Version, context::print, json};

/// The line, whatever the program is called. No release of OpenZFS is named: none has just the commands that there are here, and
/// who goes by such a number would rely on the others.
pub(crate) const LINE: &str = concat!("millpond-", env!("CARGO_PKG_VERSION"), "\n");

pub(crate) fn run(args: &Version, program: &str) -> anyhow::Result<ExitCode> {
    print(&match args.json {
        // No part of it is in the kernel.
        true => json::sections(
            &format!("{program} version"),
            vec![("zfs_version", json!({ "userland": LINE.trim_end(), "kernel": "-" }))],
        ),
        false => LINE.to_owned(),
    })?;
    Ok(ExitCode::SUCCESS)
}
