//! Intent logs that the pool has when it is opened: what was acknowledged and is perhaps not in it yet.
//!
//! They are only found here. The first transaction group claims them ([`crate::zil::claim`]), then those of volumes
//! are replayed ([`crate::zil::replay`]). What cannot be done is refused there, before anything is written: an
//! encrypted dataset's log that nobody claimed, cloned blocks in a log, a log on a device that does not answer. A head
//! that no device gives is refused here already.
//! Facts: docs/format/zil.md §5.

use ondisk::label::PoolState;
use pool::{
    Pool,
    dmu::ReadError,
    dsl::{LookupError, Reached},
    vdev::Vdev,
    zil,
};

use crate::{
    EngineError,
    suspend::may_pass,
    zil::claim::{AGAIN, Crashed, GivenUp},
};

/// Whether what a log device holds may be on leaves only that are not here: it was being replaced when it went.
fn is_elsewhere(top: &Vdev) -> bool {
    let (here, away): (Vec<&Vdev>, Vec<&Vdev>) =
        top.leaves().into_iter().partition(|leaf| leaf.is_readable());
    !away.is_empty()
        && here.iter().all(|leaf| leaf.leaf.as_ref().is_some_and(|leaf| !leaf.missed.get().is_empty()))
}

/// The logs of these heads.
///
/// # Errors
/// Whether a head has a log cannot be told, but may be some other time: what its log has would be given to others, and
/// nobody could tell it from theirs when the head is read again. What is damaged for good is not waited for, but told of; nor
/// is anything of a pool that was exported. Or a head's log makes no sense.
pub(super) async fn find(pool: &Pool, (live, lost): &Reached) -> Result<Crashed, EngineError> {
    let tree = pool.tree();
    let is_missing = |top: &Vdev| !top.is_readable() || pool.may_lack_log() && is_elsewhere(top);
    let missing = (0..).zip(&tree.tops).filter(|&(_, top)| top.is_log() && is_missing(top));
    let gives_up = GivenUp { all: pool.gives_up_log(), tops: missing.map(|(id, _)| id).collect() };
    // What was exported has nothing in its logs that is not in the pool.
    let was_exported = pool.label_state() == PoolState::Exported;
    let may_have_more = !was_exported;
    let mut untold = Vec::new();
    for error in lost {
        if let LookupError::Read { name, source } = error
            && may_have_more
        {
            if has_no_answer(source) {
                return Err(unknown(name, source.clone()));
            }
            untold.push((name.clone(), source.to_string()));
        }
        tracing::warn!(pool = pool.name(), %error, "whether it has an intent log cannot be told");
    }
    let mut unclaimed = Vec::new();
    for (dataset, header) in live.iter().zip(zil::headers(live).await) {
        match header {
            Ok(head) => unclaimed.extend(head),
            Err(error) if may_have_more && has_no_answer(&error) => {
                return Err(unknown(dataset.name(), error));
            }
            // Without its object set nobody writes to it either, and whoever gets at that again finds the log as old as it is.
            Err(error @ ReadError::Block(_)) => {
                tracing::warn!(
                    pool = pool.name(),
                    dataset = dataset.name(),
                    %error,
                    "whether it has an intent log cannot be told"
                );
                if may_have_more {
                    untold.push((dataset.name().to_owned(), error.to_string()));
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Crashed { unclaimed, was_exported, txg: pool.uberblock().txg, gives_up, untold, ..Crashed::default() })
}

fn has_no_answer(error: &ReadError) -> bool {
    matches!(error, ReadError::Block(block) if may_pass(block))
}

/// All heads of the pool; and those that cannot be read.
///
/// # Errors
/// Not even the first can be read.
pub(super) async fn heads(pool: &Pool) -> Result<Reached, EngineError> {
    pool.heads().await.map_err(|error| unknown(pool.name(), error))
}

/// What whoever wants to open the pool is told if it is not known whether dataset `name` has a log.
fn unknown(name: &str, error: ReadError) -> EngineError {
    if !has_no_answer(&error) {
        return error.into();
    }
    EngineError::Unanswered(format!(
        "whether '{name}' or what is below it has an intent log cannot be told: {error}\nThe last writes may be nowhere \
         else. {AGAIN}"
    ))
}
