//! The second tier of one pool: its devices, and the two doors to it, [`offer`](L2::offer) and [`read`](L2::read).

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use cache::Seen;
use disk::{Disk, nanos};
use parking_lot::{Mutex, RwLock};
use tokio::{sync::Notify, task::JoinHandle, time::timeout};

use crate::{
    Block, Config, Key, L2Stats,
    device::Device,
    evict, feed,
    header::{Geometry, Identity},
    index::{ADDRESS_MAX, Hash, Index},
    queue::Queue,
    rebuild::Recovered,
    stats::{Counters, add},
};

/// How long a device may take to end what it is writing.
const PATIENCE: Duration = Duration::from_secs(5);

/// A read of a block that the index knows. What comes is unverified; `None`: ask the pool.
pub type Found = Pin<Box<dyn Future<Output = Option<Bytes>> + Send>>;

/// The second tier of one pool. Dropping it ends its tasks where they stand, which is safe at any moment.
#[derive(Debug)]
pub struct L2 {
    pub(crate) shared: Arc<Shared>,
    tasks: Mutex<BTreeMap<u64, JoinHandle<()>>>,
}

/// What its tasks share.
#[derive(Debug)]
pub(crate) struct Shared {
    pool: u64,
    pub(crate) index: Index,
    pub(crate) queue: Mutex<Queue>,
    /// Something waits in the queue.
    pub(crate) more: Notify,
    seen: Mutex<Seen>,
    devices: RwLock<Vec<Arc<Device>>>,
    /// How many those are.
    count: AtomicUsize,
    config: RwLock<Config>,
    /// What a read of the pool's own devices takes, in nanoseconds; 0 if nobody knows.
    home: AtomicU64,
    pub(crate) counters: Counters,
}

/// How a device is taken into use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// With what it remembers, if that is this pool's.
    Remember,
    /// Empty: it is new, or the pool was rewound, so that what it remembers may be of a future that never was.
    Fresh,
}

/// What a block that leaves memory is to the tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offered {
    /// It is here already.
    Cached,
    /// It waits to be written.
    Queued,
    /// It may be written, and is not now: others are worth more, or a setting keeps it out.
    Eligible,
    /// It may not.
    Ineligible,
}

/// Why a device cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddError {
    /// It would hold next to nothing, or says impossible things about its sectors.
    #[error("{0} is too small for a cache device")]
    TooSmall(String),
    /// Addresses in the index reach to 128 TiB.
    #[error("{0}: the cache devices of a pool hold 128 TiB together at most")]
    TooMuch(String),
    /// It is in use.
    #[error("{0} is in use as a cache device already")]
    Known(String),
}

/// A device in use.
#[derive(Clone, Debug)]
pub struct DeviceStatus {
    /// Its guid.
    pub vdev: u64,
    /// Bytes it can hold.
    pub size: u64,
    /// Bytes of it that hold blocks that are known, and log blocks. It may be far from its size and never come nearer: a ring is
    /// as short as the index.
    pub used: u64,
    /// It was never full.
    pub filling: bool,
    /// Bytes written since it was opened.
    pub written: u64,
    /// What was found on it; `None` while that is being found out.
    pub recovered: Option<Recovered>,
    /// It is slow, and therefore left alone most of the time: what its reads typically took.
    pub slow: Option<Duration>,
}

impl L2 {
    /// A tier without devices for the pool with this guid.
    #[must_use]
    pub fn new(pool: u64, config: Config) -> Self {
        let shared = Shared {
            pool,
            index: Index::new(config.index_max),
            queue: Mutex::new(Queue::new(config.buffer)),
            more: Notify::new(),
            seen: Mutex::default(),
            devices: RwLock::default(),
            count: AtomicUsize::new(0),
            config: RwLock::new(config),
            home: AtomicU64::new(0),
            counters: Counters::default(),
        };
        Self { shared: Arc::new(shared), tasks: Mutex::default() }
    }

    /// Works differently from now on.
    pub fn set_config(&self, config: Config) {
        self.change_config(|now| *now = config);
    }

    /// The same, for somebody who knows only a part of it.
    pub fn change_config(&self, change: impl FnOnce(&mut Config)) {
        let config = {
            let mut config = self.shared.config.write();
            change(&mut config);
            *config
        };
        self.shared.index.set_bytes_max(config.index_max);
        self.shared.queue.lock().set_bytes_max(config.buffer);
    }

