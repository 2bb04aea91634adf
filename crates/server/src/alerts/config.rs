//! Who is told of alerts: `alerts.json` in the state directory, written by `millpond alert add` or by hand.
//!
//! It holds secrets, so it is written with mode 0600, and shown only with the secrets taken out. What makes no sense is
//! refused when it is written, not when the disk has failed.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::SystemTime,
};

use serde::{Deserialize, Serialize};

use super::sinks;
use crate::{
    api::alerts::Severity,
    state::{self, StateError},
};

/// Name of the file in the state directory.
pub const FILE: &str = "alerts.json";
/// What stands in the place of a secret.
pub const HIDDEN: &str = "********";
/// Sinks at most.
const SINKS_MAX: usize = 100;

/// The whole file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// 1.
    #[serde(default = "version")]
    pub version: u32,
    /// Name of this machine in messages; its own if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// After how many hours an open critical alert is told again; 0: never.
    #[serde(default = "remind_hours")]
    pub remind_hours: u64,
    /// Who is told.
    #[serde(default)]
    pub sinks: Vec<SinkConfig>,
    /// Where disks sit, by serial number, `/dev/disk/by-id` name or path: `bay 3`.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

/// One who is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SinkConfig {
    /// What an administrator calls it.
    pub name: String,
    /// How it is told.
    pub target: Target,
    /// Only what is at least so bad.
    #[serde(default)]
    pub min_severity: Severity,
    /// Only of these pools; all if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<String>,
    /// How long notices are collected into one message.
    #[serde(default = "digest_seconds")]
    pub digest_seconds: u64,
    /// Messages per hour at most; what comes meanwhile is in the next.
    #[serde(default = "per_hour")]
    pub per_hour: u32,
}

/// How somebody is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Target {
    /// By mail.
    Smtp(Smtp),
    /// By an HTTP request.
    Webhook(Webhook),
    /// By syslog.
    Syslog(Syslog),
}

/// A mail server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Smtp {
    /// Host name or address.
    pub server: String,
    /// 587 with STARTTLS, 465 with TLS, 25 without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// How the connection is protected.
    #[serde(default)]
    pub security: Security,
    /// Who logs in; nobody does without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// With what.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
    /// PLAIN or LOGIN; what the server offers if it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<Auth>,
    /// `Millpond <millpond@example.org>` or the bare address.
    pub from: String,
    /// Recipients.
    pub to: Vec<String>,
    /// Certificates (PEM) that are trusted besides those of the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// How long the server may take for each step.
    #[serde(default = "timeout_seconds")]
    pub timeout_seconds: u64,
}

/// How a connection to a mail server is protected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Security {
    /// Switched to TLS before anything is said; refused if the server cannot.
    #[default]
    Starttls,
    /// TLS from the first byte.
    Tls,
    /// In the clear: everybody on the way can read and change it.
    None,
}

/// How one logs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Auth {
    /// AUTH PLAIN
    Plain,
    /// AUTH LOGIN
    Login,
}

/// An HTTP server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Webhook {
    /// `https://…` or `http://…`
    pub url: String,
    /// Sent with each request. Their values are secrets: tokens stand in headers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
    /// Key of the signature in `X-Millpond-Signature-256`; there is none without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Certificates (PEM) that are trusted besides those of the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// How long all of it may take.
    #[serde(default = "timeout_seconds")]
    pub timeout_seconds: u64,
}

/// A syslog server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Syslog {
    /// `unix:/dev/log`, `udp://HOST:514`, `tcp://HOST:601`
    #[serde(default = "dev_log")]
    pub target: String,
    /// `daemon`, `local0`, …
    #[serde(default = "daemon_facility")]
    pub facility: String,
}

fn version() -> u32 {
    1
}

fn remind_hours() -> u64 {
    24
}

fn digest_seconds() -> u64 {
    15
}

fn per_hour() -> u32 {
    30
}

fn timeout_seconds() -> u64 {
    30
}

fn dev_log() -> String {
    "unix:/dev/log".to_owned()
}

fn daemon_facility() -> String {
    "daemon".to_owned()
}

