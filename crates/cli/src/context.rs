//! What every command has at hand: where to look for pools, how to open them, where to print.

use std::{
    fmt,
    io::{self, Write as _},
    path::PathBuf,
    sync::Arc,
};

use server::{
    host::{Foreign, Places, Settings},
    pool::{Pool, import},
    state::State,
};

use crate::args::{Globals, Rewind};

/// Exit code of a command that failed.
pub(crate) const FAILED: u8 = 1;
/// Exit code of a command line that makes no sense.
pub(crate) const USAGE: u8 = 2;

/// An error in how a command was called: ends with exit code 2.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// What the options before the subcommand say.
#[derive(Debug)]
pub(crate) struct Context {
    globals: Globals,
}

impl Context {
    pub(crate) fn new(globals: Globals) -> Self {
        Self { globals }
    }

    /// Where pools are looked for. `here` are the places named after the subcommand.
    pub(crate) fn places(&self, here: &[PathBuf]) -> Places {
        let named = self.globals.search.iter().chain(here).cloned().collect();
        Places::new(named, self.state())
    }

    /// The cache file of imported pools.
    pub(crate) fn state(&self) -> State {
        State::new(self.globals.state.as_deref())
    }

    /// Opens a pool by name or guid, read-only. A command with `-f` refuses a pool that another host seems to
    /// have unless it is given; one without says so on standard error and goes on.
    pub(crate) async fn open_pool(
        &self,
        here: &[PathBuf],
        name: &str,
        foreign: Foreign,
        rewind: &Rewind,
    ) -> anyhow::Result<Arc<Pool>> {
        let settings = Settings { foreign, rewind: rewind.into(), ..Settings::default() };
        let opened = self.places(here).open(name, &settings).await?;
        if let Some(warning) = opened.warning {
            eprintln!("warning: {warning}");
        }
        Ok(opened.pool)
    }

    /// Opens the pool of a dataset, `tank` for `tank/vm1@monday`; see [`open_pool`](Self::open_pool).
    pub(crate) async fn open_pool_of(
        &self,
        here: &[PathBuf],
        dataset: &str,
        foreign: Foreign,
        rewind: &Rewind,
    ) -> anyhow::Result<Arc<Pool>> {
        let pool = dataset.split(['/', '@', '#']).next().unwrap_or_default();
        self.open_pool(here, pool, foreign, rewind).await
    }
}

impl From<&Rewind> for import::Rewind {
    fn from(rewind: &Rewind) -> Self {
        match (rewind.txg, rewind.recover) {
            (Some(txg), _) => Self::To(txg),
            (None, true) => Self::Recover,
            (None, false) => Self::Latest,
        }
    }
}

/// What `-f` means where a command has it.
pub(crate) fn foreign(force: bool) -> Foreign {
    if force { Foreign::Open } else { Foreign::Refuse }
}

/// Prints to standard output; a closed pipe is an error that ends the command silently.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
