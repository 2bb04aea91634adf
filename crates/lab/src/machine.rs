//! The machine of a drill: bays with disks that can be pulled, slowed, corrupted and lied with, simulated or copies of
//! a real pool's files.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use disk::{Disk, Effect, Fault, FaultDisk, FileDisk, MemDisk, ModelDisk, On, OpenOptions, Profile};
use engine::{
    BoxFuture,
    devices::{NewLeaf, Opener},
    events::DeviceName,
};
use parking_lot::Mutex;
use rand::Rng;

use crate::LabError;

/// A place for a disk.
#[derive(Debug)]
pub(crate) struct Bay {
    pub(crate) path: String,
    /// What is left when the power goes.
    media: Arc<dyn Disk>,
    /// How long it takes; none: as long as it takes.
    profile: Option<Profile>,
    state: Mutex<BayState>,
}

#[derive(Debug)]
struct BayState {
    fault: Arc<FaultDisk>,
    device: Arc<dyn Disk>,
    present: bool,
}

/// All disks of a machine.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) bays: Vec<Bay>,
    seed: u64,
    /// Counts power cuts: who was there before one is given no disks after it.
    starts: AtomicU64,
}

/// Opens disks for the pool that was opened after the last start of the machine.
#[derive(Debug)]
pub(crate) struct Controller {
    machine: Arc<Machine>,
    start: u64,
}

impl Bay {
    fn new(path: String, media: Arc<dyn Disk>, profile: Option<Profile>, seed: u64) -> Self {
        let (fault, device) = wire(&media, profile, seed);
        let state = Mutex::new(BayState { fault, device, present: true });
        Self { path, media, profile, state }
    }

    pub(crate) fn device(&self) -> Arc<dyn Disk> {
        Arc::clone(&self.state.lock().device)
    }

    pub(crate) fn is_present(&self) -> bool {
        self.state.lock().present
    }

    fn fault(&self) -> Arc<FaultDisk> {
        Arc::clone(&self.state.lock().fault)
    }

    pub(crate) fn pull(&self) {
        let mut state = self.state.lock();
        state.present = false;
        state.fault.vanish();
    }

    pub(crate) fn plug(&self) {
        let mut state = self.state.lock();
        state.present = true;
        state.fault.come_back();
    }

    /// Every command takes about this much longer.
    pub(crate) fn slow(&self, by: Duration) {
        for on in [On::Read, On::Write, On::Flush] {
            self.fault().inject(Fault::anywhere(on, Effect::Delay(by / 2..=by * 3 / 2)));
        }
    }

    /// It acknowledges flushes, and does nothing.
    pub(crate) fn lie(&self) {
        self.fault().inject(Fault::anywhere(On::Flush, Effect::Lose));
    }

    /// One in `every` of its answers has flipped bits.
    pub(crate) fn misread(&self, every: u32) {
        let flips = Fault::anywhere(On::Read, Effect::FlipBits(3)).chance_ppm(1_000_000 / every.max(1));
        self.fault().inject(flips);
    }

    pub(crate) fn heal(&self) {
        self.fault().heal();
    }

    /// Flips bits at rest at up to `places` places where something is; how many there were.
    pub(crate) async fn rot(&self, places: usize, random: &mut impl Rng) -> io::Result<usize> {
        const PIECE: u64 = 64 << 10;
        let size = self.media.info().size;
        let mut hit = 0;
        for _ in 0..places * 64 {
            if hit == places {
                break;
            }
            let first = (4 << 20) / PIECE;
            let last = size.saturating_sub(1 << 20) / PIECE;
            if last <= first {
                break;
            }
            let start = random.random_range(first..last) * PIECE;
            let found = self.media.read(start, disk::IoBuf::with_len(PIECE as usize)).await?;
            if found.iter().any(|byte| *byte != 0) {
                self.fault().rot(start..start + PIECE, 64).await?;
                hit += 1;
            }
        }
        Ok(hit)
    }
}

/// A disk with its faults, and its pace.
fn wire(media: &Arc<dyn Disk>, profile: Option<Profile>, seed: u64) -> (Arc<FaultDisk>, Arc<dyn Disk>) {
    let fault = Arc::new(FaultDisk::with_write_cache(Arc::clone(media), seed));
    let device: Arc<dyn Disk> = match profile {
        Some(profile) => {
            Arc::new(ModelDisk::new(Arc::clone(&fault) as Arc<dyn Disk>, profile, seed ^ 0x5eed))
        }
        None => Arc::clone(&fault) as Arc<dyn Disk>,
    };
    (fault, device)
}

impl Machine {
    /// Disks in memory: one for each profile, each of `bytes`.
    pub(crate) fn simulated(profiles: &[Profile], bytes: u64, seed: u64) -> Arc<Self> {
        let bay = |(n, profile): (usize, &Profile)| {
            let path = format!("/dev/disk/by-path/bay{n}");
            let media = Arc::new(MemDisk::new(bytes).named(path.clone()));
            Bay::new(path, media, Some(*profile), seed ^ (n as u64) << 40)
        };
        let bays = profiles.iter().enumerate().map(bay).collect();
        Arc::new(Self { bays, seed, starts: AtomicU64::new(0) })
    }

