//! What it says: operators find what they need in plain text, and nobody who does not take it keeps it from serving, or a
//! command from failing as it would.

use std::{
    ffi::OsStr,
    fs,
    io::{PipeReader, Read as _, Write as _},
    net::TcpStream,
    os::unix::net::UnixStream,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use rustix::io::ioctl_fionbio;

use super::{SERVE, ask, files, lab, with_files};
use crate::support::{
    wait_until,
    wire::{Iscsi, Nbd, Wire as _},
};

/// Readers of a log that do not take it: gone, on a disk that is full, at rest.
fn bad_readers() -> [(&'static str, Stdio, Option<PipeReader>); 3] {
    let (_, gone) = std::io::pipe().unwrap();
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let (resting, rests) = std::io::pipe().unwrap();
    [("gone", gone.into(), None), ("full", full.into(), None), ("resting", rests.into(), Some(resting))]
}

#[test]
fn nobody_who_takes_its_log_is_no_reason_to_serve_nobody() {
    for (reader, log, kept) in bad_readers() {
        let lab = lab();
        let mut command = lab.command("millpond");
        command.args(SERVE.split(' ')).env("MILLPOND_LOG", "trace");
        let mut daemon = lab.serve_logging_to(log, &mut command);
        let (nbd, iscsi) = (daemon.port("nbd"), daemon.port("iscsi"));
        // More than a pipe holds, if each connection has a few lines.
        for _ in 0..300 {
            let mut wire = Nbd::open(nbd, "psingle/v1").unwrap_or_else(|error| panic!("{reader}: {error:?}"));
            wire.read(0, 4096).unwrap();
            ask(&lab, "/v1/version");
        }
        for _ in 0..20 {
            let mut wire = Iscsi::open(iscsi, "iqn.2026-11.io.millpond:psingle:v1", 1).unwrap();
            wire.read(0, 4096).unwrap();
        }
        let began = Instant::now();
        daemon.signal("TERM");
        assert_eq!(daemon.wait().code(), Some(0), "{reader}");
        assert!(began.elapsed() < Duration::from_secs(20), "{reader}: it took {:?}", began.elapsed());
        if let Some(mut resting) = kept {
            drop(command);
            let mut taken = Vec::new();
            resting.read_to_end(&mut taken).unwrap();
            assert!(taken.len() >= 60_000, "only {} bytes of log: nothing was tried", taken.len());
        }
    }
}

/// What is served is printed before anybody is let in: a reader that rested kept the daemon from serving, from answering its
/// control socket, and from hearing that it was to end.
#[test]
fn nobody_who_takes_what_it_prints_is_no_reason_to_serve_nobody() {
    for is_read_later in [false, true] {
        let lab = lab();
        let (reader, writer) = std::io::pipe().unwrap();
        ioctl_fionbio(&reader, true).unwrap();
        ioctl_fionbio(&writer, true).unwrap();
        // As after the addresses of some hundred volumes.
        while (&writer).write_all(&[b'x'; 4096]).is_ok() {}
        ioctl_fionbio(&writer, false).unwrap();
        let mut daemon = lab.serve_printing_to(writer.into(), SERVE);
        wait_until(|| {
            let Ok(mut stream) = UnixStream::connect(lab.socket()) else { return false };
            // It listens before it answers.
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let request = "GET /v1/version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
            let mut answer = String::new();
            let asked =
                stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_string(&mut answer));
            asked.is_ok() && answer.starts_with("HTTP/1.1 200 OK")
        });
        if is_read_later {
            let mut taken = Vec::new();
            wait_until(|| {
                // That there is nothing at the moment is not its end.
                let _nothing = (&reader).read_to_end(&mut taken);
                taken.ends_with(b"\nready\n")
            });
            let taken = String::from_utf8(taken).unwrap();
            assert_eq!(taken.matches("://").count(), 8, "{taken}");
        }
        daemon.signal("TERM");
        assert_eq!(daemon.wait().code(), Some(0), "read later: {is_read_later}");
    }
}

#[test]
fn a_command_whose_words_nobody_takes_fails_as_it_would() {
    let lab = lab();
    for line in ["arcstat", "zpool status nowhere", "", "zpool list -o nothing"] {
        for (reader, log, _kept) in bad_readers() {
            let status = lab.command("millpond").args(line.split_whitespace()).stderr(log).status().unwrap();
            assert!(matches!(status.code(), Some(1 | 2)), "{line}, {reader}: {status}");
        }
    }
}

#[test]
fn a_slip_in_what_is_to_be_logged_is_said_and_silences_nothing() {
    let lab = lab();
    let run = |log: &str| {
        let output = lab.command("millpond").arg("version").env("MILLPOND_LOG", log).output().unwrap();
        assert!(output.status.success(), "{log}");
        String::from_utf8(output.stderr).unwrap()
    };
    let said = run("warning");
    assert!(
        said.starts_with("millpond: MILLPOND_LOG 'warning' cannot be understood: 'warning' is"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    for fine in ["", "warn", "warn,iscsi=debug"] {
        assert_eq!(run(fine), "", "{fine}");
    }
}

#[test]
fn what_was_asked_for_in_vain_is_said_when_it_starts() {
    let lab = lab();
    for (protocol, port) in [("nbd", 10809), ("iscsi", 3260)] {
        let error = lab.run(&format!("-d . serve --readonly --{protocol} 127.0.0.1")).fails(1);
        assert!(error.contains(&format!("for example 127.0.0.1:{port}")), "{error}");
    }
    let mut daemon = lab.serve(&format!("{SERVE} --memory-limit 256M --arc-max 1T --alerts /nosuch/x"));
    daemon.signal("TERM");
    assert_eq!(daemon.wait().code(), Some(0));
    let log = daemon.stderr();
    assert!(log.contains("warning: the cache may have 1T and the whole daemon 256M: "), "{log}");
    assert!(log.contains("'/nosuch/x' does not exist, and its directory does not either"), "{log}");
}

#[test]
fn by_itself_it_logs_what_operators_need_in_plain_text() {
    let lab = lab();
    let wrapper = with_files(64, 4096);
    let mut daemon = lab.serve_through(&wrapper.each_ref().map(OsStr::new), SERVE);
    assert_eq!(files(&daemon), [4096, 4096]);
    let nowhere = Iscsi::open(daemon.port("iscsi"), "iqn.2026-11.com.example:nowhere", 1);
    assert!(nowhere.is_err(), "there is no such target");
    daemon.signal("TERM");
    assert_eq!(daemon.wait().code(), Some(0));
    let log = daemon.stderr();
    assert!(log.contains("WARN") && log.contains("login refused"), "{log}");
    assert!(!log.contains('\u{1b}') && !log.contains("files can be open"), "{log}");
}

/// What a client says first that speaks TLS and means this server.
fn client_hello(server: &[u8]) -> Vec<u8> {
    let short = |len: usize| u16::try_from(len).unwrap().to_be_bytes();
    let counted = |bytes: &[u8]| [&short(bytes.len())[..], bytes].concat();
    let name = counted(&[&[0][..], &counted(server)].concat());
    let extensions = [&[0, 0][..], &counted(&name)].concat();
    let body = [&[3, 3][..], &[7; 32], &[0], &counted(&[0x13, 1]), &[1, 0], &counted(&extensions)].concat();
    let message = [&[1, 0][..], &counted(&body)].concat();
    [&[22, 3, 1][..], &counted(&message)].concat()
}

/// Whoever reached the port filled the disk where the log is kept, at fifteen thousand bytes a connection; and each connection
/// of a client that names the server by its address had a line.
#[test]
fn strangers_do_not_write_the_log_by_what_they_say_of_tls() {
    let (lab, Some(openssl)) = (lab(), fixtures::tool("openssl")) else { return };
    let make = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 400 -subj /CN=localhost \
                -keyout server-key.pem -out server-cert.pem";
    let made =
        Command::new(openssl).args(make.split_whitespace()).current_dir(lab.path("")).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let serve = format!("{SERVE} --nbd-tls-certificates {}", lab.path("").display());
    for by_itself in [true, false] {
        let mut daemon =
            if by_itself { lab.serve(&serve) } else { lab.begin_telling("iscsi=debug", &serve).ready() };
        let port = daemon.port("nbds");
        for name in [&[b'!'; 15_000][..], b"127.0.0.1"].into_iter().cycle().take(40) {
            let mut stranger = TcpStream::connect(("127.0.0.1", port)).unwrap();
            stranger.read_exact(&mut [0; 18]).unwrap();
            stranger.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x05\0\0\0\0").unwrap();
            stranger.read_exact(&mut [0; 20]).unwrap();
            stranger.write_all(&client_hello(name)).unwrap();
            let mut said = Vec::new();
            // It is hung up on, with or without a word.
            let _gone = stranger.read_to_end(&mut said);
        }
        daemon.signal("TERM");
        assert_eq!(daemon.wait().code(), Some(0));
        let log = daemon.stderr();
        assert!(log.contains("nbd: connection dropped"), "{log}");
        assert!(log.len() < 4096 && !log.contains("SNI"), "{} bytes: {log:.500}", log.len());
    }
}
