//! Places for connections, shared out among those who ask: a host that opens thousands, or opens and says nothing,
//! leaves room for the others. Here because all targets need it.
//!
//! * One address has its share of the places and no more, however many are free: what one host can rely on does not
//!   depend on how busy the others are. Where there are few places, a quarter of them is left for the others.
//! * Whoever has not said what it wants is a stranger. When places are needed, strangers give way to those who come,
//!   the oldest of the address that has most of them first: a flood pays for its own next wave, and from however many
//!   addresses it comes, whoever means it has the time of a whole round of places to say so.
//! * Strangers may have a bound of their own, where what they may say before they have settled costs much.
//! * Whoever gives way has its socket until its task has run. So nobody more is accepted while many are on their way out
//!   ([`Crowd::calm`]): on a busy machine a flood would otherwise have more sockets than there are places.
//! * Who has settled is never sent away for somebody else: hosts do not lose disks because of strangers.
//! * Addresses that one host has for nothing are one address ([`host_of`]).
//! * Clients on Unix sockets are one peer with places of its own. No network can shut out who is on this machine, and
//!   what runs here leaves the network its places.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::watch, time::timeout};

/// So many who gave way may be on their way out while others come in.
const LEAVING: usize = 8;
/// How long those who come wait for them at most. To leave is the matter of an instant: who cannot do it for some other
/// reason does not shut the door.
const PATIENCE: Duration = Duration::from_millis(100);

/// Who asks for a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Peer {
    /// Somebody on the network, by what [`host_of`] makes of its address.
    Address(IpAddr),
    /// Whoever comes in by a Unix socket.
    Local,
}

impl From<IpAddr> for Peer {
    fn from(address: IpAddr) -> Self {
        Self::Address(host_of(address))
    }
}

/// What stands for the host at an address, wherever hosts are to have equal parts.
///
/// * Both ways to write an IPv4 address are one.
/// * An IPv6 address counts as its /64: a host chooses the other half of it as it likes and anew whenever it likes, so
///   that by whole addresses a single one would be 2^64. The price is that the hosts of one subnet share.
/// * But not link-local addresses, nor loopback: all of a link would be one host, and who takes many of them is on the same
///   wire and can be found.
#[must_use]
pub fn host_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(own) if !own.is_loopback() && !own.is_unicast_link_local() => {
            IpAddr::V6(Ipv6Addr::from_bits(own.to_bits() & !u128::from(u64::MAX)))
        }
        other => other,
    }
}

/// Why there was no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// This peer has all of its own.
    #[error("this client has {0} connections, as many as one may have: close those it does not need")]
    Share(usize),
    /// Everybody together has them.
    #[error(
        "all {0} places are taken: disconnect clients that are not needed, or keep those away that have no business here"
    )]
    All(usize),
}

/// How many places there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// For all addresses together.
    pub all: usize,
    /// For one peer, and never more than three of four.
    pub share: usize,
    /// For strangers, and half as many for those of one peer; `None`: any.
    pub strangers: Option<usize>,
}

/// The places. Clones share them.
#[derive(Clone, Debug)]
pub struct Crowd {
    seats: Arc<Mutex<Seats>>,
}

#[derive(Debug)]
struct Seats {
    places: Places,
    next: u64,
    /// In the order in which they came.
    taken: BTreeMap<u64, Seat>,
    /// How many gave way and are still here.
    leaving: watch::Sender<usize>,
}

#[derive(Debug)]
struct Seat {
    peer: Peer,
    /// A stranger's: gone means that it gives way.
    stranger: Option<watch::Sender<()>>,
}

impl Crowd {
    /// So many places, all of them free.
    #[must_use]
    pub fn new(places: Places) -> Self {
        let share = places.share.min(places.all.saturating_sub(places.all / 4));
        let seats = Seats {
            places: Places { share, ..places },
            next: 0,
            taken: BTreeMap::new(),
            leaving: watch::Sender::default(),
        };
        Self { seats: Arc::new(Mutex::new(seats)) }
    }

