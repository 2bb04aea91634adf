//! Scans as transaction groups see them: they begin and end here, and what is known of them is written down here.
//!
//! ```text
//!   directory of the MOS:  scan                     24 words, as OpenZFS has them; its bookmark stays zero and its queue
//!                                                   empty, so that OpenZFS begins again
//!                          io.millpond:scan_cursor  how far we are, tied to the scan by the time it began
//!                          error_scrub              9 words, as OpenZFS has them, of the last scrub of the error log that
//!                                                   ended: one of ours that is interrupted is not continued
//! ```
//!
//! Facts: docs/format/vdevs.md §6, §7, mos.md §10.

use std::{collections::BTreeMap, sync::Arc};

use ondisk::{
    dnode::ObjectType,
    scan::{ErrorScrubPhys, ScanFunc, ScanPhys, ScanState},
    zap::Value,
};
use pool::{
    Pool,
    vdev::{Tree, TxgSet},
};
use tokio::time::Instant;

use super::{
    Logged, ScanCommand, errors,
    state::{Counts, FLAG_PAUSED, Position, Refusal, Run, Scans, Target, Words, word},
    waiting::Waiting,
};
use crate::{
    EngineError, devices,
    dsl::OpError,
    events::{Event, ScanKind, ScanStep},
    mos::{DIRECTORY, zap},
    sync::Syncer,
};

/// Our own entry beside `scan`.
const CURSOR: &str = "io.millpond:scan_cursor";
/// The last scrub of the error log.
const ERROR_SCRUB: &str = "error_scrub";
/// Up to where the last scrub went that had an end: a number, in the directory as well.
const SCRUBBED: &str = "last_scrubbed_txg";
/// Its form.
const CURSOR_VERSION: u64 = 1;
/// Memory for blocks that wait to be read, in bytes.
const MEMORY: usize = 192 << 20;
/// A resilver that is less far than this share of a hundred begins again for a leaf that comes late.
const EARLY_PERCENT: u64 = 10;

/// Takes up what a pool that was just opened or created has.
pub(crate) async fn open(cx: &mut Syncer) -> Result<(), EngineError> {
    let scans = Arc::clone(&cx.scans);
    let waiting = Arc::new(Waiting::new(Arc::clone(cx.out.alloc.horizon()), MEMORY));
    cx.out.alloc.horizon().watch(Arc::clone(&waiting) as Arc<dyn crate::alloc::Releases>);
    let _opened_once = scans.waiting.set(waiting);
    let Some(view) = cx.view.clone() else { return Ok(()) };
    let left_over = view.error_scrub().filter(|scrub| scrub.state() == ScanState::ErrorScrubbing).copied();
    let Some(phys) = view.scan().copied() else { return scrub_log_again(cx, &scans, left_over).await };
    let mut words: Words = *phys.words();
    let is_ours = matches!(phys.func(), ScanFunc::Scrub | ScanFunc::Resilver);
    if phys.state() != ScanState::Scanning || !is_ours {
        scans.state.lock().words = Some(words);
        return scrub_log_again(cx, &scans, left_over).await;
    }
    let cursor = cursor(&view, &phys).await;
    let tree = view.tree();
    let lacking = devices::lacking(&tree);
    let kind = if phys.func() == ScanFunc::Resilver { ScanKind::Resilver } else { ScanKind::Scrub };
    let known = |guid: u64| cursor.as_ref().is_some_and(|(_, guids)| guids.contains(&guid));
    let in_range = |missed: &TxgSet| missed.span().is_none_or(|(_, end)| end <= words[word::MAX]);
    // A leaf the scan knew nothing of, or that lacks more than it had in mind, needs all of it.
    let goes_on = lacking.iter().all(|(guid, missed)| known(*guid) && in_range(missed));
    let position = cursor.as_ref().filter(|_| goes_on).map_or(Position::default(), |(position, _)| *position);
    let mut run = Run {
        id: 0,
        kind,
        logged: None,
        min: words[word::MIN],
        max: words[word::MAX],
        started: words[word::START],
        paused: (words[word::FLAGS] & FLAG_PAUSED != 0).then_some(words[word::START]),
        moving: (Instant::now(), 0),
        targets: targets(&tree, &lacking),
        position,
        total: words[word::TO_EXAMINE],
        known: None,
        counts: Counts::default(),
        settled: Counts::default(),
        narrowed: 0,
        hurried: 0,
        whole: position == Position::default(),
        meter: super::estimate::Meter::default(),
    };
    if position == Position::default() {
        (words[word::EXAMINED], words[word::SKIPPED], words[word::PROCESSED], words[word::ERRORS]) =
            (0, 0, 0, 0);
    }
    let issued = words[word::EXAMINED];
    run.counts =
        Counts { scanned: issued, issued, processed: words[word::PROCESSED], errors: words[word::ERRORS] };
    run.settled = run.counts;
    run.moving.1 = run.counts.scanned;
    if kind == ScanKind::Resilver
        && let Some((min, max)) = range(&lacking)
    {
        (run.min, run.max) = if goes_on { (run.min.min(min), run.max) } else { (min, max) };
        (words[word::MIN], words[word::MAX]) = (run.min, run.max);
    }
    cx.events.tell(event(&run, ScanStep::Continued));
    if run.is_full_scrub() {
        scans.found.scrub_goes_on(run.counts.errors > 0);
    }
    let mut state = scans.state.lock();
    run.id = state.generation + 1;
    (state.words, state.run, state.dirty) = (Some(words), Some(run), true);
    // Also if it is as far as we left it: OpenZFS keeps our cursor, and fills the queue when it goes on.
    state.foreign_queue = true;
    scans.wake(&mut state);
    Ok(())
}

