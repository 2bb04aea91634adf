//! Who is logged in: each session has a place, and the next login of the same name gets it only when the old session is gone.
//!
//! A session is known by initiator name, ISID, target and portal group (RFC 7143 §4.4.3). When the same one logs in
//! again the old one is told to end, and the new login is answered only after it has: no write of a
//! dead session can land late (`Claim`, §6.3.5). Of several that wait for that only the newest is meant by its host.
//!
//! The places are part of the registry, and under its lock: whether the target is still there, and still lets in who asked,
//! is looked at in the moment in which the place is taken.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, atomic::AtomicU64},
};

use tokio::{sync::watch, time::Instant};

use super::{Portal, Registry, Target, Targets};
use crate::{access::Auth, tally::Tallies};

/// What a connection did so far.
#[derive(Debug, Default)]
pub struct Counters {
    /// SCSI commands taken.
    pub commands: AtomicU64,
    /// Bytes of Data-In.
    pub bytes_out: AtomicU64,
    /// Bytes of Data-Out.
    pub bytes_in: AtomicU64,
    /// By disk.
    pub luns: Tallies,
}

/// A logged-in session, for listings.
#[derive(Clone, Debug)]
pub struct SessionInfo {
    /// Initiator name.
    pub initiator: String,
    /// Where it came from.
    pub peer: SocketAddr,
    /// Target name; empty for a discovery session.
    pub target: String,
    /// The portal it came in by.
    pub portal: Portal,
    /// The initiator's part of the session's identity.
    pub isid: [u8; 6],
    /// When it logged in.
    pub since: Instant,
    /// The CHAP name it proved, if any.
    pub user: Option<String>,
    pub(crate) proven: Option<Auth>,
    /// Its counters, live.
    pub counters: Arc<Counters>,
}

impl SessionInfo {
    /// Whether its target would let it in anew.
    fn may_enter(&self, target: &Target) -> bool {
        target.lets_in(&self.initiator, self.peer.ip(), self.portal.group, self.proven.as_ref())
    }
}

/// What identifies a session.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SessionKey {
    pub(crate) initiator: String,
    pub(crate) isid: [u8; 6],
    pub(crate) target: String,
    pub(crate) group: u16,
}

impl SessionKey {
    /// The initiator port's name (SPC-4 §7.6.4.6).
    pub(crate) fn port(&self) -> String {
        let [a, b, c, d, e, f] = self.isid;
        format!("{},i,0x{a:02x}{b:02x}{c:02x}{d:02x}{e:02x}{f:02x}", self.initiator)
    }
}

/// What other connections may ask of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Go on.
    Serve,
    /// End now: a new session takes your place, or a cold reset.
    End,
}

/// A session's place in the registry, given up when dropped.
pub(crate) struct Claim {
    targets: Arc<Targets>,
    key: SessionKey,
    pub(crate) tsih: u16,
    pub(crate) orders: watch::Receiver<Order>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Whoever waits for the place hears that its entry has gone.
        self.targets.registry().seats.taken.remove(&self.key);
    }
}

/// The places, which are part of the registry.
#[derive(Default)]
pub(super) struct Seats {
    taken: BTreeMap<SessionKey, Entry>,
    last_tsih: u16,
}

impl Seats {
    /// Who is logged in.
    pub(super) fn infos(&self) -> Vec<SessionInfo> {
        self.taken.values().map(|entry| entry.info.clone()).collect()
    }

    /// Tells those sessions to end. How many they are.
    pub(super) fn end(&self, which: impl Fn(&SessionInfo) -> bool) -> usize {
        let end = |entry: &&Entry| {
            entry.orders.send_replace(Order::End);
        };
        self.taken.values().filter(|entry| which(&entry.info)).inspect(end).count()
    }

