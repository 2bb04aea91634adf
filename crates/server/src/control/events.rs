//! `/v1/events`: the journal, as a list or as a stream of lines that goes on.

use std::{collections::VecDeque, convert::Infallible, sync::Arc};

use axum::{
    Json,
    body::Body,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::stream;
use tokio::sync::watch;

use super::{Shared, asked::AskedFor};
use crate::{
    api::events::{EventList, EventQuery, EventsCleared, Zevent},
    events::Journal,
};

pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    AskedFor(query): AskedFor<EventQuery>,
) -> Response {
    let journal = Arc::clone(&shared.journal);
    let newest = journal.newest();
    if query.follow {
        let reader = Reader { newest, journal, query, waiting: VecDeque::new() };
        let lines = stream::unfold(reader, |mut reader| async move {
            let line = reader.next().await?;
            Some((Ok::<_, Infallible>(line), reader))
        });
        return ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response();
    }
    let newest = *newest.borrow();
    let entries = journal.since(query.since, query.pool.as_deref());
    let events = entries.iter().map(|entry| entry.zevent.clone()).collect();
    Json(EventList { events, newest }).into_response()
}

pub(super) async fn clear(State(shared): State<Arc<Shared>>) -> Json<EventsCleared> {
    Json(EventsCleared { cleared: shared.journal.clear() })
}

/// Somebody who follows.
struct Reader {
    newest: watch::Receiver<u64>,
    journal: Arc<Journal>,
    query: EventQuery,
    waiting: VecDeque<Zevent>,
}

impl Reader {
    /// The next event as a line; none when there will be none.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                let mut line = serde_json::to_vec(&event).ok()?;
                line.push(b'\n');
                return Some(Bytes::from(line));
            }
            let newest = *self.newest.borrow_and_update();
            let entries = self.journal.since(self.query.since, self.query.pool.as_deref());
            self.query.since = self.query.since.max(entries.last().map_or(newest, |last| last.zevent.eid));
            self.waiting.extend(entries.iter().map(|entry| entry.zevent.clone()));
            if self.waiting.is_empty() {
                self.newest.changed().await.ok()?;
            }
        }
    }
}
