//! `millpond image`.

use std::process::ExitCode;

use crate::{args::Image, context::Context};

pub(crate) async fn run(args: Image, _context: &Context) -> anyhow::Result<ExitCode> {
    anyhow::bail!("cannot read '{}': not built yet", args.volume)
}
