//! `zpool remove`: log, cache and spare devices leave a pool.
//!
//! ```text
//!   log device   vacate: no new places, logs move on ─▶ … a transaction group or two … ─▶ nothing of it is in use
//!                  ─▶ log_device: a hole takes its place, its space maps, ZAPs and lists are freed ─▶ labels cleared
//!   cache, spare   out of their list in the MOS ─▶ labels cleared
//! ```
//!
//! A log device gives no places only as long as its [`Removal`] is there: one that stays after all is used as before.
//!
//! A top-level device keeps its number for ever, so one that goes leaves a hole, unless it was the last. Data devices
//! stay: what lies on them would have to be moved.
//!
//! Facts: docs/format/labels.md §4, mos.md §4–§5, vdevs.md §1.

use std::{slice, sync::Arc, time::Duration};

use disk::Disk;
use ondisk::nvlist::{NvList, Value};
use pool::{
    Pool,
    dsl::{HeadKind, LookupError},
    vdev::{Class, Kind, Tree, Vdev},
    zil::{self, Chain, End, Head},
};

use super::{VDEV_ZAP_MAP, config};
use crate::{
    BoxFuture,
    alloc::Notice,
    devices,
    dsl::{self, OpError},
    engine::Engine,
    mos::{DIRECTORY, packed, zap},
    sync::Syncer,
};

/// Transaction groups that logs get to move on: one in which they are told, one in which the last records of the old
/// chain are synced, and some for those whose commits are just on their way.
const PATIENCE: usize = 8;
/// After so many of them it is looked for logs that nobody is at work on.
const MOVED_ON: usize = 3;
/// Pause before it is looked again whether a sweep has given back what it has of a device.
const SWEPT: Duration = Duration::from_millis(200);

/// A device that can be removed.
#[derive(Clone, Debug)]
pub struct Removal {
    what: What,
    name: String,
    /// By leaf: to be cleared when it is gone.
    disks: Vec<(u64, Arc<dyn Disk>)>,
    has_closed: bool,
    notice: Arc<Notice>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// Top-level device.
    Log(u64),
    /// Entry of a list in the MOS.
    Auxiliary { list: &'static str, guid: u64 },
}

impl Removal {
    /// What `word` [means](devices::find) in a pool: a path, a guid, or a name such as `mirror-1`.
    ///
    /// # Errors
    /// There is no such device, or more than one, or it is of a kind that stays.
    pub fn find(view: &Pool, word: &str) -> Result<Self, OpError> {
        let guid = devices::find(view, word)?;
        for (list, devices) in [("spares", view.spares()), ("l2cache", view.l2cache())] {
            let Some(vdev) = devices.iter().find(|vdev| vdev.guid == guid) else { continue };
            let is_used = view.tree().leaves().iter().any(|leaf| leaf.guid == guid);
            if is_used {
                return Err(in_use(word));
            }
            return Ok(Self::of(What::Auxiliary { list, guid }, word, vdev));
        }
        let tree = view.tree();
        let mut tops = tree.tops.iter().filter(|top| top.kind != Kind::Hole);
        match tops.find(|top| top.guid == guid) {
            Some(top) if top.class() == Class::Log => Ok(Self::of(What::Log(top.id), word, top)),
            Some(_) => Err(OpError::Refused(format!(
                "{word} holds data: only log, cache and spare devices can be removed"
            ))),
            None => Err(match tree.top_around(guid) {
                Some(top) => OpError::Refused(format!(
                    "{word} is a part of {}: only whole devices can be removed",
                    top.display_name()
                )),
                None => no_such_device(),
            }),
        }
    }

    fn of(what: What, word: &str, vdev: &Vdev) -> Self {
        let leaves = vdev.leaves();
        let is_closed =
            |leaf: &&Vdev| leaf.leaf.as_ref().is_some_and(|leaf| leaf.condition.get().is_let_go());
        let has_closed = leaves.iter().any(is_closed);
        let disks = leaves.into_iter().filter_map(|leaf| Some((leaf.guid, leaf.leaf.as_ref()?.disk()?)));
        Self { what, name: word.to_owned(), disks: disks.collect(), has_closed, notice: Arc::default() }
    }

    /// Whether both mean one device, under whatever names.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.what == other.what
    }

    /// Its disks, but for those that are in use in `tree`: to be [cleared](crate::write::labels::clear) when it is gone for
    /// good.
    #[must_use]
    pub fn disks(&self, tree: &Tree) -> Vec<Arc<dyn Disk>> {
        let in_use = tree.leaves();
        let is_free = |guid: u64| in_use.iter().all(|leaf| leaf.guid != guid);
        self.disks.iter().filter(|(guid, _)| is_free(*guid)).map(|(_, disk)| Arc::clone(disk)).collect()
    }

    /// Whether a drive of it is offline or faulted, and closed for that: whoever watches the devices clears its labels when he
    /// [looks](Engine::look) once it is gone.
    #[must_use]
    pub fn has_closed(&self) -> bool {
        self.has_closed
    }

