//! Mail: one message to all recipients, through a mail server that takes it (a smart host). The protocol and the
//! message format are `lettre`'s; how much of the server is read is ours ([`Bounded`]).
//!
//! A server that refuses one recipient refuses the mail. Then each gets one of their own, and it is remembered who has
//! which notice: whoever is refused for now is tried again, and nobody is told twice. What the server says of us, a login
//! above all, it would say again for each recipient: then it is asked once.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    time::Duration,
};

use engine::BoxFuture;
use lettre::{
    address::Envelope,
    message::{
        Mailbox,
        header::{ContentType, HeaderName, HeaderValue, MIME_VERSION_1_0},
    },
    transport::smtp::{
        Error,
        authentication::{Credentials, Mechanism},
        client::{AsyncSmtpConnection, AsyncTokioStream, Certificate, TlsParameters},
        extension::ClientId,
        response::Response,
    },
};
use parking_lot::Mutex;
use tokio::{
    net::{TcpStream, lookup_host},
    time::{Instant, timeout},
};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

use super::{Message, SendError, Sink, bounded::Bounded, chain, host_and_port, tls};
use crate::{
    alerts::config::{Auth, Security, Smtp},
    api::alerts::Notice,
    ops::seed,
};

/// All steps together, as a multiple of the time for one: connect, greeting, TLS, login, envelope, message.
const STEPS: u32 = 6;
/// Recipients at most.
const RECIPIENTS_MAX: usize = 100;
/// How long one who is refused for now is tried again while others get their mail: long enough for servers that turn
/// away everybody they do not know yet, and no longer, because what comes later waits behind it. Not by the clock of the
/// machine, which may be set meanwhile.
const LATE_MAX: Duration = Duration::from_secs(3600);
/// Answers about a recipient (RFC 5321 §4.2.3). Those about a login (454, 530, 534, 535, 538) and about the server are not.
const ABOUT_RECIPIENTS: [u16; 8] = [450, 451, 452, 550, 551, 552, 553, 554];

/// How what is said to the server is protected.
enum Protection {
    None,
    /// From when it has agreed to.
    Starttls(TlsParameters),
    /// From the first byte on.
    Tls(TlsConnector, ServerName<'static>),
}

/// See the head of this file.
pub(crate) struct SmtpSink {
    host: String,
    port: u16,
    protection: Protection,
    /// Who we say we are.
    hello: ClientId,
    credentials: Option<Credentials>,
    mechanisms: Vec<Mechanism>,
    from: Mailbox,
    to: Vec<Mailbox>,
    /// Host and port, for people.
    server: String,
    patience: Duration,
    progress: Mutex<Progress>,
}

/// A notice, wherever it is in a queue: which alert, when, why.
type Key = (u64, u64, &'static str);

fn key(notice: &Notice) -> Key {
    (notice.alert.id, notice.time, notice.occasion.word())
}

/// How far a message is that not everybody has.
#[derive(Debug, Default)]
struct Progress {
    /// Recipient → what is done with: they have it, or it is no use to try.
    done: BTreeMap<String, BTreeSet<Key>>,
    /// Recipient → since when they are refused for now.
    late: BTreeMap<String, Instant>,
}

impl fmt::Debug for SmtpSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SmtpSink({})", self.server)
    }
}

