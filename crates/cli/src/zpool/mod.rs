//! `zpool`.

use std::process::ExitCode;

use crate::{args::Zpool, context::Context};

pub(crate) async fn run(command: Zpool, _context: &Context) -> anyhow::Result<ExitCode> {
    anyhow::bail!("cannot {command:?}: not built yet")
}