impl Default for Config {
    fn default() -> Self {
        Self {
            version: 1,
            host: None,
            remind_hours: remind_hours(),
            sinks: Vec::new(),
            labels: BTreeMap::new(),
        }
    }
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read or written.
    #[error("cannot {doing} '{}'", path.display())]
    Io {
        /// `read`, `write`.
        doing: &'static str,
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It makes no sense: which sink, and why.
    #[error("{0}")]
    Invalid(String),
    /// Nobody else may change it meanwhile.
    #[error(transparent)]
    Lock(#[from] StateError),
    /// Nothing has the name.
    #[error("there is no sink '{0}'; 'millpond alert list' shows them")]
    NoSink(String),
}

impl ConfigError {
    /// Whether it is about what stands in the file, which was read.
    pub(crate) fn is_of_content(&self) -> bool {
        match self {
            Self::Io { source, .. } => state::makes_no_sense(source),
            Self::Invalid(_) | Self::NoSink(_) => true,
            Self::Lock(_) => false,
        }
    }
}

impl SinkConfig {
    /// With what is usual for everything but its name and target.
    #[must_use]
    pub fn new(name: impl Into<String>, target: Target) -> Self {
        Self {
            name: name.into(),
            target,
            min_severity: Severity::Info,
            pools: Vec::new(),
            digest_seconds: digest_seconds(),
            per_hour: per_hour(),
        }
    }

    /// Whether it can work at all.
    ///
    /// # Errors
    /// Why not, with the name.
    pub fn check(&self) -> Result<(), ConfigError> {
        let wrong = |why: String| ConfigError::Invalid(format!("sink '{}': {why}", self.name));
        self.check_limits().map_err(wrong)?;
        sinks::build(self, "localhost").map(drop).map_err(wrong)
    }

    /// What can be said of it without a look at the files it names.
    pub(crate) fn check_limits(&self) -> Result<(), String> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if self.name.is_empty() || self.name.len() > 64 || !self.name.chars().all(is_name) {
            return Err("a name is 1 to 64 letters, digits, '-', '_' and '.'".to_owned());
        }
        if !(1..=10_000).contains(&self.per_hour) {
            return Err("messages per hour are 1 to 10000".to_owned());
        }
        if self.digest_seconds > 86_400 {
            return Err("the digest window is a day at most".to_owned());
        }
        Ok(())
    }

    /// The same with every secret hidden.
    #[must_use]
    pub fn redacted(&self) -> Self {
        let mut shown = self.clone();
        let hide = |secret: &mut String| HIDDEN.clone_into(secret);
        match &mut shown.target {
            Target::Smtp(smtp) => smtp.password.iter_mut().for_each(hide),
            Target::Webhook(webhook) => {
                webhook.secret.iter_mut().for_each(hide);
                webhook.headers.iter_mut().for_each(|(_, value)| hide(value));
                webhook.url = sinks::webhook::without_secrets(&webhook.url);
            }
            Target::Syslog(_) => {}
        }
        shown
    }

    /// `smtp`, `webhook`, `syslog`
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self.target {
            Target::Smtp(_) => "smtp",
            Target::Webhook(_) => "webhook",
            Target::Syslog(_) => "syslog",
        }
    }

    /// Where it sends to, without secrets.
    #[must_use]
    pub fn destination(&self) -> String {
        match &self.target {
            Target::Smtp(smtp) => format!("{} via {}:{}", smtp.to.join(","), smtp.server, smtp.port()),
            Target::Webhook(webhook) => sinks::webhook::without_secrets(&webhook.url),
            Target::Syslog(syslog) => syslog.target.clone(),
        }
    }
}

impl Smtp {
    /// The port it is reached on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.unwrap_or(match self.security {
            Security::Starttls => 587,
            Security::Tls => 465,
            Security::None => 25,
        })
    }
}

impl Config {
    /// From a file; the default if there is none. With it, when the file was last changed. That a sink cannot work, because
    /// a certificate is gone for example, is no matter of the others: it is not looked at here.
    ///
    /// # Errors
    /// It cannot be read or makes no sense.
    pub fn load(path: &Path) -> Result<(Self, Option<SystemTime>), ConfigError> {
        let failed = |source| ConfigError::Io {
            doing: "read",
            path: path.to_owned(),
            source: without_content(source),
        };
        let changed = fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
        let Some(config) = state::read_json::<Self>(path).map_err(failed)? else {
            // It may have gone in between.
            return Ok((Self::default(), None));
        };
        config.check()?;
        let has_secrets = config.sinks.iter().any(|sink| sink.redacted() != *sink);
        if has_secrets && fs::metadata(path).is_ok_and(|metadata| metadata.mode() & 0o077 != 0) {
            tracing::warn!(path = %path.display(), "holds secrets and may be read by others: chmod 600 it");
        }
        Ok((config, changed))
    }

    /// The same with every secret hidden.
    #[must_use]
    pub(super) fn redacted(&self) -> Self {
        Self { sinks: self.sinks.iter().map(SinkConfig::redacted).collect(), ..self.clone() }
    }

    fn check(&self) -> Result<(), ConfigError> {
        if self.version != 1 {
            return Err(ConfigError::Invalid(format!("version {} is not known here", self.version)));
        }
        if self.sinks.len() > SINKS_MAX {
            return Err(ConfigError::Invalid(format!("more than {SINKS_MAX} sinks")));
        }
        for (at, sink) in self.sinks.iter().enumerate() {
            if self.sinks[..at].iter().any(|other| other.name == sink.name) {
                return Err(ConfigError::Invalid(format!("two sinks are called '{}'", sink.name)));
            }
        }
        Ok(())
    }