    /// The first step: when this returns, nothing of the device is in use. Changes nothing on disk but where logs are.
    ///
    /// # Errors
    /// Something stays on it.
    pub fn vacate<'a>(&'a self, engine: &'a Engine) -> BoxFuture<'a, Result<(), OpError>> {
        Box::pin(async move {
            let id = match self.what {
                What::Log(id) => id,
                What::Auxiliary { guid, .. } => {
                    engine.second().leave(guid).await;
                    return Ok(());
                }
            };
            let (mut left, mut rounds) = (0, 0);
            while rounds < PATIENCE {
                let notice = Arc::clone(&self.notice);
                let moving =
                    engine.run(move |cx| Box::pin(async move { Ok(move_logs(cx, id, &notice).await) }));
                let (in_use, lent) = moving.await?;
                if in_use == 0 {
                    return Ok(());
                }
                left = in_use;
                // The devices decide how long that takes: a sweep gets no more, but ends what it has begun.
                if lent > 0 {
                    tokio::time::sleep(SWEPT).await;
                } else {
                    rounds += 1;
                    if rounds == MOVED_ON {
                        end_idle_logs(engine, id).await?;
                    }
                }
            }
            Err(OpError::Refused(self.in_use_by(left, &logged_on(engine, id).await)))
        })
    }

    /// What is in the way: so many bytes, that these heads have.
    fn in_use_by(&self, bytes: u64, Logged { heads, untold }: &Logged) -> String {
        let of = format!("{bytes} bytes of {} are in use by", self.name);
        let others = |all: usize| match all.saturating_sub(1) {
            0 => String::new(),
            others => format!(" (and {others} more)"),
        };
        let Some(head) = heads.first() else {
            let of = format!("{of} intent logs that wait to be replayed");
            let Some(name) = untold.first() else { return of };
            let others = others(untold.len());
            return format!("{of}, perhaps of '{name}'{others}, which cannot be read: see 'zpool status -v'");
        };
        let others = others(heads.len());
        let (log, name) = (format!("the intent log of '{}'{others}", head.name), &head.name);
        match head.kind {
            _ if head.encrypted => {
                format!(
                    "{of} {log}, which is encrypted: import the pool with OpenZFS and remove the device there"
                )
            }
            HeadKind::Volume => {
                format!("{of} {log}, which waits to be replayed: 'zpool status' says why it could not be")
            }
            _ => format!(
                "{of} {log}, which waits to be replayed: mount '{name}' with OpenZFS, or roll it back"
            ),
        }
    }

    /// The second step, in a transaction group: the device is gone when that is durable.
    ///
    /// # Errors
    /// It was not vacated, is a spare that is in use by now, or the pool fails.
    pub fn finish<'a>(&'a self, cx: &'a mut Syncer) -> BoxFuture<'a, Result<(), OpError>> {
        Self::finish_all(slice::from_ref(self), cx)
    }

    /// [Finishes](Self::finish) all of these, which are [different](Self::is_same) devices, or none.
    ///
    /// # Errors
    /// One of them cannot be finished, or the pool fails.
    pub fn finish_all<'a>(all: &'a [Self], cx: &'a mut Syncer) -> BoxFuture<'a, Result<(), OpError>> {
        Box::pin(async move {
            for removal in all {
                removal.check(cx).await?;
            }
            for removal in all {
                match removal.what {
                    What::Log(id) => log_device(cx, id).await?,
                    What::Auxiliary { list, guid } => auxiliary(cx, list, guid).await?,
                }
            }
            Ok(())
        })
    }

    /// Whether it can be finished as the pool is now, which may be another than when it was found.
    async fn check(&self, cx: &mut Syncer) -> Result<(), OpError> {
        match self.what {
            What::Log(id) => {
                let is_log = cx.io.tree().top(id).is_some_and(|top| top.class() == Class::Log);
                if !is_log || cx.out.alloc.retire(id, &self.notice).await > 0 {
                    return Err(OpError::Refused(format!("{} is in use", self.name)));
                }
            }
            What::Auxiliary { list, guid } => {
                if cx.io.tree().leaves().iter().any(|leaf| leaf.guid == guid) {
                    return Err(in_use(&self.name));
                }
                listed(cx, list, guid).await?;
            }
        }
        Ok(())
    }
}

/// Makes logs leave a device; bytes of it that are still in use, and how many of these are a sweep's.
async fn move_logs(cx: &mut Syncer, id: u64, notice: &Arc<Notice>) -> (u64, u64) {
    for log in cx.logs.all() {
        log.leave(id);
    }
    let in_use = cx.out.alloc.retire(id, notice).await;
    (in_use, cx.out.alloc.lent(id))
}

/// Who has a log on a device.
#[derive(Debug, Default)]
struct Logged {
    /// Heads.
    heads: Vec<Head>,
    /// Names of heads that cannot be read, and may have one there: that stays.
    untold: Vec<String>,
}

