//! The vocabulary of the command line's tests: run it with nothing of this machine's around it, start the daemon
//! and be sure that it ends.
#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(clippy::disallowed_methods, reason = "this is the world outside: real processes in real time")]

mod daemon;
pub(crate) mod host;
pub(crate) mod random;
pub(crate) mod wire;

use std::{
    ffi::OsStr,
    fmt::Write as _,
    fs,
    io::Read as _,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use server::{
    host::{Places, Settings},
    ops::{Host, Mode, Operation, Request, run},
    state::State,
};

pub(crate) use self::daemon::Daemon;
use self::daemon::READY_WITHIN;

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

impl From<Output> for Outcome {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).expect("text"),
            stderr: String::from_utf8(output.stderr).expect("text"),
        }
    }
}

/// `millpond` with a state directory, a control socket and a working directory of its own.
pub(crate) struct Lab {
    home: tempfile::TempDir,
    cwd: PathBuf,
    /// Images of its own, for tests that write to them.
    _copy: Option<tempfile::TempDir>,
}

impl Lab {
    /// In `cwd`.
    pub(crate) fn at(cwd: impl Into<PathBuf>) -> Self {
        // Not in the target directory: the path of a socket has 107 bytes at most.
        Self { home: tempfile::tempdir().expect("a temporary directory"), cwd: cwd.into(), _copy: None }
    }

    /// In a private copy of a fixture's images.
    pub(crate) fn copy_of(fixture: &fixtures::Fixture) -> Self {
        let copy = fixture.copy();
        let lab = Self::at(copy.path());
        Self { _copy: Some(copy), ..lab }
    }

    /// In an empty directory.
    pub(crate) fn empty() -> Self {
        let home = tempfile::tempdir().expect("a temporary directory");
        let cwd = home.path().join("here");
        fs::create_dir(&cwd).expect("it is writable");
        Self { home, cwd, _copy: None }
    }

    /// In an empty directory beside the build, for images: temporary directories may be in memory.
    pub(crate) fn scratch() -> Self {
        let copy = tempfile::tempdir_in(fixtures::scratch()).expect("the scratch directory is writable");
        let lab = Self::at(copy.path());
        Self { _copy: Some(copy), ..lab }
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
        self.command(called).args(args).output().expect("the program starts").into()
    }

    /// The same as `nobody`, with a state directory and a socket of his own; none where this user may not become another.
    pub(crate) fn run_as_nobody(&self, line: &str) -> Option<Outcome> {
        let setpriv = fixtures::tool("setpriv")?;
        // He has to get at the program and into the directory.
        let program = self.path("program");
        if !program.exists() {
            fs::copy(env!("CARGO_BIN_EXE_millpond"), &program).unwrap();
        }
        for path in [program.as_path(), self.cwd(), self.home.path()] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let output = Command::new(setpriv)
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&program)
            .args(line.split_whitespace())
            .current_dir(self.cwd())
            .env_remove("ZPOOL_IMPORT_PATH")
            .env("MILLPOND_STATE", self.path("nobody"))
            .env("MILLPOND_SOCKET", self.path("nobody.sock"))
            .output();
        let outcome = Outcome::from(output.expect("setpriv runs"));
        if outcome.stderr.contains("setpriv:") {
            eprintln!("NOT RUN: cannot become another user: {}", outcome.stderr);
            return None;
        }
        Some(outcome)
    }
}

/// SHA-256 of a file, by coreutils.
pub(crate) fn sha256(path: &Path) -> String {
    let output = Command::new("sha256sum").arg(path).output().expect("sha256sum runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text").split_whitespace().next().expect("a sum").to_owned()
}

/// Compares the transcript `name` with what its commands print now in `lab`, after `tame` has replaced what differs
/// from run to run.
#[track_caller]
pub(crate) fn transcript(name: &str, lab: &Lab, commands: &[&str], tame: &dyn Fn(&str) -> String) {
    let mut now = String::new();
    for line in commands {
        writeln!(now, "$ {line}").expect("a String takes any text");
        let mut words = line.split_whitespace();
        let outcome = lab.run_args(words.next().expect("a program"), words);
        now.push_str(&outcome.stdout);
        for line in outcome.stderr.lines() {
            writeln!(now, "! {line}").expect("a String takes any text");
        }
        if outcome.code != Some(0) {
            writeln!(now, "[exit {}]", outcome.code.map_or("by signal".into(), |code| code.to_string()))
                .expect("a String takes any text");
        }
        now.push('\n');
    }
    let now = tame(&now);
    let path =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts").join(format!("{name}.txt"));
    if std::env::var_os("MILLPOND_BLESS").is_some() {
        fs::write(&path, &now).expect("the repository is writable");
        return;
    }
    let golden = fs::read_to_string(&path).unwrap_or_default();
    if golden != now {
        let at = golden.lines().zip(now.lines()).position(|(a, b)| a != b);
        let at = at.unwrap_or_else(|| golden.lines().count().min(now.lines().count()));
        panic!(
            "{} differs from line {} on:\n  then: {:?}\n  now:  {:?}\nall of it now:\n{now}",
            path.display(),
            at + 1,
            golden.lines().nth(at),
            now.lines().nth(at)
        );
    }
}

/// What the daemon answers on its control socket, asked without any client of ours.
pub(crate) fn ask(lab: &Lab, path: &str) -> serde_json::Value {
    use std::io::Write as _;
    let mut stream = std::os::unix::net::UnixStream::connect(lab.socket()).expect("the daemon listens");
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it takes a request");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("it answers");
    serde_json::from_str(text.split_once("\r\n\r\n").expect("an answer").1).expect("of JSON")
}

/// The address under which the control socket says that `dataset` is served.
#[track_caller]
pub(crate) fn served_as(lab: &Lab, dataset: &str, protocol: &str) -> String {
    let body = ask(lab, "/v1/served");
    let served =
        body["served"].as_array().expect("a list").iter().find(|served| served["dataset"] == dataset);
    let served = served.unwrap_or_else(|| panic!("{dataset} is not served: {body:#}"));
    let urls = served["urls"].as_array().expect("a list");
    let url = urls.iter().find(|url| url["protocol"] == protocol);
    url.unwrap_or_else(|| panic!("not over {protocol}: {served:#}"))["url"]
        .as_str()
        .expect("a text")
        .to_owned()
}

/// The port in the address of something that is served over TCP.
pub(crate) fn port(url: &str) -> u16 {
    let port = url.split([':', '/']).nth(4).and_then(|port| port.parse().ok());
    port.unwrap_or_else(|| panic!("there is no port in {url}"))
}

/// The pool `tank` as a command has it open that works without a daemon, for what no command does. It wants to be closed.
pub(crate) async fn tank_opened(lab: &Lab) -> Arc<Host> {
    let places = Places::new(Vec::new(), State::at(lab.path("state")));
    let host = Arc::new(Host::new(places, Mode::Command, Settings::default()));
    let operation = Operation::PoolSync { pool: "tank".to_owned() };
    run(&host, Request { operation, command: None, user: 0 }).await.expect("the pool opens");
    host
}

/// Waits for something that another process does.
#[track_caller]
pub(crate) fn wait_until(mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + READY_WITHIN;
    while !is_so() {
        assert!(Instant::now() < deadline, "it never happened");
        thread::sleep(Duration::from_millis(20));
    }
}
