//! Changing ZAPs. A new one is a microzap; it becomes fat when an entry does not fit.
//!
//! ```text
//!   empty object ──init──▶ micro, 512 B ──+512 B each time it is full──▶ micro, 128 KiB
//!                                │ a long name, a value that is not one u64, or full at 128 KiB
//!                                ▼
//!                            fat, 16 KiB blocks (for good)
//! ```
//!
//! Everything is a change of the [`MutSet`]'s memory: an error in the middle is fatal for the transaction group, so
//! what can be refused is refused before the first change. The set refuses big-endian ZAPs, which nobody has made
//! for a decade.
//!
//! Layouts and hashes: `ondisk::zap`. Facts: docs/format/zap.md.

mod fat;
mod micro;

use bytes::Bytes;
use ondisk::{
    dnode::ObjectType,
    zap::{HashRule, Key, OwnedKey, Value, micro::BLOCK_BYTES_MAX},
};
use pool::dmu::ReadError;

use self::{
    fat::Fat,
    micro::{Micro, Outcome},
};
use super::inconsistent;
use crate::{
    BoxFuture, EngineError,
    dmu::{MutSet, NewObject},
};

/// Longest name written, in bytes without its NUL. Longer ones need feature `longname`, which only file systems use.
const NAME_BYTES_MAX: usize = 255;

/// A new, empty ZAP. `normflags` as in `ondisk::zap` (names of snapshots and bookmarks: `NORM_UPPER`).
pub fn create(
    set: &mut MutSet,
    object_type: ObjectType,
    normflags: u64,
) -> BoxFuture<'_, Result<u64, EngineError>> {
    Box::pin(async move {
        let object = set.allocate(NewObject::of(object_type)).await?;
        init(set, object, normflags).await?;
        Ok(object)
    })
}

/// Makes an object without blocks an empty ZAP (zapified DSL objects, fixed numbers).
pub fn init(set: &mut MutSet, object: u64, normflags: u64) -> BoxFuture<'_, Result<(), EngineError>> {
    Box::pin(async move {
        let mut bytes = set.dnode(object).await?.data_block_bytes();
        if bytes > BLOCK_BYTES_MAX as u64 {
            bytes = 512;
            set.set_block_bytes(object, 512).await?;
        }
        let rule = HashRule::plain(salt(set, object), normflags);
        let micro = Micro::new(rule, bytes as usize);
        set.put_block(object, 0, micro.into_block()).await
    })
}

/// The `normflags` it was [made](create) with.
pub fn normflags(set: &mut MutSet, object: u64) -> BoxFuture<'_, Result<u64, EngineError>> {
    Box::pin(async move {
        Ok(match form(set, object).await? {
            Form::Empty => 0,
            Form::Micro(micro) => micro.rule().normflags,
            Form::Fat(block) => Fat::open(set, object, &block)?.rule().normflags,
        })
    })
}

/// The value of a key.
pub fn get<'a>(
    set: &'a mut MutSet,
    object: u64,
    key: Key<'a>,
) -> BoxFuture<'a, Result<Option<Value>, EngineError>> {
    Box::pin(async move {
        match form(set, object).await? {
            Form::Empty => Ok(None),
            Form::Micro(micro) => Ok(match key {
                Key::Name(name) => micro.get(name).map(Value::from_u64),
                Key::Words(_) => None,
            }),
            Form::Fat(block) => Fat::open(set, object, &block)?.get(key).await,
        }
    })
}

/// The value of a name that is one `u64`.
pub fn get_u64<'a>(
    set: &'a mut MutSet,
    object: u64,
    name: &'a str,
) -> BoxFuture<'a, Result<Option<u64>, EngineError>> {
    Box::pin(async move { Ok(get(set, object, name.into()).await?.and_then(|value| value.as_u64())) })
}

