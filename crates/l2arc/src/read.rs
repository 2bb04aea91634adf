//! Reading: a look at the index, one read at a device, another look at the index.

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use crate::{
    Key,
    device::Device,
    index::{Hash, Index, Place},
    patient,
    stats::add,
    tier::{Found, L2, Shared},
};

impl L2 {
    /// The stored form of a block, `psize` bytes, if a device has it: to be verified by the caller, who says so if it
    /// turns out wrong ([`lied`](Self::lied)). `None`: not here.
    #[must_use]
    pub fn read(&self, key: &Key, psize: u32) -> Option<Found> {
        let found = self.find(key, psize);
        if found.is_none() && self.is_used() {
            add(&self.shared.counters.l2_misses, 1);
        }
        found
    }

    /// The same for a block that is not to be kept here. There may be some from before; that others are not here is no miss.
    #[must_use]
    pub fn find(&self, key: &Key, psize: u32) -> Option<Found> {
        let found = self.found(key.hash(), psize, Index::get)?;
        add(&self.shared.counters.l2_hits, 1);
        Some(found)
    }

    /// The same for somebody who asks on nobody's behalf: it is no hit, and the block is no hotter by it.
    #[must_use]
    pub fn glance(&self, key: &Key, psize: u32) -> Option<Found> {
        self.found(key.hash(), psize, Index::peek)
    }

    fn found(&self, hash: Hash, psize: u32, look: fn(&Index, Hash) -> Option<Place>) -> Option<Found> {
        if !self.is_used() {
            return None;
        }
        let shared = &self.shared;
        let place = look(&shared.index, hash)?;
        let (address, device) = (place.address, shared.device_at(place.address)?);
        if !device.is_usable() {
            return None;
        }
        let shared = Arc::clone(shared);
        Some(Box::pin(async move { fetch(&shared, &device, hash, address, psize).await }))
    }

    /// The bytes that [`read`](Self::read) gave were not the block's: it is forgotten.
    pub fn lied(&self, key: &Key) {
        let shared = &self.shared;
        add(&shared.counters.l2_cksum_bad, 1);
        let hash = key.hash();
        if let Some(place) = shared.index.peek(hash)
            && shared.index.remove(hash, place.address).is_some()
            && let Some(device) = shared.device_at(place.address)
        {
            device.sizes.forget(1, device.sizes.blocks());
        }
    }
}

async fn fetch(shared: &Shared, device: &Device, hash: Hash, address: u64, psize: u32) -> Option<Bytes> {
    let begun = Instant::now();
    let read = device.read_within(address - device.base, psize as usize, patient::READ).await;
    device.went(read.is_ok().then(|| begun.elapsed()), shared.home());
    let Ok(buf) = read else {
        add(&shared.counters.l2_io_error, 1);
        return None;
    };
    // What left the index meanwhile may have been overwritten before the read was done.
    if shared.index.peek(hash).is_none_or(|place| place.address != address) {
        add(&shared.counters.l2_evict_reading, 1);
        return None;
    }
    add(&shared.counters.l2_read_bytes, buf.len() as u64);
    Some(buf.freeze())
}
