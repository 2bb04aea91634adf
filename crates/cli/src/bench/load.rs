//! What the clients of a test do: each sends its next request when the last one is answered.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use server::{
    block::{Asked, BlockVolume, Durability, Segment, Segments, VolumeError},
    disk::nanos,
    engine::volume::LiveVolume,
};
use tokio::{task::JoinSet, time::Instant};

use super::{measure::Latencies, payload::Pool};

/// How long a client goes on until somebody else may have the processor: answers from the cache never wait. To let go of it
/// wakes another thread, which took a fifth of the time of reads when it was done after every 32.
const TURN: Duration = Duration::from_millis(1);

/// What a test does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Writes the volume once, in order.
    Fill,
    /// Reads at random places.
    Read,
    /// Writes at random places.
    Overwrite,
    /// The same, each write durable before the next.
    Sync,
    /// Reads the volume once, in order.
    SeqRead,
}

impl Kind {
    const ALL: [Self; 5] = [Self::Fill, Self::Read, Self::Overwrite, Self::Sync, Self::SeqRead];

    pub(super) fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Fill => "fill",
            Self::Read => "read",
            Self::Overwrite => "overwrite",
            Self::Sync => "sync",
            Self::SeqRead => "seqread",
        }
    }

    pub(super) fn is_in_order(self) -> bool {
        matches!(self, Self::Fill | Self::SeqRead)
    }

    pub(super) fn writes(self) -> bool {
        matches!(self, Self::Fill | Self::Overwrite | Self::Sync)
    }
}

/// One test.
#[derive(Clone, Debug)]
pub(super) struct Load {
    pub(super) volume: Arc<LiveVolume>,
    pub(super) payload: Pool,
    pub(super) kind: Kind,
    /// Bytes of a request.
    pub(super) io: u64,
    /// Bytes of the volume.
    pub(super) size: u64,
    pub(super) clients: usize,
    /// How long, unless it goes through the volume once.
    pub(super) secs: f64,
    /// Decides the places, and that no two tests write the same bytes.
    pub(super) seed: u64,
}

impl Load {
    /// Runs all clients to the end, and returns how long each request took.
    pub(super) async fn run(&self) -> Result<Latencies, VolumeError> {
        let places = Arc::new(AtomicU64::new(0));
        let mut clients = JoinSet::new();
        for number in 0..self.clients as u64 {
            let (load, places) = (self.clone(), Arc::clone(&places));
            clients.spawn(async move { load.client(number, &places).await });
        }
        let mut all = Latencies::new();
        while let Some(ended) = clients.join_next().await {
            match ended {
                Ok(latencies) => all.add(&latencies?),
                Err(error) => return Err(VolumeError::NotReady(error.to_string())),
            }
        }
        Ok(all)
    }

    async fn client(&self, number: u64, places: &AtomicU64) -> Result<Latencies, VolumeError> {
        let mut latencies = Latencies::new();
        let mut random = Random(self.seed << 32 | number << 8 | 1);
        let blocks = self.size / self.io;
        let start = Instant::now();
        let (mut before, mut turn) = (start, start);
        for count in 1.. {
            let place =
                if self.kind.is_in_order() { places.fetch_add(1, Relaxed) } else { random.next() % blocks };
            if place >= blocks {
                break;
            }
            let tag = self.seed << 56 | number << 40 | count;
            self.request(place * self.io, tag).await?;
            let now = Instant::now();
            latencies.record(nanos(now - before));
            before = now;
            if !self.kind.is_in_order() && now - start >= Duration::from_secs_f64(self.secs) {
                break;
            }
            if now - turn >= TURN {
                turn = now;
                tokio::task::yield_now().await;
            }
        }
        Ok(latencies)
    }

    async fn request(&self, offset: u64, tag: u64) -> Result<(), VolumeError> {
        let len = self.io as usize;
        let durability = match self.kind {
            Kind::Read | Kind::SeqRead => {
                let found = match self.volume.read_cached(offset, len) {
                    Some(found) => found,
                    None => self.volume.read(offset, len).await?,
                };
                let bytes: usize = found.iter().map(Segment::len).sum();
                assert_eq!(bytes, len, "a read gives what was asked for");
                return Ok(());
            }
            Kind::Fill | Kind::Overwrite => Durability::Cached,
            Kind::Sync => Durability::Stable(Asked::Fua),
        };
        let data: Segments = std::iter::once(Segment::Data(self.payload.block(len, tag))).collect();
        self.volume.write(offset, data, durability).await
    }
}

/// Places at random: splitmix64, whose numbers come in no order that a cache or a disk could profit from.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
