//! A server on loopback (or a Unix socket) with a volume in memory, the stock clients, and a raw one.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "each test file uses its part, a panic is a failed test, and a skipped one says so"
)]

use std::{
    net::Ipv4Addr,
    path::Path,
    process::{Command, Output},
    sync::Arc,
    time::Duration,
};

use block::BlockVolume;
use nbd::{Listener, Registry, ServeLimits, Server};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream, UnixListener},
    sync::watch,
    task::JoinHandle,
    time::{sleep, timeout},
};

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const WRITE_ZEROES: u16 = 6;

/// A running server.
pub struct Served {
    pub server: Server,
    pub registry: Arc<Registry>,
    pub port: u16,
    stop: watch::Sender<bool>,
    task: JoinHandle<std::io::Result<()>>,
}

impl Served {
    pub async fn tcp(limits: ServeLimits) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        Self::start(Listener::Tcp(listener), port, limits)
    }

    pub async fn unix(path: &Path) -> Self {
        Self::start(Listener::Unix(UnixListener::bind(path).unwrap()), 0, ServeLimits::default())
    }

    pub async fn tls(tls: nbd::Tls) -> Self {
        Self::tls_within(ServeLimits::default(), tls).await
    }

    pub async fn tls_within(limits: ServeLimits, tls: nbd::Tls) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        Self::start_with(Listener::Tcp(listener), port, limits, Some(tls))
    }

    fn start(listener: Listener, port: u16, limits: ServeLimits) -> Self {
        Self::start_with(listener, port, limits, None)
    }

    fn start_with(listener: Listener, port: u16, limits: ServeLimits, tls: Option<nbd::Tls>) -> Self {
        let registry = Arc::new(Registry::new());
        let server = Server::with_tls(registry.clone(), limits, tls);
        let (stop, stopping) = watch::channel(false);
        let serving = server.clone();
        let task = tokio::spawn(async move { serving.serve(listener, stopping).await });
        Self { server, registry, port, stop, task }
    }

    pub async fn of(name: &str, volume: Arc<dyn BlockVolume>) -> Self {
        let served = Self::tcp(ServeLimits::default()).await;
        served.registry.insert(name, "", volume).unwrap();
        served
    }

    pub fn url(&self, name: &str) -> String {
        format!("nbd://127.0.0.1:{}/{name}", self.port)
    }

    /// Waits until only so many connections are left.
    pub async fn only(&self, connections: usize) {
        until("the connection ends", || self.server.connections().len() <= connections).await;
    }

    pub fn begin_stop(&self) {
        self.stop.send_replace(true);
    }

    /// Stops and waits for all connections.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        timeout(Duration::from_secs(20), self.task).await.expect("a stop takes no 20 s").unwrap().unwrap();
    }
}

/// Looks until it is so.
pub async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let looking = async {
        while !is_so() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_secs(10), looking).await.unwrap_or_else(|_| panic!("in vain: {what}"));
}

/// Runs a stock client. A missing one fails the test, unless `MILLPOND_ALLOW_MISSING_TOOLS` is set.
pub async fn tool(name: &str, args: &[&str]) -> Option<Output> {
    let mut command = Command::new(name);
    command.args(args);
    let done = tokio::task::spawn_blocking(move || command.output()).await.unwrap();
    match done {
        Ok(output) => Some(output),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let how = format!("{name} is not installed (Debian: apt install libnbd-bin qemu-utils fio)");
            assert!(std::env::var_os("MILLPOND_ALLOW_MISSING_TOOLS").is_some(), "{how}");
            eprintln!("skipped: {how}");
            None
        }
        Err(error) => panic!("{name}: {error}"),
    }
}

/// The same, and it must succeed; what it printed.
pub async fn run(name: &str, args: &[&str]) -> Option<String> {
    let output = tool(name, args).await?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name} {args:?}: {}\n{out}\n{err}", output.status);
    Some(format!("{out}{err}"))
}

