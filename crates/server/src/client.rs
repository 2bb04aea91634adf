//! Asks a daemon: HTTP over its control socket, one connection per question.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use engine::BoxFuture;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{
    Method, Request, Response,
    body::{Bytes, Incoming},
    header,
};
use hyper_util::rt::TokioIo;
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    net::UnixStream,
    time::{Instant, sleep},
};

use crate::{
    alerts::config::{Config, SinkConfig},
    api::{
        self, DatasetQuery,
        alerts::{AlertHistory, AlertStatus, Tested},
        events::{EventList, EventsCleared, Zevent},
        initiators::InitiatorList,
        prewarm::{PrewarmList, PrewarmWish},
        share::ShareList,
    },
    ops,
};

/// Longest answer taken: about a million datasets with all their properties would be more.
const ANSWER_MAX: usize = 1 << 30;

/// Where changes are made.
const OPERATIONS: &str = "/v1/ops";

/// Longest event taken, in bytes.
const LINE_MAX: usize = 1 << 20;

/// How long a daemon that ends is waited for: it finishes what was begun, and closes its pools.
const ENDS_WITHIN: Duration = Duration::from_secs(60);
/// How long it is waited, when it has ended, for one that comes in its place.
const BACK_WITHIN: Duration = Duration::from_secs(5);
/// How often it is looked.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// Nobody is there.
    #[error("no daemon answers on '{}'", path.display())]
    NoDaemon {
        /// The socket.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// Somebody is there and does not speak this API.
    #[error("the daemon on '{}' gave no usable answer: {reason}", path.display())]
    Protocol {
        /// The socket.
        path: PathBuf,
        /// What went wrong.
        reason: String,
    },
    /// It ends, and took nothing up.
    #[error("the daemon on '{}' is ending, and none has come in its place: try again", path.display())]
    Ending {
        /// The socket.
        path: PathBuf,
    },
    /// It ended when it had been asked.
    #[error("the daemon on '{}' ended before it answered{in_doubt}", path.display())]
    Ended {
        /// The socket.
        path: PathBuf,
        /// Of a change: that it may be made or not.
        in_doubt: &'static str,
    },
    /// The daemon says no. Its own sentence.
    #[error("{error}")]
    Refused {
        /// HTTP status: 404 if nothing has the name that was asked for.
        status: u16,
        /// The sentence.
        error: String,
        /// Exit code of a command, if it was one.
        code: Option<u8>,
    },
}

impl ClientError {
    /// Whether nothing has the name that was asked for.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { status: 404, .. })
    }

    /// Whether the daemon does not know what this program says to it, so that it is of another version.
    #[must_use]
    pub fn is_of_another_version(&self) -> bool {
        // What it understood and refuses has an exit code.
        let Self::Refused { status: 400, error, code: None } = self else { return false };
        error.contains("unknown field") || error.contains("unknown variant")
    }
}

/// An answer that is waited for.
type Asked<'a, T> = BoxFuture<'a, Result<T, ClientError>>;

/// A daemon's control socket.
#[derive(Clone, Debug)]
pub struct Client {
    path: PathBuf,
}

