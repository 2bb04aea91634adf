//! What was warm, kept in a file for each pool, so that a daemon that starts again knows what to read.
//!
//! ```text
//!   opened  ─▶ file ─▶ engine::prewarm, in the background
//!   every five minutes, when nothing is being warmed ─▶ sample ─▶ file, or
//!       ─▶ file ─▶ engine::prewarm, if that filled a cache that was small then
//!   closed in good order ─▶ sample, if that is quick, or there is no file yet ─▶ file        destroyed ─▶ no file
//! ```
//! `heat-GUID` in the state directory, replaced as a whole. It is a hint: one that is torn, of another pool, of a future
//! that the pool gave up, or old costs a line in the log and nothing else. Of one that a larger machine wrote as much is used
//! as there is memory for. Decision: docs/decisions/0014-prewarm.md.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read as _},
    panic::AssertUnwindSafe,
    path::{Path, PathBuf},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use engine::{
    engine::{Ending, Engine},
    prewarm::{Ended, Heat, Progress},
};
use futures_util::FutureExt as _;
use parking_lot::Mutex;
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::{
    api::prewarm::Prewarm,
    hostid,
    ops::{Failure, Held},
    state,
};

/// How often is written down what is warm.
const INTERVAL: Duration = Duration::from_secs(300);
/// How long a pool that is being closed may take for it, and then again to write it down.
const LAST_LOOK: Duration = Duration::from_secs(2);
/// Larger than any file of ours.
const BYTES_MAX: u64 = 256 << 20;
/// Bytes of the file system that it leaves to the other files of the directory: without this a start is slow for a while,
/// without those it may find no pool, or an old state of one.
const ROOM: u64 = 1 << 20;
/// What is remembered, of all pools together, may take such a part of what the cache may have: enough for each block of 16 KiB
/// in memory to lie far from all others.
const MEMORY_PART: usize = 32;

/// The files of a state directory, and the tasks that write them.
#[derive(Debug)]
pub(crate) struct Warmth {
    dir: PathBuf,
    tasks: Mutex<BTreeMap<u64, JoinHandle<()>>>,
    /// By guid. They stay: who writes one may be at it still when the pool is opened again.
    sheets: Mutex<BTreeMap<u64, Arc<Sheet>>>,
    /// Held once more for each pool that is open, or expected.
    pools: Arc<()>,
}

/// The file of a pool, changed by one at a time: a thread that is writing it goes on when its task has ended.
#[derive(Debug)]
struct Sheet {
    path: PathBuf,
    turn: Mutex<()>,
    /// The pool is being left: what was sampled before that comes too late.
    is_left: AtomicBool,
    /// What it remembers was looked up since the pool was opened. Before that it is better than anything that is in memory.
    was_read: AtomicBool,
    /// Somebody ended its warming: what is being read for it begins none.
    is_unwanted: AtomicBool,
}

impl Sheet {
    fn new(path: PathBuf) -> Self {
        Self {
            path,
            turn: Mutex::default(),
            is_left: AtomicBool::new(false),
            was_read: AtomicBool::new(false),
            is_unwanted: AtomicBool::new(false),
        }
    }

    /// Does this to the file when nobody else does anything to it.
    fn change(&self, change: impl FnOnce(&Path)) {
        let _turn = self.turn.lock();
        change(&self.path);
    }

    /// Writes down what was sampled while the pool is open.
    fn keep(&self, heat: &Heat) {
        self.change(|path| {
            if !self.is_left.load(Relaxed) {
                save(path, heat);
            }
        });
    }
}

