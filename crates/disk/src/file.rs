//! Files and block devices: the disk that real pools live on.
//!
//! Two choices are made at `open`, each with a fallback, and [`FileDisk::backend`] tells how they ended:
//!
//! * **Who waits.** io_uring where the kernel lets us (containers often do not), otherwise blocking calls on a
//!   bounded number of threads of tokio's blocking pool. Outside a tokio runtime the calling thread does it.
//! * **Whose cache.** O_DIRECT, because the pool has its own cache, or the page cache: where the file system
//!   has no direct I/O, or on request. Cached reads first ask the page cache without waiting; a hit costs one
//!   system call and no wake-up.
//!
//! Direct I/O wants offsets, lengths and memory aligned. An unaligned read goes through a larger buffer. An
//! unaligned write is a read-modify-write of its sectors, during which no other write is under way:
//! otherwise it could put a neighbour's old bytes back.
//!
//! A disk opened read-only is open with O_RDONLY: no bug above can write to it. One that a pool is written to is
//! opened with [`OpenOptions::lock`], so that no second process (or second pool of this one) writes to it too.

use std::{
    fs::{File, TryLockError},
    io,
    os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use tokio::sync::{Mutex, OwnedRwLockWriteGuard, RwLock, Semaphore};

use crate::{
    Disk, DiskFuture, DiskInfo, IoBuf, checked_range, join, refuse_write,
    request::{Finished, Parts, Payload, Request, Verb},
    sys, uring,
};

/// Whether the page cache is bypassed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direct {
    /// O_DIRECT where it works, the page cache elsewhere.
    #[default]
    Auto,
    /// Through the page cache.
    Never,
    /// O_DIRECT, or `open` fails.
    Always,
}

/// Who carries operations out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// io_uring where the kernel allows it, blocking calls elsewhere.
    #[default]
    Auto,
    /// Blocking calls on tokio's blocking pool.
    Blocking,
    /// io_uring, or `open` fails.
    Uring,
}

/// How to open a [`FileDisk`]. The default is for writing, with the best the system has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Open without permission to write.
    pub read_only: bool,
    /// Page cache or not.
    pub direct: Direct,
    /// io_uring or not.
    pub engine: Engine,
    /// Nobody else may have it open with this option, in this process or another: an advisory lock on the file
    /// (released when the disk is dropped, or the process dies) and, for block devices, exclusive use as the
    /// kernel knows it, which mounted file systems, RAID and swap have too. `open` fails with `ResourceBusy`
    /// instead of waiting. Means nothing together with `read_only`.
    pub lock: bool,
}

/// How a [`FileDisk`] really works, after all fallbacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backend {
    /// io_uring, as opposed to the blocking pool.
    pub uring: bool,
    /// O_DIRECT, as opposed to the page cache.
    pub direct: bool,
}

/// A file or a block device as a [`Disk`]. io_uring needs a tokio runtime with I/O enabled.
#[derive(Debug)]
pub struct FileDisk {
    file: Arc<File>,
    path: String,
    read_only: bool,
    geometry: sys::Geometry,
    /// Bytes when last asked: see [`FileDisk::measure`].
    size: AtomicU64,
    /// Held by whoever [asks](FileDisk::ask) the file system something.
    asking: Arc<Mutex<()>>,
    backend: Backend,
    /// Unit of offsets and lengths of the transfers we make: 1 through the page cache.
    align: u32,
    /// Threads of the blocking pool this disk may use.
    permits: Arc<Semaphore>,
    /// Shared by aligned direct writes, exclusive for a read-modify-write.
    sectors: Arc<RwLock<()>>,
    cache: CacheLuck,
    /// Writes cannot say themselves that they are on stable media: a flush has to follow.
    no_write_through: AtomicBool,
}

/// Bytes moved at once from or to a file in memory, by the task itself: a copy of ten microseconds, where waking a thread
/// of the kernel and being woken costs more. Longer transfers go in such steps, between which others may run: threads of
/// the kernel that write to one file spin for its lock (a fifth of their time, and a sixth fewer writes of 128 KiB).
const COPY_MAX: usize = 64 << 10;

