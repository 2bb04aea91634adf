//! `zfs`.

use std::process::ExitCode;

use crate::{args::Zfs, context::Context};

pub(crate) async fn run(command: Zfs, _context: &Context) -> anyhow::Result<ExitCode> {
    anyhow::bail!("cannot {command:?}: not built yet")
}
