//! `millpond verify`.

use std::process::ExitCode;

use crate::{args::Verify, context::Context};

pub(crate) async fn run(args: Verify, _context: &Context) -> anyhow::Result<ExitCode> {
    anyhow::bail!("cannot verify '{}': not built yet", args.pool)
}
