//! Those who receive in these tests: certificates and servers that end with the test.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
};

use serde_json::Value;

/// An authority, and a certificate for `localhost` from it.
pub(crate) struct Certificates {
    dir: tempfile::TempDir,
    pub(crate) ca: PathBuf,
    cert: PathBuf,
    key: PathBuf,
}

impl Certificates {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let openssl = |args: &[&str]| {
            let output = Command::new("openssl").args(args).current_dir(dir.path()).output();
            let output = output.expect("openssl is there: scripts/setup test");
            assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        };
        let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
        openssl(
            &[
                &[
                    "req",
                    "-x509",
                    "-days",
                    "2",
                    "-subj",
                    "/CN=test authority",
                    "-keyout",
                    "ca.key",
                    "-out",
                    "ca.pem",
                ][..],
                &key,
            ]
            .concat(),
        );
        openssl(
            &[&["req", "-subj", "/CN=localhost", "-keyout", "key.pem", "-out", "request.pem"][..], &key]
                .concat(),
        );
        std::fs::write(at("names"), "subjectAltName=DNS:localhost\nbasicConstraints=CA:FALSE\n").unwrap();
        openssl(&[
            "x509",
            "-req",
            "-in",
            "request.pem",
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-days",
            "2",
            "-extfile",
            "names",
            "-out",
            "cert.pem",
        ]);
        Self { ca: at("ca.pem"), cert: at("cert.pem"), key: at("key.pem"), dir }
    }

    /// A web server that answers every request with this status.
    pub(crate) fn https(&self, status: &str) -> WebServer {
        let script = "import http.server, ssl, sys, threading\n\
            class H(http.server.BaseHTTPRequestHandler):\n\
            \x20   def do_POST(self):\n\
            \x20       self.rfile.read(int(self.headers['Content-Length']))\n\
            \x20       code, text = sys.argv[3].split(' ', 1)\n\
            \x20       self.send_response(int(code), text)\n\
            \x20       self.send_header('Content-Length', '0')\n\
            \x20       self.end_headers()\n\
            s = http.server.ThreadingHTTPServer(('127.0.0.1', 0), H)\n\
            c = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)\n\
            c.load_cert_chain(sys.argv[1], sys.argv[2])\n\
            s.socket = c.wrap_socket(s.socket, server_side=True)\n\
            print(s.server_address[1], flush=True)\n\
            threading.Thread(target=s.serve_forever, daemon=True).start()\n\
            sys.stdin.read()\n";
        let path = self.dir.path().join("https.py");
        std::fs::write(&path, script).unwrap();
        let (process, _stdout, port) = python(&[path.as_path(), &self.cert, &self.key, Path::new(status)]);
        WebServer { _process: process, port }
    }
}

/// A process that ends with its owner.
pub(crate) struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // Ours: nobody else waits for it, so its number is still its own.
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

pub(crate) struct WebServer {
    _process: Process,
    pub(crate) port: u16,
}

/// Starts a script that prints its port first.
fn python(args: &[&Path]) -> (Process, BufReader<ChildStdout>, u16) {
    let mut child = Command::new("/usr/bin/python3")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 is there: scripts/setup test");
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    let port = line
        .trim()
        .parse()
        .expect("it starts and says its port; python3-aiosmtpd is there: scripts/setup test");
    (Process(child), stdout, port)
}

/// The mail server.
pub(crate) struct MailServer {
    _process: Process,
    stdout: BufReader<ChildStdout>,
    pub(crate) port: u16,
}

impl MailServer {
    pub(crate) fn start(mode: &str, certificates: &Certificates) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/server/delivery/smtpd.py");
        let (process, stdout, port) =
            python(&[&script, Path::new(mode), certificates.cert.as_path(), certificates.key.as_path()]);
        Self { _process: process, stdout, port }
    }

    /// The next mail it took.
    pub(crate) fn mail(&mut self) -> Value {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        serde_json::from_str(&line).expect("it says what it took")
    }
}

/// Reads a request, answers it, and gives its head and body.
pub(crate) fn answer(stream: &mut std::net::TcpStream, answer: &str) -> (String, Vec<u8>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut head = String::new();
    let mut len = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_lowercase().strip_prefix("content-length: ") {
            len = value.trim().parse().unwrap();
        }
        head.push_str(&line);
    }
    let mut body = vec![0; len];
    reader.read_exact(&mut body).unwrap();
    std::io::Write::write_all(stream, answer.as_bytes()).unwrap();
    (head, body)
}

/// As another implementation computes it.
pub(crate) fn hmac(key: &str, body: &[u8]) -> String {
    let mut child = Command::new("openssl")
        .args(["dgst", "-sha256", "-hmac", key, "-r"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), body).unwrap();
    let output = child.wait_with_output().unwrap();
    String::from_utf8(output.stdout).unwrap().split_whitespace().next().unwrap().to_owned()
}
