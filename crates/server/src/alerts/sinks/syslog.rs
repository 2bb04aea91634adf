//! Syslog: the local daemon's socket in the form it has always taken, and remote ones by RFC 5424 over UDP (RFC 5426)
//! or TCP with the length before each message (RFC 6587).
//!
//! A message for each notice, in one line: that is what log tools show and search.

use std::{path::PathBuf, time::Duration};

use engine::BoxFuture;
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpStream, UdpSocket, UnixDatagram, lookup_host},
    time::timeout,
};

use super::{Message, SendError, Sink, host_and_port};
use crate::{
    alerts::{config::Syslog, message::headline},
    api::alerts::{Notice, Occasion, Severity},
};

/// How long a connection may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest message over UDP, in bytes: what every receiver has to take is 480, what the usual ones take is this.
const DATAGRAM_MAX: usize = 2048;

/// Facilities by number.
const FACILITIES: [&str; 24] = [
    "kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp",
    "ntp", "security", "console", "clock", "local0", "local1", "local2", "local3", "local4", "local5",
    "local6", "local7",
];

#[derive(Clone, Debug, PartialEq, Eq)]
enum Way {
    Local(PathBuf),
    Udp(String, u16),
    Tcp(String, u16),
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct SyslogSink {
    way: Way,
    facility: usize,
    host: String,
}

impl SyslogSink {
    pub(crate) fn new(config: &Syslog, host: &str) -> Result<Self, String> {
        let target = config.target.as_str();
        let wrong = || {
            format!("'{target}' is not a syslog target: give unix:/dev/log, udp://HOST:514 or tcp://HOST:601")
        };
        let remote = |rest: &str, usual: Option<u16>| {
            host_and_port(rest).and_then(|(host, port)| Some((host, port.or(usual)?))).ok_or_else(wrong)
        };
        let way = if let Some(path) = target.strip_prefix("unix:").filter(|path| path.starts_with('/')) {
            Way::Local(PathBuf::from(path))
        } else if let Some(rest) = target.strip_prefix("udp://") {
            let (host, port) = remote(rest, None)?;
            Way::Udp(host, port)
        } else if let Some(rest) = target.strip_prefix("tcp://") {
            let (host, port) = remote(rest, None)?;
            Way::Tcp(host, port)
        } else {
            return Err(wrong());
        };
        let facility = FACILITIES.iter().position(|name| *name == config.facility);
        let facility = facility.ok_or_else(|| {
            format!("'{}' is not a facility: give daemon, user, local0 … local7", config.facility)
        })?;
        Ok(Self { way, facility, host: host.to_owned() })
    }

    fn priority(&self, notice: &Notice) -> usize {
        let level = match (notice.occasion, notice.alert.finding.severity) {
            (Occasion::Resolved | Occasion::Test, _) => 5,
            (_, Severity::Critical) => 2,
            (_, Severity::Warning) => 4,
            (_, Severity::Info) => 6,
        };
        self.facility * 8 + level
    }

    /// As the socket of a local daemon takes it: it adds the host itself.
    fn local(&self, notice: &Notice) -> String {
        let when = strftime(notice.time, "%b %e %H:%M:%S", jiff::tz::TimeZone::system());
        format!("<{}>{when} millpond[{}]: {}", self.priority(notice), std::process::id(), line(notice))
    }

    /// RFC 5424, without structured data.
    fn remote(&self, notice: &Notice) -> String {
        let when = strftime(notice.time, "%Y-%m-%dT%H:%M:%SZ", jiff::tz::TimeZone::UTC);
        let token = |text: &str| text.chars().filter(char::is_ascii_graphic).take(255).collect::<String>();
        let host = Some(token(&self.host)).filter(|host| !host.is_empty()).unwrap_or_else(|| "-".to_owned());
        let (pid, kind) = (std::process::id(), notice.alert.finding.kind.word());
        // The mark says that what follows is UTF-8.
        format!("<{}>1 {when} {host} millpond {pid} {kind} - \u{feff}{}", self.priority(notice), line(notice))
    }

    async fn deliver(&self, message: &Message) -> Result<String, SendError> {
        let mut lines: Vec<String> = match self.way {
            Way::Local(_) => message.notices.iter().map(|notice| self.local(notice)).collect(),
            _ => message.notices.iter().map(|notice| self.remote(notice)).collect(),
        };
        if message.dropped > 0
            && let Some(first) = lines.first_mut()
        {
            first.push_str(&format!(" ({} older notices were dropped)", message.dropped));
        }
        let count = lines.len();
        match &self.way {
            Way::Local(path) => {
                let what = format!("cannot write to '{}'", path.display());
                let socket = UnixDatagram::unbound().map_err(|error| SendError::io(&what, &error))?;
                for line in lines {
                    let sent = socket.send_to(cut(&line).as_bytes(), path).await;
                    sent.map_err(|error| SendError::io(&what, &error))?;
                }
                Ok(format!("{count} written to '{}'", path.display()))
            }
            Way::Udp(host, port) => {
                let what = format!("cannot send to {host}:{port} (UDP)");
                let fail = |error| SendError::io(&what, &error);
                let mut addresses = lookup_host((host.as_str(), *port)).await.map_err(fail)?;
                let address =
                    addresses.next().ok_or_else(|| SendError::new(format!("{what}: it has no address")))?;
                let local = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                let socket = UdpSocket::bind(local).await.map_err(fail)?;
                // Connected, so that a port nobody listens on is noticed where the system says so.
                socket.connect(address).await.map_err(fail)?;
                for line in lines {
                    socket.send(cut(&line).as_bytes()).await.map_err(fail)?;
                }
                Ok(format!("{count} sent to {address} (UDP: whether they arrived is not known)"))
            }
            Way::Tcp(host, port) => {
                let what = format!("cannot send to {host}:{port} (TCP)");
                let fail = |error| SendError::io(&what, &error);
                let mut stream = TcpStream::connect((host.as_str(), *port)).await.map_err(fail)?;
                for line in lines {
                    stream.write_all(format!("{} {line}", line.len()).as_bytes()).await.map_err(fail)?;
                }
                stream.shutdown().await.map_err(fail)?;
                Ok(format!("{count} sent to {host}:{port} (TCP)"))
            }
        }
    }
}

impl Sink for SyslogSink {
    fn send<'a>(&'a self, message: &'a Message) -> BoxFuture<'a, Result<String, SendError>> {
        Box::pin(async move {
            let late = || Err(SendError::new(format!("no answer within {} s", PATIENCE.as_secs())));
            timeout(PATIENCE, self.deliver(message)).await.unwrap_or_else(|_| late())
        })
    }
}

fn strftime(seconds: u64, format: &str, zone: jiff::tz::TimeZone) -> String {
    let at = i64::try_from(seconds).ok().and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    at.unwrap_or_default().to_zoned(zone).strftime(format).to_string()
}

/// A notice in one line.
fn line(notice: &Notice) -> String {
    let finding = &notice.alert.finding;
    let mut text = headline(notice);
    if let Some(by_id) = finding.device.as_ref().and_then(|device| device.by_id.as_ref()) {
        text.push_str(&format!(" ({by_id})"));
    }
    if notice.occasion != Occasion::Resolved
        && let Some(command) = finding.action.iter().find_map(|line| line.strip_prefix("  "))
    {
        text.push_str(&format!("; try: {command}"));
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn cut(line: &str) -> &str {
    let end = (0..=DATAGRAM_MAX.min(line.len())).rev().find(|at| line.is_char_boundary(*at)).unwrap_or(0);
    &line[..end]
}