    /// How it works.
    #[must_use]
    pub fn config(&self) -> Config {
        self.shared.config()
    }

    /// What a read of the pool's own devices takes, if that is known: a cache device that takes several times as long, and long
    /// at all, is left alone for a while.
    pub fn set_home(&self, takes: Option<Duration>) {
        let nanos = takes.map_or(0, nanos);
        self.shared.home.store(nanos, Relaxed);
    }

    /// The same, as it was told.
    #[must_use]
    pub fn home(&self) -> Option<Duration> {
        self.shared.home()
    }

    /// Whether there is a device.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.shared.count.load(Relaxed) > 0
    }

    /// Whether a device has room for more without anything being overwritten.
    #[must_use]
    pub fn is_filling(&self) -> bool {
        self.is_used() && self.shared.is_filling()
    }

    /// Takes a device into use; what it remembers is read in the background. `ashift` is the one in the configuration.
    ///
    /// # Errors
    /// It cannot be used; nothing was written to it.
    pub fn add(&self, disk: Arc<dyn Disk>, vdev: u64, ashift: u32, open: Open) -> Result<(), AddError> {
        let info = disk.info();
        let geometry = Geometry::of(info.size, ashift, self.shared.config().persist_min)
            .ok_or_else(|| AddError::TooSmall(info.path.clone()))?;
        let device = {
            let mut devices = self.shared.devices.write();
            if devices.iter().any(|device| device.who.vdev == vdev) {
                return Err(AddError::Known(info.path));
            }
            let base = free_stretch(&devices, geometry.end).ok_or(AddError::TooMuch(info.path))?;
            let who = Identity { pool: self.shared.pool, vdev };
            let device = Arc::new(Device::new(disk, who, geometry, base));
            devices.push(Arc::clone(&device));
            self.shared.count.fetch_add(1, Relaxed);
            device
        };
        let task = tokio::spawn(feed::run(Arc::clone(&self.shared), device, open));
        self.tasks.lock().insert(vdev, task);
        Ok(())
    }

    /// Stops using a device; whether it was in use. When this returns nothing more is written to it or read from it,
    /// but for reads under way.
    pub async fn remove(&self, vdev: u64) -> bool {
        let (device, is_first) = {
            let devices = self.shared.devices.write();
            let Some(device) = devices.iter().find(|device| device.who.vdev == vdev) else { return false };
            let is_first = !device.stopping.load(Relaxed);
            device.end();
            self.shared.count.fetch_sub(is_first.into(), Relaxed);
            (Arc::clone(device), is_first)
        };
        if is_first {
            let (shared, task) = (Arc::clone(&self.shared), self.tasks.lock().remove(&vdev));
            let device = Arc::clone(&device);
            // Also if whoever wanted it does not wait.
            tokio::spawn(async move { shared.let_go(&device, task).await });
        }
        device.let_go().await;
        is_first
    }

    /// Ends all writing: the devices may be opened by others when this returns. Reads find nothing any more.
    pub async fn close(&self) {
        let devices = {
            let mut devices = self.shared.devices.write();
            self.shared.count.store(0, Relaxed);
            std::mem::take(&mut *devices)
        };
        for device in &devices {
            device.end();
        }
        for device in &devices {
            let task = self.tasks.lock().remove(&device.who.vdev);
            match task {
                Some(task) => ended(task).await,
                // It was leaving.
                None => drop(timeout(2 * PATIENCE, device.let_go()).await),
            }
        }
    }

    /// A block leaves memory: it may be written to a device, or not. Never waits. What it is to the tier; `None` if there is
    /// no device.
    pub fn offer(&self, block: Block) -> Option<Offered> {
        let shared = &*self.shared;
        if !self.is_used() {
            return None;
        }
        let (counters, config) = (&shared.counters, shared.config());
        let lsize = block.lsize.into();
        let hash = block.key().hash();
        if shared.index.peek(hash).is_some() {
            add(&counters.evict_l2_cached, lsize);
            return Some(Offered::Cached);
        }
        if !block.eligible || block.psize == 0 || (block.prefetched && config.noprefetch) {
            add(&counters.evict_l2_ineligible, lsize);
            return Some(Offered::Ineligible);
        }
        counters.eligible(&block);
        let is_wanted = match config.mfuonly {
            0 => true,
            2 => block.frequent || block.metadata,
            _ => block.frequent,
        };
        let is_queued = is_wanted && self.admit(hash, block, &config);
        Some(if is_queued { Offered::Queued } else { Offered::Eligible })
    }

    /// Whether it waits now.
    fn admit(&self, hash: Hash, block: Block, config: &Config) -> bool {
        let shared = &*self.shared;
        let again = shared.seen.lock().again(hash.0, shared.index.len());
        if !again && config.second_eviction && !shared.is_filling() {
            add(&shared.counters.l2_skip_first_eviction, block.lsize.into());
            return false;
        }
        // What waits is counted by its own size, so it may not hold the megabyte that it came in.
        let data = if block.is_part { Bytes::copy_from_slice(&block.data) } else { block.data };
        shared.wait(hash, Block { is_part: false, data, ..block }, again)
    }

    /// What it did and holds.
    #[must_use]
    pub fn stats(&self) -> L2Stats {
        let devices = self.shared.in_use();
        let sum = |part: fn(&Device) -> u64| devices.iter().map(|device| part(device)).sum::<u64>();
        let (log_bytes, log_blocks) =
            (sum(|device| device.logs.0.load(Relaxed)), sum(|device| device.logs.1.load(Relaxed)));
        let mut stats = L2Stats {
            l2_hdr_size: if devices.is_empty() { 0 } else { self.shared.index.memory() },
            l2_log_blk_asize: log_bytes,
            l2_log_blk_count: log_blocks,
            l2_log_blk_avg_asize: log_bytes.checked_div(log_blocks).unwrap_or(0),
            l2_bufs: self.shared.index.len(),
            l2_ndev: devices.len() as u64,
            ..self.shared.counters.get()
        };
        devices.iter().for_each(|device| device.sizes.add_to(&mut stats));
        stats
    }

    /// The devices in use.
    #[must_use]
    pub fn devices(&self) -> Vec<DeviceStatus> {
        let devices = self.shared.in_use();
        let status = |device: &Arc<Device>| DeviceStatus {
            vdev: device.who.vdev,
            size: device.geometry.ring(),
            used: device.used(),
            filling: device.filling.load(Relaxed),
            written: device.written.load(Relaxed),
            recovered: device.recovered.borrow().clone(),
            slow: device.slow(),
        };
        devices.iter().map(status).collect()
    }

    /// What was found on a device, when that is known; `None` if it was let go before.
    #[must_use]
    pub fn recovery(&self, vdev: u64) -> Option<impl Future<Output = Option<Recovered>> + Send + 'static> {
        let devices = self.shared.in_use();
        let device = devices.iter().find(|device| device.who.vdev == vdev)?;
        let mut recovered = device.recovered.subscribe();
        Some(async move { recovered.wait_for(Option::is_some).await.ok()?.clone() })
    }

    /// Bytes of memory that it holds: index, what waits to be written, what is being written, admission.
    #[must_use]
    pub fn memory(&self) -> u64 {
        let waiting = self.waiting();
        let in_flight =
            self.shared.devices.read().iter().map(|device| device.in_flight.load(Relaxed)).sum::<u64>();
        self.shared.index.memory() + self.shared.seen.lock().memory() + waiting + in_flight
    }

    /// Bytes of memory that the index takes beyond what it may, and what admission remembers beyond what an index of that
    /// size needs: they are given up when the devices' hands come to what is known of, or at once if somebody needs them
    /// ([`shed`](Self::shed)).
    #[must_use]
    pub fn beyond(&self) -> u64 {
        let index = &self.shared.index;
        let (known, memory) = (index.len(), index.memory());
        let excess = memory.saturating_sub(self.shared.config().index_max);
        let (stays, of) = (u128::from(memory - excess), u128::from(memory.max(1)));
        let known_then = (u128::from(known) * stays / of) as u64;
        excess + self.shared.seen.lock().beyond(known_then)
    }

    /// Gives them up. Blocks that are not known any more stay on the devices, and are found again when the index has had room for
    /// them for a while; on devices that are too small to remember anything, never.
    pub fn shed(&self) {
        let gone = self.shared.index.shed();
        if gone > 0 {
            self.shared.settle_shed(gone);
        }
        let known = self.shared.index.len();
        let mut seen = self.shared.seen.lock();
        if seen.beyond(known) > 0 {
            *seen = Seen::default();
        }
    }

    /// Bytes that wait to be written.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.shared.queue.lock().bytes()
    }

    /// Whether a block is here: makes it no hotter.
    #[must_use]
    pub fn holds(&self, key: &Key) -> bool {
        self.is_used() && self.shared.index.peek(key.hash()).is_some()
    }
}

