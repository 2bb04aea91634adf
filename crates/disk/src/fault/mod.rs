//! A disk that breaks its promises on purpose, and never more than the [`Disk`] contract lets a real one.
//!
//! ```text
//!   caller ─▶ present? ─▶ rules: delay, error, flip, lose, misdirect, tear ─▶ write cache ─▶ inner disk
//!                                                                            (volatile)      (durable)
//! ```
//!
//! * **Rules** ([`Fault`]) are scripted: which operations, which bytes, from which time on, how often, with what
//!   chance. All matching rules apply; the first error ends the operation.
//! * **Vanish and return** ([`FaultDisk::vanish`]): a cable. Nothing is lost but operations under way. What returns may
//!   be another disk, or the same with older content ([`FaultDisk::come_back_as`]).
//! * **Power cut** ([`FaultDisk::power_cut`]), with [`FaultDisk::with_write_cache`]: writes that were not
//!   flushed are kept, lost or torn at sectors, in any order.
//! * **Write-through** ([`Disk::write_through`]) is a write for rules and counts, and what strikes flushes strikes
//!   it too. When it has succeeded its bytes are durable, and those cached before are as volatile as they were.
//! * **Rot** ([`FaultDisk::rot`]): bits flip on the media, silently.
//!
//! All chance comes from one seed and delays are tokio's, so a run on one thread with a paused clock repeats
//! exactly. Operations draw their chances when first polled.

use std::{
    fmt, io,
    ops::{Range, RangeInclusive},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::{Disk, DiskFuture, DiskInfo, IoBuf, checked_range};

mod volatile;
pub use volatile::Cut;
use volatile::{Change, Volatile, What, sectors};

/// Operations a [`Fault`] applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// `read`
    Read,
    /// `write`
    Write,
    /// `flush`; its rules ignore the range
    Flush,
    /// `trim`
    Trim,
}

/// What goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The operation fails with this kind and does nothing.
    Error(io::ErrorKind),
    /// This many bits flip, anywhere in the part of the transfer that lies in the rule's range, and the operation
    /// succeeds. In a read the media stays good; in a write it does not.
    FlipBits(u32),
    /// The operation takes longer, by a time drawn from this range. A write is in the cache before, so
    /// that a power cut meanwhile may keep it or not.
    Delay(RangeInclusive<Duration>),
    /// A write, trim or flush succeeds without having done anything. Has no effect on reads.
    Lose,
    /// A read or write succeeds, this many bytes away. Off the disk: like [`Effect::Lose`].
    Misdirect(i64),
    /// A write stores its first sectors, how many is chance, and then fails with this kind.
    Tear(io::ErrorKind),
}

/// A rule: what happens to which operations. Made with [`Fault::new`] and narrowed by the methods.
#[derive(Clone, Debug)]
pub struct Fault {
    on: On,
    range: Range<u64>,
    effect: Effect,
    chance_ppm: u32,
    skip: u64,
    times: u64,
}

impl Fault {
    /// Happens to every operation of that sort that touches `range`, always.
    pub fn new(on: On, range: Range<u64>, effect: Effect) -> Self {
        Self { on, range, effect, chance_ppm: PPM, skip: 0, times: u64::MAX }
    }

    /// Happens to every operation of that sort anywhere, always.
    pub fn anywhere(on: On, effect: Effect) -> Self {
        Self::new(on, 0..u64::MAX, effect)
    }

    /// Happens with this chance, in parts per million.
    #[must_use]
    pub fn chance_ppm(mut self, chance_ppm: u32) -> Self {
        self.chance_ppm = chance_ppm;
        self
    }

    /// Lets the first `skip` matching operations pass.
    #[must_use]
    pub fn after(mut self, skip: u64) -> Self {
        self.skip = skip;
        self
    }

    /// Happens that often and then no more.
    #[must_use]
    pub fn times(mut self, times: u64) -> Self {
        self.times = times;
        self
    }
}

/// Operations a [`FaultDisk`] was asked for, and how many faults it caused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Reads begun.
    pub reads: u64,
    /// Writes begun.
    pub writes: u64,
    /// Flushes begun.
    pub flushes: u64,
    /// Trims begun.
    pub trims: u64,
    /// Rules applied, refusals for absence included.
    pub faults: u64,
}

/// A [`Disk`] around another, that fails as told and from a seed.
pub struct FaultDisk {
    inner: Mutex<Arc<dyn Disk>>,
    state: Mutex<State>,
    /// One at a time moves changes from the cache to the inner disk.
    destaging: tokio::sync::Mutex<()>,
}