/// A scrub of the error log that another program left goes on, from the start.
async fn scrub_log_again(
    cx: &mut Syncer,
    scans: &Scans,
    left_over: Option<ErrorScrubPhys>,
) -> Result<(), EngineError> {
    let Some(scrub) = left_over else { return Ok(()) };
    begin(cx, scans, Extent::Logged, &devices::lacking(&cx.io.tree())).await?;
    if let Some(run) = &mut scans.state.lock().run {
        run.started = scrub.times().0;
        run.paused = scrub.is_paused().then_some(run.started);
    }
    Ok(())
}

/// How far our own entry says the scan is, and which leaves it is for.
async fn cursor(view: &Pool, phys: &ScanPhys) -> Option<(Position, Vec<u64>)> {
    let value = view.directory().get(CURSOR).await.ok()??;
    let words: Vec<u64> = value.integers().collect();
    let (&[version, started, metadata, offset, vdev], guids) = words.split_first_chunk::<5>()?;
    let is_this = version == CURSOR_VERSION && started == phys.times().0;
    let position = Position { metadata: metadata != 0, key: (offset, u32::try_from(vdev).ok()?) };
    is_this.then(|| (position, guids.to_vec()))
}

fn targets(tree: &Tree, lacking: &[(u64, TxgSet)]) -> BTreeMap<u64, Target> {
    let leaves = tree.leaves();
    let target = |(guid, missed): &(u64, TxgSet)| {
        let leaf = leaves.iter().find(|leaf| leaf.guid == *guid).and_then(|vdev| vdev.leaf.as_ref());
        let epoch = leaf.map_or(0, |leaf| leaf.condition.epoch());
        (*guid, Target { missed: missed.clone(), epoch, ..Target::default() })
    };
    lacking.iter().map(target).collect()
}

/// Births that a resilver of these leaves is about: greater than the first, less than the second. That the second is the
/// end of the last list itself, and not one less, is what OpenZFS goes by: for it a leaf whose list ends behind the scan's
/// last transaction group was not what the scan was for, so it never becomes whole.
fn range(lacking: &[(u64, TxgSet)]) -> Option<(u64, u64)> {
    let spans = lacking.iter().filter_map(|(_, missed)| missed.span());
    let span = spans.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))?;
    Some((span.0.saturating_sub(1), span.1))
}

