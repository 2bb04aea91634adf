//! One suite for every [`Disk`]: what the trait's contract promises, run by each backend.
//!
//! A backend is a function that makes a writable disk of [`SIZE`] zero bytes. Each test prints which backend it
//! skipped and why, where the machine lacks one (no io_uring, no loop devices).

use std::{
    future::Future,
    io,
    path::{Path, PathBuf},
    pin::pin,
    process::Command,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use disk::{Direct, Disk, Engine, FaultDisk, FileDisk, IoBuf, MemDisk, OpenOptions};

/// Bytes of every disk in this suite.
const SIZE: u64 = 4 << 20;

/// A disk under test, and what must outlive it.
struct Subject {
    disk: Arc<dyn Disk>,
    /// The file behind it, if there is one.
    file: Option<PathBuf>,
    _dir: Option<tempfile::TempDir>,
    _device: Option<LoopDevice>,
}

type Backend = fn() -> Result<Subject, String>;

fn file_disk(dir: tempfile::TempDir, direct: Direct, engine: Engine) -> Result<Subject, String> {
    let path = dir.path().join("disk");
    std::fs::File::create(&path).unwrap().set_len(SIZE).unwrap();
    let options = OpenOptions { read_only: false, direct, engine, lock: false };
    let disk = FileDisk::open(&path, options).map_err(|error| format!("{error}: {:?}", source(&error)))?;
    match direct {
        Direct::Never => assert!(!disk.backend().direct),
        Direct::Always => assert!(disk.backend().direct),
        Direct::Auto => {}
    }
    match engine {
        Engine::Uring => assert!(disk.backend().uring),
        Engine::Blocking => assert!(!disk.backend().uring),
        Engine::Auto => {}
    }
    Ok(Subject { disk: Arc::new(disk), file: Some(path), _dir: Some(dir), _device: None })
}

fn source(error: &io::Error) -> Option<String> {
    std::error::Error::source(error).map(ToString::to_string)
}

fn on_disk() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("millpond-disk-").tempdir_in("/var/tmp").unwrap()
}

fn uring_direct() -> Result<Subject, String> {
    file_disk(on_disk(), Direct::Always, Engine::Uring)
}
fn uring_buffered() -> Result<Subject, String> {
    file_disk(on_disk(), Direct::Never, Engine::Uring)
}
fn blocking_direct() -> Result<Subject, String> {
    file_disk(on_disk(), Direct::Always, Engine::Blocking)
}
fn blocking_buffered() -> Result<Subject, String> {
    file_disk(on_disk(), Direct::Never, Engine::Blocking)
}
fn tmpfs() -> Result<Subject, String> {
    let dir = tempfile::tempdir_in("/dev/shm").map_err(|error| format!("no tmpfs: {error}"))?;
    file_disk(dir, Direct::Auto, Engine::Auto)
}
fn memory() -> Result<Subject, String> {
    Ok(Subject { disk: Arc::new(MemDisk::new(SIZE)), file: None, _dir: None, _device: None })
}
fn faultless() -> Result<Subject, String> {
    let disk = Arc::new(FaultDisk::new(Arc::new(MemDisk::new(SIZE)), 1));
    Ok(Subject { disk, file: None, _dir: None, _device: None })
}
fn write_cache() -> Result<Subject, String> {
    let disk = Arc::new(FaultDisk::with_write_cache(Arc::new(MemDisk::new(SIZE)), 1));
    Ok(Subject { disk, file: None, _dir: None, _device: None })
}
fn loop_512() -> Result<Subject, String> {
    loop_disk(512)
}
fn loop_4096() -> Result<Subject, String> {
    loop_disk(4096)
}

/// A block device over a file, gone when dropped.
struct LoopDevice(PathBuf);

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let done = Command::new("losetup").arg("--detach").arg(&self.0).status();
        if !done.is_ok_and(|status| status.success()) {
            eprintln!("could not detach {}", self.0.display());
        }
    }
}

