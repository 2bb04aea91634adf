//! The settings change, make no sense, cannot be read, are gone, do not answer: what works goes on, and what waits is not lost.

use pool::vdev::State;

use super::*;

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
