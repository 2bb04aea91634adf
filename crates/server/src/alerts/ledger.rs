//! What of alerts outlives the daemon: the book and the queues, in one file of the state directory.
//!
//! A newer version may have written it. Entries that this one does not understand, as of a kind of alert that came later, are
//! nobody's here and written back as they were, and so is what stands beside those that it does: what waits in a queue is sent when
//! that version is back. A file that makes no sense is put aside before another takes its place, and over one that cannot be read
//! nothing is written.

use std::{collections::BTreeMap, fs, io, mem, path::Path};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{
    book::{Book, Lately, Open},
    config::Config,
    outbox::{Outbox, Pace},
};
use crate::{
    api::alerts::{Alert, AlertStatus, Notice, SinkStatus},
    state,
};

/// Name of the file.
pub(super) const STATE_FILE: &str = "alerts-state.json";
/// What it is called if it makes no sense.
const ASIDE: &str = "alerts-state.json.unread";

/// See the head of this file.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Ledger {
    pub(super) book: Book,
    pub(super) outboxes: BTreeMap<String, Outbox>,
    /// What a newer version wrote: list, as a JSON pointer, and entries.
    #[serde(skip)]
    unread: BTreeMap<String, Vec<Value>>,
    /// And whatever else stands beside these.
    #[serde(flatten)]
    unread_beside: BTreeMap<String, Value>,
}

impl Ledger {
    /// Of a daemon that cannot read what was kept, at `now`, in seconds since 1970.
    pub(super) fn apart(now: u64) -> Self {
        Self { book: Book::apart(now), ..Self::default() }
    }

    /// What was kept; none if there is no file.
    ///
    /// # Errors
    /// It cannot be read, or makes no sense.
    pub(super) fn read(dir: &Path) -> io::Result<Option<Self>> {
        let Some(mut kept) = state::read_json::<Value>(&dir.join(STATE_FILE))? else { return Ok(None) };
        let sinks: Vec<String> = match kept.get("outboxes") {
            Some(Value::Object(outboxes)) => outboxes.keys().cloned().collect(),
            _ => Vec::new(),
        };
        let mut unread = BTreeMap::new();
        let mut sift = |list: String, is_known: fn(&Value) -> bool| {
            let Some(Value::Array(entries)) = kept.pointer_mut(&list) else { return };
            let (known, others): (Vec<Value>, Vec<Value>) =
                mem::take(entries).into_iter().partition(is_known);
            *entries = known;
            if !others.is_empty() {
                unread.insert(list, others);
            }
        };
        sift("/book/open".to_owned(), is::<Open>);
        sift("/book/history".to_owned(), is::<Alert>);
        sift("/book/lately".to_owned(), is::<Lately>);
        for sink in sinks {
            sift(format!("/outboxes/{}/queue", sink.replace('~', "~0").replace('/', "~1")), is::<Notice>);
        }
        let ledger: Self = serde_json::from_value(kept)?;
        Ok(Some(Self { unread, ..ledger }))
    }

    /// The same for a daemon, which is about to write another: what makes no sense is put aside.
    ///
    /// # Errors
    /// It can neither be read nor put aside, and must not be written over.
    pub(super) fn open(dir: &Path) -> io::Result<Option<Self>> {
        let error = match Self::read(dir) {
            Err(error) if state::makes_no_sense(&error) => error,
            read => {
                if let Ok(Some(ledger)) = &read
                    && !ledger.unread.is_empty()
                {
                    let entries: usize = ledger.unread.values().map(Vec::len).sum();
                    tracing::warn!(
                        "a newer version wrote {entries} entries of {STATE_FILE}: they are kept for it"
                    );
                }
                return read;
            }
        };
        fs::rename(dir.join(STATE_FILE), dir.join(ASIDE))?;
        tracing::error!(
            %error,
            "which alerts were open is forgotten: {STATE_FILE} makes no sense, and is called {ASIDE} from now on"
        );
        Ok(None)
    }

    /// As it is written.
    ///
    /// # Errors
    /// It cannot be put into words.
    pub(super) fn kept(&self) -> serde_json::Result<Value> {
        let mut kept = serde_json::to_value(self)?;
        for (list, unread) in &self.unread {
            // The queue of a sink that was removed is gone. They came before all others.
            if let Some(Value::Array(entries)) = kept.pointer_mut(list) {
                *entries = unread.iter().cloned().chain(mem::take(entries)).collect();
            }
        }
        Ok(kept)
    }

    /// Whether something waits to be sent, be it by a newer version.
    pub(super) fn is_waiting(&self) -> bool {
        self.outboxes.values().any(|outbox| outbox.len() > 0)
            || self.unread.keys().any(|list| list.starts_with("/outboxes/"))
    }

    /// What is open, and how the sinks are, at `now`; those of them that are `broken`, with why.
    pub(super) fn status(&self, config: &Config, now: u64, broken: &BTreeMap<String, String>) -> AlertStatus {
        let sinks = config.sinks.iter().map(|sink| {
            let blank = Outbox::default();
            let outbox = self.outboxes.get(&sink.name).unwrap_or(&blank);
            SinkStatus {
                name: sink.name.clone(),
                kind: sink.kind().to_owned(),
                target: sink.destination(),
                queued: outbox.len() as u64,
                sent: outbox.sent,
                dropped: outbox.dropped_total,
                failures: outbox.failures,
                last_error: match broken.get(&sink.name) {
                    Some(why) => Some(format!("it cannot be used as it is set up: {why}")),
                    None => outbox.last_error.clone(),
                },
                last_success: outbox.last_success,
                next_try: outbox.due(now, Pace::of(sink)),
            }
        });
        AlertStatus { open: self.book.open(), sinks: sinks.collect(), problem: None }
    }

    /// Takes over what was kept, and could not be read before.
    pub(super) fn join(&mut self, kept: Self) {
        self.book.join(kept.book);
        for (sink, outbox) in kept.outboxes {
            self.outboxes.entry(sink).or_default().join(outbox);
        }
        self.unread = kept.unread;
        self.unread_beside = kept.unread_beside;
    }
}

/// Whether this version understands it.
fn is<T: DeserializeOwned>(entry: &Value) -> bool {
    T::deserialize(entry).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An empty one was written in its place.
    #[test]
    fn what_makes_no_sense_is_put_aside() {
        let dir = tempfile::tempdir().unwrap();
        for text in ["{nonsense", "", r#"{"book": 7}"#] {
            fs::write(dir.path().join(STATE_FILE), text).unwrap();
            assert!(Ledger::read(dir.path()).is_err(), "who only looks leaves it: {text}");
            assert!(Ledger::open(dir.path()).unwrap().is_none());
            assert_eq!(fs::read_to_string(dir.path().join(ASIDE)).unwrap(), text);
            assert!(Ledger::read(dir.path()).unwrap().is_none());
        }
    }
}
