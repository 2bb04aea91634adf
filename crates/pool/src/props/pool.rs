//! Properties of a pool: what was set, what is computed, defaults, and the state of every feature.
//!
//! Facts: docs/format/mos.md §1 and §3, docs/format/features.md, docs/format/spacemap.md §7.

use std::{borrow::Cow, collections::BTreeMap};

use ondisk::{features::FEATURES, spacemap::Header, zap::Value as ZapValue};

use super::{
    Kind, Property, Source, Value,
    table::{self, Default as TableDefault, Definition},
};
use crate::{Bookmark, BoxFuture, Pool, dmu::ReadError, zap::Zap};

/// All properties of a pool, in the order of `zpool get all`: native ones, features, users'.
#[derive(Clone, Debug)]
pub struct PoolProperties {
    list: Vec<Property>,
}

impl PoolProperties {
    /// Reads the properties of `pool`.
    ///
    /// # Errors
    /// A structure that one of them is computed from cannot be read.
    pub fn read(pool: &Pool) -> BoxFuture<'_, Result<Self, ReadError>> {
        Box::pin(async move {
            let mut set = stored(pool).await?;
            name_bootfs(pool, &mut set).await?;
            let computed = computed(pool).await?;
            let mut list: Vec<Property> =
                table::POOL.iter().map(|row| native(row, &set, &computed)).collect();
            list.extend(features(pool));
            for (name, value) in &set {
                if name.contains(':')
                    && let Some(text) = value.as_text()
                {
                    list.push(property(name.clone(), None, Value::Text(text.to_owned()), Source::Local));
                }
            }
            Ok(Self { list })
        })
    }

    /// Only the properties that users invented: cheaper than all of them.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn users(pool: &Pool) -> BoxFuture<'_, Result<BTreeMap<String, String>, ReadError>> {
        Box::pin(async move {
            let text = |(name, value): (String, ZapValue)| {
                let text = value.as_text().filter(|_| name.contains(':'))?.to_owned();
                Some((name, text))
            };
            Ok(stored(pool).await?.into_iter().filter_map(text).collect())
        })
    }

    /// One number, if an administrator set it: cheaper than all of them.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn number<'a>(pool: &'a Pool, name: &'a str) -> BoxFuture<'a, Result<Option<u64>, ReadError>> {
        Box::pin(async move { Ok(stored(pool).await?.get(name).and_then(|value| value.as_u64())) })
    }

    /// All of them, in order.
    #[must_use]
    pub fn list(&self) -> &[Property] {
        &self.list
    }

    /// The property of this name or alias.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Property> {
        let name = table::pool(name).map_or(name, |row| row.name);
        self.list.iter().find(|property| property.name == name)
    }
}

impl Pool {
    /// The pool's properties.
    ///
    /// # Errors
    /// A structure that one of them is computed from cannot be read.
    pub fn properties(&self) -> BoxFuture<'_, Result<PoolProperties, ReadError>> {
        PoolProperties::read(self)
    }
}

fn property(
    name: impl Into<Cow<'static, str>>,
    definition: Option<&'static Definition>,
    value: Value,
    source: Source,
) -> Property {
    Property { name: name.into(), definition, value, source, received: None }
}

/// What administrators set: most of it in an object of its own, some in the configuration.
async fn stored(pool: &Pool) -> Result<BTreeMap<String, ZapValue>, ReadError> {
    let mut set = BTreeMap::new();
    if let Some(object) = pool.directory().get_u64("pool_props").await? {
        for (key, value) in Zap::open_in(pool.mos(), object).await?.to_vec().await? {
            if let Some(Ok(name)) = key.name().map(|name| String::from_utf8(name.to_vec())) {
                set.insert(name, value);
            }
        }
    }
    for name in ["comment", "compatibility"] {
        if let Some(text) = pool.config().str(name) {
            set.insert(name.to_owned(), ZapValue::from_text(text));
        }
    }
    Ok(set)
}

/// `bootfs` is kept as the dataset's object and shown as its name.
async fn name_bootfs(pool: &Pool, set: &mut BTreeMap<String, ZapValue>) -> Result<(), ReadError> {
    let bootfs = set.remove("bootfs").and_then(|value| value.as_u64());
    let Some(object) = bootfs.filter(|object| *object != 0) else { return Ok(()) };
    // A number that leads to no dataset, or to one that cannot be read, is no reason to know nothing of the pool.
    if let Ok(Some(name)) = pool.dsl().await?.head_name(object).await {
        set.insert("bootfs".to_owned(), ZapValue::from_text(&name));
    }
    Ok(())
}