impl Warmth {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir, tasks: Mutex::default(), sheets: Mutex::default(), pools: Arc::default() }
    }

    /// A pool is being opened: as long as this is held the others leave it its part of the memory. What is read again of all
    /// pools of a start is in memory at the same time.
    pub(crate) fn expect(&self) -> Arc<()> {
        Arc::clone(&self.pools)
    }

    /// A pool was opened: what was warm is read again, and what becomes warm is remembered.
    pub(crate) fn opened(&self, held: &Held) {
        let Some(engine) = held.engine() else { return };
        let sheet = self.sheet(held.guid());
        sheet.is_left.store(false, Relaxed);
        sheet.was_read.store(false, Relaxed);
        sheet.is_unwanted.store(false, Relaxed);
        let pools = Arc::clone(&self.pools);
        let recalled = recall(&sheet, engine, memory(engine, &pools));
        let (name, engine) = (held.name().to_owned(), Arc::downgrade(engine));
        let task = tokio::spawn(async move {
            again(&engine, &name, &sheet, recalled).await;
            keep(engine, sheet, pools).await;
        });
        if let Some(before) = self.tasks.lock().insert(held.guid(), task) {
            before.abort();
        }
    }

    /// A pool is about to be left.
    pub(crate) async fn closing(&self, held: &Held, ending: Ending) {
        let task = self.tasks.lock().remove(&held.guid());
        let (Some(task), Some(engine)) = (task, held.engine()) else { return };
        task.abort();
        let sheet = self.sheet(held.guid());
        sheet.is_left.store(true, Relaxed);
        if ending == Ending::Destroy {
            return in_time(sheet, remove).await;
        }
        // What is half warmed again, or was for want of memory, is no better than what is known already.
        let is_warming = engine.stop_prewarm() || !sheet.was_read.load(Relaxed);
        if !is_warming && !engine.prewarm_may_go_on() {
            let seen = engine.sample_heat_within(memory(engine, &self.pools), LAST_LOOK).await;
            in_time(sheet, move |file| save_last(file, &seen)).await;
        }
    }

    /// Begins to warm a pool, or goes on with it.
    pub(crate) async fn begin(&self, held: &Held) -> Result<(), Failure> {
        let what = format!("cannot pre-warm '{}'", held.name());
        let Some(engine) = held.engine() else {
            let why = held.read_only().unwrap_or("it is not open for writing");
            return Err(Failure::because(&what, format_args!("pool is read-only: {why}")));
        };
        let sheet = self.sheet(held.guid());
        sheet.is_unwanted.store(false, Relaxed);
        if is_under_way(engine) {
            return Ok(());
        }
        match recall(&sheet, engine, memory(engine, &self.pools)).await {
            Ok(Some(heat)) => {
                // Somebody may have begun or ended it meanwhile.
                if !is_under_way(engine) && !sheet.is_unwanted.load(Relaxed) {
                    engine.prewarm(heat);
                }
                Ok(())
            }
            Ok(None) => Err(Failure::because(
                &what,
                "nothing is remembered yet: what is warm is written down every five minutes, and when the daemon stops",
            )),
            Err(why) => Err(Failure::because(&what, why)),
        }
    }

    /// Ends the warming of a pool, also one whose file is being read still.
    pub(crate) fn stop(&self, held: &Held) {
        let Some(engine) = held.engine() else { return };
        self.sheet(held.guid()).is_unwanted.store(true, Relaxed);
        engine.stop_prewarm();
    }

    fn sheet(&self, guid: u64) -> Arc<Sheet> {
        let mut sheets = self.sheets.lock();
        let sheet = || Arc::new(Sheet::new(self.dir.join(format!("heat-{guid}"))));
        Arc::clone(sheets.entry(guid).or_insert_with(sheet))
    }
}

/// Whether it is being warmed.
fn is_under_way(engine: &Engine) -> bool {
    engine.prewarm_progress().is_some_and(|now| now.ended.is_none())
}

/// Reads again what was warm, if that is remembered, and nobody has begun with it or ended it meanwhile.
async fn again(
    engine: &Weak<Engine>,
    pool: &str,
    sheet: &Sheet,
    recalled: impl Future<Output = Result<Option<Heat>, String>>,
) {
    match recalled.await {
        Ok(heat) => {
            if let (Some(heat), Some(engine)) = (heat, engine.upgrade())
                && engine.prewarm_progress().is_none()
                && !sheet.is_unwanted.load(Relaxed)
            {
                engine.prewarm(heat);
            }
        }
        Err(why) => {
            tracing::warn!(pool, file = %sheet.path.display(), "what was warm is not read again: {why}");
        }
    }
    sheet.was_read.store(true, Relaxed);
}