impl SmtpSink {
    pub(crate) fn new(config: &Smtp, host: &str) -> Result<Self, String> {
        let mailbox = |text: &String| {
            text.parse::<Mailbox>().map_err(|error| format!("'{text}' is not a mail address: {error}"))
        };
        let from = mailbox(&config.from)?;
        let to = config.to.iter().map(mailbox).collect::<Result<Vec<_>, _>>()?;
        if to.is_empty() || to.len() > RECIPIENTS_MAX {
            return Err(match to.len() {
                0 => "no recipient".to_owned(),
                _ => format!("more than {RECIPIENTS_MAX} recipients: use a mailing list"),
            });
        }
        let is_v6 = config.server.parse::<std::net::Ipv6Addr>().is_ok();
        if !is_v6 && !matches!(host_and_port(&config.server), Some((_, None))) {
            return Err(format!("'{}' is not a host name or address", config.server));
        }
        let parameters = || -> Result<TlsParameters, String> {
            let mut builder = TlsParameters::builder(config.server.clone());
            for certificate in config.ca.as_deref().map(tls::certificates).transpose()?.unwrap_or_default() {
                let certificate = Certificate::from_der(certificate.to_vec());
                builder = builder.add_root_certificate(certificate.map_err(|error| chain(&error))?);
            }
            builder.build_rustls().map_err(|error| format!("TLS cannot be used: {}", chain(&error)))
        };
        let protection = match config.security {
            Security::Starttls => Protection::Starttls(parameters()?),
            Security::Tls => {
                let name = ServerName::try_from(config.server.clone())
                    .map_err(|_| format!("'{}' is no name that a certificate can have", config.server))?;
                Protection::Tls(tls::connector(config.ca.as_deref())?, name)
            }
            Security::None => Protection::None,
        };
        let patience = Duration::from_secs(config.timeout_seconds.clamp(1, 600));
        let client = host.chars().all(|c| c.is_ascii_alphanumeric() || "-.".contains(c)) && !host.is_empty();
        let client = if client { host.to_owned() } else { "localhost".to_owned() };
        let credentials = match (&config.user, &config.password) {
            (Some(_), None) => return Err("a user without a password".to_owned()),
            (None, Some(_)) => return Err("a password without a user".to_owned()),
            (Some(_), Some(_)) if config.security == Security::None => {
                return Err("the password would be sent in the clear: use starttls or tls".to_owned());
            }
            (Some(user), Some(password)) => Some(Credentials::new(user.clone(), password.clone())),
            (None, None) => None,
        };
        let mechanisms = match config.auth {
            Some(Auth::Plain) => vec![Mechanism::Plain],
            Some(Auth::Login) => vec![Mechanism::Login],
            None => vec![Mechanism::Plain, Mechanism::Login],
        };
        let server = format!("{}:{}", config.server, config.port());
        Ok(Self {
            host: config.server.clone(),
            port: config.port(),
            protection,
            hello: ClientId::Domain(client),
            credentials,
            mechanisms,
            from,
            to,
            server,
            patience,
            progress: Mutex::default(),
        })
    }

    fn mail(&self, message: &Message) -> Result<Vec<u8>, SendError> {
        let wrong = |error: &dyn std::error::Error| {
            SendError::new(format!("no mail could be made: {}", chain(error)))
        };
        // Unique in the world: in containers all daemons are the same process, and mail systems drop what they have seen.
        let domain = self.from.email.domain();
        let id = format!("<millpond.{}.{:016x}@{domain}>", message.time, seed());
        let mut builder = lettre::Message::builder()
            .from(self.from.clone())
            .subject(message.subject.clone())
            .message_id(Some(id))
            .header(MIME_VERSION_1_0)
            .header(ContentType::TEXT_PLAIN);
        for to in &self.to {
            builder = builder.to(to.clone());
        }
        // Nobody's holiday notice is wanted.
        if let Ok(name) = HeaderName::new_from_ascii("Auto-Submitted".to_owned()) {
            builder = builder.raw_header(HeaderValue::new(name, "auto-generated".to_owned()));
        }
        let mail = builder.body(message.body.clone()).map_err(|error| wrong(&error))?;
        Ok(mail.formatted())
    }