/// Sets a key, new or not. Setting what is there already leaves the object clean.
pub fn set<'a>(
    set: &'a mut MutSet,
    object: u64,
    key: Key<'_>,
    value: Value,
) -> BoxFuture<'a, Result<(), EngineError>> {
    let key = match key {
        Key::Name(name) => OwnedKey::Name(name.to_vec()),
        Key::Words(words) => OwnedKey::Words(words.to_vec()),
    };
    set_many(set, object, vec![(key, value)])
}

/// Sets many keys, new or not: each leaf of a fat ZAP is read and written once.
pub fn set_many(
    set: &mut MutSet,
    object: u64,
    entries: Vec<(OwnedKey, Value)>,
) -> BoxFuture<'_, Result<(), EngineError>> {
    Box::pin(async move {
        if let Some(reason) = entries.iter().find_map(|(key, _)| unfit(key)) {
            return Err(cannot(object, reason));
        }
        let mut rest = entries.into_iter();
        let mut left = Vec::new();
        let mut fat = match form(set, object).await? {
            Form::Fat(block) => Fat::open(set, object, &block)?,
            Form::Empty => {
                init(set, object, 0).await?;
                return set_many(set, object, rest.collect()).await;
            }
            Form::Micro(mut micro) => {
                let size = micro.bytes();
                for (key, value) in rest.by_ref() {
                    let outcome = match (&key, value.as_u64()) {
                        (OwnedKey::Name(name), Some(number)) => micro.set(name, number),
                        _ => Outcome::Unfit,
                    };
                    match outcome {
                        Outcome::Done => {}
                        Outcome::Unhashable => return Err(cannot(object, "the name cannot be folded")),
                        Outcome::Unfit => {
                            left.push((key, value));
                            break;
                        }
                    }
                }
                if left.is_empty() {
                    if micro.bytes() != size {
                        // At most 128 KiB.
                        set.set_block_bytes(object, micro.bytes() as u32).await?;
                    }
                    if micro.is_changed() {
                        set.put_block(object, 0, micro.into_block()).await?;
                    }
                    return Ok(());
                }
                upgrade(set, object, &micro).await?
            }
        };
        left.extend(rest);
        // Neighbours by hash share a leaf.
        let rule = fat.rule();
        left.sort_by_cached_key(|(key, _)| rule.hash(key.as_key()));
        for (key, value) in left {
            fat.set(key, value).await?;
        }
        fat.finish().await
    })
}

/// Sets a name to one `u64`.
pub fn set_u64<'a>(
    set: &'a mut MutSet,
    object: u64,
    name: &str,
    value: u64,
) -> BoxFuture<'a, Result<(), EngineError>> {
    self::set(set, object, name.into(), Value::from_u64(value))
}

/// Removes a key; false if it was not there.
pub fn remove<'a>(
    set: &'a mut MutSet,
    object: u64,
    key: Key<'a>,
) -> BoxFuture<'a, Result<bool, EngineError>> {
    Box::pin(async move {
        match form(set, object).await? {
            Form::Empty => Ok(false),
            Form::Micro(mut micro) => match key {
                Key::Name(name) if micro.remove(name) => {
                    set.put_block(object, 0, micro.into_block()).await?;
                    Ok(true)
                }
                Key::Name(_) | Key::Words(_) => Ok(false),
            },
            Form::Fat(block) => {
                let mut fat = Fat::open(set, object, &block)?;
                let removed = fat.remove(key).await?;
                fat.finish().await?;
                Ok(removed)
            }
        }
    })
}

/// All entries.
pub fn entries(set: &mut MutSet, object: u64) -> BoxFuture<'_, Result<Vec<(OwnedKey, Value)>, EngineError>> {
    Box::pin(async move {
        match form(set, object).await? {
            Form::Empty => Ok(Vec::new()),
            Form::Micro(micro) => {
                let owned = |(name, value, _): (&[u8], u64, u32)| {
                    (OwnedKey::Name(name.to_vec()), Value::from_u64(value))
                };
                Ok(micro.entries().map(owned).collect())
            }
            Form::Fat(block) => Fat::open(set, object, &block)?.entries().await,
        }
    })
}