/// Most parts of one write that the kernel takes (`IOV_MAX`), and what they must have on average to be taken as they are:
/// with 4 KiB, pinning them cost a direct write more than copying them does.
const PARTS_MAX: usize = 1024;
const PART_MIN: usize = 8 << 10;

/// Threads a disk may block at once: as deep as the queue of the disks that have no better interface.
const BLOCKING_MAX: usize = 32;

/// An operation failed; the source says why.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {what}")]
struct FileError {
    path: String,
    what: String,
    #[source]
    source: io::Error,
}

impl FileDisk {
    /// Opens the file or block device at `path`. Blocks for as long as the file system takes to open it and,
    /// if direct I/O is wanted, for one read. Errors name the path.
    pub fn open(path: impl AsRef<Path>, options: OpenOptions) -> io::Result<Self> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let fail = |what: &str, source| file_error(&name, what.to_owned(), source);

        // Looked at before it is opened: opening a FIFO would wait for its other end.
        let metadata = path.metadata().map_err(|error| fail("cannot open", error))?;
        let kind = metadata.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            let source = io::Error::new(io::ErrorKind::InvalidInput, "neither a file nor a block device");
            return Err(fail("cannot open", source));
        }

        let lock = options.lock && !options.read_only;
        // Only block devices know O_EXCL without O_CREAT; for files its meaning is undefined.
        let exclusive = if lock && kind.is_block_device() { libc::O_EXCL } else { 0 };

        let uring = match (options.engine, uring::available()) {
            (Engine::Blocking, _) => false,
            (_, Ok(())) => true,
            (Engine::Auto, Err(error)) => {
                tracing::debug!(path = name, %error, "no io_uring: blocking calls");
                false
            }
            (Engine::Uring, Err(error)) => return Err(fail("cannot use io_uring", error)),
        };

        let direct = match options.direct {
            Direct::Never => None,
            Direct::Auto | Direct::Always => match open_direct(path, options.read_only, exclusive) {
                Ok(opened) => Some(opened),
                Err(error) if options.direct == Direct::Always || !error.is_about_direct => {
                    return Err(busy_or(&name, fail, "cannot open with O_DIRECT", error.source));
                }
                Err(error) => {
                    tracing::debug!(path = name, error = %error.source, "no O_DIRECT: page cache");
                    None
                }
            },
        };
        let backend = Backend { uring, direct: direct.is_some() };
        let (file, geometry, align) = match direct {
            Some((file, geometry, align)) => (file, geometry, align),
            None => {
                let file = open_with_flags(path, options.read_only, exclusive)
                    .map_err(|error| busy_or(&name, fail, "cannot open", error))?;
                let geometry = sys::geometry(&file).map_err(|error| fail("cannot use", error))?;
                (file, geometry, 1)
            }
        };
        if lock {
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(in_use(&name)),
                Err(TryLockError::Error(error)) => return Err(fail("cannot lock", error)),
            }
        }
        let disk = Self {
            file: Arc::new(file),
            path: name,
            read_only: options.read_only,
            geometry,
            size: AtomicU64::new(0),
            asking: Arc::default(),
            backend,
            align,
            permits: Arc::new(Semaphore::new(BLOCKING_MAX)),
            sectors: Arc::default(),
            cache: CacheLuck::default(),
            no_write_through: AtomicBool::new(false),
        };
        disk.refresh()?;
        Ok(disk)
    }

    /// Which way operations go.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Whether it is a block device; else it is a file.
    #[must_use]
    pub fn is_block_device(&self) -> bool {
        self.geometry.block_device
    }

    /// Makes a file longer or shorter.
    ///
    /// # Errors
    /// It is a block device, or the file system refuses.
    pub fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.file
            .set_len(bytes)
            .map_err(|error| file_error(&self.path, "cannot change its size".to_owned(), error))?;
        self.refresh().map(drop)
    }

    /// Asks the system for the size, which may have changed. For a file that may take as long as its file system likes.
    fn refresh(&self) -> io::Result<u64> {
        self.note_size(sys::size(&self.file, self.geometry.block_device))
    }

    /// The same beside everything else.
    async fn measure(&self) -> io::Result<u64> {
        let block_device = self.geometry.block_device;
        self.note_size(self.ask(move |file| sys::size(file, block_device)).await)
    }

    fn note_size(&self, told: io::Result<u64>) -> io::Result<u64> {
        let size = told.map_err(|error| file_error(&self.path, "cannot tell its size".to_owned(), error))?;
        // Direct I/O cannot write the last part of a sector without making the file longer.
        let size = size - size % u64::from(self.align);
        // What Linux says of a device that was pulled, for as long as somebody has it open and however long its path stays.
        // It has no other size: it keeps the one that it had.
        if size == 0 && self.geometry.block_device && self.size.load(Relaxed) > 0 {
            let source = io::Error::new(io::ErrorKind::NotFound, "it has no bytes any more");
            return Err(gone(&self.path, source));
        }
        self.size.store(size, Relaxed);
        Ok(size)
    }

    /// Asks the file system something, on a thread of the blocking pool. One question at a time: a server of files that does
    /// not answer keeps one thread, however often it is asked.
    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&File) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let turn = Arc::clone(&self.asking).lock_owned().await;
        let file = Arc::clone(&self.file);
        let ask = move || {
            let answer = question(&file);
            drop(turn);
            answer
        };
        match tokio::runtime::Handle::try_current() {
            Ok(_) => tokio::task::spawn_blocking(ask).await.map_err(io::Error::other)?,
            Err(_) => ask(),
        }
    }

    /// `InvalidInput` unless the range is inside the device; looks again before it says so.
    async fn check(&self, offset: u64, len: u64) -> io::Result<()> {
        if checked_range(&self.path, offset, len, self.size.load(Relaxed)).is_ok() {
            return Ok(());
        }
        checked_range(&self.path, offset, len, self.measure().await?).map(|_| ())
    }

    /// Carries `request` out the best way there is.
    async fn run(&self, mut request: Request) -> io::Result<Finished> {
        if self.geometry.in_memory {
            // A task that writes to memory only never waits; let others run now and then.
            tokio::task::coop::consume_budget().await;
            return Ok(request.execute());
        }
        if self.backend.uring {
            match uring::submit(request) {
                Ok(in_flight) => {
                    let finished = in_flight.await;
                    if !uring::must_retry(&finished.result) {
                        return Ok(finished);
                    }
                    request = finished.request;
                }
                Err(refused) => request = refused,
            }
        }
        request.execute_blocking(&self.permits).await
    }

    /// Moves `len` bytes between the payload (from its byte `start`) and `offset`, in as many steps as the
    /// kernel likes. Ends early at the end of the device; returns how far it came, `start` included.
    async fn transfer(
        &self,
        verb: Verb,
        offset: u64,
        (start, len): (usize, usize),
        payload: Payload,
        exclusive: Option<Arc<OwnedRwLockWriteGuard<()>>>,
    ) -> io::Result<(usize, Payload)> {
        assert!(start <= len, "a transfer goes forward");
        let file = Arc::clone(&self.file);
        let mut request = Request { file, verb, offset, start, len: 0, payload, exclusive };
        while request.start < len {
            let start = request.start;
            let step = if self.geometry.in_memory { COPY_MAX } else { usize::MAX };
            request.aim(start, offset + start as u64, (len - start).min(step) as u64);
            let finished = self.run(request).await?;
            request = finished.request;
            let moved = finished.result?;
            let end = request.start + moved;
            // What a direct transfer leaves over must start on a sector again.
            let whole = if end < len { end - end % self.align as usize } else { end };
            if whole <= request.start {
                request.start = end;
                break;
            }
            request.start = whole;
            if self.geometry.in_memory && whole < len {
                tokio::task::yield_now().await;
            }
        }
        Ok((request.start, request.payload))
    }

    /// Fills the first `len` bytes of the memory behind `buf`, of which at least `needed` must be there.
    async fn read_into(&self, offset: u64, buf: IoBuf, len: usize, needed: usize) -> io::Result<IoBuf> {
        let (buf, cached) = if self.backend.direct {
            (buf, 0)
        } else {
            let mut buf = buf;
            let cached = self.cache.read(&self.file, offset, &mut buf.whole_mut()[..len]);
            (buf, cached)
        };
        let (got, payload) =
            self.transfer(Verb::Read, offset, (cached, len), Payload::Buf(buf), None).await?;
        if got < needed {
            // The device became smaller: say so, if that is what it is.
            self.measure().await?;
            self.check(offset, needed as u64).await?;
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let Payload::Buf(buf) = payload else { unreachable!("a read keeps its buffer") };
        Ok(buf)
    }

    async fn read_any(&self, offset: u64, mut buf: IoBuf) -> io::Result<IoBuf> {
        let align = self.align as usize;
        let skip = (offset % u64::from(self.align)) as usize;
        let len = buf.len();
        if skip == 0 {
            // The memory behind a buffer is whole pages, so a short tail needs no other one.
            return self.read_into(offset, buf, len.next_multiple_of(align), len).await;
        }
        let span = (skip + len).next_multiple_of(align);
        let bounce = self.read_into(offset - skip as u64, IoBuf::with_len(span), span, skip + len).await?;
        buf.copy_from_slice(&bounce[skip..skip + len]);
        Ok(buf)
    }

    async fn write_any(&self, verb: Verb, offset: u64, data: Bytes) -> io::Result<()> {
        if !self.backend.direct {
            return self.write_from(verb, offset, data.len(), Payload::Bytes(data), None).await;
        }
        let align = self.align as usize;
        let skip = (offset % u64::from(self.align)) as usize;
        let len = data.len();
        if skip == 0 && len.is_multiple_of(align) {
            let _shared = self.sectors.read().await;
            let aligned = data.as_ptr().addr().is_multiple_of(align);
            let payload = if aligned { Payload::Bytes(data) } else { Payload::Buf(IoBuf::from_slice(&data)) };
            return self.write_from(verb, offset, len, payload, None).await;
        }
        let exclusive = Arc::new(Arc::clone(&self.sectors).write_owned().await);
        let base = offset - skip as u64;
        let span = (skip + len).next_multiple_of(align);
        let mut bounce = IoBuf::with_len(span);
        // Only the first and the last sector keep bytes of their own.
        for edge in [0, span - align] {
            let sector = self.read_into(base + edge as u64, IoBuf::with_len(align), align, align).await?;
            bounce[edge..edge + align].copy_from_slice(&sector);
        }
        bounce[skip..skip + len].copy_from_slice(&data);
        self.write_from(verb, base, span, Payload::Buf(bounce), Some(exclusive)).await
    }

    /// Without a copy where the kernel can take the parts from where they are.
    async fn write_parts_any(&self, offset: u64, len: usize, parts: Arc<[Bytes]>) -> io::Result<()> {
        let align = self.align as usize;
        let is_aligned =
            |part: &Bytes| part.len().is_multiple_of(align) && part.as_ptr().addr().is_multiple_of(align);
        let is_whole = offset.is_multiple_of(u64::from(self.align)) && parts.iter().all(is_aligned);
        // Many small ones are copied faster than described.
        let is_worth_it = (2..=PARTS_MAX).contains(&parts.len()) && len / parts.len() >= PART_MIN;
        if !is_worth_it || (self.backend.direct && !is_whole) {
            return self.write_any(Verb::Write, offset, join(&parts)).await;
        }
        let _shared = if self.backend.direct { Some(self.sectors.read().await) } else { None };
        self.write_from(Verb::Write, offset, len, Payload::Parts(Parts::new(parts)), None).await
    }

    /// In one step where the kernel and the file system can, else in two.
    async fn write_through_any(&self, offset: u64, data: Bytes) -> io::Result<()> {
        if !self.no_write_through.load(Relaxed) {
            match self.write_any(Verb::WriteThrough, offset, data.clone()).await {
                Err(error) if is_unsupported(&error) => {}
                other => return other,
            }
        }
        self.write_any(Verb::Write, offset, data).await?;
        // It was about the flag, not about this write.
        self.no_write_through.store(true, Relaxed);
        self.command(Verb::Sync, 0, 0).await
    }

    async fn write_from(
        &self,
        verb: Verb,
        offset: u64,
        len: usize,
        payload: Payload,
        exclusive: Option<Arc<OwnedRwLockWriteGuard<()>>>,
    ) -> io::Result<()> {
        match self.transfer(verb, offset, (0, len), payload, exclusive).await {
            Ok((written, _)) if written < len => Err(io::ErrorKind::WriteZero.into()),
            Ok(_) => Ok(()),
            Err(error) => Err(self.refusal(error).await),
        }
    }

    /// Why a write failed. That there is no space is also what Linux says when a block device was pulled: then it says so.
    /// (Of one that is there it means what it says: a thin volume whose pool is full.)
    async fn refusal(&self, error: io::Error) -> io::Error {
        if !self.geometry.block_device || error.kind() != io::ErrorKind::StorageFull {
            return error;
        }
        match self.measure().await {
            Err(gone) if gone.kind() == io::ErrorKind::NotFound => gone,
            _ => error,
        }
    }

    /// A request without memory.
    async fn command(&self, verb: Verb, offset: u64, len: u64) -> io::Result<()> {
        let file = Arc::clone(&self.file);
        let request = Request { file, verb, offset, start: 0, len, payload: Payload::None, exclusive: None };
        self.run(request).await?.result.map(|_| ())
    }

    /// Whether a write has anything to do, once it may be done at all.
    async fn is_to_write(&self, offset: u64, len: usize) -> io::Result<bool> {
        if self.read_only {
            return Err(refuse_write(&self.path));
        }
        self.check(offset, len as u64).await?;
        Ok(len > 0)
    }

    fn error(&self, what: impl FnOnce() -> String) -> impl FnOnce(io::Error) -> io::Error {
        |source| match source.kind() {
            // Already names the path.
            io::ErrorKind::InvalidInput if source.raw_os_error().is_none() => source,
            _ => file_error(&self.path, what(), source),
        }
    }
}