struct State {
    chance: Chance,
    faults: Vec<Fault>,
    present: bool,
    /// Counts vanishings and power cuts: an operation begun before one does not succeed after it.
    epoch: u64,
    cache: Option<Volatile>,
    counts: FaultCounts,
}

/// Bytes the cache holds before it writes back on its own, as real ones do: more than tests flush at once,
/// and a bound for those that never do.
const CACHE_MAX: u64 = 64 << 20;

const PPM: u32 = 1_000_000;

/// What the rules decided for one operation.
struct Plan {
    epoch: u64,
    delay: Duration,
    error: Option<io::ErrorKind>,
    /// Bits of the transfer to flip, counted from its start.
    flips: Vec<u64>,
    lose: bool,
    misdirect: i64,
    /// Sectors stored before the failure.
    tear: Option<(u64, io::ErrorKind)>,
}

impl FaultDisk {
    /// A disk without faults until [`FaultDisk::inject`], whose writes go straight to `inner`. `seed` decides
    /// all chances.
    pub fn new(inner: Arc<dyn Disk>, seed: u64) -> Self {
        Self::build(inner, seed, None)
    }

    /// The same with a volatile write cache: writes reach `inner` at a flush, or by chance at a power cut.
    pub fn with_write_cache(inner: Arc<dyn Disk>, seed: u64) -> Self {
        Self::build(inner, seed, Some(Volatile::default()))
    }

    fn build(inner: Arc<dyn Disk>, seed: u64, cache: Option<Volatile>) -> Self {
        let state = State {
            chance: Chance::new(seed),
            faults: Vec::new(),
            present: true,
            epoch: 0,
            cache,
            counts: FaultCounts::default(),
        };
        Self { inner: Mutex::new(inner), state: Mutex::new(state), destaging: tokio::sync::Mutex::default() }
    }

    /// Adds a rule. Rules apply in the order they came.
    pub fn inject(&self, fault: Fault) {
        self.state.lock().faults.push(fault);
    }

    /// Forgets all rules. What they changed on the media stays changed.
    pub fn heal(&self) {
        self.state.lock().faults.clear();
    }

    /// Every operation fails with `NotConnected`, those under way too, until [`FaultDisk::come_back`].
    pub fn vanish(&self) {
        let mut state = self.state.lock();
        state.present = false;
        state.epoch += 1;
    }

    /// Ends [`FaultDisk::vanish`] and the darkness after a [`FaultDisk::power_cut`].
    pub fn come_back(&self) {
        self.state.lock().present = true;
    }

    /// The same with other content in the same place: what was cached is gone.
    pub fn come_back_as(&self, inner: Arc<dyn Disk>) {
        let mut state = self.state.lock();
        *self.inner.lock() = inner;
        if let Some(cache) = &mut state.cache {
            *cache = Volatile::default();
        }
        state.epoch += 1;
        state.present = true;
    }

    /// Whether it is there: not [vanished](Self::vanish), not dark after a power cut.
    pub fn is_present(&self) -> bool {
        self.state.lock().present
    }

    /// What was asked of it so far.
    pub fn counts(&self) -> FaultCounts {
        self.state.lock().counts
    }

    /// Bytes written and not yet flushed.
    pub fn unflushed(&self) -> u64 {
        self.state.lock().cache.as_ref().map_or(0, |cache| cache.bytes)
    }