fn loop_disk(sector: u32) -> Result<Subject, String> {
    let dir = on_disk();
    let path = dir.path().join("backing");
    std::fs::File::create(&path).unwrap().set_len(SIZE).unwrap();
    let sector_size = sector.to_string();
    let losetup = Command::new("losetup")
        .args(["--find", "--show", "--sector-size", &sector_size])
        .arg(&path)
        .output()
        .map_err(|error| format!("no losetup: {error}"))?;
    if !losetup.status.success() {
        return Err(format!("losetup: {}", String::from_utf8_lossy(&losetup.stderr).trim()));
    }
    let device = LoopDevice(PathBuf::from(String::from_utf8(losetup.stdout).unwrap().trim()));
    let disk = FileDisk::open(&device.0, OpenOptions::default())
        .map_err(|error| format!("{error}: {:?}", source(&error)))?;
    assert!(disk.backend().direct, "a block device has direct I/O");
    let info = disk.info();
    assert_eq!((info.size, info.logical_sector), (SIZE, sector));
    assert!(info.physical_sector >= sector);
    Ok(Subject { disk: Arc::new(disk), file: None, _dir: Some(dir), _device: Some(device) })
}

/// Runs one check against one backend, on a runtime of its own.
fn check<F: Future<Output = ()>>(name: &str, backend: Backend, threads: Threads, test: fn(Subject) -> F) {
    let subject = match backend() {
        Ok(subject) => subject,
        Err(reason) => {
            eprintln!("skipped {name}: {reason}");
            return;
        }
    };
    let runtime = match threads {
        Threads::One => tokio::runtime::Builder::new_current_thread().enable_all().build(),
        Threads::Two => tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build(),
    };
    runtime.unwrap().block_on(test(subject));
}

#[derive(Clone, Copy)]
enum Threads {
    One,
    Two,
}

/// Every check for every backend, each a test of its own.
macro_rules! suite {
    ($($backend:ident)*) => { $(
        mod $backend {
            use super::{Threads, check, checks};
            suite!(@checks $backend: unaligned_transfers_move_exactly_their_bytes
                ranges_outside_the_disk_are_invalid_input
                hundreds_in_flight_each_get_their_own_bytes
                dropped_futures_harm_nobody
                what_lies_in_parts_is_written_as_one
                a_flush_succeeds_and_content_stays
                what_is_written_through_is_read_back_and_neighbours_stay
                a_trimmed_range_is_usable_again
                neighbours_survive_unaligned_writes_at_the_same_time
                large_transfers_are_whole
                a_batch_of_reads_under_a_plug_completes);
        }
    )* };
    (@checks $backend:ident: $($check:ident)*) => { $(
        #[test]
        fn $check() {
            for threads in [Threads::One, Threads::Two] {
                check(stringify!($backend), super::$backend, threads, checks::$check);
            }
        }
    )* };
}
suite!(uring_direct uring_buffered blocking_direct blocking_buffered tmpfs memory faultless write_cache
    loop_512 loop_4096);

/// Bytes that tell where they belong.
fn pattern(offset: u64, len: usize, round: u8) -> Vec<u8> {
    (offset..).take(len).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8 ^ round).collect()
}

async fn read(disk: &dyn Disk, offset: u64, len: usize) -> IoBuf {
    disk.read(offset, IoBuf::with_len(len)).await.unwrap()
}

async fn write(disk: &dyn Disk, offset: u64, data: Vec<u8>) {
    disk.write(offset, Bytes::from(data)).await.unwrap();
}

mod checks {
    use super::*;

