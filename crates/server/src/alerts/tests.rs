//! The whole path from what happens to a message, in simulated time, with sinks that do as a test tells them.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use engine::{
    BoxFuture,
    events::{DeviceName, Event, Record, ScanKind, ScanStep},
};
use nbd::{Credential, Validity};
use parking_lot::Mutex;
use pool::{
    status::VdevStatus,
    vdev::{Aux, State},
};
use tokio::time::{Instant, advance, sleep};

use super::{
    Alerts, Clock, Files, LAST_WRITE, Maker, book,
    config::{self, Config, SinkConfig, Syslog, Target},
    expiries,
    facts::{
        Facts,
        tests::{facts, group, leaf},
    },
    ledger::STATE_FILE,
    message::Message,
    offline::Offline,
    sinks::{SendError, Sink},
    source::Source,
};
use crate::{
    api::alerts::{AlertDevice, Finding, Kind, Occasion, Severity},
    certificates::Expiry,
    disks::Disks,
    events::{About, Journal, names},
    late::Missing,
    view,
};

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

    /// The same, and it watches pools.
    fn start_with(&self, pools: &Arc<Mutex<Vec<Facts>>>, journal: Arc<Journal>) -> Arc<Alerts> {
        let alerts = self.start();
        alerts.watch(Pools(Arc::clone(pools)), journal, Disks::remembered(self.dir.path()));
        alerts
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

async fn seconds(seconds: u64) {
    sleep(Duration::from_secs(seconds)).await;
}

fn told(occasion: Occasion, title: &str) -> (Occasion, String) {
    (occasion, title.to_owned())
}

#[tokio::test(start_paused = true)]
async fn many_alerts_at_once_are_one_message_and_each_is_resolved() {
    let lab = Lab::new(&[sink("mail")]);
    let alerts = lab.start();
    alerts.see(vec![finding("a", Severity::Critical)]);
    seconds(5).await;
    alerts.see(vec![finding("a", Severity::Critical), finding("b", Severity::Warning)]);
    seconds(9).await;
    assert_eq!(lab.got("mail"), Vec::<Vec<_>>::new(), "the window is still open");
    seconds(2).await;
    assert_eq!(lab.got("mail"), [vec![told(Occasion::Opened, "a"), told(Occasion::Opened, "b")]]);
    let subject = lab.post.lock().taken["mail"][0].subject.clone();
    assert_eq!(subject, "[mill] CRITICAL: tank: a (and 1 more)");
    for _ in 0..6 {
        alerts.see(Vec::new());
        seconds(10).await;
    }
    seconds(20).await;
    assert_eq!(lab.got("mail")[1], [told(Occasion::Resolved, "b"), told(Occasion::Resolved, "a")]);
    assert!(alerts.status().open.is_empty());
    assert_eq!(alerts.history().len(), 2);
    alerts.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_hangs_or_fails_holds_up_none_of_the_others() {
    let lab = Lab::new(&[sink("hangs"), sink("fails"), sink("works")]);
    lab.let_fail("hangs", &[Fate::Hangs]);
    lab.let_fail("fails", &vec![Fate::Fails("connection refused"); 4]);
    let alerts = lab.start();
    alerts.see(vec![finding("a", Severity::Critical)]);
    seconds(16).await;
    assert_eq!(lab.got("works"), [vec![told(Occasion::Opened, "a")]]);
    // After 10, 20, 40, 80 seconds it is tried again; from the third failure on, others are told of that.
    for _ in 0..20 {
        let open = vec![finding("a", Severity::Critical)].into_iter().chain(alerts.failing()).collect();
        alerts.see(open);
        seconds(10).await;
    }
    let began = 1_000_015;
    assert_eq!(lab.post.lock().tried["fails"], [began, began + 10, began + 30, began + 70, began + 150]);
    let title = "alerts cannot be delivered by 'fails': connection refused";
    assert_eq!(lab.got("works")[1], [told(Occasion::Opened, title)]);
    assert_eq!(lab.got("works")[2], [told(Occasion::Resolved, title)]);
    assert_eq!(lab.got("fails"), [vec![told(Occasion::Opened, "a")]], "its own failure is no news to it");
    assert!(lab.got("hangs").is_empty());
    let status = alerts.status();
    assert_eq!(status.sinks.iter().map(|sink| sink.queued).collect::<Vec<_>>(), [3, 0, 0]);
    alerts.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_waits_outlives_the_daemon_and_what_was_told_is_not_told_again() {
    let lab = Lab::new(&[sink("mail")]);
    lab.let_fail("mail", &vec![Fate::Fails("no route to host"); 2]);
    let alerts = lab.start();
    alerts.see(vec![finding("a", Severity::Critical)]);
    seconds(30).await;
    assert_eq!(alerts.status().sinks[0].last_error.as_deref(), Some("no route to host"));
    alerts.stop().await;
    assert!(lab.got("mail").is_empty());

    let alerts = lab.start();
    alerts.see(vec![finding("a", Severity::Critical)]);
    seconds(60).await;
    assert_eq!(lab.got("mail"), [vec![told(Occasion::Opened, "a")]]);
    alerts.stop().await;

    // And after a crash: nothing was stopped, the file has it.
    let alerts = lab.start();
    alerts.see(vec![finding("a", Severity::Critical), finding("b", Severity::Critical)]);
    seconds(1).await;
    let crashed = std::fs::read(lab.dir.path().join(STATE_FILE)).unwrap();
    alerts.stop().await;
    std::fs::write(lab.dir.path().join(STATE_FILE), crashed).unwrap();
    let alerts = lab.start();
    alerts.see(vec![finding("a", Severity::Critical), finding("b", Severity::Critical)]);
    seconds(60).await;
    assert_eq!(lab.got("mail")[1..], [vec![told(Occasion::Opened, "b")]]);
    alerts.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_sink_hears_only_what_it_asked_for_and_not_too_often() {
    let bad = SinkConfig { min_severity: Severity::Critical, ..sink("bad") };
    let lake = SinkConfig { pools: vec!["lake".into()], ..sink("lake") };
    let rare = SinkConfig { per_hour: 2, digest_seconds: 0, ..sink("rare") };
    let lab = Lab::new(&[bad, lake, rare]);
    let alerts = lab.start();
    let mut all = Vec::new();
    for number in 0..10 {
        let severity = if number == 3 { Severity::Critical } else { Severity::Warning };
        all.push(finding(&format!("disk{number}"), severity));
        alerts.see(all.clone());
        seconds(60).await;
    }
    assert_eq!(lab.got("bad"), [vec![told(Occasion::Opened, "disk3")]]);
    assert!(lab.got("lake").is_empty());
    assert_eq!(lab.got("rare").len(), 2);
    seconds(3600).await;
    let rare = lab.got("rare");
    assert_eq!((rare.len(), rare[2].len()), (3, 8), "the rest in one");
    alerts.stop().await;
}

/// A pool that was 96 % full was told; that it is well again was a word about something mild by then, and was not.
#[tokio::test(start_paused = true)]
async fn a_sink_that_heard_of_the_worst_hears_of_the_end() {
    let bad = SinkConfig { min_severity: Severity::Critical, ..sink("bad") };
    let lab = Lab::new(&[bad, sink("all")]);
    let alerts = lab.start();
    let full = |severity, level| Finding { kind: Kind::Space, level, ..finding("full", severity) };
    let mild = |title: &str| finding(title, Severity::Warning);
    for findings in [
        vec![full(Severity::Critical, 3), mild("mild")],
        vec![full(Severity::Warning, 2), mild("mild")],
        Vec::new(),
        Vec::new(),
    ] {
        alerts.see(findings);
        seconds(60).await;
    }
    let ends = [told(Occasion::Opened, "full"), told(Occasion::Resolved, "full")];
    assert_eq!(lab.got("bad").concat(), ends);
    assert_eq!(lab.got("all").concat().len(), 4);
    alerts.stop().await;
}

/// A look that fails is a defect, and the next one is taken all the same: else nobody would hear of anything any more.
#[tokio::test(start_paused = true)]
async fn a_look_that_panics_is_not_the_last_one() {
    #[derive(Debug)]
    struct Panics(AtomicBool);
    impl Source for Panics {
        fn facts<'a>(&'a self, _fresh: &'a [u64]) -> BoxFuture<'a, Option<Vec<Facts>>> {
            assert!(self.0.swap(true, Relaxed), "the first look");
            let mut disk = leaf("sdc", 3);
            disk.state = State::Faulted;
            let all = facts(vec![group("mirror-0", "mirror", vec![leaf("sdb", 2), disk])]);
            Box::pin(async move { Some(vec![all]) })
        }
    }
    let lab = Lab::new(&[sink("mail")]);
    let alerts = lab.start();
    alerts.watch(Panics(false.into()), Arc::default(), Disks::remembered(lab.dir.path()));
    seconds(60).await;
    assert_eq!(lab.got("mail").len(), 1);
    alerts.stop().await;
}

#[tokio::test(start_paused = true)]
async fn settings_that_change_take_effect_and_wrong_ones_change_nothing() {
    let lab = Lab::new(&[sink("old")]);
    let alerts = lab.start();
    alerts.change(|config| config.add(sink("new"))).unwrap();
    alerts.change(|config| config.remove("old")).unwrap();
    assert!(alerts.change(|config| config.remove("old")).is_err());
    alerts.see(vec![finding("a", Severity::Critical)]);
    seconds(20).await;
    assert_eq!((lab.got("old").len(), lab.got("new").len()), (0, 1));
    let path = lab.dir.path().join(config::FILE);
    let good = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, "{nonsense").unwrap();
    let later = std::time::UNIX_EPOCH + Duration::from_secs(5);
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
    alerts.reread();
    assert!(alerts.status().problem.is_some_and(|problem| problem.contains("alerts.json")));
    alerts.see(vec![finding("b", Severity::Critical), finding("a", Severity::Critical)]);
    seconds(20).await;
    assert_eq!(lab.got("new").len(), 2, "as before");
    std::fs::write(&path, good).unwrap();
    alerts.reread();
    assert_eq!(alerts.status().problem, None);
    alerts.stop().await;
}

/// "Never shown" was said of it.
#[tokio::test(start_paused = true)]
async fn what_is_said_of_settings_that_cannot_be_understood_tells_no_secret() {
    let lab = Lab::new(&[]);
    let path = lab.dir.path().join(config::FILE);
    let hook = r#"{"url": "https://a/", "headers": ["Authorization: Bearer s3cret"]}"#;
    let wrong = format!(r#"{{"sinks": [{{"name": "hook", "target": {{"webhook": {hook}}}}}]}}"#);
    let good = std::fs::read_to_string(&path).unwrap();
    let later = |seconds| {
        let time = std::time::UNIX_EPOCH + Duration::from_secs(seconds);
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
    };
    let is_discreet = |alerts: &Alerts| {
        let problem = alerts.status().problem.unwrap();
        assert!(problem.contains("alerts.json") && problem.contains("at line 1 column "), "{problem}");
        assert!(!problem.contains("s3cret"), "{problem}");
    };
    std::fs::write(&path, &wrong).unwrap();
    let alerts = lab.start();
    is_discreet(&alerts);
    std::fs::write(&path, good).unwrap();
    later(5);
    alerts.reread();
    assert_eq!(alerts.status().problem, None);
    std::fs::write(&path, wrong).unwrap();
    later(9);
    alerts.reread();
    is_discreet(&alerts);
    alerts.stop().await;
}

/// A certificate that was gone at the start silenced all sinks, and what waited for them was thrown away.
#[tokio::test(start_paused = true)]
async fn a_sink_that_cannot_be_made_silences_none_of_the_others_and_comes_back() {
    let lab = Lab::new(&[sink("works"), sink("broken")]);
    lab.let_fail("broken", &vec![Fate::Fails("no route to host"); 1]);
    let alerts = lab.start();
    alerts.see(vec![finding("a", Severity::Critical)]);
    seconds(16).await;
    alerts.stop().await;
    lab.post.lock().unusable.insert("broken".into(), "cannot read '/etc/ca.pem'");

    let alerts = lab.start();
    let open = || vec![finding("a", Severity::Critical), finding("b", Severity::Critical)];
    alerts.see(open().into_iter().chain(alerts.failing()).collect());
    seconds(20).await;
    let title = "alerts cannot be delivered by 'broken': cannot read '/etc/ca.pem'";
    assert_eq!(lab.got("works")[1], [told(Occasion::Opened, "b"), told(Occasion::Opened, title)]);
    let status = alerts.status();
    assert_eq!((status.problem, status.sinks[1].queued), (None, 2), "it waits for the sink");
    assert!(status.sinks[1].last_error.as_ref().is_some_and(|error| error.contains("/etc/ca.pem")));
    // Other settings can be changed all the same.
    alerts.change(|config| config.label("WSD1", Some("bay 3"))).unwrap();
    alerts.reread();
    seconds(20).await;
    assert!(lab.got("broken").is_empty());
    lab.post.lock().unusable.clear();
    alerts.reread();
    seconds(20).await;
    assert_eq!(lab.got("broken"), [vec![told(Occasion::Opened, "a"), told(Occasion::Opened, "b")]]);
    assert!(alerts.failing().is_empty());
    alerts.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_sinks_outlives_settings_that_cannot_be_read_at_the_start() {
    let lab = Lab::new(&[sink("mail")]);
    lab.let_fail("mail", &vec![Fate::Fails("no route to host"); 2]);
    let alerts = lab.start();
    alerts.see(vec![finding("a", Severity::Critical)]);
    seconds(20).await;
    alerts.stop().await;
    let path = lab.dir.path().join(config::FILE);
    let good = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, "{nonsense").unwrap();
    let alerts = lab.start();
    seconds(20).await;
    assert!(alerts.status().problem.is_some());
    alerts.stop().await;
    std::fs::write(&path, good).unwrap();
    let alerts = lab.start();
    seconds(60).await;
    assert_eq!(lab.got("mail"), [vec![told(Occasion::Opened, "a")]]);
    alerts.stop().await;
}

/// Their owner was put right, which is no change of the file: nobody was told of anything until the next start.
#[tokio::test(start_paused = true)]
async fn settings_that_may_not_be_read_are_taken_when_they_may() {
    let lab = Lab::new(&[sink("mail")]);
    lab.let_fail("mail", &[Fate::Fails("no route to host")]);
    let alerts = lab.start();
    alerts.see(vec![finding("a", Severity::Critical)]);
    seconds(16).await;
    alerts.stop().await;
    let path = lab.dir.path().join(config::FILE);
    let good = std::fs::read_to_string(&path).unwrap();
    let time = std::fs::metadata(&path).unwrap().modified().unwrap();
    // Root may read everything, so a directory stands for what cannot be read, with the time of what can be.
    let cannot = || {
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        std::fs::File::open(&path).unwrap().set_modified(time).unwrap();
    };
    let can = || {
        std::fs::remove_dir(&path).unwrap();
        std::fs::write(&path, &good).unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
    };
    cannot();
    let alerts = lab.start();
    seconds(20).await;
    alerts.reread();
    assert!(alerts.status().problem.is_some());
    can();
    alerts.reread();
    assert_eq!(alerts.status().problem, None);
    seconds(60).await;
    assert_eq!(lab.got("mail"), [vec![told(Occasion::Opened, "a")]]);
    // Nor while it runs.
    for end in [&can as &dyn Fn(), &|| std::fs::remove_dir(&path).unwrap()] {
        cannot();
        let later = std::time::UNIX_EPOCH + Duration::from_secs(5);
        std::fs::File::open(&path).unwrap().set_modified(later).unwrap();
        alerts.reread();
        let before = alerts.status().problem.expect("it cannot be read");
        end();
        alerts.reread();
        let is_gone = !path.exists();
        assert_eq!(alerts.status().problem.is_some_and(|problem| problem != before), is_gone);
    }
    alerts.stop().await;
}

/// What was noticed meanwhile was in the book as told, and nobody ever got it: that of the first minute after a power cut.
#[tokio::test(start_paused = true)]
async fn what_is_noticed_while_the_settings_are_not_there_reaches_whom_it_is_for() {
    let lab = Lab::new(&[sink("mail"), SinkConfig { min_severity: Severity::Critical, ..sink("pager") }]);
    for name in ["mail", "pager"] {
        lab.let_fail(name, &vec![Fate::Fails("no route to host"); 2]);
    }
    let alerts = lab.start();
    alerts.see(vec![finding("a", Severity::Critical)]);
    seconds(20).await;
    alerts.stop().await;
    let path = lab.dir.path().join(config::FILE);
    let good = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let alerts = lab.start();
    let wrong = ["a", "b"].map(|title| finding(title, Severity::Critical)).into_iter();
    alerts.see(wrong.chain([finding("c", Severity::Warning)]).collect());
    seconds(20).await;
    std::fs::write(&path, good).unwrap();
    alerts.reread();
    seconds(60).await;
    let critical = ["a", "b"].map(|title| told(Occasion::Opened, title)).to_vec();
    assert_eq!(lab.got("pager").concat(), critical);
    assert_eq!(lab.got("mail").concat(), [critical, vec![told(Occasion::Opened, "c")]].concat());
    alerts.stop().await;
}

/// The file is replaced in two steps, or on a file system that is mounted later: what waited for all sinks was thrown away, and
/// the book held it for told.
#[tokio::test(start_paused = true)]
async fn what_waits_for_sinks_outlives_settings_that_are_not_there_at_the_start() {
    let lab = Lab::new(&[sink("mail")]);
    lab.let_fail("mail", &vec![Fate::Fails("no route to host"); 2]);
    let alerts = lab.start();
    alerts.see(vec![finding("a", Severity::Critical)]);
    seconds(20).await;
    alerts.stop().await;
    let path = lab.dir.path().join(config::FILE);
    let good = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    for _ in 0..2 {
        let alerts = lab.start();
        seconds(20).await;
        alerts.reread();
        let problem = alerts.status().problem.expect("it is missed");
        assert!(problem.contains("alerts.json") && problem.contains("put it back"), "{problem}");
        alerts.stop().await;
    }
    let alerts = lab.start();
    std::fs::write(&path, good).unwrap();
    alerts.reread();
    assert_eq!(alerts.status().problem, None);
    seconds(60).await;
    assert_eq!(lab.got("mail"), [vec![told(Occasion::Opened, "a")]]);
    alerts.stop().await;
    // Where nothing waits nobody misses it.
    std::fs::remove_file(&path).unwrap();
    let alerts = lab.start();
    assert_eq!(alerts.status().problem, None);
    alerts.stop().await;
}

/// What is said to be the end of it is.
#[tokio::test(start_paused = true)]
async fn settings_that_are_gone_for_good_are_missed_until_empty_ones_are_there() {
    let lab = Lab::new(&[sink("mail")]);
    lab.let_fail("mail", &[Fate::Fails("no route to host")]);
    let alerts = lab.start();
    alerts.see(vec![finding("a", Severity::Critical)]);
    seconds(16).await;
    alerts.stop().await;
    let path = lab.dir.path().join(config::FILE);
    std::fs::remove_file(&path).unwrap();
    let alerts = lab.start();
    assert!(alerts.status().problem.is_some_and(|problem| problem.contains("'{}'")));
    std::fs::write(&path, "{}").unwrap();
    alerts.reread();
    assert_eq!(alerts.status().problem, None);
    alerts.stop().await;
    std::fs::remove_file(&path).unwrap();
    let alerts = lab.start();
    assert_eq!(alerts.status().problem, None, "nothing waits any more");
    alerts.stop().await;
    assert!(lab.got("mail").is_empty());
}

/// Whoever replaced the file in two steps threw away what waited for all sinks, and nobody heard of it.
#[tokio::test(start_paused = true)]
async fn settings_that_are_gone_for_a_while_change_nothing_and_are_missed() {
    let lab = Lab::new(&[sink("mail")]);
    lab.let_fail("mail", &vec![Fate::Fails("no route to host"); 1]);
    let alerts = lab.start();
    alerts.see(vec![finding("a", Severity::Critical)]);
    seconds(16).await;
    let path = lab.dir.path().join(config::FILE);
    let good = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    for _ in 0..2 {
        alerts.reread();
        let status = alerts.status();
        let problem = status.problem.expect("it is missed");
        assert!(problem.contains("alerts.json") && problem.contains("put it back"), "{problem}");
        assert_eq!(status.sinks[0].queued, 1, "it waits");
    }
    seconds(60).await;
    assert_eq!(lab.got("mail"), [vec![told(Occasion::Opened, "a")]]);
    std::fs::write(&path, good).unwrap();
    alerts.reread();
    assert_eq!(alerts.status().problem, None);
    // Who changes something then does not begin with nothing.
    std::fs::remove_file(&path).unwrap();
    alerts.reread();
    alerts
        .change(|config| {
            config.host = Some("box".to_owned());
            Ok(())
        })
        .unwrap();
    let status = alerts.status();
    assert_eq!((status.problem, status.sinks.len()), (None, 1));
    assert!(std::fs::read_to_string(&path).unwrap().contains("mail"));
    alerts.stop().await;
}

/// They lay on a file server that was away, and of a disk that failed meanwhile nobody was told: the look that sees it read them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_that_do_not_answer_keep_no_alert_from_being_told() {
    let lab = Lab::new(&[sink("mail")]);
    let alerts = lab.start();
    let path = lab.dir.path().join(config::FILE);
    std::fs::remove_file(&path).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let (pools, journal) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Journal::default()));
    alerts.watch(Pools(Arc::clone(&pools)), Arc::clone(&journal), Disks::remembered(lab.dir.path()));
    // Who opens it for writing waits for a reader, who then waits for what is written.
    let hangs = std::fs::File::options().write(true).open(&path).unwrap();
    let mut disk = leaf("sdc", 3);
    disk.state = State::Faulted;
    pools.lock().push(facts(vec![group("mirror-0", "mirror", vec![leaf("sdb", 2), disk])]));
    let (class, pairs) = names::sysevent(names::DESTROYED, serde_json::Map::new());
    journal.add(&About { pool: "other".into(), guid: 9 }, &class, (0, 0), pairs, None);
    let told = async {
        while alerts.status().open.is_empty() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    let told = tokio::time::timeout(Duration::from_secs(8), told).await;
    // Or the test would not end either.
    drop(hangs);
    told.expect("the look waits for no settings");
    alerts.stop().await;
}

/// By hand, too: what works goes on until the slip is put right.
#[tokio::test(start_paused = true)]
async fn a_sink_that_was_changed_by_hand_so_that_it_cannot_work_stays_as_it_was() {
    let lab = Lab::new(&[sink("mail")]);
    let alerts = lab.start();
    let path = lab.dir.path().join(config::FILE);
    let wrong = std::fs::read_to_string(&path).unwrap().replace("\"daemon\"", "\"deamon\"");
    std::fs::write(&path, wrong).unwrap();
    let later = std::time::UNIX_EPOCH + Duration::from_secs(5);
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
    alerts.reread();
    assert!(alerts.status().problem.is_some_and(|problem| problem.contains("sink 'mail'")));
    alerts.see(vec![finding("a", Severity::Critical)]);
    seconds(20).await;
    assert_eq!(lab.got("mail").len(), 1);
    alerts.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_test_goes_the_real_way_and_says_what_came_of_it() {
    let lab = Lab::new(&[sink("good"), sink("bad")]);
    lab.let_fail("bad", &[Fate::Fails("mail.example.org:587 answered 535: no such user")]);
    let alerts = lab.start();
    let tested = alerts.test(None).await.unwrap();
    assert_eq!((tested[0].delivered, tested[0].answer.as_str()), (true, "taken"));
    assert!(!tested[1].delivered && tested[1].answer.contains("535"));
    assert_eq!(lab.got("good")[0][0].0, Occasion::Test);
    assert_eq!(alerts.test(Some("good")).await.unwrap().len(), 1);
    assert!(alerts.test(Some("nobody")).await.unwrap_err().to_string().contains("millpond alert list"));
    alerts.stop().await;
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

/// A mirror with so many checksum errors on one of its disks.
fn with_errors(checksum: u64) -> Facts {
    let mut disk = leaf("sdc", 3);
    disk.errors.checksum = checksum;
    facts(vec![group("mirror-0", "mirror", vec![leaf("sdb", 2), disk])])
}

/// A disk is pulled, a spare takes over, the disk comes back; then a scrub finds something.
#[tokio::test(start_paused = true)]
async fn the_story_of_a_disk_that_was_pulled_is_told_from_beginning_to_end() {
    let lab = Lab::new(&[sink("mail")]);
    let alerts = lab.start();
    let (journal, pools) = (Arc::new(Journal::default()), Arc::new(Mutex::new(Vec::new())));
    let with = |state, word: &str| {
        let mut disk = leaf("sdc", 3);
        disk.state = state;
        let mut all = facts(vec![group("mirror-0", "mirror", vec![leaf("sdb", 2), disk])]);
        if state != State::Healthy {
            (all.root.state, all.root.children[0].state) = (State::Degraded, State::Degraded);
        }
        assert_eq!(all.root.children[0].children[1].word(), word);
        *pools.lock() = vec![all];
    };
    let number = std::cell::Cell::new(0);
    let tell = |event: Event| {
        number.set(number.get() + 1);
        let record = Arc::new(Record { number: number.get(), time: (1_000_000, 0), event });
        for (class, pairs) in names::name(&record.event, 7, None) {
            let about = About { pool: "tank".into(), guid: 7 };
            journal.add(&about, &class, record.time, pairs, Some(Arc::clone(&record)));
        }
    };
    with(State::Healthy, "ONLINE");
    let disks = Disks::remembered(lab.dir.path());
    alerts.watch(Pools(Arc::clone(&pools)), Arc::clone(&journal), disks);
    seconds(60).await;
    assert!(lab.got("mail").is_empty(), "all is well");

    let device = DeviceName {
        guid: 3,
        path: Some("/dev/sdc".into()),
        name: "sdc".into(),
        parent: Some("mirror-0".into()),
    };
    with(State::Removed, "REMOVED");
    let why = "the disk was pulled out".to_owned();
    tell(Event::DeviceState { device, from: State::Healthy, to: State::Removed, aux: Aux::None, why });
    seconds(1).await;
    assert_eq!(alerts.status().open.len(), 2, "at once, not at the next turn");
    seconds(15).await;
    let title = "disk sdc is REMOVED (the disk was pulled out)";
    assert_eq!(
        lab.got("mail"),
        [vec![told(Occasion::Opened, title), told(Occasion::Opened, "pool 'tank' is DEGRADED")]]
    );
    let body = lab.post.lock().taken["mail"][0].body.clone();
    for says in
        ["no other disk of mirror-0 may fail", "zpool online tank sdc", "zpool replace tank sdc NEW-DEVICE"]
    {
        assert!(body.contains(says), "{says}: {body}");
    }

    with(State::Healthy, "ONLINE");
    let done = |kind, processed, errors| Event::Scan { kind, step: ScanStep::Finished, processed, errors };
    tell(done(ScanKind::Resilver, 5 << 20, 0));
    seconds(90).await;
    let told_next: Vec<_> = lab.got("mail")[1..].concat();
    assert_eq!(
        told_next,
        [
            told(Occasion::Notice, "resilver of 'tank' ended: 5M written"),
            told(Occasion::Resolved, "pool 'tank' is DEGRADED"),
            told(Occasion::Resolved, title)
        ]
    );

    tell(done(ScanKind::Scrub, 0, 0));
    seconds(60).await;
    assert_eq!(lab.got("mail")[1..].concat().len(), 3, "a scrub that found nothing is no news");
    tell(done(ScanKind::Scrub, 4096, 2));
    seconds(60).await;
    let last = lab.got("mail").concat().pop().unwrap();
    assert_eq!(last.1, "scrub of 'tank' ended with 2 errors it could not repair (4K repaired)");
    alerts.stop().await;
}

/// `zpool events -c` within a moment of it made what a scrub had found no news.
#[tokio::test(start_paused = true)]
async fn what_somebody_clears_before_it_was_looked_at_is_told_all_the_same() {
    let lab = Lab::new(&[sink("mail")]);
    let (alerts, journal) = (lab.start(), Arc::new(Journal::default()));
    let tank = facts(vec![group("mirror-0", "mirror", vec![leaf("sdb", 2), leaf("sdc", 3)])]);
    let pools = Pools(Arc::new(Mutex::new(vec![tank])));
    alerts.watch(pools, Arc::clone(&journal), Disks::remembered(lab.dir.path()));
    seconds(60).await;
    let (kind, step) = (ScanKind::Scrub, ScanStep::Finished);
    let event = Event::Scan { kind, step, processed: 4096, errors: 2 };
    let record = Arc::new(Record { number: 1, time: (1_000_000, 0), event });
    for (class, pairs) in names::name(&record.event, 7, None) {
        let about = About { pool: "tank".into(), guid: 7 };
        journal.add(&about, &class, record.time, pairs, Some(Arc::clone(&record)));
    }
    assert!(journal.clear() > 0 && journal.since(0, None).is_empty());
    seconds(60).await;
    let title = "scrub of 'tank' ended with 2 errors it could not repair (4K repaired)";
    assert_eq!(lab.got("mail").concat(), [told(Occasion::Notice, title)]);
    alerts.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_could_not_be_opened_is_told_until_it_is() {
    let lab = Lab::new(&[sink("mail")]);
    let alerts = lab.start();
    let why = "cannot open 'lake': none of its devices is there".to_owned();
    let lake = Missing { name: "lake".into(), guid: 9, is_imported: true, why: why.clone() };
    let (open, gone) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(vec![lake])));
    let source = Both(Arc::clone(&open), Arc::clone(&gone));
    alerts.watch(source, Arc::default(), Disks::remembered(lab.dir.path()));
    seconds(30).await;
    let title = format!("pool 'lake' could not be opened: {why}");
    assert_eq!(lab.got("mail"), [vec![told(Occasion::Opened, &title)]]);
    gone.lock().clear();
    *open.lock() = vec![Facts { name: "lake".into(), guid: 9, ..facts(vec![leaf("sdb", 2)]) }];
    seconds(90).await;
    assert_eq!(lab.got("mail")[1], [told(Occasion::Resolved, &title)]);
    alerts.stop().await;
}

/// Pools that are open, and those that should be.
#[derive(Debug)]
struct Both(Arc<Mutex<Vec<Facts>>>, Arc<Mutex<Vec<Missing>>>);

impl Source for Both {
    fn facts<'a>(&'a self, _fresh: &'a [u64]) -> BoxFuture<'a, Option<Vec<Facts>>> {
        let facts = self.0.lock().clone();
        Box::pin(async move { Some(facts) })
    }

    fn missing(&self) -> Vec<Missing> {
        self.1.lock().clone()
    }
}

/// The daemon starts again with a broken disk in a pool that does not open any more: then it was told that the disk is well.
#[tokio::test(start_paused = true)]
async fn what_is_wrong_with_a_pool_is_not_over_because_it_cannot_be_opened() {
    let lab = Lab::new(&[sink("mail")]);
    let mut broken = leaf("sdc", 3);
    broken.state = State::Faulted;
    let mut tank = facts(vec![group("mirror-0", "mirror", vec![leaf("sdb", 2), broken])]);
    (tank.root.state, tank.root.children[0].state) = (State::Degraded, State::Degraded);
    let alerts = lab.start();
    let open = Arc::new(Mutex::new(vec![tank]));
    alerts.watch(Pools(Arc::clone(&open)), Arc::default(), Disks::remembered(lab.dir.path()));
    seconds(60).await;
    let before = lab.got("mail").concat();
    assert_eq!(before.len(), 2, "disk and pool: {before:?}");
    alerts.stop().await;

    let why = "cannot open 'tank': too few devices".to_owned();
    let missing = Missing { name: "tank".into(), guid: 7, is_imported: true, why };
    let missing = Arc::new(Mutex::new(vec![missing]));
    let alerts = lab.start();
    let none = Arc::new(Mutex::new(Vec::new()));
    let source = Both(Arc::clone(&none), Arc::clone(&missing));
    alerts.watch(source, Arc::default(), Disks::remembered(lab.dir.path()));
    seconds(600).await;
    let told = lab.got("mail").concat().split_off(before.len());
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].0 == Occasion::Worse && told[0].1.contains("could not be opened"), "{told:?}");

    // It is open, and the disk was replaced meanwhile: now that is known.
    *none.lock() = vec![facts(vec![group("mirror-0", "mirror", vec![leaf("sdb", 2), leaf("sdd", 4)])])];
    missing.lock().clear();
    seconds(90).await;
    let told = lab.got("mail").concat().split_off(before.len() + 1);
    assert_eq!(told.iter().map(|(occasion, _)| *occasion).collect::<Vec<_>>(), [Occasion::Resolved; 2]);
    alerts.stop().await;
}

/// A daemon that started on slow disks took what it had not read yet for nothing: "over" was told of lost blocks, and a
/// minute later they were told of as new.
#[tokio::test(start_paused = true)]
async fn what_takes_a_read_of_the_pool_is_not_over_before_there_was_one() {
    let lab = Lab::new(&[sink("mail")]);
    let tank = |capacity, lost| Facts { capacity, lost, ..facts(vec![leaf("sdb", 2)]) };
    let pools = Arc::new(Mutex::new(vec![tank(Some(96), Some(3))]));
    let start = || lab.start_with(&pools, Arc::default());
    let alerts = start();
    seconds(60).await;
    let before = lab.got("mail").concat();
    assert_eq!(before.len(), 2, "space and lost blocks: {before:?}");
    alerts.stop().await;

    *pools.lock() = vec![tank(None, None)];
    let alerts = start();
    seconds(120).await;
    *pools.lock() = vec![tank(None, Some(3))];
    seconds(120).await;
    *pools.lock() = vec![tank(Some(96), Some(3))];
    seconds(120).await;
    assert_eq!(lab.got("mail").concat(), before);
    assert!(alerts.status().open.iter().all(|alert| alert.returned == 0), "they never went");
    *pools.lock() = vec![tank(Some(10), Some(0))];
    seconds(120).await;
    let told = lab.got("mail").concat().split_off(before.len());
    assert_eq!(told.iter().map(|(occasion, _)| *occasion).collect::<Vec<_>>(), [Occasion::Resolved; 2]);
    alerts.stop().await;
}

/// A restart told that a disk that goes bad is well: its errors were counted from 0 again, and nobody had cleared them.
#[tokio::test(start_paused = true)]
async fn errors_of_a_disk_are_over_when_somebody_clears_them_and_not_because_they_are_counted_anew() {
    let lab = Lab::new(&[sink("mail")]);
    let (journal, pools) = (Arc::new(Journal::default()), Arc::new(Mutex::new(vec![with_errors(5)])));
    let clear = |guid, name: &str| {
        let device = Some(DeviceName { guid, path: None, name: name.into(), parent: None });
        let record = Arc::new(Record { number: 1, time: (1_000_000, 0), event: Event::Cleared { device } });
        for (class, pairs) in names::name(&record.event, 7, None) {
            let about = About { pool: "tank".into(), guid: 7 };
            journal.add(&about, &class, record.time, pairs, Some(Arc::clone(&record)));
        }
    };
    // A daemon's journal goes with it.
    let alerts = lab.start_with(&pools, Arc::default());
    seconds(60).await;
    let title = "disk sdc has 5 checksum errors";
    assert_eq!(lab.got("mail").concat(), [told(Occasion::Opened, title)]);
    alerts.stop().await;

    *pools.lock() = vec![with_errors(0)];
    let alerts = lab.start_with(&pools, Arc::clone(&journal));
    seconds(600).await;
    clear(2, "sdb");
    seconds(600).await;
    assert_eq!(lab.got("mail").concat().len(), 1, "nobody cleared them");
    assert_eq!(alerts.status().open[0].finding.title, title);
    assert_eq!(alerts.status().open[0].returned, 0, "they never went");
    // The next restart finds them cleared, although the daemon ended before that was believed.
    clear(1000, "mirror-0");
    seconds(5).await;
    alerts.stop().await;
    let alerts = lab.start_with(&pools, Arc::default());
    seconds(90).await;
    let last = lab.got("mail").concat().pop();
    assert_eq!(last, Some(told(Occasion::Resolved, title)));
    alerts.stop().await;
}

/// The first error after a restart made 5000 errors one, and each magnitude on the way back there was told as worse.
#[tokio::test(start_paused = true)]
async fn errors_of_a_disk_are_told_at_their_worst_until_more_have_come_since_a_restart() {
    let lab = Lab::new(&[sink("mail")]);
    let pools = Arc::new(Mutex::new(vec![with_errors(5000)]));
    let start = || lab.start_with(&pools, Arc::default());
    let alerts = start();
    seconds(60).await;
    alerts.stop().await;
    let alerts = start();
    let shown = || alerts.status().open[0].finding.title.clone();
    for checksum in [0, 1, 10, 900] {
        *pools.lock() = vec![with_errors(checksum)];
        seconds(60).await;
        assert_eq!(shown(), "disk sdc has 5000 checksum errors", "{checksum} since then");
    }
    *pools.lock() = vec![with_errors(6000)];
    seconds(60).await;
    assert_eq!(shown(), "disk sdc has 6000 checksum errors", "the number goes on");
    assert_eq!(
        lab.got("mail").concat(),
        [told(Occasion::Opened, "disk sdc has 5000 checksum errors")],
        "nothing is worse than it was"
    );
    *pools.lock() = vec![with_errors(10_000)];
    seconds(60).await;
    let last = lab.got("mail").concat().pop();
    assert_eq!(last, Some(told(Occasion::Worse, "disk sdc has 10000 checksum errors")));
    alerts.stop().await;
}

/// After a restart the kernel had given the names otherwise, and an alert that was still open went on to name the good disk
/// that was called so now, with the commands that clear and replace it; after an import under another name, the old pool.
#[tokio::test(start_paused = true)]
async fn errors_of_a_disk_are_told_of_the_disk_as_it_is_called_since_a_restart() {
    let lab = Lab::new(&[sink("mail")]);
    let with = |pool: &str, [good, bad]: [&str; 2], checksum| {
        let mut disk = leaf(bad, 3);
        disk.errors.checksum = checksum;
        let all = facts(vec![group("mirror-0", "mirror", vec![leaf(good, 2), disk])]);
        vec![Facts { name: pool.into(), ..all }]
    };
    let pools = Arc::new(Mutex::new(with("tank", ["sdd", "sdc"], 5000)));
    let start = || {
        let alerts = lab.start();
        alerts.watch(Pools(Arc::clone(&pools)), Arc::default(), Disks::remembered(lab.dir.path()));
        alerts
    };
    let alerts = start();
    seconds(60).await;
    alerts.stop().await;
    *pools.lock() = with("lake", ["sdc", "sdd"], 0);
    let alerts = start();
    for checksum in [0, 1, 900] {
        *pools.lock() = with("lake", ["sdc", "sdd"], checksum);
        seconds(60).await;
        let open = alerts.status().open;
        assert_eq!(open.len(), 1, "{checksum} since then: {open:?}");
        let finding = &open[0].finding;
        assert_eq!(finding.title, "disk sdd has 5000 checksum errors", "{checksum} since then");
        assert_eq!((finding.pool.as_str(), finding.level), ("lake", 4));
        let device = finding.device.as_ref().unwrap();
        assert_eq!((device.name.as_str(), device.path.as_deref()), ("sdd", Some("/dev/sdd")));
        for line in ["  zpool scrub lake", "  zpool clear lake sdd", "  zpool replace lake sdd NEW-DEVICE"] {
            assert!(finding.action.iter().any(|action| action == line), "{line}: {:?}", finding.action);
        }
    }
    assert_eq!(lab.got("mail").concat(), [told(Occasion::Opened, "disk sdc has 5000 checksum errors")]);
    alerts.stop().await;
}

/// Half a minute after each restart it was told as over, and told anew as soon as somebody read from it.
#[tokio::test(start_paused = true)]
async fn a_slow_disk_is_not_quick_because_the_daemon_began_anew() {
    let lab = Lab::new(&[sink("mail")]);
    let with = |name: &str, sits_out, judged| {
        let disk = VdevStatus { sits_out, judged, ..leaf(name, 3) };
        vec![facts(vec![group("mirror-0", "mirror", vec![leaf("sdb", 2), disk])])]
    };
    let pools = Arc::new(Mutex::new(with("sdc", true, true)));
    let start = || lab.start_with(&pools, Arc::default());
    let alerts = start();
    seconds(60).await;
    alerts.stop().await;
    *pools.lock() = with("sdd", false, false);
    let alerts = start();
    seconds(600).await;
    assert_eq!(lab.got("mail").concat(), [told(Occasion::Opened, "disk sdc is slow")]);
    assert_eq!(alerts.status().open[0].finding.title, "disk sdd is slow", "as it is called since");
    *pools.lock() = with("sdd", false, true);
    seconds(90).await;
    let last = lab.got("mail").concat().pop();
    assert_eq!(last, Some(told(Occasion::Resolved, "disk sdd is slow")));
    alerts.stop().await;
}

/// It would have been slow for good.
#[tokio::test(start_paused = true)]
async fn a_slow_disk_that_nobody_judges_any_more_is_not_slow_for_ever() {
    for (state, watched) in [(State::Offline, true), (State::Healthy, false)] {
        let lab = Lab::new(&[sink("mail")]);
        let with = |state, sits_out, judged, watched| {
            let disk = VdevStatus { state, sits_out, judged, ..leaf("sdc", 3) };
            let all = facts(vec![group("mirror-0", "mirror", vec![leaf("sdb", 2), disk])]);
            vec![Facts { watched, ..all }]
        };
        let pools = Arc::new(Mutex::new(with(State::Healthy, true, true, true)));
        let start = || lab.start_with(&pools, Arc::default());
        let alerts = start();
        seconds(60).await;
        alerts.stop().await;
        *pools.lock() = with(state, false, false, watched);
        let alerts = start();
        seconds(90).await;
        let is = [Occasion::Opened, Occasion::Resolved].map(|occasion| told(occasion, "disk sdc is slow"));
        assert_eq!(lab.got("mail").concat(), is, "{state:?}, watched: {watched}");
        alerts.stop().await;
    }
}

/// A disk that had errors and is no part of the pool any more has nobody who could clear them.
#[tokio::test(start_paused = true)]
async fn errors_of_a_disk_are_over_when_it_has_left() {
    let lab = Lab::new(&[sink("mail")]);
    let mut disk = leaf("sdc", 3);
    disk.errors.read = 1;
    let mirror = |disk| facts(vec![group("mirror-0", "mirror", vec![leaf("sdb", 2), disk])]);
    let pools = Arc::new(Mutex::new(vec![mirror(disk)]));
    let alerts = lab.start();
    alerts.watch(Pools(Arc::clone(&pools)), Arc::default(), Disks::remembered(lab.dir.path()));
    seconds(60).await;
    *pools.lock() = vec![mirror(leaf("sdd", 4))];
    seconds(90).await;
    let occasions: Vec<_> = lab.got("mail").concat().into_iter().map(|(occasion, _)| occasion).collect();
    assert_eq!(occasions, [Occasion::Opened, Occasion::Resolved]);
    alerts.stop().await;
}

/// They were listed as critical for good if the daemon ended before it looked again: nobody sees a pool that is no more.
#[tokio::test(start_paused = true)]
async fn what_was_wrong_with_a_pool_is_over_when_it_is_destroyed_although_the_daemon_ends_at_once() {
    let lab = Lab::new(&[sink("mail")]);
    let mut broken = leaf("sdc", 3);
    broken.state = State::Faulted;
    let tank = facts(vec![group("mirror-0", "mirror", vec![leaf("sdb", 2), broken])]);
    let (alerts, journal) = (lab.start(), Arc::new(Journal::default()));
    let open = Arc::new(Mutex::new(vec![tank]));
    alerts.watch(Pools(Arc::clone(&open)), Arc::clone(&journal), Disks::remembered(lab.dir.path()));
    seconds(60).await;
    let before = lab.got("mail").concat().len();
    assert!(before > 0 && !alerts.status().open.is_empty());
    open.lock().clear();
    let say = |name: &str| {
        let (class, pairs) = names::sysevent(name, serde_json::Map::new());
        journal.add(&About { pool: "tank".into(), guid: 7 }, &class, (0, 0), pairs, None);
    };
    say(names::DESTROYED);
    alerts.stop().await;
    let files = Files::new(lab.dir.path(), None);
    assert_eq!(Offline::new(files).status().unwrap().open, []);
    // Whoever was told of it hears that it is over, after the next start.
    let alerts = lab.start();
    seconds(60).await;
    let told = lab.got("mail").concat().split_off(before);
    assert!(!told.is_empty() && told.iter().all(|(occasion, _)| *occasion == Occasion::Resolved), "{told:?}");
    alerts.stop().await;
}

/// It was taken for written, and a restart forgot what was open.
#[tokio::test(start_paused = true)]
async fn what_could_not_be_written_down_is_written_when_it_can_be() {
    let lab = Lab::new(&[]);
    let alerts = lab.start();
    let in_the_way = lab.dir.path().join(format!("{STATE_FILE}.new"));
    std::fs::create_dir(&in_the_way).unwrap();
    alerts.see(vec![finding("a", Severity::Critical)]);
    seconds(5).await;
    assert!(!lab.dir.path().join(STATE_FILE).exists());
    std::fs::remove_dir(&in_the_way).unwrap();
    alerts.stop().await;
    let alerts = lab.start();
    assert_eq!(alerts.status().open.len(), 1);
    alerts.stop().await;
}

/// One alert of a kind that came later, and the version before forgot all of them, and everything that waited.
#[tokio::test(start_paused = true)]
async fn what_only_a_newer_version_understands_is_kept_for_it() {
    let lab = Lab::new(&[sink("mail")]);
    let path = lab.dir.path().join(STATE_FILE);
    let both = || vec![finding("a", Severity::Critical), finding("b", Severity::Critical)];
    lab.let_fail("mail", &vec![Fate::Fails("no route to host"); 9]);
    let alerts = lab.start();
    alerts.see(both());
    seconds(20).await;
    alerts.stop().await;
    let mut kept: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for entry in ["/book/open/0", "/outboxes/mail/queue/0"] {
        let alert = kept.pointer_mut(entry).unwrap().get_mut("alert").unwrap();
        assert_eq!((alert["kind"].as_str(), alert["title"].as_str()), (Some("device"), Some("a")));
        alert["kind"] = "enclosure".into();
    }
    let beside = ["/silences", "/book/groups", "/book/open/1/heard", "/outboxes/mail/route"];
    for pointer in beside {
        let (within, name) = pointer.rsplit_once('/').unwrap();
        kept.pointer_mut(within).unwrap()[name] = serde_json::json!([u64::MAX]);
    }
    std::fs::write(&path, kept.to_string()).unwrap();
    lab.let_fail("mail", &[]);
    let alerts = lab.start();
    alerts.see(vec![finding("b", Severity::Critical)]);
    seconds(60).await;
    assert_eq!(lab.got("mail"), [vec![told(Occasion::Opened, "b")]], "what is understood is sent");
    assert_eq!(alerts.status().open.len(), 1);
    alerts.stop().await;
    // That version is back.
    let kept = std::fs::read_to_string(&path).unwrap();
    assert_eq!(kept.matches("enclosure").count(), 2);
    let fields: serde_json::Value = serde_json::from_str(&kept).unwrap();
    for pointer in beside {
        assert_eq!(fields.pointer(pointer), Some(&serde_json::json!([u64::MAX])), "{pointer}");
    }
    std::fs::write(&path, kept.replace("enclosure", "device")).unwrap();
    let alerts = lab.start();
    alerts.see(both());
    seconds(60).await;
    assert_eq!(lab.got("mail")[1..], [vec![told(Occasion::Opened, "a")]]);
    assert_eq!(alerts.status().open.len(), 2);
    alerts.stop().await;
}

/// An empty one was written over it at once.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_at_the_start_is_not_written_over_and_taken_over_when_it_can() {
    let lab = Lab::new(&[sink("mail")]);
    lab.let_fail("mail", &vec![Fate::Fails("no route to host"); 9]);
    let alerts = lab.start();
    alerts.see(vec![finding("a", Severity::Critical)]);
    seconds(20).await;
    alerts.stop().await;
    lab.hide_state();
    lab.let_fail("mail", &[]);
    let alerts = lab.start();
    alerts.see(vec![finding("b", Severity::Critical)]);
    seconds(60).await;
    assert_eq!(lab.got("mail"), [vec![told(Occasion::Opened, "b")]], "it goes on without");
    lab.show_state();
    seconds(60).await;
    assert_eq!(lab.got("mail")[1..], [vec![told(Occasion::Opened, "a")]]);
    alerts.see(vec![finding("a", Severity::Critical)]);
    alerts.stop().await;
    let files = Files::new(lab.dir.path(), None);
    assert_eq!(Offline::new(files).status().unwrap().open.len(), 2, "one of them may come back still");
}

