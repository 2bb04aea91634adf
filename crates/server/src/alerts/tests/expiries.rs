//! What runs out by itself, told in time.

use nbd::{Credential, Validity};
use tokio::time::advance;

use super::*;
use crate::{certificates::Expiry, view};

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