    /// These files, which are written to.
    pub(crate) fn of_files(files: &[PathBuf], seed: u64) -> Result<Arc<Self>, LabError> {
        let mut bays = Vec::new();
        for (n, path) in files.iter().enumerate() {
            let fail = |source| LabError::File { path: path.display().to_string(), source };
            let how = OpenOptions { lock: true, ..OpenOptions::default() };
            let media = FileDisk::open(path, how).map_err(fail)?;
            let name = media.info().path;
            bays.push(Bay::new(name, Arc::new(media), None, seed ^ (n as u64) << 40));
        }
        Ok(Arc::new(Self { bays, seed, starts: AtomicU64::new(0) }))
    }

    /// What a pool that is opened now finds its disks with.
    pub(crate) fn controller(self: &Arc<Self>) -> Arc<Controller> {
        Arc::new(Controller { machine: Arc::clone(self), start: self.starts.load(Relaxed) })
    }

    /// All disks that are there.
    pub(crate) fn devices(&self) -> Vec<Arc<dyn Disk>> {
        self.bays.iter().filter(|bay| bay.is_present()).map(Bay::device).collect()
    }

    pub(crate) fn find(&self, path: &str) -> Option<&Bay> {
        self.bays.iter().find(|bay| bay.path == path)
    }

    /// The power goes and comes back: of what was not flushed, each disk keeps what chance leaves.
    pub(crate) async fn power_cut(&self) -> io::Result<()> {
        let start = self.starts.fetch_add(1, Relaxed) + 1;
        for (n, bay) in (0_u64..).zip(&self.bays) {
            let seed = self.seed ^ start << 20 ^ n;
            bay.fault().power_cut(seed).await?;
            let (fault, device) = wire(&bay.media, bay.profile, seed);
            let mut state = bay.state.lock();
            if !state.present {
                fault.vanish();
            }
            (state.fault, state.device) = (fault, device);
        }
        Ok(())
    }
}

impl Opener for Controller {
    fn open<'a>(&'a self, device: &'a DeviceName) -> BoxFuture<'a, io::Result<Arc<dyn Disk>>> {
        Box::pin(async move {
            let is_now = self.start == self.machine.starts.load(Relaxed);
            let bay = device.path.as_deref().and_then(|path| self.machine.find(path));
            let bay = bay.filter(|bay| is_now && bay.is_present());
            bay.map(Bay::device).ok_or_else(|| io::ErrorKind::NotFound.into())
        })
    }

    fn replacement<'a>(&'a self, _: &'a DeviceName) -> BoxFuture<'a, Option<NewLeaf>> {
        Box::pin(async { None })
    }
}

/// Copies `files` into `dir`, holes as holes, under numbered names. The originals are opened for reading only, under
/// a lock that keeps writers away until all are copied. Blocks.
///
/// # Errors
/// A file cannot be read, or somebody writes to it; the copy cannot be written.
pub fn copies(files: &[PathBuf], dir: &Path, copied: &AtomicU64) -> Result<Vec<PathBuf>, LabError> {
    let fail = |path: &Path, source: io::Error| LabError::File { path: path.display().to_string(), source };
    let mut held = Vec::new();
    for path in files {
        let file = File::open(path).map_err(|source| fail(path, source))?;
        file.try_lock_shared().map_err(|_| {
            let busy = "it is in use: export the pool first, or rehearse on a snapshot of its files";
            fail(path, io::Error::new(io::ErrorKind::ResourceBusy, busy))
        })?;
        held.push(file);
    }
    let mut made = Vec::new();
    for (n, (path, file)) in files.iter().zip(&mut held).enumerate() {
        let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let target = dir.join(format!("{n:02}-{name}"));
        copy(file, &target, copied).map_err(|source| fail(path, source))?;
        made.push(target);
    }
    Ok(made)
}

/// Pieces of zeroes become holes. Whoever makes the copy may read what is in it, and nobody else.
fn copy(from: &mut File, target: &Path, copied: &AtomicU64) -> io::Result<()> {
    let mut to = File::options().write(true).create_new(true).mode(0o600).open(target)?;
    let mut piece = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        let len = from.read(&mut piece)?;
        if len == 0 {
            return to.set_len(at);
        }
        if piece[..len].iter().any(|byte| *byte != 0) {
            to.seek(io::SeekFrom::Start(at))?;
            to.write_all(&piece[..len])?;
        }
        at += len as u64;
        copied.fetch_add(len as u64, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    /// A copy of disks that only root may read was for everybody.
    #[test]
    fn a_copy_of_a_pool_is_for_nobody_else() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a");
        fs::write(&file, "secret").unwrap();
        let made = copies(&[file], dir.path(), &AtomicU64::new(0)).unwrap();
        assert_eq!(fs::read(&made[0]).unwrap(), b"secret");
        assert_eq!(fs::metadata(&made[0]).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
