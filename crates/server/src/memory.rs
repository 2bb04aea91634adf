//! What is known about a pool without asking its devices: what the last look found out.
//!
//! Most of what `zpool status` tells is in memory anyway: the devices, how they are, the scan. The rest (properties, the
//! error log, how full it is) is read from the pool, and a read can wait for a disk that hangs, or for a pool that is
//! suspended. So reading is a task of its own, one at a time for each pool; an answer waits for it a moment only, and is
//! given with what was known before if that is not enough. When that has become old, it says so.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use pool::{Pool, space::Space, status::LoggedError};
use tokio::{sync::watch, time::Instant};

use crate::{api, view};

/// How long an answer waits for what is being read.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// What takes longer to be read is told to be old. A pool of many volumes on slow disks may well take seconds.
const OVERDUE: Duration = Duration::from_secs(10);

/// When what could not be read is read again, though there is no newer commit: of a pool that is only read there never is.
const AGAIN: Duration = Duration::from_secs(10);

/// What was read from a pool, as of one commit.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    pub(crate) txg: u64,
    pub(crate) space: Option<Space>,
    /// None if it could not be read.
    pub(crate) log: Option<Vec<LoggedError>>,
    pub(crate) lost: Vec<String>,
    pub(crate) lost_bytes: Vec<api::LostBytes>,
    pub(crate) lost_more: u64,
    pub(crate) properties: Vec<api::Property>,
    pub(crate) sync_disabled: Vec<String>,
    /// What could not be read, a sentence each.
    pub(crate) problems: Vec<String>,
    /// When it was read.
    pub(crate) at: Option<Instant>,
}

impl Known {
    /// Whether something of it could not be read, and may be readable by now.
    fn is_worth_another_try(&self) -> bool {
        !self.problems.is_empty() && self.at.is_some_and(|at| at.elapsed() >= AGAIN)
    }
}

/// What is known about one pool.
#[derive(Debug)]
pub(crate) struct Memory {
    known: watch::Sender<Option<Arc<Known>>>,
    /// Since when somebody reads.
    reading: Mutex<Option<Instant>>,
}

impl Default for Memory {
    fn default() -> Self {
        Self { known: watch::Sender::new(None), reading: Mutex::default() }
    }
}

impl Memory {
    /// Begins to read what is new in `pool`, unless that is known or somebody is at it. Since when they are.
    pub(crate) fn look(self: &Arc<Self>, pool: &Arc<Pool>) -> Option<Instant> {
        let txg = pool.uberblock().txg;
        let is_enough = |known: &Arc<Known>| known.txg >= txg && !known.is_worth_another_try();
        if self.known.borrow().as_ref().is_some_and(is_enough) {
            return None;
        }
        let pool = Arc::clone(pool);
        Some(self.read(async move { Box::pin(view::read(&pool)).await }))
    }

    /// Begins to read unless somebody is at it. Since when they are.
    pub(crate) fn read(self: &Arc<Self>, known: impl Future<Output = Known> + Send + 'static) -> Instant {
        let mut reading = self.reading.lock();
        *reading.get_or_insert_with(|| {
            let memory = Arc::clone(self);
            tokio::spawn(async move {
                let reader = Reader(Arc::clone(&memory));
                let mut known = known.await;
                known.at = Some(Instant::now());
                drop(reader);
                memory.known.send_replace(Some(Arc::new(known)));
            });
            Instant::now()
        })
    }

    /// What is known of `pool`, after a moment for what is not. `is_mute`: there is no use in waiting.
    pub(crate) async fn recall(self: &Arc<Self>, pool: &Arc<Pool>, is_mute: bool) -> Arc<Known> {
        let mut news = self.known.subscribe();
        let mut is_overdue = false;
        // What is being read may be of an earlier commit than the one asked about: then once more.
        while let Some(since) = self.look(pool).filter(|_| !is_mute) {
            if tokio::time::timeout_at(since + PATIENCE, news.changed()).await.is_err() {
                is_overdue = since.elapsed() >= OVERDUE;
                break;
            }
        }
        let known = self.known.borrow().clone();
        if let Some(old) = known.as_ref().filter(|known| is_overdue && known.txg < pool.uberblock().txg) {
            let problem = format!(
                "'{}': properties, space and errors are as of transaction group {}: its devices do not answer",
                pool.name(),
                old.txg
            );
            let mut old = Known::clone(old);
            old.problems.push(problem);
            return Arc::new(old);
        }
        known.unwrap_or_else(|| {
            let problem = format!(
                "'{}': properties, space and errors are not known: its devices have not answered yet",
                pool.name()
            );
            Arc::new(Known { problems: vec![problem], ..Known::default() })
        })
    }
}

/// Who reads. When it is gone nobody does, whatever it ended by.
struct Reader(Arc<Memory>);

