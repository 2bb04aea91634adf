//! `millpond serve`.

use std::process::ExitCode;

use crate::{args::Serve, context::Context};

pub(crate) async fn run(args: Serve, _context: &Context) -> anyhow::Result<ExitCode> {
    anyhow::bail!("cannot serve {:?}: not built yet", args.pools)
}
