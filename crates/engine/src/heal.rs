//! Self-heal: a block that a reader met in a bad state is read once more and written where it is wrong, at once.
//!
//! ```text
//!   readers ─▶ EngineEar ─▶ wounds ─▶ is the block still there? ─▶ examine all places ─▶ repair ─▶ Event::Repaired
//!                                        └─ no: nobody needs it, and   └─ lost: the error log, Event::DataLost
//!                                            the diagnosis does not hear
//! ```
//!
//! The error counters of devices have counted it by then, whatever it turns out to be: they say what was answered.
//!
//! The reader may have held an old state, so the block is looked up in the last committed one, by its name; that state
//! is pinned, so that its space belongs to it until it is repaired. What only a snapshot still has under another name is
//! left to a scrub.
//!
//! Facts: docs/format/vdevs.md §7.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use ondisk::{blkptr::BlkPtr, dsl::DatasetPhys};
use pool::{
    BlockErrorKind, Bookmark, Pool, Wrong,
    dmu::ReadError,
    io::{How, Turns},
    traverse::{LEVEL_LOG, LEVEL_OBJSET, SPILL, Scope, Visit, expand},
};
use tokio::time::sleep;

use crate::{
    devices::{Absent, comings_and_goings},
    ear::EngineEar,
    events::Event,
    scan::{self, Ground},
    write::repair,
};

/// Wounds healed together.
const BATCH: usize = 64;
/// States in which the block of a wound is looked up before it is left to a scrub.
const ATTEMPTS: usize = 3;
/// Pause after a batch: clients come first, and neighbours of a bad block are often bad too.
const PAUSE: Duration = Duration::from_millis(20);
/// Levels below an object set, dnodes included: more than any tree has.
const DEPTH_MAX: usize = 32;
/// Slots in a block of dnodes.
const SLOT_BYTES: u64 = 512;

/// Runs until the pool is closed.
pub(crate) async fn run(ground: Arc<Ground>, ear: Arc<EngineEar>) {
    let mut changed = ground.scans.subscribe();
    loop {
        tokio::select! {
            () = ear.wounded() => {}
            _ = changed.changed() => {}
        }
        if ground.scans.is_halted() {
            return;
        }
        let wounds = ear.take_wounds(BATCH);
        if wounds.is_empty() {
            continue;
        }
        let mut given_up = 0;
        for wound in &wounds {
            let mut healed = Err(GaveWay);
            for _ in 0..ATTEMPTS {
                // That of now: those before may have taken minutes, and a state that old cannot be pinned.
                let Some(view) = (ground.view)() else { return };
                healed = heal(&ground, &ear, &view, wound).await;
                if healed.is_ok() {
                    break;
                }
            }
            if healed.is_err() {
                given_up += 1;
                ear.give_up(wound);
            }
        }
        if given_up > 0 {
            tracing::warn!(blocks = given_up, "not repaired, as space was short: scrub the pool");
        }
        sleep(PAUSE).await;
    }
}

/// Space was short: what was looked up may be something else by now.
#[derive(Clone, Copy, Debug)]
struct GaveWay;

/// Does what can be done about a wound, as of a committed state.
async fn heal(ground: &Ground, ear: &EngineEar, view: &Arc<Pool>, wound: &Wrong) -> Result<(), GaveWay> {
    if wound.at.level == LEVEL_LOG || !view.tree().state().0.is_readable() {
        ear.charge_lost(wound);
        return Ok(());
    }
    let pin = ground.horizon.pin_view(view.uberblock().txg).ok_or(GaveWay)?;
    let found = find(view, wound.at).await;
    // From here on it must stay what it is until it is written. What was found says nothing if the state gave way.
    let _firm = pin.firm().ok_or(GaveWay)?;
    let is_there = found.map(|found| found.is_some_and(|found| found.same_block(&wound.bp)));
    if !matches!(is_there, Ok(false)) {
        ear.charge_lost(wound);
    }
    if !matches!(is_there, Ok(true)) {
        return Ok(());
    }
    let how = How { turns: None, one_copy: false };
    let stood = comings_and_goings(&view.tree());
    let Some(outcome) = view.io().examine_for_scan(&[(wound.bp, wound.at)], how).await.pop() else {
        return Ok(());
    };
    if let Some(why) = &outcome.lost {
        if matches!(why, BlockErrorKind::Checksum | BlockErrorKind::Device) {
            let tree = view.tree();
            let absent = Absent::ask(&tree).await;
            let is_same = comings_and_goings(&tree) == stood;
            let is_elsewhere = absent.may_bring(&tree, &wound.bp);
            if !is_same || absent.cuts_off(&tree) || absent.hides(&tree, &wound.bp) || is_elsewhere {
                return Ok(());
            }
        }
        if ground.scans.note_lost(wound.at, wound.bp.birth()) {
            let what = scan::describe(view, wound.at, wound.bp.lsize()).await;
            ground.events.tell(Event::DataLost { at: wound.at, what });
            ground.txgs.wake();
        }
        return Ok(());
    }
    // Leaves that missed the block's transaction group are a resilver's business.
    let mut repairs = outcome.repairs;
    repairs.retain_mut(|repair| {
        repair.lacking.clear();
        !repair.wrong.is_empty()
    });
    let turns = ground.scans.pace() as &dyn Turns;
    let repaired = repair::write(view.io(), &repairs, turns, &ground.suspension).await;
    repaired.report(&ground.reports);
    let guids: BTreeSet<u64> = repaired.bytes.keys().copied().collect();
    let failed = repair::flush(view.io(), &guids).await;
    for (guid, bytes) in repaired.bytes {
        if !failed.contains(&guid) {
            tracing::info!(device = guid, at = %wound.at, bytes, "repaired");
            ground.events.tell(Event::Repaired { device: scan::device(view, guid), bytes });
        }
    }
    Ok(())
}