/// Goes on with a warming for which memory was short, if there may be more by now, and nobody has ended it meanwhile; whether
/// something is being warmed then.
async fn goes_on(engine: &Engine, sheet: &Arc<Sheet>, memory: usize) -> bool {
    if !engine.prewarm_may_go_on() {
        return false;
    }
    let Ok(Some(heat)) = recall(sheet, engine, memory).await else { return false };
    if sheet.is_unwanted.load(Relaxed) {
        return false;
    }
    // Somebody may have begun it meanwhile.
    if !is_under_way(engine) {
        engine.prewarm(heat);
    }
    true
}

/// Samples now and then, until the pool is closed.
async fn keep(engine: Weak<Engine>, sheet: Arc<Sheet>, pools: Arc<()>) {
    loop {
        sleep(INTERVAL).await;
        let Some(engine) = engine.upgrade() else { return };
        if is_under_way(&engine) {
            continue;
        }
        // What there was room for is not all that is worth remembering.
        if goes_on(&engine, &sheet, memory(&engine, &pools)).await {
            continue;
        }
        // What it panicked over may be gone by the next time; without one nothing would be remembered any more.
        let Ok(heat) = AssertUnwindSafe(engine.sample_heat(memory(&engine, &pools))).catch_unwind().await
        else {
            tracing::error!(
                "what is warm cannot be found out (a defect: please report what stands above); it is tried again"
            );
            continue;
        };
        drop(engine);
        let sheet = Arc::clone(&sheet);
        let saved = tokio::task::spawn_blocking(move || sheet.keep(&heat));
        let _only_if_the_runtime_ends = saved.await;
    }
}

/// Bytes of memory that what is remembered of a pool may take.
fn memory(engine: &Engine, pools: &Arc<()>) -> usize {
    part(engine.view().io().cache().budget(), pools)
}

/// The part of a cache of `budget` bytes that each of these pools may take.
fn part(budget: usize, pools: &Arc<()>) -> usize {
    // One is held by who counts them.
    let pools = Arc::strong_count(pools).saturating_sub(1).max(1);
    budget / MEMORY_PART / pools
}

/// What a file remembers of a pool, if that can be used, as far as it fits into so many bytes of `memory`. Read on a thread of its
/// own: nobody who serves hosts waits for a state directory that does not answer.
fn recall(
    sheet: &Arc<Sheet>,
    engine: &Engine,
    memory: usize,
) -> impl Future<Output = Result<Option<Heat>, String>> + use<> {
    let view = engine.view();
    let (sheet, guid, txg) = (Arc::clone(sheet), view.guid(), view.uberblock().txg);
    let recalling = tokio::task::spawn_blocking(move || read(&sheet.path, guid, txg, memory));
    async move { recalling.await.unwrap_or_else(|error| Err(error.to_string())) }
}

