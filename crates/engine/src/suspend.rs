//! A pool that cannot go on for now: what stands in its way, who waits for that, and who may end the wait.
//!
//! ```text
//!   syncing task ── too few devices ──▶ wait ──(grace)──▶ suspended ──▶ commands are refused, events, failmode
//!        ▲                                │
//!        └─── tries again ◀── kick ◀──────┴── a device is back (watch) · zpool clear
//!                         └── given up ◀── Engine::abandon
//! ```
//!
//! A transaction group that is being synced keeps everything it has done and is to do in memory, so what is waited for
//! here is only that devices take it. Whatever was tried is tried again after each kick; nothing else ends the wait.
//! Devices that are back within a moment are not worth a suspension, so it is declared after a grace period.
//!
//! Others wait here, too: who reads for a client, or before a change. That it is over is said by the next commit, whoever
//! waited; so each kick asks for one as long as something has failed since the last.
//!
//! Before the engine runs (a pool that is being created or opened) nobody could kick: then nothing waits, and what stands
//! in the way is the error.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::Mutex;
use pool::{BlockError, dmu::ReadError, error::BlockErrorKind};
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use crate::{EngineError, open::multihost::Alive};

/// How long a device may be away before the pool counts as suspended: longer than a bus reset.
const GRACE: Duration = Duration::from_secs(1);

/// Hears of a suspension that begins (why) or is over.
pub type OnChange = Box<dyn Fn(Option<&EngineError>) + Send + Sync>;

/// Asks for a transaction group, with nothing in it if need be.
pub(crate) type Wake = Box<dyn Fn() + Send + Sync>;

/// See the module. Shared by the syncing task and everybody who talks to it.
pub struct Suspension {
    state: watch::Sender<State>,
    kicks: watch::Sender<u64>,
    /// Somebody may kick.
    is_patient: AtomicBool,
    /// What clients want to read and devices that are away have is not waited for (`failmode=continue`).
    lets_reads_fail: AtomicBool,
    on_change: OnceLock<OnChange>,
    /// Whether a suspension is what was told last.
    is_told: Mutex<bool>,
    wake: OnceLock<Wake>,
    /// Whether anything may be written, although devices are there.
    alive: OnceLock<Arc<Alive>>,
}

#[derive(Clone, Debug, Default)]
struct State {
    why: Option<EngineError>,
    is_given_up: bool,
    /// When the first attempt failed, since something went through.
    since: Option<Instant>,
    /// Waits begun since the pool was opened: goes up when another attempt has failed.
    waits: u64,
}

impl Default for Suspension {
    fn default() -> Self {
        Self {
            state: watch::Sender::new(State::default()),
            kicks: watch::Sender::new(0),
            is_patient: AtomicBool::new(false),
            lets_reads_fail: AtomicBool::new(false),
            on_change: OnceLock::new(),
            is_told: Mutex::new(false),
            wake: OnceLock::new(),
            alive: OnceLock::new(),
        }
    }
}

impl fmt::Debug for Suspension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.state.borrow(), f)
    }
}

/// What was known before an attempt: see [`Suspension::before`].
#[derive(Clone, Copy, Debug)]
pub struct Before(u64);

/// The syncing task's side.
impl Suspension {
    /// To be called before an attempt, so that a kick during it is not lost.
    #[must_use]
    pub fn before(&self) -> Before {
        Before(*self.kicks.borrow())
    }

    /// An attempt failed for `why`: returns when another one makes sense.
    ///
    /// # Errors
    /// There is nobody who could help (`why`), the pool was given up, or may be another host's.
    pub async fn wait(&self, before: Before, why: EngineError) -> Result<(), EngineError> {
        self.may_write()?;
        if !self.is_patient.load(Relaxed) {
            return Err(why);
        }
        let kicked = async {
            let mut kicks = self.kicks.subscribe();
            // The sender is in `self`.
            drop(kicks.wait_for(|kicks| *kicks != before.0).await);
        };
        tokio::pin!(kicked);
        // A device that answers and refuses, again and again, is not a moment's trouble.
        let left = {
            let mut since = None;
            self.state.send_if_modified(|state| {
                since = Some(*state.since.get_or_insert_with(Instant::now));
                false
            });
            GRACE.saturating_sub(since.map_or(GRACE, |since| since.elapsed()))
        };
        if self.is_on() || left.is_zero() || timeout(left, &mut kicked).await.is_err() {
            self.declare(&why);
            kicked.await;
        }
        if self.state.borrow().is_given_up {
            return Err(EngineError::Suspended("the pool was given up".to_owned()));
        }
        self.may_write()?;
        // A kick during the attempt found nothing that had failed.
        self.ask_for_commit();
        Ok(())
    }