    pub(super) async fn unaligned_transfers_move_exactly_their_bytes(subject: Subject) {
        let disk = &*subject.disk;
        let mut model = vec![0_u8; SIZE as usize];
        let spans = [
            (0, 1),
            (511, 2),
            (4095, 4098),
            (1000, 3096),
            (8192, 4096),
            (8192 + 512, 1024),
            (70_001, 130_000),
            (SIZE - 1, 1),
            (SIZE - 5000, 5000),
        ];
        for (round, (offset, len)) in (1..).zip(spans) {
            let data = pattern(offset, len, round);
            model[offset as usize..][..len].copy_from_slice(&data);
            write(disk, offset, data).await;
            assert_eq!(&read(disk, offset, len).await[..], &model[offset as usize..][..len]);
        }
        assert_eq!(&read(disk, 0, SIZE as usize).await[..], &model[..]);
        for (offset, len) in spans {
            assert_eq!(
                &read(disk, offset, len).await[..],
                &model[offset as usize..][..len],
                "{offset} {len}"
            );
        }
        // Memory that is not aligned, for a range that is.
        let data = Bytes::from(pattern(0, 8193, 99)).slice(1..);
        disk.write(16384, data.clone()).await.unwrap();
        assert_eq!(&read(disk, 16384, 8192).await[..], &data[..]);
        assert_eq!(disk.info().size, SIZE, "nothing made it longer");
    }

    /// However many parts, of whatever size and alignment, there are, empty ones included.
    pub(super) async fn what_lies_in_parts_is_written_as_one(subject: Subject) {
        let disk = &*subject.disk;
        let mut model = vec![0_u8; SIZE as usize];
        let aligned = |len: usize| IoBuf::from_slice(&pattern(len as u64, len, 3)).freeze();
        let skewed = |len: usize| Bytes::from(pattern(7, len + 1, 9)).slice(1..);
        let cases: [(u64, Vec<Bytes>); 10] = [
            (8192, vec![aligned(4096); 32]),
            (512 << 10, vec![aligned(8192); 32]),
            (1 << 20, vec![aligned(128 << 10), aligned(8192), aligned(256 << 10)]),
            (65536, vec![aligned(8192), skewed(8192), aligned(4096)]),
            (1000, vec![aligned(4096), aligned(4096)]),
            (40_960, vec![skewed(100), aligned(10_000), skewed(0), skewed(7)]),
            (2 << 20, (0..1500).map(|_| aligned(512)).collect()),
            (12_288, vec![aligned(4096)]),
            (16_384, Vec::new()),
            (SIZE - 32_768, vec![aligned(16_384), aligned(16_384)]),
        ];
        for (offset, parts) in cases {
            let data = parts.concat();
            model[offset as usize..][..data.len()].copy_from_slice(&data);
            disk.write_parts(offset, parts.into()).await.unwrap();
            assert_eq!(&read(disk, offset, data.len()).await[..], &data[..], "{offset}");
        }
        assert!(read(disk, 0, SIZE as usize).await[..] == model[..]);
        let beyond = disk.write_parts(SIZE - 4096, vec![aligned(4096); 2].into()).await.unwrap_err();
        assert_eq!(beyond.kind(), io::ErrorKind::InvalidInput);
        // Nobody waits for these, and the memory is used again while they may be under way.
        for round in 0..20_u8 {
            let parts: Vec<Bytes> = (0..16).map(|_| IoBuf::from_slice(&[round; 8192]).freeze()).collect();
            let mut writing = pin!(disk.write_parts(1 << 20, parts.into()));
            let mut context = Context::from_waker(Waker::noop());
            drop(writing.as_mut().poll(&mut context));
        }
        disk.flush().await.unwrap();
        let after = read(disk, 0, 1 << 20).await;
        assert!(after[..] == model[..1 << 20], "their neighbours are what they were");
    }