fn event(run: &Run, step: ScanStep) -> Event {
    Event::Scan { kind: run.kind, step, processed: run.counts.processed, errors: run.counts.errors }
}

/// What there is to do about scans in this transaction group. Before [`crate::missed::sync`].
pub(crate) async fn sync(cx: &mut Syncer) -> Result<(), EngineError> {
    let scans = Arc::clone(&cx.scans);
    if !scans.is_open() {
        return Ok(());
    }
    let tree = cx.io.tree();
    scans.look_at(&tree);
    let is_finished = {
        let state = scans.state.lock();
        state.run.is_some() && state.finished == Some(state.generation)
    };
    if is_finished {
        finish(cx, &scans).await?;
    }
    if let Some(lacking) = wanted(&scans, &writable(cx)) {
        end(cx, &scans, ScanStep::Cancelled).await?;
        begin(cx, &scans, Extent::Resilver, &lacking).await?;
    }
    errors::sync(cx, &scans.found).await?;
    write(cx, &scans).await
}

/// Leaves that lack something and can be given it. One that refused something lately is not written to before somebody has
/// looked at it: it misses this transaction group too, and a resilver of it would end where it began, at once and again.
fn writable(cx: &Syncer) -> Vec<(u64, TxgSet)> {
    let (tree, targets) = (cx.io.tree(), cx.out.targets());
    let mut lacking = devices::lacking(&tree);
    for vdev in tree.leaves() {
        let generation = vdev.leaf.as_ref().map_or(0, |leaf| leaf.condition.get().generation);
        if targets.is_suspect(vdev.guid, generation) {
            lacking.retain(|(guid, _)| *guid != vdev.guid);
        }
    }
    lacking
}

/// Whether a resilver has to begin now, and for whom.
fn wanted(scans: &Scans, lacking: &[(u64, TxgSet)]) -> Option<Vec<(u64, TxgSet)>> {
    let state = scans.state.lock();
    if state.halted {
        return None;
    }
    let has_hope = |(guid, missed): &&(u64, TxgSet)| {
        let refusal = state.refusals.get(guid).filter(|refusal| Instant::now() < refusal.again);
        !refusal.is_some_and(|refusal| missed.without(&refusal.missed).is_empty())
    };
    let hopeful: Vec<_> = lacking.iter().filter(has_hope).cloned().collect();
    if hopeful.is_empty() {
        return None;
    }
    let Some(run) = &state.run else { return Some(hopeful) };
    if run.kind == ScanKind::Scrub {
        return Some(hopeful);
    }
    // What a leaf misses while it is brought up to date comes afterwards.
    let is_late = |(guid, _): &(u64, TxgSet)| run.targets.get(guid).is_none_or(|target| target.broken);
    let is_early = run.counts.issued * 100 < run.known.unwrap_or(run.total) * EARLY_PERCENT;
    (is_early && hopeful.iter().any(is_late)).then_some(hopeful)
}

/// What a scan is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// A scrub of what was born after this transaction group.
    After(u64),
    /// A scrub of what the error log names.
    Logged,
    /// What leaves lack.
    Resilver,
}