fn native(
    row: &'static Definition,
    set: &BTreeMap<String, ZapValue>,
    computed: &BTreeMap<&'static str, Value>,
) -> Property {
    if let Some(value) = computed.get(row.name) {
        return property(row.name, Some(row), value.clone(), Source::None);
    }
    let shaped = |value: &ZapValue| match row.kind {
        Kind::Text => value.as_text().map(|text| Value::Text(text.to_owned())),
        _ => value.as_u64().map(Value::Number),
    };
    if let Some(value) = set.get(row.name).and_then(shaped).filter(|_| row.is_stored()) {
        return property(row.name, Some(row), value, Source::Local);
    }
    let (value, source) = match row.default {
        TableDefault::Number(number) => (Value::Number(number), Source::Default),
        TableDefault::Text(text) => (Value::Text(text.to_owned()), Source::Default),
        TableDefault::Absent => (Value::Text("-".to_owned()), Source::None),
    };
    property(row.name, Some(row), value, source)
}

async fn computed(pool: &Pool) -> Result<BTreeMap<&'static str, Value>, ReadError> {
    let dsl = pool.dsl().await?;
    let space = pool.space().await?.total;
    let sharing = dsl.sharing();
    let (state, aux) = pool.tree().state();
    let scrubbed = pool.directory().get_u64("last_scrubbed_txg").await?.unwrap_or(0);
    let mut out = BTreeMap::from([
        ("health", Value::Text(state.word(aux).to_owned())),
        ("readonly", Value::Number(1)),
        ("guid", Value::Number(pool.guid())),
        ("size", Value::Number(space.size)),
        ("allocated", Value::Number(space.allocated)),
        ("free", Value::Number(space.free())),
        ("capacity", Value::Number(space.capacity())),
        ("dedupratio", Value::Number(sharing.dedup_ratio())),
        ("dedup_table_size", Value::Number(sharing.dedup_table)),
        ("bcloneused", Value::Number(sharing.clone_used)),
        ("bclonesaved", Value::Number(sharing.clone_saved)),
        ("bcloneratio", Value::Number(sharing.clone_ratio())),
        ("freeing", Value::Number(dsl.internal_used("$FREE").await?)),
        ("leaked", Value::Number(dsl.internal_used("$LEAK").await?)),
        ("last_scrubbed_txg", Value::Number(scrubbed)),
        // Changes with each import in OpenZFS; here the open state stands for it.
        ("load_guid", Value::Number(pool.guid() ^ pool.uberblock().txg)),
    ]);
    if let Some(fragmentation) = space.fragmentation {
        out.insert("fragmentation", Value::Number(fragmentation));
    }
    if space.expandable > 0 {
        out.insert("expandsize", Value::Number(space.expandable));
    }
    if let Some(bytes) = checkpoint(pool).await? {
        out.insert("checkpoint", Value::Number(bytes));
    }
    Ok(out)
}

/// What only the checkpoint still holds; `None` without one.
async fn checkpoint(pool: &Pool) -> Result<Option<u64>, ReadError> {
    if pool.directory().get("com.delphix:zpool_checkpoint").await?.is_none() {
        return Ok(None);
    }
    let mut bytes = 0u64;
    for top in pool.tree().tops.iter().filter_map(|vdev| vdev.top.as_ref()) {
        let Some(zap) = top.zap else { continue };
        let zap = Zap::open_in(pool.mos(), zap).await?;
        let Some(object) = zap.get_u64("com.delphix:pool_checkpoint_sm").await? else { continue };
        let found = pool.mos().dnode(object).await?;
        let at = Bookmark { object, ..Bookmark::default() };
        let header = Header::decode(&found.dnode.bonus, found.order).map_err(ReadError::malformed(at))?;
        bytes = bytes.saturating_add(header.alloc.unsigned_abs());
    }
    Ok(Some(bytes))
}

/// Every feature that is known, and those of the pool that are not.
fn features(pool: &Pool) -> Vec<Property> {
    let mut list: Vec<Property> = FEATURES
        .iter()
        .map(|feature| {
            let state = pool.features().iter().find(|state| state.guid == feature.guid);
            let word = state.map_or("disabled", |state| state.word());
            property(format!("feature@{}", feature.name), None, Value::Text(word.to_owned()), Source::Local)
        })
        .collect();
    for state in pool.features().iter().filter(|state| state.known().is_none()) {
        let word = if state.count > 0 { "readonly" } else { "inactive" };
        let name = format!("unsupported@{}", state.guid);
        list.push(property(name, None, Value::Text(word.to_owned()), Source::Local));
    }
    list
}