    pub(super) async fn ranges_outside_the_disk_are_invalid_input(subject: Subject) {
        let disk = &*subject.disk;
        for (offset, len) in
            [(SIZE, 1), (SIZE - 1, 2), (SIZE + 1, 0), (u64::MAX, 1), (u64::MAX - 511, 512), (1 << 63, 8)]
        {
            let error = disk.read(offset, IoBuf::zeroed(len)).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "read {offset} {len}: {error}");
            assert!(error.to_string().contains(&disk.info().path), "{error}");
            let error = disk.write(offset, Bytes::from(vec![1; len])).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "write {offset} {len}: {error}");
            let error = disk.trim(offset, len as u64).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "trim {offset} {len}: {error}");
        }
        assert_eq!(disk.trim(1, u64::MAX).await.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert!(disk.read(SIZE, IoBuf::zeroed(0)).await.unwrap().is_empty());
        disk.write(SIZE, Bytes::new()).await.unwrap();
        disk.trim(SIZE, 0).await.unwrap();
    }

    pub(super) async fn hundreds_in_flight_each_get_their_own_bytes(subject: Subject) {
        const BLOCK: usize = 4096;
        let blocks = SIZE / BLOCK as u64;
        let disk = subject.disk;
        let writes: Vec<_> = (0..blocks)
            .map(|block| {
                let disk = Arc::clone(&disk);
                let offset = block * BLOCK as u64;
                tokio::spawn(async move { write(&*disk, offset, pattern(offset, BLOCK, 5)).await })
            })
            .collect();
        for write in writes {
            write.await.unwrap();
        }
        let reads: Vec<_> = (0..blocks)
            .map(|block| {
                let disk = Arc::clone(&disk);
                // Some unaligned, some of other lengths.
                let offset = (block * 7919 % blocks) * BLOCK as u64 / (1 + block % 3);
                let len = (BLOCK >> (block % 4)).min((SIZE - offset) as usize);
                tokio::spawn(async move {
                    assert_eq!(&read(&*disk, offset, len).await[..], &pattern(offset, len, 5)[..]);
                })
            })
            .collect();
        for read in reads {
            read.await.unwrap();
        }
    }

    pub(super) async fn dropped_futures_harm_nobody(subject: Subject) {
        let disk = &*subject.disk;
        write(disk, 0, pattern(0, SIZE as usize, 3)).await;
        for round in 0..300_u64 {
            let offset = round * 8192 % SIZE;
            {
                // Polled once, so that it is under way, and dropped with its buffer in the kernel.
                let mut abandoned = pin!(disk.read(offset, IoBuf::with_len(8192)));
                let poll = abandoned.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                if let Poll::Ready(done) = poll {
                    assert_eq!(&done.unwrap()[..], &pattern(offset, 8192, 3)[..]);
                }
            }
            // Memory that came back too early would be overwritten by the abandoned read.
            let canary = IoBuf::from_slice(&[0xa5; 8192]);
            if round % 16 == 0 {
                assert_eq!(&read(disk, offset, 8192).await[..], &pattern(offset, 8192, 3)[..]);
            }
            assert!(canary.iter().all(|&byte| byte == 0xa5));
        }
        // An abandoned unaligned write lets others write later, and spoils only its own range.
        for _ in 0..20 {
            let mut abandoned = pin!(disk.write(100, Bytes::from(vec![9; 1000])));
            if abandoned.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
                continue;
            }
            tokio::task::yield_now().await;
        }
        disk.flush().await.unwrap();
        write(disk, 2000, vec![1; 10]).await;
        assert_eq!(&read(disk, 0, 100).await[..], &pattern(0, 100, 3)[..]);
        assert_eq!(&read(disk, 1100, 900).await[..], &pattern(1100, 900, 3)[..]);
        assert_eq!(&read(disk, 2000, 10).await[..], &[1; 10]);
    }

    pub(super) async fn a_flush_succeeds_and_content_stays(subject: Subject) {
        let disk = &*subject.disk;
        disk.flush().await.unwrap();
        write(disk, 12_345, pattern(0, 50_000, 8)).await;
        let (first, second) = tokio::join!(disk.flush(), disk.flush());
        first.unwrap();
        second.unwrap();
        assert_eq!(&read(disk, 12_345, 50_000).await[..], &pattern(0, 50_000, 8)[..]);
    }

    /// Aligned, unaligned, beyond a page, in long runs, and beside ordinary writes of the same sectors.
    pub(super) async fn what_is_written_through_is_read_back_and_neighbours_stay(subject: Subject) {
        let disk = &*subject.disk;
        write(disk, 0, pattern(0, 1 << 20, 1)).await;
        let through = async |offset: u64, len: usize| {
            disk.write_through(offset, Bytes::from(pattern(offset, len, 9))).await.unwrap();
        };
        for (offset, len) in [(0, 4096), (8192, 512), (12_288, 131_072), (262_144, 65_536)] {
            let mut aligned = IoBuf::with_len(len);
            aligned.copy_from_slice(&pattern(offset, len, 9));
            disk.write_through(offset, aligned.freeze()).await.unwrap();
            assert_eq!(&read(disk, offset, len).await[..], &pattern(offset, len, 9)[..]);
        }
        for (offset, len) in [(524_289, 1), (530_000, 5000), (541_184, 1000), (600_001, 100_001)] {
            through(offset, len).await;
            let seen = read(disk, offset - 1, len + 2).await;
            assert_eq!(&seen[1..=len], &pattern(offset, len, 9)[..], "{offset} {len}");
            assert_eq!(seen[0], pattern(offset - 1, 1, 1)[0]);
            assert_eq!(seen[len + 1], pattern(offset + len as u64, 1, 1)[0]);
        }
        tokio::join!(
            through(800_000, 300),
            write(disk, 800_300, pattern(800_300, 300, 9)),
            through(800_600, 300),
        );
        assert_eq!(&read(disk, 800_000, 900).await[..], &pattern(800_000, 900, 9)[..]);
        through(SIZE - 100, 100).await;
        disk.write_through(5, Bytes::new()).await.unwrap();
        let beyond = disk.write_through(SIZE - 1, Bytes::from_static(b"ab")).await.unwrap_err();
        assert_eq!(beyond.kind(), io::ErrorKind::InvalidInput);
        if let Some(file) = &subject.file {
            let image = std::fs::read(file).unwrap();
            assert_eq!(image[600_001..700_002], pattern(600_001, 100_001, 9));
            assert_eq!(image[image.len() - 100..], pattern(SIZE - 100, 100, 9));
        }
    }

    pub(super) async fn a_trimmed_range_is_usable_again(subject: Subject) {
        let disk = &*subject.disk;
        write(disk, 0, pattern(0, 1 << 20, 2)).await;
        match disk.trim(65_536, 131_072).await {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                eprintln!("{}: no trim here", disk.info().path);
            }
            Err(error) => panic!("{error}: {:?}", source(&error)),
        }
        // Any content is legal there, but not elsewhere.
        assert_eq!(read(disk, 65_536, 131_072).await.len(), 131_072);
        assert_eq!(&read(disk, 0, 65_536).await[..], &pattern(0, 65_536, 2)[..]);
        assert_eq!(&read(disk, 196_608, 65_536).await[..], &pattern(196_608, 65_536, 2)[..]);
        write(disk, 65_536, pattern(65_536, 131_072, 6)).await;
        disk.flush().await.unwrap();
        assert_eq!(&read(disk, 65_536, 131_072).await[..], &pattern(65_536, 131_072, 6)[..]);
        assert_eq!(disk.info().size, SIZE);
    }

    /// The hazard of a read-modify-write: putting a neighbour's old bytes back.
    pub(super) async fn neighbours_survive_unaligned_writes_at_the_same_time(subject: Subject) {
        const PIECE: u64 = 100;
        let disk = subject.disk;
        for round in 1..4_u8 {
            let writes: Vec<_> = (0..200)
                .map(|piece| {
                    let disk = Arc::clone(&disk);
                    tokio::spawn(async move {
                        let offset = piece * PIECE;
                        write(&*disk, offset, pattern(offset, PIECE as usize, round)).await;
                    })
                })
                .collect();
            for write in writes {
                write.await.unwrap();
            }
            assert_eq!(&read(&*disk, 0, 20_000).await[..], &pattern(0, 20_000, round)[..]);
        }
    }

    pub(super) async fn large_transfers_are_whole(subject: Subject) {
        let disk = &*subject.disk;
        write(disk, 0, pattern(0, SIZE as usize, 4)).await;
        assert_eq!(&read(disk, 0, SIZE as usize).await[..], &pattern(0, SIZE as usize, 4)[..]);
        let len = SIZE as usize - 3;
        assert_eq!(&read(disk, 2, len).await[..], &pattern(2, len, 4)[..]);
    }

    pub(super) async fn a_batch_of_reads_under_a_plug_completes(subject: Subject) {
        let disk = &*subject.disk;
        write(disk, 0, pattern(0, SIZE as usize, 1)).await;
        // More than a plug holds back.
        let mut reads: Vec<_> = (0..700_u64)
            .map(|read| read * 4096)
            .map(|offset| (offset, Some(disk.read(offset, IoBuf::with_len(4096)))))
            .collect();
        let all = std::future::poll_fn(|cx| {
            let mut waiting = 0;
            for (offset, slot) in &mut reads {
                let Some(future) = slot else { continue };
                match future.as_mut().poll(cx) {
                    Poll::Ready(done) => {
                        assert_eq!(&done.unwrap()[..], &pattern(*offset, 4096, 1)[..]);
                        *slot = None;
                    }
                    Poll::Pending => waiting += 1,
                }
            }
            if waiting == 0 { Poll::Ready(()) } else { Poll::Pending }
        });
        disk::plugged(all).await;
    }
}

