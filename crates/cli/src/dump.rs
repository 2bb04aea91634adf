//! `millpond dump`.

use std::process::ExitCode;

use crate::{args::Dump, context::Context};

pub(crate) async fn run(args: Dump, _context: &Context) -> anyhow::Result<ExitCode> {
    anyhow::bail!("cannot dump '{}': not built yet", args.target)
}