    /// Cuts the power: operations under way fail, and of what was not flushed a part reaches the inner disk that
    /// `seed` chooses: whole writes or some of their sectors, in any order. The disk is absent until
    /// [`FaultDisk::come_back`]. Without a write cache only operations under way are affected.
    ///
    /// # Errors
    /// Those of the inner disk.
    pub fn power_cut(&self, seed: u64) -> DiskFuture<'_, Cut> {
        Box::pin(async move {
            let sector = u64::from(self.inner().info().logical_sector);
            let (landed, cut) = {
                let mut state = self.state.lock();
                state.present = false;
                state.epoch += 1;
                match &mut state.cache {
                    Some(cache) => cache.power_cut(sector, &mut Chance::new(seed)),
                    None => Default::default(),
                }
            };
            // A flush under way stops before its next change, because the epoch is over.
            let _destaging = self.destaging.lock().await;
            for change in landed {
                self.carry_out(change).await?;
            }
            Ok(cut)
        })
    }

    /// Flips `bits` different bits of what the media holds in `range`, silently, as time does. Cached
    /// bytes are hit too, until they are written back.
    ///
    /// # Errors
    /// Those of the inner disk; `InvalidInput` for a range outside it or with fewer bits.
    pub fn rot(&self, range: Range<u64>, bits: u32) -> DiskFuture<'_, ()> {
        Box::pin(async move {
            let len = range.end.saturating_sub(range.start);
            let info = self.inner().info();
            checked_range(&info.path, range.start, len, info.size)?;
            if len.saturating_mul(8) < u64::from(bits) {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "fewer bits there than are to flip"));
            }
            let chosen = self.state.lock().chance.distinct(u64::from(bits), len * 8);
            for bit in chosen {
                let (offset, mask) = (range.start + bit / 8, 1 << (bit % 8));
                let mut byte = self.inner().read(offset, IoBuf::with_len(1)).await?;
                byte[0] ^= mask;
                self.inner().write(offset, byte.freeze()).await?;
                if let Some(cache) = &mut self.state.lock().cache {
                    cache.damage(offset, |byte| byte ^ mask);
                }
            }
            Ok(())
        })
    }

    fn inner(&self) -> Arc<dyn Disk> {
        Arc::clone(&self.inner.lock())
    }

    fn seen(&self) -> io::Result<()> {
        if self.is_present() {
            return Ok(());
        }
        let gone = format!("{}: the disk is gone", self.inner().info().path);
        Err(io::Error::new(io::ErrorKind::NotFound, gone))
    }

    /// Counts the operation and lets the rules decide.
    fn plan(&self, on: On, offset: u64, len: u64) -> io::Result<Plan> {
        {
            let counts = &mut self.state.lock().counts;
            let count = match on {
                On::Read => &mut counts.reads,
                On::Write => &mut counts.writes,
                On::Flush => &mut counts.flushes,
                On::Trim => &mut counts.trims,
            };
            *count += 1;
        }
        self.decide(on, offset, len)
    }

    /// Lets the rules decide.
    fn decide(&self, on: On, offset: u64, len: u64) -> io::Result<Plan> {
        let sector = u64::from(self.inner().info().logical_sector);
        let mut state = self.state.lock();
        let state = &mut *state;
        if !state.present {
            state.counts.faults += 1;
            return Err(self.absent());
        }
        let mut plan = Plan {
            epoch: state.epoch,
            delay: Duration::ZERO,
            error: None,
            flips: Vec::new(),
            lose: false,
            misdirect: 0,
            tear: None,
        };
        let end = offset.saturating_add(len);
        for fault in &mut state.faults {
            let touched = fault.range.start.max(offset)..fault.range.end.min(end);
            if fault.on != on || (on != On::Flush && touched.is_empty()) || fault.times == 0 {
                continue;
            }
            if fault.skip > 0 {
                fault.skip -= 1;
                continue;
            }
            if fault.chance_ppm < PPM && state.chance.below(u64::from(PPM)) >= u64::from(fault.chance_ppm) {
                continue;
            }
            fault.times -= 1;
            state.counts.faults += 1;
            match &fault.effect {
                Effect::Error(kind) => {
                    plan.error = Some(*kind);
                    break;
                }
                Effect::FlipBits(bits) => {
                    let first = (touched.start - offset.min(touched.start)) * 8;
                    let room = touched.end.saturating_sub(touched.start).saturating_mul(8);
                    let bits = u64::from(*bits).min(room);
                    plan.flips.extend(state.chance.distinct(bits, room).into_iter().map(|bit| first + bit));
                }
                Effect::Delay(range) => plan.delay += state.chance.duration(range),
                Effect::Lose => plan.lose = on != On::Read,
                Effect::Misdirect(by) => plan.misdirect = plan.misdirect.saturating_add(*by),
                Effect::Tear(kind) if on == On::Write => {
                    plan.tear = Some((state.chance.below(len.div_ceil(sector).max(1)), *kind));
                    break;
                }
                Effect::Tear(_) => {}
            }
        }
        Ok(plan)
    }

    /// The end of every operation: the delay, and whether the disk was there all the time.
    async fn arrive(&self, plan: &Plan) -> io::Result<()> {
        if !plan.delay.is_zero() {
            tokio::time::sleep(plan.delay).await;
        }
        self.still(plan.epoch)?;
        match plan.error {
            Some(kind) => Err(self.injected(kind)),
            None => Ok(()),
        }
    }

    fn still(&self, epoch: u64) -> io::Result<()> {
        if self.state.lock().epoch == epoch { Ok(()) } else { Err(self.absent()) }
    }

    /// Where a misdirected transfer goes, if that is on the disk.
    fn elsewhere(&self, offset: u64, len: u64, by: i64) -> Option<u64> {
        let offset = offset.checked_add_signed(by)?;
        let end = offset.checked_add(len)?;
        (end <= self.inner().info().size).then_some(offset)
    }

    /// What of a write is stored, and where, after the rules had their way.
    fn stored(&self, plan: &Plan, offset: u64, mut data: Bytes) -> Option<(u64, Bytes)> {
        let target = self.elsewhere(offset, data.len() as u64, plan.misdirect)?;
        if plan.error.is_some() || plan.lose {
            return None;
        }
        if !plan.flips.is_empty() {
            let mut flipped = IoBuf::from_slice(&data);
            flip(&mut flipped, &plan.flips);
            data = flipped.freeze();
        }
        if let Some((kept, _)) = plan.tear {
            let sector = u64::from(self.inner().info().logical_sector);
            let stored: usize =
                sectors(target, &data, sector).take(kept as usize).map(|(_, piece)| piece.len()).sum();
            data.truncate(stored);
        }
        Some((target, data))
    }

    /// Stores into the cache if there is one; the number of the change there.
    async fn store(&self, offset: u64, data: Bytes, through: bool) -> io::Result<Option<u64>> {
        let cached = {
            let mut state = self.state.lock();
            state.cache.as_mut().map(|cache| (cache.write(offset, data.clone()), cache.bytes > CACHE_MAX))
        };
        match cached {
            None if through => self.inner().write_through(offset, data).await?,
            None => self.inner().write(offset, data).await?,
            Some((_, true)) => self.destage().await?,
            Some((_, false)) => {}
        }
        Ok(cached.map(|(number, _)| number))
    }

    /// Writes one cached change to the inner disk, before those that were cached earlier.
    async fn destage_one(&self, number: u64) -> io::Result<()> {
        let epoch = self.state.lock().epoch;
        let _destaging = self.destaging.lock().await;
        self.still(epoch)?;
        let change = self.state.lock().cache.as_ref().and_then(|cache| cache.change(number));
        // A flush was faster.
        let Some(change) = change else { return Ok(()) };
        self.carry_out(change).await?;
        self.still(epoch)?;
        if let Some(cache) = &mut self.state.lock().cache {
            cache.made_durable_alone(number);
        }
        Ok(())
    }

    /// Writes everything cached so far to the inner disk, in order.
    async fn destage(&self) -> io::Result<()> {
        let epoch = self.state.lock().epoch;
        let _destaging = self.destaging.lock().await;
        self.still(epoch)?;
        let changes = self.state.lock().cache.as_ref().map(Volatile::changes).unwrap_or_default();
        let Some(last) = changes.last().map(|change| change.number) else { return Ok(()) };
        for change in changes {
            self.still(epoch)?;
            self.carry_out(change).await?;
        }
        self.still(epoch)?;
        if let Some(cache) = &mut self.state.lock().cache {
            cache.made_durable(last);
        }
        Ok(())
    }

    async fn carry_out(&self, change: Change) -> io::Result<()> {
        match change.what {
            What::Write(data) => self.inner().write(change.offset, data).await,
            What::Trim(len) => match self.inner().trim(change.offset, len).await {
                Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(()),
                other => other,
            },
        }
    }

    /// What any disk refuses before it does anything.
    fn check(&self, offset: u64, len: u64, writes: bool) -> io::Result<()> {
        let info = self.inner().info();
        if writes && info.read_only {
            return Err(crate::refuse_write(&info.path));
        }
        checked_range(&info.path, offset, len, info.size).map(|_| ())
    }

    fn absent(&self) -> io::Error {
        io::Error::new(io::ErrorKind::NotConnected, format!("{}: the disk is gone", self.inner().info().path))
    }

    fn injected(&self, kind: io::ErrorKind) -> io::Error {
        io::Error::new(kind, format!("{}: injected {kind}", self.inner().info().path))
    }
}

