//! How many files and sockets the daemon may have open, and how many connections that leaves room for.
//!
//! ```text
//!   0 ─────────────────────────────────── limit
//!   │ connections: iSCSI 2 : NBD 1        │ kept: devices, control socket, logs, pools yet to come
//! ```
//!
//! A session usually begins with room for 1,024, which is a promise to programs that use `select`, and may have hundreds of
//! times that for the asking. Without asking, one host with a thousand connections takes the last descriptor, and then
//! nobody gets in any more: not even the administrator, whose control socket is one of them. So the limit is raised as far
//! as it goes, a part is kept for what must always work, and connections share the rest: who comes too late is refused, and
//! the others never notice.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What is asked for where there is no end to it.
const MOST: u64 = 1 << 20;
/// What devices, the control socket and logs have for themselves at least and at most; in between a quarter of everything.
/// A device takes one or two.
const KEPT: (u64, u64) = (256, 4096);
/// Connections of each kind are admitted however little there is.
const LEAST: usize = 8;

/// How many connections there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Connections {
    pub(crate) iscsi: usize,
    pub(crate) nbd: usize,
    /// NBD comes in by a Unix socket as well: those have places of their own, three quarters as many at most.
    pub(crate) local: bool,
}

impl Connections {
    /// As many as is wished, or what `descriptors` have room for; then both kinds give up the same share.
    fn within(self, descriptors: u64) -> Self {
        let kept = (descriptors / 4).clamp(KEPT.0, KEPT.1);
        let room = descriptors.saturating_sub(kept);
        let local = if self.local { self.nbd as u64 * 3 / 4 } else { 0 };
        let wished = (self.iscsi as u64).saturating_add(self.nbd as u64).saturating_add(local);
        let share = |of: usize| match room < wished {
            true => usize::try_from(room.saturating_mul(of as u64) / wished).unwrap_or(of).max(LEAST).min(of),
            false => of,
        };
        Self { iscsi: share(self.iscsi), nbd: share(self.nbd), ..self }
    }
}

/// Raises the limit of the process, and says how many of these connections there is room for.
pub(crate) fn make_room(wished: Connections) -> Connections {
    let descriptors = raise();
    let admitted = wished.within(descriptors);
    if admitted != wished {
        tracing::warn!(
            target: "millpond::limits",
            "at most {descriptors} files can be open, so {} connections over iSCSI are admitted in place of {}, and {} over NBD in place \
             of {}: raise the hard limit ('ulimit -Hn', LimitNOFILE= of systemd)",
            admitted.iscsi,
            wished.iscsi,
            admitted.nbd,
            wished.nbd,
        );
    }
    admitted
}

/// The soft limit becomes the hard one; what it is then.
fn raise() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.unwrap_or(MOST);
    if current.is_none_or(|current| current >= wanted) {
        return current.unwrap_or(MOST);
    }
    match setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }) {
        Ok(()) => wanted,
        Err(error) => {
            tracing::warn!(target: "millpond::limits", %error, "the limit of open files cannot be raised");
            current.unwrap_or(MOST)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_never_have_what_devices_and_the_control_socket_need() {
        for local in [false, true] {
            let wished = Connections { iscsi: 2048, nbd: 1024, local };
            for descriptors in 1..20_000_u64 {
                let Connections { iscsi, nbd, .. } = wished.within(descriptors);
                // As `peers::Crowd` lets them in.
                let by_socket = if local { (nbd * 3).div_ceil(4).min(256) } else { 0 };
                let all = (iscsi + nbd + by_socket) as u64;
                assert!(iscsi >= LEAST && nbd >= LEAST, "{descriptors}: somebody gets in");
                assert!(
                    all + KEPT.0 <= descriptors + 1 || (iscsi, nbd) == (LEAST, LEAST) || descriptors < 290,
                    "{descriptors}"
                );
            }
            assert_eq!(wished.within(MOST), wished);
        }
        let wished = Connections { iscsi: 2048, nbd: 1024, local: false };
        assert_eq!(wished.within(1024), Connections { iscsi: 512, nbd: 256, local: false });
        assert_eq!(wished.within(4096), wished);
        let few = Connections { iscsi: 3, nbd: 1, local: true };
        assert_eq!(few.within(1), few, "never more than is wished");
    }
}
