//! The whole path from what happens to a message, in simulated time, with sinks that do as a test tells them.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use engine::{
    BoxFuture,
    events::{Event, Record},
};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::{
    Alerts, Clock, Files, Maker,
    config::{self, Config, SinkConfig, Syslog, Target},
    facts::{
        Facts,
        tests::{facts, group, leaf},
    },
    ledger::STATE_FILE,
    message::Message,
    sinks::{SendError, Sink},
    source::Source,
};
use crate::{
    api::alerts::{AlertDevice, Finding, Kind, Occasion, Severity},
    disks::Disks,
    events::{About, Journal, names},
    late::Missing,
};

mod devices;
mod expiries;
mod kept;
mod pools;
mod settings;
mod sinks;

/// What became of each message, oldest first.
#[derive(Debug, Default)]
struct Post {
    /// Sink → what it got.
    taken: BTreeMap<String, Vec<Message>>,
    /// Sink → how its next messages end; when there are no more, they are taken.
    next: BTreeMap<String, VecDeque<Fate>>,
    tried: BTreeMap<String, Vec<u64>>,
    /// Sinks that cannot be made, and why.
    unusable: BTreeMap<String, &'static str>,
}

#[derive(Clone, Debug)]
enum Fate {
    Fails(&'static str),
    Hangs,
}

#[derive(Debug)]
struct Fake {
    name: String,
    post: Arc<Mutex<Post>>,
}

impl Sink for Fake {
    fn send<'a>(&'a self, message: &'a Message) -> BoxFuture<'a, Result<String, SendError>> {
        Box::pin(async move {
            let fate = {
                let mut post = self.post.lock();
                post.tried.entry(self.name.clone()).or_default().push(message.time);
                post.next.get_mut(&self.name).and_then(VecDeque::pop_front)
            };
            match fate {
                Some(Fate::Fails(why)) => Err(SendError::new(why)),
                Some(Fate::Hangs) => std::future::pending().await,
                None => {
                    self.post.lock().taken.entry(self.name.clone()).or_default().push(message.clone());
                    Ok("taken".to_owned())
                }
            }
        })
    }
}

/// A daemon's alerts in a directory of their own.
struct Lab {
    dir: tempfile::TempDir,
    post: Arc<Mutex<Post>>,
    began: Instant,
}

impl Lab {
    fn new(sinks: &[SinkConfig]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config { host: Some("mill".into()), ..Config::default() };
        sinks.iter().for_each(|sink| config.add(sink.clone()).unwrap());
        config.save(&dir.path().join(config::FILE)).unwrap();
        Self { dir, post: Arc::default(), began: Instant::now() }
    }

    /// Starts a daemon: the first, or the next.
    fn start(&self) -> Arc<Alerts> {
        let (post, began) = (Arc::clone(&self.post), self.began);
        let clock: Clock = Arc::new(move || 1_000_000 + began.elapsed().as_secs());
        let maker: Maker = Arc::new(move |config, _host| {
            if let Some(why) = post.lock().unusable.get(&config.name) {
                return Err((*why).to_owned());
            }
            Ok(Arc::new(Fake { name: config.name.clone(), post: Arc::clone(&post) }) as Arc<dyn Sink>)
        });
        let alerts = Alerts::with(Files::new(self.dir.path(), None), clock, maker);
        alerts.start();
        alerts
    }

    /// The same, and it watches pools.
    fn start_with(&self, pools: &Arc<Mutex<Vec<Facts>>>, journal: Arc<Journal>) -> Arc<Alerts> {
        let alerts = self.start();
        alerts.watch(Pools(Arc::clone(pools)), journal, Disks::remembered(self.dir.path()));
        alerts
    }

    /// Reading what was kept is an error, for root too, until it is [there](Self::show_state) again.
    fn hide_state(&self) {
        let path = self.dir.path().join(STATE_FILE);
        std::fs::rename(&path, self.dir.path().join("kept")).unwrap();
        std::fs::create_dir(&path).unwrap();
    }

    fn show_state(&self) {
        let path = self.dir.path().join(STATE_FILE);
        std::fs::remove_dir(&path).unwrap();
        std::fs::rename(self.dir.path().join("kept"), &path).unwrap();
    }

    fn let_fail(&self, sink: &str, fates: &[Fate]) {
        self.post.lock().next.insert(sink.to_owned(), fates.iter().cloned().collect());
    }

    /// What a sink got: a list of notices per message.
    fn got(&self, sink: &str) -> Vec<Vec<(Occasion, String)>> {
        let post = self.post.lock();
        let messages = post.taken.get(sink).map(Vec::as_slice).unwrap_or_default();
        let told = |message: &Message| {
            message.notices.iter().map(|n| (n.occasion, n.alert.finding.title.clone())).collect()
        };
        messages.iter().map(told).collect()
    }
}

/// Pools that a test changes.
#[derive(Debug, Default)]
struct Pools(Arc<Mutex<Vec<Facts>>>);

impl Source for Pools {
    fn facts<'a>(&'a self, _fresh: &'a [u64]) -> BoxFuture<'a, Option<Vec<Facts>>> {
        let facts = self.0.lock().clone();
        Box::pin(async move { Some(facts) })
    }
}

fn sink(name: &str) -> SinkConfig {
    let syslog = Syslog { target: "unix:/dev/log".into(), facility: "daemon".into() };
    SinkConfig::new(name, Target::Syslog(syslog))
}

fn finding(title: &str, severity: Severity) -> Finding {
    Finding {
        pool: "tank".into(),
        pool_guid: "7".into(),
        device: Some(AlertDevice { guid: title.into(), ..Default::default() }),
        title: title.into(),
        meaning: "it is broken".into(),
        action: vec!["  zpool replace tank sdc NEW-DEVICE".into()],
        ..Finding::new(Kind::Device, severity, 1)
    }
}

/// It happens to the pool of [`facts`].
fn happen(journal: &Journal, event: Event) {
    let record = Arc::new(Record { number: 1, time: (1_000_000, 0), event });
    for (class, pairs) in names::name(&record.event, 7, None) {
        let about = About { pool: "tank".into(), guid: 7 };
        journal.add(&about, &class, record.time, pairs, Some(Arc::clone(&record)));
    }
}

async fn seconds(seconds: u64) {
    sleep(Duration::from_secs(seconds)).await;
}

fn told(occasion: Occasion, title: &str) -> (Occasion, String) {
    (occasion, title.to_owned())
}