impl Disk for FileDisk {
    fn info(&self) -> DiskInfo {
        let known = self.size.load(Relaxed);
        DiskInfo {
            // A device that no longer tells keeps the size it had. That of a file may be a server's to tell, for which nobody
            // can wait here: it is as large as the last probe found it.
            size: if self.geometry.block_device { self.refresh().unwrap_or(known) } else { known },
            logical_sector: self.geometry.logical_sector.max(if self.backend.direct {
                self.align
            } else {
                1
            }),
            physical_sector: self.geometry.physical_sector.max(self.geometry.logical_sector),
            rotational: self.geometry.rotational,
            read_only: self.read_only,
            path: self.path.clone(),
        }
    }

    fn read(&self, offset: u64, buf: IoBuf) -> DiskFuture<'_, IoBuf> {
        Box::pin(async move {
            let len = buf.len();
            self.check(offset, len as u64).await?;
            if len == 0 {
                return Ok(buf);
            }
            // A task whose reads all hit the page cache never waits; let others run now and then.
            tokio::task::coop::consume_budget().await;
            let what = || format!("cannot read {len} bytes at {offset}");
            self.read_any(offset, buf).await.map_err(self.error(what))
        })
    }

    fn write(&self, offset: u64, data: Bytes) -> DiskFuture<'_, ()> {
        Box::pin(async move {
            let len = data.len();
            if !self.is_to_write(offset, len).await? {
                return Ok(());
            }
            let what = || format!("cannot write {len} bytes at {offset}");
            self.write_any(Verb::Write, offset, data).await.map_err(self.error(what))
        })
    }

    fn write_parts(&self, offset: u64, parts: Arc<[Bytes]>) -> DiskFuture<'_, ()> {
        Box::pin(async move {
            let len = parts.iter().map(Bytes::len).sum();
            if !self.is_to_write(offset, len).await? {
                return Ok(());
            }
            let what = || format!("cannot write {len} bytes at {offset}");
            self.write_parts_any(offset, len, parts).await.map_err(self.error(what))
        })
    }

    fn write_through(&self, offset: u64, data: Bytes) -> DiskFuture<'_, ()> {
        Box::pin(async move {
            let len = data.len();
            if !self.is_to_write(offset, len).await? {
                return Ok(());
            }
            let what = || format!("cannot write {len} bytes through to {offset}");
            self.write_through_any(offset, data).await.map_err(self.error(what))
        })
    }

    fn flush(&self) -> DiskFuture<'_, ()> {
        Box::pin(async move {
            if self.read_only {
                return Ok(());
            }
            let what = || "cannot flush".to_owned();
            self.command(Verb::Sync, 0, 0).await.map_err(self.error(what))
        })
    }

    /// The path must still lead to what is open (a file that was moved or removed is as good as gone, although it can
    /// be written to as long as it is open), and a block device must have bytes: the path of one that was pulled may stay.
    fn presence(&self) -> DiskFuture<'_, ()> {
        Box::pin(async move {
            let (path, block_device) = (self.path.clone(), self.geometry.block_device);
            // Looking up a path may wait for a device, or for a network.
            let look = self.ask(move |file| Ok((sys::leads_to(&path, file)?, sys::size(file, block_device))));
            let (is_it, size) = look.await.map_err(|source| gone(&self.path, source))?;
            if !is_it {
                let source = io::Error::new(io::ErrorKind::NotFound, "another file is there now");
                return Err(gone(&self.path, source));
            }
            match self.note_size(size) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(error),
                Err(error) => tracing::debug!(%error, "it keeps the size it had"),
                Ok(_) => {}
            }
            Ok(())
        })
    }

    /// And where the page cache is not in the way, a sector must be readable.
    fn probe(&self) -> DiskFuture<'_, ()> {
        Box::pin(async move {
            self.presence().await?;
            if !self.backend.direct || self.geometry.in_memory || self.size.load(Relaxed) == 0 {
                return Ok(());
            }
            let len = self.align as usize;
            match self.read_into(0, IoBuf::with_len(len), len, len).await {
                Ok(_) => Ok(()),
                Err(error) => Err(gone(&self.path, error)),
            }
        })
    }

    fn trim(&self, offset: u64, len: u64) -> DiskFuture<'_, ()> {
        Box::pin(async move {
            if self.read_only {
                return Err(refuse_write(&self.path));
            }
            self.check(offset, len).await?;
            let (mut start, mut end) = (offset, offset + len);
            let verb = if self.geometry.block_device {
                // Only whole sectors can be unused.
                let sector = u64::from(self.geometry.logical_sector);
                (start, end) = (start.next_multiple_of(sector), end - end % sector);
                Verb::Discard
            } else {
                Verb::Punch
            };
            if start >= end {
                return Ok(());
            }
            let what = || format!("cannot trim {len} bytes at {offset}");
            self.command(verb, start, end - start).await.map_err(self.error(what))
        })
    }
}

