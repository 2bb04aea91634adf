//! All properties of one dataset: set ones, computed ones and defaults put together, each with its source.

use std::borrow::Cow;

use super::{
    Access, Definition, Kind, Source, Style, Value,
    computed::{self, Computed, OF_VOLUMES, Wanted},
    stored::{self, StoredSet},
    table::{self, Default as TableDefault},
    value::print,
};
use crate::{BoxFuture, dmu::ReadError, dsl::Dataset};

/// One property of one dataset.
#[derive(Clone, Debug)]
pub struct Property {
    /// Its name.
    pub name: Cow<'static, str>,
    /// Its row of the table; none for a user's own.
    pub definition: Option<&'static Definition>,
    /// Its value.
    pub value: Value,
    /// Where that comes from.
    pub source: Source,
    /// What a received stream had for it, in effect or not.
    pub received: Option<Value>,
}

impl Property {
    /// The value, printed.
    #[must_use]
    pub fn print(&self, style: Style) -> Cow<'_, str> {
        print(self.kind(), &self.value, style)
    }

    /// The received value, printed; `-` if there is none.
    #[must_use]
    pub fn print_received(&self, style: Style) -> Cow<'_, str> {
        self.received.as_ref().map_or(Cow::Borrowed("-"), |value| print(self.kind(), value, style))
    }

    fn kind(&self) -> Kind {
        self.definition.map_or(Kind::Text, |definition| definition.kind)
    }
}

/// A property that users invented: its name, its value, and where that is from.
pub type UserProperty = (String, String, Source);

/// The properties of one dataset, in the order of `zfs get all`: native ones in table order, then users' by name.
#[derive(Clone, Debug)]
pub struct PropertySet {
    dataset: Dataset,
    list: Vec<Property>,
}

impl PropertySet {
    /// Reads the properties of `dataset`.
    ///
    /// # Errors
    /// A structure of the dataset or an ancestor cannot be read.
    pub fn read(dataset: &Dataset) -> BoxFuture<'_, Result<Self, ReadError>> {
        Self::read_some(dataset, None)
    }

    /// Reads those of them that have one of these names, which are no aliases; all of them without. The set knows of no
    /// others, and what only others would need is not read.
    ///
    /// # Errors
    /// A structure of the dataset or an ancestor that is needed for them cannot be read.
    pub fn read_some<'a>(
        dataset: &'a Dataset,
        names: Option<&'a [&'a str]>,
    ) -> BoxFuture<'a, Result<Self, ReadError>> {
        Box::pin(async move {
            let wanted = Wanted(names);
            let stored = stored::load(dataset).await?;
            let limit = |name| stored.effective.get(name).and_then(|s| s.value.as_u64()).unwrap_or(0);
            let (refquota, refreservation) = (limit("refquota"), limit("refreservation"));
            let computed = computed::compute(dataset, wanted, refquota, refreservation).await?;
            let mut list: Vec<Property> = table::DATASET
                .iter()
                .filter(|row| wanted.has(row.name))
                .filter(|row| row.applies_to(dataset.types(), dataset.head_kind().types()))
                .filter_map(|row| native(dataset, row, &stored, &computed))
                .collect();
            for (name, entry) in &stored.effective {
                // Entries that are neither ours nor a user's belong to newer software: kept on disk, not shown.
                if table::dataset(name).is_none()
                    && name.contains(':')
                    && wanted.has(name)
                    && let Some(value) = entry.shaped(Kind::Text)
                {
                    let received = stored.received.get(name).and_then(|value| value.as_text());
                    list.push(Property {
                        name: Cow::Owned(name.clone()),
                        definition: None,
                        value,
                        source: entry.source.clone(),
                        received: received.map(|text| Value::Text(text.to_owned())),
                    });
                }
            }
            Ok(Self { dataset: dataset.clone(), list })
        })
    }

    /// Only the properties that users invented, with their sources: cheaper than all of them.
    ///
    /// # Errors
    /// A structure of the dataset or an ancestor cannot be read.
    pub fn users(dataset: &Dataset) -> BoxFuture<'_, Result<Vec<UserProperty>, ReadError>> {
        Box::pin(async move {
            let stored = stored::load(dataset).await?;
            let text = |(name, entry): (String, stored::Stored)| match entry.shaped(Kind::Text) {
                Some(Value::Text(text)) if name.contains(':') => Some((name, text, entry.source)),
                _ => None,
            };
            Ok(stored.effective.into_iter().filter_map(text).collect())
        })
    }

    /// The number that a property is set to, for a snapshot that of its volume or file system; none if it is set nowhere.
    ///
    /// # Errors
    /// A structure of the dataset or an ancestor cannot be read.
    pub fn number_of_head<'a>(
        dataset: &'a Dataset,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<u64>, ReadError>> {
        Box::pin(async move {
            let stored = stored::load_head(dataset).await?;
            Ok(stored.effective.get(name).and_then(|entry| entry.value.as_u64()))
        })
    }

    /// Where that number is from; none if it is set nowhere.
    ///
    /// # Errors
    /// A structure of the dataset or an ancestor cannot be read.
    pub fn source_of_head<'a>(
        dataset: &'a Dataset,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Source>, ReadError>> {
        Box::pin(async move {
            let stored = stored::load_head(dataset).await?;
            let entry = stored.effective.get(name).filter(|entry| entry.value.as_u64().is_some());
            Ok(entry.map(|entry| entry.source.clone()))
        })
    }

    /// What a stream brought for a property of this very dataset, in effect or not.
    ///
    /// # Errors
    /// A structure of the dataset or an ancestor cannot be read.
    pub fn received<'a>(
        dataset: &'a Dataset,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Value>, ReadError>> {
        Box::pin(async move {
            let stored = stored::load(dataset).await?;
            Ok(stored.received.get(name).and_then(|value| match value.as_u64() {
                Some(number) => Some(Value::Number(number)),
                None => value.as_text().map(|text| Value::Text(text.to_owned())),
            }))
        })
    }

    /// The dataset.
    #[must_use]
    pub fn dataset(&self) -> &Dataset {
        &self.dataset
    }

    /// All of them, in order.
    #[must_use]
    pub fn list(&self) -> &[Property] {
        &self.list
    }

    /// The property of this name or alias, if the dataset has it.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Property> {
        let name = table::dataset(name).map_or(name, |row| row.name);
        self.list.iter().find(|property| property.name == name)
    }

    /// The value of a property as a number; `None` if the dataset does not have it or it is text.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<u64> {
        self.get(name)?.value.as_number()
    }

    /// The value of a property, printed; `-` if the dataset does not have it.
    #[must_use]
    pub fn print(&self, name: &str, style: Style) -> Cow<'_, str> {
        if name == "name" {
            return Cow::Borrowed(self.dataset.name());
        }
        self.get(name).map_or(Cow::Borrowed("-"), |property| property.print(style))
    }
}