/// A scan begins.
async fn begin(
    cx: &mut Syncer,
    scans: &Scans,
    extent: Extent,
    lacking: &[(u64, TxgSet)],
) -> Result<(), EngineError> {
    let logged_only = extent == Extent::Logged;
    let (kind, (min, max)) = match extent {
        Extent::After(txg) => (ScanKind::Scrub, (txg, cx.txg)),
        Extent::Logged => (ScanKind::Scrub, (0, cx.txg)),
        Extent::Resilver => (ScanKind::Resilver, range(lacking).unwrap_or((cx.txg, cx.txg))),
    };
    let queue = match logged_only {
        true => 0,
        false => zap::create(&mut cx.mos, ObjectType::SCAN_QUEUE, 0).await?,
    };
    let total = if logged_only { 0 } else { cx.out.alloc.used() };
    let mut words: Words = [0; ScanPhys::WORDS];
    words[word::FUNC] = if kind == ScanKind::Scrub { 1 } else { 2 };
    words[word::STATE] = 1;
    words[word::QUEUE] = queue;
    (words[word::MIN], words[word::MAX]) = (min, max);
    words[word::START] = cx.now;
    words[word::TO_EXAMINE] = total;
    words[word::DDT_CLASS_MAX] = 1;
    let mut run = Run {
        id: 0,
        kind,
        logged: logged_only.then(Logged::default),
        min,
        max,
        started: cx.now,
        paused: None,
        moving: (Instant::now(), 0),
        targets: targets(&cx.io.tree(), lacking),
        position: Position::default(),
        total,
        known: None,
        counts: Counts::default(),
        settled: Counts::default(),
        narrowed: 0,
        hurried: 0,
        whole: true,
        meter: super::estimate::Meter::default(),
    };
    cx.events.tell(event(&run, ScanStep::Started));
    if run.is_full_scrub() {
        scans.found.scrub_begins();
    }
    if logged_only {
        scans.found.check_begins();
    }
    let mut state = scans.state.lock();
    run.id = state.generation + 1;
    state.run = Some(run);
    // One that ended in this transaction group may not be written down yet.
    state.dirty |= !logged_only;
    if !logged_only {
        state.words = Some(words);
    }
    state.finished = None;
    scans.wake(&mut state);
    Ok(())
}

/// The scan that runs, if one does, has read everything.
async fn finish(cx: &mut Syncer, scans: &Scans) -> Result<(), EngineError> {
    let run = scans.state.lock().run.clone();
    let Some(run) = run else { return Ok(()) };
    if run.logged.is_none() && (run.whole || run.counts.errors == 0) {
        settle_targets(cx, scans, &run);
    }
    if run.is_full_scrub() {
        scans.found.scrub_ended();
    }
    if run.kind == ScanKind::Scrub && run.logged.is_none() {
        zap::set_u64(&mut cx.mos, DIRECTORY, SCRUBBED, run.max).await?;
    }
    end(cx, scans, ScanStep::Finished).await?;
    match devices::resilvered(cx).await {
        Ok(()) => Ok(()),
        Err(OpError::Engine(error)) => Err(error),
        Err(error) => {
            tracing::warn!(pool = cx.name, %error, "what was resilvered does not take its place");
            Ok(())
        }
    }
}

/// Leaves that were there all the time have everything the scan was about, but what they refused.
fn settle_targets(cx: &Syncer, scans: &Scans, run: &Run) {
    let tree = cx.io.tree();
    // Of what was born before nothing was looked at.
    let from = if run.min == 0 { 0 } else { run.min + 1 };
    let range = TxgSet::from_ranges(vec![(from, run.max)]);
    for vdev in tree.leaves() {
        let Some((target, leaf)) = run.targets.get(&vdev.guid).zip(vdev.leaf.as_ref()) else { continue };
        if target.broken || !vdev.is_readable() {
            continue;
        }
        let failed = target.failed.iter().map(|&txg| (txg, txg + 1)).collect();
        // Of what could not be read for now nobody knows what it leads to.
        let failed = if target.starved { target.missed.clone() } else { TxgSet::from_ranges(failed) };
        leaf.missed.subtract(&range.without(&failed));
        leaf.missed.add_all(&failed);
        let refusals = &mut scans.state.lock().refusals;
        let before = refusals.remove(&vdev.guid);
        if !failed.is_empty() && !target.looked_after {
            refusals.insert(vdev.guid, Refusal::new(failed, target, before.as_ref()));
        }
    }
}