/// Waits until a device's task has ended, for a while.
async fn ended(mut task: JoinHandle<()>) {
    if timeout(PATIENCE, &mut task).await.is_err() {
        // The device does not answer: what it is still writing is what nobody will ask for.
        task.abort();
        let _aborted = task.await;
    }
}

impl Drop for L2 {
    fn drop(&mut self) {
        self.tasks.get_mut().values().for_each(JoinHandle::abort);
    }
}

impl Shared {
    pub(crate) fn config(&self) -> Config {
        *self.config.read()
    }

    pub(crate) fn home(&self) -> Option<Duration> {
        Some(Duration::from_nanos(self.home.load(Relaxed))).filter(|takes| !takes.is_zero())
    }

    /// The devices, without those that are leaving.
    fn in_use(&self) -> Vec<Arc<Device>> {
        let devices = self.devices.read();
        devices.iter().filter(|device| !device.stopping.load(Relaxed)).cloned().collect()
    }

    /// Lets a device go that is stopping. Its addresses are its own until nothing leads to them: a device that comes
    /// meanwhile has others.
    async fn let_go(&self, device: &Arc<Device>, task: Option<JoinHandle<()>>) {
        if let Some(task) = task {
            ended(task).await;
        }
        evict::search(self, device, 0..device.geometry.end).await;
        self.index.shrink().await;
        let was_last = {
            let mut devices = self.devices.write();
            devices.retain(|other| !Arc::ptr_eq(other, device));
            devices.is_empty()
        };
        if was_last {
            *self.seen.lock() = Seen::default();
            self.queue.lock().clear();
        }
        device.gone.send_replace(true);
    }

