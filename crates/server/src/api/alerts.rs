//! Alerts, as `/v1/alerts…` tells them and webhooks carry them.

use serde::{Deserialize, Serialize};

/// How bad it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Good to know.
    #[default]
    Info,
    /// Somebody should look at it within a day or so.
    Warning,
    /// Data or service is lost, or the next failure loses it: now.
    Critical,
}

impl Severity {
    /// The word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

/// What an alert is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Kind {
    /// A device is degraded, removed, unavailable or faulted.
    Device,
    /// A device has errors, and is still in use.
    Errors,
    /// A device is far slower than its peers.
    Slow,
    /// The intent log cannot use a log device.
    LogDevice,
    /// A hot spare stands in for a device.
    Spare,
    /// The pool is degraded or unavailable.
    Pool,
    /// The pool writes nothing any more.
    Suspended,
    /// Little space is left.
    Space,
    /// Blocks are lost for good.
    DataLost,
    /// A scrub ended and found errors.
    Scrub,
    /// A resilver ended.
    Resilver,
    /// A certificate, or what belongs to it, runs out.
    Certificate,
    /// Alerts cannot be delivered.
    Delivery,
    /// Somebody wanted to see whether alerts arrive.
    Test,
}

impl Kind {
    /// The word in JSON and in lists.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Errors => "errors",
            Self::Slow => "slow",
            Self::LogDevice => "log-device",
            Self::Spare => "spare",
            Self::Pool => "pool",
            Self::Suspended => "suspended",
            Self::Space => "space",
            Self::DataLost => "data-lost",
            Self::Scrub => "scrub",
            Self::Resilver => "resilver",
            Self::Certificate => "certificate",
            Self::Delivery => "delivery",
            Self::Test => "test",
        }
    }
}

/// A device, as a person finds it in the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AlertDevice {
    /// As `zpool status` shows it, or showed it when it was there.
    pub name: String,
    /// Guid, in decimal.
    pub guid: String,
    /// Path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Its name in `/dev/disk/by-id`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_id: Option<String>,
    /// Model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Serial number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Where it sits, as the enclosure or an administrator says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bay: Option<String>,
    /// The device it is a part of: `raidz2-0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part_of: Option<String>,
}

/// Something that is wrong, or that somebody wants to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What it is about.
    pub kind: Kind,
    /// How bad.
    pub severity: Severity,
    /// Within the kind: larger is worse (space: the threshold, errors: their magnitude).
    pub level: u32,
    /// Name of the pool; empty if it is about none.
    pub pool: String,
    /// Its guid, in decimal.
    pub pool_guid: String,
    /// Which device, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<AlertDevice>,
    /// Which sink, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sink: Option<String>,
    /// Which file, if it is about one: its path, or its name in the state directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// What is the matter, in one line.
    pub title: String,
    /// What that means.
    pub meaning: String,
    /// What to do: sentences, and commands on lines of their own that begin with two spaces.
    pub action: Vec<String>,
}

impl Finding {
    /// About nothing that has a name, and without a word of it so far.
    pub(crate) fn new(kind: Kind, severity: Severity, level: u32) -> Self {
        Self {
            kind,
            severity,
            level,
            pool: String::new(),
            pool_guid: String::new(),
            device: None,
            sink: None,
            file: None,
            title: String::new(),
            meaning: String::new(),
            action: Vec::new(),
        }
    }
}

/// A condition that has ended, and is not taken as over yet. In seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gone {
    /// When it ended.
    pub since: u64,
    /// When the alert is over, unless it comes back before.
    pub over: u64,
}

/// An alert.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alert {
    /// Counts from 1 in each state directory; from the time, in seconds since 1970, where it could not be read how far it had
    /// counted.
    pub id: u64,
    /// Seconds since 1970.
    pub opened: u64,
    /// When it last got worse; when it was opened, if it did not.
    pub changed: u64,
    /// When the condition had ended; none while it lasts, and of notices that tell of something done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved: Option<u64>,
    /// How often the condition ended and came back before it was taken as over.
    #[serde(default)]
    pub returned: u32,
    /// Its condition has ended, and is waited for to come back; only of open alerts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone: Option<Gone>,
    /// The worst it was when somebody was told of it.
    #[serde(default)]
    pub worst: Severity,
    /// What is the matter.
    #[serde(flatten)]
    pub finding: Finding,
}

impl Alert {
    /// One that begins at `opened`.
    pub(crate) fn new(id: u64, opened: u64, finding: Finding) -> Self {
        let worst = finding.severity;
        Self { id, opened, changed: opened, resolved: None, returned: 0, gone: None, worst, finding }
    }
}

/// Why somebody is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Occasion {
    /// It began.
    Opened,
    /// It became worse.
    Worse,
    /// It still lasts.
    Reminder,
    /// It is over.
    Resolved,
    /// Something happened that is over already.
    Notice,
    /// A test.
    Test,
}

impl Occasion {
    /// The word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Opened => "opened",
            Self::Worse => "worse",
            Self::Reminder => "reminder",
            Self::Resolved => "resolved",
            Self::Notice => "notice",
            Self::Test => "test",
        }
    }
}

/// One thing that is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// Why now.
    pub occasion: Occasion,
    /// When, seconds since 1970.
    pub time: u64,
    /// Of what.
    pub alert: Alert,
}

/// How a sink is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SinkStatus {
    /// Its name.
    pub name: String,
    /// `smtp`, `webhook`, `syslog`.
    pub kind: String,
    /// Where it sends to, without secrets.
    pub target: String,
    /// Notices that wait.
    pub queued: u64,
    /// Messages sent.
    pub sent: u64,
    /// Notices that were dropped because the queue was full or they were too old.
    pub dropped: u64,
    /// Failures in a row.
    pub failures: u64,
    /// What went wrong last, if that was after the last success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// When it last succeeded, seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_success: Option<u64>,
    /// When it is tried next, if something waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_try: Option<u64>,
}

/// Answer of `/v1/alerts`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlertStatus {
    /// Alerts that are open, the worst first.
    pub open: Vec<Alert>,
    /// The sinks.
    pub sinks: Vec<SinkStatus>,
    /// What is wrong with the configuration, if something is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Answer of `/v1/alerts/history`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlertHistory {
    /// Alerts that are over, and notices, oldest first.
    pub alerts: Vec<Alert>,
}

/// What became of a test message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tested {
    /// Which sink.
    pub sink: String,
    /// Whether it was taken.
    pub delivered: bool,
    /// What the other side answered, or what went wrong.
    pub answer: String,
}
