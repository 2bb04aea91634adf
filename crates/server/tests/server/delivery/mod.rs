//! Alerts reach real servers: a mail server from a package (aiosmtpd) with STARTTLS, TLS and AUTH, webhooks over HTTP
//! and HTTPS, syslog over a Unix socket, UDP and TCP. Through the public path only: a configuration, and a test message.
//!
//! Certificates are made by `openssl` for each run: an authority of its own, and a server certificate for `localhost`.

use std::{
    io::Read as _,
    net::{TcpListener, UdpSocket},
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::Value;
use server::{
    alerts::{
        Files, Offline,
        config::{Auth, Security, SinkConfig, Smtp, Syslog, Target, Webhook},
    },
    api::alerts::Tested,
};

mod receivers;

use receivers::{Certificates, MailServer};

/// Sends a test through one sink, as `millpond alert add` and `alert test` do.
fn deliver(target: Target) -> Tested {
    let dir = tempfile::tempdir().unwrap();
    let offline = Offline::new(Files::new(dir.path(), None));
    offline.change(|config| config.add(SinkConfig::new("x", target))).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut tested = runtime.block_on(offline.test(Some("x"))).unwrap();
    assert_eq!(tested.len(), 1);
    tested.remove(0)
}

fn smtp(server: &MailServer, security: Security, ca: &Path) -> Smtp {
    Smtp {
        server: "localhost".into(),
        port: Some(server.port),
        security,
        user: Some("mill".into()),
        password: Some("correct horse".into()),
        auth: None,
        from: "Millpond on mill <mill@example.org>".into(),
        to: vec!["ops@example.org".into(), "Näme <boss@example.org>".into()],
        ca: Some(ca.into()),
        timeout_seconds: 10,
    }
}

#[test]
fn mail_goes_through_a_real_server_with_starttls_or_tls_and_either_login() {
    let certificates = Certificates::new();
    for (mode, security) in [("starttls", Security::Starttls), ("tls", Security::Tls)] {
        let mut server = MailServer::start(mode, &certificates);
        for auth in [None, Some(Auth::Plain), Some(Auth::Login)] {
            let config = Smtp { auth, ..smtp(&server, security, &certificates.ca) };
            let tested = deliver(Target::Smtp(config));
            assert!(tested.delivered, "{mode} {auth:?}: {}", tested.answer);
            assert!(
                tested.answer.contains("250") && tested.answer.contains("queued as TEST-1"),
                "{}",
                tested.answer
            );
            let mail = server.mail();
            assert_eq!((&mail["tls"], &mail["user"]), (&Value::Bool(true), &Value::from("mill")), "{mail}");
            assert_eq!(mail["from"], "mill@example.org");
            assert_eq!(mail["to"], serde_json::json!(["ops@example.org", "boss@example.org"]));
            let content = mail["content"].as_str().unwrap();
            let header = |name: &str| content.lines().find(|line| line.starts_with(name)).map(str::to_owned);
            assert!(header("Subject: ").unwrap().contains("test of 'x'"), "{content}");
            assert_eq!(header("Auto-Submitted: ").unwrap(), "Auto-Submitted: auto-generated");
            for name in ["Date: ", "Message-ID: <millpond.", "From: ", "To: ", "MIME-Version: 1.0"] {
                assert!(header(name).is_some(), "{name}: {content}");
            }
            assert!(content.is_ascii() && content.lines().all(|line| line.len() <= 998), "{content}");
            assert!(content.contains("alerts arrive here"), "{content}");
        }
    }
}

#[test]
fn what_a_mail_server_refuses_is_told_in_its_own_words() {
    let certificates = Certificates::new();
    let mut server = MailServer::start("starttls", &certificates);
    let with = |change: &dyn Fn(&mut Smtp)| {
        let mut config = smtp(&server, Security::Starttls, &certificates.ca);
        change(&mut config);
        deliver(Target::Smtp(config))
    };
    let wrong_password = with(&|smtp| smtp.password = Some("wrong".into()));
    assert!(!wrong_password.delivered && wrong_password.answer.contains("535"), "{}", wrong_password.answer);
    assert!(
        wrong_password.answer.contains("authentication credentials invalid"),
        "{}",
        wrong_password.answer
    );
    assert!(!wrong_password.answer.contains("wrong"), "{}", wrong_password.answer);

    let no_login = with(&|smtp| (smtp.user, smtp.password) = (None, None));
    assert!(!no_login.delivered && no_login.answer.contains("530"), "{}", no_login.answer);

    let nobody = with(&|smtp| smtp.to = vec!["nobody@example.org".into()]);
    assert!(!nobody.delivered && nobody.answer.contains("550"), "{}", nobody.answer);
    assert!(nobody.answer.contains("no such user here"), "{}", nobody.answer);

    let later = with(&|smtp| smtp.to = vec!["later@example.org".into()]);
    assert!(!later.delivered && later.answer.contains("451"), "{}", later.answer);

    // A certificate of an authority that nobody trusts; a server that is somebody else.
    let stranger = with(&|smtp| smtp.ca = None);
    assert!(!stranger.delivered && stranger.answer.contains("certificate"), "{}", stranger.answer);
    let other_name = with(&|smtp| smtp.server = "127.0.0.1".into());
    assert!(!other_name.delivered && other_name.answer.contains("certificate"), "{}", other_name.answer);
    let clear = with(&|smtp| {
        smtp.security = Security::None;
        (smtp.user, smtp.password) = (None, None);
    });
    assert!(!clear.delivered && clear.answer.contains("530"), "{}", clear.answer);

    // One of several: the others get it.
    let some = with(&|smtp| smtp.to = vec!["nobody@example.org".into(), "ops@example.org".into()]);
    assert!(some.delivered, "{}", some.answer);
    assert!(some.answer.contains("nobody@example.org") && some.answer.contains("550"), "{}", some.answer);
    assert_eq!(server.mail()["to"], serde_json::json!(["ops@example.org"]));

    let port = server.port;
    drop(server);
    let gone = Smtp {
        port: Some(port),
        ..smtp(&MailServer::start("none", &certificates), Security::Starttls, &certificates.ca)
    };
    let gone = deliver(Target::Smtp(gone));
    assert!(!gone.delivered && gone.answer.to_lowercase().contains("refused"), "{}", gone.answer);
}

#[test]
fn mail_without_any_protection_is_possible_but_not_with_a_password() {
    let certificates = Certificates::new();
    let mut server = MailServer::start("none", &certificates);
    let config = smtp(&server, Security::None, &certificates.ca);
    assert!(SinkConfig::new("x", Target::Smtp(config.clone())).check().is_err());
    let tested = deliver(Target::Smtp(Smtp { user: None, password: None, ..config }));
    assert!(tested.delivered, "{}", tested.answer);
    assert_eq!(server.mail()["tls"], false);
}

fn webhook(url: String) -> Webhook {
    Webhook { url, headers: Vec::new(), secret: None, ca: None, timeout_seconds: 5 }
}

#[test]
fn a_webhook_is_one_signed_post_and_its_answer_is_told() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hooks/a?token=b", listener.local_addr().unwrap());
    let receiver = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        receivers::answer(&mut stream, "HTTP/1.1 202 Accepted\r\nContent-Length: 8\r\n\r\nthanks!\n")
    });
    let headers = vec![("Authorization".to_owned(), "Bearer s3cret".to_owned())];
    let tested = deliver(Target::Webhook(Webhook { headers, secret: Some("k3y".into()), ..webhook(url) }));
    assert!(
        tested.delivered && tested.answer.ends_with("answered 202 Accepted: thanks!"),
        "{}",
        tested.answer
    );
    let (head, body) = receiver.join().unwrap();
    assert!(head.starts_with("POST /hooks/a?token=b HTTP/1.1\r\n"), "{head}");
    let header = |name: &str| {
        let line = head.lines().find(|line| line.to_lowercase().starts_with(&format!("{name}: ")))?;
        Some(line.split_once(": ")?.1.to_owned())
    };
    assert_eq!(header("authorization").as_deref(), Some("Bearer s3cret"));
    assert_eq!(header("content-type").as_deref(), Some("application/json"));
    assert_eq!(
        header("x-millpond-signature-256").unwrap(),
        format!("sha256={}", receivers::hmac("k3y", &body))
    );
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!((&body["version"], &body["dropped"]), (&Value::from(1), &Value::from(0)));
    assert_eq!(body["notices"][0]["occasion"], "test");
    assert_eq!(body["notices"][0]["alert"]["kind"], "test");
    assert!(body["text"].as_str().unwrap().contains("Nothing is wrong"));
}