fn open(path: &Path, read_only: bool, direct: Direct, engine: Engine) -> FileDisk {
    FileDisk::open(path, OpenOptions { read_only, direct, engine, lock: false }).unwrap()
}

#[tokio::test]
async fn a_read_only_disk_refuses_writes_and_has_no_means_to_write() {
    let subject = blocking_buffered().unwrap();
    let path = subject.file.as_deref().unwrap();
    write(&*subject.disk, 0, pattern(0, 4096, 1)).await;
    let mut disks: Vec<Arc<dyn Disk>> = vec![
        Arc::new(MemDisk::from_bytes(&pattern(0, 4096, 1)).read_only()),
        Arc::new(FaultDisk::new(Arc::new(MemDisk::from_bytes(&pattern(0, 4096, 1)).read_only()), 0)),
    ];
    for direct in [Direct::Auto, Direct::Never] {
        for engine in [Engine::Auto, Engine::Blocking] {
            disks.push(Arc::new(open(path, true, direct, engine)));
        }
    }
    for disk in disks {
        assert!(disk.info().read_only, "{disk:?}");
        let error = disk.write(0, Bytes::from_static(b"x")).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{disk:?}");
        assert_eq!(disk.trim(0, 512).await.unwrap_err().kind(), io::ErrorKind::PermissionDenied, "{disk:?}");
        let through = disk.write_through(0, Bytes::from_static(b"x")).await.unwrap_err();
        assert_eq!(through.kind(), io::ErrorKind::PermissionDenied);
        disk.flush().await.unwrap();
        assert_eq!(&read(&*disk, 0, 4096).await[..], &pattern(0, 4096, 1)[..], "{disk:?}");
    }
    // O_RDONLY is 0 in the access mode of every descriptor of the file but the first, writable one.
    drop(subject.disk);
    let disk = open(path, true, Direct::Auto, Engine::Auto);
    let modes: Vec<bool> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|fd| fd.ok())
        .filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|target| target == path))
        .map(|fd| {
            let info = format!("/proc/self/fdinfo/{}", fd.file_name().to_str().unwrap());
            let info = std::fs::read_to_string(info).unwrap();
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
            u32::from_str_radix(flags.trim(), 8).unwrap() & 3 == 0
        })
        .collect();
    assert_eq!(modes, [true]);
    drop(disk);
}

