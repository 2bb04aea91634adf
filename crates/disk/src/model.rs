//! A disk that takes as long as a real one would, on tokio's clock.
//!
//! ```text
//!   command ─▶ wait for a lane ─▶ latency: seek and rotation, or flash ─▶ wait for the link ─▶ transfer ─▶ inner disk
//!   flush   ─▶ wait for all lanes ─▶ its own time ─▶ inner disk
//! ```
//!
//! For benchmarks and simulations that ask what a device does to the speed of what is above it. Times are a model's:
//! a mean and the right shape, not one product's. With a paused clock nothing really waits, and all chance comes
//! from a seed, so a run repeats exactly.
//!
//! * Commands are served in the order in which they arrive, as many at a time as there are lanes (one arm; several
//!   flash chips). A lane's time is fixed on arrival. Dropping a command does not give its time back.
//! * A transfer takes the link alone, so lanes do not multiply the bandwidth.
//! * A disk that turns has no write cache. What follows the last command is written without a move if it was queued
//!   by then, and read from the disk's buffer; a write that comes later has missed its place and waits for the turn.
//! * A flush takes the whole device: it waits for everything before it, and everything after it waits.
//! * A write-through is a write, and where that alone is not on stable media (flash behind a cache) a flush.
//!
//! Tokio's timers tick in milliseconds. Where less matters, [`Profile::stretched`] slows the device down, and what
//! is measured is divided by the same number.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

use crate::{Disk, DiskFuture, DiskInfo, IoBuf, fault::Chance};

/// How long a device takes for what. The presets are the methods without arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Commands at a time.
    pub lanes: usize,
    /// From the arrival of a command to its first byte, where no arm has to move.
    pub latency: Duration,
    /// The shortest and the longest move of the arm; zero without one. Between them it grows with the root of the
    /// distance.
    pub seek: (Duration, Duration),
    /// One turn; zero if nothing turns.
    pub turn: Duration,
    /// Bytes per second, reading and writing.
    pub bandwidth: u64,
    /// What a flush takes when its turn has come.
    pub flush: Duration,
    /// A finished write is on stable media.
    pub stable_writes: bool,
}

impl Profile {
    /// A disk with 5400 turns a minute: about 80 random commands a second, 100 MB/s in a row.
    #[must_use]
    pub fn hdd_5400() -> Self {
        Self::hdd(Duration::from_micros(11_111), Duration::from_micros(12_000), 100_000_000)
    }

    /// A disk with 7200 turns a minute: about 115 random commands a second, 180 MB/s in a row.
    #[must_use]
    pub fn hdd_7200() -> Self {
        Self::hdd(Duration::from_micros(8_333), Duration::from_micros(7_500), 180_000_000)
    }

    fn hdd(turn: Duration, longest: Duration, bandwidth: u64) -> Self {
        Self {
            lanes: 1,
            latency: Duration::from_micros(50),
            seek: (Duration::from_millis(1), longest),
            turn,
            bandwidth,
            flush: turn,
            stable_writes: true,
        }
    }

    /// Flash behind SATA with a protected cache: 500 MB/s, 4 KiB in about 70 µs, a flush in 150 µs.
    #[must_use]
    pub fn ssd() -> Self {
        Self {
            lanes: 16,
            latency: Duration::from_micros(60),
            seek: (Duration::ZERO, Duration::ZERO),
            turn: Duration::ZERO,
            bandwidth: 500_000_000,
            flush: Duration::from_micros(150),
            stable_writes: false,
        }
    }

    /// The same without protection for its cache, which a flush has to empty: at least 1 ms.
    #[must_use]
    pub fn ssd_slow_flush() -> Self {
        Self { flush: Duration::from_millis(1), ..Self::ssd() }
    }