    /// A session handle that is not in use and not 0. Sessions are bounded far below 65,535.
    fn free_tsih(&mut self) -> u16 {
        loop {
            self.last_tsih = self.last_tsih.wrapping_add(1);
            let taken = self.taken.values().any(|entry| entry.tsih == self.last_tsih);
            if self.last_tsih != 0 && !taken {
                return self.last_tsih;
            }
        }
    }
}

struct Entry {
    tsih: u16,
    info: SessionInfo,
    orders: watch::Sender<Order>,
    /// Says to the login that waits for this place that a newer one does; gone when the place is free.
    heirs: watch::Sender<()>,
}

impl Targets {
    /// Who is logged in.
    pub fn sessions(&self) -> Vec<SessionInfo> {
        self.registry().seats.infos()
    }

    /// Ends the sessions of a target that it would not let in any more. How many those were.
    pub fn enforce(&self, target: &Target) -> usize {
        self.registry().seats.end(|info| info.target == target.iqn() && !info.may_enter(target))
    }

    /// TARGET COLD RESET: every session of the target ends.
    pub(crate) fn end_sessions(&self, iqn: &str) {
        self.registry().seats.end(|info| info.target == iqn);
    }

    /// Whether a session with that key and handle is logged in.
    pub(crate) fn has_session(&self, key: &SessionKey, tsih: u16) -> bool {
        self.registry().seats.taken.get(key).is_some_and(|entry| entry.tsih == tsih)
    }

    /// Takes the place of `key` for a session with `asked`, or for a discovery; ends the session that has it and waits until
    /// it is gone. `None` if another login of that name came meanwhile: hosts give up one that is not answered for some seconds
    /// and begin the next, and the one that they gave up must not end the session of that.
    pub(crate) async fn claim(
        self: &Arc<Self>,
        key: SessionKey,
        info: SessionInfo,
        asked: Option<&Arc<Target>>,
    ) -> Option<Claim> {
        let mut newer = {
            let mut registry = self.registry();
            match registry.seats.taken.get(&key) {
                None => return Some(self.seat(&mut registry, key, info, asked)),
                Some(entry) => {
                    entry.orders.send_replace(Order::End);
                    entry.heirs.send_replace(());
                    entry.heirs.subscribe()
                }
            }
        };
        // An error means that the entry has gone.
        if newer.changed().await.is_ok() {
            return None;
        }
        let mut registry = self.registry();
        // Whoever was faster came later.
        let is_taken = registry.seats.taken.contains_key(&key);
        (!is_taken).then(|| self.seat(&mut registry, key, info, asked))
    }

    /// Takes a place that is free.
    fn seat(
        self: &Arc<Self>,
        registry: &mut Registry,
        key: SessionKey,
        info: SessionInfo,
        asked: Option<&Arc<Target>>,
    ) -> Claim {
        let tsih = registry.seats.free_tsih();
        // Who may log in may have changed since this one was asked who it is, and the target may be another of the same
        // name: that of a pool which was imported again.
        let target = registry.targets.get(&info.target);
        let is_in = asked.is_none_or(|asked| {
            target.is_some_and(|target| {
                Arc::ptr_eq(target, asked) && !target.is_shut() && info.may_enter(target)
            })
        });
        let order = if is_in { Order::Serve } else { Order::End };
        let (orders, receiver) = watch::channel(order);
        registry.seats.taken.insert(key.clone(), Entry { tsih, info, orders, heirs: watch::Sender::new(()) });
        Claim { targets: Arc::clone(self), key, tsih, orders: receiver }
    }
}

#[cfg(test)]
mod tests {
    use std::{net::IpAddr, pin::pin};

    use block::MemVolume;
    use futures_util::FutureExt as _;
    use scsi::Neighbours as _;

    use super::{
        super::{Config, Reach},
        *,
    };

    const NAME: &str = "iqn.2026-11.io.millpond:tank:vm";

