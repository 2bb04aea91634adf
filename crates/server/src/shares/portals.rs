//! Where iSCSI listens: the addresses the daemon was given, and those its pools want, which come and go with them.
//!
//! ```text
//!   serve --iscsi ─┐
//!   pool A wants ──┼─▶ settle ─▶ bind what is missing, close what nobody wants any more, tell the targets
//!   pool B wants ──┘       ▲
//!                          └── every ten seconds, while an address cannot be had, or not in the group that is wanted
//! ```
//!
//! A pool may come to a host before its address does (a failover, a network that is not up yet): what cannot be bound is
//! tried again until it can. Whoever came in by an address that somebody still wants stays, though another listener is there
//! for it now. Nobody is let in before [`Portals::start`]: an initiator that comes while pools are being
//! opened waits instead of being told that there is no such target.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use iscsi::{Keep, Portal, Server, Targets};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
};

use super::config::PortalConfig;

/// How often an address that cannot be had is tried again.
const RETRY: Duration = Duration::from_secs(10);
/// Portal group of addresses that nobody gave one.
const GROUP: u16 = 1;

/// A portal as it is now.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(crate) address: SocketAddr,
    pub(crate) group: u16,
    /// The pool that says its group.
    giver: Option<String>,
    /// A pool says another, and does not get it as long as those are logged in who came in there.
    is_used: bool,
    /// The pool that wanted it is given up. Who comes in there, by what listens at all addresses, is in its group still, and
    /// nobody is told to: the address may have gone where the pool is.
    is_left: bool,
    /// Why it does not listen.
    pub(crate) problem: Option<String>,
}

impl Shown {
    /// Whether clients are told to come there.
    pub(crate) fn is_named(&self) -> bool {
        self.problem.is_none() && !self.is_left
    }

    /// What is to be said of it where this pool says that it is in this group, and it is in another.
    pub(crate) fn other_group(&self, pool: &str, group: u16) -> Option<String> {
        let (address, now) = (self.address, self.group);
        match &self.giver {
            _ if now == group => None,
            Some(giver) => Some(format!(
                "portal {address} is in group {now}, as pool '{giver}' says, and not in group {group}: reservations and targets \
                 of one group are not found there; say the same group in both pools ('millpond share portal add --pool POOL --group \
                 TAG {address}')"
            )),
            None if self.is_used => Some(format!(
                "portal {address} stays in group {now}, and is not in group {group}, as long as initiators are logged in that came \
                 in there ('millpond initiators'), or until the daemon starts anew: they would not have their reservations; \
                 'millpond share portal add -f --pool {pool} --group {group} {address}' changes it all the same"
            )),
            None => None,
        }
    }

    fn silence(&self) -> Option<String> {
        let why = self.problem.as_ref()?;
        let (address, seconds) = (self.address, RETRY.as_secs());
        Some(format!("portal {address} does not listen: {why}; it is tried again every {seconds} seconds"))
    }
}

/// The listeners of a daemon. See the module.
pub(crate) struct Portals {
    targets: Arc<Targets>,
    state: tokio::sync::Mutex<State>,
    shown: Mutex<Vec<Shown>>,
    /// Something could not be bound, or has to wait for its group.
    missing: Notify,
}

#[derive(Default)]
struct State {
    /// Addresses that the daemon was given, as they were bound.
    fixed: Vec<SocketAddr>,
    wanted: BTreeMap<String, Vec<PortalConfig>>,
    /// Of those that are wanted, the pool that says the group.
    givers: BTreeMap<SocketAddr, String>,
    /// Groups that were given by pools which were given up since, of addresses where somebody listens without them.
    left: BTreeMap<SocketAddr, u16>,
    /// Pools that are to have the group which they say of an address, whoever came in there.
    forced: BTreeSet<(String, SocketAddr)>,
    listening: BTreeMap<SocketAddr, Listener>,
    /// Closed, and still finishing what is under way.
    leaving: Vec<Leaving>,
    started: bool,
    stopped: bool,
}

