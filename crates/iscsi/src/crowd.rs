//! How many connections each peer has: one host that opens thousands, or opens and says nothing, leaves room for the
//! others.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
};

/// Counts per address. Whoever holds a [`Place`] is counted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Crowd(Arc<Mutex<BTreeMap<IpAddr, usize>>>);

impl Crowd {
    /// A place for one more from there, unless it has `max` already.
    pub(crate) fn enter(&self, peer: IpAddr, max: usize) -> Option<Place> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.get(&peer).copied().unwrap_or(0);
        if count >= max {
            return None;
        }
        counts.insert(peer, count.saturating_add(1));
        Some(Place { crowd: self.clone(), peer })
    }
}

/// One place, given up when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    crowd: Crowd,
    peer: IpAddr,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.crowd.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.peer) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                counts.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_peer_has_its_own_count_and_gets_its_places_back() {
        let crowd = Crowd::default();
        let (a, b) = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
        let first = crowd.enter(a, 2).unwrap();
        let second = crowd.enter(a, 2).unwrap();
        assert!(crowd.enter(a, 2).is_none() && crowd.enter(b, 2).is_some());
        drop(first);
        assert!(crowd.enter(a, 2).is_some());
        drop(second);
        assert!(crowd.0.lock().unwrap().is_empty(), "nobody is remembered who has left");
    }
}
