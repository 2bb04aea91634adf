//! The control socket: HTTP and JSON over a Unix socket that only its owner may use.
//!
//! Paths and answers: `docs/api.md`.

use std::{io, path::Path, sync::Arc};

use axum::{
    Json, Router,
    extract::{self, DefaultBodyLimit, State, rejection::JsonRejection},
    http::{StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{delete, get, post},
};
use engine::BoxFuture;
use futures_util::future::join_all;
use tokio::{
    net::UnixListener,
    sync::{Mutex, watch},
};

mod alerts;
mod asked;
mod datasets;
mod events;
mod prewarm;

use self::asked::Named;
use crate::{
    advice,
    alerts::Alerts,
    answers::Pools,
    api::{self, iostat::IostatList},
    arc,
    events::Journal,
    governor::Governor,
    initiators, iostat,
    late::{Late, Missing},
    logs,
    ops::{self, Held, Host, Request},
    serving::Serving,
    unix_socket::{self, SocketError, SocketFile},
    view,
};

/// Largest operation in bytes: snapshots of as many volumes as a command line has room for, and that line for the history.
const OPERATION_MAX: usize = 16 << 20;

/// What the handlers answer from.
pub(crate) struct Shared {
    /// The open pools.
    pub(crate) host: Arc<Host>,
    /// Those that should be open and are not.
    pub(crate) late: Arc<Late>,
    /// What is served, with live connection counts.
    pub(crate) serving: Arc<Serving>,
    /// What happened.
    pub(crate) journal: Arc<Journal>,
    /// Who is told.
    pub(crate) alerts: Arc<Alerts>,
    /// Who holds how much memory.
    pub(crate) governor: Arc<Governor>,
    /// Whoever has it is told a long list of datasets: one at a time.
    pub(crate) long_list: Arc<Mutex<()>>,
}

impl Shared {
    /// The pools that are open, and those that are not and should be: who asks for all is told what he goes without. Which are wanted
    /// is looked up before ([`Late::renew`]).
    fn pools(&self) -> (Vec<Arc<Held>>, Vec<Missing>) {
        // First those that are not open: one that is opened at this moment is in both lists, and not in neither.
        let (mut missing, held) = (self.late.list(), self.host.all());
        missing.retain(|pool| pool.is_expected() && held.iter().all(|held| held.guid() != pool.guid));
        (held, missing)
    }
}

/// A listening control socket; its file is removed when dropped.
#[derive(Debug)]
pub struct ControlSocket {
    file: SocketFile,
    listener: Option<UnixListener>,
}

impl ControlSocket {
    /// Listens at `path`, in place of the socket of a daemon that is gone.
    ///
    /// # Errors
    /// See [`SocketError`].
    pub fn bind(path: &Path) -> BoxFuture<'_, Result<Self, SocketError>> {
        Box::pin(async move {
            let (listener, file) = unix_socket::listen(path, "--socket", Some(0o600)).await?;
            Ok(Self { file, listener: Some(listener) })
        })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Answers until it is dropped; when `stop` is true, that the daemon is ending: whoever finds nobody here takes the pools'
    /// devices, and the next daemon finds them in use.
    pub(crate) async fn serve(&mut self, shared: Arc<Shared>, stop: watch::Receiver<bool>) -> io::Result<()> {
        let Some(listener) = self.listener.take() else { return Ok(()) };
        let router = Router::new()
            .route("/v1/version", get(version))
            .route("/v1/pools", get(pools))
            .route("/v1/pools/{name}", get(pool))
            .route("/v1/datasets", get(datasets::list))
            .route("/v1/served", get(served))
            .route("/v1/share", get(share))
            .route("/v1/initiators", get(initiators))
            .route("/v1/log", get(log))
            .route("/v1/arc", get(cache))
            .route("/v1/advice", get(advise))
            .route("/v1/iostat", get(iostat_all))
            .route("/v1/iostat/{name}", get(iostat_one))
            .route("/v1/prewarm", get(prewarm::list).post(prewarm::begin))
            .route("/v1/memory", get(memory))
            .route("/v1/events", get(events::list))
            .route("/v1/events/clear", post(events::clear))
            .route("/v1/alerts", get(alerts::status))
            .route("/v1/alerts/history", get(alerts::history))
            .route("/v1/alerts/config", get(alerts::config))
            .route("/v1/alerts/sinks", post(alerts::add))
            .route("/v1/alerts/sinks/{name}", delete(alerts::remove))
            .route("/v1/alerts/labels", post(alerts::label))
            .route("/v1/alerts/test", post(alerts::test))
            .route("/v1/ops", post(operate).layer(DefaultBodyLimit::max(OPERATION_MAX)))
            .method_not_allowed_fallback(async || {
                failure(StatusCode::METHOD_NOT_ALLOWED, "it cannot be asked that way; see docs/api.md")
            })
            .fallback(async || failure(StatusCode::NOT_FOUND, "no such resource; see docs/api.md"))
            .layer(middleware::from_fn_with_state(stop, unless_it_ends))
            .with_state(shared);
        axum::serve(listener, router).await
    }
}

/// While pools are closed one after the other, an answer would lack those that are.
async fn unless_it_ends(
    State(stop): State<watch::Receiver<bool>>,
    request: extract::Request,
    next: Next,
) -> Response {
    if *stop.borrow() {
        return ending();
    }
    next.run(request).await
}

/// Nothing was done: whoever comes in this daemon's place can be asked.
fn ending() -> Response {
    tracing::debug!("whoever asks is told that the daemon is ending");
    ([(header::RETRY_AFTER, "1")], failure(StatusCode::SERVICE_UNAVAILABLE, ops::ENDING)).into_response()
}

fn failure(status: StatusCode, error: &str) -> Response {
    (status, Json(api::Failure { error: error.to_owned(), code: None })).into_response()
}

async fn version() -> Json<api::Version> {
    Json(api::Version {
        millpond: env!("CARGO_PKG_VERSION").to_owned(),
        api: api::VERSION.to_owned(),
        pid: std::process::id(),
    })
}

async fn pools(State(shared): State<Arc<Shared>>) -> Json<Vec<api::Pool>> {
    shared.late.renew().await;
    let (held, missing) = shared.pools();
    // At once: each waits a moment for devices that do not answer.
    let open = join_all(held.iter().map(|held| view::held(held)));
    let (mut all, missing) = tokio::join!(open, shared.late.shown(&missing));
    all.extend(missing);
    all.sort_by(|a, b| (&a.name, &a.guid).cmp(&(&b.name, &b.guid)));
    Json(all)
}

async fn pool(State(shared): State<Arc<Shared>>, Named(name): Named) -> Response {
    match shared.host.find(&name) {
        Some(held) => Json(view::held(&held).await).into_response(),
        None => failure(StatusCode::NOT_FOUND, &format!("cannot open '{name}': no such pool")),
    }
}

async fn served(State(shared): State<Arc<Shared>>) -> Json<api::ServedList> {
    Json(shared.serving.list())
}

async fn share(State(shared): State<Arc<Shared>>) -> Json<api::share::ShareList> {
    shared.late.renew().await;
    let (held, missing) = shared.pools();
    let mut list = initiators::shares(&Pools::new(held), &shared.serving).await;
    list.silent.extend(missing.into_iter().map(Missing::silent));
    list.silent.sort_by(|a, b| a.pool.cmp(&b.pool));
    Json(list)
}

async fn initiators(State(shared): State<Arc<Shared>>) -> Json<api::initiators::InitiatorList> {
    Json(initiators::list(&shared.serving))
}

async fn log(State(shared): State<Arc<Shared>>) -> Json<api::log::LogList> {
    Json(logs::list(&shared.host.all()))
}

async fn cache(State(shared): State<Arc<Shared>>) -> Json<api::arc::Arc> {
    Json(arc::report(&shared.host, &shared.governor))
}

async fn advise(State(shared): State<Arc<Shared>>) -> Json<api::advice::AdviceList> {
    Json(advice::report(&shared.host.cache(), &shared.host.all()).await)
}

async fn iostat_all(State(shared): State<Arc<Shared>>) -> Json<IostatList> {
    shared.late.renew().await;
    let (held, missing) = shared.pools();
    let problems = missing.iter().map(|pool| pool.why.clone()).collect();
    let away = missing.into_iter().map(Missing::silent).collect();
    Json(IostatList { problems, away, ..iostat::list(&held, None).await })
}

async fn iostat_one(State(shared): State<Arc<Shared>>, Named(name): Named) -> Response {
    let found = iostat::list(&shared.host.all(), Some(&name)).await;
    match found.pools.is_empty() {
        true => failure(StatusCode::NOT_FOUND, &format!("cannot open '{name}': no such pool")),
        false => Json(found).into_response(),
    }
}

async fn memory(State(shared): State<Arc<Shared>>) -> Json<api::memory::Memory> {
    Json(shared.governor.report(&shared.host))
}

/// Does something. What changes something goes on if the client goes away: half of a command is no command.
async fn operate(
    State(shared): State<Arc<Shared>>,
    request: Result<Json<Request>, JsonRejection>,
) -> Response {
    let request = match request {
        Ok(Json(request)) => request,
        Err(error) => return failure(StatusCode::BAD_REQUEST, &error.body_text()),
    };
    match ops::run(&shared.host, request).await {
        Ok(answer) => Json(answer).into_response(),
        Err(refused) if refused.is_ending() => ending(),
        Err(refused) => {
            let status = match refused {
                ops::Failure { not_found: true, .. } => StatusCode::NOT_FOUND,
                ops::Failure { code: 2, .. } => StatusCode::BAD_REQUEST,
                _ => StatusCode::CONFLICT,
            };
            (status, Json(api::Failure { error: refused.message, code: Some(refused.code) })).into_response()
        }
    }
}