    /// A place for one more, a stranger for now. Another stranger may have to give way.
    ///
    /// # Errors
    /// There is none, and nobody who could give way.
    pub fn enter(&self, peer: Peer) -> Result<Place, Full> {
        let mut seats = self.seats();
        seats.make_room(peer)?;
        let id = seats.next;
        seats.next = seats.next.saturating_add(1);
        let (sender, gone) = watch::channel(());
        seats.taken.insert(id, Seat { peer, stranger: Some(sender) });
        Ok(Place { crowd: self.clone(), id, gone })
    }

    /// Ready when most of those who gave way have left, or after [`PATIENCE`]: to be waited for before somebody is accepted.
    pub async fn calm(&self) {
        let mut leaving = self.seats().leaving.subscribe();
        // Its sender is here as long as we are; and who is late is let go.
        drop(timeout(PATIENCE, leaving.wait_for(|leaving| *leaving < LEAVING)).await);
    }

    fn seats(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seats {
    fn make_room(&mut self, peer: Peer) -> Result<(), Full> {
        let Places { all, share, strangers } = self.places;
        let strangers = strangers.unwrap_or(usize::MAX);
        let (of_peer, strange) = self.count(|seat| seat.peer == peer);
        if of_peer >= share || strange >= strangers.div_ceil(2) {
            return if self.oust(peer) { Ok(()) } else { Err(Full::Share(share)) };
        }
        let (of_all, strange) = self.count(|seat| seat.peer != Peer::Local);
        if peer == Peer::Local || (of_all < all && strange < strangers) {
            return Ok(());
        }
        let mut strangers: BTreeMap<Peer, (usize, u64)> = BTreeMap::new();
        for (id, seat) in self.taken.iter().filter(|(_, seat)| seat.peer != Peer::Local) {
            if seat.stranger.is_some() {
                // The first one seen is the oldest.
                let (count, _) = strangers.entry(seat.peer).or_insert((0, *id));
                *count = count.saturating_add(1);
            }
        }
        // Among equals the one whose stranger has been here longest.
        let most = strangers.into_iter().max_by_key(|(_, (count, oldest))| (*count, Reverse(*oldest)));
        if most.is_some_and(|(peer, _)| self.oust(peer)) { Ok(()) } else { Err(Full::All(all)) }
    }

    /// Seats of those that `who` picks, and how many of them are strangers'.
    fn count(&self, who: impl Fn(&Seat) -> bool) -> (usize, usize) {
        let seats = self.taken.values().filter(|seat| who(seat));
        seats.fold((0, 0), |(all, strange), seat| {
            (all.saturating_add(1), strange.saturating_add(usize::from(seat.stranger.is_some())))
        })
    }

    /// Takes the place of this peer's oldest stranger; false if it has none.
    fn oust(&mut self, peer: Peer) -> bool {
        let mut of_peer = self.taken.iter().filter(|(_, seat)| seat.peer == peer);
        let Some(id) = of_peer.find(|(_, seat)| seat.stranger.is_some()).map(|(id, _)| *id) else {
            return false;
        };
        self.taken.remove(&id);
        self.leaving.send_modify(|leaving| *leaving = leaving.saturating_add(1));
        true
    }
}

/// One place, given up when dropped.
#[derive(Debug)]
pub struct Place {
    crowd: Crowd,
    id: u64,
    gone: watch::Receiver<()>,
}

impl Place {
    /// It is a stranger no more. False if it had to give way before.
    #[must_use]
    pub fn settle(&self) -> bool {
        let mut seats = self.crowd.seats();
        let Some(seat) = seats.taken.get_mut(&self.id) else { return false };
        seat.stranger = None;
        true
    }

    /// Whether it is a stranger no more.
    #[must_use]
    pub fn has_settled(&self) -> bool {
        self.crowd.seats().taken.get(&self.id).is_some_and(|seat| seat.stranger.is_none())
    }

    /// Resolves when this stranger gives way. Not to be waited for by who has settled.
    pub fn ousted(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut gone = self.gone.clone();
        // Nothing is ever sent: `changed` ends when the sender is dropped.
        async move { while gone.changed().await.is_ok() {} }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut seats = self.crowd.seats();
        if seats.taken.remove(&self.id).is_none() {
            seats.leaving.send_modify(|leaving| *leaving = leaving.saturating_sub(1));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic: that is how it fails")]

    use tokio::time::Instant;

    use super::*;

    fn of(all: usize, share: usize) -> Crowd {
        Crowd::new(Places { all, share, strangers: None })
    }

    fn host(last: u8) -> Peer {
        Peer::from(IpAddr::from([192, 0, 2, last]))
    }

    fn settled(crowd: &Crowd, peer: Peer) -> Place {
        let place = crowd.enter(peer).unwrap();
        assert!(!place.has_settled());
        assert!(place.settle() && place.has_settled());
        place
    }

    fn is_in(place: &Place) -> bool {
        place.crowd.seats().taken.contains_key(&place.id)
    }

    #[test]
    fn each_peer_has_its_share_and_gets_its_places_back() {
        let crowd = of(8, 2);
        let (first, second) = (settled(&crowd, host(1)), settled(&crowd, host(1)));
        assert_eq!(crowd.enter(host(1)).unwrap_err(), Full::Share(2));
        let mapped = Peer::from("::ffff:192.0.2.1".parse::<IpAddr>().unwrap());
        assert_eq!(crowd.enter(mapped).unwrap_err(), Full::Share(2), "it is the same host");
        drop(crowd.enter(host(2)).unwrap());
        drop(first);
        let third = settled(&crowd, host(1));
        drop((second, third));
        assert!(crowd.seats().taken.is_empty(), "nobody is remembered who has left");
    }

    #[test]
    fn addresses_that_one_host_can_take_are_one_and_those_of_others_are_not() {
        let host = |text: &str| host_of(text.parse().unwrap());
        for (one, other, is_same) in [
            ("192.0.2.1", "::ffff:192.0.2.1", true),
            ("192.0.2.1", "192.0.2.2", false),
            ("2001:db8:0:7::1", "2001:db8:0:7:ffff:ffff:ffff:ffff", true),
            ("2001:db8:0:7::1", "2001:db8:0:8::1", false),
            ("fd12:3456:789a:1::1", "fd12:3456:789a:1:a:b:c:d", true),
            ("::ffff:192.0.2.1", "::ffff:192.0.2.2", false),
            ("fe80::1", "fe80::2", false),
            ("::1", "::2", false),
        ] {
            assert_eq!(host(one) == host(other), is_same, "{one} and {other}");
        }
        assert_eq!(host("2001:db8:0:7:1:2:3:4").to_string(), "2001:db8:0:7::");
        assert_eq!((host("::1"), host("fe80::1")), ("::1".parse().unwrap(), "fe80::1".parse().unwrap()));
    }

    #[test]
    fn a_host_with_a_new_address_each_time_has_no_more_than_its_share() {
        let crowd = of(8, 2);
        let at = |last: u16| Peer::from(IpAddr::from([0x2001, 0xdb8, 0, 7, 0, 0, 0, last]));
        let taken = [settled(&crowd, at(1)), settled(&crowd, at(2))];
        assert_eq!(crowd.enter(at(3)).unwrap_err(), Full::Share(2));
        drop(taken);
    }

    #[tokio::test]
    async fn strangers_give_way_and_who_has_settled_does_not() {
        let crowd = of(4, 4);
        let stays = settled(&crowd, host(1));
        let flood: Vec<Place> = (0..3).map(|_| crowd.enter(host(2)).unwrap()).collect();
        let modest = crowd.enter(host(3)).unwrap();
        flood[0].ousted().await;
        assert!(!flood[0].settle(), "too late");
        assert!(is_in(&flood[1]) && is_in(&flood[2]), "one was enough");
        // The flood goes on, and pays for it itself.
        let more: Vec<Place> = (0..5).map(|_| crowd.enter(host(2)).unwrap()).collect();
        assert!(is_in(&modest) && is_in(&stays) && is_in(&more[4]));
        assert!(!is_in(&flood[1]) && !is_in(&more[0]));
        assert!(modest.settle() && more[4].settle() && more[3].settle());
        assert_eq!(crowd.enter(host(4)).unwrap_err(), Full::All(4));
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_more_is_accepted_while_many_who_gave_way_are_still_here() {
        let crowd = of(4 * LEAVING, LEAVING);
        let mut flood: Vec<Place> = (1..2 * LEAVING).map(|_| crowd.enter(host(2)).unwrap()).collect();
        let begin = Instant::now();
        crowd.calm().await;
        assert_eq!(begin.elapsed(), Duration::ZERO, "a few may be");
        let last = crowd.enter(host(2)).unwrap();
        assert_eq!(flood.iter().filter(|place| !is_in(place)).count(), LEAVING);
        crowd.calm().await;
        assert_eq!(begin.elapsed(), PATIENCE, "who does not leave shuts nobody out for good");
        let comes = crowd.clone();
        let comes = tokio::spawn(async move { comes.calm().await });
        tokio::task::yield_now().await;
        assert!(!comes.is_finished());
        drop(flood.remove(0));
        comes.await.unwrap();
        assert_eq!(begin.elapsed(), PATIENCE, "as soon as one has left");
        drop((flood, last));
        let seats = crowd.seats();
        assert_eq!((*seats.leaving.borrow(), seats.taken.len()), (0, 0), "none of them is counted any more");
    }

    #[test]
    fn a_flood_from_many_addresses_loses_its_oldest() {
        let crowd = of(3, 2);
        let flood: Vec<Place> = (1..=3).map(|last| crowd.enter(host(last)).unwrap()).collect();
        let comes = crowd.enter(host(9)).unwrap();
        assert!(!is_in(&flood[0]) && is_in(&flood[1]) && comes.settle());
    }

    #[test]
    fn within_a_share_strangers_give_way_too() {
        let crowd = of(8, 2);
        let (stays, stranger) = (settled(&crowd, host(1)), crowd.enter(host(1)).unwrap());
        let other = crowd.enter(host(2)).unwrap();
        let comes = settled(&crowd, host(1));
        assert!(is_in(&stays) && !is_in(&stranger) && is_in(&other) && is_in(&comes));
        assert_eq!(crowd.enter(host(1)).unwrap_err(), Full::Share(2));
    }

    #[test]
    fn of_few_places_one_peer_does_not_get_all() {
        let crowd = of(4, 256);
        let taken = [1, 1, 1].map(|last| settled(&crowd, host(last)));
        assert_eq!(crowd.enter(host(1)).unwrap_err(), Full::Share(3));
        let other = settled(&crowd, host(2));
        assert_eq!(crowd.enter(host(3)).unwrap_err(), Full::All(4));
        drop((taken, other));
    }

    #[test]
    fn strangers_have_a_bound_of_their_own_and_those_of_one_peer_half_of_it() {
        let crowd = Crowd::new(Places { all: 16, share: 8, strangers: Some(4) });
        let stays = settled(&crowd, host(1));
        let flood: Vec<Place> = (0..3).map(|_| crowd.enter(host(1)).unwrap()).collect();
        assert!(!is_in(&flood[0]) && is_in(&flood[1]) && is_in(&flood[2]), "two of one peer");
        let others: Vec<Place> = (2..=3).map(|last| crowd.enter(host(last)).unwrap()).collect();
        let comes = crowd.enter(host(4)).unwrap();
        assert!(!is_in(&flood[1]), "the oldest of the peer that has most of them");
        assert!(is_in(&flood[2]) && others.iter().all(is_in) && is_in(&stays));
        // Who has settled counts no more among them.
        assert!(comes.settle() && others[0].settle());
        let more = [crowd.enter(host(4)).unwrap(), crowd.enter(host(5)).unwrap()];
        assert!(is_in(&flood[2]) && others.iter().all(is_in) && more.iter().all(is_in) && is_in(&comes));
    }

    #[test]
    fn networks_and_this_machine_do_not_shut_out_each_other() {
        let crowd = of(2, 2);
        let network = [settled(&crowd, host(1)), settled(&crowd, host(2))];
        assert_eq!(crowd.enter(host(3)).unwrap_err(), Full::All(2));
        let local = [settled(&crowd, Peer::Local), settled(&crowd, Peer::Local)];
        assert_eq!(crowd.enter(Peer::Local).unwrap_err(), Full::Share(2));
        drop(network);
        let network = [settled(&crowd, host(3)), settled(&crowd, host(3))];
        drop((network, local));
    }
}
