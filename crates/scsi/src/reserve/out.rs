//! PERSISTENT RESERVE OUT at a disk: what changes is durable first, then true, then answered.

use bytes::Bytes;

use super::Request;
use crate::{
    nexus::{Nexus, NexusId},
    sense::Sense,
    unit::{LogicalUnit, Refusal},
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
}

impl LogicalUnit {
    /// Carries out one service action.
    pub(crate) async fn reserve_out(
        &self,
        nexus: &Nexus,
        (action, scope, kind): (u8, u8, u8),
        list: &[u8],
    ) -> Result<(), Refusal> {
        let mut kept = self.kept.lock().await;
        let ports = self.service.ports();
        let (next, outcome) = {
            let shared = self.shared();
            // Whoever holds it: the two kinds of reservations do not go together (SPC-2 §5.5.1).
            if shared.reserve6.is_some() {
                return Err(Refusal::Conflict);
            }
            let attached: Vec<NexusId> = shared.nexuses().map(|nexus| nexus.id().clone()).collect();
            let can_keep = self.keeper.is_some();
            let from = nexus.id();
            let request =
                Request { from, action, scope, kind, list, ports: &ports, attached: &attached, can_keep };
            let mut next = shared.reservations.clone();
            let outcome = next.act(&request)?;
            (next, outcome)
        };
        if let Some(keeper) = &self.keeper {
            // What was not readable stays as it is until it is cleared.
            let bytes = if next.unreadable() { kept.bytes.clone() } else { Bytes::from(next.encode()) };
            if bytes != kept.bytes || !kept.is_certain {
                // Said before it begins: whoever waits here may be gone before it ends.
                kept.is_certain = false;
                keeper.store(bytes.clone()).await.map_err(|e| Sense::from_volume(&e, self.block_size))?;
                *kept = Kept { bytes, is_certain: true };
            }
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
            drop(self.exclusive.write().await);
        }
        Ok(())
    }
}
