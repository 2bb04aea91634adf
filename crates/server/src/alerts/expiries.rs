//! What runs out by itself, early enough to be renewed: the files of NBD's TLS.

use super::words;
use crate::{
    api::alerts::{Finding, Kind, Severity},
    certificates::Expiry,
};

const DAY: u64 = 86_400;
/// How long before the end it is told, in seconds.
const SOON: u64 = 21 * DAY;
/// How long before the end it is urgent, in seconds.
const URGENT: u64 = 3 * DAY;

/// Everything that has run out by `now`, or is about to.
pub(crate) fn findings(expiries: &[Expiry], now: u64) -> Vec<Finding> {
    let finding = |expiry: &Expiry| {
        let (level, severity) = urgency(expiry, now)?;
        let file = Some(expiry.file.clone());
        let finding = Finding { file, ..Finding::new(Kind::Certificate, severity, level) };
        Some(words::expiry(finding, expiry, now))
    };
    expiries.iter().filter_map(finding).collect()
}

/// How bad it is. What is renewed every few days, as lists of revoked certificates may be, would never be well by the times of
/// what lasts for months: it is never told of earlier than with a quarter of its time left, nor urgent with more than a tenth.
fn urgency(expiry: &Expiry, now: u64) -> Option<(u32, Severity)> {
    let whole = expiry.validity.until.saturating_sub(expiry.validity.from);
    match expiry.validity.until.saturating_sub(now) {
        _ if expiry.has_run_out(now) => Some((3, Severity::Critical)),
        left if left <= URGENT.min(whole / 10) => Some((2, Severity::Critical)),
        left if left <= SOON.min(whole / 4) => Some((1, Severity::Warning)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use nbd::{Credential, Validity};

    use super::*;
    use crate::alerts::book;

    /// What is told of one was to hide nothing that is told of another.
    #[test]
    fn each_file_that_runs_out_is_an_alert_of_its_own() {
        let expiry =
            |file: &str, of, until| Expiry { file: file.into(), validity: Validity { of, from: 0, until } };
        let all = [expiry("a", Credential::Chain, 90), expiry("b", Credential::Revoked, 80)];
        let found = findings(&all, 85);
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
            let found = findings(&[expiry("a", Credential::Chain, whole * DAY)], (whole - left) * DAY);
            assert_eq!(found.first().map(|finding| finding.level), level, "{left} of {whole} days");
        }
    }
}
