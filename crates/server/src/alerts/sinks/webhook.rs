//! A webhook: one POST with a JSON body per message. Redirects are not followed and no proxy is asked: where alerts go
//! is what the administrator wrote.
//!
//! With a secret, `X-Millpond-Signature-256: sha256=HEX` is the HMAC-SHA256 of the body, so that the receiver knows who
//! sent it.

use std::{path::Path, pin::pin, time::Duration};

use engine::BoxFuture;
use futures_util::{FutureExt as _, future::FusedFuture};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{
    Method, Request, StatusCode, Uri,
    body::Bytes,
    header::{self, HeaderName, HeaderValue},
    http::uri::Scheme,
};
use hyper_util::rt::TokioIo;
use ring::hmac;
use serde::Serialize;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::{Instant, timeout, timeout_at},
};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

use super::{Message, SendError, Sink, chain, tls};
use crate::{alerts::config::Webhook, api::alerts::Notice};

/// Of an answer, what is read: enough for a sentence.
const ANSWER_MAX: usize = 4 << 10;
/// How long that is waited for. What became of the message is known before.
const ANSWER_PATIENCE: Duration = Duration::from_secs(1);
/// Of that, what is shown.
const SHOWN_MAX: usize = 200;

/// The body.
#[derive(Debug, Serialize)]
struct Body<'a> {
    version: u32,
    host: &'a str,
    time: u64,
    subject: &'a str,
    text: &'a str,
    dropped: u64,
    notices: &'a [Notice],
}

/// See the head of this file.
pub(crate) struct WebhookSink {
    url: Uri,
    host: String,
    port: u16,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    headers: Vec<(HeaderName, HeaderValue)>,
    key: Option<hmac::Key>,
    patience: Duration,
}

impl std::fmt::Debug for WebhookSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WebhookSink({}:{})", self.host, self.port)
    }
}

/// A URL without what may be a secret: user, password, query; and most of its path, because some services have the token
/// there.
pub(crate) fn without_secrets(url: &str) -> String {
    let Ok(uri) = url.parse::<Uri>() else { return "(not a URL)".to_owned() };
    let (Some(scheme), Some(host)) = (uri.scheme_str(), uri.host()) else { return "(not a URL)".to_owned() };
    let port = uri.port_u16().map(|port| format!(":{port}")).unwrap_or_default();
    let first: String = uri.path().chars().take(8).collect();
    let more = if first.len() < uri.path().len() || uri.query().is_some() { "…" } else { "" };
    format!("{scheme}://{host}{port}{first}{more}")
}