/// It was forgotten when that could be read: nobody heard that it was over, and what lasted was told twice, as two.
#[tokio::test(start_paused = true)]
async fn what_is_told_while_what_was_kept_cannot_be_read_has_one_beginning_and_one_end() {
    let [a, b] = ["a", "b"].map(|title| move || finding(title, Severity::Critical));
    for lasts in [false, true] {
        let lab = Lab::new(&[sink("mail")]);
        let alerts = lab.start();
        alerts.see(vec![a()]);
        seconds(20).await;
        alerts.stop().await;
        lab.hide_state();
        let alerts = lab.start();
        alerts.see(vec![b()]);
        seconds(20).await;
        assert_eq!(lab.got("mail")[1..], [vec![told(Occasion::Opened, "b")]]);
        let found = || if lasts { vec![a(), b()] } else { vec![a()] };
        if !lasts {
            alerts.see(Vec::new());
        }
        lab.show_state();
        while alerts.is_unread.load(Relaxed) {
            seconds(1).await;
        }
        for _ in 0..6 {
            alerts.see(found());
            seconds(10).await;
        }
        let ended = if lasts { Vec::new() } else { vec![vec![told(Occasion::Resolved, "b")]] };
        assert_eq!(lab.got("mail")[2..], ended);
        assert_eq!(alerts.status().open.len(), found().len());
        let ids: Vec<u64> =
            lab.post.lock().taken["mail"].iter().map(|message| message.notices[0].alert.id).collect();
        assert!(ids[0] != ids[1] && ids[1..].iter().all(|id| *id == ids[1]), "{ids:?}");
        alerts.stop().await;
    }
}