fn read(file: &Path, guid: u64, txg: u64, memory: usize) -> Result<Option<Heat>, String> {
    let bytes = match fs::File::open(file) {
        Ok(file) => file.take(BYTES_MAX),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let heat = Heat::decode(bytes, memory).map_err(|error| error.to_string())?;
    heat.check(guid, txg, hostid::now()).map_err(|error| error.to_string())?;
    Ok((!heat.is_empty()).then_some(heat))
}

/// Does this to a file on a thread of its own, and waits a moment for it: a directory that does not answer keeps no pool from
/// being left.
async fn in_time(sheet: Arc<Sheet>, change: impl FnOnce(&Path) + Send + 'static) {
    let changed = Arc::clone(&sheet);
    let changing = tokio::task::spawn_blocking(move || changed.change(change));
    if timeout(LAST_LOOK, changing).await.is_err() {
        tracing::warn!(file = %sheet.path.display(), "what was warm in the end is not kept: the state directory does not answer");
    }
}

fn remove(file: &Path) {
    let _was_there = fs::remove_file(file);
    let _was_left = fs::remove_file(aside(file));
}

/// Writes down what was seen when the pool was left. A part of it only where nothing is remembered: all of it is worth more,
/// though it is some minutes older.
fn save_last(file: &Path, seen: &Result<Heat, Heat>) {
    match seen {
        Ok(heat) => save(file, heat),
        Err(part) if !file.exists() => save(file, part),
        Err(_) => {}
    }
}

fn save(file: &Path, heat: &Heat) {
    // Nothing is warm yet: what was before the restart is still the better guess.
    if heat.is_empty() {
        return;
    }
    if let Err(error) = replace(file, &heat.encode(), ROOM) {
        tracing::warn!(file = %file.display(), %error, "what is warm cannot be written down");
    }
}

/// Where it is written first.
fn aside(file: &Path) -> PathBuf {
    file.with_extension("new")
}

/// Replaces it as a whole, where so many bytes of `room` are left beside it.
fn replace(file: &Path, bytes: &[u8], room: u64) -> io::Result<()> {
    let dir = file.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(dir)?;
    let aside = aside(file);
    // One that a crash left behind takes part of the room.
    let _was_left = fs::remove_file(&aside);
    let system = rustix::fs::statvfs(dir)?;
    let free = system.f_bavail.saturating_mul(system.f_frsize);
    // Some do not tell.
    if system.f_blocks > 0 && free < room.saturating_add(bytes.len() as u64) {
        let why =
            format!("{} bytes would leave less than {room} of {free} bytes free: make room", bytes.len());
        return Err(io::Error::new(io::ErrorKind::StorageFull, why));
    }
    state::replace(&aside, file, dir, bytes, 0o600)
}

/// How far it is, for the control socket.
pub(crate) fn report(held: &Held) -> Prewarm {
    let progress = held.engine().and_then(|engine| engine.prewarm_progress());
    let state = match progress.map(|now| now.ended) {
        None => "none",
        Some(None) => "running",
        Some(Some(Ended::Complete)) => "complete",
        Some(Some(Ended::Full)) => "full",
        Some(Some(Ended::Stopped | Ended::Closed)) => "stopped",
    };
    let zero = Progress {
        ended: None,
        memory: (0, 0),
        device: (0, 0),
        read: (0, 0),
        bytes: 0,
        took: Duration::ZERO,
    };
    let Progress { memory, device, read, bytes, took, .. } = progress.unwrap_or(zero);
    Prewarm {
        pool: held.name().to_owned(),
        guid: held.guid().to_string(),
        state: state.to_owned(),
        memory_done: memory.0,
        memory_total: memory.1,
        device_done: device.0,
        device_total: device.1,
        read_memory: read.0,
        read_device: read.1,
        bytes,
        ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        host::{Places, Settings},
        ops::{Host, Mode, Operation, PoolCreate, Request, run},
        state::State,
    };

    /// It was read by who opens pools, and none was open before the state directory answered.
    #[tokio::test]
    async fn what_was_warm_is_not_waited_for_by_who_opens_a_pool() {
        let dir = tempfile::tempdir().unwrap();
        let (host, held) = lake(dir.path()).await;
        let warmth = Arc::new(Warmth::new(dir.path().to_owned()));
        let file = warmth.sheet(held.guid()).path.clone();
        // Who opens it for reading waits for a writer.
        assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
        let opening = tokio::task::spawn_blocking({
            let (warmth, held) = (Arc::clone(&warmth), Arc::clone(&held));
            move || warmth.opened(&held)
        });
        let opened = timeout(5 * LAST_LOOK, opening).await;
        let closed = timeout(5 * LAST_LOOK, warmth.closing(&held, Ending::Export)).await;
        // Or the test would not end either.
        drop(fs::File::options().write(true).open(&file).unwrap());
        opened.expect("it does not wait").unwrap();
        closed.expect("nor does who leaves it");
        // And what it may hold is not given up for what nobody has warmed.
        assert!(std::os::unix::fs::FileTypeExt::is_fifo(&fs::metadata(&file).unwrap().file_type()));
        drop(held);
        host.close().await.unwrap();
    }

    /// Nothing was under way that could be ended: it was answered that this was done, and the warming began as soon as the file
    /// was read.
    #[tokio::test]
    async fn a_warming_that_is_ended_while_its_file_is_read_does_not_begin() {
        let dir = tempfile::tempdir().unwrap();
        let (host, held) = lake(dir.path()).await;
        let engine = held.engine().unwrap();
        let warmth = Warmth::new(dir.path().to_owned());
        let sheet = warmth.sheet(held.guid());
        let mut good = Heat::new(held.guid(), 1, hostid::now());
        good.note(1, 0, None, true);
        let good = good.encode();
        // Who opens it for reading waits for a writer.
        assert!(std::process::Command::new("mkfifo").arg(&sheet.path).status().unwrap().success());
        warmth.opened(&held);
        warmth.stop(&held);
        fs::write(&sheet.path, &good).unwrap();
        let was_read = async {
            while !sheet.was_read.load(Relaxed) {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(60), was_read).await.expect("it is read");
        assert!(engine.prewarm_progress().is_none(), "nobody wants it");
        // Nor what somebody began by hand.
        let mut beginning = Box::pin(warmth.begin(&held));
        assert!(beginning.as_mut().now_or_never().is_none(), "the file is being read");
        warmth.stop(&held);
        fs::write(&sheet.path, &good).unwrap();
        beginning.await.unwrap();
        assert!(engine.prewarm_progress().is_none(), "nobody wants it any more");
        // What it says is as good as any.
        fs::remove_file(&sheet.path).unwrap();
        fs::write(&sheet.path, &good).unwrap();
        warmth.begin(&held).await.unwrap();
        assert!(engine.prewarm_progress().is_some());
        warmth.closing(&held, Ending::Export).await;
        drop(held);
        host.close().await.unwrap();
    }

    /// Found by reading: it was answered that this was done, and the warming began again as soon as the file was read.
    #[tokio::test]
    async fn a_warming_that_is_ended_while_its_file_is_read_does_not_go_on() {
        let dir = tempfile::tempdir().unwrap();
        let (host, held) = lake(dir.path()).await;
        let engine = held.engine().unwrap();
        let warmth = Warmth::new(dir.path().to_owned());
        let sheet = warmth.sheet(held.guid());
        let mut known = Heat::new(held.guid(), 1, hostid::now());
        (0..10_000).for_each(|blkid| known.note(1, blkid, None, true));
        let known = known.encode();
        // There was no memory for all that is known, and there may be more now.
        engine.prewarm(Heat::decode(&*known, 400).unwrap());
        let ended = || engine.prewarm_progress().unwrap().ended;
        let has_ended = async {
            while ended().is_none() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(60), has_ended).await.expect("there is nothing to read");
        assert_eq!(ended(), Some(Ended::Full));
        let view = engine.view();
        view.io().cache().set_budget(2 * view.io().cache().budget());
        drop(view);
        assert!(engine.prewarm_may_go_on());
        // Who opens it for reading waits for a writer.
        assert!(std::process::Command::new("mkfifo").arg(&sheet.path).status().unwrap().success());
        let mut going_on = Box::pin(goes_on(engine, &sheet, usize::MAX));
        assert!(going_on.as_mut().now_or_never().is_none(), "the file is being read");
        warmth.stop(&held);
        fs::write(&sheet.path, &known).unwrap();
        assert!(!going_on.await && ended() == Some(Ended::Full), "nobody wants it any more");
        // What it says is as good as any.
        fs::remove_file(&sheet.path).unwrap();
        fs::write(&sheet.path, &known).unwrap();
        sheet.is_unwanted.store(false, Relaxed);
        assert!(goes_on(engine, &sheet, usize::MAX).await);
        drop(held);
        host.close().await.unwrap();
    }

    /// The thread that closes pools wrote it down itself, and closed none while the state directory did not answer.
    #[tokio::test]
    async fn what_was_warm_is_waited_for_a_moment_where_it_cannot_be_written() {
        let dir = tempfile::tempdir().unwrap();
        let (answer, answers) = std::sync::mpsc::channel();
        let keeping = in_time(sheet(dir.path()), move |_| answers.recv().unwrap());
        let left = timeout(10 * LAST_LOOK, keeping).await;
        // Or the test would not end either.
        answer.send(()).unwrap();
        left.expect("it is waited for a moment");
    }

    /// Half of it stayed, and was all that the file system had left: nothing else could be kept there any more.
    #[test]
    fn what_could_not_be_written_whole_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let sheet = sheet(dir.path());
        let left = || {
            let entries = fs::read_dir(dir.path()).unwrap();
            entries.map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>()
        };
        // As if there was no room for the rest.
        fs::create_dir_all(sheet.path.join("in the way")).unwrap();
        save(&sheet.path, &heat(1));
        assert_eq!(left(), ["heat-7"]);
        fs::remove_dir_all(&sheet.path).unwrap();
        // What was left by one that crashed goes, too, and what others need is not taken.
        fs::write(aside(&sheet.path), "half").unwrap();
        let error = replace(&sheet.path, b"heat", u64::MAX).unwrap_err();
        assert_eq!((error.kind(), left().len()), (io::ErrorKind::StorageFull, 0), "{error}");
        fs::write(aside(&sheet.path), "half").unwrap();
        remove(&sheet.path);
        assert_eq!(left().len(), 0);
    }

    /// What was being written when a pool was destroyed was put in place after its file had been removed, and stayed for good.
    #[tokio::test]
    async fn the_file_of_a_destroyed_pool_does_not_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let sheet = sheet(dir.path());
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let (go_on, may_go_on) = std::sync::mpsc::channel();
        let writing = tokio::spawn(in_time(Arc::clone(&sheet), move |file| {
            begun.send(()).unwrap();
            may_go_on.recv().unwrap();
            save(file, &heat(1));
        }));
        has_begun.await.unwrap();
        sheet.is_left.store(true, Relaxed);
        let removing = tokio::spawn(in_time(Arc::clone(&sheet), remove));
        sleep(Duration::from_millis(50)).await;
        go_on.send(()).unwrap();
        writing.await.unwrap();
        removing.await.unwrap();
        assert!(!sheet.path.exists());
        // Nor by what had waited for a thread meanwhile.
        sheet.keep(&heat(1));
        assert!(!sheet.path.exists());
    }

    /// A large pool that was closed before it had been looked through once was cold at the next start.
    #[test]
    fn what_was_seen_of_a_pool_until_it_had_to_be_left_is_kept_where_nothing_else_is() {
        let dir = tempfile::tempdir().unwrap();
        let sheet = sheet(dir.path());
        let kept = || Heat::decode(fs::File::open(&sheet.path).unwrap(), usize::MAX).unwrap();
        save_last(&sheet.path, &Err(heat(1)));
        assert_eq!(kept(), heat(1));
        save_last(&sheet.path, &Ok(heat(3)));
        assert_eq!(kept(), heat(3));
        save_last(&sheet.path, &Err(heat(2)));
        assert_eq!(kept(), heat(3));
    }

    /// Those that were opened one after the other had the whole, a half, a third, and were warmed side by side.
    #[test]
    fn the_pools_of_a_start_take_no_more_memory_together_than_they_may() {
        let dir = tempfile::tempdir().unwrap();
        let warmth = Warmth::new(dir.path().to_owned());
        let (budget, mut sum, mut open) = (1 << 30, 0, Vec::new());
        let expected: Vec<Arc<()>> = (0..10).map(|_| warmth.expect()).collect();
        for coming in expected {
            drop(coming);
            open.push(Arc::clone(&warmth.pools));
            sum += part(budget, &warmth.pools);
        }
        assert!((budget / 40..=budget / MEMORY_PART).contains(&sum), "{sum}");
        // Of those that are left each may take more.
        open.truncate(1);
        assert_eq!(part(budget, &warmth.pools), budget / MEMORY_PART);
    }

    /// A pool in this directory.
    async fn lake(dir: &Path) -> (Arc<Host>, Arc<Held>) {
        let places = Places::new(vec![dir.to_owned()], State::at(dir.join("state")));
        let host = Arc::new(Host::new(places, Mode::Daemon, Settings::default()));
        let create = PoolCreate {
            pool: "lake".to_owned(),
            devices: vec![dir.join("d").display().to_string()],
            file_size: Some(128 << 20),
            ..PoolCreate::default()
        };
        let request = Request { operation: Operation::PoolCreate(create), command: None, user: 0 };
        run(&host, request).await.unwrap();
        let held = host.find("lake").unwrap();
        (host, held)
    }

    fn sheet(dir: &Path) -> Arc<Sheet> {
        Arc::new(Sheet::new(dir.join("heat-7")))
    }

    /// So many blocks are warm.
    fn heat(blocks: u64) -> Heat {
        let mut heat = Heat::new(7, 1, 1);
        (0..blocks).for_each(|blkid| heat.note(1, blkid, None, true));
        heat
    }
}