impl Client {
    /// Whoever is at `path`, if somebody is.
    ///
    /// # Errors
    /// Something is there and this user may not talk to it.
    pub fn find(path: &Path) -> Asked<'_, Option<Self>> {
        Box::pin(async move {
            match UnixStream::connect(path).await {
                Ok(_) => Ok(Some(Self { path: path.to_owned() })),
                // No socket, or one that a dead daemon left behind.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::NotFound
                            | io::ErrorKind::ConnectionRefused
                            | io::ErrorKind::NotADirectory
                    ) =>
                {
                    Ok(None)
                }
                Err(source) => Err(ClientError::NoDaemon { path: path.to_owned(), source }),
            }
        })
    }

    /// Who it is.
    ///
    /// # Errors
    /// See [`ClientError`]; so for all questions.
    pub fn version(&self) -> Asked<'_, api::Version> {
        self.get("/v1/version".to_owned())
    }

    /// All its pools.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn pools(&self) -> Asked<'_, Vec<api::Pool>> {
        self.get("/v1/pools".to_owned())
    }

    /// One of its pools.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn pool(&self, name: &str) -> Asked<'_, api::Pool> {
        self.get(format!("/v1/pools/{}", escape(name, "")))
    }

    /// Datasets of its pools.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn datasets(&self, query: &DatasetQuery) -> Asked<'_, api::Datasets> {
        let mut parts = Vec::new();
        let depth = query.depth.map(|depth| depth.to_string());
        for (key, value) in [
            ("name", &query.name),
            ("depth", &depth),
            ("types", &query.types),
            ("properties", &query.properties),
        ] {
            parts.extend(value.as_ref().map(|value| format!("{key}={}", escape(value, "/@,"))));
        }
        self.get(format!("/v1/datasets?{}", parts.join("&")))
    }

    /// What it serves.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn served(&self) -> Asked<'_, api::ServedList> {
        self.get("/v1/served".to_owned())
    }

    /// Who is offered what.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn share(&self) -> Asked<'_, ShareList> {
        self.get("/v1/share".to_owned())
    }

    /// Who is connected.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn initiators(&self) -> Asked<'_, InitiatorList> {
        self.get("/v1/initiators".to_owned())
    }

    /// What its intent logs were asked for, and what that took.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn log(&self) -> Asked<'_, api::log::LogList> {
        self.get("/v1/log".to_owned())
    }

    /// What its ARC counted and holds.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn arc(&self) -> Asked<'_, api::arc::Arc> {
        self.get("/v1/arc".to_owned())
    }

    /// What more memory or a cache device would be worth.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn advice(&self) -> Asked<'_, api::advice::AdviceList> {
        self.get("/v1/advice".to_owned())
    }

    /// What the devices of its pools have done, or of one of them.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn iostat(&self, pool: Option<&str>) -> Asked<'_, api::iostat::IostatList> {
        match pool {
            Some(name) => self.get(format!("/v1/iostat/{}", escape(name, ""))),
            None => self.get("/v1/iostat".to_owned()),
        }
    }

    /// How far pre-warming is.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn prewarm_state(&self) -> Asked<'_, PrewarmList> {
        self.get("/v1/prewarm".to_owned())
    }

    /// Begins it, or ends it; how far it is.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn prewarm(&self, wish: &PrewarmWish) -> Asked<'_, PrewarmList> {
        self.post("/v1/prewarm", wish)
    }

    /// Who holds how much memory.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn memory(&self) -> Asked<'_, api::memory::Memory> {
        self.get("/v1/memory".to_owned())
    }

    /// What happened since event number `since`, to all pools or one.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn events(&self, since: u64, pool: Option<&str>) -> Asked<'_, EventList> {
        self.get(events_path(since, pool, false))
    }

    /// The same, and what happens from now on: `each` gets every event, and says whether it wants more. Ends with the
    /// daemon.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn follow_events(
        &self,
        since: u64,
        pool: Option<&str>,
        mut each: impl FnMut(Zevent) -> bool,
    ) -> Result<(), ClientError> {
        let protocol = |reason: String| ClientError::Protocol { path: self.path.clone(), reason };
        let response = self.request(Method::GET, events_path(since, pool, true), Bytes::new()).await?;
        let mut body = response.into_body();
        let mut line = Vec::new();
        // A daemon that ends breaks the stream off; there is nothing to add to that.
        while let Some(Ok(frame)) = body.frame().await {
            let Ok(data) = frame.into_data() else { continue };
            for byte in data {
                if byte != b'\n' {
                    line.push(byte);
                    if line.len() > LINE_MAX {
                        return Err(protocol("an event is too long".to_owned()));
                    }
                    continue;
                }
                let event = serde_json::from_slice(&line).map_err(|error| protocol(error.to_string()))?;
                line.clear();
                if !each(event) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Lets it forget the events so far; how many there were.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn clear_events(&self) -> Asked<'_, u64> {
        Box::pin(async move {
            let cleared: EventsCleared = self.post("/v1/events/clear", &()).await?;
            Ok(cleared.cleared)
        })
    }

    /// Open alerts and how the sinks are.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn alerts(&self) -> Asked<'_, AlertStatus> {
        self.get("/v1/alerts".to_owned())
    }

    /// Alerts that are over.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn alert_history(&self) -> Asked<'_, AlertHistory> {
        self.get("/v1/alerts/history".to_owned())
    }

    /// Who is told of alerts, secrets hidden.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn alert_config(&self) -> Asked<'_, Config> {
        self.get("/v1/alerts/config".to_owned())
    }

    /// Somebody more is told.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn add_sink(&self, sink: &SinkConfig) -> Asked<'_, Config> {
        self.post("/v1/alerts/sinks", sink)
    }

    /// Somebody is told no longer.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn remove_sink(&self, name: &str) -> Asked<'_, Config> {
        self.send(Method::DELETE, format!("/v1/alerts/sinks/{}", escape(name, "")), Bytes::new())
    }

    /// Says where a disk sits, or no longer.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn label_disk(&self, disk: &str, place: Option<&str>) -> Asked<'_, Config> {
        self.post("/v1/alerts/labels", &serde_json::json!({ "disk": disk, "place": place }))
    }

    /// Sends a test through one sink or all.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn test_alerts(&self, sink: Option<&str>) -> Asked<'_, Vec<Tested>> {
        self.post("/v1/alerts/test", &serde_json::json!({ "sink": sink }))
    }

    /// Lets it do something.
    ///
    /// # Errors
    /// See [`ClientError`]; what is refused is [`ClientError::Refused`].
    pub fn operate(&self, request: &ops::Request) -> Asked<'_, ops::Answer> {
        self.post(OPERATIONS, request)
    }

    fn post<T: DeserializeOwned + Send>(&self, path: &str, body: &impl Serialize) -> Asked<'_, T> {
        let body = serde_json::to_vec(body)
            .map_err(|error| ClientError::Protocol { path: self.path.clone(), reason: error.to_string() });
        let path = path.to_owned();
        Box::pin(async move { self.send(Method::POST, path, Bytes::from(body?)).await })
    }

    fn get<T: DeserializeOwned + Send>(&self, path: String) -> Asked<'_, T> {
        self.send(Method::GET, path, Bytes::new())
    }

    fn send<T: DeserializeOwned + Send>(&self, method: Method, path: String, body: Bytes) -> Asked<'_, T> {
        Box::pin(async move {
            let in_doubt = in_doubt(&method, &path);
            let response = self.request(method, path, body).await?;
            let body = self.whole(response, in_doubt).await?;
            serde_json::from_slice(&body)
                .map_err(|error| ClientError::Protocol { path: self.path.clone(), reason: error.to_string() })
        })
    }

    /// All of an answer.
    async fn whole(
        &self,
        response: Response<Incoming>,
        in_doubt: &'static str,
    ) -> Result<Bytes, ClientError> {
        let body = Limited::new(response.into_body(), ANSWER_MAX).collect().await;
        let body =
            body.map_err(|error| match error.downcast_ref::<hyper::Error>().is_some_and(broke_off) {
                true => ClientError::Ended { path: self.path.clone(), in_doubt },
                false => ClientError::Protocol { path: self.path.clone(), reason: error.to_string() },
            })?;
        Ok(body.to_bytes())
    }

    /// Asks; the answer is one of success. Where a daemon ends, the one that comes in its place is asked.
    fn request(&self, method: Method, path: String, body: Bytes) -> Asked<'_, Response<Incoming>> {
        Box::pin(async move {
            let mut deadline: Option<Instant> = None;
            loop {
                let answer = self.ask(method.clone(), path.clone(), body.clone()).await;
                let patience = match &answer {
                    Err(ClientError::Ending { .. }) => ENDS_WITHIN,
                    // Nothing can have been done: it was not heard, or only asked about something.
                    Err(ClientError::NoDaemon { .. } | ClientError::Ended { in_doubt: "", .. })
                        if deadline.is_some() =>
                    {
                        BACK_WITHIN
                    }
                    _ => return answer,
                };
                let now = Instant::now();
                let until = deadline.map_or(now + patience, |deadline| deadline.min(now + patience));
                if now >= until {
                    return Err(ClientError::Ending { path: self.path.clone() });
                }
                deadline = Some(until);
                sleep(ASK_AGAIN).await;
            }
        })
    }

    /// Asks once.
    fn ask(&self, method: Method, path: String, body: Bytes) -> Asked<'_, Response<Incoming>> {
        Box::pin(async move {
            let protocol = |reason: String| ClientError::Protocol { path: self.path.clone(), reason };
            let stream = UnixStream::connect(&self.path)
                .await
                .map_err(|source| ClientError::NoDaemon { path: self.path.clone(), source })?;
            let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
                .await
                .map_err(|error| protocol(error.to_string()))?;
            // Ends with the sender.
            tokio::spawn(connection);
            let in_doubt = in_doubt(&method, &path);
            let request = Request::builder()
                .method(method)
                .uri(path)
                .header(header::HOST, "millpond")
                .header(header::CONTENT_TYPE, "application/json")
                .body(Full::new(body))
                .map_err(|error| protocol(error.to_string()))?;
            let response = sender.send_request(request).await.map_err(|error| match broke_off(&error) {
                true => ClientError::Ended { path: self.path.clone(), in_doubt },
                false => protocol(error.to_string()),
            })?;
            let status = response.status();
            if status.is_success() {
                return Ok(response);
            }
            if response.headers().contains_key(header::RETRY_AFTER) {
                return Err(ClientError::Ending { path: self.path.clone() });
            }
            let body = self.whole(response, in_doubt).await?;
            match serde_json::from_slice::<api::Failure>(&body) {
                Ok(api::Failure { error, code }) => {
                    Err(ClientError::Refused { status: status.as_u16(), error, code })
                }
                Err(_) => Err(protocol(format!("HTTP {status}"))),
            }
        })
    }
}

