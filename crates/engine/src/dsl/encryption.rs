//! What encryption asks of names, of new datasets and of snapshots.
//!
//! A directory with a key object is encrypted. The key object names the encryption root: the directory whose wrapping key
//! opens it, which is itself or one above. Whoever changes a wrapping key wraps anew what he finds below the root, so
//! whatever inherits from it has to stay there: elsewhere it could never be opened again. A new dataset inherits from its
//! parent. Keys are not handled here, and what would need one is refused.
//!
//! Facts: docs/format/mos.md §6.

use ondisk::{dsl::keys, zap::Value};
use rand::RngCore;

use super::{OpError, Properties, Stored, attributes, bookmarks, dir};
use crate::{
    EngineError,
    mos::{features, zap},
    sync::Syncer,
};

/// `encryption=off`.
pub(super) const OFF: u64 = 2;
/// Entry of a key object: the directory that is the encryption root.
const ROOT: &str = "DSL_CRYPTO_ROOT_DDOBJ";

/// Whether a directory is encrypted.
async fn is_encrypted(cx: &mut Syncer, dir: u64) -> Result<bool, EngineError> {
    Ok(attributes::get(&mut cx.mos, dir, keys::CRYPTO_KEY).await?.is_some())
}

/// The encryption root of a directory; none if it is not encrypted.
async fn root_of(cx: &mut Syncer, dir: u64) -> Result<Option<u64>, EngineError> {
    let Some(key) = attributes::get_u64(&mut cx.mos, dir, keys::CRYPTO_KEY).await? else { return Ok(None) };
    match zap::get_u64(&mut cx.mos, key, ROOT).await? {
        Some(root) => Ok(Some(root)),
        None => Err(dir::inconsistent(key, "the key of a dataset does not name its encryption root")),
    }
}

/// Refuses to hang `dir` below `above` if it would lose the encryption root that it inherits its key from. A root may go
/// anywhere, and takes along who inherits from it.
pub(super) async fn check_move(cx: &mut Syncer, dir: u64, above: u64) -> Result<(), OpError> {
    let Some(root) = root_of(cx, dir).await? else { return Ok(()) };
    let stays = dir::load(&mut cx.mos, dir).await?.parent == above;
    if stays || root == dir || root_of(cx, above).await? == Some(root) {
        return Ok(());
    }
    Err(OpError::Refused("it inherits its encryption key, and must stay below its encryption root".into()))
}

/// Refuses a new dataset right below `above` that would have to be encrypted as its parent is: nobody is given clear text
/// who did not ask for it.
pub(super) async fn check_new(cx: &mut Syncer, above: u64, properties: &Properties) -> Result<(), OpError> {
    let is_off = properties.get("encryption") == Some(&Stored::Number(OFF));
    if is_off || !is_encrypted(cx, above).await? {
        return Ok(());
    }
    let text =
        "its parent is encrypted, and encryption is not supported; encryption=off stores it in clear text";
    Err(OpError::Refused(text.into()))
}

/// The same for parents that are missing below `above`, which are made without properties.
pub(super) async fn check_missing(cx: &mut Syncer, above: u64) -> Result<(), OpError> {
    if !is_encrypted(cx, above).await? {
        return Ok(());
    }
    let text =
        "its missing parents would be encrypted, which is not supported; create them with encryption=off";
    Err(OpError::Refused(text.into()))
}

/// Gives a new snapshot of the encrypted directory `dir` an identity of its initialisation vectors: whoever receives it as
/// it is stored tells by that whether the next one goes on from the same. For others, and pools too old for that, nothing.
pub(super) async fn identify_vectors(cx: &mut Syncer, dir: u64, snapshot: u64) -> Result<(), EngineError> {
    if !is_encrypted(cx, dir).await? || features::count(&mut cx.mos, bookmarks::LONG).await?.is_none() {
        return Ok(());
    }
    // 56 bits, as of all such numbers.
    let identity = (cx.random.next_u64() >> 8).max(1);
    attributes::set(&mut cx.mos, snapshot, keys::IVSET_GUID, Value::from_u64(identity)).await
}
