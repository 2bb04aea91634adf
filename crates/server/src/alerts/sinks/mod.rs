//! The ways out: mail, HTTP, syslog. Each takes a message and says what the other side answered.

use std::{fmt, io, sync::Arc, time::Duration};

use engine::BoxFuture;

mod bounded;
pub(crate) mod smtp;
pub(crate) mod syslog;
mod tls;
pub(crate) mod webhook;

use super::{
    config::{SinkConfig, Target},
    message::Message,
};

/// Why a message was not taken. The text is for an administrator: it names the server's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SendError {
    pub(crate) text: String,
    /// When the other side wants to be asked again.
    pub(crate) after: Option<Duration>,
    /// Some of those it is for have it: they are not to wait long for what comes next.
    pub(crate) partly: bool,
}

impl SendError {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), after: None, partly: false }
    }

    fn io(what: &str, error: &io::Error) -> Self {
        Self::new(format!("{what}: {error}"))
    }
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A way out.
pub(crate) trait Sink: fmt::Debug + Send + Sync + 'static {
    /// Sends; what the other side answered. Ends by itself within the time its configuration allows.
    fn send<'a>(&'a self, message: &'a Message) -> BoxFuture<'a, Result<String, SendError>>;
}

/// A sink as configured. `host` is this machine's name.
///
/// # Errors
/// Its configuration cannot work: why.
pub(crate) fn build(config: &SinkConfig, host: &str) -> Result<Arc<dyn Sink>, String> {
    Ok(match &config.target {
        Target::Smtp(smtp) => Arc::new(smtp::SmtpSink::new(smtp, host)?),
        Target::Webhook(webhook) => Arc::new(webhook::WebhookSink::new(webhook)?),
        Target::Syslog(syslog) => Arc::new(syslog::SyslogSink::new(syslog, host)?),
    })
}

/// `HOST:PORT`, `[V6]:PORT`, or without a port.
fn host_and_port(text: &str) -> Option<(String, Option<u16>)> {
    let authority: hyper::http::uri::Authority = text.parse().ok()?;
    let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
    let has_port =
        text.rsplit_once(':').is_some_and(|(before, _)| !before.contains(':') || before.ends_with(']'));
    let is_plain = !text.contains('@') && !host.is_empty();
    match (is_plain, has_port, authority.port_u16()) {
        (false, _, _) | (true, true, None) => None,
        (true, _, port) => Some((host, port)),
    }
}

/// An error and its causes in one line.
fn chain(error: &dyn std::error::Error) -> String {
    crate::host::chain(error)
}