/// Connects from 127.0.0.`host` and says nothing.
pub async fn connect_from(host: u8, served: &Served) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::new(127, 0, 0, host), 0).into()).unwrap();
    socket.connect((Ipv4Addr::LOCALHOST, served.port).into()).await.unwrap()
}

/// A client that says exactly what it is told.
pub struct Raw(pub TcpStream);

impl Raw {
    /// Connects and chooses an export, with simple replies.
    pub async fn go(served: &Served, export: &str) -> Self {
        Self::go_from(1, served, export).await.expect("a place")
    }

    /// The same from 127.0.0.`host`; `None` if the server has no place for it.
    pub async fn go_from(host: u8, served: &Served, export: &str) -> Option<Self> {
        let mut raw = Self(connect_from(host, served).await);
        raw.0.set_nodelay(true).unwrap();
        let mut greeting = [0; 18];
        let greeted = timeout(Duration::from_secs(10), raw.0.read_exact(&mut greeting)).await;
        if greeted.expect("a word, or the end").is_err() {
            return None;
        }
        assert_eq!(&greeting, b"NBDMAGICIHAVEOPT\x00\x03");
        let mut hello = vec![0, 0, 0, 3];
        hello.extend_from_slice(b"IHAVEOPT");
        hello.extend_from_slice(&7_u32.to_be_bytes());
        hello.extend_from_slice(&(export.len() as u32 + 6).to_be_bytes());
        hello.extend_from_slice(&(export.len() as u32).to_be_bytes());
        hello.extend_from_slice(export.as_bytes());
        hello.extend_from_slice(&[0, 0]);
        raw.0.write_all(&hello).await.unwrap();
        loop {
            let mut head = [0; 20];
            raw.0.read_exact(&mut head).await.unwrap();
            let kind = u32::from_be_bytes(head[12..16].try_into().unwrap());
            let len = u32::from_be_bytes(head[16..20].try_into().unwrap());
            let mut body = vec![0; len as usize];
            raw.0.read_exact(&mut body).await.unwrap();
            match kind {
                1 => return Some(raw),
                3 => {}
                _ => panic!("GO was answered with {kind:#x}"),
            }
        }
    }

    pub async fn send(&mut self, command: u16, cookie: u64, offset: u64, len: u32, payload: &[u8]) {
        let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
        bytes.extend_from_slice(&0_u16.to_be_bytes());
        bytes.extend_from_slice(&command.to_be_bytes());
        bytes.extend_from_slice(&cookie.to_be_bytes());
        bytes.extend_from_slice(&offset.to_be_bytes());
        bytes.extend_from_slice(&len.to_be_bytes());
        bytes.extend_from_slice(payload);
        self.0.write_all(&bytes).await.unwrap();
    }

    /// Error number and cookie of the next reply, which carries `data` bytes if it is a success.
    pub async fn reply(&mut self, data: usize) -> (u32, u64, Vec<u8>) {
        let mut head = [0; 16];
        timeout(Duration::from_secs(10), self.0.read_exact(&mut head)).await.expect("a reply").unwrap();
        assert_eq!(head[..4], 0x6744_6698_u32.to_be_bytes());
        let errno = u32::from_be_bytes(head[4..8].try_into().unwrap());
        let mut body = vec![0; if errno == 0 { data } else { 0 }];
        self.0.read_exact(&mut body).await.unwrap();
        (errno, u64::from_be_bytes(head[8..].try_into().unwrap()), body)
    }

    /// Closes this side, and waits for the server to do so.
    pub async fn end_by_leaving(mut self) {
        self.0.shutdown().await.unwrap();
        self.end().await;
    }

    /// The server closes without another byte.
    pub async fn end(&mut self) {
        let mut rest = Vec::new();
        let read = timeout(Duration::from_secs(10), self.0.read_to_end(&mut rest)).await;
        // A reset is an end, too.
        drop(read.expect("the server closes"));
        assert_eq!(rest, b"");
    }
}
