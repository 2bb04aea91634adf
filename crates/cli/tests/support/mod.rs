//! The vocabulary of the command line's tests: run it with nothing of this machine's around it, start the daemon
//! and be sure that it ends.
#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::disallowed_methods, reason = "this is the world outside: real processes in real time")]

use std::{
    ffi::OsStr,
    io::{BufRead as _, BufReader, Read as _},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// Longest a daemon may take to open its pools on a machine that is busy with other tests.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// What a command did.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Outcome {
    /// Standard output of a command that must succeed without a word on standard error.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!((self.code, self.stderr.as_str()), (Some(0), ""), "stdout: {}", self.stdout);
        self.stdout
    }

    /// Standard error of a command that must fail with this exit code and say something.
    #[track_caller]
    pub(crate) fn fails(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        assert!(!self.stderr.is_empty(), "it failed without a word");
        self.stderr
    }
}

/// `millpond` with a state directory, a control socket and a working directory of its own.
pub(crate) struct Lab {
    home: tempfile::TempDir,
    cwd: PathBuf,
}

impl Lab {
    /// In `cwd`.
    pub(crate) fn at(cwd: impl Into<PathBuf>) -> Self {
        // Not in the target directory: the path of a socket has 107 bytes at most.
        Self { home: tempfile::tempdir().expect("a temporary directory"), cwd: cwd.into() }
    }

    /// In an empty directory.
    pub(crate) fn empty() -> Self {
        let home = tempfile::tempdir().expect("a temporary directory");
        let cwd = home.path().join("here");
        std::fs::create_dir(&cwd).expect("it is writable");
        Self { home, cwd }
    }

    pub(crate) fn cwd(&self) -> &Path {
        &self.cwd
    }

    /// A place for files of the test.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path("control.sock")
    }

    /// The program under the name `called`, nothing of the environment's settings left.
    pub(crate) fn command(&self, called: &str) -> Command {
        let program = match called {
            "millpond" => PathBuf::from(env!("CARGO_BIN_EXE_millpond")),
            name => {
                let link = self.path(name);
                if !link.exists() {
                    symlink(env!("CARGO_BIN_EXE_millpond"), &link).expect("the directory is ours");
                }
                link
            }
        };
        let mut command = Command::new(program);
        command
            .current_dir(&self.cwd)
            .env_remove("ZPOOL_IMPORT_PATH")
            .env_remove("MILLPOND_LOG")
            .env("MILLPOND_STATE", self.path("state"))
            .env("MILLPOND_SOCKET", self.socket())
            .env("TZ", "UTC")
            .env("COLUMNS", "100")
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null());
        command
    }

    /// Runs `millpond` with the words of `line`.
    pub(crate) fn run(&self, line: &str) -> Outcome {
        self.run_args("millpond", line.split_whitespace())
    }

    pub(crate) fn run_args<S: AsRef<OsStr>>(
        &self,
        called: &str,
        args: impl IntoIterator<Item = S>,
    ) -> Outcome {
        let output = self.command(called).args(args).output().expect("the program starts");
        Outcome {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).expect("text"),
            stderr: String::from_utf8(output.stderr).expect("text"),
        }
    }

    /// Starts `millpond serve` with these words and waits for `ready`.
    #[track_caller]
    pub(crate) fn serve(&self, line: &str) -> Daemon {
        let mut child = self
            .command("millpond")
            .args(line.split_whitespace())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let stdout = child.stdout.take().expect("piped");
        let mut stderr = child.stderr.take().expect("piped");
        let (said, hear) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                if line.map_err(drop).and_then(|line| said.send(line).map_err(drop)).is_err() {
                    break;
                }
            }
        });
        let stderr = thread::spawn(move || {
            let mut text = String::new();
            // A daemon that is killed closes it: the end of the text, not an error.
            let _ended = stderr.read_to_string(&mut text);
            text
        });
        let mut daemon = Daemon { child, lines: Vec::new(), stderr: Some(stderr), ended: false };
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

/// A running daemon; killed when the test ends, however it ends.
pub(crate) struct Daemon {
    child: Child,
    /// What it printed up to `ready`.
    pub(crate) lines: Vec<String>,
    stderr: Option<thread::JoinHandle<String>>,
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

    /// What it wrote to standard error; only after it has ended.
    pub(crate) fn stderr(&mut self) -> String {
        self.stderr.take().map(|handle| handle.join().expect("it only reads")).unwrap_or_default()
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

/// SHA-256 of a file, by coreutils.
pub(crate) fn sha256(path: &Path) -> String {
    let output = Command::new("sha256sum").arg(path).output().expect("sha256sum runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text").split_whitespace().next().expect("a sum").to_owned()
}