/// A daemon that was told to end waited without limit for its state directory, and closed no pool before it answered.
#[tokio::test(start_paused = true)]
async fn a_state_directory_that_does_not_answer_is_no_reason_not_to_end() {
    let lab = Lab::new(&[]);
    let alerts = lab.start();
    alerts.see(vec![finding("a", Severity::Critical)]);
    // As a write that does not come to its end has it.
    let _hangs = alerts.written.lock().await;
    tokio::time::timeout(2 * LAST_WRITE, alerts.stop()).await.expect("it is waited for a moment");
}

/// The first to tell was whom no client came to any more.
#[tokio::test(start_paused = true)]
async fn what_runs_out_is_told_before_it_does_until_a_newer_one_was_read() {
    const DAY: u64 = 86_400;
    const BEGAN: u64 = 1_000_000;
    let lab = Lab::new(&[sink("mail")]);
    let alerts = lab.start_with(&Arc::new(Mutex::new(Vec::new())), Arc::default());
    let good = |file: &str, of, from: u64, until: u64| {
        let validity = Validity { of, from: BEGAN + from * DAY, until: BEGAN + until * DAY };
        Expiry { file: format!("/tls/{file}"), validity }
    };
    // Days from the beginning, and what is told then that was not told before.
    let on_day = async |day: u64| {
        let before = lab.got("mail").concat().len();
        advance(Duration::from_secs(day * DAY).saturating_sub(lab.began.elapsed())).await;
        seconds(120).await;
        lab.got("mail").concat().split_off(before)
    };
    let title = |noun: &str, file: &str, until: u64| {
        format!("the {noun} of NBD in '/tls/{file}' runs out at {}", view::timestamp(BEGAN + until * DAY))
    };
    let is = || alerts.status().open.iter().map(|alert| alert.finding.severity).collect::<Vec<_>>();
    let (certificate, list) = ("server-cert.pem", "ca-crl.pem");
    let server = good(certificate, Credential::Chain, 0, 100);
    alerts.set_expiries(vec![server.clone(), good(list, Credential::Revoked, 0, 8)]);
    assert_eq!(on_day(5).await, [], "a list of eight days is not renewed yet");
    let of_list = title("list of revoked certificates", list, 8);
    assert_eq!(on_day(6).await, [told(Occasion::Opened, &of_list)]);
    assert_eq!(is(), [Severity::Warning]);
    alerts.set_expiries(vec![server.clone(), good(list, Credential::Revoked, 6, 400)]);
    assert_eq!(on_day(6).await, [told(Occasion::Resolved, &of_list)]);

    assert_eq!(on_day(78).await, []);
    let of_server = title("server's certificate", certificate, 100);
    assert_eq!(on_day(79).await, [told(Occasion::Opened, &of_server)]);
    assert_eq!(is(), [Severity::Warning]);
    assert_eq!(on_day(96).await, [], "told once");
    assert_eq!(on_day(97).await, [told(Occasion::Worse, &of_server)]);
    assert_eq!(is(), [Severity::Critical]);
    let run_out = of_server.replace("runs out at ", "has run out (") + ")";
    assert_eq!(on_day(100).await, [told(Occasion::Worse, &run_out)]);
    let action = alerts.status().open[0].finding.action.concat();
    assert!(action.contains("renewed") && action.contains("systemctl reload"), "{action}");
    alerts.set_expiries(vec![good(certificate, Credential::Chain, 100, 200)]);
    assert_eq!(on_day(100).await, [told(Occasion::Resolved, &run_out)]);
    assert_eq!(is(), []);
    alerts.stop().await;
}

/// What is told of one was to hide nothing that is told of another.
#[test]
fn each_file_that_runs_out_is_an_alert_of_its_own() {
    const DAY: u64 = 86_400;
    let expiry =
        |file: &str, of, until| Expiry { file: file.into(), validity: Validity { of, from: 0, until } };
    let all = [expiry("a", Credential::Chain, 90), expiry("b", Credential::Revoked, 80)];
    let found = expiries::findings(&all, 85);
    let keys: BTreeSet<_> = found.iter().map(book::key).collect();
    assert_eq!((keys.len(), found[0].level, found[1].level), (2, 2, 3));
    // Days it is good for, days that are left, and what is told then.
    for (whole, left, level) in [
        (90, 22, None),
        (90, 21, Some(1)),
        (60, 16, None),
        (60, 15, Some(1)),
        (60, 5, Some(1)),
        (60, 3, Some(2)),
        (10, 2, Some(1)),
        (10, 1, Some(2)),
    ] {
        let found = expiries::findings(&[expiry("a", Credential::Chain, whole * DAY)], (whole - left) * DAY);
        assert_eq!(found.first().map(|finding| finding.level), level, "{left} of {whole} days");
    }
}
