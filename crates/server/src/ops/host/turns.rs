//! One operation at a time for each pool: its turn. And one command at a time, where there is no daemon.

use std::{sync::Arc, time::Duration};

use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep},
};

use super::{Host, Mode};
use crate::{
    opening::IN_USE_PATIENCE,
    ops::Failure,
    state::{CommandTurn, StateError},
};

/// How long a command waits at the most while other commands have a pool one after the other.
const OTHERS_PATIENCE: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(20);

/// Who has it is the only one to change a pool.
pub(super) type Turn = tokio::sync::OwnedMutexGuard<()>;

/// A pool that is open and waits for its turn to be kept, as long as this lives.
pub(crate) struct Arrival<'a> {
    host: &'a Host,
    guid: u64,
}

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        self.host.arriving.lock().remove(&self.guid);
    }
}

impl Host {
    /// Says that this pool was opened by itself and waits for its turn: whoever has the turn and asks for its devices waits for
    /// them in vain.
    pub(crate) fn arrival(&self, guid: u64) -> Arrival<'_> {
        self.arriving.lock().insert(guid);
        Arrival { host: self, guid }
    }

    /// Whether it does.
    pub(crate) fn is_arriving(&self, guid: u64) -> bool {
        self.arriving.lock().contains(&guid)
    }

    /// The turn of operations on the pool of this name or guid: one that is open or imported here has one turn, however it is
    /// called.
    pub(crate) async fn turn(&self, pool: &str) -> Turn {
        let pool = match (self.find(pool), pool.parse::<u64>()) {
            (Some(held), _) => held.name().to_owned(),
            (None, Ok(guid)) => self.name_of(guid).await.unwrap_or_else(|| pool.to_owned()),
            (None, Err(_)) => pool.to_owned(),
        };
        let turn = {
            let mut turns = self.turns.lock();
            // Names that nobody waits for any more.
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(turns.entry(pool).or_default())
        };
        turn.lock_owned().await
    }

    /// The name of a pool that is imported here. The daemon may be about to open it by itself, under that.
    async fn name_of(&self, guid: u64) -> Option<String> {
        let state = self.places.state().clone();
        let known = spawn_blocking(move || state.known(guid)).await.ok().flatten();
        known.map(|known| known.name)
    }

    /// The turn of this command with a pool among those beside it, and whether others had theirs before. Each would get some of
    /// the devices, and none all of them. None if this is no command, or no such turn can be had for want of a place to say so:
    /// then the locks of the devices decide alone.
    ///
    /// # Errors
    /// Another command has it and does not end, or too many do one after the other.
    pub(crate) async fn turn_among_commands(
        &self,
        guid: u64,
    ) -> Result<(Option<Arc<CommandTurn>>, bool), StateError> {
        if self.mode != Mode::Command {
            return Ok((None, false));
        }
        let (begun, mut has_waited) = (Instant::now(), false);
        let (mut deadline, mut last): (_, Option<String>) = (begun + IN_USE_PATIENCE, None);
        loop {
            let taken = match self.places.state().turn(guid) {
                Ok(turn) => return Ok((Some(Arc::new(turn)), has_waited)),
                Err(taken @ StateError::Taken { .. }) => taken,
                Err(_) => return Ok((None, has_waited)),
            };
            let now = Instant::now();
            if let StateError::Taken { process: Some(process) } = &taken
                && last.as_ref() != Some(process)
            {
                last = Some(process.clone());
                deadline = (now + IN_USE_PATIENCE).min(begun + OTHERS_PATIENCE);
            }
            if now >= deadline {
                return Err(taken);
            }
            has_waited = true;
            sleep(LOOK).await;
        }
    }

    /// The turn of an operation that is about to begin; refused when the daemon ends before it comes.
    pub(crate) async fn next_turn(&self, pool: &str) -> Result<Turn, Failure> {
        let mut ending = self.ending();
        tokio::select! {
            biased;
            // The sender is ours: it is not gone.
            _ends = ending.wait_for(|is_so| *is_so) => Err(Failure::ending()),
            turn = self.turn(pool) => Ok(turn),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        host::{Places, Settings},
        ops::{Held, Mode},
        state::State,
    };

    /// Two operations on one pool ran at once if one of them called it by its guid.
    #[tokio::test]
    async fn a_pool_has_one_turn_whatever_it_is_called() {
        let (dir, state) = (fixtures::pool("single").copy(), tempfile::tempdir().unwrap());
        let places = Places::new(vec![dir.path().to_owned()], State::at(state.path()));
        let opened = places.open("psingle", &Settings::default()).await.unwrap();
        let host = Host::new(places, Mode::Command, Settings::default());
        let held = host.keep(Held::reading(opened.pool, "it is to be looked at"));
        let turn = host.turn(held.name()).await;
        let guid = held.guid().to_string();
        let second = tokio::time::timeout(Duration::from_millis(50), host.turn(&guid)).await;
        assert!(second.is_err(), "it waits");
        drop(turn);
        drop(host.turn(&guid).await);
    }
}