    async fn deliver(&self, message: &Message) -> Result<String, SendError> {
        let (mut answers, mut refused, mut late) = (Vec::new(), Vec::new(), Vec::new());
        for (notices, to) in self.missing(message) {
            let part = Message::new(&message.host, message.time, notices, message.dropped);
            let mail = self.mail(&part)?;
            match self.hand_over(&to, &mail).await {
                Ok(answer) => {
                    to.iter().for_each(|to| self.done(to, &part.notices));
                    answers.push(answer);
                }
                Err(failed) if failed.about_recipient && self.to.len() > 1 => {
                    for to in to {
                        match self.hand_over(std::slice::from_ref(&to), &mail).await {
                            Ok(answer) => {
                                self.done(&to, &part.notices);
                                answers.push(format!("{}: {answer}", to.email));
                            }
                            Err(failed) if !failed.about_recipient => {
                                return Err(SendError::new(failed.text));
                            }
                            Err(failed) => {
                                let said = format!("{}: {}", to.email, failed.text);
                                match failed.permanent || self.is_too_late(&to) {
                                    true => refused.push((to, part.notices.clone(), said)),
                                    false => late.push(said),
                                }
                            }
                        }
                    }
                }
                Err(failed) => return Err(SendError::new(failed.text)),
            }
        }
        let has_somebody = !answers.is_empty() || !self.progress.lock().done.is_empty();
        let said = refused.iter().map(|(_, _, said)| said.clone());
        let text = answers.into_iter().chain(said).chain(late.iter().cloned()).collect::<Vec<_>>().join("; ");
        if !has_somebody {
            return Err(SendError::new(text));
        }
        for (to, notices, said) in &refused {
            tracing::warn!(server = self.server, said, "mail: recipient refused");
            self.done(to, notices);
        }
        if late.is_empty() {
            *self.progress.lock() = Progress::default();
            return Ok(text);
        }
        Err(SendError { partly: true, ..SendError::new(late.join("; ")) })
    }

    /// What to send to whom: all of it to all, until somebody has a part.
    fn missing(&self, message: &Message) -> Vec<(Vec<Notice>, Vec<Mailbox>)> {
        let progress = self.progress.lock();
        let mut groups: Vec<(Vec<Notice>, Vec<Mailbox>)> = Vec::new();
        for to in &self.to {
            let done = progress.done.get(&to.email.to_string());
            let is_missing = |notice: &&Notice| done.is_none_or(|done| !done.contains(&key(notice)));
            let notices: Vec<Notice> = message.notices.iter().filter(is_missing).cloned().collect();
            match groups.iter_mut().find(|(same, _)| *same == notices) {
                _ if notices.is_empty() => {}
                Some((_, all)) => all.push(to.clone()),
                None => groups.push((notices, vec![to.clone()])),
            }
        }
        groups
    }

    fn done(&self, to: &Mailbox, notices: &[Notice]) {
        let mut progress = self.progress.lock();
        progress.late.remove(&to.email.to_string());
        progress.done.entry(to.email.to_string()).or_default().extend(notices.iter().map(key));
    }

    /// Whether somebody who is refused for now has been so for too long.
    fn is_too_late(&self, to: &Mailbox) -> bool {
        let mut progress = self.progress.lock();
        let since = progress.late.entry(to.email.to_string()).or_insert_with(Instant::now);
        since.elapsed() >= LATE_MAX
    }

    async fn hand_over(&self, to: &[Mailbox], mail: &[u8]) -> Result<String, Failed> {
        let addresses = to.iter().map(|to| to.email.clone()).collect();
        let envelope = Envelope::new(Some(self.from.email.clone()), addresses).map_err(|error| Failed {
            text: chain(&error),
            permanent: true,
            about_recipient: false,
        })?;
        let stream = Box::pin(self.connect()).await.map_err(|error| Failed {
            text: format!("cannot connect to {}: {}", self.server, chain(&error)),
            permanent: false,
            about_recipient: false,
        })?;
        match Box::pin(self.converse(stream, &envelope, mail)).await {
            Ok(response) => {
                let lines: Vec<&str> = response.message().collect();
                Ok(format!("{} answered {} {}", self.server, response.code(), lines.join(" ")))
            }
            Err(error) => {
                let kind = match error.status() {
                    Some(code) => format!("{} answered {code}", self.server),
                    None => self.server.clone(),
                };
                let code = error.status().map(u16::from);
                Err(Failed {
                    text: format!("{kind}: {}", chain(&error)),
                    permanent: error.is_permanent(),
                    about_recipient: code.is_some_and(|code| ABOUT_RECIPIENTS.contains(&code)),
                })
            }
        }
    }

