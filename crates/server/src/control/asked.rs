//! What is asked in a request's path and query, refused in JSON as everything else is.

use axum::{
    extract::{FromRequestParts, Path, Query},
    http::{StatusCode, request::Parts},
    response::Response,
};
use serde::de::DeserializeOwned;

use super::failure;

/// What stands behind the `?`.
pub(super) struct AskedFor<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for AskedFor<T> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let query = Query::from_request_parts(parts, state).await;
        let Query(asked) = query.map_err(|error| failure(StatusCode::BAD_REQUEST, &error.body_text()))?;
        Ok(Self(asked))
    }
}

/// The name in a path.
pub(super) struct Named(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let path = Path::from_request_parts(parts, state).await;
        let Path(name) = path.map_err(|error| failure(StatusCode::BAD_REQUEST, &error.body_text()))?;
        Ok(Self(name))
    }
}