#[tokio::test]
async fn a_disk_that_grows_is_usable_to_its_new_end() {
    for direct in [Direct::Auto, Direct::Never] {
        let subject = file_disk(on_disk(), direct, Engine::Blocking).unwrap();
        let (disk, path) = (&*subject.disk, subject.file.as_deref().unwrap());
        assert!(disk.read(SIZE, IoBuf::zeroed(4096)).await.is_err());
        std::fs::File::options().write(true).open(path).unwrap().set_len(2 * SIZE).unwrap();
        assert!(read(disk, SIZE, 4096).await.iter().all(|&byte| byte == 0));
        write(disk, 2 * SIZE - 4096, vec![7; 4096]).await;
        assert_eq!(disk.info().size, 2 * SIZE);
        std::fs::File::options().write(true).open(path).unwrap().set_len(SIZE).unwrap();
        let error = disk.read(SIZE, IoBuf::zeroed(4096)).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}: it shrank");
    }
    let disk = MemDisk::new(SIZE);
    disk.resize(SIZE + 1);
    write(&disk, SIZE, vec![7]).await;
    disk.resize(SIZE);
    assert!(disk.read(SIZE, IoBuf::zeroed(1)).await.is_err());
    disk.resize(SIZE + 1);
    assert_eq!(read(&disk, SIZE, 1).await[0], 0, "what was cut off is gone");
}