    async fn connect(&self) -> io::Result<Box<dyn AsyncTokioStream>> {
        let stream = self.reach().await?;
        let peer = stream.peer_addr()?;
        let stream: Box<dyn AsyncTokioStream> = match &self.protection {
            Protection::Tls(connector, name) => {
                Box::new(Bounded::new(connector.connect(name.clone(), stream).await?, peer))
            }
            Protection::None | Protection::Starttls(_) => Box::new(Bounded::new(stream, peer)),
        };
        Ok(stream)
    }

    /// Connects to the first address that answers. One that does not, of several, is not waited for all the time there is.
    async fn reach(&self) -> io::Result<TcpStream> {
        let mut last = io::Error::other("its name has no address");
        for address in lookup_host((self.host.as_str(), self.port)).await? {
            match timeout(self.patience, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => last = error,
                Err(_) => last = io::ErrorKind::TimedOut.into(),
            }
        }
        Err(last)
    }

    /// Hands a mail over, from the server's greeting on.
    async fn converse(
        &self,
        stream: Box<dyn AsyncTokioStream>,
        envelope: &Envelope,
        mail: &[u8],
    ) -> Result<Response, Error> {
        let mut connection = AsyncSmtpConnection::connect_with_transport(stream, &self.hello).await?;
        if let Protection::Starttls(parameters) = &self.protection {
            connection.starttls(parameters.clone(), &self.hello).await?;
        }
        if let Some(credentials) = &self.credentials {
            connection.auth(&self.mechanisms, credentials).await?;
        }
        let response = connection.send(envelope, mail).await?;
        // It says good-bye, and the server has the mail whatever it answers.
        connection.abort().await;
        Ok(response)
    }
}

/// Why a server did not take a mail.
struct Failed {
    text: String,
    permanent: bool,
    about_recipient: bool,
}