    /// Whether this host may write to the pool, whatever devices would take.
    ///
    /// # Errors
    /// Another one may have it: see [`Alive`].
    pub fn may_write(&self) -> Result<(), EngineError> {
        self.alive.get().and_then(|alive| alive.failure()).map_or(Ok(()), Err)
    }

    /// A transaction group went through: whatever stood in the way does no longer.
    pub fn over(&self) {
        let was = self.state.send_if_modified(|state| {
            state.since = None;
            state.why.take().is_some()
        });
        if was {
            self.tell();
        }
    }

    fn declare(&self, why: &EngineError) {
        let mut is_new = false;
        self.state.send_modify(|state| {
            is_new = state.why.is_none() && !state.is_given_up;
            state.why = Some(why.clone());
            state.waits += 1;
        });
        if is_new {
            self.tell();
        }
    }

    /// Tells what is, not what was changed: who made another change may be here first.
    fn tell(&self) {
        let Some(hear) = self.on_change.get() else { return };
        let mut is_told = self.is_told.lock();
        let why = self.why();
        if why.is_some() != *is_told {
            *is_told = why.is_some();
            hear(why.as_ref());
        }
    }

    /// Nobody may have anything to commit, and whoever waited may be gone.
    fn ask_for_commit(&self) {
        let is_wanted = {
            let state = self.state.borrow();
            state.since.is_some() && !state.is_given_up
        };
        if is_wanted && let Some(wake) = self.wake.get() {
            wake();
        }
    }
}

/// Everybody else's.
impl Suspension {
    /// From here on there is somebody who kicks. `hear` is told when a suspension begins and when it is over; `wake` is how
    /// a commit is asked for; `alive` is asked before anything is tried again.
    pub(crate) fn begin(&self, hear: OnChange, wake: Wake, alive: Arc<Alive>) {
        let _there_is_one_engine = (self.on_change.set(hear), self.wake.set(wake), self.alive.set(alive));
        self.is_patient.store(true, Relaxed);
    }

    /// From here on `alive` is asked before anything is written: the pool is being opened, and another host may see it.
    pub(crate) fn heed(&self, alive: Arc<Alive>) {
        let _there_is_one_engine = self.alive.set(alive);
    }

    /// Whether clients' reads fail for which devices are away, from now on.
    pub(crate) fn let_reads_fail(&self, fail: bool) {
        self.lets_reads_fail.store(fail, Relaxed);
    }

    /// Whether they do. A pool is not suspended for such a read then, as others can be answered.
    pub(crate) fn lets_reads_fail(&self) -> bool {
        self.lets_reads_fail.load(Relaxed)
    }

    /// Whether there is somebody who kicks.
    pub(crate) fn is_patient(&self) -> bool {
        self.is_patient.load(Relaxed)
    }

    /// Why nothing is written, if that is so.
    #[must_use]
    pub fn why(&self) -> Option<EngineError> {
        self.state.borrow().why.clone()
    }

    /// Whether nothing is written.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.state.borrow().why.is_some()
    }

    /// How often an attempt failed for which the pool is, or stayed, suspended.
    pub(crate) fn waits(&self) -> u64 {
        self.state.borrow().waits
    }

    /// Whether the pool was given up.
    #[must_use]
    pub fn is_given_up(&self) -> bool {
        self.state.borrow().is_given_up
    }

    /// Something changed: what failed is to be tried again.
    pub fn kick(&self) {
        self.kicks.send_modify(|kicks| *kicks += 1);
        self.ask_for_commit();
    }

    /// Kicks, and waits until it has become clear what that came to: why it still cannot go on, or that it does.
    pub async fn retry(&self, patience: Duration) -> Option<EngineError> {
        let mut state = self.state.subscribe();
        let waits = state.borrow_and_update().waits;
        self.kick();
        let settled = state.wait_for(|state| state.why.is_none() || state.is_given_up || state.waits > waits);
        drop(timeout(patience, settled).await);
        self.why()
    }

    /// Nobody waits any more: whoever does hears that the pool was given up.
    pub fn give_up(&self) {
        self.state.send_modify(|state| state.is_given_up = true);
        self.kick();
    }

    /// Returns when the pool is suspended, with the reason.
    pub async fn suspended(&self) -> EngineError {
        let mut state = self.state.subscribe();
        match state.wait_for(|state| state.why.is_some()).await {
            Ok(state) => state.why.clone().unwrap_or_else(gone),
            // The sender is in `self`.
            Err(_) => gone(),
        }
    }
}

fn gone() -> EngineError {
    EngineError::Suspended("the pool is gone".to_owned())
}

/// Whether a block could not be had because devices are away or refuse, which may pass.
#[must_use]
pub fn may_pass(error: &BlockError) -> bool {
    matches!(error.kind(), BlockErrorKind::Device | BlockErrorKind::Away)
}