/// The scan that runs, if one does, is over.
async fn end(cx: &mut Syncer, scans: &Scans, step: ScanStep) -> Result<(), EngineError> {
    let (queue, run) = {
        let mut state = scans.state.lock();
        let Some(mut run) = state.run.take() else { return Ok(()) };
        if let Some(Logged { total, examined }) = run.logged {
            let is_finished = step == ScanStep::Finished;
            // What was found whole before it was stopped is whole all the same.
            let forgotten = scans.found.check_ended();
            // Of a log that cannot be read nobody knows how long it is.
            if is_finished && total > 0 {
                // All that stays in the log: what is lost, and what could not be found out.
                run.counts.errors = total.saturating_sub(forgotten);
            }
            // What is named twice, or is no longer there, was not read by itself.
            let examined = if is_finished { total } else { examined.min(total) };
            let times = (run.started, cx.now.max(run.started));
            let over = ErrorScrubPhys::ended(is_finished, times, (total, examined), run.counts.errors);
            state.error_scrub = Some(over);
            state.ending = Some((run.clone(), cx.txg));
        }
        let is_written = run.logged.is_none();
        let queue = state.words.as_mut().filter(|_| is_written).map_or(0, |words| {
            words[word::STATE] = if step == ScanStep::Finished { 2 } else { 3 };
            words[word::END] = cx.now.max(run.started);
            words[word::EXAMINED] = run.counts.issued;
            words[word::PROCESSED] = run.counts.processed;
            words[word::ERRORS] = run.counts.errors;
            words[word::FLAGS] = 0;
            std::mem::take(&mut words[word::QUEUE])
        });
        state.dirty |= is_written;
        (state.foreign_queue, state.finished) = (false, None);
        scans.wake(&mut state);
        (queue, run)
    };
    if let Some(waiting) = scans.waiting.get() {
        waiting.clear();
    }
    free_queue(cx, queue).await?;
    if step != ScanStep::Finished && run.is_full_scrub() {
        scans.found.scrub_cancelled();
    }
    cx.events.tell(event(&run, step));
    Ok(())
}

/// Frees the queue of a scan. The number alone says little: what left it may be damaged, or have been written by others.
async fn free_queue(cx: &mut Syncer, queue: u64) -> Result<(), EngineError> {
    if queue != 0
        && cx.mos.exists(queue).await?
        && cx.mos.dnode(queue).await?.object_type == ObjectType::SCAN_QUEUE
    {
        cx.mos.free(queue).await?;
    }
    Ok(())
}

/// Writes down how far the scan is.
async fn write(cx: &mut Syncer, scans: &Scans) -> Result<(), EngineError> {
    let foreign = {
        let mut state = scans.state.lock();
        std::mem::take(&mut state.foreign_queue).then(|| state.words.map_or(0, |words| words[word::QUEUE]))
    };
    if let Some(queue) = foreign {
        // The list of datasets of a walk that we do not continue: an empty one in its place, as whoever begins at the start
        // enters all datasets himself, and OpenZFS fails over one that is there already.
        free_queue(cx, queue).await?;
        let queue = zap::create(&mut cx.mos, ObjectType::SCAN_QUEUE, 0).await?;
        if let Some(words) = &mut scans.state.lock().words {
            words[word::QUEUE] = queue;
        }
    }
    let error_scrub = scans.state.lock().error_scrub.take();
    if let Some(over) = error_scrub {
        zap::set(&mut cx.mos, DIRECTORY, ERROR_SCRUB.into(), Value::from_u64s(over.words())).await?;
    }
    let (words, cursor) = {
        let mut state = scans.state.lock();
        if !std::mem::take(&mut state.dirty) {
            return Ok(());
        }
        let state = &mut *state;
        let Some(words) = &mut state.words else { return Ok(()) };
        let cursor = state.run.as_ref().filter(|run| run.logged.is_none()).map(|run| {
            words[word::EXAMINED] = run.settled.issued;
            words[word::PROCESSED] = run.settled.processed;
            words[word::ERRORS] = run.settled.errors;
            // Where OpenZFS would go on: at the beginning.
            words[15..23].fill(0);
            words[word::FLAGS] = if run.paused.is_some() { FLAG_PAUSED } else { 0 };
            let Position { metadata, key } = run.position;
            let mut cursor = vec![CURSOR_VERSION, run.started, u64::from(metadata), key.0, key.1.into()];
            // Who goes on with it does not know what these lack besides.
            let has_all = |target: &Target| !target.broken && !target.starved && target.failed.is_empty();
            cursor.extend(run.targets.iter().filter(|(_, target)| has_all(target)).map(|(guid, _)| *guid));
            cursor
        });
        (*words, cursor)
    };
    zap::set(&mut cx.mos, DIRECTORY, "scan".into(), Value::from_u64s(&words)).await?;
    match cursor {
        Some(cursor) => zap::set(&mut cx.mos, DIRECTORY, CURSOR.into(), Value::from_u64s(&cursor)).await,
        None => zap::remove(&mut cx.mos, DIRECTORY, CURSOR.into()).await.map(|_was_there| ()),
    }
}

