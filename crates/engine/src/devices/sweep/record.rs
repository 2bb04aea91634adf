//! How sweeps stand, in the ZAPs of their leaves, in OpenZFS's words: so either goes on where the other was.
//!
//! What is on record is how a sweep is to stand: one whose device is away, or whose pool is suspended, is running there. It is
//! written in the syncing task, with the portion that was swept, and read when a pool is opened or looked at.
//!
//! Facts: docs/format/mos.md §5, vdevs.md §3.2.

use ondisk::nvlist::NvList;
use pool::{Pool, vdev::Tree, zap::Zap};

use super::{
    IS_SECURE, SweepKind, SweepState, SweepStatus,
    place::{of_top, progress, up_to},
};
use crate::{BoxFuture, EngineError, devices::shape, dsl::OpError, mos::zap, sync::Syncer};

/// In a leaf's ZAP: its trim is to erase, so that nothing can be read back.
const SECURE: &str = "org.zfsonlinux:vdev_trim_secure";
/// In a leaf's ZAP: its trim leaves out what was never written to.
const PARTIAL: &str = "org.zfsonlinux:vdev_trim_partial";

impl SweepKind {
    /// Names in a leaf's ZAP: state, time, offset.
    fn names(self) -> [&'static str; 3] {
        match self {
            Self::Initialize => [
                "com.delphix:vdev_initialize_state",
                "com.delphix:vdev_initialize_action_time",
                "com.delphix:next_offset_to_initialize",
            ],
            Self::Trim => [
                "org.zfsonlinux:vdev_trim_state",
                "org.zfsonlinux:vdev_trim_action_time",
                "org.zfsonlinux:next_offset_to_trim",
            ],
        }
    }

    /// Name of the rate, of which 0 is none.
    fn rate_name(self) -> Option<&'static str> {
        (self == Self::Trim).then_some("org.zfsonlinux:vdev_trim_rate")
    }

    /// Names of what it may be besides, none of which ours is.
    fn manner_names(self) -> &'static [&'static str] {
        match self {
            Self::Initialize => &[],
            Self::Trim => &[PARTIAL, SECURE],
        }
    }
}

impl SweepState {
    fn from_number(number: u64) -> Option<Self> {
        [Self::Active, Self::Cancelled, Self::Suspended, Self::Complete]
            .into_iter()
            .find(|state| *state as u64 == number)
    }
}

/// What the ZAP of a leaf says of a sweep.
pub(super) struct OnRecord {
    /// Bytes that are behind it are as they are on record: `next` may be a row less.
    pub(super) status: SweepStatus,
    /// Offset of the top-level device up to which it is done.
    pub(super) next: u64,
    /// Bytes per second.
    pub(super) rate: Option<u64>,
    pub(super) is_secure: bool,
}

/// What the ZAP of this leaf says of its sweeps.
pub(super) async fn on_record(view: &Pool, tree: &Tree, guid: u64) -> Vec<OnRecord> {
    let mut found = Vec::new();
    let Some(object) = zap_of(&mut view.config().clone(), guid) else { return found };
    let Ok(zap) = Zap::open_in(view.mos(), object).await else { return found };
    for kind in [SweepKind::Initialize, SweepKind::Trim] {
        let [state, when, offset] = kind.names();
        let number = async |name: &str| zap.get_u64(name).await.ok().flatten();
        let Some(state) = number(state).await.and_then(SweepState::from_number) else { continue };
        let when = number(when).await.unwrap_or(0);
        let done = number(offset).await.unwrap_or(0);
        let next = of_top(tree, guid, done);
        let (_, total) = progress(tree, guid, next);
        let rate = match kind.rate_name() {
            Some(name) => number(name).await,
            None => None,
        };
        let is_secure = kind == SweepKind::Trim && number(SECURE).await.unwrap_or(0) != 0;
        let status = SweepStatus { guid, kind, state, done: done.min(total), total, when, error: None };
        found.push(OnRecord { status, next, rate, is_secure });
    }
    found
}

/// The sweeps of a pool that nobody here writes to, by leaf. One that was running when the pool was left goes on when it is
/// opened for writing: until then it is suspended.
pub fn recorded_sweeps(view: &Pool) -> BoxFuture<'_, Vec<SweepStatus>> {
    Box::pin(async move {
        let tree = view.tree();
        let mut all = Vec::new();
        for leaf in tree.leaves() {
            for OnRecord { mut status, is_secure, .. } in on_record(view, &tree, leaf.guid).await {
                if status.state == SweepState::Active {
                    status.state = SweepState::Suspended;
                    status.error = is_secure.then(|| IS_SECURE.to_owned());
                }
                all.push(status);
            }
        }
        all
    })
}

/// How far a sweep is, and how it stands and at which rate if that changed, into the leaf's ZAP; the time that was noted.
pub(super) async fn record(
    cx: &mut Syncer,
    guid: u64,
    kind: SweepKind,
    change: Option<(SweepState, Option<u64>)>,
    next: u64,
) -> Result<u64, EngineError> {
    let now = cx.now;
    let Some(object) = zap_of(&mut cx.config, guid) else { return Ok(now) };
    let [state_name, time_name, offset_name] = kind.names();
    let offset = up_to(&cx.io.tree(), guid, next);
    zap::set_u64(&mut cx.mos, object, offset_name, offset).await?;
    if let Some((state, rate)) = change {
        zap::set_u64(&mut cx.mos, object, state_name, state as u64).await?;
        zap::set_u64(&mut cx.mos, object, time_name, now).await?;
        if let Some(name) = kind.rate_name() {
            zap::set_u64(&mut cx.mos, object, name, rate.unwrap_or(0)).await?;
        }
        // What an earlier one of OpenZFS's was is not what this is: whoever goes on with it would take it for that.
        if state == SweepState::Active {
            for name in kind.manner_names() {
                zap::set_u64(&mut cx.mos, object, name, 0).await?;
            }
        }
    }
    Ok(now)
}

/// That there ever was one.
pub(super) async fn forget(cx: &mut Syncer, guid: u64, kind: SweepKind) -> Result<(), OpError> {
    if let Some(object) = zap_of(&mut cx.config, guid) {
        let names = kind.names().into_iter().chain(kind.rate_name());
        for name in names.chain(kind.manner_names().iter().copied()) {
            zap::remove(&mut cx.mos, object, name.into()).await?;
        }
    }
    Ok(())
}

/// The ZAP of a leaf, if it has one.
fn zap_of(config: &mut NvList, guid: u64) -> Option<u64> {
    let mut object = None;
    shape::edit(config, guid, |list| {
        object = list.u64("com.delphix:vdev_zap_leaf").filter(|object| *object != 0);
    });
    object
}