/// Whether whoever was asked went away: no word of an answer or half of one, where an odd one would be another error.
fn broke_off(error: &hyper::Error) -> bool {
    let source = std::error::Error::source(error);
    // A question that did not get out: why is below it.
    if let Some(cause) = source.and_then(|source| source.downcast_ref::<hyper::Error>()) {
        return broke_off(cause);
    }
    let is_of_the_system = source.is_some_and(|source| source.is::<io::Error>());
    error.is_incomplete_message() || error.is_canceled() || is_of_the_system
}

/// What is to be said when whoever was asked this went away.
fn in_doubt(method: &Method, path: &str) -> &'static str {
    if path == OPERATIONS {
        "; whether it was done is not known: see `zfs list`, `zpool status` or `zpool history`"
    } else if *method == Method::GET {
        ""
    } else {
        "; whether it was done is not known"
    }
}

fn events_path(since: u64, pool: Option<&str>, follow: bool) -> String {
    let pool = pool.map(|pool| format!("&pool={}", escape(pool, ""))).unwrap_or_default();
    format!("/v1/events?since={since}&follow={follow}{pool}")
}

/// Percent-encodes everything but letters, digits, `-._~:` and the characters of `keep`.
#[must_use]
pub fn escape(text: &str, keep: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:".contains(&byte) || keep.as_bytes().contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn whatever_a_name_may_have_survives_a_url() {
        assert_eq!(escape("tank/vm 1@a%b", "/@"), "tank/vm%201@a%25b");
        assert_eq!(escape("a/b#c&d=e+f?", ""), "a%2Fb%23c%26d%3De%2Bf%3F");
        assert_eq!(escape("ä", ""), "%C3%A4");
    }
}
