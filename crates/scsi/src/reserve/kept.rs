//! Reservations as bytes that survive power loss (APTPL, SPC-4 §5.13.5).
//!
//! ```text
//!   "MPPR" 4 │ version 1 │ type 1 (0: not reserved) │ holder 2 │ registrants 2 │ { key 8 │ port 2 │ name length 2 │ name }…
//! ```
//!
//! Big-endian. The holder is an index into the registrants, which a reader need not trust: whatever does not decode to
//! the last byte is refused whole. Integrity of the bytes is the keeper's (a pool checksums all it stores).

use super::{Held, Kind, Registrant, Reservations};
use crate::nexus::NexusId;

const MAGIC: &[u8; 4] = b"MPPR";
const VERSION: u8 = 1;

impl Reservations {
    /// The bytes to keep: none unless the state is to outlive power loss.
    pub(crate) fn encode(&self) -> Vec<u8> {
        if !self.persistent || self.registrants.is_empty() {
            return Vec::new();
        }
        let mut out = MAGIC.to_vec();
        let holder =
            self.held.as_ref().and_then(|held| self.registrants.iter().position(|r| r.id == held.by));
        // An "all registrants" reservation outlives whoever made it: then any of them stands for it.
        let holder = holder.and_then(|at| u16::try_from(at).ok()).unwrap_or(0);
        out.extend([VERSION, self.held.as_ref().map_or(0, |held| held.kind as u8)]);
        out.extend(holder.to_be_bytes());
        out.extend(u16::try_from(self.registrants.len()).unwrap_or(0).to_be_bytes());
        for registrant in &self.registrants {
            let name = registrant.id.initiator.as_bytes();
            out.extend(registrant.key.to_be_bytes());
            out.extend(registrant.id.port.to_be_bytes());
            out.extend(u16::try_from(name.len()).unwrap_or(0).to_be_bytes());
            out.extend(name);
        }
        out
    }

    /// The state after a power cut. What cannot be read fences everybody until somebody clears it: to let everybody
    /// in could let a dead node write.
    pub(crate) fn restore(kept: Option<&[u8]>) -> Self {
        match kept {
            None | Some([]) => Self::default(),
            Some(bytes) => {
                Self::decode(bytes).unwrap_or_else(|| Self { unreadable: true, ..Self::default() })
            }
        }
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(MAGIC)?.strip_prefix(&[VERSION])?;
        let (&[kind, a, b, c, d], mut rest) = rest.split_first_chunk::<5>()?;
        let count = u16::from_be_bytes([c, d]);
        let mut registrants: Vec<Registrant> = Vec::new();
        for _ in 0..count {
            let (key, more) = rest.split_first_chunk::<8>()?;
            let (&[p, q, l, m], more) = more.split_first_chunk::<4>()?;
            let (name, more) = more.split_at_checked(usize::from(u16::from_be_bytes([l, m])))?;
            let initiator = str::from_utf8(name).ok()?.into();
            let id = NexusId { initiator, port: u16::from_be_bytes([p, q]) };
            registrants.push(Registrant { id, key: u64::from_be_bytes(*key) });
            rest = more;
        }
        let holder = registrants.get(usize::from(u16::from_be_bytes([a, b])));
        let held = match kind {
            0 => None,
            kind => Some(Held { by: holder?.id.clone(), kind: Kind::parse(kind)? }),
        };
        let whole = rest.is_empty() && !registrants.is_empty();
        // The generation starts again at power on.
        whole.then_some(Self { generation: 0, registrants, held, persistent: true, unreadable: false })
    }

    /// Whether what was kept could not be read.
    pub(crate) fn unreadable(&self) -> bool {
        self.unreadable
    }
}
