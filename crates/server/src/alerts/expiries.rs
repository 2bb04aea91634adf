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