    /// Everything takes `factor` times as long: a device of microseconds on a clock of milliseconds.
    #[must_use]
    pub fn stretched(self, factor: u32) -> Self {
        Self {
            lanes: self.lanes,
            latency: self.latency * factor,
            seek: (self.seek.0 * factor, self.seek.1 * factor),
            turn: self.turn * factor,
            bandwidth: (self.bandwidth / u64::from(factor)).max(1),
            flush: self.flush * factor,
            stable_writes: self.stable_writes,
        }
    }

    /// Until the first byte, for an arm that moves over this share of the disk; `fraction` of a turn is missing.
    fn positioning(&self, distance: f64, fraction: f64) -> Duration {
        let (shortest, longest) = self.seek;
        shortest + longest.saturating_sub(shortest).mul_f64(distance.sqrt()) + self.turn.mul_f64(fraction)
    }

    fn transfer(&self, bytes: u64) -> Duration {
        Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / self.bandwidth.max(1))
    }
}

/// What a [`ModelDisk`] was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelCounts {
    /// Reads.
    pub reads: u64,
    /// Writes, write-throughs included.
    pub writes: u64,
    /// Write-throughs.
    pub throughs: u64,
    /// Flushes.
    pub flushes: u64,
    /// Reads and writes for which the arm had to move.
    pub seeks: u64,
}

struct State {
    chance: Chance,
    /// When each lane is free.
    lanes: Vec<Instant>,
    link: Instant,
    /// Where the last command ended.
    head: u64,
    counts: ModelCounts,
}

/// A [`Disk`] around another, that takes its time.
pub struct ModelDisk {
    inner: Arc<dyn Disk>,
    profile: Profile,
    state: Mutex<State>,
}

impl ModelDisk {
    /// A device like `profile` that holds what `inner` holds. `seed` decides where the disk is in its turn.
    pub fn new(inner: Arc<dyn Disk>, profile: Profile, seed: u64) -> Self {
        let now = Instant::now();
        let state = State {
            chance: Chance::new(seed),
            lanes: vec![now; profile.lanes.max(1)],
            link: now,
            head: 0,
            counts: ModelCounts::default(),
        };
        Self { inner, profile, state: Mutex::new(state) }
    }

    /// What was asked of it so far.
    pub fn counts(&self) -> ModelCounts {
        self.state.lock().counts
    }

    /// When a transfer that arrives now is over. `flushes`: the whole device then empties its cache.
    fn schedule(&self, offset: u64, bytes: u64, kind: Kind) -> Instant {
        /// Grains of chance.
        const GRAINS: u64 = 1 << 16;
        let now = Instant::now();
        let mut state = self.state.lock();
        let state = &mut *state;
        match kind {
            Kind::Read => state.counts.reads += 1,
            Kind::Write => state.counts.writes += 1,
            Kind::Through => {
                state.counts.writes += 1;
                state.counts.throughs += 1;
            }
        }
        let lane = state.lanes.iter_mut().min().expect("a device has a lane");
        let mut latency = self.profile.latency;
        let turn = self.profile.turn;
        if turn > Duration::ZERO && offset != state.head {
            state.counts.seeks += 1;
            let size = self.inner.info().size.max(1);
            let distance = (offset.abs_diff(state.head) as f64 / size as f64).min(1.0);
            latency += self.profile.positioning(distance, state.chance.below(GRAINS) as f64 / GRAINS as f64);
        } else if turn > Duration::ZERO {
            let idle = now.saturating_duration_since(*lane);
            let missed = kind != Kind::Read && idle > Duration::ZERO;
            latency = match missed {
                true => turn - Duration::from_nanos((idle.as_nanos() % turn.as_nanos()) as u64),
                false => Duration::ZERO,
            };
        }
        state.head = offset.saturating_add(bytes);
        let ready = (*lane).max(now) + latency;
        let end = ready.max(state.link) + self.profile.transfer(bytes);
        *lane = end;
        state.link = end;
        if kind == Kind::Through && !self.profile.stable_writes {
            return Self::empty_cache(state, now, self.profile.flush);
        }
        end
    }

