//! What the devices of pools have done, as the control socket shows it: leaves count, what is above them is the sum. The
//! root of a pool that is held has what those did that left, too.
//!
//! A pool is what has been allocated and what its devices did. Cache devices stand beside it, as they hold nothing that is
//! the pool's own.

use std::collections::BTreeMap;

use engine::BoxFuture;
use futures_util::future::join_all;
use pool::{
    Pool,
    vdev::{Tallied, Vdev},
};

use crate::{
    api::{
        self, Device,
        iostat::{IostatList, PoolIo},
    },
    ops::Held,
    view,
};

/// All pools that are open here, or the one of this name or guid.
pub fn list<'a>(held: &'a [std::sync::Arc<Held>], name: Option<&'a str>) -> BoxFuture<'a, IostatList> {
    Box::pin(async move {
        let is_meant = |held: &&std::sync::Arc<Held>| {
            name.is_none_or(|name| held.name() == name || name.parse() == Ok(held.guid()))
        };
        // At once: each waits a moment for devices that do not answer.
        let pools = held.iter().filter(is_meant).map(async |held| {
            let mut found = of(&held.view(), view::held(held).await);
            found.opened_ns = held.opened_ns();
            found.root.io = Some(held.worked());
            found
        });
        let mut pools = join_all(pools).await;
        pools.sort_by(|a: &PoolIo, b| (&a.name, &a.guid).cmp(&(&b.name, &b.guid)));
        IostatList { pools, ..IostatList::default() }
    })
}

/// What the devices of a pool have done since it was opened, whenever that was.
#[must_use]
pub fn of(pool: &Pool, shown: api::Pool) -> PoolIo {
    let tree = pool.tree();
    let leaves = tree.leaves().into_iter().chain(pool.l2cache());
    let tallied = |vdev: &Vdev| Some((vdev.guid.to_string(), vdev.leaf.as_ref()?.pulse.tally.get()));
    let leaves: BTreeMap<String, Tallied> = leaves.filter_map(tallied).collect();
    let api::Pool { name, guid, mut root, mut cache, .. } = shown;
    sum(&mut root, &leaves);
    cache.iter_mut().for_each(|device| {
        sum(device, &leaves);
    });
    PoolIo { name, guid, opened_ns: 0, root, cache }
}

fn sum(device: &mut Device, leaves: &BTreeMap<String, Tallied>) -> Tallied {
    let mut all = leaves.get(&device.guid).cloned().unwrap_or_default();
    for child in &mut device.children {
        all.add(&sum(child, leaves));
    }
    device.io = Some(all.clone());
    all
}
