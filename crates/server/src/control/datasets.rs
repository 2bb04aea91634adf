//! `/v1/datasets`: a list that is sent as it is read, as it may be longer than there is memory for.

use std::{convert::Infallible, mem, sync::Arc, time::Duration};

use axum::{
    Json,
    body::Body,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::stream;
use tokio::{
    sync::{
        Mutex, OwnedMutexGuard,
        mpsc::{self, Sender},
    },
    time::{Instant, timeout},
};

use super::{Shared, asked::AskedFor, failure};
use crate::{
    answers::Pools,
    api::{self, DatasetQuery, share::SilentPool},
    late::Missing,
    listing::Listing,
    ops::{Held, Host},
    view::ViewError,
};

/// Longer lists wait for each other. The names of so many datasets take half a megabyte.
const SHORT: usize = 4096;

/// How long, in all, a long list waits for whoever reads it: others wait for theirs.
const PATIENCE: Duration = Duration::from_secs(60);

/// That it took longer.
const UNREAD: &str =
    "cannot list the rest: the answer was read too slowly; read it as it comes, or ask for less at a time";

pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    AskedFor(query): AskedFor<DatasetQuery>,
) -> Response {
    // Who names a dataset is not told of other pools.
    if query.name.is_none() {
        shared.late.renew().await;
    }
    match answer(&shared.host, || shared.pools(), &shared.long_list, &query, SHORT).await {
        Ok(answer) => answer,
        Err(error) => {
            let status = match error {
                ViewError::NoDataset(_) => StatusCode::NOT_FOUND,
                ViewError::Read { .. } => StatusCode::INTERNAL_SERVER_ERROR,
                ViewError::Silent { .. } => StatusCode::SERVICE_UNAVAILABLE,
                _ => StatusCode::BAD_REQUEST,
            };
            failure(status, &error.to_string())
        }
    }
}

/// The list, after those before it if it is not `short`; `pools` are those that are open and those that are missed. What goes
/// wrong before the first portion is there is the answer.
async fn answer(
    host: &Arc<Host>,
    pools: impl Fn() -> (Vec<Arc<Held>>, Vec<Missing>),
    long_list: &Arc<Mutex<()>>,
    query: &DatasetQuery,
    short: usize,
) -> Result<Response, ViewError> {
    let found = find(pools(), query, short).await?;
    let (mut listing, turn) = match found {
        Some(listing) => (listing, None),
        None => {
            let turn = Arc::clone(long_list).lock_owned().await;
            (find(pools(), query, usize::MAX).await?.unwrap_or_default(), Some(turn))
        }
    };
    let datasets = listing.next_portion(&host.pools()).await?;
    if listing.is_over() {
        return Ok(Json(api::Datasets { datasets, ..listing.into_end() }).into_response());
    }
    let (sender, parts) = mpsc::channel(1);
    // A task of its own: nobody else notices that the reader rests.
    tokio::spawn(send(Arc::clone(host), listing, datasets, sender, turn));
    let parts = stream::unfold(Some(parts), |parts| async move {
        let mut parts = parts?;
        let part = parts.recv().await;
        let (text, rest) = match part {
            Some(Part::Begun(text)) => (text, Some(parts)),
            Some(Part::Last(text)) => (text, None),
            None => (end(&[UNREAD.to_owned()], &[]), None),
        };
        Some((Ok::<_, Infallible>(Bytes::from(text)), rest))
    });
    Ok(([(header::CONTENT_TYPE, "application/json")], Body::from_stream(parts)).into_response())
}

/// What is asked for, with the names of all; none if that is more than `most`. Who names a dataset is not told of other pools.
async fn find(
    (held, missing): (Vec<Arc<Held>>, Vec<Missing>),
    query: &DatasetQuery,
    most: usize,
) -> Result<Option<Listing>, ViewError> {
    let mut found = Listing::find(&Pools::new(held), query, most).await?;
    if query.name.is_none()
        && let Some(listing) = &mut found
    {
        listing.add_away(missing.into_iter().map(Missing::silent));
    }
    Ok(found)
}

/// A part of the answer's text.
enum Part {
    Begun(Vec<u8>),
    Last(Vec<u8>),
}