impl WebhookSink {
    pub(crate) fn new(config: &Webhook) -> Result<Self, String> {
        let wrong = || format!("'{}' is not a URL: give https://HOST/PATH", without_secrets(&config.url));
        let url: Uri = config.url.parse().map_err(|_| wrong())?;
        let host = url.host().filter(|host| !host.is_empty()).ok_or_else(wrong)?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let is_https = match url.scheme() {
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            Some(scheme) if *scheme == Scheme::HTTP => false,
            _ => return Err(wrong()),
        };
        if url.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err("give the password in a header (Authorization: Basic …), not in the URL".to_owned());
        }
        let tls = match is_https {
            true => {
                let name = ServerName::try_from(host.clone()).map_err(|_| wrong())?;
                Some((tls::connector(config.ca.as_deref().map(Path::new))?, name))
            }
            false => None,
        };
        let mut headers = Vec::new();
        for (number, (name, value)) in (1..).zip(&config.headers) {
            // Not shown: by a slip it may be the whole header.
            let parsed = name
                .parse::<HeaderName>()
                .map_err(|_| format!("the name of header {number} has characters it cannot have"))?;
            if [header::HOST, header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::CONNECTION]
                .contains(&parsed)
            {
                return Err(format!("header '{name}' cannot be given"));
            }
            let mut value = HeaderValue::from_str(value)
                .map_err(|_| format!("the value of header '{name}' has characters it cannot have"))?;
            value.set_sensitive(true);
            headers.push((parsed, value));
        }
        let key = config.secret.as_ref().map(|secret| hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()));
        let port = url.port_u16().unwrap_or(if is_https { 443 } else { 80 });
        let patience = Duration::from_secs(config.timeout_seconds.clamp(1, 600));
        Ok(Self { url, host, port, tls, headers, key, patience })
    }

    fn request(&self, message: &Message) -> Result<Request<Full<Bytes>>, SendError> {
        let body = Body {
            version: 1,
            host: &message.host,
            time: message.time,
            subject: &message.subject,
            text: &message.body,
            dropped: message.dropped,
            notices: &message.notices,
        };
        let wrong = |error: &dyn std::error::Error| {
            SendError::new(format!("no request could be made: {}", chain(error)))
        };
        let body = serde_json::to_vec(&body).map_err(|error| wrong(&error))?;
        let path = self.url.path_and_query().map_or("/", |path| path.as_str());
        let authority = self.url.authority().map_or("", |authority| authority.as_str());
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header(header::HOST, authority)
            .header(header::USER_AGENT, concat!("millpond/", env!("CARGO_PKG_VERSION")))
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::CONNECTION, "close");
        if let Some(key) = &self.key {
            let tag = hmac::sign(key, &body);
            let hex: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
            request = request.header("X-Millpond-Signature-256", format!("sha256={hex}"));
        }
        let mut request = request.body(Full::new(Bytes::from(body))).map_err(|error| wrong(&error))?;
        // The administrator's take the place of ours.
        for (name, value) in &self.headers {
            request.headers_mut().insert(name, value.clone());
        }
        Ok(request)
    }

    async fn deliver(&self, message: &Message) -> Result<String, SendError> {
        let request = self.request(message)?;
        let until = Instant::now() + self.patience;
        let what = format!("cannot connect to {}:{}", self.host, self.port);
        let stream = self.in_time(until, TcpStream::connect((self.host.as_str(), self.port))).await?;
        let stream = stream.map_err(|error| SendError::io(&what, &error))?;
        match &self.tls {
            None => self.exchange(stream, request, until).await,
            Some((connector, name)) => {
                let stream = self.in_time(until, connector.connect(name.clone(), stream)).await?;
                let what = format!("TLS with {}:{} failed", self.host, self.port);
                let stream = stream.map_err(|error| SendError::io(&what, &error))?;
                self.exchange(stream, request, until).await
            }
        }
    }

    async fn in_time<T>(&self, until: Instant, done: impl Future<Output = T>) -> Result<T, SendError> {
        let late = || format!("{}:{}: no answer within {} s", self.host, self.port, self.patience.as_secs());
        timeout_at(until, done).await.map_err(|_| SendError::new(late()))
    }

    /// The head of the answer decides: what comes behind it may be endless, break off, or not come at all.
    async fn exchange(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        request: Request<Full<Bytes>>,
        until: Instant,
    ) -> Result<String, SendError> {
        let who = format!("{}:{}", self.host, self.port);
        let failed = |error: hyper::Error| SendError::new(format!("{who}: {}", chain(&error)));
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
        // Polled beside the request, and dropped with it: nothing outlives the message.
        let mut connection = pin!(connection.fuse());
        let head = beside(&mut connection, sender.send_request(request));
        let (parts, body) = self.in_time(until, head).await?.map_err(failed)?.into_parts();
        let body = beside(&mut connection, Limited::new(body, ANSWER_MAX).collect());
        let body = match timeout(ANSWER_PATIENCE, body).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(_)) | Err(_) => Bytes::new(),
        };
        let text = String::from_utf8_lossy(&body);
        let text: String =
            text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(SHOWN_MAX).collect();
        let answer =
            format!("{who} answered {}{}{text}", parts.status, if text.is_empty() { "" } else { ": " });
        if parts.status.is_success() {
            return Ok(answer);
        }
        let is_busy =
            [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE].contains(&parts.status);
        let after = parts.headers.get(header::RETRY_AFTER).filter(|_| is_busy);
        let after = after.and_then(|after| after.to_str().ok()?.trim().parse::<u64>().ok());
        Err(SendError { after: after.map(Duration::from_secs), ..SendError::new(answer) })
    }
}

/// What is waited for, while the connection is served: how that ends is told to whoever waits.
async fn beside<T>(connection: &mut (impl FusedFuture + Unpin), done: impl Future<Output = T>) -> T {
    let mut done = pin!(done);
    loop {
        tokio::select! {
            biased;
            done = &mut done => return done,
            _ended = &mut *connection, if !connection.is_terminated() => {}
        }
    }
}

impl Sink for WebhookSink {
    fn send<'a>(&'a self, message: &'a Message) -> BoxFuture<'a, Result<String, SendError>> {
        Box::pin(self.deliver(message))
    }
}
