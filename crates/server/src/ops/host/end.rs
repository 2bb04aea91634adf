//! How pools are closed, and how a daemon comes to its end: no operation is begun any more, those that have begun are
//! waited for as long as they can come to theirs, then all pools are closed at once. Nothing waits for devices that may
//! never answer.

use std::{sync::Arc, time::Duration};

use engine::{
    BoxFuture, EngineError,
    engine::{Ending, Engine},
};
use futures_util::future::join_all;
use tokio::{sync::watch, time::Instant};

use super::{Host, turns::Turn};
use crate::{host::chain, newest::Note, ops::Held};

/// How often a pool that is being closed is asked whether it was suspended meanwhile.
const LOOK: Duration = Duration::from_millis(100);

/// How long operations on pools that are not open are waited for when the daemon ends: they may wait for devices that never
/// answer, and what they have begun is as after a crash, which harms nothing.
const LAST_TURNS: Duration = Duration::from_secs(10);

/// How long the end of a pool that was suspended on the way is waited for.
const LAST_WORDS: Duration = Duration::from_secs(2);

impl Host {
    /// The daemon ends: from now on no operation is begun, and one of many steps ends after the one it is at.
    pub(crate) fn begin_to_end(&self) {
        self.ending.send_replace(true);
    }

    /// Whether the daemon ends.
    pub(crate) fn is_ending(&self) -> bool {
        *self.ending.borrow()
    }

    /// True when the daemon ends.
    pub(crate) fn ending(&self) -> watch::Receiver<bool> {
        self.ending.subscribe()
    }

    /// All turns, but those of operations that wait for a pool that is suspended, or that are still about to bring one after
    /// a while.
    pub(crate) async fn last_turns(&self) -> Vec<Turn> {
        let deadline = Instant::now() + LAST_TURNS;
        let turns: Vec<_> =
            self.turns.lock().iter().map(|(name, turn)| (name.clone(), Arc::clone(turn))).collect();
        let mut taken = Vec::new();
        for (name, turn) in turns {
            let mut until = deadline;
            loop {
                tokio::select! {
                    biased;
                    turn = Arc::clone(&turn).lock_owned() => {
                        taken.push(turn);
                        break;
                    }
                    () = tokio::time::sleep(LOOK) => {}
                }
                let is_hopeless = match self.find(&name) {
                    Some(held) => {
                        // Whoever exports it has still to say so when it is closed.
                        until = Instant::now() + LAST_TURNS;
                        held.suspended().is_some()
                    }
                    None => Instant::now() >= until,
                };
                if is_hopeless {
                    break;
                }
            }
        }
        taken
    }

    /// Ends the engine of a pool and lets go of it.
    ///
    /// # Errors
    /// What was done last could not be written.
    pub(crate) async fn end(&self, held: &Held, ending: Ending) -> Result<(), EngineError> {
        if let Some(watching) = &self.watching {
            watching.warmth.closing(held, ending).await;
        }
        // When it has ended all of them are let go.
        let note = Note::of(&held.view());
        let outcome = match held.engine() {
            Some(engine) if ending == Ending::Close => close(held, engine).await,
            Some(engine) => loop {
                let ended = engine.end(ending).await;
                // Suspended on the way: it is left when it is cleared, unless somebody gives it up.
                let is_held = self.is_open(held.guid());
                if ended.is_ok() || held.suspended().is_none() || !is_held {
                    break ended;
                }
                tokio::time::sleep(LOOK).await;
            },
            None => Ok(()),
        };
        if let (Some(engine), Ending::Close, Ok(())) = (held.engine(), ending, &outcome) {
            let txg = engine.view().uberblock().txg;
            note.at_txg(txg).in_time(self.places.state()).await;
        }
        self.release(held.guid());
        if let Some(watching) = &self.watching {
            watching.observer.closed(held, ending);
        }
        outcome
    }

    /// Closes every pool: what is dirty is written, the pools stay imported.
    ///
    /// # Errors
    /// A sentence for each pool that could not be written.
    pub fn close(&self) -> BoxFuture<'_, Result<(), Vec<String>>> {
        Box::pin(async move {
            let pools = self.all();
            // At once: one whose devices are slow must not keep what was written to the others from theirs.
            let mut ends = Vec::with_capacity(pools.len());
            for held in &pools {
                ends.push(self.end(held, Ending::Close));
            }
            let ended = join_all(ends).await;
            let failures: Vec<String> = pools
                .iter()
                .zip(ended)
                .filter_map(|(held, ended)| {
                    let error = ended.err()?;
                    Some(format!("cannot close '{}': {}", held.name(), chain(&error)))
                })
                .collect();
            if failures.is_empty() { Ok(()) } else { Err(failures) }
        })
    }
}