impl State {
    /// The group of an address of its own where no pool says one.
    fn usual(&self, address: &SocketAddr) -> Option<u16> {
        let fixed = || self.fixed.contains(address).then_some(GROUP);
        self.left.get(address).copied().or_else(fixed)
    }
}

struct Listener {
    /// Until it is started.
    server: Option<Server>,
    keep: watch::Sender<Keep>,
    task: Option<Running>,
    /// Ready when its address is free again.
    closed: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// A server that no longer listens, with connections that may stay for a while, or leave.
struct Leaving {
    keep: watch::Sender<Keep>,
    task: Running,
}

/// A server at work; whoever no longer waits for its end ends it at once.
struct Running(JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Listener {
    fn new(server: Server) -> Self {
        let closed = Box::pin(server.closed());
        Self { server: Some(server), keep: watch::Sender::new(None), task: None, closed }
    }

    fn start(&mut self) {
        let Some(server) = self.server.take() else { return };
        self.task = Some(Running(tokio::spawn(server.run_while(self.keep.subscribe()))));
    }

    /// Listens no more when this returns; of its connections those stay that came in at one of these addresses.
    async fn stop(self, stay: &[SocketAddr]) -> Option<Leaving> {
        let Self { server, keep, task, closed } = self;
        drop(server);
        keep.send_replace(Some(stay.to_vec()));
        closed.await;
        task.map(|task| Leaving { keep, task })
    }
}

impl Portals {
    /// Those that listen already, in the order they were given.
    ///
    /// # Errors
    /// One does not say where it listens.
    pub(crate) fn new(targets: Arc<Targets>, servers: Vec<Server>) -> io::Result<Arc<Self>> {
        let mut state = State::default();
        for server in servers {
            for address in server.local_addrs()? {
                state.fixed.push(address);
            }
            if let Some(address) = state.fixed.last() {
                state.listening.insert(*address, Listener::new(server));
            }
        }
        let unsaid = |&address: &SocketAddr| Shown {
            address,
            group: GROUP,
            giver: None,
            is_used: false,
            is_left: false,
            problem: None,
        };
        let shown: Vec<Shown> = state.fixed.iter().map(unsaid).collect();
        targets.set_portals(shown.iter().map(|shown| Portal::from(shown.address)).collect());
        let (shown, state) = (Mutex::new(shown), tokio::sync::Mutex::new(state));
        Ok(Arc::new(Self { targets, state, shown, missing: Notify::new() }))
    }

    /// All of them, those that were given to the daemon first.
    pub(crate) fn list(&self) -> Vec<Shown> {
        self.shown.lock().clone()
    }

    /// Sessions of another group at an address that is to be in this one.
    pub(crate) fn sessions_of_others(&self, address: SocketAddr, group: u16) -> usize {
        let listed = self.list();
        let is_own = |local: SocketAddr| listed.iter().any(|shown| shown.address == local);
        let is_there = |local: SocketAddr| local == address || (covers(address, local) && !is_own(local));
        let sessions = self.targets.sessions();
        let of_targets = sessions.iter().filter(|session| !session.target.is_empty());
        let others = of_targets.filter(|session| session.portal.group != group);
        others.filter(|session| is_there(session.portal.address)).count()
    }

    /// Sessions at an address that would be of another group there if this pool said none. Where nothing listens then, nobody
    /// comes back.
    pub(crate) async fn sessions_of_others_without(&self, pool: &str, address: SocketAddr) -> usize {
        let exact = {
            let state = self.state.lock().await;
            let said = |pool: &String| {
                let portals = state.wanted.get(pool)?;
                portals.iter().find(|portal| portal.address == address).map(|portal| portal.group)
            };
            let giver = state.givers.get(&address).filter(|giver| *giver != pool);
            let others = state.wanted.keys().filter(|other| *other != pool);
            giver.into_iter().chain(others).find_map(said).or_else(|| state.usual(&address))
        };
        let listed = self.list();
        let of_all = listed.iter().find(|shown| covers(shown.address, address)).map(|shown| shown.group);
        exact.or(of_all).map_or(0, |group| self.sessions_of_others(address, group))
    }

    /// What is to be said of a portal that is in its group although initiators are logged in that came in there in another.
    pub(crate) fn strangers(&self, portal: &PortalConfig) -> Option<String> {
        let PortalConfig { address, group } = *portal;
        let sessions = self.sessions_of_others(address, group);
        let is_so = sessions > 0 && self.targets.group_of(address) == group;
        is_so.then(|| {
            format!(
                "{sessions} initiators came in at {address} in another portal group than {group}, in which it is now \
                 ('millpond initiators'): they do not have their reservations of there when they log in again"
            )
        })
    }

    /// When this pool says the group of an address next, that is so, whoever came in there, unless another says it already.
    pub(crate) async fn give(&self, pool: &str, address: SocketAddr) {
        self.state.lock().await.forced.insert((pool.to_owned(), address));
    }

    /// A pool is given up. Addresses where somebody listens without it, be that at all of them, stay in the groups that it gave
    /// them: hosts of other pools have registered in these, and the pool may come back in a moment, and find them there.
    pub(crate) async fn leave(&self, pool: &str) {
        let mut state = self.state.lock().await;
        state.forced.retain(|(forced, _)| forced != pool);
        let Some(portals) = state.wanted.remove(pool) else { return };
        for PortalConfig { address, group } in portals {
            if state.givers.get(&address).is_none_or(|giver| giver != pool) {
                continue;
            }
            // Whoever says another has to wait, as for one that nobody gave.
            state.givers.remove(&address);
            // Who listens there for this pool alone is gone when that is settled, and so is this.
            if state.fixed.contains(&address) || state.listening.keys().any(|open| covers(*open, address)) {
                state.left.insert(address, group);
            }
        }
        self.settle(&mut state).await;
    }

    /// Where the daemon listens because of this pool alone, a sentence each.
    pub(crate) async fn opened_by(&self, pool: &str) -> Vec<String> {
        let state = self.state.lock().await;
        let is_of_others = |address: SocketAddr| {
            let mut others = state.wanted.iter().filter(|(other, _)| *other != pool);
            state.fixed.contains(&address)
                || others.any(|(_, portals)| portals.iter().any(|portal| portal.address == address))
        };
        let own = state.wanted.get(pool).into_iter().flatten().map(|portal| portal.address);
        let opened = own.filter(|own| state.listening.contains_key(own) && !is_of_others(*own));
        opened
            .map(|address| {
                format!(
                    "iSCSI listens at {address} because pool '{pool}' says so; to close that: 'millpond share portal remove \
                     {address}'"
                )
            })
            .collect()
    }

    /// [`Portals::want_while`] without anybody else.
    #[cfg(test)]
    pub(crate) async fn want(&self, pool: &str, portals: &[PortalConfig]) -> Vec<String> {
        self.want_while(pool, portals, || true).await
    }

    /// A pool wants these from now on, if `is_meant` still holds when others are done; none: no longer any. What could not be
    /// bound, or is in another group, is a sentence each.
    pub(crate) async fn want_while(
        &self,
        pool: &str,
        portals: &[PortalConfig],
        is_meant: impl Fn() -> bool,
    ) -> Vec<String> {
        let mut state = self.state.lock().await;
        if !is_meant() {
            return Vec::new();
        }
        let same = state.wanted.get(pool).map_or(portals.is_empty(), |before| before == portals);
        if !same {
            state.wanted.remove(pool);
            if !portals.is_empty() {
                state.wanted.insert(pool.to_owned(), portals.to_vec());
            }
        }
        // Whoever was in the way of a group may have gone.
        let is_put_off = |portal: &PortalConfig| {
            let mut used = self.list().into_iter().filter(|shown| shown.is_used);
            used.any(|shown| shown.address == portal.address && shown.group != portal.group)
        };
        if !same || portals.iter().any(is_put_off) {
            self.settle(&mut state).await;
        }
        let shown = self.list();
        let mut sentences = Vec::new();
        for portal in portals {
            let found = shown.iter().find(|shown| shown.address == portal.address);
            sentences.extend(found.and_then(Shown::silence));
            sentences.extend(found.and_then(|shown| shown.other_group(pool, portal.group)));
        }
        sentences
    }

    /// Makes it so.
    async fn settle(&self, state: &mut State) {
        if state.stopped {
            return;
        }
        let mut groups: BTreeMap<SocketAddr, u16> =
            state.fixed.iter().map(|address| (*address, state.usual(address).unwrap_or(GROUP))).collect();
        let mut order = state.fixed.clone();
        let mut givers: BTreeMap<SocketAddr, String> = BTreeMap::new();
        let mut used = BTreeSet::new();
        for (pool, portals) in state.wanted.iter().rev() {
            for portal in portals {
                let address = portal.address;
                // The group that is in effect stays: hosts have registered in it.
                let before = state.givers.get(&address);
                let is_kept = before != Some(pool) && before.is_some() && givers.get(&address) == before;
                let is_forced = state.forced.remove(&(pool.clone(), address));
                if !groups.contains_key(&address) {
                    order.push(address);
                }
                if is_kept {
                    continue;
                }
                // Also where nobody gave it, as long as they are there.
                let now = self.targets.group_of(address);
                if before.is_none()
                    && !is_forced
                    && now != portal.group
                    && self.sessions_of_others(address, portal.group) > 0
                {
                    groups.entry(address).or_insert(now);
                    used.insert(address);
                } else {
                    groups.insert(address, portal.group);
                    givers.insert(address, pool.clone());
                }
            }
        }
        state.left.retain(|address, _| !givers.contains_key(address));
        state.givers = givers;
        let unwanted: Vec<SocketAddr> =
            state.listening.keys().filter(|address| !groups.contains_key(address)).copied().collect();
        for leaving in &state.leaving {
            leaving.keep.send_if_modified(|keep| {
                let is_other = keep.as_ref() != Some(&order);
                if is_other {
                    *keep = Some(order.clone());
                }
                is_other
            });
        }
        for address in unwanted {
            if let Some(listener) = state.listening.remove(&address) {
                state.leaving.extend(listener.stop(&order).await);
            }
        }
        state.leaving.retain(|leaving| !leaving.task.0.is_finished());
        // What listens at all addresses of a port cannot come after what listens at one of them, and stands for it.
        let mut widest_first = order.clone();
        widest_first.sort_by_key(|address| (!address.ip().is_unspecified(), address.is_ipv4()));
        let mut problems = BTreeMap::new();
        for address in widest_first {
            if covered(state, address) {
                continue;
            }
            match Server::bind(Arc::clone(&self.targets), &[address]).await {
                Ok(server) => {
                    state.listening.insert(address, Listener::new(server));
                    tracing::info!(%address, "iscsi: portal listens");
                }
                Err(error) => {
                    let narrower = state.listening.keys().find(|open| covers(address, **open));
                    problems.insert(address, match narrower {
                        Some(open) => format!(
                            "{open} listens on this port, and all its addresses cannot be had beside it: give that one up \
                             ('share portal remove', 'serve --iscsi'), or take another port"
                        ),
                        None => error.to_string(),
                    });
                }
            }
        }
        let listening = &state.listening;
        state.left.retain(|address, _| {
            groups.contains_key(address) || listening.keys().any(|open| covers(*open, *address))
        });
        let shown = order.into_iter().map(|address| Shown {
            address,
            group: groups.get(&address).copied().unwrap_or(GROUP),
            giver: state.givers.get(&address).cloned(),
            is_used: used.contains(&address),
            is_left: false,
            problem: problems.remove(&address),
        });
        let mut shown: Vec<Shown> = shown.collect();
        let left = state.left.iter().filter(|(address, _)| !groups.contains_key(address));
        shown.extend(left.map(|(&address, &group)| Shown {
            address,
            group,
            giver: None,
            is_used: false,
            is_left: true,
            problem: None,
        }));
        let portal = |shown: &Shown| Portal { address: shown.address, group: shown.group };
        let named = shown.iter().filter(|shown| shown.is_named()).map(portal).collect();
        let unnamed = shown.iter().filter(|shown| shown.is_left).map(portal).collect();
        let groups: Vec<u16> = shown.iter().map(|shown| shown.group).collect();
        self.targets.set_portals_of(named, unnamed, &groups);
        // From here on who comes in by them finds its group.
        if state.started {
            state.listening.values_mut().for_each(Listener::start);
        }
        if shown.iter().any(|shown| shown.problem.is_some() || shown.is_used) {
            self.missing.notify_one();
        }
        *self.shown.lock() = shown;
    }

    /// Lets initiators in.
    pub(crate) async fn start(&self) {
        let mut state = self.state.lock().await;
        state.started = true;
        state.listening.values_mut().for_each(Listener::start);
    }

    /// Tries again what could not be bound, and looks whether they have gone who were in the way of a group, for ever.
    pub(crate) async fn retry(&self) {
        loop {
            self.missing.notified().await;
            tokio::time::sleep(RETRY).await;
            let mut state = self.state.lock().await;
            self.settle(&mut state).await;
        }
    }

    /// No new connections; returns when the last one has closed.
    pub(crate) async fn stop(&self) {
        let all: Vec<Leaving> = {
            let mut state = self.state.lock().await;
            state.stopped = true;
            for leaving in &state.leaving {
                leaving.keep.send_replace(Some(Vec::new()));
            }
            for listener in std::mem::take(&mut state.listening).into_values() {
                state.leaving.extend(listener.stop(&[]).await);
            }
            std::mem::take(&mut state.leaving)
        };
        for Leaving { keep, mut task } in all {
            // A server that failed has no connections either.
            let _ended = (&mut task.0).await;
            drop(keep);
        }
    }
}

/// Whether somebody listens there already, perhaps at every address of that port.
fn covered(state: &State, address: SocketAddr) -> bool {
    state.listening.keys().any(|open| *open == address || covers(*open, address))
}

/// Whether the first is every address of a port, and the second one of them.
fn covers(all: SocketAddr, one: SocketAddr) -> bool {
    all != one && all.port() == one.port() && all.ip().is_unspecified() && (all.is_ipv6() || one.is_ipv4())
}

/// Takes out of what the daemon is to listen at what another of these addresses listens for, and gives that: where IPv6 was not
/// IPv4 too, both had to be named, and are still.
pub(crate) fn take_covered(addresses: &mut Vec<SocketAddr>) -> Vec<(SocketAddr, SocketAddr)> {
    let all = addresses.clone();
    // Each of several ports that the system chooses is another one.
    let listens_for = |one: SocketAddr| all.iter().copied().find(|all| one.port() != 0 && covers(*all, one));
    let covered = all.iter().filter_map(|one| Some((*one, listens_for(*one)?))).collect();
    addresses.retain(|one| listens_for(*one).is_none());
    covered
}

#[cfg(test)]
mod tests {
    use super::*;

    fn portal(address: SocketAddr, group: u16) -> PortalConfig {
        PortalConfig { address, group }
    }

    /// With `net.ipv6.bindv6only=1` whoever wanted both had named both, and the second could not be had any more.
    #[test]
    fn what_another_address_listens_for_is_not_listened_at_twice() {
        let listened = |addresses: &[&str]| {
            let mut addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
            let covered = take_covered(&mut addresses);
            let texts = addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>();
            (texts.join(" "), covered.len())
        };
        assert_eq!(listened(&["0.0.0.0:3260", "[::]:3260"]), ("[::]:3260".to_owned(), 1));
        assert_eq!(listened(&["[::]:3260", "192.0.2.1:3260", "[::1]:3260"]), ("[::]:3260".to_owned(), 2));
        assert_eq!(listened(&["0.0.0.0:3260", "[::1]:3260"]), ("0.0.0.0:3260 [::1]:3260".to_owned(), 0));
        assert_eq!(listened(&["0.0.0.0:3260", "[::]:3261"]), ("0.0.0.0:3260 [::]:3261".to_owned(), 0));
        assert_eq!(listened(&["0.0.0.0:0", "[::]:0"]), ("0.0.0.0:0 [::]:0".to_owned(), 0));
    }

    #[tokio::test]
    async fn portals_come_and_go_with_their_pools() {
        let targets = Targets::new(iscsi::Config::default());
        let here: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let server = Server::bind(Arc::clone(&targets), &[here]).await.unwrap();
        let portals = Portals::new(Arc::clone(&targets), vec![server]).unwrap();
        let fixed = portals.list()[0].address;
        portals.start().await;
        // A port that is free now.
        let free = {
            let probe = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            probe.local_addr().unwrap()
        };
        assert_eq!(portals.want("tank", &[portal(free, 2), portal(fixed, 3)]).await, Vec::<String>::new());
        assert_eq!(targets.portals().iter().map(|p| p.group).collect::<Vec<_>>(), [3, 2]);
        let opened = portals.opened_by("tank").await;
        assert!(opened.len() == 1 && opened[0].contains(&free.to_string()), "{opened:?}");
        tokio::net::TcpStream::connect(free).await.unwrap();
        portals.want("tank", &[]).await;
        assert_eq!(targets.portals().len(), 1);
        for _ in 0..200 {
            if tokio::net::TcpStream::connect(free).await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(tokio::net::TcpStream::connect(free).await.is_err());
        portals.stop().await;
        assert!(tokio::net::TcpStream::connect(fixed).await.is_err());
    }

    /// The pool whose name sorts first took the group away, and nobody was told: at their next login hosts were strangers to the
    /// reservations that they had made.
    #[tokio::test]
    async fn a_pool_that_comes_changes_no_group_that_another_gave() {
        let targets = Targets::new(iscsi::Config::default());
        let portals = Portals::new(Arc::clone(&targets), Vec::new()).unwrap();
        portals.start().await;
        let here = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert_eq!(portals.want("b", &[portal(here, 2)]).await, Vec::<String>::new());
        for _ in 0..2 {
            let said = portals.want("a", &[portal(here, 1)]).await;
            assert!(said.len() == 1 && said[0].contains("in group 2, as pool 'b' says"), "{said:?}");
            assert_eq!(targets.group_of(here), 2);
        }
        assert_eq!(portals.want("b", &[portal(here, 3)]).await, Vec::<String>::new());
        assert_eq!(targets.group_of(here), 3, "it is its own to change");
        portals.want("b", &[]).await;
        assert_eq!(targets.group_of(here), 1);
        assert_eq!(portals.want("a", &[portal(here, 1)]).await, Vec::<String>::new());
        portals.stop().await;
    }

    /// The wide listener was still open when the narrow one was to come, so that nobody got in for ten seconds; and everybody
    /// was sent away.
    #[tokio::test]
    async fn a_pool_that_leaves_takes_no_address_from_another_that_wants_it() {
        let targets = Targets::new(iscsi::Config::default());
        let portals = Portals::new(Arc::clone(&targets), Vec::new()).unwrap();
        portals.start().await;
        let port = std::net::TcpListener::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port();
        let all = SocketAddr::new("0.0.0.0".parse().unwrap(), port);
        let one = SocketAddr::new("127.0.0.5".parse().unwrap(), port);
        assert_eq!(portals.want("a", &[portal(all, 1)]).await, Vec::<String>::new());
        assert_eq!(portals.want("b", &[portal(one, 2)]).await, Vec::<String>::new());
        let mut stays = tokio::net::TcpStream::connect(one).await.unwrap();
        let mut goes = tokio::net::TcpStream::connect(("127.0.0.6", port)).await.unwrap();
        // Both are in, before their listener goes.
        tokio::time::sleep(Duration::from_millis(100)).await;
        portals.want("a", &[]).await;
        let list = portals.list();
        assert!(list.len() == 1 && list[0].problem.is_none(), "{list:?}");
        tokio::net::TcpStream::connect(one).await.expect("at once");
        assert!(tokio::net::TcpStream::connect(("127.0.0.6", port)).await.is_err());
        for (stream, class) in [(&mut stays, 2), (&mut goes, 3)] {
            let mut login = [0; 48];
            (login[0], login[1]) = (0x43, 0x87);
            tokio::io::AsyncWriteExt::write_all(stream, &login).await.unwrap();
            tokio::io::AsyncReadExt::read_exact(stream, &mut login).await.unwrap();
            assert_eq!((login[0], login[36]), (0x23, class), "what it is, or that nobody is let in");
        }
        portals.stop().await;
    }

    /// Whoever asked a second time took it for settled.
    #[tokio::test]
    async fn what_does_not_listen_is_said_as_often_as_it_is_wanted() {
        let targets = Targets::new(iscsi::Config::default());
        let portals = Portals::new(Arc::clone(&targets), Vec::new()).unwrap();
        portals.start().await;
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let wanted = [portal(taken.local_addr().unwrap(), 1)];
        let said = portals.want("tank", &wanted).await;
        assert!(said.len() == 1 && said[0].contains("does not listen"), "{said:?}");
        assert_eq!(portals.want("tank", &wanted).await, said);
    }

    /// It was "address in use" by nobody knew whom, for ever, and after a restart.
    #[tokio::test]
    async fn all_addresses_of_a_port_stand_for_each_and_do_not_come_after_one() {
        let targets = Targets::new(iscsi::Config::default());
        let portals = Portals::new(Arc::clone(&targets), Vec::new()).unwrap();
        portals.start().await;
        let one = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let all = SocketAddr::new("0.0.0.0".parse().unwrap(), one.port());
        portals.want("tank", &[portal(one, 1)]).await;
        let said = portals.want("tank", &[portal(one, 1), portal(all, 2)]).await;
        assert!(said.len() == 1 && said[0].contains(&format!("{one} listens on this port")), "{said:?}");
        portals.stop().await;
        // As after a restart: wanted at once.
        let portals = Portals::new(Arc::clone(&targets), Vec::new()).unwrap();
        portals.start().await;
        assert_eq!(portals.want("tank", &[portal(one, 1), portal(all, 2)]).await, Vec::<String>::new());
        let list = portals.list();
        assert!(
            list.len() == 2 && list[0].address == one && list.iter().all(|shown| shown.problem.is_none())
        );
        tokio::net::TcpStream::connect(one).await.unwrap();
        portals.stop().await;
    }

    /// Whoever registered at all target ports meanwhile was a stranger by the path that came later.
    #[tokio::test(start_paused = true)]
    async fn an_address_that_somebody_else_has_is_tried_until_it_is_free() {
        let targets = Targets::new(iscsi::Config::default());
        let portals = Portals::new(Arc::clone(&targets), Vec::new()).unwrap();
        portals.start().await;
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let said = portals.want("tank", &[portal(address, 2)]).await;
        assert!(said[0].contains("does not listen"), "{said:?}");
        assert!(targets.portals().is_empty() && portals.list()[0].problem.is_some());
        assert_eq!(targets.service().port_groups()[0].ports, [1, 2]);
        let retry = tokio::spawn({
            let portals = Arc::clone(&portals);
            async move { portals.retry().await }
        });
        drop(taken);
        tokio::time::sleep(RETRY * 3).await;
        assert!(portals.list()[0].problem.is_none());
        retry.abort();
        portals.stop().await;
    }
}