/// It was sent again and again to whoever said 200 and kept the connection, or broke off behind it.
#[test]
fn what_comes_behind_the_status_of_a_webhook_s_answer_changes_nothing() {
    for (answer, holds, delivered) in [
        ("HTTP/1.1 200 OK\r\n\r\nthanks", true, true),
        ("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nthanks", true, true),
        ("HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n", true, true),
        ("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nthanks", false, true),
        ("HTTP/1.1 500 Internal Server Error\r\nContent-Length: 100\r\n\r\nno", true, false),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let (over, until) = std::sync::mpsc::channel::<()>();
        let receiver = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            receivers::answer(&mut stream, answer);
            if holds {
                let _over = until.recv();
            }
        });
        let tested = deliver(Target::Webhook(Webhook { timeout_seconds: 1, ..webhook(url) }));
        assert_eq!(tested.delivered, delivered, "{answer}: {}", tested.answer);
        drop(over);
        receiver.join().unwrap();
    }
}

#[test]
fn a_webhook_that_is_refused_or_silent_is_told_so() {
    for (answer, says) in [
        ("HTTP/1.1 404 Not Found\r\nContent-Length: 7\r\n\r\nno hook", "answered 404 Not Found: no hook"),
        ("HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n", "answered 500"),
        ("HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", "answered 302"),
        ("HTTP/1.1 429 Too Many Requests\r\nRetry-After: 60\r\nContent-Length: 0\r\n\r\n", "answered 429"),
        ("nonsense\r\n\r\n", "127.0.0.1"),
        ("", "127.0.0.1"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let receiver = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            receivers::answer(&mut stream, answer);
        });
        let tested = deliver(Target::Webhook(webhook(url)));
        assert!(!tested.delivered && tested.answer.contains(says), "{answer}: {}", tested.answer);
        receiver.join().unwrap();
    }
    // Nobody listens; somebody listens and never answers.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let silent = deliver(Target::Webhook(Webhook { timeout_seconds: 1, ..webhook(url.clone()) }));
    assert!(!silent.delivered && silent.answer.contains("no answer within 1 s"), "{}", silent.answer);
    drop(listener);
    let gone = deliver(Target::Webhook(webhook(url)));
    assert!(!gone.delivered && gone.answer.contains("cannot connect to"), "{}", gone.answer);
}