/// What an administrator wants, within a transaction group.
pub(crate) async fn command(cx: &mut Syncer, command: ScanCommand) -> Result<(), OpError> {
    let scans = Arc::clone(&cx.scans);
    let refused = |text: &str| Err(OpError::Refused(text.to_owned()));
    let (running, is_of_log) = {
        let state = scans.state.lock();
        let run = state.run.as_ref();
        let is_of_log = run.is_some_and(|run| run.logged.is_some());
        (run.map(|run| (run.kind, run.paused.is_some())), is_of_log)
    };
    match (command, running) {
        (ScanCommand::Scrub | ScanCommand::ScrubErrors | ScanCommand::ScrubNew, None) => {
            let lacking = devices::lacking(&cx.io.tree());
            let extent = match command {
                ScanCommand::ScrubErrors => Extent::Logged,
                ScanCommand::ScrubNew => {
                    Extent::After(zap::get_u64(&mut cx.mos, DIRECTORY, SCRUBBED).await?.unwrap_or(0))
                }
                _ => Extent::After(0),
            };
            begin(cx, &scans, extent, &lacking).await?;
        }
        (ScanCommand::Scrub, Some((ScanKind::Scrub, true))) => pause(cx, &scans, false),
        (ScanCommand::ScrubErrors, Some((ScanKind::Scrub, true))) if is_of_log => pause(cx, &scans, false),
        (ScanCommand::Scrub, Some((ScanKind::Scrub, false))) => {
            return refused("currently scrubbing; use 'zpool scrub -s' to cancel scrub");
        }
        (ScanCommand::ScrubErrors | ScanCommand::ScrubNew, Some((ScanKind::Scrub, paused))) => {
            return refused(if paused {
                "scrub is paused; use 'zpool scrub' to resume or 'zpool scrub -s' to cancel scrub"
            } else {
                "currently scrubbing; use 'zpool scrub -s' to cancel scrub"
            });
        }
        (ScanCommand::Pause, Some((ScanKind::Scrub, true))) => {
            return refused("scrub is paused; use 'zpool scrub' to resume scrub");
        }
        (ScanCommand::Pause, Some((ScanKind::Scrub, false))) => pause(cx, &scans, true),
        (ScanCommand::Stop, Some((ScanKind::Scrub, _))) => end(cx, &scans, ScanStep::Cancelled).await?,
        (ScanCommand::Pause | ScanCommand::Stop, None) => return refused("there is no active scrub"),
        (
            ScanCommand::Scrub
            | ScanCommand::ScrubErrors
            | ScanCommand::ScrubNew
            | ScanCommand::Pause
            | ScanCommand::Stop,
            Some((ScanKind::Resilver, _)),
        ) => return refused("currently resilvering"),
        (ScanCommand::Resilver, _) => {
            scans.state.lock().refusals.clear();
            let lacking = devices::lacking(&cx.io.tree());
            end(cx, &scans, ScanStep::Cancelled).await?;
            begin(cx, &scans, Extent::Resilver, &lacking).await?;
        }
    }
    Ok(())
}

fn pause(cx: &Syncer, scans: &Scans, paused: bool) {
    let mut state = scans.state.lock();
    let Some(run) = &mut state.run else { return };
    run.paused = paused.then_some(cx.now);
    if !paused {
        run.moving = (Instant::now(), run.counts.scanned);
    }
    cx.events.tell(event(run, if paused { ScanStep::Paused } else { ScanStep::Resumed }));
    state.dirty = true;
    scans.wake(&mut state);
}
