//! `zpool add` and `remove`: vdevs that come into an open pool, and those that can leave it.

use std::sync::Arc;

use disk::Disk;
use engine::{
    create::{self, Ashift, Removal},
    open::refusal,
};
use pool::{
    Pool,
    dmu::ReadError,
    props::{PoolProperties, parse::Moment},
};

use super::{
    layout::{
        about_caches, below, describe, short_reservations, smallest_blocks, useless_spares, volume_blocks,
    },
    properties::understand,
};
use crate::{
    host::chain,
    ops::{
        Answer, Failure, PoolAdd,
        cx::Cx,
        devices::{self, Wish},
        failure::{PoolError, may_yet_be_made, refused},
        held::Held,
        host::Host,
    },
};

/// `zpool add`
pub(crate) async fn add(cx: &Cx<'_>, new: PoolAdd) -> Result<Answer, Failure> {
    let what = format!("cannot add to '{}'", new.pool);
    let wish = understand(&new.properties, Moment::Creating).map_err(|why| Failure::because(&what, why))?;
    if !wish.is_of_devices() {
        return Err(Failure { code: 2, ..Failure::new("only 'ashift' can be given when devices are added") });
    }
    let held = match new.dry_run {
        true => looked_at(cx.host, &new.pool).await,
        false => cx.host.writable(&new.pool).await,
    };
    let held = held.map_err(|error| error.of_change(&what, &new.pool))?;
    let view = held.view();
    let usual = match wish.ashift {
        Some(_) => None,
        None => usual_ashift(&view).await.map_err(|error| Failure::because(&what, chain(&error)))?,
    };
    let shared = Ashift::shared_in(&view.tree()).filter(|_| wish.ashift.is_none());
    let ashift = Ashift { asked: wish.ashift_of_devices(), usual, shared };
    let device_wish = Wish { file_size: new.file_size, force: new.force, ashift };
    let plan = devices::plan(&new.devices, &what, device_wish).await?;
    if !new.force {
        plan.check_like(&view.tree(), ashift).map_err(|error| devices::refused(&what, &error))?;
    }
    plan.check_features(|guid| view.features().iter().any(|feature| feature.guid == guid))
        .map_err(|error| devices::refused(&what, &error))?;
    let caches = about_caches(&plan, &volume_blocks(&view).await, &cx.host.tier());
    let mut warnings = short_reservations(&plan, &view).await;
    warnings.extend(useless_spares(&plan, &view.tree()));
    if new.dry_run {
        devices::check(cx.host, &plan, &what, device_wish, Some(&held)).await?;
        let mut lines =
            vec![format!("would update '{}' to the following configuration:", held.name()), String::new()];
        lines.extend(describe(&plan, held.name(), false));
        lines.extend(below(smallest_blocks(&plan)));
        lines.extend(below(caches));
        return Ok(Answer { lines, warnings, ..Answer::default() });
    }
    let taken = devices::take(cx.host, &plan, &what, device_wish).await?;
    let disks = taken.disks();
    if let Some(engine) = held.engine() {
        for disk in &disks {
            engine.try_out(disk).await.map_err(|error| refused(&what, &error))?;
        }
    }
    let done =
        cx.try_change(&held, move |cx| Box::pin(async move { create::add(cx, &plan, &disks).await })).await;
    if done.as_ref().map_or_else(may_yet_be_made, |()| true) {
        // Files that a suspended pool may yet take stay as well: it has them when it goes on.
        taken.keep();
    }
    done.map_err(|error| refused(&what, &error))?;
    let kept = cx.host.remember_devices(&held);
    warnings.extend(kept.err().map(|error| chain(&error)));
    Ok(Answer { lines: caches, warnings, ..Answer::default() })
}

/// A pool that would be changed: nothing is written to it, and what could not be changed is refused.
async fn looked_at(host: &Host, name: &str) -> Result<Arc<Held>, PoolError> {
    if host.find(name).is_some() {
        return host.writable(name).await;
    }
    let held = host.readable(name).await?;
    let known = host.places().state().pools().unwrap_or_default();
    let why = match known.iter().any(|pool| pool.guid == held.guid() && pool.read_only) {
        true => Some("it was imported with readonly=on".to_owned()),
        false => refusal(&held.view()).await,
    };
    why.map_or(Ok(held), |why| Err(PoolError::ReadOnly(why)))
}

/// log2 of the smallest block of devices of which nothing else is said: the pool's property, which may leave it to them.
async fn usual_ashift(pool: &Pool) -> Result<Option<u32>, ReadError> {
    let set = PoolProperties::number(pool, "ashift").await?;
    Ok(set.and_then(|shift| u32::try_from(shift).ok()).filter(|shift| *shift != 0))
}

/// `zpool remove`
pub(crate) async fn remove(
    cx: &Cx<'_>,
    name: &str,
    words: &[String],
    dry_run: bool,
) -> Result<Answer, Failure> {
    let what = format!("cannot remove from '{name}'");
    let held = cx.host.writable(name).await.map_err(|error| error.of_change(&what, name))?;
    let Some(engine) = held.engine() else {
        return Err(Failure::because(&what, "pool is read-only"));
    };
    // All of them are known, and of no use any more, before the first is gone.
    let mut removals: Vec<(Removal, &String)> = Vec::with_capacity(words.len());
    for word in words {
        let what = format!("cannot remove {word}");
        let view = held.view();
        let found = devices::find(&view, word, |word| Removal::find(&view, word)).await;
        let removal = found.map_err(|error| refused(&what, &error))?;
        // One device may have several names here.
        if removals.iter().all(|(known, _)| !known.is_same(&removal)) {
            removals.push((removal, word));
        }
    }
    if dry_run {
        return Ok(Answer::default());
    }
    for (removal, word) in &removals {
        let vacated = removal.vacate(engine).await;
        vacated.map_err(|error| refused(&format!("cannot remove {word}"), &error))?;
    }
    let removals: Vec<Removal> = removals.into_iter().map(|(removal, _)| removal).collect();
    let leaving = removals.clone();
    let what = format!("cannot remove {}", words.join(", "));
    let change =
        cx.change(&held, &what, move |cx| Box::pin(async move { Removal::finish_all(&leaving, cx).await }));
    change.await?;
    if removals.iter().any(Removal::has_closed) {
        engine.look().await;
    }
    let tree = held.view().tree();
    let disks: Vec<Arc<dyn Disk>> = removals.iter().flat_map(|removal| removal.disks(&tree)).collect();
    let mut warnings = Vec::new();
    for disk in disks {
        // The pool does not know it any more: its labels would only confuse people.
        let path = disk.info().path;
        let cleared = match engine.suspension().may_write() {
            Ok(()) => devices::clear(disk).await,
            // It may be in another host's pool by now.
            Err(error) => Err(error),
        };
        if let Err(error) = cleared {
            warnings.push(format!("{path}: its labels could not be cleared: {}", chain(&error)));
        }
    }
    let kept = cx.host.remember_devices(&held);
    warnings.extend(kept.err().map(|error| chain(&error)));
    Ok(Answer { warnings, ..Answer::default() })
}