    /// Takes the whole device for `time`, when all before is done.
    fn empty_cache(state: &mut State, now: Instant, time: Duration) -> Instant {
        let end = state.lanes.iter().copied().fold(now, Instant::max) + time;
        state.lanes.fill(end);
        end
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Through,
}

impl Disk for ModelDisk {
    fn info(&self) -> DiskInfo {
        DiskInfo { rotational: self.profile.turn > Duration::ZERO, ..self.inner.info() }
    }

    fn read(&self, offset: u64, buf: IoBuf) -> DiskFuture<'_, IoBuf> {
        Box::pin(async move {
            sleep_until(self.schedule(offset, buf.len() as u64, Kind::Read)).await;
            self.inner.read(offset, buf).await
        })
    }

    fn write(&self, offset: u64, data: Bytes) -> DiskFuture<'_, ()> {
        Box::pin(async move {
            sleep_until(self.schedule(offset, data.len() as u64, Kind::Write)).await;
            self.inner.write(offset, data).await
        })
    }

    fn write_through(&self, offset: u64, data: Bytes) -> DiskFuture<'_, ()> {
        Box::pin(async move {
            sleep_until(self.schedule(offset, data.len() as u64, Kind::Through)).await;
            self.inner.write_through(offset, data).await
        })
    }

    fn flush(&self) -> DiskFuture<'_, ()> {
        Box::pin(async move {
            let end = {
                let mut state = self.state.lock();
                state.counts.flushes += 1;
                Self::empty_cache(&mut state, Instant::now(), self.profile.flush)
            };
            sleep_until(end).await;
            self.inner.flush().await
        })
    }

    /// As long as the smallest read.
    fn probe(&self) -> DiskFuture<'_, ()> {
        Box::pin(async move {
            let sector = u64::from(self.inner.info().logical_sector);
            sleep_until(self.schedule(0, sector, Kind::Read)).await;
            self.inner.probe().await
        })
    }

    fn trim(&self, offset: u64, len: u64) -> DiskFuture<'_, ()> {
        self.inner.trim(offset, len)
    }
}

