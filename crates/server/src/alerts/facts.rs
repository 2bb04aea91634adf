//! What is known of a pool at one moment. Whoever looks at it asks nobody else, so that a pool whose devices do not answer holds up
//! no look, and tests write down what they want to be looked at.

use pool::status::VdevStatus;

use crate::api::alerts::{Finding, Kind, Severity};

/// A pool at one moment, from memory.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) name: String,
    pub(crate) guid: u64,
    /// Its devices.
    pub(crate) root: VdevStatus,
    pub(crate) spares: Vec<VdevStatus>,
    pub(crate) cache: Vec<VdevStatus>,
    /// Somebody finds out how fast they are.
    pub(crate) watched: bool,
    /// Why nothing is written, if that is so.
    pub(crate) suspended: Option<String>,
    /// Percent allocated of what is fuller, all or what data may go to, if that is known.
    pub(crate) capacity: Option<u64>,
    /// Blocks in the error log, if that is known.
    pub(crate) lost: Option<u64>,
    /// Why it cannot be written down how new it is, if that is so.
    pub(crate) unwritten: Option<String>,
}

impl Facts {
    /// Something about it, without a word of it so far.
    pub(super) fn finding(&self, kind: Kind, severity: Severity, level: u32) -> Finding {
        let (pool, pool_guid) = (self.name.clone(), self.guid.to_string());
        Finding { pool, pool_guid, ..Finding::new(kind, severity, level) }
    }

    /// Whether what such an alert is about is not known: that it does not show then does not mean that it is over.
    pub(super) fn is_unread(&self, kind: Kind) -> bool {
        match kind {
            Kind::Space => self.capacity.is_none(),
            Kind::DataLost => self.lost.is_none(),
            _ => false,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use pool::vdev::{Aux, Class, Errors, State};

    use super::*;

    pub(in crate::alerts) fn leaf(name: &str, guid: u64) -> VdevStatus {
        VdevStatus {
            name: name.into(),
            type_word: "disk".into(),
            guid,
            id: 0,
            path: Some(format!("/dev/{name}")),
            newer_at: None,
            state: State::Healthy,
            aux: Aux::None,
            not_present: false,
            note: None,
            lacks: false,
            errors: Errors::default(),
            slow: None,
            sits_out: false,
            judged: true,
            misfit: None,
            class: Class::Normal,
            space: None,
            device_bytes: Some(8 << 40),
            children: Vec::new(),
        }
    }

    pub(in crate::alerts) fn group(name: &str, word: &str, children: Vec<VdevStatus>) -> VdevStatus {
        VdevStatus { type_word: word.into(), path: None, device_bytes: None, children, ..leaf(name, 1000) }
    }

    pub(in crate::alerts) fn facts(tops: Vec<VdevStatus>) -> Facts {
        Facts {
            name: "tank".into(),
            guid: 7,
            root: group("tank", "root", tops),
            spares: Vec::new(),
            cache: Vec::new(),
            watched: true,
            suspended: None,
            capacity: Some(10),
            lost: Some(0),
            unwritten: None,
        }
    }
}
