//! Mail: one message to all recipients, through a mail server that takes it (a smart host). The protocol and the
//! message format are `lettre`'s.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use engine::BoxFuture;
use lettre::{
    AsyncSmtpTransport, AsyncTransport as _, Tokio1Executor,
    address::Envelope,
    message::{
        Mailbox,
        header::{ContentType, HeaderName, HeaderValue, MIME_VERSION_1_0},
    },
    transport::smtp::{
        authentication::{Credentials, Mechanism},
        client::{Certificate, Tls, TlsParameters},
        extension::ClientId,
    },
};
use tokio::time::timeout;

use super::{Message, SendError, Sink, chain, host_and_port, tls};
use crate::alerts::config::{Auth, Security, Smtp};

/// All steps together, as a multiple of the time for one: connect, greeting, TLS, login, envelope, message.
const STEPS: u32 = 6;
/// Recipients at most.
const RECIPIENTS_MAX: usize = 100;

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct SmtpSink {
    transport: AsyncSmtpTransport<Tokio1Executor>,
    from: Mailbox,
    to: Vec<Mailbox>,
    server: String,
    patience: Duration,
    sent: AtomicU64,
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
        let tls = match config.security {
            Security::Starttls => Tls::Required(parameters()?),
            Security::Tls => Tls::Wrapper(parameters()?),
            Security::None => Tls::None,
        };
        let patience = Duration::from_secs(config.timeout_seconds.clamp(1, 600));
        let client = host.chars().all(|c| c.is_ascii_alphanumeric() || "-.".contains(c)) && !host.is_empty();
        let client = if client { host.to_owned() } else { "localhost".to_owned() };
        let mut builder = AsyncSmtpTransport::<Tokio1Executor>::builder_dangerous(&config.server)
            .port(config.port())
            .tls(tls)
            .hello_name(ClientId::Domain(client))
            .timeout(Some(patience));
        match (&config.user, &config.password) {
            (Some(_), None) => return Err("a user without a password".to_owned()),
            (None, Some(_)) => return Err("a password without a user".to_owned()),
            (Some(_), Some(_)) if config.security == Security::None => {
                return Err("the password would be sent in the clear: use starttls or tls".to_owned());
            }
            (Some(user), Some(password)) => {
                builder = builder.credentials(Credentials::new(user.clone(), password.clone()));
            }
            (None, None) => {}
        }
        builder = builder.authentication(match config.auth {
            Some(Auth::Plain) => vec![Mechanism::Plain],
            Some(Auth::Login) => vec![Mechanism::Login],
            None => vec![Mechanism::Plain, Mechanism::Login],
        });
        let server = format!("{}:{}", config.server, config.port());
        Ok(Self { transport: builder.build(), from, to, server, patience, sent: AtomicU64::new(0) })
    }

    fn mail(&self, message: &Message) -> Result<Vec<u8>, SendError> {
        let wrong = |error: &dyn std::error::Error| {
            SendError::new(format!("no mail could be made: {}", chain(error)))
        };
        // Unique in this machine: when, which process, which message of it.
        let number = self.sent.fetch_add(1, Relaxed);
        let domain = self.from.email.domain();
        let id = format!("<millpond.{}.{}.{number}@{domain}>", message.time, std::process::id());
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
        let mail = self.mail(message)?;
        match self.hand_over(&self.to, &mail).await {
            Err(failed) if failed.permanent && self.to.len() > 1 => {
                // One address that is refused must not keep the others from knowing.
                let (mut taken, mut refused) = (Vec::new(), Vec::new());
                for to in &self.to {
                    match self.hand_over(std::slice::from_ref(to), &mail).await {
                        Ok(answer) => taken.push(format!("{}: {answer}", to.email)),
                        Err(failed) => refused.push(format!("{}: {}", to.email, failed.text)),
                    }
                }
                match taken.is_empty() {
                    true => Err(SendError::new(refused.join("; "))),
                    false => {
                        tracing::warn!(
                            server = self.server,
                            refused = refused.join("; "),
                            "mail: recipients refused"
                        );
                        Ok(taken.into_iter().chain(refused).collect::<Vec<_>>().join("; "))
                    }
                }
            }
            Err(failed) => Err(SendError::new(failed.text)),
            Ok(answer) => Ok(answer),
        }
    }

    async fn hand_over(&self, to: &[Mailbox], mail: &[u8]) -> Result<String, Failed> {
        let addresses = to.iter().map(|to| to.email.clone()).collect();
        let envelope = Envelope::new(Some(self.from.email.clone()), addresses)
            .map_err(|error| Failed { text: chain(&error), permanent: true })?;
        match self.transport.send_raw(&envelope, mail).await {
            Ok(response) => {
                let lines: Vec<&str> = response.message().collect();
                Ok(format!("{} answered {} {}", self.server, response.code(), lines.join(" ")))
            }
            Err(error) => {
                let kind = match error.status() {
                    Some(code) => format!("{} answered {code}", self.server),
                    None => self.server.clone(),
                };
                Err(Failed { text: format!("{kind}: {}", chain(&error)), permanent: error.is_permanent() })
            }
        }
    }
}

/// Why a server did not take a mail.
struct Failed {
    text: String,
    permanent: bool,
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