impl fmt::Debug for ModelDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelDisk")
            .field("inner", &self.inner)
            .field("profile", &self.profile)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use futures_util::future::join_all;

    use super::*;
    use crate::MemDisk;

    const SIZE: u64 = 4 << 40;

    fn disk(profile: Profile, seed: u64) -> ModelDisk {
        ModelDisk::new(Arc::new(MemDisk::new(SIZE)), profile, seed)
    }

    async fn timed<T>(future: impl Future<Output = io::Result<T>>) -> Duration {
        let start = Instant::now();
        future.await.unwrap();
        start.elapsed()
    }

    /// Commands a second, one after the other, at random places.
    async fn random_reads(disk: &ModelDisk) -> f64 {
        let mut chance = Chance::new(9);
        let start = Instant::now();
        for _ in 0..1000 {
            let offset = chance.below(SIZE / 4096) * 4096;
            disk.read(offset, IoBuf::with_len(4096)).await.unwrap();
        }
        1000.0 / start.elapsed().as_secs_f64()
    }

    #[tokio::test(start_paused = true)]
    async fn disks_that_turn_are_as_slow_as_they_are() {
        let (slow, fast) = (disk(Profile::hdd_5400(), 1), disk(Profile::hdd_7200(), 1));
        let (slow, fast) = (random_reads(&slow).await, random_reads(&fast).await);
        assert!((72.0..88.0).contains(&slow), "{slow} a second");
        assert!((100.0..130.0).contains(&fast), "{fast} a second");
    }

    #[tokio::test(start_paused = true)]
    async fn what_lies_in_a_row_needs_no_seek() {
        let disk = disk(Profile::hdd_5400(), 2);
        let piece = Bytes::from(vec![1; 1 << 20]);
        let queued = (0..64_u64).map(|number| disk.write(number << 20, piece.clone()));
        let all = timed(async { join_all(queued).await.into_iter().collect::<io::Result<Vec<_>>>() }).await;
        let rate = 64.0 * f64::from(1 << 20) / all.as_secs_f64();
        assert!((95e6..101e6).contains(&rate), "{rate} bytes a second");
        assert_eq!(disk.counts().seeks, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_comes_too_late_for_its_place_waits_for_it() {
        let disk = disk(Profile::hdd_5400(), 2);
        let start = Instant::now();
        for number in 0..100_u64 {
            disk.write(number << 12, Bytes::from(vec![1; 4096])).await.unwrap();
        }
        let each = start.elapsed() / 100;
        assert!(each >= Duration::from_millis(11) && each < Duration::from_millis(12), "{each:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_flush_waits_for_what_came_before_and_takes_a_turn() {
        let disk = disk(Profile::hdd_5400(), 3);
        let writes = (0..10).map(|at| disk.write((at * 7919) << 30 & (SIZE - 1), Bytes::from(vec![1; 4096])));
        let start = Instant::now();
        let writes = async {
            join_all(writes).await.into_iter().for_each(|result| result.unwrap());
            start.elapsed()
        };
        let flush = async {
            disk.flush().await.unwrap();
            start.elapsed()
        };
        let (written, flushed) = tokio::join!(writes, flush);
        assert!(flushed >= written + Duration::from_millis(11), "{written:?} {flushed:?}");
        assert!(flushed <= written + Duration::from_millis(13), "{written:?} {flushed:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn flash_serves_many_at_a_time_and_flushes_one_after_the_other() {
        const FACTOR: u32 = 1000;
        let disk = disk(Profile::ssd_slow_flush().stretched(FACTOR), 4);
        let one = || disk.write(1 << 30, Bytes::from(vec![1; 4096]));
        let single = timed(one()).await / FACTOR;
        assert!(single >= Duration::from_micros(66) && single <= Duration::from_micros(72), "{single:?}");
        let all = timed(async {
            join_all((0..16).map(|_| one())).await.into_iter().collect::<io::Result<Vec<_>>>()
        });
        let all = all.await / FACTOR;
        assert!(all < single * 4, "{all:?}: only the link is shared");
        let through = || disk.write_through(0, Bytes::from(vec![1; 4096]));
        let four =
            async { join_all((0..4).map(|_| through())).await.into_iter().collect::<io::Result<Vec<_>>>() };
        let four = timed(four).await / FACTOR;
        assert!(four >= Duration::from_millis(4), "{four:?}: each empties the cache");
        assert_eq!(disk.counts().throughs, 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_seed_repeats_itself() {
        let mut times = Vec::new();
        for seed in [5, 5, 6] {
            let disk = disk(Profile::hdd_7200(), seed);
            let reads =
                (0..50_u64).map(|at| disk.read((at * 104_729) << 20 & (SIZE - 1), IoBuf::with_len(512)));
            times.push(
                timed(async { join_all(reads).await.into_iter().collect::<io::Result<Vec<_>>>() }).await,
            );
        }
        assert_eq!(times[0], times[1]);
        assert_ne!(times[0], times[2]);
    }

    #[tokio::test(start_paused = true)]
    async fn it_holds_what_the_inner_disk_holds() {
        let inner = Arc::new(MemDisk::new(1 << 20));
        let disk = ModelDisk::new(Arc::clone(&inner) as Arc<dyn Disk>, Profile::ssd(), 7);
        disk.write_through(512, Bytes::from(vec![3; 512])).await.unwrap();
        assert_eq!(inner.snapshot(512..1024), vec![3; 512]);
        assert_eq!(&disk.read(512, IoBuf::with_len(512)).await.unwrap()[..], &[3; 512]);
        assert!(disk.read(1 << 20, IoBuf::with_len(1)).await.is_err());
        assert!(!disk.info().rotational);
    }
}