/// Limits whose value, once there is one, counts as set here, wherever it is kept.
const LOCAL_WHEN_SET: [&str; 5] = ["quota", "reservation", "volsize", "refquota", "refreservation"];

fn native(
    dataset: &Dataset,
    row: &'static Definition,
    stored: &StoredSet,
    computed: &Computed,
) -> Option<Property> {
    let set = stored.effective.get(row.name).filter(|_| row.is_stored());
    let set_value = set.and_then(|set| set.shaped(row.kind));
    let default = match row.default {
        TableDefault::Number(number) => Some(Value::Number(number)),
        TableDefault::Text(text) => Some(Value::Text(text.to_owned())),
        TableDefault::Absent => None,
    };
    let set_source = set.filter(|_| set_value.is_some()).map(|set| set.source.clone());
    let (mut value, source) = match (computed.get(row.name), set_value) {
        (Some(value), _) => {
            let is_default = default.as_ref() == Some(value) && row.access != Access::ReadOnly;
            let local = LOCAL_WHEN_SET.contains(&row.name);
            let source = set_source.unwrap_or(match (is_default, local) {
                (true, _) => Source::Default,
                (false, true) => Source::Local,
                (false, false) => Source::None,
            });
            (value.clone(), source)
        }
        // The default is only what it is compared with.
        (None, _) if OF_VOLUMES.contains(&row.name) => return None,
        (None, Some(value)) => (value, set_source.unwrap_or(Source::Local)),
        (None, None) => (default?, Source::Default),
    };
    if row.name == "mountpoint" {
        value = Value::Text(mountpoint(dataset.name(), &value, &source));
    }
    let received = stored.received.get(row.name).and_then(|value| {
        let entry = stored::Stored { value: value.clone(), source: Source::Received };
        entry.shaped(row.kind)
    });
    Some(Property { name: Cow::Borrowed(row.name), definition: Some(row), value, source, received })
}

/// Where a file system would be mounted: below the place its ancestor was given, by the rest of its name.
fn mountpoint(name: &str, value: &Value, source: &Source) -> String {
    let Value::Text(base) = value else { return String::new() };
    let below = match source {
        Source::Inherited(from) => {
            name.strip_prefix(from.as_str()).unwrap_or_default().trim_start_matches('/')
        }
        Source::Default => name,
        Source::Local | Source::Received | Source::Temporary | Source::None => "",
    };
    match base.as_str() {
        "legacy" | "none" => base.clone(),
        _ if below.is_empty() => base.clone(),
        _ => format!("{}/{below}", base.trim_end_matches('/')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_follow_the_names_below_them() {
        let at = |name: &str, base: &str, source| mountpoint(name, &Value::Text(base.into()), &source);
        let from = |name: &str| Source::Inherited(name.into());
        assert_eq!(at("tank", "/", Source::Default), "/tank");
        assert_eq!(at("tank/a", "/", Source::Default), "/tank/a");
        assert_eq!(at("tank/a/b", "/mnt/t", from("tank")), "/mnt/t/a/b");
        assert_eq!(at("tank/a/b", "/", from("tank/a")), "/b");
        assert_eq!(at("tank/a", "legacy", from("tank")), "legacy");
        assert_eq!(at("tank/a", "none", Source::Local), "none");
        assert_eq!(at("tank/a", "/x", Source::Local), "/x");
    }
}