/// Heads with a log on this device that no open volume is at work on, as of the last transaction group. Only the place at which a
/// log begins is looked at: what has nothing that waits has no other.
async fn logged_on(engine: &Engine, id: u64) -> Logged {
    let view = engine.view();
    let mut logged = Logged::default();
    let (live, unreachable) = match view.heads().await {
        Ok(reached) => reached,
        Err(error) => {
            tracing::warn!(pool = view.name(), %error, "whether it has an intent log cannot be told");
            logged.untold.push(view.name().to_owned());
            return logged;
        }
    };
    for error in unreachable {
        tracing::warn!(pool = view.name(), %error, "whether it has an intent log cannot be told");
        if let LookupError::Read { name, .. } = error {
            logged.untold.push(name);
        }
    }
    for (dataset, header) in live.iter().zip(zil::headers(&live).await) {
        match header {
            Ok(head) => logged.heads.extend(head.filter(|head| is_left_on(head, id))),
            Err(error) => {
                let (pool, dataset) = (view.name(), dataset.name());
                tracing::warn!(pool, dataset, %error, "whether it has an intent log cannot be told");
                logged.untold.push(dataset.to_owned());
            }
        }
    }
    logged
}

fn is_left_on(head: &Head, id: u64) -> bool {
    let is_on_device = head.header.log.dvas().any(|dva| u64::from(dva.vdev) == id);
    let is_own = Chain::new(head.objset, &head.header).end() != Some(End::Foreign);
    // Those of volumes were replayed, or ended, when the pool was opened.
    let is_at_work = head.kind == HeadKind::Volume && !head.encrypted && head.header.claim_txg == 0;
    is_on_device && is_own && !is_at_work
}

/// Ends logs on this device in which nothing waits to be replayed: OpenZFS leaves one in each file system that it ever logged
/// for.
async fn end_idle_logs(engine: &Engine, id: u64) -> Result<(), OpError> {
    let heads: Vec<u64> = logged_on(engine, id).await.heads.into_iter().map(|head| head.objset).collect();
    if heads.is_empty() {
        return Ok(());
    }
    let end = engine.run(move |cx| {
        Box::pin(async move {
            for head in heads {
                dsl::end_idle_log(cx, head).await?;
            }
            Ok(())
        })
    });
    end.await
}

/// It was [checked](Removal::check) just now.
async fn log_device(cx: &mut Syncer, id: u64) -> Result<(), OpError> {
    // A log of space maps may still speak of it, and readers want to find something with its number.
    let leaves_nothing = id + 1 == cx.io.tree().tops.len() as u64 && !cx.out.traits().log_spacemap;
    let tree = if leaves_nothing { cx.io.tree().without_last() } else { cx.io.tree().with_hole(id) };

    // From here on only a failing pool can stop it.
    cx.out.alloc.remove(id, &mut cx.mos).await?;
    let map = zap::get_u64(&mut cx.mos, DIRECTORY, VDEV_ZAP_MAP).await?;
    let mut zaps = Vec::new();
    let mut lists = Vec::new();
    if let Some(list) = config::tops_mut(&mut cx.config).get_mut(id as usize) {
        config::walk_mut(list, &mut |list| {
            let object = |name: &str| list.u64(name).filter(|object| *object != 0);
            zaps.extend(object("com.delphix:vdev_zap_top"));
            zaps.extend(object("com.delphix:vdev_zap_leaf"));
            lists.extend(object("DTL"));
        });
    }
    for object in zaps {
        if let Some(map) = map {
            zap::remove_int(&mut cx.mos, map, object).await?;
        }
        cx.mos.free(object).await?;
    }
    for object in lists {
        cx.out.alloc.free_dirty_time_log(object, &mut cx.mos).await?;
    }
    config::remove_top(&mut cx.config, id, leaves_nothing, cx.txg);
    cx.devices_changed(tree);
    cx.config_dirty = true;
    Ok(())
}

fn in_use(spare: &str) -> OpError {
    OpError::Refused(format!("spare {spare} is in use"))
}

/// The caller names it.
fn no_such_device() -> OpError {
    OpError::Refused("no such device in pool".to_owned())
}

/// The list `name` in the MOS, of spares or cache devices, and its object. A view of the pool knows only what was in it
/// when the last transaction group was committed.
///
/// # Errors
/// The device is not in it.
pub(crate) async fn listed(cx: &mut Syncer, name: &str, guid: u64) -> Result<(u64, NvList), OpError> {
    let object = zap::get_u64(&mut cx.mos, DIRECTORY, name).await?.filter(|object| *object != 0);
    let Some(object) = object else {
        return Err(no_such_device());
    };
    let list = packed::read(&mut cx.mos, object).await?;
    let all: &[NvList] = list.nvlist_array(name).unwrap_or_default();
    if all.iter().all(|device| device.u64("guid") != Some(guid)) {
        return Err(no_such_device());
    }
    Ok((object, list))
}

/// Takes a spare or cache device out of its list.
async fn auxiliary(cx: &mut Syncer, name: &str, guid: u64) -> Result<(), OpError> {
    let (object, mut list) = listed(cx, name, guid).await?;
    let all: &[NvList] = list.nvlist_array(name).unwrap_or_default();
    let rest: Vec<NvList> = all.iter().filter(|device| device.u64("guid") != Some(guid)).cloned().collect();
    list.set(name, Value::NvListArray(rest));
    packed::write(&mut cx.mos, object, &list).await?;
    Ok(())
}