impl Disk for FaultDisk {
    fn info(&self) -> DiskInfo {
        self.inner().info()
    }

    fn read(&self, offset: u64, buf: IoBuf) -> DiskFuture<'_, IoBuf> {
        Box::pin(async move {
            let len = buf.len() as u64;
            self.check(offset, len, false)?;
            let plan = self.plan(On::Read, offset, len)?;
            self.arrive(&plan).await?;
            let from = self.elsewhere(offset, len, plan.misdirect).unwrap_or(offset);
            // Before the inner read: a flush in between takes bytes from the cache only when they are durable.
            let newest = self.state.lock().cache.as_ref().map(|cache| cache.newest(from..from + len));
            let mut buf = self.inner().read(from, buf).await?;
            for (at, bytes) in newest.into_iter().flatten() {
                let at = (at - from) as usize;
                buf[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            flip(&mut buf, &plan.flips);
            self.still(plan.epoch)?;
            Ok(buf)
        })
    }

    fn write(&self, offset: u64, data: Bytes) -> DiskFuture<'_, ()> {
        Box::pin(async move {
            let len = data.len() as u64;
            self.check(offset, len, true)?;
            let plan = self.plan(On::Write, offset, len)?;
            if let Some((target, data)) = self.stored(&plan, offset, data) {
                self.store(target, data, false).await?;
            }
            self.arrive(&plan).await?;
            match plan.tear {
                Some((_, kind)) => Err(self.injected(kind)),
                None => Ok(()),
            }
        })
    }