/// What a probe says: `NotFound` where the system says in one of its ways that there is no such device.
fn gone(path: &str, source: io::Error) -> io::Error {
    let is_gone = matches!(source.raw_os_error(), Some(libc::ENXIO | libc::ENODEV | libc::ENOTDIR))
        || source.kind() == io::ErrorKind::NotFound;
    let kind = if is_gone { io::ErrorKind::NotFound } else { source.kind() };
    let what = if is_gone { "no longer there" } else { "does not answer" };
    io::Error::new(kind, FileError { path: path.to_owned(), what: what.to_owned(), source })
}

/// Whether asking the page cache first pays. A miss costs a system call for nothing, so after a run of misses
/// only one read in 16 asks.
#[derive(Debug, Default)]
struct CacheLuck {
    /// Misses since the last hit; [`CacheLuck::NEVER`] if the file system cannot tell.
    misses: AtomicU32,
}

impl CacheLuck {
    const PATIENCE: u32 = 16;
    const NEVER: u32 = u32::MAX;

    /// Bytes at `offset` the page cache had, copied to the start of `buf`.
    fn read(&self, file: &File, offset: u64, buf: &mut [u8]) -> usize {
        let misses = self.misses.load(Relaxed);
        if misses == Self::NEVER {
            return 0;
        }
        if misses >= Self::PATIENCE && !misses.is_multiple_of(Self::PATIENCE) {
            self.misses.store(Self::after_miss(misses), Relaxed);
            return 0;
        }
        match sys::read_cached(file, buf, offset) {
            // Nothing at all is the end of the file: the caller's next step finds it out.
            Ok(read) => {
                if misses != 0 {
                    self.misses.store(0, Relaxed);
                }
                read
            }
            Err(error) => {
                let unsupported = is_unsupported(&error);
                self.misses.store(if unsupported { Self::NEVER } else { Self::after_miss(misses) }, Relaxed);
                0
            }
        }
    }

