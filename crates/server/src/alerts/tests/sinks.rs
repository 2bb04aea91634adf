//! Who is told, when, and in how many messages; and what becomes of the others when one sink does not work.

use super::*;

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
