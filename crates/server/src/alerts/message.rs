//! What is sent: several notices, put into one message.
//!
//! People get a subject, which is the first line of the worst of them, and a body with all of them; programs get them as they
//! are. What the lines of a notice say is in its finding; here is how they stand below each other.

use std::fmt::Write as _;

use crate::{
    api::alerts::{Alert, AlertDevice, Notice, Occasion, Severity},
    view,
};

/// What is sent.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    /// This machine.
    pub(crate) host: String,
    /// Seconds since 1970.
    pub(crate) time: u64,
    /// One line.
    pub(crate) subject: String,
    /// All of it for people.
    pub(crate) body: String,
    /// All of it for programs.
    pub(crate) notices: Vec<Notice>,
    /// Notices that were lost before these.
    pub(crate) dropped: u64,
}

impl Message {
    /// Puts notices into one message. `dropped` came before them and are lost.
    pub(crate) fn new(host: &str, time: u64, notices: Vec<Notice>, dropped: u64) -> Self {
        let (subject, body) = (subject(host, &notices), body(host, &notices, dropped));
        Self { host: host.to_owned(), time, subject, body, notices, dropped }
    }
}

/// The first line of a notice: what a list of subjects shows.
pub(crate) fn headline(notice: &Notice) -> String {
    let Alert { finding, .. } = &notice.alert;
    let device = finding.device.as_ref().map(short).unwrap_or_default();
    let pool = match finding.pool.as_str() {
        "" => String::new(),
        // Some titles name the pool themselves.
        pool if finding.title.contains(&format!("'{pool}'")) => String::new(),
        pool => format!("{pool}: "),
    };
    let prefix = match notice.occasion {
        // Not "resolved": titles say how it was, and may say of a disk that it is gone.
        Occasion::Resolved => "OVER: ",
        Occasion::Worse => "WORSE: ",
        Occasion::Reminder => "STILL: ",
        _ => "",
    };
    format!("{prefix}{pool}{}{device}", finding.title)
}

/// One line about a device: what it is called, and what stands on it.
pub(crate) fn short(device: &AlertDevice) -> String {
    let mut about = Vec::new();
    about.extend(device.model.clone());
    about.extend(device.serial.as_ref().map(|serial| format!("serial {serial}")));
    about.extend(device.bay.clone());
    if about.is_empty() { String::new() } else { format!(" [{}]", about.join(", ")) }
}

fn subject(host: &str, notices: &[Notice]) -> String {
    let worst = notices
        .iter()
        .filter(|notice| notice.occasion != Occasion::Resolved)
        .max_by_key(|notice| notice.alert.finding.severity)
        .or_else(|| notices.first());
    let head = worst.map(headline).unwrap_or_default();
    let more = match notices.len() {
        0 | 1 => String::new(),
        many => format!(" (and {} more)", many - 1),
    };
    let severity = match worst {
        Some(notice) if notice.occasion != Occasion::Resolved => notice.alert.finding.severity,
        _ => Severity::Info,
    };
    let mark = if severity == Severity::Critical { "CRITICAL: " } else { "" };
    format!("[{host}] {mark}{head}{more}")
}

fn body(host: &str, notices: &[Notice], dropped: u64) -> String {
    let mut body = String::new();
    if dropped > 0 {
        let _infallible = writeln!(
            body,
            "{dropped} older notices were dropped: more came than could be delivered. 'millpond alert history' may have them.\n"
        );
    }
    for (at, notice) in notices.iter().enumerate() {
        if at > 0 {
            body.push_str("\n----------------------------------------\n\n");
        }
        body.push_str(&one(notice));
    }
    let _infallible = write!(body, "\n-- \nMillpond on {host}. Open alerts: 'millpond alert status'.\n");
    body
}

fn one(notice: &Notice) -> String {
    let Alert { finding, opened, resolved, returned, .. } = &notice.alert;
    let mut text = format!("{}\n\n", headline(notice));
    let when = match (notice.occasion, resolved) {
        (Occasion::Resolved, Some(resolved)) => {
            format!("resolved {}, opened {}", view::timestamp(*resolved), view::timestamp(*opened))
        }
        (Occasion::Worse | Occasion::Reminder, _) => {
            format!("{}, opened {}", view::timestamp(notice.time), view::timestamp(*opened))
        }
        _ => view::timestamp(notice.time),
    };
    let mut fields = vec![("When", when), ("Severity", finding.severity.word().to_owned())];
    if !finding.pool.is_empty() {
        fields.push(("Pool", finding.pool.clone()));
    }
    if let Some(device) = &finding.device {
        let given = [
            ("Device", device.path.clone().or_else(|| Some(device.name.clone()))),
            ("By id", device.by_id.clone()),
            ("Model", device.model.clone()),
            ("Serial", device.serial.clone()),
            ("Bay", device.bay.clone()),
            ("Size", device.bytes.map(pool::status::human)),
            ("Part of", device.part_of.clone()),
        ];
        fields.extend(given.into_iter().filter_map(|(name, value)| Some((name, value?))));
    }
    if *returned > 0 {
        fields.push(("Note", format!("it came and went {returned} times")));
    }
    for (name, value) in fields {
        let _infallible = writeln!(text, "  {:<10}{value}", format!("{name}:"));
    }
    if notice.occasion != Occasion::Resolved {
        let _infallible = writeln!(text, "\nWhat it means: {}", finding.meaning);
        if !finding.action.is_empty() {
            text.push_str("\nWhat to do:\n");
            for line in &finding.action {
                let _infallible = writeln!(text, "  {line}");
            }
        }
    }
    text
}
