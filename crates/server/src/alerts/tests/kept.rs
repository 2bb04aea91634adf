//! What of alerts outlives the daemon: written down, read late, kept for a newer version.

use std::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::alerts::{LAST_WRITE, offline::Offline};

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
