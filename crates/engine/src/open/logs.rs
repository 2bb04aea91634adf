//! Intent logs that the pool has when it is opened: what was acknowledged and is perhaps not in it yet.
//!
//! They are only found here. The first transaction group claims them ([`crate::zil::claim`]), then those of volumes
//! are replayed ([`crate::zil::replay`]). What cannot be done is refused there, before anything is written: an
//! encrypted dataset's log that nobody claimed, cloned blocks in a log, a log on a device that does not answer.
//! Facts: docs/format/zil.md §5.

use pool::{Pool, vdev::Vdev, zil};

use crate::{EngineError, zil::claim::Crashed};

/// Whether a top-level device holds nothing but the intent log.
pub(super) fn is_log(top: &Vdev) -> bool {
    top.top.as_ref().is_some_and(|top| top.is_log)
}

/// Whether what a log device holds may be on leaves only that are not here: it was being replaced when it went.
fn is_elsewhere(top: &Vdev) -> bool {
    let (here, away): (Vec<&Vdev>, Vec<&Vdev>) =
        top.leaves().into_iter().partition(|leaf| leaf.is_readable());
    !away.is_empty()
        && here.iter().all(|leaf| leaf.leaf.as_ref().is_some_and(|leaf| !leaf.missed.get().is_empty()))
}

/// The logs of all heads.
///
/// # Errors
/// A head cannot be read: what its log has could be given to others.
pub(super) async fn find(pool: &Pool) -> Result<Crashed, EngineError> {
    let tree = pool.tree();
    let devices_missing = tree
        .tops
        .iter()
        .filter(|top| is_log(top))
        .any(|top| !top.is_readable() || pool.may_lack_log() && is_elsewhere(top));
    let (unclaimed, txg) = (zil::heads(pool).await?, pool.uberblock().txg);
    Ok(Crashed { unclaimed, txg, devices_missing, ..Crashed::default() })
}