/// Closes a pool that was opened and is not kept.
pub(crate) async fn give_back(held: &Held) {
    if let Some(engine) = held.engine()
        && let Err(error) = close(held, engine).await
    {
        tracing::warn!(
            pool = held.name(),
            "it was opened, is not wanted, and cannot be closed: {}",
            chain(&error)
        );
    }
}

/// Closes a pool. One that is suspended, or becomes so meanwhile, is given up: a process that is told to end must not
/// wait for a disk that somebody may never bring back.
async fn close(held: &Held, engine: &Engine) -> Result<(), EngineError> {
    let mut closing = None;
    loop {
        if let Some(why) = held.suspended() {
            if let Some(closing) = closing.take() {
                // It hears of the suspension, too, and gives back what it has taken.
                let _in_time = tokio::time::timeout(LAST_WORDS, closing).await;
            }
            engine.abandon().await;
            return Err(EngineError::Suspended(format!("{why}: what was not flushed is lost")));
        }
        tokio::select! {
            biased;
            closed = closing.get_or_insert_with(|| engine.end(Ending::Close)) => {
                closing = None;
                if closed.is_ok() || held.suspended().is_none() {
                    return closed;
                }
            }
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        host::{Places, Settings},
        ops::{Mode, Operation, PoolCreate, Request, run},
        state::State,
    };

    /// Found by reading: the task that closes all pools wrote it down itself, and closed no other one while the state directory
    /// did not answer.
    #[tokio::test]
    async fn pools_are_closed_while_how_new_one_of_them_is_cannot_be_written_down() {
        let dir = tempfile::tempdir().unwrap();
        let places = Places::new(Vec::new(), State::at(dir.path()));
        let host = Arc::new(Host::new(places, Mode::Daemon, Settings::default()));
        let at = |name: &str| dir.path().join(name).display().to_string();
        let ask = async |operation| {
            run(&host, Request { operation, command: None, user: 0 }).await.unwrap();
        };
        for (pool, devices) in
            [("lake", vec!["mirror".to_owned(), at("d0"), at("d1")]), ("tank", vec![at("d2")])]
        {
            let file_size = Some(128 << 20);
            let create = PoolCreate { pool: pool.to_owned(), devices, file_size, ..PoolCreate::default() };
            ask(Operation::PoolCreate(create)).await;
        }
        let (pool, device) = ("lake".to_owned(), at("d1"));
        ask(Operation::DeviceOffline { pool, device, temporary: false, fault: false }).await;
        // Who opens it for reading waits for a writer.
        let kept = host.places().state().file();
        std::fs::remove_file(&kept).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&kept).status().unwrap().success());
        let (ended, has_ended) = std::sync::mpsc::channel();
        let freeing = tokio::task::spawn_blocking(move || {
            let in_time = has_ended.recv_timeout(Duration::from_secs(30)).is_ok();
            // Or the test would not end either.
            drop(std::fs::File::options().read(true).write(true).open(&kept).unwrap());
            in_time
        });
        host.close().await.unwrap();
        assert!(host.all().is_empty());
        let _it_gave_up = ended.send(());
        assert!(freeing.await.unwrap(), "it is waited for a moment");
    }

    /// A daemon whose import waited for devices that did not answer had to be killed, and with it all its other pools.
    #[tokio::test(start_paused = true)]
    async fn whoever_brings_a_pool_that_does_not_come_does_not_keep_the_daemon_from_its_end() {
        let state = tempfile::tempdir().unwrap();
        let places = Places::new(Vec::new(), State::at(state.path()));
        let host = Host::new(places, Mode::Daemon, Settings::default());
        let (hanging, short) = (host.turn("").await, host.turn("tank").await);
        let ending = tokio::time::timeout(2 * LAST_TURNS, host.last_turns());
        let soon = async {
            tokio::time::sleep(LAST_TURNS / 2).await;
            drop(short);
        };
        let (turns, ()) = tokio::join!(ending, soon);
        assert_eq!(turns.expect("it does not wait for ever").len(), 1, "what can be finished is");
        drop(hanging);
    }
}