#[test]
fn a_webhook_over_https_knows_whom_it_talks_to() {
    let certificates = Certificates::new();
    let server = certificates.https("200 OK");
    let url = format!("https://localhost:{}/hook", server.port);
    let trusted = Webhook { ca: Some(certificates.ca.clone()), ..webhook(url.clone()) };
    let tested = deliver(Target::Webhook(trusted));
    assert!(tested.delivered, "{}", tested.answer);
    let stranger = deliver(Target::Webhook(webhook(url)));
    assert!(!stranger.delivered && stranger.answer.contains("certificate"), "{}", stranger.answer);
    let other =
        Webhook { ca: Some(certificates.ca), ..webhook(format!("https://127.0.0.1:{}/hook", server.port)) };
    let other = deliver(Target::Webhook(other));
    assert!(!other.delivered && other.answer.contains("certificate"), "{}", other.answer);
}

fn syslog(target: String) -> Target {
    Target::Syslog(Syslog { target, facility: "local3".into() })
}

#[test]
fn syslog_goes_to_a_socket_here_or_to_a_server_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let path: PathBuf = dir.path().join("log");
    let local = UnixDatagram::bind(&path).unwrap();
    local.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let tested = deliver(syslog(format!("unix:{}", path.display())));
    assert!(tested.delivered, "{}", tested.answer);
    let mut buffer = [0; 4096];
    let len = local.recv(&mut buffer).unwrap();
    let line = std::str::from_utf8(&buffer[..len]).unwrap();
    // local3 is 19; a test is a notice, which is 5.
    assert!(line.starts_with("<157>") && line.contains(" millpond["), "{line}");
    assert!(line.contains("alerts arrive here"), "{line}");

    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let tested = deliver(syslog(format!("udp://{}", udp.local_addr().unwrap())));
    assert!(tested.delivered && tested.answer.contains("UDP"), "{}", tested.answer);
    let len = udp.recv(&mut buffer).unwrap();
    let line = std::str::from_utf8(&buffer[..len]).unwrap().to_owned();
    let words: Vec<&str> = line.split(' ').collect();
    assert_eq!((words[0], words[3], words[5], words[6]), ("<157>1", "millpond", "test", "-"), "{line}");
    assert!(words[1].ends_with('Z') && words[1].contains('T') && words[7].starts_with('\u{feff}'), "{line}");

    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = format!("tcp://{}", tcp.local_addr().unwrap());
    let receiver = std::thread::spawn(move || {
        let mut text = String::new();
        tcp.accept().unwrap().0.read_to_string(&mut text).unwrap();
        text
    });
    assert!(deliver(syslog(target.clone())).delivered);
    let text = receiver.join().unwrap();
    let (len, line) = text.split_once(' ').unwrap();
    assert_eq!(len.parse::<usize>().unwrap(), line.len(), "{text}");

    let gone = deliver(syslog(target));
    assert!(!gone.delivered && gone.answer.contains("cannot send to 127.0.0.1"), "{}", gone.answer);
    let nowhere = deliver(syslog("unix:/nonexistent/log".into()));
    assert!(!nowhere.delivered && nowhere.answer.contains("/nonexistent/log"), "{}", nowhere.answer);
}