    /// A block waits to be written, if it is more valuable than what waits already; whether it does.
    fn wait(&self, hash: Hash, block: Block, again: bool) -> bool {
        let key = block.key();
        let dropped = self.queue.lock().push(hash, block, again);
        let waits = dropped.iter().all(|block| block.key() != key);
        for block in dropped {
            add(&self.counters.l2_skip_over_budget, block.lsize.into());
        }
        self.more.notify_one();
        waits
    }

    /// A block that was taken from the queue did not fit.
    pub(crate) fn wait_again(&self, hash: Hash, block: Block) {
        self.wait(hash, block, true);
    }

    /// Blocks that lost their places in the index are not held any more.
    pub(crate) fn settle_displaced(&self) {
        for place in self.index.take_displaced() {
            if let Some(device) = self.device_at(place.address) {
                device.sizes.forget(1, device.sizes.blocks());
            }
        }
    }

    /// So many blocks were shed, of all devices alike.
    fn settle_shed(&self, gone: u64) {
        let of = self.index.len() + gone;
        for device in self.in_use() {
            device.sizes.forget(gone, of);
            device.falls_short();
        }
    }

    /// Whether a device still has room for everything. One that cannot be written to has none.
    fn is_filling(&self) -> bool {
        self.devices.read().iter().any(|device| device.has_room())
    }

    /// What one round may take: together no more than what may wait.
    pub(crate) fn share(&self) -> u64 {
        let buffer = self.config().buffer;
        (buffer / self.sharers()).max(feed::ROUND_MIN).min(buffer)
    }

    /// How many devices share what there is for all; one at least.
    pub(crate) fn sharers(&self) -> u64 {
        self.count.load(Relaxed).max(1) as u64
    }

    /// The device that has this address.
    pub(crate) fn device_at(&self, address: u64) -> Option<Arc<Device>> {
        let devices = self.devices.read();
        devices.iter().find(|device| device.addresses().contains(&address)).cloned()
    }
}

/// Where a device of `size` bytes fits between the others, the lowest place.
fn free_stretch(devices: &[Arc<Device>], size: u64) -> Option<u64> {
    let mut taken: Vec<_> = devices.iter().map(|device| device.addresses()).collect();
    taken.sort_by_key(|addresses| addresses.start);
    let mut base = 0;
    for addresses in taken {
        if addresses.start - base >= size {
            break;
        }
        base = addresses.end;
    }
    (base.checked_add(size)? <= ADDRESS_MAX).then_some(base)
}