/// Found by reading: whoever wanted to know the size of a file asked its file system, and one server of files that did not
/// answer had all threads of the runtime wait for it.
#[tokio::test]
async fn a_file_is_as_large_as_a_probe_has_found_it() {
    for direct in [Direct::Auto, Direct::Never] {
        let subject = file_disk(on_disk(), direct, Engine::Blocking).unwrap();
        let (disk, path) = (&*subject.disk, subject.file.as_deref().unwrap());
        let resize = |size| std::fs::File::options().write(true).open(path).unwrap().set_len(size).unwrap();
        resize(2 * SIZE);
        assert_eq!(disk.info().size, SIZE, "nobody is asked");
        disk.probe().await.unwrap();
        assert_eq!(disk.info().size, 2 * SIZE);
        resize(3 * SIZE);
        write(disk, 3 * SIZE - 4096, vec![7; 4096]).await;
        assert_eq!(disk.info().size, 3 * SIZE, "it was asked before the write was refused");
        // As many as there are find the same, however they come together.
        let (first, second) = tokio::join!(disk.probe(), disk.probe());
        assert!(first.is_ok() && second.is_ok());
    }
}

/// A disk that was pulled has no bytes for as long as somebody has it open, and in a container its path stays. It counted as
/// one that was there and refused everything.
#[tokio::test]
async fn a_block_device_without_bytes_is_gone_whatever_is_asked_of_it() {
    let subject = match loop_512() {
        Ok(subject) => subject,
        Err(reason) => {
            eprintln!("skipped: {reason}");
            return;
        }
    };
    let Subject { disk, _dir: Some(dir), _device: Some(device), .. } = subject else {
        unreachable!("a loop device lies in a directory")
    };
    let resize = |bytes| {
        let backing = std::fs::File::options().write(true).open(dir.path().join("backing")).unwrap();
        backing.set_len(bytes).unwrap();
        let told = Command::new("losetup").arg("--set-capacity").arg(&device.0).status().unwrap();
        assert!(told.success());
    };
    let is_gone = |error: io::Error| assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
    write(&*disk, 0, vec![7; 4096]).await;
    resize(0);
    is_gone(disk.read(0, IoBuf::zeroed(4096)).await.unwrap_err());
    is_gone(disk.write(0, Bytes::from(vec![8; 4096])).await.unwrap_err());
    is_gone(disk.presence().await.unwrap_err());
    is_gone(disk.probe().await.unwrap_err());
    assert_eq!(disk.info().size, SIZE, "not one that has shrunk");
    resize(SIZE);
    disk.probe().await.unwrap();
    // Before its device is given back.
    drop(disk);
}

#[test]
fn what_is_no_disk_is_refused_by_name() {
    let dir = on_disk();
    let missing = dir.path().join("missing");
    for (path, kind) in [
        (missing.as_path(), io::ErrorKind::NotFound),
        (dir.path(), io::ErrorKind::InvalidInput),
        (Path::new("/dev/null"), io::ErrorKind::InvalidInput),
    ] {
        let error = FileDisk::open(path, OpenOptions::default()).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }
}