/// Sends a list whose first portion is `datasets`. While the reader rests nothing of a pool is kept, and the turn only for so
/// long.
async fn send(
    host: Arc<Host>,
    mut listing: Listing,
    mut datasets: Vec<api::Dataset>,
    sender: Sender<Part>,
    turn: Option<OwnedMutexGuard<()>>,
) {
    let mut patience = if turn.is_some() { PATIENCE } else { Duration::MAX };
    let (mut text, mut separator) = (b"{\"datasets\":[".to_vec(), "");
    loop {
        for dataset in datasets.drain(..) {
            text.extend_from_slice(separator.as_bytes());
            serde_json::to_writer(&mut text, &dataset).expect("texts and numbers, in memory");
            separator = ",";
        }
        if listing.is_over() {
            break;
        }
        let begin = Instant::now();
        let sent = timeout(patience, sender.send(Part::Begun(mem::take(&mut text)))).await;
        if !matches!(sent, Ok(Ok(()))) {
            // It took too long, or whoever read is gone.
            return;
        }
        patience = patience.saturating_sub(begin.elapsed());
        let portion = listing.next_portion(&host.pools()).await;
        match portion {
            Ok(portion) => datasets = portion,
            Err(error) => listing.break_off(error.to_string()),
        }
    }
    let last = listing.into_end();
    text.extend(end(&last.problems, &last.away));
    drop(turn);
    let _or_nobody_reads = sender.send(Part::Last(text)).await;
}

