//! Back to the latest snapshot.
//!
//! The head takes the snapshot's tree again; the blocks it had of its own are given back as a destroyed tree's, and
//! what it had given up since lives again in both. Facts: docs/format/mos.md §11.

use super::{
    OpError,
    account::{self, Delta, Kind},
    bookmarks, dataset, destroy, dir,
    edit::{self, Edit},
    find, free, log, space,
};
use crate::{
    BoxFuture,
    mos::deadlist,
    sync::{Change, Syncer},
};

/// `zfs rollback` to the latest snapshot.
pub fn rollback<'a>(cx: &'a mut Syncer, name: &'a str) -> BoxFuture<'a, Result<(), OpError>> {
    Box::pin(async move {
        let snapshot = find::snapshot(cx, name).await?;
        let head = snapshot.head;
        let phys = dataset::load(&mut cx.mos, head.object).await?;
        let to = dataset::load(&mut cx.mos, snapshot.object).await?;
        let newer_bookmark = bookmarks::all(cx, head.object)
            .await?
            .iter()
            .any(|(_, bookmark)| bookmark.creation_txg > to.creation_txg);
        if phys.prev_snap != snapshot.object || newer_bookmark {
            return Err(OpError::Refused("more recent snapshots or bookmarks exist".into()));
        }
        if to.bp.uses_crypt() {
            return Err(OpError::Refused("encrypted datasets can only be read".into()));
        }
        let props = dir::load(&mut cx.mos, head.dir).await?.props;
        let refquota = dir::own_number(&mut cx.mos, props, "refquota").await?.unwrap_or(0);
        if refquota != 0 && to.referenced_bytes > refquota {
            return Err(OpError::Refused("dataset is over quota".into()));
        }
        // The reservation has to be set aside anew for all that goes.
        let refreservation = dir::refreservation(&mut cx.mos, head.dir).await?;
        let growth = refreservation.min(phys.unique_bytes);
        if growth > 0 {
            space::need(cx, head.dir, growth).await?;
        }
        free::check(cx, phys.bp, phys.prev_snap_txg).await?;

        let traits = cx.out.traits();
        let deflate = cx.out.alloc.deflate().clone();
        let dir_phys = dir::load(&mut cx.mos, head.dir).await?;
        let origin_txg = dir::origin_txg(&mut cx.mos, &dir_phys).await?;
        let own = destroy::own_space(cx, &phys).await?;
        let revived =
            deadlist::space_range(&mut cx.mos, phys.deadlist, &deflate, origin_txg, u64::MAX).await?.used;
        // Both before anything changes: one may be lost, and the other has to be there.
        let replaced = log::of_what_goes(cx, head.object, phys.bp).await?;
        let mut content = Edit::over(cx, head.object, to.bp).await?;
        if let Some(replaced) = &replaced {
            log::give_up(cx, head.object, replaced).await?;
        }
        edit::drop_livelist(cx, head.dir).await?;
        bookmarks::forget_space(cx, head.object).await?;
        account::set_head_unique(&mut cx.mos, head.object, 0).await?;
        free::give_back(cx, phys.bp, phys.prev_snap_txg, own, head.dir).await?;
        let change = Delta::default().bytes(Kind::Head, revived).bytes(Kind::Snap, -revived);
        account::dir_change(&mut cx.mos, head.dir, change).await?;
        deadlist::clear(&mut cx.mos, &traits, phys.deadlist).await?;
        dataset::update(&mut cx.mos, head.object, |phys| {
            phys.bp = to.bp;
            phys.referenced_bytes = to.referenced_bytes;
            phys.compressed_bytes = to.compressed_bytes;
            phys.uncompressed_bytes = to.uncompressed_bytes;
        })
        .await?;
        dataset::update(&mut cx.mos, snapshot.object, |phys| phys.unique_bytes = 0).await?;
        // The snapshot's object set shows the intent log as it was then.
        if content.name_log(cx)? {
            content.commit(cx).await?;
        }
        cx.changes.push(Change::Content(head.object));
        Ok(())
    })
}
