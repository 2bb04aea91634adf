//! PERSISTENT RESERVE OUT at a disk: what changes is durable first, then true, then answered.
//!
//! Each waits for the one before, for as long as a transaction group takes, and looks again when it has its turn: a reset, a
//! preemption or who takes the disk away may have ended it meanwhile.
//!
//! What is kept is the volume's. It may be offered anew while this is being stored, by a unit that has loaded what was kept
//! before: then it is not done, and that unit is not certain of what is kept any more.

use bytes::Bytes;

use super::Request;
use crate::{
    nexus::{Nexus, NexusId},
    sense::Sense,
    unit::{Job, LogicalUnit, Refusal},
};

/// What the keeper has, as far as is known.
#[derive(Debug)]
pub(crate) struct Kept {
    bytes: Bytes,
    /// Not if a store failed or was given up: it may have left the old bytes or the new ones.
    is_certain: bool,
}

impl Kept {
    /// As the keeper gave it.
    pub(crate) fn new(bytes: Option<Bytes>) -> Self {
        Self { bytes: bytes.unwrap_or_default(), is_certain: true }
    }

    /// Another unit of the same volume may have stored something since it was loaded.
    pub(crate) fn doubt(&mut self) {
        self.is_certain = false;
    }
}

impl LogicalUnit {
    /// Whether somebody stores what is to be kept for its volume, or did, and nobody knows what came of it.
    pub(crate) fn may_be_storing(&self) -> bool {
        self.kept.try_lock().map_or(true, |kept| !kept.is_certain)
    }

    /// Carries out one service action.
    pub(crate) async fn reserve_out(
        &self,
        nexus: &Nexus,
        job: Job,
        (action, scope, kind): (u8, u8, u8),
        list: &[u8],
    ) -> Result<(), Refusal> {
        let mut kept = self.kept.lock().await;
        if job.generation != nexus.generation() {
            return Err(Refusal::Cleared);
        }
        self.admit(nexus, &job.command, &self.geometry())?;
        let ports = self.service.ports();
        let (next, outcome) = {
            let (mut next, attached) = {
                let shared = self.shared();
                // Whoever holds it: the two kinds of reservations do not go together (SPC-2 §5.5.1).
                if shared.reserve6.is_some() {
                    return Err(Refusal::Conflict);
                }
                let attached: Vec<NexusId> = shared.nexuses().map(|nexus| nexus.id().clone()).collect();
                (shared.reservations.clone(), attached)
            };
            // Without the lock that every command may need: nobody else makes reservations before this is done.
            let can_keep = self.keeper.is_some();
            let from = nexus.id();
            let request =
                Request { from, action, scope, kind, list, ports: &ports, attached: &attached, can_keep };
            let outcome = next.act(&request)?;
            (next, outcome)
        };
        if let Some(keeper) = &self.keeper {
            // What was not readable stays as it is until it is cleared.
            let bytes = if next.unreadable() { kept.bytes.clone() } else { Bytes::from(next.encode()) };
            if bytes != kept.bytes || !kept.is_certain {
                // Said before it begins: whoever waits here may be gone before it ends.
                kept.is_certain = false;
                let stored = keeper.store(bytes.clone()).await;
                stored.map_err(|e| Sense::from_volume(&e, self.block_size, 0..0))?;
                *kept = Kept { bytes, is_certain: true };
            }
        }
        if self.is_retired()
            && let Some(successor) = self.service.successor(self)
        {
            // Whichever of the two has stored last.
            successor.kept.lock().await.doubt();
            return Err(Sense::LUN_NOT_SUPPORTED.into());
        }
        {
            let mut shared = self.shared();
            shared.reservations = next;
            for (id, attention) in &outcome.attentions {
                shared.raise(*attention, |other| other == id);
            }
            shared.nexuses().filter(|n| outcome.abort.contains(n.id())).for_each(|nexus| nexus.clear());
            self.limit(&shared);
        }
        if !outcome.abort.is_empty() {
            self.copies.cancel(|whose| outcome.abort.contains(whose));
            // Whoever was preempted has no write on its way any more once this is granted.
            self.exclusive.drained().await;
        }
        Ok(())
    }
}
