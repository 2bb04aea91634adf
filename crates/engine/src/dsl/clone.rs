//! Clones of snapshots.
//!
//! A clone is a head whose chain begins at another directory's snapshot: it starts with that snapshot's tree and
//! shares every block of it. Nothing is copied, and nothing is written before the clone changes.
//! Facts: docs/format/mos.md §11.

use super::{OpError, Properties, create, dataset, edit::Edit, find, properties};
use crate::BoxFuture;
use crate::sync::Syncer;

/// `zfs clone`; with `volsize` among the properties, a volume that is larger than its snapshot. [`OpError::Again`] if
/// the snapshot is of this very transaction group, whose blocks it could not tell from its own.
pub fn clone<'a>(
    cx: &'a mut Syncer,
    snapshot: &'a str,
    name: &'a str,
    properties: &'a Properties,
    parents: bool,
) -> BoxFuture<'a, Result<(), OpError>> {
    Box::pin(async move {
        let origin = find::snapshot(cx, snapshot).await?;
        let phys = dataset::load(&mut cx.mos, origin.object).await?;
        let vacancy = find::vacancy(cx, name, parents).await?;
        if phys.bp.uses_crypt() {
            return Err(OpError::Refused("encrypted datasets can only be read".into()));
        }
        if phys.creation_txg >= cx.txg {
            return Err(OpError::Again);
        }
        let resize = match properties.get("volsize") {
            Some(size) => Some(properties::check_size_of_clone(cx, origin.object, size).await?),
            None => None,
        };
        let mut others = properties.clone();
        others.remove("volsize");
        create::check(cx, &vacancy, &others).await?;
        // Before anything changes: it has to be read when the clone is there.
        drop(Edit::over(cx, origin.object, phys.bp).await?);
        let above = create::make_parents(cx, &vacancy).await?;
        let head = create::make_one(cx, above, &vacancy.name, origin.object).await?;
        // The snapshot's object set may show an intent log, which is its head's and not the clone's.
        let mut edit = Edit::open_as_it_is(cx, head.object).await?;
        if edit.name_log(cx)? {
            edit.commit(cx).await?;
        }
        if let Some(resize) = resize {
            Box::pin(resize.apply(cx, head)).await?;
        }
        properties::apply(cx, head, &others).await
    })
}