    /// Into a file that only its owner may read.
    ///
    /// # Errors
    /// It makes no sense, or cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), ConfigError> {
        self.check()?;
        let failed = |source| ConfigError::Io { doing: "write", path: path.to_owned(), source };
        let (Some(dir), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
            return Err(failed(io::ErrorKind::InvalidInput.into()));
        };
        let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
        state::replace_json(dir, name, self).map_err(failed)
    }

    /// Adds a sink.
    ///
    /// # Errors
    /// Its name is taken, or it makes no sense.
    pub fn add(&mut self, sink: SinkConfig) -> Result<(), ConfigError> {
        if self.sinks.iter().any(|other| other.name == sink.name) {
            let name = &sink.name;
            return Err(ConfigError::Invalid(format!(
                "there is a sink '{name}' already; remove it first: millpond alert remove {name}"
            )));
        }
        sink.check()?;
        self.sinks.push(sink);
        Ok(())
    }

    /// Takes one away.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn remove(&mut self, name: &str) -> Result<(), ConfigError> {
        let before = self.sinks.len();
        self.sinks.retain(|sink| sink.name != name);
        if self.sinks.len() == before { Err(ConfigError::NoSink(name.to_owned())) } else { Ok(()) }
    }

    /// Says where a disk sits, or no longer.
    ///
    /// # Errors
    /// It is too long to be a place.
    pub fn label(&mut self, disk: &str, place: Option<&str>) -> Result<(), ConfigError> {
        match place {
            Some(place) if place.chars().count() > 100 || place.chars().any(char::is_control) => {
                Err(ConfigError::Invalid("a place is one line of 100 characters at most".to_owned()))
            }
            Some(place) => {
                self.labels.insert(disk.to_owned(), place.to_owned());
                Ok(())
            }
            None if self.labels.remove(disk).is_some() => Ok(()),
            None => Err(ConfigError::Invalid(format!("'{disk}' has no label"))),
        }
    }
}

/// Why the file cannot be read, without a word of what stands in it: that may be a secret.
fn without_content(error: io::Error) -> io::Error {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<serde_json::Error>()) {
        Some(slip) => io::Error::new(error.kind(), slip_at(slip)),
        None => error,
    }
}

