//! `/v1/alerts…`: what is open, what was, who is told.

use std::sync::Arc;

use axum::{
    Json,
    extract::{State, rejection::JsonRejection},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::Deserialize;

use super::{Shared, asked::Named, failure};
use crate::{
    alerts::config::{Config, ConfigError, SinkConfig},
    api::alerts::{AlertHistory, AlertStatus, Tested},
    host::chain,
};

pub(super) async fn status(State(shared): State<Arc<Shared>>) -> Json<AlertStatus> {
    Json(shared.alerts.status())
}

pub(super) async fn history(State(shared): State<Arc<Shared>>) -> Json<AlertHistory> {
    Json(AlertHistory { alerts: shared.alerts.history() })
}

pub(super) async fn config(State(shared): State<Arc<Shared>>) -> Json<Config> {
    Json(shared.alerts.config())
}

fn refused(error: &ConfigError) -> Response {
    let status = match error {
        ConfigError::NoSink(_) => StatusCode::NOT_FOUND,
        ConfigError::Invalid(_) => StatusCode::BAD_REQUEST,
        ConfigError::Io { .. } | ConfigError::Lock(_) => StatusCode::INTERNAL_SERVER_ERROR,
    };
    failure(status, &chain(error))
}

pub(super) async fn add(
    State(shared): State<Arc<Shared>>,
    sink: Result<Json<SinkConfig>, JsonRejection>,
) -> Response {
    let sink = match sink {
        Ok(Json(sink)) => sink,
        Err(error) => return failure(StatusCode::BAD_REQUEST, &error.body_text()),
    };
    match shared.alerts.change(|config| config.add(sink)) {
        Ok(()) => Json(shared.alerts.config()).into_response(),
        Err(error) => refused(&error),
    }
}

pub(super) async fn remove(State(shared): State<Arc<Shared>>, Named(name): Named) -> Response {
    match shared.alerts.change(|config| config.remove(&name)) {
        Ok(()) => Json(shared.alerts.config()).into_response(),
        Err(error) => refused(&error),
    }
}

/// Where a disk sits.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Label {
    disk: String,
    #[serde(default)]
    place: Option<String>,
}

pub(super) async fn label(
    State(shared): State<Arc<Shared>>,
    label: Result<Json<Label>, JsonRejection>,
) -> Response {
    let Label { disk, place } = match label {
        Ok(Json(label)) => label,
        Err(error) => return failure(StatusCode::BAD_REQUEST, &error.body_text()),
    };
    match shared.alerts.change(|config| config.label(&disk, place.as_deref())) {
        Ok(()) => Json(shared.alerts.config()).into_response(),
        Err(error) => refused(&error),
    }
}

/// Which sink is tried; all if none is named.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Test {
    #[serde(default)]
    sink: Option<String>,
}

/// Somebody waits for this, so it is done in the request's own task: what hangs ends by the sink's own time limit.
pub(super) async fn test(
    State(shared): State<Arc<Shared>>,
    which: Result<Json<Test>, JsonRejection>,
) -> Response {
    let Test { sink } = match which {
        Ok(Json(which)) => which,
        Err(error) => return failure(StatusCode::BAD_REQUEST, &error.body_text()),
    };
    match Box::pin(shared.alerts.test(sink.as_deref())).await {
        Ok(tested) => Json::<Vec<Tested>>(tested).into_response(),
        Err(error) => refused(&error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_of_alerts_has_no_unknown_keys() {
        let label = serde_json::from_str::<Label>(r#"{"disk": "WSD1", "bay": "3"}"#).unwrap_err();
        assert!(label.to_string().contains("unknown field `bay`"), "{label}");
        let test = serde_json::from_str::<Test>(r#"{"name": "ops"}"#).unwrap_err();
        assert!(test.to_string().contains("unknown field `name`"), "{test}");
    }
}
