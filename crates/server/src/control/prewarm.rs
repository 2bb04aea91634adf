//! `/v1/prewarm`: how far it is, begin, end.

use std::sync::Arc;

use axum::{
    Json,
    extract::{State, rejection::JsonRejection},
    http::StatusCode,
    response::{IntoResponse, Response},
};

use super::{Shared, failure};
use crate::{
    api::{
        self,
        prewarm::{Prewarm, PrewarmList, PrewarmWish},
    },
    ops::{Failure, Held},
    warmth,
};

pub(super) async fn list(State(shared): State<Arc<Shared>>) -> Json<PrewarmList> {
    Json(report(shared.host.all()))
}

fn report(held: Vec<Arc<Held>>) -> PrewarmList {
    let mut pools: Vec<Prewarm> = held.iter().map(|held| warmth::report(held)).collect();
    pools.sort_by(|a, b| (&a.pool, &a.guid).cmp(&(&b.pool, &b.guid)));
    PrewarmList { pools }
}

pub(super) async fn begin(
    State(shared): State<Arc<Shared>>,
    wish: Result<Json<PrewarmWish>, JsonRejection>,
) -> Response {
    let PrewarmWish { pool, stop } = match wish {
        Ok(Json(wish)) => wish,
        Err(error) => return failure(StatusCode::BAD_REQUEST, &error.body_text()),
    };
    let is_one = pool.is_some();
    let held = match pool {
        None => shared.host.all(),
        Some(name) => match shared.host.find(&name) {
            Some(held) => vec![held],
            None => return failure(StatusCode::NOT_FOUND, &format!("cannot open '{name}': no such pool")),
        },
    };
    for held in &held {
        let done = match (stop, shared.host.watching()) {
            (true, Some(watching)) => {
                watching.warmth.stop(held);
                Ok(())
            }
            (false, Some(watching)) => watching.warmth.begin(held).await,
            // Nothing is warmed.
            (_, None) => Ok(()),
        };
        // Of all pools some may have nothing to be warmed with.
        if let Err(Failure { message, code, .. }) = done
            && is_one
        {
            return (StatusCode::CONFLICT, Json(api::Failure { error: message, code: Some(code) }))
                .into_response();
        }
    }
    Json(report(held)).into_response()
}
