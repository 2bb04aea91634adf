//! Runs operations: on a daemon that has the pool, else on pools opened here for as long as the command takes.
//!
//! A pool that is to be created or imported goes to the daemon if one answers, so that it is served at once. Nothing is done
//! beside one that has the state directory and does not answer. With `-d` before the subcommand no daemon is asked: who says
//! where is believed.

use std::{
    ffi::OsString,
    io::{self, ErrorKind},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use server::{
    api::Pool,
    client::{Client, ClientError},
    host::Settings,
    hostid,
    ops::{self, Answer, Failure, Host, Mode, Operation, Request},
    shares::without_secret,
    view,
};
use tokio::time::Instant;

use crate::{
    args::anywhere::{Told, tells_where},
    context::{Context, Daemon, FAILED, USAGE},
};

/// How long a daemon that has come may take to open the pool that was closed for it: it tries every five seconds.
const TAKEN_WITHIN: Duration = Duration::from_secs(30);
/// How often it is asked.
const LOOK: Duration = Duration::from_millis(200);

/// A command at work.
pub(crate) struct Act {
    daemon: Option<Client>,
    /// Where one may come while the command is at work; nobody is waited for with `-d`.
    socket: Option<PathBuf>,
    host: Arc<Host>,
    /// What was typed, until it has been recorded once.
    command: Option<String>,
    /// The first words of that: `zfs create`.
    called: String,
    failures: Vec<Failure>,
}

impl Act {
    pub(crate) async fn new(context: &Context) -> anyhow::Result<Self> {
        let places = context.places(&[]);
        let socket = places.named().is_empty().then(|| context.socket());
        let daemon = match context.daemon().await? {
            Daemon::Answers(daemon) => Some(daemon),
            // Whatever is changed beside it, it would not know.
            Daemon::Missed(sentence, remedy) => anyhow::bail!("{sentence}\n{remedy}"),
            Daemon::Absent => None,
        };
        let host = Arc::new(Host::new(places, Mode::Command, Settings::default()));
        let command = cut(typed(std::env::args_os()));
        let called = command.split(' ').take(2).collect::<Vec<_>>().join(" ");
        Ok(Self { daemon, socket, host, command: Some(command), called, failures: Vec::new() })
    }

    /// The daemon that is asked, if any.
    pub(crate) fn daemon(&self) -> Option<&Client> {
        self.daemon.as_ref()
    }

    /// How a pool is now: as the daemon says, or as it is open here. None if nobody has it open.
    pub(crate) async fn look(&self, pool: &str) -> Result<Option<Pool>, Failure> {
        if let Some(held) = self.host.find(pool) {
            return Ok(Some(view::held(&held).await));
        }
        let Some(daemon) = &self.daemon else { return Ok(None) };
        match daemon.pool(pool).await {
            Ok(pool) => Ok(Some(pool)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(Failure::new(error.to_string())),
        }
    }

    /// Whether what goes on in this pool goes on without this command.
    pub(crate) async fn daemon_has(&self, pool: &str) -> bool {
        match &self.daemon {
            Some(daemon) => daemon.pool(pool).await.is_ok(),
            None => false,
        }
    }

    /// Whether a daemon goes on with what was begun in this pool, which is open here. One that has come meanwhile cannot open
    /// its pools as long as a command has them: they are closed for it. One that does not want this pool leaves it to the
    /// command.
    pub(crate) async fn give_way(&mut self, pool: &str) -> bool {
        let Some(socket) = self.socket.as_deref().filter(|_| self.daemon.is_none()) else { return false };
        // Nobody has to give way to whom this user may not even ask.
        let Ok(Some(daemon)) = Client::find(socket).await else { return false };
        let closed = self.host.close().await;
        self.failures.extend(closed.err().unwrap_or_default().into_iter().map(Failure::new));
        let is_taken = takes(&daemon, pool).await;
        if is_taken.is_some() {
            self.daemon = Some(daemon);
        }
        if is_taken != Some(true) {
            // Nobody else goes on with it.
            self.attempt(Operation::PoolSync { pool: pool.to_owned() }).await;
        }
        is_taken == Some(true)
    }

    /// Does it. What the user should know is said on standard error.
    pub(crate) async fn run(&mut self, operation: Operation) -> Result<Answer, Failure> {
        let request = Request { operation, command: self.command.clone(), user: hostid::user() };
        let answer = self.ask(request).await?;
        self.command = None;
        Ok(answer)
    }

    /// Does it; a refusal is remembered for [`finish`](Self::finish).
    pub(crate) async fn attempt(&mut self, operation: Operation) -> Option<Answer> {
        match self.run(operation).await {
            Ok(answer) => {
                answer.warnings.iter().for_each(|warning| say!("warning: {warning}"));
                Some(answer)
            }
            Err(failure) => {
                self.failures.push(failure);
                None
            }
        }
    }

    async fn ask(&self, request: Request) -> Result<Answer, Failure> {
        if let Some(daemon) = &self.daemon {
            // The daemon's refusals say what cannot be done; whoever gets none must be told what it was.
            let what = || format!("{} '{}'", self.called, request.operation.subject());
            let unanswered = |error: ClientError| Failure::because(&what(), error);
            let has = match request.operation.brings_a_pool() {
                true => true,
                false => match daemon.pool(request.operation.pool()).await {
                    Ok(_) => true,
                    Err(error) if error.is_not_found() => false,
                    Err(error) => return Err(unanswered(error)),
                },
            };
            if has {
                return daemon.operate(&request).await.map_err(|error| match error {
                    error if error.is_of_another_version() => Failure::because(
                        &what(),
                        format_args!(
                            "nothing was done: the daemon that runs is of another version of this program, and does not know \
                             all of what is asked for; restart it\n{error}"
                        ),
                    ),
                    ClientError::Refused { status, error, code } => {
                        Failure { message: error, code: code.unwrap_or(FAILED), not_found: status == 404 }
                    }
                    other => unanswered(other),
                });
            }
        }
        ops::run(&self.host, request).await
    }

    /// Closes the pools that were opened, and says what went wrong.
    pub(crate) async fn finish(self) -> ExitCode {
        let closed = self.host.close().await;
        let mut code = 0;
        for failure in &self.failures {
            say!("{failure}");
            code = code.max(failure.code);
        }
        for failure in closed.err().unwrap_or_default() {
            say!("{failure}");
            code = code.max(FAILED);
        }
        ExitCode::from(code)
    }

    /// The same after something was printed: whatever came of that, pools are closed and refusals are said. That nobody reads
    /// any more is no failure, and hides none.
    pub(crate) async fn finish_printed(self, printed: io::Result<()>) -> anyhow::Result<ExitCode> {
        let code = self.finish().await;
        match printed {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
            _ => Ok(code),
        }
    }

    /// Remembers a refusal.
    pub(crate) fn refuse(&mut self, failure: Failure) {
        self.failures.push(failure);
    }
}

/// Whether a daemon has this pool, or at least wants it; none if it is gone before it says so.
async fn takes(daemon: &Client, pool: &str) -> Option<bool> {
    let deadline = Instant::now() + TAKEN_WITHIN;
    loop {
        let pools = daemon.pools().await.ok()?;
        match pools.iter().find(|known| known.name == pool || known.guid == pool) {
            Some(known) if !known.is_open() && Instant::now() < deadline => {}
            known => return Some(known.is_some()),
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// `property=value` words taken apart.
pub(crate) fn assignments(words: &[String]) -> Result<Vec<ops::Assignment>, Failure> {
    let apart = |word: &String| match word.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err(Failure {
            code: USAGE,
            ..Failure::new(format!("missing '=' for property=value argument '{word}'"))
        }),
    };
    words.iter().map(apart).collect()
}

/// New devices as typed, what has a slash made absolute: a daemon has another working directory.
pub(crate) fn devices(words: Vec<String>) -> Vec<String> {
    let absolute = |word: String| match absolute(&word) {
        Some(path) => path.to_string_lossy().into_owned(),
        None => word,
    };
    words.into_iter().map(absolute).collect()
}

/// A device of a pool as typed: absolute if it is a path from here, else as it is. `zpool status` shows what is below
/// `/dev` without that, with slashes in it or not (`shm/c1`, `mapper/vg-c1`).
pub(crate) fn device_of_pool(word: String) -> String {
    match absolute(&word).filter(|path| path.exists()) {
        Some(path) => path.to_string_lossy().into_owned(),
        None => word,
    }
}

/// A relative path, absolute.
fn absolute(word: &str) -> Option<PathBuf> {
    let is_relative = word.contains('/') && !word.starts_with('/');
    is_relative.then(|| std::path::absolute(word).ok()).flatten()
}

/// Search places, absolute.
pub(crate) fn search(paths: &[PathBuf]) -> Vec<PathBuf> {
    paths.iter().map(|path| std::path::absolute(path).unwrap_or_else(|_| path.clone())).collect()
}

/// Longest command that is recorded, in bytes: one of thousands of names would push out most of a small pool's history, or
/// not be taken at all.
const COMMAND_MAX: usize = 8 << 10;

/// The beginning of a command that is too long.
fn cut(mut command: String) -> String {
    if command.len() > COMMAND_MAX {
        let end = (0..=COMMAND_MAX).rev().find(|at| command.is_char_boundary(*at)).unwrap_or(0);
        command.truncate(end);
        command.push('…');
    }
    command
}

/// Programs whose name is part of what was typed.
const PROGRAMS: [&str; 4] = ["zpool", "zfs", "stmfadm", "sbdadm"];

/// What a pool's history tells of a call: `zfs create -V 10G tank/vm1`, whatever the program was called by, and
/// without the options that say where pools and the daemon are, and without secrets.
fn typed(arguments: impl Iterator<Item = OsString>) -> String {
    let mut arguments = arguments.map(|word| word.to_string_lossy().into_owned());
    let called = arguments.next().unwrap_or_default();
    let called = called.rsplit('/').next().unwrap_or_default().to_owned();
    let mut words = Vec::new();
    if PROGRAMS.contains(&called.as_str()) {
        words.push(called);
    }
    while let Some(word) = arguments.next() {
        if word == "-d" || tells_where(&word) == Some(Told::Next) {
            arguments.next();
        } else if !(word.starts_with("-d") || tells_where(&word).is_some()) {
            words.push(word);
            if words.len() >= 2 || !PROGRAMS.contains(&words[0].as_str()) {
                break;
            }
        }
    }
    // Behind the subcommand -d has other meanings.
    while let Some(word) = arguments.next() {
        match tells_where(&word) {
            Some(Told::Next) => drop(arguments.next()),
            Some(Told::Within) => {}
            None => words.push(word),
        }
    }
    let mut words: Vec<String> = words.into_iter().map(without_secret).collect();
    // Those of OpenZFS's programs stand for themselves, also behind `millpond`.
    if words.first().is_some_and(|word| !PROGRAMS.contains(&word.as_str())) {
        words.insert(0, "millpond".to_owned());
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_history_tells_the_command_and_not_where_things_are() {
        let typed = |line: &str| typed(line.split(' ').map(OsString::from));
        assert_eq!(typed("/usr/bin/millpond -d /img zfs create -V 1G tank/v"), "zfs create -V 1G tank/v");
        assert_eq!(typed("zpool --state=/x -d/img create -d tank /dev/a"), "zpool create -d tank /dev/a");
        assert_eq!(typed("millpond --socket /s zpool set comment=a tank"), "zpool set comment=a tank");
        assert_eq!(typed("/sbin/zfs snapshot tank@a"), "zfs snapshot tank@a");
        assert_eq!(
            typed("mp --state /x share lun add iqn.a:b tank/v"),
            "millpond share lun add iqn.a:b tank/v"
        );
        assert_eq!(typed("zpool destroy --socket /s -f tank --state=/x"), "zpool destroy -f tank");
    }

    /// Everybody who may see the history saw them, for as long as the pool lived.
    #[test]
    fn the_history_tells_no_secret() {
        let typed = |words: &[&str]| typed(words.iter().map(OsString::from));
        let chap = "org.millpond:chap:iqn.a:b";
        let set = format!(r#"{chap}=[{{"user":"h","secret":"twelve = bytes"}}]"#);
        assert_eq!(typed(&["zpool", "set", &set, "tank"]), format!("zpool set {chap}=(hidden) tank"));
        let told = typed(&["millpond", "zpool", "import", "-o", &set, "tank"]);
        assert_eq!(told, format!("zpool import -o {chap}=(hidden) tank"));
        let told = typed(&["zpool", "create", &format!("-o{set}"), "tank", "/dev/a"]);
        assert_eq!(told, format!("zpool create -o{chap}=(hidden) tank /dev/a"));
        // That one is removed may be told.
        let told = typed(&["zpool", "set", "org.millpond:chap=", "tank"]);
        assert_eq!(told, "zpool set org.millpond:chap= tank");
    }

    /// A snapshot of thousands of volumes was in no history: its record was too long.
    #[test]
    fn of_a_command_that_is_too_long_the_history_tells_the_beginning() {
        let short = "zfs snapshot tank/v@a".to_owned();
        assert_eq!(cut(short.clone()), short);
        let long = format!("{short}{}", " tank/ä@a".repeat(20_000));
        let recorded = cut(long.clone());
        let beginning = recorded.strip_suffix('…').unwrap();
        assert!(long.starts_with(beginning) && (COMMAND_MAX - 1..=COMMAND_MAX).contains(&beginning.len()));
    }

    #[test]
    fn relative_paths_of_devices_become_absolute_and_words_stay() {
        let words = ["mirror", "./a", "/b", "sdc"].map(str::to_owned).to_vec();
        let absolute = devices(words);
        assert!(absolute[1].starts_with('/') && absolute[1].ends_with("/a"), "{absolute:?}");
        assert_eq!((&*absolute[0], &*absolute[2], &*absolute[3]), ("mirror", "/b", "sdc"));
    }

    #[test]
    fn a_name_as_zpool_status_shows_it_stays_and_a_path_from_here_does_not() {
        assert_eq!(device_of_pool("shm/lab/c1".to_owned()), "shm/lab/c1");
        let path = device_of_pool("src/act.rs".to_owned());
        assert!(path.starts_with('/') && path.ends_with("/src/act.rs"), "{path}");
    }
}
