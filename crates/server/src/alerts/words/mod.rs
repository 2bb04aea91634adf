//! What alerts say: one line that names the thing, what it means, what to do with the exact command.
//!
//! Most give words to a finding that has none so far; `…_before` and `pool_left` go on from those that it has. `docs/alerts.md` lists them all; a test holds the two together.

mod daemon;
mod devices;
mod pools;
mod redundancy;

pub(super) use self::{
    daemon::{delivery, expiry, test, unusable},
    devices::{device, errors, errors_before, log_device, slow, slow_before, spare, useless_spare},
    pools::{
        data_lost, degraded, missing, pool_left, resilver, scrub, space, suspended, unavailable, unwritten,
    },
};

#[cfg(test)]
mod tests {
    use crate::api::alerts::Kind;

    /// `docs/alerts.md` has a section for each kind, so that nobody who gets an alert looks for it in vain.
    #[test]
    fn every_kind_of_alert_is_in_the_manual() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/alerts.md");
        let manual = std::fs::read_to_string(path).unwrap();
        for kind in [
            Kind::Device,
            Kind::Errors,
            Kind::Slow,
            Kind::LogDevice,
            Kind::Spare,
            Kind::Pool,
            Kind::Suspended,
            Kind::Space,
            Kind::DataLost,
            Kind::Scrub,
            Kind::Resilver,
            Kind::Certificate,
            Kind::Delivery,
        ] {
            assert!(manual.contains(&format!("| `{}` |", kind.word())), "{}", kind.word());
        }
    }
}
