//! Pools that OpenZFS made: Millpond goes on with them, or says why not, and changes nothing then.

mod files;

use engine::{
    dsl::{self, NewVolume, OpError, Properties},
    sync::{Syncer, Task, Work},
};
use files::{check, export, reopen, sync};
use fixtures::Fixture;

/// What each fixture is: continued, or refused with these words in the message.
const EXPECTED: &[(&str, Option<&str>)] = &[];

/// Runs one command in a transaction group of its own.
async fn command(
    cx: &mut Syncer,
    run: impl for<'a> FnOnce(&'a mut Syncer) -> std::pin::Pin<Box<dyn Future<Output = Result<(), OpError>> + Send + 'a>>
    + Send
    + 'static,
) {
    let task = Task {
        is_snapshot: false,
        run: Box::new(move |cx| Box::pin(async move { run(cx).await.map_err(|error| panic!("{error}")) })),
        done: Box::new(|outcome| outcome.unwrap()),
    };
    let (txg, now) = (cx.txg, cx.now);
    cx.sync_txg(txg, now, Work { tasks: vec![task], ..Work::default() }).await.unwrap();
    cx.txg += 1;
}

async fn continued(fixture: &Fixture) -> Result<(), String> {
    let copy = fixture.copy();
    let dir = copy.path();
    let mut cx = reopen(dir, 1).await?;
    let pool = cx.name.clone();
    sync(&mut cx).await;
    let volume = format!("{pool}/millpond");
    let new = NewVolume {
        name: volume.clone(),
        size: 8 << 20,
        block: 16 << 10,
        properties: Properties::new(),
        parents: false,
    };
    command(&mut cx, move |cx| Box::pin(async move { dsl::create_volume(cx, &new).await })).await;
    let snapshot = format!("{volume}@first");
    command(&mut cx, move |cx| Box::pin(async move { dsl::snapshot(cx, &[snapshot], &Properties::new()).await }))
        .await;
    for _ in 0..3 {
        sync(&mut cx).await;
    }
    export(cx).await;
    check(dir)?;
    let mut cx = reopen(dir, 2).await?;
    sync(&mut cx).await;
    export(cx).await;
    check(dir)
}

#[tokio::test]
async fn what_openzfs_made_is_continued_or_refused_with_a_reason() {
    for fixture in fixtures::all() {
        let started = std::time::SystemTime::now();
        let outcome = tokio::spawn(async move {
            let outcome = continued(&fixture).await;
            (fixture, outcome)
        }).await;
        match outcome {
        Ok((fixture, outcome)) => eprintln!("{}: {outcome:?} {:?}", fixture.name, started.elapsed()),
        Err(error) => eprintln!("PANIC {error}"),
        }
    }
}
