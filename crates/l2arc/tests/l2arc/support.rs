//! Blocks whose content tells what they are, so that a wrong one is noticed, and a tier to put them into.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use disk::{Disk, MemDisk};
use l2arc::{Block, Config, Key, L2, Open, Recovered};
use tokio::time::{Instant, sleep};

pub(crate) const POOL: u64 = 0x00c0_ffee;
pub(crate) const VDEV: u64 = 0xbeef;
pub(crate) const ASHIFT: u32 = 12;
/// Bytes of most blocks.
pub(crate) const SIZE: u32 = 16 << 10;

/// Block number `n` of `psize` bytes, used once.
pub(crate) fn block(n: u64, psize: u32) -> Block {
    let key = key(n);
    Block {
        dva: key.dva,
        birth: key.birth,
        lsize: psize,
        psize,
        compress: 2,
        level: 0,
        metadata: false,
        frequent: false,
        prefetched: false,
        eligible: true,
        is_part: false,
        data: content(n, psize),
    }
}

/// What it is found by.
pub(crate) fn key(n: u64) -> Key {
    Key { dva: [8, n << 3], birth: 100 + n % 7 }
}

/// What it holds: says which block it is in every sector.
pub(crate) fn content(n: u64, psize: u32) -> Bytes {
    let sectors = (0..u64::from(psize) / 512).flat_map(|sector| {
        let mut bytes = [0x5a; 512];
        bytes[..8].copy_from_slice(&n.to_le_bytes());
        bytes[504..].copy_from_slice(&(n ^ sector << 32).to_le_bytes());
        bytes
    });
    sectors.collect::<Vec<u8>>().into()
}

/// As fast as the device can, everything is taken, small devices remember.
pub(crate) fn eager() -> Config {
    Config {
        dwpd_limit: 0.0,
        fill_rate: 0,
        write_max: 0,
        persist_min: 0,
        second_eviction: false,
        reinsert: false,
        ..Config::default()
    }
}

pub(crate) fn memory(mib: u64) -> Arc<MemDisk> {
    Arc::new(MemDisk::new(mib << 20))
}

/// A tier on one device, and what it found there.
pub(crate) async fn opened(disk: Arc<dyn Disk>, config: Config) -> (L2, Recovered) {
    let l2 = L2::new(POOL, config);
    l2.add(disk, VDEV, ASHIFT, Open::Remember).unwrap();
    let recovered = rebuilt(&l2).await;
    (l2, recovered)
}

/// Waits until it is known what a tier's first device remembered.
pub(crate) async fn rebuilt(l2: &L2) -> Recovered {
    loop {
        if let Some(recovered) = l2.devices()[0].recovered.clone() {
            return recovered;
        }
        sleep(Duration::from_millis(1)).await;
    }
}

/// Waits until nothing waits and nothing is being written.
pub(crate) async fn settle(l2: &L2) {
    let deadline = Instant::now() + Duration::from_secs(3600);
    loop {
        sleep(Duration::from_millis(250)).await;
        let stats = l2.stats();
        if l2.waiting() == 0 && stats.l2_writes_sent == stats.l2_writes_done {
            return;
        }
        assert!(Instant::now() < deadline, "it never settles: {stats:?}");
    }
}

/// Offers blocks as memory would: in portions that the buffer takes.
pub(crate) async fn fill(l2: &L2, blocks: std::ops::Range<u64>, size: u32) {
    let portion = (8 << 20) / u64::from(size);
    let mut next = blocks.start;
    while next < blocks.end {
        let end = (next + portion).min(blocks.end);
        for n in next..end {
            l2.offer(block(n, size));
        }
        next = end;
        settle(l2).await;
    }
}

/// Reads a block as the pool would: what does not verify is said to be wrong, and is no hit. True for a hit.
pub(crate) async fn hit(l2: &L2, n: u64, size: u32) -> bool {
    let Some(found) = l2.read(&key(n), size) else { return false };
    let Some(bytes) = found.await else { return false };
    let is_right = bytes == content(n, size);
    if !is_right {
        l2.lied(&key(n));
    }
    is_right
}

/// How many of these are hits. No read may give wrong bytes without a fault to blame.
pub(crate) async fn hits(l2: &L2, blocks: impl Iterator<Item = u64>, size: u32) -> u64 {
    let mut sum = 0;
    for n in blocks {
        sum += u64::from(hit(l2, n, size).await);
    }
    sum
}