    fn after_miss(misses: u32) -> u32 {
        if misses + 1 == Self::NEVER { Self::PATIENCE } else { misses + 1 }
    }
}

/// The kernel or the file system does not know a flag of a transfer.
fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL))
}

/// Why a file could not be opened for direct I/O.
struct NotDirect {
    source: io::Error,
    /// It would open without O_DIRECT.
    is_about_direct: bool,
}

impl From<io::Error> for NotDirect {
    fn from(source: io::Error) -> Self {
        let is_about_direct =
            matches!(source.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOTTY));
        Self { source, is_about_direct }
    }
}

/// Opens with O_DIRECT and makes sure that it works: some file systems accept the flag and refuse the reads.
fn open_direct(
    path: &Path,
    read_only: bool,
    flags: libc::c_int,
) -> Result<(File, sys::Geometry, u32), NotDirect> {
    let refuse = |why: &str| NotDirect {
        source: io::Error::new(io::ErrorKind::Unsupported, why),
        is_about_direct: true,
    };
    let file = open_with_flags(path, read_only, libc::O_DIRECT | flags)?;
    let geometry = sys::geometry(&file)?;
    let align = geometry.direct_align.ok_or_else(|| refuse("the file system has no direct I/O here"))?;
    if align as usize > IoBuf::ALIGN {
        return Err(refuse("direct I/O needs more alignment than a page"));
    }
    let size = sys::size(&file, geometry.block_device)?;
    if size % u64::from(align) != 0 {
        return Err(refuse("the file ends inside a sector"));
    }
    if size > 0 {
        let mut probe = IoBuf::with_len(align as usize);
        match file.read_at(&mut probe, 0) {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return Err(error.into()),
            // A bad first sector is no reason not to use the rest.
            Err(_) => {}
        }
    }
    Ok((file, geometry, align))
}