/// What leads to a block cannot be read, or makes no sense.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unread;

/// The pointer to block `at` in a committed state, if there is such a block.
async fn find(view: &Arc<Pool>, at: Bookmark) -> Result<Option<BlkPtr>, Unread> {
    let root = match at.objset {
        0 => view.uberblock().rootbp,
        objset => match view.mos().dnode(objset).await {
            Ok(found) => DatasetPhys::decode(&found.dnode.bonus, found.order).map_err(|_| Unread)?.bp,
            Err(ReadError::NoObject { .. }) => return Ok(None),
            Err(_) => return Err(Unread),
        },
    };
    seek(view, root, at).await
}

/// The pointer to block `at` in the object set at `root`, if there is such a block.
pub(crate) async fn seek(view: &Pool, root: BlkPtr, at: Bookmark) -> Result<Option<BlkPtr>, Unread> {
    if root.is_hole() {
        return Ok(None);
    }
    let scope =
        Scope { objset: at.objset, root, after: 0, is_snapshot: true, is_destroyed: false, resume: None };
    let set = Bookmark { objset: at.objset, object: 0, level: LEVEL_OBJSET, blkid: 0 };
    let mut visit = Visit { pointer: root, at: set, scope: 0 };
    for _ in 0..DEPTH_MAX {
        if visit.at == at {
            return Ok(Some(visit.pointer));
        }
        let content = view.io().read_block(&visit.pointer, visit.at).await.map_err(|_| Unread)?;
        let children = expand(&visit, &scope, &content);
        let is_sound = children.flaws.is_empty();
        match children.visits.into_iter().find(|child| leads_to(child, at)) {
            Some(child) => visit = child,
            // It may be what cannot be understood that leads there.
            None => return if is_sound { Ok(None) } else { Err(Unread) },
        }
    }
    Err(Unread)
}

/// Whether block `at` is this one or below it.
fn leads_to(visit: &Visit, at: Bookmark) -> bool {
    let here = visit.at;
    if here == at {
        return true;
    }
    // Blocks of dnodes lead to the blocks of the objects in them.
    let (level, blkid, is_meta) = match (here.object, at.object) {
        (0, 0) => (at.level, at.blkid, true),
        (0, object) => (0, object, false),
        (a, b) if a == b => (at.level, at.blkid, true),
        _ => return false,
    };
    if (at.blkid == SPILL && at.object == here.object) || here.level < level || here.level < 0 {
        return false;
    }
    let fanout = match visit.pointer.level() {
        0 => 1,
        _ => visit.pointer.lsize() / BlkPtr::BYTES as u64,
    };
    let height = u32::try_from(here.level - level).unwrap_or(0);
    let Some(span) = fanout.checked_pow(height) else { return false };
    if is_meta {
        return here.level > level && blkid / span.max(1) == here.blkid;
    }
    // The object's number in units of blocks of dnodes, 16 KiB unless they say otherwise.
    let per_block = if here.level == 0 { visit.pointer.lsize() } else { 16 << 10 } / SLOT_BYTES;
    (blkid / per_block.max(1)) / span.max(1) == here.blkid
}