/// The end of the answer's text.
fn end(problems: &[String], away: &[SilentPool]) -> Vec<u8> {
    let mut text = b"]".to_vec();
    if !problems.is_empty() {
        text.extend_from_slice(b",\"problems\":");
        serde_json::to_writer(&mut text, problems).expect("texts, in memory");
    }
    if !away.is_empty() {
        text.extend_from_slice(b",\"away\":");
        serde_json::to_writer(&mut text, away).expect("texts, in memory");
    }
    text.push(b'}');
    text
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::{ops::Operation, serving::tests::World};

    /// A pool whose snapshots fill several portions, and all that is in it, in order.
    async fn world() -> (World, Vec<String>) {
        let world = World::new().await;
        world.volume("tank/v").await;
        let long = ["a", "b", "c"].map(|name| (format!("org.example:{name}"), "x".repeat(8000)));
        let properties = long.to_vec();
        world.run(Operation::Set { name: "tank".to_owned(), properties, force: false }).await.unwrap();
        let mut names = vec!["tank".to_owned(), "tank/v".to_owned()];
        for number in (0..30).rev() {
            let name = format!("tank/v@s{number}");
            world.snapshot(&[name.as_str()]).await;
            names.push(name);
        }
        (world, names)
    }

    async fn body(world: &World, long_list: &Arc<Mutex<()>>, short: usize) -> Body {
        let pools = || (world.host.all(), Vec::new());
        answer(&world.host, pools, long_list, &DatasetQuery::default(), short).await.unwrap().into_body()
    }

    /// The next piece of an answer.
    async fn piece(body: &mut Body) -> Option<Bytes> {
        Some(body.frame().await?.unwrap().into_data().unwrap())
    }

    /// All of an answer that begins with `text`, and in how many more pieces it came.
    async fn whole(mut text: Vec<u8>, mut body: Body) -> (api::Datasets, usize) {
        let mut pieces = 0;
        while let Some(piece) = piece(&mut body).await {
            text.extend_from_slice(&piece);
            pieces += 1;
        }
        (serde_json::from_slice(&text).unwrap(), pieces)
    }

    fn names(list: &api::Datasets) -> Vec<&str> {
        list.datasets.iter().map(|dataset| dataset.name.as_str()).collect()
    }

    #[track_caller]
    fn is_complete(list: &api::Datasets, expected: &[String]) {
        assert_eq!(names(list), expected);
        assert_eq!(list.problems, [""; 0]);
    }

    /// All of it was put together first: most of a gigabyte for a hundred thousand snapshots, for each who asked.
    #[tokio::test]
    async fn a_list_of_much_comes_in_pieces_and_in_order() {
        let (world, expected) = world().await;
        let (list, pieces) = whole(Vec::new(), body(&world, &Arc::default(), SHORT).await).await;
        assert!(pieces > 3, "{pieces}");
        is_complete(&list, &expected);
        for dataset in &list.datasets {
            assert_eq!(dataset.property("org.example:b").unwrap().value.len(), 8000, "{}", dataset.name);
        }
        // The same from those that come one after the other.
        let (again, _) = whole(Vec::new(), body(&world, &Arc::default(), 0).await).await;
        is_complete(&again, &expected);
        let query = DatasetQuery { properties: Some("guid".to_owned()), ..DatasetQuery::default() };
        let pools = || (world.host.all(), Vec::new());
        let answer = answer(&world.host, pools, &Arc::default(), &query, SHORT).await.unwrap();
        let (little, pieces) = whole(Vec::new(), answer.into_body()).await;
        is_complete(&little, &expected);
        assert_eq!(pieces, 1);
    }

    #[tokio::test]
    async fn a_list_of_all_pools_says_which_it_lacks_however_long_it_is() {
        let (world, expected) = world().await;
        let why = "cannot open 'rz': its drives are late";
        let late = || Missing { name: "rz".to_owned(), guid: 7, is_imported: true, why: why.to_owned() };
        let pools = || (world.host.all(), vec![late()]);
        let cases: [(Option<&str>, Option<&str>, &[&str]); 3] =
            [(None, Some("guid"), &[why]), (None, None, &[why]), (Some("tank"), None, &[])];
        for (name, properties, problems) in cases {
            let (name, properties) = (name.map(str::to_owned), properties.map(str::to_owned));
            let query = DatasetQuery { name, properties, ..DatasetQuery::default() };
            for short in [SHORT, 0] {
                let answer = answer(&world.host, pools, &Arc::default(), &query, short).await.unwrap();
                let (list, _) = whole(Vec::new(), answer.into_body()).await;
                assert_eq!(names(&list), expected);
                assert_eq!(list.problems, problems);
                let away = list.away.iter().map(|pool| (pool.pool.as_str(), pool.problem.as_str()));
                assert_eq!(
                    away.collect::<Vec<_>>(),
                    problems.iter().map(|why| ("rz", *why)).collect::<Vec<_>>()
                );
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_does_not_read_a_long_list_keeps_others_waiting_for_a_while_only() {
        let (world, expected) = world().await;
        let long_list = Arc::default();
        let mut unread = body(&world, &long_list, 0).await;
        let first = piece(&mut unread).await.unwrap();
        let begin = Instant::now();
        // Short ones do not wait.
        let (short, _) = whole(Vec::new(), body(&world, &long_list, SHORT).await).await;
        assert!(begin.elapsed() < PATIENCE / 2, "{:?}", begin.elapsed());
        let (other, _) = whole(Vec::new(), body(&world, &long_list, 0).await).await;
        assert!((PATIENCE / 2..2 * PATIENCE).contains(&begin.elapsed()), "{:?}", begin.elapsed());
        is_complete(&short, &expected);
        is_complete(&other, &expected);
        let (list, _) = whole(first.to_vec(), unread).await;
        let told = names(&list);
        assert!(!told.is_empty() && told.len() < expected.len(), "{told:?}");
        assert_eq!(told, expected[..told.len()]);
        assert_eq!(list.problems, [UNREAD]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pool_can_be_closed_while_a_list_of_it_is_not_read() {
        let (world, expected) = world().await;
        let held = world.host.find("tank").unwrap();
        let view = held.view();
        let users = async || {
            tokio::time::sleep(Duration::from_secs(1)).await;
            (Arc::strong_count(&held), Arc::strong_count(&view))
        };
        let before = users().await;
        let mut unread = body(&world, &Arc::default(), 0).await;
        let first = piece(&mut unread).await.unwrap();
        let now = users().await;
        assert!(now.0 <= before.0 && now.1 <= before.1, "{before:?}, now {now:?}");
        world.host.release(held.guid());
        let (list, _) = whole(first.to_vec(), unread).await;
        assert!(list.datasets.len() < expected.len());
        assert_eq!(list.problems, ["cannot list 'tank': it was closed meanwhile"]);
    }
}
