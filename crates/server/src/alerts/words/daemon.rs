//! What the daemon says of itself: what its clients know it by runs out, or alerts do not get out.

use nbd::Credential;

use crate::{
    api::alerts::{Finding, Kind, Severity},
    certificates::Expiry,
    view,
};

/// What runs out, or has.
pub(in crate::alerts) fn expiry(mut finding: Finding, expiry: &Expiry, now: u64) -> Finding {
    let (noun, file, when) = (expiry.noun(), &expiry.file, view::timestamp(expiry.validity.until));
    finding.title = match expiry.has_run_out(now) {
        true => format!("the {noun} of NBD in '{file}' has run out ({when})"),
        false => format!("the {noun} of NBD in '{file}' runs out at {when}"),
    };
    let (meaning, renew) = match expiry.validity.of {
        Credential::Chain => (
            "From then on clients that come do not take this server for the one they know, and do not connect. Who is \
             connected stays.",
            "Have it renewed, and put the new one in its place;",
        ),
        Credential::Authority => (
            "From then on clients that look at it themselves, as QEMU and libnbd do, do not connect. Who is connected \
             stays.",
            "Put a new one in its place, or take it out if others in the file have taken over; give clients what they need \
             with the new one;",
        ),
        Credential::Revoked => (
            "Whoever is on it is kept out all the same; but there should be a newer one by then, and whose certificate was \
             taken back meanwhile is let in.",
            "Get the newer one from the authority, and put it in its place;",
        ),
    };
    meaning.clone_into(&mut finding.meaning);
    finding.action = vec![
        format!("{renew} then have the daemon read it, which disconnects nobody:"),
        "  systemctl reload UNIT    or without a unit: kill -HUP PID, if it has no terminal".to_owned(),
    ];
    finding
}

/// A sink that does not work.
pub(in crate::alerts) fn delivery(
    mut finding: Finding,
    failures: u64,
    waiting: usize,
    error: &str,
) -> Finding {
    let sink = finding.sink.clone().unwrap_or_default();
    finding.title = format!("alerts cannot be delivered by '{sink}': {error}");
    finding.meaning = format!(
        "{failures} attempts in a row failed; {waiting} notices wait. They are tried again for three days, then dropped."
    );
    finding.action = vec![
        "Put the cause right, then try:".to_owned(),
        format!("  millpond alert test {sink}"),
        "If its settings are wrong, remove it and add it again:".to_owned(),
        format!("  millpond alert remove {sink}"),
    ];
    finding
}

/// A sink that cannot even be tried.
pub(in crate::alerts) fn unusable(mut finding: Finding, waiting: usize, why: &str) -> Finding {
    let sink = finding.sink.clone().unwrap_or_default();
    finding.title = format!("alerts cannot be delivered by '{sink}': {why}");
    finding.meaning = format!(
        "It cannot be used as it is set up; {waiting} notices wait. It is tried again every few seconds, without a restart."
    );
    finding.action = vec![
        "Put the cause right, or remove it and add it again:".to_owned(),
        format!("  millpond alert remove {sink}"),
    ];
    finding
}

/// What a test says.
pub(in crate::alerts) fn test(sink: &str) -> Finding {
    Finding {
        sink: Some(sink.to_owned()),
        title: format!("test of '{sink}': alerts arrive here"),
        meaning: "Somebody ran 'millpond alert test'. Nothing is wrong.".to_owned(),
        ..Finding::new(Kind::Test, Severity::Info, 0)
    }
}