fn open_with_flags(path: &Path, read_only: bool, flags: libc::c_int) -> io::Result<File> {
    File::options().read(true).write(!read_only).custom_flags(flags).open(path)
}

/// The error of a disk that somebody else has: `ResourceBusy`.
fn in_use(path: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::ResourceBusy,
        format!("{path} is in use by another process (pool open elsewhere, or mounted)"),
    )
}

/// What `open` failed with: refused exclusive use, or anything else.
fn busy_or(
    path: &str,
    fail: impl FnOnce(&str, io::Error) -> io::Error,
    what: &str,
    error: io::Error,
) -> io::Error {
    if error.kind() == io::ErrorKind::ResourceBusy { in_use(path) } else { fail(what, error) }
}

fn file_error(path: &str, what: String, source: io::Error) -> io::Error {
    io::Error::new(source.kind(), FileError { path: path.to_owned(), what, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk that was pulled counted as one that was reduced: its blocks were announced as lost.
    #[test]
    fn a_block_device_without_bytes_is_gone_and_keeps_its_size() {
        const SIZE: u64 = 1 << 20;
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(SIZE).unwrap();
        let mut disk = FileDisk::open(file.path(), OpenOptions::default()).unwrap();
        disk.geometry.block_device = true;
        assert_eq!(disk.note_size(Ok(0)).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(disk.size.load(Relaxed), SIZE);
        assert_eq!(disk.note_size(Ok(SIZE / 2)).unwrap(), SIZE / 2, "one that was reduced is there");
        disk.geometry.block_device = false;
        assert_eq!(disk.note_size(Ok(0)).unwrap(), 0, "and so is a file that was emptied");
    }
}
