//! What every command has at hand: where to look for pools, how to open them, where to print.

use std::{
    fmt,
    fs::{File, TryLockError},
    io::{self, Write as _},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use clap::CommandFactory as _;
use server::{
    client::Client,
    daemon::default_socket,
    host::{Foreign, Places, Settings},
    kernel,
    logs::unreplayed_of,
    ops::pool_of,
    pool::{Pool, import},
    state::{Claimed, State},
};
use tokio::time::{Instant, sleep};

use crate::args::{
    ArcstatProgram, Globals, Millpond, Rewind, SbdadmProgram, StmfadmProgram, ZfsProgram, ZpoolProgram,
};

/// Exit code of a command that failed.
pub(crate) const FAILED: u8 = 1;
/// Exit code of a command line that makes no sense.
pub(crate) const USAGE: u8 = 2;

/// How long a daemon that begins or ends may have its state directory, and no socket.
const SETTLES_WITHIN: Duration = Duration::from_secs(1);
/// How often it is looked.
const LOOK: Duration = Duration::from_millis(50);

/// Who has the pools of this host open.
#[derive(Debug)]
pub(crate) enum Daemon {
    /// It answers.
    Answers(Client),
    /// It has the state directory, and does not answer where it is looked for: the sentence, and what to do.
    Missed(String, &'static str),
    /// None is to be asked, or there is none.
    Absent,
}

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
    /// `millpond`, `zpool` …: the name it was called by.
    program: &'static str,
    globals: Globals,
}

impl Context {
    pub(crate) fn new(program: &'static str, globals: Globals) -> Self {
        Self { program, globals }
    }

    /// The control socket of this user's daemon.
    pub(crate) fn socket(&self) -> PathBuf {
        let chosen = self.globals.socket.clone();
        chosen.unwrap_or_else(|| default_socket(self.state().dir()))
    }

    /// The daemon to ask; none with `-d` before the subcommand, which says where. One that has the state directory has the pools
    /// as well that are imported there, wherever its socket is: what is done beside it, or shown, is not what it has.
    pub(crate) async fn daemon(&self) -> anyhow::Result<Daemon> {
        if !self.globals.search.is_empty() {
            return Ok(Daemon::Absent);
        }
        let (socket, state) = (self.socket(), self.state());
        let deadline = Instant::now() + SETTLES_WITHIN;
        loop {
            if let Some(daemon) = Client::find(&socket).await? {
                return Ok(Daemon::Answers(daemon));
            }
            let Some(claimed) = state.daemon() else { return Ok(Daemon::Absent) };
            if Instant::now() >= deadline {
                let (dir, socket) = (state.dir().display(), socket.display());
                let (sentence, remedy) = match claimed {
                    Claimed::By { process } => {
                        let process = process.map(|pid| format!(" (process {pid})")).unwrap_or_default();
                        (
                            format!(
                                "a daemon{process} has the state directory '{dir}' and does not answer on '{socket}'"
                            ),
                            "say where its control socket is with --socket or MILLPOND_SOCKET; if that is gone, restart \
                             the daemon",
                        )
                    }
                    Claimed::Hidden => (
                        format!(
                            "a daemon may have the state directory '{dir}', which this user may not see, and none answers \
                             on '{socket}'"
                        ),
                        "say where its control socket is with --socket or MILLPOND_SOCKET, or run as a user who may see it",
                    ),
                };
                return Ok(Daemon::Missed(sentence, remedy));
            }
            sleep(LOOK).await;
        }
    }

    /// The daemon that serves the volumes, for commands that are nothing without it. If none answers it is said what cannot be
    /// done, and `why`.
    pub(crate) async fn serving_daemon(&self, what: &str, why: &str) -> anyhow::Result<Option<Client>> {
        let socket = self.socket();
        let found = Client::find(&socket).await?;
        if found.is_none() {
            say!("cannot {what}: no daemon answers on '{}'\n{why}: 'millpond serve'", socket.display());
        }
        Ok(found)
    }

    /// An error in the call of a subcommand (`["zpool", "list"]`), with its usage and nobody else's.
    pub(crate) fn usage(&self, path: &[&str], message: &str) -> Usage {
        let (mut command, path) = match self.program {
            "zpool" => (ZpoolProgram::command(), path.get(1..).unwrap_or_default()),
            "zfs" => (ZfsProgram::command(), path.get(1..).unwrap_or_default()),
            "stmfadm" => (StmfadmProgram::command(), path.get(1..).unwrap_or_default()),
            "sbdadm" => (SbdadmProgram::command(), path.get(1..).unwrap_or_default()),
            "arcstat" => (ArcstatProgram::command(), path.get(1..).unwrap_or_default()),
            _ => (Millpond::command(), path),
        };
        command.build();
        let subcommand = path.iter().try_fold(&mut command, |at, name| at.find_subcommand_mut(name));
        let usage = subcommand.map(|found| found.render_usage().to_string()).unwrap_or_default();
        Usage(format!("{message}\n\n{usage}"))
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
        Ok(self.open(here, name, foreign, rewind, false).await?.0)
    }

    /// Who on this host writes to this pool, if somebody does. A daemon that listens elsewhere is not found, and has its devices
    /// locked, which OpenZFS's kernel module has not.
    async fn writer(&self, pool: &Pool) -> Option<&'static str> {
        if let Ok(Some(daemon)) = Client::find(&self.socket()).await
            && let Ok(shown) = daemon.pool(&pool.guid().to_string()).await
            && shown.property("readonly").is_some_and(|property| property.exact == "off")
        {
            return Some("a daemon");
        }
        if kernel::has_imported(pool.name(), pool.guid()) {
            return Some("OpenZFS");
        }
        is_locked(pool).then_some("another process")
    }

    /// `is_lasting`: nothing that is read can be freed meanwhile. The pool, and if not whether somebody writes to it.
    async fn open(
        &self,
        here: &[PathBuf],
        name: &str,
        foreign: Foreign,
        rewind: &Rewind,
        is_lasting: bool,
    ) -> anyhow::Result<(Arc<Pool>, bool)> {
        let settings = Settings { foreign, rewind: rewind.into(), ..Settings::default() };
        let opened = self.places(here).open(name, &settings).await?;
        let writer = if is_lasting { None } else { self.writer(&opened.pool).await };
        if let Some(writer) = writer {
            say!(
                "warning: {writer} writes to pool '{}': what is read here may be gone by then; a snapshot stays",
                opened.pool.name()
            );
        }
        for note in opened.notes {
            say!("warning: {note}");
        }
        Ok((opened.pool, writer.is_some()))
    }

    /// Opens the pool of a dataset, `tank` for `tank/vm1@monday`; see [`open_pool`](Self::open_pool).
    pub(crate) async fn open_pool_of(
        &self,
        here: &[PathBuf],
        dataset: &str,
        foreign: Foreign,
        rewind: &Rewind,
    ) -> anyhow::Result<Arc<Pool>> {
        Ok(self.open(here, pool_of(dataset), foreign, rewind, dataset.contains('@')).await?.0)
    }

    /// The same for whoever reads what is in the dataset: that it lacks what waits in its intent log is said, which nobody may
    /// ever replay here.
    pub(crate) async fn open_content_of(
        &self,
        here: &[PathBuf],
        dataset: &str,
        foreign: Foreign,
        rewind: &Rewind,
    ) -> anyhow::Result<Arc<Pool>> {
        let (pool, is_written) =
            self.open(here, pool_of(dataset), foreign, rewind, dataset.contains('@')).await?;
        // If it cannot be found, the caller says so.
        if let Ok(dsl) = pool.dsl().await
            && let Ok(found) = dsl.lookup(dataset).await
            && let Some(note) = unreplayed_of(&pool, &found, is_written).await
        {
            say!("warning: {note}");
        }
        Ok(pool)
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

/// Whether somebody has a device of the pool to himself, as whoever writes to it has all of them. Who only reads takes no lock;
/// this one is had for a moment.
fn is_locked(pool: &Pool) -> bool {
    let tree = pool.tree();
    let mut disks = tree.leaves().into_iter().filter_map(|vdev| vdev.leaf.as_ref()?.disk());
    disks.any(|disk| {
        let Ok(file) = File::open(disk.info().path) else { return false };
        matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
    })
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