    /// Who may log in there.
    fn someone() -> (SessionKey, SessionInfo) {
        let address = SocketAddr::from(([127, 0, 0, 1], 3260));
        let key = SessionKey { initiator: "iqn.test".into(), isid: [0; 6], target: NAME.into(), group: 1 };
        let info = SessionInfo {
            initiator: key.initiator.clone(),
            peer: address,
            target: NAME.into(),
            portal: Portal { address, group: 1 },
            isid: key.isid,
            since: Instant::now(),
            user: None,
            proven: None,
            counters: Arc::default(),
        };
        (key, info)
    }

    /// It went on, and wrote to a disk whose content was being replaced.
    #[tokio::test]
    async fn a_login_that_was_under_way_when_its_target_was_shut_is_no_session() {
        let targets = Targets::new(Config::default());
        let target = targets.add(NAME, Arc::new(MemVolume::new("tank/vm", 1 << 20, 8192))).unwrap();
        let unit = target.unit(0).unwrap();
        let (gate, peer) = (Arc::clone(&targets), IpAddr::from([127, 0, 0, 1]));
        let reach = Reach { targets: gate, initiator: "iqn.other".into(), peer, proven: None, group: 1 };
        let (key, info) = someone();
        let (shut, again) = (target.shut(), target.shut());
        for (held, order) in [(Some(shut), Order::End), (Some(again), Order::End), (None, Order::Serve)] {
            let claim = targets.claim(key.clone(), info.clone(), Some(&target)).await.unwrap();
            assert_eq!(*claim.orders.borrow(), order);
            assert_eq!(reach.unit(&unit.naa()).is_some(), order == Order::Serve, "in a copy");
            drop(held);
        }
    }

    /// It became a session without disks that nobody ended.
    #[tokio::test]
    async fn a_login_that_outlasts_its_target_is_no_session_with_the_next_of_that_name() {
        let targets = Targets::new(Config::default());
        let add = || targets.add(NAME, Arc::new(MemVolume::new("tank/vm", 1 << 20, 8192))).unwrap();
        let (key, info) = someone();
        let first = add();
        let claim = targets.claim(key.clone(), info.clone(), Some(&first)).await.unwrap();
        assert_eq!(*claim.orders.borrow(), Order::Serve);
        drop(claim);
        assert!(targets.remove(NAME));
        let second = add();
        for (asked, order) in [(&first, Order::End), (&second, Order::Serve)] {
            let claim = targets.claim(key.clone(), info.clone(), Some(asked)).await.unwrap();
            assert_eq!(*claim.orders.borrow(), order);
        }
    }

    /// The old session had ended at last, its host was in again, and milliseconds later out: a login that it had given up long
    /// ago ended that session.
    #[tokio::test]
    async fn a_login_that_waited_ends_no_session_of_a_newer_one() {
        let targets = Targets::new(Config::default());
        let (key, info) = someone();
        let claim = || targets.claim(key.clone(), info.clone(), None);
        let first = claim().await.unwrap();
        let mut oldest = pin!(claim());
        let mut older = pin!(claim());
        let mut newest = pin!(claim());
        assert!(oldest.as_mut().now_or_never().is_none());
        assert_eq!(*first.orders.borrow(), Order::End);
        assert!(older.as_mut().now_or_never().is_none());
        assert!(matches!(oldest.as_mut().now_or_never(), Some(None)), "at once, whoever still has the place");
        assert!(newest.as_mut().now_or_never().is_none());
        drop(first);
        let second = newest.as_mut().now_or_never().flatten().expect("the place is free");
        assert!(matches!(older.as_mut().now_or_never(), Some(None)));
        assert_eq!(*second.orders.borrow(), Order::Serve);
        // One that comes just when the place is free, before the one that waits for that has heard of it.
        let mut waits = pin!(claim());
        assert!(waits.as_mut().now_or_never().is_none());
        drop(second);
        let third = claim().await.unwrap();
        assert!(matches!(waits.as_mut().now_or_never(), Some(None)));
        assert_eq!(*third.orders.borrow(), Order::Serve);
    }
}