    fn write_through(&self, offset: u64, data: Bytes) -> DiskFuture<'_, ()> {
        Box::pin(async move {
            let len = data.len() as u64;
            self.check(offset, len, true)?;
            let plan = self.plan(On::Write, offset, len)?;
            let fails = plan.error.is_some() || plan.tear.is_some();
            let flush = if fails { None } else { Some(self.decide(On::Flush, 0, 0)?) };
            let through = flush.as_ref().is_some_and(|flush| flush.error.is_none() && !flush.lose);
            let mut number = None;
            if let Some((target, data)) = self.stored(&plan, offset, data) {
                number = self.store(target, data, through).await?;
            }
            self.arrive(&plan).await?;
            if let Some((_, kind)) = plan.tear {
                return Err(self.injected(kind));
            }
            if let Some(flush) = &flush {
                self.arrive(flush).await?;
            }
            if let Some(number) = number.filter(|_| through) {
                self.destage_one(number).await?;
                self.inner().flush().await?;
            }
            self.still(plan.epoch)
        })
    }

    fn flush(&self) -> DiskFuture<'_, ()> {
        Box::pin(async move {
            let plan = self.plan(On::Flush, 0, 0)?;
            self.arrive(&plan).await?;
            if !plan.lose {
                self.destage().await?;
                self.inner().flush().await?;
            }
            self.still(plan.epoch)
        })
    }

    /// `NotFound` while it is away. The rules have no say in it.
    fn presence(&self) -> DiskFuture<'_, ()> {
        Box::pin(async move {
            self.seen()?;
            self.inner().presence().await
        })
    }

    /// `NotFound` while it is away; else what a read of the first sector comes to. Not counted as one.
    fn probe(&self) -> DiskFuture<'_, ()> {
        Box::pin(async move {
            self.seen()?;
            let sector = u64::from(self.inner().info().logical_sector);
            let plan = self.decide(On::Read, 0, sector)?;
            self.arrive(&plan).await?;
            self.inner().probe().await
        })
    }

    fn trim(&self, offset: u64, len: u64) -> DiskFuture<'_, ()> {
        Box::pin(async move {
            self.check(offset, len, true)?;
            let plan = self.plan(On::Trim, offset, len)?;
            self.arrive(&plan).await?;
            if plan.lose || len == 0 {
                return Ok(());
            }
            let cached = {
                let mut state = self.state.lock();
                match &mut state.cache {
                    Some(cache) => {
                        cache.trim(offset..offset + len);
                        true
                    }
                    None => false,
                }
            };
            if cached { Ok(()) } else { self.inner().trim(offset, len).await }
        })
    }
}

impl fmt::Debug for FaultDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultDisk").field("inner", &self.inner()).finish_non_exhaustive()
    }
}

fn flip(bytes: &mut [u8], bits: &[u64]) {
    for &bit in bits {
        if let Some(byte) = bytes.get_mut((bit / 8) as usize) {
            *byte ^= 1 << (bit % 8);
        }
    }
}

/// Chance from a seed: SplitMix64 (Steele, Lea and Flood 2014, public domain), good enough to pick faults.
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// `count` different numbers below `bound`, which is at least `count`; ascending.
    fn distinct(&mut self, count: u64, bound: u64) -> Vec<u64> {
        let mut chosen = std::collections::BTreeSet::new();
        // Floyd's sampling: one draw for each.
        for last in bound - count..bound {
            let number = self.below(last + 1);
            if !chosen.insert(number) {
                chosen.insert(last);
            }
        }
        chosen.into_iter().collect()
    }

    fn duration(&mut self, range: &RangeInclusive<Duration>) -> Duration {
        let span = range.end().saturating_sub(*range.start()).as_nanos();
        let span = u64::try_from(span).unwrap_or(u64::MAX - 1);
        *range.start() + Duration::from_nanos(self.below(span + 1))
    }
}