impl Sink for SmtpSink {
    fn send<'a>(&'a self, message: &'a Message) -> BoxFuture<'a, Result<String, SendError>> {
        Box::pin(async move {
            let patience = self.patience * STEPS;
            let late =
                || Err(SendError::new(format!("{}: no answer within {} s", self.server, patience.as_secs())));
            timeout(patience, Box::pin(self.deliver(message))).await.unwrap_or_else(|_| late())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::{
        io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
        net::TcpListener,
        time::{advance, pause, resume},
    };

    use super::*;
    use crate::api::alerts::{Alert, Finding, Kind, Occasion, Severity};

    /// What a server did: connections, and for each mail its recipients and the alerts in it.
    #[derive(Debug, Default)]
    struct Did {
        connections: usize,
        mails: Vec<(Vec<String>, Vec<u64>)>,
        /// Beginning of a command → what is answered instead.
        refuses: BTreeMap<&'static str, &'static str>,
    }

    async fn serve(stream: TcpStream, did: &Mutex<Did>) -> Option<()> {
        let mut stream = BufReader::new(stream);
        did.lock().connections += 1;
        stream.write_all(b"220 here\r\n").await.ok()?;
        let (mut to, mut line) = (Vec::new(), String::new());
        loop {
            line.clear();
            if stream.read_line(&mut line).await.ok()? == 0 {
                return None;
            }
            let refusal = did.lock().refuses.iter().find(|(start, _)| line.starts_with(*start)).map(|r| *r.1);
            let answer = match (refusal, line.get(..4)) {
                (Some(refusal), _) => refusal.to_owned(),
                (None, Some("RCPT")) => {
                    to.push(line["RCPT TO:<".len()..line.find('@')?].to_owned());
                    "250 ok".to_owned()
                }
                (None, Some("DATA")) => {
                    stream.write_all(b"354 go on\r\n").await.ok()?;
                    let mut alerts = Vec::new();
                    loop {
                        line.clear();
                        stream.read_line(&mut line).await.ok()?;
                        if line == ".\r\n" {
                            break;
                        }
                        // Titles in the text; the subject has the first of them, too.
                        let title =
                            line.split("alert number ").nth(1).filter(|_| !line.starts_with("Subject"));
                        alerts.extend(title.and_then(|rest| rest.trim().parse::<u64>().ok()));
                    }
                    did.lock().mails.push((std::mem::take(&mut to), alerts));
                    "250 queued".to_owned()
                }
                (None, Some("QUIT")) => return None,
                _ => "250 ok".to_owned(),
            };
            stream.write_all(format!("{answer}\r\n").as_bytes()).await.ok()?;
        }
    }

    async fn server() -> (u16, Arc<Mutex<Did>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, did) = (listener.local_addr().unwrap().port(), Arc::new(Mutex::new(Did::default())));
        tokio::spawn({
            let did = Arc::clone(&did);
            async move {
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    serve(stream, &did).await;
                }
            }
        });
        (port, did)
    }

    fn sink(port: u16, to: &[&str]) -> SmtpSink {
        let config = Smtp {
            server: "127.0.0.1".into(),
            port: Some(port),
            security: Security::None,
            user: None,
            password: None,
            auth: None,
            from: "mill@example.org".into(),
            to: to.iter().map(|to| format!("{to}@example.org")).collect(),
            ca: None,
            timeout_seconds: 10,
        };
        SmtpSink::new(&config, "mill").unwrap()
    }

    fn message(time: u64, ids: &[u64]) -> Message {
        let notice = |id: &u64| {
            let finding = Finding {
                pool: "tank".into(),
                pool_guid: "7".into(),
                title: format!("alert number {id}"),
                ..Finding::new(Kind::Pool, Severity::Critical, 1)
            };
            Notice { occasion: Occasion::Opened, time: 1, alert: Alert::new(*id, 1, finding) }
        };
        Message::new("mill", time, ids.iter().map(notice).collect(), 0)
    }

    fn mails(did: &Mutex<Did>) -> Vec<(String, Vec<u64>)> {
        let mails = std::mem::take(&mut did.lock().mails);
        let mut mails: Vec<_> = mails
            .into_iter()
            .map(|(to, alerts)| {
                (to.join(","), alerts.into_iter().collect::<BTreeSet<_>>().into_iter().collect())
            })
            .collect();
        mails.sort();
        mails
    }

    fn mail(to: &str, alerts: &[u64]) -> (String, Vec<u64>) {
        (to.to_owned(), alerts.to_vec())
    }

    /// Its greeting was read up to the end of the line, which never came: gigabytes, into the daemon's memory.
    #[tokio::test]
    async fn a_server_that_never_ends_its_line_is_given_up_soon() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let endless = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(b"220 ").await.unwrap();
            let (words, mut said) = ("x".repeat(64 << 10), 0);
            while said < 32 << 20 && stream.write_all(words.as_bytes()).await.is_ok() {
                said += words.len();
            }
            said
        });
        let error = sink(port, &["ops"]).send(&message(100, &[1])).await.unwrap_err();
        let names = format!("127.0.0.1:{port}");
        assert!(error.text.contains(&names) && error.text.contains("more than a mail server"), "{error}");
        // Most of it is in the buffers of the sockets.
        let said = endless.await.unwrap();
        assert!(said < 16 << 20, "{said} bytes");
    }

    /// One full mailbox kept all others from hearing of anything for three days.
    #[tokio::test]
    async fn who_is_refused_for_now_keeps_nobody_from_getting_mail_and_gets_it_later() {
        let (port, did) = server().await;
        did.lock().refuses.insert("RCPT TO:<late@", "450 4.2.1 mailbox busy");
        let sink = sink(port, &["ops", "late", "boss"]);
        let error = sink.send(&message(100, &[1])).await.unwrap_err();
        assert!(
            error.partly && error.text.contains("late@example.org") && error.text.contains("450"),
            "{error}"
        );
        assert_eq!(mails(&did), [mail("boss", &[1]), mail("ops", &[1])]);
        // Another alert came: nobody is told twice.
        assert!(sink.send(&message(160, &[1, 2])).await.unwrap_err().partly);
        assert_eq!(mails(&did), [mail("ops,boss", &[2])]);
        did.lock().refuses.clear();
        sink.send(&message(220, &[1, 2])).await.unwrap();
        assert_eq!(mails(&did), [mail("late", &[1, 2])]);
        sink.send(&message(280, &[3])).await.unwrap();
        assert_eq!(mails(&did), [mail("ops,late,boss", &[3])], "as one again");
    }

    /// Machines without a clock of their own get their mail server's first answer before the clock is set, and the hour was
    /// over then; or it was over after a year.
    #[tokio::test]
    async fn who_is_refused_for_now_for_an_hour_is_given_up_whatever_the_clock_says() {
        let (port, did) = server().await;
        did.lock().refuses.insert("RCPT TO:<late@", "452 4.2.2 mailbox full");
        let sink = sink(port, &["ops", "late"]);
        assert!(sink.send(&message(100, &[1])).await.unwrap_err().partly);
        let ahead = 100 + 2 * LATE_MAX.as_secs();
        assert!(sink.send(&message(ahead, &[1])).await.unwrap_err().partly);
        // Only from here to there: what waits for the server waits in real time.
        let pass = async |time| {
            pause();
            advance(time).await;
            resume();
        };
        pass(LATE_MAX / 2).await;
        assert!(sink.send(&message(ahead, &[1])).await.unwrap_err().partly);
        pass(LATE_MAX / 2).await;
        let answer = sink.send(&message(5, &[1])).await.unwrap();
        assert!(answer.contains("452"), "{answer}");
        assert_eq!(mails(&did), [mail("ops", &[1])]);
    }

    /// Two daemons in containers, or two sinks of one, told of failed disks in the same second: of two mails one was delivered.
    #[test]
    fn no_two_mails_have_one_name() {
        let name = || {
            let mail = sink(25, &["ops"]).mail(&message(100, &[1])).unwrap();
            let text = String::from_utf8(mail).unwrap();
            text.lines().find(|line| line.starts_with("Message-ID: <")).unwrap().to_owned()
        };
        assert_ne!(name(), name());
    }

    #[tokio::test]
    async fn what_the_server_says_of_us_is_asked_once_and_not_for_each_recipient() {
        let (port, did) = server().await;
        let sink = sink(port, &["ops", "boss"]);
        for refusal in ["535 5.7.8 credentials invalid", "530 5.7.0 log in first", "421 4.3.2 not now"] {
            did.lock().refuses.insert("MAIL", refusal);
            let before = did.lock().connections;
            let error = sink.send(&message(100, &[1])).await.unwrap_err();
            assert!(!error.partly && error.text.contains(&refusal[..3]), "{error}");
            assert_eq!(did.lock().connections, before + 1, "{refusal}");
        }
        did.lock().refuses.clear();
        did.lock().refuses.insert("RCPT", "550 5.1.1 nobody here");
        let error = sink.send(&message(100, &[1])).await.unwrap_err();
        assert!(error.text.contains("ops@example.org") && error.text.contains("boss@example.org"), "{error}");
        did.lock().refuses.clear();
        sink.send(&message(200, &[1])).await.unwrap();
        assert_eq!(mails(&did), [mail("ops,boss", &[1])], "refused by all is had by none");
    }
}