/// A pool file need not be a multiple of anything, and its tail must stay readable.
#[tokio::test]
async fn a_file_that_ends_inside_a_sector_is_read_through_the_page_cache() {
    let dir = on_disk();
    let path = dir.path().join("odd");
    std::fs::write(&path, pattern(0, 10_001, 1)).unwrap();
    let disk = open(&path, true, Direct::Auto, Engine::Auto);
    assert!(!disk.backend().direct);
    assert_eq!(disk.info().size, 10_001);
    assert_eq!(&read(&disk, 0, 10_001).await[..], &pattern(0, 10_001, 1)[..]);
    let options = OpenOptions { read_only: true, direct: Direct::Always, engine: Engine::Auto, lock: false };
    assert!(FileDisk::open(&path, options).is_err());
}

/// Rings belong to runtimes: each new one gets its own, whatever became of the last.
#[test]
fn one_disk_serves_many_runtimes_in_turn() {
    for direct in [Direct::Auto, Direct::Never] {
        let subject = file_disk(on_disk(), direct, Engine::Auto).unwrap();
        for round in 1..40_u8 {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let disk = &*subject.disk;
                write(disk, 0, pattern(0, 8192, round)).await;
                assert_eq!(&read(disk, 0, 8192).await[..], &pattern(0, 8192, round)[..]);
                // Still under way when the runtime ends.
                let disk = Arc::clone(&subject.disk);
                tokio::spawn(async move { disk.read(4096, IoBuf::with_len(65_536)).await });
                tokio::task::yield_now().await;
            });
        }
    }
}

/// Two runtimes that take turns on one thread, with operations of both under way.
#[test]
fn runtimes_on_one_thread_do_not_take_each_others_completions() {
    let subject = file_disk(on_disk(), Direct::Auto, Engine::Auto).unwrap();
    let build = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (one, two) = (build(), build());
    one.block_on(write(&*subject.disk, 0, pattern(0, 65_536, 1)));
    for _ in 0..50 {
        let disk = Arc::clone(&subject.disk);
        let pending = one.spawn(async move { read(&*disk, 0, 32_768).await });
        one.block_on(tokio::task::yield_now());
        assert_eq!(&two.block_on(read(&*subject.disk, 0, 512))[..], &pattern(0, 512, 1)[..]);
        assert_eq!(&one.block_on(pending).unwrap()[..], &pattern(0, 32_768, 1)[..]);
    }
}

/// No runtime at all: slow and correct.
#[test]
fn outside_a_runtime_the_calling_thread_does_it() {
    let subject = file_disk(on_disk(), Direct::Auto, Engine::Auto).unwrap();
    let mut future = pin!(subject.disk.read(0, IoBuf::with_len(4096)));
    let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("nothing to wait for");
    };
    assert_eq!(&done.unwrap()[..], &[0; 4096]);
}

/// A verify of a pool in the page cache must not pay for a wake-up per block.
#[test]
fn reads_that_hit_the_page_cache_are_ready_at_once() {
    let subject = file_disk(on_disk(), Direct::Never, Engine::Auto).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(write(&*subject.disk, 0, pattern(0, SIZE as usize, 1)));
    let _entered = runtime.enter();
    let ready = (0..100)
        .filter(|block| {
            let mut future = pin!(subject.disk.read(block * 8192, IoBuf::with_len(8192)));
            future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
        })
        .count();
    assert_eq!(ready, 100);
}

/// Threads end while their reads are under way; the kernel cancels what it can, and the reads still answer.
#[test]
fn reads_survive_the_thread_that_submitted_them() {
    let subject = file_disk(on_disk(), Direct::Auto, Engine::Auto).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(write(&*subject.disk, 0, pattern(0, SIZE as usize, 1)));
    for round in 0..50_u64 {
        let offset = round * 65_536 % SIZE;
        let mut future = subject.disk.read(offset, IoBuf::with_len(65_536));
        let polled = std::thread::scope(|scope| {
            let poll = || {
                let _entered = runtime.handle().enter();
                future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
            };
            scope.spawn(poll).join().unwrap()
        });
        let done = match polled {
            Poll::Ready(done) => done,
            Poll::Pending => runtime.block_on(future),
        };
        assert_eq!(&done.unwrap()[..], &pattern(offset, 65_536, 1)[..]);
    }
}