/// The same of whatever failed in a transaction group.
#[must_use]
pub fn may_pass_of(error: &EngineError) -> bool {
    match error {
        EngineError::Read(ReadError::Block(error)) => may_pass(error),
        EngineError::Device(_) | EngineError::Unanswered(_) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{atomic::AtomicU64, mpsc};

    use super::*;

    fn why() -> EngineError {
        EngineError::Device("too few".into())
    }

    fn patient() -> (Arc<Suspension>, Arc<Mutex<Vec<bool>>>) {
        let (suspension, heard): (Arc<Suspension>, Arc<Mutex<Vec<bool>>>) = Default::default();
        let list = Arc::clone(&heard);
        let hear: OnChange = Box::new(move |why| list.lock().push(why.is_some()));
        suspension.begin(hear, Box::new(|| {}), Arc::default());
        (suspension, heard)
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_where_nobody_kicks() {
        let suspension = Suspension::default();
        assert!(suspension.wait(suspension.before(), why()).await.is_err());
        assert!(!suspension.is_on());
    }

    #[tokio::test(start_paused = true)]
    async fn a_moment_is_forgiven_and_a_kick_during_an_attempt_is_not_lost() {
        let (suspension, heard) = patient();
        let before = suspension.before();
        suspension.kick();
        suspension.wait(before, why()).await.unwrap();
        let other = Arc::clone(&suspension);
        let kicker = tokio::spawn(async move {
            tokio::time::sleep(GRACE / 2).await;
            other.kick();
        });
        suspension.wait(suspension.before(), why()).await.unwrap();
        kicker.await.unwrap();
        suspension.over();
        assert!(heard.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn it_goes_on_when_it_is_kicked_and_ends_when_it_is_given_up() {
        let (suspension, heard) = patient();
        let waiter = tokio::spawn({
            let suspension = Arc::clone(&suspension);
            async move {
                for _ in 0..2 {
                    let before = suspension.before();
                    suspension.wait(before, why()).await?;
                }
                suspension.over();
                let before = suspension.before();
                suspension.wait(before, why()).await
            }
        });
        assert!(matches!(suspension.suspended().await, EngineError::Device(_)));
        let minute = Duration::from_secs(60);
        assert!(suspension.retry(minute).await.is_some(), "the second attempt fails too");
        assert!(suspension.retry(minute).await.is_none());
        assert_eq!(*heard.lock(), [true, false]);
        suspension.suspended().await;
        suspension.give_up();
        assert!(waiter.await.unwrap().is_err());
    }

    /// Only a commit says that it is over, and an idle pool makes none: what a read had declared stayed.
    #[tokio::test(start_paused = true)]
    async fn a_commit_is_asked_for_as_long_as_something_has_failed_since_the_last() {
        let (suspension, asked) = (Suspension::default(), Arc::new(AtomicU64::new(0)));
        let count = Arc::clone(&asked);
        let wake: Wake = Box::new(move || {
            count.fetch_add(1, Relaxed);
        });
        suspension.begin(Box::new(|_| {}), wake, Arc::default());
        let before = suspension.before();
        suspension.kick();
        assert_eq!(asked.load(Relaxed), 0, "nothing has failed");
        suspension.wait(before, why()).await.unwrap();
        assert_eq!(asked.load(Relaxed), 1, "a moment is over, too");
        drop(timeout(2 * GRACE, suspension.wait(suspension.before(), why())).await);
        assert!(suspension.is_on());
        suspension.kick();
        assert_eq!(asked.load(Relaxed), 2, "whoever waited is gone");
        suspension.over();
        suspension.kick();
        assert_eq!(asked.load(Relaxed), 2, "it is over");
    }

    /// Who had declared it told so after another one had told that it was over: changes failed, and no clear helped.
    #[test]
    fn what_is_told_last_is_how_it_is() {
        let (suspension, heard) = (Suspension::default(), Arc::new(Mutex::new(Vec::new())));
        let ((begins, begun), (ends, ended)) = (mpsc::channel(), mpsc::channel());
        let (list, ended) = (Arc::clone(&heard), Mutex::new(ended));
        let hear: OnChange = Box::new(move |why| match why {
            Some(_) => {
                begins.send(()).unwrap();
                // In vain, where one is told after the other.
                let _is_over = ended.lock().recv_timeout(Duration::from_millis(200));
                list.lock().push(true);
            }
            None => {
                list.lock().push(false);
                ends.send(()).unwrap();
            }
        });
        suspension.begin(hear, Box::new(|| {}), Arc::default());
        std::thread::scope(|scope| {
            scope.spawn(|| suspension.declare(&why()));
            begun.recv().unwrap();
            suspension.over();
        });
        assert!(!suspension.is_on());
        assert_eq!(*heard.lock(), [true, false]);
    }
}
