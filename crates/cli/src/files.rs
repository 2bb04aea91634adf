//! `millpond ls`, `cat` and `get`.

use std::process::ExitCode;

use crate::{
    args::{Cat, Get, Ls},
    context::Context,
};

pub(crate) async fn ls(args: Ls, _context: &Context) -> anyhow::Result<ExitCode> {
    anyhow::bail!("cannot list '{}': not built yet", args.dataset)
}

pub(crate) async fn cat(args: Cat, _context: &Context) -> anyhow::Result<ExitCode> {
    anyhow::bail!("cannot read '{}': not built yet", args.dataset)
}

pub(crate) async fn get(args: Get, _context: &Context) -> anyhow::Result<ExitCode> {
    anyhow::bail!("cannot read '{}': not built yet", args.dataset)
}
