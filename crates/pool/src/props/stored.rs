//! Properties that were set somewhere: on the dataset, on an ancestor, or by a received stream.
//!
//! ```text
//!   snapshot's own ─▶ its dataset's ─▶ parent's ─▶ … ─▶ root's          first that has a value wins
//! ```
//!
//! At each place a plain entry is a local value; `NAME$recvd` is one that came with a stream and counts unless
//! a local value or `NAME$inherit` stands beside it. Properties that are not inherited are looked for only at the
//! first place. Facts: docs/format/mos.md §6.

use std::collections::BTreeMap;

use ondisk::{dsl::keys, zap::Value as ZapValue};

use super::{
    Access, Kind, Source, Types, Value,
    table::{self, Definition},
};
use crate::{dmu::ReadError, dsl::Dataset, zap::Zap};

/// A value as set, and where.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) value: ZapValue,
    pub(super) source: Source,
}

impl Stored {
    /// The value in the shape its property has; `None` if it was stored in another.
    pub(super) fn shaped(&self, kind: Kind) -> Option<Value> {
        match kind {
            Kind::Text => self.value.as_text().map(|text| Value::Text(text.to_owned())),
            _ => self.value.as_u64().map(Value::Number),
        }
    }
}

/// All properties set for one dataset.
#[derive(Debug, Default)]
pub(super) struct StoredSet {
    pub(super) effective: BTreeMap<String, Stored>,
    /// What streams brought to the dataset itself, in effect or not.
    pub(super) received: BTreeMap<String, ZapValue>,
}

/// Collects what is set for `dataset`.
pub(super) async fn load(dataset: &Dataset) -> Result<StoredSet, ReadError> {
    let dsl = dataset.dsl();
    let mut set = StoredSet::default();
    if dataset.types().meets(Types::BOOKMARK) {
        return Ok(set);
    }
    let is_snapshot = dataset.types().meets(Types::SNAPSHOT);
    if is_snapshot && let Some(own) = dataset.phys().map(|phys| phys.props).filter(|own| *own != 0) {
        let entries = Zap::open_in(dsl.mos(), own).await?.to_vec().await?;
        let entries: BTreeMap<String, ZapValue> = entries
            .into_iter()
            .filter_map(|(key, value)| Some((String::from_utf8(key.name()?.to_vec()).ok()?, value)))
            .collect();
        set.add(&entries, None, dataset.types());
    }
    set.add_directories(dataset, !is_snapshot, dataset.types()).await?;
    Ok(set)
}

/// Collects what is set for the volume or file system that `dataset` is, or is a snapshot of.
pub(super) async fn load_head(dataset: &Dataset) -> Result<StoredSet, ReadError> {
    let mut set = StoredSet::default();
    set.add_directories(dataset, true, Types::HEADS).await?;
    Ok(set)
}

impl StoredSet {
    /// Takes over what a dataset's directory and those above have; the first may be the dataset itself.
    async fn add_directories(
        &mut self,
        dataset: &Dataset,
        mut is_own: bool,
        types: Types,
    ) -> Result<(), ReadError> {
        let mut at = Some(dataset.dir());
        while let Some(dir) = at {
            let from = if is_own { None } else { Some(dir.name()) };
            self.add(dir.properties(dataset.dsl()).await?, from, types);
            is_own = false;
            at = dir.parent();
        }
        Ok(())
    }

    /// Takes over what one place has; `from` is its name unless it is the dataset itself.
    fn add(&mut self, entries: &BTreeMap<String, ZapValue>, from: Option<&str>, types: Types) {
        for (key, value) in entries {
            let (name, is_received) = match key.split_once('$') {
                None => (key.as_str(), false),
                Some((name, _)) if !name.is_empty() && key.ends_with(keys::SUFFIX_RECEIVED) => (name, true),
                Some(_) => continue,
            };
            if is_received && from.is_none() {
                self.received.insert(name.to_owned(), value.clone());
            }
            let overridden = || {
                entries.contains_key(name) || entries.contains_key(&format!("{name}{}", keys::SUFFIX_INHERIT))
            };
            if (is_received && overridden())
                || self.effective.contains_key(name)
                || !counts(table::dataset(name), from.is_some(), types)
            {
                continue;
            }
            let source = match from {
                Some(from) => Source::Inherited(from.to_owned()),
                None if is_received => Source::Received,
                None => Source::Local,
            };
            self.effective.insert(name.to_owned(), Stored { value: value.clone(), source });
        }
    }
}

/// Whether a value found for a property means anything for a dataset of these types.
fn counts(definition: Option<&Definition>, inherited: bool, types: Types) -> bool {
    match definition {
        // Properties of users are inherited by everything.
        None => true,
        Some(definition) if inherited => definition.access == Access::Inherit && applies(definition, types),
        Some(definition) => applies(definition, types),
    }
}

fn applies(definition: &Definition, types: Types) -> bool {
    !types.meets(Types::SNAPSHOT) || definition.types.meets(Types::SNAPSHOT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(list: &[(&str, u64)]) -> BTreeMap<String, ZapValue> {
        list.iter().map(|(name, value)| ((*name).to_owned(), ZapValue::from_u64(*value))).collect()
    }

    fn effective(set: &StoredSet, name: &str) -> Option<(u64, String)> {
        set.effective.get(name).map(|s| (s.value.as_u64().unwrap(), s.source.to_string()))
    }

    #[test]
    fn the_nearest_value_wins_and_says_where_it_is_from() {
        let mut set = StoredSet::default();
        set.add(&entries(&[("sync", 1)]), None, Types::VOLUME);
        set.add(&entries(&[("sync", 2), ("copies", 2), ("refreservation", 5)]), Some("tank"), Types::VOLUME);
        assert_eq!(effective(&set, "sync"), Some((1, "local".into())));
        assert_eq!(effective(&set, "copies"), Some((2, "inherited from tank".into())));
        assert_eq!(effective(&set, "refreservation"), None, "not an inherited property");
    }

    #[test]
    fn a_received_value_gives_way_to_a_local_one_and_to_an_explicit_inherit() {
        let mut set = StoredSet::default();
        let own =
            [("sync$recvd", 2), ("copies$recvd", 3), ("copies", 1), ("dedup$recvd", 1), ("dedup$inherit", 0)];
        set.add(&entries(&[own.as_slice(), &[("$hasrecvd", 0)]].concat()), None, Types::FILESYSTEM);
        set.add(&entries(&[("dedup", 8)]), Some("tank"), Types::FILESYSTEM);
        assert_eq!(effective(&set, "sync"), Some((2, "received".into())));
        assert_eq!(effective(&set, "copies"), Some((1, "local".into())));
        assert_eq!(effective(&set, "dedup"), Some((8, "inherited from tank".into())));
        assert_eq!(set.received.keys().collect::<Vec<_>>(), ["copies", "dedup", "sync"]);
        assert_eq!(set.effective.len(), 3);
    }

    #[test]
    fn snapshots_take_only_what_snapshots_have() {
        let mut set = StoredSet::default();
        set.add(
            &entries(&[("exec", 0), ("compression", 15), ("user:note", 1)]),
            Some("tank"),
            Types::SNAPSHOT,
        );
        assert!(effective(&set, "exec").is_some());
        assert!(effective(&set, "compression").is_none());
        assert!(effective(&set, "user:note").is_some());
    }
}
