//! The daemon as tests have it: started, heard, and ended, however the test ends.
//!
//! What it prints is read up to `ready`. What it logs can be asked for at any time, so that a test waits for what the daemon
//! says and not for a time in which it will have done it.

use std::{
    ffi::OsStr,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, ChildStderr, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use super::{Lab, port};

/// Longest a daemon may take to open its pools on a machine that is busy with other tests.
pub(super) const READY_WITHIN: Duration = Duration::from_secs(60);

/// A running daemon; killed when the test ends, however it ends.
pub(crate) struct Daemon {
    child: Child,
    /// What it printed up to `ready`.
    pub(crate) lines: Vec<String>,
    log: Option<Log>,
    ended: bool,
}

impl Daemon {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Addresses of one protocol: `nbd` or `iscsi`.
    pub(crate) fn urls(&self, protocol: &str) -> Vec<&str> {
        let prefix = format!("{protocol}://");
        self.lines.iter().map(String::as_str).filter(|line| line.starts_with(&prefix)).collect()
    }

    /// The port of the first of them.
    pub(crate) fn port(&self, protocol: &str) -> u16 {
        port(self.urls(protocol)[0])
    }

    /// Sends a signal by name.
    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill").arg(format!("-{name}")).arg(self.pid().to_string()).status();
        assert!(status.expect("kill runs").success());
    }

    /// SIGTERM, and how it ended.
    #[track_caller]
    pub(crate) fn stop(mut self) -> ExitStatus {
        self.signal("TERM");
        self.wait()
    }

    #[track_caller]
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            if let Some(status) = self.child.try_wait().expect("it is our child") {
                self.ended = true;
                return status;
            }
            if Instant::now() > deadline {
                self.kill();
                panic!("it did not stop");
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// How often these words are in what it has written to standard error so far.
    pub(crate) fn said(&self, words: &str) -> usize {
        self.log.as_ref().map_or(0, |log| log.text().matches(words).count())
    }

    /// What it wrote to standard error; only after it has ended.
    pub(crate) fn stderr(&mut self) -> String {
        self.log.take().map(Log::end).unwrap_or_default()
    }

    fn kill(&mut self) {
        if !self.ended {
            // It may have ended by itself: then there is nothing to kill.
            let _gone = self.child.kill();
            let _reaped = self.child.wait();
            self.ended = true;
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A daemon that was begun, and need not be ready yet.
pub(crate) struct Starting {
    daemon: Daemon,
    hear: mpsc::Receiver<String>,
}

impl Starting {
    /// As [`Daemon::said`].
    pub(crate) fn said(&self, words: &str) -> usize {
        self.daemon.said(words)
    }

    /// Waits for `ready`.
    #[track_caller]
    pub(crate) fn ready(self) -> Daemon {
        let Self { mut daemon, hear } = self;
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            match hear.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    let ready = line == "ready" || line.contains("\"event\":\"ready\"");
                    daemon.lines.push(line);
                    if ready {
                        return daemon;
                    }
                }
                Err(_) => {
                    daemon.kill();
                    let stderr = daemon.stderr();
                    panic!("never ready; it said {:#?} and {stderr}", daemon.lines);
                }
            }
        }
    }
}

/// Standard error, as far as it has come.
struct Log {
    text: Arc<Mutex<Vec<u8>>>,
    reader: thread::JoinHandle<()>,
}

impl Log {
    fn begin(stderr: ChildStderr) -> Self {
        let text = Arc::<Mutex<Vec<u8>>>::default();
        let said = Arc::clone(&text);
        let reader = thread::spawn(move || {
            let (mut stderr, mut line) = (BufReader::new(stderr), Vec::new());
            // A daemon that is killed closes it: the end of the text, not an error.
            while matches!(stderr.read_until(b'\n', &mut line), Ok(1..)) {
                said.lock().unwrap_or_else(PoisonError::into_inner).append(&mut line);
            }
        });
        Self { text, reader }
    }

    fn text(&self) -> String {
        let text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&text).into_owned()
    }

    /// All of it.
    fn end(self) -> String {
        let Self { text, reader } = self;
        reader.join().expect("it only reads");
        let text = text.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&text).into_owned()
    }
}

impl Lab {
    /// Starts `millpond serve` with these words and waits for `ready`.
    #[track_caller]
    pub(crate) fn serve(&self, line: &str) -> Daemon {
        self.serve_by(self.command("millpond").args(line.split_whitespace()))
    }

    /// The same by this command.
    #[track_caller]
    pub(crate) fn serve_by(&self, command: &mut Command) -> Daemon {
        self.serve_logging_to(Stdio::piped(), command)
    }

    /// The same in a cgroup, by its file of processes.
    #[track_caller]
    pub(crate) fn serve_in(&self, processes: &Path, line: &str) -> Daemon {
        let wrapper = ["sh", "-c", "echo $$ > \"$0\" && exec \"$@\""].map(OsStr::new);
        self.serve_through(&[&wrapper[..], &[processes.as_os_str()]].concat(), line)
    }

    /// The same through a program that is given ours and its words behind its own.
    #[track_caller]
    pub(crate) fn serve_through(&self, wrapper: &[&OsStr], line: &str) -> Daemon {
        self.serve_by(&mut self.through(wrapper, line))
    }

    /// The command for that.
    pub(crate) fn through(&self, wrapper: &[&OsStr], line: &str) -> Command {
        let inner = self.command("millpond");
        let mut command = Command::new(wrapper.first().expect("a program"));
        command
            .args(wrapper.get(1..).unwrap_or_default())
            .arg(inner.get_program())
            .args(line.split_whitespace())
            .current_dir(&self.cwd)
            .stdin(Stdio::null());
        for (name, value) in inner.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }

    /// By this command, with its standard error there.
    #[track_caller]
    pub(crate) fn serve_logging_to(&self, log: Stdio, command: &mut Command) -> Daemon {
        begin(log, command).ready()
    }

    /// Starts `millpond serve` with these words, and what it prints goes there: nobody waits for `ready`.
    pub(crate) fn serve_printing_to(&self, out: Stdio, line: &str) -> Daemon {
        let mut command = self.command("millpond");
        command.args(line.split_whitespace()).stdout(out).stderr(Stdio::null());
        let child = command.spawn().expect("the program starts");
        Daemon { child, lines: Vec::new(), log: None, ended: false }
    }

    /// Starts `millpond serve` with these words, and has it tell more than by itself: what `MILLPOND_LOG` says of one part.
    pub(crate) fn begin_telling(&self, part: &str, line: &str) -> Starting {
        let mut command = self.command("millpond");
        command.args(line.split_whitespace()).env("MILLPOND_LOG", format!("warn,{part}"));
        begin(Stdio::piped(), &mut command)
    }
}

fn begin(log: Stdio, command: &mut Command) -> Starting {
    let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().expect("the program starts");
    let stdout = child.stdout.take().expect("piped");
    let log = child.stderr.take().map(Log::begin);
    let (said, hear) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines() {
            if line.map_err(drop).and_then(|line| said.send(line).map_err(drop)).is_err() {
                break;
            }
        }
    });
    Starting { daemon: Daemon { child, lines: Vec::new(), log, ended: false }, hear }
}