/// What was expected, and where.
fn slip_at(error: &serde_json::Error) -> String {
    const QUOTING: [&str; 5] =
        ["invalid type", "invalid value", "invalid length", "unknown field", "unknown variant"];
    let text = error.to_string();
    // What is wrong with the syntax is said in words of their own; and these name a field that is known here.
    if !error.is_data() || text.starts_with("missing field `") || text.starts_with("duplicate field `") {
        return text;
    }
    // invalid type: string "…", expected a tuple of size 2 at line 9 column 48
    let kind = QUOTING.iter().find(|kind| text.starts_with(**kind));
    match (kind, text.rfind(", expected ")) {
        (Some(kind), Some(at)) => format!("{kind}{}", &text[at..]),
        _ => format!("it makes no sense at line {} column {}", error.line(), error.column()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mail() -> SinkConfig {
        let smtp = Smtp {
            server: "mail.example.org".into(),
            port: None,
            security: Security::Starttls,
            user: Some("mill".into()),
            password: Some("hunter2".into()),
            auth: None,
            from: "mill@example.org".into(),
            to: vec!["ops@example.org".into()],
            ca: None,
            timeout_seconds: 30,
        };
        SinkConfig::new("mail", Target::Smtp(smtp))
    }

    #[test]
    fn what_was_written_is_read_again_and_only_by_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/alerts.json");
        assert_eq!(Config::load(&path).unwrap().0, Config::default());
        let mut config = Config::default();
        config.add(mail()).unwrap();
        config.label("WSD1", Some("bay 3")).unwrap();
        config.save(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(Config::load(&path).unwrap().0, config);
        assert!(config.add(mail()).unwrap_err().to_string().contains("alert remove mail"));
        assert!(config.remove("nope").is_err());
        config.remove("mail").unwrap();
        config.label("WSD1", None).unwrap();
        assert_eq!(config, Config::default());
    }

    #[test]
    fn secrets_are_never_shown() {
        let hook = Webhook {
            url: "https://user:pw@hooks.example.org/T0/B1?token=abc".into(),
            headers: vec![("Authorization".into(), "Bearer s3cret".into())],
            secret: Some("k3y".into()),
            ca: None,
            timeout_seconds: 5,
        };
        let hook = SinkConfig::new("hook", Target::Webhook(hook));
        let shown = format!("{:?}{:?}{}", mail().redacted(), hook.redacted(), hook.destination());
        for secret in ["hunter2", "s3cret", "k3y", "pw@", "abc"] {
            assert!(!shown.contains(secret), "{secret}: {shown}");
        }
        assert!(shown.contains("hooks.example.org"));
    }

    /// The journal and `millpond alert status` showed the value that was not wanted.
    #[test]
    fn a_slip_of_the_pen_is_told_without_what_stands_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("alerts.json");
        let said = |text: &str| {
            fs::write(&path, text).unwrap();
            let error = crate::host::chain(&Config::load(&path).unwrap_err());
            error.strip_prefix(&format!("cannot read '{}': ", path.display())).unwrap().to_owned()
        };
        let of = |fields: &str| said(&format!(r#"{{"sinks": [{{"name": "a", "target": {{{fields}}}}}]}}"#));
        for (fields, says) in [
            (
                r#""webhook": {"headers": ["Authorization: s3cret, expected "]}"#,
                "invalid type, expected a tuple of size 2 at line 1 column ",
            ),
            (r#""webhook": {"secret": 48151623}"#, "invalid type, expected a string at line 1 column "),
            (r#""smtp": {"port": 48151623}"#, "invalid value, expected u16 at line 1 column "),
            (
                r#""smtp": {"auth": "s3cret"}"#,
                "unknown variant, expected `plain` or `login` at line 1 column ",
            ),
            (
                r#""s3cret": {}"#,
                "unknown variant, expected one of `smtp`, `webhook`, `syslog` at line 1 column ",
            ),
            (
                r#""syslog": {"s3cret": 1}"#,
                "unknown field, expected `target` or `facility` at line 1 column ",
            ),
            (r#""webhook": {"secret": "s3cret"}"#, "missing field `url` at line 1 column "),
            (r#""webhook": {"url": "http://s3cret/" "#, "expected `,` or `}` at line 1 column "),
        ] {
            let said = of(fields);
            assert!(said.starts_with(says), "{fields}: {said}");
            assert!(!said.contains("s3cret") && !said.contains("48151623"), "{fields}: {said}");
        }
        // One that is taken for the name of a header cannot be used, and is not shown either.
        let headers = vec![("Authorization: s3cret".into(), "a".into())];
        let url = "http://hooks.example.org/".into();
        let hook = Webhook { url, headers, secret: None, ca: None, timeout_seconds: 5 };
        let said = SinkConfig::new("hook", Target::Webhook(hook)).check().unwrap_err().to_string();
        assert_eq!(said, "sink 'hook': the name of header 1 has characters it cannot have");
    }

    #[test]
    fn what_cannot_work_is_refused_before_a_disk_fails() {
        let with = |change: &dyn Fn(&mut Smtp)| {
            let mut sink = mail();
            if let Target::Smtp(smtp) = &mut sink.target {
                change(smtp);
            }
            sink.check().map_err(|error| error.to_string())
        };
        assert_eq!(with(&|_| {}), Ok(()));
        for (change, says) in [
            (
                &(|smtp: &mut Smtp| smtp.from = "nobody".into()) as &dyn Fn(&mut Smtp),
                "'nobody' is not a mail address",
            ),
            (&|smtp| smtp.to.clear(), "no recipient"),
            (&|smtp| smtp.security = Security::None, "password would be sent in the clear"),
            (&|smtp| smtp.password = None, "a user without a password"),
            (&|smtp| smtp.ca = Some("/nonexistent/ca.pem".into()), "/nonexistent/ca.pem"),
            (&|smtp| smtp.server = "a b".into(), "'a b' is not a host"),
        ] {
            let said = with(change).unwrap_err();
            assert!(said.contains(says) && said.starts_with("sink 'mail': "), "{said}");
        }
        for url in ["ftp://x/", "example.org", "https://", "http://[::1", "https://x y/"] {
            let hook =
                Webhook { url: url.into(), headers: Vec::new(), secret: None, ca: None, timeout_seconds: 1 };
            let error = SinkConfig::new("h", Target::Webhook(hook)).check().unwrap_err().to_string();
            assert!(error.contains("is not a URL"), "{url}: {error}");
        }
        for (target, facility, says) in [
            ("/dev/log", "daemon", "unix:/dev/log"),
            ("udp://host", "daemon", "udp://HOST:514"),
            ("unix:/dev/log", "deamon", "facility"),
        ] {
            let syslog = Syslog { target: target.into(), facility: facility.into() };
            let error = SinkConfig::new("s", Target::Syslog(syslog)).check().unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        assert!(SinkConfig { name: "a/b".into(), ..mail() }.check().is_err());
        assert!(SinkConfig { per_hour: 0, ..mail() }.check().is_err());
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("alerts.json");
        fs::write(&path, r#"{"version": 1, "sinks": [], "sinkz": []}"#).unwrap();
        assert!(Config::load(&path).is_err(), "a slip of the pen is told");
    }
}