/// All entries whose name is text and whose value is one `u64`, by name; others are left out.
pub fn numbers(set: &mut MutSet, object: u64) -> BoxFuture<'_, Result<Vec<(String, u64)>, EngineError>> {
    Box::pin(async move {
        let mut numbers: Vec<_> = entries(set, object)
            .await?
            .into_iter()
            .filter_map(|(key, value)| match key {
                OwnedKey::Name(name) => Some((String::from_utf8(name).ok()?, value.as_u64()?)),
                OwnedKey::Words(_) => None,
            })
            .collect();
        numbers.sort_unstable();
        Ok(numbers)
    })
}

/// `zap_add_int`: key = lower-case hex of `value`, value itself.
pub fn set_int(set: &mut MutSet, object: u64, value: u64) -> BoxFuture<'_, Result<(), EngineError>> {
    Box::pin(async move { set_u64(set, object, &format!("{value:x}"), value).await })
}

/// Removes what [`set_int`] set; false if it was not there.
pub fn remove_int(set: &mut MutSet, object: u64, value: u64) -> BoxFuture<'_, Result<bool, EngineError>> {
    Box::pin(async move { remove(set, object, format!("{value:x}").as_str().into()).await })
}

/// What an object is now.
enum Form {
    /// Never written.
    Empty,
    Micro(Micro),
    /// Block 0.
    Fat(Bytes),
}

async fn form(set: &mut MutSet, object: u64) -> Result<Form, EngineError> {
    let Some(block) = set.block(object, 0).await? else { return Ok(Form::Empty) };
    match block.first_chunk().map_or(0, |tag| u64::from_le_bytes(*tag)) {
        micro::TAG => {
            let at = super::at(set, object, 0);
            Ok(Form::Micro(Micro::open(&block).map_err(ReadError::malformed(at))?))
        }
        fat::TAG => Ok(Form::Fat(block)),
        _ => Err(inconsistent(set, object, 0, "the object is not a ZAP")),
    }
}

/// Turns a microzap into a fat one with the same entries, salt and cds.
async fn upgrade<'a>(set: &'a mut MutSet, object: u64, micro: &Micro) -> Result<Fat<'a>, EngineError> {
    let rule = micro.rule();
    let hashed: Option<Vec<_>> = micro
        .entries()
        .map(|(name, value, cd)| rule.hash(Key::Name(name)).map(|hash| (hash, name, value, cd)))
        .collect();
    let Some(mut hashed) = hashed else { return Err(cannot(object, "one of its names cannot be folded")) };
    hashed.sort_unstable();
    let mut fat = Fat::create(set, object, rule).await?;
    for (hash, name, value, cd) in hashed {
        fat.add(OwnedKey::Name(name.to_vec()), hash, Value::from_u64(value), Some(cd)).await?;
    }
    Ok(fat)
}

/// Why no ZAP of ours gets such a key.
fn unfit(key: &OwnedKey) -> Option<&'static str> {
    match key {
        OwnedKey::Name(name) if name.is_empty() => Some("the name is empty"),
        OwnedKey::Name(name) if name.contains(&0) => Some("the name has a NUL in it"),
        OwnedKey::Name(name) if name.len() > NAME_BYTES_MAX => Some("the name is longer than 255 bytes"),
        OwnedKey::Name(_) | OwnedKey::Words(_) => None,
    }
}

/// Start value of a new object's hash. It need not be secret, only not the same everywhere; taking it from
/// what is at hand keeps a simulated pool the same in every run.
fn salt(set: &MutSet, object: u64) -> u64 {
    let seed = object ^ set.root().birth().rotate_left(32);
    let mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 31)) | 1
}

fn cannot(object: u64, reason: &str) -> EngineError {
    EngineError::Encode { what: "a ZAP entry", detail: format!("object {object}: {reason}") }
}

#[cfg(test)]
mod tests;