impl Drop for Reader {
    fn drop(&mut self) {
        *self.0.reading.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::{
        host::{Places, Settings},
        ops::Held,
        state::State,
    };

    /// A defect met once was the last look at the pool: what was known before was told as if it were new, for ever.
    #[tokio::test]
    async fn a_look_that_ends_abnormally_is_not_the_last() {
        let memory = Arc::new(Memory::default());
        let mut news = memory.known.subscribe();
        memory.read(async { panic!("on purpose") });
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        assert_eq!(*memory.reading.lock(), None);
        memory.read(async { Known { txg: 7, ..Known::default() } });
        news.changed().await.unwrap();
        assert_eq!(news.borrow().as_ref().map(|known| known.txg), Some(7));
    }

    /// The number of the newest transaction group stood beside space and errors of an old one.
    #[tokio::test]
    async fn what_is_old_because_devices_do_not_answer_is_told_to_be_old() {
        let (dir, kept) = (fixtures::pool("single").copy(), tempfile::tempdir().unwrap());
        let places = Places::new(vec![dir.path().to_owned()], State::at(kept.path()));
        let pool = places.open("psingle", &Settings::default()).await.unwrap().pool;
        tokio::time::pause();
        let memory = Arc::new(Memory::default());
        memory.known.send_replace(Some(Arc::new(Known { txg: 3, ..Known::default() })));
        memory.read(std::future::pending());
        let problems = async || memory.recall(&pool, false).await.problems.clone();
        assert_eq!(problems().await, Vec::<String>::new(), "it is only slow");
        tokio::time::sleep(OVERDUE).await;
        let said = problems().await;
        assert!(said.len() == 1 && said[0].contains("as of transaction group 3"), "{said:?}");
        memory.known.send_replace(Some(Arc::new(Known { txg: pool.uberblock().txg, ..Known::default() })));
        assert_eq!(problems().await, Vec::<String>::new());
    }

    /// Of a pool that is only read a moment in which its disk failed was told for as long as it was open: no commit comes that
    /// would be looked at.
    #[tokio::test]
    async fn what_could_not_be_read_is_read_again_without_a_newer_commit() {
        let (dir, kept) = (fixtures::pool("single").copy(), tempfile::tempdir().unwrap());
        let places = Places::new(vec![dir.path().to_owned()], State::at(kept.path()));
        let pool = places.open("psingle", &Settings::default()).await.unwrap().pool;
        tokio::time::pause();
        let (txg, memory) = (pool.uberblock().txg, Arc::new(Memory::default()));
        let mut news = memory.known.subscribe();
        let problems = vec!["cannot read the space maps".to_owned()];
        memory.read(async move { Known { txg, problems, ..Known::default() } });
        news.changed().await.unwrap();
        assert_eq!(memory.look(&pool), None, "not at every question");
        tokio::time::sleep(AGAIN).await;
        // Its file is read now: that takes real time.
        tokio::time::resume();
        assert!(memory.look(&pool).is_some());
        news.changed().await.unwrap();
        let known = memory.recall(&pool, false).await;
        assert!(known.problems.is_empty() && known.log.is_some() && known.space.is_some(), "{known:?}");
    }

    /// A pool of which nothing had been read yet was told to have lost nothing.
    #[tokio::test]
    async fn what_was_not_read_so_far_is_not_told_as_nothing() {
        let (dir, kept) = (fixtures::pool("single").copy(), tempfile::tempdir().unwrap());
        let places = Places::new(vec![dir.path().to_owned()], State::at(kept.path()));
        let pool = places.open("psingle", &Settings::default()).await.unwrap().pool;
        let txg = pool.uberblock().txg;
        let held = Held::reading(pool, "it is to be looked at");
        let (answer, slow) = oneshot::channel();
        held.memory().read(async move { slow.await.unwrap() });
        // It was waited for already.
        *held.memory().reading.lock() = Some(Instant::now() - PATIENCE);
        let shown = view::held(&held).await;
        assert!(shown.errors_unread && shown.known_txg.is_none() && shown.is_open(), "{shown:?}");
        let mut news = held.memory().known.subscribe();
        assert!(answer.send(Known { txg, log: Some(Vec::new()), ..Known::default() }).is_ok());
        news.changed().await.unwrap();
        let shown = view::held(&held).await;
        assert_eq!((shown.errors_unread, shown.known_txg, shown.errors), (false, Some(txg), 0));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_does_not_wait_for_devices_that_hang() {
        let memory = Arc::new(Memory::default());
        let start = Instant::now();
        // As if a disk hung since then: whoever asks first waits a moment, later ones not at all.
        *memory.reading.lock() = Some(start);
        let mut news = memory.known.subscribe();
        assert!(tokio::time::timeout_at(start + PATIENCE, news.changed()).await.is_err());
        assert_eq!(start.elapsed(), PATIENCE);
        assert!(tokio::time::timeout_at(start + PATIENCE, news.changed()).await.is_err());
        assert_eq!(start.elapsed(), PATIENCE);
    }
}
