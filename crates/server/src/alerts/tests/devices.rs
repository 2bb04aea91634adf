//! A device fails, has errors, is slow: from what happens to what is told, restarts of the daemon included.

use engine::events::{DeviceName, Event, ScanKind, ScanStep};
use pool::{
    status::VdevStatus,
    vdev::{Aux, State},
};

use super::*;

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
    let tell = |event: Event| happen(&journal, event);
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

/// A restart told that a disk that goes bad is well: its errors were counted from 0 again, and nobody had cleared them.
#[tokio::test(start_paused = true)]
async fn errors_of_a_disk_are_over_when_somebody_clears_them_and_not_because_they_are_counted_anew() {
    let lab = Lab::new(&[sink("mail")]);
    let (journal, pools) = (Arc::new(Journal::default()), Arc::new(Mutex::new(vec![with_errors(5)])));
    let clear = |guid, name: &str| {
        let device = Some(DeviceName { guid, path: None, name: name.into(), parent: None });
        happen(&journal, Event::Cleared { device });
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
    let start = || lab.start_with(&pools, Arc::default());
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

/// A disk that had errors and is no part of the pool any more has nobody who could clear them.
#[tokio::test(start_paused = true)]
async fn errors_of_a_disk_are_over_when_it_has_left() {
    let lab = Lab::new(&[sink("mail")]);
    let mut disk = leaf("sdc", 3);
    disk.errors.read = 1;
    let mirror = |disk| facts(vec![group("mirror-0", "mirror", vec![leaf("sdb", 2), disk])]);
    let pools = Arc::new(Mutex::new(vec![mirror(disk)]));
    let alerts = lab.start_with(&pools, Arc::default());
    seconds(60).await;
    *pools.lock() = vec![mirror(leaf("sdd", 4))];
    seconds(90).await;
    let occasions: Vec<_> = lab.got("mail").concat().into_iter().map(|(occasion, _)| occasion).collect();
    assert_eq!(occasions, [Occasion::Opened, Occasion::Resolved]);
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
